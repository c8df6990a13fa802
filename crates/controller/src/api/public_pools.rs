//! Pools of public addresses, which operators give to clusters.

use super::App;
use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Page, PublicPoolUpdate, Store, StoreError};
use sluice_types::{ClusterId, IpNet, PublicPoolId, given, parse_prefix};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Public addresses from which tenants get EIPs and NAT gateways. The gateways of the cluster announce them.
#[derive(Serialize, ToSchema)]
struct PublicPool {
    #[schema(value_type = String, example = "pool-1")]
    id: PublicPoolId,
    name: String,
    /// The cluster whose gateways announce the addresses.
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    /// In ascending order.
    #[schema(value_type = Vec<String>, example = json!(["198.51.100.0/24", "2001:db8:9::/48"]))]
    prefixes: Vec<IpNet>,
    /// Those of which no EIP and no NAT gateway has an address, in ascending order.
    #[schema(value_type = Vec<String>, example = json!(["198.51.100.1/32"]))]
    reserved: Vec<IpNet>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for PublicPool {
    type Stored = sluice_store::PublicPool;
    const PATH: &'static str = "/v1/public-pools";
    const TAG: &'static str = "internet";
    const NAME: &'static str = "public_pool";
    const PARAMETER: &'static str = "pool";
    fn needs(_: &Self::Stored) -> Needs {
        Needs::Nothing
    }
    fn entries(_: &Self::Stored) -> Entries {
        Entries::default()
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::PublicPool { id, name, cluster, prefixes, reserved, revision } = stored;
        Self { id, name, cluster, prefixes, reserved, revision, programmed }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPublicPool {
    /// Name, unique in the cloud.
    name: String,
    /// The cluster whose gateways announce the addresses.
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    /// 1 to 64 prefixes of unicast addresses. They have no address in common with other pools, and contain no address of
    /// the underlay.
    #[schema(example = json!(["198.51.100.0/24", "2001:db8:9::/48"]))]
    prefixes: Vec<String>,
    /// At most 64 prefixes inside `prefixes` of which no EIP and no NAT gateway gets an address: those that the router
    /// and the gateways have on their link, for example.
    #[serde(default)]
    #[schema(example = json!(["198.51.100.1/32"]))]
    reserved: Vec<String>,
}

/// A change of a pool. Fields that are left out keep their values.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PublicPoolPatch {
    /// Name, unique in the cloud.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    name: Option<String>,
    /// All prefixes of the pool from now on. Each address of an EIP or a NAT gateway must be in one of them.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    prefixes: Option<Vec<String>>,
    /// All reserved prefixes from now on. Each must be in a prefix of the pool, and no EIP and no NAT gateway may have an
    /// address of it.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    reserved: Option<Vec<String>>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PublicPoolFilter {
    /// Only pools of this cluster.
    #[param(value_type = Option<String>)]
    cluster: Option<ClusterId>,
    /// Only the pool with this name.
    name: Option<String>,
}

fn parse(field: &str, prefixes: &[String]) -> Result<Vec<IpNet>, Problem> {
    let one = |(index, text): (usize, &String)| {
        parse_prefix(text).map_err(|error| Problem::invalid(&format!("{field}[{index}]"), error.to_string()))
    };
    prefixes.iter().enumerate().map(one).collect()
}

#[utoipa::path(patch, path = "/v1/public-pools/{pool}", tag = "internet",
    params(("pool" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = PublicPoolPatch, responses((status = 200, body = PublicPool)))]
async fn update_public_pool(
    State(api): State<App>,
    Id(id): Id<PublicPoolId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<PublicPoolPatch>,
) -> Result<Response, Problem> {
    if let Some(name) = &body.name {
        check_name("name", name)?;
    }
    let prefixes = body.prefixes.map(|prefixes| parse("prefixes", &prefixes)).transpose()?;
    let reserved = body.reserved.map(|reserved| parse("reserved", &reserved)).transpose()?;
    let new = PublicPoolUpdate { name: body.name, prefixes, reserved };
    Ok(reply::updated::<PublicPool>(&api, api.db.store.update_public_pool(id, new, expected).await?))
}

impl Listable for PublicPool {
    type Filter = PublicPoolFilter;
    async fn list(
        store: &Store,
        filter: PublicPoolFilter,
        page: Page,
    ) -> Result<Vec<Self::Stored>, StoreError> {
        store.public_pools(filter.cluster, filter.name.as_deref(), page).await
    }
}

impl Deletable for PublicPool {}

impl Creatable for PublicPool {
    type New = NewPublicPool;
    async fn create(
        api: &super::Api,
        new: NewPublicPool,
    ) -> Result<sluice_store::Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        let prefixes = parse("prefixes", &new.prefixes)?;
        let reserved = parse("reserved", &new.reserved)?;
        let new = sluice_store::NewPublicPool { name: new.name, cluster: new.cluster, prefixes, reserved };
        api.db.store.create_public_pool(new).await.map_err(|error| Problem::of_store(error, None))
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<PublicPool>())
        .routes(resource::list::<PublicPool>())
        .routes(resource::get::<PublicPool>())
        .routes(resource::delete::<PublicPool>())
        .routes(routes!(update_public_pool))
}
