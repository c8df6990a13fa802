//! Times of the protocol, how they scale with the hello interval, and how a change of the hello interval
//! takes effect.

/// Times of the protocol, in microseconds of the clock of the node that uses them.
/// `docs/decisions/takeover.md` derives the time bounds from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Interval between two hellos of a gateway to its peers.
    pub hello_us: u64,
    /// A peer that is silent for longer is suspected to be dead. A gateway whose own clock jumps by more was
    /// paused.
    pub silence_us: u64,
    /// Number of false alarms about a peer after which its silence limit stops doubling.
    pub false_alarms_max: u32,
    /// A false alarm is forgotten after this time.
    pub forgive_us: u64,
    /// Time for which a gateway that started, was paused or was isolated only listens before it decides
    /// anything.
    pub startup_us: u64,
    /// Each candidate for a vIP waits longer than the previous one by this time.
    pub candidate_step_us: u64,
    /// A gateway that lacks copies of sessions takes a vIP this much later if another one has them, or if it has had none since it began. In the
    /// second case it would end sessions if the others are alive after all, because it does not know which of its ports they use.
    pub lacking_copies_us: u64,
    /// Time for which a gateway keeps a vIP whose new owner it does not receive hellos from.
    pub handover_us: u64,
    /// Time for which a gateway that no peer answers waits for an answer of the controller or a witness
    /// before it reports itself isolated.
    pub contact_us: u64,
    /// Interval between an announcement and its first repetition. It doubles with each repetition.
    pub repeat_us: u64,
    /// Number of repetitions of an announcement. They last until a split of the network during which the vIP
    /// was announced has either ended or been detected.
    pub repeats: u8,
    /// Interval between announcements that only refresh the memory of switches.
    pub refresh_us: u64,
    /// The same while a live gateway is cut off from the owner, and may answer for its vIPs.
    pub contested_us: u64,
    /// Interval between two heartbeats to the controller.
    pub heartbeat_us: u64,
    /// The controller probes a gateway that is silent for longer.
    pub controller_silence_us: u64,
    /// Time for which the controller waits for the answer to its probe.
    pub controller_probe_us: u64,
    /// Time for which a controller that started or was paused only listens before it decides anything.
    pub controller_startup_us: u64,
    /// Shortest time from the failure of a gateway until vIPs return to it. It doubles with each failure.
    pub hold_down_us: u64,
    /// Longest hold-down.
    pub hold_down_max_us: u64,
    /// Time for which a gateway that came back must be ready before it gets vIPs that another gateway has or
    /// can take. The gateway resolves its next hops in this time. VRRP implementations call this the preempt
    /// delay.
    pub preempt_delay_us: u64,
    /// A gateway that was not ready for less than this time has kept its next hops: for example, it was not
    /// scheduled for a moment.
    pub brief_failure_us: u64,
    /// At most one vIP is returned to its preferred owner in this time.
    pub return_interval_us: u64,
    /// Time for which peers of a gateway may have newer tables. Longer than a push of many entries takes on one gateway
    /// more than on another, and than a stream that is interrupted needs to connect again.
    pub behind_us: u64,
}

impl Default for Params {
    /// Takeover in 9 to 13 ms plus a round trip; heartbeats as in Zeta, section VIII-C.2.
    fn default() -> Self {
        Self {
            hello_us: 4_000,
            silence_us: 13_000,
            false_alarms_max: 3,
            forgive_us: 10_000_000,
            startup_us: 12_000,
            candidate_step_us: 2_000,
            lacking_copies_us: 100_000,
            handover_us: 20_000,
            contact_us: 4_000,
            repeat_us: 20_000,
            repeats: 3,
            refresh_us: 30_000_000,
            contested_us: 1_000_000,
            heartbeat_us: 50_000,
            controller_silence_us: 55_000,
            controller_probe_us: 5_000,
            controller_startup_us: 110_000,
            hold_down_us: 2_000_000,
            hold_down_max_us: 300_000_000,
            preempt_delay_us: 2_000_000,
            brief_failure_us: 500_000,
            return_interval_us: 250_000,
            behind_us: 3_000_000,
        }
    }
}

/// One of the [`Params`] is too short compared with another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value_us} us but must be at least {least_us} us: {reason}")]
pub struct ParamsError {
    name: &'static str,
    value_us: u64,
    least_us: u64,
    reason: &'static str,
}

impl Params {
    /// Checks that the times are consistent with each other.
    ///
    /// # Errors
    /// [`ParamsError`] for the first time that is too short.
    pub fn check(&self) -> Result<(), ParamsError> {
        let at_least = |name, value_us: u64, least_us: u64, reason| {
            if value_us < least_us { Err(ParamsError { name, value_us, least_us, reason }) } else { Ok(()) }
        };
        at_least("hello", self.hello_us, 100, "a shorter interval is lost in the jitter of timers")?;
        at_least("silence", self.silence_us, 2 * self.hello_us, "one lost hello is not a failure")?;
        at_least("startup", self.startup_us, 2 * self.hello_us, "each peer must have sent a hello")?;
        at_least("candidate step", self.candidate_step_us, 1, "candidates take vIPs one after the other")?;
        at_least("contact", self.contact_us, 1, "an answer takes time")?;
        at_least("repeat", self.repeat_us, 1, "repetitions must be apart")?;
        at_least(
            "time of all repetitions",
            self.repetitions_us(),
            self.silence_after_us(self.false_alarms_max),
            "they must last longer than a split that is not detected",
        )?;
        at_least("refresh", self.refresh_us, self.repeat_us, "a refresh follows the repetitions")?;
        at_least("contested refresh", self.contested_us, 1, "announcements must be apart")?;
        at_least(
            "heartbeat",
            self.heartbeat_us,
            self.hello_us,
            "peers monitor each other more closely than the controller does",
        )?;
        at_least(
            "controller silence",
            self.controller_silence_us,
            self.heartbeat_us,
            "silence between heartbeats is normal",
        )?;
        at_least(
            "controller startup",
            self.controller_startup_us,
            self.heartbeat_us,
            "each gateway must have sent a heartbeat",
        )?;
        at_least(
            "hold-down",
            self.hold_down_us,
            self.brief_failure_us,
            "after a brief failure only the hold-down delays the return of vIPs",
        )?;
        at_least("return interval", self.return_interval_us, 1, "vIPs are returned one at a time")
    }

    /// Scales the times to another hello interval: times for waiting on messages change in proportion. Times
    /// that depend on machines and switches stay the same.
    fn scaled_to(&self, hello_us: u64) -> Self {
        let scaled = |time_us: u64| time_us.saturating_mul(hello_us) / self.hello_us.max(1);
        Self {
            hello_us,
            silence_us: scaled(self.silence_us),
            startup_us: scaled(self.startup_us),
            candidate_step_us: scaled(self.candidate_step_us),
            handover_us: scaled(self.handover_us),
            contact_us: scaled(self.contact_us),
            repeat_us: scaled(self.repeat_us),
            heartbeat_us: scaled(self.heartbeat_us),
            controller_silence_us: scaled(self.controller_silence_us),
            controller_probe_us: scaled(self.controller_probe_us),
            controller_startup_us: scaled(self.controller_startup_us),
            ..self.clone()
        }
    }

    /// Silence limit of a peer about which there were `false_alarms` recently.
    pub(crate) fn silence_after_us(&self, false_alarms: u32) -> u64 {
        self.silence_us << false_alarms.min(self.false_alarms_max).min(16)
    }

    /// Interval from an announcement to the next one, if `left` repetitions remain.
    pub(crate) fn announce_interval_us(&self, left: u8) -> u64 {
        match left {
            0 => self.refresh_us,
            left => self.repeat_us << self.repeats.saturating_sub(left).min(16),
        }
    }

    /// Time from an announcement to its last repetition.
    pub(crate) fn repetitions_us(&self) -> u64 {
        (1..=self.repeats).map(|left| self.announce_interval_us(left)).sum()
    }

    /// Age of the last heartbeat up to which the controller reports a gateway as reachable.
    pub(crate) fn controller_limit_us(&self) -> u64 {
        self.controller_silence_us + self.controller_probe_us
    }

    /// Time for which the controller's report that it reaches a gateway is valid: two heartbeats and the
    /// controller's own limit.
    pub(crate) fn controller_report_us(&self) -> u64 {
        self.heartbeat_us + self.controller_limit_us()
    }

    /// Largest delay of a witness's answer. A later answer proves nothing about the present.
    pub(crate) fn witness_delay_max_us(&self) -> u64 {
        self.contact_us.max(50_000)
    }

    /// Hold-down after this number of failures.
    pub(crate) fn hold_down_after_us(&self, failures: u32) -> u64 {
        match failures {
            0 => 0,
            n => (self.hold_down_us << (n - 1).min(20)).min(self.hold_down_max_us),
        }
    }
}

/// The times that are valid now, in a cluster whose operator may change the hello interval.
///
/// Nodes learn of a change at different moments. Therefore each node uses the shorter interval of the two for
/// sending and the longer one for judging others, for a while:
///
/// ```text
///   CONSTANT --- change: another hello interval ---> CHANGING (sends at the shorter interval,
///      ^                                                |      judges by the longer silence limit)
///      +--- after the time of all repetitions ----------+
/// ```
///
/// A node that learned of the change first then neither seems silent nor believes others dead.
#[derive(Clone, Debug)]
pub(crate) struct ActiveParams {
    base: Params,
    now: Params,
    /// Times that become valid at a later time.
    next: Option<(u64, Params)>,
}

impl ActiveParams {
    pub(crate) fn new(base: Params) -> Self {
        Self { now: base.clone(), next: None, base }
    }

    /// Sets the hello interval of the first configuration, at once.
    pub(crate) fn set(&mut self, hello_interval_ms: u16) {
        (self.now, self.next) = (self.wanted(hello_interval_ms), None);
    }

    /// Starts a change to another hello interval.
    pub(crate) fn change(&mut self, now_us: u64, hello_interval_ms: u16) {
        let wanted = self.wanted(hello_interval_ms);
        let hello_us = self.now.hello_us.min(wanted.hello_us);
        let heartbeat_us = self.now.heartbeat_us.min(wanted.heartbeat_us);
        let slower = if wanted.silence_us > self.now.silence_us { &wanted } else { &self.now };
        let meanwhile = Params { hello_us, heartbeat_us, ..slower.clone() };
        // As long as announcements are repeated: an undetected split does not last longer.
        self.next = Some((now_us + meanwhile.repetitions_us(), wanted));
        self.now = meanwhile;
    }

    /// Completes a change whose time has come.
    pub(crate) fn advance(&mut self, now_us: u64) {
        if let Some((_, wanted)) = self.next.take_if(|(at_us, _)| *at_us <= now_us) {
            self.now = wanted;
        }
    }

    /// Time at which [`advance`](Self::advance) completes a change.
    pub(crate) fn due_us(&self) -> Option<u64> {
        self.next.as_ref().map(|(at_us, _)| *at_us)
    }

    /// Computes the times for a hello interval; 0 is the default.
    fn wanted(&self, hello_interval_ms: u16) -> Params {
        match hello_interval_ms {
            0 => self.base.clone(),
            interval_ms => self.base.scaled_to(u64::from(interval_ms) * 1_000),
        }
    }
}

impl std::ops::Deref for ActiveParams {
    type Target = Params;

    fn deref(&self) -> &Params {
        &self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::{HELLO_INTERVAL_MS_DEFAULT, HELLO_INTERVAL_MS_MAX, HELLO_INTERVAL_MS_MIN};

    #[test]
    fn all_permitted_hello_intervals_are_consistent() {
        let base = Params::default();
        assert_eq!(base.hello_us, u64::from(HELLO_INTERVAL_MS_DEFAULT) * 1_000);
        assert_eq!(base.scaled_to(base.hello_us), base);
        for interval_ms in HELLO_INTERVAL_MS_MIN..=HELLO_INTERVAL_MS_MAX {
            let params = base.scaled_to(u64::from(interval_ms) * 1_000);
            params.check().unwrap();
            assert!(params.silence_after_us(params.false_alarms_max) < params.forgive_us, "{interval_ms} ms");
        }
    }

    #[test]
    fn change_sends_at_the_shorter_and_judges_by_the_longer_interval_first() {
        let mut active = ActiveParams::new(Params::default());
        active.set(0);
        assert_eq!(*active, Params::default());
        let slow = Params::default().scaled_to(40_000);
        for (wanted_ms, wanted) in [(40, slow.clone()), (4, Params::default())] {
            active.change(1_000_000, wanted_ms);
            let meanwhile = Params { hello_us: 4_000, heartbeat_us: 50_000, ..slow.clone() };
            assert_eq!(*active, meanwhile);
            meanwhile.check().unwrap();
            // Two more changes before the first is complete: the waiting time starts again.
            active.change(1_300_000, if wanted_ms == 4 { 40 } else { 4 });
            assert_eq!(*active, meanwhile);
            active.change(1_500_000, wanted_ms);
            assert_eq!((&*active, active.due_us()), (&meanwhile, Some(1_500_000 + slow.repetitions_us())));
            active.advance(1_500_000 + slow.repetitions_us() - 1);
            assert_eq!(*active, meanwhile);
            active.advance(1_500_000 + slow.repetitions_us());
            assert_eq!((&*active, active.due_us()), (&wanted, None));
        }
    }

    #[test]
    fn defaults_are_consistent() {
        Params::default().check().unwrap();
        let short = Params { silence_us: 7_000, ..Params::default() };
        let text = short.check().unwrap_err().to_string();
        assert_eq!(text, "silence is 7000 us but must be at least 8000 us: one lost hello is not a failure");
    }

    #[test]
    fn doubling_times_are_limited() {
        let params = Params::default();
        assert_eq!(params.silence_after_us(0), 13_000);
        assert_eq!(params.silence_after_us(99), 104_000);
        assert_eq!(
            [3, 2, 1, 0].map(|left| params.announce_interval_us(left)),
            [20_000, 40_000, 80_000, 30_000_000]
        );
        assert_eq!(params.repetitions_us(), 140_000);
        assert_eq!(
            [0, 1, 2, 99].map(|failures| params.hold_down_after_us(failures)),
            [0, 2_000_000, 4_000_000, 300_000_000]
        );
    }
}
