//! UDP in both families at 1000 packets a second, datagrams in fragments, and
//! no checksum that the receiver finds wrong.

use crate::Ground;
use crate::support::{Outcome, Probe, address, checksum_errors, ensure, lost_nothing, ping};
use std::net::SocketAddr;

const PORT: u16 = 7008;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let vms = ["web-1", "web-3", "db-1", "db-2"];
    let mut before = Vec::new();
    for vm in vms {
        before.push(checksum_errors(lab, vm).await?);
    }
    for (from, to) in [("web-1", "web-3"), ("db-1", "db-2"), ("web-3", "db-2")] {
        for ipv6 in [false, true] {
            let target = address(lab.vm(to)?, ipv6)?;
            let at = SocketAddr::new(target, PORT).to_string();
            let listener = Probe::listening(lab, to, &["echo", &at, to]).await?;
            let result = Probe::start(lab, from, &["stream", &at, "1000", "2"])?.result().await?;
            lost_nothing(&format!("{from} -> {at}"), &result, 2000)?;
            drop(listener);
            let large = ping(lab, from, target, &["-c", "3", "-i", "0.05", "-s", "4000", "-W", "2"]).await?;
            ensure!(large.received == 3, "fragments {from} -> {target}: {}", large.text);
        }
    }
    for (vm, before) in vms.iter().zip(before) {
        let after = checksum_errors(lab, vm).await?;
        ensure!(after == before, "{vm} received {} packets with wrong checksums", after - before);
    }
    Ok(())
}
