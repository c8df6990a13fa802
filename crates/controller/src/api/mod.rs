//! The northbound API: one file per resource, whose objects are apart from the
//! store's model; what they share is in `request`, `reply` and `problem`.

mod clusters;
mod events;
mod gateways;
mod guard;
mod hosts;
mod instances;
mod nodes;
mod openapi;
mod peerings;
mod placement;
mod problem;
mod reply;
mod request;
mod route_tables;
mod routes;
mod scheduler;
mod settings;
mod subnets;
mod system;
mod tenants;
mod vpcs;

pub use openapi::document;

use crate::core::Core;
use crate::enrol::Reach;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware;
use problem::Problem;
use request::MAX_BODY_BYTES;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::{Mutex, Semaphore};
use utoipa_axum::router::OpenApiRouter;

/// Bulk creations at once; others wait. Each may hold a quarter of a gigabyte.
const BULKS: usize = 2;

/// What handlers have.
pub struct Api {
    /// The controller.
    pub core: Arc<Core>,
    /// For enrolment bundles.
    pub reach: Reach,
    /// SHA-256 of the bearer token, if one is needed.
    pub token_digest: Option<[u8; 32]>,
    bulks: Semaphore,
    /// Held while a plan is drawn.
    planning: Mutex<()>,
    answers: Answers,
}

/// Requests answered, by class of status.
#[derive(Debug, Default)]
struct Answers {
    ok: AtomicU64,
    client_error: AtomicU64,
    server_error: AtomicU64,
}

type App = Arc<Api>;

impl Api {
    /// Over a controller.
    pub fn new(core: Arc<Core>, reach: Reach, token_digest: Option<[u8; 32]>) -> Self {
        Self {
            core,
            reach,
            token_digest,
            bulks: Semaphore::new(BULKS),
            planning: Mutex::default(),
            answers: Answers::default(),
        }
    }
}

/// All routes that the OpenAPI document describes.
fn described() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(tenants::routes())
        .merge(clusters::routes())
        .merge(gateways::routes())
        .merge(hosts::routes())
        .merge(vpcs::routes())
        .merge(subnets::routes())
        .merge(instances::routes())
        .merge(route_tables::routes())
        .merge(routes::routes())
        .merge(peerings::routes())
        .merge(nodes::routes())
        .merge(events::routes())
        .merge(placement::routes())
        .merge(scheduler::routes())
        .merge(system::routes())
}

/// The whole API.
pub fn router(api: Api) -> Router {
    let api = Arc::new(api);
    let (router, _) = described().split_for_parts();
    router
        .route("/openapi.json", axum::routing::get(openapi::serve))
        .fallback(|uri: Uri| async move {
            let detail = "nothing is at this path; see /openapi.json";
            Problem::new(StatusCode::NOT_FOUND, "no-such-path", detail).offender(uri.path())
        })
        .method_not_allowed_fallback(|method: Method| async move {
            let detail = "see this answer's Allow header";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
                .offender(method.as_str())
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(api.clone(), guard::guard))
        .with_state(api)
}
