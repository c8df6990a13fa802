//! When the machine itself stood still: what was lost then says nothing about Sluice.
//!
//! The processor of a virtual machine may be taken away for tens or hundreds of milliseconds. What
//! runs on it is dead for as long to all who run on another, and queues behind it overflow. For each
//! processor a thread that goes before all others notes when it was not woken in time.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use sluice_datapath::realtime::{Scheduling, prefer_this_thread};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const TICK: Duration = Duration::from_millis(2);
/// Whoever goes before all others and is later than this was stopped, not busy.
const LATE: Duration = Duration::from_millis(8);
/// What was on its way when a processor stopped.
const BEFORE_US: u64 = 20_000;
/// Until queues are empty again, and those that were believed dead are believed alive. As long as
/// the stop was, if that is longer.
const AFTER_US: u64 = 150_000;
/// Stops that delay more than packets: who is believed dead has to prove itself for seconds.
const LONG_US: u64 = 40_000;
/// After the last of them, what should have happened has still so much time.
const CALM: Duration = Duration::from_secs(15);

/// A machine that stands still for long once in this time keeps nobody's times.
const AGAIN: Duration = Duration::from_secs(5);

/// Begin and end of each stop, in microseconds of the UNIX epoch.
static STOPS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Microseconds of the UNIX epoch.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn with_stops<T>(read: impl FnOnce(&mut Vec<(u64, u64)>) -> T) -> T {
    read(&mut STOPS.lock().unwrap_or_else(PoisonError::into_inner))
}

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
            println!("processor {processor} cannot be watched: whatever is lost is Sluice's fault");
        });
    }
}

fn watch_this() {
    loop {
        let (begin_us, asleep) = (now_us(), Instant::now());
        std::thread::sleep(TICK);
        if asleep.elapsed() > TICK + LATE {
            with_stops(|stops| stops.push((begin_us, now_us())));
        }
    }
}

/// Whether a processor that stood still explains that a packet sent at this time was lost.
pub fn explain(at_us: u64) -> bool {
    with_stops(|stops| stops.iter().any(|stop| explains(*stop, at_us)))
}

fn explains((begin_us, end_us): (u64, u64), at_us: u64) -> bool {
    (begin_us.saturating_sub(BEFORE_US)..=end_us + AFTER_US.max(end_us - begin_us)).contains(&at_us)
}

/// Whether a processor stood still since then.
pub fn happened_since(at_us: u64) -> bool {
    with_stops(|stops| stops.iter().any(|(_, end_us)| *end_us >= at_us))
}

/// Whether what should have happened `within` a time since `begin` had that time, on a machine that ran; or
/// three times as long, on any.
pub fn is_late(begin: Instant, within: Duration) -> bool {
    let calm_us = now_us().saturating_sub(u64::try_from(CALM.min(within).as_micros()).unwrap_or(u64::MAX));
    let lately = |(begin_us, end_us): &(u64, u64)| end_us - begin_us >= LONG_US && *end_us > calm_us;
    begin.elapsed() > 3 * within || begin.elapsed() > within && !with_stops(|stops| stops.iter().any(lately))
}

/// Whether the machine stood still so often since `begin` that nobody could keep any time: once in
/// [`AGAIN`] or more, for long.
pub fn crippled_since(begin: Instant) -> bool {
    let since_us = now_us().saturating_sub(u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX));
    let long = |(begin_us, end_us): &&(u64, u64)| *end_us >= since_us && end_us - begin_us >= LONG_US;
    let count = with_stops(|stops| stops.iter().filter(long).count());
    count as f64 >= begin.elapsed().div_duration_f64(AGAIN)
}

/// For who reads the results.
pub fn report() -> String {
    with_stops(|stops| {
        let longest_us = stops.iter().map(|(begin_us, end_us)| end_us - begin_us).max();
        format!(
            "a processor stood still {} times, for {} ms at most",
            stops.len(),
            longest_us.unwrap_or(0) / 1_000
        )
    })
}
