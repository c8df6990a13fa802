//! What a host's stream must remember: hosts hold a VRF only for VPCs that they have
//! ports in, and which host has which VNI is known here, one view per stream.

use super::{Family, PortCounts, Target};
use sluice_southbound::Port;
use sluice_types::{HostId, Vni};
use std::collections::{BTreeMap, BTreeSet};

/// What a host has: enough to know which general changes concern it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    host: HostId,
    family: Family,
    ports: BTreeMap<Vni, u64>,
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
    },
    /// A snapshot is due.
    Resync,
}

impl HostView {
    /// A host without ports.
    pub fn new(host: HostId, family: Family) -> Self {
        Self { host, family, ports: BTreeMap::new() }
    }

    /// Counts ports of a snapshot.
    pub fn add(&mut self, ports: &[Port]) {
        for port in ports {
            *self.ports.entry(port.vni).or_default() += 1;
        }
    }

    /// Advances by a step: its ports for this host, and the targets it has
    /// entries for.
    pub fn step<'a>(
        &mut self,
        counts: Option<&PortCounts>,
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
                removed_vnis.push(*vni);
            }
        }
        let mine = |target: &&Target| match target {
            Target::AllHosts(family) => *family == self.family,
            Target::HostsOf(vni) => self.ports.contains_key(vni),
            Target::Host(host) => *host == self.host,
            _ => false,
        };
        HostStep::Send { targets: has.into_iter().filter(mine).copied().collect(), removed_vnis }
    }
}
