//! Arguments and verbs of services, their members and their mounts.

use super::internet::{id_in_vpc, optional_id_in_vpc};
use super::resource::{
    ByName, ByVpc, Creatable, Create, Filter, Help, InVpc, Kind, NameInVpc, NoPreview, Parent, Run, Select,
    Target,
};
use super::security::Groups;
use crate::api::{self, ApiArgs};
use crate::failure::Failure;
use crate::output;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, json};
use sluice_client::{Client, Instance, Mount, NewMount, NewService, Service, Subnet, Tenant};
use sluice_types::TenantId;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

impl Kind for Service {
    const HELP: Help = Help { list: "List services", show: "Show one service" };
    const COLUMNS: &'static [&'static str] = &["id", "name", "vpc", "allow_all_tenants", "allow_tenants"];
    type Selector = NameInVpc;
    type Filters = ByVpc;
}

impl Creatable for Service {
    const CREATE_HELP: &'static str = "Create a service, whose members are instances of its VPC";
    const DELETE_HELP: &'static str = "Delete a service without members and mounts";
    type New = NewServiceArgs;
    type Verbs = ServiceVerb;
    type Preview = NoPreview;
}

/// Which tenants may mount a service.
#[derive(Args)]
pub struct Allowed {
    /// Tenant whose VPCs may mount the service, besides that of its own VPC: name or id; can be given up to 1024 times. Those
    /// of an update replace all that were named before
    #[arg(long, value_name = "TENANT")]
    allow_tenant: Vec<String>,
    /// VPCs of all tenants may mount the service
    #[arg(long)]
    allow_all_tenants: bool,
}

impl Allowed {
    /// The ids of the tenants; `None` if none was given.
    async fn tenants(&self, client: &Client) -> Result<Option<Vec<TenantId>>, Failure> {
        let mut ids = Vec::new();
        for tenant in &self.allow_tenant {
            ids.push(client.id_of::<Tenant>(tenant, &[]).await?);
        }
        Ok((!ids.is_empty()).then_some(ids))
    }
}

#[derive(Args)]
pub struct NewServiceArgs {
    /// Name, unique in the VPC
    name: String,
    /// VPC whose instances are the members: name, TENANT/NAME or id
    #[arg(long)]
    vpc: String,
    #[command(flatten)]
    allowed: Allowed,
}

impl Create for NewServiceArgs {
    type Object = Service;
    type Body = NewService;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewService), Failure> {
        let vpc = api::vpc(client, &self.vpc).await?.id;
        let allow_tenants = self.allowed.tenants(client).await?;
        let allow_all_tenants = self.allowed.allow_all_tenants.then_some(true);
        Ok((vpc, NewService { name: self.name, allow_all_tenants, allow_tenants }))
    }
}

/// A service and one of its members.
#[derive(Args)]
pub struct OfMember {
    #[command(flatten)]
    service: NameInVpc,
    /// The instance, in the VPC of the service: name or id
    #[arg(long)]
    instance: String,
}

impl OfMember {
    async fn find(&self, client: &Client) -> Result<(Service, Instance), Failure> {
        let service: Service = self.service.find(client).await?;
        let instance = client.find(&self.instance, &[("vpc", &service.vpc.to_string())]).await?;
        Ok((service, instance))
    }
}

#[derive(Subcommand)]
pub enum ServiceVerb {
    /// Change which tenants may mount a service
    #[command(group(ArgGroup::new("change").required(true).multiple(true)
        .args(["allow_tenant", "allow_all_tenants", "allow_no_tenants", "allow_named_only"])))]
    Update {
        #[command(flatten)]
        target: Target<Service>,
        #[command(flatten)]
        allowed: Allowed,
        /// No other tenant than that of the service's VPC is named
        #[arg(long, conflicts_with = "allow_tenant")]
        allow_no_tenants: bool,
        /// Only tenants that are named may mount the service
        #[arg(long, conflicts_with = "allow_all_tenants")]
        allow_named_only: bool,
    },
    /// List the members of a service
    Members {
        #[command(flatten)]
        service: NameInVpc,
    },
    /// Make an instance a member of a service
    AddMember {
        #[command(flatten)]
        member: OfMember,
    },
    /// Remove a member from a service; its flows go to other members
    RemoveMember {
        #[command(flatten)]
        member: OfMember,
        /// Wait until no node has its vNICs, for at most SECONDS [30 if left out]
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "30")]
        wait: Option<u64>,
    },
    /// Give new flows to other members; those that the member has, stay
    DrainMember {
        #[command(flatten)]
        member: OfMember,
        /// Give the member new flows again
        #[arg(long)]
        undo: bool,
    },
}

impl Run for ServiceVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Update { target, allowed, allow_no_tenants, allow_named_only } => {
                let mut patch = Map::new();
                let tenants = allowed.tenants(client).await?.or(allow_no_tenants.then(Vec::new));
                patch.extend(tenants.map(|tenants| ("allow_tenants".to_owned(), json!(tenants))));
                if allowed.allow_all_tenants || allow_named_only {
                    patch.insert("allow_all_tenants".to_owned(), json!(allowed.allow_all_tenants));
                }
                output::one(api.output, &target.update(client, &patch).await?)
            }
            Self::Members { service } => {
                let service: Service = service.find(client).await?;
                let columns = ["instance", "name", "host", "number", "status", "draining", "evidence"];
                output::list(api.output, &columns, &client.members(service.id).await?)
            }
            Self::AddMember { member } => {
                let (service, instance) = member.find(client).await?;
                output::one(api.output, &client.add_member(service.id, instance.id).await?)
            }
            Self::RemoveMember { member, wait } => {
                let (service, instance) = member.find(client).await?;
                let removal = client.remove_member(service.id, instance.id).await?;
                eprintln!("removed instance `{}` from service `{}`", instance.name, service.name);
                if let Some(seconds) = wait {
                    let what = format!("member {}", instance.id);
                    client.wait_removed(&what, removal.revision, Duration::from_secs(seconds)).await?;
                }
                Ok(())
            }
            Self::DrainMember { member, undo } => {
                let (service, instance) = member.find(client).await?;
                output::one(api.output, &client.drain_member(service.id, instance.id, !undo).await?)
            }
        }
    }
}

impl Kind for Mount {
    const HELP: Help = Help { list: "List mounts of services", show: "Show one mount" };
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "vpc", "subnet", "service", "ipv4", "ipv6", "programmed"];
    type Selector = NameInVpc;
    type Filters = MountFilters;
}

impl Creatable for Mount {
    const CREATE_HELP: &'static str =
        "Mount a service in a VPC, which reaches it by the addresses of the mount";
    const DELETE_HELP: &'static str = "Delete a mount and its vNICs";
    type New = NewMountArgs;
    type Verbs = MountVerb;
    type Preview = NoPreview;
}

#[derive(Args)]
pub struct MountFilters {
    #[command(flatten)]
    vpc: InVpc,
    /// Only mounts of this service: name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(long, value_name = "VPC/NAME|ID")]
    service: Option<String>,
    #[command(flatten)]
    name: ByName,
}

impl Filter for MountFilters {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = self.name.query(client).await?;
        let service = optional_id_in_vpc::<Service>(client, self.service.as_deref()).await?;
        query.extend(service.map(|service| ("service", service.to_string())));
        query.extend(self.vpc.id(client).await?.map(|vpc| ("vpc", vpc)));
        Ok(query)
    }
}

#[derive(Args)]
pub struct NewMountArgs {
    /// Name, unique in the VPC
    name: String,
    /// VPC that reaches the service by it: name, TENANT/NAME or id
    #[arg(long)]
    vpc: String,
    /// Subnet of the VPC from which it has its addresses: name or id
    #[arg(long)]
    subnet: String,
    /// The service: name, VPC/NAME, TENANT/VPC/NAME or id
    #[arg(long, value_name = "VPC/NAME|ID")]
    service: String,
    /// IPv4 address [default: the lowest free one, if the subnet has an IPv4 prefix]
    #[arg(long)]
    ipv4: Option<Ipv4Addr>,
    /// IPv6 address [default: the lowest free one, if the subnet has an IPv6 prefix]
    #[arg(long)]
    ipv6: Option<Ipv6Addr>,
    #[command(flatten)]
    groups: Groups,
}

impl Create for NewMountArgs {
    type Object = Mount;
    type Body = NewMount;
    async fn request(self, client: &Client) -> Result<(Parent<Self>, NewMount), Failure> {
        let vpc = api::vpc(client, &self.vpc).await?.id;
        let subnet = client.id_of::<Subnet>(&self.subnet, &[("vpc", &vpc.to_string())]).await?;
        let service = id_in_vpc::<Service>(client, &self.service).await?;
        let security_groups = self.groups.ids(client, vpc).await?;
        let Self { name, ipv4, ipv6, .. } = self;
        Ok((vpc, NewMount { name, service, subnet, ipv4, ipv6, security_groups }))
    }
}

#[derive(Subcommand)]
pub enum MountVerb {
    /// List the vNICs of a mount: their ids are for `sluice port attach --instance` on their hosts
    Vnics {
        #[command(flatten)]
        mount: NameInVpc,
    },
}

impl Run for MountVerb {
    async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self::Vnics { mount } = self;
        let mount: Mount = mount.find(client).await?;
        let columns = ["id", "member", "name", "host", "status", "draining", "programmed"];
        output::list(api.output, &columns, &client.vnics(mount.id).await?)
    }
}
