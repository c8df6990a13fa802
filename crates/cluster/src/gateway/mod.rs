//! A gateway's side.
//!
//! Every call does the same three things: take the input in, judge what it means
//! (`judge.rs`: who is alive, am I in contact; `own.rs`: what I take, keep, give
//! way to), and say what changed (`speak.rs`).

mod judge;
mod own;
mod peer;
mod speak;
pub(crate) use speak::claims_in_parts;

#[cfg(test)]
mod tests;

use crate::message::{Body, Config, Load, Message, Node, Pulse, Report, Standing};
use crate::params::{Paced, Params};
use crate::source::{Arrival, Source};
use crate::table::{Claim, Table};
use crate::vip::{VIPS_MAX, VipId, VipSet};
use peer::{Noted, Peer};
use sluice_types::{ClusterId, GatewayId};

/// A configuration that a peer hands on is no newer than this: the controller must be able to make one that
/// is, whatever a member says.
const CONFIG_REVISION_MAX: u64 = 1 << 59;

/// What happens to a gateway.
#[derive(Clone, Debug)]
pub enum Input {
    /// The time asked for by [`Output::SetTimer`] has come; also the first input of all.
    Timer,
    /// A message came, authenticated.
    Received(Message),
    /// Something on the underlay that is no gateway answered the probe of that number.
    Witness {
        /// Of [`Output::ProbeWitness`].
        token: u64,
    },
    /// A configuration from elsewhere than the cluster's messages: the node's stream, or its own disk.
    Config(Config),
    /// What there is to do here, for the controller.
    Load(Load),
    /// Something came from where a member of the cluster is, and could not be opened with this node's keys
    /// and clock.
    Unreadable,
}

/// What a gateway wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Tell the underlay that the vIP is here, and answer for it from now on.
    Announce {
        /// Which.
        vip: VipId,
        /// Why now.
        reason: Reason,
    },
    /// Answer for it no more.
    Withdraw {
        /// Which.
        vip: VipId,
    },
    /// Send it to the controller or to a gateway; may get lost.
    Send {
        /// To whom.
        to: Node,
        /// What.
        message: Message,
    },
    /// Ask something on the underlay that is no gateway (the next hop, the switch) for an answer by the
    /// path that packets take, and report the answer as [`Input::Witness`].
    ProbeWitness {
        /// To be repeated in the answer.
        token: u64,
        /// An answer that comes later than so long after counts for nothing.
        within_us: u64,
    },
    /// Call with [`Input::Timer`] at that time; replaces the time set before.
    SetTimer {
        /// By this node's clock.
        at_us: u64,
    },
    /// For the operator; what the node's part in it is, the incident says.
    Happened(Incident),
}

/// What an operator may want to know of, and the rest of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// This gateway, which was to be drained, owns and answers for nothing any more.
    Drained,
    /// A peer that was believed dead was not.
    FalseAlarm {
        /// Which.
        peer: GatewayId,
        /// For so long it may be silent from now on.
        silence_us: u64,
    },
    /// This gateway was not run when it asked to be.
    Paused {
        /// Since it was last run.
        for_us: u64,
    },
    /// Nobody answers this gateway.
    CutOff,
    /// It was cut off, and may be relied on again: next hops that failed meanwhile are to be asked anew.
    Reconnected,
}

/// Why a vIP is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The table names this gateway: the controller moved the vIP here, or it was here before.
    Assigned,
    /// Taken from a gateway that failed.
    TakenOver {
        /// Its owner until now.
        from: GatewayId,
    },
    /// Another gateway answered for it too, and stopped.
    RivalGone,
    /// A gateway that was believed dead, and had not restarted, is back: the network may have been split,
    /// and others may have announced it on the other side.
    Rejoined,
    /// In case an earlier announcement was lost.
    Repeat,
    /// Nothing changed; switches forget.
    Refresh,
    /// This gateway was paused or cut off, and still owns it.
    Resumed,
}

/// What is kept for a vIP beside its claim.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// When the claim came from another node.
    learned_us: Option<u64>,
    /// How often it was lost lately to a gateway that this one believes dead.
    contests: u32,
    contested_us: u64,
    /// Since when it has no usable owner.
    orphan_us: Option<u64>,
    /// When this gateway shall look at the orphan again.
    due_us: Option<u64>,
    /// Since when it is kept for its new owner.
    yield_us: Option<u64>,
    /// Next announcement.
    announce_us: Option<u64>,
    repeats_left: u8,
}

/// No peer is heard that hears this gateway: is it the others, or is it this one?
#[derive(Clone, Debug)]
struct Alone {
    since_us: u64,
    /// Answers to probes from this one on count.
    first_token: u64,
    answered_us: Option<u64>,
    probe_us: u64,
}

/// A gateway of a cluster.
#[derive(Clone, Debug)]
pub struct Gateway {
    own: GatewayId,
    cluster: ClusterId,
    params: Paced,
    incarnation: u64,
    seq: u64,
    config: Config,
    table: Table,
    peers: Vec<Peer>,
    controller: Source,
    /// When claims were last sent to the controller because its digest differed.
    controller_synced_us: Option<u64>,
    slots: Vec<Slot>,
    holds: VipSet,
    standing: Standing,
    /// Whether anybody answers this gateway, as far as it knows.
    contact: bool,
    listen_until_us: u64,
    /// Silence of peers counts from here.
    since_us: u64,
    alone: Option<Alone>,
    /// It was cut off, and nobody was told yet that it is no more.
    was_cut_off: bool,
    /// When a member last said what could not be read.
    unreadable_us: Option<u64>,
    /// When everything shall be announced because the network may have been split, and when it last was.
    rejoin_us: Option<u64>,
    rejoined_us: Option<u64>,
    last_us: u64,
    next_hello_us: u64,
    next_heartbeat_us: u64,
    timer_us: Option<u64>,
    told: Option<(Vec<GatewayId>, VipSet, Standing)>,
    told_drained: bool,
    claimed: Vec<(VipId, Claim)>,
    outputs: Vec<Output>,
}

impl Gateway {
    /// A gateway that has just started. `incarnation` shall be larger than in its earlier lives (the time
    /// of the start will do); `config` and `table` are what it saved in an earlier life, or empty. It
    /// listens first; hand it [`Input::Timer`] to begin.
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
            controller: Source::default(),
            controller_synced_us: None,
            slots: vec![Slot::default(); VIPS_MAX],
            holds: VipSet::EMPTY,
            standing: Standing::Listening,
            contact: false,
            listen_until_us: now_us,
            since_us: now_us,
            alone: None,
            was_cut_off: false,
            unreadable_us: None,
            rejoin_us: None,
            rejoined_us: None,
            last_us: now_us,
            next_hello_us: now_us,
            next_heartbeat_us: now_us,
            timer_us: None,
            told: None,
            told_drained: false,
            claimed: Vec::new(),
            outputs: Vec::new(),
            params: Paced::new(params),
        };
        gateway.configure(config);
        gateway.listen(now_us);
        gateway
    }

    /// The same, where the node still answers for these vIPs though its agent did not run: what forwards
    /// and answers outlives it. They are kept, or given way to, as if this life had taken them.
    #[must_use]
    pub fn holding(mut self, vips: VipSet) -> Self {
        self.holds = vips;
        self
    }

    /// Takes an input in at `now_us` of this node's clock, which must not stand still while the process
    /// does (`CLOCK_BOOTTIME`, not CPU time).
    pub fn handle(&mut self, now_us: u64, input: Input) -> Vec<Output> {
        let now_us = now_us.max(self.last_us);
        // It asks to be called more often than that: so it was not running, and others may have judged it.
        let for_us = now_us - self.last_us;
        if for_us > self.params.silence_us {
            self.outputs.push(Output::Happened(Incident::Paused { for_us }));
            self.listen(now_us);
        }
        self.last_us = now_us;
        self.params.advance(now_us);
        match input {
            Input::Timer => self.timer_us = None,
            Input::Received(message) => self.receive(now_us, message),
            Input::Witness { token } => self.answered(now_us, token),
            Input::Config(config) => self.configure(config),
            Input::Load(load) => self.tell_load(load),
            Input::Unreadable => self.unreadable_us = Some(now_us),
        }
        self.judge_peers(now_us);
        self.judge_contact(now_us);
        self.end_listening(now_us);
        self.settle(now_us);
        self.announce_due(now_us);
        self.speak(now_us);
        std::mem::take(&mut self.outputs)
    }

    /// vIPs that this gateway answers for.
    #[must_use]
    pub fn holds(&self) -> VipSet {
        self.holds
    }

    /// Its view of who owns what: worth saving for the next life.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether it may be relied on, by its own judgement.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Forgets whom it heard, and decides nothing until it has listened.
    fn listen(&mut self, now_us: u64) {
        self.standing = Standing::Listening;
        self.contact = false;
        self.listen_until_us = now_us + self.params.listen_us;
        self.since_us = now_us;
        self.alone = None;
        self.peers.iter_mut().for_each(Peer::forget);
        self.controller.heard_us = None;
        for slot in &mut self.slots {
            (slot.orphan_us, slot.due_us, slot.yield_us, slot.announce_us) = (None, None, None, None);
        }
    }

    fn end_listening(&mut self, now_us: u64) {
        if self.standing != Standing::Listening || now_us < self.listen_until_us {
            return;
        }
        self.standing = Standing::Fit;
        // By now somebody has said so if the table is out of date.
        for vip in self.holds.iter() {
            self.slots[vip.index()].announce_us = Some(now_us);
            self.slots[vip.index()].repeats_left = self.params.repeats + 1;
        }
        // Whether it is in contact decides when it may act on that.
        self.judge_contact(now_us);
    }

    fn configure(&mut self, mut config: Config) {
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
            self.params.begin(config.hello_ms);
        } else if config.hello_ms != self.config.hello_ms {
            self.params.change(self.last_us, config.hello_ms);
            // Who waited for longer than it may now speaks at once.
            (self.next_hello_us, self.next_heartbeat_us) = (self.last_us, self.last_us);
        }
        self.config = config;
        self.told_drained = false;
        if joined {
            // Who was no member was not spoken to: it does not know who lives.
            self.listen(self.last_us);
        }
    }

    fn peer_at(&self, id: GatewayId) -> Option<usize> {
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
                self.controller.note(now_us, message.incarnation, message.seq, limit_us) != Arrival::Stale
            }
            Node::Gateway(id) => match self.peer_at(id) {
                Some(at) => {
                    let noted = self.peers[at].note(now_us, message.incarnation, message.seq, &self.params);
                    if noted == Noted::Acquitted {
                        self.tell_false_alarm(at);
                        self.rejoin_at(now_us);
                    }
                    noted != Noted::Stale
                }
                None => return self.stranger(id, &message.body),
            },
        };
        match message.body {
            // Merging does not care how old a claim or a configuration is.
            Body::Claims(claims) => self.learn(now_us, claims),
            Body::Config(config) if config.revision <= CONFIG_REVISION_MAX => self.configure(config),
            Body::Hello(report) if fresh => self.hello(now_us, from, report),
            Body::Pulse(pulse) if fresh => self.pulse(now_us, &pulse),
            Body::Probe if from == Node::Controller => self.next_heartbeat_us = now_us,
            _ => {}
        }
    }

    /// A gateway that knows a newer configuration will hand it on when it sees that ours is old. One that
    /// was removed and does not know is told: the controller speaks to members only, and alone it would
    /// believe the others dead.
    fn stranger(&mut self, id: GatewayId, body: &Body) {
        if let Body::Hello(report) = body
            && report.config < self.config.revision
        {
            self.bring_up_to_date(Node::Gateway(id), report.config, report.digest);
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
            self.configure(config.clone());
        }
    }

    fn hello(&mut self, now_us: u64, from: Node, report: Report) {
        let Node::Gateway(id) = from else { return };
        let Some(at) = self.peer_at(id) else { return };
        let (config, digest) = (report.config, report.digest);
        let released = self.peers[at].report(report);
        self.rival_gone(now_us, released);
        let due = self.peers[at].sync_due(now_us, self.params.hello_us);
        if due && self.bring_up_to_date(from, config, digest) {
            self.peers[at].synced_us = Some(now_us);
        }
    }

    fn pulse(&mut self, now_us: u64, pulse: &Pulse) {
        // The controller's network is not the packets': while it hears others, its answer does not say
        // whose underlay is broken. Only a witness on the underlay can.
        let hears_others = self.peers.iter().any(|peer| pulse.hears.contains(&peer.id));
        if pulse.hears.contains(&self.own) && !hears_others {
            self.answered(now_us, pulse.echo);
        }
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            if pulse.hears.contains(&peer.id) && peer.vouch(now_us, self.since_us, &self.params) {
                self.tell_false_alarm(at);
            }
        }
        let due = self.controller_synced_us.is_none_or(|at| now_us - at >= self.params.hello_us);
        if due && self.bring_up_to_date(Node::Controller, u64::MAX, pulse.digest) {
            self.controller_synced_us = Some(now_us);
        }
    }

    fn tell_false_alarm(&mut self, at: usize) {
        let peer = &self.peers[at];
        let silence_us = self.params.silence_after_us(peer.alarms);
        self.outputs.push(Output::Happened(Incident::FalseAlarm { peer: peer.id, silence_us }));
    }

    fn learn(&mut self, now_us: u64, claims: Vec<(VipId, Claim)>) {
        for (vip, claim) in claims {
            let lost = self.table.get(vip).is_some_and(|old| old.owner == self.own);
            if !self.table.merge(vip, claim) {
                continue;
            }
            let believed_dead = self.peer_at(claim.owner).is_some_and(|at| self.peers[at].dead);
            let slot = &mut self.slots[vip.index()];
            slot.learned_us = Some(now_us);
            if now_us - slot.contested_us > self.params.forgive_us {
                slot.contests = 0;
            }
            if lost && believed_dead {
                slot.contests = slot.contests.saturating_add(1);
                slot.contested_us = now_us;
            }
        }
    }
}
