//! What operator and metrics see of a gateway's part in its cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_agent::metrics::Source;

use super::driver::Status;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StandingLabel {
    standing: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PeerLabel {
    gateway: String,
}

/// The status, at most 50 ms old. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct View(Arc<Mutex<Status>>);

impl View {
    /// As it is.
    #[must_use]
    pub fn get(&self) -> Status {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a new one; false, and it is not made, while somebody reads.
    pub(super) fn offer(&self, status: impl FnOnce() -> Status) -> bool {
        match self.0.try_lock() {
            Ok(mut shown) => *shown = status(),
            Err(TryLockError::Poisoned(shown)) => *shown.into_inner() = status(),
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }
}

fn gauge(value: usize) -> Gauge {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    gauge
}

fn counter(value: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(value);
    counter
}

impl Source for View {
    fn register(&self, registry: &mut Registry) {
        let status = self.get();
        let standings = Family::<StandingLabel, Gauge>::default();
        for standing in ["fit", "listening", "cut_off"] {
            let is = status.standing == Some(standing);
            standings.get_or_create(&StandingLabel { standing }).set(is.into());
        }
        registry.register("cluster_standing", "1 for what this gateway thinks of itself", standings);
        registry.register("cluster_vips", "vIPs that this gateway answers for", gauge(status.vips.len()));
        let heard = Family::<PeerLabel, Gauge>::default();
        for (gateway, is_heard) in &status.peers {
            let gateway = gateway.to_string();
            heard.get_or_create(&PeerLabel { gateway }).set((*is_heard).into());
        }
        registry.register("cluster_peer_heard", "1 while the other gateway is heard", heard);
        let controller = gauge(status.controller.into());
        registry.register("cluster_controller_heard", "1 while the controller answers", controller);
        let counts = status.counts;
        let refused = Family::<ReasonLabel, Counter>::default();
        let reasons: BTreeMap<&'static str, u64> = counts.refused;
        for (reason, number) in reasons {
            refused.get_or_create(&ReasonLabel { reason }).inc_by(number);
        }
        registry.register("cluster_refused", "Datagrams of the cluster that were not taken", refused);
        for (name, help, value) in [
            ("cluster_received", "Datagrams of the cluster that were taken", counts.received),
            ("cluster_sent", "Datagrams sent to the cluster", counts.sent),
            ("cluster_unsealed", "Datagrams not sent for want of a valid key", counts.unsealed),
            ("cluster_unreachable", "Messages for gateways without a common family", counts.unreachable),
            ("cluster_announcements", "Announcements of vIPs", counts.announced),
            ("cluster_takeovers", "vIPs taken over from gateways that failed", counts.taken_over),
            ("cluster_false_alarms", "Gateways believed dead that were not", counts.false_alarms),
            ("cluster_pauses", "Times that this machine did not run its agent in time", counts.pauses),
            ("cluster_cut_off", "Times that nobody answered this gateway", counts.cut_off),
        ] {
            registry.register(name, help, counter(value));
        }
    }
}
