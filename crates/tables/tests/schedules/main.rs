//! Runs the C code by which packets change meters and flow statistics in chosen schedules: all schedules of
//! small cases, and many random ones of larger cases. The scheduler can switch threads before every access to
//! a shared word.

mod flows;
mod meters;

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler};
use shuttle::thread::{self, ThreadId};
use shuttle::{Config, FailurePersistence, Runner};
use sluice_tables::layout::{flow_bucket, flow_table, meter};
use std::cell::{RefCell, UnsafeCell};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;

// Links the C functions declared below.
use sluice_tables_testing as _;

unsafe extern "C-unwind" {
    fn schedule_init(before_access: extern "C-unwind" fn(), tries: c_int);
    fn schedule_meter_take(meter: *mut meter, direction: u32, bytes: u32, now_ns: u64) -> c_int;
    fn schedule_flow_account(
        table: *const flow_table,
        bucket: *mut flow_bucket,
        hash: u64,
        bytes: u32,
        now_ns: u64,
    ) -> c_int;
}

/// How often a packet tries before it falls back to an addition: as in the headers, or once, so that it often
/// falls back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tries {
    Usual,
    One,
}

thread_local!(static ACCESSES: RefCell<HashMap<ThreadId, u64>> = RefCell::default());

extern "C-unwind" fn before_access() {
    ACCESSES.with_borrow_mut(|accesses| *accesses.entry(thread::current().id()).or_default() += 1);
    thread::yield_now();
}

/// Number of accesses of this thread to shared words.
fn accesses() -> u64 {
    ACCESSES.with_borrow(|accesses| accesses.get(&thread::current().id()).copied().unwrap_or_default())
}

/// Sets the hook and the number of tries. Every execution calls it first.
fn init(tries: Tries) {
    let tries = if tries == Tries::Usual { 8 } else { 1 };
    // SAFETY: stores a function pointer, which is always the same, and a variable of this thread.
    unsafe { schedule_init(before_access, tries) };
}

/// A structure that packets of several threads change.
struct Shared<T>(Arc<UnsafeCell<T>>);

// SAFETY: shuttle runs its threads one at a time on one system thread, and all C code accesses the value
// atomically.
unsafe impl<T> Send for Shared<T> {}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Copy> Shared<T> {
    fn new(value: T) -> Self {
        Self(Arc::new(UnsafeCell::new(value)))
    }

    fn get(&self) -> T {
        // SAFETY: no other thread of shuttle runs during the copy, and no reference to the value exists.
        unsafe { *self.0.get() }
    }
}

impl Shared<meter> {
    fn take(&self, direction: u32, bytes: u32, now_ns: u64) -> bool {
        // SAFETY: the pointer is valid as long as `self` lives, and `init` was called before.
        unsafe { schedule_meter_take(self.0.get(), direction, bytes, now_ns) == 1 }
    }
}

impl Shared<flow_bucket> {
    fn account(&self, table: &flow_table, hash: u64, bytes: u32, now_ns: u64) -> bool {
        // SAFETY: as in `take`; the C code only reads the table.
        unsafe { schedule_flow_account(table, self.0.get(), hash, bytes, now_ns) == 1 }
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::Print;
    config
}

/// Runs all schedules. Fails if there are `executions_max` or more, because some would then be left out.
fn all_schedules(executions_max: usize, test: impl Fn() + Send + Sync + 'static) {
    let executions = Runner::new(DfsScheduler::new(Some(executions_max), false), config()).run(test);
    assert!(executions > 100 && executions < executions_max, "{executions} schedules");
    println!("all {executions} schedules");
}

/// Runs many schedules: uniformly random ones, and ones with few changes of priority (PCT).
fn many_schedules(executions: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    Runner::new(RandomScheduler::new(executions), config()).run(test.clone());
    Runner::new(PctScheduler::new(4, executions), config()).run(test);
}
