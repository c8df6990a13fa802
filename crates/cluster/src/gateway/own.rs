//! What this gateway takes, keeps, and gives way to.

use super::{Gateway, Incident, Output, Reason};
use crate::message::Standing;
use crate::order::{self, Candidate};
use crate::vip::{VipId, VipSet};
use sluice_types::GatewayId;

impl Gateway {
    /// Whether it may decide anything.
    fn may_act(&self) -> bool {
        self.standing == Standing::Fit && self.contact
    }

    /// Makes what it holds follow the table, and the table follow who is alive.
    pub(super) fn settle(&mut self, now_us: u64) {
        let member = self.config.member(self.own).is_some();
        // Who has no configuration yet does not know what is none of the cluster's any more.
        if self.config.revision > 0 {
            for vip in self.holds.without(self.config.vips).iter() {
                self.withdraw(vip);
            }
        }
        for vip in self.config.vips.iter() {
            let Some(claim) = self.table.get(vip) else { continue };
            if claim.owner != self.own {
                if self.holds.contains(vip) {
                    self.give_way(now_us, vip);
                }
                continue;
            }
            self.slots[vip.index()].yield_us = None;
            if !self.holds.contains(vip) && self.may_act() && member {
                self.hold(now_us, vip, Reason::Assigned);
            }
        }
        if self.may_act() && member {
            self.take_orphans(now_us);
        }
        self.say_if_drained();
    }

    /// Make before break: a vIP that another owns is kept until the other answers for it. If the other
    /// cannot be heard here, that is taken on trust after a while, provided that a gateway which can be heard
    /// hears it. The controller's word is not enough, for it does not come by the packets' way: the underlay
    /// may be split, with hosts on both sides. Only who is to be drained trusts it. To a dead owner nothing
    /// is given.
    fn give_way(&mut self, now_us: u64, vip: VipId) {
        let Some(owner) = self.table.get(vip).map(|claim| claim.owner) else { return };
        let since_us = *self.slots[vip.index()].yield_us.get_or_insert(now_us);
        let waited = now_us - since_us >= self.params.yield_us;
        let peer = self.peer_at(owner).map(|at| &self.peers[at]);
        let answered = match peer {
            Some(peer) if peer.is_heard(now_us, &self.params) => peer.holds.contains(vip),
            Some(peer) => waited && self.is_testified(owner, peer.vouched_us, since_us, now_us),
            None => false,
        };
        if answered || (waited && self.config.member(self.own).is_none()) {
            self.withdraw(vip);
        }
    }

    /// Whether a gateway that is heard says that it hears that one, or, for one that is to be drained, the
    /// controller heard it after `since_us`.
    fn is_testified(&self, id: GatewayId, vouched_us: Option<u64>, since_us: u64, now_us: u64) -> bool {
        let heard_later_us = since_us + self.params.controller_limit_us();
        let draining = self.config.member(self.own).is_some_and(|member| member.draining);
        (draining && vouched_us.is_some_and(|at| at > heard_later_us))
            || self.peers.iter().any(|peer| peer.says_it_hears(id) && peer.is_heard(now_us, &self.params))
    }

    /// vIPs without a usable owner are taken by the first of the candidates at once, by the second a step
    /// later if the first has not, and so on: candidates may differ in whom they believe alive.
    fn take_orphans(&mut self, now_us: u64) {
        let mut orphans = VipSet::EMPTY;
        for vip in self.config.vips.iter() {
            let owner = self.table.get(vip).map(|claim| claim.owner);
            let orphan = owner.is_some_and(|owner| owner != self.own && !self.is_usable(owner, now_us));
            let slot = &mut self.slots[vip.index()];
            slot.due_us = None;
            // Whoever claimed it lately was alive lately.
            let grace_us = self.params.silence_after_us(slot.contests);
            let settled_us = slot.learned_us.map_or(0, |at| at + grace_us);
            if orphan && now_us < settled_us {
                slot.due_us = Some(settled_us);
            } else if orphan {
                slot.orphan_us.get_or_insert(now_us);
                orphans.insert(vip);
                continue;
            }
            slot.orphan_us = None;
        }
        if orphans.is_empty() {
            return;
        }
        let mut candidates = self.candidates(now_us);
        for vip in orphans.iter() {
            let rank = order::rank(vip, self.own, &candidates);
            order::take_first(vip, &mut candidates);
            let (Some(rank), Some(since_us)) = (rank, self.slots[vip.index()].orphan_us) else { continue };
            let due_us = since_us + rank as u64 * self.params.step_us;
            if now_us >= due_us {
                self.take(now_us, vip);
            } else {
                self.slots[vip.index()].due_us = Some(due_us);
            }
        }
    }

    /// Gateways that can take vIPs, this one among them; those that shall be drained only if there is no
    /// other: service goes before order.
    fn candidates(&self, now_us: u64) -> Vec<Candidate> {
        let load = |id| self.table.owned_by(id, self.config.vips).len();
        let others = self
            .peers
            .iter()
            .filter(|peer| self.is_usable(peer.id, now_us) && peer.standing == Standing::Fit);
        let draining = self.config.member(self.own).is_some_and(|member| member.draining);
        let all: Vec<(bool, Candidate)> = others
            .map(|peer| (peer.draining, Candidate { id: peer.id, load: load(peer.id) }))
            .chain([(draining, Candidate { id: self.own, load: load(self.own) })])
            .collect();
        let only_draining = all.iter().all(|(draining, _)| *draining);
        all.into_iter()
            .filter(|(draining, _)| only_draining || !draining)
            .map(|(_, candidate)| candidate)
            .collect()
    }

    fn take(&mut self, now_us: u64, vip: VipId) {
        let Some(from) = self.table.get(vip).map(|claim| claim.owner) else { return };
        let Some(claim) = self.table.assign(vip, self.own) else { return };
        self.claimed.push((vip, claim));
        let slot = &mut self.slots[vip.index()];
        (slot.orphan_us, slot.due_us, slot.yield_us) = (None, None, None);
        self.hold(now_us, vip, Reason::TakenOver { from });
    }

    fn hold(&mut self, now_us: u64, vip: VipId, reason: Reason) {
        self.holds.insert(vip);
        self.announce(now_us, vip, reason);
    }

    fn announce(&mut self, now_us: u64, vip: VipId, reason: Reason) {
        self.outputs.push(Output::Announce { vip, reason });
        let slot = &mut self.slots[vip.index()];
        slot.repeats_left = self.params.repeats;
        slot.announce_us = Some(now_us + self.params.pause_us(slot.repeats_left));
    }

    fn withdraw(&mut self, vip: VipId) {
        self.holds.remove(vip);
        let slot = &mut self.slots[vip.index()];
        (slot.yield_us, slot.announce_us) = (None, None);
        self.outputs.push(Output::Withdraw { vip });
    }

    /// Another stopped to answer for these: switches that believed it last must learn better.
    pub(super) fn rival_gone(&mut self, now_us: u64, released: VipSet) {
        for vip in released.and(self.holds).iter() {
            let mine = self.table.get(vip).is_some_and(|claim| claim.owner == self.own);
            if mine && self.may_act() {
                self.announce(now_us, vip, Reason::RivalGone);
            }
        }
    }

    /// Wants everything announced, at once or when the last time is long enough ago: a flapping link must
    /// not make a storm.
    pub(super) fn rejoin_at(&mut self, now_us: u64) {
        let pause_us = self.params.repeated_us();
        self.rejoin_us = Some(self.rejoined_us.map_or(now_us, |at| now_us.max(at + pause_us)));
    }

    fn announce_rejoined(&mut self, now_us: u64) {
        if self.rejoin_us.is_none_or(|at| now_us < at) || !self.may_act() {
            return;
        }
        self.rejoin_us = None;
        self.rejoined_us = Some(now_us);
        let own = self.table.owned_by(self.own, self.config.vips);
        for vip in own.and(self.holds).iter() {
            self.announce(now_us, vip, Reason::Rejoined);
        }
    }

    /// Repetitions and refreshes, of what it owns while it is in contact.
    pub(super) fn announce_due(&mut self, now_us: u64) {
        self.announce_rejoined(now_us);
        for vip in self.holds.iter() {
            let mine = self.table.get(vip).is_some_and(|claim| claim.owner == self.own);
            let may_act = self.may_act();
            let slot = &mut self.slots[vip.index()];
            if slot.announce_us.is_none_or(|at| now_us < at) {
                continue;
            }
            if !mine || !may_act {
                slot.announce_us = Some(now_us + self.params.repeat_us);
                continue;
            }
            let left = slot.repeats_left;
            slot.repeats_left = left.saturating_sub(1);
            slot.announce_us = Some(now_us + self.params.pause_us(slot.repeats_left));
            let reason = match left {
                0 => Reason::Refresh,
                n if n > self.params.repeats => Reason::Resumed,
                _ => Reason::Repeat,
            };
            self.outputs.push(Output::Announce { vip, reason });
        }
    }

    fn say_if_drained(&mut self) {
        let draining = self.config.member(self.own).is_some_and(|member| member.draining);
        let free = self.holds.is_empty() && self.table.owned_by(self.own, self.config.vips).is_empty();
        if !(draining && free) {
            self.told_drained = false;
        } else if !self.told_drained && self.standing == Standing::Fit {
            self.told_drained = true;
            self.outputs.push(Output::Happened(Incident::Drained));
        }
    }
}
