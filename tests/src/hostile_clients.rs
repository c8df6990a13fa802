//! Packets of hostile computers on the Internet: scans of public addresses, and forged packets about a connection.

use crate::build::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, Ipv4, Ipv6, TCP, UDP, ethernet, icmp, icmpv6, tcp_segment,
    udp,
};
use sluice_types::{IpNet, MacAddr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Ports of a scan.
const FROM_PORT: u16 = 40_000;
const PORT: u16 = 443;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Most addresses of a prefix that are scanned, from the first one on.
const SCANNED_MAX: u32 = 256;
/// What an ICMP error quotes at least: the IP header and 8 bytes (RFC 792).
const QUOTED: usize = 8;

/// A packet with this payload, for the router or gateway with a MAC address.
fn framed(to_mac: MacAddr, (from, to): (IpAddr, IpAddr), protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (ethertype, packet) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (ETHERTYPE_IPV4, Ipv4::new(from, to, protocol).build(payload)),
        (IpAddr::V6(from), IpAddr::V6(to)) => (ETHERTYPE_IPV6, Ipv6::new(from, to, protocol).build(payload)),
        _ => panic!("{from} and {to} are of two families"),
    };
    ethernet(to_mac, MacAddr::local(1), ethertype, &packet)
}

/// An ICMP message of either family: type and code, the second word, payload.
fn message(ends: (IpAddr, IpAddr), [four, six]: [(u8, u8); 2], word: u32, payload: &[u8]) -> (u8, Vec<u8>) {
    match ends {
        (IpAddr::V6(from), IpAddr::V6(to)) => (ICMPV6, icmpv6(from, to, six.0, six.1, word, payload)),
        _ => (ICMP, icmp(four.0, four.1, word, payload)),
    }
}

/// The first addresses of a prefix.
fn addresses(prefix: IpNet) -> Vec<IpAddr> {
    let bits = prefix.max_prefix_len() - prefix.prefix_len();
    let count = 1_u32.checked_shl(bits.into()).map_or(SCANNED_MAX, |count| count.min(SCANNED_MAX));
    let number = |number: u32| match prefix.network() {
        IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from(u32::from(first) + number)),
        IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from(u128::from(first) + u128::from(number))),
    };
    (0..count).map(number).collect()
}

/// To each address of a prefix, from the same one: a SYN, a datagram and an echo request.
pub fn scan(to_mac: MacAddr, from: IpAddr, prefix: IpNet) -> Vec<Vec<u8>> {
    let of = |to: IpAddr| {
        let (ends, ports) = ((from, to), (FROM_PORT, PORT));
        let (protocol, echo) = message(ends, [(8, 0), (128, 0)], 7 << 16, b"scan");
        [
            framed(to_mac, ends, TCP, &tcp_segment(from, to, ports, SYN, &[])),
            framed(to_mac, ends, UDP, &udp(from, to, ports, b"scan")),
            framed(to_mac, ends, protocol, &echo),
        ]
    };
    addresses(prefix).into_iter().flat_map(of).collect()
}

/// What an attacker sends about a connection whose sequence numbers it does not know, from its server to its client: segments
/// with RST and late ones with SYN, and ICMP errors of a router, which quote as little as they may.
pub fn forged(to_mac: MacAddr, hop: IpAddr, server: SocketAddr, client: SocketAddr) -> Vec<Vec<u8>> {
    let (from, to) = (server.ip(), client.ip());
    let segment = |flags: u8| {
        let bytes = tcp_segment(from, to, (server.port(), client.port()), flags, &[]);
        framed(to_mac, (from, to), TCP, &bytes)
    };
    let mut all: Vec<Vec<u8>> = [RST, RST | ACK, SYN, SYN | ACK].map(segment).into();
    let quoted = tcp_segment(to, from, (client.port(), server.port()), ACK, &[]);
    let header = if to.is_ipv4() { 20 } else { 40 };
    let quoted = framed(to_mac, (to, from), TCP, &quoted)[14..14 + header + QUOTED].to_vec();
    // Unreachable host, port, and network behind a link with the smallest MTU; expired in transit.
    for (kinds, word) in [
        ([(3, 1), (1, 3)], 0),
        ([(3, 3), (1, 4)], 0),
        ([(3, 4), (2, 0)], if to.is_ipv4() { 68 } else { 1280 }),
        ([(11, 0), (3, 0)], 0),
    ] {
        let (protocol, bytes) = message((hop, to), kinds, word, &quoted);
        all.push(framed(to_mac, (hop, to), protocol, &bytes));
    }
    all
}
