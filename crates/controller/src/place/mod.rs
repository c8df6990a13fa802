//! Which cluster carries which VPC, and which gateway is the preferred owner of which vIP: prepares the input
//! of the algorithms in `sluice_placement`, and carries out their results.
//!
//! `admission` refuses new objects that gateways' tables may not hold. `usage` combines the placement (`ledger`), the measured loads (`load`) and the settings; `new_vpc` places
//! one VPC; `plans` computes moves, which are shown before anything is done, and `apply` carries them out.
//! `scheduler` runs the vIP scheduler.

pub mod admission;
pub mod apply;
mod ledger;
mod load;
pub mod new_vpc;
pub mod plans;
pub mod scheduler;
pub mod usage;

use crate::database::Database;
use crate::ownership::{ClusterLoadObserver, Ownership};
use crate::push::{ChangeObserver, LoadObserver};
use admission::demand::{NewObjects, demands};
use admission::{Admission, Admissions, Full};
use ledger::Ledger;
pub use ledger::Prefixes;
use load::{LoadSnapshot, Loads};
use scheduler::SharedStatus;
use sluice_cluster::Load;
use sluice_southbound::proto::Heartbeat;
use sluice_store::{AddressCounts, Change, StoreError, Topology, Vpc};
use sluice_types::{ClusterId, GatewayId, PlacementSettings, VpcId};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard, watch};
use usage::Usage;

/// Longest wait for the follower.
const CATCH_UP: Duration = Duration::from_secs(2);

/// The handle of this module. It owns the placement, the measured loads and the results of the scheduler.
pub struct Place {
    db: Arc<Database>,
    ownership: Arc<Ownership>,
    ledger: RwLock<Ledger>,
    /// Revision of the ledger.
    ledger_revision: watch::Sender<u64>,
    loads: Loads,
    admissions: Arc<Admissions>,
    /// Results of the scheduler.
    pub scheduler: SharedStatus,
    placing: Mutex<()>,
    planning: Arc<Mutex<()>>,
}

impl Place {
    /// Starts with an empty ledger, which the follower fills.
    pub fn new(db: Arc<Database>, ownership: Arc<Ownership>) -> Self {
        Self {
            db,
            ownership,
            ledger: RwLock::default(),
            ledger_revision: watch::Sender::new(0),
            loads: Loads::default(),
            admissions: Arc::default(),
            scheduler: SharedStatus::default(),
            placing: Mutex::default(),
            planning: Arc::default(),
        }
    }

    /// Held while a VPC is placed and committed, so that the next placement sees it.
    pub async fn placing(&self) -> MutexGuard<'_, ()> {
        self.placing.lock().await
    }

    /// Held while a plan is computed, which may take a processor for seconds.
    pub async fn planning(&self) -> OwnedMutexGuard<()> {
        self.planning.clone().lock_owned().await
    }

    /// Reads the ledger.
    fn ledger<R>(&self, read: impl FnOnce(&Ledger) -> R) -> R {
        read(&self.ledger.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change_ledger(&self, change: impl FnOnce(&mut Ledger, u64)) {
        let now_ms = self.loads.now_ms();
        let mut ledger = self.ledger.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut ledger, now_ms);
        self.ledger_revision.send_replace(ledger.revision());
    }

    /// Adds a VPC that was just committed, before the follower reads the change.
    pub fn add_committed_vpc(&self, vpc: &Vpc) {
        self.change_ledger(|ledger, now_ms| ledger.add_committed(vpc, now_ms));
    }

    /// Gateways of a cluster that neither drain nor leave it.
    pub fn staying_gateways(&self, cluster: ClusterId) -> Vec<GatewayId> {
        self.ledger(|ledger| {
            let all = ledger.clusters.get(&cluster).into_iter().flat_map(|cluster| &cluster.gateways);
            all.filter(|gateway| !gateway.is_retiring()).map(|gateway| gateway.id).collect()
        })
    }

    /// Waits, at most two seconds, until the ledger has the revision that is committed now. Returns false if
    /// the ledger is still empty, because the follower has not read its first snapshot.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn catch_up(&self) -> Result<bool, StoreError> {
        let committed = self.db.store.revision().await?;
        let mut at = self.ledger_revision.subscribe();
        let caught_up = tokio::time::timeout(CATCH_UP, at.wait_for(|at| *at >= committed)).await.is_ok();
        // The follower may take longer behind a large creation. Then the ledger is used as it is.
        Ok(caught_up || *self.ledger_revision.borrow() > 0)
    }

    /// Admits objects that are to be created, if they certainly fit into the tables of their clusters' gateways.
    ///
    /// # Errors
    /// Errors of the store. The inner result is a refusal.
    pub async fn admit(&self, new: NewObjects<'_>) -> Result<Result<Admission, Full>, StoreError> {
        if let Some(Ok(admission)) = self.admit_now(new) {
            return Ok(Ok(admission));
        }
        // The ledger may not have what the objects refer to, and then expects that they need more.
        self.catch_up().await?;
        // Nothing is known about objects that refer to what does not exist: they are refused for that reason.
        Ok(self.admit_now(new).unwrap_or_else(|| Ok(Admission::default())))
    }

    /// `None` if the ledger does not have the VPC or the cluster of the objects.
    fn admit_now(&self, new: NewObjects<'_>) -> Option<Result<Admission, Full>> {
        self.ledger(|ledger| {
            let gateways_of = |cluster| {
                let all = ledger.clusters.get(&cluster).into_iter().flat_map(|cluster| &cluster.gateways);
                all.map(|gateway| gateway.id).collect()
            };
            let are_known = |demands: &Vec<(ClusterId, _)>| {
                demands.iter().all(|(cluster, _)| ledger.clusters.contains_key(cluster))
            };
            let demands = demands(ledger, new).filter(are_known);
            demands.map(|demands| self.admissions.admit(&demands, gateways_of))
        })
    }

    /// The settings of placement.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn settings(&self) -> Result<PlacementSettings, StoreError> {
        self.db.settings(SETTINGS_KEY).await
    }

    /// The loads of all gateways, with the owners of vIPs and the gateways that are down.
    fn load_snapshot(&self) -> LoadSnapshot {
        let (down, owners) = (self.ownership.down(), self.ownership.all_owners());
        LoadSnapshot { down, owners, ..self.loads.snapshot() }
    }

    /// Demand and capacity of all clusters now.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn usage(&self) -> Result<Usage, StoreError> {
        let settings = self.settings().await?;
        let loads = self.load_snapshot();
        Ok(self.ledger(|ledger| Usage::new(ledger, &loads, settings)))
    }
}

impl ChangeObserver for Place {
    fn reset(&self, topology: &Topology, counted: u64, addresses: &[(VpcId, AddressCounts)]) {
        self.admissions.start(topology.revision);
        self.change_ledger(|ledger, _| {
            let mut new = Ledger::new(topology, counted, addresses);
            new.keep_ages(ledger);
            *ledger = new;
        });
    }

    fn apply(&self, revision: u64, changes: &[Change]) {
        self.change_ledger(|ledger, now_ms| ledger.apply(revision, changes, now_ms));
    }

    fn gateway_removed(&self, gateway: GatewayId) {
        self.loads.remove(gateway);
        self.admissions.remove(gateway);
    }
}

impl LoadObserver for Place {
    fn stream_opened(&self, gateway: GatewayId, session: u64) {
        self.loads.open(gateway, session);
        self.admissions.open(gateway, session);
    }

    fn stream_closed(&self, gateway: GatewayId, session: u64) {
        self.loads.close(gateway, session);
        self.admissions.close(gateway, session);
    }

    fn heartbeat(&self, gateway: GatewayId, session: u64, heartbeat: &Heartbeat) {
        self.loads.report(gateway, session, heartbeat);
        self.admissions.report(gateway, session, heartbeat);
    }
}

impl ClusterLoadObserver for Place {
    fn cluster_load(&self, gateway: GatewayId, load: &Load) {
        self.loads.report_recent(gateway, load);
    }
}

/// Name under which the settings of placement are stored.
pub const SETTINGS_KEY: &str = "placement";

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::compile::{CompiledClusters, Model};

    /// A placement over a new database, without a follower.
    pub async fn place() -> Place {
        let db = Arc::new(Database::new(sluice_store::open("sqlite::memory:").await.unwrap()));
        let compiled = Arc::new(CompiledClusters::new(Model::Zeta, 1));
        Place::new(db.clone(), Arc::new(Ownership::new(db, compiled)))
    }

    /// The follower reads its first snapshot of the database. There are no instances and subnets.
    pub async fn follow(place: &Place, topology: Topology) {
        let revision = place.db.store.revision().await.unwrap();
        place.reset(&Topology { revision, ..topology }, revision, &[]);
    }

    #[tokio::test]
    async fn ledger_is_unknown_until_the_follower_has_read_a_snapshot() {
        let place = place().await;
        assert!(place.catch_up().await.unwrap(), "the database is empty, too");
        place.db.store.create_tenant("t").await.unwrap();
        assert!(!place.catch_up().await.unwrap());
        follow(&place, Topology::default()).await;
        assert!(place.catch_up().await.unwrap());
    }
}
