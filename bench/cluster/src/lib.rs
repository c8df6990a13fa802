//! `make bench-cluster`: gateway clusters, each figure beside the paper's or a
//! peer's in the same run.
#![forbid(unsafe_code)]

mod burst;
mod cloud;
mod demands;
mod detection;
mod failover;
mod fleet;
mod launch;
mod offload;
mod push;
mod relief;
mod rgcm;
mod wire;

use sluice_bench_report::{Measure, shell::Failure};
use std::path::PathBuf;

/// What is measured, and how thoroughly.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rounds that count; the median does.
    pub rounds: usize,
    /// All sizes are divided by it.
    pub scale: usize,
    /// The `sluice` binary that labs run.
    pub binary: PathBuf,
    /// Names that [`parts`] gives.
    pub parts: Vec<String>,
}

/// Figures, and what is to be known with them.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The measured figures.
    pub measures: Vec<Measure>,
    /// Sentences that explain the figures.
    pub notes: Vec<String>,
}

/// Gateways of each cluster of the paper's test bed.
const CLUSTERS: [usize; 10] = [5, 5, 5, 5, 5, 4, 4, 4, 4, 4];

impl Settings {
    /// Gateways of each simulated cluster: the paper's, or one in each at a small size, because the
    /// enrolment of a gateway takes longer there than everything else.
    fn clusters(&self) -> Vec<usize> {
        CLUSTERS.map(|gateways| if self.scale > 1 { 1 } else { gateways }).to_vec()
    }
}

type Part = fn(&Settings, &mut Outcome) -> Result<(), Failure>;

/// The parts of a run, in their order.
const ALL: [(&str, Part); 8] = [
    ("rgcm", rgcm::measure),
    ("push", push::measure),
    ("launch", launch::measure),
    ("burst", burst::measure),
    ("detection", detection::measure),
    ("offload", offload::measure),
    ("failover", failover::measure),
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

/// Measures all parts that are wanted.
///
/// # Errors
/// A part's own; an unknown part.
pub fn run(settings: &Settings) -> Result<Outcome, Failure> {
    if let Some(unknown) = settings.parts.iter().find(|part| !parts().contains(&part.as_str())) {
        return Err(format!("no part is called {unknown}; there are: {}", parts().join(", ")).into());
    }
    let mut outcome = Outcome::default();
    for (name, part) in ALL {
        if settings.parts.iter().any(|wanted| wanted == name) {
            part(settings, &mut outcome).map_err(|error| format!("part {name}: {error}"))?;
        }
    }
    Ok(outcome)
}
