//! What the API, the follower and the nodes' streams share.

use crate::hub::Hub;
use crate::ledger::Ledger;
use crate::load::Loads;
use crate::members::{Members, Needs};
use crate::model::Model;
use crate::ownership::Ownership;
use crate::scheduling::SharedStatus;
use crate::steps::StepLog;
use crate::timeline::Timeline;
use crate::zones::Zones;
use sluice_southbound::Update;
use sluice_store::{NodeId, Store, StoreError};
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, Notify, watch};

/// How long to wait for the follower.
const CATCH_UP: Duration = Duration::from_secs(2);

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
    /// How packets find their way.
    pub model: Model,
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
    /// What gateways report of their load.
    pub loads: Loads,
    /// What the scheduler does.
    pub scheduler: SharedStatus,
    /// Held while a VPC is placed and committed, so that the next one sees it.
    pub placing: Mutex<()>,
    /// Which gateway hosts send to, where they have zones.
    zones: watch::Sender<Zones>,
    members: RwLock<Members>,
    standings: RwLock<Arc<Standings>>,
    /// Nodes that moves of VPCs wait for, by move.
    lacking: RwLock<BTreeMap<u64, Vec<NodeId>>>,
    /// What moves of gateways wait for.
    gateway_waits: RwLock<BTreeMap<GatewayId, Vec<&'static str>>>,
    ledger: RwLock<Ledger>,
    ledger_at: watch::Sender<u64>,
    committed: Notify,
}

impl Core {
    /// Over an open database.
    pub fn new(store: Arc<dyn Store>, model: Model, zone_backups: usize) -> Self {
        Self {
            zones: watch::Sender::new(Zones::new(zone_backups)),
            model,
            store,
            log: StepLog::default(),
            hub: Hub::default(),
            timeline: Timeline::default(),
            counters: Counters::default(),
            ownership: Ownership::default(),
            loads: Loads::default(),
            scheduler: SharedStatus::default(),
            placing: Mutex::default(),
            members: RwLock::default(),
            standings: RwLock::default(),
            lacking: RwLock::default(),
            gateway_waits: RwLock::default(),
            ledger: RwLock::default(),
            ledger_at: watch::Sender::new(0),
            committed: Notify::new(),
        }
    }

    /// The zones, and a way to wait for their change.
    pub fn zones(&self) -> watch::Receiver<Zones> {
        self.zones.subscribe()
    }

    /// Changes them; in another model they have no nodes.
    pub fn change_zones(&self, change: impl FnOnce(&mut Zones)) {
        self.zones.send_if_modified(|zones| {
            let before = zones.clone();
            change(zones);
            *zones != before
        });
    }

    /// What nodes know the database by.
    pub fn database_id(&self) -> u64 {
        self.store.database_id() ^ self.model.salt()
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

    /// Reads what is placed where.
    pub fn ledger<R>(&self, read: impl FnOnce(&Ledger) -> R) -> R {
        read(&self.ledger.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes what is placed where: the follower does, and who has just committed something.
    pub fn change_ledger(&self, change: impl FnOnce(&mut Ledger, u64)) {
        let now_ms = self.loads.now_ms();
        let mut ledger = self.ledger.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut ledger, now_ms);
        self.ledger_at.send_replace(ledger.revision());
    }

    /// Waits, for a moment, until the follower has come to what is committed now.
    ///
    /// # Errors
    /// Of the store.
    pub async fn caught_up(&self) -> Result<(), StoreError> {
        let committed = self.store.revision().await?;
        let mut at = self.ledger_at.subscribe();
        // Behind a large creation it takes longer; what is known by then will do.
        let _ = tokio::time::timeout(CATCH_UP, at.wait_for(|at| *at >= committed)).await;
        Ok(())
    }

    /// Names of the nodes that a move of VPCs waits for.
    pub fn lacking(&self, id: u64) -> Vec<String> {
        let lacking = self.lacking.read().unwrap_or_else(PoisonError::into_inner);
        let nodes = lacking.get(&id).cloned().unwrap_or_default();
        self.members(|members| nodes.into_iter().map(|node| members.name(node)).collect())
    }

    /// Sets whom moves wait for; only their driver does.
    pub fn set_lacking(&self, lacking: BTreeMap<u64, Vec<NodeId>>) {
        *self.lacking.write().unwrap_or_else(PoisonError::into_inner) = lacking;
    }

    /// What a gateway's move waits for, in words.
    pub fn gateway_waits(&self, id: GatewayId) -> Vec<&'static str> {
        let waits = self.gateway_waits.read().unwrap_or_else(PoisonError::into_inner);
        waits.get(&id).cloned().unwrap_or_default()
    }

    /// Sets what gateways' moves wait for; only their driver does.
    pub fn set_gateway_waits(&self, waits: BTreeMap<GatewayId, Vec<&'static str>>) {
        *self.gateway_waits.write().unwrap_or_else(PoisonError::into_inner) = waits;
    }

    /// For each object, by its needs and revision, whether it is programmed.
    pub fn programmed(&self, objects: &[(Needs, u64)]) -> Vec<bool> {
        self.members(|members| members.programmed(&self.hub, objects))
    }
}
