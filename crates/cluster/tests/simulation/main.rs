//! A seeded simulation of a cluster: gateways, controller, links, switches and
//! clocks, with everything that can go wrong, and what must hold all the same.
//!
//! `SLUICE_CLUSTER_SEEDS` says how many seeds to run (10,000), `SLUICE_CLUSTER_SEED`
//! names the only one to run, with its trace.

mod check;
mod plan;
mod rng;
mod world;

use plan::CLASSES;
use std::collections::BTreeMap;

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Runs a seed again with its trace, and fails.
fn explain(seed: u64, broken: &str) -> ! {
    let (world, _) = check::run(seed, true);
    let scenario = &world.scenario;
    println!(
        "seed {seed}: {:?}, {} gateways, {} vIPs, faults until {} us",
        scenario.class, scenario.gateways, scenario.vips, scenario.end_us
    );
    world.trace.iter().flatten().for_each(|line| println!("{line}"));
    panic!("seed {seed} at {} us: {broken}\nalone: SLUICE_CLUSTER_SEED={seed}", world.now_us);
}

#[test]
fn every_seed_keeps_the_promises() {
    if let Some(seed) = from_environment("SLUICE_CLUSTER_SEED") {
        let (world, result) = check::run(seed, true);
        if let Err(broken) = result {
            explain(seed, &broken);
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
        println!("{} of {seeds} seeds failed, the first of them:", failures.len());
        failures
            .iter()
            .take(20)
            .for_each(|(seed, class, broken)| println!("seed {seed}, {class:?}: {broken}"));
        explain(*seed, broken);
    }
    takeovers_us.sort_unstable();
    let quantile = |of: usize| takeovers_us.get(takeovers_us.len() * of / 100).copied().unwrap_or_default();
    println!(
        "{seeds} seeds, {events} events, {messages} messages of at most {bytes_max} bytes; crash to known new owner: \
         {} times, p50 {} us, p90 {} us, p99 {} us, max {:?}; at most {announced_max} announcements of a vIP after \
         faults; {runs:?}",
        takeovers_us.len(),
        quantile(50),
        quantile(90),
        quantile(99),
        takeovers_us.last()
    );
    // Every kind of seed ran, and what is measured happened.
    assert!(seeds < CLASSES.len() as u64 || runs.len() == CLASSES.len());
    assert!(seeds < 1_000 || takeovers_us.len() as u64 > seeds / 20);
}
