//! The meters of a gateway: the table of [`Meters`], in which a meter has a number, with the controller's identifiers and
//! limits (struct meter_name in `bpf/include/layout/meter_layout.h`). This module changes with what a meter is made of.
//!
//! A number is used by one meter after the other: it is free when no packet can find it any more, which the owner of this
//! structure decides (`node/meters.rs`). All state is in the memory, so a successor goes on with the same numbers.

use crate::entries::Meter;
use crate::error::Error;
use crate::layout::meter_name;
use crate::memory::Memory;
use crate::meters::{BITS_PER_S_MIN, ByteLimit, Level, Limits, MeterConfig, Meters};
use sluice_types::{METER_BURST_MIN, METER_WHOLE, MeterLimit};
use std::collections::{BTreeMap, HashSet};
use std::mem::offset_of;

/// The meters of a gateway, with their names.
#[derive(Debug)]
pub struct NamedMeters {
    memory: Memory,
    meters: Meters,
    /// Numbers by identifier.
    numbers: BTreeMap<u32, u32>,
    /// Free numbers, the next one last.
    free: Vec<u32>,
}

impl NamedMeters {
    /// Cells of a table with room for this many meters.
    #[must_use]
    pub fn cells_for(meters: u32) -> u32 {
        meters.saturating_mul(2).saturating_add(1)
    }

    /// Takes over the meters that another agent left in the memory, with what packets have taken from them; or lays out none in
    /// memory that is new. No packet may know a number without a name, other than by what [`crate::NodeTables::set_meters`]
    /// repairs.
    ///
    /// # Errors
    /// [`Error::TooSmall`] if there is room for none; those of [`Meters::adopt`] for memory of another version or size.
    pub fn open(memory: Memory) -> Result<Self, Error> {
        if memory.cells() < Self::cells_for(1) {
            let (found_cells, needed_cells) = (memory.cells().into(), Self::cells_for(1).into());
            return Err(Error::TooSmall { found_cells, needed_cells });
        }
        let meters = match Meters::adopt(memory.clone()) {
            Err(Error::NotTables) => Meters::lay_out(memory.clone())?,
            adopted => adopted?,
        };
        let mut this = Self { memory, meters, numbers: BTreeMap::new(), free: Vec::new() };
        for number in (1..=this.total()).rev() {
            // In damaged memory two may have one name.
            match this.id_of(number) {
                Some(id) if !this.numbers.contains_key(&id) => drop(this.numbers.insert(id, number)),
                Some(_) | None => {
                    this.unname(number);
                    this.free.push(number);
                }
            }
        }
        Ok(this)
    }

    /// Meters for which there is room.
    #[must_use]
    pub fn total(&self) -> u32 {
        (self.memory.cells() - 1) / 2
    }

    /// The number of the meter with this identifier.
    #[must_use]
    pub fn number(&self, id: u32) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    /// All identifiers with their numbers, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.numbers.iter().map(|(id, number)| (*id, *number))
    }

    /// The identifier of the meter with this number.
    #[must_use]
    pub fn id_of(&self, number: u32) -> Option<u32> {
        let id = (1..=self.total()).contains(&number).then(|| self.memory.load32(self.name_at(number), 0))?;
        Some(id).filter(|id| *id != 0)
    }

    /// The meter with this number. `None` if it has none, or its limits are not those of which it was made.
    #[must_use]
    pub fn meter(&self, number: u32) -> Option<Meter> {
        let id = self.id_of(number)?;
        let name: meter_name = self.memory.read(self.name_at(number));
        let limit =
            |rate_kbps, burst_bytes| (rate_kbps != 0).then_some(MeterLimit { rate_kbps, burst_bytes });
        let inward = limit(name.in_kbps, name.in_burst_bytes);
        let meter = Meter { id, inward, outward: limit(name.out_kbps, name.out_burst_bytes) };
        self.meters.has(number, &config(&meter, shares(&name))).then_some(meter)
    }

    /// The shares of rate and burst that a meter has on this gateway, inward and outward, in millionths.
    #[must_use]
    pub fn shares(&self, number: u32) -> [u32; 2] {
        shares(&self.memory.read(self.name_at(number)))
    }

    /// Sets these shares, from the next packet on, which finds what was left. Returns whether it changed something. Shares of a meter
    /// that does not exist, or whose limits are not those of which it was made, are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a share that is not 1 to [`METER_WHOLE`]. Nothing has changed then.
    pub(crate) fn share(&mut self, id: u32, shares: [u32; 2], now_ns: u64) -> Result<bool, Error> {
        if let Some(share) = shares.iter().find(|share| !(1..=METER_WHOLE).contains(*share)) {
            return Err(Error::Invalid(format!("meter {id} cannot have {share} millionths of its rate")));
        }
        let found = self.number(id).and_then(|number| Some((number, self.meter(number)?)));
        let Some((number, meter)) = found.filter(|(number, _)| self.shares(*number) != shares) else {
            return Ok(false);
        };
        self.meters.share(number, &config(&meter, shares), now_ns)?;
        let cell = self.name_at(number);
        for (share, at) in
            shares.into_iter().zip([offset_of!(meter_name, in_share), offset_of!(meter_name, out_share)])
        {
            self.memory.store32(cell, at, share);
        }
        Ok(true)
    }

    /// What is left in the buckets of a meter at `now_ns` (`CLOCK_MONOTONIC`).
    #[must_use]
    pub fn level(&self, number: u32, now_ns: u64) -> Level {
        self.meters.level(number, now_ns).unwrap_or_default()
    }

    /// Takes these out of the free numbers, because packets may still find them. Returns those that were free.
    pub(crate) fn take_free(&mut self, numbers: &HashSet<u32>) -> Vec<u32> {
        self.free.extract_if(.., |number| numbers.contains(number)).collect()
    }

    /// Whether there is a free number.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Adds or changes a meter, from the next packet on. A change keeps what packets have taken. Returns whether it
    /// changed something.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit out of bounds; [`Error::NoMeterNumber`]. Nothing has changed then.
    pub(crate) fn upsert(&mut self, meter: &Meter, now_ns: u64) -> Result<bool, Error> {
        let known = self.number(meter.id);
        if known.is_some_and(|number| self.meter(number).as_ref() == Some(meter)) {
            return Ok(false);
        }
        let next = known.or_else(|| self.free.last().copied());
        let number = next.ok_or(Error::NoMeterNumber { id: meter.id, total: self.total() })?;
        if known.is_none() {
            // So the buckets are full, whatever they were before.
            self.meters.clear(number)?;
        }
        let [in_share, out_share] = if known.is_some() { self.shares(number) } else { [METER_WHOLE; 2] };
        self.meters.set(number, &config(meter, [in_share, out_share]), now_ns)?;
        let Meter { id, inward, outward } = *meter;
        let words = |limit: Option<MeterLimit>| limit.map_or((0, 0), |it| (it.rate_kbps, it.burst_bytes));
        let ((in_kbps, in_burst_bytes), (out_kbps, out_burst_bytes)) = (words(inward), words(outward));
        let name = meter_name {
            id: if known.is_some() { id } else { 0 },
            in_kbps,
            in_burst_bytes,
            out_kbps,
            out_burst_bytes,
            in_share,
            out_share,
            ..Default::default()
        };
        self.memory.update(self.name_at(number), &name);
        self.memory.store32(self.name_at(number), offset_of!(meter_name, id), id);
        if known.is_none() {
            self.free.pop();
            self.numbers.insert(id, number);
        }
        Ok(true)
    }

    /// Takes the name from a meter to which no entry refers any more. Its number is free when it is given back. `None`: there is no
    /// such meter.
    pub(crate) fn remove(&mut self, id: u32) -> Option<u32> {
        let number = self.numbers.remove(&id)?;
        self.unname(number);
        Some(number)
    }

    /// No packet can find these numbers any more.
    pub(crate) fn give_back(&mut self, numbers: Vec<u32>) {
        self.free.splice(0..0, numbers);
    }

    fn name_at(&self, number: u32) -> u32 {
        self.total() + number
    }

    fn unname(&self, number: u32) {
        self.memory.store32(self.name_at(number), offset_of!(meter_name, id), 0);
    }
}

/// The shares in a name.
fn shares(name: &meter_name) -> [u32; 2] {
    [name.in_share, name.out_share].map(|share| if share == 0 { METER_WHOLE } else { share })
}

/// The limits of a meter as packets use them, with these shares inward and outward.
fn config(meter: &Meter, shares: [u32; 2]) -> MeterConfig {
    let limits = |limit: Option<MeterLimit>, share| Limits {
        bytes: limit.map(|limit| share_of(limit, share)),
        packets: None,
    };
    let [inward, outward] = shares;
    MeterConfig { inward: limits(meter.inward, inward), outward: limits(meter.outward, outward) }
}

/// A share of a limit. Each packet that the whole lets pass can pass by the share as well: its burst is at least the
/// smallest one of a meter.
fn share_of(limit: MeterLimit, share: u32) -> ByteLimit {
    let MeterLimit { rate_kbps, burst_bytes } = limit;
    let bits_per_s = rate_kbps.saturating_mul(1000);
    if share == METER_WHOLE {
        return ByteLimit { bits_per_s, burst_bytes };
    }
    let part = |whole: u64| (u128::from(whole) * u128::from(share) / u128::from(METER_WHOLE)) as u64;
    ByteLimit {
        bits_per_s: part(bits_per_s).max(BITS_PER_S_MIN),
        burst_bytes: part(burst_bytes).max(METER_BURST_MIN.min(burst_bytes)),
    }
}

/// Reads the meters of a gateway beside their writer.
#[derive(Clone, Debug)]
pub struct MeterReader {
    memory: Memory,
}

/// A meter as its reader finds it. While the writer changes it, some fields may be those of before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundMeter {
    /// The controller's identifier.
    pub id: u32,
    /// Rates inward and outward in kbit/s; 0: no limit.
    pub rates_kbps: [u64; 2],
    /// The shares that this gateway has of them, in millionths.
    pub shares: [u32; 2],
}

impl MeterReader {
    /// Reads the memory that a [`NamedMeters`] was opened with.
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        Self { memory }
    }

    /// Numbers from 1 to this one may have a meter.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.memory.cells().saturating_sub(1) / 2
    }

    /// The meter with this number.
    #[must_use]
    pub fn find(&self, number: u32) -> Option<FoundMeter> {
        let in_range = (1..=self.total()).contains(&number);
        // The identifier alone tells most numbers without a meter.
        let cell =
            in_range.then(|| self.total() + number).filter(|cell| self.memory.load32(*cell, 0) != 0)?;
        let name: meter_name = self.memory.read(cell);
        let found =
            FoundMeter { id: name.id, rates_kbps: [name.in_kbps, name.out_kbps], shares: shares(&name) };
        (found.id != 0).then_some(found)
    }
}
