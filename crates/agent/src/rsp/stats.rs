//! Counters of RSP packets, as metrics. This file changes when a packet can be lost for another reason.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_rsp::{Message, Refusal};

use crate::metric_source::{MetricSource, ReasonLabel, counter, gauge};

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// From a host to a gateway.
    Request,
    /// From a gateway to a host, as the answer to a request.
    Reply,
    /// From a gateway to a host, unsolicited.
    Notify,
    /// From a gateway to a host that sends to another host what that one no longer has.
    Redirect,
    /// From a host to a gateway: another host sends to it what it no longer has.
    Stray,
    /// From a gateway to a host that other hosts are about to send to.
    Permit,
    /// From a host to a gateway, as the answer to a permit.
    Permitted,
    /// From a host to a gateway, or from a gateway to a host.
    Identify,
    /// The answer to it.
    Identity,
    /// From a host to a gateway: which paths have changed.
    Reconcile,
    /// From a gateway to a host, as the answer to it.
    Reconciled,
}

impl MessageKind {
    const NAMES: [&'static str; 11] = [
        "request",
        "reply",
        "notify",
        "redirect",
        "stray",
        "permit",
        "permitted",
        "identify",
        "identity",
        "reconcile",
        "reconciled",
    ];

    /// The kind of a message.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        match message {
            Message::Request { .. } => Self::Request,
            Message::Reply { .. } => Self::Reply,
            Message::Notify { .. } => Self::Notify,
            Message::Redirect { .. } => Self::Redirect,
            Message::Stray { .. } => Self::Stray,
            Message::Permit { .. } => Self::Permit,
            Message::Permitted { .. } => Self::Permitted,
            Message::Identify { .. } => Self::Identify,
            Message::Identity { .. } => Self::Identity,
            Message::Reconcile { .. } => Self::Reconcile,
            Message::Reconciled { .. } => Self::Reconciled,
        }
    }
}

/// Reason why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// No key of the receiver's cluster is valid now.
    NoKey,
    /// This node has no underlay address of the receiver's family.
    NoAddress,
    /// The queue of packets that wait for the socket is full.
    QueueFull,
    /// The packet is longer than the path MTU, which is queried again.
    TooLong,
    /// The kernel refused the packet, for example because there is no route.
    Refused,
    /// The message cannot be encoded: an error of the sender.
    Invalid,
}

impl Unsent {
    const NAMES: [&'static str; 6] = ["no_key", "no_address", "queue_full", "too_long", "refused", "invalid"];
}

/// Counters of packets, shared between the transport and the metrics.
#[derive(Debug, Default)]
pub struct RspStats {
    received: [AtomicU64; MessageKind::NAMES.len()],
    sent: [AtomicU64; MessageKind::NAMES.len()],
    unsent: [AtomicU64; Unsent::NAMES.len()],
    refused: [AtomicU64; Refusal::NAMES.len()],
    overflow: AtomicU64,
    senders: AtomicU64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl RspStats {
    pub(super) fn note_received(&self, kind: MessageKind) {
        self.received[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_sent(&self, kind: MessageKind) {
        self.sent[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_unsent(&self, reason: Unsent) {
        self.unsent[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_overflow(&self, datagrams: u64) {
        self.overflow.fetch_add(datagrams, Ordering::Relaxed);
    }

    pub(super) fn set_opener(&self, refused: &[u64; Refusal::NAMES.len()], senders: usize) {
        for (to, count) in self.refused.iter().zip(refused) {
            to.store(*count, Ordering::Relaxed);
        }
        self.senders.store(senders as u64, Ordering::Relaxed);
    }

    /// Number of packets of a kind that were sent.
    #[must_use]
    pub fn sent(&self, kind: MessageKind) -> u64 {
        self.sent[kind as usize].load(Ordering::Relaxed)
    }

    /// Number of packets of a kind that were received and accepted.
    #[must_use]
    pub fn received(&self, kind: MessageKind) -> u64 {
        self.received[kind as usize].load(Ordering::Relaxed)
    }

    /// Number of packets that were not sent for this reason.
    #[must_use]
    pub fn unsent(&self, reason: Unsent) -> u64 {
        self.unsent[reason as usize].load(Ordering::Relaxed)
    }

    /// Number of refused packets, by the name of the refusal (`api/rsp.md`).
    ///
    /// # Panics
    /// If there is no refusal with this name.
    #[must_use]
    pub fn refused(&self, name: &str) -> u64 {
        let number = Refusal::NAMES.iter().position(|known| *known == name);
        self.refused[number.expect("the name of a refusal")].load(Ordering::Relaxed)
    }
}

impl MetricSource for RspStats {
    fn register(&self, registry: &mut Registry) {
        let kinds = |counts: &[AtomicU64]| {
            let family = Family::<KindLabel, Counter>::default();
            for (kind, count) in MessageKind::NAMES.into_iter().zip(counts) {
                family.get_or_create(&KindLabel { kind }).inc_by(count.load(Ordering::Relaxed));
            }
            family
        };
        registry.register("rsp_received", "RSP packets accepted, by kind", kinds(&self.received));
        registry.register("rsp_sent", "RSP packets sent, by kind", kinds(&self.sent));
        let reasons = |named: &mut dyn Iterator<Item = (&str, &AtomicU64)>| {
            let family = Family::<ReasonLabel, Counter>::default();
            for (reason, count) in named {
                let label = ReasonLabel { reason: reason.to_owned() };
                family.get_or_create(&label).inc_by(count.load(Ordering::Relaxed));
            }
            family
        };
        let mut refusals = Refusal::NAMES.into_iter().zip(&self.refused).skip(1);
        registry.register("rsp_refused", "RSP packets refused, by reason", reasons(&mut refusals));
        let mut unsent = Unsent::NAMES.into_iter().zip(&self.unsent);
        registry.register("rsp_unsent", "RSP packets not sent, by reason", reasons(&mut unsent));
        let overflow = counter(self.overflow.load(Ordering::Relaxed));
        registry.register("rsp_overflow", "Datagrams lost because the RSP socket was full", overflow);
        let senders = self.senders.load(Ordering::Relaxed);
        gauge(registry, "rsp_senders", "Senders that are remembered to detect replayed packets", senders);
    }
}
