//! VPCs: one VNI, one VRF, on one cluster.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, check_name, page};
use super::{Api, App};
use crate::core::Core;
use crate::members::Needs;
use crate::placing;
use crate::placing::new::{Unplaced, cluster_for};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{Created, Page, StoreError, VpcUpdate};
use sluice_types::{ClusterId, TenantId, Vni, VpcId};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Fits VXLAN over either family where the underlay carries 1500 bytes.
const DEFAULT_MTU: u16 = 1430;
/// IPv6 needs it (RFC 8200).
const MIN_MTU: u16 = 1280;
/// What VXLAN over IPv6 leaves of an underlay of 9216 bytes.
const MAX_MTU: u16 = 9146;
/// Times that an update without If-Match is tried while others update, too.
const TRIES: u32 = 5;

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
    /// kbit/s from which a flow is offloaded; absent: the gateways' own threshold;
    /// 4294967295: none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    offload_kbps: Option<u32>,
    /// Present while it moves: both clusters have its entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "cluster-2")]
    moving_to: Option<ClusterId>,
    /// `filling`: hosts send to `cluster`, while the gateways of the other learn.
    /// `switching`: hosts are told to send to `moving_to`.
    #[serde(skip_serializing_if = "Option::is_none")]
    move_phase: Option<MovePhase>,
    /// While it moves: names of the nodes that have not acknowledged the phase yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    move_waits_for: Vec<String>,
    #[serde(skip)]
    move_id: Option<u64>,
    revision: u64,
    programmed: bool,
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
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.id)
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        let sluice_store::Vpc { id, name, tenant, vni, cluster, mtu, offload_kbps, moving, revision } =
            stored;
        let moving_to = moving.map(|moving| moving.to);
        let phase = |switched| if switched { MovePhase::Switching } else { MovePhase::Filling };
        let move_phase = moving.map(|moving| phase(moving.switched));
        let (move_id, move_waits_for) = (moving.map(|moving| moving.id), Vec::new());
        Self {
            id,
            name,
            tenant,
            cluster,
            vni,
            mtu,
            offload_kbps,
            moving_to,
            move_phase,
            move_waits_for,
            move_id,
            revision,
            programmed,
        }
    }
    fn observe(&mut self, core: &Core) {
        self.move_waits_for = self.move_id.map(|id| core.lacking(id)).unwrap_or_default();
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewVpc {
    /// Unique in the tenant.
    name: String,
    #[schema(value_type = String, example = "tenant-1")]
    tenant: TenantId,
    /// The least loaded one that is open to the tenant if left out.
    #[schema(value_type = Option<String>, example = "cluster-1")]
    cluster: Option<ClusterId>,
    /// Chosen if left out.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 16777215)]
    vni: Option<Vni>,
    /// Bytes of IP packet; 1430 if left out.
    #[schema(minimum = 1280, maximum = 9146)]
    mtu: Option<u16>,
    /// kbit/s from which a flow is offloaded; the gateways' own threshold if left out;
    /// 4294967295: none is.
    #[schema(minimum = 1)]
    offload_kbps: Option<u32>,
}

/// What changes; the rest stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct VpcPatch {
    name: Option<String>,
    #[schema(minimum = 1280, maximum = 9146)]
    mtu: Option<u16>,
    /// null: the gateways' own threshold.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    offload_kbps: Option<Option<u32>>,
    /// Moves it, with all VPCs that it is peered with, directly or over others; while it
    /// moves, the cluster that it left turns it back.
    #[schema(value_type = Option<String>, example = "cluster-2")]
    cluster: Option<ClusterId>,
}

/// Tells null from absent.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(from).map(Some)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct VpcQuery {
    /// Only those of this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Only those with this name, one a tenant.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

fn check_mtu(mtu: u16) -> Result<u16, Problem> {
    if (MIN_MTU..=MAX_MTU).contains(&mtu) {
        return Ok(mtu);
    }
    Err(Problem::invalid("mtu", format!("mtu must be between {MIN_MTU} and {MAX_MTU}, not {mtu}")))
}

fn check_kbps(kbps: Option<u32>) -> Result<Option<u32>, Problem> {
    match kbps {
        Some(0) => Err(Problem::invalid("offload_kbps", "offload_kbps must be at least 1")),
        kbps => Ok(kbps),
    }
}

/// The cluster of a VPC that is to be made without one: the one it has, if it is there already.
async fn cluster_of(api: &Api, name: &str, tenant: TenantId) -> Result<ClusterId, Problem> {
    let store = &api.core.store;
    store.tenant(tenant).await.map_err(|error| Problem::of_store(error, None))?;
    let there = store.vpcs(Some(tenant), Some(name), Page { after: 0, limit: 1 }).await?;
    if let Some(vpc) = there.first() {
        return Ok(vpc.cluster);
    }
    api.core.caught_up().await?;
    let picture = placing::picture(&api.core).await?;
    cluster_for(&picture, tenant).map_err(|error| {
        let text = error.to_string();
        match error {
            Unplaced::NoCluster => Problem::invalid("cluster", text),
            Unplaced::NoRoom { .. } => {
                Problem::new(StatusCode::INSUFFICIENT_STORAGE, "no-room", text).offender("cluster")
            }
            Unplaced::Input(_) => {
                Problem::new(StatusCode::CONFLICT, "cannot-place", text).offender("cluster")
            }
        }
    })
}

#[utoipa::path(post, path = "/v1/vpcs", tag = "vpcs", request_body = NewVpc,
    responses((status = 201, body = Vpc), (status = 200, body = Vpc, description = "Was there")))]
async fn create_vpc(State(api): State<App>, Json(body): Json<NewVpc>) -> Result<Response, Problem> {
    check_name("name", &body.name)?;
    let mtu = check_mtu(body.mtu.unwrap_or(DEFAULT_MTU))?;
    let mut turn = None;
    let cluster = match body.cluster {
        Some(cluster) => cluster,
        None => {
            turn = Some(api.core.placing.lock().await);
            cluster_of(&api, &body.name, body.tenant).await?
        }
    };
    let offload_kbps = check_kbps(body.offload_kbps)?;
    let NewVpc { name, tenant, vni, .. } = body;
    let new = sluice_store::NewVpc { name, tenant, vni, cluster, mtu, offload_kbps };
    let created = api.core.store.create_vpc(new).await.map_err(|error| Problem::of_store(error, None))?;
    if let Created::New(vpc) = &created {
        api.core.change_ledger(|ledger, now_ms| ledger.note(vpc, now_ms));
    }
    drop(turn);
    Ok(reply::created::<Vpc>(&api, created))
}

#[utoipa::path(get, path = "/v1/vpcs", tag = "vpcs", params(VpcQuery),
    responses((status = 200, body = List<Vpc>)))]
async fn list_vpcs(State(api): State<App>, Query(query): Query<VpcQuery>) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), VpcId::get)?;
    let store = &api.core.store;
    let stored = store.vpcs(query.tenant, query.name.as_deref(), reply::one_more(page)).await?;
    Ok(reply::list::<Vpc>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/vpcs/{vpc}", tag = "vpcs",
    params(("vpc" = String, Path)), responses((status = 200, body = Vpc)))]
async fn get_vpc(State(api): State<App>, Id(id): Id<VpcId>) -> Result<Response, Problem> {
    Ok(reply::one::<Vpc>(&api, api.core.store.vpc(id).await?))
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
    let mut vpc = change_vpc(&api, id, expected, &body).await?;
    if let Some(cluster) = body.cluster {
        let at = expected.map(|_| vpc.revision);
        let moved = api.core.store.move_vpc(id, cluster, at).await;
        vpc = moved.map_err(|error| Problem::of_store(error, Some(&id.to_string())))?;
    }
    Ok(reply::updated::<Vpc>(&api, vpc))
}

/// Changes what the patch has; the rest must stay what it is now.
async fn change_vpc(
    api: &Api,
    id: VpcId,
    expected: Option<u64>,
    patch: &VpcPatch,
) -> Result<sluice_store::Vpc, Problem> {
    let mut tries = 1;
    loop {
        let current = api.core.store.vpc(id).await?;
        let new = VpcUpdate {
            name: patch.name.clone().unwrap_or(current.name),
            mtu: patch.mtu.unwrap_or(current.mtu),
            offload_kbps: patch.offload_kbps.unwrap_or(current.offload_kbps),
        };
        let at = expected.unwrap_or(current.revision);
        match api.core.store.update_vpc(id, new, Some(at)).await {
            Ok(vpc) => return Ok(vpc),
            Err(StoreError::Stale { .. }) if expected.is_none() && tries < TRIES => tries += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

#[utoipa::path(delete, path = "/v1/vpcs/{vpc}", tag = "vpcs",
    params(("vpc" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_vpc(
    State(api): State<App>,
    Id(id): Id<VpcId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    api.core.store.delete_vpc(id, expected).await?;
    Ok(reply::deleted(&api))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(create_vpc, list_vpcs))
        .routes(routes!(get_vpc, update_vpc, delete_vpc))
}
