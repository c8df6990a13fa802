//! Growth of the exact match: a new run of buckets is filled and published by one store.

use super::hash::{PreparedKey, is_filled};
use super::table::{SLOTS, Table};
use super::{Exact, ROOT, publish_run};
use crate::error::Error;
use crate::layout::{self, exact_root};
use crate::memory::Memory;
use crate::pool::Pool;
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
        self.table.addresses = pool.allocate(Table::address_cells(self.table.count))?;
        publish_addresses(pool.memory(), self.address_word, &self.table);
        Ok(())
    }

    fn grow_to(&mut self, pool: &mut Pool, count: u32) -> Result<(), Error> {
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
