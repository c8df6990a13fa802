//! Instances launched on hosts, under Zeta and with all paths programmed in advance (Zeta figure 25). It changes
//! with what hosts are sent when instances start.

use crate::demands::Cloud;
use crate::fleet::{Fleet, Vpc};
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::{Better, Measure};
use sluice_client::{Client, Host};
use sluice_controller::Model;
use sluice_types::{ClusterId, HostId, Random};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// Name of the measures, cloud and number of instances: figures 25a and 25b.
const CASES: [(&str, Cloud, usize); 2] =
    [("launch_100k", Cloud::PUBLIC, 100_000), ("launch_private_10k", Cloud::PRIVATE, 10_000)];
const HOSTS: usize = 100;
/// Largest number of instances of a call.
const CALL: usize = 50;
/// Number of calls at the same time.
const CALLERS: usize = 16;

/// Results of all launches under a model.
#[derive(Default)]
struct Launched {
    seconds: Vec<f64>,
    after_store: Vec<f64>,
    entries: u64,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for (name, cloud, count) in CASES {
        one_case(settings, outcome, &runtime, (name, cloud, count))?;
    }
    Ok(())
}

fn one_case(
    settings: &Settings,
    outcome: &mut Outcome,
    runtime: &Runtime,
    (name, cloud, count): (&str, Cloud, usize),
) -> Result<(), Failure> {
    let count = (count / settings.scale).max(CALL);
    let hosts = (HOSTS / settings.scale).max(4);
    let (clusters, sizes) = (settings.clusters(), sizes(&cloud, count)?);
    let (mut ours, mut theirs) = (Launched::default(), Launched::default());
    for _ in 0..settings.rounds {
        runtime.block_on(launch(Model::Zeta, &clusters, &sizes, hosts, &mut ours))?;
        runtime.block_on(launch(Model::Preprogrammed, &clusters, &sizes, hosts, &mut theirs))?;
    }
    outcome.note(format!(
        "{name}: {count} instances of {} VPCs on {hosts} hosts; entries of the hosts: {} under zeta, {} under \
         preprogrammed",
        sizes.len(),
        ours.entries,
        theirs.entries
    ));
    outcome.measures.push(Measure::computed_beside(
        format!("{name}_entries"),
        "entries",
        Better::Less,
        ours.entries as f64,
        ("preprogrammed", theirs.entries as f64),
    ));
    for (suffix, ours, theirs) in
        [("s", &ours.seconds, &theirs.seconds), ("after_store_s", &ours.after_store, &theirs.after_store)]
    {
        let peer = ("preprogrammed", theirs.as_slice());
        outcome.measures.push(Measure::zipped(format!("{name}_{suffix}"), "s", Better::Less, ours, peer));
    }
    Ok(())
}

/// Instances of each VPC, `count` in all: the sizes of a cloud that RGCM places.
pub(crate) fn sizes(cloud: &Cloud, count: usize) -> Result<Vec<usize>, Failure> {
    let mut left = count;
    let mut sizes = Vec::new();
    for vpc in cloud.draw()?.vpcs() {
        let size = usize::try_from(vpc.entries)?.min(left);
        if size > 0 {
            sizes.push(size);
        }
        left -= size;
    }
    if left > 0 {
        return Err(format!("the cloud has {left} instances too few").into());
    }
    Ok(sizes)
}

/// A VPC and the hosts of its instances.
struct Launch {
    vpc: Vpc,
    hosts: Vec<HostId>,
}

/// The revisions that nodes must acknowledge.
#[derive(Default)]
struct Due {
    clusters: BTreeMap<ClusterId, u64>,
    hosts: BTreeMap<HostId, u64>,
}

impl Due {
    /// Notes a revision that the gateways of a cluster and these hosts must acknowledge.
    fn note(&mut self, cluster: ClusterId, hosts: &[HostId], revision: u64) {
        let later = |known: &mut u64| *known = revision.max(*known);
        later(self.clusters.entry(cluster).or_default());
        hosts.iter().for_each(|host| later(self.hosts.entry(*host).or_default()));
    }

    fn merge(&mut self, other: Self) {
        for (cluster, revision) in other.clusters {
            self.note(cluster, &[], revision);
        }
        for (host, revision) in other.hosts {
            let known = self.hosts.entry(host).or_default();
            *known = revision.max(*known);
        }
    }
}

async fn launch(
    model: Model,
    clusters: &[usize],
    sizes: &[usize],
    hosts: usize,
    launched: &mut Launched,
) -> Result<(), Failure> {
    let mut fleet = Fleet::start_as(model, clusters).await?;
    let hosts = fleet.agents(hosts).await?;
    let vpcs = vpcs(&fleet, sizes, &hosts).await?;
    let last = vpcs.iter().map(|launch| launch.vpc.revision).max().unwrap_or_default();
    for cluster in fleet.clusters.iter().map(|cluster| cluster.id).collect::<Vec<_>>() {
        fleet.acknowledged(cluster, last).await?;
    }
    for host in &hosts {
        fleet.host_acknowledged(host.id, last).await?;
    }
    let before = fleet.ways();
    let start = Instant::now();
    let queue = Arc::new(Mutex::new(VecDeque::from(vpcs)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(call(fleet.api.clone(), model, queue.clone()));
    }
    let mut due = Due::default();
    while let Some(caller) = callers.join_next().await {
        due.merge(caller?.map_err(|error| error.to_string())?);
    }
    let stored = start.elapsed();
    for (cluster, revision) in due.clusters {
        fleet.acknowledged(cluster, revision).await?;
    }
    for (host, revision) in due.hosts {
        fleet.host_acknowledged(host, revision).await?;
    }
    let total = start.elapsed();
    launched.seconds.push(total.as_secs_f64());
    launched.after_store.push((total - stored).as_secs_f64());
    launched.entries = fleet.ways() - before;
    fleet.stop().await
}

/// Launches the instances of VPCs of the queue, one VPC after another, in calls of at most [`CALL`].
async fn call(api: Client, model: Model, queue: Arc<Mutex<VecDeque<Launch>>>) -> Result<Due, String> {
    let mut due = Due::default();
    loop {
        let Some(Launch { vpc, hosts }) = queue.lock().await.pop_front() else { return Ok(due) };
        let mut here = 0;
        for some in hosts.chunks(CALL) {
            let one = |(number, host): (usize, &HostId)| vpc.instance(number, *host);
            let instances: Vec<_> = (here..).zip(some).map(one).collect();
            let answer = api.create_instances(vpc.id, &instances).await.map_err(|error| error.to_string())?;
            here += some.len();
            // Preprogrammed sends new instances to all hosts of the VPC, Zeta only to their own hosts.
            let informed = if model == Model::Zeta { some } else { &hosts[..here] };
            due.note(vpc.cluster, informed, answer.revision);
        }
    }
}

/// Creates a VPC for each size, and draws a host for each of its instances.
async fn vpcs(fleet: &Fleet, sizes: &[usize], hosts: &[Host]) -> Result<Vec<Launch>, Failure> {
    let mut random = Random::new(25);
    let mut host = |_| hosts[(random.unit() * hosts.len() as f64) as usize].id;
    let vpcs = fleet.vpcs(sizes.len()).await?.into_iter().zip(sizes);
    Ok(vpcs.map(|(vpc, size)| Launch { vpc, hosts: (0..*size).map(&mut host).collect() }).collect())
}
