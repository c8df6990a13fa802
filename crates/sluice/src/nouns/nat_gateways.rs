//! Arguments and verbs of NAT gateways.

use super::resource::{
    ByVpc, Creatable, Create, Filter, Help, Kind, NameInVpc, NoPreview, Parent, Run, Target, Wait,
    optional_id,
};
use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, json};
use sluice_client::{Client, NatGateway, NewNatGateway, PublicPool};
use sluice_types::{IpNet, NatFiltering};
use std::net::IpAddr;

impl Kind for NatGateway {
    const HELP: Help = Help { list: "List NAT gateways", show: "Show one NAT gateway" };
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "name",
        "vpc",
        "pool",
        "addresses",
        "sessions",
        "blocks",
        "filtering",
        "nat64_prefix",
        "programmed",
    ];
    type Selector = NameInVpc;
    type Filters = NatGatewayFilters;
}

impl Creatable for NatGateway {
    const CREATE_HELP: &'static str =
        "Create the NAT gateway of a VPC; without addresses given, it gets the lowest that are free";
    const DELETE_HELP: &'static str = "Delete a NAT gateway; its sessions end";
    type New = NewNatGatewayArgs;
    type Verbs = NatGatewayVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct NatGatewayFilters {
    #[command(flatten)]
    vpc: ByVpc,
    /// Only NAT gateways with addresses from this pool: name or id
    #[arg(long)]
    pool: Option<String>,
}

impl Filter for NatGatewayFilters {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = self.vpc.query(client).await?;
        let pool = optional_id::<PublicPool>(client, self.pool.as_deref()).await?;
        query.extend(pool.map(|pool| ("pool", pool.to_string())));
        Ok(query)
    }
}

/// What each instance may do.
#[derive(Args)]
pub struct Limits {
    /// Sessions that each instance may have at the same time, 1 to 1000000 [default: 10000]
    #[arg(long, value_name = "N", group = "change")]
    sessions: Option<u32>,
    /// Port blocks that each instance may have, 1 to 16 [default: 4]
    #[arg(long, value_name = "N", group = "change")]
    blocks: Option<u8>,
    /// Which packets of the Internet reach a port that an instance uses: `address-and-port-dependent`, those from an address
    /// and port to which it has sent, or `endpoint-independent`, all [default: address-and-port-dependent]
    #[arg(long, value_name = "FILTERING", group = "change")]
    filtering: Option<NatFiltering>,
}

#[derive(Args)]
#[command(group(ArgGroup::new("change").multiple(true)))]
pub struct NewNatGatewayArgs {
    /// Name, unique in the VPC
    name: String,
    /// VPC whose instances share the addresses: name, TENANT/NAME or id
    #[arg(long)]
    vpc: String,
    /// Pool that the addresses are from: name or id
    #[arg(long)]
    pool: String,
    /// IPv4 address of the pool; can be given up to 16 times
    #[arg(long, conflicts_with = "address_count")]
    address: Vec<IpAddr>,
    /// How many addresses it gets, the lowest that are free, 1 to 16 [default: 1]
    #[arg(long, value_name = "N")]
    address_count: Option<usize>,
    #[command(flatten)]
    limits: Limits,
    /// Prefix of length 96 by which instances with IPv6 reach IPv4 addresses (NAT64): 64:ff9b::/96, or one of your own
    #[arg(long, value_name = "PREFIX")]
    nat64_prefix: Option<IpNet>,
}

impl Create for NewNatGatewayArgs {
    type Object = NatGateway;
    type Body = NewNatGateway;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewNatGateway), Failure> {
        let vpc = api::vpc(client, &self.vpc).await?.id;
        let pool = client.id_of::<PublicPool>(&self.pool, &[]).await?;
        let Self { name, address, address_count, limits, nat64_prefix, .. } = self;
        let Limits { sessions, blocks, filtering } = limits;
        let addresses = (!address.is_empty()).then_some(address);
        let new = NewNatGateway {
            name,
            vpc,
            pool,
            addresses,
            address_count,
            sessions,
            blocks,
            filtering,
            nat64_prefix,
        };
        Ok(((), new))
    }
}

#[derive(Subcommand)]
pub enum NatGatewayVerb {
    /// Rename a NAT gateway, give it more or fewer addresses, or change its limits; sessions of a removed address end
    #[command(group(ArgGroup::new("change").required(true).multiple(true)))]
    Update {
        #[command(flatten)]
        target: Target<NatGateway>,
        /// New name
        #[arg(long = "name", value_name = "NAME", group = "change")]
        new_name: Option<String>,
        /// IPv4 address of the pool to add; can be repeated
        #[arg(long, value_name = "ADDRESS", group = "change", conflicts_with = "address_count")]
        add_address: Vec<IpAddr>,
        /// Address to remove; can be repeated
        #[arg(long, value_name = "ADDRESS", group = "change", conflicts_with = "address_count")]
        remove_address: Vec<IpAddr>,
        /// How many addresses it has from now on, 1 to 16: it gets the lowest that are free, or loses its highest
        #[arg(long, value_name = "N", group = "change")]
        address_count: Option<usize>,
        #[command(flatten)]
        limits: Limits,
        /// Prefix of NAT64 from now on, or `none`
        #[arg(long, value_name = "PREFIX", group = "change")]
        nat64_prefix: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
}

impl Run for NatGatewayVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Update {
            target,
            new_name,
            add_address,
            remove_address,
            address_count,
            limits,
            nat64_prefix,
            wait,
        } = self;
        let mut patch = Map::new();
        let nat64_prefix =
            nat64_prefix.map(|prefix| if prefix == "none" { json!(null) } else { json!(prefix) });
        patch.extend(nat64_prefix.map(|prefix| ("nat64_prefix".to_owned(), prefix)));
        patch.extend(new_name.map(|name| ("name".to_owned(), json!(name))));
        patch.extend(address_count.map(|number| ("address_count".to_owned(), json!(number))));
        patch.extend(limits.sessions.map(|number| ("sessions".to_owned(), json!(number))));
        patch.extend(limits.blocks.map(|number| ("blocks".to_owned(), json!(number))));
        patch.extend(limits.filtering.map(|filtering| ("filtering".to_owned(), json!(filtering))));
        if add_address.is_empty() && remove_address.is_empty() {
            let updated = target.update(client, &patch).await?;
            return wait.print_when(api, client, updated, |_| true).await;
        }
        let found = target.find(client).await?;
        let has: Vec<IpAddr> = found.addresses.iter().copied().map(IpAddr::V4).collect();
        if let Some(missing) = remove_address.iter().find(|address| !has.contains(address)) {
            return Err(Failure::Usage(format!("NAT gateway `{}` has no address {missing}", found.name)));
        }
        let new = add_address.into_iter().filter(|address| !has.contains(address));
        let addresses = has.iter().copied().filter(|address| !remove_address.contains(address));
        patch.insert("addresses".to_owned(), json!(addresses.chain(new).collect::<Vec<_>>()));
        // The addresses of this revision were changed, so those of another must not be replaced.
        let expected = target.expected().unwrap_or(found.revision);
        let updated = client.update::<NatGateway>(found.id, &patch, Some(expected)).await?;
        wait.print_when(api, client, updated, |_| true).await
    }
}
