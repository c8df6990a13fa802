//! TCP connections that stay open, and others that begin all the time, by `sluice-probe`. It changes with how that is started.

use super::load::Place;
use serde_json::Value;
use sluice_bench_report::shell::Failure;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

const PORT: u16 = 7081;

/// A process of `sluice-probe` in a network namespace, which is killed when this is dropped.
struct Probe {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Probe {
    /// Starts it, and waits until it is ready.
    fn start(probe: &Path, namespace: &str, words: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(probe).args(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("a probe without output")?;
        let mut started = Self { child, output: BufReader::new(output) };
        match started.line()?.as_str() {
            "ready" => Ok(started),
            other => Err(format!("{} {words:?} in {namespace} said {other:?}", probe.display()).into()),
        }
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The connections of all clients, and their server.
pub struct Held {
    clients: Vec<Probe>,
    _server: Probe,
}

/// What has become of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Those that stay.
    pub held: u64,
    /// Those of them that ended, or are silent for 15 s.
    pub lost: u64,
    /// Others that were answered, since the start.
    pub others: u64,
    /// Others that were not, since the start, although TCP repeats what is lost.
    pub others_failed: u64,
}

impl Held {
    /// Opens `connections` for each client that stay, and `per_s` others a second. Clients in the same namespace are one here.
    ///
    /// # Errors
    /// If the probe does not run, or a connection is not opened.
    pub fn open(
        probe: &Path,
        (server, address): (&str, Ipv4Addr),
        clients: &[Place],
        (connections, per_s): (u16, u32),
    ) -> Result<Self, Failure> {
        let at = SocketAddrV4::new(address, PORT).to_string();
        let server = Probe::start(probe, server, &["keep", &at])?;
        let mut namespaces: Vec<_> =
            clients.iter().filter_map(|place| place.namespace.file_name()?.to_str()).collect();
        namespaces.dedup();
        let share = clients.len() / namespaces.len().max(1);
        let [connections, per_s] =
            [usize::from(connections) * share, per_s as usize * share].map(|number| number.to_string());
        let words = ["hold", &at, &connections, &per_s];
        let probes = namespaces.into_iter().map(|namespace| Probe::start(probe, namespace, &words));
        let probes = probes.collect::<Result<_, _>>()?;
        Ok(Self { clients: probes, _server: server })
    }

    /// Sends by each connection that stays, and waits for the answers.
    ///
    /// # Errors
    /// If a probe does not answer.
    pub fn check(&mut self) -> Result<Connections, Failure> {
        for client in &mut self.clients {
            client.child.stdin.as_mut().ok_or("a probe without input")?.write_all(b"\n")?;
        }
        let mut sum = Connections::default();
        for client in &mut self.clients {
            let counts: Value = serde_json::from_str(&client.line()?)?;
            let number = |kind: &str, what: &str| counts[kind][what].as_u64().unwrap_or_default();
            let lost = |kind| number(kind, "silent") + number(kind, "ended");
            sum.held += number("held", "answered") + lost("held");
            sum.lost += lost("held");
            sum.others += number("others", "answered");
            sum.others_failed += lost("others");
        }
        Ok(sum)
    }
}
