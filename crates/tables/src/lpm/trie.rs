//! Any number of routes as a trie of four-bit strides. A node is two cells:
//! sixteen children, and the routes that end within the stride.

use super::Prefix;
use crate::error::Error;
use crate::layout::{self, lpm_node};
use crate::memory::Memory;
use crate::pool::{Pool, Used};
use std::mem::offset_of;

const STRIDE: u8 = layout::LPM_STRIDE as u8;
const NODE_CELLS: u32 = 2;
/// Nodes on the way to a host route of IPv6.
const DEPTH_MAX: usize = 128 / STRIDE as usize + 1;

fn child(memory: &Memory, node: u32, nibble: usize) -> u32 {
    memory.load32(node, offset_of!(lpm_node, child) + nibble * 4)
}

fn set_child(memory: &Memory, node: u32, nibble: usize, to: u32) {
    memory.store32(node, offset_of!(lpm_node, child) + nibble * 4, to);
}

fn route(memory: &Memory, node: u32, heap: usize) -> u32 {
    memory.load32(node, offset_of!(lpm_node, route) + heap * 4)
}

fn set_route(memory: &Memory, node: u32, heap: usize, leaf: u32) {
    memory.store32(node, offset_of!(lpm_node, route) + heap * 4, leaf);
}

fn nibble(bits: u128, depth: usize) -> usize {
    if depth >= DEPTH_MAX - 1 { 0 } else { (bits >> (124 - 4 * depth)) as usize & 15 }
}

/// The depth of the node that a prefix ends in, and its place in that node's heap.
fn place(prefix: Prefix) -> (usize, usize) {
    let (depth, rest) = ((prefix.length / STRIDE) as usize, prefix.length % STRIDE);
    (depth, 1 << rest | nibble(prefix.bits, depth) >> (STRIDE - rest))
}

/// The inverse of [`place`], from the bits above the node.
fn prefix_at(above: u128, depth: usize, heap: usize) -> Prefix {
    let rest = heap.ilog2() as u8;
    let length = depth as u8 * STRIDE + rest;
    let own = (heap ^ 1 << rest) as u128;
    Prefix { bits: if rest == 0 { above } else { above | own << (128 - length) }, length }
}

fn is_empty(memory: &Memory, node: u32) -> bool {
    (0..16).all(|i| child(memory, node, i) == 0 && route(memory, node, i) == 0)
}

/// A trie of these routes; its first node.
pub(super) fn build(pool: &mut Pool, routes: &[(Prefix, u32)]) -> Result<u32, Error> {
    let root = pool.allocate(NODE_CELLS)?;
    for &(prefix, leaf) in routes {
        if let Err(error) = insert(pool, root, prefix, leaf) {
            // Nobody has seen it, but retiring it is simplest and as good.
            retire(pool, root);
            return Err(error);
        }
    }
    Ok(root)
}

/// Enters or changes a route; the leaf it had.
pub(super) fn insert(pool: &mut Pool, root: u32, prefix: Prefix, leaf: u32) -> Result<Option<u32>, Error> {
    let (depth, heap) = place(prefix);
    let (mut node, mut at) = (root, 0);
    while at < depth {
        match child(pool.memory(), node, nibble(prefix.bits, at)) {
            0 => break,
            next => node = next,
        }
        at += 1;
    }
    if at == depth {
        let old = route(pool.memory(), node, heap);
        if old != leaf {
            set_route(pool.memory(), node, heap, leaf);
        }
        return Ok((old != 0).then_some(old));
    }
    // The missing nodes, the last first, linked by one store when all are there.
    let mut below = 0;
    for level in (at + 1..=depth).rev() {
        let new = match pool.allocate(NODE_CELLS) {
            Ok(new) => new,
            Err(error) => {
                give_back_chain(pool, below, prefix.bits, level + 1, depth);
                return Err(error);
            }
        };
        if level == depth {
            set_route(pool.memory(), new, heap, leaf);
        } else {
            set_child(pool.memory(), new, nibble(prefix.bits, level), below);
        }
        below = new;
    }
    set_child(pool.memory(), node, nibble(prefix.bits, at), below);
    Ok(None)
}

fn give_back_chain(pool: &mut Pool, mut node: u32, bits: u128, from: usize, depth: usize) {
    for level in from..=depth {
        let next = if level < depth { child(pool.memory(), node, nibble(bits, level)) } else { 0 };
        pool.give_back(node, NODE_CELLS);
        node = next;
    }
}

/// Withdraws a route, and the nodes that then hold nothing; the leaf it had.
pub(super) fn remove(pool: &mut Pool, root: u32, prefix: Prefix) -> Option<u32> {
    let (depth, heap) = place(prefix);
    let mut path = [0; DEPTH_MAX];
    path[0] = root;
    for level in 0..depth {
        path[level + 1] = match child(pool.memory(), path[level], nibble(prefix.bits, level)) {
            0 => return None,
            next => next,
        };
    }
    let old = route(pool.memory(), path[depth], heap);
    if old == 0 {
        return None;
    }
    set_route(pool.memory(), path[depth], heap, 0);
    for level in (1..=depth).rev() {
        if !is_empty(pool.memory(), path[level]) {
            break;
        }
        set_child(pool.memory(), path[level - 1], nibble(prefix.bits, level - 1), 0);
        pool.retire(path[level], NODE_CELLS);
    }
    Some(old)
}

/// Retires a trie that has been unlinked, or that nobody has seen.
pub(super) fn retire(pool: &mut Pool, root: u32) {
    let mut nodes = vec![root];
    while let Some(node) = nodes.pop() {
        nodes.extend((0..16).map(|i| child(pool.memory(), node, i)).filter(|&next| next != 0));
        pool.retire(node, NODE_CELLS);
    }
}

pub(super) fn find(memory: &Memory, root: u32, bits: u128, max_length: u8) -> Option<u32> {
    let (mut node, mut best) = (root, 0);
    for depth in 0..=usize::from(max_length / STRIDE) {
        if !memory.contains(node, NODE_CELLS) {
            break;
        }
        let own = nibble(bits, depth);
        let here = (0..STRIDE as usize)
            .rev()
            .map(|rest| route(memory, node, 1 << rest | own >> (STRIDE as usize - rest)))
            .find(|&leaf| leaf != 0);
        best = here.unwrap_or(best);
        node = child(memory, node, own);
        if node == 0 {
            break;
        }
    }
    (best != 0).then_some(best)
}

struct Visit {
    node: u32,
    depth: usize,
    above: u128,
    /// 1..16: the heap's routes; 16..32: the children.
    at: usize,
}

/// All routes, depth first.
pub(super) fn iter(memory: &Memory, root: u32) -> impl Iterator<Item = (Prefix, u32)> + '_ {
    let mut visits = vec![Visit { node: root, depth: 0, above: 0, at: 1 }];
    std::iter::from_fn(move || {
        loop {
            let visit = visits.last_mut()?;
            let at = visit.at;
            visit.at += 1;
            if at < 16 {
                let leaf = route(memory, visit.node, at);
                if leaf != 0 {
                    return Some((prefix_at(visit.above, visit.depth, at), leaf));
                }
            } else if at < 32 {
                let next = child(memory, visit.node, at - 16);
                if next != 0 && visit.depth + 1 < DEPTH_MAX {
                    let above = visit.above | (at as u128 - 16) << (124 - 4 * visit.depth);
                    let depth = visit.depth + 1;
                    visits.push(Visit { node: next, depth, above, at: 1 });
                }
            } else {
                visits.pop();
            }
        }
    })
}

/// Claims all nodes and unlinks empty ones; the number of routes.
pub(super) fn adopt(memory: &Memory, root: u32, max_length: u8, used: &mut Used) -> Result<u32, Error> {
    used.claim(root, NODE_CELLS)?;
    adopt_node(memory, root, 0, max_length, used)
}

/// At most `DEPTH_MAX` deep.
fn adopt_node(
    memory: &Memory,
    node: u32,
    depth: usize,
    max_length: u8,
    used: &mut Used,
) -> Result<u32, Error> {
    let mut routes = (1..16).filter(|&heap| route(memory, node, heap) != 0).count() as u32;
    for i in 0..16 {
        let next = child(memory, node, i);
        if next == 0 {
            continue;
        }
        if depth >= usize::from(max_length / STRIDE) || !memory.contains(next, NODE_CELLS) {
            return Err(Error::Corrupt(format!("route node {node} has an impossible child")));
        }
        used.claim(next, NODE_CELLS)?;
        let below = adopt_node(memory, next, depth + 1, max_length, used)?;
        if below == 0 {
            set_child(memory, node, i, 0);
            used.release(next, NODE_CELLS);
        }
        routes += below;
    }
    Ok(routes)
}
