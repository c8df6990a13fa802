//! One node's stream: a position in the log of steps. It is sent a snapshot
//! first if the log does not reach back to what it has, and again whenever it
//! falls behind. Hosts always begin with a snapshot (unless they have the very
//! revision): theirs are small, and reading one says which VPCs concern them.

use crate::compile::{Crowd, Gate, HostStep, HostView, Seat, State, for_hosts, group_id};
use crate::core::{Core, count};
use crate::steps::{Step, encode};
use bytes::Bytes;
use sluice_southbound::{ClusterKeys, EncodedUpdate, Group, Update};
use sluice_store::{InstancesOf, NodeId, SnapshotPart, StoreError};
use sluice_types::ClusterId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::Status;

/// Messages on their way to a node, beyond what HTTP/2 holds.
pub const QUEUE: usize = 4;
/// Parts of a picture read ahead.
const READ_AHEAD: usize = 4;
/// A node that has nothing to do with the latest revisions is told this late
/// that it has them, too.
const MARK: Duration = Duration::from_millis(200);

/// A step waits at most this long for nodes that must have it first, and for none again that it
/// waited for in vain until that one speaks,
const GATE: Duration = Duration::from_secs(1);
/// and looks this often whether they have.
const GATE_LOOK: Duration = Duration::from_millis(2);

/// A node that could not write something is sent everything anew this long after it was last.
const REPAIR: Duration = Duration::from_secs(120);

/// A host keeps a cluster's keys for so long after the last VPC that needed them: while a network lingers
/// there (a minute), it tells senders that its instances have left.
const KEYS_LINGER: Duration = Duration::from_secs(120);

/// Why a stream ended from this side.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The node does not take messages any more.
    #[error("the node's stream is closed")]
    Closed,
    /// No such node.
    #[error("{0:?} is not in the database")]
    Unknown(NodeId),
    /// The picture cannot be read.
    #[error("the database does not answer")]
    Store(#[from] StoreError),
    /// A task died.
    #[error("preparing a snapshot failed")]
    Failed(#[from] tokio::task::JoinError),
}

/// Where the stream is.
pub struct NodeStream {
    core: Arc<Core>,
    node: NodeId,
    /// Tells the hub's streams of the node apart.
    session: u64,
    /// When it was last sent everything.
    told_all: Instant,
    /// A gateway's.
    seat: Option<Seat>,
    out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    /// What the node may acknowledge.
    sent: Arc<AtomicU64>,
    /// Steps up to here are behind it.
    cursor: u64,
    /// A host's.
    view: Option<HostView>,
    /// Clusters whose keys the host no longer needs, and since when.
    idle_keys: BTreeMap<ClusterId, Instant>,
    /// It was told of keys and plan.
    stands: bool,
    /// A host's, where it has a zone.
    zone: Vec<Group>,
}

impl NodeStream {
    /// `applied`: the revision that the node has, of this database.
    pub fn new(
        core: Arc<Core>,
        (node, session): (NodeId, u64),
        seat: Option<Seat>,
        applied: u64,
        out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    ) -> Self {
        let sent = Arc::new(AtomicU64::new(applied));
        Self {
            core,
            node,
            session,
            told_all: Instant::now(),
            seat,
            out,
            sent,
            cursor: applied,
            view: None,
            idle_keys: BTreeMap::new(),
            stands: false,
            zone: Vec::new(),
        }
    }

    /// What was sent so far.
    pub fn sent(&self) -> Arc<AtomicU64> {
        self.sent.clone()
    }

    /// Runs until something ends it.
    ///
    /// # Errors
    /// Always: what ended it.
    pub async fn run(mut self) -> Result<std::convert::Infallible, Ended> {
        let mut last = self.core.log.watch();
        let mut zones = self.core.zones();
        let mut rezoned = true;
        let mut behind = self.cursor == 0 || self.seat.is_none();
        loop {
            if behind || self.lacks() {
                self.snapshot().await?;
            }
            self.stand().await?;
            self.withdraw_keys().await?;
            rezoned |= zones.has_changed().unwrap_or(false);
            if std::mem::take(&mut rezoned) {
                zones.borrow_and_update();
                self.tell_zone().await?;
            }
            last.borrow_and_update();
            let steps = self.core.log.after(self.cursor);
            behind = steps.is_none();
            let steps = steps.unwrap_or_default();
            if !behind && steps.is_empty() {
                let change = async {
                    tokio::select! {
                        _ = last.changed() => false,
                        _ = zones.changed() => true,
                    }
                };
                match tokio::time::timeout(MARK, change).await {
                    Ok(changed) => {
                        rezoned = changed;
                        continue;
                    }
                    Err(_) => self.mark().await?,
                }
            }
            for step in steps {
                if !self.step(&step).await? {
                    behind = true;
                    break;
                }
            }
        }
    }

    /// Tells a node that goes on from its tables what these do not hold. It may be
    /// newer than the tables; both are told of again by the steps in between.
    async fn stand(&mut self) -> Result<(), Ended> {
        let standings = self.core.standings();
        if self.stands || standings.is_empty() {
            return Ok(());
        }
        self.stands = true;
        let update = match (self.seat, &mut self.view) {
            (Some(seat), _) => {
                let mut update = standings.get(&seat.cluster).cloned().unwrap_or_default();
                // It speaks as a member of one cluster, with that one's keys.
                let foreign = |other| ClusterKeys { cluster: group_id(other), keys: Vec::new() };
                update.keys.extend(seat.other.map(foreign));
                update
            }
            (None, Some(view)) => {
                let needed = view.clusters();
                // What else it may have is taken from it when the networks are gone that may linger.
                view.set_keys(needed.clone());
                let others = standings.keys().filter(|cluster| !needed.contains(*cluster));
                self.idle_keys.extend(others.map(|cluster| (*cluster, Instant::now())));
                self.keys_of(&needed)
            }
            (None, None) => Update::default(),
        };
        let database = self.core.database_id();
        for part in encode(update) {
            self.send(EncodedUpdate::new(0, database, false, part)).await?;
        }
        Ok(())
    }

    /// Keys of clusters for a host, as of the last revision that was compiled: newer than a step's at most.
    fn keys_of(&self, clusters: &BTreeSet<ClusterId>) -> Update {
        let standings = self.core.standings();
        let standing = clusters.iter().filter_map(|cluster| standings.get(cluster));
        let keys = standing.flat_map(|standing| standing.keys.iter().map(for_hosts)).collect();
        Update { keys, ..Update::default() }
    }

    /// Takes keys from a host that it has not needed for a while.
    async fn withdraw_keys(&mut self) -> Result<(), Ended> {
        let Some(view) = &mut self.view else { return Ok(()) };
        let needed = view.clusters();
        self.idle_keys.retain(|cluster, _| !needed.contains(cluster));
        for cluster in view.idle_keys() {
            self.idle_keys.entry(cluster).or_insert_with(Instant::now);
        }
        let old =
            |(cluster, since): (&ClusterId, &Instant)| (since.elapsed() >= KEYS_LINGER).then_some(*cluster);
        let gone: Vec<ClusterId> = self.idle_keys.iter().filter_map(old).collect();
        if gone.is_empty() {
            return Ok(());
        }
        for cluster in &gone {
            view.forget_keys(*cluster);
            self.idle_keys.remove(cluster);
        }
        let none = |cluster: &ClusterId| ClusterKeys { cluster: group_id(*cluster), keys: Vec::new() };
        let update = Update { keys: gone.iter().map(none).collect(), ..Update::default() };
        // With the revision that it has: the end of a step is when the keys' file is written.
        self.send_step(self.cursor, encode(update)).await
    }

    /// Tells a host which gateway its default entries lead to, if that is news. It is of no revision:
    /// gateways fail when nothing is changed.
    async fn tell_zone(&mut self) -> Result<(), Ended> {
        let NodeId::Host(host) = self.node else { return Ok(()) };
        let groups = self.core.zones().borrow().groups(host);
        if groups == self.zone {
            return Ok(());
        }
        self.zone.clone_from(&groups);
        let database = self.core.database_id();
        for part in encode(Update { groups, ..Update::default() }) {
            self.send(EncodedUpdate::new(0, database, false, part)).await?;
        }
        Ok(())
    }

    async fn send(&self, update: EncodedUpdate) -> Result<(), Ended> {
        self.core.counters.bytes.fetch_add(update.byte_len() as u64, Ordering::Relaxed);
        self.out.send(Ok(update)).await.map_err(|_| Ended::Closed)
    }

    /// Sends messages, the last of which completes a revision.
    async fn send_step(&self, revision: u64, parts: Vec<Bytes>) -> Result<(), Ended> {
        let database = self.core.database_id();
        let last = parts.len().saturating_sub(1);
        // Before the message: the acknowledgement must not overtake it.
        self.sent.store(revision, Ordering::Release);
        if parts.is_empty() {
            return self.send(EncodedUpdate::new(revision, database, false, Bytes::new())).await;
        }
        for (index, part) in parts.into_iter().enumerate() {
            let revision = if index == last { revision } else { 0 };
            self.send(EncodedUpdate::new(revision, database, false, part)).await?;
        }
        Ok(())
    }

    async fn mark(&self) -> Result<(), Ended> {
        if self.cursor > self.sent.load(Ordering::Acquire) {
            self.send_step(self.cursor, Vec::new()).await?;
        }
        Ok(())
    }

    /// Waits for those who must have a step first, but not for long: an order that a
    /// node in trouble holds up costs packets, the others' waiting would cost more.
    async fn pass(&self, step: &Step) {
        let holds = |gate: &&Gate| match (gate.held, self.node) {
            (Crowd::Gateways(cluster), NodeId::Gateway(_)) => {
                self.seat.is_some_and(|seat| seat.clusters().any(|id| id == cluster))
            }
            (Crowd::Host(host), NodeId::Host(id)) => host == id,
            (Crowd::AllHosts, NodeId::Host(_)) => true,
            _ => false,
        };
        let began = Instant::now();
        for gate in step.gates.iter().filter(holds) {
            let awaited: Vec<NodeId> = self.core.members(|members| match gate.awaited {
                Crowd::Gateways(id) => members.gateways_of(id).into_iter().map(NodeId::Gateway).collect(),
                Crowd::Host(id) => vec![NodeId::Host(id)],
                Crowd::AllHosts => members.agents().map(NodeId::Host).collect(),
            });
            while self.core.hub.lags(&awaited, step.revision) {
                if began.elapsed() >= GATE {
                    // Nor will the next step wait for who may be dead.
                    self.core.hub.give_up(&awaited, step.revision);
                    tracing::warn!(node = ?self.node, revision = step.revision, ?gate, "waited in vain");
                    return;
                }
                tokio::time::sleep(GATE_LOOK).await;
            }
        }
    }

    /// False: a snapshot is due instead.
    async fn step(&mut self, step: &Step) -> Result<bool, Ended> {
        let (mut removed_vnis, mut needed) = (Vec::new(), BTreeSet::new());
        let targets = match (self.node, &mut self.view) {
            (NodeId::Host(host), Some(view)) => {
                match view.step(step.ports.get(&host), &step.placed, &step.resync, step.parts.keys()) {
                    HostStep::Resync => return Ok(false),
                    HostStep::Send { targets, removed_vnis: gone, keys } => {
                        (removed_vnis, needed) = (gone, keys);
                        targets
                    }
                }
            }
            (NodeId::Host(_), None) => return Ok(false),
            (NodeId::Gateway(id), _) => match (step.seats.get(&id), self.seat) {
                (Some(new), _) if new.resync => return Ok(false),
                (new, old) => new.copied().or(old).map(|seat| seat.targets()).unwrap_or_default(),
            },
        };
        let mut parts = encode(self.keys_of(&needed));
        parts.extend(targets.iter().filter_map(|target| step.parts.get(target)).flatten().cloned());
        if !removed_vnis.is_empty() {
            parts.extend(encode(Update { removed_vnis, ..Update::default() }));
        }
        self.pass(step).await;
        if let NodeId::Gateway(id) = self.node
            && let Some(seat) = step.seats.get(&id)
        {
            // It is a member of another cluster now: its keys come before its plan.
            (self.seat, self.stands) = (Some(*seat), false);
            self.stand().await?;
        }
        self.cursor = step.revision;
        if !parts.is_empty() {
            self.send_step(step.revision, parts).await?;
            count(&self.core.counters.steps);
        }
        if let NodeId::Gateway(id) = self.node {
            self.core.timeline.sent(id, step.revision);
        }
        Ok(true)
    }

    /// Whether it could not write something, and may now: there may be room again.
    fn lacks(&self) -> bool {
        let hub = &self.core.hub;
        self.told_all.elapsed() >= REPAIR
            && hub.lacks(self.node)
            && hub.with_acked(|acked| acked(self.node)) == self.cursor
    }

    async fn snapshot(&mut self) -> Result<(), Ended> {
        let began = Instant::now();
        self.told_all = began;
        let of = match self.node {
            NodeId::Gateway(gateway) => InstancesOf::Gateway(gateway),
            NodeId::Host(host) if self.core.model.preprograms() => InstancesOf::Around(host),
            NodeId::Host(host) => InstancesOf::Host(host),
        };
        let (sink, parts) = mpsc::channel(READ_AHEAD);
        let store = self.core.store.clone();
        let picture = async move { store.snapshot(of, sink).await };
        let (revision, sent) = tokio::join!(picture, self.send_picture(parts));
        // If the node is gone, the store's complaint is only that nobody listens.
        let sent = sent?;
        let revision = revision?;
        if let Some(entries) = sent {
            self.sent.store(revision, Ordering::Release);
            let database = self.core.database_id();
            self.core.hub.told_all(self.node, self.session, revision);
            self.send(EncodedUpdate::new(revision, database, true, Bytes::new())).await?;
            count(&self.core.counters.snapshots);
            let ms = began.elapsed().as_secs_f64() * 1000.0;
            tracing::info!(node = ?self.node, revision, entries, ms, "snapshot sent");
        }
        self.cursor = revision;
        self.stands |= sent.is_some();
        Ok(())
    }

    /// Sends all of a picture but its end. `None`: the node has it already.
    async fn send_picture(
        &mut self,
        mut parts: mpsc::Receiver<SnapshotPart>,
    ) -> Result<Option<usize>, Ended> {
        let mut state = Arc::new(State::default());
        let mut skip = false;
        let mut entries = 0;
        while let Some(part) = parts.recv().await {
            let update = match part {
                SnapshotPart::Topology(topology) => {
                    // A host that has this revision is only looked at.
                    skip = self.view.is_none() && self.cursor != 0 && self.cursor == topology.revision;
                    skip &= !self.core.hub.lacks(self.node);
                    state = Arc::new(State::new(&topology, self.core.model));
                    self.base(&state)?
                }
                SnapshotPart::Instances(mut instances) => {
                    if let (NodeId::Host(host), true) = (self.node, self.core.model.preprograms()) {
                        Arc::make_mut(&mut state).place(&instances);
                        instances.retain(|instance| instance.host == host);
                    }
                    let (state, is_host) = (state.clone(), self.view.is_some());
                    tokio::task::spawn_blocking(move || match is_host {
                        true => state.ports(&instances),
                        false => Update { endpoints: state.endpoints(&instances), ..Update::default() },
                    })
                    .await?
                }
            };
            if let Some(view) = &mut self.view {
                view.add(&update.ports);
            }
            if skip {
                continue;
            }
            entries += self.send_part(update).await?;
        }
        if let (NodeId::Host(host), false) = (self.node, skip) {
            let known = state.clone();
            let paths = tokio::task::spawn_blocking(move || known.host_paths(host)).await?;
            entries += self.send_part(Update { paths, ..Update::default() }).await?;
        }
        if let Some(view) = &mut self.view {
            view.place(&state.placed());
            let clusters = view.clusters().into_iter().chain(self.idle_keys.keys().copied()).collect();
            let keys = state.host_keys(&clusters);
            if !skip {
                view.set_keys(clusters);
                entries += self.send_part(keys).await?;
            }
        }
        Ok((!skip).then_some(entries))
    }

    /// Sends entries of a picture; how many they are.
    async fn send_part(&self, update: Update) -> Result<usize, Ended> {
        let (database, entries) = (self.core.database_id(), update.entry_count());
        for part in tokio::task::spawn_blocking(move || encode(update)).await? {
            self.send(EncodedUpdate::new(0, database, true, part)).await?;
        }
        Ok(entries)
    }

    fn base(&mut self, state: &State) -> Result<Update, Ended> {
        let unknown = Ended::Unknown(self.node);
        match self.node {
            NodeId::Gateway(id) => {
                let (gateway, update) = state.gateway_base(id).ok_or(unknown)?;
                self.seat = Some(Seat::of(&gateway));
                Ok(update)
            }
            NodeId::Host(id) => {
                let family = state.host_family(id).ok_or(Ended::Unknown(self.node))?;
                self.view = Some(HostView::new(id, family));
                let mut base = state.host_base(id).ok_or(unknown)?;
                if self.core.model.zones() {
                    base.groups = self.core.zones().borrow().groups(id);
                    self.zone.clone_from(&base.groups);
                }
                Ok(base)
            }
        }
    }
}
