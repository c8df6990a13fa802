//! Longest prefix match: one root word for each VRF and family leads to a list
//! that is scanned, or, above `LPM_SCAN_MAX` routes, to a trie. The layout is
//! that of `cells.h`.
//!
//! What the rest sees is four operations on a root word: [`insert`], [`remove`],
//! [`clear`] and [`iter`]. Readers see each change by one store: of the root
//! word, of a child or of a route; what that store unlinks is reused after a
//! grace period.

mod scan;
#[cfg(test)]
mod tests;
mod trie;

use crate::error::Error;
use crate::layout;
use crate::memory::Memory;
use crate::pool::{Pool, Used};
use sluice_types::IpNet;
use std::net::IpAddr;

const SCAN_MAX: usize = layout::LPM_SCAN_MAX as usize;
/// A trie becomes a list again at this many routes: well below the limit, so
/// that a route that comes and goes does not rebuild each time.
const SCAN_AGAIN: u32 = layout::LPM_SCAN_MAX / 2;

/// Address family of a root word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A prefix of either family: its bits from the top, zero behind its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
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

impl Root {
    fn load(self, memory: &Memory) -> (u32, u32) {
        let word = memory.load32(self.cell, self.offset);
        (word >> layout::LPM_FORM_SHIFT, word & layout::CELL_INDEX_MASK)
    }

    fn store(self, memory: &Memory, form: u32, first: u32) {
        memory.store32(self.cell, self.offset, form << layout::LPM_FORM_SHIFT | first);
    }
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
    let (form, first) = root.load(pool.memory());
    if form == layout::LPM_TRIE {
        return trie::insert(pool, first, prefix, leaf);
    }
    let mut routes = if count == 0 { Vec::new() } else { scan::read(pool.memory(), root.family, first) };
    let old = match routes.iter_mut().find(|(known, _)| *known == prefix) {
        Some((_, known)) => Some(std::mem::replace(known, leaf)),
        None => {
            routes.push((prefix, leaf));
            None
        }
    };
    if old == Some(leaf) {
        return Ok(old);
    }
    let new = if routes.len() <= SCAN_MAX {
        (layout::LPM_SCAN, scan::write(pool, root.family, &mut routes)?)
    } else {
        (layout::LPM_TRIE, trie::build(pool, &routes)?)
    };
    root.store(pool.memory(), new.0, new.1);
    if form == layout::LPM_SCAN {
        scan::retire(pool, root.family, first);
    }
    Ok(old)
}

/// Withdraws a route; the leaf it had. `count` is the number of routes there are.
///
/// # Errors
/// [`Error::Full`] where even the shorter list finds no memory; then nothing changed.
pub(crate) fn remove(pool: &mut Pool, root: Root, count: u32, prefix: Prefix) -> Result<Option<u32>, Error> {
    let (form, first) = root.load(pool.memory());
    if form == layout::LPM_TRIE {
        let old = trie::remove(pool, first, prefix);
        if old.is_some() && count - 1 <= SCAN_AGAIN {
            shrink(pool, root, first);
        }
        return Ok(old);
    }
    if form != layout::LPM_SCAN {
        return Ok(None);
    }
    let mut routes = scan::read(pool.memory(), root.family, first);
    let Some(at) = routes.iter().position(|(known, _)| *known == prefix) else { return Ok(None) };
    let (_, old) = routes.remove(at);
    if routes.is_empty() {
        root.store(pool.memory(), 0, 0);
    } else {
        let new = scan::write(pool, root.family, &mut routes)?;
        root.store(pool.memory(), layout::LPM_SCAN, new);
    }
    scan::retire(pool, root.family, first);
    Ok(Some(old))
}

/// A trie of few routes as a list; stays a trie where there is no memory.
fn shrink(pool: &mut Pool, root: Root, first: u32) {
    let mut routes: Vec<_> = trie::iter(pool.memory(), first).collect();
    let Ok(new) = scan::write(pool, root.family, &mut routes) else { return };
    root.store(pool.memory(), layout::LPM_SCAN, new);
    trie::retire(pool, first);
}

/// Withdraws all routes.
pub(crate) fn clear(pool: &mut Pool, root: Root) {
    let (form, first) = root.load(pool.memory());
    root.store(pool.memory(), 0, 0);
    match form {
        layout::LPM_SCAN => scan::retire(pool, root.family, first),
        layout::LPM_TRIE => trie::retire(pool, first),
        _ => {}
    }
}

/// All routes with their leaves, in no order.
pub(crate) fn iter(memory: &Memory, root: Root) -> Box<dyn Iterator<Item = (Prefix, u32)> + '_> {
    let (form, first) = root.load(memory);
    match form {
        layout::LPM_SCAN => Box::new(scan::read(memory, root.family, first).into_iter()),
        layout::LPM_TRIE => Box::new(trie::iter(memory, first)),
        _ => Box::new(std::iter::empty()),
    }
}

/// The leaf of an address, given as bits from the top.
pub(crate) fn find(memory: &Memory, root: Root, bits: u128) -> Option<u32> {
    let (form, first) = root.load(memory);
    match form {
        layout::LPM_SCAN => scan::find(memory, root.family, first, bits),
        layout::LPM_TRIE => trie::find(memory, first, bits, root.family.max_length()),
        _ => None,
    }
}

/// Claims the cells when tables are adopted, and drops what a withdrawal left
/// half done; the number of routes.
pub(crate) fn adopt(memory: &Memory, root: Root, used: &mut Used) -> Result<u32, Error> {
    let (form, first) = root.load(memory);
    match form {
        0 => Ok(0),
        layout::LPM_SCAN => scan::adopt(memory, root.family, first, used),
        layout::LPM_TRIE => trie::adopt(memory, first, root.family.max_length(), used),
        _ => Err(Error::Corrupt(format!("cell {} names an unknown form of routes", root.cell))),
    }
}
