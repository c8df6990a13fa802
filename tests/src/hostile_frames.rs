//! Frames of a hostile VM: malformed, forged, nested and random ones, from a generator with a fixed seed. Those with ports
//! are to or from [`HOSTILE_PORT`], by which a capture recognizes them whatever addresses they claim.

use crate::build::{
    BROADCAST, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ICMP, ICMPV6, Ipv4, Ipv6,
    MORE_FRAGMENTS, TCP, UDP, advert, arp, ethernet, icmp, icmpv6, mac, tcp_segment, udp,
};
use sluice_types::MacAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Port of all hostile TCP segments and UDP datagrams.
pub const HOSTILE_PORT: u16 = 6666;
const SYN: u8 = 0x02;
/// Kinds of frames of [`Hostile::malformed`].
const KINDS: u64 = 18;
const VXLAN_PORT: u16 = 4789;

/// Who sends what to which victim.
pub struct Hostile {
    /// MAC and addresses of the hostile VM.
    pub own: (MacAddr, Ipv4Addr, Ipv6Addr),
    /// Addresses of the victim.
    pub victim: (Ipv4Addr, Ipv6Addr),
    /// MAC and IPv4 address of the router of the subnet.
    pub router: (MacAddr, Ipv4Addr),
    /// Underlay address of the host.
    pub vtep: Ipv4Addr,
    /// State of the generator; not 0.
    pub seed: u64,
}

impl Hostile {
    fn next(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn ports(&mut self) -> (u16, u16) {
        (self.next() as u16 | 1, HOSTILE_PORT)
    }

    /// A correct datagram or segment to the victim, over a header that the caller may change.
    fn packet(&mut self, ipv6: bool, change: impl FnOnce(&mut Ipv4, &mut Ipv6)) -> Vec<u8> {
        let ports = self.ports();
        let (own, victim) = (self.own, self.victim);
        let mut four = Ipv4::new(own.1, victim.0, UDP);
        let mut six = Ipv6::new(own.2, victim.1, UDP);
        change(&mut four, &mut six);
        if ipv6 {
            let datagram = udp(six.source.into(), six.destination.into(), ports, b"hostile");
            return ethernet(self.router.0, own.0, ETHERTYPE_IPV6, &six.build(&datagram));
        }
        let datagram = udp(four.source.into(), four.destination.into(), ports, b"hostile");
        ethernet(self.router.0, own.0, ETHERTYPE_IPV4, &four.build(&datagram))
    }

    /// A malformed or forged frame.
    pub fn malformed(&mut self) -> Vec<u8> {
        let ipv6 = self.below(2) == 1;
        let (own, victim, router) = (self.own, self.victim, self.router);
        match self.below(KINDS) {
            0 => {
                let length = 14 + self.below(200) as usize;
                let random = self.bytes(length);
                [&own.0.octets()[..], &own.0.octets(), &random].concat()
            }
            1 => {
                let mut frame = self.packet(ipv6, |_, _| {});
                frame.truncate(14 + self.below(frame.len() as u64 - 14) as usize);
                frame
            }
            2 => {
                // Wrong length fields, and with them a wrong checksum.
                let mut frame = self.packet(ipv6, |_, _| {});
                let at = if ipv6 { 18 } else { 16 };
                frame[at] ^= self.next() as u8 | 1;
                frame
            }
            3 => {
                let mut frame = self.packet(ipv6, |_, _| {});
                let at = 14 + self.below(frame.len() as u64 - 14) as usize;
                frame[at] ^= self.next() as u8 | 1;
                frame
            }
            4 => self.packet(false, |four, _| four.options = vec![7, 3, 4, 0, 0x83, 3, 4, 0]),
            5 => self.packet(ipv6, |four, six| {
                (four.source, six.source) = victim;
            }),
            6 => {
                let mut frame = self.packet(ipv6, |_, _| {});
                frame[6..12].copy_from_slice(&mac(9).octets());
                frame
            }
            7 => {
                let frame = self.packet(ipv6, |_, _| {});
                [&frame[..12], &ETHERTYPE_VLAN.to_be_bytes(), &[0, 7], &frame[12..]].concat()
            }
            8 => self.fragment(ipv6),
            9 => self.nested(),
            10 => ethernet(BROADCAST, own.0, ETHERTYPE_ARP, &arp(2, (own.0, victim.0), (own.0, victim.0))),
            11 => ethernet(BROADCAST, own.0, ETHERTYPE_ARP, &arp(2, (own.0, router.1), (own.0, victim.0))),
            12 => advert((victim.1, mac(9)), (victim.1, own.0), 0x2000_0000),
            13 => self.router_advertisement(),
            14 => self.forged_dhcp(ipv6),
            15 => self.icmp_error(ipv6),
            16 => ethernet(router.0, own.0, self.next() as u16 | 0x0800, b"no protocol"),
            _ => self.packet(ipv6, |four, six| {
                four.ttl = 0;
                six.hop_limit = 0;
            }),
        }
    }

    /// Fragments that are tiny, overlap, or have no first one.
    fn fragment(&mut self, ipv6: bool) -> Vec<u8> {
        let (offset, more) = (self.below(4) as u16, self.below(2) as u16);
        let (ports, own, victim) = (self.ports(), self.own, self.victim);
        let length = 1 + self.below(24) as usize;
        if ipv6 {
            let whole = udp(own.2.into(), victim.1.into(), ports, &[0; 40]);
            let header = [&[UDP, 0], &(offset << 3 | more).to_be_bytes()[..], &[0, 0, 0, 7]].concat();
            let packet = Ipv6::new(own.2, victim.1, 44).build(&[&header[..], &whole[..length]].concat());
            return ethernet(self.router.0, own.0, ETHERTYPE_IPV6, &packet);
        }
        let whole = udp(own.1.into(), victim.0.into(), ports, &[0; 40]);
        let fragment = offset | if more == 1 { MORE_FRAGMENTS } else { 0 };
        let header = Ipv4 { fragment, id: self.below(8) as u16, ..Ipv4::new(own.1, victim.0, UDP) };
        ethernet(self.router.0, own.0, ETHERTYPE_IPV4, &header.build(&whole[..length]))
    }

    /// VXLAN to the host's VTEP, with a frame to the victim in it, and sometimes VXLAN once more.
    fn nested(&mut self) -> Vec<u8> {
        let inner = self.packet(false, |_, _| {});
        let vni = self.next() as u32;
        let wrap = |inner: &[u8], to: Ipv4Addr, from: (MacAddr, Ipv4Addr), router: MacAddr| {
            let vxlan = [&[8, 0, 0, 0], &(vni << 8).to_be_bytes()[..], inner].concat();
            let datagram = udp(from.1.into(), to.into(), (HOSTILE_PORT, VXLAN_PORT), &vxlan);
            ethernet(router, from.0, ETHERTYPE_IPV4, &Ipv4::new(from.1, to, UDP).build(&datagram))
        };
        let (own, router) = ((self.own.0, self.own.1), self.router.0);
        let once = wrap(&inner, self.vtep, own, router);
        if self.below(2) == 0 { once } else { wrap(&once, self.victim.0, own, router) }
    }

    fn router_advertisement(&mut self) -> Vec<u8> {
        let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let source = if self.below(2) == 0 { local } else { self.own.2 };
        let message = icmpv6(source, all, 134, 0, 0x4000_0708, &[0; 8]);
        let header = Ipv6 { hop_limit: 255, ..Ipv6::new(source, all, ICMPV6) };
        ethernet(MacAddr::new([0x33, 0x33, 0, 0, 0, 1]), self.own.0, ETHERTYPE_IPV6, &header.build(&message))
    }

    /// An answer of a DHCP server to the victim, or a request to all servers with random content.
    fn forged_dhcp(&mut self, ipv6: bool) -> Vec<u8> {
        let length = self.below(300) as usize;
        let random = self.bytes(length);
        let answers = self.below(2) == 0;
        let (own, victim) = (self.own, self.victim);
        if ipv6 {
            let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
            let (to, ports) = if answers { (victim.1, (547, 546)) } else { (servers, (546, 547)) };
            let datagram = udp(own.2.into(), to.into(), ports, &random);
            let packet = Ipv6::new(own.2, to, UDP).build(&datagram);
            let to_mac = if answers { self.router.0 } else { MacAddr::new([0x33, 0x33, 0, 1, 0, 2]) };
            return ethernet(to_mac, own.0, ETHERTYPE_IPV6, &packet);
        }
        let servers = Ipv4Addr::BROADCAST;
        let (to, ports) = if answers { (victim.0, (67, 68)) } else { (servers, (68, 67)) };
        let datagram = udp(own.1.into(), to.into(), ports, &random);
        let packet = Ipv4::new(own.1, to, UDP).build(&datagram);
        ethernet(if answers { self.router.0 } else { BROADCAST }, own.0, ETHERTYPE_IPV4, &packet)
    }

    /// An ICMP error about a packet that the victim has not sent to this VM.
    fn icmp_error(&mut self, ipv6: bool) -> Vec<u8> {
        let (own, victim, router) = (self.own, self.victim, self.router);
        let ports = self.ports();
        if ipv6 {
            let quoted = udp(victim.1.into(), own.2.into(), ports, b"quoted");
            let quoted = Ipv6::new(victim.1, own.2, UDP).build(&quoted);
            let message = icmpv6(own.2, victim.1, 1, 4, 0, &quoted);
            return ethernet(
                router.0,
                own.0,
                ETHERTYPE_IPV6,
                &Ipv6::new(own.2, victim.1, ICMPV6).build(&message),
            );
        }
        let quoted = tcp_segment(victim.0.into(), own.1.into(), ports, SYN, &[]);
        let message = icmp(3, 3, 0, &Ipv4::new(victim.0, own.1, TCP).build(&quoted));
        ethernet(router.0, own.0, ETHERTYPE_IPV4, &Ipv4::new(own.1, victim.0, ICMP).build(&message))
    }

    /// The first packet of a connection of its own, to an address and from a port of that number.
    pub fn first_packet(&mut self, number: u16, to: IpAddr) -> Vec<u8> {
        let (own, router) = (self.own, self.router.0);
        let ports = (number, HOSTILE_PORT);
        let is_tcp = number.is_multiple_of(2);
        let from: IpAddr = if to.is_ipv4() { own.1.into() } else { own.2.into() };
        let payload =
            if is_tcp { tcp_segment(from, to, ports, SYN, &[]) } else { udp(from, to, ports, b"new") };
        let protocol = if is_tcp { TCP } else { UDP };
        match to {
            IpAddr::V4(to) => {
                ethernet(router, own.0, ETHERTYPE_IPV4, &Ipv4::new(own.1, to, protocol).build(&payload))
            }
            IpAddr::V6(to) => {
                ethernet(router, own.0, ETHERTYPE_IPV6, &Ipv6::new(own.2, to, protocol).build(&payload))
            }
        }
    }
}
