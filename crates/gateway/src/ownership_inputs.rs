//! Inputs of vIP ownership from outside of the cluster protocol: plan and keys from the controller's stream,
//! and the controller's address from the resolver. Changes when ownership gets another such input.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_agent::rsp::Keys;
use sluice_cluster::VipId;
use sluice_southbound::ClusterPlan;
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::ownership::{Ownership, OwnershipPlan, PlannedMember, PlannedVip};

/// Interval at which the controller's name is resolved again and its socket opened again: names, routes and
/// this node's addresses change.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// Interval while the controller does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl From<&ClusterPlan> for OwnershipPlan {
    fn from(plan: &ClusterPlan) -> Self {
        let vip = |vip: &sluice_southbound::PlannedVip| {
            let slot = VipId::new(vip.slot).ok()?;
            Some(PlannedVip { slot, address: vip.address, mac: vip.mac })
        };
        let member = |member: &sluice_southbound::Member| {
            let sluice_southbound::Member { gateway, vtep4, vtep6, draining } = *member;
            PlannedMember { gateway, vtep4, vtep6, draining }
        };
        Self {
            cluster: plan.cluster,
            revision: plan.revision,
            vips: plan.vips.iter().filter_map(vip).collect(),
            members: plan.members.iter().map(member).collect(),
            hello_interval_ms: plan.hello_interval_ms,
        }
    }
}

/// Passes on the plan, the keys, and the deletion of this gateway, until one of their senders is dropped.
pub async fn follow_stream(
    ownership: &Ownership,
    mut plan: watch::Receiver<Option<ClusterPlan>>,
    mut keys: watch::Receiver<Arc<Keys>>,
    mut deleted: watch::Receiver<bool>,
) {
    keys.mark_changed();
    plan.mark_changed();
    loop {
        // Keys come first, because a plan cannot be followed without them.
        tokio::select! {
            biased;
            changed = keys.changed() => {
                if changed.is_err() {
                    return;
                }
                ownership.set_keys(keys.borrow_and_update().cluster_protocol().clone());
            }
            changed = deleted.changed() => {
                if changed.is_err() {
                    return;
                }
                if *deleted.borrow_and_update() {
                    ownership.leave_cluster();
                }
            }
            changed = plan.changed() => {
                if changed.is_err() {
                    return;
                }
                if let Some(plan) = &*plan.borrow_and_update() {
                    ownership.set_plan(plan.into());
                }
            }
        }
    }
}

/// Resolves the controller's name, and passes on its address.
pub async fn resolve_controller(ownership: &Ownership, name: &str) -> Infallible {
    let (status, mut turn, mut current) = (ownership.status(), 0_usize, None);
    loop {
        let found: Vec<SocketAddr> = match lookup_host(name).await {
            Ok(found) => found.collect(),
            Err(error) => {
                tracing::debug!(name, %error, "cannot resolve the controller's name");
                Vec::new()
            }
        };
        let reachable = status.get().controller;
        turn = if reachable { turn } else { turn.wrapping_add(1) };
        // If the resolver fails, the last known address is kept.
        if !found.is_empty() {
            current = select_address(current, reachable, &found, turn);
            ownership.set_controller(current);
        }
        sleep(if reachable { RESOLVE_INTERVAL } else { RETRY_INTERVAL }).await;
    }
}

/// Keeps the current address while the controller answers there, because a change would interrupt its
/// heartbeats. Otherwise each address gets its turn: the controller may not listen on all of them.
fn select_address(
    current: Option<SocketAddr>,
    reachable: bool,
    found: &[SocketAddr],
    turn: usize,
) -> Option<SocketAddr> {
    let kept = current.filter(|address| reachable && found.contains(address));
    kept.or_else(|| found.get(turn % found.len().max(1)).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reachable_address_is_kept_and_others_get_their_turn() {
        let [a, b, c] = [1, 2, 3].map(|last| SocketAddr::from(([192, 0, 2, last], 4798)));
        assert_eq!(select_address(Some(b), true, &[a, b], 0), Some(b));
        assert_eq!(select_address(Some(c), true, &[a, b], 0), Some(a), "no longer an address of the name");
        let turns = [0, 1, 2].map(|turn| select_address(Some(b), false, &[a, b], turn));
        assert_eq!(turns, [Some(a), Some(b), Some(a)]);
        assert_eq!(select_address(None, false, &[], 7), None);
    }
}
