//! Static routes of a route table. The routes of the VPC's subnets and peerings are not objects.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, Json};
use super::resource::{self, Deletable, Listable, Number, Resource, Stored, StoredDelete};
use super::{App, settle};
use crate::place::admission::demand::NewObjects;
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Created, Page, RouteTarget, Store, StoreError};
use sluice_types::{IpNet, PeeringId, RouteId, RouteTableId, VpcId, parse_prefix};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// `{"peering": "peer-1"}` leads to the other VPC of the peering. `"drop"` drops the packets. `"internet"` leads to the
/// Internet, for senders that have a public address, or of a VPC with a NAT gateway.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Target {
    Peering(PeeringRef),
    Drop,
    Internet,
}

/// Id of a peering.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, example = "peer-1")]
struct PeeringRef(PeeringId);

#[derive(Serialize, ToSchema)]
struct Route {
    #[schema(value_type = String, example = "route-1")]
    id: RouteId,
    #[schema(value_type = String, example = "rtb-1")]
    table: RouteTableId,
    #[schema(value_type = String, example = "10.9.0.0/16")]
    destination: IpNet,
    target: Target,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Route {
    /// The route, with the VPC of its table.
    type Stored = (VpcId, sluice_store::Route);
    const PATH: &'static str = "/v1/routes";
    const TAG: &'static str = "routes";
    const NAME: &'static str = "route";
    fn needs((vpc, _): &Self::Stored) -> Needs {
        Needs::Vpc(*vpc)
    }
    fn entries((vpc, route): &Self::Stored) -> Entries {
        Entries { vpcs: vec![*vpc], routes: vec![route.prefix], ..Entries::default() }
    }
    fn new((_, stored): Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Route { id, table, prefix, target, revision } = stored;
        let target = match target {
            RouteTarget::Peering(peering) => Target::Peering(PeeringRef(peering)),
            RouteTarget::Drop => Target::Drop,
            RouteTarget::Internet => Target::Internet,
        };
        Self { id, table, destination: prefix, target, revision, programmed }
    }
}

impl Number for RouteId {
    fn number(self) -> u64 {
        self.get()
    }
}

impl Stored for (VpcId, sluice_store::Route) {
    type Id = RouteId;
    fn id(&self) -> RouteId {
        self.1.id
    }
    fn revision(&self) -> u64 {
        self.1.revision
    }
    async fn find(store: &Store, id: RouteId) -> Result<Self, StoreError> {
        let route = store.route(id).await?;
        let vpc = store.route_table(route.table).await?.vpc;
        Ok((vpc, route))
    }
}

impl StoredDelete for (VpcId, sluice_store::Route) {
    async fn delete(store: &Store, id: RouteId, expected: Option<u64>) -> Result<u64, StoreError> {
        store.delete_route(id, expected).await
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewRoute {
    #[schema(example = "10.9.0.0/16")]
    destination: String,
    target: Target,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RouteFilter {
    /// The route table.
    #[param(value_type = String)]
    table: RouteTableId,
}

#[utoipa::path(post, path = "/v1/route-tables/{table}/routes", tag = "routes",
    params(("table" = String, Path)), request_body = NewRoute,
    responses((status = 201, body = Route),
        (status = 200, body = Route, description = "The same object exists already")))]
async fn create_route(
    State(api): State<App>,
    Id(table): Id<RouteTableId>,
    Json(body): Json<NewRoute>,
) -> Result<Response, Problem> {
    let prefix = parse_prefix(&body.destination)
        .map_err(|error| Problem::invalid("destination", error.to_string()))?;
    let target = match body.target {
        Target::Peering(PeeringRef(peering)) => RouteTarget::Peering(peering),
        Target::Drop => RouteTarget::Drop,
        Target::Internet => RouteTarget::Internet,
    };
    let store = &api.db.store;
    let vpc = store.route_table(table).await?.vpc;
    let path = table.to_string();
    let admission = api.admit(NewObjects::Route(vpc), is_route(store, table, prefix)).await?;
    let created = store.create_route(sluice_store::NewRoute { table, prefix, target }).await;
    let created = match created.map_err(|error| Problem::of_store(error, Some(&path)))? {
        Created::New(route) => Created::New((vpc, route)),
        Created::Existing(route) => Created::Existing((vpc, route)),
    };
    settle(admission, &created);
    Ok(reply::created::<Route>(&api, created))
}

/// Whether the table has a route with this prefix.
async fn is_route(store: &Store, table: RouteTableId, prefix: IpNet) -> Result<bool, StoreError> {
    let mut after = 0;
    loop {
        let routes = store.routes(table, Page { after, limit: 1000 }).await?;
        if routes.iter().any(|route| route.prefix == prefix) {
            return Ok(true);
        }
        let Some(last) = routes.last() else { return Ok(false) };
        after = last.id.get();
    }
}

impl Deletable for Route {}

impl Listable for Route {
    type Filter = RouteFilter;
    async fn list(store: &Store, filter: RouteFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        let vpc = store.route_table(filter.table).await?.vpc;
        let routes = store.routes(filter.table, page).await?;
        Ok(routes.into_iter().map(|route| (vpc, route)).collect())
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::list::<Route>())
        .routes(resource::get::<Route>())
        .routes(resource::delete::<Route>())
        .routes(routes!(create_route))
}
