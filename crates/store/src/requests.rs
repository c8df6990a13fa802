//! What callers pass to the store and get from it, other than the objects of `model.rs`: requests, pages,
//! snapshots.

use crate::{
    Cluster, ClusterKey, Eip, Gateway, GroupSet, Host, Instance, Meter, Mount, NatGateway, NetworkClass,
    NodeId, Peering, PortForward, PortsOfHost, Route, RouteTarget, SecurityGroup, SecurityRule, Service,
    StoredMember, Subnet, Vnic, Vpc,
};
use sluice_types::{
    ClusterId, GatewayId, HostId, InstanceId, IpNet, Ipv4Net, Ipv6Mode, Ipv6Net, MacAddr, MeterId, NatSeed,
    PortSettings, RouteTableId, SecurityGroupId, SubnetId, TenantId, Vni, VpcId,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Result of a creation by name. Creation is idempotent: a repeated call returns the existing object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created<T> {
    /// This call created the object.
    New(T),
    /// The object existed with the same content.
    Existing(T),
}

impl<T> Created<T> {
    /// The object, whether it is new or not.
    pub fn into_inner(self) -> T {
        match self {
            Self::New(object) | Self::Existing(object) => object,
        }
    }
}

/// A page of a list: at most `limit` objects with an id greater than `after`, in order of id.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub after: u64,
    pub limit: u32,
}

#[derive(Clone, Debug)]
pub struct NewVpc {
    pub name: String,
    pub tenant: TenantId,
    /// `None` allocates the lowest VNI that was never used, or the lowest free VNI if all were used.
    pub vni: Option<Vni>,
    pub cluster: ClusterId,
    pub mtu: u16,
    /// See [`Vpc::offload_kbps`].
    pub offload_kbps: Option<u32>,
    /// `None`: a new VPC has no meter, and an existing one may have one.
    pub internet_meter: Option<MeterId>,
}

/// New values of the fields of a VPC; all of them are set.
#[derive(Clone, Debug)]
pub struct VpcUpdate {
    pub name: String,
    pub mtu: u16,
    /// See [`Vpc::offload_kbps`].
    pub offload_kbps: Option<u32>,
    pub internet_meter: Option<MeterId>,
}

#[derive(Clone, Debug)]
pub struct NewSubnet {
    pub name: String,
    pub vpc: VpcId,
    pub ipv4: Option<Ipv4Net>,
    pub ipv6: Option<Ipv6Net>,
    /// `None` is the default of a new subnet that has an IPv6 prefix, and any mode of an existing one.
    pub ipv6_mode: Option<Ipv6Mode>,
    pub dns: Vec<Ipv4Addr>,
}

#[derive(Clone, Debug)]
pub struct NewHost {
    pub name: String,
    pub vtep: IpAddr,
    /// See [`Host::agent`].
    pub agent: bool,
}

#[derive(Clone, Debug)]
pub struct NewGateway {
    pub name: String,
    pub cluster: ClusterId,
    pub vtep4: Option<Ipv4Addr>,
    pub vtep6: Option<Ipv6Addr>,
}

/// Addresses that are `None` are allocated. The MAC is derived from the id. The IPv4 address is the lowest of
/// the subnet that was never used, or the lowest free one if all were used. The IPv6 address is derived from
/// the MAC (EUI-64) in a /64, otherwise it is allocated like IPv4. There is one address for each family of
/// the subnet.
#[derive(Clone, Debug)]
pub struct NewInstance {
    pub name: String,
    pub subnet: SubnetId,
    pub host: HostId,
    pub mac: Option<MacAddr>,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    /// At most [`MAX_GROUPS_OF_INSTANCE`](crate::MAX_GROUPS_OF_INSTANCE) groups of the VPC, in any order. With an empty
    /// list, the port is not filtered. `None` is the group `default` for a new instance, and any for an existing one.
    pub security_groups: Option<Vec<SecurityGroupId>>,
    pub settings: PortSettings,
}

#[derive(Clone, Debug)]
pub struct NewRoute {
    pub table: RouteTableId,
    pub prefix: IpNet,
    pub target: RouteTarget,
}

#[derive(Clone, Debug)]
pub struct NewPeering {
    pub name: String,
    pub a: VpcId,
    pub b: VpcId,
    /// The meters of the sides of these VPCs. A new peering has no others, and an existing one may have some.
    pub meters: BTreeMap<VpcId, MeterId>,
}

/// An instance that nodes have and the database lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostInstance {
    pub id: InstanceId,
    pub name: String,
    /// VNI of its VPC, which must exist.
    pub vni: Vni,
    pub host: HostId,
    pub mac: MacAddr,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    /// As of a new instance: nodes do not know the groups.
    pub security_groups: Option<Vec<SecurityGroupId>>,
    pub settings: PortSettings,
}

/// All objects except instances.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub revision: u64,
    /// Id of the commit that took the revision; see [`Position`](crate::Position).
    pub commit: u64,
    pub hosts: Vec<Host>,
    pub clusters: Vec<Cluster>,
    pub gateways: Vec<Gateway>,
    pub vpcs: Vec<Vpc>,
    pub subnets: Vec<Subnet>,
    /// Each route with the VPC of its route table.
    pub routes: Vec<(VpcId, Route)>,
    pub peerings: Vec<Peering>,
    pub security_groups: Vec<SecurityGroup>,
    pub security_rules: Vec<SecurityRule>,
    /// In order of VPC and identity.
    pub group_sets: Vec<GroupSet>,
    pub eips: Vec<Eip>,
    pub nat_gateways: Vec<NatGateway>,
    pub meters: Vec<Meter>,
    pub port_forwards: Vec<PortForward>,
    /// The class of instances that have none of their own.
    pub default_class: Option<NetworkClass>,
    pub services: Vec<Service>,
    pub service_members: Vec<StoredMember>,
    pub mounts: Vec<Mount>,
    pub vnics: Vec<Vnic>,
    /// Of instances, in the VPCs that have mounts.
    pub mounted_ports: Vec<PortsOfHost>,
    /// In order of id.
    pub keys: Vec<ClusterKey>,
    /// Chosen at random when the database is created, and never changed.
    pub nat_seed: Option<NatSeed>,
}

/// Part of a snapshot. The topology is the first part, pages of instances follow.
#[derive(Clone, Debug)]
pub enum SnapshotPart {
    Topology(Box<Topology>),
    Instances(Vec<Instance>),
}

/// Selects the instances of a snapshot.
#[derive(Clone, Copy, Debug)]
pub enum InstancesOf {
    /// No instances, only the topology.
    None,
    /// The instances of all VPCs on a cluster.
    Cluster(ClusterId),
    /// The instances of all VPCs on the clusters of a gateway.
    Gateway(GatewayId),
    /// The instances on a host, then those that migrate to it.
    Host(HostId),
    /// The instances of all VPCs that have an instance on a host or one that migrates to it, and of the VPCs peered with
    /// them.
    Around(HostId),
    /// All instances.
    All,
}

/// Identity of a database. It is chosen at random when the database is created, and is never 0.
pub type DatabaseId = u64;

/// What a one-time enrollment token is valid for.
#[derive(Clone, Debug)]
pub struct EnrollmentToken {
    pub node: NodeId,
    /// Time at which the token expires, in milliseconds of the UNIX epoch.
    pub expires_ms: u64,
}
