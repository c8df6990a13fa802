//! Arguments of route tables, routes and peerings.

use super::meters::{meter_of, new_meter_of};
use super::resource::{
    ByVpc, Creatable, Create, Filter, Help, Kind, NameInVpc, NoPreview, NoVerb, Parent, Run, Select, Target,
    Wait,
};
use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;
use sluice_client::{Client, NewPeering, NewRoute, Peering, Route, RouteTable, RouteTarget};
use sluice_types::{IpNet, RouteId, RouteTableId, parse_prefix};
use std::collections::BTreeMap;

impl Kind for RouteTable {
    const HELP: Help =
        Help { list: "List route tables; each VPC has one, `main`", show: "Show one route table" };
    const COLUMNS: &'static [&'static str] = &["id", "name", "vpc", "programmed"];
    type Selector = NameInVpc;
    type Filters = ByVpc;
}

impl Kind for Route {
    const HELP: Help = Help { list: "List the routes of a route table", show: "Show one route" };
    const COLUMNS: &'static [&'static str] = &["id", "destination", "target", "programmed"];
    type Selector = ById;
    type Filters = InTable;
}

impl Creatable for Route {
    const CREATE_HELP: &'static str = "Create a route";
    const DELETE_HELP: &'static str = "Delete a route";
    type New = NewRouteArgs;
    type Verbs = NoVerb;
    type Preview = NoPreview;
}

/// Selects a route: it has no name.
#[derive(Args)]
pub struct ById {
    /// Id of the route
    id: RouteId,
}

impl Select<Route> for ById {
    async fn find(&self, client: &Client) -> Result<Route, Failure> {
        Ok(client.get(self.id).await?)
    }
}

/// A route table, given by its id or its VPC.
#[derive(Args)]
#[command(group(ArgGroup::new("where").required(true).args(["table", "vpc"])))]
pub struct InTable {
    /// Id of the route table
    #[arg(long, value_name = "ID")]
    table: Option<RouteTableId>,
    /// The main route table of this VPC: name, TENANT/NAME or id
    #[arg(long)]
    vpc: Option<String>,
}

impl InTable {
    async fn find(&self, client: &Client) -> Result<RouteTable, Failure> {
        match (self.table, &self.vpc) {
            (Some(table), _) => Ok(client.get(table).await?),
            (None, Some(vpc)) => {
                let vpc = api::vpc(client, vpc).await?.id.to_string();
                Ok(client.find("main", &[("vpc", &vpc)]).await?)
            }
            (None, None) => Err(Failure::Usage("give --table or --vpc".to_owned())),
        }
    }
}

impl Filter for InTable {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        Ok(vec![("table", self.find(client).await?.id.to_string())])
    }
}

#[derive(Args)]
#[command(group(ArgGroup::new("target").required(true)))]
pub struct NewRouteArgs {
    /// Destination prefix
    #[arg(value_name = "PREFIX", value_parser = parse_prefix)]
    destination: IpNet,
    #[command(flatten)]
    table: InTable,
    /// Send the packets to the other VPC of this peering: name or id
    #[arg(long, group = "target")]
    peering: Option<String>,
    /// Drop the packets; they are counted as `route_drop`
    #[arg(long, group = "target")]
    drop: bool,
    /// Send the packets to the Internet, if their sender has a public address (EIP) or the VPC has a NAT gateway
    #[arg(long, group = "target")]
    internet: bool,
}

impl Create for NewRouteArgs {
    type Object = Route;
    type Body = NewRoute;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewRoute), Failure> {
        let table = self.table.find(client).await?;
        let target = match &self.peering {
            None if self.drop => RouteTarget::Drop,
            None if self.internet => RouteTarget::Internet,
            None => return Err(Failure::Usage("give --peering, --drop or --internet".to_owned())),
            Some(peering) => {
                let vpc = table.vpc.to_string();
                RouteTarget::Peering(client.id_of::<Peering>(peering, &[("vpc", &vpc)]).await?)
            }
        };
        Ok((table.id, NewRoute { destination: self.destination, target }))
    }
}

impl Kind for Peering {
    const HELP: Help = Help { list: "List peerings", show: "Show one peering" };
    const COLUMNS: &'static [&'static str] = &["id", "name", "vpcs", "meters", "programmed"];
    type Selector = NameInVpc;
    type Filters = ByVpc;
}

impl Creatable for Peering {
    const CREATE_HELP: &'static str = "Create a peering of two VPCs of one tenant";
    const DELETE_HELP: &'static str = "Delete a peering that no route uses";
    type New = NewPeeringArgs;
    type Verbs = PeeringVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct NewPeeringArgs {
    /// Name, unique in the tenant
    name: String,
    /// The two VPCs: name, TENANT/NAME or id
    #[arg(num_args = 2, required = true, value_names = ["VPC", "VPC"])]
    vpcs: Vec<String>,
    /// Meter of the tenant for what this VPC sends to the other one and gets from it: name or id; can be given for each of both
    /// [default: none]
    #[arg(long, value_name = "VPC=METER", value_parser = parse_side)]
    meter: Vec<Side>,
}

/// A VPC of a peering, and the meter of its side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    vpc: String,
    meter: String,
}

fn parse_side(text: &str) -> Result<Side, String> {
    match text.split_once('=') {
        Some((vpc, meter)) if !vpc.is_empty() && !meter.is_empty() => {
            Ok(Side { vpc: vpc.to_owned(), meter: meter.to_owned() })
        }
        _ => Err("expected VPC=METER".to_owned()),
    }
}

impl Create for NewPeeringArgs {
    type Object = Peering;
    type Body = NewPeering;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewPeering), Failure> {
        let [a, b] = self.vpcs.as_slice() else {
            return Err(Failure::Usage("a peering has exactly two VPCs".to_owned()));
        };
        let vpcs = [api::vpc(client, a).await?.id, api::vpc(client, b).await?.id];
        let mut meters = BTreeMap::new();
        for Side { vpc, meter } in self.meter {
            let vpc = api::vpc(client, &vpc).await?;
            meters.extend(meter_of(client, Some(&meter), vpc.tenant).await?.map(|meter| (vpc.id, meter)));
        }
        Ok(((), NewPeering { name: self.name, vpcs, meters }))
    }
}

#[derive(Subcommand)]
pub enum PeeringVerb {
    /// Change the meters of a peering
    Update {
        #[command(flatten)]
        target: Target<Peering>,
        /// Meter of the tenant for what this VPC sends to the other one and gets from it: name or id, or `none`; can be given
        /// for each of both
        #[arg(long, value_name = "VPC=METER", value_parser = parse_side, required = true)]
        meter: Vec<Side>,
        #[command(flatten)]
        wait: Wait,
    },
}

impl Run for PeeringVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Update { target, meter, wait } = self;
        let mut meters = BTreeMap::new();
        for Side { vpc, meter } in meter {
            let vpc = api::vpc(client, &vpc).await?;
            meters.extend(new_meter_of(client, Some(&meter), vpc.tenant).await?.map(|meter| (vpc.id, meter)));
        }
        let updated = target.update(client, &json!({"meters": meters})).await?;
        wait.print_when(api, client, updated, |_| true).await
    }
}
