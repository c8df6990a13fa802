//! The conflict table: full keys of IPv6 addresses that share a digest with
//! another address of their VNI (Sailfish section 4.4).
//!
//! A live entry never changes. It is entered in an empty cell, key last, and
//! taken out by clearing the key; where a value must change or no cell is free,
//! a whole new run is published by one store.

use super::hash::{GENERATION_SHIFT, Hashing, Prepared, is_filled};
use super::{Entry, publish_run};
use crate::error::Error;
use crate::layout::{self, exact_conflict, exact_root};
use crate::memory::Memory;
use crate::pool::Pool;
use std::mem::offset_of;

const PROBES: u32 = layout::EXACT_CONFLICT_PROBES;
const COUNT_MIN: u32 = 16;

/// The run of cells; `count` 0 before the first conflict.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conflicts {
    pub first: u32,
    pub count: u32,
}

/// A full entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub word: u64,
    pub address: (u64, u64),
    pub entry: Entry,
}

impl Conflicts {
    fn key(&self, memory: &Memory, cell: u32) -> u64 {
        memory.load64(cell, offset_of!(exact_conflict, key))
    }

    fn full(&self, memory: &Memory, cell: u32) -> Option<Full> {
        let seen: exact_conflict = memory.read(cell);
        is_filled(seen.key).then_some(Full {
            word: seen.key & layout::EXACT_KEY_MASK,
            address: (seen.address[0], seen.address[1]),
            entry: Entry {
                mac: seen.value & layout::EXACT_MAC_MASK,
                next: seen.next & layout::CELL_INDEX_MASK,
            },
        })
    }

    fn probes(&self, hashing: &Hashing, word: u64, address: (u64, u64)) -> impl Iterator<Item = u32> + use<> {
        let Self { first, count } = *self;
        let home = if count == 0 { 0 } else { hashing.conflict_home(word, address, count) };
        (0..PROBES.min(count)).map(move |i| first + (home + i) % count)
    }

    /// All entries, with their cells.
    pub(super) fn all(&self, memory: &Memory) -> impl Iterator<Item = (u32, Full)> {
        (self.first..self.first + self.count).filter_map(|cell| Some((cell, self.full(memory, cell)?)))
    }

    /// An entry with this digest, whichever address it has.
    pub(super) fn any_with(&self, memory: &Memory, word: u64) -> Option<(u32, Full)> {
        (self.first..self.first + self.count)
            .filter(|&cell| self.key(memory, cell) & layout::EXACT_KEY_MASK == word)
            .find_map(|cell| Some((cell, self.full(memory, cell)?)))
    }

    /// The cell of an address.
    pub(super) fn find(&self, memory: &Memory, hashing: &Hashing, key: &Prepared) -> Option<(u32, Entry)> {
        let address = key.full?;
        self.probes(hashing, key.word, address).find_map(|cell| {
            let full = self.full(memory, cell)?;
            (full.word == key.word && full.address == address).then_some((cell, full.entry))
        })
    }

    /// A cell where readers look for an address and nothing stands.
    pub(super) fn free_cell(&self, memory: &Memory, hashing: &Hashing, full: &Full) -> Option<u32> {
        self.probes(hashing, full.word, full.address).find(|&cell| !is_filled(self.key(memory, cell)))
    }

    /// Enters an address that is not there, by a new, larger run.
    pub(super) fn grow(&mut self, pool: &mut Pool, hashing: &Hashing, full: Full) -> Result<(), Error> {
        let mut entries: Vec<Full> = self.all(pool.memory()).map(|(_, full)| full).collect();
        entries.push(full);
        self.rebuild(pool, hashing, &entries, (self.count * 2).max(COUNT_MIN))
    }

    /// Gives an address another entry, by a new run.
    pub(super) fn replace(
        &mut self,
        pool: &mut Pool,
        hashing: &Hashing,
        cell: u32,
        entry: Entry,
    ) -> Result<(), Error> {
        let entries: Vec<Full> = self
            .all(pool.memory())
            .map(|(at, full)| if at == cell { Full { entry, ..full } } else { full })
            .collect();
        self.rebuild(pool, hashing, &entries, self.count)
    }

    /// Takes an entry out.
    pub(super) fn remove(&self, memory: &Memory, cell: u32) {
        let key = self.key(memory, cell);
        memory.store64(cell, offset_of!(exact_conflict, key), key & !layout::EXACT_KEY_MASK);
    }

    /// Fills a free cell.
    pub(super) fn put(&self, memory: &Memory, cell: u32, full: &Full) {
        memory.store64(cell, offset_of!(exact_conflict, address), full.address.0);
        memory.store64(cell, offset_of!(exact_conflict, address) + 8, full.address.1);
        memory.store64(cell, offset_of!(exact_conflict, value), full.entry.mac);
        memory.store32(cell, offset_of!(exact_conflict, next), full.entry.next);
        let generation = (self.key(memory, cell) >> GENERATION_SHIFT).wrapping_add(1);
        memory.store64(cell, offset_of!(exact_conflict, key), full.word | generation << GENERATION_SHIFT);
    }

    fn rebuild(
        &mut self,
        pool: &mut Pool,
        hashing: &Hashing,
        entries: &[Full],
        count: u32,
    ) -> Result<(), Error> {
        let mut count = count;
        loop {
            let new = Self { first: pool.allocate(count)?, count };
            let memory = pool.memory();
            let all_fit = entries.iter().all(|full| {
                new.free_cell(memory, hashing, full).inspect(|&cell| new.put(memory, cell, full)).is_some()
            });
            if all_fit {
                publish_run(memory, offset_of!(exact_root, conflicts), new.first, new.count);
                if self.count > 0 {
                    pool.retire(self.first, self.count);
                }
                *self = new;
                return Ok(());
            }
            pool.give_back(new.first, new.count);
            count = count.saturating_mul(2);
        }
    }
}
