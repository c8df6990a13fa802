//! Lookups in eBPF: routes compared with `BPF_MAP_TYPE_LPM_TRIE`, endpoints compared with
//! `BPF_MAP_TYPE_HASH`.

use crate::data::{BGP4, BGP6, Draw, Family, HOSTS4, HOSTS6, Key, Routes, Shape, keys, routes};
use crate::endpoints::{EndpointAnswers, Endpoints};
use crate::kernel_peers::{hash_batch, trie_batch, trie_map};
use crate::ours::{SluiceTables, VNI, cells_used, with_spare_cells};
use crate::rig::{Programs, RunInput, Timing, settle};
use crate::turns::{Contender, compare_with_first, take_turns};
use crate::{Outcome, Settings, report_progress};
use sluice_bench_report::shell::Failure;

/// Variants of a measure: suffix of its name, how keys are drawn, and whether lookups depend on each other.
pub const VARIANTS: [(&str, Draw, &str); 3] = [
    ("", Draw::Even, "independent"),
    ("_zipf", Draw::Zipf, "independent"),
    ("_dependent", Draw::Even, "dependent"),
];

/// Endpoints that are written to a map at a time.
const CHUNK: usize = 1 << 20;

/// A set of routes, with the name of its measure.
struct RouteSet {
    name: &'static str,
    family: Family,
    shape: Shape,
    count: usize,
}

const SETS: [RouteSet; 4] = [
    RouteSet { name: "lpm4_bgp", family: Family::V4, shape: BGP4, count: 1_000_000 },
    RouteSet { name: "lpm6_bgp", family: Family::V6, shape: BGP6, count: 250_000 },
    RouteSet { name: "lpm4_random", family: Family::V4, shape: HOSTS4, count: 1_000_000 },
    RouteSet { name: "lpm6_random", family: Family::V6, shape: HOSTS6, count: 1_000_000 },
];

/// Routes like those of the global table of a family.
pub fn global_table(settings: &Settings, family: Family) -> Routes {
    let set = &SETS[usize::from(family == Family::V6)];
    routes(1, family, set.shape, settings.scaled(set.count))
}

/// Measures `lpm{4,6}_{bgp,random}*_ns`.
///
/// # Errors
/// Errors of the kernel or the tables; different answers.
pub fn routes_in_ebpf(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for set in SETS {
        settle()?;
        report_progress(&format!("{}: {} routes", set.name, settings.scaled(set.count)));
        let filled = routes(1, set.family, set.shape, settings.scaled(set.count));
        let ours = SluiceTables::with_routes(&[&filled])?;
        let megabytes = crate::ours::megabytes(ours.tables.usage().cells_used);
        outcome.note(format!("{}: {megabytes:.1} MB for {} routes", set.name, filled.routes.len()));
        let map = trie_map(set.family);
        let programs = Programs::load(
            &[("cells", &ours.cells()?)],
            &[("keys", settings.keys() as u32), (map, filled.routes.len() as u32)],
        )?;
        trie_batch(&filled).write(&programs.map(map)?)?;
        let program = if set.family == Family::V4 { "lpm4" } else { "lpm6" };
        compare(settings, outcome, &programs, (set.name, program, map, "lpm_trie"), |seed, draw, count| {
            keys(seed, &filled, draw, count)
        })?;
    }
    Ok(())
}

/// Compares all variants of one measure. The strings are the name of the measure, Sluice's program, the
/// peer's program and the peer's name.
fn compare(
    settings: &Settings,
    outcome: &mut Outcome,
    programs: &Programs,
    (name, ours, theirs, peer): (&str, &str, &str, &'static str),
    draw_keys: impl Fn(u64, Draw, usize) -> Vec<Key>,
) -> Result<(), Failure> {
    for (suffix, draw, dependence) in VARIANTS {
        programs.set_keys(&draw_keys(2, draw, settings.keys()))?;
        let time = |structure: &str| lookup_ns(programs, structure, dependence, settings.keys() as u32);
        let mut sides = [Contender::new("sluice", || time(ours)), Contender::new(peer, || time(theirs))];
        let times = take_turns(settings.rounds, settings.keys(), &mut sides)?;
        outcome.measures.extend(compare_with_first(&format!("{name}{suffix}_ns"), &sides, &times));
    }
    Ok(())
}

/// Times lookups, without the time of the loop itself.
fn lookup_ns(programs: &Programs, structure: &str, dependence: &str, count: u32) -> Result<Timing, Failure> {
    let input = RunInput { count, vni: VNI, ..RunInput::default() };
    let empty = programs.run(&format!("empty_{dependence}"), input)?;
    let mut timing = programs.run(&format!("{structure}_{dependence}"), input)?;
    timing.ns -= empty.ns;
    Ok(timing)
}

/// Measures `exact_{1m,10m}*_ns` for IPv4 and `exact6_{1m,10m}*_ns` for IPv6.
///
/// # Errors
/// Errors of the kernel or the tables; different answers.
pub fn endpoints_in_ebpf(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let cases = [
        ("exact_1m", Family::V4, 1_000_000),
        ("exact6_1m", Family::V6, 1_000_000),
        ("exact_10m", Family::V4, 10_000_000),
        ("exact6_10m", Family::V6, 10_000_000),
    ];
    for (name, family, count) in cases {
        let endpoints = Endpoints { vni: VNI, family, count: settings.scaled(count) };
        report_progress(&format!("{name}: {} endpoints", endpoints.count));
        let ours = with_endpoints(endpoints)?;
        let usage = ours.tables.usage();
        outcome.note(format!(
            "{name}: {:.1} MB for {} entries, {:.0}% of slots filled",
            crate::ours::megabytes(usage.cells_used),
            usage.entries,
            usage.entries as f64 * 100.0 / usage.entry_slots as f64
        ));
        let (program, map) = if family == Family::V4 { ("exact4", "hash4") } else { ("exact6", "hash6") };
        let programs = Programs::load(
            &[("cells", &ours.cells()?)],
            &[("keys", settings.keys() as u32), (map, endpoints.count as u32)],
        )?;
        let answers = EndpointAnswers::of(&ours.tables)?;
        for first in (0..endpoints.count).step_by(CHUNK) {
            let count = CHUNK.min(endpoints.count - first);
            hash_batch(&answers, endpoints, first, count).write(&programs.map(map)?)?;
        }
        compare(settings, outcome, &programs, (name, program, map, "bpf_hash"), |seed, draw, count| {
            endpoints.keys(seed, draw, count)
        })?;
    }
    Ok(())
}

/// Creates tables that hold these endpoints.
///
/// # Errors
/// Errors of the kernel or the tables.
pub fn with_endpoints(endpoints: Endpoints) -> Result<SluiceTables, Failure> {
    let fill = |tables: &mut sluice_tables::NodeTables| endpoints.add_to(tables).map(drop);
    let used = cells_used(endpoints.count as u64 * 4 + (1 << 16), endpoints.count, fill)?;
    let mut ours = SluiceTables::create(with_spare_cells(used), endpoints.count)?;
    endpoints.add_to(&mut ours.tables)?;
    Ok(ours)
}
