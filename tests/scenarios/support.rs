//! What scenarios share: failures, pings, probes, counters.

use serde_json::Value;
use sluice_lab::{Lab, Topology, VmState};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout};

/// Why a scenario did not pass.
#[derive(Debug)]
pub struct Failure {
    text: String,
    /// A bound on time, rate or loss was exceeded, which a stall of the machine explains.
    late: bool,
}

/// How a scenario ends.
pub type Outcome = Result<(), Failure>;

impl Failure {
    /// A wrong result, which no stall of the machine explains.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), late: false }
    }

    /// A bound on time, rate or loss was exceeded: if the machine stood still meanwhile, the run is inconclusive.
    pub fn late(text: impl Into<String>) -> Self {
        Self { text: text.into(), late: true }
    }

    /// Whether a stall of the machine explains it.
    pub fn is_late(&self) -> bool {
        self.late
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

/// For how long scenarios with lossless streams repeat what happens under them: `SLUICE_SOAK_SECONDS`, which
/// `make soak` sets. Without it everything happens once.
pub fn soak() -> Duration {
    let seconds = std::env::var("SLUICE_SOAK_SECONDS");
    Duration::from_secs(seconds.map_or(0, |text| text.parse().expect("SLUICE_SOAK_SECONDS is a number")))
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

/// Like `ensure`, for a bound on time, rate or loss that a machine which stands still exceeds.
macro_rules! ensure_timely {
    ($condition:expr, $($text:tt)*) => {
        if $condition {
        } else {
            return Err($crate::support::Failure::late(format!($($text)*)));
        }
    };
}
pub(crate) use ensure_timely;

/// Number of answers that `ping` got, and its whole output.
#[derive(Debug)]
pub struct Ping {
    pub received: u64,
    pub text: String,
}

/// Runs a command in a VM, node or switch. It must succeed.
pub async fn execute(lab: &Lab, place: &str, argv: &[&str]) -> Outcome {
    let output = lab.exec(place, argv).await?;
    ensure!(output.status.success(), "{argv:?} in {place}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
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

/// Runs iperf3 from one VM or node to an address of another, with options for the client. Returns its report.
pub async fn iperf(
    lab: &Lab,
    (from, to): (&str, &str),
    target: IpAddr,
    port: u16,
    options: &[&str],
) -> Result<Value, Failure> {
    let (target, port) = (target.to_string(), port.to_string());
    let mut server = lab
        .command(to, &["iperf3", "-s", "-1", "-B", &target, "-p", &port])?
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let argv = [&["iperf3", "-c", &target, "-p", &port, "-J"], options].concat();
    let mut last = String::new();
    // The server needs some time until it listens.
    for _ in 0..20 {
        let output = lab.exec(from, &argv).await?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        if report["error"].is_null() {
            server.wait().await?;
            return Ok(report);
        }
        last = report["error"].to_string();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.kill().await?;
    Err(Failure::new(format!("iperf3 from {from} to {to}: {last}")))
}

/// Checks that each of three packets from one VM to an address is answered. Each is sent by a separate
/// `ping`, because after one answer `ping` hardly waits for others.
pub async fn answers(lab: &Lab, from: &str, target: IpAddr, options: &[&str]) -> Outcome {
    let options: Vec<&str> = ["-c", "1", "-W", "5"].iter().chain(options).copied().collect();
    for _ in 0..3 {
        let ping = ping(lab, from, target, &options).await?;
        ensure!(ping.received == 1, "{from} -> {target}: {}", ping.text);
    }
    Ok(())
}

/// Checks that every packet from one VM to all addresses of another is answered.
pub async fn reaches(lab: &Lab, from: &str, to: &str) -> Outcome {
    let addresses = lab.vm(to)?.addresses();
    ensure!(addresses.len() == 2, "{to} has not both families: {addresses:?}");
    for address in addresses {
        answers(lab, from, address, &[]).await?;
    }
    Ok(())
}

/// Checks that no packet from a VM to an address is answered.
pub async fn never_reaches(lab: &Lab, from: &str, target: IpAddr) -> Outcome {
    let ping = ping(lab, from, target, &["-c", "3", "-i", "0.1", "-W", "0.5"]).await?;
    ensure!(ping.received == 0, "{from} -> {target} was answered: {}", ping.text);
    Ok(())
}

/// Number of drops of a VNI for a reason, summed over all nodes.
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

/// The direct path of a host from a network to a destination; `None` if packets go to a gateway.
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
    /// Starts a probe.
    pub fn start(lab: &Lab, place: &str, words: &[&str]) -> Result<Self, Failure> {
        let argv: Vec<&str> = std::iter::once(PROBE).chain(words.iter().copied()).collect();
        let mut child = lab.command(place, &argv)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("a probe without output"))?;
        Ok(Self { child, stdout: BufReader::new(stdout) })
    }

    /// Starts a probe that listens, and waits until it does.
    pub async fn listening(lab: &Lab, place: &str, words: &[&str]) -> Result<Self, Failure> {
        let mut probe = Self::start(lab, place, words)?;
        let mut line = String::new();
        probe.stdout.read_line(&mut line).await?;
        ensure!(line.trim() == "ready", "probe {words:?} in {place} does not listen");
        Ok(probe)
    }

    /// Waits for the end of a probe that prints nothing.
    pub async fn end(mut self) -> Outcome {
        let status = self.child.wait().await?;
        ensure!(status.success(), "a probe failed: {status}");
        Ok(())
    }

    /// Stops a stream.
    pub async fn stop(&mut self) -> Outcome {
        if let Some(stdin) = &mut self.child.stdin {
            stdin.write_all(b"\n").await?;
        }
        Ok(())
    }

    /// Asks the probe for another line of JSON.
    pub async fn next(&mut self) -> Result<Value, Failure> {
        self.stop().await?;
        let mut line = String::new();
        self.stdout.read_line(&mut line).await?;
        serde_json::from_str(line.trim())
            .map_err(|error| Failure::new(format!("probe said `{}`: {error}", line.trim())))
    }

    /// Kills the probe, and waits for its end: then another one can listen at its address.
    pub async fn kill(mut self) -> Outcome {
        Ok(self.child.kill().await?)
    }

    /// Waits for the end of the probe, and returns its result.
    pub async fn result(mut self) -> Result<Value, Failure> {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).await?;
        let status = self.child.wait().await?;
        ensure!(status.success(), "a probe failed: {status}, {text}");
        serde_json::from_str(text.trim())
            .map_err(|error| Failure::new(format!("probe said `{text}`: {error}")))
    }
}

/// The name of the VM that answers at an address by `udp` or `tcp`; `None` without an answer.
pub async fn who(lab: &Lab, from: &str, protocol: &str, at: SocketAddr) -> Result<Option<String>, Failure> {
    let answer = Probe::start(lab, from, &["ask", protocol, &at.to_string()])?.result().await?;
    Ok(answer["name"].as_str().map(str::to_owned))
}

/// A number of a result.
pub fn number(result: &Value, key: &str) -> Result<u64, Failure> {
    result[key].as_u64().ok_or_else(|| Failure::new(format!("no number `{key}` in {result}")))
}

/// Sets a hello interval of 100 ms instead of 4, so that a stall of tens of milliseconds is no failure of a
/// gateway. `takeover_default`, the bench and the simulation use the default.
pub fn slow_hellos(topology: &mut Topology) {
    topology.cluster.hello_interval_ms = Some(100);
    topology.other_clusters.iter_mut().for_each(|cluster| cluster.hello_interval_ms = Some(100));
}

/// Leaves the Internet out: a VPC with public addresses stays on its cluster.
pub fn without_internet(topology: &mut Topology) {
    topology.internet = None;
    topology.vpcs.iter_mut().for_each(|vpc| (vpc.internet, vpc.nat) = (false, Vec::new()));
}

/// The address of one family.
pub fn address(vm: &VmState, ipv6: bool) -> Result<IpAddr, Failure> {
    let found = vm.addresses().into_iter().find(|address| address.is_ipv6() == ipv6);
    found.ok_or_else(|| Failure::new(format!("instance {} lacks a family", vm.id)))
}

/// Whether the API refused a call because gateways' tables may not hold the objects.
pub fn is_tables_full(error: &sluice_client::Error) -> bool {
    let sluice_client::Error::Refused { problem, .. } = error else { return false };
    problem.kind.as_deref() == Some("urn:sluice:problem:tables-full")
}

/// Waits until a check holds. Fails with its last complaint if it does not within the time given, which is a
/// bound on Sluice: if the machine stood still meanwhile, the run is inconclusive.
pub async fn eventually<F>(within: Duration, mut check: impl FnMut() -> F) -> Outcome
where
    F: Future<Output = Outcome>,
{
    let until = Instant::now() + within;
    loop {
        match check().await {
            Ok(()) => return Ok(()),
            Err(failure) if Instant::now() > until => {
                return Err(Failure::late(format!("not within {} s: {failure}", within.as_secs_f64())));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// A counter of a VM's network stack, such as `TcpInCsumErrors`.
pub async fn stack_counter(lab: &Lab, vm: &str, name: &str) -> Result<u64, Failure> {
    stack_counters(lab, vm, &[name]).await
}

/// The sum of counters of a VM's network stack.
async fn stack_counters(lab: &Lab, vm: &str, names: &[&str]) -> Result<u64, Failure> {
    let output = lab.exec(vm, &[&["nstat", "-asz"], names].concat()).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut sum = 0;
    for name in names {
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        let value = line.and_then(|line| line.split_ascii_whitespace().nth(1));
        let value = value.and_then(|word| word.parse::<u64>().ok());
        sum += value.ok_or_else(|| Failure::new(format!("nstat in {vm} says nothing of {name}: {text}")))?;
    }
    Ok(sum)
}

/// Counters that must not change: packets with wrong checksums.
pub async fn checksum_errors(lab: &Lab, vm: &str) -> Result<u64, Failure> {
    const NAMES: [&str; 5] =
        ["TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors", "IcmpInCsumErrors", "Icmp6InCsumErrors"];
    stack_counters(lab, vm, &NAMES).await
}
