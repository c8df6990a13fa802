//! Mounts: the addresses by which VPCs reach services, and the vNICs of members.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, Json, check_name};
use super::resource::{self, Deletable, Listable, Resource};
use super::{App, FIRST, settle};
use crate::compile::service_id;
use crate::place::admission::demand::{Demand, NewObjects};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::{IntoResponse, Json as Answer, Response};
use serde::{Deserialize, Serialize};
use sluice_store::{Page, Store, StoreError, StoredMember};
use sluice_types::{
    HostId, InstanceId, MemberId, MemberStatus, MountId, SecurityGroupId, ServiceId, SubnetId, VpcId,
};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// A mount of a service: addresses in a subnet of a VPC, which belong to all members of the service.
#[derive(Serialize, ToSchema)]
struct Mount {
    #[schema(value_type = String, example = "mount-1")]
    id: MountId,
    name: String,
    /// The VPC that reaches the service by it.
    #[schema(value_type = String, example = "vpc-2")]
    vpc: VpcId,
    #[schema(value_type = String, example = "subnet-2")]
    subnet: SubnetId,
    #[schema(value_type = String, example = "svc-1")]
    service: ServiceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10.0.0.9")]
    ipv4: Option<Ipv4Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2001:db8::9")]
    ipv6: Option<Ipv6Addr>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Mount {
    type Stored = sluice_store::Mount;
    const PATH: &'static str = "/v1/mounts";
    const TAG: &'static str = "services";
    const NAME: &'static str = "mount";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.vpc)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        let addresses = stored.addresses().collect();
        let service = Some(service_id(stored.service));
        Entries { vpcs: vec![stored.vpc], addresses, service, ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Mount { id, name, vpc, subnet, service, ipv4, ipv6, identity: _, revision } =
            stored;
        Self { id, name, vpc, subnet, service, ipv4, ipv6, revision, programmed }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMount {
    /// Name, unique in the VPC.
    name: String,
    /// A service that permits the tenant of the VPC, and of which the VPC has no other mount.
    #[schema(value_type = String, example = "svc-1")]
    service: ServiceId,
    /// A subnet of the VPC.
    #[schema(value_type = String, example = "subnet-2")]
    subnet: SubnetId,
    /// An address of the subnet. If left out, the lowest free one, if the subnet has an IPv4 prefix.
    #[schema(value_type = Option<String>, example = "10.0.0.9")]
    ipv4: Option<Ipv4Addr>,
    /// An address of the subnet. If left out, the lowest free one, if the subnet has an IPv6 prefix.
    #[schema(value_type = Option<String>, example = "2001:db8::9")]
    ipv6: Option<Ipv6Addr>,
    /// Security groups of the VPC, at most 5, which the vNICs have. If left out, the group `default`; an empty list: the vNICs
    /// are not filtered.
    #[schema(value_type = Option<Vec<String>>)]
    security_groups: Option<Vec<SecurityGroupId>>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MountFilter {
    /// Only mounts of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only mounts of this service.
    #[param(value_type = Option<String>)]
    service: Option<ServiceId>,
    /// Only mounts with this name, at most one for each VPC.
    name: Option<String>,
}

/// The vNIC of a member: its port in the VPC of the mount. An interface of the host is attached to it by its id.
#[derive(Serialize, ToSchema)]
struct Vnic {
    /// It is an id of an instance for the host.
    #[schema(value_type = String, example = "inst-9")]
    id: InstanceId,
    /// The instance that is the member.
    #[schema(value_type = String, example = "inst-1")]
    member: InstanceId,
    /// Name of that instance.
    name: String,
    #[schema(value_type = String, example = "host-1")]
    host: HostId,
    /// Status of the member.
    #[schema(value_type = String, example = "up")]
    status: MemberStatus,
    /// New flows go to other members.
    draining: bool,
    /// The host and the gateways have acknowledged the mount and the last change of the member.
    programmed: bool,
}

/// The vNICs of a mount, one for each member of the service.
#[derive(Serialize, ToSchema)]
struct Vnics {
    items: Vec<Vnic>,
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/mounts", tag = "services", params(("vpc" = String, Path)),
    request_body = NewMount,
    responses((status = 201, body = Mount),
        (status = 200, body = Mount, description = "The same object exists already")))]
async fn create_mount(
    State(api): State<App>,
    Id(vpc): Id<VpcId>,
    Json(body): Json<NewMount>,
) -> Result<Response, Problem> {
    let NewMount { name, service, subnet, ipv4, ipv6, security_groups } = body;
    check_name("name", &name)?;
    let store = &api.db.store;
    let same = sluice_store::MountFilter { vpc: Some(vpc), name: Some(name.clone()), ..Default::default() };
    let exists = async || Ok(!store.mounts(&same, FIRST).await?.is_empty());
    let demand = Demand { ipv6: 1, others: 1, ..Demand::default() };
    let admission = api.admit(NewObjects::Further(vpc, demand), exists()).await?;
    let new = sluice_store::NewMount { name, vpc, subnet, service, ipv4, ipv6, security_groups };
    let created = store.create_mount(new).await;
    let created = created.map_err(|error| Problem::of_store(error, Some(&vpc.to_string())))?;
    settle(admission, &created);
    Ok(reply::created::<Mount>(&api, created))
}

/// The vNICs of a mount.
#[utoipa::path(get, path = "/v1/mounts/{mount}/vnics", tag = "services",
    params(("mount" = String, Path)), responses((status = 200, body = Vnics)))]
async fn list_vnics(State(api): State<App>, Id(id): Id<MountId>) -> Result<Response, Problem> {
    let store = &api.db.store;
    let mount = store.mount(id).await?;
    let members = store.members(mount.service).await?;
    let members: HashMap<MemberId, StoredMember> =
        members.into_iter().map(|member| (member.id, member)).collect();
    let vnics = store.vnics(id).await?;
    // A member may have been removed since the vNICs were read, and the reverse.
    let found: Vec<_> = vnics.iter().filter_map(|vnic| Some((vnic, members.get(&vnic.member)?))).collect();
    let needs = |(vnic, member): &(&sluice_store::Vnic, &StoredMember)| {
        let revision = mount.revision.max(member.revision);
        (Needs::Instance(vnic.vpc, vnic.host), revision, Entries::default())
    };
    let written = api.push.written(&found.iter().map(needs).collect::<Vec<_>>());
    let item = |((vnic, member), written): ((&sluice_store::Vnic, &StoredMember), _)| {
        let crate::push::Written { programmed, .. } = written;
        let StoredMember { instance, name, status, draining, .. } = member.clone();
        Vnic { id: vnic.id, member: instance, name, host: vnic.host, status, draining, programmed }
    };
    let items = found.into_iter().zip(written).map(item).collect();
    Ok(Answer(Vnics { items }).into_response())
}

impl Listable for Mount {
    type Filter = MountFilter;
    async fn list(store: &Store, filter: MountFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        let MountFilter { vpc, service, name } = filter;
        store.mounts(&sluice_store::MountFilter { vpc, service, name }, page).await
    }
}

impl Deletable for Mount {}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::list::<Mount>())
        .routes(resource::get::<Mount>())
        .routes(resource::delete::<Mount>())
        .routes(routes!(create_mount))
        .routes(routes!(list_vnics))
}
