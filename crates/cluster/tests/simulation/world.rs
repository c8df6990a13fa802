//! Nodes, clocks, links and switches, and the events that move them.

use crate::plan::{Fault, Scenario};
use crate::rng::Rng;
use sluice_cluster::{
    Config, Controller, ControllerInput, ControllerOutput, Gateway, Incident, Input, Member, Message, Node,
    Output, Plan, Reason, Table, VipId, VipSet, mend,
};
use sluice_types::{ClusterId, GatewayId};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

const CLUSTER: ClusterId = ClusterId::new(7);
/// What a socket keeps for a process that does not run.
const INBOX_MAX: usize = 64;
/// How long after they are due timers fire, at most.
pub const TIMER_JITTER_US: u64 = 100;

pub fn id(gateway: usize) -> GatewayId {
    GatewayId::new(gateway as u64 + 1)
}

fn place(id: GatewayId) -> usize {
    id.get() as usize - 1
}

enum What {
    Message(usize, Message),
    Witness(usize, u64),
    Announced(usize, VipId, usize),
    Timer(usize, u64),
    Fault(Fault),
}

struct Event {
    at_us: u64,
    order: u64,
    what: What,
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
    /// The heap gives the greatest: the earliest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at_us, other.order).cmp(&(self.at_us, self.order))
    }
}

/// A node's clock: of its own start, of its own rate.
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
    /// `None` while the machine is dead.
    pub machine: Option<Gateway>,
    saved: (Config, Table),
    /// Since when the agent does not run, and whether its clock stands still too.
    pub paused: Option<(u64, bool)>,
    inbox: VecDeque<Input>,
    clock: Clock,
    timer: u64,
    late_us: u64,
    incarnation: u64,
    pub deaf: bool,
    pub mute: bool,
    pub drained: bool,
}

pub struct ControllerNode {
    pub machine: Option<Controller>,
    saved: (Plan, Table),
    clock: Clock,
    timer: u64,
    incarnation: u64,
    pub drained: Vec<GatewayId>,
    failed: Vec<GatewayId>,
    /// Moves of vIPs home from owners that were well in its eyes: by its clock.
    pub returns_us: Vec<u64>,
}

/// What the checks look at beside the nodes.
#[derive(Default)]
pub struct Seen {
    /// Announcements that are no refreshes: when, by whom.
    pub announced: Vec<(u64, usize, VipId, Reason)>,
    pub refreshed: u64,
    pub messages: u64,
    pub events: u64,
    pub bytes_max: usize,
    /// Rules broken on the spot.
    pub broken: Vec<String>,
    pub last_fault_us: u64,
    /// When the controller last moved a vIP.
    pub last_move_us: u64,
    /// Somebody who was believed dead came back alive: from then on suspicion takes longer.
    pub false_alarms: bool,
}

pub struct World {
    pub scenario: Scenario,
    pub now_us: u64,
    pub gateways: Vec<GatewayNode>,
    pub controller: ControllerNode,
    /// Whether what a node sends reaches another.
    pub up: Vec<Vec<bool>>,
    /// Which gateway each observer's switch knows for each vIP.
    pub switches: Vec<Vec<Option<usize>>>,
    pub seen: Seen,
    pub trace: Option<Vec<String>>,
    rng: Rng,
    queue: BinaryHeap<Event>,
    order: u64,
    weather: (u64, u64, u64),
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
            Table::from_claims(plan.homes.iter().map(claim))
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
                paused: None,
                inbox: VecDeque::new(),
                clock: clock(),
                timer: 0,
                late_us: 0,
                incarnation: 0,
                deaf: false,
                mute: false,
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
            weather: (0, 0, 0),
            scenario,
        };
        for gateway in 0..world.gateways.len() {
            world.start_gateway(gateway);
        }
        world.start_controller();
        for (at_us, fault) in world.scenario.faults.clone() {
            world.push(at_us, What::Fault(fault));
        }
        world
    }

    /// Handles what happens up to that time.
    pub fn run_until(&mut self, until_us: u64) {
        while self.queue.peek().is_some_and(|event| event.at_us <= until_us) {
            let Some(event) = self.queue.pop() else { break };
            self.now_us = event.at_us;
            self.seen.events += 1;
            match event.what {
                What::Fault(fault) => self.fault(fault),
                What::Announced(observer, vip, gateway) => {
                    self.switches[observer][vip.get() as usize] = Some(gateway);
                }
                What::Timer(node, timer) if node == self.scenario.controller() => {
                    if timer == self.controller.timer {
                        self.feed_controller(ControllerInput::Timer);
                    }
                }
                What::Timer(node, timer) => {
                    if timer == self.gateways[node].timer {
                        self.feed_gateway(node, Input::Timer);
                    }
                }
                What::Message(to, message) if to == self.scenario.controller() => {
                    self.feed_controller(ControllerInput::Received(message));
                }
                What::Message(to, message) => self.feed_gateway(to, Input::Received(message)),
                What::Witness(to, token) => self.feed_gateway(to, Input::Witness { token }),
            }
        }
        self.now_us = until_us;
    }

    fn push(&mut self, at_us: u64, what: What) {
        self.order += 1;
        self.queue.push(Event { at_us, order: self.order, what });
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>8} {}", self.now_us, what()));
        }
    }

    fn start_gateway(&mut self, at: usize) {
        let node = &mut self.gateways[at];
        node.incarnation += 1;
        let (now_us, params) = (node.clock.local(self.now_us), self.scenario.params.clone());
        let saved = node.saved.clone();
        node.machine = Some(Gateway::new(id(at), CLUSTER, params, node.incarnation, saved, now_us));
        self.feed_gateway(at, Input::Timer);
    }

    fn start_controller(&mut self) {
        let node = &mut self.controller;
        node.incarnation += 1;
        let (now_us, params) = (node.clock.local(self.now_us), self.scenario.params.clone());
        // Only intent is in the database.
        let saved = (node.saved.0.clone(), Table::default());
        node.machine = Some(Controller::new(CLUSTER, params, node.incarnation, saved, now_us));
        self.feed_controller(ControllerInput::Timer);
    }

    /// When what is sent now arrives; the second of two is a duplicate.
    fn arrivals(&mut self, from: usize, to: usize) -> [Option<u64>; 2] {
        let (loss, twice, delay_us) = self.weather;
        if !self.up[from][to] || self.rng.ppm(loss) {
            return [None, None];
        }
        let (base_us, jitter_us) = self.scenario.latency_us;
        let mut delay = || base_us + self.rng.range(0, jitter_us + 1);
        let (mut first, second) = (delay(), delay());
        if delay_us > 0 && self.rng.ppm(300_000) {
            first += self.rng.range(0, delay_us);
        }
        [Some(self.now_us + first), self.rng.ppm(twice).then_some(self.now_us + second)]
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        self.seen.messages += 1;
        // The codec has its own tests; here it is enough to try it now and then.
        if self.order & 0xff == 0 {
            let bytes = message.encode();
            self.seen.bytes_max = self.seen.bytes_max.max(bytes.len());
            assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message));
        }
        let [first, second] = self.arrivals(from, to);
        if let Some(at_us) = second {
            self.push(at_us, What::Message(to, message.clone()));
        }
        if let Some(at_us) = first {
            self.push(at_us, What::Message(to, message));
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
            self.obey(at, output);
        }
    }

    fn obey(&mut self, at: usize, output: Output) {
        match output {
            Output::Send { to, message } => {
                let to = match to {
                    Node::Controller => self.scenario.controller(),
                    Node::Gateway(id) => place(id),
                };
                self.send(at, to, message);
            }
            Output::SetTimer { at_us } => {
                let node = &mut self.gateways[at];
                node.timer += 1;
                let (timer, late_us) = (node.timer, TIMER_JITTER_US + node.late_us);
                let due_us = node.clock.world(at_us).max(self.now_us) + self.rng.range(0, late_us);
                self.push(due_us, What::Timer(at, timer));
            }
            Output::ProbeWitness { token, .. } => {
                for observer in self.scenario.observers() {
                    if let [Some(there_us), _] = self.arrivals(at, observer)
                        && self.up[observer][at]
                    {
                        let back_us = there_us + self.scenario.latency_us.0;
                        self.push(back_us, What::Witness(at, token));
                    }
                }
            }
            Output::Announce { vip, reason } => self.announced(at, vip, reason),
            Output::Withdraw { vip } => self.note(|| format!("gateway {at} withdraws {vip:?}")),
            Output::Happened(Incident::Drained) => self.gateways[at].drained = true,
            Output::Happened(incident) => self.note(|| format!("gateway {at}: {incident:?}")),
        }
    }

    fn announced(&mut self, at: usize, vip: VipId, reason: Reason) {
        self.note(|| format!("gateway {at} announces {vip:?}: {reason:?}"));
        if reason == Reason::Refresh {
            self.seen.refreshed += 1;
        } else {
            self.seen.announced.push((self.now_us, at, vip, reason));
        }
        let node = &self.gateways[at];
        let fit = node.machine.as_ref().is_some_and(|it| it.standing() == sluice_cluster::Standing::Fit);
        if !fit {
            self.seen.broken.push(format!("gateway {at} announces {vip:?} without having listened"));
        }
        for (observer, node) in self.scenario.observers().into_iter().enumerate() {
            if let [Some(at_us), _] = self.arrivals(at, node) {
                self.push(at_us, What::Announced(observer, vip, at));
            }
        }
    }

    fn feed_controller(&mut self, input: ControllerInput) {
        let node = &mut self.controller;
        let Some(machine) = &mut node.machine else { return };
        let local_us = node.clock.local(self.now_us);
        for output in machine.handle(local_us, input) {
            self.obey_controller(local_us, output);
        }
    }

    fn obey_controller(&mut self, local_us: u64, output: ControllerOutput) {
        let from = self.scenario.controller();
        match output {
            ControllerOutput::Send { to, message } => self.send(from, place(to), message),
            ControllerOutput::SetTimer { at_us } => {
                self.controller.timer += 1;
                let timer = self.controller.timer;
                let due_us = self.controller.clock.world(at_us).max(self.now_us);
                let late_us = self.rng.range(0, TIMER_JITTER_US);
                self.push(due_us + late_us, What::Timer(from, timer));
            }
            ControllerOutput::Moved { vip, from, claim, decided } => {
                self.note(|| format!("controller: {vip:?} {from:?} -> {claim:?}, decided {decided}"));
                if decided {
                    self.seen.last_move_us = self.now_us;
                }
                let well = from.is_some_and(|from| {
                    let plan = self.controller.machine.as_ref().map(Controller::plan);
                    let member = plan.and_then(|plan| plan.config.member(from));
                    let failed = self.controller.failed.contains(&from);
                    !failed && member.is_some_and(|member| !member.draining)
                });
                let home = self.controller.saved.0.homes.get(&vip) == Some(&claim.owner);
                if decided && well && home {
                    self.controller.returns_us.push(local_us);
                }
            }
            ControllerOutput::Load(..) => {}
            ControllerOutput::Drained(id) => {
                self.note(|| format!("controller: {id} is drained"));
                self.controller.drained.push(id);
            }
            ControllerOutput::Failed(id) => {
                self.note(|| format!("controller: {id} failed"));
                self.controller.failed.push(id);
            }
            ControllerOutput::Returned(id) => {
                self.note(|| format!("controller: {id} returned"));
                self.controller.failed.retain(|failed| *failed != id);
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.note(|| format!("{fault:?}"));
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
                self.link(|from, to| side(from) == side(to));
            }
            Fault::Deaf(at) => {
                self.gateways[at].deaf = true;
                self.link(|_, to| to != at);
            }
            Fault::Mute(at) => {
                self.gateways[at].mute = true;
                self.link(|from, _| from != at);
            }
            Fault::Underlay(at, deaf, mute) => {
                let controller = self.scenario.controller();
                self.link(|from, to| {
                    let other = if from == at { to } else { from };
                    let cut = from == at && mute || to == at && deaf;
                    other == controller || !cut
                });
            }
            Fault::Cut(one, two) => self.link(|from, to| (from, to) != (one, two)),
            Fault::Heal => {
                self.seen.false_alarms |= self.up.iter().flatten().any(|up| !up);
                self.up.iter_mut().flatten().for_each(|up| *up = true);
                self.gateways.iter_mut().for_each(|node| (node.deaf, node.mute) = (false, false));
            }
            Fault::Weather(loss, twice, delay_us) => self.weather = (loss, twice, delay_us),
            Fault::Slow(at, late_us) => self.gateways[at].late_us = late_us,
            Fault::ControllerCrash => {
                self.controller.machine = None;
                self.controller.failed.clear();
                // The next one begins its own pace.
                self.controller.returns_us.clear();
            }
            Fault::ControllerRestart if self.controller.machine.is_none() => self.start_controller(),
            Fault::ControllerRestart => {}
            Fault::Drain(at) => self.replan(|config| {
                config.members.iter_mut().filter(|it| it.id == id(at)).for_each(|it| it.draining = true);
            }),
            Fault::Member(at, there) => self.replan(|config| {
                config.members.retain(|member| member.id != id(at));
                if there {
                    config.members.push(Member { id: id(at), draining: false });
                    config.members.sort_by_key(|member| member.id);
                }
            }),
            Fault::Hello(hello_ms) => self.replan(|config| config.hello_ms = hello_ms),
            Fault::Vip(place, there) => self.replan(|config| {
                let vips = config.vips.iter().filter(|vip| vip.get() != place);
                let added = VipId::new(place).ok().filter(|_| there);
                config.vips = vips.chain(added).collect();
            }),
        }
    }

    /// The database has a new intent: members, vIPs, and homes to fit them.
    fn replan(&mut self, change: impl FnOnce(&mut Config)) {
        let plan = &mut self.controller.saved.0;
        plan.config.revision += 1;
        change(&mut plan.config);
        let old = plan.homes.clone();
        // Draining changes no homes: who is put back gets its own.
        let ids: Vec<GatewayId> = plan.config.members.iter().map(|member| member.id).collect();
        plan.homes =
            mend(plan.config.vips.iter(), &ids, &ids, |vip| old.get(&vip).copied()).into_iter().collect();
        let plan = plan.clone();
        self.seen.last_move_us = self.now_us;
        self.feed_controller(ControllerInput::Plan(plan));
    }

    /// Takes links away.
    fn link(&mut self, stays: impl Fn(usize, usize) -> bool) {
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
        // A disk may be new where the controller can fill it again.
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
        // Its timer, if not what came meanwhile.
        self.feed_gateway(at, Input::Timer);
        for input in inputs {
            self.feed_gateway(at, input);
        }
    }

    /// vIPs that a gateway answers for; none when dead.
    pub fn holds(&self, at: usize) -> VipSet {
        self.gateways[at].machine.as_ref().map_or(VipSet::EMPTY, Gateway::holds)
    }

    /// vIPs that the cluster shall have now.
    pub fn vips(&self) -> impl Iterator<Item = VipId> + use<> {
        self.controller.saved.0.config.vips.iter()
    }

    /// Whether the cluster shall have that gateway now.
    pub fn is_member(&self, at: usize) -> bool {
        self.controller.saved.0.config.member(id(at)).is_some()
    }
}

fn first_plan(scenario: &Scenario) -> Plan {
    let vips = VipSet::first(scenario.vips);
    let ids: Vec<GatewayId> = (0..scenario.gateways).map(id).collect();
    let members = ids.iter().map(|&id| Member { id, draining: false }).collect();
    let homes: BTreeMap<VipId, GatewayId> = mend(vips.iter(), &ids, &[], |_| None).into_iter().collect();
    Plan { config: Config { revision: 1, vips, members, hello_ms: 0 }, homes }
}
