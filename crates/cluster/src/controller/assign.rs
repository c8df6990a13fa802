//! Decides which gateway owns each vIP. A vIP is reassigned at once if its owner has failed or is draining. A
//! vIP that only returns to its preferred owner waits for its turn, because at most one vIP is returned in
//! each interval.

use super::{Controller, ControllerOutput, GatewayRecord};
use crate::message::Health;
use crate::order::{self, Candidate};
use crate::readiness::TableReport;
use crate::vip::VipId;
use sluice_types::GatewayId;

impl Controller {
    /// Returns whether a gateway can take vIPs: the controller reaches it, it reports itself ready, it is not
    /// draining, and other gateways reach it too.
    fn is_eligible(&self, id: GatewayId, now_us: u64) -> bool {
        let ready = self
            .gateways
            .get(&id)
            .and_then(|gateway| gateway.report.as_ref())
            .is_some_and(|report| report.health == Health::Ready);
        let draining = self.plan.config.member(id).is_none_or(|member| member.draining);
        ready && !draining && self.is_reachable(id, now_us) && self.is_reached(id, now_us)
    }

    /// Returns whether a gateway has been ready for the preempt delay, so that it has resolved its next hops.
    fn is_settled(&self, id: GatewayId, now_us: u64) -> bool {
        let since_us = self.gateways.get(&id).and_then(|gateway| gateway.ready_since_us);
        since_us.is_some_and(|since_us| now_us - since_us >= self.params.preempt_delay_us)
    }

    /// Returns what a gateway reports about its forwarding tables.
    fn tables(&self, id: GatewayId) -> TableReport {
        self.report(id).map(|report| report.tables).unwrap_or_default()
    }

    /// Returns the gateways that can take vIPs: of the eligible ones with the best tables, and among these with copies of sessions
    /// if one has them, those that are settled. If no gateway is settled, for example when the cluster starts, all of them.
    fn candidates(&self, now_us: u64) -> Vec<Candidate> {
        let mut ids: Vec<GatewayId> =
            self.ids().into_iter().filter(|id| self.is_eligible(*id, now_us)).collect();
        let best = ids.iter().map(|id| self.tables(*id).fitness()).max();
        ids.retain(|id| Some(self.tables(*id).fitness()) == best);
        if ids.iter().any(|id| self.is_settled(*id, now_us)) {
            ids.retain(|id| self.is_settled(*id, now_us));
        }
        let load = |id| self.table.owned_by(id, self.plan.config.vips).len();
        ids.into_iter().map(|id| Candidate { id, tables: self.tables(id), load: load(id) }).collect()
    }

    /// Returns whether no session ends if a gateway gets a vIP of `owner`, which has not failed, and has the sessions of its NAT gateways.
    fn keeps_sessions(&self, tables: TableReport, owner: GatewayId) -> bool {
        tables.copies || !self.tables(owner).translates
    }

    /// Returns whether a gateway is in its hold-down: it failed so recently or so often that it is likely to
    /// fail again.
    fn is_held_down(&self, id: GatewayId, now_us: u64) -> bool {
        self.has_failed_within(id, now_us, |failures| self.params.hold_down_after_us(failures))
    }

    /// Returns whether a gateway failed within the shortest hold-down. This hold-down is never waived,
    /// because the gateway may not be back yet.
    fn has_just_failed(&self, id: GatewayId, now_us: u64) -> bool {
        self.has_failed_within(id, now_us, |_| self.params.hold_down_us)
    }

    /// Returns whether the last failure of a gateway is more recent than the time that `hold_us` returns for its number of failures.
    fn has_failed_within(&self, id: GatewayId, now_us: u64, hold_us: impl Fn(u32) -> u64) -> bool {
        let recent = |gateway: &GatewayRecord| {
            gateway.failures > 0 && now_us - gateway.failed_us < hold_us(gateway.failures)
        };
        self.gateways.get(&id).is_some_and(recent)
    }

    /// Returns whether a gateway may get the vIPs that prefer it.
    fn is_trusted(&self, id: GatewayId, now_us: u64) -> bool {
        !self.is_held_down(id, now_us) && self.is_eligible(id, now_us)
    }

    /// Reassigns vIPs whose owner has failed or is draining, then returns at most one vIP to its preferred
    /// owner.
    pub(super) fn assign(&mut self, now_us: u64) {
        let mut candidates = self.candidates(now_us);
        if candidates.is_empty() {
            return;
        }
        let settled = candidates.iter().all(|candidate| self.is_settled(candidate.id, now_us));
        let tables = candidates[0].tables;
        for vip in self.plan.config.vips.iter() {
            let owner = self.table.get(vip).map(|claim| claim.owner);
            let lost =
                owner.is_none_or(|owner| self.gateways.get(&owner).is_none_or(|gateway| gateway.failed));
            let draining = owner.and_then(|owner| self.plan.config.member(owner)).is_some_and(|m| m.draining);
            // A draining gateway still forwards, so its vIPs can wait for a settled gateway whose tables are as good, and that has
            // its sessions.
            let as_good = owner.is_none_or(|owner| {
                tables.readiness() >= self.tables(owner).readiness() && self.keeps_sessions(tables, owner)
            });
            let reassign = lost || draining && settled && as_good;
            if !reassign {
                continue;
            }
            let preferred = self.plan.preferred_owners.get(&vip).copied();
            let preferred = preferred.filter(|preferred| self.is_trusted(*preferred, now_us));
            let to = match candidates.iter_mut().find(|candidate| Some(candidate.id) == preferred) {
                Some(candidate) => {
                    candidate.load += 1;
                    Some(candidate.id)
                }
                None => order::pick_first(vip, &mut candidates),
            };
            to.into_iter().for_each(|to| self.move_to(vip, to));
        }
        self.return_one_vip(now_us);
    }

    /// Returns one vIP to its preferred owner. There is a minimum interval between two of them, so that a
    /// gateway that only seems to have recovered gets few vIPs.
    fn return_one_vip(&mut self, now_us: u64) {
        if now_us < self.next_return_us {
            return;
        }
        let next = self.plan.config.vips.iter().find_map(|vip| {
            let preferred = *self.plan.preferred_owners.get(&vip)?;
            let owner = self.table.get(vip)?.owner;
            let as_good = self.tables(preferred).readiness() >= self.tables(owner).readiness();
            let keeps_sessions = self.keeps_sessions(self.tables(preferred), owner);
            let available = as_good
                && keeps_sessions
                && self.is_settled(preferred, now_us)
                && self.is_eligible(preferred, now_us);
            // The hold-down is waived if the present owner is held down as well. Otherwise, on machines with
            // too few processors, where all gateways are silent for moments, an overloaded gateway would be
            // relieved only after the longest hold-down.
            let waived = !self.has_just_failed(preferred, now_us) && self.is_held_down(owner, now_us);
            let trusted = available && (waived || !self.is_held_down(preferred, now_us));
            (owner != preferred && trusted).then_some((vip, preferred))
        });
        if let Some((vip, preferred)) = next {
            self.next_return_us = now_us + self.params.return_interval_us;
            self.move_to(vip, preferred);
        }
    }

    /// Reports gateways that have failed, or that have worse tables than another one that is reachable. They serve again
    /// when they are settled with tables as good as the best ones, or when no other gateway serves.
    pub(super) fn report_serving_gateways(&mut self, now_us: u64) {
        let reachable = self.ids().into_iter().filter(|id| self.is_reachable(*id, now_us));
        let best = reachable.map(|id| self.tables(id).readiness()).max();
        for id in self.ids() {
            let usable = !self.has_failed(id)
                && (self.report(id).is_none() || Some(self.tables(id).readiness()) >= best);
            let others_away = self.gateways.iter().all(|(other, it)| *other == id || it.away);
            let serves = usable && (others_away || self.is_settled(id, now_us));
            let Some(gateway) = self.gateways.get_mut(&id) else { continue };
            let changes = if gateway.away { serves } else { !usable };
            if changes {
                gateway.away = !gateway.away;
                self.outputs.push(ControllerOutput::Serves(id, !gateway.away));
            }
        }
    }

    fn move_to(&mut self, vip: VipId, to: GatewayId) {
        let from = self.table.get(vip).map(|claim| claim.owner);
        let Some(claim) = self.table.assign(vip, to) else { return };
        self.new_claims.push((vip, claim));
        self.outputs.push(ControllerOutput::Moved { vip, from, claim, decided: true });
    }
}
