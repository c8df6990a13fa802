//! Delays between attempts to reach the controller. This file changes when the controller should be retried at
//! another rate.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Bound of the first delay.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// Bound of the longest delay.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// Delays whose bound doubles from [`FIRST_DELAY`] to [`LONGEST_DELAY`]. Each delay is between half of its
/// bound and the whole, at random, so that nodes which lost the controller together do not return together.
#[derive(Debug)]
pub(crate) struct Backoff {
    bound: Duration,
}

impl Backoff {
    pub(crate) const fn new() -> Self {
        Self { bound: FIRST_DELAY }
    }

    /// The delay before the next attempt.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let bound = self.bound;
        self.bound = (bound * 2).min(LONGEST_DELAY);
        // Each RandomState has its own keys, so its digest of no input is a random number.
        let random = RandomState::new().build_hasher().finish() >> 32;
        bound / 2 + bound.mul_f64(random as f64 / f64::from(u32::MAX) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Catches a bound that does not grow, grows past its limit, or is not randomized.
    #[test]
    fn delays_double_up_to_the_limit_and_differ() {
        let mut backoff = Backoff::new();
        let mut bound = FIRST_DELAY;
        let mut at_limit = HashSet::new();
        for attempt in 0..30 {
            let delay = backoff.next_delay();
            assert!(delay >= bound / 2 && delay <= bound, "attempt {attempt}: {delay:?} of {bound:?}");
            if bound == LONGEST_DELAY {
                at_limit.insert(delay);
            }
            bound = (bound * 2).min(LONGEST_DELAY);
        }
        assert_eq!(bound, LONGEST_DELAY);
        assert!(at_limit.len() > 20, "no jitter: {at_limit:?}");
    }
}
