//! `kill -9` of a gateway's agent, a host's, the controller, and all at once:
//! not one packet of 1000 a second is lost, nor does a TCP stream stop; what
//! comes back takes new changes.

use crate::Ground;
use crate::support::{
    Failure, Outcome, Probe, address, ensure, lost_nothing, number, reaches, stack_counter,
};
use serde_json::Value;
use sluice_client::Instance;
use sluice_lab::{CONTROLLER, Lab};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Child;

const PORT: u16 = 7011;
const IPERF_PORT: &str = "5211";
const SECONDS: u64 = 30;
/// Segments that the receiver reports to have got twice (RFC 2883).
const DUPLICATES: &str = "TcpExtTCPDSACKRecvSegs";
/// An acknowledgement has room for one such report: some are never made.
const UNREPORTED: u64 = 2;
const BACK: Duration = Duration::from_secs(15);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    // Through both underlays, in both families.
    let ways = [("web-1", "web-3", false), ("web-3", "web-1", true), ("db-1", "db-2", false)];
    let mut listeners = Vec::new();
    let mut streams = Vec::new();
    let seconds = SECONDS.to_string();
    for (from, to, ipv6) in ways {
        let at = SocketAddr::new(address(lab.vm(to)?, ipv6)?, PORT).to_string();
        listeners.push(Probe::listening(lab, to, &["echo", &at, to]).await?);
        streams
            .push((format!("{from} -> {at}"), Probe::start(lab, from, &["stream", &at, "1000", &seconds])?));
    }
    let tcp = TcpStream::start(lab, "web-2", "web-3").await?;
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let everything: Vec<&str> = lab.state().nodes.keys().map(String::as_str).chain([CONTROLLER]).collect();
    for victims in [vec!["gw-a"], vec!["host-a"], vec![CONTROLLER], everything] {
        kill_and_restart(lab, &victims).await?;
    }
    let took = begin.elapsed().as_secs();
    ensure!(took < SECONDS, "kills and restarts took {took} s, longer than the streams of {SECONDS} s");
    for (what, stream) in streams {
        lost_nothing(&what, &stream.result().await?, SECONDS * 1000)?;
    }
    tcp.went_on(lab).await?;
    drop(listeners);
    new_changes_are_programmed(lab).await
}

async fn kill_and_restart(lab: &Lab, victims: &[&str]) -> Outcome {
    futures::future::try_join_all(victims.iter().map(|victim| lab.kill(victim))).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    for victim in victims {
        lab.restart(victim)?;
    }
    lab.api().wait_ready(BACK).await?;
    for node in lab.state().nodes.keys() {
        lab.synchronized(node, BACK).await?;
    }
    Ok(())
}

async fn new_changes_are_programmed(lab: &Lab) -> Outcome {
    for host in ["host-a", "host-c"] {
        let name = format!("new-{host}");
        let vm = lab.add_vm(&name, "web", "front", host).await?;
        for from in ["web-1", "web-3"] {
            for target in vm.addresses() {
                let ping =
                    crate::support::ping(lab, from, target, &["-c", "2", "-i", "0.1", "-W", "2"]).await?;
                ensure!(ping.received == 2, "{from} -> {name}, made after the restart: {}", ping.text);
            }
        }
        lab.api().delete::<Instance>(vm.id, None).await?;
        lab.unplug_vm(&name).await?;
    }
    reaches(lab, "web-1", "db-2").await
}

/// iperf3 between two VMs, at a rate that leaves room for others.
struct TcpStream {
    sender: &'static str,
    duplicates: u64,
    server: Child,
    client: Child,
}

impl TcpStream {
    async fn start(lab: &Lab, from: &'static str, to: &str) -> Result<Self, Failure> {
        let duplicates = stack_counter(lab, from, DUPLICATES).await?;
        let target = address(lab.vm(to)?, false)?.to_string();
        let mut server = lab.command(to, &["iperf3", "-s", "-1", "-B", &target, "-p", IPERF_PORT])?;
        let server = server.stdout(Stdio::null()).spawn()?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let seconds = SECONDS.to_string();
        // Small writes: a stream without bursts.
        let argv = ["iperf3", "-c", &target, "-p", IPERF_PORT, "-t", &seconds, "-b", "20M", "-l", "4K", "-J"];
        let client = lab.command(from, &argv)?.stdout(Stdio::piped()).spawn()?;
        Ok(Self { sender: from, duplicates, server, client })
    }

    /// Bytes arrived in every second, and no segment was lost: what was sent
    /// twice by a sender that had to wait for a processor arrived twice.
    async fn went_on(mut self, lab: &Lab) -> Outcome {
        let output = self.client.wait_with_output().await?;
        self.server.wait().await?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(report["error"].is_null(), "TCP stream broke: {}", report["error"]);
        let intervals = report["intervals"].as_array().cloned().unwrap_or_default();
        let idle = intervals.iter().filter(|interval| interval["sum"]["bytes"].as_u64() == Some(0)).count();
        ensure!(idle == 0 && intervals.len() as u64 + 1 >= SECONDS, "TCP stream stood still for {idle} s");
        let resent = number(&report["end"]["sum_sent"], "retransmits")?;
        let twice = stack_counter(lab, self.sender, DUPLICATES).await? - self.duplicates;
        let when: Vec<_> = intervals.iter().map(|interval| interval["sum"]["retransmits"].as_u64()).collect();
        ensure!(
            resent <= twice + UNREPORTED,
            "TCP lost segments: {resent} sent again, {twice} arrived twice; {when:?}"
        );
        Ok(())
    }
}
