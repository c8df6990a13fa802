//! Placement: what clusters carry, and plans of moves.

use crate::{Client, Result};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId, TenantId, VpcId};
use std::collections::BTreeMap;

/// A gateway, as placement sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementGateway {
    /// Identifier.
    pub id: GatewayId,
    /// Name.
    pub name: String,
    /// It is to own nothing.
    pub draining: bool,
    /// It has a stream to the controller, and has reported.
    pub reporting: bool,
    /// Packets a second that it could forward.
    pub capacity_pps: u64,
    /// `set`, `estimated` or `assumed`.
    pub capacity: String,
    /// Packets a second that it forwards.
    pub pps: u64,
    /// Busy share of its forwarding cores.
    pub cpu: f64,
    /// Share of its table memory in use.
    pub memory: f64,
    /// It offloads every flow.
    pub offload_all: bool,
}

/// A cluster, as placement sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementCluster {
    /// Identifier.
    pub id: ClusterId,
    /// Name.
    pub name: String,
    /// How many VPCs it carries.
    pub vpcs: usize,
    /// Packets a second that they ask for.
    pub demand_pps: u64,
    /// Packets a second that its gateways could forward.
    pub capacity_pps: u64,
    /// The one divided by the other.
    #[serde(default)]
    pub load: Option<f64>,
    /// Entries in its tables.
    pub entries: u64,
    /// Entries that they hold.
    pub capacity_entries: u64,
    /// Its gateways.
    pub gateways: Vec<PlacementGateway>,
}

/// A VPC, as placement sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementVpc {
    /// Identifier.
    pub id: VpcId,
    /// Name.
    pub name: String,
    /// Owner.
    pub tenant: TenantId,
    /// Where it is.
    pub cluster: ClusterId,
    /// Packets a second that it asks for.
    pub demand_pps: u64,
    /// False: that is a guess.
    pub measured: bool,
    /// Entries that it needs.
    pub entries: u64,
}

/// What the site wants of placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementSettings {
    /// Clusters that one tenant's VPCs may be on.
    pub clusters_per_tenant: usize,
    /// To what part a cluster is filled, at most.
    pub water_level: f64,
    /// Packets a second of a gateway of which nothing else is known.
    pub gateway_capacity_pps: u64,
    /// Packets a second of gateways, as they were set.
    pub gateways: BTreeMap<GatewayId, u64>,
}

/// A change of the settings; what is left out stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlacementSettingsPatch {
    /// As [`PlacementSettings::clusters_per_tenant`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters_per_tenant: Option<usize>,
    /// As [`PlacementSettings::water_level`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub water_level: Option<f64>,
    /// As [`PlacementSettings::gateway_capacity_pps`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_capacity_pps: Option<u64>,
    /// As [`PlacementSettings::gateways`]; `None`: as estimated.
    pub gateways: BTreeMap<GatewayId, Option<u64>>,
}

/// What carries what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// What the site wants.
    pub settings: PlacementSettings,
    /// How many VPCs there are.
    pub vpcs: usize,
    /// Load of the fullest cluster.
    pub lambda: f64,
    /// What it is at least, whatever is where.
    pub lambda_at_least: f64,
    /// Tenants on more clusters than they may be.
    pub tenants_over_k: usize,
    /// What a VPC counts for of which nothing is measured.
    pub expected_pps: u64,
    /// All clusters.
    pub clusters: Vec<PlacementCluster>,
    /// VPCs that ask for most.
    pub largest: Vec<PlacementVpc>,
}

/// How moves are found.
#[derive(Clone, Debug, Serialize)]
pub struct NewPlan {
    /// `rebalance` or `solve`.
    pub kind: String,
    /// Of the random numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// How far above the best the fullest cluster may stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// VPCs that go together.
    pub vpcs: Vec<VpcId>,
    /// Where they are.
    pub from: ClusterId,
    /// Where they go.
    pub to: ClusterId,
    /// Entries to write.
    pub entries: u64,
    /// Why.
    pub text: String,
}

/// How far a plan is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Its number.
    pub id: u64,
    /// When it was drawn, milliseconds of the UNIX epoch.
    pub created_ms: u64,
    /// `proposed`, `applying`, `done` or `stopped`.
    pub state: String,
    /// How many steps it has.
    pub steps: u64,
    /// Steps behind it.
    pub done: u64,
    /// Steps that are made at a time.
    pub parallel: u64,
    /// Why it was stopped.
    pub note: String,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementPlan {
    /// How far it is.
    #[serde(flatten)]
    pub progress: PlanSummary,
    /// `rebalance` or `solve`.
    pub kind: String,
    /// Load of the fullest cluster before.
    pub lambda_before: f64,
    /// And after.
    pub lambda: f64,
    /// What it is at least.
    pub lambda_at_least: f64,
    /// Entries to write, in all steps.
    pub entries: u64,
    /// In the order in which they are made.
    pub moves: Vec<PlanStep>,
}

#[derive(Deserialize)]
struct Plans {
    items: Vec<PlanSummary>,
}

impl Client {
    /// What carries what.
    ///
    /// # Errors
    /// As all calls.
    pub async fn placement(&self) -> Result<Placement> {
        self.get_json("show the placement", self.at("/v1/placement", &[])).await
    }

    /// Changes what the site wants of placement.
    ///
    /// # Errors
    /// As all calls.
    pub async fn set_placement(&self, patch: &PlacementSettingsPatch) -> Result<PlacementSettings> {
        self.patch("change the settings of placement", "/v1/placement/settings", patch).await
    }

    /// Draws a plan; nothing is done yet.
    ///
    /// # Errors
    /// As all calls; [`crate::Error::Refused`] with status 507 where no placement has room.
    pub async fn plan_placement(&self, new: &NewPlan) -> Result<PlacementPlan> {
        Ok(self.post("draw a plan", "/v1/placement/plan", new).await?.1)
    }

    /// All plans that are kept.
    ///
    /// # Errors
    /// As all calls.
    pub async fn plans(&self) -> Result<Vec<PlanSummary>> {
        let plans: Plans = self.get_json("list plans", self.at("/v1/placement/plans", &[])).await?;
        Ok(plans.items)
    }

    /// Carries a plan out, or goes on with it, so many steps at a time.
    ///
    /// # Errors
    /// As all calls; [`crate::Error::Refused`] with status 409 while another one is carried out.
    pub async fn apply_plan(&self, id: u64, parallel: Option<u64>) -> Result<PlanSummary> {
        let body = serde_json::json!({"parallel": parallel});
        Ok(self.post(&format!("apply plan {id}"), &format!("/v1/placement/plans/{id}/apply"), &body).await?.1)
    }

    /// Begins no more steps of a plan.
    ///
    /// # Errors
    /// As all calls.
    pub async fn stop_plan(&self, id: u64) -> Result<PlanSummary> {
        let body = serde_json::json!({});
        Ok(self.post(&format!("stop plan {id}"), &format!("/v1/placement/plans/{id}/stop"), &body).await?.1)
    }

    /// A plan.
    ///
    /// # Errors
    /// As all calls.
    pub async fn plan(&self, id: u64) -> Result<PlacementPlan> {
        let url = self.at(&format!("/v1/placement/plans/{id}"), &[]);
        self.get_json(&format!("show plan {id}"), url).await
    }
}
