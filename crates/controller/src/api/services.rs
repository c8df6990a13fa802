//! Services of VPCs, and their members: instances among which the flows to the services' mounts are spread.

use super::App;
use super::problem::Problem;
use super::removals::{self, Removal, RemovalWait};
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, Query, check_name};
use super::resource::{self, Deletable, Listable, Resource};
use crate::push::{Entries, Needs};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json as Answer, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{Created, Page, ServiceUpdate, Store, StoreError, StoredMember};
use sluice_types::{HostId, InstanceId, MacAddr, MemberId, MemberStatus, ServiceId, TenantId, VpcId, given};
use std::fmt::Display;
use std::str::FromStr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// A service: VPCs that mount it reach its members by one address.
#[derive(Serialize, ToSchema)]
struct Service {
    #[schema(value_type = String, example = "svc-1")]
    id: ServiceId,
    name: String,
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    /// VPCs of all tenants may mount it.
    allow_all_tenants: bool,
    /// Tenants whose VPCs may mount it, besides that of its own VPC.
    #[schema(value_type = Vec<String>)]
    allow_tenants: Vec<TenantId>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Service {
    type Stored = sluice_store::Service;
    const PATH: &'static str = "/v1/services";
    const TAG: &'static str = "services";
    const NAME: &'static str = "service";
    /// Nodes need its mounts.
    fn needs(_: &Self::Stored) -> Needs {
        Needs::Nothing
    }
    fn entries(_: &Self::Stored) -> Entries {
        Entries::default()
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Service { id, name, vpc, any_tenant, tenants, revision, .. } = stored;
        Self { id, name, vpc, allow_all_tenants: any_tenant, allow_tenants: tenants, revision, programmed }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewService {
    /// Name, unique in the VPC.
    name: String,
    /// VPCs of all tenants may mount it. If left out, not.
    allow_all_tenants: Option<bool>,
    /// Tenants whose VPCs may mount it, besides that of its own VPC; at most 1024. If left out, none.
    #[schema(value_type = Option<Vec<String>>)]
    allow_tenants: Option<Vec<TenantId>>,
}

/// A change of a service. Fields that are left out keep their values. A tenant that has a mount keeps its permission.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServicePatch {
    /// VPCs of all tenants may mount it.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    allow_all_tenants: Option<bool>,
    /// Tenants whose VPCs may mount it, besides that of its own VPC; at most 1024.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, nullable = false)]
    allow_tenants: Option<Vec<TenantId>>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ServiceFilter {
    /// Only services of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only services with this name, at most one for each VPC.
    name: Option<String>,
}

/// A member of a service.
#[derive(Serialize, ToSchema)]
struct ServiceMember {
    #[schema(value_type = String, example = "member-1")]
    id: MemberId,
    #[schema(value_type = String, example = "inst-1")]
    instance: InstanceId,
    /// Name of the instance.
    name: String,
    /// Host of the instance.
    #[schema(value_type = String, example = "host-1")]
    host: HostId,
    /// Its number in the service, 1 to 127.
    number: u8,
    /// The MAC address of its vNICs.
    #[schema(value_type = String)]
    mac: MacAddr,
    /// `waiting` until its host has reported it, then `up`, `vm_silent` or `host_unreachable`.
    #[schema(value_type = String, example = "up")]
    status: MemberStatus,
    /// New flows go to other members.
    draining: bool,
    /// What was measured when the status changed.
    evidence: String,
    /// When the status changed, in milliseconds since 1970.
    since_ms: u64,
    revision: u64,
}

impl From<StoredMember> for ServiceMember {
    fn from(member: StoredMember) -> Self {
        let StoredMember { id, service: _, instance, name, host, number, mac, .. } = member;
        let StoredMember { status, draining, evidence, since_ms, revision, .. } = member;
        Self { id, instance, name, host, number, mac, status, draining, evidence, since_ms, revision }
    }
}

/// The members of a service, in order of their addition.
#[derive(Serialize, ToSchema)]
struct ServiceMembers {
    items: Vec<ServiceMember>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewServiceMember {
    /// An instance of the service's VPC, on a host with a vSwitch. It neither moves nor migrates while it is a member.
    #[schema(value_type = String, example = "inst-1")]
    instance: InstanceId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceMemberPatch {
    /// New flows go to other members; those that the member has, stay.
    draining: bool,
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/services", tag = "services", params(("vpc" = String, Path)),
    request_body = NewService,
    responses((status = 201, body = Service),
        (status = 200, body = Service, description = "The same object exists already")))]
async fn create_service(
    State(api): State<App>,
    Id(vpc): Id<VpcId>,
    Json(body): Json<NewService>,
) -> Result<Response, Problem> {
    let NewService { name, allow_all_tenants, allow_tenants } = body;
    check_name("name", &name)?;
    let new = sluice_store::NewService { name, vpc, any_tenant: allow_all_tenants, tenants: allow_tenants };
    let created = api.db.store.create_service(new).await;
    let created = created.map_err(|error| Problem::of_store(error, Some(&vpc.to_string())))?;
    Ok(reply::created::<Service>(&api, created))
}

#[utoipa::path(patch, path = "/v1/services/{service}", tag = "services",
    params(("service" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = ServicePatch, responses((status = 200, body = Service)))]
async fn update_service(
    State(api): State<App>,
    Id(id): Id<ServiceId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<ServicePatch>,
) -> Result<Response, Problem> {
    let new = ServiceUpdate { any_tenant: body.allow_all_tenants, tenants: body.allow_tenants };
    let updated = api.db.store.update_service(id, new, expected).await;
    let updated = updated.map_err(|error| Problem::of_store(error, Some(&id.to_string())))?;
    Ok(reply::updated::<Service>(&api, updated))
}

/// The members of a service.
#[utoipa::path(get, path = "/v1/services/{service}/members", tag = "services",
    params(("service" = String, Path)), responses((status = 200, body = ServiceMembers)))]
async fn list_members(State(api): State<App>, Id(id): Id<ServiceId>) -> Result<Response, Problem> {
    let store = &api.db.store;
    store.service(id).await?;
    let items = store.members(id).await?.into_iter().map(Into::into).collect();
    Ok(Answer(ServiceMembers { items }).into_response())
}

/// Makes an instance a member. It gets flows when its host has the ports of its vNICs and finds its VM up.
#[utoipa::path(post, path = "/v1/services/{service}/members", tag = "services",
    params(("service" = String, Path)), request_body = NewServiceMember,
    responses((status = 201, body = ServiceMember),
        (status = 200, body = ServiceMember, description = "It is a member already")))]
async fn add_member(
    State(api): State<App>,
    Id(id): Id<ServiceId>,
    Json(body): Json<NewServiceMember>,
) -> Result<Response, Problem> {
    let added = api.db.store.add_member(id, body.instance).await;
    let (status, member) = match added.map_err(|error| Problem::of_store(error, Some(&id.to_string())))? {
        Created::New(member) => {
            api.db.notify_commit();
            (StatusCode::CREATED, member)
        }
        Created::Existing(member) => (StatusCode::OK, member),
    };
    Ok((status, Answer(ServiceMember::from(member))).into_response())
}

fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| Problem::bad_request(text, error.to_string()))
}

/// The ids of a path.
fn ids((service, instance): (String, String)) -> Result<(ServiceId, InstanceId), Problem> {
    Ok((parse(&service)?, parse(&instance)?))
}

/// Drains a member, or gives it new flows again.
#[utoipa::path(patch, path = "/v1/services/{service}/members/{instance}", tag = "services",
    params(("service" = String, Path), ("instance" = String, Path)),
    request_body = ServiceMemberPatch, responses((status = 200, body = ServiceMember)))]
async fn drain_member(
    State(api): State<App>,
    Path(path): Path<(String, String)>,
    Json(body): Json<ServiceMemberPatch>,
) -> Result<Response, Problem> {
    let (service, instance) = ids(path)?;
    let member = api.db.store.drain_member(service, instance, body.draining).await?;
    api.db.notify_commit();
    Ok(Answer(ServiceMember::from(member)).into_response())
}

/// Removes a member and its vNICs. The flows that it has go to other members; drain it before to keep them until they end.
#[utoipa::path(delete, path = "/v1/services/{service}/members/{instance}", tag = "services",
    params(("service" = String, Path), ("instance" = String, Path), RemovalWait),
    responses((status = 200, body = Removal, description = "Removed; its host may still have its vNICs")))]
async fn remove_member(
    State(api): State<App>,
    Path(path): Path<(String, String)>,
    Query(wait): Query<RemovalWait>,
) -> Result<Response, Problem> {
    let (service, instance) = ids(path)?;
    let deadline = wait.deadline()?;
    let revision = api.db.store.remove_member(service, instance).await?;
    api.db.notify_commit();
    Ok(removals::answer(&api, revision, deadline).await?.into_response())
}

impl Listable for Service {
    type Filter = ServiceFilter;
    async fn list(store: &Store, filter: ServiceFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.services(filter.vpc, filter.name.as_deref(), page).await
    }
}

impl Deletable for Service {}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::list::<Service>())
        .routes(resource::get::<Service>())
        .routes(resource::delete::<Service>())
        .routes(routes!(create_service))
        .routes(routes!(update_service))
        .routes(routes!(list_members, add_member))
        .routes(routes!(drain_member, remove_member))
}
