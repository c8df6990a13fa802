//! Runs all parts at a small size. A run checks that all packets are translated, out and back; the figures are not checked.
//! Needs root and two cores.

use crate::measures;
use crate::rig::Sessions;
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
