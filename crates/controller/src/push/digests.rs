//! Digests that nodes report, until the follower compares them with what was compiled.

use super::{Push, count};
use crate::compile::{Comparison, Intent, State};
use sluice_store::{NewEvent, NodeId};
use sluice_types::Digests;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two snapshots that verify the tables of a node. It doubles while they do not help.
const VERIFY: Duration = Duration::from_secs(2);
/// Longest such time.
const VERIFY_MAX: Duration = Duration::from_secs(600);

/// The tables of a node at a revision.
#[derive(Clone, Copy, Debug)]
pub struct DigestReport {
    /// The stream on which the report arrived.
    pub session: u64,
    /// The revision.
    pub revision: u64,
    /// What lookups find.
    pub digests: Digests,
}

/// The last report of each node that has not been compared.
#[derive(Debug, Default)]
pub struct DigestReports(Mutex<BTreeMap<NodeId, DigestReport>>);

impl DigestReports {
    /// Replaces the last report of a node.
    pub fn put(&self, node: NodeId, report: DigestReport) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node, report);
    }

    /// Forgets all reports: the follower starts again.
    pub fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes the reports whose revision was compiled.
    fn take(&self, compiled: u64) -> Vec<(NodeId, DigestReport)> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_compiled = |report: &DigestReport| report.revision <= compiled;
        let ready: Vec<_> = all.iter().filter(|(_, it)| is_compiled(it)).map(|(id, it)| (*id, *it)).collect();
        all.retain(|_, report| !is_compiled(report));
        ready
    }
}

/// When the tables of nodes were verified. If the digests still differ afterwards, the fault is not in the tables, and
/// more snapshots, for which gateways give their vIPs up, would only disturb.
#[derive(Debug, Default)]
pub struct Verifications(Mutex<BTreeMap<NodeId, (Instant, u32)>>);

impl Verifications {
    /// The digests of a node differ. Returns whether its tables are to be verified now.
    fn is_due(&self, node: NodeId, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((last, number)) = all.get_mut(&node) else {
            all.insert(node, (now, 0));
            return true;
        };
        let pause = VERIFY.saturating_mul(1 << (*number).min(16)).min(VERIFY_MAX);
        if now.duration_since(*last) < pause {
            return false;
        }
        (*last, *number) = (now, *number + 1);
        true
    }

    /// The digests of a node agree, or it was deleted.
    pub fn end(&self, node: NodeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&node);
    }
}

impl Push {
    /// Compares the reported digests with what was compiled. Nodes whose tables differ are sent a snapshot.
    pub(super) fn compare_digests(&self, state: &State, intent: &mut Intent) {
        for (node, report) in self.digests.take(state.revision()) {
            match intent.compare(state, node, report.revision, &report.digests) {
                Comparison::Equal => {
                    count(&self.counters.digests_equal);
                    self.verifications.end(node);
                }
                Comparison::Undecided => count(&self.counters.digests_undecided),
                Comparison::Different(shards) => {
                    count(&self.counters.digests_different);
                    let (revision, number) = (report.revision, shards.count_ones());
                    tracing::warn!(?node, revision, shards = number, "tables differ from what was compiled");
                    if self.verifications.is_due(node, Instant::now()) {
                        // A host has few entries: it names all that it repairs, also what came after its digests.
                        let is_host = matches!(node, NodeId::Host(_));
                        let named = if is_host { u64::MAX } else { shards };
                        self.hub.request_verification(node, report.session, named);
                    }
                }
            }
        }
    }
}

/// The event of a repair.
pub fn repair_event(node: NodeId, name: &str, revision: u64, differences: u64, named: &[String]) -> NewEvent {
    let first = named.first().map_or_else(String::new, |first| format!(": {first}"));
    let more = if differences > 1 { format!(", and {} more", differences - 1) } else { String::new() };
    let subject = match node {
        NodeId::Gateway(id) => id.to_string(),
        NodeId::Host(id) => id.to_string(),
    };
    NewEvent {
        kind: "tables_repaired".to_owned(),
        subject,
        text: format!("{differences} entries of {name} differed from what was compiled{first}{more}"),
        details: serde_json::json!({ "revision": revision, "differences": differences, "entries": named }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::GatewayId;

    /// Catches a snapshot after each digest while the digests never agree.
    #[test]
    fn verifications_that_do_not_help_become_rare() {
        let (all, begin) = (Verifications::default(), Instant::now());
        let gateway = |number| NodeId::Gateway(GatewayId::new(number));
        let at = |seconds| begin + Duration::from_secs(seconds);
        let due: Vec<u64> = (0..2_000).step_by(3).filter(|now| all.is_due(gateway(1), at(*now))).collect();
        assert_eq!(due, [0, 3, 9, 18, 36, 69, 135, 264, 522, 1_035, 1_635]);
        assert!(all.is_due(gateway(2), at(1_722)));
        all.end(gateway(1));
        assert!(all.is_due(gateway(1), at(1_723)));
    }
}
