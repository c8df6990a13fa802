//! All clusters' controllers, without socket and clock.

use super::view::{ClusterView, GatewayState, GatewayView};
use crate::compile::ClusterUpdates;
use sluice_cluster::{
    Config, Controller, ControllerInput, ControllerOutput, Health, Load, Member, Message, MessageCodec, Node,
    OwnershipPlan, Params, Refused, Table, VipId,
};
use sluice_envelope::{BootId, ClusterKey, KeyRing};
use sluice_southbound::{ClusterKeys, ClusterPlan};
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// So often a newer plan is asked for: this controller may only be behind the database.
const RAISE_US: u64 = 1_000_000;

/// What time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Microseconds of a clock that never jumps.
    pub mono_us: u64,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// Where a gateway was heard: its address, and this node's that it spoke to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The gateway's.
    pub remote: SocketAddr,
    /// This node's.
    pub local: IpAddr,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram; it may get lost.
    Send(Way, Vec<u8>),
    /// For the event log.
    Note(Event),
    /// A gateway says what it has to do.
    Load(GatewayId, Load),
    /// A gateway has the cluster's plan at this revision, which is newer than the database's.
    Raise(ClusterId, u64),
}

/// What happened to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A vIP has another owner.
    Moved {
        /// Of which cluster.
        cluster: ClusterId,
        /// Which vIP.
        vip: IpAddr,
        /// The previous owner; `None` if there was no owner.
        from: Option<GatewayId>,
        /// The new owner.
        to: GatewayId,
        /// The controller decided it; else gateways did, and it confirms.
        decided: bool,
    },
    /// Neither the controller nor a gateway hears it.
    Failed(ClusterId, GatewayId),
    /// It is heard again.
    Returned(ClusterId, GatewayId),
    /// It was to be drained, and owns nothing any more.
    Drained(ClusterId, GatewayId),
}

/// What came instead of a message, for the metrics.
pub type RefusedCounts = BTreeMap<&'static str, u64>;

#[derive(Debug)]
struct Seat {
    /// None until a gateway of the cluster was heard: a replica to which none speaks knows nothing.
    machine: Option<Controller>,
    plan: ClusterPlan,
    keys: KeyRing,
    ways: BTreeMap<GatewayId, Way>,
    due_us: u64,
    /// When a newer plan was last asked for.
    raised_us: Option<u64>,
}

/// The clusters of the cloud.
#[derive(Debug)]
pub struct Clusters {
    incarnation: u64,
    courier: MessageCodec,
    /// All clusters' keys, to open with.
    keys: KeyRing,
    seats: BTreeMap<ClusterId, Seat>,
    refused: RefusedCounts,
    actions: Vec<Action>,
}

fn ring<'a>(keys: impl Iterator<Item = &'a ClusterKeys>) -> KeyRing {
    let keys = keys.flat_map(|keys| &keys.keys);
    let made = keys.filter_map(|key| {
        ClusterKey::new(key.id, key.secret.bytes(), key.not_before_ms, key.not_after_ms)
            .map_err(|error| tracing::error!(%error, "a cluster's key cannot be used"))
            .ok()
    });
    KeyRing::new(made.collect()).unwrap_or_else(|error| {
        tracing::error!(%error, "the clusters' keys cannot be used");
        KeyRing::default()
    })
}

fn intent(plan: &ClusterPlan) -> OwnershipPlan {
    let place = |place: u8| VipId::new(place).ok();
    let member =
        |member: &sluice_southbound::Member| Member { id: member.gateway, draining: member.draining };
    let config = Config {
        revision: plan.revision,
        vips: plan.vips.iter().filter_map(|vip| place(vip.place)).collect(),
        members: plan.members.iter().map(member).collect(),
        hello_interval_ms: plan.hello_ms,
    };
    let homes = plan.homes.iter().filter_map(|home| Some((place(home.place)?, home.gateway)));
    OwnershipPlan { config, preferred_owners: homes.collect() }
}

impl Clusters {
    /// For a controller that starts; `boot` is drawn for this life.
    pub fn new(boot: BootId, now: Now) -> Self {
        Self {
            incarnation: now.wall_ms,
            courier: MessageCodec::new(Node::Controller, boot, now.wall_ms),
            keys: KeyRing::default(),
            seats: BTreeMap::new(),
            refused: RefusedCounts::new(),
            actions: Vec::new(),
        }
    }

    /// Datagrams that were not taken, by why.
    pub fn refused(&self) -> &RefusedCounts {
        &self.refused
    }

    /// When [`Clusters::tick`] is due.
    pub fn due_us(&self) -> Option<u64> {
        self.seats.values().filter(|seat| seat.machine.is_some()).map(|seat| seat.due_us).min()
    }

    /// Intent changed: clusters, vIPs, members, homes, keys.
    pub fn follow(&mut self, now: Now, updates: &ClusterUpdates) -> Vec<Action> {
        self.seats.retain(|id, _| updates.contains_key(id));
        self.keys = ring(updates.values().flat_map(|update| &update.keys));
        for (&id, update) in updates {
            let Some(plan) = &update.cluster else { continue };
            let keys = ring(update.keys.iter());
            let seat = self.seats.entry(id).or_insert_with(|| Seat {
                machine: None,
                plan: plan.clone(),
                keys: KeyRing::default(),
                ways: BTreeMap::new(),
                due_us: now.mono_us,
                raised_us: None,
            });
            seat.keys = keys;
            seat.plan = plan.clone();
            seat.ways.retain(|gateway, _| plan.members.iter().any(|member| member.gateway == *gateway));
            self.feed(now, id, ControllerInput::Plan(intent(plan)));
        }
        std::mem::take(&mut self.actions)
    }

    /// A datagram came.
    pub fn receive(&mut self, now: Now, way: Way, packet: &[u8]) -> Vec<Action> {
        match self.open(now, way.local, packet) {
            Ok(message) => {
                let id = message.cluster;
                if let Some(seat) = self.seats.get_mut(&id)
                    && let Node::Gateway(from) = message.from
                {
                    if seat.plan.members.iter().any(|member| member.gateway == from) {
                        seat.ways.insert(from, way);
                    }
                    if seat.machine.is_none() {
                        self.begin(now, id);
                    }
                }
                let from = message.from;
                self.feed(now, id, ControllerInput::Received(message));
                if let Node::Gateway(from) = from {
                    self.note_plan(now, id, from);
                }
            }
            Err(why) => *self.refused.entry(why).or_default() += 1,
        }
        std::mem::take(&mut self.actions)
    }

    /// A gateway may have a plan that the database has lost. Nothing older is taken by it.
    fn note_plan(&mut self, now: Now, id: ClusterId, from: GatewayId) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let known =
            seat.machine.as_ref().and_then(|machine| machine.report(from)).map(|report| report.config);
        let due = seat.raised_us.is_none_or(|at_us| now.mono_us.saturating_sub(at_us) >= RAISE_US);
        if let Some(known) = known.filter(|known| *known > seat.plan.revision && due) {
            seat.raised_us = Some(now.mono_us);
            self.actions.push(Action::Raise(id, known));
        }
    }

    /// The time of [`Clusters::due_us`] has come.
    pub fn tick(&mut self, now: Now) -> Vec<Action> {
        let due = self.seats.iter().filter(|(_, seat)| seat.machine.is_some() && seat.due_us <= now.mono_us);
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.feed(now, id, ControllerInput::Timer);
        }
        std::mem::take(&mut self.actions)
    }

    fn open(&mut self, now: Now, local: IpAddr, packet: &[u8]) -> Result<Message, &'static str> {
        let opened = self.courier.open(&self.keys, now.wall_ms, local, packet);
        let (message, key) = opened.map_err(|refused: Refused| refused.name())?;
        match self.seats.get(&message.cluster) {
            // Who has one cluster's key has no say in another.
            Some(seat) if seat.keys.get(key).is_some() => Ok(message),
            Some(_) => Err("foreign_key"),
            None => Err("unknown_cluster"),
        }
    }

    fn begin(&mut self, now: Now, id: ClusterId) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let saved = (intent(&seat.plan), Table::default());
        let machine = Controller::new(id, Params::default(), self.incarnation, saved, now.mono_us);
        seat.machine = Some(machine);
        self.feed(now, id, ControllerInput::Timer);
    }

    fn feed(&mut self, now: Now, id: ClusterId, input: ControllerInput) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let Some(machine) = &mut seat.machine else { return };
        for output in machine.handle(now.mono_us, input) {
            match output {
                ControllerOutput::Send { to, message } => {
                    let Some(&way) = seat.ways.get(&to) else { continue };
                    match self.courier.seal(&seat.keys, now.wall_ms, way.remote.ip().to_canonical(), &message)
                    {
                        Ok(packet) => self.actions.push(Action::Send(way, packet)),
                        Err(_) => *self.refused.entry("no_key").or_default() += 1,
                    }
                }
                ControllerOutput::SetTimer { at_us } => seat.due_us = at_us,
                ControllerOutput::Moved { vip, from, claim, decided } => {
                    let planned = seat.plan.vips.iter().find(|planned| planned.place == vip.get());
                    if let Some(vip) = planned.map(|planned| planned.address) {
                        let event = Event::Moved { cluster: id, vip, from, to: claim.owner, decided };
                        self.actions.push(Action::Note(event));
                    }
                }
                ControllerOutput::Failed(gateway) => {
                    self.actions.push(Action::Note(Event::Failed(id, gateway)));
                }
                ControllerOutput::Returned(gateway) => {
                    self.actions.push(Action::Note(Event::Returned(id, gateway)));
                }
                ControllerOutput::Load(gateway, load) => self.actions.push(Action::Load(gateway, load)),
                ControllerOutput::Drained(gateway) => {
                    self.actions.push(Action::Note(Event::Drained(id, gateway)));
                }
            }
        }
    }

    /// What is known of each cluster, for the API.
    pub fn views(&self, now: Now) -> BTreeMap<ClusterId, ClusterView> {
        self.seats.iter().map(|(id, seat)| (*id, view(seat, now))).collect()
    }
}

fn view(seat: &Seat, now: Now) -> ClusterView {
    let Some(machine) = &seat.machine else { return ClusterView::default() };
    let address =
        |place: VipId| seat.plan.vips.iter().find(|vip| vip.place == place.get()).map(|vip| vip.address);
    let owners = machine.table().iter().filter_map(|(place, claim)| Some((address(place)?, claim.owner)));
    let gateway = |member: &sluice_southbound::Member| {
        let id = member.gateway;
        let report = machine.report(id);
        let holds = report.map(|report| report.holds).unwrap_or_default();
        let heard = machine.is_reachable(id, now.mono_us);
        let state = match report.map(|report| report.health) {
            _ if machine.has_failed(id) => GatewayState::Failed,
            // Its peers hear it, or it has not been silent for long.
            _ if !heard => GatewayState::Unreachable,
            Some(Health::Ready) if member.draining && machine.is_drained(id) => GatewayState::Drained,
            Some(Health::Ready) if member.draining => GatewayState::Draining,
            Some(Health::Ready) => GatewayState::Ready,
            Some(Health::Isolated) => GatewayState::Isolated,
            Some(Health::Starting) | None => GatewayState::Starting,
        };
        (id, GatewayView { state, answers_for: holds.iter().filter_map(address).collect() })
    };
    ClusterView { owners: owners.collect(), gateways: seat.plan.members.iter().map(gateway).collect() }
}
