//! In this crate's tests: what happens between two accesses to shared memory.
//!
//! [`crate::region::Region`] calls [`before_access`] before each access. There a thread can run a hook, let
//! other threads run, or die like a process that is killed; or a scheduler that explores schedules
//! ([`explore`]) chooses the thread that continues.

pub(crate) mod explore;
pub(crate) mod packets;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

thread_local! {
    static HOOK: Cell<Option<fn()>> = const { Cell::new(None) };
    static RANDOM: Cell<u32> = const { Cell::new(0) };
    static ACCESSES_UNTIL_DEATH: Cell<Option<u64>> = const { Cell::new(None) };
    static IS_SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

/// The panic by which [`die_after`] ends a thread's work.
struct Death;

/// Sets the function that this thread calls before each access.
pub(crate) fn set_hook(hook: Option<fn()>) {
    HOOK.set(hook);
}

/// From now on this thread yields to others at random accesses. `seed` is not 0.
pub(crate) fn yield_at_random(seed: u32) {
    RANDOM.set(seed);
}

/// Runs `work`, which dies before access number `accesses`, counted from 0. Returns `None` if it died.
pub(crate) fn die_after<T>(accesses: u64, work: impl FnOnce() -> T) -> Option<T> {
    ACCESSES_UNTIL_DEATH.set(Some(accesses));
    let result = catch_unwind(AssertUnwindSafe(work));
    ACCESSES_UNTIL_DEATH.set(None);
    match result {
        Ok(value) => Some(value),
        Err(cause) if cause.is::<Death>() => None,
        Err(cause) => resume_unwind(cause),
    }
}

/// Sets whether shuttle may switch threads at each access of this thread, which is one of shuttle's. Returns
/// the setting that it replaces.
fn set_scheduled(is_scheduled: bool) -> bool {
    IS_SCHEDULED.replace(is_scheduled)
}

/// Called before each access to shared memory.
pub(crate) fn before_access() {
    if let Some(hook) = HOOK.get() {
        hook();
    }
    if IS_SCHEDULED.get() {
        shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
    }
    match ACCESSES_UNTIL_DEATH.get() {
        None => {}
        Some(0) => resume_unwind(Box::new(Death)),
        Some(left) => ACCESSES_UNTIL_DEATH.set(Some(left - 1)),
    }
    // Xorshift.
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
