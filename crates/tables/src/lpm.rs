//! Longest prefix match: one root word for each VRF and family leads to a list that is scanned, or to a
//! directory with buckets of routes behind it. The layout is that of `cells.h`; `docs/decisions/lpm.md`
//! explains the choice.
//!
//! ```text
//!   root word --> Empty
//!             --> Scan: a list of one or two cells                          scan.rs
//!             --> Directory: 2^k words, each of which is                    directory.rs
//!                   a leaf, or leads to
//!                   a bucket: one cell with a few routes                    bucket.rs
//!                   a skip: bits that all routes below share, then a directory
//!                   a directory of 2, 4 or 8 bits more
//! ```
//!
//! Other modules use a few operations on a root word: [`insert`], [`merge`], [`remove`], [`clear`], [`find`]
//! and [`iter`]. A change becomes visible to readers by one store of a word, or by one store for each slot
//! that a short prefix covers. What a store unlinks is reused after a grace period.

mod bucket;
mod build;
mod change;
mod directory;
mod inspect;
mod scan;
#[cfg(test)]
mod tests;
mod walk;
mod word;

use crate::error::Error;
use crate::layout;
use crate::memory::Memory;
use crate::pool::{Pool, ReachableCells};
use build::Builder;
use directory::Directory;
pub(crate) use inspect::{Damaged, inspect, inspect_leaves, is_action};
use sluice_types::IpNet;
use std::net::IpAddr;
use word::Word;

/// A prefix with its leaf.
pub(crate) type Entry = (Prefix, u32);

/// A root directory is built again with fewer slots when it has more than this many slots for each route.
const ROOT_TOO_LARGE: u32 = 16;

/// Address family of a root word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A prefix of either family: its bits at the top, zeros behind its length. It is packed because there are
/// lists of millions of prefixes.
#[repr(C, packed(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, PartialOrd, Ord)]
pub(crate) struct Prefix {
    pub bits: u128,
    pub length: u8,
}

/// Position of a root word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub cell: u32,
    pub offset: usize,
    pub family: Family,
}

impl Family {
    fn max_length(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

impl Prefix {
    pub(crate) fn from_net(net: IpNet) -> (Family, Self) {
        let (family, bits) = top_bits(net.trunc().addr());
        (family, Self { bits, length: net.prefix_len() })
    }

    pub(crate) fn to_net(self, family: Family) -> IpNet {
        let address = match family {
            Family::V4 => IpAddr::V4(((self.bits >> 96) as u32).into()),
            Family::V6 => IpAddr::V6(self.bits.into()),
        };
        IpNet::new(address, self.length).expect("a prefix's length fits its family")
    }
}

/// An address as bits at the top of 128.
pub(crate) fn top_bits(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(v4) => (Family::V4, u128::from(u32::from(v4)) << 96),
        IpAddr::V6(v6) => (Family::V6, v6.into()),
    }
}

/// A mask of the first `length` bits.
fn mask(length: u8) -> u128 {
    // Lengths that no prefix has are only in damaged memory.
    if length == 0 { 0 } else { u128::MAX << 128_u32.saturating_sub(length.into()) }
}

/// The structure that a root word leads to.
#[derive(Clone, Copy)]
enum RootForm {
    Empty,
    /// First cell of a list.
    Scan(u32),
    Directory(Directory),
}

impl RootForm {
    /// The form of a root word; `None` if no version has such a form.
    fn from_word(root: u64) -> Option<Self> {
        let (first, form) = (root as u32 & layout::CELL_INDEX_MASK, (root >> layout::LPM_FORM_SHIFT) as u32);
        match form {
            _ if root == 0 => Some(Self::Empty),
            layout::LPM_SCAN => Some(Self::Scan(first)),
            layout::LPM_ROOT_BITS_MIN..=layout::LPM_ROOT_BITS_MAX => {
                Some(Self::Directory(Directory { first, bits: form as u8, depth: 0 }))
            }
            _ => None,
        }
    }
}

impl Root {
    fn load(self, memory: &Memory) -> Result<RootForm, Error> {
        let root = memory.load64(self.cell, self.offset);
        RootForm::from_word(root).ok_or_else(|| {
            let form = root >> layout::LPM_FORM_SHIFT;
            Error::Corrupt(format!("cell {} has a route root of unknown form {form}", self.cell))
        })
    }

    fn store(self, memory: &Memory, form: RootForm) {
        let word = |form: u32, first: u32| u64::from(form) << layout::LPM_FORM_SHIFT | u64::from(first);
        let root = match form {
            RootForm::Empty => 0,
            RootForm::Scan(first) => word(layout::LPM_SCAN, first),
            RootForm::Directory(directory) => word(directory.bits.into(), directory.first),
        };
        memory.store64(self.cell, self.offset, root);
    }

    /// Publishes a new structure and retires the old one.
    fn replace(self, pool: &mut Pool, new: RootForm) -> Result<(), Error> {
        let old = self.load(pool.memory())?;
        self.store(pool.memory(), new);
        self.retire_form(pool, old);
        Ok(())
    }

    fn retire_form(self, pool: &mut Pool, old: RootForm) {
        match old {
            RootForm::Empty => {}
            RootForm::Scan(first) => scan::retire(pool, self.family, first),
            RootForm::Directory(top) => walk::retire(pool, Word::Directory(top.first, top.bits)),
        }
    }
}

/// Builds the structure that suits these routes, whose prefixes are distinct.
fn build(pool: &mut Pool, family: Family, routes: &mut [Entry]) -> Result<RootForm, Error> {
    if routes.is_empty() {
        return Ok(RootForm::Empty);
    }
    if routes.len() <= scan::routes_max(family) {
        return Ok(RootForm::Scan(scan::write(pool, family, routes)?));
    }
    Ok(RootForm::Directory(Builder::new(pool).root_directory(routes)?))
}

fn routes_of(memory: &Memory, root: Root) -> Result<Vec<Entry>, Error> {
    Ok(match root.load(memory)? {
        RootForm::Empty => Vec::new(),
        RootForm::Scan(first) => scan::read(memory, root.family, first),
        RootForm::Directory(top) => walk::iter(memory, top, 0).collect(),
    })
}

/// Adds or changes a route. Returns the leaf that it had. `count` is the present number of routes.
///
/// # Errors
/// [`Error::Full`], [`Error::Grace`]; the routes are then unchanged.
pub(crate) fn insert(
    pool: &mut Pool,
    root: Root,
    count: u32,
    prefix: Prefix,
    leaf: u32,
) -> Result<Option<u32>, Error> {
    if let RootForm::Directory(top) = root.load(pool.memory())? {
        let changed = change::insert(pool, top, prefix, leaf)?;
        if changed.overfull && build::root_bits_allowed(top.bits + 1, count.into()) {
            grow(pool, root, top);
        }
        return Ok(changed.old);
    }
    let mut routes = routes_of(pool.memory(), root)?;
    let old = match routes.iter_mut().find(|(known, _)| *known == prefix) {
        Some((_, known)) => Some(std::mem::replace(known, leaf)),
        None => {
            routes.push((prefix, leaf));
            None
        }
    };
    match old {
        Some(old) if old == leaf => {}
        // A list of the same length replaces this one.
        Some(_) => pool.with_reserve(|pool| rewrite(pool, root, &mut routes))?,
        None => rewrite(pool, root, &mut routes)?,
    }
    Ok(old)
}

/// Publishes these routes in the structure that suits them.
fn rewrite(pool: &mut Pool, root: Root, routes: &mut [Entry]) -> Result<(), Error> {
    let new = build(pool, root.family, routes)?;
    root.replace(pool, new)
}

/// Result of [`merge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Number of routes after the merge.
    pub routes: u32,
    /// Number of routes that are new or have another leaf.
    pub changed: usize,
}

/// Adds or changes many routes at once: the whole structure is built again and published by one store. Of
/// equal prefixes the last counts.
///
/// # Errors
/// As [`insert`].
pub(crate) fn merge(
    pool: &mut Pool,
    root: Root,
    new: impl Iterator<Item = Entry> + Clone,
) -> Result<Merged, Error> {
    let mut all = build::sorted(new);
    dedup_last(&mut all);
    let mut changed = all.len();
    let old = routes_of(pool.memory(), root)?;
    if !old.is_empty() {
        let old = build::sorted(old.into_iter());
        let mut remaining = all.iter().peekable();
        for route in &old {
            while remaining.next_if(|next| next.0 < route.0).is_some() {}
            changed -= usize::from(remaining.peek() == Some(&route));
        }
        all = build::sorted(old.iter().chain(&all).copied());
        dedup_last(&mut all);
    }
    rewrite(pool, root, &mut all)?;
    Ok(Merged { routes: all.len() as u32, changed })
}

/// Keeps the last of equal prefixes, which must be next to each other.
fn dedup_last(routes: &mut Vec<Entry>) {
    routes.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = later.1;
        }
        same
    });
}

/// The leaf of the route with exactly this prefix.
pub(crate) fn leaf_of(memory: &Memory, root: Root, prefix: Prefix) -> Option<u32> {
    match root.load(memory).ok()? {
        RootForm::Empty => None,
        RootForm::Scan(first) => {
            let routes = scan::read(memory, root.family, first);
            routes.into_iter().find_map(|(known, leaf)| (known == prefix).then_some(leaf))
        }
        RootForm::Directory(top) => change::leaf_of(memory, top, prefix),
    }
}

/// Replaces a root directory by one with one bit more, if there is memory for it.
fn grow(pool: &mut Pool, root: Root, top: Directory) {
    let cells = Directory::cells_of(top.bits + 1);
    if let Some(new) = pool.try_rebuild(cells, |pool| Builder::new(pool).with_one_more_bit(top)) {
        root.store(pool.memory(), RootForm::Directory(new));
        walk::retire(pool, Word::Directory(top.first, top.bits));
    }
}

/// Withdraws a route. Returns the leaf that it had. `count` is the present number of routes.
///
/// A withdrawal takes no more cells than it frees, so that it works when memory is full.
///
/// # Errors
/// [`Error::Grace`]; nothing has changed then.
pub(crate) fn remove(pool: &mut Pool, root: Root, count: u32, prefix: Prefix) -> Result<Option<u32>, Error> {
    match root.load(pool.memory())? {
        RootForm::Empty => Ok(None),
        RootForm::Directory(top) => {
            let old = pool.with_reserve(|pool| change::remove(pool, top, prefix))?;
            let left = count.saturating_sub(1);
            let suits_list = left as usize <= scan::routes_max(root.family) / 2;
            if old.is_some() && (suits_list || top.slots() / ROOT_TOO_LARGE > left.max(1)) {
                shrink(pool, root, left);
            }
            Ok(old)
        }
        RootForm::Scan(first) => {
            let mut routes = scan::read(pool.memory(), root.family, first);
            let Some(at) = routes.iter().position(|(known, _)| *known == prefix) else { return Ok(None) };
            let (_, old) = routes.remove(at);
            pool.with_reserve(|pool| rewrite(pool, root, &mut routes))?;
            Ok(Some(old))
        }
    }
}

/// Replaces a root directory by the structure that suits its `left` remaining routes, if there is memory for
/// it.
fn shrink(pool: &mut Pool, root: Root, left: u32) {
    let is_list = left as usize <= scan::routes_max(root.family);
    let cells = if is_list { 1 } else { Directory::cells_of(build::root_bits(left as usize)) };
    let new = pool.try_rebuild(cells, |pool| {
        let mut routes = routes_of(pool.memory(), root)?;
        match is_list {
            true => pool.with_reserve(|pool| build(pool, root.family, &mut routes)),
            false => build(pool, root.family, &mut routes),
        }
    });
    if let Some(new) = new {
        let _corrupt = root.replace(pool, new);
    }
}

/// Replaces a damaged structure, whose leaves are those for which `is_leaf` is true, by one of the routes that can still be read. Its cells are not used again before the
/// tables are adopted, because it is unknown which these are.
///
/// # Errors
/// [`Error::Full`]: the root then has no routes.
pub(crate) fn rebuild(pool: &mut Pool, root: Root, is_leaf: fn(&Memory, u32) -> bool) -> Result<u32, Error> {
    let mut readable = Vec::new();
    let _damaged = inspect_leaves(pool.memory(), root, is_leaf, |prefix, leaf| readable.push((prefix, leaf)));
    let mut routes = build::sorted(readable.into_iter());
    dedup_last(&mut routes);
    let new = build(pool, root.family, &mut routes);
    root.store(pool.memory(), *new.as_ref().unwrap_or(&RootForm::Empty));
    new.map(|_| routes.len() as u32)
}

/// Withdraws all routes.
pub(crate) fn clear(pool: &mut Pool, root: Root) {
    let _corrupt = root.replace(pool, RootForm::Empty);
}

/// Retires the structure of a root word that has itself been unlinked. The word keeps leading to it, for readers that
/// found the word before.
pub(crate) fn retire(pool: &mut Pool, root: Root) {
    if let Ok(form) = root.load(pool.memory()) {
        root.retire_form(pool, form);
    }
}

/// All routes with their leaves, in no particular order.
pub(crate) fn iter(memory: &Memory, root: Root) -> Box<dyn Iterator<Item = Entry> + '_> {
    match root.load(memory) {
        Ok(RootForm::Scan(first)) => Box::new(scan::read(memory, root.family, first).into_iter()),
        Ok(RootForm::Directory(top)) => Box::new(walk::iter(memory, top, 0)),
        Ok(RootForm::Empty) | Err(_) => Box::new(std::iter::empty()),
    }
}

/// The leaf of the longest route that matches an address, which is given as bits at the top of 128.
pub(crate) fn find(memory: &Memory, root: Root, bits: u128) -> Option<u32> {
    let leaf = find_from(memory, memory.load64(root.cell, root.offset), root.family, bits, &mut 0);
    (leaf != 0).then_some(leaf)
}

/// As [`find`], from the content of a root word. 0: no route. Adds the number of cells that were read to `cells_read`.
pub(crate) fn find_from(memory: &Memory, root: u64, family: Family, bits: u128, cells_read: &mut u32) -> u32 {
    match RootForm::from_word(root) {
        Some(RootForm::Scan(first)) => scan::find(memory, family, first, bits, cells_read).unwrap_or(0),
        Some(RootForm::Directory(top)) => walk::find(memory, top, bits, cells_read),
        Some(RootForm::Empty) | None => 0,
    }
}

/// Number of cells that the routes take.
pub(crate) fn cells_used(memory: &Memory, root: Root) -> u64 {
    match root.load(memory) {
        Ok(RootForm::Scan(first)) => scan::cells_used(memory, root.family, first).into(),
        Ok(RootForm::Directory(top)) => walk::cells_used(memory, Word::Directory(top.first, top.bits)),
        Ok(RootForm::Empty) | Err(_) => 0,
    }
}

/// Adopts the routes of another writer: claims their cells and completes a change that was left half done.
/// Returns the number of routes.
pub(crate) fn adopt(memory: &Memory, root: Root, reachable: &mut ReachableCells) -> Result<u32, Error> {
    match root.load(memory)? {
        RootForm::Empty => Ok(0),
        RootForm::Scan(first) => scan::adopt(memory, root.family, first, reachable),
        RootForm::Directory(top) => {
            walk::Adoption { memory, reachable, family: root.family }.directory(top, 0)
        }
    }
}
