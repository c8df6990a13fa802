//! GWZone, a model to compare with: hosts detect elephants themselves and ask for
//! their paths; when the primary gateway of a zone dies the controller leads its
//! hosts to the backup, and back when it returns.

use crate::Ground;
use crate::direct_paths::goes_direct;
use crate::support::{Failure, Outcome, ensure, eventually};
use crate::takeover::{Bench, lab_of_three};
use sluice_client::Gateway;
use sluice_lab::Lab;
use std::time::Duration;

/// The primary of host-a's zone and of host-c's, and its port of the switch; gw-b is host-b's.
const PRIMARY: (&str, &str) = ("gw-a", "p0");
const BACKUP: &str = "gw-c";
const SECONDS: u64 = 8;
const CALM: Duration = Duration::from_millis(1_200);
const BACK: Duration = Duration::from_secs(40);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, Some("gwzone")).await?;
    for (to, ipv6) in [("web-3", false), ("db-1", true)] {
        goes_direct(&lab, "web-1", to, ipv6).await?;
    }
    for gateway in ["gw-a", "gw-b", "gw-c"] {
        let events = lab.metrics(gateway).await?.sum("sluice_flow_events_total", &[]);
        ensure!(events == 0.0, "{gateway} detected {events} elephants");
    }
    // From here on nothing is an elephant.
    let bench = Bench::new(&lab).await?;
    // Who owns which vIP is all the same here: hosts send to none.
    eventually(BACK, || async {
        let gateways = lab.api().list::<Gateway>(&[], None).await?;
        ensure!(gateways.iter().all(|gateway| gateway.state == "fit"), "{gateways:?}");
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
    let streams = bench.streams_for(SECONDS)?;
    tokio::time::sleep(CALM).await;
    let spare = forwarded(lab, BACKUP).await? - idle;
    ensure!(spare == 0.0, "the backup forwarded {spare} packets while the primaries were well");
    bench.on_switch(&["ip", "link", "set", port, "down"]).await?;
    lab.kill(primary).await?;
    let seen = bench.worst("a primary dies", streams).await?;
    ensure!(seen.lost > 0, "{primary} forwarded nothing, and its death shows nothing");
    let carried = forwarded(lab, BACKUP).await? - idle;
    ensure!(carried > 100.0, "the backup forwarded only {carried} packets");

    bench.on_switch(&["ip", "link", "set", port, "up"]).await?;
    lab.restart(primary)?;
    eventually(BACK, || async {
        let before = [forwarded(lab, primary).await?, forwarded(lab, BACKUP).await?];
        let seen = bench.worst("its primary is back", bench.streams_for(SECONDS)?).await?;
        let after = [forwarded(lab, primary).await?, forwarded(lab, BACKUP).await?];
        ensure!(seen.lost == 0, "{} packets lost while the zone went back", seen.lost);
        let (by_primary, by_backup) = (after[0] - before[0], after[1] - before[1]);
        ensure!(by_backup == 0.0 && by_primary > 100.0, "{by_primary} by the primary, {by_backup} not");
        Ok(())
    })
    .await
}
