//! The reports of meters as operators see them: metrics. This file changes when they need another figure.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_agent::metric_source::{MetricSource, counter, gauge};

/// Counters since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareCounts {
    /// Meters of which other gateways report demand.
    pub shared_meters: u64,
    /// Datagrams sent and accepted.
    pub sent: u64,
    pub received: u64,
    /// Datagrams refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Reports not sent because no key is valid.
    pub send_no_key: u64,
    /// Reports not sent because the gateway has no address of a common address family.
    pub unreachable: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Registers the metrics.
#[derive(Clone)]
pub struct ShareMetrics(pub(super) Arc<Mutex<ShareCounts>>);

impl ShareMetrics {
    /// Sets the figures.
    pub(super) fn set(&self, counts: &ShareCounts) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(counts);
    }
}

impl MetricSource for ShareMetrics {
    fn register(&self, registry: &mut Registry) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        gauge(
            registry,
            "meters_shared",
            "Meters of which other gateways of the cluster report demand",
            counts.shared_meters,
        );
        let refused = Family::<ReasonLabel, Counter>::default();
        for (reason, number) in &counts.refused {
            refused.get_or_create(&ReasonLabel { reason }).inc_by(*number);
        }
        registry.register("meter_reports_refused", "Reports about meters refused, by reason", refused);
        for (name, help, value) in [
            ("meter_reports_sent", "Reports about meters sent to other gateways", counts.sent),
            ("meter_reports_received", "Reports about meters accepted", counts.received),
            ("meter_reports_send_no_key", "Reports not sent because no key is valid", counts.send_no_key),
            (
                "meter_reports_unreachable",
                "Reports to gateways without a common address family",
                counts.unreachable,
            ),
        ] {
            registry.register(name, help, counter(value));
        }
    }
}
