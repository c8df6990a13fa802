//! Which cluster carries which VPC, and which gateway is the preferred owner of which vIP: prepares the input
//! of the algorithms in `sluice_placement`, and carries out their results.
//!
//! `usage` combines the placement (`ledger`), the measured loads (`load`) and the settings; `new_vpc` places
//! one VPC; `plans` computes moves, which are shown before anything is done, and `apply` carries them out.
//! `scheduler` runs the vIP scheduler.

pub mod apply;
mod ledger;
mod load;
pub mod new_vpc;
pub mod plans;
pub mod scheduler;
pub mod usage;

use crate::database::Database;
use crate::ownership::{Ownership, PulseObserver};
use crate::push::{ChangeObserver, LoadObserver};
use ledger::Ledger;
use load::capacity::{CAPACITY_DEFAULT_PPS, CAPACITY_MAX_PPS};
use load::{LoadSnapshot, Loads};
use scheduler::SharedStatus;
use serde::{Deserialize, Serialize};
use sluice_cluster::Load;
use sluice_southbound::proto::Heartbeat;
use sluice_store::{Change, StoreError, Topology, Vpc};
use sluice_types::{ClusterId, GatewayId, VpcId};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, watch};
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
    /// Results of the scheduler.
    pub scheduler: SharedStatus,
    placing: Mutex<()>,
    planning: Mutex<()>,
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
            scheduler: SharedStatus::default(),
            placing: Mutex::default(),
            planning: Mutex::default(),
        }
    }

    /// Held while a VPC is placed and committed, so that the next placement sees it.
    pub async fn placing(&self) -> MutexGuard<'_, ()> {
        self.placing.lock().await
    }

    /// Held while a plan is computed, which may take a processor for seconds.
    pub async fn planning(&self) -> MutexGuard<'_, ()> {
        self.planning.lock().await
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
            all.filter(|gateway| !gateway.retires()).map(|gateway| gateway.id).collect()
        })
    }

    /// Waits, at most two seconds, until the ledger has the revision that is committed now.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        let committed = self.db.store.revision().await?;
        let mut at = self.ledger_revision.subscribe();
        // The follower may take longer behind a large creation. Then the ledger is used as it is.
        let _ = tokio::time::timeout(CATCH_UP, at.wait_for(|at| *at >= committed)).await;
        Ok(())
    }

    /// Settings of placement.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn settings(&self) -> Result<Settings, StoreError> {
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
    fn reset(&self, topology: &Topology, counted: u64, instances: &[(VpcId, u64)]) {
        self.change_ledger(|ledger, _| {
            let mut new = Ledger::new(topology, counted, instances);
            new.keep_ages(ledger);
            *ledger = new;
        });
    }

    fn apply(&self, revision: u64, changes: &[Change]) {
        self.change_ledger(|ledger, now_ms| ledger.apply(revision, changes, now_ms));
    }

    fn gateway_removed(&self, gateway: GatewayId) {
        self.loads.remove(gateway);
    }
}

impl LoadObserver for Place {
    fn stream_opened(&self, gateway: GatewayId, session: u64) {
        self.loads.open(gateway, session);
    }

    fn stream_closed(&self, gateway: GatewayId, session: u64) {
        self.loads.close(gateway, session);
    }

    fn heartbeat(&self, gateway: GatewayId, session: u64, heartbeat: &Heartbeat) {
        self.loads.report(gateway, session, heartbeat);
    }
}

impl PulseObserver for Place {
    fn pulse(&self, gateway: GatewayId, load: &Load) {
        self.loads.pulse(gateway, load);
    }
}

/// Name under which the settings of placement are stored.
pub const SETTINGS_KEY: &str = "placement";
/// Largest valid limit of clusters per tenant.
const CLUSTERS_PER_TENANT_MAX: usize = 4096;

/// Settings of placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Most clusters that the VPCs of one tenant may be on: k of the paper.
    pub clusters_per_tenant: usize,
    /// Highest load to which placement fills a cluster, as a fraction of its packet rate.
    pub water_level: f64,
    /// Capacity in packets a second of a gateway without an estimate.
    pub gateway_capacity_pps: u64,
    /// Capacities in packets a second that the operator set for single gateways.
    pub gateways: BTreeMap<GatewayId, u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clusters_per_tenant: 4,
            water_level: 0.8,
            gateway_capacity_pps: CAPACITY_DEFAULT_PPS,
            gateways: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Checks the range of each setting.
    ///
    /// # Errors
    /// Name of the first invalid field, and the reason.
    pub fn check(&self) -> Result<(), (String, String)> {
        let invalid = |field: &str, reason: String| Err((field.to_owned(), reason));
        if !(1..=CLUSTERS_PER_TENANT_MAX).contains(&self.clusters_per_tenant) {
            return invalid(
                "clusters_per_tenant",
                format!("the limit must be 1 to {CLUSTERS_PER_TENANT_MAX} clusters"),
            );
        }
        if !(self.water_level > 0.0 && self.water_level <= 1.0) {
            return invalid("water_level", "the water level must be above 0 and at most 1".to_owned());
        }
        let rates = [("gateway_capacity_pps".to_owned(), self.gateway_capacity_pps)].into_iter();
        for (field, pps) in
            rates.chain(self.gateways.iter().map(|(id, pps)| (format!("gateways.{id}"), *pps)))
        {
            if !(1..=CAPACITY_MAX_PPS).contains(&pps) {
                return invalid(
                    &field,
                    format!("the capacity must be 1 to {CAPACITY_MAX_PPS} packets a second"),
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_named() {
        let field = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().err().map(|(field, _)| field)
        };
        assert_eq!(field(|_| {}), None);
        assert_eq!(field(|it| it.clusters_per_tenant = 0).as_deref(), Some("clusters_per_tenant"));
        for level in [0.0, -1.0, 1.1, f64::NAN] {
            let settings = Settings { water_level: level, ..Settings::default() };
            assert!(settings.check().is_err(), "{level}");
        }
        assert_eq!(field(|it| it.gateway_capacity_pps = 0).as_deref(), Some("gateway_capacity_pps"));
        let of_gateway = field(|it| it.gateways = [(GatewayId::new(7), u64::MAX)].into());
        assert_eq!(of_gateway.as_deref(), Some("gateways.gw-7"));
    }

    #[test]
    fn missing_settings_have_their_default() {
        let settings: Settings = serde_json::from_str(r#"{"water_level":0.5}"#).unwrap();
        assert_eq!(settings, Settings { water_level: 0.5, ..Settings::default() });
    }
}
