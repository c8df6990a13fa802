//! The objects of the northbound API as the store keeps them, and the [`Change`]s that the outbox carries.
//!
//! `revision` of an object is the database revision at its last change. It is the object's ETag, and the
//! revision that nodes must acknowledge before the object counts as programmed.

use crate::{
    ClassOfInstance, Eip, GroupSet, Meter, Mount, NatGateway, NetworkClass, PortForward, PortsOfHost,
    PublicPool, SecurityGroup, SecurityRule, Service, StoredMember, Vnic,
};
use serde::{Deserialize, Serialize};
use sluice_types::{
    ClusterId, GatewayId, HostId, InstanceId, IpNet, Ipv4Net, Ipv6Mode, Ipv6Net, MacAddr, MeterId,
    MigrationKey, PeeringId, Qos, RouteId, RouteTableId, Secret, SessionMode, SubnetId, TenantId, Vni, VpcId,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A tenant, which owns VPCs. Names are unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    pub id: TenantId,
    pub name: String,
    pub revision: u64,
}

/// A virtual private cloud: one VNI and one VRF, carried by one cluster. Names are unique in the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vpc {
    pub id: VpcId,
    pub name: String,
    pub tenant: TenantId,
    pub vni: Vni,
    pub cluster: ClusterId,
    /// MTU of the instances' interfaces: size of the IP packet in bytes.
    pub mtu: u16,
    /// A flow of at least this rate, in kbit/s, is offloaded. `None` is the threshold of the gateways,
    /// [`OFFLOAD_NEVER`] disables offloading.
    pub offload_kbps: Option<u32>,
    /// Meter of its Internet traffic. Of the same tenant.
    pub internet_meter: Option<MeterId>,
    /// Set while the VPC moves to another cluster.
    pub moving: Option<Move>,
    pub revision: u64,
}

/// Value of [`Vpc::offload_kbps`] that disables offloading.
pub const OFFLOAD_NEVER: u32 = u32::MAX;

/// Move of a VPC to another cluster, make before break: both clusters have the entries of the VPC during the
/// move. Peered VPCs move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Revision that started the move, the same for all VPCs that move together.
    pub id: u64,
    pub to: ClusterId,
    /// False: hosts send to the old cluster while the new one receives the entries. True: hosts are
    /// reprogrammed to send to the new cluster; hosts that have not applied this yet still send to the old
    /// one.
    pub switched: bool,
}

impl Vpc {
    /// The cluster to which hosts are programmed to send.
    pub fn serving(&self) -> ClusterId {
        self.moving.filter(|moving| moving.switched).map_or(self.cluster, |moving| moving.to)
    }

    /// The clusters that have the entries of the VPC: one, or two during a move.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> + use<> {
        std::iter::once(self.cluster).chain(self.moving.map(|moving| moving.to))
    }
}

/// A subnet: one prefix of IPv4, IPv6 or both. Names are unique in the VPC. The first host address of each
/// prefix is the router's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    pub id: SubnetId,
    pub name: String,
    pub vpc: VpcId,
    pub ipv4: Option<Ipv4Net>,
    pub ipv6: Option<Ipv6Net>,
    /// How instances get IPv6 addresses; `None` without an IPv6 prefix.
    pub ipv6_mode: Option<Ipv6Mode>,
    /// DNS resolvers that DHCP offers, at most 2.
    pub dns: Vec<Ipv4Addr>,
    pub revision: u64,
}

/// A host: a machine that runs instances. Names are unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub id: HostId,
    pub name: String,
    /// Underlay address of the VXLAN tunnel endpoint.
    pub vtep: IpAddr,
    /// True if the host runs `sluice vswitch`. A foreign VXLAN endpoint does not, and no change waits for it.
    pub agent: bool,
    pub revision: u64,
}

/// A cluster: gateways that hold the same tables, and the vIPs that they divide among themselves. Names are
/// unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    pub id: ClusterId,
    pub name: String,
    /// 1 to 63 vIPs of each family that is used, in order of slot, which is the order of the hash buckets.
    pub vips: Vec<ClusterVip>,
    /// Interval between two hellos of a gateway, in milliseconds,
    /// [`HELLO_INTERVAL_MS_MIN`](sluice_types::HELLO_INTERVAL_MS_MIN) to
    /// [`HELLO_INTERVAL_MS_MAX`](sluice_types::HELLO_INTERVAL_MS_MAX). The timeouts of failure detection are
    /// multiples of it.
    pub hello_interval_ms: u16,
    /// Revision of the vIP assignment (vIPs, gateways, drains, preferred owners, hello interval). It is the
    /// database revision of the last change of the assignment, or higher.
    pub vip_plan_revision: u64,
    pub revision: u64,
}

impl Cluster {
    /// Addresses of the vIPs, in order of slot.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.vips.iter().map(|vip| vip.address).collect()
    }
}

/// A vIP of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterVip {
    /// Number of the vIP in its cluster, 0 to 127. The slot, and the MAC that is derived from it, do not
    /// change as long as the cluster has the vIP.
    pub slot: u8,
    pub address: IpAddr,
    /// Gateway that owns the vIP as long as that gateway is ready. `None` if the cluster has no gateway.
    pub preferred_owner: Option<GatewayId>,
}

/// A secret that the nodes of a cluster share, valid for a limited time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterKey {
    /// Never reused, in any cluster.
    pub id: u32,
    pub cluster: ClusterId,
    pub secret: Secret,
    /// Start of validity, in milliseconds of the UNIX epoch.
    pub not_before_ms: u64,
    /// End of validity (exclusive), in milliseconds of the UNIX epoch.
    pub not_after_ms: u64,
}

/// Result of a key rotation that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRotation {
    /// Start of validity of the new key, in milliseconds of the UNIX epoch.
    pub valid_from_ms: u64,
    /// End of validity of all other keys, in milliseconds of the UNIX epoch.
    pub previous_keys_expire_ms: u64,
}

/// An entry of the event log, which people read.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: u64,
    /// Time of the event, in milliseconds of the UNIX epoch.
    pub time_ms: u64,
    /// Kind of event, such as `vpc_move_started`.
    pub kind: String,
    /// Id of the object that the event is about.
    pub subject: String,
    /// One sentence that describes the event.
    pub text: String,
    pub details: serde_json::Value,
}

/// An event to add to the log.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// Kind of event, such as `vpc_move_started`.
    pub kind: String,
    /// Id of the object that the event is about.
    pub subject: String,
    /// One sentence that describes the event.
    pub text: String,
    pub details: serde_json::Value,
}

/// A gateway node. Names are unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateway {
    pub id: GatewayId,
    pub name: String,
    pub cluster: ClusterId,
    /// Source addresses of the gateway's VXLAN packets on the underlay. There is at least one of the two
    /// families.
    pub vtep4: Option<Ipv4Addr>,
    pub vtep6: Option<Ipv6Addr>,
    /// The gateway must own no vIP if another gateway of its cluster can.
    pub draining: bool,
    /// Set while the gateway moves to another cluster.
    pub moving: Option<GatewayMove>,
    pub revision: u64,
}

/// Move of a gateway to another cluster, make before break: the gateway has the entries of both clusters
/// during the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayMove {
    /// Revision that started the move.
    pub id: u64,
    /// The cluster of which the gateway is not a member: its new cluster until it has joined, then its old
    /// one.
    pub other: ClusterId,
    /// False: the gateway receives the entries of the other cluster and gives its vIPs away. True: it has
    /// joined its new cluster and still has the entries of the old one.
    pub joined: bool,
}

impl Gateway {
    /// True if the gateway must own no vIP of its cluster, because it drains or leaves the cluster.
    pub fn is_retiring(&self) -> bool {
        self.draining || self.is_leaving()
    }

    /// True if the gateway is moving to another cluster that it has not joined yet.
    pub fn is_leaving(&self) -> bool {
        self.moving.is_some_and(|moving| !moving.joined)
    }

    /// True if the gateway has a VTEP of the family. Otherwise it cannot own a vIP of that family.
    pub fn has_family(&self, ipv4: bool) -> bool {
        if ipv4 { self.vtep4.is_some() } else { self.vtep6.is_some() }
    }

    /// The clusters whose entries the gateway has; the first is its own cluster.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> + use<> {
        std::iter::once(self.cluster).chain(self.moving.map(|moving| moving.other))
    }
}

/// An instance: the port of a VM in one subnet, on one host. Names are unique in the VPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub id: InstanceId,
    pub name: String,
    pub vpc: VpcId,
    pub subnet: SubnetId,
    pub host: HostId,
    pub mac: MacAddr,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    /// Identity of its set of security groups in the VPC ([`GroupSet`]). 0: none, the port is not filtered.
    pub identity: u16,
    pub options: InstanceOptions,
    /// Set while it migrates to another host.
    pub migration: Option<Box<Migration>>,
    pub revision: u64,
}

/// Live migration of an instance from its host to another one: what the two hosts need of it. How far it is, is in
/// [`MigrationProgress`](crate::MigrationProgress).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// Revision that started it.
    pub id: u64,
    pub to: HostId,
    /// With it the two hosts authenticate what they send each other.
    pub key: MigrationKey,
    pub sessions: SessionMode,
}

/// What an instance has besides its addresses and security groups. The column `instances.options` has it as JSON, except
/// the network class, which has a column of its own; the default is NULL. Fields that a stored row lacks have their
/// default, because they may be newer than the row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceOptions {
    /// Further addresses in its subnet, in ascending order.
    pub secondary: Vec<IpAddr>,
    /// Prefixes of which it has every address, in ascending order.
    pub delegated: Vec<IpNet>,
    /// Addresses that it may have in turn with others of its subnet, in order of address.
    pub pairs: Vec<StoredPair>,
    /// The source addresses of what it sends are not checked.
    pub unprotected: bool,
    /// Without [`Qos::rate_mbps`] if there is a network class.
    pub qos: Qos,
    /// Boxed, because most instances have none or share one.
    pub network_class: Option<Box<ClassOfInstance>>,
    /// Number of its newest membership of a service ([`StoredMember::id`]); its host probes members of services.
    pub member: Option<u64>,
}

/// An address that an instance may have in turn with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPair {
    pub address: IpAddr,
    /// The MAC address that belongs to the address, the same in all instances that list it.
    #[serde(default)]
    pub mac: Option<MacAddr>,
    /// When the VM announced the address that it holds, in milliseconds of the UNIX epoch by the clock of the database;
    /// `None`: it does not hold it. At most one instance of a VPC holds an address: the one that announced it last.
    #[serde(default)]
    pub held_since: Option<u64>,
}

impl StoredPair {
    /// Whether the instance holds the address.
    pub fn is_held(&self) -> bool {
        self.held_since.is_some()
    }
}

impl Instance {
    /// The hosts that have its port: the one that it is on and, while it migrates, the target.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        std::iter::once(self.host).chain(self.migration.as_ref().map(|migration| migration.to))
    }

    /// The two addresses of the instance.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// The addresses that only this instance has: its two addresses, and its secondary addresses.
    pub fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses().chain(self.options.secondary.iter().copied())
    }

    /// The pairs whose addresses it holds.
    pub fn held_pairs(&self) -> impl Iterator<Item = &StoredPair> {
        self.options.pairs.iter().filter(|pair| pair.is_held())
    }
}

/// A route table: the routes of a VPC in addition to those of its subnets and peerings. Each VPC is created
/// with one, named `main`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteTable {
    pub id: RouteTableId,
    pub name: String,
    pub vpc: VpcId,
    pub revision: u64,
}

/// What a route does with matching packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTarget {
    /// Sends them to the other VPC of this peering.
    Peering(PeeringId),
    /// Drops them; they are counted as `route_drop`.
    Drop,
    /// Sends those to the Internet whose sender has a public address.
    Internet,
}

/// A route. A table has at most one route for each prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub id: RouteId,
    pub table: RouteTableId,
    pub prefix: IpNet,
    pub target: RouteTarget,
    pub revision: u64,
}

/// A peering: two VPCs of one tenant that can reach each other's subnets. Names are unique in the tenant. `a`
/// is the VPC with the lower id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peering {
    pub id: PeeringId,
    pub name: String,
    pub a: VpcId,
    pub b: VpcId,
    pub meters: PeeringMeters,
    pub revision: u64,
}

/// The meters of the two sides of a peering, first that of `a`. Each limits what its VPC sends to the other one, and what it
/// gets from it. Of the same tenant.
pub type PeeringMeters = [Option<MeterId>; 2];

/// A node as the southbound interface identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeId {
    Gateway(GatewayId),
    Host(HostId),
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gateway(id) => id.fmt(f),
            Self::Host(id) => id.fmt(f),
        }
    }
}

impl std::str::FromStr for NodeId {
    type Err = <HostId as std::str::FromStr>::Err;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text.parse() {
            Ok(id) => Ok(Self::Gateway(id)),
            Err(_) => text.parse().map(Self::Host),
        }
    }
}

/// A deleted object, or the port of a moved instance, whose entries nodes may still have. Until they have acknowledged its deletion, nothing else gets
/// its addresses or its VNI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Revision of the deletion.
    pub revision: u64,
    /// Time of the deletion in milliseconds of the UNIX epoch.
    pub deleted_ms: u64,
    /// Kind of the object in words, like `instance`; `port of instance` on a host that an instance left.
    pub kind: String,
    /// Number of the object's id.
    pub object: u64,
    pub name: String,
    /// The nodes that may have had entries of the object when it was deleted, in order.
    pub nodes: Vec<NodeId>,
}

/// Nodes that one or more removals await.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSet {
    pub nodes: Vec<NodeId>,
    /// Number of removals that await exactly these nodes.
    pub removals: u64,
    /// Time of the oldest of these deletions in milliseconds of the UNIX epoch.
    pub oldest_ms: u64,
}

/// Which removals have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseOf {
    /// Those that await exactly these nodes,
    pub nodes: Vec<NodeId>,
    /// of deletions up to this revision,
    pub up_to: u64,
    /// and up to this time in milliseconds of the UNIX epoch.
    pub deleted_before_ms: u64,
}

/// What the store remembers of a node's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    pub node: NodeId,
    /// 0 before the first acknowledgment.
    pub acknowledged_revision: u64,
    /// Time of the last report, in milliseconds of the UNIX epoch; 0 if there was none.
    pub last_seen_ms: u64,
    /// Entries that the node could not write, as it reported last.
    pub failures: Vec<String>,
}

/// One change that a transaction made: the payload of an outbox row. It carries everything that compiling it
/// needs, so that a later change cannot alter the meaning of an earlier one.
///
/// Variants and fields are encoded by position: new ones are added at the end (see `codec.rs`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    HostUpserted(Host),
    HostRemoved(Host),
    /// The complete state of the cluster. `gateways` are all its gateways, in order of id.
    ClusterUpserted {
        cluster: Cluster,
        gateways: Vec<Gateway>,
    },
    ClusterRemoved(Cluster),
    /// `subnets` are all subnets of the VPC. The router addresses of the VRF are those of the first subnet.
    VpcUpserted {
        vpc: Vpc,
        subnets: Vec<Subnet>,
    },
    VpcRemoved(Vpc),
    /// `subnets` are all subnets of the VPC, including this one. `peers` are the VPCs peered with it, whose
    /// routes change, too.
    SubnetUpserted {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        subnet: Subnet,
        peers: Vec<Vpc>,
    },
    /// `subnets` are the remaining subnets of the VPC.
    SubnetRemoved {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        subnet: Subnet,
        peers: Vec<Vpc>,
    },
    /// All `instances` belong to `vpc`.
    InstancesCreated {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        hosts: Vec<Host>,
        instances: Vec<Instance>,
    },
    InstancesRemoved {
        vpc: Vpc,
        instances: Vec<Instance>,
    },
    /// `peer` is the other VPC if the target is a peering.
    RouteUpserted {
        vpc: Vpc,
        route: Route,
        peer: Option<Vpc>,
    },
    RouteRemoved {
        vpc: Vpc,
        route: Route,
    },
    /// The peering was created, or got other meters. Each VPC with all its subnets: a peering means routes to them.
    PeeringUpserted {
        a: Vpc,
        a_subnets: Vec<Subnet>,
        b: Vpc,
        b_subnets: Vec<Subnet>,
        meters: PeeringMeters,
    },
    PeeringRemoved {
        a: Vpc,
        a_subnets: Vec<Subnet>,
        b: Vpc,
        b_subnets: Vec<Subnet>,
    },
    /// Not sent to any node. It exists because every revision has an outbox row.
    TenantUpserted(Tenant),
    TenantRemoved(Tenant),
    /// The keys of the cluster changed; no keys means that the cluster was deleted. Secrets are stored in a
    /// table of their own and filled in when the outbox is read, so they may be newer than the revision.
    KeysChanged {
        cluster: ClusterId,
        #[serde(skip)]
        keys: Vec<ClusterKey>,
    },
    /// Existing instances get entries on an additional cluster, because their VPC starts to move there.
    EndpointsAdded {
        vpc: Vpc,
        cluster: ClusterId,
        hosts: Vec<Host>,
        instances: Vec<Instance>,
    },
    /// A cluster removes the entries of instances that continue to exist, because their VPC has moved away.
    EndpointsRemoved {
        vpc: Vpc,
        cluster: ClusterId,
        instances: Vec<Instance>,
    },
    /// An instance runs on another host. `hosts` are the new host and the old one, in this order. `ended` is the migration that
    /// the instance had, which may be to another host.
    InstanceMoved {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        hosts: Vec<Host>,
        instance: Instance,
        from: HostId,
        ended: Option<Migration>,
    },
    /// Revisions, ids and VNIs have jumped, because the database went back to an earlier state. Not sent to any
    /// node.
    HistoryForked,
    /// `rules` are all rules of the new group. A new VPC has the group `default` from the start; [`Change::VpcRemoved`]
    /// removes that group, and all sets of the VPC.
    SecurityGroupCreated {
        vpc: Vpc,
        group: SecurityGroup,
        rules: Vec<SecurityRule>,
    },
    /// The group has another name or description.
    SecurityGroupUpdated {
        vpc: Vpc,
        group: SecurityGroup,
    },
    /// The group is removed with its rules, and with the sets of groups that contained it. `identities` are those of these
    /// sets; no instance has them.
    SecurityGroupRemoved {
        vpc: Vpc,
        group: SecurityGroup,
        identities: Vec<u16>,
    },
    SecurityRuleCreated {
        vpc: Vpc,
        rule: SecurityRule,
    },
    SecurityRuleRemoved {
        vpc: Vpc,
        rule: SecurityRule,
    },
    /// Sets of groups get identities. Comes before the change that gives them to instances, in the same revision.
    GroupSetsCreated {
        vpc: Vpc,
        sets: Vec<GroupSet>,
    },
    /// An instance has other security groups. `from` is the identity that it had.
    InstanceGroupsChanged {
        vpc: Vpc,
        host: Host,
        instance: Instance,
        from: u16,
    },
    /// Instances of a VPC have other options: one that was changed, or the one that holds an address now, and the one that
    /// held it before. `hosts` are their hosts.
    InstancesChanged {
        vpc: Vpc,
        hosts: Vec<Host>,
        changes: Vec<InstanceChange>,
    },
    /// Not sent to any node, as the next one.
    PublicPoolUpserted(PublicPool),
    PublicPoolRemoved(PublicPool),
    /// The EIP was created, attached, moved or detached, or has another name.
    EipUpserted(Eip),
    EipRemoved(Eip),
    /// The NAT gateway was created, or anything of it was changed.
    NatGatewayUpserted(NatGateway),
    NatGatewayRemoved(NatGateway),
    /// The meter was created, or anything of it was changed.
    MeterUpserted(Meter),
    MeterRemoved(Meter),
    PortForwardCreated(PortForward),
    PortForwardRemoved(PortForward),
    /// The network class was created, or anything of it was changed. What it means for instances follows in changes of
    /// their own; whether it is the default is sent to all hosts. If another class was the default, its change comes first.
    NetworkClassUpserted(NetworkClass),
    NetworkClassRemoved(NetworkClass),
    /// The network class of these instances has another policy, which they have here; nothing else of them
    /// differs, and they keep their revisions. All of them belong to `vpc`.
    CreditChanged {
        vpc: Vpc,
        instances: Vec<Instance>,
    },
    /// The migration of an instance has started, or was canceled. `before` is the migration that it had. `hosts` are its
    /// source and its target, in this order.
    InstanceMigrationChanged {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        hosts: Vec<Host>,
        instance: Instance,
        before: Option<Migration>,
    },
    /// The service was created, or permits other tenants. No node has a service without mounts.
    ServiceUpserted(Service),
    ServiceRemoved(Service),
    /// `vnics` are those of the member: one for each mount of the service.
    MemberAdded {
        member: StoredMember,
        vnics: Vec<Vnic>,
    },
    MemberRemoved {
        member: StoredMember,
        vnics: Vec<Vnic>,
    },
    /// Members of any services have another status, or drain or not.
    MembersChanged {
        members: Vec<StoredMember>,
    },
    /// `subnets` are all subnets of the VPC, `vnics` those of the mount, and `ports` those of instances of the VPC.
    MountCreated {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        mount: Mount,
        vnics: Vec<Vnic>,
        ports: Vec<PortsOfHost>,
    },
    MountRemoved {
        vpc: Vpc,
        mount: Mount,
        vnics: Vec<Vnic>,
    },
}

/// An instance before and after a change of its options; nothing else differs but its revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceChange {
    pub before: InstanceOptions,
    pub after: Instance,
}

impl InstanceChange {
    /// The instance before the change.
    pub fn old(&self) -> Instance {
        Instance { options: self.before.clone(), ..self.after.clone() }
    }
}

/// What became of a claim of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The instance holds the address now.
    Taken(Box<Instance>),
    /// It held the address already.
    Held,
    /// The holder has announced the address later.
    Late,
}

/// Numbers of what gateways have of instances. Each address that instances may have in turn counts once for each of them,
/// whether it is held or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressCounts {
    pub ipv4: u64,
    pub ipv6: u64,
    /// Delegated prefixes.
    pub prefixes: u64,
}

/// A point in the history of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub revision: u64,
    /// Random id of the commit; 0 if it is not known.
    pub commit: u64,
}

/// Why revisions, ids and VNIs jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JumpReason {
    /// A node or a controller knows a commit that the database lost.
    WentBack,
    /// The database may have gone back: nodes that would know it are absent.
    NodesAbsent,
}

/// The highest numbers that nodes have. 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub revision: u64,
    /// Of an object of any kind.
    pub id: u64,
    pub vni: u32,
}

/// One row of the outbox. A revision can have several rows, with `part` 0, 1, ...; `last` is set on the last
/// one.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxRow {
    pub revision: u64,
    pub part: u32,
    pub last: bool,
    /// Id of the commit that took the revision; 0 if it was made by a version without commit ids.
    pub commit: u64,
    pub change: Change,
}
