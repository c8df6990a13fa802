//! Which peers are alive, and whether any node answers this gateway. Also computes when the next timer is
//! due.

use super::{ContactCheck, Contacts, Gateway, Incident, Output, Peer, VipState};
use crate::message::{Health, Node};
use crate::readiness::{Readiness, TableReport};
use sluice_types::GatewayId;

impl Gateway {
    /// Decides which peers are alive. A peer is alive while this gateway reaches it or reaches another
    /// gateway that does: a link that fails in one direction is not a failed gateway. Each gateway reports at
    /// once when it no longer reaches a peer, so all gateways agree on a death as soon as the last of them
    /// has detected it.
    pub(super) fn update_peers(&mut self, now_us: u64) {
        let params = &self.params;
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            let alive = peer.is_reachable(now_us, params)
                || peer.is_reported_reachable(now_us, params)
                || peer.is_awaited(now_us, self.silence_since_us, params)
                || self.peers.iter().any(|other| {
                    other.id != peer.id && other.reaches(peer.id) && other.is_reachable(now_us, params)
                });
            for vip in self.peers[at].set_alive(alive, now_us).iter() {
                self.released.insert(vip);
            }
        }
    }

    /// Returns the peers that this gateway reaches itself.
    pub(super) fn reachable_peers(&self, now_us: u64) -> Vec<GatewayId> {
        let reachable = |peer: &&Peer| peer.is_reachable(now_us, &self.params);
        self.peers.iter().filter(reachable).map(|peer| peer.id).collect()
    }

    /// Checks whether any node answers this gateway. If no peer that it reaches also reaches it, the gateway
    /// does not know whether the peers failed or itself. It then queries the controller and a witness, and
    /// takes no vIP until one of these queries is answered. If no answer comes within `contact_us`, it
    /// reports itself isolated to the nodes that may still receive its messages.
    pub(super) fn check_contact(&mut self, now_us: u64) {
        // A gateway that was isolated continues to query while it is starting, because an answer may take
        // longer than `contact_us`.
        if self.health == Health::Starting && self.contact_check.is_none() {
            return;
        }
        let answered_by_peer = self.config.members.len() <= 1
            || self
                .peers
                .iter()
                .any(|peer| peer.reaches(self.own) && peer.is_reachable(now_us, &self.params));
        if answered_by_peer {
            self.contact_check = None;
            self.has_contact = true;
        } else {
            let first_token = self.seq + 1;
            let check = self.contact_check.get_or_insert(ContactCheck {
                since_us: now_us,
                first_token,
                answered_us: None,
                probe_us: now_us,
            });
            let recently = |at: Option<u64>| at.is_some_and(|at| now_us - at <= self.params.silence_us);
            // If the others send messages that this gateway cannot open, the fault is here.
            let answered = recently(check.answered_us) && !recently(self.unreadable_us);
            let late = now_us - check.since_us >= self.params.contact_us;
            let probe = now_us >= check.probe_us;
            if probe {
                check.probe_us = now_us + self.params.hello_us;
            }
            self.has_contact = answered;
            if probe {
                self.send_heartbeat(now_us);
                let within_us = self.params.witness_delay_max_us();
                self.outputs.push(Output::ProbeWitness { token: self.seq, within_us });
            }
            if !answered && late && self.health == Health::Ready {
                self.health = Health::Isolated;
                if !std::mem::replace(&mut self.was_isolated, true) {
                    self.outputs.push(Output::Incident(Incident::Isolated));
                }
            }
        }
        if self.has_contact && self.health == Health::Isolated {
            // Owners may have changed in the meantime.
            let check = self.contact_check.take();
            self.enter_startup(now_us);
            self.contact_check = check;
        }
        if self.has_contact && self.health == Health::Ready && std::mem::take(&mut self.was_isolated) {
            self.outputs.push(Output::Incident(Incident::Reconnected));
        }
    }

    /// Records an answer to the heartbeat or probe with this number.
    pub(super) fn record_answer(&mut self, now_us: u64, token: u64) {
        if let Some(check) = &mut self.contact_check
            && token >= check.first_token
            && token <= self.seq
        {
            check.answered_us = Some(now_us);
        }
    }

    /// Returns whether another gateway can keep the vIPs that it owns: it is neither dead nor isolated.
    pub(super) fn is_usable(&self, id: GatewayId, now_us: u64) -> bool {
        self.peer_index(id).is_some_and(|at| {
            let peer = &self.peers[at];
            // Its report counts while the gateway is reachable.
            let isolated = peer.health == Health::Isolated && peer.is_reachable(now_us, &self.params);
            !peer.dead && !isolated
        })
    }

    /// Compares this gateway's tables with those of the peers that it reaches.
    pub(super) fn compare_tables(&mut self, now_us: u64) {
        let reachable = self.peers.iter().filter(|peer| peer.is_reachable(now_us, &self.params));
        let newest = reachable.filter_map(|peer| peer.tables).map(|tables| tables.revision).max();
        let before = self.readiness_reported;
        self.tables.compare(now_us, newest.unwrap_or(0), self.params.behind_us);
        self.readiness_reported = self.tables.report().readiness();
        if self.readiness_reported != before {
            self.outputs.push(Output::Incident(Incident::Tables(self.readiness_reported)));
        }
    }

    /// Returns whether this gateway has better tables than a reachable peer: it forwards packets that the peer drops. A peer that is only behind
    /// has sessions that would end at a gateway without copies.
    pub(super) fn has_better_tables_than(&self, id: GatewayId, now_us: u64) -> bool {
        let own = self.tables.report();
        let ends_sessions =
            |of: TableReport| of.readiness() != Readiness::Partial && of.translates && !own.copies;
        self.peer_index(id).is_some_and(|at| {
            let peer = &self.peers[at];
            peer.is_reachable(now_us, &self.params)
                && peer
                    .tables
                    .is_some_and(|tables| tables.readiness() < own.readiness() && !ends_sessions(tables))
        })
    }

    /// Returns the time of the next change that needs no input.
    pub(super) fn next_timer_us(&self, now_us: u64) -> u64 {
        let params = &self.params;
        let mut next_us = self.next_hello_us.min(self.next_heartbeat_us);
        if self.health == Health::Starting {
            next_us = next_us.min(self.startup_until_us);
        }
        let mut at = |time_us: u64| {
            if time_us > now_us {
                next_us = next_us.min(time_us);
            }
        };
        for peer in &self.peers {
            match peer.sender.received_us {
                Some(received_us) => at(received_us + params.silence_after_us(peer.false_alarms) + 1),
                None => at(self.silence_since_us.max(peer.added_us) + params.silence_us + 1),
            }
            if let Some(reported_us) = peer.reported_us {
                at(reported_us + params.controller_report_us() + 1);
            }
        }
        self.params.due_us().into_iter().for_each(&mut at);
        self.tables.due_us(params.behind_us).into_iter().for_each(&mut at);
        self.reannounce_us.into_iter().for_each(&mut at);
        self.contested_us.into_iter().for_each(|since_us| at(since_us + params.contested_us));
        if let Some(check) = &self.contact_check {
            at(check.probe_us);
            at(check.since_us + params.contact_us);
        }
        for vip in self.config.vips.iter() {
            let VipState { takeover_us, handover_since_us, announce_us, .. } = self.vips[vip.index()];
            takeover_us.into_iter().for_each(&mut at);
            announce_us.into_iter().for_each(&mut at);
            handover_since_us.into_iter().for_each(|since_us| at(since_us + params.handover_us));
        }
        next_us
    }

    /// Returns whether packets go both ways between this gateway and a peer.
    fn is_mutual(&self, peer: &Peer, now_us: u64) -> bool {
        peer.is_reachable(now_us, &self.params) && peer.reaches(self.own)
    }

    /// Returns whether a peer is alive, and packets do not go both ways between it and this gateway.
    fn is_cut_off(&self, peer: &Peer, now_us: u64) -> bool {
        !peer.dead
            && !self.is_mutual(peer, now_us)
            // No session has passed through one that is starting.
            && !peer.returns
            && !peer.is_awaited(now_us, self.silence_since_us, &self.params)
    }

    /// Returns whether a live peer does not hear from this gateway, or this gateway not from it.
    pub(super) fn is_contested(&self, now_us: u64) -> bool {
        self.peers.iter().any(|peer| self.is_cut_off(peer, now_us))
    }

    /// Counts interruptions: whoever asks for [`contacts`](Self::contacts) may miss one that begins and ends in between.
    pub(super) fn note_contacts(&mut self, now_us: u64) {
        for at in 0..self.peers.len() {
            let is_mutual = self.is_mutual(&self.peers[at], now_us);
            self.peers[at].note_mutual(is_mutual);
        }
        let is_in_ring = is_in_ring(self.health, self.tables.report());
        let was_in_ring = std::mem::replace(&mut self.is_in_ring, is_in_ring);
        self.times_left_out += u64::from(was_in_ring && !is_in_ring);
    }

    /// Returns what packets find between this gateway and the others.
    #[must_use]
    pub fn contacts(&self, now_us: u64) -> Contacts {
        let mut contacts = Contacts {
            is_left_out: !self.is_in_ring,
            times_left_out: self.times_left_out,
            all_follow: self.peers.iter().all(|peer| peer.config >= Some(self.config.revision)),
            ..Contacts::default()
        };
        for peer in &self.peers {
            contacts.interruptions.insert(peer.id, peer.interruptions);
            if peer.tables.is_some_and(|tables| !tables.translates) {
                contacts.without_nat.push(peer.id);
            }
            if self.is_mutual(peer, now_us) {
                contacts.mutual.push(peer.id);
                if peer.tables.is_some_and(|tables| tables.translates && is_in_ring(peer.health, tables)) {
                    contacts.ring.push(peer.id);
                }
                contacts.has_heir |=
                    peer.health == Health::Ready && peer.tables.is_some_and(TableReport::is_heir);
            } else if self.is_cut_off(peer, now_us) {
                contacts.cut_off.push(peer.id);
            }
        }
        contacts
    }

    /// Returns whether messages of the controller arrive.
    #[must_use]
    pub fn is_controller_reachable(&self, now_us: u64) -> bool {
        self.controller.is_reachable(now_us, self.params.controller_report_us())
    }

    /// Returns whether messages of a node arrive, for display to the operator.
    #[must_use]
    pub fn is_reachable(&self, node: Node, now_us: u64) -> bool {
        match node {
            Node::Controller => self.is_controller_reachable(now_us),
            Node::Gateway(id) => {
                self.peer_index(id).is_some_and(|at| self.peers[at].is_reachable(now_us, &self.params))
            }
        }
    }
}

/// Returns whether a gateway that reports this has the entries that first packets of sessions need, of whichever VPC.
fn is_in_ring(health: Health, tables: TableReport) -> bool {
    health == Health::Ready && tables.readiness() == Readiness::Current
}
