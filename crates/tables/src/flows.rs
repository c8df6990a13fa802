//! Flow statistics, by which elephants are told from mice (Zeta sections IV-C
//! and IV-D): packets count flows in the cells of `bpf/include/flows.h`, the
//! agent decides what an elephant is and reads the counts.
//!
//! Memory is all there is: nothing here is kept beside it, so a successor adopts
//! the table as it is, with nothing to repair. A table has four flows a cell and
//! never grows; what is too much for it are its coldest flows.

use crate::layout::{self, flow_bucket, flow_entry, flow_table};
use crate::{Error, Memory};
use sluice_types::{Vni, ipv6_halves};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem::{offset_of, size_of};
use std::net::IpAddr;
use std::time::Duration;

#[cfg(test)]
mod tests;

const WAYS: u32 = layout::FLOW_WAYS;
const TICK_NS: u64 = 1 << layout::FLOW_TICK_SHIFT;
const PERIOD_TICKS_MAX: u64 = layout::FLOW_PERIOD_MASK as u64;
const EVERY: u64 = 1 << layout::FLOW_EVERY_SHIFT;
/// How often an entry is read that packets change meanwhile.
const READS_MAX: u32 = 8;
/// Largest threshold, and the count at which bytes stop: 64 GiB - 1.
pub const BYTES_MAX: u64 = layout::FLOW_BYTES_MASK;

/// A table of flow statistics. Clones name the same table.
#[derive(Clone, Debug)]
pub struct Flows {
    memory: Memory,
    table: flow_table,
}

/// What an elephant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// How long a flow's bytes are added up, from its first packet on: 1 ms to
    /// 26 days, kept in ticks of 16.8 ms, at least one.
    pub period: Duration,
    /// Bytes in a period from which a flow is an elephant: 1 to [`BYTES_MAX`].
    pub elephant_bytes: u64,
}

/// What is told of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing: they are not even counted.
    Off,
    /// Elephants, once a period. A VPC may have a threshold of its own
    /// ([`Vrf::elephant_bytes`](crate::Vrf::elephant_bytes)).
    Detect(FlowConfig),
    /// Each flow on its first packet of a period, whatever the thresholds: for
    /// gateways that are overloaded (Zeta section IV-C). Only flows of VPCs that
    /// want none to be told ([`Vrf::NEVER_ELEPHANTS`](crate::Vrf::NEVER_ELEPHANTS))
    /// still are not.
    Every {
        /// As in [`FlowConfig`].
        period: Duration,
    },
}

/// What flows are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The tenant's network.
    pub vni: Vni,
    /// IP protocol number.
    pub protocol: u8,
    /// Source; of the family of the destination.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// 0 where the protocol has none.
    pub source_port: u16,
    /// 0 where the protocol has none.
    pub destination_port: u16,
}

/// A flow's counts in its present period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The cell that counts it.
    pub cell: u32,
    /// Part of its hash; with `cell` it names the flow.
    pub name: u32,
    /// Packets that were counted, where packets are dense one of 8 or 16 (`flow_queue.h`); stays at 2^21 - 1.
    pub packets: u32,
    /// Bytes that these were counted for; stays at [`BYTES_MAX`].
    pub bytes: u64,
    /// Whether a packet was told that the flow is an elephant.
    pub reported: bool,
    /// Since the period began, in whole ticks.
    pub age: Duration,
}

/// How full a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFill {
    /// Flows that the table has room for.
    pub capacity: u64,
    /// Flows within their period. The others' entries are taken first.
    pub live: u64,
    /// Flows whose period is over.
    pub over: u64,
    /// Elephants among the live ones.
    pub elephants: u64,
}

impl Flows {
    /// Cells of a table that has room for so many flows. Twice as many flows as
    /// are there at a time lose next to nothing to full buckets.
    #[must_use]
    pub fn cells_for(flows: u64) -> u64 {
        1 + flows.div_ceil(u64::from(WAYS)).max(1)
    }

    /// Adopts the table that a predecessor left, or lays out a new one with a
    /// random seed where there is none that this program knows. The counts of
    /// one period are all that is lost then.
    ///
    /// # Errors
    /// [`Error::TooSmall`] below two cells; [`Error::Invalid`] if the kernel has
    /// no random numbers.
    pub fn open(memory: Memory) -> Result<Self, Error> {
        Self::adopt(memory.clone()).or_else(|_| Self::lay_out(memory, crate::random_seed()?))
    }

    /// Lays out an empty table in memory that no packet uses yet. Nothing is
    /// counted before [`Flows::configure`]. `seed` is random, and a secret: who
    /// knows it can choose flows that share an entry.
    ///
    /// # Errors
    /// [`Error::TooSmall`] below two cells.
    pub fn lay_out(memory: Memory, seed: u64) -> Result<Self, Error> {
        let cells = memory.cells();
        if cells < 2 {
            return Err(Error::TooSmall { found_cells: u64::from(cells), needed_cells: 2 });
        }
        memory.store64(0, offset_of!(flow_table, magic), 0);
        memory.zero(0, cells);
        let mut state = seed;
        let mut table = flow_table {
            layout_version: layout::FLOWS_LAYOUT_VERSION,
            buckets: cells - 1,
            secret: std::array::from_fn(|_| (split_mix(&mut state) >> 32) as u32),
            ..Default::default()
        };
        memory.write(0, &table);
        table.magic = layout::FLOWS_MAGIC;
        memory.store64(0, offset_of!(flow_table, magic), table.magic);
        Ok(Self { memory, table })
    }

    /// Takes over the table that a predecessor laid out, counts and configuration included.
    ///
    /// # Errors
    /// [`Error::NotTables`], [`Error::LayoutVersion`], or [`Error::Capacity`] if
    /// the memory does not hold such a table.
    pub fn adopt(memory: Memory) -> Result<Self, Error> {
        if memory.cells() == 0 {
            return Err(Error::NotTables);
        }
        let table = memory.read::<flow_table>(0);
        if table.magic != layout::FLOWS_MAGIC {
            return Err(Error::NotTables);
        }
        if table.layout_version != layout::FLOWS_LAYOUT_VERSION {
            return Err(Error::LayoutVersion {
                found: table.layout_version,
                known: layout::FLOWS_LAYOUT_VERSION,
            });
        }
        let (laid_out, found) = (u64::from(table.buckets) + 1, u64::from(memory.cells()));
        if laid_out != found || table.buckets == 0 {
            return Err(Error::Capacity { laid_out, found });
        }
        Ok(Self { memory, table })
    }

    /// The memory that the table is in.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Says what is told of flows, from the next packet that is counted on, in one store. Periods
    /// that have begun end by the new rule; a flow that was reported in its
    /// period is not reported again.
    ///
    /// # Errors
    /// [`Error::Invalid`]; then nothing is changed.
    pub fn configure(&self, policy: &Policy) -> Result<(), Error> {
        let word = match *policy {
            Policy::Off => 0,
            Policy::Detect(FlowConfig { period, elephant_bytes }) => {
                if elephant_bytes == 0 || elephant_bytes > BYTES_MAX {
                    return Err(Error::Invalid(format!(
                        "a flow is an elephant from 1 to {BYTES_MAX} bytes a period on, not {elephant_bytes}"
                    )));
                }
                Self::period_bits(period)? | elephant_bytes
            }
            Policy::Every { period } => Self::period_bits(period)? | EVERY,
        };
        self.memory.store64(0, offset_of!(flow_table, policy), word);
        Ok(())
    }

    fn period_bits(period: Duration) -> Result<u64, Error> {
        let period_ns = period.as_nanos();
        if !(1_000_000..=u128::from(PERIOD_TICKS_MAX * TICK_NS)).contains(&period_ns) {
            return Err(Error::Invalid(format!(
                "a flow's period is 1 ms to {} days, not {:?}",
                PERIOD_TICKS_MAX * TICK_NS / 86_400_000_000_000,
                period
            )));
        }
        let ticks = ((period_ns as u64 + TICK_NS / 2) / TICK_NS).max(1);
        Ok(ticks << layout::FLOW_PERIOD_SHIFT)
    }

    /// What is configured, the period in whole ticks.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let (word, ticks) = self.policy_word();
        let period = Duration::from_nanos(u64::from(ticks) * TICK_NS);
        match ticks {
            0 => Policy::Off,
            _ if word & EVERY != 0 => Policy::Every { period },
            _ => Policy::Detect(FlowConfig { period, elephant_bytes: word & layout::FLOW_BYTES_MASK }),
        }
    }

    /// The word, and the period in it.
    fn policy_word(&self) -> (u64, u32) {
        let word = self.memory.load64(0, offset_of!(flow_table, policy));
        (word, (word >> layout::FLOW_PERIOD_SHIFT) as u32 & layout::FLOW_PERIOD_MASK)
    }

    /// The hash by which packets find the flow: `flow_hash` of `flows.h`.
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        let halves = |address| match address {
            IpAddr::V4(v4) => (0, 0xffff_0000_0000 | u64::from(u32::from(v4))),
            IpAddr::V6(v6) => ipv6_halves(v6),
        };
        let (source, destination) = (halves(key.source), halves(key.destination));
        let rest = (
            key.vni.get() << 8 | u32::from(key.protocol),
            u32::from(key.source_port) << 16 | u32::from(key.destination_port),
        );
        let secret = &self.table.secret;
        let mut sum = match (key.source, key.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                nh(&secret[6..], &[(source.into(), destination.into()), rest])
            }
            _ => nh(
                secret,
                &[split(source.0), split(source.1), split(destination.0), split(destination.1), rest],
            ),
        };
        sum ^= sum >> 32;
        sum = sum.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^= sum >> 29;
        sum = sum.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        sum ^ sum >> 32
    }

    /// A flow's counts, if it is within its period at `now_ns` (`CLOCK_MONOTONIC`).
    #[must_use]
    pub fn find(&self, key: &FlowKey, now_ns: u64) -> Option<Flow> {
        let hash = self.hash(key);
        let cell = 1 + (((hash >> 32) * u64::from(self.table.buckets)) >> 32) as u32;
        let bits = hash & ((1 << layout::FLOW_NAME_BITS) - 1);
        let name = if bits == 0 { 1 } else { bits as u32 };
        (0..WAYS).filter_map(|way| self.flow(cell, way, now_ns)).find(|flow| flow.name == name)
    }

    /// The flows of most bytes in their present period, the largest first, at
    /// most `count`. Reads the whole table while packets write it.
    #[must_use]
    pub fn top(&self, count: usize, now_ns: u64) -> Vec<Flow> {
        let mut heap = BinaryHeap::new();
        for (cell, way) in self.places() {
            let Some(flow) = self.flow(cell, way, now_ns) else { continue };
            heap.push(Reverse((flow.bytes, cell, way)));
            if heap.len() > count {
                heap.pop();
            }
        }
        // A flow may have gone on, or gone, since.
        let mut flows: Vec<Flow> =
            heap.into_iter().filter_map(|Reverse((_, cell, way))| self.flow(cell, way, now_ns)).collect();
        flows.sort_by_key(|flow| Reverse(flow.bytes));
        flows
    }

    /// How full the table is at `now_ns` (`CLOCK_MONOTONIC`). Reads all of it.
    #[must_use]
    pub fn fill(&self, now_ns: u64) -> FlowFill {
        let mut fill =
            FlowFill { capacity: u64::from(self.table.buckets) * u64::from(WAYS), ..FlowFill::default() };
        for (cell, way) in self.places() {
            match self.flow(cell, way, now_ns) {
                Some(flow) => {
                    fill.live += 1;
                    fill.elephants += u64::from(flow.reported);
                }
                None => fill.over += u64::from(self.memory.load64(cell, owner_at(way)) != 0),
            }
        }
        fill
    }

    fn places(&self) -> impl Iterator<Item = (u32, u32)> {
        (1..=self.table.buckets).flat_map(|cell| (0..WAYS).map(move |way| (cell, way)))
    }

    /// The flow of an entry, if it is within its period. An entry that changes
    /// hands all the while is nobody's.
    fn flow(&self, cell: u32, way: u32, now_ns: u64) -> Option<Flow> {
        let period = self.policy_word().1;
        for _ in 0..READS_MAX {
            let owner = self.memory.load64(cell, owner_at(way));
            let count = self.memory.load64(cell, owner_at(way) + offset_of!(flow_entry, count));
            if owner == 0 {
                return None;
            }
            if self.memory.load64(cell, owner_at(way)) != owner {
                continue;
            }
            let generation = owner >> layout::FLOW_GENERATION_SHIFT & u64::from(layout::FLOW_GENERATION_MASK);
            let age = ((now_ns >> layout::FLOW_TICK_SHIFT) as u32).wrapping_sub(owner as u32);
            let over = age.wrapping_add(layout::FLOW_SKEW) >= period.wrapping_add(layout::FLOW_SKEW);
            if over || count >> layout::FLOW_COUNT_GENERATION_SHIFT != generation {
                return None;
            }
            // The clock of the packet that began the period may be ahead of ours.
            let age_ticks = if age > u32::MAX - layout::FLOW_SKEW { 0 } else { age };
            return Some(Flow {
                cell,
                name: (owner >> layout::FLOW_NAME_SHIFT) as u32,
                packets: (count >> layout::FLOW_PACKETS_SHIFT) as u32 & layout::FLOW_PACKETS_MASK,
                bytes: count & layout::FLOW_BYTES_MASK,
                reported: count & layout::FLOW_REPORTED != 0,
                age: Duration::from_nanos(u64::from(age_ticks) * TICK_NS),
            });
        }
        None
    }
}

fn owner_at(way: u32) -> usize {
    offset_of!(flow_bucket, entry) + way as usize * size_of::<flow_entry>() + offset_of!(flow_entry, owner)
}

fn split(half: u64) -> (u32, u32) {
    (half as u32, (half >> 32) as u32)
}

/// Sum of products of pairs, each word with its own of the secret (RFC 4418 section 5.2.2).
fn nh(secret: &[u32], pairs: &[(u32, u32)]) -> u64 {
    let products = secret
        .chunks_exact(2)
        .zip(pairs)
        .map(|(secret, (a, b))| u64::from(a.wrapping_add(secret[0])) * u64::from(b.wrapping_add(secret[1])));
    products.fold(0, u64::wrapping_add)
}

/// Makes many random words of one (Steele, Lea and Flood, OOPSLA 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
