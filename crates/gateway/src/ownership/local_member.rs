//! This gateway as a member of its cluster, without sockets and clocks: what the state machine of
//! `sluice_cluster` needs around it. It opens and seals datagrams, translates slots to vIPs and gateways to
//! addresses, and decides what is saved. This file changes when the state machine gets another input or
//! output.
//!
//! ```text
//!                saved state, or first plan
//!     NO PLAN ------------------------------> MEMBER OF A CLUSTER --+  newer plan of the
//!                                              |  ^  |  ^           |  same cluster:
//!                    plan of another cluster:  |  |  |  +-----------+  reconfigure
//!                    begin with empty tables   +--+  |
//!                                                    | this gateway was deleted
//!                                                    v
//!                         any plan            MEMBER OF AN EMPTY CLUSTER
//!                       (MEMBER again) <----- (no vIPs, no members)
//! ```
//!
//! As a member the gateway is starting, ready or isolated, and owns vIPs: `sluice_cluster::Gateway` decides
//! that.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use sluice_agent::underlay::Vteps;
use sluice_cluster::{
    AnnounceReason, Gateway, Health, Incident, Input, Load, Message, MessageCodec, Node, Output, Params,
    Readiness, VipSet,
};
use sluice_envelope::{BootId, KeyRing};
use sluice_types::{ClusterId, GatewayId, MacAddr};

use super::plan::{GatewayPlan, PlannedVip};
use super::saved_state::SavedState;
use super::status::{OwnershipCounts, OwnershipStatus};
use super::view::ClusterView;

/// Most gateways whose source addresses are remembered.
const SOURCE_ADDRESSES_MAX: usize = 64;
/// Reasons for refusals that an authentic packet may have when this node's keys or clock are wrong.
const UNREADABLE_REASONS: [&str; 4] = ["unknown_key", "key_period", "too_old", "too_new"];

/// The current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Microseconds of a clock that never jumps and also counts while the machine is suspended
    /// (`CLOCK_BOOTTIME`).
    pub boot_us: u64,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// An input of the member.
#[derive(Debug)]
pub enum Event<'a> {
    /// The time of [`LocalMember::due_us`] has come; also the first event.
    Timer,
    /// A datagram was received.
    Datagram {
        /// This node's address to which it was sent.
        local: IpAddr,
        /// Its source address, which is not authenticated.
        from: IpAddr,
        /// The UDP payload.
        packet: &'a [u8],
    },
    /// The gateway with this address answered a probe.
    GatewayReply(IpAddr),
    /// A witness answered the probe with this number.
    WitnessReply(u64),
    /// The controller's plan.
    Plan(GatewayPlan),
    /// This gateway was deleted.
    Deleted,
    /// The cluster's keys.
    Keys(KeyRing),
    /// The controller's address; `None` if it is not known.
    Controller(Option<IpAddr>),
    /// The load of this gateway, for the controller.
    Load(Load),
    /// Newest revision that the forwarding tables contain completely; 0 if entries may be missing.
    Tables(u64),
    /// Whether this gateway has copies of all sessions of NAT gateways that others own.
    Copies(bool),
}

/// Receiver of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// The controller.
    Controller,
    /// The gateway at this address.
    Gateway(IpAddr),
}

/// An output of the member. Sends, announcements and probes are done in order; `SetOwned` follows them, and
/// reports come last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram, which may get lost.
    Send(Receiver, Vec<u8>),
    /// Announce to the underlay that a vIP is at this gateway.
    Announce(IpAddr, MacAddr, AnnounceReason),
    /// A vIP is at another gateway.
    Withdraw(IpAddr, MacAddr),
    /// Probe witnesses. The fields are the number of the probe, and the time until which a reply counts.
    ProbeWitness(u64, u64),
    /// Probe the gateway with this address. The second field is the time until which a reply counts.
    ProbeGateway(IpAddr, u64),
    /// Answer for exactly these vIPs.
    SetOwned(OwnedVips),
    /// Save the state for the next agent.
    Save(Box<SavedState>),
    /// Log an incident.
    Report(Incident),
}

/// vIPs that a gateway answers for, with their MACs.
pub type OwnedVips = HashMap<IpAddr, MacAddr>;

/// What an agent that starts finds in the tables.
#[derive(Debug, Default)]
pub struct AdoptedTables {
    /// vIPs that the packet programs answer for.
    pub owned: OwnedVips,
    /// Newest revision that the tables contain completely; 0 if entries may be missing.
    pub revision: u64,
    /// They have the part that translates for NAT gateways.
    pub translates: bool,
}

/// Name of a state of a gateway.
fn health_name(health: Health) -> &'static str {
    match health {
        Health::Ready => "ready",
        Health::Starting => "starting",
        Health::Isolated => "isolated",
    }
}

/// Name of a state of the forwarding tables.
fn readiness_name(readiness: Readiness) -> &'static str {
    match readiness {
        Readiness::Current => "current",
        Readiness::Behind => "behind",
        Readiness::Partial => "partial",
    }
}

/// This gateway as a member of its cluster.
#[derive(Debug)]
pub struct LocalMember {
    own: GatewayId,
    vteps: Vteps,
    params: Params,
    incarnation: u64,
    codec: MessageCodec,
    keys: KeyRing,
    plan: Option<GatewayPlan>,
    machine: Option<Gateway>,
    controller: Option<IpAddr>,
    /// Source addresses of the last datagrams of gateways, for messages to those that are not in the plan.
    source_addresses: BTreeMap<GatewayId, IpAddr>,
    due_us: u64,
    /// vIPs that the tables answer for.
    owned: OwnedVips,
    /// Newest revision that the tables contain completely.
    tables: u64,
    /// Whether this gateway has copies of all sessions.
    copies: bool,
    /// Whether it translates for NAT gateways.
    translates: bool,
    /// Cluster, revisions of plan and configuration, and digest of the table, of the saved state.
    saved: Option<(ClusterId, u64, u64, u64)>,
    counts: OwnershipCounts,
    actions: Vec<Action>,
}

impl LocalMember {
    /// A gateway whose agent starts. `saved` is the state that an earlier agent left.
    #[must_use]
    pub fn new(
        own: GatewayId,
        vteps: Vteps,
        boot: BootId,
        saved: Option<SavedState>,
        tables: AdoptedTables,
        now: Now,
    ) -> Self {
        let mut member = Self {
            own,
            vteps,
            params: Params::default(),
            // A later start has a larger number, as far as the wall clock is right.
            incarnation: now.wall_ms,
            codec: MessageCodec::new(Node::Gateway(own), boot, now.wall_ms),
            keys: KeyRing::default(),
            plan: None,
            machine: None,
            controller: None,
            source_addresses: BTreeMap::new(),
            due_us: now.boot_us,
            owned: tables.owned,
            tables: tables.revision,
            copies: false,
            translates: tables.translates,
            saved: None,
            counts: OwnershipCounts::default(),
            actions: Vec::new(),
        };
        if let Some(saved) = saved {
            let state = saved.state();
            member.join(now, saved.plan, state);
        }
        member
    }

    /// Time at which [`Event::Timer`] is due, by the boot clock.
    #[must_use]
    pub const fn due_us(&self) -> u64 {
        self.due_us
    }

    /// The current plan.
    #[must_use]
    pub fn plan(&self) -> Option<&GatewayPlan> {
        self.plan.as_ref()
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Now, event: Event<'_>) -> Vec<Action> {
        match event {
            Event::Timer => {
                // Without a plan nothing is due.
                self.due_us = u64::MAX;
                self.feed(now, Input::Timer);
            }
            Event::Datagram { local, from, packet } => self.receive(now, local, from, packet),
            Event::WitnessReply(token) => self.feed(now, Input::Witness { token }),
            Event::GatewayReply(address) => {
                if let Some(gateway) = self.plan.as_ref().and_then(|plan| plan.member_with(address)) {
                    self.feed(now, Input::GatewayAnswered { gateway });
                }
            }
            Event::Plan(plan) => self.set_plan(now, plan),
            Event::Deleted => self.leave(now),
            Event::Keys(keys) => self.keys = keys,
            Event::Controller(address) => self.controller = address,
            Event::Load(load) => self.feed(now, Input::Load(load)),
            Event::Tables(revision) => {
                self.tables = revision;
                self.feed(now, Input::Tables { revision });
            }
            Event::Copies(complete) => {
                self.copies = complete;
                self.feed(now, Input::Copies { complete });
            }
        }
        self.update_owned();
        self.save();
        std::mem::take(&mut self.actions)
    }

    /// Addresses of the other gateways of the plan.
    #[must_use]
    pub fn peers(&self) -> Vec<IpAddr> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let others = plan.members.iter().filter(|member| member.gateway != self.own);
        others.filter_map(|member| plan.member_address(member.gateway, self.vteps)).collect()
    }

    /// Whether this gateway is ready: it has a plan, is not starting and not isolated.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.health() == Health::Ready)
    }

    /// The status for the local API and metrics.
    #[must_use]
    pub fn status(&self, now: Now) -> OwnershipStatus {
        let Some((plan, machine)) = self.plan.as_ref().zip(self.machine.as_ref()) else {
            return OwnershipStatus { counts: self.counts.clone(), ..OwnershipStatus::default() };
        };
        let others = machine.config().members.iter().filter(|member| member.id != self.own);
        let mut vips: Vec<IpAddr> = self.owned.keys().copied().collect();
        vips.sort_unstable();
        OwnershipStatus {
            cluster: Some(plan.cluster),
            revision: machine.config().revision,
            health: Some(health_name(machine.health())),
            tables: Some(readiness_name(machine.tables().readiness())),
            tables_revision: machine.tables().revision,
            copies: machine.tables().copies,
            vips,
            peers: others
                .map(|it| (it.id, machine.is_reachable(Node::Gateway(it.id), now.boot_us)))
                .collect(),
            controller: machine.is_controller_reachable(now.boot_us),
            counts: self.counts.clone(),
        }
    }

    /// Brings what others know about the cluster up to date. Returns false if nothing has changed.
    pub fn update_view(&self, now: Now, view: &mut ClusterView) -> bool {
        let Some((plan, machine)) = self.plan.as_ref().zip(self.machine.as_ref()) else { return false };
        let (contacts, digest) = (machine.contacts(now.boot_us), machine.table().digest());
        if (view.plan.as_ref(), view.digest, &view.contacts) == (Some(plan), digest, &contacts) {
            return false;
        }
        let owner = |vip: &PlannedVip| Some((vip.address, machine.table().get(vip.slot)?.owner));
        let owners = plan.vips.iter().filter_map(owner).collect();
        *view = ClusterView { plan: Some(plan.clone()), owners, digest, contacts };
        true
    }

    /// Starts a state machine in the cluster of a plan.
    fn join(&mut self, now: Now, plan: GatewayPlan, state: (sluice_cluster::Config, sluice_cluster::Table)) {
        let held: VipSet = plan
            .vips
            .iter()
            .filter(|vip| self.owned.contains_key(&vip.address))
            .map(|vip| vip.slot)
            .collect();
        // Each state machine numbers its messages from the beginning, so it needs a new incarnation.
        self.incarnation += 1;
        let machine =
            Gateway::new(self.own, plan.cluster, self.params.clone(), self.incarnation, state, now.boot_us);
        let machine = machine.with_held_vips(held).with_tables(self.tables).with_copies(self.copies);
        self.machine = Some(machine.with_translation(self.translates));
        self.plan = Some(plan);
        self.due_us = now.boot_us;
    }

    fn set_plan(&mut self, now: Now, plan: GatewayPlan) {
        let is_newer = |known: &GatewayPlan| known.cluster == plan.cluster && known.revision > plan.revision;
        if self.plan.as_ref().is_some_and(is_newer) {
            // The controller's database was restored from a backup, or the plan is of a time before a
            // restart. The controller learns the revision that is followed here, and sends the plan with a
            // newer one.
            return;
        }
        let old = self.plan.take();
        let same_cluster = old.as_ref().is_some_and(|old| old.cluster == plan.cluster);
        if !same_cluster {
            self.join(now, plan.clone(), Default::default());
        }
        let config = plan.config();
        self.plan = Some(plan);
        if let Some(old) = old.filter(|_| same_cluster) {
            self.announce_new_addresses(&old);
        }
        // Learned again from the next datagrams; gateways that left would fill it.
        self.source_addresses.clear();
        self.feed(now, Input::Config(config));
    }

    /// Leaves the cluster: follows a plan without vIPs and members, which the next agent does as well. The
    /// peers' plan no longer has this gateway, but they cannot notify it, because it does not have their new
    /// keys.
    fn leave(&mut self, now: Now) {
        let Some(plan) = self.plan.take() else { return };
        self.actions.extend(self.owned.iter().map(|(address, mac)| Action::Withdraw(*address, *mac)));
        let empty = GatewayPlan { vips: Vec::new(), members: Vec::new(), ..plan };
        self.join(now, empty, Default::default());
    }

    /// Announces vIPs that this gateway owns already, and whose address is new in the plan.
    fn announce_new_addresses(&mut self, old: &GatewayPlan) {
        let (Some(plan), Some(machine)) = (&self.plan, &self.machine) else { return };
        for vip in plan.vips.iter().filter(|vip| machine.holds().contains(vip.slot)) {
            if old.vip(vip.slot) != Some(vip) {
                self.actions.push(Action::Announce(vip.address, vip.mac, AnnounceReason::Assigned));
            }
        }
    }

    fn receive(&mut self, now: Now, local: IpAddr, from: IpAddr, packet: &[u8]) {
        match self.codec.open(&self.keys, now.wall_ms, local, packet) {
            Ok((message, _)) => {
                self.counts.received += 1;
                if let Node::Gateway(id) = message.from
                    && (self.source_addresses.contains_key(&id)
                        || self.source_addresses.len() < SOURCE_ADDRESSES_MAX)
                {
                    self.source_addresses.insert(id, from);
                }
                self.feed(now, Input::Received(message));
            }
            Err(refused) => {
                *self.counts.refused.entry(refused.name()).or_default() += 1;
                // The packet seems to be authentic, and this node seems to lack the key or the right time.
                let is_unreadable = UNREADABLE_REASONS.contains(&refused.name());
                if is_unreadable && self.plan.as_ref().is_some_and(|plan| plan.is_member(from)) {
                    self.feed(now, Input::Unreadable);
                }
            }
        }
    }

    fn feed(&mut self, now: Now, input: Input) {
        let Some(machine) = &mut self.machine else { return };
        for output in machine.handle(now.boot_us, input) {
            self.translate(now, output);
        }
    }

    /// Turns an output of the state machine into actions.
    fn translate(&mut self, now: Now, output: Output) {
        match output {
            Output::Announce { vip, reason } => {
                self.counts.announced += 1;
                self.counts.taken_over += u64::from(matches!(reason, AnnounceReason::TakenOver { .. }));
                // The address of a vIP that only other gateways know is announced when this gateway has the
                // plan.
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
                self.actions.push(Action::ProbeWitness(token, now.boot_us + within_us));
            }
            Output::ProbeGateway { gateway, within_us } => {
                let address = self.plan.as_ref().and_then(|plan| plan.member_address(gateway, self.vteps));
                self.actions.extend(address.map(|it| Action::ProbeGateway(it, now.boot_us + within_us)));
            }
            Output::SetTimer { at_us } => self.due_us = at_us,
            Output::Incident(incident) => {
                match incident {
                    Incident::Drained | Incident::Reconnected | Incident::Tables(_) => {}
                    Incident::FalseAlarm { .. } => self.counts.false_alarms += 1,
                    Incident::Paused { .. } => self.counts.pauses += 1,
                    Incident::Isolated => self.counts.isolated += 1,
                }
                self.actions.push(Action::Report(incident));
            }
        }
    }

    fn send(&mut self, now: Now, to: Node, message: &Message) {
        let (receiver, address) = match to {
            Node::Controller => match self.controller {
                Some(address) => (Receiver::Controller, address),
                None => return,
            },
            Node::Gateway(id) => {
                let planned = self.plan.as_ref().and_then(|plan| plan.member_address(id, self.vteps));
                match planned.or_else(|| self.source_addresses.get(&id).copied()) {
                    Some(address) => (Receiver::Gateway(address), address),
                    None => {
                        self.counts.unreachable += 1;
                        return;
                    }
                }
            }
        };
        match self.codec.seal(&self.keys, now.wall_ms, address, message) {
            Ok(packet) => {
                self.counts.sent += 1;
                self.actions.push(Action::Send(receiver, packet));
            }
            Err(_) => self.counts.send_no_key += 1,
        }
    }

    fn update_owned(&mut self) {
        let Some((plan, machine)) = self.plan.as_ref().zip(self.machine.as_ref()) else { return };
        let holds = machine.holds();
        let is_unchanged = self.owned.len() == holds.len()
            && plan
                .vips
                .iter()
                .all(|vip| holds.contains(vip.slot) == (self.owned.get(&vip.address) == Some(&vip.mac)));
        if is_unchanged {
            return;
        }
        let held = plan.vips.iter().filter(|vip| holds.contains(vip.slot));
        let owned: OwnedVips = held.map(|vip| (vip.address, vip.mac)).collect();
        if owned != self.owned {
            self.owned.clone_from(&owned);
            self.actions.push(Action::SetOwned(owned));
        }
    }

    fn save(&mut self) {
        let Some((plan, machine)) = self.plan.as_ref().zip(self.machine.as_ref()) else { return };
        let state = (plan.cluster, plan.revision, machine.config().revision, machine.table().digest());
        if self.saved.replace(state) != Some(state) {
            let saved = SavedState::new(plan.clone(), machine.config(), machine.table());
            self.actions.push(Action::Save(Box::new(saved)));
        }
    }
}
