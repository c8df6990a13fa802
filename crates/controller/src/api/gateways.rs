//! Gateways: nodes of a cluster.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, check_name, page};
use super::{Api, App};
use crate::core::Core;
use crate::enrol;
use crate::members::Needs;
use crate::ownership::GatewayState;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::NodeId;
use sluice_types::{ClusterId, GatewayId, is_unicast};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

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
        let sluice_store::Gateway { id, name, cluster, vtep4, vtep6, draining, revision } = stored;
        let (vips, state) = (Vec::new(), GatewayState::default());
        Self { id, name, cluster, vtep4, vtep6, draining, vips, state, revision, programmed }
    }
    fn observe(&mut self, core: &Core) {
        let owners = core.ownership.owners(self.cluster);
        let own = owners.into_iter().filter(|(_, owner)| *owner == self.id);
        self.vips = own.map(|(vip, _)| vip).collect();
        self.state = core.ownership.gateway(self.cluster, self.id).state;
    }
}

/// At least one VTEP is needed.
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

#[utoipa::path(delete, path = "/v1/gateways/{gateway}", tag = "gateways",
    params(("gateway" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_gateway(
    State(api): State<App>,
    Id(id): Id<GatewayId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
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
        .routes(routes!(enrol_gateway))
}
