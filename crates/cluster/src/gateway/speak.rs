//! What this gateway says, and when it wants to be called again.

use super::{Gateway, Output};
use crate::message::{Body, CLAIMS_MAX, Load, Message, Node, Report};
use crate::table::Claim;
use crate::vip::VipId;
use sluice_types::GatewayId;

impl Gateway {
    pub(super) fn message(&mut self, body: Body) -> Message {
        self.seq += 1;
        Message {
            cluster: self.cluster,
            from: Node::Gateway(self.own),
            incarnation: self.incarnation,
            seq: self.seq,
            body,
        }
    }

    pub(super) fn report(&self, hears: Vec<GatewayId>) -> Report {
        Report {
            config: self.config.revision,
            digest: self.table.digest(),
            holds: self.holds,
            hears,
            standing: self.standing,
        }
    }

    pub(super) fn send_heartbeat(&mut self, now_us: u64) {
        let heartbeat = Body::Heartbeat(self.report(self.heard(now_us)));
        let message = self.message(heartbeat);
        self.outputs.push(Output::Send { to: Node::Controller, message });
        self.next_heartbeat_us = now_us + self.params.heartbeat_us;
    }

    pub(super) fn tell_load(&mut self, load: Load) {
        let message = self.message(Body::Load(load));
        self.outputs.push(Output::Send { to: Node::Controller, message });
    }

    fn send_to_peers(&mut self, body: Body) {
        let message = self.message(body);
        for peer in &self.peers {
            self.outputs.push(Output::Send { to: Node::Gateway(peer.id), message: message.clone() });
        }
    }

    /// Sends a node what it lacks; true if anything. A configuration of `u64::MAX` lacks nothing.
    pub(super) fn bring_up_to_date(&mut self, to: Node, config: u64, digest: u64) -> bool {
        let old_config = config < self.config.revision;
        let old_table = digest != self.table.digest();
        if old_config {
            let message = self.message(Body::Config(self.config.clone()));
            self.outputs.push(Output::Send { to, message });
        }
        if old_table {
            for body in claims_in_parts(self.table.iter()) {
                let message = self.message(body);
                self.outputs.push(Output::Send { to, message });
            }
        }
        old_config || old_table
    }

    /// New claims first, then a hello if one is due or something changed that others wait for.
    pub(super) fn speak(&mut self, now_us: u64) {
        if !self.claimed.is_empty() {
            let claimed = std::mem::take(&mut self.claimed);
            for body in claims_in_parts(claimed.into_iter()) {
                self.send_to_peers(body.clone());
                let message = self.message(body);
                self.outputs.push(Output::Send { to: Node::Controller, message });
            }
        }
        let heard = self.heard(now_us);
        let changed = self.told.as_ref().is_none_or(|(hears, holds, standing)| {
            (hears, *holds, *standing) != (&heard, self.holds, self.standing)
        });
        if changed || now_us >= self.next_hello_us {
            self.send_to_peers(Body::Hello(self.report(heard.clone())));
            self.next_hello_us = now_us + self.params.hello_us;
        }
        if changed || now_us >= self.next_heartbeat_us {
            self.send_heartbeat(now_us);
        }
        if changed {
            self.told = Some((heard, self.holds, self.standing));
        }
        let at_us = self.next_change_us(now_us);
        if self.timer_us != Some(at_us) {
            self.timer_us = Some(at_us);
            self.outputs.push(Output::SetTimer { at_us });
        }
    }
}

/// Claims in as many messages as they need.
pub(crate) fn claims_in_parts(claims: impl Iterator<Item = (VipId, Claim)>) -> Vec<Body> {
    let claims: Vec<(VipId, Claim)> = claims.collect();
    claims.chunks(CLAIMS_MAX).map(|part| Body::Claims(part.to_vec())).collect()
}
