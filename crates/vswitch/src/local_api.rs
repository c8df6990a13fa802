//! The host's part of the local API: `/ports`, `/sessions` and `/paths`. This file changes when a command of `sluice port` or
//! `sluice path` needs another answer.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_agent::local_api::ApiError;
use sluice_types::Protocol;

use crate::migration::Resumer;
use crate::port_manager::{PortError, PortManager, PortView};
use crate::port_registry::RegistryError;
use crate::rsp_client::PathList;
use crate::sessions::list::{self, LISTED, LISTED_MAX, SessionList, SessionViews};

#[derive(Deserialize)]
struct AttachRequest {
    ifname: String,
    /// Name, `VPC/NAME` or id of the instance.
    instance: String,
}

#[derive(Deserialize)]
struct ResumeRequest {
    /// Name, `VPC/NAME` or id of the instance.
    instance: String,
}

#[derive(Deserialize)]
struct DetachRequest {
    ifname: String,
}

impl From<PortError> for ApiError {
    fn from(error: PortError) -> Self {
        let status = match &error {
            PortError::Registry(RegistryError::Unknown(_) | RegistryError::NoPort(_))
            | PortError::NotAttached(_) => StatusCode::NOT_FOUND,
            PortError::Registry(
                RegistryError::Ambiguous { .. }
                | RegistryError::InstanceTaken { .. }
                | RegistryError::InterfaceTaken { .. }
                | RegistryError::NotMigrating { .. }
                | RegistryError::NotIncoming(_)
                | RegistryError::NotOutgoing(_)
                | RegistryError::NotStopped(_),
            ) => StatusCode::CONFLICT,
            PortError::Interface(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, sluice_agent::error_chain(&error))
    }
}

/// Routes `GET /ports`, `GET /ports/guarded`, `POST /ports/attach` and `POST /ports/detach`.
pub fn port_routes(manager: Arc<PortManager>) -> Router {
    Router::new()
        .route("/ports", get(list_ports))
        .route("/ports/guarded", get(list_guarded))
        .route("/ports/attach", post(attach))
        .route("/ports/detach", post(detach))
        .with_state(manager)
}

/// Routes `POST /ports/resume` and `POST /ports/pause`.
pub fn resume_routes(resumer: Resumer) -> Router {
    Router::new().route("/ports/resume", post(resume)).route("/ports/pause", post(pause)).with_state(resumer)
}

/// Route `GET /sessions`, with `port`, `instance`, `protocol`, `address` and `limit`.
pub fn session_routes(list: SessionList) -> Router {
    Router::new().route("/sessions", get(list_sessions)).with_state(Arc::new(list))
}

/// Route `GET /paths`.
pub fn path_routes(list: PathList) -> Router {
    Router::new().route("/paths", get(list_paths)).with_state(list)
}

/// The fields of a query, each of which may be absent.
#[derive(Deserialize)]
struct SessionQuery {
    port: Option<String>,
    instance: Option<String>,
    protocol: Option<Protocol>,
    address: Option<IpAddr>,
    limit: Option<usize>,
}

async fn list_sessions(
    State(list): State<Arc<SessionList>>,
    fields: Result<Query<SessionQuery>, QueryRejection>,
) -> Result<Json<SessionViews>, ApiError> {
    let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    let Query(fields) = fields.map_err(|error| bad(error.body_text()))?;
    let limit = fields.limit.unwrap_or(LISTED);
    if !(1..=LISTED_MAX).contains(&limit) {
        return Err(bad(format!("limit {limit} is not between 1 and {LISTED_MAX}")));
    }
    let SessionQuery { port, instance, protocol, address, .. } = fields;
    let protocol = protocol.and_then(Protocol::number);
    Ok(Json(list.get(list::Query { port, instance, protocol, address, limit }).await?))
}

async fn list_paths(State(list): State<PathList>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "paths": list.get().await? })))
}

async fn list_ports(State(manager): State<Arc<PortManager>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "ports": manager.list().await? })))
}

async fn list_guarded(State(manager): State<Arc<PortManager>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "guarded": manager.guarded().await.map_err(PortError::from)? })))
}

async fn attach(
    State(manager): State<Arc<PortManager>>,
    Json(request): Json<AttachRequest>,
) -> Result<Json<PortView>, ApiError> {
    // In a task of its own, so that a client that closes the connection does not leave half an attachment.
    let attach = async move { manager.attach(&request.ifname, &request.instance).await };
    finish(tokio::spawn(attach).await).map(Json)
}

async fn detach(
    State(manager): State<Arc<PortManager>>,
    Json(request): Json<DetachRequest>,
) -> Result<Json<Value>, ApiError> {
    let detach = async move { manager.detach(&request.ifname).await };
    finish(tokio::spawn(detach).await).map(|()| Json(json!({})))
}

async fn resume(
    State(resumer): State<Resumer>,
    Json(request): Json<ResumeRequest>,
) -> Result<Json<Value>, ApiError> {
    resumer.resume(request.instance).await?;
    Ok(Json(json!({})))
}

async fn pause(
    State(resumer): State<Resumer>,
    Json(request): Json<ResumeRequest>,
) -> Result<Json<Value>, ApiError> {
    resumer.pause(request.instance).await?;
    Ok(Json(json!({})))
}

fn finish<T>(joined: Result<Result<T, PortError>, tokio::task::JoinError>) -> Result<T, ApiError> {
    match joined {
        Ok(result) => Ok(result?),
        Err(error) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}
