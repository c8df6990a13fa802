//! Histories of the database: what happens when it went back to an earlier state, because it was restored from a
//! backup, or because PostgreSQL failed over and lost commits.
//!
//! It is found in two places. The follower continues each read from the commit that it read last; if the database
//! does not have that commit, the follower ends all streams and starts again. A node says in its Hello with which
//! commit its tables last agreed; if the database does not have that commit, the node's first snapshot removes
//! nothing that it does not mention. Either makes revisions, ids and VNIs jump past those that nodes have.

use super::Push;
use super::node::southbound_id;
use crate::clock::now_ms;
use sluice_southbound::proto::Hello;
use sluice_store::{JumpReason, NewEvent, NodeId, NodeState, Position, Seen, StoreError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A controller that starts holds changes back for this time at most, until all nodes have connected. An agent tries
/// again after at most 2 s.
const AWAIT_NODES: Duration = Duration::from_secs(3);
/// If no node was seen for this time before the start, the database may be a backup.
const RECENT: Duration = Duration::from_secs(60);
/// Interval at which it looks for them.
const LOOK: Duration = Duration::from_millis(20);

/// Pause after a store error.
const RETRY: Duration = Duration::from_millis(250);
/// Shortest interval between two events about one node.
const EVENT_INTERVAL: Duration = Duration::from_secs(10);

/// Where a node's stream starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The revision of this database that the node's tables have; 0 if they have none.
    pub applied: u64,
    /// The newest commit of this database that the node has.
    pub known: Position,
    /// The node's tables are of another history: what its first snapshot does not mention is kept.
    pub keep_unmentioned: bool,
}

/// What nodes have reported of their histories.
#[derive(Debug, Default)]
pub struct Histories {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    seen: Seen,
    /// The commit of another history with which a node connected last, and when there was an event for it.
    reported: BTreeMap<NodeId, (u64, Instant)>,
}

impl Histories {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the numbers of a node. Returns the highest of all nodes.
    fn add(&self, hello: &Hello) -> Seen {
        let seen = &mut self.lock().seen;
        seen.revision = seen.revision.max(hello.highest_revision).max(hello.applied_revision);
        seen.id = seen.id.max(hello.highest_id);
        seen.vni = seen.vni.max(hello.highest_vni);
        *seen
    }

    /// True if there should be an event: this commit of this node was not reported before, nor another one just now.
    fn is_news(&self, node: NodeId, commit: u64) -> bool {
        let mut inner = self.lock();
        let is_known = |(known, at): &(u64, Instant)| *known == commit || at.elapsed() < EVENT_INTERVAL;
        let is_news = !inner.reported.get(&node).is_some_and(is_known);
        if is_news {
            inner.reported.insert(node, (commit, Instant::now()));
        }
        is_news
    }
}

/// Whether a node's tables are of a history of this database that the database does not have any more.
pub async fn is_of_another_history(push: &Push, hello: &Hello) -> Result<bool, StoreError> {
    if hello.database_id != push.database_id() {
        return Ok(false);
    }
    match hello.commit_id {
        // An agent without commit ids, or new tables.
        0 => Ok(hello.applied_revision > push.db.store.revision().await?),
        commit => Ok(push.db.store.revision_of(commit).await?.is_none()),
    }
}

/// Finds where the stream of a node starts. If its tables are of another history, numbers jump past those that it
/// has, and the event log says so.
///
/// # Errors
/// Errors of the store.
pub async fn start(push: &Push, node: NodeId, hello: &Hello) -> Result<Start, StoreError> {
    if hello.database_id != push.database_id() {
        return Ok(Start::default());
    }
    let seen = push.histories.add(hello);
    if is_of_another_history(push, hello).await? {
        push.db.store.jump(&seen, JumpReason::WentBack).await?;
        push.db.notify_commit();
        if push.histories.is_news(node, hello.commit_id) {
            add_event(push, node, hello).await?;
        }
        return Ok(Start { keep_unmentioned: true, ..Start::default() });
    }
    let applied = hello.applied_revision;
    Ok(match push.db.store.revision_of(hello.commit_id).await? {
        Some(revision) if applied <= revision => {
            Start { applied, known: Position { revision, commit: hello.commit_id }, keep_unmentioned: false }
        }
        // The node says that it has a revision for which it does not name the commit.
        Some(_) => Start::default(),
        None => Start { applied, known: Position { revision: applied, commit: 0 }, keep_unmentioned: false },
    })
}

/// Whether a node that the database does not have is newer than the database's state. If not, it was deleted. Of a node
/// that is older than all commits whose ids are kept, it is not known: it counts as deleted.
pub async fn is_newer_than_database(push: &Push, hello: &Hello) -> Result<bool, StoreError> {
    let revision = hello.highest_revision.max(hello.applied_revision);
    Ok(is_of_another_history(push, hello).await?
        && revision > push.db.store.oldest_known_revision().await?.min(push.db.store.revision().await?))
}

async fn add_event(push: &Push, node: NodeId, hello: &Hello) -> Result<(), StoreError> {
    let subject = southbound_id(node).id();
    let revision = push.db.store.revision().await?;
    let applied = hello.highest_revision.max(hello.applied_revision);
    let text = format!(
        "{subject} has revision {applied} of a history that the database (revision {revision}) does not have, as \
         after a restored backup; it keeps what the database does not have as unconfirmed entries"
    );
    tracing::warn!(node = subject, applied, revision, "node of another history of the database");
    let details = serde_json::json!({
        "node_revision": applied, "node_commit": format!("{:016x}", hello.commit_id), "revision": revision,
    });
    let kind = "node_of_another_history".to_owned();
    push.db.store.add_event(NewEvent { kind, subject, text, details }).await.map(drop)
}

/// The database lost the commit at which the follower was: numbers jump past those that are known here, and all
/// streams end, so that each node says what it has.
///
/// # Errors
/// Errors of the store.
pub async fn rewind(push: &Push, at: Position) -> Result<(), StoreError> {
    let seen = push.histories.lock().seen;
    let seen = Seen { revision: seen.revision.max(at.revision), ..seen };
    tracing::error!(
        revision = at.revision,
        "the database went back to an earlier state; all nodes connect again"
    );
    push.hub.end_all();
    push.db.store.jump(&seen, JumpReason::WentBack).await.map(drop)
}

/// The nodes for which a controller that starts waits: those that have tables of this database.
#[derive(Debug)]
pub struct AwaitedNodes {
    nodes: Vec<NodeId>,
    /// No node was seen lately.
    may_be_backup: bool,
}

/// Holds changes back if there are nodes that have tables of this database: they must say first whether the database
/// was restored from a backup. Otherwise ids and VNIs that nodes have could be taken a second time.
///
/// # Errors
/// Errors of the store.
pub async fn hold_writes(push: &Push) -> Result<AwaitedNodes, StoreError> {
    let has_tables = |state: &NodeState| state.acknowledged_revision > 0;
    let states: Vec<_> = push.db.store.node_states().await?.into_iter().filter(has_tables).collect();
    push.db.store.hold_writes(!states.is_empty());
    let last_seen_ms = states.iter().map(|state| state.last_seen_ms).max().unwrap_or_default();
    let recent_ms = u64::try_from(RECENT.as_millis()).unwrap_or(u64::MAX);
    Ok(AwaitedNodes {
        nodes: states.into_iter().map(|state| state.node).collect(),
        may_be_backup: last_seen_ms < now_ms().saturating_sub(recent_ms),
    })
}

/// Lets changes through when all awaited nodes have connected, or after a time. If nodes are absent then, and the
/// database may be a backup, numbers jump past those that they may have.
pub async fn release_writes(push: Arc<Push>, awaited: AwaitedNodes) {
    let began = Instant::now();
    let is_absent = |node: &NodeId| !push.hub.view(*node).connected;
    while began.elapsed() < AWAIT_NODES && awaited.nodes.iter().any(is_absent) {
        tokio::time::sleep(LOOK).await;
    }
    if awaited.may_be_backup && awaited.nodes.iter().any(is_absent) {
        while let Err(error) = push.db.store.jump(&Seen::default(), JumpReason::NodesAbsent).await {
            push.db.count_error();
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot raise the next revision");
            tokio::time::sleep(RETRY).await;
        }
        push.db.notify_commit();
    }
    push.db.store.hold_writes(false);
}
