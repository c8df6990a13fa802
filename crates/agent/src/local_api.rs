//! The node's local API: JSON over HTTP on a Unix socket that only root can open. This file changes when a command of
//! `sluice agent` needs another answer.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};
use sluice_datapath::DropCount;
use sluice_tables::drops;
use tokio::net::UnixListener;

use crate::metrics::reason_name;
use crate::{Error, Node, Role, error_chain};

/// An error response.
#[derive(Debug)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// Message for the operator.
    pub message: String,
}

impl ApiError {
    /// A response with this status and message.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error_chain(&error))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.message }))).into_response()
    }
}

#[derive(Serialize)]
struct Drop {
    reason: String,
    text: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vni: Option<u32>,
    packets: u64,
}

impl From<DropCount> for Drop {
    fn from(count: DropCount) -> Self {
        let text = drops::text(count.reason).unwrap_or("unknown to this version");
        Self { reason: reason_name(count.reason), text, vni: count.vni, packets: count.packets }
    }
}

/// Routes `GET /status` and `GET /drops`.
pub fn router<R: Role>(node: Arc<Node<R>>) -> Router {
    Router::new().route("/status", get(status::<R>)).route("/drops", get(node_drops::<R>)).with_state(node)
}

async fn status<R: Role>(State(node): State<Arc<Node<R>>>) -> Result<Json<Value>, ApiError> {
    let stream = node.status.get();
    let tables = node
        .writer
        .run(|applier| {
            let (tables, usage) = (&applier.tables, applier.tables.usage());
            json!({
                "generation": tables.generation(),
                "applied_revision": tables.applied_revision(),
                "database_id": format!("{:016x}", tables.database_id()),
                "cells": {
                    "used": usage.cells_used,
                    "pending": usage.cells_pending,
                    "total": usage.cells_total,
                },
                "exact": { "used": usage.entries, "total": usage.entry_slots },
                "vteps": usage.vteps,
                "vips": usage.vips,
                "groups": usage.groups,
                "vrfs": usage.vrfs,
                "routes": usage.routes,
                "public_prefixes": usage.public_prefixes,
                "nat_gateways": usage.nat_gateways,
                "meters": usage.meters,
                "endpoints": usage.endpoints,
                "ports": usage.ports,
            })
        })
        .await?;
    let attached = node.datapath.attached().map_err(Error::from)?;
    let interfaces: Vec<_> = attached.into_iter().map(|interface| interface.name).collect();
    Ok(Json(json!({
        "role": node.role,
        "node": node.name,
        "version": env!("CARGO_PKG_VERSION"),
        "controller": stream,
        "adopted": node.datapath.adopted(),
        "tables": tables,
        "interfaces": interfaces,
    })))
}

async fn node_drops<R: Role>(State(node): State<Arc<Node<R>>>) -> Result<Json<Value>, ApiError> {
    let datapath = node.datapath.clone();
    let read = move || {
        let total: Vec<Drop> = datapath.drops()?.into_iter().map(Into::into).collect();
        let by_vni: Vec<Drop> = datapath.vni_drops()?.into_iter().map(Into::into).collect();
        Ok::<_, sluice_datapath::Error>(json!({ "total": total, "by_vni": by_vni }))
    };
    let read = tokio::task::spawn_blocking(read).await.map_err(Error::counters)?;
    Ok(Json(read.map_err(Error::from)?))
}

/// Opens the socket for its owner only, replacing one that an earlier agent left.
///
/// # Errors
/// If the path cannot be used.
pub fn listen(path: &Path) -> Result<UnixListener, Error> {
    let failed = || Error::io(format!("listen on {}", path.display()));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed())?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed())?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed())?;
    Ok(listener)
}
