//! `make bench-tables`: compares Sluice's tables with the kernel's maps and DPDK's structures, on the same
//! data, in turns, in one run. If the sides give different answers the comparison is void, and the run ends
//! with an error.
#![forbid(unsafe_code)]

mod access;
mod adopt;
mod bulk;
mod child;
mod data;
mod endpoints;
mod kernel_peers;
mod lookups;
mod memory;
mod ours;
mod rig;
mod sessions;
mod turns;
mod updates;
mod user;

use sluice_bench_report::{Measure, shell::Failure};
use std::time::Duration;

/// Keys of a round at full size.
const KEYS: usize = 1_000_000;

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of rounds, whose median is the result.
    pub rounds: usize,
    /// Divisor of all sizes.
    pub scale: usize,
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

type Part = fn(&Settings, &mut Outcome) -> Result<(), Failure>;

/// The parts of a run in their order. Those after which the kernel has much to free come last.
const ALL: [(&str, Part); 10] = [
    ("access", access::measure),
    ("lpm", lookups::routes_in_ebpf),
    ("user", user::routes_in_user_space),
    ("hash", user::endpoints_in_user_space),
    ("exact", lookups::endpoints_in_ebpf),
    ("updates", updates::measure),
    ("memory", memory::vrfs),
    ("adopt", adopt::measure),
    ("sessions", sessions::measure),
    ("bulk", bulk::measure),
];

impl Settings {
    /// A size divided by the scale.
    pub(crate) fn scaled(&self, size: usize) -> usize {
        (size / self.scale).max(1000)
    }

    /// Number of keys of a round.
    pub(crate) fn keys(&self) -> usize {
        self.scaled(KEYS)
    }

    /// Time for which the writer of one round of updates writes.
    pub(crate) fn update_bound(&self) -> Duration {
        if self.scale > 1 { Duration::from_millis(100) } else { Duration::from_secs(1) }
    }

    /// Time limit of a peer's bulk load. The results of slower peers are projected.
    pub(crate) fn bulk_bound(&self) -> Duration {
        if self.scale > 1 { Duration::from_secs(1) } else { Duration::from_secs(5) }
    }
}

impl Outcome {
    pub(crate) fn note(&mut self, text: String) {
        report_progress(&text);
        self.notes.push(text);
    }
}

/// Reports progress on standard error.
pub(crate) fn report_progress(text: &str) {
    eprintln!("bench-tables: {text}");
}

/// True if this program was built with DPDK's structures.
pub fn has_dpdk() -> bool {
    option_env!("DPDK_PEERS").is_some()
}

/// Names of all parts.
pub fn parts() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// Measures the parts of the settings. Needs root.
///
/// # Errors
/// Errors of the kernel, the tables or the peers; different answers; an unknown part.
pub fn run(settings: &Settings) -> Result<Outcome, Failure> {
    if let Some(unknown) = settings.parts.iter().find(|part| !parts().contains(&part.as_str())) {
        return Err(format!("there is no part {unknown}; the parts are: {}", parts().join(", ")).into());
    }
    let mut outcome = Outcome::default();
    if !has_dpdk() {
        outcome.note("DPDK was not installed when this was built: its structures are left out".to_owned());
    }
    for (name, part) in ALL {
        if settings.parts.iter().any(|wanted| wanted == name) {
            rig::settle()?;
            // A part may pin its thread to a core, so each part has a thread of its own.
            std::thread::scope(|scope| scope.spawn(|| part(settings, &mut outcome)).join())
                .map_err(|_| format!("part {name} panicked"))?
                .map_err(|error| format!("part {name}: {error}"))?;
        }
    }
    Ok(outcome)
}
