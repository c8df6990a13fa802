//! Command line options of source NAT. This file changes when such an option is added.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use clap::{Args, ValueEnum};
use sluice_datapath::nat_sizes;
use sluice_tables::layout::SESSION_SLOTS;
use sluice_tables::nat::{NatRegions, NatSize, default_timeouts};
use sluice_tables::sessions::Timeouts;

/// What the log of source NAT has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoggedEvents {
    /// Blocks of ports that instances get and return
    Blocks,
    /// Also each connection, when it begins and ends
    Sessions,
}

/// Options of source NAT. They matter to a gateway with interfaces to the Internet.
#[derive(Args, Clone, Debug)]
pub struct NatArgs {
    /// Public addresses of NAT gateways for which there is room, with those that were removed in the last seconds. Each takes
    /// 0.8 MB of memory, which is reserved at the first start and kept until --flush
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub nat_addresses: u32,

    /// Connections that all NAT gateways of the cluster may have in all; from more on, new ones are refused. Each gateway has those
    /// of all others as copies, so give all of them the same number. 1000 take 0.13 MB of memory, which is reserved at the first
    /// start and kept until --flush; the default takes 33 MB
    #[arg(long, value_name = "NUMBER", default_value_t = 1 << 18, value_parser = clap::value_parser!(u32).range(256..=1 << 26))]
    pub nat_sessions: u32,

    /// The same for connections of NAT64, to IPv4 addresses from instances with IPv6. 1000 take 0.16 MB. Default: a quarter of
    /// --nat-sessions
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(64..=1 << 26))]
    pub nat64_sessions: Option<u32>,

    /// Connections that the NAT gateway of one VPC may have, of which the Internet can begin half with endpoint-independent filtering.
    /// The same on all gateways of a cluster. Default: a quarter of --nat-sessions, so that one tenant cannot use up those of all
    #[arg(long, value_name = "NUMBER")]
    pub nat_sessions_per_vpc: Option<NonZeroU32>,

    /// The same for connections of NAT64, which count apart. Default: a quarter of --nat64-sessions
    #[arg(long, value_name = "NUMBER")]
    pub nat64_sessions_per_vpc: Option<NonZeroU32>,

    /// Ports of a block: each instance uses whole blocks, and has at most the number of them that its NAT gateway says. A power
    /// of 2 from 64 to 4096; the same on all gateways of a cluster. It stays as it is until --flush
    #[arg(long, value_name = "NUMBER", default_value_t = 512, value_parser = block_ports)]
    pub nat_block_ports: u32,

    /// Seconds after its last packet at which a connection ends, by protocol and state: tcp-new (240), tcp-established (7440),
    /// tcp-closing (240), udp-one-way (300), udp-two-way (300), icmp (60); from 60 to 2592000. The same on all gateways of a cluster
    #[arg(long, value_name = "NAME=SECONDS,...", value_parser = timeouts)]
    pub nat_timeouts: Option<Timeouts>,

    /// Packets a second of one VPC that each processor passes on to the gateway that owns its NAT gateway, from instances and from the
    /// Internet. More are dropped as `pass_limit`. 0: not limited
    #[arg(long, value_name = "PACKETS", default_value_t = 500_000)]
    pub nat_pass_pps: u32,

    /// What is logged of NAT gateways that this gateway translates for
    #[arg(long, value_name = "EVENTS", value_enum, default_value_t = LoggedEvents::Blocks)]
    pub nat_log: LoggedEvents,

    /// Address and UDP port of an IPFIX collector (RFC 7011, RFC 8158), which gets what is logged of NAT gateways
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = collector)]
    pub nat_ipfix: Option<SocketAddr>,
}

fn collector(text: &str) -> Result<SocketAddr, String> {
    let collector: SocketAddr = text.parse().map_err(|_| "it is not an IP address with a port".to_owned())?;
    if collector.port() == 0 || collector.ip().is_unspecified() {
        return Err("nothing can be sent to this address or port".to_owned());
    }
    Ok(collector)
}

/// Copies live for two passes longer than sessions, which is 40 s. Those of shorter sessions would end between two passes.
const TIMEOUT_MIN_S: u32 = 60;

fn timeouts(text: &str) -> Result<Timeouts, String> {
    let timeouts = default_timeouts().changed(text).map_err(|error| error.to_string())?;
    if timeouts.other_s != default_timeouts().other_s {
        return Err("NAT gateways have no connections of `other` protocols".to_owned());
    }
    match timeouts.shortest() {
        (name, seconds) if seconds < TIMEOUT_MIN_S => Err(format!(
            "{name} of {seconds} s is shorter than {TIMEOUT_MIN_S} s: copies on other gateways would end too early"
        )),
        _ => Ok(timeouts),
    }
}

fn block_ports(text: &str) -> Result<u32, String> {
    let size = text.parse().map(|block_ports| NatSize { addresses: 1, block_ports });
    let size = size.map_err(|error| error.to_string())?;
    NatRegions::groups(size).map(|_| size.block_ports).map_err(|error| error.to_string())
}

impl NatArgs {
    /// For how much the NAT tables have room, besides sessions.
    pub fn size(&self) -> NatSize {
        NatSize { addresses: self.nat_addresses, block_ports: self.nat_block_ports }
    }

    /// When connections end.
    pub fn timeouts(&self) -> Timeouts {
        self.nat_timeouts.unwrap_or_else(default_timeouts)
    }

    /// Sessions for which there is room, and those of NAT64.
    fn sessions(&self) -> [u32; 2] {
        [self.nat_sessions, self.nat64_sessions.unwrap_or(self.nat_sessions / 4)]
    }

    /// Sessions that one VPC may have, and those of NAT64.
    pub fn vpc_sessions(&self) -> [NonZeroU32; 2] {
        let [sessions, sessions64] = self.sessions();
        [(self.nat_sessions_per_vpc, sessions), (self.nat64_sessions_per_vpc, sessions64)]
            .map(|(set, room)| set.or(NonZeroU32::new(room / 4)).unwrap_or(NonZeroU32::MIN))
    }

    /// Numbers of entries of the maps of source NAT. Buckets are used up to two thirds of their slots.
    ///
    /// # Errors
    /// If the size is not valid, which the options do not permit.
    pub fn maps(&self) -> Result<[(&'static str, u32); 6], sluice_tables::Error> {
        let size = self.size();
        let buckets = self.sessions().map(|sessions| {
            let slots = u64::from(sessions) * 3 / 2;
            u32::try_from(slots.div_ceil(u64::from(SESSION_SLOTS))).unwrap_or(u32::MAX)
        });
        Ok(nat_sizes(NatRegions::groups(size)?, NatRegions::port_cells(size), buckets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches timeouts with which copies are complete and end too early.
    #[test]
    fn timeouts_are_those_that_copies_survive() {
        let read = |text: &str| timeouts(text).map(|it| (it.udp_two_way_s, it.icmp_s, it.udp_one_way_s));
        assert_eq!(read("udp-two-way=120,icmp=60"), Ok((120, 60, 300)));
        for (text, reason) in [
            ("icmp=59", "icmp of 59 s is shorter than 60 s: copies on other gateways would end too early"),
            ("other=100", "NAT gateways have no connections of `other` protocols"),
            ("icmp=x", "`icmp=x` is not NAME=SECONDS"),
        ] {
            assert_eq!(read(text), Err(reason.to_owned()));
        }
    }
}
