//! Keys of sessions: canonical form, hash and buckets, as in `sessions.h`.

use crate::layout;
use sluice_types::{ipv6_from_halves, ipv6_halves};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const KEY_WORDS_MAX: usize = layout::SESSION_KEY6_WORDS as usize;

/// Packets of one direction: what a session is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The VNI, 24 bits; 0 for what is outside of all VPCs.
    pub vni: u32,
    /// IP protocol number.
    pub protocol: u8,
    /// Address and port of the sender. ICMP and ICMPv6 echo: the identifier is
    /// both ports. Protocols without ports: 0.
    pub source: SocketAddr,
    /// Of the receiver, of the same family.
    pub destination: SocketAddr,
}

impl Flow {
    /// Packets of the other direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { source: self.destination, destination: self.source, ..self }
    }
}

/// A family's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Family {
    /// Words of a key.
    pub(super) const fn key_words(self) -> usize {
        match self {
            Self::Ipv4 => layout::SESSION_KEY4_WORDS as usize,
            Self::Ipv6 => layout::SESSION_KEY6_WORDS as usize,
        }
    }

    /// Of `struct session_config`'s arrays by family.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Ipv4 => 0,
            Self::Ipv6 => 1,
        }
    }
}

/// A flow's canonical key, and which of the endpoints sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub family: Family,
    /// IPv4: the first two, the others 0.
    pub words: [u64; KEY_WORDS_MAX],
    pub source: u32,
}

impl Key {
    /// `None` where the families differ.
    pub(super) fn of(flow: &Flow) -> Option<Self> {
        let ends = [flow.source, flow.destination].map(|end| (end.ip(), end.port()));
        let (family, source) = match (ends[0].0, ends[1].0) {
            (IpAddr::V4(_), IpAddr::V4(_)) => (Family::Ipv4, u32::from(ends[0] > ends[1])),
            (IpAddr::V6(_), IpAddr::V6(_)) => (Family::Ipv6, u32::from(ends[0] > ends[1])),
            _ => return None,
        };
        let [low, high] = if source == 0 { ends } else { [ends[1], ends[0]] };
        let mut words = [0; KEY_WORDS_MAX];
        words[0] = u64::from(flow.vni & 0xff_ffff)
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

    /// The flow whose sender is endpoint `source`.
    pub(super) fn flow(&self) -> Flow {
        let [who, first, ..] = self.words;
        let addresses: [IpAddr; 2] = match self.family {
            Family::Ipv4 => {
                [Ipv4Addr::from(first as u32).into(), Ipv4Addr::from((first >> 32) as u32).into()]
            }
            Family::Ipv6 => {
                let [_, a, b, c, d] = self.words;
                [ipv6_from_halves(a, b).into(), ipv6_from_halves(c, d).into()]
            }
        };
        let low = SocketAddr::new(addresses[0], (who >> layout::SESSION_PORT0_SHIFT) as u16);
        let high = SocketAddr::new(addresses[1], (who >> layout::SESSION_PORT1_SHIFT) as u16);
        let (source, destination) = if self.source == 0 { (low, high) } else { (high, low) };
        let protocol = (who >> layout::SESSION_PROTOCOL_SHIFT) as u8;
        Flow { vni: who as u32 & 0xff_ffff, protocol, source, destination }
    }
}

/// The secrets of the hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashing {
    pub hash_key: [u64; KEY_WORDS_MAX],
    pub seed: u64,
}

/// Where a key may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// In the order of searching.
    pub buckets: [u32; 2],
    pub tag: u16,
}

impl Hashing {
    /// All secrets from one (splitmix64).
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

    fn hash(&self, key: &Key) -> u64 {
        let words = key.words.iter().zip(self.hash_key).take(key.family.key_words());
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

    /// The places of a key among `buckets`, 2 or more.
    pub(super) fn place(&self, key: &Key, buckets: u32) -> Place {
        let hash = self.hash(key);
        let one = (((hash & 0xffff_ffff) * u64::from(buckets)) >> 32) as u32;
        let mut two = (((hash >> 32) * u64::from(buckets)) >> 32) as u32;
        if two == one {
            two = if one + 1 == buckets { 0 } else { one + 1 };
        }
        Place { buckets: [one, two], tag: (hash.wrapping_mul(0xa076_1d64_78bd_642f) >> 48) as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(source: &str, destination: &str) -> Flow {
        Flow {
            vni: 0xab_cdef,
            protocol: 6,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    #[test]
    fn both_directions_have_one_key_and_lead_back_to_their_flows() {
        let hashing = Hashing::from_seed(1);
        for flow in [
            flow("10.0.0.1:80", "10.0.0.2:79"),
            flow("10.0.0.1:80", "10.0.0.1:79"),
            flow("255.255.255.255:65535", "0.0.0.0:0"),
            flow("[fd00::1]:1", "[fd00::2]:0"),
            flow("[fd00::2]:1", "[fd00::2]:0"),
            flow("[fd01::]:1", "[fd00::ffff:0:0:1]:0"),
        ] {
            let (there, back) = (Key::of(&flow).unwrap(), Key::of(&flow.reversed()).unwrap());
            assert_eq!(there.words, back.words);
            assert_eq!(there.source, 1 - back.source);
            assert_eq!(there.flow(), flow);
            assert_eq!(back.flow(), flow.reversed());
            assert_eq!(hashing.place(&there, 100), hashing.place(&back, 100));
        }
        assert_eq!(Key::of(&flow("10.0.0.1:80", "[fd00::2]:79")), None);
    }

    #[test]
    fn places_are_spread_evenly_and_tags_do_not_follow_from_them() {
        let (hashing, buckets) = (Hashing::from_seed(7), 64_u32);
        let mut first = vec![0; buckets as usize];
        let mut second = vec![0; buckets as usize];
        let mut tags_in_one = std::collections::HashSet::new();
        for port in 0..64_000_u16 {
            let key = Key::of(&Flow {
                vni: 1,
                protocol: 17,
                source: SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), port),
                destination: SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), 53),
            });
            let place = hashing.place(&key.unwrap(), buckets);
            assert_ne!(place.buckets[0], place.buckets[1]);
            first[place.buckets[0] as usize] += 1;
            second[place.buckets[1] as usize] += 1;
            if place.buckets[0] == 5 {
                tags_in_one.insert(place.tag);
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
