//! Frames that an agent sends by itself: where a vIP is now, to the underlay,
//! and that the router is still there, to VMs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluice_types::{Ipv6Net, MacAddr, ROUTER_LINK_LOCAL, ROUTER_MAC};

const BROADCAST: MacAddr = MacAddr::new([0xff; 6]);
const ALL_NODES_MAC: MacAddr = MacAddr::new([0x33, 0x33, 0, 0, 0, 1]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const FRAME_BYTES_MIN: usize = 60;
const NEXT_HEADER_ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const FLAG_OVERRIDE: u8 = 0x20;
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;
const PREFIX_ON_LINK_AUTONOMOUS: u8 = 0xc0;
/// The longest there is (RFC 8319), as in the program's own answers.
const ROUTER_LIFETIME_S: u16 = 65535;
const REPLY_HOP_LIMIT: u8 = 64;

/// A gratuitous ARP request or an unsolicited neighbour advertisement. The sender's MAC is the
/// vIP's own, so that switches learn the way to it as well.
pub fn announcement(address: IpAddr, mac: MacAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => gratuitous_arp(address, mac),
        IpAddr::V6(address) => unsolicited_advertisement(address, mac),
    }
}

fn ethernet(destination: MacAddr, source: MacAddr, ethertype: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_BYTES_MIN + 32);
    frame.extend(destination.octets());
    frame.extend(source.octets());
    frame.extend(ethertype.to_be_bytes());
    frame
}

fn gratuitous_arp(address: Ipv4Addr, mac: MacAddr) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, ETHERTYPE_ARP);
    // Ethernet, IPv4, their lengths, request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac.octets());
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame.resize(FRAME_BYTES_MIN, 0);
    frame
}

fn unsolicited_advertisement(address: Ipv6Addr, mac: MacAddr) -> Vec<u8> {
    let mut message = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, FLAG_OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    message.extend([OPTION_TARGET_MAC, 1]);
    message.extend(mac.octets());
    to_all_nodes(address, mac, message)
}

/// An unsolicited router advertisement (RFC 4861 section 6.2.4), saying what the program answers
/// to a solicitation: `bpf/include/router_advertisement.h`.
pub fn router_advertisement(prefix: &Ipv6Net, mtu: u16) -> Vec<u8> {
    let mut message = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, REPLY_HOP_LIMIT, 0];
    message.extend(ROUTER_LIFETIME_S.to_be_bytes());
    message.extend([0; 8]);
    message.extend([OPTION_SOURCE_MAC, 1]);
    message.extend(ROUTER_MAC.octets());
    message.extend([OPTION_MTU, 1, 0, 0]);
    message.extend(u32::from(mtu).to_be_bytes());
    message.extend([OPTION_PREFIX, 4, prefix.prefix_len(), PREFIX_ON_LINK_AUTONOMOUS]);
    message.extend([0xff; 8]);
    message.extend([0; 4]);
    message.extend(prefix.network().octets());
    to_all_nodes(ROUTER_LINK_LOCAL, ROUTER_MAC, message)
}

/// An ICMPv6 message, its checksum still zero, to all nodes of the link.
fn to_all_nodes(source: Ipv6Addr, mac: MacAddr, mut message: Vec<u8>) -> Vec<u8> {
    let checksum = icmpv6_checksum(source, ALL_NODES, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());

    let mut frame = ethernet(ALL_NODES_MAC, mac, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    // The hop limit that neighbour discovery demands: proof of not having been routed.
    frame.extend([NEXT_HEADER_ICMPV6, 255]);
    frame.extend(source.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    frame
}

fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let mut bytes = Vec::with_capacity(40 + message.len());
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, NEXT_HEADER_ICMPV6]);
    bytes.extend(message);
    let sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 7]);

    #[test]
    fn arp() {
        let frame = announcement("192.0.2.9".parse().unwrap(), MAC);
        let expected = "ffffffffffff020000000007080600010800060400010200000000\
                        07c0000209000000000000c0000209";
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(frame.len(), 60);
        assert_eq!(&hex[..84], expected);
        assert!(hex[84..].bytes().all(|digit| digit == b'0'));
    }

    #[test]
    fn advertisement() {
        let address: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let frame = announcement(address.into(), MAC);
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(frame[..14], [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 7, 0x86, 0xdd]);
        assert_eq!(frame[18..22], [0, 32, 58, 255]);
        assert_eq!(frame[54], 136);
        assert_eq!(frame[62..78], address.octets());
        // A message with its right checksum sums up to zero.
        assert_eq!(icmpv6_checksum(address, ALL_NODES, &frame[54..]), 0);
    }

    #[test]
    fn router() {
        let prefix = "2001:db8:0:7::/64".parse().unwrap();
        let frame = router_advertisement(&prefix, 1430);
        assert_eq!(frame.len(), 14 + 40 + 64);
        assert_eq!(frame[6..12], ROUTER_MAC.octets());
        assert_eq!(frame[22..38], ROUTER_LINK_LOCAL.octets());
        assert_eq!(frame[54], 134);
        assert_eq!(frame[60..62], [0xff, 0xff]);
        assert_eq!(frame[82..86], 1430u32.to_be_bytes());
        assert_eq!(frame[86..90], [3, 4, 64, 0xc0]);
        assert_eq!(frame[102..118], prefix.network().octets());
        assert_eq!(icmpv6_checksum(ROUTER_LINK_LOCAL, ALL_NODES, &frame[54..]), 0);
    }
}
