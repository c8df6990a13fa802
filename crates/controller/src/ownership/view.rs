//! What the API shows of who owns what.

use super::Ownership;
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::PoisonError;
use utoipa::ToSchema;

/// How a gateway is, as far as this controller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GatewayState {
    /// It has not been heard since this controller started.
    #[default]
    Unknown,
    /// It forwards and answers.
    Ready,
    /// It started, woke up or came back, and decides nothing yet.
    Starting,
    /// It reports that no node on the underlay answers it.
    Isolated,
    /// Its heartbeats do not come, but its peers hear it, or may.
    Unreachable,
    /// Neither the controller nor a gateway hears it.
    Failed,
    /// It gives its vIPs away.
    Draining,
    /// It has given them away, and may be stopped.
    Drained,
}

/// A gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayView {
    /// How it is.
    pub state: GatewayState,
    /// vIPs that it says it answers for.
    pub answers_for: Vec<IpAddr>,
}

/// A cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Who owns each vIP.
    pub owners: BTreeMap<IpAddr, GatewayId>,
    /// Its members.
    pub gateways: BTreeMap<GatewayId, GatewayView>,
}

/// All clusters, a moment ago.
#[derive(Debug, Default)]
pub(super) struct Shown {
    clusters: BTreeMap<ClusterId, ClusterView>,
    refused: super::clusters::RefusedCounts,
}

impl Shown {
    pub(super) fn new(
        clusters: BTreeMap<ClusterId, ClusterView>,
        refused: super::clusters::RefusedCounts,
    ) -> Self {
        Self { clusters, refused }
    }

    pub(super) fn down(&self) -> BTreeSet<GatewayId> {
        let gateways = self.clusters.values().flat_map(|view| &view.gateways);
        let down = |state| matches!(state, GatewayState::Failed | GatewayState::Isolated);
        gateways.filter(|(_, gateway)| down(gateway.state)).map(|(id, _)| *id).collect()
    }
}

impl Ownership {
    /// Who owns a cluster's vIPs.
    pub fn owners(&self, cluster: ClusterId) -> BTreeMap<IpAddr, GatewayId> {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        shown.clusters.get(&cluster).map(|view| view.owners.clone()).unwrap_or_default()
    }

    /// Who owns vIPs, in all clusters.
    pub fn all_owners(&self) -> BTreeMap<IpAddr, GatewayId> {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        shown.clusters.values().flat_map(|view| view.owners.clone()).collect()
    }

    /// Gateways that forward nothing, whatever they report: they failed, or no node on the underlay answers them.
    pub fn down(&self) -> BTreeSet<GatewayId> {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).down()
    }

    /// How a gateway is.
    pub fn gateway(&self, cluster: ClusterId, id: GatewayId) -> GatewayView {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        shown.clusters.get(&cluster).and_then(|view| view.gateways.get(&id)).cloned().unwrap_or_default()
    }

    /// Datagrams of gateways that were not taken, by why.
    pub fn refused(&self) -> super::clusters::RefusedCounts {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).refused.clone()
    }

    pub(super) fn show(
        &self,
        clusters: BTreeMap<ClusterId, ClusterView>,
        refused: super::clusters::RefusedCounts,
    ) {
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Shown::new(clusters, refused);
    }
}
