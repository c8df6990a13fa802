//! The objects of the northbound API as the store keeps them.
//!
//! `revision` is the database's revision at the object's last change: its ETag,
//! and what nodes must have acknowledged before the object counts as programmed.

use serde::{Deserialize, Serialize};
use sluice_types::{
    ClusterId, GatewayId, HostId, InstanceId, IpNet, Ipv4Net, Ipv6Net, MacAddr, PeeringId, RouteId,
    RouteTableId, Secret, SubnetId, TenantId, Vni, VpcId,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An owner of VPCs. Names are unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    pub id: TenantId,
    pub name: String,
    pub revision: u64,
}

/// A virtual private cloud: one VNI, one VRF, placed on one cluster. Names are
/// unique in the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vpc {
    pub id: VpcId,
    pub name: String,
    pub tenant: TenantId,
    pub vni: Vni,
    pub cluster: ClusterId,
    /// MTU of the VPC's interfaces, bytes of IP packet.
    pub mtu: u16,
    /// kbit/s from which a flow is offloaded: `None` the gateways' own threshold,
    /// [`OFFLOAD_NEVER`] none is.
    pub offload_kbps: Option<u32>,
    /// On its way to another cluster.
    pub moving: Option<Move>,
    pub revision: u64,
}

/// [`Vpc::offload_kbps`] of a VPC none of whose flows is offloaded.
pub const OFFLOAD_NEVER: u32 = u32::MAX;

/// A VPC's way to another cluster, make before break: both have its entries while
/// it lasts. VPCs that are peered go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The revision that began it, the same for all that go together.
    pub id: u64,
    pub to: ClusterId,
    /// False: hosts send to the old cluster, while the new one learns. True: they
    /// are told to send to the new one, and those that were not yet reached still
    /// send to the old.
    pub switched: bool,
}

impl Vpc {
    /// The cluster that hosts are told to send to.
    pub fn serving(&self) -> ClusterId {
        self.moving.filter(|moving| moving.switched).map_or(self.cluster, |moving| moving.to)
    }

    /// The clusters that have its entries.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> + use<> {
        std::iter::once(self.cluster).chain(self.moving.map(|moving| moving.to))
    }
}

/// A prefix of each family (at least one) of a VPC. Names are unique in the VPC.
/// The first host address of each prefix is the router's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    pub id: SubnetId,
    pub name: String,
    pub vpc: VpcId,
    pub ipv4: Option<Ipv4Net>,
    pub ipv6: Option<Ipv6Net>,
    /// Resolvers offered by DHCP, at most 2.
    pub dns: Vec<Ipv4Addr>,
    pub revision: u64,
}

/// A machine that holds instances. Names are unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub id: HostId,
    pub name: String,
    /// Underlay address of its VXLAN tunnel endpoint.
    pub vtep: IpAddr,
    /// Runs `sluice vswitch`; false for a foreign VXLAN endpoint, which is
    /// never waited for.
    pub agent: bool,
    pub revision: u64,
}

/// A set of gateways that hold the same tables, and the vIPs they share out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    pub id: ClusterId,
    pub name: String,
    /// 1..=63 of each family used, in order of place, which is bucket order.
    pub vips: Vec<ClusterVip>,
    /// Between two hellos of its gateways, in milliseconds, [`HELLO_MS_MIN`](sluice_types::HELLO_MS_MIN) to
    /// [`HELLO_MS_MAX`](sluice_types::HELLO_MS_MAX): what finds failures waits by it.
    pub hello_ms: u16,
    /// Grows when vIPs, gateways, draining, homes or the hello interval change: the revision of that change, or more.
    pub plan_revision: u64,
    pub revision: u64,
}

impl Cluster {
    /// The vIPs' addresses, in order of place.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.vips.iter().map(|vip| vip.address).collect()
    }
}

/// A vIP of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterVip {
    /// 0..=127. It and the MAC that follows from it stay for as long as the cluster
    /// has the vIP.
    pub place: u8,
    pub address: IpAddr,
    /// The gateway that owns it while all is well; `None` in a cluster without any.
    pub home: Option<GatewayId>,
}

/// A secret that the nodes of a cluster share for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterKey {
    /// Never used again, in no cluster.
    pub id: u32,
    pub cluster: ClusterId,
    pub secret: Secret,
    /// Milliseconds of the UNIX epoch: valid from here...
    pub not_before_ms: u64,
    /// ...until before here.
    pub not_after_ms: u64,
}

/// A cluster's key that was renewed out of turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRotation {
    /// Milliseconds of the UNIX epoch: the new one is valid from here...
    pub valid_from_ms: u64,
    /// ...and all others until before here.
    pub others_end_ms: u64,
}

/// Something that happened, for people to read later.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: u64,
    /// Milliseconds of the UNIX epoch.
    pub time_ms: u64,
    pub kind: String,
    /// Id of the object it is about.
    pub subject: String,
    /// One sentence.
    pub text: String,
    pub details: serde_json::Value,
}

/// An event to be.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// Like `vpc_move_begun`.
    pub kind: String,
    pub subject: String,
    pub text: String,
    pub details: serde_json::Value,
}

/// A gateway node. Names are unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateway {
    pub id: GatewayId,
    pub name: String,
    pub cluster: ClusterId,
    /// Underlay addresses that its VXLAN packets come from, at least one.
    pub vtep4: Option<Ipv4Addr>,
    pub vtep6: Option<Ipv6Addr>,
    /// It is to own no vIP, if another gateway can.
    pub draining: bool,
    /// On its way from one cluster to another.
    pub moving: Option<GatewayMove>,
    pub revision: u64,
}

/// A gateway's way to another cluster, make before break: it has the entries of both
/// while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayMove {
    /// The revision that began it.
    pub id: u64,
    /// The cluster that it is not a member of: where it goes, or where it was.
    pub other: ClusterId,
    /// False: it learns the other cluster's entries, and gives its vIPs away. True: it
    /// has joined, and still has the entries of the cluster that it left.
    pub joined: bool,
}

impl Gateway {
    /// It is to own no vIP of its cluster: the operator says so, or it leaves.
    pub fn retires(&self) -> bool {
        self.draining || self.leaves()
    }

    /// It is on its way out of its cluster.
    pub fn leaves(&self) -> bool {
        self.moving.is_some_and(|moving| !moving.joined)
    }

    /// Whether it has a VTEP of a family: without, it cannot own a vIP of it.
    pub fn has_family(&self, ipv4: bool) -> bool {
        if ipv4 { self.vtep4.is_some() } else { self.vtep6.is_some() }
    }

    /// The clusters whose entries it has, its own first.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> + use<> {
        std::iter::once(self.cluster).chain(self.moving.map(|moving| moving.other))
    }
}

/// One VM's port in one subnet, on one host. Names are unique in the VPC.
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
    pub revision: u64,
}

/// The routes of a VPC beside its subnets'. Created with the VPC, as `main`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteTable {
    pub id: RouteTableId,
    pub name: String,
    pub vpc: VpcId,
    pub revision: u64,
}

/// What a route does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTarget {
    /// To the other VPC of this peering.
    Peering(PeeringId),
    /// Nowhere; counted as `route_drop`.
    Drop,
}

/// A route. One per prefix and table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub id: RouteId,
    pub table: RouteTableId,
    pub prefix: IpNet,
    pub target: RouteTarget,
    pub revision: u64,
}

/// Two VPCs of one tenant that reach each other's subnets. Names are unique in
/// the tenant. `a < b`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peering {
    pub id: PeeringId,
    pub name: String,
    pub a: VpcId,
    pub b: VpcId,
    pub revision: u64,
}

/// A node's identity to the southbound interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeId {
    Gateway(GatewayId),
    Host(HostId),
}

/// What the store remembers of a node's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    pub node: NodeId,
    /// Last acknowledged revision; 0 before the first.
    pub acked: u64,
    /// Milliseconds of the UNIX epoch; 0: never.
    pub last_seen_ms: u64,
    /// What the node could not write, last report.
    pub failures: Vec<String>,
}

/// What a transaction changed, in the words of the model: the outbox's payload.
/// It carries all that compiling it needs, so that a later change cannot alter
/// what an earlier one says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    HostUpserted(Host),
    HostRemoved(Host),
    /// The cluster, its gateways in order of id, and the VPCs on it are the whole truth.
    ClusterUpserted {
        cluster: Cluster,
        gateways: Vec<Gateway>,
    },
    ClusterRemoved(Cluster),
    /// `subnets` are all the VPC's; the first one's routers are the VRF's.
    VpcUpserted {
        vpc: Vpc,
        subnets: Vec<Subnet>,
    },
    VpcRemoved(Vpc),
    /// `subnets`: all the VPC's with this one. `peers`: VPCs peered with it,
    /// whose routes to it change too.
    SubnetUpserted {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        subnet: Subnet,
        peers: Vec<Vpc>,
    },
    /// `subnets`: all that the VPC still has.
    SubnetRemoved {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        subnet: Subnet,
        peers: Vec<Vpc>,
    },
    /// All of one VPC, which is also all instances' `vpc`.
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
    /// `peer`: the other VPC where the target is a peering.
    RouteUpserted {
        vpc: Vpc,
        route: Route,
        peer: Option<Vpc>,
    },
    RouteRemoved {
        vpc: Vpc,
        route: Route,
    },
    /// Each VPC with all its subnets: routes to them are what a peering means.
    PeeringCreated {
        a: Vpc,
        a_subnets: Vec<Subnet>,
        b: Vpc,
        b_subnets: Vec<Subnet>,
    },
    PeeringRemoved {
        a: Vpc,
        a_subnets: Vec<Subnet>,
        b: Vpc,
        b_subnets: Vec<Subnet>,
    },
    /// No node is told of tenants; here so that every revision has a row.
    TenantUpserted(Tenant),
    TenantRemoved(Tenant),
    /// The cluster's keys changed; none: it is no more. Secrets are in a table of
    /// their own, and are put in here when the outbox is read: they are those of
    /// that moment, which may be newer than the revision.
    KeysChanged {
        cluster: ClusterId,
        #[serde(skip)]
        keys: Vec<ClusterKey>,
    },
    /// Instances that are there get entries on one more cluster: their VPC begins to
    /// move there.
    EndpointsPlaced {
        vpc: Vpc,
        cluster: ClusterId,
        hosts: Vec<Host>,
        instances: Vec<Instance>,
    },
    /// A cluster forgets instances that live on: their VPC has moved away.
    EndpointsWithdrawn {
        vpc: Vpc,
        cluster: ClusterId,
        instances: Vec<Instance>,
    },
    /// An instance is on another host. `hosts`: the one it is on, and the one it was on.
    InstanceMoved {
        vpc: Vpc,
        subnets: Vec<Subnet>,
        hosts: Vec<Host>,
        instance: Instance,
        from: HostId,
    },
}

/// One row of the outbox. A bulk creation is several rows of one revision,
/// `part` counting from 0; only the last has `last` set.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxRow {
    pub revision: u64,
    pub part: u32,
    pub last: bool,
    pub change: Change,
}
