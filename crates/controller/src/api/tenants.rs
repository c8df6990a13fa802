//! Tenants: the owners of VPCs.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Page, Store, StoreError};
use sluice_types::TenantId;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(Serialize, ToSchema)]
struct Tenant {
    #[schema(value_type = String, example = "tenant-1")]
    id: TenantId,
    name: String,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Tenant {
    type Stored = sluice_store::Tenant;
    const PATH: &'static str = "/v1/tenants";
    const TAG: &'static str = "tenants";
    const NAME: &'static str = "tenant";
    fn needs(_: &Self::Stored) -> Needs {
        Needs::Nothing
    }
    fn entries(_: &Self::Stored) -> Entries {
        Entries::default()
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        Self { id: stored.id, name: stored.name, revision: stored.revision, programmed }
    }
}

/// A tenant's name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantBody {
    /// Name, unique in the cloud.
    name: String,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TenantFilter {
    /// Only the tenant with this name.
    name: Option<String>,
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
    Ok(reply::updated::<Tenant>(&api, api.db.store.rename_tenant(id, &body.name, expected).await?))
}

impl Listable for Tenant {
    type Filter = TenantFilter;
    async fn list(store: &Store, filter: TenantFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.tenants(filter.name.as_deref(), page).await
    }
}

impl Deletable for Tenant {}

impl Creatable for Tenant {
    type New = TenantBody;
    async fn create(api: &Api, new: TenantBody) -> Result<sluice_store::Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        Ok(api.db.store.create_tenant(&new.name).await?)
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<Tenant>())
        .routes(resource::list::<Tenant>())
        .routes(resource::get::<Tenant>())
        .routes(resource::delete::<Tenant>())
        .routes(routes!(update_tenant))
}
