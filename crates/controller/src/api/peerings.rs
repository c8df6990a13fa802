//! Peerings: two VPCs of a tenant that reach each other's subnets.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, check_name, page};
use super::{Api, App};
use crate::members::Needs;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_types::{PeeringId, VpcId};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(Serialize, ToSchema)]
struct Peering {
    #[schema(value_type = String, example = "peer-1")]
    id: PeeringId,
    name: String,
    #[schema(value_type = Vec<String>, min_items = 2, max_items = 2)]
    vpcs: [VpcId; 2],
    revision: u64,
    programmed: bool,
}

impl Resource for Peering {
    type Stored = sluice_store::Peering;
    const PATH: &'static str = "/v1/peerings";
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    /// Both VPCs are on one cluster.
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.a)
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        let sluice_store::Peering { id, name, a, b, revision } = stored;
        Self { id, name, vpcs: [a, b], revision, programmed }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewPeering {
    /// Unique in the tenant.
    name: String,
    /// Two VPCs of one tenant, on one cluster, without common addresses.
    #[schema(value_type = Vec<String>, min_items = 2, max_items = 2, example = json!(["vpc-1", "vpc-2"]))]
    vpcs: [VpcId; 2],
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PeeringQuery {
    /// Only those of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only those with this name, one a tenant.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

#[utoipa::path(post, path = "/v1/peerings", tag = "peerings", request_body = NewPeering,
    responses((status = 201, body = Peering), (status = 200, body = Peering, description = "Was there")))]
async fn create_peering(State(api): State<App>, Json(body): Json<NewPeering>) -> Result<Response, Problem> {
    check_name("name", &body.name)?;
    let [a, b] = body.vpcs;
    let created = api.core.store.create_peering(sluice_store::NewPeering { name: body.name, a, b }).await;
    Ok(reply::created::<Peering>(&api, created.map_err(|error| Problem::of_store(error, None))?))
}

#[utoipa::path(get, path = "/v1/peerings", tag = "peerings", params(PeeringQuery),
    responses((status = 200, body = List<Peering>)))]
async fn list_peerings(
    State(api): State<App>,
    Query(query): Query<PeeringQuery>,
) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), PeeringId::get)?;
    let store = &api.core.store;
    let stored = store.peerings(query.vpc, query.name.as_deref(), reply::one_more(page)).await?;
    Ok(reply::list::<Peering>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/peerings/{peering}", tag = "peerings",
    params(("peering" = String, Path)), responses((status = 200, body = Peering)))]
async fn get_peering(State(api): State<App>, Id(id): Id<PeeringId>) -> Result<Response, Problem> {
    Ok(reply::one::<Peering>(&api, api.core.store.peering(id).await?))
}

#[utoipa::path(delete, path = "/v1/peerings/{peering}", tag = "peerings",
    params(("peering" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_peering(
    State(api): State<App>,
    Id(id): Id<PeeringId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    api.core.store.delete_peering(id, expected).await?;
    Ok(reply::deleted(&api))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(create_peering, list_peerings))
        .routes(routes!(get_peering, delete_peering))
}
