//! Damages tables, as faulty memory or a fault of the agent would: for tests of what finds and repairs it.

use crate::layout::CELL_BYTES;
use crate::memory::Memory;

/// Position of a 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordPosition {
    cell: u32,
    offset: usize,
}

/// The words for which `is_wanted` is true, in the order of memory.
pub fn find_words(memory: &Memory, is_wanted: impl Fn(u64) -> bool) -> Vec<WordPosition> {
    let offsets = || (0..CELL_BYTES as usize).step_by(8);
    let positions =
        (0..memory.cells()).flat_map(|cell| offsets().map(move |offset| WordPosition { cell, offset }));
    positions.filter(|at| is_wanted(memory.load64(at.cell, at.offset))).collect()
}

/// Inverts the bits of a word that are set in `bits`.
pub fn flip(memory: &Memory, at: WordPosition, bits: u64) {
    memory.store64(at.cell, at.offset, memory.load64(at.cell, at.offset) ^ bits);
}
