//! The metrics of a part of a node, such as its role: the interface by which the node's metrics contain them. This
//! file changes when metrics are registered in another form.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics that a part of a node adds to those of the node.
pub trait MetricSource: Send + Sync {
    /// Registers the metrics with their current values.
    fn register(&self, registry: &mut Registry);
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub reason: String,
}

/// Registers a number that can rise and fall.
pub fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}

/// A number that only rises.
#[must_use]
pub fn counter(value: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(value);
    counter
}
