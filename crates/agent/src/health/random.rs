//! Random numbers from a seed, which spread probes over time. They need not be unpredictable.

/// SplitMix64 (Steele, Lea, Flood, 2014): 64 bits of state; every seed is suitable.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A time from three quarters of a period to five quarters of it.
    pub fn jittered(&mut self, period: u64) -> u64 {
        period - period / 4 + self.next() % (period / 2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_keeps_the_period_on_average() {
        let mut random = Random::new(7);
        let times: Vec<u64> = (0..10_000).map(|_| random.jittered(1000)).collect();
        assert!(times.iter().all(|time| (750..1250).contains(time)));
        let mean = times.iter().sum::<u64>() / 10_000;
        assert!((980..1020).contains(&mean), "{mean}");
        assert_eq!(Random::new(1).jittered(1), 1);
    }
}
