//! The node's local API: JSON over HTTP on a Unix socket that only root can open.

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

use crate::apply::chain;
use crate::metrics::reason;
use crate::{Error, Node, Ports};

/// An error as the API tells it.
#[derive(Debug)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// For a person.
    pub message: String,
}

impl ApiError {
    /// With a status and a text.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, chain(&error))
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
        let text = drops::text(count.reason).unwrap_or("not known to this version");
        Self { reason: reason(count.reason), text, vni: count.vni, packets: count.packets }
    }
}

/// `GET /status` and `GET /drops`.
pub fn router<P: Ports>(node: Arc<Node<P>>) -> Router {
    Router::new().route("/status", get(status::<P>)).route("/drops", get(node_drops::<P>)).with_state(node)
}

async fn status<P: Ports>(State(node): State<Arc<Node<P>>>) -> Result<Json<Value>, ApiError> {
    let stream = node.status.get();
    let tables = node
        .writer
        .run(|applier| {
            let (tables, fill) = (&applier.tables, applier.tables.fill());
            json!({
                "generation": tables.generation(),
                "applied_revision": tables.applied_revision(),
                "database_id": format!("{:016x}", tables.database_id()),
                "cells": { "used": fill.cells_used, "pending": fill.cells_pending, "total": fill.cells_total },
                "exact": { "used": fill.entries, "total": fill.entry_slots },
                "vteps": fill.vteps,
                "vips": fill.vips,
                "groups": fill.groups,
                "vrfs": fill.vrfs,
                "routes": fill.routes,
                "endpoints": fill.endpoints,
                "ports": fill.ports,
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

async fn node_drops<P: Ports>(State(node): State<Arc<Node<P>>>) -> Result<Json<Value>, ApiError> {
    let datapath = node.datapath.clone();
    let read = move || {
        let total: Vec<Drop> = datapath.drops()?.into_iter().map(Into::into).collect();
        let by_vni: Vec<Drop> = datapath.vni_drops()?.into_iter().map(Into::into).collect();
        Ok::<_, sluice_datapath::Error>(json!({ "total": total, "by_vni": by_vni }))
    };
    let read = tokio::task::spawn_blocking(read).await.map_err(|_| Error::WriterGone)?;
    Ok(Json(read.map_err(Error::from)?))
}

/// Opens the socket, for its owner alone, in place of one that a predecessor left.
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
