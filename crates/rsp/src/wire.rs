//! The body: what is sealed. Layouts are in `api/rsp.md`; all is big endian.

use crate::message::{check_address, check_mac};
use crate::{
    Answer, Answered, Ask, BODY_HEADER_BYTES, Destination, HEADER_BYTES, Message, Moved, Path, Refusal,
    TAG_BYTES, VERSION,
};
use sluice_types::{MacAddr, Vni};
use std::net::IpAddr;

#[cfg(test)]
mod tests;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const NOTIFY: u8 = 3;
const REDIRECT: u8 = 4;

/// Bits of an entry's form: which addresses are IPv6, and what an answer says.
const ADDRESS_V6: u8 = 0x01;
const HOST_V6: u8 = 0x02;
const ASK_V6: u8 = 0x04;
const UNCHANGED: u8 = 0x10;
const ABSENT: u8 = 0x20;

/// Length and form.
const ENTRY_HEADER_BYTES: usize = 2;

/// A body that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// What is said, one packet of it.
    pub message: Message,
    /// Entries of forms that only a newer minor version has, passed over.
    pub skipped: u16,
}

/// Writes a message as packets of at most `bytes_max`, each with room for its
/// header in front and nothing behind the body yet.
pub(crate) fn encode(message: &Message, bytes_max: usize) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut packets = Packets { kind: 0, id: 0, bytes_max: bytes_max - TAG_BYTES, done: Vec::new() };
    let mut entry = Vec::with_capacity(64);
    match message {
        Message::Request { id, asks } => {
            (packets.kind, packets.id) = (REQUEST, *id);
            for ask in asks {
                write_entry(&mut entry, 0, &ask.destination)?;
                entry.extend(ask.revision.to_be_bytes());
                packets.push(&mut entry);
            }
        }
        Message::Reply { id, answers } => {
            (packets.kind, packets.id) = (REPLY, *id);
            for answer in answers {
                write_answer(&mut entry, answer)?;
                packets.push(&mut entry);
            }
        }
        Message::Notify { answers } => {
            packets.kind = NOTIFY;
            for answer in answers {
                if matches!(answer.answer, Answer::Unchanged { .. }) {
                    return Err(Refusal::Form { form: UNCHANGED });
                }
                write_answer(&mut entry, answer)?;
                packets.push(&mut entry);
            }
        }
        Message::Redirect { moved } => {
            packets.kind = REDIRECT;
            for moved in moved {
                let form = v6(moved.host, HOST_V6) | v6(moved.ask, ASK_V6);
                write_entry(&mut entry, form, &moved.destination)?;
                write_address(&mut entry, moved.host)?;
                write_address(&mut entry, moved.ask)?;
                packets.push(&mut entry);
            }
        }
    }
    Ok(packets.done)
}

struct Packets {
    kind: u8,
    id: u32,
    bytes_max: usize,
    done: Vec<Vec<u8>>,
}

impl Packets {
    /// Takes an entry, whose length is not written yet, into the last packet that
    /// has room.
    fn push(&mut self, entry: &mut Vec<u8>) {
        entry[0] = entry.len() as u8;
        let count_at = HEADER_BYTES + 2;
        let fits = |packet: &Vec<u8>| {
            packet.len() + entry.len() <= self.bytes_max && packet[count_at..count_at + 2] != [0xff, 0xff]
        };
        if !self.done.last().is_some_and(fits) {
            let mut packet = Vec::with_capacity(self.bytes_max + TAG_BYTES);
            packet.resize(HEADER_BYTES, 0);
            packet.extend([self.kind, 0, 0, 0]);
            packet.extend(self.id.to_be_bytes());
            self.done.push(packet);
        }
        let packet = self.done.last_mut().expect("a packet was just made where none was");
        packet.append(entry);
        let count = u16::from_be_bytes([packet[count_at], packet[count_at + 1]]) + 1;
        packet[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
    }
}

fn v6(address: IpAddr, bit: u8) -> u8 {
    if address.is_ipv6() { bit } else { 0 }
}

fn write_address(out: &mut Vec<u8>, address: IpAddr) -> Result<(), Refusal> {
    check_address(address)?;
    match address {
        IpAddr::V4(v4) => out.extend(v4.octets()),
        IpAddr::V6(v6) => out.extend(v6.octets()),
    }
    Ok(())
}

fn write_vni(out: &mut Vec<u8>, vni: Vni) {
    out.extend(&vni.get().to_be_bytes()[1..]);
}

fn write_entry(out: &mut Vec<u8>, form: u8, destination: &Destination) -> Result<(), Refusal> {
    out.clear();
    out.extend([0, form | v6(destination.address, ADDRESS_V6)]);
    write_vni(out, destination.vni);
    write_address(out, destination.address)
}

fn write_answer(out: &mut Vec<u8>, answered: &Answered) -> Result<(), Refusal> {
    match &answered.answer {
        Answer::Path(path) => {
            check_mac(path.mac)?;
            write_entry(out, v6(path.host, HOST_V6), &answered.destination)?;
            write_address(out, path.host)?;
            out.extend(path.mac.octets());
            write_vni(out, path.vni);
            out.extend(path.lifetime_ms.to_be_bytes());
            out.extend(path.revision.to_be_bytes());
        }
        Answer::Unchanged { lifetime_ms, revision } => {
            write_entry(out, UNCHANGED, &answered.destination)?;
            out.extend(lifetime_ms.to_be_bytes());
            out.extend(revision.to_be_bytes());
        }
        Answer::Absent { revision } => {
            write_entry(out, ABSENT, &answered.destination)?;
            out.extend(revision.to_be_bytes());
        }
    }
    Ok(())
}

/// Reads the body of a packet of this version's major and the given minor number.
///
/// # Errors
/// [`Refusal`], from [`Refusal::Kind`] on.
pub fn decode(minor: u8, body: &[u8]) -> Result<Body, Refusal> {
    let (head, rest) =
        body.split_first_chunk::<BODY_HEADER_BYTES>().ok_or(Refusal::Short { bytes: body.len() })?;
    let [kind, reserved, count @ .., _, _, _, _] = *head;
    let id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    let mut entries = Entries { newer: minor > VERSION.1, rest, read: 0, skipped: 0 };
    if !entries.newer && (reserved != 0 || id != 0 && (kind == NOTIFY || kind == REDIRECT)) {
        return Err(Refusal::Reserved);
    }
    let count = u16::from_be_bytes(count);
    let answers = |entries: &mut Entries<'_>, forms: &[u8]| entries.read_all(count, forms, read_answer);
    let message = match kind {
        REQUEST => Message::Request { id, asks: entries.read_all(count, &[ADDRESS_V6], read_ask)? },
        REPLY => Message::Reply {
            id,
            answers: answers(
                &mut entries,
                &[ADDRESS_V6 | HOST_V6, ADDRESS_V6 | UNCHANGED, ADDRESS_V6 | ABSENT],
            )?,
        },
        NOTIFY => {
            Message::Notify { answers: answers(&mut entries, &[ADDRESS_V6 | HOST_V6, ADDRESS_V6 | ABSENT])? }
        }
        REDIRECT => Message::Redirect {
            moved: entries.read_all(count, &[ADDRESS_V6 | HOST_V6 | ASK_V6], read_moved)?,
        },
        _ => return Err(Refusal::Kind { kind }),
    };
    Ok(Body { message, skipped: entries.skipped })
}

fn read_ask(fields: &mut Fields<'_>) -> Result<Ask, Refusal> {
    Ok(Ask { destination: fields.destination()?, revision: fields.u64()? })
}

fn read_answer(fields: &mut Fields<'_>) -> Result<Answered, Refusal> {
    let destination = fields.destination()?;
    let answer = match fields.form & (UNCHANGED | ABSENT) {
        UNCHANGED => Answer::Unchanged { lifetime_ms: fields.u32()?, revision: fields.u64()? },
        ABSENT => Answer::Absent { revision: fields.u64()? },
        _ => Answer::Path(Path {
            host: fields.address(HOST_V6)?,
            mac: fields.mac()?,
            vni: fields.vni()?,
            lifetime_ms: fields.u32()?,
            revision: fields.u64()?,
        }),
    };
    Ok(Answered { destination, answer })
}

fn read_moved(fields: &mut Fields<'_>) -> Result<Moved, Refusal> {
    Ok(Moved {
        destination: fields.destination()?,
        host: fields.address(HOST_V6)?,
        ask: fields.address(ASK_V6)?,
    })
}

/// The entries of a body that are still to be read.
struct Entries<'a> {
    newer: bool,
    rest: &'a [u8],
    read: u16,
    skipped: u16,
}

impl<'a> Entries<'a> {
    /// Reads exactly `count` entries. `forms`: what may be set in a form, bit by
    /// bit; a form is known that has no other bits than one of these.
    fn read_all<T>(
        &mut self,
        count: u16,
        forms: &[u8],
        read: impl Fn(&mut Fields<'a>) -> Result<T, Refusal>,
    ) -> Result<Vec<T>, Refusal> {
        if count == 0 {
            return Err(Refusal::Empty);
        }
        // The count is what a sender says; the bytes are what is there.
        let mut out = Vec::with_capacity(usize::from(count).min(self.rest.len() / 16));
        while self.read < count {
            let mut fields = self.next()?;
            if forms.iter().all(|known| fields.form & !known != 0) {
                if !self.newer {
                    return Err(Refusal::Form { form: fields.form });
                }
                self.skipped += 1;
            } else {
                out.push(read(&mut fields)?);
                if !fields.rest.is_empty() && !self.newer {
                    return Err(Refusal::Trailing { entry: self.read });
                }
            }
            self.read += 1;
        }
        if !self.rest.is_empty() && !self.newer {
            return Err(Refusal::Trailing { entry: count });
        }
        Ok(out)
    }

    fn next(&mut self) -> Result<Fields<'a>, Refusal> {
        let cut = Refusal::Truncated { entry: self.read };
        let length = usize::from(*self.rest.first().ok_or(cut)?);
        let (entry, rest) = self.rest.split_at_checked(length).ok_or(cut)?;
        let (head, fields) = entry.split_first_chunk::<ENTRY_HEADER_BYTES>().ok_or(cut)?;
        self.rest = rest;
        Ok(Fields { form: head[1], rest: fields, entry: self.read })
    }
}

/// The fields of one entry that are still to be read.
struct Fields<'a> {
    form: u8,
    rest: &'a [u8],
    entry: u16,
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let (taken, rest) =
            self.rest.split_first_chunk::<N>().ok_or(Refusal::Truncated { entry: self.entry })?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refusal> {
        self.take().map(u64::from_be_bytes)
    }

    fn vni(&mut self) -> Result<Vni, Refusal> {
        let [a, b, c] = self.take()?;
        Vni::new(u32::from_be_bytes([0, a, b, c])).map_err(|_| Refusal::Vni)
    }

    fn mac(&mut self) -> Result<MacAddr, Refusal> {
        let mac = MacAddr::new(self.take()?);
        check_mac(mac).map(|()| mac)
    }

    /// An address whose family is said by this bit of the form.
    fn address(&mut self, bit: u8) -> Result<IpAddr, Refusal> {
        let address: IpAddr =
            if self.form & bit != 0 { self.take::<16>()?.into() } else { self.take::<4>()?.into() };
        check_address(address).map(|()| address)
    }

    fn destination(&mut self) -> Result<Destination, Refusal> {
        Ok(Destination { vni: self.vni()?, address: self.address(ADDRESS_V6)? })
    }
}
