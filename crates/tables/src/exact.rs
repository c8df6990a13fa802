//! Exact match: finds a MAC and a cell by (VNI, address) or (VNI, index), in one table for all kinds of keys
//! and both families. The layout is that of `cells.h`; it and the reader in `exact_match.h` change together
//! with this module.
//!
//! # The life of a slot
//!
//! ```text
//!          fill: store address, value, next, then the key with generation g+1
//!   empty (g) ------------------------------------------------------> filled (g+1)
//!       ^                                                               |    | ^  change of one word: store
//!       |      clear: store the key word without kind, VNI, id          |    | |  value or next, then key
//!       +---------------------------------------------------------------+    +-+  with the next generation
//! ```
//!
//! An entry moves to another slot, or changes both words, in three steps: a copy in the other slot is filled,
//! the version of the key's first bucket is incremented, the old slot is cleared.
//!
//! # Why readers get correct answers
//!
//! There is one writer, and any number of readers that load key, value, next, and the key again.
//!
//! - *Insertion*: value and next are stored before the key. Readers do not look at them without the key.
//! - *Change of one word*: the word is stored, then the key with the next generation. A reader sees the old
//!   or the new word. If two changes happen between its loads, it sees that the key has changed, and retries.
//! - *Change of both words, cuckoo move*: if the copy is behind the old slot in the order of searching, a
//!   reader that finds the old slot cleared finds the copy. If it is before the old slot, a reader that
//!   passed it too early sees that the version has changed. A lookup that began before the old slot was
//!   filled can find the copy behind it, and the next lookup the old slot once more, while the change is in
//!   progress; never after it has ended.
//! - *Growth*: all entries are copied to a new run, which is published by one store. The old run keeps its
//!   contents until a grace period has passed.
//! - *Generations* have 6 bits. Before the generation of any slot is stepped 63 times within one grace
//!   period, a grace period is waited for ([`Exact::before_generation_step`]), so that no reader can see a
//!   generation return to the same value.
//! - *Digests*: an address with the same digest as an entry is put into the conflict table first; then the
//!   main entry is flagged. If the address of a flagged main entry is removed, an address of the conflict
//!   table is promoted: it replaces the address in the slot. The flag leads readers to the conflict table
//!   meanwhile. Only after a grace period, when every reader sees the new main entry, the copy in the
//!   conflict table is cleared.
//!
//! ```text
//!   main entry:
//!               insert_conflict            take: replace_main_entry
//!   unflagged ------------------> flagged ---------------------------> promoted: address is in both tables
//!      ^                           |   ^                                               |
//!      |      remove_conflict      |   |  grace period, remove_conflict; others remain |
//!      +------- of the last -------+   +-----------------------------------------------+
//! ```
//!
//! An IPv6 address that is *not* in the table is mistaken for an entry if all 48 bits of their digests agree.
//! With the random seed this has a probability of 2^-48 for each entry of its VNI. An address in the table is
//! never mistaken for another.

mod adopt;
mod conflict;
mod grow;
mod hash;
mod pairs;
mod table;
#[cfg(test)]
mod tests;
mod visible;

use crate::error::Error;
use crate::layout::{self, exact_root};
use crate::memory::Memory;
use crate::pool::Pool;
pub(crate) use adopt::Survey;
use conflict::{ConflictEntry, Conflicts};
use hash::PreparedKey;
pub(crate) use hash::{Hashing, Key, buckets_of, is_filled, mix};
pub(crate) use pairs::{PairCounts, PairMap};
use std::mem::offset_of;
use std::net::IpAddr;
use table::{Slot, Table};

const ROOT: u32 = layout::CELL_EXACT_ROOT;
/// Generation steps of one counter after which the writer waits for a grace period. It is below the 64
/// generations by more than the steps of one operation.
const GENERATION_STEPS_MAX: u8 = 56;
/// Counters of generation steps; slots whose numbers are equal modulo this share one.
const STEP_COUNTERS: usize = 1 << 16;

/// The entry of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    /// MAC in the form of `EXACT_MAC_MASK`.
    pub mac: u64,
    /// Index of the cell that the entry leads to, without flags.
    pub next: u32,
}

/// The writer of the table.
pub(crate) struct Exact {
    hashing: Hashing,
    table: Table,
    /// Which of the root's two `addresses` words leads to the address run.
    address_word: usize,
    conflicts: Conflicts,
    entries: u64,
    conflict_entries: u64,
    /// By slot number modulo [`STEP_COUNTERS`]: generation steps since the last grace period.
    generation_steps: Vec<u8>,
}

/// The position of a key in the table.
enum Position {
    Main(Slot),
    /// A cell of the conflict table, with its entry.
    Conflict(u32, Entry),
    /// The key is absent; the slot holds another address with the same digest.
    DigestTaken(Slot),
    Absent,
}

/// Stores a run as a root word: first cell in the low half, number of cells in the high half.
fn publish_run(memory: &Memory, offset: usize, first: u32, count: u32) {
    memory.store64(ROOT, offset, u64::from(first) | u64::from(count) << 32);
}

impl Exact {
    /// Creates an empty table large enough for `entries`.
    pub(crate) fn create(pool: &mut Pool, entries: usize, hashing: Hashing) -> Result<Self, Error> {
        let count = grow::buckets_for(entries as u64)?;
        let first = pool.allocate(count)?;
        let root = exact_root { seed: hashing.seed, digest_mask: hashing.digest_mask, ..Default::default() };
        pool.memory().write(ROOT, &root);
        publish_run(pool.memory(), offset_of!(exact_root, buckets), first, count);
        Ok(Self::with(hashing, Table { first, count, addresses: 0 }, 0, Conflicts::default()))
    }

    fn with(hashing: Hashing, table: Table, address_word: usize, conflicts: Conflicts) -> Self {
        let generation_steps = vec![0; STEP_COUNTERS];
        Self { hashing, table, address_word, conflicts, entries: 0, conflict_entries: 0, generation_steps }
    }

    /// The key of a sender, and the check in its value.
    pub(crate) fn sender(&self, vni: u32, host: IpAddr) -> (Key, u64) {
        self.hashing.sender(vni, host)
    }

    /// Number of entries, including those in the conflict table.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    pub(crate) fn slots(&self) -> u64 {
        self.table.slots()
    }

    /// Numbers of entries and of cells of the conflict table.
    pub(crate) fn conflict_usage(&self) -> (u64, u64) {
        (self.conflict_entries, u64::from(self.conflicts.count))
    }

    /// Stores the numbers of entries in the root, for debuggers. Single changes do not store them, because
    /// every reader reads this cell.
    pub(crate) fn store_counts(&self, memory: &Memory) {
        memory.store64(ROOT, offset_of!(exact_root, entries), self.entries);
        memory.store64(ROOT, offset_of!(exact_root, conflict_entries), self.conflict_entries);
    }

    /// Prefetches the cells of a key that will be put soon.
    pub(crate) fn prefetch(&self, memory: &Memory, key: Key) {
        let key = self.hashing.prepare(key);
        let (one, two) = buckets_of(key.hash, self.table.count);
        for bucket in [one, two] {
            memory.prefetch(self.table.first + bucket);
            if key.address.is_some() && self.table.addresses != 0 {
                self.table.prefetch_addresses(memory, bucket);
            }
        }
    }

    /// The entry of a key.
    pub(crate) fn get(&self, memory: &Memory, key: Key) -> Option<Entry> {
        match self.locate(memory, &self.hashing.prepare(key)) {
            Position::Main(slot) => Some(self.entry(memory, slot)),
            Position::Conflict(_, entry) => Some(entry),
            Position::DigestTaken(_) | Position::Absent => None,
        }
    }

    /// Adds or changes a key. Returns the entry that it had.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Grace`]; the key then has its previous entry.
    pub(crate) fn put(&mut self, pool: &mut Pool, key: Key, entry: Entry) -> Result<Option<Entry>, Error> {
        let key = self.hashing.prepare(key);
        match self.locate(pool.memory(), &key) {
            Position::Absent => {
                self.insert(pool, &key, entry)?;
                self.entries += 1;
                Ok(None)
            }
            Position::Main(slot) => {
                let old = self.entry(pool.memory(), slot);
                if old != entry {
                    self.finish_promotion(pool, &key, slot)?;
                    self.change(pool, &key, slot, entry)?;
                }
                Ok(Some(old))
            }
            Position::Conflict(cell, old) => {
                if old != entry {
                    self.conflicts.replace(pool, &self.hashing, cell, entry)?;
                }
                Ok(Some(old))
            }
            Position::DigestTaken(slot) => {
                self.insert_conflict(pool, &key, slot, entry)?;
                self.entries += 1;
                Ok(None)
            }
        }
    }

    /// Changes the entry of a key that is in the table, without allocating memory. If more than one word
    /// changes, readers miss the key for an instant. Does nothing if the key is absent.
    ///
    /// # Errors
    /// [`Error::Grace`] only.
    pub(crate) fn overwrite(&mut self, pool: &mut Pool, key: Key, entry: Entry) -> Result<(), Error> {
        let key = self.hashing.prepare(key);
        match self.locate(pool.memory(), &key) {
            Position::Main(slot) => {
                let old = self.entry(pool.memory(), slot);
                self.finish_promotion(pool, &key, slot)?;
                if old.mac == entry.mac || old.next == entry.next {
                    return self.change(pool, &key, slot, entry);
                }
                Self::before_generation_step(&mut self.generation_steps, pool, slot.number())?;
                let memory = pool.memory();
                let flag = self.table.next(memory, slot) & layout::EXACT_CONFLICT;
                self.table.clear(memory, slot);
                self.table.fill(memory, slot, &key, entry.mac | key.check, entry.next | flag);
            }
            Position::Conflict(cell, _) => {
                Self::before_generation_step(&mut self.generation_steps, pool, cell)?;
                let address = key.address.expect("only IPv6 keys have digests");
                self.conflicts.remove(pool.memory(), cell);
                self.conflicts.put(pool.memory(), cell, &ConflictEntry { word: key.word, address, entry });
            }
            Position::DigestTaken(_) | Position::Absent => {}
        }
        Ok(())
    }

    /// Removes a key. Returns the entry that it had.
    ///
    /// # Errors
    /// [`Error::Grace`] only.
    pub(crate) fn take(&mut self, pool: &mut Pool, key: Key) -> Result<Option<Entry>, Error> {
        let key = self.hashing.prepare(key);
        let old = match self.locate(pool.memory(), &key) {
            Position::Absent | Position::DigestTaken(_) => return Ok(None),
            Position::Main(slot) => {
                let old = self.entry(pool.memory(), slot);
                self.finish_promotion(pool, &key, slot)?;
                if self.is_flagged(pool.memory(), slot) {
                    self.promote(pool, slot, key.word)?;
                } else {
                    self.table.clear(pool.memory(), slot);
                }
                old
            }
            Position::Conflict(cell, old) => {
                self.remove_conflict(pool, cell, key.word);
                old
            }
        };
        self.entries -= 1;
        Ok(Some(old))
    }

    /// All entries, in no particular order.
    pub(crate) fn iter<'a>(&'a self, memory: &'a Memory) -> impl Iterator<Item = (Key, Entry)> + 'a {
        let main = self.table.all_slots().filter_map(move |slot| {
            let word = self.table.key(memory, slot);
            if !is_filled(word) {
                return None;
            }
            let key = self.hashing.restore(word, || self.table.address(memory, slot))?;
            Some((key, self.entry(memory, slot)))
        });
        let conflicts = self.conflicts.all(memory).filter_map(move |(_, conflict)| {
            let key = self.hashing.restore(conflict.word, || conflict.address)?;
            // An address whose promotion is not finished is in both tables.
            let main = self.locate(memory, &self.hashing.prepare(key));
            matches!(main, Position::Conflict(..)).then_some((key, conflict.entry))
        });
        main.chain(conflicts)
    }

    fn locate(&self, memory: &Memory, key: &PreparedKey) -> Position {
        let Some(slot) = self.table.find(memory, key) else { return Position::Absent };
        let Some(address) = key.address else { return Position::Main(slot) };
        if self.table.address(memory, slot) == address {
            return Position::Main(slot);
        }
        match self.conflicts.find(memory, &self.hashing, key) {
            Some((cell, entry)) => Position::Conflict(cell, entry),
            None => Position::DigestTaken(slot),
        }
    }

    fn entry(&self, memory: &Memory, slot: Slot) -> Entry {
        Entry {
            mac: self.table.value(memory, slot) & layout::EXACT_MAC_MASK,
            next: self.table.next(memory, slot) & layout::CELL_INDEX_MASK,
        }
    }

    fn is_flagged(&self, memory: &Memory, slot: Slot) -> bool {
        self.table.next(memory, slot) & layout::EXACT_CONFLICT != 0
    }

    /// Called before the generation of a slot or conflict cell is stepped. Waits for a grace period before
    /// the generation could return to a value that a reader has seen.
    fn before_generation_step(
        generation_steps: &mut [u8],
        pool: &mut Pool,
        number: u32,
    ) -> Result<(), Error> {
        let counter = number as usize % STEP_COUNTERS;
        if generation_steps[counter] >= GENERATION_STEPS_MAX {
            pool.flush()?;
            generation_steps.fill(0);
        }
        generation_steps[counter] += 1;
        Ok(())
    }

    /// Finds an empty slot for a key, if necessary by moving other entries or by growth.
    fn allocate_slot(&mut self, pool: &mut Pool, key: &PreparedKey) -> Result<Slot, Error> {
        if key.address.is_some() && self.table.addresses == 0 {
            self.add_addresses(pool)?;
        }
        loop {
            if let Some(slot) = self.table.empty_slot(pool.memory(), key.hash) {
                Self::before_generation_step(&mut self.generation_steps, pool, slot.number())?;
                return Ok(slot);
            }
            let (table, hashing) = (self.table, self.hashing);
            let generation_steps = &mut self.generation_steps;
            let memory = pool.memory().clone();
            let mut before_step = |number| Self::before_generation_step(generation_steps, pool, number);
            if let Some(slot) = table.free_slot_by_moving(&memory, &hashing, key.hash, &mut before_step)? {
                before_step(slot.number())?;
                return Ok(slot);
            }
            self.grow(pool)?;
        }
    }

    fn insert(&mut self, pool: &mut Pool, key: &PreparedKey, entry: Entry) -> Result<(), Error> {
        let slot = self.allocate_slot(pool, key)?;
        self.table.fill(pool.memory(), slot, key, entry.mac | key.check, entry.next);
        Ok(())
    }

    fn change(&mut self, pool: &mut Pool, key: &PreparedKey, slot: Slot, entry: Entry) -> Result<(), Error> {
        let flag = self.table.next(pool.memory(), slot) & layout::EXACT_CONFLICT;
        let old = self.entry(pool.memory(), slot);
        let (value, next) = (entry.mac | key.check, entry.next | flag);
        if old.mac != entry.mac && old.next != entry.next {
            let copy = self.allocate_slot(pool, key)?;
            let memory = pool.memory();
            // The old slot's entry may have been moved to free a slot.
            let slot = self.table.find(memory, key).expect("moves and growth keep every key");
            self.table.fill(memory, copy, key, value, next);
            self.table.bump_version(memory, key.hash);
            self.table.clear(memory, slot);
            return Ok(());
        }
        Self::before_generation_step(&mut self.generation_steps, pool, slot.number())?;
        let memory = pool.memory();
        if old.mac != entry.mac {
            self.table.set_value(memory, slot, value);
        } else {
            self.table.set_next(memory, slot, next);
        }
        self.table.step_generation(memory, slot);
        Ok(())
    }

    fn set_flag(&mut self, pool: &mut Pool, slot: Slot, flag: bool) -> Result<(), Error> {
        Self::before_generation_step(&mut self.generation_steps, pool, slot.number())?;
        self.store_flag(pool.memory(), slot, flag);
        Ok(())
    }

    /// As `set_flag`, after `before_generation_step` was called for the slot.
    fn store_flag(&self, memory: &Memory, slot: Slot, flag: bool) {
        let next = self.table.next(memory, slot) & !layout::EXACT_CONFLICT;
        self.table.set_next(memory, slot, next | if flag { layout::EXACT_CONFLICT } else { 0 });
        self.table.step_generation(memory, slot);
    }

    /// Puts an address into the conflict table and flags the main entry. All that can fail comes before the
    /// first store, so that no conflict remains without the flag that leads to it.
    fn insert_conflict(
        &mut self,
        pool: &mut Pool,
        key: &PreparedKey,
        slot: Slot,
        entry: Entry,
    ) -> Result<(), Error> {
        let flagged = self.is_flagged(pool.memory(), slot);
        if !flagged {
            Self::before_generation_step(&mut self.generation_steps, pool, slot.number())?;
        }
        let address = key.address.expect("only IPv6 keys have digests");
        let conflict = ConflictEntry { word: key.word, address, entry };
        match self.conflicts.free_cell(pool.memory(), &self.hashing, &conflict) {
            Some(cell) => {
                // A slot may have the same number as this cell; the two then only share a counter.
                Self::before_generation_step(&mut self.generation_steps, pool, cell)?;
                self.conflicts.put(pool.memory(), cell, &conflict);
            }
            None => self.conflicts.grow(pool, &self.hashing, conflict)?,
        }
        self.conflict_entries += 1;
        if !flagged {
            self.store_flag(pool.memory(), slot, true);
        }
        Ok(())
    }

    /// Removes an entry from the conflict table, and the main entry's flag if it was the last one.
    fn remove_conflict(&mut self, pool: &mut Pool, cell: u32, word: u64) {
        self.conflicts.remove(pool.memory(), cell);
        self.conflict_entries -= 1;
        if self.conflicts.any_with(pool.memory(), word).is_none() {
            let key = PreparedKey { word, check: 0, address: None, hash: self.hashing.hash(word) };
            let slot = self.table.find(pool.memory(), &key).expect("a conflict has a main entry");
            // A flag that cannot be removed does no harm: readers search the conflict table without success.
            let _ = self.set_flag(pool, slot, false);
        }
    }

    /// Removes the address of a flagged main entry: an address of the conflict table takes its slot.
    ///
    /// # Errors
    /// [`Error::Grace`] before anything is changed. If only the last grace period fails, the address remains
    /// in both tables, with the same entry, until [`Exact::finish_promotion`].
    fn promote(&mut self, pool: &mut Pool, slot: Slot, word: u64) -> Result<(), Error> {
        let Some((cell, conflict)) = self.conflicts.any_with(pool.memory(), word) else {
            self.table.clear(pool.memory(), slot);
            return Ok(());
        };
        for _ in 0..2 {
            Self::before_generation_step(&mut self.generation_steps, pool, slot.number())?;
        }
        self.replace_main_entry(pool.memory(), slot, &conflict);
        if pool.flush().is_ok() {
            self.remove_conflict(pool, cell, word);
        }
        Ok(())
    }

    /// Makes a flagged slot the main entry of an address of the conflict table.
    fn replace_main_entry(&self, memory: &Memory, slot: Slot, conflict: &ConflictEntry) {
        let check = self.hashing.digest(conflict.address.0, conflict.address.1) & !layout::EXACT_MAC_MASK;
        let (high, low) = self.table.address(memory, slot);
        // A check that differs from the old address's: from here on that address is not found. The flag leads
        // all other addresses to the conflict table.
        let wrong_check = !self.hashing.digest(high, low) & !layout::EXACT_MAC_MASK;
        self.table.set_value(memory, slot, conflict.entry.mac | wrong_check);
        self.table.step_generation(memory, slot);
        self.table.set_next(memory, slot, conflict.entry.next | layout::EXACT_CONFLICT);
        self.table.set_address(memory, slot, conflict.address);
        self.table.set_value(memory, slot, conflict.entry.mac | check);
        self.table.step_generation(memory, slot);
    }

    /// Completes the promotion of a key if its grace period had failed.
    fn finish_promotion(&mut self, pool: &mut Pool, key: &PreparedKey, slot: Slot) -> Result<(), Error> {
        if !self.is_flagged(pool.memory(), slot) {
            return Ok(());
        }
        match self.conflicts.find(pool.memory(), &self.hashing, key) {
            None => Ok(()),
            Some((cell, _)) => {
                pool.flush()?;
                self.remove_conflict(pool, cell, key.word);
                Ok(())
            }
        }
    }
}
