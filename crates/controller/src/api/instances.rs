//! Instances: ports of VMs in a subnet on a host, created one by one or in bulk.

use super::guard::Arrived;
use super::migrations::MigrationSummary;
use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{
    Id, IfMatch, Json, JsonBytes, MAX_BULK_BODY_BYTES, Object, check_name, check_unicast, objects, parse, set,
};
use super::resource::{self, Deletable, Listable, Number, Resource, Stored, StoredDelete};
use super::{Api, App, FIRST, blocking, bulk_halves, settle};
use crate::place::admission::Admission;
use crate::place::admission::demand::{Demand, NewObjects, of_settings};
use crate::push::{ApiStages, Entries, MIN_INSTANCES, Needs};
use axum::Extension;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use sluice_store::{Created, InstanceWithGroups, Page, Store, StoreError, StoredPair};
use sluice_types::{
    AddressPair, HostId, InstanceId, IpNet, MacAddr, NetworkClassId, PortSettings, Qos, SecurityGroupId,
    SubnetId, VpcId, given,
};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Most instances in one bulk creation.
pub(super) const MAX_BULK: usize = 1_000_000;
/// Longest time in which the body of a bulk creation must arrive: others wait meanwhile.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// An address that several instances of a subnet may have in turn.
#[derive(Serialize, ToSchema)]
struct HeldPair {
    #[schema(value_type = String, example = "10.0.0.100")]
    address: IpAddr,
    /// The MAC address that belongs to the address; if absent, neighbors are given that of the router.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "00:00:5e:00:01:05")]
    mac: Option<MacAddr>,
    /// The instance announced the address last, and gets the packets to it.
    held: bool,
}

/// The same in a request.
#[derive(ToSchema)]
#[allow(dead_code)]
struct AddressPairFields {
    #[schema(value_type = String, example = "10.0.0.100")]
    address: IpAddr,
    /// The MAC address that belongs to the address, the same in all instances; if absent, neighbors are given that of the
    /// router.
    #[schema(value_type = Option<String>, example = "00:00:5e:00:01:05")]
    mac: Option<MacAddr>,
}

/// Marking and rate limit of an instance.
#[derive(ToSchema)]
#[allow(dead_code)]
struct QosFields {
    /// DSCP that packets of the instance get, 0 to 63; null: they keep theirs.
    #[schema(maximum = 63)]
    dscp: Option<u8>,
    /// Limit of each direction in Mbit/s of IP packets, 1 to 400000; null: not limited, or by the network class.
    #[schema(minimum = 1, maximum = 400000)]
    rate_mbps: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Instance {
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
    /// Its security groups in order of creation. Empty: its port is not filtered.
    #[schema(value_type = Vec<String>, example = json!(["sg-1"]))]
    security_groups: Vec<SecurityGroupId>,
    /// Addresses that the instance has besides `ipv4` and `ipv6`, in ascending order.
    #[schema(value_type = Vec<String>, example = json!(["10.0.0.9"]))]
    secondary_addresses: Vec<IpAddr>,
    /// Prefixes of which the instance has every address, in ascending order.
    #[schema(value_type = Vec<String>, example = json!(["10.244.1.0/24"]))]
    delegated_prefixes: Vec<IpNet>,
    /// Addresses that the instance may have in turn with others, in order of address.
    address_pairs: Vec<HeldPair>,
    /// The source addresses of what the instance sends, MAC and IP, are checked.
    spoofing_protection: bool,
    #[schema(value_type = QosFields)]
    qos: Qos,
    /// Its network class, which limits it; null: none.
    #[schema(value_type = Option<String>, example = "class-1")]
    network_class: Option<NetworkClassId>,
    /// Its live migration to another host; null if it does not migrate.
    migration: Option<MigrationSummary>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Instance {
    /// The instance, with its security groups, and how far its migration is.
    type Stored = InstanceWithGroups;
    const PATH: &'static str = "/v1/instances";
    const TAG: &'static str = "instances";
    const NAME: &'static str = "instance";
    fn needs((stored, ..): &Self::Stored) -> Needs {
        Needs::Instance(stored.vpc, stored.host)
    }
    fn entries((stored, ..): &Self::Stored) -> Entries {
        let addresses = stored.all_addresses().chain(stored.held_pairs().map(|pair| pair.address)).collect();
        let (vpcs, identity) = (vec![stored.vpc], Some(stored.identity));
        let routes = stored.options.delegated.clone();
        Entries { vpcs, addresses, routes, identity, ..Entries::default() }
    }
    fn new((stored, security_groups, phase): Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Instance {
            id,
            name,
            vpc,
            subnet,
            host,
            mac,
            ipv4,
            ipv6,
            options,
            migration,
            revision,
            ..
        } = stored;
        let pair = |pair: StoredPair| HeldPair { address: pair.address, mac: pair.mac, held: pair.is_held() };
        let migration = migration.zip(phase).map(|(it, phase)| MigrationSummary { host: it.to, phase });
        Self {
            id,
            name,
            vpc,
            subnet,
            host,
            mac,
            ipv4,
            ipv6,
            security_groups,
            secondary_addresses: options.secondary,
            delegated_prefixes: options.delegated,
            address_pairs: options.pairs.into_iter().map(pair).collect(),
            spoofing_protection: !options.unprotected,
            qos: options.qos,
            network_class: options.network_class.as_ref().map(|class| class.id),
            migration,
            revision,
            programmed,
        }
    }
}

impl Number for InstanceId {
    fn number(self) -> u64 {
        self.get()
    }
}

impl Stored for InstanceWithGroups {
    type Id = InstanceId;
    fn id(&self) -> InstanceId {
        self.0.id
    }
    fn revision(&self) -> u64 {
        self.0.revision
    }
    async fn find(store: &Store, id: InstanceId) -> Result<Self, StoreError> {
        store.instance_with_groups(id).await
    }
}

impl StoredDelete for InstanceWithGroups {
    async fn delete(store: &Store, id: InstanceId, expected: Option<u64>) -> Result<u64, StoreError> {
        store.delete_instance(id, expected).await
    }
}

/// Decodes a list that is not null. An absent list is the group `default`, an empty one no group; null could be meant as
/// either.
pub(super) fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<SecurityGroupId>>, D::Error> {
    Vec::deserialize(from).map(Some)
}

/// Addresses that are left out are chosen, one of each address family of the subnet.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewInstance {
    /// Name, unique in the VPC.
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
    /// At most 5 security groups of the VPC. If left out, the group `default`. With an empty list, the port is not
    /// filtered.
    #[serde(default, deserialize_with = "groups")]
    #[schema(value_type = Option<Vec<String>>, nullable = false, example = json!(["sg-1"]))]
    security_groups: Option<Vec<SecurityGroupId>>,
    /// Addresses besides `ipv4` and `ipv6`, at most 16, in prefixes of the subnet.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, nullable = false, example = json!(["10.0.0.9"]))]
    secondary_addresses: Option<Vec<IpAddr>>,
    /// Prefixes of which the instance has every address, at most 32: each inside a subnet of the VPC, where nothing else
    /// has an address of it, or overlapping no subnet except those that it contains.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, nullable = false, example = json!(["10.244.1.0/24"]))]
    delegated_prefixes: Option<Vec<IpNet>>,
    /// Addresses of the subnet that the instance may have in turn with others that list them, at most 16.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<AddressPairFields>>, nullable = false)]
    address_pairs: Option<Vec<AddressPair>>,
    /// Whether the source addresses of what the instance sends, MAC and IP, are checked; they are by default.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    spoofing_protection: Option<bool>,
    /// Marking and rate limit; by default packets keep their DSCP and are not limited.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<QosFields>, nullable = false)]
    qos: Option<Qos>,
    /// The network class that it has; by default and with null none. An instance has either one, or `qos.rate_mbps`.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<String>, example = "class-1")]
    network_class: Option<Option<NetworkClassId>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewInstances {
    /// At most 1,000,000 instances. All of them are created, or none.
    #[serde(deserialize_with = "objects")]
    instances: Vec<NewInstance>,
}

/// Result of a bulk creation. `first` and `last` are absent if it created nothing.
#[derive(Serialize, ToSchema)]
struct BulkCreated {
    /// Number of created instances.
    created: usize,
    /// Number of instances that existed already with the same content.
    existing: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    first: Option<InstanceId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    last: Option<InstanceId>,
    /// The instances are programmed when the nodes have acknowledged this revision.
    revision: u64,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct InstanceFilter {
    /// Only instances of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only instances on this host.
    #[param(value_type = Option<String>)]
    host: Option<HostId>,
    /// Only instances with this name, at most one for each VPC.
    name: Option<String>,
}

impl NewInstance {
    pub(super) fn checked(self) -> Result<sluice_store::NewInstance, Problem> {
        check_name("name", &self.name)?;
        if let Some(mac) = self.mac.filter(|mac| !mac.is_unicast()) {
            return Err(Problem::invalid("mac", format!("{mac} is not a unicast MAC address")));
        }
        self.ipv4.map_or(Ok(()), |address| check_unicast("ipv4", address))?;
        self.ipv6.map_or(Ok(()), |address| check_unicast("ipv6", address))?;
        let Self { name, subnet, host, mac, ipv4, ipv6, security_groups, .. } = self;
        let settings = PortSettings {
            secondary_addresses: self.secondary_addresses,
            delegated_prefixes: self.delegated_prefixes,
            address_pairs: self.address_pairs,
            spoofing_protection: self.spoofing_protection,
            qos: self.qos,
            network_class: self.network_class,
        };
        Ok(sluice_store::NewInstance { name, subnet, host, mac, ipv4, ipv6, security_groups, settings })
    }
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/instances", tag = "instances",
    params(("vpc" = String, Path)), request_body = NewInstance,
    responses((status = 201, body = Instance),
        (status = 200, body = Instance, description = "The same object exists already")))]
async fn create_instance(
    State(api): State<App>,
    Id(vpc): Id<VpcId>,
    Json(body): Json<NewInstance>,
) -> Result<Response, Problem> {
    let (store, new) = (&api.db.store, body.checked()?);
    let exists = async || Ok(!store.instances(Some(vpc), None, Some(&new.name), FIRST).await?.is_empty());
    let admission = api.admit(NewObjects::Instances(vpc, &[&new]), exists()).await?;
    let path = vpc.to_string();
    let created = store.create_instance(vpc, new).await;
    let created = match created.map_err(|error| Problem::of_store(error, Some(&path)))? {
        Created::New(new) => Created::New(store.instance_with_groups(new.id).await?),
        Created::Existing(old) => Created::Existing(store.instance_with_groups(old.id).await?),
    };
    settle(admission, &created);
    Ok(reply::created::<Instance>(&api, created))
}

/// Parses the body of a bulk creation, a large one on two threads. If that fails, it is parsed again to find the position of
/// the error.
pub(super) fn parse_bulk(bytes: &[u8]) -> Result<Vec<sluice_store::NewInstance>, Problem> {
    if let Some(new) = bulk_halves::parse(bytes) {
        return Ok(new);
    }
    let body: NewInstances = match serde_json::from_slice(bytes) {
        Ok(Object(body)) => body,
        Err(_) => parse(bytes)?,
    };
    if body.instances.len() > MAX_BULK {
        let detail = format!("{} instances are more than the limit of {MAX_BULK}", body.instances.len());
        return Err(Problem::invalid("instances", detail));
    }
    let checked = body.instances.into_iter().enumerate().map(|(index, instance)| {
        instance.checked().map_err(|problem| problem.inside(&format!("instances[{index}]")))
    });
    checked.collect()
}

/// Reads the body of a bulk creation.
async fn read_body(request: Request, timeout: Duration) -> Result<Bytes, Problem> {
    let late = |_| {
        let detail = format!("the body did not arrive within {} s", timeout.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, "body-timeout", detail).offender("body")
    };
    let body = tokio::time::timeout(timeout, JsonBytes::from_request(request, &())).await;
    let JsonBytes(bytes) = body.map_err(late)??;
    Ok(bytes)
}

/// Admits a bulk. If it does not fit, those of its instances that exist already are not counted.
async fn admit_bulk(api: &Api, vpc: VpcId, new: &[sluice_store::NewInstance]) -> Result<Admission, Problem> {
    let all: Vec<_> = new.iter().collect();
    let full = match api.place.admit(NewObjects::Instances(vpc, &all)).await? {
        Ok(admission) => return Ok(admission),
        Err(full) => full,
    };
    let names: Vec<String> = new.iter().map(|one| one.name.clone()).collect();
    let taken: HashSet<String> = api.db.store.taken_names(vpc, &names).await?.into_iter().collect();
    let missing: Vec<_> = all.into_iter().filter(|one| !taken.contains(&one.name)).collect();
    match missing.len() {
        0 => Ok(Admission::default()),
        count if count == new.len() => Err(full.into()),
        _ => Ok(api.place.admit(NewObjects::Instances(vpc, &missing)).await??),
    }
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/instances/bulk", tag = "instances",
    params(("vpc" = String, Path)), request_body = NewInstances,
    responses((status = 200, body = BulkCreated)))]
async fn create_instances(
    State(api): State<App>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    Id(vpc): Id<VpcId>,
    request: Request,
) -> Result<Response, Problem> {
    // Taken before the body is read, to limit the number of large bodies in memory.
    let permit = api.bulks.clone().acquire_owned().await.map_err(|_| Problem::internal())?;
    let bytes = read_body(request, BODY_TIMEOUT).await?;
    let (new, _permit) = blocking::run(permit, move || parse_bulk(&bytes)).await?;
    let new = new?;
    let parsed = Instant::now();
    let store = &api.db.store;
    let path = vpc.to_string();
    let admission = admit_bulk(&api, vpc, &new).await?;
    let made = store.create_instances(vpc, new).await;
    let (created, existing) = made.map_err(|error| Problem::of_store(error, Some(&path)))?;
    let committed = Instant::now();
    api.db.notify_commit();
    let revision = match created.last() {
        Some(last) => {
            admission.commit(last.revision);
            last.revision
        }
        None => store.revision().await?,
    };
    if created.len() >= MIN_INSTANCES {
        let stages = ApiStages { parse: parsed - arrived, store: committed - parsed };
        api.push.timeline.committed(revision, stages, arrived);
    }
    let ids = (created.first().map(|i| i.id), created.last().map(|i| i.id));
    let answer = BulkCreated { created: created.len(), existing, first: ids.0, last: ids.1, revision };
    // It takes a while to free a million instances.
    tokio::task::spawn_blocking(move || drop(created));
    Ok((StatusCode::OK, axum::Json(answer)).into_response())
}

/// A change of an instance: either of its host, or of its security groups, or of any of the other fields. A list replaces the
/// whole list.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InstancePatch {
    /// The new host. Gateways get the change first, then the new host gets the port, and the old one removes
    /// it. A live migration ends.
    #[schema(value_type = Option<String>, example = "host-2")]
    host: Option<HostId>,
    /// All its security groups, at most 5. With an empty list, the port is not filtered.
    #[serde(default, deserialize_with = "groups")]
    #[schema(value_type = Option<Vec<String>>, nullable = false, example = json!(["sg-1"]))]
    security_groups: Option<Vec<SecurityGroupId>>,
    /// Addresses besides `ipv4` and `ipv6`, at most 16, in prefixes of the subnet.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, nullable = false, example = json!(["10.0.0.9"]))]
    secondary_addresses: Option<Vec<IpAddr>>,
    /// Prefixes of which the instance has every address, at most 32: each inside a subnet of the VPC, where nothing else
    /// has an address of it, or overlapping no subnet except those that it contains.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, nullable = false, example = json!(["10.244.1.0/24"]))]
    delegated_prefixes: Option<Vec<IpNet>>,
    /// Addresses of the subnet that the instance may have in turn with others that list them, at most 16.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<AddressPairFields>>, nullable = false)]
    address_pairs: Option<Vec<AddressPair>>,
    /// Whether the source addresses of what the instance sends, MAC and IP, are checked; they are by default.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    spoofing_protection: Option<bool>,
    /// Marking and rate limit; by default packets keep their DSCP and are not limited.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<QosFields>, nullable = false)]
    qos: Option<Qos>,
    /// The network class that it has from now on; null: none. An instance has either one, or `qos.rate_mbps`.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<String>, example = "class-1")]
    network_class: Option<Option<NetworkClassId>>,
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
    let store = &api.db.store;
    let path = id.to_string();
    let InstancePatch {
        host, security_groups, secondary_addresses, delegated_prefixes, address_pairs, ..
    } = body;
    let InstancePatch { spoofing_protection, qos, network_class, .. } = body;
    let settings = PortSettings {
        secondary_addresses,
        delegated_prefixes,
        address_pairs,
        spoofing_protection,
        qos,
        network_class,
    };
    let changed = match (host, security_groups, settings.is_empty()) {
        (Some(host), None, true) => store.move_instance(id, host, expected).await,
        (None, Some(groups), true) => store.set_security_groups(id, &groups, expected).await,
        (None, None, false) => {
            let before = store.instance(id).await?;
            let demand = of_settings(&settings, &before.options);
            let admission = if demand == Demand::default() {
                Admission::default()
            } else {
                api.admit(NewObjects::Further(before.vpc, demand), async { Ok(false) }).await?
            };
            let changed = store.update_instance(id, &settings, expected).await;
            changed.inspect(|changed| admission.commit(changed.revision))
        }
        // Two of them need two revisions, and only one of them might succeed.
        _ => {
            let text = "expected either host, or security_groups, or other fields";
            return Err(Problem::invalid("body", text));
        }
    };
    let changed = changed.map_err(|error| Problem::of_store(error, Some(&path)))?;
    Ok(reply::updated::<Instance>(&api, store.instance_with_groups(changed.id).await?))
}

impl Listable for Instance {
    type Filter = InstanceFilter;
    async fn list(
        store: &Store,
        filter: InstanceFilter,
        page: Page,
    ) -> Result<Vec<Self::Stored>, StoreError> {
        store.instances_with_groups(filter.vpc, filter.host, filter.name.as_deref(), page).await
    }
}

impl Deletable for Instance {}

pub(super) fn routes() -> OpenApiRouter<App> {
    let bulk = OpenApiRouter::new()
        .routes(routes!(create_instances))
        .layer(DefaultBodyLimit::max(MAX_BULK_BODY_BYTES));
    OpenApiRouter::new()
        .routes(resource::list::<Instance>())
        .routes(resource::get::<Instance>())
        .routes(resource::delete::<Instance>())
        .routes(routes!(create_instance))
        .routes(routes!(update_instance))
        .merge(bulk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_errors_name_their_position() {
        let good = br#"{"instances":[{"name":"a","subnet":"subnet-1","host":"host-1","ipv4":"10.0.0.2"}]}"#;
        assert_eq!(parse_bulk(good).unwrap()[0].ipv4, Some(Ipv4Addr::new(10, 0, 0, 2)));
        let faults: [(&[u8], &str); 6] = [
            (br#"{"instances":[{"name":"a","subnet":"sub-1","host":"host-1"}]}"#, "instances[0].subnet"),
            (br#"{"instances":[{"name":"a","subnet":"subnet-1","host":"host-1","x":1}]}"#, "instances[0].x"),
            (br#"{"instances":[{"name":"a b","subnet":"subnet-1","host":"host-1"}]}"#, "instances[0].name"),
            (
                br#"{"instances":[{"name":"a","subnet":"subnet-1","host":"host-1","ipv6":"ff02::1"}]}"#,
                "instances[0].ipv6",
            ),
            (br#"[]"#, "body"),
            (br#"{"instances":[["a","subnet-1","host-1",null,null,null]]}"#, "instances[0]"),
        ];
        for (body, place) in faults {
            let problem = parse_bulk(body).unwrap_err();
            let text = serde_json::to_value(&problem).unwrap();
            assert_eq!((problem.status(), text["offender"].as_str()), (422, Some(place)), "{text}");
        }
    }

    #[tokio::test]
    async fn body_must_arrive_in_time() {
        let never =
            axum::body::Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let request =
            axum::http::Request::builder().header("content-type", "application/json").body(never).unwrap();
        let problem = read_body(request, Duration::from_millis(10)).await.unwrap_err();
        assert_eq!((problem.status(), problem.kind()), (408, "urn:sluice:problem:body-timeout"));
    }
}
