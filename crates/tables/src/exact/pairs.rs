//! A map by two small numbers, with a hash that costs little: a bulk of endpoints asks it once for each.

use super::hash::mix;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Numbers by VNI and cell.
pub(crate) type PairCounts = PairMap<u64>;

/// Values by VNI and cell.
pub(crate) type PairMap<V> = HashMap<(u32, u32), V, BuildHasherDefault<PairHasher>>;

/// Hash of a few numbers that no tenant chooses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        mix(self.0, 0)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = self.0.rotate_left(32) ^ u64::from(number);
    }
}
