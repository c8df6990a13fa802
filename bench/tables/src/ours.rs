//! Sluice's tables, filled by their writer as agents fill them.

use crate::data::{Family, Routes};
use libbpf_rs::MapHandle;
use sluice_bench_report::shell::Failure;
use sluice_datapath::{CELLS_MAP, Datapath, ObjectName, Settings};
use sluice_tables::{Immediate, Membarrier, Memory, NodeTables, Route, Sizes, Target, Vrf, layout};
use sluice_types::{IpNet, Vni, ipv6_from_halves};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// VNI of sets with only one VNI.
pub const VNI: u32 = 7;
/// Cells for an empty table.
const CELLS_MIN: u64 = 1 << 16;

/// Tables in a BPF array.
pub struct SluiceTables {
    datapath: Datapath,
    /// Writer of the tables.
    pub tables: NodeTables,
}

impl SluiceTables {
    /// Creates empty tables.
    ///
    /// # Errors
    /// Errors of the kernel or the tables.
    pub fn create(cells: u32, endpoints: usize) -> Result<Self, Failure> {
        let settings = Settings { object: ObjectName::TablesTest, cells, pin_dir: None };
        let datapath = Datapath::load(&settings)?;
        let tables = NodeTables::create(datapath.memory()?, Membarrier::new()?, Sizes { endpoints })?;
        Ok(Self { datapath, tables })
    }

    /// Creates tables with these routes in [`VNI`], and with a quarter more cells than they take.
    ///
    /// # Errors
    /// As [`SluiceTables::create`].
    pub fn with_routes(sets: &[&Routes]) -> Result<Self, Failure> {
        let fill = |tables: &mut NodeTables| {
            add_vrf(tables, VNI)?;
            sets.iter().try_for_each(|set| add_routes(tables, &table_routes(VNI, set)?).map(drop))
        };
        let used = cells_used(sets.iter().map(|set| cells_upper_bound(set)).sum(), 0, fill)?;
        let mut ours = Self::create(with_spare_cells(used), 0)?;
        fill(&mut ours.tables)?;
        Ok(ours)
    }

    /// The memory that the programs read.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn memory(&self) -> Result<Memory, Failure> {
        Ok(self.datapath.memory()?)
    }

    /// The map that the programs read.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn cells(&self) -> Result<MapHandle, Failure> {
        Ok(self.datapath.map(CELLS_MAP)?)
    }
}

/// Fills tables in a new BPF array, which nothing but the kernel has written before. Returns the time of creating the
/// tables and of `fill`, without that of allocating the array.
///
/// # Errors
/// Errors of the kernel or the tables.
pub fn fill_new_array(
    cells: u32,
    endpoints: usize,
    fill: impl FnOnce(&mut NodeTables) -> Result<Duration, Failure>,
) -> Result<Duration, Failure> {
    let datapath = Datapath::load(&Settings { object: ObjectName::TablesTest, cells, pin_dir: None })?;
    let memory = datapath.memory()?;
    let start = Instant::now();
    let mut tables = NodeTables::create(memory, Membarrier::new()?, Sizes { endpoints })?;
    Ok(start.elapsed() + fill(&mut tables)?)
}

/// A quarter more cells than are used, for changes.
pub fn with_spare_cells(used: u64) -> u32 {
    u32::try_from(used + used / 4 + CELLS_MIN).unwrap_or(u32::MAX)
}

/// Size of this many cells in megabytes.
pub fn megabytes(cells: u64) -> f64 {
    (cells * u64::from(layout::CELL_BYTES)) as f64 / 1e6
}

/// A number of cells that is larger than any form of table takes for these routes.
pub fn cells_upper_bound(set: &Routes) -> u64 {
    CELLS_MIN + set.routes.len() as u64 * if set.family == Family::V4 { 16 } else { 64 }
}

/// Number of cells that tables take when `fill` fills them. It is found by filling anonymous memory, of which
/// the kernel allocates only the used part.
///
/// # Errors
/// Errors of the tables, which may need more than `upper_bound` cells.
pub fn cells_used(
    upper_bound: u64,
    endpoints: usize,
    fill: impl Fn(&mut NodeTables) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let memory = Memory::anonymous(u32::try_from(upper_bound)?.min(layout::CELL_INDEX_MASK))?;
    let mut tables = NodeTables::create(memory, Immediate, Sizes { endpoints })?;
    fill(&mut tables)?;
    tables.flush()?;
    Ok(tables.usage().cells_used)
}

/// Adds a VRF without routes.
///
/// # Errors
/// Errors of the tables.
pub fn add_vrf(tables: &mut NodeTables, vni: u32) -> Result<(), Failure> {
    let vrf = Vrf {
        vni: Vni::new(vni)?,
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_bytes: None,
    };
    tables.upsert_vrf(&vrf)?;
    Ok(())
}

/// Converts a route to the type of the tables' writer.
///
/// # Errors
/// If it is not a valid route.
pub fn table_route(vni: Vni, family: Family, route: &crate::data::Route) -> Result<Route, Failure> {
    let address = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(route.first.low as u32)),
        Family::V6 => IpAddr::V6(ipv6_from_halves(route.first.high, route.first.low)),
    };
    let target = Target::Peer(Vni::new(route.leaf & layout::LEAF_ARGUMENT_MASK)?);
    Ok(Route { vni, prefix: IpNet::new(address, route.length)?, target })
}

/// Converts a set of routes to the type of the tables' writer.
///
/// # Errors
/// If one is not a valid route.
pub fn table_routes(vni: u32, set: &Routes) -> Result<Vec<Route>, Failure> {
    let vni = Vni::new(vni)?;
    set.routes.iter().map(|route| table_route(vni, set.family, route)).collect()
}

/// Adds routes in bulk. Returns the time that it took.
///
/// # Errors
/// Errors of the tables.
pub fn add_routes(tables: &mut NodeTables, routes: &[Route]) -> Result<Duration, Failure> {
    let start = Instant::now();
    let bulk = tables.upsert_routes(routes);
    let took = start.elapsed();
    match bulk.errors.into_iter().next() {
        Some((at, error)) => Err(format!("{:?}: {error}", routes[at]).into()),
        None => Ok(took),
    }
}
