//! Sends the same queries to the eBPF readers and to the Rust reader.

use libbpf_rs::ProgramInput;
use sluice_datapath::{Datapath, ObjectName, Settings};
use sluice_tables::sessions::Flow;
use sluice_tables::{
    Busy, Direction, Lookup, NatGateway, PolicyPacket, PublicPrefix, Reader, Verdict, layout,
};
use sluice_types::{ForwardProtocol, Vni, ipv6_halves};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

const QUERY_BYTES: usize = 40;
/// `TABLE_QUERIES_MAX` of `bpf/tables_test.bpf.c`.
const QUERIES_MAX: usize = 64;

/// A query to `bpf/tables_test.bpf.c`, whose `enum table_query_kind` has the numbers.
#[derive(Clone, Copy, Debug)]
pub enum Query {
    Address(u32, IpAddr),
    Index(u32, u32),
    Route(u32, IpAddr),
    /// Identifier of the policy, and the packet.
    Policy(u32, PolicyPacket),
    /// The public prefix of an outside address.
    Public(IpAddr),
    /// The public prefix of an inside address of a VNI.
    Source(u32, IpAddr),
    /// The NAT gateway that has an outside address.
    NatAddress(Ipv4Addr),
    /// The NAT gateway of a VNI.
    Nat(u32),
    /// The endpoint for which another one stands at the NAT gateway of a VNI: an inside one (true) or an outside one.
    NatForward(u32, ForwardProtocol, SocketAddrV4, bool),
    /// The member to which a packet of a flow to a service's address in a VNI goes.
    Member(u32, ServicePacket),
}

/// A packet to a service.
#[derive(Clone, Copy, Debug)]
pub struct ServicePacket {
    /// IPv6 addresses begin with fd00::/64.
    pub flow: Flow,
    /// The number of the member that the flow has; 0: none.
    pub pinned: u8,
    pub is_fragment: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub answer: u32,
    pub cell: u32,
    pub mac: u64,
}

/// `POLICY_DENIED` and `POLICY_UNRESTRICTED` of `bpf/include/common/policy.h`.
pub const DENIED: u32 = 0;
pub const UNRESTRICTED: u32 = u32::MAX;
pub const MISS: u32 = 0;
pub const HIT: u32 = 1;
pub const BUSY: u32 = 2;

impl Query {
    fn to_bytes(self) -> [u8; QUERY_BYTES] {
        let halves = |address: IpAddr| match address {
            IpAddr::V4(v4) => (0, u32::from(v4).into()),
            IpAddr::V6(v6) => ipv6_halves(v6),
        };
        let mut packet_word = 0;
        let (kind, vni, high, low): (u32, u32, u64, u64) = match self {
            Self::Index(vni, id) => (3, vni, 0, id.into()),
            Self::Address(vni, IpAddr::V4(v4)) => (1, vni, 0, u32::from(v4).into()),
            Self::Address(vni, IpAddr::V6(v6)) => (2, vni, ipv6_halves(v6).0, ipv6_halves(v6).1),
            Self::Route(vni, IpAddr::V4(v4)) => (4, vni, 0, u32::from(v4).into()),
            Self::Route(vni, IpAddr::V6(v6)) => (5, vni, ipv6_halves(v6).0, ipv6_halves(v6).1),
            Self::Public(address @ IpAddr::V4(_)) => (7, 0, 0, halves(address).1),
            Self::Public(address) => (8, 0, halves(address).0, halves(address).1),
            Self::Source(vni, address @ IpAddr::V4(_)) => (9, vni, 0, halves(address).1),
            Self::Source(vni, address) => (10, vni, halves(address).0, halves(address).1),
            Self::NatAddress(address) => (11, 0, 0, u32::from(address).into()),
            Self::Nat(vni) => (12, vni, 0, 0),
            Self::NatForward(vni, protocol, end, is_inside) => {
                let is_udp = protocol == ForwardProtocol::Udp;
                (13, vni, 0, bits(end) | u64::from(is_udp) << 48 | u64::from(is_inside) << 49)
            }
            Self::Member(vni, packet) => {
                let Flow { protocol, source, destination, .. } = packet.flow;
                let ports = u64::from(source.port()) << 16 | u64::from(destination.port());
                packet_word = ports
                    | u64::from(protocol) << 32
                    | u64::from(packet.pinned) << 40
                    | u64::from(packet.is_fragment) << 48;
                let kind = if source.is_ipv4() { 14 } else { 15 };
                (kind, vni, halves(source.ip()).1, halves(destination.ip()).1)
            }
            Self::Policy(id, packet) => {
                packet_word = word_of(&packet);
                let (high, low) = halves(packet.remote);
                (6, id, high, low)
            }
        };
        let mut bytes = [0; QUERY_BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&vni.to_ne_bytes());
        bytes[8..16].copy_from_slice(&high.to_ne_bytes());
        bytes[16..24].copy_from_slice(&low.to_ne_bytes());
        bytes[32..40].copy_from_slice(&packet_word.to_ne_bytes());
        bytes
    }
}

/// An endpoint as `struct nat_forward` has it.
fn bits(end: SocketAddrV4) -> u64 {
    u64::from(u32::from(*end.ip())) << 16 | u64::from(end.port())
}

/// A packet without its address, as `QUERY_PACKET_*` of `bpf/tables_test.bpf.c` say.
fn word_of(packet: &PolicyPacket) -> u64 {
    let rest = match packet.port {
        Some(port) => u32::from(port) << layout::SERVICE_PORT_SHIFT,
        None => layout::SERVICE_NO_TRANSPORT,
    };
    u64::from(u32::from(packet.protocol) << layout::SERVICE_PROTOCOL_SHIFT | rest)
        | u64::from(packet.identity) << 32
        | u64::from(packet.remote.is_ipv6()) << 48
        | u64::from(packet.direction == Direction::Egress) << 49
}

impl Answer {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            answer: u32::from_ne_bytes(bytes[24..28].try_into().unwrap()),
            cell: u32::from_ne_bytes(bytes[28..32].try_into().unwrap()),
            mac: u64::from_ne_bytes(bytes[32..40].try_into().unwrap()),
        }
    }

    /// A public prefix, as `struct table_query` says.
    pub fn of_public(found: Result<Option<PublicPrefix>, Busy>) -> Self {
        let Some(public) = found.expect("nothing writes") else {
            return Self::NONE;
        };
        let sum = |address: IpAddr| {
            let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
            match address {
                IpAddr::V4(v4) => u64::from(u32::from_ne_bytes(v4.octets())),
                IpAddr::V6(v6) => word(&v6.octets()[..8]) ^ word(&v6.octets()[8..]),
            }
        };
        let (outside, inside) = (sum(public.outside.addr()), sum(public.inside.addr()));
        Self {
            answer: HIT,
            cell: u32::from(public.outside.prefix_len()) << 24 | public.vni.get(),
            mac: outside.wrapping_add(inside.wrapping_mul(3)),
        }
    }
}

impl Answer {
    const NONE: Self = Self { answer: MISS, cell: 0, mac: 0 };

    /// A NAT gateway by an address, with the number of that.
    pub fn of_nat_address(found: Option<(Vni, u16)>) -> Self {
        found.map_or(Self::NONE, |(vni, number)| Self { answer: HIT, cell: vni.get(), mac: number.into() })
    }

    /// The other endpoint of a port forward of a NAT gateway.
    pub fn of_forward(
        nat: Option<&NatGateway>,
        protocol: ForwardProtocol,
        end: SocketAddrV4,
        is_inside: bool,
    ) -> Self {
        let all = nat.into_iter().flat_map(|nat| nat.forwards.iter().map(|it| (it, nat.vni)));
        let mut of_protocol = all.filter(|(it, _)| it.protocol == protocol);
        let found = of_protocol.find(|(it, _)| end == if is_inside { it.inside } else { it.outside });
        found.map_or(Self::NONE, |(it, vni)| {
            let other = if is_inside { it.outside } else { it.inside };
            Self { answer: HIT, cell: vni.get(), mac: bits(other) }
        })
    }

    /// A NAT gateway, as `struct table_query` says.
    pub fn of_nat(found: Option<&NatGateway>) -> Self {
        found.map_or(Self::NONE, |nat| {
            let weighted = nat.addresses.iter().zip(1..).map(|(it, weight)| weight * u64::from(it.number));
            let cell = (nat.addresses.len() as u32) << 24 | nat.vni.get();
            Self { answer: HIT, cell, mac: weighted.sum::<u64>() << 32 | u64::from(nat.sessions) }
        })
    }
}

pub struct Kernel(pub Datapath);

impl Kernel {
    pub fn load(cells: u32) -> Self {
        let settings = Settings { object: ObjectName::TablesTest, cells, pin_dir: None };
        Self(Datapath::load(&settings).expect("the test program loads (as root)"))
    }

    pub fn ask(&self, queries: &[Query]) -> Vec<Answer> {
        let program = self.0.program("tables_test").unwrap();
        let mut answers = Vec::with_capacity(queries.len());
        for batch in queries.chunks(QUERIES_MAX) {
            let data: Vec<u8> = batch.iter().flat_map(|query| query.to_bytes()).collect();
            let mut out = vec![0; data.len()];
            let input =
                ProgramInput { data_in: Some(&data), data_out: Some(&mut out), ..ProgramInput::default() };
            program.test_run(input).expect("the test program runs");
            answers.extend(out.chunks(QUERY_BYTES).map(Answer::from_bytes));
        }
        answers
    }
}

/// Returns the answer of the Rust reader in the form of the program's answer.
pub fn ask_rust(reader: &Reader, query: Query) -> Answer {
    let lookup = match query {
        Query::Address(vni, address) => reader.find(vni, address),
        Query::Index(vni, id) => reader.find_index(vni, id),
        Query::Route(vni, address) => {
            let cell = match reader.find_index(vni, 0) {
                Lookup::Hit(hit) => hit.cell,
                _ => 0,
            };
            let leaf = reader.leaf(Vni::new(vni).unwrap(), address).unwrap_or(0);
            return Answer { answer: leaf, cell, mac: 0 };
        }
        Query::Public(address) => return Answer::of_public(reader.public_prefix(address)),
        Query::Source(vni, address) => {
            return Answer::of_public(reader.public_source(Vni::new(vni).unwrap(), address));
        }
        Query::NatAddress(address) => {
            return Answer::of_nat_address(reader.nat_address(address).expect("nothing writes"));
        }
        Query::Nat(vni) => {
            let found = reader.nat_gateway(Vni::new(vni).unwrap()).expect("nothing writes");
            return Answer::of_nat(found.as_ref());
        }
        Query::NatForward(vni, protocol, end, is_inside) => {
            let found = reader.nat_gateway(Vni::new(vni).unwrap()).expect("nothing writes");
            return Answer::of_forward(found.as_ref(), protocol, end, is_inside);
        }
        Query::Member(vni, ServicePacket { mut flow, pinned, is_fragment }) => {
            if is_fragment {
                flow.source.set_port(0);
                flow.destination.set_port(0);
            }
            let Lookup::Hit(hit) = reader.find(vni, flow.destination.ip()) else { return Answer::NONE };
            return reader.member(hit.cell, &flow, pinned).map_or(Answer::NONE, |member| Answer {
                answer: HIT,
                cell: member.number.into(),
                mac: member.mac.to_u64(),
            });
        }
        Query::Policy(id, packet) => {
            let cell = reader.policy_cell(id).expect("nothing writes").unwrap_or(0);
            let answer = match reader.evaluate(cell, &packet) {
                Verdict::Unrestricted => UNRESTRICTED,
                Verdict::Permitted(rule) => rule,
                Verdict::Denied => DENIED,
            };
            return Answer { answer, cell, mac: 0 };
        }
    };
    match lookup {
        Lookup::Miss => Answer { answer: MISS, cell: 0, mac: 0 },
        Lookup::Busy => Answer { answer: BUSY, cell: 0, mac: 0 },
        Lookup::Hit(hit) => Answer { answer: HIT, cell: hit.cell, mac: hit.mac.to_u64() },
    }
}
