//! The command of `make bench-hosts`: what hosts learn, and what that costs.
#![forbid(unsafe_code)]

mod changes;
mod gateway;
mod load;
mod programming;
mod simulation;
#[cfg(test)]
mod tests;

use clap::Parser;
use load::Load;
use simulation::{Outcome, Reconciled, Settings};
use sluice_bench_report::{Better, Measure, Run, shell::Failure};
use std::path::PathBuf;

/// Measure what hosts learn
#[derive(Clone, Parser)]
struct Args {
    /// Simulated seconds that are measured, after the first minute
    #[arg(long, default_value_t = SECONDS)]
    seconds: u64,
    /// VMs of the VPC
    #[arg(long, default_value_t = VMS)]
    vms: u32,
    /// The sluice binary that the labs run
    #[arg(long, default_value = "target/release/sluice")]
    binary: PathBuf,
    /// Instances that are created in each VPC of a lab
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Instances of the largest VPC of a lab; 0: no labs
    #[arg(long, default_value_t = LARGEST)]
    largest: u32,
    /// Print the results without recording them
    #[arg(long)]
    dry_run: bool,
}

const SECONDS: u64 = 600;
const VMS: u32 = 1_500_000;
const ROUNDS: usize = 20;
const LARGEST: u32 = programming::SIZES[2].0;
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
permits, of 1 Gbit/s. `one by one`: the same host, if it asks about each path every 100 ms, as RSP 2.2 did; at most 1,024 in 50 ms.
`program_one_ms_*`: a VPC of a lab has so many instances, on hosts without an agent, and another one is created on a host with one: from the call to the
first answer that its VM gives to a VM on another host, which sends to it every 0.2 ms. The port is attached as soon as the agent knows the instance;
neighbor entries are permanent. `preprogrammed`: the same controller, if hosts have the paths to all instances (`--model preprogrammed`).
`burst_20k_s`: from a call that creates 20,000 instances to the last gateway's acknowledgment. `changes_1200_*`: 16 clients make 1,200 calls a second in all, for
as many seconds as are simulated; each creates, moves and deletes an instance in turn. The time of a change counts from when it was due, even if its client was still
busy, until a question, asked every 5 ms, finds that both gateways have acknowledged it (`_ms`: median, least and most; `_p99_ms`); `_per_s`: changes that
gateways had in a second.";

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let run = Run::begin("hosts")?;
    let settings = Settings { seconds: args.seconds, load: Load { vms: args.vms, ..Load::default() } };
    let ours = simulation::run(&settings, Reconciled::ByNetwork)?;
    let theirs = simulation::run(&settings, Reconciled::OneByOne)?;
    let mut measures = measures(&ours, &theirs);
    if args.largest > 0 {
        measures.extend(changes::measure(&args.binary, args.seconds)?);
        let Args { binary, rounds, largest, .. } = args.clone();
        measures.extend(programming::measure(&programming::Settings { binary, rounds, largest })?);
    }
    let how = format!("{} simulated seconds, {} new instances", args.seconds, args.rounds);
    let text = run.section("Hosts", &how, METHOD, &measures, &[])?;
    let is_whole =
        args.seconds >= SECONDS && args.vms == VMS && args.rounds >= ROUNDS && args.largest == LARGEST;
    run.finish(&measures, &text, is_whole && !args.dry_run)?;
    Ok(())
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
