//! Layout of messages, the encrypted part of datagrams. `api/nat-sync.md` defines it; all numbers are big endian.

use crate::message::{Ack, Data, Message, PassId, Progress, Role, WINDOW};
use crate::record::{Record, State};
use sluice_envelope::{HEADER_BYTES, TAG_BYTES};
use sluice_types::Vni;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

#[cfg(test)]
mod tests;

/// Size of the longest datagram, with envelope. With the headers of IPv6 and UDP it fits an MTU of 1500 and leaves 52 bytes
/// for a tunnel of the underlay.
pub const DATAGRAM_BYTES_MAX: usize = 1_400;

/// Size of the longest message.
pub const MESSAGE_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES - TAG_BYTES;

const BEGIN: u8 = 1;
const DATA: u8 = 2;
const ACK: u8 = 3;
const WANT: u8 = 4;

const LAST: u8 = 0x01;

/// What an Ack says about a pass.
const RECEIVING: u16 = 0;
const UNKNOWN: u16 = 1;
const DONE: u16 = 4;
const COPIED: u16 = 1;
const RETURNED: u16 = 2;
const DONE_WITH_ALL: u16 = DONE | COPIED | RETURNED;

/// Size of the shortest message, and of the fields that all messages have.
pub(crate) const HEAD_BYTES: usize = 4;
const DATA_HEAD_BYTES: usize = 24;

/// Size of a session in a message.
pub const RECORD_BYTES: usize = 26;
/// By how much a session whose inside address is of IPv6 is longer.
const INSIDE6_BYTES: usize = 12;
/// Is added to the protocol of a session whose inside address is of IPv6.
const INSIDE6: u8 = 0x80;
/// Size of a NAT gateway in a message.
pub const UNIT_BYTES: usize = 4;

/// Most sessions in a message without NAT gateways, if the inside addresses are of IPv4.
pub const RECORDS_MAX: usize = (MESSAGE_BYTES_MAX - DATA_HEAD_BYTES) / RECORD_BYTES;

/// Reason for which bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are more bytes than the longest message has.
    #[error("{0} bytes are too many: messages have at most {MESSAGE_BYTES_MAX}")]
    Long(usize),
    /// The message has another length than its fields say.
    #[error("the message has {found} bytes, but its fields need {needed}")]
    Length {
        /// Length of the message.
        found: usize,
        /// Length by its fields.
        needed: usize,
    },
    /// No message of this version has this kind.
    #[error("kind {0} is unknown")]
    Kind(u8),
    /// A field has a value that no sender writes.
    #[error("the field {0} has a value that is not possible")]
    Field(&'static str),
}

impl DecodeError {
    /// Name of the reason, used as a metric label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Long(_) | Self::Length { .. } => "message_length",
            Self::Kind(_) => "message_kind",
            Self::Field(_) => "message_field",
        }
    }
}

/// Bytes that are read from front to back. Lengths were checked before.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((head, rest)) = self.0.split_first_chunk::<N>() else {
            return Err(DecodeError::Length { found: self.0.len(), needed: N });
        };
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_be_bytes)
    }

    fn u24(&mut self) -> Result<u32, DecodeError> {
        self.take().map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_be_bytes)
    }

    fn pass(&mut self) -> Result<PassId, DecodeError> {
        let (number, boot) = (self.u32()?, self.u64()?);
        if number == 0 { Err(DecodeError::Field("pass")) } else { Ok(PassId { boot, number }) }
    }

    fn vni(&mut self) -> Result<Vni, DecodeError> {
        Vni::new(self.u24()?).map_err(|_| DecodeError::Field("VNI"))
    }

    fn endpoint(&mut self) -> Result<SocketAddrV4, DecodeError> {
        Ok(SocketAddrV4::new(Ipv4Addr::from(self.u32()?), self.u16()?))
    }

    fn record(&mut self) -> Result<Record, DecodeError> {
        let (vni, protocol) = (self.vni()?, self.u8()?);
        let inside = if protocol & INSIDE6 == 0 {
            SocketAddr::V4(self.endpoint()?)
        } else {
            SocketAddr::from((Ipv6Addr::from(self.take::<16>()?), self.u16()?))
        };
        let (protocol, [remote, outside]) = (protocol & !INSIDE6, [self.endpoint()?, self.endpoint()?]);
        let state = State::new(self.u8()?).ok_or(DecodeError::Field("state"))?;
        let record = Record { vni, protocol, inside, remote, outside, state, idle: self.u24()? };
        if record.is_valid() { Ok(record) } else { Err(DecodeError::Field("session")) }
    }

    fn unit(&mut self) -> Result<(Vni, Role), DecodeError> {
        let vni = self.vni()?;
        match self.u8()? {
            0 => Ok((vni, Role::Owner)),
            1 => Ok((vni, Role::Former)),
            _ => Err(DecodeError::Field("role")),
        }
    }

    /// Checks that this many bytes are left.
    fn has(&self, needed: usize) -> Result<(), DecodeError> {
        let found = self.0.len();
        if found == needed { Ok(()) } else { Err(DecodeError::Length { found, needed }) }
    }
}

fn write_u24(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_be_bytes()[1..]);
}

fn write_pass(to: &mut Vec<u8>, pass: PassId) {
    to.extend(pass.number.to_be_bytes());
    to.extend(pass.boot.to_be_bytes());
}

fn write_record(to: &mut Vec<u8>, record: &Record) {
    write_u24(to, record.vni.get());
    match record.inside {
        SocketAddr::V4(inside) => {
            to.push(record.protocol);
            to.extend(inside.ip().octets());
        }
        SocketAddr::V6(inside) => {
            to.push(record.protocol | INSIDE6);
            to.extend(inside.ip().octets());
        }
    }
    to.extend(record.inside.port().to_be_bytes());
    for endpoint in [record.remote, record.outside] {
        to.extend(endpoint.ip().octets());
        to.extend(endpoint.port().to_be_bytes());
    }
    to.push(record.state.bits());
    write_u24(to, record.idle.min(Record::IDLE_MAX));
}

fn write_data(to: &mut Vec<u8>, data: &Data) {
    write_pass(to, data.pass);
    to.extend(data.seq.to_be_bytes());
    to.extend((data.records.len() as u16).to_be_bytes());
    to.extend((data.units.len() as u16).to_be_bytes());
    data.records.iter().for_each(|record| write_record(to, record));
    for (vni, role) in &data.units {
        write_u24(to, vni.get());
        to.push(u8::from(*role == Role::Former));
    }
}

fn progress_code(progress: Progress) -> u16 {
    match progress {
        Progress::Receiving => RECEIVING,
        Progress::Unknown => UNKNOWN,
        Progress::Done { copied, returned } => {
            DONE | if copied { COPIED } else { 0 } | if returned { RETURNED } else { 0 }
        }
    }
}

fn read_data(body: &mut Reader, flags: u8, age: u16) -> Result<Data, DecodeError> {
    let (pass, seq) = (body.pass()?, body.u32()?);
    let (records, units) = (usize::from(body.u16()?), usize::from(body.u16()?));
    if flags & !LAST != 0 {
        return Err(DecodeError::Field("flags"));
    }
    let needed = records * RECORD_BYTES + units * UNIT_BYTES;
    if body.0.len() < needed {
        body.has(needed)?;
    }
    let records = (0..records).map(|_| body.record()).collect::<Result<_, _>>()?;
    body.has(units * UNIT_BYTES)?;
    let units = (0..units).map(|_| body.unit()).collect::<Result<_, _>>()?;
    Ok(Data { pass, seq, last: flags == LAST, age, records, units })
}

fn read_ack(body: &mut Reader, progress: u16) -> Result<Ack, DecodeError> {
    let progress = match progress {
        RECEIVING => Progress::Receiving,
        UNKNOWN => Progress::Unknown,
        DONE..=DONE_WITH_ALL => {
            Progress::Done { copied: progress & COPIED != 0, returned: progress & RETURNED != 0 }
        }
        _ => return Err(DecodeError::Field("progress")),
    };
    let (pass, next, seen) = (body.pass()?, body.u32()?, body.u64()?);
    body.has(0)?;
    if seen & 1 != 0 || next.checked_add(WINDOW).is_none() {
        return Err(DecodeError::Field("seen"));
    }
    Ok(Ack { pass, progress, next, seen })
}

/// Size of a session in a message.
fn record_bytes(record: &Record) -> usize {
    RECORD_BYTES + if record.inside.is_ipv6() { INSIDE6_BYTES } else { 0 }
}

/// How many of these sessions, from the first one on, fit in a message without NAT gateways.
pub(crate) fn fitting<'a>(records: impl IntoIterator<Item = &'a Record>) -> usize {
    let ends = records.into_iter().scan(DATA_HEAD_BYTES, |end, record| {
        *end += record_bytes(record);
        Some(*end)
    });
    ends.take_while(|end| *end <= MESSAGE_BYTES_MAX).count()
}

impl Message {
    /// Encodes the message. It has at most [`MESSAGE_BYTES_MAX`] bytes if a part of a pass has no more sessions and NAT gateways
    /// than fit.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(MESSAGE_BYTES_MAX);
        let (kind, flags, number) = match self {
            Self::Begin(_) => (BEGIN, 0, 0),
            Self::Data(data) => (DATA, u8::from(data.last), data.age),
            Self::Ack(ack) => (ACK, 0, progress_code(ack.progress)),
            Self::Want => (WANT, 0, 0),
        };
        to.extend([kind, flags]);
        to.extend(number.to_be_bytes());
        match self {
            Self::Begin(pass) => write_pass(&mut to, *pass),
            Self::Data(data) => write_data(&mut to, data),
            Self::Ack(ack) => {
                write_pass(&mut to, ack.pass);
                to.extend(ack.next.to_be_bytes());
                to.extend(ack.seen.to_be_bytes());
            }
            Self::Want => {}
        }
        to
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`DecodeError`] for all bytes that [`encode`](Self::encode) would not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(DecodeError::Long(bytes.len()));
        }
        let mut body = Reader(bytes);
        let (kind, flags, number) = (body.u8()?, body.u8()?, body.u16()?);
        match kind {
            DATA => return read_data(&mut body, flags, number).map(Self::Data),
            ACK if flags == 0 => return read_ack(&mut body, number).map(Self::Ack),
            BEGIN | WANT if flags == 0 && number == 0 => {}
            BEGIN | ACK | WANT => return Err(DecodeError::Field("flags")),
            _ => return Err(DecodeError::Kind(kind)),
        }
        let message = if kind == BEGIN { Self::Begin(body.pass()?) } else { Self::Want };
        body.has(0)?;
        Ok(message)
    }
}

impl Data {
    /// How many more NAT gateways fit.
    pub(crate) fn has_room(&self) -> usize {
        let records: usize = self.records.iter().map(record_bytes).sum();
        (MESSAGE_BYTES_MAX - DATA_HEAD_BYTES - records) / UNIT_BYTES - self.units.len()
    }
}
