//! A seeded simulation of gateways that copy sessions: loss, duplicates, late messages, gateways that die, agents that
//! restart, split networks, vIPs that move. A broken rule shows as a copy that differs from the owner's table, as a session
//! that is lost, or as an outside port with two inside endpoints.
//!
//! `SLUICE_NAT_SYNC_SEEDS` sets the number of seeds (300 by default); `SLUICE_NAT_SYNC_SEED` runs one seed only and prints
//! its trace.

#[path = "../../../cluster/tests/simulation/rng.rs"]
mod rng;
mod scenario;
mod table;
mod world;

use scenario::{CLASSES, Class, Scenario};
use std::collections::BTreeMap;
use std::num::NonZero;
use world::{Summary, World, vni};

/// How much the idle times of a session may differ between the owner and a copy: the copy has that of the last pass.
const IDLE_TICKS_MAX: u32 = 8;

/// Runs a seed. Returns the world, and what is broken.
fn run(seed: u64, traced: bool) -> (World, Result<(), String>) {
    let mut world = World::new(seed, traced);
    world.run_until(world.scenario.faults_end_us());
    world.scenario.calm();
    let repaired_us = world.now_us + Scenario::repair_us();
    world.run_until(repaired_us);
    // A last pass to each gateway, with nothing new.
    world.scenario.freeze(repaired_us);
    world.run_until(repaired_us + Scenario::interval_us() + 10_000_000);
    let result = match world.broken.take() {
        Some(broken) => Err(broken),
        None => check(&world),
    };
    (world, result)
}

/// All copies are complete and equal to what the owner has, and the owner has what endpoints rely on.
fn check(world: &World) -> Result<(), String> {
    let scenario = &world.scenario;
    world.nodes.iter().for_each(|node| node.table.check());
    for unit in 0..scenario.units {
        let owner = world.owner(unit).ok_or(format!("unit {unit} has no owner"))?;
        let truth = &world.nodes[owner].table;
        // Sessions that are about to expire may have done so on one of the nodes.
        let of_unit = |table: &table::Table| -> BTreeMap<_, _> {
            let is_near_expiry =
                |active: u32| table.now.wrapping_sub(active) + 2 * IDLE_TICKS_MAX >= table.timeout;
            let sessions = table
                .sessions
                .iter()
                .filter(|(key, session)| key.vni == vni(unit) && !is_near_expiry(session.active));
            sessions.map(|(key, session)| (*key, (session.outside, session.state.bits()))).collect()
        };
        let expected = of_unit(truth);
        for (number, node) in world.nodes.iter().enumerate() {
            if node.copies.get(&vni(unit)) != Some(&true) {
                return Err(format!(
                    "unit {unit} of owner {owner}: the copy of node {number} is not complete"
                ));
            }
            let found = of_unit(&node.table);
            let differs = |(key, value): &(&table::Key, &(_, u8))| {
                // Near the limit, one of the two was left out above.
                found.get(key) != Some(value)
                    && node.table.sessions.get(key).is_none_or(|it| (it.outside, it.state.bits()) != **value)
            };
            if let Some((key, value)) = expected.iter().find(differs) {
                let copy = node.table.sessions.get(key);
                return Err(format!(
                    "unit {unit} of owner {owner}: node {number} has {copy:?}, not {value:?}, for {key:?}"
                ));
            }
            // A copy lives longer than the session of the owner, until a pass ends it.
            let is_over = |key: &table::Key| world.live.get(key).is_some_and(|live| live.is_over(world));
            let extra = found.keys().find(|key| !truth.sessions.contains_key(key) && !is_over(key));
            if let Some(key) = extra {
                return Err(format!("unit {unit} of owner {owner}: only node {number} has {key:?}"));
            }
        }
    }
    check_used(world)
}

/// Nothing is lost if no table was: what endpoints use is at the owner.
fn check_used(world: &World) -> Result<(), String> {
    let scenario = &world.scenario;
    let keeps = matches!(scenario.class, Class::Restart | Class::Split | Class::Move);
    if !keeps {
        return Ok(());
    }
    if world.summary.refused > 0 {
        return Err(format!(
            "{} sessions were refused, although gateways share out the ports",
            world.summary.refused
        ));
    }
    for (key, live) in &world.live {
        let owner = world.owner(key.vni.get() as usize - 1).expect("checked before");
        let used = live.established && !live.is_over(world);
        if used && !world.nodes[owner].table.sessions.contains_key(key) {
            return Err(format!("the owner {owner} has lost {key:?}, used at {} us", live.active_us));
        }
    }
    Ok(())
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// What the runs of many seeds add up to.
#[derive(Default)]
struct Totals {
    summary: Summary,
    failures: Vec<(u64, Class, String)>,
}

impl Totals {
    fn add(&mut self, other: &Summary) {
        let sum = &mut self.summary;
        sum.events += other.events;
        sum.messages += other.messages;
        sum.begun += other.begun;
        sum.takeovers += other.takeovers;
        sum.moves += other.moves;
        sum.returned += other.returned;
        sum.refused += other.refused;
    }
}

fn run_all(seeds: u64) -> Totals {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut all = Totals::default();
    std::thread::scope(|scope| {
        let run_some = |first: usize| {
            let mut totals = Totals::default();
            for seed in (first as u64..seeds).step_by(processors) {
                let (world, result) = run(seed, false);
                totals.add(&world.summary);
                totals.failures.extend(result.err().map(|broken| (seed, world.scenario.class, broken)));
            }
            totals
        };
        let threads: Vec<_> = (0..processors).map(|first| scope.spawn(move || run_some(first))).collect();
        for thread in threads {
            let totals = thread.join().expect("a run panicked");
            all.add(&totals.summary);
            all.failures.extend(totals.failures);
        }
    });
    all.failures.sort_unstable_by_key(|(seed, ..)| *seed);
    all
}

#[test]
fn copies_become_equal_in_every_history() {
    let only = from_environment("SLUICE_NAT_SYNC_SEED");
    let seeds = from_environment("SLUICE_NAT_SYNC_SEEDS").unwrap_or(300);
    let failed = only.or_else(|| {
        let Totals { summary, failures } = run_all(seeds);
        println!("{seeds} seeds: {summary:?}");
        failures
            .iter()
            .take(20)
            .for_each(|(seed, class, broken)| println!("seed {seed}, {class:?}: {broken}"));
        // A simulation in which nothing happens would pass.
        let enough = CLASSES.len() as u64 * 20;
        assert!(
            seeds < enough
                || (summary.takeovers > seeds && summary.moves > seeds / 20 && summary.returned > seeds),
            "too little has happened"
        );
        assert!(seeds < enough || summary.refused > 0, "no port was ever given away twice");
        failures.first().map(|(seed, ..)| *seed)
    });
    if let Some(seed) = failed {
        let (world, result) = run(seed, true);
        world.trace.iter().flatten().for_each(|line| println!("{line}"));
        println!("seed {seed}: {:?}", world.scenario);
        if let Err(broken) = result {
            panic!("seed {seed}: {broken}\nto run this seed only: SLUICE_NAT_SYNC_SEED={seed}");
        }
    }
}
