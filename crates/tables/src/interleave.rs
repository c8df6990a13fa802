//! In this crate's tests: what can happen between any two accesses to table
//! memory. A thread that asked for it lets others go first now and then, or
//! dies, as a process that is killed; or a scheduler that explores schedules
//! decides who goes on.

pub(crate) mod explore;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

thread_local! {
    static RANDOM: Cell<u32> = const { Cell::new(0) };
    static UNTIL_DEATH: Cell<Option<u64>> = const { Cell::new(None) };
    static SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

struct Death;

/// From now on this thread yields at random. `seed` is not 0.
pub(crate) fn enable(seed: u32) {
    RANDOM.set(seed);
}

/// Does something that ends before access number `accesses`, counted from 0;
/// `None` when it ended so.
pub(crate) fn die_after<T>(accesses: u64, doing: impl FnOnce() -> T) -> Option<T> {
    UNTIL_DEATH.set(Some(accesses));
    let result = catch_unwind(AssertUnwindSafe(doing));
    UNTIL_DEATH.set(None);
    match result {
        Ok(value) => Some(value),
        Err(cause) if cause.is::<Death>() => None,
        Err(cause) => resume_unwind(cause),
    }
}

/// Whether each access of this thread, which is one of shuttle's, is a point
/// where another may go on.
fn schedule(scheduled: bool) {
    SCHEDULED.set(scheduled);
}

/// Before each access.
pub(crate) fn point() {
    if SCHEDULED.get() {
        shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
    }
    match UNTIL_DEATH.get() {
        None => {}
        Some(0) => resume_unwind(Box::new(Death)),
        Some(left) => UNTIL_DEATH.set(Some(left - 1)),
    }
    let mut x = RANDOM.get();
    if x == 0 {
        return;
    }
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    RANDOM.set(x);
    if x.is_multiple_of(128) {
        std::thread::yield_now();
    }
}
