//! Up to `LPM_SCAN_MAX` routes as a list, longest prefix first. A list never
//! changes: another one takes its place.

use super::{Family, Prefix, SCAN_MAX};
use crate::error::Error;
use crate::layout::{self, lpm_scan4, lpm_scan6};
use crate::memory::Memory;
use crate::pool::{Pool, Used};
use std::mem::{offset_of, size_of};

const PER_CELL4: usize = layout::LPM_SCAN4_PER_CELL as usize;
const PER_CELL6: usize = layout::LPM_SCAN6_PER_CELL as usize;

/// Cells of a list of `routes`. Readers stop at an empty entry, or where a list
/// of `LPM_SCAN_MAX` must end.
fn cells(family: Family, routes: usize) -> u32 {
    let cells = match family {
        Family::V4 => (routes + 1).div_ceil(PER_CELL4).min(SCAN_MAX.div_ceil(PER_CELL4)),
        Family::V6 => (routes + 1).div_ceil(PER_CELL6).min(SCAN_MAX.div_ceil(PER_CELL6)),
    };
    cells as u32
}

fn place4(first: u32, i: usize) -> (u32, usize) {
    (first + (i / PER_CELL4) as u32, i % PER_CELL4 * size_of::<lpm_scan4>())
}

fn place6(first: u32, i: usize) -> (u32, usize) {
    (first + (i / PER_CELL6) as u32, i % PER_CELL6 * size_of::<lpm_scan6>())
}

/// Writes a list; its first cell.
pub(super) fn write(pool: &mut Pool, family: Family, routes: &mut [(Prefix, u32)]) -> Result<u32, Error> {
    debug_assert!(routes.len() <= SCAN_MAX);
    routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.length));
    let first = pool.allocate(cells(family, routes.len()))?;
    let memory = pool.memory();
    for (i, (prefix, leaf)) in routes.iter().enumerate() {
        let length = u32::from(prefix.length) + 1;
        match family {
            Family::V4 => {
                let (cell, offset) = place4(first, i);
                let address = (prefix.bits >> 96) as u32;
                memory.store32(cell, offset + offset_of!(lpm_scan4, address), address);
                memory.store32(cell, offset + offset_of!(lpm_scan4, length), length);
                memory.store32(cell, offset + offset_of!(lpm_scan4, leaf), *leaf);
            }
            Family::V6 => {
                let (cell, offset) = place6(first, i);
                let address = offset + offset_of!(lpm_scan6, address);
                memory.store64(cell, address, (prefix.bits >> 64) as u64);
                memory.store64(cell, address + 8, prefix.bits as u64);
                memory.store32(cell, offset + offset_of!(lpm_scan6, length), length);
                memory.store32(cell, offset + offset_of!(lpm_scan6, leaf), *leaf);
            }
        }
    }
    Ok(first)
}

/// Entry `i`, `None` at the list's end.
fn entry(memory: &Memory, family: Family, first: u32, i: usize) -> Option<(Prefix, u32)> {
    let (cell, offset) = match family {
        Family::V4 => place4(first, i),
        Family::V6 => place6(first, i),
    };
    if i >= SCAN_MAX || cell >= memory.cells() {
        return None;
    }
    let (bits, length, leaf) = match family {
        Family::V4 => (
            u128::from(memory.load32(cell, offset + offset_of!(lpm_scan4, address))) << 96,
            memory.load32(cell, offset + offset_of!(lpm_scan4, length)),
            memory.load32(cell, offset + offset_of!(lpm_scan4, leaf)),
        ),
        Family::V6 => {
            let address = offset + offset_of!(lpm_scan6, address);
            (
                u128::from(memory.load64(cell, address)) << 64 | u128::from(memory.load64(cell, address + 8)),
                memory.load32(cell, offset + offset_of!(lpm_scan6, length)),
                memory.load32(cell, offset + offset_of!(lpm_scan6, leaf)),
            )
        }
    };
    let length = u8::try_from(length.checked_sub(1)?).ok()?;
    Some((Prefix { bits, length }, leaf))
}

pub(super) fn read(memory: &Memory, family: Family, first: u32) -> Vec<(Prefix, u32)> {
    (0..SCAN_MAX).map_while(|i| entry(memory, family, first, i)).collect()
}

pub(super) fn find(memory: &Memory, family: Family, first: u32, bits: u128) -> Option<u32> {
    let covers = |prefix: &Prefix| prefix.length == 0 || (prefix.bits ^ bits) >> (128 - prefix.length) == 0;
    (0..SCAN_MAX)
        .map_while(|i| entry(memory, family, first, i))
        .find_map(|(prefix, leaf)| covers(&prefix).then_some(leaf))
}

pub(super) fn retire(pool: &mut Pool, family: Family, first: u32) {
    let routes = read(pool.memory(), family, first).len();
    pool.retire(first, cells(family, routes));
}

pub(super) fn adopt(memory: &Memory, family: Family, first: u32, used: &mut Used) -> Result<u32, Error> {
    let routes = read(memory, family, first);
    used.claim(first, cells(family, routes.len()))?;
    if routes.is_empty() || routes.iter().any(|(prefix, _)| prefix.length > family.max_length()) {
        return Err(Error::Corrupt(format!("the route list at cell {first}")));
    }
    Ok(routes.len() as u32)
}
