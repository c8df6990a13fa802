//! Estimates how many packets a second a gateway can forward, from its packet rate and its CPU load. This file
//! changes with that estimate.

use sluice_types::GATEWAY_CAPACITY_PPS_MAX;

/// Lowest estimate in packets a second. If the quotient is lower, something other than tenants' packets keeps
/// the gateway's processor busy.
pub const CAPACITY_MIN_PPS: u64 = 10_000;
/// Samples below this CPU load are ignored: other work than packets dominates them.
const BUSY_MIN: f64 = 0.1;
/// Time constant of the smoothing, in milliseconds.
const SMOOTHING_MS: f64 = 60_000.0;

/// A gateway's capacity in packets a second: its packet rate divided by the busy share of its forwarding
/// cores, smoothed over a minute of samples at 10% and more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    pps: f64,
    weight: f64,
    last_ms: Option<u64>,
}

impl Capacity {
    /// Adds a sample: `pps` packets a second caused the CPU load `busy` (1 is full load) in the time up to
    /// `now_ms`.
    pub fn sample(&mut self, pps: f64, busy: f64, now_ms: u64) {
        let elapsed_ms = self.last_ms.map_or(1_000, |last_ms| now_ms.saturating_sub(last_ms));
        self.last_ms = Some(now_ms);
        if busy < BUSY_MIN || !pps.is_finite() {
            return;
        }
        let keeps = (-(elapsed_ms as f64) / SMOOTHING_MS).exp();
        let sample = (pps / busy).clamp(CAPACITY_MIN_PPS as f64, GATEWAY_CAPACITY_PPS_MAX as f64);
        self.pps = self.pps * keeps + sample * (1.0 - keeps);
        self.weight = self.weight * keeps + (1.0 - keeps);
    }

    /// The estimate in packets a second; `None` if the gateway has never been busy enough.
    pub fn pps(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.pps / self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(samples: &[(f64, f64)]) -> Option<u64> {
        let mut capacity = Capacity::default();
        for ((pps, busy), second) in samples.iter().zip(1..) {
            capacity.sample(*pps, *busy, second * 1000);
        }
        capacity.pps().map(|pps| pps.round() as u64)
    }

    #[test]
    fn capacity_is_the_packet_rate_at_full_load() {
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[(500_000.0, 0.25)]), Some(2_000_000), "one sample is enough");
        assert_eq!(after(&[(500_000.0, 0.25), (1_000_000.0, 0.5)]), Some(2_000_000));
        assert_eq!(after(&[(1_000.0, 0.09)]), None, "CPU load below the minimum");
        let hour = vec![(900_000.0, 0.9); 3600];
        assert_eq!(after(&[vec![(90_000.0, 0.9)], hour].concat()), Some(1_000_000));
    }

    #[test]
    fn capacity_is_bounded() {
        assert_eq!(after(&[(0.0, 1.0)]), Some(CAPACITY_MIN_PPS), "busy with something else");
        assert_eq!(after(&[(1e18, 0.1)]), Some(GATEWAY_CAPACITY_PPS_MAX));
        assert_eq!(after(&[(f64::NAN, 1.0), (f64::INFINITY, 1.0)]), None);
    }
}
