//! Instances without a network class. First one class is the default: they have its limits, the next agent of their host knows them without the
//! controller's help, an own class and a rate come before it, and a class that is not the default any more leaves no limit. Without a default class, a
//! flood on a contended host is clamped to its share, and a neighbor within its own share is not limited, in both families.
//!
//! Catches: a default that does not reach hosts or ports, or survives its end; an own class that the default replaces; instances without a class
//! that are not counted, take their neighbors' share, or are limited while there is enough for all.

use crate::Ground;
use crate::support::{Failure, Outcome, address, ensure, ensure_timely, eventually, iperf};
use futures::future::try_join;
use serde_json::{Value, json};
use sluice_client::{Instance, NetworkClass, NewNetworkClass};
use sluice_lab::{Lab, Options};
use sluice_types::{Allowance, NetworkClassId};
use std::time::Duration;
use tokio::time::sleep;

/// Both instances are on this host, and send to the third one on another host.
const HOST: &str = "host-a";
const FLOODER: &str = "web-1";
const NEIGHBOR: &str = "web-2";
const RECEIVER: &str = "web-3";
/// What the default class grants, in Mbit/s.
const RATE: u32 = 20;
/// More than the limit, for what the bucket had in the beginning.
const LAST_MAX: f64 = 1.15;
const LAST_MIN: f64 = 0.7;
/// What the host has, of which 90% are used before it is contended, and what both instances send, in Mbit/s.
const CAPACITY: u32 = 100;
const FLOOD: u32 = 200;
const LITTLE: u32 = 20;
/// The share of the flood is what the neighbor leaves. When the clamp ends, the flood has all for a step of 0.1 s, once in about 1.1 s; the
/// first time it has besides what a full bucket holds.
const PASSES: f64 = 130.0;
const PASSES_MIN: f64 = 40.0;
const PAYLOAD: u32 = 1300;
const SECONDS: &str = "6";
/// Datagrams of the neighbor that may be lost: its queues are the kernel's, and the machine is small.
const LOST: f64 = 0.02;
const PROGRAMMED: Duration = Duration::from_secs(10);
const BACK: Duration = Duration::from_secs(75);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    let class = the_default_limits_all(&lab).await?;
    own_terms_come_first(&lab, class).await?;
    the_end_of_the_default_ends_its_limits(&lab, class).await?;
    contend(&lab).await?;
    for ipv6 in [false, true] {
        a_flood_has_its_share(&lab, ipv6).await?;
    }
    Ok(())
}

/// A VM's port, as its host shows it.
async fn port(lab: &Lab, vm: &str) -> Result<Value, Failure> {
    let vm = lab.vm(vm)?;
    let socket = lab.paths().socket(&vm.host).display().to_string();
    let argv = ["port", "show", &vm.port, "--output", "json", "--socket", &socket];
    let output = tokio::process::Command::new(&lab.state().binary).args(argv).output().await?;
    ensure!(output.status.success(), "port show: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What a VM sends in Mbit/s: its use, its limit, and why it is limited.
async fn sent(lab: &Lab, vm: &str) -> Result<Value, Failure> {
    let shown = port(lab, vm).await?;
    let all = shown["credit"].as_array();
    let found = all.and_then(|all| all.iter().find(|one| one["dimension"] == "sent_mbps"));
    found.cloned().ok_or_else(|| Failure::new(format!("{vm} is not counted: {shown}")))
}

/// Waits until a VM has these terms, and this limit of what it sends.
async fn has_terms(lab: &Lab, vm: &str, terms: &str, limit: Option<u32>) -> Outcome {
    eventually(PROGRAMMED, async || {
        let (found, sent) = (port(lab, vm).await?["terms"].clone(), sent(lab, vm).await?);
        ensure!(
            found == terms && sent["limit"] == json!(limit),
            "{vm} has the terms {found}, and sends {sent}"
        );
        Ok(())
    })
    .await
}

/// What TCP receives at the end of a stream from the flooder, in Mbit/s.
async fn stream(lab: &Lab, ipv6: bool) -> Result<f64, Failure> {
    let target = address(lab.vm(RECEIVER)?, ipv6)?;
    let report = iperf(lab, (FLOODER, RECEIVER), target, 5231, &["-i", "1", "-t", "5"]).await?;
    number(&report["end"]["sum_received"], "bits_per_second").map(|bits| bits / 1e6)
}

fn number(report: &Value, key: &str) -> Result<f64, Failure> {
    report[key].as_f64().ok_or_else(|| Failure::new(format!("no number `{key}` in {report}")))
}

async fn the_default_limits_all(lab: &Lab) -> Result<NetworkClassId, Failure> {
    has_terms(lab, FLOODER, "none", None).await?;
    let mbps = Some(Allowance { base: RATE, max: RATE, clamp: RATE, credit: 0 });
    let name = "basic".to_owned();
    let class = NewNetworkClass { name, mbps, kpps: None, cpu_permille: None, is_default: true };
    let class = lab.api().create((), &class).await?.object.id;
    lab.api().wait_programmed::<NetworkClass>(class, PROGRAMMED).await?;
    for vm in [FLOODER, NEIGHBOR, RECEIVER] {
        has_terms(lab, vm, "default_class", Some(RATE)).await?;
    }
    for ipv6 in [false, true] {
        let mbps = stream(lab, ipv6).await?;
        println!("    TCP with the default class, IPv6 {ipv6}: {mbps:.1} of {RATE} Mbit/s");
        let part = mbps / f64::from(RATE);
        ensure!(part < LAST_MAX + 0.1, "{mbps:.1} Mbit/s, {RATE} may be");
        ensure_timely!(part > LAST_MIN, "only {mbps:.1} Mbit/s of {RATE}");
    }
    Ok(class)
}

async fn own_terms_come_first(lab: &Lab, class: NetworkClassId) -> Outcome {
    let mbps = Some(Allowance { base: 30, max: 30, clamp: 30, credit: 0 });
    let own =
        NewNetworkClass { name: "own".to_owned(), mbps, kpps: None, cpu_permille: None, is_default: false };
    let own = lab.api().create((), &own).await?.object.id;
    let id = lab.vm(FLOODER)?.id;
    lab.api().update::<Instance>(id, &json!({ "network_class": own }), None).await?;
    has_terms(lab, FLOODER, "class", Some(30)).await?;
    let rate = json!({ "network_class": null, "qos": { "dscp": null, "rate_mbps": 40 } });
    lab.api().update::<Instance>(id, &rate, None).await?;
    has_terms(lab, FLOODER, "rate", None).await?;
    let none = json!({ "qos": { "dscp": null, "rate_mbps": null } });
    lab.api().update::<Instance>(id, &none, None).await?;
    has_terms(lab, FLOODER, "default_class", Some(RATE)).await?;
    // Another one takes its place, and back.
    lab.api().update::<NetworkClass>(own, &json!({ "is_default": true }), None).await?;
    has_terms(lab, FLOODER, "default_class", Some(30)).await?;
    lab.api().update::<NetworkClass>(class, &json!({ "is_default": true }), None).await?;
    has_terms(lab, FLOODER, "default_class", Some(RATE)).await
}

async fn the_end_of_the_default_ends_its_limits(lab: &Lab, class: NetworkClassId) -> Outcome {
    lab.kill(HOST).await?;
    lab.restart(HOST)?;
    lab.synchronized(HOST, BACK).await?;
    has_terms(lab, FLOODER, "default_class", Some(RATE)).await?;
    lab.api().update::<NetworkClass>(class, &json!({ "is_default": false }), None).await?;
    for vm in [FLOODER, NEIGHBOR, RECEIVER] {
        has_terms(lab, vm, "none", None).await?;
    }
    let mbps = stream(lab, false).await?;
    ensure_timely!(mbps > 2.0 * f64::from(RATE), "{mbps:.1} Mbit/s without a class");
    Ok(())
}

/// Starts the host's agent with a small capacity.
async fn contend(lab: &Lab) -> Outcome {
    let mut argv = lab.process(HOST)?.argv;
    argv.push(format!("--capacity-mbps={CAPACITY}"));
    lab.restart_with(HOST, argv).await?;
    lab.synchronized(HOST, BACK).await?;
    has_terms(lab, FLOODER, "none", None).await
}

async fn a_flood_has_its_share(lab: &Lab, ipv6: bool) -> Outcome {
    let target = address(lab.vm(RECEIVER)?, ipv6)?;
    let (payload, much, little) = (PAYLOAD.to_string(), format!("{FLOOD}M"), format!("{LITTLE}M"));
    let options = |rate| ["-u", "-l", payload.as_str(), "-b", rate, "-t", SECONDS];
    let (much, little) = (options(much.as_str()), options(little.as_str()));
    let both = try_join(
        iperf(lab, (FLOODER, RECEIVER), target, 5232, &much),
        iperf(lab, (NEIGHBOR, RECEIVER), target, 5233, &little),
    );
    let ((flood, neighbor), ()) = try_join(both, is_clamped(lab)).await?;
    let (flood, neighbor) = (&flood["end"]["sum"], &neighbor["end"]["sum"]);
    let datagrams = number(flood, "packets")? - number(flood, "lost_packets")?;
    let passed = datagrams * f64::from(PAYLOAD) * 8.0 / number(flood, "seconds")? / 1e6;
    let lost = number(neighbor, "lost_packets")? / number(neighbor, "packets")?;
    println!(
        "    IPv6 {ipv6}: {passed:.1} Mbit/s of the flood passed, its neighbor lost {:.2}%",
        lost * 100.0
    );
    ensure!(passed < PASSES, "{passed:.1} Mbit/s of the flood passed");
    ensure_timely!(passed > PASSES_MIN, "only {passed:.1} Mbit/s of the flood passed");
    ensure_timely!(lost < LOST, "the neighbor of a flood lost {:.2}% of its datagrams", lost * 100.0);
    Ok(())
}

/// Checks, while both send, that the flood is clamped to about what the neighbor leaves, and the neighbor is not limited.
async fn is_clamped(lab: &Lab) -> Outcome {
    sleep(Duration::from_secs(2)).await;
    eventually(Duration::from_secs(3), async || {
        let found = sent(lab, FLOODER).await?;
        ensure_timely!(found["limited"] == "contended", "the flood is not clamped: {found}");
        let limit = number(&found, "limit")?;
        ensure_timely!((50.0..=85.0).contains(&limit), "the share of the flood: {found}");
        let neighbor = sent(lab, NEIGHBOR).await?;
        ensure!(neighbor["limit"].is_null(), "the neighbor is limited: {neighbor}");
        Ok(())
    })
    .await?;
    let labels = [("interface", lab.vm(FLOODER)?.port.as_str()), ("direction", "sent")];
    let drops = lab.metrics(HOST).await?.sum("sluice_port_rate_drops_total", &labels);
    ensure!(drops > 0.0, "the port counts no drops over its share");
    Ok(())
}
