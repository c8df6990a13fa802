//! Hosts: machines that hold instances.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, check_name, page};
use super::{Api, App};
use crate::enrol;
use crate::members::Needs;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::NodeId;
use sluice_types::{HostId, is_unicast};
use std::net::IpAddr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(Serialize, ToSchema)]
struct Host {
    #[schema(value_type = String, example = "host-1")]
    id: HostId,
    name: String,
    #[schema(value_type = String, example = "192.0.2.21")]
    vtep: IpAddr,
    agent: bool,
    revision: u64,
    programmed: bool,
}

impl Resource for Host {
    type Stored = sluice_store::Host;
    const PATH: &'static str = "/v1/hosts";
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs(_: &Self::Stored) -> Needs {
        Needs::AllGateways
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        let sluice_store::Host { id, name, vtep, agent, revision } = stored;
        Self { id, name, vtep, agent, revision, programmed }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewHost {
    /// Unique in the cloud.
    name: String,
    /// Underlay address of its VXLAN tunnel endpoint.
    #[schema(value_type = String, example = "192.0.2.21")]
    vtep: IpAddr,
    /// Runs `sluice vswitch`; false for a foreign VXLAN endpoint, which is never waited for.
    #[serde(default = "yes")]
    agent: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HostQuery {
    /// Only the one with this name.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

#[utoipa::path(post, path = "/v1/hosts", tag = "hosts", request_body = NewHost,
    responses((status = 201, body = Host), (status = 200, body = Host, description = "Was there")))]
async fn create_host(State(api): State<App>, Json(body): Json<NewHost>) -> Result<Response, Problem> {
    check_name("name", &body.name)?;
    if !is_unicast(body.vtep) {
        return Err(Problem::invalid("vtep", format!("{} is not a unicast address", body.vtep)));
    }
    let NewHost { name, vtep, agent } = body;
    let new = sluice_store::NewHost { name, vtep, agent };
    Ok(reply::created::<Host>(&api, api.core.store.create_host(new).await?))
}

#[utoipa::path(get, path = "/v1/hosts", tag = "hosts", params(HostQuery),
    responses((status = 200, body = List<Host>)))]
async fn list_hosts(State(api): State<App>, Query(query): Query<HostQuery>) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), HostId::get)?;
    let stored = api.core.store.hosts(query.name.as_deref(), reply::one_more(page)).await?;
    Ok(reply::list::<Host>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/hosts/{host}", tag = "hosts",
    params(("host" = String, Path)), responses((status = 200, body = Host)))]
async fn get_host(State(api): State<App>, Id(id): Id<HostId>) -> Result<Response, Problem> {
    Ok(reply::one::<Host>(&api, api.core.store.host(id).await?))
}

#[utoipa::path(delete, path = "/v1/hosts/{host}", tag = "hosts",
    params(("host" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_host(
    State(api): State<App>,
    Id(id): Id<HostId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    api.core.store.delete_host(id, expected).await?;
    Ok(reply::deleted(&api))
}

/// Makes a one-time token, good for an hour, with which the host gets its certificate.
#[utoipa::path(post, path = "/v1/hosts/{host}/enrolment", tag = "hosts",
    params(("host" = String, Path)), responses((status = 201, body = super::nodes::Bundle)))]
async fn enrol_host(State(api): State<App>, Id(id): Id<HostId>) -> Result<Response, Problem> {
    let store = api.core.store.as_ref();
    let host = store.host(id).await?;
    if !host.agent {
        let detail = format!("host `{}` was created with agent=false: it runs no agent to enrol", host.name);
        return Err(Problem::new(StatusCode::CONFLICT, "no-agent", detail).offender(id.to_string()));
    }
    let bundle = enrol::issue(store, &api.reach, NodeId::Host(id)).await?;
    Ok((StatusCode::CREATED, axum::Json(bundle)).into_response())
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(create_host, list_hosts))
        .routes(routes!(get_host, delete_host))
        .routes(routes!(enrol_host))
}
