//! Removals: which nodes may still have entries of deleted objects, and waiting until no node has.

use super::problem::Problem;
use super::reply::{List, one_more};
use super::request::{ListQuery, Query, cursor, page};
use super::{Api, App};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Longest wait in seconds.
const WAIT_MAX: u64 = 60;
/// Interval at which a waiting request looks whether nodes are done.
const LOOK: Duration = Duration::from_millis(50);

/// A node that may still have entries of a deleted object.
#[derive(Serialize, ToSchema)]
pub(super) struct AwaitedNode {
    /// Id of the gateway or host.
    #[schema(example = "gw-2")]
    node: String,
    name: String,
    /// The node has a stream to this controller.
    connected: bool,
    /// Time of its last message in milliseconds of the UNIX epoch; 0 if there was none.
    last_seen_ms: u64,
    /// The node has written all entries up to this revision, except those that it could not write.
    acknowledged_revision: u64,
    /// Entries that the node could not write.
    failures: Vec<String>,
}

/// What has become of the entries of a deleted object.
#[derive(Serialize, ToSchema)]
pub(super) struct Removal {
    /// Revision of the deletion.
    revision: u64,
    /// No node has entries of the object. Its addresses or its VNI can be used again.
    removed: bool,
    /// The nodes that may still have entries.
    waiting: Vec<AwaitedNode>,
}

/// A deletion that some node has not acknowledged.
#[derive(Serialize, ToSchema)]
struct PendingRemoval {
    /// Revision of the deletion.
    revision: u64,
    /// Kind of the deleted object in words; `port of instance` on a host that an instance left.
    #[schema(example = "instance")]
    kind: String,
    /// Name that the object had; of a route, its prefix.
    name: String,
    /// Time of the deletion in milliseconds of the UNIX epoch.
    deleted_ms: u64,
    /// The nodes that may still have entries. Empty for a moment after the last of them is done.
    waiting: Vec<AwaitedNode>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemovalWait {
    /// Answer when no node has entries of the object, or after this many seconds, 1 to 60. Without it, answer at once.
    #[param(minimum = 1, maximum = 60)]
    wait: Option<u64>,
}

impl RemovalWait {
    /// When to answer at the latest.
    ///
    /// # Errors
    /// 400 for a time out of range.
    pub fn deadline(&self) -> Result<Instant, Problem> {
        match self.wait {
            None => Ok(Instant::now()),
            Some(seconds) if (1..=WAIT_MAX).contains(&seconds) => {
                Ok(Instant::now() + Duration::from_secs(seconds))
            }
            Some(seconds) => {
                let detail = format!("wait must be between 1 and {WAIT_MAX} seconds, not {seconds}");
                Err(Problem::bad_request("wait", detail))
            }
        }
    }
}

fn waiting(api: &Api, removal: &sluice_store::Removal) -> Vec<AwaitedNode> {
    let node = |(view, name): (crate::push::NodeView, String)| AwaitedNode {
        node: view.node.to_string(),
        name,
        connected: view.connected,
        last_seen_ms: view.state.last_seen_ms,
        acknowledged_revision: view.state.acknowledged_revision,
        failures: view.state.failures,
    };
    api.push.awaited(removal).into_iter().map(node).collect()
}

/// Waits until no node has entries of the object that was deleted at this revision, or until the deadline.
///
/// # Errors
/// Errors of the store.
pub(super) async fn answer(api: &Api, revision: u64, deadline: Instant) -> Result<Json<Removal>, Problem> {
    loop {
        let done = Json(Removal { revision, removed: true, waiting: Vec::new() });
        let Some(removal) = api.db.store.removal(revision).await? else { return Ok(done) };
        if api.push.try_release(&removal).await? {
            return Ok(done);
        }
        if Instant::now() >= deadline {
            return Ok(Json(Removal { revision, removed: false, waiting: waiting(api, &removal) }));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What has become of the entries of the object that was deleted at this revision, as its deletion answered.
#[utoipa::path(get, path = "/v1/removals/{revision}", tag = "removals",
    params(("revision" = u64, Path), RemovalWait), responses((status = 200, body = Removal)))]
async fn get_removal(
    State(api): State<App>,
    Path(revision): Path<String>,
    Query(wait): Query<RemovalWait>,
) -> Result<Json<Removal>, Problem> {
    let deadline = wait.deadline()?;
    let number: Option<u64> = revision.parse().ok();
    let Some(number) = number else {
        return Err(Problem::bad_request(
            &revision,
            format!("`{revision}` is not a revision: expected a number"),
        ));
    };
    let newest = api.db.store.revision().await?;
    if number > newest || number == 0 {
        let detail = format!("no revision {number}: the newest is {newest}");
        return Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail).offender(revision));
    }
    answer(&api, number, deadline).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct NoFilter {}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // only describes the parameters that `ListQuery` reads
struct PageParameters {
    /// Most objects on the page; 100 if absent.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    cursor: Option<String>,
}

/// Lists deletions that some node which had the entries has not acknowledged, in order of revision.
#[utoipa::path(get, path = "/v1/removals", tag = "removals", params(PageParameters),
    responses((status = 200, body = List<PendingRemoval>)))]
async fn list_removals(
    State(api): State<App>,
    ListQuery { filter: NoFilter {}, limit, cursor: after }: ListQuery<NoFilter>,
) -> Result<Json<List<PendingRemoval>>, Problem> {
    let page = page(limit, after.as_deref(), |revision: u64| revision)?;
    let mut found = api.db.store.removals(one_more(page)).await?;
    let more = found.len() > page.limit as usize;
    found.truncate(page.limit as usize);
    let next = found.last().filter(|_| more).map(|last| cursor(&last.revision.to_string()));
    let item = |removal: sluice_store::Removal| PendingRemoval {
        waiting: waiting(&api, &removal),
        revision: removal.revision,
        kind: removal.kind,
        name: removal.name,
        deleted_ms: removal.deleted_ms,
    };
    Ok(Json(List { items: found.into_iter().map(item).collect(), next }))
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list_removals)).routes(routes!(get_removal))
}
