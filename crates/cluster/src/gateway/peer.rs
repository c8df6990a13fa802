use crate::message::{Report, Standing};
use crate::params::Params;
use crate::source::{Arrival, Source};
use crate::vip::VipSet;
use sluice_types::GatewayId;

/// What a gateway knows of another.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub id: GatewayId,
    pub draining: bool,
    pub source: Source,
    /// Since when it is a peer: silence does not count from before.
    pub known_us: u64,
    /// The verdict: neither this gateway nor one that it hears has heard it in time.
    pub dead: bool,
    dead_us: u64,
    /// The verdict was passed since its last message.
    accused: bool,
    /// How often the verdict was wrong lately.
    pub alarms: u32,
    alarmed_us: u64,
    /// When the controller last said that it hears it; counts only after a false alarm.
    pub vouched_us: Option<u64>,
    /// Since when it does so again and again of a peer that is believed dead, and when it did last.
    contradicted_us: Option<(u64, u64)>,
    pub hears: Vec<GatewayId>,
    pub holds: VipSet,
    pub standing: Standing,
    /// When it was last sent what it did not know.
    pub synced_us: Option<u64>,
}

/// What a message says about its sender by having come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// Nothing: it is older than one before.
    Stale,
    /// It lives.
    Fresh,
    /// It lives, was believed dead, and had not died.
    Acquitted,
}

impl Peer {
    pub fn new(id: GatewayId, now_us: u64) -> Self {
        Self {
            id,
            draining: false,
            source: Source::default(),
            known_us: now_us,
            dead: false,
            dead_us: 0,
            accused: false,
            alarms: 0,
            alarmed_us: 0,
            vouched_us: None,
            contradicted_us: None,
            hears: Vec::new(),
            holds: VipSet::EMPTY,
            standing: Standing::Fit,
            synced_us: None,
        }
    }

    /// As if it had never been heard; whether it was slow before is remembered.
    pub fn forget(&mut self) {
        self.source.heard_us = None;
        (self.dead, self.accused) = (false, false);
        (self.vouched_us, self.contradicted_us) = (None, None);
        self.hears.clear();
        self.holds = VipSet::EMPTY;
        self.standing = Standing::Fit;
        self.synced_us = None;
    }

    /// Notes a message.
    pub fn note(&mut self, now_us: u64, incarnation: u64, seq: u64, params: &Params) -> Noted {
        let arrival = self.source.note(now_us, incarnation, seq, params.silence_after_us(self.alarms));
        if arrival == Arrival::Stale {
            return Noted::Stale;
        }
        if self.alarms > 0 && now_us - self.alarmed_us > params.forgive_us {
            self.alarms -= 1;
            self.alarmed_us = now_us;
        }
        self.contradicted_us = None;
        let accused = std::mem::take(&mut self.accused);
        if accused && arrival == Arrival::Next {
            // It was not dead: next time it is given longer.
            self.alarm(now_us, params);
            return Noted::Acquitted;
        }
        Noted::Fresh
    }

    fn alarm(&mut self, now_us: u64, params: &Params) {
        self.alarms = (self.alarms + 1).min(params.alarms_max);
        self.alarmed_us = now_us;
        self.dead = false;
    }

    /// The controller says that it hears this peer. That is older than what gateways see for themselves,
    /// so it counts only where those were wrong before, or are shown to be now: for a while, since a peer that
    /// died and has just come back may be heard by the controller first. True if they are.
    pub fn vouch(&mut self, now_us: u64, since_us: u64, params: &Params) -> bool {
        // What it heard of a life that ended is no word about the next.
        let goes_on = self.contradicted_us.filter(|(_, last_us)| now_us - last_us <= params.vouch_us());
        let contradicted_us = goes_on.map_or(now_us, |(first_us, _)| first_us);
        self.contradicted_us = self.dead.then_some((contradicted_us, now_us));
        let wrong_us = contradicted_us.max(self.dead_us).max(since_us);
        let wrong = self.dead && now_us - wrong_us > params.vouch_us();
        if wrong {
            self.alarm(now_us, params);
        }
        if self.alarms > 0 {
            self.vouched_us = Some(now_us);
        }
        wrong
    }

    /// Takes its report; returns the vIPs that it no longer answers for.
    pub fn report(&mut self, report: Report) -> VipSet {
        let released = self.holds.without(report.holds);
        self.holds = report.holds;
        self.hears = report.hears;
        self.standing = report.standing;
        released
    }

    /// The verdict, anew; returns the vIPs that nobody answers for since.
    pub fn judge(&mut self, alive: bool, now_us: u64) -> VipSet {
        let died = !alive && !self.dead;
        self.dead = !alive;
        if !died {
            return VipSet::EMPTY;
        }
        self.dead_us = now_us;
        self.contradicted_us = None;
        self.accused = true;
        std::mem::take(&mut self.holds)
    }

    pub fn is_heard(&self, now_us: u64, params: &Params) -> bool {
        self.source.is_heard(now_us, params.silence_after_us(self.alarms))
    }

    /// Whether it says that it hears that gateway.
    pub fn says_it_hears(&self, id: GatewayId) -> bool {
        self.hears.contains(&id)
    }

    pub fn is_vouched(&self, now_us: u64, params: &Params) -> bool {
        self.alarms > 0 && self.vouched_us.is_some_and(|at| now_us - at <= params.vouch_us())
    }

    /// Not heard yet, but not for so long that it means anything.
    pub fn is_awaited(&self, now_us: u64, since_us: u64, params: &Params) -> bool {
        self.source.heard_us.is_none() && now_us - since_us.max(self.known_us) <= params.silence_us
    }

    pub fn sync_due(&self, now_us: u64, interval_us: u64) -> bool {
        self.synced_us.is_none_or(|at| now_us - at >= interval_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_died_and_comes_back_was_no_false_alarm() {
        let params = Params::default();
        let mut peer = Peer::new(GatewayId::new(2), 0);
        peer.judge(false, 1_000_000);
        // Long dead; the controller hears its next life first, and this gateway a little later.
        peer.vouch(3_000_000, 0, &params);
        peer.vouch(3_050_000, 0, &params);
        assert_eq!(peer.note(3_060_000, 2, 1, &params), Noted::Fresh);
        peer.judge(true, 3_060_000);
        peer.vouch(3_300_000, 0, &params);
        assert_eq!(peer.alarms, 0);
        // Nor was one that the controller heard a little longer, and whose next life it hears first.
        peer.judge(false, 3_400_000);
        peer.vouch(3_440_000, 0, &params);
        peer.vouch(3_900_000, 0, &params);
        peer.vouch(3_950_000, 0, &params);
        peer.note(3_960_000, 3, 1, &params);
        peer.judge(true, 3_960_000);
        assert_eq!(peer.alarms, 0);
        // One that only the controller hears, and goes on to hear, lives.
        peer.judge(false, 4_000_000);
        for now_us in (4_000_000..4_150_000).step_by(50_000) {
            peer.vouch(now_us, 0, &params);
        }
        assert!(peer.dead && peer.alarms == 0);
        peer.vouch(4_000_000 + params.vouch_us() + 1, 0, &params);
        assert!(!peer.dead && peer.alarms == 1);
    }
}
