//! `sluice NOUN VERB`: the list of nouns. [`resource`] has the verbs that all kinds of objects share; the
//! other modules describe the kinds and have the verbs of one noun alone.

mod addresses;
mod health;
mod internet;
mod meters;
mod migrations;
mod nat_gateways;
mod network_classes;
mod placement;
mod port_forwards;
mod resource;
mod routing;
mod scheduler;
mod security;
mod services;
mod tenancy;
mod unconfirmed;
mod underlay;

pub use underlay::GatewayVerb;

use crate::api::{ApiArgs, WithApi};
use crate::failure::Failure;
use crate::output;
use clap::Subcommand;
use resource::{ReadVerb, Run, Verb};
use serde_json::json;
use sluice_client::{
    Client, Cluster, Eip, Gateway, Host, Instance, Meter, Mount, NatGateway, NetworkClass, Peering,
    PendingRemoval, PortForward, PublicPool, Route, RouteTable, SecurityGroup, SecurityRule, Service, Subnet,
    Tenant, Vpc,
};

#[derive(Subcommand)]
pub enum Noun {
    /// Tenants, which own VPCs
    #[command(alias = "tenant")]
    Tenants(WithApi<Verb<Tenant>>),
    /// Virtual private clouds (VPCs)
    #[command(alias = "vpc")]
    Vpcs(WithApi<Verb<Vpc>>),
    /// Subnets of VPCs
    #[command(alias = "subnet")]
    Subnets(WithApi<Verb<Subnet>>),
    /// Instances: ports of VMs
    #[command(alias = "instance")]
    Instances(WithApi<Verb<Instance>>),
    /// Network classes: what each instance that has one may use of its host's network
    #[command(alias = "network-class")]
    NetworkClasses(WithApi<Verb<NetworkClass>>),
    /// Compute hosts
    #[command(alias = "host")]
    Hosts(WithApi<Verb<Host>>),
    /// Gateway nodes
    Gateways(WithApi<Verb<Gateway>>),
    /// Clusters of gateways
    #[command(alias = "cluster")]
    Clusters(WithApi<Verb<Cluster>>),
    /// Route tables of VPCs
    #[command(alias = "route-table")]
    RouteTables(WithApi<ReadVerb<RouteTable>>),
    /// Routes of VPCs, in addition to those of their subnets and peerings
    #[command(alias = "route")]
    Routes(WithApi<Verb<Route>>),
    /// Peerings: pairs of VPCs that can reach each other
    #[command(alias = "peering")]
    Peerings(WithApi<Verb<Peering>>),
    /// Security groups of VPCs
    #[command(alias = "security-group")]
    SecurityGroups(WithApi<Verb<SecurityGroup>>),
    /// Rules of security groups
    #[command(alias = "security-rule")]
    SecurityRules(WithApi<Verb<SecurityRule>>),
    /// Services: instances among which the flows to one address are spread
    #[command(alias = "service")]
    Services(WithApi<Verb<Service>>),
    /// Mounts: the addresses by which VPCs reach services
    #[command(alias = "mount")]
    Mounts(WithApi<Verb<Mount>>),
    /// Pools of public addresses, which the gateways of a cluster announce
    #[command(alias = "public-pool")]
    PublicPools(WithApi<Verb<PublicPool>>),
    /// EIPs (elastic IPs): public addresses of tenants
    #[command(alias = "eip")]
    Eips(WithApi<Verb<Eip>>),
    /// NAT gateways: public IPv4 addresses that the instances of a VPC share
    #[command(alias = "nat-gateway")]
    NatGateways(WithApi<Verb<NatGateway>>),
    /// Meters: limits of traffic, which EIPs, VPCs and peerings can have and share
    #[command(alias = "meter")]
    Meters(WithApi<Verb<Meter>>),
    /// Port forwards of NAT gateways: ports of a public address that stand for ports of instances
    #[command(alias = "port-forward")]
    PortForwards(WithApi<Verb<PortForward>>),
    /// Placement of VPCs on clusters
    Placement(WithApi<placement::Placement>),
    /// The scheduler, which moves vIPs between gateways as their loads change
    Scheduler(WithApi<scheduler::Scheduler>),
    /// Nodes (gateways and hosts) and the revisions that they have programmed
    #[command(alias = "node")]
    Nodes(WithApi<NodesVerb>),
    /// Anomalies that the health checks of nodes have found, with evidence and likely cause
    Health(health::Health),
    /// Entries that nodes have and the database lost, as after a restored backup
    Unconfirmed(WithApi<unconfirmed::Unconfirmed>),
    /// Deletions that nodes have not acknowledged; what the objects had is held until then
    #[command(alias = "removal")]
    Removals(WithApi<RemovalsVerb>),
    /// Event log: moves, drains, takeovers, key rotations
    #[command(alias = "event")]
    Events(WithApi<EventsVerb>),
}

impl Noun {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Tenants(command) => command.run().await,
            Self::Vpcs(command) => command.run().await,
            Self::Subnets(command) => command.run().await,
            Self::Instances(command) => command.run().await,
            Self::NetworkClasses(command) => command.run().await,
            Self::Hosts(command) => command.run().await,
            Self::Gateways(command) => command.run().await,
            Self::Clusters(command) => command.run().await,
            Self::RouteTables(command) => command.run().await,
            Self::Routes(command) => command.run().await,
            Self::Peerings(command) => command.run().await,
            Self::SecurityGroups(command) => command.run().await,
            Self::SecurityRules(command) => command.run().await,
            Self::Services(command) => command.run().await,
            Self::Mounts(command) => command.run().await,
            Self::PublicPools(command) => command.run().await,
            Self::Eips(command) => command.run().await,
            Self::NatGateways(command) => command.run().await,
            Self::Meters(command) => command.run().await,
            Self::PortForwards(command) => command.run().await,
            Self::Placement(command) => command.run().await,
            Self::Scheduler(command) => command.verb.run(&command.api).await,
            Self::Nodes(command) => command.run().await,
            Self::Health(command) => command.run().await,
            Self::Unconfirmed(command) => command.run().await,
            Self::Removals(command) => command.run().await,
            Self::Events(command) => command.run().await,
        }
    }
}

impl<V: Subcommand + Run> WithApi<V> {
    async fn run(self) -> Result<(), Failure> {
        self.verb.run(&self.api, &self.api.client()?).await
    }
}

/// `sluice nodes VERB`.
#[derive(Subcommand)]
pub enum NodesVerb {
    /// List nodes with the revision that each has programmed
    List,
}

impl Run for NodesVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let columns = ["node", "name", "connected", "acknowledged_revision", "current", "failures"];
        output::list(api.output, &columns, &client.nodes().await?)
    }
}

/// `sluice removals VERB`.
#[derive(Subcommand)]
pub enum RemovalsVerb {
    /// List deletions whose entries some node may still have, with these nodes
    List {
        /// List at most N deletions
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
}

impl Run for RemovalsVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::List { limit } = self;
        let removals = client.removals(limit).await?;
        if api.output != output::Format::Table {
            return output::list(api.output, &[], &removals);
        }
        let row = |removal: &PendingRemoval| {
            let waiting: Vec<_> = removal.waiting.iter().map(|node| node.reason(removal.revision)).collect();
            let PendingRemoval { revision, kind, name, .. } = removal;
            json!({"revision": revision, "kind": kind, "name": name, "waiting": waiting.join("; ")})
        };
        let rows: Vec<_> = removals.iter().map(row).collect();
        output::list(api.output, &["revision", "kind", "name", "waiting"], &rows)
    }
}

/// `sluice events VERB`.
#[derive(Subcommand)]
pub enum EventsVerb {
    /// List the newest events, or those that follow a given event
    List {
        /// Only events about the object with this id
        #[arg(long, value_name = "ID")]
        subject: Option<String>,
        /// List the first events that follow the event with this id
        #[arg(long, value_name = "EVENT")]
        after: Option<u64>,
        /// List at most N events
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
}

impl Run for EventsVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::List { subject, after, limit } = self;
        let events = client.events(subject.as_deref(), after, limit).await?;
        output::list(api.output, &["id", "time_ms", "kind", "subject", "text"], &events)
    }
}
