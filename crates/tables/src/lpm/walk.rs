//! Walks over everything that a word leads to: lists routes, counts cells, retires cells, and adopts the
//! structure of another writer.

use super::bucket::{self, Bucket};
use super::directory::Directory;
use super::word::{BucketForm, Skip, Word, WordAt};
use super::{Entry, Family, Prefix, mask};
use crate::error::Error;
use crate::memory::Memory;
use crate::pool::{Pool, ReachableCells};

/// A word that is to be visited, with the bits of the address that lead to it.
#[derive(Clone, Copy)]
struct Visit {
    word: Word,
    depth: u8,
    above: u128,
}

impl Visit {
    fn of(directory: Directory, above: u128) -> Self {
        Self { word: Word::Directory(directory.first, directory.bits), depth: directory.depth, above }
    }

    /// Appends the routes of the word's bucket or directory to `routes`, and the words below it to `next`.
    fn open(self, memory: &Memory, routes: &mut Vec<Entry>, next: &mut Vec<Self>) {
        let Self { word, depth, above } = self;
        match word {
            Word::Leaf(_) => {}
            Word::Bucket(form, cell) => {
                routes.extend_from_slice(Bucket::read(memory, cell, form, above, depth).routes());
            }
            Word::Skip(cell) => {
                let skip = Skip::read(memory, cell);
                next.extend(skip.below().map(|below| Self::of(below, skip.address)));
            }
            Word::Directory(first, bits) => {
                let directory = Directory { first, bits, depth };
                for number in 1..2 * directory.slots() {
                    let leaf = directory.heap(number).load(memory);
                    if leaf != 0 {
                        routes.push((directory.prefix_of(number, above), leaf));
                    }
                }
                for slot in (0..directory.slots()).rev() {
                    let word = directory.slot(slot).word(memory);
                    if !matches!(word, Word::Leaf(_)) {
                        let above = directory.extend(above, slot);
                        next.push(Self { word, depth: directory.end(), above });
                    }
                }
            }
        }
    }
}

/// All routes below a directory.
pub(super) fn iter(memory: &Memory, top: Directory, above: u128) -> impl Iterator<Item = Entry> + '_ {
    let mut visits = vec![Visit::of(top, above)];
    let mut routes = Vec::new();
    std::iter::from_fn(move || {
        while routes.is_empty() {
            visits.pop()?.open(memory, &mut routes, &mut visits);
        }
        routes.pop()
    })
}

/// The routes below a word; `None` if there are more than `most`.
pub(super) fn gather(memory: &Memory, word: Word, depth: u8, above: u128, most: usize) -> Option<Vec<Entry>> {
    let mut visits = vec![Visit { word, depth, above: above & mask(depth) }];
    let mut routes = Vec::new();
    while let Some(visit) = visits.pop() {
        visit.open(memory, &mut routes, &mut visits);
        if routes.len() > most {
            return None;
        }
    }
    Some(routes)
}

/// First cell and length of the run that a word leads to.
fn run_of(word: Word) -> Option<(u32, u32)> {
    match word {
        Word::Leaf(_) => None,
        Word::Bucket(_, cell) | Word::Skip(cell) => Some((cell, 1)),
        Word::Directory(first, bits) => Some((first, Directory::cells_of(bits))),
    }
}

/// Appends the words below a word to `to`.
fn below(memory: &Memory, word: Word, to: &mut Vec<Word>) {
    match word {
        Word::Leaf(_) | Word::Bucket(..) => {}
        Word::Skip(cell) => to.push(Skip::directory_at(cell).word(memory)),
        Word::Directory(first, bits) => {
            let directory = Directory { first, bits, depth: 0 };
            let words = (0..directory.slots()).map(|slot| directory.slot(slot).word(memory));
            to.extend(words.filter(|word| !matches!(word, Word::Leaf(_))));
        }
    }
}

/// Calls `call` for each run of cells below a word, including its own.
fn each_run(memory: &Memory, word: Word, mut call: impl FnMut(u32, u32)) {
    let mut words = vec![word];
    while let Some(word) = words.pop() {
        below(memory, word, &mut words);
        if let Some((first, cells)) = run_of(word) {
            call(first, cells);
        }
    }
}

/// Retires all cells below a word that has been unlinked, including its own.
pub(super) fn retire(pool: &mut Pool, word: Word) {
    let mut runs = Vec::new();
    each_run(pool.memory(), word, |first, cells| runs.push((first, cells)));
    for (first, cells) in runs {
        pool.retire(first, cells);
    }
}

/// Number of cells below a word, including its own.
pub(super) fn cells_used(memory: &Memory, word: Word) -> u64 {
    let mut sum = 0;
    each_run(memory, word, |_, cells| sum += u64::from(cells));
    sum
}

/// The leaf of an address, found as readers find it. Adds the number of cells that were read to `cells_read`.
pub(super) fn find(memory: &Memory, top: Directory, address: u128, cells_read: &mut u32) -> u32 {
    let (mut word, mut depth) = (Word::Directory(top.first, top.bits), 0);
    // A directory uses at least two bits, and behind a skip there is a directory.
    for _ in 0..128 {
        let Some((first, cells)) = run_of(word) else { break };
        if !memory.contains(first, cells) {
            return 0;
        }
        *cells_read += 1;
        match word {
            Word::Leaf(leaf) => return leaf,
            Word::Bucket(form, cell) => {
                let bucket = Bucket::read(memory, cell, form, address, depth);
                let holds = |prefix: Prefix| (prefix.bits ^ address) & mask(prefix.length) == 0;
                let found = bucket.routes().iter().find(|(prefix, _)| holds(*prefix));
                return found.map_or(bucket.inherited, |&(_, leaf)| leaf);
            }
            Word::Skip(cell) => {
                let skip = Skip::read(memory, cell);
                if (skip.address ^ address) & mask(skip.depth) != 0 {
                    return skip.inherited;
                }
                (word, depth) = (Word::from_bits(skip.directory), skip.depth);
            }
            Word::Directory(first, bits) => {
                let directory = Directory { first, bits, depth };
                word = directory.slot_of(address).word(memory);
                depth = directory.end();
            }
        }
        if depth >= 128 && !matches!(word, Word::Leaf(_)) {
            return 0;
        }
    }
    if let Word::Leaf(leaf) = word { leaf } else { 0 }
}

/// Adoption: claims all cells, checks the structure, and repairs what an unfinished change can have left
/// wrong: the leaves that slots and buckets inherit.
pub(super) struct Adoption<'a> {
    pub memory: &'a Memory,
    pub reachable: &'a mut ReachableCells,
    pub family: Family,
}

fn corrupt(what: &str, cell: u32) -> Error {
    Error::Corrupt(format!("{what} at cell {cell}"))
}

impl Adoption<'_> {
    /// Claims a directory and everything below it. Returns the number of routes. The recursion is bounded by
    /// the bits of an address.
    pub(super) fn directory(&mut self, directory: Directory, inherited: u32) -> Result<u32, Error> {
        if directory.end() > self.family.max_length() {
            return Err(corrupt("there is a route directory of too many bits", directory.first));
        }
        self.reachable.claim(directory.first, directory.cells())?;
        let memory = self.memory;
        if directory.heap(0).load(memory) != inherited {
            directory.heap(0).store(memory, inherited);
        }
        let numbers = 1..2 * directory.slots();
        let own = numbers.filter(|&number| directory.heap(number).load(memory) != 0).count();
        let mut routes = own as u32;
        for (slot, covering) in (0..).zip(directory.coverings(memory)) {
            routes += self.word(directory.slot(slot), directory.end(), covering)?;
        }
        Ok(routes)
    }

    fn word(&mut self, at: WordAt, depth: u8, inherited: u32) -> Result<u32, Error> {
        let word = at.word(self.memory);
        if let Some((first, cells)) = run_of(word)
            && !self.memory.contains(first, cells)
        {
            return Err(corrupt("there is a link beyond the end of the memory", at.cell));
        }
        match word {
            Word::Leaf(leaf) => {
                if leaf != inherited {
                    at.store(self.memory, inherited);
                }
                Ok(0)
            }
            Word::Bucket(form, cell) => self.bucket(form, cell, depth, inherited),
            Word::Directory(first, bits) => self.directory(Directory { first, bits, depth }, inherited),
            Word::Skip(cell) => {
                let skip = Skip::read(self.memory, cell);
                let is_possible =
                    |below: &Directory| below.depth > depth && below.depth < self.family.max_length();
                let Some(below) = skip.below().filter(is_possible) else {
                    return Err(corrupt(
                        "there is a skip without a directory, or to an impossible depth",
                        cell,
                    ));
                };
                self.reachable.claim(cell, 1)?;
                if skip.inherited != inherited {
                    Skip::set_inherited(cell, self.memory, inherited);
                }
                if !self.memory.contains(below.first, below.cells()) {
                    return Err(corrupt("there is a link beyond the end of the memory", cell));
                }
                self.directory(below, inherited)
            }
        }
    }

    fn bucket(&mut self, form: BucketForm, cell: u32, depth: u8, inherited: u32) -> Result<u32, Error> {
        if depth == 0 || depth >= self.family.max_length() {
            return Err(corrupt("there is a bucket at an impossible depth", cell));
        }
        let bucket = Bucket::read(self.memory, cell, form, 0, depth);
        let longest = bucket.routes().iter().map(|(prefix, _)| prefix.length).max().unwrap_or(0);
        if bucket.count == 0 || longest > self.family.max_length() {
            return Err(corrupt("there is a bucket without routes or with impossible ones", cell));
        }
        self.reachable.claim(cell, 1)?;
        if bucket.inherited != inherited {
            bucket::set_inherited(self.memory, cell, form, inherited);
        }
        Ok(bucket.count as u32)
    }
}

/// Replaces a word and retires everything below the old one.
pub(super) fn replace(pool: &mut Pool, at: WordAt, word: u32) {
    let old = at.word(pool.memory());
    at.store(pool.memory(), word);
    retire(pool, old);
}
