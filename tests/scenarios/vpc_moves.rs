//! VPCs move from one gateway cluster to another and back while 1000 packets per second pass through their
//! gateways in each direction and address family: none is lost. Peered VPCs move together, and the controller
//! may be killed during the move. `make soak` repeats it for five minutes.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Outcome, ensure, reaches, slow_hellos, soak, without_internet};
use serde_json::json;
use sluice_client::{Cluster, HappenedEvent, Vpc};
use sluice_lab::{CONTROLLER, Lab, Options, down};
use std::time::{Duration, Instant};

const PORT: u16 = 7013;
const PATIENCE: Duration = Duration::from_secs(80);
/// No flow is offloaded from gateways.
const NEVER: u32 = u32::MAX;

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    let topology = &mut options.topology;
    let mut far = topology.cluster.clone();
    far.name = "far".to_owned();
    far.vips = vec!["192.0.2.111".parse()?, "2001:db8:0:1::111".parse()?];
    topology.other_clusters.push(far);
    let mut gateway = topology.gateways[0].clone();
    gateway.name = "gw-far".to_owned();
    gateway.cluster = Some("far".to_owned());
    (gateway.ipv4, gateway.ipv6) = (Some("192.0.2.13".parse()?), Some("2001:db8:0:1::13".parse()?));
    topology.gateways.push(gateway);
    slow_hellos(topology);
    without_internet(topology);
    let lab = Lab::up(options).await?;
    let outcome = there_and_back(&lab).await;
    if outcome.is_ok() {
        down(&ground.name).await?;
    }
    outcome
}

async fn there_and_back(lab: &Lab) -> Outcome {
    let web = vpc(lab, "web").await?;
    let (home, far) = (web.cluster, lab.api().find::<Cluster>("far", &[]).await?.id);
    for name in ["web", "db"] {
        let id = vpc(lab, name).await?.id;
        lab.api().update::<Vpc>(id, &json!({"offload_kbps": NEVER}), None).await?;
        lab.api().wait_programmed::<Vpc>(id, PATIENCE).await?;
    }
    // Within a VPC, between peers, and over both underlays.
    let ways = [
        ("web-1", "web-3", false),
        ("web-3", "web-1", true),
        ("web-2", "db-2", false),
        ("db-1", "db-2", true),
    ];
    let streams = Streams::start(lab, &ways, PORT, 500).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (begin, mut rounds) = (Instant::now(), 0);
    while rounds == 0 || begin.elapsed() < soak() {
        let before = forwarded(lab, "gw-far", &web).await?;
        moved(lab, &web, far, false).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let there = forwarded(lab, "gw-far", &web).await?;
        ensure!(there > before + 100.0, "the other cluster forwarded only {} packets", there - before);
        ensure!(vpc(lab, "db").await?.cluster == far, "a peer stayed behind");
        moved(lab, &web, home, true).await?;
        rounds += 1;
    }
    streams.end().await?;
    let events = lab.api().events(Some(&web.id.to_string()), None, 1000).await?;
    let kinds: Vec<_> = events.iter().map(|event: &HappenedEvent| event.kind.as_str()).collect();
    let once = ["vpc_move_started", "vpc_move_switched", "vpc_moved"];
    ensure!(kinds == once.repeat(2 * rounds), "the events are {kinds:?}");
    reaches(lab, "web-1", "db-2").await
}

async fn vpc(lab: &Lab, name: &str) -> Result<Vpc, crate::support::Failure> {
    Ok(lab.api().find::<Vpc>(name, &[]).await?)
}

/// Moves a VPC. With `kill`, the controller is killed as soon as the move has started.
async fn moved(lab: &Lab, vpc: &Vpc, to: sluice_types::ClusterId, kill: bool) -> Outcome {
    let begun = lab.api().update::<Vpc>(vpc.id, &json!({"cluster": to}), None).await?;
    ensure!(begun.moving_to == Some(to), "it does not move: {begun:?}");
    if kill {
        lab.kill(CONTROLLER).await?;
        lab.restart(CONTROLLER)?;
        lab.api().wait_ready(PATIENCE).await?;
    }
    let there = lab.api().wait_until::<Vpc>(vpc.id, PATIENCE, |vpc| vpc.moving_to.is_none()).await?;
    ensure!(there.cluster == to, "it ended on {}", there.cluster);
    Ok(())
}

/// Packets of a VPC that a gateway has forwarded.
async fn forwarded(lab: &Lab, gateway: &str, vpc: &Vpc) -> Result<f64, crate::support::Failure> {
    let vni = vpc.vni.get().to_string();
    Ok(lab.metrics(gateway).await?.sum("sluice_vni_packets_total", &[("vni", vni.as_str())]))
}
