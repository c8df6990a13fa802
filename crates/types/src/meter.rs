//! The limits of meters of Internet traffic.

use serde::{Deserialize, Serialize};

/// Slowest rate of a meter, in kbit/s.
pub const METER_KBPS_MIN: u64 = 64;

/// Fastest rate of a meter, in kbit/s: 400 Gbit/s.
pub const METER_KBPS_MAX: u64 = 400_000_000;

/// Smallest burst of a meter, in bytes. A packet that is longer than the burst never passes, and jumbo frames have about 9 KB.
pub const METER_BURST_MIN: u64 = 16 << 10;

/// Longest time in which the burst of a meter may be refilled, in seconds: one day.
pub const METER_REFILL_S_MAX: u64 = 86_400;

/// The whole of a meter, in the millionths in which gateways count their shares of its rate and burst.
pub const METER_WHOLE: u32 = 1_000_000;

/// Time in which the default burst passes at the rate, and its smallest value: as those of ports (`docs/decisions/qos.md`).
const DEFAULT_BURST_MS: u64 = 400;
const DEFAULT_BURST_MIN: u64 = 192 << 10;

/// The limit of one direction of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MeterLimit {
    /// Rate in kbit/s of IP packets, [`METER_KBPS_MIN`] to [`METER_KBPS_MAX`].
    pub rate_kbps: u64,
    /// Bytes that pass at once after a pause: at least [`METER_BURST_MIN`], and refilled within [`METER_REFILL_S_MAX`].
    pub burst_bytes: u64,
}

/// The limit of one direction of a meter as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterRate {
    /// Rate in kbit/s of IP packets.
    pub kbps: u64,
    /// Bytes that pass at once after a pause; `None`: what passes in 0.4 s at the rate, and at least 192 KiB.
    pub burst: Option<u64>,
}

impl MeterRate {
    /// The limit, which is not checked.
    #[must_use]
    pub fn limit(self) -> MeterLimit {
        // kbit/s times ms is bits.
        let default = || (self.kbps.saturating_mul(DEFAULT_BURST_MS) / 8).max(DEFAULT_BURST_MIN);
        MeterLimit { rate_kbps: self.kbps, burst_bytes: self.burst.unwrap_or_else(default) }
    }
}

/// The limit of a meter is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeterLimitError {
    /// The rate is not in [`METER_KBPS_MIN`]..=[`METER_KBPS_MAX`].
    #[error("a rate of {0} kbit/s is not between {METER_KBPS_MIN} and {METER_KBPS_MAX}")]
    Rate(u64),
    /// The burst is smaller than [`METER_BURST_MIN`], or takes too long to be refilled.
    #[error(
        "a burst of {burst} bytes is not between {METER_BURST_MIN} and {max}, which {rate} kbit/s refill within a day"
    )]
    Burst {
        /// The burst.
        burst: u64,
        /// The largest one for this rate.
        max: u64,
        /// The rate in kbit/s.
        rate: u64,
    },
}

impl MeterLimit {
    /// Checks the bounds. They are within those of the tables of gateways, so no gateway refuses what passes here.
    ///
    /// # Errors
    /// Rate or burst is out of range.
    pub fn check(self) -> Result<Self, MeterLimitError> {
        let Self { rate_kbps, burst_bytes } = self;
        if !(METER_KBPS_MIN..=METER_KBPS_MAX).contains(&rate_kbps) {
            return Err(MeterLimitError::Rate(rate_kbps));
        }
        let max = rate_kbps * 1000 / 8 * METER_REFILL_S_MAX;
        if !(METER_BURST_MIN..=max).contains(&burst_bytes) {
            return Err(MeterLimitError::Burst { burst: burst_bytes, max, rate: rate_kbps });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: a default that is refused, and bounds that are off by one.
    #[test]
    fn limits_are_within_their_bounds() {
        let default = |kbps| MeterRate { kbps, burst: None }.limit();
        for rate in [METER_KBPS_MIN, 8_000, METER_KBPS_MAX] {
            let limit = default(rate);
            assert_eq!(limit.check(), Ok(limit));
        }
        assert_eq!(default(64).burst_bytes, 196_608);
        assert_eq!(default(8_000).burst_bytes, 400_000);
        let check = |rate_kbps, burst_bytes| MeterLimit { rate_kbps, burst_bytes }.check().is_ok();
        assert!(
            check(64, 16_384) && check(64, 8_000 * 86_400) && check(400_000_000, 50_000_000_000 * 86_400)
        );
        for (rate, burst) in
            [(63, 16_384), (400_000_001, 16_384), (0, 16_384), (64, 16_383), (64, 8_000 * 86_400 + 1)]
        {
            assert!(!check(rate, burst), "{rate} {burst}");
        }
        let largest = MeterLimit { rate_kbps: u64::MAX, burst_bytes: u64::MAX };
        assert!(largest.check().is_err() && default(u64::MAX).check().is_err());
    }
}
