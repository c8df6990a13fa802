//! Health checks: a quiet lab has no anomaly, and faults that are injected are named with their class and subject, within
//! seconds, by API, command line and events; nothing else is accused, and they are cleared when the fault is repaired.
//!
//! Injected are a VM that hangs, one with another MAC address, one whose hypervisor closes its interface, an instance that is
//! deleted without its interface, a link that goes down, a switch that drops and delays, a VM that does not take what is sent
//! to it, a VM that gets more packets than its host can process, and a server that is down. Software interrupts are of the whole
//! machine, so that only one agent has a threshold that the flood exceeds. Processors and memory are so, too: the rules about these
//! have unit tests only (`crates/agent/src/health/rules_tests.rs`, `crates/agent/src/health/monitor_tests.rs`).
//!
//! A policy makes the controller start the migration of one instance of the overloaded host, with an event for whoever moves VMs.
//!
//! Catches: probes that a node, a VM or a program does not answer, false alarms, wrong causes, findings that stay, migrations that
//! no policy wants, or to a host that cannot have the instance.

use crate::Ground;
use crate::security_groups::{create, group, set_groups};
use crate::support::{Failure, Outcome, address, ensure, ensure_timely, eventually, execute, iperf};
use serde_json::json;
use sluice_client::{AnomalyClass, Health, HealthAction, HealthPolicyPatch, Instance, Remote};
use sluice_lab::{Lab, Options};
use sluice_types::{AddressFamily, InstanceId, Protocol};
use std::path::Path;
use std::time::{Duration, Instant};

/// Average interval of all probes, in seconds: the shortest one.
const PERIOD: &str = "1";
/// Time without an anomaly, in which each VM and each link is probed about as often as in ten minutes by default.
const QUIET: Duration = Duration::from_secs(60);
const SETTLED: Duration = Duration::from_secs(60);
/// Within this time a fault is found and named, and its end as well.
const FOUND: Duration = Duration::from_secs(40);
/// The interface of a VM that reboots is without carrier for shorter than 30 s, after which that is a fault.
const CLOSED: Duration = Duration::from_secs(70);
const SWITCH: &str = "tor-1";
/// The switch's ports to host-a and host-b, which follow those to the gateways.
const TO_HOST_A: &str = "p2";
const TO_HOST_B: &str = "p3";
/// The flood: 40,000 packets in a second, of which each is processed in software interrupts on its whole way.
const FLOOD: [&str; 7] = ["-u", "-l", "64", "-b", "20M", "-t", "30"];
const FLOODED: u16 = 5234;
/// Part of a processor that the flood exceeds by far, and a quiet lab does not reach.
const BUSY_PERCENT: u32 = 8;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    probe_often(&lab).await?;
    quiet(&lab).await?;
    vm_hangs(&lab, &ground.binary).await?;
    vm_has_another_mac(&lab).await?;
    hypervisor_is_gone(&lab).await?;
    interface_stays(&lab).await?;
    link_goes_down(&lab).await?;
    switch_is_overloaded(&lab).await?;
    vm_does_not_take_packets(&lab).await?;
    vswitch_is_overloaded(&lab).await?;
    server_is_down(&lab).await
}

/// Starts all agents again, with short periods.
async fn probe_often(lab: &Lab) -> Outcome {
    for (name, node) in &lab.state().nodes {
        let mut argv = lab.process(name)?.argv;
        argv.push(format!("--health-link-s={PERIOD}"));
        if !node.gateway {
            argv.push(format!("--health-vm-s={PERIOD}"));
        }
        lab.restart_with(name, argv).await?;
    }
    for name in lab.state().nodes.keys() {
        lab.synchronized(name, SETTLED).await?;
    }
    let nodes = lab.state().nodes.len();
    eventually(SETTLED, async || {
        let reporting = lab.api().health(None).await?.reporting;
        ensure!(reporting == nodes, "{reporting} of {nodes} nodes report");
        for name in lab.state().nodes.keys() {
            let answered = lab.metrics(name).await?.sum("sluice_health_probe_rtt_seconds", &[]);
            ensure!(answered > 0.0, "no node answers the probes of {name}");
        }
        Ok(())
    })
    .await
}

async fn quiet(lab: &Lab) -> Outcome {
    let until = Instant::now() + QUIET;
    while Instant::now() < until {
        let health = lab.api().health(None).await?;
        ensure_timely!(health.items.is_empty() && !health.others, "a quiet lab has {:?}", health.items);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// Waits until this anomaly of a node is found, and no other one is.
async fn found(lab: &Lab, node: &str, class: &str, subject: &str) -> Result<Health, Failure> {
    found_within(FOUND, lab, node, class, subject).await
}

async fn found_within(
    limit: Duration,
    lab: &Lab,
    node: &str,
    class: &str,
    subject: &str,
) -> Result<Health, Failure> {
    let begin = Instant::now();
    eventually(limit, async || {
        let health = lab.api().health(None).await?;
        let is_it = |item: &&sluice_client::HealthFinding| {
            item.name == node && item.class == class && item.subject == subject
        };
        ensure!(
            health.items.iter().any(|it| is_it(&it)),
            "{class} of {subject} is not in {:?}",
            health.items
        );
        ensure!(health.items.len() == 1, "others are accused: {:?}", health.items);
        Ok(())
    })
    .await?;
    println!("    {class} of {subject} on {node}: found after {:.1} s", begin.elapsed().as_secs_f64());
    Ok(lab.api().health(Some(node)).await?)
}

/// Waits until there is no anomaly.
async fn cleared(lab: &Lab) -> Outcome {
    eventually(FOUND, async || {
        let health = lab.api().health(None).await?;
        ensure!(health.items.is_empty(), "still {:?}", health.items);
        Ok(())
    })
    .await
}

async fn shell(lab: &Lab, place: &str, script: &str) -> Outcome {
    execute(lab, place, &["sh", "-c", script]).await
}

/// The network stack of a VM answers nothing and sends nothing.
async fn vm_hangs(lab: &Lab, binary: &Path) -> Outcome {
    let (vm, host, subject) = ("shop-1", "host-a", lab.vm("shop-1")?.id.to_string());
    let settings = |arp: u8, ipv6: u8| {
        format!(
            "echo {arp} >/proc/sys/net/ipv4/conf/eth0/arp_ignore; \
             echo {ipv6} >/proc/sys/net/ipv6/conf/eth0/disable_ipv6"
        )
    };
    shell(lab, vm, &settings(8, 1)).await?;
    let health = found(lab, host, "vm_unresponsive", &subject).await?;
    let finding = &health.items[0];
    ensure!(finding.evidence.contains("does not answer for"), "no evidence: {}", finding.evidence);
    ensure!(finding.cause.contains("hangs"), "no cause: {}", finding.cause);
    let api = format!("http://{}", lab.state().api);
    let listed = tokio::process::Command::new(binary)
        .args(["health", "--api", &api, "--node", host])
        .env("SLUICE_TOKEN_FILE", lab.paths().token())
        .output()
        .await?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(listed.contains("vm_unresponsive") && listed.contains("1 anomalies"), "listed: {listed}");
    shell(lab, vm, &settings(0, 0)).await?;
    cleared(lab).await?;
    let id = &lab.node(host)?.id;
    eventually(FOUND, async || {
        let events = lab.api().events(Some(id), None, 100).await?;
        let of_vm = events.iter().filter(|event| event.details["subject"] == subject.as_str());
        let kinds: Vec<_> = of_vm.map(|event| event.kind.as_str()).collect();
        ensure!(kinds == ["health_raised", "health_cleared"], "events about {subject}: {kinds:?}");
        Ok(())
    })
    .await
}

async fn vm_has_another_mac(lab: &Lab) -> Outcome {
    let vm = lab.vm("shop-2")?;
    let (subject, right) = (vm.id.to_string(), vm.mac.to_string());
    let set = async |mac: &str| execute(lab, "shop-2", &["ip", "link", "set", "eth0", "address", mac]).await;
    set("02:00:00:00:99:99").await?;
    let health = found(lab, "host-b", "vm_misconfiguration", &subject).await?;
    ensure!(health.items[0].evidence.contains("02:00:00:00:99:99"), "evidence: {}", health.items[0].evidence);
    set(&right).await?;
    cleared(lab).await
}

async fn hypervisor_is_gone(lab: &Lab) -> Outcome {
    let subject = lab.vm("db-1")?.id.to_string();
    let set = async |state: &str| execute(lab, "db-1", &["ip", "link", "set", "eth0", state]).await;
    set("down").await?;
    let health = found_within(CLOSED, lab, "host-b", "hypervisor_fault", &subject).await?;
    ensure!(health.items[0].cause.contains("shut down"), "cause: {}", health.items[0].cause);
    set("up").await?;
    cleared(lab).await
}

/// An instance is deleted, and its interface stays on the host.
async fn interface_stays(lab: &Lab) -> Outcome {
    let vm = lab.add_vm("released", "web", "front", "host-b").await?;
    lab.api().delete::<Instance>(vm.id, None).await?;
    let subject = format!("interface {}", vm.port);
    let health = found(lab, "host-b", "stale_configuration", &subject).await?;
    ensure!(health.items[0].evidence.contains(&vm.id.to_string()), "evidence: {}", health.items[0].evidence);
    execute(lab, "host-b", &["ip", "link", "del", &vm.port]).await?;
    cleared(lab).await
}

/// The host reports by its management interface.
async fn link_goes_down(lab: &Lab) -> Outcome {
    execute(lab, SWITCH, &["ip", "link", "set", TO_HOST_B, "down"]).await?;
    found(lab, "host-b", "nic_fault", "interface eth0").await?;
    execute(lab, SWITCH, &["ip", "link", "set", TO_HOST_B, "up"]).await?;
    cleared(lab).await
}

/// What the switch sends to a host waits or is dropped: less passes than the probes and the path requests need.
async fn switch_is_overloaded(lab: &Lab) -> Outcome {
    let limit = format!("tc qdisc add dev {TO_HOST_A} root tbf rate 8kbit burst 1600 limit 4000");
    shell(lab, SWITCH, &limit).await?;
    let health = found(lab, "host-a", "switch_overload", "node").await?;
    ensure!(
        health.items[0].evidence.contains("peers lose or delay"),
        "evidence: {}",
        health.items[0].evidence
    );
    execute(lab, SWITCH, &["tc", "qdisc", "del", "dev", TO_HOST_A, "root"]).await?;
    cleared(lab).await
}

/// The VM's side of its interface takes only short packets, and another VM sends it long ones. A rate makes them pass the
/// interface, in which they are dropped.
async fn vm_does_not_take_packets(lab: &Lab) -> Outcome {
    let (vm, subject) = ("web-3", lab.vm("web-3")?.id);
    let set_rate = async |qos: serde_json::Value| {
        lab.api().update::<Instance>(subject, &json!({ "qos": qos }), None).await?;
        lab.api().wait_programmed::<Instance>(subject, SETTLED).await?;
        Ok::<_, Failure>(())
    };
    set_rate(json!({ "rate_mbps": 1000 })).await?;
    execute(lab, vm, &["ip", "link", "set", "eth0", "mtu", "1280"]).await?;
    let target = address(lab.vm(vm)?, false)?;
    let flood = async {
        iperf(lab, ("web-1", vm), target, 5233, &["-u", "-l", "1350", "-b", "3M", "-t", "25"]).await.map(drop)
    };
    let subject = subject.to_string();
    let find = async { found(lab, "host-b", "middlebox_overload", &subject).await.map(drop) };
    futures::future::try_join(flood, find).await?;
    set_rate(json!({})).await?;
    cleared(lab).await
}

/// A flood between VMs is too much for the host of its receiver, by the threshold of this agent. The finding names the VM and the
/// flow, and an instance is to leave the host.
async fn vswitch_is_overloaded(lab: &Lab) -> Outcome {
    let (vm, host) = ("web-3", "host-b");
    let (id, target) = (lab.vm(vm)?.id, address(lab.vm(vm)?, false)?);
    // Hosts count the flows of filtered ports.
    let flooded = group(lab, "flooded").await?;
    for protocol in [Protocol::TCP, Protocol::UDP] {
        create(lab, flooded, AddressFamily::Ipv4, protocol, FLOODED, Remote::Any).await?;
    }
    set_groups(lab, vm, &[flooded]).await?;
    let argv = lab.process(host)?.argv;
    let limits = [format!("--health-softirq-percent={BUSY_PERCENT}"), "--health-squeezes=0".to_owned()];
    lab.restart_with(host, argv.iter().cloned().chain(limits).collect()).await?;
    lab.synchronized(host, SETTLED).await?;
    cleared(lab).await?;
    set_policy(lab, HealthAction::Migrate).await?;
    let flood = async { iperf(lab, ("web-1", vm), target, FLOODED, &FLOOD).await.map(drop) };
    let find = async {
        let health = found(lab, host, "vswitch_overload", "node").await?;
        let evidence = &health.items[0].evidence;
        for part in [
            "in software interrupts".to_owned(),
            format!("busiest VM: {id}"),
            format!("heaviest flow: udp {}:", address(lab.vm("web-1")?, false)?),
            format!("> {target}:{FLOODED}"),
        ] {
            ensure!(evidence.contains(&part), "`{part}` is not in the evidence: {evidence}");
        }
        instance_is_to_leave(lab, host, "host-a").await
    };
    futures::future::try_join(flood, find).await?;
    lab.restart_with(host, argv).await?;
    lab.synchronized(host, SETTLED).await?;
    set_groups(lab, vm, &[]).await?;
    cleared(lab).await
}

async fn set_policy(lab: &Lab, action: HealthAction) -> Outcome {
    let patch = HealthPolicyPatch { action: Some(action), hold_s: Some(5), ..HealthPolicyPatch::default() };
    lab.api().set_health_policy(AnomalyClass::VswitchOverload, &patch).await?;
    Ok(())
}

/// One instance of a host is to migrate to the only host that it can migrate to, which an event says.
async fn instance_is_to_leave(lab: &Lab, from: &str, to: &str) -> Outcome {
    let wanted = async || {
        let events = lab.api().events(None, None, 1000).await?;
        let wanted = events.into_iter().filter(|event| event.kind == "instance_migration_wanted");
        Ok::<_, Failure>(wanted.collect::<Vec<_>>())
    };
    eventually(FOUND, async || {
        ensure!(!wanted().await?.is_empty(), "no instance is to migrate");
        Ok(())
    })
    .await?;
    set_policy(lab, HealthAction::None).await?;
    let events = wanted().await?;
    ensure!(events.len() == 1, "more than one instance is to migrate: {events:?}");
    let (details, subject) = (&events[0].details, &events[0].subject);
    ensure!(
        details["from_name"] == from && details["to_name"] == to && details["class"] == "vswitch_overload",
        "the event has other hosts: {details}"
    );
    let id: InstanceId = subject.parse()?;
    let instance: Instance = lab.api().get(id).await?;
    let migration = lab.api().migration(instance.vpc, id).await?;
    ensure!(
        details["migration"] == migration.id && migration.host.to_string() == lab.node(to)?.id,
        "another migration is in progress: {migration:?}"
    );
    lab.api().cancel_migration(instance.vpc, id, None).await?;
    Ok(())
}

/// The node cannot say it itself: those that watch it do.
async fn server_is_down(lab: &Lab) -> Outcome {
    lab.kill("host-c").await?;
    found(lab, "host-c", "server_resources", "node").await?;
    lab.restart("host-c")?;
    lab.synchronized("host-c", SETTLED).await?;
    cleared(lab).await
}
