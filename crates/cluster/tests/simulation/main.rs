//! A seeded simulation of a cluster: gateways, controller, links, switches and clocks with their faults, and
//! the invariants that must hold in every history. A broken rule of the protocol shows as a vIP that hosts
//! cannot reach, as nodes that disagree at the end, or as announcements that do not end.
//!
//! `SLUICE_CLUSTER_SEEDS` sets the number of seeds (5,000 by default); `SLUICE_CLUSTER_SEED` runs one seed
//! only and prints its trace.

mod check;
mod rng;
mod scenario;
mod world;

use check::Summary;
use scenario::{CLASSES, Class};
use std::collections::BTreeMap;
use std::num::NonZero;

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Runs a failed seed again with its trace, prints the trace, and fails.
fn fail_with_trace(seed: u64, broken: &str) -> ! {
    let (world, _) = check::run(seed, true);
    let scenario = &world.scenario;
    println!(
        "seed {seed}: {:?}, {} gateways, {} vIPs, faults until {} us",
        scenario.class, scenario.gateways, scenario.vips, scenario.end_us
    );
    world.trace.iter().flatten().for_each(|line| println!("{line}"));
    panic!("seed {seed} at {} us: {broken}\nto run this seed only: SLUICE_CLUSTER_SEED={seed}", world.now_us);
}

/// What the runs of many seeds add up to.
#[derive(Default)]
struct Totals {
    summary: Summary,
    /// Number of runs of each class of faults.
    runs: BTreeMap<Class, u32>,
    /// Seeds that failed, and the invariant that each of them broke.
    failures: Vec<(u64, Class, String)>,
}

impl Totals {
    fn add_run(&mut self, seed: u64) {
        let (world, result) = check::run(seed, false);
        let class = world.scenario.class;
        *self.runs.entry(class).or_insert(0) += 1;
        match result {
            Ok(summary) => self.summary.add(summary),
            Err(broken) => self.failures.push((seed, class, broken)),
        }
    }

    fn add(&mut self, other: Self) {
        self.summary.add(other.summary);
        for (class, runs) in other.runs {
            *self.runs.entry(class).or_insert(0) += runs;
        }
        self.failures.extend(other.failures);
    }
}

/// Runs the seeds from 0 to `seeds` on all processors. Failures are in the order of their seeds.
fn run_all(seeds: u64) -> Totals {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut all = Totals::default();
    std::thread::scope(|scope| {
        let run = |first: usize| {
            let mut totals = Totals::default();
            (first as u64..seeds).step_by(processors).for_each(|seed| totals.add_run(seed));
            totals
        };
        let threads: Vec<_> = (0..processors).map(|first| scope.spawn(move || run(first))).collect();
        threads.into_iter().for_each(|thread| all.add(thread.join().expect("a run panicked")));
    });
    all.failures.sort_unstable_by_key(|(seed, ..)| *seed);
    all
}

#[test]
fn invariants_hold_for_every_seed() {
    if let Some(seed) = from_environment("SLUICE_CLUSTER_SEED") {
        let (world, result) = check::run(seed, true);
        if let Err(broken) = result {
            fail_with_trace(seed, &broken);
        }
        world.trace.iter().flatten().for_each(|line| println!("{line}"));
        return;
    }
    let seeds = from_environment("SLUICE_CLUSTER_SEEDS").unwrap_or(5_000);
    let Totals { summary, runs, failures } = run_all(seeds);
    let Summary { events, messages, bytes_max, mut takeovers_us, announced_max } = summary;
    if let Some((seed, _, broken)) = failures.first() {
        println!("{} of {seeds} seeds failed; the first ones are:", failures.len());
        failures
            .iter()
            .take(20)
            .for_each(|(seed, class, broken)| println!("seed {seed}, {class:?}: {broken}"));
        fail_with_trace(*seed, broken);
    }
    takeovers_us.sort_unstable();
    let quantile = |of: usize| takeovers_us.get(takeovers_us.len() * of / 100).copied().unwrap_or_default();
    println!(
        "{seeds} seeds, {events} events, {messages} messages of at most {bytes_max} bytes; \
         time from crash to known new owner: \
         {} times, p50 {} us, p90 {} us, p99 {} us, max {:?}; at most {announced_max} announcements of a vIP after \
         faults; {runs:?}",
        takeovers_us.len(),
        quantile(50),
        quantile(90),
        quantile(99),
        takeovers_us.last()
    );
    // A simulation in which nothing happens would pass, so it must have run each class of faults and have
    // seen takeovers.
    assert!(seeds < CLASSES.len() as u64 || runs.len() == CLASSES.len());
    assert!(seeds < 1_000 || takeovers_us.len() as u64 > seeds / 20);
}
