//! `make bench-tables`: Sluice's tables beside the kernel's maps and DPDK's
//! structures, on the same data, in turns, in one run.
//!
//! A comparison is void where the sides answer differently: that is an error.
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

/// Keys of a round, at full size.
const KEYS: usize = 1_000_000;

/// Load averages up to here are this run's own beginning.
const LOAD_UNDISTURBED: f64 = 0.5;

/// What is measured, and how thoroughly.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rounds that count; the median does.
    pub rounds: usize,
    /// All sizes are divided by it.
    pub scale: usize,
    /// Names that [`parts`] gives.
    pub parts: Vec<String>,
}

/// Figures, and what is to be known with them.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Figures.
    pub measures: Vec<Measure>,
    /// Sentences.
    pub notes: Vec<String>,
}

type Part = fn(&Settings, &mut Outcome) -> Result<(), Failure>;

/// The parts of a run, in their order: the ones that leave the kernel much to tidy up come last.
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
    /// A size, divided.
    pub(crate) fn scaled(&self, size: usize) -> usize {
        (size / self.scale).max(1000)
    }

    /// Keys of a round.
    pub(crate) fn keys(&self) -> usize {
        self.scaled(KEYS)
    }

    /// How long the writer of one round of updates writes.
    pub(crate) fn update_bound(&self) -> Duration {
        if self.scale > 1 { Duration::from_millis(100) } else { Duration::from_secs(1) }
    }

    /// How long one side of a bulk load may go on to begin rounds; slower peers are projected.
    pub(crate) fn bulk_bound(&self) -> Duration {
        if self.scale > 1 { Duration::from_secs(1) } else { Duration::from_secs(10) }
    }
}

impl Outcome {
    pub(crate) fn note(&mut self, text: String) {
        say(&text);
        self.notes.push(text);
    }
}

/// What is going on, for who waits.
pub(crate) fn say(text: &str) {
    eprintln!("bench-tables: {text}");
}

/// True where DPDK's structures were built in.
pub fn has_dpdk() -> bool {
    option_env!("DPDK_PEERS").is_some()
}

/// Names of all parts.
pub fn parts() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// The load average of the last minute, where it says that this machine had other work.
fn foreign_load() -> Result<Option<f64>, Failure> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let load: f64 = text.split(' ').next().unwrap_or_default().parse()?;
    Ok((load > LOAD_UNDISTURBED).then_some(load))
}

/// Measures all parts that are wanted. Needs root.
///
/// # Errors
/// The kernel's, the tables', the peers'; different answers; an unknown part.
pub fn run(settings: &Settings) -> Result<Outcome, Failure> {
    if let Some(unknown) = settings.parts.iter().find(|part| !parts().contains(&part.as_str())) {
        return Err(format!("no part is called {unknown}; there are: {}", parts().join(", ")).into());
    }
    let mut outcome = Outcome::default();
    if !has_dpdk() {
        outcome.note("DPDK was not installed when this was built: its structures are left out".to_owned());
    }
    if let Some(load) = foreign_load()? {
        outcome.note(format!("other processes were running: load average {load} at the start"));
    }
    for (name, part) in ALL {
        if settings.parts.iter().any(|wanted| wanted == name) {
            rig::settle()?;
            // Parts that bind themselves to a core do it to a thread that ends with them.
            std::thread::scope(|scope| scope.spawn(|| part(settings, &mut outcome)).join())
                .map_err(|_| format!("part {name} ended badly"))?
                .map_err(|error| format!("part {name}: {error}"))?;
        }
    }
    Ok(outcome)
}
