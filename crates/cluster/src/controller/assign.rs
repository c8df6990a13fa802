//! Where vIPs go: at once when nobody has them or their owner is to be drained,
//! one by one when they only go home.

use super::{Controller, ControllerOutput, Known};
use crate::message::Standing;
use crate::order::{self, Candidate};
use crate::vip::VipId;
use sluice_types::GatewayId;

impl Controller {
    /// Whether a gateway can take vIPs: the controller hears it, it says that it is fit, and other gateways
    /// hear it too.
    fn is_eligible(&self, id: GatewayId, now_us: u64) -> bool {
        let fit = self
            .gateways
            .get(&id)
            .and_then(|known| known.report.as_ref())
            .is_some_and(|report| report.standing == Standing::Fit);
        let draining = self.plan.config.member(id).is_none_or(|member| member.draining);
        fit && !draining && self.is_heard(id, now_us) && self.is_reached(id, now_us)
    }

    /// Whether it has been well for long enough to have found its next hops.
    fn is_settled(&self, id: GatewayId, now_us: u64) -> bool {
        let since_us = self.gateways.get(&id).and_then(|known| known.fit_since_us);
        since_us.is_some_and(|since_us| now_us - since_us >= self.params.preempt_delay_us)
    }

    /// Gateways that can take vIPs: those that have settled, or where none has, as when a cluster starts, any.
    fn candidates(&self, now_us: u64) -> Vec<Candidate> {
        let mut ids: Vec<GatewayId> =
            self.ids().into_iter().filter(|id| self.is_eligible(*id, now_us)).collect();
        if ids.iter().any(|id| self.is_settled(*id, now_us)) {
            ids.retain(|id| self.is_settled(*id, now_us));
        }
        let load = |id| self.table.owned_by(id, self.plan.config.vips).len();
        ids.into_iter().map(|id| Candidate { id, load: load(id) }).collect()
    }

    /// Whether it failed so lately, or so often, that it is likely to again.
    fn is_held_down(&self, id: GatewayId, now_us: u64) -> bool {
        self.has_failed_within(id, now_us, |strikes| self.params.hold_down_after_us(strikes))
    }

    /// Whether it failed within the shortest hold-down, which nothing waives: it may not be back yet.
    fn has_just_failed(&self, id: GatewayId, now_us: u64) -> bool {
        self.has_failed_within(id, now_us, |_| self.params.hold_down_us)
    }

    /// Whether its last failure is not as long ago as `hold_us` says for so many of them.
    fn has_failed_within(&self, id: GatewayId, now_us: u64, hold_us: impl Fn(u32) -> u64) -> bool {
        let lately = |known: &Known| known.strikes > 0 && now_us - known.struck_us < hold_us(known.strikes);
        self.gateways.get(&id).is_some_and(lately)
    }

    /// Whether it may get back what is its own.
    fn is_trusted(&self, id: GatewayId, now_us: u64) -> bool {
        !self.is_held_down(id, now_us) && self.is_eligible(id, now_us)
    }

    /// Decides what there is to decide.
    pub(super) fn assign(&mut self, now_us: u64) {
        let mut candidates = self.candidates(now_us);
        if candidates.is_empty() {
            return;
        }
        let settled = candidates.iter().all(|candidate| self.is_settled(candidate.id, now_us));
        for vip in self.plan.config.vips.iter() {
            let owner = self.table.get(vip).map(|claim| claim.owner);
            let lost = owner.is_none_or(|owner| self.gateways.get(&owner).is_none_or(|known| known.failed));
            let draining = owner.and_then(|owner| self.plan.config.member(owner)).is_some_and(|m| m.draining);
            // Who is to be drained forwards meanwhile: it can wait for one that has settled.
            let leaves = lost || draining && settled;
            if !leaves {
                continue;
            }
            let home = self.plan.homes.get(&vip).copied().filter(|home| self.is_trusted(*home, now_us));
            let to = match candidates.iter_mut().find(|candidate| Some(candidate.id) == home) {
                Some(candidate) => {
                    candidate.load += 1;
                    Some(candidate.id)
                }
                None => order::take_first(vip, &mut candidates),
            };
            to.into_iter().for_each(|to| self.move_to(vip, to));
        }
        self.send_home(now_us);
    }

    /// At most one vIP in each interval, so that a gateway that only seems well again gets little.
    fn send_home(&mut self, now_us: u64) {
        if now_us < self.next_return_us {
            return;
        }
        let next = self.plan.config.vips.iter().find_map(|vip| {
            let home = *self.plan.homes.get(&vip)?;
            let owner = self.table.get(vip)?.owner;
            let well = self.is_settled(home, now_us) && self.is_eligible(home, now_us);
            // Whoever owns it meanwhile fails often, too: where all are silent for moments, as on machines short
            // of processors, an overloaded gateway would be relieved only after the longest hold-down.
            let waived = !self.has_just_failed(home, now_us) && self.is_held_down(owner, now_us);
            let ready = well && (waived || !self.is_held_down(home, now_us));
            (owner != home && ready).then_some((vip, home))
        });
        if let Some((vip, home)) = next {
            self.next_return_us = now_us + self.params.return_interval_us;
            self.move_to(vip, home);
        }
    }

    fn move_to(&mut self, vip: VipId, to: GatewayId) {
        let from = self.table.get(vip).map(|claim| claim.owner);
        let Some(claim) = self.table.assign(vip, to) else { return };
        self.decided.push((vip, claim));
        self.outputs.push(ControllerOutput::Moved { vip, from, claim, decided: true });
    }
}
