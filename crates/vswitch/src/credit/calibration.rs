//! Calibrates what the kernel spends on a packet besides the packet program: it compares the time of software interrupts of the machine
//! with what the ports have sent and received meanwhile. This file changes with that estimate. Pure.
//!
//! Each window of [`WINDOW`] in which the ports are busy gives one ratio of what was measured to what the configured costs predict, and
//! moves the two costs, of a packet and of 1024 bytes, towards it by a step of the normalized least mean squares: each cost by the
//! part that it has in the prediction. Windows of small packets decide about the one, windows of large packets about the other.
//! A window moves a cost by a bounded step, and the costs stay between [`RATIO_MIN`] and [`RATIO_MAX`] of those that are configured: a VM
//! can choose what it sends, and the machine does other work.

use std::str::FromStr;
use std::time::Duration;

use super::costs::Overhead;

/// Time of a window. The kernel counts processor time in ticks of 10 ms.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Bounds of a cost, as parts of the one that is configured.
const RATIO_MIN: f64 = 0.25;
const RATIO_MAX: f64 = 4.0;
/// A busy window has at least this predicted time in a second; a quiet one at most that.
const BUSY_NS: f64 = 10_000_000.0;
const QUIET_NS: f64 = 1_000_000.0;
/// Part of an error by which a window moves the costs, and the largest error that counts.
const RATE: f64 = 0.1;
const ERROR_MAX: f64 = 0.5;
/// Part by which a quiet window moves what the machine does besides.
const BACKGROUND_RATE: f64 = 0.25;
/// Busy windows after which the costs count as calibrated.
const WINDOWS_MIN: u64 = 30;
/// Costs before the first window, in ns.
const PACKET_NS: u32 = 600;
const KIB_NS: u32 = 60;

/// How a cost is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostSetting {
    /// It is measured.
    Auto,
    /// It is this number of ns.
    Fixed(u32),
}

impl FromStr for CostSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            number => match number.parse() {
                Ok(ns @ 0..=1_000_000) => Ok(Self::Fixed(ns)),
                _ => Err("neither `auto` nor a number from 0 to 1000000".to_owned()),
            },
        }
    }
}

/// How both costs are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostSettings {
    /// Of each packet.
    pub packet_ns: CostSetting,
    /// Of each 1024 bytes.
    pub kib_ns: CostSetting,
}

impl CostSettings {
    /// The same without measurements: what would be measured stays as it begins.
    pub fn without_measurement(self) -> Self {
        let fixed = |setting, first| match setting {
            CostSetting::Auto => CostSetting::Fixed(first),
            fixed @ CostSetting::Fixed(_) => fixed,
        };
        Self { packet_ns: fixed(self.packet_ns, PACKET_NS), kib_ns: fixed(self.kib_ns, KIB_NS) }
    }
}

/// What has happened in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Its length.
    pub elapsed: Duration,
    /// Time of the machine's software interrupts, in ns.
    pub softirq_ns: u64,
    /// Part of it that the packet programs took, in ns.
    pub program_ns: u64,
    /// Frames for which ports were charged.
    pub frames: u64,
    /// Bytes of ports, of both directions.
    pub bytes: u64,
}

/// The estimate of the two costs.
#[derive(Clone, Debug)]
pub struct Calibrator {
    /// In ns: of a packet, and of 1024 bytes.
    configured: [f64; 2],
    /// Whether each of them is measured.
    is_free: [bool; 2],
    /// The costs as parts of the configured ones.
    ratios: [f64; 2],
    /// Time of software interrupts in a second of a quiet machine, in ns.
    background_ns: Option<f64>,
    windows: u64,
}

impl Calibrator {
    /// Before the first window.
    pub fn new(settings: CostSettings) -> Self {
        let chosen = |setting, first: u32| match setting {
            CostSetting::Auto => (f64::from(first), true),
            CostSetting::Fixed(ns) => (f64::from(ns), false),
        };
        let (packet, kib) = (chosen(settings.packet_ns, PACKET_NS), chosen(settings.kib_ns, KIB_NS));
        Self {
            configured: [packet.0, kib.0],
            is_free: [packet.1, kib.1],
            ratios: [1.0; 2],
            background_ns: None,
            windows: 0,
        }
    }

    /// Whether any cost is measured.
    pub fn is_active(&self) -> bool {
        self.is_free.contains(&true)
    }

    /// Whether the costs that are measured have had enough busy windows.
    pub fn is_calibrated(&self) -> bool {
        self.is_active() && self.windows >= WINDOWS_MIN
    }

    /// Number of busy windows so far.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// The costs now.
    pub fn overhead(&self) -> Overhead {
        let cost = |number: usize| (self.configured[number] * self.ratios[number]).round() as u32;
        Overhead { packet_ns: cost(0), kib_ns: cost(1) }
    }

    /// Takes what has happened in a window. Windows that say nothing are ignored: those between quiet and busy, and those whose packets were
    /// not handled in software interrupts, as those that a thread of a VM's device hands over.
    pub fn note(&mut self, load: Load) {
        let seconds = load.elapsed.as_secs_f64();
        if !self.is_active() || seconds <= 0.0 {
            return;
        }
        let kernel = load.softirq_ns.saturating_sub(load.program_ns) as f64;
        let amounts = [load.frames as f64, load.bytes as f64 / 1024.0];
        let parts = [amounts[0] * self.configured[0], amounts[1] * self.configured[1]];
        let predicted = parts[0] + parts[1];
        if predicted <= QUIET_NS * seconds {
            let known = self.background_ns.get_or_insert(kernel / seconds);
            *known += BACKGROUND_RATE * (kernel / seconds - *known);
        } else if predicted >= BUSY_NS * seconds && load.softirq_ns >= load.program_ns {
            let measured = (kernel - self.background_ns.unwrap_or(0.0) * seconds).max(0.0);
            self.learn(parts.map(|part| part / predicted), measured / predicted);
        }
    }

    /// Moves the costs towards a ratio of what was measured to what was predicted, in which each cost has a part.
    fn learn(&mut self, parts: [f64; 2], ratio: f64) {
        let expected = parts[0] * self.ratios[0] + parts[1] * self.ratios[1];
        let error = (ratio.clamp(RATIO_MIN, RATIO_MAX) - expected).clamp(-ERROR_MAX, ERROR_MAX);
        let free = |number: usize| if self.is_free[number] { parts[number] } else { 0.0 };
        let free = [free(0), free(1)];
        let norm = free[0] * free[0] + free[1] * free[1];
        // What has a small part cannot be told from an error of the other one.
        if norm < 0.05 {
            return;
        }
        for (known, part) in self.ratios.iter_mut().zip(free) {
            *known = (*known + RATE * error * part / norm).clamp(RATIO_MIN, RATIO_MAX);
        }
        self.windows += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTO: CostSettings = CostSettings { packet_ns: CostSetting::Auto, kib_ns: CostSetting::Auto };

    /// A machine on which a packet costs `packet` ns, 1024 bytes cost `kib` ns, and other work `besides` ns in a second.
    #[derive(Clone, Copy)]
    struct Machine {
        packet: f64,
        kib: f64,
        besides: f64,
    }

    impl Machine {
        /// A window with this number of frames of this size. The program takes 300 ns for each.
        fn window(self, frames: u64, size: u64) -> Load {
            let bytes = frames * size;
            let program_ns = frames * 300;
            let kernel = self.packet * frames as f64 + self.kib * bytes as f64 / 1024.0;
            let softirq = program_ns as f64 + kernel + self.besides * WINDOW.as_secs_f64();
            // The kernel counts ticks.
            let softirq_ns = (softirq / 1e7) as u64 * 10_000_000;
            Load { elapsed: WINDOW, softirq_ns, program_ns, frames, bytes }
        }
    }

    fn is_near(found: u32, right: f64) -> bool {
        (f64::from(found) / right - 1.0).abs() < 0.1
    }

    /// Catches costs that are mixed up, and other work of the machine that counts as packets'.
    #[test]
    fn both_costs_converge_to_those_of_the_machine() {
        for machine in [
            Machine { packet: 900.0, kib: 150.0, besides: 0.0 },
            Machine { packet: 300.0, kib: 30.0, besides: 3e7 },
            Machine { packet: 1800.0, kib: 60.0, besides: 1e8 },
        ] {
            let mut costs = Calibrator::new(AUTO);
            for _ in 0..20 {
                costs.note(machine.window(1000, 100));
            }
            assert!(!costs.is_calibrated() && costs.windows() == 0, "quiet windows say nothing of packets");
            // Small packets, large ones, and those that are segmented later.
            let mix = [(3_000_000, 80), (1_000_000, 1400), (500_000, 30_000), (2_000_000, 500)];
            for number in 0..1500 {
                let (frames, size) = mix[number % mix.len()];
                costs.note(machine.window(frames + number as u64 % 7 * 10_000, size));
            }
            let found = costs.overhead();
            assert!(costs.is_calibrated());
            assert!(
                is_near(found.packet_ns, machine.packet) && is_near(found.kib_ns, machine.kib),
                "{found:?}"
            );
        }
    }

    /// Catches a cost of bytes that windows without bytes have changed.
    #[test]
    fn what_was_not_seen_keeps_its_cost() {
        let machine = Machine { packet: 1500.0, kib: 240.0, besides: 0.0 };
        let mut costs = Calibrator::new(AUTO);
        for _ in 0..500 {
            costs.note(machine.window(3_000_000, 60));
        }
        let found = costs.overhead();
        assert!(is_near(found.packet_ns, 1500.0) && is_near(found.kib_ns, 60.0), "{found:?}");
    }

    /// A VM may let the machine do what is not counted as its packets, or keep it from being counted.
    #[test]
    fn a_hostile_vm_moves_costs_slowly_and_never_out_of_their_bounds() {
        let honest = Machine { packet: 600.0, kib: 60.0, besides: 0.0 };
        let load = honest.window(2_000_000, 300);
        let all = |softirq_ns| Load { softirq_ns, ..load };
        let mut costs = Calibrator::new(AUTO);
        costs.note(all(u64::MAX));
        let after_one = costs.overhead();
        assert!(after_one.packet_ns <= 640 && after_one.kib_ns <= 64, "{after_one:?}");
        for _ in 0..10_000 {
            costs.note(all(u64::MAX));
            costs.note(Load { bytes: u64::MAX, ..all(u64::MAX) });
            costs.note(Load { frames: u64::MAX, bytes: 0, ..all(u64::MAX) });
        }
        let Overhead { packet_ns, kib_ns } = costs.overhead();
        assert!((600..=2400).contains(&packet_ns) && (60..=240).contains(&kib_ns), "{packet_ns} {kib_ns}");
        for _ in 0..10_000 {
            costs.note(all(load.program_ns));
        }
        let Overhead { packet_ns, kib_ns } = costs.overhead();
        assert!(packet_ns == 150 && (15..=240).contains(&kib_ns), "{packet_ns} {kib_ns}");
        // A quiet window with much other work makes what follows look cheap, but not for long.
        let mut costs = Calibrator::new(AUTO);
        costs.note(Load { softirq_ns: u64::MAX, ..honest.window(10, 100) });
        for _ in 0..200 {
            costs.note(honest.window(10, 100));
        }
        (0..300).for_each(|_| costs.note(honest.window(2_000_000, 300)));
        assert!(is_near(costs.overhead().packet_ns, 600.0), "{:?}", costs.overhead());
    }

    #[test]
    fn fixed_costs_stay_and_the_other_one_is_measured() {
        let machine = Machine { packet: 700.0, kib: 120.0, besides: 0.0 };
        let settings = CostSettings { packet_ns: CostSetting::Fixed(700), ..AUTO };
        let mut costs = Calibrator::new(settings);
        (0..500).for_each(|_| costs.note(machine.window(500_000, 30_000)));
        let found = costs.overhead();
        assert!(found.packet_ns == 700 && is_near(found.kib_ns, 120.0), "{found:?}");
        let fixed = CostSettings { kib_ns: CostSetting::Fixed(0), ..settings };
        let mut costs = Calibrator::new(fixed);
        (0..500).for_each(|_| costs.note(machine.window(500_000, 30_000)));
        assert_eq!(costs.overhead(), Overhead { packet_ns: 700, kib_ns: 0 });
        assert!(!costs.is_active() && !costs.is_calibrated());
    }

    /// Catches windows without a measurement that change the costs.
    #[test]
    fn windows_without_a_measurement_are_ignored() {
        let machine = Machine { packet: 2000.0, kib: 200.0, besides: 0.0 };
        let mut costs = Calibrator::new(AUTO);
        let busy = machine.window(2_000_000, 300);
        costs.note(machine.window(20_000, 300));
        costs.note(Load { softirq_ns: busy.program_ns - 1, ..busy });
        costs.note(Load { elapsed: Duration::ZERO, ..busy });
        assert_eq!((costs.windows(), costs.overhead()), (0, Overhead { packet_ns: 600, kib_ns: 60 }));
        costs.note(busy);
        assert_eq!(costs.windows(), 1);
    }

    #[test]
    fn settings_are_numbers_or_auto() {
        assert_eq!("auto".parse(), Ok(CostSetting::Auto));
        assert_eq!("0".parse(), Ok(CostSetting::Fixed(0)));
        assert_eq!("1000000".parse(), Ok(CostSetting::Fixed(1_000_000)));
        for bad in ["", "Auto", "-1", "1000001", "6 00"] {
            assert!(bad.parse::<CostSetting>().is_err(), "{bad}");
        }
    }
}
