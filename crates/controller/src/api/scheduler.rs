//! The scheduler: what it sees, what it did and why, what waits; and its settings.

use super::problem::Problem;
use super::request::Json;
use super::{Api, App};
use crate::scheduling::{Decided, SETTINGS_KEY, Settings, Status, task};
use axum::extract::State;
use axum::response::Json as Answer;
use serde::{Deserialize, Serialize};
use sluice_placement::{GatewayReport, Wait};
use sluice_types::{ClusterId, GatewayId};
use std::net::IpAddr;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Loads are parts: 0.8 is 80%.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
struct SchedulerSettings {
    /// It moves vIPs; off, it only shows loads.
    enabled: bool,
    /// A gateway above this is overloaded...
    overload_above: f64,
    /// ...until it is at this or below.
    relieved_below: f64,
    /// A gateway takes a vIP only if it is at most here with it.
    receive_below: f64,
    /// vIPs that move in any interval, at most.
    moves_per_interval: usize,
    interval_ms: u64,
    /// How long a vIP that moved stays.
    hold_ms: u64,
    /// How long to wait for a gateway that was asked for, or that comes from another cluster, and between
    /// two of these.
    expansion_wait_ms: u64,
    /// Gateways that a cluster keeps when it gives one to another.
    gateways_min: usize,
}

/// What changes; the rest stays. 0 < receive_below < relieved_below <= overload_above.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SchedulerPatch {
    enabled: Option<bool>,
    overload_above: Option<f64>,
    relieved_below: Option<f64>,
    receive_below: Option<f64>,
    #[schema(minimum = 1)]
    moves_per_interval: Option<usize>,
    interval_ms: Option<u64>,
    hold_ms: Option<u64>,
    expansion_wait_ms: Option<u64>,
    #[schema(minimum = 1)]
    gateways_min: Option<usize>,
}

#[derive(Serialize, ToSchema)]
struct SchedulerGateway {
    #[schema(value_type = String, example = "gw-1")]
    id: GatewayId,
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    load: f64,
    /// Packets a second that it could forward.
    capacity_pps: f64,
    draining: bool,
    /// vIPs at home there that could move, each with an equal part of its load.
    #[schema(value_type = Vec<String>)]
    vips: Vec<IpAddr>,
}

#[derive(Serialize, ToSchema)]
struct SchedulerDecision {
    /// Milliseconds of the UNIX epoch.
    time_ms: u64,
    /// What and why, in words.
    text: String,
    #[schema(value_type = Object)]
    action: serde_json::Value,
    #[schema(value_type = Object)]
    why: serde_json::Value,
    /// It was carried out; else the cloud had changed meanwhile.
    done: bool,
}

#[derive(Serialize, ToSchema)]
struct SchedulerWait {
    text: String,
    #[schema(value_type = Object)]
    wait: serde_json::Value,
}

/// What the scheduler of this controller does.
#[derive(Serialize, ToSchema)]
struct Scheduler {
    settings: SchedulerSettings,
    /// When it last looked, milliseconds of the UNIX epoch; 0: never.
    round_ms: u64,
    /// Why it cannot decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// vIPs that it moved, and gateways that it asked for, since the controller began.
    moves: u64,
    gateways_wanted: u64,
    /// Gateways that it gave to other clusters, since the controller began.
    gateways_given: u64,
    /// Clusters that need a new gateway now: no other can give one.
    #[schema(value_type = Vec<String>)]
    clusters_in_need: Vec<ClusterId>,
    /// Those that report now.
    gateways: Vec<SchedulerGateway>,
    /// What is not done because of a limit.
    waits: Vec<SchedulerWait>,
    /// The last 100, the newest last; the event log has more.
    decisions: Vec<SchedulerDecision>,
}

impl From<Settings> for SchedulerSettings {
    fn from(settings: Settings) -> Self {
        let Settings {
            enabled,
            overload_above,
            relieved_below,
            receive_below,
            moves_per_interval,
            interval_ms,
            hold_ms,
            expansion_wait_ms,
            gateways_min,
        } = settings;
        Self {
            enabled,
            overload_above,
            relieved_below,
            receive_below,
            moves_per_interval,
            interval_ms,
            hold_ms,
            expansion_wait_ms,
            gateways_min,
        }
    }
}

impl SchedulerGateway {
    fn new(cluster: ClusterId, report: &GatewayReport) -> Self {
        Self {
            id: report.id,
            cluster,
            load: report.load,
            capacity_pps: report.capacity_pps,
            draining: report.draining,
            vips: report.pairs.iter().map(|pair| pair.vip).collect(),
        }
    }
}

impl From<Decided> for SchedulerDecision {
    fn from(decided: Decided) -> Self {
        Self {
            time_ms: decided.time_ms,
            text: decided.decision.to_string(),
            action: serde_json::to_value(decided.decision.action).unwrap_or_default(),
            why: serde_json::to_value(decided.decision.why).unwrap_or_default(),
            done: decided.done,
        }
    }
}

impl From<Wait> for SchedulerWait {
    fn from(wait: Wait) -> Self {
        Self { text: wait.to_string(), wait: serde_json::to_value(wait).unwrap_or_default() }
    }
}

impl Scheduler {
    fn new(settings: Settings, status: Status) -> Self {
        let gateways = status.reports.iter().flat_map(|cluster| {
            cluster.gateways.iter().map(|report| SchedulerGateway::new(cluster.id, report))
        });
        Self {
            settings: settings.into(),
            round_ms: status.round_ms,
            gateways: gateways.collect(),
            error: status.error,
            moves: status.moves,
            gateways_wanted: status.requests,
            gateways_given: status.transfers,
            clusters_in_need: status.wanted,
            waits: status.waits.into_iter().map(Into::into).collect(),
            decisions: status.decisions.into_iter().map(Into::into).collect(),
        }
    }
}

#[utoipa::path(get, path = "/v1/scheduler", tag = "scheduler", responses((status = 200, body = Scheduler)))]
async fn get_scheduler(State(api): State<App>) -> Result<Answer<Scheduler>, Problem> {
    let settings = task::settings(&api.core).await?;
    Ok(Answer(Scheduler::new(settings, api.core.scheduler.get())))
}

#[utoipa::path(patch, path = "/v1/scheduler", tag = "scheduler", request_body = SchedulerPatch,
    responses((status = 200, body = SchedulerSettings)))]
async fn update_scheduler(
    State(api): State<App>,
    Json(patch): Json<SchedulerPatch>,
) -> Result<Answer<SchedulerSettings>, Problem> {
    let change = |settings: &mut Settings| {
        let now = settings.clone();
        *settings = Settings {
            enabled: patch.enabled.unwrap_or(now.enabled),
            overload_above: patch.overload_above.unwrap_or(now.overload_above),
            relieved_below: patch.relieved_below.unwrap_or(now.relieved_below),
            receive_below: patch.receive_below.unwrap_or(now.receive_below),
            moves_per_interval: patch.moves_per_interval.unwrap_or(now.moves_per_interval),
            interval_ms: patch.interval_ms.unwrap_or(now.interval_ms),
            hold_ms: patch.hold_ms.unwrap_or(now.hold_ms),
            expansion_wait_ms: patch.expansion_wait_ms.unwrap_or(now.expansion_wait_ms),
            gateways_min: patch.gateways_min.unwrap_or(now.gateways_min),
        };
        settings.check().map_err(|error| Problem::invalid("settings", error.to_string()))
    };
    Ok(Answer(super::settings::change(&api, SETTINGS_KEY, change).await?.into()))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get_scheduler, update_scheduler))
}
