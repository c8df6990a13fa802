//! Entries for the kernel's maps with the same content as Sluice's tables.

use crate::data::{Family, Key, Route, Routes};
use crate::endpoints::{EndpointAnswers, Endpoints};
use crate::rig::Batch;
use std::collections::HashSet;

/// The bytes of `struct trie4_key` or `struct trie6_key`, by the family.
pub fn trie_key(family: Family, route: &Route) -> Vec<u8> {
    let mut key = u32::from(route.length).to_ne_bytes().to_vec();
    match family {
        Family::V4 => key.extend((route.first.low as u32).to_be_bytes()),
        Family::V6 => {
            key.extend(route.first.high.to_be_bytes());
            key.extend(route.first.low.to_be_bytes());
        }
    }
    key
}

/// Name of the trie map of a family.
pub fn trie_map(family: Family) -> &'static str {
    match family {
        Family::V4 => "trie4",
        Family::V6 => "trie6",
    }
}

/// Routes for `BPF_MAP_TYPE_LPM_TRIE`.
pub fn trie_batch(set: &Routes) -> Batch {
    let key_bytes = if set.family == Family::V4 { 8 } else { 20 };
    let mut batch = Batch::new(key_bytes, 4, set.routes.len());
    for route in &set.routes {
        batch.push(&trie_key(set.family, route), &route.leaf.to_ne_bytes());
    }
    batch
}

/// Number of nodes of a trie with these routes: one for each route, and one for each position at which two
/// routes branch and that is not a route itself. The kernel counts only the former.
pub fn trie_nodes(set: &Routes) -> usize {
    let width = if set.family == Family::V4 { 32 } else { 128 };
    let bits = |key: Key| match set.family {
        Family::V4 => u128::from(key.low) << 96,
        Family::V6 => u128::from(key.high) << 64 | u128::from(key.low),
    };
    let mut sorted: Vec<(u128, u32)> =
        set.routes.iter().map(|route| (bits(route.first), u32::from(route.length))).collect();
    sorted.sort_unstable();
    let first_of = |address: u128, length: u32| {
        (if length == 0 { 0 } else { address >> (128 - length) << (128 - length) }, length)
    };
    // In this order, any two routes branch at a position at which two adjacent ones do.
    let branches = sorted.windows(2).map(|pair| {
        let ((a, short), (b, long)) = (pair[0], pair[1]);
        first_of(a, (a ^ b).leading_zeros().min(short).min(long).min(width))
    });
    let all: HashSet<(u128, u32)> = branches.chain(sorted.iter().copied()).collect();
    all.len()
}

/// Endpoints for `BPF_MAP_TYPE_HASH`, from number `first` on.
pub fn hash_batch(answers: &EndpointAnswers, endpoints: Endpoints, first: usize, count: usize) -> Batch {
    let key_bytes = if endpoints.family == Family::V4 { 8 } else { 24 };
    let mut batch = Batch::new(key_bytes, 16, count);
    let mut key = Vec::with_capacity(key_bytes);
    for number in first..first + count {
        let address = endpoints.key(number);
        key.clear();
        match endpoints.family {
            Family::V4 => {
                key.extend(endpoints.vni.to_ne_bytes());
                key.extend((address.low as u32).to_ne_bytes());
            }
            Family::V6 => {
                key.extend(u64::from(endpoints.vni).to_ne_bytes());
                key.extend(address.high.to_ne_bytes());
                key.extend(address.low.to_ne_bytes());
            }
        }
        let (mac, next) = answers.answer(number);
        let mut value = [0; 16];
        value[..8].copy_from_slice(&mac.to_ne_bytes());
        value[8..12].copy_from_slice(&next.to_ne_bytes());
        batch.push(&key, &value);
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trie_has_a_node_for_each_route_and_each_branch() {
        let route = |low, length| Route { first: Key { high: 0, low }, length, leaf: 1 };
        let nodes = |routes: Vec<Route>| trie_nodes(&Routes { family: Family::V4, routes });
        assert_eq!(nodes(vec![route(0x0a00_0000, 8)]), 1);
        // One is below the other, so there is no branch.
        assert_eq!(nodes(vec![route(0x0a00_0000, 8), route(0x0a01_0000, 16)]), 2);
        // They branch at 10.0.0.0/15.
        assert_eq!(nodes(vec![route(0x0a00_0000, 16), route(0x0a01_0000, 16)]), 3);
        // They branch at a position that is a route.
        assert_eq!(nodes(vec![route(0x0a00_0000, 16), route(0x0a01_0000, 16), route(0x0a00_0000, 15)]), 3);
    }
}
