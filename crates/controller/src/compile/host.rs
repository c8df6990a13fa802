//! What a host's stream must remember: hosts hold a VRF only for VPCs that they have
//! ports in, and keys only of these VPCs' clusters. Which host has which VNI is known
//! here, one view per stream.

use super::{Family, PortCounts, Target};
use sluice_southbound::Port;
use sluice_types::{ClusterId, HostId, Vni};
use std::collections::{BTreeMap, BTreeSet};

/// What a host has: enough to know which general changes concern it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    host: HostId,
    family: Family,
    ports: BTreeMap<Vni, u64>,
    /// The clusters of its VPCs.
    placed: BTreeMap<Vni, BTreeSet<ClusterId>>,
    /// Clusters whose keys it has.
    keys: BTreeSet<ClusterId>,
}

/// What a step means for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostStep {
    /// These targets' entries, and then these VNIs are gone.
    Send {
        /// In order.
        targets: Vec<Target>,
        /// Their last ports went.
        removed_vnis: Vec<Vni>,
        /// It needs these clusters' keys, before all that, and has not got them.
        keys: BTreeSet<ClusterId>,
    },
    /// A snapshot is due.
    Resync,
}

impl HostView {
    /// A host without ports.
    pub fn new(host: HostId, family: Family) -> Self {
        Self { host, family, ports: BTreeMap::new(), placed: BTreeMap::new(), keys: BTreeSet::new() }
    }

    /// Counts ports of a snapshot.
    pub fn add(&mut self, ports: &[Port]) {
        for port in ports {
            *self.ports.entry(port.vni).or_default() += 1;
        }
    }

    /// Takes in where VPCs are: those that this host has ports in count.
    pub fn place(&mut self, placed: &BTreeMap<Vni, BTreeSet<ClusterId>>) {
        let mine = placed.iter().filter(|(vni, _)| self.ports.contains_key(vni));
        self.placed.extend(mine.map(|(vni, clusters)| (*vni, clusters.clone())));
    }

    /// The clusters that its VPCs are on, or come to or go from.
    pub fn clusters(&self) -> BTreeSet<ClusterId> {
        self.placed.values().flatten().copied().collect()
    }

    /// It has the keys of these clusters now, and no others.
    pub fn set_keys(&mut self, clusters: BTreeSet<ClusterId>) {
        self.keys = clusters;
    }

    /// Clusters whose keys it has, and no longer needs.
    pub fn idle_keys(&self) -> BTreeSet<ClusterId> {
        self.keys.difference(&self.clusters()).copied().collect()
    }

    /// A cluster's keys were taken from it.
    pub fn forget_keys(&mut self, cluster: ClusterId) {
        self.keys.remove(&cluster);
    }

    /// Advances by a step: its ports for this host, where the step's VPCs are, and the
    /// targets it has entries for.
    pub fn step<'a>(
        &mut self,
        counts: Option<&PortCounts>,
        placed: &BTreeMap<Vni, BTreeSet<ClusterId>>,
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
                self.placed.remove(vni);
                removed_vnis.push(*vni);
            }
        }
        self.place(placed);
        let keys: BTreeSet<_> = self.clusters().difference(&self.keys).copied().collect();
        self.keys.extend(&keys);
        let mine = |target: &&Target| match target {
            Target::AllHosts(family) => *family == self.family,
            Target::HostsOn(cluster) => self.keys.contains(cluster),
            Target::HostsOf(vni) => self.ports.contains_key(vni),
            Target::Host(host) => *host == self.host,
            _ => false,
        };
        HostStep::Send { targets: has.into_iter().filter(mine).copied().collect(), removed_vnis, keys }
    }
}
