//! Bulk loads of 1M and 10M routes and endpoints, compared with system calls, and memory for 10M routes.

use crate::data::{BGP4, CLOUD4, Family, Routes, routes, tables_of_8_bits};
use crate::endpoints::{EndpointAnswers, Endpoints};
use crate::kernel_peers::{hash_batch, trie_batch, trie_nodes};
use crate::ours::{
    SluiceTables, VNI, add_routes, add_vrf, cells_upper_bound, cells_used, megabytes, table_routes,
    with_spare_cells,
};
use crate::rig::{Batch, Programs, settle};
use crate::{Outcome, Settings, report_progress};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use sluice_bench_report::{Measure, median, shell::Failure};
use sluice_tables::{Membarrier, NodeTables, Sizes};
use std::time::{Duration, Instant};

/// Entries of one system call, for maps that support batches.
const PER_CALL: usize = 1 << 16;
/// Size of a second-level table of `rte_fib` with next hops of 4 bytes, and of its first level.
const FIB_TABLE_BYTES: f64 = 256.0 * 4.0;
const FIB_FIRST_BYTES: f64 = 4.0 * (1 << 24) as f64;

/// Measures `bulk_{1m,10m}_s`, `bulk_exact_{1m,10m}_s` and `routes10m_mb`.
///
/// # Errors
/// Errors of the kernel or the tables.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for (name, shape, count) in [("bulk_1m_s", BGP4, 1_000_000), ("bulk_10m_s", CLOUD4, 10_000_000)] {
        report_progress(&format!("{name}: {} routes", settings.scaled(count)));
        let set = routes(1, Family::V4, shape, settings.scaled(count));
        let entries = table_routes(VNI, &set)?;
        let used = cells_used(cells_upper_bound(&set), 0, |tables| {
            add_vrf(tables, VNI)?;
            add_routes(tables, &entries).map(drop)
        })?;
        let ours = SluiceTables::create(with_spare_cells(used), 0)?;
        let seconds = rounds(settings, |_| {
            // The same array is laid out again.
            let memory = ours.tables.memory().clone();
            let mut tables = NodeTables::create(memory, Membarrier::new()?, Sizes { endpoints: 0 })?;
            add_vrf(&mut tables, VNI)?;
            add_routes(&mut tables, &entries)
        })?;
        drop(ours);
        let load = PeerLoad { map: "trie4", batch: trie_batch(&set), total: set.routes.len() };
        let node_bytes = measure_peers(settings, outcome, name, seconds, &load)?;
        if shape == CLOUD4 {
            let trie = node_bytes * trie_nodes(&set) as f64 / 1e6;
            routes_mb(outcome, &set, megabytes(used), trie);
        }
    }
    endpoints(settings, outcome)
}

fn endpoints(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for (name, count) in [("bulk_exact_1m_s", 1_000_000), ("bulk_exact_10m_s", 10_000_000)] {
        let endpoints = Endpoints { vni: VNI, family: Family::V4, count: settings.scaled(count) };
        report_progress(&format!("{name}: {} endpoints", endpoints.count));
        let ours = crate::lookups::with_endpoints(endpoints)?;
        let seconds = rounds(settings, |_| {
            let memory = ours.tables.memory().clone();
            let sizes = Sizes { endpoints: endpoints.count };
            let start = Instant::now();
            let mut tables = NodeTables::create(memory, Membarrier::new()?, sizes)?;
            Ok(start.elapsed() + endpoints.add_to(&mut tables)?)
        })?;
        let batch = hash_batch(&EndpointAnswers::of(&ours.tables)?, endpoints, 0, endpoints.count);
        drop(ours);
        let load = PeerLoad { map: "hash4", batch, total: endpoints.count };
        measure_peers(settings, outcome, name, seconds, &load)?;
    }
    Ok(())
}

/// Median time of rounds in seconds. After the first round, no more are begun when the time for them is over.
fn rounds(
    settings: &Settings,
    mut load: impl FnMut(usize) -> Result<Duration, Failure>,
) -> Result<f64, Failure> {
    let start = Instant::now();
    let mut times = Vec::new();
    for round in 0..settings.rounds {
        if round > 0 && start.elapsed() > settings.bulk_bound() {
            break;
        }
        times.push(load(round)?.as_secs_f64());
    }
    Ok(median(times))
}

/// The entries with which a map of the kernel is filled.
struct PeerLoad {
    map: &'static str,
    batch: Batch,
    total: usize,
}

impl PeerLoad {
    /// Fills a new map with `per_call` entries for each system call. If the time bound is reached, the result
    /// is projected from the entries that were written by then. `None` if the kernel offers no batches for
    /// the map.
    fn fill(&self, per_call: usize, bound: Duration) -> Result<Option<PeerFill>, Failure> {
        settle()?;
        let programs = Programs::load_maps(&[(self.map, self.total as u32)])?;
        let map = programs.map(self.map)?;
        let start = Instant::now();
        let mut done = 0;
        while done < self.total && (done == 0 || start.elapsed() < bound) {
            let count = PER_CALL.min(self.total - done);
            if per_call == 1 {
                self.one_by_one(&map, done, count)?;
            } else if self.batch.write_range(&map, done, count).is_err() {
                return Ok(None);
            }
            done += count;
        }
        let seconds = start.elapsed().as_secs_f64() * self.total as f64 / done as f64;
        let bytes = map.query_fdinfo()?.memlock.unwrap_or(0) as f64 / done as f64;
        Ok(Some(PeerFill { seconds, done, bytes }))
    }

    fn one_by_one(&self, map: &MapHandle, first: usize, count: usize) -> Result<(), Failure> {
        for at in first..first + count {
            let (key, value) = self.batch.entry(at);
            map.update(key, value, MapFlags::ANY)?;
        }
        Ok(())
    }
}

/// Result of filling a map.
struct PeerFill {
    /// Time for all entries.
    seconds: f64,
    /// Entries that were written.
    done: usize,
    /// Memory of an entry, as the kernel counts it.
    bytes: f64,
}

/// Measures the peers. Returns the memory of an entry in bytes, as the kernel counts it.
fn measure_peers(
    settings: &Settings,
    outcome: &mut Outcome,
    name: &str,
    ours: f64,
    load: &PeerLoad,
) -> Result<f64, Failure> {
    let mut bytes = 0.0;
    for (peer, per_call) in [("syscalls", 1), ("syscalls_batched", PER_CALL)] {
        let (mut times, mut least) = (Vec::new(), load.total);
        let start = Instant::now();
        while times.is_empty() || (times.len() < settings.rounds && start.elapsed() < settings.bulk_bound()) {
            let Some(filled) = load.fill(per_call, settings.bulk_bound())? else { break };
            times.push(filled.seconds);
            least = least.min(filled.done);
            bytes = filled.bytes;
        }
        if times.is_empty() {
            outcome.note(format!("{name}: the kernel offers no batches for {}", load.map));
            continue;
        }
        if least < load.total {
            outcome.note(format!("{name}: {peer} is projected from the first {least} entries"));
        }
        outcome.measures.push(Measure::beside_less(name, "s", ours, peer, Some(median(times))));
    }
    Ok(bytes)
}

fn routes_mb(outcome: &mut Outcome, set: &Routes, ours: f64, trie: f64) {
    let fib = (FIB_FIRST_BYTES + tables_of_8_bits(set) as f64 * FIB_TABLE_BYTES) / 1e6;
    for (peer, theirs) in [("lpm_trie", trie), ("rte_fib", fib)] {
        outcome.measures.push(Measure::beside_less("routes10m_mb", "MB", ours, peer, Some(theirs)));
    }
    outcome.note(
        "routes10m_mb: lpm_trie is computed with the size that the kernel counts for a node; rte_fib is \
         computed, with the tables that lookups read and without its RIB"
            .to_owned(),
    );
}
