//! When the machine itself stands still.
//!
//! The processor of a virtual machine may be taken away for tens or hundreds of milliseconds. What
//! runs on it is dead for as long to all who run on another, and queues behind it overflow: a packet
//! lost by that says nothing of Sluice. So labs in which packets are counted that are lost while vIPs
//! and VPCs move, or that TCP sends again, run on one processor, where all stand still at the same
//! time; what only happens on two at once is for the other scenarios, the benches and the tests of
//! tables and programs. For who reads why a scenario failed nevertheless, for each processor a thread
//! that goes before all others notes when it was not woken in time. No check is softer for it.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use sluice_datapath::realtime::{Scheduling, prefer_this_thread};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(2);
/// Whoever goes before all others and is later than this was stopped, not busy.
const LATE: Duration = Duration::from_millis(8);

/// End and length of each stop.
static STOPS: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// Starts to watch every processor, until the process ends.
pub fn watch() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    for processor in (0..CpuSet::count()).filter(|at| allowed.is_set(*at).unwrap_or(false)) {
        std::thread::spawn(move || {
            let mut only = CpuSet::new();
            let pinned = only.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only));
            // One that goes before no others would take their work for a stop.
            if pinned.is_ok() && prefer_this_thread() == Scheduling::RealTime {
                watch_this();
            }
        });
    }
}

fn watch_this() {
    loop {
        let asleep = Instant::now();
        std::thread::sleep(TICK);
        let slept = asleep.elapsed();
        if slept > TICK + LATE {
            let stop = (Instant::now(), slept - TICK);
            STOPS.lock().unwrap_or_else(PoisonError::into_inner).push(stop);
        }
    }
}

/// How often since then, and how long.
pub fn report(since: Instant) -> String {
    let stops = STOPS.lock().unwrap_or_else(PoisonError::into_inner);
    let lengths: Vec<_> = stops.iter().filter(|(end, _)| *end >= since).map(|(_, length)| *length).collect();
    let longest = lengths.iter().max().copied().unwrap_or_default();
    format!("a processor stood still {} times, for {} ms at most", lengths.len(), longest.as_millis())
}

/// While it lives, processes that this thread starts, and theirs, run on one processor.
pub struct OneProcessor {
    /// What this thread was allowed.
    before: Option<CpuSet>,
}

impl OneProcessor {
    pub fn enter() -> Self {
        let before = sched_getaffinity(Pid::from_raw(0)).ok();
        let allowed = before.unwrap_or_default();
        // The first one has most of the interrupts.
        let last = (0..CpuSet::count()).rev().find(|at| allowed.is_set(*at).unwrap_or(false));
        let mut only = CpuSet::new();
        let set = last.is_some_and(|last| only.set(last).is_ok());
        if !set || sched_setaffinity(Pid::from_raw(0), &only).is_err() {
            println!("    cannot stay on one processor");
        }
        Self { before }
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}
