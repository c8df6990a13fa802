//! Arguments and verbs of what tenants own: tenants themselves, VPCs, subnets, instances.

use super::addresses::{AddressPairs, Addresses, Protection, QosArgs};
use super::meters::{meter_of, new_meter_of};
use super::migrations::{CancelMigration, Migrate};
use super::network_classes::new_class_of;
use super::resource::{
    ByName, ByVpc, Creatable, Create, Filter, Help, Kind, NameInVpc, NameOrId, NoPreview, Parent, Run,
    Target, VpcName, Wait, optional_id,
};
use super::security::Groups;
use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use crate::output;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, Value, json};
use sluice_client::{
    Client, Cluster, HeldPair, Host, Instance, NetworkClass, NewInstance, NewSubnet, NewTenant, NewVpc,
    Subnet, Tenant, Vpc,
};
use sluice_types::{Ipv4Net, Ipv6Mode, Ipv6Net, MacAddr, PortSettings, Qos, Vni};
use std::net::{Ipv4Addr, Ipv6Addr};

impl Kind for Tenant {
    const HELP: Help = Help { list: "List tenants", show: "Show one tenant" };
    const COLUMNS: &'static [&'static str] = &["id", "name", "revision", "programmed"];
    type Selector = NameOrId;
    type Filters = ByName;
}

impl Creatable for Tenant {
    const CREATE_HELP: &'static str = "Create a tenant";
    const DELETE_HELP: &'static str = "Delete a tenant that has no VPCs";
    type New = NewTenantArgs;
    type Verbs = TenantVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct NewTenantArgs {
    /// Name, unique in the cloud
    name: String,
}

impl Create for NewTenantArgs {
    type Object = Tenant;
    type Body = NewTenant;
    async fn request(self, _: &Client) -> Result<(Parent<Self>, NewTenant), Failure> {
        Ok(((), NewTenant { name: self.name }))
    }
}

#[derive(Subcommand)]
pub enum TenantVerb {
    /// Rename a tenant
    Update {
        #[command(flatten)]
        target: Target<Tenant>,
        /// New name
        #[arg(long = "name", value_name = "NAME")]
        new_name: String,
    },
}

impl Run for TenantVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Update { target, new_name } = self;
        output::one(api.output, &target.update(client, &json!({"name": new_name})).await?)
    }
}

impl Kind for Vpc {
    const HELP: Help = Help { list: "List VPCs", show: "Show one VPC" };
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "tenant", "cluster", "moving_to", "vni", "mtu", "internet_meter", "programmed"];
    type Selector = VpcName;
    type Filters = ByTenant;
}

impl Creatable for Vpc {
    const CREATE_HELP: &'static str = "Create a VPC";
    const DELETE_HELP: &'static str =
        "Delete a VPC that has no subnets, routes, peerings or security groups but `default`";
    type New = NewVpcArgs;
    type Verbs = VpcVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct ByTenant {
    /// Only VPCs of this tenant: name or id
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    name: ByName,
}

impl Filter for ByTenant {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = self.name.query(client).await?;
        let tenant = optional_id::<Tenant>(client, self.tenant.as_deref()).await?;
        query.extend(tenant.map(|tenant| ("tenant", tenant.to_string())));
        Ok(query)
    }
}

/// Offload threshold of a VPC in kbit/s. `None` is the threshold of the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadThreshold(Option<u32>);

fn parse_offload(text: &str) -> Result<OffloadThreshold, String> {
    match text {
        "default" => Ok(OffloadThreshold(None)),
        "never" => Ok(OffloadThreshold(Some(u32::MAX))),
        number => match number.parse() {
            Ok(0) => Err("must be at least 1 kbit/s".to_owned()),
            Ok(number) => Ok(OffloadThreshold(Some(number))),
            Err(_) => Err("expected a number of kbit/s, `default` or `never`".to_owned()),
        },
    }
}

#[derive(Args)]
pub struct NewVpcArgs {
    /// Name, unique in the tenant
    name: String,
    /// Tenant that owns the VPC: name or id
    #[arg(long)]
    tenant: String,
    /// Cluster that carries the VPC: name or id [default: the least loaded cluster that the tenant may use]
    #[arg(long)]
    cluster: Option<String>,
    /// VXLAN network identifier [default: a free one is allocated]
    #[arg(long)]
    vni: Option<Vni>,
    /// MTU of the instances' interfaces, in bytes
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
    /// A flow of at least this rate, in kbit/s, gets a direct path past the gateways: a number, `default`
    /// (the threshold of the gateways) or `never`
    #[arg(long, value_name = "KBPS", value_parser = parse_offload)]
    offload_kbps: Option<OffloadThreshold>,
    /// Meter of the tenant for the Internet traffic of the VPC: name or id [default: none]
    #[arg(long, value_name = "METER")]
    internet_meter: Option<String>,
}

impl Create for NewVpcArgs {
    type Object = Vpc;
    type Body = NewVpc;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewVpc), Failure> {
        let tenant = client.id_of::<Tenant>(&self.tenant, &[]).await?;
        let body = NewVpc {
            name: self.name,
            tenant,
            cluster: optional_id::<Cluster>(client, self.cluster.as_deref()).await?,
            vni: self.vni,
            mtu: self.mtu,
            offload_kbps: self.offload_kbps.and_then(|threshold| threshold.0),
            internet_meter: meter_of(client, self.internet_meter.as_deref(), tenant).await?,
        };
        Ok(((), body))
    }
}

#[derive(Subcommand)]
pub enum VpcVerb {
    /// Change the name, the MTU, the offload threshold or the meter of a VPC
    #[command(group(ArgGroup::new("change").required(true).multiple(true)))]
    Update {
        #[command(flatten)]
        target: Target<Vpc>,
        /// New name
        #[arg(long = "name", value_name = "NAME", group = "change")]
        new_name: Option<String>,
        /// New MTU of the instances' interfaces, in bytes
        #[arg(long, value_name = "BYTES", group = "change")]
        mtu: Option<u16>,
        /// A flow of at least this rate, in kbit/s, gets a direct path past the gateways: a number, `default`
        /// (the threshold of the gateways) or `never`
        #[arg(long, value_name = "KBPS", value_parser = parse_offload, group = "change")]
        offload_kbps: Option<OffloadThreshold>,
        /// Meter of its tenant for the Internet traffic of the VPC: name or id, or `none`
        #[arg(long, value_name = "METER", group = "change")]
        internet_meter: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Move a VPC and all VPCs that are peered with it to another cluster, without packet loss
    ///
    /// A move that has started is reversed by moving the VPC back to the cluster that it came from.
    Move {
        #[command(flatten)]
        target: Target<Vpc>,
        /// Cluster to move to: name or id
        #[arg(long, value_name = "CLUSTER")]
        to: String,
        #[command(flatten)]
        wait: Wait,
    },
}

impl Run for VpcVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Update { target, new_name, mtu, offload_kbps, internet_meter, wait } => {
                let vpc = target.find(client).await?;
                let meter = new_meter_of(client, internet_meter.as_deref(), vpc.tenant).await?;
                let mut patch = Map::new();
                patch.extend(new_name.map(|name| ("name".to_owned(), json!(name))));
                patch.extend(mtu.map(|mtu| ("mtu".to_owned(), json!(mtu))));
                patch.extend(offload_kbps.map(|threshold| ("offload_kbps".to_owned(), json!(threshold.0))));
                patch.extend(meter.map(|meter| ("internet_meter".to_owned(), json!(meter))));
                let vpc = client.update::<Vpc>(vpc.id, &patch, target.expected()).await?;
                wait.print_when(api, client, vpc, |_| true).await
            }
            Self::Move { target, to, wait } => {
                let to = client.id_of::<Cluster>(&to, &[]).await?;
                let vpc = target.update(client, &json!({"cluster": to})).await?;
                wait.print_when(api, client, vpc, |vpc| vpc.moving_to.is_none()).await
            }
        }
    }
}

impl Kind for Subnet {
    const HELP: Help = Help { list: "List subnets", show: "Show one subnet" };
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "vpc", "ipv4", "ipv6", "ipv6_mode", "dns", "programmed"];
    type Selector = NameInVpc;
    type Filters = ByVpc;
}

impl Creatable for Subnet {
    const CREATE_HELP: &'static str = "Create a subnet with an IPv4 prefix, an IPv6 prefix or both";
    const DELETE_HELP: &'static str = "Delete a subnet that has no instances";
    type New = NewSubnetArgs;
    type Verbs = super::resource::NoVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
#[command(group(ArgGroup::new("prefix").required(true).multiple(true)))]
pub struct NewSubnetArgs {
    /// Name, unique in the VPC
    name: String,
    /// VPC of the subnet: name, TENANT/NAME or id
    #[arg(long)]
    vpc: String,
    /// IPv4 prefix; its first address is the router's
    #[arg(long, value_name = "PREFIX", group = "prefix")]
    ipv4: Option<Ipv4Net>,
    /// IPv6 prefix; its first address is the router's
    #[arg(long, value_name = "PREFIX", group = "prefix")]
    ipv6: Option<Ipv6Net>,
    /// How instances get IPv6 addresses: `dhcp`, or `slaac` in a /64, by which they derive them from their MAC
    /// addresses [default: dhcp]
    #[arg(long, value_name = "MODE", requires = "ipv6")]
    ipv6_mode: Option<Ipv6Mode>,
    /// DNS resolver that DHCP offers; can be given twice
    #[arg(long, value_name = "ADDRESS")]
    dns: Vec<Ipv4Addr>,
}

impl Create for NewSubnetArgs {
    type Object = Subnet;
    type Body = NewSubnet;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewSubnet), Failure> {
        let vpc = api::vpc(client, &self.vpc).await?.id;
        let Self { name, ipv4, ipv6, ipv6_mode, dns, .. } = self;
        Ok((vpc, NewSubnet { name, ipv4, ipv6, ipv6_mode, dns }))
    }
}

impl Kind for Instance {
    const HELP: Help = Help { list: "List instances", show: "Show one instance" };
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "name",
        "vpc",
        "subnet",
        "host",
        "mac",
        "ipv4",
        "ipv6",
        "secondary_addresses",
        "delegated_prefixes",
        "address_pairs",
        "security_groups",
        "programmed",
    ];
    type Selector = NameInVpc;
    type Filters = ByVpcAndHost;

    fn table_row(&self) -> Value {
        let mut row = serde_json::to_value(self).unwrap_or_default();
        let pair = |pair: &HeldPair| format!("{}{}", pair.pair(), if pair.held { " (held)" } else { "" });
        row["address_pairs"] = json!(self.address_pairs.iter().map(pair).collect::<Vec<_>>());
        row
    }
}

impl Creatable for Instance {
    const CREATE_HELP: &'static str = "Create an instance; addresses that are left out are allocated, and without security groups given it has `default`";
    const DELETE_HELP: &'static str = "Delete an instance";
    type New = NewInstanceArgs;
    type Verbs = InstanceVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct ByVpcAndHost {
    #[command(flatten)]
    vpc: ByVpc,
    /// Only instances on this host: name or id
    #[arg(long)]
    host: Option<String>,
}

impl Filter for ByVpcAndHost {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = self.vpc.query(client).await?;
        let host = optional_id::<Host>(client, self.host.as_deref()).await?;
        query.extend(host.map(|host| ("host", host.to_string())));
        Ok(query)
    }
}

#[derive(Args)]
pub struct NewInstanceArgs {
    /// Name, unique in the VPC
    name: String,
    /// VPC of the instance: name, TENANT/NAME or id
    #[arg(long)]
    vpc: String,
    /// Subnet of the VPC: name or id
    #[arg(long)]
    subnet: String,
    /// Host that the instance runs on: name or id
    #[arg(long)]
    host: String,
    /// MAC address of the instance's interface
    #[arg(long, value_name = "ADDRESS")]
    mac: Option<MacAddr>,
    /// IPv4 address in the subnet
    #[arg(long, value_name = "ADDRESS")]
    ipv4: Option<Ipv4Addr>,
    /// IPv6 address in the subnet
    #[arg(long, value_name = "ADDRESS")]
    ipv6: Option<Ipv6Addr>,
    #[command(flatten)]
    groups: Groups,
    #[command(flatten)]
    addresses: Addresses,
    #[command(flatten)]
    pairs: AddressPairs,
    /// The source addresses of what the instance sends, MAC and IP, are not checked
    #[arg(long)]
    no_spoofing_protection: bool,
    #[command(flatten)]
    qos: QosArgs,
    /// Network class of the instance: name or id [default: none]
    #[arg(long, value_name = "CLASS", conflicts_with = "rate_mbps")]
    network_class: Option<String>,
}

impl Create for NewInstanceArgs {
    type Object = Instance;
    type Body = NewInstance;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewInstance), Failure> {
        let vpc = api::vpc(client, &self.vpc).await?.id;
        let subnet = client.id_of::<Subnet>(&self.subnet, &[("vpc", &vpc.to_string())]).await?;
        let host = client.id_of::<Host>(&self.host, &[]).await?;
        let security_groups = self.groups.ids(client, vpc).await?;
        let network_class = optional_id::<NetworkClass>(client, self.network_class.as_deref()).await?;
        let Self { name, mac, ipv4, ipv6, addresses, pairs, no_spoofing_protection, qos, .. } = self;
        let mut settings = PortSettings {
            spoofing_protection: no_spoofing_protection.then_some(false),
            qos: qos.after(Qos::default()),
            network_class: network_class.map(Some),
            ..PortSettings::default()
        };
        addresses.set(&mut settings);
        pairs.set(&mut settings);
        Ok((vpc, NewInstance { name, subnet, host, mac, ipv4, ipv6, security_groups, settings }))
    }
}

#[derive(Subcommand)]
pub enum InstanceVerb {
    /// Migrate an instance to another host while it runs
    ///
    /// Both hosts prepare. When the VM runs on the other host, they switch by themselves, and the instance is recorded there.
    Migrate(Migrate),
    /// Cancel the migration of an instance, which stays on its host
    CancelMigration(CancelMigration),
    /// Record that an instance now runs on another host
    Move {
        #[command(flatten)]
        target: Target<Instance>,
        /// Host that the instance runs on now: name or id
        #[arg(long, value_name = "HOST")]
        to: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Replace the security groups of an instance
    SetSecurityGroups {
        #[command(flatten)]
        target: Target<Instance>,
        #[command(flatten)]
        groups: Groups,
        #[command(flatten)]
        wait: Wait,
    },
    /// Replace the secondary addresses or the delegated prefixes of an instance
    SetAddresses {
        #[command(flatten)]
        target: Target<Instance>,
        #[command(flatten)]
        addresses: Addresses,
        #[command(flatten)]
        wait: Wait,
    },
    /// Replace the addresses that an instance may have in turn with others
    SetAddressPairs {
        #[command(flatten)]
        target: Target<Instance>,
        #[command(flatten)]
        pairs: AddressPairs,
        #[command(flatten)]
        wait: Wait,
    },
    /// Check the source addresses of what an instance sends, MAC and IP, or stop checking them
    SetSpoofingProtection {
        #[command(flatten)]
        target: Target<Instance>,
        /// Whether they are checked
        protection: Protection,
        #[command(flatten)]
        wait: Wait,
    },
    /// Change the DSCP, the rate limit or the network class of an instance
    SetQos {
        #[command(flatten)]
        target: Target<Instance>,
        #[command(flatten)]
        qos: QosArgs,
        /// Network class of the instance: name or id; `none`: it has none
        #[arg(long, value_name = "CLASS")]
        network_class: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
}

/// Changes settings of an instance and prints it.
async fn set(
    api: &ApiArgs,
    client: &Client,
    (target, wait): (Target<Instance>, Wait),
    settings: &PortSettings,
    options: &str,
) -> Result<(), Failure> {
    if settings.is_empty() {
        return Err(Failure::Usage(format!("give {options}")));
    }
    let instance = target.update(client, settings).await?;
    wait.print_when(api, client, instance, |_| true).await
}

impl Run for InstanceVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Migrate(migrate) => migrate.run(api, client).await,
            Self::CancelMigration(cancel) => cancel.run(client).await,
            Self::Move { target, to, wait } => {
                let to = client.id_of::<Host>(&to, &[]).await?;
                let instance = target.update(client, &json!({"host": to})).await?;
                wait.print_when(api, client, instance, |_| true).await
            }
            Self::SetSecurityGroups { target, groups, wait } => {
                let instance = target.find(client).await?;
                let groups = groups.ids(client, instance.vpc).await?.ok_or_else(|| {
                    Failure::Usage("give --security-group or --no-security-groups".to_owned())
                })?;
                let patch = json!({"security_groups": groups});
                let instance = client.update::<Instance>(instance.id, &patch, target.expected()).await?;
                wait.print_when(api, client, instance, |_| true).await
            }
            Self::SetAddresses { target, addresses, wait } => {
                let mut settings = PortSettings::default();
                addresses.set(&mut settings);
                let options = "--secondary-address, --no-secondary-addresses, --delegated-prefix or --no-delegated-prefixes";
                set(api, client, (target, wait), &settings, options).await
            }
            Self::SetAddressPairs { target, pairs, wait } => {
                let mut settings = PortSettings::default();
                pairs.set(&mut settings);
                set(api, client, (target, wait), &settings, "--address-pair or --no-address-pairs").await
            }
            Self::SetSpoofingProtection { target, protection, wait } => {
                let spoofing_protection = Some(protection == Protection::On);
                let settings = PortSettings { spoofing_protection, ..PortSettings::default() };
                set(api, client, (target, wait), &settings, "on or off").await
            }
            Self::SetQos { target, qos, network_class, wait } => {
                let before = target.find(client).await?;
                let network_class = new_class_of(client, network_class.as_deref()).await?;
                let settings =
                    PortSettings { qos: qos.after(before.qos), network_class, ..PortSettings::default() };
                if settings.is_empty() {
                    let options = "--dscp, --rate-mbps or --network-class";
                    return Err(Failure::Usage(format!("give {options}")));
                }
                // The part that is not given stays as it was read.
                let expected = target.expected().or(Some(before.revision));
                let instance = client.update::<Instance>(before.id, &settings, expected).await?;
                wait.print_when(api, client, instance, |_| true).await
            }
        }
    }
}
