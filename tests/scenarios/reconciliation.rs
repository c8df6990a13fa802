//! A host asks its gateways what has changed in a network, and not about each path, nor about peered networks. What it has a path to and what ends, it hears of at
//! once. Of an instance that comes, only its own host hears.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, ensure, ensure_timely, eventually, path_to};
use sluice_client::Instance;
use sluice_lab::Lab;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const PORT: u16 = 7031;
const PPS: u64 = 200;
const LEARNED: Duration = Duration::from_secs(5);
const SENDER: &str = "host-a";
const RECEIVER: &str = "host-b";
/// An instance of a peered network.
const PEER: &str = "db-1";
const OTHERS: [&str; 2] = [SENDER, "host-c"];
/// For how long questions are counted. A path is confirmed on its own every 4 to 5 s.
const COUNTED: Duration = Duration::from_secs(6);
/// Most questions about a path in this time. Without the answers about networks it would be 60: one in 100 ms.
const EACH: f64 = 3.0;
/// From the call that deletes an instance until no host has a path to it: the change must reach the gateways, the host asks them every
/// 100 to 150 ms, and then about the path.
const WITHDRAWN_MAX: Duration = Duration::from_millis(600);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let pairs = ["web-3", PEER].into_iter().flat_map(|to| [("web-1", to, false), ("web-1", to, true)]);
    let streams = Streams::start(lab, &pairs.collect::<Vec<_>>(), PORT, PPS).await?;
    let vni = lab.vm("web-1")?.vni;
    for receiver in ["web-3", PEER] {
        are_learned(lab, vni, &lab.vm(receiver)?.addresses()).await?;
    }
    questions_are_about_networks(lab).await?;
    streams.end().await?;
    an_instance_comes_and_ends(lab).await
}

async fn counts<const N: usize>(lab: &Lab, node: &str, names: [&str; N]) -> Result<[f64; N], Failure> {
    let metrics = lab.metrics(node).await?;
    Ok(names.map(|name| metrics.sum(name, &[])))
}

async fn are_learned(lab: &Lab, vni: u32, destinations: &[IpAddr]) -> Outcome {
    eventually(LEARNED, || async {
        for destination in destinations {
            let path = path_to(lab, SENDER, vni, *destination).await?;
            ensure!(path.is_some(), "{SENDER} has learned no path to {destination}");
        }
        Ok(())
    })
    .await
}

async fn questions_are_about_networks(lab: &Lab) -> Outcome {
    let names = [
        "sluice_networks_reconciled_total",
        "sluice_path_requests_total",
        "sluice_networks_silent_total",
        "sluice_paths_confirmed_total",
    ];
    // Paths that were learned a moment ago are confirmed first.
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Earlier scenarios may have left some.
    let paths = lab.paths_of(SENDER).await?;
    let peer = lab.vm(PEER)?.vni;
    ensure!(paths.iter().any(|path| path["path_vni"] == peer), "no path leads into the peered network");
    let before = counts(lab, SENDER, names).await?;
    tokio::time::sleep(COUNTED).await;
    let after = counts(lab, SENDER, names).await?;
    let [reconciled, requested, silent, confirmed] = std::array::from_fn(|at| after[at] - before[at]);
    println!("    in {COUNTED:?}: {reconciled} answers about networks, {requested} questions about paths");
    ensure_timely!(silent == 0.0, "no gateway said what has changed");
    // One question in 100 to 150 ms for one network or two; each path would be asked about as often.
    ensure_timely!(reconciled >= 25.0, "only {reconciled} answers about networks in {COUNTED:?}");
    let most = 5.0 + paths.len() as f64 * EACH;
    ensure_timely!(requested <= most, "{requested} questions about paths in {COUNTED:?}, at most {most}");
    ensure_timely!(confirmed >= 1.0, "no path was confirmed in {COUNTED:?}");
    Ok(())
}

async fn an_instance_comes_and_ends(lab: &Lab) -> Outcome {
    let names = ["sluice_update_entries_total", "sluice_path_changes_total"];
    let before = [counts(lab, OTHERS[0], names).await?, counts(lab, OTHERS[1], names).await?];
    let vm = lab.add_vm("newborn", "web", "front", RECEIVER).await?;
    // By the time it is programmed, all nodes have what they get.
    lab.api().wait_programmed::<Instance>(vm.id, LEARNED).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    for (host, before) in OTHERS.into_iter().zip(before) {
        let after = counts(lab, host, names).await?;
        ensure!(after == before, "{host} got something of an instance of {RECEIVER}: {before:?}, {after:?}");
    }
    let there = vm.addresses();
    let streams: Vec<_> = there.iter().map(|address| ("web-1", "newborn", *address)).collect();
    let streams = Streams::to(lab, &streams, PORT + 1, PPS).await?;
    are_learned(lab, vm.vni, &there).await?;
    // If packets still came, the host that the instance has left would have its sender redirected.
    streams.end().await?;
    let withdrawn = async || {
        Ok::<_, Failure>(
            lab.metrics(SENDER).await?.sum("sluice_paths_removed_total", &[("reason", "withdrawn")]),
        )
    };
    let (before, deleted) = (withdrawn().await?, Instant::now());
    lab.api().delete::<Instance>(vm.id, None).await?;
    eventually(LEARNED, || async {
        let more = withdrawn().await? - before;
        ensure!(more >= there.len() as f64, "{SENDER} has removed {more} paths to {there:?}");
        Ok(())
    })
    .await?;
    let took = deleted.elapsed();
    println!("    the paths to an instance are gone {} ms after the call that deleted it", took.as_millis());
    ensure_timely!(took <= WITHDRAWN_MAX, "the paths to a deleted instance stayed for {took:?}");
    lab.unplug_vm("newborn").await?;
    Ok(())
}
