//! Arguments of port forwards.

use super::internet::{id_in_vpc, optional_id_in_vpc};
use super::resource::{
    ByName, Creatable, Create, Filter, Help, InVpc, Kind, NameInVpc, NoPreview, NoVerb, Parent,
};
use crate::failure::Failure;
use clap::Args;
use serde_json::{Value, json};
use sluice_client::{Client, Instance, NatGateway, NewPortForward, PortForward};
use sluice_types::ForwardProtocol;
use std::net::IpAddr;

impl Kind for PortForward {
    const HELP: Help = Help { list: "List port forwards", show: "Show one port forward" };
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "vpc", "protocol", "outside", "instance", "inside", "programmed"];
    type Selector = NameInVpc;
    type Filters = PortForwardFilters;

    fn table_row(&self) -> Value {
        let mut row = serde_json::to_value(self).unwrap_or_default();
        row["outside"] = json!(format!("{}:{}", self.address, self.port));
        row["inside"] = json!(format!("{}:{}", self.inside, self.inside_port));
        row
    }
}

impl Creatable for PortForward {
    const CREATE_HELP: &'static str = "Forward a port of a NAT gateway's address to an instance";
    const DELETE_HELP: &'static str = "Delete a port forward; its connections break";
    type New = NewPortForwardArgs;
    type Verbs = NoVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct PortForwardFilters {
    #[command(flatten)]
    vpc: InVpc,
    /// Only port forwards to this instance: name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(long, value_name = "VPC/NAME|ID")]
    instance: Option<String>,
    #[command(flatten)]
    name: ByName,
}

impl Filter for PortForwardFilters {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = self.name.query(client).await?;
        let instance = optional_id_in_vpc::<Instance>(client, self.instance.as_deref()).await?;
        query.extend(instance.map(|instance| ("instance", instance.to_string())));
        query.extend(self.vpc.id(client).await?.map(|vpc| ("vpc", vpc)));
        Ok(query)
    }
}

#[derive(Args)]
pub struct NewPortForwardArgs {
    /// Name, unique in the NAT gateway
    name: String,
    /// NAT gateway that has the address: name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(long, value_name = "VPC/NAME|ID")]
    nat_gateway: String,
    /// `tcp` or `udp`
    #[arg(long)]
    protocol: ForwardProtocol,
    /// Address of the NAT gateway [default: its lowest]
    #[arg(long)]
    address: Option<IpAddr>,
    /// Port of the address
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Instance that gets the packets: name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(long, value_name = "VPC/NAME|ID")]
    instance: String,
    /// Port of the instance [default: the same]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    inside_port: Option<u16>,
}

impl Create for NewPortForwardArgs {
    type Object = PortForward;
    type Body = NewPortForward;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewPortForward), Failure> {
        let nat_gateway = id_in_vpc::<NatGateway>(client, &self.nat_gateway).await?;
        let instance = id_in_vpc::<Instance>(client, &self.instance).await?;
        let Self { name, protocol, address, port, inside_port, .. } = self;
        Ok(((), NewPortForward { name, nat_gateway, protocol, address, port, instance, inside_port }))
    }
}
