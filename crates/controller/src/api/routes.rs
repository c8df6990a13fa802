//! Routes of a route table, beside those of the VPC's subnets and peerings.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, page};
use super::{Api, App};
use crate::members::Needs;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{Created, RouteTarget};
use sluice_types::{IpNet, PeeringId, RouteId, RouteTableId, VpcId, parse_prefix};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// `{"peering": "peer-1"}`: to the other VPC of the peering. `"drop"`: nowhere.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Target {
    Peering(PeeringRef),
    Drop,
}

/// A peering's id.
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
    programmed: bool,
}

impl Resource for Route {
    /// With the VPC of its table.
    type Stored = (VpcId, sluice_store::Route);
    const PATH: &'static str = "/v1/routes";
    fn id((_, stored): &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision((_, stored): &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs((vpc, _): &Self::Stored) -> Needs {
        Needs::Vpc(*vpc)
    }
    fn new((_, stored): Self::Stored, programmed: bool) -> Self {
        let sluice_store::Route { id, table, prefix, target, revision } = stored;
        let target = match target {
            RouteTarget::Peering(peering) => Target::Peering(PeeringRef(peering)),
            RouteTarget::Drop => Target::Drop,
        };
        Self { id, table, destination: prefix, target, revision, programmed }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewRoute {
    #[schema(example = "10.9.0.0/16")]
    destination: String,
    target: Target,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RouteQuery {
    /// The table whose routes are wanted.
    #[param(value_type = String)]
    table: RouteTableId,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

#[utoipa::path(post, path = "/v1/route-tables/{table}/routes", tag = "routes",
    params(("table" = String, Path)), request_body = NewRoute,
    responses((status = 201, body = Route), (status = 200, body = Route, description = "Was there")))]
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
    };
    let store = &api.core.store;
    let vpc = store.route_table(table).await?.vpc;
    let path = table.to_string();
    let created = store.create_route(sluice_store::NewRoute { table, prefix, target }).await;
    let created = match created.map_err(|error| Problem::of_store(error, Some(&path)))? {
        Created::New(route) => Created::New((vpc, route)),
        Created::Existing(route) => Created::Existing((vpc, route)),
    };
    Ok(reply::created::<Route>(&api, created))
}

#[utoipa::path(get, path = "/v1/routes", tag = "routes", params(RouteQuery),
    responses((status = 200, body = List<Route>)))]
async fn list_routes(State(api): State<App>, Query(query): Query<RouteQuery>) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), RouteId::get)?;
    let store = &api.core.store;
    let vpc = store.route_table(query.table).await?.vpc;
    let stored = store.routes(query.table, reply::one_more(page)).await?;
    let stored = stored.into_iter().map(|route| (vpc, route)).collect();
    Ok(reply::list::<Route>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/routes/{route}", tag = "routes",
    params(("route" = String, Path)), responses((status = 200, body = Route)))]
async fn get_route(State(api): State<App>, Id(id): Id<RouteId>) -> Result<Response, Problem> {
    let route = api.core.store.route(id).await?;
    let vpc = api.core.store.route_table(route.table).await?.vpc;
    Ok(reply::one::<Route>(&api, (vpc, route)))
}

#[utoipa::path(delete, path = "/v1/routes/{route}", tag = "routes",
    params(("route" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_route(
    State(api): State<App>,
    Id(id): Id<RouteId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    api.core.store.delete_route(id, expected).await?;
    Ok(reply::deleted(&api))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(create_route))
        .routes(routes!(list_routes))
        .routes(routes!(get_route, delete_route))
}
