//! Network classes, which operators define: what instances may use of their hosts' network.

use super::App;
use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name, set};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Created, NetworkClassUpdate, Page, Store, StoreError};
use sluice_types::{Allowance, CreditPolicy, NetworkClassId, given};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// What an instance may use always, at most, and while its host is contended.
#[derive(ToSchema)]
#[allow(dead_code)]
struct AllowanceFields {
    /// What it may use always. What it uses less is saved as credit.
    #[schema(minimum = 1)]
    base: u32,
    /// What it may use at most, as long as it has credit; at least `base`.
    #[schema(minimum = 1)]
    max: u32,
    /// What it may use at most while the host is contended and the instance is one of those that use most; from `base` to
    /// `max`.
    #[schema(minimum = 1)]
    clamp: u32,
    /// Most credit that it can save, in units of the rate times seconds; at most what it spends in a day at `max`.
    credit: u64,
}

/// What instances may use of their hosts' network, each by itself. Instances of all tenants can have the class.
#[derive(Serialize, ToSchema)]
struct NetworkClass {
    #[schema(value_type = String, example = "class-1")]
    id: NetworkClassId,
    name: String,
    /// Mbit/s of IP packets, of each direction by itself; null: not limited.
    #[schema(value_type = Option<AllowanceFields>)]
    mbps: Option<Allowance>,
    /// 1000 packets/s, of each direction by itself; null: not limited.
    #[schema(value_type = Option<AllowanceFields>)]
    kpps: Option<Allowance>,
    /// Thousandths of one processor that the host's network processing spends on an instance, on both directions together;
    /// null: not limited.
    #[schema(value_type = Option<AllowanceFields>)]
    cpu_permille: Option<Allowance>,
    /// Instances without a class of their own and without a rate have this class. At most one class is the default.
    is_default: bool,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for NetworkClass {
    type Stored = sluice_store::NetworkClass;
    const PATH: &'static str = "/v1/network-classes";
    const TAG: &'static str = "instances";
    const NAME: &'static str = "network_class";
    const PARAMETER: &'static str = "class";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::NetworkClass(stored.id)
    }
    fn entries(_: &Self::Stored) -> Entries {
        Entries::default()
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::NetworkClass { id, name, policy, is_default, revision } = stored;
        let CreditPolicy { mbps, kpps, cpu_permille } = policy;
        Self { id, name, mbps, kpps, cpu_permille, is_default, revision, programmed }
    }
}

/// A network class has a limit in at least one dimension.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewNetworkClass {
    /// Name, unique in the cloud.
    name: String,
    /// Mbit/s of IP packets, of each direction by itself, up to 400000; not limited if left out.
    #[schema(value_type = Option<AllowanceFields>)]
    mbps: Option<Allowance>,
    /// 1000 packets/s, of each direction by itself, up to 600000; not limited if left out.
    #[schema(value_type = Option<AllowanceFields>)]
    kpps: Option<Allowance>,
    /// Thousandths of one processor that the host's network processing spends on an instance, on both directions together,
    /// up to 64000; not limited if left out.
    #[schema(value_type = Option<AllowanceFields>)]
    cpu_permille: Option<Allowance>,
    /// Instances without a class of their own and without a rate have this class, instead of the one that is the default.
    #[serde(default)]
    is_default: bool,
}

/// A change of a network class. Fields that are left out keep their values. The hosts of the instances that have the class
/// get the new limits.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkClassPatch {
    /// Name, unique in the cloud.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    name: Option<String>,
    /// Mbit/s of IP packets, of each direction by itself; null removes the limit.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<AllowanceFields>)]
    mbps: Option<Option<Allowance>>,
    /// 1000 packets/s, of each direction by itself; null removes the limit.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<AllowanceFields>)]
    kpps: Option<Option<Allowance>>,
    /// Thousandths of one processor that the host's network processing spends on an instance; null removes the limit.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<AllowanceFields>)]
    cpu_permille: Option<Option<Allowance>>,
    /// True: the class becomes the default, and the one that is it is an ordinary class from then on. False: it is the default
    /// no more.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    is_default: Option<bool>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NetworkClassFilter {
    /// Only the class with this name.
    name: Option<String>,
}

#[utoipa::path(patch, path = "/v1/network-classes/{class}", tag = "instances",
    params(("class" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = NetworkClassPatch, responses((status = 200, body = NetworkClass)))]
async fn update_network_class(
    State(api): State<App>,
    Id(id): Id<NetworkClassId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<NetworkClassPatch>,
) -> Result<Response, Problem> {
    let NetworkClassPatch { name, mbps, kpps, cpu_permille, is_default } = body;
    name.as_deref().map_or(Ok(()), |name| check_name("name", name))?;
    let new = NetworkClassUpdate { name, mbps, kpps, cpu_permille, is_default };
    Ok(reply::updated::<NetworkClass>(&api, api.db.store.update_network_class(id, new, expected).await?))
}

impl Listable for NetworkClass {
    type Filter = NetworkClassFilter;
    async fn list(
        store: &Store,
        filter: NetworkClassFilter,
        page: Page,
    ) -> Result<Vec<Self::Stored>, StoreError> {
        store.network_classes(filter.name.as_deref(), page).await
    }
}

impl Deletable for NetworkClass {}

impl Creatable for NetworkClass {
    type New = NewNetworkClass;
    async fn create(api: &super::Api, new: NewNetworkClass) -> Result<Created<Self::Stored>, Problem> {
        let NewNetworkClass { name, mbps, kpps, cpu_permille, is_default } = new;
        check_name("name", &name)?;
        let policy = CreditPolicy { mbps, kpps, cpu_permille };
        let new = sluice_store::NewNetworkClass { name, policy, is_default };
        api.db.store.create_network_class(new).await.map_err(|error| Problem::of_store(error, None))
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<NetworkClass>())
        .routes(resource::list::<NetworkClass>())
        .routes(resource::get::<NetworkClass>())
        .routes(resource::delete::<NetworkClass>())
        .routes(routes!(update_network_class))
}
