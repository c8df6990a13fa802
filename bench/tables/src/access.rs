//! Cost of a memory access on this machine, which bounds all other figures: random words of ordinary memory,
//! in pages of 4 KiB as in BPF arrays.

use crate::data::scramble;
use crate::{Outcome, Settings, report_progress};
use sluice_bench_report::{Measure, shell::Failure};
use std::hint::black_box;
use std::time::Instant;

/// Bytes over which the words are spread, and the names of the measures.
const SPREADS: [(usize, &str); 3] = [(64 << 20, "64mb"), (1 << 30, "1gb"), (4 << 30, "4gb")];
const LINE_WORDS: usize = 8;

/// Nanoseconds of an access to a cache line that a number chooses. If `dependent`, the number depends on the
/// word that was loaded before, which is 0.
fn walk(words: &[u64], count: u64, dependent: bool) -> f64 {
    let lines = (words.len() / LINE_WORDS) as u64;
    let start = Instant::now();
    let mut sum = 0;
    for i in 0..count {
        let number = scramble(if dependent { i + sum } else { i });
        let line = ((u128::from(number) * u128::from(lines)) >> 64) as usize;
        sum += words[line * LINE_WORDS];
    }
    black_box(sum);
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Measures `access_*_ns` and `access_*_dependent_ns`.
///
/// # Errors
/// Never; the type is that of all parts.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if huge.contains("[always]") {
        outcome.note("access: in huge pages, because this kernel uses them for all large memory".to_owned());
    }
    for (bytes, name) in SPREADS {
        let bytes = bytes / settings.scale;
        report_progress(&format!("access: {bytes} bytes"));
        // Every word is written with a value that the compiler does not know, so that all pages are
        // allocated.
        let mut words = vec![1_u64; bytes / size_of::<u64>()];
        words.fill(black_box(0));
        for (suffix, dependent) in [("", false), ("_dependent", true)] {
            let times: Vec<f64> =
                (0..settings.rounds).map(|_| walk(&words, settings.keys() as u64, dependent)).collect();
            outcome.measures.push(Measure::alone(format!("access_{name}{suffix}_ns"), "ns", &times));
        }
    }
    Ok(())
}
