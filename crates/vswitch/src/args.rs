//! Command line options of the vSwitch.

use std::net::IpAddr;

use clap::Args as ClapArgs;
use sluice_agent::CommonArgs;
use sluice_datapath::SESSION_MAPS;
use sluice_tables::layout::SESSION_SLOTS;
use sluice_tables::sessions::Timeouts;

use crate::guard::PortName;

/// Longest time for which a port adopts connections, in seconds.
pub const ADOPT_SECONDS_MAX: u32 = 3600;
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
}

impl Args {
    /// Numbers of entries of the session maps. Buckets are used up to two thirds of their slots.
    pub fn session_maps(&self) -> [(&'static str, u32); 2] {
        let slots = u64::from(self.sessions) * 3 / 2;
        let buckets = slots.div_ceil(u64::from(SESSION_SLOTS));
        SESSION_MAPS.map(|map| (map, u32::try_from(buckets).unwrap_or(u32::MAX)))
    }

    /// Connections that one port may have. `sessions` are those for which the tables have room, which another agent may have
    /// laid out.
    pub fn session_limit(&self, sessions: u64) -> u32 {
        // One VM must not fill the tables: there is room for what seven more VMs of this kind have.
        let share = u32::try_from(sessions / 8).unwrap_or(u32::MAX).max(1);
        self.sessions_per_port.unwrap_or(share)
    }
}
