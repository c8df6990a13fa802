//! What the compiler publishes of clusters besides table entries: keys, vIP assignments and zones.
//! The follower writes it after each revision; node streams and the ownership task read it.

use super::{Model, State, Zones};
use sluice_southbound::Update;
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Keys and vIP assignment of each cluster, which nodes keep outside of their tables.
pub type ClusterUpdates = BTreeMap<ClusterId, Update>;

/// The handle of this module: the published state of all clusters.
#[derive(Debug)]
pub struct CompiledClusters {
    model: Model,
    updates: RwLock<Arc<ClusterUpdates>>,
    zones: watch::Sender<Zones>,
}

impl CompiledClusters {
    /// Starts empty. `zone_backups` is the number of backup gateways of each cluster in the zone model.
    pub fn new(model: Model, zone_backups: usize) -> Self {
        Self { model, updates: RwLock::default(), zones: watch::Sender::new(Zones::new(zone_backups)) }
    }

    /// The forwarding model of all nodes.
    pub fn model(&self) -> Model {
        self.model
    }

    /// Keys and vIP assignments as of the last compiled revision; empty before the first one.
    pub fn updates(&self) -> Arc<ClusterUpdates> {
        self.updates.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes keys and vIP assignments. Only the follower calls it.
    pub fn publish_updates(&self, state: &State) {
        *self.updates.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state.cluster_updates());
    }

    /// Publishes the members of the zones, if the model has zones. Only the follower calls it.
    pub fn publish_zones(&self, state: &State) {
        if self.model.has_zones() {
            self.change_zones(|zones| zones.set(state.zone_inputs()));
        }
    }

    /// The zones, and notice of their changes. In models without zones they have no nodes.
    pub fn zones(&self) -> watch::Receiver<Zones> {
        self.zones.subscribe()
    }

    /// Records that a gateway cannot be relied on, or can again: its zone changes to a backup gateway or back.
    pub fn set_gateway_away(&self, gateway: GatewayId, away: bool) {
        self.change_zones(|zones| zones.set_away(gateway, away));
    }

    fn change_zones(&self, change: impl FnOnce(&mut Zones)) {
        self.zones.send_if_modified(|zones| {
            let before = zones.clone();
            change(zones);
            *zones != before
        });
    }
}
