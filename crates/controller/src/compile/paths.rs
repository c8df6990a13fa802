//! The model `preprogrammed`: hosts get the direct paths to all instances that their own instances can reach,
//! before a packet is sent (Zeta section VIII-A, after VMware NSX).
//!
//! A host has the paths of a VPC as long as it has an instance of that VPC. They lead to the
//! instances of the VPC, with their secondary addresses, and to those of its peers if the longest matching route of the VPC leads to the peer
//! and that of the peer is local. Changes of routes are rare and cause a snapshot.

use super::entries::delegated;
use super::state::{Touched, VpcState};
use super::{Compiled, State, Target};
use sluice_southbound::{Path, PathKey, Route, RouteKey, Scope};
use sluice_store::{Change, Instance};
use sluice_types::{HostId, IpNet, MacAddr, VpcId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The location of each instance.
#[derive(Clone, Debug, Default)]
pub(super) struct InstanceLocations {
    addresses: BTreeMap<VpcId, BTreeMap<IpAddr, (MacAddr, HostId)>>,
    /// The prefixes that are delegated to instances, with their next hops.
    delegated: BTreeMap<VpcId, BTreeMap<IpNet, Scope>>,
    /// Number of instances of each VPC on each host.
    hosts: BTreeMap<VpcId, BTreeMap<HostId, u64>>,
}

/// What a revision changed in the locations.
#[derive(Debug, Default)]
pub(super) struct LocationChanges {
    addresses: BTreeMap<VpcId, BTreeSet<IpAddr>>,
    /// VPCs in which a delegated prefix was added or removed.
    rerouted: BTreeSet<VpcId>,
    /// For each VPC and host of a changed instance: whether the host had no instance of the VPC before.
    without: BTreeMap<(VpcId, HostId), bool>,
}

impl InstanceLocations {
    pub(super) fn has(&self, vpc: VpcId, host: HostId) -> bool {
        self.hosts.get(&vpc).is_some_and(|hosts| hosts.contains_key(&host))
    }

    pub(super) fn insert(&mut self, instance: &Instance) {
        let known = self.addresses.entry(instance.vpc).or_default();
        known.extend(instance.all_addresses().map(|address| (address, (instance.mac, instance.host))));
        if !instance.options.delegated.is_empty() {
            let known = self.delegated.entry(instance.vpc).or_default();
            known.extend(delegated(instance));
        }
        for host in instance.hosts() {
            *self.hosts.entry(instance.vpc).or_default().entry(host).or_default() += 1;
        }
    }

    fn remove(&mut self, instance: &Instance) {
        if let Some(known) = self.addresses.get_mut(&instance.vpc) {
            instance.all_addresses().for_each(|address| {
                known.remove(&address);
            });
        }
        if let Some(known) = self.delegated.get_mut(&instance.vpc) {
            instance.options.delegated.iter().for_each(|prefix| {
                known.remove(prefix);
            });
        }
        let Some(hosts) = self.hosts.get_mut(&instance.vpc) else { return };
        for host in instance.hosts() {
            if let Some(count) = hosts.get_mut(&host) {
                *count -= 1;
                if *count == 0 {
                    hosts.remove(&host);
                }
            }
        }
    }

    /// Advances by a change.
    pub(super) fn apply(&mut self, change: &Change, moved: &mut LocationChanges) {
        let rerouted = &mut moved.rerouted;
        let mut record = |placed: &Self, instance: &Instance| {
            let vpc = instance.vpc;
            moved.addresses.entry(vpc).or_default().extend(instance.all_addresses());
            for host in instance.hosts() {
                moved.without.entry((vpc, host)).or_insert_with(|| !placed.has(vpc, host));
            }
        };
        match change {
            Change::InstancesCreated { instances, .. } => {
                for instance in instances {
                    record(self, instance);
                    rerouted.extend((!instance.options.delegated.is_empty()).then_some(instance.vpc));
                    self.insert(instance);
                }
            }
            Change::InstancesRemoved { instances, .. } => {
                for instance in instances {
                    record(self, instance);
                    rerouted.extend((!instance.options.delegated.is_empty()).then_some(instance.vpc));
                    self.remove(instance);
                }
            }
            Change::InstanceMoved { instance, from, ended, .. } => {
                record(self, instance);
                self.remove(&Instance { host: *from, migration: ended.map(Box::new), ..instance.clone() });
                self.insert(instance);
            }
            Change::InstanceMigrationChanged { instance, before, .. } => {
                record(self, instance);
                self.remove(&Instance { migration: before.map(Box::new), ..instance.clone() });
                self.insert(instance);
            }
            Change::InstancesChanged { changes, .. } => {
                for change in changes {
                    let (old, new) = (change.old(), &change.after);
                    record(self, &old);
                    record(self, new);
                    if old.options.delegated != new.options.delegated {
                        rerouted.insert(new.vpc);
                    }
                    self.remove(&old);
                    self.insert(new);
                }
            }
            Change::VpcRemoved(vpc) => {
                self.delegated.remove(&vpc.id);
                self.addresses.remove(&vpc.id);
                self.hosts.remove(&vpc.id);
            }
            _ => {}
        }
    }
}

/// The routes of a VPC, the longest prefix first.
struct Table<'a> {
    vpc: &'a VpcState,
    routes: Vec<Route>,
}

impl<'a> Table<'a> {
    fn new(state: &State, vpc: &'a VpcState) -> Self {
        let mut routes: Vec<Route> = state.routes(vpc).collect();
        let vni = vpc.vpc.vni;
        let delegated = state.instances.delegated.get(&vpc.vpc.id).into_iter().flatten();
        routes.extend(
            delegated.map(|(prefix, scope)| Route { key: RouteKey { vni, prefix: *prefix }, scope: *scope }),
        );
        routes.sort_by_key(|route| std::cmp::Reverse(route.key.prefix.prefix_len()));
        Self { vpc, routes }
    }

    fn scope(&self, address: IpAddr) -> Option<Scope> {
        let mut routes = self.routes.iter();
        routes.find(|route| route.key.prefix.contains(&address)).map(|route| route.scope)
    }
}

/// A pair of VPCs between which paths are computed. Both can be the same VPC.
struct VpcPair<'a> {
    from: &'a Table<'a>,
    to: &'a Table<'a>,
}

impl VpcPair<'_> {
    /// Whether the routes deliver packets from one VPC to this address in the other, and whether every packet
    /// that fits into the MTU of the sender's VPC fits into that of the receiver's. A host enforces only the
    /// former MTU.
    fn is_reachable(&self, address: IpAddr) -> bool {
        let (from, to) = (&self.from.vpc.vpc, &self.to.vpc.vpc);
        if from.id == to.id {
            return self.from.scope(address) == Some(Scope::Local);
        }
        from.mtu <= to.mtu
            && self.from.scope(address) == Some(Scope::Peer(to.vni))
            && self.to.scope(address) == Some(Scope::Local)
    }
}

impl State {
    /// Adds the instances of a snapshot. Must be called before paths are computed.
    pub fn add_instances(&mut self, instances: &[Instance]) {
        instances.iter().for_each(|instance| self.instances.insert(instance));
    }

    /// The route tables of a VPC and of all its peers.
    fn around<'a>(&'a self, vpc: &'a VpcState) -> impl Iterator<Item = Table<'a>> {
        std::iter::once(vpc).chain(self.peers_of(vpc)).map(|vpc| Table::new(self, vpc))
    }

    fn path(&self, pair: &VpcPair<'_>, address: IpAddr) -> Option<Path> {
        let to = &pair.to.vpc.vpc;
        let (mac, host) = *self.instances.addresses.get(&to.id)?.get(&address)?;
        let host = self.hosts.get(&host)?.vtep;
        let key = PathKey { vni: pair.from.vpc.vpc.vni, address };
        pair.is_reachable(address).then_some(Path { key, mac, host, path_vni: to.vni })
    }

    /// All paths of a VPC, except those to changed addresses, which the hosts of the VPC get by another
    /// update.
    fn paths_of(&self, vpc: &VpcState, except: &LocationChanges) -> Vec<Path> {
        let from = Table::new(self, vpc);
        let mut paths = Vec::new();
        for to in self.around(vpc) {
            let id = to.vpc.vpc.id;
            let (all, except) = (self.instances.addresses.get(&id), except.addresses.get(&id));
            let wanted = all.into_iter().flat_map(|all| all.keys()).copied();
            let wanted = wanted.filter(|address| except.is_none_or(|except| !except.contains(address)));
            let pair = VpcPair { from: &from, to: &to };
            paths.extend(wanted.filter_map(|address| self.path(&pair, address)));
        }
        paths
    }

    /// All paths of a host.
    pub fn host_paths(&self, host: HostId) -> Vec<Path> {
        let here = self.vpcs.values().filter(|vpc| self.instances.has(vpc.vpc.id, host));
        here.flat_map(|vpc| self.paths_of(vpc, &LocationChanges::default())).collect()
    }

    /// Adds the changed paths of a revision to the updates of hosts. The revision is already in the state.
    pub(super) fn send_paths(&self, moved: &LocationChanges, touched: &Touched, out: &mut Compiled) {
        for (id, addresses) in &moved.addresses {
            let Some(vpc) = self.vpcs.get(id) else { continue };
            let to = Table::new(self, vpc);
            for from in self.around(vpc) {
                let hosts = self.instances.hosts.get(&from.vpc.vpc.id);
                if hosts.is_none_or(BTreeMap::is_empty) {
                    continue;
                }
                let pair = VpcPair { from: &from, to: &to };
                let vni = from.vpc.vpc.vni;
                let update = out.of(Target::HostsOf(vni));
                for address in addresses.iter().copied().filter(|address| pair.is_reachable(*address)) {
                    match self.path(&pair, address) {
                        Some(path) => update.paths.push(path),
                        None => update.removed_paths.push(PathKey { vni, address }),
                    }
                }
            }
        }
        let first = moved.without.iter().filter(|(_, without)| **without).map(|(key, _)| key);
        for (vpc, host) in first {
            let agent = self.hosts.get(host).is_some_and(|host| host.agent);
            if let Some(vpc) = self.vpcs.get(vpc).filter(|vpc| agent && self.instances.has(vpc.vpc.id, *host))
            {
                // The paths to changed addresses are sent to all hosts of the VPC, this one included.
                out.of(Target::Host(*host)).paths.append(&mut self.paths_of(vpc, moved));
            }
        }
        let routes = touched.routes.iter().map(|(id, _)| id);
        let rerouted = routes.chain(&moved.rerouted).filter_map(|id| self.vpcs.get(id));
        let resized = self.vpcs.values().filter(|vpc| out.hosts.resync.contains(&vpc.vpc.vni));
        let changed: BTreeSet<_> = rerouted
            .chain(resized)
            .flat_map(|vpc| std::iter::once(vpc).chain(self.peers_of(vpc)).map(|vpc| vpc.vpc.vni))
            .collect();
        out.hosts.resync.extend(changed);
    }
}
