//! Conversions between Rust types and the words and bytes of `cells.h`.

use crate::entries::{PublicPrefix, Role, Target};
use crate::layout::{self, next_hop, public_prefix};
use crate::memory::Memory;
use sluice_types::{IpNet, MacAddr, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl Target {
    /// The leaf word of a route with this target. `cell`: that of [`Target::NextHop`], which has the address.
    pub(crate) fn to_leaf(self, cell: u32) -> u32 {
        let scope = |scope: u32| scope << layout::LEAF_SCOPE_SHIFT;
        match self {
            Self::Local => scope(layout::SCOPE_LOCAL),
            Self::Peer(vni) => scope(layout::SCOPE_PEER) | vni.get(),
            Self::Drop => scope(layout::SCOPE_DROP),
            Self::NextHop(_) => scope(layout::SCOPE_NEXT_HOP) | cell,
            Self::Internet => scope(layout::SCOPE_INTERNET),
            Self::Port(ifindex) => scope(layout::SCOPE_PORT) | ifindex,
        }
    }

    /// The target of a leaf word; `None` for 0 (no route), for scopes that this version does not know, and if the cell
    /// that it leads to has no address.
    pub(crate) fn from_leaf(memory: &Memory, leaf: u32) -> Option<Self> {
        let argument = leaf & layout::LEAF_ARGUMENT_MASK;
        match leaf >> layout::LEAF_SCOPE_SHIFT {
            layout::SCOPE_LOCAL => Some(Self::Local),
            layout::SCOPE_PEER => Vni::new(argument).ok().map(Self::Peer),
            layout::SCOPE_DROP => Some(Self::Drop),
            layout::SCOPE_NEXT_HOP => {
                let hop: next_hop = memory.contains(argument, 1).then(|| memory.read(argument))?;
                let address =
                    address_from_bytes(hop.address, u32::from(hop.flags) & layout::NEXT_HOP_IPV6 != 0);
                (u32::from(hop.kind) == layout::NEXT_HOP_INSTANCE).then_some(Self::NextHop(address))
            }
            layout::SCOPE_INTERNET => Some(Self::Internet),
            layout::SCOPE_PORT => Some(Self::Port(argument)),
            _ => None,
        }
    }
}

/// The kind of next hop (`NEXT_HOP_*`) in a cell's first byte; 0 if there is no such cell.
pub(crate) fn kind_of(memory: &Memory, cell: u32) -> u32 {
    if memory.contains(cell, 1) { memory.load32(cell, 0) & 0xff } else { 0 }
}

/// The cell of the public prefix that a leaf leads to.
pub(crate) fn public_cell(leaf: u32) -> Option<u32> {
    let is_public = leaf >> layout::LEAF_SCOPE_SHIFT == layout::SCOPE_PUBLIC;
    is_public.then_some(leaf & layout::LEAF_ARGUMENT_MASK)
}

impl PublicPrefix {
    /// The content of the prefix's cell. `vip_cell`: that of the vIP.
    pub(crate) fn to_cell(self, vip_cell: u32) -> public_prefix {
        let (outside, is_ipv6) = address_to_bytes(self.outside.addr());
        let (inside, _) = address_to_bytes(self.inside.addr());
        let (vip_address, vip_is_ipv6) = address_to_bytes(self.vip);
        let flags = [(is_ipv6, layout::PUBLIC_IPV6), (vip_is_ipv6, layout::PUBLIC_VIP_IPV6)];
        public_prefix {
            kind: layout::NEXT_HOP_PUBLIC as u8,
            flags: flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| *flag as u8).sum(),
            length: self.outside.prefix_len(),
            vni: self.vni.get(),
            vip: vip_cell,
            outside,
            inside,
            vip_address,
            ..Default::default()
        }
    }

    /// The prefix in a cell; `None` if the cell has no prefix.
    pub(crate) fn from_cell(memory: &Memory, cell: u32) -> Option<Self> {
        let known: public_prefix = memory.contains(cell, 1).then(|| memory.read(cell))?;
        let has = |flag| u32::from(known.flags) & flag != 0;
        let net = |bytes| {
            let net = IpNet::new(address_from_bytes(bytes, has(layout::PUBLIC_IPV6)), known.length).ok()?;
            (net.trunc() == net).then_some(net)
        };
        let public = Self {
            outside: net(known.outside)?,
            vni: Vni::new(known.vni).ok()?,
            inside: net(known.inside)?,
            vip: address_from_bytes(known.vip_address, has(layout::PUBLIC_VIP_IPV6)),
        };
        // Flags that do not suit the addresses would mislead packets.
        (public.to_cell(known.vip) == known).then_some(public)
    }
}

/// An address as the 16 bytes of the tables, and whether it is IPv6. IPv4 is in the first 4 bytes.
pub(crate) fn address_to_bytes(address: IpAddr) -> ([u8; 16], bool) {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            (bytes, false)
        }
        IpAddr::V6(v6) => (v6.octets(), true),
    }
}

pub(crate) fn address_from_bytes(bytes: [u8; 16], ipv6: bool) -> IpAddr {
    if ipv6 {
        return IpAddr::V6(bytes.into());
    }
    IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
}

/// An IPv4 address as a word in network order; 0 for `None`.
pub(crate) fn ipv4_to_word(address: Option<Ipv4Addr>) -> u32 {
    address.map_or(0, |address| u32::from_ne_bytes(address.octets()))
}

pub(crate) fn ipv4_from_word(word: u32) -> Option<Ipv4Addr> {
    (word != 0).then(|| Ipv4Addr::from(word.to_ne_bytes()))
}

/// An IPv6 address as bytes; all zero for `None`.
pub(crate) fn ipv6_to_bytes(address: Option<Ipv6Addr>) -> [u8; 16] {
    address.map_or([0; 16], |address| address.octets())
}

pub(crate) fn ipv6_from_bytes(bytes: [u8; 16]) -> Option<Ipv6Addr> {
    (bytes != [0; 16]).then(|| bytes.into())
}

/// A MAC address in the first 6 of 8 bytes.
pub(crate) fn mac_to_bytes(mac: MacAddr) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.octets();
    [a, b, c, d, e, f, 0, 0]
}

pub(crate) fn mac_from_bytes(bytes: [u8; 8]) -> MacAddr {
    let [a, b, c, d, e, f, ..] = bytes;
    MacAddr::new([a, b, c, d, e, f])
}

/// The identifier of a VRF's group; 0: it has no group.
pub(crate) fn group_id(cell: &layout::vrf) -> u32 {
    if u32::from(cell.flags) & layout::VRF_INTERNET == 0 { cell.group_id } else { 0 }
}

/// The cell of the Internet side of a VRF; 0: it has none.
pub(crate) fn internet_cell(cell: &layout::vrf) -> u32 {
    if u32::from(cell.flags) & layout::VRF_INTERNET == 0 { 0 } else { cell.group_id }
}

/// The elephant threshold of a VRF, in bytes per period. `None` if it has none, or if it has a group.
pub(crate) fn elephant_bytes(cell: &layout::vrf) -> Option<u32> {
    (group_id(cell) == 0 && cell.by_role != 0).then_some(cell.by_role)
}

/// The role of the node that a VTEP's cell describes.
pub(crate) fn role_of(cell: &layout::next_hop) -> Role {
    let flags = u32::from(cell.flags);
    if flags & layout::NEXT_HOP_HOST == 0 {
        Role::Gateway
    } else if flags & layout::NEXT_HOP_FOREIGN == 0 {
        Role::Host
    } else {
        Role::ForeignHost
    }
}
