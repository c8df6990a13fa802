//! Frames by which a VM tries to reach the network stack of its host: to services on the host's addresses, to
//! addresses beyond the host, and to groups that every node is in.

use crate::build::{
    BROADCAST, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, Ipv4, Ipv6, Solicit, UDP, arp_request, ethernet,
    icmp, icmpv6, tcp_segment, udp,
};
use sluice_types::MacAddr;
use std::net::{Ipv4Addr, Ipv6Addr};

const TCP: u8 = 6;
const SYN: u8 = 0x02;
const SOURCE_PORT: u16 = 40_000;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const MDNS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Hop-by-hop options with one that no node knows. Its two highest bits ask for an ICMP error (RFC 8200 section
/// 4.2), which Linux sends before any rule of nftables sees the packet.
const UNKNOWN_OPTION: [u8; 8] = [ICMPV6, 0, 0x9f, 4, 0, 0, 0, 0];

/// Addresses of the frames.
pub struct Addresses {
    /// The VM's IPv4 address.
    pub own: Ipv4Addr,
    /// An IPv4 address of the host.
    pub host: Ipv4Addr,
    /// An address that is not the host's and to which the host has a route.
    pub beyond: Ipv4Addr,
    /// A port on which the host listens.
    pub port: u16,
}

/// The link-local address that the kernel makes from a MAC address (RFC 4291 appendix A).
fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., c, d, e, f] = group.octets();
    MacAddr::new([0x33, 0x33, c, d, e, f])
}

/// One frame of each kind.
pub fn host_frames(mac: MacAddr, host_mac: MacAddr, at: &Addresses) -> Vec<Vec<u8>> {
    let (own6, host6) = (link_local(mac), link_local(host_mac));
    let over_ipv6 = |to_mac: MacAddr, to: Ipv6Addr, next: u8, payload: &[u8]| {
        let header = Ipv6 { hop_limit: 255, ..Ipv6::new(own6, to, next) };
        ethernet(to_mac, mac, ETHERTYPE_IPV6, &header.build(payload))
    };
    let over_ipv4 = |to_mac: MacAddr, from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]| {
        ethernet(to_mac, mac, ETHERTYPE_IPV4, &Ipv4::new(from, to, protocol).build(payload))
    };
    let ports = (SOURCE_PORT, at.port);
    let echo6 = |to| icmpv6(own6, to, 128, 0, 7, b"sluice");
    let query = |to| udp(own6.into(), to, (5353, 5353), &[0; 12]);
    let datagram4 = |to: Ipv4Addr| udp(at.own.into(), to.into(), ports, b"sluice");
    let any = Ipv4Addr::UNSPECIFIED;
    let discover = udp(any.into(), Ipv4Addr::BROADCAST.into(), (68, 67), &[1; 240]);
    let with_option = [&UNKNOWN_OPTION[..], &echo6(host6)].concat();
    vec![
        arp_request((mac, at.own), at.host),
        Solicit::new(own6, mac, host6).build(),
        over_ipv6(host_mac, host6, ICMPV6, &echo6(host6)),
        over_ipv6(group_mac(ALL_NODES), ALL_NODES, ICMPV6, &echo6(ALL_NODES)),
        over_ipv6(host_mac, host6, UDP, &udp(own6.into(), host6.into(), ports, b"sluice")),
        over_ipv6(host_mac, host6, TCP, &tcp_segment(own6.into(), host6.into(), ports, SYN, &[])),
        over_ipv6(group_mac(MDNS), MDNS, UDP, &query(MDNS.into())),
        over_ipv6(group_mac(ALL_ROUTERS), ALL_ROUTERS, ICMPV6, &icmpv6(own6, ALL_ROUTERS, 133, 0, 0, &[])),
        over_ipv6(host_mac, host6, 0, &with_option),
        over_ipv4(BROADCAST, any, Ipv4Addr::BROADCAST, UDP, &discover),
        over_ipv4(host_mac, at.own, at.host, ICMP, &icmp(8, 0, 7, b"sluice")),
        over_ipv4(host_mac, at.own, at.host, UDP, &datagram4(at.host)),
        over_ipv4(host_mac, at.own, METADATA, UDP, &datagram4(METADATA)),
        over_ipv4(host_mac, at.own, at.beyond, UDP, &datagram4(at.beyond)),
    ]
}
