//! The log of compiled steps, which are encoded once for all nodes.
//!
//! There are no queues for single nodes: a stream is a position in this log. The log is bounded: a stream
//! that falls behind its start is sent a snapshot instead. The newest step is always kept, whatever its size,
//! because a bulk creation must reach the nodes that keep up.

use crate::compile::{Compiled, Gate, Membership, PortCounts, Target};
use bytes::Bytes;
use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{EncodedUpdate, MAX_ENTRIES, Update};
use sluice_store::NodeId;
use sluice_types::{ClusterId, GatewayId, HostId, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Most steps in the log.
pub const MAX_STEPS: usize = 65_536;
/// Most bytes of encoded entries in the log.
pub const MAX_BYTES: usize = 256 << 20;
/// Most steps that a stream takes at a time.
const TAKE: usize = 256;

/// One revision, ready to send.
#[derive(Debug, Default)]
pub struct Step {
    /// The revision.
    pub revision: u64,
    /// Id of its commit; 0 if it is not known.
    pub commit: u64,
    /// Encoded entries by target, in messages of at most [`MAX_ENTRIES`] entries.
    pub parts: BTreeMap<Target, Vec<Bytes>>,
    /// See [`Compiled::ports`].
    pub ports: HashMap<HostId, PortCounts>,
    /// See [`Compiled::clusters_by_vni`].
    pub clusters_by_vni: BTreeMap<Vni, BTreeSet<ClusterId>>,
    /// See [`Compiled::changed_keys`].
    pub changed_keys: BTreeSet<ClusterId>,
    /// See [`Compiled::resync`].
    pub resync: BTreeSet<Vni>,
    /// See [`Compiled::removed_nodes`].
    pub removed_nodes: Vec<NodeId>,
    /// See [`Compiled::memberships`].
    pub memberships: BTreeMap<GatewayId, Membership>,
    /// See [`Compiled::created`].
    pub created: usize,
    /// See [`Compiled::gates`].
    pub gates: Vec<Gate>,
    bytes: usize,
}

impl Step {
    /// Encodes the compiled entries. The commit is not known.
    pub fn new(compiled: Compiled) -> Self {
        let encode = |(target, update)| (target, encode(update));
        let parts: BTreeMap<_, _> = compiled.updates.into_iter().map(encode).collect();
        let bytes = parts.values().flatten().map(Bytes::len).sum();
        Self {
            revision: compiled.revision,
            commit: 0,
            parts,
            ports: compiled.ports,
            clusters_by_vni: compiled.clusters_by_vni,
            changed_keys: compiled.changed_keys,
            resync: compiled.resync,
            removed_nodes: compiled.removed_nodes,
            memberships: compiled.memberships,
            created: compiled.created,
            gates: compiled.gates,
            bytes,
        }
    }

    /// The step with the id of its commit.
    pub fn of_commit(self, commit: u64) -> Self {
        Self { commit, ..self }
    }
}

/// Encodes entries as messages of at most [`MAX_ENTRIES`] entries each.
pub fn encode(update: Update) -> Vec<Bytes> {
    let parts = split(update).into_iter();
    parts.map(|part| EncodedUpdate::encode_entries(&NodeUpdate::from(part))).collect()
}

/// Splits an update into updates of at most [`MAX_ENTRIES`] entries which, applied in order, have the same
/// effect.
fn split(mut update: Update) -> Vec<Update> {
    if update.entry_count() <= MAX_ENTRIES {
        return if update.is_empty() { Vec::new() } else { vec![update] };
    }
    let removes_unconfirmed = update.removes_unconfirmed;
    let empty = || Update { removes_unconfirmed, ..Update::default() };
    let mut parts = vec![empty()];
    let mut room = MAX_ENTRIES;
    macro_rules! cut {
        ($($field:ident)*) => {$(
            let mut entries = std::mem::take(&mut update.$field).into_iter();
            while entries.len() > 0 {
                if room == 0 {
                    parts.push(empty());
                    room = MAX_ENTRIES;
                }
                if let Some(part) = parts.last_mut() {
                    part.$field = entries.by_ref().take(room).collect();
                    room -= part.$field.len();
                }
            }
        )*};
    }
    cut!(vteps vips groups vrfs endpoints routes ports keys paths);
    if let Some(part) = parts.last_mut() {
        part.cluster = update.cluster;
    }
    cut!(removed_vteps removed_vips removed_groups removed_vnis removed_endpoints removed_routes removed_ports
        removed_paths);
    parts
}

#[derive(Debug, Default)]
struct Inner {
    /// The log contains all steps after this revision.
    floor: u64,
    steps: VecDeque<Arc<Step>>,
    bytes: usize,
}

/// The log of steps, shared by all streams.
#[derive(Debug)]
pub struct StepLog {
    inner: RwLock<Inner>,
    last: watch::Sender<u64>,
}

/// Sizes of the log, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fill {
    /// Number of steps, at most [`MAX_STEPS`].
    pub steps: usize,
    /// Encoded bytes, at most [`MAX_BYTES`] except for a single larger step.
    pub bytes: usize,
}

impl Default for StepLog {
    fn default() -> Self {
        Self { inner: RwLock::default(), last: watch::Sender::new(0) }
    }
}

impl StepLog {
    /// Empties the log. It then contains the steps after `floor`.
    pub fn reset(&self, floor: u64) {
        *self.inner.write().unwrap_or_else(PoisonError::into_inner) = Inner { floor, ..Inner::default() };
        self.last.send_replace(floor);
    }

    /// Appends the next revision.
    pub fn push(&self, step: Step) {
        let revision = step.revision;
        {
            let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
            inner.bytes += step.bytes;
            inner.steps.push_back(Arc::new(step));
            while inner.steps.len() > 1 && (inner.bytes > MAX_BYTES || inner.steps.len() > MAX_STEPS) {
                if let Some(gone) = inner.steps.pop_front() {
                    inner.bytes -= gone.bytes;
                    inner.floor = gone.revision;
                }
            }
        }
        self.last.send_replace(revision);
    }

    /// The first steps after a revision, oldest first, at most 256. `None` if the log does not contain
    /// all steps after that revision.
    pub fn after(&self, revision: u64) -> Option<Vec<Arc<Step>>> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        if revision < inner.floor {
            return None;
        }
        let start = inner.steps.partition_point(|step| step.revision <= revision);
        Some(inner.steps.range(start..).take(TAKE).cloned().collect())
    }

    /// Whether the log contains all steps after a revision.
    pub fn reaches(&self, revision: u64) -> bool {
        revision >= self.inner.read().unwrap_or_else(PoisonError::into_inner).floor
    }

    /// The revision of the last step, with notification of the next.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// The sizes of the log.
    pub fn fill(&self) -> Fill {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        Fill { steps: inner.steps.len(), bytes: inner.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_southbound::{EndpointKey, Vrf};

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    #[test]
    fn split_keeps_every_entry_in_order() {
        let count = 2 * MAX_ENTRIES as u32 + 5;
        let key = |i: u32| EndpointKey { vni: vni(1), ipv4: Some(i.into()), ipv6: None };
        let vrf = Vrf { vni: vni(1), mtu: 1430, router4: None, router6: None, group: None, elephant_kbps: 0 };
        let update = Update {
            vrfs: vec![vrf],
            removed_endpoints: (1..=count).map(key).collect(),
            removed_vnis: vec![vni(2)],
            ..Update::default()
        };
        let parts = split(update.clone());
        assert_eq!(parts.iter().map(Update::entry_count).collect::<Vec<_>>(), [16_384, 16_384, 7]);
        assert_eq!(parts[0].vrfs, [vrf]);
        let keys: Vec<_> = parts.iter().flat_map(|part| part.removed_endpoints.clone()).collect();
        assert_eq!(keys, update.removed_endpoints);
        assert!(split(Update::default()).is_empty());
    }

    #[test]
    fn stream_behind_the_log_needs_a_snapshot() {
        let log = StepLog::default();
        log.reset(10);
        for revision in [12, 15] {
            log.push(Step { revision, ..Step::default() });
        }
        let revisions = |after| log.after(after).map(|s| s.iter().map(|s| s.revision).collect::<Vec<_>>());
        assert_eq!(revisions(9), None);
        assert!(log.reaches(10) && !log.reaches(9));
        assert_eq!(revisions(10), Some(vec![12, 15]));
        assert_eq!(revisions(13), Some(vec![15]));
        assert_eq!(revisions(20), Some(vec![]));
        assert_eq!(*log.watch().borrow(), 15);
    }

    #[test]
    fn log_is_bounded_but_keeps_the_newest_step() {
        let log = StepLog::default();
        for revision in 1..=3 {
            log.push(Step { revision, bytes: MAX_BYTES, ..Step::default() });
        }
        assert_eq!(log.fill().steps, 1);
        assert!(log.after(1).is_none());
        assert_eq!(log.after(2).map(|steps| steps.len()), Some(1));
    }
}
