//! Arguments and verbs of public pools and EIPs.

use super::meters::{meter_of, new_meter_of};
use super::resource::{
    ByName, Creatable, Create, Filter, Help, InVpc, Kind, NameInTenant, NameOrId, NoPreview, Parent, Run,
    Target, Wait, optional_id,
};
use super::underlay::ByCluster;
use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use crate::output;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, Value, json};
use sluice_client::{
    Client, Cluster, Eip, Instance, Meter, NewEip, NewPublicPool, PublicPool, Resource, Subnet, Tenant,
};
use sluice_types::{AddressFamily, InstanceId, IpNet, SubnetId, parse_prefix};
use std::net::IpAddr;

impl Kind for PublicPool {
    const HELP: Help = Help { list: "List pools of public addresses", show: "Show one pool" };
    const COLUMNS: &'static [&'static str] = &["id", "name", "cluster", "prefixes", "reserved"];
    type Selector = NameOrId;
    type Filters = ByCluster;
}

impl Creatable for PublicPool {
    const CREATE_HELP: &'static str =
        "Create a pool of public addresses, which the gateways of a cluster announce";
    const DELETE_HELP: &'static str = "Delete a pool of which there is no EIP and no NAT gateway";
    type New = NewPublicPoolArgs;
    type Verbs = PublicPoolVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct NewPublicPoolArgs {
    /// Name, unique in the cloud
    name: String,
    /// Cluster whose gateways announce the addresses: name or id
    #[arg(long)]
    cluster: String,
    /// Prefix of the pool; can be given up to 64 times
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix, required = true)]
    prefix: Vec<IpNet>,
    /// Prefix inside the pool of which no EIP and no NAT gateway gets an address; can be given up to 64 times
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix)]
    reserved: Vec<IpNet>,
}

impl Create for NewPublicPoolArgs {
    type Object = PublicPool;
    type Body = NewPublicPool;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewPublicPool), Failure> {
        let cluster = client.id_of::<Cluster>(&self.cluster, &[]).await?;
        let Self { name, prefix: prefixes, reserved, .. } = self;
        Ok(((), NewPublicPool { name, cluster, prefixes, reserved }))
    }
}

#[derive(Subcommand)]
pub enum PublicPoolVerb {
    /// Rename a pool, add prefixes, remove prefixes of which no address is used, or reserve prefixes
    #[command(group(ArgGroup::new("change").required(true).multiple(true)))]
    Update {
        #[command(flatten)]
        target: Target<PublicPool>,
        /// New name
        #[arg(long = "name", value_name = "NAME", group = "change")]
        new_name: Option<String>,
        /// Prefix to add; can be repeated
        #[arg(long, value_name = "PREFIX", value_parser = parse_prefix, group = "change")]
        add_prefix: Vec<IpNet>,
        /// Prefix to remove; can be repeated
        #[arg(long, value_name = "PREFIX", value_parser = parse_prefix, group = "change")]
        remove_prefix: Vec<IpNet>,
        /// Prefix of which no EIP is to get an address; can be repeated
        #[arg(long, value_name = "PREFIX", value_parser = parse_prefix, group = "change")]
        add_reserved: Vec<IpNet>,
        /// Prefix that is no longer reserved; can be repeated
        #[arg(long, value_name = "PREFIX", value_parser = parse_prefix, group = "change")]
        remove_reserved: Vec<IpNet>,
    },
}

/// A list of prefixes after a change, or `None` if nothing changes. `what` names what the pool does not have.
fn changed(
    (pool, what): (&str, &str),
    old: &[IpNet],
    add: Vec<IpNet>,
    remove: &[IpNet],
) -> Result<Option<Vec<IpNet>>, Failure> {
    if add.is_empty() && remove.is_empty() {
        return Ok(None);
    }
    if let Some(missing) = remove.iter().find(|prefix| !old.contains(prefix)) {
        return Err(Failure::Usage(format!("pool `{pool}` has no {what} {missing}")));
    }
    let mut prefixes = old.to_vec();
    prefixes.extend(add.into_iter().filter(|prefix| !old.contains(prefix)));
    prefixes.retain(|prefix| !remove.contains(prefix));
    Ok(Some(prefixes))
}

impl Run for PublicPoolVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Update { target, new_name, add_prefix, remove_prefix, add_reserved, remove_reserved } =
            self;
        let pool = target.find(client).await?;
        let mut patch = Map::new();
        patch.extend(new_name.map(|name| ("name".to_owned(), json!(name))));
        let prefixes = changed((&pool.name, "prefix"), &pool.prefixes, add_prefix, &remove_prefix)?;
        patch.extend(prefixes.map(|prefixes| ("prefixes".to_owned(), json!(prefixes))));
        let reserved =
            changed((&pool.name, "reserved prefix"), &pool.reserved, add_reserved, &remove_reserved)?;
        patch.extend(reserved.map(|reserved| ("reserved".to_owned(), json!(reserved))));
        // The prefixes of this revision were changed, so those of another must not be replaced.
        let expected = target.expected().unwrap_or(pool.revision);
        output::one(api.output, &client.update::<PublicPool>(pool.id, &patch, Some(expected)).await?)
    }
}

impl Kind for Eip {
    const HELP: Help = Help { list: "List EIPs", show: "Show one EIP" };
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "name",
        "tenant",
        "address",
        "vpc",
        "instance",
        "subnet",
        "inside",
        "nptv6",
        "meter",
        "programmed",
    ];
    type Selector = NameInTenant;
    type Filters = EipFilters;

    fn table_row(&self) -> Value {
        let mut row = serde_json::to_value(self).unwrap_or_default();
        if ![32, 128].contains(&self.prefix_length) || self.address.is_ipv6() && self.prefix_length == 32 {
            row["address"] = json!(format!("{}/{}", self.address, self.prefix_length));
        }
        row
    }
}

impl Creatable for Eip {
    const CREATE_HELP: &'static str =
        "Create an EIP; without an address given, it gets the lowest that is free";
    const DELETE_HELP: &'static str = "Delete an EIP, also if it is attached";
    type New = NewEipArgs;
    type Verbs = EipVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct EipFilters {
    /// Only EIPs of this tenant: name or id
    #[arg(long)]
    tenant: Option<String>,
    /// Only EIPs from this pool: name or id
    #[arg(long)]
    pool: Option<String>,
    #[command(flatten)]
    vpc: InVpc,
    /// Only EIPs that are attached to this instance: name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(long, value_name = "VPC/NAME|ID")]
    instance: Option<String>,
    /// Only EIPs that have this meter: name or id
    #[arg(long)]
    meter: Option<String>,
    #[command(flatten)]
    name: ByName,
}

impl Filter for EipFilters {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = self.name.query(client).await?;
        let tenant = optional_id::<Tenant>(client, self.tenant.as_deref()).await?;
        query.extend(tenant.map(|tenant| ("tenant", tenant.to_string())));
        let pool = optional_id::<PublicPool>(client, self.pool.as_deref()).await?;
        query.extend(pool.map(|pool| ("pool", pool.to_string())));
        let instance = optional_id_in_vpc::<Instance>(client, self.instance.as_deref()).await?;
        query.extend(instance.map(|instance| ("instance", instance.to_string())));
        let meter = match tenant {
            Some(tenant) => meter_of(client, self.meter.as_deref(), tenant).await?,
            None => optional_id::<Meter>(client, self.meter.as_deref()).await?,
        };
        query.extend(meter.map(|meter| ("meter", meter.to_string())));
        query.extend(self.vpc.id(client).await?.map(|vpc| ("vpc", vpc)));
        Ok(query)
    }
}

/// What an EIP is attached to.
#[derive(Args)]
pub struct AttachTo {
    /// Instance that gets the EIP: name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(long, value_name = "VPC/NAME|ID", group = "to")]
    instance: Option<String>,
    /// Subnet whose IPv6 prefix gets the EIP, which is a prefix of the same length: name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(long, value_name = "VPC/NAME|ID", group = "to")]
    subnet: Option<String>,
    /// Which address of the instance: an own or a secondary one [default: its own of the EIP's family]
    #[arg(long, value_name = "ADDRESS", requires = "instance")]
    inside: Option<IpAddr>,
}

impl AttachTo {
    async fn ids(&self, client: &Client) -> Result<(Option<InstanceId>, Option<SubnetId>), Failure> {
        Ok((
            optional_id_in_vpc::<Instance>(client, self.instance.as_deref()).await?,
            optional_id_in_vpc::<Subnet>(client, self.subnet.as_deref()).await?,
        ))
    }
}

/// The id of an object of a VPC, given as NAME, VPC/NAME, TENANT/VPC/NAME or id.
pub(super) async fn id_in_vpc<K: Resource>(client: &Client, text: &str) -> Result<K::Id, Failure> {
    // Names have no `/`.
    let Some((vpc, name)) = text.rsplit_once('/') else { return Ok(client.id_of::<K>(text, &[]).await?) };
    let vpc = api::vpc(client, vpc).await?.id.to_string();
    Ok(client.id_of::<K>(name, &[("vpc", &vpc)]).await?)
}

/// The same, if it is given.
pub(super) async fn optional_id_in_vpc<K: Resource>(
    client: &Client,
    text: Option<&str>,
) -> Result<Option<K::Id>, Failure> {
    match text {
        Some(text) => id_in_vpc::<K>(client, text).await.map(Some),
        None => Ok(None),
    }
}

#[derive(Args)]
pub struct NewEipArgs {
    /// Name, unique in the tenant
    name: String,
    /// Tenant that owns it: name or id
    #[arg(long)]
    tenant: String,
    /// Pool that it is from: name or id
    #[arg(long)]
    pool: String,
    /// Address of the pool, or the first one of a prefix [default: the lowest that is free]
    #[arg(long)]
    address: Option<IpAddr>,
    /// `ipv4` or `ipv6` [default: that of the address, or `ipv6` with --prefix-length, else `ipv4` if the pool has IPv4
    /// addresses]
    #[arg(long)]
    family: Option<AddressFamily>,
    /// Length of an IPv6 prefix [default: a single address]
    #[arg(long, value_name = "BITS")]
    prefix_length: Option<u8>,
    /// Map the addresses of the prefix by NPTv6 (RFC 6296): no checksum changes, but bits behind the prefix do
    #[arg(long, requires = "prefix_length")]
    nptv6: bool,
    /// Meter of the tenant for its traffic: name or id [default: none]
    #[arg(long)]
    meter: Option<String>,
    #[command(flatten)]
    to: AttachTo,
}

impl Create for NewEipArgs {
    type Object = Eip;
    type Body = NewEip;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewEip), Failure> {
        let tenant = client.id_of::<Tenant>(&self.tenant, &[]).await?;
        let pool = client.id_of::<PublicPool>(&self.pool, &[]).await?;
        let meter = meter_of(client, self.meter.as_deref(), tenant).await?;
        let (instance, subnet) = self.to.ids(client).await?;
        let Self { name, address, family, prefix_length, nptv6, to: AttachTo { inside, .. }, .. } = self;
        let body = NewEip {
            name,
            tenant,
            pool,
            address,
            family,
            prefix_length,
            nptv6: nptv6.then_some(true),
            instance,
            subnet,
            inside,
            meter,
        };
        Ok(((), body))
    }
}

#[derive(Subcommand)]
pub enum EipVerb {
    /// Attach an EIP to an instance or a subnet; one that is attached elsewhere moves
    #[command(group(ArgGroup::new("to").required(true)))]
    Attach {
        #[command(flatten)]
        target: Target<Eip>,
        #[command(flatten)]
        to: AttachTo,
        #[command(flatten)]
        wait: Wait,
    },
    /// Detach an EIP; it keeps its address
    Detach {
        #[command(flatten)]
        target: Target<Eip>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Rename an EIP, or change which meter it has
    #[command(group(ArgGroup::new("change").required(true).multiple(true)))]
    Update {
        #[command(flatten)]
        target: Target<Eip>,
        /// New name
        #[arg(long = "name", value_name = "NAME", group = "change")]
        new_name: Option<String>,
        /// Meter of its tenant for its traffic: name or id, or `none`
        #[arg(long, group = "change")]
        meter: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
}

impl Run for EipVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Attach { target, to, wait } => {
                let (instance, subnet) = to.ids(client).await?;
                let mut patch = Map::new();
                patch.extend(instance.map(|id| ("instance".to_owned(), json!(id))));
                patch.extend(subnet.map(|id| ("subnet".to_owned(), json!(id))));
                patch.extend(to.inside.map(|address| ("inside".to_owned(), json!(address))));
                let eip = target.update(client, &patch).await?;
                wait.print_when(api, client, eip, |_| true).await
            }
            Self::Detach { target, wait } => {
                let eip = target.update(client, &json!({"instance": null})).await?;
                wait.print_when(api, client, eip, |_| true).await
            }
            Self::Update { target, new_name, meter, wait } => {
                let eip = target.find(client).await?;
                let meter = new_meter_of(client, meter.as_deref(), eip.tenant).await?;
                let mut patch = Map::new();
                patch.extend(new_name.map(|name| ("name".to_owned(), json!(name))));
                patch.extend(meter.map(|meter| ("meter".to_owned(), json!(meter))));
                let eip = client.update::<Eip>(eip.id, &patch, target.expected()).await?;
                wait.print_when(api, client, eip, |_| true).await
            }
        }
    }
}
