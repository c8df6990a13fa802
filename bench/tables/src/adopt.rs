//! Time that a new writer takes to adopt the tables of another one.

use crate::data::Family;
use crate::endpoints::Endpoints;
use crate::lookups::global_table;
use crate::ours::{SluiceTables, VNI, add_routes, add_vrf, table_routes, with_spare_cells};
use crate::{Outcome, Settings, report_progress};
use sluice_bench_report::{Measure, shell::Failure};
use sluice_tables::{Membarrier, NodeTables};
use std::time::Instant;

/// Endpoints, half of them IPv4 and half IPv6.
const ENDPOINTS: usize = 10_000_000;
/// A number of cells that is larger than an endpoint or a route takes.
const CELLS_EACH: u64 = 2;

/// Measures `adopt_10m_s`.
///
/// # Errors
/// Errors of the kernel or the tables; entries that were lost.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let set = global_table(settings, Family::V4);
    let half = settings.scaled(ENDPOINTS) / 2;
    report_progress(&format!("adopt: {} endpoints, {} routes", 2 * half, set.routes.len()));
    let cells = with_spare_cells((2 * half + set.routes.len()) as u64 * CELLS_EACH);
    let mut ours = SluiceTables::create(cells, 2 * half)?;
    add_vrf(&mut ours.tables, VNI)?;
    add_routes(&mut ours.tables, &table_routes(VNI, &set)?)?;
    for family in [Family::V4, Family::V6] {
        Endpoints { vni: VNI, family, count: half }.add_to(&mut ours.tables)?;
    }
    ours.tables.flush()?;
    let left = ours.tables.usage();
    let mut times = Vec::new();
    for _ in 0..settings.rounds {
        let start = Instant::now();
        ours.tables = NodeTables::adopt(ours.memory()?, Membarrier::new()?)?;
        times.push(start.elapsed().as_secs_f64());
        let found = ours.tables.usage();
        if found != left {
            return Err(format!("the new writer found {found:?}, but the old one left {left:?}").into());
        }
    }
    outcome.measures.push(Measure::alone("adopt_10m_s", "s", &times));
    Ok(())
}
