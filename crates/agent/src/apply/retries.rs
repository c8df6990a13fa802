//! Entries that could not be written, and are tried again: for example, a table was full. This file changes with the
//! kinds of entries that an update has, or with the times of the attempts.
//!
//! An entry waits here until it is written, or until the controller changes or removes it. There is an attempt one
//! second after a failure; each attempt that writes nothing doubles the delay, up to a minute. A removal of other
//! entries, which frees memory, makes the next attempt due at once.
//!
//! What is written and lacks only its meter waits as well, and so does the meter. Without it the tables are complete, because
//! tenants can use up all meters.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sluice_southbound::{
    EndpointKey, Group, MAX_MISSING, Meter, Missing, NatGateway, Policy, PolicyKey, Port, PublicPrefix,
    Route, RouteKey, Scope, Service, ServiceAddress, ServiceAddressKey, Update, Vip, Vrf, Vtep,
};
use sluice_types::{EntryHash, EntryKey, InstanceId, IpNet, Vni};

use super::snapshot::addresses;

/// Entries that wait at most. If more fail, the others wait for a snapshot, which the controller sends every two
/// minutes to a node with missing entries.
pub const RETRIES_MAX: usize = 4096;

/// Delay before the first attempt, and longest delay between two attempts.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Identifies an entry. The order is that in which entries are written: each refers only to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Vtep(IpAddr),
    Vip(IpAddr),
    Group(u32),
    Meter(u32),
    Vrf(Vni),
    Endpoint(Vni, IpAddr),
    Route(RouteKey),
    /// By the outside addresses.
    PublicPrefix(IpNet),
    NatGateway(Vni),
    Service(u32),
    /// An address of a mount.
    ServiceAddress(Vni, IpAddr),
    Policy(PolicyKey),
    Port(InstanceId),
}

/// An entry to write.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Vtep(Vtep),
    Vip(Vip),
    Group(Group),
    Meter(Meter),
    Vrf(Vrf),
    Endpoint(sluice_tables::Endpoint),
    Route(Route),
    PublicPrefix(PublicPrefix),
    NatGateway(NatGateway),
    Service(Service),
    /// An address of a mount, and the id of its service.
    ServiceAddress(Vni, IpAddr, u32),
    Policy(Policy),
    Port(Box<Port>),
}

impl Entry {
    fn key(&self) -> Key {
        match self {
            Self::Vtep(vtep) => Key::Vtep(vtep.address),
            Self::Vip(vip) => Key::Vip(vip.address),
            Self::Group(group) => Key::Group(group.id),
            Self::Meter(meter) => Key::Meter(meter.id),
            Self::Vrf(vrf) => Key::Vrf(vrf.vni),
            Self::Endpoint(endpoint) => Key::Endpoint(endpoint.vni, endpoint.address),
            Self::Route(route) => Key::Route(route.key),
            Self::PublicPrefix(public) => Key::PublicPrefix(public.outside),
            Self::NatGateway(nat) => Key::NatGateway(nat.vni),
            Self::Service(service) => Key::Service(service.id),
            Self::ServiceAddress(vni, address, _) => Key::ServiceAddress(*vni, *address),
            Self::Policy(policy) => Key::Policy(policy.key),
            Self::Port(port) => Key::Port(port.instance),
        }
    }

    /// The meters that it has.
    fn meters(&self) -> [Option<u32>; 2] {
        match self {
            Self::Vrf(vrf) => [vrf.internet_meter, None],
            Self::PublicPrefix(public) => [public.meter, None],
            Self::Route(Route { scope: Scope::MeteredPeer { out_meter, in_meter, .. }, .. }) => {
                [*out_meter, *in_meter]
            }
            _ => [None; 2],
        }
    }

    /// The names of its entries in tables: a port has one for each address.
    fn names(&self) -> Vec<EntryKey> {
        match self {
            Self::Vtep(vtep) => vec![EntryKey::Vtep(vtep.address)],
            Self::Vip(vip) => vec![EntryKey::Vip(vip.address)],
            Self::Group(group) => vec![EntryKey::Group(group.id)],
            Self::Meter(meter) => vec![EntryKey::Meter(meter.id)],
            Self::Vrf(vrf) => vec![EntryKey::Vrf(vrf.vni)],
            Self::Endpoint(endpoint) => vec![EntryKey::Endpoint(endpoint.vni, endpoint.address)],
            Self::Route(route) => vec![EntryKey::Route(route.key.vni, route.key.prefix)],
            Self::PublicPrefix(public) => vec![EntryKey::PublicPrefix(public.outside)],
            Self::NatGateway(nat) => vec![EntryKey::NatGateway(nat.vni)],
            Self::Service(service) => vec![EntryKey::Service(service.id)],
            Self::ServiceAddress(vni, address, _) => vec![EntryKey::ServiceAddress(*vni, *address)],
            Self::Policy(policy) => vec![EntryKey::Policy(policy.key.vni, policy.key.identity)],
            Self::Port(port) => port.entry_hashes().map(|(key, _)| key).collect(),
        }
    }
}

/// An entry that waits for the next attempt.
#[derive(Debug)]
struct Waiting {
    /// `None` stands for a removal.
    entry: Option<Entry>,
    /// Why the last attempt failed.
    reason: String,
}

/// The entries that wait for the next attempt.
#[derive(Debug, Default)]
pub(super) struct Retries {
    entries: BTreeMap<Key, Waiting>,
    /// Meters without room, and entries that lack only their meter: at most as many as the controller has sent. None of them is in
    /// `entries`.
    unmetered: BTreeMap<Key, Waiting>,
    /// Delay between the last attempt and the next; `None` before the first attempt.
    delay: Option<Duration>,
    /// When the next attempt is due.
    due: Option<Instant>,
}

impl Retries {
    /// Number of all entries that wait.
    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.unmetered.len()
    }

    /// Whether the tables are complete without what waits.
    pub(super) fn has_only_unmetered(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry that could not be written. Returns false if there are too many.
    pub(super) fn add(&mut self, entry: Entry, reason: String) -> bool {
        self.insert(entry.key(), Waiting { entry: Some(entry), reason })
    }

    /// Adds a meter for which there is no room, or an entry that is written and lacks only its meter.
    pub(super) fn add_unmetered(&mut self, entry: Entry, reason: String) {
        let key = entry.key();
        self.entries.remove(&key);
        self.unmetered.insert(key, Waiting { entry: Some(entry), reason });
    }

    /// Adds an entry that could not be removed. Returns false if there are too many.
    pub(super) fn add_removal(&mut self, key: Key, reason: String) -> bool {
        self.insert(key, Waiting { entry: None, reason })
    }

    fn insert(&mut self, key: Key, waiting: Waiting) -> bool {
        let fits = self.entries.len() < RETRIES_MAX || self.entries.contains_key(&key);
        self.unmetered.remove(&key);
        if fits {
            self.entries.insert(key, waiting);
        }
        fits
    }

    /// The entries that are not in the tables, or lack a meter. Those that could not be removed are not among them. An entry that lacks a
    /// meter for which there is no room is named by the meter only: what does not have the meter is programmed.
    pub(super) fn missing(&self) -> Missing {
        let mut missing = Missing::default();
        for Waiting { entry, reason } in self.entries.values() {
            for key in entry.iter().flat_map(Entry::names) {
                missing.add(key, reason.clone());
            }
        }
        let named: HashSet<u32> = self.meters().map(|meter| meter.id).collect();
        // Those beyond the first are not reported: if there were others, nothing on this node would count as programmed.
        for (waiting, entry) in self.unmetered.values().filter_map(|it| Some((it, it.entry.as_ref()?))) {
            let is_named = entry.meters().into_iter().flatten().any(|id| named.contains(&id));
            for key in entry.names().into_iter().filter(|_| !is_named) {
                if missing.entries.len() < MAX_MISSING {
                    missing.add(key, waiting.reason.clone());
                }
            }
        }
        missing
    }

    /// The hash by which digests count what lookups find: of an entry that lacks only its meter, as the controller compiled it.
    pub(super) fn counted(&self, key: EntryKey, found: EntryHash) -> EntryHash {
        let waiting = match key {
            EntryKey::Vrf(vni) => self.unmetered.get(&Key::Vrf(vni)),
            EntryKey::PublicPrefix(outside) => self.unmetered.get(&Key::PublicPrefix(outside)),
            EntryKey::Route(vni, prefix) => self.unmetered.get(&Key::Route(RouteKey { vni, prefix })),
            _ => None,
        };
        let (written, compiled) = match waiting.and_then(|waiting| waiting.entry.as_ref()) {
            Some(Entry::Vrf(vrf)) => (Vrf { internet_meter: None, ..*vrf }.entry_hash(), vrf.entry_hash()),
            Some(Entry::PublicPrefix(public)) => {
                (PublicPrefix { meter: None, ..*public }.entry_hash(), public.entry_hash())
            }
            Some(Entry::Route(route @ Route { scope: Scope::MeteredPeer { vni, .. }, .. })) => {
                let scope = Scope::MeteredPeer { vni: *vni, out_meter: None, in_meter: None };
                (Route { scope, ..*route }.entry_hash(), route.entry_hash())
            }
            _ => return found,
        };
        if written == (key, found) { compiled.1 } else { found }
    }

    /// The meters for which there is no room.
    pub(super) fn meters(&self) -> impl Iterator<Item = &Meter> {
        self.unmetered.values().filter_map(|waiting| match &waiting.entry {
            Some(Entry::Meter(meter)) => Some(meter),
            _ => None,
        })
    }

    /// Forgets an entry that was written meanwhile.
    pub(super) fn remove(&mut self, key: Key) {
        self.entries.remove(&key);
        self.unmetered.remove(&key);
    }

    /// Forgets the entries that an update writes or removes: they are out of date.
    pub(super) fn forget(&mut self, update: &Update) {
        if self.len() == 0 {
            return;
        }
        let endpoint = |vni, ipv4, ipv6| addresses(ipv4, ipv6).map(move |ip| Key::Endpoint(vni, ip));
        let of_mount = |ServiceAddressKey { vni, ipv4, ipv6 }| {
            addresses(ipv4, ipv6).map(move |ip| Key::ServiceAddress(vni, ip))
        };
        let written = update.vteps.iter().map(|vtep| Key::Vtep(vtep.address));
        let written = written.chain(update.vips.iter().map(|vip| Key::Vip(vip.address)));
        let written = written.chain(update.groups.iter().map(|group| Key::Group(group.id)));
        let written = written.chain(update.meters.iter().map(|meter| Key::Meter(meter.id)));
        let written = written.chain(update.vrfs.iter().map(|vrf| Key::Vrf(vrf.vni)));
        let written = written.chain(update.endpoints.iter().flat_map(|e| endpoint(e.vni, e.ipv4, e.ipv6)));
        let written = written.chain(update.routes.iter().map(|route| Key::Route(route.key)));
        let written = written.chain(update.public_prefixes.iter().map(|it| Key::PublicPrefix(it.outside)));
        let written = written.chain(update.nat_gateways.iter().map(|nat| Key::NatGateway(nat.vni)));
        let written = written.chain(update.services.iter().map(|service| Key::Service(service.id)));
        let written = written.chain(update.service_addresses.iter().flat_map(|it| of_mount(it.key())));
        let written = written.chain(update.policies.iter().map(|policy| Key::Policy(policy.key)));
        let written = written.chain(update.ports.iter().map(|port| Key::Port(port.instance)));
        let removed = update.removed_vteps.iter().copied().map(Key::Vtep);
        let removed = removed.chain(update.removed_vips.iter().copied().map(Key::Vip));
        let removed = removed.chain(update.removed_groups.iter().copied().map(Key::Group));
        let removed = removed.chain(update.removed_meters.iter().copied().map(Key::Meter));
        let removed = removed.chain(update.removed_vnis.iter().copied().map(Key::Vrf));
        let of_key = |key: &EndpointKey| endpoint(key.vni, key.ipv4, key.ipv6);
        let removed = removed.chain(update.removed_endpoints.iter().flat_map(of_key));
        let removed = removed.chain(update.removed_routes.iter().copied().map(Key::Route));
        let removed = removed.chain(update.removed_public_prefixes.iter().copied().map(Key::PublicPrefix));
        let removed = removed.chain(update.removed_nat_gateways.iter().copied().map(Key::NatGateway));
        let of_mounts = update.removed_service_addresses.iter();
        let removed = removed.chain(of_mounts.flat_map(|key| of_mount(*key)));
        let removed = removed.chain(update.removed_services.iter().copied().map(Key::Service));
        let removed = removed.chain(update.removed_ports.iter().copied().map(Key::Port));
        written.chain(removed).for_each(|key| self.remove(key));
        if !update.removed_vnis.is_empty() {
            // The routes, public prefixes and NAT gateway of a VNI are removed with it.
            let vni_of = |key: &Key, waiting: &Waiting| match (key, &waiting.entry) {
                (Key::Route(route), _) => Some(route.vni),
                (Key::NatGateway(vni), _) => Some(*vni),
                (_, Some(Entry::PublicPrefix(public))) => Some(public.vni),
                _ => None,
            };
            let is_removed = |vni: Option<Vni>| vni.is_some_and(|vni| update.removed_vnis.contains(&vni));
            for entries in [&mut self.entries, &mut self.unmetered] {
                entries.retain(|key, waiting| !is_removed(vni_of(key, waiting)));
            }
        }
    }

    /// Whether it is time for an attempt. The first call after a failure starts the delay.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        *self.due.get_or_insert(now + DELAYS.0) <= now
    }

    /// Memory may have become free: the next attempt is due at once.
    pub(super) fn expedite(&mut self) {
        (self.delay, self.due) = (None, Some(Instant::now()));
    }

    /// Takes all entries, for an attempt. Those that fail again are added again.
    pub(super) fn take(&mut self) -> Update {
        let mut update = Update::default();
        let unmetered = std::mem::take(&mut self.unmetered);
        for (key, waiting) in std::mem::take(&mut self.entries).into_iter().chain(unmetered) {
            match waiting.entry {
                Some(entry) => push(&mut update, entry),
                None => push_removal(&mut update, key),
            }
        }
        update
    }

    /// An attempt is over. `has_progress` if it wrote or removed an entry.
    pub(super) fn attempted(&mut self, now: Instant, has_progress: bool) {
        let delay = self.delay.filter(|_| !has_progress).map_or(DELAYS.0, |delay| (delay * 2).min(DELAYS.1));
        (self.delay, self.due) = (Some(delay), Some(now + delay));
    }
}

fn push(update: &mut Update, entry: Entry) {
    match entry {
        Entry::Vtep(vtep) => update.vteps.push(vtep),
        Entry::Vip(vip) => update.vips.push(vip),
        Entry::Group(group) => update.groups.push(group),
        Entry::Meter(meter) => update.meters.push(meter),
        Entry::Vrf(vrf) => update.vrfs.push(vrf),
        Entry::Endpoint(endpoint) => {
            let sluice_tables::Endpoint { vni, address, mac, host } = endpoint;
            let (ipv4, ipv6) = families(address);
            update.endpoints.push(sluice_southbound::Endpoint { vni, mac, host, ipv4, ipv6 });
        }
        Entry::Route(route) => update.routes.push(route),
        Entry::PublicPrefix(public) => update.public_prefixes.push(public),
        Entry::NatGateway(nat) => update.nat_gateways.push(nat),
        Entry::Service(service) => update.services.push(service),
        Entry::ServiceAddress(vni, address, service) => {
            let (ipv4, ipv6) = families(address);
            update.service_addresses.push(ServiceAddress { vni, service, ipv4, ipv6 });
        }
        Entry::Policy(policy) => update.policies.push(policy),
        Entry::Port(port) => update.ports.push(*port),
    }
}

fn push_removal(update: &mut Update, key: Key) {
    match key {
        Key::Vtep(address) => update.removed_vteps.push(address),
        Key::Vip(address) => update.removed_vips.push(address),
        Key::Group(id) => update.removed_groups.push(id),
        Key::Meter(id) => update.removed_meters.push(id),
        Key::Vrf(vni) => update.removed_vnis.push(vni),
        Key::Endpoint(vni, address) => {
            let (ipv4, ipv6) = families(address);
            update.removed_endpoints.push(EndpointKey { vni, ipv4, ipv6 });
        }
        Key::Route(key) => update.removed_routes.push(key),
        Key::PublicPrefix(outside) => update.removed_public_prefixes.push(outside),
        Key::NatGateway(vni) => update.removed_nat_gateways.push(vni),
        Key::Service(id) => update.removed_services.push(id),
        Key::ServiceAddress(vni, address) => {
            let (ipv4, ipv6) = families(address);
            update.removed_service_addresses.push(ServiceAddressKey { vni, ipv4, ipv6 });
        }
        // The controller removes no policies.
        Key::Policy(_) => {}
        Key::Port(instance) => update.removed_ports.push(instance),
    }
}

pub(super) fn families(address: IpAddr) -> (Option<std::net::Ipv4Addr>, Option<std::net::Ipv6Addr>) {
    match address {
        IpAddr::V4(v4) => (Some(v4), None),
        IpAddr::V6(v6) => (None, Some(v6)),
    }
}
