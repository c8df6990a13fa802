//! Builds structures from lists of routes: root directories, and what a word leads to. The constants here
//! decide how large directories are.

use super::bucket;
use super::directory::{Directory, bits_at};
use super::walk::gather;
use super::word::{BucketForm, Skip, Word};
use super::{Entry, mask};
use crate::error::Error;
use crate::layout;
use crate::memory::Memory;
use crate::pool::Pool;

/// Minimum number of common bits for which a skip is built. With its directory it then consumes more than two bits for
/// each of its cells, on which `POLICY_READS_*` of `cells.h` rely.
const SKIP_MIN: u8 = 8;
/// Routes up to which a directory has 2 or 4 bits. With more it has 8.
const ROUTES_OF_2_BITS: usize = 20;
const ROUTES_OF_4_BITS: usize = 400;
/// Routes for each slot of a new root directory. It is below what a bucket holds, because routes spread
/// unevenly.
const ROUTES_PER_SLOT: f64 = 3.2;
/// A root directory grows only if at least one in this many slots is populated.
const POPULATED_MIN: u32 = 16;
/// A root directory grows if more than one in this many populated slots overflows.
const OVERFLOWING_MIN: u32 = 8;
/// Maximum number of slots of a root directory for each route.
const SLOTS_PER_ROUTE_MAX: u64 = 4;
/// Slots that are looked at to decide whether a directory is overfull.
const SAMPLE_SLOTS: u32 = 128;

/// Builds structures, and gives back the cells that it allocated if it fails.
pub(super) struct Builder<'a> {
    pub pool: &'a mut Pool,
    /// Runs that it allocated.
    runs: Vec<(u32, u32)>,
}

/// Number of bits of a directory for this many routes.
pub(super) fn directory_bits(routes: usize) -> u8 {
    if routes <= ROUTES_OF_2_BITS {
        2
    } else if routes <= ROUTES_OF_4_BITS {
        4
    } else {
        8
    }
}

/// Number of bits of a root directory for this many routes that spread evenly.
pub(super) fn root_bits(routes: usize) -> u8 {
    let bits = (routes as f64 / ROUTES_PER_SLOT).max(1.0).log2() as u32;
    bits.clamp(layout::LPM_ROOT_BITS_MIN, layout::LPM_ROOT_BITS_MAX) as u8
}

/// True if a larger root directory would make lookups shorter: many slots overflow, and enough are populated.
/// `populated` and `overflowing` are numbers among `looked_at` slots.
fn is_overfull(populated: u32, overflowing: u32, looked_at: u32) -> bool {
    overflowing * OVERFLOWING_MIN > populated && populated * POPULATED_MIN >= looked_at
}

/// [`is_overfull`] for an existing directory, by a sample of its slots.
pub(super) fn is_directory_overfull(memory: &Memory, directory: Directory) -> bool {
    let step = (directory.slots() / SAMPLE_SLOTS).max(1);
    let (mut populated, mut overflowing, mut looked_at) = (0, 0, 0);
    for slot in (0..directory.slots()).step_by(step as usize) {
        looked_at += 1;
        match directory.slot(slot).word(memory) {
            Word::Leaf(_) => {}
            Word::Bucket(..) => populated += 1,
            Word::Skip(_) | Word::Directory(..) => {
                populated += 1;
                overflowing += 1;
            }
        }
    }
    is_overfull(populated, overflowing, looked_at)
}

/// True if a root directory for this many routes may have this many bits.
pub(super) fn root_bits_allowed(bits: u8, routes: u64) -> bool {
    u32::from(bits) <= layout::LPM_ROOT_BITS_MAX && 1u64 << bits <= SLOTS_PER_ROUTE_MAX * routes
}

/// Number of bits of a root directory for these routes.
fn root_bits_for(routes: &[Entry]) -> u8 {
    let mut bits = root_bits(routes.len());
    while root_bits_allowed(bits + 1, routes.len() as u64) {
        let mut counts = vec![0u8; 1 << bits];
        for (prefix, _) in routes.iter().filter(|(prefix, _)| prefix.length > bits) {
            let count = &mut counts[bits_at(prefix.bits, 0, bits) as usize];
            *count = count.saturating_add(1);
        }
        // The form of each bucket is not known yet, so that of the longest prefix is assumed.
        let longest = routes.iter().map(|(prefix, _)| prefix.length).max().unwrap_or(0);
        let most = match longest.saturating_sub(bits) {
            0..=15 => BucketForm::Narrow.routes_max(),
            16..=31 => BucketForm::Wide.routes_max(),
            _ => BucketForm::Long.routes_max(),
        };
        let populated = counts.iter().filter(|&&count| count > 0).count();
        let overflowing = counts.iter().filter(|&&count| usize::from(count) > most).count();
        if !is_overfull(populated as u32, overflowing as u32, 1 << bits) {
            break;
        }
        bits += 1;
    }
    bits
}

/// Sorts routes by their prefixes. Equal prefixes keep their order.
pub(super) fn sorted(routes: impl Iterator<Item = Entry> + Clone) -> Vec<Entry> {
    let mut ends = vec![0u32; 1 << root_bits(routes.size_hint().0)];
    let bits = ends.len().ilog2() as u8;
    let slot = |entry: &Entry| bits_at(entry.0.bits, 0, bits) as usize;
    for entry in routes.clone() {
        ends[slot(&entry)] += 1;
    }
    let mut sum = 0;
    for end in &mut ends {
        sum += *end;
        *end = sum - *end;
    }
    let mut to = vec![Entry::default(); sum as usize];
    for entry in routes {
        let place = &mut ends[slot(&entry)];
        to[*place as usize] = entry;
        *place += 1;
    }
    let mut from = 0;
    for end in ends {
        to[from..end as usize].sort_by_key(|(prefix, _)| *prefix);
        from = end as usize;
    }
    to
}

/// Number of bits that all prefixes have in common, up to the end of the shortest.
fn shared_bits(routes: &[Entry]) -> u8 {
    let Some((first, rest)) = routes.split_first() else { return 0 };
    let start = first.0.length;
    rest.iter().fold(start, |shared, (prefix, _)| {
        let common = (prefix.bits ^ first.0.bits).leading_zeros() as u8;
        shared.min(prefix.length).min(common)
    })
}

impl<'a> Builder<'a> {
    pub(super) fn new(pool: &'a mut Pool) -> Self {
        Self { pool, runs: Vec::new() }
    }

    fn allocate(&mut self, cells: u32) -> Result<u32, Error> {
        match self.pool.allocate(cells) {
            Ok(first) => {
                self.runs.push((first, cells));
                Ok(first)
            }
            Err(error) => {
                for (first, cells) in std::mem::take(&mut self.runs) {
                    self.pool.give_back(first, cells);
                }
                Err(error)
            }
        }
    }

    /// Builds a word for these routes, which are all longer than `depth` (at least 1) and have their first
    /// `depth` bits in common. Changes the order of the routes.
    pub(super) fn word(&mut self, routes: &mut [Entry], depth: u8, inherited: u32) -> Result<u32, Error> {
        if routes.is_empty() {
            return Ok(inherited);
        }
        if let Some(form) = BucketForm::of(routes, depth) {
            let cell = self.allocate(1)?;
            bucket::write(self.pool.memory(), cell, form, routes, depth, inherited);
            return Ok(Word::Bucket(form, cell).bits());
        }
        let shared = shared_bits(routes);
        let bits = directory_bits(routes.len());
        if shared < depth + SKIP_MIN {
            let first = self.directory(routes, depth, bits, inherited)?;
            return Ok(Word::Directory(first, bits).bits());
        }
        // A skip may end where the shortest prefix does: that route is in the heap of the skip's directory.
        let address = routes[0].0.bits & mask(shared);
        let first = self.directory(routes, shared, bits, inherited)?;
        self.skip(address, shared, Word::Directory(first, bits).bits(), inherited)
    }

    /// Builds a skip to a directory's word.
    pub(super) fn skip(
        &mut self,
        address: u128,
        depth: u8,
        directory: u32,
        inherited: u32,
    ) -> Result<u32, Error> {
        let cell = self.allocate(1)?;
        Skip { cell, address: address & mask(depth), depth, directory, inherited }.write(self.pool.memory());
        Ok(Word::Skip(cell).bits())
    }

    /// Builds a directory without routes.
    pub(super) fn empty(&mut self, depth: u8, bits: u8, inherited: u32) -> Result<Directory, Error> {
        let first = self.allocate(Directory::cells_of(bits))?;
        let directory = Directory { first, bits, depth };
        directory.heap(0).store(self.pool.memory(), inherited);
        Ok(directory)
    }

    /// Builds a directory of these routes, none of which is shorter than `depth`. Returns its first cell.
    pub(super) fn directory(
        &mut self,
        routes: &mut [Entry],
        depth: u8,
        bits: u8,
        inherited: u32,
    ) -> Result<u32, Error> {
        let directory = self.empty(depth, bits, inherited)?;
        // Routes for the heap are moved to the end; the others keep their order.
        let mut kept = 0;
        for i in 0..routes.len() {
            let (prefix, leaf) = routes[i];
            if prefix.length <= directory.end() {
                directory.heap(directory.number_of(prefix)).store(self.pool.memory(), leaf);
            } else {
                routes.swap(kept, i);
                kept += 1;
            }
        }
        let mut below = &mut routes[..kept];
        let slot_of = |entry: &Entry| bits_at(entry.0.bits, depth, bits);
        if !below.is_sorted_by_key(slot_of) {
            below.sort_unstable_by_key(slot_of);
        }
        let coverings = directory.coverings(self.pool.memory());
        for (slot, covering) in (0..).zip(coverings) {
            let count = below.iter().take_while(|entry| slot_of(entry) == slot).count();
            let (here, rest) = std::mem::take(&mut below).split_at_mut(count);
            below = rest;
            let word = self.word(here, directory.end(), covering)?;
            if word != 0 {
                directory.slot(slot).store(self.pool.memory(), word);
            }
        }
        Ok(directory.first)
    }

    /// Builds a root directory of these routes.
    pub(super) fn root_directory(&mut self, routes: &mut [Entry]) -> Result<Directory, Error> {
        let bits = root_bits_for(routes);
        Ok(Directory { first: self.directory(routes, 0, bits, 0)?, bits, depth: 0 })
    }

    /// Builds a root directory of the same routes as another one, with one bit more. It proceeds slot by
    /// slot, so that no list of all routes is needed.
    pub(super) fn with_one_more_bit(&mut self, old: Directory) -> Result<Directory, Error> {
        let new = self.empty(0, old.bits + 1, 0)?;
        for number in 1..2 * old.slots() {
            let leaf = old.heap(number).load(self.pool.memory());
            if leaf != 0 {
                new.heap(number).store(self.pool.memory(), leaf);
            }
        }
        for slot in 0..old.slots() {
            let memory = self.pool.memory();
            let above = old.extend(0, slot);
            let word = old.slot(slot).word(memory);
            let mut routes = gather(memory, word, old.bits, above, usize::MAX).unwrap_or_default();
            for (prefix, leaf) in routes.iter().filter(|(prefix, _)| prefix.length == new.bits) {
                new.heap(new.number_of(*prefix)).store(memory, *leaf);
            }
            routes.retain(|(prefix, _)| prefix.length > new.bits);
            for half in [2 * slot, 2 * slot + 1] {
                let covering = new.covering_slot(self.pool.memory(), half);
                let is_here = |entry: &mut Entry| bits_at(entry.0.bits, 0, new.bits) == half;
                let mut here: Vec<Entry> = routes.extract_if(.., is_here).collect();
                let word = self.word(&mut here, new.bits, covering)?;
                if word != 0 {
                    new.slot(half).store(self.pool.memory(), word);
                }
            }
        }
        Ok(new)
    }
}
