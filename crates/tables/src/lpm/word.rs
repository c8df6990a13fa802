//! The 32-bit words of the structure, their positions, and skips.

use super::directory::Directory;
use super::{Prefix, mask};
use crate::layout::{self, lpm_skip};
use crate::memory::Memory;
use std::mem::offset_of;

/// Position of a word.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordAt {
    pub cell: u32,
    pub offset: usize,
}

/// The three forms of buckets, by the length of their lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BucketForm {
    Narrow,
    Wide,
    Long,
}

/// What a word is or leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// A leaf; 0 if there is no route.
    Leaf(u32),
    /// Form and cell of a bucket.
    Bucket(BucketForm, u32),
    /// Cell of a skip.
    Skip(u32),
    /// First cell of a directory, and its number of bits.
    Directory(u32, u8),
}

impl WordAt {
    pub(super) fn load(self, memory: &Memory) -> u32 {
        memory.load32(self.cell, self.offset)
    }

    pub(super) fn store(self, memory: &Memory, word: u32) {
        memory.store32(self.cell, self.offset, word);
    }

    pub(super) fn word(self, memory: &Memory) -> Word {
        Word::from_bits(self.load(memory))
    }
}

impl Word {
    pub(super) fn from_bits(word: u32) -> Self {
        let cell = word & layout::CELL_INDEX_MASK;
        match word >> layout::LPM_KIND_SHIFT {
            layout::LPM_SKIP => Self::Skip(cell),
            layout::LPM_NARROW => Self::Bucket(BucketForm::Narrow, cell),
            layout::LPM_WIDE => Self::Bucket(BucketForm::Wide, cell),
            layout::LPM_LONG => Self::Bucket(BucketForm::Long, cell),
            layout::LPM_DIRECTORY2 => Self::Directory(cell, 2),
            layout::LPM_DIRECTORY4 => Self::Directory(cell, 4),
            layout::LPM_DIRECTORY8 => Self::Directory(cell, 8),
            _ => Self::Leaf(word),
        }
    }

    pub(super) fn bits(self) -> u32 {
        let (kind, cell) = match self {
            Self::Leaf(leaf) => return leaf,
            Self::Skip(cell) => (layout::LPM_SKIP, cell),
            Self::Bucket(BucketForm::Narrow, cell) => (layout::LPM_NARROW, cell),
            Self::Bucket(BucketForm::Wide, cell) => (layout::LPM_WIDE, cell),
            Self::Bucket(BucketForm::Long, cell) => (layout::LPM_LONG, cell),
            Self::Directory(cell, 2) => (layout::LPM_DIRECTORY2, cell),
            Self::Directory(cell, 4) => (layout::LPM_DIRECTORY4, cell),
            Self::Directory(cell, _) => (layout::LPM_DIRECTORY8, cell),
        };
        kind << layout::LPM_KIND_SHIFT | cell
    }
}

/// A cell that leads to a directory over bits that all routes below share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    pub cell: u32,
    /// The shared bits, and those before them.
    pub address: u128,
    /// Number of these bits.
    pub depth: u8,
    /// The word that leads to the directory.
    pub directory: u32,
    /// Leaf of the addresses that differ in the shared bits.
    pub inherited: u32,
}

impl Skip {
    pub(super) fn read(memory: &Memory, cell: u32) -> Self {
        let skip: lpm_skip = memory.read(cell);
        Self {
            cell,
            address: u128::from(skip.address[0]) << 64 | u128::from(skip.address[1]),
            // A depth that no address has stays too large for one.
            depth: u8::try_from(skip.depth).unwrap_or(u8::MAX),
            directory: skip.directory,
            inherited: skip.inherited,
        }
    }

    /// Fills the skip's cell, which is not linked yet.
    pub(super) fn write(&self, memory: &Memory) {
        let mask = mask(self.depth);
        let skip = lpm_skip {
            address: [(self.address >> 64) as u64, self.address as u64],
            mask: [(mask >> 64) as u64, mask as u64],
            directory: self.directory,
            inherited: self.inherited,
            depth: self.depth.into(),
            ..Default::default()
        };
        memory.write(self.cell, &skip);
    }

    pub(super) fn set_inherited(cell: u32, memory: &Memory, leaf: u32) {
        memory.store32(cell, offset_of!(lpm_skip, inherited), leaf);
    }

    /// Whether the mask that packets compare with has as many bits as the depth says.
    pub(super) fn has_right_mask(&self, memory: &Memory) -> bool {
        let (skip, mask): (lpm_skip, u128) = (memory.read(self.cell), mask(self.depth));
        skip.mask == [(mask >> 64) as u64, mask as u64]
    }

    /// Position of the word that leads to the directory.
    pub(super) fn directory_at(cell: u32) -> WordAt {
        WordAt { cell, offset: offset_of!(lpm_skip, directory) }
    }

    /// The directory that the skip leads to; `None` in corrupt tables.
    pub(super) fn below(&self) -> Option<Directory> {
        match Word::from_bits(self.directory) {
            Word::Directory(first, bits) => Some(Directory { first, bits, depth: self.depth }),
            _ => None,
        }
    }

    /// True if a prefix begins with the skip's bits.
    pub(super) fn holds(&self, prefix: Prefix) -> bool {
        prefix.length >= self.depth && (prefix.bits ^ self.address) & mask(self.depth) == 0
    }
}
