//! Lookups in user space: Sluice's tables, read by the same C header as in packet programs, compared with
//! DPDK's structures.

use crate::child::{PeerProgram, dpdk_tables, write_endpoints, write_keys, write_routes};
use crate::data::{Family, Key, keys};
use crate::endpoints::{EndpointAnswers, Endpoints};
use crate::lookups::{VARIANTS, global_table, with_endpoints};
use crate::ours::{SluiceTables, VNI};
use crate::turns::{Contender, compare_with_first, take_turns};
use crate::{Outcome, Settings, report_progress};
use libbpf_rs::MapCore;
use sluice_bench_report::{Measure, shell::Failure};
use std::cell::RefCell;
use std::path::Path;

/// Megabytes that DPDK may use; it touches only those that it needs.
const DPDK_MEGABYTES: u32 = 4096;

/// A comparison of Sluice's tables with peers.
struct Case<'a> {
    /// Name of the measure, without unit.
    name: &'a str,
    /// Structure of Sluice's reader.
    structure: &'a str,
    /// Structures of DPDK, and their names in the results.
    peers: &'a [(&'static str, &'static str)],
}

/// Measures `lpm{4,6}_bgp_user*_ns`.
///
/// # Errors
/// Errors of the tables or the programs; different answers.
pub fn routes_in_user_space(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let peers4 = [("rte_fib", "rte_fib"), ("rte_lpm", "rte_lpm")];
    let peers6 = [("rte_fib6", "rte_fib"), ("rte_lpm6", "rte_lpm")];
    let cases = [
        (Family::V4, Case { name: "lpm4_bgp_user", structure: "lpm4", peers: &peers4 }),
        (Family::V6, Case { name: "lpm6_bgp_user", structure: "lpm6", peers: &peers6 }),
    ];
    for (family, case) in cases {
        let set = global_table(settings, family);
        report_progress(&format!("{}: {} routes", case.name, set.routes.len()));
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("routes");
        write_routes(&file, &set)?;
        let mut dpdk = PeerProgram::dpdk(DPDK_MEGABYTES)?;
        if let Some(dpdk) = &mut dpdk {
            for (peer, _) in case.peers {
                let bytes = dpdk.load(peer, &file, dpdk_tables(&set))?;
                outcome.note(allocation_note(case.name, peer, bytes));
            }
        }
        let ours = SluiceTables::with_routes(&[&set])?;
        compare(settings, outcome, &case, &ours, dpdk, folder.path(), |seed, draw, count| {
            keys(seed, &set, draw, count)
        })?;
    }
    Ok(())
}

/// Measures `exact_1m_user*_ns`.
///
/// # Errors
/// Errors of the tables or the programs; different answers.
pub fn endpoints_in_user_space(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let case = Case {
        name: "exact_1m_user",
        structure: "exact4",
        peers: &[("rte_hash", "rte_hash"), ("rte_hash_single", "rte_hash_single")],
    };
    let endpoints = Endpoints { vni: VNI, family: Family::V4, count: settings.scaled(1_000_000) };
    report_progress(&format!("{}: {} endpoints", case.name, endpoints.count));
    let ours = with_endpoints(endpoints)?;
    let folder = tempfile::tempdir()?;
    let mut dpdk = PeerProgram::dpdk(DPDK_MEGABYTES)?;
    if let Some(dpdk) = &mut dpdk {
        let file = folder.path().join("endpoints");
        write_endpoints(&file, endpoints, &EndpointAnswers::of(&ours.tables)?)?;
        let bytes = dpdk.load("rte_hash", &file, 0)?;
        outcome.note(allocation_note(case.name, "rte_hash", bytes));
    }
    compare(settings, outcome, &case, &ours, dpdk, folder.path(), |seed, draw, count| {
        endpoints.keys(seed, draw, count)
    })
}

fn allocation_note(measure: &str, peer: &str, bytes: f64) -> String {
    format!("{measure}: DPDK allocated {:.1} MB in all for {peer}", bytes / 1e6)
}

/// Compares all variants of a case with 4 KiB pages on both sides, and measures Sluice's tables also with
/// huge pages.
fn compare(
    settings: &Settings,
    outcome: &mut Outcome,
    case: &Case<'_>,
    ours: &SluiceTables,
    dpdk: Option<PeerProgram>,
    folder: &Path,
    draw_keys: impl Fn(u64, crate::data::Draw, usize) -> Vec<Key>,
) -> Result<(), Failure> {
    let map_id = ours.cells()?.info()?.info.id;
    let mut small = PeerProgram::reader(map_id, false)?;
    let mut huge = PeerProgram::reader(map_id, true)?;
    let dpdk = dpdk.map(RefCell::new);
    let file = folder.join("keys");
    for (suffix, draw, dependence) in VARIANTS {
        write_keys(&file, &draw_keys(2, draw, settings.keys()))?;
        small.keys(&file, VNI)?;
        huge.keys(&file, VNI)?;
        if let Some(dpdk) = &dpdk {
            dpdk.borrow_mut().keys(&file, VNI)?;
        }
        let mut sides = vec![
            Contender::new("sluice", || small.time(case.structure, dependence, VNI)),
            Contender::new("sluice_huge", || huge.time(case.structure, dependence, VNI)),
        ];
        if let Some(dpdk) = &dpdk {
            for &(peer, name) in case.peers {
                sides.push(Contender::new(name, move || dpdk.borrow_mut().time(peer, dependence, VNI)));
            }
        }
        let mut times = take_turns(settings.rounds, settings.keys(), &mut sides)?;
        let huge_ns = times.remove(1);
        sides.remove(1);
        outcome.measures.extend(compare_with_first(&format!("{}{suffix}_ns", case.name), &sides, &times));
        outcome.measures.push(Measure::alone(format!("{}_huge{suffix}_ns", case.name), "ns", &huge_ns));
    }
    Ok(())
}
