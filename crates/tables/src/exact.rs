//! Exact match: (VNI, address) and (VNI, index) to a MAC and a cell, in one
//! table pooled over kinds and families. The layout is that of `cells.h`.
//!
//! # Why readers are never misled
//!
//! One writer, any number of readers that take key, value, next and key again.
//!
//! - *Insert*: value and next are stored before the key; before the key is
//!   there, nobody looks at them.
//! - *Change of one word*: the word, then the key with the next generation. A
//!   reader sees the old or the new word; one that was in between while two
//!   changes followed each other sees that the key has changed and looks again.
//! - *Change of both words, cuckoo move*: a second, whole copy is filled in
//!   another slot, the version of the key's first bucket is stepped, the old
//!   slot is cleared. Where the copy stands behind the old slot in a reader's
//!   order, a reader that finds the old slot cleared finds the copy; where it
//!   stands before, a reader that passed it too early sees the version changed.
//!   A lookup that began before the old slot was filled can find the copy behind
//!   it, and the next lookup the old slot once more, while the change is under
//!   way; never after it has ended.
//! - *Growth*: all entries are copied to a new run, which one store publishes.
//!   The old run keeps its contents until a grace period has passed.
//! - *Generations* have 6 bits. Before any slot is filled 63 times within one
//!   grace period, one is waited for ([`Exact::tick`]), so that no reader can
//!   see a generation come round.
//! - *Digests*: an address whose digest is another's goes to the conflict table
//!   first, then the main entry is flagged. When the main entry's address goes,
//!   one from the conflict table takes its slot in place: all the while the flag
//!   leads its readers to the conflict table, and only after a grace period,
//!   when every reader knows the new main entry, the copy there is cleared.
//!
//! An IPv6 address that is *not* in the table is taken for one that is when
//! all 48 bits of their digests agree, which the random seed makes a matter of
//! chance (2^-48 for each entry of its VNI); an address in the table is never
//! taken for another.

mod adopt;
mod conflict;
mod grow;
mod hash;
mod table;
#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::layout::{self, exact_root};
use crate::memory::Memory;
use crate::pool::Pool;
pub(crate) use adopt::Survey;
use conflict::{Conflicts, Full};
use hash::Prepared;
pub(crate) use hash::{Hashing, Key, buckets_of, is_filled};
use std::mem::offset_of;
use table::{Slot, Table};

const ROOT: u32 = layout::CELL_EXACT_ROOT;
/// Fillings of slots that share a counter before a grace period is waited for;
/// below the 64 generations by more than one operation steps a slot.
const FILLINGS_MAX: u8 = 56;
const COUNTERS: usize = 1 << 16;

/// What a key leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    /// As in `EXACT_MAC_MASK`.
    pub mac: u64,
    /// Cell index, without flags.
    pub next: u32,
}

/// The writer of the table.
pub(crate) struct Exact {
    hashing: Hashing,
    table: Table,
    /// Which of the root's two `addresses` words names the address run.
    address_word: usize,
    conflicts: Conflicts,
    entries: u64,
    conflict_entries: u64,
    fillings: Vec<u8>,
}

/// Where a key stands.
enum Place {
    Main(Slot),
    Conflict(u32, Entry),
    /// The slot holds another address with the same digest.
    Clash(Slot),
    Nowhere,
}

/// Stores a run as a root word: first cell low, count high.
fn publish_run(memory: &Memory, offset: usize, first: u32, count: u32) {
    memory.store64(ROOT, offset, u64::from(first) | u64::from(count) << 32);
}

impl Exact {
    /// An empty table with room for `entries`.
    pub(crate) fn create(pool: &mut Pool, entries: usize, hashing: Hashing) -> Result<Self, Error> {
        let count = grow::buckets_for(entries as u64)?;
        let first = pool.allocate(count)?;
        let root = exact_root { seed: hashing.seed, digest_mask: hashing.digest_mask, ..Default::default() };
        pool.memory().write(ROOT, &root);
        publish_run(pool.memory(), offset_of!(exact_root, buckets), first, count);
        Ok(Self::with(hashing, Table { first, count, addresses: 0 }, 0, Conflicts::default()))
    }

    fn with(hashing: Hashing, table: Table, address_word: usize, conflicts: Conflicts) -> Self {
        let fillings = vec![0; COUNTERS];
        Self { hashing, table, address_word, conflicts, entries: 0, conflict_entries: 0, fillings }
    }

    /// Entries, conflicting ones included.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    pub(crate) fn slots(&self) -> u64 {
        self.table.slots()
    }

    /// Entries and cells of the conflict table.
    pub(crate) fn conflict_fill(&self) -> (u64, u64) {
        (self.conflict_entries, u64::from(self.conflicts.count))
    }

    /// Writes the counts where a debugger or a successor finds them. Kept out of
    /// single changes, because every reader reads this cell.
    pub(crate) fn store_counts(&self, memory: &Memory) {
        memory.store64(ROOT, offset_of!(exact_root, entries), self.entries);
        memory.store64(ROOT, offset_of!(exact_root, conflict_entries), self.conflict_entries);
    }

    /// Asks for the cells of a key that is about to be put.
    pub(crate) fn prefetch(&self, memory: &Memory, key: Key) {
        let key = self.hashing.prepare(key);
        let (one, two) = buckets_of(key.hash, self.table.count);
        for bucket in [one, two] {
            memory.prefetch(self.table.first + bucket);
            if key.full.is_some() && self.table.addresses != 0 {
                self.table.prefetch_addresses(memory, bucket);
            }
        }
    }

    /// The entry of a key.
    pub(crate) fn get(&self, memory: &Memory, key: Key) -> Option<Entry> {
        match self.locate(memory, &self.hashing.prepare(key)) {
            Place::Main(slot) => Some(self.entry(memory, slot)),
            Place::Conflict(_, entry) => Some(entry),
            Place::Clash(_) | Place::Nowhere => None,
        }
    }

    /// Enters or changes a key; the entry it had.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Grace`]; the key then has what it had.
    pub(crate) fn put(&mut self, pool: &mut Pool, key: Key, entry: Entry) -> Result<Option<Entry>, Error> {
        let key = self.hashing.prepare(key);
        match self.locate(pool.memory(), &key) {
            Place::Nowhere => {
                self.insert(pool, &key, entry)?;
                self.entries += 1;
                Ok(None)
            }
            Place::Main(slot) => {
                let old = self.entry(pool.memory(), slot);
                if old != entry {
                    self.finish_promotion(pool, &key, slot)?;
                    self.change(pool, &key, slot, entry)?;
                }
                Ok(Some(old))
            }
            Place::Conflict(cell, old) => {
                if old != entry {
                    self.conflicts.replace(pool, &self.hashing, cell, entry)?;
                }
                Ok(Some(old))
            }
            Place::Clash(slot) => {
                self.insert_conflict(pool, &key, slot, entry)?;
                self.entries += 1;
                Ok(None)
            }
        }
    }

    /// Gives a key that is there another entry without taking memory, for times
    /// when none may be taken. Where more than one word changes, readers miss the
    /// key for an instant.
    ///
    /// # Errors
    /// [`Error::Grace`] only.
    pub(crate) fn put_back(&mut self, pool: &mut Pool, key: Key, entry: Entry) -> Result<(), Error> {
        let key = self.hashing.prepare(key);
        match self.locate(pool.memory(), &key) {
            Place::Main(slot) => {
                let old = self.entry(pool.memory(), slot);
                self.finish_promotion(pool, &key, slot)?;
                if old.mac == entry.mac || old.next == entry.next {
                    return self.change(pool, &key, slot, entry);
                }
                Self::tick(&mut self.fillings, pool, slot.number())?;
                let memory = pool.memory();
                let flag = self.table.next(memory, slot) & layout::EXACT_CONFLICT;
                self.table.clear(memory, slot);
                self.table.fill(memory, slot, &key, entry.mac | key.check, entry.next | flag);
            }
            Place::Conflict(cell, _) => {
                Self::tick(&mut self.fillings, pool, cell)?;
                let address = key.full.expect("only IPv6 keys clash");
                self.conflicts.remove(pool.memory(), cell);
                self.conflicts.put(pool.memory(), cell, &Full { word: key.word, address, entry });
            }
            Place::Clash(_) | Place::Nowhere => {}
        }
        Ok(())
    }

    /// Removes a key; the entry it had.
    ///
    /// # Errors
    /// [`Error::Grace`] only.
    pub(crate) fn take(&mut self, pool: &mut Pool, key: Key) -> Result<Option<Entry>, Error> {
        let key = self.hashing.prepare(key);
        let old = match self.locate(pool.memory(), &key) {
            Place::Nowhere | Place::Clash(_) => return Ok(None),
            Place::Main(slot) => {
                let old = self.entry(pool.memory(), slot);
                self.finish_promotion(pool, &key, slot)?;
                if self.is_flagged(pool.memory(), slot) {
                    self.promote(pool, slot, key.word)?;
                } else {
                    self.table.clear(pool.memory(), slot);
                }
                old
            }
            Place::Conflict(cell, old) => {
                self.drop_conflict(pool, cell, key.word);
                old
            }
        };
        self.entries -= 1;
        Ok(Some(old))
    }

    /// All entries, in no order.
    pub(crate) fn iter<'a>(&'a self, memory: &'a Memory) -> impl Iterator<Item = (Key, Entry)> + 'a {
        let main = self.table.all_slots().filter_map(move |slot| {
            let word = self.table.key(memory, slot);
            if !is_filled(word) {
                return None;
            }
            let key = self.hashing.restore(word, || self.table.address(memory, slot))?;
            Some((key, self.entry(memory, slot)))
        });
        let conflicts = self.conflicts.all(memory).filter_map(move |(_, full)| {
            let key = self.hashing.restore(full.word, || full.address)?;
            // One whose promotion waits to be finished stands in both.
            let main = self.locate(memory, &self.hashing.prepare(key));
            matches!(main, Place::Conflict(..)).then_some((key, full.entry))
        });
        main.chain(conflicts)
    }

    fn locate(&self, memory: &Memory, key: &Prepared) -> Place {
        let Some(slot) = self.table.find(memory, key) else { return Place::Nowhere };
        let Some(full) = key.full else { return Place::Main(slot) };
        if self.table.address(memory, slot) == full {
            return Place::Main(slot);
        }
        match self.conflicts.find(memory, &self.hashing, key) {
            Some((cell, entry)) => Place::Conflict(cell, entry),
            None => Place::Clash(slot),
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

    /// Called before a slot's generation is stepped: see the module's text.
    fn tick(fillings: &mut [u8], pool: &mut Pool, number: u32) -> Result<(), Error> {
        let counter = number as usize % COUNTERS;
        if fillings[counter] >= FILLINGS_MAX {
            pool.flush()?;
            fillings.fill(0);
        }
        fillings[counter] += 1;
        Ok(())
    }

    /// An empty slot for a key, by moves or by growth.
    fn room(&mut self, pool: &mut Pool, key: &Prepared) -> Result<Slot, Error> {
        if key.full.is_some() && self.table.addresses == 0 {
            self.add_addresses(pool)?;
        }
        loop {
            if let Some(slot) = self.table.empty_slot(pool.memory(), key.hash) {
                Self::tick(&mut self.fillings, pool, slot.number())?;
                return Ok(slot);
            }
            let (table, hashing) = (self.table, self.hashing);
            let fillings = &mut self.fillings;
            let memory = pool.memory().clone();
            let mut before = |number| Self::tick(fillings, pool, number);
            if let Some(slot) = table.make_room(&memory, &hashing, key.hash, &mut before)? {
                before(slot.number())?;
                return Ok(slot);
            }
            self.grow(pool)?;
        }
    }

    fn insert(&mut self, pool: &mut Pool, key: &Prepared, entry: Entry) -> Result<(), Error> {
        let slot = self.room(pool, key)?;
        self.table.fill(pool.memory(), slot, key, entry.mac | key.check, entry.next);
        Ok(())
    }

    fn change(&mut self, pool: &mut Pool, key: &Prepared, slot: Slot, entry: Entry) -> Result<(), Error> {
        let flag = self.table.next(pool.memory(), slot) & layout::EXACT_CONFLICT;
        let old = self.entry(pool.memory(), slot);
        let (value, next) = (entry.mac | key.check, entry.next | flag);
        if old.mac != entry.mac && old.next != entry.next {
            let copy = self.room(pool, key)?;
            let memory = pool.memory();
            // Making room may have moved the old one.
            let slot = self.table.find(memory, key).expect("moves and growth keep every key");
            self.table.fill(memory, copy, key, value, next);
            self.table.bump_version(memory, key.hash);
            self.table.clear(memory, slot);
            return Ok(());
        }
        Self::tick(&mut self.fillings, pool, slot.number())?;
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
        Self::tick(&mut self.fillings, pool, slot.number())?;
        self.store_flag(pool.memory(), slot, flag);
        Ok(())
    }

    /// After a tick for the slot.
    fn store_flag(&self, memory: &Memory, slot: Slot, flag: bool) {
        let next = self.table.next(memory, slot) & !layout::EXACT_CONFLICT;
        self.table.set_next(memory, slot, next | if flag { layout::EXACT_CONFLICT } else { 0 });
        self.table.step_generation(memory, slot);
    }

    /// All that can fail comes before the first store, so that no entry of the
    /// conflict table is left without the flag that leads to it.
    fn insert_conflict(
        &mut self,
        pool: &mut Pool,
        key: &Prepared,
        slot: Slot,
        entry: Entry,
    ) -> Result<(), Error> {
        let flagged = self.is_flagged(pool.memory(), slot);
        if !flagged {
            Self::tick(&mut self.fillings, pool, slot.number())?;
        }
        let address = key.full.expect("only IPv6 keys clash");
        let full = Full { word: key.word, address, entry };
        match self.conflicts.free_cell(pool.memory(), &self.hashing, &full) {
            Some(cell) => {
                // The number cannot be a slot's by more than chance, and then
                // they only share a counter.
                Self::tick(&mut self.fillings, pool, cell)?;
                self.conflicts.put(pool.memory(), cell, &full);
            }
            None => self.conflicts.grow(pool, &self.hashing, full)?,
        }
        self.conflict_entries += 1;
        if !flagged {
            self.store_flag(pool.memory(), slot, true);
        }
        Ok(())
    }

    /// Takes an entry out of the conflict table, and the flag with the last one.
    fn drop_conflict(&mut self, pool: &mut Pool, cell: u32, word: u64) {
        self.conflicts.remove(pool.memory(), cell);
        self.conflict_entries -= 1;
        if self.conflicts.any_with(pool.memory(), word).is_none() {
            let key = Prepared { word, check: 0, full: None, hash: self.hashing.hash(word) };
            let slot = self.table.find(pool.memory(), &key).expect("a conflict has a main entry");
            // A flag that could not be taken away leads readers to nothing, no more.
            let _ = self.set_flag(pool, slot, false);
        }
    }

    /// Puts an address of the conflict table into the slot of the main entry,
    /// whose own address goes.
    ///
    /// # Errors
    /// [`Error::Grace`] before anything is changed. Where only the last grace
    /// period fails, the address stands in both places, with the same entry,
    /// until [`Exact::finish_promotion`].
    fn promote(&mut self, pool: &mut Pool, slot: Slot, word: u64) -> Result<(), Error> {
        let Some((cell, full)) = self.conflicts.any_with(pool.memory(), word) else {
            self.table.clear(pool.memory(), slot);
            return Ok(());
        };
        for _ in 0..2 {
            Self::tick(&mut self.fillings, pool, slot.number())?;
        }
        self.switch_main(pool.memory(), slot, &full);
        if pool.flush().is_ok() {
            self.drop_conflict(pool, cell, word);
        }
        Ok(())
    }

    /// Makes a slot that is flagged the main entry of an address of the conflict table.
    fn switch_main(&self, memory: &Memory, slot: Slot, full: &Full) {
        let check = self.hashing.digest(full.address.0, full.address.1) & !layout::EXACT_MAC_MASK;
        let (high, low) = self.table.address(memory, slot);
        // A check that is nobody's: from here on the old address is not found,
        // and all others are led to the conflict table by the flag.
        let nobody = !self.hashing.digest(high, low) & !layout::EXACT_MAC_MASK;
        self.table.set_value(memory, slot, full.entry.mac | nobody);
        self.table.step_generation(memory, slot);
        self.table.set_next(memory, slot, full.entry.next | layout::EXACT_CONFLICT);
        self.table.set_address(memory, slot, full.address);
        self.table.set_value(memory, slot, full.entry.mac | check);
        self.table.step_generation(memory, slot);
    }

    /// Completes a promotion whose grace period failed.
    fn finish_promotion(&mut self, pool: &mut Pool, key: &Prepared, slot: Slot) -> Result<(), Error> {
        if !self.is_flagged(pool.memory(), slot) {
            return Ok(());
        }
        match self.conflicts.find(pool.memory(), &self.hashing, key) {
            None => Ok(()),
            Some((cell, _)) => {
                pool.flush()?;
                self.drop_conflict(pool, cell, key.word);
                Ok(())
            }
        }
    }
}
