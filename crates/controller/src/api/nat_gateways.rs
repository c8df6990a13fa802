//! NAT gateways: public IPv4 addresses that the instances of a VPC share.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, IfMatch, Json, check_name};
use super::resource::{self, Creatable, Deletable, Listable, Resource};
use super::{Api, App};
use crate::place::admission::Admission;
use crate::place::admission::demand::{Demand, NewObjects};
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{Created, NatAddresses, NatGatewayUpdate, Page, Store, StoreError};
use sluice_types::{
    IpNet, Ipv6Net, NatFiltering, NatGatewayId, NatMapping, PublicPoolId, VpcId, check_nat_addresses, given,
};
use std::net::{IpAddr, Ipv4Addr};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Source NAT of a VPC: its instances without a public IPv4 address share these addresses.
#[derive(Serialize, ToSchema)]
struct NatGateway {
    #[schema(value_type = String, example = "nat-1")]
    id: NatGatewayId,
    name: String,
    /// Its VPC, which has no other.
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    /// The pool that its addresses are from.
    #[schema(value_type = String, example = "pool-1")]
    pool: PublicPoolId,
    /// 1 to 16 addresses in ascending order.
    #[schema(value_type = Vec<String>, example = json!(["198.51.100.1"]))]
    addresses: Vec<Ipv4Addr>,
    /// Sessions that each instance may have at the same time.
    sessions: u32,
    /// Port blocks that each instance may have.
    blocks: u8,
    /// `address-and-port-dependent` or `endpoint-independent`.
    #[schema(value_type = String, example = "address-and-port-dependent")]
    filtering: NatFiltering,
    /// `endpoint-independent` or `endpoint-dependent`.
    #[schema(value_type = String, example = "endpoint-independent")]
    mapping: NatMapping,
    /// The prefix of 96 bits by which instances with IPv6 reach IPv4 addresses (NAT64); absent if they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, example = "64:ff9b::/96")]
    nat64_prefix: Option<Ipv6Net>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for NatGateway {
    type Stored = sluice_store::NatGateway;
    const PATH: &'static str = "/v1/nat-gateways";
    const TAG: &'static str = "internet";
    const NAME: &'static str = "nat_gateway";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.vpc)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        Entries { vpcs: vec![stored.vpc], nat_gateway: true, ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::NatGateway { id, name, vpc, pool, addresses, sessions, blocks, .. } = stored;
        let (filtering, mapping) = (stored.filtering, stored.mapping);
        let (nat64_prefix, revision) = (stored.nat64_prefix, stored.revision);
        Self {
            id,
            name,
            vpc,
            pool,
            addresses,
            sessions,
            blocks,
            filtering,
            mapping,
            nat64_prefix,
            revision,
            programmed,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewNatGateway {
    /// Name, unique in the VPC.
    name: String,
    /// The VPC, which has no NAT gateway yet.
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    /// The pool that its addresses are from. It is on the cluster of the VPC.
    #[schema(value_type = String, example = "pool-1")]
    pool: PublicPoolId,
    /// 1 to 16 IPv4 addresses of the pool.
    #[schema(value_type = Option<Vec<String>>, example = json!(["198.51.100.1"]))]
    addresses: Option<Vec<IpAddr>>,
    /// How many addresses it gets, the lowest that are free, if `addresses` is left out: 1 to 16. If both are left out, 1.
    address_count: Option<usize>,
    /// Sessions that each instance may have at the same time, 1 to 1000000. If left out, 10000.
    sessions: Option<u32>,
    /// Port blocks that each instance may have, 1 to 16. If left out, 4.
    blocks: Option<u8>,
    /// Which packets of the Internet reach a port that an instance uses: `address-and-port-dependent`, those from an address
    /// and port to which it has sent; or `endpoint-independent`, all. If left out, the first.
    #[schema(value_type = Option<String>, example = "address-and-port-dependent")]
    filtering: Option<NatFiltering>,
    /// Which connections of an instance share a public port: `endpoint-independent`, all of one of its ports and no others; or
    /// `endpoint-dependent`, those of any of its ports to different remote endpoints, which needs `address-and-port-dependent`
    /// filtering. If left out, the first.
    #[schema(value_type = Option<String>, example = "endpoint-independent")]
    mapping: Option<NatMapping>,
    /// NAT64: instances with IPv6 reach each IPv4 address by this prefix with the IPv4 address in the last 32 bits. A prefix of length
    /// 96: `64:ff9b::/96`, by which no private IPv4 address is reached, or one of the VPC's own network. It overlaps no subnet of the
    /// VPC and no route to something else than the Internet. If left out, there is no NAT64.
    #[schema(value_type = Option<String>, example = "64:ff9b::/96")]
    nat64_prefix: Option<IpNet>,
}

/// A change of a NAT gateway. Fields that are left out keep their values.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NatGatewayPatch {
    /// Name, unique in the VPC.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    name: Option<String>,
    /// All addresses from now on: 1 to 16 IPv4 addresses of the pool. Sessions of those that are missing end.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, nullable = false)]
    addresses: Option<Vec<IpAddr>>,
    /// How many addresses it has from now on, 1 to 16: it gets the lowest that are free, or loses its highest.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    address_count: Option<usize>,
    /// Sessions that each instance may have at the same time, 1 to 1000000.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    sessions: Option<u32>,
    /// Port blocks that each instance may have, 1 to 16.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    blocks: Option<u8>,
    /// `address-and-port-dependent` or `endpoint-independent`.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, nullable = false)]
    filtering: Option<NatFiltering>,
    /// `endpoint-independent` or `endpoint-dependent`. Connections keep the mapping with which they began.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, nullable = false)]
    mapping: Option<NatMapping>,
    /// The prefix of NAT64; null for none. Without one, connections of NAT64 end.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    nat64_prefix: Option<Option<IpNet>>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NatGatewayFilter {
    /// Only the NAT gateway of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only NAT gateways with addresses from this pool.
    #[param(value_type = Option<String>)]
    pool: Option<PublicPoolId>,
    /// Only NAT gateways with this name, at most one for each VPC.
    name: Option<String>,
}

fn check_number(field: &str, number: usize) -> Result<(), Problem> {
    check_nat_addresses(number).map_err(|detail| Problem::invalid(field, detail))
}

/// The addresses that a request asks for. Their number is checked here, because they are admitted before the store sees them.
fn wanted(addresses: Option<Vec<IpAddr>>, count: Option<usize>) -> Result<Option<NatAddresses>, Problem> {
    match (addresses, count) {
        (Some(_), Some(_)) => {
            Err(Problem::invalid("address_count", "expected the addresses or their number, not both"))
        }
        (Some(addresses), None) => {
            check_number("addresses", addresses.len())?;
            match addresses.iter().enumerate().find(|(at, address)| addresses[..*at].contains(address)) {
                Some((_, twice)) => Err(Problem::invalid("addresses", format!("{twice} is given twice"))),
                None => Ok(Some(NatAddresses::These(addresses))),
            }
        }
        (None, Some(count)) => {
            check_number("address_count", count)?;
            Ok(Some(NatAddresses::Number(count)))
        }
        (None, None) => Ok(None),
    }
}

/// Admits further addresses on the VPC's cluster: an entry for each of the `new` ones, and a number for each by which there are
/// `more` than before, because the number of an address that is replaced becomes free. `has_entries`: the NAT gateway exists and
/// has them already.
async fn admit(
    api: &Api,
    vpc: VpcId,
    new: usize,
    more: usize,
    has_entries: impl Future<Output = Result<bool, StoreError>>,
) -> Result<Admission, Problem> {
    let demand = Demand { routes: new as u64, nat_addresses: more as u64, ..Demand::default() };
    api.admit(NewObjects::Further(vpc, demand), has_entries).await
}

#[utoipa::path(patch, path = "/v1/nat-gateways/{nat_gateway}", tag = "internet",
    params(("nat_gateway" = String, Path), ("If-Match" = Option<String>, Header)),
    request_body = NatGatewayPatch, responses((status = 200, body = NatGateway)))]
async fn update_nat_gateway(
    State(api): State<App>,
    Id(id): Id<NatGatewayId>,
    IfMatch(expected): IfMatch,
    Json(body): Json<NatGatewayPatch>,
) -> Result<Response, Problem> {
    let NatGatewayPatch {
        name,
        addresses,
        address_count,
        sessions,
        blocks,
        filtering,
        mapping,
        nat64_prefix,
    } = body;
    name.as_deref().map_or(Ok(()), |name| check_name("name", name))?;
    let addresses = wanted(addresses, address_count)?;
    let path = id.to_string();
    let of_store = |error| Problem::of_store(error, Some(&path));
    let store = &api.db.store;
    let before = store.nat_gateway(id).await.map_err(of_store)?;
    let more = |number: usize| number.saturating_sub(before.addresses.len());
    let (new, more) = match &addresses {
        None => (0, 0),
        Some(NatAddresses::Number(number)) => (more(*number), more(*number)),
        Some(NatAddresses::These(these)) => {
            let has = |address: &IpAddr| before.addresses.iter().any(|has| IpAddr::V4(*has) == *address);
            (these.iter().filter(|address| !has(address)).count(), more(these.len()))
        }
    };
    let admission = admit(&api, before.vpc, new, more, async { Ok(new == 0) }).await?;
    let new = NatGatewayUpdate { name, addresses, sessions, blocks, filtering, mapping, nat64_prefix };
    let updated = store.update_nat_gateway(id, new, expected).await.map_err(of_store)?;
    if updated.revision > before.revision {
        admission.commit(updated.revision);
    }
    Ok(reply::updated::<NatGateway>(&api, updated))
}

impl Listable for NatGateway {
    type Filter = NatGatewayFilter;
    async fn list(
        store: &Store,
        filter: NatGatewayFilter,
        page: Page,
    ) -> Result<Vec<Self::Stored>, StoreError> {
        let NatGatewayFilter { vpc, pool, name } = filter;
        store.nat_gateways(&sluice_store::NatGatewayFilter { vpc, pool, name }, page).await
    }
}

impl Deletable for NatGateway {}

impl Creatable for NatGateway {
    type New = NewNatGateway;
    async fn create(api: &Api, new: NewNatGateway) -> Result<Created<Self::Stored>, Problem> {
        check_name("name", &new.name)?;
        let NewNatGateway { name, vpc, pool, addresses, address_count, .. } = new;
        let (sessions, blocks, filtering) = (new.sessions, new.blocks, new.filtering);
        let (mapping, nat64_prefix) = (new.mapping, new.nat64_prefix);
        let addresses = wanted(addresses, address_count)?;
        let number = match &addresses {
            None => 1,
            Some(NatAddresses::Number(number)) => *number,
            Some(NatAddresses::These(these)) => these.len(),
        };
        let of_vpc = sluice_store::NatGatewayFilter { vpc: Some(vpc), ..Default::default() };
        let exists = async { Ok(!api.db.store.nat_gateways(&of_vpc, super::FIRST).await?.is_empty()) };
        let admission = admit(api, vpc, number, number, exists).await?;
        let new = sluice_store::NewNatGateway {
            name,
            vpc,
            pool,
            addresses,
            sessions,
            blocks,
            filtering,
            mapping,
            nat64_prefix,
        };
        let created = api.db.store.create_nat_gateway(new).await;
        let created = created.map_err(|error| Problem::of_store(error, None))?;
        super::settle(admission, &created);
        Ok(created)
    }
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::create::<NatGateway>())
        .routes(resource::list::<NatGateway>())
        .routes(resource::get::<NatGateway>())
        .routes(resource::delete::<NatGateway>())
        .routes(routes!(update_nat_gateway))
}
