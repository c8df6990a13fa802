//! A gateway whose processors or table memory are nearly used up stops to distinguish elephants from mice and
//! offloads every flow, so that it has less to do. Below a lower mark it distinguishes them again; in between nothing
//! changes.
//!
//! Catches: a load that is not measured, not reported, or changes no decision; marks without hysteresis.

use crate::Ground;
use crate::support::{
    Failure, Outcome, Probe, address, ensure, eventually, execute, is_tables_full, path_to,
};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use sluice_client::{Gateway, NewInstance, NewObject, NewPeering, NewSubnet, NewVpc, Peering, Vpc};
use sluice_lab::{Lab, Options};
use sluice_types::{PeeringId, SubnetId, VpcId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const GATEWAYS: [&str; 2] = ["gw-a", "gw-b"];
/// Size of table memory, so that few instances fill it.
const MIB: u32 = 1;
const PORT: u16 = 7041;
/// Rate of a mouse: a hundredth of the default threshold of elephants.
const PPS: u64 = 4;
const SECONDS: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(15);
/// Number of instances that makes their table grow to half of the memory, which is the last time that it can
/// grow.
const INSTANCES: usize = 4_600;
/// Number of subnets of the VPC with which the fillers are peered: each filler gets so many routes of a family.
const SUBNETS: u8 = 40;
/// Number of fillers from which the part of the memory that each needs is measured.
const SAMPLE: usize = 8;
/// API calls in progress at the same time.
const PARALLEL: usize = 8;
/// Longest time for which the API refuses a filler.
const REFUSED_MAX: Duration = Duration::from_secs(60);
/// Tolerance of the share of used memory: the last filler may be half too much.
const NEAR: f64 = 0.006;

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    for gateway in &mut options.topology.gateways {
        gateway.table_memory_mib = Some(MIB);
    }
    let lab = Lab::up(options).await?;
    ensure!(!goes_direct(&lab, "web-1", "web-3").await?, "a mouse was offloaded without load");
    processors(&lab).await?;
    table_memory(&lab).await
}

/// A loop between two ports of a bridge, in which broadcast frames circulate until it is removed, keeps one processor
/// in soft interrupts. The gateways of a lab share the processors with it.
async fn processors(lab: &Lab) -> Outcome {
    let switch = lab.state().topology.switches[0].name.clone();
    let ip = async |arguments: &str| {
        let argv: Vec<&str> = ["ip"].into_iter().chain(arguments.split_ascii_whitespace()).collect();
        execute(lab, &switch, &argv).await
    };
    ip("link add storm0 type bridge mcast_snooping 0").await?;
    ip("link add loop0 type veth peer name loop1").await?;
    ip("link add feed0 type veth peer name feed1").await?;
    for interface in ["storm0", "loop0", "loop1", "feed0", "feed1"] {
        // Without IPv6 addresses the kernel answers none of the frames. Answers would circulate as well.
        ip(&format!("link set {interface} addrgenmode none")).await?;
    }
    for interface in ["loop0", "loop1", "feed0"] {
        ip(&format!("link set {interface} master storm0 up")).await?;
    }
    ip("link set storm0 up").await?;
    ip("link set feed1 up").await?;
    ip("address add 198.51.100.1/24 dev feed1").await?;
    // The ARP request is broadcast, and no node answers it.
    let unanswered = lab.exec(&switch, &["ping", "-c", "1", "-W", "1", "198.51.100.2"]).await?;
    ensure!(!unanswered.status.success(), "{}", String::from_utf8_lossy(&unanswered.stdout));
    // What gateways then do with flows is the same as without free table memory. It is not checked here, because the
    // VMs and hosts of the lab share the busy processor.
    let overloaded = offloads_all(lab, true).await;
    ip("link delete loop0").await?;
    ip("link delete feed0").await?;
    ip("link delete storm0").await?;
    overloaded?;
    offloads_all(lab, false).await?;
    ensure!(!goes_direct(lab, "db-1", "db-2").await?, "no processor is busy, and a mouse was offloaded");
    Ok(())
}

async fn table_memory(lab: &Lab) -> Outcome {
    let mut filler = Filler::new(lab).await?;
    filler.fill(0.81).await?;
    offloads_all(lab, true).await?;
    ensure!(goes_direct(lab, "web-2", "web-3").await?, "every flow is offloaded, but this one was not");
    filler.fill(0.75).await?;
    // Gateways check their tables once a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    offloads_all(lab, true).await?;
    filler.fill(0.69).await?;
    offloads_all(lab, false).await?;
    ensure!(!goes_direct(lab, "web-2", "db-1").await?, "there is room again, and a mouse was offloaded");
    Ok(())
}

/// Whether a mouse from one VM to another gets a direct path.
async fn goes_direct(lab: &Lab, from: &str, to: &str) -> Result<bool, Failure> {
    let (sender, there) = (lab.vm(from)?, address(lab.vm(to)?, false)?);
    let at = SocketAddr::new(there, PORT).to_string();
    let echo = Probe::listening(lab, to, &["echo", &at, to]).await?;
    let stream = Probe::start(lab, from, &["stream", &at, &PPS.to_string(), &SECONDS.to_string()])?;
    stream.result().await?;
    echo.kill().await?;
    Ok(path_to(lab, &sender.host, sender.vni, there).await?.is_some())
}

/// Waits until metrics and API report that both gateways offload every flow, or that neither does.
async fn offloads_all(lab: &Lab, wanted: bool) -> Outcome {
    eventually(PATIENCE, || async move {
        for name in GATEWAYS {
            let found = lab.metrics(name).await?.sum("sluice_offload_all", &[]);
            ensure!(found == f64::from(wanted), "{name} offloads every flow: {found}, wanted: {wanted}");
            let id = lab.api().find::<Gateway>(name, &[]).await?.id.to_string();
            let node = lab.api().nodes().await?.into_iter().find(|node| node.node == id);
            let told = node.is_some_and(|node| node.offload_all);
            ensure!(told == wanted, "the API says of {name}: {told}, wanted: {wanted}");
        }
        Ok(())
    })
    .await
}

/// VPCs that fill the gateways' tables. The first has many subnets, and instances without ports, which use most of
/// the memory at once. The others are peered with it, and use the rest step by step.
struct Filler<'a> {
    lab: &'a Lab,
    /// The VPC whose tenant and cluster the fillers get.
    like: Vpc,
    /// The VPC with many subnets.
    first: VpcId,
    peered: Vec<(VpcId, PeeringId)>,
    /// Number of VPCs that were created.
    created: usize,
    /// Part of the memory that a filler needs, once it was measured.
    share_each: Option<f64>,
}

impl<'a> Filler<'a> {
    async fn new(lab: &'a Lab) -> Result<Self, Failure> {
        let like = lab.api().get::<Vpc>(lab.vpc("web")?.id).await?;
        let first = create_vpc(lab, &like, 0).await?;
        let mut instances_in = None;
        for number in 0..SUBNETS {
            // Routes that are far apart share little memory.
            let (ipv4, ipv6) = (format!("10.{}.0.0/16", 100 + number), format!("fd00:{}::/64", 200 + number));
            let (ipv4, ipv6) = (Some(ipv4.parse()?), Some(ipv6.parse()?));
            let subnet =
                NewSubnet { name: format!("subnet-{number}"), ipv4, ipv6, ipv6_mode: None, dns: Vec::new() };
            instances_in = Some(lab.api().create(first, &subnet).await?.object.id);
        }
        let subnet = instances_in.ok_or_else(|| Failure::new("no subnets"))?;
        create_instances(lab, first, subnet).await?;
        Ok(Self { lab, like, first, peered: Vec::new(), created: 1, share_each: None })
    }

    /// Creates a VPC that is peered with the first.
    async fn create_peered(&self, number: usize) -> Result<(VpcId, PeeringId), Failure> {
        let vpc = create_vpc(self.lab, &self.like, number).await?;
        let peering =
            NewPeering { name: format!("filler-{number}"), vpcs: [self.first, vpc], meters: BTreeMap::new() };
        Ok((vpc, create_admitted(self.lab, &peering).await?.id))
    }

    async fn delete(&self, vpc: VpcId, peering: PeeringId) -> Outcome {
        self.lab.api().delete::<Peering>(peering, None).await?;
        self.lab.api().delete::<Vpc>(vpc, None).await?;
        Ok(())
    }

    /// The share of used table memory that a gateway reports when it has all entries.
    async fn share(&self, gateway: &str) -> Result<f64, Failure> {
        self.lab.synchronized(gateway, PATIENCE).await?;
        // It checks them once a second.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        Ok(self.lab.metrics(gateway).await?.sum("sluice_gateway_load_ratio", &[("resource", "tables")]))
    }

    async fn shares(&self) -> Result<Vec<f64>, Failure> {
        try_join_all(GATEWAYS.map(|gateway| self.share(gateway))).await
    }

    /// Creates or deletes VPCs until this share of the tables' memory is used.
    async fn fill(&mut self, wanted: f64) -> Outcome {
        let mut share = self.share(GATEWAYS[0]).await?;
        let share_each = match self.share_each {
            Some(share_each) => share_each,
            None => {
                self.create_many(SAMPLE).await?;
                let before = std::mem::replace(&mut share, self.share(GATEWAYS[0]).await?);
                *self.share_each.insert((share - before) / SAMPLE as f64)
            }
        };
        ensure!(share_each > 0.0, "{SAMPLE} VPCs with {SUBNETS} peered subnets use no memory");
        for _ in 0..5 {
            let missing = wanted - share;
            if missing.abs() < NEAR {
                break;
            }
            let vpcs = (missing.abs() / share_each).round() as usize;
            if missing > 0.0 {
                self.create_many(vpcs).await?;
            } else {
                self.delete_many(vpcs).await?;
            }
            share = self.share(GATEWAYS[0]).await?;
        }
        for (gateway, share) in GATEWAYS.into_iter().zip(self.shares().await?) {
            ensure!(
                (share - wanted).abs() < 2.0 * NEAR,
                "{gateway}'s tables are {share} full, wanted: {wanted}, {share_each} for each VPC"
            );
        }
        Ok(())
    }

    async fn create_many(&mut self, vpcs: usize) -> Outcome {
        let first = self.created;
        self.created += vpcs;
        let create = (first..self.created).map(|number| self.create_peered(number));
        let peered: Vec<_> = stream::iter(create).buffered(PARALLEL).try_collect().await?;
        self.peered.extend(peered);
        Ok(())
    }

    async fn delete_many(&mut self, vpcs: usize) -> Outcome {
        let removed = self.peered.split_off(self.peered.len().saturating_sub(vpcs));
        let delete = removed.into_iter().map(|(vpc, peering)| self.delete(vpc, peering));
        stream::iter(delete).buffered(PARALLEL).try_collect::<Vec<()>>().await?;
        Ok(())
    }
}

async fn create_vpc(lab: &Lab, like: &Vpc, number: usize) -> Result<VpcId, Failure> {
    let vpc = NewVpc {
        name: format!("filler-{number}"),
        tenant: like.tenant,
        cluster: Some(like.cluster),
        vni: None,
        mtu: None,
        offload_kbps: None,
        internet_meter: None,
    };
    Ok(create_admitted(lab, &vpc).await?.id)
}

/// Creates an object when the API admits it. Until gateways have reported, the API assumes that routes need more memory
/// than these do, so it refuses many at once.
async fn create_admitted<B: NewObject<Parent = ()>>(lab: &Lab, new: &B) -> Result<B::Object, Failure> {
    let until = Instant::now() + REFUSED_MAX;
    loop {
        match lab.api().create((), new).await {
            Ok(created) => return Ok(created.object),
            Err(error) if is_tables_full(&error) && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn create_instances(lab: &Lab, vpc: VpcId, subnet: SubnetId) -> Outcome {
    let host = lab.node("host-b")?.id.parse()?;
    let new = (0..INSTANCES).map(|number| NewInstance {
        name: format!("filler-{number}"),
        subnet,
        host,
        mac: None,
        ipv4: None,
        ipv6: None,
        security_groups: Some(Vec::new()),
        settings: Default::default(),
    });
    lab.api().create_instances(vpc, &new.collect::<Vec<_>>()).await?;
    Ok(())
}
