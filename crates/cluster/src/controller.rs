//! The state machine of the controller for one cluster. It monitors gateways by heartbeats as Zeta does
//! (section VIII-C.2), confirms takeovers of gateways by merging their claims, reassigns vIPs that no gateway
//! has taken over, and returns vIPs to their preferred owners at a limited rate (`assign.rs`).
//!
//! State of one gateway:
//!
//! ```text
//!         no message for `controller_silence_us` / Probe
//!   ALIVE -----------------------------------------------> PROBED
//!    ^ ^                                                   |  |
//!    | +------------- any message -------------------------+  |
//!    |                                                        v
//!    |                                 no message for `controller_probe_us`, and
//!    |                                 no reachable gateway reaches it / Failed, failure counted
//!    |                                                        |
//!    +--------------------------------------------- FAILED <--+
//!      a message, or a reachable gateway reaches it
//!      / Returned
//! ```
//!
//! If the controller suddenly reaches none of several gateways, it is more likely itself disconnected, so no
//! gateway is declared failed until `controller_limit_us` + `hold_down_us` have passed.
//!
//! Failures are counted for the hold-down: `hold_down_us` after the first, doubled with each further one, up
//! to `hold_down_max_us`. The count is reset when four times the hold-down has passed.
//!
//! State of the controller itself:
//!
//! ```text
//!   STARTING (only listens) --- `controller_startup_us` is over ---> DECIDING
//!      ^                                                                |
//!      +--- own clock jumped by more than `controller_silence_us` ------+
//! ```

mod assign;

#[cfg(test)]
mod tests;

use crate::message::{Body, Config, Health, Load, Message, Node, Pulse, Report};
use crate::params::{ActiveParams, Params};
use crate::sender::{Arrival, SenderState};
use crate::table::{Claim, Table};
use crate::vip::{VipId, VipSet};
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;

/// Intended state of a cluster, from the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnershipPlan {
    /// vIPs and members.
    pub config: Config,
    /// Gateway that owns each vIP while it is ready: from
    /// [`assign_preferred_owners`](crate::assign_preferred_owners) or a scheduler.
    pub preferred_owners: BTreeMap<VipId, GatewayId>,
}

/// An event that the controller of a cluster reacts to.
#[derive(Clone, Debug)]
pub enum ControllerInput {
    /// The time requested by [`ControllerOutput::SetTimer`] has come. Also the first input after the start.
    Timer,
    /// An authenticated message arrived.
    Received(Message),
    /// The intended state changed: vIPs, members, draining, preferred owners. A change of vIPs, members or
    /// draining needs a new revision; preferred owners may change within a revision.
    Plan(OwnershipPlan),
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerOutput {
    /// Send a message to a gateway. It may get lost.
    Send {
        /// Receiver of the message.
        to: GatewayId,
        /// The message.
        message: Message,
    },
    /// Pass [`ControllerInput::Timer`] at this time. Replaces the time requested before.
    SetTimer {
        /// Time by this node's clock.
        at_us: u64,
    },
    /// A vIP has another owner. For the event log and the API.
    Moved {
        /// The vIP.
        vip: VipId,
        /// Previous owner.
        from: Option<GatewayId>,
        /// The new claim.
        claim: Claim,
        /// True if the controller decided the move, false if it confirms a takeover of gateways.
        decided: bool,
    },
    /// Neither the controller nor another gateway reaches this gateway.
    Failed(GatewayId),
    /// A failed gateway is reachable again.
    Returned(GatewayId),
    /// A gateway can be relied on as the only one of its hosts, or no longer. Every gateway can at first.
    Serves(GatewayId, bool),
    /// A draining gateway no longer owns or answers for any vIP. It may be stopped.
    Drained(GatewayId),
    /// Load that a gateway reports.
    Load(GatewayId, Load),
}

/// What the controller knows about a gateway.
#[derive(Clone, Debug, Default)]
struct GatewayRecord {
    sender: SenderState,
    /// Time at which it became a member. Silence before this time does not count.
    added_us: u64,
    report: Option<Report>,
    probed_us: Option<u64>,
    failed: bool,
    /// It cannot be relied on: see [`ControllerOutput::Serves`].
    away: bool,
    /// Time since which the gateway is ready and reached by the others, brief interruptions ignored.
    ready_since_us: Option<u64>,
    /// Time since which the gateway is failed, isolated or not reached by the others.
    unready_since_us: Option<u64>,
    /// Number of recent failures.
    failures: u32,
    /// Time of the last failure.
    failed_us: u64,
    synced_us: Option<u64>,
    drained_reported: bool,
}

impl GatewayRecord {
    /// Updates the times since which the gateway is ready or not. A gateway that is silent for a moment, or
    /// starting after a short pause, stays as it was.
    fn update_readiness(&mut self, now_us: u64, lost: bool, brief_failure_us: u64) {
        let health = self.report.as_ref().map(|report| report.health);
        if lost || health == Some(Health::Isolated) {
            let since_us = *self.unready_since_us.get_or_insert(now_us);
            if now_us - since_us >= brief_failure_us {
                self.ready_since_us = None;
            }
        } else if health == Some(Health::Ready) {
            self.unready_since_us = None;
            self.ready_since_us.get_or_insert(now_us);
        }
    }
}

/// The controller of one cluster.
#[derive(Clone, Debug)]
pub struct Controller {
    cluster: ClusterId,
    params: ActiveParams,
    incarnation: u64,
    seq: u64,
    plan: OwnershipPlan,
    table: Table,
    gateways: BTreeMap<GatewayId, GatewayRecord>,
    startup_until_us: u64,
    /// Silence of gateways counts from this time on.
    silence_since_us: u64,
    next_return_us: u64,
    last_us: u64,
    timer_us: Option<u64>,
    /// Claims of the controller that were not sent yet.
    new_claims: Vec<(VipId, Claim)>,
    outputs: Vec<ControllerOutput>,
}

impl Controller {
    /// Makes a controller that has just started or just become the leader. `saved` is the plan and the table
    /// that it saved; the table may be empty, because the controller learns it from the gateways first. Pass
    /// [`ControllerInput::Timer`] first.
    #[must_use]
    pub fn new(
        cluster: ClusterId,
        params: Params,
        incarnation: u64,
        saved: (OwnershipPlan, Table),
        now_us: u64,
    ) -> Self {
        let (plan, table) = saved;
        let mut controller = Self {
            cluster,
            incarnation,
            seq: 0,
            plan: OwnershipPlan::default(),
            table,
            gateways: BTreeMap::new(),
            startup_until_us: now_us,
            silence_since_us: now_us,
            next_return_us: now_us,
            last_us: now_us,
            timer_us: None,
            new_claims: Vec::new(),
            outputs: Vec::new(),
            params: ActiveParams::new(params),
        };
        controller.set_plan(plan);
        controller.startup_until_us = now_us + controller.params.controller_startup_us;
        controller
    }

    /// Handles an input at `now_us` of this node's clock.
    pub fn handle(&mut self, now_us: u64, input: ControllerInput) -> Vec<ControllerOutput> {
        let now_us = now_us.max(self.last_us);
        if now_us - self.last_us > self.params.controller_silence_us {
            self.enter_startup(now_us);
        }
        if now_us - self.last_us > self.params.preempt_delay_us {
            // A gateway that seems unchanged may have died and come back in the meantime.
            self.gateways.values_mut().for_each(|gateway| gateway.ready_since_us = None);
        }
        self.last_us = now_us;
        self.params.advance(now_us);
        match input {
            ControllerInput::Timer => self.timer_us = None,
            ControllerInput::Received(message) => self.receive(now_us, message),
            ControllerInput::Plan(plan) => self.set_plan(plan),
        }
        self.monitor_gateways(now_us);
        if now_us >= self.startup_until_us {
            self.assign(now_us);
            self.report_serving_gateways(now_us);
        }
        self.report_drained_gateways();
        self.send_new_claims();
        self.set_timer(now_us);
        std::mem::take(&mut self.outputs)
    }

    /// Returns the owners of all vIPs as the controller knows them.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the intended state of the cluster.
    #[must_use]
    pub fn plan(&self) -> &OwnershipPlan {
        &self.plan
    }

    /// Returns the last report of a gateway.
    #[must_use]
    pub fn report(&self, id: GatewayId) -> Option<&Report> {
        self.gateways.get(&id)?.report.as_ref()
    }

    /// Returns whether heartbeats of a gateway arrive.
    #[must_use]
    pub fn is_reachable(&self, id: GatewayId, now_us: u64) -> bool {
        let limit_us = self.params.controller_limit_us();
        self.gateways.get(&id).is_some_and(|gateway| gateway.sender.is_reachable(now_us, limit_us))
    }

    /// Returns whether a gateway has failed: neither the controller nor another gateway reaches it.
    #[must_use]
    pub fn has_failed(&self, id: GatewayId) -> bool {
        self.gateways.get(&id).is_some_and(|gateway| gateway.failed)
    }

    /// Returns whether a draining gateway no longer owns or answers for any vIP, as
    /// [`ControllerOutput::Drained`] reported. A report without vIPs is not sufficient: the gateway may have
    /// sent it before it learned that it owns some.
    #[must_use]
    pub fn is_drained(&self, id: GatewayId) -> bool {
        self.gateways.get(&id).is_some_and(|gateway| {
            gateway.drained_reported
                && gateway.report.as_ref().is_some_and(|report| report.holds == VipSet::EMPTY)
        })
    }

    /// Starts again after a pause: what the controller knows about the gateways is old.
    fn enter_startup(&mut self, now_us: u64) {
        self.startup_until_us = now_us + self.params.controller_startup_us;
        self.silence_since_us = now_us;
        for gateway in self.gateways.values_mut() {
            gateway.sender.received_us = None;
            gateway.report = None;
            gateway.probed_us = None;
        }
    }

    fn set_plan(&mut self, mut plan: OwnershipPlan) {
        plan.config.sort();
        let newer = plan.config.revision > self.plan.config.revision;
        if newer {
            let members = &plan.config.members;
            self.gateways.retain(|id, _| members.iter().any(|member| member.id == *id));
            for member in members {
                let added_us = self.last_us;
                let new = || GatewayRecord { added_us, ..GatewayRecord::default() };
                self.gateways.entry(member.id).or_insert_with(new).drained_reported = false;
            }
            if self.plan.config.revision == 0 {
                self.params.set(plan.config.hello_interval_ms);
            } else if plan.config.hello_interval_ms != self.plan.config.hello_interval_ms {
                self.params.change(self.last_us, plan.config.hello_interval_ms);
            }
            self.plan = plan;
            for id in self.ids() {
                self.send(id, Body::Config(self.plan.config.clone()));
            }
        } else if plan.config.revision == self.plan.config.revision {
            self.plan.preferred_owners = plan.preferred_owners;
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
        let Some(gateway) = self.gateways.get_mut(&from).filter(|_| message.cluster == self.cluster) else {
            return;
        };
        let arrival = gateway.sender.record(now_us, message.incarnation, message.seq, limit_us);
        if arrival != Arrival::Stale {
            gateway.probed_us = None;
        }
        if arrival == Arrival::Restarted {
            gateway.ready_since_us = None;
        }
        match message.body {
            Body::Claims(claims) => self.confirm_claims(now_us, claims),
            Body::Heartbeat(report) if arrival != Arrival::Stale => {
                let (config, digest) = (report.config, report.digest);
                gateway.report = Some(report);
                let due = gateway.synced_us.is_none_or(|at| now_us - at >= self.params.hello_us);
                self.send_pulse(now_us, from, message.seq);
                if due && (config < self.plan.config.revision || digest != self.table.digest()) {
                    self.send_missing(now_us, from, config, digest);
                }
            }
            Body::Load(load) if arrival != Arrival::Stale => {
                self.outputs.push(ControllerOutput::Load(from, load));
            }
            _ => {}
        }
    }

    fn send_pulse(&mut self, now_us: u64, to: GatewayId, echo: u64) {
        let limit_us = self.params.controller_limit_us();
        // No node on the underlay answers an isolated gateway, so its peers must not rely on the controller
        // reaching it. The gateway itself is included in the answer to its own heartbeat.
        let reachable = |(id, gateway): (&GatewayId, &GatewayRecord)| {
            let report = gateway.report.as_ref();
            let isolated = report.is_some_and(|report| report.health == Health::Isolated);
            (gateway.sender.is_reachable(now_us, limit_us) && (*id == to || !isolated)).then_some(*id)
        };
        let pulse = Pulse {
            echo,
            config: self.plan.config.revision,
            digest: self.table.digest(),
            reachable: self.gateways.iter().filter_map(reachable).collect(),
        };
        self.send(to, Body::Pulse(pulse));
    }

    fn send_missing(&mut self, now_us: u64, to: GatewayId, config: u64, digest: u64) {
        if config < self.plan.config.revision {
            self.send(to, Body::Config(self.plan.config.clone()));
        }
        if digest != self.table.digest() {
            for body in Body::claims_in_parts(self.table.iter()) {
                self.send(to, body);
            }
        }
        if let Some(gateway) = self.gateways.get_mut(&to) {
            gateway.synced_us = Some(now_us);
        }
    }

    /// Merges claims of gateways. A gateway that lost a vIP by them has failed in some way.
    fn confirm_claims(&mut self, now_us: u64, claims: Vec<(VipId, Claim)>) {
        for (vip, claim) in claims {
            let old = self.table.get(vip).map(|old| old.owner);
            if !self.table.merge(vip, claim) || old == Some(claim.owner) {
                continue;
            }
            self.outputs.push(ControllerOutput::Moved { vip, from: old, claim, decided: false });
            let draining =
                old.and_then(|id| self.plan.config.member(id)).is_none_or(|member| member.draining);
            // While the controller is starting, it learns about takeovers that happened long ago.
            if let Some(loser) = old
                && !draining
                && now_us >= self.startup_until_us
            {
                self.count_failure(now_us, loser);
            }
        }
    }

    /// Counts a failure of a gateway and restarts its hold-down. The count starts at 1 again if the previous
    /// failures are old enough to be forgotten.
    fn count_failure(&mut self, now_us: u64, id: GatewayId) {
        let Some(gateway) = self.gateways.get_mut(&id) else { return };
        let hold_us = self.params.hold_down_after_us(gateway.failures);
        let since_us = now_us - gateway.failed_us;
        if gateway.failures == 0 || since_us > hold_us.saturating_mul(4) {
            gateway.failures = 1;
        } else if since_us > self.params.hold_down_us + self.params.controller_limit_us() {
            // Failures within the shortest hold-down are the same one: the controller detects it later than
            // the gateways.
            gateway.failures = gateway.failures.saturating_add(1);
        }
        gateway.failed_us = now_us;
    }

    /// Probes gateways that are silent, and declares gateways failed or returned.
    fn monitor_gateways(&mut self, now_us: u64) {
        let mut probes = Vec::new();
        let mut silent = Vec::new();
        for (&id, gateway) in &mut self.gateways {
            let silent_since_us = self.silence_since_us.max(gateway.added_us);
            let received_us = gateway.sender.received_us.unwrap_or(silent_since_us);
            if now_us - received_us <= self.params.controller_silence_us {
                continue;
            }
            let probed_us = *gateway.probed_us.get_or_insert_with(|| {
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
        let disconnected = self.is_probably_disconnected(now_us);
        for id in self.ids() {
            // Peers know better whether the gateway forwards, because they monitor it on the packet path.
            let reached_by_others = self.is_reached_by_others(id, now_us);
            let reached = self.is_reached(id, now_us);
            let Some(gateway) = self.gateways.get_mut(&id) else { continue };
            // A gateway that failed before the controller was paused has not returned until a message of it
            // arrives.
            let silent = silent.contains(&id) || gateway.failed && gateway.sender.received_us.is_none();
            let failed = silent && !reached_by_others;
            gateway.update_readiness(now_us, failed || !reached, self.params.brief_failure_us);
            if failed == gateway.failed || failed && disconnected {
                continue;
            }
            gateway.failed = failed;
            if failed {
                self.outputs.push(ControllerOutput::Failed(id));
                self.count_failure(now_us, id);
            } else {
                self.outputs.push(ControllerOutput::Returned(id));
            }
        }
    }

    /// Returns whether the controller has recently lost contact with all of several gateways: it is more
    /// likely that the controller is disconnected than that all gateways failed at once.
    fn is_probably_disconnected(&self, now_us: u64) -> bool {
        let received_us = self.gateways.values().filter_map(|gateway| gateway.sender.received_us).max();
        let limit_us = self.params.controller_limit_us() + self.params.hold_down_us;
        let recently = now_us - received_us.unwrap_or(self.silence_since_us) <= limit_us;
        self.gateways.len() > 1 && recently && !self.ids().iter().any(|id| self.is_reachable(*id, now_us))
    }

    /// Returns whether other gateways reach a gateway, or there are no other gateways that could: the
    /// controller's messages do not use the packet path.
    fn is_reached(&self, id: GatewayId, now_us: u64) -> bool {
        let others = self.gateways.keys().any(|&other| other != id && self.is_reachable(other, now_us));
        !others || self.is_reached_by_others(id, now_us)
    }

    fn is_reached_by_others(&self, id: GatewayId, now_us: u64) -> bool {
        self.gateways.iter().any(|(&other, gateway)| {
            other != id
                && self.is_reachable(other, now_us)
                && gateway.report.as_ref().is_some_and(|report| report.reachable.contains(&id))
        })
    }

    fn report_drained_gateways(&mut self) {
        for id in self.ids() {
            let draining = self.plan.config.member(id).is_some_and(|member| member.draining);
            let free = self.table.owned_by(id, self.plan.config.vips).is_empty();
            let Some(gateway) = self.gateways.get_mut(&id) else { continue };
            let agrees = gateway.report.as_ref().is_some_and(|report| {
                report.holds == VipSet::EMPTY
                    && report.digest == self.table.digest()
                    && report.config == self.plan.config.revision
                    && report.health == Health::Ready
            });
            if !(draining && free) {
                gateway.drained_reported = false;
            } else if agrees && !gateway.drained_reported {
                gateway.drained_reported = true;
                self.outputs.push(ControllerOutput::Drained(id));
            }
        }
    }

    fn send_new_claims(&mut self) {
        let claims = std::mem::take(&mut self.new_claims);
        for body in Body::claims_in_parts(claims.into_iter()) {
            for id in self.ids() {
                self.send(id, body.clone());
            }
        }
    }

    fn set_timer(&mut self, now_us: u64) {
        // Often enough to detect that the controller was paused.
        let mut next_us = now_us + self.params.controller_silence_us / 2;
        let mut at = |time_us: u64| {
            if time_us > now_us {
                next_us = next_us.min(time_us);
            }
        };
        at(self.startup_until_us);
        at(self.next_return_us);
        self.params.due_us().into_iter().for_each(&mut at);
        for gateway in self.gateways.values() {
            let silent_since_us = self.silence_since_us.max(gateway.added_us);
            let received_us = gateway.sender.received_us.unwrap_or(silent_since_us);
            at(received_us + self.params.controller_silence_us + 1);
            gateway
                .probed_us
                .into_iter()
                .for_each(|probed_us| at(probed_us + self.params.controller_probe_us));
            gateway
                .ready_since_us
                .into_iter()
                .for_each(|since_us| at(since_us + self.params.preempt_delay_us));
            if gateway.failures > 0 {
                at(gateway.failed_us + self.params.hold_down_after_us(gateway.failures));
            }
        }
        if self.timer_us.is_none_or(|at_us| at_us <= now_us || next_us < at_us) {
            self.timer_us = Some(next_us);
            self.outputs.push(ControllerOutput::SetTimer { at_us: next_us });
        }
    }
}
