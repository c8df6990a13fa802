//! What a packet costs the host's processors, by its class: the time in the packet program, which the programs measure for one packet
//! in 64, and the time that the kernel spends on a packet before and after it (`calibration.rs`). Pure.

use sluice_tables::{COST_CLASSES, COST_SAMPLE, PacketCosts};

/// Time in the program until packets were measured, in ns.
const FIRST_NS: u64 = 400;
/// Bounds of a plausible measurement: a virtual machine may stand still in between.
const BOUNDS_NS: std::ops::RangeInclusive<u64> = 50..=20_000;
/// Packets that a class must have had since the last measurement.
const SAMPLES_MIN: u64 = 8;
/// A measurement counts by one part in so many.
const SMOOTHING: u64 = 4;

/// What packets cost besides the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Of each packet, in ns: interrupt, driver, queueing discipline.
    pub packet_ns: u32,
    /// Of each 1024 bytes, in ns: copying and checksums.
    pub kib_ns: u32,
}

/// Packets that were timed, by class: their number, and their time in ns.
pub type Times = [(u64, u64); COST_CLASSES];

/// About the time in ns that all packets of these took in the programs, of which those in `times` were timed.
pub fn program_ns(times: &Times) -> u64 {
    times.iter().fold(0u64, |sum, (_, ns)| sum.wrapping_add(*ns)).wrapping_mul(COST_SAMPLE)
}

/// The estimates.
#[derive(Clone, Debug)]
pub struct Costs {
    overhead: Overhead,
    program_ns: [u64; COST_CLASSES],
    seen: Times,
}

impl Costs {
    /// Before any measurement. `seen` is what programs have timed before.
    pub fn new(overhead: Overhead, seen: Times) -> Self {
        Self { overhead, program_ns: [FIRST_NS; COST_CLASSES], seen }
    }

    /// Takes what programs have timed in all.
    pub fn note(&mut self, times: Times) {
        for (number, (packets, ns)) in times.into_iter().enumerate() {
            let (old_packets, old_ns) = self.seen[number];
            let (more, ns_more) = (packets.wrapping_sub(old_packets), ns.wrapping_sub(old_ns));
            if more < SAMPLES_MIN {
                continue;
            }
            self.seen[number] = (packets, ns);
            let mean = (ns_more / more).clamp(*BOUNDS_NS.start(), *BOUNDS_NS.end());
            let known = &mut self.program_ns[number];
            *known = (*known * (SMOOTHING - 1) + mean) / SMOOTHING;
        }
    }

    /// Changes what packets cost besides the program.
    pub fn set_overhead(&mut self, overhead: Overhead) {
        self.overhead = overhead;
    }

    /// What packets cost.
    pub fn costs(&self) -> PacketCosts {
        let cost = |ns: u64| u32::try_from(ns + u64::from(self.overhead.packet_ns)).unwrap_or(u32::MAX);
        PacketCosts { packet_ns: self.program_ns.map(cost), kib_ns: self.overhead.kib_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERHEAD: Overhead = Overhead { packet_ns: 600, kib_ns: 50 };

    #[test]
    fn estimates_follow_what_was_measured_and_no_outliers() {
        let mut costs = Costs::new(OVERHEAD, [(10, 10_000); COST_CLASSES]);
        assert_eq!(costs.costs(), PacketCosts { packet_ns: [1000; COST_CLASSES], kib_ns: 50 });
        let mut times = [(10, 10_000); COST_CLASSES];
        // Too few packets of the first class; of the second, 800 ns; of the third, a machine that stood still.
        times[0] = (17, 90_000);
        times[1] = (110, 90_000);
        times[2] = (110, 10_000_010_000);
        costs.note(times);
        assert_eq!(costs.costs().packet_ns, [1000, 1100, 600 + (3 * 400 + 20_000) / 4, 1000]);
        // What was too few is counted later.
        times[0] = (110, 20_000);
        costs.note(times);
        assert_eq!(costs.costs().packet_ns[0], 600 + (3 * 400 + 100) / 4);
        for _ in 0..50 {
            times[1] = (times[1].0 + 100, times[1].1 + 80_000);
            costs.note(times);
        }
        assert!((1395..=1400).contains(&costs.costs().packet_ns[1]), "{:?}", costs.costs());
        let before = costs.costs();
        costs.set_overhead(Overhead { packet_ns: 900, kib_ns: 70 });
        assert_eq!(costs.costs().packet_ns, before.packet_ns.map(|ns| ns + 300));
        assert_eq!((costs.costs().kib_ns, program_ns(&[(1, 10), (2, 20), (0, 0), (5, 30)])), (70, 60 * 64));
    }
}
