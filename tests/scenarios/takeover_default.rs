//! A gateway dies at the default hello interval of 4 ms: the outage of every flow through it is as short as
//! `docs/decisions/takeover.md` says.
//!
//! At this interval a stall of the machine of 13 ms looks like a failure, so runs with stalls are repeated
//! (`stalls`). As long as a gateway stays dead, the others do not believe each other dead.
//!
//! Catches: timers that are late, takeover steps that wait for each other, slow announcements, packets to the dead gateway that
//! are in the way of those to others.

use crate::Ground;
use crate::support::{Failure, Outcome, ensure_timely, execute};
use crate::takeover::{Bench, Hellos, lab_of_three};
use sluice_lab::Lab;
use std::time::Duration;

/// 15 ms from the failure to the first packet through another gateway, and 10 ms for probes that send every
/// 2 ms from a machine on whose two processors everything of the lab runs.
const TAKEOVER_MAX: Duration = Duration::from_millis(25);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Default).await?;
    let bench = Bench::new(&lab).await?;
    bench.owners_preferred().await?;
    bench.gateway_dies("a gateway dies, 4 ms hellos", false, TAKEOVER_MAX).await?;
    a_gateway_stays_dead(&bench).await
}

/// Longer than two rounds in which the kernel asks for the address of a gateway, 3 s each.
const DEAD: Duration = Duration::from_secs(8);

async fn a_gateway_stays_dead(bench: &Bench<'_>) -> Outcome {
    let gateways = &bench.lab.state().topology.gateways;
    let [first, second, dead] = &gateways[..] else {
        return Err(Failure::new("the lab has not three gateways"));
    };
    bench.on_switch(&["ip", "link", "set", "p2", "down"]).await?;
    bench.lab.kill(&dead.name).await?;
    bench.owns_nothing(&dead.name).await?;
    // As after some seconds, the kernels have no address of it any more, and packets to it wait.
    for gateway in [first, second] {
        execute(bench.lab, &gateway.name, &["ip", "neigh", "flush", "dev", "eth0"]).await?;
    }
    let before = false_alarms(bench.lab, [&first.name, &second.name]).await?;
    tokio::time::sleep(DEAD).await;
    let more = false_alarms(bench.lab, [&first.name, &second.name]).await? - before;
    ensure_timely!(more == 0.0, "the gateways that live believed each other dead {more} times in {DEAD:?}");
    Ok(())
}

async fn false_alarms(lab: &Lab, gateways: [&str; 2]) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for gateway in gateways {
        sum += lab.metrics(gateway).await?.sum("sluice_cluster_false_alarms_total", &[]);
    }
    Ok(sum)
}
