//! The vIP scheduler: the loads that it sees, its decisions with their reasons, and its settings.

use super::problem::Problem;
use super::request::Json;
use super::{Api, App};
use crate::place::scheduler::{DecisionRecord, SETTINGS_KEY, Status};
use axum::extract::State;
use axum::response::Json as Answer;
use serde::Serialize;
use sluice_placement::{GatewayReport, Wait};
use sluice_types::{ClusterId, GatewayId, SchedulerPatch, SchedulerSettings, SchedulerSettingsError};
use std::net::IpAddr;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

macro_rules! declare_schemas {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $unit:literal, $min:tt to $max:tt;)+) => {
        /// Thresholds and limits. Loads are fractions: 0.8 is 80%.
        #[derive(ToSchema)]
        #[schema(as = SchedulerSettings)]
        #[allow(dead_code)] // only describes `sluice_types::SchedulerSettings`
        struct SettingsSchema {
            /// The scheduler moves vIPs; if false, it only shows loads.
            enabled: bool,
            $($(#[doc = $doc])+ #[schema(minimum = $min, maximum = $max)] $name: $type,)+
        }

        /// The settings that change; the others keep their values. The thresholds must be in the order
        /// 0 < accept_threshold < relief_threshold <= overload_threshold.
        #[derive(ToSchema)]
        #[schema(as = SchedulerPatch)]
        #[allow(dead_code)] // only describes `sluice_types::SchedulerPatch`
        struct PatchSchema {
            /// The scheduler moves vIPs; if false, it only shows loads.
            enabled: Option<bool>,
            $($(#[doc = $doc])+ #[schema(minimum = $min, maximum = $max)] $name: Option<$type>,)+
        }
    };
}

sluice_types::scheduler_settings!(declare_schemas);

#[derive(Serialize, ToSchema)]
struct SchedulerGateway {
    #[schema(value_type = String, example = "gw-1")]
    id: GatewayId,
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    /// Load; 1 is full load.
    load: f64,
    /// Packets a second that it can forward.
    capacity_pps: f64,
    draining: bool,
    /// Movable vIPs whose preferred owner it is. Each counts for an equal part of its load.
    #[schema(value_type = Vec<String>)]
    vips: Vec<IpAddr>,
}

#[derive(Serialize, ToSchema)]
struct SchedulerDecision {
    /// Time of the decision, in milliseconds of the UNIX epoch.
    time_ms: u64,
    /// The action and its reason, in words.
    text: String,
    #[schema(value_type = Object)]
    action: serde_json::Value,
    #[schema(value_type = Object)]
    reason: serde_json::Value,
    /// The action was carried out. Otherwise the cloud had changed in the meantime.
    done: bool,
}

#[derive(Serialize, ToSchema)]
struct SchedulerWait {
    text: String,
    #[schema(value_type = Object)]
    wait: serde_json::Value,
}

/// State of the scheduler of this controller.
#[derive(Serialize, ToSchema)]
struct Scheduler {
    #[schema(value_type = SettingsSchema)]
    settings: SchedulerSettings,
    /// Time of its last round, in milliseconds of the UNIX epoch; 0 before the first round.
    round_ms: u64,
    /// Reason why it cannot decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Number of vIPs that it moved since the controller started.
    moves: u64,
    /// Number of new gateways that it requested since the controller started.
    gateways_requested: u64,
    /// Number of gateways that it moved to other clusters since the controller started.
    gateways_reassigned: u64,
    /// Clusters that need a new gateway now, because no other cluster can give one.
    #[schema(value_type = Vec<String>)]
    overloaded_clusters: Vec<ClusterId>,
    /// Gateways that report now.
    gateways: Vec<SchedulerGateway>,
    /// What the scheduler does not do because of a limit.
    waits: Vec<SchedulerWait>,
    /// The last 100 decisions, the newest last. The event log has older ones.
    decisions: Vec<SchedulerDecision>,
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

impl From<DecisionRecord> for SchedulerDecision {
    fn from(record: DecisionRecord) -> Self {
        Self {
            time_ms: record.time_ms,
            text: record.decision.to_string(),
            action: serde_json::to_value(record.decision.action).unwrap_or_default(),
            reason: serde_json::to_value(record.decision.reason).unwrap_or_default(),
            done: record.done,
        }
    }
}

impl From<Wait> for SchedulerWait {
    fn from(wait: Wait) -> Self {
        Self { text: wait.to_string(), wait: serde_json::to_value(wait).unwrap_or_default() }
    }
}

impl Scheduler {
    fn new(settings: SchedulerSettings, status: Status) -> Self {
        let gateways = status.reports.iter().flat_map(|cluster| {
            cluster.gateways.iter().map(|report| SchedulerGateway::new(cluster.id, report))
        });
        Self {
            settings,
            round_ms: status.round_ms.unwrap_or_default(),
            gateways: gateways.collect(),
            error: status.error,
            moves: status.moves,
            gateways_requested: status.gateways_requested,
            gateways_reassigned: status.gateways_reassigned,
            overloaded_clusters: status.overloaded_clusters,
            waits: status.waits.into_iter().map(Into::into).collect(),
            decisions: status.decisions.into_iter().map(Into::into).collect(),
        }
    }
}

#[utoipa::path(get, path = "/v1/scheduler", tag = "scheduler", responses((status = 200, body = Scheduler)))]
async fn get_scheduler(State(api): State<App>) -> Result<Answer<Scheduler>, Problem> {
    let settings = api.place.scheduler_settings().await?;
    Ok(Answer(Scheduler::new(settings, api.place.scheduler.get())))
}

/// The setting that an error is about; of thresholds in the wrong order, one that the patch changes.
fn offender(error: &SchedulerSettingsError, patch: &SchedulerPatch) -> &'static str {
    match error {
        SchedulerSettingsError::OutOfRange { setting, .. } => setting,
        SchedulerSettingsError::Order { .. } if patch.accept_threshold.is_some() => "accept_threshold",
        SchedulerSettingsError::Order { .. } if patch.relief_threshold.is_some() => "relief_threshold",
        SchedulerSettingsError::Order { .. } => "overload_threshold",
    }
}

#[utoipa::path(patch, path = "/v1/scheduler", tag = "scheduler", request_body = PatchSchema,
    responses((status = 200, body = SettingsSchema)))]
async fn update_scheduler(
    State(api): State<App>,
    Json(patch): Json<SchedulerPatch>,
) -> Result<Answer<SchedulerSettings>, Problem> {
    let change = |settings: &mut SchedulerSettings| {
        *settings = settings.clone().patched(&patch);
        settings.check().map_err(|error| Problem::invalid(offender(&error, &patch), error.to_string()))
    };
    Ok(Answer(super::settings::change(&api, SETTINGS_KEY, change).await?))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get_scheduler, update_scheduler))
}
