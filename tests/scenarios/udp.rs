//! UDP in both address families at 1000 packets per second: datagrams in fragments, and no checksum that the
//! receiver finds wrong.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Outcome, answers, checksum_errors, ensure};

const PORT: u16 = 7008;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let vms = ["web-1", "web-3", "db-1", "db-2"];
    let mut before = Vec::new();
    for vm in vms {
        before.push(checksum_errors(lab, vm).await?);
    }
    for (from, to) in [("web-1", "web-3"), ("db-1", "db-2"), ("web-3", "db-2")] {
        Streams::start(lab, &[(from, to, false), (from, to, true)], PORT, 1000).await?.end().await?;
        for target in lab.vm(to)?.addresses() {
            // The datagrams are fragmented.
            answers(lab, from, target, &["-s", "4000"]).await?;
        }
    }
    for (vm, before) in vms.iter().zip(before) {
        let after = checksum_errors(lab, vm).await?;
        ensure!(after == before, "{vm} received {} packets with wrong checksums", after - before);
    }
    Ok(())
}
