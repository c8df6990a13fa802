//! A gateway reboots, and another one fails before the first has its forwarding tables again: the third gateway takes
//! over, and the rebooted one gets vIPs only when its tables are whole. First with the controller, then without it: then
//! the rebooted gateway stays without tables, and owns nothing.
//!
//! At last a gateway is cut off from the controller: the others get a change that it does not get, and take its vIPs.
//!
//! Loading the tables takes longer than vIPs wait for a gateway that is back (2 s), because the gateway's management
//! network is slow.
//!
//! Catches: a gateway that counts as ready whatever its tables contain; candidates that are chosen by load only; vIPs that
//! return too early; a gateway that keeps its vIPs while it gets no changes.

use crate::Ground;
use crate::support::{Failure, Outcome, ensure, ensure_timely, eventually};
use crate::takeover::{Bench, Hellos, RETURN_MAX, TAKEOVER_MAX, lab_of_three};
use serde_json::Value;
use sluice_client::{NewHost, NewInstance, NewSubnet, NewVpc, Vpc};
use sluice_lab::{CONTROLLER, Lab};
use std::time::{Duration, Instant};

/// The gateway that reboots, and its port of the switch.
const REBOOTED: (&str, &str) = ("gw-b", "p1");
/// The other gateways.
const OTHERS: [&str; 2] = ["gw-a", "gw-c"];
/// The gateway that is cut off from the controller.
const CUT_OFF: &str = REBOOTED.0;
/// Name of the VPC of the instances.
const FILLER: &str = "many";
/// Number of instances. Each has an IPv4 and an IPv6 address, and takes about 50 bytes of the stream.
const INSTANCES: usize = 60_000;
/// Instances in one call of the API.
const BULK: usize = 10_000;
/// Rates of the management network of the rebooted gateway: the first until another one has failed, by which the instances
/// need about 24 s, then the second.
const STREAM_RATES: [&str; 2] = ["1mbit", "8mbit"];
/// vIPs do not return to a gateway that was away for a shorter time.
const PREEMPT_DELAY: Duration = Duration::from_secs(2);
const LOADED_MAX: Duration = Duration::from_secs(60);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Slow).await?;
    let newest = fill_tables(&lab).await?;
    let bench = Bench::new(&lab).await?;
    bench.owners_preferred().await?;
    limit_stream(&lab, STREAM_RATES[0]).await?;
    with_controller(&bench).await?;
    without_controller(&bench).await?;
    cut_off(&bench, &newest).await
}

async fn limit_stream(lab: &Lab, rate: &str) -> Outcome {
    let port = management_port(lab, REBOOTED.0).await?;
    let limit = format!("tc qdisc replace dev {port} root tbf rate {rate} burst 16kb limit 64kb");
    on_machine(&limit).await.map(drop)
}

async fn with_controller(bench: &Bench<'_>) -> Outcome {
    let what = "a gateway fails while another one loads its tables";
    let lab = bench.lab;
    let begin = reboot(bench).await?;
    let failed = other_gateway_fails(bench, what).await?;
    limit_stream(lab, STREAM_RATES[1]).await?;
    eventually(LOADED_MAX, || async {
        ensure!(tables(lab, REBOOTED.0, "current").await?, "{} has not loaded its tables", REBOOTED.0);
        Ok(())
    })
    .await?;
    println!("    {} had its tables after {:.1} s", REBOOTED.0, begin.elapsed().as_secs_f64());
    bring_back(bench, what, &failed).await
}

async fn without_controller(bench: &Bench<'_>) -> Outcome {
    let what = "a gateway fails while another one has no tables, without a controller";
    let lab = bench.lab;
    lab.kill(CONTROLLER).await?;
    reboot(bench).await?;
    let failed = other_gateway_fails(bench, what).await?;
    lab.restart(CONTROLLER)?;
    lab.api().wait_ready(RETURN_MAX).await?;
    bring_back(bench, what, &failed).await
}

/// A gateway whose management network fails forwards what it knows until the others know more.
async fn cut_off(bench: &Bench<'_>, newest: &NewInstance) -> Outcome {
    let what = "a gateway gets no changes";
    let lab = bench.lab;
    let port = management_port(lab, CUT_OFF).await?;
    let streams = bench.streams_until_ended().await?;
    on_machine(&format!("ip link set {port} down")).await?;
    tokio::time::sleep(PREEMPT_DELAY).await;
    ensure!(tables(lab, CUT_OFF, "current").await?, "{what}: it is behind, though nothing changed");
    // A gateway that stands still for longer than its peers wait loses its vIPs for seconds.
    ensure_timely!(vips(lab, CUT_OFF).await? > 0, "{what}: it lost its vIPs, though nothing changed");
    let vpc = lab.api().find::<Vpc>(FILLER, &[]).await?;
    lab.api().create(vpc.id, newest).await?;
    eventually(RETURN_MAX, || async {
        ensure!(tables(lab, CUT_OFF, "behind").await?, "{CUT_OFF} does not say that it is behind");
        others_own_all(lab).await
    })
    .await?;
    streams.end().await?;
    on_machine(&format!("ip link set {port} up")).await?;
    bench.returns(what, CUT_OFF).await
}

/// The gateways that did not reboot answer for all vIPs.
async fn others_own_all(lab: &Lab) -> Outcome {
    let mut owned = 0;
    for gateway in OTHERS {
        owned += vips(lab, gateway).await?;
    }
    ensure!(owned == lab.state().topology.cluster.vips.len(), "the others own only {owned} vIPs");
    Ok(())
}

/// The machine of a gateway starts again: its programs and tables are lost, what it saved on disk is not.
async fn reboot(bench: &Bench<'_>) -> Result<Instant, Failure> {
    let (lab, (gateway, port)) = (bench.lab, REBOOTED);
    bench.on_switch(&["ip", "link", "set", port, "down"]).await?;
    lab.kill(gateway).await?;
    std::fs::remove_dir_all(lab.paths().pin_dir(gateway))?;
    eventually(RETURN_MAX, || others_own_all(lab)).await?;
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

/// No vIP returns to the rebooted gateway, and another gateway fails: the third one has all vIPs. Returns the gateway that
/// failed, and its port of the switch.
async fn other_gateway_fails(bench: &Bench<'_>, what: &str) -> Result<(String, String), Failure> {
    let lab = bench.lab;
    let streams = bench.streams_until_ended().await?;
    tokio::time::sleep(PREEMPT_DELAY).await;
    streams.end().await?;
    // The rebooted gateway forwards nothing, so this is one of the others.
    let (streams, fails, port) = bench.streams_to_interrupt().await?;
    bench.on_switch(&["ip", "link", "set", &port, "down"]).await?;
    lab.kill(&fails).await?;
    bench.bounded_loss(what, streams, TAKEOVER_MAX).await?;
    let third = OTHERS.into_iter().find(|gateway| *gateway != fails).unwrap_or(REBOOTED.0);
    let (third, rebooted) = (vips(lab, third).await?, vips(lab, REBOOTED.0).await?);
    ensure!(third == lab.state().topology.cluster.vips.len(), "{what}: the third gateway owns {third} vIPs");
    ensure!(rebooted == 0, "{what}: the rebooted gateway owns {rebooted} vIPs");
    ensure_timely!(tables(lab, REBOOTED.0, "partial").await?, "{what}: {} has tables already", REBOOTED.0);
    Ok((fails, port))
}

/// The gateway that failed returns, and with it all vIPs.
async fn bring_back(bench: &Bench<'_>, what: &str, (gateway, port): &(String, String)) -> Outcome {
    bench.on_switch(&["ip", "link", "set", port, "up"]).await?;
    bench.lab.restart(gateway)?;
    bench.returns(what, gateway).await
}

/// Number of vIPs that a gateway answers for.
async fn vips(lab: &Lab, gateway: &str) -> Result<usize, Failure> {
    Ok(cluster_status(lab, gateway).await?["vips"].as_array().map_or(0, Vec::len))
}

/// Whether a gateway's tables are in this state.
async fn tables(lab: &Lab, gateway: &str, state: &str) -> Result<bool, Failure> {
    Ok(cluster_status(lab, gateway).await?["tables"] == state)
}

/// What a gateway says of its cluster, also while its management network fails.
async fn cluster_status(lab: &Lab, gateway: &str) -> Result<Value, Failure> {
    let (sluice, socket) = (lab.state().binary.display(), lab.paths().socket(gateway));
    let status = format!("{sluice} agent cluster --output json --socket {}", socket.display());
    Ok(serde_json::from_slice(&on_machine(&status).await?)?)
}

/// Creates instances on a host that does not exist, in a VPC of the same cluster. Returns one more, which is not created.
async fn fill_tables(lab: &Lab) -> Result<NewInstance, Failure> {
    let api = lab.api();
    let like = api.get::<Vpc>(lab.vpc("web")?.id).await?;
    let host = NewHost { name: FILLER.to_owned(), vtep: "192.0.2.99".parse()?, agent: false };
    let host = api.create((), &host).await?.object.id;
    let vpc = NewVpc {
        name: FILLER.to_owned(),
        tenant: like.tenant,
        cluster: Some(like.cluster),
        vni: None,
        mtu: None,
        offload_kbps: None,
        internet_meter: None,
    };
    let vpc = api.create((), &vpc).await?.object.id;
    let (ipv4, ipv6) = (Some("10.64.0.0/12".parse()?), Some("fd00:64::/64".parse()?));
    let subnet = NewSubnet { name: FILLER.to_owned(), ipv4, ipv6, ipv6_mode: None, dns: Vec::new() };
    let subnet = api.create(vpc, &subnet).await?.object.id;
    let instance = |number: usize| NewInstance {
        name: format!("{FILLER}-{number}"),
        subnet,
        host,
        mac: None,
        ipv4: None,
        ipv6: None,
        security_groups: Some(Vec::new()),
        settings: Default::default(),
    };
    let instances: Vec<NewInstance> = (0..INSTANCES).map(instance).collect();
    for bulk in instances.chunks(BULK) {
        api.create_instances(vpc, bulk).await?;
    }
    Ok(instance(INSTANCES))
}

/// The other end of a gateway's management interface.
async fn management_port(lab: &Lab, gateway: &str) -> Result<String, Failure> {
    let shown = lab.exec(gateway, &["ip", "-j", "link", "show", "mgmt0"]).await?;
    let links: Value = serde_json::from_slice(&shown.stdout)?;
    let index = links[0]["link_index"].as_u64().ok_or_else(|| Failure::new(format!("no peer: {links}")))?;
    Ok(nix::net::if_::if_indextoname(u32::try_from(index)?)?.to_string_lossy().into_owned())
}

/// Runs a command outside the lab's namespaces, where the other ends of management interfaces are. Returns its output.
async fn on_machine(command: &str) -> Result<Vec<u8>, Failure> {
    let output = tokio::process::Command::new("sh").args(["-c", command]).output().await?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
