//! Making a described cloud so, in the order of its dependencies.

use crate::{Client, Result};
use crate::{
    CloudFile, Cluster, Error, Host, Instance, NewCluster, NewGateway, NewHost, NewInstance, NewObject,
    NewPeering, NewRoute, NewSubnet, NewTenant, NewVpc, Peering, PeeringSpec, Resource, RouteSpec,
    RouteTable, RouteTarget, RouteTargetSpec, Subnet, Tenant, Vpc, VpcSpec,
};
use sluice_types::{ClusterId, HostId, PeeringId, TenantId, VpcId};
use std::collections::HashMap;

/// Instances a bulk call: a few megabytes of body, and progress worth showing.
const CHUNK: usize = 10_000;

/// How to apply.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Only say what would be done.
    pub dry_run: bool,
}

/// How many objects there were of each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Made (in a dry run: would be made).
    pub created: u64,
    /// There already, the same.
    pub unchanged: u64,
    /// Only in a dry run: there already with other content; applying would fail here.
    pub differing: u64,
}

/// One step done: one object, or some instances of one VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of object.
    pub kind: &'static str,
    /// Its name; of instances, their VPC's.
    pub name: String,
    /// Outcome of this step.
    pub tally: Tally,
    /// What differs, in a dry run.
    pub difference: Option<String>,
    /// Objects done so far.
    pub done: u64,
    /// Objects described.
    pub total: u64,
}

/// Outcome of the whole, in the order of the work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// For each kind worked on.
    pub kinds: Vec<(&'static str, Tally)>,
}

impl Report {
    /// All kinds together.
    pub fn total(&self) -> Tally {
        self.kinds.iter().fold(Tally::default(), |sum, (_, tally)| sum.plus(*tally))
    }
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            created: self.created + other.created,
            unchanged: self.unchanged + other.unchanged,
            differing: self.differing + other.differing,
        }
    }
}

/// Creates what the description has and the cloud has not. Safe to repeat:
/// what is there already, the same, is left alone; what is there with other
/// content is refused by the API, and everything before it stands.
///
/// # Errors
/// The first refusal, naming the object.
pub async fn apply(
    client: &Client,
    cloud: &CloudFile,
    options: Options,
    on_event: &mut (dyn FnMut(Event) + Send),
) -> Result<Report> {
    let total = cloud.len() as u64;
    let mut work =
        Work { client, options, on_event, total, done: 0, report: Report::default(), ids: Ids::default() };
    work.nodes(cloud).await?;
    for vpc in &cloud.vpcs {
        work.vpc(vpc).await?;
    }
    for peering in &cloud.peerings {
        work.peering(peering).await?;
    }
    for vpc in &cloud.vpcs {
        work.routes(vpc).await?;
    }
    for vpc in &cloud.vpcs {
        work.instances(vpc).await?;
    }
    Ok(work.report)
}

/// Ids of what the description names; `None` for what a dry run did not make.
#[derive(Default)]
struct Ids {
    tenants: HashMap<String, Option<TenantId>>,
    clusters: HashMap<String, Option<ClusterId>>,
    hosts: HashMap<String, Option<HostId>>,
    /// By tenant and name, as described.
    vpcs: HashMap<(String, String), Option<VpcId>>,
    peerings: HashMap<String, Option<PeeringId>>,
}

struct Work<'a> {
    client: &'a Client,
    options: Options,
    on_event: &'a mut (dyn FnMut(Event) + Send),
    total: u64,
    done: u64,
    report: Report,
    ids: Ids,
}

impl Work<'_> {
    fn tell(&mut self, kind: &'static str, name: &str, tally: Tally, difference: Option<String>) {
        self.done += tally.created + tally.unchanged + tally.differing;
        match self.report.kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, sum)) => *sum = sum.plus(tally),
            None => self.report.kinds.push((kind, tally)),
        }
        let event =
            Event { kind, name: name.to_owned(), tally, difference, done: self.done, total: self.total };
        (self.on_event)(event);
    }

    /// Creates one object, or in a dry run looks whether it is there. `body` is
    /// `None` where a dry run has not made what it refers to.
    async fn one<B: NewObject>(
        &mut self,
        name: &str,
        parent: Option<B::Parent>,
        within: &[(&str, &str)],
        body: Option<B>,
    ) -> Result<Option<<B::Object as Resource>::Id>> {
        let noun = B::Object::NOUN;
        if let (false, Some(parent), Some(body)) = (self.options.dry_run, parent, &body) {
            let made = self.client.create(parent, body).await?;
            self.tell(noun, name, Tally::of(made.created), None);
            return Ok(Some(made.object.id()));
        }
        let found = match parent {
            Some(_) => self.client.find_by_name::<B::Object>(name, within).await?,
            None => None,
        };
        let difference = match (&found, &body) {
            (None, _) => None,
            (Some(object), Some(body)) => body.difference(object),
            (Some(_), None) => Some("it refers to what is not there yet".to_owned()),
        };
        let tally = match difference {
            Some(_) => Tally { differing: 1, ..Tally::default() },
            None => Tally::of(found.is_none()),
        };
        self.tell(noun, name, tally, difference);
        Ok(found.map(|object| object.id()))
    }

    async fn nodes(&mut self, cloud: &CloudFile) -> Result<()> {
        for it in &cloud.tenants {
            let body = NewTenant { name: it.name.clone() };
            let id = self.one(&it.name, Some(()), &[], Some(body)).await?;
            self.ids.tenants.insert(it.name.clone(), id);
        }
        for it in &cloud.clusters {
            let body = NewCluster { name: it.name.clone(), vips: it.vips.clone(), hello_ms: it.hello_ms };
            let id = self.one(&it.name, Some(()), &[], Some(body)).await?;
            self.ids.clusters.insert(it.name.clone(), id);
        }
        for it in &cloud.gateways {
            let cluster = self.cluster(&it.cluster).await?;
            let (vtep4, vtep6) = (it.vtep4, it.vtep6);
            let body = cluster.map(|cluster| NewGateway { name: it.name.clone(), cluster, vtep4, vtep6 });
            self.one(&it.name, Some(()), &[], body).await?;
        }
        for it in &cloud.hosts {
            let body = NewHost { name: it.name.clone(), vtep: it.vtep, agent: it.agent };
            let id = self.one(&it.name, Some(()), &[], Some(body)).await?;
            self.ids.hosts.insert(it.name.clone(), id);
        }
        Ok(())
    }

    async fn vpc(&mut self, it: &VpcSpec) -> Result<()> {
        let tenant = self.tenant(&it.tenant).await?;
        let cluster = match &it.cluster {
            Some(cluster) => self.cluster(cluster).await?.map(Some),
            None => Some(None),
        };
        let (vni, mtu, offload_kbps) = (it.vni, it.mtu, it.offload_kbps);
        let body = tenant.zip(cluster).map(|(tenant, cluster)| {
            let name = it.name.clone();
            NewVpc { name, tenant, cluster, vni, mtu, offload_kbps }
        });
        let of = tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
        let id = self.one(&it.name, tenant.map(|_| ()), &[("tenant", &of)], body).await?;
        self.ids.vpcs.insert((it.tenant.clone(), it.name.clone()), id);
        let vpc = id.map(|id| id.to_string()).unwrap_or_default();
        for subnet in &it.subnets {
            let name = subnet.name.clone();
            let body = NewSubnet { name, ipv4: subnet.ipv4, ipv6: subnet.ipv6, dns: subnet.dns.clone() };
            self.one(&subnet.name, id, &[("vpc", &vpc)], Some(body)).await?;
        }
        Ok(())
    }

    async fn peering(&mut self, it: &PeeringSpec) -> Result<()> {
        let a = self.vpc_of_peering(it, &it.vpcs[0]).await?;
        let b = self.vpc_of_peering(it, &it.vpcs[1]).await?;
        let body = a.zip(b).map(|(a, b)| NewPeering { name: it.name.clone(), vpcs: [a, b] });
        let of = a.map(|a| a.to_string()).unwrap_or_default();
        let id = self.one(&it.name, body.as_ref().map(|_| ()), &[("vpc", &of)], body).await?;
        self.ids.peerings.insert(it.name.clone(), id);
        Ok(())
    }

    /// A VPC by name: of this description, else of the cloud.
    async fn vpc_of_peering(&self, peering: &PeeringSpec, name: &str) -> Result<Option<VpcId>> {
        let tenant = peering.tenant.as_deref();
        let described: Vec<_> = self
            .ids
            .vpcs
            .iter()
            .filter(|((of, vpc), _)| vpc == name && tenant.is_none_or(|tenant| tenant == of))
            .collect();
        match described.as_slice() {
            [((..), id)] => return Ok(**id),
            [] => {}
            several => {
                return Err(Error::AmbiguousName {
                    kind: Vpc::NOUN,
                    name: name.to_owned(),
                    ids: several.iter().map(|((tenant, name), _)| format!("{tenant}/{name}")).collect(),
                    narrow: ", or say the peering's tenant",
                });
            }
        }
        let Some(tenant) = tenant else { return self.client.id_of::<Vpc>(name, &[]).await.map(Some) };
        match self.tenant(tenant).await? {
            Some(tenant) => {
                self.client.id_of::<Vpc>(name, &[("tenant", &tenant.to_string())]).await.map(Some)
            }
            None => Ok(None),
        }
    }

    async fn routes(&mut self, it: &VpcSpec) -> Result<()> {
        if it.routes.is_empty() {
            return Ok(());
        }
        let Some(vpc) = self.vpc_id(it) else {
            for route in &it.routes {
                self.tell("route", &route.destination.to_string(), Tally::of(true), None);
            }
            return Ok(());
        };
        let of = vpc.to_string();
        let table = self.client.find::<RouteTable>("main", &[("vpc", &of)]).await?.id();
        for route in &it.routes {
            let target = self.target(vpc, route).await?;
            let body = target.map(|target| NewRoute { destination: route.destination, target });
            let name = route.destination.to_string();
            self.one(&name, Some(table), &[("table", &table.to_string())], body).await?;
        }
        Ok(())
    }

    async fn target(&self, vpc: VpcId, route: &RouteSpec) -> Result<Option<RouteTarget>> {
        let RouteTargetSpec::Peering(name) = &route.target else { return Ok(Some(RouteTarget::Drop)) };
        let id = match self.ids.peerings.get(name) {
            Some(id) => *id,
            None => Some(self.client.id_of::<Peering>(name, &[("vpc", &vpc.to_string())]).await?),
        };
        Ok(id.map(RouteTarget::Peering))
    }

    async fn instances(&mut self, it: &VpcSpec) -> Result<()> {
        let Some(vpc) = self.vpc_id(it) else {
            let tally = Tally { created: it.instances.len() as u64, ..Tally::default() };
            if !it.instances.is_empty() {
                self.tell(Instance::NOUN, &it.name, tally, None);
            }
            return Ok(());
        };
        if self.options.dry_run {
            return self.compare_instances(vpc, it).await;
        }
        for chunk in it.instances.chunks(CHUNK) {
            let mut subnets = HashMap::new();
            let mut bodies = Vec::with_capacity(chunk.len());
            for spec in chunk {
                bodies.push(self.instance(vpc, spec, &mut subnets).await?);
            }
            let bodies: Vec<NewInstance> = bodies.into_iter().flatten().collect();
            let made = self.client.create_instances(vpc, &bodies).await?;
            let tally = Tally { created: made.created, unchanged: made.existing, differing: 0 };
            self.tell(Instance::NOUN, &it.name, tally, None);
        }
        Ok(())
    }

    async fn compare_instances(&mut self, vpc: VpcId, it: &VpcSpec) -> Result<()> {
        if it.instances.is_empty() {
            return Ok(());
        }
        let there: Vec<Instance> = self.client.list(&[("vpc", &vpc.to_string())], None).await?;
        let there: HashMap<&str, &Instance> = there.iter().map(|one| (one.name.as_str(), one)).collect();
        let mut subnets = HashMap::new();
        for spec in &it.instances {
            let found = there.get(spec.name.as_str());
            let difference = match found {
                None => None,
                Some(found) => match self.instance(vpc, spec, &mut subnets).await? {
                    Some(body) => body.difference(found),
                    None => Some("it refers to what is not there yet".to_owned()),
                },
            };
            let tally = match difference {
                Some(_) => Tally { differing: 1, ..Tally::default() },
                None => Tally::of(found.is_none()),
            };
            self.tell(Instance::NOUN, &spec.name, tally, difference);
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
                let id = self.or_not_yet(found.map(|subnet| subnet.id()))?;
                subnets.insert(spec.subnet.clone(), id);
                id
            }
        };
        let host = match self.ids.hosts.get(&spec.host) {
            Some(id) => *id,
            None => {
                let id = Some(self.client.id_of::<Host>(&spec.host, &[]).await?);
                self.ids.hosts.insert(spec.host.clone(), id);
                id
            }
        };
        let (mac, ipv4, ipv6) = (spec.mac, spec.ipv4, spec.ipv6);
        Ok(subnet.zip(host).map(|(subnet, host)| {
            let name = spec.name.clone();
            NewInstance { name, subnet, host, mac, ipv4, ipv6 }
        }))
    }

    fn vpc_id(&self, it: &VpcSpec) -> Option<VpcId> {
        self.ids.vpcs.get(&(it.tenant.clone(), it.name.clone())).copied().flatten()
    }

    /// In a dry run, what is missing may be what would have been made.
    fn or_not_yet<T>(&self, found: Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) if self.options.dry_run && error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn tenant(&self, text: &str) -> Result<Option<TenantId>> {
        match self.ids.tenants.get(text) {
            Some(id) => Ok(*id),
            None => self.client.id_of::<Tenant>(text, &[]).await.map(Some),
        }
    }

    async fn cluster(&self, text: &str) -> Result<Option<ClusterId>> {
        match self.ids.clusters.get(text) {
            Some(id) => Ok(*id),
            None => self.client.id_of::<Cluster>(text, &[]).await.map(Some),
        }
    }
}

impl Tally {
    fn of(created: bool) -> Self {
        Self { created: created.into(), unchanged: (!created).into(), differing: 0 }
    }
}
