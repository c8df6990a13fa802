//! Events of source NAT as IPFIX messages (RFC 7011) over UDP, with the information elements of RFC 8158. This file changes with the
//! form of the messages.
//!
//! UDP may lose messages, so the templates are repeated. The sequence number of a message is the number of records before it,
//! so a collector knows how many it lacks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

use sluice_tables::nat::NatBlock;

use super::sessions::LoggedSession;

/// Longest message in bytes: it fits into a packet of the smallest MTU of IPv6, 1280 bytes.
const MESSAGE_MAX: usize = 1232;
/// Longest time between two messages with templates, if there are messages.
const TEMPLATES_EVERY: Duration = Duration::from_secs(10);

const VERSION: u16 = 10;
const HEADER_BYTES: usize = 16;
/// The observation domain is not needed: the source address of a message tells the gateway.
const DOMAIN: u32 = 0;
const TEMPLATE_SET: u16 = 2;

/// Values of the element natEvent (RFC 8158, section 4).
const SESSION_CREATE: u8 = 4;
const SESSION_DELETE: u8 = 5;
const SESSION64_CREATE: u8 = 6;
const SESSION64_DELETE: u8 = 7;
const BLOCK_ALLOCATION: u8 = 16;
const BLOCK_DEALLOCATION: u8 = 17;
/// Values of the element natOriginatingAddressRealm.
const PRIVATE: u8 = 1;
const PUBLIC: u8 = 2;

/// Elements by their number, and the bytes of each.
struct Template {
    id: u16,
    elements: &'static [(u16, u16)],
}

/// observationTimeMilliseconds, natEvent, ingressVRFID (the VNI), sourceIPv4Address (the instance), postNATSourceIPv4Address,
/// portRangeStart, portRangeEnd.
const BLOCK: Template =
    Template { id: 256, elements: &[(323, 8), (230, 1), (234, 4), (8, 4), (225, 4), (361, 2), (362, 2)] };

/// observationTimeMilliseconds, natEvent, ingressVRFID, natOriginatingAddressRealm, protocolIdentifier, and the addresses and ports of
/// the instance before and after the translation and of the remote endpoint: sourceIPv4Address, sourceTransportPort,
/// postNATSourceIPv4Address, postNAPTSourceTransportPort, destinationIPv4Address, destinationTransportPort.
const SESSION: Template = Template {
    id: 257,
    elements: &[
        (323, 8),
        (230, 1),
        (234, 4),
        (229, 1),
        (4, 1),
        (8, 4),
        (7, 2),
        (225, 4),
        (227, 2),
        (12, 4),
        (11, 2),
    ],
};

/// As [`BLOCK`] and [`SESSION`] for NAT64, whose instances have an address of IPv6: sourceIPv6Address instead of sourceIPv4Address. The remote endpoint has
/// its address of IPv4 only behind the translation: postNATDestinationIPv4Address instead of destinationIPv4Address, with which collectors take the
/// source for one of IPv4, too.
const BLOCK64: Template =
    Template { id: 258, elements: &[(323, 8), (230, 1), (234, 4), (27, 16), (225, 4), (361, 2), (362, 2)] };
const SESSION64: Template = Template {
    id: 259,
    elements: &[
        (323, 8),
        (230, 1),
        (234, 4),
        (229, 1),
        (4, 1),
        (27, 16),
        (7, 2),
        (225, 4),
        (227, 2),
        (226, 4),
        (11, 2),
    ],
};

/// Records, and those of them whose message the system refused to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// All of them.
    pub records: u64,
    /// Those that were lost here. What the network loses is not known.
    pub lost: u64,
}

/// Collects records into messages, and sends these to a collector.
#[derive(Debug)]
pub struct Exporter {
    collector: SocketAddr,
    /// Is opened with a message, and again after a failure: without a route to the collector, the gateway must work.
    socket: Option<UdpSocket>,
    messages: Messages,
    templates_sent: Option<Instant>,
    counts: ExportCounts,
}

/// What happened to a block or a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was claimed or began.
    Begin,
    /// It was returned or ended.
    End,
}

impl Exporter {
    /// What sends to a collector. Nothing is sent yet.
    pub fn new(collector: SocketAddr) -> Self {
        Self {
            collector,
            socket: None,
            messages: Messages::default(),
            templates_sent: None,
            counts: ExportCounts::default(),
        }
    }

    /// Adds a record of a block, at a time in milliseconds since 1970.
    pub fn block(&mut self, change: Change, at_ms: u64, block: &NatBlock) {
        let record = block_record(change, at_ms, block);
        self.add(if block.inside.is_ipv6() { &BLOCK64 } else { &BLOCK }, &record);
    }

    /// Adds a record of a session, at a time in milliseconds since 1970.
    pub fn session(&mut self, change: Change, at_ms: u64, session: &LoggedSession) {
        let record = session_record(change, at_ms, session);
        self.add(if session.inside.is_ipv6() { &SESSION64 } else { &SESSION }, &record);
    }

    fn add(&mut self, template: &Template, record: &[u8]) {
        if !self.messages.has_room(record.len()) {
            self.flush();
        }
        if self.messages.is_empty() && self.templates_sent.is_none_or(|at| at.elapsed() >= TEMPLATES_EVERY) {
            self.messages.add_templates();
            self.templates_sent = Some(Instant::now());
        }
        self.messages.add(template, record);
        self.counts.records += 1;
    }

    /// Sends what was collected.
    pub fn flush(&mut self) {
        let records = self.messages.records;
        if records == 0 {
            return;
        }
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // RFC 7011: 32 bits of seconds, which wrap in 2106.
        let message = self.messages.take(since_1970.as_secs() as u32);
        if let Err(error) = self.send(&message) {
            tracing::debug!(%error, collector = %self.collector, "cannot send to the collector of the NAT log");
            self.socket = None;
            self.counts.lost += u64::from(records);
            // A collector that starts later needs them with its first message.
            self.templates_sent = None;
        }
    }

    fn send(&mut self, message: &[u8]) -> io::Result<usize> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(connect(self.collector)?),
        };
        socket.send(message)
    }

    /// How many records there were.
    pub fn counts(&self) -> ExportCounts {
        self.counts
    }
}

/// A socket that sends to the collector.
fn connect(collector: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match collector {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // A full queue of the interface loses a message; it must not stop the thread that frees ports.
    socket.set_nonblocking(true)?;
    socket.connect(collector)?;
    Ok(socket)
}

/// The message that is being filled.
#[derive(Debug, Default)]
struct Messages {
    /// Without the header.
    sets: Vec<u8>,
    /// The template of the last set, and where the set begins.
    last: Option<(u16, usize)>,
    records: u32,
    /// Records of earlier messages, modulo 2^32.
    sequence: u32,
}

impl Messages {
    fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    fn has_room(&self, record: usize) -> bool {
        HEADER_BYTES + self.sets.len() + 4 + record <= MESSAGE_MAX
    }

    fn add_templates(&mut self) {
        self.begin_set(TEMPLATE_SET);
        for Template { id, elements } in [&BLOCK, &SESSION, &BLOCK64, &SESSION64] {
            let numbers = [*id, elements.len() as u16].into_iter();
            let numbers = numbers.chain(elements.iter().flat_map(|(element, bytes)| [*element, *bytes]));
            self.sets.extend(numbers.flat_map(u16::to_be_bytes));
        }
        self.end_set();
    }

    fn add(&mut self, template: &Template, record: &[u8]) {
        if self.last.is_none_or(|(id, _)| id != template.id) {
            self.begin_set(template.id);
        }
        self.sets.extend_from_slice(record);
        self.end_set();
        self.records += 1;
    }

    fn begin_set(&mut self, id: u16) {
        self.last = Some((id, self.sets.len()));
        self.sets.extend(id.to_be_bytes());
        self.sets.extend([0; 2]);
    }

    /// Stores the length of the last set, which may grow later.
    fn end_set(&mut self) {
        if let Some((_, at)) = self.last {
            let bytes = (self.sets.len() - at) as u16;
            self.sets[at + 2..at + 4].copy_from_slice(&bytes.to_be_bytes());
        }
    }

    /// The whole message, sent at a time in seconds since 1970. The next one is empty.
    fn take(&mut self, now_s: u32) -> Vec<u8> {
        let bytes = (HEADER_BYTES + self.sets.len()) as u16;
        let mut message = Vec::with_capacity(bytes.into());
        message.extend(VERSION.to_be_bytes());
        message.extend(bytes.to_be_bytes());
        message.extend([now_s, self.sequence, DOMAIN].into_iter().flat_map(u32::to_be_bytes));
        message.append(&mut self.sets);
        self.sequence = self.sequence.wrapping_add(self.records);
        (self.last, self.records) = (None, 0);
        message
    }
}

fn extend_with(record: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => record.extend(address.octets()),
        IpAddr::V6(address) => record.extend(address.octets()),
    }
}

fn block_record(change: Change, at_ms: u64, block: &NatBlock) -> Vec<u8> {
    let event = if change == Change::Begin { BLOCK_ALLOCATION } else { BLOCK_DEALLOCATION };
    let mut record = at_ms.to_be_bytes().to_vec();
    record.push(event);
    record.extend(block.vni.get().to_be_bytes());
    extend_with(&mut record, block.inside);
    record.extend(block.outside.octets());
    record.extend(block.ports.start().to_be_bytes());
    record.extend(block.ports.end().to_be_bytes());
    record
}

fn session_record(change: Change, at_ms: u64, session: &LoggedSession) -> Vec<u8> {
    let LoggedSession { vni, protocol, is_of_remote, inside, outside, remote, .. } = session;
    let mut record = at_ms.to_be_bytes().to_vec();
    record.push(match (inside.is_ipv6(), change) {
        (false, Change::Begin) => SESSION_CREATE,
        (false, Change::End) => SESSION_DELETE,
        (true, Change::Begin) => SESSION64_CREATE,
        (true, Change::End) => SESSION64_DELETE,
    });
    record.extend(vni.to_be_bytes());
    record.extend([if *is_of_remote { PUBLIC } else { PRIVATE }, *protocol]);
    extend_with(&mut record, inside.ip());
    record.extend(inside.port().to_be_bytes());
    for endpoint in [outside, remote] {
        record.extend(endpoint.ip().octets());
        record.extend(endpoint.port().to_be_bytes());
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::Vni;
    use std::net::SocketAddrV4;

    fn end(text: &str) -> SocketAddrV4 {
        text.parse().unwrap()
    }

    fn block() -> NatBlock {
        NatBlock {
            vni: Vni::new(0x0a_0b0c).unwrap(),
            inside: [10, 0, 0, 5].into(),
            outside: Ipv4Addr::new(198, 51, 100, 1),
            ports: 0x0400..=0x05ff,
            claimed_at: 0,
            sessions: 1,
        }
    }

    fn session() -> LoggedSession {
        LoggedSession {
            vni: 7,
            protocol: 17,
            is_of_remote: true,
            inside: end("10.0.0.5:7").into(),
            outside: end("198.51.100.1:40000"),
            remote: end("203.0.113.9:53"),
            created_at: 0,
            generation: 0,
        }
    }

    /// The sets of a message, by id, after its header was checked.
    fn sets(message: &[u8], sequence: u32) -> Vec<(u16, Vec<u8>)> {
        let number = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        assert_eq!((number(0), usize::from(number(2))), (10, message.len()));
        assert_eq!(message[8..12], sequence.to_be_bytes());
        assert_eq!(message[12..16], [0; 4]);
        let (mut at, mut found) = (16, Vec::new());
        while at < message.len() {
            let bytes = usize::from(number(at + 2));
            found.push((number(at), message[at + 4..at + bytes].to_vec()));
            at += bytes;
        }
        found
    }

    /// Every byte is compared with RFC 7011 and RFC 8158.
    #[test]
    fn records_have_the_form_of_their_templates() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut exporter = Exporter::new(collector.local_addr().unwrap());
        let receive = || {
            let mut buffer = [0; 2000];
            let bytes = collector.recv(&mut buffer).unwrap();
            buffer[..bytes].to_vec()
        };
        exporter.flush();
        exporter.block(Change::Begin, 0x0102_0304_0506_0708, &block());
        exporter.session(Change::Begin, 9, &session());
        exporter.session(Change::End, 10, &session());
        exporter.flush();
        let sets_sent = sets(&receive(), 0);
        let ids: Vec<_> = sets_sent.iter().map(|set| set.0).collect();
        assert_eq!(ids, [2, 256, 257], "one set has both sessions");
        let templates = &sets_sent[0].1;
        assert_eq!(templates[..8], [1, 0, 0, 7, 1, 67, 0, 8]);
        assert_eq!(templates.len(), 2 * (4 + 7 * 4 + 4 + 11 * 4));
        let expected =
            [&[1, 2, 3, 4, 5, 6, 7, 8, 16, 0, 10, 11, 12][..], &[10, 0, 0, 5, 198, 51, 100, 1, 4, 0, 5, 255]]
                .concat();
        assert_eq!(sets_sent[1].1, expected);
        let of = |at, event| {
            let endpoints =
                [10, 0, 0, 5, 0, 7, 198, 51, 100, 1, 0x9c, 0x40, 203, 0, 113, 9, 0, 53].as_slice();
            [&[0, 0, 0, 0, 0, 0, 0, at, event, 0, 0, 0, 7, 2, 17], endpoints].concat()
        };
        assert_eq!(sets_sent[2].1, [of(9, 4), of(10, 5)].concat());
        // Templates say how long each record is.
        let of_64 = [expected.len() + 12, of(9, 4).len() + 12];
        for (template, bytes) in [
            (&BLOCK, expected.len()),
            (&SESSION, of(9, 4).len()),
            (&BLOCK64, of_64[0]),
            (&SESSION64, of_64[1]),
        ] {
            let sum: u16 = template.elements.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(usize::from(sum), bytes);
        }
        // The templates are not repeated at once, and the sequence number counts records.
        exporter.block(Change::End, 11, &block());
        exporter.flush();
        let sets_sent = sets(&receive(), 3);
        assert_eq!((sets_sent.len(), sets_sent[0].0, sets_sent[0].1[8]), (1, 256, 17));
        assert_eq!(exporter.counts(), ExportCounts { records: 4, lost: 0 });
    }

    /// Values and templates of NAT64: the inside address is of IPv6, everything else as for IPv4.
    #[test]
    fn records_of_nat64_say_so() {
        let inside: IpAddr = "2001:db8::5".parse().unwrap();
        let before = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
        let of = |change, event| {
            let record =
                session_record(change, 9, &LoggedSession { inside: (inside, 7).into(), ..session() });
            assert_eq!((record[8], &record[15..31], &record[31..33]), (event, &before[..], &[0, 7][..]));
        };
        of(Change::Begin, 6);
        of(Change::End, 7);
        let record = block_record(Change::Begin, 9, &NatBlock { inside, ..block() });
        assert_eq!((record[8], &record[13..29]), (16, &before[..]));
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut exporter = Exporter::new(collector.local_addr().unwrap());
        exporter.block(Change::Begin, 1, &NatBlock { inside, ..block() });
        exporter.session(Change::Begin, 1, &LoggedSession { inside: (inside, 7).into(), ..session() });
        exporter.flush();
        let mut buffer = [0; 2000];
        let bytes = collector.recv(&mut buffer).unwrap();
        assert_eq!(sets(&buffer[..bytes], 0).iter().map(|set| set.0).collect::<Vec<_>>(), [2, 258, 259]);
    }

    #[test]
    fn full_messages_are_sent_and_what_cannot_be_sent_is_counted() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut exporter = Exporter::new(collector.local_addr().unwrap());
        const RECORDS: u32 = 100;
        for _ in 0..RECORDS {
            exporter.session(Change::Begin, 1, &session());
        }
        exporter.flush();
        let (mut buffer, mut seen, mut messages) = ([0; 2000], 0, 0);
        while seen < RECORDS {
            let bytes = collector.recv(&mut buffer).unwrap();
            assert!(bytes <= MESSAGE_MAX);
            for (id, set) in sets(&buffer[..bytes], seen) {
                seen += if id == SESSION.id { (set.len() / 33) as u32 } else { 0 };
            }
            messages += 1;
        }
        assert_eq!((seen, messages), (RECORDS, 3));
        // The refusal of the port that is closed is reported with a later message.
        drop(collector);
        for at in 0..10 {
            exporter.block(Change::Begin, at, &block());
            exporter.flush();
        }
        assert!(exporter.counts().lost > 0);
    }

    #[test]
    fn records_are_lost_as_long_as_there_is_no_way_to_the_collector() {
        // No socket may send there.
        let mut exporter = Exporter::new("255.255.255.255:4739".parse().unwrap());
        exporter.block(Change::Begin, 1, &block());
        exporter.flush();
        assert_eq!(exporter.counts(), ExportCounts { records: 1, lost: 1 });
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        exporter.collector = collector.local_addr().unwrap();
        exporter.block(Change::End, 2, &block());
        exporter.flush();
        let mut buffer = [0; 2000];
        let bytes = collector.recv(&mut buffer).unwrap();
        assert_eq!(sets(&buffer[..bytes], 1).iter().map(|set| set.0).collect::<Vec<_>>(), [2, 256]);
    }
}
