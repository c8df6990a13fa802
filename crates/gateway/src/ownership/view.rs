//! What other parts of the agent need to know about the cluster. This file changes when they need something else.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_cluster::Contacts;
use sluice_types::GatewayId;

use super::plan::GatewayPlan;

/// The cluster as this gateway sees it.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    /// Members and vIPs; `None` before there is a plan.
    pub plan: Option<GatewayPlan>,
    /// The owner of each vIP. While a vIP moves, the next owner.
    pub owners: BTreeMap<IpAddr, GatewayId>,
    /// Digest of the claims that the owners are from.
    pub digest: u64,
    /// Which members packets reach.
    pub contacts: Contacts,
}

impl ClusterView {
    /// The members in ascending order.
    #[must_use]
    pub fn members(&self) -> Vec<GatewayId> {
        let plan = self.plan.as_ref();
        let mut members: Vec<_> =
            plan.map(|plan| plan.members.iter().map(|it| it.gateway).collect()).unwrap_or_default();
        members.sort_unstable();
        members.dedup();
        members
    }
}
