//! The owner of a NAT gateway's vIP is killed again and again, with its interfaces, while VMs keep thousands of connections
//! open and begin others. No connection that is open ends, and each new one is answered, some by a repeated SYN. `make soak`
//! runs it: `nat_failover` is the short form.

use crate::Ground;
use crate::nat::owner_of;
use crate::nat_failover::everything_is_copied;
use crate::support::{Outcome, Probe, ensure, eventually, number, soak};
use crate::takeover::{Hellos, lab_of_three};
use serde_json::Value;
use sluice_lab::internet::{WEB, web_address};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const VMS: [&str; 3] = ["shop-1", "shop-2", "shop-3"];
const PUBLIC: &str = "203.0.113.128";
const PORT: u16 = 7081;
/// Connections of each VM that stay, and others in a second.
const HELD: u16 = 4_000;
const PER_S: u32 = 50;
/// Until the vIP has left a gateway, or is back: vIPs return one each quarter of a second, when copies are complete.
const MOVED: Duration = Duration::from_secs(30);
/// From a takeover until all have announced it, and lost segments were repeated.
const SETTLED: Duration = Duration::from_secs(1);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Default).await?;
    let at = SocketAddr::new(web_address(false), PORT).to_string();
    let _server = Probe::listening(&lab, WEB, &["keep", &at]).await?;
    everything_is_copied(&lab).await?;
    let mut probes = Vec::new();
    for vm in VMS {
        let words = ["hold", &at, &HELD.to_string(), &PER_S.to_string()];
        probes.push(Probe::listening(&lab, vm, &words).await?);
    }
    let (begun, mut kills) = (Instant::now(), 0);
    while kills == 0 || begun.elapsed() < soak() {
        everything_is_copied(&lab).await?;
        let victim = lab.owner_of_public(PUBLIC.parse()?).await?;
        let name = lab.state().topology.gateways[victim].name.clone();
        lab.connect_gateway(victim, false).await?;
        lab.kill(&name).await?;
        kills += 1;
        eventually(MOVED, async || {
            let owner = owner_of(&lab, PUBLIC).await?;
            ensure!(owner != name, "{PUBLIC} is still at {name}");
            Ok(())
        })
        .await?;
        sleep(SETTLED).await;
        all_go_on(&mut probes, &format!("kill {kills}, of {name}")).await?;
        lab.connect_gateway(victim, true).await?;
        lab.restart(&name)?;
        lab.synchronized(&name, MOVED).await?;
    }
    println!("    {kills} kills, {} connections stayed", usize::from(HELD) * VMS.len());
    Ok(())
}

/// All connections that stay are answered, and all others were.
async fn all_go_on(probes: &mut [Probe], when: &str) -> Outcome {
    for (vm, probe) in VMS.iter().zip(probes) {
        let counts = probe.next().await?;
        let all_answered =
            |of: &Value| Ok::<_, crate::support::Failure>(number(of, "silent")? + number(of, "ended")? == 0);
        println!("    {when}: {vm}: {counts}");
        ensure!(all_answered(&counts["held"])? && all_answered(&counts["others"])?, "{when}: {vm}: {counts}");
        ensure!(number(&counts["held"], "answered")? == u64::from(HELD), "{when}: {vm}: {counts}");
    }
    Ok(())
}
