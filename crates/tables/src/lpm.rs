//! Longest prefix match: one root word for each VRF and family leads to a list
//! that is scanned, or to a directory with buckets of routes behind it. The
//! layout is that of `cells.h`; why it is this one, `docs/decisions/lpm.md`.
//!
//! What the rest sees is a few operations on a root word: [`insert`],
//! [`merge`], [`remove`], [`clear`] and [`iter`]. Readers see each change
//! by one store of a word, or by one for each slot that a short prefix covers;
//! what a store unlinks is reused after a grace period.

mod bucket;
mod build;
mod change;
mod directory;
mod scan;
#[cfg(test)]
mod tests;
mod walk;
mod word;

use crate::error::Error;
use crate::layout;
use crate::memory::Memory;
use crate::pool::{Pool, Used};
use build::Builder;
use directory::Directory;
use sluice_types::IpNet;
use std::net::IpAddr;
use word::Word;

/// A prefix with its leaf.
pub(crate) type Entry = (Prefix, u32);

/// A root directory is built anew, smaller, when it has this many times the
/// slots that its routes need.
const ROOT_TOO_LARGE: u32 = 16;

/// Address family of a root word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A prefix of either family: its bits from the top, zero behind its length.
/// Packed, because lists of millions are built of them.
#[repr(C, packed(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, PartialOrd, Ord)]
pub(crate) struct Prefix {
    pub bits: u128,
    pub length: u8,
}

/// Where a root word is.
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

/// An address as bits from the top.
pub(crate) fn top_bits(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(v4) => (Family::V4, u128::from(u32::from(v4)) << 96),
        IpAddr::V6(v6) => (Family::V6, v6.into()),
    }
}

/// The first `length` bits.
fn mask(length: u8) -> u128 {
    if length == 0 { 0 } else { u128::MAX << (128 - u32::from(length)) }
}

/// What a root word leads to.
#[derive(Clone, Copy)]
enum Form {
    Empty,
    /// First cell of a list.
    Scan(u32),
    Directory(Directory),
}

impl Root {
    fn load(self, memory: &Memory) -> Result<Form, Error> {
        let root = memory.load64(self.cell, self.offset);
        let (first, form) = (root as u32 & layout::CELL_INDEX_MASK, (root >> layout::LPM_FORM_SHIFT) as u32);
        match form {
            _ if root == 0 => Ok(Form::Empty),
            layout::LPM_SCAN => Ok(Form::Scan(first)),
            layout::LPM_ROOT_BITS_MIN..=layout::LPM_ROOT_BITS_MAX => {
                Ok(Form::Directory(Directory { first, bits: form as u8, depth: 0 }))
            }
            _ => Err(Error::Corrupt(format!("cell {} names an unknown form of routes", self.cell))),
        }
    }

    fn store(self, memory: &Memory, form: Form) {
        let word = |form: u32, first: u32| u64::from(form) << layout::LPM_FORM_SHIFT | u64::from(first);
        let root = match form {
            Form::Empty => 0,
            Form::Scan(first) => word(layout::LPM_SCAN, first),
            Form::Directory(directory) => word(directory.bits.into(), directory.first),
        };
        memory.store64(self.cell, self.offset, root);
    }

    /// Publishes another form and retires what was there.
    fn replace(self, pool: &mut Pool, new: Form) -> Result<(), Error> {
        let old = self.load(pool.memory())?;
        self.store(pool.memory(), new);
        match old {
            Form::Empty => {}
            Form::Scan(first) => scan::retire(pool, self.family, first),
            Form::Directory(top) => walk::retire(pool, Word::Directory(top.first, top.bits)),
        }
        Ok(())
    }
}

/// Builds the form that suits these routes, each of which there is once.
fn build(pool: &mut Pool, family: Family, routes: &mut [Entry]) -> Result<Form, Error> {
    if routes.is_empty() {
        return Ok(Form::Empty);
    }
    if routes.len() <= scan::routes_max(family) {
        return Ok(Form::Scan(scan::write(pool, family, routes)?));
    }
    Ok(Form::Directory(Builder::new(pool).root(routes)?))
}

fn routes_of(memory: &Memory, root: Root) -> Result<Vec<Entry>, Error> {
    Ok(match root.load(memory)? {
        Form::Empty => Vec::new(),
        Form::Scan(first) => scan::read(memory, root.family, first),
        Form::Directory(top) => walk::iter(memory, top, 0).collect(),
    })
}

/// Enters or changes a route; the leaf it had. `count` is the number of routes
/// there are.
///
/// # Errors
/// [`Error::Full`], [`Error::Grace`]; the routes are then what they were.
pub(crate) fn insert(
    pool: &mut Pool,
    root: Root,
    count: u32,
    prefix: Prefix,
    leaf: u32,
) -> Result<Option<u32>, Error> {
    if let Form::Directory(top) = root.load(pool.memory())? {
        let changed = change::insert(pool, top, prefix, leaf)?;
        if changed.crowded && build::root_may_have(top.bits + 1, count.into()) {
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
        // A list of the same length takes the place of this one.
        Some(_) => pool.with_reserve(|pool| rewrite(pool, root, &mut routes))?,
        None => rewrite(pool, root, &mut routes)?,
    }
    Ok(old)
}

/// Publishes these routes in the form that suits them.
fn rewrite(pool: &mut Pool, root: Root, routes: &mut [Entry]) -> Result<(), Error> {
    let new = build(pool, root.family, routes)?;
    root.replace(pool, new)
}

/// What [`merge`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Routes there are now.
    pub routes: u32,
    /// Routes that are new or have another leaf.
    pub changed: usize,
}

/// Enters or changes many routes at once: all is built anew and published by one
/// store. Of equal prefixes the last counts.
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
        let mut news = all.iter().peekable();
        for route in &old {
            while news.next_if(|next| next.0 < route.0).is_some() {}
            changed -= usize::from(news.peek() == Some(&route));
        }
        all = build::sorted(old.iter().chain(&all).copied());
        dedup_last(&mut all);
    }
    rewrite(pool, root, &mut all)?;
    Ok(Merged { routes: all.len() as u32, changed })
}

/// Of equal prefixes, which are neighbours, the last stays.
fn dedup_last(routes: &mut Vec<Entry>) {
    routes.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = later.1;
        }
        same
    });
}

/// The leaf of exactly this prefix.
pub(crate) fn leaf_of(memory: &Memory, root: Root, prefix: Prefix) -> Option<u32> {
    match root.load(memory).ok()? {
        Form::Empty => None,
        Form::Scan(first) => {
            let routes = scan::read(memory, root.family, first);
            routes.into_iter().find_map(|(known, leaf)| (known == prefix).then_some(leaf))
        }
        Form::Directory(top) => change::leaf_of(memory, top, prefix),
    }
}

/// A root directory with one bit more. Where there is no memory it stays.
fn grow(pool: &mut Pool, root: Root, top: Directory) {
    let cells = Directory::cells_of(top.bits + 1);
    if let Some(new) = pool.try_rebuild(cells, |pool| Builder::new(pool).grown(top)) {
        root.store(pool.memory(), Form::Directory(new));
        walk::retire(pool, Word::Directory(top.first, top.bits));
    }
}

/// Withdraws a route; the leaf it had. `count` is the number of routes there are.
///
/// Takes no more cells than it frees, so that it can be done when memory is full.
///
/// # Errors
/// [`Error::Grace`]; nothing changed then.
pub(crate) fn remove(pool: &mut Pool, root: Root, count: u32, prefix: Prefix) -> Result<Option<u32>, Error> {
    match root.load(pool.memory())? {
        Form::Empty => Ok(None),
        Form::Directory(top) => {
            let old = pool.with_reserve(|pool| change::remove(pool, top, prefix))?;
            let left = count.saturating_sub(1);
            let few = left as usize <= scan::routes_max(root.family) / 2;
            if old.is_some() && (few || top.slots() / ROOT_TOO_LARGE > left.max(1)) {
                shrink(pool, root, left);
            }
            Ok(old)
        }
        Form::Scan(first) => {
            let mut routes = scan::read(pool.memory(), root.family, first);
            let Some(at) = routes.iter().position(|(known, _)| *known == prefix) else { return Ok(None) };
            let (_, old) = routes.remove(at);
            pool.with_reserve(|pool| rewrite(pool, root, &mut routes))?;
            Ok(Some(old))
        }
    }
}

/// What is left of a directory, in the form that suits it; stays where there is
/// no memory.
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

/// Withdraws all routes.
pub(crate) fn clear(pool: &mut Pool, root: Root) {
    let _corrupt = root.replace(pool, Form::Empty);
}

/// All routes with their leaves, in no order.
pub(crate) fn iter(memory: &Memory, root: Root) -> Box<dyn Iterator<Item = Entry> + '_> {
    match root.load(memory) {
        Ok(Form::Scan(first)) => Box::new(scan::read(memory, root.family, first).into_iter()),
        Ok(Form::Directory(top)) => Box::new(walk::iter(memory, top, 0)),
        Ok(Form::Empty) | Err(_) => Box::new(std::iter::empty()),
    }
}

/// The leaf of an address, given as bits from the top.
pub(crate) fn find(memory: &Memory, root: Root, bits: u128) -> Option<u32> {
    let leaf = match root.load(memory) {
        Ok(Form::Scan(first)) => scan::find(memory, root.family, first, bits)?,
        Ok(Form::Directory(top)) => walk::find(memory, top, bits),
        Ok(Form::Empty) | Err(_) => 0,
    };
    (leaf != 0).then_some(leaf)
}

/// Cells that the routes take.
pub(crate) fn cells(memory: &Memory, root: Root) -> u64 {
    match root.load(memory) {
        Ok(Form::Scan(first)) => scan::cells_of(memory, root.family, first).into(),
        Ok(Form::Directory(top)) => walk::cells(memory, Word::Directory(top.first, top.bits)),
        Ok(Form::Empty) | Err(_) => 0,
    }
}

/// Claims the cells when tables are adopted, and finishes what a change left
/// half done; the number of routes.
pub(crate) fn adopt(memory: &Memory, root: Root, used: &mut Used) -> Result<u32, Error> {
    match root.load(memory)? {
        Form::Empty => Ok(0),
        Form::Scan(first) => scan::adopt(memory, root.family, first, used),
        Form::Directory(top) => walk::Adoption { memory, used, family: root.family }.directory(top, 0),
    }
}
