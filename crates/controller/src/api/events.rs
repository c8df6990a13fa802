//! Events: what happened in the cloud, for operators. This file changes when the event log gets other filters.

use super::problem::Problem;
use super::request::Query;
use super::{Api, App};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Events in an answer without `limit`.
const DEFAULT_LIMIT: u32 = 100;
/// Most events in an answer.
const MAX_LIMIT: u32 = 1000;

#[derive(Serialize, ToSchema)]
struct Event {
    /// Number of the event, which grows with time.
    id: u64,
    /// Time in milliseconds of the UNIX epoch.
    time_ms: u64,
    #[schema(example = "vpc_moved")]
    kind: String,
    /// Id of the object that the event is about.
    #[schema(example = "vpc-1")]
    subject: String,
    /// Description for people.
    text: String,
    /// Details, which depend on the kind.
    #[schema(value_type = Object)]
    details: serde_json::Value,
}

#[derive(Serialize, ToSchema)]
struct Events {
    /// In order of id.
    items: Vec<Event>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// Only events about the object with this id.
    subject: Option<String>,
    /// Only events after this id, the oldest first. Without it, the newest events.
    after: Option<u64>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
}

/// Lists events. The newest 100,000 are kept.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(EventQuery),
    responses((status = 200, body = Events)))]
async fn list_events(
    State(api): State<App>,
    Query(query): Query<EventQuery>,
) -> Result<Json<Events>, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        let detail = format!("limit must be between 1 and {MAX_LIMIT}, not {limit}");
        return Err(Problem::bad_request("limit", detail));
    }
    let event = |event: sluice_store::Event| {
        let sluice_store::Event { id, time_ms, kind, subject, text, details } = event;
        Event { id, time_ms, kind, subject, text, details }
    };
    let events = api.db.store.events(query.subject.as_deref(), query.after, limit).await?;
    Ok(Json(Events { items: events.into_iter().map(event).collect() }))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list_events))
}
