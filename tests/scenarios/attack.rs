//! A hostile VM with root, raw sockets and a security group sends 100,000 malformed and forged frames, and then opens more
//! connections than a port may have. A neighbor on its host and a VM on another host exchange paced streams meanwhile:
//! they lose nothing, and the neighbor opens new connections. No frame reaches the neighbor, or another tenant's VM on the
//! host. Drops are counted by reason, and the agent lives. At last, a VM opens more connections to the neighbor than that may
//! have: the neighbor opens its own nevertheless, and others reach it again after seconds.

use crate::Ground;
use crate::security_groups::{group, permit, reaches_at, set_groups};
use crate::streams::{Account, Streams, lossless};
use crate::support::{Failure, Outcome, Probe, address, drops, ensure, ensure_timely, eventually, number};
use serde_json::Value;
use sluice_client::Remote;
use sluice_lab::{Lab, Options, VmState};
use sluice_types::{IpNet, Protocol, ROUTER_MAC, SecurityGroupId};
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;

const HOSTILE: &str = "web-1";
const NEIGHBOR: &str = "web-2";
const STRANGER: &str = "shop-1";
const REMOTE: &str = "web-3";
const HOST: &str = "host-a";
const STREAM: u16 = 7071;
const OPEN: u16 = 7073;
const STREAMS: [(&str, &str, bool); 2] = [(REMOTE, NEIGHBOR, false), (REMOTE, NEIGHBOR, true)];
const PPS: u64 = 200;
const FRAMES: &str = "100000";
/// Connections of each family. A port may have 2,048, an eighth of the lab's 16,384, and of these three quarters
/// that it began itself.
const FLOWS: &str = "10000";
const LIMIT: usize = 1536;
/// To the neighbor, of each family.
const FLOWS_IN: &str = "3000";
/// Connections without an answer end 5 s after their last packet when there are many, and a round of the sweep takes a second.
const ROOM: Duration = Duration::from_secs(10);
/// By how much the slowest answer may be later than without the attack. Both share two processors with the generator.
pub const LATER_MAX_US: u64 = 300_000;
/// Port of hostile frames (`sluice-probe`).
const HOSTILE_PORT: u16 = 6666;
/// What the frames must be dropped for, among other reasons.
const REASONS: [&str; 10] = [
    "spoofed_mac",
    "spoofed_ip",
    "inner_truncated",
    "inner_vlan",
    "inner_ethertype",
    "inner_checksum",
    "forged_control",
    "dhcp_malformed",
    "no_session",
    "unknown_fragment",
];

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    let (hostile, victim) = (group(&lab, "hostile").await?, group(&lab, "victim").await?);
    for at in lab.vm(REMOTE)?.addresses() {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            for port in [STREAM, STREAM + 1, OPEN] {
                permit(&lab, victim, protocol, port, Remote::Prefix(IpNet::from(at))).await?;
            }
        }
    }
    set_groups(&lab, HOSTILE, &[hostile]).await?;
    set_groups(&lab, NEIGHBOR, &[victim]).await?;
    let mut echoes = Vec::new();
    for at in lab.vm(NEIGHBOR)?.addresses() {
        let at = SocketAddr::new(at, OPEN).to_string();
        echoes.push(Probe::listening(&lab, NEIGHBOR, &["echo", &at, NEIGHBOR]).await?);
    }
    let quiet = Streams::start(&lab, &STREAMS, STREAM, PPS).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let quiet = slowest(&quiet.results().await?)?;

    let captures = [Capture::start(&lab, NEIGHBOR).await?, Capture::start(&lab, STRANGER).await?];
    let account = Account::begin(&lab).await?;
    let streams = Streams::start(&lab, &STREAMS, STREAM, PPS).await?;
    malformed(&lab).await?;
    floods(&lab).await?;
    reaches_at(&lab, REMOTE, NEIGHBOR, OPEN, true).await?;
    let results = streams.results().await?;
    for (stream, result) in &results {
        lossless(&lab, &account, stream, result).await?;
    }
    let under_attack = slowest(&results)?;
    println!("    slowest answer: {quiet} us, {under_attack} us under attack");
    ensure_timely!(
        under_attack < quiet + LATER_MAX_US,
        "the slowest answer took {under_attack} us under attack, {quiet} us before"
    );
    for capture in captures {
        capture.has_nothing_hostile().await?;
    }
    floods_neighbor(&lab, victim).await?;
    ensure!(lab.process(HOST)?.is_alive(), "the agent of {HOST} has ended");
    Ok(lab.synchronized(HOST, Duration::from_secs(10)).await?)
}

/// The round-trip time of the slowest answer in all streams, in microseconds.
pub fn slowest(results: &[(String, Value)]) -> Result<u64, Failure> {
    results.iter().try_fold(0, |most, (_, result)| Ok(number(result, "slowest_us")?.max(most)))
}

/// MAC and IPv4 address of the router of the hostile VM's subnet, as the generator expects them.
async fn router(lab: &Lab) -> Result<String, Failure> {
    let output = lab.exec(HOSTILE, &["sh", "-c", "ping -c 1 10.1.0.1 >&2; ip neigh show 10.1.0.1"]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mac = text.split(' ').skip_while(|word| *word != "lladdr").nth(1);
    Ok(format!("{},10.1.0.1", mac.ok_or_else(|| Failure::new(format!("no MAC of the router: {text}")))?))
}

fn own(vm: &VmState) -> Result<String, Failure> {
    Ok(format!("eth0,{},{},{}", vm.mac, address(vm, false)?, address(vm, true)?))
}

async fn malformed(lab: &Lab) -> Outcome {
    let (vm, victim) = (lab.vm(HOSTILE)?, lab.vm(NEIGHBOR)?);
    let host = lab.state().topology.hosts.iter().find(|host| host.name == HOST);
    let vtep = host.ok_or_else(|| Failure::new("the lab has no host-a"))?.vtep().to_string();
    let victim = format!("{},{}", address(victim, false)?, address(victim, true)?);
    let mut before = Vec::new();
    for reason in REASONS {
        before.push(drops(lab, vm.vni, reason).await?);
    }
    let words = ["attack", &own(vm)?, &victim, &router(lab).await?, &vtep, FRAMES];
    let result = Probe::start(lab, HOSTILE, &words)?.result().await?;
    ensure!(number(&result, "sent")? > 90_000, "the kernel took only {result} of {FRAMES} frames");
    for (reason, before) in REASONS.into_iter().zip(before) {
        let more = drops(lab, vm.vni, reason).await? - before;
        ensure!(more > 0.0, "no frame was counted as {reason}");
    }
    Ok(())
}

/// More connections than a port may have, to an address that no VM has.
async fn floods(lab: &Lab) -> Outcome {
    let vm = lab.vm(HOSTILE)?;
    let before = drops(lab, vm.vni, "session_limit").await?;
    let router = router(lab).await?;
    for to in ["10.1.0.200", "fd10:0:0:1::200"] {
        Probe::start(lab, HOSTILE, &["flood", &own(vm)?, &router, to, FLOWS])?.result().await?;
    }
    let more = drops(lab, vm.vni, "session_limit").await? - before;
    ensure!(more > 10_000.0, "only {more} packets were above the limit of sessions");
    let sessions = sessions(lab, HOST, &vm.port).await?.len();
    ensure!(sessions <= LIMIT, "the port has {sessions} sessions, at most {LIMIT}");
    Ok(())
}

/// More connections to the neighbor than it may have, which its groups permit.
async fn floods_neighbor(lab: &Lab, victim: SecurityGroupId) -> Outcome {
    let (from, to) = (lab.vm(REMOTE)?, lab.vm(NEIGHBOR)?);
    for at in from.addresses() {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            permit(lab, victim, protocol, HOSTILE_PORT, Remote::Prefix(IpNet::from(at))).await?;
        }
    }
    let before = drops(lab, to.vni, "session_limit").await?;
    let router = router(lab).await?;
    for at in to.addresses() {
        let words = ["flood", &own(from)?, &router, &at.to_string(), FLOWS_IN];
        Probe::start(lab, REMOTE, &words)?.result().await?;
    }
    let more = drops(lab, to.vni, "session_limit").await? - before;
    ensure!(more > 1000.0, "only {more} packets to {NEIGHBOR} were above its limit of sessions");
    for at in from.addresses() {
        let output =
            lab.exec(NEIGHBOR, &["ping", "-c", "3", "-i", "0.2", "-W", "2", &at.to_string()]).await?;
        ensure!(output.status.success(), "{NEIGHBOR} does not reach {at} while others fill its sessions");
    }
    eventually(ROOM, || reaches_at(lab, REMOTE, NEIGHBOR, OPEN, true)).await
}

/// The sessions of a port, as `sluice port sessions` shows them.
pub async fn sessions(lab: &Lab, host: &str, port: &str) -> Result<Vec<Value>, Failure> {
    let binary = lab.state().binary.display().to_string();
    let socket = lab.paths().socket(host).display().to_string();
    let argv =
        ["port", "sessions", "--port", port, "--limit", "100000", "--output", "json", "--socket", &socket];
    let output = tokio::process::Command::new(binary).args(argv).output().await?;
    ensure!(output.status.success(), "port sessions: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// `tcpdump` of what a VM receives, besides the packets of [`REMOTE`] and what the router says.
struct Capture {
    vm: String,
    tcpdump: tokio::process::Child,
}

impl Capture {
    async fn start(lab: &Lab, vm: &str) -> Result<Self, Failure> {
        let from = |at: &IpAddr| format!("src host {at}");
        let allowed: Vec<String> = lab.vm(REMOTE)?.addresses().iter().map(from).collect();
        // The network's own frames are neighbor discovery from the router, ARP replies to this VM's requests, and requests of health
        // checks, whose sender is the router's MAC address in both headers (02:53:4c:00:00:01).
        let filter = format!(
            "port {HOSTILE_PORT} or (not ({}) and not (arp[6:2] == 2 and ether dst {}) and not src host fe80::1 \
             and not (arp[6:2] == 1 and ether src {ROUTER_MAC} and arp[8:4] == 0x02534c00 and arp[12:2] == 1))",
            allowed.join(" or "),
            lab.vm(vm)?.mac
        );
        let argv = ["tcpdump", "-n", "-l", "-e", "-Q", "in", "-i", "eth0", &filter];
        let mut tcpdump = lab.command(vm, &argv)?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut text = Vec::new();
        let stderr = tcpdump.stderr.as_mut().ok_or_else(|| Failure::new("tcpdump without messages"))?;
        while !String::from_utf8_lossy(&text).contains("listening on") {
            let mut buffer = [0; 256];
            let length = stderr.read(&mut buffer).await?;
            ensure!(length > 0, "tcpdump in {vm}: {}", String::from_utf8_lossy(&text));
            text.extend_from_slice(&buffer[..length]);
        }
        Ok(Self { vm: vm.to_owned(), tcpdump })
    }

    async fn has_nothing_hostile(mut self) -> Outcome {
        self.tcpdump.start_kill()?;
        let mut text = String::new();
        if let Some(stdout) = &mut self.tcpdump.stdout {
            stdout.read_to_string(&mut text).await?;
        }
        let first: Vec<&str> = text.lines().take(5).collect();
        ensure!(text.is_empty(), "{} frames reached {}: {first:#?}", text.lines().count(), self.vm);
        Ok(())
    }
}
