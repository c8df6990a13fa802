//! A gateway routes nothing for other machines of the underlay, even if its kernel would: what a stranger sends
//! to it for another destination does not arrive, and is counted.

use crate::Ground;
use crate::support::{Failure, Outcome, ensure, eventually, execute, ping};
use sluice_lab::Lab;
use std::net::IpAddr;
use std::time::Duration;

const GATEWAY: &str = "gw-a";
const PINGS: u64 = 3;
const COUNTED: Duration = Duration::from_secs(2);

/// A stranger, the machine with the address behind the gateway, and the underlay addresses of both and of the
/// gateway.
struct Case {
    stranger: &'static str,
    target: &'static str,
    address: &'static str,
    target_vtep: &'static str,
    gateway: &'static str,
}

const CASES: [Case; 2] = [
    Case {
        stranger: "host-a",
        target: "host-b",
        address: "198.51.100.7",
        target_vtep: "192.0.2.22",
        gateway: "192.0.2.11",
    },
    Case {
        stranger: "host-c",
        target: "gw-b",
        address: "2001:db8:ffff::7",
        target_vtep: "2001:db8:0:1::12",
        gateway: "2001:db8:0:1::11",
    },
];

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    // The machine routes: it also does for containers, for example.
    let forwarding = |ipv4: &'static str, ipv6: &'static str| async move {
        for setting in [ipv4, ipv6] {
            execute(lab, GATEWAY, &["sysctl", "-qw", setting]).await?;
        }
        Outcome::Ok(())
    };
    forwarding("net.ipv4.conf.eth0.forwarding=1", "net.ipv6.conf.all.forwarding=1").await?;
    let mut outcome = Ok(());
    for case in &CASES {
        outcome = outcome.and(check(lab, case).await);
        for place in [case.stranger, GATEWAY] {
            execute(lab, place, &["ip", "route", "del", case.address]).await?;
        }
        execute(lab, case.target, &["ip", "addr", "del", case.address, "dev", "lo"]).await?;
    }
    // `all` sets every interface.
    forwarding("net.ipv4.conf.eth0.forwarding=0", "net.ipv6.conf.all.forwarding=0").await?;
    execute(lab, GATEWAY, &["sysctl", "-qw", "net.ipv6.conf.lo.forwarding=1"]).await?;
    outcome
}

async fn check(lab: &Lab, case: &Case) -> Outcome {
    let target: IpAddr = case.address.parse()?;
    // Without `nodad`, the address is tentative for a moment, also on the loopback interface.
    execute(lab, case.target, &["ip", "addr", "add", case.address, "dev", "lo", "nodad"]).await?;
    // The kernel adds the route of an IPv6 address a moment later.
    eventually(COUNTED, || async {
        let output = lab.exec(case.target, &["ip", "route", "get", case.address]).await?;
        let route = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(route.starts_with("local "), "{} has {} by {route}", case.target, case.address);
        Ok(())
    })
    .await?;
    execute(lab, GATEWAY, &["ip", "route", "add", case.address, "via", case.target_vtep]).await?;
    let pings = PINGS.to_string();
    let options = ["-c", pings.as_str(), "-i", "0.1", "-W", "1"];
    // Without the gateway between them, the two reach each other.
    execute(lab, case.stranger, &["ip", "route", "add", case.address, "via", case.target_vtep]).await?;
    let direct = ping(lab, case.stranger, target, &options).await?;
    ensure!(direct.received == PINGS, "{} -> {target}: {}", case.stranger, direct.text);
    // The gateway's own address is its kernel's.
    let own = ping(lab, case.stranger, case.gateway.parse()?, &options).await?;
    ensure!(own.received == PINGS, "{} -> {GATEWAY}: {}", case.stranger, own.text);

    let before = dropped(lab).await?;
    execute(lab, case.stranger, &["ip", "route", "replace", case.address, "via", case.gateway]).await?;
    let routed = ping(lab, case.stranger, target, &options).await?;
    ensure!(routed.received == 0, "{GATEWAY} routed for {}: {}", case.stranger, routed.text);
    eventually(COUNTED, || async {
        let counted = dropped(lab).await? - before;
        ensure!(counted >= PINGS as f64, "{GATEWAY} counted {counted} packets as not_routed, of {PINGS}");
        Ok(())
    })
    .await
}

async fn dropped(lab: &Lab) -> Result<f64, Failure> {
    Ok(lab.metrics(GATEWAY).await?.sum("sluice_drops_total", &[("reason", "not_routed")]))
}
