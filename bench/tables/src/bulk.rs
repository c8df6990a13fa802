//! Bulk loads of 1M and 10M routes and endpoints, compared with system calls, and memory for 10M routes.

use crate::data::{BGP4, CLOUD4, Family, Routes, routes, tables_of_8_bits};
use crate::endpoints::{EndpointAnswers, Endpoints};
use crate::kernel_peers::{hash_batch, trie_batch, trie_nodes};
use crate::ours::{
    VNI, add_routes, add_vrf, cells_upper_bound, cells_used, fill_new_array, megabytes, table_routes,
    with_spare_cells,
};
use crate::rig::{Batch, Programs, settle};
use crate::{Outcome, Settings, report_progress};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use sluice_bench_report::{Better, Measure, shell::Failure};
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
        let load = PeerLoad { map: "trie4", batch: trie_batch(&set), total: set.routes.len() };
        let node_bytes = compare(settings, outcome, name, &load, || {
            fill_new_array(with_spare_cells(used), 0, |tables| {
                add_vrf(tables, VNI)?;
                add_routes(tables, &entries)
            })
        })?;
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
        let cells = with_spare_cells(ours.tables.usage().cells_used);
        let batch = hash_batch(&EndpointAnswers::of(&ours.tables)?, endpoints, 0, endpoints.count);
        drop(ours);
        let load = PeerLoad { map: "hash4", batch, total: endpoints.count };
        compare(settings, outcome, name, &load, || {
            fill_new_array(cells, endpoints.count, |tables| endpoints.add_to(tables))
        })?;
    }
    Ok(())
}

/// The peers: their names, and the entries of one system call.
const PEERS: [(&str, usize); 2] = [("syscalls", 1), ("syscalls_batched", PER_CALL)];

/// Compares loads in rounds: Sluice, then each peer, each into a new array or map. Returns the memory of an entry of
/// the peers' map in bytes, as the kernel counts it.
fn compare(
    settings: &Settings,
    outcome: &mut Outcome,
    name: &str,
    load: &PeerLoad,
    ours: impl Fn() -> Result<Duration, Failure>,
) -> Result<f64, Failure> {
    let mut pairs: [Vec<(f64, f64)>; PEERS.len()] = Default::default();
    let mut least = [load.total; PEERS.len()];
    let mut bytes = 0.0;
    for _ in 0..settings.rounds {
        settle()?;
        let our_seconds = ours()?.as_secs_f64();
        for (index, (_, per_call)) in PEERS.into_iter().enumerate() {
            let Some(filled) = load.fill(per_call, settings.bulk_bound())? else { continue };
            pairs[index].push((our_seconds, filled.seconds));
            least[index] = least[index].min(filled.done);
            bytes = filled.bytes;
        }
    }
    for (((peer, _), pairs), least) in PEERS.into_iter().zip(pairs).zip(least) {
        if pairs.is_empty() {
            outcome.note(format!("{name}: the kernel offers no batches for {}", load.map));
            continue;
        }
        if least < load.total {
            outcome.note(format!("{name}: {peer} is projected from the first {least} entries"));
        }
        outcome.measures.push(Measure::compared(name, "s", Better::Less, peer, &pairs));
    }
    Ok(bytes)
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

fn routes_mb(outcome: &mut Outcome, set: &Routes, ours: f64, trie: f64) {
    let fib = (FIB_FIRST_BYTES + tables_of_8_bits(set) as f64 * FIB_TABLE_BYTES) / 1e6;
    for (peer, theirs) in [("lpm_trie", trie), ("rte_fib", fib)] {
        let (better, peer) = (Better::Less, (peer, theirs));
        outcome.measures.push(Measure::computed_beside("routes10m_mb", "MB", better, ours, peer));
    }
    outcome.note(
        "routes10m_mb: lpm_trie is computed with the size that the kernel counts for a node; rte_fib is \
         computed, with the tables that lookups read and without its RIB"
            .to_owned(),
    );
}
