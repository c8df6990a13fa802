//! One route more or less below a root directory. Readers see each change by
//! one store of a word, or one for each slot that a short prefix covers.

use super::bucket::{self, Bucket};
use super::build::{Builder, crowded, directory_bits};
use super::directory::{Directory, inherit};
use super::walk::{gather, iter, replace};
use super::word::{At, Form, Skip, Word};
use super::{Entry, Prefix, mask};
use crate::error::Error;
use crate::memory::Memory;
use crate::pool::Pool;

/// Routes up to which what is below a word becomes a bucket again.
const BUCKET_AGAIN: usize = 4;

/// What a change did.
pub(super) struct Changed {
    /// The leaf that the prefix had.
    pub old: Option<u32>,
    /// The root directory may be too small now.
    pub crowded: bool,
}

/// Where a walk stands: a directory, and the word that leads to it.
#[derive(Clone, Copy)]
struct Step {
    directory: Directory,
    /// `None`: the root. With a skip in between the word that leads to the skip,
    /// and the depth there.
    at: Option<(At, u8)>,
}

/// What a walk ended at.
enum End {
    /// The heap of the last directory.
    Heap,
    /// A slot with a leaf that it inherits.
    Leaf(At, u32),
    Bucket(At, Form, u32),
    /// A skip that the prefix is not behind.
    Skip(At, Skip),
}

/// Goes down to where a prefix is, or would be.
fn walk(memory: &Memory, top: Directory, prefix: Prefix, path: &mut Vec<Step>) -> End {
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

/// Enters or changes a route.
pub(super) fn insert(pool: &mut Pool, top: Directory, prefix: Prefix, leaf: u32) -> Result<Changed, Error> {
    let mut path = Vec::with_capacity(8);
    let end = walk(pool.memory(), top, prefix, &mut path);
    let step = path[path.len() - 1];
    let depth = step.directory.end();
    let (at, word) = match end {
        End::Heap => {
            let old = step.directory.set(pool.memory(), prefix, leaf);
            return Ok(Changed { old: (old != 0).then_some(old), crowded: false });
        }
        End::Leaf(at, inherited) => (at, Builder::new(pool).word(&mut [(prefix, leaf)], depth, inherited)?),
        End::Bucket(at, form, cell) => {
            let mut bucket = Bucket::read(pool.memory(), cell, form, prefix.bits, depth);
            if let Some(e) = bucket.routes().iter().position(|(known, _)| *known == prefix) {
                let old = bucket.routes[e].1;
                bucket::set_leaf(pool.memory(), cell, form, e, leaf);
                return Ok(Changed { old: Some(old), crowded: false });
            }
            bucket.routes[bucket.count] = (prefix, leaf);
            let routes = &mut bucket.routes[..=bucket.count];
            (at, Builder::new(pool).word(routes, depth, bucket.inherited)?)
        }
        End::Skip(at, skip) => {
            divide(pool, at, depth, skip, (prefix, leaf))?;
            return Ok(Changed { old: None, crowded: false });
        }
    };
    replace(pool, at, word);
    let overflowed = !matches!(Word::from_bits(word), Word::Bucket(..));
    let crowded = overflowed && crowded(pool.memory(), step.directory);
    if crowded && step.at.is_some() {
        widen(pool, step, prefix.bits);
    }
    Ok(Changed { old: None, crowded: crowded && step.at.is_none() })
}

/// The leaf of exactly this prefix.
pub(super) fn leaf_of(memory: &Memory, top: Directory, prefix: Prefix) -> Option<u32> {
    let mut path = Vec::with_capacity(8);
    let end = walk(memory, top, prefix, &mut path);
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

/// More bits for a directory below the root. Where there is no memory it stays.
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

/// A route that a skip stands in the way of: a directory where they part.
fn divide(pool: &mut Pool, at: At, depth: u8, skip: Skip, route: Entry) -> Result<(), Error> {
    let prefix = route.0;
    let common = (prefix.bits ^ skip.address).leading_zeros() as u8;
    // A directory of two bits must end at or before the skip does.
    let mut from = common.min(prefix.length).min(skip.depth.saturating_sub(2));
    if from + 3 == skip.depth && from > depth {
        // One bit would be left for the rest of the skip; two are as good, and can be divided again.
        from -= 1;
    }
    // Where nothing is left of the skip, the route of just its bits would have to change place.
    let touches = from + 2 == skip.depth && {
        let below = skip.below().map_or(0, |below| below.heap(1).load(pool.memory()));
        below != 0
    };
    if from < depth || from + 2 > skip.depth || touches {
        return rebuild(pool, at, depth, route);
    }
    let mut builder = Builder::new(pool);
    let directory = builder.empty(from, 2, skip.inherited)?;
    let heap = prefix.length <= directory.end();
    if heap {
        directory.heap(directory.number_of(prefix)).store(builder.pool.memory(), route.1);
    }
    let coverings = directory.coverings(builder.pool.memory());
    for (slot, &covering) in (0..).zip(&coverings) {
        directory.slot(slot).store(builder.pool.memory(), covering);
    }
    if !heap {
        let word = builder.word(&mut [route], directory.end(), skip.inherited)?;
        directory.slot_of(prefix.bits).store(builder.pool.memory(), word);
    }
    let on = directory.slot_of(skip.address);
    let rest = if skip.depth == directory.end() {
        skip.directory
    } else {
        builder.skip(skip.address, skip.depth, skip.directory, skip.inherited)?
    };
    on.store(builder.pool.memory(), rest);
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
        inherit(pool.memory(), on, directory.end(), covering);
    }
    Ok(())
}

/// Builds all below a word again, with one route more.
fn rebuild(pool: &mut Pool, at: At, depth: u8, route: Entry) -> Result<(), Error> {
    let memory = pool.memory();
    let old = at.word(memory);
    let inherited = match old {
        Word::Skip(cell) => Skip::read(memory, cell).inherited,
        _ => return Err(Error::Corrupt(format!("no skip at cell {}", at.cell))),
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
    let end = walk(pool.memory(), top, prefix, &mut path);
    let step = path[path.len() - 1];
    let old = match end {
        End::Leaf(..) | End::Skip(..) => return Ok(None),
        End::Heap => {
            let old = step.directory.set(pool.memory(), prefix, 0);
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

/// A directory with few routes left becomes a bucket, or nothing.
fn collapse(pool: &mut Pool, step: Step, above: u128) -> bool {
    let Some((at, depth)) = step.at else { return false };
    let directory = step.directory;
    let word = Word::Directory(directory.first, directory.bits);
    let memory = pool.memory();
    let Some(mut routes) = gather(memory, word, directory.depth, above, BUCKET_AGAIN) else { return false };
    if !routes.is_empty() && Form::of(&routes, depth).is_none() {
        return false;
    }
    let inherited = directory.heap(0).load(memory);
    let Ok(word) = Builder::new(pool).word(&mut routes, depth, inherited) else { return false };
    replace(pool, at, word);
    true
}
