//! A host's agent: the programs on its VMs' ports and on the VXLAN device, the
//! instances that the controller placed here, and which interfaces are theirs.
#![forbid(unsafe_code)]

mod args;
mod book;
mod device;
mod manager;
mod paths;
mod routes;

pub use args::Args;
pub use sluice_agent::Error;

use std::net::IpAddr;
use std::sync::Arc;

use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::underlay::{Vteps, node_config, vteps};
use sluice_agent::{flush, open};
use sluice_datapath::ObjectName;

use crate::book::PortBook;
use crate::manager::{Manager, UPLINK_PROGRAM};

const ROLE: &str = "vswitch";

/// Runs a host's vSwitch until SIGTERM or SIGINT, or removes what one left (`--flush`).
///
/// # Errors
/// If it cannot start; what goes wrong later is logged, and tried again.
pub async fn run(args: Args) -> Result<(), Error> {
    let common = &args.common;
    let netlink = Netlink::open()?;
    if common.flush {
        flush(common, ROLE)?;
        return device::remove(&netlink).await;
    }
    let name = args.uplink.clone().ok_or_else(|| Error::Config("--uplink is needed".to_owned()))?;
    let uplink = netlink.require_link(&name).await?;
    let vteps = vtep(&netlink, &uplink, args.vtep).await?;

    let mut opened = open(common, ROLE, ObjectName::Vswitch)?;
    let vxlan = device::ensure(&netlink, &uplink, vteps).await?;
    opened.tables.set_node(&node_config(std::slice::from_ref(&uplink), vteps, vxlan.index))?;
    opened.datapath.attach_tc(UPLINK_PROGRAM, &vxlan.interface())?;
    let (mut book, complete) = PortBook::load(&common.state_dir()?)?;
    book.limit_mtu(bounded(device::mtu(&uplink, vteps)?));
    let instances = book.subscribe();
    let started = opened.start(common, ROLE, book, complete).await?;
    let manager = Arc::new(Manager::new(netlink, started.node.clone(), name, vteps, instances));
    manager.adopt().await?;
    started.serve(common, routes::router(manager.clone()), manager.run()).await
}

/// An MTU as tables and packets have it.
fn bounded(mtu: u32) -> u16 {
    u16::try_from(mtu).unwrap_or(u16::MAX)
}

/// A host has one VTEP: the one given, or the uplink's first address, IPv4 before IPv6.
async fn vtep(netlink: &Netlink, uplink: &Link, given: Option<IpAddr>) -> Result<Vteps, Error> {
    let one = |address: Option<IpAddr>| match address {
        Some(IpAddr::V4(address)) => Vteps { v4: Some(address), v6: None },
        Some(IpAddr::V6(address)) => Vteps { v4: None, v6: Some(address) },
        None => Vteps::default(),
    };
    let found = vteps(netlink, std::slice::from_ref(uplink), one(given)).await?;
    let first = given.or(found.v4.map(IpAddr::V4)).or(found.v6.map(IpAddr::V6));
    tracing::info!(vtep = ?first, uplink = uplink.name, "outer source address");
    Ok(one(first))
}
