//! A path that is not used goes, one that is used stays; and an agent that is
//! killed leaves its paths to its successor.

use crate::Ground;
use crate::support::{Outcome, Probe, address, ensure, eventually, lost_nothing, path_to, reaches};
use sluice_lab::Lab;
use std::net::SocketAddr;
use std::time::Duration;

const PORT: u16 = 7022;
const PPS: u64 = 200;
const HOST: &str = "host-a";
/// Seconds without use; ordinarily it is 30.
const IDLE: &str = "--path-idle=2";
const LEARNED: Duration = Duration::from_secs(5);
const GONE: Duration = Duration::from_secs(15);
const BACK: Duration = Duration::from_secs(15);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let mut argv = lab.process(HOST)?.argv;
    argv.push(IDLE.to_owned());
    let ordinary = lab.restart_with(HOST, argv).await?;
    lab.synchronized(HOST, BACK).await?;
    let outcome = ages_out(lab).await;
    lab.restart_with(HOST, ordinary).await?;
    lab.synchronized(HOST, BACK).await?;
    outcome
}

async fn ages_out(lab: &Lab) -> Outcome {
    let idle = [("why", "idle")];
    let before = lab.metrics(HOST).await?.sum("sluice_paths_removed_total", &idle);
    let (sender, there) = (lab.vm("web-1")?, address(lab.vm("web-3")?, false)?);
    let at = SocketAddr::new(there, PORT).to_string();
    let _echo = Probe::listening(lab, "web-3", &["echo", &at, "web-3"]).await?;
    let stream = Probe::start(lab, "web-1", &["stream", &at, &PPS.to_string(), "12"])?;
    let has_path = |wanted: bool| async move {
        let path = path_to(lab, HOST, sender.vni, there).await?;
        ensure!(path.is_some() == wanted, "path to {there}: {path:?}, wanted: {wanted}");
        Ok(())
    };
    eventually(LEARNED, || has_path(true)).await?;
    // Killed, not asked to end: the successor finds the path in the tables, and keeps it while it is used.
    lab.kill(HOST).await?;
    lab.restart(HOST)?;
    lab.synchronized(HOST, BACK).await?;
    eventually(LEARNED, || has_path(true)).await?;
    lost_nothing(&format!("web-1 -> {there}"), &stream.result().await?, PPS * 12)?;
    eventually(GONE, || has_path(false)).await?;
    let after = lab.metrics(HOST).await?.sum("sluice_paths_removed_total", &idle);
    ensure!(after > 0.0, "the path went, but not because it was idle: {before}, {after}");
    reaches(lab, "web-1", "web-3").await
}
