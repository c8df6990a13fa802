//! This node's interfaces and addresses on the underlay, as the packet programs need them. This file changes
//! when programs need another property of an interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluice_datapath::Interface;
use sluice_tables::{NodeConfig, UnderlayPort};
use sluice_types::ROUTER_MAC;

use crate::Error;
use crate::changes::Changes;
use crate::netlink::{Link, Netlink};
use crate::sysctl::Family;

/// Name of the loopback interface.
const LOOPBACK: &str = "lo";

/// Most interfaces of a node, to the underlay and to the Internet: the tables hold no more.
pub const INTERFACES_MAX: usize = 8;

/// The outer source addresses of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vteps {
    /// The IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

impl Vteps {
    /// The addresses that the node has: one or both.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

impl Link {
    /// The interface as programs are attached to it.
    #[must_use]
    pub fn interface(&self) -> Interface {
        Interface { index: self.index, name: self.name.clone() }
    }
}

/// Lets the kernel look up routes for the packet programs.
///
/// # Errors
/// If a setting cannot be changed.
pub async fn enable_route_lookup(netlink: &Netlink, changes: &Changes) -> Result<(), Error> {
    // It does so only from interfaces that forward. The programs ask from the loopback interface, so that no
    // underlay interface has to forward.
    let loopback = netlink.require_link(LOOPBACK).await?;
    changes.set_sysctl(&loopback, Family::V4, "forwarding", "1")?;
    changes.set_sysctl(&loopback, Family::V6, "forwarding", "1")
}

/// Looks up the interfaces of a node by name.
///
/// # Errors
/// If an interface is missing or given twice, or if there are too many.
pub async fn links(netlink: &Netlink, names: &[String]) -> Result<Vec<Link>, Error> {
    if names.len() > INTERFACES_MAX {
        return Err(Error::Config(format!(
            "{} interfaces are given; at most {INTERFACES_MAX} are possible",
            names.len()
        )));
    }
    let mut links: Vec<Link> = Vec::new();
    for name in names {
        let link = netlink.require_link(name).await?;
        if links.contains(&link) {
            return Err(Error::Config(format!("interface {name:?} is given twice")));
        }
        links.push(link);
    }
    Ok(links)
}

/// Checks the given VTEP addresses, and takes those that were not given from the interfaces.
///
/// # Errors
/// If a given address is not on this machine, or if there is no address at all.
pub async fn vteps(netlink: &Netlink, links: &[Link], given: Vteps) -> Result<Vteps, Error> {
    let all = netlink.addresses(None).await?;
    for address in given.addresses() {
        if !all.contains(&address) {
            return Err(Error::Config(format!("VTEP address {address} is on no interface of this machine")));
        }
    }
    let mut found = given;
    for link in links {
        for address in netlink.addresses(Some(link)).await? {
            match address {
                IpAddr::V4(v4) if !v4.is_link_local() => found.v4 = found.v4.or(Some(v4)),
                IpAddr::V6(v6) if !v6.is_unicast_link_local() => found.v6 = found.v6.or(Some(v6)),
                _ => {}
            }
        }
    }
    if found == Vteps::default() {
        let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
        return Err(Error::Config(format!(
            "no global address on {}: give this node's VTEP address",
            names.join(", ")
        )));
    }
    Ok(found)
}

/// This node's entry in the tables.
#[must_use]
pub fn node_config(links: &[Link], vteps: Vteps, vxlan_ifindex: u32) -> NodeConfig {
    NodeConfig {
        vtep4: vteps.v4,
        vtep6: vteps.v6,
        router_mac: ROUTER_MAC,
        vxlan_ifindex,
        ports: links.iter().map(underlay_port).collect(),
    }
}

/// An interface to the underlay in the tables.
#[must_use]
pub fn underlay_port(link: &Link) -> UnderlayPort {
    let mtu = u16::try_from(link.mtu).unwrap_or(u16::MAX);
    UnderlayPort { ifindex: link.index, mtu, mac: link.mac, internet: false }
}
