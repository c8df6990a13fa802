//! What the operator has: hosts, gateways, clusters.

use super::find;
use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::verbs::{self, Enrol, Expect, Limit, Wait, Which};
use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;
use sluice_client::{Cluster, Gateway, Host, NewCluster, NewGateway, NewHost};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `sluice hosts`.
#[derive(Subcommand)]
pub enum Hosts {
    /// List hosts
    List(Limit),
    /// Show one
    Show(Which),
    /// Create one
    Create {
        /// Name, unique in the cloud
        name: String,
        /// Underlay address of its tunnel endpoint
        #[arg(long)]
        vtep: IpAddr,
        /// A foreign VXLAN endpoint, without `sluice vswitch`
        #[arg(long)]
        foreign: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Write what the host's agent needs to join
    Enrol(Enrol),
    /// Delete one that has no instances
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Hosts {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List(limit) => {
                verbs::list::<Host>(api, &["id", "name", "vtep", "agent", "programmed"], &[], limit).await
            }
            Self::Show(which) => output::one(api.output, &find::<Host>(&client, &which, None).await?),
            Self::Create { name, vtep, foreign, wait } => {
                let body = NewHost { name, vtep, agent: !foreign };
                verbs::create(api, &client, (), &body, wait).await
            }
            Self::Enrol(args) => verbs::enrol::<Host>(api, args).await,
            Self::Delete { which, expect } => {
                verbs::delete::<Host>(&client, &find(&client, &which, None).await?, expect).await
            }
        }
    }
}

/// `sluice gateways`.
#[derive(Subcommand)]
pub enum Gateways {
    /// List gateways
    List {
        /// Only this cluster's
        #[arg(long)]
        cluster: Option<String>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show one
    Show(Which),
    /// Create one, with an underlay address of each family or of one
    #[command(group(ArgGroup::new("vtep").required(true).multiple(true)))]
    Create {
        /// Name, unique in the cloud
        name: String,
        /// Cluster whose vIPs it serves
        #[arg(long)]
        cluster: String,
        /// Underlay IPv4 address
        #[arg(long, group = "vtep")]
        vtep4: Option<Ipv4Addr>,
        /// Underlay IPv6 address
        #[arg(long, group = "vtep")]
        vtep6: Option<Ipv6Addr>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Write what the gateway's agent needs to join
    Enrol(Enrol),
    /// Give its vIPs to the others of its cluster; what still reaches it is forwarded
    Drain(DrainArgs),
    /// Give it its share of the vIPs again
    Undrain(DrainArgs),
    /// Give it to another cluster, without losing a packet
    Move(MoveArgs),
    /// Delete one
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Gateways {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List { cluster, limit } => {
                let cluster = match cluster {
                    Some(cluster) => Some(client.id_of::<Cluster>(&cluster, &[]).await?.to_string()),
                    None => None,
                };
                let columns =
                    ["id", "name", "cluster", "vtep4", "vtep6", "draining", "vips", "state", "programmed"];
                verbs::list::<Gateway>(api, &columns, &[("cluster", cluster)], limit).await
            }
            Self::Show(which) => output::one(api.output, &find::<Gateway>(&client, &which, None).await?),
            Self::Create { name, cluster, vtep4, vtep6, wait } => {
                let cluster = client.id_of::<Cluster>(&cluster, &[]).await?;
                verbs::create(api, &client, (), &NewGateway { name, cluster, vtep4, vtep6 }, wait).await
            }
            Self::Enrol(args) => verbs::enrol::<Gateway>(api, args).await,
            Self::Drain(args) => args.run(api, true).await,
            Self::Undrain(args) => args.run(api, false).await,
            Self::Move(args) => args.run(api).await,
            Self::Delete { which, expect } => {
                verbs::delete::<Gateway>(&client, &find(&client, &which, None).await?, expect).await
            }
        }
    }
}

/// Which gateway is drained, or the contrary.
#[derive(Args)]
pub struct DrainArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    expect: Expect,
    #[command(flatten)]
    wait: Wait,
}

impl DrainArgs {
    async fn run(self, api: &ApiArgs, draining: bool) -> Result<(), Failure> {
        let client = api.client()?;
        let id = client.id_of::<Gateway>(&self.which.which, &[]).await?;
        let gateway = client.drain(id, draining, self.expect.if_revision).await?;
        // One that is dead owns nothing either.
        let gave_away = |gateway: &Gateway| matches!(gateway.state.as_str(), "drained" | "failed");
        let takes_part = |gateway: &Gateway| !matches!(gateway.state.as_str(), "drained" | "draining");
        let there = |gateway: &Gateway| if draining { gave_away(gateway) } else { takes_part(gateway) };
        let done = |gateway: &Gateway| gateway.draining == draining && there(gateway);
        verbs::settle(api, &client, gateway, self.wait, done).await
    }
}

/// Which gateway goes where.
#[derive(Args)]
pub struct MoveArgs {
    #[command(flatten)]
    which: Which,
    /// The cluster that it goes to; its own: it stays after all
    #[arg(long)]
    cluster: String,
    /// For the event log
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    expect: Expect,
    #[command(flatten)]
    wait: Wait,
}

impl MoveArgs {
    async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        let id = client.id_of::<Gateway>(&self.which.which, &[]).await?;
        let cluster = client.id_of::<Cluster>(&self.cluster, &[]).await?;
        let expected = self.expect.if_revision;
        let gateway = client.move_gateway(id, cluster, self.reason.as_deref(), expected).await?;
        let there = |gateway: &Gateway| gateway.moving_to.or(gateway.moving_from).is_none();
        verbs::settle(api, &client, gateway, self.wait, there).await
    }
}

/// `sluice gateway VERB`: without a verb, `sluice gateway` runs one.
#[derive(Subcommand)]
pub enum GatewayVerb {
    /// Give a gateway's vIPs to the others of its cluster; as `sluice gateways drain`
    Drain {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        args: DrainArgs,
    },
    /// Give a gateway its share of the vIPs again; as `sluice gateways undrain`
    Undrain {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        args: DrainArgs,
    },
    /// Give a gateway to another cluster, without losing a packet; as `sluice gateways move`
    Move {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        args: MoveArgs,
    },
}

impl GatewayVerb {
    /// Runs the verb.
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Drain { api, args } => args.run(&api, true).await,
            Self::Undrain { api, args } => args.run(&api, false).await,
            Self::Move { api, args } => args.run(&api).await,
        }
    }
}

/// `sluice clusters`.
#[derive(Subcommand)]
pub enum Clusters {
    /// List clusters
    List(Limit),
    /// Show one
    Show(Which),
    /// Create one
    Create {
        /// Name, unique in the cloud
        name: String,
        /// Underlay address that hosts send to; give one for each share of the traffic
        #[arg(long = "vip", required = true)]
        vips: Vec<IpAddr>,
        /// Milliseconds between two hellos of a gateway to the others, 2 to 250; 4 if left out
        #[arg(long)]
        hello_ms: Option<u16>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Replace the vIPs, of which those that stay keep their place, or set the hello interval
    Update {
        #[command(flatten)]
        which: Which,
        /// New vIP; give all of them
        #[arg(long = "vip", required_unless_present = "hello_ms")]
        vips: Vec<IpAddr>,
        /// Milliseconds between two hellos of a gateway to the others, 2 to 250
        #[arg(long, conflicts_with = "vips")]
        hello_ms: Option<u16>,
        #[command(flatten)]
        expect: Expect,
        #[command(flatten)]
        wait: Wait,
    },
    /// Renew its key at once, and let all others end within minutes
    RotateKey(Which),
    /// Delete one that has neither gateways nor VPCs
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Clusters {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List(limit) => {
                if api.output != Format::Table {
                    return verbs::list::<Cluster>(api, &[], &[], limit).await;
                }
                let name: Vec<_> = limit.name.as_deref().map(|name| ("name", name)).into_iter().collect();
                let clusters = client.list::<Cluster>(&name, limit.limit).await?;
                let row = |it: &Cluster| {
                    let Cluster { id, name, programmed, .. } = it;
                    json!({"id": id, "name": name, "vips": it.addresses(), "programmed": programmed})
                };
                let rows: Vec<_> = clusters.iter().map(row).collect();
                output::list(api.output, &["id", "name", "vips", "programmed"], &rows)
            }
            Self::Show(which) => output::one(api.output, &find::<Cluster>(&client, &which, None).await?),
            Self::Create { name, vips, hello_ms, wait } => {
                verbs::create(api, &client, (), &NewCluster { name, vips, hello_ms }, wait).await
            }
            Self::Update { which, vips, hello_ms, expect, wait } => {
                let id = client.id_of::<Cluster>(&which.which, &[]).await?;
                let vips = Some(vips).filter(|vips| !vips.is_empty());
                let patch = json!({"vips": vips, "hello_ms": hello_ms});
                let new = client.update::<Cluster>(id, &patch, expect.if_revision).await?;
                verbs::settle(api, &client, new, wait, |_| true).await
            }
            Self::RotateKey(which) => {
                let id = client.id_of::<Cluster>(&which.which, &[]).await?;
                output::one(api.output, &client.rotate_key(id).await?)
            }
            Self::Delete { which, expect } => {
                verbs::delete::<Cluster>(&client, &find(&client, &which, None).await?, expect).await
            }
        }
    }
}
