//! What an access to memory costs here, the bound of all else: random words of
//! ordinary memory, in pages of 4 KiB as BPF arrays have them.

use crate::data::scramble;
use crate::{Outcome, Settings, say};
use sluice_bench_report::{Measure, median, shell::Failure};
use std::hint::black_box;
use std::time::Instant;

/// Bytes that the words are spread over, and what the measures are called.
const SPREADS: [(usize, &str); 3] = [(64 << 20, "64mb"), (1 << 30, "1gb"), (4 << 30, "4gb")];
const LINE_WORDS: usize = 8;

/// Nanoseconds an access to a line that each number chooses. `chained`: the
/// number depends on the word before, which is 0.
fn walk(words: &[u64], count: u64, chained: bool) -> f64 {
    let lines = (words.len() / LINE_WORDS) as u64;
    let start = Instant::now();
    let mut sum = 0;
    for i in 0..count {
        let number = scramble(if chained { i + sum } else { i });
        let line = ((u128::from(number) * u128::from(lines)) >> 64) as usize;
        sum += words[line * LINE_WORDS];
    }
    black_box(sum);
    start.elapsed().as_nanos() as f64 / count as f64
}

/// `access_*_ns` and `access_*_dependent_ns`.
///
/// # Errors
/// None; it is a part as the others.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if huge.contains("[always]") {
        outcome.note("access: in huge pages, which this kernel makes of all large memory".to_owned());
    }
    for (bytes, name) in SPREADS {
        let bytes = bytes / settings.scale;
        say(&format!("access: {bytes} bytes"));
        // Opaque, and written, so that every page is there.
        let mut words = vec![1_u64; bytes / size_of::<u64>()];
        words.fill(black_box(0));
        for (suffix, chained) in [("", false), ("_dependent", true)] {
            let times = (0..settings.rounds).map(|_| walk(&words, settings.keys() as u64, chained)).collect();
            outcome.measures.push(Measure::alone(format!("access_{name}{suffix}_ns"), "ns", median(times)));
        }
    }
    Ok(())
}
