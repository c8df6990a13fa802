//! Digests that gateways report, until the follower compares them with what was compiled.

use super::{Push, count};
use crate::compile::{Comparison, Intent, State};
use sluice_store::{NewEvent, NodeId};
use sluice_types::{Digests, GatewayId};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The tables of a gateway at a revision.
#[derive(Clone, Copy, Debug)]
pub struct DigestReport {
    /// The stream on which the report arrived.
    pub session: u64,
    /// The revision.
    pub revision: u64,
    /// What lookups find.
    pub digests: Digests,
}

/// The last report of each gateway that has not been compared.
#[derive(Debug, Default)]
pub struct DigestReports(Mutex<BTreeMap<GatewayId, DigestReport>>);

impl DigestReports {
    /// Replaces the last report of a gateway.
    pub fn put(&self, gateway: GatewayId, report: DigestReport) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(gateway, report);
    }

    /// Forgets all reports: the follower starts again.
    pub fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes the reports whose revision was compiled.
    fn take(&self, compiled: u64) -> Vec<(GatewayId, DigestReport)> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_compiled = |report: &DigestReport| report.revision <= compiled;
        let ready: Vec<_> = all.iter().filter(|(_, it)| is_compiled(it)).map(|(id, it)| (*id, *it)).collect();
        all.retain(|_, report| !is_compiled(report));
        ready
    }
}

impl Push {
    /// Compares the reported digests with what was compiled. Gateways whose tables differ are sent a snapshot.
    pub(super) fn compare_digests(&self, state: &State, intent: &mut Intent) {
        for (gateway, report) in self.digests.take(state.revision()) {
            match intent.compare(state, gateway, report.revision, &report.digests) {
                Comparison::Equal => count(&self.counters.digests_equal),
                Comparison::Undecided => count(&self.counters.digests_undecided),
                Comparison::Different(shards) => {
                    count(&self.counters.digests_different);
                    let (revision, number) = (report.revision, shards.count_ones());
                    tracing::warn!(%gateway, revision, shards = number, "tables differ from what was compiled");
                    self.hub.request_verification(NodeId::Gateway(gateway), report.session, shards);
                }
            }
        }
    }
}

/// The event of a repair.
pub fn repair_event(
    gateway: GatewayId,
    node: &str,
    revision: u64,
    differences: u64,
    named: &[String],
) -> NewEvent {
    let first = named.first().map_or_else(String::new, |first| format!(": {first}"));
    let more = if differences > 1 { format!(", and {} more", differences - 1) } else { String::new() };
    NewEvent {
        kind: "tables_repaired".to_owned(),
        subject: gateway.to_string(),
        text: format!("{differences} entries of {node} differed from what was compiled{first}{more}"),
        details: serde_json::json!({ "revision": revision, "differences": differences, "entries": named }),
    }
}
