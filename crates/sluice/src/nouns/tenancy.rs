//! What tenants have: VPCs, subnets, instances.

use super::{InVpc, find, in_vpc};
use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use crate::output;
use crate::verbs::{self, Expect, Limit, Wait, Which};
use clap::{ArgGroup, Subcommand};
use serde_json::{Map, json};
use sluice_client::{
    Cluster, Host, Instance, NewInstance, NewSubnet, NewTenant, NewVpc, Subnet, Tenant, Vpc,
};
use sluice_types::{Ipv4Net, Ipv6Net, MacAddr, Vni};
use std::net::{Ipv4Addr, Ipv6Addr};

/// `sluice tenants`.
#[derive(Subcommand)]
pub enum Tenants {
    /// List tenants
    List(Limit),
    /// Show one
    Show(Which),
    /// Create one
    Create {
        /// Name, unique in the cloud
        name: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Rename one
    Update {
        #[command(flatten)]
        which: Which,
        /// New name
        #[arg(long)]
        name: String,
        #[command(flatten)]
        expect: Expect,
    },
    /// Delete one that has no VPCs
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Tenants {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List(limit) => {
                verbs::list::<Tenant>(api, &["id", "name", "revision", "programmed"], &[], limit).await
            }
            Self::Show(which) => output::one(api.output, &find::<Tenant>(&client, &which, None).await?),
            Self::Create { name, wait } => verbs::create(api, &client, (), &NewTenant { name }, wait).await,
            Self::Update { which, name, expect } => {
                let id = client.id_of::<Tenant>(&which.which, &[]).await?;
                let new: Tenant =
                    client.update::<Tenant>(id, &json!({"name": name}), expect.if_revision).await?;
                output::one(api.output, &new)
            }
            Self::Delete { which, expect } => {
                verbs::delete::<Tenant>(&client, &find(&client, &which, None).await?, expect).await
            }
        }
    }
}

/// Threshold of a VPC's flows; `None`: the gateways' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload(Option<u32>);

fn kbps(text: &str) -> Result<Offload, String> {
    match text {
        "default" => Ok(Offload(None)),
        "never" => Ok(Offload(Some(u32::MAX))),
        number => match number.parse() {
            Ok(0) => Err("at least 1 kbit/s".to_owned()),
            Ok(number) => Ok(Offload(Some(number))),
            Err(_) => Err("expected a number of kbit/s, `default` or `never`".to_owned()),
        },
    }
}

/// `sluice vpcs`.
#[derive(Subcommand)]
pub enum Vpcs {
    /// List VPCs
    List {
        /// Only this tenant's
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show one; TENANT/VPC where the name alone is not unique
    Show(Which),
    /// Create one
    Create {
        /// Name, unique in the tenant
        name: String,
        /// Owner
        #[arg(long)]
        tenant: String,
        /// Cluster to place it on; the least loaded one if left out
        #[arg(long)]
        cluster: Option<String>,
        /// VXLAN network identifier; chosen if left out
        #[arg(long)]
        vni: Option<Vni>,
        /// MTU of its interfaces, bytes
        #[arg(long)]
        mtu: Option<u16>,
        /// kbit/s from which a flow leaves the gateways for a direct path: a number, `default` or
        /// `never`
        #[arg(long, value_name = "KBPS", value_parser = kbps)]
        offload_kbps: Option<Offload>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Change name, MTU or what is offloaded
    #[command(group(ArgGroup::new("change").required(true).multiple(true)))]
    Update {
        #[command(flatten)]
        which: Which,
        /// New name
        #[arg(long, group = "change")]
        name: Option<String>,
        /// New MTU, bytes
        #[arg(long, group = "change")]
        mtu: Option<u16>,
        /// kbit/s from which a flow leaves the gateways for a direct path: a number, `default` or
        /// `never`
        #[arg(long, value_name = "KBPS", value_parser = kbps, group = "change")]
        offload_kbps: Option<Offload>,
        #[command(flatten)]
        expect: Expect,
    },
    /// Move it to another cluster without losing a packet, with all that it is peered with; back to
    /// where it was while it moves
    Move {
        #[command(flatten)]
        which: Which,
        /// Cluster to move to
        #[arg(long)]
        to: String,
        #[command(flatten)]
        expect: Expect,
        #[command(flatten)]
        wait: Wait,
    },
    /// Delete one that has no subnets
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Vpcs {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List { tenant, limit } => {
                let tenant = match tenant {
                    Some(tenant) => Some(client.id_of::<Tenant>(&tenant, &[]).await?.to_string()),
                    None => None,
                };
                let columns = ["id", "name", "tenant", "cluster", "moving_to", "vni", "mtu", "programmed"];
                verbs::list::<Vpc>(api, &columns, &[("tenant", tenant)], limit).await
            }
            Self::Show(which) => output::one(api.output, &api::vpc(&client, &which.which).await?),
            Self::Create { name, tenant, cluster, vni, mtu, offload_kbps, wait } => {
                let tenant = client.id_of::<Tenant>(&tenant, &[]).await?;
                let cluster = match cluster {
                    Some(cluster) => Some(client.id_of::<Cluster>(&cluster, &[]).await?),
                    None => None,
                };
                let offload_kbps = offload_kbps.and_then(|offload| offload.0);
                let body = NewVpc { name, tenant, cluster, vni, mtu, offload_kbps };
                verbs::create(api, &client, (), &body, wait).await
            }
            Self::Update { which, name, mtu, offload_kbps, expect } => {
                let mut patch = Map::new();
                patch.extend(name.map(|name| ("name".to_owned(), json!(name))));
                patch.extend(mtu.map(|mtu| ("mtu".to_owned(), json!(mtu))));
                patch.extend(offload_kbps.map(|offload| ("offload_kbps".to_owned(), json!(offload.0))));
                let id = api::vpc_id(&client, &which.which).await?;
                output::one(api.output, &client.update::<Vpc>(id, &patch, expect.if_revision).await?)
            }
            Self::Move { which, to, expect, wait } => {
                let to = client.id_of::<Cluster>(&to, &[]).await?;
                let id = api::vpc_id(&client, &which.which).await?;
                let vpc = client.update::<Vpc>(id, &json!({"cluster": to}), expect.if_revision).await?;
                verbs::settle(api, &client, vpc, wait, |vpc| vpc.moving_to.is_none()).await
            }
            Self::Delete { which, expect } => {
                verbs::delete(&client, &api::vpc(&client, &which.which).await?, expect).await
            }
        }
    }
}

/// `sluice subnets`.
#[derive(Subcommand)]
pub enum Subnets {
    /// List subnets
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
    /// Create one, with a prefix of each family or of one
    #[command(group(ArgGroup::new("prefix").required(true).multiple(true)))]
    Create {
        /// Name, unique in the VPC
        name: String,
        /// VPC, or TENANT/VPC
        #[arg(long)]
        vpc: String,
        /// IPv4 prefix; its first address is the router's
        #[arg(long, group = "prefix")]
        ipv4: Option<Ipv4Net>,
        /// IPv6 prefix; with a /64, instances configure themselves
        #[arg(long, group = "prefix")]
        ipv6: Option<Ipv6Net>,
        /// Resolver for DHCP; at most two
        #[arg(long)]
        dns: Vec<Ipv4Addr>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Delete one that has no instances
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        within: InVpc,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Subnets {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List { within, limit } => {
                let vpc = in_vpc(&client, within.vpc.as_ref()).await?;
                let columns = ["id", "name", "vpc", "ipv4", "ipv6", "dns", "programmed"];
                verbs::list::<Subnet>(api, &columns, &[("vpc", vpc)], limit).await
            }
            Self::Show { which, within } => {
                output::one(api.output, &find::<Subnet>(&client, &which, within.vpc.as_ref()).await?)
            }
            Self::Create { name, vpc, ipv4, ipv6, dns, wait } => {
                let vpc = api::vpc_id(&client, &vpc).await?;
                verbs::create(api, &client, vpc, &NewSubnet { name, ipv4, ipv6, dns }, wait).await
            }
            Self::Delete { which, within, expect } => {
                let subnet = find::<Subnet>(&client, &which, within.vpc.as_ref()).await?;
                verbs::delete(&client, &subnet, expect).await
            }
        }
    }
}

/// `sluice instances`.
#[derive(Subcommand)]
pub enum Instances {
    /// List instances
    List {
        #[command(flatten)]
        within: InVpc,
        /// Only those on this host
        #[arg(long)]
        host: Option<String>,
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
    /// Create one; addresses left out are chosen
    Create {
        /// Name, unique in the VPC
        name: String,
        /// VPC, or TENANT/VPC
        #[arg(long)]
        vpc: String,
        /// Subnet of the VPC
        #[arg(long)]
        subnet: String,
        /// Host that it is on
        #[arg(long)]
        host: String,
        /// Its interface's address
        #[arg(long)]
        mac: Option<MacAddr>,
        /// IPv4 address of the subnet
        #[arg(long)]
        ipv4: Option<Ipv4Addr>,
        /// IPv6 address of the subnet
        #[arg(long)]
        ipv6: Option<Ipv6Addr>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Say that it is on another host now
    Move {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        within: InVpc,
        /// Host that it is on
        #[arg(long)]
        to: String,
        #[command(flatten)]
        expect: Expect,
        #[command(flatten)]
        wait: Wait,
    },
    /// Delete one
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        within: InVpc,
        #[command(flatten)]
        expect: Expect,
    },
}

impl Instances {
    /// Runs the verb.
    pub async fn run(self, api: &ApiArgs) -> Result<(), Failure> {
        let client = api.client()?;
        match self {
            Self::List { within, host, limit } => {
                let vpc = in_vpc(&client, within.vpc.as_ref()).await?;
                let host = match host {
                    Some(host) => Some(client.id_of::<Host>(&host, &[]).await?.to_string()),
                    None => None,
                };
                let columns = ["id", "name", "vpc", "subnet", "host", "mac", "ipv4", "ipv6", "programmed"];
                verbs::list::<Instance>(api, &columns, &[("vpc", vpc), ("host", host)], limit).await
            }
            Self::Move { which, within, to, expect, wait } => {
                let to = client.id_of::<Host>(&to, &[]).await?;
                let id = find::<Instance>(&client, &which, within.vpc.as_ref()).await?.id;
                let moved = client.update::<Instance>(id, &json!({"host": to}), expect.if_revision).await?;
                verbs::settle(api, &client, moved, wait, |_| true).await
            }
            Self::Show { which, within } => {
                output::one(api.output, &find::<Instance>(&client, &which, within.vpc.as_ref()).await?)
            }
            Self::Create { name, vpc, subnet, host, mac, ipv4, ipv6, wait } => {
                let vpc = api::vpc_id(&client, &vpc).await?;
                let subnet = client.id_of::<Subnet>(&subnet, &[("vpc", &vpc.to_string())]).await?;
                let host = client.id_of::<Host>(&host, &[]).await?;
                let body = NewInstance { name, subnet, host, mac, ipv4, ipv6 };
                verbs::create(api, &client, vpc, &body, wait).await
            }
            Self::Delete { which, within, expect } => {
                let instance = find::<Instance>(&client, &which, within.vpc.as_ref()).await?;
                verbs::delete(&client, &instance, expect).await
            }
        }
    }
}
