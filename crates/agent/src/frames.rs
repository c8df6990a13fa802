//! Frames that an agent builds and parses: announcements of vIPs and neighbor probes on the underlay, and
//! router advertisements and TCP segments to VMs. This file changes when an agent has to send another kind of frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sluice_types::{Ipv6Net, MacAddr, ROUTER_LINK_LOCAL, ROUTER_MAC, solicited_node};

const BROADCAST: MacAddr = MacAddr::new([0xff; 6]);
const ALL_NODES_MAC: MacAddr = MacAddr::new([0x33, 0x33, 0, 0, 0, 1]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_RARP: u16 = 0x8035;
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
const RARP_REQUEST: u8 = 3;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_TCP: u8 = 6;
const TCP_SYN: u8 = 0x02;
const TCP_WINDOW: u16 = 1024;
const TTL: u8 = 64;
const FRAME_BYTES_MIN: usize = 60;
const NEXT_HEADER_ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;
const PREFIX_ON_LINK: u8 = 0x80;
const PREFIX_AUTONOMOUS: u8 = 0x40;
/// Addresses are available by DHCPv6 (RFC 4861 section 4.2).
const MANAGED: u8 = 0x80;
/// The longest lifetime (RFC 8319), as in the packet program's answers.
const ROUTER_LIFETIME_S: u16 = 65535;
const ADVERTISED_HOP_LIMIT: u8 = 64;

/// A gratuitous ARP request or an unsolicited neighbor advertisement. Its source MAC is that of the vIP, so
/// that switches learn the port of the vIP as well.
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
    arp_request(mac, address, address)
}

/// A broadcast request for `target` from `mac` and `sender`.
fn arp_request(mac: MacAddr, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, ETHERTYPE_ARP);
    // Hardware type Ethernet, protocol IPv4, lengths of their addresses, operation.
    frame.extend([0, 1, 8, 0, 6, 4, 0, ARP_REQUEST]);
    frame.extend(mac.octets());
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame.resize(FRAME_BYTES_MIN, 0);
    frame
}

/// A reverse ARP request (RFC 903) of a MAC for its own address. No server answers it, but switches flood it,
/// whatever they do with multicast, and learn the port of the MAC.
pub fn reverse_arp(mac: MacAddr) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, ETHERTYPE_RARP);
    frame.extend([0, 1, 8, 0, 6, 4, 0, RARP_REQUEST]);
    for _ in 0..2 {
        frame.extend(mac.octets());
        frame.extend([0; 4]);
    }
    frame.resize(FRAME_BYTES_MIN, 0);
    frame
}

/// An ARP request or a neighbor solicitation for `target` from an interface with this MAC and address; `None`
/// if the addresses are of different families.
pub fn neighbor_probe(target: IpAddr, source: IpAddr, mac: MacAddr) -> Option<Vec<u8>> {
    match (target, source) {
        (IpAddr::V4(target), IpAddr::V4(source)) => Some(arp_request(mac, source, target)),
        (IpAddr::V6(target), IpAddr::V6(source)) => Some(solicitation(target, source, mac)),
        _ => None,
    }
}

fn solicitation(target: Ipv6Addr, source: Ipv6Addr, mac: MacAddr) -> Vec<u8> {
    let mut message = vec![NEIGHBOR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend([OPTION_SOURCE_MAC, 1]);
    message.extend(mac.octets());
    let group = solicited_node(target);
    let [.., a, b, c] = group.octets();
    icmpv6((source, mac), (group, MacAddr::new([0x33, 0x33, 0xff, a, b, c])), message)
}

/// The neighbor and the prober of an ARP reply or a solicited neighbor advertisement; `None` for other
/// frames.
pub fn parse_probe_reply(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let part = |at: usize, bytes: usize| frame.get(at..at + bytes);
    let address4 = |at| <[u8; 4]>::try_from(part(at, 4)?).ok().map(IpAddr::from);
    let address6 = |at| <[u8; 16]>::try_from(part(at, 16)?).ok().map(IpAddr::from);
    match u16::from_be_bytes(part(12, 2)?.try_into().ok()?) {
        ETHERTYPE_ARP if part(14, 8)? == [0, 1, 8, 0, 6, 4, 0, ARP_REPLY] => {
            Some((address4(28)?, address4(38)?))
        }
        ETHERTYPE_IPV6 => {
            let advertised = part(20, 2)? == [NEXT_HEADER_ICMPV6, 255]
                && part(54, 2)? == [NEIGHBOR_ADVERTISEMENT, 0]
                && part(58, 1)?[0] & FLAG_SOLICITED != 0;
            if advertised { Some((address6(62)?, address6(38)?)) } else { None }
        }
        _ => None,
    }
}

fn unsolicited_advertisement(address: Ipv6Addr, mac: MacAddr) -> Vec<u8> {
    let mut message = vec![NEIGHBOR_ADVERTISEMENT, 0, 0, 0, FLAG_OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    message.extend([OPTION_TARGET_MAC, 1]);
    message.extend(mac.octets());
    to_all_nodes(address, mac, message)
}

/// An unsolicited router advertisement (RFC 4861 section 6.2.4) with the same contents as the packet
/// program's answer to a solicitation (`bpf/include/vswitch/router_advertisement.h`). `dhcp`: VMs ask for their address
/// by DHCPv6; otherwise they derive it.
pub fn router_advertisement(prefix: &Ipv6Net, dhcp: bool, mtu: u16) -> Vec<u8> {
    let (managed, prefix_flags) =
        if dhcp { (MANAGED, PREFIX_ON_LINK) } else { (0, PREFIX_ON_LINK | PREFIX_AUTONOMOUS) };
    let mut message = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, ADVERTISED_HOP_LIMIT, managed];
    message.extend(ROUTER_LIFETIME_S.to_be_bytes());
    message.extend([0; 8]);
    message.extend([OPTION_SOURCE_MAC, 1]);
    message.extend(ROUTER_MAC.octets());
    message.extend([OPTION_MTU, 1, 0, 0]);
    message.extend(u32::from(mtu).to_be_bytes());
    message.extend([OPTION_PREFIX, 4, prefix.prefix_len(), prefix_flags]);
    message.extend([0xff; 8]);
    message.extend([0; 4]);
    message.extend(prefix.network().octets());
    to_all_nodes(ROUTER_LINK_LOCAL, ROUTER_MAC, message)
}

/// An ICMPv6 message to all nodes of the link. The checksum of `message` is still 0.
fn to_all_nodes(source: Ipv6Addr, mac: MacAddr, message: Vec<u8>) -> Vec<u8> {
    icmpv6((source, mac), (ALL_NODES, ALL_NODES_MAC), message)
}

/// An ICMPv6 message between two addresses. The checksum of `message` is still 0.
fn icmpv6(from: (Ipv6Addr, MacAddr), to: (Ipv6Addr, MacAddr), mut message: Vec<u8>) -> Vec<u8> {
    let checksum = icmpv6_checksum(from.0, to.0, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());

    let mut frame = ethernet(to.1, from.1, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    // Neighbor discovery requires hop limit 255: it proves that the message was not routed.
    frame.extend([NEXT_HEADER_ICMPV6, 255]);
    frame.extend(from.0.octets());
    frame.extend(to.0.octets());
    frame.extend(message);
    frame
}

fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    transport_checksum((source.into(), destination.into()), NEXT_HEADER_ICMPV6, message)
}

/// The checksum of a message with the pseudo header of its family, whose fields have the same sum in both.
fn transport_checksum((source, destination): (IpAddr, IpAddr), protocol: u8, message: &[u8]) -> u16 {
    let mut bytes = Vec::with_capacity(40 + message.len());
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes.extend(message);
    checksum(&bytes)
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

/// A SYN with this sequence number, from one endpoint to another, with the MAC addresses of both; `None` if they are of different
/// families.
pub fn tcp_syn(from: (SocketAddr, MacAddr), to: (SocketAddr, MacAddr), sequence: u32) -> Option<Vec<u8>> {
    let ((source, source_mac), (destination, destination_mac)) = (from, to);
    let mut segment = Vec::with_capacity(20);
    segment.extend(source.port().to_be_bytes());
    segment.extend(destination.port().to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    // No acknowledgment; a header of 5 words.
    segment.extend([0, 0, 0, 0, 5 << 4, TCP_SYN]);
    segment.extend(TCP_WINDOW.to_be_bytes());
    segment.extend([0; 4]);
    let sum = transport_checksum((source.ip(), destination.ip()), PROTOCOL_TCP, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let bytes = segment.len() as u16;
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0];
            header.extend((20 + bytes).to_be_bytes());
            // Identification, "don't fragment", and a checksum of 0.
            header.extend([0, 0, 0x40, 0, TTL, PROTOCOL_TCP, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            Some([ethernet(destination_mac, source_mac, ETHERTYPE_IPV4), header, segment].concat())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(bytes.to_be_bytes());
            header.extend([PROTOCOL_TCP, TTL]);
            header.extend(source.octets());
            header.extend(destination.octets());
            Some([ethernet(destination_mac, source_mac, ETHERTYPE_IPV6), header, segment].concat())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 7]);

    #[test]
    fn announcement_of_an_ipv4_vip_is_a_gratuitous_arp() {
        let frame = announcement("192.0.2.9".parse().unwrap(), MAC);
        let expected = "ffffffffffff020000000007080600010800060400010200000000\
                        07c0000209000000000000c0000209";
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(frame.len(), 60);
        assert_eq!(&hex[..84], expected);
        assert!(hex[84..].bytes().all(|digit| digit == b'0'));
    }

    #[test]
    fn announcement_of_an_ipv6_vip_is_an_unsolicited_advertisement() {
        let address: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let frame = announcement(address.into(), MAC);
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(frame[..14], [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 7, 0x86, 0xdd]);
        assert_eq!(frame[18..22], [0, 32, 58, 255]);
        assert_eq!(frame[54], 136);
        assert_eq!(frame[62..78], address.octets());
        // The checksum of a message with a correct checksum is 0.
        assert_eq!(icmpv6_checksum(address, ALL_NODES, &frame[54..]), 0);
    }

    #[test]
    fn reverse_arp_names_the_mac_as_sender_and_target() {
        let frame = reverse_arp(MAC);
        let expected = "ffffffffffff02000000000780350001080006040003\
                        0200000000070000000002000000000700000000";
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((frame.len(), &hex[..84]), (60, expected));
    }

    #[test]
    fn probe_replies_name_neighbor_and_prober_and_probes_are_not_replies() {
        let probe = neighbor_probe("192.0.2.9".parse().unwrap(), "192.0.2.8".parse().unwrap(), MAC).unwrap();
        assert_eq!((probe.len(), &probe[20..22], parse_probe_reply(&probe)), (60, &[0, 1][..], None));
        let mut reply = probe;
        reply[21] = ARP_REPLY;
        let both = |neighbor: &str, prober: &str| Some((neighbor.parse().unwrap(), prober.parse().unwrap()));
        assert_eq!(parse_probe_reply(&reply), both("192.0.2.8", "192.0.2.9"));
        assert!((0..42).all(|cut| parse_probe_reply(&reply[..cut]).is_none()));

        let (here, there) = ("2001:db8::8".parse().unwrap(), "2001:db8::1:2:3".parse().unwrap());
        let probe = neighbor_probe(IpAddr::V6(there), IpAddr::V6(here), MAC).unwrap();
        assert_eq!(probe[..6], [0x33, 0x33, 0xff, 2, 0, 3]);
        assert_eq!((probe.len(), parse_probe_reply(&probe)), (14 + 40 + 32, None));
        assert_eq!(icmpv6_checksum(here, solicited_node(there), &probe[54..]), 0);
        let mut reply = probe;
        reply[38..54].copy_from_slice(&here.octets());
        (reply[54], reply[58]) = (NEIGHBOR_ADVERTISEMENT, FLAG_SOLICITED);
        assert_eq!(parse_probe_reply(&reply), both("2001:db8::1:2:3", "2001:db8::8"));
        assert!((0..78).all(|cut| parse_probe_reply(&reply[..cut]).is_none()));
        // An unsolicited advertisement does not prove that the prober reached the neighbor.
        assert_eq!(parse_probe_reply(&unsolicited_advertisement(there, MAC)), None);
        assert_eq!(neighbor_probe(there.into(), "192.0.2.8".parse().unwrap(), MAC), None);
    }

    #[test]
    fn router_advertisement_has_prefix_and_mtu() {
        let prefix = "2001:db8:0:7::/64".parse().unwrap();
        for (dhcp, managed, prefix_flags) in [(false, 0, 0xc0), (true, 0x80, 0x80)] {
            let frame = router_advertisement(&prefix, dhcp, 1430);
            assert_eq!((frame[59], frame[89]), (managed, prefix_flags));
            assert_eq!(icmpv6_checksum(ROUTER_LINK_LOCAL, ALL_NODES, &frame[54..]), 0);
        }
        let frame = router_advertisement(&prefix, false, 1430);
        assert_eq!(frame.len(), 14 + 40 + 64);
        assert_eq!(frame[6..12], ROUTER_MAC.octets());
        assert_eq!(frame[22..38], ROUTER_LINK_LOCAL.octets());
        assert_eq!(frame[54], 134);
        assert_eq!(frame[60..62], [0xff, 0xff]);
        assert_eq!(frame[82..86], 1430u32.to_be_bytes());
        assert_eq!(frame[86..90], [3, 4, 64, 0xc0]);
        assert_eq!(frame[102..118], prefix.network().octets());
    }

    #[test]
    fn a_syn_has_ports_sequence_number_and_correct_checksums() {
        let other = MacAddr::new([2, 0, 0, 0, 0, 9]);
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (source, destination, ethertype, header) in [
            ("10.0.0.2:443", "10.0.0.9:40000", ETHERTYPE_IPV4, 20),
            ("[fd00::2]:443", "[fd00::9]:40000", ETHERTYPE_IPV6, 40),
        ] {
            let (source, destination) = (end(source), end(destination));
            let frame = tcp_syn((source, MAC), (destination, other), 0x0102_0304).unwrap();
            assert_eq!(frame[..6], other.octets());
            assert_eq!(frame[6..12], MAC.octets());
            assert_eq!(frame[12..14], ethertype.to_be_bytes());
            let segment = &frame[14 + header..];
            assert_eq!(segment.len(), 20);
            assert_eq!(segment[..8], [1, 0xbb, 0x9c, 0x40, 1, 2, 3, 4]);
            assert_eq!(segment[8..14], [0, 0, 0, 0, 0x50, 2]);
            // The checksum of what has a correct checksum is 0.
            assert_eq!(transport_checksum((source.ip(), destination.ip()), 6, segment), 0);
            assert!(ethertype == ETHERTYPE_IPV6 || checksum(&frame[14..34]) == 0);
        }
        assert_eq!(tcp_syn((end("10.0.0.2:443"), MAC), (end("[fd00::9]:1"), other), 7), None);
    }
}
