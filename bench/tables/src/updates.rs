//! Updates while lookups run: packet programs on one core, the writer on the other.

use crate::data::{Draw, Family, Random, Route, Routes, keys};
use crate::kernel_peers::{trie_batch, trie_key};
use crate::lookups::global_table;
use crate::ours::{SluiceTables, VNI, table_route};
use crate::rig::{Programs, RunInput};
use crate::{Outcome, Settings, report_progress};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use sluice_bench_report::{Better, Measure, shell::Failure, stay_on};
use sluice_tables::NodeTables;
use sluice_types::Vni;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Keys of one run of the program. A run takes not much longer than a poll of a network interface, because a
/// grace period waits for it.
const KEYS_PER_RUN: u32 = 1 << 10;
/// Updates between two looks at the clock.
const UPDATES_PER_LOOK: usize = 256;

/// One change of a route, by its index in the set.
#[derive(Clone, Copy)]
enum Change {
    Withdraw(usize),
    Insert(usize),
    /// Replace the leaf by that of another route.
    Replace(usize, usize),
}

/// Random withdrawals, insertions and replacements in equal parts, and a record of them for undoing.
struct Churn {
    random: Random,
    turn: u64,
    routes: usize,
    withdrawn: Vec<usize>,
    is_withdrawn: Vec<bool>,
    replaced: Vec<usize>,
}

impl Churn {
    fn new(seed: u64, routes: usize) -> Self {
        Self {
            random: Random::new(seed),
            turn: 0,
            routes,
            withdrawn: Vec::new(),
            is_withdrawn: vec![false; routes],
            replaced: Vec::new(),
        }
    }

    /// Index of a random route that is not withdrawn.
    fn present(&mut self) -> usize {
        loop {
            let at = self.random.below(self.routes as u64) as usize;
            if !self.is_withdrawn[at] {
                return at;
            }
        }
    }

    fn next(&mut self) -> Change {
        self.turn += 1;
        match self.turn % 3 {
            // Up to 1000 routes are withdrawn at a time, and are inserted again in another order.
            1 => {
                let at = self.present();
                self.is_withdrawn[at] = true;
                self.withdrawn.push(at);
                Change::Withdraw(at)
            }
            2 if self.withdrawn.len() > 1000.min(self.routes / 2) => {
                let which = self.random.below(self.withdrawn.len() as u64) as usize;
                let at = self.withdrawn.swap_remove(which);
                self.is_withdrawn[at] = false;
                Change::Insert(at)
            }
            _ => {
                let at = self.present();
                self.replaced.push(at);
                Change::Replace(at, self.random.below(self.routes as u64) as usize)
            }
        }
    }
}

/// A structure that can be changed.
trait Writer {
    fn put(&mut self, at: usize, route: &Route) -> Result<(), Failure>;
    fn withdraw(&mut self, at: usize, route: &Route) -> Result<(), Failure>;
}

struct Sluice<'a>(&'a mut NodeTables, Vni);

impl Writer for Sluice<'_> {
    fn put(&mut self, _at: usize, route: &Route) -> Result<(), Failure> {
        self.0.upsert_route(&table_route(self.1, Family::V4, route)?)?;
        Ok(())
    }

    fn withdraw(&mut self, _at: usize, route: &Route) -> Result<(), Failure> {
        let prefix = table_route(self.1, Family::V4, route)?.prefix;
        if self.0.remove_route(self.1, prefix)? { Ok(()) } else { Err("a route was lost".into()) }
    }
}

/// The kernel's trie. The keys are made in advance, so that only system calls are measured.
struct Trie<'a>(&'a MapHandle, &'a [Vec<u8>]);

impl Writer for Trie<'_> {
    fn put(&mut self, at: usize, route: &Route) -> Result<(), Failure> {
        Ok(self.0.update(&self.1[at], &route.leaf.to_ne_bytes(), MapFlags::ANY)?)
    }

    fn withdraw(&mut self, at: usize, _route: &Route) -> Result<(), Failure> {
        Ok(self.0.delete(&self.1[at])?)
    }
}

/// Makes changes at full speed for the time `bound`, and then undoes them. Returns the updates per second.
fn churn(writer: &mut impl Writer, set: &Routes, seed: u64, bound: Duration) -> Result<f64, Failure> {
    let mut churn = Churn::new(seed, set.routes.len());
    let start = Instant::now();
    while start.elapsed() < bound {
        for _ in 0..UPDATES_PER_LOOK {
            match churn.next() {
                Change::Withdraw(at) => writer.withdraw(at, &set.routes[at])?,
                Change::Insert(at) => writer.put(at, &set.routes[at])?,
                Change::Replace(at, other) => {
                    writer.put(at, &Route { leaf: set.routes[other].leaf, ..set.routes[at] })?;
                }
            }
        }
    }
    let rate = churn.turn as f64 / start.elapsed().as_secs_f64();
    for &at in churn.withdrawn.iter().chain(&churn.replaced) {
        writer.put(at, &set.routes[at])?;
    }
    Ok(rate)
}

/// Runs lookups on core 0 until `stop` is set, and sends to `started` after the first run. Returns the
/// nanoseconds of a lookup, including those of the loop.
fn look_up(
    shared: &[(&str, &MapHandle)],
    program: &str,
    started: &Sender<()>,
    stop: &AtomicBool,
) -> Result<f64, Failure> {
    stay_on(0)?;
    let programs = Programs::load_one(program, shared)?;
    let keys = programs.map("keys")?.max_entries();
    let count = KEYS_PER_RUN.min(keys);
    let run = |first| programs.run(program, RunInput { first, count, vni: VNI, ..RunInput::default() });
    run(0)?;
    // Sending fails only if the other side has failed, which it reports itself.
    let _ = started.send(());
    let (mut total, mut runs, mut first) = (0.0, 0_u32, 0);
    while runs == 0 || !stop.load(Ordering::Relaxed) {
        total += run(first)?.ns;
        runs += 1;
        first = if first + 2 * count <= keys { first + count } else { 0 };
    }
    Ok(total / f64::from(runs))
}

/// Measures lookups on core 0 while `work` runs on core 1. Returns the nanoseconds of a lookup, and the
/// result of `work`.
fn measure_during<Worked>(
    shared: &[(&str, &MapHandle)],
    program: &str,
    work: impl FnOnce() -> Result<Worked, Failure>,
) -> Result<(f64, Worked), Failure> {
    let stop = AtomicBool::new(false);
    let (started, begins) = channel();
    std::thread::scope(|scope| {
        let stop = &stop;
        let reader = scope.spawn(move || look_up(shared, program, &started, stop));
        // A reader that failed never starts, and returns its error when it is joined.
        let worked = begins.recv().map(|()| work());
        stop.store(true, Ordering::Relaxed);
        let ns = reader.join().map_err(|_| "the reader's thread panicked")??;
        Ok((ns, worked??))
    })
}

/// Rates and slowdowns of one side, round by round.
#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    slowdowns: Vec<f64>,
}

impl Side {
    fn round(
        &mut self,
        settings: &Settings,
        shared: &[(&str, &MapHandle)],
        program: &str,
        work: impl FnOnce() -> Result<f64, Failure>,
    ) -> Result<(), Failure> {
        let idle = || {
            std::thread::sleep(settings.update_bound());
            Ok(())
        };
        let (before, ()) = measure_during(shared, program, idle)?;
        let (during, rate) = measure_during(shared, program, work)?;
        let (after, ()) = measure_during(shared, program, idle)?;
        self.rates.push(rate);
        // Compared with the mean of before and after, because the machine may change its speed.
        self.slowdowns.push((during * 2.0 / (before + after) - 1.0) * 100.0);
        Ok(())
    }
}

/// Measures `updates_per_s` and `lookup_slowdown_pct`.
///
/// # Errors
/// Errors of the kernel or the tables; routes that differ after the changes.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let set = global_table(settings, Family::V4);
    report_progress(&format!("updates: {} routes", set.routes.len()));
    stay_on(1)?;
    let mut ours = SluiceTables::with_routes(&[&set])?;
    let cells = ours.cells()?;
    let sizes = [("keys", settings.keys() as u32), ("trie4", set.routes.len() as u32)];
    let programs = Programs::load(&[("cells", &cells)], &sizes)?;
    programs.set_keys(&keys(2, &set, Draw::Even, settings.keys()))?;
    let (key_map, trie) = (programs.map("keys")?, programs.map("trie4")?);
    trie_batch(&set).write(&trie)?;
    let shared = [("cells", &cells), ("keys", &key_map), ("trie4", &trie)];
    let all = RunInput { count: settings.keys() as u32, vni: VNI, ..RunInput::default() };
    let before = programs.run("lpm4_independent", all)?;
    let trie_keys: Vec<Vec<u8>> = set.routes.iter().map(|route| trie_key(set.family, route)).collect();
    let (mut sluice, mut peer) = (Side::default(), Side::default());
    for round in 0..settings.rounds {
        let (seed, bound) = (round as u64, settings.update_bound());
        let vni = Vni::new(VNI)?;
        sluice.round(settings, &shared, "lpm4_independent", || {
            churn(&mut Sluice(&mut ours.tables, vni), &set, seed, bound)
        })?;
        peer.round(settings, &shared, "trie4_independent", || {
            churn(&mut Trie(&trie, &trie_keys), &set, seed, bound)
        })?;
    }
    for program in ["lpm4_independent", "trie4_independent"] {
        let after = programs.run(program, all)?;
        if (after.sum, after.found) != (before.sum, before.found) {
            return Err(format!("{program} gives different answers after the updates").into());
        }
    }
    for (name, unit, better, ours, theirs) in [
        ("updates_per_s", "1/s", Better::More, &sluice.rates, &peer.rates),
        ("lookup_slowdown_pct", "%", Better::Less, &sluice.slowdowns, &peer.slowdowns),
    ] {
        outcome.measures.push(Measure::zipped(name, unit, better, ours, ("lpm_trie", theirs)));
    }
    Ok(())
}
