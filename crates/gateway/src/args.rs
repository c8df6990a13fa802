//! Command line options of the gateway.

use std::net::{Ipv4Addr, Ipv6Addr};

use clap::Args as ClapArgs;
use sluice_agent::CommonArgs;
use sluice_cluster::CLUSTER_PORT;
use sluice_cluster::meters::METER_PORT;
use sluice_nat_sync::NAT_SYNC_PORT;
use sluice_tables::layout::METERS_DEFAULT;

use crate::nat::NatArgs;

/// Run a gateway: forward VXLAN between hosts by the cluster's tables
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Options of every node agent.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Underlay interface; may be given up to 8 times
    #[arg(long = "interface", value_name = "IF", required_unless_present = "flush", num_args = 1)]
    pub interfaces: Vec<String>,

    /// Interface that leads to the Internet; may be given several times, at most 8 with the underlay interfaces
    #[arg(long = "internet", value_name = "IF", num_args = 1)]
    pub internet: Vec<String>,

    /// This gateway's IPv4 address on the underlay [default: the first one of the interfaces]
    #[arg(long, value_name = "ADDRESS")]
    pub vtep4: Option<Ipv4Addr>,

    /// This gateway's IPv6 address on the underlay [default: the first global one of the interfaces]
    #[arg(long, value_name = "ADDRESS")]
    pub vtep6: Option<Ipv6Addr>,

    /// UDP port by which the gateways of a cluster watch each other; must be the same on all of them
    #[arg(long, value_name = "PORT", default_value_t = CLUSTER_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub cluster_port: u16,

    /// UDP port by which the gateways of a cluster copy sessions of NAT gateways; must be the same on all of them
    #[arg(long, value_name = "PORT", default_value_t = NAT_SYNC_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub nat_sync_port: u16,

    /// UDP port by which the gateways of a cluster share the rates of meters; must be the same on all of them
    #[arg(long, value_name = "PORT", default_value_t = METER_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub meter_port: u16,

    /// Meters of Internet traffic for which there is room, with those that were removed a moment ago. 1000 take 0.13 MB of memory,
    /// and 0.03 MB for each processor, which is reserved at the first start and kept until --flush
    #[arg(long, value_name = "NUMBER", default_value_t = METERS_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub meters: u32,

    /// Options of source NAT.
    #[command(flatten)]
    pub nat: NatArgs,
}
