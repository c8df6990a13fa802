//! Instances: a VM's port in a subnet, on a host; one by one, or many at once.

use super::guard::Began;
use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, JsonBytes, MAX_BULK_BODY_BYTES, Query, check_name, page, parse};
use super::{Api, App};
use crate::members::Needs;
use crate::timeline::{ApiStages, MIN_INSTANCES};
use axum::Extension;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_types::{HostId, InstanceId, MacAddr, SubnetId, VpcId, is_unicast};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Most instances of one bulk creation.
const MAX_BULK: usize = 1_000_000;

#[derive(Serialize, ToSchema)]
struct Instance {
    #[schema(value_type = String, example = "inst-1")]
    id: InstanceId,
    name: String,
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    #[schema(value_type = String, example = "subnet-1")]
    subnet: SubnetId,
    #[schema(value_type = String, example = "host-1")]
    host: HostId,
    #[schema(value_type = String, example = "02:00:00:00:00:01")]
    mac: MacAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    ipv4: Option<Ipv4Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    ipv6: Option<Ipv6Addr>,
    revision: u64,
    programmed: bool,
}

impl Resource for Instance {
    type Stored = sluice_store::Instance;
    const PATH: &'static str = "/v1/instances";
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Instance(stored.vpc, stored.host)
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        let sluice_store::Instance { id, name, vpc, subnet, host, mac, ipv4, ipv6, revision } = stored;
        Self { id, name, vpc, subnet, host, mac, ipv4, ipv6, revision, programmed }
    }
}

/// Addresses left out are chosen, one of each family that the subnet has.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewInstance {
    /// Unique in the VPC.
    name: String,
    #[schema(value_type = String, example = "subnet-1")]
    subnet: SubnetId,
    #[schema(value_type = String, example = "host-1")]
    host: HostId,
    #[schema(value_type = Option<String>)]
    mac: Option<MacAddr>,
    #[schema(value_type = Option<String>)]
    ipv4: Option<Ipv4Addr>,
    #[schema(value_type = Option<String>)]
    ipv6: Option<Ipv6Addr>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewInstances {
    /// At most 1,000,000: all of them are created, or none.
    instances: Vec<NewInstance>,
}

/// What a bulk creation did. `first` and `last` are absent if it created none.
#[derive(Serialize, ToSchema)]
struct BulkCreated {
    created: usize,
    /// Were there already, with the same content.
    existing: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    first: Option<InstanceId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    last: Option<InstanceId>,
    /// Programmed when the nodes have acknowledged this.
    revision: u64,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct InstanceQuery {
    /// Only those of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only those on this host.
    #[param(value_type = Option<String>)]
    host: Option<HostId>,
    /// Only those with this name, one a VPC.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

impl NewInstance {
    fn checked(self) -> Result<sluice_store::NewInstance, Problem> {
        check_name("name", &self.name)?;
        if let Some(mac) = self.mac.filter(|mac| !mac.is_unicast()) {
            return Err(Problem::invalid("mac", format!("{mac} is not a unicast MAC address")));
        }
        let addresses =
            [("ipv4", self.ipv4.map(IpAddr::from)), ("ipv6", self.ipv6.map(IpAddr::from))].into_iter();
        for (field, address) in addresses {
            if let Some(address) = address.filter(|address| !is_unicast(*address)) {
                return Err(Problem::invalid(field, format!("{address} is not a unicast address")));
            }
        }
        let Self { name, subnet, host, mac, ipv4, ipv6 } = self;
        Ok(sluice_store::NewInstance { name, subnet, host, mac, ipv4, ipv6 })
    }
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/instances", tag = "instances",
    params(("vpc" = String, Path)), request_body = NewInstance,
    responses((status = 201, body = Instance), (status = 200, body = Instance, description = "Was there")))]
async fn create_instance(
    State(api): State<App>,
    Id(vpc): Id<VpcId>,
    Json(body): Json<NewInstance>,
) -> Result<Response, Problem> {
    let created = api.core.store.create_instance(vpc, body.checked()?).await;
    let path = vpc.to_string();
    Ok(reply::created::<Instance>(&api, created.map_err(|error| Problem::of_store(error, Some(&path)))?))
}

/// Straight into the structures; only if that fails, again with the place of the fault.
fn parse_bulk(bytes: &[u8]) -> Result<Vec<sluice_store::NewInstance>, Problem> {
    let body: NewInstances = match serde_json::from_slice(bytes) {
        Ok(body) if bytes.trim_ascii_start().starts_with(b"{") => body,
        _ => parse(bytes)?,
    };
    if body.instances.len() > MAX_BULK {
        let detail = format!("{} instances are more than {MAX_BULK}", body.instances.len());
        return Err(Problem::invalid("instances", detail));
    }
    let checked = body.instances.into_iter().enumerate().map(|(index, instance)| {
        instance.checked().map_err(|problem| problem.inside(&format!("instances[{index}]")))
    });
    checked.collect()
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/instances/bulk", tag = "instances",
    params(("vpc" = String, Path)), request_body = NewInstances,
    responses((status = 200, body = BulkCreated)))]
async fn create_instances(
    State(api): State<App>,
    Extension(Began(began)): Extension<Began>,
    Id(vpc): Id<VpcId>,
    request: Request,
) -> Result<Response, Problem> {
    // Before the body is read: that many large bodies are held at once, and no more.
    let _turn = api.bulks.acquire().await.map_err(|_| Problem::internal())?;
    let JsonBytes(bytes) = JsonBytes::from_request(request, &()).await?;
    let new =
        tokio::task::spawn_blocking(move || parse_bulk(&bytes)).await.map_err(|_| Problem::internal())??;
    let parsed = Instant::now();
    let store = &api.core.store;
    let path = vpc.to_string();
    let made = store.create_instances(vpc, new).await;
    let (created, existing) = made.map_err(|error| Problem::of_store(error, Some(&path)))?;
    let committed = Instant::now();
    api.core.wake();
    let revision = match created.last() {
        Some(last) => last.revision,
        None => store.revision().await?,
    };
    if created.len() >= MIN_INSTANCES {
        let stages = ApiStages { parse: parsed - began, store: committed - parsed };
        api.core.timeline.committed(revision, stages, began);
    }
    let ids = (created.first().map(|i| i.id), created.last().map(|i| i.id));
    let answer = BulkCreated { created: created.len(), existing, first: ids.0, last: ids.1, revision };
    // A million instances take a while to free.
    tokio::task::spawn_blocking(move || drop(created));
    Ok((StatusCode::OK, axum::Json(answer)).into_response())
}

#[utoipa::path(get, path = "/v1/instances", tag = "instances", params(InstanceQuery),
    responses((status = 200, body = List<Instance>)))]
async fn list_instances(
    State(api): State<App>,
    Query(query): Query<InstanceQuery>,
) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), InstanceId::get)?;
    let more = reply::one_more(page);
    let stored = api.core.store.instances(query.vpc, query.host, query.name.as_deref(), more).await?;
    Ok(reply::list::<Instance>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/instances/{instance}", tag = "instances",
    params(("instance" = String, Path)), responses((status = 200, body = Instance)))]
async fn get_instance(State(api): State<App>, Id(id): Id<InstanceId>) -> Result<Response, Problem> {
    Ok(reply::one::<Instance>(&api, api.core.store.instance(id).await?))
}

/// What changes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct InstancePatch {
    /// Where the instance is now. Gateways learn first, then the new host gets its port, and
    /// the old one loses it.
    #[schema(value_type = String, example = "host-2")]
    host: HostId,
}

#[utoipa::path(patch, path = "/v1/instances/{instance}", tag = "instances",
    params(("instance" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = InstancePatch, responses((status = 200, body = Instance)))]
async fn update_instance(
    State(api): State<App>,
    Id(id): Id<InstanceId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<InstancePatch>,
) -> Result<Response, Problem> {
    let moved = api.core.store.move_instance(id, body.host, expected).await;
    let path = id.to_string();
    Ok(reply::updated::<Instance>(&api, moved.map_err(|error| Problem::of_store(error, Some(&path)))?))
}

#[utoipa::path(delete, path = "/v1/instances/{instance}", tag = "instances",
    params(("instance" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_instance(
    State(api): State<App>,
    Id(id): Id<InstanceId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    api.core.store.delete_instance(id, expected).await?;
    Ok(reply::deleted(&api))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    let bulk = OpenApiRouter::new()
        .routes(routes!(create_instances))
        .layer(DefaultBodyLimit::max(MAX_BULK_BODY_BYTES));
    OpenApiRouter::new()
        .routes(routes!(create_instance))
        .routes(routes!(list_instances))
        .routes(routes!(get_instance, update_instance, delete_instance))
        .merge(bulk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_faults_name_their_place() {
        let good = br#"{"instances":[{"name":"a","subnet":"subnet-1","host":"host-1","ipv4":"10.0.0.2"}]}"#;
        assert_eq!(parse_bulk(good).unwrap()[0].ipv4, Some(Ipv4Addr::new(10, 0, 0, 2)));
        let faults: [(&[u8], &str); 5] = [
            (br#"{"instances":[{"name":"a","subnet":"sub-1","host":"host-1"}]}"#, "instances[0].subnet"),
            (br#"{"instances":[{"name":"a","subnet":"subnet-1","host":"host-1","x":1}]}"#, "instances[0].x"),
            (br#"{"instances":[{"name":"a b","subnet":"subnet-1","host":"host-1"}]}"#, "instances[0].name"),
            (
                br#"{"instances":[{"name":"a","subnet":"subnet-1","host":"host-1","ipv6":"ff02::1"}]}"#,
                "instances[0].ipv6",
            ),
            (br#"[]"#, "body"),
        ];
        for (body, place) in faults {
            let problem = parse_bulk(body).unwrap_err();
            let text = serde_json::to_value(&problem).unwrap();
            assert_eq!((problem.status(), text["offender"].as_str()), (422, Some(place)), "{text}");
        }
    }
}
