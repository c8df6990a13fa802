//! Subnets: a prefix of each family in a VPC.

use super::problem::Problem;
use super::reply::{self, List, Resource};
use super::request::{Id, IfMatch, Json, Query, check_name, page};
use super::{Api, App};
use crate::members::Needs;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_types::{IpNet, Ipv4Net, Ipv6Net, SubnetId, VpcId, first_host, is_unicast, parse_prefix};
use std::net::Ipv4Addr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Resolvers that DHCP offers.
const MAX_DNS: usize = 2;

#[derive(Serialize, ToSchema)]
struct Subnet {
    #[schema(value_type = String, example = "subnet-1")]
    id: SubnetId,
    name: String,
    #[schema(value_type = String, example = "vpc-1")]
    vpc: VpcId,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10.0.0.0/24")]
    ipv4: Option<Ipv4Net>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2001:db8::/64")]
    ipv6: Option<Ipv6Net>,
    #[schema(value_type = Vec<String>)]
    dns: Vec<Ipv4Addr>,
    revision: u64,
    programmed: bool,
}

impl Resource for Subnet {
    type Stored = sluice_store::Subnet;
    const PATH: &'static str = "/v1/subnets";
    fn id(stored: &Self::Stored) -> String {
        stored.id.to_string()
    }
    fn revision(stored: &Self::Stored) -> u64 {
        stored.revision
    }
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.vpc)
    }
    fn new(stored: Self::Stored, programmed: bool) -> Self {
        let sluice_store::Subnet { id, name, vpc, ipv4, ipv6, dns, revision } = stored;
        Self { id, name, vpc, ipv4, ipv6, dns, revision, programmed }
    }
}

/// At least one prefix is needed. The first address of each is the router's.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSubnet {
    /// Unique in the VPC.
    name: String,
    #[schema(example = "10.0.0.0/24")]
    ipv4: Option<String>,
    #[schema(example = "2001:db8::/64")]
    ipv6: Option<String>,
    /// Resolvers that DHCP offers, at most 2.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    dns: Vec<Ipv4Addr>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SubnetQuery {
    /// Only those of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only those with this name, one a VPC.
    name: Option<String>,
    /// 1 to 1000; 100 if absent.
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

fn read_prefix(field: &str, text: &str) -> Result<IpNet, Problem> {
    let prefix = parse_prefix(text).map_err(|error| Problem::invalid(field, error.to_string()))?;
    if first_host(&prefix).is_none() {
        return Err(Problem::invalid(field, format!("{prefix} has no room for a router and an instance")));
    }
    if !is_unicast(prefix.network()) || !is_unicast(prefix.broadcast()) {
        return Err(Problem::invalid(field, format!("{prefix} is no range of unicast addresses")));
    }
    Ok(prefix)
}

impl NewSubnet {
    fn checked(self, vpc: VpcId) -> Result<sluice_store::NewSubnet, Problem> {
        check_name("name", &self.name)?;
        let wrong = |field, net| Problem::invalid(field, format!("{net} is of the other family"));
        let ipv4 = match self.ipv4.map(|text| read_prefix("ipv4", &text)).transpose()? {
            Some(IpNet::V6(net)) => return Err(wrong("ipv4", net.to_string())),
            Some(IpNet::V4(net)) => Some(net),
            None => None,
        };
        let ipv6 = match self.ipv6.map(|text| read_prefix("ipv6", &text)).transpose()? {
            Some(IpNet::V4(net)) => return Err(wrong("ipv6", net.to_string())),
            Some(IpNet::V6(net)) => Some(net),
            None => None,
        };
        if ipv4.is_none() && ipv6.is_none() {
            return Err(Problem::invalid("ipv4", "a subnet needs ipv4, ipv6 or both"));
        }
        if self.dns.len() > MAX_DNS {
            return Err(Problem::invalid("dns", format!("at most {MAX_DNS} resolvers can be offered")));
        }
        if let Some(index) = self.dns.iter().position(|dns| !is_unicast((*dns).into())) {
            let text = format!("{} is not a unicast address", self.dns[index]);
            return Err(Problem::invalid(&format!("dns[{index}]"), text));
        }
        Ok(sluice_store::NewSubnet { name: self.name, vpc, ipv4, ipv6, dns: self.dns })
    }
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/subnets", tag = "subnets", params(("vpc" = String, Path)),
    request_body = NewSubnet,
    responses((status = 201, body = Subnet), (status = 200, body = Subnet, description = "Was there")))]
async fn create_subnet(
    State(api): State<App>,
    Id(vpc): Id<VpcId>,
    Json(body): Json<NewSubnet>,
) -> Result<Response, Problem> {
    Ok(reply::created::<Subnet>(&api, api.core.store.create_subnet(body.checked(vpc)?).await?))
}

#[utoipa::path(get, path = "/v1/subnets", tag = "subnets", params(SubnetQuery),
    responses((status = 200, body = List<Subnet>)))]
async fn list_subnets(State(api): State<App>, Query(query): Query<SubnetQuery>) -> Result<Response, Problem> {
    let page = page(query.limit, query.cursor.as_deref(), SubnetId::get)?;
    let store = &api.core.store;
    let stored = store.subnets(query.vpc, query.name.as_deref(), reply::one_more(page)).await?;
    Ok(reply::list::<Subnet>(&api, page, stored).into_response())
}

#[utoipa::path(get, path = "/v1/subnets/{subnet}", tag = "subnets",
    params(("subnet" = String, Path)), responses((status = 200, body = Subnet)))]
async fn get_subnet(State(api): State<App>, Id(id): Id<SubnetId>) -> Result<Response, Problem> {
    Ok(reply::one::<Subnet>(&api, api.core.store.subnet(id).await?))
}

#[utoipa::path(delete, path = "/v1/subnets/{subnet}", tag = "subnets",
    params(("subnet" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 204)))]
async fn delete_subnet(
    State(api): State<App>,
    Id(id): Id<SubnetId>,
    IfMatch(expected): IfMatch,
) -> Result<Response, Problem> {
    api.core.store.delete_subnet(id, expected).await?;
    Ok(reply::deleted(&api))
}

pub(super) fn routes() -> OpenApiRouter<std::sync::Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(create_subnet))
        .routes(routes!(list_subnets))
        .routes(routes!(get_subnet, delete_subnet))
}
