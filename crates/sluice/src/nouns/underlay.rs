//! What the operator has: hosts, gateways, clusters.

use super::find;
use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output;
use crate::verbs::{self, Enrol, Expect, Limit, Wait, Which};
use clap::{ArgGroup, Subcommand};
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
                let columns = ["id", "name", "cluster", "vtep4", "vtep6", "programmed"];
                verbs::list::<Gateway>(api, &columns, &[("cluster", cluster)], limit).await
            }
            Self::Show(which) => output::one(api.output, &find::<Gateway>(&client, &which, None).await?),
            Self::Create { name, cluster, vtep4, vtep6, wait } => {
                let cluster = client.id_of::<Cluster>(&cluster, &[]).await?;
                verbs::create(api, &client, (), &NewGateway { name, cluster, vtep4, vtep6 }, wait).await
            }
            Self::Enrol(args) => verbs::enrol::<Gateway>(api, args).await,
            Self::Delete { which, expect } => {
                verbs::delete::<Gateway>(&client, &find(&client, &which, None).await?, expect).await
            }
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
        #[command(flatten)]
        wait: Wait,
    },
    /// Replace the vIPs
    Update {
        #[command(flatten)]
        which: Which,
        /// New vIP; give all of them
        #[arg(long = "vip", required = true)]
        vips: Vec<IpAddr>,
        #[command(flatten)]
        expect: Expect,
    },
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
                verbs::list::<Cluster>(api, &["id", "name", "vips", "programmed"], &[], limit).await
            }
            Self::Show(which) => output::one(api.output, &find::<Cluster>(&client, &which, None).await?),
            Self::Create { name, vips, wait } => {
                verbs::create(api, &client, (), &NewCluster { name, vips }, wait).await
            }
            Self::Update { which, vips, expect } => {
                let id = client.id_of::<Cluster>(&which.which, &[]).await?;
                let new = client.update::<Cluster>(id, &json!({"vips": vips}), expect.if_revision).await?;
                output::one(api.output, &new)
            }
            Self::Delete { which, expect } => {
                verbs::delete::<Cluster>(&client, &find(&client, &which, None).await?, expect).await
            }
        }
    }
}
