//! The state of a gateway in its cluster, for the local API and metrics. This file changes when operators
//! need another figure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use sluice_agent::metric_source::{MetricSource, counter, gauge};
use sluice_types::{ClusterId, GatewayId};

/// State of a gateway in its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnershipStatus {
    /// The cluster; `None` before there is a plan.
    pub cluster: Option<ClusterId>,
    /// Revision of the current configuration.
    pub revision: u64,
    /// `ready`, `starting` or `isolated`; `None` before there is a plan.
    pub health: Option<&'static str>,
    /// State of the forwarding tables: `current`, `behind` or `partial`; `None` before there is a plan.
    pub tables: Option<&'static str>,
    /// Newest revision that the forwarding tables contain completely; 0 if entries may be missing.
    pub tables_revision: u64,
    /// Whether this gateway has copies of all sessions of NAT gateways that others own.
    pub copies: bool,
    /// vIPs that this gateway answers for.
    pub vips: Vec<IpAddr>,
    /// The other gateways, and whether this gateway receives their hellos.
    pub peers: BTreeMap<GatewayId, bool>,
    /// Whether the controller answers.
    pub controller: bool,
    /// Counters since the agent started.
    pub counts: OwnershipCounts,
}

/// Counters since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnershipCounts {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams received and accepted.
    pub received: u64,
    /// Datagrams refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Datagrams not sent because no key is valid.
    pub send_no_key: u64,
    /// Messages not sent because the gateway has no address of a common address family.
    pub unreachable: u64,
    /// Announcements of vIPs.
    pub announced: u64,
    /// vIPs taken over from gateways that failed.
    pub taken_over: u64,
    /// Gateways that were believed dead and were not.
    pub false_alarms: u64,
    /// Times that this agent did not run when it was due.
    pub pauses: u64,
    /// Times that this gateway was isolated: no gateway, no witness and no controller answered.
    pub isolated: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HealthLabel {
    health: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TablesLabel {
    tables: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PeerLabel {
    gateway: String,
}

/// The status, shared with the ownership thread. That thread updates it when it wakes up, at most every 50 ms,
/// or when the vIPs of this gateway change. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SharedOwnershipStatus(Arc<Mutex<OwnershipStatus>>);

impl SharedOwnershipStatus {
    /// The current status.
    #[must_use]
    pub fn get(&self) -> OwnershipStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets a new status without waiting. Returns false, and does not call `status`, while a reader holds the
    /// lock.
    pub(super) fn try_set(&self, status: impl FnOnce() -> OwnershipStatus) -> bool {
        match self.0.try_lock() {
            Ok(mut shared) => *shared = status(),
            Err(TryLockError::Poisoned(shared)) => *shared.into_inner() = status(),
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }
}

impl MetricSource for SharedOwnershipStatus {
    fn register(&self, registry: &mut Registry) {
        let status = self.get();
        let states = Family::<HealthLabel, Gauge>::default();
        for health in ["ready", "starting", "isolated"] {
            states.get_or_create(&HealthLabel { health }).set((status.health == Some(health)).into());
        }
        registry.register("cluster_health", "1 for the state of this gateway by its own judgment", states);
        let tables = Family::<TablesLabel, Gauge>::default();
        for name in ["current", "behind", "partial"] {
            tables.get_or_create(&TablesLabel { tables: name }).set((status.tables == Some(name)).into());
        }
        let help =
            "1 for the state of this gateway's forwarding tables, compared with those of the other gateways";
        registry.register("cluster_tables", help, tables);
        gauge(registry, "cluster_vips", "vIPs that this gateway answers for", status.vips.len() as u64);
        let reachable = Family::<PeerLabel, Gauge>::default();
        for (gateway, is_reachable) in &status.peers {
            let gateway = gateway.to_string();
            reachable.get_or_create(&PeerLabel { gateway }).set((*is_reachable).into());
        }
        let help = "1 while hellos of the other gateway are received";
        registry.register("cluster_peer_reachable", help, reachable);
        let controller = status.controller.into();
        gauge(registry, "cluster_controller_reachable", "1 while the controller answers", controller);
        let counts = status.counts;
        let refused = Family::<ReasonLabel, Counter>::default();
        for (reason, number) in counts.refused {
            refused.get_or_create(&ReasonLabel { reason }).inc_by(number);
        }
        registry.register("cluster_refused", "Datagrams of the cluster refused, by reason", refused);
        for (name, help, value) in [
            ("cluster_received", "Datagrams of the cluster accepted", counts.received),
            ("cluster_sent", "Datagrams sent to the cluster", counts.sent),
            ("cluster_send_no_key", "Datagrams not sent because no key is valid", counts.send_no_key),
            ("cluster_unreachable", "Messages to gateways without a common family", counts.unreachable),
            ("cluster_announcements", "Announcements of vIPs", counts.announced),
            ("cluster_takeovers", "vIPs taken over from gateways that failed", counts.taken_over),
            ("cluster_false_alarms", "Gateways believed dead that were not", counts.false_alarms),
            ("cluster_pauses", "Times that this agent did not run when it was due", counts.pauses),
            (
                "cluster_isolated",
                "Times that no gateway, no witness and no controller answered",
                counts.isolated,
            ),
        ] {
            registry.register(name, help, counter(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    /// Catches a metric that is registered under another name, or with the value of another counter.
    #[test]
    fn each_figure_has_its_metric() {
        let shared = SharedOwnershipStatus::default();
        let counts = OwnershipCounts {
            refused: BTreeMap::from([("unknown_key", 2)]),
            send_no_key: 3,
            taken_over: 4,
            isolated: 5,
            ..OwnershipCounts::default()
        };
        let status = OwnershipStatus {
            health: Some("isolated"),
            peers: BTreeMap::from([(GatewayId::new(2), true), (GatewayId::new(3), false)]),
            controller: true,
            counts,
            ..OwnershipStatus::default()
        };
        assert!(shared.try_set(|| status));
        let mut registry = Registry::default();
        shared.register(&mut registry);
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "cluster_health{health=\"isolated\"} 1",
            "cluster_health{health=\"ready\"} 0",
            "cluster_peer_reachable{gateway=\"gw-2\"} 1",
            "cluster_peer_reachable{gateway=\"gw-3\"} 0",
            "cluster_controller_reachable 1",
            "cluster_refused_total{reason=\"unknown_key\"} 2",
            "cluster_send_no_key_total 3",
            "cluster_takeovers_total 4",
            "cluster_isolated_total 5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}
