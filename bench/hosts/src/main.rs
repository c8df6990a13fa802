//! The command of `make bench-hosts`: what hosts learn, and what that costs.
#![forbid(unsafe_code)]

mod agent;
mod changes;
mod credit;
mod ecmp;
mod gateway;
mod load;
mod migration;
mod programming;
mod scale;
mod simulation;
#[cfg(test)]
mod tests;

use clap::Parser;
use load::Load;
use scale::Fleet;
use simulation::{Outcome, Reconciled, Settings};
use sluice_bench_report::{Better, Measure, Run, shell::Failure};
use std::path::PathBuf;
use std::time::Duration;

/// Measure what hosts learn, what a busy VM leaves to its neighbors, and what migrations cost
#[derive(Clone, Parser)]
struct Args {
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', default_values_t = PARTS.map(str::to_owned))]
    parts: Vec<String>,
    /// Simulated seconds that are measured, after the first minute
    #[arg(long, default_value_t = SECONDS)]
    seconds: u64,
    /// VMs of the VPC
    #[arg(long, default_value_t = VMS)]
    vms: u32,
    /// The sluice binary that the labs run
    #[arg(long, default_value = "target/release/sluice")]
    binary: PathBuf,
    /// The sluice-probe binary, which answers in VMs that migrate
    #[arg(long, default_value = "target/release/sluice-probe")]
    probe: PathBuf,
    /// Instances that are created in each VPC of a lab
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Instances of the largest VPC of a lab; 0: no such lab
    #[arg(long, default_value_t = LARGEST)]
    largest: u32,
    /// Rounds of the stages of elastic credit
    #[arg(long, default_value_t = CREDIT_ROUNDS)]
    credit_rounds: usize,
    /// Rounds of each kind of change of a service's members
    #[arg(long, default_value_t = ECMP_ROUNDS)]
    ecmp_rounds: usize,
    /// Moves of each kind of a VM that is a namespace
    #[arg(long, default_value_t = MOVES)]
    moves: usize,
    /// Migrations of each kind of a guest of QEMU; 0: no guests
    #[arg(long, default_value_t = GUESTS)]
    guests: usize,
    /// Print the results without recording them
    #[arg(long)]
    dry_run: bool,
}

const SECONDS: u64 = 600;
const FLEET_SECONDS: u64 = 20;
const VMS: u32 = 1_500_000;
const ROUNDS: usize = 20;
const LARGEST: u32 = programming::SIZES[2].0;
const CREDIT_ROUNDS: usize = 3;
const ECMP_ROUNDS: usize = 100;
const MOVES: usize = 100;
const GUESTS: usize = 20;
/// After this time without an answer, applications connect again that do so by a timer, as in the paper.
const TIMER: Duration = Duration::from_secs(32);
const PARTS: [&str; 5] = ["cache", "programming", "credit", "ecmp", "migrations"];
/// The traffic of a host of which RSP has a share.
const TRAFFIC_BPS: f64 = 1e9;
const PEER: &str = "one by one";

/// Explanation of the measurements for readers of the results.
const METHOD: &str = "\
`fc_entries_*`, `rsp_*`: computed, by the real cache and the real packets of RSP, with simulated time. A host of a VPC of 1.5 million VMs
has 30 of them. They begin to send to 60 destinations a second, or to 120 for 20 s of each two minutes, for 10 s on average
(exponential). Each destination is one of the VMs by Zipf's law with exponent 1, so the most popular one has 7% of all. A gateway notifies the
host of each within a second; a path ends after 30 s without use. In the VPC, 1,200 instances come, move or end in a second, of which 600
are told (those that come are not). `fc_entries_mean`, `fc_entries_peak`: paths of the host, in ten minutes after the first one.
`rsp_questions_per_s`: networks and paths that it asks about.
`wrong_paths_pct`: of its paths, on average, those that lead to a host which the instance has left. `rsp_share_pct`: all RSP of the host, both directions, IP packets with
permits, of 1 Gbit/s. `rsp_10k_*`: what all gateways of a VPC get from 10,000 hosts that have 3,700 paths each, at random, of which one is
simulated for 20 s: questions about networks and about paths (renewing permits), packets that gateways receive, all bytes, and the
processors of this machine that opening and sealing the packets takes. Looking paths up comes on top, about a microsecond each.
Divided by the number of gateways, it is the load of one, but for packets: with more gateways, each gets fewer questions in a packet. `one by one`: the same host,
if it asks about each path every 100 ms, as RSP 2.2 did; at most 1,024 in 50 ms.
`program_one_ms_*`: a VPC of a lab has so many instances, on hosts without an agent, and another one is created on a host with one: from the call to the
first answer that its VM gives to a VM on another host, which sends to it every 0.2 ms. The port is attached as soon as the agent knows the instance;
neighbor entries are permanent. `preprogrammed`: the same controller, if hosts have the paths to all instances (`--model preprogrammed`).
`burst_20k_s`: from a call that creates 20,000 instances to the last gateway's acknowledgment. `changes_1200_*`: 16 clients make 1,200 calls a second in all, for
as many seconds as are simulated; each creates, moves and deletes an instance in turn. The time of a change counts from when it was due, even if its client was still
busy, until a question, asked every 5 ms, finds that both gateways have acknowledged it (`_ms`: median, least and most; `_p99_ms`); `_per_s`: changes that
gateways had in a second.";

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    if let Some(name) = args.parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(format!("{name} is unknown; known are: {}", PARTS.join(", ")).into());
    }
    let run = Run::begin("hosts")?;
    let wants = |part: &str| args.parts.iter().any(|wanted| wanted == part);
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    if wants("cache") {
        let settings = Settings { seconds: args.seconds, load: Load { vms: args.vms, ..Load::default() } };
        let ours = simulation::run(&settings, Reconciled::ByNetwork)?;
        let theirs = simulation::run(&settings, Reconciled::OneByOne)?;
        all.extend(measures(&ours, &theirs));
        let [ours, theirs] = [Reconciled::ByNetwork, Reconciled::OneByOne]
            .map(|how| scale::run(FLEET_SECONDS, settings.load.changes_per_s, how));
        all.extend(fleet_measures(&ours?, &theirs?));
    }
    if wants("programming") && args.largest > 0 {
        all.extend(changes::measure(&args.binary, args.seconds)?);
        let Args { binary, rounds, largest, .. } = args.clone();
        all.extend(programming::measure(&programming::Settings { binary, rounds, largest })?);
    }
    if wants("credit") {
        let (binary, rounds) = (args.binary.clone(), args.credit_rounds);
        let (more, said) = credit::measure(&credit::Settings { binary, rounds })?;
        all.extend(more);
        notes.extend(said);
    }
    if wants("ecmp") {
        let (binary, rounds) = (args.binary.clone(), args.ecmp_rounds);
        let (more, said) = ecmp::measure(&ecmp::Settings { binary, rounds })?;
        all.extend(more);
        notes.extend(said);
    }
    if wants("migrations") {
        let Args { binary, probe, moves, guests, .. } = args.clone();
        let settings = migration::Settings { binary, probe, moves, guests, timer: TIMER };
        let (more, said) = migration::measure(&settings)?;
        all.extend(more);
        notes.extend(said);
    }
    let how = format!(
        "{} simulated seconds, {} new instances, {} rounds of credit, {} of each change of members, {} moves of each kind and {} migrations of guests of \
         QEMU of each kind",
        args.seconds, args.rounds, args.credit_rounds, args.ecmp_rounds, args.moves, args.guests
    );
    let method = [METHOD, credit::METHOD, ecmp::METHOD, migration::METHOD].join("\n\n");
    let text = run.section("Hosts", &how, &method, &all, &notes)?;
    run.finish(&all, &text, args.is_whole() && !args.dry_run)?;
    Ok(())
}

impl Args {
    /// Whether everything is measured as often as results need it.
    fn is_whole(&self) -> bool {
        let has_all_parts = PARTS.iter().all(|part| self.parts.iter().any(|wanted| wanted == part));
        let is_long = self.seconds >= SECONDS && self.vms == VMS;
        let is_often =
            self.rounds >= ROUNDS && self.credit_rounds >= CREDIT_ROUNDS && self.ecmp_rounds >= ECMP_ROUNDS;
        let moves_all = self.moves >= MOVES && self.guests >= GUESTS;
        has_all_parts && is_long && is_often && self.largest == LARGEST && moves_all
    }
}

fn measures(ours: &Outcome, theirs: &Outcome) -> Vec<Measure> {
    let beside = |name: &str, unit, of: fn(&Outcome) -> f64| {
        Measure::computed_beside(name, unit, Better::Less, of(ours), (PEER, of(theirs)))
    };
    vec![
        Measure::computed("fc_entries_mean", "paths", ours.entries_mean),
        Measure::computed("fc_entries_peak", "paths", ours.entries_peak),
        beside("rsp_questions_per_s", "1/s", |it| it.questions_per_s),
        beside("wrong_paths_pct", "%", |it| it.wrong_share * 100.0),
        beside("rsp_share_pct", "%", |it| it.bytes_per_s * 8.0 / TRAFFIC_BPS * 100.0),
    ]
}

fn fleet_measures(ours: &Fleet, theirs: &Fleet) -> Vec<Measure> {
    let beside = |name: &str, unit, of: fn(&Fleet) -> f64| {
        Measure::computed_beside(name, unit, Better::Less, of(ours), (PEER, of(theirs)))
    };
    vec![
        Measure::computed("rsp_10k_network_questions_per_s", "1/s", ours.networks),
        Measure::computed("rsp_10k_permits_per_s", "1/s", ours.permits),
        beside("rsp_10k_path_questions_per_s", "1/s", |it| it.paths),
        beside("rsp_10k_packets_received_per_s", "1/s", |it| it.packets[0]),
        beside("rsp_10k_packets_sent_per_s", "1/s", |it| it.packets[1]),
        beside("rsp_10k_gbps", "Gbit/s", |it| it.bytes * 8.0 / 1e9),
        beside("rsp_10k_processors", "processors", |it| it.processors),
    ]
}
