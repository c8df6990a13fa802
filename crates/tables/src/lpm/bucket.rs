//! Buckets: cells with the few routes whose prefixes begin with the bits that lead to the bucket. `depth` is
//! the number of these bits, and `above` an address that has them.

use super::word::BucketForm;
use super::{Entry, Prefix, mask};
use crate::layout::{self, lpm_long, lpm_narrow, lpm_wide};
use crate::memory::Memory;
use std::cmp::Reverse;
use std::mem::offset_of;

/// Maximum number of routes of any bucket.
pub(super) const ROUTES_MAX: usize = layout::LPM_NARROW_ROUTES as usize;

impl BucketForm {
    pub(super) fn routes_max(self) -> usize {
        match self {
            Self::Narrow => layout::LPM_NARROW_ROUTES as usize,
            Self::Wide => layout::LPM_WIDE_ROUTES as usize,
            Self::Long => layout::LPM_LONG_ROUTES as usize,
        }
    }

    /// Maximum number of bits of a prefix after the first `depth`.
    fn length_max(self) -> u8 {
        match self {
            Self::Narrow => 15,
            Self::Wide => 31,
            Self::Long => 127,
        }
    }

    fn leaf_offset(self) -> usize {
        match self {
            Self::Narrow => offset_of!(lpm_narrow, leaf),
            Self::Wide => offset_of!(lpm_wide, leaf),
            Self::Long => offset_of!(lpm_long, leaf),
        }
    }

    /// The first form that can hold these routes, which are all longer than `depth`. `None` if there is no
    /// such form, or no route.
    pub(super) fn of(routes: &[Entry], depth: u8) -> Option<Self> {
        let longest = routes.iter().map(|(prefix, _)| prefix.length).max()? - depth;
        [Self::Narrow, Self::Wide, Self::Long]
            .into_iter()
            .find(|form| longest <= form.length_max() && routes.len() <= form.routes_max())
    }
}

/// A lane of 16 or 32 bits: the bits of the prefix behind `depth`, a 1, and zeros.
fn encode_lane(prefix: Prefix, depth: u8, width: u32) -> u32 {
    let rest = ((prefix.bits << depth) >> (128 - width)) as u32;
    rest | 1 << (width - 1 - u32::from(prefix.length - depth))
}

/// The inverse of [`encode_lane`].
fn decode_lane(lane: u32, above: u128, depth: u8, width: u32) -> Prefix {
    let length = (width - 1 - lane.trailing_zeros()) as u8;
    let rest = u128::from(lane & (lane - 1)) << (128 - width) >> depth;
    Prefix { bits: above | rest, length: depth + length }
}

/// A code of 128 bits: the bits of the prefix without the first, a 1, and zeros (see `lpm_long` in
/// `cells.h`).
fn encode_long(prefix: Prefix) -> u128 {
    prefix.bits << 1 | 1 << (128 - u32::from(prefix.length))
}

/// The inverse of [`encode_long`].
fn decode_long(code: u128, above: u128) -> Prefix {
    let length = 128 - code.trailing_zeros() as u8;
    Prefix { bits: above & 1 << 127 | (code & (code - 1)) >> 1, length }
}

/// The lane of entry `e` of a narrow bucket.
fn narrow_lane(e: usize) -> usize {
    e % 3 * 4 + e / 3
}

/// The lane of entry `e` of a wide bucket.
fn wide_lane(e: usize) -> usize {
    e % 4 * 2 + e / 4
}

/// Fills the cell of a bucket that is not linked yet.
pub(super) fn write(
    memory: &Memory,
    cell: u32,
    form: BucketForm,
    routes: &mut [Entry],
    depth: u8,
    inherited: u32,
) {
    routes.sort_unstable_by_key(|(prefix, _)| Reverse(prefix.length));
    match form {
        BucketForm::Narrow => {
            let mut bucket = lpm_narrow { lane: [1 << 15; 12], leaf: [inherited; 10] };
            for (e, &(prefix, leaf)) in routes.iter().enumerate() {
                bucket.lane[narrow_lane(e)] = encode_lane(prefix, depth, 16) as u16;
                bucket.leaf[e] = leaf;
            }
            memory.write(cell, &bucket);
        }
        BucketForm::Wide => {
            let mut bucket = lpm_wide { lane: [1 << 31; 8], leaf: [inherited; 8] };
            for (e, &(prefix, leaf)) in routes.iter().enumerate() {
                bucket.lane[wide_lane(e)] = encode_lane(prefix, depth, 32);
                bucket.leaf[e] = leaf;
            }
            memory.write(cell, &bucket);
        }
        BucketForm::Long => {
            // A code in which the marker is the first bit matches every address.
            let mut bucket = lpm_long { high: [1 << 63; 3], low: [0; 3], leaf: [inherited; 4] };
            for (e, &(prefix, leaf)) in routes.iter().enumerate() {
                let code = encode_long(prefix);
                (bucket.high[e], bucket.low[e]) = ((code >> 64) as u64, code as u64);
                bucket.leaf[e] = leaf;
            }
            memory.write(cell, &bucket);
        }
    }
}

/// The decoded content of a bucket.
pub(super) struct Bucket {
    /// The first `count` are the bucket's routes, the longest first.
    pub routes: [Entry; ROUTES_MAX + 1],
    pub count: usize,
    /// Leaf of the addresses that match none of the routes.
    pub inherited: u32,
}

impl Bucket {
    pub(super) fn read(memory: &Memory, cell: u32, form: BucketForm, above: u128, depth: u8) -> Self {
        let above = above & mask(depth);
        let mut bucket = Self { routes: [Entry::default(); ROUTES_MAX + 1], count: 0, inherited: 0 };
        match form {
            BucketForm::Narrow => {
                let from: lpm_narrow = memory.read(cell);
                let lanes = (0..form.routes_max()).map(|e| u32::from(from.lane[narrow_lane(e)]));
                bucket.fill(lanes.take_while(|&lane| lane & 0x7fff != 0), &from.leaf, |lane| {
                    decode_lane(lane, above, depth, 16)
                });
            }
            BucketForm::Wide => {
                let from: lpm_wide = memory.read(cell);
                let lanes = (0..form.routes_max()).map(|e| from.lane[wide_lane(e)]);
                bucket.fill(lanes.take_while(|&lane| lane << 1 != 0), &from.leaf, |lane| {
                    decode_lane(lane, above, depth, 32)
                });
            }
            BucketForm::Long => {
                let from: lpm_long = memory.read(cell);
                let codes = (0..form.routes_max())
                    .map(|e| u128::from(from.high[e]) << 64 | u128::from(from.low[e]))
                    .take_while(|&code| code << 1 != 0);
                bucket.fill(codes, &from.leaf, |code| decode_long(code, above));
            }
        }
        bucket
    }

    /// Fills the routes from lanes or codes and their leaves.
    fn fill<T>(&mut self, lanes: impl Iterator<Item = T>, leaves: &[u32], prefix: impl Fn(T) -> Prefix) {
        for (e, lane) in lanes.enumerate() {
            self.routes[e] = (prefix(lane), leaves[e]);
            self.count = e + 1;
        }
        self.inherited = leaves[self.count];
    }

    pub(super) fn routes(&self) -> &[Entry] {
        &self.routes[..self.count]
    }
}

/// Changes the leaf of entry `e`, by one store.
pub(super) fn set_leaf(memory: &Memory, cell: u32, form: BucketForm, e: usize, leaf: u32) {
    memory.store32(cell, form.leaf_offset() + e * 4, leaf);
}

/// Offset of the inherited leaf: it is behind the leaves of the routes.
fn inherited_offset(memory: &Memory, cell: u32, form: BucketForm) -> usize {
    form.leaf_offset() + 4 * Bucket::read(memory, cell, form, 0, 1).count
}

pub(super) fn set_inherited(memory: &Memory, cell: u32, form: BucketForm, leaf: u32) {
    memory.store32(cell, inherited_offset(memory, cell, form), leaf);
}
