//! Subnets: an IPv4 prefix, an IPv6 prefix or both in a VPC.

use super::problem::Problem;
use super::reply::{self, Programmed};
use super::request::{Id, Json, check_name, check_unicast};
use super::resource::{self, Deletable, Listable, Resource};
use super::{App, FIRST, settle};
use crate::place::Prefixes;
use crate::place::admission::demand::NewObjects;
use crate::push::{Entries, Needs};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sluice_store::{MAX_DNS, Page, Store, StoreError};
use sluice_types::{
    IpNet, Ipv4Net, Ipv6Mode, Ipv6Net, SubnetId, VpcId, first_host, is_unicast, parse_prefix,
};
use std::net::Ipv4Addr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

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
    /// How instances get IPv6 addresses: `dhcp` or `slaac`. Absent without an IPv6 prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "dhcp")]
    ipv6_mode: Option<Ipv6Mode>,
    #[schema(value_type = Vec<String>)]
    dns: Vec<Ipv4Addr>,
    revision: u64,
    #[serde(flatten)]
    programmed: Programmed,
}

impl Resource for Subnet {
    type Stored = sluice_store::Subnet;
    const PATH: &'static str = "/v1/subnets";
    const TAG: &'static str = "subnets";
    const NAME: &'static str = "subnet";
    fn needs(stored: &Self::Stored) -> Needs {
        Needs::Vpc(stored.vpc)
    }
    fn entries(stored: &Self::Stored) -> Entries {
        let routes = stored.ipv4.map(IpNet::V4).into_iter().chain(stored.ipv6.map(IpNet::V6));
        Entries { vpcs: vec![stored.vpc], routes: routes.collect(), ..Entries::default() }
    }
    fn new(stored: Self::Stored, programmed: Programmed) -> Self {
        let sluice_store::Subnet { id, name, vpc, ipv4, ipv6, ipv6_mode, dns, revision } = stored;
        Self { id, name, vpc, ipv4, ipv6, ipv6_mode, dns, revision, programmed }
    }
}

/// A subnet has at least one prefix. The first address of each prefix is that of the router.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSubnet {
    /// Name, unique in the VPC.
    name: String,
    #[schema(example = "10.0.0.0/24")]
    ipv4: Option<String>,
    #[schema(example = "2001:db8::/64")]
    ipv6: Option<String>,
    /// How instances get IPv6 addresses: `dhcp`, or `slaac` in a /64, by which they derive them from their MAC
    /// addresses. `dhcp` if omitted.
    #[schema(value_type = Option<String>, example = "dhcp")]
    ipv6_mode: Option<Ipv6Mode>,
    /// Resolvers that DHCP offers, at most 2.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    dns: Vec<Ipv4Addr>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SubnetFilter {
    /// Only subnets of this VPC.
    #[param(value_type = Option<String>)]
    vpc: Option<VpcId>,
    /// Only subnets with this name, at most one for each VPC.
    name: Option<String>,
}

fn read_prefix(field: &str, text: &str) -> Result<IpNet, Problem> {
    let prefix = parse_prefix(text).map_err(|error| Problem::invalid(field, error.to_string()))?;
    if first_host(&prefix).is_none() {
        return Err(Problem::invalid(field, format!("{prefix} is too small for a router and an instance")));
    }
    if !is_unicast(prefix.network()) || !is_unicast(prefix.broadcast()) {
        return Err(Problem::invalid(field, format!("{prefix} is not a range of unicast addresses")));
    }
    Ok(prefix)
}

impl NewSubnet {
    fn checked(self, vpc: VpcId) -> Result<sluice_store::NewSubnet, Problem> {
        check_name("name", &self.name)?;
        let wrong =
            |field, net| Problem::invalid(field, format!("{net} is a prefix of the other address family"));
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
        for (index, dns) in self.dns.iter().enumerate() {
            check_unicast(&format!("dns[{index}]"), *dns)?;
        }
        let (name, ipv6_mode, dns) = (self.name, self.ipv6_mode, self.dns);
        Ok(sluice_store::NewSubnet { name, vpc, ipv4, ipv6, ipv6_mode, dns })
    }
}

#[utoipa::path(post, path = "/v1/vpcs/{vpc}/subnets", tag = "subnets", params(("vpc" = String, Path)),
    request_body = NewSubnet,
    responses((status = 201, body = Subnet),
        (status = 200, body = Subnet, description = "The same object exists already")))]
async fn create_subnet(
    State(api): State<App>,
    Id(vpc): Id<VpcId>,
    Json(body): Json<NewSubnet>,
) -> Result<Response, Problem> {
    let (store, new) = (&api.db.store, body.checked(vpc)?);
    let prefixes = Prefixes { ipv4: new.ipv4.is_some(), ipv6: new.ipv6.is_some() };
    let exists = async || Ok(!store.subnets(Some(vpc), Some(&new.name), FIRST).await?.is_empty());
    let admission = api.admit(NewObjects::Subnet(vpc, prefixes), exists()).await?;
    let created = store.create_subnet(new).await?;
    settle(admission, &created);
    Ok(reply::created::<Subnet>(&api, created))
}

impl Listable for Subnet {
    type Filter = SubnetFilter;
    async fn list(store: &Store, filter: SubnetFilter, page: Page) -> Result<Vec<Self::Stored>, StoreError> {
        store.subnets(filter.vpc, filter.name.as_deref(), page).await
    }
}

impl Deletable for Subnet {}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(resource::list::<Subnet>())
        .routes(resource::get::<Subnet>())
        .routes(resource::delete::<Subnet>())
        .routes(routes!(create_subnet))
}
