//! Conversions between Rust types and the words and bytes of `cells.h`.

use crate::entries::{NatAddress, NatGateway, PublicPrefix, Role, Target};
use crate::error::Error;
use crate::layout::{
    self, nat_addresses, nat_forward, nat_forwards, nat_gateway, next_hop, peering, public_prefix,
};
use crate::memory::Memory;
use sluice_types::{ForwardProtocol, IpNet, MacAddr, PortForward, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

/// The content of a cell that belongs to a route.
pub(crate) enum HopCell {
    /// Of a prefix that is delegated to an instance, which may migrate.
    Instance(next_hop),
    /// Of a route to a peer, through meters.
    Peering(peering),
}

/// Whether a cell is one that belongs to a route.
pub(crate) fn is_hop(memory: &Memory, cell: u32) -> bool {
    matches!(kind_of(memory, cell), layout::NEXT_HOP_INSTANCE | layout::NEXT_HOP_PEERING)
}

impl Target {
    /// The leaf word of a route with this target. `cell`: that of a target which needs one ([`Target::to_cell`]).
    pub(crate) fn to_leaf(self, cell: u32) -> u32 {
        let scope = |scope: u32| scope << layout::LEAF_SCOPE_SHIFT;
        match self {
            Self::Local => scope(layout::SCOPE_LOCAL),
            Self::Peer(vni) => scope(layout::SCOPE_PEER) | vni.get(),
            Self::Drop => scope(layout::SCOPE_DROP),
            Self::NextHop(_) | Self::MeteredPeer { .. } | Self::Moved(_) => {
                scope(layout::SCOPE_NEXT_HOP) | cell
            }
            Self::Internet => scope(layout::SCOPE_INTERNET),
            Self::Port(ifindex) => scope(layout::SCOPE_PORT) | ifindex,
        }
    }

    /// The content of the cell that the leaf of a route of this VNI leads to. `None`: the leaf says all.
    pub(crate) fn to_cell(self, vni: Vni) -> Option<HopCell> {
        let vni = vni.get();
        match self {
            Self::NextHop(address) | Self::Moved(address) => {
                let (address, is_ipv6) = address_to_bytes(address);
                Some(HopCell::Instance(next_hop {
                    kind: layout::NEXT_HOP_INSTANCE as u8,
                    flags: if is_ipv6 { layout::NEXT_HOP_IPV6 as u8 } else { 0 }
                        | if matches!(self, Self::Moved(_)) { layout::NEXT_HOP_MOVED as u8 } else { 0 },
                    vni,
                    address,
                    ..Default::default()
                }))
            }
            Self::MeteredPeer { vni: peer, out_meter, in_meter } => {
                let (kind, peer) = (layout::NEXT_HOP_PEERING as u8, peer.get());
                Some(HopCell::Peering(peering { kind, vni, peer, out_meter, in_meter, ..Default::default() }))
            }
            Self::Local | Self::Peer(_) | Self::Drop | Self::Internet | Self::Port(_) => None,
        }
    }

    /// The target of a leaf word; `None` for 0 (no route), for scopes that this version does not know, and if the cell
    /// that it leads to has neither an address nor a peer.
    pub(crate) fn from_leaf(memory: &Memory, leaf: u32) -> Option<Self> {
        let argument = leaf & layout::LEAF_ARGUMENT_MASK;
        match leaf >> layout::LEAF_SCOPE_SHIFT {
            layout::SCOPE_LOCAL => Some(Self::Local),
            layout::SCOPE_PEER => Vni::new(argument).ok().map(Self::Peer),
            layout::SCOPE_DROP => Some(Self::Drop),
            layout::SCOPE_NEXT_HOP => {
                let hop: next_hop = memory.contains(argument, 1).then(|| memory.read(argument))?;
                match u32::from(hop.kind) {
                    layout::NEXT_HOP_INSTANCE => {
                        let is_ipv6 = u32::from(hop.flags) & layout::NEXT_HOP_IPV6 != 0;
                        let address = address_from_bytes(hop.address, is_ipv6);
                        let is_moved = u32::from(hop.flags) & layout::NEXT_HOP_MOVED != 0;
                        Some(if is_moved { Self::Moved(address) } else { Self::NextHop(address) })
                    }
                    layout::NEXT_HOP_PEERING => {
                        let peering { peer, out_meter, in_meter, .. } = memory.read(argument);
                        let vni = Vni::new(peer).ok()?;
                        Some(Self::MeteredPeer { vni, out_meter, in_meter })
                    }
                    _ => None,
                }
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
        let flags = [
            (is_ipv6, layout::PUBLIC_IPV6),
            (vip_is_ipv6, layout::PUBLIC_VIP_IPV6),
            (self.nptv6, layout::PUBLIC_NPTV6),
        ];
        public_prefix {
            kind: layout::NEXT_HOP_PUBLIC as u8,
            flags: flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| *flag as u8).sum(),
            length: self.outside.prefix_len(),
            vni: self.vni.get(),
            vip: vip_cell,
            meter: self.meter,
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
            meter: known.meter,
            nptv6: has(layout::PUBLIC_NPTV6),
        };
        // Flags that do not suit the addresses would mislead packets.
        (public.to_cell(known.vip) == known).then_some(public)
    }
}

impl NatGateway {
    /// The contents of the NAT gateway's cells: the first, and those behind it. `vip_cell`: that of the vIP. `forwards_cell`: the
    /// first one of its port forwards, 0 without any.
    pub(crate) fn to_cells(&self, vip_cell: u32, forwards_cell: u32) -> (nat_gateway, nat_addresses) {
        let mut pool = layout::nat_pool {
            sessions_limit: self.sessions,
            blocks_limit: self.blocks,
            addresses: self.addresses.len() as u8,
            flags: [(self.any_remote, layout::NAT_ANY_REMOTE), (self.shares_ports, layout::NAT_SHARES_PORTS)]
                .iter()
                .fold(0, |flags, (is_set, flag)| if *is_set { flags | *flag as u8 } else { flags }),
            ..Default::default()
        };
        let (vip_address, vip_ipv6) = address_to_bytes(self.vip);
        let prefix = u128::from(self.nat64.unwrap_or(Ipv6Addr::UNSPECIFIED));
        let prefix64 = [(prefix >> 64) as u64, prefix as u64];
        let mut behind =
            nat_addresses { vip_address, vip_ipv6: vip_ipv6.into(), prefix64, ..Default::default() };
        for (i, NatAddress { address, number }) in self.addresses.iter().enumerate() {
            pool.address[i] = *number;
            behind.address[i] = ipv4_to_word(Some(*address));
        }
        let kind = layout::NEXT_HOP_NAT as u8;
        let (forwards, forward_entries) = (forwards_cell, 2 * self.forwards.len() as u32);
        let vni = self.vni.get();
        let flags = if self.nat64.is_some() { layout::NAT_GATEWAY_64 as u8 } else { 0 };
        let vip = vip_cell;
        let gateway =
            nat_gateway { kind, flags, vni, vip, pool, forwards, forward_entries, ..Default::default() };
        (gateway, behind)
    }

    /// The cells of the port forwards of the NAT gateway in a cell: the first, and their number.
    pub(crate) fn forward_cells(memory: &Memory, cell: u32) -> Option<(u32, u32)> {
        let known: nat_gateway = memory.contains(cell, 1).then(|| memory.read(cell))?;
        (known.forwards != 0)
            .then_some((known.forwards, known.forward_entries.div_ceil(layout::NAT_FORWARDS_CELL)))
    }

    /// Its port forwards as packets find them, by either endpoint.
    fn forward_entries(&self) -> Vec<nat_forward> {
        let endpoint = |end: SocketAddrV4| {
            u64::from(u32::from(*end.ip())) << layout::NAT_FORWARD_ADDRESS_SHIFT | u64::from(end.port())
        };
        let both = self.forwards.iter().flat_map(|forward| {
            let (outside, inside) = (endpoint(forward.outside), endpoint(forward.inside));
            let is_udp = forward.protocol == ForwardProtocol::Udp;
            let of = u64::from(is_udp) << layout::NAT_FORWARD_UDP_SHIFT;
            let out = nat_forward { key: inside | of | layout::NAT_FORWARD_OUT, to: outside };
            [nat_forward { key: outside | of, to: inside }, out]
        });
        let mut entries: Vec<_> = both.collect();
        entries.sort_unstable_by_key(|entry| entry.key);
        entries
    }

    /// The contents of the cells of its port forwards.
    pub(crate) fn to_forward_cells(&self) -> Vec<nat_forwards> {
        let entries = self.forward_entries();
        let cells = entries.chunks(layout::NAT_FORWARDS_CELL as usize);
        let cell = |entries: &[nat_forward]| {
            let mut cell = nat_forwards::default();
            cell.entry[..entries.len()].copy_from_slice(entries);
            cell
        };
        cells.map(cell).collect()
    }

    /// The port forwards in the cells of a NAT gateway; `None` if they are not what the writer would have written.
    fn forwards_from_cells(memory: &Memory, gateway: &nat_gateway) -> Option<Vec<PortForward>> {
        let (first, count) = (gateway.forwards, gateway.forward_entries);
        let cells = count.div_ceil(layout::NAT_FORWARDS_CELL);
        if count == 0 {
            return (first == 0).then(Vec::new);
        }
        if count > layout::NAT_FORWARD_ENTRIES_MAX || !memory.contains(first, cells) {
            return None;
        }
        let cells = (first..first + cells).map(|cell| memory.read::<nat_forwards>(cell).entry);
        let endpoint = |bits: u64| {
            SocketAddrV4::new(((bits >> layout::NAT_FORWARD_ADDRESS_SHIFT) as u32).into(), bits as u16)
        };
        let outside = cells.flatten().take(count as usize).filter(|it| it.key & layout::NAT_FORWARD_OUT == 0);
        let forwards = outside.map(|entry| {
            let is_udp = entry.key >> layout::NAT_FORWARD_UDP_SHIFT & 1 != 0;
            let protocol = if is_udp { ForwardProtocol::Udp } else { ForwardProtocol::Tcp };
            PortForward { protocol, outside: endpoint(entry.key), inside: endpoint(entry.to) }
        });
        Some(forwards.collect())
    }

    /// The NAT gateway in cells; `None` if they have none.
    pub(crate) fn from_cells(memory: &Memory, cell: u32) -> Option<Self> {
        let is_there = memory.contains(cell, layout::NAT_GATEWAY_CELLS);
        let (known, behind): (nat_gateway, nat_addresses) =
            is_there.then(|| (memory.read(cell), memory.read(cell + 1)))?;
        let numbers = known.pool.address.iter().zip(behind.address).take(known.pool.addresses.into());
        let addresses = numbers
            .map(|(number, address)| Some(NatAddress { address: ipv4_from_word(address)?, number: *number }));
        let nat = Self {
            vni: Vni::new(known.vni).ok()?,
            addresses: addresses.collect::<Option<_>>()?,
            vip: address_from_bytes(behind.vip_address, behind.vip_ipv6 != 0),
            sessions: known.pool.sessions_limit,
            blocks: known.pool.blocks_limit,
            any_remote: u32::from(known.pool.flags) & layout::NAT_ANY_REMOTE != 0,
            shares_ports: u32::from(known.pool.flags) & layout::NAT_SHARES_PORTS != 0,
            forwards: Self::forwards_from_cells(memory, &known)?,
            nat64: (u32::from(known.flags) & layout::NAT_GATEWAY_64 != 0).then(|| {
                Ipv6Addr::from(u128::from(behind.prefix64[0]) << 64 | u128::from(behind.prefix64[1]))
            }),
        };
        // What the writer would not have written would mislead packets.
        let is_whole = nat.check().is_ok() && nat.to_cells(known.vip, known.forwards) == (known, behind);
        let cells = nat.to_forward_cells();
        let are_right =
            (known.forwards..).zip(cells).all(|(cell, entries)| memory.read::<nat_forwards>(cell) == entries);
        (is_whole && are_right).then_some(nat)
    }

    /// Whether the limits, addresses and port forwards are possible.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { vni, ref addresses, sessions, blocks, .. } = *self;
        let mut numbers: Vec<u16> = addresses.iter().map(|it| it.number).collect();
        numbers.sort_unstable();
        let reason = if !(1..=layout::NAT_POOL_ADDRESSES_MAX as usize).contains(&addresses.len()) {
            format!("1 to {} addresses are possible, not {}", layout::NAT_POOL_ADDRESSES_MAX, addresses.len())
        } else if !addresses.is_sorted_by(|a, b| a.address < b.address) {
            "its addresses are not in ascending order, or not different".to_owned()
        } else if !numbers.is_sorted_by(|a, b| a < b) {
            "two of its addresses have the same number".to_owned()
        } else if let Some(it) = addresses.iter().find(|it| !sluice_types::is_unicast(it.address.into())) {
            format!("{} is not a unicast address", it.address)
        } else if sessions == 0 || !(1..=layout::NAT_BLOCKS_MAX).contains(&blocks.into()) {
            format!(
                "at least 1 session and 1 to {} blocks are possible, not {sessions} and {blocks}",
                layout::NAT_BLOCKS_MAX
            )
        } else if let Some(prefix) = self.nat64.filter(|prefix| !sluice_types::is_nat64_prefix(*prefix)) {
            format!("{prefix}/96 cannot be a prefix of NAT64")
        } else {
            let addresses: Vec<Ipv4Addr> = addresses.iter().map(|it| it.address).collect();
            match PortForward::check_all(&self.forwards, &addresses) {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            }
        };
        Err(Error::Invalid(format!("the NAT gateway of VNI {vni} is not possible: {reason}")))
    }
}

/// What the cell of a public address says that is one of a NAT gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NatLink {
    /// The gateway's VNI.
    pub(crate) vni: Vni,
    /// Its vIP.
    pub(crate) vip: IpAddr,
    /// The address.
    pub(crate) address: NatAddress,
    /// The gateway's first cell.
    pub(crate) gateway: u32,
}

impl NatLink {
    /// The content of the address's cell. `vip_cell`: that of the vIP.
    pub(crate) fn to_cell(self, vip_cell: u32) -> public_prefix {
        let Self { vni, vip, address: NatAddress { address, number }, gateway } = self;
        let outside = IpNet::from(IpAddr::V4(address));
        let inside = IpNet::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let mut content =
            PublicPrefix { outside, vni, inside, vip, meter: 0, nptv6: false }.to_cell(vip_cell);
        content.flags |= layout::PUBLIC_NAT as u8;
        content.inside[..4].copy_from_slice(&gateway.to_ne_bytes());
        content.inside[4..6].copy_from_slice(&number.to_ne_bytes());
        content
    }

    /// What a cell says; `None` if it is not that of an address of a NAT gateway.
    pub(crate) fn from_cell(memory: &Memory, cell: u32) -> Option<Self> {
        let known: public_prefix = memory.contains(cell, 1).then(|| memory.read(cell))?;
        let [a, b, c, d, e, f, ..] = known.inside;
        let IpAddr::V4(address) = address_from_bytes(known.outside, false) else { return None };
        let link = Self {
            vni: Vni::new(known.vni).ok()?,
            vip: address_from_bytes(known.vip_address, u32::from(known.flags) & layout::PUBLIC_VIP_IPV6 != 0),
            address: NatAddress { address, number: u16::from_ne_bytes([e, f]) },
            gateway: u32::from_ne_bytes([a, b, c, d]),
        };
        (link.to_cell(known.vip) == known).then_some(link)
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

/// The elephant threshold of a VRF, in bytes per period. `None` if it has none.
pub(crate) fn elephant_bytes(cell: &layout::vrf) -> Option<u32> {
    if group_id(cell) != 0 {
        return sent_elephant_bytes(cell.flags);
    }
    (cell.by_role != 0).then_some(cell.by_role)
}

/// The flags of a VRF with a group for a threshold of elephants, at least 1 byte.
pub(crate) fn sent_elephant_flags(bytes: Option<u32>) -> u16 {
    let code = match bytes {
        None => 0,
        Some(layout::ELEPHANT_NEVER) => layout::VRF_ELEPHANT_NEVER,
        Some(bytes) => {
            let zeros = (u32::BITS - bytes.leading_zeros()).saturating_sub(layout::VRF_ELEPHANT_BITS);
            zeros << layout::VRF_ELEPHANT_BITS | bytes >> zeros
        }
    };
    (code << layout::VRF_ELEPHANT_SHIFT) as u16
}

/// The threshold in the flags of a VRF with a group, as `vrf_sent_elephant_bytes()` reads it.
pub(crate) fn sent_elephant_bytes(flags: u16) -> Option<u32> {
    match u32::from(flags) >> layout::VRF_ELEPHANT_SHIFT {
        0 => None,
        layout::VRF_ELEPHANT_NEVER => Some(layout::ELEPHANT_NEVER),
        code => {
            let zeros = (code >> layout::VRF_ELEPHANT_BITS).min(layout::VRF_ELEPHANT_ZEROS_MAX);
            Some((code & ((1 << layout::VRF_ELEPHANT_BITS) - 1)) << zeros)
        }
    }
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
