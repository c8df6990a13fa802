//! The generator's template: Ethernet, IPv4, UDP, VXLAN, Ethernet, IPv4, UDP. It changes with the packets that
//! are measured.

use std::net::Ipv4Addr;

/// Size of the packet in bytes.
pub const PACKET_BYTES: usize = 110;
/// Size of the template in bytes, in whole words: `PACKET_BYTES` in `bpf/bench.bpf.c`.
pub const TEMPLATE_BYTES: usize = 112;
/// First inner destination.
pub const INNER_BASE: u32 = u32::from_be_bytes([10, 16, 0, 0]);
/// Inner source.
pub const INNER_SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
/// Sender of the packets, and next hop of the routes to all hosts.
pub const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address to which packets are sent.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// VNI of the packets.
pub const VNI: u32 = 100;

/// Ones' complement sum of 16-bit words.
pub fn sum(bytes: &[u8]) -> u32 {
    let total: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let once = (total & 0xffff) + (total >> 16);
    (once & 0xffff) + (once >> 16)
}

/// An IPv4 header of UDP, of a packet of `length` bytes.
pub fn ipv4(length: u16, source: Ipv4Addr, destination: Ipv4Addr) -> [u8; 20] {
    let mut header = [0u8; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&length.to_be_bytes());
    header[8] = 64;
    header[9] = 17;
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    let check = !(sum(&header) as u16);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    header
}

/// A UDP header without checksum; `length` counts its own bytes, too.
pub fn udp(source: u16, destination: u16, length: u16) -> [u8; 8] {
    let mut header = [0u8; 8];
    header[0..2].copy_from_slice(&source.to_be_bytes());
    header[2..4].copy_from_slice(&destination.to_be_bytes());
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header
}

/// The packet with inner destination 0.0.0.0 and an inner IPv4 checksum of 0, and the sum of the inner IPv4
/// header, to which the generator adds the destination.
pub fn template(to: [u8; 6], from: [u8; 6], inner_to: [u8; 6]) -> ([u8; TEMPLATE_BYTES], u32) {
    let mut packet = Vec::with_capacity(TEMPLATE_BYTES);
    packet.extend(to);
    packet.extend(from);
    packet.extend([0x08, 0x00]);
    packet.extend(ipv4((PACKET_BYTES - 14) as u16, PEER, GATEWAY));
    packet.extend(udp(50_000, 4789, (PACKET_BYTES - 34) as u16));
    packet.extend((0x0800_0000u32).to_be_bytes());
    packet.extend((VNI << 8).to_be_bytes());
    packet.extend(inner_to);
    packet.extend([0x02, 0, 0, 0, 0, 9]);
    packet.extend([0x08, 0x00]);
    let inner_length = (PACKET_BYTES - 64) as u16;
    let mut inner = ipv4(inner_length, INNER_SOURCE, Ipv4Addr::UNSPECIFIED);
    inner[10..12].fill(0);
    packet.extend(inner);
    packet.extend(udp(1000, 2000, inner_length - 20));
    packet.resize(TEMPLATE_BYTES, 0);
    let mut bytes = [0; TEMPLATE_BYTES];
    bytes.copy_from_slice(&packet);
    (bytes, sum(&inner))
}
