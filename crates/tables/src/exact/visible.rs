//! The entries that lookups find. It changes with the way in which readers search.

use super::hash::{CHECK_MASK, Key, buckets_of, is_filled};
use super::table::Slot;
use super::{Entry, Exact, Position, ROOT};
use crate::layout::{self, exact_root};
use crate::memory::Memory;
use std::mem::offset_of;

impl Exact {
    /// Calls `call` for every entry in a place in which readers look for its key. An entry that is in two such places is
    /// visited twice, although readers find only one of them. Reads the table in the order of memory, which is several
    /// times faster than to search for each key. Not while the table changes.
    pub(crate) fn visit_visible(&self, memory: &Memory, mut call: impl FnMut(Key, Entry)) {
        let run = memory.load64(ROOT, offset_of!(exact_root, buckets));
        if run != u64::from(self.table.first) | u64::from(self.table.count) << 32 {
            return;
        }
        for slot in self.table.all_slots() {
            let word = self.table.key(memory, slot);
            if is_filled(word)
                && let Some(key) = self.key_if_visible(memory, slot, word)
            {
                call(key, self.entry(memory, slot));
            }
        }
        for (cell, conflict) in self.conflicts.all(memory) {
            let Some(key) = self.hashing.restore(conflict.word, || conflict.address) else { continue };
            if matches!(self.locate(memory, &self.hashing.prepare(key)), Position::Conflict(at, _) if at == cell)
            {
                call(key, conflict.entry);
            }
        }
    }

    fn key_if_visible(&self, memory: &Memory, slot: Slot, word: u64) -> Option<Key> {
        let word = word & layout::EXACT_KEY_MASK;
        let (one, two) = buckets_of(self.hashing.hash(word), self.table.count);
        if slot.bucket != one && slot.bucket != two {
            return None;
        }
        let key = self.hashing.restore(word, || self.table.address(memory, slot))?;
        if let Key::Ip { address: std::net::IpAddr::V6(_), .. } = key {
            let prepared = self.hashing.prepare(key);
            let check = self.table.value(memory, slot) & CHECK_MASK;
            return (prepared.word == word && prepared.check == check).then_some(key);
        }
        Some(key)
    }
}
