//! The stream of one node: a position in the log of steps.
//!
//! ```text
//!            gateway, and the log reaches back to its revision
//!   START -----------------------------------------------------> FOLLOW: sends the steps, in order;
//!     |                                                            | ^   at times the latest revision
//!     | host, or revision 0     behind the log, a step that needs  | |
//!     v                         a snapshot, or time for a repair   | |
//!   SNAPSHOT <-----------------------------------------------------+ |
//!     +--------------------------------------------------------------+
//! ```
//!
//! A node whose tables are of another history of the database starts with a SNAPSHOT that removes nothing which it
//! does not mention (`super::history`).
//!
//! A host's stream always starts with SNAPSHOT, because reading a snapshot shows which VPCs the host has. If the
//! host already has the revision of the snapshot, nothing is sent.

mod side;
mod snapshot;

pub use side::Side;

use super::history::Start;
use super::steps::{Step, encode};
use super::{Push, count};
use crate::compile::NodeGroup;
use bytes::Bytes;
use side::HostSide;
use sluice_southbound::{EncodedUpdate, Update, UpdateHead};
use sluice_store::{NodeId, Position, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::Status;

/// Messages that may wait for a node, besides those in HTTP/2 buffers.
pub const QUEUE: usize = 4;
/// Interval at which a gateway without entries in the latest revisions is sent the latest revision number, so that it
/// can acknowledge it: gateways of a cluster compare the revisions of their tables. A host counts as having the latest
/// revision after this time if it has acknowledged everything that it was sent.
const MARK: Duration = Duration::from_millis(200);
/// Interval at which a host is sent the latest revision number, so that it continues with a recent one when it
/// reconnects. If all hosts acknowledged every number, these would be most of the messages of a large cloud.
const HOST_MARK: Duration = Duration::from_secs(10);

/// A step waits at most this long for the nodes that must acknowledge it first. It does not wait again for
/// one that timed out before that node sends a message.
const GATE: Duration = Duration::from_secs(1);
/// Interval at which their acknowledgments are checked.
const GATE_LOOK: Duration = Duration::from_millis(2);

/// A node that takes no message for this time is disconnected. At the size of a full message, it is a rate of about
/// 100 kB/s.
pub const TAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A node that could not write an entry is sent another snapshot after this time.
const REPAIR: Duration = Duration::from_secs(120);

/// Why the controller's side ended a stream.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The node does not receive messages any more.
    #[error("the node's stream is closed")]
    Closed,
    /// The node is not in the database.
    #[error("{0:?} is not in the database")]
    Unknown(NodeId),
    /// The node took no message for [`TAKE_TIMEOUT`].
    #[error("the node took no message for {} s", TAKE_TIMEOUT.as_secs())]
    Stalled,
    /// The snapshot cannot be read.
    #[error("the database does not answer")]
    Store(#[from] StoreError),
    /// The gateways' tables cannot be read; the log has the reason.
    #[error("the tables of gateways cannot be read")]
    NoSnapshot,
    /// A task panicked.
    #[error("preparing a snapshot failed")]
    Failed(#[from] tokio::task::JoinError),
}

/// The state of one node's stream.
pub struct NodeStream {
    push: Arc<Push>,
    /// Distinguishes this stream from other streams of the node.
    session: u64,
    /// When a snapshot was last sent; before the first, when the stream began.
    last_snapshot: Instant,
    out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    /// Newest revision that was sent. The node may acknowledge up to it.
    sent: Arc<AtomicU64>,
    /// All steps up to this revision have been sent.
    cursor: u64,
    /// A position of the database's history that is not before `cursor`.
    known: Position,
    /// The next snapshot removes nothing that it does not mention.
    keep_unmentioned: bool,
    /// A snapshot must be of this revision or later.
    snapshot_from: u64,
    /// Keys and vIP plan were sent. They are not part of the tables.
    cluster_update_sent: bool,
    /// When the node was last sent a revision number without entries; before the first, when the stream began.
    last_number: Instant,
    side: Side,
}

impl NodeStream {
    /// A new stream.
    pub fn new(
        push: Arc<Push>,
        session: u64,
        side: Side,
        start: Start,
        out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    ) -> Self {
        let Start { applied, known, keep_unmentioned } = start;
        Self {
            push,
            session,
            last_snapshot: Instant::now(),
            out,
            sent: Arc::new(AtomicU64::new(applied)),
            cursor: applied,
            known,
            keep_unmentioned,
            snapshot_from: applied,
            cluster_update_sent: false,
            last_number: Instant::now(),
            side,
        }
    }

    /// The newest revision that was sent.
    pub fn sent(&self) -> Arc<AtomicU64> {
        self.sent.clone()
    }

    /// Sends steps and snapshots until an error.
    ///
    /// # Errors
    /// Always: the reason why the stream ended.
    pub async fn run(mut self) -> Result<std::convert::Infallible, Ended> {
        let mut last = self.push.log.watch();
        let mut zones = self.push.compiled.zones();
        let mut zone_changed = true;
        let mut behind = self.cursor == 0 || self.side.starts_with_snapshot();
        let mut marked = Instant::now();
        loop {
            let verify_shards = self.push.hub.take_verification(self.side.node());
            if behind || self.needs_repair() || verify_shards != 0 {
                self.snapshot(verify_shards).await?;
            }
            self.send_cluster_update().await?;
            self.withdraw_keys().await?;
            self.send_removals().await?;
            zone_changed |= zones.has_changed().unwrap_or(false);
            if std::mem::take(&mut zone_changed) {
                zones.borrow_and_update();
                self.send_zone().await?;
            }
            last.borrow_and_update();
            let steps = self.push.log.after(self.cursor);
            behind = steps.is_none();
            let steps = steps.unwrap_or_default();
            // By the clock, because revisions may follow each other faster than this.
            if marked.elapsed() >= MARK {
                self.mark().await?;
                marked = Instant::now();
            }
            if !behind && steps.is_empty() {
                let change = async {
                    tokio::select! {
                        _ = last.changed() => false,
                        _ = zones.changed() => true,
                    }
                };
                if let Ok(changed) = tokio::time::timeout(MARK, change).await {
                    zone_changed = changed;
                }
                continue;
            }
            for step in steps {
                if !self.step(&step).await? {
                    behind = true;
                    break;
                }
            }
        }
    }

    /// Sends keys and vIP plan to a node that continues with its tables, which do not contain them. They may
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

    /// Removes keys from a host that it has not needed for a while.
    async fn withdraw_keys(&mut self) -> Result<(), Ended> {
        let Side::Host(host) = &mut self.side else { return Ok(()) };
        let keys = host.withdraw_keys();
        if keys.is_empty() {
            return Ok(());
        }
        let update = Update { keys, ..Update::default() };
        // Sent with the revision that the host has: hosts write their key file at the end of a step.
        self.send_step(self.cursor, encode(update)).await
    }

    /// Removes unconfirmed entries that an operator does not want to keep.
    async fn send_removals(&mut self) -> Result<(), Ended> {
        if self.cursor == 0 {
            return Ok(());
        }
        let removals = self.push.unconfirmed.take_removals(self.side.node());
        if removals.is_empty() {
            return Ok(());
        }
        // As a step of the revision that the node has: nodes write their files at the end of a step.
        let removals = Update { removes_unconfirmed: true, ..removals };
        self.send_step(self.cursor, encode(removals)).await
    }

    /// Sends a host the gateway of its zone if it changed. The message has no revision, because gateways also
    /// fail between changes.
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
        let head = self.head();
        for part in encode(update) {
            self.send(EncodedUpdate::new(head, part)).await?;
        }
        Ok(())
    }

    /// The head of a message without a revision.
    fn head(&self) -> UpdateHead {
        UpdateHead { database_id: self.push.database_id(), ..UpdateHead::default() }
    }

    async fn send(&self, update: EncodedUpdate) -> Result<(), Ended> {
        self.push.counters.bytes.fetch_add(update.byte_len() as u64, Ordering::Relaxed);
        let taken = tokio::time::timeout(TAKE_TIMEOUT, self.out.send(Ok(update))).await;
        taken.map_err(|_| Ended::Stalled)?.map_err(|_| Ended::Closed)
    }

    /// Sends messages, of which the last completes a revision.
    async fn send_step(&self, revision: u64, parts: Vec<Bytes>) -> Result<(), Ended> {
        let head = self.head();
        let end = UpdateHead { revision, commit_id: self.known.commit, ..head };
        let last = parts.len().saturating_sub(1);
        // Stored before the message is sent, so that an acknowledgment never exceeds it.
        self.sent.store(revision, Ordering::Release);
        if parts.is_empty() {
            return self.send(EncodedUpdate::new(end, Bytes::new())).await;
        }
        for (index, part) in parts.into_iter().enumerate() {
            self.send(EncodedUpdate::new(if index == last { end } else { head }, part)).await?;
        }
        Ok(())
    }

    /// Records that the node has the latest revision if nothing in it is for the node, or sends it the number.
    async fn mark(&mut self) -> Result<(), Ended> {
        let sent = self.sent.load(Ordering::Acquire);
        if self.cursor <= sent {
            return Ok(());
        }
        if matches!(self.side, Side::Host(_)) && self.last_number.elapsed() < HOST_MARK {
            self.push.hub.skip(self.side.node(), self.session, sent, self.cursor);
            return Ok(());
        }
        self.last_number = Instant::now();
        self.send_step(self.cursor, Vec::new()).await
    }

    /// Waits for the nodes that must acknowledge a step first. After the time-out it is sent anyway: a
    /// violated order may cost some packets, but a delayed step would cost more.
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
                    tracing::warn!(
                        ?node,
                        revision = step.revision,
                        ?gate,
                        "nodes that must have a step first did not acknowledge it in time"
                    );
                    return;
                }
                tokio::time::sleep(GATE_LOOK).await;
            }
        }
    }

    /// Sends the entries of a step that are for the node. Returns false if a snapshot is needed instead.
    async fn step(&mut self, step: &Step) -> Result<bool, Ended> {
        let Some(parts) = self.side.parts(step, &self.push.compiled) else {
            self.snapshot_from = step.revision;
            return Ok(false);
        };
        self.wait_for_gates(step).await;
        if let Side::Gateway(gateway) = &mut self.side
            && let Some(membership) = step.memberships.get(&gateway.id)
        {
            // The gateway is a member of another cluster now. It needs that cluster's keys before its vIP
            // plan.
            (gateway.membership, self.cluster_update_sent) = (*membership, false);
            self.send_cluster_update().await?;
        }
        self.cursor = step.revision;
        self.known = Position { revision: step.revision, commit: step.commit };
        if !parts.is_empty() {
            self.send_step(step.revision, parts).await?;
            count(&self.push.counters.steps);
        }
        if let Side::Gateway(gateway) = &self.side {
            self.push.timeline.sent(gateway.id, step.revision);
        }
        Ok(true)
    }

    /// Whether the node could not write some entries, and enough time has passed that there may be free
    /// memory now.
    fn needs_repair(&self) -> bool {
        let (hub, node) = (&self.push.hub, self.side.node());
        self.last_snapshot.elapsed() >= REPAIR
            && hub.is_incomplete(node)
            && hub.with_acked(|acked| acked(node)) == self.cursor
    }
}
