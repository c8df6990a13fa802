//! What the VMs of a host send to. It changes with the model of their traffic.

/// A generator of random numbers (xorshift) that generates the same numbers from the same seed.
pub struct Random(u64);

impl Random {
    /// A generator. The seed must not be 0.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// At least 0 and less than 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Less than `bound`, which is not 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        (self.share() * f64::from(bound)) as u32
    }

    /// Exponential, with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.share()).ln() * mean
    }
}

/// The traffic of a host.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// VMs of the VPC.
    pub vms: u32,
    /// VMs of each host.
    pub vms_of_host: u32,
    /// Destinations to which the VMs of the host begin to send in a second, and in a second of a burst.
    pub begun_per_s: [f64; 2],
    /// Time from one burst to the next, and how long each lasts, in seconds.
    pub burst_s: [u64; 2],
    /// Seconds for which VMs send to a destination, on average.
    pub lasts_s: f64,
    /// Instances of the VPC that move or end in a second.
    pub changes_per_s: u32,
    /// Those that come, of which no host is told.
    pub births_per_s: u32,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            vms: 1_500_000,
            vms_of_host: 30,
            begun_per_s: [60.0, 120.0],
            burst_s: [120, 20],
            lasts_s: 10.0,
            changes_per_s: 600,
            births_per_s: 600,
        }
    }
}

impl Load {
    /// Destinations that begin in a second at this time.
    pub fn rate_at(&self, now_ms: u64) -> f64 {
        let [period_s, length_s] = self.burst_s;
        self.begun_per_s[usize::from(now_ms / 1000 % period_s < length_s)]
    }
}

/// Draws destinations by Zipf's law: the one of rank r is chosen in proportion to 1/r.
pub struct Zipf {
    /// Sum of the shares up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    /// Of so many destinations.
    pub fn new(count: u32) -> Self {
        let sums = (1..=count).scan(0.0, |sum, rank| {
            *sum += 1.0 / f64::from(rank);
            Some(*sum)
        });
        Self { sums: sums.collect() }
    }

    /// A rank, from 0.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let at = random.share() * self.sums.last().copied().unwrap_or_default();
        self.sums.partition_point(|sum| *sum <= at) as u32
    }
}
