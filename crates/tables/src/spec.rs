//! What the agents put into the tables, as plain data.

use crate::error::Error;
use crate::layout;
use sluice_types::{IpNet, MacAddr, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What tables are laid out for. They grow beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Entries of the exact match: one for each address of an instance.
    pub endpoints: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { endpoints: 1024 }
    }
}

/// An interface of the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderlayPort {
    /// Kernel interface, not 0.
    pub ifindex: u32,
    /// Bytes of IP packet.
    pub mtu: u16,
    /// The interface's own address.
    pub mac: MacAddr,
}

/// This node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Outer IPv4 source address.
    pub vtep4: Option<Ipv4Addr>,
    /// Outer IPv6 source address.
    pub vtep6: Option<Ipv6Addr>,
    /// The overlay router's MAC address.
    pub router_mac: MacAddr,
    /// vSwitch: its VXLAN device; else 0.
    pub vxlan_ifindex: u32,
    /// At most 8 (`UNDERLAY_PORTS_MAX`).
    pub ports: Vec<UnderlayPort>,
}

/// A vIP of this gateway's cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vip {
    /// On the underlay.
    pub address: IpAddr,
    /// Its vMAC.
    pub mac: MacAddr,
    /// This node answers ARP and neighbour discovery for it.
    pub owned: bool,
}

/// The vIPs that a host spreads a VPC's packets over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Not 0.
    pub id: u32,
    /// 1 to 63 (`GROUP_BUCKETS_MAX`), in bucket order; one may stand more than once.
    pub vips: Vec<IpAddr>,
}

/// What a VNI is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vrf {
    /// The VPC's.
    pub vni: Vni,
    /// Of the tenant's interfaces, bytes of IP packet.
    pub mtu: u16,
    /// Source of ICMP errors.
    pub router4: Option<Ipv4Addr>,
    /// Source of ICMPv6 errors.
    pub router6: Option<Ipv6Addr>,
    /// Hosts: id of the VPC's group.
    pub group: Option<u32>,
    /// Gateways, where there is no group: bytes a period from which a flow of
    /// this VPC is an elephant, at least 1; [`Vrf::NEVER_ELEPHANTS`]: none is.
    /// `None`: the flow table's own threshold.
    pub elephant_bytes: Option<u32>,
}

impl Vrf {
    /// As `elephant_bytes`: no flow of this VPC is an elephant.
    pub const NEVER_ELEPHANTS: u32 = layout::ELEPHANT_NEVER;
}

/// A VRF as it stands in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VrfEntry {
    /// As it was entered.
    pub vrf: Vrf,
    /// Index into the per-VNI counters; 0: all indices were taken, it shares the overflow.
    pub counters: u32,
    /// Its IPv4 routes.
    pub routes4: u32,
    /// Its IPv6 routes.
    pub routes6: u32,
}

/// One address of an instance, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The VPC's.
    pub vni: Vni,
    /// The instance's address.
    pub address: IpAddr,
    /// The instance's MAC address.
    pub mac: MacAddr,
    /// VTEP of its host, entered before.
    pub host: IpAddr,
}

/// What a node of the underlay is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// It has instances.
    Host,
    /// It forwards between hosts.
    Gateway,
}

/// Hosts: the way to one address of an instance on another host, past the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectPath {
    /// The sender's VPC.
    pub vni: Vni,
    /// The instance's address.
    pub address: IpAddr,
    /// The instance's MAC address.
    pub mac: MacAddr,
    /// VTEP of its host, entered before.
    pub host: IpAddr,
    /// The instance's own VPC, which packets are encapsulated for; another than
    /// `vni` where the two are peered.
    pub path_vni: Vni,
    /// The controller's own (docs/decisions/models.md): nothing that is learned takes its place.
    pub fixed: bool,
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// To the VPC's own endpoints.
    Local,
    /// Looked up again in the peer.
    Peer(Vni),
    /// Dropped.
    Drop,
}

/// A route of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The VPC's.
    pub vni: Vni,
    /// Destination.
    pub prefix: IpNet,
    /// What it does.
    pub target: Target,
}

/// IPv4 of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortIpv4 {
    /// The instance's.
    pub address: Ipv4Addr,
    /// The subnet's prefix length.
    pub length: u8,
    /// The subnet's router.
    pub router: Option<Ipv4Addr>,
}

/// IPv6 of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortIpv6 {
    /// The instance's.
    pub address: Ipv6Addr,
    /// The subnet's prefix length.
    pub length: u8,
}

/// A VM's port on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Kernel interface, not 0.
    pub ifindex: u32,
    /// The interface is a veth: packets go straight into its peer.
    pub peer_redirect: bool,
    /// Bytes of IP packet.
    pub mtu: u16,
    /// The VPC's; its VRF is entered before.
    pub vni: Vni,
    /// The instance's MAC address.
    pub mac: MacAddr,
    /// Its IPv4, if any.
    pub ipv4: Option<PortIpv4>,
    /// Its IPv6, if any.
    pub ipv6: Option<PortIpv6>,
    /// Resolvers told by DHCP, at most 2.
    pub dns4: Vec<Ipv4Addr>,
    /// The controller's number.
    pub instance: u64,
    /// DHCP lease time in seconds.
    pub lease_s: u32,
}

/// What became of a bulk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bulk {
    /// Entries that were new or differed.
    pub changed: usize,
    /// Entries that could not be written.
    pub failed: usize,
    /// The first of them ([`Bulk::ERRORS_MAX`]): index in the slice, and why.
    pub errors: Vec<(usize, Error)>,
}

impl Bulk {
    /// Errors that are kept.
    pub const ERRORS_MAX: usize = 16;

    /// Counts what became of entry `i`.
    pub(crate) fn note(&mut self, i: usize, result: Result<bool, Error>) {
        match result {
            Ok(changed) => self.changed += usize::from(changed),
            Err(error) => {
                self.failed += 1;
                if self.errors.len() < Self::ERRORS_MAX {
                    self.errors.push((i, error));
                }
            }
        }
    }
}

/// How full the tables are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Capacity in cells.
    pub cells_total: u64,
    /// Cells in use, those that wait for a grace period included.
    pub cells_used: u64,
    /// Cells that wait for a grace period.
    pub cells_pending: u64,
    /// Entries of the exact match, of all kinds.
    pub entries: u64,
    /// Its slots now; it grows while there is memory.
    pub entry_slots: u64,
    /// IPv6 addresses whose digest is another's.
    pub conflicts: u64,
    /// Cells for them now; they grow while there is memory.
    pub conflict_slots: u64,
    /// Per-VNI counters in use.
    pub counters_used: u64,
    /// Per-VNI counters there are.
    pub counters_total: u64,
    /// Accepted VTEPs.
    pub vteps: u64,
    /// vIPs.
    pub vips: u64,
    /// Groups.
    pub groups: u64,
    /// VRFs.
    pub vrfs: u64,
    /// Ports.
    pub ports: u64,
    /// Endpoints.
    pub endpoints: u64,
    /// Direct paths.
    pub directs: u64,
    /// Routes of all VRFs.
    pub routes: u64,
}

impl Fill {
    /// Cells that could not be had if more were needed: those that wait for a grace period are waited for then.
    #[must_use]
    pub fn cells_live(&self) -> u64 {
        self.cells_used.saturating_sub(self.cells_pending)
    }
}

impl Target {
    pub(crate) fn leaf(self) -> u32 {
        let scope = |scope: u32| scope << layout::LEAF_SCOPE_SHIFT;
        match self {
            Self::Local => scope(layout::SCOPE_LOCAL),
            Self::Peer(vni) => scope(layout::SCOPE_PEER) | vni.get(),
            Self::Drop => scope(layout::SCOPE_DROP),
        }
    }

    pub(crate) fn from_leaf(leaf: u32) -> Option<Self> {
        match leaf >> layout::LEAF_SCOPE_SHIFT {
            layout::SCOPE_LOCAL => Some(Self::Local),
            layout::SCOPE_PEER => Vni::new(leaf & layout::LEAF_ARGUMENT_MASK).ok().map(Self::Peer),
            layout::SCOPE_DROP => Some(Self::Drop),
            _ => None,
        }
    }
}

/// The bytes of an address in the 16 of the tables, and whether it is IPv6.
pub(crate) fn address_bytes(address: IpAddr) -> ([u8; 16], bool) {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            (bytes, false)
        }
        IpAddr::V6(v6) => (v6.octets(), true),
    }
}

pub(crate) fn address_from(bytes: [u8; 16], ipv6: bool) -> IpAddr {
    if ipv6 {
        return IpAddr::V6(bytes.into());
    }
    IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
}

/// An IPv4 address as the tables' word in network order; 0: none.
pub(crate) fn word4(address: Option<Ipv4Addr>) -> u32 {
    address.map_or(0, |address| u32::from_ne_bytes(address.octets()))
}

pub(crate) fn from_word4(word: u32) -> Option<Ipv4Addr> {
    (word != 0).then(|| Ipv4Addr::from(word.to_ne_bytes()))
}

/// An IPv6 address as the tables' bytes; zero: none.
pub(crate) fn bytes6(address: Option<Ipv6Addr>) -> [u8; 16] {
    address.map_or([0; 16], |address| address.octets())
}

pub(crate) fn from_bytes6(bytes: [u8; 16]) -> Option<Ipv6Addr> {
    (bytes != [0; 16]).then(|| bytes.into())
}

pub(crate) fn mac_bytes(mac: MacAddr) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.octets();
    [a, b, c, d, e, f, 0, 0]
}

pub(crate) fn mac_from(bytes: [u8; 8]) -> MacAddr {
    let [a, b, c, d, e, f, ..] = bytes;
    MacAddr::new([a, b, c, d, e, f])
}
