//! `sluice unconfirmed`: entries that nodes have and the database lost, because it went back to an earlier state. This
//! file changes with `/v1/unconfirmed` of the API.

use super::resource::Run;
use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};
use clap::Subcommand;
use sluice_client::{Client, UnconfirmedSelection};
use sluice_types::{InstanceId, SecurityGroupId, Vni};
use std::net::IpAddr;

/// `sluice unconfirmed VERB`.
#[derive(Subcommand)]
pub enum Unconfirmed {
    /// List the entries that nodes have and the database does not
    List,
    /// Make an instance an object again, with its id, MAC, addresses and host; its VPC and subnet must exist
    Adopt {
        /// Id of the instance
        #[arg(value_name = "INSTANCE", required_unless_present = "all")]
        instance: Option<InstanceId>,
        /// Name of the instance, if not the one that it has on its host
        #[arg(long, conflicts_with = "all")]
        name: Option<String>,
        /// Adopt all listed instances
        #[arg(long, conflicts_with = "instance")]
        all: bool,
        /// Id of a security group of the instance; can be given up to 5 times [default: the group `default`]
        #[arg(long, value_name = "ID", conflicts_with = "no_security_groups")]
        security_group: Vec<SecurityGroupId>,
        /// The instance has no security groups: its port is not filtered
        #[arg(long)]
        no_security_groups: bool,
    },
    /// Have the nodes remove entries: of an instance, of a network, of an address in it, or of a host
    Remove {
        /// Id of an instance
        #[arg(long, value_name = "INSTANCE", conflicts_with_all = ["vni", "address"])]
        instance: Option<InstanceId>,
        /// VNI of a network; without --address, all its entries
        #[arg(long, value_name = "VNI", required_unless_present_any = ["instance", "address"])]
        vni: Option<Vni>,
        /// Address of an instance in the network, or without --vni the VTEP of a host
        #[arg(long, value_name = "ADDRESS")]
        address: Option<IpAddr>,
    },
}

impl Run for Unconfirmed {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::List => list(api, client).await,
            Self::Adopt { instance, name, all: _, security_group: groups, no_security_groups } => {
                let groups = (no_security_groups || !groups.is_empty()).then_some(groups.as_slice());
                let ids = match instance {
                    Some(id) => vec![id],
                    None => {
                        client.unconfirmed().await?.items.into_iter().filter_map(|e| e.instance).collect()
                    }
                };
                let mut adopted = Vec::new();
                for id in ids {
                    adopted.push(client.adopt_unconfirmed(id, name.as_deref(), groups).await?);
                }
                output::list(api.output, &["id", "name", "vpc", "host", "ipv4", "ipv6", "mac"], &adopted)
            }
            Self::Remove { instance, vni, address } => {
                let selection = UnconfirmedSelection { instance, vni, address };
                output::one(api.output, &client.remove_unconfirmed(&selection).await?)
            }
        }
    }
}

async fn list(api: &ApiArgs, client: &Client) -> Result<(), Failure> {
    let list = client.unconfirmed().await?;
    if api.output != Format::Table {
        return output::one(api.output, &list);
    }
    let columns = ["kind", "vni", "instance", "name", "addresses", "prefix", "mac", "nodes"];
    output::list(api.output, &columns, &list.items)?;
    let all: u64 = list.totals.values().sum();
    output::print(&format!("\n{all} entries on {} nodes\n", list.totals.len()))
}
