//! A gateway reboots, and another one fails before the first has its forwarding tables again: the third gateway takes
//! over, and the rebooted one gets vIPs only when its tables are whole. First with the controller, then without it: then
//! the rebooted gateway stays without tables, and owns nothing.
//!
//! Loading the tables takes longer than vIPs wait for a gateway that is back (2 s), because the gateway's management
//! network is slow.
//!
//! Catches: a gateway that counts as ready whatever its tables contain; candidates that are chosen by load only; vIPs that
//! return too early.

use crate::Ground;
use crate::support::{Failure, Outcome, ensure, eventually};
use crate::takeover::{Bench, Hellos, RETURN_MAX, STEADY, TAKEOVER_MAX, lab_of_three};
use serde_json::Value;
use sluice_client::{NewHost, NewInstance, NewSubnet, NewVpc, Vpc};
use sluice_lab::{CONTROLLER, Lab};
use std::time::{Duration, Instant};

/// The gateway that reboots, and its port of the switch.
const REBOOTED: (&str, &str) = ("gw-b", "p1");
/// The gateway that fails then.
const FAILS: (&str, &str) = ("gw-a", "p0");
const HEIR: &str = "gw-c";
/// Number of instances. Each has an IPv4 and an IPv6 address, and takes about 50 bytes of the stream.
const INSTANCES: usize = 40_000;
/// Instances in one call of the API.
const BULK: usize = 10_000;
/// Rate of the management network of the rebooted gateway: the instances need about 16 s.
const STREAM_RATE: &str = "1mbit";
/// vIPs do not return to a gateway that was away for a shorter time.
const PREEMPT_DELAY: Duration = Duration::from_secs(2);
const LOADED_MAX: Duration = Duration::from_secs(60);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Slow).await?;
    fill_tables(&lab).await?;
    let bench = Bench::new(&lab).await?;
    bench.owners_preferred().await?;
    slow_stream(&lab).await?;
    with_controller(&bench).await?;
    without_controller(&bench).await
}

async fn with_controller(bench: &Bench<'_>) -> Outcome {
    let what = "a gateway fails while another one loads its tables";
    let lab = bench.lab;
    let begin = reboot(bench).await?;
    other_gateway_fails(bench, what).await?;
    eventually(LOADED_MAX, || async {
        ensure!(tables(lab, REBOOTED.0, "current").await?, "{} has not loaded its tables", REBOOTED.0);
        Ok(())
    })
    .await?;
    println!("    {} had its tables after {:.1} s", REBOOTED.0, begin.elapsed().as_secs_f64());
    bring_back(bench, what).await
}

async fn without_controller(bench: &Bench<'_>) -> Outcome {
    let what = "a gateway fails while another one has no tables, without a controller";
    let lab = bench.lab;
    lab.kill(CONTROLLER).await?;
    reboot(bench).await?;
    other_gateway_fails(bench, what).await?;
    lab.restart(CONTROLLER)?;
    lab.api().wait_ready(RETURN_MAX).await?;
    bring_back(bench, what).await
}

/// The machine of a gateway starts again: its programs and tables are lost, what it saved on disk is not.
async fn reboot(bench: &Bench<'_>) -> Result<Instant, Failure> {
    let (lab, (gateway, port)) = (bench.lab, REBOOTED);
    bench.on_switch(&["ip", "link", "set", port, "down"]).await?;
    lab.kill(gateway).await?;
    std::fs::remove_dir_all(lab.paths().pin_dir(gateway))?;
    // The others have its vIPs.
    eventually(RETURN_MAX, || async {
        let owned = vips(lab, FAILS.0).await? + vips(lab, HEIR).await?;
        ensure!(owned == lab.state().topology.cluster.vips.len(), "the others own only {owned} vIPs");
        Ok(())
    })
    .await?;
    bench.on_switch(&["ip", "link", "set", port, "up"]).await?;
    let begin = Instant::now();
    lab.restart(gateway)?;
    eventually(RETURN_MAX, || async {
        ensure!(tables(lab, gateway, "partial").await?, "{gateway} does not say that it has no tables");
        Ok(())
    })
    .await?;
    Ok(begin)
}

/// No vIP returns to the rebooted gateway, and another gateway fails: the third one has all vIPs.
async fn other_gateway_fails(bench: &Bench<'_>, what: &str) -> Outcome {
    let lab = bench.lab;
    let streams = bench.streams_until_ended().await?;
    tokio::time::sleep(PREEMPT_DELAY).await;
    streams.end().await?;
    let streams = bench.streams().await?;
    tokio::time::sleep(STEADY).await;
    bench.on_switch(&["ip", "link", "set", FAILS.1, "down"]).await?;
    lab.kill(FAILS.0).await?;
    bench.bounded_loss(what, streams, TAKEOVER_MAX).await?;
    let (heir, rebooted) = (vips(lab, HEIR).await?, vips(lab, REBOOTED.0).await?);
    ensure!((heir, rebooted) == (lab.state().topology.cluster.vips.len(), 0), "{what}: {heir}, {rebooted}");
    ensure!(tables(lab, REBOOTED.0, "partial").await?, "{what}: {} has tables already", REBOOTED.0);
    Ok(())
}

/// The gateway that failed returns, and with it all vIPs.
async fn bring_back(bench: &Bench<'_>, what: &str) -> Outcome {
    bench.on_switch(&["ip", "link", "set", FAILS.1, "up"]).await?;
    bench.lab.restart(FAILS.0)?;
    bench.returns(what, FAILS.0).await
}

/// Number of vIPs that a gateway answers for.
async fn vips(lab: &Lab, gateway: &str) -> Result<usize, Failure> {
    Ok(lab.metrics(gateway).await?.sum("sluice_cluster_vips", &[]) as usize)
}

/// Whether a gateway's tables are in this state.
async fn tables(lab: &Lab, gateway: &str, state: &str) -> Result<bool, Failure> {
    Ok(lab.metrics(gateway).await?.sum("sluice_cluster_tables", &[("tables", state)]) == 1.0)
}

/// Creates instances on a host that does not exist, in a VPC of the same cluster.
async fn fill_tables(lab: &Lab) -> Outcome {
    let api = lab.api();
    let like = api.get::<Vpc>(lab.vpc("web")?.id).await?;
    let host = NewHost { name: "many".to_owned(), vtep: "192.0.2.99".parse()?, agent: false };
    let host = api.create((), &host).await?.object.id;
    let vpc = NewVpc {
        name: "many".to_owned(),
        tenant: like.tenant,
        cluster: Some(like.cluster),
        vni: None,
        mtu: None,
        offload_kbps: None,
    };
    let vpc = api.create((), &vpc).await?.object.id;
    let (ipv4, ipv6) = (Some("10.64.0.0/12".parse()?), Some("fd00:64::/64".parse()?));
    let subnet = NewSubnet { name: "many".to_owned(), ipv4, ipv6, dns: Vec::new() };
    let subnet = api.create(vpc, &subnet).await?.object.id;
    let instances: Vec<NewInstance> = (0..INSTANCES)
        .map(|number| NewInstance {
            name: format!("many-{number}"),
            subnet,
            host,
            mac: None,
            ipv4: None,
            ipv6: None,
        })
        .collect();
    for bulk in instances.chunks(BULK) {
        api.create_instances(vpc, bulk).await?;
    }
    Ok(())
}

/// Limits what arrives at the rebooted gateway from the management network.
async fn slow_stream(lab: &Lab) -> Outcome {
    let shown = lab.exec(REBOOTED.0, &["ip", "-j", "link", "show", "mgmt0"]).await?;
    let links: Value = serde_json::from_slice(&shown.stdout)?;
    let index = links[0]["link_index"].as_u64().ok_or_else(|| Failure::new(format!("no peer: {links}")))?;
    let port = nix::net::if_::if_indextoname(u32::try_from(index)?)?;
    let port = port.to_string_lossy();
    let limit = ["rate", STREAM_RATE, "burst", "16kb", "limit", "64kb"];
    let qdisc = ["qdisc", "add", "dev", &port, "root", "tbf"];
    let output = tokio::process::Command::new("tc").args(qdisc).args(limit).output().await?;
    ensure!(output.status.success(), "tc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
