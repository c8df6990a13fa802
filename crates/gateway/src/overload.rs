//! Whether this gateway is overloaded (Zeta section IV-C): then it offloads every flow, not only elephants.
//! Pure: the figures of `/proc` and of the tables are arguments. This file changes with the thresholds or the
//! resources that count.
//!
//! The state of each resource; the gateway is overloaded while one of them is:
//!
//! ```text
//!            share >= 0.8
//!     NORMAL ------------> OVERLOADED
//!        ^                     |
//!        +---------------------+        between the thresholds, and while the
//!            share < 0.7                share is unknown, the state does not change
//! ```

use std::fmt;

use sluice_tables::TableUsage;

/// Share from which on a resource is overloaded.
const OVERLOAD_THRESHOLD: f64 = 0.8;
/// Share below which a resource is not overloaded any more.
const RELIEF_THRESHOLD: f64 = 0.7;

/// A resource of the gateway that may run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Time of the cores that forward.
    Cpu,
    /// Memory of the machine.
    Memory,
    /// Memory of the forwarding tables.
    Tables,
}

impl Resource {
    /// All resources, in the order of [`Shares`].
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Tables];

    /// Name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Tables => "tables",
        }
    }
}

/// Share of each resource in use, from 0 to 1, in the order of [`Resource::ALL`]; `None` if it is unknown.
pub type Shares = [Option<f64>; 3];

/// Which resources are overloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overload([bool; 3]);

impl Overload {
    /// Whether any resource is overloaded, so that every flow is offloaded.
    pub fn any(self) -> bool {
        self.0.contains(&true)
    }

    /// The state after new shares were measured.
    pub fn next(self, shares: &Shares) -> Self {
        let mut next = self;
        for (overloaded, share) in next.0.iter_mut().zip(shares) {
            match share {
                Some(share) if *share >= OVERLOAD_THRESHOLD => *overloaded = true,
                Some(share) if *share < RELIEF_THRESHOLD => *overloaded = false,
                _ => {}
            }
        }
        next
    }
}

impl fmt::Display for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let overloaded = Resource::ALL.iter().zip(self.0).filter(|(_, overloaded)| *overloaded);
        let names: Vec<&str> = overloaded.map(|(resource, _)| resource.name()).collect();
        f.write_str(if names.is_empty() { "nothing" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// The ticks of each CPU in `/proc/stat`: name, ticks in soft interrupts, and all ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks(Vec<(String, u64, u64)>);

impl CpuTicks {
    /// Parses `/proc/stat`.
    pub fn parse(stat: &str) -> Self {
        let cpu = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let name = words.next()?;
            // The first line is the sum of the others.
            name.strip_prefix("cpu")?.parse::<u32>().ok()?;
            // user nice system idle iowait irq softirq steal; the time of guests is part of the user time.
            let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            Some((name.to_owned(), *ticks.get(6)?, ticks.iter().sum()))
        };
        Self(stat.lines().filter_map(cpu).collect())
    }

    /// How busy the CPUs that process packets were since `before`: the share of time that each CPU spent in
    /// soft interrupts, weighted by that share. A gateway that forwards on two of 64 cores is overloaded when
    /// these two are. `None` if no time has passed.
    pub fn softirq_share(&self, before: &Self) -> Option<f64> {
        let (mut weights, mut sum, mut passed) = (0.0, 0.0, 0);
        for (name, soft, all) in &self.0 {
            let Some((_, soft_before, all_before)) = before.0.iter().find(|(other, ..)| other == name) else {
                continue;
            };
            // The counters of a CPU that was offline may begin at 0 again.
            let (soft, all) = (soft.saturating_sub(*soft_before), all.saturating_sub(*all_before));
            if all == 0 {
                continue;
            }
            passed += all;
            let share = (soft as f64 / all as f64).min(1.0);
            weights += share;
            sum += share * share;
        }
        if passed == 0 {
            return None;
        }
        Some(if weights > 0.0 { sum / weights } else { 0.0 })
    }
}

/// Share of the machine's memory in use, from `/proc/meminfo`.
pub fn memory_share(meminfo: &str) -> Option<f64> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, available) = (field("MemTotal")?, field("MemAvailable")?);
    (total > 0).then(|| 1.0 - available.min(total) as f64 / total as f64)
}

/// Share of the tables' cells in use.
pub fn tables_share(usage: &TableUsage) -> Option<f64> {
    (usage.cells_total > 0).then(|| usage.cells_live() as f64 / usage.cells_total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overload_ends_below_the_relief_threshold() {
        let mut overload = Overload::default();
        let mut seen = Vec::new();
        for share in [0.1, 0.79, 0.80, 0.75, 0.70, 0.69, 0.75, 0.95, 0.5] {
            overload = overload.next(&[Some(share), Some(0.2), None]);
            seen.push(overload.any());
        }
        assert_eq!(seen, [false, false, true, true, true, false, false, true, false]);
    }

    #[test]
    fn resources_are_independent_and_one_overloads_the_gateway() {
        let both = Overload::default().next(&[Some(0.9), Some(0.9), Some(0.1)]);
        assert_eq!(both.to_string(), "cpu, memory");
        let one = both.next(&[Some(0.1), Some(0.75), Some(0.1)]);
        assert!(one.any());
        assert_eq!(one.to_string(), "memory");
        // Unknown shares change nothing.
        assert_eq!(one.next(&[None; 3]), one);
        assert_eq!(one.next(&[Some(0.1), Some(0.0), Some(0.1)]).to_string(), "nothing");
    }

    fn stat(cpus: &[(u64, u64)]) -> CpuTicks {
        let mut text = "cpu  9 9 9 9 9 9 9 9 9 9\n".to_owned();
        for (number, (soft, idle)) in cpus.iter().enumerate() {
            text.push_str(&format!("cpu{number} 10 0 5 {idle} 1 2 {soft} 0 3 0\n"));
        }
        CpuTicks::parse(&(text + "intr 12345 0\nsoftirq 99 1 2 3\n"))
    }

    #[test]
    fn share_is_that_of_the_cores_that_process_packets() {
        let before = stat(&[(100, 1000); 64]);
        // Two of 64 cores process all packets, and are 90 % busy.
        let mut now = [(100, 1100); 64];
        (now[3], now[40]) = ((190, 1010), (190, 1010));
        let share = stat(&now).softirq_share(&before).unwrap();
        assert!((share - 0.9).abs() < 1e-9, "{share}");
        // All cores at 10 % are a load of 10 %, however many cores there are.
        let share = stat(&[(110, 1090); 64]).softirq_share(&before).unwrap();
        assert!((share - 0.1).abs() < 1e-9, "{share}");
        assert_eq!(before.softirq_share(&before), None);
        assert_eq!(stat(&[(100, 1100); 2]).softirq_share(&before), Some(0.0));
        // The counters of the second CPU began at 0 again, and the third CPU is new.
        let share = stat(&[(150, 1050), (50, 50), (150, 1050)]).softirq_share(&stat(&[(100, 1000); 2]));
        assert!((share.unwrap() - 0.5).abs() < 1e-9, "{share:?}");
    }

    #[test]
    fn figures_of_this_machine_can_be_parsed() {
        let ticks = CpuTicks::parse(&std::fs::read_to_string("/proc/stat").unwrap());
        assert!(!ticks.0.is_empty());
        assert!(ticks.0.iter().all(|(_, soft, all)| soft <= all));
        let memory = memory_share(&std::fs::read_to_string("/proc/meminfo").unwrap()).unwrap();
        assert!(memory > 0.0 && memory < 1.0, "{memory}");
        assert_eq!(memory_share("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n"), Some(0.75));
        assert_eq!(memory_share("MemTotal: 1000 kB\n"), None);
        let usage =
            TableUsage { cells_total: 200, cells_used: 80, cells_pending: 30, ..TableUsage::default() };
        assert_eq!((tables_share(&usage), tables_share(&TableUsage::default())), (Some(0.25), None));
    }
}
