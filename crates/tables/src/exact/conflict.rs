//! The conflict table: full keys of IPv6 addresses that share a digest with another address of their VNI
//! (Sailfish section 4.4).
//!
//! A live entry never changes. It is put into an empty cell, key last, and removed by clearing the key. If an
//! entry must change, or no cell is free, a whole new run is published by one store.

use super::hash::{GENERATION_SHIFT, Hashing, PreparedKey, is_filled};
use super::{Entry, publish_run};
use crate::error::Error;
use crate::layout::{self, exact_conflict, exact_root};
use crate::memory::Memory;
use crate::pool::Pool;
use std::mem::offset_of;

const PROBES: u32 = layout::EXACT_CONFLICT_PROBES;
const COUNT_MIN: u32 = 16;

/// The run of cells of the conflict table; `count` is 0 before the first conflict.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conflicts {
    pub first: u32,
    pub count: u32,
}

/// An entry of the conflict table, with its full key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConflictEntry {
    pub word: u64,
    pub address: (u64, u64),
    pub entry: Entry,
}

impl Conflicts {
    fn key(&self, memory: &Memory, cell: u32) -> u64 {
        memory.load64(cell, offset_of!(exact_conflict, key))
    }

    fn entry(&self, memory: &Memory, cell: u32) -> Option<ConflictEntry> {
        let seen: exact_conflict = memory.read(cell);
        is_filled(seen.key).then_some(ConflictEntry {
            word: seen.key & layout::EXACT_KEY_MASK,
            address: (seen.address[0], seen.address[1]),
            entry: Entry {
                mac: seen.value & layout::EXACT_MAC_MASK,
                next: seen.next & layout::CELL_INDEX_MASK,
            },
        })
    }

    /// The cells in which an address can be, in the order of searching.
    fn probes(&self, hashing: &Hashing, word: u64, address: (u64, u64)) -> impl Iterator<Item = u32> + use<> {
        let Self { first, count } = *self;
        let start = if count == 0 { 0 } else { hashing.conflict_start(word, address, count) };
        (0..PROBES.min(count)).map(move |i| first + (start + i) % count)
    }

    /// All entries, with their cells.
    pub(super) fn all(&self, memory: &Memory) -> impl Iterator<Item = (u32, ConflictEntry)> {
        (self.first..self.first + self.count).filter_map(|cell| Some((cell, self.entry(memory, cell)?)))
    }

    /// Any entry with the digest of this key word.
    pub(super) fn any_with(&self, memory: &Memory, word: u64) -> Option<(u32, ConflictEntry)> {
        (self.first..self.first + self.count)
            .filter(|&cell| self.key(memory, cell) & layout::EXACT_KEY_MASK == word)
            .find_map(|cell| Some((cell, self.entry(memory, cell)?)))
    }

    /// The cell of an address, with its entry.
    pub(super) fn find(&self, memory: &Memory, hashing: &Hashing, key: &PreparedKey) -> Option<(u32, Entry)> {
        let address = key.address?;
        self.probes(hashing, key.word, address).find_map(|cell| {
            let conflict = self.entry(memory, cell)?;
            (conflict.word == key.word && conflict.address == address).then_some((cell, conflict.entry))
        })
    }

    /// An empty cell in which readers look for an address.
    pub(super) fn free_cell(
        &self,
        memory: &Memory,
        hashing: &Hashing,
        conflict: &ConflictEntry,
    ) -> Option<u32> {
        self.probes(hashing, conflict.word, conflict.address).find(|&cell| !is_filled(self.key(memory, cell)))
    }

    /// Adds an address by publishing a new, larger run.
    pub(super) fn grow(
        &mut self,
        pool: &mut Pool,
        hashing: &Hashing,
        conflict: ConflictEntry,
    ) -> Result<(), Error> {
        let mut entries: Vec<ConflictEntry> = self.all(pool.memory()).map(|(_, conflict)| conflict).collect();
        entries.push(conflict);
        self.rebuild(pool, hashing, &entries, (self.count * 2).max(COUNT_MIN))
    }

    /// Changes the entry of an address by publishing a new run.
    pub(super) fn replace(
        &mut self,
        pool: &mut Pool,
        hashing: &Hashing,
        cell: u32,
        entry: Entry,
    ) -> Result<(), Error> {
        let entries: Vec<ConflictEntry> = self
            .all(pool.memory())
            .map(|(at, conflict)| if at == cell { ConflictEntry { entry, ..conflict } } else { conflict })
            .collect();
        self.rebuild(pool, hashing, &entries, self.count)
    }

    /// Removes the entry of a cell.
    pub(super) fn remove(&self, memory: &Memory, cell: u32) {
        let key = self.key(memory, cell);
        memory.store64(cell, offset_of!(exact_conflict, key), key & !layout::EXACT_KEY_MASK);
    }

    /// Fills an empty cell.
    pub(super) fn put(&self, memory: &Memory, cell: u32, conflict: &ConflictEntry) {
        memory.store64(cell, offset_of!(exact_conflict, address), conflict.address.0);
        memory.store64(cell, offset_of!(exact_conflict, address) + 8, conflict.address.1);
        memory.store64(cell, offset_of!(exact_conflict, value), conflict.entry.mac);
        memory.store32(cell, offset_of!(exact_conflict, next), conflict.entry.next);
        let generation = (self.key(memory, cell) >> GENERATION_SHIFT).wrapping_add(1);
        memory.store64(cell, offset_of!(exact_conflict, key), conflict.word | generation << GENERATION_SHIFT);
    }

    /// Publishes a new run with these entries, of at least `count` cells, and retires the old run.
    fn rebuild(
        &mut self,
        pool: &mut Pool,
        hashing: &Hashing,
        entries: &[ConflictEntry],
        count: u32,
    ) -> Result<(), Error> {
        let mut count = count;
        loop {
            let new = Self { first: pool.allocate(count)?, count };
            let memory = pool.memory();
            let all_fit = entries.iter().all(|conflict| {
                new.free_cell(memory, hashing, conflict)
                    .inspect(|&cell| new.put(memory, cell, conflict))
                    .is_some()
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
