//! Meters: token buckets by id that packets take from, in the cells of
//! `bpf/include/meters.h`. The agent says how much, and reads what is left.
//!
//! Every limit is one word that holds all there is to it, so a change is seen
//! whole or not at all. Nothing is kept beside the memory: a successor adopts
//! the meters as they are and sets those again that have changed.

use crate::layout::{self, meter, meter_table};
use crate::{Error, Memory};
use limit::{Kind, Limit};
use std::mem::{offset_of, size_of};

mod limit;
#[cfg(test)]
mod tests;

pub use limit::{
    BITS_PER_S_MAX, BITS_PER_S_MIN, BURST_BYTES_MIN, PACKETS_PER_S_MAX, PACKETS_PER_S_MIN, REFILL_S_MAX,
};

/// How often a change of a bucket that packets take from is tried.
const TRIES_MAX: u32 = 64;

/// The meters of a node. Clones name the same ones.
#[derive(Clone, Debug)]
pub struct Meters {
    memory: Memory,
}

/// A limit of bytes: of Ethernet frames or of IP packets, as the program counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteLimit {
    /// [`BITS_PER_S_MIN`] to [`BITS_PER_S_MAX`], kept within 0.0001 %. A packet's
    /// share is kept to 1/512 ns: 0.08 % at 400 Gbit/s in packets of 125 bytes,
    /// less the slower the rate and the larger the packets.
    pub bits_per_s: u64,
    /// What can pass at once after a pause: at least [`BURST_BYTES_MIN`], and
    /// refilled within [`REFILL_S_MAX`]. Kept within 0.0001 %, never less; many
    /// small packets take what their shares are rounded to.
    pub burst_bytes: u64,
}

/// A limit of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLimit {
    /// [`PACKETS_PER_S_MIN`] to [`PACKETS_PER_S_MAX`], kept within 0.08 %.
    pub packets_per_s: u64,
    /// What can pass at once after a pause: at least 1, and refilled within
    /// [`REFILL_S_MAX`]. Kept within 0.0001 %, never less.
    pub burst_packets: u64,
}

/// What one direction may do. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limit of bytes.
    pub bytes: Option<ByteLimit>,
    /// Limit of packets.
    pub packets: Option<PacketLimit>,
}

/// What a meter allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterConfig {
    /// Towards the tenant.
    pub inward: Limits,
    /// From the tenant.
    pub outward: Limits,
}

/// What is left in a meter's buckets: bytes or packets, rounded down. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Bytes towards the tenant.
    pub inward_bytes: Option<u64>,
    /// Packets towards the tenant.
    pub inward_packets: Option<u64>,
    /// Bytes from the tenant.
    pub outward_bytes: Option<u64>,
    /// Packets from the tenant.
    pub outward_packets: Option<u64>,
}

impl Meters {
    /// Lays out meters, all without limits, in memory that no packet uses yet.
    /// A meter is a cell; the first cell is none.
    ///
    /// # Errors
    /// [`Error::TooSmall`] below two cells.
    pub fn lay_out(memory: Memory) -> Result<Self, Error> {
        let cells = memory.cells();
        if cells < 2 {
            return Err(Error::TooSmall { found_cells: u64::from(cells), needed_cells: 2 });
        }
        memory.store64(0, offset_of!(meter_table, magic), 0);
        memory.zero(0, cells);
        let table = meter_table {
            layout_version: layout::METERS_LAYOUT_VERSION,
            cells: u64::from(cells),
            ..Default::default()
        };
        memory.write(0, &table);
        memory.store64(0, offset_of!(meter_table, magic), layout::METERS_MAGIC);
        Ok(Self { memory })
    }

    /// Takes over the meters that a predecessor laid out, limits and buckets included.
    ///
    /// # Errors
    /// [`Error::NotTables`], [`Error::LayoutVersion`], or [`Error::Capacity`] if
    /// the memory does not hold such meters.
    pub fn adopt(memory: Memory) -> Result<Self, Error> {
        if memory.cells() == 0 {
            return Err(Error::NotTables);
        }
        let table = memory.read::<meter_table>(0);
        if table.magic != layout::METERS_MAGIC {
            return Err(Error::NotTables);
        }
        if table.layout_version != layout::METERS_LAYOUT_VERSION {
            return Err(Error::LayoutVersion {
                found: table.layout_version,
                known: layout::METERS_LAYOUT_VERSION,
            });
        }
        if table.cells != u64::from(memory.cells()) {
            return Err(Error::Capacity { laid_out: table.cells, found: u64::from(memory.cells()) });
        }
        Ok(Self { memory })
    }

    /// The largest id; the smallest is 1.
    #[must_use]
    pub fn id_max(&self) -> u32 {
        self.memory.cells() - 1
    }

    /// Sets what a meter allows, from the next packet on; `now_ns` is
    /// `CLOCK_MONOTONIC`. A limit that was not there begins with a full bucket.
    /// One that changes keeps what has been taken, up to its new burst. One that
    /// stays is not touched.
    ///
    /// The agent that ends in the middle leaves the other limits as they were,
    /// and in the one under change a bucket that is refilled twice and 1.07 s
    /// later at the latest.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit that cannot be kept, or for an id that is
    /// no meter's; then nothing is changed.
    pub fn set(&self, id: u32, config: &MeterConfig, now_ns: u64) -> Result<(), Error> {
        self.check(id)?;
        let [bytes_in, packets_in] = encode(&config.inward)?;
        let [bytes_out, packets_out] = encode(&config.outward)?;
        let words = [bytes_in, packets_in, bytes_out, packets_out];
        for (index, limit) in words.into_iter().enumerate() {
            self.set_word(id, index, limit, now_ns << layout::METER_UNIT_SHIFT);
        }
        Ok(())
    }

    /// Takes all limits away. Packets of the meter conform, whatever their number.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an id that is no meter's.
    pub fn clear(&self, id: u32) -> Result<(), Error> {
        self.set(id, &MeterConfig::default(), 0)
    }

    /// What a meter allows, as it is kept: within the stated bounds of what was set.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an id that is no meter's.
    pub fn read(&self, id: u32) -> Result<MeterConfig, Error> {
        self.check(id)?;
        let direction = |first: usize| Limits {
            bytes: self
                .limit(id, first)
                .map(|limit| ByteLimit { bits_per_s: limit.per_second(), burst_bytes: limit.burst() }),
            packets: self
                .limit(id, first + 1)
                .map(|limit| PacketLimit { packets_per_s: limit.per_second(), burst_packets: limit.burst() }),
        };
        Ok(MeterConfig { inward: direction(0), outward: direction(2) })
    }

    /// What is left in a meter's buckets at `now_ns` (`CLOCK_MONOTONIC`).
    ///
    /// # Errors
    /// [`Error::Invalid`] for an id that is no meter's.
    pub fn level(&self, id: u32, now_ns: u64) -> Result<Level, Error> {
        self.check(id)?;
        let left = |index: usize| {
            let limit = self.limit(id, index)?;
            let arrival = self.memory.load64(id, arrival_at(index));
            Some(limit.left(limit.ahead(arrival, now_ns << layout::METER_UNIT_SHIFT)))
        };
        Ok(Level {
            inward_bytes: left(0),
            inward_packets: left(1),
            outward_bytes: left(2),
            outward_packets: left(3),
        })
    }

    fn check(&self, id: u32) -> Result<(), Error> {
        if (1..self.memory.cells()).contains(&id) {
            return Ok(());
        }
        Err(Error::Invalid(format!("meter {id} does not exist: ids are 1 to {}", self.id_max())))
    }

    fn limit(&self, id: u32, index: usize) -> Option<Limit> {
        Limit::from_word(self.memory.load64(id, limit_at(index)), kind(index))
    }

    fn set_word(&self, id: u32, index: usize, new: Option<Limit>, now: u64) {
        let old = self.limit(id, index);
        if old == new {
            return;
        }
        let (Some(old), Some(new)) = (old, new) else {
            if new.is_some() {
                // Nobody takes from it yet.
                self.memory.store64(id, arrival_at(index), now);
            }
            self.memory.store64(id, limit_at(index), new.map_or(0, |limit| limit.word()));
            return;
        };
        self.memory.store64(id, limit_at(index), new.word());
        let mut arrival = self.memory.load64(id, arrival_at(index));
        for _ in 0..TRIES_MAX {
            let scaled = now.wrapping_add(new.scale(&old, old.ahead(arrival, now)));
            match self.memory.swap64(id, arrival_at(index), arrival, scaled) {
                Ok(()) => return,
                Err(found) => arrival = found,
            }
        }
        // Packets take all the time: the bucket is in use by the new rule, and what
        // they were charged by the old one is refilled.
    }
}

fn encode(limits: &Limits) -> Result<[Option<Limit>; 2], Error> {
    Ok([
        limits.bytes.map(|limit| Limit::of_bytes(&limit)).transpose()?,
        limits.packets.map(|limit| Limit::of_packets(&limit)).transpose()?,
    ])
}

fn kind(index: usize) -> Kind {
    if index.is_multiple_of(2) { Kind::Bytes } else { Kind::Packets }
}

fn arrival_at(index: usize) -> usize {
    offset_of!(meter, arrival) + index * size_of::<u64>()
}

fn limit_at(index: usize) -> usize {
    offset_of!(meter, limit) + index * size_of::<u64>()
}
