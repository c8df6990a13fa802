//! A cluster grows and shrinks while VMs have connections to the Internet by a NAT gateway. A gateway of another cluster joins, and gets
//! its share of the vIPs. The other two are drained, so that the newcomer owns the vIP of the NAT gateway in any case. Then they get vIPs
//! again, and the newcomer goes back. Downloads, streams and idle connections go on, each by the public port that it has, at every owner,
//! and connections that begin meanwhile are answered.
//!
//! Catches: a gateway that gets vIPs before it has copies of the sessions of its new cluster, or with another secret, by which it does
//! not find them; members that count positions of the ring or parts of the ports differently, so that an heir lacks connections; a gateway
//! that ends sessions when it leaves, or keeps packets to the NAT gateway; an owner that gives up before the next one answers.

use crate::Ground;
use crate::internet::copy;
use crate::nat::owner_of;
use crate::nat_failover::{
    PUBLIC, Ports, VMS, copied_at, established, new_connections_work, same_ports, with_traffic,
};
use crate::support::{Failure, Outcome, Probe, ensure, ensure_timely, eventually, execute, number};
use crate::takeover::{Hellos, three_gateways};
use sluice_client::{Cluster, Gateway};
use sluice_lab::internet::{ISP, WEB, web_address};
use sluice_lab::{Lab, Options, Topology};
use sluice_types::ClusterId;
use std::net::SocketAddr;
use std::time::Duration;

/// The gateways that stay, and the one that comes and goes.
const STAYING: [&str; 2] = ["gw-a", "gw-b"];
const NEWCOMER: &str = "gw-c";
const ALL: [&str; 3] = ["gw-a", "gw-b", "gw-c"];
/// Where the newcomer is from.
const FAR: &str = "far";
/// Idle connections of each VM, and others in a second.
const HELD_PORT: u16 = 7091;
const HELD: u64 = 64;
const PER_S: u32 = 4;
/// A step of a move lasts a second at least, and vIPs return one each quarter of a second, to gateways that have been ready for two
/// seconds and have copies. A loaded machine included, as in the scenario `gateway_moves`.
const PATIENCE: Duration = Duration::from_secs(40);
/// What a stream may lose in all: less than by the fastest takeover of a dead gateway at hello intervals of 100 ms
/// (docs/decisions/takeover.md), so no owner was replaced because it was silent. Most planned moves lose nothing, and the worst known one 36 ms.
const LOST_MAX: Duration = Duration::from_millis(225);
/// The downloads take 45 s, unless their rate is raised at the end. All other packets have no limit.
const SLOW: &str = "class add dev ix0 parent 1: classid 1:1 htb rate 3mbit";
const FAST: &str = "class change dev ix0 parent 1: classid 1:1 htb rate 1gbit";
const DOWNLOADS: &str = "table inet downloads {
    chain forward {
        type filter hook forward priority 0
        tcp sport 80 meta priority set 1:1
    }
}";

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    third_is_far(&mut options.topology)?;
    let lab = Lab::up(options).await?;
    copied_at(&lab, &STAYING).await?;
    shape(&lab, "qdisc add dev ix0 root handle 1: htb").await?;
    shape(&lab, SLOW).await?;
    execute(&lab, ISP, &["nft", DOWNLOADS]).await?;
    for (stream, lost) in with_traffic(&lab, grow_and_shrink).await? {
        ensure_timely!(lost < LOST_MAX, "{stream} has lost packets for {lost:?}");
    }
    Ok(())
}

/// Three gateways, the third one in a cluster of its own that has no VPC.
fn third_is_far(topology: &mut Topology) -> Outcome {
    let mut far = topology.cluster.clone();
    far.name = FAR.to_owned();
    far.vips = vec!["192.0.2.111".parse()?, "2001:db8:0:1::111".parse()?];
    topology.other_clusters.push(far);
    three_gateways(topology, Hellos::Slow)?;
    let third = topology.gateways.iter_mut().find(|gateway| gateway.name == NEWCOMER);
    third.ok_or_else(|| Failure::new("there is no third gateway"))?.cluster = Some(FAR.to_owned());
    Ok(())
}

/// Changes the rate of the downloads at the router before the gateways.
async fn shape(lab: &Lab, words: &str) -> Outcome {
    execute(lab, ISP, &[&["tc"], &words.split(' ').collect::<Vec<_>>()[..]].concat()).await
}

/// What happens under the downloads and the streams.
async fn grow_and_shrink(lab: &Lab, at: SocketAddr) -> Outcome {
    let held_at = SocketAddr::new(web_address(false), HELD_PORT).to_string();
    let _server = Probe::listening(lab, WEB, &["keep", &held_at]).await?;
    let mut connections = Connections { ports: established(lab).await?, at, held: Vec::new() };
    for vm in VMS {
        let words = ["hold", &held_at, &HELD.to_string(), &PER_S.to_string()];
        connections.held.push(Probe::listening(lab, vm, &words).await?);
    }
    let edge = &lab.state().topology.cluster.name;
    let home = lab.api().find::<Cluster>(edge, &[]).await?.id;
    let far = lab.api().find::<Cluster>(FAR, &[]).await?.id;

    move_newcomer(lab, home).await?;
    has_vips_of_both_families(lab).await?;
    copied_at(lab, &ALL).await?;
    connections.go_on(lab, &format!("{NEWCOMER} has joined")).await?;

    drain(lab, true).await?;
    owned_by(lab, &[NEWCOMER]).await?;
    connections.go_on(lab, &format!("{NEWCOMER} has all vIPs")).await?;

    drain(lab, false).await?;
    copied_at(lab, &ALL).await?;
    move_newcomer(lab, far).await?;
    owned_by(lab, &STAYING).await?;
    copied_at(lab, &STAYING).await?;
    connections.go_on(lab, &format!("{NEWCOMER} has left")).await?;
    for vm in VMS {
        ensure_timely!(copy(lab, vm, false).exists(), "{vm} had its file before everything had happened");
    }
    shape(lab, FAST).await
}

/// The connections of the VMs.
struct Connections {
    /// The public ports of downloads and streams.
    ports: Ports,
    /// Where new ones go.
    at: SocketAddr,
    /// A probe of each VM that holds idle connections and begins others.
    held: Vec<Probe>,
}

impl Connections {
    /// Downloads and streams have their public ports at the present owner, all idle connections are answered, all connections that began
    /// were answered, and others can begin.
    async fn go_on(&mut self, lab: &Lab, when: &str) -> Outcome {
        let owner = owner_of(lab, PUBLIC).await?;
        println!("    {when}: {PUBLIC} is at {owner}");
        same_ports(lab, &owner, &self.ports, when).await?;
        for (vm, probe) in VMS.iter().zip(&mut self.held) {
            let counts = probe.next().await?;
            for kind in ["held", "others"] {
                let broken = number(&counts[kind], "silent")? + number(&counts[kind], "ended")?;
                ensure!(broken == 0, "{when}: {vm}: {broken} connections ({kind}) broke: {counts}");
            }
            ensure!(number(&counts["held"], "answered")? == HELD, "{when}: {vm}: {counts}");
        }
        new_connections_work(lab, self.at, when).await
    }
}

/// Moves the newcomer to a cluster, and waits until it takes part there.
async fn move_newcomer(lab: &Lab, to: ClusterId) -> Outcome {
    let id = lab.api().find::<Gateway>(NEWCOMER, &[]).await?.id;
    // The gateways that stay may be late on a busy machine, and then the newcomer has to stay, too.
    eventually(PATIENCE, async || {
        let begun = lab.api().move_gateway(id, to, Some("a scenario"), None).await?;
        ensure!(begun.moving_to == Some(to), "{NEWCOMER} does not move: {begun:?}");
        Ok(())
    })
    .await?;
    let settled = |gateway: &Gateway| gateway.moving_to.or(gateway.moving_from).is_none();
    let there = lab.api().wait_until::<Gateway>(id, PATIENCE, settled).await?;
    ensure!(there.cluster == to, "{NEWCOMER} ended in {}", there.cluster);
    Ok(())
}

/// Waits until the newcomer has its share of the vIPs of its new cluster.
async fn has_vips_of_both_families(lab: &Lab) -> Outcome {
    eventually(PATIENCE, async || {
        let vips = lab.api().find::<Gateway>(NEWCOMER, &[]).await?.vips;
        let cluster = &lab.state().topology.cluster;
        let has = |ipv6: bool| vips.iter().any(|vip| vip.is_ipv6() == ipv6 && cluster.vips.contains(vip));
        ensure!(has(false) && has(true), "{NEWCOMER} owns {vips:?} of {:?}", cluster.vips);
        Ok(())
    })
    .await
}

/// Drains both gateways that stay, or ends that.
async fn drain(lab: &Lab, draining: bool) -> Outcome {
    for name in STAYING {
        let id = lab.api().find::<Gateway>(name, &[]).await?.id;
        lab.api().drain(id, draining, None).await?;
    }
    Ok(())
}

/// Waits until one of these gateways answers for the NAT gateway.
async fn owned_by(lab: &Lab, gateways: &[&str]) -> Outcome {
    eventually(PATIENCE, async || {
        let owner = owner_of(lab, PUBLIC).await?;
        ensure!(gateways.contains(&&*owner), "{PUBLIC} is at {owner}, at none of {gateways:?}");
        Ok(())
    })
    .await
}
