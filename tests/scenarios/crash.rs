//! `kill -9` of a gateway's agent, of a host's agent, of the controller, and of all at once: of 1000 packets
//! per second none is lost, no TCP stream stops, and restarted processes accept new changes. `make soak` repeats it for
//! five minutes.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, address, answers, ensure, number, reaches, soak, stack_counter};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sluice_client::Instance;
use sluice_lab::{CONTROLLER, Lab};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Child;

const PORT: u16 = 7011;
const IPERF_PORT: &str = "5211";
/// Number of duplicate segments that the receiver reported (RFC 2883).
const DUPLICATES: &str = "TcpExtTCPDSACKRecvSegs";
/// An acknowledgment has space for one such report, so some are not sent, for each round of kills.
const UNREPORTED: u64 = 2;
const BACK: Duration = Duration::from_secs(75);
/// Longer than the whole scenario without [`soak`]; the stream is stopped when the rest is done.
const TCP_DURATION: Duration = Duration::from_secs(300);
/// First words of the message that reports it.
const ENDED: &str = "interrupt - the client has terminated";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    // Through both underlays, in both address families.
    let ways = [("web-1", "web-3", false), ("web-3", "web-1", true), ("db-1", "db-2", false)];
    let streams = Streams::start(lab, &ways, PORT, 1000).await?;
    let tcp = TcpStream::start(lab, "web-2", "web-3").await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let everything: Vec<&str> = lab.state().nodes.keys().map(String::as_str).chain([CONTROLLER]).collect();
    let (begin, mut rounds) = (Instant::now(), 0);
    while rounds == 0 || begin.elapsed() < soak() {
        for victims in [&["gw-a"], &["host-a"], &[CONTROLLER], everything.as_slice()] {
            kill_and_restart(lab, victims).await?;
        }
        rounds += 1;
    }
    streams.end().await?;
    tcp.went_on(lab, rounds).await?;
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
                answers(lab, from, target, &[]).await?;
            }
        }
        lab.api().delete::<Instance>(vm.id, None).await?;
        lab.unplug_vm(&name).await?;
    }
    reaches(lab, "web-1", "db-2").await
}

/// iperf3 between two VMs, at a rate that leaves capacity for other traffic.
struct TcpStream {
    sender: &'static str,
    duplicates: u64,
    begin: Instant,
    server: Child,
    client: Child,
}

impl TcpStream {
    async fn start(lab: &Lab, from: &'static str, to: &str) -> Result<Self, Failure> {
        let duplicates = stack_counter(lab, from, DUPLICATES).await?;
        let target = address(lab.vm(to)?, false)?.to_string();
        let mut server = lab.command(to, &["iperf3", "-s", "-1", "-B", &target, "-p", IPERF_PORT])?;
        let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        // Small writes make a stream without bursts.
        let seconds = (TCP_DURATION + soak()).as_secs().to_string();
        let argv = ["iperf3", "-c", &target, "-p", IPERF_PORT, "-t", &seconds, "-b", "20M", "-l", "4K", "-J"];
        let client = lab.command(from, &argv)?.stdout(Stdio::piped()).spawn()?;
        Ok(Self { sender: from, duplicates, begin: Instant::now(), server, client })
    }

    /// Checks that bytes arrived in every second, and that no segment was lost: as many duplicates arrived as
    /// the sender retransmitted, which it does when it waits for a processor.
    async fn went_on(mut self, lab: &Lab, rounds: u64) -> Outcome {
        let took = self.begin.elapsed().as_secs();
        if let Some(client) = self.client.id() {
            kill(Pid::from_raw(client.cast_signed()), Signal::SIGINT)?;
        }
        let output = self.client.wait_with_output().await?;
        self.server.wait().await?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let error = report["error"].as_str().unwrap_or_default();
        ensure!(error.starts_with(ENDED), "TCP stream broke: {}", report["error"]);
        let mut intervals = report["intervals"].as_array().cloned().unwrap_or_default();
        // The last interval may have any length.
        intervals.pop();
        let idle = intervals.iter().filter(|interval| interval["sum"]["bytes"].as_u64() == Some(0)).count();
        let reported = intervals.len();
        ensure!(
            idle == 0 && 2 * reported as u64 >= took,
            "TCP stood still for {idle} s, {reported} of {took} reported"
        );
        let resent = number(&report["end"]["sum_sent"], "retransmits")?;
        let twice = stack_counter(lab, self.sender, DUPLICATES).await? - self.duplicates;
        let when: Vec<_> = intervals.iter().map(|interval| interval["sum"]["retransmits"].as_u64()).collect();
        ensure!(
            resent <= twice + UNREPORTED * rounds,
            "TCP lost segments: {resent} sent again, {twice} arrived twice; {when:?}"
        );
        Ok(())
    }
}
