//! Directories: a slot for each value of the next bits of the address, and a heap of the routes that end
//! within these bits. The heap is the writer's record; its routes are pushed into the slots that they cover.

use super::word::{Skip, Word, WordAt};
use super::{Prefix, bucket};
use crate::layout;
use crate::memory::Memory;

const WORDS_PER_CELL: u32 = layout::CELL_BYTES / 4;

/// A directory of `bits` bits behind the first `depth` of the address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory {
    pub first: u32,
    pub bits: u8,
    pub depth: u8,
}

/// `count` bits of an address behind the first `from`.
pub(super) fn bits_at(bits: u128, from: u8, count: u8) -> u32 {
    if count == 0 { 0 } else { ((bits << from) >> (128 - u32::from(count))) as u32 }
}

impl Directory {
    /// Cells of a directory: its slots, and a heap of twice as many words.
    pub(super) fn cells_of(bits: u8) -> u32 {
        (3u32 << bits).div_ceil(WORDS_PER_CELL)
    }

    pub(super) fn cells(&self) -> u32 {
        Self::cells_of(self.bits)
    }

    pub(super) fn slots(&self) -> u32 {
        1 << self.bits
    }

    /// Number of bits of the address that are used when a slot has been chosen.
    pub(super) fn end(&self) -> u8 {
        self.depth + self.bits
    }

    fn at(&self, word: u32) -> WordAt {
        WordAt { cell: self.first + word / WORDS_PER_CELL, offset: (word % WORDS_PER_CELL) as usize * 4 }
    }

    pub(super) fn slot(&self, slot: u32) -> WordAt {
        self.at(slot)
    }

    pub(super) fn slot_of(&self, bits: u128) -> WordAt {
        self.slot(bits_at(bits, self.depth, self.bits))
    }

    /// Position of a route in the heap, by its number; number 0 is the inherited leaf.
    pub(super) fn heap(&self, number: u32) -> WordAt {
        self.at(self.slots() + number)
    }

    /// Heap number of a prefix that ends within the directory's bits.
    pub(super) fn number_of(&self, prefix: Prefix) -> u32 {
        let length = prefix.length - self.depth;
        1 << length | bits_at(prefix.bits, self.depth, length)
    }

    /// The inverse of [`Directory::number_of`]; `above` contains the first `depth` bits.
    pub(super) fn prefix_of(&self, number: u32, above: u128) -> Prefix {
        let length = number.ilog2() as u8;
        let rest = u128::from(number ^ 1 << length);
        let bits = if length == 0 { 0 } else { rest << (128 - u32::from(length)) >> self.depth };
        Prefix { bits: above | bits, length: self.depth + length }
    }

    /// `above` with the bits of a slot appended.
    pub(super) fn extend(&self, above: u128, slot: u32) -> u128 {
        above | u128::from(slot) << (128 - u32::from(self.bits)) >> self.depth
    }

    /// The leaf of the longest heap route that covers this heap number, or else the inherited leaf.
    pub(super) fn covering(&self, memory: &Memory, mut number: u32) -> u32 {
        while number > 0 {
            let leaf = self.heap(number).load(memory);
            if leaf != 0 {
                return leaf;
            }
            number /= 2;
        }
        self.heap(0).load(memory)
    }

    /// The leaf that a slot inherits.
    pub(super) fn covering_slot(&self, memory: &Memory, slot: u32) -> u32 {
        self.covering(memory, self.slots() | slot)
    }

    /// The leaf that each slot inherits.
    pub(super) fn coverings(&self, memory: &Memory) -> Vec<u32> {
        let mut leaves = vec![0; self.slots() as usize];
        leaves[0] = self.heap(0).load(memory);
        for level in 0..=u32::from(self.bits) {
            // From the end, so that a pair does not overwrite a leaf that is still to be read.
            for i in (0..1usize << level).rev() {
                let own = self.heap(1 << level | i as u32).load(memory);
                leaves[i] = if own != 0 { own } else { leaves[i / 2] };
            }
        }
        leaves
    }

    /// Adds, changes or withdraws (leaf 0) a route of the heap. Returns the leaf that it had.
    pub(super) fn set_route(&self, memory: &Memory, prefix: Prefix, leaf: u32) -> u32 {
        let number = self.number_of(prefix);
        let old = self.heap(number).load(memory);
        if old != leaf {
            self.heap(number).store(memory, leaf);
            self.push(memory, number, self.covering(memory, number));
        }
        old
    }

    /// Pushes a leaf into all slots below a heap number, except those that a longer route covers.
    fn push(&self, memory: &Memory, number: u32, leaf: u32) {
        if number >= self.slots() {
            set_inherited_below(memory, self.slot(number - self.slots()), self.end(), leaf);
            return;
        }
        for below in [2 * number, 2 * number + 1] {
            if self.heap(below).load(memory) == 0 {
                self.push(memory, below, leaf);
            }
        }
    }

    /// Changes the leaf that the directory inherits from above.
    fn set_inherited(&self, memory: &Memory, leaf: u32) {
        if self.heap(0).load(memory) == leaf {
            return;
        }
        self.heap(0).store(memory, leaf);
        if self.heap(1).load(memory) == 0 {
            self.push(memory, 1, leaf);
        }
    }
}

/// Changes the leaf that everything below a word inherits.
pub(super) fn set_inherited_below(memory: &Memory, at: WordAt, depth: u8, leaf: u32) {
    match at.word(memory) {
        Word::Leaf(_) => at.store(memory, leaf),
        Word::Bucket(form, cell) => bucket::set_inherited(memory, cell, form, leaf),
        Word::Directory(first, bits) => Directory { first, bits, depth }.set_inherited(memory, leaf),
        Word::Skip(cell) => {
            Skip::set_inherited(cell, memory, leaf);
            if let Some(directory) = Skip::read(memory, cell).below() {
                directory.set_inherited(memory, leaf);
            }
        }
    }
}
