//! Runs all parts at a small size. A run checks that all packets are translated, out and back; the figures are not checked.
//! Needs root and two cores.

use crate::rig::Sessions;
use crate::{measures, replicated, resync};
use clap::CommandFactory as _;
use sluice_bench_report::Measure;
use sluice_bench_spine::forward::Effort;

const EFFORT: Effort = Effort { seconds: 0.02, rounds: 1, peers_to: 0 };
const SESSIONS: Sessions = Sessions { vms: 20, ports: 50, remotes: 2 };

fn have_figures(measures: &[Measure], count: usize) {
    assert_eq!(measures.len(), count, "{measures:?}");
    for measure in measures {
        assert!(measure.ours.median > 0.0 && measure.theirs.is_some(), "{measure:?}");
    }
}

#[test]
fn the_options_are_consistent() {
    crate::Args::command().debug_assert();
}

#[test]
fn established_sessions() {
    have_figures(&measures::one_size(EFFORT, SESSIONS, "small").unwrap(), 3);
}

#[test]
fn sessions_that_begin() {
    have_figures(&measures::beginning(EFFORT, SESSIONS).unwrap(), 1);
}

#[test]
fn memory_of_sessions() {
    have_figures(&measures::memory(SESSIONS).unwrap(), 1);
}

#[test]
fn public_addresses() {
    have_figures(&measures::public(EFFORT, SESSIONS).unwrap(), 1);
}

#[test]
fn sessions_that_begin_in_a_ring() {
    let measures = replicated::beginning(EFFORT, SESSIONS).unwrap();
    have_figures(&measures[..1], 1);
    assert!(measures[2].measure == "nat_cps_standby" && measures[2].ours.median > 0.0, "{measures:?}");
}

/// Catches a fill that ends early: a session takes the bytes of its slot, and of the free ones beside it.
#[test]
fn sessions_in_16_gb() {
    let measures = replicated::capacity(SESSIONS).unwrap();
    let figure = |at: usize| measures[at].ours.median;
    assert!(figure(0) >= f64::from(SESSIONS.count()), "{measures:?}");
    assert!(figure(1) > 64.0 && (figure(1) * figure(2) - 16e9).abs() < 1.0, "{measures:?}");
}

/// The copies are compared with the owner's sessions within.
#[test]
fn copies_for_a_gateway_that_joins() {
    let measures = resync::measure(1, SESSIONS, "small").unwrap();
    let names: Vec<_> = measures.iter().map(|it| it.measure.as_str()).collect();
    assert_eq!(names, ["resync_s_small", "resync_core_pct_small"]);
    assert!(
        measures.iter().all(|it| it.ours.median > 0.0) && measures[1].ours.median < 200.0,
        "{measures:?}"
    );
}
