//! What the controller does about anomalies of hosts. This file changes with the policies of `sluice_types`.

use super::App;
use super::problem::Problem;
use super::request::Json;
use crate::moves::HEALTH_POLICIES;
use axum::extract::{Path, State};
use axum::response::Json as Answer;
use serde::Serialize;
use sluice_types::{
    AnomalyClass, HealthAction, HealthPolicies, HealthPolicy as Policy, HealthPolicyError, HealthPolicyPatch,
    SessionMode,
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What is done about an anomaly of a host that lasts.
#[derive(Serialize, ToSchema)]
struct HealthPolicy {
    /// `server_resources`, `nic_fault`, `vswitch_overload` or `switch_overload`.
    #[schema(value_type = String, example = "server_resources")]
    class: AnomalyClass,
    /// `none`, the default, or `migrate`: instances of the host migrate to healthy hosts, with the fewest instances first. Each
    /// migration is an event `instance_migration_wanted`: the VM itself is moved by whoever follows the events.
    #[schema(value_type = String, example = "migrate")]
    action: HealthAction,
    /// Most migrations for this class that are in progress, on all hosts together.
    max_at_once: u64,
    /// Seconds for which an anomaly must last, and between the beginnings of migrations from the same host.
    hold_s: u64,
    /// Seconds for which an instance that was moved stays where it is, and for which the host that it left gets none.
    cooldown_s: u64,
    /// What happens to sessions: `copy`, `reset` or `none`.
    #[schema(value_type = String, example = "copy")]
    sessions: SessionMode,
}

/// The policies of all classes that have one.
#[derive(Serialize, ToSchema)]
struct HealthPolicyList {
    items: Vec<HealthPolicy>,
}

/// The fields that change; the others keep their values.
#[derive(ToSchema)]
#[schema(as = HealthPolicyPatch)]
#[allow(dead_code)] // only describes `sluice_types::HealthPolicyPatch`
struct PatchSchema {
    /// `none` or `migrate`.
    action: Option<String>,
    /// Most migrations for this class that are in progress, on all hosts together.
    #[schema(minimum = 1, maximum = 64)]
    max_at_once: Option<u64>,
    /// Seconds for which an anomaly must last, and between the beginnings of migrations from the same host.
    #[schema(minimum = 5, maximum = 86400)]
    hold_s: Option<u64>,
    /// Seconds for which an instance that was moved stays where it is, and for which the host that it left gets none.
    #[schema(minimum = 60, maximum = 604800)]
    cooldown_s: Option<u64>,
    /// What happens to sessions: `copy`, `reset` or `none`.
    sessions: Option<String>,
}

impl HealthPolicy {
    fn new(class: AnomalyClass, policy: Policy) -> Self {
        let Policy { action, max_at_once, hold_s, cooldown_s, sessions } = policy;
        Self { class, action, max_at_once, hold_s, cooldown_s, sessions }
    }
}

/// Lists what is done about anomalies of hosts.
#[utoipa::path(get, path = "/v1/health/policies", tag = "nodes",
    responses((status = 200, body = HealthPolicyList)))]
async fn list_health_policies(State(api): State<App>) -> Result<Answer<HealthPolicyList>, Problem> {
    let policies: HealthPolicies = api.db.settings(HEALTH_POLICIES).await?;
    let items = AnomalyClass::OF_HOST.map(|class| HealthPolicy::new(class, policies.of(class)));
    Ok(Answer(HealthPolicyList { items: items.into() }))
}

fn problem(error: &HealthPolicyError) -> Problem {
    let field: &str = match error {
        HealthPolicyError::NotOfHost(_) => "class",
        HealthPolicyError::OutOfRange { field, .. } => field,
    };
    Problem::invalid(field, error.to_string())
}

/// Changes what is done about a class of anomalies.
#[utoipa::path(patch, path = "/v1/health/policies/{class}", tag = "nodes", params(("class" = String, Path)),
    request_body = PatchSchema, responses((status = 200, body = HealthPolicy)))]
async fn update_health_policy(
    State(api): State<App>,
    Path(class): Path<String>,
    Json(patch): Json<HealthPolicyPatch>,
) -> Result<Answer<HealthPolicy>, Problem> {
    let class =
        class.parse::<AnomalyClass>().map_err(|error| Problem::bad_request(&class, error.to_string()))?;
    let change = |policies: &mut HealthPolicies| {
        policies.change(class, &patch).map(drop).map_err(|error| problem(&error))
    };
    let policies: HealthPolicies = super::settings::change(&api, HEALTH_POLICIES, change).await?;
    Ok(Answer(HealthPolicy::new(class, policies.of(class))))
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list_health_policies)).routes(routes!(update_health_policy))
}
