//! Peerings: two VPCs of a tenant that can reach each other's subnets, each side with a meter if that is wanted.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App, FIRST, settle};
use crate::compile::meter_id;
use crate::place::admission::demand::NewObjects;
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Page, Store, StoreError};
use sluice_types::{MeterId, PeeringId, VpcId};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(Serialize, ToSchema)]
struct Peering {
    #[schema(value_type = String, example = "peer-1")]
    id: PeeringId,
    name: String,
    #[schema(value_type = Vec<String>, min_items = 2, max_items = 2)]
    vpcs: [VpcId; 2],
    /// The meters of the sides of these VPCs; absent if there is no meter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>, example = json!({"vpc-1": "meter-1"}))]
    meters: BTreeMap<VpcId, MeterId>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Peering {
    type Stored = sluice_store::Peering;
    const PATH: &'static str = "/v1/peerings";
    const TAG: &'static str = "peerings";
    const NAME: &'static str = "peering";
    /// Both VPCs are on the same cluster.
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.a)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        let meters = stored.meters.into_iter().flatten().map(meter_id).collect();
        Entries { vpcs: vec![stored.a, stored.b], all_routes: true, meters, ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Peering { id, name, a, b, meters, revision } = stored;
        let meters = [a, b].into_iter().zip(meters).filter_map(|(vpc, meter)| Some((vpc, meter?))).collect();
        Self { id, name, vpcs: [a, b], meters, revision, programmed }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPeering {
    /// Name, unique in the tenant.
    name: String,
    /// Two VPCs of one tenant, on the same cluster, with different addresses.
    #[schema(value_type = Vec<String>, min_items = 2, max_items = 2, example = json!(["vpc-1", "vpc-2"]))]
    vpcs: [VpcId; 2],
    /// Meters of the tenant by VPC. Each limits what its VPC sends to the other one, and what it gets from it. A VPC that is left
    /// out has none on a new peering.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>, example = json!({"vpc-1": "meter-1"}))]
    meters: BTreeMap<VpcId, MeterId>,
}

/// A change of a peering.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PeeringPatch {
    /// Meters of the tenant by VPC; null removes the meter. A VPC that is left out keeps its own.
    #[schema(value_type = BTreeMap<String, Option<String>>, example = json!({"vpc-1": "meter-1", "vpc-2": null}))]
    meters: BTreeMap<VpcId, Option<MeterId>>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PeeringFilter {
    /// Only peerings of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only peerings with this name, at most one for each tenant.
    name: Option<String>,
}

impl Listable for Peering {
    type Filter = PeeringFilter;
    async fn list(store: &Store, filter: PeeringFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.peerings(filter.vpc, filter.name.as_deref(), page).await
    }
}

impl Deletable for Peering {}

#[utoipa::path(patch, path = "/v1/peerings/{peering}", tag = "peerings",
    params(("peering" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = PeeringPatch, responses((status = 200, body = Peering)))]
async fn update_peering(
    State(api): State<App>,
    Id(id): Id<PeeringId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<PeeringPatch>,
) -> Result<Response, Problem> {
    let updated = api.db.store.update_peering(id, &body.meters, expected).await;
    let updated = updated.map_err(|error| Problem::of_store(error, Some(&id.to_string())))?;
    Ok(reply::updated::<Peering>(&api, updated))
}

impl Creatable for Peering {
    type New = NewPeering;
    async fn create(api: &Api, new: NewPeering) -> Result<sluice_store::Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        let [a, b] = new.vpcs;
        let new = sluice_store::NewPeering { name: new.name, a, b, meters: new.meters };
        let store = &api.db.store;
        let exists = async || Ok(!store.peerings(Some(a), Some(&new.name), FIRST).await?.is_empty());
        let admission = api.admit(NewObjects::Peering(a, b), exists()).await?;
        let created = store.create_peering(new).await.map_err(|error| Problem::of_store(error, None))?;
        settle(admission, &created);
        Ok(created)
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<Peering>())
        .routes(resource::list::<Peering>())
        .routes(resource::get::<Peering>())
        .routes(resource::delete::<Peering>())
        .routes(routes!(update_peering))
}
