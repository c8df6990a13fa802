//! Gateways: nodes of a cluster.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, check_name, page};
use super::{Api, App};
use crate::core::Core;
use crate::enrol;
use crate::members::Needs;
use crate::ownership::GatewayState;
use crate::placing;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{Conflict, NodeId, StoreError};
use sluice_types::{ClusterId, GatewayId, is_unicast};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Longest reason that is written down.
const REASON_BYTES: usize = 200;

#[derive(Serialize, ToSchema)]
struct Gateway {
    #[schema(value_type = String, example = "gw-1")]
    id: GatewayId,
    name: String,
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    vtep4: Option<Ipv4Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    vtep6: Option<Ipv6Addr>,
    /// It is to own no vIP, if another gateway can.
    draining: bool,
    /// vIPs that it owns, as far as this controller knows.
    #[schema(value_type = Vec<String>)]
    vips: Vec<IpAddr>,
    /// How it is, as far as this controller knows.
    state: GatewayState,
    /// Present while it leaves its cluster for this one: it learns its VPCs, and gives its vIPs away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "cluster-2")]
    moving_to: Option<ClusterId>,
    /// Present while it still has the VPCs of this cluster, which it has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "cluster-1")]
    moving_from: Option<ClusterId>,
    /// While it moves: what is waited for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    move_waits_for: Vec<&'static str>,
    revision: u64,
    programmed: bool,
}

impl Resource for Gateway {
    type Stored = sluice_store::Gateway;
    const PATH: &'static str = "/v1/gateways";
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Gateway(stored.id)
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        let sluice_store::Gateway { id, name, cluster, vtep4, vtep6, draining, moving, revision } = stored;
        let (vips, state) = (Vec::new(), GatewayState::default());
        let other = |joined| moving.filter(|moving| moving.joined == joined).map(|moving| moving.other);
        let (moving_to, moving_from, move_waits_for) = (other(false), other(true), Vec::new());
        Self {
            id,
            name,
            cluster,
            vtep4,
            vtep6,
            draining,
            vips,
            state,
            moving_to,
            moving_from,
            move_waits_for,
            revision,
            programmed,
        }
    }
    fn observe(&mut self, core: &Core) {
        let owners = core.ownership.owners(self.cluster);
        let own = owners.into_iter().filter(|(_, owner)| *owner == self.id);
        self.vips = own.map(|(vip, _)| vip).collect();
        self.state = core.ownership.gateway(self.cluster, self.id).state;
        if self.moving_to.or(self.moving_from).is_some() {
            self.move_waits_for = core.gateway_waits(self.id);
        }
    }
}

/// It needs a VTEP of each family that the vIPs of its cluster have.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewGateway {
    /// Unique in the cloud.
    name: String,
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    /// Underlay address that its VXLAN packets over IPv4 come from.
    #[schema(value_type = Option<String>)]
    vtep4: Option<Ipv4Addr>,
    /// The same for IPv6.
    #[schema(value_type = Option<String>)]
    vtep6: Option<Ipv6Addr>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GatewayQuery {
    /// Only those of this cluster.
    #[param(value_type = Option<String>)]
    cluster: Option<ClusterId>,
    /// Only the one with this name.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

#[utoipa::path(post, path = "/v1/gateways", tag = "gateways", request_body = NewGateway,
    responses((status = 201, body = Gateway), (status = 200, body = Gateway, description = "Was there")))]
async fn create_gateway(State(api): State<App>, Json(body): Json<NewGateway>) -> Result<Response, Problem> {
    check_name("name", &body.name)?;
    if body.vtep4.is_none() && body.vtep6.is_none() {
        return Err(Problem::invalid("vtep4", "a gateway needs vtep4, vtep6 or both"));
    }
    if let Some(vtep) = body.vtep4.filter(|vtep| !is_unicast((*vtep).into())) {
        return Err(Problem::invalid("vtep4", format!("{vtep} is not a unicast address")));
    }
    if let Some(vtep) = body.vtep6.filter(|vtep| !is_unicast((*vtep).into())) {
        return Err(Problem::invalid("vtep6", format!("{vtep} is not a unicast address")));
    }
    let NewGateway { name, cluster, vtep4, vtep6 } = body;
    let new = sluice_store::NewGateway { name, cluster, vtep4, vtep6 };
    let created = api.core.store.create_gateway(new).await;
    Ok(reply::created::<Gateway>(&api, created.map_err(|error| Problem::of_store(error, None))?))
}

#[utoipa::path(get, path = "/v1/gateways", tag = "gateways", params(GatewayQuery),
    responses((status = 200, body = List<Gateway>)))]
async fn list_gateways(
    State(api): State<App>,
    Query(query): Query<GatewayQuery>,
) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), GatewayId::get)?;
    let store = &api.core.store;
    let stored = store.gateways(query.cluster, query.name.as_deref(), reply::one_more(page)).await?;
    Ok(reply::list::<Gateway>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/gateways/{gateway}", tag = "gateways",
    params(("gateway" = String, Path)), responses((status = 200, body = Gateway)))]
async fn get_gateway(State(api): State<App>, Id(id): Id<GatewayId>) -> Result<Response, Problem> {
    Ok(reply::one::<Gateway>(&api, api.core.store.gateway(id).await?))
}

/// Gives its vIPs to the cluster's other gateways; it goes on forwarding what reaches it.
#[utoipa::path(post, path = "/v1/gateways/{gateway}/drain", tag = "gateways",
    params(("gateway" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Gateway)))]
async fn drain_gateway(
    State(api): State<App>,
    Id(id): Id<GatewayId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    let gateway = api.core.store.gateway(id).await?;
    if !gateway.draining {
        spare(&api.core, &gateway)?;
    }
    Ok(reply::updated::<Gateway>(&api, api.core.store.drain_gateway(id, true, expected).await?))
}

/// Gives it its share of the vIPs again.
#[utoipa::path(post, path = "/v1/gateways/{gateway}/undrain", tag = "gateways",
    params(("gateway" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Gateway)))]
async fn undrain_gateway(
    State(api): State<App>,
    Id(id): Id<GatewayId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    Ok(reply::updated::<Gateway>(&api, api.core.store.drain_gateway(id, false, expected).await?))
}

/// Where a gateway is to go.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MoveGateway {
    #[schema(value_type = String, example = "cluster-2")]
    cluster: ClusterId,
    /// For the event log.
    reason: Option<String>,
}

/// Gives it to another cluster, without losing a packet: it learns the VPCs of that one and gives its
/// vIPs away, joins, and forgets the VPCs of the cluster that it left. One that has not joined yet can be
/// told to stay.
#[utoipa::path(post, path = "/v1/gateways/{gateway}/move", tag = "gateways", request_body = MoveGateway,
    params(("gateway" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Gateway)))]
async fn move_gateway(
    State(api): State<App>,
    Id(id): Id<GatewayId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<MoveGateway>,
) -> Result<Response, Problem> {
    let MoveGateway { cluster, reason } = body;
    let why = reason.unwrap_or_else(|| "it was asked for".to_owned());
    if why.len() > REASON_BYTES || why.chars().any(char::is_control) {
        return Err(Problem::invalid("reason", format!("at most {REASON_BYTES} bytes of plain text")));
    }
    let gateway = api.core.store.gateway(id).await?;
    if gateway.cluster != cluster {
        spare(&api.core, &gateway)?;
    }
    // One that was on its way has the entries already.
    if gateway.cluster != cluster && gateway.moving.is_none() {
        let too_many = placing::picture(&api.core).await?.too_many(id, cluster);
        if let Some((needed, room)) = too_many {
            let detail = format!(
                "while it moves `{}` needs {needed} entries, those of both clusters, and its tables hold {room}",
                gateway.name
            );
            return Err(Problem::new(StatusCode::CONFLICT, "tables-too-small", detail).offender("cluster"));
        }
    }
    let moving = api.core.store.move_gateway(id, cluster, &why, expected).await;
    let of_body = |error| Problem::of_store(error, Some(&id.to_string()));
    Ok(reply::updated::<Gateway>(&api, moving.map_err(of_body)?))
}

fn lives(core: &Core, gateway: &sluice_store::Gateway) -> bool {
    core.ownership.gateway(gateway.cluster, gateway.id).state == GatewayState::Fit
}

/// That its cluster can spare it: it has no VPCs, or another gateway that neither drains nor leaves and is
/// not dead, as far as is known.
fn spare(core: &Core, gateway: &sluice_store::Gateway) -> Result<(), StoreError> {
    let others: Vec<GatewayId> = core.ledger(|ledger| {
        let all = ledger.clusters.get(&gateway.cluster).into_iter().flat_map(|cluster| &cluster.gateways);
        all.filter(|other| other.id != gateway.id && !other.retires()).map(|other| other.id).collect()
    });
    let lives = lives(core, gateway);
    let dead = |id: &GatewayId| match core.ownership.gateway(gateway.cluster, *id).state {
        GatewayState::Failed => true,
        // One that was never heard is no replacement for one that lives.
        GatewayState::Unknown => lives,
        _ => false,
    };
    if core.members(|members| members.has_vpcs(gateway.cluster)) && others.iter().all(dead) {
        return Err(Conflict::LastGateway { gateway: gateway.name.clone() }.into());
    }
    Ok(())
}

#[utoipa::path(delete, path = "/v1/gateways/{gateway}", tag = "gateways",
    params(("gateway" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_gateway(
    State(api): State<App>,
    Id(id): Id<GatewayId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    let gateway = api.core.store.gateway(id).await?;
    // One that is dead serves nobody: it may go.
    if lives(&api.core, &gateway) {
        spare(&api.core, &gateway)?;
    }
    api.core.store.delete_gateway(id, expected).await?;
    Ok(reply::deleted(&api))
}

/// Makes a one-time token, good for an hour, with which the gateway gets its certificate.
#[utoipa::path(post, path = "/v1/gateways/{gateway}/enrolment", tag = "gateways",
    params(("gateway" = String, Path)), responses((status = 201, body = super::nodes::Bundle)))]
async fn enrol_gateway(State(api): State<App>, Id(id): Id<GatewayId>) -> Result<Response, Problem> {
    let store = api.core.store.as_ref();
    store.gateway(id).await?;
    let bundle = enrol::issue(store, &api.reach, NodeId::Gateway(id)).await?;
    Ok((StatusCode::CREATED, axum::Json(bundle)).into_response())
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(create_gateway, list_gateways))
        .routes(routes!(get_gateway, delete_gateway))
        .routes(routes!(drain_gateway))
        .routes(routes!(undrain_gateway))
        .routes(routes!(move_gateway))
        .routes(routes!(enrol_gateway))
}
