//! Metrics of RSP: what became of flow events, of path requests and of questions for identities. This file changes when an event
//! can end otherwise.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_agent::metric_source::{MetricSource, gauge};

use sluice_tables::CHANGES_MAX;

use crate::identities::Asked;

/// What became of a flow event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The sender's host is notified of a path.
    Notified,
    /// The sender's host was notified of this destination a moment ago.
    Repeated,
    /// There is no direct path: the destination is on a host of the other address family, on the sender's
    /// host, or in a network with a smaller MTU; or the sender's network does not offload flows; or the
    /// destination was removed.
    NoPath,
    /// The source was removed: it is on no host.
    NoSource,
    /// The tables were being changed, or a snapshot is not complete.
    Busy,
    /// Too many destinations were notified within the quiet time to remember another one.
    Full,
    /// The destination's host was asked to accept the sender's packets.
    Waiting,
    /// The destination's host does not confirm that it accepts the sender's packets.
    Unpermitted,
}

impl Outcome {
    const NAMES: [&'static str; 8] =
        ["notified", "repeated", "no_path", "no_source", "busy", "full", "waiting", "unpermitted"];
}

/// What a host was answered that asked which paths of a network have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciliation {
    /// No path has.
    Unchanged,
    /// These paths have.
    Changed,
    /// That is not known: too long ago.
    Unknown,
    /// Nothing: the host has no instance of the network, or knows of later changes than this gateway, whose tables may also be of no
    /// revision; or it asked for too much at once.
    Ignored,
}

impl Reconciliation {
    const NAMES: [&'static str; 4] = ["unchanged", "changed", "unknown", "ignored"];
}

/// Counters of offloading.
#[derive(Debug, Default)]
pub struct OffloadStats {
    outcomes: [AtomicU64; Outcome::NAMES.len()],
    requested: AtomicU64,
    reconciliations: [AtomicU64; Reconciliation::NAMES.len()],
    unexpected: AtomicU64,
    refused_targets: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
    permits: AtomicU64,
    changes: AtomicU64,
    identity_queries: [AtomicU64; IDENTITY_OUTCOMES.len()],
    identity_records: AtomicU64,
}

/// Labels of what becomes of a question for an identity.
const IDENTITY_OUTCOMES: [&str; 3] = ["answered", "waiting", "ignored"];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl OffloadStats {
    /// Counts a flow event.
    pub fn note(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts paths that a host requested.
    pub fn note_requested(&self, paths: usize) {
        self.requested.fetch_add(paths as u64, Ordering::Relaxed);
    }

    /// Counts a network of which a host asked which paths have changed.
    pub fn note_reconciliation(&self, outcome: Reconciliation) {
        self.reconciliations[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message of a kind that no host sends to a gateway.
    pub fn note_unexpected(&self) {
        self.unexpected.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts hosts that others named as targets of migrations and that are not accepted.
    pub fn note_refused_targets(&self, targets: usize) {
        self.refused_targets.fetch_add(targets as u64, Ordering::Relaxed);
    }

    /// Sets the number of events that were lost because the ring was full.
    pub fn set_lost(&self, events: u64) {
        self.lost.store(events, Ordering::Relaxed);
    }

    /// Sets the number of events that were refused because their VNI had used up its share of the ring.
    pub fn set_refused(&self, events: u64) {
        self.refused.store(events, Ordering::Relaxed);
    }

    /// Sets the number of permits that are remembered.
    pub fn set_permits(&self, permits: usize) {
        self.permits.store(permits as u64, Ordering::Relaxed);
    }

    /// Sets the number of changes of paths that are remembered.
    pub fn set_changes(&self, changes: usize) {
        self.changes.store(changes as u64, Ordering::Relaxed);
    }

    /// Counts a question for an identity.
    pub fn note_identity_query(&self, asked: Asked) {
        let outcome = match asked {
            Asked::Known(_) => 0,
            Asked::Waiting => 1,
            Asked::Ignored => 2,
        };
        self.identity_queries[outcome].fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the number of questions for identities that are remembered.
    pub fn set_identity_records(&self, records: usize) {
        self.identity_records.store(records as u64, Ordering::Relaxed);
    }

    /// Number of flow events with this outcome.
    #[cfg(test)]
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Number of networks with this answer.
    #[cfg(test)]
    pub fn reconciliations(&self, outcome: Reconciliation) -> u64 {
        self.reconciliations[outcome as usize].load(Ordering::Relaxed)
    }

    /// Number of paths that hosts requested.
    #[cfg(test)]
    pub fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }
}

impl MetricSource for OffloadStats {
    fn register(&self, registry: &mut Registry) {
        let events = Family::<OutcomeLabel, Counter>::default();
        for (outcome, count) in Outcome::NAMES.into_iter().zip(&self.outcomes) {
            events.get_or_create(&OutcomeLabel { outcome }).inc_by(count.load(Ordering::Relaxed));
        }
        let help = "Permits for hosts to send to each other that are remembered";
        gauge(registry, "rsp_permits", help, self.permits.load(Ordering::Relaxed));
        let help = "Changes of paths that are remembered for hosts that ask";
        gauge(registry, "path_changes_remembered", help, self.changes.load(Ordering::Relaxed));
        gauge(registry, "path_changes_remembered_limit", "Most of them", CHANGES_MAX as u64);
        let help = "Destinations whose identity was asked for within the last seconds";
        gauge(registry, "identity_records", help, self.identity_records.load(Ordering::Relaxed));
        let queries = Family::<OutcomeLabel, Counter>::default();
        for (outcome, count) in IDENTITY_OUTCOMES.into_iter().zip(&self.identity_queries) {
            queries.get_or_create(&OutcomeLabel { outcome }).inc_by(count.load(Ordering::Relaxed));
        }
        let help = "Identities of instances that hosts asked for, by outcome";
        registry.register("identity_queries", help, queries);
        let networks = Family::<OutcomeLabel, Counter>::default();
        for (outcome, count) in Reconciliation::NAMES.into_iter().zip(&self.reconciliations) {
            networks.get_or_create(&OutcomeLabel { outcome }).inc_by(count.load(Ordering::Relaxed));
        }
        let help = "Networks of which hosts asked which paths have changed, by outcome";
        registry.register("network_requests", help, networks);
        registry.register("flow_events", "Flows reported by the packet program, by outcome", events);
        for (name, help, count) in [
            ("flow_events_lost", "Flow events lost because the ring was full", &self.lost),
            (
                "flow_events_refused",
                "Flow events refused because their VNI had used up its share of the ring",
                &self.refused,
            ),
            ("rsp_unexpected", "RSP messages of a kind that hosts do not send to gateways", &self.unexpected),
            (
                "migration_targets_refused",
                "Hosts that others named as targets of migrations, and that are not accepted",
                &self.refused_targets,
            ),
            ("path_requests", "Paths requested by hosts", &self.requested),
        ] {
            registry.register(
                name,
                help,
                sluice_agent::metric_source::counter(count.load(Ordering::Relaxed)),
            );
        }
    }
}
