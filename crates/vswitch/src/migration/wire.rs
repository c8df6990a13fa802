//! The messages between the two hosts of a migration (`api/migration.md`): their bodies as bytes. Pure. This file changes with
//! the protocol.

use std::net::{IpAddr, SocketAddr};

use sluice_envelope::{HEADER_BYTES, Protocol, TAG_BYTES};
use sluice_tables::sessions::Flow;
use sluice_types::InstanceId;

/// The protocol in the envelope.
pub const PROTOCOL: Protocol = Protocol::new(*b"SV", (1, 0), *b"move").with_body_bytes_min(HEAD_BYTES);
/// Longest body: the datagram fits an underlay with an MTU of 1280 bytes, the least that IPv6 permits.
pub const BODY_BYTES_MAX: usize = 1232 - HEADER_BYTES - TAG_BYTES;
/// Kind, migration, instance and number of the request.
const HEAD_BYTES: usize = 1 + 8 + 8 + 4;
/// What a reply has before its sessions: the head, flags, and the next cursor.
const REPLY_BYTES: usize = HEAD_BYTES + 1 + 8;
/// Longest session: one of IPv6.
const COPY_BYTES_MAX: usize = 1 + 1 + 3 * 4 + 2 * (16 + 2) + 4 * 8;
/// Sessions that a reply has room for, whichever they are.
pub const COPIES_MAX: usize = (BODY_BYTES_MAX - REPLY_BYTES) / COPY_BYTES_MAX;

/// Number of a reply without a request: the source says that it has closed its port or opened it again. The target asks for the rest.
pub const NOTICE: u32 = 0;

const KIND_REQUEST: u8 = 1;
const KIND_SESSIONS: u8 = 2;
const KIND_REFUSED: u8 = 3;
const REQUEST_FREEZE: u8 = 1;
const REPLY_FROZEN: u8 = 1;
const REPLY_MORE: u8 = 2;
const COPY_IPV6: u8 = 1;
const COPY_EGRESS: u8 = 2;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the migration.
    pub migration: u64,
    /// The instance.
    pub instance: InstanceId,
    /// Number of the request, which its reply repeats; [`NOTICE`] in a reply without one.
    pub number: u32,
}

/// The target asks for sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it is about.
    pub head: Head,
    /// The guest runs at the target: the source closes its port and redirects its packets.
    pub freeze: bool,
    /// Where the reply begins: 0, or what the last one said.
    pub cursor: u64,
    /// Only sessions that have been idle for at most so many ticks.
    pub idle_max: u32,
}

/// The source answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// That of the request.
    pub head: Head,
    /// What it has.
    pub answer: Answer,
}

/// What the source has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A part of the sessions that were asked for.
    Sessions {
        /// Whether the port is closed.
        frozen: bool,
        /// Where the next reply begins; `None`: these were the last ones.
        next: Option<u64>,
        /// The sessions, at most [`COPIES_MAX`].
        copies: Vec<SessionCopy>,
    },
    /// The source does not know the migration, or cannot do what is asked.
    Refused,
}

/// A session, with times that do not depend on a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCopy {
    /// Flow of the originator's packets, without a scope.
    pub flow: Flow,
    /// Whether the instance began it.
    pub is_egress: bool,
    /// Its state bits.
    pub state: u32,
    /// Ticks since it began.
    pub age: u32,
    /// Ticks since its last packet, as far as packets record that.
    pub idle: u32,
    /// Numbers of packets from and to the originator.
    pub packets: [u64; 2],
    /// Numbers of bytes from and to the originator.
    pub bytes: [u64; 2],
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the target.
    Request(Request),
    /// From the source.
    Reply(Reply),
}

fn write_head(kind: u8, head: &Head) -> Vec<u8> {
    let mut body = Vec::with_capacity(BODY_BYTES_MAX);
    body.push(kind);
    body.extend(head.migration.to_be_bytes());
    body.extend(head.instance.get().to_be_bytes());
    body.extend(head.number.to_be_bytes());
    body
}

fn write_end(body: &mut Vec<u8>, end: SocketAddr) {
    match end.ip() {
        IpAddr::V4(address) => body.extend(address.octets()),
        IpAddr::V6(address) => body.extend(address.octets()),
    }
    body.extend(end.port().to_be_bytes());
}

impl SessionCopy {
    fn write(&self, body: &mut Vec<u8>) {
        let ipv6 = if self.flow.source.is_ipv6() { COPY_IPV6 } else { 0 };
        body.push(ipv6 | if self.is_egress { COPY_EGRESS } else { 0 });
        body.push(self.flow.protocol);
        [self.state, self.age, self.idle].iter().for_each(|word| body.extend(word.to_be_bytes()));
        write_end(body, self.flow.source);
        write_end(body, self.flow.destination);
        self.packets.iter().chain(&self.bytes).for_each(|word| body.extend(word.to_be_bytes()));
    }
}

impl Message {
    /// The body of a datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Request(Request { head, freeze, cursor, idle_max }) => {
                let mut body = write_head(KIND_REQUEST, head);
                body.push(if *freeze { REQUEST_FREEZE } else { 0 });
                body.extend(cursor.to_be_bytes());
                body.extend(idle_max.to_be_bytes());
                body
            }
            Self::Reply(Reply { head, answer: Answer::Refused }) => write_head(KIND_REFUSED, head),
            Self::Reply(Reply { head, answer: Answer::Sessions { frozen, next, copies } }) => {
                let mut body = write_head(KIND_SESSIONS, head);
                let more = if next.is_some() { REPLY_MORE } else { 0 };
                body.push(more | if *frozen { REPLY_FROZEN } else { 0 });
                body.extend(next.unwrap_or(0).to_be_bytes());
                copies.iter().take(COPIES_MAX).for_each(|copy| copy.write(&mut body));
                body
            }
        }
    }

    /// Reads a body; `None` if it is malformed or has more than [`COPIES_MAX`] sessions.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut reader = Reader(body);
        let kind = reader.byte()?;
        let (migration, instance) = (reader.long()?, InstanceId::new(reader.long()?));
        let head = Head { migration, instance, number: reader.word()? };
        match kind {
            KIND_REQUEST => {
                let freeze = reader.byte()? & REQUEST_FREEZE != 0;
                let (cursor, idle_max) = (reader.long()?, reader.word()?);
                Some(Self::Request(Request { head, freeze, cursor, idle_max }))
            }
            KIND_REFUSED => Some(Self::Reply(Reply { head, answer: Answer::Refused })),
            KIND_SESSIONS => {
                let flags = reader.byte()?;
                let cursor = reader.long()?;
                let next = (flags & REPLY_MORE != 0).then_some(cursor);
                let mut copies = Vec::new();
                while !reader.0.is_empty() {
                    if copies.len() == COPIES_MAX {
                        return None;
                    }
                    copies.push(reader.copy()?);
                }
                let answer = Answer::Sessions { frozen: flags & REPLY_FROZEN != 0, next, copies };
                Some(Self::Reply(Reply { head, answer }))
            }
            _ => None,
        }
    }
}

/// What is left of a body.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn end(&mut self, is_ipv6: bool) -> Option<SocketAddr> {
        let address: IpAddr = if is_ipv6 { self.take::<16>()?.into() } else { self.take::<4>()?.into() };
        Some(SocketAddr::new(address, u16::from_be_bytes(self.take()?)))
    }

    fn copy(&mut self) -> Option<SessionCopy> {
        let flags = self.byte()?;
        let protocol = self.byte()?;
        let (state, age, idle) = (self.word()?, self.word()?, self.word()?);
        let is_ipv6 = flags & COPY_IPV6 != 0;
        let (source, destination) = (self.end(is_ipv6)?, self.end(is_ipv6)?);
        let packets = [self.long()?, self.long()?];
        let bytes = [self.long()?, self.long()?];
        let flow = Flow { scope: 0, protocol, source, destination };
        Some(SessionCopy { flow, is_egress: flags & COPY_EGRESS != 0, state, age, idle, packets, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn head() -> Head {
        Head { migration: 1 << 40, instance: InstanceId::new(7), number: 3 }
    }

    fn copy(ipv6: bool) -> SessionCopy {
        let [source, destination] =
            if ipv6 { ["[fd00::1]:80", "[fd00::2]:5"] } else { ["10.0.0.1:80", "10.0.0.2:5"] };
        SessionCopy {
            flow: Flow {
                scope: 0,
                protocol: 6,
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            },
            is_egress: ipv6,
            state: 0x50006,
            age: 9,
            idle: 8,
            packets: [1, 2],
            bytes: [3, u64::MAX],
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_fit_a_datagram() {
        let copies = vec![copy(true); COPIES_MAX];
        let messages = [
            Message::Request(Request { head: head(), freeze: true, cursor: u64::MAX, idle_max: 16 }),
            Message::Reply(Reply { head: head(), answer: Answer::Refused }),
            Message::Reply(Reply {
                head: head(),
                answer: Answer::Sessions {
                    frozen: true,
                    next: Some(0),
                    copies: vec![copy(false), copy(true)],
                },
            }),
            Message::Reply(Reply {
                head: head(),
                answer: Answer::Sessions { frozen: false, next: None, copies },
            }),
        ];
        for message in messages {
            let body = message.encode();
            assert!(body.len() <= BODY_BYTES_MAX, "{} bytes", body.len());
            assert_eq!(Message::decode(&body), Some(message));
            assert!((0..body.len().min(HEAD_BYTES)).all(|cut| Message::decode(&body[..cut]).is_none()));
        }
        const { assert!(COPIES_MAX >= 7, "a whole bucket fits") };
    }

    /// Catches a reply of short sessions that has more than a reply is made with: encoded again, some would be missing.
    #[test]
    fn a_reply_with_too_many_sessions_is_refused() {
        let answer = Answer::Sessions { frozen: false, next: None, copies: vec![copy(false); COPIES_MAX] };
        let most = Message::Reply(Reply { head: head(), answer });
        let mut body = most.encode();
        assert_eq!(Message::decode(&body), Some(most));
        copy(false).write(&mut body);
        assert!(body.len() <= BODY_BYTES_MAX, "{} bytes", body.len());
        assert_eq!(Message::decode(&body), None);
    }

    fn any_head() -> impl Strategy<Value = Head> {
        any::<(u64, u64, u32)>().prop_map(|(migration, instance, number)| Head {
            migration,
            instance: InstanceId::new(instance),
            number,
        })
    }

    fn any_copy() -> impl Strategy<Value = SessionCopy> {
        let ends = prop_oneof![
            any::<[(Ipv4Addr, u16); 2]>().prop_map(|ends| ends.map(SocketAddr::from)),
            any::<[(Ipv6Addr, u16); 2]>().prop_map(|ends| ends.map(SocketAddr::from)),
        ];
        let fields = any::<(u8, bool, [u32; 3], [u64; 2], [u64; 2])>();
        (ends, fields).prop_map(|([source, destination], fields)| {
            let (protocol, is_egress, [state, age, idle], packets, bytes) = fields;
            let flow = Flow { scope: 0, protocol, source, destination };
            SessionCopy { flow, is_egress, state, age, idle, packets, bytes }
        })
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let copies = prop::collection::vec(any_copy(), 0..=COPIES_MAX);
        let sessions = (any::<(bool, Option<u64>)>(), copies)
            .prop_map(|((frozen, next), copies)| Answer::Sessions { frozen, next, copies });
        let answers = prop_oneof![Just(Answer::Refused), sessions];
        let requests = (any_head(), any::<(bool, u64, u32)>());
        prop_oneof![
            requests.prop_map(|(head, (freeze, cursor, idle_max))| {
                Message::Request(Request { head, freeze, cursor, idle_max })
            }),
            (any_head(), answers).prop_map(|(head, answer)| Message::Reply(Reply { head, answer })),
        ]
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..1200)) {
            let _ = Message::decode(&body);
        }

        /// Most bytes are no message; these begin as one.
        #[test]
        fn what_was_read_is_read_again(
            kind in 0..=KIND_REFUSED + 1,
            rest in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let body = [&[kind], &rest[..]].concat();
            if let Some(message) = Message::decode(&body) {
                prop_assert_eq!(Message::decode(&message.encode()), Some(message));
            }
        }

        #[test]
        fn any_message_is_read_as_it_was_written(message in any_message()) {
            let body = message.encode();
            prop_assert!(body.len() <= BODY_BYTES_MAX, "{} bytes", body.len());
            prop_assert_eq!(Message::decode(&body), Some(message));
        }
    }
}
