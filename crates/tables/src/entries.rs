//! The entries that agents put into node tables, as plain data.
//!
//! A new kind of entry, or a new property of one, is added here, in `cells.h`, and in its file in `node`.

use crate::layout;
use sluice_types::{IpNet, MacAddr, MeterLimit, PortForward, ServiceMember, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;

/// Sizes that tables are created with. The tables grow when they hold more.
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

/// An interface of this node on the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderlayPort {
    /// Interface index of the kernel; 0 on a gateway stands for an interface that is missing.
    pub ifindex: u32,
    /// Longest IP packet in bytes.
    pub mtu: u16,
    /// MAC address of the interface.
    pub mac: MacAddr,
    /// Gateways: the interface leads to the Internet, not to the other nodes.
    pub internet: bool,
}

impl UnderlayPort {
    /// Keeps the position of an interface that is missing.
    pub const MISSING: Self = Self { ifindex: 0, mtu: 0, mac: MacAddr::new([0; 6]), internet: false };
}

/// Configuration of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Outer IPv4 source address.
    pub vtep4: Option<Ipv4Addr>,
    /// Outer IPv6 source address.
    pub vtep6: Option<Ipv6Addr>,
    /// MAC address of the overlay's router.
    pub router_mac: MacAddr,
    /// Hosts: interface index of the VXLAN device. Gateways: 0.
    pub vxlan_ifindex: u32,
    /// Underlay interfaces, at most 8 (`UNDERLAY_PORTS_MAX`). Next hops that packets have found name them by their
    /// positions for a second, so a gateway's interface keeps its position: one that is missing has ifindex 0.
    pub ports: Vec<UnderlayPort>,
}

/// A vIP of this gateway's cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vip {
    /// Address on the underlay.
    pub address: IpAddr,
    /// vMAC that belongs to the vIP.
    pub mac: MacAddr,
    /// This node owns the vIP: it answers ARP and neighbor discovery for it.
    pub owned: bool,
}

/// The vIPs over which a host spreads a VPC's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Identifier, not 0.
    pub id: u32,
    /// 1 to 63 vIPs (`GROUP_BUCKETS_MAX`), in bucket order. A vIP may occur more than once.
    pub vips: Vec<IpAddr>,
}

/// A service: VMs that share the addresses of each of its mounts (Achelous section 5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberService {
    /// Identifier, from 1 to 2^30 - 1.
    pub id: u32,
    /// Under which flows are hashed: the same on all nodes, and not 0.
    pub seed: [u64; 2],
    /// The members that may have flows, in ascending order of their numbers.
    pub members: Vec<ServiceMember>,
}

/// Properties of a VNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vrf {
    /// VNI of the VPC.
    pub vni: Vni,
    /// MTU of the tenant's interfaces: longest IP packet in bytes.
    pub mtu: u16,
    /// Source address of ICMP errors.
    pub router4: Option<Ipv4Addr>,
    /// Source address of ICMPv6 errors.
    pub router6: Option<Ipv6Addr>,
    /// Hosts: identifier of the VPC's group.
    pub group: Option<u32>,
    /// A flow of this VPC that sends at least this many bytes in a period is an elephant. At least 1; with
    /// [`Vrf::NEVER_ELEPHANTS`] no flow is an elephant; `None` means the threshold of the flow table. Hosts, which
    /// have a group, keep it with 7 bits, rounded down.
    pub elephant_bytes: Option<u32>,
}

impl Vrf {
    /// Value of `elephant_bytes` with which no flow of the VPC is an elephant.
    pub const NEVER_ELEPHANTS: u32 = layout::ELEPHANT_NEVER;
}

/// A VRF as it is in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VrfEntry {
    /// Properties that were set.
    pub vrf: Vrf,
    /// Index of its per-VNI counters; 0 if all indices were taken: it then shares the overflow counters.
    pub counters: u32,
    /// Number of IPv4 routes.
    pub routes4: u32,
    /// Number of IPv6 routes.
    pub routes6: u32,
}

/// One address of an instance, and the host that runs the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// VNI of the VPC.
    pub vni: Vni,
    /// Address of the instance.
    pub address: IpAddr,
    /// MAC address of the instance.
    pub mac: MacAddr,
    /// VTEP of the host. It must be in the tables before.
    pub host: IpAddr,
}

/// Role of another node of the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Runs instances, and a vSwitch.
    Host,
    /// Runs instances, but no vSwitch: a VXLAN endpoint that accepts packets of every host.
    ForeignHost,
    /// Forwards between hosts.
    Gateway,
}

/// Hosts: a path to one address of an instance on another host that does not pass a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectPath {
    /// VNI of the sender's VPC.
    pub vni: Vni,
    /// Address of the instance.
    pub address: IpAddr,
    /// MAC address of the instance.
    pub mac: MacAddr,
    /// VTEP of the instance's host. It must be in the tables before.
    pub host: IpAddr,
    /// VNI with which packets are encapsulated: that of the instance's own VPC. It differs from `vni` if the
    /// two VPCs are peered.
    pub path_vni: Vni,
    /// Longest IP packet that its host can receive, in bytes: at least 1280; 0: not known, the MTU of the sender's port is the only one.
    pub mtu: u16,
    /// The controller programmed this path (`docs/decisions/models.md`): learned paths do not replace it.
    pub fixed: bool,
    /// The instance migrates, and is at this host now, or still: packets from the underlay take the path as well. Such a path is
    /// `fixed`, but it is the agent's own.
    pub moved: bool,
}

/// What happens to packets that match a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// They go to an endpoint of the same VPC.
    Local,
    /// They are routed again in the peer VPC with this VNI.
    Peer(Vni),
    /// Gateways: as [`Target::Peer`], if they conform to these meters, by [`NodeTables::meter_number`](crate::NodeTables::meter_number);
    /// 0: none. No direct path avoids the gateways.
    MeteredPeer {
        /// VNI of the peer.
        vni: Vni,
        /// Number of the meter of what this VPC sends to the peer; its limit outwards counts.
        out_meter: u32,
        /// Number of the meter of what the peer gets; its limit inwards counts.
        in_meter: u32,
    },
    /// They are dropped.
    Drop,
    /// Gateways: they go to the endpoint of the same VPC with this address, of either family, whose instance has all
    /// addresses of the prefix.
    NextHop(IpAddr),
    /// Gateways: they go to the Internet, if the sender has a public address.
    Internet,
    /// Hosts: they go to the port with this interface index, below 2^28. Only ports make such routes:
    /// [`PortSources::additional`].
    Port(u32),
    /// Hosts: packets from the underlay take the direct path of this address, of either family, whose instance migrates and has all
    /// addresses of the prefix. Digests leave such routes out: [`NodeTables::upsert_moved_route`](crate::NodeTables::upsert_moved_route).
    Moved(IpAddr),
}

/// Gateways: what the cell of a route to a peer through meters says ([`Target::MeteredPeer`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeteredPeer {
    /// VNI of the route.
    pub vni: u32,
    /// VNI of the peer.
    pub peer: u32,
    /// Number of the meter of what `vni` sends; 0: none.
    pub out_meter: u32,
    /// Number of the meter of what `peer` gets; 0: none.
    pub in_meter: u32,
}

/// A route of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// VNI of the VPC.
    pub vni: Vni,
    /// Destinations that match.
    pub prefix: IpNet,
    /// What happens to matching packets.
    pub target: Target,
}

/// Gateways: public addresses of a VPC, each of which stands for one address of the VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicPrefix {
    /// The addresses on the Internet. No other public prefix has the same; of those that overlap, the longest counts.
    pub outside: IpNet,
    /// VNI of the VPC. Its VRF must be in the tables before.
    pub vni: Vni,
    /// The addresses in the VPC, of the same family and number. Those of two public prefixes of a VPC do not overlap. If
    /// they equal `outside`, packets are not translated.
    pub inside: IpNet,
    /// The vIP whose owner answers ARP and neighbor discovery for the addresses. It must be in the tables before.
    pub vip: IpAddr,
    /// Number of the meter from which its packets take, by [`NodeTables::meter_number`](crate::NodeTables::meter_number); 0: they
    /// take from none.
    pub meter: u32,
    /// Addresses of IPv6 are mapped so that no checksum changes (NPTv6, RFC 6296), by a prefix of length 48 to 64.
    pub nptv6: bool,
}

/// Gateways: a limit of traffic, which public prefixes, VPCs and routes to peers share that have its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meter {
    /// The controller's identifier, not 0.
    pub id: u32,
    /// Limit of the IP packets that instances get; `None`: not limited.
    pub inward: Option<MeterLimit>,
    /// Limit of those that instances send; `None`: not limited.
    pub outward: Option<MeterLimit>,
}

/// Gateways: source NAT of a VPC, whose instances without a public IPv4 address share these addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatGateway {
    /// VNI of the VPC, which has at most one NAT gateway. Its VRF must be in the tables before.
    pub vni: Vni,
    /// In ascending order, 1 to 16, with different numbers. No other NAT gateway and no public prefix has one of them.
    pub addresses: Vec<NatAddress>,
    /// The vIP of the gateway that has the sessions, and that answers ARP for the addresses. It must be in the tables before,
    /// and may be of the other family.
    pub vip: IpAddr,
    /// Sessions that each instance may have at the same time, at least 1.
    pub sessions: u32,
    /// Port blocks that each instance may have, 1 to 16.
    pub blocks: u8,
    /// A packet from any address of the Internet to a port that an instance uses begins a session.
    pub any_remote: bool,
    /// Sessions of any ports of an instance to different remote endpoints share public ports.
    pub shares_ports: bool,
    /// In ascending order; see [`PortForward::check_all`].
    pub forwards: Vec<PortForward>,
    /// NAT64: instances reach each IPv4 address by the IPv6 address that has it in its last 32 bits, which are 0 here.
    pub nat64: Option<Ipv6Addr>,
}

/// A public address of a NAT gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// Its number in this node's NAT tables. Without such tables it has no meaning.
    pub number: u16,
}

/// IPv4 configuration of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortIpv4 {
    /// Address of the instance.
    pub address: Ipv4Addr,
    /// Prefix length of the subnet.
    pub length: u8,
    /// Router of the subnet.
    pub router: Option<Ipv4Addr>,
}

/// IPv6 configuration of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortIpv6 {
    /// Address of the instance.
    pub address: Ipv6Addr,
    /// Prefix length of the subnet.
    pub length: u8,
    /// Router advertisements tell the VM to ask for the address by DHCPv6; otherwise to derive it from its MAC.
    pub dhcp: bool,
}

/// A VM's port on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Interface index of the kernel, not 0.
    pub ifindex: u32,
    /// The interface is a veth: packets are delivered straight into its peer.
    pub peer_redirect: bool,
    /// Longest IP packet in bytes.
    pub mtu: u16,
    /// VNI of the VPC. Its VRF must be in the tables before.
    pub vni: Vni,
    /// MAC address of the instance.
    pub mac: MacAddr,
    /// IPv4 configuration, if the instance has an IPv4 address.
    pub ipv4: Option<PortIpv4>,
    /// IPv6 configuration, if the instance has an IPv6 address.
    pub ipv6: Option<PortIpv6>,
    /// Resolvers that DHCP announces, at most 2.
    pub dns4: Vec<Ipv4Addr>,
    /// Identifier of the instance at the controller.
    pub instance: u64,
    /// Lifetime of DHCP leases of both families, in seconds.
    pub lease_s: u32,
    /// Identifier of the [`Policy`](crate::Policy) that says which packets the port sends and receives. It must be in
    /// the tables before. `None`: everything is permitted.
    pub policy: Option<u32>,
    /// Number under which the sessions of a port with a policy are kept, and the meter of a port with a rate; only without
    /// both it may be 0. Another attachment has another number, so that no VM inherits sessions.
    pub scope: u16,
    /// Identity of the instance's groups within its VPC; 0: none.
    pub identity: u16,
    /// Time until which connections are adopted that exist already, in seconds of `CLOCK_MONOTONIC`; 0: none are.
    pub adopt_until_s: u32,
    /// How the packets of the VM are marked and limited.
    pub qos: PortQos,
    /// What the VM has besides `ipv4` and `ipv6`.
    pub sources: PortSources,
    /// The port is a bonding vNIC: its addresses are those of a mount of a service, and packets to them find it by its MAC
    /// address. It has no further addresses that it receives.
    pub bonded: bool,
}

/// How the packets of a port are marked and limited (`bpf/include/vswitch/qos.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortQos {
    /// DSCP that packets of the VM get, 0 to 63; `None`: they keep theirs.
    pub dscp: Option<u8>,
    /// What the VM may send, in Mbit/s of IP packets; `None`: any number. The port then needs a number for its meter
    /// ([`Port::scope`]).
    pub rate_mbps: Option<NonZeroU32>,
    /// Whether what the VM sends and gets is counted and limited by [`crate::PortCredits`]. The port then needs a number, too. A limit
    /// there of what it sends replaces the rate.
    pub credit: bool,
}

/// What a VM may send from besides the addresses of its port. No prefix and no address occurs twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSources {
    /// Secondary addresses, which have the prefix length of their family, and prefixes that are delegated to the VM. It
    /// gets the packets to them.
    pub additional: Vec<IpNet>,
    /// Addresses that the VM may have in turn with other VMs.
    pub pairs: Vec<AddressPair>,
    /// It may send from any unicast address, MAC and IP.
    pub unprotected: bool,
}

/// An address that a VM may have in turn with other VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPair {
    /// The address.
    pub address: IpAddr,
    /// The MAC address that belongs to it, from which the VM may send as well; `None`: neighbors are given that of the
    /// router.
    pub mac: Option<MacAddr>,
    /// The VM gets the packets to the address.
    pub held: bool,
}
