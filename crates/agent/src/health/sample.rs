//! Counters of this machine, as the kernel shows them below /proc, and what has happened between two readings. This file
//! changes when a rule needs another counter.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Packets of an interface since it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Received packets.
    pub rx_packets: u64,
    /// Received packets with errors.
    pub rx_errors: u64,
    /// Received packets that were dropped: by the interface or the kernel, and with some drivers by programs of XDP.
    pub rx_dropped: u64,
    /// Received packets that the interface had no room for; not all drivers count them.
    pub rx_fifo: u64,
    /// Sent packets.
    pub tx_packets: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets that were not sent because the other side did not take them.
    pub tx_dropped: u64,
}

impl InterfaceCounters {
    /// What was counted since an earlier reading; nothing if the interface was replaced meanwhile.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            rx_packets: self.rx_packets.saturating_sub(before.rx_packets),
            rx_errors: self.rx_errors.saturating_sub(before.rx_errors),
            rx_dropped: self.rx_dropped.saturating_sub(before.rx_dropped),
            rx_fifo: self.rx_fifo.saturating_sub(before.rx_fifo),
            tx_packets: self.tx_packets.saturating_sub(before.tx_packets),
            tx_errors: self.tx_errors.saturating_sub(before.tx_errors),
            tx_dropped: self.tx_dropped.saturating_sub(before.tx_dropped),
        }
    }

    /// What was counted in a second, if this was counted in some.
    #[must_use]
    pub fn per_second(&self, seconds: u64) -> Self {
        let seconds = seconds.max(1);
        Self {
            rx_packets: self.rx_packets / seconds,
            rx_errors: self.rx_errors / seconds,
            rx_dropped: self.rx_dropped / seconds,
            rx_fifo: self.rx_fifo / seconds,
            tx_packets: self.tx_packets / seconds,
            tx_errors: self.tx_errors / seconds,
            tx_dropped: self.tx_dropped / seconds,
        }
    }
}

/// The unit of times in `/proc/stat`: the kernel shows 100 ticks a second on every architecture that Sluice supports.
const TICK_NS: u64 = 10_000_000;

/// A reading of all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time of all processors, in ticks: all of it, and what is left for processes that need it.
    cpu_total: u64,
    cpu_idle: u64,
    /// Time of each processor: all of it, and what it spent in software interrupts.
    processors: Vec<(u64, u64)>,
    /// Memory in KiB, without that which is set aside as huge pages: VMs have these, and they are never available.
    memory_total: u64,
    memory_available: u64,
    /// Packets that found the queue of their processor full, and times that a processor had to leave packets for later.
    softnet_dropped: u64,
    softnet_squeezed: u64,
    /// Interfaces of this network namespace, by name.
    pub interfaces: BTreeMap<String, InterfaceCounters>,
}

impl Counters {
    /// Reads the files below `proc`, which is `/proc` unless in tests.
    ///
    /// # Errors
    /// If a file cannot be read, or has another form.
    pub fn read(proc: &Path) -> io::Result<Self> {
        let text = |name: &str| fs::read_to_string(proc.join(name));
        let mut counters = Self::default();
        counters.read_stat(&text("stat")?).ok_or_else(|| malformed("stat"))?;
        counters.read_memory(&text("meminfo")?).ok_or_else(|| malformed("meminfo"))?;
        counters.read_softnet(&text("net/softnet_stat")?).ok_or_else(|| malformed("net/softnet_stat"))?;
        counters.interfaces = read_interfaces(&text("net/dev")?);
        Ok(counters)
    }

    fn read_stat(&mut self, text: &str) -> Option<()> {
        for line in text.lines().filter_map(|line| line.strip_prefix("cpu")) {
            let (number, times) = line.split_once(' ')?;
            let times: Vec<u64> =
                times.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
            // user nice system idle iowait irq softirq steal; what follows is contained in user and nice.
            let times = times.get(..8)?;
            let total = times.iter().sum();
            if number.is_empty() {
                // A process with a positive nice value leaves the processor to the others, so its time counts as idle.
                (self.cpu_total, self.cpu_idle) = (total, times[1] + times[3] + times[4]);
            } else {
                self.processors.push((total, times[6]));
            }
        }
        (self.cpu_total > 0).then_some(())
    }

    fn read_memory(&mut self, text: &str) -> Option<()> {
        let value = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        self.memory_total = value("MemTotal:")?.saturating_sub(value("Hugetlb:").unwrap_or(0));
        self.memory_available = value("MemAvailable:")?;
        Some(())
    }

    /// One line for each processor, with hexadecimal numbers.
    fn read_softnet(&mut self, text: &str) -> Option<()> {
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace().map(|word| u64::from_str_radix(word, 16).ok());
            self.softnet_dropped += fields.nth(1)??;
            self.softnet_squeezed += fields.next()??;
        }
        Some(())
    }
}

/// Time in ns that the processors of this machine have spent in software interrupts, which have a resolution of 10 ms. `proc` is `/proc`
/// unless in tests.
///
/// # Errors
/// If the file cannot be read, or has another form.
pub fn softirq_ns(proc: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(proc.join("stat"))?;
    let all = text.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks = all.and_then(|times| times.split_ascii_whitespace().nth(6)?.parse::<u64>().ok());
    ticks.map(|ticks| ticks.saturating_mul(TICK_NS)).ok_or_else(|| malformed("stat"))
}

/// Number of processors of this machine that are online, whichever of them this process may use. `proc` is `/proc` unless in tests.
///
/// # Errors
/// If the file cannot be read, or has another form.
pub fn online_processors(proc: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(proc.join("stat"))?;
    let names = text.lines().filter_map(|line| line.strip_prefix("cpu"));
    let count = names.filter(|name| name.starts_with(|first: char| first.is_ascii_digit())).count();
    if count == 0 { Err(malformed("stat")) } else { Ok(count as u64) }
}

fn malformed(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{name} has an unknown form"))
}

/// Lines without the expected form, such as the headings, are omitted.
fn read_interfaces(text: &str) -> BTreeMap<String, InterfaceCounters> {
    let interface = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        let &[
            _,
            rx_packets,
            rx_errors,
            rx_dropped,
            rx_fifo,
            _,
            _,
            _,
            _,
            tx_packets,
            tx_errors,
            tx_dropped,
            ..,
        ] = counts.as_slice()
        else {
            return None;
        };
        let counters = InterfaceCounters {
            rx_packets,
            rx_errors,
            rx_dropped,
            rx_fifo,
            tx_packets,
            tx_errors,
            tx_dropped,
        };
        Some((name.trim().to_owned(), counters))
    };
    text.lines().filter_map(interface).collect()
}

/// What has happened on this machine between two readings, packets and squeezes for a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Part of the processors' time that was used, in thousandths.
    pub cpu_permille: u64,
    /// Part of its time that the busiest processor spent in software interrupts, in which packets are processed.
    pub softirq_permille: u64,
    /// Part of the memory that is available, in thousandths.
    pub memory_available_permille: u64,
    /// Packets that found the queue of their processor full.
    pub softnet_dropped: u64,
    /// Times that a processor had to leave packets for later.
    pub softnet_squeezed: u64,
}

impl Usage {
    /// What has happened between `before` and `now`, which are some seconds apart.
    #[must_use]
    pub fn between(before: &Counters, now: &Counters, seconds: u64) -> Self {
        let seconds = seconds.max(1);
        let total = now.cpu_total.saturating_sub(before.cpu_total);
        let permille = |part: u64, of: u64| (part.min(of) * 1000).checked_div(of).unwrap_or(0);
        let idle = now.cpu_idle.saturating_sub(before.cpu_idle);
        // A processor that goes offline or comes back shifts the others for one sample.
        let softirq =
            before.processors.iter().zip(&now.processors).map(|(before, now)| {
                permille(now.1.saturating_sub(before.1), now.0.saturating_sub(before.0))
            });
        Self {
            cpu_permille: if total == 0 { 0 } else { 1000 - permille(idle, total) },
            softirq_permille: softirq.max().unwrap_or(0),
            memory_available_permille: if now.memory_total == 0 {
                1000
            } else {
                permille(now.memory_available, now.memory_total)
            },
            softnet_dropped: now.softnet_dropped.saturating_sub(before.softnet_dropped) / seconds,
            softnet_squeezed: now.softnet_squeezed.saturating_sub(before.softnet_squeezed) / seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: &str = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 9000 90 2 3 7 0 0 4 8000 80 5 6 0 0 0 0
";

    fn write(dir: &Path, stat: &str, available: u64, softnet: &str) {
        fs::create_dir_all(dir.join("net")).unwrap();
        fs::write(dir.join("stat"), format!("{stat}\nintr 5\n")).unwrap();
        let memory = format!("MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  {available} kB\n");
        fs::write(dir.join("meminfo"), memory).unwrap();
        fs::write(dir.join("net/softnet_stat"), softnet).unwrap();
        fs::write(dir.join("net/dev"), DEV).unwrap();
    }

    /// Catches a column that is taken for another one.
    #[test]
    fn files_are_read_as_the_kernel_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 50 0 0 0 0 0 50 0\ncpu1 9 0 0 0 0 0 9 0",
            400,
            "000000ff 00000001 00000002 0\n",
        );
        let before = Counters::read(dir.path()).unwrap();
        assert_eq!((softirq_ns(dir.path()).unwrap(), online_processors(dir.path()).unwrap()), (0, 2));
        let eth0 = InterfaceCounters {
            rx_packets: 90,
            rx_errors: 2,
            rx_dropped: 3,
            rx_fifo: 7,
            tx_packets: 80,
            tx_errors: 5,
            tx_dropped: 6,
        };
        assert_eq!((before.interfaces.len(), before.interfaces["eth0"]), (2, eth0));
        write(
            dir.path(),
            "cpu  150 70 100 730 100 0 50 0 9 9\ncpu0 120 0 0 0 0 0 80 0\ncpu1 99 0 0 0 0 0 19 0",
            40,
            "000001ff 0000000b 00000002 0\n00000001 00000001 0000000a 0\n",
        );
        let now = Counters::read(dir.path()).unwrap();
        assert_eq!(softirq_ns(dir.path()).unwrap(), 500_000_000);
        let usage = Usage::between(&before, &now, 1);
        assert_eq!(
            usage,
            Usage {
                cpu_permille: 500,
                softirq_permille: 300,
                memory_available_permille: 40,
                softnet_dropped: 11,
                softnet_squeezed: 10,
            }
        );
        // After a pause, counts are those of a second.
        let usage = Usage::between(&before, &now, 5);
        assert_eq!((usage.cpu_permille, usage.softnet_dropped, usage.softnet_squeezed), (500, 2, 2));
        let counters = InterfaceCounters {
            rx_packets: 18,
            rx_fifo: 1,
            tx_packets: 16,
            tx_errors: 1,
            tx_dropped: 1,
            ..InterfaceCounters::default()
        };
        assert_eq!(eth0.per_second(5), counters);
    }

    /// Huge pages that are reserved for VMs do not count as memory of the host's processes.
    #[test]
    fn huge_pages_are_no_used_memory() {
        let mut counters = Counters::default();
        let text = "MemTotal: 1000 kB\nMemAvailable: 20 kB\nHugetlb: 900 kB\n";
        counters.read_memory(text).unwrap();
        assert_eq!(Usage::between(&counters, &counters, 1).memory_available_permille, 200);
    }

    #[test]
    fn the_files_of_this_machine_are_read() {
        let counters = Counters::read(Path::new("/proc")).unwrap();
        assert!(counters.cpu_total > 0 && counters.memory_total > counters.memory_available);
        assert!(counters.interfaces.contains_key("lo"));
        let usage = Usage::between(&counters, &counters, 1);
        assert_eq!((usage.cpu_permille, usage.softnet_dropped), (0, 0));
    }

    #[test]
    fn a_file_of_another_form_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "cpu  1 2 3", 1, "");
        assert!(Counters::read(dir.path()).is_err() && softirq_ns(dir.path()).is_err());
        assert!(online_processors(dir.path()).is_err());
        write(dir.path(), "cpu  1 2 3 4 5 6 7 8", 1, "1 zz 2\n");
        assert!(Counters::read(dir.path()).is_err());
        assert!(Counters::read(&dir.path().join("absent")).is_err());
    }
}
