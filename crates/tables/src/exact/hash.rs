//! Keys of the exact match: their words, digests and buckets, computed as in `exact_match.h`.

use crate::layout;
use sluice_types::{ipv6_from_halves, ipv6_halves};
use std::net::{IpAddr, Ipv4Addr};

/// Key of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    /// An address; VNI 0 is the underlay.
    Ip { vni: u32, address: IpAddr },
    /// A small integer that identifies a VRF, port or group.
    Index { vni: u32, id: u32 },
}

/// A key as it is stored and searched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedKey {
    /// Key word without a generation.
    pub word: u64,
    /// High bits of the digest, at their position in the value.
    pub check: u64,
    /// IPv6: the whole address, as host-order halves.
    pub address: Option<(u64, u64)>,
    /// Hash from which the two buckets are computed.
    pub hash: u64,
}

/// Seed and digest mask of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashing {
    pub seed: u64,
    pub digest_mask: u64,
}

pub(crate) const GENERATION_SHIFT: u32 = layout::EXACT_GENERATION_SHIFT;
pub(super) const CHECK_MASK: u64 = !layout::EXACT_MAC_MASK;

pub(crate) fn mix(x: u64, seed: u64) -> u64 {
    let mut x = (x ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

fn key_word(kind: u32, vni: u32, id: u32) -> u64 {
    u64::from(kind) << layout::EXACT_KIND_SHIFT | u64::from(vni) << layout::EXACT_VNI_SHIFT | u64::from(id)
}

/// True for the key word of a filled slot.
pub(crate) fn is_filled(key: u64) -> bool {
    key & layout::EXACT_KEY_MASK != 0
}

impl Hashing {
    pub(crate) fn prepare(&self, key: Key) -> PreparedKey {
        let (word, check, address) = match key {
            Key::Index { vni, id } => (key_word(layout::EXACT_INDEX, vni, id), 0, None),
            Key::Ip { vni, address: IpAddr::V4(address) } => {
                (key_word(layout::EXACT_IPV4, vni, address.into()), 0, None)
            }
            Key::Ip { vni, address: IpAddr::V6(address) } => {
                let (high, low) = ipv6_halves(address);
                let digest = self.digest(high, low);
                let word = key_word(layout::EXACT_IPV6, vni, digest as u32);
                (word, digest & CHECK_MASK, Some((high, low)))
            }
        };
        PreparedKey { word, check, address, hash: self.hash(word) }
    }

    /// The key of a filled slot's key word. `address` is called if the word holds only a digest. `None` for
    /// an unknown kind.
    pub(crate) fn restore(&self, word: u64, address: impl FnOnce() -> (u64, u64)) -> Option<Key> {
        let word = word & layout::EXACT_KEY_MASK;
        let vni = (word >> layout::EXACT_VNI_SHIFT) as u32 & 0xff_ffff;
        Some(match (word >> layout::EXACT_KIND_SHIFT) as u32 {
            layout::EXACT_INDEX => Key::Index { vni, id: word as u32 },
            layout::EXACT_IPV4 => Key::Ip { vni, address: Ipv4Addr::from(word as u32).into() },
            layout::EXACT_IPV6 => {
                let (high, low) = address();
                Key::Ip { vni, address: ipv6_from_halves(high, low).into() }
            }
            _ => return None,
        })
    }

    /// Digest of an IPv6 address.
    pub(crate) fn digest(&self, high: u64, low: u64) -> u64 {
        let other = (!self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Both sums are modulo 2^32: that of the low halves, and that of the high halves without a carry.
        let product = |a: u64, b: u64| {
            let low = (a as u32).wrapping_add(b as u32);
            let high = ((a >> 32) as u32).wrapping_add((b >> 32) as u32);
            u64::from(low).wrapping_mul(u64::from(high))
        };
        mix(product(high, self.seed).wrapping_add(product(low, other)), self.seed) & self.digest_mask
    }

    /// The key of a sender, a node that has instances of a VNI, and the check in its value (`exact_find_sender`
    /// in `exact_match.h`).
    pub(crate) fn sender(&self, vni: u32, host: IpAddr) -> (Key, u64) {
        let (id, check) = match host {
            IpAddr::V4(host) => (u32::from(host), u64::from(layout::SENDER_IPV4)),
            IpAddr::V6(host) => {
                let (high, low) = ipv6_halves(host);
                let digest = self.digest(high, low);
                (digest as u32, digest >> 16 & layout::SENDER_CHECK_MASK | u64::from(layout::SENDER_IPV6))
            }
        };
        (Key::Index { vni, id: id.max(1) }, check)
    }

    pub(crate) fn hash(&self, word: u64) -> u64 {
        mix(word, self.seed)
    }

    /// Index of the cell at which the search of the conflict table begins.
    pub(crate) fn conflict_start(&self, word: u64, (high, low): (u64, u64), count: u32) -> u32 {
        let hash = mix(mix(word ^ high, self.seed) ^ low, self.seed);
        (((hash >> 32) * u64::from(count)) >> 32) as u32
    }
}

/// The two buckets of a hash among `count`, in the order of searching.
pub(crate) fn buckets_of(hash: u64, count: u32) -> (u32, u32) {
    let one = (((hash & 0xffff_ffff) * u64::from(count)) >> 32) as u32;
    let two = (((hash >> 32) * u64::from(count)) >> 32) as u32;
    if two != one {
        return (one, two);
    }
    (one, if one + 1 == count { 0 } else { one + 1 })
}
