//! The gateway's agent: the XDP program on the underlay interfaces, the
//! cluster's tables, the neighbours that lead to the other nodes, and the
//! announcement of the vIPs that this gateway answers for.
#![forbid(unsafe_code)]

mod announce;
mod args;
pub mod ownership;
mod underlay;

pub use args::Args;
pub use sluice_agent::Error;

use axum::Router;
use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::underlay::{Vteps, links, node_config, vteps};
use sluice_agent::{NoPorts, Opened, flush, open};
use sluice_datapath::ObjectName;

use crate::underlay::Underlay;

const ROLE: &str = "gateway";
/// The function in bpf/gateway.bpf.c.
const PROGRAM: &str = "gateway";

/// Runs a gateway until SIGTERM or SIGINT, or removes what one left (`--flush`).
///
/// # Errors
/// If it cannot start; what goes wrong later is logged, and tried again.
pub async fn run(args: Args) -> Result<(), Error> {
    let common = &args.common;
    if common.flush {
        return flush(common, ROLE);
    }
    let netlink = Netlink::open()?;
    let underlay = links(&netlink, &args.interfaces).await?;
    let given = Vteps { v4: args.vtep4, v6: args.vtep6 };
    let vteps = vteps(&netlink, &underlay, given).await?;
    tracing::info!(vtep4 = ?vteps.v4, vtep6 = ?vteps.v6, "outer source addresses");

    let mut opened = open(common, ROLE, ObjectName::Gateway)?;
    opened.tables.set_node(&node_config(&underlay, vteps, 0))?;
    release_others(&opened, &underlay)?;
    for link in &underlay {
        underlay::prepare(&netlink, link).await?;
        opened.datapath.attach_xdp(PROGRAM, &link.interface())?;
    }
    let started = opened.start(common, ROLE, NoPorts, true).await?;
    let keeper = Underlay::new(netlink, started.node.clone(), args.interfaces.clone(), underlay, vteps)?;
    started.serve(common, Router::new(), keeper.run()).await
}

/// Takes the program off interfaces that are no underlay any more.
fn release_others(opened: &Opened, underlay: &[Link]) -> Result<(), Error> {
    for interface in opened.datapath.attached()? {
        if !underlay.iter().any(|link| link.interface() == interface) {
            tracing::info!(interface = interface.name, "no underlay any more: detaching");
            opened.datapath.detach(&interface)?;
        }
    }
    Ok(())
}
