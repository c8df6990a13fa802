//! Security groups of a VPC. Their rules are resources of their own (`security_rules.rs`).

use super::App;
use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name};
use super::resource::{self, Deletable, Listable, Resource};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Page, SecurityGroupUpdate, Store, StoreError};
use sluice_types::{SecurityGroupId, VpcId};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Rules for the ports of the instances that have the group. Each VPC has a group named `default`.
#[derive(Serialize, ToSchema)]
struct SecurityGroup {
    #[schema(value_type = String, example = "sg-1")]
    id: SecurityGroupId,
    name: String,
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    description: String,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for SecurityGroup {
    type Stored = sluice_store::SecurityGroup;
    const PATH: &'static str = "/v1/security-groups";
    const TAG: &'static str = "security";
    const NAME: &'static str = "security_group";
    const PARAMETER: &'static str = "group";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::HostsOf(stored.vpc)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        Entries { vpcs: vec![stored.vpc], ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::SecurityGroup { id, name, vpc, description, revision } = stored;
        Self { id, name, vpc, description, revision, programmed }
    }
}

/// A new group has two rules: egress to any address, of IPv4 and of IPv6.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSecurityGroup {
    /// Name, unique in the VPC.
    name: String,
    /// At most 255 bytes, on one line.
    description: Option<String>,
}

/// A change of a security group. Fields that are left out keep their values.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SecurityGroupPatch {
    /// Name, unique in the VPC. The group `default` keeps its name.
    name: Option<String>,
    /// At most 255 bytes, on one line.
    description: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SecurityGroupFilter {
    /// Only security groups of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only security groups with this name, at most one for each VPC.
    name: Option<String>,
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/security-groups", tag = "security", params(("vpc" = String, Path)),
    request_body = NewSecurityGroup,
    responses((status = 201, body = SecurityGroup),
        (status = 200, body = SecurityGroup, description = "The same object exists already")))]
async fn create_security_group(
    State(api): State<App>,
    Id(vpc): Id<VpcId>,
    Json(body): Json<NewSecurityGroup>,
) -> Result<Response, Problem> {
    check_name("name", &body.name)?;
    let NewSecurityGroup { name, description } = body;
    let new = sluice_store::NewSecurityGroup { name, vpc, description };
    let created = api.db.store.create_security_group(new).await?;
    Ok(reply::created::<SecurityGroup>(&api, created))
}

#[utoipa::path(patch, path = "/v1/security-groups/{group}", tag = "security",
    params(("group" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = SecurityGroupPatch, responses((status = 200, body = SecurityGroup)))]
async fn update_security_group(
    State(api): State<App>,
    Id(id): Id<SecurityGroupId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<SecurityGroupPatch>,
) -> Result<Response, Problem> {
    if let Some(name) = &body.name {
        check_name("name", name)?;
    }
    let new = SecurityGroupUpdate { name: body.name, description: body.description };
    let updated = api.db.store.update_security_group(id, new, expected).await?;
    Ok(reply::updated::<SecurityGroup>(&api, updated))
}

impl Listable for SecurityGroup {
    type Filter = SecurityGroupFilter;
    async fn list(
        store: &Store,
        filter: SecurityGroupFilter,
        page: Page,
    ) -> Result<Vec<Self::Stored>, StoreError> {
        store.security_groups(filter.vpc, filter.name.as_deref(), page).await
    }
}

impl Deletable for SecurityGroup {}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::list::<SecurityGroup>())
        .routes(resource::get::<SecurityGroup>())
        .routes(resource::delete::<SecurityGroup>())
        .routes(routes!(create_security_group))
        .routes(routes!(update_security_group))
}
