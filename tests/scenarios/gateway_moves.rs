//! A gateway moves from one cluster to another and back, while 2000 packets per second pass
//! through each cluster in each direction and family: none is lost. During the first move the
//! controller dies and returns, during the second one the gateway's agent. Then the gateway is drained and
//! undrained under traffic. A deleted gateway gives up its vIPs although its agent continues to run.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, Probe, address, ensure, eventually, reaches, slow_hellos, who};
use serde_json::json;
use sluice_client::{Cluster, Gateway, HappenedEvent, Vpc};
use sluice_lab::{CONTROLLER, Lab, Options, Topology, down};
use sluice_types::{ClusterId, GatewayId};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const PORT: u16 = 7031;
const PPS: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(40);
/// No flow is offloaded from gateways.
const NEVER: u32 = u32::MAX;
/// Name of the gateway that moves.
const GOER: &str = "gw-b";

/// Through both clusters, both underlays, in both families.
const WAYS: [(&str, &str, bool); 4] =
    [("web-1", "web-3", false), ("web-3", "web-1", true), ("db-1", "db-2", false), ("db-2", "db-1", true)];

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    two_clusters(&mut options.topology)?;
    slow_hellos(&mut options.topology);
    let lab = Lab::up(options).await?;
    let outcome = go(&lab).await;
    if outcome.is_ok() {
        down(&ground.name).await?;
    }
    outcome
}

/// The standard lab, whose cluster has two gateways, and another cluster with one.
fn two_clusters(topology: &mut Topology) -> Outcome {
    let mut far = topology.cluster.clone();
    far.name = "far".to_owned();
    far.vips = ["192.0.2.111", "192.0.2.112", "2001:db8:0:1::111", "2001:db8:0:1::112"]
        .iter()
        .map(|vip| vip.parse())
        .collect::<Result<_, _>>()?;
    topology.other_clusters.push(far);
    let mut gateway = topology.gateways[0].clone();
    gateway.name = "gw-far".to_owned();
    gateway.cluster = Some("far".to_owned());
    (gateway.ipv4, gateway.ipv6) = (Some("192.0.2.13".parse()?), Some("2001:db8:0:1::13".parse()?));
    topology.gateways.push(gateway);
    Ok(())
}

async fn go(lab: &Lab) -> Outcome {
    let far = lab.api().find::<Cluster>("far", &[]).await?.id;
    let home = gateway(lab, GOER).await?.cluster;
    for name in ["web", "db"] {
        let id = lab.api().find::<Vpc>(name, &[]).await?.id;
        lab.api().update::<Vpc>(id, &json!({"offload_kbps": NEVER}), None).await?;
    }
    part(lab, far).await?;
    refused(lab, home, far).await?;
    let streams = Streams::start(lab, &WAYS, PORT, PPS).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begin = Instant::now();
    let outcome = there_and_back(lab, home, far).await;
    println!("    there, back, drained and undrained in {} s", begin.elapsed().as_secs());
    outcome.and(streams.end().await)
}

/// `web` stays on its cluster, `db` is on the other one.
async fn part(lab: &Lab, far: ClusterId) -> Outcome {
    for peering in lab.api().list::<sluice_client::Peering>(&[], None).await? {
        lab.api().delete::<sluice_client::Peering>(peering.id, None).await?;
    }
    let db = lab.api().find::<Vpc>("db", &[]).await?.id;
    lab.api().update::<Vpc>(db, &json!({"cluster": far}), None).await?;
    let there = lab.api().wait_until::<Vpc>(db, PATIENCE, |vpc| vpc.moving_to.is_none()).await?;
    ensure!(there.cluster == far, "db is on {}", there.cluster);
    Ok(())
}

/// The only gateway of a cluster with a VPC cannot move.
async fn refused(lab: &Lab, home: ClusterId, far: ClusterId) -> Outcome {
    let only = gateway(lab, "gw-far").await?;
    ensure!(only.cluster == far, "gw-far is in {}", only.cluster);
    let error = lab.api().move_gateway(only.id, home, None, None).await.err();
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("`gw-far` is the last of its cluster"), "it may go: {text}");
    Ok(())
}

async fn there_and_back(lab: &Lab, home: ClusterId, far: ClusterId) -> Outcome {
    let db = lab.api().find::<Vpc>("db", &[]).await?.vni.get().to_string();
    let before = forwarded(lab, &db).await?;
    // The controller is killed as soon as the move has started.
    begun(lab, far).await?;
    lab.kill(CONTROLLER).await?;
    lab.restart(CONTROLLER)?;
    lab.api().wait_ready(PATIENCE).await?;
    arrived(lab, far).await?;
    // Each request is another flow, of which some are sent to one of the gateway's vIPs.
    let at = SocketAddr::new(address(lab.vm("db-2")?, false)?, PORT + 9);
    let asked = Probe::listening(lab, "db-2", &["echo", &at.to_string(), "db-2"]).await?;
    eventually(PATIENCE, || async {
        let answer = who(lab, "db-1", "udp", at).await?;
        ensure!(answer.as_deref() == Some("db-2"), "db-2 answers {answer:?}");
        let there = forwarded(lab, &db).await?;
        ensure!(there > before, "it forwards nothing of its new cluster");
        Ok(())
    })
    .await?;
    drop(asked);

    // Its agent is killed on the way back.
    begun(lab, home).await?;
    lab.kill(GOER).await?;
    lab.restart(GOER)?;
    arrived(lab, home).await?;
    let events = lab.api().events(Some(&gateway(lab, GOER).await?.id.to_string()), None, 100).await?;
    let kinds: Vec<_> = events.iter().map(|event: &HappenedEvent| event.kind.as_str()).collect();
    let moves: Vec<_> = kinds.into_iter().filter(|kind| kind.starts_with("gateway_move")).collect();
    let once = ["gateway_move_started", "gateway_move_joined", "gateway_moved"];
    ensure!(moves == [once, once].concat(), "the events are {moves:?}");
    ensure!(
        events.iter().any(|event| event.text.ends_with("(reason: a scenario)")),
        "the reason is not there"
    );

    scaled(lab, home).await
}

/// Removes gateways until one is left, then enrolls a deleted gateway again, which gets its share of vIPs.
async fn scaled(lab: &Lab, home: ClusterId) -> Outcome {
    let goer = gateway(lab, GOER).await?;
    lab.api().drain(goer.id, true, None).await?;
    lab.api().wait_until::<Gateway>(goer.id, PATIENCE, |gateway| gateway.state == "drained").await?;
    lab.api().drain(goer.id, false, None).await?;
    let back = |gateway: &Gateway| gateway.state == "ready" && !gateway.vips.is_empty();
    let again = lab.api().wait_until::<Gateway>(goer.id, PATIENCE, back).await?;
    ensure!(again.cluster == home, "it is in {}", again.cluster);
    deleted(lab, goer.id).await
}

/// Its agent continues to run and gives up its vIPs, since the controller reports the deletion.
async fn deleted(lab: &Lab, goer: GatewayId) -> Outcome {
    lab.api().delete::<Gateway>(goer, None).await?;
    eventually(PATIENCE, || async {
        let owned = lab.metrics(GOER).await?.sum("sluice_cluster_vips", &[]);
        ensure!(owned == 0.0, "{GOER} was deleted, and answers for {owned} vIPs");
        Ok(())
    })
    .await?;
    for (from, to, _) in WAYS {
        reaches(lab, from, to).await?;
    }
    let last = gateway(lab, "gw-a").await?;
    let error = lab.api().delete::<Gateway>(last.id, None).await.err();
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("`gw-a` is the last of its cluster"), "it may be deleted: {text}");
    Ok(())
}

async fn gateway(lab: &Lab, name: &str) -> Result<Gateway, Failure> {
    Ok(lab.api().find::<Gateway>(name, &[]).await?)
}

async fn begun(lab: &Lab, to: ClusterId) -> Outcome {
    let id = gateway(lab, GOER).await?.id;
    // On a busy machine its peer may be late, and then the gateway has to stay for some time.
    eventually(PATIENCE, || async {
        let begun = lab.api().move_gateway(id, to, Some("a scenario"), None).await?;
        ensure!(begun.moving_to == Some(to), "it does not move: {begun:?}");
        Ok(())
    })
    .await
}

/// Checks that the gateway has joined, and owns vIPs of its new cluster only.
async fn arrived(lab: &Lab, at: ClusterId) -> Outcome {
    let id = gateway(lab, GOER).await?.id;
    let settled = |gateway: &Gateway| gateway.moving_to.or(gateway.moving_from).is_none();
    let there = lab.api().wait_until::<Gateway>(id, PATIENCE, settled).await?;
    ensure!(there.cluster == at, "it ended in {}", there.cluster);
    let vips = lab.api().get::<Cluster>(at).await?.addresses();
    eventually(PATIENCE, || async {
        let now = lab.api().get::<Gateway>(id).await?;
        let [v4, v6] = [true, false].map(|v4| now.vips.iter().any(|vip| vip.is_ipv4() == v4));
        ensure!(
            v4 && v6 && now.vips.iter().all(|vip| vips.contains(vip)),
            "it owns {:?} of {vips:?}",
            now.vips
        );
        Ok(())
    })
    .await
}

/// Packets of a network that the gateway has forwarded since its program was loaded.
async fn forwarded(lab: &Lab, vni: &str) -> Result<f64, Failure> {
    Ok(lab.metrics(GOER).await?.sum("sluice_vni_packets_total", &[("vni", vni)]))
}
