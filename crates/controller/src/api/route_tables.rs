//! Route tables: made with their VPC.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, Query, page};
use super::{Api, App};
use crate::members::Needs;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::Page;
use sluice_types::{RouteTableId, VpcId};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Tables read at once when one is looked for by name.
const STEP: u32 = 1000;

#[derive(Serialize, ToSchema)]
struct RouteTable {
    #[schema(value_type = String, example = "rtb-1")]
    id: RouteTableId,
    name: String,
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    revision: u64,
    programmed: bool,
}

impl Resource for RouteTable {
    type Stored = sluice_store::RouteTable;
    const PATH: &'static str = "/v1/route-tables";
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.vpc)
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        let sluice_store::RouteTable { id, name, vpc, revision } = stored;
        Self { id, name, vpc, revision, programmed }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RouteTableQuery {
    /// Only those of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only those with this name, one a VPC.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// The store does not look for route tables by name: looked through in steps.
async fn named(
    api: &Api,
    vpc: Option<VpcId>,
    name: &str,
    page: Page,
) -> Result<Vec<sluice_store::RouteTable>, Problem> {
    let mut found = Vec::new();
    let mut step = Page { after: page.after, limit: STEP };
    while found.len() < page.limit as usize {
        let tables = api.core.store.route_tables(vpc, step).await?;
        let Some(last) = tables.last().map(|table| table.id.get()) else { break };
        step.after = last;
        found.extend(tables.into_iter().filter(|table| table.name == name));
    }
    found.truncate(page.limit as usize);
    Ok(found)
}

#[utoipa::path(get, path = "/v1/route-tables", tag = "routes", params(RouteTableQuery),
    responses((status = 200, body = List<RouteTable>)))]
async fn list_route_tables(
    State(api): State<App>,
    Query(query): Query<RouteTableQuery>,
) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), RouteTableId::get)?;
    let stored = match &query.name {
        None => api.core.store.route_tables(query.vpc, reply::one_more(page)).await?,
        Some(name) => named(&api, query.vpc, name, reply::one_more(page)).await?,
    };
    Ok(reply::list::<RouteTable>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/route-tables/{table}", tag = "routes",
    params(("table" = String, Path)), responses((status = 200, body = RouteTable)))]
async fn get_route_table(State(api): State<App>, Id(id): Id<RouteTableId>) -> Result<Response, Problem> {
    Ok(reply::one::<RouteTable>(&api, api.core.store.route_table(id).await?))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list_route_tables)).routes(routes!(get_route_table))
}
