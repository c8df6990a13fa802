//! A part of `addresses`: keepalived in two VMs on two hosts has an IPv4 and an IPv6 address in turn, over unicast VRRP
//! (RFC 9568). Paced streams from VMs of the same and of a peered VPC go to the addresses while their holder dies,
//! the controller restarts, the holder returns, and a VM that may not have the addresses announces them.
//!
//! Catches: claims that do not reach the store or nodes, holders that change without a claim or by a foreign one.

use crate::addresses::set;
use crate::streams::Streams;
use crate::support::{
    Failure, Outcome, Probe, address, drops, ensure, ensure_timely, eventually, execute, number, who,
};
use serde_json::{Value, json};
use sluice_client::Instance;
use sluice_lab::{CONTROLLER, Lab, VmState};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// The addresses that VMs have in turn.
const SHARED: [&str; 2] = ["10.1.0.100", "fd10:0:0:1::100"];
/// Their clients: on the host of the first holder, and in a peered VPC on a third host.
const CLIENTS: [&str; 2] = ["web-1", "db-2"];
const PORT: u16 = 7101;
const PPS: u64 = 100;
/// Of VRRP, in seconds: a backup that hears nothing waits for three of these and a part of one, by its priority.
const ADVERTISEMENT: f64 = 0.3;
/// From the death of the master until the backup has the addresses: RFC 9568 section 6.1, and the time of the commands that
/// end the one and look at the other.
const DOWN_MAX: Duration = Duration::from_millis(4 * 300 + 500);
/// From an announcement until hosts and gateways send to the new holder: the host's agent, the controller, the database,
/// and all nodes, on a machine that the streams occupy.
const CLAIM_MAX: Duration = Duration::from_millis(500);
const HELD: Duration = Duration::from_secs(10);
const ROUTER: u8 = 51;

pub async fn are_had_in_turn(lab: &Lab) -> Outcome {
    let mut first = Keepalived::new("lb-1", lab.add_vm("lb-1", "web", "front", "host-a").await?, 150, ROUTER);
    let mut second =
        Keepalived::new("lb-2", lab.add_vm("lb-2", "web", "front", "host-b").await?, 100, ROUTER);
    let mut echoes = Vec::new();
    for it in [&first, &second] {
        set(lab, it.vm.id, &json!({ "address_pairs": SHARED.map(|at| json!({ "address": at })) })).await?;
        // Both listen before they have the address.
        let code =
            "echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind\necho 1 >/proc/sys/net/ipv6/ip_nonlocal_bind\n";
        execute(lab, it.name, &["sh", "-ec", code]).await?;
        for at in SHARED {
            echoes.push(Probe::listening(lab, it.name, &["echo", &at_port(at)?, it.name]).await?);
        }
    }
    first.start(lab, &second.vm).await?;
    is_held_by(lab, &first).await?;
    second.start(lab, &first.vm).await?;
    master_dies(lab, &mut first, &second).await?;
    controller_restarts(lab, &second).await?;
    master_returns(lab, &mut first, &second).await?;
    stranger_announces(lab, &first).await
}

fn at_port(at: &str) -> Result<String, Failure> {
    Ok(SocketAddr::new(at.parse::<IpAddr>()?, PORT).to_string())
}

async fn streams(lab: &Lab) -> Result<Streams<'_>, Failure> {
    let mut flows = Vec::new();
    for from in CLIENTS {
        for at in SHARED {
            flows.push((from, at_port(at)?));
        }
    }
    let streams = Streams::to_flows(lab, &flows, PPS).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(streams)
}

/// Waits until an instance holds both addresses, and checks that it answers at them, and that the command line says so.
async fn is_held_by(lab: &Lab, holder: &Keepalived) -> Outcome {
    eventually(HELD, || async {
        let pairs = lab.api().get::<Instance>(holder.vm.id).await?.address_pairs;
        ensure!(pairs.len() == 2 && pairs.iter().all(|pair| pair.held), "{} holds of {pairs:?}", holder.name);
        Ok(())
    })
    .await?;
    lab.api().wait_programmed::<Instance>(holder.vm.id, HELD).await?;
    for from in CLIENTS {
        for at in SHARED {
            let answer = who(lab, from, "udp", at_port(at)?.parse()?).await?;
            ensure!(answer.as_deref() == Some(holder.name), "{from} was answered at {at} by {answer:?}");
        }
    }
    let shown = Command::new(&lab.state().binary)
        .args(["instances", "show", holder.name, "--vpc", "red/web"])
        .env("SLUICE_API", format!("http://{}", lab.state().api))
        .env("SLUICE_TOKEN_FILE", lab.paths().token())
        .output()
        .await?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    for at in SHARED {
        let line = format!("address {at}, held yes");
        ensure!(text.contains(&line), "`instances show {}` does not say `{line}`: {shown:?}", holder.name);
    }
    Ok(())
}

/// The master is killed, with its addresses: the backup takes over. What is lost is bounded by VRRP and the claim's path.
async fn master_dies(lab: &Lab, master: &mut Keepalived, backup: &Keepalived) -> Outcome {
    let streams = streams(lab).await?;
    let dead = Instant::now();
    master.kill(lab).await?;
    backup.has_addresses(lab, true).await?;
    let vrrp = dead.elapsed();
    ensure_timely!(vrrp <= DOWN_MAX, "{} had the addresses after {vrrp:?}", backup.name);
    is_held_by(lab, backup).await?;
    lost_at_most(streams, "the master died", vrrp, vrrp + CLAIM_MAX).await
}

/// The higher priority preempts: only the claim is to wait for.
async fn master_returns(lab: &Lab, master: &mut Keepalived, backup: &Keepalived) -> Outcome {
    let streams = streams(lab).await?;
    master.start(lab, &backup.vm).await?;
    backup.has_addresses(lab, false).await?;
    is_held_by(lab, master).await?;
    lost_at_most(streams, "the master returned", Duration::ZERO, CLAIM_MAX).await
}

async fn lost_at_most(streams: Streams<'_>, what: &str, vrrp: Duration, most: Duration) -> Outcome {
    for (stream, result) in streams.results().await? {
        let (sent, received) = (number(&result, "sent")?, number(&result, "received")?);
        let lost = Duration::from_millis((sent - received) * 1000 / PPS);
        println!("    {what}: {stream} lost {lost:?}, of which VRRP explains {vrrp:?}");
        ensure_timely!(lost <= most, "{what}: {stream} lost {lost:?}, {most:?} at most: {}", result["lost"]);
    }
    Ok(())
}

async fn controller_restarts(lab: &Lab, holder: &Keepalived) -> Outcome {
    let streams = streams(lab).await?;
    lab.kill(CONTROLLER).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    lab.restart(CONTROLLER)?;
    for node in lab.state().nodes.keys() {
        let synchronized = async || Ok(lab.synchronized(node, Duration::from_secs(30)).await?);
        // The API may not listen yet.
        eventually(Duration::from_secs(30), synchronized).await?;
    }
    is_held_by(lab, holder).await?;
    streams.end().await
}

/// A VM that may not have the addresses announces them, as the master of a virtual router of its own.
async fn stranger_announces(lab: &Lab, holder: &Keepalived) -> Outcome {
    let streams = streams(lab).await?;
    let vm = lab.vm("web-2")?;
    let before = drops(lab, vm.vni, "spoofed_ip").await?;
    let mut stranger = Keepalived::new("web-2", vm.clone(), 200, ROUTER + 1);
    stranger.start(lab, lab.vm("web-3")?).await?;
    stranger.has_addresses(lab, true).await?;
    eventually(Duration::from_secs(3), async || {
        let more = drops(lab, vm.vni, "spoofed_ip").await? - before;
        // Five announcements of each address.
        ensure!(more >= 6.0, "only {more} announcements were counted as spoofed_ip");
        Ok(())
    })
    .await?;
    is_held_by(lab, holder).await?;
    streams.end().await
}

/// keepalived of a VM; it ends when this is dropped.
struct Keepalived {
    name: &'static str,
    vm: VmState,
    priority: u8,
    router: u8,
    process: Option<Child>,
}

impl Keepalived {
    fn new(name: &'static str, vm: VmState, priority: u8, router: u8) -> Self {
        Self { name, vm, priority, router, process: None }
    }

    fn file(&self, lab: &Lab, what: &str) -> PathBuf {
        lab.paths().root().join(format!("keepalived-{}.{what}", self.name))
    }

    /// An instance of VRRP for each family, which advertises to one peer.
    fn configuration(&self, peer: &VmState) -> Result<String, Failure> {
        let mut text = "global_defs {\n    vrrp_version 3\n}\n".to_owned();
        for (at, ipv6) in SHARED.into_iter().zip([false, true]) {
            let (own, peer) = (address(&self.vm, ipv6)?, address(peer, ipv6)?);
            let (family, length) = if ipv6 { ("six", 128) } else { ("four", 32) };
            text.push_str(&format!(
                "vrrp_instance {family} {{\n    interface eth0\n    state BACKUP\n    \
                 virtual_router_id {}\n    priority {}\n    advert_int {ADVERTISEMENT}\n    \
                 unicast_src_ip {own}\n    unicast_peer {{\n        {peer}\n    }}\n    \
                 virtual_ipaddress {{\n        {at}/{length}\n    }}\n}}\n",
                self.router, self.priority,
            ));
        }
        Ok(text)
    }

    async fn start(&mut self, lab: &Lab, peer: &VmState) -> Outcome {
        let [conf, parent, vrrp, log] = ["conf", "pid", "vrrp.pid", "log"].map(|it| self.file(lab, it));
        std::fs::write(&conf, self.configuration(peer)?)?;
        let log = std::fs::File::create(log)?;
        let [conf, parent, vrrp] = [conf, parent, vrrp].map(|it| it.display().to_string());
        let argv = ["keepalived", "-nlDPR", "-f", &conf, "-p", &parent, "-r", &vrrp];
        let mut command = lab.command(self.name, &argv)?;
        self.process = Some(command.stdout(log.try_clone()?).stderr(log).stdin(Stdio::null()).spawn()?);
        Ok(())
    }

    /// Kills its processes at once, so that it says nothing to its peer, and takes its addresses away.
    async fn kill(&mut self, lab: &Lab) -> Outcome {
        let mut process = self.process.take().ok_or_else(|| Failure::new("keepalived does not run"))?;
        let parent = process.id().ok_or_else(|| Failure::new("keepalived has ended"))?.to_string();
        let child = std::fs::read_to_string(self.file(lab, "vrrp.pid"))?;
        // The child first: it withdraws when its parent ends.
        let killed = Command::new("kill").args(["-KILL", child.trim(), &parent]).status().await?;
        ensure!(killed.success(), "cannot kill keepalived of {}: {killed}", self.name);
        process.wait().await?;
        for at in SHARED {
            execute(lab, self.name, &["ip", "addr", "del", at, "dev", "eth0"]).await?;
        }
        Ok(())
    }

    /// Waits until its VM has both addresses, or neither.
    async fn has_addresses(&self, lab: &Lab, expected: bool) -> Outcome {
        eventually(HELD, || async {
            let output = lab.exec(self.name, &["ip", "-j", "addr", "show", "dev", "eth0"]).await?;
            let links: Value = serde_json::from_slice(&output.stdout)?;
            let has = |at: &&str| {
                let infos = links[0]["addr_info"].as_array();
                infos.is_some_and(|infos| infos.iter().any(|info| info["local"] == **at))
            };
            ensure!(SHARED.iter().all(|at| has(at) == expected), "{} has not {expected}: {links}", self.name);
            Ok(())
        })
        .await
    }
}
