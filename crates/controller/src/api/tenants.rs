//! Tenants: owners of VPCs.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, check_name, page};
use super::{Api, App};
use crate::members::Needs;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_types::TenantId;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(Serialize, ToSchema)]
struct Tenant {
    #[schema(value_type = String, example = "tenant-1")]
    id: TenantId,
    name: String,
    revision: u64,
    programmed: bool,
}

impl Resource for Tenant {
    type Stored = sluice_store::Tenant;
    const PATH: &'static str = "/v1/tenants";
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs(_: &Self::Stored) -> Needs {
        Needs::Nothing
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        Self { id: stored.id, name: stored.name, revision: stored.revision, programmed }
    }
}

/// A tenant's name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TenantBody {
    /// Unique in the cloud.
    name: String,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TenantQuery {
    /// Only the one with this name.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

#[utoipa::path(post, path = "/v1/tenants", tag = "tenants", request_body = TenantBody,
    responses((status = 201, body = Tenant), (status = 200, body = Tenant, description = "Was there")))]
async fn create_tenant(State(api): State<App>, Json(body): Json<TenantBody>) -> Result<Response, Problem> {
    check_name("name", &body.name)?;
    Ok(reply::created::<Tenant>(&api, api.core.store.create_tenant(&body.name).await?))
}

#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", params(TenantQuery),
    responses((status = 200, body = List<Tenant>)))]
async fn list_tenants(State(api): State<App>, Query(query): Query<TenantQuery>) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), TenantId::get)?;
    let stored = api.core.store.tenants(query.name.as_deref(), reply::one_more(page)).await?;
    Ok(reply::list::<Tenant>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/tenants/{tenant}", tag = "tenants",
    params(("tenant" = String, Path)), responses((status = 200, body = Tenant)))]
async fn get_tenant(State(api): State<App>, Id(id): Id<TenantId>) -> Result<Response, Problem> {
    Ok(reply::one::<Tenant>(&api, api.core.store.tenant(id).await?))
}

#[utoipa::path(patch, path = "/v1/tenants/{tenant}", tag = "tenants",
    params(("tenant" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = TenantBody, responses((status = 200, body = Tenant)))]
async fn update_tenant(
    State(api): State<App>,
    Id(id): Id<TenantId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<TenantBody>,
) -> Result<Response, Problem> {
    check_name("name", &body.name)?;
    Ok(reply::updated::<Tenant>(&api, api.core.store.rename_tenant(id, &body.name, expected).await?))
}

#[utoipa::path(delete, path = "/v1/tenants/{tenant}", tag = "tenants",
    params(("tenant" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_tenant(
    State(api): State<App>,
    Id(id): Id<TenantId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    api.core.store.delete_tenant(id, expected).await?;
    Ok(reply::deleted(&api))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new().routes(routes!(create_tenant, list_tenants)).routes(routes!(
        get_tenant,
        update_tenant,
        delete_tenant
    ))
}
