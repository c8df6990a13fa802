//! Health, readiness and metrics of the controller.

use super::problem::Problem;
use super::{Api, App, metrics};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Time for which all requests share the result of a check of the database.
const SHARED: Duration = Duration::from_secs(1);

/// Whether the database can be written. A check is a write, and requests for it need no token, so there is one
/// check at a time, and its result is kept for [`SHARED`].
#[derive(Debug, Default)]
pub struct Readiness(Mutex<Option<(Instant, Result<(), Problem>)>>);

impl Readiness {
    async fn get(&self, check: impl Future<Output = Result<(), Problem>>) -> Result<(), Problem> {
        let mut last = self.0.lock().await;
        if let Some((_, result)) = last.as_ref().filter(|(at, _)| at.elapsed() < SHARED) {
            return result.clone();
        }
        let result = check.await;
        *last = Some((Instant::now(), result.clone()));
        result
    }
}

/// Says that the process answers.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Says whether the database can be written. The answer may be a second old.
#[utoipa::path(get, path = "/readyz", tag = "system", responses((status = 200), (status = 503)))]
async fn readyz(State(api): State<App>) -> Result<&'static str, Problem> {
    let check = async { api.db.store.check_writable().await.map_err(Problem::from) };
    api.readiness.get(check).await?;
    Ok("ok\n")
}

/// Returns the metrics in the OpenMetrics text format.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[tokio::test]
    async fn requests_share_one_check() {
        let (readiness, checks) = (Readiness::default(), AtomicU32::new(0));
        let get = |result: Result<(), Problem>| {
            readiness.get(async {
                checks.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
                result
            })
        };
        let failed = || Err(Problem::internal());
        let answers = futures::future::join_all((0..100).map(|_| get(failed()))).await;
        assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(|problem| problem.status() == 500)));
        assert_eq!(checks.load(Ordering::Relaxed), 1);
        let old = Instant::now().checked_sub(SHARED).unwrap();
        *readiness.0.lock().await = Some((old, failed()));
        assert_eq!(get(Ok(())).await, Ok(()));
        assert_eq!((get(failed()).await, checks.load(Ordering::Relaxed)), (Ok(()), 2));
    }
}
