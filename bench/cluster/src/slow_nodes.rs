//! Latency of the API with 1,000 nodes that follow steady change, of which some stall. It changes with what the
//! controller does for each node.

use crate::cloud::percentile;
use crate::fleet::{Fleet, Vpc};
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::{Better, Measure};
use sluice_client::{Client, Host, Instance};
use sluice_types::{HostId, InstanceId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const HOSTS: usize = 1_000;
/// One of so many hosts stalls.
const STALLED: usize = 10;
const VPCS: usize = 20;
/// Instances of each host before the rounds.
const INSTANCES: usize = 20;
/// Instances in a call.
const BATCH: usize = 1_000;
/// Time of requests in a round.
const ROUND: Duration = Duration::from_secs(6);
/// A request begins at this interval, whether the ones before are answered or not.
const INTERVAL: Duration = Duration::from_millis(10);
/// From the moment at which hosts stall to the first request.
const SETTLE: Duration = Duration::from_secs(3);
/// Instances that exist before the first request deletes one.
const STOCK: usize = 20;

/// A controller with its hosts and VPCs, and what requests change of it.
struct Site {
    fleet: Fleet,
    load: Arc<Load>,
}

struct Load {
    vpcs: Vec<Vpc>,
    hosts: Vec<HostId>,
    /// Instances that requests created.
    stock: Mutex<VecDeque<InstanceId>>,
    created: AtomicUsize,
}

/// 99th percentiles of the rounds, in milliseconds.
#[derive(Default)]
struct Latencies {
    no_nodes: Vec<f64>,
    none_stalled: Vec<f64>,
    stalled: Vec<f64>,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let hosts = (HOSTS / settings.scale).max(STALLED);
    let stalled = hosts / STALLED;
    let mut all = Latencies::default();
    let snapshots = runtime.block_on(rounds(settings.rounds, hosts, stalled, &mut all))?;
    outcome.note(format!(
        "slow_nodes: {hosts} hosts, {stalled} of them stalled in a third of the rounds; {snapshots} snapshots"
    ));
    let ratios = |below: &[f64]| all.stalled.iter().zip(below).map(|(a, b)| a / b).collect::<Vec<_>>();
    outcome.measures.push(Measure::alone("api_p99_ratio_1000_nodes", "x", &ratios(&all.none_stalled)));
    outcome.measures.push(Measure::alone("api_p99_ratio_no_nodes", "x", &ratios(&all.no_nodes)));
    for (name, peer, theirs) in [
        ("api_p99_1000_nodes_ms", "none_stalled", &all.none_stalled),
        ("api_p99_stalled_ms", "no_nodes", &all.no_nodes),
    ] {
        outcome.measures.push(Measure::zipped(name, "ms", Better::Less, &all.stalled, (peer, theirs)));
    }
    Ok(())
}

/// Measures all rounds with two controllers. Returns the number of snapshots that stalled hosts asked for.
async fn rounds(rounds: usize, hosts: usize, stalled: usize, all: &mut Latencies) -> Result<u64, Failure> {
    let alone = Site::start(0).await?;
    let mut site = Site::start(hosts).await?;
    let before = site.fleet.metric("sluice_controller_snapshots_total").await?;
    for _ in 0..rounds {
        all.no_nodes.push(alone.p99().await?);
        all.none_stalled.push(site.p99().await?);
        let stall = site.fleet.stall(stalled);
        tokio::time::sleep(SETTLE).await;
        all.stalled.push(site.p99().await?);
        site.fleet.resume(stall).await?;
    }
    let snapshots = site.fleet.metric("sluice_controller_snapshots_total").await? - before;
    site.fleet.stop().await?;
    alone.fleet.stop().await?;
    Ok(snapshots as u64)
}

impl Site {
    /// A controller with as many simulated hosts, or without nodes: then its one gateway and its hosts have no
    /// agents.
    async fn start(agents: usize) -> Result<Self, Failure> {
        let mut fleet = Fleet::start(&[1]).await?;
        let hosts = match agents {
            0 => {
                fleet.end_streams().await;
                fleet.hosts(STALLED).await?
            }
            count => fleet.agents(count).await?,
        };
        let hosts: Vec<HostId> = hosts.iter().map(|host| host.id).collect();
        let vpcs = fleet.vpcs(VPCS).await?;
        for (number, vpc) in vpcs.iter().enumerate() {
            let count = hosts.len() * INSTANCES / VPCS;
            let host = |instance: usize| hosts[(number * count + instance) % hosts.len()];
            let new: Vec<_> = (0..count).map(|instance| vpc.instance(instance, host(instance))).collect();
            for batch in new.chunks(BATCH) {
                fleet.api.create_instances(vpc.id, batch).await?;
            }
        }
        let load = Load { vpcs, hosts, stock: Mutex::default(), created: AtomicUsize::new(0) };
        for number in 0..STOCK {
            load.create(&fleet.api, number).await?;
        }
        Ok(Self { fleet, load: Arc::new(load) })
    }

    /// The 99th percentile of the latencies of a round, in milliseconds.
    async fn p99(&self) -> Result<f64, Failure> {
        let (client, load) = (self.fleet.client()?, self.load.clone());
        let requests =
            thread::Builder::new().name("requests".to_owned()).spawn(move || requests(&client, &load))?;
        let ended = tokio::task::spawn_blocking(move || requests.join()).await?;
        let mut latencies = ended.map_err(|_| "the thread of requests panicked")??;
        Ok(percentile(&mut latencies, 0.99))
    }
}

/// Sends the requests of a round from a runtime of this thread, so that the simulated nodes do not delay them.
/// Returns their latencies in milliseconds, from the moment at which each was due.
fn requests(client: &Client, load: &Arc<Load>) -> Result<Vec<f64>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let mut all = JoinSet::new();
        let mut due = Instant::now();
        let end = due + ROUND;
        let mut number = 0;
        while due < end {
            tokio::time::sleep_until(due.into()).await;
            let (client, load) = (client.clone(), load.clone());
            all.spawn(async move {
                load.request(&client, number).await.map_err(|error| error.to_string())?;
                Ok(due.elapsed().as_secs_f64() * 1000.0)
            });
            (due, number) = (due + INTERVAL, number + 1);
        }
        all.join_all().await.into_iter().collect()
    })
}

impl Load {
    fn stock(&self) -> std::sync::MutexGuard<'_, VecDeque<InstanceId>> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of the mix: an instance is created, a host is read, a page of instances is listed, an instance is
    /// deleted.
    async fn request(&self, client: &Client, number: usize) -> Result<(), sluice_client::Error> {
        match number % 4 {
            0 => self.create(client, number).await,
            1 => client.get::<Host>(self.hosts[number % self.hosts.len()]).await.map(drop),
            2 => {
                let vpc = self.vpcs[number % self.vpcs.len()].id.to_string();
                client.list::<Instance>(&[("vpc", &vpc)], Some(100)).await.map(drop)
            }
            _ => {
                let oldest = self.stock().pop_front();
                match oldest {
                    Some(id) => client.delete::<Instance>(id, None).await.map(drop),
                    // All that were created are deleted, because answers are late.
                    None => Ok(()),
                }
            }
        }
    }

    async fn create(&self, client: &Client, number: usize) -> Result<(), sluice_client::Error> {
        let vpc = &self.vpcs[number % self.vpcs.len()];
        let host = self.hosts[number * 7 % self.hosts.len()];
        let name = 1_000_000 + self.created.fetch_add(1, Ordering::Relaxed);
        let instance = client.create(vpc.id, &vpc.instance(name, host)).await?.object;
        self.stock().push_back(instance.id);
        Ok(())
    }
}
