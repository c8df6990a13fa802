//! The states of clusters and gateways that the API shows.

use super::Ownership;
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::PoisonError;
use utoipa::ToSchema;

/// State of a gateway, as far as this controller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GatewayState {
    /// No message of any gateway of its cluster has arrived since this controller started.
    #[default]
    Unknown,
    /// It forwards packets and answers for its vIPs.
    Ready,
    /// It started, resumed or returned, and does not take part in decisions yet.
    Starting,
    /// Entries of its forwarding tables are missing, so it takes no vIP that another gateway can take.
    Loading,
    /// Its forwarding tables do not receive changes that other gateways receive, so these take its vIPs.
    Behind,
    /// It reports that no node on the underlay answers it.
    Isolated,
    /// Its heartbeats do not arrive, but it may still forward: its peers receive its hellos, or the silence
    /// is short.
    Unreachable,
    /// Neither the controller nor another gateway receives its messages.
    Failed,
    /// It is handing its vIPs to other gateways.
    Draining,
    /// It owns no vIP any more and may be stopped.
    Drained,
}

/// State of one gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayView {
    /// What the gateway does.
    pub state: GatewayState,
    /// The vIPs for which it reports to answer.
    pub answers_for: Vec<IpAddr>,
}

/// State of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The owner of each vIP.
    pub owners: BTreeMap<IpAddr, GatewayId>,
    /// The members of the cluster.
    pub gateways: BTreeMap<GatewayId, GatewayView>,
}

/// The states that were last published by the task that runs the clusters.
#[derive(Debug, Default)]
pub(super) struct PublishedViews {
    clusters: BTreeMap<ClusterId, ClusterView>,
    refused: super::clusters::RefusedCounts,
}

impl PublishedViews {
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
    /// The owners of a cluster's vIPs.
    pub fn owners(&self, cluster: ClusterId) -> BTreeMap<IpAddr, GatewayId> {
        let published = self.published.read().unwrap_or_else(PoisonError::into_inner);
        published.clusters.get(&cluster).map(|view| view.owners.clone()).unwrap_or_default()
    }

    /// The owners of the vIPs of all clusters.
    pub fn all_owners(&self) -> BTreeMap<IpAddr, GatewayId> {
        let published = self.published.read().unwrap_or_else(PoisonError::into_inner);
        published.clusters.values().flat_map(|view| view.owners.clone()).collect()
    }

    /// Gateways that forward nothing, whatever they report: they failed, or no node on the underlay answers
    /// them.
    pub fn down(&self) -> BTreeSet<GatewayId> {
        self.published.read().unwrap_or_else(PoisonError::into_inner).down()
    }

    /// The state of a gateway.
    pub fn gateway(&self, cluster: ClusterId, id: GatewayId) -> GatewayView {
        let published = self.published.read().unwrap_or_else(PoisonError::into_inner);
        published.clusters.get(&cluster).and_then(|view| view.gateways.get(&id)).cloned().unwrap_or_default()
    }

    /// Numbers of rejected datagrams of gateways, by reason.
    pub fn refused(&self) -> super::clusters::RefusedCounts {
        self.published.read().unwrap_or_else(PoisonError::into_inner).refused.clone()
    }

    pub(super) fn publish(
        &self,
        clusters: BTreeMap<ClusterId, ClusterView>,
        refused: super::clusters::RefusedCounts,
    ) {
        *self.published.write().unwrap_or_else(PoisonError::into_inner) =
            PublishedViews::new(clusters, refused);
    }
}
