//! The measures and their peers. It changes with what is compared.

use crate::gateway::{self, Public};
use crate::kernel::{self, Limits};
use crate::rig::{Order, Rig, Sessions};
use crate::side::{self, Turn};
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Better, Measure};
use sluice_bench_spine::contender::{Contender, FORWARDS};
use sluice_bench_spine::forward::{self, Effort};
use sluice_bench_spine::gateway::Routes;

const PEER: &str = "nftables";
/// Packets of a timed run.
const TIMED: u32 = 1_000_000;
/// Connections beside those that are measured.
const SPARE: u32 = 100_000;

/// Numbers of sessions, and their names in measures.
pub const SIZES: [(Sessions, &str); 3] = [
    (Sessions { vms: 1_000, ports: 50, remotes: 2 }, "100k"),
    (Sessions { vms: 10_000, ports: 50, remotes: 2 }, "1m"),
    (Sessions { vms: 10_000, ports: 50, remotes: 20 }, "10m"),
];
/// The largest number for which the peer is measured.
const PEER_SESSIONS_MAX: u32 = 1_000_000;
/// Sessions that begin in a turn: each of a port of its own.
pub const FRESH: Sessions = Sessions { vms: 10_000, ports: 50, remotes: 1 };

/// A turn of each side. In every second round the order is reversed, so that no side is always the first.
fn pair(
    round: usize,
    mut ours: impl FnMut() -> Result<f64, Failure>,
    mut theirs: impl FnMut() -> Result<f64, Failure>,
) -> Result<(f64, f64), Failure> {
    if round.is_multiple_of(2) {
        let first = ours()?;
        return Ok((first, theirs()?));
    }
    let first = theirs()?;
    Ok((ours()?, first))
}

/// Turns of both sides, in each round one of each.
///
/// # Errors
/// Errors of the sides.
pub fn pairs(
    effort: Effort,
    ours: impl Fn() -> Result<f64, Failure>,
    theirs: impl Fn() -> Result<f64, Failure>,
) -> Result<Vec<(f64, f64)>, Failure> {
    (0..effort.rounds).map(|round| pair(round, &ours, &theirs)).collect()
}

/// Measures `nat_ns_*` and `nat_mpps_*` of the sizes whose names are among `wanted`.
///
/// # Errors
/// Errors of the datapath, the tools or the kernel.
pub fn established(effort: Effort, wanted: &[String]) -> Result<Vec<Measure>, Failure> {
    let mut measures = Vec::new();
    for (sessions, size) in SIZES.into_iter().filter(|(_, name)| wanted.iter().any(|size| size == name)) {
        measures.extend(one_size(effort, sessions, size)?);
    }
    Ok(measures)
}

/// The same for these sessions.
///
/// # Errors
/// As [`established`].
pub fn one_size(effort: Effort, sessions: Sessions, size: &str) -> Result<Vec<Measure>, Failure> {
    let ours = side::sluice("nat", Public::Shared, sessions)?;
    let plain = forward::start_gateway(sessions.vms, Routes::One)?;
    let rate = |side: &Contender<Turn>| side.measure(Turn::Mpps(effort.seconds));
    let through = |side: &Contender| side.measure(sluice_bench_spine::contender::Turn::Mpps(effort.seconds));
    let time = || ours.measure(Turn::Nanoseconds(TIMED));
    let plain_time = || plain.measure(sluice_bench_spine::contender::Turn::Nanoseconds(TIMED));
    let mut measures = vec![
        Measure::compared(
            format!("nat_ns_{size}"),
            "ns",
            Better::Less,
            "gateway",
            &pairs(effort, time, plain_time)?,
        ),
        Measure::compared(
            format!("nat_mpps_{size}"),
            "Mpps",
            Better::More,
            "gateway",
            &pairs(effort, || rate(&ours), || through(&plain))?,
        ),
    ];
    if sessions.count() <= PEER_SESSIONS_MAX {
        let _limits = Limits::raise(sessions.count() + SPARE)?;
        let theirs = side::nftables(sessions)?;
        let rates = pairs(effort, || rate(&ours), || rate(&theirs))?;
        measures.push(Measure::compared(format!("nat_mpps_{size}"), "Mpps", Better::More, PEER, &rates));
    }
    Ok(measures)
}

/// Measures `nat_cps`, by the beginning of these sessions.
///
/// # Errors
/// Errors of the datapath, the tools or the kernel.
pub fn beginning(effort: Effort, fresh: Sessions) -> Result<Vec<Measure>, Failure> {
    let _limits = Limits::raise(fresh.count() + SPARE)?;
    let (ours, theirs) = (side::sluice("nat", Public::Shared, fresh)?, side::nftables(fresh)?);
    let rates = pairs(effort, || ours.measure(Turn::Fresh), || theirs.measure(Turn::Fresh))?;
    Ok(vec![Measure::compared("nat_cps", "1/s", Better::More, PEER, &rates)])
}

/// Measures `eip_mpps` by packets of these flows.
///
/// # Errors
/// Errors of the datapath or the kernel.
pub fn public(effort: Effort, flows: Sessions) -> Result<Vec<Measure>, Failure> {
    let ours = side::sluice("public addresses", Public::Own, flows)?;
    let plain = forward::start_gateway(flows.vms, Routes::One)?;
    let rates = pairs(
        effort,
        || ours.measure(Turn::Mpps(effort.seconds)),
        || plain.measure(sluice_bench_spine::contender::Turn::Mpps(effort.seconds)),
    )?;
    Ok(vec![Measure::compared("eip_mpps", "Mpps", Better::More, "gateway", &rates)])
}

/// Measures `nat_session_bytes`: the memory of a table that is filled until it refuses a session, and of as many connections of
/// the kernel.
///
/// # Errors
/// Errors of the datapath, the tools or the kernel.
pub fn memory(sessions: Sessions) -> Result<Vec<Measure>, Failure> {
    // They can be changed in the first network namespace only.
    let _limits = Limits::raise(sessions.count() + SPARE)?;
    let inside = move || -> Result<(f64, f64), Failure> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        // As a contender: where the generator changes its core, queues drop most packets.
        sluice_bench_report::stay_on(FORWARDS)?;
        let rig = Rig::new()?;
        let ours = gateway::fill(&rig, sessions)?.bytes_each();
        kernel::set_up(sessions.vms)?;
        rig.aim(sessions, Order::From(0), sluice_bench_spine::peers::ROUTER.parse()?)?;
        let before = kernel::slab_bytes()?;
        kernel::fill(&rig, sessions)?;
        let theirs = (kernel::slab_bytes()?.saturating_sub(before)) as f64 / kernel::count()? as f64;
        kernel::forget()?;
        // A bucket of the hash table for each connection, and two entries of it.
        Ok((ours, theirs + 8.0))
    };
    let bytes = std::thread::spawn(inside).join().map_err(|_| "the measuring thread panicked")??;
    Ok(vec![Measure::compared("nat_session_bytes", "bytes", Better::Less, "conntrack", &[bytes])])
}
