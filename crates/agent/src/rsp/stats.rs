//! What was said and heard, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_rsp::{Message, Refusal};

use crate::metrics::{ReasonLabel, Source, counter, gauge};

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Host to gateway.
    Request,
    /// Gateway to host.
    Reply,
    /// Gateway to host, unasked.
    Notify,
    /// Host to host.
    Redirect,
}

impl Kind {
    const NAMES: [&'static str; 4] = ["request", "reply", "notify", "redirect"];

    /// Of a message.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        match message {
            Message::Request { .. } => Self::Request,
            Message::Reply { .. } => Self::Reply,
            Message::Notify { .. } => Self::Notify,
            Message::Redirect { .. } => Self::Redirect,
        }
    }
}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// There is no key that is valid now.
    NoKey,
    /// This node has no underlay address of the receiver's family.
    NoAddress,
    /// More packets wait for the socket than may.
    QueueFull,
    /// The way takes less than was thought; it is asked again.
    TooLong,
    /// The kernel refused: no route, say.
    Refused,
    /// No packet says this; an error of the sender's.
    Invalid,
}

impl Unsent {
    const NAMES: [&'static str; 6] = ["no_key", "no_address", "queue_full", "too_long", "refused", "invalid"];
}

/// Counters of packets, for metrics. Shared between the edge, which counts, and who reads.
#[derive(Debug, Default)]
pub struct RspStats {
    received: [AtomicU64; Kind::NAMES.len()],
    sent: [AtomicU64; Kind::NAMES.len()],
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
    pub(super) fn note_received(&self, kind: Kind) {
        self.received[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_sent(&self, kind: Kind) {
        self.sent[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_unsent(&self, why: Unsent) {
        self.unsent[why as usize].fetch_add(1, Ordering::Relaxed);
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

    /// Packets of a kind that were sent.
    #[must_use]
    pub fn sent(&self, kind: Kind) -> u64 {
        self.sent[kind as usize].load(Ordering::Relaxed)
    }

    /// Packets of a kind that were received and taken.
    #[must_use]
    pub fn received(&self, kind: Kind) -> u64 {
        self.received[kind as usize].load(Ordering::Relaxed)
    }

    /// Packets that were not sent.
    #[must_use]
    pub fn unsent(&self, why: Unsent) -> u64 {
        self.unsent[why as usize].load(Ordering::Relaxed)
    }

    /// Packets refused, by the refusal's name (`api/rsp.md`).
    #[must_use]
    pub fn refused(&self, name: &str) -> u64 {
        let number = Refusal::NAMES.iter().position(|known| *known == name);
        number.map_or(0, |number| self.refused[number].load(Ordering::Relaxed))
    }
}

impl Source for RspStats {
    fn register(&self, registry: &mut Registry) {
        let kinds = |counts: &[AtomicU64]| {
            let family = Family::<KindLabel, Counter>::default();
            for (kind, count) in Kind::NAMES.into_iter().zip(counts) {
                family.get_or_create(&KindLabel { kind }).inc_by(count.load(Ordering::Relaxed));
            }
            family
        };
        registry.register("rsp_received", "RSP packets taken, by kind", kinds(&self.received));
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
        gauge(registry, "rsp_senders", "Senders whose packets are told from replays", senders);
    }
}
