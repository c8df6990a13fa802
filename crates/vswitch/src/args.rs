//! Command line options of the vSwitch.

use std::net::IpAddr;

use clap::Args as ClapArgs;
use sluice_agent::CommonArgs;

use crate::guard::PortName;

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
}
