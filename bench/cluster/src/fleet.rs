//! A controller with gateways and hosts that speak the southbound protocol but have no tables: each enrolls, opens
//! its stream over mutual TLS, reads every entry of every update, and acknowledges. It changes with the protocol.

use crate::Failure;
use sluice_client::{
    Client, Cluster, Gateway, Host, NewCluster, NewGateway, NewHost, NewInstance, NewSubnet, NewTenant,
    NewVpc, Resource,
};
use sluice_controller::{Args, Controller, Model};
use sluice_lab::Metrics;
use sluice_southbound::proto::Hello;
use sluice_southbound::{Connection, EnrollmentBundle, Identity, Update, connect, enroll};
use sluice_types::{ClusterId, HostId, SubnetId, Vni, VpcId};
use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// A step that takes longer than this has failed.
const TIMEOUT: Duration = Duration::from_secs(120);
/// VTEP of the first simulated host.
const FIRST_HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// A stalled host comes back after this time: the longest delay of an agent.
const RETURN: Duration = Duration::from_secs(2);
/// Name of the threads that run the controller.
const CONTROLLER_THREADS: &str = "controller";
/// First part of the names of the threads on which sqlx runs SQLite.
const DATABASE_THREADS: &str = "sqlx-sqlite";

/// A controller, its clusters, and simulated gateways and hosts.
pub struct Fleet {
    pub api: Client,
    pub clusters: Vec<Cluster>,
    controller: Controller,
    /// Runs the controller alone, so that its processor time can be told from that of the simulated nodes.
    _runtime: Background,
    gateways: Vec<Simulated>,
    hosts: Vec<SimulatedHost>,
    tasks: JoinSet<Result<(), Failure>>,
    _state: TempDir,
}

/// What the task of a simulated gateway reports.
struct Simulated {
    cluster: ClusterId,
    acked: watch::Receiver<u64>,
    entries: Arc<AtomicU64>,
}

/// A simulated host.
struct SimulatedHost {
    id: HostId,
    vtep: IpAddr,
    identity: Identity,
    /// Its stream.
    task: AbortHandle,
    acked: watch::Receiver<u64>,
    /// Entries by which the host finds instances of other hosts: default entries and paths.
    ways: Arc<AtomicU64>,
}

/// A VPC with one subnet, and the revision of the subnet.
pub struct Vpc {
    pub id: VpcId,
    pub cluster: ClusterId,
    pub revision: u64,
    subnet: SubnetId,
}

impl Vpc {
    /// An instance of this VPC, with addresses that the controller chooses.
    pub fn instance(&self, number: usize, host: HostId) -> NewInstance {
        let name = format!("i{number}");
        NewInstance {
            name,
            subnet: self.subnet,
            host,
            mac: None,
            ipv4: None,
            ipv6: None,
            security_groups: Some(Vec::new()),
            settings: Default::default(),
        }
    }
}

impl Fleet {
    /// Starts a controller on a new database, with a cluster of each of these numbers of gateways.
    pub async fn start(sizes: &[usize]) -> Result<Self, Failure> {
        Self::start_as(Model::Zeta, sizes).await
    }

    /// The same with a model of the controller.
    pub async fn start_as(model: Model, sizes: &[usize]) -> Result<Self, Failure> {
        let state = tempfile::tempdir()?;
        let loopback = (Ipv4Addr::LOCALHOST, 0).into();
        let args = Args {
            database: None,
            api: loopback,
            southbound: loopback,
            southbound_name: Vec::new(),
            state_dir: state.path().join("controller"),
            api_token_file: None,
            model,
            zone_backups: 1,
        };
        let runtime = Builder::new_multi_thread().enable_all().thread_name(CONTROLLER_THREADS).build()?;
        let controller = runtime.spawn(Controller::start(args)).await??;
        let api = Client::new(&format!("http://{}", controller.api), None)?;
        let mut fleet = Self {
            api,
            clusters: Vec::new(),
            controller,
            _runtime: Background(Some(runtime)),
            gateways: Vec::new(),
            hosts: Vec::new(),
            tasks: JoinSet::new(),
            _state: state,
        };
        for size in sizes {
            fleet.add_cluster(*size).await?;
        }
        Ok(fleet)
    }

    async fn add_cluster(&mut self, size: usize) -> Result<(), Failure> {
        let number = self.clusters.len();
        let vip = |place: usize| Ipv4Addr::new(192, 0, 2, u8::try_from(place).unwrap_or(u8::MAX)).into();
        // Clusters on one underlay have different vIPs.
        let first = 1 + self.gateways.len();
        let vips = (first..first + size).map(vip).collect();
        let body = NewCluster { name: format!("cluster-{number}"), vips, hello_interval_ms: None };
        let cluster = self.api.create((), &body).await?.object;
        for _ in 0..size {
            let number = self.gateways.len();
            let vtep = Ipv4Addr::new(198, 51, 100, u8::try_from(number + 1)?);
            let body = NewGateway {
                name: format!("gateway-{number}"),
                cluster: cluster.id,
                vtep4: Some(vtep),
                vtep6: None,
            };
            let gateway = self.api.create((), &body).await?.object;
            let identity = self.identity::<Gateway>(gateway.id, &body.name).await?;
            self.open(cluster.id, identity);
        }
        self.clusters.push(cluster);
        Ok(())
    }

    async fn identity<T: Resource>(&self, id: T::Id, name: &str) -> Result<Identity, Failure> {
        // The API's bundle is what an operator would save as a file for the node.
        let bundle = serde_json::to_value(self.api.enroll::<T>(id).await?)?;
        let bundle: EnrollmentBundle = serde_json::from_value(bundle)?;
        let dir: PathBuf = self._state.path().join(name);
        Ok(enroll(&bundle, &dir).await?)
    }

    fn open(&mut self, cluster: ClusterId, identity: Identity) {
        let (sender, acked) = watch::channel(0);
        let entries = Arc::new(AtomicU64::new(0));
        let seen = entries.clone();
        let count = move |update: &Update| {
            seen.fetch_add(update.entry_count() as u64, Ordering::Relaxed);
        };
        self.tasks.spawn(follow(identity, sender, count));
        self.gateways.push(Simulated { cluster, acked, entries });
    }

    /// Ends the streams of the simulated nodes.
    pub async fn end_streams(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Creates hosts without an agent, which acknowledge nothing.
    pub async fn hosts(&self, count: usize) -> Result<Vec<Host>, Failure> {
        let mut hosts = Vec::new();
        for number in 0..count {
            let vtep = Ipv4Addr::new(203, 0, 113, u8::try_from(number + 1)?).into();
            let body = NewHost { name: format!("host-{number}"), vtep, agent: false };
            hosts.push(self.api.create((), &body).await?.object);
        }
        Ok(hosts)
    }

    /// Creates hosts with a simulated agent.
    pub async fn agents(&mut self, count: usize) -> Result<Vec<Host>, Failure> {
        let mut hosts = Vec::new();
        for number in 0..count {
            let vtep = Ipv4Addr::from_bits(FIRST_HOST.to_bits() + u32::try_from(number)?).into();
            let body = NewHost { name: format!("host-{number}"), vtep, agent: true };
            let host = self.api.create((), &body).await?.object;
            let identity = self.identity::<Host>(host.id, &body.name).await?;
            let (sender, acked) = watch::channel(0);
            let ways = Arc::<AtomicU64>::default();
            let stream = follow(identity.clone(), sender, count_ways(vtep, ways.clone()));
            let task = self.tasks.spawn(stream);
            self.hosts.push(SimulatedHost { id: host.id, vtep, identity, task, acked, ways });
            hosts.push(host);
        }
        Ok(hosts)
    }

    /// Lets the first hosts stall: their streams end, and they open others on which they read nothing. Every other
    /// one of them comes back again and again and asks for its tables.
    pub fn stall(&mut self, count: usize) -> JoinSet<()> {
        let mut stalled = JoinSet::new();
        for (number, host) in self.hosts.iter_mut().take(count).enumerate() {
            host.task.abort();
            stalled.spawn(stall(host.identity.clone(), number % 2 == 0));
        }
        stalled
    }

    /// Ends what [`Fleet::stall`] began: the hosts follow again. Waits until they have their tables.
    pub async fn resume(&mut self, mut stalled: JoinSet<()>) -> Result<(), Failure> {
        let count = stalled.len();
        stalled.shutdown().await;
        for host in self.hosts.iter_mut().take(count) {
            let (sender, acked) = watch::channel(0);
            let stream = follow(host.identity.clone(), sender, count_ways(host.vtep, host.ways.clone()));
            (host.task, host.acked) = (self.tasks.spawn(stream), acked);
        }
        for id in self.hosts.iter().take(count).map(|host| host.id).collect::<Vec<_>>() {
            self.host_acknowledged(id, 1).await?;
        }
        Ok(())
    }

    /// A client of its own, for another runtime.
    pub fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(&format!("http://{}", self.controller.api), None)?)
    }

    /// A number among the controller's metrics.
    pub async fn metric(&self, name: &str) -> Result<f64, Failure> {
        Ok(Metrics::fetch(self.controller.api, None).await?.sum(name, &[]))
    }

    /// Creates VPCs of one tenant, with one subnet each, on the clusters in turn.
    pub async fn vpcs(&self, count: usize) -> Result<Vec<Vpc>, Failure> {
        let tenant = self.api.create((), &NewTenant { name: "bench".into() }).await?.object;
        let mut vpcs = Vec::new();
        for number in 0..count {
            let cluster = self.clusters[number % self.clusters.len()].id;
            let vpc = NewVpc {
                name: format!("vpc-{number}"),
                tenant: tenant.id,
                cluster: Some(cluster),
                vni: None,
                mtu: None,
                offload_kbps: None,
                internet_meter: None,
            };
            let id = self.api.create((), &vpc).await?.object.id;
            let subnet = NewSubnet {
                name: "all".into(),
                ipv4: Some("10.0.0.0/8".parse()?),
                ipv6: None,
                ipv6_mode: None,
                dns: Vec::new(),
            };
            let subnet = self.api.create(id, &subnet).await?.object;
            vpcs.push(Vpc { id, cluster, subnet: subnet.id, revision: subnet.revision });
        }
        Ok(vpcs)
    }

    /// Waits until a host has acknowledged `revision`.
    pub async fn host_acknowledged(&mut self, id: HostId, revision: u64) -> Result<(), Failure> {
        for host in self.hosts.iter_mut().filter(|host| host.id == id) {
            let reached = host.acked.wait_for(|acked| *acked >= revision);
            tokio::time::timeout(TIMEOUT, reached).await.map_err(|_| {
                format!("host {id} has not acknowledged revision {revision} in {TIMEOUT:?}")
            })??;
        }
        Ok(())
    }

    /// Entries by which all hosts together find instances of other hosts.
    pub fn ways(&self) -> u64 {
        self.hosts.iter().map(|host| host.ways.load(Ordering::Relaxed)).sum()
    }

    /// Waits until every gateway of the cluster has acknowledged `revision`. A gateway that the revision does
    /// not concern receives it when nothing else is to be sent.
    pub async fn acknowledged(&mut self, cluster: ClusterId, revision: u64) -> Result<(), Failure> {
        let start = Instant::now();
        for gateway in self.gateways.iter_mut().filter(|gateway| gateway.cluster == cluster) {
            let left = TIMEOUT.saturating_sub(start.elapsed());
            let reached = gateway.acked.wait_for(|acked| *acked >= revision);
            tokio::time::timeout(left, reached)
                .await
                .map_err(|_| format!("not all gateways acknowledged revision {revision} in {TIMEOUT:?}"))??;
        }
        Ok(())
    }

    /// Entries that all gateways together have received.
    pub fn entries(&self) -> u64 {
        self.gateways.iter().map(|gateway| gateway.entries.load(Ordering::Relaxed)).sum()
    }

    /// Processor time that the threads of the controller and of its database have used so far, in seconds.
    pub fn controller_seconds(&self) -> Result<f64, Failure> {
        let mut nanoseconds = 0;
        for thread in fs::read_dir("/proc/self/task")? {
            let thread = thread?.path();
            // A thread may end between the two calls.
            let Ok(name) = fs::read_to_string(thread.join("comm")) else { continue };
            if [CONTROLLER_THREADS, DATABASE_THREADS].iter().any(|prefix| name.starts_with(prefix)) {
                let Ok(used) = fs::read_to_string(thread.join("schedstat")) else { continue };
                nanoseconds += used.split(' ').next().unwrap_or_default().parse::<u64>()?;
            }
        }
        Ok(nanoseconds as f64 / 1e9)
    }

    /// Ends the streams and the controller.
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.tasks.shutdown().await;
        self.controller.stop().await?;
        Ok(())
    }
}

/// A runtime that ends without waiting for its tasks, because waiting is not possible inside of another one.
struct Background(Option<Runtime>);

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Counts default entries and paths of a host that keeps everything it receives. While instances are only
/// started, nothing is withdrawn, and only default entries are sent again.
fn count_ways(own: IpAddr, ways: Arc<AtomicU64>) -> impl FnMut(&Update) {
    let mut defaults = HashSet::<Vni>::new();
    move |update| {
        let new = update.vrfs.iter().filter(|vrf| defaults.insert(vrf.vni)).count();
        // A host does not keep paths to itself.
        let paths = update.paths.iter().filter(|path| path.host != own).count();
        ways.fetch_add((new + paths) as u64, Ordering::Relaxed);
    }
}

/// Opens a stream without reading it, once or again and again.
async fn stall(identity: Identity, returns: bool) {
    loop {
        let hello = Hello::default();
        // The controller may be ending the stream before.
        let _connection = connect(&identity, &identity.controller, hello).await;
        if !returns {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(RETURN).await;
    }
}

async fn follow(
    identity: Identity,
    acked: watch::Sender<u64>,
    mut count: impl FnMut(&Update),
) -> Result<(), Failure> {
    let hello = Hello { version: env!("CARGO_PKG_VERSION").to_owned(), ..Hello::default() };
    let Connection { reports, mut updates } = connect(&identity, &identity.controller, hello).await?;
    while let Some(message) = updates.next().await? {
        let (update, malformed) = Update::read(message);
        if let Some(error) = malformed.first() {
            return Err(format!("the controller sent a malformed entry: {error}").into());
        }
        count(&update);
        if update.revision != 0 {
            reports.ack(update.revision, Vec::new(), true).await?;
            acked.send_replace(update.revision);
        }
    }
    Ok(())
}
