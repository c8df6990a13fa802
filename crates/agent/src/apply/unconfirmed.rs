//! Unconfirmed entries: those that the node has and that the database does not, because the database went back to
//! an earlier state, as after a restored backup. They stay in the tables and forward packets, until the database has
//! them again (an operator adopted them) or the controller removes them (an operator confirmed it).
//!
//! ```text
//!                  snapshot of another history
//!                  does not mention the entry                  mentioned by a later step
//!     KNOWN ------------------------------------> UNCONFIRMED ---------------------------> KNOWN
//!                                                     |
//!                                                     +-- removal by the controller -----> removed
//! ```
//!
//! The list is not saved. While it is not empty, the tables keep the id of the commit with which they last agreed,
//! so that the next stream, also of the next agent, gets a snapshot of another history and derives the list from it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::iter::successors;
use std::net::IpAddr;

use sluice_southbound::proto::UnconfirmedEntries as Report;
use sluice_southbound::{
    Endpoint, EndpointKey, MAX_UNCONFIRMED, PublicPrefix, RouteKey, Unconfirmed, Update,
};
use sluice_tables::NodeTables;
use sluice_types::{InstanceId, IpNet, Vni};

use super::snapshot::{SnapshotEntries, addresses};
use crate::Role;

/// The keys of unconfirmed entries: at most as many as the tables have entries.
#[derive(Debug, Default)]
pub struct UnconfirmedEntries {
    vteps: BTreeSet<IpAddr>,
    networks: BTreeSet<Vni>,
    endpoints: HashSet<(Vni, IpAddr)>,
    routes: HashSet<(Vni, IpNet)>,
    /// By outside addresses.
    public_prefixes: BTreeMap<IpNet, Vni>,
    ports: BTreeSet<InstanceId>,
    /// Meters that the database does not have and unconfirmed entries have. They are not counted: they go with the last of these.
    meters: BTreeSet<u32>,
    changes: u64,
}

impl UnconfirmedEntries {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        let Self { vteps, networks, endpoints, routes, public_prefixes, ports, meters: _, changes: _ } = self;
        vteps.len() + networks.len() + endpoints.len() + routes.len() + public_prefixes.len() + ports.len()
    }

    /// Whether the database has all entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of changes of the list so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Replaces the list by the entries that a complete snapshot has not mentioned.
    pub(super) fn derive(&mut self, mentioned: &SnapshotEntries, tables: &NodeTables, role: &impl Role) {
        let removals = mentioned.removals(tables, role);
        let is_host =
            |vtep: &IpAddr| tables.role(*vtep).is_some_and(|role| role != sluice_tables::Role::Gateway);
        let keeps = |vni: &Vni| role.keeps_network(*vni);
        self.vteps = removals.removed_vteps.into_iter().filter(is_host).collect();
        self.networks = removals.removed_vnis.iter().copied().filter(keeps).collect();
        self.ports = removals.removed_ports.into_iter().collect();
        let is_removed = |vni: &Vni| removals.removed_vnis.contains(vni) && !role.keeps_network(*vni);
        let routes = mentioned.unmentioned_routes(tables);
        self.routes = routes.into_iter().filter(|(vni, _)| !is_removed(vni)).collect();
        let public = removals.removed_public_prefixes.iter().filter_map(|it| tables.public_prefix(*it));
        let public = public.filter(|public| !is_removed(&public.vni));
        self.public_prefixes = public.map(|public| (public.outside, public.vni)).collect();
        // What the snapshot gives to others is removed with what is not kept.
        for outside in mentioned.public_addresses() {
            self.take_overlapping(outside);
        }
        let endpoints = tables.endpoints().filter(|endpoint| !mentioned.has_endpoint(endpoint));
        self.endpoints = endpoints.map(|endpoint| (endpoint.vni, endpoint.address)).collect();
        self.changes += 1;
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self { changes: self.changes + 1, ..Self::default() };
    }

    /// Forgets entries that a message mentions or removes: either way the database decides about them again. Returns
    /// the public prefixes that must be removed, because the message gives some of their addresses to others.
    pub(super) fn forget(&mut self, update: &Update) -> Vec<IpNet> {
        for meter in &update.meters {
            self.meters.remove(&meter.id);
        }
        let before = self.len();
        if before == 0 {
            return Vec::new();
        }
        let vteps = update.vteps.iter().map(|vtep| vtep.address);
        for vtep in vteps.chain(update.removed_vteps.iter().copied()) {
            self.vteps.remove(&vtep);
        }
        let vnis = update.vrfs.iter().map(|vrf| vrf.vni);
        for vni in vnis.chain(update.removed_vnis.iter().copied()) {
            self.networks.remove(&vni);
        }
        if !update.removed_vnis.is_empty() {
            let removed: HashSet<Vni> = update.removed_vnis.iter().copied().collect();
            self.routes.retain(|(vni, _)| !removed.contains(vni));
            self.public_prefixes.retain(|_, vni| !removed.contains(vni));
        }
        let keys = update.endpoints.iter().map(Endpoint::key);
        for EndpointKey { vni, ipv4, ipv6 } in keys.chain(update.removed_endpoints.iter().copied()) {
            for address in addresses(ipv4, ipv6) {
                self.endpoints.remove(&(vni, address));
            }
        }
        let keys = update.routes.iter().map(|route| route.key);
        for RouteKey { vni, prefix } in keys.chain(update.removed_routes.iter().copied()) {
            self.routes.remove(&(vni, prefix));
        }
        let outsides = update.public_prefixes.iter().map(|public| public.outside);
        for outside in outsides.chain(update.removed_public_prefixes.iter().copied()) {
            self.public_prefixes.remove(&outside);
        }
        let given = update.public_prefixes.iter().map(|public| public.outside);
        let of_nat = update.nat_gateways.iter().flat_map(|nat| &nat.addresses);
        let given = given.chain(of_nat.map(|address| IpNet::from(IpAddr::V4(*address))));
        let given = given.flat_map(|outside| self.take_overlapping(outside)).collect();
        let ports = update.ports.iter().map(|port| port.instance);
        for id in ports.chain(update.removed_ports.iter().copied()) {
            self.ports.remove(&id);
        }
        self.changes += u64::from(self.len() != before);
        given
    }

    /// Forgets the public prefixes that have addresses of `outside`: those that contain it, and those in it.
    fn take_overlapping(&mut self, outside: IpNet) -> Vec<IpNet> {
        if self.public_prefixes.is_empty() {
            return Vec::new();
        }
        let containing = successors(Some(outside), IpNet::supernet);
        let containing = containing.filter(|net| self.public_prefixes.contains_key(net));
        let contained = self.public_prefixes.range(outside..).map(|(net, _)| *net);
        let contained = contained.take_while(|net| outside.contains(net));
        let mut all: Vec<IpNet> = containing.chain(contained).collect();
        all.retain(|net| self.public_prefixes.remove(net).is_some());
        all
    }

    /// Takes the networks that the role does not keep any more, because their last port was removed.
    pub(super) fn take_idle_networks(&mut self, role: &impl Role) -> Vec<Vni> {
        self.networks.extract_if(.., |vni| !role.keeps_network(*vni)).collect()
    }

    /// Whether an endpoint is unconfirmed.
    pub(super) fn has_endpoint(&self, vni: Vni, address: IpAddr) -> bool {
        self.endpoints.contains(&(vni, address))
    }

    /// Whether a route is unconfirmed.
    pub(super) fn has_route(&self, vni: Vni, prefix: IpNet) -> bool {
        self.routes.contains(&(vni, prefix))
    }

    /// Removes unconfirmed entries from what would be removed, and the meters that they have.
    pub(super) fn keep(&mut self, removals: &mut Update, tables: &NodeTables) {
        removals.removed_vteps.retain(|vtep| !self.vteps.contains(vtep));
        removals.removed_vnis.retain(|vni| !self.networks.contains(vni));
        removals.removed_public_prefixes.retain(|outside| !self.public_prefixes.contains_key(outside));
        // That of a network which stays. If the database has the network, it decides about the NAT gateway as well.
        removals.removed_nat_gateways.retain(|vni| !self.networks.contains(vni));
        removals.removed_ports.retain(|id| !self.ports.contains(id));
        let of_prefixes = self.public_prefixes.keys().filter_map(|outside| tables.public_prefix(*outside));
        let of_networks = self.networks.iter().map(|vni| tables.internet_meter(*vni));
        // Routes that are neither mentioned nor kept were removed before.
        let numbers =
            of_prefixes.map(|public| public.meter).chain(of_networks).chain(meters_of_peers(tables));
        let kept: HashSet<u32> = numbers.filter_map(|number| tables.meter_id(number)).collect();
        self.meters = removals.removed_meters.extract_if(.., |id| kept.contains(id)).collect();
    }

    /// Takes the meters that were kept, and that no entry has any more.
    pub(super) fn take_unused_meters(&mut self, tables: &NodeTables) -> Vec<u32> {
        if self.meters.is_empty() {
            return Vec::new();
        }
        let of_networks = tables.vrfs().map(|entry| tables.internet_meter(entry.vrf.vni));
        let numbers = tables.public_prefixes().map(|public| public.meter);
        let numbers = numbers.chain(of_networks).chain(meters_of_peers(tables));
        let used: HashSet<u32> = numbers.filter_map(|number| tables.meter_id(number)).collect();
        self.meters.extract_if(.., |id| !used.contains(id)).collect()
    }

    /// The list for the controller: at most [`MAX_UNCONFIRMED`] entries, ports first, because they say most.
    pub fn report(&self, tables: &NodeTables, role: &impl Role) -> Report {
        let ports =
            self.ports.iter().filter_map(|id| role.port(*id)).map(|port| Unconfirmed::Port(Box::new(port)));
        let networks = self.networks.iter().copied().map(Unconfirmed::Network);
        let vteps = self.vteps.iter().copied().map(Unconfirmed::Vtep);
        let routes = self.routes.iter().map(|&(vni, prefix)| Unconfirmed::Route(RouteKey { vni, prefix }));
        let public = self.public_prefixes.keys().filter_map(|outside| tables.public_prefix(*outside));
        let public = public.map(|sluice_tables::PublicPrefix { outside, vni, inside, vip, meter, nptv6 }| {
            let meter = tables.meter_id(meter).filter(|id| *id != 0);
            Unconfirmed::PublicPrefix(PublicPrefix { outside, vni, inside, vip, meter, nptv6 })
        });
        let endpoints = self.endpoints.iter().filter_map(|&(vni, address)| tables.endpoint(vni, address));
        let endpoints = endpoints.map(|found| Unconfirmed::Endpoint(of_address(&found)));
        let entries = ports.chain(networks).chain(vteps).chain(public).chain(routes).chain(endpoints);
        Report { total: self.len() as u64, entries: entries.take(MAX_UNCONFIRMED).map(Into::into).collect() }
    }
}

/// The numbers of the meters of routes to peers.
fn meters_of_peers(tables: &NodeTables) -> impl Iterator<Item = u32> + '_ {
    tables.metered_peers().flat_map(|peer| [peer.out_meter, peer.in_meter])
}

fn of_address(found: &sluice_tables::Endpoint) -> Endpoint {
    let sluice_tables::Endpoint { vni, address, mac, host } = *found;
    let (ipv4, ipv6) = match address {
        IpAddr::V4(v4) => (Some(v4), None),
        IpAddr::V6(v6) => (None, Some(v6)),
    };
    Endpoint { vni, ipv4, ipv6, mac, host }
}
