//! Growth of the exact match: a new run of buckets is filled and published by one store.

use super::hash::{PreparedKey, is_filled};
use super::table::{SLOTS, Table};
use super::{Exact, ROOT, publish_run};
use crate::error::Error;
use crate::layout::{self, exact_root};
use crate::memory::Memory;
use crate::pool::{Forecast, Pool};
use std::mem::offset_of;

/// Load for which a table is laid out, in percent. Two choices among buckets of three slots fill to about 95%
/// before no cuckoo path is found.
const LOAD_PERCENT: u64 = 88;
const BUCKETS_MIN: u32 = 64;
/// Sizes to which a table grows, in percent of its present size: the first for which there is memory.
const GROWTH_PERCENT: [u64; 3] = [200, 150, 120];

/// Number of buckets for this many entries.
pub(super) fn buckets_for(entries: u64) -> Result<u32, Error> {
    let count = entries.saturating_mul(100).div_ceil(LOAD_PERCENT * u64::from(SLOTS));
    if count > u64::from(layout::CELL_INDEX_MASK) {
        return Err(Error::Invalid(format!("{entries} entries are more than the exact match can hold")));
    }
    Ok((count as u32).max(BUCKETS_MIN))
}

/// Number of entries of which it is certain that this many buckets hold them.
fn certain_entries(count: u32) -> u64 {
    u64::from(count) * u64::from(SLOTS) * LOAD_PERCENT / 100
}

/// How many more entries certainly fit, if nothing else takes memory meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capacities {
    /// If none of them is an IPv6 address, unless there is one already.
    pub ipv4: u64,
    /// If any of them is an IPv6 address.
    pub ipv6: u64,
}

/// A table and the memory to which it grows.
#[derive(Clone)]
struct Growth {
    table: Table,
    pool: Forecast,
}

impl Growth {
    /// The next growth. Returns false if there is no memory for it.
    fn step(&mut self) -> bool {
        let Self { table, pool } = self;
        let count = table.count;
        let no_memory = || Error::Full { needed_cells: 0, free_cells: 0, total_cells: 0 };
        let grow_to = |count| {
            let first = pool.allocate(count).ok_or_else(no_memory)?;
            let mut new = Table { first, count, addresses: 0 };
            if table.addresses != 0 {
                let Some(addresses) = pool.allocate(Table::address_cells(count)) else {
                    pool.free(first, count);
                    return Err(no_memory());
                };
                new.addresses = addresses;
            }
            let old = std::mem::replace(table, new);
            pool.free(old.first, old.count);
            if old.addresses != 0 {
                pool.free(old.addresses, Table::address_cells(old.count));
            }
            Ok(())
        };
        grow_by_steps(count, no_memory(), grow_to).is_ok()
    }

    /// The number of entries that certainly fit after all growth.
    fn entries(mut self) -> u64 {
        while self.step() {}
        certain_entries(self.table.count)
    }

    /// As [`Growth::entries`], if the first IPv6 address comes now. 0 if there is no memory for the addresses.
    fn entries_with_addresses(mut self) -> u64 {
        if self.table.addresses == 0 {
            let Some(addresses) = self.pool.allocate(Table::address_cells(self.table.count)) else {
                return 0;
            };
            self.table.addresses = addresses;
        }
        self.entries()
    }

    /// As [`Growth::entries`], if the first IPv6 address comes at any time.
    fn entries_of_both_families(mut self) -> u64 {
        let mut entries = self.clone().entries_with_addresses();
        // A table that grew before may leave too little memory for the addresses. It does not grow before its certain
        // entries are exceeded.
        while self.table.addresses == 0 && entries > certain_entries(self.table.count) {
            let without_growth = certain_entries(self.table.count);
            if !self.step() {
                break;
            }
            entries = entries.min(self.clone().entries_with_addresses()).max(without_growth);
        }
        entries
    }
}

/// Calls `grow_to` with each size to which a table of `count` buckets can grow, until one finds memory.
/// Returns `full` if there are too few cell numbers for any of them.
fn grow_by_steps(
    count: u32,
    full: Error,
    mut grow_to: impl FnMut(u32) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut result = Err(full);
    for percent in GROWTH_PERCENT {
        let larger = u64::from(count) * percent / 100;
        if larger > u64::from(layout::CELL_INDEX_MASK) {
            continue;
        }
        result = grow_to(larger as u32);
        if !matches!(result, Err(Error::Full { .. })) {
            break;
        }
    }
    result
}

pub(super) fn address_offset(word: usize) -> usize {
    offset_of!(exact_root, addresses) + word * 8
}

/// Stores the link to the address run, together with the buckets to which it belongs.
fn publish_addresses(memory: &Memory, word: usize, table: &Table) {
    let value = u64::from(table.addresses) | u64::from(table.first) << 32;
    memory.store64(ROOT, address_offset(word), value);
}

impl Exact {
    /// How many more entries certainly fit. Buckets refuse a key before they are full, and growth needs memory for the
    /// new table beside the old one, so this is less than the empty slots and the free cells.
    pub(crate) fn capacities(&self, pool: &Pool) -> Capacities {
        let growth = Growth { table: self.table, pool: pool.forecast() };
        let ipv4 = growth.clone().entries();
        let ipv6 = growth.entries_of_both_families().min(ipv4);
        Capacities { ipv4: ipv4.saturating_sub(self.entries), ipv6: ipv6.saturating_sub(self.entries) }
    }

    /// Makes the table large enough for `entries` entries in all.
    pub(crate) fn reserve(&mut self, pool: &mut Pool, entries: usize) -> Result<(), Error> {
        let count = buckets_for(entries as u64)?;
        if count > self.table.count { self.grow_to(pool, count) } else { Ok(()) }
    }

    pub(super) fn grow(&mut self, pool: &mut Pool) -> Result<(), Error> {
        let total_cells = u64::from(pool.memory().cells());
        let full = Error::Full {
            needed_cells: u64::from(self.table.count) + 1,
            free_cells: pool.free_cells(),
            total_cells,
        };
        grow_by_steps(self.table.count, full, |count| self.grow_to(pool, count))
    }

    /// Adds the address run, before the first IPv6 entry.
    pub(super) fn add_addresses(&mut self, pool: &mut Pool) -> Result<(), Error> {
        pool.consolidate();
        self.table.addresses = pool.allocate(Table::address_cells(self.table.count))?;
        publish_addresses(pool.memory(), self.address_word, &self.table);
        Ok(())
    }

    fn grow_to(&mut self, pool: &mut Pool, count: u32) -> Result<(), Error> {
        // `forecast` is exact only if all free runs are joined.
        pool.consolidate();
        let mut new = Table { first: pool.allocate(count)?, count, addresses: 0 };
        if self.table.addresses != 0 {
            match pool.allocate(Table::address_cells(count)) {
                Ok(first) => new.addresses = first,
                Err(full) => {
                    pool.give_back(new.first, count);
                    return Err(full);
                }
            }
        }
        if !self.copy_to(pool.memory(), &new) {
            pool.give_back(new.first, count);
            if new.addresses != 0 {
                pool.give_back(new.addresses, Table::address_cells(count));
            }
            return Err(Error::Full {
                needed_cells: u64::from(count),
                free_cells: pool.free_cells(),
                total_cells: u64::from(pool.memory().cells()),
            });
        }
        self.switch_to(pool, new);
        Ok(())
    }

    /// Copies all entries to a table that readers do not see yet. Returns false if they do not fit.
    fn copy_to(&self, memory: &Memory, new: &Table) -> bool {
        let old = &self.table;
        for slot in old.all_slots() {
            let word = old.key(memory, slot);
            if !is_filled(word) {
                continue;
            }
            let word = word & layout::EXACT_KEY_MASK;
            let address = (old.addresses != 0).then(|| old.address(memory, slot));
            let key = PreparedKey { word, check: 0, address, hash: self.hashing.hash(word) };
            let found = new.free_slot_by_moving(memory, &self.hashing, key.hash, &mut |_| Ok(()));
            let Ok(Some(to)) = found else { return false };
            new.fill(memory, to, &key, old.value(memory, slot), old.next(memory, slot));
        }
        true
    }

    /// Publishes a new table and retires the old one. The order matters to a successor: the link to the new
    /// address run is stored before the buckets to which it belongs, and the old link is removed after.
    fn switch_to(&mut self, pool: &mut Pool, new: Table) {
        let memory = pool.memory();
        let old = std::mem::replace(&mut self.table, new);
        let old_word = self.address_word;
        self.address_word = 1 - old_word;
        if new.addresses != 0 {
            publish_addresses(memory, self.address_word, &new);
        }
        publish_run(memory, offset_of!(exact_root, buckets), new.first, new.count);
        memory.store64(ROOT, address_offset(old_word), 0);
        pool.retire(old.first, old.count);
        if old.addresses != 0 {
            pool.retire(old.addresses, Table::address_cells(old.count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(needed_cells: u64) -> Error {
        Error::Full { needed_cells, free_cells: 0, total_cells: 0 }
    }

    #[test]
    fn growth_fails_if_no_size_is_possible() {
        let max = layout::CELL_INDEX_MASK;
        let mut tried = Vec::new();
        let mut always_full = |count: u32| {
            tried.push(count);
            Err(full(count.into()))
        };
        assert_eq!(grow_by_steps(max - 5, full(1), &mut always_full), Err(full(1)));
        assert_eq!(grow_by_steps(max / 6 * 5, full(1), &mut always_full), Err(full(u64::from(max / 6 * 6))));
        assert_eq!(grow_by_steps(100, full(1), &mut always_full), Err(full(120)));
        assert_eq!(tried, [max / 6 * 6, 200, 150, 120]);
        let mut sizes = Vec::new();
        let up_to_150 = |count: u32| {
            sizes.push(count);
            if count > 150 { Err(full(2)) } else { Ok(()) }
        };
        assert_eq!(grow_by_steps(100, full(1), up_to_150), Ok(()));
        assert_eq!(sizes, [200, 150], "growth continued after a size that found memory");
    }
}
