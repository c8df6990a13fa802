//! Intent to entries: what a change, or the whole picture, means for the
//! tables of each node. Pure: no store, no clock, no network.
//!
//! [`State`] is the topology at a revision (everything but instances). A change
//! advances it and yields [`Compiled`]: entries by [`Target`]. A snapshot is read
//! off the same state by the same functions, so that both agree.
//!
//! Hosts hold a VRF only for VPCs that they have ports in. It travels with the
//! instances' creation, and goes when the last port of its VNI goes; which host
//! has which VNI is [`HostView`]'s to know, one per host's stream.

mod clusters;
mod entries;
mod host;
mod model;
mod paths;
mod shared;
mod state;
mod zones;

pub use clusters::{for_hosts, group_id, vip_mac};
pub use host::{HostStep, HostView};
pub use model::Model;
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
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The nodes that entries are for. The order is the order of sending: a node learns what
/// is general before what refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Every gateway of every cluster.
    AllGateways,
    /// The gateways that have a cluster's entries: its own, and those on their way between
    /// it and another.
    Cluster(ClusterId),
    /// The gateways of a cluster: what a node keeps of its own cluster only.
    Members(ClusterId),
    /// Hosts whose VTEP is of this family.
    AllHosts(Family),
    /// Hosts that have a port in a VNI of a VPC on this cluster.
    HostsOn(ClusterId),
    /// Hosts that have a port in this VNI.
    HostsOf(Vni),
    /// One host.
    Host(HostId),
}

/// All nodes, whatever they are.
const ALL_NODES: [Target; 3] =
    [Target::AllGateways, Target::AllHosts(Family::V4), Target::AllHosts(Family::V6)];

/// Ports that come to and go from a host, by VNI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Created.
    pub added: BTreeMap<Vni, u64>,
    /// Removed.
    pub removed: BTreeMap<Vni, u64>,
}

/// Nodes that are told of something, or must have written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeGroup {
    /// The gateways of a cluster.
    Gateways(ClusterId),
    /// One host.
    Host(HostId),
    /// All hosts.
    AllHosts,
}

/// An order within a revision: some are told of it when others have acknowledged it.
/// It is kept as far as those others answer soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Who waits.
    pub held: NodeGroup,
    /// The nodes that the entries are for.
    pub awaited: NodeGroup,
}

/// Where a gateway is since a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The cluster that it is a member of.
    pub cluster: ClusterId,
    /// A second one whose entries it has.
    pub other: Option<ClusterId>,
    /// It is to have entries that it had not, or the contrary: a snapshot is due.
    pub resync: bool,
}

impl Seat {
    /// Of a gateway as it is.
    pub fn of(gateway: &Gateway) -> Self {
        let other = gateway.moving.map(|moving| moving.other);
        Self { cluster: gateway.cluster, other, resync: false }
    }

    /// The clusters whose entries it has.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> + use<> {
        std::iter::once(self.cluster).chain(self.other)
    }

    /// What of a step is for it.
    pub fn targets(&self) -> Vec<Target> {
        let entries = self.clusters().map(Target::Cluster);
        [Target::AllGateways].into_iter().chain(entries).chain([Target::Members(self.cluster)]).collect()
    }
}

/// What one revision means.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// The revision.
    pub revision: u64,
    /// Entries by target, without revision.
    pub updates: BTreeMap<Target, Update>,
    /// By host, for its [`HostView`].
    pub ports: HashMap<HostId, PortCounts>,
    /// Clusters of the VPCs that changed or got ports, for [`HostView`]s.
    pub placed: BTreeMap<Vni, BTreeSet<ClusterId>>,
    /// Ports of these VNIs changed in a way that only the store can spell out:
    /// hosts that have them are sent a snapshot.
    pub resync: BTreeSet<Vni>,
    /// Nodes that are no more.
    pub removed_nodes: Vec<NodeId>,
    /// Gateways that begin, go on with, or end a move from cluster to cluster.
    pub seats: BTreeMap<GatewayId, Seat>,
    /// Instances created, for the log.
    pub created: usize,
    /// Which nodes must acknowledge before which others are sent the step.
    pub gates: Vec<Gate>,
}

impl Compiled {
    fn of(&mut self, target: Target) -> &mut Update {
        self.updates.entry(target).or_default()
    }
}
