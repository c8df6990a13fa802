//! The northbound REST API: one file for each resource. The objects of the API are separate from the store's
//! model. What the resources share is in `resource`, `request`, `reply` and `problem`.

mod clusters;
mod decoders;
mod events;
mod gateways;
mod guard;
mod hosts;
mod instances;
mod metrics;
mod nodes;
mod openapi;
mod peerings;
mod placement;
mod problem;
mod reply;
mod request;
mod resource;
mod route_tables;
mod routes;
mod scheduler;
mod settings;
mod subnets;
mod system;
mod tenants;
mod vpcs;

pub use decoders::{REQUEST_DECODERS, Refusal, RequestDecoder};
pub use openapi::document;

use crate::database::Database;
use crate::moves::Moves;
use crate::ownership::Ownership;
use crate::place::Place;
use crate::push::{Push, Reach};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware;
use problem::Problem;
use request::MAX_BODY_BYTES;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;

/// Most bulk creations at a time; others wait. The body of each may have a quarter of a gigabyte.
const BULKS: usize = 2;

/// The handles of the modules that handlers use.
pub struct Handles {
    /// The database.
    pub db: Arc<Database>,
    /// Nodes and what they have.
    pub push: Arc<Push>,
    /// Owners of vIPs.
    pub ownership: Arc<Ownership>,
    /// Placement and the scheduler.
    pub place: Arc<Place>,
    /// Moves between clusters.
    pub moves: Arc<Moves>,
}

/// The state of the handlers.
pub struct Api {
    db: Arc<Database>,
    push: Arc<Push>,
    ownership: Arc<Ownership>,
    place: Arc<Place>,
    moves: Arc<Moves>,
    /// How nodes reach this controller, for enrollment bundles.
    reach: Reach,
    /// SHA-256 of the bearer token, if one is needed.
    token_digest: Option<[u8; 32]>,
    bulks: Semaphore,
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
    /// Uses the modules' handles. `reach` goes into enrollment bundles; `token_digest` is the SHA-256 of the
    /// bearer token, if one is needed.
    pub fn new(handles: Handles, reach: Reach, token_digest: Option<[u8; 32]>) -> Self {
        let Handles { db, push, ownership, place, moves } = handles;
        let (bulks, answers) = (Semaphore::new(BULKS), Answers::default());
        Self { db, push, ownership, place, moves, reach, token_digest, bulks, answers }
    }
}

/// All routes of the OpenAPI document.
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

/// The API with its middleware.
pub fn router(api: Api) -> Router {
    let api = Arc::new(api);
    let (router, _) = described().split_for_parts();
    router
        .route("/openapi.json", axum::routing::get(openapi::serve))
        .fallback(|uri: Uri| async move {
            let detail = "no resource has this path; /openapi.json has all paths";
            Problem::new(StatusCode::NOT_FOUND, "no-such-path", detail).offender(uri.path())
        })
        .method_not_allowed_fallback(|method: Method| async move {
            let detail = "the Allow header of this answer has the methods of this path";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
                .offender(method.as_str())
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(api.clone(), guard::guard))
        .with_state(api)
}
