//! Insertion and withdrawal of one route below a root directory. A change becomes visible to readers by one
//! store of a word, or by one for each slot that a short prefix covers.

use super::bucket::{self, Bucket};
use super::build::{Builder, directory_bits, is_directory_overfull};
use super::directory::{Directory, set_inherited_below};
use super::walk::{gather, iter, replace};
use super::word::{BucketForm, Skip, Word, WordAt};
use super::{Entry, Prefix, mask};
use crate::error::Error;
use crate::memory::Memory;
use crate::pool::Pool;

/// A directory below the root with at most this many routes becomes a bucket again.
const COLLAPSE_MAX: usize = 4;

/// Result of an insertion.
pub(super) struct Changed {
    /// The leaf that the prefix had.
    pub old: Option<u32>,
    /// The root directory may be too small now.
    pub overfull: bool,
}

/// A directory on the path to a prefix, and the word that leads to it.
#[derive(Clone, Copy)]
struct Step {
    directory: Directory,
    /// The word, and the depth there; `None` for the root. If there is a skip in between, the word that leads
    /// to the skip.
    at: Option<(WordAt, u8)>,
}

/// The end of the path to a prefix.
enum End {
    /// The prefix belongs into the heap of the last directory.
    Heap,
    /// A slot of the last directory, with the leaf that it inherits.
    Leaf(WordAt, u32),
    /// A slot of the last directory, with the form and cell of its bucket.
    Bucket(WordAt, BucketForm, u32),
    /// A slot of the last directory, with a skip whose bits the prefix does not have.
    Skip(WordAt, Skip),
}

/// Descends to the position at which a prefix is, or would be inserted.
fn descend(memory: &Memory, top: Directory, prefix: Prefix, path: &mut Vec<Step>) -> End {
    let mut directory = top;
    path.push(Step { directory, at: None });
    loop {
        if prefix.length <= directory.end() {
            return End::Heap;
        }
        let at = directory.slot_of(prefix.bits);
        let depth = directory.end();
        directory = match at.word(memory) {
            Word::Leaf(leaf) => return End::Leaf(at, leaf),
            Word::Bucket(form, cell) => return End::Bucket(at, form, cell),
            Word::Directory(first, bits) => Directory { first, bits, depth },
            Word::Skip(cell) => {
                let skip = Skip::read(memory, cell);
                match skip.below() {
                    Some(below) if skip.holds(prefix) => below,
                    _ => return End::Skip(at, skip),
                }
            }
        };
        path.push(Step { directory, at: Some((at, depth)) });
    }
}

/// Adds or changes a route.
pub(super) fn insert(pool: &mut Pool, top: Directory, prefix: Prefix, leaf: u32) -> Result<Changed, Error> {
    let mut path = Vec::with_capacity(8);
    let end = descend(pool.memory(), top, prefix, &mut path);
    let step = path[path.len() - 1];
    let depth = step.directory.end();
    let (at, word) = match end {
        End::Heap => {
            let old = step.directory.set_route(pool.memory(), prefix, leaf);
            return Ok(Changed { old: (old != 0).then_some(old), overfull: false });
        }
        End::Leaf(at, inherited) => (at, Builder::new(pool).word(&mut [(prefix, leaf)], depth, inherited)?),
        End::Bucket(at, form, cell) => {
            let mut bucket = Bucket::read(pool.memory(), cell, form, prefix.bits, depth);
            if let Some(e) = bucket.routes().iter().position(|(known, _)| *known == prefix) {
                let old = bucket.routes[e].1;
                bucket::set_leaf(pool.memory(), cell, form, e, leaf);
                return Ok(Changed { old: Some(old), overfull: false });
            }
            bucket.routes[bucket.count] = (prefix, leaf);
            let routes = &mut bucket.routes[..=bucket.count];
            (at, Builder::new(pool).word(routes, depth, bucket.inherited)?)
        }
        End::Skip(at, skip) => {
            split_skip(pool, at, depth, skip, (prefix, leaf))?;
            return Ok(Changed { old: None, overfull: false });
        }
    };
    replace(pool, at, word);
    let overflowed = !matches!(Word::from_bits(word), Word::Bucket(..));
    let overfull = overflowed && is_directory_overfull(pool.memory(), step.directory);
    if overfull && step.at.is_some() {
        widen(pool, step, prefix.bits);
    }
    Ok(Changed { old: None, overfull: overfull && step.at.is_none() })
}

/// The leaf of the route with exactly this prefix.
pub(super) fn leaf_of(memory: &Memory, top: Directory, prefix: Prefix) -> Option<u32> {
    let mut path = Vec::with_capacity(8);
    let end = descend(memory, top, prefix, &mut path);
    let directory = path[path.len() - 1].directory;
    match end {
        End::Heap => {
            let leaf = directory.heap(directory.number_of(prefix)).load(memory);
            (leaf != 0).then_some(leaf)
        }
        End::Bucket(_, form, cell) => {
            let bucket = Bucket::read(memory, cell, form, prefix.bits, directory.end());
            let found = bucket.routes().iter().find(|(known, _)| *known == prefix);
            found.map(|&(_, leaf)| leaf)
        }
        End::Leaf(..) | End::Skip(..) => None,
    }
}

/// Replaces a directory below the root by one with more bits, if its routes need it and there is memory.
fn widen(pool: &mut Pool, step: Step, above: u128) {
    let (directory, Some((at, depth))) = (step.directory, step.at) else { return };
    let mut routes: Vec<Entry> = iter(pool.memory(), directory, above & mask(directory.depth)).collect();
    if directory_bits(routes.len()) <= directory.bits {
        return;
    }
    let inherited = directory.heap(0).load(pool.memory());
    let cells = Directory::cells_of(directory_bits(routes.len()));
    let word = pool.try_rebuild(cells, |pool| Builder::new(pool).word(&mut routes, depth, inherited));
    if let Some(word) = word {
        replace(pool, at, word);
    }
}

/// Inserts a route that does not have the bits of a skip: a directory is built where the two differ.
fn split_skip(pool: &mut Pool, at: WordAt, depth: u8, skip: Skip, route: Entry) -> Result<(), Error> {
    let prefix = route.0;
    let common = (prefix.bits ^ skip.address).leading_zeros() as u8;
    // A directory of two bits must end at or before the skip does.
    let mut from = common.min(prefix.length).min(skip.depth.saturating_sub(2));
    if from + 3 == skip.depth && from > depth {
        // One bit would be left for the rest of the skip; two are as good, and can be split again.
        from -= 1;
    }
    // If nothing is left of the skip, a route of exactly its bits would have to move to the new directory.
    let moves_route = from + 2 == skip.depth && {
        let below = skip.below().map_or(0, |below| below.heap(1).load(pool.memory()));
        below != 0
    };
    if from < depth || from + 2 > skip.depth || moves_route {
        return rebuild(pool, at, depth, route);
    }
    let mut builder = Builder::new(pool);
    let directory = builder.empty(from, 2, skip.inherited)?;
    let is_in_heap = prefix.length <= directory.end();
    if is_in_heap {
        directory.heap(directory.number_of(prefix)).store(builder.pool.memory(), route.1);
    }
    let coverings = directory.coverings(builder.pool.memory());
    for (slot, &covering) in (0..).zip(&coverings) {
        directory.slot(slot).store(builder.pool.memory(), covering);
    }
    if !is_in_heap {
        let word = builder.word(&mut [route], directory.end(), skip.inherited)?;
        directory.slot_of(prefix.bits).store(builder.pool.memory(), word);
    }
    let skip_slot = directory.slot_of(skip.address);
    let rest = if skip.depth == directory.end() {
        skip.directory
    } else {
        builder.skip(skip.address, skip.depth, skip.directory, skip.inherited)?
    };
    skip_slot.store(builder.pool.memory(), rest);
    let mut word = Word::Directory(directory.first, 2).bits();
    if from > depth {
        word = builder.skip(skip.address, from, word, skip.inherited)?;
    }
    at.store(pool.memory(), word);
    pool.retire(skip.cell, 1);
    let covering = directory.covering(
        pool.memory(),
        directory.number_of(Prefix { bits: skip.address & mask(directory.end()), length: directory.end() }),
    );
    if covering != skip.inherited {
        set_inherited_below(pool.memory(), skip_slot, directory.end(), covering);
    }
    Ok(())
}

/// Builds everything below a word again, with one more route.
fn rebuild(pool: &mut Pool, at: WordAt, depth: u8, route: Entry) -> Result<(), Error> {
    let memory = pool.memory();
    let old = at.word(memory);
    let inherited = match old {
        Word::Skip(cell) => Skip::read(memory, cell).inherited,
        _ => return Err(Error::Corrupt(format!("the word in cell {} does not lead to a skip", at.cell))),
    };
    let mut routes = gather(memory, old, depth, route.0.bits, usize::MAX).unwrap_or_default();
    routes.push(route);
    let word = Builder::new(pool).word(&mut routes, depth, inherited)?;
    replace(pool, at, word);
    Ok(())
}

/// Withdraws a route.
pub(super) fn remove(pool: &mut Pool, top: Directory, prefix: Prefix) -> Result<Option<u32>, Error> {
    let mut path = Vec::with_capacity(8);
    let end = descend(pool.memory(), top, prefix, &mut path);
    let step = path[path.len() - 1];
    let old = match end {
        End::Leaf(..) | End::Skip(..) => return Ok(None),
        End::Heap => {
            let old = step.directory.set_route(pool.memory(), prefix, 0);
            if old == 0 {
                return Ok(None);
            }
            old
        }
        End::Bucket(at, form, cell) => {
            let depth = step.directory.end();
            let mut bucket = Bucket::read(pool.memory(), cell, form, prefix.bits, depth);
            let Some(e) = bucket.routes().iter().position(|(known, _)| *known == prefix) else {
                return Ok(None);
            };
            let old = bucket.routes[e].1;
            bucket.count -= 1;
            bucket.routes.swap(e, bucket.count);
            let routes = &mut bucket.routes[..bucket.count];
            let word = Builder::new(pool).word(routes, depth, bucket.inherited)?;
            replace(pool, at, word);
            if bucket.count > 0 {
                return Ok(Some(old));
            }
            old
        }
    };
    while let Some(step) = path.pop() {
        if !collapse(pool, step, prefix.bits) {
            break;
        }
    }
    Ok(Some(old))
}

/// Replaces a directory that has few routes left by a bucket, or by a leaf if it has none. Returns whether it
/// did.
fn collapse(pool: &mut Pool, step: Step, above: u128) -> bool {
    let Some((at, depth)) = step.at else { return false };
    let directory = step.directory;
    let word = Word::Directory(directory.first, directory.bits);
    let memory = pool.memory();
    let Some(mut routes) = gather(memory, word, directory.depth, above, COLLAPSE_MAX) else { return false };
    if !routes.is_empty() && BucketForm::of(&routes, depth).is_none() {
        return false;
    }
    let inherited = directory.heap(0).load(memory);
    let Ok(word) = Builder::new(pool).word(&mut routes, depth, inherited) else { return false };
    replace(pool, at, word);
    true
}
