//! Whether something answers probes that are sent all the time: the VM of a member of a service, or a host that has such VMs.
//! Pure: the caller has the clock and sends. This file changes with the rule by which silence is judged.
//!
//! ```text
//!                      SUCCESSES answers in a row
//!     UNKNOWN ----------------------------------------> UP
//!        |                                             |  ^
//!        | `failures` probes in a row                  |  | SUCCESSES answers in a row
//!        | without an answer                           v  |
//!        +--------------------------------------------> DOWN
//! ```
//!
//! A probe is unanswered when the next one is due. A late answer to one of the last `failures` probes shows that the other side
//! lives, so the count of unanswered probes begins again, but it does not count as answered. So silence is found
//! after at most `failures` + 1 intervals, each of which varies by a quarter.

use std::net::IpAddr;

use sluice_types::Random;

/// Answers in a row after which something is up.
pub const SUCCESSES: u32 = 3;

/// How something is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessConfig {
    /// Mean time between two probes in microseconds.
    pub interval_us: u64,
    /// Probes in a row without an answer after which it is down.
    pub failures: u32,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it answers.
    pub up: bool,
    /// What was measured.
    pub evidence: String,
}

/// The probes of one target.
#[derive(Debug)]
pub struct Liveness {
    config: LivenessConfig,
    random: Random,
    due_us: u64,
    /// Number of the last probe; 0 before the first.
    sent: u64,
    /// The last probe has no answer yet.
    is_waiting: bool,
    unanswered: u32,
    answered: u32,
    last_answer_us: Option<u64>,
    verdict: Option<Verdict>,
}

impl Liveness {
    /// The first probe is due within an interval. `seed` spreads the probes of several targets over time.
    #[must_use]
    pub fn new(config: LivenessConfig, now_us: u64, seed: u64) -> Self {
        let config =
            LivenessConfig { interval_us: config.interval_us.max(1), failures: config.failures.max(1) };
        let mut random = Random::new(seed);
        let due_us = now_us.saturating_add(random.number() % config.interval_us);
        Self {
            config,
            random,
            due_us,
            sent: 0,
            is_waiting: false,
            unanswered: 0,
            answered: 0,
            last_answer_us: None,
            verdict: None,
        }
    }

    /// Sets the mean time between two probes, from the next one on.
    pub fn set_interval(&mut self, interval_us: u64) {
        self.config.interval_us = interval_us.max(1);
    }

    /// When the next probe is due.
    #[must_use]
    pub fn due_us(&self) -> u64 {
        self.due_us
    }

    /// What was found last; `None` before that.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// The next probe is sent now: returns its number. What has arrived until now must have been taken before.
    pub fn probe(&mut self, now_us: u64) -> u64 {
        if self.is_waiting {
            self.unanswered = self.unanswered.saturating_add(1);
            self.answered = 0;
            if self.unanswered >= self.config.failures {
                self.judge(now_us, false);
            }
        }
        self.sent += 1;
        self.is_waiting = true;
        self.due_us = now_us.saturating_add(self.random.jittered(self.config.interval_us));
        self.sent
    }

    /// The first answer to the probe of this number has arrived.
    pub fn answer(&mut self, now_us: u64, number: u64) {
        let is_recent = number <= self.sent && self.sent - number < u64::from(self.config.failures);
        if number == 0 || !is_recent {
            return;
        }
        self.unanswered = 0;
        self.last_answer_us = Some(now_us);
        if number == self.sent && std::mem::take(&mut self.is_waiting) {
            self.answered = self.answered.saturating_add(1);
            if self.answered >= SUCCESSES {
                self.judge(now_us, true);
            }
        }
    }

    /// The last probe has an answer, whose number the protocol does not tell.
    pub fn answer_last(&mut self, now_us: u64) {
        self.answer(now_us, self.sent);
    }

    fn judge(&mut self, now_us: u64, up: bool) {
        if self.verdict.as_ref().is_some_and(|known| known.up == up) {
            return;
        }
        let evidence = match (up, self.last_answer_us) {
            (true, _) => format!("{SUCCESSES} probes in a row were answered"),
            (false, None) => format!("no probe of {} was answered", self.sent),
            (false, Some(at_us)) => {
                let silent_ms = now_us.saturating_sub(at_us) / 1000;
                format!("{} probes in a row were not answered, for {silent_ms} ms", self.unanswered)
            }
        };
        self.verdict = Some(Verdict { up, evidence });
    }
}

/// A seed of a target, which differs between the nodes that probe it.
#[must_use]
pub fn seed_of(target: IpAddr, node_seed: u64) -> u64 {
    sluice_types::address_hash(target) ^ node_seed
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: LivenessConfig = LivenessConfig { interval_us: 10_000, failures: 3 };

    /// Sends all probes that are due until a time, and answers those for which `answers` returns true, a millisecond later.
    /// Returns the number of probes.
    fn run(
        liveness: &mut Liveness,
        (now_us, until_us): (&mut u64, u64),
        answers: impl Fn(u64) -> bool,
    ) -> u64 {
        let mut probes = 0;
        while liveness.due_us() <= until_us {
            *now_us = liveness.due_us();
            let number = liveness.probe(*now_us);
            probes += 1;
            if answers(number) {
                liveness.answer(*now_us + 1000, number);
            }
        }
        probes
    }

    fn is_up(liveness: &Liveness) -> Option<bool> {
        liveness.verdict().map(|verdict| verdict.up)
    }

    #[test]
    fn three_answers_in_a_row_are_up_and_three_silences_down() {
        let mut liveness = Liveness::new(CONFIG, 0, 1);
        let probe = |liveness: &mut Liveness, answered: bool| {
            let now_us = liveness.due_us();
            let number = liveness.probe(now_us);
            if answered {
                liveness.answer(now_us + 500, number);
            }
            is_up(liveness)
        };
        assert_eq!([true, true].map(|it| probe(&mut liveness, it)), [None; 2]);
        // An answer that is missing begins the count again.
        assert_eq!([false, true, true].map(|it| probe(&mut liveness, it)), [None; 3]);
        assert_eq!(probe(&mut liveness, true), Some(true));
        // A probe is unanswered when the next one is due.
        assert_eq!([false, false, true].map(|it| probe(&mut liveness, it)), [Some(true); 3]);
        assert_eq!([false, false, false].map(|it| probe(&mut liveness, it)), [Some(true); 3]);
        assert_eq!(probe(&mut liveness, false), Some(false));
        let evidence = &liveness.verdict().unwrap().evidence;
        assert!(evidence.starts_with("3 probes in a row were not answered, for "), "{evidence}");
        assert_eq!([true, true].map(|it| probe(&mut liveness, it)), [Some(false); 2]);
        assert_eq!(probe(&mut liveness, true), Some(true));
    }

    /// The time to find a silence is what the failover of members takes most of.
    #[test]
    fn silence_is_found_within_four_intervals_wherever_it_begins() {
        for seed in 0..200 {
            let (mut liveness, mut now_us) = (Liveness::new(CONFIG, 0, seed), 0);
            let begin_us = 500_000 + seed * 137;
            run(&mut liveness, (&mut now_us, begin_us), |_| true);
            assert_eq!(is_up(&liveness), Some(true));
            while is_up(&liveness) == Some(true) {
                now_us = liveness.due_us();
                liveness.probe(now_us);
            }
            let took_us = now_us - begin_us;
            assert!((20_000..=50_000).contains(&took_us), "{took_us} us with seed {seed}");
        }
    }

    #[test]
    fn jitter_keeps_the_rate_and_spreads_the_first_probes() {
        let (mut liveness, mut now_us) = (Liveness::new(CONFIG, 0, 3), 0);
        let probes = run(&mut liveness, (&mut now_us, 10_000_000), |_| true);
        assert!((980..=1030).contains(&probes), "{probes}");
        let first: Vec<u64> = (0..64).map(|seed| Liveness::new(CONFIG, 5, seed).due_us()).collect();
        assert!(first.iter().all(|due_us| (5..10_005).contains(due_us)));
        assert!(first.iter().min().unwrap() < &2_000 && first.iter().max().unwrap() > &8_000);
    }

    #[test]
    fn another_interval_counts_from_the_next_probe_on() {
        let (mut liveness, mut now_us) = (Liveness::new(CONFIG, 0, 3), 0);
        run(&mut liveness, (&mut now_us, 1_000_000), |_| true);
        let due_us = liveness.due_us();
        liveness.set_interval(100_000);
        assert_eq!(liveness.due_us(), due_us);
        let until_us = now_us + 10_000_000;
        let probes = run(&mut liveness, (&mut now_us, until_us), |_| true);
        assert!((90..=110).contains(&probes), "{probes}");
        assert_eq!(is_up(&liveness), Some(true));
    }

    #[test]
    fn what_never_answered_is_down_and_says_so() {
        let (mut liveness, mut now_us) = (Liveness::new(CONFIG, 0, 9), 0);
        run(&mut liveness, (&mut now_us, 100_000), |_| false);
        let verdict = Verdict { up: false, evidence: "no probe of 3 was answered".to_owned() };
        assert_eq!(liveness.verdict(), Some(&verdict));
    }

    /// A path that takes longer than an interval does not bring anything up, and does not bring it down either.
    #[test]
    fn late_answers_show_life_but_do_not_count_as_answered() {
        let (mut liveness, mut now_us) = (Liveness::new(CONFIG, 0, 5), 0);
        run(&mut liveness, (&mut now_us, 200_000), |_| true);
        for _ in 0..50 {
            now_us = liveness.due_us();
            let number = liveness.probe(now_us);
            liveness.answer(now_us + 100, number - 1);
        }
        assert_eq!(is_up(&liveness), Some(true));
        let mut fresh = Liveness::new(CONFIG, 0, 5);
        for _ in 0..50 {
            let number = fresh.probe(fresh.due_us());
            fresh.answer(fresh.due_us(), number.saturating_sub(1));
        }
        assert_eq!(is_up(&fresh), None);
        // What is older than the last probes says nothing.
        for _ in 0..4 {
            now_us = liveness.due_us();
            let number = liveness.probe(now_us);
            liveness.answer(now_us + 100, number.saturating_sub(3));
        }
        assert_eq!(is_up(&liveness), Some(false));
    }
}
