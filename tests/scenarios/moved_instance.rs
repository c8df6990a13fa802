//! An instance moves without notice while others send to it directly: its old host forwards their packets to
//! the gateway and redirects the senders, whose paths are repaired. The lab has a third host on the same underlay.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{
    Failure, Outcome, answers, ensure, ensure_timely, eventually, number, path_to, reaches, vni_packets,
};
use sluice_client::Instance;
use sluice_lab::{Host, Lab, Options};
use std::net::IpAddr;
use std::time::{Duration, Instant};

const PORT: u16 = 7023;
const PPS: u64 = 500;
const LEARNED: Duration = Duration::from_secs(5);
/// Limit of the time from attaching the new host's port to the first packet that arrives there: one round of
/// path requests (50 ms) and the gateway's update.
const REPAIR_MAX: Duration = Duration::from_millis(150);
const SENDER: &str = "host-a";
const OLD: &str = "host-b";
pub const NEW: &str = "host-d";

pub async fn scenario(ground: &Ground) -> Outcome {
    let options = with_another_host(ground)?;
    let lab = Lab::up(options).await?;
    moves(&lab).await
}

/// The standard topology with a third host on the underlay of the other two, which has no instance.
pub fn with_another_host(ground: &Ground) -> Result<Options, Failure> {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    let ipv4 = "192.0.2.24".parse().ok();
    let (name, switch) = (NEW.to_owned(), "tor-1".to_owned());
    options.topology.hosts.push(Host {
        name,
        switch,
        ipv4,
        ipv6: None,
        sessions: None,
        table_memory_mib: None,
    });
    Ok(options)
}

fn vtep(lab: &Lab, host: &str) -> Result<IpAddr, Failure> {
    let found = lab.state().topology.hosts.iter().find(|it| it.name == host).map(|it| it.vtep());
    found.ok_or_else(|| Failure::new(format!("no host {host}")))
}

async fn sum(lab: &Lab, node: &str, name: &str, label: (&str, &str)) -> Result<f64, Failure> {
    Ok(lab.metrics(node).await?.sum(name, &[label]))
}

async fn moves(lab: &Lab) -> Outcome {
    let vm = lab.add_vm("mover", "web", "front", OLD).await?;
    let ways: Vec<_> = vm.addresses().into_iter().map(|address| ("web-1", "mover", address)).collect();
    let streams = Streams::to(lab, &ways, PORT, PPS).await?;
    leads_to(lab, &vm.addresses(), vm.vni, OLD).await?;

    let unplugged = Instant::now();
    let moved = lab.begin_move("mover", &vm, NEW).await?;
    eventually(LEARNED, || async {
        let told = sum(lab, OLD, "sluice_redirects_total", ("outcome", "notified")).await?;
        ensure!(told >= 2.0, "{OLD} did not tell that both addresses have left: {told}");
        let redirected = sum(lab, SENDER, "sluice_paths_removed_total", ("reason", "redirected")).await?;
        ensure!(redirected >= 2.0, "{SENDER} was not redirected: {redirected}");
        Ok(())
    })
    .await?;
    lab.end_move(&moved).await?;
    let away = unplugged.elapsed();
    leads_to(lab, &vm.addresses(), vm.vni, NEW).await?;
    let arrived = vni_packets(lab, NEW, vm.vni).await?;
    eventually(LEARNED, || async {
        let more = vni_packets(lab, NEW, vm.vni).await? - arrived;
        ensure!(more >= PPS as f64, "only {more} packets arrived at {NEW} since the path was repaired");
        Ok(())
    })
    .await?;
    for (what, result) in streams.results().await? {
        let (sent, received) = (number(&result, "sent")?, number(&result, "received")?);
        // What is sent while the instance has no port is lost, in one piece; nothing is lost before or after. A
        // path that is repaired late, or a redirect that loops, loses more.
        let ranges = result["lost"].as_array().cloned().unwrap_or_default();
        ensure!(received < sent && ranges.len() == 1, "{what}: {received} of {sent}: {}", result["lost"]);
        let (lost, lost_max) = (sent - received, (away + REPAIR_MAX).as_secs_f64() * PPS as f64);
        println!(
            "    {what}: {lost} packets lost while the instance had no port for {} ms",
            away.as_millis()
        );
        ensure_timely!(lost as f64 <= lost_max, "{what}: {lost} packets lost, {lost_max:.0} at most");
    }
    reaches_both(lab, &moved.addresses()).await?;
    reaches(lab, "web-1", "web-3").await?;
    lab.api().delete::<Instance>(vm.id, None).await?;
    lab.unplug_vm("mover").await?;
    Ok(())
}

async fn reaches_both(lab: &Lab, addresses: &[IpAddr]) -> Outcome {
    for target in addresses {
        answers(lab, "web-1", *target, &[]).await?;
    }
    Ok(())
}

/// Waits until the sender's host has paths to a host.
async fn leads_to(lab: &Lab, destinations: &[IpAddr], vni: u32, host: &str) -> Outcome {
    let wanted = vtep(lab, host)?.to_string();
    eventually(LEARNED, || async {
        for destination in destinations {
            let path = path_to(lab, SENDER, vni, *destination).await?;
            let leads = path.as_ref().is_some_and(|path| path["host"] == wanted && path["installed"] == true);
            ensure!(leads, "{SENDER} has no path to {destination} by {host}: {path:?}");
        }
        Ok(())
    })
    .await
}
