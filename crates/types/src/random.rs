//! Random numbers from a seed, the same on every machine. They need not be unpredictable: secrets are not drawn here.

/// SplitMix64 (Steele, Lea, Flood, 2014): 64 bits of state; every seed is suitable.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of 0 (inclusive) to 1 (exclusive).
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A time from three quarters of a period to five quarters of it.
    pub fn jittered(&mut self, period: u64) -> u64 {
        period - period / 4 + self.number() % (period / 2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut random = Random::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.number()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn units_fill_their_range_evenly() {
        let mut random = Random::new(7);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[(random.unit() * 10.0) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

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
