//! The Rust reader. Exact match is the algorithm of `bpf/include/tables.h`, load
//! for load; routes are found by the writer's own decoder of lists and buckets,
//! which is another way to the same answers.
//!
//! A grace period by `membarrier` waits for packets, not for threads: where a
//! reader works beside the writer, the writer's [`Grace`](crate::Grace) must wait
//! for it too, as [`WaitForThreads`](crate::WaitForThreads) does.

use crate::exact::{Hashing, Key, buckets_of, is_filled};
use crate::layout::{self, exact_bucket, exact_conflict, exact_root, next_hop};
use crate::lpm::{self, Family, Root};
use crate::memory::Memory;
use crate::spec::{self, Target};
use sluice_types::{MacAddr, Vni};
use std::mem::offset_of;
use std::net::IpAddr;

/// `EXACT_RETRIES` of `tables.h`.
const RETRIES: usize = 4;

/// What an exact match leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The instance's MAC address; zero for nodes, VRFs and ports by interface.
    pub mac: MacAddr,
    /// The cell that the entry leads to.
    pub cell: u32,
}

/// The answer of an exact match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Not there.
    Miss,
    /// The table changed for longer than a lookup retries.
    Busy,
    /// There.
    Hit(Hit),
}

/// What a cell is that an exact match leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// Another node.
    Vtep(IpAddr),
    /// A vIP.
    Vip(IpAddr),
    /// A port of this host, by interface.
    Port(u32),
    /// A direct path.
    Direct {
        /// VTEP of the host that packets go to.
        host: IpAddr,
        /// The VNI that they are encapsulated with.
        vni: u32,
    },
}

/// Reads tables as packets do.
#[derive(Clone, Debug)]
pub struct Reader {
    memory: Memory,
}

enum Scan {
    Found(u64, u32),
    Absent,
    Changed,
}

impl Reader {
    /// Of tables that are laid out in this memory.
    pub fn new(memory: Memory) -> Self {
        Self { memory }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    fn hashing(&self) -> Hashing {
        Hashing {
            seed: self.root_word(offset_of!(exact_root, seed)),
            digest_mask: self.root_word(offset_of!(exact_root, digest_mask)),
        }
    }

    fn root_word(&self, offset: usize) -> u64 {
        self.memory.load64(layout::CELL_EXACT_ROOT, offset)
    }

    fn scan(&self, bucket: u32, word: u64) -> Scan {
        for slot in 0..layout::EXACT_SLOTS as usize {
            let key = offset_of!(exact_bucket, key) + slot * 8;
            let seen = self.memory.load64(bucket, key);
            if seen & layout::EXACT_KEY_MASK != word {
                continue;
            }
            let value = self.memory.load64(bucket, offset_of!(exact_bucket, value) + slot * 8);
            let next = self.memory.load32(bucket, offset_of!(exact_bucket, next) + slot * 4);
            if self.memory.load64(bucket, key) == seen {
                return Scan::Found(value, next);
            }
            return Scan::Changed;
        }
        Scan::Absent
    }

    /// Raw value and next; `Err` says that the table was busy.
    fn raw(&self, word: u64, hash: u64) -> Result<Option<(u64, u32)>, ()> {
        for _ in 0..RETRIES {
            let run = self.root_word(offset_of!(exact_root, buckets));
            let (first, count) = (run as u32, (run >> 32) as u32);
            if count == 0 || !self.memory.contains(first, count) {
                return Ok(None);
            }
            let (one, two) = buckets_of(hash, count);
            let version = |cell| self.memory.load32(cell, offset_of!(exact_bucket, version));
            let before = version(first + one);
            let mut found = self.scan(first + one, word);
            if matches!(found, Scan::Absent) {
                found = self.scan(first + two, word);
            }
            match found {
                Scan::Found(value, next) => return Ok(Some((value, next))),
                Scan::Absent if version(first + one) == before => return Ok(None),
                Scan::Absent | Scan::Changed => {}
            }
        }
        Err(())
    }

    fn conflict(&self, hashing: &Hashing, word: u64, address: (u64, u64)) -> Option<(u64, u32)> {
        let run = self.root_word(offset_of!(exact_root, conflicts));
        let (first, count) = (run as u32, (run >> 32) as u32);
        if count == 0 || !self.memory.contains(first, count) {
            return None;
        }
        let home = hashing.conflict_home(word, address, count);
        for i in 0..layout::EXACT_CONFLICT_PROBES {
            let cell = first + (home + i) % count;
            let load = |offset| self.memory.load64(cell, offset);
            let seen = load(offset_of!(exact_conflict, key));
            if seen & layout::EXACT_KEY_MASK != word
                || !is_filled(seen)
                || load(offset_of!(exact_conflict, address)) != address.0
                || load(offset_of!(exact_conflict, address) + 8) != address.1
            {
                continue;
            }
            let value = load(offset_of!(exact_conflict, value));
            let next = self.memory.load32(cell, offset_of!(exact_conflict, next));
            if load(offset_of!(exact_conflict, key)) == seen {
                return Some((value, next));
            }
        }
        None
    }

    pub(crate) fn lookup(&self, key: Key) -> Lookup {
        let hashing = self.hashing();
        let key = hashing.prepare(key);
        let hit = |value: u64, next: u32| {
            let mac = MacAddr::from_u64(value & layout::EXACT_MAC_MASK);
            Lookup::Hit(Hit { mac, cell: next & layout::CELL_INDEX_MASK })
        };
        let (value, next) = match self.raw(key.word, key.hash) {
            Err(()) => return Lookup::Busy,
            Ok(None) => return Lookup::Miss,
            Ok(Some(found)) => found,
        };
        let Some(address) = key.full else { return hit(value, next) };
        if next & layout::EXACT_CONFLICT != 0
            && let Some((value, next)) = self.conflict(&hashing, key.word, address)
        {
            return hit(value, next);
        }
        if (value ^ key.check) >> layout::EXACT_CHECK_SHIFT != 0 {
            return Lookup::Miss;
        }
        hit(value, next)
    }

    /// An address; VNI 0 is the underlay.
    pub fn find(&self, vni: u32, address: IpAddr) -> Lookup {
        self.lookup(Key::Ip { vni, address })
    }

    /// A small integer: `(VNI, 0)` a VRF, `(0, ifindex)` a port.
    pub fn find_index(&self, vni: u32, id: u32) -> Lookup {
        self.lookup(Key::Index { vni, id })
    }

    /// The leaf word of an address in a VNI's routes; 0: no route.
    pub fn leaf(&self, vni: Vni, address: IpAddr) -> u32 {
        let Lookup::Hit(Hit { cell, .. }) = self.find_index(vni.get(), 0) else { return 0 };
        let (family, bits) = lpm::top_bits(address);
        let offset = match family {
            Family::V4 => offset_of!(layout::vrf, lpm4),
            Family::V6 => offset_of!(layout::vrf, lpm6),
        };
        lpm::find(&self.memory, Root { cell, offset, family }, bits).unwrap_or(0)
    }

    /// What the routes of a VNI do with an address.
    pub fn route(&self, vni: Vni, address: IpAddr) -> Option<Target> {
        Target::from_leaf(self.leaf(vni, address))
    }

    /// What stands in the cell of a hit.
    pub fn next_hop(&self, cell: u32) -> Option<NextHop> {
        if !self.memory.contains(cell, 1) {
            return None;
        }
        let hop: next_hop = self.memory.read(cell);
        let address = spec::address_from(hop.address, u32::from(hop.flags) & layout::NEXT_HOP_IPV6 != 0);
        match u32::from(hop.kind) {
            layout::NEXT_HOP_VTEP => Some(NextHop::Vtep(address)),
            layout::NEXT_HOP_VIP => Some(NextHop::Vip(address)),
            layout::NEXT_HOP_DIRECT => Some(NextHop::Direct { host: address, vni: hop.vni }),
            layout::NEXT_HOP_PORT => {
                Some(NextHop::Port(self.memory.load32(cell, offset_of!(layout::port, ifindex))))
            }
            _ => None,
        }
    }
}
