//! This gateway as a sender and receiver of reports, without sockets and clocks: it opens and seals datagrams, and translates gateways
//! to addresses. This file changes when the state machine gets another input or output.

use std::net::IpAddr;

use sluice_agent::underlay::Vteps;
use sluice_cluster::meters::{MeterReport, MeterSharing, ReportCodec, Sample};
use sluice_envelope::{BootId, KeyRing};
use sluice_types::GatewayId;

use super::status::ShareCounts;
use crate::ownership::{ClusterView, Now};

/// A datagram to the gateway at this address, which may get lost.
pub type Datagram = (IpAddr, Vec<u8>);

/// Identifiers of meters with their shares inward and outward in millionths.
pub type Shares = Vec<(u32, [u32; 2])>;

/// This gateway as a sender and receiver of reports.
#[derive(Debug)]
pub struct SharePeer {
    own: GatewayId,
    vteps: Vteps,
    sharing: MeterSharing,
    codec: ReportCodec,
    keys: KeyRing,
    view: ClusterView,
    counts: ShareCounts,
}

impl SharePeer {
    /// A gateway whose agent starts. `boot` is drawn for this run only.
    #[must_use]
    pub fn new(own: GatewayId, vteps: Vteps, boot: BootId, now: Now) -> Self {
        Self {
            own,
            vteps,
            sharing: MeterSharing::new(own),
            codec: ReportCodec::new(own, boot, now.wall_ms),
            keys: KeyRing::default(),
            view: ClusterView::default(),
            counts: ShareCounts::default(),
        }
    }

    /// Sets the cluster's keys.
    pub fn set_keys(&mut self, keys: KeyRing) {
        self.keys = keys;
    }

    /// Sets the members of the cluster, and which of them are dead: neither do they reach this gateway, nor does another one that reaches
    /// it reach them.
    pub fn set_view(&mut self, now: Now, view: ClusterView) {
        let answers = |view: &ClusterView, id: &GatewayId| {
            view.contacts.mutual.contains(id) || view.contacts.cut_off.contains(id)
        };
        self.sharing.set_members(now.boot_us, view.members());
        for lost in self.view.members().iter().filter(|id| answers(&self.view, id) && !answers(&view, id)) {
            self.sharing.lose(now.boot_us, *lost);
        }
        self.view = view;
    }

    /// Handles a datagram that arrived at the address `local`.
    pub fn receive(&mut self, now: Now, local: IpAddr, packet: &[u8]) {
        let refused = match self.codec.open(&self.keys, now.wall_ms, local, packet) {
            Ok((from, report)) if self.sharing.receive(now.boot_us, from, &report) => {
                self.counts.received += 1;
                return;
            }
            Ok(_) => "not_a_member",
            Err(refused) => refused.name(),
        };
        *self.counts.refused.entry(refused).or_default() += 1;
    }

    /// Measures the meters. Returns what is to be sent, and shares that are to be set.
    pub fn tick(&mut self, now: Now, samples: &[Sample]) -> (Vec<Datagram>, Shares) {
        let turn = self.sharing.tick(now.boot_us, samples);
        self.counts.shared_meters = self.sharing.shared_meters() as u64;
        let mut send = Vec::new();
        let own = self.own;
        for to in self.view.members().into_iter().filter(|to| *to != own) {
            turn.reports.iter().for_each(|report| self.seal(now, to, report, &mut send));
        }
        (send, turn.shares)
    }

    /// What operators are shown.
    #[must_use]
    pub const fn counts(&self) -> &ShareCounts {
        &self.counts
    }

    fn seal(&mut self, now: Now, to: GatewayId, report: &MeterReport, send: &mut Vec<Datagram>) {
        let address = self.view.plan.as_ref().and_then(|plan| plan.member_address(to, self.vteps));
        let Some(address) = address else {
            self.counts.unreachable += 1;
            return;
        };
        match self.codec.seal(&self.keys, now.wall_ms, address, report) {
            Ok(packet) => {
                self.counts.sent += 1;
                send.push((address, packet));
            }
            Err(_) => self.counts.send_no_key += 1,
        }
    }
}
