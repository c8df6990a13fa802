//! The agent of a compute host: the programs on its VMs' ports and towards the underlay, the instances that
//! the controller placed here and their interfaces, and the direct paths that the host learns.
#![forbid(unsafe_code)]

mod args;
mod claim_reader;
mod credit;
mod elephants;
mod ending_sessions;
mod guard;
mod guard_metrics;
mod health;
mod heavy_flows;
mod identity_client;
mod ipsec;
mod local_api;
mod member_probes;
mod migration;
mod path_learner;
mod path_metrics;
mod permitted_senders;
mod policies;
mod port_manager;
mod port_registry;
mod rates;
mod remote_identities;
mod role;
mod rsp_client;
mod scopes;
mod sessions;
mod vxlan_device;

pub use args::Args;
pub use guard::PortName;
pub use migration::wire as migration_wire;
pub use port_manager::INSTANCE_WAIT;
pub use sluice_agent::Error;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_agent::changes::Changes;
use sluice_agent::event_source::AsyncEventRing;
use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::underlay::{Vteps, vteps};
use sluice_agent::{
    HealthConfig, Role, adoption_error, error_chain, flush, flush_closed, open, watch_health,
};
use sluice_datapath::{Datapath, FlowEvent, ObjectName};
use sluice_tables::sessions::Timeouts;
use sluice_tables::{PortCredits, PortMeters};
use tokio::sync::watch;

use crate::elephants::Elephants;
use crate::identity_client::IdentityClient;
use crate::member_probes::MemberProbes;
use crate::migration::Migrator;
use crate::port_manager::{PORT_PROGRAM, PortManager, UPLINK_PROGRAM, Underlay};
use crate::port_registry::PortRegistry;
use crate::role::HostRole;
use crate::rsp_client::{ElephantDetection, RspClient};
use crate::scopes::Scopes;
use crate::sessions::list::SessionList;
use crate::sessions::{OpenError, OpenSessions, Receivers, SessionKeeper};

const ROLE: &str = "vswitch";
/// A network stays for this time after its last instance has left this host, and packets of a gateway are
/// accepted for this time after the gateway was removed.
const REMOVAL_DELAY: Duration = Duration::from_secs(60);

/// Runs a host's vSwitch until SIGTERM or SIGINT, or removes what an earlier agent left (`--flush`).
///
/// # Errors
/// If the vSwitch cannot start. Later failures are logged and retried.
pub async fn run(args: Args) -> Result<(), Error> {
    let common = &args.common;
    let netlink = Netlink::open()?;
    if common.flush {
        return flush_host(&args, &netlink).await;
    }
    common.check_ports(&[args.migration_port])?;
    let name = args.uplink.clone().ok_or_else(|| Error::Config("--uplink is required".to_owned()))?;
    let uplink = netlink.require_link(&name).await?;
    let vteps = host_vtep(&netlink, &uplink, args.vtep).await?;
    // First of all: whatever fails later, no VM reaches the host's own stack.
    guard::check_names(&netlink, &args.port_names, Some(&uplink)).await?;
    guard::install(&args.port_names).await?;
    let mut opened = open(common, ROLE, ObjectName::Vswitch, &args.session_maps())?;
    renew_port_programs(&opened.datapath)?;
    let vxlan = vxlan_device::ensure(&netlink, &uplink, vteps).await?;
    let of_interfaces = Changes::new(&common.pin_dir(ROLE));
    let health = health_config(&args, &uplink.name, vteps);
    let underlay = Underlay { uplink: name, vteps, by_device: args.kernel_vxlan };
    opened.tables.set_node(&underlay.node_config(&uplink, &vxlan))?;
    opened.datapath.attach_tc(UPLINK_PROGRAM, &vxlan.interface())?;
    attach_underlay(&underlay, &opened.datapath, (&netlink, &of_interfaces), &uplink).await;
    let (sessions, maps) =
        open_ports(&opened.datapath, &args.session_timeouts.unwrap_or_default(), &common.pin_dir(ROLE))?;
    let rates = Arc::new(args.rates(&opened.datapath, maps.clone(), &uplink)?);
    let scopes = Scopes::new(sessions.shares(), maps, args.session_limit(sessions.capacity()));
    let (mut registry, complete) =
        PortRegistry::load(&common.state_dir()?, scopes.clone(), args.adopt_seconds)?;
    registry.limit_mtu(mtu16(vxlan_device::mtu(&uplink, vteps)?));
    registry.adopt(&mut opened.tables);
    let changes = registry.subscribe();
    let role = HostRole::new(registry, REMOVAL_DELAY).with_sessions(sessions.reader());
    let detection_groups = role.detection();
    let (claims, reports, members) = (role.claims(), role.migrations(), role.members());
    let (receivers, questions) = Receivers::of_map(opened.datapath.remote_identities()?);
    let keeper = SessionKeeper::start(sessions, opened.reader.clone(), scopes, receivers)?;
    let started = opened.start(common, ROLE, role, complete).await?;
    let node = started.node.clone();
    node.add_metrics(Arc::new(claims));
    node.add_metrics(Arc::new(keeper.metrics()));
    node.add_metrics(rates.clone());
    let registered = (changes.clone(), rates.clone(), args.port_names.clone());
    let manager =
        Arc::new(PortManager::new(netlink.clone(), node.clone(), underlay, registered, of_interfaces));
    node.add_metrics(manager.guard_metrics());
    manager.adopt().await?;
    node.writer.run(|applier| applier.role.delay_unused(&applier.tables, Instant::now())).await?;
    let (at, copies) = ((own_address(vteps)?, args.migration_port), (keeper.reader(), keeper.installer()));
    let (migrator, resumer) = Migrator::open(node.clone(), at, copies, reports, changes.clone())?;
    let members = MemberProbes::start(members, node.clone(), changes.clone())?;
    let transport = node.open_rsp(common, vteps)?;
    let strays = AsyncEventRing::new(node.datapath.strays()?)?;
    let detection = detect_elephants(&node.datapath, detection_groups)?;
    let claim_reader = claim_reader::run(node.clone(), AsyncEventRing::new(node.datapath.claims()?)?);
    let idle = Duration::from_secs(args.path_idle);
    let sources = (strays, detection, IdentityClient::open(&node.datapath, questions)?);
    let (client, paths) = RspClient::new(node, transport, sources, own_address(vteps)?, idle, changes);
    let listed = SessionList::new(started.node.clone(), keeper.reader());
    let routes = local_api::port_routes(manager.clone())
        .merge(local_api::resume_routes(resumer))
        .merge(local_api::session_routes(listed))
        .merge(local_api::path_routes(paths));
    let health = watch_health(started.node.clone(), health, health::view, Some(keeper.flow_meter()));
    let work = async move {
        tokio::select! {
            ended = manager.run() => ended,
            ended = health => ended,
            ended = client.run() => ended,
            ended = claim_reader => ended,
            () = rates.keep(&netlink) => Ok(()),
            ended = migrator.run() => ended,
            ended = members.run() => ended,
        }
    };
    let ended = started.serve(common, routes, work).await;
    // Until here it looks after sessions. If this function is canceled, it ends as well.
    drop(keeper);
    ended
}

/// Attaches the program to the underlay interface. Without it, the VXLAN device does its work.
async fn attach_underlay(
    underlay: &Underlay,
    datapath: &Datapath,
    system: (&Netlink, &Changes),
    uplink: &Link,
) {
    if let Err(error) = underlay.attach(datapath, system, uplink).await {
        tracing::warn!(
            error = error_chain(&error),
            "cannot attach the program to the underlay interface: the VXLAN device decapsulates; retrying later"
        );
    }
    if !underlay.by_device && ipsec::has_policies().await {
        tracing::warn!(
            "this host has IPsec policies, which packets between VMs and the underlay do not pass; if they must, \
             start the agent with --kernel-vxlan"
        );
    }
}

/// The options of this host's health checks. The name of the uplink is the one that the kernel lists: `--uplink` may be
/// an alternative name.
fn health_config(args: &Args, uplink: &str, vteps: Vteps) -> HealthConfig {
    HealthConfig {
        vteps,
        underlay: vec![uplink.to_owned()],
        is_gateway: false,
        port: args.common.health_port,
        link_period: Duration::from_secs(args.common.health_link_s),
        vm_period: Duration::from_secs(args.health_vm_s),
        limits: args.common.health_limits(),
    }
}

/// Opens the detection of elephant flows for the groups that have it.
fn detect_elephants(
    datapath: &Datapath,
    groups: watch::Receiver<BTreeMap<u32, u32>>,
) -> Result<ElephantDetection<AsyncEventRing<FlowEvent>>, Error> {
    Ok(ElephantDetection {
        events: AsyncEventRing::new(datapath.flow_events()?)?,
        flows: datapath.flows()?,
        groups,
        reported: Elephants::default(),
    })
}

/// Opens what packets write for ports: sessions, meters and what credit is judged by.
fn open_ports(
    datapath: &Datapath,
    timeouts: &Timeouts,
    pin_dir: &Path,
) -> Result<(OpenSessions, (PortMeters, PortCredits)), Error> {
    let sessions = OpenSessions::open(datapath, timeouts).map_err(|error| match error {
        OpenError::Datapath(error) => error.into(),
        OpenError::Tables(error) => adoption_error(error, pin_dir),
    })?;
    let meters = PortMeters::new(datapath.port_meters()?).map_err(|error| adoption_error(error, pin_dir))?;
    Ok((sessions, (meters, datapath.port_credits()?)))
}

/// Gives ports that an earlier agent attached the program of this version. This comes before the VXLAN device is
/// replaced: the program of a version without identities does not set them, and a device with the flag `gbp` then sends
/// random ones.
fn renew_port_programs(datapath: &Datapath) -> Result<(), Error> {
    for interface in datapath.attached()?.into_iter().filter(|it| it.name != vxlan_device::NAME) {
        // The interface may have been removed a moment ago.
        if let Err(error) = datapath.attach_tc(PORT_PROGRAM, &interface) {
            tracing::error!(
                interface = interface.name,
                error = error_chain(&error),
                "cannot replace the program"
            );
        }
    }
    Ok(())
}

/// Installs the guard for interfaces with these names, without an agent.
///
/// # Errors
/// If the names match interfaces of the host itself, `nft` is not installed, or the kernel refuses the rules.
pub async fn install_guard(names: &[PortName]) -> Result<(), Error> {
    guard::check_names(&Netlink::open()?, names, None).await?;
    guard::install(names).await
}

/// Removes programs, tables and the VXLAN device. The interfaces of VMs stay closed, unless `--unguard` was given.
async fn flush_host(args: &Args, netlink: &Netlink) -> Result<(), Error> {
    // The names of an installed guard are those of the agent that installed it.
    if !args.unguard && !guard::is_installed(&[]).await? {
        guard::check_names(netlink, &args.port_names, None).await?;
        guard::install(&args.port_names).await?;
    }
    let closed = flush_closed(&args.common, ROLE, netlink, &[vxlan_device::NAME]).await?;
    vxlan_device::remove(netlink).await?;
    rates::remove_all(netlink).await?;
    if args.unguard {
        flush(&args.common, ROLE, netlink).await?;
        guard::remove().await?;
        tracing::warn!("the guard was removed: this host's own network stack receives what its VMs send");
    } else {
        let closed: Vec<_> = closed.iter().map(|interface| interface.name.as_str()).collect();
        tracing::info!(
            interfaces = closed.join(" "),
            "removed the tables; interfaces of VMs stay closed until --flush --unguard"
        );
    }
    Ok(())
}

/// The one VTEP of a host.
fn own_address(vteps: Vteps) -> Result<IpAddr, Error> {
    let absent = || Error::Config("this host has no VTEP".to_owned());
    vteps.v4.map(IpAddr::V4).or(vteps.v6.map(IpAddr::V6)).ok_or_else(absent)
}

/// An MTU as the tables store it: in 16 bits.
fn mtu16(mtu: u32) -> u16 {
    u16::try_from(mtu).unwrap_or(u16::MAX)
}

/// A host has one VTEP: the given one, or the uplink's first address, IPv4 before IPv6.
async fn host_vtep(netlink: &Netlink, uplink: &Link, given: Option<IpAddr>) -> Result<Vteps, Error> {
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
