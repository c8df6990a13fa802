//! Command line options of the vSwitch.

use std::net::IpAddr;
use std::path::Path;

use clap::{Args as ClapArgs, ValueEnum};
use sluice_agent::health::sample::{online_processors, softirq_ns};
use sluice_agent::netlink::Link;
use sluice_agent::{CommonArgs, Error, error_chain};
use sluice_datapath::{Datapath, SESSION_MAPS};
use sluice_tables::layout::SESSION_SLOTS;
use sluice_tables::sessions::Timeouts;
use sluice_tables::{PortCredits, PortMeters};

use crate::credit::{Calibrator, Capacity, CostSetting, CostSettings, CreditKeeper, Sensors};
use crate::guard::PortName;
use crate::rates::Rates;

/// UDP port by which hosts copy the sessions of instances that migrate (`api/migration.md`).
const MIGRATION_PORT: u16 = 4801;
/// Longest time for which a port adopts connections, in seconds.
pub const ADOPT_SECONDS_MAX: u32 = 3600;
/// Where the kernel shows the interfaces.
const INTERFACES: &str = "/sys/class/net";
/// Most interfaces of which each is above the next, as a VLAN above a bond above a device.
const STACKED_MAX: u32 = 4;
/// Sessions of each address family: what half a hundred VMs of a busy host have.
const SESSIONS_DEFAULT: u32 = 1 << 18;

/// Run a host's vSwitch: connect its VMs' ports to their VPCs
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Options of every node agent.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Underlay interface of this host
    #[arg(long, value_name = "IF", required_unless_present = "flush")]
    pub uplink: Option<String>,

    /// This host's address on the underlay [default: the uplink's first address, IPv4 before IPv6]
    #[arg(long, value_name = "ADDRESS")]
    pub vtep: Option<IpAddr>,

    /// Encapsulate and decapsulate with the kernel's VXLAN device only, so that the packets of VMs pass this host's
    /// own netfilter rules and IPsec policies. Slower
    #[arg(long)]
    pub kernel_vxlan: bool,

    /// Which interfaces may be ports: names, or beginnings of names followed by *; Sluice never lets their packets
    /// reach this host's own network stack
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "sl-*")]
    pub port_names: Vec<PortName>,

    /// With --flush: open the interfaces of VMs as well. This host's own network stack receives their packets then
    #[arg(long, requires = "flush")]
    pub unguard: bool,

    /// UDP port by which hosts copy the connections of instances that migrate between them; must be the same on all hosts
    /// of a site
    #[arg(long, value_name = "PORT", default_value_t = MIGRATION_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub migration_port: u16,

    /// Seconds after which an unused direct path is removed; uses are known to the second
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(2..=86_400))]
    pub path_idle: u64,

    /// Connections that the ports of this host may have in all, of both address families; from more on, new ones are
    /// refused, but for those that are assured to each port. 1000 take 0.27 MB of memory (IPv4 0.11, IPv6 0.16), which is reserved at the first start and kept until
    /// --flush; the default takes 72 MB
    #[arg(long, value_name = "NUMBER", default_value_t = SESSIONS_DEFAULT, value_parser = clap::value_parser!(u32).range(256..=1 << 26))]
    pub sessions: u32,

    /// Connections that one port may have, of both address families together [default: an eighth of --sessions]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1 << 27))]
    pub sessions_per_port: Option<u32>,

    /// Seconds between two probes of a VM by ARP and neighbor discovery, on average
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=30))]
    pub health_vm_s: u64,

    /// Seconds for which a port that becomes filtered while its instance runs adopts the TCP connections that it has; 0: it
    /// interrupts them
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=i64::from(ADOPT_SECONDS_MAX)))]
    pub adopt_seconds: u32,

    /// Seconds after its last packet at which a connection ends, by protocol and state: tcp-new (240), tcp-established (7440),
    /// tcp-closing (240), udp-one-way (120), udp-two-way (300), icmp (60), other (300); from 2 to 2592000
    #[arg(long, value_name = "NAME=SECONDS,...")]
    pub session_timeouts: Option<Timeouts>,

    /// What this host can send, and can receive, in Mbit/s. Instances are clamped while all of them together use more than
    /// --contended-percent of it, also for packets between them [default: the speed of the uplink that its driver tells, if it
    /// is a device, or a bond or VLAN above devices only]
    #[arg(long, value_name = "MBIT/S", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub capacity_mbps: Option<u64>,

    /// What this host can send, and can receive, in 1000 packets per second, for the same purpose [default: any number]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub capacity_kpps: Option<u64>,

    /// What the network processing of instances may take of this host's processors, in thousandths of one, for the same purpose
    /// [default: all that are online, also those that this process may not use]
    #[arg(long, value_name = "PERMILLE", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub capacity_cpu: Option<u64>,

    /// Part of the capacity from which on the host is contended
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub contended_percent: u32,

    /// How many instances are clamped at most while the host is contended: those that use most
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub clamped_ports: u32,

    /// Instances without a network class, while no class is the default: clamp counts what they use, and gives those that use most an
    /// equal share of what classes have not reserved while the host is contended; ignore neither counts nor limits them
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Unclassed::Clamp)]
    pub unclassed: Unclassed,

    /// Time of a processor that the kernel spends on each packet of an instance, besides the packet program, in ns. `auto` begins
    /// with 600 and measures it, but never less than 150 nor more than 2400
    #[arg(long, value_name = "NS|auto", default_value = "auto")]
    pub packet_cost_ns: CostSetting,

    /// The same for each 1024 bytes of a packet, which are copied. `auto` begins with 60, and stays between 15 and 240
    #[arg(long, value_name = "NS|auto", default_value = "auto")]
    pub kib_cost_ns: CostSetting,
}

/// What is done with instances without a network class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unclassed {
    /// They are counted, and clamped while the host is contended.
    Clamp,
    /// They are neither counted nor limited.
    Ignore,
}

impl Args {
    /// Numbers of entries of the session maps. Buckets are used up to two thirds of their slots.
    pub fn session_maps(&self) -> [(&'static str, u32); 2] {
        let slots = u64::from(self.sessions) * 3 / 2;
        let buckets = slots.div_ceil(u64::from(SESSION_SLOTS));
        SESSION_MAPS.map(|map| (map, u32::try_from(buckets).unwrap_or(u32::MAX)))
    }

    /// Limits ports by `maps`; the programs are those of `datapath`.
    pub(crate) fn rates(
        &self,
        datapath: &Datapath,
        (meters, credits): (PortMeters, PortCredits),
        uplink: &Link,
    ) -> Result<Rates, Error> {
        let capacity = self.capacity(uplink);
        tracing::info!(?capacity, "what instances share");
        let times = datapath.packet_times()?;
        let keeper = CreditKeeper::new(credits, capacity, Calibrator::new(self.costs()), times.read()?);
        let timed = move || {
            let failed = |error: &sluice_datapath::Error| {
                tracing::warn!(error = error_chain(error), "cannot read what packets cost")
            };
            times.read().inspect_err(failed).ok()
        };
        let softirq = || {
            let failed = |error: &std::io::Error| {
                tracing::warn!(error = error_chain(error), "cannot read the time of software interrupts")
            };
            softirq_ns(Path::new("/proc")).inspect_err(failed).ok()
        };
        let sensors = Sensors { times: Box::new(timed), softirq_ns: Box::new(softirq) };
        Ok(Rates::new(meters, keeper, sensors, self.unclassed == Unclassed::Clamp))
    }

    /// How the costs of packets are chosen. If not all ports are counted, what the machine does says nothing of those that are.
    fn costs(&self) -> CostSettings {
        let settings = CostSettings { packet_ns: self.packet_cost_ns, kib_ns: self.kib_cost_ns };
        match self.unclassed {
            Unclassed::Clamp => settings,
            Unclassed::Ignore => settings.without_measurement(),
        }
    }

    fn capacity(&self, uplink: &Link) -> Capacity {
        // A driver that does not know its speed tells -1, or gives an error.
        let speed = std::fs::read_to_string(format!("{INTERFACES}/{}/speed", uplink.name));
        let speed = speed.ok().and_then(|text| text.trim().parse().ok()).filter(|mbps| *mbps > 0);
        // A virtual interface, as a veth, tells a number that means nothing.
        let speed = speed.filter(|_| is_device(Path::new(INTERFACES), &uplink.name, STACKED_MAX));
        let (mbps, kpps) = (self.capacity_mbps.or(speed), self.capacity_kpps);
        // Quota and affinity of this process do not bind software interrupts.
        let processors = || {
            let failed = |error: &std::io::Error| {
                tracing::warn!(
                    error = error_chain(error),
                    "cannot count processors, so they are never contended"
                )
            };
            online_processors(Path::new("/proc")).inspect_err(failed).ok()
        };
        let cpu = self.capacity_cpu.or_else(|| processors().map(|number| 1000 * number));
        Capacity {
            total: [mbps, mbps, kpps, kpps, cpu],
            contended_percent: self.contended_percent,
            clamped: self.clamped_ports as usize,
        }
    }

    /// Connections that one port may have. `sessions` are those for which the tables have room, which another agent may have
    /// laid out.
    pub fn session_limit(&self, sessions: u64) -> u32 {
        // One VM must not fill the tables: there is room for what seven more VMs of this kind have.
        let share = u32::try_from(sessions / 8).unwrap_or(u32::MAX).max(1);
        self.sessions_per_port.unwrap_or(share)
    }
}

/// Whether all that an interface sends leaves through devices: it is one, or all interfaces below it are, as those of a bond and that of a
/// VLAN. `interfaces` is `/sys/class/net` unless in tests; no more than `depth` interfaces are below each other.
fn is_device(interfaces: &Path, name: &str, depth: u32) -> bool {
    let shown = interfaces.join(name);
    if shown.join("device").exists() {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else { return false };
    let Ok(entries) = std::fs::read_dir(&shown) else { return false };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let lower: Vec<String> =
        names.filter_map(|name| name.strip_prefix("lower_").map(str::to_owned)).collect();
    !lower.is_empty() && lower.iter().all(|name| is_device(interfaces, name, depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a bond or a VLAN above devices whose speed is ignored, a virtual interface whose speed counts, and a loop without end.
    #[test]
    fn bonds_and_vlans_above_devices_are_devices() {
        let directory = tempfile::tempdir().unwrap();
        for path in [
            "eth0/device",
            "eth1/device",
            "veth0/queues",
            "bond0/lower_eth0",
            "bond0/lower_eth1",
            "bond0.7/lower_bond0",
            "mixed/lower_eth0",
            "mixed/lower_veth0",
            "loop0/lower_loop1",
            "loop1/lower_loop0",
            "above1/lower_bond0.7",
            "above2/lower_above1",
            "above3/lower_above2",
        ] {
            std::fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        for (name, expected) in [
            ("eth0", true),
            ("bond0", true),
            ("bond0.7", true),
            ("above2", true),
            ("above3", false),
            ("veth0", false),
            ("mixed", false),
            ("loop0", false),
            ("absent", false),
        ] {
            assert_eq!(is_device(directory.path(), name, STACKED_MAX), expected, "{name}");
        }
    }
}
