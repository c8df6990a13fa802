//! What became of direct paths, for metrics.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_agent::metrics::{Source, counter, gauge};
use sluice_rsp::cache::Stats;

use crate::paths::Counts;

/// As it was last.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathStats {
    /// What the cache counts.
    pub cache: Stats,
    /// What the keeper counts.
    pub counts: Counts,
    /// Paths, and the most that there may be.
    pub fill: (usize, usize),
    /// Changes that the tables refused.
    pub refused: u64,
}

/// Registers it.
pub struct PathSource(pub Arc<Mutex<PathStats>>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WhyLabel {
    why: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

fn by_why(counts: &[(&'static str, u64)]) -> Family<WhyLabel, Counter> {
    let family = Family::<WhyLabel, Counter>::default();
    for (why, count) in counts {
        family.get_or_create(&WhyLabel { why }).inc_by(*count);
    }
    family
}

impl Source for PathSource {
    fn register(&self, registry: &mut Registry) {
        let PathStats { cache, counts, fill, refused } =
            *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        gauge(registry, "direct_paths", "Destinations reached without a gateway", number(fill.0));
        gauge(registry, "direct_paths_limit", "Most direct paths that this host keeps", number(fill.1));
        registry.register("paths_learned", "Direct paths to new destinations", counter(cache.learned));
        registry.register("paths_moved", "Direct paths that lead elsewhere now", counter(cache.moved));
        registry.register("paths_confirmed", "Answers that a path is right", counter(cache.confirmed));
        let removed = by_why(&[
            ("redirected", cache.redirected),
            ("withdrawn", cache.withdrawn),
            ("expired", cache.expired),
            ("idle", cache.idle),
            ("replaced", cache.replaced),
            ("network", counts.network),
            ("stray", counts.stray),
        ]);
        registry.register("paths_removed", "Direct paths given up, by reason", removed);
        let ignored = by_why(&[
            ("stale", cache.stale),
            ("late", cache.late),
            ("foreign", cache.foreign),
            ("other_cluster", cache.other_cluster),
            ("impossible", counts.impossible),
            ("unexpected", cache.unexpected),
            ("redirect_stale", cache.redirects_stale),
        ]);
        registry.register("path_messages_ignored", "What was said of paths to no effect, by reason", ignored);
        registry.register("path_questions", "Paths asked about", counter(cache.asked));
        registry.register(
            "path_questions_unanswered",
            "Paths asked about in vain",
            counter(cache.unanswered),
        );
        let late = counter(cache.rounds_full);
        registry.register("path_rounds_full", "Rounds in which not all paths due could be asked about", late);
        registry.register("paths_refused", "Changes of paths that the tables refused", counter(refused));
        let redirects = Family::<OutcomeLabel, Counter>::default();
        for (outcome, count) in [
            ("told", counts.redirects),
            ("repeated", counts.redirects_repeated),
            ("no_gateway", counts.redirects_unknown),
        ] {
            redirects.get_or_create(&OutcomeLabel { outcome }).inc_by(count);
        }
        registry.register("redirects", "Packets for who has left, by what came of it", redirects);
    }
}
