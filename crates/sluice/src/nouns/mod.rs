//! `sluice <noun> <verb>`: the objects of the API.

mod placement;
mod routing;
mod scheduler;
mod tenancy;
mod underlay;

pub use underlay::GatewayVerb;

use crate::api::{self, OfApi};
use crate::failure::Failure;
use crate::output;
use crate::verbs::Which;
use clap::{Args, Subcommand};
use sluice_client::{Client, Resource};

/// Kinds of objects.
#[derive(Subcommand)]
pub enum Noun {
    /// Owners of VPCs
    #[command(alias = "tenant")]
    Tenants(OfApi<tenancy::Tenants>),
    /// Virtual private clouds
    #[command(alias = "vpc")]
    Vpcs(OfApi<tenancy::Vpcs>),
    /// Prefixes of VPCs
    #[command(alias = "subnet")]
    Subnets(OfApi<tenancy::Subnets>),
    /// VMs' ports
    #[command(alias = "instance")]
    Instances(OfApi<tenancy::Instances>),
    /// Compute hosts
    #[command(alias = "host")]
    Hosts(OfApi<underlay::Hosts>),
    /// Gateway nodes
    Gateways(OfApi<underlay::Gateways>),
    /// Clusters of gateways
    #[command(alias = "cluster")]
    Clusters(OfApi<underlay::Clusters>),
    /// Route tables of VPCs
    #[command(alias = "route-table")]
    RouteTables(OfApi<routing::RouteTables>),
    /// Routes beside the subnets' own
    #[command(alias = "route")]
    Routes(OfApi<routing::Routes>),
    /// Pairs of VPCs that reach each other
    #[command(alias = "peering")]
    Peerings(OfApi<routing::Peerings>),
    /// Which cluster carries which VPC
    Placement(OfApi<placement::Placement>),
    /// Which gateway has which vIP, as loads change
    Scheduler(OfApi<scheduler::Scheduler>),
    /// How far every node has come
    #[command(alias = "node")]
    Nodes(OfApi<Nodes>),
    /// What happened: moves, drains, takeovers, keys
    #[command(alias = "event")]
    Events(OfApi<Events>),
}

impl Noun {
    /// Runs the verb.
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Tenants(it) => it.verb.run(&it.api).await,
            Self::Vpcs(it) => it.verb.run(&it.api).await,
            Self::Subnets(it) => it.verb.run(&it.api).await,
            Self::Instances(it) => it.verb.run(&it.api).await,
            Self::Hosts(it) => it.verb.run(&it.api).await,
            Self::Gateways(it) => it.verb.run(&it.api).await,
            Self::Clusters(it) => it.verb.run(&it.api).await,
            Self::RouteTables(it) => it.verb.run(&it.api).await,
            Self::Routes(it) => it.verb.run(&it.api).await,
            Self::Peerings(it) => it.verb.run(&it.api).await,
            Self::Placement(it) => it.verb.run(&it.api).await,
            Self::Scheduler(it) => it.verb.run(&it.api).await,
            Self::Nodes(OfApi { api, verb: Nodes::List }) => {
                let columns = ["node", "name", "connected", "acked", "current", "failures"];
                output::list(api.output, &columns, &api.client()?.nodes().await?)
            }
            Self::Events(OfApi { api, verb: Events::List { subject, after, limit } }) => {
                let events = api.client()?.events(subject.as_deref(), after, limit).await?;
                output::list(api.output, &["id", "time_ms", "kind", "subject", "text"], &events)
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

/// `sluice events`.
#[derive(Subcommand)]
pub enum Events {
    /// List the newest events, or those behind one
    List {
        /// Only those about the object of this id
        #[arg(long, value_name = "ID")]
        subject: Option<String>,
        /// The first ones behind the event of this id
        #[arg(long, value_name = "EVENT")]
        after: Option<u64>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
}
