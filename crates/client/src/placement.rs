//! Calls about placement: the load of each cluster, and plans of VPC moves.

use crate::{Client, Result};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId, PlacementSettings, PlacementSettingsPatch, TenantId, VpcId};

/// Capacity and load of a gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementGateway {
    /// Identifier, such as `gw-7`.
    pub id: GatewayId,
    /// Name of the gateway.
    pub name: String,
    /// The gateway is draining: it must own no vIP.
    pub draining: bool,
    /// The gateway has a stream to the controller and has sent a report.
    pub reporting: bool,
    /// Packets per second that the gateway can forward.
    pub capacity_pps: u64,
    /// Source of `capacity_pps`: `set`, `estimated` or `assumed`.
    pub capacity: String,
    /// Packets per second that the gateway forwards.
    pub pps: u64,
    /// Busy fraction of the forwarding cores, 0 to 1.
    pub cpu: f64,
    /// Fraction of the table memory in use, 0 to 1.
    pub memory: f64,
    /// The gateway offloads every flow.
    pub offload_all: bool,
}

/// Capacity and load of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementCluster {
    /// Identifier, such as `cluster-7`.
    pub id: ClusterId,
    /// Name of the cluster.
    pub name: String,
    /// Number of VPCs that the cluster carries.
    pub vpcs: usize,
    /// Packets per second that its VPCs demand.
    pub demand_pps: u64,
    /// Packets per second that its gateways can forward.
    pub capacity_pps: u64,
    /// `demand_pps` divided by `capacity_pps`; `None` if no gateway of the cluster is in service.
    #[serde(default)]
    pub load: Option<f64>,
    /// Table entries of its VPCs.
    pub entries: u64,
    /// Table entries that the cluster can hold: those of its smallest gateway, since all hold the same
    /// tables.
    pub capacity_entries: u64,
    /// Gateways of the cluster.
    pub gateways: Vec<PlacementGateway>,
}

/// Demand of a VPC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementVpc {
    /// Identifier, such as `vpc-7`.
    pub id: VpcId,
    /// Name of the VPC.
    pub name: String,
    /// Tenant that owns the VPC.
    pub tenant: TenantId,
    /// Cluster that carries the VPC.
    pub cluster: ClusterId,
    /// Packets per second that the VPC demands.
    pub demand_pps: u64,
    /// False if `demand_pps` is the average of all VPCs, because this VPC has no measurements yet.
    pub measured: bool,
    /// Table entries that the VPC needs.
    pub entries: u64,
}

/// State of placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Settings of placement.
    pub settings: PlacementSettings,
    /// Number of VPCs.
    pub vpcs: usize,
    /// Load of the most loaded cluster.
    pub max_load: f64,
    /// Lower bound of `max_load` for any placement of the VPCs.
    pub max_load_lower_bound: f64,
    /// Number of tenants that use more clusters than `clusters_per_tenant`.
    pub tenants_over_cluster_limit: usize,
    /// Demand, in packets per second, assumed for a VPC without measurements.
    pub expected_pps: u64,
    /// All clusters, with their loads.
    pub clusters: Vec<PlacementCluster>,
    /// VPCs with the largest demands.
    pub largest: Vec<PlacementVpc>,
}

/// How a plan is computed.
#[derive(Clone, Debug, Serialize)]
pub struct NewPlan {
    /// `rebalance` (few moves) or `solve` (a new placement of all VPCs).
    pub kind: String,
    /// Seed of the random numbers that `solve` uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Stop improving when the most loaded cluster is at most this far above the lower bound; 0.1 is 10%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
}

/// A step of a placement plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// VPCs that move together, because they are peered.
    pub vpcs: Vec<VpcId>,
    /// Cluster that carries the VPCs.
    pub from: ClusterId,
    /// Cluster that the VPCs move to.
    pub to: ClusterId,
    /// Table entries to write on the new cluster.
    pub entries: u64,
    /// Reason for the step.
    pub text: String,
    /// Limits that are exceeded after this step, in words.
    #[serde(default)]
    pub exceeded: Vec<String>,
}

/// Progress of a placement plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Number of the plan.
    pub id: u64,
    /// Time at which the plan was computed, in milliseconds of the UNIX epoch.
    pub created_ms: u64,
    /// `proposed`, `applying`, `done` or `stopped`.
    pub state: String,
    /// Number of steps.
    pub steps: u64,
    /// Number of steps done, counted from the first.
    pub done: u64,
    /// Number of steps that may be in progress at the same time.
    pub parallel: u64,
    /// Reason why the plan was stopped, or empty.
    pub note: String,
}

/// A placement plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementPlan {
    /// Progress of the plan.
    #[serde(flatten)]
    pub progress: PlanSummary,
    /// `rebalance` (few moves) or `solve` (a new placement of all VPCs).
    pub kind: String,
    /// Load of the most loaded cluster before the plan.
    pub max_load_before: f64,
    /// Load of the most loaded cluster after the plan.
    pub max_load: f64,
    /// Lower bound of `max_load` for any placement of the VPCs.
    pub max_load_lower_bound: f64,
    /// Table entries to write in all steps.
    pub entries: u64,
    /// Steps in the order in which they are carried out.
    pub moves: Vec<PlanStep>,
}

#[derive(Deserialize)]
struct Plans {
    items: Vec<PlanSummary>,
}

impl Client {
    /// Gets the state of placement.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn placement(&self) -> Result<Placement> {
        self.get_json("show the placement", self.at("/v1/placement", &[])).await
    }

    /// Changes the settings of placement.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn set_placement(&self, patch: &PlacementSettingsPatch) -> Result<PlacementSettings> {
        self.patch("change the placement settings", "/v1/placement/settings", patch).await
    }

    /// Computes a plan; nothing moves until the plan is applied.
    ///
    /// # Errors
    /// See [`crate::Error`]; [`crate::Error::Refused`] with status 507 if the VPCs do not fit on the
    /// clusters.
    pub async fn plan_placement(&self, new: &NewPlan) -> Result<PlacementPlan> {
        Ok(self.post("compute a plan", "/v1/placement/plan", new).await?.1)
    }

    /// Lists the stored plans.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn plans(&self) -> Result<Vec<PlanSummary>> {
        let plans: Plans = self.get_json("list plans", self.at("/v1/placement/plans", &[])).await?;
        Ok(plans.items)
    }

    /// Starts or resumes a plan, with at most `parallel` steps in progress at the same time.
    ///
    /// # Errors
    /// See [`crate::Error`]; [`crate::Error::Refused`] with status 409 while another plan is applied.
    pub async fn apply_plan(&self, id: u64, parallel: Option<u64>) -> Result<PlanSummary> {
        let body = serde_json::json!({"parallel": parallel});
        Ok(self.post(&format!("apply plan {id}"), &format!("/v1/placement/plans/{id}/apply"), &body).await?.1)
    }

    /// Stops a plan: no more steps are started, steps in progress are finished.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn stop_plan(&self, id: u64) -> Result<PlanSummary> {
        let body = serde_json::json!({});
        Ok(self.post(&format!("stop plan {id}"), &format!("/v1/placement/plans/{id}/stop"), &body).await?.1)
    }

    /// Gets a plan.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn plan(&self, id: u64) -> Result<PlacementPlan> {
        let url = self.at(&format!("/v1/placement/plans/{id}"), &[]);
        self.get_json(&format!("show plan {id}"), url).await
    }
}
