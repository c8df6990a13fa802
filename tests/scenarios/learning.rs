//! Hosts decide which direct paths they learn (model `achelous`; Achelous section 4.3): to a destination to which flows above
//! the threshold of their VPC have been sent for long enough. Gateways look for no elephants.
//!
//! Catches: a host that learns a path by a single packet, or by none; a threshold that hosts do not get, or that stays when it is
//! changed; a gateway that still reports elephants.

use crate::Ground;
use crate::direct_paths::goes_direct;
use crate::support::{Failure, Outcome, address, ensure, eventually, path_to, ping};
use serde_json::json;
use sluice_client::Vpc;
use sluice_lab::{Lab, Options};
use std::time::Duration;

const TOLD: Duration = Duration::from_secs(10);
/// Within which a path is there, if it is learned at all.
const LEARNED: Duration = Duration::from_secs(1);
const FROM: &str = "shop-2";
const TO: &str = "shop-1";
/// 0.8 Mbit/s for 1.5 s, which is six periods.
const LASTING: [&str; 6] = ["-c", "150", "-i", "0.01", "-s", "1000"];
/// A packet of 8 kbit, above the default threshold of 5 kbit in a period.
const SHORT: [&str; 6] = ["-c", "1", "-W", "2", "-s", "1000"];
const ABOVE_KBPS: u32 = 4_000;
const BELOW_KBPS: u32 = 100;

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    options.model = Some("achelous".to_owned());
    let lab = Lab::up(options).await?;
    for (to, ipv6) in [("web-3", false), ("db-1", true)] {
        goes_direct(&lab, "web-1", to, ipv6).await?;
    }
    // An agent that is restarted has the revision of the controller, and needs to be told that it detects elephants.
    lab.kill("host-a").await?;
    lab.restart("host-a")?;
    lab.synchronized("host-a", TOLD).await?;
    goes_direct(&lab, "web-2", "db-1", false).await?;
    for ipv6 in [false, true] {
        for _ in 0..3 {
            learns(&lab, ipv6, &SHORT, false).await?;
        }
    }
    // The first flows that last longer are below the threshold, then above it.
    for (kbps, is_learned) in [(ABOVE_KBPS, false), (BELOW_KBPS, true), (u32::MAX, false)] {
        set_threshold(&lab, kbps).await?;
        for ipv6 in [false, true] {
            learns(&lab, ipv6, &LASTING, is_learned).await?;
        }
    }
    for gateway in ["gw-a", "gw-b"] {
        let events = lab.metrics(gateway).await?.sum("sluice_flow_events_total", &[]);
        ensure!(events == 0.0, "{gateway} detected {events} elephants");
        let counts = lab.metrics(gateway).await?.sum("sluice_flows_counted", &[]);
        ensure!(counts == 0.0, "{gateway} counts flows, although none can be an elephant");
    }
    Ok(())
}

/// Sets the threshold of the shop's VPC at its hosts. With one that no flow reaches, gateways withdraw the paths that exist.
async fn set_threshold(lab: &Lab, kbps: u32) -> Outcome {
    let vpc = lab.vpc("shop")?;
    lab.api().update::<Vpc>(vpc.id, &json!({ "offload_kbps": kbps }), None).await?;
    for vm in [FROM, TO] {
        lab.synchronized(&lab.vm(vm)?.host, TOLD).await?;
    }
    if kbps == u32::MAX {
        eventually(TOLD, || async {
            for ipv6 in [false, true] {
                ensure!(!has_path(lab, ipv6).await?, "the path is still there");
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn has_path(lab: &Lab, ipv6: bool) -> Result<bool, Failure> {
    let sender = lab.vm(FROM)?;
    Ok(path_to(lab, &sender.host, sender.vni, address(lab.vm(TO)?, ipv6)?).await?.is_some())
}

/// Whether the host learns the path by these packets.
async fn learns(lab: &Lab, ipv6: bool, packets: &[&str], expected: bool) -> Outcome {
    let to = address(lab.vm(TO)?, ipv6)?;
    let sent = ping(lab, FROM, to, packets).await?;
    ensure!(sent.received > 0, "{}", sent.text);
    if !expected {
        tokio::time::sleep(LEARNED).await;
        ensure!(!has_path(lab, ipv6).await?, "a path to {to} was learned by {packets:?}");
        return Ok(());
    }
    eventually(LEARNED, || async {
        ensure!(has_path(lab, ipv6).await?, "no path to {to} was learned by {packets:?}");
        Ok(())
    })
    .await
}
