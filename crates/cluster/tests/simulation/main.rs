//! A seeded simulation of a cluster: gateways, controller, links, switches and clocks with their faults, and
//! the invariants that must hold in every history. A broken rule of the protocol shows as a vIP that hosts
//! cannot reach, as nodes that disagree at the end, or as announcements that do not end.
//!
//! `SLUICE_CLUSTER_SEEDS` sets the number of seeds (10,000 by default); `SLUICE_CLUSTER_SEED` runs one seed
//! only and prints its trace.

mod check;
mod rng;
mod scenario;
mod world;

use scenario::{CLASSES, Class};
use std::collections::BTreeMap;

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

/// What the runs of many seeds showed.
#[derive(Default)]
struct Totals {
    events: u64,
    messages: u64,
    bytes_max: usize,
    announced_max: usize,
    takeovers_us: Vec<u64>,
    /// Number of runs by class.
    runs: BTreeMap<Class, u64>,
    /// Seeds whose run broke an invariant, in ascending order.
    failures: Vec<(u64, Class, String)>,
}

impl Totals {
    fn run(&mut self, seed: u64) {
        let (world, result) = check::run(seed, false);
        *self.runs.entry(world.scenario.class).or_insert(0) += 1;
        match result {
            Err(broken) => self.failures.push((seed, world.scenario.class, broken)),
            Ok(summary) => {
                self.events += summary.events;
                self.messages += summary.messages;
                self.announced_max = self.announced_max.max(summary.announced_max);
                self.bytes_max = self.bytes_max.max(summary.bytes_max);
                self.takeovers_us.extend(summary.takeovers_us);
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.events += other.events;
        self.messages += other.messages;
        self.announced_max = self.announced_max.max(other.announced_max);
        self.bytes_max = self.bytes_max.max(other.bytes_max);
        self.takeovers_us.extend(other.takeovers_us);
        other.runs.into_iter().for_each(|(class, count)| *self.runs.entry(class).or_insert(0) += count);
        self.failures.extend(other.failures);
        self.failures.sort_unstable();
    }
}

/// Runs the first `seeds` seeds, on all processors.
fn run_seeds(seeds: u64) -> Totals {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let mut all = Totals::default();
    std::thread::scope(|scope| {
        let run = |first: u64| {
            let mut totals = Totals::default();
            (first..seeds).step_by(threads as usize).for_each(|seed| totals.run(seed));
            totals
        };
        let parts: Vec<_> = (0..threads).map(|first| scope.spawn(move || run(first))).collect();
        parts.into_iter().for_each(|part| all.add(part.join().expect("the thread of a part ends")));
    });
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
    let seeds = from_environment("SLUICE_CLUSTER_SEEDS").unwrap_or(10_000);
    let Totals { events, messages, bytes_max, announced_max, mut takeovers_us, runs, failures } =
        run_seeds(seeds);
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
