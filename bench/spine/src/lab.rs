//! A lab for one measurement. It changes with how labs are started and removed.

use sluice_bench_report::shell::Failure;
use sluice_lab::{Lab, Options, Topology};
use std::path::Path;

/// Runs `work` in a new lab of this name, and removes the lab whatever the result is.
///
/// # Errors
/// Errors of the lab and of `work`.
pub async fn in_lab<T>(
    name: &str,
    topology: &Path,
    binary: &Path,
    work: impl AsyncFnOnce(Lab) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut options = Options::standard(name, binary)?;
    options.topology = Topology::load(topology)?;
    let outcome = match Lab::up(options).await {
        Ok(lab) => work(lab).await,
        Err(error) => Err(error.into()),
    };
    sluice_lab::down(name).await?;
    outcome
}
