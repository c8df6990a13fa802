//! Saves the acknowledgments of nodes in the store, reads those of the nodes of other replicas, and removes
//! outbox rows that no replica needs any more.

use super::{Members, Push, count};
use sluice_store::{NodeState, StoreError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause after a store error.
const RETRY: Duration = Duration::from_millis(250);
/// Interval at which states that are due are saved: with many nodes, some of them are always due.
const SAVE: Duration = Duration::from_millis(200);
/// Most states in a transaction. Saving so many takes about as long as a single change by the API.
const BATCH: usize = 256;
/// Interval at which the acknowledgments of other replicas' nodes are read.
const REFRESH: Duration = Duration::from_millis(500);
/// Outbox rows are kept for this time, for replicas that are behind.
const KEEP: Duration = Duration::from_secs(600);
/// Interval at which old rows are removed.
const COMPACT: Duration = Duration::from_secs(60);

/// Saves acknowledgments, and reads those of other replicas' nodes, until the future is dropped.
pub async fn save_node_states(push: Arc<Push>) {
    let mut refreshed = Instant::now();
    let mut failing = false;
    loop {
        tokio::time::sleep(SAVE).await;
        let result = save_round(&push, &mut refreshed).await;
        if let Err(error) = &result {
            push.db.count_error();
            if !failing {
                let error = error as &dyn std::error::Error;
                tracing::warn!(error, "cannot save what nodes acknowledged");
            }
            tokio::time::sleep(RETRY).await;
        }
        failing = result.is_err();
    }
}

async fn save_round(push: &Push, refreshed: &mut Instant) -> Result<(), StoreError> {
    save(push, push.hub.take_unsaved(false)).await?;
    if refreshed.elapsed() >= REFRESH {
        *refreshed = Instant::now();
        push.hub.load(push.db.store.node_states().await?);
    }
    Ok(())
}

/// Saves states in transactions of at most [`BATCH`]. Those that are not saved are marked as unsaved again.
async fn save(push: &Push, unsaved: Vec<NodeState>) -> Result<(), StoreError> {
    for (index, batch) in unsaved.chunks(BATCH).enumerate() {
        if let Err(error) = push.db.store.save_node_states(batch).await {
            unsaved[index * BATCH..].iter().for_each(|state| push.hub.mark_unsaved(state.node));
            return Err(error);
        }
        count(&push.counters.saves);
    }
    Ok(())
}

/// Saves everything that is not saved, at the end of the controller. If that fails, nodes report it again when they
/// reconnect.
///
/// # Errors
/// Errors of the store.
pub async fn save_all(push: &Push) -> Result<(), StoreError> {
    save(push, push.hub.take_unsaved(true)).await
}

/// Removes outbox rows that no replica can still need, until the future is dropped.
pub async fn compact_outbox(push: Arc<Push>) {
    let mut seen: VecDeque<(Instant, u64)> = Default::default();
    loop {
        tokio::time::sleep(COMPACT).await;
        seen.push_back((Instant::now(), push.members(Members::revision)));
        let mut old = None;
        while seen.front().is_some_and(|(at, _)| at.elapsed() >= KEEP) {
            old = seen.pop_front();
        }
        let Some((_, revision)) = old else { continue };
        if let Err(error) = push.db.store.compact_outbox(revision).await {
            push.db.count_error();
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot remove old outbox rows");
        }
    }
}
