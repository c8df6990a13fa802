//! Snapshots of all nodes: how many are sent at a time, and the encoded tables that gateways share.
//!
//! No snapshot holds a connection of the database while a node takes it. The tables of a host are small and are read
//! at once. Those of a gateway are large, and the same for all gateways with the same clusters: a task reads and
//! encodes them once ([`Tables`]), and all of these gateways that need a snapshot meanwhile are sent its parts, each
//! at its own speed. The parts are freed when the last of them has finished.

use super::Push;
use super::steps::encode;
use super::stream::Ended;
use crate::compile::{Membership, State};
use bytes::Bytes;
use sluice_store::{InstancesOf, NodeId, Position, SNAPSHOTS_MAX, SnapshotPart, StoreError};
use sluice_types::{ClusterId, GatewayId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// Snapshots that are sent at the same time to nodes that acknowledged their last one.
pub const PLACES: usize = 64;
/// Snapshots that are sent at the same time to nodes that did not: these nodes wait for each other only.
pub const SLOW_PLACES: usize = 8;
/// While gateways are sent more encoded bytes than this, no further tables are read for them.
pub const BYTES_MAX: usize = 512 << 20;
/// Gateways' tables that are read at the same time. The store reads one snapshot more, so that hosts need not wait.
const READERS: usize = SNAPSHOTS_MAX - 1;
/// Parts that are read from the store ahead of encoding.
const READ_AHEAD: usize = 4;

/// Bytes of all tables that gateways are sent.
#[derive(Debug, Default)]
struct Held {
    now: AtomicUsize,
    freed: Notify,
}

/// The encoded tables of gateways with the same clusters, as of one revision. They grow while they are read.
#[derive(Debug)]
pub struct Tables {
    /// The revision of all entries, and its commit.
    pub position: Position,
    memberships: BTreeMap<GatewayId, Membership>,
    parts: RwLock<Vec<Bytes>>,
    entries: AtomicUsize,
    reading: watch::Sender<Reading>,
    bytes: AtomicUsize,
    all_bytes: Arc<Held>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// As many parts have been read.
    Parts(usize),
    Complete,
    Failed,
}

impl Tables {
    /// The clusters of a gateway at the revision; `None` if there was no such gateway.
    pub fn membership(&self, gateway: GatewayId) -> Option<Membership> {
        self.memberships.get(&gateway).copied()
    }

    /// Number of entries of the parts that have been read.
    pub fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// The part with this index, as soon as it has been read; `None` behind the last one.
    ///
    /// # Errors
    /// [`Ended::NoSnapshot`] if reading failed.
    pub async fn part(&self, index: usize) -> Result<Option<Bytes>, Ended> {
        let mut reading = self.reading.subscribe();
        loop {
            // Before the parts, because the last part is added before reading ends.
            let now = *reading.borrow_and_update();
            let part = self.parts.read().unwrap_or_else(PoisonError::into_inner).get(index).cloned();
            match (part, now) {
                (Some(part), _) => return Ok(Some(part)),
                (None, Reading::Complete) => return Ok(None),
                (None, Reading::Failed) => return Err(Ended::NoSnapshot),
                (None, Reading::Parts(_)) => reading.changed().await.map_err(|_| Ended::NoSnapshot)?,
            }
        }
    }

    fn add(&self, entries: usize, new: Vec<Bytes>) {
        let bytes = new.iter().map(Bytes::len).sum();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all_bytes.now.fetch_add(bytes, Ordering::Relaxed);
        self.entries.fetch_add(entries, Ordering::Relaxed);
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        parts.extend(new);
        self.reading.send_replace(Reading::Parts(parts.len()));
    }

    /// Whether a gateway whose stream expects this membership can be sent these tables.
    fn serve(&self, gateway: GatewayId, membership: Membership, at_least: u64) -> bool {
        self.position.revision >= at_least
            && self.membership(gateway).is_some_and(|own| key(own) == key(membership))
            && *self.reading.borrow() != Reading::Failed
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.all_bytes.now.fetch_sub(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.all_bytes.freed.notify_waiters();
    }
}

type Key = (ClusterId, Option<ClusterId>);
type Slot = Arc<AsyncMutex<Weak<Tables>>>;

fn key(membership: Membership) -> Key {
    (membership.cluster, membership.other)
}

/// What the metrics show of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotFigures {
    /// Snapshots that are sent, at most [`PLACES`].
    pub sending: usize,
    /// The same to nodes that did not acknowledge their last one, at most [`SLOW_PLACES`].
    pub slow_sending: usize,
    /// Nodes that wait for a place.
    pub waiting: usize,
    /// Bytes of the gateways' tables that are sent. See [`BYTES_MAX`].
    pub bytes: usize,
}

/// Places for snapshots, and the tables that gateways are sent.
#[derive(Debug)]
pub struct Snapshots {
    places: Arc<Semaphore>,
    slow_places: Arc<Semaphore>,
    waiting: AtomicUsize,
    readers: Arc<Semaphore>,
    bytes: Arc<Held>,
    tables: Mutex<BTreeMap<Key, Slot>>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(PLACES)),
            slow_places: Arc::new(Semaphore::new(SLOW_PLACES)),
            waiting: AtomicUsize::new(0),
            readers: Arc::new(Semaphore::new(READERS)),
            bytes: Arc::default(),
            tables: Mutex::default(),
        }
    }
}

/// Counts a node as waiting until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Snapshots {
    /// Waits for a place, in the order of the calls. `slow` says that the node did not acknowledge its last
    /// snapshot.
    ///
    /// # Errors
    /// Never in practice: the places are not closed.
    pub async fn admit(&self, slow: bool) -> Result<OwnedSemaphorePermit, Ended> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let places = if slow { &self.slow_places } else { &self.places };
        places.clone().acquire_owned().await.map_err(|_| Ended::Closed)
    }

    /// The present figures.
    pub fn figures(&self) -> SnapshotFigures {
        SnapshotFigures {
            sending: PLACES - self.places.available_permits(),
            slow_sending: SLOW_PLACES - self.slow_places.available_permits(),
            waiting: self.waiting.load(Ordering::Relaxed),
            bytes: self.bytes.now.load(Ordering::Relaxed),
        }
    }

    /// Waits until another gateway's tables may be read.
    async fn reader(&self) -> Result<OwnedSemaphorePermit, Ended> {
        let permit = self.readers.clone().acquire_owned().await.map_err(|_| Ended::Closed)?;
        loop {
            let freed = self.bytes.freed.notified();
            if self.bytes.now.load(Ordering::Relaxed) < BYTES_MAX {
                return Ok(permit);
            }
            freed.await;
        }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<Key, Slot>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the tables that were read so far: the next gateways do not share them. Those that take them continue.
    pub fn forget(&self) {
        self.slots().clear();
    }

    /// The slot of tables for a membership. Slots without tables are removed, unless they are in use.
    fn slot(&self, key: Key) -> Slot {
        let mut slots = self.slots();
        slots.retain(|_, slot| {
            slot.try_lock().is_ok_and(|tables| tables.strong_count() > 0) || Arc::strong_count(slot) > 1
        });
        slots.entry(key).or_default().clone()
    }
}

/// The tables of a gateway at `at_least` or a later revision from which the log of steps continues. `membership` is
/// what the gateway's stream knows of it, and `known` the newest position that it has: the tables are of the same
/// history of the database.
///
/// # Errors
/// [`Ended::Unknown`] if there is no such gateway; errors of reading, also if the database does not have `known` any more.
pub async fn gateway_tables(
    push: &Arc<Push>,
    gateway: GatewayId,
    membership: Membership,
    known: Position,
    at_least: u64,
) -> Result<Arc<Tables>, Ended> {
    let slot = push.snapshots.slot(key(membership));
    let mut shared = slot.lock().await;
    if let Some(tables) = shared.upgrade()
        && tables.serve(gateway, membership, at_least)
        && push.log.reaches(tables.position.revision)
    {
        match push.db.store.check_positions(&[known, tables.position]).await {
            Ok(()) => return Ok(tables),
            // Reading finds out which of them the database lost.
            Err(StoreError::Rewound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let permit = push.snapshots.reader().await?;
    let (sender, started) = oneshot::channel();
    tokio::spawn(read(push.clone(), gateway, known, permit, sender));
    let tables = started.await.map_err(|_| Ended::NoSnapshot)??;
    *shared = Arc::downgrade(&tables);
    Ok(tables)
}

/// Reads the tables of a gateway to their end, or until no stream needs them. Passes them on when they have their
/// first part.
async fn read(
    push: Arc<Push>,
    gateway: GatewayId,
    known: Position,
    _permit: OwnedSemaphorePermit,
    started: oneshot::Sender<Result<Arc<Tables>, Ended>>,
) {
    let (sink, parts) = mpsc::channel(READ_AHEAD);
    let snapshot = push.db.store.snapshot_from(known, InstancesOf::Gateway(gateway), sink);
    let (done, (tables, is_encoded)) = tokio::join!(snapshot, encode_parts(&push, gateway, parts, started));
    if let Err(error) = &done {
        push.db.count_error();
        tracing::warn!(error = error as &dyn std::error::Error, "cannot read the tables of gateways");
    }
    if let Some(tables) = tables {
        let is_complete = done.is_ok() && is_encoded;
        tables.reading.send_replace(if is_complete { Reading::Complete } else { Reading::Failed });
    }
}

/// Encodes the parts of a snapshot. Returns the tables, if any part came, and whether all parts are in them.
async fn encode_parts(
    push: &Push,
    gateway: GatewayId,
    mut parts: mpsc::Receiver<SnapshotPart>,
    started: oneshot::Sender<Result<Arc<Tables>, Ended>>,
) -> (Option<Arc<Tables>>, bool) {
    let Some(SnapshotPart::Topology(topology)) = parts.recv().await else { return (None, false) };
    let model = push.compiled.model();
    let position = Position { revision: topology.revision, commit: topology.commit };
    let base = tokio::task::spawn_blocking(move || {
        let state = State::new(&topology, model);
        let base = state.gateway_base(gateway).map(|(_, base)| (base.entry_count(), encode(base)));
        (Arc::new(state), base)
    });
    // If the stream has ended meanwhile, what is sent here has no receiver.
    let (state, entries, encoded) = match base.await {
        Ok((state, Some((entries, encoded)))) => (state, entries, encoded),
        Ok((_, None)) => {
            let _ = started.send(Err(Ended::Unknown(NodeId::Gateway(gateway))));
            return (None, false);
        }
        Err(error) => {
            let _ = started.send(Err(error.into()));
            return (None, false);
        }
    };
    let tables = Arc::new(Tables {
        position,
        memberships: state.gateway_memberships(),
        parts: RwLock::default(),
        entries: AtomicUsize::new(0),
        reading: watch::Sender::new(Reading::Parts(0)),
        bytes: AtomicUsize::new(0),
        all_bytes: push.snapshots.bytes.clone(),
    });
    tables.add(entries, encoded);
    let _ = started.send(Ok(tables.clone()));
    while let Some(part) = parts.recv().await {
        let SnapshotPart::Instances(instances) = part else { continue };
        if Arc::strong_count(&tables) == 1 {
            // All streams that needed them have ended.
            return (Some(tables), false);
        }
        let state = state.clone();
        let encoded = tokio::task::spawn_blocking(move || {
            let update = state.instance_entries(&instances);
            (update.entry_count(), encode(update))
        });
        let Ok((entries, encoded)) = encoded.await else { return (Some(tables), false) };
        tables.add(entries, encoded);
    }
    (Some(tables), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(snapshots: &Snapshots, revision: u64, memberships: &[(u64, Key)]) -> Tables {
        let of = |(gateway, (cluster, other)): &(u64, Key)| {
            (GatewayId::new(*gateway), Membership { cluster: *cluster, other: *other, resync: false })
        };
        Tables {
            position: Position { revision, commit: 0 },
            memberships: memberships.iter().map(of).collect(),
            parts: RwLock::default(),
            entries: AtomicUsize::new(0),
            reading: watch::Sender::new(Reading::Parts(0)),
            bytes: AtomicUsize::new(0),
            all_bytes: snapshots.bytes.clone(),
        }
    }

    #[tokio::test]
    async fn nodes_that_took_no_snapshot_wait_for_each_other_only() {
        let snapshots = Snapshots::default();
        let mut slow = Vec::new();
        for _ in 0..SLOW_PLACES {
            slow.push(snapshots.admit(true).await.unwrap());
        }
        let next = snapshots.admit(true);
        tokio::pin!(next);
        assert!(futures::poll!(next.as_mut()).is_pending());
        let figures = snapshots.figures();
        assert_eq!((figures.sending, figures.slow_sending, figures.waiting), (0, SLOW_PLACES, 1));
        let place = snapshots.admit(false).await.unwrap();
        assert_eq!(snapshots.figures().sending, 1);
        drop(slow.pop());
        let last = next.await.unwrap();
        drop((slow, place, last));
        let none = SnapshotFigures { sending: 0, slow_sending: 0, waiting: 0, bytes: 0 };
        assert_eq!(snapshots.figures(), none);
    }

    #[tokio::test]
    async fn nodes_get_places_in_order() {
        let snapshots = Snapshots::default();
        let mut all = Vec::new();
        for _ in 0..PLACES {
            all.push(snapshots.admit(false).await.unwrap());
        }
        let (first, second) = (snapshots.admit(false), snapshots.admit(false));
        tokio::pin!(first, second);
        assert!(futures::poll!(first.as_mut()).is_pending() && futures::poll!(second.as_mut()).is_pending());
        drop(all.pop());
        assert!(futures::poll!(second.as_mut()).is_pending(), "the other one came first");
        assert!(first.await.is_ok());
    }

    #[tokio::test]
    async fn parts_are_sent_while_others_are_read() {
        let snapshots = Snapshots::default();
        let tables = tables(&snapshots, 7, &[]);
        let mut wait = Box::pin(tables.part(0));
        assert!(futures::poll!(wait.as_mut()).is_pending());
        tables.add(3, vec![Bytes::from_static(b"abc")]);
        assert_eq!(wait.await.unwrap().unwrap(), "abc");
        tables.add(1, vec![Bytes::from_static(b"d")]);
        assert_eq!((tables.entries(), snapshots.figures().bytes), (4, 4));
        tables.reading.send_replace(Reading::Complete);
        assert_eq!(tables.part(1).await.unwrap().unwrap(), "d");
        assert!(tables.part(2).await.unwrap().is_none());
        tables.reading.send_replace(Reading::Failed);
        assert!(matches!(tables.part(2).await, Err(Ended::NoSnapshot)));
        drop(tables);
        assert_eq!(snapshots.figures().bytes, 0);
    }

    #[tokio::test]
    async fn no_tables_are_read_while_too_many_bytes_are_sent() {
        let snapshots = Snapshots::default();
        let large = tables(&snapshots, 7, &[]);
        large.add(1, vec![Bytes::from(vec![0; 3])]);
        assert!(snapshots.reader().await.is_ok());
        snapshots.bytes.now.fetch_add(BYTES_MAX, Ordering::Relaxed);
        let wait = snapshots.reader();
        tokio::pin!(wait);
        assert!(futures::poll!(wait.as_mut()).is_pending());
        snapshots.bytes.now.fetch_sub(BYTES_MAX, Ordering::Relaxed);
        drop(large);
        assert!(wait.await.is_ok());
    }

    #[test]
    fn tables_serve_gateways_that_had_the_same_clusters_at_their_revision() {
        let (a, b) = (ClusterId::new(1), ClusterId::new(2));
        let snapshots = Snapshots::default();
        let tables = tables(&snapshots, 7, &[(1, (a, None)), (2, (a, Some(b))), (3, (b, None))]);
        let of_a = Membership { cluster: a, other: None, resync: false };
        let serve = |gateway, at_least| tables.serve(GatewayId::new(gateway), of_a, at_least);
        assert!(serve(1, 0) && serve(1, 7) && !serve(1, 8));
        assert!(!serve(2, 0) && !serve(3, 0) && !serve(4, 0), "other clusters, or no gateway");
        tables.reading.send_replace(Reading::Failed);
        assert!(!serve(1, 0));
    }

    #[tokio::test]
    async fn slots_without_tables_are_removed() {
        let snapshots = Snapshots::default();
        let key = |cluster| (ClusterId::new(cluster), None);
        let tables = Arc::new(tables(&snapshots, 7, &[]));
        *snapshots.slot(key(1)).lock().await = Arc::downgrade(&tables);
        snapshots.slot(key(2));
        let in_use = snapshots.slot(key(3));
        snapshots.slot(key(4));
        assert_eq!(snapshots.slots().keys().copied().collect::<Vec<_>>(), [key(1), key(3), key(4)]);
        drop((tables, in_use));
        snapshots.slot(key(1));
        assert_eq!(snapshots.slots().len(), 1);
    }
}
