//! The command of `make bench-internet`: what the Internet edge costs.
#![forbid(unsafe_code)]

mod failover;
mod gateway;
mod kernel;
mod measures;
mod meters;
mod packet;
mod replicated;
mod replication;
mod resync;
mod rig;
mod side;
#[cfg(test)]
mod tests;

use clap::Parser;
use measures::{FRESH, SIZES};
use sluice_bench_report::{Run, shell::Failure};
use sluice_bench_spine::forward::Effort;

/// Measure the Internet edge, with its peers
#[derive(Parser)]
struct Args {
    /// Seconds of a measurement
    #[arg(long, default_value_t = SECONDS)]
    seconds: f64,
    /// Rounds, in each of which every side is measured once
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', default_values_t = parts().map(str::to_owned))]
    parts: Vec<String>,
    /// Numbers of established sessions
    #[arg(long, value_delimiter = ',', default_values_t = SIZES.map(|(_, name)| name.to_owned()))]
    sizes: Vec<String>,
    /// Print the results without recording them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    replication: replication::Args,
}

const SECONDS: f64 = 0.5;
const ROUNDS: usize = 10;
const PARTS: [&str; 5] = ["established", "beginning", "memory", "public", "meters"];

/// Names of all parts.
fn parts() -> impl Iterator<Item = &'static str> {
    PARTS.into_iter().chain(replication::PARTS)
}

/// Explanation of the measurements for readers of the results.
const METHOD: &str = "\
All packets are UDP with checksums, 110 bytes with their tunnel. VMs behind a tunnel send to the Internet, which answers each
packet, and the answers return to the VMs' hosts; generator, gateway and answers share one core. `nat_mpps`: packets that are
translated in a second, in both directions together, of 100,000 to 10 million established sessions at random: 1,000 or 10,000
VMs, 50 ports of each, and 2 or 20 remote addresses of each port; they share 16 public addresses. `nftables`: a VXLAN device,
`snat` to as many addresses and connection tracking, with the same packets. `gateway`: the gateway's program between VMs without
translation, whose packets are received and sent by one interface; those to the Internet change interfaces. `nat_ns`: the
program alone, for packets to the Internet. `nat_cps`: 500,000 sessions that begin, each by a packet of a port of its own, until
the packet has left. `nat_session_bytes`: all memory of the tables when they refuse the first session, with port blocks in
which 50 of 64 ports are used; `conntrack`: the growth of the kernel's slabs, and the hash table. `eip_mpps`: as `nat_mpps`, but
each of 1,000 VMs has a public address of its own, without sessions. `meter_error_pct`: by how much the bytes of IP packets of 1,436
bytes, at 10 Gbit/s of 2,936 bytes, that pass in a second differ from the rate, once the burst of 50 ms has passed, if much more is offered: `nft limit` of
the bytes of IP packets in the forward hook, and `tbf`, whose bytes are those of frames, on the interface that they leave by. One packet
is 0.11 % of 10 Mbit/s. A difference below 0.001 % counts as 0.001 %.";

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let unknown = |wanted: &[String], known: &[&str]| {
        wanted.iter().find(|name| !known.contains(&name.as_str())).cloned().map_or(Ok(()), |name| {
            Err(Failure::from(format!("{name} is unknown; known are: {}", known.join(", "))))
        })
    };
    unknown(&args.parts, &parts().collect::<Vec<_>>())?;
    unknown(&args.sizes, &SIZES.map(|(_, name)| name))?;
    let run = Run::begin("internet")?;
    let effort = Effort { seconds: args.seconds, rounds: args.rounds.max(1), peers_to: 0 };
    let wants = |part: &str| args.parts.iter().any(|wanted| wanted == part);
    let mut measures = Vec::new();
    if wants("established") {
        measures.extend(measures::established(effort, &args.sizes)?);
    }
    if wants("beginning") {
        measures.extend(measures::beginning(effort, FRESH)?);
    }
    if wants("memory") {
        measures.extend(measures::memory(SIZES[1].0)?);
    }
    if wants("public") {
        measures.extend(measures::public(effort, SIZES[0].0)?);
    }
    if wants("meters") {
        measures.extend(meters::errors(effort.rounds)?);
    }
    let (more, notes) = replication::measure(&args.replication, effort, wants)?;
    measures.extend(more);
    let how = format!("{} rounds of {} s", args.rounds, args.seconds);
    let method = format!("{METHOD}\n\n{}", replication::METHOD);
    let text = run.section("Internet", &how, &method, &measures, &notes)?;
    let is_whole = parts().all(wants)
        && args.replication.are_whole()
        && args.sizes.len() == SIZES.len()
        && args.rounds >= ROUNDS
        && args.seconds >= SECONDS;
    run.finish(&measures, &text, is_whole && !args.dry_run)?;
    Ok(())
}
