//! The controller's side: it watches by heartbeats as Zeta does (section
//! VIII-C.2), confirms what gateways took by themselves by merging it, takes over
//! for those that cannot, and moves vIPs where they belong, gently.

mod assign;

#[cfg(test)]
mod tests;

use crate::gateway::claims_in_parts;
use crate::message::{Body, Config, Load, Message, Node, Pulse, Report, Standing};
use crate::params::{Paced, Params};
use crate::source::{Arrival, Source};
use crate::table::{Claim, Table};
use crate::vip::{VipId, VipSet};
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;

/// What a cluster shall look like: intent, from the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// vIPs and members.
    pub config: Config,
    /// Where each vIP belongs while that gateway is well: from [`mend`](crate::mend) or a scheduler.
    pub homes: BTreeMap<VipId, GatewayId>,
}

/// What happens to the controller of a cluster.
#[derive(Clone, Debug)]
pub enum ControllerInput {
    /// The time asked for has come; also the first input of all.
    Timer,
    /// A message came, authenticated.
    Received(Message),
    /// Intent changed: vIPs, members, draining, homes. Membership and draining need a new revision, homes
    /// may change within one.
    Plan(Plan),
}

/// What the controller wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerOutput {
    /// Send it to a gateway; may get lost.
    Send {
        /// To whom.
        to: GatewayId,
        /// What.
        message: Message,
    },
    /// Call with [`ControllerInput::Timer`] at that time; replaces the time set before.
    SetTimer {
        /// By this node's clock.
        at_us: u64,
    },
    /// A vIP has another owner: for the event log and for what the API shows.
    Moved {
        /// Which.
        vip: VipId,
        /// Its owner before.
        from: Option<GatewayId>,
        /// The claim that counts.
        claim: Claim,
        /// True if the controller decided it, false if it confirms what gateways did.
        decided: bool,
    },
    /// Neither the controller nor a gateway hears this gateway.
    Failed(GatewayId),
    /// It is heard again.
    Returned(GatewayId),
    /// A gateway that was to be drained owns and answers for nothing any more: it may be stopped.
    Drained(GatewayId),
    /// What a gateway says that it has to do.
    Load(GatewayId, Load),
}

/// What is known of a gateway.
#[derive(Clone, Debug, Default)]
struct Known {
    source: Source,
    report: Option<Report>,
    probed_us: Option<u64>,
    failed: bool,
    /// Since when it has been fit and reached by the other gateways, and not unfit for more than a moment.
    fit_since_us: Option<u64>,
    /// Since when it has failed, been cut off or not been reached by the others.
    unfit_since_us: Option<u64>,
    /// Failures lately, and the last.
    strikes: u32,
    struck_us: u64,
    synced_us: Option<u64>,
    told_drained: bool,
}

impl Known {
    /// Of a gateway that says nothing for a moment, or listens after one in which it was not run, what was
    /// known still holds.
    fn note_fitness(&mut self, now_us: u64, lost: bool, brief_us: u64) {
        let standing = self.report.as_ref().map(|report| report.standing);
        if lost || standing == Some(Standing::CutOff) {
            let since_us = *self.unfit_since_us.get_or_insert(now_us);
            if now_us - since_us >= brief_us {
                self.fit_since_us = None;
            }
        } else if standing == Some(Standing::Fit) {
            self.unfit_since_us = None;
            self.fit_since_us.get_or_insert(now_us);
        }
    }
}

/// The controller of one cluster.
#[derive(Clone, Debug)]
pub struct Controller {
    cluster: ClusterId,
    params: Paced,
    incarnation: u64,
    seq: u64,
    plan: Plan,
    table: Table,
    gateways: BTreeMap<GatewayId, Known>,
    listen_until_us: u64,
    since_us: u64,
    next_return_us: u64,
    last_us: u64,
    timer_us: Option<u64>,
    decided: Vec<(VipId, Claim)>,
    outputs: Vec<ControllerOutput>,
}

impl Controller {
    /// A controller that has just started, or just become the leader. `table` is what it saved, or empty:
    /// the gateways know better, and it listens to them first. Hand it [`ControllerInput::Timer`] to begin.
    #[must_use]
    pub fn new(
        cluster: ClusterId,
        params: Params,
        incarnation: u64,
        saved: (Plan, Table),
        now_us: u64,
    ) -> Self {
        let (plan, table) = saved;
        let mut controller = Self {
            cluster,
            incarnation,
            seq: 0,
            plan: Plan::default(),
            table,
            gateways: BTreeMap::new(),
            listen_until_us: now_us,
            since_us: now_us,
            next_return_us: now_us,
            last_us: now_us,
            timer_us: None,
            decided: Vec::new(),
            outputs: Vec::new(),
            params: Paced::new(params),
        };
        controller.replan(plan);
        controller.listen_until_us = now_us + controller.params.controller_listen_us;
        controller
    }

    /// Takes an input in at `now_us` of this node's clock.
    pub fn handle(&mut self, now_us: u64, input: ControllerInput) -> Vec<ControllerOutput> {
        let now_us = now_us.max(self.last_us);
        if now_us - self.last_us > self.params.controller_silence_us {
            self.listen(now_us);
        }
        if now_us - self.last_us > self.params.preempt_delay_us {
            // Whoever seems as before may have died and come back meanwhile.
            self.gateways.values_mut().for_each(|known| known.fit_since_us = None);
        }
        self.last_us = now_us;
        self.params.advance(now_us);
        match input {
            ControllerInput::Timer => self.timer_us = None,
            ControllerInput::Received(message) => self.receive(now_us, message),
            ControllerInput::Plan(plan) => self.replan(plan),
        }
        self.watch(now_us);
        if now_us >= self.listen_until_us {
            self.assign(now_us);
        }
        self.say_who_is_drained();
        self.send_decided();
        self.set_timer(now_us);
        std::mem::take(&mut self.outputs)
    }

    /// Who owns what, as far as the controller knows.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// What the cluster shall look like.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What a gateway last said of itself.
    #[must_use]
    pub fn report(&self, id: GatewayId) -> Option<&Report> {
        self.gateways.get(&id)?.report.as_ref()
    }

    /// Whether a gateway's heartbeats come.
    #[must_use]
    pub fn hears(&self, id: GatewayId, now_us: u64) -> bool {
        self.is_heard(id, now_us)
    }

    /// Whether it was found dead: neither the controller nor a gateway hears it.
    #[must_use]
    pub fn has_failed(&self, id: GatewayId) -> bool {
        self.gateways.get(&id).is_some_and(|known| known.failed)
    }

    /// Whether a gateway that was to be drained owns and answers for nothing any more, as
    /// [`ControllerOutput::Drained`] said. A report without vIPs is not enough: it may be from before the
    /// gateway heard that it owns some.
    #[must_use]
    pub fn is_drained(&self, id: GatewayId) -> bool {
        let known = self.gateways.get(&id);
        known.is_some_and(|known| {
            known.told_drained && known.report.as_ref().is_some_and(|report| report.holds == VipSet::EMPTY)
        })
    }

    /// It was not running: what it knows of the gateways is old.
    fn listen(&mut self, now_us: u64) {
        self.listen_until_us = now_us + self.params.controller_listen_us;
        self.since_us = now_us;
        for known in self.gateways.values_mut() {
            known.source.heard_us = None;
            known.report = None;
            known.probed_us = None;
        }
    }

    fn replan(&mut self, mut plan: Plan) {
        plan.config.sort();
        let newer = plan.config.revision > self.plan.config.revision;
        if newer {
            let members = &plan.config.members;
            self.gateways.retain(|id, _| members.iter().any(|member| member.id == *id));
            for member in members {
                self.gateways.entry(member.id).or_default().told_drained = false;
            }
            if self.plan.config.revision == 0 {
                self.params.begin(plan.config.hello_ms);
            } else if plan.config.hello_ms != self.plan.config.hello_ms {
                self.params.change(self.last_us, plan.config.hello_ms);
            }
            self.plan = plan;
            for id in self.ids() {
                self.send(id, Body::Config(self.plan.config.clone()));
            }
        } else if plan.config.revision == self.plan.config.revision {
            self.plan.homes = plan.homes;
        }
    }

    fn ids(&self) -> Vec<GatewayId> {
        self.gateways.keys().copied().collect()
    }

    fn send(&mut self, to: GatewayId, body: Body) {
        self.seq += 1;
        let (cluster, incarnation, seq) = (self.cluster, self.incarnation, self.seq);
        let message = Message { cluster, from: Node::Controller, incarnation, seq, body };
        self.outputs.push(ControllerOutput::Send { to, message });
    }

    fn receive(&mut self, now_us: u64, message: Message) {
        let Node::Gateway(from) = message.from else { return };
        let limit_us = self.params.controller_limit_us();
        let Some(known) = self.gateways.get_mut(&from).filter(|_| message.cluster == self.cluster) else {
            return;
        };
        let arrival = known.source.note(now_us, message.incarnation, message.seq, limit_us);
        if arrival != Arrival::Stale {
            known.probed_us = None;
        }
        if arrival == Arrival::Reborn {
            known.fit_since_us = None;
        }
        match message.body {
            Body::Claims(claims) => self.confirm(now_us, claims),
            Body::Heartbeat(report) if arrival != Arrival::Stale => {
                let (config, digest) = (report.config, report.digest);
                known.report = Some(report);
                let due = known.synced_us.is_none_or(|at| now_us - at >= self.params.hello_us);
                self.answer(now_us, from, message.seq);
                if due && (config < self.plan.config.revision || digest != self.table.digest()) {
                    self.bring_up_to_date(now_us, from, config, digest);
                }
            }
            Body::Load(load) if arrival != Arrival::Stale => {
                self.outputs.push(ControllerOutput::Load(from, load));
            }
            _ => {}
        }
    }

    fn answer(&mut self, now_us: u64, to: GatewayId, echo: u64) {
        let limit_us = self.params.controller_limit_us();
        // Who says that nobody on the underlay answers it is no witness's word for its peers to rely on;
        // it is told of itself, for it asks.
        let counts = |(id, known): (&GatewayId, &Known)| {
            let report = known.report.as_ref();
            let cut_off = report.is_some_and(|report| report.standing == Standing::CutOff);
            (known.source.is_heard(now_us, limit_us) && (*id == to || !cut_off)).then_some(*id)
        };
        let pulse = Pulse {
            echo,
            config: self.plan.config.revision,
            digest: self.table.digest(),
            hears: self.gateways.iter().filter_map(counts).collect(),
        };
        self.send(to, Body::Pulse(pulse));
    }

    fn bring_up_to_date(&mut self, now_us: u64, to: GatewayId, config: u64, digest: u64) {
        if config < self.plan.config.revision {
            self.send(to, Body::Config(self.plan.config.clone()));
        }
        if digest != self.table.digest() {
            for body in claims_in_parts(self.table.iter()) {
                self.send(to, body);
            }
        }
        if let Some(known) = self.gateways.get_mut(&to) {
            known.synced_us = Some(now_us);
        }
    }

    /// What gateways claimed: it counts, and who lost by it has failed somehow.
    fn confirm(&mut self, now_us: u64, claims: Vec<(VipId, Claim)>) {
        for (vip, claim) in claims {
            let old = self.table.get(vip).map(|old| old.owner);
            if !self.table.merge(vip, claim) || old == Some(claim.owner) {
                continue;
            }
            self.outputs.push(ControllerOutput::Moved { vip, from: old, claim, decided: false });
            let draining =
                old.and_then(|id| self.plan.config.member(id)).is_none_or(|member| member.draining);
            // A controller that still listens learns what was long ago.
            if let Some(loser) = old
                && !draining
                && now_us >= self.listen_until_us
            {
                self.strike(now_us, loser);
            }
        }
    }

    /// A failure: one more strike if the last was forgotten, and the hold-down begins anew.
    fn strike(&mut self, now_us: u64, id: GatewayId) {
        let Some(known) = self.gateways.get_mut(&id) else { return };
        let hold_us = self.params.hold_down_after_us(known.strikes);
        let since_us = now_us - known.struck_us;
        if known.strikes == 0 || since_us > hold_us.saturating_mul(4) {
            known.strikes = 1;
        } else if since_us > self.params.hold_down_us + self.params.controller_limit_us() {
            // What comes within the shortest hold-down belongs to the same failure, which the controller itself
            // finds later than the gateways.
            known.strikes = known.strikes.saturating_add(1);
        }
        known.struck_us = now_us;
    }

    /// Heartbeats: silence, then a probe, then silence again.
    fn watch(&mut self, now_us: u64) {
        let mut probes = Vec::new();
        let mut silent = Vec::new();
        for (&id, known) in &mut self.gateways {
            let heard_us = known.source.heard_us.unwrap_or(self.since_us);
            if now_us - heard_us <= self.params.controller_silence_us {
                continue;
            }
            let probed_us = *known.probed_us.get_or_insert_with(|| {
                probes.push(id);
                now_us
            });
            if now_us - probed_us >= self.params.controller_probe_us {
                silent.push(id);
            }
        }
        for id in probes {
            self.send(id, Body::Probe);
        }
        let blind = self.is_blind(now_us);
        for id in self.ids() {
            // Its peers know better whether it forwards: they watch it where packets go.
            let by_others = self.is_heard_by_others(id, now_us);
            let reached = self.is_reached(id, now_us);
            let Some(known) = self.gateways.get_mut(&id) else { continue };
            // Who failed before this controller was not run is not back before it is heard.
            let silent = silent.contains(&id) || known.failed && known.source.heard_us.is_none();
            let failed = silent && !by_others;
            known.note_fitness(now_us, failed || !reached, self.params.brief_us);
            if failed == known.failed || failed && blind {
                continue;
            }
            known.failed = failed;
            if failed {
                self.outputs.push(ControllerOutput::Failed(id));
                self.strike(now_us, id);
            } else {
                self.outputs.push(ControllerOutput::Returned(id));
            }
        }
    }

    /// Whether it hears no gateway of several since a moment ago: it is more likely that the controller does
    /// not hear, than that all failed at once.
    fn is_blind(&self, now_us: u64) -> bool {
        let heard_us = self.gateways.values().filter_map(|known| known.source.heard_us).max();
        let patience_us = self.params.controller_limit_us() + self.params.hold_down_us;
        let lately = now_us - heard_us.unwrap_or(self.since_us) <= patience_us;
        self.gateways.len() > 1 && lately && !self.ids().iter().any(|id| self.is_heard(*id, now_us))
    }

    fn is_heard(&self, id: GatewayId, now_us: u64) -> bool {
        let limit_us = self.params.controller_limit_us();
        self.gateways.get(&id).is_some_and(|known| known.source.is_heard(now_us, limit_us))
    }

    /// Whether other gateways hear it, if there are any: the controller's network is not the packets'.
    fn is_reached(&self, id: GatewayId, now_us: u64) -> bool {
        let others = self.gateways.keys().any(|&other| other != id && self.is_heard(other, now_us));
        !others || self.is_heard_by_others(id, now_us)
    }

    fn is_heard_by_others(&self, id: GatewayId, now_us: u64) -> bool {
        self.gateways.iter().any(|(&other, known)| {
            other != id
                && self.is_heard(other, now_us)
                && known.report.as_ref().is_some_and(|report| report.hears.contains(&id))
        })
    }

    fn say_who_is_drained(&mut self) {
        for id in self.ids() {
            let draining = self.plan.config.member(id).is_some_and(|member| member.draining);
            let free = self.table.owned_by(id, self.plan.config.vips).is_empty();
            let Some(known) = self.gateways.get_mut(&id) else { continue };
            let agrees = known.report.as_ref().is_some_and(|report| {
                report.holds == VipSet::EMPTY
                    && report.digest == self.table.digest()
                    && report.config == self.plan.config.revision
                    && report.standing == Standing::Fit
            });
            if !(draining && free) {
                known.told_drained = false;
            } else if agrees && !known.told_drained {
                known.told_drained = true;
                self.outputs.push(ControllerOutput::Drained(id));
            }
        }
    }

    fn send_decided(&mut self) {
        let decided = std::mem::take(&mut self.decided);
        for body in claims_in_parts(decided.into_iter()) {
            for id in self.ids() {
                self.send(id, body.clone());
            }
        }
    }

    fn set_timer(&mut self, now_us: u64) {
        // Often enough to notice that it was not running.
        let mut next_us = now_us + self.params.controller_silence_us / 2;
        let mut at = |time_us: u64| {
            if time_us > now_us {
                next_us = next_us.min(time_us);
            }
        };
        at(self.listen_until_us);
        at(self.next_return_us);
        self.params.due_us().into_iter().for_each(&mut at);
        for known in self.gateways.values() {
            let heard_us = known.source.heard_us.unwrap_or(self.since_us);
            at(heard_us + self.params.controller_silence_us + 1);
            known.probed_us.into_iter().for_each(|probed_us| at(probed_us + self.params.controller_probe_us));
            known.fit_since_us.into_iter().for_each(|since_us| at(since_us + self.params.preempt_delay_us));
            if known.strikes > 0 {
                at(known.struck_us + self.params.hold_down_after_us(known.strikes));
            }
        }
        if self.timer_us.is_none_or(|at_us| at_us <= now_us || next_us < at_us) {
            self.timer_us = Some(next_us);
            self.outputs.push(ControllerOutput::SetTimer { at_us: next_us });
        }
    }
}
