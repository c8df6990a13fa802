//! Metrics of sessions. This file changes with what the thread counts.

use std::sync::{Arc, Mutex};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_agent::metric_source::{MetricSource, counter, gauge};
use sluice_tables::sessions::Phase;

use super::{Status, lock};
use crate::scopes::Scopes;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PortLabel {
    interface: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FamilyLabel {
    family: &'static str,
}

/// Registers the metrics.
pub struct SessionMetrics {
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) scopes: Scopes,
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl MetricSource for SessionMetrics {
    fn register(&self, registry: &mut Registry) {
        let Status { usage, counters, reviews, revoked, review_time, by_port } = lock(&self.status).clone();
        let (live, slots) =
            (Family::<FamilyLabel, Gauge>::default(), Family::<FamilyLabel, Gauge>::default());
        let full = Family::<FamilyLabel, Counter>::default();
        for (family, usage) in ["ipv4", "ipv6"].into_iter().zip(usage) {
            let label = FamilyLabel { family };
            live.get_or_create(&label).set(number(usage.live));
            slots.get_or_create(&label).set(number(usage.slots));
            full.get_or_create(&label).inc_by(usage.full_events);
        }
        registry.register("sessions", "Sessions of all ports, as last swept", live);
        let help = "Slots of the session tables, of which two thirds can be used without refusals";
        registry.register("session_slots", help, slots);
        let help = "Sessions that were refused because the tables had no room";
        registry.register("sessions_full", help, full);
        let help = "Operations on sessions that were given up because other packets did the same";
        registry.register("session_busy", help, counter(counters.busy));
        let help = "Sessions that two packets began at the same moment, and of which one was ended";
        registry.register("session_duplicates", help, counter(counters.duplicates));
        let help = "Reviews of all sessions after changes of policies and ports";
        registry.register("session_reviews", help, counter(reviews));
        let help = "Sessions that were ended because the policy of their port does not permit them any more";
        registry.register("sessions_revoked", help, counter(revoked));
        let micros = u64::try_from(review_time.as_micros()).unwrap_or(u64::MAX);
        gauge(registry, "session_review_microseconds", "Time of the last review", micros);
        let help =
            "Most sessions of a port; sluice_drops_total{reason=\"session_limit\"} counts packets above it";
        gauge(registry, "port_sessions_limit", help, self.scopes.limit().into());
        let help = "Numbers of ports that have left, and whose sessions are being removed";
        gauge(registry, "session_scopes_retired", help, self.scopes.retired() as u64);
        let ports = Family::<PortLabel, Gauge>::default();
        for (number_of_port, owner) in self.scopes.map().given {
            let counts = by_port.get(&number_of_port).copied().unwrap_or_default();
            for (phase, count) in Phase::ALL.into_iter().zip(counts) {
                let label = PortLabel { interface: owner.ifname.to_string(), state: phase.name() };
                ports.get_or_create(&label).set(number(count));
            }
        }
        registry.register("port_sessions", "Sessions of each port, counted every 10 s", ports);
    }
}
