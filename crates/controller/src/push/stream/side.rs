//! What differs between streams to gateways and streams to hosts: what the stream remembers of the node,
//! and which parts of a step are for it.

use super::super::steps::{Step, encode};
use crate::compile::{
    ClusterUpdates, CompiledClusters, HostStep, HostView, Lost, Membership, NodeGroup, for_host, no_keys,
};
use bytes::Bytes;
use sluice_southbound::{ClusterKeys, Group, Update};
use sluice_store::{Gateway, NodeId};
use sluice_types::{ClusterId, GatewayId, HostId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A host keeps a cluster's keys for this time after its last VPC of the cluster was removed. It removes a
/// network a minute later, and until then tells senders that instances have left.
const KEYS_LINGER: Duration = Duration::from_secs(120);

/// The node at the other end of a stream, and what the stream remembers of it.
pub enum Side {
    /// A gateway.
    Gateway(GatewaySide),
    /// A host.
    Host(HostSide),
}

/// A gateway's part of a stream's state.
pub struct GatewaySide {
    /// The id of the node.
    pub id: GatewayId,
    /// The clusters whose entries the gateway has.
    pub membership: Membership,
}

/// A host's part of a stream's state.
pub struct HostSide {
    /// The id of the node.
    pub id: HostId,
    /// Ports, VPCs and keys of the host; `None` before its first snapshot.
    pub view: Option<HostView>,
    /// Clusters whose keys the host no longer needs, and since when.
    pub idle_keys: BTreeMap<ClusterId, Instant>,
    /// In a model with zones: the groups that the host was last sent.
    pub zone_groups: Vec<Group>,
}

/// Keys of clusters for the host with this VTEP, as of the last compiled revision. They may be newer than a step.
fn keys_of(updates: &ClusterUpdates, vtep: IpAddr, clusters: &BTreeSet<ClusterId>) -> Update {
    let of_cluster = |cluster: &ClusterId| match updates.get(cluster) {
        Some(update) => update.keys.iter().map(|keys| for_host(keys, vtep)).collect(),
        None => vec![no_keys(*cluster)],
    };
    Update { keys: clusters.iter().flat_map(of_cluster).collect(), ..Update::default() }
}

impl Side {
    /// A stream to a gateway.
    pub fn gateway(gateway: &Gateway) -> Self {
        Self::Gateway(GatewaySide { id: gateway.id, membership: Membership::of(gateway) })
    }

    /// A stream to a host.
    pub fn host(id: HostId) -> Self {
        let (idle_keys, zone_groups) = (BTreeMap::new(), Vec::new());
        Self::Host(HostSide { id, view: None, idle_keys, zone_groups })
    }

    /// The id of the node.
    pub fn node(&self) -> NodeId {
        match self {
            Self::Gateway(gateway) => NodeId::Gateway(gateway.id),
            Self::Host(host) => NodeId::Host(host.id),
        }
    }

    /// Whether the stream starts with a snapshot even if the log reaches back far enough. A host's does:
    /// reading one says which VPCs concern it.
    pub fn starts_with_snapshot(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// Whether the node belongs to a group.
    pub fn is_in(&self, group: NodeGroup) -> bool {
        match (self, group) {
            (Self::Gateway(gateway), NodeGroup::Gateways(id)) => {
                gateway.membership.clusters().any(|cluster| cluster == id)
            }
            (Self::Host(host), NodeGroup::Host(id)) => host.id == id,
            (Self::Host(_), NodeGroup::AllHosts) => true,
            _ => false,
        }
    }

    /// The keys and vIP plan that the node needs.
    pub fn cluster_update(&mut self, updates: &ClusterUpdates) -> Update {
        match self {
            Self::Gateway(GatewaySide { membership, .. }) => {
                let mut update = updates.get(&membership.cluster).cloned().unwrap_or_default();
                // A gateway is a member of one cluster and has only that cluster's keys.
                update.keys.extend(membership.other.map(no_keys));
                update
            }
            Self::Host(HostSide { view: Some(view), idle_keys, .. }) => {
                let needed = view.clusters();
                // The host may have other keys. They are removed later, because its removed networks may
                // still need them.
                view.set_keys(needed.clone());
                let others = updates.keys().filter(|cluster| !needed.contains(*cluster));
                idle_keys.extend(others.map(|cluster| (*cluster, Instant::now())));
                keys_of(updates, view.vtep(), &needed)
            }
            Self::Host(HostSide { view: None, .. }) => Update::default(),
        }
    }

    /// The messages of a step for this node; `None` if a snapshot is due instead.
    pub fn parts(&mut self, step: &Step, compiled: &CompiledClusters) -> Option<Vec<Bytes>> {
        let mut keys = Update::default();
        let (targets, lost) = match self {
            Self::Gateway(gateway) => match step.memberships.get(&gateway.id) {
                Some(new) if new.resync => return None,
                new => (new.copied().unwrap_or(gateway.membership).targets(), Lost::default()),
            },
            Self::Host(host) => {
                let view = host.view.as_mut()?;
                match view.step(&step.hosts, step.parts.keys()) {
                    HostStep::Resync => return None,
                    HostStep::Send { targets, lost, keys: needed } => {
                        keys = keys_of(&compiled.updates(), view.vtep(), &needed);
                        (targets, lost)
                    }
                }
            }
        };
        let mut parts = encode(keys);
        parts.extend(targets.iter().filter_map(|target| step.parts.get(target)).flatten().cloned());
        let Lost { vnis, service_addresses, services } = lost;
        // Nothing is encoded if nothing is lost.
        parts.extend(encode(Update {
            removed_vnis: vnis,
            removed_service_addresses: service_addresses,
            removed_services: services,
            ..Update::default()
        }));
        Some(parts)
    }
}

impl HostSide {
    /// Forgets the keys that the host has not needed for a while, and returns their removal.
    pub fn withdraw_keys(&mut self) -> Vec<ClusterKeys> {
        let Some(view) = &mut self.view else { return Vec::new() };
        let needed = view.clusters();
        self.idle_keys.retain(|cluster, _| !needed.contains(cluster));
        for cluster in view.idle_keys() {
            self.idle_keys.entry(cluster).or_insert_with(Instant::now);
        }
        let old =
            |(cluster, since): (&ClusterId, &Instant)| (since.elapsed() >= KEYS_LINGER).then_some(*cluster);
        let expired: Vec<ClusterId> = self.idle_keys.iter().filter_map(old).collect();
        for cluster in &expired {
            view.forget_keys(*cluster);
            self.idle_keys.remove(cluster);
        }
        expired.into_iter().map(no_keys).collect()
    }
}
