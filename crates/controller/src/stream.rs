//! One node's stream: a position in the log of steps. It is sent a snapshot
//! first if the log does not reach back to what it has, and again whenever it
//! falls behind. Hosts always begin with a snapshot (unless they have the very
//! revision): theirs are small, and reading one says which VPCs concern them.

use crate::compile::{Crowd, Gate, HostStep, HostView, Seat, State, for_hosts, group_id};
use crate::core::{Core, count};
use crate::steps::{Step, encode};
use bytes::Bytes;
use sluice_southbound::{ClusterKeys, EncodedUpdate, Update};
use sluice_store::{InstancesOf, NodeId, SnapshotPart, StoreError};
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

/// A step waits at most this long for nodes that must have it first,
const GATE: Duration = Duration::from_secs(1);
/// and looks this often whether they have.
const GATE_LOOK: Duration = Duration::from_millis(2);

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
    /// A gateway's.
    seat: Option<Seat>,
    out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    /// What the node may acknowledge.
    sent: Arc<AtomicU64>,
    /// Steps up to here are behind it.
    cursor: u64,
    /// A host's.
    view: Option<HostView>,
    /// It was told of keys and plan.
    stands: bool,
}

impl NodeStream {
    /// `applied`: the revision that the node has, of this database.
    pub fn new(
        core: Arc<Core>,
        node: NodeId,
        seat: Option<Seat>,
        applied: u64,
        out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    ) -> Self {
        let sent = Arc::new(AtomicU64::new(applied));
        Self { core, node, seat, out, sent, cursor: applied, view: None, stands: false }
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
        let mut behind = self.cursor == 0 || self.seat.is_none();
        loop {
            if behind {
                self.snapshot().await?;
            }
            self.stand().await?;
            last.borrow_and_update();
            let steps = self.core.log.after(self.cursor);
            behind = steps.is_none();
            let steps = steps.unwrap_or_default();
            if !behind && steps.is_empty() {
                match tokio::time::timeout(MARK, last.changed()).await {
                    Ok(_) => continue,
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
        let update = match self.seat {
            Some(seat) => {
                let mut update = standings.get(&seat.cluster).cloned().unwrap_or_default();
                // It speaks as a member of one cluster, with that one's keys.
                let foreign = |other| ClusterKeys { cluster: group_id(other), keys: Vec::new() };
                update.keys.extend(seat.other.map(foreign));
                update
            }
            None => Update {
                keys: standings.values().flat_map(|standing| standing.keys.iter().map(for_hosts)).collect(),
                ..Update::default()
            },
        };
        let database = self.core.store.database_id();
        for part in encode(update) {
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
        let database = self.core.store.database_id();
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
                    tracing::warn!(node = ?self.node, revision = step.revision, ?gate, "waited in vain");
                    return;
                }
                tokio::time::sleep(GATE_LOOK).await;
            }
        }
    }

    /// False: a snapshot is due instead.
    async fn step(&mut self, step: &Step) -> Result<bool, Ended> {
        let mut removed_vnis = Vec::new();
        let targets = match (self.node, &mut self.view) {
            (NodeId::Host(host), Some(view)) => {
                match view.step(step.ports.get(&host), &step.resync, step.parts.keys()) {
                    HostStep::Resync => return Ok(false),
                    HostStep::Send { targets, removed_vnis: gone } => {
                        removed_vnis = gone;
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
        let parts = targets.iter().filter_map(|target| step.parts.get(target));
        let mut parts: Vec<Bytes> = parts.flatten().cloned().collect();
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

    async fn snapshot(&mut self) -> Result<(), Ended> {
        let began = Instant::now();
        let of = match self.node {
            NodeId::Gateway(gateway) => InstancesOf::Gateway(gateway),
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
            let database = self.core.store.database_id();
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
        let database = self.core.store.database_id();
        let mut state = Arc::new(State::default());
        let mut skip = false;
        let mut entries = 0;
        while let Some(part) = parts.recv().await {
            let update = match part {
                SnapshotPart::Topology(topology) => {
                    // A host that has this revision is only looked at.
                    skip = self.view.is_none() && self.cursor != 0 && self.cursor == topology.revision;
                    state = Arc::new(State::new(&topology));
                    self.base(&state)?
                }
                SnapshotPart::Instances(instances) => {
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
            entries += update.entry_count();
            for part in tokio::task::spawn_blocking(move || encode(update)).await? {
                self.send(EncodedUpdate::new(0, database, true, part)).await?;
            }
        }
        Ok((!skip).then_some(entries))
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
                state.host_base(id).ok_or(unknown)
            }
        }
    }
}
