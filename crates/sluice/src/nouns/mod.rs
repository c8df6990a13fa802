//! `sluice <noun> <verb>`: the objects of the API.

mod routing;
mod tenancy;
mod underlay;

use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use crate::output;
use crate::verbs::Which;
use clap::{Args, Subcommand};
use sluice_client::{Client, Resource};

/// Kinds of objects.
#[derive(Subcommand)]
pub enum Noun {
    /// Owners of VPCs
    #[command(subcommand)]
    Tenants(tenancy::Tenants),
    /// Virtual private clouds
    #[command(subcommand)]
    Vpcs(tenancy::Vpcs),
    /// Prefixes of VPCs
    #[command(subcommand)]
    Subnets(tenancy::Subnets),
    /// VMs' ports
    #[command(subcommand)]
    Instances(tenancy::Instances),
    /// Compute hosts
    #[command(subcommand)]
    Hosts(underlay::Hosts),
    /// Gateway nodes
    #[command(subcommand)]
    Gateways(underlay::Gateways),
    /// Clusters of gateways
    #[command(subcommand)]
    Clusters(underlay::Clusters),
    /// Route tables of VPCs
    #[command(subcommand)]
    RouteTables(routing::RouteTables),
    /// Routes beside the subnets' own
    #[command(subcommand)]
    Routes(routing::Routes),
    /// Pairs of VPCs that reach each other
    #[command(subcommand)]
    Peerings(routing::Peerings),
    /// How far every node has come
    #[command(subcommand)]
    Nodes(Nodes),
}

impl Noun {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        match self {
            Self::Tenants(verb) => verb.run(api).await,
            Self::Vpcs(verb) => verb.run(api).await,
            Self::Subnets(verb) => verb.run(api).await,
            Self::Instances(verb) => verb.run(api).await,
            Self::Hosts(verb) => verb.run(api).await,
            Self::Gateways(verb) => verb.run(api).await,
            Self::Clusters(verb) => verb.run(api).await,
            Self::RouteTables(verb) => verb.run(api).await,
            Self::Routes(verb) => verb.run(api).await,
            Self::Peerings(verb) => verb.run(api).await,
            Self::Nodes(Nodes::List) => {
                let columns = ["node", "name", "connected", "acked", "current", "failures"];
                output::list(api.output, &columns, &api.client()?.nodes().await?)
            }
        }
    }
}

/// The filter for a VPC, if one is given.
async fn in_vpc(client: &Client, vpc: Option<&String>) -> Result<Option<String>, Failure> {
    match vpc {
        Some(vpc) => Ok(Some(api::vpc_id(client, vpc).await?.to_string())),
        None => Ok(None),
    }
}

/// The object that a name or id means, in a VPC if one is given.
async fn find<T: Resource>(client: &Client, which: &Which, vpc: Option<&String>) -> Result<T, Failure> {
    let vpc = in_vpc(client, vpc).await?;
    let within: Vec<(&str, &str)> = vpc.as_deref().map(|vpc| ("vpc", vpc)).into_iter().collect();
    Ok(client.find(&which.which, &within).await?)
}

/// Which VPC names are meant in.
#[derive(Args)]
pub struct InVpc {
    /// VPC, or TENANT/VPC, names or ids
    #[arg(long)]
    vpc: Option<String>,
}

/// `sluice nodes`.
#[derive(Subcommand)]
pub enum Nodes {
    /// List nodes with the revision that each has written
    List,
}
