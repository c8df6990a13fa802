//! Peerings: two VPCs of a tenant that can reach each other's subnets.

use super::problem::Problem;
use super::reply::Programmed;
use super::request::check_name;
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App, FIRST, settle};
use crate::place::admission::demand::NewObjects;
use crate::push::{Entries, Needs};
use serde::{Deserialize, Serialize};
use sluice_store::{Page, Store, StoreError};
use sluice_types::{PeeringId, VpcId};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

#[derive(Serialize, ToSchema)]
struct Peering {
    #[schema(value_type = String, example = "peer-1")]
    id: PeeringId,
    name: String,
    #[schema(value_type = Vec<String>, min_items = 2, max_items = 2)]
    vpcs: [VpcId; 2],
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
        Entries { vpcs: vec![stored.a, stored.b], all_routes: true, ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Peering { id, name, a, b, revision } = stored;
        Self { id, name, vpcs: [a, b], revision, programmed }
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

impl Creatable for Peering {
    type New = NewPeering;
    async fn create(api: &Api, new: NewPeering) -> Result<sluice_store::Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        let [a, b] = new.vpcs;
        let new = sluice_store::NewPeering { name: new.name, a, b };
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
}
