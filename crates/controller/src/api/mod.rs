//! The northbound REST API: one file for each resource. The objects of the API are separate from the store's
//! model. What the resources share is in `resource`, `request`, `reply` and `problem`.

mod blocking;
mod bulk_halves;
mod clusters;
mod decoders;
mod eips;
mod events;
mod gateways;
mod guard;
mod health;
mod health_policies;
mod hosts;
mod instances;
mod meters;
mod metrics;
mod migrations;
mod mounts;
mod nat_gateways;
mod network_classes;
mod nodes;
mod openapi;
mod peerings;
mod placement;
mod port_forwards;
mod problem;
mod public_pools;
mod removals;
mod reply;
mod request;
mod resource;
mod route_tables;
mod routes;
mod scheduler;
mod security_groups;
mod security_rules;
mod services;
mod settings;
mod subnets;
mod system;
mod tenants;
mod unconfirmed;
mod vpcs;

pub use decoders::{REQUEST_DECODERS, Refusal, RequestDecoder};
pub use openapi::document;

use crate::database::Database;
use crate::moves::Moves;
use crate::ownership::Ownership;
use crate::place::Place;
use crate::place::admission::Admission;
use crate::place::admission::demand::NewObjects;
use crate::place::usage::Usage;
use crate::push::{Push, Reach};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware;
use problem::Problem;
use request::MAX_BODY_BYTES;
use resource::Stored;
use sluice_http::Connections;
use sluice_store::{Created, Page, StoreError};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use system::Readiness;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;

/// Attempts of an update without If-Match while others update the same object.
const ATTEMPTS: u32 = 5;

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
    bulks: Arc<Semaphore>,
    readiness: Readiness,
    answers: Answers,
    connections: Connections,
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
    /// bearer token, if one is needed. `connections` are those of the server, for its metrics.
    pub fn new(
        handles: Handles,
        reach: Reach,
        token_digest: Option<[u8; 32]>,
        connections: Connections,
    ) -> Self {
        let Handles { db, push, ownership, place, moves } = handles;
        let (readiness, answers) = (Readiness::default(), Answers::default());
        let bulks = Arc::new(Semaphore::new(BULKS));
        Self {
            db,
            push,
            ownership,
            place,
            moves,
            reach,
            token_digest,
            bulks,
            readiness,
            answers,
            connections,
        }
    }

    /// Waits until the placement has what is committed, as far as this does not take long.
    ///
    /// # Errors
    /// Errors of the store, and 503 if the controller has just started and does not know the placement.
    async fn catch_up(&self) -> Result<(), Problem> {
        if self.place.catch_up().await? { Ok(()) } else { Err(Problem::starting()) }
    }

    /// Demand and capacity of all clusters, after [`Api::catch_up`].
    ///
    /// # Errors
    /// The errors of [`Api::catch_up`].
    async fn current_usage(&self) -> Result<Usage, Problem> {
        self.catch_up().await?;
        Ok(self.place.usage().await?)
    }

    /// Admits objects that are to be created, if they fit into the tables. `exists` says whether they exist already:
    /// then they need nothing.
    ///
    /// # Errors
    /// Errors of the store, and the refusal.
    async fn admit(
        &self,
        new: NewObjects<'_>,
        exists: impl Future<Output = Result<bool, StoreError>>,
    ) -> Result<Admission, Problem> {
        match self.place.admit(new).await? {
            Ok(admission) => Ok(admission),
            Err(_) if exists.await? => Ok(Admission::default()),
            Err(full) => Err(full.into()),
        }
    }
}

/// An admission ends if its object existed already, and counts until gateways report the object's revision if it is new.
fn settle<S: Stored>(admission: Admission, created: &Created<S>) {
    if let Created::New(object) = created {
        admission.commit(object.revision());
    }
}

/// The first object of a filtered list, to see whether there is one.
const FIRST: Page = Page { after: 0, limit: 1 };

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
        .merge(network_classes::routes())
        .merge(migrations::routes())
        .merge(route_tables::routes())
        .merge(routes::routes())
        .merge(peerings::routes())
        .merge(security_groups::routes())
        .merge(security_rules::routes())
        .merge(services::routes())
        .merge(mounts::routes())
        .merge(public_pools::routes())
        .merge(eips::routes())
        .merge(meters::routes())
        .merge(nat_gateways::routes())
        .merge(port_forwards::routes())
        .merge(nodes::routes())
        .merge(health::routes())
        .merge(health_policies::routes())
        .merge(unconfirmed::routes())
        .merge(removals::routes())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{CompiledClusters, Model};

    #[tokio::test]
    async fn placement_that_is_not_known_yet_is_unavailable() {
        let db = Arc::new(Database::new(sluice_store::open("sqlite::memory:").await.unwrap()));
        let compiled = Arc::new(CompiledClusters::new(Model::Zeta, 1));
        let push = Arc::new(Push::new(db.clone(), compiled.clone()));
        let ownership = Arc::new(Ownership::new(db.clone(), compiled));
        let place = Arc::new(Place::new(db.clone(), ownership.clone()));
        let moves = Arc::new(Moves::new(db.clone(), push.clone(), ownership.clone()));
        let (controller, server_name, ca_pem) = (String::new(), String::new(), String::new());
        let reach = Reach { controller, server_name, ca_pem };
        let connections = Connections::new(&sluice_http::Limits::default());
        let api = Api::new(Handles { db, push, ownership, place, moves }, reach, None, connections);
        api.db.store.create_tenant("t").await.unwrap();
        // No follower fills the ledger.
        let problem = api.current_usage().await.unwrap_err();
        assert_eq!((problem.status(), problem.kind()), (503, "urn:sluice:problem:starting"));
    }
}
