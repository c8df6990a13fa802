//! The 32-bit words of the structure, and where they stand.

use super::directory::Directory;
use super::{Prefix, mask};
use crate::layout::{self, lpm_skip};
use crate::memory::Memory;
use std::mem::offset_of;

/// Where a word stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub cell: u32,
    pub offset: usize,
}

/// The three forms of buckets, by how long their lanes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Narrow,
    Wide,
    Long,
}

/// What a word says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// A leaf; 0: no route.
    Leaf(u32),
    Bucket(Form, u32),
    Skip(u32),
    /// First cell, bits.
    Directory(u32, u8),
}

impl At {
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
            layout::LPM_NARROW => Self::Bucket(Form::Narrow, cell),
            layout::LPM_WIDE => Self::Bucket(Form::Wide, cell),
            layout::LPM_LONG => Self::Bucket(Form::Long, cell),
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
            Self::Bucket(Form::Narrow, cell) => (layout::LPM_NARROW, cell),
            Self::Bucket(Form::Wide, cell) => (layout::LPM_WIDE, cell),
            Self::Bucket(Form::Long, cell) => (layout::LPM_LONG, cell),
            Self::Directory(cell, 2) => (layout::LPM_DIRECTORY2, cell),
            Self::Directory(cell, 4) => (layout::LPM_DIRECTORY4, cell),
            Self::Directory(cell, _) => (layout::LPM_DIRECTORY8, cell),
        };
        kind << layout::LPM_KIND_SHIFT | cell
    }
}

/// A cell that leads over bits which all routes below share, to a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    pub cell: u32,
    pub address: u128,
    pub depth: u8,
    pub directory: u32,
    pub inherited: u32,
}

impl Skip {
    pub(super) fn read(memory: &Memory, cell: u32) -> Self {
        let skip: lpm_skip = memory.read(cell);
        Self {
            cell,
            address: u128::from(skip.address[0]) << 64 | u128::from(skip.address[1]),
            depth: skip.depth as u8,
            directory: skip.directory,
            inherited: skip.inherited,
        }
    }

    /// Fills its cell, which nobody sees yet.
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

    /// Where the word of the directory stands.
    pub(super) fn at(cell: u32) -> At {
        At { cell, offset: offset_of!(lpm_skip, directory) }
    }

    /// The directory behind the bits; `None` where there is none, in corrupt tables.
    pub(super) fn below(&self) -> Option<Directory> {
        match Word::from_bits(self.directory) {
            Word::Directory(first, bits) => Some(Directory { first, bits, depth: self.depth }),
            _ => None,
        }
    }

    /// True where a prefix lies behind the bits.
    pub(super) fn holds(&self, prefix: Prefix) -> bool {
        prefix.length >= self.depth && (prefix.bits ^ self.address) & mask(self.depth) == 0
    }
}
