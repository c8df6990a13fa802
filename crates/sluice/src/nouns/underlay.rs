//! Arguments and verbs of what the operator owns: hosts, gateways, clusters of gateways.

use super::resource::{
    ByName, Creatable, Create, Enroll, Filter, Help, Kind, NameOrId, NoPreview, Parent, Run, Select, Target,
    Wait, optional_id,
};
use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};
use sluice_client::{Client, Cluster, Gateway, Host, NewCluster, NewGateway, NewHost};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl Kind for Host {
    const HELP: Help = Help { list: "List hosts", show: "Show one host" };
    const COLUMNS: &'static [&'static str] = &["id", "name", "vtep", "agent", "programmed"];
    type Selector = NameOrId;
    type Filters = ByName;
}

impl Creatable for Host {
    const CREATE_HELP: &'static str = "Create a host";
    const DELETE_HELP: &'static str = "Delete a host that has no instances";
    type New = NewHostArgs;
    type Verbs = HostVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct NewHostArgs {
    /// Name, unique in the cloud
    name: String,
    /// Underlay address of the host's VXLAN tunnel endpoint
    #[arg(long, value_name = "ADDRESS")]
    vtep: IpAddr,
    /// The host is a foreign VXLAN endpoint, which does not run `sluice vswitch`
    #[arg(long)]
    foreign: bool,
}

impl Create for NewHostArgs {
    type Object = Host;
    type Body = NewHost;
    async fn request(self, _: &Client) -> Result<(Parent<Self>, NewHost), Failure> {
        Ok(((), NewHost { name: self.name, vtep: self.vtep, agent: !self.foreign }))
    }
}

#[derive(Subcommand)]
pub enum HostVerb {
    /// Write the enrollment bundle with which the host's agent joins the cloud
    Enroll(Enroll),
}

impl Run for HostVerb {
    async fn run(self, _: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Enroll(args) = self;
        args.run::<Host>(client).await
    }
}

impl Kind for Gateway {
    const HELP: Help = Help { list: "List gateways", show: "Show one gateway" };
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "cluster", "vtep4", "vtep6", "draining", "vips", "state", "programmed"];
    type Selector = NameOrId;
    type Filters = ByCluster;
}

impl Creatable for Gateway {
    const CREATE_HELP: &'static str = "Create a gateway with an IPv4 underlay address, an IPv6 one or both";
    const DELETE_HELP: &'static str = "Delete a gateway";
    type New = NewGatewayArgs;
    type Verbs = GatewayOwnVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct ByCluster {
    /// Only those of this cluster: name or id
    #[arg(long)]
    cluster: Option<String>,
    #[command(flatten)]
    name: ByName,
}

impl Filter for ByCluster {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = self.name.query(client).await?;
        let cluster = optional_id::<Cluster>(client, self.cluster.as_deref()).await?;
        query.extend(cluster.map(|cluster| ("cluster", cluster.to_string())));
        Ok(query)
    }
}

#[derive(Args)]
#[command(group(ArgGroup::new("vtep").required(true).multiple(true)))]
pub struct NewGatewayArgs {
    /// Name, unique in the cloud
    name: String,
    /// Cluster that the gateway joins: name or id
    #[arg(long)]
    cluster: String,
    /// Underlay IPv4 address of the gateway's VXLAN tunnel endpoint
    #[arg(long, value_name = "ADDRESS", group = "vtep")]
    vtep4: Option<Ipv4Addr>,
    /// Underlay IPv6 address of the gateway's VXLAN tunnel endpoint
    #[arg(long, value_name = "ADDRESS", group = "vtep")]
    vtep6: Option<Ipv6Addr>,
}

impl Create for NewGatewayArgs {
    type Object = Gateway;
    type Body = NewGateway;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewGateway), Failure> {
        let cluster = client.id_of::<Cluster>(&self.cluster, &[]).await?;
        Ok(((), NewGateway { name: self.name, cluster, vtep4: self.vtep4, vtep6: self.vtep6 }))
    }
}

#[derive(Subcommand)]
pub enum GatewayOwnVerb {
    /// Write the enrollment bundle with which the gateway's agent joins the cloud
    Enroll(Enroll),
    /// Move all vIPs of a gateway to the others of its cluster; it forwards packets that still arrive
    Drain(DrainArgs),
    /// Let a drained gateway own its share of the vIPs again
    Undrain(DrainArgs),
    /// Move a gateway to another cluster, without packet loss
    Move(MoveArgs),
}

impl Run for GatewayOwnVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Enroll(args) => args.run::<Gateway>(client).await,
            Self::Drain(args) => args.run(api, client, true).await,
            Self::Undrain(args) => args.run(api, client, false).await,
            Self::Move(args) => args.run(api, client).await,
        }
    }
}

/// `sluice gateway VERB`. Without a verb, `sluice gateway` runs a gateway.
#[derive(Subcommand)]
pub enum GatewayVerb {
    /// Move all vIPs of a gateway to the others of its cluster (same as `sluice gateways drain`)
    Drain {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        args: DrainArgs,
    },
    /// Let a drained gateway own its share of the vIPs again (same as `sluice gateways undrain`)
    Undrain {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        args: DrainArgs,
    },
    /// Move a gateway to another cluster, without packet loss (same as `sluice gateways move`)
    Move {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        args: MoveArgs,
    },
}

impl GatewayVerb {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Drain { api, args } => args.run(&api, &api.client()?, true).await,
            Self::Undrain { api, args } => args.run(&api, &api.client()?, false).await,
            Self::Move { api, args } => args.run(&api, &api.client()?).await,
        }
    }
}

/// Arguments of `drain` and `undrain`.
#[derive(Args)]
pub struct DrainArgs {
    #[command(flatten)]
    target: Target<Gateway>,
    #[command(flatten)]
    wait: Wait,
}

impl DrainArgs {
    async fn run(self, api: &ApiArgs, client: &Client, draining: bool) -> Result<(), Failure> {
        let id = self.target.id(client).await?;
        let gateway = client.drain(id, draining, self.target.expected()).await?;
        let is_done = |gateway: &Gateway| {
            let state = gateway.state.as_str();
            let settled = match draining {
                // A gateway that failed owns no vIP either.
                true => matches!(state, "drained" | "failed"),
                false => !matches!(state, "drained" | "draining"),
            };
            gateway.draining == draining && settled
        };
        self.wait.print_when(api, client, gateway, is_done).await
    }
}

/// Arguments of a gateway's `move`.
#[derive(Args)]
pub struct MoveArgs {
    #[command(flatten)]
    target: Target<Gateway>,
    /// Cluster to move to: name or id; the gateway's own cluster cancels a move that has not joined the other
    /// yet
    #[arg(long, value_name = "CLUSTER", alias = "cluster")]
    to: String,
    /// Reason for the move, shown in the event log
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    wait: Wait,
}

impl MoveArgs {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let id = self.target.id(client).await?;
        let cluster = client.id_of::<Cluster>(&self.to, &[]).await?;
        let reason = self.reason.as_deref();
        let gateway = client.move_gateway(id, cluster, reason, self.target.expected()).await?;
        let has_moved = |gateway: &Gateway| gateway.moving_to.or(gateway.moving_from).is_none();
        self.wait.print_when(api, client, gateway, has_moved).await
    }
}

impl Kind for Cluster {
    const HELP: Help = Help { list: "List clusters", show: "Show one cluster" };
    const COLUMNS: &'static [&'static str] = &["id", "name", "vips", "programmed"];
    type Selector = NameOrId;
    type Filters = ByName;

    fn table_row(&self) -> Value {
        let Self { id, name, programmed, .. } = self;
        json!({"id": id, "name": name, "vips": self.addresses(), "programmed": programmed})
    }
}

impl Creatable for Cluster {
    const CREATE_HELP: &'static str = "Create a cluster of gateways";
    const DELETE_HELP: &'static str = "Delete a cluster that has neither gateways nor VPCs";
    type New = NewClusterArgs;
    type Verbs = ClusterVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct NewClusterArgs {
    /// Name, unique in the cloud
    name: String,
    /// vIP: an underlay address that hosts send to; repeat it for each vIP, at most 63 of each family
    #[arg(long = "vip", value_name = "ADDRESS", required = true)]
    vips: Vec<IpAddr>,
    /// Interval between two hellos of a gateway, in milliseconds, 2 to 250 [default: 4]
    #[arg(long, value_name = "MS")]
    hello_interval_ms: Option<u16>,
}

impl Create for NewClusterArgs {
    type Object = Cluster;
    type Body = NewCluster;
    async fn request(self, _: &Client) -> Result<(Parent<Self>, NewCluster), Failure> {
        let Self { name, vips, hello_interval_ms } = self;
        Ok(((), NewCluster { name, vips, hello_interval_ms }))
    }
}

#[derive(Subcommand)]
pub enum ClusterVerb {
    /// Replace the vIPs of a cluster, or change its hello interval
    Update {
        #[command(flatten)]
        target: Target<Cluster>,
        /// New vIP; give the complete list; a vIP that stays keeps its slot and MAC address
        #[arg(long = "vip", value_name = "ADDRESS", required_unless_present = "hello_interval_ms")]
        vips: Vec<IpAddr>,
        /// Interval between two hellos of a gateway, in milliseconds, 2 to 250
        #[arg(long, value_name = "MS", conflicts_with = "vips")]
        hello_interval_ms: Option<u16>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Replace the key of a cluster now; the previous keys expire within minutes
    RotateKey(NameOrId),
}

impl Run for ClusterVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Update { target, vips, hello_interval_ms, wait } => {
                let vips = Some(vips).filter(|vips| !vips.is_empty());
                let patch = json!({"vips": vips, "hello_interval_ms": hello_interval_ms});
                let cluster = target.update(client, &patch).await?;
                wait.print_when(api, client, cluster, |_| true).await
            }
            Self::RotateKey(args) => {
                let cluster: Cluster = args.find(client).await?;
                output::one(api.output, &client.rotate_key(cluster.id).await?)
            }
        }
    }
}
