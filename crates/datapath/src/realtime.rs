//! Being run at once when something is due.

use std::io;

/// Priority among real-time threads (1 to 99): below the kernel's own, so that a thread which never
/// waits does not keep interrupts from being handled.
const PRIORITY: i32 = 20;
/// What a thread gets that may not have a real-time priority.
const NICE: i32 = -20;

/// How the calling thread is scheduled from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// `SCHED_FIFO`: before every ordinary thread.
    RealTime,
    /// More often than ordinary threads.
    Preferred,
    /// As any other: the system grants neither.
    Ordinary,
}

/// Lets the calling thread run when it wants to, as far as the system allows (CAP_SYS_NICE), and wake up
/// without delay.
pub fn prefer_this_thread() -> Scheduling {
    // SAFETY: takes plain integers; only how late this thread's timers may be is changed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // Child processes must not inherit it.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and `parameters` outlives the call.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } == 0 {
        return Scheduling::RealTime;
    }
    let refused = io::Error::last_os_error();
    tracing::debug!(error = %refused, "no real-time priority");
    // SAFETY: takes plain integers; on Linux 0 is the calling thread alone.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } == 0 {
        return Scheduling::Preferred;
    }
    Scheduling::Ordinary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_asks_is_preferred() {
        // SAFETY: 0 is the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let thread = std::thread::spawn(move || {
            let got = prefer_this_thread();
            // SAFETY: takes plain integers.
            let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
            (got, policy() & !libc::SCHED_RESET_ON_FORK, nice)
        });
        match thread.join().unwrap() {
            (Scheduling::RealTime, policy, _) => assert_eq!(policy, libc::SCHED_FIFO),
            (Scheduling::Preferred, _, nice) => assert_eq!(nice, NICE),
            (Scheduling::Ordinary, after, _) => assert_eq!(after, before),
        }
        assert_eq!(policy(), before);
    }
}
