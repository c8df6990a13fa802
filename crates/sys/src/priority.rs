//! The priority of threads whose work is due at a fixed time.

use std::io;

/// Priority among real-time threads, from 1 to 99. It is below that of the kernel's own threads, so that a thread that
/// never waits does not delay the handling of interrupts.
const PRIORITY: i32 = 20;
/// Nice value of a thread that may not have a real-time priority.
const NICE: i32 = -20;

/// How the system schedules the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// `SCHED_FIFO`: the thread runs before every thread without a real-time priority.
    RealTime,
    /// The lowest nice value: the thread gets a larger share than threads without it.
    LowestNice,
    /// No higher priority: the process lacks CAP_SYS_NICE.
    Unchanged,
}

/// Gives the calling thread the highest priority that the system grants, and timers without slack.
pub fn raise_thread_priority() -> Scheduling {
    // SAFETY: the call takes integers, and only changes how late the timers of this thread may be.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // Child processes must not inherit the priority.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and `parameters` outlives the call.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } == 0 {
        return Scheduling::RealTime;
    }
    let error = io::Error::last_os_error();
    tracing::debug!(%error, "no real-time priority");
    // SAFETY: the call takes integers; on Linux, 0 is the calling thread alone.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } == 0 {
        return Scheduling::LowestNice;
    }
    Scheduling::Unchanged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a call that changes the priority of the whole process.
    #[test]
    fn only_the_calling_thread_gets_the_priority() {
        let state = || {
            // SAFETY: 0 is the calling thread.
            let policy = unsafe { libc::sched_getscheduler(0) };
            // SAFETY: the call takes integers.
            let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
            (policy & !libc::SCHED_RESET_ON_FORK, nice)
        };
        let before = state();
        let thread = std::thread::spawn(move || (raise_thread_priority(), state()));
        match thread.join().unwrap() {
            (Scheduling::RealTime, (policy, _)) => assert_eq!(policy, libc::SCHED_FIFO),
            (Scheduling::LowestNice, (_, nice)) => assert_eq!(nice, NICE),
            (Scheduling::Unchanged, after) => assert_eq!(after, before),
        }
        assert_eq!(state(), before);
    }
}
