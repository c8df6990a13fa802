//! Metrics of direct paths, and of the events by which packet programs ask for them and report other things. This file changes with the counters of the path learner and its cache.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_agent::metric_source::{MetricSource, counter, gauge};
use sluice_rsp::cache::Stats;

use crate::path_learner::LearnerCounts;
use crate::permitted_senders::SENDERS_MAX;

/// The last values of the counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathStats {
    /// Counters of the cache.
    pub cache: Stats,
    /// Counters of the learner.
    pub counts: LearnerCounts,
    /// Number of paths, and its limit.
    pub fill: (usize, usize),
    /// Changes that the tables refused.
    pub refused: u64,
    /// Hosts that may send here directly, counted in each network.
    pub senders: usize,
    /// Permits that the tables refused.
    pub permits_refused: u64,
    /// Events of the packet programs that were lost, and those that were refused.
    pub events: (u64, u64),
    /// Reports of elephants that were ignored.
    pub elephants_refused: u64,
}

/// Registers the metrics.
pub struct PathMetrics(pub Arc<Mutex<PathStats>>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

fn by_reason(counts: &[(&'static str, u64)]) -> Family<ReasonLabel, Counter> {
    let family = Family::<ReasonLabel, Counter>::default();
    for (reason, count) in counts {
        family.get_or_create(&ReasonLabel { reason }).inc_by(*count);
    }
    family
}

/// Counters of what is asked by network.
fn of_networks(cache: &Stats) -> [(&'static str, &'static str, u64); 5] {
    [
        (
            "networks_requested",
            "Questions to gateways which paths of a network have changed",
            cache.networks_requested,
        ),
        ("networks_reconciled", "Answers to them with all changes", cache.networks_reconciled),
        ("path_changes", "Changes of paths in these answers", cache.changes),
        (
            "networks_unknown",
            "Answers to them that the gateway does not know the changes",
            cache.networks_unknown,
        ),
        (
            "networks_silent",
            "Networks whose paths were requested one by one because no gateway said what has changed",
            cache.networks_silent,
        ),
    ]
}

impl MetricSource for PathMetrics {
    fn register(&self, registry: &mut Registry) {
        let PathStats { cache, counts, fill, refused, senders, permits_refused, events, elephants_refused } =
            *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        gauge(registry, "direct_paths", "Destinations reached without a gateway", number(fill.0));
        gauge(registry, "direct_paths_limit", "Most direct paths that this host keeps", number(fill.1));
        let help = "Hosts that may send here directly, counted in each network";
        gauge(registry, "permitted_senders", help, number(senders));
        let help = "Most permitted senders";
        gauge(registry, "permitted_senders_limit", help, number(SENDERS_MAX));
        let counters = [
            ("paths_learned", "Direct paths learned for new destinations", cache.learned),
            ("paths_moved", "Direct paths changed because the destination moved", cache.moved),
            ("paths_confirmed", "Direct paths confirmed by a gateway", cache.confirmed),
            ("path_requests", "Paths requested from gateways", cache.requested),
            (
                "path_requests_unanswered",
                "Destinations whose path requests stayed unanswered",
                cache.unanswered,
            ),
            ("path_rounds_full", "Rounds in which not all due paths could be requested", cache.rounds_full),
            ("paths_refused", "Changes of direct paths that the tables refused", refused),
            (
                "permits_refused",
                "Permits for other hosts' packets that were ignored, or that the tables refused",
                permits_refused + counts.permits_refused,
            ),
        ];
        let (lost, refused) = events;
        let of_events = [
            ("events_lost", "Events of packet programs lost because a ring or a budget was full", lost),
            (
                "events_refused",
                "Events refused because their network or port had used up its share of a ring",
                refused,
            ),
        ];
        let help = "Reports of elephants ignored because too many destinations are watched, of all networks or of theirs";
        registry.register("elephants_refused", help, counter(elephants_refused));
        for (name, help, value) in counters.into_iter().chain(of_networks(&cache)).chain(of_events) {
            registry.register(name, help, counter(value));
        }
        let removed = by_reason(&[
            ("redirected", cache.redirected),
            ("withdrawn", cache.withdrawn),
            ("expired", cache.expired),
            ("idle", cache.idle),
            ("replaced", cache.replaced),
            ("network", counts.network),
            ("orphaned", counts.orphaned),
        ]);
        registry.register("paths_removed", "Direct paths removed, by reason", removed);
        let ignored = by_reason(&[
            ("stale", cache.stale),
            ("late", cache.late),
            ("foreign", cache.foreign),
            ("other_cluster", cache.other_cluster),
            ("impossible", counts.impossible),
            ("unexpected", cache.unexpected),
            ("redirect_stale", cache.redirects_stale),
        ]);
        registry.register("path_messages_ignored", "Entries of RSP messages ignored, by reason", ignored);
        let redirects = Family::<OutcomeLabel, Counter>::default();
        for (outcome, count) in [
            ("notified", counts.redirects),
            ("repeated", counts.redirects_repeated),
            ("no_gateway", counts.redirects_unknown),
        ] {
            redirects.get_or_create(&OutcomeLabel { outcome }).inc_by(count);
        }
        registry.register("redirects", "Stray packets for instances that have left, by outcome", redirects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    /// Catches a counter that is registered under another name or label, or not at all.
    #[test]
    fn each_counter_has_its_metric() {
        let cache = Stats { requested: 5, unanswered: 6, redirected: 7, late: 8, ..Stats::default() };
        let counts =
            LearnerCounts { redirects: 9, impossible: 10, permits_refused: 14, ..LearnerCounts::default() };
        let stats = PathStats {
            cache,
            counts,
            fill: (11, 12),
            refused: 13,
            senders: 16,
            permits_refused: 15,
            events: (17, 18),
            elephants_refused: 19,
        };
        let mut registry = Registry::default();
        PathMetrics(Arc::new(Mutex::new(stats))).register(&mut registry);
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "path_requests_total 5",
            "path_requests_unanswered_total 6",
            "paths_removed_total{reason=\"redirected\"} 7",
            "path_messages_ignored_total{reason=\"late\"} 8",
            "redirects_total{outcome=\"notified\"} 9",
            "path_messages_ignored_total{reason=\"impossible\"} 10",
            "direct_paths 11",
            "direct_paths_limit 12",
            "paths_refused_total 13",
            "permits_refused_total 29",
            "permitted_senders 16",
            "permitted_senders_limit 65536",
            "events_lost_total 17",
            "events_refused_total 18",
            "elephants_refused_total 19",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}
