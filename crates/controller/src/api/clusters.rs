//! Clusters: groups of gateways that share vIPs and hold the same tables.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, NoBody, check_name, check_unicast};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App};
use crate::compile::vip_mac;
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{MAX_VIPS, Page, Store, StoreError};
use sluice_types::{ClusterId, GatewayId, MacAddr};
use std::collections::HashSet;
use std::net::IpAddr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(Serialize, ToSchema)]
struct Cluster {
    #[schema(value_type = String, example = "cluster-1")]
    id: ClusterId,
    name: String,
    /// The vIPs in order of their slots, which is the order of hash buckets.
    vips: Vec<ClusterVip>,
    /// Interval between two hellos of a gateway to the others, in milliseconds.
    #[schema(example = 4)]
    hello_interval_ms: u16,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

/// A vIP. Its slot and its MAC address do not change while the cluster has it.
#[derive(Serialize, ToSchema)]
struct ClusterVip {
    /// Number of the vIP in its cluster.
    slot: u8,
    #[schema(value_type = String, example = "192.0.2.10")]
    address: IpAddr,
    #[schema(value_type = String, example = "02:00:00:01:00:00")]
    mac: MacAddr,
    /// The gateway that owns the vIP when all gateways are ready. Absent if the cluster has no gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "gw-1")]
    preferred_owner: Option<GatewayId>,
    /// The gateway that answers for the vIP now. Absent until this controller has received heartbeats of the
    /// cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    owner: Option<GatewayId>,
}

impl Resource for Cluster {
    type Stored = sluice_store::Cluster;
    const PATH: &'static str = "/v1/clusters";
    const TAG: &'static str = "clusters";
    const NAME: &'static str = "cluster";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Cluster(stored.id)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        Entries {
            underlay: stored.vips.iter().map(|vip| vip.address).collect(),
            groups: true,
            ..Entries::default()
        }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Cluster { id, name, vips, hello_interval_ms, revision, .. } = stored;
        let vip = |vip: sluice_store::ClusterVip| {
            let sluice_store::ClusterVip { slot, address, preferred_owner } = vip;
            let mac = vip_mac(id, slot);
            ClusterVip { slot, address, mac, preferred_owner, owner: None }
        };
        let vips = vips.into_iter().map(vip).collect();
        Self { id, name, vips, hello_interval_ms, revision, programmed }
    }
    fn observe(&mut self, api: &Api) {
        let owners = api.ownership.owners(self.id);
        for vip in &mut self.vips {
            vip.owner = owners.get(&vip.address).copied();
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewCluster {
    /// Name, unique in the cloud.
    name: String,
    /// Underlay addresses that the gateways of the cluster share, in the order of hash buckets; 1 to 63 of an
    /// address family.
    #[schema(value_type = Vec<String>, example = json!(["192.0.2.10", "2001:db8::10"]))]
    vips: Vec<IpAddr>,
    /// Interval between two hellos of a gateway to the others, in milliseconds, 2 to 250; 4 if absent. A
    /// gateway that sends nothing for three intervals counts as failed. Longer intervals suit machines that
    /// sometimes do not run for tens of milliseconds.
    #[schema(minimum = 2, maximum = 250, example = 4)]
    hello_interval_ms: Option<u16>,
}

/// A change of a cluster: either new vIPs or another hello interval. The vIPs may be in any order: those that
/// stay keep their slots. If some vIPs are added and others removed, this takes two revisions, and both
/// together must not be more than 63 of an address family.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterPatch {
    #[schema(value_type = Option<Vec<String>>)]
    vips: Option<Vec<IpAddr>>,
    /// Hello interval in milliseconds, 2 to 250.
    #[schema(minimum = 2, maximum = 250)]
    hello_interval_ms: Option<u16>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ClusterFilter {
    /// Only the cluster with this name.
    name: Option<String>,
}

fn check_vips(vips: &[IpAddr]) -> Result<(), Problem> {
    if vips.is_empty() {
        return Err(Problem::invalid("vips", "a cluster needs at least one vIP"));
    }
    for ipv4 in [true, false] {
        if vips.iter().filter(|vip| vip.is_ipv4() == ipv4).count() > MAX_VIPS {
            return Err(Problem::invalid("vips", format!("more than {MAX_VIPS} vIPs of one address family")));
        }
    }
    let mut seen = HashSet::new();
    for (index, vip) in vips.iter().enumerate() {
        let field = format!("vips[{index}]");
        check_unicast(&field, *vip)?;
        if !seen.insert(vip) {
            return Err(Problem::invalid(&field, format!("{vip} is in the list twice")));
        }
    }
    Ok(())
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
    let store = &api.db.store;
    let updated = match (&body.vips, body.hello_interval_ms) {
        (Some(vips), None) => {
            let updated = store.update_cluster(id, vips, expected).await;
            updated.map_err(|error| Problem::of_change(error, expected))?
        }
        (None, Some(hello_interval_ms)) => store.set_hello_interval(id, hello_interval_ms, expected).await?,
        // Both together need two revisions, and only one of them might succeed.
        _ => return Err(Problem::invalid("body", "expected either vips or hello_interval_ms")),
    };
    Ok(reply::updated::<Cluster>(&api, updated))
}

/// A new key that replaces all others.
#[derive(Serialize, ToSchema)]
struct KeyRotation {
    /// Time from which nodes seal with the new key, in milliseconds of the UNIX epoch.
    valid_from_ms: u64,
    /// Time at which the previous keys expire, in milliseconds of the UNIX epoch.
    previous_keys_expire_ms: u64,
}

/// Creates a new key immediately. All older keys expire within minutes. A second request within five minutes
/// is refused. Use it if the keys of a node may have leaked; the deletion of a node creates a new key by
/// itself.
#[utoipa::path(post, path = "/v1/clusters/{cluster}/rotate-key", tag = "clusters",
    params(("cluster" = String, Path)), responses((status = 200, body = KeyRotation)))]
async fn rotate_key(State(api): State<App>, Id(id): Id<ClusterId>, _: NoBody) -> Result<Response, Problem> {
    let sluice_store::KeyRotation { valid_from_ms, previous_keys_expire_ms } =
        api.db.store.renew_key(id).await?;
    api.db.notify_commit();
    let rotation = KeyRotation { valid_from_ms, previous_keys_expire_ms };
    Ok(axum::Json(rotation).into_response())
}

impl Listable for Cluster {
    type Filter = ClusterFilter;
    async fn list(store: &Store, filter: ClusterFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.clusters(filter.name.as_deref(), page).await
    }
}

impl Deletable for Cluster {}

impl Creatable for Cluster {
    type New = NewCluster;
    async fn create(api: &Api, new: NewCluster) -> Result<sluice_store::Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        check_vips(&new.vips)?;
        Ok(api.db.store.create_cluster(&new.name, &new.vips, new.hello_interval_ms).await?)
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<Cluster>())
        .routes(resource::list::<Cluster>())
        .routes(resource::get::<Cluster>())
        .routes(resource::delete::<Cluster>())
        .routes(routes!(update_cluster))
        .routes(routes!(rotate_key))
}
