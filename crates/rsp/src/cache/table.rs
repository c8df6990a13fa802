//! The entries of the cache, with one index for each order in which the cache searches them.

use crate::message::{Destination, Path};
use sluice_types::{IpNet, Vni};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

/// Index of an entry, valid until the entry is removed.
pub(super) type Slot = u32;

/// A destination that has a path or is being resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub destination: Destination,
    /// `None` while the destination is being resolved; packets go to the gateway.
    pub path: Option<Path>,
    /// Paths with an older revision are not accepted.
    pub revision_min: u64,
    /// Time at which the entry is removed if no answer confirms it.
    pub expires_ms: u64,
    /// Time of the next query.
    pub due_ms: u64,
    /// Number of queries since the last answer.
    pub unanswered: u8,
    /// All changes of the path are told by the answers about its network.
    pub is_covered: bool,
    /// Time at which the path was last seen in use.
    pub used_ms: u64,
    /// Growth of the hit counter between its last two readings.
    pub recent_hits: u64,
    /// Last reading of the hit counter.
    pub hits: u64,
}

impl Entry {
    /// Destination in the encapsulated packets: the VNI is the one that the path encapsulates with.
    pub fn target(&self) -> Option<Destination> {
        self.path.map(|path| Destination { vni: path.vni, address: self.destination.address })
    }

    /// Sort key for replacement: the entry with the smallest key is replaced first.
    fn heat(&self) -> (u64, u64) {
        (self.used_ms, self.recent_hits)
    }
}

/// Entries ordered by heat, the least used first.
type Heat = BTreeSet<((u64, u64), Slot)>;

/// Entries by slot, with their indexes. Each index has one element per entry, except `targets`, which has
/// only entries with a path, and `sizes`, which has one element per network.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<Slot>,
    slots: BTreeMap<Destination, Slot>,
    due: BTreeSet<(u64, Slot)>,
    expiry: BTreeSet<(u64, Slot)>,
    heat: Heat,
    /// Entries of each network, ordered by heat.
    networks: BTreeMap<Vni, Heat>,
    /// Networks ordered by their number of entries.
    sizes: BTreeSet<(usize, Vni)>,
    targets: BTreeSet<(Destination, Slot)>,
}

impl Table {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn paths(&self) -> usize {
        self.targets.len()
    }

    pub fn find(&self, destination: &Destination) -> Option<Slot> {
        self.slots.get(destination).copied()
    }

    pub fn get(&self, slot: Slot) -> Entry {
        self.entries[slot as usize].expect("the slot of an existing entry")
    }

    /// Adds an entry. The table must not contain its destination yet.
    pub fn insert(&mut self, entry: Entry) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as Slot
        });
        self.entries[slot as usize] = Some(entry);
        self.slots.insert(entry.destination, slot);
        self.due.insert((entry.due_ms, slot));
        self.expiry.insert((entry.expires_ms, slot));
        self.heat.insert((entry.heat(), slot));
        self.change_network(entry.destination.vni, |heat| heat.insert((entry.heat(), slot)));
        self.targets.extend(entry.target().map(|target| (target, slot)));
        slot
    }

    pub fn remove(&mut self, slot: Slot) -> Entry {
        let entry = self.entries[slot as usize].take().expect("the slot of an existing entry");
        self.free.push(slot);
        self.slots.remove(&entry.destination);
        self.due.remove(&(entry.due_ms, slot));
        self.expiry.remove(&(entry.expires_ms, slot));
        self.heat.remove(&(entry.heat(), slot));
        self.change_network(entry.destination.vni, |heat| heat.remove(&(entry.heat(), slot)));
        if let Some(target) = entry.target() {
            self.targets.remove(&(target, slot));
        }
        entry
    }

    /// Changes an entry. Its destination must stay the same.
    pub fn update(&mut self, slot: Slot, change: impl FnOnce(&mut Entry)) {
        let before = self.get(slot);
        let mut after = before;
        change(&mut after);
        self.entries[slot as usize] = Some(after);
        if before.due_ms != after.due_ms {
            self.due.remove(&(before.due_ms, slot));
            self.due.insert((after.due_ms, slot));
        }
        if before.expires_ms != after.expires_ms {
            self.expiry.remove(&(before.expires_ms, slot));
            self.expiry.insert((after.expires_ms, slot));
        }
        if before.heat() != after.heat() {
            self.heat.remove(&(before.heat(), slot));
            self.heat.insert((after.heat(), slot));
            self.change_network(before.destination.vni, |heat| {
                heat.remove(&(before.heat(), slot));
                heat.insert((after.heat(), slot))
            });
        }
        if before.target() != after.target() {
            if let Some(target) = before.target() {
                self.targets.remove(&(target, slot));
            }
            self.targets.extend(after.target().map(|target| (target, slot)));
        }
    }

    fn change_network(&mut self, vni: Vni, change: impl FnOnce(&mut Heat) -> bool) {
        let network = self.networks.entry(vni).or_default();
        let before = network.len();
        change(network);
        let after = network.len();
        if after == 0 {
            self.networks.remove(&vni);
        }
        if before != after {
            self.sizes.remove(&(before, vni));
            self.sizes.extend((after != 0).then_some((after, vni)));
        }
    }

    /// Finds the entry that a new entry of network `vni` replaces: the least used entry of the network with
    /// the most entries, so that one tenant's destinations do not displace those of others. If no network has
    /// more entries than `vni`, it is an entry of `vni` itself.
    pub fn find_replaceable(&self, vni: Vni) -> Option<Slot> {
        let (most, largest) = *self.sizes.last()?;
        let own = self.networks.get(&vni).filter(|own| own.len() == most);
        own.or_else(|| self.networks.get(&largest))?.first().map(|(_, slot)| *slot)
    }

    /// Finds the next entry whose query is due.
    pub fn find_due(&self, now_ms: u64) -> Option<Slot> {
        self.due.first().filter(|(due_ms, _)| *due_ms <= now_ms).map(|(_, slot)| *slot)
    }

    /// Finds an entry that has expired.
    pub fn find_expired(&self, now_ms: u64) -> Option<Slot> {
        self.expiry.first().filter(|(expires_ms, _)| *expires_ms <= now_ms).map(|(_, slot)| *slot)
    }

    /// Finds an entry that was last used at `until_ms` or before.
    pub fn find_unused_since(&self, until_ms: u64) -> Option<Slot> {
        self.heat.first().filter(|((used_ms, _), _)| *used_ms <= until_ms).map(|(_, slot)| *slot)
    }

    /// Lists the entries of a sender's network.
    pub fn slots_of_network(&self, vni: Vni) -> Vec<Slot> {
        let first = Destination { vni, address: IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        self.slots
            .range(first..)
            .take_while(|(destination, _)| destination.vni == vni)
            .map(|(_, slot)| *slot)
            .collect()
    }

    /// Whether a sender's network has entries.
    pub fn has_network(&self, vni: Vni) -> bool {
        self.networks.contains_key(&vni)
    }

    /// Lists the entries of a sender's network whose destination is in a prefix.
    pub fn slots_within(&self, vni: Vni, prefix: IpNet) -> Vec<Slot> {
        let at = |address| Destination { vni, address };
        let all = at(prefix.network())..=at(prefix.broadcast());
        self.slots.range(all).map(|(_, slot)| *slot).collect()
    }

    /// Lists the entries whose packets leave this host encapsulated for this destination.
    pub fn slots_of_target(&self, target: Destination) -> Vec<Slot> {
        self.targets.range((target, 0)..=(target, Slot::MAX)).map(|(_, slot)| *slot).collect()
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.slots.values().filter_map(|slot| self.entries[*slot as usize].as_ref())
    }

    /// Panics if an index does not agree with the entries.
    #[cfg(test)]
    pub fn check(&self) {
        let of = |slot: &Slot| self.get(*slot);
        for (destination, slot) in &self.slots {
            let entry = of(slot);
            assert_eq!(entry.destination, *destination);
            assert!(self.due.contains(&(entry.due_ms, *slot)));
            assert!(self.expiry.contains(&(entry.expires_ms, *slot)));
            assert!(self.heat.contains(&(entry.heat(), *slot)));
            assert!(self.networks[&destination.vni].contains(&(entry.heat(), *slot)));
            assert!(entry.target().is_none_or(|target| self.targets.contains(&(target, *slot))));
        }
        let paths = self.entries().filter(|entry| entry.path.is_some()).count();
        let all = self.slots.len();
        let rows = [self.due.len(), self.expiry.len(), self.heat.len(), self.targets.len()];
        assert_eq!(rows, [all, all, all, paths]);
        assert_eq!(self.networks.values().map(BTreeSet::len).sum::<usize>(), all);
        let sizes = self.networks.iter().map(|(vni, network)| (network.len(), *vni));
        assert_eq!(self.sizes, sizes.collect());
        assert_eq!(all + self.free.len(), self.entries.len());
    }
}
