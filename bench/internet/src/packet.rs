//! The generator's template: Ethernet, IPv4, UDP, VXLAN, Ethernet, IPv4, UDP. It changes with the packets that are measured.

use sluice_bench_spine::packet::{GATEWAY, PEER, VNI, ipv4, sum, udp};
pub use sluice_bench_spine::packet::{PACKET_BYTES, TEMPLATE_BYTES};
use sluice_types::MacAddr;
use std::net::Ipv4Addr;

/// The first VM: number 0 of `sluice_bench_spine::peers::instance`.
pub const VMS: Ipv4Addr = Ipv4Addr::new(10, 16, 0, 0);
/// The first remote address. RFC 6598 has no hosts on the Internet, and `/10` of it is enough for all sessions.
pub const REMOTES: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);

/// A packet without inner addresses, inner source port and inner checksums, and the sums of what is there.
pub struct Template {
    /// The packet.
    pub bytes: [u8; TEMPLATE_BYTES],
    /// Sum of the inner IPv4 header.
    pub ip_sum: u32,
    /// Sum of the inner pseudo header, the UDP header and the payload.
    pub udp_sum: u32,
}

/// The first position of a UDP source port, which is 0 (`VXLAN_SOURCE_MIN`).
const FIRST_SOURCE: u16 = 49_152;
/// Positions in the ring of gateways: of the owner, and of the one that gets its packets.
pub const OWNER: u8 = 0;
/// The other one.
pub const STANDBY: u8 = 1;
/// VTEP of the other gateway, whichever of the two is measured.
pub const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);

/// Who sends the packets of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The host of all VMs.
    Host,
    /// The owner in a ring of gateways, to the other one.
    Owner,
}

/// The template of packets of `bytes` to `to`, from `from`, with inner frames to `inner_to`.
pub fn template(sender: Sender, bytes: usize, to: MacAddr, from: MacAddr, inner_to: MacAddr) -> Template {
    let (address, port, flags) = match sender {
        Sender::Host => (PEER, 50_000, 0x0800_0000u32),
        // The record's group policy id needs its flag (`nat_ring.h`).
        Sender::Owner => (OTHER, FIRST_SOURCE + (u16::from(OWNER) | u16::from(STANDBY) << 6), 0x8800_0000),
    };
    let none = Ipv4Addr::UNSPECIFIED;
    let inner_length = (bytes - 64) as u16;
    let mut inner = ipv4(inner_length, none, none);
    inner[10..12].fill(0);
    let transport = udp(0, 2000, inner_length - 20);
    let mut packet = Vec::with_capacity(TEMPLATE_BYTES);
    packet.extend(to.octets());
    packet.extend(from.octets());
    packet.extend([0x08, 0x00]);
    packet.extend(ipv4((bytes - 14) as u16, address, GATEWAY));
    packet.extend(udp(port, 4789, (bytes - 34) as u16));
    packet.extend(flags.to_be_bytes());
    packet.extend((VNI << 8).to_be_bytes());
    packet.extend(inner_to.octets());
    packet.extend([0x02, 0, 0, 0, 0, 9]);
    packet.extend([0x08, 0x00]);
    packet.extend(inner);
    packet.extend(transport);
    packet.resize(TEMPLATE_BYTES, 0);
    let mut bytes = [0; TEMPLATE_BYTES];
    bytes.copy_from_slice(&packet);
    // The payload is 0. The pseudo header has protocol and length.
    let udp_sum = sum(&transport) + 17 + u32::from(inner_length - 20);
    Template { bytes, ip_sum: sum(&inner), udp_sum }
}
