//! EIPs (elastic IPs): public addresses of tenants, attached to instances and subnets.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name, check_unicast, set};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App};
use crate::compile::meter_id;
use crate::place::admission::Admission;
use crate::place::admission::demand::{Demand, NewObjects};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Attach, Created, EipTarget, EipUpdate, Page, Store, StoreError};
use sluice_types::{
    AddressFamily, EipId, InstanceId, MeterId, PublicPoolId, SubnetId, TenantId, VpcId, given,
};
use std::net::IpAddr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Entries of an attached EIP in the tables of a gateway: one to find it by its public addresses, and one by those inside.
const ENTRIES: Demand = Demand { ipv6: 0, others: 0, routes: 2, vrfs: 0, nat_addresses: 0 };

/// A public address, or an IPv6 prefix.
#[derive(Serialize, ToSchema)]
struct Eip {
    #[schema(value_type = String, example = "eip-1")]
    id: EipId,
    name: String,
    /// The tenant that owns it.
    #[schema(value_type = String, example = "tenant-1")]
    tenant: TenantId,
    /// The pool that it is from.
    #[schema(value_type = String, example = "pool-1")]
    pool: PublicPoolId,
    /// The address, or the first one of the prefix.
    #[schema(value_type = String, example = "198.51.100.1")]
    address: IpAddr,
    /// 32 or 128 for a single address, else the length of the IPv6 prefix.
    prefix_length: u8,
    /// Addresses of the prefix are mapped by NPTv6 (RFC 6296), by which no checksum changes, instead of one by one.
    nptv6: bool,
    /// The VPC to which it is attached; absent if it is not attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, example = "vpc-1")]
    vpc: Option<VpcId>,
    /// The instance to which it is attached; absent if it is attached to a subnet or nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, example = "inst-1")]
    instance: Option<InstanceId>,
    /// The subnet to which it is attached; absent if it is attached to an instance or nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, example = "subnet-1")]
    subnet: Option<SubnetId>,
    /// The address of the instance, or the first one of the subnet's IPv6 prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, example = "10.0.0.2")]
    inside: Option<IpAddr>,
    /// The meter of its traffic, which it keeps when it is detached; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, example = "meter-1")]
    meter: Option<MeterId>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Eip {
    type Stored = sluice_store::Eip;
    const PATH: &'static str = "/v1/eips";
    const TAG: &'static str = "internet";
    const NAME: &'static str = "eip";
    fn needs(stored: &Self::Stored) -> Needs {
        stored.attachment.map_or(Needs::Gateways(stored.cluster), |at| Needs::Vpc(at.vpc))
    }
    fn entries(stored: &Self::Stored) -> Entries {
        let vpcs = stored.attachment.map(|at| at.vpc).into_iter().collect();
        // Gateways have an EIP, and need its meter, only as long as it is attached.
        let meter = stored.attachment.as_ref().and(stored.meter);
        let meters = meter.map(meter_id).into_iter().collect();
        Entries { vpcs, public_prefixes: vec![stored.prefix], meters, ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Eip { id, name, tenant, pool, prefix, nptv6, attachment, meter, revision, .. } =
            stored;
        let (instance, subnet) = match attachment.map(|at| at.target) {
            Some(EipTarget::Instance(instance)) => (Some(instance), None),
            Some(EipTarget::Subnet(subnet)) => (None, Some(subnet)),
            None => (None, None),
        };
        Self {
            id,
            name,
            tenant,
            pool,
            address: prefix.addr(),
            prefix_length: prefix.prefix_len(),
            nptv6,
            vpc: attachment.map(|at| at.vpc),
            instance,
            subnet,
            inside: attachment.map(|at| at.inside.addr()),
            meter,
            revision,
            programmed,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewEip {
    /// Name, unique in the tenant.
    name: String,
    /// The tenant that owns it.
    #[schema(value_type = String, example = "tenant-1")]
    tenant: TenantId,
    /// The pool that it is from.
    #[schema(value_type = String, example = "pool-1")]
    pool: PublicPoolId,
    /// An address of the pool, or the first one of a prefix. If left out, the lowest that is free.
    #[schema(value_type = Option<String>, example = "198.51.100.1")]
    address: Option<IpAddr>,
    /// `ipv4` or `ipv6`. If left out, that of the address, or `ipv6` if `prefix_length` is given, else `ipv4` if the pool
    /// has IPv4 addresses.
    #[schema(value_type = Option<String>, example = "ipv4")]
    family: Option<AddressFamily>,
    /// Length of an IPv6 prefix, 48 to 64; if left out, the EIP is a single address.
    prefix_length: Option<u8>,
    /// Maps the addresses of an IPv6 prefix by NPTv6 (RFC 6296): no checksum changes, also of protocols that gateways do not know, but
    /// bits behind the prefix do. If left out, a new EIP keeps these bits.
    nptv6: Option<bool>,
    /// Attaches the EIP to an instance of the tenant.
    #[schema(value_type = Option<String>, example = "inst-1")]
    instance: Option<InstanceId>,
    /// Attaches the EIP to a subnet of the tenant, for its IPv6 prefix, which has the same length.
    #[schema(value_type = Option<String>)]
    subnet: Option<SubnetId>,
    /// Which address of the instance: an own or a secondary one. If left out, its own of the family.
    #[schema(value_type = Option<String>)]
    inside: Option<IpAddr>,
    /// A meter of the tenant for its traffic. If left out, a new EIP has none.
    #[schema(value_type = Option<String>, example = "meter-1")]
    meter: Option<MeterId>,
}

/// A change of an EIP. Fields that are left out keep their values. One request attaches an EIP that is attached elsewhere.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EipPatch {
    /// Name, unique in the tenant.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    name: Option<String>,
    /// Attaches the EIP to an instance; null detaches it from what it is attached to.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<String>)]
    instance: Option<Option<InstanceId>>,
    /// Attaches the EIP to a subnet; null detaches it from what it is attached to.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<String>)]
    subnet: Option<Option<SubnetId>>,
    /// Which address of the instance: an own or a secondary one. If left out, its own of the family.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, nullable = false)]
    inside: Option<IpAddr>,
    /// A meter of the tenant for its traffic; null for none.
    #[serde(default, deserialize_with = "set")]
    #[schema(value_type = Option<String>)]
    meter: Option<Option<MeterId>>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EipFilter {
    /// Only EIPs of this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Only EIPs from this pool.
    #[param(value_type = Option<String>)]
    pool: Option<PublicPoolId>,
    /// Only EIPs that are attached to this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only EIPs that are attached to this instance.
    #[param(value_type = Option<String>)]
    instance: Option<InstanceId>,
    /// Only EIPs that have this meter.
    #[param(value_type = Option<String>)]
    meter: Option<MeterId>,
    /// Only EIPs with this name, at most one for each tenant.
    name: Option<String>,
}

/// What a request attaches an EIP to.
fn attach(
    instance: Option<InstanceId>,
    subnet: Option<SubnetId>,
    inside: Option<IpAddr>,
) -> Result<Option<Attach>, Problem> {
    inside.map_or(Ok(()), |address| check_unicast("inside", address))?;
    match (instance.map(EipTarget::Instance), subnet.map(EipTarget::Subnet)) {
        (Some(_), Some(_)) => Err(Problem::invalid("subnet", "expected an instance or a subnet, not both")),
        (Some(target), None) | (None, Some(target)) => Ok(Some(Attach { target, inside })),
        (None, None) if inside.is_some() => {
            Err(Problem::invalid("inside", "expected the instance that has this address"))
        }
        (None, None) => Ok(None),
    }
}

/// Admits the entries of an EIP in the tables of the VPC's cluster, if it is to be attached. `has_entries`: it exists and is
/// attached, so its entries are there.
async fn admit(
    api: &Api,
    attach: Option<&Attach>,
    has_entries: impl Future<Output = Result<bool, StoreError>>,
) -> Result<Admission, Problem> {
    let store = &api.db.store;
    let vpc = match attach.map(|attach| attach.target) {
        Some(EipTarget::Instance(id)) => store.instance(id).await.map(|instance| instance.vpc),
        Some(EipTarget::Subnet(id)) => store.subnet(id).await.map(|subnet| subnet.vpc),
        None => return Ok(Admission::default()),
    };
    let vpc = vpc.map_err(|error| Problem::of_store(error, None))?;
    api.admit(NewObjects::Further(vpc, ENTRIES), has_entries).await
}

#[utoipa::path(patch, path = "/v1/eips/{eip}", tag = "internet",
    params(("eip" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = EipPatch, responses((status = 200, body = Eip)))]
async fn update_eip(
    State(api): State<App>,
    Id(id): Id<EipId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<EipPatch>,
) -> Result<Response, Problem> {
    let EipPatch { name, instance, subnet, inside, meter } = body;
    name.as_deref().map_or(Ok(()), |name| check_name("name", name))?;
    let attach = match (instance, subnet) {
        (None, None) if inside.is_none() => None,
        (instance, subnet) => Some(attach(instance.flatten(), subnet.flatten(), inside)?),
    };
    let path = id.to_string();
    let of_store = |error| Problem::of_store(error, Some(&path));
    let store = &api.db.store;
    let before = store.eip(id).await.map_err(of_store)?;
    let is_attached = async { Ok(before.attachment.is_some()) };
    let admission = admit(&api, attach.as_ref().and_then(Option::as_ref), is_attached).await?;
    let updated =
        store.update_eip(id, EipUpdate { name, attach, meter }, expected).await.map_err(of_store)?;
    if before.attachment.is_none() && updated.revision > before.revision {
        admission.commit(updated.revision);
    }
    Ok(reply::updated::<Eip>(&api, updated))
}

impl Listable for Eip {
    type Filter = EipFilter;
    async fn list(store: &Store, filter: EipFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        let EipFilter { tenant, pool, vpc, instance, meter, name } = filter;
        store.eips(&sluice_store::EipFilter { tenant, pool, vpc, instance, meter, name }, page).await
    }
}

impl Deletable for Eip {}

impl Creatable for Eip {
    type New = NewEip;
    async fn create(api: &Api, new: NewEip) -> Result<Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        let attach = attach(new.instance, new.subnet, new.inside)?;
        let named = sluice_store::EipFilter {
            tenant: Some(new.tenant),
            name: Some(new.name.clone()),
            ..Default::default()
        };
        let exists = async { Ok(!api.db.store.eips(&named, super::FIRST).await?.is_empty()) };
        let admission = admit(api, attach.as_ref(), exists).await?;
        let NewEip { name, tenant, pool, address, family, prefix_length, nptv6, meter, .. } = new;
        let new =
            sluice_store::NewEip { name, tenant, pool, address, family, prefix_length, nptv6, attach, meter };
        let created = api.db.store.create_eip(new).await.map_err(|error| Problem::of_store(error, None))?;
        super::settle(admission, &created);
        Ok(created)
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<Eip>())
        .routes(resource::list::<Eip>())
        .routes(resource::get::<Eip>())
        .routes(resource::delete::<Eip>())
        .routes(routes!(update_eip))
}
