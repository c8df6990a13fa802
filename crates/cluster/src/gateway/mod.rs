//! The state machine of a gateway.
//!
//! Each call takes one input and then does the same steps: decide which peers are alive and whether any node
//! answers this gateway (`liveness.rs`, `peer.rs`), take over, keep or hand over vIPs and announce them
//! (`ownership.rs`), and send what changed (`send.rs`).
//!
//! Health of the gateway, which it reports in each hello and heartbeat:
//!
//! ```text
//!      agent starts, or
//!      becomes a member
//!             |
//!             v        `startup_us` is over
//!         STARTING -----------------------------> READY ---------------------------+
//!          ^  ^                                     |                              |
//!          |  |  own clock jumped by more than      |                              |
//!          |  |  `silence_us`: it was paused        |                              |
//!          |  +-------------------------------------+                              |
//!          |                                      no peer answers; for `contact_us` |
//!          |   a peer, the controller or          neither controller nor witness    |
//!          |   a witness answers again            answers either                    v
//!          +------------------------------------------------------------------- ISOLATED
//! ```
//!
//! A gateway takes over and announces vIPs only while it is READY and at least one node answers it. It takes over from
//! gateways that are dead, isolated, or have worse tables than it has (`crate::readiness`). In every
//! state it keeps the vIPs that it holds until their new owner is known. An ISOLATED gateway that was paused
//! is STARTING as well.
//!
//! Timers, all served by the one timer that the gateway requests: hello, heartbeat, silence limit of each
//! peer, end of the start-up phase, contact check, takeover of orphaned vIPs, handover, and announcements.

mod liveness;
mod ownership;
mod peer;
mod send;

#[cfg(test)]
mod tests;

use crate::message::{Body, Config, Health, Load, Message, Node, Pulse, Report};
use crate::params::{ActiveParams, Params};
use crate::readiness::{OwnTables, Readiness, TableReport};
use crate::sender::{Arrival, SenderState};
use crate::table::{Claim, Table};
use crate::vip::{VIPS_MAX, VipId, VipSet};
use peer::{Peer, Received};
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;

/// Largest accepted revision of a configuration that a peer forwards. The controller must be able to make a
/// newer one, whatever a member sends.
const CONFIG_REVISION_MAX: u64 = 1 << 59;

/// An event that a gateway reacts to.
#[derive(Clone, Debug)]
pub enum Input {
    /// The time requested by [`Output::SetTimer`] has come. Also the first input after the start.
    Timer,
    /// An authenticated message arrived.
    Received(Message),
    /// A witness on the underlay answered a probe.
    Witness {
        /// Token of the [`Output::ProbeWitness`].
        token: u64,
    },
    /// A gateway answered an [`Output::ProbeGateway`].
    GatewayAnswered {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A configuration that did not come in a message of the cluster: from the southbound stream or from
    /// disk.
    Config(Config),
    /// Load of this gateway, to be sent to the controller.
    Load(Load),
    /// The forwarding tables of this gateway contain this revision of the database completely; 0 if they contain none.
    Tables {
        /// The revision.
        revision: u64,
    },
    /// This gateway has copies of all sessions of NAT gateways whose vIPs other gateways own, or not. Until this input says so,
    /// it does not have them.
    Copies {
        /// It has them.
        complete: bool,
    },
    /// A datagram came from the address of a member and could not be opened with this node's keys and clock.
    Unreadable,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Announce on the underlay that the vIP is here, and answer for it from now on.
    Announce {
        /// The vIP.
        vip: VipId,
        /// Reason for the announcement.
        reason: AnnounceReason,
    },
    /// Stop answering for the vIP.
    Withdraw {
        /// The vIP.
        vip: VipId,
    },
    /// Send a message to the controller or to a gateway. It may get lost.
    Send {
        /// Receiver of the message.
        to: Node,
        /// The message.
        message: Message,
    },
    /// Probe a witness: a node on the underlay that is not a gateway, such as the next hop. Its answer must
    /// travel on the packet path and is reported as [`Input::Witness`].
    ProbeWitness {
        /// Number of the probe, repeated in the answer.
        token: u64,
        /// An answer that takes longer does not count.
        within_us: u64,
    },
    /// Probe a gateway whose messages do not arrive. Its answer must travel on the packet path and is reported as
    /// [`Input::GatewayAnswered`].
    ProbeGateway {
        /// The gateway.
        gateway: GatewayId,
        /// An answer that takes longer does not count.
        within_us: u64,
    },
    /// Pass [`Input::Timer`] at this time. Replaces the time requested before.
    SetTimer {
        /// Time by this node's clock.
        at_us: u64,
    },
    /// Report an incident to the operator. Some incidents also require an action of the node, see
    /// [`Incident`].
    Incident(Incident),
}

/// An event that the operator and the rest of the node may need to know about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// This gateway is draining, and no longer owns or answers for any vIP.
    Drained,
    /// A peer was believed dead but was alive.
    FalseAlarm {
        /// The peer.
        peer: GatewayId,
        /// Its silence limit from now on.
        silence_us: u64,
    },
    /// This gateway's agent was not scheduled for longer than the silence limit.
    Paused {
        /// Time since it was last scheduled.
        for_us: u64,
    },
    /// No node answers this gateway.
    Isolated,
    /// The state of this gateway's forwarding tables changed.
    Tables(Readiness),
    /// This gateway was isolated and is ready again. The node must resolve next hops again that failed in the
    /// meantime.
    Reconnected,
}

/// Reason for which a vIP is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnounceReason {
    /// The table names this gateway: the controller moved the vIP here, or it was here before.
    Assigned,
    /// This gateway took the vIP over from a gateway that failed.
    TakenOver {
        /// Previous owner.
        from: GatewayId,
    },
    /// Another gateway also answered for the vIP and has stopped.
    RivalStopped,
    /// A gateway that was believed dead is back and has not restarted: the network may have been split, and
    /// other gateways may have announced the vIP on the other side.
    Rejoined,
    /// Repetition, because an earlier announcement may have been lost.
    Repeat,
    /// Periodic refresh, because switches forget addresses.
    Refresh,
    /// A live gateway is cut off from this one. It may answer for the vIP as well, and switches learn from its answers.
    Contested,
    /// This gateway was paused or isolated and still owns the vIP.
    Resumed,
}

/// The other gateways of the cluster, by whether packets go both ways between them and this gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contacts {
    /// Those that this gateway reaches, and that reach it.
    pub mutual: Vec<GatewayId>,
    /// Those of these that install the first packets of sessions and pass them on: they are ready, have current tables, and translate.
    pub ring: Vec<GatewayId>,
    /// Those that are alive, as far as this gateway knows, and that it does not reach or that do not reach it.
    pub cut_off: Vec<GatewayId>,
    /// How often packets stopped to go both ways between this gateway and each other one.
    pub interruptions: BTreeMap<GatewayId, u64>,
    /// The others leave this gateway out of the ring, because it is not ready or its tables are not current.
    pub is_left_out: bool,
    /// How often that began.
    pub times_left_out: u64,
    /// Those that have reported that they do not translate.
    pub without_nat: Vec<GatewayId>,
    /// All of them, dead ones included, have reported that they follow this gateway's configuration, or a newer one.
    pub all_follow: bool,
    /// One of the first kind is ready, translates, and has current tables and copies of all sessions: no session ends if this gateway dies.
    pub has_heir: bool,
}

/// State of one vIP, in addition to its claim.
#[derive(Clone, Debug, Default)]
struct VipState {
    /// Time at which another node sent the claim.
    learned_us: Option<u64>,
    /// Number of recent claims with which a gateway that is believed dead took the vIP from this one.
    contests: u32,
    contested_us: u64,
    /// Time since which its owner is dead or isolated.
    orphaned_us: Option<u64>,
    /// Time at which this gateway checks again whether to take the orphaned vIP over.
    takeover_us: Option<u64>,
    /// Time since which the vIP is held only until its new owner answers for it.
    handover_since_us: Option<u64>,
    /// Time of the next announcement.
    announce_us: Option<u64>,
    repeats_left: u8,
}

/// No peer that this gateway reaches reports that it reaches this gateway. The check decides whether the
/// peers or this gateway failed.
#[derive(Clone, Debug)]
struct ContactCheck {
    since_us: u64,
    /// Answers to this probe and to later ones count.
    first_token: u64,
    answered_us: Option<u64>,
    /// Time of the next probe.
    probe_us: u64,
}

/// Content of the last hello. Changes of it are sent at once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LastSent {
    reachable: Vec<GatewayId>,
    holds: VipSet,
    health: Health,
    readiness: Readiness,
    copies: bool,
}

/// The state machine of one gateway.
#[derive(Clone, Debug)]
pub struct Gateway {
    own: GatewayId,
    cluster: ClusterId,
    params: ActiveParams,
    incarnation: u64,
    seq: u64,
    config: Config,
    table: Table,
    peers: Vec<Peer>,
    controller: SenderState,
    /// Time at which claims were last sent to the controller because its digest differed.
    controller_synced_us: Option<u64>,
    vips: Vec<VipState>,
    /// vIPs that this gateway answers for.
    holds: VipSet,
    /// vIPs that a peer has stopped answering for, until this call has decided whether this gateway may announce.
    released: VipSet,
    health: Health,
    tables: OwnTables,
    /// State of the tables of the last [`Incident::Tables`].
    readiness_reported: Readiness,
    /// The others may pass first packets of sessions on to this gateway, and how often that ended.
    is_in_ring: bool,
    times_left_out: u64,
    /// At least one node answers this gateway, as far as it knows.
    has_contact: bool,
    startup_until_us: u64,
    /// Silence of peers counts from this time on.
    silence_since_us: u64,
    contact_check: Option<ContactCheck>,
    /// The gateway was isolated, and its return was not reported yet.
    was_isolated: bool,
    /// Time of the last datagram of a member that could not be opened.
    unreadable_us: Option<u64>,
    /// Time at which all vIPs are announced because the network may have been split.
    reannounce_us: Option<u64>,
    /// Time of the last such announcement.
    reannounced_us: Option<u64>,
    /// While a live gateway is cut off: since when, or the time of the last announcement for this reason.
    contested_us: Option<u64>,
    last_us: u64,
    next_hello_us: u64,
    next_heartbeat_us: u64,
    timer_us: Option<u64>,
    last_sent: Option<LastSent>,
    drained_reported: bool,
    /// Claims of this gateway that were not sent yet.
    new_claims: Vec<(VipId, Claim)>,
    outputs: Vec<Output>,
}

impl Gateway {
    /// Makes a gateway that has just started. `incarnation` must be larger than after earlier starts; the
    /// time of the start is suitable. `saved` is the configuration and table that it saved before, or empty.
    /// The gateway begins in its start-up phase. Pass [`Input::Timer`] first.
    #[must_use]
    pub fn new(
        own: GatewayId,
        cluster: ClusterId,
        params: Params,
        incarnation: u64,
        saved: (Config, Table),
        now_us: u64,
    ) -> Self {
        let (config, table) = saved;
        let mut gateway = Self {
            own,
            cluster,
            incarnation,
            seq: 0,
            config: Config::default(),
            table,
            peers: Vec::new(),
            controller: SenderState::default(),
            controller_synced_us: None,
            vips: vec![VipState::default(); VIPS_MAX],
            holds: VipSet::EMPTY,
            released: VipSet::EMPTY,
            health: Health::Starting,
            tables: OwnTables::default(),
            readiness_reported: Readiness::Partial,
            is_in_ring: false,
            times_left_out: 0,
            has_contact: false,
            startup_until_us: now_us,
            silence_since_us: now_us,
            contact_check: None,
            was_isolated: false,
            unreadable_us: None,
            reannounce_us: None,
            reannounced_us: None,
            contested_us: None,
            last_us: now_us,
            next_hello_us: now_us,
            next_heartbeat_us: now_us,
            timer_us: None,
            last_sent: None,
            drained_reported: false,
            new_claims: Vec::new(),
            outputs: Vec::new(),
            params: ActiveParams::new(params),
        };
        gateway.set_config(config);
        gateway.enter_startup(now_us);
        gateway
    }

    /// Adds vIPs that the node has continued to answer for while its agent was not running: the packet
    /// programs outlive the agent. They are kept or handed over as if this run of the agent had taken them.
    #[must_use]
    pub fn with_held_vips(mut self, vips: VipSet) -> Self {
        self.holds = vips;
        self
    }

    /// Sets the revision of the forwarding tables that the node has at the start, as [`Input::Tables`] does later.
    #[must_use]
    pub fn with_tables(mut self, revision: u64) -> Self {
        self.tables.set_revision(revision);
        self
    }

    /// Sets whether the gateway has copies of all sessions at the start, as [`Input::Copies`] does later.
    #[must_use]
    pub fn with_copies(mut self, complete: bool) -> Self {
        self.tables.set_copies(complete);
        self
    }

    /// Sets whether the gateway translates for NAT gateways. That does not change while it runs.
    #[must_use]
    pub fn with_translation(mut self, translates: bool) -> Self {
        self.tables.set_translates(translates);
        self
    }

    /// Handles an input at `now_us` of this node's clock. The clock must advance while the process is not
    /// scheduled (`CLOCK_BOOTTIME`, not CPU time).
    pub fn handle(&mut self, now_us: u64, input: Input) -> Vec<Output> {
        let now_us = now_us.max(self.last_us);
        // The requested timers are closer together, so the agent was not scheduled, and peers may have taken
        // its vIPs.
        let for_us = now_us - self.last_us;
        if for_us > self.params.silence_us {
            self.outputs.push(Output::Incident(Incident::Paused { for_us }));
            self.enter_startup(now_us);
        }
        self.last_us = now_us;
        self.params.advance(now_us);
        match input {
            Input::Timer => self.timer_us = None,
            Input::Received(message) => self.receive(now_us, message),
            Input::Witness { token } => self.record_answer(now_us, token),
            Input::GatewayAnswered { gateway } => {
                if let Some(at) = self.peer_index(gateway) {
                    self.peers[at].answered_us = Some(now_us);
                }
            }
            Input::Config(config) => self.set_config(config),
            Input::Load(load) => self.send_load(load),
            Input::Tables { revision } => self.tables.set_revision(revision),
            Input::Copies { complete } => self.tables.set_copies(complete),
            Input::Unreadable => self.unreadable_us = Some(now_us),
        }
        self.update_peers(now_us);
        self.check_contact(now_us);
        self.leave_startup_if_due(now_us);
        self.announce_released(now_us);
        self.compare_tables(now_us);
        self.note_contacts(now_us);
        self.update_ownership(now_us);
        self.announce_due(now_us);
        self.send_updates(now_us);
        std::mem::take(&mut self.outputs)
    }

    /// Returns the vIPs that this gateway answers for.
    #[must_use]
    pub fn holds(&self) -> VipSet {
        self.holds
    }

    /// Returns the owners of all vIPs as this gateway knows them. The caller should save them for the next
    /// start.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the configuration of the cluster as this gateway knows it.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns whether other nodes may rely on this gateway, in its own judgment.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health
    }

    /// Returns the state of this gateway's forwarding tables.
    #[must_use]
    pub fn tables(&self) -> TableReport {
        self.tables.report()
    }

    /// Forgets what was received from other nodes, and decides nothing until the start-up phase is over.
    fn enter_startup(&mut self, now_us: u64) {
        self.health = Health::Starting;
        self.has_contact = false;
        self.startup_until_us = now_us + self.params.startup_us;
        self.silence_since_us = now_us;
        self.contact_check = None;
        self.peers.iter_mut().for_each(Peer::forget);
        self.controller.received_us = None;
        for vip in &mut self.vips {
            (vip.orphaned_us, vip.takeover_us) = (None, None);
            (vip.handover_since_us, vip.announce_us) = (None, None);
        }
    }

    fn leave_startup_if_due(&mut self, now_us: u64) {
        if self.health != Health::Starting || now_us < self.startup_until_us {
            return;
        }
        self.health = Health::Ready;
        // If the table was out of date, a peer has sent newer claims by now.
        for vip in self.holds.iter() {
            self.vips[vip.index()].announce_us = Some(now_us);
            self.vips[vip.index()].repeats_left = self.params.repeats + 1;
        }
        // The gateway may announce only while a node answers it.
        self.check_contact(now_us);
    }

    fn set_config(&mut self, mut config: Config) {
        config.sort();
        if config.revision <= self.config.revision {
            return;
        }
        let mut old = std::mem::take(&mut self.peers);
        for member in config.members.iter().filter(|member| member.id != self.own) {
            let known = old.iter().position(|peer| peer.id == member.id);
            let mut peer = known.map_or_else(|| Peer::new(member.id, self.last_us), |at| old.swap_remove(at));
            peer.draining = member.draining;
            self.peers.push(peer);
        }
        let member = |config: &Config, own| config.member(own).is_some();
        let joined = member(&config, self.own) && !member(&self.config, self.own);
        if joined {
            self.params.set(config.hello_interval_ms);
        } else if config.hello_interval_ms != self.config.hello_interval_ms {
            self.params.change(self.last_us, config.hello_interval_ms);
            // The pending intervals may be longer than the new ones, so hello and heartbeat are sent at once.
            (self.next_hello_us, self.next_heartbeat_us) = (self.last_us, self.last_us);
        }
        self.config = config;
        self.drained_reported = false;
        if joined {
            // Members do not send to a gateway that is not a member, so it does not know which of them are
            // alive.
            self.enter_startup(self.last_us);
        }
    }

    fn peer_index(&self, id: GatewayId) -> Option<usize> {
        self.peers.binary_search_by_key(&id, |peer| peer.id).ok()
    }

    fn receive(&mut self, now_us: u64, message: Message) {
        if message.cluster != self.cluster || message.from == Node::Gateway(self.own) {
            return;
        }
        let from = message.from;
        let fresh = match from {
            Node::Controller => {
                let limit_us = self.params.controller_limit_us();
                self.controller.record(now_us, message.incarnation, message.seq, limit_us) != Arrival::Stale
            }
            Node::Gateway(id) => match self.peer_index(id) {
                Some(at) => {
                    let (incarnation, seq) = (message.incarnation, message.seq);
                    let received = self.peers[at].record(now_us, incarnation, seq, &self.params);
                    if received == Received::FalseAlarm {
                        self.report_false_alarm(at);
                        self.schedule_reannouncement(now_us);
                    }
                    received != Received::Stale
                }
                None => return self.receive_from_nonmember(id, &message.body),
            },
        };
        match message.body {
            // Claims and configurations are merged, so a stale message does no harm.
            Body::Claims(claims) => self.merge_claims(now_us, claims),
            Body::Config(config) if config.revision <= CONFIG_REVISION_MAX => self.set_config(config),
            Body::Hello(report) if fresh => self.receive_hello(now_us, from, report),
            Body::Pulse(pulse) if fresh => self.receive_pulse(now_us, &pulse),
            Body::Probe if from == Node::Controller => self.next_heartbeat_us = now_us,
            _ => {}
        }
    }

    /// Handles a message of a gateway that is not a member of this gateway's configuration. If the sender
    /// knows a newer configuration, it sends that when it sees this gateway's old revision. If the sender was
    /// removed and does not know it, this gateway sends it the configuration: the controller sends to members
    /// only, and without hellos the sender would believe all others dead.
    fn receive_from_nonmember(&mut self, id: GatewayId, body: &Body) {
        if let Body::Hello(report) = body
            && report.config < self.config.revision
        {
            self.send_missing(Node::Gateway(id), report.config, report.digest);
        }
        if let Body::Hello(report) = body
            && report.config > self.config.revision
        {
            let hello = self.message(Body::Hello(self.report(Vec::new())));
            self.outputs.push(Output::Send { to: Node::Gateway(id), message: hello });
        }
        if let Body::Config(config) = body
            && config.member(id).is_some()
            && config.revision <= CONFIG_REVISION_MAX
        {
            self.set_config(config.clone());
        }
    }

    fn receive_hello(&mut self, now_us: u64, from: Node, report: Report) {
        let Node::Gateway(id) = from else { return };
        let Some(at) = self.peer_index(id) else { return };
        let (config, digest) = (report.config, report.digest);
        for vip in self.peers[at].set_report(report).iter() {
            self.released.insert(vip);
        }
        let due = self.peers[at].is_sync_due(now_us, self.params.hello_us);
        if due && self.send_missing(from, config, digest) {
            self.peers[at].synced_us = Some(now_us);
        }
    }

    fn receive_pulse(&mut self, now_us: u64, pulse: &Pulse) {
        // The controller's messages do not use the packet path. While the controller reaches other gateways,
        // its answer does not show whose underlay is broken; only a witness on the underlay does.
        let reaches_others = self.peers.iter().any(|peer| pulse.reachable.contains(&peer.id));
        if pulse.reachable.contains(&self.own) && !reaches_others {
            self.record_answer(now_us, pulse.echo);
        }
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            if pulse.reachable.contains(&peer.id)
                && peer.record_controller_report(now_us, self.silence_since_us, &self.params)
            {
                self.report_false_alarm(at);
            }
        }
        let due = self.controller_synced_us.is_none_or(|at| now_us - at >= self.params.hello_us);
        if due && self.send_missing(Node::Controller, u64::MAX, pulse.digest) {
            self.controller_synced_us = Some(now_us);
        }
    }

    fn report_false_alarm(&mut self, at: usize) {
        let peer = &self.peers[at];
        let silence_us = self.params.silence_after_us(peer.false_alarms);
        self.outputs.push(Output::Incident(Incident::FalseAlarm { peer: peer.id, silence_us }));
    }

    fn merge_claims(&mut self, now_us: u64, claims: Vec<(VipId, Claim)>) {
        for (vip, claim) in claims {
            let lost = self.table.get(vip).is_some_and(|old| old.owner == self.own);
            if !self.table.merge(vip, claim) {
                continue;
            }
            let believed_dead = self.peer_index(claim.owner).is_some_and(|at| self.peers[at].dead);
            let state = &mut self.vips[vip.index()];
            state.learned_us = Some(now_us);
            if now_us - state.contested_us > self.params.forgive_us {
                state.contests = 0;
            }
            if lost && believed_dead {
                state.contests = state.contests.saturating_add(1);
                state.contested_us = now_us;
            }
        }
    }
}
