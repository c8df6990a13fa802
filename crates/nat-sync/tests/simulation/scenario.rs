//! What a seed stands for: sizes, faults and times.

use crate::rng::Rng;

/// Kind of faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Gateways die and come back, with or without their tables.
    Crash,
    /// Agents restart; tables stay.
    Restart,
    /// The network is split, and each side has an owner.
    Split,
    /// vIPs move as planned.
    Move,
    /// The network is split, and there are few ports, so each side gives ports away that the other one still uses.
    Reuse,
    /// All of them.
    All,
}

pub const CLASSES: [Class; 6] =
    [Class::Crash, Class::Restart, Class::Split, Class::Move, Class::Reuse, Class::All];

/// Interval between passes.
const INTERVAL_US: u64 = 20_000_000;
/// The longest time from the last fault until all copies are equal: a split may last 20 s, an absence 10 s. Then the sender
/// may wait for an interval after passes that were not completely successful, and one pass to return and one to copy follow.
const REPAIR_US: u64 = 20_000_000 + 2 * INTERVAL_US + 5_000_000;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub class: Class,
    pub nodes: usize,
    pub units: usize,
    pub faults: u32,
    pub first_fault_us: u64,
    pub loss_ppm: u64,
    pub duplicate_ppm: u64,
    pub late_ppm: u64,
    /// How often a table cannot install a few sessions.
    pub later_ppm: u64,
    pub timeout_ticks: u32,
    pub sessions_per_s: u32,
    /// Ports of a public address.
    pub ports: u16,
    /// Whether sessions end before they expire.
    pub ends: bool,
    /// From this time on nothing begins or ends, so that copies can become equal.
    frozen_us: Option<u64>,
}

impl Scenario {
    pub fn draw(seed: u64, rng: &mut Rng) -> Self {
        let class = CLASSES[(seed % CLASSES.len() as u64) as usize];
        let noisy = rng.ppm(600_000);
        let noise = |rng: &mut Rng, most: u64| if noisy { rng.range(0, most) } else { 0 };
        let scarce = class == Class::Reuse;
        Self {
            class,
            nodes: rng.range(2, 5) as usize,
            units: rng.range(1, 4) as usize,
            faults: rng.range(2, 6) as u32,
            first_fault_us: rng.range(1_000_000, 30_000_000),
            loss_ppm: noise(rng, 200_000),
            duplicate_ppm: noise(rng, 100_000),
            late_ppm: noise(rng, 200_000),
            later_ppm: noise(rng, 20_000),
            timeout_ticks: if scarce || rng.ppm(300_000) { 480 } else { 2_400 },
            sessions_per_s: [500, 5_000, 100_000][rng.index(3)],
            ports: if scarce { 256 } else { 16_384 },
            ends: rng.ppm(700_000),
            frozen_us: None,
        }
    }

    /// When the last fault has begun at the latest.
    pub fn faults_end_us(&self) -> u64 {
        self.first_fault_us + u64::from(self.faults) * 25_000_000
    }

    /// The network loses and delays nothing any more.
    pub fn calm(&mut self) {
        (self.loss_ppm, self.duplicate_ppm, self.late_ppm, self.later_ppm) = (0, 0, 0, 0);
    }

    pub fn freeze(&mut self, at_us: u64) {
        self.frozen_us = Some(at_us);
    }

    pub fn is_frozen_at(&self, now_us: u64) -> bool {
        self.frozen_us.is_some_and(|frozen_us| now_us >= frozen_us)
    }

    pub const fn repair_us() -> u64 {
        REPAIR_US
    }

    pub const fn interval_us() -> u64 {
        INTERVAL_US
    }
}
