//! This gateway as a sender and receiver of copies, without sockets and clocks: it opens and seals datagrams, translates gateways
//! to addresses and vIPs to their owners. This file changes when the state machine gets another input or output.

use std::net::IpAddr;
use std::sync::Arc;

use sluice_agent::underlay::Vteps;
use sluice_cluster::Contacts;
use sluice_envelope::{BootId, KeyRing};
use sluice_nat_sync::{Input, Message, MessageCodec, Output, Params, Replicator, SessionTable};
use sluice_types::{GatewayId, Vni};

use super::NatUnits;
use super::status::{Copy, SyncCounts, SyncStatus};
use crate::nat::log::Owners;
use crate::ownership::{ClusterView, Now};

/// An input.
#[derive(Debug)]
pub enum Event<'a> {
    /// The time of [`SyncPeer::due_us`] has come.
    Timer,
    /// A datagram was received.
    Datagram {
        /// This node's address to which it was sent.
        local: IpAddr,
        /// The UDP payload.
        packet: &'a [u8],
    },
    /// The cluster's keys.
    Keys(KeyRing),
    /// Members, owners of vIPs and contacts.
    View(Box<ClusterView>),
    /// The NAT gateways of the tables.
    Units(NatUnits),
}

/// A datagram to the gateway at this address, which may get lost.
pub type Datagram = (IpAddr, Vec<u8>);

/// This gateway as a sender and receiver of copies.
#[derive(Debug)]
pub struct SyncPeer {
    own: GatewayId,
    vteps: Vteps,
    replicator: Replicator,
    codec: MessageCodec,
    keys: KeyRing,
    view: ClusterView,
    /// `None` until they are known.
    units: Option<NatUnits>,
    /// For which NAT gateways this gateway translates; `None` until it is known.
    translated: Option<Arc<Owners>>,
    due_us: u64,
    counts: SyncCounts,
}

impl SyncPeer {
    /// A gateway whose agent starts. `boot` is drawn for this run only.
    #[must_use]
    pub fn new(own: GatewayId, vteps: Vteps, boot: BootId, now: Now) -> Self {
        Self {
            own,
            vteps,
            replicator: Replicator::new(own, boot.number(), now.boot_us, Params::default()),
            codec: MessageCodec::new(own, boot, now.wall_ms),
            keys: KeyRing::default(),
            view: ClusterView::default(),
            units: None,
            translated: None,
            due_us: now.boot_us,
            counts: SyncCounts::default(),
        }
    }

    /// Time at which [`Event::Timer`] is due, by the boot clock.
    #[must_use]
    pub const fn due_us(&self) -> u64 {
        self.due_us
    }

    /// Handles an event. Returns what is to be sent.
    pub fn handle(&mut self, now: Now, event: Event<'_>, table: &mut dyn SessionTable) -> Vec<Datagram> {
        let mut send = Vec::new();
        let inputs = match event {
            Event::Timer => vec![Input::Timer],
            Event::Datagram { local, packet } => self
                .receive(now, local, packet)
                .map(|(from, message)| Input::Received { from, message })
                .into_iter()
                .collect(),
            Event::Keys(keys) => {
                self.keys = keys;
                Vec::new()
            }
            Event::View(view) => {
                self.view = *view;
                self.note_translated();
                let Contacts {
                    mutual, cut_off, interruptions, is_left_out: now, times_left_out: times, ..
                } = self.view.contacts.clone();
                let mut inputs = vec![
                    Input::Members(self.view.members()),
                    Input::Reachable { mutual, cut_off, interruptions },
                    Input::LeftOut { now, times },
                ];
                // The first owners are those of all NAT gateways that there are.
                inputs.extend(self.units.is_some().then(|| Input::Owners(self.owners())));
                inputs
            }
            Event::Units(units) => {
                self.units = Some(units);
                self.note_translated();
                vec![Input::Owners(self.owners())]
            }
        };
        for input in inputs {
            for output in self.replicator.handle(now.boot_us, input, table) {
                self.apply(now, output, &mut send);
            }
        }
        send
    }

    /// Whether this gateway has all sessions of all NAT gateways that others own. An owner that does not translate has none, and an owner that is
    /// not known yet may have some.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let without_nat = &self.view.contacts.without_nat;
        let has = |(vni, owner, complete): (Vni, Option<GatewayId>, bool)| {
            let has_none = match owner {
                Some(owner) => owner == self.own || without_nat.contains(&owner),
                None => !self.is_planned(vni),
            };
            complete || has_none
        };
        self.view.plan.is_some() && self.units.is_some() && self.replicator.copies().all(has)
    }

    /// What operators are shown.
    #[must_use]
    pub fn status(&self) -> SyncStatus {
        let copy = |(vni, owner, complete)| Copy {
            vni,
            vip: self.vip(vni),
            owner,
            is_own: owner == Some(self.own),
            complete,
        };
        SyncStatus {
            copies: self.replicator.copies().map(copy).collect(),
            owners: self.translated.clone(),
            has_heir: self.view.contacts.has_heir,
            counts: self.counts.clone(),
            sessions: self.replicator.counters(),
        }
    }

    /// The vIP of a NAT gateway.
    fn vip(&self, vni: Vni) -> Option<IpAddr> {
        self.units.iter().flatten().find(|unit| unit.0 == vni).map(|unit| unit.1)
    }

    /// Whether the vIP of a NAT gateway is one of the cluster, so that it gets an owner.
    fn is_planned(&self, vni: Vni) -> bool {
        let vip = self.vip(vni);
        self.view.plan.iter().flat_map(|plan| &plan.vips).any(|planned| Some(planned.address) == vip)
    }

    /// Which gateway owns the vIP of each NAT gateway.
    fn owners(&self) -> Vec<(Vni, Option<GatewayId>)> {
        self.units.iter().flatten().map(|(vni, vip)| (*vni, self.view.owners.get(vip).copied())).collect()
    }

    /// Keeps the map if it is the same, because other threads have it.
    fn note_translated(&mut self) {
        let owners = self.owners().into_iter();
        let owners: Owners = owners.map(|(vni, owner)| (vni, owner.map(|owner| owner == self.own))).collect();
        if self.view.plan.is_none() || self.units.is_none() {
            self.translated = None;
        } else if self.translated.as_deref() != Some(&owners) {
            self.translated = Some(Arc::new(owners));
        }
    }

    fn receive(&mut self, now: Now, local: IpAddr, packet: &[u8]) -> Option<(GatewayId, Message)> {
        match self.codec.open(&self.keys, now.wall_ms, local, packet) {
            Ok(opened) => {
                self.counts.received += 1;
                self.counts.bytes_received += packet.len() as u64;
                Some(opened)
            }
            Err(refused) => {
                *self.counts.refused.entry(refused.name()).or_default() += 1;
                None
            }
        }
    }

    fn apply(&mut self, now: Now, output: Output, send: &mut Vec<Datagram>) {
        match output {
            Output::SetTimer { at_us } => self.due_us = at_us,
            Output::Send { to, message } => self.seal(now, to, &message, send),
            Output::Copy { vni, complete } => {
                tracing::debug!(%vni, complete, "copy of the sessions of a NAT gateway")
            }
            Output::Returned { vni, to } => {
                tracing::info!(%vni, %to, "the new owner of a NAT gateway has the sessions that were here");
            } // Follows only moves that are announced to the state machine.
        }
    }

    fn seal(&mut self, now: Now, to: GatewayId, message: &Message, send: &mut Vec<Datagram>) {
        let address = self.view.plan.as_ref().and_then(|plan| plan.member_address(to, self.vteps));
        let Some(address) = address else {
            self.counts.unreachable += 1;
            return;
        };
        match self.codec.seal(&self.keys, now.wall_ms, address, message) {
            Ok(packet) => {
                if let Message::Data(data) = message {
                    self.counts.sessions_sent += data.records.len() as u64;
                }
                self.counts.sent += 1;
                self.counts.bytes_sent += packet.len() as u64;
                send.push((address, packet));
            }
            Err(_) => self.counts.send_no_key += 1,
        }
    }
}
