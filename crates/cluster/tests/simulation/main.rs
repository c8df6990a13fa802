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

use scenario::CLASSES;
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
    let (mut events, mut messages, mut announced_max, mut bytes_max) = (0, 0, 0, 0);
    let mut takeovers_us = Vec::new();
    let mut runs = BTreeMap::new();
    let mut failures = Vec::new();
    for seed in 0..seeds {
        let (world, result) = check::run(seed, false);
        *runs.entry(world.scenario.class).or_insert(0) += 1;
        let summary = match result {
            Ok(summary) => summary,
            Err(broken) => {
                failures.push((seed, world.scenario.class, broken));
                continue;
            }
        };
        events += summary.events;
        messages += summary.messages;
        announced_max = announced_max.max(summary.announced_max);
        bytes_max = bytes_max.max(summary.bytes_max);
        takeovers_us.extend(summary.takeovers_us);
    }
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
