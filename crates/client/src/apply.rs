//! [`apply()`]: creates the objects of a cloud file in the order of their dependencies, or in a dry run
//! compares them with the existing cloud.

mod internet;
mod security;

use crate::cloud::name_in;
use crate::references::{End, References, resolve, tenant_of_peering};
use crate::{Client, Result};
use crate::{
    CloudFile, Cluster, Host, Instance, NetworkClass, NetworkClassSpec, NewCluster, NewGateway, NewHost,
    NewInstance, NewNetworkClass, NewObject, NewPeering, NewRoute, NewSubnet, NewTenant, NewVpc, Peering,
    PeeringSpec, Resource, RouteSpec, RouteTable, RouteTarget, RouteTargetSpec, Subnet, SubnetSpec, Tenant,
    VpcSpec,
};
use sluice_types::{
    ClusterId, HostId, NetworkClassId, PeeringId, PublicPoolId, SecurityGroupId, TenantId, VpcId,
};
use std::collections::HashMap;

/// Instances created by one bulk call: a body of a few megabytes, small enough to show progress.
const CHUNK: usize = 10_000;

/// Options of [`apply()`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Change nothing, only report what would be created.
    pub dry_run: bool,
}

/// Number of objects for each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Created (in a dry run: would be created).
    pub created: u64,
    /// An EIP that was not attached, and is attached now (in a dry run: would be attached).
    pub attached: u64,
    /// Existed with the same content.
    pub unchanged: u64,
    /// Only in a dry run: exists with different content, so that applying would fail.
    pub differing: u64,
}

/// Progress: one object, or some instances of one VPC, are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of object, as [`Resource::NOUN`].
    pub kind: &'static str,
    /// Name of the object; for instances, the name of their VPC, except in the event of one that differs.
    pub name: String,
    /// Outcome of this step.
    pub tally: Tally,
    /// In a dry run: the first field that differs from the existing object.
    pub difference: Option<String>,
    /// Objects done so far.
    pub done: u64,
    /// Objects in the cloud file.
    pub total: u64,
}

/// Outcome of [`apply()`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Outcome for each kind of object, in the order in which the kinds were processed.
    pub kinds: Vec<(&'static str, Tally)>,
}

impl Report {
    /// Sum over all kinds.
    pub fn total(&self) -> Tally {
        self.kinds.iter().fold(Tally::default(), |sum, (_, tally)| sum.plus(*tally))
    }
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            created: self.created + other.created,
            attached: self.attached + other.attached,
            unchanged: self.unchanged + other.unchanged,
            differing: self.differing + other.differing,
        }
    }
}

/// Creates the objects of the cloud file that do not exist. It can be repeated: an object that exists with
/// the same content is left unchanged, and an EIP that is not attached is attached. The API refuses an object
/// that exists with different content; objects created before it remain. All references are resolved before anything is created.
///
/// # Errors
/// [`Error::CloudFile`](crate::Error::CloudFile) for the first reference that cannot be resolved; the first
/// refusal, which names the object.
pub async fn apply(
    client: &Client,
    cloud: &CloudFile,
    options: Options,
    on_event: &mut (dyn FnMut(Event) + Send),
) -> Result<Report> {
    let References { tenants, clusters, hosts, pools, classes, ends, eip_vpcs } =
        resolve(client, cloud).await?;
    let (tenants, clusters, hosts) = (existing(tenants), existing(clusters), existing(hosts));
    let (pools, classes) = (existing(pools), existing(classes));
    let ids = Ids { tenants, clusters, hosts, pools, classes, ..Ids::default() };
    let total = cloud.len() as u64;
    let mut applier = Applier { client, options, on_event, total, done: 0, report: Report::default(), ids };
    applier.top_level(cloud).await?;
    for vpc in &cloud.vpcs {
        applier.vpc(vpc).await?;
    }
    for (peering, ends) in cloud.peerings.iter().zip(ends) {
        let vpcs = ends.map(|end| match end {
            End::InFile(index) => applier.vpc_id(&cloud.vpcs[index]),
            End::InCloud(id) => Some(id),
        });
        let tenant = tenant_of_peering(cloud, peering, ends);
        applier.peering(peering, tenant, vpcs).await?;
    }
    for vpc in &cloud.vpcs {
        applier.routes(vpc).await?;
    }
    for vpc in &cloud.vpcs {
        applier.instances(vpc).await?;
    }
    // First those that ask for an address, so that it is not given to one that takes any.
    for is_chosen in [true, false] {
        applier.eips(cloud, &eip_vpcs, is_chosen).await?;
        for vpc in &cloud.vpcs {
            applier.nat_gateway(vpc, is_chosen).await?;
        }
    }
    Ok(applier.report)
}

/// Ids of the objects that the cloud file describes, and of the existing objects that it refers to, by the
/// text of the reference. `None`: a dry run would create the object.
#[derive(Default)]
struct Ids {
    tenants: HashMap<String, Option<TenantId>>,
    clusters: HashMap<String, Option<ClusterId>>,
    hosts: HashMap<String, Option<HostId>>,
    pools: HashMap<String, Option<PublicPoolId>>,
    classes: HashMap<String, Option<NetworkClassId>>,
    /// Key: tenant and name, as written in the cloud file.
    vpcs: HashMap<(String, String), Option<VpcId>>,
    /// Key: name, and one of the two VPCs. Names are unique only in a tenant.
    peerings: HashMap<(String, VpcId), Option<PeeringId>>,
    /// Key: VPC, and the text of the reference.
    groups: HashMap<(VpcId, String), Option<SecurityGroupId>>,
}

fn existing<I>(found: HashMap<String, I>) -> HashMap<String, Option<I>> {
    found.into_iter().map(|(text, id)| (text, Some(id))).collect()
}

/// The id of an object that the cloud file describes or refers to.
fn known<I: Copy>(ids: &HashMap<String, Option<I>>, text: &str) -> Option<Option<I>> {
    ids.get(text).or_else(|| ids.get(name_in(text))).copied()
}

struct Applier<'a> {
    client: &'a Client,
    options: Options,
    on_event: &'a mut (dyn FnMut(Event) + Send),
    total: u64,
    done: u64,
    report: Report,
    ids: Ids,
}

impl Applier<'_> {
    fn report_step(&mut self, kind: &'static str, name: &str, tally: Tally, difference: Option<String>) {
        self.done += tally.created + tally.attached + tally.unchanged + tally.differing;
        match self.report.kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, sum)) => *sum = sum.plus(tally),
            None => self.report.kinds.push((kind, tally)),
        }
        let event =
            Event { kind, name: name.to_owned(), tally, difference, done: self.done, total: self.total };
        (self.on_event)(event);
    }

    /// Creates one object, or in a dry run compares it with the existing object. `parent` and `body` are
    /// `None` if a dry run did not create an object that they refer to.
    async fn create_or_compare<B: NewObject>(
        &mut self,
        name: &str,
        parent: Option<B::Parent>,
        within: &[(&str, &str)],
        body: Option<B>,
    ) -> Result<Option<<B::Object as Resource>::Id>> {
        let noun = B::Object::NOUN;
        if let (false, Some(parent), Some(body)) = (self.options.dry_run, parent, &body) {
            let created = self.client.create(parent, body).await?;
            self.report_step(noun, name, Tally::of(created.created), None);
            return Ok(Some(created.object.id()));
        }
        let found = match parent {
            Some(_) => self.client.find_by_name::<B::Object>(name, within).await?,
            None => None,
        };
        let difference = match (&found, &body) {
            (None, _) => None,
            (Some(object), Some(body)) => body.difference(object),
            (Some(_), None) => Some("it refers to an object that does not exist yet".to_owned()),
        };
        let tally = match difference {
            Some(_) => Tally { differing: 1, ..Tally::default() },
            None => Tally::of(found.is_none()),
        };
        self.report_step(noun, name, tally, difference);
        Ok(found.map(|object| object.id()))
    }

    /// Tenants, clusters, gateways, hosts, network classes, public pools and meters.
    async fn top_level(&mut self, cloud: &CloudFile) -> Result<()> {
        for spec in &cloud.tenants {
            let body = NewTenant { name: spec.name.clone() };
            let id = self.create_or_compare(&spec.name, Some(()), &[], Some(body)).await?;
            self.ids.tenants.insert(spec.name.clone(), id);
        }
        for spec in &cloud.clusters {
            let (name, vips) = (spec.name.clone(), spec.vips.clone());
            let body = NewCluster { name, vips, hello_interval_ms: spec.hello_interval_ms };
            let id = self.create_or_compare(&spec.name, Some(()), &[], Some(body)).await?;
            self.ids.clusters.insert(spec.name.clone(), id);
        }
        for spec in &cloud.gateways {
            let cluster = self.cluster(&spec.cluster).await?;
            let (vtep4, vtep6) = (spec.vtep4, spec.vtep6);
            let body = cluster.map(|cluster| NewGateway { name: spec.name.clone(), cluster, vtep4, vtep6 });
            self.create_or_compare(&spec.name, Some(()), &[], body).await?;
        }
        for spec in &cloud.hosts {
            let body = NewHost { name: spec.name.clone(), vtep: spec.vtep, agent: spec.agent };
            let id = self.create_or_compare(&spec.name, Some(()), &[], Some(body)).await?;
            self.ids.hosts.insert(spec.name.clone(), id);
        }
        for spec in &cloud.network_classes {
            let NetworkClassSpec { name, mbps, kpps, cpu_permille, is_default } = spec.clone();
            let body = NewNetworkClass { name, mbps, kpps, cpu_permille, is_default };
            let id = self.create_or_compare(&spec.name, Some(()), &[], Some(body)).await?;
            self.ids.classes.insert(spec.name.clone(), id);
        }
        for spec in &cloud.public_pools {
            self.public_pool(spec).await?;
        }
        for spec in &cloud.meters {
            self.meter(spec).await?;
        }
        Ok(())
    }

    async fn vpc(&mut self, spec: &VpcSpec) -> Result<()> {
        let tenant = self.tenant(&spec.tenant).await?;
        let cluster = match &spec.cluster {
            Some(cluster) => self.cluster(cluster).await?.map(Some),
            None => Some(None),
        };
        let (vni, mtu, offload_kbps) = (spec.vni, spec.mtu, spec.offload_kbps);
        let meter = self.meter_of(tenant, spec.internet_meter.as_deref()).await?;
        let body = tenant.zip(cluster).zip(meter).map(|((tenant, cluster), internet_meter)| {
            let name = spec.name.clone();
            NewVpc { name, tenant, cluster, vni, mtu, offload_kbps, internet_meter }
        });
        let of = tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
        let id = self.create_or_compare(&spec.name, tenant.map(|_| ()), &[("tenant", &of)], body).await?;
        self.ids.vpcs.insert((spec.tenant.clone(), spec.name.clone()), id);
        let vpc = id.map(|id| id.to_string()).unwrap_or_default();
        for subnet in &spec.subnets {
            let name = subnet.name.clone();
            let SubnetSpec { ipv4, ipv6, ipv6_mode, dns, .. } = subnet.clone();
            let body = NewSubnet { name, ipv4, ipv6, ipv6_mode, dns };
            self.create_or_compare(&subnet.name, id, &[("vpc", &vpc)], Some(body)).await?;
        }
        self.security_groups(spec, id).await
    }

    async fn peering(
        &mut self,
        spec: &PeeringSpec,
        tenant: Option<&str>,
        vpcs: [Option<VpcId>; 2],
    ) -> Result<()> {
        let [a, b] = vpcs;
        let meters = self.meters_of_peering(spec, tenant, vpcs).await?;
        let both = a.zip(b);
        let body = both.zip(meters);
        let body = body.map(|((a, b), meters)| NewPeering { name: spec.name.clone(), vpcs: [a, b], meters });
        let of = a.map(|a| a.to_string()).unwrap_or_default();
        let id = self.create_or_compare(&spec.name, both.map(|_| ()), &[("vpc", &of)], body).await?;
        for vpc in a.into_iter().chain(b) {
            self.ids.peerings.insert((spec.name.clone(), vpc), id);
        }
        Ok(())
    }

    async fn routes(&mut self, spec: &VpcSpec) -> Result<()> {
        if spec.routes.is_empty() {
            return Ok(());
        }
        let Some(vpc) = self.vpc_id(spec) else {
            for route in &spec.routes {
                self.report_step("route", &route.destination.to_string(), Tally::of(true), None);
            }
            return Ok(());
        };
        let of = vpc.to_string();
        let table = self.client.find::<RouteTable>("main", &[("vpc", &of)]).await?.id();
        for route in &spec.routes {
            let target = self.route_target(vpc, route).await?;
            let body = target.map(|target| NewRoute { destination: route.destination, target });
            let name = route.destination.to_string();
            self.create_or_compare(&name, Some(table), &[("table", &table.to_string())], body).await?;
        }
        Ok(())
    }

    async fn route_target(&self, vpc: VpcId, route: &RouteSpec) -> Result<Option<RouteTarget>> {
        let name = match &route.target {
            RouteTargetSpec::Drop => return Ok(Some(RouteTarget::Drop)),
            RouteTargetSpec::Internet => return Ok(Some(RouteTarget::Internet)),
            RouteTargetSpec::Peering(name) => name,
        };
        let id = match self.ids.peerings.get(&(name_in(name).to_owned(), vpc)) {
            Some(id) => *id,
            None => Some(self.client.id_of::<Peering>(name, &[("vpc", &vpc.to_string())]).await?),
        };
        Ok(id.map(RouteTarget::Peering))
    }

    async fn instances(&mut self, spec: &VpcSpec) -> Result<()> {
        let Some(vpc) = self.vpc_id(spec) else {
            let tally = Tally { created: spec.instances.len() as u64, ..Tally::default() };
            if !spec.instances.is_empty() {
                self.report_step(Instance::NOUN, &spec.name, tally, None);
            }
            return Ok(());
        };
        if self.options.dry_run {
            return self.compare_instances(vpc, spec).await;
        }
        for chunk in spec.instances.chunks(CHUNK) {
            let mut subnets = HashMap::new();
            let mut bodies = Vec::with_capacity(chunk.len());
            for spec in chunk {
                bodies.push(self.instance(vpc, spec, &mut subnets).await?);
            }
            let bodies: Vec<NewInstance> = bodies.into_iter().flatten().collect();
            let created = self.client.create_instances(vpc, &bodies).await?;
            let tally = Tally { created: created.created, unchanged: created.existing, ..Tally::default() };
            self.report_step(Instance::NOUN, &spec.name, tally, None);
        }
        Ok(())
    }

    async fn compare_instances(&mut self, vpc: VpcId, spec: &VpcSpec) -> Result<()> {
        if spec.instances.is_empty() {
            return Ok(());
        }
        let existing: Vec<Instance> = self.client.list(&[("vpc", &vpc.to_string())], None).await?;
        let existing: HashMap<&str, &Instance> =
            existing.iter().map(|instance| (instance.name.as_str(), instance)).collect();
        let mut subnets = HashMap::new();
        let mut same = Tally::default();
        for spec in &spec.instances {
            let found = existing.get(spec.name.as_str());
            let difference = match found {
                None => None,
                Some(found) => match self.instance(vpc, spec, &mut subnets).await? {
                    Some(body) => body.difference(found),
                    None => Some("it refers to an object that does not exist yet".to_owned()),
                },
            };
            match difference {
                None => same = same.plus(Tally::of(found.is_none())),
                Some(_) => {
                    let tally = Tally { differing: 1, ..Tally::default() };
                    self.report_step(Instance::NOUN, &spec.name, tally, difference);
                }
            }
        }
        if same != Tally::default() {
            self.report_step(Instance::NOUN, &spec.name, same, None);
        }
        Ok(())
    }

    async fn instance(
        &mut self,
        vpc: VpcId,
        spec: &crate::InstanceSpec,
        subnets: &mut HashMap<String, Option<sluice_types::SubnetId>>,
    ) -> Result<Option<NewInstance>> {
        let subnet = match subnets.get(&spec.subnet) {
            Some(id) => *id,
            None => {
                let found = self.client.find::<Subnet>(&spec.subnet, &[("vpc", &vpc.to_string())]).await;
                let id = self.none_if_not_created_yet(found.map(|subnet| subnet.id()))?;
                subnets.insert(spec.subnet.clone(), id);
                id
            }
        };
        let host = match known(&self.ids.hosts, &spec.host) {
            Some(id) => id,
            None => Some(self.client.id_of::<Host>(&spec.host, &[]).await?),
        };
        let groups = self.groups_of(vpc, spec.security_groups.as_deref()).await?;
        let class = self.class(spec.network_class.as_deref()).await?;
        let (mac, ipv4, ipv6) = (spec.mac, spec.ipv4, spec.ipv6);
        Ok(subnet.zip(host).zip(groups).zip(class).map(|(((subnet, host), security_groups), class)| {
            let (name, settings) = (spec.name.clone(), spec.settings(class));
            NewInstance { name, subnet, host, mac, ipv4, ipv6, security_groups, settings }
        }))
    }

    /// The network class of an instance, if it names one. The outer `None`: a dry run would create the class.
    async fn class(&self, text: Option<&str>) -> Result<Option<Option<NetworkClassId>>> {
        let Some(text) = text else { return Ok(Some(None)) };
        match known(&self.ids.classes, text) {
            Some(id) => Ok(id.map(Some)),
            None => self.client.id_of::<NetworkClass>(text, &[]).await.map(|id| Some(Some(id))),
        }
    }

    fn vpc_id(&self, spec: &VpcSpec) -> Option<VpcId> {
        self.ids.vpcs.get(&(spec.tenant.clone(), spec.name.clone())).copied().flatten()
    }

    /// In a dry run, a missing object may be one that the cloud file would create: it is `None`, not an
    /// error.
    fn none_if_not_created_yet<T>(&self, found: Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) if self.options.dry_run && error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn tenant(&self, text: &str) -> Result<Option<TenantId>> {
        match known(&self.ids.tenants, text) {
            Some(id) => Ok(id),
            None => self.client.id_of::<Tenant>(text, &[]).await.map(Some),
        }
    }

    async fn cluster(&self, text: &str) -> Result<Option<ClusterId>> {
        match known(&self.ids.clusters, text) {
            Some(id) => Ok(id),
            None => self.client.id_of::<Cluster>(text, &[]).await.map(Some),
        }
    }
}

impl Tally {
    fn of(created: bool) -> Self {
        Self { created: created.into(), unchanged: (!created).into(), ..Self::default() }
    }
}
