//! The simulated world: nodes, clocks, links, switches, and the queue of events.

use crate::check::TAKEOVER_US;
use crate::rng::Rng;
use crate::scenario::{Class, Fault, LinkQuality, Scenario};
use sluice_cluster::{
    AnnounceReason, Config, Controller, ControllerInput, ControllerOutput, Gateway, Health, Incident, Input,
    Member, Message, Node, Output, OwnershipPlan, Table, VipId, VipSet, assign_preferred_owners,
};
use sluice_types::{ClusterId, GatewayId};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

const CLUSTER: ClusterId = ClusterId::new(7);
/// Number of messages that a socket keeps for an agent that is not scheduled.
const INBOX_MAX: usize = 64;
/// Within this time after a change, or after the start of a gateway, all nodes know of it.
const KNOWN_US: u64 = 30_000;
/// Largest delay of a timer.
pub const TIMER_JITTER_US: u64 = 100;

pub fn id(gateway: usize) -> GatewayId {
    GatewayId::new(gateway as u64 + 1)
}

fn index(id: GatewayId) -> usize {
    id.get() as usize - 1
}

enum EventKind {
    Message(usize, Message),
    Witness(usize, u64),
    GatewayAnswered(usize, GatewayId),
    Announced(usize, VipId, usize),
    Timer(usize, u64),
    Fault(Fault),
}

struct Event {
    at_us: u64,
    order: u64,
    kind: EventKind,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    /// The heap returns the greatest event, which must be the earliest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at_us, other.order).cmp(&(self.at_us, self.order))
    }
}

/// Clock of a node, with its own start and its own rate.
#[derive(Clone, Debug)]
struct Clock {
    start_us: u64,
    rate_ppm: u64,
    stopped_us: u64,
}

impl Clock {
    fn local(&self, at_us: u64) -> u64 {
        self.start_us + (at_us - self.stopped_us) * self.rate_ppm / 1_000_000
    }

    fn world(&self, local_us: u64) -> u64 {
        let since_us = local_us.saturating_sub(self.start_us);
        (since_us * 1_000_000).div_ceil(self.rate_ppm) + self.stopped_us
    }
}

pub struct GatewayNode {
    /// State machine; `None` while the machine is dead.
    pub machine: Option<Gateway>,
    saved: (Config, Table),
    /// Revision of its forwarding tables, which outlive the agent.
    tables: u64,
    /// Whether it has copies of all sessions.
    copies: bool,
    /// Time since which that is so and it runs.
    unchanged_us: u64,
    /// Time since which the agent is not scheduled, and whether its clock stands still as well.
    pub paused: Option<(u64, bool)>,
    inbox: VecDeque<Input>,
    clock: Clock,
    timer: u64,
    late_us: u64,
    incarnation: u64,
    pub no_receive: bool,
    pub no_send: bool,
    pub drained: bool,
}

pub struct ControllerNode {
    pub machine: Option<Controller>,
    saved: (OwnershipPlan, Table),
    clock: Clock,
    timer: u64,
    incarnation: u64,
    pub drained: Vec<GatewayId>,
    failed: Vec<GatewayId>,
    /// Times by its clock at which it returned a vIP from an owner that was neither failed nor draining.
    pub returns_us: Vec<u64>,
}

/// What happened so far, for the checks.
#[derive(Default)]
pub struct Seen {
    /// Announcements except refreshes: time, gateway, vIP, reason.
    pub announced: Vec<(u64, usize, VipId, AnnounceReason)>,
    pub refreshed: u64,
    pub messages: u64,
    pub events: u64,
    pub bytes_max: usize,
    /// Invariants that were broken by a single output.
    pub broken: Vec<String>,
    pub last_fault_us: u64,
    /// Time at which the controller last moved a vIP.
    pub last_move_us: u64,
    /// A gateway that was believed dead may have come back alive: from then on detection takes longer.
    pub false_alarms: bool,
}

pub struct World {
    pub scenario: Scenario,
    pub now_us: u64,
    pub gateways: Vec<GatewayNode>,
    pub controller: ControllerNode,
    /// Whether packets of one node reach another: `up[from][to]`.
    pub up: Vec<Vec<bool>>,
    /// Gateway that each observer's switch knows for each vIP.
    pub switches: Vec<Vec<Option<usize>>>,
    pub seen: Seen,
    pub trace: Option<Vec<String>>,
    rng: Rng,
    queue: BinaryHeap<Event>,
    order: u64,
    links: LinkQuality,
}

impl World {
    pub fn new(seed: u64, traced: bool) -> Self {
        let scenario = Scenario::of(seed);
        let mut rng = Rng::new(seed ^ 0xabcd_ef01);
        let nodes = scenario.gateways + 3;
        let plan = first_plan(&scenario);
        let table = if scenario.fresh {
            Table::default()
        } else {
            let claim = |(&vip, &owner)| (vip, sluice_cluster::Claim { epoch: 1, owner });
            Table::from_claims(plan.preferred_owners.iter().map(claim))
        };
        let config = if scenario.fresh { Config::default() } else { plan.config.clone() };
        let mut clock = || Clock {
            start_us: rng.range(1, 1 << 40),
            rate_ppm: 1_000_000 - scenario.drift_ppm + rng.range(0, 2 * scenario.drift_ppm + 1),
            stopped_us: 0,
        };
        let gateways = (0..scenario.gateways)
            .map(|_| GatewayNode {
                machine: None,
                saved: (config.clone(), table.clone()),
                tables: 1,
                copies: true,
                unchanged_us: 0,
                paused: None,
                inbox: VecDeque::new(),
                clock: clock(),
                timer: 0,
                late_us: 0,
                incarnation: 0,
                no_receive: false,
                no_send: false,
                drained: false,
            })
            .collect();
        let controller = ControllerNode {
            machine: None,
            saved: (plan, table),
            clock: clock(),
            timer: 0,
            incarnation: 0,
            drained: Vec::new(),
            failed: Vec::new(),
            returns_us: Vec::new(),
        };
        let mut world = Self {
            now_us: 0,
            gateways,
            controller,
            up: vec![vec![true; nodes]; nodes],
            switches: vec![vec![None; scenario.vips]; 2],
            seen: Seen::default(),
            trace: traced.then(Vec::new),
            rng,
            queue: BinaryHeap::new(),
            order: 0,
            links: LinkQuality::default(),
            scenario,
        };
        for gateway in 0..world.gateways.len() {
            world.start_gateway(gateway);
        }
        world.start_controller();
        for (at_us, fault) in world.scenario.faults.clone() {
            world.push(at_us, EventKind::Fault(fault));
        }
        world
    }

    /// Handles all events up to a time.
    pub fn run_until(&mut self, until_us: u64) {
        while self.queue.peek().is_some_and(|event| event.at_us <= until_us) {
            let Some(event) = self.queue.pop() else { break };
            self.now_us = event.at_us;
            self.seen.events += 1;
            match event.kind {
                EventKind::Fault(fault) => self.fault(fault),
                EventKind::Announced(observer, vip, gateway) => {
                    self.switches[observer][vip.get() as usize] = Some(gateway);
                }
                EventKind::Timer(node, timer) if node == self.scenario.controller() => {
                    if timer == self.controller.timer {
                        self.feed_controller(ControllerInput::Timer);
                    }
                }
                EventKind::Timer(node, timer) => {
                    if timer == self.gateways[node].timer {
                        self.feed_gateway(node, Input::Timer);
                    }
                }
                EventKind::Message(to, message) if to == self.scenario.controller() => {
                    self.feed_controller(ControllerInput::Received(message));
                }
                EventKind::Message(to, message) => self.feed_gateway(to, Input::Received(message)),
                EventKind::Witness(to, token) => self.feed_gateway(to, Input::Witness { token }),
                EventKind::GatewayAnswered(to, gateway) => {
                    self.feed_gateway(to, Input::GatewayAnswered { gateway });
                }
            }
        }
        self.now_us = until_us;
    }

    fn push(&mut self, at_us: u64, kind: EventKind) {
        self.order += 1;
        self.queue.push(Event { at_us, order: self.order, kind });
    }

    fn trace_event(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>8} {}", self.now_us, text()));
        }
    }

    fn start_gateway(&mut self, at: usize) {
        let node = &mut self.gateways[at];
        node.incarnation += 1;
        let (now_us, params) = (node.clock.local(self.now_us), self.scenario.params.clone());
        let saved = node.saved.clone();
        let machine = Gateway::new(id(at), CLUSTER, params, node.incarnation, saved, now_us);
        node.machine = Some(machine.with_tables(node.tables).with_translation(true));
        node.unchanged_us = self.now_us;
        let complete = node.copies;
        self.feed_gateway(at, Input::Timer);
        self.feed_gateway(at, Input::Copies { complete });
    }

    fn start_controller(&mut self) {
        let node = &mut self.controller;
        node.incarnation += 1;
        let (now_us, params) = (node.clock.local(self.now_us), self.scenario.params.clone());
        // The database contains only the plan.
        let saved = (node.saved.0.clone(), Table::default());
        node.machine = Some(Controller::new(CLUSTER, params, node.incarnation, saved, now_us));
        self.feed_controller(ControllerInput::Timer);
    }

    /// Returns the arrival times of a packet that is sent now and of its duplicate.
    fn arrivals(&mut self, from: usize, to: usize) -> [Option<u64>; 2] {
        let LinkQuality { loss_ppm, duplicate_ppm, delay_max_us } = self.links;
        if !self.up[from][to] || self.rng.ppm(loss_ppm) {
            return [None, None];
        }
        let (base_us, jitter_us) = self.scenario.latency_us;
        let mut delay = || base_us + self.rng.range(0, jitter_us + 1);
        let (mut first, second) = (delay(), delay());
        if delay_max_us > 0 && self.rng.ppm(300_000) {
            first += self.rng.range(0, delay_max_us);
        }
        [Some(self.now_us + first), self.rng.ppm(duplicate_ppm).then_some(self.now_us + second)]
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        self.seen.messages += 1;
        // The encoding has its own tests, so it is enough to test some messages here.
        if self.order & 0xff == 0 {
            let bytes = message.encode();
            self.seen.bytes_max = self.seen.bytes_max.max(bytes.len());
            assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message));
        }
        let [first, second] = self.arrivals(from, to);
        if let Some(at_us) = second {
            self.push(at_us, EventKind::Message(to, message.clone()));
        }
        if let Some(at_us) = first {
            self.push(at_us, EventKind::Message(to, message));
        }
    }

    fn feed_gateway(&mut self, at: usize, input: Input) {
        let node = &mut self.gateways[at];
        let Some(machine) = &mut node.machine else { return };
        if node.paused.is_some() {
            if node.inbox.len() < INBOX_MAX {
                node.inbox.push_back(input);
            }
            return;
        }
        let local_us = node.clock.local(self.now_us);
        let outputs = machine.handle(local_us, input);
        for output in outputs {
            self.apply(at, output);
        }
    }

    fn apply(&mut self, at: usize, output: Output) {
        match output {
            Output::Send { to, message } => {
                let to = match to {
                    Node::Controller => self.scenario.controller(),
                    Node::Gateway(id) => index(id),
                };
                self.send(at, to, message);
            }
            Output::SetTimer { at_us } => {
                let node = &mut self.gateways[at];
                node.timer += 1;
                let (timer, late_us) = (node.timer, TIMER_JITTER_US + node.late_us);
                let due_us = node.clock.world(at_us).max(self.now_us) + self.rng.range(0, late_us);
                self.push(due_us, EventKind::Timer(at, timer));
            }
            Output::ProbeWitness { token, .. } => {
                for observer in self.scenario.observers() {
                    if let [Some(there_us), _] = self.arrivals(at, observer)
                        && self.up[observer][at]
                    {
                        let back_us = there_us + self.scenario.latency_us.0;
                        self.push(back_us, EventKind::Witness(at, token));
                    }
                }
            }
            Output::ProbeGateway { gateway, .. } => {
                let to = index(gateway);
                if let [Some(there_us), _] = self.arrivals(at, to)
                    && self.up[to][at]
                    && self.gateways[to].machine.is_some()
                {
                    let back_us = there_us + self.scenario.latency_us.0;
                    self.push(back_us, EventKind::GatewayAnswered(at, gateway));
                }
            }
            Output::Announce { vip, reason } => self.announce(at, vip, reason),
            Output::Withdraw { vip } => self.trace_event(|| format!("gateway {at} withdraws {vip:?}")),
            Output::Incident(Incident::Drained) => self.gateways[at].drained = true,
            Output::Incident(incident) => self.trace_event(|| format!("gateway {at}: {incident:?}")),
        }
    }

    fn announce(&mut self, at: usize, vip: VipId, reason: AnnounceReason) {
        self.trace_event(|| format!("gateway {at} announces {vip:?}: {reason:?}"));
        if matches!(reason, AnnounceReason::Refresh | AnnounceReason::Contested) {
            self.seen.refreshed += 1;
        } else {
            self.seen.announced.push((self.now_us, at, vip, reason));
        }
        if matches!(reason, AnnounceReason::TakenOver { .. }) {
            self.check_copies(at, vip);
        }
        let node = &self.gateways[at];
        let ready = node.machine.as_ref().is_some_and(|it| it.health() == Health::Ready);
        if !ready {
            self.seen.broken.push(format!("gateway {at} announces {vip:?} while it is not ready"));
        }
        for (observer, node) in self.scenario.observers().into_iter().enumerate() {
            if let [Some(at_us), _] = self.arrivals(at, node) {
                self.push(at_us, EventKind::Announced(observer, vip, at));
            }
        }
    }

    /// Checks that a gateway which gets a vIP has copies of all sessions, or no other one has them. What has just changed is
    /// not known everywhere.
    fn check_copies(&mut self, at: usize, vip: VipId) {
        let is_settled = |node: &GatewayNode| node.unchanged_us + KNOWN_US < self.now_us;
        let is_heir = |node: &GatewayNode| {
            let health = node.machine.as_ref().map(Gateway::health);
            node.copies && is_settled(node) && health == Some(Health::Ready)
        };
        let node = &self.gateways[at];
        let has_heir = self.gateways.iter().any(is_heir);
        if self.scenario.class == Class::Copies && !node.copies && is_settled(node) && has_heir {
            self.seen.broken.push(format!("gateway {at} gets {vip:?} without copies that another one has"));
        }
    }

    fn feed_controller(&mut self, input: ControllerInput) {
        let node = &mut self.controller;
        let Some(machine) = &mut node.machine else { return };
        let local_us = node.clock.local(self.now_us);
        for output in machine.handle(local_us, input) {
            self.apply_controller(local_us, output);
        }
    }

    fn apply_controller(&mut self, local_us: u64, output: ControllerOutput) {
        let from = self.scenario.controller();
        match output {
            ControllerOutput::Send { to, message } => self.send(from, index(to), message),
            ControllerOutput::SetTimer { at_us } => {
                self.controller.timer += 1;
                let timer = self.controller.timer;
                let due_us = self.controller.clock.world(at_us).max(self.now_us);
                let late_us = self.rng.range(0, TIMER_JITTER_US);
                self.push(due_us + late_us, EventKind::Timer(from, timer));
            }
            ControllerOutput::Moved { vip, from, claim, decided } => {
                self.trace_event(|| format!("controller: {vip:?} {from:?} -> {claim:?}, decided {decided}"));
                if decided {
                    self.seen.last_move_us = self.now_us;
                    self.check_copies(index(claim.owner), vip);
                }
                let was_available = from.is_some_and(|from| {
                    let plan = self.controller.machine.as_ref().map(Controller::plan);
                    let member = plan.and_then(|plan| plan.config.member(from));
                    let failed = self.controller.failed.contains(&from);
                    !failed && member.is_some_and(|member| !member.draining)
                });
                let preferred = self.controller.saved.0.preferred_owners.get(&vip) == Some(&claim.owner);
                if decided && was_available && preferred {
                    self.controller.returns_us.push(local_us);
                }
            }
            ControllerOutput::Load(..) | ControllerOutput::Serves(..) => {}
            ControllerOutput::Drained(id) => {
                self.trace_event(|| format!("controller: {id} is drained"));
                self.controller.drained.push(id);
            }
            ControllerOutput::Failed(id) => {
                self.trace_event(|| format!("controller: {id} failed"));
                self.controller.failed.push(id);
            }
            ControllerOutput::Returned(id) => {
                self.trace_event(|| format!("controller: {id} returned"));
                self.controller.failed.retain(|failed| *failed != id);
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.trace_event(|| format!("{fault:?}"));
        self.seen.last_fault_us = self.now_us;
        match fault {
            Fault::Crash(at) => self.crash(at),
            Fault::Restart(at, saved) => self.restart(at, saved),
            Fault::Pause(at, frozen) => {
                self.gateways[at].paused.get_or_insert((self.now_us, frozen));
            }
            Fault::Resume(at) => self.resume(at),
            Fault::Split(sides) => {
                // Both sides have an observer.
                let [one, two] = self.scenario.observers();
                let side = |node| {
                    if node == one {
                        0
                    } else if node == two {
                        1
                    } else {
                        sides >> node & 1
                    }
                };
                self.remove_links(|from, to| side(from) == side(to));
            }
            Fault::NoReceive(at) => {
                self.gateways[at].no_receive = true;
                self.remove_links(|_, to| to != at);
            }
            Fault::NoSend(at) => {
                self.gateways[at].no_send = true;
                self.remove_links(|from, _| from != at);
            }
            Fault::Underlay { gateway: at, no_receive, no_send } => {
                let controller = self.scenario.controller();
                self.remove_links(|from, to| {
                    let other = if from == at { to } else { from };
                    let cut = from == at && no_send || to == at && no_receive;
                    other == controller || !cut
                });
            }
            Fault::Cut(one, two) => self.remove_links(|from, to| (from, to) != (one, two)),
            Fault::Heal => {
                self.seen.false_alarms |= self.up.iter().flatten().any(|up| !up);
                self.up.iter_mut().flatten().for_each(|up| *up = true);
                self.gateways.iter_mut().for_each(|node| (node.no_receive, node.no_send) = (false, false));
            }
            Fault::Links(quality) => self.links = quality,
            Fault::LateTimers(at, late_us) => self.gateways[at].late_us = late_us,
            Fault::ControllerCrash => {
                self.controller.machine = None;
                self.controller.failed.clear();
                // The next controller has its own return interval.
                self.controller.returns_us.clear();
            }
            Fault::ControllerRestart if self.controller.machine.is_none() => self.start_controller(),
            Fault::ControllerRestart => {}
            Fault::Drain(at) => self.change_plan(|config| {
                config.members.iter_mut().filter(|it| it.id == id(at)).for_each(|it| it.draining = true);
            }),
            Fault::Member(at, there) => self.change_plan(|config| {
                config.members.retain(|member| member.id != id(at));
                if there {
                    config.members.push(Member { id: id(at), draining: false });
                    config.members.sort_by_key(|member| member.id);
                }
            }),
            Fault::HelloInterval(interval_ms) => {
                self.change_plan(|config| config.hello_interval_ms = interval_ms);
            }
            Fault::Tables(at, revision) => self.set_tables(at, revision),
            Fault::Copies(at, complete) => self.set_copies(at, complete),
            Fault::Vip(slot, there) => self.change_plan(|config| {
                let vips = config.vips.iter().filter(|vip| vip.get() != slot);
                let added = VipId::new(slot).ok().filter(|_| there);
                config.vips = vips.chain(added).collect();
            }),
        }
    }

    fn set_tables(&mut self, at: usize, revision: u64) {
        self.gateways[at].tables = revision;
        self.feed_gateway(at, Input::Tables { revision });
    }

    fn set_copies(&mut self, at: usize, complete: bool) {
        let node = &mut self.gateways[at];
        if node.copies != complete {
            (node.copies, node.unchanged_us) = (complete, self.now_us);
        }
        self.feed_gateway(at, Input::Copies { complete });
    }

    /// Changes the plan in the database: members, vIPs, and preferred owners that fit them.
    fn change_plan(&mut self, change: impl FnOnce(&mut Config)) {
        let plan = &mut self.controller.saved.0;
        plan.config.revision += 1;
        change(&mut plan.config);
        let old = plan.preferred_owners.clone();
        // Draining does not change preferred owners: a gateway that is no longer draining gets its vIPs back.
        let ids: Vec<GatewayId> = plan.config.members.iter().map(|member| member.id).collect();
        let current = |vip| old.get(&vip).copied();
        plan.preferred_owners =
            assign_preferred_owners(plan.config.vips.iter(), &ids, &ids, current).into_iter().collect();
        let plan = plan.clone();
        self.seen.last_move_us = self.now_us;
        self.feed_controller(ControllerInput::Plan(plan));
    }

    /// Removes all links that do not stay.
    fn remove_links(&mut self, stays: impl Fn(usize, usize) -> bool) {
        for (from, row) in self.up.iter_mut().enumerate() {
            for (to, up) in row.iter_mut().enumerate() {
                *up &= stays(from, to);
            }
        }
    }

    fn restart(&mut self, at: usize, saved: bool) {
        if self.gateways[at].machine.is_some() {
            return;
        }
        // The state may be lost only while a controller can supply it again.
        if !saved && self.controller.machine.is_some() {
            self.gateways[at].saved = Default::default();
        }
        self.start_gateway(at);
    }

    fn crash(&mut self, at: usize) {
        let node = &mut self.gateways[at];
        if let Some(machine) = node.machine.take() {
            node.saved = (machine.config().clone(), machine.table().clone());
        }
        node.inbox.clear();
        node.paused = None;
        node.drained = false;
        node.timer += 1;
    }

    fn resume(&mut self, at: usize) {
        let node = &mut self.gateways[at];
        let Some((since_us, frozen)) = node.paused.take() else { return };
        self.seen.false_alarms = true;
        if frozen {
            node.clock.stopped_us += self.now_us - since_us;
        }
        let inputs: Vec<Input> = node.inbox.drain(..).collect();
        // The timer is due first, then the messages that have arrived.
        self.feed_gateway(at, Input::Timer);
        for input in inputs {
            self.feed_gateway(at, input);
        }
    }

    /// Returns the vIPs that a gateway answers for; the empty set if it is dead.
    pub fn holds(&self, at: usize) -> VipSet {
        self.gateways[at].machine.as_ref().map_or(VipSet::EMPTY, Gateway::holds)
    }

    /// Returns the gateways of these that have the best tables, as they report them.
    pub fn with_best_tables(&self, gateways: &[usize]) -> Vec<usize> {
        let readiness = |at: usize| self.gateways[at].machine.as_ref().map(|it| it.tables().readiness());
        let best = gateways.iter().filter_map(|at| readiness(*at)).max();
        gateways.iter().copied().filter(|at| readiness(*at) == best).collect()
    }

    /// Returns the gateways of these that vIPs may move to: those of the best ones with copies of all sessions, if there are any.
    pub fn heirs(&self, gateways: &[usize]) -> Vec<usize> {
        let mut heirs = self.with_best_tables(gateways);
        if heirs.iter().any(|at| self.gateways[*at].copies) {
            heirs.retain(|at| self.gateways[*at].copies);
        }
        heirs
    }

    /// Returns whether a gateway has copies of all sessions.
    pub fn has_copies(&self, at: usize) -> bool {
        self.gateways[at].copies
    }

    /// Returns whether a gateway that runs lacked copies of sessions a moment ago.
    pub fn lacked_copies(&self) -> bool {
        let since_us = self.now_us.saturating_sub(TAKEOVER_US);
        self.gateways
            .iter()
            .any(|node| node.machine.is_some() && (!node.copies || node.unchanged_us > since_us))
    }

    /// Iterates over the vIPs in the plan.
    pub fn vips(&self) -> impl Iterator<Item = VipId> + use<> {
        self.controller.saved.0.config.vips.iter()
    }

    /// Returns whether a gateway is in the plan.
    pub fn is_member(&self, at: usize) -> bool {
        self.controller.saved.0.config.member(id(at)).is_some()
    }
}

fn first_plan(scenario: &Scenario) -> OwnershipPlan {
    let vips = VipSet::first(scenario.vips);
    let ids: Vec<GatewayId> = (0..scenario.gateways).map(id).collect();
    let members = ids.iter().map(|&id| Member { id, draining: false }).collect();
    let preferred_owners: BTreeMap<VipId, GatewayId> =
        assign_preferred_owners(vips.iter(), &ids, &[], |_| None).into_iter().collect();
    let config = Config { revision: 1, vips, members, hello_interval_ms: 0 };
    OwnershipPlan { config, preferred_owners }
}
