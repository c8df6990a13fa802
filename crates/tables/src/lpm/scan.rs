//! Lists of few routes in one or two cells, the longest prefix first. A list never changes: it is replaced by
//! another one.

use super::{Entry, Family, Prefix, mask};
use crate::error::Error;
use crate::layout::{self, lpm_scan4, lpm_scan6};
use crate::memory::Memory;
use crate::pool::{Pool, ReachableCells};

const PER_CELL4: usize = layout::LPM_SCAN4_ROUTES as usize;
const PER_CELL6: usize = layout::LPM_SCAN6_ROUTES as usize;

fn per_cell(family: Family) -> usize {
    match family {
        Family::V4 => PER_CELL4,
        Family::V6 => PER_CELL6,
    }
}

/// Maximum number of routes of a list.
pub(super) fn routes_max(family: Family) -> usize {
    match family {
        Family::V4 => PER_CELL4 * layout::LPM_SCAN4_CELLS as usize,
        Family::V6 => PER_CELL6 * layout::LPM_SCAN6_CELLS as usize,
    }
}

/// Cells of a list of this many routes. Readers stop at an empty entry or after the most routes of a list.
fn cells(family: Family, routes: usize) -> u32 {
    let most = routes_max(family) / per_cell(family);
    (routes / per_cell(family) + 1).min(most) as u32
}

/// Writes a list. Returns its first cell.
pub(super) fn write(pool: &mut Pool, family: Family, routes: &mut [Entry]) -> Result<u32, Error> {
    debug_assert!(routes.len() <= routes_max(family));
    routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.length));
    let first = pool.allocate(cells(family, routes.len()))?;
    for (cell, routes) in (first..).zip(routes.chunks(per_cell(family))) {
        match family {
            Family::V4 => {
                let mut list = lpm_scan4::default();
                for (i, (prefix, leaf)) in routes.iter().enumerate() {
                    list.address[i] = (prefix.bits >> 96) as u32;
                    (list.leaf[i], list.length[i]) = (*leaf, prefix.length + 1);
                }
                pool.memory().write(cell, &list);
            }
            Family::V6 => {
                let mut list = lpm_scan6::default();
                for (i, (prefix, leaf)) in routes.iter().enumerate() {
                    (list.high[i], list.low[i]) = ((prefix.bits >> 64) as u64, prefix.bits as u64);
                    (list.leaf[i], list.length[i]) = (*leaf, prefix.length + 1);
                }
                pool.memory().write(cell, &list);
            }
        }
    }
    Ok(first)
}

/// The entries of one cell: length + 1, bits and leaf. A length of 0 ends the list.
fn entries(memory: &Memory, family: Family, cell: u32) -> Vec<(u8, u128, u32)> {
    match family {
        Family::V4 => {
            let list: lpm_scan4 = memory.read(cell);
            (0..PER_CELL4)
                .map(|i| (list.length[i], u128::from(list.address[i]) << 96, list.leaf[i]))
                .collect()
        }
        Family::V6 => {
            let list: lpm_scan6 = memory.read(cell);
            let bits = |i: usize| u128::from(list.high[i]) << 64 | u128::from(list.low[i]);
            (0..PER_CELL6).map(|i| (list.length[i], bits(i), list.leaf[i])).collect()
        }
    }
}

pub(super) fn read(memory: &Memory, family: Family, first: u32) -> Vec<Entry> {
    let most = (routes_max(family) / per_cell(family)) as u32;
    (first..first + most)
        .take_while(|&cell| memory.contains(cell, 1))
        .flat_map(|cell| entries(memory, family, cell))
        .map_while(|(length, bits, leaf)| Some((Prefix { bits, length: length.checked_sub(1)? }, leaf)))
        .collect()
}

/// The routes of a list, unless it is empty or has impossible lengths.
pub(super) fn read_checked(memory: &Memory, family: Family, first: u32) -> Option<Vec<Entry>> {
    let routes = read(memory, family, first);
    let is_possible = |(prefix, _): &Entry| prefix.length <= family.max_length();
    (!routes.is_empty() && routes.iter().all(is_possible)).then_some(routes)
}

/// The leaf of an address. Adds the number of cells that a search reads to `cells_read`.
pub(super) fn find(
    memory: &Memory,
    family: Family,
    first: u32,
    bits: u128,
    cells_read: &mut u32,
) -> Option<u32> {
    let routes = read(memory, family, first);
    let holds = |(prefix, _): &Entry| (prefix.bits ^ bits) & mask(prefix.length) == 0;
    let found = routes.iter().position(holds);
    *cells_read += cells(family, found.unwrap_or(routes.len()));
    found.map(|at| routes[at].1)
}

/// Number of cells of the list at `first`.
pub(super) fn cells_used(memory: &Memory, family: Family, first: u32) -> u32 {
    cells(family, read(memory, family, first).len())
}

pub(super) fn retire(pool: &mut Pool, family: Family, first: u32) {
    let cells = cells_used(pool.memory(), family, first);
    pool.retire(first, cells);
}

pub(super) fn adopt(
    memory: &Memory,
    family: Family,
    first: u32,
    reachable: &mut ReachableCells,
) -> Result<u32, Error> {
    let Some(routes) = read_checked(memory, family, first) else {
        return Err(Error::Corrupt(format!(
            "the route list at cell {first} is empty or has an impossible length"
        )));
    };
    reachable.claim(first, cells(family, routes.len()))?;
    Ok(routes.len() as u32)
}
