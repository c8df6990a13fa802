//! A meter's limit: its bounds, and its encoding as one word of `meter_layout.h`.

use super::{ByteLimit, PacketLimit};
use crate::Error;
use crate::layout;

/// Smallest limit of bytes, 8 kbit/s: a gateway's share of a slow meter.
pub const BITS_PER_S_MIN: u64 = 8_000;
/// Largest limit of bytes: 400 Gbit/s.
pub const BITS_PER_S_MAX: u64 = 400_000_000_000;
/// Smallest limit of packets, per second.
pub const PACKETS_PER_S_MIN: u64 = 1;
/// Largest limit of packets, per second.
pub const PACKETS_PER_S_MAX: u64 = 400_000_000;
/// Smallest burst of bytes: a frame of MTU 1500. A bucket that holds less never lets such a frame pass. For
/// unsegmented frames (GSO) it must hold 64 KiB.
pub const BURST_BYTES_MIN: u64 = 1514;
/// Longest time in which an empty bucket fills, in seconds: 52 days.
pub const REFILL_S_MAX: u64 = TOLERANCE_MAX / UNITS_PER_S;

const UNITS_PER_S: u64 = 1_000_000_000 << layout::METER_UNIT_SHIFT;
const TOLERANCE_MAX: u64 = layout::METER_TOLERANCE_MAX;
const MANTISSA_MAX: u128 = layout::METER_COST_MASK as u128;
/// Largest power of two by which the cost of a byte is divided.
const BYTE_SHIFT_MAX: u32 = 31;

/// What a limit counts. The cost of bytes and of packets is encoded differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Packets,
}

/// A limit, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    kind: Kind,
    mantissa: u64,
    shift: u32,
    /// Time in which an empty bucket fills, in units; it has at most 24 significant bits.
    pub(super) tolerance: u64,
}

impl Limit {
    pub(super) fn of_bytes(limit: &ByteLimit) -> Result<Self, Error> {
        let ByteLimit { bits_per_s, burst_bytes } = *limit;
        if !(BITS_PER_S_MIN..=BITS_PER_S_MAX).contains(&bits_per_s) {
            return Err(Error::Invalid(format!(
                "the limit of a meter must be {BITS_PER_S_MIN} to {BITS_PER_S_MAX} bit/s, not {bits_per_s}"
            )));
        }
        if burst_bytes < BURST_BYTES_MIN {
            return Err(Error::Invalid(format!(
                "a burst of {burst_bytes} bytes would never let a full-sized frame pass: \
                 the minimum is {BURST_BYTES_MIN}"
            )));
        }
        let (mantissa, shift) = (0..=BYTE_SHIFT_MAX)
            .rev()
            .map(|shift| (divide((u128::from(UNITS_PER_S) * 8) << shift, bits_per_s), shift))
            .find(|(mantissa, _)| *mantissa <= MANTISSA_MAX)
            .expect("a byte at the smallest rate takes fewer than 2^28 units");
        let refill = (u128::from(burst_bytes) * mantissa).div_ceil(1 << shift);
        let tolerance = tolerance(refill, || format!("{burst_bytes} bytes at {bits_per_s} bit/s"))?;
        Ok(Self { kind: Kind::Bytes, mantissa: mantissa as u64, shift, tolerance })
    }

    pub(super) fn of_packets(limit: &PacketLimit) -> Result<Self, Error> {
        let PacketLimit { packets_per_s, burst_packets } = *limit;
        if !(PACKETS_PER_S_MIN..=PACKETS_PER_S_MAX).contains(&packets_per_s) {
            return Err(Error::Invalid(format!(
                "the limit of a meter must be {PACKETS_PER_S_MIN} to {PACKETS_PER_S_MAX} packets/s, \
                 not {packets_per_s}"
            )));
        }
        if burst_packets == 0 {
            return Err(Error::Invalid(
                "a burst of 0 packets would never let a packet pass: the minimum is 1".into(),
            ));
        }
        let (mantissa, shift) = (0..=layout::METER_SHIFT_MASK)
            .map(|shift| (divide(u128::from(UNITS_PER_S), packets_per_s << shift), shift))
            .find(|(mantissa, _)| *mantissa <= MANTISSA_MAX)
            .expect("a packet at the smallest rate takes 2^38 units");
        let refill = u128::from(burst_packets) * (mantissa << shift);
        let tolerance =
            tolerance(refill, || format!("{burst_packets} packets at {packets_per_s} packets/s"))?;
        Ok(Self { kind: Kind::Packets, mantissa: mantissa as u64, shift, tolerance })
    }

    pub(super) fn word(&self) -> u64 {
        let shift = significant_shift(u128::from(self.tolerance));
        self.mantissa
            | u64::from(self.shift) << layout::METER_COST_SHIFT_SHIFT
            | (self.tolerance >> shift) << layout::METER_TOLERANCE_SHIFT
            | u64::from(shift) << layout::METER_TOLERANCE_SHIFT_SHIFT
    }

    /// Decodes a word; `None` for 0, which means no limit.
    pub(super) fn from_word(word: u64, kind: Kind) -> Option<Self> {
        let mantissa = word & u64::from(layout::METER_COST_MASK);
        let shift = word >> layout::METER_COST_SHIFT_SHIFT & u64::from(layout::METER_SHIFT_MASK);
        let tolerance = word >> layout::METER_TOLERANCE_SHIFT & u64::from(layout::METER_TOLERANCE_MASK);
        let tolerance = tolerance << (word >> layout::METER_TOLERANCE_SHIFT_SHIFT);
        (mantissa != 0).then_some(Self { kind, mantissa, shift: shift as u32, tolerance })
    }

    /// Cost of one byte or packet in units, as a fraction.
    fn cost(&self) -> (u128, u128) {
        match self.kind {
            Kind::Bytes => (u128::from(self.mantissa), 1 << self.shift),
            Kind::Packets => (u128::from(self.mantissa) << self.shift, 1),
        }
    }

    /// Bits or packets per second, rounded to the nearest.
    pub(super) fn per_second(&self) -> u64 {
        let (units, parts) = self.cost();
        let counted = if self.kind == Kind::Bytes { 8 } else { 1 };
        ((u128::from(UNITS_PER_S) * counted * parts + units / 2) / units) as u64
    }

    /// Bytes or packets in a full bucket, rounded down.
    pub(super) fn burst(&self) -> u64 {
        self.left(0)
    }

    /// Bytes or packets that are left when the arrival time is `ahead` units in the future.
    pub(super) fn left(&self, ahead: u64) -> u64 {
        let (units, parts) = self.cost();
        (u128::from(self.tolerance.saturating_sub(ahead)) * parts / units) as u64
    }

    /// Units by which an arrival time is in the future, computed as by `meter_has` in `meters.h`.
    pub(super) fn ahead(&self, arrival: u64, now: u64) -> u64 {
        let ahead = arrival.wrapping_sub(now);
        if ahead > 2 * self.tolerance + layout::METER_SKEW { 0 } else { ahead }
    }

    /// Converts `ahead` from units of the old limit to units of this limit, for the same bytes or packets.
    pub(super) fn scale(&self, old: &Self, ahead: u64) -> u64 {
        self.convert(old, ahead).min(self.tolerance)
    }

    /// As [`Limit::scale`], but keeps the bytes or packets that are left, up to this limit's burst, and what was taken beyond the old
    /// limit's burst.
    pub(super) fn scale_left(&self, old: &Self, ahead: u64) -> u64 {
        match old.tolerance.checked_sub(ahead) {
            Some(left) => self.tolerance - self.convert(old, left).min(self.tolerance),
            None => self.tolerance.saturating_add(self.convert(old, ahead - old.tolerance)),
        }
    }

    /// Units of this limit for the same bytes or packets as `units` of the old limit, rounded down.
    fn convert(&self, old: &Self, units: u64) -> u64 {
        let ((own_units, parts), (old_units, old_parts)) = (self.cost(), old.cost());
        // The product has at most 62 + 28 + 31 bits; the cost of a packet has 38 bits and is not a fraction.
        let converted = u128::from(units) * own_units * old_parts / (old_units * parts);
        u64::try_from(converted).unwrap_or(u64::MAX)
    }
}

/// Divides and rounds to the nearest.
fn divide(units: u128, by: u64) -> u128 {
    (units + u128::from(by) / 2) / u128::from(by)
}

/// Number of bits by which a number must be shifted to fit the mantissa of the tolerance.
fn significant_shift(number: u128) -> u32 {
    (u128::BITS - number.leading_zeros()).saturating_sub(layout::METER_TOLERANCE_BITS)
}

/// The tolerance of a bucket that takes `refill` units to fill, rounded up to what a word can hold.
/// `describe` returns the burst for the error.
fn tolerance(refill: u128, describe: impl Fn() -> String) -> Result<u64, Error> {
    let shift = significant_shift(refill);
    // Rounding up may carry into one more bit; the result is then a power of two. It cannot overflow: a burst
    // has 64 bits and a cost 38.
    let rounded = refill.div_ceil(1 << shift) << shift;
    if rounded > u128::from(TOLERANCE_MAX) {
        return Err(Error::Invalid(format!(
            "a burst of {} takes {} s to refill: the maximum is {REFILL_S_MAX} s",
            describe(),
            refill / u128::from(UNITS_PER_S)
        )));
    }
    Ok(rounded as u64)
}
