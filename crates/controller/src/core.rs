//! What the API, the follower and the nodes' streams share.

use crate::hub::Hub;
use crate::members::{Members, Needs};
use crate::ownership::Ownership;
use crate::steps::StepLog;
use crate::timeline::Timeline;
use sluice_southbound::Update;
use sluice_store::Store;
use sluice_types::ClusterId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Notify;

/// Counters for the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Snapshots sent.
    pub snapshots: AtomicU64,
    /// Steps sent, over all streams.
    pub steps: AtomicU64,
    /// Bytes of updates sent, over all streams.
    pub bytes: AtomicU64,
    /// Tokens traded for certificates.
    pub enrolled: AtomicU64,
    /// Enrolments and streams refused.
    pub refused: AtomicU64,
    /// Store calls of the follower and the saver that failed.
    pub store_errors: AtomicU64,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What nodes keep outside of their tables, by cluster.
pub type Standings = BTreeMap<ClusterId, Update>;

/// One controller's shared state.
pub struct Core {
    /// The database.
    pub store: Arc<dyn Store>,
    /// Compiled steps.
    pub log: StepLog,
    /// Nodes.
    pub hub: Hub,
    /// Stage times of bulk creations.
    pub timeline: Timeline,
    /// For the metrics.
    pub counters: Counters,
    /// Who owns which vIP.
    pub ownership: Ownership,
    members: RwLock<Members>,
    standings: RwLock<Arc<Standings>>,
    committed: Notify,
}

impl Core {
    /// Over an open database.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            log: StepLog::default(),
            hub: Hub::default(),
            timeline: Timeline::default(),
            counters: Counters::default(),
            ownership: Ownership::default(),
            members: RwLock::default(),
            standings: RwLock::default(),
            committed: Notify::new(),
        }
    }

    /// Something was committed here: nodes need not wait for the next poll.
    pub fn wake(&self) {
        self.committed.notify_one();
    }

    /// Resolves when something was committed here.
    pub async fn woken(&self) {
        self.committed.notified().await;
    }

    /// Reads the membership.
    pub fn members<R>(&self, read: impl FnOnce(&Members) -> R) -> R {
        read(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the membership; only the follower does.
    pub fn change_members(&self, change: impl FnOnce(&mut Members)) {
        change(&mut self.members.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Keys and plans as of the last revision that was compiled; none before the first.
    pub fn standings(&self) -> Arc<Standings> {
        self.standings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets them; only the follower does.
    pub fn set_standings(&self, standings: Standings) {
        *self.standings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(standings);
    }

    /// For each object, by its needs and revision, whether it is programmed.
    pub fn programmed(&self, objects: &[(Needs, u64)]) -> Vec<bool> {
        self.members(|members| members.programmed(&self.hub, objects))
    }
}
