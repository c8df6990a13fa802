//! One run of buckets: access to slots, and the search for an empty slot by moving entries along a cuckoo
//! path.

use super::hash::{GENERATION_SHIFT, Hashing, PreparedKey, buckets_of, is_filled};
use crate::error::Error;
use crate::layout::{self, exact_bucket};
use crate::memory::Memory;
use std::mem::offset_of;

pub(super) const SLOTS: u32 = layout::EXACT_SLOTS;
/// Buckets that the search for a cuckoo path looks at: paths of about six moves.
const SEARCH_BUCKETS_MAX: usize = 768;
/// Searches for a path, because one that crosses itself cannot be used.
const SEARCHES_MAX: usize = 4;
/// IPv6 addresses in a cell of the address run.
const ADDRESSES_PER_CELL: u32 = layout::CELL_BYTES / 16;

/// Position of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub bucket: u32,
    pub index: u32,
}

impl Slot {
    pub(super) fn number(self) -> u32 {
        self.bucket * SLOTS + self.index
    }
}

/// A run of buckets, and the run of IPv6 addresses that belongs to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub first: u32,
    pub count: u32,
    /// First cell of the address run; 0 if there has been no IPv6 entry yet.
    pub addresses: u32,
}

/// Called with a slot's number before its generation is stepped.
pub(super) type BeforeStep<'a> = &'a mut dyn FnMut(u32) -> Result<(), Error>;

/// A bucket on a cuckoo path.
struct PathStep {
    bucket: u32,
    /// Index of the step from whose bucket it is reached; `usize::MAX` for the first two.
    parent: usize,
    /// Index of the slot in that bucket whose entry can move here.
    index: u32,
}

impl Table {
    /// Cells of the address run for this many buckets.
    pub(super) fn address_cells(count: u32) -> u32 {
        (u64::from(count) * u64::from(SLOTS)).div_ceil(u64::from(ADDRESSES_PER_CELL)) as u32
    }

    pub(super) fn slots(&self) -> u64 {
        u64::from(self.count) * u64::from(SLOTS)
    }

    pub(super) fn key(&self, memory: &Memory, slot: Slot) -> u64 {
        memory.load64(self.first + slot.bucket, offset_of!(exact_bucket, key) + slot.index as usize * 8)
    }

    fn set_key(&self, memory: &Memory, slot: Slot, key: u64) {
        memory.store64(
            self.first + slot.bucket,
            offset_of!(exact_bucket, key) + slot.index as usize * 8,
            key,
        );
    }

    pub(super) fn value(&self, memory: &Memory, slot: Slot) -> u64 {
        memory.load64(self.first + slot.bucket, offset_of!(exact_bucket, value) + slot.index as usize * 8)
    }

    pub(super) fn set_value(&self, memory: &Memory, slot: Slot, value: u64) {
        let offset = offset_of!(exact_bucket, value) + slot.index as usize * 8;
        memory.store64(self.first + slot.bucket, offset, value);
    }

    pub(super) fn next(&self, memory: &Memory, slot: Slot) -> u32 {
        memory.load32(self.first + slot.bucket, offset_of!(exact_bucket, next) + slot.index as usize * 4)
    }

    pub(super) fn set_next(&self, memory: &Memory, slot: Slot, next: u32) {
        let offset = offset_of!(exact_bucket, next) + slot.index as usize * 4;
        memory.store32(self.first + slot.bucket, offset, next);
    }

    /// The slot's IPv6 address, which only the writer reads.
    pub(super) fn address(&self, memory: &Memory, slot: Slot) -> (u64, u64) {
        if self.addresses == 0 {
            return (0, 0);
        }
        let (cell, offset) = self.address_position(slot);
        (memory.load64(cell, offset), memory.load64(cell, offset + 8))
    }

    pub(super) fn set_address(&self, memory: &Memory, slot: Slot, (high, low): (u64, u64)) {
        let (cell, offset) = self.address_position(slot);
        memory.store64(cell, offset, high);
        memory.store64(cell, offset + 8, low);
    }

    pub(super) fn prefetch_addresses(&self, memory: &Memory, bucket: u32) {
        memory.prefetch(self.address_position(Slot { bucket, index: 0 }).0);
        memory.prefetch(self.address_position(Slot { bucket, index: SLOTS - 1 }).0);
    }

    fn address_position(&self, slot: Slot) -> (u32, usize) {
        let number = slot.number();
        (self.addresses + number / ADDRESSES_PER_CELL, (number % ADDRESSES_PER_CELL) as usize * 16)
    }

    /// Gives a filled slot's key the next generation, so that readers which have read value or next retry.
    pub(super) fn step_generation(&self, memory: &Memory, slot: Slot) {
        let key = self.key(memory, slot);
        self.set_key(memory, slot, key.wrapping_add(1 << GENERATION_SHIFT));
    }

    /// Fills an empty slot.
    pub(super) fn fill(&self, memory: &Memory, slot: Slot, key: &PreparedKey, value: u64, next: u32) {
        if let Some(address) = key.address {
            self.set_address(memory, slot, address);
        }
        self.set_value(memory, slot, value);
        self.set_next(memory, slot, next);
        let generation = (self.key(memory, slot) >> GENERATION_SHIFT).wrapping_add(1);
        self.set_key(memory, slot, key.word | generation << GENERATION_SHIFT);
    }

    /// Empties a slot; its generation stays for the next filling.
    pub(super) fn clear(&self, memory: &Memory, slot: Slot) {
        let key = self.key(memory, slot);
        self.set_key(memory, slot, key & !layout::EXACT_KEY_MASK);
    }

    /// Makes readers that missed the key retry.
    pub(super) fn bump_version(&self, memory: &Memory, hash: u64) {
        let cell = self.first + buckets_of(hash, self.count).0;
        let offset = offset_of!(exact_bucket, version);
        memory.store32(cell, offset, memory.load32(cell, offset).wrapping_add(1));
    }

    /// The slot with this key word that readers find first.
    pub(super) fn find(&self, memory: &Memory, key: &PreparedKey) -> Option<Slot> {
        let (one, two) = buckets_of(key.hash, self.count);
        [one, two].into_iter().find_map(|bucket| {
            self.bucket_slots(bucket)
                .find(|&slot| self.key(memory, slot) & layout::EXACT_KEY_MASK == key.word)
        })
    }

    fn bucket_slots(&self, bucket: u32) -> impl Iterator<Item = Slot> + use<> {
        (0..SLOTS).map(move |index| Slot { bucket, index })
    }

    pub(super) fn all_slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.count).flat_map(|bucket| (0..SLOTS).map(move |index| Slot { bucket, index }))
    }

    fn free_slot(&self, memory: &Memory, bucket: u32) -> Option<Slot> {
        self.bucket_slots(bucket).find(|&slot| !is_filled(self.key(memory, slot)))
    }

    /// An empty slot of a hash, in the first bucket if possible: readers look there first, so that most
    /// lookups touch one cell.
    pub(super) fn empty_slot(&self, memory: &Memory, hash: u64) -> Option<Slot> {
        let (one, two) = buckets_of(hash, self.count);
        self.free_slot(memory, one).or_else(|| self.free_slot(memory, two))
    }

    /// Finds an empty slot for a hash, if necessary by moving other entries. `None` if no path of bounded
    /// length leads to one.
    pub(super) fn free_slot_by_moving(
        &self,
        memory: &Memory,
        hashing: &Hashing,
        hash: u64,
        before_step: BeforeStep<'_>,
    ) -> Result<Option<Slot>, Error> {
        if let Some(slot) = self.empty_slot(memory, hash) {
            return Ok(Some(slot));
        }
        let (one, two) = buckets_of(hash, self.count);
        for _ in 0..SEARCHES_MAX {
            let Some((steps, last)) = self.find_path(memory, hashing, one, two) else { return Ok(None) };
            if let Some(slot) = self.move_along_path(memory, hashing, &steps, last, before_step)? {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Searches breadth first from the two buckets to one with an empty slot.
    fn find_path(
        &self,
        memory: &Memory,
        hashing: &Hashing,
        one: u32,
        two: u32,
    ) -> Option<(Vec<PathStep>, usize)> {
        let start = |bucket| PathStep { bucket, parent: usize::MAX, index: 0 };
        let mut steps = Vec::with_capacity(64);
        steps.push(start(one));
        steps.push(start(two));
        let mut at = 0;
        while at < steps.len() {
            let bucket = steps[at].bucket;
            if self.free_slot(memory, bucket).is_some() {
                return Some((steps, at));
            }
            for slot in self.bucket_slots(bucket) {
                if steps.len() < SEARCH_BUCKETS_MAX {
                    let other = self.other_bucket(memory, hashing, slot);
                    steps.push(PathStep { bucket: other, parent: at, index: slot.index });
                }
            }
            at += 1;
        }
        None
    }

    /// Moves entries along the path, beginning at its far end. Returns `None` if an entry cannot be moved as
    /// planned because the path crosses itself.
    fn move_along_path(
        &self,
        memory: &Memory,
        hashing: &Hashing,
        steps: &[PathStep],
        last: usize,
        before_step: BeforeStep<'_>,
    ) -> Result<Option<Slot>, Error> {
        let mut step = &steps[last];
        while step.parent != usize::MAX {
            let from = Slot { bucket: steps[step.parent].bucket, index: step.index };
            let Some(to) = self.free_slot(memory, step.bucket) else { return Ok(None) };
            if !is_filled(self.key(memory, from)) || self.other_bucket(memory, hashing, from) != to.bucket {
                return Ok(None);
            }
            before_step(to.number())?;
            self.move_entry(memory, hashing, from, to);
            step = &steps[step.parent];
        }
        Ok(self.free_slot(memory, step.bucket))
    }

    fn other_bucket(&self, memory: &Memory, hashing: &Hashing, slot: Slot) -> u32 {
        let word = self.key(memory, slot) & layout::EXACT_KEY_MASK;
        let (one, two) = buckets_of(hashing.hash(word), self.count);
        if slot.bucket == one { two } else { one }
    }

    /// Moves an entry. A reader finds the old copy, the new one, or a changed version.
    fn move_entry(&self, memory: &Memory, hashing: &Hashing, from: Slot, to: Slot) {
        let word = self.key(memory, from) & layout::EXACT_KEY_MASK;
        let address = (self.addresses != 0).then(|| self.address(memory, from));
        let key = PreparedKey { word, check: 0, address, hash: hashing.hash(word) };
        self.fill(memory, to, &key, self.value(memory, from), self.next(memory, from));
        self.bump_version(memory, key.hash);
        self.clear(memory, from);
    }
}
