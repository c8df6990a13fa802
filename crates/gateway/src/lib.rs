//! The agent of a gateway: the XDP programs on the interfaces to the underlay and to the Internet, the cluster's tables,
//! the neighbors that lead to the other nodes and to the Internet, the RSP responder, and this gateway's part in its
//! cluster: which vIPs it answers for.
#![forbid(unsafe_code)]

mod args;
mod health;
mod host_probes;
mod identities;
mod load_monitor;
mod meter_shares;
mod meters;
mod nat;
mod nat_inputs;
mod needed_neighbors;
mod offload;
mod offload_metrics;
mod overload;
pub mod ownership;
mod ownership_inputs;
mod permits;
pub mod ports;
pub mod public_announcer;
mod reconcile;
mod role;
mod rsp_responder;
mod underlay_monitor;

pub use args::Args;
pub use nat::SharedNat;
pub use nat::copies::Copies;
pub use nat::list::Endpoints;
pub use nat::sync::{NatSync, NatUnits, SyncConfig};
pub use sluice_agent::Error;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use sluice_agent::changes::Changes;
use sluice_agent::event_source::AsyncEventRing;
use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::underlay::{Vteps, enable_route_lookup, links, vteps};
use sluice_agent::{CommonArgs, Opened, Started, adoption_error, flush, monotonic_ns, open, watch_health};
use sluice_datapath::{Datapath, FlowEvent, METER_COUNTS_MAP, METERS_MAP, ObjectName};
use sluice_rsp::PermitEntry;
use sluice_southbound::Node;
use sluice_tables::{AgentHeartbeat, Journal, MeterReader, NamedMeters};
use sluice_types::GatewayId;

use crate::host_probes::HostProbes;
use crate::load_monitor::LoadMonitor;
use crate::meter_shares::{MeterShares, ShareConfig};
use crate::nat::{NatKeeper, RoleNat};
use crate::nat_inputs::{NatInputs, follow_cluster};
use crate::offload_metrics::OffloadStats;
use crate::ownership::{
    Layer2Announcer, OwnedVips, Ownership, OwnershipConfig, SharedOwnershipStatus, Written, has_saved_state,
};
use crate::ownership_inputs::{StreamInputs, follow_stream, resolve_controller};
use crate::ports::{Port, SharedPorts, Side, gateway_config, port_names};
use crate::public_announcer::{PublicAddresses, owned_vmacs};
use crate::role::{GatewayRole, SharedLoad};
use crate::rsp_responder::RspResponder;
use crate::underlay_monitor::UnderlayMonitor;

const ROLE: &str = "gateway";

/// Runs a gateway until SIGTERM or SIGINT, or removes what an earlier agent left (`--flush`).
///
/// # Errors
/// If the gateway cannot start. Later failures are logged and retried.
pub async fn run(args: Args) -> Result<(), Error> {
    let common = &args.common;
    let netlink = Netlink::open()?;
    if common.flush {
        return flush(common, ROLE, &netlink).await;
    }
    common.check_ports(&[args.cluster_port, args.nat_sync_port, args.meter_port])?;
    let mut links = links(&netlink, &[&args.interfaces[..], &args.internet].concat()).await?;
    let internet = links.split_off(args.interfaces.len());
    let given = Vteps { v4: args.vtep4, v6: args.vtep6 };
    let vteps = vteps(&netlink, &links, given).await?;
    tracing::info!(vtep4 = ?vteps.v4, vtep6 = ?vteps.v6, "outer source addresses");
    let port = |side| move |link: Link| Port { link, side };
    let underlay = links.into_iter().map(port(Side::Underlay));
    let ports: Vec<Port> = underlay.chain(internet.into_iter().map(port(Side::Internet))).collect();
    let (mut opened, nat) = open_tables(&args)?;
    opened.tables.set_node(&gateway_config(&port_names(&ports), &ports, vteps))?;
    let changes = Changes::new(&common.pin_dir(ROLE));
    detach_others(&opened.datapath, &ports, &netlink, &changes).await?;
    enable_route_lookup(&netlink, &changes).await?;
    for Port { link, side } in &ports {
        underlay_monitor::prepare(&netlink, &changes, link).await?;
        opened.datapath.attach_xdp(side.program(), &link.interface())?;
    }
    let owned = opened.tables.vips().filter(|vip| vip.owned).map(|vip| (vip.address, vip.mac)).collect();
    let (heartbeat, journal) = (opened.tables.agent_heartbeat(), opened.tables.keep_journal());
    let load = SharedLoad::default();
    let public = PublicAddresses::default();
    let role_nat = RoleNat::new(nat.clone());
    let mut role = GatewayRole::new(&mut opened.tables, load.clone(), public.clone(), role_nat);
    role.set_own_addresses(&mut opened.tables, netlink.addresses(None).await?);
    role.watch_hosts(HostProbes::start(vteps, &common.state_dir()?)?);
    let (plan, units) = (role.plan(), role.nat_units());
    // Each stream begins with the plan. Without a saved plan, this gateway starts as a new one does: with a
    // snapshot.
    let resume = has_saved_state(&common.state_dir()?);
    let started = opened.start(common, ROLE, role, resume).await?;
    let node = started.node.clone();
    let (ports, own) = (SharedPorts::new(ports), own_id(&started)?);
    let nat = nat.map(|nat| NatParts::start(&args, nat, &node, own, vteps)).transpose()?;
    let ownership = Arc::new(start_ownership(&args, (&started, own), vteps, &ports, owned, heartbeat)?);
    node.add_metrics(Arc::new(ownership.status()));
    let routes = routes(&node, nat.as_ref(), ownership.status())?;
    let shares = start_shares(&args, &node, own, vteps)?;
    let underlay =
        UnderlayMonitor::new((netlink, changes), node.clone(), ports.clone(), vteps, ownership.clone())?;
    let controller = started.identity().controller.clone();
    let (responder, monitor) = start_offload(common, &node, vteps, (load, journal))?;
    let nat_inputs =
        NatInputs { nat: nat.as_ref().map(|nat| nat.copied.clone()), keys: node.keys.clone(), units };
    let stream = StreamInputs {
        plan,
        keys: node.keys.clone(),
        tables: node.complete_revision.clone(),
        deleted: node.deleted.subscribe(),
    };
    let health = watch_health(node.clone(), health::config(&args, &ports, vteps), health::view, None);
    let writer = node.writer.clone();
    let vmacs = move |addresses: Vec<IpAddr>| {
        let writer = writer.clone();
        async move { writer.run(move |applier| owned_vmacs(&applier.tables, &addresses)).await }
    };
    let work = async move {
        tokio::select! {
            ended = underlay.run() => ended,
            ended = health => ended,
            ended = public.run(ports, vmacs) => ended,
            ended = responder.run() => ended,
            ended = monitor.run(|load| ownership.set_load(load)) => ended,
            () = follow_stream(&ownership, stream) => Err(Error::WriterGone),
            ended = follow_cluster((own, vteps), &ownership, &node.writer, nat_inputs) => ended,
            ended = shares.follow(&ownership, node.keys.clone()) => ended,
            never = resolve_controller(&ownership, &controller) => match never {},
        }
    };
    let ended = started.serve(common, routes, work).await;
    // Until here they look after source NAT. If this function is canceled, they end as well.
    drop(nat);
    ended
}

/// Opens programs and tables: meters, and on a gateway with interfaces to the Internet those of source NAT.
fn open_tables(args: &Args) -> Result<(Opened, Option<SharedNat>), Error> {
    let translates = !args.internet.is_empty();
    let mut sizes =
        vec![(METERS_MAP, NamedMeters::cells_for(args.meters)), (METER_COUNTS_MAP, args.meters + 1)];
    if translates {
        sizes.extend(args.nat.maps()?);
    }
    let mut opened = open(&args.common, ROLE, ObjectName::Gateway, &sizes)?;
    let pin_dir = args.common.pin_dir(ROLE);
    let meters = NamedMeters::open(opened.datapath.memory_of(METERS_MAP)?);
    opened.tables.set_meters(meters.map_err(|error| adoption_error(error, &pin_dir))?);
    let nat = translates.then(|| SharedNat::open(&opened.datapath, &args.nat, &pin_dir)).transpose()?;
    Ok((opened, nat))
}

/// Opens the RSP responder, and the monitor that decides which flows are offloaded.
fn start_offload(
    common: &CommonArgs,
    node: &Arc<sluice_agent::Node<GatewayRole>>,
    vteps: Vteps,
    (load, journal): (SharedLoad, Journal),
) -> Result<(RspResponder<AsyncEventRing<FlowEvent>>, LoadMonitor), Error> {
    let stats = Arc::new(OffloadStats::default());
    node.add_metrics(stats.clone());
    let elephants = AsyncEventRing::new(node.datapath.flow_events()?)?;
    let monitor = LoadMonitor::new(node.clone(), node.datapath.flows()?, load, stats.clone())?;
    let transport = node.open_rsp(common, vteps)?;
    let tables = (node.reader.clone(), journal);
    let writer = node.writer.clone();
    let named = stats.clone();
    let accept_targets = Box::new(move |from: IpAddr, entries: Vec<PermitEntry>| {
        let stats = named.clone();
        // If its queue is full, the host repeats it within a second.
        let _ = writer.post(move |applier| {
            let (tables, targets) = (&mut applier.tables, &mut applier.role.targets);
            stats.note_refused_targets(permits::accept(
                tables,
                targets,
                monotonic_ns() / 1000,
                from,
                &entries,
            ));
        });
    });
    let responder = RspResponder::new(transport, elephants, tables, node.keys.clone(), stats, accept_targets);
    Ok((responder, monitor))
}

/// The threads of source NAT.
struct NatParts {
    /// Looks after the tables.
    keeper: NatKeeper,
    /// The tables, and what copies their sessions to the other gateways.
    copied: (SharedNat, Arc<NatSync>),
}

impl NatParts {
    fn start(
        args: &Args,
        nat: SharedNat,
        node: &sluice_agent::Node<GatewayRole>,
        own: GatewayId,
        vteps: Vteps,
    ) -> Result<Self, Error> {
        let table = Box::new(Copies::new(nat.clone(), node.datapath.nat_copier()?));
        let sync = NatSync::start(SyncConfig { own, vteps, port: args.nat_sync_port, table })?;
        let owners = sync.owners();
        Ok(Self {
            keeper: NatKeeper::start(nat.clone(), args.nat.nat_log, owners)?,
            copied: (nat, Arc::new(sync)),
        })
    }

    /// Adds the metrics. Returns the routes of the local API.
    fn shown(&self, node: &sluice_agent::Node<GatewayRole>) -> Router {
        let (keeper, (_, sync)) = (&self.keeper, &self.copied);
        node.add_metrics(Arc::new(keeper.metrics(&node.datapath)));
        node.add_metrics(Arc::new(sync.metrics()));
        keeper.routes().merge(sync.routes())
    }
}

/// What a gateway shows by the local API besides what all nodes do.
fn routes(
    node: &sluice_agent::Node<GatewayRole>,
    nat: Option<&NatParts>,
    status: SharedOwnershipStatus,
) -> Result<Router, Error> {
    let nat_routes = nat.map(|nat| nat.shown(node)).unwrap_or_default();
    let routes = nat_routes.route("/cluster", get(async move || Json(status.get())));
    Ok(routes.merge(meters::routes(node.writer.clone(), node.datapath.meter_counters()?)))
}

/// Starts the thread that shares meters with the other gateways.
fn start_shares(
    args: &Args,
    node: &Arc<sluice_agent::Node<GatewayRole>>,
    own: GatewayId,
    vteps: Vteps,
) -> Result<MeterShares, Error> {
    let writer = node.writer.clone();
    let set_shares = move |shares: Vec<_>| {
        let set = move |applier: &mut sluice_agent::Applier<GatewayRole>| {
            if let Err(error) = applier.tables.share_meters(&shares, monotonic_ns()) {
                tracing::error!(%error, "cannot set shares of meters");
            }
        };
        if !writer.post(set) {
            tracing::debug!("the tables are busy: shares of meters are set later");
        }
    };
    let meters = MeterReader::new(node.datapath.memory_of(METERS_MAP)?);
    let shares = MeterShares::start(ShareConfig {
        own,
        vteps,
        port: args.meter_port,
        source: Box::new((meters, node.datapath.meter_counters()?)),
        set_shares: Box::new(set_shares),
    })?;
    node.add_metrics(Arc::new(shares.metrics()));
    Ok(shares)
}

/// The id of this gateway.
fn own_id(started: &Started<GatewayRole>) -> Result<GatewayId, Error> {
    match started.identity().node()? {
        Node::Gateway(own) => Ok(own),
        _ => {
            let name = &started.node.name;
            Err(Error::Config(format!("this node is enrolled as {name}, which is not a gateway")))
        }
    }
}

/// Starts the thread that takes part in the cluster.
fn start_ownership(
    args: &Args,
    (started, own): (&Started<GatewayRole>, GatewayId),
    vteps: Vteps,
    ports: &SharedPorts,
    owned: OwnedVips,
    heartbeat: AgentHeartbeat,
) -> Result<Ownership, Error> {
    let writer = started.node.writer.clone();
    let set_owned = move |owned: &OwnedVips, written: Written| {
        let owned: HashSet<_> = owned.keys().copied().collect();
        writer.post(move |applier| {
            applier.role.set_owned(&mut applier.tables, owned);
            written.done();
        })
    };
    Ownership::start(OwnershipConfig {
        own,
        vteps,
        port: args.cluster_port,
        state_dir: args.common.state_dir()?,
        owned,
        tables: *started.node.complete_revision.borrow(),
        translates: !args.internet.is_empty(),
        set_owned: Box::new(set_owned),
        heartbeat,
        announcer: Box::new(Layer2Announcer::new(ports.clone())?),
    })
}

/// Detaches programs from interfaces that are not given any more, and restores the settings of these.
async fn detach_others(
    datapath: &Datapath,
    ports: &[Port],
    netlink: &Netlink,
    changes: &Changes,
) -> Result<(), Error> {
    for interface in datapath.attached()? {
        if !ports.iter().any(|port| port.link.interface() == interface) {
            tracing::info!(interface = interface.name, "not given any more: detaching the program");
            datapath.detach(&interface)?;
            changes.restore(netlink, |index| index == interface.index).await?;
        }
    }
    Ok(())
}
