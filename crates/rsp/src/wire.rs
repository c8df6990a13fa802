//! Layout of message bodies, the encrypted part of packets. `api/rsp.md` defines it; all numbers are big
//! endian.

use crate::message::{
    Answer, AnswerEntry, Capabilities, Destination, IdentityEntry, Message, NetworkAnswer, NetworkQuery,
    Path, PermitEntry, Query, Reception, RedirectEntry, StrayEntry, check_address, check_mac, check_mtu,
    check_prefix,
};
use crate::protocol::{BODY_HEADER_BYTES, VERSION};
use crate::refusal::{BodyError, Refusal};
use sluice_envelope as envelope;
use sluice_types::{IpNet, MacAddr, Vni};
use std::net::IpAddr;

#[cfg(test)]
mod tests;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const NOTIFY: u8 = 3;
const REDIRECT: u8 = 4;
const STRAY: u8 = 5;
const PERMIT: u8 = 6;
const PERMITTED: u8 = 7;
const IDENTIFY: u8 = 8;
const IDENTITY: u8 = 9;
const RECONCILE: u8 = 10;
const RECONCILED: u8 = 11;

/// Bits of an entry's form: which addresses are IPv6, and what an answer says.
const ADDRESS_V6: u8 = 0x01;
const HOST_V6: u8 = 0x02;
const GATEWAY_V6: u8 = 0x04;
const UNCHANGED: u8 = 0x10;
const ABSENT: u8 = 0x20;
/// Form of a Reconciled entry: what has changed is not known.
const UNKNOWN: u8 = 0x40;

/// Bit of a path's flags: [`Path::by_network`].
const BY_NETWORK: u8 = 0x01;
/// The first minor version whose paths have flags.
const FLAGS_SINCE: u8 = 3;
/// The first minor version that says what hosts can receive, and what they can do.
const RECEPTION_SINCE: u8 = 4;

/// Size of an entry's length and form bytes.
const ENTRY_HEADER_BYTES: usize = 2;
/// Size of the shortest entries: a permit of an IPv4 host, and an IPv4 destination whose identity is wanted.
const ENTRY_BYTES_MIN: usize = 9;

/// Position of the number of entries in a body.
const COUNT_AT: usize = 2;

/// Content of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The message, or the part of it that is in this body.
    pub message: Message,
    /// Number of entries that were ignored because only a newer minor version defines their form.
    pub skipped: u16,
}

/// Writes a message as bodies of at most `body_bytes_max` bytes each.
pub(crate) fn encode(message: &Message, body_bytes_max: usize) -> Result<Vec<Vec<u8>>, BodyError> {
    let mut bodies = Bodies { kind: 0, capabilities: 0, id: 0, body_bytes_max, done: Vec::new() };
    let mut entry = Vec::with_capacity(64);
    match message {
        Message::Request { id, capabilities, queries } => {
            (bodies.kind, bodies.capabilities, bodies.id) = (REQUEST, capabilities.bits(), *id);
            for query in queries {
                write_entry(&mut entry, 0, &query.destination)?;
                entry.extend(query.revision.to_be_bytes());
                bodies.push(&mut entry);
            }
        }
        Message::Reply { id, answers } => {
            (bodies.kind, bodies.id) = (REPLY, *id);
            for answer in answers {
                write_answer(&mut entry, answer)?;
                bodies.push(&mut entry);
            }
        }
        Message::Notify { answers } => {
            bodies.kind = NOTIFY;
            for answer in answers {
                if matches!(answer.answer, Answer::Unchanged { .. }) {
                    return Err(BodyError::Form { form: UNCHANGED });
                }
                write_answer(&mut entry, answer)?;
                bodies.push(&mut entry);
            }
        }
        Message::Redirect { entries } => {
            bodies.kind = REDIRECT;
            for redirect in entries {
                let form = v6(redirect.host, HOST_V6) | v6(redirect.gateway, GATEWAY_V6);
                write_entry(&mut entry, form, &redirect.destination)?;
                write_address(&mut entry, redirect.host)?;
                write_address(&mut entry, redirect.gateway)?;
                bodies.push(&mut entry);
            }
        }
        Message::Stray { entries } => {
            bodies.kind = STRAY;
            for stray in entries {
                write_entry(&mut entry, v6(stray.host, HOST_V6), &stray.destination)?;
                write_address(&mut entry, stray.host)?;
                bodies.push(&mut entry);
            }
        }
        Message::Permit { entries } => bodies.push_permits(PERMIT, entries)?,
        Message::Permitted { reception, entries } => {
            bodies.id = check_mtu(reception.mtu.into())?.into();
            bodies.capabilities = reception.capabilities.bits();
            bodies.push_permits(PERMITTED, entries)?;
        }
        Message::Identify { entries } => {
            bodies.kind = IDENTIFY;
            for destination in entries {
                write_entry(&mut entry, 0, destination)?;
                bodies.push(&mut entry);
            }
        }
        Message::Identity { entries } => {
            bodies.kind = IDENTITY;
            for IdentityEntry { destination, identity } in entries {
                write_entry(&mut entry, 0, destination)?;
                entry.extend(identity.to_be_bytes());
                bodies.push(&mut entry);
            }
        }
        Message::Reconcile { queries } => bodies.push_queries(queries),
        Message::Reconciled { answers } => bodies.push_network_answers(answers)?,
    }
    Ok(bodies.done)
}

/// Collects entries into bodies.
struct Bodies {
    kind: u8,
    capabilities: u8,
    /// Of a Permitted, the MTU.
    id: u32,
    body_bytes_max: usize,
    done: Vec<Vec<u8>>,
}

impl Bodies {
    fn push_permits(&mut self, kind: u8, permits: &[PermitEntry]) -> Result<(), BodyError> {
        self.kind = kind;
        for permit in permits {
            let mut entry = Vec::new();
            write_network(&mut entry, v6(permit.host, HOST_V6), permit.vni);
            write_address(&mut entry, permit.host)?;
            self.push(&mut entry);
        }
        Ok(())
    }

    fn push_queries(&mut self, queries: &[NetworkQuery]) {
        self.kind = RECONCILE;
        for NetworkQuery { vni, since } in queries {
            let mut entry = Vec::new();
            write_network(&mut entry, 0, *vni);
            entry.extend(since.to_be_bytes());
            self.push(&mut entry);
        }
    }

    fn push_network_answers(&mut self, answers: &[NetworkAnswer]) -> Result<(), BodyError> {
        self.kind = RECONCILED;
        for answer in answers {
            let mut entry = Vec::new();
            write_network_answer(&mut entry, answer)?;
            self.push(&mut entry);
        }
        Ok(())
    }

    /// Sets the length byte of an entry and appends the entry to the last body, or to a new one if it does
    /// not fit.
    fn push(&mut self, entry: &mut Vec<u8>) {
        entry[0] = entry.len() as u8;
        let fits = |body: &Vec<u8>| {
            body.len() + entry.len() <= self.body_bytes_max && body[COUNT_AT..COUNT_AT + 2] != [0xff, 0xff]
        };
        if !self.done.last().is_some_and(fits) {
            let mut body = Vec::with_capacity(self.body_bytes_max);
            body.extend([self.kind, self.capabilities, 0, 0]);
            body.extend(self.id.to_be_bytes());
            self.done.push(body);
        }
        let body = self.done.last_mut().expect("a body was added above if there was no body");
        body.append(entry);
        let count = u16::from_be_bytes([body[COUNT_AT], body[COUNT_AT + 1]]) + 1;
        body[COUNT_AT..COUNT_AT + 2].copy_from_slice(&count.to_be_bytes());
    }
}

fn v6(address: IpAddr, bit: u8) -> u8 {
    if address.is_ipv6() { bit } else { 0 }
}

fn write_address(out: &mut Vec<u8>, address: IpAddr) -> Result<(), BodyError> {
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

/// Begins an entry with its form and its network.
fn write_network(out: &mut Vec<u8>, form: u8, vni: Vni) {
    out.clear();
    out.extend([0, form]);
    write_vni(out, vni);
}

fn write_entry(out: &mut Vec<u8>, form: u8, destination: &Destination) -> Result<(), BodyError> {
    write_network(out, form | v6(destination.address, ADDRESS_V6), destination.vni);
    write_address(out, destination.address)
}

fn write_network_answer(out: &mut Vec<u8>, answer: &NetworkAnswer) -> Result<(), BodyError> {
    match *answer {
        NetworkAnswer::Changed { vni, prefix } => {
            check_prefix(prefix)?;
            write_network(out, v6(prefix.addr(), ADDRESS_V6), vni);
            match prefix.addr() {
                IpAddr::V4(v4) => out.extend(v4.octets()),
                IpAddr::V6(v6) => out.extend(v6.octets()),
            }
            out.push(prefix.prefix_len());
        }
        NetworkAnswer::Current { vni, since, revision, changes } => {
            write_network(out, UNCHANGED, vni);
            out.extend(since.to_be_bytes());
            out.extend(revision.to_be_bytes());
            out.extend(changes.to_be_bytes());
        }
        NetworkAnswer::Unknown { vni, since, revision } => {
            write_network(out, UNKNOWN, vni);
            out.extend(since.to_be_bytes());
            out.extend(revision.to_be_bytes());
        }
    }
    Ok(())
}

fn write_answer(out: &mut Vec<u8>, entry: &AnswerEntry) -> Result<(), BodyError> {
    match &entry.answer {
        Answer::Path(path) => {
            check_mac(path.mac)?;
            write_entry(out, v6(path.host, HOST_V6), &entry.destination)?;
            write_address(out, path.host)?;
            out.extend(path.mac.octets());
            write_vni(out, path.vni);
            out.extend(path.lifetime_ms.to_be_bytes());
            out.extend(path.revision.to_be_bytes());
            out.push(if path.by_network { BY_NETWORK } else { 0 });
            out.extend(check_mtu(path.reception.mtu.into())?.to_be_bytes());
            out.push(path.reception.capabilities.bits());
        }
        Answer::Unchanged { lifetime_ms, revision } => {
            write_entry(out, UNCHANGED, &entry.destination)?;
            out.extend(lifetime_ms.to_be_bytes());
            out.extend(revision.to_be_bytes());
        }
        Answer::Absent { revision } => {
            write_entry(out, ABSENT, &entry.destination)?;
            out.extend(revision.to_be_bytes());
        }
    }
    Ok(())
}

/// Reads a body of the major version [`VERSION`]`.0` and the given minor version.
///
/// # Errors
/// [`Refusal::Body`], or `Short` if there are fewer bytes than the shortest body has.
pub fn decode(minor: u8, body: &[u8]) -> Result<Body, Refusal> {
    let (head, rest) = body
        .split_first_chunk::<BODY_HEADER_BYTES>()
        .ok_or(envelope::Refusal::Short { bytes: body.len() })?;
    let [kind, capabilities, count @ .., _, _, _, _] = *head;
    let id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    let mut entries = Entries { minor, rest, read: 0, skipped: 0 };
    let tells = |kinds: &[u8]| minor >= RECEPTION_SINCE && kinds.contains(&kind);
    let is_reserved = capabilities != 0 && !tells(&[REQUEST, PERMITTED])
        || id != 0 && matches!(kind, NOTIFY..=RECONCILED) && !tells(&[PERMITTED]);
    if !entries.is_newer() && is_reserved {
        return Err(BodyError::Reserved.into());
    }
    let capabilities = Capabilities::from_bits(if minor >= RECEPTION_SINCE { capabilities } else { 0 });
    let count = u16::from_be_bytes(count);
    let answers = |entries: &mut Entries<'_>, forms: &[u8]| entries.read_all(count, forms, read_answer);
    let message = match kind {
        REQUEST => Message::Request {
            id,
            capabilities,
            queries: entries.read_all(count, &[ADDRESS_V6], read_query)?,
        },
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
            entries: entries.read_all(count, &[ADDRESS_V6 | HOST_V6 | GATEWAY_V6], read_redirect)?,
        },
        STRAY => Message::Stray { entries: entries.read_all(count, &[ADDRESS_V6 | HOST_V6], read_stray)? },
        PERMIT => Message::Permit { entries: entries.read_all(count, &[HOST_V6], read_permit)? },
        PERMITTED => Message::Permitted {
            reception: Reception { mtu: check_mtu(if tells(&[PERMITTED]) { id } else { 0 })?, capabilities },
            entries: entries.read_all(count, &[HOST_V6], read_permit)?,
        },
        IDENTIFY => {
            Message::Identify { entries: entries.read_all(count, &[ADDRESS_V6], Fields::destination)? }
        }
        IDENTITY => Message::Identity { entries: entries.read_all(count, &[ADDRESS_V6], read_identity)? },
        RECONCILE if minor >= FLAGS_SINCE => {
            Message::Reconcile { queries: entries.read_all(count, &[0], read_network_query)? }
        }
        RECONCILED if minor >= FLAGS_SINCE => Message::Reconciled {
            answers: entries.read_all(count, &[ADDRESS_V6, UNCHANGED, UNKNOWN], read_network_answer)?,
        },
        _ => return Err(BodyError::Kind { kind }.into()),
    };
    Ok(Body { message, skipped: entries.skipped })
}

fn read_query(fields: &mut Fields<'_>) -> Result<Query, BodyError> {
    Ok(Query { destination: fields.destination()?, revision: fields.u64()? })
}

fn read_answer(fields: &mut Fields<'_>) -> Result<AnswerEntry, BodyError> {
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
            by_network: fields.flags()? & BY_NETWORK != 0,
            reception: fields.reception()?,
        }),
    };
    Ok(AnswerEntry { destination, answer })
}

fn read_network_query(fields: &mut Fields<'_>) -> Result<NetworkQuery, BodyError> {
    Ok(NetworkQuery { vni: fields.vni()?, since: fields.u64()? })
}

fn read_network_answer(fields: &mut Fields<'_>) -> Result<NetworkAnswer, BodyError> {
    let vni = fields.vni()?;
    Ok(match fields.form & (UNCHANGED | UNKNOWN) {
        UNCHANGED => NetworkAnswer::Current {
            vni,
            since: fields.u64()?,
            revision: fields.u64()?,
            changes: fields.u16()?,
        },
        UNKNOWN => NetworkAnswer::Unknown { vni, since: fields.u64()?, revision: fields.u64()? },
        _ => NetworkAnswer::Changed { vni, prefix: fields.prefix()? },
    })
}

fn read_redirect(fields: &mut Fields<'_>) -> Result<RedirectEntry, BodyError> {
    Ok(RedirectEntry {
        destination: fields.destination()?,
        host: fields.address(HOST_V6)?,
        gateway: fields.address(GATEWAY_V6)?,
    })
}

fn read_stray(fields: &mut Fields<'_>) -> Result<StrayEntry, BodyError> {
    Ok(StrayEntry { destination: fields.destination()?, host: fields.address(HOST_V6)? })
}

fn read_permit(fields: &mut Fields<'_>) -> Result<PermitEntry, BodyError> {
    Ok(PermitEntry { vni: fields.vni()?, host: fields.address(HOST_V6)? })
}

fn read_identity(fields: &mut Fields<'_>) -> Result<IdentityEntry, BodyError> {
    Ok(IdentityEntry { destination: fields.destination()?, identity: fields.u16()? })
}

/// The entries of a body that were not read yet.
struct Entries<'a> {
    minor: u8,
    rest: &'a [u8],
    read: u16,
    skipped: u16,
}

impl<'a> Entries<'a> {
    /// Whether the sender's minor version is not known here.
    fn is_newer(&self) -> bool {
        self.minor > VERSION.1
    }

    /// Reads exactly `count` entries. A form is known if all its bits are in one of the masks `forms`. In a
    /// body of a newer minor version, entries of unknown forms and trailing bytes are skipped.
    fn read_all<T>(
        &mut self,
        count: u16,
        forms: &[u8],
        read: impl Fn(&mut Fields<'a>) -> Result<T, BodyError>,
    ) -> Result<Vec<T>, BodyError> {
        if count == 0 {
            return Err(BodyError::Empty);
        }
        // The count is only a claim of the sender, so the capacity is bounded by the bytes received.
        let mut out = Vec::with_capacity(usize::from(count).min(self.rest.len() / ENTRY_BYTES_MIN));
        while self.read < count {
            let mut fields = self.next()?;
            if forms.iter().all(|known| fields.form & !known != 0) {
                if !self.is_newer() {
                    return Err(BodyError::Form { form: fields.form });
                }
                self.skipped += 1;
            } else {
                out.push(read(&mut fields)?);
                if !fields.rest.is_empty() && !self.is_newer() {
                    return Err(BodyError::Trailing { entry: self.read });
                }
            }
            self.read += 1;
        }
        if !self.rest.is_empty() && !self.is_newer() {
            return Err(BodyError::Trailing { entry: count });
        }
        Ok(out)
    }

    fn next(&mut self) -> Result<Fields<'a>, BodyError> {
        let cut = BodyError::Truncated { entry: self.read };
        let length = usize::from(*self.rest.first().ok_or(cut)?);
        let (entry, rest) = self.rest.split_at_checked(length).ok_or(cut)?;
        let (head, fields) = entry.split_first_chunk::<ENTRY_HEADER_BYTES>().ok_or(cut)?;
        self.rest = rest;
        Ok(Fields { minor: self.minor, form: head[1], rest: fields, entry: self.read })
    }
}

/// The fields of one entry that were not read yet.
struct Fields<'a> {
    minor: u8,
    form: u8,
    rest: &'a [u8],
    entry: u16,
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BodyError> {
        let (taken, rest) =
            self.rest.split_first_chunk::<N>().ok_or(BodyError::Truncated { entry: self.entry })?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, BodyError> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, BodyError> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, BodyError> {
        self.take().map(u64::from_be_bytes)
    }

    fn vni(&mut self) -> Result<Vni, BodyError> {
        let [a, b, c] = self.take()?;
        Vni::new(u32::from_be_bytes([0, a, b, c])).map_err(|_| BodyError::Vni)
    }

    fn mac(&mut self) -> Result<MacAddr, BodyError> {
        let mac = MacAddr::new(self.take()?);
        check_mac(mac).map(|()| mac)
    }

    /// Reads the flags of a path, which older minor versions do not have.
    fn flags(&mut self) -> Result<u8, BodyError> {
        if self.minor < FLAGS_SINCE {
            return Ok(0);
        }
        let [flags] = self.take()?;
        if flags & !BY_NETWORK != 0 && self.minor <= VERSION.1 {
            return Err(BodyError::Reserved);
        }
        Ok(flags)
    }

    /// Reads what a path's host can receive, which older minor versions do not say.
    fn reception(&mut self) -> Result<Reception, BodyError> {
        if self.minor < RECEPTION_SINCE {
            return Ok(Reception::default());
        }
        let mtu = check_mtu(self.u16()?.into())?;
        let [capabilities] = self.take()?;
        Ok(Reception { mtu, capabilities: Capabilities::from_bits(capabilities) })
    }

    /// Reads a prefix, of which any address is valid.
    fn prefix(&mut self) -> Result<IpNet, BodyError> {
        let address: IpAddr =
            if self.form & ADDRESS_V6 != 0 { self.take::<16>()?.into() } else { self.take::<4>()?.into() };
        let [length] = self.take()?;
        let prefix = IpNet::new(address, length).map_err(|_| BodyError::Prefix { address, length })?;
        check_prefix(prefix).map(|()| prefix)
    }

    /// Reads an address; `bit` of the form is set if the address is IPv6.
    fn address(&mut self, bit: u8) -> Result<IpAddr, BodyError> {
        let address: IpAddr =
            if self.form & bit != 0 { self.take::<16>()?.into() } else { self.take::<4>()?.into() };
        check_address(address).map(|()| address)
    }

    fn destination(&mut self) -> Result<Destination, BodyError> {
        Ok(Destination { vni: self.vni()?, address: self.address(ADDRESS_V6)? })
    }
}
