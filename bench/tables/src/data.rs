//! The routes and keys that all sides get. They depend only on the seed, on every machine.

use sluice_tables::layout;
use std::collections::HashSet;

/// Address family of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Addresses of 32 bits.
    V4,
    /// Addresses of 128 bits.
    V6,
}

/// An address as host-order halves; IPv4 is in `low`. This is `struct key` of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// High half; 0 for IPv4.
    pub high: u64,
    /// Low half.
    pub low: u64,
}

/// A route without host bits, with its leaf as in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// First address.
    pub first: Key,
    /// Prefix length.
    pub length: u8,
    /// Leaf word, never 0.
    pub leaf: u32,
}

/// Routes of one family with distinct prefixes, in random order.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Family of all routes.
    pub family: Family,
    /// The routes.
    pub routes: Vec<Route>,
}

/// Prefix lengths with their relative shares.
pub type Shape = &'static [(u8, f64)];

/// Approximately the global IPv4 table as published for 2023 and 2024.
pub const BGP4: Shape = &[
    (24, 63.0),
    (22, 11.0),
    (23, 10.0),
    (21, 5.0),
    (20, 4.5),
    (19, 2.5),
    (18, 1.4),
    (16, 1.3),
    (17, 0.8),
    (15, 0.2),
    (14, 0.12),
    (13, 0.06),
    (12, 0.03),
    (11, 0.01),
    (10, 0.004),
    (9, 0.0014),
    (8, 0.0016),
];

/// Approximately the global IPv6 table as published for 2023 and 2024.
pub const BGP6: Shape = &[
    (48, 46.0),
    (32, 12.0),
    (44, 9.0),
    (40, 9.0),
    (36, 5.0),
    (29, 5.0),
    (46, 2.5),
    (47, 2.5),
    (33, 1.5),
    (34, 1.5),
    (38, 1.5),
    (42, 1.5),
    (35, 1.0),
    (45, 1.0),
    (43, 0.5),
    (39, 0.5),
];

/// IPv4 host routes.
pub const HOSTS4: Shape = &[(32, 1.0)];
/// IPv6 host routes.
pub const HOSTS6: Shape = &[(128, 1.0)];

/// Approximately the routes of a cloud; there are 10M distinct prefixes of these lengths.
pub const CLOUD4: Shape = &[
    (24, 22.0),
    (32, 17.0),
    (25, 12.0),
    (26, 12.0),
    (28, 12.0),
    (27, 11.0),
    (23, 3.0),
    (29, 3.0),
    (30, 3.0),
    (22, 2.0),
    (20, 1.0),
    (21, 1.0),
    (31, 1.0),
];

/// Number of distinct next hops, which are the peer VNIs from 1 on.
const NEXT_HOPS: u64 = 400;
const FIRST_IPV4: u64 = 1 << 24;
/// Number of addresses from 1.0.0.0 to 223.255.255.255.
const IPV4_ADDRESSES: u64 = 223 << 24;

/// A random number generator: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

/// A permutation of the 64-bit numbers.
pub fn scramble(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        let at = self.0;
        self.0 = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(at)
    }

    /// A number from 0 to `bound` - 1, uniformly distributed.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A rank from 0 to `bound` - 1, distributed by Zipf's law with s = 1 (by the inverse of its continuous
    /// approximation).
    pub fn zipf(&mut self, bound: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (((bound + 1) as f64).powf(unit) as u64 - 1).min(bound - 1)
    }

    /// Next hop number.
    fn leaf(&mut self) -> u32 {
        layout::SCOPE_PEER << layout::LEAF_SCOPE_SHIFT | (1 + self.below(NEXT_HOPS)) as u32
    }

    fn address(&mut self, family: Family) -> Key {
        match family {
            Family::V4 => Key { high: 0, low: FIRST_IPV4 + self.below(IPV4_ADDRESSES) },
            // 2000::/3
            Family::V6 => Key { high: 1 << 61 | self.next() >> 3, low: self.next() },
        }
    }
}

/// The host bits of a prefix length.
fn host_mask(family: Family, length: u8) -> Key {
    let ones = |bits: u32| if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    match family {
        Family::V4 => Key { high: 0, low: ones(32 - u32::from(length)) },
        Family::V6 => {
            let host = 128 - u32::from(length);
            Key { high: ones(host.saturating_sub(64)), low: ones(host) }
        }
    }
}

/// Generates `count` routes of a shape. The remainder of rounding gets the first length of the shape.
///
/// # Panics
/// If there are not that many prefixes of a length.
pub fn routes(seed: u64, family: Family, shape: Shape, count: usize) -> Routes {
    let mut random = Random::new(scramble(seed));
    let total: f64 = shape.iter().map(|(_, share)| share).sum();
    let mut counts: Vec<usize> =
        shape.iter().map(|(_, share)| (share / total * count as f64) as usize).collect();
    counts[0] += count - counts.iter().sum::<usize>();
    let mut all = Vec::with_capacity(count);
    for (&(length, _), &wanted) in shape.iter().zip(&counts) {
        let mask = host_mask(family, length);
        let available = 2_f64.powi(i32::from(length)) * if family == Family::V4 { 0.87 } else { 0.125 };
        assert!(wanted as f64 <= available, "there are not {wanted} prefixes of length {length}");
        let mut seen = HashSet::with_capacity(wanted);
        while seen.len() < wanted {
            let address = random.address(family);
            let first = Key { high: address.high & !mask.high, low: address.low & !mask.low };
            if seen.insert(first) {
                all.push(Route { first, length, leaf: random.leaf() });
            }
        }
    }
    shuffle(&mut random, &mut all);
    Routes { family, routes: all }
}

fn shuffle<T>(random: &mut Random, all: &mut [T]) {
    for i in (1..all.len()).rev() {
        all.swap(i, random.below(i as u64 + 1) as usize);
    }
}

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// All routes or endpoints are equally likely.
    Even,
    /// Distributed by Zipf's law with s = 1.
    Zipf,
}

impl Draw {
    /// Draws an index below `bound`.
    pub fn index(self, random: &mut Random, bound: usize) -> usize {
        match self {
            Self::Even => random.below(bound as u64) as usize,
            Self::Zipf => random.zipf(bound as u64) as usize,
        }
    }
}

/// Draws addresses that routes cover, with random host bits. The ranks for Zipf's law are the order of the
/// routes, which is random.
pub fn keys(seed: u64, routes: &Routes, draw: Draw, count: usize) -> Vec<Key> {
    let mut random = Random::new(scramble(seed));
    let all = &routes.routes;
    (0..count)
        .map(|_| {
            let route = &all[draw.index(&mut random, all.len())];
            let mask = host_mask(routes.family, route.length);
            Key {
                high: route.first.high | random.next() & mask.high,
                low: route.first.low | random.next() & mask.low,
            }
        })
        .collect()
}

/// Size of a VRF in the set of 10K VRFs: 9,900 have 1 to 100 routes, 95 have 10k, 5 have 1M.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VrfSize {
    /// 1 to 100 routes.
    Small,
    /// 10,000 routes.
    Medium,
    /// 1,000,000 routes.
    Large,
}

impl VrfSize {
    /// The three sizes, each with its number of VRFs. `scale` divides the number of small ones.
    pub fn all(scale: usize) -> [(Self, usize); 3] {
        [(Self::Small, (9_900 / scale).max(10)), (Self::Medium, 95), (Self::Large, 5)]
    }

    /// The routes of VRF number `vni`. `scale` divides the number of routes of the larger sizes.
    pub fn routes(self, vni: u32, scale: usize) -> Routes {
        let count = match self {
            Self::Small => 1 + Random::new(u64::from(vni)).below(100) as usize,
            Self::Medium => (10_000 / scale).max(10),
            Self::Large => (1_000_000 / scale).max(10),
        };
        routes(0x7672_6600 + u64::from(vni), Family::V4, CLOUD4, count)
    }
}

/// Number of second-level tables of 256 entries that these routes need in a structure of 24 bits first and
/// steps of 8 bits then. DPDK allocates them in advance.
pub fn tables_of_8_bits(routes: &Routes) -> usize {
    let bits = |key: Key, length: u32| match routes.family {
        Family::V4 => u128::from(key.low) >> (32 - length),
        Family::V6 => (u128::from(key.high) << 64 | u128::from(key.low)) >> (128 - length),
    };
    let mut seen = HashSet::new();
    for route in &routes.routes {
        for step in (24..u32::from(route.length)).step_by(8) {
            seen.insert((step, bits(route.first, step)));
        }
    }
    seen.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_their_shape_and_distinct_prefixes() {
        for (family, shape, most) in
            [(Family::V4, BGP4, 24), (Family::V6, BGP6, 48), (Family::V4, CLOUD4, 24)]
        {
            let set = routes(1, family, shape, 20_000);
            let distinct: HashSet<_> = set.routes.iter().map(|route| (route.first, route.length)).collect();
            assert_eq!(distinct.len(), 20_000);
            let share = shape.iter().find(|(length, _)| *length == most).unwrap().1
                / shape.iter().map(|(_, share)| share).sum::<f64>();
            let found = set.routes.iter().filter(|route| route.length == most).count() as f64 / 20_000.0;
            assert!((found - share).abs() < 0.01, "{found} of length {most}, not {share}");
        }
    }

    #[test]
    fn keys_are_covered_by_routes_and_depend_on_the_seed() {
        for (family, shape) in [(Family::V4, BGP4), (Family::V6, BGP6)] {
            let set = routes(2, family, shape, 500);
            let drawn = keys(3, &set, Draw::Zipf, 200);
            assert_eq!(drawn, keys(3, &set, Draw::Zipf, 200));
            assert_ne!(drawn, keys(4, &set, Draw::Zipf, 200));
            for key in drawn {
                assert!(set.routes.iter().any(|route| {
                    let mask = host_mask(family, route.length);
                    key.high & !mask.high == route.first.high && key.low & !mask.low == route.first.low
                }));
            }
        }
    }

    #[test]
    fn zipf_draws_each_octave_of_ranks_equally_often() {
        let mut random = Random::new(5);
        let mut first = 0;
        let mut all = [0_u32; 1000];
        for _ in 0..100_000 {
            all[random.zipf(1000) as usize] += 1;
        }
        for rank in [1, 2, 4, 8, 16] {
            let octave: u32 = all[rank - 1..2 * rank - 1].iter().sum();
            if first == 0 {
                first = octave;
            }
            // Each octave of ranks has the same share.
            assert!(octave.abs_diff(first) < first / 10, "ranks from {rank}: {octave}, first {first}");
        }
    }

    #[test]
    fn second_level_tables_are_counted_once_each() {
        let route = |low, length| Route { first: Key { high: 0, low }, length, leaf: 1 };
        let routes = vec![route(0x0a00_0000, 24), route(0x0a00_0000, 25), route(0x0a00_0080, 32)];
        assert_eq!(tables_of_8_bits(&Routes { family: Family::V4, routes }), 1);
    }
}
