//! Who is alive, and is this gateway in contact with anybody.

use super::{Alone, Gateway, Incident, Output, Slot};
use crate::message::{Node, Standing};
use crate::vip::VipSet;
use sluice_types::GatewayId;

impl Gateway {
    /// A peer is alive while this gateway hears it or hears somebody who does: one link that fails in one
    /// direction is no failed gateway. Each says at once when it hears another no more, so when a gateway
    /// dies the last to notice is the last to delay its verdict.
    pub(super) fn judge_peers(&mut self, now_us: u64) {
        let params = &self.params;
        let mut released = VipSet::EMPTY;
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            let alive = peer.is_heard(now_us, params)
                || peer.is_vouched(now_us, params)
                || peer.is_awaited(now_us, self.since_us, params)
                || self.peers.iter().any(|other| {
                    other.id != peer.id && other.says_it_hears(peer.id) && other.is_heard(now_us, params)
                });
            for vip in self.peers[at].judge(alive, now_us).iter() {
                released.insert(vip);
            }
        }
        self.rival_gone(now_us, released);
    }

    /// Gateways that it hears itself.
    pub(super) fn heard(&self, now_us: u64) -> Vec<GatewayId> {
        let heard = |peer: &&super::Peer| peer.is_heard(now_us, &self.params);
        self.peers.iter().filter(heard).map(|peer| peer.id).collect()
    }

    /// A gateway that hears no peer which hears it does not know whether they failed or itself. It asks
    /// controller and witness, and takes nothing until an answer to a question asked since has come; if
    /// none comes it calls itself cut off, for those who may still hear it.
    pub(super) fn judge_contact(&mut self, now_us: u64) {
        // One that was cut off goes on to ask while it listens: an answer may take longer than its patience.
        if self.standing == Standing::Listening && self.alone.is_none() {
            return;
        }
        let answered_by_peer = self.config.members.len() <= 1
            || self
                .peers
                .iter()
                .any(|peer| peer.says_it_hears(self.own) && peer.is_heard(now_us, &self.params));
        if answered_by_peer {
            self.alone = None;
            self.contact = true;
        } else {
            let first_token = self.seq + 1;
            let alone = self.alone.get_or_insert(Alone {
                since_us: now_us,
                first_token,
                answered_us: None,
                probe_us: now_us,
            });
            let lately = |at: Option<u64>| at.is_some_and(|at| now_us - at <= self.params.silence_us);
            // If the others speak and this gateway cannot read it, then what is wrong is here.
            let answered = lately(alone.answered_us) && !lately(self.unreadable_us);
            let late = now_us - alone.since_us >= self.params.contact_us;
            let probe = now_us >= alone.probe_us;
            if probe {
                alone.probe_us = now_us + self.params.hello_us;
            }
            self.contact = answered;
            if probe {
                self.send_heartbeat(now_us);
                let within_us = self.params.answer_us();
                self.outputs.push(Output::ProbeWitness { token: self.seq, within_us });
            }
            if !answered && late && self.standing == Standing::Fit {
                self.standing = Standing::CutOff;
                if !std::mem::replace(&mut self.was_cut_off, true) {
                    self.outputs.push(Output::Happened(Incident::CutOff));
                }
            }
        }
        if self.contact && self.standing == Standing::CutOff {
            // Much may have happened meanwhile.
            let alone = self.alone.take();
            self.listen(now_us);
            self.alone = alone;
        }
        if self.contact && self.standing == Standing::Fit && std::mem::take(&mut self.was_cut_off) {
            self.outputs.push(Output::Happened(Incident::Reconnected));
        }
    }

    /// An answer to the heartbeat or probe of that number.
    pub(super) fn answered(&mut self, now_us: u64, token: u64) {
        if let Some(alone) = &mut self.alone
            && token >= alone.first_token
            && token <= self.seq
        {
            alone.answered_us = Some(now_us);
        }
    }

    /// Whether a gateway may be left with the vIPs that it owns.
    pub(super) fn is_usable(&self, id: GatewayId, now_us: u64) -> bool {
        self.peer_at(id).is_some_and(|at| {
            let peer = &self.peers[at];
            // What it said of itself counts while it is heard.
            let cut_off = peer.standing == Standing::CutOff && peer.is_heard(now_us, &self.params);
            !peer.dead && !cut_off
        })
    }

    /// When something changes without any input.
    pub(super) fn next_change_us(&self, now_us: u64) -> u64 {
        let params = &self.params;
        let mut next_us = self.next_hello_us.min(self.next_heartbeat_us);
        if self.standing == Standing::Listening {
            next_us = next_us.min(self.listen_until_us);
        }
        let mut at = |time_us: u64| {
            if time_us > now_us {
                next_us = next_us.min(time_us);
            }
        };
        for peer in &self.peers {
            match peer.source.heard_us {
                Some(heard_us) => at(heard_us + params.silence_after_us(peer.alarms) + 1),
                None => at(self.since_us.max(peer.known_us) + params.silence_us + 1),
            }
            if let Some(vouched_us) = peer.vouched_us {
                at(vouched_us + params.vouch_us() + 1);
            }
        }
        self.params.due_us().into_iter().for_each(&mut at);
        self.rejoin_us.into_iter().for_each(&mut at);
        if let Some(alone) = &self.alone {
            at(alone.probe_us);
            at(alone.since_us + params.contact_us);
        }
        for vip in self.config.vips.iter() {
            let Slot { due_us, yield_us, announce_us, .. } = self.slots[vip.index()];
            due_us.into_iter().for_each(&mut at);
            announce_us.into_iter().for_each(&mut at);
            yield_us.into_iter().for_each(|since_us| at(since_us + params.yield_us));
        }
        next_us
    }

    /// Whether the controller's messages come.
    #[must_use]
    pub fn hears_controller(&self, now_us: u64) -> bool {
        self.controller.is_heard(now_us, self.params.vouch_us())
    }

    /// Whether a node is heard; for the operator.
    #[must_use]
    pub fn hears(&self, node: Node, now_us: u64) -> bool {
        match node {
            Node::Controller => self.hears_controller(now_us),
            Node::Gateway(id) => {
                self.peer_at(id).is_some_and(|at| self.peers[at].is_heard(now_us, &self.params))
            }
        }
    }
}
