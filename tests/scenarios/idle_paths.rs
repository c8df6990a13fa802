//! A path that is not used is removed, one that is used stays, and an agent adopts the paths of a killed
//! predecessor.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Outcome, address, ensure, eventually, path_to, reaches};
use sluice_lab::Lab;
use std::time::Duration;

const PORT: u16 = 7022;
const PPS: u64 = 200;
const HOST: &str = "host-a";
/// Time after which an unused path is removed; 30 s by default.
const IDLE: Duration = Duration::from_secs(2);
const LEARNED: Duration = Duration::from_secs(5);
const GONE: Duration = Duration::from_secs(15);
const BACK: Duration = Duration::from_secs(75);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let mut argv = lab.process(HOST)?.argv;
    argv.push(format!("--path-idle={}", IDLE.as_secs()));
    let ordinary = lab.restart_with(HOST, argv).await?;
    lab.synchronized(HOST, BACK).await?;
    let outcome = ages_out(lab).await;
    lab.restart_with(HOST, ordinary).await?;
    lab.synchronized(HOST, BACK).await?;
    outcome
}

async fn ages_out(lab: &Lab) -> Outcome {
    let idle = [("reason", "idle")];
    let before = lab.metrics(HOST).await?.sum("sluice_paths_removed_total", &idle);
    let (sender, there) = (lab.vm("web-1")?, address(lab.vm("web-3")?, false)?);
    let streams = Streams::start(lab, &[("web-1", "web-3", false)], PORT, PPS).await?;
    let has_path = |wanted: bool| async move {
        let path = path_to(lab, HOST, sender.vni, there).await?;
        ensure!(path.is_some() == wanted, "path to {there}: {path:?}, wanted: {wanted}");
        Ok(())
    };
    eventually(LEARNED, || has_path(true)).await?;
    // The agent is killed instead of stopped: its successor finds the path in the tables, and keeps it while
    // it is used.
    lab.kill(HOST).await?;
    lab.restart(HOST)?;
    lab.synchronized(HOST, BACK).await?;
    tokio::time::sleep(2 * IDLE).await;
    eventually(LEARNED, || has_path(true)).await?;
    streams.end().await?;
    eventually(GONE, || has_path(false)).await?;
    let after = lab.metrics(HOST).await?.sum("sluice_paths_removed_total", &idle);
    ensure!(after > 0.0, "the path went, but not because it was idle: {before}, {after}");
    reaches(lab, "web-1", "web-3").await
}
