//! Packets that a VM sends with an address that is not its own are dropped and counted.

use crate::Ground;
use crate::support::{Outcome, address, drops, ensure, eventually, execute, ping, reaches};
use sluice_lab::Lab;
use std::net::IpAddr;
use std::time::Duration;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let sender = ("web-1", lab.vm("web-1")?.vni);
    for (forged, ipv6) in [("10.1.0.77", false), ("fd10:0:0:1::77", true)] {
        let length = if ipv6 { "128" } else { "32" };
        let own = format!("{forged}/{length}");
        let add = ["ip", "addr", "add", &own, "dev", "eth0", "noprefixroute", "nodad"];
        // IPv4 has no duplicate address detection.
        execute(lab, "web-1", if ipv6 { &add } else { &add[..7] }).await?;
        for to in ["web-2", "web-3", "db-1"] {
            let target = address(lab.vm(to)?, ipv6)?;
            counted(lab, "spoofed_ip", sender, target, &["-I", forged]).await?;
        }
        execute(lab, "web-1", &["ip", "addr", "del", &own, "dev", "eth0"]).await?;
    }
    let mac = lab.vm("web-1")?.mac.to_string();
    execute(lab, "web-1", &["ip", "link", "set", "eth0", "address", "02:00:00:00:0f:0f"]).await?;
    let outcome = counted(lab, "spoofed_mac", sender, address(lab.vm("web-3")?, false)?, &[]).await;
    execute(lab, "web-1", &["ip", "link", "set", "eth0", "address", &mac]).await?;
    outcome?;
    // No VM has learned a wrong neighbor entry.
    reaches(lab, "web-1", "web-3").await?;
    reaches(lab, "web-3", "web-1").await
}

/// Checks that what a VM sends is not answered, and that at least one packet is dropped for the reason.
pub async fn counted(
    lab: &Lab,
    reason: &str,
    (vm, vni): (&str, u32),
    target: IpAddr,
    options: &[&str],
) -> Outcome {
    let before = drops(lab, vni, reason).await?;
    let options: Vec<&str> = ["-c", "3", "-i", "0.1", "-W", "0.5"].iter().chain(options).copied().collect();
    let ping = ping(lab, vm, target, &options).await?;
    ensure!(ping.received == 0, "forged packets of {vm} to {target} were answered: {}", ping.text);
    eventually(Duration::from_secs(2), async || {
        let more = drops(lab, vni, reason).await? - before;
        ensure!(more >= 1.0, "forged packets of {vm} to {target} were not counted as {reason}");
        Ok(())
    })
    .await
}
