//! The gateway's agent: the XDP program on the underlay interfaces, the
//! cluster's tables, the neighbours that lead to the other nodes, and this
//! gateway's part in its cluster: which vIPs it answers for.
#![forbid(unsafe_code)]

mod args;
mod follow;
mod load;
mod offload;
pub mod ownership;
mod speaker;
mod underlay;
mod watch_load;

pub use args::Args;
pub use sluice_agent::Error;

use std::collections::HashSet;
use std::sync::{Arc, RwLock};

use axum::routing::get;
use axum::{Json, Router};
use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::rsp::AsyncRing;
use sluice_agent::underlay::{Vteps, links, node_config, vteps};
use sluice_agent::{CommonArgs, NoPorts, Opened, Started, flush, open};
use sluice_datapath::{FlowEvent, ObjectName};
use sluice_southbound::Node;
use sluice_tables::Attendance;

use crate::follow::{follow_cluster, follow_controller};
use crate::offload::OffloadStats;
use crate::ownership::{Layer2, Links, Owned, Ownership, Setup, is_remembered};
use crate::speaker::Speaker;
use crate::underlay::Underlay;
use crate::watch_load::LoadWatch;

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
    common.check_ports(&[args.cluster_port])?;
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
    let owned = opened.tables.vips().filter(|vip| vip.owned).map(|vip| (vip.address, vip.mac)).collect();
    let attendance = opened.tables.attendance();
    let state_dir = common.state_dir()?;
    // Who does not remember the plan must be told, and the controller tells only what changes.
    let started = opened.start(common, ROLE, NoPorts, is_remembered(&state_dir)).await?;

    let node = started.node.clone();
    let links: Links = Arc::new(RwLock::new(underlay));
    let ownership = Arc::new(take_part(&args, &started, vteps, &links, owned, attendance)?);
    node.add_source(Arc::new(ownership.view()));
    let view = ownership.view();
    let routes = Router::new().route("/cluster", get(async move || Json(view.get())));
    let keeper =
        Underlay::new(netlink, node.clone(), args.interfaces.clone(), links, vteps, ownership.clone())?;
    let controller = started.identity().controller.clone();
    let (speaker, load) = offload(common, &node, vteps)?;
    let work = async move {
        tokio::select! {
            ended = keeper.run() => ended,
            ended = speaker.run() => ended,
            ended = load.run(|load| ownership.set_load(load)) => ended,
            () = follow_cluster(&ownership, node.plan.clone(), node.keys.clone(), node.deleted.subscribe()) => Err(Error::WriterGone),
            never = follow_controller(&ownership, &controller) => match never {},
        }
    };
    started.serve(common, routes, work).await
}

/// Opens what tells hosts of direct paths, and what decides of which flows.
fn offload(
    common: &CommonArgs,
    node: &Arc<sluice_agent::Node<NoPorts>>,
    vteps: Vteps,
) -> Result<(Speaker<AsyncRing<FlowEvent>>, LoadWatch), Error> {
    let stats = Arc::new(OffloadStats::default());
    node.add_source(stats.clone());
    let elephants = AsyncRing::new(node.datapath.flow_events()?)?;
    let load = LoadWatch::new(node.clone(), node.datapath.flows()?, stats.clone())?;
    let edge = node.open_rsp(common, vteps)?;
    Ok((Speaker::new(edge, elephants, node.reader.clone(), node.keys.clone(), stats), load))
}

/// Starts this gateway's part in its cluster.
fn take_part(
    args: &Args,
    started: &Started<NoPorts>,
    vteps: Vteps,
    links: &Links,
    owned: Owned,
    attendance: Attendance,
) -> Result<Ownership, Error> {
    let Node::Gateway(own) = started.identity().node()? else {
        let name = &started.node.name;
        return Err(Error::Config(format!("this node is enrolled as {name}, which is no gateway")));
    };
    let writer = started.node.writer.clone();
    let tables = move |owned: &Owned| {
        let owned: HashSet<_> = owned.keys().copied().collect();
        writer.post(move |applier| applier.own(owned))
    };
    Ownership::start(Setup {
        own,
        vteps,
        port: args.cluster_port,
        state_dir: args.common.state_dir()?,
        owned,
        tables: Box::new(tables),
        attendance,
        announcer: Box::new(Layer2::new(links.clone())?),
    })
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
