//! The controller's disk is full: the API reports it and still answers reads, packets are
//! forwarded, nothing acknowledged is lost, and with free space everything works again.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, ensure, reaches};
use sluice_client::{NewTenant, Tenant};
use sluice_lab::{CONTROLLER, Lab, Options};
use std::collections::HashSet;
use std::io::Write;
use std::time::Duration;

const PORT: u16 = 7013;
const DISK_BYTES: u64 = 16 << 20;
/// More writes than fit into the space that a full disk leaves in the write-ahead log.
const MOST_WRITES: usize = 5000;
const BACK: Duration = Duration::from_secs(75);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    options.controller_disk_bytes = Some(DISK_BYTES);
    let lab = Lab::up(options).await?;
    let streams = Streams::start(&lab, &[("web-1", "web-3", true)], PORT, 1000).await?;
    let ballast = lab.paths().state_dir(CONTROLLER).join("ballast");
    fill(&ballast)?;
    let acknowledged = write_until_refused(&lab).await?;
    nothing_is_lost(&lab, &acknowledged).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    streams.end().await?;
    std::fs::remove_file(&ballast)?;
    lab.api().wait_ready(BACK).await?;
    lab.api().create((), &NewTenant { name: "with-room".into() }).await?;
    // A restarted controller reads what is on the disk.
    lab.kill(CONTROLLER).await?;
    lab.restart(CONTROLLER)?;
    lab.api().wait_ready(BACK).await?;
    nothing_is_lost(&lab, &acknowledged).await?;
    lab.add_vm("later", "web", "front", "host-b").await?;
    reaches(&lab, "web-1", "web-3").await
}

/// Writes until a write fails.
fn fill(file: &std::path::Path) -> Outcome {
    let mut file = std::fs::File::create(file)?;
    for block in [65536, 4096, 512] {
        let zeros = vec![0; block];
        while file.write(&zeros).is_ok_and(|written| written == block) {}
    }
    Ok(())
}

/// Names of the tenants that were acknowledged before the first refusal, which
/// must be a 503 with its cause.
async fn write_until_refused(lab: &Lab) -> Result<Vec<String>, Failure> {
    let mut acknowledged = Vec::new();
    for number in 0..MOST_WRITES {
        let name = format!("full-{number}");
        match lab.api().create((), &NewTenant { name: name.clone() }).await {
            Ok(_) => acknowledged.push(name),
            Err(error) => {
                let problem = error.problem().cloned();
                let problem = problem.ok_or_else(|| Failure::new(format!("no answer: {error}")))?;
                let detail = problem.detail.unwrap_or_default();
                ensure!(problem.status == 503, "status {} instead of 503: {detail}", problem.status);
                ensure!(detail.contains("full"), "the answer does not name the full disk: {detail}");
                println!("    503 after {number} writes: {detail}");
                return Ok(acknowledged);
            }
        }
    }
    Err(Failure::new(format!("{MOST_WRITES} writes to a full disk were acknowledged")))
}

async fn nothing_is_lost(lab: &Lab, acknowledged: &[String]) -> Outcome {
    let tenants = lab.api().list::<Tenant>(&[], None).await?;
    let there: HashSet<&str> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|name| !there.contains(name.as_str())).collect();
    ensure!(lost.is_empty(), "acknowledged tenants are lost: {lost:?}");
    Ok(())
}
