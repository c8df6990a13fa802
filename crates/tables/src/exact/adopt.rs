//! Taking over a table that another writer left, maybe in the middle of a change.

use super::conflict::Conflicts;
use super::grow::address_offset;
use super::hash::{Hashing, Key, Prepared, is_filled};
use super::table::{Slot, Table};
use super::{Entry, Exact, ROOT};
use crate::error::Error;
use crate::layout::{self, exact_root};
use crate::memory::Memory;
use crate::pool::{Pool, Used};

impl Exact {
    /// The table that the root leads to, its cells claimed.
    pub(crate) fn adopt(memory: &Memory, used: &mut Used) -> Result<Self, Error> {
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
        let exact = Self::with(hashing, table, address_word, conflicts);
        exact.check_slots(memory)?;
        exact.remove_copies(memory);
        Ok(exact)
    }

    /// Every filled slot is in one of its key's buckets, and IPv6 ones have addresses.
    fn check_slots(&self, memory: &Memory) -> Result<(), Error> {
        for slot in self.table.all_slots() {
            let word = self.table.key(memory, slot);
            if !is_filled(word) {
                continue;
            }
            let key = self.stored_key(word);
            if self.table.find(memory, &key).is_none() {
                return Err(Error::Corrupt(format!("bucket {} holds a foreign key", slot.bucket)));
            }
            let kind = (word & layout::EXACT_KEY_MASK) >> layout::EXACT_KIND_SHIFT;
            if kind == u64::from(layout::EXACT_IPV6) && self.table.addresses == 0 {
                return Err(Error::Corrupt("an IPv6 entry without its address".to_owned()));
            }
        }
        Ok(())
    }

    fn stored_key(&self, word: u64) -> Prepared {
        let word = word & layout::EXACT_KEY_MASK;
        Prepared { word, check: 0, full: None, hash: self.hashing.hash(word) }
    }

    /// Finishes or takes back what was half done, removes what `is_valid`
    /// refuses, and counts.
    pub(crate) fn repair(
        &mut self,
        pool: &mut Pool,
        is_valid: impl Fn(Key, Entry) -> bool,
    ) -> Result<(), Error> {
        self.conflict_entries = self.conflicts.all(pool.memory()).count() as u64;
        self.repair_conflicts(pool)?;
        self.repair_main(pool)?;
        self.entries = self.iter(pool.memory()).count() as u64;
        let refused: Vec<Key> = self
            .iter(pool.memory())
            .filter(|&(key, entry)| !is_valid(key, entry))
            .map(|(key, _)| key)
            .collect();
        for key in refused {
            self.take(pool, key)?;
        }
        self.store_counts(pool.memory());
        Ok(())
    }

    /// Of two slots with one key readers find the first: the other one goes.
    fn remove_copies(&self, memory: &Memory) {
        for slot in self.table.all_slots() {
            let word = self.table.key(memory, slot);
            if is_filled(word) && self.table.find(memory, &self.stored_key(word)) != Some(slot) {
                self.table.clear(memory, slot);
            }
        }
    }

    fn repair_conflicts(&mut self, pool: &mut Pool) -> Result<(), Error> {
        let all: Vec<_> = self.conflicts.all(pool.memory()).collect();
        for (cell, full) in all {
            let key = self.stored_key(full.word);
            match self.table.find(pool.memory(), &key) {
                None => {
                    // Its main entry is gone: it becomes the main entry.
                    self.conflicts.remove(pool.memory(), cell);
                    self.conflict_entries -= 1;
                    let check = self.hashing.digest(full.address.0, full.address.1) & !layout::EXACT_MAC_MASK;
                    self.insert(pool, &Prepared { check, full: Some(full.address), ..key }, full.entry)?;
                }
                Some(slot) if !self.is_flagged(pool.memory(), slot) => self.set_flag(pool, slot, true)?,
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Promotions that were begun, and flags that lead to nothing.
    fn repair_main(&mut self, pool: &mut Pool) -> Result<(), Error> {
        let slots: Vec<Slot> = self
            .table
            .all_slots()
            .filter(|&slot| {
                let key = self.table.key(pool.memory(), slot);
                is_filled(key) && self.is_flagged(pool.memory(), slot)
            })
            .collect();
        for slot in slots {
            let memory = pool.memory();
            let word = self.table.key(memory, slot) & layout::EXACT_KEY_MASK;
            let address = self.table.address(memory, slot);
            let digest = self.hashing.digest(address.0, address.1);
            if (digest ^ self.table.value(memory, slot)) >> layout::EXACT_CHECK_SHIFT != 0 {
                self.promote(pool, slot, word)?;
                continue;
            }
            let key = Prepared { full: Some(address), ..self.stored_key(word) };
            self.finish_promotion(pool, &key, slot)?;
            if self.is_flagged(pool.memory(), slot) && self.conflicts.any_with(pool.memory(), word).is_none()
            {
                self.set_flag(pool, slot, false)?;
            }
        }
        Ok(())
    }
}
