//! Adoption of an exact match that another writer left, possibly in the middle of a change.
//!
//! One pass over the buckets, in their order, checks every slot and collects what the rest of the adoption
//! needs, so that ten million entries are not read again. Then changes that were left half done are completed
//! or undone:
//!
//! - a copy of a move or a change: readers find the first copy, so the other is cleared;
//! - a promotion that was begun, or one whose copy in the conflict table remains;
//! - when cells can be allocated again (`repair`), flags that are missing or that lead to no conflict.

use super::conflict::{ConflictEntry, Conflicts};
use super::grow::address_offset;
use super::hash::{Hashing, Key, PreparedKey, buckets_of};
use super::table::{SLOTS, Slot, Table};
use super::{Entry, Exact, PairCounts, ROOT};
use crate::error::Error;
use crate::grace::Grace;
use crate::layout::{self, exact_root};
use crate::memory::Memory;
use crate::pool::{Pool, ReachableCells};
use std::collections::HashSet;

/// Entries in their second bucket for which the cell of the first bucket is being prefetched.
const PENDING_MAX: usize = 32;

/// What the pass over a table found.
pub(crate) struct Survey {
    /// All entries except addresses of tenants.
    pub others: Vec<(Key, Entry)>,
    /// Number of tenants' addresses that lead to each cell.
    pub references: References,
    /// Number of tenants' addresses by VNI and cell.
    pub senders: PairCounts,
    /// Key words, without generation, of entries with the conflict flag.
    flagged: Vec<u64>,
}

/// Numbers of entries that lead to each cell.
pub(crate) struct References {
    /// By cell.
    counts: Vec<u32>,
    /// Cells whose count is not 0.
    cells: Vec<u32>,
    /// Some entries lead beyond the end of the memory.
    pub leads_outside: bool,
}

impl References {
    fn new(memory: &Memory) -> Self {
        Self { counts: vec![0; memory.cells() as usize], cells: Vec::new(), leads_outside: false }
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
            None => self.leads_outside = true,
        }
    }

    /// The cells to which entries lead, each with the number of entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.cells.iter().map(|&cell| (cell, u64::from(self.counts[cell as usize])))
    }
}

/// An entry in its second bucket. Another copy may be in the first.
#[derive(Clone, Copy)]
struct Pending {
    slot: Slot,
    key: u64,
    first: u32,
}

impl Survey {
    fn new(memory: &Memory) -> Self {
        Self {
            others: Vec::new(),
            references: References::new(memory),
            senders: PairCounts::default(),
            flagged: Vec::new(),
        }
    }

    /// Records an entry of the main table that is not a copy.
    #[inline]
    fn record(&mut self, exact: &Exact, memory: &Memory, slot: Slot, key: u64) {
        let next = exact.table.next(memory, slot);
        if next & layout::EXACT_CONFLICT != 0 {
            self.flagged.push(key);
        } else if is_tenant_address(key) {
            self.add_address(key, next & layout::CELL_INDEX_MASK);
        } else if let Some(restored) = exact.hashing.restore(key, || exact.table.address(memory, slot)) {
            self.others.push((restored, exact.entry(memory, slot)));
        }
    }

    #[inline]
    fn add_address(&mut self, key: u64, cell: u32) {
        self.references.add(cell);
        *self.senders.entry((vni_of(key), cell)).or_default() += 1;
    }

    /// Records an entry of the conflict table, or a flagged main entry.
    fn record_conflict(&mut self, hashing: &Hashing, conflict: &ConflictEntry) {
        if is_tenant_address(conflict.word) {
            self.add_address(conflict.word, conflict.entry.next);
        } else if let Some(key) = hashing.restore(conflict.word, || conflict.address) {
            self.others.push((key, conflict.entry));
        }
    }
}

fn kind_of(key: u64) -> u32 {
    (key >> layout::EXACT_KIND_SHIFT) as u32
}

fn vni_of(key: u64) -> u32 {
    (key >> layout::EXACT_VNI_SHIFT) as u32 & 0xff_ffff
}

/// True for the key word of an address in a VNI.
fn is_tenant_address(key: u64) -> bool {
    kind_of(key) != layout::EXACT_INDEX && vni_of(key) != 0
}

impl Exact {
    /// Adopts the table that the root leads to: claims its cells, and completes or undoes changes that were
    /// left half done, as far as that allocates no cells.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Grace`].
    pub(crate) fn adopt(
        memory: &Memory,
        reachable: &mut ReachableCells,
        grace: &dyn Grace,
    ) -> Result<(Self, Survey), Error> {
        let root: exact_root = memory.read(ROOT);
        let (first, count) = (root.buckets as u32, (root.buckets >> 32) as u32);
        if count < 2 || !memory.contains(first, count) {
            return Err(Error::Corrupt(format!("the exact match has {count} buckets at cell {first}")));
        }
        reachable.claim(first, count)?;
        let mut table = Table { first, count, addresses: 0 };
        let mut address_word = 0;
        for (word, value) in root.addresses.into_iter().enumerate() {
            if value as u32 != 0 && (value >> 32) as u32 == first && table.addresses == 0 {
                table.addresses = value as u32;
                address_word = word;
            } else if value != 0 {
                // Left by a writer that was killed while it published a larger table.
                memory.store64(ROOT, address_offset(word), 0);
            }
        }
        if table.addresses != 0 {
            reachable.claim(table.addresses, Table::address_cells(count))?;
        }
        let conflicts = Conflicts { first: root.conflicts as u32, count: (root.conflicts >> 32) as u32 };
        reachable.claim(conflicts.first, conflicts.count)?;
        let hashing = Hashing { seed: root.seed, digest_mask: root.digest_mask };
        let mut exact = Self::with(hashing, table, address_word, conflicts);
        let mut survey = exact.survey(memory)?;
        exact.finish_promotions(memory, grace, &mut survey)?;
        Ok((exact, survey))
    }

    /// Checks that every filled slot is in a bucket of its key and that IPv6 entries have addresses, and
    /// clears copies.
    fn survey(&mut self, memory: &Memory) -> Result<Survey, Error> {
        let mut survey = Survey::new(memory);
        let mut entries = 0;
        let mut pending: [Option<Pending>; PENDING_MAX] = [None; PENDING_MAX];
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
                    survey.record(self, memory, slot, key);
                    continue;
                }
                memory.prefetch(self.table.first + first);
                let due = pending[at].replace(Pending { slot, key, first });
                entries += due.map_or(0, |due| self.record_pending(memory, &mut survey, due));
                at = (at + 1) % PENDING_MAX;
            }
        }
        for due in pending.into_iter().flatten() {
            entries += self.record_pending(memory, &mut survey, due);
        }
        self.entries = entries;
        Ok(survey)
    }

    /// The first bucket of a key that is in `bucket`.
    #[inline]
    fn first_bucket(&self, bucket: u32, key: u64) -> Result<u32, Error> {
        let (one, two) = buckets_of(self.hashing.hash(key), self.table.count);
        let kind = kind_of(key);
        if (bucket != one && bucket != two) || kind == 0 {
            return Err(Error::Corrupt(format!("bucket {bucket} holds a key of another bucket")));
        }
        if kind == layout::EXACT_IPV6 && self.table.addresses == 0 {
            return Err(Error::Corrupt("an IPv6 entry has no address".to_owned()));
        }
        Ok(one)
    }

    /// Records an entry in its second bucket, or clears it if it is a copy. Returns the number of entries: 1
    /// or 0.
    fn record_pending(&self, memory: &Memory, survey: &mut Survey, pending: Pending) -> u64 {
        let Pending { slot, key, first } = pending;
        let in_first = |index| self.table.key(memory, Slot { bucket: first, index });
        if (0..SLOTS).any(|index| in_first(index) & layout::EXACT_KEY_MASK == key) {
            self.table.clear(memory, slot);
            return 0;
        }
        survey.record(self, memory, slot, key);
        1
    }

    fn stored_key(&self, word: u64) -> PreparedKey {
        let word = word & layout::EXACT_KEY_MASK;
        PreparedKey { word, check: 0, address: None, hash: self.hashing.hash(word) }
    }

    /// Finishes promotions, so that every address is in one table only, and records flagged entries and
    /// conflicts.
    fn finish_promotions(
        &mut self,
        memory: &Memory,
        grace: &dyn Grace,
        survey: &mut Survey,
    ) -> Result<(), Error> {
        let all: Vec<(u32, ConflictEntry)> = self.conflicts.all(memory).collect();
        for word in std::mem::take(&mut survey.flagged) {
            let Some(slot) = self.table.find(memory, &self.stored_key(word)) else { continue };
            if self.is_promotion_begun(memory, slot, word) {
                // Wait for readers that have seen earlier generations of the slot.
                grace.wait()?;
                let Some((_, conflict)) = all.iter().find(|(_, conflict)| conflict.word == word) else {
                    self.table.clear(memory, slot);
                    self.entries -= 1;
                    continue;
                };
                self.replace_main_entry(memory, slot, conflict);
            }
            survey.flagged.push(word);
            let address = self.table.address(memory, slot);
            survey.record_conflict(
                &self.hashing,
                &ConflictEntry { word, address, entry: self.entry(memory, slot) },
            );
        }
        let mut has_waited = false;
        for (cell, conflict) in all {
            let main = self.table.find(memory, &self.stored_key(conflict.word));
            if main.is_some_and(|slot| self.table.address(memory, slot) == conflict.address) {
                // Wait for readers that have not seen the main entry.
                if !has_waited {
                    grace.wait()?;
                    has_waited = true;
                }
                self.conflicts.remove(memory, cell);
                continue;
            }
            self.entries += 1;
            self.conflict_entries += 1;
            survey.record_conflict(&self.hashing, &conflict);
        }
        Ok(())
    }

    /// True if the promotion to this flagged main entry was begun and not completed: its address does not
    /// have its digest.
    fn is_promotion_begun(&self, memory: &Memory, slot: Slot, word: u64) -> bool {
        let (high, low) = self.table.address(memory, slot);
        let digest = self.hashing.digest(high, low);
        let check = (digest ^ self.table.value(memory, slot)) >> layout::EXACT_CHECK_SHIFT;
        check != 0 || digest as u32 != word as u32
    }

    /// Repairs flags, and makes conflicts without a main entry main entries.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Grace`].
    pub(crate) fn repair(&mut self, pool: &mut Pool, survey: &Survey) -> Result<(), Error> {
        let all: Vec<_> = self.conflicts.all(pool.memory()).collect();
        let words: HashSet<u64> = all.iter().map(|(_, conflict)| conflict.word).collect();
        for (cell, conflict) in all {
            let key = self.stored_key(conflict.word);
            match self.table.find(pool.memory(), &key) {
                None => {
                    // The main entry was removed, so this conflict becomes the main entry.
                    let check =
                        self.hashing.digest(conflict.address.0, conflict.address.1) & !layout::EXACT_MAC_MASK;
                    self.insert(
                        pool,
                        &PreparedKey { check, address: Some(conflict.address), ..key },
                        conflict.entry,
                    )?;
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
