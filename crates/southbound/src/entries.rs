//! The entries of a node's tables, as values that cannot be malformed. `src/wire.rs` converts them to messages
//! and back. This file changes when nodes need another kind of entry or field.

use crate::cluster::{ClusterKeys, ClusterPlan};
use sluice_types::{
    CreditPolicy, InstanceId, IpNet, Ipv4Net, Ipv6Net, MacAddr, MeterLimit, MigrationKey, PortForward,
    ROUTER_MAC, RuleMatch, SecurityGroupId, SecurityRuleId, ServiceMember, SessionMode, Vni,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

/// The role of a node from which VXLAN packets are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VtepRole {
    /// A host with instances and a vSwitch.
    Host,
    /// A host with instances that runs no vSwitch.
    ForeignHost,
    /// A gateway.
    Gateway {
        /// The id of its cluster's group, never 0.
        cluster: u32,
    },
}

/// A node from which VXLAN packets are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vtep {
    /// The address on the underlay.
    pub address: IpAddr,
    /// Whether the node is a host or a gateway.
    pub role: VtepRole,
}

/// A vIP of the gateway's cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip {
    /// The address on the underlay.
    pub address: IpAddr,
    /// The MAC address in answers to ARP and neighbor discovery.
    pub mac: MacAddr,
}

/// The vIPs to which a host sends a VPC's packets, chosen by the hash of the flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// The id of the group, never 0.
    pub id: u32,
    /// The vIPs in the order of hash buckets, all of one address family. Empty if the cluster has no vIP of
    /// the host's family.
    pub vips: Vec<IpAddr>,
    /// Whether the host itself detects elephants. If it does, it learns the path to a destination when elephants have sent to it
    /// for so many milliseconds.
    pub detect_after_ms: Option<u32>,
}

/// The VRF of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vrf {
    /// The VPC's VNI.
    pub vni: Vni,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Source address of ICMP errors.
    pub router4: Option<Ipv4Addr>,
    /// Source address of ICMPv6 errors.
    pub router6: Option<Ipv6Addr>,
    /// On hosts: the group to which packets without a direct path are sent.
    pub group: Option<u32>,
    /// The rate in kbit/s from which a flow is offloaded, [`ELEPHANT_DEFAULT`] or [`ELEPHANT_NEVER`].
    pub elephant_kbps: u32,
    /// On gateways: the id of the meter of the VPC's Internet traffic.
    pub internet_meter: Option<u32>,
}

/// The node uses its default threshold: 20 kbit/s, unless a gateway is configured otherwise.
pub const ELEPHANT_DEFAULT: u32 = 0;

/// No flow is offloaded.
pub const ELEPHANT_NEVER: u32 = u32::MAX;

/// The host and MAC address of an instance (VM-NC entry).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The VPC's VNI.
    pub vni: Vni,
    /// IPv4 address. At least one of both is set.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address. At least one of both is set.
    pub ipv6: Option<Ipv6Addr>,
    /// MAC address of the instance.
    pub mac: MacAddr,
    /// VTEP of the instance's host.
    pub host: IpAddr,
}

impl Endpoint {
    /// The key that removes it.
    pub fn key(&self) -> EndpointKey {
        EndpointKey { vni: self.vni, ipv4: self.ipv4, ipv6: self.ipv6 }
    }
}

/// The addresses of an instance to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointKey {
    /// The VPC's VNI.
    pub vni: Vni,
    /// IPv4 address. At least one of both is set.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address. At least one of both is set.
    pub ipv6: Option<Ipv6Addr>,
}

/// What a route does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Send to an endpoint of the same VPC.
    Local,
    /// Look up in the routes of another VPC, which has this VNI.
    Peer(Vni),
    /// As [`Scope::Peer`], for packets that conform to meters. They do not leave by direct paths.
    MeteredPeer {
        /// The VNI of the other VPC.
        vni: Vni,
        /// The id of the meter of what this VPC sends to the other one: its limit outwards.
        out_meter: Option<u32>,
        /// The id of the meter of what the other VPC gets: its limit inwards. At least one of both is set.
        in_meter: Option<u32>,
    },
    /// Drop the packet.
    Drop,
    /// Send to the instance that has this address in the same VPC, and has every address of the prefix.
    NextHop(IpAddr),
    /// Send to the Internet, if the sender has a public address or the VPC a NAT gateway.
    Internet,
}

/// Public addresses of a VPC: an elastic IP address, or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicPrefix {
    /// The public addresses, without bits set beyond the length. It identifies the entry.
    pub outside: IpNet,
    /// The VPC's VNI.
    pub vni: Vni,
    /// The VPC's addresses, to which the public ones are translated one by one: a prefix of the same family and length,
    /// without bits set beyond it. If it equals `outside`, packets are routed without translation.
    pub inside: IpNet,
    /// The vIP of the cluster whose owner answers for the public addresses. It may be of the other family.
    pub vip: IpAddr,
    /// The id of the meter of the traffic of these addresses.
    pub meter: Option<u32>,
    /// Addresses of IPv6 are mapped so that no checksum changes (NPTv6, RFC 6296), by a prefix of length 48 to 64.
    pub nptv6: bool,
}

/// A limit of the traffic of all public prefixes, VPCs and routes that have this meter. They share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Meter {
    /// The id of the meter, never 0.
    pub id: u32,
    /// Limit of packets to the instances; `None`: not limited.
    pub inward: Option<MeterLimit>,
    /// Limit of packets from the instances; `None`: not limited.
    pub outward: Option<MeterLimit>,
}

/// Source NAT of a VPC: its instances without a public IPv4 address share these addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NatGateway {
    /// The VPC's VNI. A VPC has at most one NAT gateway.
    pub vni: Vni,
    /// The public addresses, in ascending order, 1 to [`sluice_types::NAT_ADDRESSES_MAX`].
    pub addresses: Vec<Ipv4Addr>,
    /// The vIP of the cluster whose owner has all sessions. It may be of the other family.
    pub vip: IpAddr,
    /// Sessions that each instance may have at the same time, at least 1.
    pub sessions: u32,
    /// Port blocks that each instance may have, at least 1. Gateways have the number of ports of a block.
    pub blocks: u8,
    /// A packet from any address of the Internet to a port that an instance uses begins a session (endpoint-independent
    /// filtering, RFC 4787 section 5).
    pub any_remote: bool,
    /// Sessions of any ports of an instance to different remote endpoints share public ports (endpoint-dependent mapping, RFC 4787
    /// section 4.1).
    pub shares_ports: bool,
    /// Its port forwards in ascending order ([`PortForward::check_all`]).
    pub forwards: Vec<PortForward>,
    /// NAT64: the address whose last 32 bits, which are 0, become the IPv4 address that instances reach by it.
    pub nat64: Option<Ipv6Addr>,
}

/// Identifies a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey {
    /// The VPC's VNI.
    pub vni: Vni,
    /// The prefix, without bits set beyond its length.
    pub prefix: IpNet,
}

/// A route of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// VPC and prefix.
    pub key: RouteKey,
    /// What the route does with packets.
    pub scope: Scope,
}

/// An instance of this host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port {
    /// The id of the instance.
    pub instance: InstanceId,
    /// Name for people: `vpc-name/instance-name`.
    pub name: String,
    /// The VPC's VNI.
    pub vni: Vni,
    /// MAC address of the instance.
    pub mac: MacAddr,
    /// The instance's IPv4 address, with the prefix length of its subnet.
    pub ipv4: Option<Ipv4Net>,
    /// IPv4 address of the subnet's router.
    pub router4: Option<Ipv4Addr>,
    /// The instance's IPv6 address, with the prefix length of its subnet.
    pub ipv6: Option<Ipv6Net>,
    /// Router advertisements tell the VM to ask for its IPv6 address by DHCPv6; otherwise to derive it.
    pub ipv6_dhcp: bool,
    /// MTU of the VPC, in bytes.
    pub mtu: u16,
    /// Addresses of DNS resolvers, at most 2.
    pub dns4: Vec<Ipv4Addr>,
    /// Identity of the instance's security groups in the VPC; 0 if its port is not filtered.
    pub identity: u16,
    /// What most ports do not have.
    pub options: PortOptions,
    /// Set while the instance migrates to another host, on both hosts.
    pub migration: Option<PortMigration>,
}

/// The migration of a port's instance to another host, as one of the two hosts gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortMigration {
    /// Identifies the migration, never 0.
    pub id: u64,
    /// The key of what the two hosts send each other. Both have the same.
    pub key: MigrationKey,
    /// Whether the instance comes to this host or leaves it.
    pub side: MigrationSide,
    /// What happens to the sessions.
    pub sessions: SessionMode,
}

/// A host's side of a migration, with the VTEP of the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MigrationSide {
    /// The instance comes to this host. Its port is closed until the VM runs here, and is in no digest.
    Incoming {
        /// The VTEP of the source host.
        from: IpAddr,
    },
    /// The instance leaves this host. Its port is in no digest.
    Outgoing {
        /// The VTEP of the target host.
        to: IpAddr,
    },
}

/// What a host reports of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationState {
    /// The instance.
    pub instance: InstanceId,
    /// The id of the migration, never 0.
    pub migration: u64,
    /// How far it is on this host.
    pub phase: MigrationPhase,
    /// Number of sessions that the target host has; with [`SessionMode::Reset`]: connections that it has made to end.
    pub sessions: u64,
    /// Why it failed; otherwise empty.
    pub problem: String,
}

/// How far a migration is on its target host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MigrationPhase {
    /// The host has the port, and no interface of the VM yet.
    Waiting,
    /// An interface is attached, and the sessions are copied.
    Ready,
    /// The VM runs on the target host; the source host has closed its port and redirects packets.
    Switched,
    /// The host cannot take over the port.
    Failed,
}

/// What a port may have besides its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortOptions {
    /// Secondary addresses, which have the prefix length of their family, and prefixes that are delegated to the VM, without
    /// bits beyond their length.
    pub additional: Vec<IpNet>,
    /// Addresses that the VM may have in turn with other VMs.
    pub pairs: Vec<AddressPair>,
    /// The source addresses of what the VM sends, MAC and IP, are not checked.
    pub unprotected: bool,
    /// Marking and rate of its packets.
    pub qos: Qos,
    /// The instance is a member of a service: its host probes the VM, and reports the result.
    pub member: Option<MemberProbe>,
    /// The port is a bonding vNIC: its addresses belong to a mount, which all members of the service share, and packets to
    /// it are found by its MAC address.
    pub bonded: bool,
}

/// How a host probes the VM of a member of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberProbe {
    /// Time between two probes in milliseconds, not 0.
    pub interval_ms: u32,
    /// Probes without an answer after which the VM is silent, not 0.
    pub failures: u32,
    /// With another one, the host begins to count again, and reports the state again.
    pub epoch: u64,
}

/// The members among which a service spreads the flows to its mounts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Service {
    /// Identifies it, never 0.
    pub id: u32,
    /// The seed of rendezvous hashing.
    pub seed: [u64; 2],
    /// In ascending order of numbers. Members that wait for their first report, or that are down, are not among them, unless
    /// no member is up: then those that are down are.
    pub members: Vec<ServiceMember>,
}

/// The addresses of a mount, which belong to all members of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceAddress {
    /// The VNI of the VPC that has the mount.
    pub vni: Vni,
    /// The id of the [`Service`].
    pub service: u32,
    /// IPv4 address. At least one of both is set.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address. At least one of both is set.
    pub ipv6: Option<Ipv6Addr>,
}

impl ServiceAddress {
    /// The key that removes it.
    #[must_use]
    pub fn key(&self) -> ServiceAddressKey {
        ServiceAddressKey { vni: self.vni, ipv4: self.ipv4, ipv6: self.ipv6 }
    }
}

/// The addresses of a mount to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceAddressKey {
    /// The VNI of the VPC that has the mount.
    pub vni: Vni,
    /// IPv4 address. At least one of both is set.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address. At least one of both is set.
    pub ipv6: Option<Ipv6Addr>,
}

/// What a host reports of an instance that is a member of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// The instance.
    pub instance: InstanceId,
    /// Whether its VM answers probes.
    pub up: bool,
    /// What was measured.
    pub evidence: String,
}

/// What a gateway reports of a host that it watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostState {
    /// The VTEP of the host.
    pub host: IpAddr,
    /// Whether it answers probes.
    pub reachable: bool,
    /// What was measured.
    pub evidence: String,
}

/// An address that a VM may have in turn with other VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressPair {
    /// The address.
    pub address: IpAddr,
    /// The MAC address that belongs to it; `None`: neighbors are given the MAC address of the router.
    pub mac: Option<MacAddr>,
    /// The VM gets the packets to the address.
    pub held: bool,
}

impl AddressPair {
    /// The MAC address by which neighbors reach the address.
    #[must_use]
    pub fn neighbor_mac(&self) -> MacAddr {
        self.mac.unwrap_or(ROUTER_MAC)
    }
}

/// How the packets of a port are marked, and how many it may send and receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qos {
    /// DSCP that packets of the VM get, 0 to 63; `None`: they keep theirs.
    pub dscp: Option<u8>,
    /// Limit of each direction, in Mbit/s of IP packets; `None`: not limited.
    pub rate_mbps: Option<NonZeroU32>,
    /// What the VM may use with the credit that it saves; there is no `rate_mbps` then.
    pub credit: Option<CreditPolicy>,
}

/// A VM has announced an address of [`PortOptions::pairs`] that it does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressClaim {
    /// The instance.
    pub instance: InstanceId,
    /// The address.
    pub address: IpAddr,
    /// Time since the announcement; more than 49 days are sent as 49 days.
    pub age: Duration,
}

/// Identifies the policy of the ports whose instances have the same set of security groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyKey {
    /// The VPC's VNI.
    pub vni: Vni,
    /// Identity of the set, never 0.
    pub identity: u16,
}

/// What the ports with an identity may send and receive: the rules of all of its security groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// VPC and identity.
    pub key: PolicyKey,
    /// In order of id.
    pub rules: Vec<SecurityRule>,
    /// For each group that is the remote of a rule: the identities whose instances have it, in ascending order.
    pub groups: BTreeMap<SecurityGroupId, Vec<u16>>,
}

/// A rule of a security group. It permits what it matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecurityRule {
    /// The id of the rule.
    pub id: SecurityRuleId,
    /// The connections that it matches.
    pub matches: RuleMatch,
}

/// A direct path: the host of one address of an instance, which avoids the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    /// VNI of the sender, and address of the destination.
    pub key: PathKey,
    /// MAC address of the destination.
    pub mac: MacAddr,
    /// VTEP of the destination's host.
    pub host: IpAddr,
    /// VNI of the destination.
    pub path_vni: Vni,
}

/// Identifies a direct path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathKey {
    /// VNI of the sender.
    pub vni: Vni,
    /// Address of the destination.
    pub address: IpAddr,
}

/// An entry that a node has and that the database does not, because the database went back to an earlier state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unconfirmed {
    /// The VRF of a network.
    Network(Vni),
    /// One address of an instance. On gateways only.
    Endpoint(Endpoint),
    /// A route. On gateways only.
    Route(RouteKey),
    /// An instance of the host that reports it.
    Port(Box<Port>),
    /// The VTEP of a host.
    Vtep(IpAddr),
    /// Public addresses of a VPC. On gateways only.
    PublicPrefix(PublicPrefix),
}

/// The contents of one message to a node. Entries are inserted or replaced before others are removed, except that public
/// prefixes are removed first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// The revision to acknowledge, on the last message of a step; 0 on others.
    pub revision: u64,
    /// Id of the commit that took the revision; 0 if it is not known.
    pub commit_id: u64,
    /// The database that the revision belongs to.
    pub database_id: u64,
    /// The step is a snapshot: at its end, entries that it does not contain are removed.
    pub snapshot: bool,
    /// The snapshot is of another history of the database than the tables: entries that it does not contain are
    /// kept as [`Unconfirmed`].
    pub keep_unmentioned: bool,
    /// Gateways, on the first message of a snapshot: a bit for each shard whose digests differ.
    pub verify_shards: u64,
    /// The removals are of unconfirmed entries, because an operator decided so.
    pub removes_unconfirmed: bool,
    /// Nodes whose VXLAN packets are accepted.
    pub vteps: Vec<Vtep>,
    /// vIPs of the cluster. For gateways only.
    pub vips: Vec<Vip>,
    /// Groups of vIPs. For hosts only.
    pub groups: Vec<Group>,
    /// Meters, which VRFs, routes to peers and public prefixes have. For gateways only.
    pub meters: Vec<Meter>,
    /// VRFs of VPCs.
    pub vrfs: Vec<Vrf>,
    /// Locations of instances. For gateways only.
    pub endpoints: Vec<Endpoint>,
    /// Routes of VPCs. For gateways only.
    pub routes: Vec<Route>,
    /// Public addresses of VPCs. For gateways only.
    pub public_prefixes: Vec<PublicPrefix>,
    /// NAT gateways of VPCs. For gateways only.
    pub nat_gateways: Vec<NatGateway>,
    /// What the host's ports may send and receive. For hosts only.
    pub policies: Vec<Policy>,
    /// Services whose mounts the node forwards to.
    pub services: Vec<Service>,
    /// Addresses of mounts of these services.
    pub service_addresses: Vec<ServiceAddress>,
    /// VTEPs of the hosts that the gateway probes; `None`: no change. For gateways only.
    pub watched_hosts: Option<Vec<IpAddr>>,
    /// Instances of the host. For hosts only.
    pub ports: Vec<Port>,
    /// Keys: for gateways those of their cluster, for hosts those of all clusters of their VPCs.
    pub keys: Vec<ClusterKeys>,
    /// The plan of the cluster. For gateways only.
    pub cluster: Option<ClusterPlan>,
    /// The policy of ports without one of their own and without a rate; `Some(None)`: they have none. For hosts only.
    pub default_credit: Option<Option<CreditPolicy>>,
    /// Direct paths. For hosts only, under the model `preprogrammed`.
    pub paths: Vec<Path>,
    /// Addresses of nodes to remove from `vteps`.
    pub removed_vteps: Vec<IpAddr>,
    /// Addresses to remove from `vips`.
    pub removed_vips: Vec<IpAddr>,
    /// Ids to remove from `groups`.
    pub removed_groups: Vec<u32>,
    /// VNIs of VRFs to remove, with their routes and public prefixes.
    pub removed_vnis: Vec<Vni>,
    /// Instances to remove from `endpoints`.
    pub removed_endpoints: Vec<EndpointKey>,
    /// Routes to remove from `routes`.
    pub removed_routes: Vec<RouteKey>,
    /// Public addresses to remove from `public_prefixes`: their [`PublicPrefix::outside`].
    pub removed_public_prefixes: Vec<IpNet>,
    /// VNIs whose NAT gateways are to be removed from `nat_gateways`.
    pub removed_nat_gateways: Vec<Vni>,
    /// Ids of meters to remove from `meters`, when no VRF and no public prefix has them any more.
    pub removed_meters: Vec<u32>,
    /// Addresses of mounts to remove from `service_addresses`.
    pub removed_service_addresses: Vec<ServiceAddressKey>,
    /// Ids to remove from `services`, when no address has them any more.
    pub removed_services: Vec<u32>,
    /// Instances to remove from `ports`.
    pub removed_ports: Vec<InstanceId>,
    /// Direct paths to remove from `paths`.
    pub removed_paths: Vec<PathKey>,
}

impl Update {
    /// True if it contains no entry.
    pub fn is_empty(&self) -> bool {
        self.entry_count() == 0
    }

    /// Number of entries that it inserts, replaces or removes.
    pub fn entry_count(&self) -> usize {
        self.vteps.len()
            + self.vips.len()
            + self.groups.len()
            + self.meters.len()
            + self.vrfs.len()
            + self.endpoints.len()
            + self.routes.len()
            + self.public_prefixes.len()
            + self.nat_gateways.len()
            + self.policies.len()
            + self.services.len()
            + self.service_addresses.len()
            + usize::from(self.watched_hosts.is_some())
            + self.ports.len()
            + self.keys.len()
            + usize::from(self.cluster.is_some())
            + usize::from(self.default_credit.is_some())
            + self.paths.len()
            + self.removed_vteps.len()
            + self.removed_vips.len()
            + self.removed_groups.len()
            + self.removed_vnis.len()
            + self.removed_endpoints.len()
            + self.removed_routes.len()
            + self.removed_public_prefixes.len()
            + self.removed_nat_gateways.len()
            + self.removed_meters.len()
            + self.removed_service_addresses.len()
            + self.removed_services.len()
            + self.removed_ports.len()
            + self.removed_paths.len()
    }
}
