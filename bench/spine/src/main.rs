//! `make bench-spine`: the spine's figures, each beside its peers in one run.
#![forbid(unsafe_code)]

use clap::Parser;
use sluice_bench_report::{self as report, shell::Failure};
use sluice_bench_spine::forward::Effort;
use sluice_bench_spine::{forward, programming, tcp};
use sluice_lab::{Lab, Options, Topology};
use std::path::{Path, PathBuf};

/// Measures the spine beside its peers
#[derive(Parser)]
struct Args {
    /// The sluice binary that the lab runs
    #[arg(long, default_value = "target/release/sluice")]
    binary: PathBuf,
    /// Seconds of each round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Largest table that the peers are given
    #[arg(long, default_value_t = 1_000_000)]
    peers_to: u32,
    /// Only these sizes of the VM-NC table in the forward part
    #[arg(long, value_delimiter = ',', default_value = "2k,100k,1m")]
    sizes: Vec<String>,
    /// Only these parts: forward, tcp, programming
    #[arg(long, value_delimiter = ',', default_value = "forward,tcp,programming")]
    parts: Vec<String>,
    /// Print only, record nothing
    #[arg(long)]
    dry_run: bool,
}

const LAB: &str = "benchspine";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let effort = Effort { seconds: args.seconds, rounds: args.rounds.max(1), peers_to: args.peers_to };
    let wants = |part: &str| args.parts.iter().any(|wanted| wanted == part);
    let (mut measures, mut stages) = (Vec::new(), String::new());
    if wants("forward") {
        let sizes = args.sizes.clone();
        measures.extend(tokio::task::spawn_blocking(move || forward::measure(effort, &sizes)).await??);
    }
    if wants("tcp") || wants("programming") {
        let outcome = in_lab(&args.binary, effort, wants("tcp"), wants("programming")).await;
        sluice_lab::down(LAB).await?;
        let (more, said) = outcome?;
        measures.extend(more);
        stages = said;
    }
    let table = report::table(&measures);
    print!("{table}\n{stages}");
    if !args.dry_run {
        let machine = report::machine()?;
        let text = format!(
            "## Spine\n\n`make bench-spine`, {machine}; medians of {} rounds of {} s.\n\n{table}\nStages of the bulk calls, by the controller's own clocks:\n\n{stages}",
            effort.rounds, effort.seconds
        );
        report::record(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), "spine", &measures, &text)?;
    }
    Ok(())
}

async fn in_lab(
    binary: &Path,
    effort: Effort,
    tcp: bool,
    programming: bool,
) -> Result<(Vec<report::Measure>, String), Failure> {
    let mut options = Options::standard(LAB, binary)?;
    options.topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lab.yaml"))?;
    let lab = Lab::up(options).await?;
    let (mut measures, mut stages) = (Vec::new(), String::new());
    if tcp {
        measures.extend(tcp::measure(&lab, effort).await?);
    }
    if programming {
        let (more, said) = programming::measure(&lab).await?;
        measures.extend(more);
        stages = said;
    }
    Ok((measures, stages))
}
