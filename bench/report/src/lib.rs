//! Results of benchmarks: figures with their spread ([`measure`]), the interval of a ratio of two programs ([`pairs`]),
//! the section of a bench in `bench/RESULTS.md` ([`run`]), and a runner for the system tools that benchmarks use
//! ([`shell`]).
#![forbid(unsafe_code)]

pub mod measure;
pub mod pairs;
pub mod run;
pub mod shell;

pub use measure::{Better, Figure, Measure, Ratio, median, table};
pub use run::Run;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::io;

/// Pins the calling thread to a core.
///
/// # Errors
/// Errors of the kernel, such as a core that does not exist.
pub fn stay_on(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    let stays = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    stays.map_err(|error| io::Error::other(format!("no core {core} to measure on, two are needed: {error}")))
}
