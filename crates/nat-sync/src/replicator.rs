//! All of a gateway's replication: which NAT gateways it owns, what it sends to each other gateway, and what it has of them.

use crate::message::{Message, Progress, Role};
use crate::params::{Backoff, Params};
use crate::receiver::{Counters, Ended, Receiver};
use crate::sender::{Finished, Sender};
use crate::table::{Mark, PART_SESSIONS_MAX, SessionTable};
use sluice_types::{GatewayId, Vni};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

/// Parts of the table that are judged in a tick, at the end of passes: about 32,000 slots.
const END_PARTS: u32 = 256;

/// A timer is requested at least this often, for copies that become stale.
const IDLE_US: u64 = 1_000_000;

/// An event that a gateway reacts to.
#[derive(Clone, Debug)]
pub enum Input {
    /// The time requested by [`Output::SetTimer`] has come. Also the first input after the start.
    Timer,
    /// An authenticated message arrived.
    Received {
        /// The gateway that sealed it.
        from: GatewayId,
        /// The message.
        message: Message,
    },
    /// The gateways of the cluster.
    Members(Vec<GatewayId>),
    /// Which of them answer, by the protocol of the cluster. A gateway that becomes a member counts as one that answers
    /// until a list says otherwise.
    Reachable {
        /// Those that this gateway reaches and that reach it.
        mutual: Vec<GatewayId>,
        /// Others that are alive: another gateway reaches them. The first packets of sessions that they pass on, of whichever
        /// owner, leave this gateway out.
        cut_off: Vec<GatewayId>,
        /// How often each of the first ones was not one of them, since it became a member. Missing: never. An interruption may begin
        /// and end between two lists.
        interruptions: BTreeMap<GatewayId, u64>,
    },
    /// Whether this gateway leaves itself out of the ring of first packets of sessions, and how often it began to. Then it has no
    /// complete copy until a pass that begins [`Params::lost_us`] after its return: the others include it a moment later.
    LeftOut {
        /// It does now.
        now: bool,
        /// How often it began to.
        times: u64,
    },
    /// All NAT gateways of the cluster, by the VNI of their VPC, and which gateway owns the vIP of each.
    Owners(Vec<(Vni, Option<GatewayId>)>),
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message to a gateway. It may get lost.
    Send {
        /// Receiver of the message.
        to: GatewayId,
        /// The message.
        message: Message,
    },
    /// Pass [`Input::Timer`] at this time. Replaces the time requested before.
    SetTimer {
        /// Time by this node's clock.
        at_us: u64,
    },
    /// Whether this gateway has all sessions of a NAT gateway, so that it can take its vIP over. Until this output says
    /// so, it does not have them.
    Copy {
        /// The NAT gateway.
        vni: Vni,
        /// The copy is complete, or this gateway is the owner.
        complete: bool,
    },
    /// This gateway has lost the vIP of a NAT gateway, and the new owner has all sessions of it now. Until then, this gateway
    /// should continue to translate packets that reach it.
    Returned {
        /// The NAT gateway.
        vni: Vni,
        /// The new owner.
        to: GatewayId,
    },
}

/// The replication of one run of a gateway.
#[derive(Debug)]
pub struct Replicator {
    own: GatewayId,
    boot: u64,
    params: Params,
    peers: BTreeMap<GatewayId, Peer>,
    units: BTreeMap<Vni, Unit>,
    /// The owners are known.
    has_owners: bool,
    /// How often this node began to leave itself out of the ring, and until when it counts as left out (`u64::MAX`: it is).
    left_out: (u64, Option<u64>),
    /// Mark of the last pass that was received.
    mark: u16,
    /// Sessions that may be read now, and up to when they were counted.
    tokens: i64,
    counted_us: u64,
    /// Which peer comes first in the next step.
    turn: usize,
    counters: Counters,
}

#[derive(Debug)]
struct Peer {
    sender: Sender,
    receiver: Receiver,
    /// Since when it does not answer.
    silent_us: Option<u64>,
    /// Since when it does not answer although it is alive.
    cut_off_us: Option<u64>,
    /// It did not answer for so long that copies of what it owns are incomplete.
    lost: bool,
    /// When it answered again, or became a member.
    contact_us: u64,
    /// Interruptions that are known.
    interruptions: u64,
    /// When a pass of it is asked for next, if a copy is incomplete.
    want: Backoff,
    /// This node owns a NAT gateway, or has to return one to the peer.
    is_spoken_to: bool,
}

/// A NAT gateway.
#[derive(Clone, Debug, Default)]
struct Unit {
    owner: Option<GatewayId>,
    /// When this node last had a complete copy.
    complete_us: Option<u64>,
    /// What the caller knows about the copy.
    told: bool,
    /// This node has owned it, and the new owner does not have all sessions yet.
    former: bool,
}

impl Replicator {
    /// The replication of gateway `own`, which starts at `now_us`. `boot` is a random number drawn for this run.
    #[must_use]
    pub fn new(own: GatewayId, boot: u64, now_us: u64, params: Params) -> Self {
        Self {
            own,
            boot,
            params,
            peers: BTreeMap::new(),
            units: BTreeMap::new(),
            has_owners: false,
            left_out: (0, None),
            mark: 0,
            tokens: 0,
            counted_us: now_us,
            turn: 0,
            counters: Counters::default(),
        }
    }

    /// Sessions that came from other gateways.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The NAT gateways, which gateway owns each, and whether this node has all sessions of it.
    pub fn copies(&self) -> impl Iterator<Item = (Vni, Option<GatewayId>, bool)> + '_ {
        self.units.iter().map(|(vni, unit)| (*vni, unit.owner, unit.told))
    }

    /// Handles one input, and does what is due. `now_us` is the clock of this node, which never goes back.
    pub fn handle(&mut self, now_us: u64, input: Input, table: &mut dyn SessionTable) -> Vec<Output> {
        let mut out = Vec::new();
        // What looks at all NAT gateways is not done for each message.
        let is_timely = !matches!(input, Input::Received { .. });
        if table.was_emptied() {
            self.forget_copies(now_us);
        }
        match input {
            Input::Timer => {}
            Input::Received { from, message } => self.received(now_us, from, message, table, &mut out),
            Input::Members(members) => self.set_members(now_us, &members),
            Input::Reachable { mutual, cut_off, interruptions } => {
                self.set_reachable(now_us, &mutual, &cut_off, &interruptions);
            }
            Input::LeftOut { now, times } => self.set_left_out(now_us, now, times),
            Input::Owners(owners) => self.set_owners(now_us, owners),
        }
        if is_timely {
            self.judge_copies(now_us);
        }
        self.end_passes(now_us, table, &mut out);
        self.send(now_us, table, &mut out);
        if is_timely {
            self.ask(now_us, &mut out);
            self.tell_copies(&mut out);
        }
        out.push(Output::SetTimer { at_us: self.deadline_us(now_us) });
        out
    }

    fn set_members(&mut self, now_us: u64, members: &[GatewayId]) {
        self.peers.retain(|id, _| members.contains(id));
        for id in members.iter().filter(|id| **id != self.own) {
            self.peers.entry(*id).or_insert_with(|| Peer {
                sender: Sender::new(self.boot, now_us, &self.params),
                receiver: Receiver::new(self.params.grace_ticks()),
                silent_us: None,
                cut_off_us: None,
                lost: false,
                contact_us: now_us,
                interruptions: 0,
                want: Backoff::now(now_us, self.params.retry_us),
                is_spoken_to: false,
            });
        }
        self.note_spoken_to();
    }

    fn set_reachable(
        &mut self,
        now_us: u64,
        mutual: &[GatewayId],
        cut_off: &[GatewayId],
        interruptions: &BTreeMap<GatewayId, u64>,
    ) {
        // Owners whose sessions may have begun without this node: those that were silent and are not dead, or all if others were.
        let (mut missed, mut missed_all) = (BTreeSet::new(), false);
        for (id, peer) in &mut self.peers {
            if mutual.contains(id) {
                let known = interruptions.get(id).copied().unwrap_or(0);
                let was_interrupted = std::mem::replace(&mut peer.interruptions, known) != known;
                // One that was over before it was seen counts like one between two that live.
                let was_unseen = was_interrupted && peer.silent_us.is_none();
                let was_cut_off = peer.cut_off_us.take().is_some();
                missed_all |= was_cut_off || was_unseen;
                if peer.silent_us.is_some() || was_unseen {
                    missed.insert(*id);
                    (peer.silent_us, peer.lost, peer.contact_us) = (None, false, now_us);
                    // What both did meanwhile is repaired soon.
                    peer.sender.stop(now_us);
                    peer.want = Backoff::now(now_us, self.params.retry_us);
                }
                continue;
            }
            peer.silent_us.get_or_insert(now_us);
            // When a gateway dies, others find out a moment later. That is not an interruption between two that live.
            peer.cut_off_us = cut_off.contains(id).then(|| peer.cut_off_us.unwrap_or(now_us));
        }
        self.miss(|owner| missed_all || missed.contains(&owner));
    }

    /// Sessions of these owners may have begun without this node.
    fn miss(&mut self, is_missed: impl Fn(GatewayId) -> bool) {
        for (_, peer) in self.peers.iter_mut().filter(|(id, _)| is_missed(**id)) {
            peer.receiver.distrust();
        }
        for unit in self.units.values_mut().filter(|unit| unit.owner != Some(self.own)) {
            if unit.owner.is_some_and(&is_missed) {
                unit.complete_us = None;
            }
        }
    }

    fn set_left_out(&mut self, now_us: u64, is_left_out: bool, times: u64) {
        let (known, until_us) = &mut self.left_out;
        if is_left_out {
            *until_us = Some(u64::MAX);
        } else if *until_us == Some(u64::MAX) || *known != times {
            *until_us = Some(now_us + self.params.lost_us);
        }
        *known = times;
    }

    fn set_owners(&mut self, now_us: u64, owners: Vec<(Vni, Option<GatewayId>)>) {
        let owners: BTreeMap<_, _> = owners.into_iter().collect();
        let gone: Vec<Vni> = self.units.keys().filter(|vni| !owners.contains_key(vni)).copied().collect();
        for vni in gone {
            self.forget(vni);
            self.units.remove(&vni);
        }
        let mut gained = false;
        for (vni, owner) in owners {
            // An earlier run of this node may have owned those that there are at its start: what the table has is returned once.
            let former = !self.has_owners;
            let unit = self.units.entry(vni).or_insert_with(|| Unit { former, ..Unit::default() });
            if unit.owner == owner {
                continue;
            }
            let before = std::mem::replace(&mut unit.owner, owner);
            if owner == Some(self.own) {
                (unit.former, unit.complete_us) = (false, Some(now_us));
                gained = true;
            } else if before == Some(self.own) {
                (unit.former, unit.complete_us) = (true, None);
            }
            let former = unit.former;
            self.forget(vni);
            let Some(peer) = owner.and_then(|owner| self.peers.get_mut(&owner)) else { continue };
            if former {
                peer.sender.begin_soon(now_us);
            }
            peer.want = Backoff::now(now_us, self.params.retry_us);
            // While the new owner was away, it may have begun sessions that this node's copy does not have.
            let contact_us = peer.contact_us + self.params.lost_us;
            if let Some(unit) = self.units.get_mut(&vni)
                && (peer.lost || unit.complete_us.is_some_and(|complete_us| complete_us < contact_us))
            {
                unit.complete_us = None;
            }
        }
        self.has_owners = true;
        for peer in self.peers.values_mut().filter(|_| gained) {
            peer.sender.begin_soon(now_us);
        }
        self.note_spoken_to();
    }

    /// Notes for which gateways there is something to send.
    fn note_spoken_to(&mut self) {
        let owner = self.units.values().any(|unit| unit.owner == Some(self.own));
        let former: BTreeSet<_> =
            self.units.values().filter(|unit| unit.former).filter_map(|unit| unit.owner).collect();
        for (id, peer) in &mut self.peers {
            peer.is_spoken_to = owner || former.contains(id);
        }
    }

    /// The role of this node for a NAT gateway has changed, or that of another one.
    fn forget(&mut self, vni: Vni) {
        for peer in self.peers.values_mut() {
            peer.sender.forget(vni);
            peer.receiver.forget(vni);
        }
    }

    /// What this node had of others is gone, also what came of the passes that are under way.
    fn forget_copies(&mut self, now_us: u64) {
        for unit in self.units.values_mut().filter(|unit| unit.owner != Some(self.own)) {
            unit.complete_us = None;
        }
        for peer in self.peers.values_mut() {
            peer.receiver.stop();
            peer.want = Backoff::now(now_us, self.params.retry_us);
        }
    }

    fn received(
        &mut self,
        now_us: u64,
        from: GatewayId,
        message: Message,
        table: &mut dyn SessionTable,
        out: &mut Vec<Output>,
    ) {
        let (units, own) = (&self.units, self.own);
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let ack = match message {
            Message::Want => {
                peer.sender.begin_soon(now_us);
                None
            }
            Message::Ack(ack) => {
                let spoken_for = || spoken_for(units, own, from);
                if let Some(finished) = peer.sender.acknowledged(now_us, &self.params, &ack, spoken_for) {
                    self.finished(now_us, from, &finished, out);
                }
                None
            }
            Message::Begin(id) => {
                let mark = || {
                    self.mark = self.mark.wrapping_add(1).max(1);
                    let number = NonZeroU16::new(self.mark).unwrap_or(NonZeroU16::MIN);
                    Mark { number, since: table.now() }
                };
                // What this node returns to the sender is in a later pass.
                let is_trusted = |(_, unit): &(&Vni, &Unit)| unit.owner == Some(from) && !unit.former;
                let trusted = || units.iter().filter(is_trusted).map(|(vni, _)| *vni).collect();
                peer.receiver.begin(now_us, id, mark, trusted)
            }
            Message::Data(data) => peer.receiver.receive(now_us, data, table, &mut self.counters),
        };
        out.extend(ack.map(|ack| Output::Send { to: from, message: Message::Ack(ack) }));
    }

    /// A pass to a gateway is over.
    fn finished(&mut self, now_us: u64, to: GatewayId, finished: &Finished, out: &mut Vec<Output>) {
        self.counters.passes_sent += 1;
        let mut more = false;
        for (&vni, unit) in &mut self.units {
            let role = finished.units.get(&vni);
            if unit.former && unit.owner == Some(to) {
                if role == Some(&Role::Former) && finished.returned {
                    unit.former = false;
                    out.push(Output::Returned { vni, to });
                } else {
                    more = true;
                }
            }
        }
        self.note_spoken_to();
        // If not all was done, the next pass comes later.
        if more
            && finished.copied
            && finished.returned
            && let Some(peer) = self.peers.get_mut(&to)
        {
            peer.sender.begin_soon(now_us);
        }
    }

    /// Notes which copies are no longer complete.
    fn judge_copies(&mut self, now_us: u64) {
        let Params { lost_us, stale_us, .. } = self.params;
        for peer in self.peers.values_mut() {
            if peer.silent_us.is_some_and(|since_us| now_us >= since_us + lost_us) && !peer.lost {
                peer.lost = true;
                peer.receiver.stop();
            }
        }
        if self.left_out.1.is_some_and(|until_us| now_us >= until_us) {
            self.left_out.1 = None;
            self.miss(|_| true);
            self.peers.values_mut().for_each(|peer| peer.want = Backoff::now(now_us, self.params.retry_us));
        }
        let is_left_out = self.is_left_out(now_us);
        for unit in self.units.values_mut().filter(|unit| unit.owner != Some(self.own)) {
            let lost = unit.owner.and_then(|owner| self.peers.get(&owner)).is_some_and(|peer| peer.lost);
            let stale = unit.complete_us.is_some_and(|complete_us| now_us > complete_us + stale_us);
            if lost || stale || is_left_out {
                unit.complete_us = None;
            }
        }
    }

    /// Whether first packets of sessions leave this node out, by its own report or for so long, that no copy counts as complete.
    fn is_left_out(&self, now_us: u64) -> bool {
        let is_over = |since_us: u64| now_us >= since_us + self.params.lost_us;
        self.left_out.1.is_some() || self.peers.values().any(|peer| peer.cut_off_us.is_some_and(is_over))
    }

    /// Ends what was not in passes that are here.
    fn end_passes(&mut self, now_us: u64, table: &mut dyn SessionTable, out: &mut Vec<Output>) {
        let is_left_out = self.is_left_out(now_us);
        let (own, units) = (self.own, &mut self.units);
        let mut parts = END_PARTS;
        // Sessions that another gateway returned are yet to be copied to the others.
        let mut taken = false;
        for (id, peer) in &mut self.peers {
            let lost = peer.lost;
            let judge = |ended: &Ended| {
                let (mut copied, mut returned) = (true, true);
                for (vni, role) in ended.units {
                    let unit = units.get_mut(vni);
                    match (role, unit) {
                        (Role::Owner, Some(unit)) if ended.is_copied(*vni) && !lost => {
                            unit.complete_us = Some(now_us).filter(|_| !is_left_out);
                        }
                        (Role::Owner, _) => copied = false,
                        (Role::Former, unit) => {
                            let is_mine = unit.is_some_and(|unit| unit.owner == Some(own));
                            taken |= is_mine && ended.has_others;
                            returned &= is_mine && ended.is_installed(*vni);
                        }
                    }
                }
                Progress::Done { copied, returned }
            };
            if let Some(ack) = peer.receiver.advance(&mut parts, table, judge) {
                self.counters.passes_received += 1;
                out.push(Output::Send { to: *id, message: Message::Ack(ack) });
            }
        }
        for peer in self.peers.values_mut().filter(|_| taken) {
            peer.sender.begin_soon(now_us);
        }
    }

    /// Reads sessions and sends them, as many as the rate permits.
    fn send(&mut self, now_us: u64, table: &dyn SessionTable, out: &mut Vec<Output>) {
        let rate = u64::from(self.params.sessions_per_s);
        let earned = (rate * (now_us - self.counted_us) / 1_000_000) as i64;
        if earned > 0 {
            // What was not used within two ticks is lost, so that a node that was paused sends no burst.
            let most = (2 * rate * self.params.tick_us / 1_000_000) as i64;
            self.tokens = (self.tokens + earned).min(most.max(PART_SESSIONS_MAX as i64));
            self.counted_us = now_us;
        }
        let mut ids: Vec<GatewayId> = self.peers.keys().copied().collect();
        self.turn = (self.turn + 1) % ids.len().max(1);
        ids.rotate_left(self.turn);
        for id in ids {
            let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.may_send()) else { continue };
            let mut messages = Vec::new();
            peer.sender.advance(now_us, &self.params, &mut self.tokens, table, &mut messages);
            out.extend(messages.into_iter().map(|message| Output::Send { to: id, message }));
        }
    }

    /// Asks owners of which a copy is incomplete for a pass.
    fn ask(&mut self, now_us: u64, out: &mut Vec<Output>) {
        let lacking: BTreeSet<GatewayId> = self
            .units
            .values()
            .filter(|unit| unit.complete_us.is_none())
            .filter_map(|unit| unit.owner)
            .collect();
        let Params { retry_us, interval_us, give_up_us, .. } = self.params;
        for (id, peer) in &mut self.peers {
            if !lacking.contains(id) {
                peer.want = Backoff::after(now_us, retry_us);
            } else if peer.silent_us.is_none()
                && !peer.receiver.is_receiving(now_us.saturating_sub(give_up_us))
                && peer.want.is_due(now_us, interval_us)
            {
                out.push(Output::Send { to: *id, message: Message::Want });
            }
        }
    }

    fn tell_copies(&mut self, out: &mut Vec<Output>) {
        for (&vni, unit) in &mut self.units {
            let complete = unit.complete_us.is_some();
            if unit.told != complete {
                unit.told = complete;
                out.push(Output::Copy { vni, complete });
            }
        }
    }

    fn deadline_us(&self, now_us: u64) -> u64 {
        let mut at_us = now_us + IDLE_US;
        at_us = self.left_out.1.map_or(at_us, |until_us| at_us.min(until_us));
        for peer in self.peers.values() {
            if peer.may_send() {
                at_us = at_us.min(peer.sender.deadline_us(now_us, &self.params));
            }
            if peer.receiver.is_ending() {
                at_us = at_us.min(now_us + self.params.tick_us);
            }
            let is_later = |at_us: &u64| *at_us > now_us;
            for since_us in [peer.silent_us, peer.cut_off_us].into_iter().flatten() {
                at_us = Some(since_us + self.params.lost_us)
                    .filter(is_later)
                    .map_or(at_us, |lost_us| lost_us.min(at_us));
            }
            at_us = at_us.min(peer.want.at_us.max(now_us + self.params.tick_us));
        }
        at_us.max(now_us + 1)
    }
}

impl Peer {
    /// Whether a pass is under way, or may begin.
    fn may_send(&self) -> bool {
        !self.sender.is_idle() || (self.is_spoken_to && self.silent_us.is_none())
    }
}

/// The NAT gateways of which a pass of `own` to `to` has all sessions.
fn spoken_for(units: &BTreeMap<Vni, Unit>, own: GatewayId, to: GatewayId) -> BTreeMap<Vni, Role> {
    let role = |unit: &Unit| match unit.owner {
        Some(owner) if owner == own => Some(Role::Owner),
        Some(owner) if owner == to && unit.former => Some(Role::Former),
        _ => None,
    };
    units.iter().filter_map(|(vni, unit)| Some((*vni, role(unit)?))).collect()
}
