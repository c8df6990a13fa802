//! Live migrations of instances to other hosts. The two hosts do the work (`docs/decisions/migration.md`); what they report is
//! shown here.

use super::problem::Problem;
use super::request::{IfMatch, Json};
use super::{Api, App};
use axum::Json as Answer;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{Created, MigrationProgress, Store, StoreError};
use sluice_types::{HostId, InstanceId, MigrationStatus, SessionMode, VpcId};
use std::fmt::Display;
use std::str::FromStr;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// How far the migration of an instance is.
#[derive(Serialize, ToSchema)]
struct Migration {
    /// Identifies the migration: the revision that started it.
    id: u64,
    #[schema(value_type = String, example = "inst-1")]
    instance: InstanceId,
    /// The host that it leaves.
    #[schema(value_type = String, example = "host-1")]
    from: HostId,
    /// The host that it migrates to.
    #[schema(value_type = String, example = "host-2")]
    host: HostId,
    /// What happens to its sessions: `copy`, `reset` or `none`.
    #[schema(value_type = String, example = "copy")]
    sessions: SessionMode,
    /// `preparing`: the target host has not reported anything. `waiting`: it has the port, and no interface of the VM yet.
    /// `ready`: an interface is attached, and it has the sessions: the VM can switch. `failed`: see `problem`.
    #[schema(value_type = String, example = "ready")]
    phase: MigrationStatus,
    /// Sessions that the target host has; with `reset`: connections that it has made to end.
    copied_sessions: u64,
    /// Why it failed; otherwise empty.
    problem: String,
    /// Time of its start in milliseconds of the UNIX epoch.
    started_ms: u64,
    /// When the target host was ready for the first time; null before.
    ready_ms: Option<u64>,
}

impl From<MigrationProgress> for Migration {
    fn from(progress: MigrationProgress) -> Self {
        let MigrationProgress {
            id,
            instance,
            source,
            target,
            mode,
            status,
            sessions,
            problem,
            started_ms,
            ready_ms,
        } = progress;
        Self {
            id,
            instance,
            from: source,
            host: target,
            sessions: mode,
            phase: status,
            copied_sessions: sessions,
            problem,
            started_ms,
            ready_ms,
        }
    }
}

/// The migration of an instance, as the instance shows it.
#[derive(Serialize, ToSchema)]
pub(super) struct MigrationSummary {
    /// The host that the instance migrates to.
    #[schema(value_type = String, example = "host-2")]
    pub host: HostId,
    /// `preparing`, `waiting`, `ready` or `failed`.
    #[schema(value_type = String, example = "ready")]
    pub phase: MigrationStatus,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMigration {
    /// The host to migrate to.
    #[schema(value_type = String, example = "host-2")]
    host: HostId,
    /// What happens to the sessions of the instance. `copy`, the default: they continue. `reset`: its TCP connections end at both
    /// ends by RST, so that they begin again by the rules of the target host. `none`: packets are redirected, and nothing else is
    /// done.
    #[serde(default)]
    #[schema(value_type = Option<String>, nullable = false, example = "copy")]
    sessions: SessionMode,
}

fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| Problem::bad_request(text, error.to_string()))
}

/// The instance of a path.
///
/// # Errors
/// 400 for texts that are no ids, 404 if there is no such instance in the VPC.
async fn instance_of(store: &Store, (vpc, instance): (String, String)) -> Result<InstanceId, Problem> {
    let (vpc, id): (VpcId, InstanceId) = (parse(&vpc)?, parse(&instance)?);
    if store.instance(id).await?.vpc != vpc {
        return Err(StoreError::NotFound { kind: "instance", id: format!("{id} of {vpc}") }.into());
    }
    Ok(id)
}

async fn answer(api: &Api, id: InstanceId, status: StatusCode) -> Result<Response, Problem> {
    let migration = Migration::from(api.db.store.migration(id).await?);
    Ok((status, Answer(migration)).into_response())
}

/// Starts the live migration of an instance. Both hosts prepare; when the VM runs on the other host, they switch by themselves, and
/// the instance is recorded there.
#[utoipa::path(post, path = "/v1/vpcs/{vpc}/instances/{instance}/migration", tag = "instances",
    params(("vpc" = String, Path), ("instance" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = NewMigration,
    responses((status = 201, body = Migration),
        (status = 200, body = Migration, description = "The same migration is in progress already")))]
async fn start_migration(
    State(api): State<App>,
    Path(path): Path<(String, String)>,
    IfMatch(expected): IfMatch,
    Json(body): Json<NewMigration>,
) -> Result<Response, Problem> {
    let id = instance_of(&api.db.store, path).await?;
    let started = api.db.store.start_migration(id, body.host, body.sessions, expected).await;
    let status = match started.map_err(|error| Problem::of_store(error, Some(&id.to_string())))? {
        Created::New(_) => {
            api.db.notify_commit();
            StatusCode::CREATED
        }
        Created::Existing(_) => StatusCode::OK,
    };
    answer(&api, id, status).await
}

/// How far the migration of an instance is.
#[utoipa::path(get, path = "/v1/vpcs/{vpc}/instances/{instance}/migration", tag = "instances",
    params(("vpc" = String, Path), ("instance" = String, Path)),
    responses((status = 200, body = Migration)))]
async fn get_migration(
    State(api): State<App>,
    Path(path): Path<(String, String)>,
) -> Result<Response, Problem> {
    let id = instance_of(&api.db.store, path).await?;
    answer(&api, id, StatusCode::OK).await
}

/// Cancels the migration of an instance, which stays on its host. This is possible until the hosts have switched.
#[utoipa::path(delete, path = "/v1/vpcs/{vpc}/instances/{instance}/migration", tag = "instances",
    params(("vpc" = String, Path), ("instance" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204, description = "The migration was canceled")))]
async fn cancel_migration(
    State(api): State<App>,
    Path(path): Path<(String, String)>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    let id = instance_of(&api.db.store, path).await?;
    api.db.store.cancel_migration(id, expected).await?;
    api.db.notify_commit();
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(start_migration, get_migration, cancel_migration))
}
