//! The entries of the cache, and the orders in which they are looked for.

use crate::{Destination, Path};
use sluice_types::Vni;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

/// Names an entry as long as it is there.
pub(super) type Slot = u32;

/// A destination that is reached directly, or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub destination: Destination,
    /// `None`: asked for, packets go to the gateway.
    pub path: Option<Path>,
    /// Paths of older revisions are not taken.
    pub revision_min: u64,
    /// When it goes if nothing is heard of it.
    pub expires_ms: u64,
    /// When it is asked for next.
    pub due_ms: u64,
    /// Questions since the last answer.
    pub unanswered: u8,
    /// When it was last seen in use.
    pub used_ms: u64,
    /// Hits between the last two times that they were told, and in all.
    pub recent_hits: u64,
    pub hits: u64,
}

impl Entry {
    /// The way that packets take: what the forwarding table holds.
    pub fn target(&self) -> Option<Destination> {
        self.path.map(|path| Destination { vni: path.vni, address: self.destination.address })
    }

    /// Smaller is colder.
    fn heat(&self) -> (u64, u64) {
        (self.used_ms, self.recent_hits)
    }
}

/// Entries by heat, the coldest first.
type Heat = BTreeSet<((u64, u64), Slot)>;

/// Entries by slot, with their orders. Each order has one row an entry, but for
/// `targets`, which has those with a path, and `sizes`, which has one a network.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<Slot>,
    slots: BTreeMap<Destination, Slot>,
    due: BTreeSet<(u64, Slot)>,
    expiry: BTreeSet<(u64, Slot)>,
    heat: Heat,
    /// The same within each network that has entries.
    networks: BTreeMap<Vni, Heat>,
    /// How many entries each has.
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
        self.entries[slot as usize].expect("the slot of an entry that is there")
    }

    /// `entry.destination` is not there yet.
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
        let entry = self.entries[slot as usize].take().expect("the slot of an entry that is there");
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

    /// Changes an entry; its destination stays.
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

    /// Whose place one more of a network takes: the coldest of the network that has most, so that no tenant's
    /// destinations drive out those of others; of its own if none has more.
    pub fn replaceable(&self, vni: Vni) -> Option<Slot> {
        let (most, largest) = *self.sizes.last()?;
        let own = self.networks.get(&vni).filter(|own| own.len() == most);
        own.or_else(|| self.networks.get(&largest))?.first().map(|(_, slot)| *slot)
    }

    /// The next to be asked for, if its time has come.
    pub fn due(&self, now_ms: u64) -> Option<Slot> {
        self.due.first().filter(|(due_ms, _)| *due_ms <= now_ms).map(|(_, slot)| *slot)
    }

    /// The next whose time is over.
    pub fn expired(&self, now_ms: u64) -> Option<Slot> {
        self.expiry.first().filter(|(expires_ms, _)| *expires_ms <= now_ms).map(|(_, slot)| *slot)
    }

    /// One that was last used at `until_ms` or before.
    pub fn unused_since(&self, until_ms: u64) -> Option<Slot> {
        self.heat.first().filter(|((used_ms, _), _)| *used_ms <= until_ms).map(|(_, slot)| *slot)
    }

    /// Those of a sender's network.
    pub fn of_vni(&self, vni: Vni) -> Vec<Slot> {
        let first = Destination { vni, address: IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        self.slots
            .range(first..)
            .take_while(|(destination, _)| destination.vni == vni)
            .map(|(_, slot)| *slot)
            .collect()
    }

    /// Those whose packets leave encapsulated for this destination.
    pub fn of_target(&self, target: Destination) -> Vec<Slot> {
        self.targets.range((target, 0)..=(target, Slot::MAX)).map(|(_, slot)| *slot).collect()
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.slots.values().filter_map(|slot| self.entries[*slot as usize].as_ref())
    }

    /// Panics where an order is not that of the entries.
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
