//! The stall probe: it notes when the machine itself stood still.
//!
//! The hypervisor may take the processor of a virtual machine away for tens or hundreds of milliseconds.
//! Timers are late by as much, and kernel queues in front of that processor overflow. A bound on time or loss
//! that is exceeded meanwhile proves nothing about Sluice: the run is inconclusive, and is repeated
//! (`support::Failure::late`, and `run_until_conclusive` in `main.rs`).
//!
//! One thread per processor, with real-time priority, sleeps for a few milliseconds again and again. No
//! ordinary thread delays it, so a late wake-up means that the processor was not run.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use sluice_sys::{Scheduling, raise_thread_priority};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(2);
/// A wake-up that is later than this is a stall: a third of the time in which gateways with the default
/// hello interval declare a peer dead.
const LATE: Duration = Duration::from_millis(5);

/// End and length of each stall.
static STALLS: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// The stalls of a period of time, over all processors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stalls {
    pub count: usize,
    pub longest: Duration,
}

impl fmt::Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a processor stood still {} times, for {} ms at most", self.count, self.longest.as_millis())
    }
}

/// Starts to watch every processor, until the process ends.
pub fn watch() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    for processor in (0..CpuSet::count()).filter(|at| allowed.is_set(*at).unwrap_or(false)) {
        std::thread::spawn(move || {
            let mut only = CpuSet::new();
            let pinned = only.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only));
            // A thread of ordinary priority would take the work of others for a stall.
            if pinned.is_ok() && raise_thread_priority() == Scheduling::RealTime {
                watch_this_processor();
            } else {
                println!("no stall probe on processor {processor}: no real-time priority");
            }
        });
    }
}

fn watch_this_processor() {
    loop {
        let asleep = Instant::now();
        std::thread::sleep(TICK);
        let slept = asleep.elapsed();
        if slept > TICK + LATE {
            let stall = (Instant::now(), slept - TICK);
            STALLS.lock().unwrap_or_else(PoisonError::into_inner).push(stall);
        }
    }
}

/// The stalls that ended after `begin`.
pub fn since(begin: Instant) -> Stalls {
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let lengths = stalls.iter().filter(|(end, _)| *end >= begin).map(|(_, length)| *length);
    lengths.fold(Stalls::default(), |sum, length| Stalls {
        count: sum.count + 1,
        longest: sum.longest.max(length),
    })
}
