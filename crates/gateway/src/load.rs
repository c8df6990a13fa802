//! Whether this gateway has more to do than it should (Zeta section IV-C): then
//! it stops telling elephants from mice, and offloads every flow.
//!
//! The decision is pure; what it is made from comes from `/proc` and the tables.

use std::fmt;

use sluice_tables::Fill;

/// From this share on a resource is overloaded...
const HIGH: f64 = 0.8;
/// ... until it is below this one.
const LOW: f64 = 0.7;

/// What may run out.
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
    /// All, in the order of [`Shares`].
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Tables];

    /// Its name, as metrics and log have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Tables => "tables",
        }
    }
}

/// How much of each resource is taken, 0 to 1, by [`Resource::ALL`]; `None`: not known.
pub type Shares = [Option<f64>; 3];

/// Which resources are overloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overload([bool; 3]);

impl Overload {
    /// Whether every flow is to be offloaded.
    pub fn any(self) -> bool {
        self.0.contains(&true)
    }

    /// After these shares were seen. Between the two marks, and while a share is not known, all stays as
    /// it is.
    pub fn next(self, shares: &Shares) -> Self {
        let mut next = self;
        for (above, share) in next.0.iter_mut().zip(shares) {
            match share {
                Some(share) if *share >= HIGH => *above = true,
                Some(share) if *share < LOW => *above = false,
                _ => {}
            }
        }
        next
    }
}

impl fmt::Display for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above = Resource::ALL.iter().zip(self.0).filter(|(_, above)| *above);
        let names: Vec<&str> = above.map(|(resource, _)| resource.name()).collect();
        f.write_str(if names.is_empty() { "nothing" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// What `/proc/stat` says of each CPU: ticks in soft interrupts, and in all.
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
            // user nice system idle iowait irq softirq steal; guests' time is in user's.
            let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            Some((name.to_owned(), *ticks.get(6)?, ticks.iter().sum()))
        };
        Self(stat.lines().filter_map(cpu).collect())
    }

    /// How busy packets kept the CPUs that they were processed on, since `before`: each CPU's share of time
    /// in soft interrupts, weighted by that time. A gateway that forwards on two cores of sixty-four is
    /// overloaded when these two are. `None` if no time has passed.
    pub fn softirq_share(&self, before: &Self) -> Option<f64> {
        let (mut weights, mut sum, mut passed) = (0.0, 0.0, 0);
        for (name, soft, all) in &self.0 {
            let Some((_, soft_before, all_before)) = before.0.iter().find(|(other, ..)| other == name) else {
                continue;
            };
            // A CPU that went offline and came back counts anew.
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

/// The share of the machine's memory that is taken, from `/proc/meminfo`.
pub fn memory_share(meminfo: &str) -> Option<f64> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, available) = (field("MemTotal")?, field("MemAvailable")?);
    (total > 0).then(|| 1.0 - available.min(total) as f64 / total as f64)
}

/// The share of the tables' memory that is taken.
pub fn tables_share(fill: &Fill) -> Option<f64> {
    (fill.cells_total > 0).then(|| fill.cells_live() as f64 / fill.cells_total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_stays_so_until_it_is_well_below() {
        let mut overload = Overload::default();
        let mut seen = Vec::new();
        for share in [0.1, 0.79, 0.80, 0.75, 0.70, 0.69, 0.75, 0.95, 0.5] {
            overload = overload.next(&[Some(share), Some(0.2), None]);
            seen.push(overload.any());
        }
        assert_eq!(seen, [false, false, true, true, true, false, false, true, false]);
    }

    #[test]
    fn each_resource_is_its_own_and_any_is_enough() {
        let both = Overload::default().next(&[Some(0.9), Some(0.9), Some(0.1)]);
        assert_eq!(both.to_string(), "cpu, memory");
        let one = both.next(&[Some(0.1), Some(0.75), Some(0.1)]);
        assert!(one.any());
        assert_eq!(one.to_string(), "memory");
        // What is not known changes nothing.
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
    fn the_cores_that_forward_count() {
        let before = stat(&[(100, 1000); 64]);
        // Two of 64 do all the work, at 90 %.
        let mut now = [(100, 1100); 64];
        (now[3], now[40]) = ((190, 1010), (190, 1010));
        let share = stat(&now).softirq_share(&before).unwrap();
        assert!((share - 0.9).abs() < 1e-9, "{share}");
        // A little everywhere is no load, however many cores it is.
        let share = stat(&[(110, 1090); 64]).softirq_share(&before).unwrap();
        assert!((share - 0.1).abs() < 1e-9, "{share}");
        assert_eq!(before.softirq_share(&before), None);
        assert_eq!(stat(&[(100, 1100); 2]).softirq_share(&before), Some(0.0));
        // The second CPU counts anew, the third is new.
        let share = stat(&[(150, 1050), (50, 50), (150, 1050)]).softirq_share(&stat(&[(100, 1000); 2]));
        assert!((share.unwrap() - 0.5).abs() < 1e-9, "{share:?}");
    }

    #[test]
    fn this_machine_says_what_is_needed() {
        let ticks = CpuTicks::parse(&std::fs::read_to_string("/proc/stat").unwrap());
        assert!(!ticks.0.is_empty());
        assert!(ticks.0.iter().all(|(_, soft, all)| soft <= all));
        let memory = memory_share(&std::fs::read_to_string("/proc/meminfo").unwrap()).unwrap();
        assert!(memory > 0.0 && memory < 1.0, "{memory}");
        assert_eq!(memory_share("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n"), Some(0.75));
        assert_eq!(memory_share("MemTotal: 1000 kB\n"), None);
        let fill = Fill { cells_total: 200, cells_used: 80, cells_pending: 30, ..Fill::default() };
        assert_eq!((tables_share(&fill), tables_share(&Fill::default())), (Some(0.25), None));
    }
}
