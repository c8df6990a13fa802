//! Bulk loads of 1M and 10M routes and endpoints, beside system calls; memory for 10M routes.

use crate::data::{BGP4, CLOUD4, Family, Routes, routes, tables_of_8_bits};
use crate::endpoints::{Endpoints, Known};
use crate::kernel_peers::{hash_batch, trie_batch, trie_nodes};
use crate::ours::{
    Ours, VNI, cells_at_most, cells_used, enter_routes, enter_vrf, megabytes, roomy, writers_routes,
};
use crate::rig::{Batch, Rig, settle};
use crate::{Outcome, Settings, say};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use sluice_bench_report::{Measure, median, shell::Failure};
use sluice_tables::{Membarrier, NodeTables, Sizes};
use std::time::{Duration, Instant};

/// Entries of one system call where the kernel takes many.
const PER_CALL: usize = 1 << 16;
/// Bytes of one of `rte_fib`'s second-level tables, with next hops of 4 bytes; its first level.
const FIB_TABLE_BYTES: f64 = 256.0 * 4.0;
const FIB_FIRST_BYTES: f64 = 4.0 * (1 << 24) as f64;

/// `bulk_{1m,10m}_s`, `bulk_exact_{1m,10m}_s` and `routes10m_mb`.
///
/// # Errors
/// The kernel's or the tables'.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for (name, shape, count) in [("bulk_1m_s", BGP4, 1_000_000), ("bulk_10m_s", CLOUD4, 10_000_000)] {
        say(&format!("{name}: {} routes", settings.scaled(count)));
        let set = routes(1, Family::V4, shape, settings.scaled(count));
        let entries = writers_routes(VNI, &set)?;
        let used = cells_used(cells_at_most(&set), 0, |tables| {
            enter_vrf(tables, VNI)?;
            enter_routes(tables, &entries).map(drop)
        })?;
        let ours = Ours::create(roomy(used), 0)?;
        let seconds = rounds(settings, |_| {
            // The array is the same, laid out anew.
            let memory = ours.tables.memory().clone();
            let mut tables = NodeTables::create(memory, Membarrier::new()?, Sizes { endpoints: 0 })?;
            enter_vrf(&mut tables, VNI)?;
            enter_routes(&mut tables, &entries)
        })?;
        drop(ours);
        let load = Load { map: "trie4", batch: trie_batch(&set), total: set.routes.len() };
        let node_bytes = beside_calls(settings, outcome, name, seconds, &load)?;
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
        say(&format!("{name}: {} endpoints", endpoints.count));
        let ours = crate::lookups::with_endpoints(endpoints)?;
        let seconds = rounds(settings, |_| {
            let memory = ours.tables.memory().clone();
            let sizes = Sizes { endpoints: endpoints.count };
            let start = Instant::now();
            let mut tables = NodeTables::create(memory, Membarrier::new()?, sizes)?;
            Ok(start.elapsed() + endpoints.enter(&mut tables)?)
        })?;
        let batch = hash_batch(&Known::of(&ours.tables)?, endpoints, 0, endpoints.count);
        drop(ours);
        let load = Load { map: "hash4", batch, total: endpoints.count };
        beside_calls(settings, outcome, name, seconds, &load)?;
    }
    Ok(())
}

/// Median seconds; rounds end when the time for them is over, after the first.
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

/// What a map of the kernel is filled with.
struct Load {
    map: &'static str,
    batch: Batch,
    total: usize,
}

impl Load {
    /// Seconds for all, by one call for each entry or by as few as the kernel
    /// offers; where the bound was reached, projected from the entries that were
    /// done by then, and how many that were. Bytes an entry, as the kernel counts.
    fn fill(&self, per_call: usize, bound: Duration) -> Result<Option<Filled>, Failure> {
        settle()?;
        let rig = Rig::load(&[], &[(self.map, self.total as u32)])?;
        let map = rig.map(self.map)?;
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
        Ok(Some(Filled { seconds, done, bytes }))
    }

    fn one_by_one(&self, map: &MapHandle, first: usize, count: usize) -> Result<(), Failure> {
        for at in first..first + count {
            let (key, value) = self.batch.entry(at);
            map.update(key, value, MapFlags::ANY)?;
        }
        Ok(())
    }
}

struct Filled {
    seconds: f64,
    done: usize,
    bytes: f64,
}

/// The peers' rows; bytes an entry, as the kernel counts them.
fn beside_calls(
    settings: &Settings,
    outcome: &mut Outcome,
    name: &str,
    ours: f64,
    load: &Load,
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
            outcome.note(format!("{name}: the kernel takes no batches for {}", load.map));
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
        "routes10m_mb: lpm_trie by what the kernel counts for a node; rte_fib by arithmetic, the tables that lookups read, without the RIB behind them"
            .to_owned(),
    );
}
