//! What a gateway knows about one peer: its last report, whether it is believed dead, and how often that was
//! wrong.
//!
//! ```text
//!            no hello within the silence limit, no other gateway reaches it,
//!            and no report of the controller that counts
//!   ALIVE ---------------------------------------------------------------------> DEAD
//!     ^                                                                            |
//!     +-- message of the same incarnation: false alarm, silence limit doubles -----+
//!     +-- message of a new incarnation: the peer restarted ------------------------+
//!     +-- controller has reported it reachable for long enough: false alarm -------+
//! ```
//!
//! A false alarm is forgotten after `forgive_us`.

use crate::message::{Health, Report};
use crate::params::Params;
use crate::readiness::TableReport;
use crate::sender::{Arrival, SenderState};
use crate::vip::VipSet;
use sluice_types::GatewayId;

/// State of a peer.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub id: GatewayId,
    pub draining: bool,
    pub sender: SenderState,
    /// Time at which it became a peer. Silence before this time does not count.
    pub added_us: u64,
    /// Neither this gateway nor a gateway that it reaches has received a hello of the peer in time.
    pub dead: bool,
    dead_since_us: u64,
    /// The peer was declared dead after its last message.
    suspected: bool,
    /// The peer died, and has not been ready since.
    pub returns: bool,
    /// The false alarm of the last death was counted already, because the controller reported the peer.
    is_counted: bool,
    /// Number of recent false alarms.
    pub false_alarms: u32,
    false_alarm_us: u64,
    /// Time of the controller's last report that it reaches the peer. It counts only after a false alarm.
    pub reported_us: Option<u64>,
    /// While the peer is believed dead: first and last time at which the controller reported it reachable.
    contradicted_us: Option<(u64, u64)>,
    /// Time at which it was probed last, and at which it last answered a probe.
    pub probed_us: Option<u64>,
    pub answered_us: Option<u64>,
    /// Revision of the configuration that it follows, as it has reported last.
    pub config: Option<u64>,
    /// Gateways that the peer reaches.
    pub reachable: Vec<GatewayId>,
    pub holds: VipSet,
    pub health: Health,
    /// State of its tables; `None` if it has not reported it yet.
    pub tables: Option<TableReport>,
    /// Packets went both ways between it and this gateway, when that was last noted.
    is_mutual: bool,
    /// How often that ended.
    pub interruptions: u64,
    /// Time at which it was last sent the configuration or claims that it lacked.
    pub synced_us: Option<u64>,
}

/// What the arrival of a message says about its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Nothing: the message is older than an earlier one.
    Stale,
    /// The peer is alive.
    Fresh,
    /// The peer is alive, was believed dead, and has not restarted.
    FalseAlarm,
}

impl Peer {
    pub fn new(id: GatewayId, now_us: u64) -> Self {
        Self {
            id,
            draining: false,
            sender: SenderState::default(),
            added_us: now_us,
            dead: false,
            dead_since_us: 0,
            suspected: false,
            returns: false,
            is_counted: false,
            false_alarms: 0,
            false_alarm_us: 0,
            reported_us: None,
            contradicted_us: None,
            probed_us: None,
            answered_us: None,
            config: None,
            reachable: Vec::new(),
            holds: VipSet::EMPTY,
            health: Health::Ready,
            tables: None,
            is_mutual: false,
            interruptions: 0,
            synced_us: None,
        }
    }

    /// Forgets everything received from the peer, except its false alarms.
    pub fn forget(&mut self) {
        self.sender.received_us = None;
        (self.dead, self.suspected, self.is_counted, self.returns) = (false, false, false, false);
        (self.reported_us, self.contradicted_us) = (None, None);
        (self.probed_us, self.answered_us) = (None, None);
        self.reachable.clear();
        self.holds = VipSet::EMPTY;
        self.health = Health::Ready;
        self.tables = None;
        self.synced_us = None;
    }

    /// Records the arrival of a message.
    pub fn record(&mut self, now_us: u64, incarnation: u64, seq: u64, params: &Params) -> Received {
        let limit_us = params.silence_after_us(self.false_alarms);
        let arrival = self.sender.record(now_us, incarnation, seq, limit_us);
        if arrival == Arrival::Stale {
            return Received::Stale;
        }
        if self.false_alarms > 0 && now_us - self.false_alarm_us > params.forgive_us {
            self.false_alarms -= 1;
            self.false_alarm_us = now_us;
        }
        self.contradicted_us = None;
        let suspected = std::mem::take(&mut self.suspected);
        if suspected && arrival == Arrival::Next {
            if !std::mem::take(&mut self.is_counted) {
                self.record_false_alarm(now_us, params);
            }
            return Received::FalseAlarm;
        }
        Received::Fresh
    }

    fn record_false_alarm(&mut self, now_us: u64, params: &Params) {
        self.false_alarms = (self.false_alarms + 1).min(params.false_alarms_max);
        self.false_alarm_us = now_us;
        (self.dead, self.returns) = (false, false);
    }

    /// Handles the controller's report that it reaches this peer. The report is older than what gateways
    /// observe themselves. It counts only if their observation was wrong recently, or is shown to be wrong
    /// now because the controller reports the peer for a while: the controller may reach a peer that died and
    /// restarted before this gateway does. Returns whether the peer was wrongly believed dead.
    pub fn record_controller_report(&mut self, now_us: u64, since_us: u64, params: &Params) -> bool {
        // Reports about an incarnation that ended say nothing about the next one.
        let limit_us = params.controller_report_us();
        let continued = self.contradicted_us.filter(|(_, last_us)| now_us - last_us <= limit_us);
        let contradicted_us = continued.map_or(now_us, |(first_us, _)| first_us);
        self.contradicted_us = self.dead.then_some((contradicted_us, now_us));
        let wrong_since_us = contradicted_us.max(self.dead_since_us).max(since_us);
        let wrong = self.dead && now_us - wrong_since_us > limit_us;
        if wrong {
            self.record_false_alarm(now_us, params);
            self.is_counted = true;
        }
        if self.false_alarms > 0 {
            self.reported_us = Some(now_us);
        }
        wrong
    }

    /// Stores the peer's report. Returns the vIPs that it no longer answers for.
    pub fn set_report(&mut self, report: Report) -> VipSet {
        let released = self.holds.without(report.holds);
        self.holds = report.holds;
        self.config = Some(report.config);
        self.reachable = report.reachable;
        self.health = report.health;
        self.returns &= report.health != Health::Ready;
        self.tables = Some(report.tables);
        released
    }

    /// Declares the peer alive or dead. Returns the vIPs that it has stopped answering for by dying.
    pub fn set_alive(&mut self, alive: bool, now_us: u64) -> VipSet {
        let died = !alive && !self.dead;
        self.dead = !alive;
        if !died {
            return VipSet::EMPTY;
        }
        self.dead_since_us = now_us;
        self.contradicted_us = None;
        (self.suspected, self.returns) = (true, true);
        self.is_counted = false;
        std::mem::take(&mut self.holds)
    }

    /// Returns whether this gateway has received a message of the peer within the silence limit.
    pub fn is_reachable(&self, now_us: u64, params: &Params) -> bool {
        self.sender.is_reachable(now_us, params.silence_after_us(self.false_alarms))
    }

    /// Returns whether the peer reports that it reaches a gateway.
    pub fn reaches(&self, id: GatewayId) -> bool {
        self.reachable.contains(&id)
    }

    /// Notes whether packets go both ways.
    pub fn note_mutual(&mut self, is_mutual: bool) {
        let was_mutual = std::mem::replace(&mut self.is_mutual, is_mutual);
        self.interruptions += u64::from(was_mutual && !is_mutual);
    }

    /// Returns whether the controller reports the peer reachable, and its report counts.
    pub fn is_reported_reachable(&self, now_us: u64, params: &Params) -> bool {
        self.false_alarms > 0
            && self.reported_us.is_some_and(|at| now_us - at <= params.controller_report_us())
    }

    /// Returns whether no message of the peer has arrived yet, and too little time has passed to conclude
    /// anything.
    pub fn is_awaited(&self, now_us: u64, since_us: u64, params: &Params) -> bool {
        self.sender.received_us.is_none() && now_us - since_us.max(self.added_us) <= params.silence_us
    }

    /// Returns whether the peer may be sent what it lacks again.
    pub fn is_sync_due(&self, now_us: u64, interval_us: u64) -> bool {
        self.synced_us.is_none_or(|at| now_us - at >= interval_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_after_a_death_is_not_a_false_alarm() {
        let params = Params::default();
        let mut peer = Peer::new(GatewayId::new(2), 0);
        peer.set_alive(false, 1_000_000);
        // The peer is dead for long; the controller reaches its next incarnation first, this gateway a little
        // later.
        peer.record_controller_report(3_000_000, 0, &params);
        peer.record_controller_report(3_050_000, 0, &params);
        assert_eq!(peer.record(3_060_000, 2, 1, &params), Received::Fresh);
        peer.set_alive(true, 3_060_000);
        peer.record_controller_report(3_300_000, 0, &params);
        assert_eq!(peer.false_alarms, 0);
        // The controller received the old incarnation a little longer, and receives the next one first.
        peer.set_alive(false, 3_400_000);
        peer.record_controller_report(3_440_000, 0, &params);
        peer.record_controller_report(3_900_000, 0, &params);
        peer.record_controller_report(3_950_000, 0, &params);
        peer.record(3_960_000, 3, 1, &params);
        peer.set_alive(true, 3_960_000);
        assert_eq!(peer.false_alarms, 0);
        // A peer that the controller reaches for a while is alive, although this gateway does not reach it.
        peer.set_alive(false, 4_000_000);
        for now_us in (4_000_000..4_150_000).step_by(50_000) {
            peer.record_controller_report(now_us, 0, &params);
        }
        assert!(peer.dead && peer.false_alarms == 0);
        peer.record_controller_report(4_000_000 + params.controller_report_us() + 1, 0, &params);
        assert!(!peer.dead && peer.false_alarms == 1);
        // The peer's own message confirms the alarm that was counted.
        assert_eq!(peer.record(4_300_000, 3, 2, &params), Received::FalseAlarm);
        assert_eq!(peer.false_alarms, 1);
    }
}
