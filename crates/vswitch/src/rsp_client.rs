//! The host's RSP client: feeds received messages, stray packets and elephant flows to the path learner, writes
//! the paths that it returns to the tables, and sends its messages and those of the identity client. This file changes
//! when the learner gets another input or output.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_agent::event_source::EventSource;
use sluice_agent::rsp::RspTransport;
use sluice_agent::{Applier, Error, Node, error_chain};
use sluice_datapath::{FlowEvent, Stray, UnknownReceiver};
use sluice_rsp::cache::Config;
use sluice_rsp::{Capabilities, Destination, Message, Path, PermitEntry, Reception};
use sluice_southbound::{MigrationSide, Port, PortMigration};
use sluice_tables::flows::{Flows, Policy};
use sluice_tables::{DirectPath, NodeTables};
use sluice_types::Vni;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use crate::elephants::{ELEPHANT, Elephants};
use crate::identity_client::{IdentityClient, identities_of_ports};
use crate::path_learner::{Actions, Network, PathChange, PathLearner};
use crate::path_metrics::{PathMetrics, PathStats};
use crate::permitted_senders;
use crate::role::HostRole;

/// Datagrams that are received before other inputs get their turn.
const RECEIVE_BUDGET: usize = 64;
/// Interval at which the networks of this host are reviewed, in addition to reviews after changes.
const REVIEW_INTERVAL: Duration = Duration::from_secs(1);
/// Longest and shortest interval at which the use of paths is read from the tables.
const USE_INTERVAL_MAX: Duration = Duration::from_secs(5);
const USE_INTERVAL_MIN: Duration = Duration::from_millis(500);
/// Lifetime of a path that an earlier agent left in the tables.
const ADOPTED_LIFETIME_MS: u32 = 60_000;
/// Targets of migrations that gateways are told of.
const TARGETS_MAX: usize = 512;
/// Requests for the list of paths that may wait.
const LIST_REQUESTS_MAX: usize = 8;

/// A path, as the local API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct PathView {
    /// VNI of the sender's network.
    pub vni: u32,
    /// Address of the destination.
    pub destination: IpAddr,
    /// VTEP of the destination's host.
    pub host: IpAddr,
    /// MAC of the destination.
    pub mac: String,
    /// VNI of the destination's network.
    pub path_vni: u32,
    /// Longest IP packet that takes the path, in bytes; 0: the path has no MTU of its own.
    pub mtu: u16,
    /// Revision of the gateway that confirmed the path last; 0 for a fixed path.
    pub revision: u64,
    /// Whether packets take the path. If not, the tables refused it: the destination has a port on this host,
    /// or the tables are full.
    pub installed: bool,
    /// Whether the path is set by the controller, or by a migration, not learned.
    pub fixed: bool,
    /// Whether the destination migrates: packets from the underlay take the path as well.
    pub moved: bool,
}

/// Requests the list of paths from the client. Cheap to clone.
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

/// Detection of elephant flows on this host, which the controller may enable.
pub struct ElephantDetection<E> {
    /// Events of elephant flows.
    pub events: E,
    /// The packet program's flow table.
    pub flows: Flows,
    /// The groups for which detection is enabled, and the time in milliseconds for which elephants must last.
    pub groups: watch::Receiver<BTreeMap<u32, u32>>,
    /// Those that have been reported.
    pub reported: Elephants,
}

impl<E> ElephantDetection<E> {
    /// Makes the packet program count flows, or stop counting them.
    fn configure(&mut self) {
        let lasting_ms = self.groups.borrow_and_update().values().copied().max();
        let enabled = lasting_ms.is_some();
        self.reported.set_lasting(Duration::from_millis(lasting_ms.unwrap_or(0).into()));
        let policy = if enabled { Policy::Detect(ELEPHANT) } else { Policy::Off };
        match self.flows.configure(&policy) {
            Ok(()) => tracing::debug!(enabled, lasting_ms, "detection of elephant flows on this host"),
            Err(error) => {
                tracing::error!(
                    enabled,
                    error = error_chain(&error),
                    "cannot configure the detection of elephant flows"
                );
            }
        }
    }
}

/// The host's RSP client. A single task runs it.
pub struct RspClient<S, E, U> {
    node: Arc<Node<HostRole>>,
    transport: RspTransport,
    strays: S,
    detection: ElephantDetection<E>,
    identities: IdentityClient<U>,
    /// VTEP of this host.
    own: IpAddr,
    learner: PathLearner,
    /// Time after which an unused path is removed.
    idle_timeout: Duration,
    /// Origin of the learner's clock.
    started: Instant,
    registry_changes: watch::Receiver<u64>,
    list_requests: mpsc::Receiver<oneshot::Sender<Vec<PathView>>>,
    stats: Arc<Mutex<PathStats>>,
}

impl<S: EventSource<Stray>, E: EventSource<FlowEvent>, U: EventSource<UnknownReceiver>> RspClient<S, E, U> {
    /// A client that uses `transport`. `own` is this host's VTEP, and an unused path is removed after
    /// `idle_timeout`. `registry_changes` notifies changes of instances and gateways.
    pub fn new(
        node: Arc<Node<HostRole>>,
        transport: RspTransport,
        (strays, detection, identities): (S, ElephantDetection<E>, IdentityClient<U>),
        own: IpAddr,
        idle_timeout: Duration,
        registry_changes: watch::Receiver<u64>,
    ) -> (Self, PathList) {
        let (sender, list_requests) = mpsc::channel(LIST_REQUESTS_MAX);
        let stats = Arc::<Mutex<PathStats>>::default();
        node.add_metrics(Arc::new(PathMetrics(stats.clone())));
        node.add_metrics(identities.metrics());
        let idle_ms = u64::try_from(idle_timeout.as_millis()).unwrap_or(u64::MAX);
        let seed = sluice_agent::rsp::wall_clock_ms() as u32;
        let learner = PathLearner::new(Config { idle_ms, seed, ..Config::default() }, own, 0);
        let started = Instant::now();
        let client = Self {
            node,
            transport,
            strays,
            detection,
            identities,
            own,
            learner,
            idle_timeout,
            started,
            registry_changes,
            list_requests,
            stats,
        };
        (client, PathList(sender))
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    /// Time at which the learner's timer or redirections, or questions for identities, are due.
    fn due(&self) -> Option<Instant> {
        let timers = [self.learner.timer_ms(), self.identities.due_ms()];
        let timers = timers.into_iter().flatten().map(|ms| ms.saturating_mul(1000));
        timers.chain(self.learner.redirects_due_us()).min().map(|us| self.started + Duration::from_micros(us))
    }

    /// Runs until it fails.
    ///
    /// # Errors
    /// [`Error::WriterGone`], or if an event source cannot be read.
    pub async fn run(mut self) -> Result<(), Error> {
        self.review_networks().await?;
        self.adopt_paths().await?;
        self.identities.adopt(self.now_ms());
        let mut reviews = interval(REVIEW_INTERVAL);
        let mut uses = interval((self.idle_timeout / 6).clamp(USE_INTERVAL_MIN, USE_INTERVAL_MAX));
        reviews.set_missed_tick_behavior(MissedTickBehavior::Delay);
        uses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut topology = self.node.topology.subscribe();
        self.detection.configure();
        let (mut strays, mut elephants) = (Vec::new(), Vec::new());
        loop {
            let due = self.due();
            tokio::select! {
                () = self.transport.ready() => {}
                ready = self.strays.ready() => ready?,
                ready = self.detection.events.ready() => ready?,
                ready = self.identities.ready() => ready?,
                Ok(()) = self.detection.groups.changed() => self.detection.configure(),
                () = sleep_until(due.unwrap_or(self.started).into()), if due.is_some() => {}
                _ = reviews.tick() => self.review_networks().await?,
                // The node holds the senders of both, and this task holds the node.
                _ = self.registry_changes.changed() => self.review_networks().await?,
                _ = topology.changed() => self.review_networks().await?,
                _ = uses.tick() => self.review_use().await?,
                Some(request) = self.list_requests.recv() => self.list(request).await?,
            }
            strays.clear();
            self.strays.drain(&mut strays)?;
            elephants.clear();
            self.detection.events.drain(&mut elephants)?;
            self.process(&strays, &elephants).await?;
        }
    }

    /// Processes the new inputs and what is due.
    async fn process(&mut self, strays: &[Stray], elephants: &[FlowEvent]) -> Result<(), Error> {
        self.transport.flush();
        let (now_us, now_ms) = (self.now_us(), self.now_ms());
        let mut actions = Actions::default();
        for Stray { vni, destination, sender } in strays {
            let destination = Destination { vni: *vni, address: *destination };
            self.learner.note_stray(now_us, destination, *sender);
        }
        if self.learner.redirects_due_us().is_some_and(|due_us| due_us <= now_us) {
            self.learner.take_redirects(now_us, &mut actions);
        }
        let reported = &mut self.detection.reported;
        let lasting = |event: &FlowEvent| {
            let destination = Destination { vni: event.vni, address: event.destination };
            reported.note(event.time_ns, destination).then_some(destination)
        };
        let destinations: Vec<_> = elephants.iter().filter_map(lasting).collect();
        if !destinations.is_empty() {
            self.learner.request_paths(now_ms, &destinations, &mut actions);
        }
        for received in self.transport.receive(RECEIVE_BUDGET) {
            match received.message {
                Message::Permit { entries } => {
                    self.permit(now_ms, received.cluster, received.from, entries).await?;
                }
                Message::Identify { entries } => {
                    self.identify(now_ms, received.cluster, received.from, entries).await?;
                }
                Message::Identity { entries } => {
                    let learner = &self.learner;
                    let is_authoritative = |vni| learner.is_of_cluster(now_ms, received.cluster, vni);
                    self.identities.answer(now_ms, &entries, is_authoritative);
                }
                message => self.learner.handle_message(now_ms, received.cluster, message, &mut actions),
            }
        }
        actions.messages.extend(self.identities.process(now_ms, self.learner.networks())?);
        if self.learner.timer_ms().is_some_and(|timer_ms| timer_ms <= now_ms) {
            self.learner.handle_timer(now_ms, &mut actions);
        }
        self.perform(actions).await
    }

    /// Accepts packets of other hosts, as the gateway at `from` permits, and confirms it.
    async fn permit(
        &mut self,
        now_ms: u64,
        cluster: u32,
        from: SocketAddr,
        mut entries: Vec<PermitEntry>,
    ) -> Result<(), Error> {
        self.learner.relevant_permits(now_ms, cluster, &mut entries);
        let asked = entries.len();
        let write = move |applier: &mut Applier<HostRole>| {
            let entries = permitted_senders::permit(&mut applier.tables, entries);
            (entries, applier.tables.senders(), applier.role.ports.mtu_max())
        };
        let (entries, senders, mtu) = self.node.writer.run(write).await?;
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.permits_refused += (asked - entries.len()) as u64;
        stats.senders = senders;
        drop(stats);
        if !entries.is_empty() {
            let reception = Reception { mtu, capabilities: Capabilities::OWN };
            self.transport.send_to(Some(cluster), from, &Message::Permitted { reception, entries });
        }
        Ok(())
    }

    /// Answers the gateway at `from` with the identities of instances of this host.
    async fn identify(
        &mut self,
        now_ms: u64,
        cluster: u32,
        from: SocketAddr,
        mut destinations: Vec<Destination>,
    ) -> Result<(), Error> {
        destinations.retain(|destination| self.learner.is_of_cluster(now_ms, cluster, destination.vni));
        let read = move |applier: &mut Applier<HostRole>| identities_of_ports(&applier.tables, &destinations);
        let entries = self.node.writer.run(read).await?;
        if !entries.is_empty() {
            self.transport.send_to(Some(cluster), from, &Message::Identity { entries });
        }
        Ok(())
    }

    async fn perform(&mut self, actions: Actions) -> Result<(), Error> {
        let Actions { changes, messages } = actions;
        if !changes.is_empty() {
            let write = move |applier: &mut Applier<HostRole>| write_paths(&mut applier.tables, &changes);
            let refused = self.node.writer.run(write).await?;
            self.stats.lock().unwrap_or_else(PoisonError::into_inner).refused += refused;
        }
        for (cluster, to, message) in messages {
            self.transport.send(Some(cluster), to, &message);
        }
        let (cache, counts) = self.learner.stats();
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        (stats.cache, stats.counts, stats.fill) = (cache, counts, self.learner.fill());
        stats.elephants_refused = self.detection.reported.refused();
        Ok(())
    }

    /// Reads which networks are on this host, after removing those whose delayed removal is due.
    async fn review_networks(&mut self) -> Result<(), Error> {
        let own = self.own;
        let review = move |applier: &mut Applier<HostRole>| {
            applier.role.remove_expired(&mut applier.tables, Instant::now());
            if let Err(error) = permitted_senders::remove_expired(&mut applier.tables) {
                tracing::error!(error = error_chain(&error), "cannot remove senders; retrying later");
            }
            let networks = networks(applier, own);
            (applier.tables.database_id(), networks, targets(applier), applier.tables.senders())
        };
        let (database, networks, targets, senders) = self.node.writer.run(review).await?;
        self.name_targets(&networks, &targets);
        self.update_stats(senders);
        let now_ms = self.now_ms();
        let actions = self.learner.set_networks(now_ms, database, networks);
        self.identities.set_networks(database, self.learner.networks());
        self.perform(actions).await
    }

    /// Tells gateways to which hosts instances of this one migrate: packets of these hosts are to be accepted before the
    /// controller has moved the instances.
    fn name_targets(&mut self, networks: &[Network], targets: &[PermitEntry]) {
        for entry in targets {
            for network in networks.iter().filter(|network| network.vni == entry.vni) {
                for gateway in &network.gateways {
                    let message = Message::Permit { entries: vec![*entry] };
                    self.transport.send(Some(network.cluster), *gateway, &message);
                }
            }
        }
    }

    /// Stores for metrics what is read once per review.
    fn update_stats(&self, senders: usize) {
        let datapath = &self.node.datapath;
        let events = datapath.events_lost().and_then(|lost| Ok((lost, datapath.events_refused()?)));
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.senders = senders;
        match events {
            Ok(events) => stats.events = events,
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "cannot read the number of lost events")
            }
        }
    }

    async fn adopt_paths(&mut self) -> Result<(), Error> {
        let paths = self.node.writer.run(|applier| adopted(&applier.tables)).await?;
        if !paths.is_empty() {
            tracing::info!(paths = paths.len(), "adopted direct paths of an earlier agent; confirming them");
        }
        let now_ms = self.now_ms();
        let actions = self.learner.adopt(now_ms, &paths);
        self.perform(actions).await
    }

    async fn review_use(&mut self) -> Result<(), Error> {
        let read = |applier: &mut Applier<HostRole>| -> Vec<(Destination, u64)> {
            learned(&applier.tables).map(|(path, used)| (destination(&path), used.into())).collect()
        };
        let used = self.node.writer.run(read).await?;
        let now_ms = self.now_ms();
        let mut actions = self.learner.note_use(now_ms, &used);
        // What the tables refused or removed is tried again: the path's host may be known by now.
        let installed: HashSet<Destination> = used.into_iter().map(|(destination, _)| destination).collect();
        let missing = self.learner.paths().filter(|(destination, _)| !installed.contains(destination));
        actions.changes.extend(missing.map(|(to, path)| PathChange::Install(to, path)));
        self.perform(actions).await
    }

    async fn list(&mut self, request: oneshot::Sender<Vec<PathView>>) -> Result<(), Error> {
        let read = |applier: &mut Applier<HostRole>| -> Vec<DirectPath> {
            applier.tables.direct_paths().map(|(path, _)| path).collect()
        };
        let (fixed, learned): (Vec<_>, Vec<_>) =
            self.node.writer.run(read).await?.into_iter().partition(|path| path.fixed);
        let installed: HashMap<_, _> = learned.iter().map(|path| (destination(path), path.host)).collect();
        let view = |(destination, path): (Destination, Path)| PathView {
            vni: destination.vni.get(),
            destination: destination.address,
            host: path.host,
            mac: path.mac.to_string(),
            path_vni: path.vni.get(),
            mtu: path.reception.mtu,
            revision: path.revision,
            installed: installed.get(&destination) == Some(&path.host),
            fixed: false,
            moved: false,
        };
        let mut paths: Vec<PathView> = self.learner.paths().map(view).collect();
        paths.extend(fixed.iter().map(fixed_view));
        paths.sort_by_key(|path| (path.vni, path.destination));
        // The API's client may have closed the connection.
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
        mtu: path.mtu,
        revision: 0,
        installed: true,
        fixed: true,
        moved: path.moved,
    }
}

fn destination(path: &DirectPath) -> Destination {
    Destination { vni: path.vni, address: path.address }
}

/// The learned paths of the tables. Their revision is 0, so whatever a gateway sends is newer.
fn adopted(tables: &NodeTables) -> Vec<(Destination, Path)> {
    let path = |path: &DirectPath| Path {
        host: path.host,
        mac: path.mac,
        vni: path.path_vni,
        lifetime_ms: ADOPTED_LIFETIME_MS,
        revision: 0,
        by_network: false,
        reception: Reception { mtu: path.mtu, capabilities: Capabilities::NONE },
    };
    learned(tables).map(|(direct, _)| (destination(&direct), path(&direct))).collect()
}

/// The paths of the tables that are not fixed, and when each was used last.
fn learned(tables: &NodeTables) -> impl Iterator<Item = (DirectPath, u32)> {
    tables.direct_paths().filter(|(path, _)| !path.fixed)
}

/// Removes a path unless it is fixed.
fn remove_learned(tables: &mut NodeTables, vni: Vni, address: IpAddr) -> Result<bool, sluice_tables::Error> {
    match tables.direct_path(vni, address) {
        Some(path) if path.fixed => Ok(false),
        _ => tables.remove_direct_path(vni, address),
    }
}

/// The networks of this host that have a group, with the gateways of its cluster.
fn networks(applier: &Applier<HostRole>, own: IpAddr) -> Vec<Network> {
    let registry = &applier.role.ports;
    let network = |entry: sluice_tables::VrfEntry| {
        let cluster = entry.vrf.group?;
        let gateways = registry.gateways_of(cluster).filter(|gateway| gateway.is_ipv4() == own.is_ipv4());
        Some(Network {
            vni: entry.vrf.vni,
            cluster,
            gateways: gateways.collect(),
            has_instance: registry.has_instance_in(entry.vrf.vni),
        })
    };
    applier.tables.vrfs().filter_map(network).collect()
}

/// The hosts to which instances of this one migrate, in their networks.
fn targets(applier: &Applier<HostRole>) -> Vec<PermitEntry> {
    let target = |(port, migration): (&Port, &PortMigration)| match migration.side {
        MigrationSide::Outgoing { to } => Some(PermitEntry { vni: port.vni, host: to }),
        MigrationSide::Incoming { .. } => None,
    };
    applier.role.ports.migrating().filter_map(target).take(TARGETS_MAX).collect()
}

/// Writes changes to the tables. Returns how many of them the tables refused.
fn write_paths(tables: &mut NodeTables, changes: &[PathChange]) -> u64 {
    let mut refused = 0;
    for change in changes {
        let (destination, result) = match *change {
            PathChange::Install(destination, path) => {
                let Destination { vni, address } = destination;
                let Path { mac, host, vni: path_vni, reception: Reception { mtu, .. }, .. } = path;
                let path = DirectPath { vni, address, mac, host, path_vni, mtu, fixed: false, moved: false };
                // If the new path cannot be written, the old one is removed too, because it is out of date.
                let written = tables.upsert_direct_path(&path);
                let result = written.or_else(|error| remove_learned(tables, vni, address).and(Err(error)));
                (destination, result)
            }
            PathChange::Remove(destination, _) => {
                (destination, remove_learned(tables, destination.vni, destination.address))
            }
        };
        if let Err(error) = result {
            refused += 1;
            tracing::debug!(?destination, error = error_chain(&error), "direct path refused");
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_rsp::cache::RemovalReason;
    use sluice_tables::{Immediate, Memory, Role, Sizes, Vrf};
    use sluice_types::MacAddr;

    fn tables(vni: Vni, host: IpAddr) -> NodeTables {
        let memory = Memory::anonymous(1 << 12).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        tables.upsert_vtep(host, Role::Host).unwrap();
        let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
        tables.upsert_vrf(&vrf).unwrap();
        tables
    }

    fn path(vni: Vni, host: IpAddr) -> Path {
        let reception = Reception { mtu: 1400, capabilities: Capabilities::OWN };
        Path {
            host,
            mac: MacAddr::local(5),
            vni,
            lifetime_ms: 1000,
            revision: 1,
            by_network: false,
            reception,
        }
    }

    /// Catches an outdated path that stays when its successor is refused.
    #[test]
    fn refused_path_removes_the_old_one() {
        let (vni, known): (_, IpAddr) = (Vni::new(7).unwrap(), "192.0.2.22".parse().unwrap());
        let mut tables = tables(vni, known);
        let destination = Destination { vni, address: "10.0.0.5".parse().unwrap() };
        assert_eq!(write_paths(&mut tables, &[PathChange::Install(destination, path(vni, known))]), 0);
        let written = tables.direct_path(vni, destination.address).unwrap();
        assert_eq!((written.host, written.mtu), (known, 1400));
        let adopted = adopted(&tables).remove(0).1.reception;
        assert_eq!(adopted, Reception { mtu: 1400, capabilities: Capabilities::NONE });
        let unknown = "192.0.2.99".parse().unwrap();
        assert_eq!(write_paths(&mut tables, &[PathChange::Install(destination, path(vni, unknown))]), 1);
        assert_eq!(tables.direct_paths().count(), 0);
        assert_eq!(write_paths(&mut tables, &[PathChange::Remove(destination, RemovalReason::Idle)]), 0);
    }

    #[test]
    fn fixed_path_is_neither_replaced_nor_removed_nor_adopted() {
        let (vni, host): (_, IpAddr) = (Vni::new(7).unwrap(), "192.0.2.22".parse().unwrap());
        let mut tables = tables(vni, host);
        let destination = Destination { vni, address: "10.0.0.5".parse().unwrap() };
        let Destination { address, .. } = destination;
        let fixed = DirectPath {
            vni,
            address,
            mac: MacAddr::local(6),
            host,
            path_vni: vni,
            mtu: 0,
            fixed: true,
            moved: false,
        };
        tables.upsert_direct_path(&fixed).unwrap();
        assert_eq!(write_paths(&mut tables, &[PathChange::Install(destination, path(vni, host))]), 1);
        assert_eq!(write_paths(&mut tables, &[PathChange::Remove(destination, RemovalReason::Idle)]), 0);
        assert_eq!(tables.direct_path(vni, address), Some(fixed));
        assert_eq!((learned(&tables).count(), adopted(&tables)), (0, Vec::new()));
    }
}
