//! Messages that this gateway sends, and the timer that it requests.

use super::{Gateway, LastSent, Output};
use crate::message::{Body, Load, Message, Node, Report};
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

    pub(super) fn report(&self, reachable: Vec<GatewayId>) -> Report {
        Report {
            config: self.config.revision,
            digest: self.table.digest(),
            holds: self.holds,
            reachable,
            health: self.health,
            tables: self.tables.report(),
        }
    }

    pub(super) fn send_heartbeat(&mut self, now_us: u64) {
        let heartbeat = Body::Heartbeat(self.report(self.reachable_peers(now_us)));
        let message = self.message(heartbeat);
        self.outputs.push(Output::Send { to: Node::Controller, message });
        self.next_heartbeat_us = now_us + self.params.heartbeat_us;
    }

    pub(super) fn send_load(&mut self, load: Load) {
        let message = self.message(Body::Load(load));
        self.outputs.push(Output::Send { to: Node::Controller, message });
    }

    fn send_to_peers(&mut self, body: Body) {
        let message = self.message(body);
        for peer in &self.peers {
            self.outputs.push(Output::Send { to: Node::Gateway(peer.id), message: message.clone() });
        }
    }

    /// Sends a node the configuration and claims that it lacks, and returns whether it lacked any. Pass
    /// `u64::MAX` as `config` if the node needs no configuration.
    pub(super) fn send_missing(&mut self, to: Node, config: u64, digest: u64) -> bool {
        let old_config = config < self.config.revision;
        let old_table = digest != self.table.digest();
        if old_config {
            let message = self.message(Body::Config(self.config.clone()));
            self.outputs.push(Output::Send { to, message });
        }
        if old_table {
            for body in Body::claims_in_parts(self.table.iter()) {
                let message = self.message(body);
                self.outputs.push(Output::Send { to, message });
            }
        }
        old_config || old_table
    }

    /// Sends new claims, then a hello and a heartbeat if they are due or their content has changed, and
    /// requests the next timer.
    pub(super) fn send_updates(&mut self, now_us: u64) {
        if !self.new_claims.is_empty() {
            let claims = std::mem::take(&mut self.new_claims);
            for body in Body::claims_in_parts(claims.into_iter()) {
                self.send_to_peers(body.clone());
                let message = self.message(body);
                self.outputs.push(Output::Send { to: Node::Controller, message });
            }
        }
        let reachable = self.reachable_peers(now_us);
        let (readiness, copies) = self.tables.report().fitness();
        let state = LastSent { reachable, holds: self.holds, health: self.health, readiness, copies };
        let changed = self.last_sent.as_ref() != Some(&state);
        if changed || now_us >= self.next_hello_us {
            self.send_to_peers(Body::Hello(self.report(state.reachable.clone())));
            self.next_hello_us = now_us + self.params.hello_us;
        }
        if changed || now_us >= self.next_heartbeat_us {
            self.send_heartbeat(now_us);
        }
        if changed {
            self.last_sent = Some(state);
        }
        let at_us = self.next_timer_us(now_us);
        if self.timer_us != Some(at_us) {
            self.timer_us = Some(at_us);
            self.outputs.push(Output::SetTimer { at_us });
        }
    }
}
