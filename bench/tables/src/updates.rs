//! Updates while lookups run: packets on one core, the writer on the other.

use crate::data::{Draw, Family, Random, Route, Routes, keys};
use crate::kernel_peers::{trie_batch, trie_key};
use crate::lookups::global_table;
use crate::ours::{Ours, VNI, writers_route};
use crate::rig::{Ask, Rig};
use crate::{Outcome, Settings, say};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use sluice_bench_report::{Measure, median, shell::Failure, stay_on};
use sluice_tables::NodeTables;
use sluice_types::Vni;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Keys of one run of the program: not much longer than a poll of a network
/// interface, because a grace period waits for it.
const KEYS_PER_RUN: u32 = 1 << 10;
/// Updates between two looks at the clock.
const UPDATES_PER_LOOK: usize = 256;

/// One change of a route, by its place in the set.
#[derive(Clone, Copy)]
enum Change {
    Withdraw(usize),
    Insert(usize),
    /// With the leaf of another place.
    Replace(usize, usize),
}

/// Random changes in equal parts, and what it takes to undo them.
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
            // Up to 1000 are out at a time, and come back in another order.
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

/// Who makes the changes.
trait Writer {
    fn put(&mut self, at: usize, route: &Route) -> Result<(), Failure>;
    fn withdraw(&mut self, at: usize, route: &Route) -> Result<(), Failure>;
}

struct Sluice<'a>(&'a mut NodeTables, Vni);

impl Writer for Sluice<'_> {
    fn put(&mut self, _at: usize, route: &Route) -> Result<(), Failure> {
        self.0.upsert_route(&writers_route(self.1, Family::V4, route)?)?;
        Ok(())
    }

    fn withdraw(&mut self, _at: usize, route: &Route) -> Result<(), Failure> {
        let prefix = writers_route(self.1, Family::V4, route)?.prefix;
        if self.0.remove_route(self.1, prefix)? { Ok(()) } else { Err("a route was lost".into()) }
    }
}

/// The keys are made beforehand: only system calls count.
struct Trie<'a>(&'a MapHandle, &'a [Vec<u8>]);

impl Writer for Trie<'_> {
    fn put(&mut self, at: usize, route: &Route) -> Result<(), Failure> {
        Ok(self.0.update(&self.1[at], &route.leaf.to_ne_bytes(), MapFlags::ANY)?)
    }

    fn withdraw(&mut self, at: usize, _route: &Route) -> Result<(), Failure> {
        Ok(self.0.delete(&self.1[at])?)
    }
}

/// Changes at full speed for so long; updates a second. Then all is as it was.
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

/// Lookups on core 0 until `stop`, the first of them before `begun` is told:
/// nanoseconds each, the loop's own included.
fn look_up(
    shared: &[(&str, &MapHandle)],
    program: &str,
    begun: &Sender<()>,
    stop: &AtomicBool,
) -> Result<f64, Failure> {
    stay_on(0)?;
    let rig = Rig::load(shared, &[])?;
    let keys = rig.map("keys")?.max_entries();
    let count = KEYS_PER_RUN.min(keys);
    let run = |first| rig.run(program, Ask { first, count, vni: VNI, ..Ask::default() });
    run(0)?;
    // Nobody waits only where the other side has failed, which it reports itself.
    let _ = begun.send(());
    let (mut total, mut runs, mut first) = (0.0, 0_u32, 0);
    while runs == 0 || !stop.load(Ordering::Relaxed) {
        total += run(first)?.ns;
        runs += 1;
        first = if first + 2 * count <= keys { first + count } else { 0 };
    }
    Ok(total / f64::from(runs))
}

/// Nanoseconds of lookups on core 0 while `work` is done on core 1, and what it gave.
fn beside<Worked>(
    shared: &[(&str, &MapHandle)],
    program: &str,
    work: impl FnOnce() -> Result<Worked, Failure>,
) -> Result<(f64, Worked), Failure> {
    let stop = AtomicBool::new(false);
    let (begun, begins) = channel();
    std::thread::scope(|scope| {
        let stop = &stop;
        let reader = scope.spawn(move || look_up(shared, program, &begun, stop));
        // A reader that failed never begins, and says why when it is joined.
        let worked = begins.recv().map(|()| work());
        stop.store(true, Ordering::Relaxed);
        let ns = reader.join().map_err(|_| "the reader's thread ended badly")??;
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
        let (before, ()) = beside(shared, program, idle)?;
        let (during, rate) = beside(shared, program, work)?;
        let (after, ()) = beside(shared, program, idle)?;
        self.rates.push(rate);
        // The mean of before and after, so that a machine that changes its pace is seen as one.
        self.slowdowns.push((during * 2.0 / (before + after) - 1.0) * 100.0);
        Ok(())
    }
}

/// `updates_per_s` and `lookup_slowdown_pct`.
///
/// # Errors
/// The kernel's or the tables', and where the changes left other routes than there were.
pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let set = global_table(settings, Family::V4);
    say(&format!("updates: {} routes", set.routes.len()));
    stay_on(1)?;
    let mut ours = Ours::with_routes(&[&set])?;
    let cells = ours.cells()?;
    let sizes = [("keys", settings.keys() as u32), ("trie4", set.routes.len() as u32)];
    let rig = Rig::load(&[("cells", &cells)], &sizes)?;
    rig.set_keys(&keys(2, &set, Draw::Even, settings.keys()))?;
    let (key_map, trie) = (rig.map("keys")?, rig.map("trie4")?);
    trie_batch(&set).write(&trie)?;
    let shared = [("cells", &cells), ("keys", &key_map), ("trie4", &trie)];
    let all = Ask { count: settings.keys() as u32, vni: VNI, ..Ask::default() };
    let before = rig.run("lpm4_apart", all)?;
    let trie_keys: Vec<Vec<u8>> = set.routes.iter().map(|route| trie_key(set.family, route)).collect();
    let (mut sluice, mut peer) = (Side::default(), Side::default());
    for round in 0..settings.rounds {
        let (seed, bound) = (round as u64, settings.update_bound());
        let vni = Vni::new(VNI)?;
        sluice.round(settings, &shared, "lpm4_apart", || {
            churn(&mut Sluice(&mut ours.tables, vni), &set, seed, bound)
        })?;
        peer.round(settings, &shared, "trie4_apart", || {
            churn(&mut Trie(&trie, &trie_keys), &set, seed, bound)
        })?;
    }
    for program in ["lpm4_apart", "trie4_apart"] {
        let after = rig.run(program, all)?;
        if (after.sum, after.found) != (before.sum, before.found) {
            return Err(format!("{program} answers differently after the updates").into());
        }
    }
    let measure =
        Measure::beside("updates_per_s", "1/s", median(sluice.rates), "lpm_trie", Some(median(peer.rates)));
    outcome.measures.push(measure);
    outcome.measures.push(Measure::beside_less(
        "lookup_slowdown_pct",
        "%",
        median(sluice.slowdowns),
        "lpm_trie",
        Some(median(peer.slowdowns)),
    ));
    Ok(())
}
