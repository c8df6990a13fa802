//! A gateway gets more traffic than it can forward: one of its vIPs moves to another gateway, without loss, and
//! the event log says why. As long as the traffic is two thirds of what it can forward, nothing moves.
//!
//! All gateways of a lab run on the same processors, so their capacity in packets per second is configured here;
//! what then overloads one of them is the traffic itself.
//!
//! Catches: a scheduler that does not see traffic grow, that moves vIPs without overload, or that loses packets
//! while it moves one.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, ensure, eventually};
use crate::takeover::{Bench, Hellos, lab_of_three};
use futures::future::try_join_all;
use sluice_client::{Gateway, PlacementGateway, PlacementSettingsPatch};
use sluice_lab::Lab;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often all flows are started again. The vIP of a flow depends on its source port, so that not every
/// repetition reaches the gateway that is watched; the probability that none of these 18 directions of flows does is
/// below one in a thousand.
const REPETITIONS: usize = 3;
/// Time within which gateways have reported and the scheduler has decided; both happen once a second.
const REPORTED: Duration = Duration::from_secs(12);
/// A rate that has not changed for this time comes from whole seconds of all streams. The first report after the
/// streams begin covers a second in which they were not yet there for part of the time.
const STEADY: Duration = Duration::from_millis(2500);
/// Duration of the traffic below the capacity: several reports and rounds of the scheduler.
const CALM: Duration = Duration::from_secs(4);
/// A gateway that forwards fewer packets has no stream.
const BUSY_PPS: u64 = 200;
/// Part of the text of a decision whose reason is overload.
const OVERLOADED: &str = "its owner is at ";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Slow).await?;
    let bench = Bench::new(&lab).await?;
    bench.owners_preferred().await?;
    let streams = bench.streams_until_ended().await?;
    let busiest = busiest(&lab).await?;
    let mut gateways = BTreeMap::new();
    gateways.insert(busiest.id, Some(busiest.pps * 3 / 2));
    let patch = PlacementSettingsPatch { gateways, ..PlacementSettingsPatch::default() };
    lab.api().set_placement(&patch).await?;
    let until = Instant::now() + CALM;
    while Instant::now() < until {
        let moved = overload_move(&lab, &busiest).await?;
        ensure!(moved.is_none(), "a vIP left a gateway at two thirds of its capacity: {moved:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let begin = Instant::now();
    let mut all_streams = vec![streams];
    for _ in 0..REPETITIONS {
        all_streams.push(bench.streams_until_ended().await?);
    }
    relieved(&lab, &busiest, begin).await?;
    try_join_all(all_streams.into_iter().map(Streams::end)).await?;
    // The new owner of the vIP is its preferred owner now.
    bench.owners_preferred().await
}

/// A busy gateway whose rate is steady; the busiest one, if there are several.
async fn busiest(lab: &Lab) -> Result<PlacementGateway, Failure> {
    let until = Instant::now() + REPORTED;
    // Per gateway, its rate when the rate last changed, and the time of that reading.
    let mut rates = BTreeMap::new();
    loop {
        let placement = lab.api().placement().await?;
        let all = placement.clusters.into_iter().flat_map(|cluster| cluster.gateways);
        let steady = all.filter(|gateway| {
            let now = (gateway.pps, Instant::now());
            let (pps, since) = rates.entry(gateway.id).or_insert(now);
            if pps.abs_diff(gateway.pps) > *pps / 10 {
                (*pps, *since) = now;
            }
            gateway.pps >= BUSY_PPS && since.elapsed() >= STEADY
        });
        if let Some(busiest) = steady.max_by_key(|gateway| gateway.pps) {
            return Ok(busiest);
        }
        ensure!(Instant::now() < until, "no gateway reports that it forwards at a steady rate");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The text of the scheduler's decision that took a vIP from an overloaded gateway, if there is one.
async fn overload_move(lab: &Lab, gateway: &PlacementGateway) -> Result<Option<String>, Failure> {
    let from = format!("from {} to ", gateway.id);
    let decisions = lab.api().scheduler().await?.decisions;
    let moved =
        decisions.into_iter().find(|it| it.done && it.text.contains(&from) && it.text.contains(OVERLOADED));
    Ok(moved.map(|moved| moved.text))
}

/// Waits until the scheduler has moved a vIP away from an overloaded gateway, and the event log says so.
async fn relieved(lab: &Lab, busiest: &PlacementGateway, begin: Instant) -> Outcome {
    eventually(REPORTED, || async {
        let text = overload_move(lab, busiest).await?;
        let text = text.ok_or_else(|| Failure::new(format!("nothing left {}", busiest.id)))?;
        let events = lab.api().events(None, None, 1000).await?;
        ensure!(events.iter().any(|event| event.text == text), "no event says: {text}");
        Ok(())
    })
    .await?;
    let gateway = lab.api().get::<Gateway>(busiest.id).await?;
    println!(
        "    {} was relieved of a vIP {:.1} s after the first new flows",
        gateway.name,
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}
