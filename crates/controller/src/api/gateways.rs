//! Gateways: the nodes of a cluster.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, NoBody, check_name, check_unicast};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App};
use crate::ownership::GatewayState;
use crate::place::usage::MissingSpace;
use crate::push;
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{Conflict, NodeId, Page, Store, StoreError};
use sluice_types::{ClusterId, GatewayId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Longest reason of a move, in bytes.
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
    /// The gateway is draining: other gateways take over its vIPs where they can.
    draining: bool,
    /// vIPs that it owns, as known to this controller.
    #[schema(value_type = Vec<String>)]
    vips: Vec<IpAddr>,
    /// Its state, as known to this controller.
    state: GatewayState,
    /// Present before it joins this cluster: it gets the VPCs of this cluster and gives its vIPs away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "cluster-2")]
    moving_to: Option<ClusterId>,
    /// Present while it still has the VPCs of this cluster, which it has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "cluster-1")]
    moving_from: Option<ClusterId>,
    /// Present during a move: what the move waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    move_waiting_for: Vec<&'static str>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Gateway {
    type Stored = sluice_store::Gateway;
    const PATH: &'static str = "/v1/gateways";
    const TAG: &'static str = "gateways";
    const NAME: &'static str = "gateway";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Gateway(stored.id)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        let vteps = stored.vtep4.map(IpAddr::V4).into_iter().chain(stored.vtep6.map(IpAddr::V6));
        Entries { underlay: vteps.collect(), ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Gateway { id, name, cluster, vtep4, vtep6, draining, moving, revision } = stored;
        let (vips, state) = (Vec::new(), GatewayState::default());
        let other = |joined| moving.filter(|moving| moving.joined == joined).map(|moving| moving.other);
        let (moving_to, moving_from, move_waiting_for) = (other(false), other(true), Vec::new());
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
            move_waiting_for,
            revision,
            programmed,
        }
    }
    fn observe(&mut self, api: &Api) {
        let owners = api.ownership.owners(self.cluster);
        let own = owners.into_iter().filter(|(_, owner)| *owner == self.id);
        self.vips = own.map(|(vip, _)| vip).collect();
        self.state = api.ownership.gateway(self.cluster, self.id).state;
        if self.moving_to.or(self.moving_from).is_some() {
            self.move_waiting_for = api.moves.gateway_waits(self.id);
        }
    }
}

/// A gateway needs a VTEP of each address family of its cluster's vIPs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewGateway {
    /// Name, unique in the cloud.
    name: String,
    #[schema(value_type = String, example = "cluster-1")]
    cluster: ClusterId,
    /// Source address of its VXLAN packets over IPv4.
    #[schema(value_type = Option<String>)]
    vtep4: Option<Ipv4Addr>,
    /// Source address of its VXLAN packets over IPv6.
    #[schema(value_type = Option<String>)]
    vtep6: Option<Ipv6Addr>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GatewayFilter {
    /// Only gateways of this cluster.
    #[param(value_type = Option<String>)]
    cluster: Option<ClusterId>,
    /// Only the gateway with this name.
    name: Option<String>,
}

/// Gives its vIPs to the other gateways of the cluster. It still forwards the packets that reach it. The last
/// gateway of a cluster that neither drains nor leaves cannot drain, even if the cluster has no VPCs.
#[utoipa::path(post, path = "/v1/gateways/{gateway}/drain", tag = "gateways",
    params(("gateway" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Gateway)))]
async fn drain_gateway(
    State(api): State<App>,
    Id(id): Id<GatewayId>,
    IfMatch(expected): IfMatch,
    _: NoBody,
) -> Result<Response, Problem> {
    let gateway = api.db.store.gateway(id).await?;
    if !gateway.draining {
        check_not_last(&api, &gateway).await?;
    }
    Ok(reply::updated::<Gateway>(&api, api.db.store.drain_gateway(id, true, expected).await?))
}

/// Gives it its share of the vIPs again.
#[utoipa::path(post, path = "/v1/gateways/{gateway}/undrain", tag = "gateways",
    params(("gateway" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Gateway)))]
async fn undrain_gateway(
    State(api): State<App>,
    Id(id): Id<GatewayId>,
    IfMatch(expected): IfMatch,
    _: NoBody,
) -> Result<Response, Problem> {
    Ok(reply::updated::<Gateway>(&api, api.db.store.drain_gateway(id, false, expected).await?))
}

/// The new cluster of a gateway.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveGateway {
    #[schema(value_type = String, example = "cluster-2")]
    cluster: ClusterId,
    /// Reason, for the event log.
    reason: Option<String>,
}

/// Moves it to another cluster without packet loss: it gets the VPCs of the new cluster and gives its vIPs
/// away, joins the new cluster, and removes the VPCs of the old one. Before it has joined, a move to its
/// present cluster cancels the move.
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
    let reason = reason.unwrap_or_else(|| "requested by the operator".to_owned());
    if reason.len() > REASON_BYTES || reason.chars().any(char::is_control) {
        return Err(Problem::invalid("reason", format!("at most {REASON_BYTES} bytes of plain text")));
    }
    let gateway = api.db.store.gateway(id).await?;
    if gateway.cluster != cluster {
        check_not_last(&api, &gateway).await?;
    }
    // A gateway that is moving has the entries already.
    if gateway.cluster != cluster && gateway.moving.is_none() {
        let missing = api.current_usage().await?.missing_table_space(id, cluster);
        if let Some(MissingSpace { kind, needed, size }) = missing {
            let detail = format!(
                "while it moves, `{}` needs {needed} {kind}, those of both clusters, but its tables hold only {size}",
                gateway.name
            );
            return Err(Problem::new(StatusCode::CONFLICT, "tables-too-small", detail).offender("cluster"));
        }
    }
    let moving = api.db.store.move_gateway(id, cluster, &reason, expected).await;
    let of_body = |error| Problem::of_store(error, Some(&id.to_string()));
    Ok(reply::updated::<Gateway>(&api, moving.map_err(of_body)?))
}

/// Whether a gateway may forward packets. Nothing is known of a gateway after a start of the controller, until
/// a heartbeat of its cluster arrives.
fn may_forward(state: GatewayState) -> bool {
    !matches!(state, GatewayState::Failed | GatewayState::Isolated | GatewayState::Drained)
}

/// Whether none of the other gateways can replace one in the state `own`.
fn is_last(own: GatewayState, others: &[GatewayState]) -> bool {
    let forwards = own != GatewayState::Unknown && may_forward(own);
    others.iter().all(|other| match other {
        GatewayState::Failed | GatewayState::Isolated => true,
        // A gateway of which no heartbeat came cannot replace one that forwards.
        GatewayState::Unknown => forwards,
        _ => false,
    })
}

/// Checks that the cluster can do without a gateway: it has no VPCs, or another gateway that neither drains
/// nor leaves, and that has not failed.
async fn check_not_last(api: &Api, gateway: &sluice_store::Gateway) -> Result<(), Problem> {
    api.catch_up().await?;
    let state = |id| api.ownership.gateway(gateway.cluster, id).state;
    let others = api.place.staying_gateways(gateway.cluster).into_iter().filter(|id| *id != gateway.id);
    let others: Vec<GatewayState> = others.map(state).collect();
    if api.push.members(|members| members.has_vpcs(gateway.cluster)) && is_last(state(gateway.id), &others) {
        return Err(StoreError::from(Conflict::LastGateway { gateway: gateway.name.clone() }).into());
    }
    Ok(())
}

/// Creates a one-time token, valid for an hour, with which the gateway gets its certificate.
#[utoipa::path(post, path = "/v1/gateways/{gateway}/enrollment", tag = "gateways",
    params(("gateway" = String, Path)), responses((status = 201, body = super::nodes::Bundle)))]
async fn enroll_gateway(
    State(api): State<App>,
    Id(id): Id<GatewayId>,
    _: NoBody,
) -> Result<Response, Problem> {
    let store = api.db.store.as_ref();
    store.gateway(id).await?;
    let bundle = push::issue(store, &api.reach, NodeId::Gateway(id)).await?;
    Ok((StatusCode::CREATED, axum::Json(bundle)).into_response())
}

impl Listable for Gateway {
    type Filter = GatewayFilter;
    async fn list(store: &Store, filter: GatewayFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.gateways(filter.cluster, filter.name.as_deref(), page).await
    }
}

impl Deletable for Gateway {
    async fn check(api: &Api, id: GatewayId) -> Result<(), Problem> {
        let gateway = api.db.store.gateway(id).await?;
        // A gateway that forwards nothing may be deleted even if it is the last one.
        if may_forward(api.ownership.gateway(gateway.cluster, id).state) {
            check_not_last(api, &gateway).await?;
        }
        Ok(())
    }
}

impl Creatable for Gateway {
    type New = NewGateway;
    async fn create(api: &Api, new: NewGateway) -> Result<sluice_store::Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        if new.vtep4.is_none() && new.vtep6.is_none() {
            return Err(Problem::invalid("vtep4", "a gateway needs vtep4, vtep6 or both"));
        }
        new.vtep4.map_or(Ok(()), |vtep| check_unicast("vtep4", vtep))?;
        new.vtep6.map_or(Ok(()), |vtep| check_unicast("vtep6", vtep))?;
        let NewGateway { name, cluster, vtep4, vtep6 } = new;
        let new = sluice_store::NewGateway { name, cluster, vtep4, vtep6 };
        api.db.store.create_gateway(new).await.map_err(|error| Problem::of_store(error, None))
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<Gateway>())
        .routes(resource::list::<Gateway>())
        .routes(resource::get::<Gateway>())
        .routes(resource::delete::<Gateway>())
        .routes(routes!(drain_gateway))
        .routes(routes!(undrain_gateway))
        .routes(routes!(move_gateway))
        .routes(routes!(enroll_gateway))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_without_a_replacement_is_the_last() {
        use GatewayState::*;
        for own in [Unknown, Ready, Starting, Unreachable, Draining] {
            assert!(may_forward(own) && is_last(own, &[]), "{own:?}");
            assert!(is_last(own, &[Failed, Isolated]), "{own:?}");
            for other in [Ready, Starting, Unreachable] {
                assert!(!is_last(own, &[Failed, other]), "{own:?} {other:?}");
            }
            assert_eq!(is_last(own, &[Unknown]), own != Unknown, "{own:?}");
        }
        for own in [Failed, Isolated, Drained] {
            assert!(!may_forward(own) && !is_last(own, &[Unknown]), "{own:?}");
        }
    }
}
