//! An elephant goes from host to host after its first packets, in both directions and
//! both families, also between peered VPCs; nothing is lost when it changes its path. If the families of the
//! underlays differ it stays with the gateway.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, address, ensure, eventually, path_to, reaches, vni_packets};
use sluice_lab::Lab;
use std::net::IpAddr;
use std::time::Duration;

const PORT: u16 = 7021;
const PPS: u64 = 500;
const LEARNED: Duration = Duration::from_secs(5);
const GATEWAYS: [&str; 2] = ["gw-a", "gw-b"];
/// Packets that must arrive while the gateways see none.
const ENOUGH: f64 = 300.0;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    for (to, ipv6) in [("web-3", false), ("web-3", true), ("db-1", false), ("db-1", true)] {
        goes_direct(lab, "web-1", to, ipv6).await?;
    }
    stays_with_the_gateway(lab, "web-1", "db-2").await
}

async fn packets(lab: &Lab, nodes: &[&str], vnis: &[u32]) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for node in nodes {
        for vni in vnis {
            sum += vni_packets(lab, node, *vni).await?;
        }
    }
    Ok(sum)
}

/// Between two VMs in one family.
pub async fn goes_direct(lab: &Lab, from: &str, to: &str, ipv6: bool) -> Outcome {
    let (sender, receiver) = (lab.vm(from)?, lab.vm(to)?);
    let (there, back) = (address(receiver, ipv6)?, address(sender, ipv6)?);
    let streams = Streams::start(lab, &[(from, to, ipv6)], PORT, PPS).await?;
    let both = [(sender, there), (receiver, back)];
    eventually(LEARNED, || async {
        for (vm, destination) in both {
            let path = path_to(lab, &vm.host, vm.vni, destination).await?;
            ensure!(path.is_some(), "{} has learned no path to {destination}", vm.host);
        }
        Ok(())
    })
    .await?;
    let path = path_to(lab, &sender.host, sender.vni, there).await?.unwrap_or_default();
    ensure!(path["mac"] == receiver.mac.to_string(), "{path}: {to} has another MAC: {}", receiver.mac);
    ensure!(path["path_vni"] == receiver.vni, "{path}: {to} is in network {}", receiver.vni);
    ensure!(path["installed"] == true, "{path} is not in the tables");

    // When the first of these have arrived, so have all packets that were in flight.
    let vnis = [sender.vni, receiver.vni];
    let hosts = [receiver.host.as_str()];
    rise(lab, &hosts, &vnis, 50.0).await?;
    let gateways = packets(lab, &GATEWAYS, &vnis).await?;
    rise(lab, &hosts, &vnis, ENOUGH).await?;
    let through = packets(lab, &GATEWAYS, &vnis).await? - gateways;
    ensure!(through == 0.0, "{from} -> {there}: {through} packets still went through the gateways");
    streams.end().await
}

/// Waits until the nodes have counted this many more packets.
async fn rise(lab: &Lab, nodes: &[&str], vnis: &[u32], by: f64) -> Outcome {
    let before = packets(lab, nodes, vnis).await?;
    eventually(LEARNED, || async {
        let risen = packets(lab, nodes, vnis).await? - before;
        ensure!(risen >= by, "only {risen} packets arrived at {nodes:?}");
        Ok(())
    })
    .await
}

/// The underlays of the hosts have no address family in common.
async fn stays_with_the_gateway(lab: &Lab, from: &str, to: &str) -> Outcome {
    let (sender, receiver) = (lab.vm(from)?, lab.vm(to)?);
    let there: IpAddr = address(receiver, false)?;
    let seen = async || {
        let mut sum = 0.0;
        for gateway in GATEWAYS {
            sum += lab.metrics(gateway).await?.sum("sluice_flow_events_total", &[("outcome", "no_path")]);
        }
        Ok::<_, Failure>(sum)
    };
    let before = seen().await?;
    let streams = Streams::start(lab, &[(from, to, false)], PORT, PPS).await?;
    eventually(LEARNED, || async {
        ensure!(seen().await? > before, "no gateway saw the elephant {from} -> {there}");
        Ok(())
    })
    .await?;
    streams.end().await?;
    ensure!(path_to(lab, &sender.host, sender.vni, there).await?.is_none(), "there is a path to {there}");
    reaches(lab, from, to).await
}
