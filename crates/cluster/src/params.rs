/// Times of the protocol, in microseconds of the clock of the node concerned.
/// `docs/decisions/takeover.md` says how the bounds follow from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Between two hellos of a gateway to its peers.
    pub hello_us: u64,
    /// A peer that was silent for longer is suspected; an own clock that jumped further was paused.
    pub silence_us: u64,
    /// After that many false alarms about a peer, its silence limit stops doubling.
    pub alarms_max: u32,
    /// A false alarm is forgotten after this time.
    pub forgive_us: u64,
    /// How long a gateway that started, woke up or came back listens before it decides anything.
    pub listen_us: u64,
    /// By how much each candidate for a vIP waits longer than the one before it.
    pub step_us: u64,
    /// How long a vIP is kept for a new owner that cannot be heard directly.
    pub yield_us: u64,
    /// How long a gateway that hears no peer waits for an answer of controller or witness before it
    /// says that it is cut off.
    pub contact_us: u64,
    /// Between an announcement and its first repetition; doubles with each.
    pub repeat_us: u64,
    /// How often an announcement is repeated: until a split of the network that it fell into has either
    /// ended or been noticed.
    pub repeats: u8,
    /// Between announcements that only refresh what switches know.
    pub refresh_us: u64,
    /// Between two heartbeats to the controller.
    pub heartbeat_us: u64,
    /// A gateway that was silent for longer is probed by the controller.
    pub controller_silence_us: u64,
    /// How long the controller waits for the probe's answer.
    pub controller_probe_us: u64,
    /// How long a controller that started or woke up listens before it decides anything.
    pub controller_listen_us: u64,
    /// How long after it failed a gateway gets vIPs back at the earliest; doubles with each failure.
    pub hold_down_us: u64,
    /// Longest hold-down.
    pub hold_down_max_us: u64,
    /// A gateway that came back has been fit for so long before vIPs go to it, where another has them or can
    /// take them: meanwhile it finds its next hops again. What VRRP's implementations call the preempt delay.
    pub preempt_delay_us: u64,
    /// Whoever was unfit for less than this has not lost its next hops: a processor was taken away, say.
    pub brief_us: u64,
    /// At most one vIP is given back in this time.
    pub return_interval_us: u64,
}

impl Default for Params {
    /// Takeover in 8 to 13 ms and a round trip; heartbeats as in Zeta, section VIII-C.2.
    fn default() -> Self {
        Self {
            hello_us: 4_000,
            silence_us: 13_000,
            alarms_max: 3,
            forgive_us: 10_000_000,
            listen_us: 12_000,
            step_us: 2_000,
            yield_us: 20_000,
            contact_us: 4_000,
            repeat_us: 20_000,
            repeats: 3,
            refresh_us: 30_000_000,
            heartbeat_us: 50_000,
            controller_silence_us: 55_000,
            controller_probe_us: 5_000,
            controller_listen_us: 110_000,
            hold_down_us: 2_000_000,
            hold_down_max_us: 300_000_000,
            preempt_delay_us: 2_000_000,
            brief_us: 500_000,
            return_interval_us: 250_000,
        }
    }
}

/// Times that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value_us} us, must be at least {least_us} us: {why}")]
pub struct ParamsError {
    name: &'static str,
    value_us: u64,
    least_us: u64,
    why: &'static str,
}

impl Params {
    /// Checks that the times fit each other.
    ///
    /// # Errors
    /// The first that is too short.
    pub fn check(&self) -> Result<(), ParamsError> {
        let at_least = |name, value_us: u64, least_us: u64, why| {
            if value_us < least_us { Err(ParamsError { name, value_us, least_us, why }) } else { Ok(()) }
        };
        at_least("hello", self.hello_us, 100, "shorter ones are lost in the timers' jitter")?;
        at_least("silence", self.silence_us, 2 * self.hello_us, "one lost hello is no failure")?;
        at_least("listen", self.listen_us, 2 * self.hello_us, "every peer must have had its turn")?;
        at_least("step", self.step_us, 1, "candidates take turns")?;
        at_least("contact", self.contact_us, 1, "an answer takes time")?;
        at_least("repeat", self.repeat_us, 1, "repetitions take turns")?;
        at_least(
            "repeats' time",
            self.repeated_us(),
            self.silence_after_us(self.alarms_max),
            "a split that is not noticed must not outlast them",
        )?;
        at_least("refresh", self.refresh_us, self.repeat_us, "a refresh follows the repetitions")?;
        at_least(
            "heartbeat",
            self.heartbeat_us,
            self.hello_us,
            "peers watch more closely than the controller",
        )?;
        at_least(
            "controller silence",
            self.controller_silence_us,
            self.heartbeat_us,
            "silence between heartbeats is normal",
        )?;
        at_least(
            "controller listen",
            self.controller_listen_us,
            self.heartbeat_us,
            "every gateway must have had its turn",
        )?;
        at_least("hold-down", self.hold_down_us, self.brief_us, "only it follows a brief failure")?;
        at_least("return interval", self.return_interval_us, 1, "vIPs are given back one by one")
    }

    /// The same at another hello interval: what waits for messages is longer or shorter by as much. What is
    /// about the machines and switches rather than about messages stays.
    fn at_hello(&self, hello_us: u64) -> Self {
        let scaled = |time_us: u64| time_us.saturating_mul(hello_us) / self.hello_us.max(1);
        Self {
            hello_us,
            silence_us: scaled(self.silence_us),
            listen_us: scaled(self.listen_us),
            step_us: scaled(self.step_us),
            yield_us: scaled(self.yield_us),
            contact_us: scaled(self.contact_us),
            repeat_us: scaled(self.repeat_us),
            heartbeat_us: scaled(self.heartbeat_us),
            controller_silence_us: scaled(self.controller_silence_us),
            controller_probe_us: scaled(self.controller_probe_us),
            controller_listen_us: scaled(self.controller_listen_us),
            ..self.clone()
        }
    }

    /// Silence limit of a peer about which there were `alarms` false alarms.
    pub(crate) fn silence_after_us(&self, alarms: u32) -> u64 {
        self.silence_us << alarms.min(self.alarms_max).min(16)
    }

    /// From an announcement to the next when so many repetitions are left.
    pub(crate) fn pause_us(&self, left: u8) -> u64 {
        match left {
            0 => self.refresh_us,
            left => self.repeat_us << self.repeats.saturating_sub(left).min(16),
        }
    }

    /// From an announcement to its last repetition.
    pub(crate) fn repeated_us(&self) -> u64 {
        (1..=self.repeats).map(|left| self.pause_us(left)).sum()
    }

    /// After this time without a heartbeat the controller does not say any more that it hears a gateway.
    pub(crate) fn controller_limit_us(&self) -> u64 {
        self.controller_silence_us + self.controller_probe_us
    }

    /// How long what the controller says about a gateway counts: two heartbeats, and its own limit.
    pub(crate) fn vouch_us(&self) -> u64 {
        self.heartbeat_us + self.controller_limit_us()
    }

    /// An answer of a witness that took longer proves nothing about now.
    pub(crate) fn answer_us(&self) -> u64 {
        self.contact_us.max(50_000)
    }

    /// Hold-down after that many failures.
    pub(crate) fn hold_down_after_us(&self, strikes: u32) -> u64 {
        match strikes {
            0 => 0,
            n => (self.hold_down_us << (n - 1).min(20)).min(self.hold_down_max_us),
        }
    }
}

/// The times of a cluster whose operator may set another hello interval while it runs.
///
/// Not all nodes learn of that at the same moment. So for a while each speaks at the shorter interval of the
/// two and judges by the longer: who knew first neither seems silent nor believes others dead.
#[derive(Clone, Debug)]
pub(crate) struct Paced {
    base: Params,
    now: Params,
    /// What counts from when on.
    next: Option<(u64, Params)>,
}

impl Paced {
    pub(crate) fn new(base: Params) -> Self {
        Self { now: base.clone(), next: None, base }
    }

    /// The hello interval of the first configuration, that no other one was before.
    pub(crate) fn begin(&mut self, hello_ms: u16) {
        (self.now, self.next) = (self.wanted(hello_ms), None);
    }

    /// Another one from now on.
    pub(crate) fn change(&mut self, now_us: u64, hello_ms: u16) {
        let wanted = self.wanted(hello_ms);
        let hello_us = self.now.hello_us.min(wanted.hello_us);
        let heartbeat_us = self.now.heartbeat_us.min(wanted.heartbeat_us);
        let slower = if wanted.silence_us > self.now.silence_us { &wanted } else { &self.now };
        let meanwhile = Params { hello_us, heartbeat_us, ..slower.clone() };
        // As long as announcements are repeated: a split that is not noticed does not outlast that.
        self.next = Some((now_us + meanwhile.repeated_us(), wanted));
        self.now = meanwhile;
    }

    /// Lets the wanted times count, once theirs has come.
    pub(crate) fn advance(&mut self, now_us: u64) {
        if let Some((_, wanted)) = self.next.take_if(|(at_us, _)| *at_us <= now_us) {
            self.now = wanted;
        }
    }

    /// When [`advance`](Self::advance) has something to do.
    pub(crate) fn due_us(&self) -> Option<u64> {
        self.next.as_ref().map(|(at_us, _)| *at_us)
    }

    /// 0 is whatever the base says.
    fn wanted(&self, hello_ms: u16) -> Params {
        match hello_ms {
            0 => self.base.clone(),
            hello_ms => self.base.at_hello(u64::from(hello_ms) * 1_000),
        }
    }
}

impl std::ops::Deref for Paced {
    type Target = Params;

    fn deref(&self) -> &Params {
        &self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::{HELLO_MS_DEFAULT, HELLO_MS_MAX, HELLO_MS_MIN};

    #[test]
    fn all_hello_intervals_fit() {
        let base = Params::default();
        assert_eq!(base.hello_us, u64::from(HELLO_MS_DEFAULT) * 1_000);
        assert_eq!(base.at_hello(base.hello_us), base);
        for hello_ms in HELLO_MS_MIN..=HELLO_MS_MAX {
            let params = base.at_hello(u64::from(hello_ms) * 1_000);
            params.check().unwrap();
            assert!(params.silence_after_us(params.alarms_max) < params.forgive_us, "{hello_ms} ms");
        }
    }

    #[test]
    fn a_change_speaks_fast_and_judges_slowly_first() {
        let mut paced = Paced::new(Params::default());
        paced.begin(0);
        assert_eq!(*paced, Params::default());
        let slow = Params::default().at_hello(40_000);
        for (wanted_ms, wanted) in [(40, slow.clone()), (4, Params::default())] {
            paced.change(1_000_000, wanted_ms);
            let meanwhile = Params { hello_us: 4_000, heartbeat_us: 50_000, ..slow.clone() };
            assert_eq!(*paced, meanwhile);
            meanwhile.check().unwrap();
            // There and back before that is over: the same, from then on.
            paced.change(1_300_000, if wanted_ms == 4 { 40 } else { 4 });
            assert_eq!(*paced, meanwhile);
            paced.change(1_500_000, wanted_ms);
            assert_eq!((&*paced, paced.due_us()), (&meanwhile, Some(1_500_000 + slow.repeated_us())));
            paced.advance(1_500_000 + slow.repeated_us() - 1);
            assert_eq!(*paced, meanwhile);
            paced.advance(1_500_000 + slow.repeated_us());
            assert_eq!((&*paced, paced.due_us()), (&wanted, None));
        }
    }

    #[test]
    fn defaults_fit_each_other() {
        Params::default().check().unwrap();
        let short = Params { silence_us: 7_000, ..Params::default() };
        let text = short.check().unwrap_err().to_string();
        assert_eq!(text, "silence is 7000 us, must be at least 8000 us: one lost hello is no failure");
    }

    #[test]
    fn backing_off_has_a_limit() {
        let params = Params::default();
        assert_eq!(params.silence_after_us(0), 13_000);
        assert_eq!(params.silence_after_us(99), 104_000);
        assert_eq!([3, 2, 1, 0].map(|left| params.pause_us(left)), [20_000, 40_000, 80_000, 30_000_000]);
        assert_eq!(params.repeated_us(), 140_000);
        assert_eq!(
            [0, 1, 2, 99].map(|strikes| params.hold_down_after_us(strikes)),
            [0, 2_000_000, 4_000_000, 300_000_000]
        );
    }
}
