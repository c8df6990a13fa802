//! Gateways with their tables, the network between them, VMs that begin sessions, and faults, on virtual time.

use crate::rng::Rng;
use crate::scenario::{Class, Scenario};
use crate::table::{Key, Table, key};
use sluice_nat_sync::{
    Input, MESSAGE_BYTES_MAX, Message, Output, Params, Record, Replicator, SessionTable, Source, State,
};
use sluice_types::{GatewayId, Vni};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Ticks of the tables.
const TICK_US: u64 = 125_000;
/// A gateway that is away for longer is left out by the first packets of sessions; also [`Params::lost_us`].
const LOST_US: u64 = 1_000_000;
/// The longest time from a change of owners until the others have what a former owner returned.
const DISPUTE_US: u64 = 15_000_000;
/// The protocol of all sessions.
const UDP: u8 = 17;

#[derive(Clone, Debug)]
enum Event {
    Timer {
        node: usize,
        boot: u64,
    },
    Deliver {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    /// The first packet of a session, on its way from gateway to gateway.
    First {
        record: Record,
        sent_us: u64,
        ring: Vec<usize>,
        at: usize,
    },
    Reachable {
        node: usize,
        nodes: Vec<usize>,
    },
    Owner {
        node: usize,
        unit: usize,
        owner: Option<usize>,
    },
    Work,
    Fault,
    Return {
        node: usize,
        wiped: bool,
    },
    Heal,
}

/// A gateway.
pub struct Node {
    pub up: bool,
    pub replicator: Replicator,
    pub table: Table,
    boot: u64,
    /// The timer that counts.
    timer_us: u64,
    /// By how many ticks its clock is ahead.
    ahead: u32,
    /// Owners as far as it knows.
    pub owners: Vec<Option<usize>>,
    /// Other gateways that do not answer it, since when.
    silent: BTreeMap<usize, u64>,
    pub copies: BTreeMap<Vni, bool>,
}

/// A session that its endpoints still use, as the world knows it.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub active_us: u64,
    /// Its first packet has passed all gateways, so its endpoints rely on it.
    pub established: bool,
}

impl Live {
    /// Whether it has expired, or is about to.
    pub fn is_over(&self, world: &World) -> bool {
        let timeout_us = u64::from(world.scenario.timeout_ticks) * TICK_US;
        world.now_us + 2_000_000 >= self.active_us + timeout_us
    }
}

pub struct World {
    pub scenario: Scenario,
    pub now_us: u64,
    pub nodes: Vec<Node>,
    pub live: BTreeMap<Key, Live>,
    pub trace: Option<Vec<String>>,
    pub broken: Option<String>,
    pub summary: Summary,
    rng: Rng,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: BTreeMap<u64, Event>,
    next_event: u64,
    /// The side of the network that each node is on.
    side: Vec<usize>,
    /// The true owner of each NAT gateway, on each side.
    claims: Vec<BTreeMap<usize, usize>>,
    /// When each NAT gateway last had an owner that has since returned it, and when that was done.
    disputed_us: Vec<u64>,
    faults_left: u32,
    begun: u32,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub events: u64,
    pub messages: u64,
    pub begun: u64,
    pub takeovers: u64,
    pub moves: u64,
    pub returned: u64,
    pub refused: u64,
}

pub fn id(node: usize) -> GatewayId {
    GatewayId::new(node as u64 + 1)
}

pub fn vni(unit: usize) -> Vni {
    Vni::new(unit as u32 + 1).expect("a small number is a VNI")
}

impl World {
    pub fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::draw(seed, &mut rng);
        let mut world = Self {
            now_us: 0,
            nodes: Vec::new(),
            live: BTreeMap::new(),
            trace: traced.then(Vec::new),
            broken: None,
            summary: Summary::default(),
            rng,
            events: BinaryHeap::new(),
            pending: BTreeMap::new(),
            next_event: 0,
            side: vec![0; scenario.nodes],
            claims: Vec::new(),
            disputed_us: vec![0; scenario.units],
            faults_left: scenario.faults,
            begun: 0,
            scenario,
        };
        for node in 0..world.scenario.nodes {
            let ahead = world.rng.next() as u32;
            world.nodes.push(Node {
                up: true,
                replicator: Replicator::new(id(node), 0, 0, world.params()),
                table: Table::new(world.scenario.timeout_ticks),
                boot: 0,
                timer_us: 0,
                ahead,
                owners: vec![None; world.scenario.units],
                silent: BTreeMap::new(),
                copies: BTreeMap::new(),
            });
        }
        for unit in 0..world.scenario.units {
            let owner = world.rng.index(world.scenario.nodes);
            world.claims.push(BTreeMap::from([(0, owner)]));
            world.nodes.iter_mut().for_each(|node| node.owners[unit] = Some(owner));
        }
        (0..world.scenario.nodes).for_each(|node| world.start(node));
        world.schedule(1_000, Event::Work);
        world.schedule(world.scenario.first_fault_us, Event::Fault);
        world
    }

    fn params(&self) -> Params {
        Params { sessions_per_s: self.scenario.sessions_per_s, lost_us: LOST_US, ..Params::default() }
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        let now_us = self.now_us;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>10} {}", now_us, line()));
        }
    }

    pub fn fail(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    fn schedule(&mut self, in_us: u64, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((self.now_us + in_us, self.next_event)));
        self.pending.insert(self.next_event, event);
    }

    /// Runs until a time, or until something is broken.
    pub fn run_until(&mut self, end_us: u64) {
        while let Some(&Reverse((at_us, number))) = self.events.peek() {
            if at_us > end_us || self.broken.is_some() {
                break;
            }
            self.events.pop();
            self.now_us = at_us;
            self.summary.events += 1;
            let event = self.pending.remove(&number).expect("an event happens once");
            self.happen(event);
        }
        self.now_us = self.now_us.max(end_us);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Timer { node, boot } => {
                let it = &self.nodes[node];
                if it.boot == boot && it.timer_us == self.now_us {
                    self.input(node, Input::Timer);
                }
            }
            Event::Deliver { from, to, bytes } => {
                if self.reaches(from, to) {
                    let message = Message::decode(&bytes).expect("a gateway sends valid messages");
                    self.input(to, Input::Received { from: id(from), message });
                }
            }
            Event::First { record, sent_us, ring, at } => self.first_packet(record, sent_us, ring, at),
            Event::Reachable { node, nodes } => self.set_reachable(node, &nodes),
            Event::Owner { node, unit, owner } => {
                if self.nodes[node].up {
                    self.say(|| format!("node {node}: owner of unit {unit} is {owner:?}"));
                    self.nodes[node].owners[unit] = owner;
                    self.tell_owners(node);
                }
            }
            Event::Work => self.work(),
            Event::Fault => self.fault(),
            Event::Return { node, wiped } => self.come_back(node, wiped),
            Event::Heal => {
                self.say(|| "the network is whole".into());
                self.side.iter_mut().for_each(|side| *side = 0);
                self.topology_changed();
            }
        }
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        self.nodes[from].up && self.nodes[to].up && self.side[from] == self.side[to]
    }

    /// Gives an input to a node and does what it answers.
    fn input(&mut self, node: usize, input: Input) {
        let it = &mut self.nodes[node];
        if !it.up {
            return;
        }
        it.table.now = ((self.now_us / TICK_US) as u32).wrapping_add(it.ahead);
        it.table.expire();
        it.table.refusals = if self.rng.ppm(self.scenario.later_ppm) { 3 } else { 0 };
        let before = it.replicator.counters().refused;
        let outputs = it.replicator.handle(self.now_us, input, &mut it.table);
        self.summary.refused += it.replicator.counters().refused - before;
        for output in outputs {
            match output {
                Output::Send { to, message } => self.send(node, to.get() as usize - 1, &message),
                Output::SetTimer { at_us } => {
                    assert!(at_us > self.now_us, "a timer is in the past");
                    let boot = self.nodes[node].boot;
                    self.nodes[node].timer_us = at_us;
                    self.schedule(at_us - self.now_us, Event::Timer { node, boot });
                }
                Output::Copy { vni, complete } => {
                    self.say(|| format!("node {node}: copy of {vni} complete: {complete}"));
                    self.nodes[node].copies.insert(vni, complete);
                }
                Output::Returned { vni, to } => {
                    self.say(|| format!("node {node}: returned {vni} to {to}"));
                    self.summary.returned += 1;
                    self.disputed_us[vni.get() as usize - 1] = self.now_us;
                }
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: &Message) {
        self.summary.messages += 1;
        let bytes = message.encode();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
        if self.rng.ppm(self.scenario.loss_ppm) {
            return;
        }
        let copies = 1 + usize::from(self.rng.ppm(self.scenario.duplicate_ppm));
        for _ in 0..copies {
            let late = self.rng.ppm(self.scenario.late_ppm);
            let delay_us = self.rng.range(50, if late { 200_000 } else { 500 });
            self.schedule(delay_us, Event::Deliver { from, to, bytes: bytes.clone() });
        }
    }

    /// Starts the agent of a node with what its table has.
    fn start(&mut self, node: usize) {
        let (boot, params, now_us) = (self.rng.next(), self.params(), self.now_us);
        let it = &mut self.nodes[node];
        it.boot = boot;
        it.replicator = Replicator::new(id(node), boot, now_us, params);
        it.copies.clear();
        let members = (0..self.scenario.nodes).map(id).collect();
        self.input(node, Input::Members(members));
        let silent = self.nodes[node].silent.clone();
        let reachable =
            (0..self.scenario.nodes).filter(|other| !silent.contains_key(other)).map(id).collect();
        // The network is split into sides: no gateway is reached by another one only.
        self.input(
            node,
            Input::Reachable { mutual: reachable, cut_off: Vec::new(), interruptions: Default::default() },
        );
        self.tell_owners(node);
    }

    fn tell_owners(&mut self, node: usize) {
        let owners = self.nodes[node].owners.iter().enumerate();
        let owners = owners.map(|(unit, owner)| (vni(unit), owner.map(id))).collect();
        self.input(node, Input::Owners(owners));
    }

    fn set_reachable(&mut self, node: usize, nodes: &[usize]) {
        let now_us = self.now_us;
        let silent = &mut self.nodes[node].silent;
        silent.retain(|other, _| !nodes.contains(other));
        for other in (0..self.scenario.nodes).filter(|other| !nodes.contains(other)) {
            silent.entry(other).or_insert(now_us);
        }
        let mutual = nodes.iter().copied().map(id).collect();
        self.input(node, Input::Reachable { mutual, cut_off: Vec::new(), interruptions: Default::default() });
    }

    /// A session of a VM begins, is used or ends, at a gateway that believes that it owns the vIP.
    fn work(&mut self) {
        if self.scenario.is_frozen_at(self.now_us) {
            return;
        }
        let next_us = self.rng.range(10_000, 80_000);
        self.schedule(next_us, Event::Work);
        let (node, unit) = (self.rng.index(self.scenario.nodes), self.rng.index(self.scenario.units));
        if !self.nodes[node].up || self.nodes[node].owners[unit] != Some(node) {
            return;
        }
        let it = &mut self.nodes[node];
        it.table.now = ((self.now_us / TICK_US) as u32).wrapping_add(it.ahead);
        it.table.expire();
        let choice = self.rng.range(0, 10);
        let known: Vec<Key> = it.table.sessions.keys().filter(|key| key.vni == vni(unit)).copied().collect();
        if choice < 5 || known.is_empty() {
            self.begin(node, unit);
            return;
        }
        let key = known[self.rng.index(known.len())];
        // Endpoints use sessions only if their first packet has arrived.
        if !self.live.get(&key).is_some_and(|live| live.established) {
            return;
        }
        if choice < 8 {
            let bits = [State::REPLIED, State::REPLIED | State::CONFIRMED, State::FIN][self.rng.index(3)];
            self.nodes[node].table.touch(&key, bits);
            if let Some(live) = self.live.get_mut(&key) {
                live.active_us = self.now_us;
            }
        } else if self.scenario.ends {
            self.nodes[node].table.remove(&key);
            self.live.remove(&key);
        }
    }

    fn begin(&mut self, node: usize, unit: usize) {
        self.begun += 1;
        let inside = SocketAddrV4::new(
            Ipv4Addr::new(10, 0, 0, 1 + self.rng.range(0, 4) as u8),
            5000 + self.rng.range(0, 8) as u16,
        );
        let remote = SocketAddrV4::new(
            Ipv4Addr::from(0xc633_6400 + self.begun / 60_000),
            (self.begun % 60_000) as u16,
        );
        // Inside endpoints that share ports meet at few remote endpoints.
        let remote = if crate::table::shares_ports(vni(unit)) {
            SocketAddrV4::new(*remote.ip(), 1 + remote.port() % 40)
        } else {
            remote
        };
        let key = Key { vni: vni(unit), protocol: UDP, inside: inside.into(), remote };
        if self.nodes[node].table.sessions.contains_key(&key) {
            return;
        }
        let members: Vec<_> = (0..self.scenario.nodes).map(id).collect();
        let ports = self.scenario.ports;
        let Some(record) = self.nodes[node].table.begin(key, id(node), &members, ports) else { return };
        self.summary.begun += 1;
        self.live.insert(key, Live { active_us: self.now_us, established: false });
        let silent = &self.nodes[node].silent;
        let is_lost =
            |other: &usize| silent.get(other).is_some_and(|since_us| self.now_us >= since_us + LOST_US);
        let mut ring: Vec<usize> = vec![node];
        ring.extend((0..self.scenario.nodes).filter(|other| *other != node && !is_lost(other)));
        self.first_packet(record, self.now_us, ring, 1);
    }

    /// The first packet of a session is about to be sent to the gateway `at` of the ring, or has passed all of them.
    fn first_packet(&mut self, record: Record, sent_us: u64, ring: Vec<usize>, at: usize) {
        let before = ring[at - 1];
        if !self.nodes[before].up {
            return;
        }
        if at > 1 {
            let it = &mut self.nodes[before];
            it.table.now = ((self.now_us / TICK_US) as u32).wrapping_add(it.ahead);
            let same =
                it.table.sessions.get(&key(&record)).is_some_and(|known| known.outside == record.outside);
            if same {
                it.table.touch(&key(&record), 0);
            } else if it.table.install(&record, Source::Other) != sluice_nat_sync::Installed::Done {
                return;
            }
        }
        let Some(&next) = ring.get(at) else {
            if let Some(live) = self.live.get_mut(&key(&record)) {
                live.established = true;
            }
            return;
        };
        if self.reaches(before, next) && !self.rng.ppm(self.scenario.loss_ppm) {
            let delay_us = self.rng.range(50, 500);
            self.schedule(delay_us, Event::First { record, sent_us, ring, at: at + 1 });
        }
    }

    fn fault(&mut self) {
        if self.faults_left == 0 {
            return;
        }
        self.faults_left -= 1;
        let next_us = self.rng.range(2_000_000, 25_000_000);
        self.schedule(next_us, Event::Fault);
        let node = self.rng.index(self.scenario.nodes);
        let kind = match self.scenario.class {
            Class::All => [Class::Crash, Class::Restart, Class::Split, Class::Move][self.rng.index(4)],
            class => class,
        };
        match kind {
            Class::Crash => {
                let others_up = self.nodes.iter().filter(|it| it.up).count() > 1;
                if self.nodes[node].up && others_up {
                    self.crash(node);
                }
            }
            Class::Restart if self.nodes[node].up => {
                self.say(|| format!("the agent of node {node} restarts"));
                self.start(node);
            }
            Class::Split | Class::Reuse => {
                self.side = (0..self.scenario.nodes).map(|_| self.rng.index(2)).collect();
                let sides = self.side.clone();
                self.say(|| format!("the network is split: {sides:?}"));
                self.topology_changed();
                // Also shorter than what counts as lost.
                let long = self.rng.ppm(700_000);
                let split_us = if long {
                    self.rng.range(1_000_000, 20_000_000)
                } else {
                    self.rng.range(20_000, 900_000)
                };
                self.schedule(split_us, Event::Heal);
            }
            Class::Move => {
                let unit = self.rng.index(self.scenario.units);
                let to = (node + 1 + self.rng.index(self.scenario.nodes - 1)) % self.scenario.nodes;
                let has_copies = self.nodes[to].copies.get(&vni(unit)) == Some(&true);
                if self.nodes[node].owners[unit] == Some(node) && self.reaches(node, to) && has_copies {
                    self.hand_over(node, vni(unit), to);
                }
            }
            _ => {}
        }
    }

    fn crash(&mut self, node: usize) {
        self.say(|| format!("node {node} dies"));
        self.nodes[node].up = false;
        for unit in 0..self.scenario.units {
            self.check_heirs(node, unit);
        }
        self.topology_changed();
        let away_us = self.rng.range(2_000_000, 10_000_000);
        let wiped = self.rng.ppm(700_000);
        self.schedule(away_us, Event::Return { node, wiped });
    }

    /// The owner of a NAT gateway dies: each gateway that says that its copy is complete has the sessions on which
    /// endpoints rely.
    fn check_heirs(&mut self, dead: usize, unit: usize) {
        // What a former owner returns is copied to the others by the next passes.
        if self.now_us < self.disputed_us[unit] + DISPUTE_US {
            return;
        }
        if self.claims[unit].get(&self.side[dead]) != Some(&dead)
            || self.nodes[dead].owners[unit] != Some(dead)
        {
            return;
        }
        for heir in 0..self.scenario.nodes {
            let settled = self.now_us.saturating_sub(LOST_US);
            let it = &self.nodes[heir];
            let in_contact = |a: usize, b: usize| !self.nodes[a].silent.contains_key(&b);
            if !it.up
                || it.copies.get(&vni(unit)) != Some(&true)
                || it.owners[unit] != Some(dead)
                || self.side[heir] != self.side[dead]
                || !in_contact(heir, dead)
                || !in_contact(dead, heir)
            {
                continue;
            }
            let lacking = self.nodes[dead].table.sessions.iter().find(|(key, session)| {
                let live = self.live.get(key);
                key.vni == vni(unit)
                    && live.is_some_and(|live| live.established && live.active_us <= settled)
                    && it.table.sessions.get(key).is_none_or(|copy| copy.outside != session.outside)
            });
            if let Some((key, session)) = lacking {
                let live = self.live.get(key);
                let what = format!(
                    "node {dead} died, and node {heir} says it has all of unit {unit}, but lacks {key:?}: {session:?}, {live:?}"
                );
                self.fail(what);
                return;
            }
        }
    }

    fn come_back(&mut self, node: usize, wiped: bool) {
        self.say(|| format!("node {node} is back, without its table: {wiped}"));
        let it = &mut self.nodes[node];
        it.up = true;
        if wiped {
            it.table = Table::new(self.scenario.timeout_ticks);
            it.owners.iter_mut().for_each(|owner| *owner = None);
        }
        self.start(node);
        self.topology_changed();
    }

    /// Decides who owns what on each side of the network, and lets the nodes learn it.
    fn topology_changed(&mut self) {
        let sides: BTreeSet<usize> = self.side.iter().copied().collect();
        for unit in 0..self.scenario.units {
            let mut claims = BTreeMap::new();
            for &side in &sides {
                let here: Vec<usize> =
                    (0..self.scenario.nodes).filter(|n| self.nodes[*n].up && self.side[*n] == side).collect();
                let claimed: Vec<usize> =
                    self.claims[unit].values().copied().filter(|owner| here.contains(owner)).collect();
                // Those that say that they have all sessions come first.
                let heirs: Vec<usize> = here
                    .iter()
                    .copied()
                    .filter(|node| self.nodes[*node].copies.get(&vni(unit)) == Some(&true))
                    .collect();
                let candidates = [claimed, heirs, here].into_iter().find(|nodes| !nodes.is_empty());
                let Some(candidates) = candidates else { continue };
                claims.insert(side, candidates[self.rng.index(candidates.len())]);
            }
            if claims.values().ne(self.claims[unit].values()) {
                self.summary.takeovers += 1;
                self.disputed_us[unit] = self.now_us;
            }
            self.claims[unit] = claims;
        }
        for node in (0..self.scenario.nodes).filter(|node| self.nodes[*node].up).collect::<Vec<_>>() {
            let nodes = (0..self.scenario.nodes).filter(|other| self.reaches(node, *other)).collect();
            let delay_us = self.rng.range(5_000, 50_000);
            self.schedule(delay_us, Event::Reachable { node, nodes });
            self.learn_owners(node, delay_us);
        }
    }

    fn learn_owners(&mut self, node: usize, after_us: u64) {
        for unit in 0..self.scenario.units {
            let owner = self.claims[unit].get(&self.side[node]).copied();
            let delay_us = after_us + self.rng.range(0, 50_000);
            self.schedule(delay_us, Event::Owner { node, unit, owner });
        }
    }

    fn hand_over(&mut self, node: usize, moved: Vni, to: usize) {
        let unit = moved.get() as usize - 1;
        let side = self.side[node];
        if self.claims[unit].get(&side) != Some(&node) || !self.reaches(node, to) {
            return;
        }
        self.summary.moves += 1;
        let settled = self.now_us.saturating_sub(LOST_US);
        let lacking = self.nodes[node].table.sessions.iter().find(|(key, session)| {
            let live = self.live.get(key);
            key.vni == moved
                && live.is_some_and(|live| live.established && live.active_us <= settled)
                && self.nodes[to].table.sessions.get(key).is_none_or(|copy| copy.outside != session.outside)
        });
        if let Some((key, _)) = lacking {
            let what = format!("unit {unit} moves from node {node} to {to}, which lacks {key:?}");
            self.fail(what);
        }
        self.claims[unit].insert(side, to);
        for node in (0..self.scenario.nodes).filter(|node| self.nodes[*node].up).collect::<Vec<_>>() {
            self.learn_owners(node, 0);
        }
    }

    /// The owner of a NAT gateway, when the network is whole.
    pub fn owner(&self, unit: usize) -> Option<usize> {
        self.claims[unit].values().next().copied()
    }
}
