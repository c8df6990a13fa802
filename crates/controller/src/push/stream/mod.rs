//! One node's stream: a position in the log of steps. It is sent a snapshot
//! first if the log does not reach back to what it has, and again whenever it
//! falls behind. Hosts always begin with a snapshot (unless they have the very
//! revision): theirs are small, and reading one says which VPCs concern them.

mod side;
mod snapshot;

pub use side::Side;

use super::steps::{Step, encode};
use super::{Push, count};
use crate::compile::NodeGroup;
use bytes::Bytes;
use side::HostSide;
use sluice_southbound::{EncodedUpdate, Update};
use sluice_store::{NodeId, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::Status;

/// Messages on their way to a node, beyond what HTTP/2 holds.
pub const QUEUE: usize = 4;
/// A node that has nothing to do with the latest revisions is told this late
/// that it has them, too.
const MARK: Duration = Duration::from_millis(200);

/// A step waits at most this long for nodes that must have it first, and for none again that it
/// timed out until that one sends a message,
const GATE: Duration = Duration::from_secs(1);
/// and looks this often whether they have.
const GATE_LOOK: Duration = Duration::from_millis(2);

/// A node that could not write an entry is sent a snapshot again after this time.
const REPAIR: Duration = Duration::from_secs(120);

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
    push: Arc<Push>,
    /// Tells the hub's streams of the node apart.
    session: u64,
    /// When it was last sent everything.
    told_all: Instant,
    out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    /// What the node may acknowledge.
    sent: Arc<AtomicU64>,
    /// Steps up to here are behind it.
    cursor: u64,
    /// Keys and vIP assignment were sent, which are not part of the tables.
    cluster_update_sent: bool,
    side: Side,
}

impl NodeStream {
    /// `applied` is the revision that the node's tables have, of this database; 0 if they have none.
    pub fn new(
        push: Arc<Push>,
        session: u64,
        side: Side,
        applied: u64,
        out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    ) -> Self {
        Self {
            push,
            session,
            told_all: Instant::now(),
            out,
            sent: Arc::new(AtomicU64::new(applied)),
            cursor: applied,
            cluster_update_sent: false,
            side,
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
        let mut last = self.push.log.watch();
        let mut zones = self.push.compiled.zones();
        let mut rezoned = true;
        let mut behind = self.cursor == 0 || self.side.starts_with_snapshot();
        loop {
            if behind || self.lacks() {
                self.snapshot().await?;
            }
            self.send_cluster_update().await?;
            self.withdraw_keys().await?;
            rezoned |= zones.has_changed().unwrap_or(false);
            if std::mem::take(&mut rezoned) {
                zones.borrow_and_update();
                self.send_zone().await?;
            }
            last.borrow_and_update();
            let steps = self.push.log.after(self.cursor);
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

    /// Sends keys and vIP assignment to a node that goes on from its tables, which do not hold them. They may
    /// be newer than the tables; the steps in between send both again.
    async fn send_cluster_update(&mut self) -> Result<(), Ended> {
        let updates = self.push.compiled.updates();
        if self.cluster_update_sent || updates.is_empty() {
            return Ok(());
        }
        self.cluster_update_sent = true;
        let update = self.side.cluster_update(&updates);
        self.send_unnumbered(update).await
    }

    /// Takes keys from a host that it has not needed for a while.
    async fn withdraw_keys(&mut self) -> Result<(), Ended> {
        let Side::Host(host) = &mut self.side else { return Ok(()) };
        let keys = host.withdraw_keys();
        if keys.is_empty() {
            return Ok(());
        }
        let update = Update { keys, ..Update::default() };
        // With the revision that it has: the end of a step is when the keys' file is written.
        self.send_step(self.cursor, encode(update)).await
    }

    /// Tells a host which gateway its default entries lead to, if that is news. It is of no revision:
    /// gateways fail when nothing is changed.
    async fn send_zone(&mut self) -> Result<(), Ended> {
        let Side::Host(HostSide { id, zone_groups, .. }) = &mut self.side else { return Ok(()) };
        let groups = self.push.compiled.zones().borrow().groups(*id);
        if groups == *zone_groups {
            return Ok(());
        }
        zone_groups.clone_from(&groups);
        self.send_unnumbered(Update { groups, ..Update::default() }).await
    }

    /// Sends entries that belong to no revision.
    async fn send_unnumbered(&self, update: Update) -> Result<(), Ended> {
        let database = self.push.database_id();
        for part in encode(update) {
            self.send(EncodedUpdate::new(0, database, false, part)).await?;
        }
        Ok(())
    }

    async fn send(&self, update: EncodedUpdate) -> Result<(), Ended> {
        self.push.counters.bytes.fetch_add(update.byte_len() as u64, Ordering::Relaxed);
        self.out.send(Ok(update)).await.map_err(|_| Ended::Closed)
    }

    /// Sends messages, the last of which completes a revision.
    async fn send_step(&self, revision: u64, parts: Vec<Bytes>) -> Result<(), Ended> {
        let database = self.push.database_id();
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

    /// Waits for the nodes that must have a step first, but not for long: an order that a
    /// node in trouble holds up costs packets, the others' waiting would cost more.
    async fn wait_for_gates(&self, step: &Step) {
        let node = self.side.node();
        let began = Instant::now();
        for gate in step.gates.iter().filter(|gate| self.side.is_in(gate.held)) {
            let awaited: Vec<NodeId> = self.push.members(|members| match gate.awaited {
                NodeGroup::Gateways(id) => members.gateways_of(id).into_iter().map(NodeId::Gateway).collect(),
                NodeGroup::Host(id) => vec![NodeId::Host(id)],
                NodeGroup::AllHosts => members.agents().map(NodeId::Host).collect(),
            });
            while self.push.hub.lags(&awaited, step.revision) {
                if began.elapsed() >= GATE {
                    // The next step does not wait again for nodes that may be dead.
                    self.push.hub.give_up(&awaited, step.revision);
                    tracing::warn!(?node, revision = step.revision, ?gate, "a step's gate timed out");
                    return;
                }
                tokio::time::sleep(GATE_LOOK).await;
            }
        }
    }

    /// Sends what a step has for the node. False: a snapshot is due instead.
    async fn step(&mut self, step: &Step) -> Result<bool, Ended> {
        let Some(parts) = self.side.parts(step, &self.push.compiled) else { return Ok(false) };
        self.wait_for_gates(step).await;
        if let Side::Gateway(gateway) = &mut self.side
            && let Some(seat) = step.seats.get(&gateway.id)
        {
            // It is a member of another cluster now: its keys come before its plan.
            (gateway.seat, self.cluster_update_sent) = (*seat, false);
            self.send_cluster_update().await?;
        }
        self.cursor = step.revision;
        if !parts.is_empty() {
            self.send_step(step.revision, parts).await?;
            count(&self.push.counters.steps);
        }
        if let Side::Gateway(gateway) = &self.side {
            self.push.timeline.sent(gateway.id, step.revision);
        }
        Ok(true)
    }

    /// Whether it could not write something, and may now: there may be room again.
    fn lacks(&self) -> bool {
        let (hub, node) = (&self.push.hub, self.side.node());
        self.told_all.elapsed() >= REPAIR
            && hub.lacks(node)
            && hub.with_acked(|acked| acked(node)) == self.cursor
    }
}
