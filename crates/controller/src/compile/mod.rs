//! Compiles changes and snapshots into the table entries of each node. Pure: no store, no clock, no network.
//!
//! [`State`] is the topology at a revision, without instances. A change advances it and yields [`Compiled`],
//! the entries by [`Target`]. A snapshot is computed from the same state by the same functions, so both give
//! the same entries.
//!
//! A host has a VRF only for VPCs in which it has ports. The VRF is sent with the first ports, and removed
//! with the last port of its VNI. In the same way it has the policies of the identities of its ports, which it removes
//! itself. [`HostView`], one for each host's stream, records which host has which VNI and which identities.

mod clusters;
mod entries;
mod host;
mod intent;
mod internet;
mod meters;
mod model;
mod paths;
mod security;
mod services;
mod shared;
mod state;
mod zones;

pub use clusters::{for_host, group_id, no_keys, vip_mac};
pub use host::{HostStep, HostView, Lost};
pub use intent::{Comparison, Intent};
pub use meters::{ChangedUses, MeterUses, meter_id};
pub use model::Model;
pub use services::{ServicesByVni, port_changes, service_id};
pub use shared::{ClusterUpdates, CompiledClusters};
pub use state::State;
pub use zones::Zones;

use sluice_southbound::Update;
use sluice_store::{Gateway, NodeId};
use sluice_types::{ClusterId, GatewayId, HostId, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Address family of a host's VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// An IPv4 VTEP.
    V4,
    /// An IPv6 VTEP.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The nodes for which entries are. Entries are sent in the order of this type, so that a node gets general
/// entries before those that refer to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Every gateway of every cluster.
    AllGateways,
    /// The gateways that have a cluster's entries: its members, and gateways that move between it and another
    /// cluster.
    Cluster(ClusterId),
    /// The members of a cluster. For what a node has of its own cluster only.
    Members(ClusterId),
    /// Hosts whose VTEP is of this family.
    AllHosts(Family),
    /// Hosts that have a port in a VNI with a mount of the service that has this id.
    ServiceHosts(u32),
    /// Hosts that have a port in this VNI.
    HostsOf(Vni),
    /// Hosts that have a port in this VNI whose instance has this identity, and do not have its policy yet or have one
    /// that the step changes ([`HostChanges::changed_policies`]).
    Policy(Vni, u16),
    /// One host.
    Host(HostId),
}

/// Targets that together are all nodes.
const ALL_NODES: [Target; 3] =
    [Target::AllGateways, Target::AllHosts(Family::V4), Target::AllHosts(Family::V6)];

/// Numbers of ports that a step adds to and removes from a host, by VNI and identity. A port that gets another identity
/// is added and removed. Identity 0 has no policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Number of created ports.
    pub added: BTreeMap<(Vni, u16), u64>,
    /// Number of removed ports.
    pub removed: BTreeMap<(Vni, u16), u64>,
}

/// What a step says of hosts besides entries: each stream to a host advances its [`HostView`] by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostChanges {
    /// Port counts by host.
    pub ports: HashMap<HostId, PortCounts>,
    /// The clusters of each VPC that changed or got ports.
    pub clusters_by_vni: BTreeMap<Vni, BTreeSet<ClusterId>>,
    /// Services and addresses of mounts of each VPC in which they changed, or which came to other hosts.
    pub services_by_vni: ServicesByVni,
    /// Clusters whose keys changed.
    pub changed_keys: BTreeSet<ClusterId>,
    /// Policies that changed for hosts that have them already, by VNI and identity.
    pub changed_policies: BTreeSet<(Vni, u16)>,
    /// VNIs whose ports changed in a way that only the store can describe, or whose policies are too large for a step:
    /// hosts that have or get such ports are sent a snapshot.
    pub resync: BTreeSet<Vni>,
}

/// Nodes that receive entries, or that must acknowledge them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeGroup {
    /// The gateways of a cluster.
    Gateways(ClusterId),
    /// One host.
    Host(HostId),
    /// All hosts.
    AllHosts,
}

/// An order within a revision: some nodes are sent it after others have acknowledged it. The wait ends with a
/// time-out if they do not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The nodes that are sent the revision later.
    pub held: NodeGroup,
    /// The nodes that must acknowledge the revision first.
    pub awaited: NodeGroup,
}

/// The clusters of a gateway from a revision on. A gateway that moves has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The cluster of which it is a member.
    pub cluster: ClusterId,
    /// While it moves: the other cluster whose entries it has.
    pub other: Option<ClusterId>,
    /// The set of clusters changed, so the gateway needs a snapshot.
    pub resync: bool,
}

impl Membership {
    /// The clusters of a gateway as stored.
    pub fn of(gateway: &Gateway) -> Self {
        let other = gateway.moving.map(|moving| moving.other);
        Self { cluster: gateway.cluster, other, resync: false }
    }

    /// All clusters whose entries it has.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> + use<> {
        std::iter::once(self.cluster).chain(self.other)
    }

    /// The targets whose entries it is sent.
    pub fn targets(&self) -> Vec<Target> {
        let entries = self.clusters().map(Target::Cluster);
        [Target::AllGateways].into_iter().chain(entries).chain([Target::Members(self.cluster)]).collect()
    }
}

/// The entries and instructions that result from one revision.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// The revision.
    pub revision: u64,
    /// Entries by target. The updates carry no revision number.
    pub updates: BTreeMap<Target, Update>,
    /// For [`HostView`].
    pub hosts: HostChanges,
    /// Deleted nodes.
    pub removed_nodes: Vec<NodeId>,
    /// Gateways whose move between clusters starts, continues or ends.
    pub memberships: BTreeMap<GatewayId, Membership>,
    /// Number of created instances, for the timeline.
    pub created: usize,
    /// Which nodes must acknowledge the revision before which others are sent it.
    pub gates: Vec<Gate>,
}

impl Compiled {
    fn of(&mut self, target: Target) -> &mut Update {
        self.updates.entry(target).or_default()
    }
}
