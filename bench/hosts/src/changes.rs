//! A burst of instances, and a steady rate of single changes (Achelous sections 2.1 and 2.4): how long each takes until the gateways
//! have it. It changes with how an instance is created, moved and deleted.

use serde_json::json;
use sluice_bench_report::Measure;
use sluice_bench_report::shell::Failure;
use sluice_bench_spine::programming::{acknowledged, body, create, hosts};
use sluice_client::{Client, Instance, NewInstance};
use sluice_lab::{Lab, Options, Topology};
use sluice_types::{HostId, InstanceId, SubnetId, VpcId};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

const LAB: &str = "benchrate";
/// Instances of one call (section 2.1).
const BURST: u32 = 20_000;
/// How often the burst is repeated, each with other instances.
const BURSTS: u32 = 5;
/// Changes in a second, each a call (section 2.4).
const RATE: u32 = 1_200;
/// Clients that make them in turn.
const CLIENTS: u32 = 16;
/// How often the nodes are asked what they have.
const LOOK: Duration = Duration::from_millis(5);
/// Changes that take longer have failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A change that was answered: its revision, and when it was due.
type Answered = (u64, Instant);

/// Measures `burst_20k_s` and `changes_1200_*`, the latter for as many seconds.
///
/// # Errors
/// Errors of the lab.
pub fn measure(binary: &Path, seconds: u64) -> Result<Vec<Measure>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut options = Options::standard(LAB, binary)?;
        options.topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lab.yaml"))?;
        let outcome = match Lab::up(options).await {
            Ok(lab) => in_lab(&lab, seconds).await,
            Err(error) => Err(error.into()),
        };
        sluice_lab::down(LAB).await?;
        outcome
    })
}

async fn in_lab(lab: &Lab, seconds: u64) -> Result<Vec<Measure>, Failure> {
    let vpc = lab.vpc("large")?;
    let subnet = *vpc.subnets.get("all").ok_or("the lab has no subnet `all`")?;
    let hosts = hosts(lab).await?;
    let mut bursts = Vec::new();
    for first in (0..BURSTS).map(|number| number * BURST) {
        let body = body(first..first + BURST, &subnet.to_string(), &hosts);
        let began = Instant::now();
        acknowledged(lab, &["gw-"], create(lab, vpc.id, body).await?).await?;
        bursts.push(began.elapsed().as_secs_f64());
    }
    let hosts = hosts.iter().map(|id| id.parse()).collect::<Result<Vec<HostId>, _>>()?;
    let latencies = at_rate(lab.api(), (vpc.id, subnet), &hosts, seconds).await?;
    let last = latencies.iter().map(|(due, latency)| *due + *latency).fold(0.0, f64::max);
    let mut sorted: Vec<f64> = latencies.iter().map(|(_, latency)| latency * 1e3).collect();
    sorted.sort_by(f64::total_cmp);
    let p99 = *sorted.get(sorted.len() * 99 / 100).ok_or("no change was made")?;
    Ok(vec![
        Measure::alone("burst_20k_s", "s", &bursts),
        Measure::alone("changes_1200_per_s", "1/s", &[sorted.len() as f64 / last]),
        Measure::alone("changes_1200_ms", "ms", &sorted),
        Measure::alone("changes_1200_p99_ms", "ms", &[p99]),
    ])
}

/// Makes changes at [`RATE`]. Returns of each when it was due, in seconds after the first, and how many seconds later all
/// gateways had it.
async fn at_rate(
    api: &Client,
    place: (VpcId, SubnetId),
    hosts: &[HostId],
    seconds: u64,
) -> Result<Vec<(f64, f64)>, Failure> {
    let (answered, changes) = unbounded_channel();
    let began = Instant::now() + Duration::from_millis(100);
    let until = began + Duration::from_secs(seconds);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let changer = Changer {
            api: api.clone(),
            place,
            hosts: [hosts[number as usize % hosts.len()], hosts[(number as usize + 1) % hosts.len()]],
            number,
            answered: answered.clone(),
        };
        clients.spawn(changer.run(began, until));
    }
    // The watcher ends when no client is left.
    drop(answered);
    let watcher = tokio::spawn(watch(api.clone(), changes, began));
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    watcher.await?
}

/// One client, which creates, moves and deletes an instance in turn.
struct Changer {
    api: Client,
    place: (VpcId, SubnetId),
    /// Where its instances begin, and where they move.
    hosts: [HostId; 2],
    number: u32,
    answered: UnboundedSender<Answered>,
}

impl Changer {
    async fn run(self, began: Instant, until: Instant) -> Result<(), Failure> {
        let mut instance: Option<Instance> = None;
        for round in 0.. {
            let due = began + Duration::from_secs(1) * (round * CLIENTS + self.number) / RATE;
            // Of an instance that was created, the rest is done as well.
            if due >= until && instance.is_none() {
                return Ok(());
            }
            // What is late is not left out, and its time counts from when it was due.
            tokio::time::sleep_until(due.into()).await;
            let revision;
            (instance, revision) = self.change(instance, round).await?;
            self.answered.send((revision, due))?;
        }
        Ok(())
    }

    /// Makes the next change. Returns the instance if there is one then, and the revision.
    async fn change(&self, before: Option<Instance>, round: u32) -> Result<(Option<Instance>, u64), Failure> {
        let (vpc, subnet) = self.place;
        let [first, second] = self.hosts;
        match before {
            None => {
                let new = NewInstance {
                    name: format!("change-{}-{round}", self.number),
                    subnet,
                    host: first,
                    mac: None,
                    ipv4: None,
                    ipv6: None,
                    security_groups: None,
                    settings: Default::default(),
                };
                let made = self.api.create(vpc, &new).await?.object;
                let revision = made.revision;
                Ok((Some(made), revision))
            }
            Some(instance) if instance.host == first => {
                let patch = json!({ "host": second });
                let moved = self.api.update::<Instance>(instance.id, &patch, None).await?;
                let revision = moved.revision;
                Ok((Some(moved), revision))
            }
            Some(Instance { id, .. }) => Ok((None, self.delete(id).await?)),
        }
    }

    async fn delete(&self, id: InstanceId) -> Result<u64, Failure> {
        Ok(self.api.delete::<Instance>(id, None).await?.revision)
    }
}

/// Asks what the gateways have until they have all changes. Returns when each was due, and its latency.
async fn watch(
    api: Client,
    mut changes: UnboundedReceiver<Answered>,
    began: Instant,
) -> Result<Vec<(f64, f64)>, Failure> {
    let (mut waiting, mut done) = (BTreeMap::new(), Vec::new());
    let mut progress = Instant::now();
    loop {
        let nodes = api.nodes().await?;
        let now = Instant::now();
        let gateways = nodes.iter().filter(|node| node.node.starts_with("gw-"));
        let has = gateways.map(|node| node.acknowledged_revision).min().ok_or("no gateways")?;
        let is_open = loop {
            match changes.try_recv() {
                Ok((revision, due)) => drop(waiting.insert(revision, due)),
                Err(error) => break error == tokio::sync::mpsc::error::TryRecvError::Empty,
            }
        };
        let later = waiting.split_off(&(has + 1));
        if !waiting.is_empty() {
            progress = now;
        }
        for due in std::mem::replace(&mut waiting, later).into_values() {
            done.push((seconds(began, due), seconds(due, now)));
        }
        if waiting.is_empty() && !is_open {
            return Ok(done);
        }
        if now.duration_since(progress) > PATIENCE {
            return Err(format!("no change reached the gateways for {PATIENCE:?}").into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
