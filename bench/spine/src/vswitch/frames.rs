//! Frames of VMs: small ones, alone and in VXLAN, for the generator, and long ones whose segmentation is left to the
//! interface. It changes with the packets that are measured.

use super::place::{self, GATEWAY, MTU, VNI, VTEP, Vm};
use crate::packet::{ipv4, sum, udp};
use sluice_types::MacAddr;
use std::net::Ipv4Addr;

/// Bytes of a small frame: `FRAME_BYTES` in `bench/spine/bpf/host.bpf.c`.
pub const FRAME_BYTES: usize = 106;
/// Bytes in front of it in VXLAN: `TUNNEL_BYTES` there.
pub const TUNNEL_BYTES: usize = 50;
/// Space for both: `PACKET_BYTES` there.
const PACKET_BYTES: usize = 160;

const ETHERNET_BYTES: usize = 14;
const HEADERS_BYTES: usize = ETHERNET_BYTES + 20 + 20;
/// Bytes of a segment.
const SEGMENT_BYTES: u16 = MTU - 40;
/// Segments of a long frame. With its outer headers it is just below the 64 KiB that a packet may have.
const SEGMENTS: usize = 45;
const TCP: u8 = 6;

/// Flows of small packets to one destination: as many as the generator has source ports.
pub const FLOWS: u32 = 1 << 15;
/// First destination port of flows that begin with each packet: `FRESH_PORT` there.
pub const FRESH_PORT: u16 = 10_000;
/// Destination port of all other small packets.
pub const PORT: u16 = 2000;

/// To which flows small packets belong.
#[derive(Clone, Copy, Debug)]
pub enum Ports {
    /// Each packet to a random one of so many flows to a destination, a power of two of at most [`FLOWS`].
    Random(u32),
    /// Each packet begins a flow. The first one has this number, from 1.
    Fresh(u32),
}

/// Where packets go: the sender's address, the first destination and the number of destinations.
#[derive(Clone, Copy, Debug)]
pub struct Flows {
    /// Address of the sender.
    pub source: Ipv4Addr,
    /// First destination.
    pub base: Ipv4Addr,
    /// Number of destinations.
    pub count: u32,
}

impl Flows {
    /// From a VM on another host to this one.
    pub fn to(vm: Vm) -> Self {
        Self { source: place::BY_GATEWAY, base: vm.address, count: 1 }
    }

    fn ethernet(&self) -> Vec<u8> {
        ethernet(place::mac_of(self.base), place::mac_of(self.source))
    }

    /// The generator's `struct traffic` (`bench/spine/bpf/host.bpf.c`). `is_tunneled`: the host
    /// receives the packets in VXLAN.
    pub fn template(&self, is_tunneled: bool, ports: Ports) -> Vec<u8> {
        let mut packet = Vec::with_capacity(PACKET_BYTES);
        if is_tunneled {
            packet.extend(outer_headers());
        }
        packet.extend(self.ethernet());
        let bytes = (FRAME_BYTES - ETHERNET_BYTES) as u16;
        let mut header = ipv4(bytes, self.source, Ipv4Addr::UNSPECIFIED);
        header[10..12].fill(0);
        packet.extend(header);
        packet.extend(udp(0, PORT, bytes - 20));
        packet.resize(PACKET_BYTES, 0);
        let (mask, fresh) = match ports {
            Ports::Random(flows) => (flows - 1, 0),
            Ports::Fresh(first) => (0, first),
        };
        for word in [u32::from(self.base), self.count, sum(&header), mask, fresh, 0] {
            packet.extend(word.to_ne_bytes());
        }
        packet
    }

    /// A TCP packet of almost 64 KiB to the first destination, behind a `struct virtio_net_hdr` that leaves
    /// checksum and segmentation to the interface.
    pub fn long_frame(&self) -> Vec<u8> {
        let payload = SEGMENTS * usize::from(SEGMENT_BYTES);
        let (needs_checksum, tcp_over_ipv4) = (1u8, 1u8);
        let (checksum_start, checksum_offset) = ((ETHERNET_BYTES + 20) as u16, 16u16);
        let mut frame = vec![needs_checksum, tcp_over_ipv4];
        for word in [HEADERS_BYTES as u16, SEGMENT_BYTES, checksum_start, checksum_offset] {
            frame.extend(word.to_ne_bytes());
        }
        frame.extend(self.ethernet());
        let mut header = ipv4((40 + payload) as u16, self.source, self.base);
        header[9] = TCP;
        header[10..12].fill(0);
        let check = !(sum(&header) as u16);
        header[10..12].copy_from_slice(&check.to_be_bytes());
        frame.extend(header);
        frame.extend([0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        frame.resize(frame.len() + payload, 0);
        frame
    }
}

fn ethernet(to: MacAddr, from: MacAddr) -> Vec<u8> {
    [&to.octets()[..], &from.octets(), &[0x08, 0x00]].concat()
}

fn outer_headers() -> Vec<u8> {
    let bytes = (TUNNEL_BYTES - ETHERNET_BYTES + FRAME_BYTES) as u16;
    let mut headers = ethernet(place::HOST_MAC, place::ROUTER_MAC);
    headers.extend(ipv4(bytes, GATEWAY, VTEP));
    headers.extend(udp(0xc000, 4789, bytes - 20));
    headers.extend(0x0800_0000u32.to_be_bytes());
    headers.extend((VNI << 8).to_be_bytes());
    headers
}
