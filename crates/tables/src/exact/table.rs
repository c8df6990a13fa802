//! One run of buckets: slots, moves between them, and room by a cuckoo path.

use super::hash::{GENERATION_SHIFT, Hashing, Prepared, buckets_of, is_filled};
use crate::error::Error;
use crate::layout::{self, exact_bucket};
use crate::memory::Memory;
use std::mem::offset_of;

pub(super) const SLOTS: u32 = layout::EXACT_SLOTS;
/// Buckets that the search for a cuckoo path looks at: about six moves deep.
const SEARCH_BUCKETS_MAX: usize = 768;
/// Times that a path is searched again because it crossed itself.
const SEARCHES_MAX: usize = 4;
/// IPv6 addresses to a cell of the address run.
const ADDRESSES_PER_CELL: u32 = layout::CELL_BYTES / 16;

/// Where an entry stands.
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
    /// First cell; 0: there is no IPv6 entry.
    pub addresses: u32,
}

/// Called with a slot's number before its generation is stepped.
pub(super) type Before<'a> = &'a mut dyn FnMut(u32) -> Result<(), Error>;

struct Step {
    bucket: u32,
    /// Index of the step whose bucket it is reached from; `usize::MAX` for the first two.
    parent: usize,
    /// Slot of that bucket whose entry can move here.
    index: u32,
}

impl Table {
    /// Cells of the address run for so many buckets.
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
        let (cell, offset) = self.address_place(slot);
        (memory.load64(cell, offset), memory.load64(cell, offset + 8))
    }

    pub(super) fn set_address(&self, memory: &Memory, slot: Slot, (high, low): (u64, u64)) {
        let (cell, offset) = self.address_place(slot);
        memory.store64(cell, offset, high);
        memory.store64(cell, offset + 8, low);
    }

    pub(super) fn prefetch_addresses(&self, memory: &Memory, bucket: u32) {
        memory.prefetch(self.address_place(Slot { bucket, index: 0 }).0);
        memory.prefetch(self.address_place(Slot { bucket, index: SLOTS - 1 }).0);
    }

    fn address_place(&self, slot: Slot) -> (u32, usize) {
        let number = slot.number();
        (self.addresses + number / ADDRESSES_PER_CELL, (number % ADDRESSES_PER_CELL) as usize * 16)
    }

    /// Gives a filled slot's key its next generation: whoever read value or next
    /// before looks again.
    pub(super) fn step_generation(&self, memory: &Memory, slot: Slot) {
        let key = self.key(memory, slot);
        self.set_key(memory, slot, key.wrapping_add(1 << GENERATION_SHIFT));
    }

    /// Fills an empty slot.
    pub(super) fn fill(&self, memory: &Memory, slot: Slot, key: &Prepared, value: u64, next: u32) {
        if let Some(full) = key.full {
            self.set_address(memory, slot, full);
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

    /// Tells readers that missed the key to look again.
    pub(super) fn bump_version(&self, memory: &Memory, hash: u64) {
        let cell = self.first + buckets_of(hash, self.count).0;
        let offset = offset_of!(exact_bucket, version);
        memory.store32(cell, offset, memory.load32(cell, offset).wrapping_add(1));
    }

    /// The slot with this key word that readers find first.
    pub(super) fn find(&self, memory: &Memory, key: &Prepared) -> Option<Slot> {
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

    /// An empty slot, in a hash's first bucket if that has one: where readers
    /// look first, so that most lookups touch one cell.
    pub(super) fn empty_slot(&self, memory: &Memory, hash: u64) -> Option<Slot> {
        let (one, two) = buckets_of(hash, self.count);
        self.free_slot(memory, one).or_else(|| self.free_slot(memory, two))
    }

    /// An empty slot for the key, after moving others aside where needed;
    /// `None` when no path of bounded length leads to one.
    pub(super) fn make_room(
        &self,
        memory: &Memory,
        hashing: &Hashing,
        hash: u64,
        before: Before<'_>,
    ) -> Result<Option<Slot>, Error> {
        if let Some(slot) = self.empty_slot(memory, hash) {
            return Ok(Some(slot));
        }
        let (one, two) = buckets_of(hash, self.count);
        for _ in 0..SEARCHES_MAX {
            let Some((steps, last)) = self.search(memory, hashing, one, two) else { return Ok(None) };
            if let Some(slot) = self.walk_back(memory, hashing, &steps, last, before)? {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Breadth first from the two buckets to one with an empty slot.
    fn search(&self, memory: &Memory, hashing: &Hashing, one: u32, two: u32) -> Option<(Vec<Step>, usize)> {
        let start = |bucket| Step { bucket, parent: usize::MAX, index: 0 };
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
                    steps.push(Step { bucket: other, parent: at, index: slot.index });
                }
            }
            at += 1;
        }
        None
    }

    /// Moves entries along the path from its far end, each only if it still can
    /// go there: a path may cross itself.
    fn walk_back(
        &self,
        memory: &Memory,
        hashing: &Hashing,
        steps: &[Step],
        last: usize,
        before: Before<'_>,
    ) -> Result<Option<Slot>, Error> {
        let mut step = &steps[last];
        while step.parent != usize::MAX {
            let from = Slot { bucket: steps[step.parent].bucket, index: step.index };
            let Some(to) = self.free_slot(memory, step.bucket) else { return Ok(None) };
            if !is_filled(self.key(memory, from)) || self.other_bucket(memory, hashing, from) != to.bucket {
                return Ok(None);
            }
            before(to.number())?;
            self.shift(memory, hashing, from, to);
            step = &steps[step.parent];
        }
        Ok(self.free_slot(memory, step.bucket))
    }

    fn other_bucket(&self, memory: &Memory, hashing: &Hashing, slot: Slot) -> u32 {
        let word = self.key(memory, slot) & layout::EXACT_KEY_MASK;
        let (one, two) = buckets_of(hashing.hash(word), self.count);
        if slot.bucket == one { two } else { one }
    }

    /// Moves an entry. A reader finds the old copy, the new one, or that the
    /// version changed.
    fn shift(&self, memory: &Memory, hashing: &Hashing, from: Slot, to: Slot) {
        let word = self.key(memory, from) & layout::EXACT_KEY_MASK;
        let full = (self.addresses != 0).then(|| self.address(memory, from));
        let key = Prepared { word, check: 0, full, hash: hashing.hash(word) };
        self.fill(memory, to, &key, self.value(memory, from), self.next(memory, from));
        self.bump_version(memory, key.hash);
        self.clear(memory, from);
    }
}
