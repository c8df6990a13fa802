//! Clusters: gateways that share vIPs and hold the same tables.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, check_name, page};
use super::{Api, App};
use crate::compile::vip_mac;
use crate::core::Core;
use crate::members::Needs;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId, MacAddr, is_unicast};
use std::collections::HashSet;
use std::net::IpAddr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Most vIPs of one family.
const MAX_VIPS: usize = 63;

#[derive(Serialize, ToSchema)]
struct Cluster {
    #[schema(value_type = String, example = "cluster-1")]
    id: ClusterId,
    name: String,
    /// In order of place, which is bucket order.
    vips: Vec<ClusterVip>,
    /// Between two hellos of a gateway to the others, in milliseconds.
    #[schema(example = 4)]
    hello_ms: u16,
    revision: u64,
    programmed: bool,
}

/// A vIP. Its place, and with it its MAC, stay for as long as the cluster has it.
#[derive(Serialize, ToSchema)]
struct ClusterVip {
    place: u8,
    #[schema(value_type = String, example = "192.0.2.10")]
    address: IpAddr,
    #[schema(value_type = String, example = "02:00:00:01:00:00")]
    mac: MacAddr,
    /// The gateway that owns it while all is well; absent in a cluster without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "gw-1")]
    home: Option<GatewayId>,
    /// The gateway that answers for it, as far as this controller knows; absent until it has heard the
    /// cluster's gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    owner: Option<GatewayId>,
}

impl Resource for Cluster {
    type Stored = sluice_store::Cluster;
    const PATH: &'static str = "/v1/clusters";
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Cluster(stored.id)
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        let sluice_store::Cluster { id, name, vips, hello_ms, revision, .. } = stored;
        let vip = |vip: sluice_store::ClusterVip| {
            let sluice_store::ClusterVip { place, address, home } = vip;
            ClusterVip { place, address, mac: vip_mac(id, place), home, owner: None }
        };
        let vips = vips.into_iter().map(vip).collect();
        Self { id, name, vips, hello_ms, revision, programmed }
    }
    fn observe(&mut self, core: &Core) {
        let owners = core.ownership.owners(self.id);
        for vip in &mut self.vips {
            vip.owner = owners.get(&vip.address).copied();
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewCluster {
    /// Unique in the cloud.
    name: String,
    /// Underlay addresses that the cluster's gateways share out, in bucket
    /// order; 1 to 63 of a family.
    #[schema(value_type = Vec<String>, example = json!(["192.0.2.10", "2001:db8::10"]))]
    vips: Vec<IpAddr>,
    /// Between two hellos of a gateway to the others, in milliseconds, 2 to 250; 4 if absent. One that was
    /// silent for three of them is believed dead. Longer ones suit machines that are not run for tens of
    /// milliseconds now and then.
    #[schema(minimum = 2, maximum = 250, example = 4)]
    hello_ms: Option<u16>,
}

/// What replaces the cluster's vIPs, in any order: those that stay keep their place. If some
/// come and some go, that takes two revisions, and both together must not be more than 63 of
/// a family. Or another hello interval: one of both at a time.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ClusterPatch {
    #[schema(value_type = Option<Vec<String>>)]
    vips: Option<Vec<IpAddr>>,
    /// 2 to 250.
    #[schema(minimum = 2, maximum = 250)]
    hello_ms: Option<u16>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ClusterQuery {
    /// Only the one with this name.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

fn check_vips(vips: &[IpAddr]) -> Result<(), Problem> {
    if vips.is_empty() {
        return Err(Problem::invalid("vips", "a cluster needs at least one vIP"));
    }
    for ipv4 in [true, false] {
        if vips.iter().filter(|vip| vip.is_ipv4() == ipv4).count() > MAX_VIPS {
            return Err(Problem::invalid("vips", format!("more than {MAX_VIPS} vIPs of one family")));
        }
    }
    let mut seen = HashSet::new();
    for (index, vip) in vips.iter().enumerate() {
        let field = format!("vips[{index}]");
        if !is_unicast(*vip) {
            return Err(Problem::invalid(&field, format!("{vip} is not a unicast address")));
        }
        if !seen.insert(vip) {
            return Err(Problem::invalid(&field, format!("{vip} is there twice")));
        }
    }
    Ok(())
}

#[utoipa::path(post, path = "/v1/clusters", tag = "clusters", request_body = NewCluster,
    responses((status = 201, body = Cluster), (status = 200, body = Cluster, description = "Was there")))]
async fn create_cluster(State(api): State<App>, Json(body): Json<NewCluster>) -> Result<Response, Problem> {
    check_name("name", &body.name)?;
    check_vips(&body.vips)?;
    let stored = api.core.store.create_cluster(&body.name, &body.vips, body.hello_ms).await?;
    Ok(reply::created::<Cluster>(&api, stored))
}

#[utoipa::path(get, path = "/v1/clusters", tag = "clusters", params(ClusterQuery),
    responses((status = 200, body = List<Cluster>)))]
async fn list_clusters(
    State(api): State<App>,
    Query(query): Query<ClusterQuery>,
) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), ClusterId::get)?;
    let stored = api.core.store.clusters(query.name.as_deref(), reply::one_more(page)).await?;
    Ok(reply::list::<Cluster>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/clusters/{cluster}", tag = "clusters",
    params(("cluster" = String, Path)), responses((status = 200, body = Cluster)))]
async fn get_cluster(State(api): State<App>, Id(id): Id<ClusterId>) -> Result<Response, Problem> {
    Ok(reply::one::<Cluster>(&api, api.core.store.cluster(id).await?))
}

#[utoipa::path(patch, path = "/v1/clusters/{cluster}", tag = "clusters",
    params(("cluster" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = ClusterPatch, responses((status = 200, body = Cluster)))]
async fn update_cluster(
    State(api): State<App>,
    Id(id): Id<ClusterId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<ClusterPatch>,
) -> Result<Response, Problem> {
    body.vips.as_deref().map_or(Ok(()), check_vips)?;
    let store = &api.core.store;
    let updated = match (&body.vips, body.hello_ms) {
        (Some(vips), None) => store.update_cluster(id, vips, expected).await?,
        (None, Some(hello_ms)) => store.set_hello(id, hello_ms, expected).await?,
        // Both would not be one revision, and one might stand without the other.
        _ => return Err(Problem::invalid("body", "either vips or hello_ms must be given")),
    };
    Ok(reply::updated::<Cluster>(&api, updated))
}

#[utoipa::path(delete, path = "/v1/clusters/{cluster}", tag = "clusters",
    params(("cluster" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_cluster(
    State(api): State<App>,
    Id(id): Id<ClusterId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    api.core.store.delete_cluster(id, expected).await?;
    Ok(reply::deleted(&api))
}

/// A key that takes the place of all others.
#[derive(Serialize, ToSchema)]
struct KeyRotation {
    /// Milliseconds since 1970: nodes seal with it from then on.
    valid_from_ms: u64,
    /// Nothing that is sealed with another one later is accepted.
    others_end_ms: u64,
}

/// Renews the cluster's key out of turn: all others end within minutes. Needed when a node's keys may be in wrong
/// hands; when a node is deleted it happens by itself. Refused within five minutes of the last time.
#[utoipa::path(post, path = "/v1/clusters/{cluster}/rotate-key", tag = "clusters",
    params(("cluster" = String, Path)), responses((status = 200, body = KeyRotation)))]
async fn rotate_key(State(api): State<App>, Id(id): Id<ClusterId>) -> Result<Response, Problem> {
    let sluice_store::KeyRotation { valid_from_ms, others_end_ms } = api.core.store.renew_key(id).await?;
    api.core.wake();
    Ok(axum::Json(KeyRotation { valid_from_ms, others_end_ms }).into_response())
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(create_cluster, list_clusters))
        .routes(routes!(get_cluster, update_cluster, delete_cluster))
        .routes(routes!(rotate_key))
}
