//! Meters: limits of Internet traffic, which EIPs and VPCs have.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name, set};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{ATTEMPTS, Api, App};
use crate::compile::meter_id;
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Created, MeterUpdate, Page, Store, StoreError};
use sluice_types::{MeterId, MeterRate, TenantId, given};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// A limit of the Internet traffic of all EIPs and VPCs, and of the traffic of all peerings, that have this meter. They share it.
#[derive(Serialize, ToSchema)]
struct Meter {
    #[schema(value_type = String, example = "meter-1")]
    id: MeterId,
    name: String,
    /// The tenant that owns it.
    #[schema(value_type = String, example = "tenant-1")]
    tenant: TenantId,
    /// Rate in kbit/s of IP packets to the instances; absent: not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_kbps: Option<u64>,
    /// Bytes to the instances that pass at once after a pause; absent: what passes in 0.4 s at the rate, and at least 196608.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_burst: Option<u64>,
    /// Rate in kbit/s of IP packets from the instances; absent: not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    out_kbps: Option<u64>,
    /// Bytes from the instances that pass at once after a pause; absent: as for `in_burst`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    out_burst: Option<u64>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Meter {
    type Stored = sluice_store::Meter;
    const PATH: &'static str = "/v1/meters";
    const TAG: &'static str = "internet";
    const NAME: &'static str = "meter";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Meter(stored.id)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        Entries { meters: vec![meter_id(stored.id)], ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Meter { id, name, tenant, inward, outward, revision } = stored;
        let kbps = |rate: Option<MeterRate>| rate.map(|rate| rate.kbps);
        let burst = |rate: Option<MeterRate>| rate.and_then(|rate| rate.burst);
        Self {
            id,
            name,
            tenant,
            in_kbps: kbps(inward),
            in_burst: burst(inward),
            out_kbps: kbps(outward),
            out_burst: burst(outward),
            revision,
            programmed,
        }
    }
}

/// A meter has a rate in at least one direction.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMeter {
    /// Name, unique in the tenant.
    name: String,
    /// The tenant that owns it.
    #[schema(value_type = String, example = "tenant-1")]
    tenant: TenantId,
    /// Rate in kbit/s of IP packets to the instances; not limited if left out.
    #[schema(minimum = 64, maximum = 400000000)]
    in_kbps: Option<u64>,
    /// Bytes to the instances that pass at once after a pause, refilled within a day. If left out, what passes in 0.4 s at the
    /// rate, and at least 196608.
    #[schema(minimum = 16384)]
    in_burst: Option<u64>,
    /// Rate in kbit/s of IP packets from the instances; not limited if left out.
    #[schema(minimum = 64, maximum = 400000000)]
    out_kbps: Option<u64>,
    /// Bytes from the instances that pass at once after a pause, as `in_burst`.
    #[schema(minimum = 16384)]
    out_burst: Option<u64>,
}

/// A change of a meter. Fields that are left out keep their values. What has passed counts against the new limits.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MeterPatch {
    /// Name, unique in the tenant.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    name: Option<String>,
    /// Rate in kbit/s of IP packets to the instances; null removes the limit and its burst.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<u64>, minimum = 64, maximum = 400000000)]
    in_kbps: Option<Option<u64>>,
    /// Bytes to the instances that pass at once after a pause; null for the default.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<u64>, minimum = 16384)]
    in_burst: Option<Option<u64>>,
    /// Rate in kbit/s of IP packets from the instances; null removes the limit and its burst.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<u64>, minimum = 64, maximum = 400000000)]
    out_kbps: Option<Option<u64>>,
    /// Bytes from the instances that pass at once after a pause; null for the default.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<u64>, minimum = 16384)]
    out_burst: Option<Option<u64>>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MeterFilter {
    /// Only meters of this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Only meters with this name, at most one for each tenant.
    name: Option<String>,
}

/// The limit of a direction that a request asks for. `burst_field` is the field of its burst.
fn rate(kbps: Option<u64>, burst: Option<u64>, burst_field: &str) -> Result<Option<MeterRate>, Problem> {
    match (kbps, burst) {
        (None, Some(_)) => {
            let detail = format!("{burst_field} has no use: there is no rate in this direction");
            Err(Problem::invalid(burst_field, detail))
        }
        (kbps, burst) => Ok(kbps.map(|kbps| MeterRate { kbps, burst })),
    }
}

/// The limit of a direction after a patch.
fn patched(
    current: Option<MeterRate>,
    kbps: Option<Option<u64>>,
    burst: Option<Option<u64>>,
    burst_field: &str,
) -> Result<Option<MeterRate>, Problem> {
    let kbps = kbps.unwrap_or(current.map(|rate| rate.kbps));
    let kept = current.and_then(|rate| rate.burst).filter(|_| kbps.is_some());
    rate(kbps, burst.unwrap_or(kept), burst_field)
}

#[utoipa::path(patch, path = "/v1/meters/{meter}", tag = "internet",
    params(("meter" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = MeterPatch, responses((status = 200, body = Meter)))]
async fn update_meter(
    State(api): State<App>,
    Id(id): Id<MeterId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<MeterPatch>,
) -> Result<Response, Problem> {
    let MeterPatch { name, in_kbps, in_burst, out_kbps, out_burst } = body;
    name.as_deref().map_or(Ok(()), |name| check_name("name", name))?;
    let mut attempts = 1;
    loop {
        let current = api.db.store.meter(id).await?;
        let new = MeterUpdate {
            name: name.clone().unwrap_or(current.name),
            inward: patched(current.inward, in_kbps, in_burst, "in_burst")?,
            outward: patched(current.outward, out_kbps, out_burst, "out_burst")?,
        };
        // The other fields must not change in between.
        let at = expected.unwrap_or(current.revision);
        match api.db.store.update_meter(id, new, Some(at)).await {
            Ok(meter) => return Ok(reply::updated::<Meter>(&api, meter)),
            Err(StoreError::Stale { .. }) if expected.is_none() && attempts < ATTEMPTS => attempts += 1,
            Err(error) => return Err(Problem::of_change(error, expected)),
        }
    }
}

impl Listable for Meter {
    type Filter = MeterFilter;
    async fn list(store: &Store, filter: MeterFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.meters(filter.tenant, filter.name.as_deref(), page).await
    }
}

impl Deletable for Meter {}

impl Creatable for Meter {
    type New = NewMeter;
    async fn create(api: &Api, new: NewMeter) -> Result<Created<Self::Stored>, Problem> {
        let NewMeter { name, tenant, in_kbps, in_burst, out_kbps, out_burst } = new;
        check_name("name", &name)?;
        let inward = rate(in_kbps, in_burst, "in_burst")?;
        let outward = rate(out_kbps, out_burst, "out_burst")?;
        let new = sluice_store::NewMeter { name, tenant, inward, outward };
        api.db.store.create_meter(new).await.map_err(|error| Problem::of_store(error, None))
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<Meter>())
        .routes(resource::list::<Meter>())
        .routes(resource::get::<Meter>())
        .routes(resource::delete::<Meter>())
        .routes(routes!(update_meter))
}
