//! Hosts: the machines on which instances run.

use super::problem::Problem;
use super::reply::Programmed;
use super::request::{Id, NoBody, check_name, check_unicast};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App};
use crate::push;
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{NodeId, Page, Store, StoreError};
use sluice_types::HostId;
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
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Host {
    type Stored = sluice_store::Host;
    const PATH: &'static str = "/v1/hosts";
    const TAG: &'static str = "hosts";
    const NAME: &'static str = "host";
    fn needs(_: &Self::Stored) -> Needs {
        Needs::AllGateways
    }
    fn entries(stored: &Self::Stored) -> Entries {
        Entries { underlay: vec![stored.vtep], ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Host { id, name, vtep, agent, revision } = stored;
        Self { id, name, vtep, agent, revision, programmed }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewHost {
    /// Name, unique in the cloud.
    name: String,
    /// Underlay address of its VXLAN tunnel endpoint.
    #[schema(value_type = String, example = "192.0.2.21")]
    vtep: IpAddr,
    /// The host runs `sluice vswitch`. False for a foreign VXLAN endpoint, which acknowledges nothing.
    #[serde(default = "yes")]
    agent: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HostFilter {
    /// Only the host with this name.
    name: Option<String>,
}

/// Creates a one-time token, valid for an hour, with which the host gets its certificate.
#[utoipa::path(post, path = "/v1/hosts/{host}/enrollment", tag = "hosts",
    params(("host" = String, Path)), responses((status = 201, body = super::nodes::Bundle)))]
async fn enroll_host(State(api): State<App>, Id(id): Id<HostId>, _: NoBody) -> Result<Response, Problem> {
    let store = api.db.store.as_ref();
    let host = store.host(id).await?;
    if !host.agent {
        let detail = format!("host `{}` was created with agent=false: it has no agent to enroll", host.name);
        return Err(Problem::new(StatusCode::CONFLICT, "no-agent", detail).offender(id.to_string()));
    }
    let bundle = push::issue(store, &api.reach, NodeId::Host(id)).await?;
    Ok((StatusCode::CREATED, axum::Json(bundle)).into_response())
}

impl Listable for Host {
    type Filter = HostFilter;
    async fn list(store: &Store, filter: HostFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.hosts(filter.name.as_deref(), page).await
    }
}

impl Deletable for Host {}

impl Creatable for Host {
    type New = NewHost;
    async fn create(api: &Api, new: NewHost) -> Result<sluice_store::Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        check_unicast("vtep", new.vtep)?;
        let NewHost { name, vtep, agent } = new;
        Ok(api.db.store.create_host(sluice_store::NewHost { name, vtep, agent }).await?)
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<Host>())
        .routes(resource::list::<Host>())
        .routes(resource::get::<Host>())
        .routes(resource::delete::<Host>())
        .routes(routes!(enroll_host))
}
