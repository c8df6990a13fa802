//! The state of each node as the controller knows it: its stream, what it acknowledged, when it was last
//! seen. This memory is authoritative for nodes whose stream is on this replica. The store has it for other
//! replicas and for the next start.

use crate::clock::now_ms;
use sluice_southbound::proto::Heartbeat;
use sluice_southbound::{EncodedUpdate, Missing};
use sluice_store::{NodeId, NodeState};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// A connected node's `last_seen_ms` is saved at this interval if nothing else of it changes.
const SEEN_INTERVAL_MS: u64 = 10_000;
/// A node's state is saved when it has not changed for this time. Each save is a commit; saving every
/// acknowledgment would slow down a series of changes.
const QUIET: Duration = Duration::from_millis(40);
/// Questions that may wait for a node.
const QUESTIONS: usize = 16;
/// A state that keeps changing is saved at this interval.
const BUSY: Duration = Duration::from_secs(1);

/// Why the controller ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The node opened another stream.
    Replaced,
    /// The node was deleted.
    Removed,
    /// The database went back to an earlier state.
    Rewound,
    /// The controller stops.
    Shutdown,
}

/// A node's stream as the hub sees it.
#[derive(Debug)]
pub struct Session {
    /// Number that distinguishes the streams of all nodes.
    pub id: u64,
    /// Resolves when the stream must end.
    pub closing: oneshot::Receiver<Closing>,
    /// Questions to send to the node, between any two messages.
    pub questions: mpsc::Receiver<EncodedUpdate>,
}

#[derive(Debug, Default)]
struct Node {
    acked: u64,
    last_seen_ms: u64,
    /// A wait for it timed out, and it has sent no message since.
    unanswered: bool,
    failures: Vec<String>,
    /// Newest revision that was acknowledged with failures. The contents of the tables are unknown until
    /// the node has acknowledged a snapshot without any, or reports that it has written the rest.
    failed: Option<u64>,
    /// What is missing then, or lacks only its meter; `None` if the node has not said it by name.
    missing: Option<Missing>,
    /// The next snapshot is to verify these shards of the tables; 0 if none is due.
    verify_shards: u64,
    /// Revision of the last snapshot that it was sent on this stream.
    snapshot: Option<u64>,
    /// A snapshot was begun on this stream that it has not acknowledged.
    owes_snapshot: bool,
    /// It did not acknowledge the last snapshot of an earlier stream, or its last stream stalled.
    slow: bool,
    session: Option<(u64, oneshot::Sender<Closing>)>,
    /// To its newest stream.
    questions: Option<mpsc::Sender<EncodedUpdate>>,
    version: String,
    heartbeat: Heartbeat,
    /// When the unsaved state changed first, and when it changed last.
    dirty: Option<(Instant, Instant)>,
    saved_seen_ms: u64,
}

impl Node {
    fn mark(&mut self) {
        let now = Instant::now();
        self.dirty = Some((self.dirty.map_or(now, |(since, _)| since), now));
    }

    fn lags(&self, revision: u64, recent_ms: u64) -> bool {
        self.acked < revision
            && !self.unanswered
            && (self.session.is_some() || self.last_seen_ms >= recent_ms)
    }

    fn is_due(&self) -> bool {
        let settled = self.dirty.is_some_and(|(since, at)| at.elapsed() >= QUIET || since.elapsed() >= BUSY);
        settled || self.session.is_some() && self.last_seen_ms >= self.saved_seen_ms + SEEN_INTERVAL_MS
    }
}

/// What a node could not write.
#[derive(Clone, Copy, Debug)]
pub struct Gap<'a> {
    /// What is missing in its tables; `None` if it has not said it by name.
    pub missing: Option<&'a Missing>,
    /// Its first failure.
    pub text: &'a str,
}

/// A node, for the API.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// The gateway or host.
    pub node: NodeId,
    /// What it acknowledged, when it was last seen, and which entries it could not write.
    pub state: NodeState,
    /// It has a stream to this replica.
    pub connected: bool,
    /// Version of its agent; empty if it never connected to this replica.
    pub version: String,
    /// Its last heartbeat on the current stream.
    pub heartbeat: Heartbeat,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: BTreeMap<NodeId, Node>,
    next_session: u64,
    closed: bool,
}

/// The state of all nodes.
#[derive(Debug, Default)]
pub struct Hub {
    inner: Mutex<Inner>,
}

/// A node without a stream here that was seen after this time may be connected to another replica.
fn recent_ms() -> u64 {
    now_ms().saturating_sub(2 * SEEN_INTERVAL_MS)
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the state of nodes that have no stream here by what the store has.
    pub fn load(&self, states: Vec<NodeState>) {
        let mut inner = self.lock();
        for state in states {
            let node = inner.nodes.entry(state.node).or_default();
            if node.session.is_none() && node.dirty.is_none() {
                node.acked = state.acknowledged_revision;
                node.unanswered &= state.last_seen_ms <= node.last_seen_ms;
                node.last_seen_ms = state.last_seen_ms;
                node.saved_seen_ms = state.last_seen_ms;
                node.failed = (!state.failures.is_empty()).then_some(state.acknowledged_revision);
                node.missing = None;
                node.failures = state.failures;
            }
        }
    }

    /// A node's stream starts, and its earlier one ends. `applied` is the revision that its tables have,
    /// which may be lower than one that it acknowledged earlier.
    pub fn open(&self, id: NodeId, applied: u64, version: String) -> Session {
        let (sender, closing) = oneshot::channel();
        let (asking, questions) = mpsc::channel(QUESTIONS);
        let mut inner = self.lock();
        inner.next_session += 1;
        let session = inner.next_session;
        if inner.closed {
            // It cannot fail: the receiver is returned below.
            let _ = sender.send(Closing::Shutdown);
            return Session { id: session, closing, questions };
        }
        let node = inner.nodes.entry(id).or_default();
        if let Some((_, old)) = node.session.replace((session, sender)) {
            let _ = old.send(Closing::Replaced);
        }
        node.questions = Some(asking);
        node.mark();
        node.unanswered = false;
        node.acked = applied;
        node.snapshot = None;
        node.verify_shards = 0;
        node.slow |= std::mem::take(&mut node.owes_snapshot);
        if applied == 0 {
            node.failed = None;
        }
        node.missing = None;
        node.failures.clear();
        node.version = version;
        node.heartbeat = Heartbeat::default();
        node.last_seen_ms = now_ms();
        node.saved_seen_ms = node.last_seen_ms;
        Session { id: session, closing, questions }
    }

    fn with(&self, id: NodeId, session: u64, change: impl FnOnce(&mut Node)) {
        let mut inner = self.lock();
        let node = inner.nodes.get_mut(&id);
        if let Some(node) = node.filter(|n| n.session.as_ref().is_some_and(|(s, _)| *s == session)) {
            node.last_seen_ms = now_ms();
            change(node);
        }
    }

    /// A node's stream has ended. Returns true if the node has no other.
    pub fn close(&self, id: NodeId, session: u64) -> bool {
        self.with(id, session, |node| {
            node.session = None;
            node.mark();
        });
        self.lock().nodes.get(&id).is_none_or(|node| node.session.is_none())
    }

    /// Sends a question to a node. False if the node has no stream here, or takes no messages.
    pub fn ask(&self, id: NodeId, question: EncodedUpdate) -> bool {
        let inner = self.lock();
        let questions = inner.nodes.get(&id).and_then(|node| node.questions.as_ref());
        questions.is_some_and(|questions| questions.try_send(question).is_ok())
    }

    /// Whether a stream is the node's newest.
    pub fn is_current(&self, id: NodeId, session: u64) -> bool {
        let inner = self.lock();
        inner.nodes.get(&id).and_then(|node| node.session.as_ref()).is_some_and(|(now, _)| *now == session)
    }

    /// A node acknowledges a revision, with the entries that it could not write. Those without which its tables are complete are not
    /// among them: [`Hub::missing`] names these.
    pub fn ack(&self, id: NodeId, session: u64, revision: u64, failures: Vec<String>) {
        self.with(id, session, |node| {
            node.unanswered = false;
            node.acked = node.acked.max(revision);
            if node.snapshot.is_some_and(|at| revision >= at) {
                (node.snapshot, node.failed) = (None, None);
                (node.owes_snapshot, node.slow) = (false, false);
            }
            if !failures.is_empty() {
                node.failed = node.failed.max(Some(revision));
            }
            node.failures = failures;
            node.mark();
        });
    }

    /// What is missing in a node's tables changed. It reports this before it acknowledges the step.
    pub fn missing(&self, id: NodeId, session: u64, missing: Missing) {
        self.with(id, session, |node| node.missing = Some(missing));
    }

    /// Nothing between the revisions `sent` and `latest` is for a node. If it has acknowledged the first, it has the
    /// second. Other replicas learn of it when the node's state is saved next.
    pub fn skip(&self, id: NodeId, session: u64, sent: u64, latest: u64) {
        let mut inner = self.lock();
        let node =
            inner.nodes.get_mut(&id).filter(|n| n.session.as_ref().is_some_and(|(s, _)| *s == session));
        if let Some(node) = node.filter(|node| node.acked >= sent) {
            node.acked = node.acked.max(latest);
        }
    }

    /// A node has written everything up to the revision that it acknowledged last, also what it could not write
    /// at first. Only meters may be missing, for which it has no room: what lacks one works, and nothing waits for it.
    pub fn complete(&self, id: NodeId, session: u64) {
        self.with(id, session, |node| {
            if node.failed.take().is_some() {
                node.failures.clear();
                node.mark();
            }
        });
    }

    /// A node is going to be sent a snapshot.
    pub fn snapshot_begun(&self, id: NodeId, session: u64) {
        self.with(id, session, |node| node.owes_snapshot = true);
    }

    /// Whether a node did not take its last snapshot, so that it must not delay the snapshots of others.
    pub fn is_slow(&self, id: NodeId) -> bool {
        self.lock().nodes.get(&id).is_some_and(|node| node.slow)
    }

    /// A node's stream is ended because it stalled. Returns false if the node was slow before.
    pub fn stalled(&self, id: NodeId) -> bool {
        self.lock().nodes.get_mut(&id).is_some_and(|node| !std::mem::replace(&mut node.slow, true))
    }

    /// A node was sent a snapshot of `revision`.
    pub fn snapshot_sent(&self, id: NodeId, session: u64, revision: u64) {
        self.with(id, session, |node| node.snapshot = Some(revision));
    }

    /// The tables of a node differ in these shards from what was compiled.
    pub fn request_verification(&self, id: NodeId, session: u64, shards: u64) {
        self.with(id, session, |node| node.verify_shards |= shards);
    }

    /// The shards that the next snapshot is to verify, once.
    pub fn take_verification(&self, id: NodeId) -> u64 {
        self.lock().nodes.get_mut(&id).map_or(0, |node| std::mem::take(&mut node.verify_shards))
    }

    /// Whether entries are missing in a node's tables, as far as is known.
    pub fn is_incomplete(&self, id: NodeId) -> bool {
        self.lock().nodes.get(&id).is_some_and(|node| node.failed.is_some())
    }

    /// A heartbeat of a node arrived.
    pub fn heartbeat(&self, id: NodeId, session: u64, heartbeat: Heartbeat) {
        self.with(id, session, |node| (node.unanswered, node.heartbeat) = (false, heartbeat));
    }

    /// A node was deleted.
    pub fn remove(&self, id: NodeId) {
        if let Some((_, closing)) = self.lock().nodes.remove(&id).and_then(|node| node.session) {
            let _ = closing.send(Closing::Removed);
        }
    }

    /// Ends all streams, so that the nodes connect again.
    pub fn end_all(&self) {
        for node in self.lock().nodes.values_mut() {
            if let Some((_, closing)) = node.session.take() {
                let _ = closing.send(Closing::Rewound);
                node.mark();
            }
        }
    }

    /// Ends all streams, and refuses new ones.
    pub fn shutdown(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        for node in inner.nodes.values_mut() {
            if let Some((_, closing)) = node.session.take() {
                let _ = closing.send(Closing::Shutdown);
            }
        }
    }

    /// Returns the states to save now, and marks them as saved. With `all`, returns every unsaved state.
    pub fn take_unsaved(&self, all: bool) -> Vec<NodeState> {
        let mut unsaved = Vec::new();
        for (id, node) in &mut self.lock().nodes {
            if node.is_due() || all && node.dirty.is_some() {
                node.dirty = None;
                node.saved_seen_ms = node.last_seen_ms;
                unsaved.push(state(*id, node));
            }
        }
        unsaved
    }

    /// Saving failed: the state is returned by [`Hub::take_unsaved`] again.
    pub fn mark_unsaved(&self, id: NodeId) {
        if let Some(node) = self.lock().nodes.get_mut(&id) {
            node.mark();
        }
    }

    /// Calls `read` with a function that returns the revision that a node has acknowledged; 0 if it has
    /// acknowledged none.
    pub fn with_acked<R>(&self, read: impl FnOnce(&dyn Fn(NodeId) -> u64) -> R) -> R {
        let inner = self.lock();
        read(&|id| inner.nodes.get(&id).map_or(0, |node| node.acked))
    }

    /// Calls `read` with a function that says whether a node's tables have everything up to a revision: the
    /// node acknowledged it and could write all entries.
    pub fn with_written<R>(&self, read: impl FnOnce(&dyn Fn(NodeId, u64) -> bool) -> R) -> R {
        let inner = self.lock();
        let written = |id, revision| {
            inner.nodes.get(&id).is_some_and(|node| node.acked >= revision && node.failed.is_none())
        };
        read(&written)
    }

    /// Calls `read` with the nodes whose tables lack entries, and which. Nodes that lack only meters are among them.
    pub fn with_gaps<R>(&self, read: impl FnOnce(&[(NodeId, Gap<'_>)]) -> R) -> R {
        let inner = self.lock();
        let mut gaps = Vec::new();
        let lacks = |node: &Node| {
            node.failed.is_some() || node.missing.as_ref().is_some_and(|missing| !missing.is_empty())
        };
        for (id, node) in inner.nodes.iter().filter(|(_, node)| lacks(node)) {
            let text = node.failures.first().map_or("the node does not say why", String::as_str);
            gaps.push((*id, Gap { missing: node.missing.as_ref(), text }));
        }
        read(&gaps)
    }

    /// Whether one of these nodes has not acknowledged a revision. Nodes count if they are connected, or were
    /// seen by another replica lately, and have sent a message since the last wait for them timed out.
    pub fn lags(&self, nodes: &[NodeId], revision: u64) -> bool {
        let inner = self.lock();
        let recent_ms = recent_ms();
        nodes.iter().any(|id| inner.nodes.get(id).is_some_and(|node| node.lags(revision, recent_ms)))
    }

    /// Stops waiting for those of these nodes that lag behind a revision, until they send a message.
    pub fn give_up(&self, nodes: &[NodeId], revision: u64) {
        let mut inner = self.lock();
        let recent_ms = recent_ms();
        for id in nodes {
            if let Some(node) = inner.nodes.get_mut(id).filter(|node| node.lags(revision, recent_ms)) {
                node.unanswered = true;
            }
        }
    }

    /// A node's state, for the API; the default state if the node is not known here.
    pub fn view(&self, id: NodeId) -> NodeView {
        let inner = self.lock();
        match inner.nodes.get(&id) {
            Some(node) => view(id, node),
            None => view(id, &Node::default()),
        }
    }
}

fn state(id: NodeId, node: &Node) -> NodeState {
    NodeState {
        node: id,
        acknowledged_revision: node.acked,
        last_seen_ms: node.last_seen_ms,
        failures: failures(node),
    }
}

/// The failures that it last reported. If entries are missing from an earlier revision, a text that says so.
fn failures(node: &Node) -> Vec<String> {
    match node.failed {
        Some(revision) if node.failures.is_empty() => {
            vec![format!("entries of revision {revision} or before could not be written")]
        }
        _ => node.failures.clone(),
    }
}

fn view(id: NodeId, node: &Node) -> NodeView {
    NodeView {
        node: id,
        state: state(id, node),
        connected: node.session.is_some(),
        version: node.version.clone(),
        heartbeat: node.heartbeat.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::GatewayId;

    const NODE: NodeId = NodeId::Gateway(GatewayId::new(1));

    #[test]
    fn node_that_has_all_its_entries_has_later_revisions_without_any() {
        let hub = Hub::default();
        let acked = || hub.with_acked(|acked| acked(NODE));
        let session = hub.open(NODE, 5, String::new());
        hub.skip(NODE, session.id, 6, 9);
        assert_eq!(acked(), 5, "it was sent revision 6 and has not acknowledged it");
        hub.ack(NODE, session.id, 6, Vec::new());
        hub.skip(NODE, session.id, 6, 9);
        assert_eq!(acked(), 9);
        hub.skip(NODE, session.id + 1, 9, 12);
        assert_eq!(acked(), 9, "another stream");
    }

    #[test]
    fn second_stream_replaces_the_first() {
        let hub = Hub::default();
        let mut first = hub.open(NODE, 5, String::new());
        let mut second = hub.open(NODE, 6, String::new());
        assert_eq!(first.closing.try_recv(), Ok(Closing::Replaced));
        hub.ack(NODE, first.id, 99, Vec::new());
        hub.close(NODE, first.id);
        assert!(hub.view(NODE).connected);
        assert_eq!(hub.view(NODE).state.acknowledged_revision, 6);
        assert!(second.closing.try_recv().is_err());
        hub.remove(NODE);
        assert_eq!(second.closing.try_recv(), Ok(Closing::Removed));
    }

    #[test]
    fn failed_entries_are_missing_until_a_snapshot_is_written_completely() {
        let hub = Hub::default();
        let written = |revision| hub.with_written(|written| written(NODE, revision));
        let session = hub.open(NODE, 5, String::new());
        assert!(written(5) && !written(6));
        hub.ack(NODE, session.id, 7, vec!["endpoint 10.0.0.1: the tables are full".to_owned()]);
        hub.ack(NODE, session.id, 8, Vec::new());
        assert!(!written(6) && !written(7) && !written(8), "later acknowledgments do not repair it");
        let session = hub.open(NODE, 8, String::new());
        assert!(!written(7), "a new stream does not change the tables");
        // Another controller reads the failure from the database.
        let saved = hub.take_unsaved(true);
        let other = Hub::default();
        other.load(saved);
        assert!(other.is_incomplete(NODE));
        let again = other.open(NODE, 8, String::new());
        other.ack(NODE, again.id, 9, Vec::new());
        assert!(other.is_incomplete(NODE) && !other.take_unsaved(true)[0].failures.is_empty());
        // Snapshots repair it: the first attempt fails, the second succeeds.
        hub.snapshot_sent(NODE, session.id, 9);
        hub.ack(NODE, session.id, 9, vec!["endpoint 10.0.0.1: the tables are full".to_owned()]);
        assert!(hub.is_incomplete(NODE));
        hub.snapshot_sent(NODE, session.id, 9);
        hub.ack(NODE, session.id, 8, Vec::new());
        assert!(hub.is_incomplete(NODE), "an older revision than the snapshot's");
        hub.ack(NODE, session.id, 9, Vec::new());
        assert!(written(9) && !hub.is_incomplete(NODE));
        hub.ack(NODE, session.id, 10, vec!["endpoint 10.0.0.2: the tables are full".to_owned()]);
        hub.close(NODE, session.id);
        let session = hub.open(NODE, 0, String::new());
        hub.ack(NODE, session.id, 8, Vec::new());
        assert!(written(6) && written(8));
        // The node tries again by itself: on the same stream, without a snapshot.
        hub.ack(NODE, session.id, 9, vec!["endpoint 10.0.0.3: the tables are full".to_owned()]);
        hub.complete(NODE, session.id + 1);
        assert!(hub.is_incomplete(NODE), "another stream");
        hub.complete(NODE, session.id);
        assert!(written(9) && hub.view(NODE).state.failures.is_empty());
    }

    /// Catches a node without room for a meter that holds removals up, and a missing meter that is not shown.
    #[test]
    fn missing_meters_are_shown_and_nothing_waits_for_them() {
        let hub = Hub::default();
        let session = hub.open(NODE, 5, String::new());
        let gaps =
            || hub.with_gaps(|gaps| gaps.iter().map(|(_, gap)| gap.missing.cloned()).collect::<Vec<_>>());
        let mut missing = Missing::default();
        missing.add(sluice_types::EntryKey::Meter(7), "no room".to_owned());
        hub.missing(NODE, session.id, missing.clone());
        hub.ack(NODE, session.id, 6, Vec::new());
        hub.complete(NODE, session.id);
        assert!(!hub.is_incomplete(NODE) && hub.with_written(|written| written(NODE, 6)));
        assert_eq!(gaps(), [Some(missing.clone())]);
        // Another entry is missing for a while.
        hub.ack(NODE, session.id, 7, vec!["endpoint 10.0.0.1: the tables are full".to_owned()]);
        assert!(hub.is_incomplete(NODE));
        hub.complete(NODE, session.id);
        assert_eq!((hub.is_incomplete(NODE), gaps()), (false, vec![Some(missing)]));
        hub.missing(NODE, session.id, Missing::default());
        assert_eq!(gaps(), []);
    }

    #[test]
    fn node_is_slow_until_it_acknowledges_a_snapshot() {
        let hub = Hub::default();
        let session = hub.open(NODE, 0, String::new());
        hub.snapshot_begun(NODE, session.id);
        assert!(!hub.is_slow(NODE), "it has time until its stream ends");
        hub.close(NODE, session.id);
        let session = hub.open(NODE, 0, String::new());
        assert!(hub.is_slow(NODE) && !hub.stalled(NODE));
        hub.snapshot_begun(NODE, session.id);
        hub.ack(NODE, session.id, 4, Vec::new());
        assert!(hub.is_slow(NODE), "that was no snapshot");
        hub.snapshot_sent(NODE, session.id, 5);
        hub.ack(NODE, session.id, 5, Vec::new());
        assert!(!hub.is_slow(NODE));
        hub.open(NODE, 5, String::new());
        assert!(!hub.is_slow(NODE) && hub.stalled(NODE) && hub.is_slow(NODE));
        hub.remove(NODE);
        assert!(!hub.is_slow(NODE) && !hub.stalled(NODE));
    }

    #[test]
    fn only_live_nodes_lag() {
        let hub = Hub::default();
        assert!(!hub.lags(&[NODE], 9), "never seen");
        let session = hub.open(NODE, 5, String::new());
        assert!(hub.lags(&[NODE], 9) && !hub.lags(&[NODE], 5) && !hub.lags(&[], 9));
        hub.ack(NODE, session.id, 9, Vec::new());
        assert!(!hub.lags(&[NODE], 9));
        let long_ago = NodeId::Gateway(GatewayId::new(2));
        hub.load(vec![NodeState {
            node: long_ago,
            acknowledged_revision: 1,
            last_seen_ms: 1,
            failures: Vec::new(),
        }]);
        assert!(!hub.lags(&[long_ago], 9));
        hub.load(vec![NodeState {
            node: long_ago,
            acknowledged_revision: 1,
            last_seen_ms: now_ms(),
            failures: Vec::new(),
        }]);
        assert!(hub.lags(&[long_ago], 9), "connected to another replica");
    }

    #[test]
    fn node_that_timed_out_is_waited_for_again_after_its_next_message() {
        let hub = Hub::default();
        let session = hub.open(NODE, 5, String::new());
        let fast_node = NodeId::Gateway(GatewayId::new(2));
        let other = hub.open(fast_node, 9, String::new());
        hub.give_up(&[NODE, fast_node], 9);
        assert!(!hub.lags(&[NODE, fast_node], 9) && !hub.lags(&[NODE], 99), "nor for later revisions");
        assert!(hub.lags(&[NODE, fast_node], 99), "the other node had acknowledged it");
        hub.heartbeat(NODE, session.id, Heartbeat::default());
        assert!(hub.lags(&[NODE], 9));
        hub.give_up(&[NODE], 9);
        hub.ack(NODE, session.id, 6, Vec::new());
        assert!(hub.lags(&[NODE], 9));
        hub.give_up(&[NODE], 9);
        hub.close(NODE, session.id);
        assert!(!hub.lags(&[NODE], 9), "the end of a stream is no message");
        hub.open(NODE, 5, String::new());
        assert!(hub.lags(&[NODE], 9));
        // A node that is connected to another replica.
        hub.give_up(&[fast_node], 99);
        hub.close(fast_node, other.id);
        hub.take_unsaved(true);
        let seen = |last_seen_ms| NodeState {
            node: fast_node,
            acknowledged_revision: 9,
            last_seen_ms,
            failures: Vec::new(),
        };
        hub.load(vec![seen(hub.view(fast_node).state.last_seen_ms)]);
        assert!(!hub.lags(&[fast_node], 99));
        hub.load(vec![seen(hub.view(fast_node).state.last_seen_ms + 1)]);
        assert!(hub.lags(&[fast_node], 99));
    }

    #[test]
    fn node_that_lost_its_tables_restarts_at_its_applied_revision() {
        let hub = Hub::default();
        let one = hub.open(NODE, 0, String::new());
        hub.ack(NODE, one.id, 9, vec!["full".into()]);
        assert_eq!(hub.with_acked(|acked| acked(NODE)), 9);
        assert_eq!(hub.take_unsaved(true).len(), 1);
        assert_eq!(hub.take_unsaved(true).len(), 0);
        hub.open(NODE, 0, String::new());
        assert_eq!(hub.with_acked(|acked| acked(NODE)), 0);
        assert_eq!(hub.take_unsaved(true)[0].failures, Vec::<String>::new());
    }

    #[test]
    fn settled_state_is_saved_soon_and_changing_state_at_intervals() {
        let began = Instant::now();
        let hub = Hub::default();
        let session = hub.open(NODE, 0, String::new());
        hub.ack(NODE, session.id, 1, Vec::new());
        let early = hub.take_unsaved(false).len();
        assert!(early == 0 || began.elapsed() >= QUIET);
        hub.ack(NODE, session.id, 1, Vec::new());
        std::thread::sleep(QUIET);
        assert_eq!(hub.take_unsaved(false)[0].acknowledged_revision, 1);
        let began = Instant::now();
        let mut revision = 1;
        loop {
            revision += 1;
            hub.ack(NODE, session.id, revision, Vec::new());
            if !hub.take_unsaved(false).is_empty() {
                break;
            }
        }
        assert!(began.elapsed() >= QUIET);
    }

    #[test]
    fn stored_state_does_not_replace_that_of_a_live_stream() {
        let hub = Hub::default();
        let stored = |acked| NodeState {
            node: NODE,
            acknowledged_revision: acked,
            last_seen_ms: 1,
            failures: Vec::new(),
        };
        hub.load(vec![stored(3)]);
        assert_eq!(hub.view(NODE).state.acknowledged_revision, 3);
        hub.open(NODE, 7, String::new());
        hub.load(vec![stored(4)]);
        assert_eq!(hub.view(NODE).state.acknowledged_revision, 7);
    }
}
