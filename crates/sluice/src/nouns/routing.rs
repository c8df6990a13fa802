//! Route tables, routes, peerings.

use super::{InVpc, find, in_vpc};
use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use crate::output;
use crate::verbs::{self, Expect, Limit, Wait, Which};
use clap::{ArgGroup, Args, Subcommand};
use sluice_client::{Client, NewPeering, NewRoute, Peering, Route, RouteTable, RouteTarget};
use sluice_types::{IpNet, RouteId, RouteTableId};

/// A route table, by itself or by its VPC.
#[derive(Args)]
#[command(group(ArgGroup::new("where").required(true).args(["table", "vpc"])))]
pub struct InTable {
    /// Id of the route table
    #[arg(long)]
    table: Option<RouteTableId>,
    /// VPC, or TENANT/VPC, whose main table is meant
    #[arg(long)]
    vpc: Option<String>,
}

impl InTable {
    async fn find(&self, client: &Client) -> Result<RouteTable, Failure> {
        if let Some(table) = self.table {
            return Ok(client.get(table).await?);
        }
        let vpc = in_vpc(client, self.vpc.as_ref()).await?.unwrap_or_default();
        Ok(client.find("main", &[("vpc", &vpc)]).await?)
    }
}

/// `sluice route-tables`.
#[derive(Subcommand)]
pub enum RouteTables {
    /// List route tables; each VPC has one, `main`
    List {
        #[command(flatten)]
        within: InVpc,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show one
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        within: InVpc,
    },
}

impl RouteTables {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List { within, limit } => {
                let vpc = in_vpc(&client, within.vpc.as_ref()).await?;
                verbs::list::<RouteTable>(api, &["id", "name", "vpc", "programmed"], &[("vpc", vpc)], limit)
                    .await
            }
            Self::Show { which, within } => {
                output::one(api.output, &find::<RouteTable>(&client, &which, within.vpc.as_ref()).await?)
            }
        }
    }
}

/// `sluice routes`.
#[derive(Subcommand)]
pub enum Routes {
    /// List the routes of a table
    List {
        #[command(flatten)]
        within: InTable,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show one
    Show {
        /// Id
        id: RouteId,
    },
    /// Create one
    #[command(group(ArgGroup::new("target").required(true)))]
    Create {
        /// Which addresses
        destination: IpNet,
        #[command(flatten)]
        within: InTable,
        /// To the other VPC of this peering
        #[arg(long, group = "target")]
        peering: Option<String>,
        /// Nowhere; counted as route_drop
        #[arg(long, group = "target")]
        drop: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Delete one
    Delete {
        /// Id
        id: RouteId,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Routes {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List { within, limit } => {
                let table = Some(within.find(&client).await?.id.to_string());
                let limit = Limit { name: None, limit };
                let columns = ["id", "destination", "target", "programmed"];
                verbs::list::<Route>(api, &columns, &[("table", table)], limit).await
            }
            Self::Show { id } => output::one(api.output, &client.get::<Route>(id).await?),
            Self::Create { destination, within, peering, drop: _, wait } => {
                let table = within.find(&client).await?;
                let target = match peering {
                    Some(peering) => {
                        let vpc = table.vpc.to_string();
                        RouteTarget::Peering(client.id_of::<Peering>(&peering, &[("vpc", &vpc)]).await?)
                    }
                    None => RouteTarget::Drop,
                };
                verbs::create(api, &client, table.id, &NewRoute { destination, target }, wait).await
            }
            Self::Delete { id, expect } => {
                verbs::delete(&client, &client.get::<Route>(id).await?, expect).await
            }
        }
    }
}

/// `sluice peerings`.
#[derive(Subcommand)]
pub enum Peerings {
    /// List peerings
    List {
        #[command(flatten)]
        within: InVpc,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show one
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        within: InVpc,
    },
    /// Create one
    Create {
        /// Name, unique in the tenant
        name: String,
        /// The two VPCs, or TENANT/VPC
        #[arg(num_args = 2, required = true, value_names = ["VPC", "VPC"])]
        vpcs: Vec<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Delete one that no route uses
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        within: InVpc,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Peerings {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List { within, limit } => {
                let vpc = in_vpc(&client, within.vpc.as_ref()).await?;
                verbs::list::<Peering>(api, &["id", "name", "vpcs", "programmed"], &[("vpc", vpc)], limit)
                    .await
            }
            Self::Show { which, within } => {
                output::one(api.output, &find::<Peering>(&client, &which, within.vpc.as_ref()).await?)
            }
            Self::Create { name, vpcs, wait } => {
                let [a, b] = vpcs.as_slice() else {
                    return Err(Failure::Usage("a peering is of two VPCs".to_owned()));
                };
                let vpcs = [api::vpc_id(&client, a).await?, api::vpc_id(&client, b).await?];
                verbs::create(api, &client, (), &NewPeering { name, vpcs }, wait).await
            }
            Self::Delete { which, within, expect } => {
                let peering = find::<Peering>(&client, &which, within.vpc.as_ref()).await?;
                verbs::delete(&client, &peering, expect).await
            }
        }
    }
}
