//! `make bench-cluster`: gateway clusters, each figure compared with a peer in the same run, or with the paper's. It
//! changes with the parts that are measured.
#![forbid(unsafe_code)]

mod burst;
mod cloud;
mod demands;
mod detection;
mod failover;
mod fleet;
mod launch;
mod offload;
mod paper_rgcm;
mod push;
mod reboot;
mod relief;
mod rgcm;
mod slow_nodes;
mod steady;
mod wire;

use sluice_bench_report::{Measure, shell::Failure};
use std::path::PathBuf;

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of rounds, whose median is the result.
    pub rounds: usize,
    /// Divisor of all sizes.
    pub scale: usize,
    /// The `sluice` binary that labs run.
    pub binary: PathBuf,
    /// Names of the parts to measure, out of [`parts`].
    pub parts: Vec<String>,
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Measured figures.
    pub measures: Vec<Measure>,
    /// Sentences that explain the figures.
    pub notes: Vec<String>,
}

/// Gateways of each cluster of the paper's test bed.
const CLUSTERS: [usize; 10] = [5, 5, 5, 5, 5, 4, 4, 4, 4, 4];

impl Settings {
    /// Gateways of each simulated cluster: the paper's, or one in each at a small size, because the
    /// enrollment of a gateway takes longer there than everything else.
    fn clusters(&self) -> Vec<usize> {
        CLUSTERS.map(|gateways| if self.scale > 1 { 1 } else { gateways }).to_vec()
    }
}

type Part = fn(&Settings, &mut Outcome) -> Result<(), Failure>;

/// The parts of a run, in their order.
const ALL: [(&str, Part); 11] = [
    ("rgcm", rgcm::measure),
    ("push", push::measure),
    ("launch", launch::measure),
    ("slow_nodes", slow_nodes::measure),
    ("burst", burst::measure),
    ("steady", steady::measure),
    ("detection", detection::measure),
    ("offload", offload::measure),
    ("failover", failover::measure),
    ("reboot", reboot::measure),
    ("relief", relief::measure),
];

impl Outcome {
    pub(crate) fn note(&mut self, text: String) {
        eprintln!("bench-cluster: {text}");
        self.notes.push(text);
    }
}

/// Names of all parts.
pub fn parts() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// Measures the parts of the settings. Needs root.
///
/// # Errors
/// Errors of the parts; an unknown part.
pub fn run(settings: &Settings) -> Result<Outcome, Failure> {
    if let Some(unknown) = settings.parts.iter().find(|part| !parts().contains(&part.as_str())) {
        return Err(format!("there is no part {unknown}; the parts are: {}", parts().join(", ")).into());
    }
    let mut outcome = Outcome::default();
    for (name, part) in ALL {
        if settings.parts.iter().any(|wanted| wanted == name) {
            part(settings, &mut outcome).map_err(|error| format!("part {name}: {error}"))?;
        }
    }
    Ok(outcome)
}
