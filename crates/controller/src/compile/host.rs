//! What the stream to a host remembers about the host. A host has a VRF only for VPCs in which it has ports, keys
//! only of the clusters of these VPCs, and policies only of the identities of its ports. This file changes when another kind of entry is sent to some
//! hosts only.

use super::{Family, HostChanges, PortCounts, ServicesByVni, Target};
use sluice_southbound::{Port, ServiceAddressKey};
use sluice_types::{ClusterId, HostId, Vni};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Ports, VPCs and keys of a host: enough to decide which entries of a step are for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    host: HostId,
    vtep: IpAddr,
    /// Number of ports by VNI and identity.
    ports: BTreeMap<(Vni, u16), u64>,
    /// The clusters of each VPC in which the host has ports.
    clusters_by_vni: BTreeMap<Vni, BTreeSet<ClusterId>>,
    /// Services and addresses of mounts of the VPCs in which the host has ports.
    services_by_vni: ServicesByVni,
    /// Clusters whose keys the host has.
    keys: BTreeSet<ClusterId>,
}

/// What a host has no more of after a step, besides what the step's entries say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Networks whose last port on the host was removed.
    pub vnis: Vec<Vni>,
    /// Addresses of mounts.
    pub service_addresses: Vec<ServiceAddressKey>,
    /// Services of which no address is left.
    pub services: Vec<u32>,
}

/// What a host is sent for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostStep {
    /// Send entries, then remove what they do not remove.
    Send {
        /// Targets of the step that include the host, in the order of sending.
        targets: Vec<Target>,
        /// What is to be removed behind them.
        lost: Lost,
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
        Self {
            host,
            vtep,
            ports: BTreeMap::new(),
            clusters_by_vni: BTreeMap::new(),
            services_by_vni: ServicesByVni::new(),
            keys: BTreeSet::new(),
        }
    }

    /// The VTEP of the host, on which its keys depend.
    pub fn vtep(&self) -> IpAddr {
        self.vtep
    }

    /// Counts the ports of a snapshot.
    pub fn add(&mut self, ports: &[Port]) {
        for port in ports {
            *self.ports.entry((port.vni, port.identity)).or_default() += 1;
        }
    }

    fn has_ports(&self, vni: Vni) -> bool {
        self.ports.range((vni, 0)..=(vni, u16::MAX)).next().is_some()
    }

    /// Records the clusters of VPCs. VPCs in which the host has no ports are ignored.
    pub fn set_vpc_clusters(&mut self, clusters: &BTreeMap<Vni, BTreeSet<ClusterId>>) {
        for (vni, ids) in clusters {
            if self.has_ports(*vni) {
                self.clusters_by_vni.insert(*vni, ids.clone());
            }
        }
    }

    /// Records the services and addresses of VPCs. VPCs in which the host has no ports are ignored.
    pub fn set_services(&mut self, services: &ServicesByVni) {
        for (vni, of_vni) in services {
            if self.has_ports(*vni) && !of_vni.is_empty() {
                self.services_by_vni.insert(*vni, of_vni.clone());
            } else {
                self.services_by_vni.remove(vni);
            }
        }
    }

    /// The services and the addresses that the host has.
    fn services(&self) -> (BTreeSet<u32>, BTreeSet<ServiceAddressKey>) {
        self.services_by_vni.values().flatten().copied().unzip()
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

    /// Advances by a step. `targets` are those for which it has entries.
    pub fn step<'a>(
        &mut self,
        changes: &HostChanges,
        targets: impl IntoIterator<Item = &'a Target>,
    ) -> HostStep {
        let HostChanges { ports, clusters_by_vni, services_by_vni, changed_keys, changed_policies, resync } =
            changes;
        let added = || ports.get(&self.host).into_iter().flat_map(|counts| &counts.added);
        let has_or_gets = |vni: &Vni| self.has_ports(*vni) || added().any(|((of, _), _)| of == vni);
        if resync.iter().any(has_or_gets) {
            return HostStep::Resync;
        }
        let new = added().map(|(key, _)| *key).filter(|key| !self.ports.contains_key(key));
        let new: BTreeSet<(Vni, u16)> = new.collect();
        let had = self.services();
        let vnis = ports.get(&self.host).map_or_else(Vec::new, |counts| self.count(counts));
        self.set_vpc_clusters(clusters_by_vni);
        self.set_services(services_by_vni);
        let has = self.services();
        let lost = Lost {
            vnis,
            service_addresses: had.1.difference(&has.1).copied().collect(),
            services: had.0.difference(&has.0).copied().collect(),
        };
        let mut keys: BTreeSet<_> = self.clusters().difference(&self.keys).copied().collect();
        keys.extend(self.keys.intersection(changed_keys));
        self.keys.extend(&keys);
        let mine = |target: &&Target| match **target {
            Target::AllHosts(family) => family == Family::of(self.vtep),
            Target::ServiceHosts(service) => has.0.contains(&service),
            Target::HostsOf(vni) => self.has_ports(vni),
            Target::Policy(vni, identity) => {
                let key = (vni, identity);
                self.ports.contains_key(&key) && (new.contains(&key) || changed_policies.contains(&key))
            }
            Target::Host(host) => host == self.host,
            Target::AllGateways | Target::Cluster(_) | Target::Members(_) => false,
        };
        HostStep::Send { targets: targets.into_iter().filter(mine).copied().collect(), lost, keys }
    }

    /// Adds and subtracts the ports of a step. Returns the networks whose last port was removed.
    fn count(&mut self, counts: &PortCounts) -> Vec<Vni> {
        let mut removed_vnis = Vec::new();
        for (key, count) in &counts.added {
            *self.ports.entry(*key).or_default() += count;
        }
        for (key, count) in &counts.removed {
            let left = self.ports.get(key).map_or(0, |have| have.saturating_sub(*count));
            if left > 0 {
                self.ports.insert(*key, left);
            } else if self.ports.remove(key).is_some() && !self.has_ports(key.0) {
                self.clusters_by_vni.remove(&key.0);
                self.services_by_vni.remove(&key.0);
                removed_vnis.push(key.0);
            }
        }
        removed_vnis
    }
}
