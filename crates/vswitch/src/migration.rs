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

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
use crate::port_registry::{CopyTarget, MovingPort, PortRegistry, RegistryError};
use crate::role::HostRole;
use crate::sessions::{InstallCounts, SessionInstaller};
use metrics::MigrationMetrics;
use resets::{Ending, Resets};
use target::{Output, Target};
use transport::Transport;
use wire::{Answer, Head, Message, NOTICE, Reply, Request, SessionCopy};

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

/// A hypervisor says of a guest, by the name of its instance, that it runs here, or that it is stopped here.
struct Call {
    instance: String,
    is_stopped: bool,
    done: oneshot::Sender<Result<(), PortError>>,
}

/// Receives frames of a guest on the interface with this index.
type Frames = (u32, AsyncFd<PacketSocket>);

/// Tells the migrator that a guest runs here, or is stopped. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Resumer(mpsc::Sender<Call>);

impl Resumer {
    /// The guest of this instance runs here: its port is opened. Returns as soon as the source was asked to close its own.
    ///
    /// # Errors
    /// If the instance is unknown, does not migrate, has no interface here, or runs at the target already.
    pub async fn resume(&self, instance: String) -> Result<(), PortError> {
        self.call(instance, false).await
    }

    /// The guest of this instance, which migrates from this host, is stopped: its port is closed, and the target keeps what comes.
    ///
    /// # Errors
    /// If the instance is unknown or does not migrate from this host.
    pub async fn pause(&self, instance: String) -> Result<(), PortError> {
        self.call(instance, true).await
    }

    async fn call(&self, instance: String, is_stopped: bool) -> Result<(), PortError> {
        let (done, receiver) = oneshot::channel();
        let call = Call { instance, is_stopped, done };
        self.0.send(call).await.map_err(|_| Error::WriterGone)?;
        receiver.await.map_err(|_| Error::WriterGone)?
    }
}

/// An instance that migrates to this host.
struct Incoming {
    target: Target,
    from: IpAddr,
    mac: MacAddr,
    copy: Option<CopyTarget>,
    /// Until the first frame of the guest has come. With the interface.
    frames: Option<Frames>,
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
    state: Option<MovingPort>,
}

fn find(registry: &PortRegistry) -> Vec<Found> {
    let found = |(port, migration): (&sluice_southbound::Port, &PortMigration)| Found {
        instance: port.instance,
        mac: port.mac,
        migration: *migration,
        copy: registry.copy_target(port.instance),
        state: registry.moving_port(port),
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
    /// Instances that migrate from this host and whose guest is stopped: a frame says that it continues here.
    paused: BTreeMap<InstanceId, Option<Frames>>,
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
        let (incoming, paused, started) = (BTreeMap::new(), BTreeMap::new(), Instant::now());
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
            paused,
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
                instance = first_frame(self.incoming.iter().map(|(it, incoming)| (*it, &incoming.frames)).collect()) => {
                    self.guest_runs(instance).await?;
                }
                instance = first_frame(self.paused.iter().map(|(it, frames)| (*it, frames)).collect()) => {
                    self.continues(instance).await?;
                }
                Some(call) = self.calls.recv() => self.answer_call(call).await?,
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
        let is_paused = |found: &&Found| found.state == Some(MovingPort::Paused);
        let paused: BTreeSet<InstanceId> =
            found.iter().filter(is_paused).map(|found| found.instance).collect();
        self.paused.retain(|instance, _| paused.contains(instance));
        let mut outgoing = 0;
        for Found { instance, mac, migration, copy, state } in found {
            let MigrationSide::Incoming { from } = migration.side else {
                outgoing += 1;
                self.incoming.remove(&instance);
                if paused.contains(&instance) {
                    watch(self.paused.entry(instance).or_default(), copy.map(|copy| copy.ifindex), mac);
                }
                continue;
            };
            let incoming = self.incoming.entry(instance).or_insert_with(|| {
                let is_open = state == Some(MovingPort::Opened);
                tracing::info!(%instance, %from, migration = migration.id, is_open, "an instance migrates to this host");
                let mut target = Target::new(instance, migration.id, migration.sessions, is_open);
                target.set_receiving(state == Some(MovingPort::Receiving));
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
            let ifindex = incoming.copy.filter(|_| !incoming.target.has_resumed()).map(|copy| copy.ifindex);
            watch(&mut incoming.frames, ifindex, mac);
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

    async fn answer_call(&mut self, call: Call) -> Result<(), Error> {
        let Call { instance: name, is_stopped, done } = call;
        // The port may have been attached a moment ago.
        self.review().await?;
        let wanted = name.clone();
        let find = move |applier: &mut Applier<HostRole>| {
            let ports = &applier.role.ports;
            ports.find(&wanted).map(|port| (port.instance, ports.outgoing(port.instance).is_ok()))
        };
        let found = self.node.writer.run(find).await?;
        let result = match found {
            Ok((instance, true)) => self.note_stopped(instance, is_stopped).await?,
            Ok(_) if is_stopped => Err(RegistryError::NotOutgoing(name).into()),
            Ok((instance, false)) => {
                match self.incoming.get(&instance).map(|incoming| incoming.copy.is_some()) {
                    Some(true) => {
                        self.guest_runs(instance).await?;
                        Ok(())
                    }
                    Some(false) => Err(RegistryError::NoPort(name).into()),
                    None => Err(RegistryError::NotIncoming(name).into()),
                }
            }
            Err(error) => Err(error.into()),
        };
        // The client may have closed the connection.
        let _ = done.send(result);
        Ok(())
    }

    /// The guest of an instance that migrates from this host is stopped, or continues here. The target is told, so that it asks
    /// at once; if the message is lost, it asks within a second.
    async fn note_stopped(
        &mut self,
        instance: InstanceId,
        is_stopped: bool,
    ) -> Result<Result<(), PortError>, Error> {
        let note = move |applier: &mut Applier<HostRole>| {
            let (migration, to) = applier.role.ports.outgoing(instance)?;
            applier.role.ports.set_stopped(&mut applier.tables, instance, migration, is_stopped)?;
            Ok::<_, RegistryError>((migration, to))
        };
        let (migration, to) = match self.node.writer.run(note).await? {
            Ok(outgoing) => outgoing,
            Err(error) => return Ok(Err(error.into())),
        };
        self.metrics.change(|stats| stats.paused += u64::from(is_stopped));
        tracing::info!(%instance, %to, is_stopped, "the guest of an instance that migrates is stopped, or continues here");
        let head = Head { migration, instance, number: NOTICE };
        let answer = Answer::Sessions { frozen: is_stopped, next: None, copies: Vec::new() };
        self.transport.send(to, &Message::Reply(Reply { head, answer }));
        self.review().await?;
        Ok(Ok(()))
    }

    /// A guest that was stopped has sent a frame, so its migration has failed.
    async fn continues(&mut self, instance: InstanceId) -> Result<(), Error> {
        self.paused.remove(&instance);
        if let Err(error) = self.note_stopped(instance, false).await? {
            tracing::warn!(%instance, error = error_chain(&error), "a guest that was stopped sends frames here");
        }
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
                Output::Receive(receives) => self.receive_for(instance, receives).await?,
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

    /// Opens the port of a guest that does not run here yet, or closes it again.
    async fn receive_for(&mut self, instance: InstanceId, receives: bool) -> Result<(), Error> {
        let Some(migration) = self.incoming.get(&instance).map(|incoming| incoming.target.migration()) else {
            return Ok(());
        };
        let write = move |applier: &mut Applier<HostRole>| {
            applier.role.ports.set_stopped(&mut applier.tables, instance, migration, receives)
        };
        if let Err(error) = self.node.writer.run(write).await? {
            tracing::error!(%instance, receives, %error, "cannot change the port of a stopped guest; retrying later");
            if let Some(incoming) = self.incoming.get_mut(&instance) {
                incoming.target.set_receiving(!receives);
            }
        }
        Ok(())
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
    let has_sessions = port.identity != 0;
    let was_frozen = ports.moving_port(port) == Some(MovingPort::Frozen);
    if request.freeze {
        ports.freeze(&mut applier.tables, instance, migration)?;
    }
    let is_frozen = ports.instance(instance).is_some_and(|port| !ports.is_open(port));
    let scope = ports.scope_of(instance).filter(|_| has_sessions);
    Ok(Source { scope, is_frozen, is_new: request.freeze && !was_frozen })
}

/// Watches an interface for the first frame of the guest; `None`: no interface.
fn watch(frames: &mut Option<Frames>, ifindex: Option<u32>, mac: MacAddr) {
    if frames.as_ref().map(|(ifindex, _)| *ifindex) == ifindex {
        return;
    }
    *frames = ifindex.and_then(|ifindex| match open_frames(ifindex, mac) {
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

fn open_frames(ifindex: u32, mac: MacAddr) -> Result<AsyncFd<PacketSocket>, Error> {
    let socket = PacketSocket::watch(ifindex, mac.octets())?;
    #[expect(deprecated, reason = "the socket owns its descriptor, which never changes")]
    let socket = AsyncFd::with_interest(socket, Interest::READABLE);
    socket.map_err(Error::io("wait for frames of a guest"))
}

/// Waits for the first frame of any guest that is waited for.
async fn first_frame(guests: Vec<(InstanceId, &Option<Frames>)>) -> InstanceId {
    poll_fn(|context| {
        for (instance, frames) in &guests {
            let Some((_, frames)) = frames else { continue };
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
