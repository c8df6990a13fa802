//! Reads the routes of a structure whose memory may be damaged, and checks that lookups find them. It changes with the
//! layout.

use super::bucket::Bucket;
use super::directory::Directory;
use super::word::{Skip, Word};
use super::{Family, Prefix, Root, RootForm, mask, scan};
use crate::entries::Target;
use crate::memory::Memory;

/// Lookups do not find the routes: a link is wrong, or an address has another leaf than its longest route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

struct Inspection<'a, F> {
    memory: &'a Memory,
    family: Family,
    is_leaf: fn(&Memory, u32) -> bool,
    call: F,
    /// Words that may still be read, because wrong links could lead to the same cells again and again.
    words_left: u64,
}

/// Calls `call` for every route.
///
/// # Errors
/// [`Damaged`], possibly after some of the routes.
pub(crate) fn inspect(memory: &Memory, root: Root, call: impl FnMut(Prefix, u32)) -> Result<(), Damaged> {
    inspect_leaves(memory, root, is_action, call)
}

/// As [`inspect`], for a structure whose leaves are those for which `is_leaf` is true.
///
/// # Errors
/// As [`inspect`].
pub(crate) fn inspect_leaves(
    memory: &Memory,
    root: Root,
    is_leaf: fn(&Memory, u32) -> bool,
    mut call: impl FnMut(Prefix, u32),
) -> Result<(), Damaged> {
    let family = root.family;
    match root.load(memory).map_err(|_| Damaged)? {
        RootForm::Empty => Ok(()),
        RootForm::Scan(first) => {
            for (prefix, leaf) in scan::read_checked(memory, family, first).ok_or(Damaged)? {
                // A prefix with further bits cannot be withdrawn: no prefix is equal to it.
                let has_no_more_bits = prefix.bits & !mask(prefix.length) == 0;
                damaged_unless(is_leaf(memory, leaf) && has_no_more_bits)?;
                call(prefix, leaf);
            }
            Ok(())
        }
        RootForm::Directory(top) => {
            // Each word of the memory once: no cell has two links.
            let words_left = u64::from(memory.cells()) * 16;
            Inspection { memory, family, is_leaf, call, words_left }.directory(top, 0, 0)
        }
    }
}

fn damaged_unless(is_right: bool) -> Result<(), Damaged> {
    if is_right { Ok(()) } else { Err(Damaged) }
}

/// Whether a leaf says what to do with packets.
pub(crate) fn is_action(memory: &Memory, leaf: u32) -> bool {
    Target::from_leaf(memory, leaf).is_some()
}

impl<F: FnMut(Prefix, u32)> Inspection<'_, F> {
    fn directory(&mut self, directory: Directory, above: u128, inherited: u32) -> Result<(), Damaged> {
        let memory = self.memory;
        damaged_unless(directory.end() <= self.family.max_length())?;
        damaged_unless(memory.contains(directory.first, directory.cells()))?;
        let words = u64::from(directory.slots()) * 3;
        self.words_left = self.words_left.checked_sub(words).ok_or(Damaged)?;
        damaged_unless(directory.heap(0).load(memory) == inherited)?;
        for number in 1..2 * directory.slots() {
            let leaf = directory.heap(number).load(memory);
            if leaf != 0 {
                damaged_unless((self.is_leaf)(self.memory, leaf))?;
                (self.call)(directory.prefix_of(number, above), leaf);
            }
        }
        for (slot, covering) in (0..).zip(directory.coverings(memory)) {
            let word = directory.slot(slot).word(memory);
            if word != Word::Leaf(covering) {
                self.word(word, directory.end(), directory.extend(above, slot), covering)?;
            }
        }
        Ok(())
    }

    fn word(&mut self, word: Word, depth: u8, above: u128, inherited: u32) -> Result<(), Damaged> {
        match word {
            Word::Leaf(_) => Err(Damaged),
            Word::Bucket(form, cell) => {
                damaged_unless(depth > 0 && depth < self.family.max_length())?;
                damaged_unless(self.memory.contains(cell, 1))?;
                let bucket = Bucket::read(self.memory, cell, form, above, depth);
                damaged_unless(bucket.count > 0 && bucket.inherited == inherited)?;
                for (prefix, leaf) in bucket.routes() {
                    // Shorter ones would be in the directory above, where a search for the prefix ends.
                    let is_below = prefix.length > depth && (prefix.bits ^ above) & mask(depth) == 0;
                    damaged_unless(
                        is_below
                            && prefix.length <= self.family.max_length()
                            && (self.is_leaf)(self.memory, *leaf),
                    )?;
                    (self.call)(*prefix, *leaf);
                }
                Ok(())
            }
            Word::Directory(first, bits) => {
                self.directory(Directory { first, bits, depth }, above, inherited)
            }
            Word::Skip(cell) => {
                damaged_unless(self.memory.contains(cell, 1))?;
                let skip = Skip::read(self.memory, cell);
                let is_possible =
                    |below: &Directory| below.depth > depth && below.depth < self.family.max_length();
                let below = skip.below().filter(is_possible).ok_or(Damaged)?;
                let is_right = skip.inherited == inherited && (skip.address ^ above) & mask(depth) == 0;
                damaged_unless(is_right && skip.has_right_mask(self.memory))?;
                self.directory(below, skip.address, inherited)
            }
        }
    }
}
