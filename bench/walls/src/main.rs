//! The command of `make bench-walls`: what security groups cost.
#![forbid(unsafe_code)]

mod revocation;

use clap::Parser;
use sluice_bench_report::{Run, shell::Failure};
use sluice_bench_spine::forward::Effort;
use sluice_bench_spine::lab::in_lab;
use sluice_bench_spine::tcp::{self, Stream};
use sluice_bench_spine::vswitch::walls;
use sluice_lab::Lab;
use std::path::{Path, PathBuf};

/// Measure security groups, with their peers
#[derive(Parser)]
struct Args {
    /// The sluice binary that the lab runs
    #[arg(long, default_value = "target/release/sluice")]
    binary: PathBuf,
    /// Seconds of a measurement of packets; those between VMs take three times as long
    #[arg(long, default_value_t = SECONDS)]
    seconds: f64,
    /// Rounds, in each of which every side is measured once
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', default_values_t = PARTS.map(str::to_owned))]
    parts: Vec<String>,
    /// Print the results without recording them
    #[arg(long)]
    dry_run: bool,
}

const LAB: &str = "benchwalls";
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 10;
const PARTS: [&str; 3] = ["packets", "vms", "revocation"];

/// Explanation of the measurements for readers of the results.
const METHOD: &str = "\
`fast_path_ns`, `slow_path_ns`: what a packet between two VMs of a host takes longer than a packet that ends where it is
received, as for `vswitch_local_ns` of the spine, but the receiver is filtered by 1,000 or 10,000 rules: each for a source
and ten TCP ports of its own, and one that permits the measured packets. On the fast path packets belong to 1,024 UDP flows
that have begun; on the slow path each packet begins a flow. `nft_ct`: a bridge whose frames pass netfilter
(br_netfilter), connection tracking, and a verdict map of nftables (source address, protocol, range of ports) with the same
rules, which is asked for the first packet only; the others pass by a connection mark. It has the tables of the spine's
`kernel`, and checks no source. `new_flows_per_s`: the slow path with one rule, on one core. `slow_path_attack_ratio`: the
program's time for the first packet of a flow by 430 rules that combine 33 nested prefixes with 13 ranges of ports, so that
each lookup is as long as rules can make it, divided by its time with 1,000 usual rules. `vm_tcp_gbps`, `vm_pps`: iperf3
between VMs on two hosts, by TCP and by UDP packets of 64 bytes; both are filtered by their group `default`, which permits
what comes from the group. `kernel_vxlan` there has bridges and VXLAN devices only. `rule_change_ms`: from the call that
deletes a rule until the host has ended the last of 100,000 sessions that the rule alone permitted.";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    if let Some(unknown) = args.parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(format!("there is no part {unknown}; the parts are: {}", PARTS.join(", ")).into());
    }
    let run = Run::begin("walls")?;
    let effort = Effort { seconds: args.seconds, rounds: args.rounds.max(1), peers_to: 0 };
    let topology = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab.yaml");
    let wants = |part: &str| args.parts.iter().any(|wanted| wanted == part);
    let mut measures = Vec::new();
    if wants("packets") {
        measures.extend(tokio::task::spawn_blocking(move || walls::measure(effort)).await??);
    }
    if wants("vms") || wants("revocation") {
        let work = async |lab: Lab| {
            let mut measures = Vec::new();
            if wants("vms") {
                let effort = Effort { seconds: effort.seconds * 3.0, ..effort };
                for stream in [Stream::Tcp, Stream::Packets] {
                    measures.extend(tcp::measure(&lab, effort, stream).await?);
                }
            }
            if wants("revocation") {
                measures.push(revocation::measure(&lab, effort.rounds).await?);
            }
            Ok(measures)
        };
        measures.extend(in_lab(LAB, &topology, &args.binary, work).await?);
    }
    let how = format!("{} rounds of {} s", args.rounds, args.seconds);
    let text = run.section("Walls", &how, METHOD, &measures, &[])?;
    let is_whole = PARTS.iter().all(|part| wants(part)) && args.rounds >= ROUNDS && args.seconds >= SECONDS;
    run.finish(&measures, &text, is_whole && !args.dry_run)?;
    Ok(())
}
