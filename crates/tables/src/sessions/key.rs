//! Keys of sessions: canonical form, hash and candidate buckets, computed as in `sessions.h`.

use crate::layout::{self, session_config};
use crate::region::Region;
use sluice_types::{ipv6_from_halves, ipv6_halves};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const KEY_WORDS_MAX: usize = layout::SESSION_KEY6_WORDS as usize;

/// The packets of one direction, by which a session is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// What separates flows that may have the same addresses, of 24 bits: on a host the number of the port, on a gateway
    /// the VNI; 0 for flows outside of all VPCs.
    pub scope: u32,
    /// IP protocol number.
    pub protocol: u8,
    /// Address and port of the sender. For ICMP and ICMPv6 the port of the endpoint that asks is the identifier, and that of
    /// the other one the type of the query; for protocols without ports they are 0.
    pub source: SocketAddr,
    /// Address and port of the receiver, of the same family.
    pub destination: SocketAddr,
}

impl Flow {
    /// The flow of the other direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { source: self.destination, destination: self.source, ..self }
    }
}

/// Address family, which has a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// An IPv4 flow.
    Ipv4,
    /// An IPv6 flow.
    Ipv6,
}

impl Family {
    /// Number of words of a key.
    pub(super) const fn key_words(self) -> usize {
        match self {
            Self::Ipv4 => layout::SESSION_KEY4_WORDS as usize,
            Self::Ipv6 => layout::SESSION_KEY6_WORDS as usize,
        }
    }

    /// Index into the arrays by family of `struct session_config`.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Ipv4 => 0,
            Self::Ipv6 => 1,
        }
    }
}

/// The canonical key of a flow, and which of the two endpoints is the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub family: Family,
    /// For IPv4 only the first two are used; the others are 0.
    pub words: [u64; KEY_WORDS_MAX],
    /// Index of the endpoint that sends: 0 or 1.
    pub source: u32,
}

impl Key {
    /// The key of a flow; `None` if the families of its addresses differ.
    pub(super) fn of(flow: &Flow) -> Option<Self> {
        let ends = [flow.source, flow.destination].map(|end| (end.ip(), end.port()));
        let (family, source) = match (ends[0].0, ends[1].0) {
            (IpAddr::V4(_), IpAddr::V4(_)) => (Family::Ipv4, u32::from(ends[0] > ends[1])),
            (IpAddr::V6(_), IpAddr::V6(_)) => (Family::Ipv6, u32::from(ends[0] > ends[1])),
            _ => return None,
        };
        let [low, high] = if source == 0 { ends } else { [ends[1], ends[0]] };
        let mut words = [0; KEY_WORDS_MAX];
        words[0] = u64::from(flow.scope & 0xff_ffff)
            | u64::from(flow.protocol) << layout::SESSION_PROTOCOL_SHIFT
            | u64::from(low.1) << layout::SESSION_PORT0_SHIFT
            | u64::from(high.1) << layout::SESSION_PORT1_SHIFT;
        match (low.0, high.0) {
            (IpAddr::V4(low), IpAddr::V4(high)) => {
                words[1] = u64::from(u32::from(low)) | u64::from(u32::from(high)) << 32;
            }
            (IpAddr::V6(low), IpAddr::V6(high)) => {
                (words[1], words[2]) = ipv6_halves(low);
                (words[3], words[4]) = ipv6_halves(high);
            }
            _ => return None,
        }
        Some(Self { family, words, source })
    }

    /// The flow that endpoint `source` sends.
    pub(super) fn flow(&self) -> Flow {
        let [endpoints, first, ..] = self.words;
        let addresses: [IpAddr; 2] = match self.family {
            Family::Ipv4 => {
                [Ipv4Addr::from(first as u32).into(), Ipv4Addr::from((first >> 32) as u32).into()]
            }
            Family::Ipv6 => {
                let [_, a, b, c, d] = self.words;
                [ipv6_from_halves(a, b).into(), ipv6_from_halves(c, d).into()]
            }
        };
        let low = SocketAddr::new(addresses[0], (endpoints >> layout::SESSION_PORT0_SHIFT) as u16);
        let high = SocketAddr::new(addresses[1], (endpoints >> layout::SESSION_PORT1_SHIFT) as u16);
        let (source, destination) = if self.source == 0 { (low, high) } else { (high, low) };
        let protocol = (endpoints >> layout::SESSION_PROTOCOL_SHIFT) as u8;
        Flow { scope: endpoints as u32 & 0xff_ffff, protocol, source, destination }
    }
}

/// The secrets of the hash function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashing {
    pub hash_key: [u64; KEY_WORDS_MAX],
    pub seed: u64,
}

/// The buckets in which a key can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Candidates {
    /// In the order of searching.
    pub buckets: [u32; 2],
    /// Further hash bits, which the tag word of the session's slot contains.
    pub tag: u16,
}

impl Hashing {
    /// Generates all secrets from one seed (splitmix64).
    pub(super) fn from_seed(seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = state;
            x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ x >> 31
        };
        Self { hash_key: std::array::from_fn(|_| next()), seed: next() }
    }

    /// The secrets of the tables with this configuration.
    pub(super) fn load(config: &Region) -> Self {
        Self {
            hash_key: std::array::from_fn(|word| config.load64(Self::word_at(word))),
            seed: config.load64(offset_of!(session_config, seed)),
        }
    }

    pub(super) fn store(&self, config: &Region) {
        for (word, secret) in self.hash_key.into_iter().enumerate() {
            config.store64(Self::word_at(word), secret);
        }
        config.store64(offset_of!(session_config, seed), self.seed);
    }

    fn word_at(word: usize) -> usize {
        offset_of!(session_config, hash_key) + word * 8
    }

    fn hash(&self, words: &[u64]) -> u64 {
        let words = words.iter().zip(self.hash_key);
        let sum = words.fold(0_u64, |sum, (&word, secret)| {
            let low = (word as u32).wrapping_add(secret as u32);
            let high = ((word >> 32) as u32).wrapping_add((secret >> 32) as u32);
            sum.wrapping_add(u64::from(low) * u64::from(high))
        });
        let mut x = (sum ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 32;
        x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^ x >> 32
    }

    /// The candidates of a key in a table of `buckets` buckets, 2 or more.
    pub(super) fn candidates(&self, key: &Key, buckets: u32) -> Candidates {
        let (buckets, tag) = self.place(&key.words[..key.family.key_words()], buckets);
        Candidates { buckets, tag: (tag >> 16) as u16 }
    }

    /// The two buckets, of `buckets`, in which what has these words as its key can be, and further hash bits.
    pub(super) fn place(&self, key: &[u64], buckets: u32) -> ([u32; 2], u32) {
        let hash = self.hash(key);
        let one = (((hash & 0xffff_ffff) * u64::from(buckets)) >> 32) as u32;
        let mut two = (((hash >> 32) * u64::from(buckets)) >> 32) as u32;
        if two == one {
            two = if one + 1 == buckets { 0 } else { one + 1 };
        }
        ([one, two], (hash.wrapping_mul(0xa076_1d64_78bd_642f) >> 32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(source: &str, destination: &str) -> Flow {
        Flow {
            scope: 0xab_cdef,
            protocol: 6,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    #[test]
    fn both_directions_have_one_key_that_converts_back_to_the_flow() {
        let hashing = Hashing::from_seed(1);
        for flow in [
            flow("10.0.0.1:80", "10.0.0.2:79"),
            flow("10.0.0.1:80", "10.0.0.1:79"),
            flow("255.255.255.255:65535", "0.0.0.0:0"),
            flow("[fd00::1]:1", "[fd00::2]:0"),
            flow("[fd00::2]:1", "[fd00::2]:0"),
            flow("[fd01::]:1", "[fd00::ffff:0:0:1]:0"),
        ] {
            let (forward, reverse) = (Key::of(&flow).unwrap(), Key::of(&flow.reversed()).unwrap());
            assert_eq!(forward.words, reverse.words);
            assert_eq!(forward.source, 1 - reverse.source);
            assert_eq!(forward.flow(), flow);
            assert_eq!(reverse.flow(), flow.reversed());
            assert_eq!(hashing.candidates(&forward, 100), hashing.candidates(&reverse, 100));
        }
        assert_eq!(Key::of(&flow("10.0.0.1:80", "[fd00::2]:79")), None);
    }

    #[test]
    fn buckets_are_spread_evenly_and_tags_do_not_follow_from_them() {
        let (hashing, buckets) = (Hashing::from_seed(7), 64_u32);
        let mut first = vec![0; buckets as usize];
        let mut second = vec![0; buckets as usize];
        let mut tags_in_one = std::collections::HashSet::new();
        for port in 0..64_000_u16 {
            let key = Key::of(&Flow {
                scope: 1,
                protocol: 17,
                source: SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), port),
                destination: SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), 53),
            });
            let candidates = hashing.candidates(&key.unwrap(), buckets);
            assert_ne!(candidates.buckets[0], candidates.buckets[1]);
            first[candidates.buckets[0] as usize] += 1;
            second[candidates.buckets[1] as usize] += 1;
            if candidates.buckets[0] == 5 {
                tags_in_one.insert(candidates.tag);
            }
        }
        // 1000 each on average, a standard deviation of 31.
        assert!(
            first.iter().chain(&second).all(|&count| (800..1200).contains(&count)),
            "{first:?} {second:?}"
        );
        assert!(tags_in_one.len() > 950, "{} tags", tags_in_one.len());
    }
}
