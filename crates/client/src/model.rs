//! The objects of the API as they travel. A field that the API may leave out
//! is an `Option`; ids are typed, so that a VPC's cannot stand for a subnet's.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sluice_types::{
    ClusterId, GatewayId, HostId, IdError, InstanceId, IpNet, Ipv4Net, Ipv6Net, MacAddr, PeeringId, RouteId,
    RouteTableId, SubnetId, TenantId, Vni, VpcId,
};
use std::fmt::{Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A kind of object that the API serves under `/v1/PATH`.
pub trait Resource: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Its identifier.
    type Id: Copy + Debug + Display + FromStr<Err = IdError> + PartialEq + Ord + Send + Sync;
    /// Last part of the collection's path.
    const PATH: &'static str;
    /// What a person calls one.
    const NOUN: &'static str;
    /// How else than by id objects of one name are told apart, as the end of an error text.
    const NARROW: &'static str;
    /// Whether the API finds one by name; if not, the list is searched.
    const NAMED: bool = true;
    /// This object's identifier.
    fn id(&self) -> Self::Id;
    /// This object's name, or for what has none, what tells it apart.
    fn name(&self) -> String;
    /// The database's revision at its last change: its ETag.
    fn revision(&self) -> u64;
    /// True when every node that needs it has it.
    fn programmed(&self) -> bool;
}

macro_rules! resource {
    ($type:ident, $id:ident, $path:literal, $noun:literal, $narrow:literal, $named:literal, |$this:ident| $name:expr) => {
        impl Resource for $type {
            type Id = $id;
            const PATH: &'static str = $path;
            const NOUN: &'static str = $noun;
            const NARROW: &'static str = $narrow;
            const NAMED: bool = $named;
            fn id(&self) -> $id {
                self.id
            }
            fn name(&self) -> String {
                let $this = self;
                $name
            }
            fn revision(&self) -> u64 {
                self.revision
            }
            fn programmed(&self) -> bool {
                self.programmed
            }
        }
    };
}

resource!(Tenant, TenantId, "tenants", "tenant", "", true, |it| it.name.clone());
resource!(Cluster, ClusterId, "clusters", "cluster", "", true, |it| it.name.clone());
resource!(Gateway, GatewayId, "gateways", "gateway", ", or say --cluster", true, |it| it.name.clone());
resource!(Host, HostId, "hosts", "host", "", true, |it| it.name.clone());
resource!(Vpc, VpcId, "vpcs", "VPC", ", or TENANT/VPC", true, |it| it.name.clone());
resource!(Subnet, SubnetId, "subnets", "subnet", ", or say --vpc", true, |it| it.name.clone());
resource!(Instance, InstanceId, "instances", "instance", ", or say --vpc", true, |it| it.name.clone());
resource!(RouteTable, RouteTableId, "route-tables", "route table", ", or say --vpc", false, |it| it
    .name
    .clone());
resource!(Route, RouteId, "routes", "route", ", or say --table", false, |it| it.destination.to_string());
resource!(Peering, PeeringId, "peerings", "peering", ", or say --vpc", true, |it| it.name.clone());

/// An owner of VPCs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// Identifier.
    pub id: TenantId,
    /// Unique in the cloud.
    pub name: String,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// A set of gateways that hold the same tables, and the vIPs they share out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Identifier.
    pub id: ClusterId,
    /// Unique in the cloud.
    pub name: String,
    /// Underlay addresses that hosts send to, in bucket order.
    pub vips: Vec<ClusterVip>,
    /// Between two hellos of a gateway to the others, in milliseconds.
    pub hello_ms: u16,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

impl Cluster {
    /// The vIPs' addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.vips.iter().map(|vip| vip.address).collect()
    }
}

/// A vIP of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterVip {
    /// It and the MAC stay for as long as the cluster has the vIP.
    pub place: u8,
    /// On the underlay.
    pub address: IpAddr,
    /// What ARP and neighbour discovery say.
    pub mac: MacAddr,
    /// The gateway that owns it while all is well; `None` in a cluster without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<GatewayId>,
    /// The gateway that answers for it, as far as the controller knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<GatewayId>,
}

/// A gateway node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gateway {
    /// Identifier.
    pub id: GatewayId,
    /// Unique in the cloud.
    pub name: String,
    /// Whose vIPs it serves.
    pub cluster: ClusterId,
    /// Underlay IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep4: Option<Ipv4Addr>,
    /// Underlay IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep6: Option<Ipv6Addr>,
    /// It is to own no vIP, if another gateway can.
    #[serde(default)]
    pub draining: bool,
    /// vIPs that it owns, as far as the controller knows.
    #[serde(default)]
    pub vips: Vec<IpAddr>,
    /// How it is, as far as the controller knows: `fit`, `failed`, `draining` and others.
    #[serde(default)]
    pub state: String,
    /// It is leaving its cluster for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<ClusterId>,
    /// It has left this cluster, and still has its VPCs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_from: Option<ClusterId>,
    /// While it moves: what is waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub move_waits_for: Vec<String>,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// A machine that holds instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Identifier.
    pub id: HostId,
    /// Unique in the cloud.
    pub name: String,
    /// Underlay address of its tunnel endpoint.
    pub vtep: IpAddr,
    /// Runs `sluice vswitch`; false for a foreign VXLAN endpoint.
    pub agent: bool,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// A virtual private cloud.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vpc {
    /// Identifier.
    pub id: VpcId,
    /// Unique in the tenant.
    pub name: String,
    /// Owner.
    pub tenant: TenantId,
    /// Where it is placed.
    pub cluster: ClusterId,
    /// VXLAN network identifier.
    pub vni: Vni,
    /// MTU of its interfaces, bytes of IP packet.
    pub mtu: u16,
    /// kbit/s from which a flow is offloaded; `None`: the gateways' own threshold;
    /// 4294967295: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_kbps: Option<u32>,
    /// While it moves: where to. Both clusters have its entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<ClusterId>,
    /// While it moves: `filling` or `switching`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_phase: Option<String>,
    /// While it moves: names of the nodes that it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub move_waits_for: Vec<String>,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// A prefix of each family of a VPC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subnet {
    /// Identifier.
    pub id: SubnetId,
    /// Unique in the VPC.
    pub name: String,
    /// Whose.
    pub vpc: VpcId,
    /// IPv4 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Net>,
    /// IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Net>,
    /// Resolvers that DHCP offers.
    #[serde(default)]
    pub dns: Vec<Ipv4Addr>,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// One VM's port in one subnet, on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Identifier.
    pub id: InstanceId,
    /// Unique in the VPC.
    pub name: String,
    /// Whose.
    pub vpc: VpcId,
    /// Where its addresses are from.
    pub subnet: SubnetId,
    /// Where it is.
    pub host: HostId,
    /// Its interface's address.
    pub mac: MacAddr,
    /// IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// The routes of a VPC beside its subnets'.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteTable {
    /// Identifier.
    pub id: RouteTableId,
    /// Unique in the VPC.
    pub name: String,
    /// Whose.
    pub vpc: VpcId,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// What a route does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTarget {
    /// To the other VPC of this peering.
    Peering(PeeringId),
    /// Nowhere.
    Drop,
}

/// A route of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// Identifier.
    pub id: RouteId,
    /// Whose.
    pub table: RouteTableId,
    /// Which addresses; one route per prefix and table.
    pub destination: IpNet,
    /// Where to.
    pub target: RouteTarget,
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// Two VPCs of one tenant that reach each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peering {
    /// Identifier.
    pub id: PeeringId,
    /// Unique in the tenant.
    pub name: String,
    /// Which two.
    pub vpcs: [VpcId; 2],
    /// Revision of its last change.
    pub revision: u64,
    /// Every node that needs it has it.
    pub programmed: bool,
}

/// Answer to a bulk creation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BulkCreated {
    /// How many were made now.
    pub created: u64,
    /// How many were there already.
    pub existing: u64,
    /// First made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<InstanceId>,
    /// Last made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<InstanceId>,
    /// Revision of the creation.
    pub revision: u64,
}

/// What a node needs to join the cloud: kept secret, since its token makes
/// whoever holds it that node, once.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct EnrolmentBundle {
    /// One-time token.
    pub token: String,
    /// Certificate of the controller's authority.
    pub ca_pem: String,
    /// HOST:PORT of the southbound interface.
    pub controller: String,
    /// Name in the controller's certificate.
    pub server_name: String,
    /// The node's id.
    pub node: String,
    /// `gateway` or `host`.
    pub role: String,
}

impl Debug for EnrolmentBundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        f.debug_struct("EnrolmentBundle").field("node", &self.node).field("role", &self.role).finish()
    }
}

/// How far a node has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The gateway's or host's id.
    pub node: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Last revision that it has written into its tables.
    pub acked: u64,
    /// The revision it should have.
    pub current: u64,
    /// Its stream is up.
    pub connected: bool,
    /// When it was last heard of, milliseconds of the UNIX epoch; 0: never.
    #[serde(default)]
    pub last_seen_ms: u64,
    /// What it could not write.
    #[serde(default)]
    pub failures: Vec<String>,
    /// Gateways: share of the forwarding cores' time, in thousandths.
    #[serde(default)]
    pub cpu_permille: u32,
    /// Gateways: share of table memory in use, in thousandths.
    #[serde(default)]
    pub memory_permille: u32,
    /// Gateways: every flow is offloaded, for the load is high.
    #[serde(default)]
    pub offload_all: bool,
}

/// A cluster's key that was renewed out of turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyRotation {
    /// Milliseconds of the UNIX epoch: nodes seal with it from then on.
    pub valid_from_ms: u64,
    /// Nothing that is sealed with another one later is accepted.
    pub others_end_ms: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HappenedEvent {
    /// Grows with time.
    pub id: u64,
    /// Milliseconds of the UNIX epoch.
    pub time_ms: u64,
    /// Like `vpc_moved`.
    pub kind: String,
    /// Id of the object that it is about.
    pub subject: String,
    /// One sentence.
    pub text: String,
    /// As its kind has it.
    pub details: serde_json::Value,
}
