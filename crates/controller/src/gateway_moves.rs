//! Drives gateways from cluster to cluster, make before break
//! (`crates/store/src/ops/gateway_moves.rs` has the steps). What is to be waited for
//! follows from the database, from what the gateway acknowledged, and from what it says in
//! its cluster, so that a controller that starts goes on where another one ended.
//!
//! A gateway that is away is waited for: it can be told to stay, or be deleted.

use crate::core::Core;
use crate::members::Going;
use crate::moves::{LINGER, Wait, pause};
use crate::ownership::GatewayState;
use sluice_store::{GatewayMove, NodeId, StoreError};
use sluice_types::GatewayId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is known of a gateway on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The step that it is in has been written to its tables.
    pub written: bool,
    /// How it is in its cluster.
    pub state: GatewayState,
    /// Its cluster has VPCs.
    pub serves: bool,
}

/// What the end of a step waits for, in words; none: it is over.
pub fn waits(at: GatewayMove, sight: Sight) -> Vec<&'static str> {
    let Sight { written, state, serves } = sight;
    let mut waits = Vec::new();
    if at.joined {
        if !written {
            waits.push("the gateway to learn of its new cluster");
        }
        // One that is drained by the operator as well owns nothing there.
        if !matches!(state, GatewayState::Fit | GatewayState::Draining | GatewayState::Drained) {
            waits.push("the gateway to take part in its new cluster");
        }
    } else {
        if !written {
            waits.push("the gateway to have the VPCs of both clusters");
        }
        if serves && state != GatewayState::Drained {
            waits.push("the gateway to give its vIPs away");
        }
    }
    waits
}

/// What is remembered of a move while it lasts.
#[derive(Debug)]
struct Progress {
    at: GatewayMove,
    wait: Wait,
}

/// Runs until it is dropped.
pub async fn drive_gateway_moves(core: Arc<Core>) {
    let mut moves: BTreeMap<GatewayId, Progress> = BTreeMap::new();
    loop {
        let outcome = round(&core, &mut moves).await;
        tokio::time::sleep(pause(&core, outcome, moves.is_empty())).await;
    }
}

async fn round(core: &Core, moves: &mut BTreeMap<GatewayId, Progress>) -> Result<(), StoreError> {
    let going: Vec<(GatewayId, Going, bool)> = core.members(|members| {
        let one = |(id, going): (&GatewayId, &Going)| (*id, *going, members.has_vpcs(going.cluster));
        members.gateway_moves().iter().map(one).collect()
    });
    moves.retain(|id, _| going.iter().any(|(other, _, _)| other == id));
    let mut all_waits = BTreeMap::new();
    for (id, going, serves) in going {
        let fresh = || Progress { at: going.at, wait: Wait::default() };
        let progress = moves.entry(id).or_insert_with(fresh);
        if progress.at != going.at {
            *progress = fresh();
        }
        let written = core.hub.with_written(|written| written(NodeId::Gateway(id), going.revision));
        let state = core.ownership.gateway(going.cluster, id).state;
        let waits = waits(going.at, Sight { written, state, serves });
        let say =
            || tracing::warn!(gateway = %id, joined = going.at.joined, ?waits, "a gateway's move waits");
        let reached = progress.wait.over(!waits.is_empty(), say);
        let over = reached.is_some_and(|reached| reached >= LINGER);
        all_waits.insert(id, waits);
        if over && advance(core, id, going.at).await? {
            tracing::info!(gateway = %id, joined = going.at.joined, "a gateway's move went one step on");
            core.wake();
        }
    }
    core.set_gateway_waits(all_waits);
    Ok(())
}

async fn advance(core: &Core, id: GatewayId, at: GatewayMove) -> Result<bool, StoreError> {
    match core.store.advance_gateway_move(id, at).await {
        // It was deleted a moment ago.
        Err(StoreError::NotFound { .. }) => Ok(false),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::ClusterId;

    const ALL: [GatewayState; 8] = [
        GatewayState::Unknown,
        GatewayState::Fit,
        GatewayState::Listening,
        GatewayState::CutOff,
        GatewayState::Unheard,
        GatewayState::Failed,
        GatewayState::Draining,
        GatewayState::Drained,
    ];

    #[test]
    fn a_step_ends_when_the_gateway_has_done_its_part() {
        let over = |joined, written, serves| {
            let at = GatewayMove { id: 1, other: ClusterId::new(2), joined };
            let over =
                |state: &&GatewayState| waits(at, Sight { written, state: **state, serves }).is_empty();
            ALL.iter().filter(over).copied().collect::<Vec<_>>()
        };
        assert_eq!(over(false, true, true), [GatewayState::Drained]);
        assert_eq!(over(false, true, false), ALL, "nobody sends to a cluster without VPCs");
        assert_eq!(
            over(true, true, true),
            [GatewayState::Fit, GatewayState::Draining, GatewayState::Drained]
        );
        for (joined, serves) in [(false, false), (false, true), (true, true)] {
            assert_eq!(over(joined, false, serves), [], "its tables are not there yet");
        }
    }
}
