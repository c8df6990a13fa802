//! GWZone, a model to compare with: hosts detect elephants themselves and request their paths. When the
//! primary gateway of a zone dies, the controller directs the zone's hosts to the backup, and back to the primary
//! when it returns.
//!
//! Catches: hosts that are not redirected, or only after more than the controller's silence limit and a push;
//! loss when a zone returns to its primary; a restarted agent that does not get its zone.

use crate::Ground;
use crate::direct_paths::goes_direct;
use crate::support::{Failure, Outcome, ensure, eventually};
use crate::takeover::{Bench, Hellos, STEADY, lab_of_three};
use sluice_client::Gateway;
use sluice_lab::Lab;
use std::time::Duration;

/// The primary of host-a's zone and of host-c's, and its port of the switch; gw-b is host-b's.
const PRIMARY: (&str, &str) = ("gw-a", "p0");
const BACKUP: &str = "gw-c";
const SECONDS: u64 = 6;
const RETURN_MAX: Duration = Duration::from_secs(30);
/// At a hello interval of 100 ms the controller declares a gateway dead after 1.5 s without heartbeats
/// (`crates/cluster/src/params.rs`); a heartbeat interval before that is spent if the gateway dies right after
/// one, and the push to hosts and their tables takes some tens of milliseconds.
const FAILOVER_MAX: Duration = Duration::from_millis(1_700);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, Some("gwzone"), Hellos::Slow).await?;
    for (to, ipv6) in [("web-3", false), ("db-1", true)] {
        goes_direct(&lab, "web-1", to, ipv6).await?;
    }
    // An agent that is restarted has the revision of the controller, but needs its zone to detect elephants.
    lab.kill("host-a").await?;
    lab.restart("host-a")?;
    lab.synchronized("host-a", RETURN_MAX).await?;
    goes_direct(&lab, "web-2", "db-1", false).await?;
    for gateway in ["gw-a", "gw-b", "gw-c"] {
        let events = lab.metrics(gateway).await?.sum("sluice_flow_events_total", &[]);
        ensure!(events == 0.0, "{gateway} detected {events} elephants");
    }
    // From here on nothing is an elephant.
    let bench = Bench::new(&lab).await?;
    // Owners of vIPs do not matter here: hosts send to gateways themselves.
    eventually(RETURN_MAX, || async {
        let gateways = lab.api().list::<Gateway>(&[], None).await?;
        ensure!(gateways.iter().all(|gateway| gateway.state == "ready"), "{gateways:?}");
        Ok(())
    })
    .await?;
    primary_dies(&lab, &bench).await
}

async fn forwarded(lab: &Lab, gateway: &str) -> Result<f64, Failure> {
    Ok(lab.metrics(gateway).await?.sum("sluice_vni_packets_total", &[]))
}

async fn primary_dies(lab: &Lab, bench: &Bench<'_>) -> Outcome {
    let (primary, port) = PRIMARY;
    let idle = forwarded(lab, BACKUP).await?;
    let streams = bench.streams_for(SECONDS).await?;
    tokio::time::sleep(STEADY).await;
    let spare = forwarded(lab, BACKUP).await? - idle;
    ensure!(spare == 0.0, "the backup forwarded {spare} packets while the primaries were well");
    bench.on_switch(&["ip", "link", "set", port, "down"]).await?;
    // Its counters outlive the agent.
    let before = forwarded(lab, primary).await?;
    lab.kill(primary).await?;
    bench.bounded_loss("a primary dies", streams, FAILOVER_MAX).await?;
    let carried = forwarded(lab, BACKUP).await? - idle;
    ensure!(carried > 1_000.0, "the backup forwarded only {carried} packets");

    bench.on_switch(&["ip", "link", "set", port, "up"]).await?;
    let streams = bench.streams_until_ended().await?;
    lab.restart(primary)?;
    eventually(RETURN_MAX, || async {
        let by_primary = forwarded(lab, primary).await? - before;
        ensure!(by_primary > 1_000.0, "{primary} forwarded only {by_primary} packets since it is back");
        Ok(())
    })
    .await?;
    let spare = forwarded(lab, BACKUP).await?;
    streams.end().await?;
    let spare = forwarded(lab, BACKUP).await? - spare;
    ensure!(spare == 0.0, "the backup still forwarded {spare} packets when the primary was back");
    Ok(())
}
