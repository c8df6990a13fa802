//! Arguments of what instances have besides their two addresses: secondary addresses, delegated prefixes, address pairs,
//! spoofing protection and QoS.

use clap::{Args, ValueEnum};
use sluice_types::{AddressPair, IpNet, PortSettings, Qos, parse_prefix};
use std::net::IpAddr;

/// The secondary addresses and the delegated prefixes of an instance.
#[derive(Args)]
pub struct Addresses {
    /// Secondary address of the instance in a prefix of its subnet; can be given up to 16 times
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_secondary_addresses")]
    secondary_address: Vec<IpAddr>,
    /// The instance has no secondary addresses
    #[arg(long)]
    no_secondary_addresses: bool,
    /// Prefix of which the instance has every address; can be given up to 32 times
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix, conflicts_with = "no_delegated_prefixes")]
    delegated_prefix: Vec<IpNet>,
    /// No prefix is delegated to the instance
    #[arg(long)]
    no_delegated_prefixes: bool,
}

impl Addresses {
    /// Sets the fields of which an option was given.
    pub fn set(self, settings: &mut PortSettings) {
        settings.secondary_addresses = replaced(self.secondary_address, self.no_secondary_addresses);
        settings.delegated_prefixes = replaced(self.delegated_prefix, self.no_delegated_prefixes);
    }
}

/// The address pairs of an instance.
#[derive(Args)]
pub struct AddressPairs {
    /// Address of the subnet that the instance may have in turn with others, as with VRRP, and the MAC address that belongs
    /// to it, if it has one of its own; can be given up to 16 times
    #[arg(long, value_name = "ADDRESS[=MAC]", conflicts_with = "no_address_pairs")]
    address_pair: Vec<AddressPair>,
    /// The instance has no address pairs
    #[arg(long)]
    no_address_pairs: bool,
}

impl AddressPairs {
    /// Sets the field if an option was given.
    pub fn set(self, settings: &mut PortSettings) {
        settings.address_pairs = replaced(self.address_pair, self.no_address_pairs);
    }
}

fn replaced<T>(values: Vec<T>, none: bool) -> Option<Vec<T>> {
    (none || !values.is_empty()).then_some(values)
}

/// Whether the source addresses of what an instance sends are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protection {
    /// Packets must have the MAC address and an address of the instance.
    On,
    /// They may have any; security groups still apply.
    Off,
}

/// A DSCP. `None`: packets keep theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dscp(Option<u8>);

fn parse_dscp(text: &str) -> Result<Dscp, String> {
    match text {
        "keep" => Ok(Dscp(None)),
        number => number.parse().map(|dscp| Dscp(Some(dscp))).map_err(|_| {
            let max = sluice_types::MAX_DSCP;
            format!("expected a number from 0 to {max}, or `keep`")
        }),
    }
}

/// A rate limit in Mbit/s. `None`: not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(Option<u32>);

fn parse_rate(text: &str) -> Result<Rate, String> {
    match text {
        "unlimited" => Ok(Rate(None)),
        number => number
            .parse()
            .map(|rate| Rate(Some(rate)))
            .map_err(|_| "expected a number of Mbit/s, or `unlimited`".to_owned()),
    }
}

/// Marking and rate limit of an instance.
#[derive(Args)]
pub struct QosArgs {
    /// DSCP that packets of the instance get, 0 to 63, or `keep`
    #[arg(long, value_name = "DSCP", value_parser = parse_dscp)]
    dscp: Option<Dscp>,
    /// Limit of each direction in Mbit/s, 1 to 400000, or `unlimited`; not with a network class
    #[arg(long, value_name = "MBPS", value_parser = parse_rate)]
    rate_mbps: Option<Rate>,
}

impl QosArgs {
    /// The values after the change; what no option names stays. `None` without an option.
    pub fn after(&self, before: Qos) -> Option<Qos> {
        if self.dscp.is_none() && self.rate_mbps.is_none() {
            return None;
        }
        Some(Qos {
            dscp: self.dscp.map_or(before.dscp, |dscp| dscp.0),
            rate_mbps: self.rate_mbps.map_or(before.rate_mbps, |rate| rate.0),
        })
    }
}
