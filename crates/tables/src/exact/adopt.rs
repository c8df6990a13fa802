//! Taking over a table that another writer left, maybe in the middle of a change.
//!
//! One pass over the buckets, in their order, checks every slot and gathers
//! what the rest of the adoption needs, so that nobody walks ten million
//! entries again. What a writer can have left half done is then settled: a copy
//! of a move or a change (readers find the first, so the other goes), a
//! promotion that was begun, one whose copy in the conflict table still stands,
//! and, once there is a pool, flags that say too much or too little.

use super::conflict::{Conflicts, Full};
use super::grow::address_offset;
use super::hash::{Hashing, Key, Prepared, buckets_of};
use super::table::{SLOTS, Slot, Table};
use super::{Entry, Exact, ROOT};
use crate::error::Error;
use crate::grace::Grace;
use crate::layout::{self, exact_root};
use crate::memory::Memory;
use crate::pool::{Pool, Used};
use std::collections::HashSet;

/// Entries in their second bucket that wait for the cell of the first.
const PENDING: usize = 32;

/// What the pass over a table gathered.
pub(crate) struct Survey {
    /// All entries but tenants' addresses.
    pub others: Vec<(Key, Entry)>,
    /// How many tenants' addresses lead to each cell.
    pub references: References,
    /// Key words, without generation, of entries with the conflict flag.
    flagged: Vec<u64>,
}

/// Counts by cell.
pub(crate) struct References {
    counts: Vec<u32>,
    cells: Vec<u32>,
    /// Some lead behind the end of the memory.
    pub outside: bool,
}

impl References {
    fn new(memory: &Memory) -> Self {
        Self { counts: vec![0; memory.cells() as usize], cells: Vec::new(), outside: false }
    }

    #[inline]
    fn add(&mut self, cell: u32) {
        match self.counts.get_mut(cell as usize) {
            Some(count) => {
                if *count == 0 {
                    self.cells.push(cell);
                }
                *count += 1;
            }
            None => self.outside = true,
        }
    }

    /// The cells that entries lead to, with how many do.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.cells.iter().map(|&cell| (cell, u64::from(self.counts[cell as usize])))
    }
}

/// An entry in its second bucket: another copy may stand in the first.
#[derive(Clone, Copy)]
struct Pending {
    slot: Slot,
    key: u64,
    first: u32,
}

impl Survey {
    fn new(memory: &Memory) -> Self {
        Self { others: Vec::new(), references: References::new(memory), flagged: Vec::new() }
    }

    /// Files an entry that is neither a copy nor flagged.
    #[inline]
    fn file(&mut self, exact: &Exact, memory: &Memory, slot: Slot, key: u64) {
        let next = exact.table.next(memory, slot);
        if next & layout::EXACT_CONFLICT != 0 {
            self.flagged.push(key);
        } else if is_tenants(key) {
            self.references.add(next & layout::CELL_INDEX_MASK);
        } else if let Some(restored) = exact.hashing.restore(key, || exact.table.address(memory, slot)) {
            self.others.push((restored, exact.entry(memory, slot)));
        }
    }

    /// Files an entry of the conflict table, or a flagged one.
    fn file_full(&mut self, hashing: &Hashing, full: &Full) {
        if is_tenants(full.word) {
            self.references.add(full.entry.next);
        } else if let Some(key) = hashing.restore(full.word, || full.address) {
            self.others.push((key, full.entry));
        }
    }
}

fn kind_of(key: u64) -> u32 {
    (key >> layout::EXACT_KIND_SHIFT) as u32
}

/// True for an address in a VNI.
fn is_tenants(key: u64) -> bool {
    kind_of(key) != layout::EXACT_INDEX && (key >> layout::EXACT_VNI_SHIFT) as u32 & 0xff_ffff != 0
}

impl Exact {
    /// The table that the root leads to, its cells claimed and what was half
    /// done in it settled as far as that takes no memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Grace`].
    pub(crate) fn adopt(
        memory: &Memory,
        used: &mut Used,
        grace: &dyn Grace,
    ) -> Result<(Self, Survey), Error> {
        let root: exact_root = memory.read(ROOT);
        let (first, count) = (root.buckets as u32, (root.buckets >> 32) as u32);
        if count < 2 || !memory.contains(first, count) {
            return Err(Error::Corrupt(format!("{count} buckets at cell {first}")));
        }
        used.claim(first, count)?;
        let mut table = Table { first, count, addresses: 0 };
        let mut address_word = 0;
        for (word, value) in root.addresses.into_iter().enumerate() {
            if value as u32 != 0 && (value >> 32) as u32 == first && table.addresses == 0 {
                table.addresses = value as u32;
                address_word = word;
            } else if value != 0 {
                // Left by growth that ended between its stores.
                memory.store64(ROOT, address_offset(word), 0);
            }
        }
        if table.addresses != 0 {
            used.claim(table.addresses, Table::address_cells(count))?;
        }
        let conflicts = Conflicts { first: root.conflicts as u32, count: (root.conflicts >> 32) as u32 };
        used.claim(conflicts.first, conflicts.count)?;
        let hashing = Hashing { seed: root.seed, digest_mask: root.digest_mask };
        let mut exact = Self::with(hashing, table, address_word, conflicts);
        let mut survey = exact.survey(memory)?;
        exact.settle(memory, grace, &mut survey)?;
        Ok((exact, survey))
    }

    /// Every filled slot is in one of its key's buckets, is no copy of an
    /// earlier one, and IPv6 ones have addresses.
    fn survey(&mut self, memory: &Memory) -> Result<Survey, Error> {
        let mut survey = Survey::new(memory);
        let mut entries = 0;
        let mut pending: [Option<Pending>; PENDING] = [None; PENDING];
        let mut at = 0;
        for bucket in 0..self.table.count {
            let mut keys = [0; SLOTS as usize];
            for index in 0..SLOTS {
                let slot = Slot { bucket, index };
                let key = self.table.key(memory, slot) & layout::EXACT_KEY_MASK;
                if key == 0 {
                    continue;
                }
                let first = self.first_bucket(bucket, key)?;
                if keys.contains(&key) {
                    self.table.clear(memory, slot);
                    continue;
                }
                keys[index as usize] = key;
                if first == bucket {
                    entries += 1;
                    survey.file(self, memory, slot, key);
                    continue;
                }
                memory.prefetch(self.table.first + first);
                let due = pending[at].replace(Pending { slot, key, first });
                entries += due.map_or(0, |due| self.file_pending(memory, &mut survey, due));
                at = (at + 1) % PENDING;
            }
        }
        for due in pending.into_iter().flatten() {
            entries += self.file_pending(memory, &mut survey, due);
        }
        self.entries = entries;
        Ok(survey)
    }

    /// The first bucket of a key that stands in `bucket`.
    #[inline]
    fn first_bucket(&self, bucket: u32, key: u64) -> Result<u32, Error> {
        let (one, two) = buckets_of(self.hashing.hash(key), self.table.count);
        let kind = kind_of(key);
        if (bucket != one && bucket != two) || kind == 0 {
            return Err(Error::Corrupt(format!("bucket {bucket} holds a foreign key")));
        }
        if kind == layout::EXACT_IPV6 && self.table.addresses == 0 {
            return Err(Error::Corrupt("an IPv6 entry without its address".to_owned()));
        }
        Ok(one)
    }

    /// The number of entries that it is: none, if it is a copy.
    fn file_pending(&self, memory: &Memory, survey: &mut Survey, pending: Pending) -> u64 {
        let Pending { slot, key, first } = pending;
        let in_first = |index| self.table.key(memory, Slot { bucket: first, index });
        if (0..SLOTS).any(|index| in_first(index) & layout::EXACT_KEY_MASK == key) {
            self.table.clear(memory, slot);
            return 0;
        }
        survey.file(self, memory, slot, key);
        1
    }

    fn stored_key(&self, word: u64) -> Prepared {
        let word = word & layout::EXACT_KEY_MASK;
        Prepared { word, check: 0, full: None, hash: self.hashing.hash(word) }
    }

    /// Ends promotions, so that every address stands once, and files what the
    /// pass left aside.
    fn settle(&mut self, memory: &Memory, grace: &dyn Grace, survey: &mut Survey) -> Result<(), Error> {
        let all: Vec<(u32, Full)> = self.conflicts.all(memory).collect();
        for word in std::mem::take(&mut survey.flagged) {
            let Some(slot) = self.table.find(memory, &self.stored_key(word)) else { continue };
            if self.is_begun(memory, slot, word) {
                // Readers that saw earlier generations of the slot are gone first.
                grace.wait()?;
                let Some((_, full)) = all.iter().find(|(_, full)| full.word == word) else {
                    self.table.clear(memory, slot);
                    self.entries -= 1;
                    continue;
                };
                self.switch_main(memory, slot, full);
            }
            survey.flagged.push(word);
            let address = self.table.address(memory, slot);
            survey.file_full(&self.hashing, &Full { word, address, entry: self.entry(memory, slot) });
        }
        let mut has_waited = false;
        for (cell, full) in all {
            let main = self.table.find(memory, &self.stored_key(full.word));
            if main.is_some_and(|slot| self.table.address(memory, slot) == full.address) {
                // Readers that do not know the main entry yet are gone first.
                if !has_waited {
                    grace.wait()?;
                    has_waited = true;
                }
                self.conflicts.remove(memory, cell);
                continue;
            }
            self.entries += 1;
            self.conflict_entries += 1;
            survey.file_full(&self.hashing, &full);
        }
        Ok(())
    }

    /// A promotion of this flagged main entry was begun and not ended: its
    /// address has another digest than it tells.
    fn is_begun(&self, memory: &Memory, slot: Slot, word: u64) -> bool {
        let (high, low) = self.table.address(memory, slot);
        let digest = self.hashing.digest(high, low);
        let check = (digest ^ self.table.value(memory, slot)) >> layout::EXACT_CHECK_SHIFT;
        check != 0 || digest as u32 != word as u32
    }

    /// Mends flags, and gives entries of the conflict table that have no main
    /// entry one.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Grace`].
    pub(crate) fn repair(&mut self, pool: &mut Pool, survey: &Survey) -> Result<(), Error> {
        let all: Vec<_> = self.conflicts.all(pool.memory()).collect();
        let words: HashSet<u64> = all.iter().map(|(_, full)| full.word).collect();
        for (cell, full) in all {
            let key = self.stored_key(full.word);
            match self.table.find(pool.memory(), &key) {
                None => {
                    // Its main entry is gone: it becomes the main entry.
                    let check = self.hashing.digest(full.address.0, full.address.1) & !layout::EXACT_MAC_MASK;
                    self.insert(pool, &Prepared { check, full: Some(full.address), ..key }, full.entry)?;
                    self.conflicts.remove(pool.memory(), cell);
                    self.conflict_entries -= 1;
                }
                Some(slot) if !self.is_flagged(pool.memory(), slot) => self.set_flag(pool, slot, true)?,
                Some(_) => {}
            }
        }
        for &word in survey.flagged.iter().filter(|word| !words.contains(word)) {
            if let Some(slot) = self.table.find(pool.memory(), &self.stored_key(word)) {
                self.set_flag(pool, slot, false)?;
            }
        }
        self.store_counts(pool.memory());
        Ok(())
    }
}
