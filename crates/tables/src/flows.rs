//! Flow statistics, by which elephants are distinguished from mice (Zeta sections IV-C and IV-D). Packets
//! count flows in the cells of `bpf/include/layout/flow_layout.h`; the agent configures what an elephant is
//! and reads the counts. This module changes with that header.
//!
//! All state is in the table's memory, so a successor adopts it as it is, without repair. A cell holds four
//! flows. A table never grows; when it is full, the flows with the fewest bytes are replaced.

use crate::layout::{self, flow_bucket, flow_entry, flow_table};
use crate::seed::random_seed;
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
/// Attempts to read an entry that packets change meanwhile.
const READS_MAX: u32 = 8;
/// Largest threshold, and the largest number of bytes that is counted: 64 GiB - 1.
pub const BYTES_MAX: u64 = layout::FLOW_BYTES_MASK;

/// A table of flow statistics. Clones refer to the same table.
#[derive(Clone, Debug)]
pub struct Flows {
    memory: Memory,
    table: flow_table,
}

/// Definition of an elephant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Time for which a flow's bytes are added up, beginning with its first packet: 1 ms to 26 days, kept as
    /// a whole number of ticks of 16.8 ms, at least one.
    pub period: Duration,
    /// A flow is an elephant from this many bytes in a period on: 1 to [`BYTES_MAX`].
    pub elephant_bytes: u64,
}

/// Which flows packets report to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// None. Flows are not counted either.
    Off,
    /// Elephants, once a period. A VPC may have its own threshold
    /// ([`Vrf::elephant_bytes`](crate::Vrf::elephant_bytes)).
    Detect(FlowConfig),
    /// Each flow at its first packet of a period, whatever the thresholds: for overloaded gateways (Zeta
    /// section IV-C). Flows of VPCs with [`Vrf::NEVER_ELEPHANTS`](crate::Vrf::NEVER_ELEPHANTS) are not
    /// reported.
    Every {
        /// Length of a period, as in [`FlowConfig`].
        period: Duration,
    },
}

/// Key of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// VNI of the tenant's network.
    pub vni: Vni,
    /// IP protocol number.
    pub protocol: u8,
    /// Source address, of the same family as the destination.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Source port; 0 if the protocol has no ports.
    pub source_port: u16,
    /// Destination port; 0 if the protocol has no ports.
    pub destination_port: u16,
}

/// Counts of a flow in its present period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Index of the cell that counts the flow.
    pub cell: u32,
    /// Part of the flow's hash. Together with `cell` it identifies the flow.
    pub name: u32,
    /// Packets that were counted, at most 2^21 - 1. Of dense packets one in 8 to 64 is counted
    /// (`flow_queue.h`).
    pub packets: u32,
    /// Bytes for which these packets were counted, at most [`BYTES_MAX`].
    pub bytes: u64,
    /// The flow was reported as an elephant in this period.
    pub reported: bool,
    /// Time since the period began, in whole ticks.
    pub age: Duration,
}

/// Number of flows in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTableUsage {
    /// Flows that the table can hold.
    pub capacity: u64,
    /// Flows within their period.
    pub live: u64,
    /// Other occupied entries, which are reused first: the period is over, or no packet has been counted yet.
    pub expired: u64,
    /// Elephants among the live flows.
    pub elephants: u64,
}

impl Flows {
    /// Number of cells of a table for `flows` flows. If `flows` is twice the number of concurrent flows, almost
    /// no flow is lost to a full bucket.
    #[must_use]
    pub fn cells_for(flows: u64) -> u64 {
        1 + flows.div_ceil(u64::from(WAYS)).max(1)
    }

    /// Adopts the table that another agent left, or lays out a new one with a random seed if there is no
    /// table of this layout. In that case only the counts of one period are lost.
    ///
    /// # Errors
    /// [`Error::TooSmall`] for fewer than two cells; [`Error::Invalid`] if the kernel has no random numbers.
    pub fn open(memory: Memory) -> Result<Self, Error> {
        Self::adopt(memory.clone()).or_else(|_| Self::lay_out(memory, random_seed()?))
    }

    /// Lays out an empty table in memory that no packet uses yet. Packets count nothing before
    /// [`Flows::configure`]. `seed` is random and a secret: a sender that knows it can choose flows that
    /// share an entry.
    ///
    /// # Errors
    /// [`Error::TooSmall`] for fewer than two cells.
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

    /// Takes over the table that another agent laid out, including counts and configuration.
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

    /// The memory that holds the table.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Sets which flows are reported, by one store; it applies from the next counted packet on. Periods that
    /// have begun end by the new policy. A flow that was reported in its period is not reported again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a value is out of bounds. Nothing has changed then.
    pub fn configure(&self, policy: &Policy) -> Result<(), Error> {
        let word = match *policy {
            Policy::Off => 0,
            Policy::Detect(FlowConfig { period, elephant_bytes }) => {
                if elephant_bytes == 0 || elephant_bytes > BYTES_MAX {
                    return Err(Error::Invalid(format!(
                        "the elephant threshold must be 1 to {BYTES_MAX} bytes a period, not {elephant_bytes}"
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
                "the period of flows must be 1 ms to {} days, not {:?}",
                PERIOD_TICKS_MAX * TICK_NS / 86_400_000_000_000,
                period
            )));
        }
        let ticks = ((period_ns as u64 + TICK_NS / 2) / TICK_NS).max(1);
        Ok(ticks << layout::FLOW_PERIOD_SHIFT)
    }

    /// The configured policy, with the period in whole ticks.
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

    /// The policy word, and the period in it in ticks.
    fn policy_word(&self) -> (u64, u32) {
        let word = self.memory.load64(0, offset_of!(flow_table, policy));
        (word, (word >> layout::FLOW_PERIOD_SHIFT) as u32 & layout::FLOW_PERIOD_MASK)
    }

    /// The hash by which packets find the flow: `flow_hash` in `flows.h`.
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

    /// Counts of a flow; `None` if it is not within its period at `now_ns` (`CLOCK_MONOTONIC`).
    #[must_use]
    pub fn find(&self, key: &FlowKey, now_ns: u64) -> Option<Flow> {
        let hash = self.hash(key);
        let cell = 1 + (((hash >> 32) * u64::from(self.table.buckets)) >> 32) as u32;
        let bits = hash & ((1 << layout::FLOW_NAME_BITS) - 1);
        let name = if bits == 0 { 1 } else { bits as u32 };
        (0..WAYS).filter_map(|way| self.flow(cell, way, now_ns)).find(|flow| flow.name == name)
    }

    /// The `count` flows with the most bytes in their present period, the largest first. Reads the whole
    /// table while packets write it.
    #[must_use]
    pub fn top(&self, count: usize, now_ns: u64) -> Vec<Flow> {
        let mut heap = BinaryHeap::new();
        for (cell, way) in self.entries() {
            let Some(flow) = self.flow(cell, way, now_ns) else { continue };
            heap.push(Reverse((flow.bytes, cell, way)));
            if heap.len() > count {
                heap.pop();
            }
        }
        // Since then a flow may have been counted again, or replaced.
        let mut flows: Vec<Flow> =
            heap.into_iter().filter_map(|Reverse((_, cell, way))| self.flow(cell, way, now_ns)).collect();
        flows.sort_by_key(|flow| Reverse(flow.bytes));
        flows
    }

    /// Number of flows in the table at `now_ns` (`CLOCK_MONOTONIC`). Reads the whole table.
    #[must_use]
    pub fn usage(&self, now_ns: u64) -> FlowTableUsage {
        let mut usage = FlowTableUsage {
            capacity: u64::from(self.table.buckets) * u64::from(WAYS),
            ..FlowTableUsage::default()
        };
        for (cell, way) in self.entries() {
            match self.flow(cell, way, now_ns) {
                Some(flow) => {
                    usage.live += 1;
                    usage.elephants += u64::from(flow.reported);
                }
                None => usage.expired += u64::from(self.memory.load64(cell, owner_at(way)) != 0),
            }
        }
        usage
    }

    fn entries(&self) -> impl Iterator<Item = (u32, u32)> {
        (1..=self.table.buckets).flat_map(|cell| (0..WAYS).map(move |way| (cell, way)))
    }

    /// The flow of an entry, if it is within its period. `None` also if the entry's owner keeps changing.
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
            let has_expired = age.wrapping_add(layout::FLOW_SKEW) >= period.wrapping_add(layout::FLOW_SKEW);
            if has_expired || count >> layout::FLOW_COUNT_GENERATION_SHIFT != generation {
                return None;
            }
            // The processor that began the period may have read a later time than this one.
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

/// Offset of an entry's owner word in its cell.
fn owner_at(way: u32) -> usize {
    offset_of!(flow_bucket, entry) + way as usize * size_of::<flow_entry>() + offset_of!(flow_entry, owner)
}

fn split(half: u64) -> (u32, u32) {
    (half as u32, (half >> 32) as u32)
}

/// NH: the sum of the products of pairs, to each word of which a word of the secret is added (RFC 4418
/// section 5.2.2).
fn nh(secret: &[u32], pairs: &[(u32, u32)]) -> u64 {
    let products = secret
        .chunks_exact(2)
        .zip(pairs)
        .map(|(secret, (a, b))| u64::from(a.wrapping_add(secret[0])) * u64::from(b.wrapping_add(secret[1])));
    products.fold(0, u64::wrapping_add)
}

/// SplitMix: generates many random words from one (Steele, Lea and Flood, OOPSLA 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
