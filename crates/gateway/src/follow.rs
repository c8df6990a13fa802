//! From the controller's stream and its name to this gateway's part in the cluster.

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

use crate::ownership::{Ownership, Plan, PlannedMember, PlannedVip};

/// The controller's name is looked up again this often, and its socket made anew: names, routes and own
/// addresses change.
const LOOK_UP: Duration = Duration::from_secs(30);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

impl From<&ClusterPlan> for Plan {
    fn from(plan: &ClusterPlan) -> Self {
        let vip = |vip: &sluice_southbound::PlannedVip| {
            let place = VipId::new(vip.place).ok()?;
            Some(PlannedVip { place, address: vip.address, mac: vip.mac })
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
            hello_ms: plan.hello_ms,
        }
    }
}

/// Hands plan and keys on, and that this gateway was deleted, until their sources are gone.
pub async fn follow_cluster(
    ownership: &Ownership,
    mut plan: watch::Receiver<Option<ClusterPlan>>,
    mut keys: watch::Receiver<Arc<Keys>>,
    mut deleted: watch::Receiver<bool>,
) {
    keys.mark_changed();
    plan.mark_changed();
    loop {
        // Keys first: a plan is of no use without.
        tokio::select! {
            biased;
            changed = keys.changed() => {
                if changed.is_err() {
                    return;
                }
                ownership.set_keys(keys.borrow_and_update().own().clone());
            }
            changed = deleted.changed() => {
                if changed.is_err() {
                    return;
                }
                if *deleted.borrow_and_update() {
                    ownership.resign();
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

/// Looks the controller up, for ever.
pub async fn follow_controller(ownership: &Ownership, name: &str) -> Infallible {
    let (view, mut turn, mut present_at) = (ownership.view(), 0_usize, None);
    loop {
        let found: Vec<SocketAddr> = match lookup_host(name).await {
            Ok(found) => found.collect(),
            Err(error) => {
                tracing::debug!(name, %error, "cannot look up the controller");
                Vec::new()
            }
        };
        let heard = view.get().controller;
        let present = present_at.filter(|at: &SocketAddr| heard && found.contains(at));
        // A name may have addresses at which nobody listens: each has its turn.
        turn = if heard { turn } else { turn.wrapping_add(1) };
        // While a name server is away, the address known last is as good as any.
        if !found.is_empty() {
            // The one that is heard is kept: to another it would be silent for a moment.
            present_at = present.or_else(|| found.get(turn % found.len()).copied());
            ownership.set_controller(present_at);
        }
        sleep(if heard { LOOK_UP } else { RETRY }).await;
    }
}
