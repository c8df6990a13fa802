//! Which vIPs this gateway answers for: it takes over vIPs of failed gateways, hands vIPs over to their new
//! owners, and announces what it owns.
//!
//! State of one vIP on this gateway:
//!
//! ```text
//!                claim names this gateway, and it may act / Announce: Assigned
//!              +---------------------------------------------------------------+
//!              |                                                               v
//!   NOT HELD --+                                                              HELD --+ repetitions, refresh,
//!    ^  |                                                                      ^  ^  | another owner stopped
//!    |  |   owner is dead or isolated,                                         |  +--+ / Announce
//!    |  |   or has worse tables than this gateway                              |  |
//!    |  +------------------------> ORPHANED -----------------------------------+  |
//!    |                             this gateway's turn / Announce: TakenOver      | newer claim names
//!    |                                                                            v another gateway
//!    +--------------------------------------------------------------------- HANDING OVER
//!         the new owner answers for it, or `handover_us` is over and it is known that hosts
//!         reach the new owner (`is_confirmed_alive`) / Withdraw
//! ```
//!
//! A claim that names this gateway again turns HANDING OVER into HELD. A vIP that is removed from the
//! configuration becomes NOT HELD at once. ORPHANED lasts at least until one silence limit after the last
//! claim, then `candidate_step_us` longer for each candidate that comes before this gateway.

use super::{AnnounceReason, Gateway, Incident, Output, Peer};
use crate::message::Health;
use crate::order::{self, Candidate};
use crate::vip::{VipId, VipSet};
use sluice_types::GatewayId;

impl Gateway {
    /// Returns whether this gateway may take over and announce vIPs.
    fn may_act(&self) -> bool {
        self.health == Health::Ready && self.has_contact
    }

    /// Updates the vIPs that this gateway holds to the table, and the table to the gateways that are alive.
    pub(super) fn update_ownership(&mut self, now_us: u64) {
        let member = self.config.member(self.own).is_some();
        // Without a configuration it is unknown which vIPs the cluster still has.
        if self.config.revision > 0 {
            for vip in self.holds.without(self.config.vips).iter() {
                self.withdraw(vip);
            }
        }
        for vip in self.config.vips.iter() {
            let Some(claim) = self.table.get(vip) else { continue };
            if claim.owner != self.own {
                if self.holds.contains(vip) {
                    self.hand_over(now_us, vip);
                }
                continue;
            }
            self.vips[vip.index()].handover_since_us = None;
            if !self.holds.contains(vip) && self.may_act() && member {
                self.hold(now_us, vip, AnnounceReason::Assigned);
            }
        }
        if self.may_act() && member {
            self.take_orphaned_vips(now_us);
        }
        self.report_if_drained();
    }

    /// Hands a vIP over to its new owner (make before break): this gateway keeps the vIP until the new owner
    /// answers for it. If the new owner is not reachable from here, the vIP is released after `handover_us`,
    /// provided that another reachable gateway reaches the new owner. A report of the controller alone is
    /// sufficient only for a draining gateway, because it does not travel on the packet path: the underlay may be split, with hosts on
    /// both sides. If the machine of the new owner also answers a probe, only messages get lost, and hosts reach both: then others release the
    /// vIP as well. A vIP is never released to a dead owner.
    fn hand_over(&mut self, now_us: u64, vip: VipId) {
        let Some(owner) = self.table.get(vip).map(|claim| claim.owner) else { return };
        let since_us = *self.vips[vip.index()].handover_since_us.get_or_insert(now_us);
        let waited = now_us - since_us >= self.params.handover_us;
        let peer = self.peer_index(owner).map(|at| &self.peers[at]);
        let taken = match peer {
            Some(peer) if peer.is_reachable(now_us, &self.params) => peer.holds.contains(vip),
            Some(peer) => waited && self.is_confirmed_alive(peer, since_us, now_us),
            None => false,
        };
        if waited && !taken {
            self.probe_gateway(now_us, owner);
        }
        if taken || (waited && self.config.member(self.own).is_none()) {
            self.withdraw(vip);
        }
    }

    /// Probes a gateway from which no messages arrive, once in each hello interval.
    fn probe_gateway(&mut self, now_us: u64, gateway: GatewayId) {
        let (hello_us, within_us) = (self.params.hello_us, self.params.witness_delay_max_us());
        let Some(at) = self.peer_index(gateway) else { return };
        let peer = &mut self.peers[at];
        if peer.is_reachable(now_us, &self.params) || peer.probed_us.is_some_and(|at| now_us < at + hello_us)
        {
            return;
        }
        peer.probed_us = Some(now_us);
        self.outputs.push(Output::ProbeGateway { gateway, within_us });
    }

    /// Returns whether a reachable gateway reaches this peer. It is also sufficient that the controller reached it after `since_us`, if it has answered a
    /// probe since then, or if this gateway is draining. A report says what the controller knew some time before, so it must be that much younger.
    fn is_confirmed_alive(&self, peer: &Peer, since_us: u64, now_us: u64) -> bool {
        let reported_later_us = since_us + self.params.controller_limit_us();
        let draining = self.config.member(self.own).is_some_and(|member| member.draining);
        let answered = peer.answered_us.is_some_and(|at_us| at_us > since_us);
        (peer.reported_us.is_some_and(|at_us| at_us > reported_later_us) && (answered || draining))
            || self.peers.iter().any(|it| it.reaches(peer.id) && it.is_reachable(now_us, &self.params))
    }

    /// Takes over orphaned vIPs, whose owner is dead, isolated, or has worse tables than this gateway. The first candidate takes a vIP at once,
    /// the second one step later if the first has not, and so on: candidates may disagree about which
    /// gateways are alive.
    fn take_orphaned_vips(&mut self, now_us: u64) {
        let mut orphaned = VipSet::EMPTY;
        for vip in self.config.vips.iter() {
            let owner = self.table.get(vip).map(|claim| claim.owner);
            let is_orphaned = owner.is_some_and(|owner| {
                let replaced = !self.is_usable(owner, now_us) || self.has_better_tables_than(owner, now_us);
                owner != self.own && replaced
            });
            let state = &mut self.vips[vip.index()];
            state.takeover_us = None;
            // The gateway that claimed the vIP was alive when it did.
            let grace_us = self.params.silence_after_us(state.contests);
            let settled_us = state.learned_us.map_or(0, |at| at + grace_us);
            if is_orphaned && now_us < settled_us {
                state.takeover_us = Some(settled_us);
            } else if is_orphaned {
                state.orphaned_us.get_or_insert(now_us);
                orphaned.insert(vip);
                continue;
            }
            state.orphaned_us = None;
        }
        if orphaned.is_empty() {
            return;
        }
        let mut candidates = self.candidates(now_us);
        let own = self.tables.report();
        let others_have = !own.copies && candidates.iter().any(|candidate| candidate.tables.is_heir());
        let lacking_us =
            if others_have || self.tables.knows_no_ports() { self.params.lacking_copies_us } else { 0 };
        for vip in orphaned.iter() {
            let rank = order::rank(vip, self.own, &candidates);
            order::pick_first(vip, &mut candidates);
            let (Some(rank), Some(since_us)) = (rank, self.vips[vip.index()].orphaned_us) else { continue };
            let due_us = since_us + rank as u64 * self.params.candidate_step_us + lacking_us;
            if now_us >= due_us {
                self.take_over(now_us, vip);
            } else {
                self.vips[vip.index()].takeover_us = Some(due_us);
            }
        }
    }

    /// Returns the gateways that can take vIPs, including this one. Draining gateways are candidates only if no other
    /// gateway has tables and copies as good as theirs: an available vIP and its sessions matter more than a drain.
    fn candidates(&self, now_us: u64) -> Vec<Candidate> {
        let load = |id| self.table.owned_by(id, self.config.vips).len();
        let others =
            self.peers.iter().filter(|peer| self.is_usable(peer.id, now_us) && peer.health == Health::Ready);
        let draining = self.config.member(self.own).is_some_and(|member| member.draining);
        let own = Candidate { id: self.own, tables: self.tables.report(), load: load(self.own) };
        let all: Vec<(bool, Candidate)> = others
            .map(|peer| {
                let tables = peer.tables.unwrap_or_default();
                (peer.draining, Candidate { id: peer.id, tables, load: load(peer.id) })
            })
            .chain([(draining, own)])
            .collect();
        let fitness = |(_, candidate): &(bool, Candidate)| candidate.tables.fitness();
        let best = all.iter().map(fitness).max();
        let only_draining = all.iter().filter(|it| Some(fitness(it)) == best).all(|(draining, _)| *draining);
        all.into_iter()
            .filter(|(draining, _)| only_draining || !draining)
            .map(|(_, candidate)| candidate)
            .collect()
    }

    fn take_over(&mut self, now_us: u64, vip: VipId) {
        let Some(from) = self.table.get(vip).map(|claim| claim.owner) else { return };
        let Some(claim) = self.table.assign(vip, self.own) else { return };
        self.new_claims.push((vip, claim));
        let state = &mut self.vips[vip.index()];
        (state.orphaned_us, state.takeover_us, state.handover_since_us) = (None, None, None);
        self.hold(now_us, vip, AnnounceReason::TakenOver { from });
    }

    fn hold(&mut self, now_us: u64, vip: VipId, reason: AnnounceReason) {
        self.holds.insert(vip);
        self.announce(now_us, vip, reason);
    }

    fn announce(&mut self, now_us: u64, vip: VipId, reason: AnnounceReason) {
        self.outputs.push(Output::Announce { vip, reason });
        let state = &mut self.vips[vip.index()];
        state.repeats_left = self.params.repeats;
        state.announce_us = Some(now_us + self.params.announce_interval_us(state.repeats_left));
    }

    fn withdraw(&mut self, vip: VipId) {
        self.holds.remove(vip);
        let state = &mut self.vips[vip.index()];
        (state.handover_since_us, state.announce_us) = (None, None);
        self.outputs.push(Output::Withdraw { vip });
    }

    /// Announces vIPs of this gateway that another gateway has stopped answering for: switches that received
    /// the other gateway's announcement last must learn that the vIP is here.
    pub(super) fn announce_released(&mut self, now_us: u64) {
        let released = std::mem::replace(&mut self.released, VipSet::EMPTY);
        for vip in released.and(self.holds).iter() {
            let mine = self.table.get(vip).is_some_and(|claim| claim.owner == self.own);
            if mine && self.may_act() {
                self.announce(now_us, vip, AnnounceReason::RivalStopped);
            }
        }
    }

    /// Schedules an announcement of all vIPs, at once or when enough time has passed since the last one: a
    /// flapping link must not cause a storm of announcements.
    pub(super) fn schedule_reannouncement(&mut self, now_us: u64) {
        let pause_us = self.params.repetitions_us();
        self.reannounce_us = Some(self.reannounced_us.map_or(now_us, |at| now_us.max(at + pause_us)));
    }

    fn reannounce_if_due(&mut self, now_us: u64) {
        if self.reannounce_us.is_none_or(|at| now_us < at) || !self.may_act() {
            return;
        }
        self.reannounce_us = None;
        self.reannounced_us = Some(now_us);
        let own = self.table.owned_by(self.own, self.config.vips);
        for vip in own.and(self.holds).iter() {
            self.announce(now_us, vip, AnnounceReason::Rejoined);
        }
    }

    /// Announces what this gateway owns again and again while a live gateway is cut off: that one may have owned it before, answers for it until it
    /// hears of the new owner from a gateway, and each of its answers to a broadcast leads switches to it.
    fn announce_contested(&mut self, now_us: u64) {
        if !self.is_contested(now_us) {
            self.contested_us = None;
            return;
        }
        let since_us = *self.contested_us.get_or_insert(now_us);
        if now_us < since_us + self.params.contested_us || !self.may_act() {
            return;
        }
        self.contested_us = Some(now_us);
        for vip in self.table.owned_by(self.own, self.config.vips).and(self.holds).iter() {
            self.outputs.push(Output::Announce { vip, reason: AnnounceReason::Contested });
        }
    }

    /// Sends due repetitions and refreshes for the vIPs that this gateway owns, while it may act.
    pub(super) fn announce_due(&mut self, now_us: u64) {
        self.reannounce_if_due(now_us);
        self.announce_contested(now_us);
        for vip in self.holds.iter() {
            let mine = self.table.get(vip).is_some_and(|claim| claim.owner == self.own);
            let may_act = self.may_act();
            let state = &mut self.vips[vip.index()];
            if state.announce_us.is_none_or(|at| now_us < at) {
                continue;
            }
            if !mine || !may_act {
                state.announce_us = Some(now_us + self.params.repeat_us);
                continue;
            }
            let left = state.repeats_left;
            state.repeats_left = left.saturating_sub(1);
            state.announce_us = Some(now_us + self.params.announce_interval_us(state.repeats_left));
            let reason = match left {
                0 => AnnounceReason::Refresh,
                n if n > self.params.repeats => AnnounceReason::Resumed,
                _ => AnnounceReason::Repeat,
            };
            self.outputs.push(Output::Announce { vip, reason });
        }
    }

    fn report_if_drained(&mut self) {
        let draining = self.config.member(self.own).is_some_and(|member| member.draining);
        let free = self.holds.is_empty() && self.table.owned_by(self.own, self.config.vips).is_empty();
        if !(draining && free) {
            self.drained_reported = false;
        } else if !self.drained_reported && self.health == Health::Ready {
            self.drained_reported = true;
            self.outputs.push(Output::Incident(Incident::Drained));
        }
    }
}
