//! The references of a cloud file to objects that it describes or that the cloud has. They are resolved before
//! anything is created, so that a wrong name does not leave a part of the file created.

use crate::cloud::name_in;
use crate::cloud::security::rule_object;
use crate::{
    Client, CloudFile, Cluster, DEFAULT_GROUP, EipSpec, Error, FieldError, Host, Instance, Meter,
    NetworkClass, Peering, PeeringSpec, PublicPool, Remote, Resource, Result, RouteTargetSpec, SecurityGroup,
    Subnet, Tenant, Vpc,
};
use sluice_types::{ClusterId, HostId, NetworkClassId, PublicPoolId, TenantId, VpcId};
use std::collections::{HashMap, HashSet};

/// The VPC at one end of a peering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Position of the VPC in the file.
    InFile(usize),
    /// A VPC that the file does not describe, or gives by its id.
    InCloud(VpcId),
}

/// The existing objects that a cloud file refers to but does not describe, by the text of the reference, and
/// the VPCs of its peerings.
pub(crate) struct References {
    pub tenants: HashMap<String, TenantId>,
    pub clusters: HashMap<String, ClusterId>,
    pub hosts: HashMap<String, HostId>,
    pub pools: HashMap<String, PublicPoolId>,
    pub classes: HashMap<String, NetworkClassId>,
    /// In the order of the file.
    pub ends: Vec<[End; 2]>,
    /// The VPCs that EIPs name, in the order of the file.
    pub eip_vpcs: Vec<Option<End>>,
}

/// Resolves all references of a cloud file.
///
/// # Errors
/// [`Error::CloudFile`] for the first reference that does not name one object; the errors of all calls.
pub(crate) async fn resolve(client: &Client, cloud: &CloudFile) -> Result<References> {
    let mut resolver = Resolver::new(client, cloud);
    resolver.top_level().await?;
    resolver.meters().await?;
    for index in 0..cloud.vpcs.len() {
        resolver.subnets(index).await?;
        resolver.security_groups(index).await?;
        resolver.port_forwards(index).await?;
    }
    for peering in &cloud.peerings {
        let ends = resolver.ends_of(peering).await?;
        resolver.ends.push(ends);
        resolver.meters_of_peering(peering, ends).await?;
    }
    for index in 0..cloud.vpcs.len() {
        resolver.routes(index).await?;
    }
    let mut eip_vpcs = Vec::new();
    for eip in &cloud.eips {
        eip_vpcs.push(resolver.eip(eip).await?);
    }
    let Resolver { tenants, clusters, hosts, pools, classes, ends, .. } = resolver;
    let (tenants, clusters, hosts) = (tenants.outside, clusters.outside, hosts.outside);
    let (pools, classes) = (pools.outside, classes.outside);
    Ok(References { tenants, clusters, hosts, pools, classes, ends, eip_vpcs })
}

/// Objects of one kind whose names are unique in the cloud.
struct Kind<'a, T: Resource> {
    client: &'a Client,
    in_file: HashSet<&'a str>,
    /// Those that the file refers to but does not describe.
    outside: HashMap<String, T::Id>,
}

impl<'a, T: Resource> Kind<'a, T> {
    fn new(client: &'a Client, names: impl Iterator<Item = &'a str>) -> Self {
        Self { client, in_file: names.collect(), outside: HashMap::new() }
    }

    /// Resolves the reference in a field. `object` describes the object that has the field.
    async fn resolve(
        &mut self,
        text: &str,
        field: &'static str,
        object: impl FnOnce() -> String,
    ) -> Result<()> {
        if self.in_file.contains(name_in(text)) || self.outside.contains_key(text) {
            return Ok(());
        }
        match self.client.id_of::<T>(text, &[]).await {
            Ok(id) => {
                self.outside.insert(text.to_owned(), id);
                Ok(())
            }
            Err(error) => Err(in_field::<T>(error, text, field, object())),
        }
    }
}

struct Resolver<'a> {
    client: &'a Client,
    cloud: &'a CloudFile,
    tenants: Kind<'a, Tenant>,
    clusters: Kind<'a, Cluster>,
    hosts: Kind<'a, Host>,
    pools: Kind<'a, PublicPool>,
    classes: Kind<'a, NetworkClass>,
    /// Positions of the file's VPCs by name.
    vpcs: HashMap<&'a str, Vec<usize>>,
    /// Positions of the file's peerings by name.
    peerings: HashMap<&'a str, Vec<usize>>,
    ends: Vec<[End; 2]>,
    /// Ids of the file's tenants in the existing cloud, as far as they were needed.
    tenant_ids: HashMap<&'a str, Option<TenantId>>,
    /// Ids of the file's VPCs in the existing cloud by position, as far as they were needed.
    vpc_ids: HashMap<usize, Option<VpcId>>,
}

impl<'a> Resolver<'a> {
    fn new(client: &'a Client, cloud: &'a CloudFile) -> Self {
        Self {
            client,
            cloud,
            tenants: Kind::new(client, cloud.tenants.iter().map(|spec| spec.name.as_str())),
            clusters: Kind::new(client, cloud.clusters.iter().map(|spec| spec.name.as_str())),
            hosts: Kind::new(client, cloud.hosts.iter().map(|spec| spec.name.as_str())),
            pools: Kind::new(client, cloud.public_pools.iter().map(|spec| spec.name.as_str())),
            classes: Kind::new(client, cloud.network_classes.iter().map(|spec| spec.name.as_str())),
            vpcs: positions(cloud.vpcs.iter().map(|spec| spec.name.as_str())),
            peerings: positions(cloud.peerings.iter().map(|spec| spec.name.as_str())),
            ends: Vec::new(),
            tenant_ids: HashMap::new(),
            vpc_ids: HashMap::new(),
        }
    }

    /// Resolves references to tenants, clusters, hosts, pools and network classes.
    async fn top_level(&mut self) -> Result<()> {
        let cloud = self.cloud;
        for spec in &cloud.gateways {
            let object = || format!("gateway `{}`", spec.name);
            self.clusters.resolve(&spec.cluster, "cluster", object).await?;
        }
        for spec in &cloud.vpcs {
            let object = || format!("VPC `{}`", spec.name);
            self.tenants.resolve(&spec.tenant, "tenant", object).await?;
            if let Some(cluster) = &spec.cluster {
                self.clusters.resolve(cluster, "cluster", object).await?;
            }
            if let Some(nat_gateway) = &spec.nat_gateway {
                let object = || format!("NAT gateway `{}` of VPC `{}`", nat_gateway.name, spec.name);
                self.pools.resolve(&nat_gateway.pool, "pool", object).await?;
            }
            for instance in &spec.instances {
                let object = || format!("instance `{}` in VPC `{}`", instance.name, spec.name);
                self.hosts.resolve(&instance.host, "host", object).await?;
                if let Some(class) = &instance.network_class {
                    self.classes.resolve(class, "network_class", object).await?;
                }
            }
        }
        for spec in &cloud.peerings {
            let object = || format!("peering `{}`", spec.name);
            if let Some(tenant) = &spec.tenant {
                self.tenants.resolve(tenant, "tenant", object).await?;
            }
        }
        for spec in &cloud.public_pools {
            let object = || format!("public pool `{}`", spec.name);
            self.clusters.resolve(&spec.cluster, "cluster", object).await?;
        }
        for spec in &cloud.meters {
            let object = || format!("meter `{}`", spec.name);
            self.tenants.resolve(&spec.tenant, "tenant", object).await?;
        }
        for spec in &cloud.eips {
            let object = || format!("EIP `{}`", spec.name);
            self.tenants.resolve(&spec.tenant, "tenant", object).await?;
            self.pools.resolve(&spec.pool, "pool", object).await?;
        }
        Ok(())
    }

    /// Resolves the meters of VPCs and EIPs, which belong to the same tenants.
    async fn meters(&mut self) -> Result<()> {
        let cloud = self.cloud;
        for spec in &cloud.vpcs {
            let object = || format!("VPC `{}`", spec.name);
            self.meter(&spec.tenant, spec.internet_meter.as_deref(), "internet_meter", object).await?;
        }
        for spec in &cloud.eips {
            let object = || format!("EIP `{}`", spec.name);
            self.meter(&spec.tenant, spec.meter.as_deref(), "meter", object).await?;
        }
        Ok(())
    }

    /// Resolves the meters of the sides of a peering.
    async fn meters_of_peering(&mut self, spec: &'a PeeringSpec, ends: [End; 2]) -> Result<()> {
        let object = || format!("peering `{}`", spec.name);
        let tenant = tenant_of_peering(self.cloud, spec, ends);
        for text in spec.meters.values() {
            let Some(tenant) = tenant else {
                let problem = "give the tenant of the VPCs, to which the meters belong".to_owned();
                return Err(FieldError { object: object(), field: "tenant", problem }.into());
            };
            self.meter(tenant, Some(text), "meters", object).await?;
        }
        Ok(())
    }

    /// Resolves the meter of an object of a tenant.
    async fn meter(
        &mut self,
        tenant: &'a str,
        text: Option<&str>,
        field: &'static str,
        object: impl FnOnce() -> String,
    ) -> Result<()> {
        let Some(text) = text else { return Ok(()) };
        let cloud = self.cloud;
        let id = self.tenant_id(tenant).await?;
        for spec in cloud.meters.iter().filter(|spec| spec.name == name_in(text)) {
            // One of both may give the id of the tenant, and the other its name.
            let is_same = name_in(&spec.tenant) == name_in(tenant);
            if is_same || id.is_some() && self.tenant_id(&spec.tenant).await? == id {
                return Ok(());
            }
        }
        let found = match id {
            Some(id) => self.client.find::<Meter>(text, &[("tenant", &id.to_string())]).await.map(drop),
            None => Err(no_such_name::<Meter>(text)),
        };
        found.map_err(|error| in_field::<Meter>(error, text, field, object()))
    }

    /// Resolves the subnets of a VPC's instances.
    async fn subnets(&mut self, index: usize) -> Result<()> {
        let cloud = self.cloud;
        let spec = &cloud.vpcs[index];
        let in_file: HashSet<&str> = spec.subnets.iter().map(|subnet| subnet.name.as_str()).collect();
        let mut outside: HashSet<&str> = HashSet::new();
        for instance in &spec.instances {
            let text = instance.subnet.as_str();
            if in_file.contains(name_in(text)) || outside.contains(text) {
                continue;
            }
            let object = || format!("instance `{}` in VPC `{}`", instance.name, spec.name);
            let vpc = self.vpc_id(index).await?;
            self.in_vpc::<Subnet>(vpc, text, "subnet", object).await?;
            outside.insert(text);
        }
        Ok(())
    }

    /// Resolves the security groups of a VPC's instances and rules.
    async fn security_groups(&mut self, index: usize) -> Result<()> {
        let spec = &self.cloud.vpcs[index];
        let mut known: HashSet<&str> = spec.security_groups.iter().map(|group| group.name.as_str()).collect();
        // Each VPC has it from the start.
        known.insert(DEFAULT_GROUP);
        for group in &spec.security_groups {
            for (number, rule) in group.rules.iter().enumerate() {
                if let Remote::Group(text) = &rule.remote {
                    let object = || rule_object(&spec.name, &group.name, number);
                    self.security_group(index, text, "remote", &mut known, object).await?;
                }
            }
        }
        for instance in &spec.instances {
            for text in instance.security_groups.as_deref().unwrap_or_default() {
                let object = || format!("instance `{}` in VPC `{}`", instance.name, spec.name);
                self.security_group(index, text, "security_groups", &mut known, object).await?;
            }
        }
        Ok(())
    }

    /// Resolves one security group, unless it is known.
    async fn security_group(
        &mut self,
        index: usize,
        text: &'a str,
        field: &'static str,
        known: &mut HashSet<&'a str>,
        object: impl Fn() -> String,
    ) -> Result<()> {
        if known.contains(name_in(text)) || known.contains(text) {
            return Ok(());
        }
        let vpc = self.vpc_id(index).await?;
        self.in_vpc::<SecurityGroup>(vpc, text, field, object).await?;
        known.insert(text);
        Ok(())
    }

    async fn ends_of(&mut self, spec: &'a PeeringSpec) -> Result<[End; 2]> {
        let [a, b] = &spec.vpcs;
        let (tenant, object) = (spec.tenant.as_deref(), || format!("peering `{}`", spec.name));
        let ends = [self.end(tenant, a, "vpcs", object).await?, self.end(tenant, b, "vpcs", object).await?];
        if self.is_same_vpc(ends).await? {
            let object = format!("peering `{}`", spec.name);
            let problem = format!("`{a}` and `{b}` are the same VPC");
            return Err(FieldError { object, field: "vpcs", problem }.into());
        }
        Ok(ends)
    }

    /// Resolves the VPC in a field, of this tenant if one is given. `object` describes the object that has the field.
    async fn end(
        &mut self,
        tenant: Option<&'a str>,
        text: &'a str,
        field: &'static str,
        object: impl Fn() -> String,
    ) -> Result<End> {
        let (client, cloud) = (self.client, self.cloud);
        let named = self.vpcs.get(name_in(text)).cloned().unwrap_or_default();
        let is_of_tenant = |index: &usize| {
            tenant.is_none_or(|tenant| name_in(tenant) == name_in(&cloud.vpcs[*index].tenant))
        };
        let of_tenant: Vec<usize> = named.iter().copied().filter(is_of_tenant).collect();
        match of_tenant.as_slice() {
            [index] => return Ok(End::InFile(*index)),
            [] => {}
            _ => {
                let problem = format!("several tenants have a VPC `{text}`; give one of them");
                return Err(FieldError { object: object(), field: "tenant", problem }.into());
            }
        }
        let found = match tenant {
            None => client.id_of::<Vpc>(text, &[]).await,
            Some(tenant) => match self.tenant_id(tenant).await? {
                None => Err(no_such_name::<Vpc>(text)),
                Some(tenant) => {
                    // The peering may give the id of the tenant, and the VPC its name.
                    for index in named {
                        if self.tenant_id(&cloud.vpcs[index].tenant).await? == Some(tenant) {
                            return Ok(End::InFile(index));
                        }
                    }
                    client.id_of::<Vpc>(text, &[("tenant", &tenant.to_string())]).await
                }
            },
        };
        found.map(End::InCloud).map_err(|error| in_field::<Vpc>(error, text, field, object()))
    }

    /// Resolves what an EIP is attached to. Returns its VPC.
    async fn eip(&mut self, spec: &'a EipSpec) -> Result<Option<End>> {
        let Some(vpc) = &spec.vpc else { return Ok(None) };
        let cloud = self.cloud;
        let object = || format!("EIP `{}`", spec.name);
        let end = self.end(Some(&spec.tenant), vpc, "vpc", object).await?;
        let (id, in_file) = match end {
            End::InFile(index) => (self.vpc_id(index).await?, Some(&cloud.vpcs[index])),
            End::InCloud(id) => (Some(id), None),
        };
        if let Some(text) = spec.instance.as_deref() {
            let is_in_file =
                in_file.is_some_and(|vpc| vpc.instances.iter().any(|it| it.name == name_in(text)));
            if !is_in_file {
                self.in_vpc::<Instance>(id, text, "instance", object).await?;
            }
        }
        if let Some(text) = spec.subnet.as_deref() {
            let is_in_file = in_file.is_some_and(|vpc| vpc.subnets.iter().any(|it| it.name == name_in(text)));
            if !is_in_file {
                self.in_vpc::<Subnet>(id, text, "subnet", object).await?;
            }
        }
        Ok(Some(end))
    }

    /// Resolves the instances of the port forwards of a VPC's NAT gateway.
    async fn port_forwards(&mut self, index: usize) -> Result<()> {
        let cloud = self.cloud;
        let spec = &cloud.vpcs[index];
        for forward in spec.nat_gateway.iter().flat_map(|nat| &nat.port_forwards) {
            let text = forward.instance.as_str();
            if spec.instances.iter().any(|instance| instance.name == name_in(text)) {
                continue;
            }
            let object = || format!("port forward `{}` in VPC `{}`", forward.name, spec.name);
            let vpc = self.vpc_id(index).await?;
            self.in_vpc::<Instance>(vpc, text, "instance", object).await?;
        }
        Ok(())
    }

    /// Resolves an object of a VPC that the file does not describe. The existing cloud may not have the VPC.
    async fn in_vpc<T: Resource>(
        &self,
        vpc: Option<VpcId>,
        text: &str,
        field: &'static str,
        object: impl FnOnce() -> String,
    ) -> Result<()> {
        let found = match vpc {
            Some(vpc) => self.client.find::<T>(text, &[("vpc", &vpc.to_string())]).await,
            None => Err(no_such_name::<T>(text)),
        };
        found.map(drop).map_err(|error| in_field::<T>(error, text, field, object()))
    }

    /// Resolves the peerings that are targets of a VPC's routes.
    async fn routes(&mut self, index: usize) -> Result<()> {
        let (client, cloud) = (self.client, self.cloud);
        let spec = &cloud.vpcs[index];
        let mut known: HashSet<&str> = HashSet::new();
        for route in &spec.routes {
            let RouteTargetSpec::Peering(text) = &route.target else { continue };
            if !known.insert(text) || self.has_peering(index, text).await? {
                continue;
            }
            let object = || format!("route {} in VPC `{}`", route.destination, spec.name);
            let vpc = self.vpc_id(index).await?;
            let found = match vpc {
                Some(vpc) => client.find::<Peering>(text, &[("vpc", &vpc.to_string())]).await,
                None => Err(no_such_name::<Peering>(text)),
            };
            let peering = found.map_err(|error| in_field::<Peering>(error, text, "target", object()))?;
            if vpc.is_none_or(|vpc| !peering.vpcs.contains(&vpc)) {
                let problem = format!("{} is not a peering of this VPC", peering.id);
                return Err(FieldError { object: object(), field: "target", problem }.into());
            }
        }
        Ok(())
    }

    /// True if a peering of the file has this name, and the VPC at one end.
    async fn has_peering(&mut self, index: usize, text: &str) -> Result<bool> {
        let named = self.peerings.get(name_in(text)).cloned().unwrap_or_default();
        let ends: Vec<End> = named.into_iter().flat_map(|peering| self.ends[peering]).collect();
        for end in ends {
            if self.is_same_vpc([End::InFile(index), end]).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn is_same_vpc(&mut self, ends: [End; 2]) -> Result<bool> {
        match ends {
            [End::InFile(index), End::InCloud(id)] | [End::InCloud(id), End::InFile(index)] => {
                Ok(self.vpc_id(index).await? == Some(id))
            }
            [a, b] => Ok(a == b),
        }
    }

    /// The id of a tenant in the existing cloud.
    async fn tenant_id(&mut self, text: &'a str) -> Result<Option<TenantId>> {
        if let Some(id) = self.tenants.outside.get(text) {
            return Ok(Some(*id));
        }
        if let Some(id) = self.tenant_ids.get(text) {
            return Ok(*id);
        }
        let found: Option<Tenant> = self.client.find_by_name(name_in(text), &[]).await?;
        let id = found.map(|tenant| tenant.id);
        self.tenant_ids.insert(text, id);
        Ok(id)
    }

    /// The id of a VPC of the file in the existing cloud.
    async fn vpc_id(&mut self, index: usize) -> Result<Option<VpcId>> {
        if let Some(id) = self.vpc_ids.get(&index) {
            return Ok(*id);
        }
        let (client, cloud) = (self.client, self.cloud);
        let spec = &cloud.vpcs[index];
        let found: Option<Vpc> = match self.tenant_id(&spec.tenant).await? {
            Some(tenant) => client.find_by_name(&spec.name, &[("tenant", &tenant.to_string())]).await?,
            None => None,
        };
        let id = found.map(|vpc| vpc.id);
        self.vpc_ids.insert(index, id);
        Ok(id)
    }
}

/// The tenant of a peering, as far as the file names it.
pub(crate) fn tenant_of_peering<'a>(
    cloud: &'a CloudFile,
    spec: &'a PeeringSpec,
    ends: [End; 2],
) -> Option<&'a str> {
    let of_vpc = |end| match end {
        End::InFile(index) => Some(cloud.vpcs[index].tenant.as_str()),
        End::InCloud(_) => None,
    };
    spec.tenant.as_deref().or_else(|| ends.into_iter().find_map(of_vpc))
}

fn positions<'a>(names: impl Iterator<Item = &'a str>) -> HashMap<&'a str, Vec<usize>> {
    let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
    for (position, name) in names.enumerate() {
        positions.entry(name).or_default().push(position);
    }
    positions
}

fn no_such_name<T: Resource>(text: &str) -> Error {
    Error::NoSuchName { kind: T::NOUN, name: text.to_owned(), within: String::new() }
}

/// The error for a field whose text does not name one object; any other error is returned as it is.
fn in_field<T: Resource>(error: Error, text: &str, field: &'static str, object: String) -> Error {
    let problem = if error.is_not_found() {
        format!("neither the file nor the cloud has a {} `{text}`", T::NOUN)
    } else if matches!(error, Error::AmbiguousName { .. } | Error::NameOrId { .. } | Error::NotWithin { .. })
    {
        error.to_string()
    } else {
        return error;
    };
    FieldError { object, field, problem }.into()
}
