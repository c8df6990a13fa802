//! Runs the controller's state machines of all clusters, without socket and clock. This file changes when
//! messages, plans or keys reach them in another pair.

use super::view::{ClusterView, GatewayState, GatewayView};
use crate::compile::ClusterUpdates;
use sluice_cluster::{
    Config, Controller, ControllerInput, ControllerOutput, Health, Load, Member, Message, MessageCodec, Node,
    OwnershipPlan, Params, Readiness, Refused, Table, VipId,
};
use sluice_envelope::{BootId, ClusterKey, KeyRing};
use sluice_southbound::{ClusterKeys, ClusterPlan};
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Interval at which reissuing a plan is requested again, because this controller may only be behind the
/// database.
const REISSUE_INTERVAL_US: u64 = 1_000_000;

/// The current time, on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Microseconds of a monotonic clock.
    pub mono_us: u64,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// The addresses of a gateway's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPair {
    /// Address and port of the gateway.
    pub remote: SocketAddr,
    /// The address of this machine to which the gateway sends.
    pub local: IpAddr,
}

/// What the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram. It may be lost.
    Send(AddressPair, Vec<u8>),
    /// Write an event to the event log.
    Event(Event),
    /// A gateway reported its load.
    Load(GatewayId, Load),
    /// Hosts that send to one gateway only may send to this one, or no longer.
    Serves(GatewayId, bool),
    /// A gateway has the cluster's plan at this revision, which is newer than the database's: the plan must
    /// be reissued with a higher one.
    ReissuePlan(ClusterId, u64),
}

/// An event of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A vIP has another owner.
    Moved {
        /// The cluster of the vIP.
        cluster: ClusterId,
        /// Address of the vIP.
        vip: IpAddr,
        /// The previous owner; `None` if there was no owner.
        from: Option<GatewayId>,
        /// The new owner.
        to: GatewayId,
        /// True if the controller decided it, false if gateways decided and the controller confirms.
        decided: bool,
    },
    /// Neither the controller nor another gateway receives its heartbeats.
    Failed(ClusterId, GatewayId),
    /// A gateway that had failed sends heartbeats again.
    Returned(ClusterId, GatewayId),
    /// A draining gateway owns no vIP any more.
    Drained(ClusterId, GatewayId),
}

/// Numbers of rejected datagrams by reason, for the metrics.
pub type RefusedCounts = BTreeMap<&'static str, u64>;

#[derive(Debug)]
struct ClusterRuntime {
    /// `None` until a message of a gateway of the cluster arrives. A replica to which no gateway sends knows
    /// nothing of the cluster.
    machine: Option<Controller>,
    plan: ClusterPlan,
    keys: KeyRing,
    addresses: BTreeMap<GatewayId, AddressPair>,
    due_us: u64,
    /// When a reissue of the plan was last requested.
    reissue_requested_us: Option<u64>,
}

/// All clusters, and what they share.
#[derive(Debug)]
pub struct Clusters {
    incarnation: u64,
    codec: MessageCodec,
    /// The keys of all clusters, to open datagrams of any.
    keys: KeyRing,
    runtimes: BTreeMap<ClusterId, ClusterRuntime>,
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

fn ownership_plan(plan: &ClusterPlan) -> OwnershipPlan {
    let slot = |slot: u8| VipId::new(slot).ok();
    let member =
        |member: &sluice_southbound::Member| Member { id: member.gateway, draining: member.draining };
    let config = Config {
        revision: plan.revision,
        vips: plan.vips.iter().filter_map(|vip| slot(vip.slot)).collect(),
        members: plan.members.iter().map(member).collect(),
        hello_interval_ms: plan.hello_interval_ms,
    };
    let preferred_owners =
        plan.preferred_owners.iter().filter_map(|home| Some((slot(home.slot)?, home.gateway)));
    OwnershipPlan { config, preferred_owners: preferred_owners.collect() }
}

impl Clusters {
    /// The state of a controller that starts. `boot` is a random number of this run.
    pub fn new(boot: BootId, now: Now) -> Self {
        Self {
            incarnation: now.wall_ms,
            codec: MessageCodec::new(Node::Controller, boot, now.wall_ms),
            keys: KeyRing::default(),
            runtimes: BTreeMap::new(),
            refused: RefusedCounts::new(),
            actions: Vec::new(),
        }
    }

    /// Numbers of rejected datagrams by reason.
    pub fn refused(&self) -> &RefusedCounts {
        &self.refused
    }

    /// When [`Clusters::tick`] is due; `None` if no cluster is active.
    pub fn due_us(&self) -> Option<u64> {
        self.runtimes.values().filter(|runtime| runtime.machine.is_some()).map(|runtime| runtime.due_us).min()
    }

    /// Applies a changed configuration: clusters, vIPs, members, preferred owners and keys.
    pub fn apply_updates(&mut self, now: Now, updates: &ClusterUpdates) -> Vec<Action> {
        self.runtimes.retain(|id, _| updates.contains_key(id));
        self.keys = ring(updates.values().flat_map(|update| &update.keys));
        for (&id, update) in updates {
            let Some(plan) = &update.cluster else { continue };
            let keys = ring(update.keys.iter());
            let runtime = self.runtimes.entry(id).or_insert_with(|| ClusterRuntime {
                machine: None,
                plan: plan.clone(),
                keys: KeyRing::default(),
                addresses: BTreeMap::new(),
                due_us: now.mono_us,
                reissue_requested_us: None,
            });
            runtime.keys = keys;
            runtime.plan = plan.clone();
            runtime
                .addresses
                .retain(|gateway, _| plan.members.iter().any(|member| member.gateway == *gateway));
            self.handle_input(now, id, ControllerInput::Plan(ownership_plan(plan)));
        }
        std::mem::take(&mut self.actions)
    }

    /// A datagram arrived.
    pub fn receive(&mut self, now: Now, pair: AddressPair, packet: &[u8]) -> Vec<Action> {
        match self.open(now, pair.local, packet) {
            Ok(message) => {
                let id = message.cluster;
                if let Some(runtime) = self.runtimes.get_mut(&id)
                    && let Node::Gateway(from) = message.from
                {
                    if runtime.plan.members.iter().any(|member| member.gateway == from) {
                        runtime.addresses.insert(from, pair);
                    }
                    if runtime.machine.is_none() {
                        self.start(now, id);
                    }
                }
                let from = message.from;
                self.handle_input(now, id, ControllerInput::Received(message));
                if let Node::Gateway(from) = from {
                    self.check_plan(now, id, from);
                }
            }
            Err(reason) => *self.refused.entry(reason).or_default() += 1,
        }
        std::mem::take(&mut self.actions)
    }

    /// Requests a reissue if a gateway has a newer plan than the database, which may have been restored from
    /// a backup. Gateways do not accept older plans.
    fn check_plan(&mut self, now: Now, id: ClusterId, from: GatewayId) {
        let Some(runtime) = self.runtimes.get_mut(&id) else { return };
        let known =
            runtime.machine.as_ref().and_then(|machine| machine.report(from)).map(|report| report.config);
        let due = runtime
            .reissue_requested_us
            .is_none_or(|at_us| now.mono_us.saturating_sub(at_us) >= REISSUE_INTERVAL_US);
        if let Some(known) = known.filter(|known| *known > runtime.plan.revision && due) {
            runtime.reissue_requested_us = Some(now.mono_us);
            self.actions.push(Action::ReissuePlan(id, known));
        }
    }

    /// The time of [`Clusters::due_us`] has come.
    pub fn tick(&mut self, now: Now) -> Vec<Action> {
        let due = self
            .runtimes
            .iter()
            .filter(|(_, runtime)| runtime.machine.is_some() && runtime.due_us <= now.mono_us);
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.handle_input(now, id, ControllerInput::Timer);
        }
        std::mem::take(&mut self.actions)
    }

    fn open(&mut self, now: Now, local: IpAddr, packet: &[u8]) -> Result<Message, &'static str> {
        let opened = self.codec.open(&self.keys, now.wall_ms, local, packet);
        let (message, key) = opened.map_err(|refused: Refused| refused.name())?;
        match self.runtimes.get(&message.cluster) {
            // A key authenticates messages for its own cluster only.
            Some(runtime) if runtime.keys.get(key).is_some() => Ok(message),
            Some(_) => Err("foreign_key"),
            None => Err("unknown_cluster"),
        }
    }

    fn start(&mut self, now: Now, id: ClusterId) {
        let Some(runtime) = self.runtimes.get_mut(&id) else { return };
        let saved = (ownership_plan(&runtime.plan), Table::default());
        let machine = Controller::new(id, Params::default(), self.incarnation, saved, now.mono_us);
        runtime.machine = Some(machine);
        self.handle_input(now, id, ControllerInput::Timer);
    }

    fn handle_input(&mut self, now: Now, id: ClusterId, input: ControllerInput) {
        let Some(runtime) = self.runtimes.get_mut(&id) else { return };
        let Some(machine) = &mut runtime.machine else { return };
        for output in machine.handle(now.mono_us, input) {
            match output {
                ControllerOutput::Send { to, message } => {
                    let Some(&pair) = runtime.addresses.get(&to) else { continue };
                    match self.codec.seal(
                        &runtime.keys,
                        now.wall_ms,
                        pair.remote.ip().to_canonical(),
                        &message,
                    ) {
                        Ok(packet) => self.actions.push(Action::Send(pair, packet)),
                        Err(_) => *self.refused.entry("no_key").or_default() += 1,
                    }
                }
                ControllerOutput::SetTimer { at_us } => runtime.due_us = at_us,
                ControllerOutput::Moved { vip, from, claim, decided } => {
                    let planned = runtime.plan.vips.iter().find(|planned| planned.slot == vip.get());
                    if let Some(vip) = planned.map(|planned| planned.address) {
                        let event = Event::Moved { cluster: id, vip, from, to: claim.owner, decided };
                        self.actions.push(Action::Event(event));
                    }
                }
                ControllerOutput::Failed(gateway) => {
                    self.actions.push(Action::Event(Event::Failed(id, gateway)));
                }
                ControllerOutput::Returned(gateway) => {
                    self.actions.push(Action::Event(Event::Returned(id, gateway)));
                }
                ControllerOutput::Serves(gateway, serves) => {
                    self.actions.push(Action::Serves(gateway, serves));
                }
                ControllerOutput::Load(gateway, load) => self.actions.push(Action::Load(gateway, load)),
                ControllerOutput::Drained(gateway) => {
                    self.actions.push(Action::Event(Event::Drained(id, gateway)));
                }
            }
        }
    }

    /// Owners of vIPs and states of gateways of each cluster, for the API.
    pub fn views(&self, now: Now) -> BTreeMap<ClusterId, ClusterView> {
        self.runtimes.iter().map(|(id, runtime)| (*id, view(runtime, now))).collect()
    }
}

fn view(runtime: &ClusterRuntime, now: Now) -> ClusterView {
    let Some(machine) = &runtime.machine else { return ClusterView::default() };
    let address =
        |slot: VipId| runtime.plan.vips.iter().find(|vip| vip.slot == slot.get()).map(|vip| vip.address);
    let owners = machine.table().iter().filter_map(|(slot, claim)| Some((address(slot)?, claim.owner)));
    let gateway = |member: &sluice_southbound::Member| {
        let id = member.gateway;
        let report = machine.report(id);
        let holds = report.map(|report| report.holds).unwrap_or_default();
        let heard = machine.is_reachable(id, now.mono_us);
        let readiness = report.map(|report| report.tables.readiness());
        let state = match report.map(|report| report.health) {
            _ if machine.has_failed(id) => GatewayState::Failed,
            // It is silent, but not for long, or its peers receive its heartbeats.
            _ if !heard => GatewayState::Unreachable,
            Some(Health::Ready) if member.draining && machine.is_drained(id) => GatewayState::Drained,
            Some(Health::Ready) if member.draining => GatewayState::Draining,
            Some(Health::Ready) if readiness == Some(Readiness::Partial) => GatewayState::Loading,
            Some(Health::Ready) if readiness == Some(Readiness::Behind) => GatewayState::Behind,
            Some(Health::Ready) => GatewayState::Ready,
            Some(Health::Isolated) => GatewayState::Isolated,
            Some(Health::Starting) | None => GatewayState::Starting,
        };
        (id, GatewayView { state, answers_for: holds.iter().filter_map(address).collect() })
    };
    ClusterView { owners: owners.collect(), gateways: runtime.plan.members.iter().map(gateway).collect() }
}
