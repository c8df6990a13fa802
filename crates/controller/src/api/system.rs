//! Health, readiness and metrics of the controller.

use super::problem::Problem;
use super::{Api, App, metrics};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::atomic::Ordering;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Says that the process answers.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Says whether the database can be written.
#[utoipa::path(get, path = "/readyz", tag = "system", responses((status = 200), (status = 503)))]
async fn readyz(State(api): State<App>) -> Result<&'static str, Problem> {
    api.db.store.check_writable().await?;
    Ok("ok\n")
}

/// Returns the metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "system", responses((status = 200)))]
async fn metrics(State(api): State<App>) -> Result<Response, Problem> {
    let answers = &api.answers;
    let answers = [
        ("ok", answers.ok.load(Ordering::Relaxed)),
        ("client_error", answers.client_error.load(Ordering::Relaxed)),
        ("server_error", answers.server_error.load(Ordering::Relaxed)),
    ];
    let text = metrics::text(&api, &answers).map_err(|_| Problem::internal())?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).routes(routes!(metrics))
}
