//! The host's end of RSP: what gateways and hosts say becomes paths in the
//! tables, what is not used goes, and who sends here what has left is told so.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_agent::rsp::{Edge, Events};
use sluice_agent::{Applier, Error, Node, chain};
use sluice_datapath::{FlowEvent, Stray};
use sluice_rsp::cache::Config;
use sluice_rsp::{Destination, Path};
use sluice_tables::flows::{FlowConfig, Flows, Policy};
use sluice_tables::{DirectPath, NodeTables};
use sluice_types::Vni;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use crate::book::PortBook;
use crate::path_metrics::PathStats;
use crate::paths::{Change, Keeper, Network, Reaction};

/// Datagrams that are taken before anything else has its turn.
const BUDGET: usize = 64;
/// How often it is looked which networks are here, beside when something says that it changed.
const REVIEW: Duration = Duration::from_secs(1);
/// A network stays for so long after its last instance here, and what a gateway that was removed sends is
/// accepted for so long.
pub const LINGER: Duration = Duration::from_secs(60);
/// How often it is looked which paths are used, at most and at least.
const USE_MAX: Duration = Duration::from_secs(5);
const USE_MIN: Duration = Duration::from_millis(500);
/// Of a path that the tables hold from before.
const ADOPTED_LIFETIME_MS: u32 = 60_000;
/// What an elephant is where this host looks for them: 20 kbit/s over a second, as gateways have it.
const ELEPHANT: FlowConfig = FlowConfig { period: Duration::from_secs(1), elephant_bytes: 2_500 };
/// Lists of paths that wait to be made.
const REQUESTS: usize = 8;

/// A path, as the local API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct PathView {
    /// The sender's network.
    pub vni: u32,
    /// The destination.
    pub destination: IpAddr,
    /// VTEP of its host.
    pub host: IpAddr,
    /// Its MAC.
    pub mac: String,
    /// Its network.
    pub path_vni: u32,
    /// The gateway's revision when it was confirmed last.
    pub revision: u64,
    /// Whether packets take it. If not, the tables refused it: a port of this host is nearer, or they are full.
    pub installed: bool,
    /// The controller's own: it was not learned, and has no revision.
    pub fixed: bool,
}

/// Asks for the paths. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PathList(mpsc::Sender<oneshot::Sender<Vec<PathView>>>);

impl PathList {
    /// All paths, by network and destination.
    ///
    /// # Errors
    /// [`Error::WriterGone`] while the agent ends.
    pub async fn get(&self) -> Result<Vec<PathView>, Error> {
        let (sender, receiver) = oneshot::channel();
        self.0.send(sender).await.map_err(|_| Error::WriterGone)?;
        receiver.await.map_err(|_| Error::WriterGone)
    }
}

/// Detection of elephants on this host, where the controller wants it here.
pub struct Detection<F> {
    /// Elephants.
    pub elephants: F,
    /// The packet program's table of flows.
    pub flows: Flows,
    /// The groups that want it.
    pub wanted: watch::Receiver<BTreeSet<u32>>,
}

impl<F> Detection<F> {
    /// Lets the packet program count flows, or stop.
    fn configure(&mut self) {
        let wanted = !self.wanted.borrow_and_update().is_empty();
        let policy = if wanted { Policy::Detect(ELEPHANT) } else { Policy::Off };
        match self.flows.configure(&policy) {
            Ok(()) => tracing::debug!(wanted, "detection of elephants on this host"),
            Err(error) => tracing::error!(error = chain(&error), "detection of elephants on this host"),
        }
    }
}

/// One task has it.
pub struct Learner<S, F> {
    node: Arc<Node<PortBook>>,
    edge: Edge,
    strays: S,
    detection: Detection<F>,
    own: IpAddr,
    keeper: Keeper,
    idle: Duration,
    began: Instant,
    book: watch::Receiver<u64>,
    requests: mpsc::Receiver<oneshot::Sender<Vec<PathView>>>,
    stats: Arc<Mutex<PathStats>>,
}

impl<S: Events<Stray>, F: Events<FlowEvent>> Learner<S, F> {
    /// Over an open edge. `own` is this host's VTEP, `idle` how long a path stays without being used, and
    /// `book` tells of changes of instances and gateways.
    pub fn new(
        node: Arc<Node<PortBook>>,
        edge: Edge,
        (strays, detection): (S, Detection<F>),
        own: IpAddr,
        idle: Duration,
        book: watch::Receiver<u64>,
    ) -> (Self, PathList) {
        let (sender, requests) = mpsc::channel(REQUESTS);
        let stats = Arc::<Mutex<PathStats>>::default();
        node.add_source(Arc::new(crate::path_metrics::PathSource(stats.clone())));
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let seed = sluice_agent::rsp::wall_clock_ms() as u32;
        let keeper = Keeper::new(Config { idle_ms, seed, ..Config::default() }, own, 0);
        let began = Instant::now();
        let learner = Self { node, edge, strays, detection, own, keeper, idle, began, book, requests, stats };
        (learner, PathList(sender))
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    /// When the keeper has something to do by itself.
    fn due(&self) -> Option<Instant> {
        let wake = self.keeper.wake_ms().map(|ms| ms.saturating_mul(1000));
        let redirects = self.keeper.redirects_due_us();
        wake.into_iter().chain(redirects).min().map(|us| self.began + Duration::from_micros(us))
    }

    /// Runs for ever.
    ///
    /// # Errors
    /// [`Error::WriterGone`], or if strays cannot be read.
    pub async fn run(mut self) -> Result<(), Error> {
        self.review().await?;
        self.adopt().await?;
        let mut reviews = interval(REVIEW);
        let mut uses = interval((self.idle / 6).clamp(USE_MIN, USE_MAX));
        reviews.set_missed_tick_behavior(MissedTickBehavior::Delay);
        uses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut topology = self.node.topology.subscribe();
        self.detection.configure();
        let (mut strays, mut elephants) = (Vec::new(), Vec::new());
        loop {
            let due = self.due();
            tokio::select! {
                () = self.edge.ready() => {}
                ready = self.strays.ready() => ready?,
                ready = self.detection.elephants.ready() => ready?,
                Ok(()) = self.detection.wanted.changed() => self.detection.configure(),
                () = sleep_until(due.unwrap_or(self.began).into()), if due.is_some() => {}
                _ = reviews.tick() => self.review().await?,
                // Their senders live as long as the node, which is held here.
                _ = self.book.changed() => self.review().await?,
                _ = topology.changed() => self.review().await?,
                _ = uses.tick() => self.look_at_use().await?,
                Some(request) = self.requests.recv() => self.list(request).await?,
            }
            strays.clear();
            self.strays.drain(&mut strays)?;
            elephants.clear();
            self.detection.elephants.drain(&mut elephants)?;
            self.turn(&strays, &elephants).await?;
        }
    }

    /// Takes what has come, and does what is due.
    async fn turn(&mut self, strays: &[Stray], elephants: &[FlowEvent]) -> Result<(), Error> {
        self.edge.flush();
        let (now_us, now_ms) = (self.now_us(), self.now_ms());
        let mut reaction = Reaction::default();
        for Stray { vni, destination, sender } in strays {
            let destination = Destination { vni: *vni, address: *destination };
            self.keeper.note_stray(now_us, destination, *sender);
        }
        if self.keeper.redirects_due_us().is_some_and(|due_us| due_us <= now_us) {
            self.keeper.take_redirects(now_us, &mut reaction);
        }
        let wanted = elephants.iter().map(|event| Destination { vni: event.vni, address: event.destination });
        let wanted: Vec<_> = wanted.collect();
        if !wanted.is_empty() {
            self.keeper.want(now_ms, &wanted, &mut reaction);
        }
        for received in self.edge.receive(BUDGET) {
            self.keeper.hear(now_ms, received.cluster, received.message, &mut reaction);
        }
        if self.keeper.wake_ms().is_some_and(|wake_ms| wake_ms <= now_ms) {
            self.keeper.tick(now_ms, &mut reaction);
        }
        self.perform(reaction).await
    }

    async fn perform(&mut self, reaction: Reaction) -> Result<(), Error> {
        let Reaction { changes, messages } = reaction;
        if !changes.is_empty() {
            let refused = self.node.writer.run(move |applier| write(&mut applier.tables, &changes)).await?;
            self.stats.lock().unwrap_or_else(PoisonError::into_inner).refused += refused;
        }
        for (cluster, to, message) in messages {
            self.edge.send(cluster, to, &message);
        }
        let (cache, counts) = self.keeper.stats();
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        (stats.cache, stats.counts, stats.fill) = (cache, counts, self.keeper.fill());
        Ok(())
    }

    /// Looks which networks are here, and ends what has lingered long enough.
    async fn review(&mut self) -> Result<(), Error> {
        let own = self.own;
        let look = move |applier: &mut Applier<PortBook>| {
            applier.end_lingering(Instant::now(), |book, vni| book.uses(vni));
            (applier.tables.database_id(), networks(applier, own))
        };
        let (database, networks) = self.node.writer.run(look).await?;
        let now_ms = self.now_ms();
        let reaction = self.keeper.set_networks(now_ms, database, networks);
        self.perform(reaction).await
    }

    async fn adopt(&mut self) -> Result<(), Error> {
        let paths = self.node.writer.run(|applier| adopted(&applier.tables)).await?;
        if !paths.is_empty() {
            tracing::info!(paths = paths.len(), "direct paths from before; asking whether they are right");
        }
        let now_ms = self.now_ms();
        let reaction = self.keeper.adopt(now_ms, &paths);
        self.perform(reaction).await
    }

    async fn look_at_use(&mut self) -> Result<(), Error> {
        let look = |applier: &mut Applier<PortBook>| -> Vec<(Destination, u64)> {
            learned(&applier.tables).map(|(path, used)| (destination(&path), used.into())).collect()
        };
        let used = self.node.writer.run(look).await?;
        let now_ms = self.now_ms();
        let reaction = self.keeper.note_use(now_ms, &used);
        self.perform(reaction).await
    }

    async fn list(&mut self, request: oneshot::Sender<Vec<PathView>>) -> Result<(), Error> {
        let look = |applier: &mut Applier<PortBook>| -> Vec<DirectPath> {
            applier.tables.directs().map(|(path, _)| path).collect()
        };
        let (fixed, learned): (Vec<_>, Vec<_>) =
            self.node.writer.run(look).await?.into_iter().partition(|path| path.fixed);
        let installed: HashMap<_, _> = learned.iter().map(|path| (destination(path), path.host)).collect();
        let view = |(destination, path): (Destination, Path)| PathView {
            vni: destination.vni.get(),
            destination: destination.address,
            host: path.host,
            mac: path.mac.to_string(),
            path_vni: path.vni.get(),
            revision: path.revision,
            installed: installed.get(&destination) == Some(&path.host),
            fixed: false,
        };
        let mut paths: Vec<PathView> = self.keeper.paths().map(view).collect();
        paths.extend(fixed.iter().map(fixed_view));
        paths.sort_by_key(|path| (path.vni, path.destination));
        // Who asked may have hung up.
        let _ = request.send(paths);
        Ok(())
    }
}

fn fixed_view(path: &DirectPath) -> PathView {
    PathView {
        vni: path.vni.get(),
        destination: path.address,
        host: path.host,
        mac: path.mac.to_string(),
        path_vni: path.path_vni.get(),
        revision: 0,
        installed: true,
        fixed: true,
    }
}

fn destination(path: &DirectPath) -> Destination {
    Destination { vni: path.vni, address: path.address }
}

fn adopted(tables: &NodeTables) -> Vec<(Destination, Path)> {
    let path = |path: &DirectPath| Path {
        host: path.host,
        mac: path.mac,
        vni: path.path_vni,
        lifetime_ms: ADOPTED_LIFETIME_MS,
        // Whatever a gateway says is newer.
        revision: 0,
    };
    learned(tables).map(|(direct, _)| (destination(&direct), path(&direct))).collect()
}

/// The paths that are not the controller's own, and when each was used last.
fn learned(tables: &NodeTables) -> impl Iterator<Item = (DirectPath, u32)> + '_ {
    tables.directs().filter(|(path, _)| !path.fixed)
}

/// Takes a path away that was learned.
fn remove(tables: &mut NodeTables, vni: Vni, address: IpAddr) -> Result<bool, sluice_tables::Error> {
    match tables.direct(vni, address) {
        Some(path) if path.fixed => Ok(false),
        _ => tables.remove_direct(vni, address),
    }
}

/// The networks of this host, with the gateways to ask about them.
fn networks(applier: &Applier<PortBook>, own: IpAddr) -> Vec<Network> {
    let network = |entry: sluice_tables::VrfEntry| {
        let cluster = entry.vrf.group?;
        let gateways = applier.ports.gateways(cluster).filter(|gateway| gateway.is_ipv4() == own.is_ipv4());
        Some(Network {
            vni: entry.vrf.vni,
            cluster,
            gateways: gateways.collect(),
            used: applier.ports.uses(entry.vrf.vni),
        })
    };
    applier.tables.vrfs().filter_map(network).collect()
}

/// Writes changes; how many paths the tables refused.
fn write(tables: &mut NodeTables, changes: &[Change]) -> u64 {
    let mut refused = 0;
    for change in changes {
        let (destination, result) = match *change {
            Change::Install(destination, path) => {
                let Destination { vni, address } = destination;
                let Path { mac, host, vni: path_vni, .. } = path;
                let path = DirectPath { vni, address, mac, host, path_vni, fixed: false };
                // What was there before is out of date: the gateway knows better.
                let entered = tables.upsert_direct(&path);
                let result = entered.or_else(|error| remove(tables, vni, address).and(Err(error)));
                (destination, result)
            }
            Change::Remove(destination, _) => {
                (destination, remove(tables, destination.vni, destination.address))
            }
        };
        if let Err(error) = result {
            refused += 1;
            tracing::debug!(?destination, error = chain(&error), "direct path");
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_rsp::cache::Why;
    use sluice_tables::{Immediate, Memory, Role, Sizes, Vrf};
    use sluice_types::{MacAddr, Vni};

    #[test]
    fn a_path_that_cannot_be_entered_leaves_none() {
        let memory = Memory::anonymous(1 << 12).expect("memory");
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).expect("tables");
        let vni = Vni::new(7).expect("a VNI");
        let known: IpAddr = "192.0.2.22".parse().expect("an address");
        tables.upsert_vtep(known, Role::Host).expect("a VTEP");
        let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
        tables.upsert_vrf(&vrf).expect("a VRF");
        let destination = Destination { vni, address: "10.0.0.5".parse().expect("an address") };
        let path = |host| Path { host, mac: MacAddr::local(5), vni, lifetime_ms: 1000, revision: 1 };
        assert_eq!(write(&mut tables, &[Change::Install(destination, path(known))]), 0);
        assert_eq!(tables.directs().count(), 1);
        let unknown = "192.0.2.99".parse().expect("an address");
        assert_eq!(write(&mut tables, &[Change::Install(destination, path(unknown))]), 1);
        assert_eq!(tables.directs().count(), 0);
        assert_eq!(write(&mut tables, &[Change::Remove(destination, Why::Idle)]), 0);

        // The controller's own is neither learned over nor given up.
        let fixed = DirectPath { fixed: true, ..direct(vni, destination.address, known) };
        tables.upsert_direct(&fixed).expect("a path");
        assert_eq!(write(&mut tables, &[Change::Install(destination, path(known))]), 1);
        assert_eq!(write(&mut tables, &[Change::Remove(destination, Why::Idle)]), 0);
        assert_eq!(tables.direct(vni, destination.address), Some(fixed));
        assert_eq!((learned(&tables).count(), adopted(&tables)), (0, Vec::new()));
    }

    fn direct(vni: Vni, address: IpAddr, host: IpAddr) -> DirectPath {
        DirectPath { vni, address, mac: MacAddr::local(6), host, path_vni: vni, fixed: false }
    }
}
