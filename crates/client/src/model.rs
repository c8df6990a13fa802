//! The objects of the API as they are sent in JSON. A field that the API may omit is an `Option`. Ids are
//! typed, so that the id of a VPC cannot be used as that of a subnet.

use crate::InstanceMigration;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sluice_types::{
    AddressPair, ClusterId, GatewayId, HostId, IdError, InstanceId, IpNet, Ipv4Net, Ipv6Mode, Ipv6Net,
    MacAddr, MeterId, NetworkClassId, PeeringId, Qos, RouteId, RouteTableId, SecurityGroupId, SubnetId,
    TenantId, Vni, VpcId,
};
use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A kind of object that the API serves under `/v1/PATH`.
pub trait Resource: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Typed identifier.
    type Id: Copy + Debug + Display + FromStr<Err = IdError> + PartialEq + Ord + Send + Sync;
    /// Last part of the path of the collection.
    const PATH: &'static str;
    /// Name of the kind in messages to people: `route table`.
    const NOUN: &'static str;
    /// End of the error text for an ambiguous name: what else than the id selects one object.
    const NARROW: &'static str;
    /// True if the API can filter by name. Otherwise the client searches the whole list.
    const NAMED: bool = true;
    /// Identifier of this object.
    fn id(&self) -> Self::Id;
    /// Name of this object; for a route, which has no name, its destination.
    fn name(&self) -> String;
    /// Revision of the last change of this object: its ETag.
    fn revision(&self) -> u64;
    /// True if every node that needs this object has programmed its revision.
    fn programmed(&self) -> bool;
    /// Entries of this object that nodes could not write.
    fn failures(&self) -> &[EntryFailure];
}

macro_rules! resource {
    ($type:ident, $id:ident, $path:literal, $noun:literal, $narrow:literal, $named:literal, |$this:ident| $name:expr) => {
        impl $crate::Resource for $type {
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
            fn failures(&self) -> &[$crate::EntryFailure] {
                &self.failures
            }
        }
    };
}

pub(crate) use resource;

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

/// An entry of an object that a node could not write. The node tries again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryFailure {
    /// Id of the gateway or host.
    pub node: String,
    /// The entry, like `endpoint 10.0.0.2 of VNI 7`.
    pub entry: String,
    /// Why the node could not write it.
    pub reason: String,
}

impl Display for EntryFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} has no {}: {}", self.node, self.entry, self.reason)
    }
}

/// A tenant: it owns VPCs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// Identifier, such as `tenant-7`.
    pub id: TenantId,
    /// Name, unique in the cloud.
    pub name: String,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A cluster: gateways that hold the same tables, and the vIPs that they divide among themselves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Identifier, such as `cluster-7`.
    pub id: ClusterId,
    /// Name, unique in the cloud.
    pub name: String,
    /// vIPs in order of their slots, which is also the order of the hash buckets.
    pub vips: Vec<ClusterVip>,
    /// Interval between two hellos of a gateway, in milliseconds.
    pub hello_interval_ms: u16,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

impl Cluster {
    /// Addresses of the vIPs, in order of their slots.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.vips.iter().map(|vip| vip.address).collect()
    }
}

/// A vIP of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterVip {
    /// Number of the vIP in its cluster, 0 to 127. Slot and MAC do not change as long as the cluster has the
    /// vIP.
    pub slot: u8,
    /// Underlay address that hosts send to.
    pub address: IpAddr,
    /// MAC address that the owner announces by ARP and neighbor discovery.
    pub mac: MacAddr,
    /// Gateway that owns the vIP as long as that gateway is ready. `None` if the cluster has no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_owner: Option<GatewayId>,
    /// Gateway that owns the vIP now, as far as the controller knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<GatewayId>,
}

/// A gateway node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gateway {
    /// Identifier, such as `gw-7`.
    pub id: GatewayId,
    /// Name, unique in the cloud.
    pub name: String,
    /// Cluster that the gateway is a member of.
    pub cluster: ClusterId,
    /// Underlay IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep4: Option<Ipv4Addr>,
    /// Underlay IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep6: Option<Ipv6Addr>,
    /// The gateway must own no vIP if another gateway of its cluster can.
    #[serde(default)]
    pub draining: bool,
    /// vIPs that the gateway owns now, as far as the controller knows.
    #[serde(default)]
    pub vips: Vec<IpAddr>,
    /// State of the gateway, as far as the controller knows: `ready`, `failed`, `draining` and others.
    #[serde(default)]
    pub state: String,
    /// Cluster that the gateway is moving to. It is still a member of its old cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<ClusterId>,
    /// Cluster that the gateway has left. It still forwards for the VPCs of that cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_from: Option<ClusterId>,
    /// During a move: the conditions that the next step of the move is waiting for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub move_waiting_for: Vec<String>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A host: a machine that runs instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Identifier, such as `host-7`.
    pub id: HostId,
    /// Name, unique in the cloud.
    pub name: String,
    /// Underlay address of the VXLAN tunnel endpoint of the host.
    pub vtep: IpAddr,
    /// True if the host runs `sluice vswitch`, false if it is a foreign VXLAN endpoint.
    pub agent: bool,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A virtual private cloud.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vpc {
    /// Identifier, such as `vpc-7`.
    pub id: VpcId,
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns the VPC.
    pub tenant: TenantId,
    /// Cluster that carries the VPC.
    pub cluster: ClusterId,
    /// VXLAN network identifier.
    pub vni: Vni,
    /// MTU of the instances' interfaces: size of the IP packet in bytes.
    pub mtu: u16,
    /// A flow of at least this rate, in kbit/s, is offloaded to a direct path. `None` is the threshold of the
    /// gateways, 4294967295 disables offloading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_kbps: Option<u32>,
    /// Meter of its Internet traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet_meter: Option<MeterId>,
    /// During a move: cluster that the VPC is moving to. Both clusters have its entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<ClusterId>,
    /// During a move: `filling` or `switching`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_phase: Option<String>,
    /// During a move: names of the nodes that the next step of the move is waiting for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub move_waiting_for: Vec<String>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A subnet of a VPC: an IPv4 prefix, an IPv6 prefix or both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subnet {
    /// Identifier, such as `subnet-7`.
    pub id: SubnetId,
    /// Name, unique in the VPC.
    pub name: String,
    /// VPC that contains the object.
    pub vpc: VpcId,
    /// IPv4 prefix, if the subnet has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Net>,
    /// IPv6 prefix, if the subnet has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Net>,
    /// How instances get their IPv6 addresses, if the subnet has an IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_mode: Option<Ipv6Mode>,
    /// DNS resolvers that DHCP offers.
    #[serde(default)]
    pub dns: Vec<Ipv4Addr>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// An instance: the port of a VM in one subnet, on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Identifier, such as `inst-7`.
    pub id: InstanceId,
    /// Name, unique in the VPC.
    pub name: String,
    /// VPC that contains the object.
    pub vpc: VpcId,
    /// Subnet that contains the addresses of the instance.
    pub subnet: SubnetId,
    /// Host that the instance runs on.
    pub host: HostId,
    /// MAC address of the instance's interface.
    pub mac: MacAddr,
    /// IPv4 address, if the subnet has an IPv4 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address, if the subnet has an IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Security groups in order of creation. Empty: the port is not filtered.
    #[serde(default)]
    pub security_groups: Vec<SecurityGroupId>,
    /// Addresses besides `ipv4` and `ipv6`, in ascending order.
    #[serde(default)]
    pub secondary_addresses: Vec<IpAddr>,
    /// Prefixes of which the instance has every address, in ascending order.
    #[serde(default)]
    pub delegated_prefixes: Vec<IpNet>,
    /// Addresses that it may have in turn with others, in order of address.
    #[serde(default)]
    pub address_pairs: Vec<HeldPair>,
    /// Whether the source addresses of what it sends are checked.
    #[serde(default = "protected")]
    pub spoofing_protection: bool,
    /// Marking and rate limit.
    #[serde(default)]
    pub qos: Qos,
    /// Its network class.
    #[serde(default)]
    pub network_class: Option<NetworkClassId>,
    /// Its live migration to another host, if it migrates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<InstanceMigration>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

fn protected() -> bool {
    true
}

/// An address that an instance may have in turn with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPair {
    /// The address.
    pub address: IpAddr,
    /// The MAC address that belongs to it, if it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// The instance announced the address last, and gets the packets to it.
    pub held: bool,
}

impl HeldPair {
    /// The pair as a request has it.
    #[must_use]
    pub fn pair(&self) -> AddressPair {
        AddressPair { address: self.address, mac: self.mac }
    }
}

/// A route table: the routes of a VPC in addition to those of its subnets and peerings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteTable {
    /// Identifier, such as `rtb-7`.
    pub id: RouteTableId,
    /// Name, unique in the VPC.
    pub name: String,
    /// VPC that contains the object.
    pub vpc: VpcId,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// What a route does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTarget {
    /// Sends the packets to the other VPC of this peering.
    Peering(PeeringId),
    /// Drops the packets.
    Drop,
    /// Sends the packets to the Internet, if their sender has a public address or the VPC a NAT gateway.
    Internet,
}

/// A route of a route table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// Identifier, such as `route-7`.
    pub id: RouteId,
    /// Route table that contains the route.
    pub table: RouteTableId,
    /// Destination prefix; a table has one route for each prefix.
    pub destination: IpNet,
    /// What the route does with matching packets.
    pub target: RouteTarget,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A peering: two VPCs of one tenant that can reach each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peering {
    /// Identifier, such as `peer-7`.
    pub id: PeeringId,
    /// Name, unique in the tenant.
    pub name: String,
    /// The two VPCs.
    pub vpcs: [VpcId; 2],
    /// The meters of the sides of these VPCs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meters: BTreeMap<VpcId, MeterId>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// Response to a bulk creation of instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BulkCreated {
    /// Number of instances created by this call.
    pub created: u64,
    /// Number of instances that existed before with the same content.
    pub existing: u64,
    /// Lowest id created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<InstanceId>,
    /// Highest id created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<InstanceId>,
    /// Revision of the bulk creation.
    pub revision: u64,
}

/// What a node needs to join the cloud. It is secret: a process that presents the token is accepted as this
/// node, once.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct EnrollmentBundle {
    /// One-time token, hexadecimal.
    pub token: String,
    /// Certificate of the controller's certificate authority, PEM.
    pub ca_pem: String,
    /// HOST:PORT of the controller's southbound listener.
    pub controller: String,
    /// Name that the controller's certificate must have.
    pub server_name: String,
    /// Id of the node, such as `gw-7`.
    pub node: String,
    /// `gateway` or `host`.
    pub role: String,
}

impl Debug for EnrollmentBundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token must not appear in logs.
        f.debug_struct("EnrollmentBundle").field("node", &self.node).field("role", &self.role).finish()
    }
}

/// How full a table of a gateway is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeTable {
    /// Name of the table.
    pub table: String,
    /// Entries in use.
    pub used: u64,
    /// Entries that certainly fit, with those in use.
    pub capacity: u64,
}

/// Progress of a node: which revisions it has programmed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Id of the gateway or host.
    pub node: String,
    /// Name of the gateway or host; `None` if it was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Last revision that the node acknowledged: all changes up to it are in the node's tables.
    pub acknowledged_revision: u64,
    /// Latest revision that the node needs.
    pub current: u64,
    /// True if the node has a stream to the controller.
    pub connected: bool,
    /// Time of the last report, in milliseconds of the UNIX epoch; 0 if there was none.
    #[serde(default)]
    pub last_seen_ms: u64,
    /// Entries that the node could not write, as it reported last.
    #[serde(default)]
    pub failures: Vec<String>,
    /// Gateways: how full the tables are.
    #[serde(default)]
    pub tables: Vec<NodeTable>,
    /// Gateways: busy time of the forwarding cores, in thousandths.
    #[serde(default)]
    pub cpu_permille: u32,
    /// Gateways: table memory in use, in thousandths.
    #[serde(default)]
    pub memory_permille: u32,
    /// Gateways: every flow is offloaded because the load is high.
    #[serde(default)]
    pub offload_all: bool,
}

/// Result of a key rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyRotation {
    /// Time from which nodes authenticate messages with the new key, in milliseconds of the UNIX epoch.
    pub valid_from_ms: u64,
    /// Time at which all previous keys expire, in milliseconds of the UNIX epoch.
    pub previous_keys_expire_ms: u64,
}

/// An entry of the event log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HappenedEvent {
    /// Number of the event; later events have higher numbers.
    pub id: u64,
    /// Time of the event, in milliseconds of the UNIX epoch.
    pub time_ms: u64,
    /// Kind of event, such as `vpc_moved`.
    pub kind: String,
    /// Id of the object that the event is about.
    pub subject: String,
    /// One sentence that describes the event.
    pub text: String,
    /// Further fields, which depend on the kind.
    pub details: serde_json::Value,
}

/// A node that may still have entries of a deleted object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AwaitedNode {
    /// Id of the gateway or host.
    pub node: String,
    /// Its name.
    pub name: String,
    /// True if the node has a stream to the controller.
    pub connected: bool,
    /// Time of its last message, in milliseconds of the UNIX epoch; 0 if there was none.
    pub last_seen_ms: u64,
    /// Last revision that it acknowledged.
    pub acknowledged_revision: u64,
    /// Entries that it could not write.
    pub failures: Vec<String>,
}

impl AwaitedNode {
    /// Why it is awaited, for messages to people. `revision` is that of the deletion.
    pub fn reason(&self, revision: u64) -> String {
        let Self { node, name, acknowledged_revision: acknowledged, .. } = self;
        if !self.connected {
            return match self.last_seen_ms {
                0 => format!("{node} (`{name}`) has never connected"),
                seen => {
                    format!("{node} (`{name}`) is not connected, last seen {} s ago", seconds_since(seen))
                }
            };
        }
        match self.failures.first() {
            Some(failure) => format!("{node} (`{name}`) could not write all entries: {failure}"),
            None => format!("{node} (`{name}`) has acknowledged revision {acknowledged} of {revision}"),
        }
    }
}

fn seconds_since(time_ms: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_secs().saturating_sub(time_ms / 1000)
}

/// What has become of the entries of a deleted object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Removal {
    /// Revision of the deletion.
    pub revision: u64,
    /// No node has entries of the object. Its addresses or its VNI can be used again.
    pub removed: bool,
    /// The nodes that may still have entries.
    pub waiting: Vec<AwaitedNode>,
}

/// A deletion that some node has not acknowledged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingRemoval {
    /// Revision of the deletion.
    pub revision: u64,
    /// Kind of the deleted object in words.
    pub kind: String,
    /// Name that it had; of a route, its prefix.
    pub name: String,
    /// Time of the deletion, in milliseconds of the UNIX epoch.
    pub deleted_ms: u64,
    /// The nodes that may still have entries.
    pub waiting: Vec<AwaitedNode>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awaited_nodes_are_named_with_the_reason() {
        let node = AwaitedNode {
            node: "gw-2".into(),
            name: "west".into(),
            connected: true,
            last_seen_ms: 1,
            acknowledged_revision: 7,
            failures: vec![],
        };
        assert_eq!(node.reason(9), "gw-2 (`west`) has acknowledged revision 7 of 9");
        let full = AwaitedNode { failures: vec!["route: the tables are full".into()], ..node.clone() };
        assert_eq!(full.reason(9), "gw-2 (`west`) could not write all entries: route: the tables are full");
        let gone = AwaitedNode { connected: false, ..node };
        let reason = gone.reason(9);
        assert!(
            reason.starts_with("gw-2 (`west`) is not connected, last seen ") && reason.ends_with(" s ago")
        );
        let never = AwaitedNode { last_seen_ms: 0, ..gone };
        assert_eq!(never.reason(9), "gw-2 (`west`) has never connected");
    }
}
