//! Placement: demand and capacity of clusters, the settings, and plans of moves.

use super::problem::Problem;
use super::request::{Id, Json, NoBody};
use super::{Api, App, blocking};
use crate::clock::now_ms;
use crate::place::plans::{self, ComputedPlan, PlanKind, compute_plan};
use crate::place::usage::{CapacitySource, ClusterUsage, GatewayUsage, Usage, VpcUsage};
use crate::place::{SETTINGS_KEY, apply};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json as Answer, Response};
use serde::{Deserialize, Serialize};
use sluice_placement::PlacementError;
use sluice_store::{PlanProgress, StoredPlan};
use sluice_types::{ClusterId, GatewayId, PlacementSettings, PlacementSettingsPatch, TenantId, VpcId};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Number of VPCs with the highest demand that are shown one by one.
const LARGEST: usize = 20;
/// Default of `tolerance`.
const TOLERANCE: f64 = 0.1;
/// Most steps of a plan that are made at a time.
const MAX_PARALLEL: u64 = 64;

macro_rules! declare_schemas {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $unit:literal $option:literal, $min:tt to $max:tt;)+) => {
        /// Limits of placement.
        #[derive(ToSchema)]
        #[schema(as = PlacementSettings)]
        #[allow(dead_code)] // only describes `sluice_types::PlacementSettings`
        struct SettingsSchema {
            $($(#[doc = $doc])+ #[schema(minimum = $min, maximum = $max)] $name: $type,)+
            /// Capacities in packets per second that the operator set for single gateways
            #[schema(value_type = BTreeMap<String, u64>)]
            gateways: BTreeMap<GatewayId, u64>,
        }

        /// The settings that change; the others keep their values.
        #[derive(Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        #[schema(as = PlacementSettingsPatch)]
        #[allow(dead_code)] // only describes `sluice_types::PlacementSettingsPatch`
        struct PatchSchema {
            $($(#[doc = $doc])+ #[schema(minimum = $min, maximum = $max)] $name: Option<$type>,)+
            /// Capacities in packets per second by gateway; null returns to the estimate
            #[schema(value_type = BTreeMap<String, Option<u64>>)]
            #[serde(default)]
            gateways: BTreeMap<GatewayId, Option<u64>>,
        }
    };
}

sluice_types::placement_settings!(declare_schemas);

#[derive(Serialize, ToSchema)]
struct PlacementGateway {
    #[schema(value_type = String, example = "gw-1")]
    id: GatewayId,
    name: String,
    draining: bool,
    /// The gateway has a stream to this controller and has reported.
    reporting: bool,
    /// Packets a second that it can forward.
    capacity_pps: u64,
    /// Source of the capacity: `set` by the operator, `estimated` from packet rate and CPU load, or
    /// `assumed`.
    capacity: &'static str,
    /// Packets a second that it forwards.
    pps: u64,
    /// CPU load of its forwarding cores; 1 is full load.
    cpu: f64,
    /// Used fraction of its table memory.
    memory: f64,
    /// Every flow is offloaded, because the gateway is overloaded.
    offload_all: bool,
}

#[derive(Serialize, ToSchema)]
struct PlacementCluster {
    #[schema(value_type = String, example = "cluster-1")]
    id: ClusterId,
    name: String,
    /// Number of its VPCs.
    vpcs: usize,
    /// Packets a second of its VPCs.
    demand_pps: u64,
    /// Packets a second that its gateways can forward.
    capacity_pps: u64,
    /// Demand divided by capacity. Absent if no gateway serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<f64>,
    /// Entries in its tables.
    entries: u64,
    /// Entries that the tables of its smallest gateway certainly hold.
    capacity_entries: u64,
    gateways: Vec<PlacementGateway>,
}

#[derive(Serialize, ToSchema)]
struct PlacementVpc {
    #[schema(value_type = String, example = "vpc-1")]
    id: VpcId,
    name: String,
    #[schema(value_type = String, example = "tenant-1")]
    tenant: TenantId,
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    /// Packets a second. For the first ten minutes of the VPC, at least the average of the measured VPCs.
    demand_pps: u64,
    /// The demand is measured. Otherwise it is the average of the measured VPCs.
    measured: bool,
    /// Entries in the tables of its cluster.
    entries: u64,
}

/// Placement of the whole cloud.
#[derive(Serialize, ToSchema)]
struct Placement {
    #[schema(value_type = SettingsSchema)]
    settings: PlacementSettings,
    /// Database revision of this placement.
    revision: u64,
    /// Number of VPCs.
    vpcs: usize,
    /// Load of the most loaded cluster. Clusters without serving gateways do not count.
    max_load: f64,
    /// Lower bound of `max_load` for any placement.
    max_load_lower_bound: f64,
    /// Number of tenants on more clusters than the limit.
    tenants_over_cluster_limit: usize,
    /// Demand of a VPC without a measurement, in packets a second.
    expected_pps: u64,
    clusters: Vec<PlacementCluster>,
    /// The VPCs with the highest demand, at most 20.
    largest: Vec<PlacementVpc>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPlan {
    kind: PlanKind,
    /// Seed of the random numbers of `solve`; 1 if left out.
    seed: Option<u64>,
    /// How far above the lower bound the most loaded cluster may stay after `rebalance`; 0.1 if left out.
    #[schema(minimum = 0)]
    tolerance: Option<f64>,
}

#[derive(Serialize, ToSchema)]
struct PlanStep {
    /// The VPCs that move. Peered VPCs move together.
    #[schema(value_type = Vec<String>, example = json!(["vpc-1"]))]
    vpcs: Vec<VpcId>,
    #[schema(value_type = String, example = "cluster-1")]
    from: ClusterId,
    #[schema(value_type = String, example = "cluster-2")]
    to: ClusterId,
    /// Number of entries to write to each gateway of the new cluster.
    entries: u64,
    /// Reason, for programs.
    #[schema(value_type = Object)]
    reason: serde_json::Value,
    /// Reason, in words.
    text: String,
    /// Limits that are exceeded after this step, in words.
    exceeded: Vec<String>,
}

/// Progress of a plan.
#[derive(Serialize, ToSchema)]
struct PlanSummary {
    id: u64,
    /// Time of creation in milliseconds of the UNIX epoch.
    created_ms: u64,
    /// `proposed`, `applying`, `done` or `stopped`.
    state: &'static str,
    /// Number of steps.
    steps: u64,
    /// Number of completed steps, counted from the first.
    done: u64,
    /// Most steps that are made at a time.
    parallel: u64,
    /// Reason why the plan stopped. Otherwise empty.
    note: String,
}

/// A plan with its moves in the order in which they are made.
#[derive(Serialize, ToSchema)]
struct PlacementPlan {
    #[serde(flatten)]
    progress: PlanSummary,
    kind: PlanKind,
    seed: u64,
    revision: u64,
    /// Load of the most loaded cluster before the first step. Clusters without serving gateways do not count.
    max_load_before: f64,
    /// Load of the most loaded cluster after the last step.
    max_load: f64,
    /// Lower bound of that load for any placement.
    max_load_lower_bound: f64,
    /// Number of tenants on more clusters than the limit, before the first step.
    tenants_over_cluster_limit_before: usize,
    /// Number of tenants on more clusters than the limit, after the last step.
    tenants_over_cluster_limit: usize,
    /// Number of entries to write in all steps.
    entries: u64,
    moves: Vec<PlanStep>,
}

#[derive(Serialize, ToSchema)]
struct Plans {
    items: Vec<PlanSummary>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApplyPlan {
    /// Most steps at a time, 1 to 64; 1 if left out.
    #[schema(minimum = 1, maximum = 64)]
    parallel: Option<u64>,
}

impl From<&GatewayUsage> for PlacementGateway {
    fn from(usage: &GatewayUsage) -> Self {
        let load = usage.load.unwrap_or_default();
        Self {
            id: usage.id,
            name: usage.name.clone(),
            draining: usage.draining,
            reporting: usage.load.is_some(),
            capacity_pps: usage.capacity_pps,
            capacity: match usage.capacity_source {
                CapacitySource::Set => "set",
                CapacitySource::Estimated => "estimated",
                CapacitySource::Assumed => "assumed",
            },
            pps: load.pps as u64,
            cpu: load.busy,
            memory: load.memory,
            offload_all: load.offload_all,
        }
    }
}

impl From<&ClusterUsage> for PlacementCluster {
    fn from(usage: &ClusterUsage) -> Self {
        Self {
            id: usage.id,
            name: usage.name.clone(),
            vpcs: usage.vpcs,
            demand_pps: usage.demand_pps,
            capacity_pps: usage.capacity_pps,
            load: usage.load(),
            entries: usage.entries,
            capacity_entries: usage.capacity_entries,
            gateways: usage.gateways.iter().map(Into::into).collect(),
        }
    }
}

impl From<&VpcUsage> for PlacementVpc {
    fn from(usage: &VpcUsage) -> Self {
        let VpcUsage { id, tenant, cluster, demand_pps, measured, entries, .. } = *usage;
        Self { id, name: usage.name.clone(), tenant, cluster, demand_pps, measured, entries }
    }
}

impl From<Usage> for Placement {
    fn from(usage: Usage) -> Self {
        let mut largest: Vec<&VpcUsage> = usage.vpcs.iter().collect();
        largest.sort_by_key(|vpc| (std::cmp::Reverse(vpc.demand_pps), vpc.id));
        largest.truncate(LARGEST);
        let balance = usage.balance();
        Self {
            revision: usage.revision,
            vpcs: usage.vpcs.len(),
            max_load: balance.max_load,
            max_load_lower_bound: balance.max_load_lower_bound,
            tenants_over_cluster_limit: balance.tenants_over_cluster_limit,
            expected_pps: usage.expected_pps,
            clusters: usage.clusters.iter().map(Into::into).collect(),
            largest: largest.into_iter().map(Into::into).collect(),
            settings: usage.settings,
        }
    }
}

impl From<PlanProgress> for PlanSummary {
    fn from(progress: PlanProgress) -> Self {
        let PlanProgress { id, created_ms, state, steps, done, parallel, note } = progress;
        Self { id, created_ms, state: state.text(), steps, done, parallel, note }
    }
}

impl PlacementPlan {
    fn new(progress: PlanProgress, plan: ComputedPlan) -> Self {
        let step = |step: plans::PlanStep| {
            let plans::PlanStep { vpcs, from, to, entries, reason, text, exceeded } = step;
            PlanStep { vpcs, from, to, entries, reason, text, exceeded }
        };
        Self {
            progress: progress.into(),
            kind: plan.kind,
            seed: plan.seed,
            revision: plan.revision,
            max_load_before: plan.max_load_before,
            max_load: plan.max_load,
            max_load_lower_bound: plan.max_load_lower_bound,
            tenants_over_cluster_limit_before: plan.tenants_over_cluster_limit_before,
            tenants_over_cluster_limit: plan.tenants_over_cluster_limit,
            entries: plan.steps.iter().map(|step| step.entries).sum(),
            moves: plan.steps.into_iter().map(step).collect(),
        }
    }

    fn read(stored: StoredPlan) -> Result<Self, Problem> {
        let plan = plans::parse_plan(&stored.body)?;
        Ok(Self::new(stored.progress, plan))
    }
}

#[utoipa::path(get, path = "/v1/placement", tag = "placement", responses((status = 200, body = Placement)))]
async fn get_placement(State(api): State<App>) -> Result<Answer<Placement>, Problem> {
    Ok(Answer(api.place.usage().await?.into()))
}

#[utoipa::path(patch, path = "/v1/placement/settings", tag = "placement",
    request_body = PatchSchema, responses((status = 200, body = SettingsSchema)))]
async fn update_settings(
    State(api): State<App>,
    Json(patch): Json<PlacementSettingsPatch>,
) -> Result<Answer<PlacementSettings>, Problem> {
    // The capacity of a gateway that was deleted can be removed.
    for (id, _) in patch.gateways.iter().filter(|(_, pps)| pps.is_some()) {
        api.db.store.gateway(*id).await.map_err(|error| Problem::of_store(error, None))?;
    }
    let change = |settings: &mut PlacementSettings| {
        *settings = std::mem::take(settings).patched(&patch);
        settings.check().map_err(|error| Problem::invalid(&error.setting, error.to_string()))
    };
    Ok(Answer(super::settings::change(&api, SETTINGS_KEY, change).await?))
}

/// The problem of a placement that cannot be computed.
fn of_placement(error: &PlacementError) -> Problem {
    let text = error.to_string();
    match error {
        PlacementError::DemandTooHigh { .. }
        | PlacementError::AboveWaterLevel { .. }
        | PlacementError::DoesNotFit { .. } => {
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, "no-capacity", text).offender("clusters")
        }
        _ => Problem::new(StatusCode::CONFLICT, "cannot-place", text).offender("clusters"),
    }
}

#[utoipa::path(post, path = "/v1/placement/plan", tag = "placement", request_body = NewPlan,
    responses((status = 201, body = PlacementPlan)))]
async fn create_plan(State(api): State<App>, Json(body): Json<NewPlan>) -> Result<Response, Problem> {
    let tolerance = body.tolerance.unwrap_or(TOLERANCE);
    if !(tolerance >= 0.0 && tolerance.is_finite()) {
        return Err(Problem::invalid("tolerance", "the tolerance must be at least 0"));
    }
    let (kind, seed) = (body.kind, body.seed.unwrap_or(1));
    // One plan at a time: it may keep a processor busy for seconds.
    let permit = api.place.planning().await;
    let usage = api.current_usage().await?;
    let (plan, _) = blocking::run(permit, move || compute_plan(&usage, kind, seed, tolerance)).await?;
    let plan = plan.map_err(|error| of_placement(&error))?;
    let text = serde_json::to_string(&plan).map_err(|_| Problem::internal())?;
    let store = &api.db.store;
    let id = store.add_plan(now_ms(), plan.steps.len() as u64, &text).await?;
    let progress = store.plan(id).await?.progress;
    Ok((StatusCode::CREATED, Answer(PlacementPlan::new(progress, plan))).into_response())
}

#[utoipa::path(get, path = "/v1/placement/plans", tag = "placement", responses((status = 200, body = Plans)))]
async fn list_plans(State(api): State<App>) -> Result<Answer<Plans>, Problem> {
    let items = api.db.store.plans().await?.into_iter().map(Into::into).collect();
    Ok(Answer(Plans { items }))
}

#[utoipa::path(get, path = "/v1/placement/plans/{plan}", tag = "placement",
    params(("plan" = u64, Path)), responses((status = 200, body = PlacementPlan)))]
async fn get_plan(State(api): State<App>, Id(id): Id<u64>) -> Result<Answer<PlacementPlan>, Problem> {
    Ok(Answer(PlacementPlan::read(api.db.store.plan(id).await?)?))
}

/// Applies a plan, or continues it where it stopped.
#[utoipa::path(post, path = "/v1/placement/plans/{plan}/apply", tag = "placement",
    params(("plan" = u64, Path)), request_body = ApplyPlan, responses((status = 202, body = PlanSummary)))]
async fn apply_plan(
    State(api): State<App>,
    Id(id): Id<u64>,
    Json(body): Json<ApplyPlan>,
) -> Result<Response, Problem> {
    let parallel = body.parallel.unwrap_or(1);
    if !(1..=MAX_PARALLEL).contains(&parallel) {
        return Err(Problem::invalid("parallel", format!("parallel must be between 1 and {MAX_PARALLEL}")));
    }
    let progress = api.db.store.apply_plan(id, parallel).await?;
    Ok((StatusCode::ACCEPTED, Answer(PlanSummary::from(progress))).into_response())
}

/// Stops a plan that is being applied: no more steps start, and steps that have started are finished.
#[utoipa::path(post, path = "/v1/placement/plans/{plan}/stop", tag = "placement",
    params(("plan" = u64, Path)), responses((status = 200, body = PlanSummary)))]
async fn stop_plan(
    State(api): State<App>,
    Id(id): Id<u64>,
    _: NoBody,
) -> Result<Answer<PlanSummary>, Problem> {
    Ok(Answer(apply::stop_plan(&api.place, id).await?.into()))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(get_placement))
        .routes(routes!(update_settings))
        .routes(routes!(create_plan))
        .routes(routes!(list_plans))
        .routes(routes!(get_plan))
        .routes(routes!(apply_plan))
        .routes(routes!(stop_plan))
}
