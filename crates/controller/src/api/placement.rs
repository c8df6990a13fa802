//! Placement: what clusters carry, what the site wants of that, and plans of moves.

use super::problem::Problem;
use super::request::{Id, Json};
use super::{Api, App};
use crate::hub::now_ms;
use crate::placing::picture::{ClusterView, GatewayView, Known, Picture, VpcView};
use crate::placing::plans::{Drawn, Kind, Step, draw};
use crate::placing::{self, SETTINGS_KEY, Settings};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json as Answer, Response};
use serde::{Deserialize, Serialize};
use sluice_placement::PlacementError;
use sluice_store::{PlanProgress, StoredPlan};
use sluice_types::{ClusterId, GatewayId, TenantId, VpcId};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// VPCs that are shown one by one: those that ask for most.
const LARGEST: usize = 20;
/// How far above the best a rebalanced cluster may stay.
const TOLERANCE: f64 = 0.1;
/// Steps of a plan at a time, at most.
const MAX_PARALLEL: u64 = 64;

#[derive(Serialize, ToSchema)]
struct PlacementGateway {
    #[schema(value_type = String, example = "gw-1")]
    id: GatewayId,
    name: String,
    draining: bool,
    /// It has a stream to this controller, and has reported.
    reporting: bool,
    /// Packets a second that it could forward.
    capacity_pps: u64,
    /// `set` by the operator, `estimated` from packets and CPU, or `assumed`.
    capacity: &'static str,
    /// Packets a second that it forwards.
    pps: u64,
    /// Busy share of its forwarding cores.
    cpu: f64,
    /// Share of its table memory in use.
    memory: f64,
    /// Every flow is offloaded, as it is overloaded.
    offload_all: bool,
}

#[derive(Serialize, ToSchema)]
struct PlacementCluster {
    #[schema(value_type = String, example = "cluster-1")]
    id: ClusterId,
    name: String,
    vpcs: usize,
    /// Packets a second that its VPCs ask for, and that its gateways could forward.
    demand_pps: u64,
    capacity_pps: u64,
    /// The one divided by the other; absent where no gateway serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<f64>,
    /// In its tables, and that they hold.
    entries: u64,
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
    demand_pps: u64,
    /// False: it is what VPCs forward on average.
    measured: bool,
    entries: u64,
}

#[derive(Serialize, ToSchema)]
struct PlacementSettings {
    /// On how many clusters one tenant's VPCs may be.
    clusters_per_tenant: usize,
    /// To what part of its packet rate a cluster is filled, at most.
    water_level: f64,
    /// Packets a second of a gateway of which nothing else is known.
    gateway_capacity_pps: u64,
    /// Packets a second of gateways, as the operator set them.
    #[schema(value_type = BTreeMap<String, u64>)]
    gateways: BTreeMap<GatewayId, u64>,
}

/// What carries what.
#[derive(Serialize, ToSchema)]
struct Placement {
    settings: PlacementSettings,
    /// Of the database, that this is of.
    revision: u64,
    vpcs: usize,
    /// Load of the fullest cluster.
    lambda: f64,
    /// What it is at least, whatever is where.
    lambda_at_least: f64,
    /// Tenants on more clusters than they may be.
    tenants_over_k: usize,
    /// What a VPC counts for of which nothing is measured.
    expected_pps: u64,
    clusters: Vec<PlacementCluster>,
    /// VPCs that ask for most, at most 20.
    largest: Vec<PlacementVpc>,
}

/// What changes; the rest stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PlacementSettingsPatch {
    #[schema(minimum = 1, maximum = 4096)]
    clusters_per_tenant: Option<usize>,
    /// Above 0, at most 1.
    water_level: Option<f64>,
    #[schema(minimum = 1)]
    gateway_capacity_pps: Option<u64>,
    /// Packets a second by gateway; null: as estimated.
    #[schema(value_type = BTreeMap<String, Option<u64>>)]
    #[serde(default)]
    gateways: BTreeMap<GatewayId, Option<u64>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewPlan {
    kind: Kind,
    /// Of the random numbers of `solve`; 1 if left out.
    seed: Option<u64>,
    /// How far above the best the fullest cluster may stay when `rebalance` ends; 0.1 if left out.
    #[schema(minimum = 0)]
    tolerance: Option<f64>,
}

#[derive(Serialize, ToSchema)]
struct PlanStep {
    /// VPCs that are peered go together.
    #[schema(value_type = Vec<String>, example = json!(["vpc-1"]))]
    vpcs: Vec<VpcId>,
    #[schema(value_type = String, example = "cluster-1")]
    from: ClusterId,
    #[schema(value_type = String, example = "cluster-2")]
    to: ClusterId,
    /// To write in each gateway of the new cluster.
    entries: u64,
    #[schema(value_type = Object)]
    reason: serde_json::Value,
    /// The reason in words, and what is exceeded for now, if anything is.
    text: String,
}

/// How far a plan is.
#[derive(Serialize, ToSchema)]
struct PlanSummary {
    id: u64,
    /// Milliseconds of the UNIX epoch.
    created_ms: u64,
    /// `proposed`, `applying`, `done` or `stopped`.
    state: &'static str,
    steps: u64,
    /// Steps behind it, from the first on.
    done: u64,
    /// Steps that are made at a time.
    parallel: u64,
    /// Why it was stopped; else empty.
    note: String,
}

/// Moves in the order in which they are made.
#[derive(Serialize, ToSchema)]
struct PlacementPlan {
    #[serde(flatten)]
    progress: PlanSummary,
    kind: Kind,
    seed: u64,
    revision: u64,
    /// Load of the fullest cluster before the first step, behind the last, and at least.
    lambda_before: f64,
    lambda: f64,
    lambda_at_least: f64,
    /// Tenants on more clusters than they may be, before and after.
    tenants_over_k_before: usize,
    tenants_over_k: usize,
    /// To write, in all steps.
    entries: u64,
    moves: Vec<PlanStep>,
}

#[derive(Serialize, ToSchema)]
struct Plans {
    items: Vec<PlanSummary>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ApplyPlan {
    /// Steps at a time, 1 to 64; 1 if left out.
    #[schema(minimum = 1, maximum = 64)]
    parallel: Option<u64>,
}

impl From<Settings> for PlacementSettings {
    fn from(settings: Settings) -> Self {
        let Settings { clusters_per_tenant, water_level, gateway_capacity_pps, gateways } = settings;
        Self { clusters_per_tenant, water_level, gateway_capacity_pps, gateways }
    }
}

impl From<&GatewayView> for PlacementGateway {
    fn from(view: &GatewayView) -> Self {
        let load = view.load.unwrap_or_default();
        Self {
            id: view.id,
            name: view.name.clone(),
            draining: view.draining,
            reporting: view.load.is_some(),
            capacity_pps: view.capacity_pps,
            capacity: match view.known {
                Known::Set => "set",
                Known::Estimated => "estimated",
                Known::Assumed => "assumed",
            },
            pps: load.pps as u64,
            cpu: load.busy,
            memory: load.memory,
            offload_all: load.offload_all,
        }
    }
}

impl From<&ClusterView> for PlacementCluster {
    fn from(view: &ClusterView) -> Self {
        Self {
            id: view.id,
            name: view.name.clone(),
            vpcs: view.vpcs,
            demand_pps: view.demand_pps,
            capacity_pps: view.capacity_pps,
            load: view.load(),
            entries: view.entries,
            capacity_entries: view.capacity_entries,
            gateways: view.gateways.iter().map(Into::into).collect(),
        }
    }
}

impl From<&VpcView> for PlacementVpc {
    fn from(view: &VpcView) -> Self {
        let VpcView { id, tenant, cluster, demand_pps, measured, entries, .. } = *view;
        Self { id, name: view.name.clone(), tenant, cluster, demand_pps, measured, entries }
    }
}

impl From<Picture> for Placement {
    fn from(picture: Picture) -> Self {
        let mut largest: Vec<&VpcView> = picture.vpcs.iter().collect();
        largest.sort_by_key(|vpc| (std::cmp::Reverse(vpc.demand_pps), vpc.id));
        largest.truncate(LARGEST);
        let balance = picture.balance();
        Self {
            revision: picture.revision,
            vpcs: picture.vpcs.len(),
            lambda: balance.lambda,
            lambda_at_least: balance.lambda_at_least,
            tenants_over_k: balance.tenants_over_k,
            expected_pps: picture.expected_pps,
            clusters: picture.clusters.iter().map(Into::into).collect(),
            largest: largest.into_iter().map(Into::into).collect(),
            settings: picture.settings.into(),
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
    fn new(progress: PlanProgress, drawn: Drawn) -> Self {
        let step = |step: Step| {
            let Step { vpcs, from, to, entries, reason, text } = step;
            PlanStep { vpcs, from, to, entries, reason, text }
        };
        Self {
            progress: progress.into(),
            kind: drawn.kind,
            seed: drawn.seed,
            revision: drawn.revision,
            lambda_before: drawn.lambda_before,
            lambda: drawn.lambda,
            lambda_at_least: drawn.lambda_at_least,
            tenants_over_k_before: drawn.tenants_over_k_before,
            tenants_over_k: drawn.tenants_over_k,
            entries: drawn.steps.iter().map(|step| step.entries).sum(),
            moves: drawn.steps.into_iter().map(step).collect(),
        }
    }

    fn read(stored: StoredPlan) -> Result<Self, Problem> {
        let drawn = placing::plans::read(&stored.body)?;
        Ok(Self::new(stored.progress, drawn))
    }
}

#[utoipa::path(get, path = "/v1/placement", tag = "placement", responses((status = 200, body = Placement)))]
async fn get_placement(State(api): State<App>) -> Result<Answer<Placement>, Problem> {
    Ok(Answer(placing::picture(&api.core).await?.into()))
}

#[utoipa::path(patch, path = "/v1/placement/settings", tag = "placement",
    request_body = PlacementSettingsPatch, responses((status = 200, body = PlacementSettings)))]
async fn update_settings(
    State(api): State<App>,
    Json(patch): Json<PlacementSettingsPatch>,
) -> Result<Answer<PlacementSettings>, Problem> {
    for id in patch.gateways.keys() {
        api.core.store.gateway(*id).await.map_err(|error| Problem::of_store(error, None))?;
    }
    let change = |settings: &mut Settings| {
        settings.clusters_per_tenant = patch.clusters_per_tenant.unwrap_or(settings.clusters_per_tenant);
        settings.water_level = patch.water_level.unwrap_or(settings.water_level);
        settings.gateway_capacity_pps = patch.gateway_capacity_pps.unwrap_or(settings.gateway_capacity_pps);
        for (id, pps) in &patch.gateways {
            match pps {
                Some(pps) => settings.gateways.insert(*id, *pps),
                None => settings.gateways.remove(id),
            };
        }
        settings.check().map_err(|(field, why)| Problem::invalid(&field, why))
    };
    Ok(Answer(super::settings::change(&api, SETTINGS_KEY, change).await?.into()))
}

/// What has no plan, and why.
fn of_placement(error: &PlacementError) -> Problem {
    let text = error.to_string();
    match error {
        PlacementError::TooLoaded { .. }
        | PlacementError::AboveWaterLevel { .. }
        | PlacementError::DoesNotFit { .. } => {
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, "no-room", text).offender("clusters")
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
    // It may take a processor for seconds.
    let _turn = api.planning.lock().await;
    api.core.caught_up().await?;
    let picture = placing::picture(&api.core).await?;
    let drawn = tokio::task::spawn_blocking(move || draw(&picture, kind, seed, tolerance)).await;
    let drawn = drawn.map_err(|_| Problem::internal())?.map_err(|error| of_placement(&error))?;
    let text = serde_json::to_string(&drawn).map_err(|_| Problem::internal())?;
    let store = &api.core.store;
    let id = store.add_plan(now_ms(), drawn.steps.len() as u64, &text).await?;
    let progress = store.plan(id).await?.progress;
    Ok((StatusCode::CREATED, Answer(PlacementPlan::new(progress, drawn))).into_response())
}

#[utoipa::path(get, path = "/v1/placement/plans", tag = "placement", responses((status = 200, body = Plans)))]
async fn list_plans(State(api): State<App>) -> Result<Answer<Plans>, Problem> {
    let items = api.core.store.plans().await?.into_iter().map(Into::into).collect();
    Ok(Answer(Plans { items }))
}

#[utoipa::path(get, path = "/v1/placement/plans/{plan}", tag = "placement",
    params(("plan" = u64, Path)), responses((status = 200, body = PlacementPlan)))]
async fn get_plan(State(api): State<App>, Id(id): Id<u64>) -> Result<Answer<PlacementPlan>, Problem> {
    Ok(Answer(PlacementPlan::read(api.core.store.plan(id).await?)?))
}

/// Carries a plan out, or goes on where it was stopped.
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
    let progress = api.core.store.apply_plan(id, parallel).await?;
    Ok((StatusCode::ACCEPTED, Answer(PlanSummary::from(progress))).into_response())
}

/// Begins no more steps of a plan; those under way are finished.
#[utoipa::path(post, path = "/v1/placement/plans/{plan}/stop", tag = "placement",
    params(("plan" = u64, Path)), responses((status = 200, body = PlanSummary)))]
async fn stop_plan(State(api): State<App>, Id(id): Id<u64>) -> Result<Answer<PlanSummary>, Problem> {
    let done = api.core.store.plan(id).await?.progress.done;
    api.core.store.note_plan(id, sluice_store::PlanState::Stopped, done, "stopped by the operator").await?;
    Ok(Answer(api.core.store.plan(id).await?.progress.into()))
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
