//! The local API's `/ports` and `/paths`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_agent::api::ApiError;

use crate::book::BookError;
use crate::learner::PathList;
use crate::manager::{Manager, PortError, PortView};

#[derive(Deserialize)]
struct AttachRequest {
    ifname: String,
    /// Name, `VPC/NAME` or id.
    instance: String,
}

#[derive(Deserialize)]
struct DetachRequest {
    ifname: String,
}

impl From<PortError> for ApiError {
    fn from(error: PortError) -> Self {
        let status = match &error {
            PortError::Book(BookError::Unknown(_)) | PortError::NotAttached(_) => StatusCode::NOT_FOUND,
            PortError::Book(
                BookError::Ambiguous { .. }
                | BookError::InstanceTaken { .. }
                | BookError::InterfaceTaken { .. },
            ) => StatusCode::CONFLICT,
            PortError::Interface(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, sluice_agent::chain(&error))
    }
}

/// `GET /ports`, `POST /ports/attach`, `POST /ports/detach`.
pub fn router(manager: Arc<Manager>) -> Router {
    Router::new()
        .route("/ports", get(list))
        .route("/ports/attach", post(attach))
        .route("/ports/detach", post(detach))
        .with_state(manager)
}

/// `GET /paths`.
pub fn paths(list: PathList) -> Router {
    Router::new().route("/paths", get(list_paths)).with_state(list)
}

async fn list_paths(State(list): State<PathList>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "paths": list.get().await? })))
}

async fn list(State(manager): State<Arc<Manager>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "ports": manager.list().await? })))
}

async fn attach(
    State(manager): State<Arc<Manager>>,
    Json(request): Json<AttachRequest>,
) -> Result<Json<PortView>, ApiError> {
    // In a task of its own: a caller that hangs up must not leave half an attachment.
    let attach = async move { manager.attach(&request.ifname, &request.instance).await };
    finish(tokio::spawn(attach).await).map(Json)
}

async fn detach(
    State(manager): State<Arc<Manager>>,
    Json(request): Json<DetachRequest>,
) -> Result<Json<Value>, ApiError> {
    let detach = async move { manager.detach(&request.ifname).await };
    finish(tokio::spawn(detach).await).map(|()| Json(json!({})))
}

fn finish<T>(joined: Result<Result<T, PortError>, tokio::task::JoinError>) -> Result<T, ApiError> {
    match joined {
        Ok(result) => Ok(result?),
        Err(error) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}
