//! Times and rates of the protocol.

/// Microseconds of a tick of the session tables.
pub(crate) const TICK_US: u64 = 125_000;

/// Times are in microseconds of the clock of the node that uses them. `docs/decisions/nat-replication.md` explains
/// the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Interval between the beginnings of two passes to a gateway. Copies live for two intervals longer than the owner's
    /// sessions, so it is less than half of the shortest timeout (60 s for ICMP).
    pub interval_us: u64,
    /// Sessions that a gateway reads in a second, for all others together.
    pub sessions_per_s: u32,
    /// Interval at which a gateway with work to do continues it.
    pub tick_us: u64,
    /// A datagram without an answer is sent again after this time. The time doubles with each repetition.
    pub resend_us: u64,
    /// Longest time between two repetitions.
    pub resend_max_us: u64,
    /// A pass to or from a gateway that is silent for this time is given up.
    pub give_up_us: u64,
    /// Time until the next pass if one was not completely successful. It doubles each time, up to `interval_us`. Also for a
    /// gateway that asks for a pass.
    pub retry_us: u64,
    /// A copy is incomplete if its owner was unreachable for longer.
    pub lost_us: u64,
    /// A copy is incomplete if no pass was complete for this time.
    pub stale_us: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            interval_us: 20_000_000,
            sessions_per_s: 100_000,
            tick_us: 10_000,
            resend_us: 50_000,
            resend_max_us: 1_000_000,
            give_up_us: 5_000_000,
            retry_us: 1_000_000,
            lost_us: 1_000_000,
            stale_us: 300_000_000,
        }
    }
}

impl Params {
    /// Ticks of 1/8 s by which a copy counts as less idle than the session: two intervals, so that one pass may fail.
    pub(crate) fn grace_ticks(&self) -> u32 {
        u32::try_from(2 * self.interval_us / TICK_US).unwrap_or(u32::MAX)
    }
}

/// When something is repeated: after a time that doubles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub at_us: u64,
    wait_us: u64,
}

impl Backoff {
    /// Is due first after `wait_us`.
    pub fn after(now_us: u64, wait_us: u64) -> Self {
        Self { at_us: now_us + wait_us, wait_us }
    }

    /// Is due at once, and after `wait_us` for the second time.
    pub fn now(now_us: u64, wait_us: u64) -> Self {
        Self { at_us: now_us, wait_us: wait_us / 2 }
    }

    /// Whether it is due. Then the next time is later by twice the time, or by `max_us`.
    pub fn is_due(&mut self, now_us: u64, max_us: u64) -> bool {
        if now_us < self.at_us {
            return false;
        }
        self.wait_us = (self.wait_us * 2).min(max_us);
        self.at_us = now_us + self.wait_us;
        true
    }
}
