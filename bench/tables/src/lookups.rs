//! Lookups in eBPF: routes beside `BPF_MAP_TYPE_LPM_TRIE`, endpoints beside `BPF_MAP_TYPE_HASH`.

use crate::data::{BGP4, BGP6, Draw, Family, HOSTS4, HOSTS6, Key, Routes, Shape, keys, routes};
use crate::endpoints::{Endpoints, Known};
use crate::kernel_peers::{hash_batch, trie_batch, trie_map};
use crate::ours::{Ours, VNI, cells_used, roomy};
use crate::rig::{Ask, Rig, Timing, settle};
use crate::turns::{Contender, beside_all, take_turns};
use crate::{Outcome, Settings, say};
use sluice_bench_report::shell::Failure;

/// Suffix of a measure's name, how keys are drawn, how lookups follow each other.
pub const VARIANTS: [(&str, Draw, &str); 3] =
    [("", Draw::Even, "apart"), ("_zipf", Draw::Zipf, "apart"), ("_dependent", Draw::Even, "chained")];

/// Endpoints that are put into a map at a time.
const CHUNK: usize = 1 << 20;

/// A set of routes by name, and its seed.
struct Set {
    name: &'static str,
    family: Family,
    shape: Shape,
    count: usize,
}

const SETS: [Set; 4] = [
    Set { name: "lpm4_bgp", family: Family::V4, shape: BGP4, count: 1_000_000 },
    Set { name: "lpm6_bgp", family: Family::V6, shape: BGP6, count: 250_000 },
    Set { name: "lpm4_random", family: Family::V4, shape: HOSTS4, count: 1_000_000 },
    Set { name: "lpm6_random", family: Family::V6, shape: HOSTS6, count: 1_000_000 },
];

/// The global table's routes of a family.
pub fn global_table(settings: &Settings, family: Family) -> Routes {
    let set = &SETS[usize::from(family == Family::V6)];
    routes(1, family, set.shape, settings.scaled(set.count))
}

/// `lpm{4,6}_{bgp,random}*_ns`.
///
/// # Errors
/// The kernel's or the tables', and different answers.
pub fn routes_in_ebpf(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for set in SETS {
        settle()?;
        say(&format!("{}: {} routes", set.name, settings.scaled(set.count)));
        let filled = routes(1, set.family, set.shape, settings.scaled(set.count));
        let ours = Ours::with_routes(&[&filled])?;
        let megabytes = crate::ours::megabytes(ours.tables.fill().cells_used);
        outcome.note(format!("{}: {megabytes:.1} MB for {} routes", set.name, filled.routes.len()));
        let map = trie_map(set.family);
        let rig = Rig::load(
            &[("cells", &ours.cells()?)],
            &[("keys", settings.keys() as u32), (map, filled.routes.len() as u32)],
        )?;
        trie_batch(&filled).write(&rig.map(map)?)?;
        let program = if set.family == Family::V4 { "lpm4" } else { "lpm6" };
        compare(settings, outcome, &rig, (set.name, program, map, "lpm_trie"), |seed, draw, count| {
            keys(seed, &filled, draw, count)
        })?;
    }
    Ok(())
}

/// All variants of one measure: its name, our program, the peer's, the peer's name.
fn compare(
    settings: &Settings,
    outcome: &mut Outcome,
    rig: &Rig,
    (name, ours, theirs, peer): (&str, &str, &str, &'static str),
    draw_keys: impl Fn(u64, Draw, usize) -> Vec<Key>,
) -> Result<(), Failure> {
    for (suffix, draw, way) in VARIANTS {
        rig.set_keys(&draw_keys(2, draw, settings.keys()))?;
        let time = |structure: &str| lookup_ns(rig, structure, way, settings.keys() as u32);
        let mut sides = [Contender::new("sluice", || time(ours)), Contender::new(peer, || time(theirs))];
        let medians = take_turns(settings.rounds, settings.keys(), &mut sides)?;
        outcome.measures.extend(beside_all(&format!("{name}{suffix}_ns"), &sides, &medians));
    }
    Ok(())
}

/// A lookup's nanoseconds, the loop's own taken off.
fn lookup_ns(rig: &Rig, structure: &str, way: &str, count: u32) -> Result<Timing, Failure> {
    let ask = Ask { count, vni: VNI, ..Ask::default() };
    let empty = rig.run(&format!("empty_{way}"), ask)?;
    let mut timing = rig.run(&format!("{structure}_{way}"), ask)?;
    timing.ns -= empty.ns;
    Ok(timing)
}

/// `exact_{1m,10m}*_ns`, and the same for IPv6 as `exact6_*`.
///
/// # Errors
/// The kernel's or the tables', and different answers.
pub fn endpoints_in_ebpf(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let cases = [
        ("exact_1m", Family::V4, 1_000_000),
        ("exact6_1m", Family::V6, 1_000_000),
        ("exact_10m", Family::V4, 10_000_000),
        ("exact6_10m", Family::V6, 10_000_000),
    ];
    for (name, family, count) in cases {
        let endpoints = Endpoints { vni: VNI, family, count: settings.scaled(count) };
        say(&format!("{name}: {} endpoints", endpoints.count));
        let ours = with_endpoints(endpoints)?;
        let fill = ours.tables.fill();
        outcome.note(format!(
            "{name}: {:.1} MB for {} entries, {:.0}% of slots filled",
            crate::ours::megabytes(fill.cells_used),
            fill.entries,
            fill.entries as f64 * 100.0 / fill.entry_slots as f64
        ));
        let (program, map) = if family == Family::V4 { ("exact4", "hash4") } else { ("exact6", "hash6") };
        let rig = Rig::load(
            &[("cells", &ours.cells()?)],
            &[("keys", settings.keys() as u32), (map, endpoints.count as u32)],
        )?;
        let known = Known::of(&ours.tables)?;
        for first in (0..endpoints.count).step_by(CHUNK) {
            let count = CHUNK.min(endpoints.count - first);
            hash_batch(&known, endpoints, first, count).write(&rig.map(map)?)?;
        }
        compare(settings, outcome, &rig, (name, program, map, "bpf_hash"), |seed, draw, count| {
            endpoints.keys(seed, draw, count)
        })?;
    }
    Ok(())
}

/// Tables that hold these endpoints.
///
/// # Errors
/// The kernel's or the tables'.
pub fn with_endpoints(endpoints: Endpoints) -> Result<Ours, Failure> {
    let fill = |tables: &mut sluice_tables::NodeTables| endpoints.enter(tables).map(drop);
    let used = cells_used(endpoints.count as u64 * 4 + (1 << 16), endpoints.count, fill)?;
    let mut ours = Ours::create(roomy(used), endpoints.count)?;
    endpoints.enter(&mut ours.tables)?;
    Ok(ours)
}
