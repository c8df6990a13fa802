//! Inputs of vIP ownership from outside the cluster protocol: plan, keys and revisions from the controller's stream,
//! and the controller's address from the resolver. This file changes when ownership gets another such input.

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

use crate::ownership::{GatewayPlan, Ownership, PlannedMember, PlannedVip};

/// Interval at which the controller's name is resolved again and its socket opened again: names, routes and
/// this node's addresses change.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// Interval while the controller does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl From<&ClusterPlan> for GatewayPlan {
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

/// What the controller's stream changes.
pub struct StreamInputs {
    /// The newest plan of this gateway's cluster.
    pub plan: watch::Receiver<Option<ClusterPlan>>,
    /// The cluster's keys.
    pub keys: watch::Receiver<Arc<Keys>>,
    /// Newest revision that the tables contain completely.
    pub tables: watch::Receiver<u64>,
    /// Whether this gateway was deleted.
    pub deleted: watch::Receiver<bool>,
}

/// Passes the inputs on, until one of their senders is dropped.
pub async fn follow_stream(ownership: &Ownership, inputs: StreamInputs) {
    let StreamInputs { mut plan, mut keys, mut tables, mut deleted } = inputs;
    keys.mark_changed();
    tables.mark_changed();
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
            changed = tables.changed() => {
                if changed.is_err() {
                    return;
                }
                ownership.set_tables(*tables.borrow_and_update());
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
    let (status, mut selector) = (ownership.status(), AddressSelector::default());
    loop {
        let found: Vec<SocketAddr> = match lookup_host(name).await {
            Ok(found) => found.collect(),
            Err(error) => {
                tracing::debug!(name, %error, "cannot resolve the controller's name");
                Vec::new()
            }
        };
        let reachable = status.get().controller;
        let selected = selector.select(reachable, &found);
        // If the resolver fails, the last known address is kept.
        if !found.is_empty() {
            ownership.set_controller(selected);
        }
        sleep(if reachable { RESOLVE_INTERVAL } else { RETRY_INTERVAL }).await;
    }
}

/// Selects one of the controller's addresses.
#[derive(Default)]
struct AddressSelector {
    current: Option<SocketAddr>,
    /// Number of addresses that were tried.
    tried: usize,
}

impl AddressSelector {
    /// Keeps the current address while the controller answers there, because a change would interrupt its
    /// heartbeats. Otherwise each address gets its turn, beginning with the first: the controller may not
    /// listen on all of them. If the resolver found no address, the current one is kept.
    fn select(&mut self, reachable: bool, found: &[SocketAddr]) -> Option<SocketAddr> {
        let is_kept = self.current.is_some_and(|address| reachable && found.contains(&address));
        if !is_kept && !found.is_empty() {
            self.current = Some(found[self.tried % found.len()]);
            self.tried = self.tried.wrapping_add(1);
        }
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reachable_address_is_kept_and_others_get_their_turn() {
        let [a, b, c] = [1, 2, 3].map(|last| SocketAddr::from(([192, 0, 2, last], 4798)));
        let mut selector = AddressSelector::default();
        assert_eq!(selector.select(false, &[]), None);
        let turns = [(); 4].map(|()| selector.select(false, &[a, b]));
        assert_eq!(turns, [Some(a), Some(b), Some(a), Some(b)]);
        assert_eq!(selector.select(true, &[a, b]), Some(b));
        assert_eq!(selector.select(false, &[]), Some(b), "the resolver failed");
        assert_eq!(selector.select(true, &[a, c]), Some(a), "no longer an address of the name");
    }
}
