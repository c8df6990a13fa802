//! Live migration of instances (Achelous section 6.2), the hosts' part: the target copies the sessions of an instance from the
//! source, notices when the guest runs here, and opens the port when the source has closed its own. This file changes with what
//! starts these steps; `target.rs` decides about them, and the registry of ports does them (`docs/decisions/migration-hosts.md`). With
//! sessions `reset`, it lets the connections of the instance end instead.

mod copies;
mod metrics;
mod resets;
mod target;
mod transport;
pub mod wire;

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use sluice_agent::{Applier, Error, MigrationReports, Node, error_chain};
use sluice_southbound::{MigrationSide, MigrationState, PortMigration, SessionMode};
use sluice_sys::PacketSocket;
use sluice_tables::Direction;
use sluice_tables::sessions::{SessionReader, ticks_now};
use sluice_types::{InstanceId, MacAddr};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use crate::port_manager::PortError;
use crate::port_registry::{CopyTarget, PortRegistry, RegistryError};
use crate::role::HostRole;
use crate::sessions::{InstallCounts, SessionInstaller};
use metrics::MigrationMetrics;
use resets::{Ending, Resets};
use target::{Output, Target};
use transport::Transport;
use wire::{Answer, Message, Reply, Request, SessionCopy};

/// Migrations to this host and from it at a time: the controller lets a host take part in 512 in each direction. Others wait until
/// one of these has ended.
const MIGRATIONS_MAX: usize = 1024;
/// Datagrams that are received before other inputs get their turn.
const RECEIVE_BUDGET: usize = 64;
/// Interval at which ports are reviewed, in addition to reviews after changes.
const REVIEW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which numbers of copied sessions are reported. Other changes are reported at once.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Calls of [`Resumer::resume`] that may wait.
const CALLS_MAX: usize = 16;
/// What is read of a frame. Only whether there is one counts.
const FRAME_BYTES: usize = 64;

type Call = (String, oneshot::Sender<Result<(), PortError>>);

/// Tells the migrator that a guest runs here. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Resumer(mpsc::Sender<Call>);

impl Resumer {
    /// The guest of this instance runs here: its port is opened. Returns as soon as the source was asked to close its own.
    ///
    /// # Errors
    /// If the instance is unknown, does not migrate to this host, or has no interface here.
    pub async fn resume(&self, instance: String) -> Result<(), PortError> {
        let (sender, receiver) = oneshot::channel();
        self.0.send((instance, sender)).await.map_err(|_| Error::WriterGone)?;
        receiver.await.map_err(|_| Error::WriterGone)?
    }
}

/// An instance that migrates to this host.
struct Incoming {
    target: Target,
    from: IpAddr,
    mac: MacAddr,
    copy: Option<CopyTarget>,
    /// Receives frames of the guest, until the first one has come. With the interface.
    frames: Option<(u32, AsyncFd<PacketSocket>)>,
    /// That were copied, or of connections that are to end.
    sessions: u64,
    resumed: Option<Instant>,
}

/// What a review finds of a migration.
struct Found {
    instance: InstanceId,
    mac: MacAddr,
    migration: PortMigration,
    copy: Option<CopyTarget>,
    is_open: bool,
}

fn find(registry: &PortRegistry) -> Vec<Found> {
    let found = |(port, migration): (&sluice_southbound::Port, &PortMigration)| Found {
        instance: port.instance,
        mac: port.mac,
        migration: *migration,
        copy: registry.copy_target(port.instance),
        is_open: registry.is_open(port),
    };
    registry.migrating().map(found).take(MIGRATIONS_MAX).collect()
}

/// Migrates instances. A single task runs it.
pub struct Migrator {
    node: Arc<Node<HostRole>>,
    transport: Transport,
    reader: SessionReader,
    installer: SessionInstaller,
    changes: watch::Receiver<u64>,
    calls: mpsc::Receiver<Call>,
    incoming: BTreeMap<InstanceId, Incoming>,
    /// Connections that are to end, also after their migration. The socket by which guests are provoked is opened with the
    /// first one.
    resets: Resets,
    provoker: Option<PacketSocket>,
    reports: MigrationReports,
    /// What was reported last, and when.
    reported: (Vec<MigrationState>, Instant),
    metrics: MigrationMetrics,
    /// Origin of the clock of targets.
    started: Instant,
}

impl Migrator {
    /// A migrator whose datagrams have this address and port. `changes` notifies changes of instances. Must be called within a
    /// Tokio runtime.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn open(
        node: Arc<Node<HostRole>>,
        (own, port): (IpAddr, u16),
        (reader, installer): (SessionReader, SessionInstaller),
        reports: MigrationReports,
        changes: watch::Receiver<u64>,
    ) -> Result<(Self, Resumer), Error> {
        let (sender, calls) = mpsc::channel(CALLS_MAX);
        let metrics = MigrationMetrics::default();
        node.add_metrics(Arc::new(metrics.clone()));
        let transport = Transport::open(&node.name, own, port)?;
        let (incoming, started) = (BTreeMap::new(), Instant::now());
        let migrator = Self {
            node,
            transport,
            reader,
            installer,
            changes,
            calls,
            incoming,
            resets: Resets::default(),
            provoker: None,
            reports,
            reported: (Vec::new(), started),
            metrics,
            started,
        };
        Ok((migrator, Resumer(sender)))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn due(&self) -> Option<Instant> {
        let of_targets = self.incoming.values().filter_map(|incoming| incoming.target.due_ms());
        let due_ms = of_targets.chain(self.resets.due_ms()).min()?;
        Some(self.started + Duration::from_millis(due_ms))
    }

    /// Runs until it fails.
    ///
    /// # Errors
    /// [`Error::WriterGone`].
    pub async fn run(mut self) -> Result<(), Error> {
        let mut reviews = interval(REVIEW_INTERVAL);
        reviews.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.due();
            tokio::select! {
                () = self.transport.ready() => self.receive().await?,
                instance = first_frame(&self.incoming) => self.guest_runs(instance).await?,
                Some((name, done)) = self.calls.recv() => self.answer_call(&name, done).await?,
                () = sleep_until(due.unwrap_or(self.started).into()), if due.is_some() => {}
                _ = reviews.tick() => self.review().await?,
                // The node holds the sender, and this task holds the node.
                _ = self.changes.changed() => self.review().await?,
            }
            let now_ms = self.now_ms();
            let instances: Vec<InstanceId> = self.incoming.keys().copied().collect();
            for instance in instances {
                let outputs = self.incoming.get_mut(&instance).map(|incoming| incoming.target.tick(now_ms));
                self.perform(instance, outputs.unwrap_or_default()).await?;
            }
            self.provoke(now_ms);
            self.report();
        }
    }

    /// Follows the ports that migrate.
    async fn review(&mut self) -> Result<(), Error> {
        let found = self.node.writer.run(|applier| find(&applier.role.ports)).await?;
        self.transport.set_keys(found.iter().map(|found| &found.migration));
        let now_ms = self.now_ms();
        let known: HashMap<InstanceId, u64> =
            found.iter().map(|found| (found.instance, found.migration.id)).collect();
        self.incoming.retain(|instance, incoming| known.get(instance) == Some(&incoming.target.migration()));
        let mut outgoing = 0;
        for Found { instance, mac, migration, copy, is_open } in found {
            let MigrationSide::Incoming { from } = migration.side else {
                outgoing += 1;
                self.incoming.remove(&instance);
                continue;
            };
            let incoming = self.incoming.entry(instance).or_insert_with(|| {
                tracing::info!(%instance, %from, migration = migration.id, is_open, "an instance migrates to this host");
                let target = Target::new(instance, migration.id, migration.sessions, is_open);
                Incoming { target, from, mac, copy: None, frames: None, sessions: 0, resumed: None }
            });
            let known_scope = incoming.copy.map(|known| known.scope);
            if copy.is_some_and(|found| known_scope != Some(found.scope)) {
                incoming.target.copy_again(now_ms);
            }
            (incoming.copy, incoming.mac) = (copy, mac);
            let copies = migration.sessions == SessionMode::Copy;
            let is_prepared = copy.is_some_and(|copy| !(copy.is_closed && copies));
            incoming.target.prepare(is_prepared, copy.is_some_and(|copy| copy.policy.is_some()));
            if copy.is_some_and(|copy| copy.is_closed && copies) {
                incoming.target.note_problem("the policy of its security groups has not come yet");
            }
            incoming.watch(mac);
        }
        let incoming = self.incoming.len() as u64;
        self.metrics.change(|stats| (stats.incoming, stats.outgoing) = (incoming, outgoing));
        Ok(())
    }

    /// Reports the state of each migration to this host. The other host reports its part.
    fn report(&mut self) {
        let state = |(instance, incoming): (&InstanceId, &Incoming)| MigrationState {
            instance: *instance,
            migration: incoming.target.migration(),
            phase: incoming.target.phase(),
            sessions: incoming.sessions,
            problem: incoming.target.problem().to_owned(),
        };
        let states: Vec<_> = self.incoming.iter().map(state).collect();
        let (last, at) = &self.reported;
        let has_same = |(new, old): (&MigrationState, &MigrationState)| {
            *new == MigrationState { sessions: new.sessions, ..old.clone() }
        };
        let is_alike = states.len() == last.len() && states.iter().zip(last).all(has_same);
        if !is_alike || at.elapsed() >= REPORT_INTERVAL {
            self.reports.set(states.clone());
            self.reported = (states, Instant::now());
        }
    }

    async fn answer_call(
        &mut self,
        name: &str,
        done: oneshot::Sender<Result<(), PortError>>,
    ) -> Result<(), Error> {
        // The port may have been attached a moment ago.
        self.review().await?;
        let wanted = name.to_owned();
        let found = self
            .node
            .writer
            .run(move |applier| applier.role.ports.find(&wanted).map(|port| port.instance))
            .await?;
        let result = match found {
            Ok(instance) => match self.incoming.get(&instance).map(|incoming| incoming.copy.is_some()) {
                Some(true) => {
                    self.guest_runs(instance).await?;
                    Ok(())
                }
                Some(false) => Err(RegistryError::NoPort(name.to_owned()).into()),
                None => Err(RegistryError::NotIncoming(name.to_owned()).into()),
            },
            Err(error) => Err(error.into()),
        };
        // The client may have closed the connection.
        let _ = done.send(result);
        Ok(())
    }

    /// The guest of an instance runs here.
    async fn guest_runs(&mut self, instance: InstanceId) -> Result<(), Error> {
        let now_ms = self.now_ms();
        let Some(incoming) = self.incoming.get_mut(&instance) else { return Ok(()) };
        incoming.frames = None;
        if !incoming.target.has_resumed() {
            incoming.resumed = Some(Instant::now());
            tracing::info!(%instance, phase = ?incoming.target.phase(), "the guest runs here: closing the port of the source");
        }
        let outputs = incoming.target.resume(now_ms);
        self.perform(instance, outputs).await
    }

    async fn perform(&mut self, instance: InstanceId, outputs: Vec<Output>) -> Result<(), Error> {
        for output in outputs {
            match output {
                Output::Send(request) => {
                    if let Some(incoming) = self.incoming.get(&instance) {
                        self.transport.send(incoming.from, &Message::Request(request));
                    }
                }
                Output::Install(copies) => {
                    match self.incoming.get(&instance).map(|known| known.target.mode()) {
                        Some(SessionMode::Reset) => self.install_resets(instance, copies).await?,
                        _ => self.install(instance, copies).await?,
                    }
                }
                Output::Open => self.open_port(instance).await?,
            }
        }
        Ok(())
    }

    async fn install(&mut self, instance: InstanceId, copies: Vec<SessionCopy>) -> Result<(), Error> {
        let now_ms = self.now_ms();
        let Some(incoming) = self.incoming.get_mut(&instance) else { return Ok(()) };
        let Some((scope, policy)) = incoming.copy.and_then(|copy| Some((copy.scope, copy.policy?))) else {
            incoming.target.copy_later(now_ms);
            return Ok(());
        };
        let (timeouts, installer) = (self.reader.timeouts(), self.installer.clone());
        // The thread that sweeps may hold the session table.
        let install = move || {
            let now = ticks_now();
            let sessions: Vec<_> =
                copies.iter().map(|copy| copies::session_of(copy, scope, &timeouts, now)).collect();
            installer.install(policy, &sessions)
        };
        let counts = tokio::task::spawn_blocking(install).await;
        let counts = counts.map_err(|error| Error::io("install sessions")(std::io::Error::other(error)))?;
        let Some(counts) = counts else {
            incoming.target.copy_later(now_ms);
            return Ok(());
        };
        let InstallCounts { installed, full, refused, .. } = counts;
        incoming.sessions += installed;
        if full > 0 {
            incoming.target.note_full();
        }
        if refused > 0 {
            tracing::debug!(%instance, refused, "sessions that the policy does not permit here");
        }
        self.metrics.change(|stats| stats.sessions += counts);
        Ok(())
    }

    /// Installs sessions that are to end, and lets their guest be provoked.
    async fn install_resets(&mut self, instance: InstanceId, copies: Vec<SessionCopy>) -> Result<(), Error> {
        let now_ms = self.now_ms();
        let Some(incoming) = self.incoming.get_mut(&instance) else { return Ok(()) };
        let Some((ifindex, scope)) = incoming.copy.map(|copy| (copy.ifindex, copy.scope)) else {
            incoming.target.copy_later(now_ms);
            return Ok(());
        };
        let installer = self.installer.clone();
        // The thread that sweeps may hold the session table.
        let install = move || {
            let now = ticks_now();
            let resets: Vec<_> =
                copies.iter().filter_map(|copy| copies::reset_of(copy, scope, now)).collect();
            (installer.install_resets(&resets), resets)
        };
        let done = tokio::task::spawn_blocking(install).await;
        let (counts, resets) =
            done.map_err(|error| Error::io("install sessions")(std::io::Error::other(error)))?;
        incoming.sessions += counts.installed;
        if counts.full > 0 {
            incoming.target.note_full();
        }
        let mac = incoming.mac;
        let endings = resets.iter().map(|session| {
            let is_egress = session.begun_by() == Direction::Egress;
            let from_peer = if is_egress { session.flow.reversed() } else { session.flow };
            Ending { ifindex, mac, from_peer }
        });
        self.resets.add(endings, now_ms);
        self.metrics.change(|stats| {
            stats.resets += counts.installed;
            stats.sessions.full += counts.full;
        });
        Ok(())
    }

    /// Provokes guests whose connections are to end, if that is due.
    fn provoke(&mut self, now_ms: u64) {
        let now = ticks_now();
        let due = self.resets.take(now_ms);
        for ending in due.iter().filter(|ending| ending.is_unanswered(&self.reader, now)) {
            if self.provoker.is_none() {
                match PacketSocket::open() {
                    Ok(socket) => self.provoker = Some(socket),
                    Err(error) => {
                        tracing::error!(error = error_chain(&error), "cannot provoke guests");
                        return;
                    }
                }
            }
            let (Some(socket), Some(frame)) = (&self.provoker, ending.frame()) else { continue };
            match socket.send(ending.ifindex, &frame) {
                Ok(()) => self.metrics.change(|stats| stats.provoked += 1),
                Err(error) => tracing::debug!(error = error_chain(&error), "guest not provoked"),
            }
        }
    }

    async fn open_port(&mut self, instance: InstanceId) -> Result<(), Error> {
        let Some(migration) = self.incoming.get(&instance).map(|incoming| incoming.target.migration()) else {
            return Ok(());
        };
        let open = move |applier: &mut Applier<HostRole>| {
            applier.role.ports.open_moved(&mut applier.tables, instance, migration)
        };
        let result = self.node.writer.run(open).await?;
        let Some(incoming) = self.incoming.get_mut(&instance) else { return Ok(()) };
        match &result {
            Ok(()) => {
                let took = incoming.resumed.map(|resumed| resumed.elapsed()).unwrap_or_default();
                tracing::info!(%instance, ?took, sessions = incoming.sessions, "the port is open");
                self.metrics.change(|stats| {
                    stats.opened += 1;
                    stats.last_switch = took;
                });
            }
            Err(error) => tracing::error!(%instance, %error, "cannot open the port; retrying later"),
        }
        incoming.target.opened(result.map_err(|error| error.to_string()));
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), Error> {
        for _ in 0..RECEIVE_BUDGET {
            match self.transport.receive() {
                None => break,
                Some(Err(())) => self.metrics.change(|stats| stats.refused += 1),
                Some(Ok((from, Message::Request(request)))) => self.serve(from, request).await?,
                Some(Ok((from, Message::Reply(reply)))) => self.take_reply(from, reply).await?,
            }
        }
        Ok(())
    }

    async fn take_reply(&mut self, from: SocketAddr, reply: Reply) -> Result<(), Error> {
        let (instance, now_ms) = (reply.head.instance, self.now_ms());
        let Some(incoming) = self.incoming.get_mut(&instance) else { return Ok(()) };
        if incoming.from != from.ip() || incoming.target.migration() != reply.head.migration {
            self.metrics.change(|stats| stats.refused += 1);
            return Ok(());
        }
        let outputs = incoming.target.reply(reply, now_ms);
        self.perform(instance, outputs).await
    }

    /// Answers the target of a migration from this host. Nothing is kept of the request, but that the port is closed.
    async fn serve(&mut self, from: SocketAddr, request: Request) -> Result<(), Error> {
        let write = move |applier: &mut Applier<HostRole>| prepare_answer(applier, from.ip(), &request);
        let answer = match self.node.writer.run(write).await? {
            Ok(Source { scope, is_frozen, is_new }) => {
                if is_new {
                    let (instance, to) = (request.head.instance, from.ip());
                    tracing::info!(%instance, %to, "the guest runs at the target: the port is closed, packets follow it");
                    self.metrics.change(|stats| stats.frozen += 1);
                }
                let (reader, now) = (self.reader.clone(), ticks_now());
                let part = (request.cursor, request.idle_max);
                let read = move || scope.map(|scope| copies::read(&reader, scope, part, now));
                let read = tokio::task::spawn_blocking(read).await;
                let read = read.map_err(|error| Error::io("read sessions")(std::io::Error::other(error)))?;
                let (copies, next) = read.unwrap_or_default();
                Answer::Sessions { frozen: is_frozen, next, copies }
            }
            Err(error) => {
                tracing::debug!(%from, %error, "request of a target refused");
                Answer::Refused
            }
        };
        self.metrics.change(|stats| stats.answered += 1);
        self.transport.send(from.ip(), &Message::Reply(Reply { head: request.head, answer }));
        Ok(())
    }
}

/// What a source answers with.
struct Source {
    /// Number under which the sessions of the port are kept; `None`: the port has no sessions.
    scope: Option<u16>,
    is_frozen: bool,
    /// The request has closed the port.
    is_new: bool,
}

/// Closes the port, if the target asks for it.
fn prepare_answer(
    applier: &mut Applier<HostRole>,
    from: IpAddr,
    request: &Request,
) -> Result<Source, RegistryError> {
    let (instance, migration) = (request.head.instance, request.head.migration);
    let ports = &mut applier.role.ports;
    let unknown = || RegistryError::NotMigrating { instance: instance.to_string(), migration };
    let port = ports.instance(instance).ok_or_else(unknown)?;
    let known = port.migration.as_ref().filter(|known| known.id == migration).ok_or_else(unknown)?;
    if !matches!(known.side, MigrationSide::Outgoing { to } if to == from) {
        return Err(unknown());
    }
    let (has_sessions, was_open) = (port.identity != 0, ports.is_open(port));
    if request.freeze {
        ports.freeze(&mut applier.tables, instance, migration)?;
    }
    let is_frozen = ports.instance(instance).is_some_and(|port| !ports.is_open(port));
    let scope = ports.scope_of(instance).filter(|_| has_sessions);
    Ok(Source { scope, is_frozen, is_new: was_open && is_frozen })
}

impl Incoming {
    /// Watches the interface for the first frame of the guest.
    fn watch(&mut self, mac: MacAddr) {
        let ifindex = self.copy.map(|copy| copy.ifindex);
        if self.target.has_resumed() {
            self.frames = None;
            return;
        }
        if self.frames.as_ref().map(|(ifindex, _)| *ifindex) == ifindex {
            return;
        }
        self.frames = ifindex.and_then(|ifindex| match open_frames(ifindex, mac) {
            Ok(socket) => Some((ifindex, socket)),
            Err(error) => {
                tracing::error!(
                    ifindex,
                    error = error_chain(&error),
                    "cannot watch a port for its guest; retrying later"
                );
                None
            }
        });
    }
}

fn open_frames(ifindex: u32, mac: MacAddr) -> Result<AsyncFd<PacketSocket>, Error> {
    let socket = PacketSocket::watch(ifindex, mac.octets())?;
    #[expect(deprecated, reason = "the socket owns its descriptor, which never changes")]
    let socket = AsyncFd::with_interest(socket, Interest::READABLE);
    socket.map_err(Error::io("wait for frames of a guest"))
}

/// Waits for the first frame of any guest that is waited for.
async fn first_frame(incoming: &BTreeMap<InstanceId, Incoming>) -> InstanceId {
    poll_fn(|context| {
        for (instance, incoming) in incoming {
            let Some((_, frames)) = &incoming.frames else { continue };
            while let Poll::Ready(Ok(mut ready)) = frames.poll_read_ready(context) {
                match frames.get_ref().receive(&mut [0; FRAME_BYTES]) {
                    Ok(Some(_)) => return Poll::Ready(*instance),
                    Ok(None) => ready.clear_ready(),
                    // The interface went down. The socket stays usable.
                    Err(error) => tracing::debug!(%instance, error = error_chain(&error), "port of a guest"),
                }
            }
        }
        Poll::Pending
    })
    .await
}
