//! How long a gateway without any session needs until it has copies of all: two threads that copy, over sockets on loopback, with
//! the tables and the programs of two gateways. It changes with how gateways start to copy.

use crate::gateway::{Edge, Public};
use crate::rig::{Order, Rig, Sessions};
use nix::time::ClockId;
use sluice_agent::underlay::Vteps;
use sluice_bench_report::Measure;
use sluice_bench_report::shell::{Failure, run};
use sluice_bench_spine::packet::{GATEWAY, VNI};
use sluice_cluster::Contacts;
use sluice_envelope::{ClusterKey, KeyRing};
use sluice_gateway::ownership::{ClusterView, GatewayPlan, PlannedMember};
use sluice_gateway::{Copies, NatSync, SyncConfig};
use sluice_types::{ClusterId, GatewayId, ROUTER_MAC, Vni};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// VTEPs of the owner and of the gateway that joins.
const VTEPS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
const PORT: u16 = 4799;
const POLL: Duration = Duration::from_millis(10);
/// Time for a million sessions after which something is wrong.
const MAX_PER_MILLION: Duration = Duration::from_secs(60);

fn id(at: usize) -> GatewayId {
    GatewayId::new(at as u64 + 1)
}

/// The cluster as gateway `at` sees it.
fn view(at: usize) -> ClusterView {
    let member =
        |at: usize| PlannedMember { gateway: id(at), vtep4: Some(VTEPS[at]), vtep6: None, draining: false };
    let plan = GatewayPlan {
        cluster: ClusterId::new(1),
        revision: 1,
        vips: Vec::new(),
        members: [0, 1].map(member).to_vec(),
        hello_interval_ms: 4,
    };
    let contacts = Contacts { mutual: vec![id(1 - at)], has_heir: true, ..Contacts::default() };
    ClusterView {
        plan: Some(plan),
        owners: BTreeMap::from([(GATEWAY.into(), id(0))]),
        contacts,
        ..ClusterView::default()
    }
}

fn start(at: usize, edge: &mut Edge) -> Result<NatSync, Failure> {
    let table = Box::new(Copies::new(edge.share_nat()?, edge.copier()?));
    let vteps = Vteps { v4: Some(VTEPS[at]), v6: None };
    let sync = NatSync::start(SyncConfig { own: id(at), vteps, port: PORT, table })?;
    let key = ClusterKey::new(1, &std::array::from_fn(|byte| byte as u8), 0, u64::MAX)?;
    sync.set_keys(KeyRing::new(vec![key])?);
    sync.set_units(vec![(Vni::new(VNI)?, GATEWAY.into())]);
    sync.set_view(view(at));
    Ok(sync)
}

/// The processor time of this process.
fn processor_time() -> Result<Duration, Failure> {
    Ok(nix::time::clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// The seconds from the start of the gateway that joins until it says that its copies are complete, and the processor time of both
/// gateways meanwhile.
fn seconds(sessions: Sessions) -> Result<[f64; 2], Failure> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
    let rig = Rig::new()?;
    for vtep in VTEPS {
        run(&format!("ip address add {vtep}/32 dev lo"))?;
    }
    // A session for which the other table has no room would never be copied: both of its buckets may be full there.
    let room = Sessions { remotes: sessions.remotes * 2, ..sessions };
    let [mut owner, mut joins] =
        [Edge::new(&rig, Public::Shared, room)?, Edge::new(&rig, Public::Shared, room)?];
    rig.aim(sessions, Order::From(0), ROUTER_MAC)?;
    rig.timed(owner.program()?.as_fd(), sessions.count())?;
    owner.check(sessions)?;
    let _owner = start(0, &mut owner)?;
    let (begun, before) = (Instant::now(), processor_time()?);
    let joined = start(1, &mut joins)?;
    let complete = joined.complete();
    let max = MAX_PER_MILLION * sessions.count().div_ceil(1_000_000);
    while !*complete.borrow() {
        if begun.elapsed() > max {
            let lacks =
                joins.check_copies(&owner).err().map_or_else(String::new, |error| format!(": {error}"));
            return Err(format!("the copies are not complete within {max:?}{lacks}").into());
        }
        std::thread::sleep(POLL);
    }
    let times = [begun.elapsed(), processor_time()? - before].map(|time| time.as_secs_f64());
    drop(joined);
    // What "complete" means is what is measured.
    joins.check_copies(&owner)?;
    Ok(times)
}

/// Measures `resync_s_*` and `resync_core_pct_*` with these sessions.
///
/// # Errors
/// Errors of the datapath, the tables or the kernel; copies that are not complete.
pub fn measure(rounds: usize, sessions: Sessions, size: &str) -> Result<Vec<Measure>, Failure> {
    let round = |_| {
        std::thread::spawn(move || seconds(sessions)).join().map_err(|_| "the measuring thread panicked")?
    };
    let all = (0..rounds).map(round).collect::<Result<Vec<_>, Failure>>()?;
    let seconds: Vec<f64> = all.iter().map(|[seconds, _]| *seconds).collect();
    // A pass takes as long in each of its periods, whether its sessions are new at the other gateway or not.
    let core_pct: Vec<f64> = all.iter().map(|[seconds, busy]| busy / seconds * 100.0).collect();
    Ok(vec![
        Measure::alone(format!("resync_s_{size}"), "s", &seconds),
        Measure::alone(format!("resync_core_pct_{size}"), "%", &core_pct),
    ])
}
