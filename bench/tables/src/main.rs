//! `make bench-tables`: see the library.
#![forbid(unsafe_code)]

use clap::Parser;
use sluice_bench_report::{self as report, shell::Failure};
use sluice_bench_tables::{Settings, parts, run};
use std::path::Path;

/// Measures the tables beside their peers
#[derive(Parser)]
struct Args {
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Divides all sizes, for a quick look
    #[arg(long, default_value_t = 1)]
    scale: usize,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_values_t = parts().into_iter().map(str::to_owned))]
    parts: Vec<String>,
    /// Print only, record nothing
    #[arg(long)]
    dry_run: bool,
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let settings = Settings { rounds: args.rounds.max(1), scale: args.scale.max(1), parts: args.parts };
    let outcome = run(&settings)?;
    let table = report::table(&outcome.measures);
    let notes: String = outcome.notes.iter().map(|note| format!("- {note}\n")).collect();
    print!("{table}\n{notes}");
    if !args.dry_run {
        let text = format!(
            "## Tables\n\n`make bench-tables`, {}; medians of {} rounds{}. Ratios above 1: Sluice is ahead.\n\n{table}\n{notes}",
            report::machine()?,
            settings.rounds,
            if settings.scale > 1 { format!(", sizes divided by {}", settings.scale) } else { String::new() },
        );
        report::record(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
            "tables",
            &outcome.measures,
            &text,
        )?;
    }
    Ok(())
}
