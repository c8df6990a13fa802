//! VPCs: each has one VNI and one VRF, and is on one cluster.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name, set};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{ATTEMPTS, Api, App, FIRST, settle};
use crate::compile::meter_id;
use crate::place::admission::demand::NewObjects;
use crate::place::admission::{Admission, Full};
use crate::place::new_vpc::{Unplaced, cluster_for};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{MTU, Page, Store, StoreError, VpcUpdate};
use sluice_types::{ClusterId, MeterId, TenantId, Vni, VpcId};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Fits into VXLAN over IPv4 and IPv6 if the underlay carries 1500 bytes.
const DEFAULT_MTU: u16 = 1430;

#[derive(Serialize, ToSchema)]
struct Vpc {
    #[schema(value_type = String, example = "vpc-1")]
    id: VpcId,
    name: String,
    #[schema(value_type = String, example = "tenant-1")]
    tenant: TenantId,
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    #[schema(value_type = u32, minimum = 1, maximum = 16777215)]
    vni: Vni,
    mtu: u16,
    /// Rate in kbit/s from which a flow is offloaded. If absent, the gateways use their own threshold; with
    /// 4294967295, no flow is offloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    offload_kbps: Option<u32>,
    /// The meter of its Internet traffic; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, example = "meter-1")]
    internet_meter: Option<MeterId>,
    /// Present during a move: both clusters have its entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "cluster-2")]
    moving_to: Option<ClusterId>,
    /// `filling`: hosts send to `cluster`, while the gateways of `moving_to` get the entries.
    /// `switching`: hosts change to `moving_to`.
    #[serde(skip_serializing_if = "Option::is_none")]
    move_phase: Option<MovePhase>,
    /// Present during a move: names of the nodes that have not acknowledged the phase yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    move_waiting_for: Vec<String>,
    #[serde(skip)]
    move_id: Option<u64>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum MovePhase {
    Filling,
    Switching,
}

impl Resource for Vpc {
    type Stored = sluice_store::Vpc;
    const PATH: &'static str = "/v1/vpcs";
    const TAG: &'static str = "vpcs";
    const NAME: &'static str = "vpc";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.id)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        let meters = stored.internet_meter.map(meter_id).into_iter().collect();
        Entries { vpcs: vec![stored.id], meters, ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Vpc { id, name, tenant, vni, cluster, mtu, moving, revision, .. } = stored;
        let (offload_kbps, internet_meter) = (stored.offload_kbps, stored.internet_meter);
        let moving_to = moving.map(|moving| moving.to);
        let phase = |switched| if switched { MovePhase::Switching } else { MovePhase::Filling };
        let move_phase = moving.map(|moving| phase(moving.switched));
        let (move_id, move_waiting_for) = (moving.map(|moving| moving.id), Vec::new());
        Self {
            id,
            name,
            tenant,
            cluster,
            vni,
            mtu,
            offload_kbps,
            internet_meter,
            moving_to,
            move_phase,
            move_waiting_for,
            move_id,
            revision,
            programmed,
        }
    }
    fn observe(&mut self, api: &Api) {
        self.move_waiting_for = self.move_id.map(|id| api.moves.vpc_waits(id)).unwrap_or_default();
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewVpc {
    /// Name, unique in the tenant.
    name: String,
    #[schema(value_type = String, example = "tenant-1")]
    tenant: TenantId,
    /// If left out, the least loaded cluster that the tenant may use.
    #[schema(value_type = Option<String>, example = "cluster-1")]
    cluster: Option<ClusterId>,
    /// If left out, a free one is chosen.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 16777215)]
    vni: Option<Vni>,
    /// Largest IP packet in bytes; 1430 if left out.
    #[schema(minimum = 1280, maximum = 9146)]
    mtu: Option<u16>,
    /// Rate in kbit/s from which a flow is offloaded. If left out, the gateways use their own threshold; with
    /// 4294967295, no flow is offloaded.
    #[schema(minimum = 1)]
    offload_kbps: Option<u32>,
    /// A meter of the tenant for the Internet traffic of the VPC. If left out, a new VPC has none.
    #[schema(value_type = Option<String>, example = "meter-1")]
    internet_meter: Option<MeterId>,
}

/// A change of a VPC: either a move to another cluster, or other fields. Fields that are left out keep their
/// values.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct VpcPatch {
    name: Option<String>,
    #[schema(minimum = 1280, maximum = 9146)]
    mtu: Option<u16>,
    /// Rate in kbit/s from which a flow is offloaded; null for the gateways' own threshold.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    offload_kbps: Option<Option<u32>>,
    /// A meter of the tenant for the Internet traffic of the VPC; null for none.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<String>)]
    internet_meter: Option<Option<MeterId>>,
    /// Moves the VPC to this cluster, together with all VPCs that it is peered with, directly or through
    /// others. During a move, its old cluster reverses the move.
    #[schema(value_type = Option<String>, example = "cluster-2")]
    cluster: Option<ClusterId>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct VpcFilter {
    /// Only VPCs of this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Only VPCs with this name, at most one for each tenant.
    name: Option<String>,
}

fn check_mtu(mtu: u16) -> Result<u16, Problem> {
    if MTU.contains(&mtu) {
        return Ok(mtu);
    }
    let range = format!("between {} and {}", MTU.start(), MTU.end());
    Err(Problem::invalid("mtu", format!("mtu must be {range}, not {mtu}")))
}

fn check_kbps(kbps: Option<u32>) -> Result<Option<u32>, Problem> {
    match kbps {
        Some(0) => Err(Problem::invalid("offload_kbps", "offload_kbps must be at least 1")),
        kbps => Ok(kbps),
    }
}

/// The existing VPC of this name.
async fn existing(api: &Api, name: &str, tenant: TenantId) -> Result<Option<sluice_store::Vpc>, StoreError> {
    Ok(api.db.store.vpcs(Some(tenant), Some(name), FIRST).await?.pop())
}

/// The cluster of a new VPC without a given one, with the admission to it. If the VPC exists already, its present
/// cluster.
async fn cluster_of(api: &Api, name: &str, tenant: TenantId) -> Result<(ClusterId, Admission), Problem> {
    api.db.store.tenant(tenant).await.map_err(|error| Problem::of_store(error, None))?;
    if let Some(vpc) = existing(api, name, tenant).await? {
        return Ok((vpc.cluster, Admission::default()));
    }
    let mut usage = api.current_usage().await?;
    let mut refused: BTreeMap<ClusterId, Full> = BTreeMap::new();
    loop {
        let cluster = match cluster_for(&usage, tenant) {
            Ok(cluster) if !refused.contains_key(&cluster) => cluster,
            found => return Err(not_placed(refused, found)),
        };
        match api.place.admit(NewObjects::Vpc(cluster)).await? {
            Ok(admission) => return Ok((cluster, admission)),
            Err(full) => {
                refused.insert(cluster, full);
                // As a cluster without capacity it gets no VPC.
                let all = usage.clusters.iter_mut().filter(|other| other.id == cluster);
                all.for_each(|cluster| cluster.capacity_pps = 0);
            }
        }
    }
}

/// Why a VPC has no cluster: the tables of those that placement chose are full, or it chose none.
fn not_placed(mut refused: BTreeMap<ClusterId, Full>, found: Result<ClusterId, Unplaced>) -> Problem {
    match (refused.pop_first(), found) {
        (Some((_, full)), _) => full.into(),
        (None, Err(error)) => unplaced(&error),
        (None, Ok(_)) => Problem::internal(),
    }
}

fn unplaced(error: &Unplaced) -> Problem {
    let text = error.to_string();
    match error {
        Unplaced::NoCluster => Problem::invalid("cluster", text),
        Unplaced::InsufficientCapacity { .. } => {
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, "no-capacity", text).offender("cluster")
        }
        Unplaced::Input(_) => Problem::new(StatusCode::CONFLICT, "cannot-place", text).offender("cluster"),
    }
}

#[utoipa::path(patch, path = "/v1/vpcs/{vpc}", tag = "vpcs",
    params(("vpc" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = VpcPatch, responses((status = 200, body = Vpc)))]
async fn update_vpc(
    State(api): State<App>,
    Id(id): Id<VpcId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<VpcPatch>,
) -> Result<Response, Problem> {
    if let Some(name) = &body.name {
        check_name("name", name)?;
    }
    body.mtu.map(check_mtu).transpose()?;
    body.offload_kbps.map(check_kbps).transpose()?;
    let has_limits = body.offload_kbps.is_some() || body.internet_meter.is_some();
    let has_other_fields = body.name.is_some() || body.mtu.is_some() || has_limits;
    let vpc = match body.cluster {
        // Both together need two revisions, and only one of them might succeed.
        Some(_) if has_other_fields => {
            return Err(Problem::invalid("body", "expected either cluster or other fields"));
        }
        Some(cluster) => move_vpc(&api, id, cluster, expected).await?,
        None => change_vpc(&api, id, expected, &body).await?,
    };
    Ok(reply::updated::<Vpc>(&api, vpc))
}

/// Starts to move a VPC and its peers to a cluster whose tables can hold them, or reverses their move.
async fn move_vpc(
    api: &Api,
    id: VpcId,
    cluster: ClusterId,
    expected: Option<u64>,
) -> Result<sluice_store::Vpc, Problem> {
    let vpc = api.db.store.vpc(id).await?;
    let mut admission = Admission::default();
    // Both clusters of a VPC that is moving have its entries already.
    if vpc.moving.is_none() && vpc.cluster != cluster {
        let usage = api.current_usage().await?;
        let unit = usage.unit_of(id);
        let missing = usage.missing_vpc_space(&unit, cluster);
        // The table size of a cluster without serving gateways is unknown.
        if let Some((needed, size)) = missing.filter(|(_, size)| *size > 0) {
            let detail = format!("{cluster} would have {needed} entries, but its tables hold only {size}");
            return Err(Problem::new(StatusCode::CONFLICT, "tables-too-small", detail).offender("cluster"));
        }
        let mut senders = 0;
        for vpc in &unit {
            senders += api.db.store.vpc_hosts(*vpc).await?.len() as u64;
        }
        admission = api.place.admit(NewObjects::Move(&unit, cluster, senders)).await??;
    }
    let moved = api.db.store.move_vpc(id, cluster, expected).await;
    let moved = moved.map_err(|error| Problem::of_store(error, Some(&id.to_string())))?;
    admission.commit(moved.revision);
    Ok(moved)
}

/// Changes the fields of the patch. The other fields must not change in between.
async fn change_vpc(
    api: &Api,
    id: VpcId,
    expected: Option<u64>,
    patch: &VpcPatch,
) -> Result<sluice_store::Vpc, Problem> {
    let mut attempts = 1;
    loop {
        let current = api.db.store.vpc(id).await?;
        let new = VpcUpdate {
            name: patch.name.clone().unwrap_or(current.name),
            mtu: patch.mtu.unwrap_or(current.mtu),
            offload_kbps: patch.offload_kbps.unwrap_or(current.offload_kbps),
            internet_meter: patch.internet_meter.unwrap_or(current.internet_meter),
        };
        let at = expected.unwrap_or(current.revision);
        match api.db.store.update_vpc(id, new, Some(at)).await {
            Ok(vpc) => return Ok(vpc),
            Err(StoreError::Stale { .. }) if expected.is_none() && attempts < ATTEMPTS => attempts += 1,
            Err(error @ StoreError::NotFound { .. }) => {
                return Err(Problem::of_store(error, Some(&id.to_string())));
            }
            Err(error) => return Err(Problem::of_change(error, expected)),
        }
    }
}

impl Listable for Vpc {
    type Filter = VpcFilter;
    async fn list(store: &Store, filter: VpcFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.vpcs(filter.tenant, filter.name.as_deref(), page).await
    }
}

impl Deletable for Vpc {}

impl Creatable for Vpc {
    type New = NewVpc;
    async fn create(api: &Api, new: NewVpc) -> Result<sluice_store::Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        let mtu = check_mtu(new.mtu.unwrap_or(DEFAULT_MTU))?;
        let mut placing = None;
        let (cluster, admission) = match new.cluster {
            Some(cluster) => {
                let exists = async || Ok(existing(api, &new.name, new.tenant).await?.is_some());
                (cluster, api.admit(NewObjects::Vpc(cluster), exists()).await?)
            }
            None => {
                placing = Some(api.place.placing().await);
                cluster_of(api, &new.name, new.tenant).await?
            }
        };
        let offload_kbps = check_kbps(new.offload_kbps)?;
        let NewVpc { name, tenant, vni, internet_meter, .. } = new;
        let new = sluice_store::NewVpc { name, tenant, vni, cluster, mtu, offload_kbps, internet_meter };
        let created = api.db.store.create_vpc(new).await.map_err(|error| Problem::of_store(error, None))?;
        if let sluice_store::Created::New(vpc) = &created {
            api.place.add_committed_vpc(vpc);
        }
        settle(admission, &created);
        drop(placing);
        Ok(created)
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<Vpc>())
        .routes(resource::list::<Vpc>())
        .routes(resource::get::<Vpc>())
        .routes(resource::delete::<Vpc>())
        .routes(routes!(update_vpc))
}
