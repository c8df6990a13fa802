//! A gateway gets more than it can forward: one of its vIPs goes to a neighbour,
//! under traffic and without loss, and the event log says why.
//!
//! What a gateway can is set here to what it forwards, so that it is wholly loaded
//! and the others, which can do as much as any machine of the lab, are hardly so.

use crate::Ground;
use crate::support::{Failure, Outcome, ensure, eventually};
use crate::takeover::{Bench, lab_of_three};
use sluice_client::{Gateway, PlacementGateway, PlacementSettingsPatch};
use sluice_lab::Lab;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Gateways report once a second, and the scheduler looks as often.
const SEEN: Duration = Duration::from_secs(12);
/// Traffic flows for so long.
const SECONDS: u64 = 15;
/// Less than this is no traffic to speak of.
const BUSY_PPS: u64 = 200;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None).await?;
    let bench = Bench::new(&lab).await?;
    bench.at_home().await?;
    let streams = bench.streams_for(SECONDS)?;
    let busiest = busiest(&lab).await?;
    let mut gateways = BTreeMap::new();
    gateways.insert(busiest.id, Some(busiest.pps));
    let patch = PlacementSettingsPatch { gateways, ..PlacementSettingsPatch::default() };
    lab.api().set_placement(&patch).await?;
    let relief = relieved(&lab, &busiest).await;
    let seen = bench.worst("a gateway is overloaded", streams).await?;
    relief?;
    ensure!(seen.lost == 0, "{} packets lost while a vIP moved", seen.lost);
    // Its new owner is its home now.
    bench.at_home().await
}

/// The gateway that forwards most.
async fn busiest(lab: &Lab) -> Result<PlacementGateway, Failure> {
    let until = Instant::now() + SEEN;
    loop {
        let placement = lab.api().placement().await?;
        let all = placement.clusters.into_iter().flat_map(|cluster| cluster.gateways);
        let busiest = all.max_by_key(|gateway| gateway.pps).filter(|gateway| gateway.pps >= BUSY_PPS);
        if let Some(busiest) = busiest {
            return Ok(busiest);
        }
        ensure!(Instant::now() < until, "no gateway reports that it forwards anything");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The scheduler has moved a vIP away from it, because it is overloaded, and says so.
async fn relieved(lab: &Lab, busiest: &PlacementGateway) -> Outcome {
    let begun = Instant::now();
    eventually(SEEN, || async {
        let scheduler = lab.api().scheduler().await?;
        let why = "its owner is at ";
        let from = format!("from {} to ", busiest.id);
        let moved =
            scheduler.decisions.iter().find(|it| it.done && it.text.contains(&from) && it.text.contains(why));
        ensure!(moved.is_some(), "nothing left {}: {scheduler:?}", busiest.id);
        let events = lab.api().events(None, None, 1000).await?;
        let text = moved.map(|moved| moved.text.as_str()).unwrap_or_default();
        ensure!(events.iter().any(|event| event.text == text), "no event says: {text}");
        Ok(())
    })
    .await?;
    let gateway = lab.api().get::<Gateway>(busiest.id).await?;
    println!(
        "    {} was relieved of a vIP {:.1} s after it was overloaded",
        gateway.name,
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}
