//! The copies of sessions as operators see them: the local API and metrics. This file changes when they need another figure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::Serialize;
use sluice_agent::metric_source::{MetricSource, counter, gauge};
use sluice_nat_sync::Counters;
use sluice_types::{GatewayId, Vni};

use crate::nat::log::Owners;

/// What this gateway has of a NAT gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copy {
    /// The VPC.
    pub vni: Vni,
    /// The vIP whose owner translates.
    pub vip: Option<IpAddr>,
    /// That owner; `None` if it is not known.
    pub owner: Option<GatewayId>,
    /// This gateway is the owner.
    pub is_own: bool,
    /// This gateway has all sessions, as the owner or as copies.
    pub complete: bool,
}

/// Counters since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncCounts {
    /// Datagrams and their bytes.
    pub sent: u64,
    pub bytes_sent: u64,
    pub received: u64,
    pub bytes_received: u64,
    /// Sessions in datagrams that were sent, repetitions included.
    pub sessions_sent: u64,
    /// Datagrams refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Messages not sent because no key is valid.
    pub send_no_key: u64,
    /// Messages not sent because the gateway has no address of a common address family.
    pub unreachable: u64,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct SyncStatus {
    /// By VNI.
    pub copies: Vec<Copy>,
    /// For which NAT gateways this gateway translates; `None` until that is known. The same map until that changes.
    pub owners: Option<Arc<Owners>>,
    /// Another gateway has copies of all sessions.
    pub has_heir: bool,
    pub counts: SyncCounts,
    /// What was done with sessions that came, and passes.
    pub sessions: Counters,
}

/// What `GET /nat/copies` answers.
#[derive(Debug, Serialize)]
pub struct CopiesView {
    copies: Vec<Copy>,
    /// Another gateway has copies of all sessions, so none ends if this one dies.
    has_heir: bool,
}

impl SyncStatus {
    /// For the local API.
    #[must_use]
    pub fn view(&self) -> CopiesView {
        CopiesView { copies: self.copies.clone(), has_heir: self.has_heir }
    }

    /// Whether sessions of NAT gateways that this gateway owns would end if it died.
    #[must_use]
    pub fn is_unprotected(&self) -> bool {
        !self.has_heir && self.copies.iter().any(|copy| copy.is_own)
    }
}

pub(in crate::nat) fn lock(status: &Mutex<SyncStatus>) -> MutexGuard<'_, SyncStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Registers the metrics.
#[derive(Clone)]
pub struct SyncMetrics(pub(super) Arc<Mutex<SyncStatus>>);

impl MetricSource for SyncMetrics {
    fn register(&self, registry: &mut Registry) {
        let status = lock(&self.0).clone();
        let SyncStatus { copies, counts, sessions, .. } = &status;
        let number =
            |is_counted: fn(&Copy) -> bool| copies.iter().filter(|copy| is_counted(copy)).count() as u64;
        for (name, help, value) in [
            (
                "nat_gateways_owned",
                "NAT gateways that this gateway translates for",
                number(|copy| copy.is_own),
            ),
            (
                "nat_copies_complete",
                "NAT gateways of other gateways of which this one has copies of all sessions",
                number(|copy| !copy.is_own && copy.complete),
            ),
            (
                "nat_copies_incomplete",
                "NAT gateways of other gateways of which this one lacks copies of sessions",
                number(|copy| !copy.is_own && !copy.complete),
            ),
            (
                "nat_gateways_unprotected",
                "NAT gateways that this gateway translates for while no other one has copies of all sessions",
                if status.is_unprotected() { number(|copy| copy.is_own) } else { 0 },
            ),
        ] {
            gauge(registry, name, help, value);
        }
        let refused = Family::<ReasonLabel, Counter>::default();
        for (reason, number) in &counts.refused {
            refused.get_or_create(&ReasonLabel { reason }).inc_by(*number);
        }
        registry.register("nat_sync_refused", "Datagrams with copies refused, by reason", refused);
        for (name, help, value) in [
            ("nat_sync_sent", "Datagrams sent to copy sessions", counts.sent),
            ("nat_sync_sent_bytes", "Bytes of these", counts.bytes_sent),
            ("nat_sync_received", "Datagrams accepted", counts.received),
            ("nat_sync_received_bytes", "Bytes of these", counts.bytes_received),
            ("nat_sync_send_no_key", "Messages not sent because no key is valid", counts.send_no_key),
            ("nat_sync_unreachable", "Messages to gateways without a common family", counts.unreachable),
            ("nat_sync_sessions_sent", "Sessions sent, repetitions included", counts.sessions_sent),
            ("nat_sync_sessions_installed", "Sessions that came and are in the table", sessions.installed),
            (
                "nat_sync_sessions_later",
                "Sessions that came when the table could not have them",
                sessions.later,
            ),
            (
                "nat_sync_sessions_full",
                "Sessions that came and for which the table had no room",
                sessions.full,
            ),
            (
                "nat_sync_sessions_refused",
                "Sessions that came and whose port belonged to another VM",
                sessions.refused,
            ),
            (
                "nat_sync_passes_sent",
                "Passes over all sessions that another gateway has received",
                sessions.passes_sent,
            ),
            ("nat_sync_passes_received", "Such passes of other gateways", sessions.passes_received),
        ] {
            registry.register(name, help, counter(value));
        }
    }
}
