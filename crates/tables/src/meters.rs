//! Meters: token buckets by identifier from which packets take, in the cells of
//! `bpf/include/layout/meter_layout.h`. The agent sets the limits and reads what is left. This module changes
//! with that header.
//!
//! Every limit is one word, so packets see a change completely or not at all. All state is in the memory: a
//! successor adopts the meters as they are and sets those that have changed.

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

/// Attempts to change a bucket from which packets take at the same time.
const TRIES_MAX: u32 = 64;

/// What a bucket keeps when its limit changes.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Taken,
    Left,
}

/// The meters of a node. Clones refer to the same meters.
#[derive(Clone, Debug)]
pub struct Meters {
    memory: Memory,
}

/// A limit of bytes, of Ethernet frames or of IP packets as the packet program counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteLimit {
    /// Rate: [`BITS_PER_S_MIN`] to [`BITS_PER_S_MAX`], with a precision of 0.0001 %. A packet's share is
    /// rounded to within 1/512 ns: 0.08 % at 400 Gbit/s in packets of 125 bytes, and less for slower rates
    /// and larger packets.
    pub bits_per_s: u64,
    /// Bytes that can pass at once after a pause: at least [`BURST_BYTES_MIN`], and refilled within
    /// [`REFILL_S_MAX`]. The precision is 0.0001 %, rounded up. Each packet takes its rounded share.
    pub burst_bytes: u64,
}

/// A limit of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLimit {
    /// Rate: [`PACKETS_PER_S_MIN`] to [`PACKETS_PER_S_MAX`], with a precision of 0.08 %.
    pub packets_per_s: u64,
    /// Packets that can pass at once after a pause: at least 1, and refilled within [`REFILL_S_MAX`]. The
    /// precision is 0.0001 %, rounded up.
    pub burst_packets: u64,
}

/// The limits of one direction. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limit of bytes.
    pub bytes: Option<ByteLimit>,
    /// Limit of packets.
    pub packets: Option<PacketLimit>,
}

/// The limits of a meter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterConfig {
    /// Limits of packets to the tenant.
    pub inward: Limits,
    /// Limits of packets from the tenant.
    pub outward: Limits,
}

/// Bytes and packets that are left in a meter's buckets, rounded down. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Bytes to the tenant.
    pub inward_bytes: Option<u64>,
    /// Packets to the tenant.
    pub inward_packets: Option<u64>,
    /// Bytes from the tenant.
    pub outward_bytes: Option<u64>,
    /// Packets from the tenant.
    pub outward_packets: Option<u64>,
}

impl Meters {
    /// Lays out meters without limits in memory that no packet uses yet. Each cell except the first is a
    /// meter.
    ///
    /// # Errors
    /// [`Error::TooSmall`] for fewer than two cells.
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

    /// Takes over the meters that another agent laid out, including limits and buckets.
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

    /// The largest identifier; the smallest is 1.
    #[must_use]
    pub fn id_max(&self) -> u32 {
        self.memory.cells() - 1
    }

    /// Sets the limits of a meter, from the next packet on; `now_ns` is `CLOCK_MONOTONIC`. A new limit begins
    /// with a full bucket. A limit that changes keeps what has been taken, up to its new burst. A limit that
    /// stays is not touched.
    ///
    /// If the agent ends in the middle of the call, the limits that were not set yet are as they were before,
    /// and the bucket of the limit that was being changed is full at the latest after twice its refill time
    /// and 1.07 s.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit out of bounds or an unknown identifier. Nothing has changed then.
    pub fn set(&self, id: u32, config: &MeterConfig, now_ns: u64) -> Result<(), Error> {
        self.set_keeping(Kept::Taken, id, config, now_ns)
    }

    /// Sets the limits of a meter as [`Meters::set`] does, but a limit that changes keeps what is left, up to its new burst. So limits
    /// that divide one rate among several meters can change as often as needed, and all these together have no more left than before.
    ///
    /// # Errors
    /// As [`Meters::set`].
    pub fn share(&self, id: u32, config: &MeterConfig, now_ns: u64) -> Result<(), Error> {
        self.set_keeping(Kept::Left, id, config, now_ns)
    }

    fn set_keeping(&self, kept: Kept, id: u32, config: &MeterConfig, now_ns: u64) -> Result<(), Error> {
        self.check(id)?;
        let [bytes_in, packets_in] = encode(&config.inward)?;
        let [bytes_out, packets_out] = encode(&config.outward)?;
        let words = [bytes_in, packets_in, bytes_out, packets_out];
        for (index, limit) in words.into_iter().enumerate() {
            self.set_word(kept, (id, index), limit, now_ns << layout::METER_UNIT_SHIFT);
        }
        Ok(())
    }

    /// Removes all limits of a meter, so that all packets conform.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown identifier.
    pub fn clear(&self, id: u32) -> Result<(), Error> {
        self.set(id, &MeterConfig::default(), 0)
    }

    /// The limits of a meter, with the stated precision.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown identifier.
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

    /// Whether a meter has exactly the limits that this configuration gives.
    pub(crate) fn has(&self, id: u32, config: &MeterConfig) -> bool {
        let words = encode(&config.inward).and_then(|inward| Ok([inward, encode(&config.outward)?]));
        let is_same = |(index, limit): (usize, Option<Limit>)| self.limit(id, index) == limit;
        self.check(id).is_ok()
            && words.is_ok_and(|words| words.into_iter().flatten().enumerate().all(is_same))
    }

    /// Bytes and packets that are left in a meter's buckets at `now_ns` (`CLOCK_MONOTONIC`).
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown identifier.
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

    fn set_word(&self, kept: Kept, (id, index): (u32, usize), new: Option<Limit>, now: u64) {
        let old = self.limit(id, index);
        if old == new {
            return;
        }
        let (Some(old), Some(new)) = (old, new) else {
            if new.is_some() {
                // No packet takes from the bucket yet.
                self.memory.store64(id, arrival_at(index), now);
            }
            self.memory.store64(id, limit_at(index), new.map_or(0, |limit| limit.word()));
            return;
        };
        self.memory.store64(id, limit_at(index), new.word());
        let mut arrival = self.memory.load64(id, arrival_at(index));
        for _ in 0..TRIES_MAX {
            let ahead = old.ahead(arrival, now);
            let scaled = match kept {
                Kept::Taken => new.scale(&old, ahead),
                Kept::Left => new.scale_left(&old, ahead),
            };
            let scaled = now.wrapping_add(scaled);
            match self.memory.compare_and_swap64(id, arrival_at(index), arrival, scaled) {
                Ok(()) => return,
                Err(found) => arrival = found,
            }
        }
        // Packets changed the bucket at each attempt: it follows the new limit already, and what packets were
        // charged by the old limit is refilled by the new one.
    }
}

/// The limits of bytes and of packets of one direction.
fn encode(limits: &Limits) -> Result<[Option<Limit>; 2], Error> {
    Ok([
        limits.bytes.map(|limit| Limit::of_bytes(&limit)).transpose()?,
        limits.packets.map(|limit| Limit::of_packets(&limit)).transpose()?,
    ])
}

/// Kind of the limit at an index: 0 and 1 are bytes and packets inward, 2 and 3 outward.
fn kind(index: usize) -> Kind {
    if index.is_multiple_of(2) { Kind::Bytes } else { Kind::Packets }
}

fn arrival_at(index: usize) -> usize {
    offset_of!(meter, arrival) + index * size_of::<u64>()
}

fn limit_at(index: usize) -> usize {
    offset_of!(meter, limit) + index * size_of::<u64>()
}
