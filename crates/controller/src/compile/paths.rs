//! Preprogrammed: hosts get the direct paths to all instances that theirs may reach,
//! before anything is sent (Zeta section VIII-A, after VMware NSX).
//!
//! A host has the paths of a VPC from its first instance of it to its last. They lead to
//! the VPC's own instances, and to those of the VPCs that it is peered with, where the
//! VPC's longest route leads there, and the peer's to itself. What changes routes is
//! rare, and brings a snapshot.

use super::state::{Touched, VpcState};
use super::{Compiled, State, Target};
use sluice_southbound::{Path, PathKey, Route, Scope};
use sluice_store::{Change, Instance};
use sluice_types::{HostId, MacAddr, VpcId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Where all instances are.
#[derive(Clone, Debug, Default)]
pub(super) struct Placed {
    addresses: BTreeMap<VpcId, BTreeMap<IpAddr, (MacAddr, HostId)>>,
    /// Instances of a VPC by host.
    hosts: BTreeMap<VpcId, BTreeMap<HostId, u64>>,
}

/// What a revision changed of it.
#[derive(Debug, Default)]
pub(super) struct Moved {
    addresses: BTreeMap<VpcId, BTreeSet<IpAddr>>,
    /// Hosts of changed instances that had none of the VPC before.
    without: BTreeMap<(VpcId, HostId), bool>,
}

fn addresses(instance: &Instance) -> impl Iterator<Item = IpAddr> {
    instance.ipv4.map(IpAddr::V4).into_iter().chain(instance.ipv6.map(IpAddr::V6))
}

impl Placed {
    pub(super) fn has(&self, vpc: VpcId, host: HostId) -> bool {
        self.hosts.get(&vpc).is_some_and(|hosts| hosts.contains_key(&host))
    }

    pub(super) fn insert(&mut self, instance: &Instance) {
        let known = self.addresses.entry(instance.vpc).or_default();
        known.extend(addresses(instance).map(|address| (address, (instance.mac, instance.host))));
        *self.hosts.entry(instance.vpc).or_default().entry(instance.host).or_default() += 1;
    }

    fn remove(&mut self, instance: &Instance, host: HostId) {
        if let Some(known) = self.addresses.get_mut(&instance.vpc) {
            addresses(instance).for_each(|address| {
                known.remove(&address);
            });
        }
        if let Some(hosts) = self.hosts.get_mut(&instance.vpc)
            && let Some(count) = hosts.get_mut(&host)
        {
            *count -= 1;
            if *count == 0 {
                hosts.remove(&host);
            }
        }
    }

    /// Advances by a change.
    pub(super) fn apply(&mut self, change: &Change, moved: &mut Moved) {
        let mut note = |placed: &Self, instance: &Instance| {
            let (vpc, host) = (instance.vpc, instance.host);
            moved.addresses.entry(vpc).or_default().extend(addresses(instance));
            moved.without.entry((vpc, host)).or_insert_with(|| !placed.has(vpc, host));
        };
        match change {
            Change::InstancesCreated { instances, .. } => {
                for instance in instances {
                    note(self, instance);
                    self.insert(instance);
                }
            }
            Change::InstancesRemoved { instances, .. } => {
                for instance in instances {
                    note(self, instance);
                    self.remove(instance, instance.host);
                }
            }
            Change::InstanceMoved { instance, from, .. } => {
                note(self, instance);
                self.remove(instance, *from);
                self.insert(instance);
            }
            Change::VpcRemoved(vpc) => {
                self.addresses.remove(&vpc.id);
                self.hosts.remove(&vpc.id);
            }
            _ => {}
        }
    }
}

/// Routes of a VPC, the longest first.
struct Table<'a> {
    vpc: &'a VpcState,
    routes: Vec<Route>,
}

impl<'a> Table<'a> {
    fn new(state: &State, vpc: &'a VpcState) -> Self {
        let mut routes: Vec<Route> = state.routes(vpc).collect();
        routes.sort_by_key(|route| std::cmp::Reverse(route.key.prefix.prefix_len()));
        Self { vpc, routes }
    }

    fn scope(&self, address: IpAddr) -> Option<Scope> {
        let mut routes = self.routes.iter();
        routes.find(|route| route.key.prefix.contains(&address)).map(|route| route.scope)
    }
}

/// Ways from one VPC to another, or to itself.
struct Ways<'a> {
    from: &'a Table<'a>,
    to: &'a Table<'a>,
}

impl Ways<'_> {
    /// Whether packets for an address go there, and all that fit into the sender's MTU fit
    /// into the receiver's: hosts know the former only.
    fn lead(&self, address: IpAddr) -> bool {
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
    /// Takes in what is there already: a snapshot's, before anything is asked of paths.
    pub fn place(&mut self, instances: &[Instance]) {
        instances.iter().for_each(|instance| self.instances.insert(instance));
    }

    /// A VPC with those peered with it.
    fn around<'a>(&'a self, vpc: &'a VpcState) -> impl Iterator<Item = Table<'a>> {
        std::iter::once(vpc).chain(self.peers_of(vpc)).map(|vpc| Table::new(self, vpc))
    }

    fn path(&self, ways: &Ways<'_>, address: IpAddr) -> Option<Path> {
        let to = &ways.to.vpc.vpc;
        let (mac, host) = *self.instances.addresses.get(&to.id)?.get(&address)?;
        let host = self.hosts.get(&host)?.vtep;
        let key = PathKey { vni: ways.from.vpc.vpc.vni, address };
        ways.lead(address).then_some(Path { key, mac, host, path_vni: to.vni })
    }

    /// All paths of a VPC but those to certain addresses.
    fn paths_of(&self, vpc: &VpcState, but: &Moved) -> Vec<Path> {
        let from = Table::new(self, vpc);
        let mut paths = Vec::new();
        for to in self.around(vpc) {
            let id = to.vpc.vpc.id;
            let (all, but) = (self.instances.addresses.get(&id), but.addresses.get(&id));
            let wanted = all.into_iter().flat_map(|all| all.keys()).copied();
            let wanted = wanted.filter(|address| but.is_none_or(|but| !but.contains(address)));
            let ways = Ways { from: &from, to: &to };
            paths.extend(wanted.filter_map(|address| self.path(&ways, address)));
        }
        paths
    }

    /// All paths of a host.
    pub fn host_paths(&self, host: HostId) -> Vec<Path> {
        let here = self.vpcs.values().filter(|vpc| self.instances.has(vpc.vpc.id, host));
        here.flat_map(|vpc| self.paths_of(vpc, &Moved::default())).collect()
    }

    /// What a revision means for hosts' paths, once it is in the state.
    pub(super) fn send_paths(&self, moved: &Moved, touched: &Touched, out: &mut Compiled) {
        for (id, addresses) in &moved.addresses {
            let Some(vpc) = self.vpcs.get(id) else { continue };
            let to = Table::new(self, vpc);
            for from in self.around(vpc) {
                let hosts = self.instances.hosts.get(&from.vpc.vpc.id);
                if hosts.is_none_or(BTreeMap::is_empty) {
                    continue;
                }
                let ways = Ways { from: &from, to: &to };
                let vni = from.vpc.vpc.vni;
                let update = out.of(Target::HostsOf(vni));
                for address in addresses.iter().copied().filter(|address| ways.lead(*address)) {
                    match self.path(&ways, address) {
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
                // The others it is told with all hosts of the VPC.
                out.of(Target::Host(*host)).paths.append(&mut self.paths_of(vpc, moved));
            }
        }
        let rerouted = touched.routes.iter().filter_map(|(id, _)| self.vpcs.get(id));
        let resized = self.vpcs.values().filter(|vpc| out.resync.contains(&vpc.vpc.vni));
        let changed: BTreeSet<_> = rerouted
            .chain(resized)
            .flat_map(|vpc| std::iter::once(vpc).chain(self.peers_of(vpc)).map(|vpc| vpc.vpc.vni))
            .collect();
        out.resync.extend(changed);
    }
}
