//! The command of `make bench-tables`; the library measures.
#![forbid(unsafe_code)]

use clap::Parser;
use sluice_bench_report::{Run, shell::Failure};
use sluice_bench_tables::{Settings, parts, run};

/// Measure the tables and their peers
#[derive(Parser)]
struct Args {
    /// Number of rounds; the median is the result
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Divide all sizes by this number, for a quick run
    #[arg(long, default_value_t = 1)]
    scale: usize,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', default_values_t = parts().into_iter().map(str::to_owned))]
    parts: Vec<String>,
    /// Print the results without recording them
    #[arg(long)]
    dry_run: bool,
}

/// Explanation of the measurements for readers of the results.
const METHOD: &str = "\
Both sides hold the same routes or endpoints, take turns on the same million keys, and must give the same
answers. A ratio above 1 means that Sluice is better. `bgp`: 1M IPv4 and 250k IPv6 prefixes spread at random,
with about the lengths of the global table as published for 2023-24; `random`: 1M host routes; `routes10m`,
`bulk_10m`: 10M IPv4 routes of 20 to 32 bits; `vrf10k`: 9,900 VRFs with 1 to 100 routes, 95 with 10k, 5 with
1M. Keys are addresses that routes cover, each route equally likely; `_zipf`: by Zipf's law, s = 1.
`_dependent`: the position of each key depends on the last answer. eBPF figures are those of
`BPF_PROG_TEST_RUN` without the time of the empty loop. In user space, measured in processor time, Sluice's
tables are read by the same C header as in packet programs; lookups of both sides are scalar, in bursts of 64
unless they are dependent; both are in 4 KiB pages (DPDK with `--no-huge`, Sluice's tables copied out of the
BPF array), `_huge`: Sluice's in 2 MiB pages. Updates are withdrawals, insertions and replacements in about
equal parts, on one core while lookups run on the other. `bulk_*`: in each round every side loads a new array or map,
which nothing but the kernel has written before; the allocation of arrays and maps is not part of the time, and peers
that take longer than 5 s are projected from what they have loaded then.";

/// Number of rounds of a run that is recorded.
const ROUNDS: usize = 10;

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let settings = Settings { rounds: args.rounds.max(1), scale: args.scale.max(1), parts: args.parts };
    let begun = Run::begin("tables")?;
    let outcome = run(&settings)?;
    let how = match settings.scale {
        1 => format!("{} rounds", settings.rounds),
        scale => format!("{} rounds, sizes divided by {scale}", settings.rounds),
    };
    let text = begun.section("Tables", &how, METHOD, &outcome.measures, &outcome.notes)?;
    let is_whole = parts().iter().all(|part| settings.parts.iter().any(|wanted| wanted == part))
        && (settings.rounds, settings.scale) == (ROUNDS, 1);
    begun.finish(&outcome.measures, &text, is_whole && !args.dry_run)?;
    Ok(())
}
