//! What scenarios share: failures, pings, probes, counters.

use crate::stalls;
use serde_json::Value;
use sluice_lab::{Lab, VmState};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout};

/// Why a scenario failed.
#[derive(Debug)]
pub struct Failure {
    text: String,
    /// Something has not happened in time; nothing wrong has.
    pub late: bool,
}

/// A scenario's end.
pub type Outcome = Result<(), Failure>;

impl Failure {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), late: false }
    }

    /// The same, because something has not happened in time.
    pub fn late(self) -> Self {
        Self { late: true, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(describe(&error))
    }
}

/// An error with its causes.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Fails the scenario unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        // Not `if !`: a comparison with NaN must fail as well.
        if $condition {
        } else {
            return Err($crate::support::Failure::new(format!($($text)*)));
        }
    };
}
pub(crate) use ensure;

/// How many answers `ping` got, and all it printed.
#[derive(Debug)]
pub struct Ping {
    pub received: u64,
    pub text: String,
}

/// Runs `ping` in a VM.
pub async fn ping(lab: &Lab, from: &str, target: IpAddr, options: &[&str]) -> Result<Ping, Failure> {
    let target = target.to_string();
    let argv: Vec<&str> = ["ping", "-n"].iter().chain(options).copied().chain([target.as_str()]).collect();
    let output = lab.exec(from, &argv).await?;
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let summary = text.lines().find(|line| line.contains("packets transmitted"));
    let summary = summary.ok_or_else(|| Failure::new(format!("ping {target} from {from}: {text}")))?;
    let number = |part: &str| {
        let words = summary.split(", ").find(|words| words.contains(part));
        words.and_then(|words| words.split(' ').next()).and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    Ok(Ping { received: number("received"), text })
}

/// Every packet from one VM to all addresses of another is answered.
pub async fn reaches(lab: &Lab, from: &str, to: &str) -> Outcome {
    let addresses = lab.vm(to)?.addresses();
    ensure!(addresses.len() == 2, "{to} has not both families: {addresses:?}");
    for address in addresses {
        let ping = ping(lab, from, address, &["-c", "3", "-i", "0.05", "-W", "2"]).await?;
        ensure!(ping.received == 3, "{from} -> {to} ({address}): {}", ping.text);
    }
    Ok(())
}

/// No packet from a VM to an address is answered.
pub async fn never_reaches(lab: &Lab, from: &str, target: IpAddr) -> Outcome {
    let ping = ping(lab, from, target, &["-c", "3", "-i", "0.1", "-W", "1"]).await?;
    ensure!(ping.received == 0, "{from} -> {target} was answered: {}", ping.text);
    Ok(())
}

/// Sum over all nodes of what was dropped of a VNI for a reason.
pub async fn drops(lab: &Lab, vni: u32, reason: &str) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for node in lab.state().nodes.keys() {
        let vni = vni.to_string();
        let labels = [("vni", vni.as_str()), ("reason", reason)];
        sum += lab.metrics(node).await?.sum("sluice_vni_drops_total", &labels);
    }
    Ok(sum)
}

/// Packets of a VNI that a node has forwarded.
pub async fn vni_packets(lab: &Lab, node: &str, vni: u32) -> Result<f64, Failure> {
    Ok(lab.metrics(node).await?.sum("sluice_vni_packets_total", &[("vni", &vni.to_string())]))
}

/// The direct path of a host from a network to a destination; `None`: the gateway is the way.
pub async fn path_to(lab: &Lab, host: &str, vni: u32, destination: IpAddr) -> Result<Option<Value>, Failure> {
    let paths = lab.paths_of(host).await?;
    let wanted = |path: &Value| path["vni"] == vni && path["destination"] == destination.to_string();
    Ok(paths.into_iter().find(wanted))
}

/// Path of the traffic generator.
pub const PROBE: &str = env!("CARGO_BIN_EXE_sluice-probe");

/// A probe that runs in a VM; killed when it is dropped.
pub struct Probe {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Probe {
    /// Starts one.
    pub fn start(lab: &Lab, place: &str, words: &[&str]) -> Result<Self, Failure> {
        let argv: Vec<&str> = std::iter::once(PROBE).chain(words.iter().copied()).collect();
        let mut child = lab.command(place, &argv)?.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("a probe without output"))?;
        Ok(Self { child, stdout: BufReader::new(stdout) })
    }

    /// Starts one that listens, and waits until it does.
    pub async fn listening(lab: &Lab, place: &str, words: &[&str]) -> Result<Self, Failure> {
        let mut probe = Self::start(lab, place, words)?;
        let mut line = String::new();
        probe.stdout.read_line(&mut line).await?;
        ensure!(line.trim() == "ready", "probe {words:?} in {place} does not listen");
        Ok(probe)
    }

    /// Waits for the end of one that prints nothing.
    pub async fn end(mut self) -> Outcome {
        let status = self.child.wait().await?;
        ensure!(status.success(), "a probe failed: {status}");
        Ok(())
    }

    /// Waits for its end and result.
    pub async fn result(mut self) -> Result<Value, Failure> {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).await?;
        let status = self.child.wait().await?;
        ensure!(status.success(), "a probe failed: {status}, {text}");
        serde_json::from_str(text.trim())
            .map_err(|error| Failure::new(format!("probe said `{text}`: {error}")))
    }
}

/// Who answers at an address, asked by `udp` or `tcp`; `None`: nobody.
pub async fn who(lab: &Lab, from: &str, protocol: &str, at: SocketAddr) -> Result<Option<String>, Failure> {
    let answer = Probe::start(lab, from, &["ask", protocol, &at.to_string()])?.result().await?;
    Ok(answer["name"].as_str().map(str::to_owned))
}

/// Streams to and fro that must lose nothing, between VMs by a family.
pub struct Streams {
    expected: u64,
    sent: Vec<(String, Probe)>,
    _listeners: Vec<Probe>,
}

impl Streams {
    /// Starts them, each to a port of its own from `port` on.
    pub async fn start(
        lab: &Lab,
        ways: &[(&str, &str, bool)],
        port: u16,
        (pps, seconds): (u64, u64),
    ) -> Result<Self, Failure> {
        let (mut sent, mut listeners) = (Vec::new(), Vec::new());
        for ((from, to, ipv6), port) in ways.iter().zip(port..) {
            let at = SocketAddr::new(address(lab.vm(to)?, *ipv6)?, port).to_string();
            listeners.push(Probe::listening(lab, to, &["echo", &at, to]).await?);
            let words = ["stream", &at, &pps.to_string(), &seconds.to_string()];
            sent.push((format!("{from} -> {at}"), Probe::start(lab, from, &words)?));
        }
        Ok(Self { expected: pps * seconds, sent, _listeners: listeners })
    }

    /// Waits for their end; fails if anything was lost.
    pub async fn end(self) -> Outcome {
        for (what, stream) in self.sent {
            lost_nothing(&what, &stream.result().await?, self.expected)?;
        }
        Ok(())
    }
}

/// A number of a result.
pub fn number(result: &Value, key: &str) -> Result<u64, Failure> {
    result[key].as_u64().ok_or_else(|| Failure::new(format!("no number `{key}` in {result}")))
}

/// What a stream lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    /// Packets that no stop of the machine explains.
    pub packets: u64,
    /// Most of them in a row, as a time.
    pub longest_ms: f64,
    /// The other packets.
    pub excused: u64,
    /// How often some of them were lost in a row.
    pub pieces: u64,
    /// The last of them, counted from the stream's end.
    pub last: Option<u64>,
}

impl Lost {
    /// As the probe counted.
    pub fn of(result: &Value) -> Result<Self, Failure> {
        let (begin_us, pps) = (number(result, "begin_us")?, number(result, "pps")?);
        let sent = number(result, "sent")?;
        let mut lost = Self::default();
        for range in result["lost"].as_array().into_iter().flatten() {
            let [first, last, first_us, last_us] = [0, 1, 2, 3].map(|at| range[at].as_u64().unwrap_or(0));
            let mut row = 0;
            for packet in first..=last {
                let part = (last_us - first_us) * (packet - first) / (last - first).max(1);
                if stalls::explain(begin_us + first_us + part) {
                    lost.excused += 1;
                } else {
                    row += 1;
                    lost.last = Some(sent - packet);
                }
            }
            lost.packets += row;
            lost.longest_ms = lost.longest_ms.max(row as f64 * 1e3 / pps as f64);
            lost.pieces += u64::from(row > 0);
        }
        Ok(lost)
    }

    /// What stops of the machine took, for who reads the results.
    pub fn tell_excused(&self, what: &str) {
        if self.excused > 0 {
            println!("    {what}: {} packets lost while the machine stood still", self.excused);
        }
    }

    /// The worst of both in each respect.
    pub fn worse(self, other: Self) -> Self {
        Self {
            packets: self.packets.max(other.packets),
            longest_ms: self.longest_ms.max(other.longest_ms),
            excused: self.excused.max(other.excused),
            pieces: self.pieces.max(other.pieces),
            last: [self.last, other.last].into_iter().flatten().min(),
        }
    }
}

/// Fails unless a stream sent as much as it was asked to, about as fast, and lost nothing.
pub fn lost_nothing(what: &str, result: &Value, expected: u64) -> Outcome {
    let (sent, lost) = (number(result, "sent")?, Lost::of(result)?);
    ensure!(sent == expected, "{what}: {sent} of {expected} packets were sent");
    in_time(what, result)?;
    ensure!(lost.packets == 0, "{what}: {} of {sent} packets lost: {}", lost.packets, result["lost"]);
    lost.tell_excused(what);
    Ok(())
}

/// Fails if a stream was slower than asked by more than a quarter, on a machine that ran.
pub fn in_time(what: &str, result: &Value) -> Outcome {
    let (begin_us, took_us) = (number(result, "begin_us")?, number(result, "took_us")?);
    let nominal_us = number(result, "sent")? * 1_000_000 / number(result, "pps")?.max(1);
    let slow = took_us > nominal_us + nominal_us / 4;
    ensure!(!slow || stalls::happened_since(begin_us), "{what}: sending took {took_us} us, not {nominal_us}");
    Ok(())
}

/// The address of a family.
pub fn address(vm: &VmState, ipv6: bool) -> Result<IpAddr, Failure> {
    let found = vm.addresses().into_iter().find(|address| address.is_ipv6() == ipv6);
    found.ok_or_else(|| Failure::new(format!("instance {} lacks a family", vm.id)))
}

/// Waits until a check holds; its last complaint when it does not, on a machine that ran.
pub async fn eventually<F>(within: Duration, mut check: impl FnMut() -> F) -> Outcome
where
    F: Future<Output = Outcome>,
{
    let begin = Instant::now();
    loop {
        match check().await {
            Ok(()) => return Ok(()),
            Err(failure) if stalls::is_late(begin, within) => return Err(failure.late()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A counter of a VM's network stack: `TcpInCsumErrors`, say.
pub async fn stack_counter(lab: &Lab, vm: &str, name: &str) -> Result<u64, Failure> {
    let output = lab.exec(vm, &["nstat", "-asz", name]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_ascii_whitespace().nth(1)).and_then(|word| word.parse().ok());
    value.ok_or_else(|| Failure::new(format!("nstat in {vm} says nothing of {name}: {text}")))
}

/// Counters that must not move: packets with wrong checksums.
pub async fn checksum_errors(lab: &Lab, vm: &str) -> Result<u64, Failure> {
    let mut sum = 0;
    for name in
        ["TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors", "IcmpInCsumErrors", "Icmp6InCsumErrors"]
    {
        sum += stack_counter(lab, vm, name).await?;
    }
    Ok(sum)
}

/// What may say why a scenario failed.
pub async fn evidence(lab: &Lab) -> String {
    let mut text = String::new();
    for node in lab.state().nodes.keys() {
        let Ok(metrics) = lab.metrics(node).await else {
            text.push_str(&format!("    {node} serves no metrics\n"));
            continue;
        };
        for (name, labels, value) in metrics.samples().filter(|(name, ..)| *name == "sluice_vni_drops_total")
        {
            text.push_str(&format!("    {node}: {name} {labels:?} {value}\n"));
        }
    }
    text
}
