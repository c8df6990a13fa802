//! The decoders of all bodies and queries, without their handlers, so that a fuzzer can call them. This file
//! changes when an operation gets another body or query.

use super::problem::Problem;
use super::request::{ListQuery, page, parse, parse_query};
use super::{
    clusters, eips, events, gateways, health, hosts, instances, meters, migrations, mounts, nat_gateways,
    network_classes, peerings, placement, port_forwards, public_pools, removals,
};
use super::{
    route_tables, routes, security_groups, security_rules, services, subnets, tenants, unconfirmed, vpcs,
};
use axum::http::Uri;
use serde::de::DeserializeOwned;
use sluice_types::{SchedulerPatch, VpcId};

/// The decoder of one kind of request body or query string.
#[derive(Clone, Copy, Debug)]
pub struct RequestDecoder {
    /// Name of the decoded structure.
    pub name: &'static str,
    /// Decodes the bytes as the handler would, and drops the result.
    pub decode: fn(&[u8]) -> Result<(), Refusal>,
}

/// The answer to a request that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status of the answer.
    pub status: u16,
    /// Description of the fault for the caller.
    pub detail: String,
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { status: problem.status(), detail: problem.detail().to_owned() }
    }
}

fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<(), Refusal> {
    parse::<T>(bytes)?;
    Ok(())
}

fn bulk(bytes: &[u8]) -> Result<(), Refusal> {
    instances::parse_bulk(bytes)?;
    Ok(())
}

/// The URI with this query string. An HTTP server accepts no other bytes in it than [`Uri`] does.
fn uri(bytes: &[u8]) -> Result<Uri, Problem> {
    let query = String::from_utf8_lossy(bytes);
    format!("/?{query}").parse().map_err(|_| Problem::bad_request("query", "the URI is invalid"))
}

fn query<T: DeserializeOwned>(bytes: &[u8]) -> Result<(), Refusal> {
    parse_query::<T>(&uri(bytes)?)?;
    Ok(())
}

fn list<T: DeserializeOwned>(bytes: &[u8]) -> Result<(), Refusal> {
    let ListQuery::<T> { limit, cursor, .. } = ListQuery::parse(&uri(bytes)?)?;
    page(limit, cursor.as_deref(), VpcId::get)?;
    Ok(())
}

macro_rules! decoders {
    ($($decode:ident $structure:path;)*) => {
        &[$(RequestDecoder { name: stringify!($structure), decode: $decode::<$structure> },)*
            RequestDecoder { name: "instances::NewInstances", decode: bulk }]
    };
}

/// All decoders.
pub const REQUEST_DECODERS: &[RequestDecoder] = decoders! {
    body tenants::TenantBody;
    list tenants::TenantFilter;
    body clusters::NewCluster;
    body clusters::ClusterPatch;
    list clusters::ClusterFilter;
    body gateways::NewGateway;
    body gateways::MoveGateway;
    list gateways::GatewayFilter;
    body hosts::NewHost;
    list hosts::HostFilter;
    body vpcs::NewVpc;
    body vpcs::VpcPatch;
    list vpcs::VpcFilter;
    body subnets::NewSubnet;
    list subnets::SubnetFilter;
    body instances::NewInstance;
    body instances::InstancePatch;
    list instances::InstanceFilter;
    body network_classes::NewNetworkClass;
    body network_classes::NetworkClassPatch;
    list network_classes::NetworkClassFilter;
    body migrations::NewMigration;
    list route_tables::RouteTableFilter;
    body routes::NewRoute;
    list routes::RouteFilter;
    body peerings::NewPeering;
    body peerings::PeeringPatch;
    list peerings::PeeringFilter;
    body security_groups::NewSecurityGroup;
    body security_groups::SecurityGroupPatch;
    list security_groups::SecurityGroupFilter;
    body security_rules::NewSecurityRule;
    list security_rules::SecurityRuleFilter;
    body services::NewService;
    body services::ServicePatch;
    list services::ServiceFilter;
    body services::NewServiceMember;
    body services::ServiceMemberPatch;
    body mounts::NewMount;
    list mounts::MountFilter;
    body public_pools::NewPublicPool;
    body public_pools::PublicPoolPatch;
    list public_pools::PublicPoolFilter;
    body eips::NewEip;
    body eips::EipPatch;
    list eips::EipFilter;
    body nat_gateways::NewNatGateway;
    body nat_gateways::NatGatewayPatch;
    list nat_gateways::NatGatewayFilter;
    body meters::NewMeter;
    body meters::MeterPatch;
    list meters::MeterFilter;
    body port_forwards::NewPortForward;
    list port_forwards::PortForwardFilter;
    query events::EventQuery;
    query health::HealthQuery;
    query removals::RemovalWait;
    body sluice_types::HealthPolicyPatch;
    body sluice_types::PlacementSettingsPatch;
    body placement::NewPlan;
    body placement::ApplyPlan;
    body unconfirmed::RemoveUnconfirmed;
    body unconfirmed::AdoptUnconfirmed;
    body SchedulerPatch;
};
