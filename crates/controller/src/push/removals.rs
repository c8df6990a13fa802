//! Removals: deletions whose entries nodes may still have. A removal ends when each of its nodes has acknowledged the
//! deletion and could write all entries, or was deleted. What the object had (addresses, VNI, VTEPs) is free then.

use super::hub::NodeView;
use super::{Members, Push};
use crate::clock::now_ms;
use sluice_store::{NodeId, NodeSet, ReleaseOf, Removal, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shortest interval at which removals are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// With very many removals, the pause is this many times as long as the look before it took.
const PAUSES: u32 = 10;
/// Pause after a store error.
const RETRY: Duration = Duration::from_millis(250);
/// A node that enrolled and was never seen has no entries, unless it is connected to another replica whose first report
/// of it is not in the store yet. Those are stored after a second or two.
const NEVER_SEEN_MS: u64 = 5_000;

/// What the metrics show.
#[derive(Debug, Default)]
pub struct PendingRemovals {
    /// Number of removals that await nodes.
    pub count: AtomicU64,
    /// Time of the oldest of their deletions in milliseconds of the UNIX epoch; 0 if there is none.
    pub oldest_ms: AtomicU64,
}

/// Ends removals whose nodes are done, until the future is dropped. Each replica does so: what it knows of the nodes of
/// other replicas is only ever late.
pub async fn release_removals(push: Arc<Push>) {
    let mut failing = false;
    loop {
        let began = Instant::now();
        let result = release_round(&push).await;
        if let Err(error) = &result {
            push.db.count_error();
            if !failing {
                let error = error as &dyn std::error::Error;
                tracing::warn!(error, "cannot find out which deletions all nodes have acknowledged");
            }
            tokio::time::sleep(RETRY).await;
        }
        failing = result.is_err();
        tokio::time::sleep(LOOK.max(began.elapsed() * PAUSES)).await;
    }
}

async fn release_round(push: &Push) -> Result<(), StoreError> {
    let sets = push.db.store.awaited_nodes().await?;
    let pending = &push.removals;
    pending.count.store(sets.iter().map(|set| set.removals).sum(), Ordering::Relaxed);
    let oldest_ms = sets.iter().map(|set| set.oldest_ms).min();
    pending.oldest_ms.store(oldest_ms.unwrap_or(0), Ordering::Relaxed);
    for NodeSet { nodes, .. } in sets {
        let Some(of) = push.ended(nodes) else { continue };
        // A transaction releases a limited number.
        while push.db.store.release_removals(&of).await? > 0 {}
    }
    Ok(())
}

/// Whether a node that enrolled never connected.
fn was_never_seen(view: &NodeView) -> bool {
    !view.connected && view.state.last_seen_ms == 0 && view.state.acknowledged_revision == 0
}

impl Push {
    /// The removals that await exactly these nodes and have ended; `None` if there can be none.
    fn ended(&self, nodes: Vec<NodeId>) -> Option<ReleaseOf> {
        let mut deleted_before_ms = u64::MAX;
        let mut up_to = self.members(Members::revision);
        for node in &nodes {
            if !self.members(|members| members.has(*node)) {
                continue;
            }
            let view = self.hub.view(*node);
            if was_never_seen(&view) {
                deleted_before_ms = now_ms().saturating_sub(NEVER_SEEN_MS);
            } else if self.hub.is_incomplete(*node) {
                return None;
            } else {
                up_to = up_to.min(view.state.acknowledged_revision);
            }
        }
        (up_to > 0).then_some(ReleaseOf { nodes, up_to, deleted_before_ms })
    }

    /// The nodes that a removal awaits, with their names.
    pub fn awaited(&self, removal: &Removal) -> Vec<(NodeView, String)> {
        let is_recent = removal.deleted_ms + NEVER_SEEN_MS > now_ms();
        let is_done = |node: NodeId| {
            let gone = self.members(|members| members.revision() >= removal.revision && !members.has(node));
            gone || self.hub.with_written(|written| written(node, removal.revision))
        };
        let views = removal.nodes.iter().filter(|node| !is_done(**node)).map(|node| self.hub.view(*node));
        let awaited = views.filter(|view| is_recent || !was_never_seen(view));
        awaited.map(|view| (view.clone(), self.members(|members| members.name(view.node)))).collect()
    }

    /// Ends the removal now if its nodes are done.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn try_release(&self, removal: &Removal) -> Result<bool, StoreError> {
        match self.ended(removal.nodes.clone()) {
            Some(of) if of.up_to >= removal.revision && of.deleted_before_ms >= removal.deleted_ms => {
                while self.db.store.release_removals(&of).await? > 0 {}
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
