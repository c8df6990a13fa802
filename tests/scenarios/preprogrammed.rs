//! Preprogrammed, a model to compare with: hosts have all paths before anything is
//! sent, so no packet to an instance of another host passes a gateway, the first
//! one included. Packets without a path still go to the cluster: between underlays of
//! different families. Paths follow an instance that moves.

use crate::Ground;
use crate::support::{Failure, Outcome, address, answers, ensure, eventually, path_to, reaches, vni_packets};
use sluice_client::Instance;
use sluice_lab::{Lab, Options, VmState};
use std::time::Duration;

const GATEWAYS: [&str; 2] = ["gw-a", "gw-b"];
const TOLD: Duration = Duration::from_secs(10);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    options.model = Some("preprogrammed".to_owned());
    let lab = Lab::up(options).await?;
    for host in ["host-a", "host-b", "host-c"] {
        lab.synchronized(host, TOLD).await?;
    }
    let pairs = [("web-1", "web-3"), ("web-3", "web-2"), ("web-1", "db-1"), ("shop-2", "shop-1")];
    for (from, to) in pairs {
        for ipv6 in [false, true] {
            has_path(&lab, from, to, ipv6).await?;
        }
        // The first packets between the two, and their answers.
        reaches(&lab, from, to).await?;
    }
    ensure!(forwarded(&lab).await? == 0.0, "gateways forwarded {} packets", forwarded(&lab).await?);

    // The underlays of these hosts have no address family in common.
    reaches(&lab, "web-1", "db-2").await?;
    let through = forwarded(&lab).await?;
    ensure!(through >= 12.0, "gateways counted only {through} packets between the underlays");
    for gateway in GATEWAYS {
        let events = lab.metrics(gateway).await?.sum("sluice_flow_events_total", &[]);
        ensure!(events == 0.0, "{gateway} detected {events} elephants");
    }
    paths_follow(&lab).await
}

/// Packets of all networks that the gateways have forwarded.
async fn forwarded(lab: &Lab) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for gateway in GATEWAYS {
        for vm in ["web-1", "db-1", "shop-1"] {
            sum += vni_packets(lab, gateway, lab.vm(vm)?.vni).await?;
        }
    }
    Ok(sum)
}

async fn has_path(lab: &Lab, from: &str, to: &str, ipv6: bool) -> Outcome {
    let (sender, receiver) = (lab.vm(from)?, lab.vm(to)?);
    let there = address(receiver, ipv6)?;
    let path = path_to(lab, &sender.host, sender.vni, there).await?.unwrap_or_default();
    ensure!(path["fixed"] == true, "{from} has no fixed path to {there}: {path}");
    ensure!(path["path_vni"] == receiver.vni, "{path}: {to} is in network {}", receiver.vni);
    Ok(())
}

/// An instance is created on host-b, moves to host-a and is deleted; the other host's paths follow.
async fn paths_follow(lab: &Lab) -> Outcome {
    let vm = lab.add_vm("mover", "web", "front", "host-b").await?;
    leads(lab, "host-a", &vm, Some("host-b")).await?;
    let moved = lab.begin_move("mover", &vm, "host-a").await?;
    lab.end_move(&moved).await?;
    leads(lab, "host-b", &vm, Some("host-a")).await?;
    leads(lab, "host-a", &vm, None).await?;
    let before = forwarded(lab).await?;
    for target in moved.addresses() {
        answers(lab, "web-3", target, &[]).await?;
    }
    let through = forwarded(lab).await? - before;
    ensure!(through == 0.0, "{through} packets to an instance that moved passed a gateway");
    lab.api().delete::<Instance>(vm.id, None).await?;
    leads(lab, "host-b", &vm, None).await?;
    lab.unplug_vm("mover").await?;
    Ok(())
}

/// Waits until the paths of a host to both addresses lead to a host, or no longer exist.
async fn leads(lab: &Lab, host: &str, vm: &VmState, to: Option<&str>) -> Outcome {
    let hosts = &lab.state().topology.hosts;
    let vtep =
        to.and_then(|to| hosts.iter().find(|host| host.name == to)).map(|host| host.vtep().to_string());
    eventually(TOLD, || async {
        for address in vm.addresses() {
            let path = path_to(lab, host, vm.vni, address).await?;
            let there = path.as_ref().and_then(|path| path["host"].as_str());
            ensure!(there == vtep.as_deref(), "{host} has {path:?} to {address}, not one to {to:?}");
        }
        Ok(())
    })
    .await
}
