//! How long a new writer takes to adopt what another one left.

use crate::data::Family;
use crate::endpoints::Endpoints;
use crate::lookups::global_table;
use crate::ours::{Ours, VNI, enter_routes, enter_vrf, roomy, writers_routes};
use crate::{Outcome, Settings, say};
use sluice_bench_report::{Measure, median, shell::Failure};
use sluice_tables::{Membarrier, NodeTables};
use std::time::Instant;

/// Endpoints, half of them IPv4 and half IPv6.
const ENDPOINTS: usize = 10_000_000;
/// More cells than an endpoint takes, and than a route does.
const CELLS_EACH: u64 = 2;

/// `adopt_10m_s`.
///
/// # Errors
/// The kernel's or the tables', and where something was lost.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let set = global_table(settings, Family::V4);
    let half = settings.scaled(ENDPOINTS) / 2;
    say(&format!("adopt: {} endpoints, {} routes", 2 * half, set.routes.len()));
    let cells = roomy((2 * half + set.routes.len()) as u64 * CELLS_EACH);
    let mut ours = Ours::create(cells, 2 * half)?;
    enter_vrf(&mut ours.tables, VNI)?;
    enter_routes(&mut ours.tables, &writers_routes(VNI, &set)?)?;
    for family in [Family::V4, Family::V6] {
        Endpoints { vni: VNI, family, count: half }.enter(&mut ours.tables)?;
    }
    ours.tables.flush()?;
    let left = ours.tables.fill();
    let mut times = Vec::new();
    for _ in 0..settings.rounds {
        let start = Instant::now();
        ours.tables = NodeTables::adopt(ours.memory()?, Membarrier::new()?)?;
        times.push(start.elapsed().as_secs_f64());
        let found = ours.tables.fill();
        if found != left {
            return Err(format!("adopted {found:?} of {left:?}").into());
        }
    }
    outcome.measures.push(Measure::alone("adopt_10m_s", "s", median(times)));
    Ok(())
}
