//! Drives moves of gateways between clusters, make before break (`crates/store/src/ops/gateway_moves.rs` has
//! the transactions). What a move waits for follows from the database, from what the gateway acknowledged,
//! and from its state in its cluster, so a controller that starts continues where another one ended.
//!
//! ```text
//!            move_gateway()           tables have both clusters,        tables written, ready in the
//!                                     vIPs given away, 1 s passed       new cluster, 1 s passed
//!  at rest ────────────────▶ leaving ─────────────────────▶ joined ──────────────────────▶ at rest
//!     ▲                         │
//!     └── move_gateway() back ──┘
//! ```
//!
//! A move waits for a gateway that is offline. The operator can cancel the move before the gateway has
//! joined, or delete the gateway.

use super::{LINGER, Moves, Wait};
use crate::ownership::GatewayState;
use crate::push::MovingGateway;
use sluice_store::{GatewayMove, NodeId, StoreError};
use sluice_types::GatewayId;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// What is known of a moving gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveConditions {
    /// Its tables have the present phase of the move.
    pub written: bool,
    /// Its state in its cluster.
    pub state: GatewayState,
    /// Its cluster has VPCs.
    pub has_vpcs: bool,
}

/// What the present phase of a move waits for, in words. Empty if the phase is over.
pub fn waits(at: GatewayMove, conditions: MoveConditions) -> Vec<&'static str> {
    let MoveConditions { written, state, has_vpcs } = conditions;
    let mut waits = Vec::new();
    if at.joined {
        if !written {
            waits.push("the gateway to write the tables of its new cluster");
        }
        // If the operator drains the gateway, it owns no vIP in its new cluster.
        if !matches!(state, GatewayState::Ready | GatewayState::Draining | GatewayState::Drained) {
            waits.push("the gateway to take part in its new cluster");
        }
    } else {
        if !written {
            waits.push("the gateway to have the VPCs of both clusters");
        }
        if has_vpcs && state != GatewayState::Drained {
            waits.push("the gateway to give its vIPs away");
        }
    }
    waits
}

/// What the driver remembers of a move.
#[derive(Debug)]
struct Progress {
    at: GatewayMove,
    wait: Wait,
}

/// Drives all moves of gateways until it is dropped.
pub async fn drive_gateway_moves(moves: Arc<Moves>) {
    let mut known: BTreeMap<GatewayId, Progress> = BTreeMap::new();
    loop {
        let outcome = moves.gateway_round(&mut known).await;
        tokio::time::sleep(moves.pause(outcome, known.is_empty())).await;
    }
}

impl Moves {
    async fn gateway_round(&self, known: &mut BTreeMap<GatewayId, Progress>) -> Result<(), StoreError> {
        let going: Vec<(GatewayId, MovingGateway, bool)> = self.push.members(|members| {
            let one =
                |(id, going): (&GatewayId, &MovingGateway)| (*id, *going, members.has_vpcs(going.cluster));
            members.gateway_moves().iter().map(one).collect()
        });
        known.retain(|id, _| going.iter().any(|(other, _, _)| other == id));
        let mut all_waits = BTreeMap::new();
        for (id, going, has_vpcs) in going {
            let started = || Progress { at: going.at, wait: Wait::default() };
            let progress = known.entry(id).or_insert_with(started);
            if progress.at != going.at {
                *progress = started();
            }
            let written = self.push.hub.with_written(|written| written(NodeId::Gateway(id), going.revision));
            let state = self.ownership.gateway(going.cluster, id).state;
            let waits = waits(going.at, MoveConditions { written, state, has_vpcs });
            let log = || tracing::warn!(gateway = %id, joined = going.at.joined, ?waits, "the move of a gateway waits");
            let complete_for = progress.wait.complete_for(!waits.is_empty(), log);
            let is_over = complete_for.is_some_and(|time| time >= LINGER);
            all_waits.insert(id, waits);
            if is_over && self.advance_gateway(id, going.at).await? {
                tracing::info!(gateway = %id, joined = going.at.joined, "the move of a gateway entered its next phase");
                self.db.notify_commit();
            }
        }
        *self.gateway_waits.write().unwrap_or_else(PoisonError::into_inner) = all_waits;
        Ok(())
    }

    async fn advance_gateway(&self, id: GatewayId, at: GatewayMove) -> Result<bool, StoreError> {
        match self.db.store.advance_gateway_move(id, at).await {
            // The gateway was deleted a moment ago.
            Err(StoreError::NotFound { .. }) => Ok(false),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::ClusterId;

    const ALL: [GatewayState; 10] = [
        GatewayState::Unknown,
        GatewayState::Ready,
        GatewayState::Starting,
        GatewayState::Loading,
        GatewayState::Behind,
        GatewayState::Isolated,
        GatewayState::Unreachable,
        GatewayState::Failed,
        GatewayState::Draining,
        GatewayState::Drained,
    ];

    #[test]
    fn a_phase_ends_when_the_gateway_meets_its_conditions() {
        let states_that_end = |joined, written, has_vpcs| {
            let at = GatewayMove { id: 1, other: ClusterId::new(2), joined };
            let is_over = |state: &&GatewayState| {
                waits(at, MoveConditions { written, state: **state, has_vpcs }).is_empty()
            };
            ALL.iter().filter(is_over).copied().collect::<Vec<_>>()
        };
        assert_eq!(states_that_end(false, true, true), [GatewayState::Drained]);
        assert_eq!(states_that_end(false, true, false), ALL, "no host sends to a cluster without VPCs");
        assert_eq!(
            states_that_end(true, true, true),
            [GatewayState::Ready, GatewayState::Draining, GatewayState::Drained]
        );
        for (joined, has_vpcs) in [(false, false), (false, true), (true, true)] {
            assert_eq!(states_that_end(joined, false, has_vpcs), [], "its tables are not written yet");
        }
    }
}
