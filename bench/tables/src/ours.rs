//! Sluice's tables, filled through their writer as agents fill them.

use crate::data::{Family, Routes};
use libbpf_rs::MapHandle;
use sluice_bench_report::shell::Failure;
use sluice_datapath::{CELLS_MAP, Datapath, ObjectName, Settings};
use sluice_tables::{Immediate, Membarrier, Memory, NodeTables, Route, Sizes, Target, Vrf, layout};
use sluice_types::{IpNet, Vni, ipv6_from_halves};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// The VNI of sets that have only one.
pub const VNI: u32 = 7;
/// Cells for what a table of no size holds.
const LEAST_CELLS: u64 = 1 << 16;

/// Tables in a BPF array.
pub struct Ours {
    datapath: Datapath,
    /// Their writer.
    pub tables: NodeTables,
}

impl Ours {
    /// Empty tables.
    ///
    /// # Errors
    /// The kernel's or the tables'.
    pub fn create(cells: u32, endpoints: usize) -> Result<Self, Failure> {
        let settings = Settings { object: ObjectName::TablesTest, cells, pin_dir: None };
        let datapath = Datapath::load(&settings)?;
        let tables = NodeTables::create(datapath.memory()?, Membarrier::new()?, Sizes { endpoints })?;
        Ok(Self { datapath, tables })
    }

    /// Tables with these routes in [`VNI`], and a quarter of the memory free.
    ///
    /// # Errors
    /// As [`Ours::create`].
    pub fn with_routes(sets: &[&Routes]) -> Result<Self, Failure> {
        let fill = |tables: &mut NodeTables| {
            enter_vrf(tables, VNI)?;
            sets.iter().try_for_each(|set| enter_routes(tables, &writers_routes(VNI, set)?).map(drop))
        };
        let used = cells_used(sets.iter().map(|set| cells_at_most(set)).sum(), 0, fill)?;
        let mut ours = Self::create(roomy(used), 0)?;
        fill(&mut ours.tables)?;
        Ok(ours)
    }

    /// The memory that the programs read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn memory(&self) -> Result<Memory, Failure> {
        Ok(self.datapath.memory()?)
    }

    /// The map that the programs read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cells(&self) -> Result<MapHandle, Failure> {
        Ok(self.datapath.map(CELLS_MAP)?)
    }
}

/// A quarter more, so that changes find room.
pub fn roomy(used: u64) -> u32 {
    u32::try_from(used + used / 4 + LEAST_CELLS).unwrap_or(u32::MAX)
}

/// Megabytes of so many cells.
pub fn megabytes(cells: u64) -> f64 {
    (cells * u64::from(layout::CELL_BYTES)) as f64 / 1e6
}

/// More cells than any form of table takes for these routes.
pub fn cells_at_most(set: &Routes) -> u64 {
    LEAST_CELLS + set.routes.len() as u64 * if set.family == Family::V4 { 16 } else { 64 }
}

/// Cells that tables take when filled like that: found by filling memory of
/// which only what is used exists.
///
/// # Errors
/// The tables', which may need more than `at_most` cells.
pub fn cells_used(
    at_most: u64,
    endpoints: usize,
    fill: impl Fn(&mut NodeTables) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let memory = Memory::anonymous(u32::try_from(at_most)?.min(layout::CELL_INDEX_MASK))?;
    let mut tables = NodeTables::create(memory, Immediate, Sizes { endpoints })?;
    fill(&mut tables)?;
    tables.flush()?;
    Ok(tables.fill().cells_used)
}

/// A VRF without routes.
///
/// # Errors
/// The tables'.
pub fn enter_vrf(tables: &mut NodeTables, vni: u32) -> Result<(), Failure> {
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

/// A route as the writer takes it.
///
/// # Errors
/// For what is no route.
pub fn writers_route(vni: Vni, family: Family, route: &crate::data::Route) -> Result<Route, Failure> {
    let address = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(route.first.low as u32)),
        Family::V6 => IpAddr::V6(ipv6_from_halves(route.first.high, route.first.low)),
    };
    let target = Target::Peer(Vni::new(route.leaf & layout::LEAF_ARGUMENT_MASK)?);
    Ok(Route { vni, prefix: IpNet::new(address, route.length)?, target })
}

/// A set as the writer takes it.
///
/// # Errors
/// For what is no route.
pub fn writers_routes(vni: u32, set: &Routes) -> Result<Vec<Route>, Failure> {
    let vni = Vni::new(vni)?;
    set.routes.iter().map(|route| writers_route(vni, set.family, route)).collect()
}

/// Enters routes all at once; how long it took.
///
/// # Errors
/// The tables'.
pub fn enter_routes(tables: &mut NodeTables, routes: &[Route]) -> Result<Duration, Failure> {
    let start = Instant::now();
    let bulk = tables.upsert_routes(routes);
    let took = start.elapsed();
    match bulk.errors.into_iter().next() {
        Some((at, error)) => Err(format!("{:?}: {error}", routes[at]).into()),
        None => Ok(took),
    }
}
