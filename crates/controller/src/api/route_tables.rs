//! Route tables: created together with their VPC.

use super::App;
use super::reply::Programmed;
use super::resource::{self, Listable, Resource};
use crate::push::{Entries, Needs};
use serde::{Deserialize, Serialize};
use sluice_store::{Page, Store, StoreError};
use sluice_types::{RouteTableId, VpcId};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

/// Tables read at a time when one is searched by name.
const STEP: u32 = 1000;

#[derive(Serialize, ToSchema)]
struct RouteTable {
    #[schema(value_type = String, example = "rtb-1")]
    id: RouteTableId,
    name: String,
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for RouteTable {
    type Stored = sluice_store::RouteTable;
    const PATH: &'static str = "/v1/route-tables";
    const TAG: &'static str = "routes";
    const NAME: &'static str = "route_table";
    const PARAMETER: &'static str = "table";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.vpc)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        Entries { vpcs: vec![stored.vpc], ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::RouteTable { id, name, vpc, revision } = stored;
        Self { id, name, vpc, revision, programmed }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RouteTableFilter {
    /// Only route tables of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only route tables with this name, at most one for each VPC.
    name: Option<String>,
}

/// Searches route tables by name. The store cannot, so they are read in steps.
async fn find_named(
    store: &Store,
    vpc: Option<VpcId>,
    name: &str,
    page: Page,
) -> Result<Vec<sluice_store::RouteTable>, StoreError> {
    let mut found = Vec::new();
    let mut step = Page { after: page.after, limit: STEP };
    while found.len() < page.limit as usize {
        let tables = store.route_tables(vpc, step).await?;
        let Some(last) = tables.last().map(|table| table.id.get()) else { break };
        step.after = last;
        found.extend(tables.into_iter().filter(|table| table.name == name));
    }
    found.truncate(page.limit as usize);
    Ok(found)
}

impl Listable for RouteTable {
    type Filter = RouteTableFilter;
    async fn list(
        store: &Store,
        filter: RouteTableFilter,
        page: Page,
    ) -> Result<Vec<Self::Stored>, StoreError> {
        match &filter.name {
            None => store.route_tables(filter.vpc, page).await,
            Some(name) => find_named(store, filter.vpc, name, page).await,
        }
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(resource::list::<RouteTable>()).routes(resource::get::<RouteTable>())
}
