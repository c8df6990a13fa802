//! Metrics of interfaces that may be ports and are not. This file changes with what the guard counts.

use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_agent::metric_source::{MetricSource, gauge};

use crate::guard::GuardedView;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InterfaceLabel {
    interface: String,
}

/// The interfaces at the last review.
#[derive(Debug, Default)]
pub struct GuardMetrics(Mutex<Vec<GuardedView>>);

impl GuardMetrics {
    /// Replaces the values.
    pub fn set(&self, guarded: Vec<GuardedView>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = guarded;
    }
}

impl MetricSource for GuardMetrics {
    fn register(&self, registry: &mut Registry) {
        let guarded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = u64::try_from(guarded.len()).unwrap_or(u64::MAX);
        gauge(registry, "guarded_interfaces", "Interfaces that may be ports and are not", number);
        let dropped = Family::<InterfaceLabel, Counter>::default();
        for view in guarded.iter() {
            dropped.get_or_create(&InterfaceLabel { interface: view.ifname.clone() }).inc_by(view.dropped);
        }
        registry.register("guarded_drops", "Packets dropped because their interface is not a port", dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    #[test]
    fn drops_are_counted_by_interface() {
        let metrics = GuardMetrics::default();
        metrics.set(vec![GuardedView { ifname: "sl-1".to_owned(), named: true, dropped: 7 }]);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        for line in ["guarded_interfaces 1", "guarded_drops_total{interface=\"sl-1\"} 7"] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}
