//! Command line options of the vSwitch.

use std::net::IpAddr;

use clap::Args as ClapArgs;
use sluice_agent::CommonArgs;

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

    /// Seconds after which an unused direct path is removed; uses are known to the second
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(2..=86_400))]
    pub path_idle: u64,
}
