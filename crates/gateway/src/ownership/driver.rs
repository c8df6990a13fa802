//! From datagrams to the state machine and back, without sockets and clocks.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use serde::Serialize;
use sluice_agent::underlay::Vteps;
use sluice_cluster::{
    Courier, Gateway, Incident, Input, Load, Message, Node, Output, Params, Reason, Standing, VipSet,
};
use sluice_rsp::{BootId, KeyRing};
use sluice_types::{ClusterId, GatewayId, MacAddr};

use super::plan::{Plan, Saved};

/// Members that are remembered by where they were heard from, beside those of the plan.
const STRANGERS_MAX: usize = 64;

/// What time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Microseconds of a clock that never jumps and never stands still (`CLOCK_BOOTTIME`).
    pub boot_us: u64,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// What happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// The time of [`Driver::due_us`] has come; also the first event of all.
    Timer,
    /// A datagram from `from` came to this node's address `local`.
    Datagram {
        /// This node's.
        local: IpAddr,
        /// The sender's, as it seems.
        from: IpAddr,
        /// What came.
        packet: &'a [u8],
    },
    /// A neighbour answered the question of that number.
    Witness(u64),
    /// The controller's plan.
    Plan(Plan),
    /// This gateway was deleted.
    Resign,
    /// The cluster's keys.
    Keys(KeyRing),
    /// Where the controller is now; none: not known.
    Controller(Option<IpAddr>),
    /// What there is to do here.
    Load(Load),
}

/// To whom a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The controller.
    Controller,
    /// A gateway.
    Gateway(IpAddr),
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram; it may get lost.
    Send(To, Vec<u8>),
    /// Tell the underlay that a vIP is here.
    Announce(IpAddr, MacAddr, Reason),
    /// A vIP is elsewhere.
    Withdraw(IpAddr, MacAddr),
    /// Ask neighbours the question of that number; an answer counts until then.
    Ask(u64, u64),
    /// Answer for these vIPs, and for no others.
    Own(Owned),
    /// Save it for the next life.
    Save(Box<Saved>),
    /// Tell the operator.
    Say(Incident),
}

/// vIPs that a gateway answers for.
pub type Owned = HashMap<IpAddr, MacAddr>;

/// For the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Its cluster, once known.
    pub cluster: Option<ClusterId>,
    /// Revision of the plan that is followed.
    pub revision: u64,
    /// `fit`, `listening` or `cut_off`; none before there is a plan.
    pub standing: Option<&'static str>,
    /// vIPs that it answers for.
    pub vips: Vec<IpAddr>,
    /// The other gateways, and whether they are heard.
    pub peers: BTreeMap<GatewayId, bool>,
    /// Whether the controller answers.
    pub controller: bool,
    /// Since the agent started.
    pub counts: Counts,
}

/// Since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Datagrams.
    pub sent: u64,
    /// Datagrams that were taken.
    pub received: u64,
    /// Datagrams that were not, by why.
    pub refused: BTreeMap<&'static str, u64>,
    /// Datagrams that could not be sealed: no key is valid.
    pub unsealed: u64,
    /// Messages for gateways that cannot be reached: no common address family.
    pub unreachable: u64,
    /// Frames' worth of announcements.
    pub announced: u64,
    /// vIPs taken from gateways that failed.
    pub taken_over: u64,
    /// Gateways that were believed dead and were not.
    pub false_alarms: u64,
    /// Times that this gateway was not run when it asked to be.
    pub pauses: u64,
    /// Times that nobody answered this gateway.
    pub cut_off: u64,
}

/// The name of a standing.
pub fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Fit => "fit",
        Standing::Listening => "listening",
        Standing::CutOff => "cut_off",
    }
}

/// A gateway's part in its cluster.
#[derive(Debug)]
pub struct Driver {
    own: GatewayId,
    vteps: Vteps,
    params: Params,
    incarnation: u64,
    courier: Courier,
    keys: KeyRing,
    plan: Option<Plan>,
    machine: Option<Gateway>,
    controller: Option<IpAddr>,
    heard_at: BTreeMap<GatewayId, IpAddr>,
    due_us: u64,
    /// What the tables answer for.
    owned: Owned,
    saved: Option<(u64, u64, u64)>,
    counts: Counts,
    actions: Vec<Action>,
}

impl Driver {
    /// A gateway's agent that starts. `saved` is what its earlier life left, `owned` what the tables
    /// answer for since.
    #[must_use]
    pub fn new(
        own: GatewayId,
        vteps: Vteps,
        boot: BootId,
        saved: Option<Saved>,
        owned: Owned,
        now: Now,
    ) -> Self {
        let mut driver = Self {
            own,
            vteps,
            params: Params::default(),
            // A later life begins later, as far as the wall clock can tell.
            incarnation: now.wall_ms,
            courier: Courier::new(Node::Gateway(own), boot, now.wall_ms),
            keys: KeyRing::default(),
            plan: None,
            machine: None,
            controller: None,
            heard_at: BTreeMap::new(),
            due_us: now.boot_us,
            owned,
            saved: None,
            counts: Counts::default(),
            actions: Vec::new(),
        };
        if let Some(saved) = saved {
            let state = saved.state();
            driver.begin(now, saved.plan, state);
        }
        driver
    }

    /// When [`Event::Timer`] is due, by the clock that does not jump.
    #[must_use]
    pub const fn due_us(&self) -> u64 {
        self.due_us
    }

    /// What is known of the cluster.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Takes an event in.
    pub fn handle(&mut self, now: Now, event: Event<'_>) -> Vec<Action> {
        match event {
            Event::Timer => {
                // Until there is a plan nothing is due.
                self.due_us = u64::MAX;
                self.feed(now, Input::Timer);
            }
            Event::Datagram { local, from, packet } => self.receive(now, local, from, packet),
            Event::Witness(token) => self.feed(now, Input::Witness { token }),
            Event::Plan(plan) => self.replan(now, plan),
            Event::Resign => self.resign(now),
            Event::Keys(keys) => self.keys = keys,
            Event::Controller(address) => self.controller = address,
            Event::Load(load) => self.feed(now, Input::Load(load)),
        }
        self.say_what_is_owned();
        self.save();
        std::mem::take(&mut self.actions)
    }

    /// Where the other gateways are reached.
    #[must_use]
    pub fn peers(&self) -> Vec<IpAddr> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let others = plan.members.iter().filter(|member| member.gateway != self.own);
        others.filter_map(|member| plan.reach(member.gateway, self.vteps)).collect()
    }

    /// Whether it takes part: it has a plan, has listened and is not cut off.
    #[must_use]
    pub fn is_fit(&self) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.standing() == Standing::Fit)
    }

    /// For the operator.
    #[must_use]
    pub fn status(&self, now: Now) -> Status {
        let Some((plan, machine)) = self.plan.as_ref().zip(self.machine.as_ref()) else {
            return Status { counts: self.counts.clone(), ..Status::default() };
        };
        let others = machine.config().members.iter().filter(|member| member.id != self.own);
        let mut vips: Vec<IpAddr> = self.owned.keys().copied().collect();
        vips.sort_unstable();
        Status {
            cluster: Some(plan.cluster),
            revision: machine.config().revision,
            standing: Some(standing_name(machine.standing())),
            vips,
            peers: others.map(|it| (it.id, machine.hears(Node::Gateway(it.id), now.boot_us))).collect(),
            controller: machine.hears_controller(now.boot_us),
            counts: self.counts.clone(),
        }
    }

    fn begin(&mut self, now: Now, plan: Plan, state: (sluice_cluster::Config, sluice_cluster::Table)) {
        let held: VipSet = plan
            .vips
            .iter()
            .filter(|vip| self.owned.contains_key(&vip.address))
            .map(|vip| vip.place)
            .collect();
        // Each begins to count its messages anew.
        self.incarnation += 1;
        let machine =
            Gateway::new(self.own, plan.cluster, self.params.clone(), self.incarnation, state, now.boot_us);
        self.machine = Some(machine.holding(held));
        self.plan = Some(plan);
        self.due_us = now.boot_us;
    }

    fn replan(&mut self, now: Now, plan: Plan) {
        let newer = |known: &Plan| known.cluster == plan.cluster && known.revision > plan.revision;
        if self.plan.as_ref().is_some_and(newer) {
            // From before a restart, or of a database that was restored: the controller hears which one is
            // followed here, and gives the plan a newer revision.
            return;
        }
        let old = self.plan.take();
        let same = old.as_ref().is_some_and(|old| old.cluster == plan.cluster);
        if !same {
            // The first plan, or one of another cluster.
            self.begin(now, plan.clone(), Default::default());
        }
        let config = plan.config();
        self.plan = Some(plan);
        if let Some(old) = old.filter(|_| same) {
            self.announce_readdressed(&old);
        }
        self.feed(now, Input::Config(config));
    }

    /// From here on it is of a cluster without vIPs and members, also in its next life. Its peers have, or had,
    /// a plan without it; nobody can tell it so, for its keys are no longer theirs.
    fn resign(&mut self, now: Now) {
        let Some(plan) = self.plan.take() else { return };
        self.actions.extend(self.owned.iter().map(|(address, mac)| Action::Withdraw(*address, *mac)));
        let none = Plan { vips: Vec::new(), members: Vec::new(), ..plan };
        self.begin(now, none, Default::default());
    }

    /// Places that got their address only now, or another one, and are answered for here already.
    fn announce_readdressed(&mut self, old: &Plan) {
        let (Some(plan), Some(machine)) = (&self.plan, &self.machine) else { return };
        for vip in plan.vips.iter().filter(|vip| machine.holds().contains(vip.place)) {
            if old.vip(vip.place) != Some(vip) {
                self.actions.push(Action::Announce(vip.address, vip.mac, Reason::Assigned));
            }
        }
    }

    fn receive(&mut self, now: Now, local: IpAddr, from: IpAddr, packet: &[u8]) {
        match self.courier.open(&self.keys, now.wall_ms, local, packet) {
            Ok((message, _)) => {
                self.counts.received += 1;
                if let Node::Gateway(id) = message.from
                    && (self.heard_at.contains_key(&id) || self.heard_at.len() < STRANGERS_MAX)
                {
                    self.heard_at.insert(id, from);
                }
                self.feed(now, Input::Received(message));
            }
            Err(refused) => {
                *self.counts.refused.entry(refused.name()).or_default() += 1;
                // Sealed, as it seems, by somebody who is right, with a key or by a clock that this node lacks.
                let lacking = ["unknown_key", "key_period", "too_old", "too_new"].contains(&refused.name());
                if lacking && self.plan.as_ref().is_some_and(|plan| plan.is_member(from)) {
                    self.feed(now, Input::Unreadable);
                }
            }
        }
    }

    fn feed(&mut self, now: Now, input: Input) {
        let Some(machine) = &mut self.machine else { return };
        for output in machine.handle(now.boot_us, input) {
            self.obey(now, output);
        }
    }

    fn obey(&mut self, now: Now, output: Output) {
        match output {
            Output::Announce { vip, reason } => {
                self.counts.announced += 1;
                self.counts.taken_over += u64::from(matches!(reason, Reason::TakenOver { .. }));
                // Of a vIP that only other gateways know yet the plan is still to come.
                if let Some(vip) = self.plan.as_ref().and_then(|plan| plan.vip(vip)) {
                    self.actions.push(Action::Announce(vip.address, vip.mac, reason));
                }
            }
            Output::Withdraw { vip } => {
                if let Some(vip) = self.plan.as_ref().and_then(|plan| plan.vip(vip)) {
                    self.actions.push(Action::Withdraw(vip.address, vip.mac));
                }
            }
            Output::Send { to, message } => self.send(now, to, &message),
            Output::ProbeWitness { token, within_us } => {
                self.actions.push(Action::Ask(token, now.boot_us + within_us));
            }
            Output::SetTimer { at_us } => self.due_us = at_us,
            Output::Happened(incident) => {
                match incident {
                    Incident::Drained | Incident::Reconnected => {}
                    Incident::FalseAlarm { .. } => self.counts.false_alarms += 1,
                    Incident::Paused { .. } => self.counts.pauses += 1,
                    Incident::CutOff => self.counts.cut_off += 1,
                }
                self.actions.push(Action::Say(incident));
            }
        }
    }

    fn send(&mut self, now: Now, to: Node, message: &Message) {
        let (to, address) = match to {
            Node::Controller => match self.controller {
                Some(address) => (To::Controller, address),
                None => return,
            },
            Node::Gateway(id) => {
                let planned = self.plan.as_ref().and_then(|plan| plan.reach(id, self.vteps));
                match planned.or_else(|| self.heard_at.get(&id).copied()) {
                    Some(address) => (To::Gateway(address), address),
                    None => {
                        self.counts.unreachable += 1;
                        return;
                    }
                }
            }
        };
        match self.courier.seal(&self.keys, now.wall_ms, address, message) {
            Ok(packet) => {
                self.counts.sent += 1;
                self.actions.push(Action::Send(to, packet));
            }
            Err(_) => self.counts.unsealed += 1,
        }
    }

    fn say_what_is_owned(&mut self) {
        let Some((plan, machine)) = self.plan.as_ref().zip(self.machine.as_ref()) else { return };
        let holds = machine.holds();
        let unchanged = self.owned.len() == holds.len()
            && plan
                .vips
                .iter()
                .all(|vip| holds.contains(vip.place) == (self.owned.get(&vip.address) == Some(&vip.mac)));
        if unchanged {
            return;
        }
        let held = plan.vips.iter().filter(|vip| holds.contains(vip.place));
        let owned: Owned = held.map(|vip| (vip.address, vip.mac)).collect();
        if owned != self.owned {
            self.owned.clone_from(&owned);
            self.actions.push(Action::Own(owned));
        }
    }

    fn save(&mut self) {
        let Some((plan, machine)) = self.plan.as_ref().zip(self.machine.as_ref()) else { return };
        let state = (plan.revision, machine.config().revision, machine.table().digest());
        if self.saved.replace(state) != Some(state) {
            let saved = Saved::new(plan.clone(), machine.config(), machine.table());
            self.actions.push(Action::Save(Box::new(saved)));
        }
    }
}
