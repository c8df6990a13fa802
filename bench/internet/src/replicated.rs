//! What copies on other gateways cost: new sessions whose first packet visits another gateway, beside those of a gateway alone. It
//! changes with what is measured of gateways in a ring.

use crate::gateway::{self, Public};
use crate::measures::pairs;
use crate::rig::{Rig, Sessions};
use crate::side::{self, Part, Turn};
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Better, Measure};
use sluice_bench_spine::contender::FORWARDS;
use sluice_bench_spine::forward::Effort;

/// Memory for which the number of sessions is computed.
const MEMORY_BYTES: f64 = 16e9;
/// What the agent keeps in its own memory of each slot of the session table: the pass that had its session.
const MARK_BYTES: f64 = 2.0;

/// Measures `nat_cps_replicated` and `nat_cps_standby`, by the beginning of these sessions.
///
/// # Errors
/// Errors of the datapath, the tables or the kernel.
pub fn beginning(effort: Effort, fresh: Sessions) -> Result<Vec<Measure>, Failure> {
    let alone = side::sluice("nat", Public::Shared, fresh)?;
    let [owner, standby] = [side::in_ring(Part::Owner, fresh)?, side::in_ring(Part::Standby, fresh)?];
    let rates = pairs(effort, || owner.measure(Turn::Fresh), || alone.measure(Turn::Fresh))?;
    let standby = (0..effort.rounds).map(|_| standby.measure(Turn::Fresh)).collect::<Result<Vec<_>, _>>()?;
    let cost: Vec<f64> = rates.iter().map(|(ring, alone)| (1.0 - ring / alone) * 100.0).collect();
    Ok(vec![
        Measure::compared("nat_cps_replicated", "1/s", Better::More, "nat_cps", &rates),
        Measure::alone("nat_cps_replicated_cost_pct", "%", &cost),
        Measure::alone("nat_cps_standby", "1/s", &standby),
    ])
}

/// Measures `nat_sessions_16gb`: a table for these sessions is filled until it refuses one, and its memory for each session is taken
/// for larger tables.
///
/// # Errors
/// Errors of the datapath, the tables or the kernel.
pub fn capacity(sessions: Sessions) -> Result<Vec<Measure>, Failure> {
    let inside = move || -> Result<gateway::Filled, Failure> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        sluice_bench_report::stay_on(FORWARDS)?;
        gateway::fill(&Rig::new()?, sessions)
    };
    let filled = std::thread::spawn(inside).join().map_err(|_| "the measuring thread panicked")??;
    let each = filled.bytes_each() + MARK_BYTES * filled.slots as f64 / filled.sessions as f64;
    Ok(vec![
        Measure::computed("nat_filled_sessions", "sessions", filled.sessions as f64),
        Measure::computed("nat_copied_session_bytes", "bytes", each),
        Measure::computed("nat_sessions_16gb", "sessions", MEMORY_BYTES / each),
    ])
}
