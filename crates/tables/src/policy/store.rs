//! Compiled policies in cells: `struct policy` of `cells.h`.
//!
//! A policy is written once, before anything refers to it, and never changes. It is its own record: what was compiled
//! can be read back, so that the writer needs no copy to know whether a policy is new.

use super::compile::{Compiled, CompiledDirection, remotes};
use super::rules::{Policy, Rule};
use crate::error::{Error, PolicyExcess};
use crate::layout::{self, policy};
use crate::lpm::{self, Entry, Family, Root};
use crate::memory::Memory;
use crate::pool::{Pool, ReachableCells};
use std::mem::offset_of;

/// Cells of a `struct policy`: one for each direction.
pub(crate) const POLICY_CELLS: u32 = 2;
const WORDS_PER_CELL: u32 = layout::CELL_BYTES / 8;

/// Cells of the root words of this many service sets.
fn set_cells(sets: u32) -> u32 {
    sets.div_ceil(WORDS_PER_CELL)
}

/// The root words of all service sets, in the order of their numbers.
fn set_roots(policy: &policy) -> impl Iterator<Item = Root> + use<> {
    let first = policy.sets;
    (0..policy.set_count).map(move |i| Root {
        cell: first + i / WORDS_PER_CELL,
        offset: (i % WORDS_PER_CELL) as usize * 8,
        family: Family::V4,
    })
}

/// The root words by address and by identity of one direction, whose cell is `cell`.
fn remote_roots(cell: u32) -> [Root; 3] {
    let addresses = |i: usize| offset_of!(policy, addresses) + i * 8;
    [
        Root { cell, offset: addresses(0), family: Family::V4 },
        Root { cell, offset: addresses(1), family: Family::V6 },
        Root { cell, offset: offset_of!(policy, identities), family: Family::V4 },
    ]
}

fn root_word(memory: &Memory, root: Root) -> u64 {
    memory.load64(root.cell, root.offset)
}

/// Writes a policy to new cells, to which nothing refers yet. Returns the first.
///
/// # Errors
/// [`Error::PolicyTooLarge`] if it takes too many cells; [`Error::Full`]; [`Error::Grace`].
pub(crate) fn write(
    pool: &mut Pool,
    source: &Policy,
    generation: u32,
    compiled: &Compiled,
) -> Result<u32, Error> {
    let free = free_cells(pool);
    let first = pool.allocate(POLICY_CELLS)?;
    let count = compiled.sets.len() as u32;
    let sets = match count {
        0 => Ok(0),
        _ => pool.allocate(set_cells(count)),
    };
    let sets = match sets {
        Ok(sets) => sets,
        Err(error) => {
            pool.give_back(first, POLICY_CELLS);
            return Err(error);
        }
    };
    let head = policy {
        kind: layout::NEXT_HOP_POLICY as u8,
        id: source.id,
        generation,
        sets,
        set_count: count,
        rules: compiled.rules,
        ..Default::default()
    };
    for cell in first..first + POLICY_CELLS {
        pool.memory().write(cell, &head);
    }
    if let Err(error) = fill(pool, source, first, &head, compiled, free) {
        retire(pool, first);
        return Err(error);
    }
    Ok(first)
}

/// Cells that are free now or after a grace period.
fn free_cells(pool: &Pool) -> u64 {
    pool.free_cells() + pool.retired_cells()
}

/// Builds everything that the root words of a new policy lead to. `free` is the number of free cells before.
fn fill(
    pool: &mut Pool,
    source: &Policy,
    first: u32,
    head: &policy,
    compiled: &Compiled,
    free: u64,
) -> Result<(), Error> {
    let mut build = |root: Root, entries: &[Entry]| {
        lpm::merge(pool, root, entries.iter().copied())?;
        if free - free_cells(pool) > u64::from(layout::POLICY_CELLS_MAX) {
            let (prefixes, identities) = remotes(source);
            let excess = PolicyExcess::Cells { prefixes, identities };
            return Err(Error::PolicyTooLarge { policy: source.id, excess });
        }
        Ok(())
    };
    for (root, services) in set_roots(head).zip(&compiled.sets) {
        build(root, services)?;
    }
    for (cell, direction) in (first..).zip(&compiled.directions) {
        let [v4, v6] = &direction.addresses;
        for (root, entries) in remote_roots(cell).into_iter().zip([v4, v6, &direction.identities]) {
            build(root, entries)?;
        }
    }
    let memory = pool.memory();
    for (cell, direction) in (first..).zip(&compiled.directions) {
        for (i, number) in direction.any.into_iter().enumerate() {
            let root = number.checked_sub(1).and_then(|n| set_roots(head).nth(n as usize));
            let word = root.map_or(0, |root| root_word(memory, root));
            memory.store64(cell, offset_of!(policy, any) + i * 8, word);
        }
    }
    Ok(())
}

/// The first cell of a policy.
pub(crate) fn head(memory: &Memory, cell: u32) -> policy {
    memory.read(cell)
}

/// Whether a whole policy with this identifier is at a cell.
pub(crate) fn is_policy(memory: &Memory, cell: u32, id: u32) -> bool {
    if cell == 0 || !memory.contains(cell, POLICY_CELLS) {
        return false;
    }
    let [ingress, egress]: [policy; 2] = [memory.read(cell), memory.read(cell + 1)];
    let is_head = |head: &policy| u32::from(head.kind) == layout::NEXT_HOP_POLICY && head.id == id;
    is_head(&ingress)
        && is_head(&egress)
        && (ingress.sets, ingress.set_count) == (egress.sets, egress.set_count)
        && ingress.set_count <= layout::POLICY_SETS_MAX
        && memory.contains(ingress.sets, set_cells(ingress.set_count))
}

/// Reads back what a policy was compiled to. [`is_policy`] is true of it; what it leads to may be damaged, and is `None` then.
pub(crate) fn read(memory: &Memory, cell: u32) -> Option<Compiled> {
    let head = head(memory, cell);
    let sorted = |root: Root| {
        let mut entries: Vec<Entry> = Vec::new();
        // Leaves are rules, or numbers of service sets.
        lpm::inspect_leaves(
            memory,
            root,
            |_, leaf| leaf <= Rule::ID_MAX,
            |prefix, leaf| {
                entries.push((prefix, leaf));
            },
        )
        .ok()?;
        entries.sort_unstable();
        Some(entries)
    };
    let words: Vec<u64> = set_roots(&head).map(|root| root_word(memory, root)).collect();
    let direction = |cell: u32| {
        let known: policy = memory.read(cell);
        let number = |word: u64| {
            words.iter().position(|&known| word != 0 && known == word).map_or(0, |i| i as u32 + 1)
        };
        let [v4, v6, identities] = remote_roots(cell).map(sorted);
        let (addresses, identities) = ([v4?, v6?], identities?);
        Some(CompiledDirection { any: known.any.map(number), addresses, identities })
    };
    Some(Compiled {
        rules: head.rules,
        sets: set_roots(&head).map(|root| sorted(root).map(Into::into)).collect::<Option<_>>()?,
        directions: [direction(cell)?, direction(cell + 1)?],
    })
}

/// All root words that own cells.
fn owning_roots(memory: &Memory, cell: u32) -> impl Iterator<Item = Root> + use<> {
    let remotes = [cell, cell + 1].into_iter().flat_map(remote_roots);
    set_roots(&head(memory, cell)).chain(remotes)
}

/// Retires a policy that has just been unlinked. Its content stays until the grace period is over.
pub(crate) fn retire(pool: &mut Pool, cell: u32) {
    let head = head(pool.memory(), cell);
    for root in owning_roots(pool.memory(), cell) {
        lpm::retire(pool, root);
    }
    if head.set_count > 0 {
        pool.retire(head.sets, set_cells(head.set_count));
    }
    pool.retire(cell, POLICY_CELLS);
}

/// Number of cells of a policy.
pub(crate) fn cells_used(memory: &Memory, cell: u32) -> u64 {
    let below: u64 = owning_roots(memory, cell).map(|root| lpm::cells_used(memory, root)).sum();
    u64::from(POLICY_CELLS + set_cells(head(memory, cell).set_count)) + below
}

/// Claims the cells of another writer's policy, for which [`is_policy`] is true. Nothing of it can be unfinished.
///
/// # Errors
/// [`Error::Corrupt`].
pub(crate) fn adopt(memory: &Memory, cell: u32, reachable: &mut ReachableCells) -> Result<(), Error> {
    let head = head(memory, cell);
    reachable.claim(cell, POLICY_CELLS)?;
    reachable.claim(head.sets, set_cells(head.set_count))?;
    for root in owning_roots(memory, cell) {
        lpm::adopt(memory, root, reachable)?;
    }
    let words: Vec<u64> = set_roots(&head).map(|root| root_word(memory, root)).collect();
    for direction in [cell, cell + 1] {
        let known: policy = memory.read(direction);
        if known.any.iter().any(|word| *word != 0 && !words.contains(word)) {
            return Err(Error::Corrupt(format!(
                "the policy {} at cell {cell} has a service set for any address that is not its own",
                head.id
            )));
        }
    }
    Ok(())
}
