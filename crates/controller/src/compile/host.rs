//! What the stream to a host remembers about the host. A host has a VRF only for VPCs in which it has ports,
//! and keys only of the clusters of these VPCs. This file changes when another kind of entry is sent to some
//! hosts only.

use super::{Family, PortCounts, Target};
use sluice_southbound::Port;
use sluice_types::{ClusterId, HostId, Vni};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Ports, VPCs and keys of a host: enough to decide which entries of a step are for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    host: HostId,
    vtep: IpAddr,
    ports: BTreeMap<Vni, u64>,
    /// The clusters of each VPC in which the host has ports.
    clusters_by_vni: BTreeMap<Vni, BTreeSet<ClusterId>>,
    /// Clusters whose keys the host has.
    keys: BTreeSet<ClusterId>,
}

/// What a host is sent for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostStep {
    /// Send entries, then remove networks.
    Send {
        /// Targets of the step that include the host, in the order of sending.
        targets: Vec<Target>,
        /// Networks whose last port on the host was removed.
        removed_vnis: Vec<Vni>,
        /// Clusters whose keys the host needs and does not have, or whose keys changed. They are sent before
        /// the entries.
        keys: BTreeSet<ClusterId>,
    },
    /// The step is not enough: send a snapshot.
    Resync,
}

impl HostView {
    /// A host that has no ports.
    pub fn new(host: HostId, vtep: IpAddr) -> Self {
        Self { host, vtep, ports: BTreeMap::new(), clusters_by_vni: BTreeMap::new(), keys: BTreeSet::new() }
    }

    /// The VTEP of the host, on which its keys depend.
    pub fn vtep(&self) -> IpAddr {
        self.vtep
    }

    /// Counts the ports of a snapshot.
    pub fn add(&mut self, ports: &[Port]) {
        for port in ports {
            *self.ports.entry(port.vni).or_default() += 1;
        }
    }

    /// Records the clusters of VPCs. VPCs in which the host has no ports are ignored.
    pub fn set_vpc_clusters(&mut self, clusters: &BTreeMap<Vni, BTreeSet<ClusterId>>) {
        let mine = clusters.iter().filter(|(vni, _)| self.ports.contains_key(vni));
        self.clusters_by_vni.extend(mine.map(|(vni, ids)| (*vni, ids.clone())));
    }

    /// The clusters of its VPCs, including source and destination of VPCs that move.
    pub fn clusters(&self) -> BTreeSet<ClusterId> {
        self.clusters_by_vni.values().flatten().copied().collect()
    }

    /// Records that the host has the keys of exactly these clusters.
    pub fn set_keys(&mut self, clusters: BTreeSet<ClusterId>) {
        self.keys = clusters;
    }

    /// Clusters whose keys the host has and no longer needs.
    pub fn idle_keys(&self) -> BTreeSet<ClusterId> {
        self.keys.difference(&self.clusters()).copied().collect()
    }

    /// Records that a cluster's keys were removed from the host.
    pub fn forget_keys(&mut self, cluster: ClusterId) {
        self.keys.remove(&cluster);
    }

    /// Advances by a step. `counts` are the step's ports on this host, `clusters` the clusters of the VPCs
    /// that it changed, `changed_keys` the clusters whose keys it changed, and `has` the targets for which it has
    /// entries.
    pub fn step<'a>(
        &mut self,
        counts: Option<&PortCounts>,
        clusters: &BTreeMap<Vni, BTreeSet<ClusterId>>,
        changed_keys: &BTreeSet<ClusterId>,
        resync: &BTreeSet<Vni>,
        has: impl IntoIterator<Item = &'a Target>,
    ) -> HostStep {
        if resync.iter().any(|vni| self.ports.contains_key(vni)) {
            return HostStep::Resync;
        }
        let mut removed_vnis = Vec::new();
        for (vni, count) in counts.into_iter().flat_map(|counts| &counts.added) {
            *self.ports.entry(*vni).or_default() += count;
        }
        for (vni, count) in counts.into_iter().flat_map(|counts| &counts.removed) {
            let left = self.ports.get(vni).map_or(0, |have| have.saturating_sub(*count));
            if left > 0 {
                self.ports.insert(*vni, left);
            } else if self.ports.remove(vni).is_some() {
                self.clusters_by_vni.remove(vni);
                removed_vnis.push(*vni);
            }
        }
        self.set_vpc_clusters(clusters);
        let mut keys: BTreeSet<_> = self.clusters().difference(&self.keys).copied().collect();
        keys.extend(self.keys.intersection(changed_keys));
        self.keys.extend(&keys);
        let mine = |target: &&Target| match target {
            Target::AllHosts(family) => *family == Family::of(self.vtep),
            Target::HostsOf(vni) => self.ports.contains_key(vni),
            Target::Host(host) => *host == self.host,
            _ => false,
        };
        HostStep::Send { targets: has.into_iter().filter(mine).copied().collect(), removed_vnis, keys }
    }
}
