//! A host's agent: the programs on its VMs' ports and on the VXLAN device, the
//! instances that the controller placed here, which interfaces are theirs, and
//! the direct paths that it learns.
#![forbid(unsafe_code)]

mod args;
mod book;
mod device;
mod learner;
mod manager;
mod path_metrics;
mod paths;
mod routes;

pub use args::Args;
pub use sluice_agent::Error;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::rsp::AsyncRing;
use sluice_agent::underlay::{Vteps, node_config, vteps};
use sluice_agent::{Applier, flush, open};
use sluice_datapath::ObjectName;

use crate::book::PortBook;
use crate::learner::{Detection, LINGER, Learner};
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
    common.check_ports(&[])?;
    let name = args.uplink.clone().ok_or_else(|| Error::Config("--uplink is needed".to_owned()))?;
    let uplink = netlink.require_link(&name).await?;
    let vteps = vtep(&netlink, &uplink, args.vtep).await?;

    let mut opened = open(common, ROLE, ObjectName::Vswitch)?;
    let vxlan = device::ensure(&netlink, &uplink, vteps).await?;
    opened.tables.set_node(&node_config(std::slice::from_ref(&uplink), vteps, vxlan.index))?;
    opened.datapath.attach_tc(UPLINK_PROGRAM, &vxlan.interface())?;
    let (mut book, complete) = PortBook::load(&common.state_dir()?)?;
    book.limit_mtu(bounded(device::mtu(&uplink, vteps)?));
    let changes = book.subscribe();
    let started = opened.start(common, ROLE, book, complete).await?;
    let node = started.node.clone();
    let manager = Arc::new(Manager::new(netlink, node.clone(), name, vteps, changes.clone()));
    manager.adopt().await?;
    let linger = |applier: &mut Applier<PortBook>| {
        applier.set_linger(LINGER);
        applier.linger_unused(Instant::now(), PortBook::uses, PortBook::is_gateway);
    };
    node.writer.run(linger).await?;
    let edge = node.open_rsp(common, vteps)?;
    let strays = AsyncRing::new(node.datapath.strays()?)?;
    let idle = Duration::from_secs(args.path_idle);
    let detection = Detection {
        elephants: AsyncRing::new(node.datapath.flow_events()?)?,
        flows: node.datapath.flows()?,
        wanted: node.writer.run(|applier| applier.detect()).await?,
    };
    let (learner, list) = Learner::new(node, edge, (strays, detection), own_address(vteps)?, idle, changes);
    let local = routes::router(manager.clone()).merge(routes::paths(list));
    let work = async move {
        tokio::select! {
            ended = manager.run() => ended,
            ended = learner.run() => ended,
        }
    };
    started.serve(common, local, work).await
}

/// A host has one VTEP.
fn own_address(vteps: Vteps) -> Result<IpAddr, Error> {
    let none = || Error::Config("this host has no VTEP".to_owned());
    vteps.v4.map(IpAddr::V4).or(vteps.v6.map(IpAddr::V6)).ok_or_else(none)
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
