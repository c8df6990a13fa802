//! A VM that ignores the MTU of its VPC is notified by ICMP.

use crate::Ground;
use crate::support::{Outcome, address, answers, ensure, ping};
use sluice_lab::Lab;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    for (from, to) in [("web-1", "web-3"), ("web-1", "web-2"), ("web-3", "db-2"), ("db-2", "db-1")] {
        set_mtu(lab, from, "1500").await?;
        let outcome = told(lab, from, to).await;
        set_mtu(lab, from, "1430").await?;
        outcome?;
        for ipv6 in [false, true] {
            // The largest payload that fits: 8 bytes of ICMP, 20 or 40 of IP.
            let size = if ipv6 { "1382" } else { "1402" };
            let target = address(lab.vm(to)?, ipv6)?;
            answers(lab, from, target, &["-M", "do", "-s", size]).await?;
        }
    }
    Ok(())
}

async fn told(lab: &Lab, from: &str, to: &str) -> Outcome {
    for ipv6 in [false, true] {
        let target = address(lab.vm(to)?, ipv6)?;
        let large =
            ping(lab, from, target, &["-c", "2", "-i", "0.3", "-M", "do", "-s", "1440", "-W", "1"]).await?;
        let said = large.text.to_lowercase().replace(' ', "");
        ensure!(
            large.received == 0 && said.contains("mtu=1430"),
            "{from} -> {target} was not told of MTU 1430: {}",
            large.text
        );
    }
    Ok(())
}

/// Sets the interface's MTU, and removes learned path MTUs.
pub async fn set_mtu(lab: &Lab, vm: &str, mtu: &str) -> Outcome {
    for argv in [
        ["ip", "link", "set", "eth0", "mtu", mtu].as_slice(),
        &["ip", "-4", "route", "flush", "cache"],
        &["ip", "-6", "route", "flush", "cache"],
    ] {
        let output = lab.exec(vm, argv).await?;
        ensure!(output.status.success(), "{argv:?} in {vm}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
