//! What packets do to meters and flow statistics, in C as they run it, under
//! schedules that are chosen: every one of small cases, and many at random of
//! larger ones. The scheduler steps in before every access to a shared word.

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

// Links the functions below.
use sluice_tables_testing as _;

unsafe extern "C-unwind" {
    fn schedule_init(point: extern "C-unwind" fn(), tries: c_int);
    fn schedule_meter_take(meter: *mut meter, direction: u32, bytes: u32, now_ns: u64) -> c_int;
    fn schedule_flow_account(
        table: *const flow_table,
        bucket: *mut flow_bucket,
        hash: u64,
        bytes: u32,
        now_ns: u64,
    ) -> c_int;
}

/// How often a packet tries before it falls back: as in the headers, or so seldom that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tries {
    Usual,
    One,
}

thread_local!(static POINTS: RefCell<HashMap<ThreadId, u64>> = RefCell::default());

extern "C-unwind" fn point() {
    POINTS.with_borrow_mut(|points| *points.entry(thread::current().id()).or_default() += 1);
    thread::yield_now();
}

/// How many shared words this thread has accessed.
fn points() -> u64 {
    POINTS.with_borrow(|points| points.get(&thread::current().id()).copied().unwrap_or_default())
}

/// Must come first in every execution.
fn init(tries: Tries) {
    let tries = if tries == Tries::Usual { 8 } else { 1 };
    // SAFETY: stores a function pointer, always the same, and a variable of this thread.
    unsafe { schedule_init(point, tries) };
}

/// A structure that packets of several threads change.
struct Shared<T>(Arc<UnsafeCell<T>>);

// SAFETY: shuttle runs its threads one at a time, on one thread of the system,
// and what they do in C is atomic besides.
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
        // SAFETY: nobody else runs meanwhile, as above, and no reference is kept.
        unsafe { *self.0.get() }
    }
}

impl Shared<meter> {
    fn take(&self, direction: u32, bytes: u32, now_ns: u64) -> bool {
        // SAFETY: the cell lives as long as self; `init` was called before.
        unsafe { schedule_meter_take(self.0.get(), direction, bytes, now_ns) == 1 }
    }
}

impl Shared<flow_bucket> {
    fn account(&self, table: &flow_table, hash: u64, bytes: u32, now_ns: u64) -> bool {
        // SAFETY: as in `take`; the table is only read.
        unsafe { schedule_flow_account(table, self.0.get(), hash, bytes, now_ns) == 1 }
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::Print;
    config
}

/// Every schedule there is. At most `executions_max`, so that none is left out unseen.
fn all_schedules(executions_max: usize, test: impl Fn() + Send + Sync + 'static) {
    let executions = Runner::new(DfsScheduler::new(Some(executions_max), false), config()).run(test);
    assert!(executions > 100 && executions < executions_max, "{executions} schedules");
    println!("{executions} schedules, which are all");
}

/// Many schedules: uniformly at random, and with few but well-placed changes.
fn many_schedules(executions: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    Runner::new(RandomScheduler::new(executions), config()).run(test.clone());
    Runner::new(PctScheduler::new(4, executions), config()).run(test);
}
