//! What a gateway tells hosts of direct paths: unasked, of the elephants that it
//! saw (Zeta section IV-C), and when asked. Pure: the tables are read, and who is
//! to be told what comes out.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_agent::metrics::Source;
use sluice_agent::rsp::{Admission, Batch};
use sluice_datapath::FlowEvent;
use sluice_rsp::{Answered, Ask, Destination, Message, Path};
use sluice_tables::{Located, Place, Reader};

/// How long a host may use a path that no gateway confirms.
const LIFETIME_MS: u32 = 60_000;
/// A host is told the same of a destination once in this time.
const QUIET_US: u64 = 100_000;
/// What is told within this time goes together.
const GATHER_US: u64 = 1_000;
/// What was told is remembered of so many destinations.
const MEMORY_MAX: usize = 65_536;

/// Whether a host can send to a destination without the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct(Path),
    /// The gateway is the way.
    Gateway,
    /// The tables cannot say at present.
    Unknown,
}

/// The way of the host at `from` to a destination. `revision` was read from the tables before: the path is
/// at least as new.
fn way(reader: &Reader, revision: u64, from: IpAddr, destination: &Destination) -> Way {
    // While a first snapshot is under way the tables are of no revision, and not whole.
    if revision == 0 {
        return Way::Unknown;
    }
    let there = match reader.locate(destination.vni, destination.address) {
        Place::At(there) => there,
        Place::Nowhere => return Way::Gateway,
        Place::Busy => return Way::Unknown,
    };
    // Networks that want their packets to pass gateways get back what was told before.
    if !reader.is_offloaded(destination.vni) {
        return Way::Gateway;
    }
    let Located { vni, mac, host, mtu } = there;
    // Hosts do not know of others' MTUs: it is the gateway that says what is too big for a peer.
    let fits = reader.mtu(destination.vni).is_some_and(|own| own <= mtu);
    if host.is_ipv4() != from.is_ipv4() || host == from || !fits {
        return Way::Gateway;
    }
    Way::Direct(Path { host, mac, vni, lifetime_ms: LIFETIME_MS, revision })
}

/// What came of events and questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The sender's host is told of a path.
    Told,
    /// It was told a moment ago.
    Repeated,
    /// There is no direct path: the destination is on a host of another family, on the sender's own, or in
    /// a network of a smaller MTU; the sender's network wants none; or the destination is gone.
    NoPath,
    /// No host has the source: it is gone.
    NoSource,
    /// The tables were being changed, or are not whole yet.
    Busy,
    /// More destinations than are remembered.
    Full,
}

impl Outcome {
    const NAMES: [&'static str; 6] = ["told", "repeated", "no_path", "no_source", "busy", "full"];
}

/// Counters, for metrics.
#[derive(Debug, Default)]
pub struct OffloadStats {
    outcomes: [AtomicU64; Outcome::NAMES.len()],
    asked: AtomicU64,
    unexpected: AtomicU64,
    lost: AtomicU64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl OffloadStats {
    fn note(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A message came that only hosts get.
    pub fn note_unexpected(&self) {
        self.unexpected.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes how many events found the ring full.
    pub fn set_lost(&self, events: u64) {
        self.lost.store(events, Ordering::Relaxed);
    }

    #[cfg(test)]
    fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }
}

impl Source for OffloadStats {
    fn register(&self, registry: &mut Registry) {
        let events = Family::<OutcomeLabel, Counter>::default();
        for (outcome, count) in Outcome::NAMES.into_iter().zip(&self.outcomes) {
            events.get_or_create(&OutcomeLabel { outcome }).inc_by(count.load(Ordering::Relaxed));
        }
        registry.register("flow_events", "Flows reported for a direct path, by what came of it", events);
        let counter = |count: &AtomicU64| sluice_agent::metrics::counter(count.load(Ordering::Relaxed));
        registry.register("flow_events_lost", "Flow events that found the ring full", counter(&self.lost));
        let unexpected = counter(&self.unexpected);
        registry.register("rsp_unexpected", "Messages that only hosts get", unexpected);
        registry.register("path_questions", "Paths that hosts asked for", counter(&self.asked));
    }
}

/// Gathers what hosts are to be told.
#[derive(Debug)]
pub struct Notifier {
    batch: Batch<IpAddr, Destination, Answered>,
}

impl Notifier {
    /// With nothing to tell.
    pub fn new() -> Self {
        Self { batch: Batch::new(QUIET_US, GATHER_US, MEMORY_MAX) }
    }

    /// Takes note of an elephant. `now_us` is of a clock that does not jump; `revision` as the reader said
    /// before.
    pub fn note(
        &mut self,
        now_us: u64,
        reader: &Reader,
        revision: u64,
        elephant: &FlowEvent,
        stats: &OffloadStats,
    ) -> Outcome {
        let outcome = self.admit(now_us, reader, revision, elephant);
        stats.note(outcome);
        outcome
    }

    fn admit(&mut self, now_us: u64, reader: &Reader, revision: u64, elephant: &FlowEvent) -> Outcome {
        // Who sends is not whom the packet came from: that may be a host which the destination has left,
        // and which encapsulates with the destination's network.
        let sender = match reader.locate(elephant.vni, elephant.source) {
            Place::At(sender) => sender,
            Place::Nowhere => return Outcome::NoSource,
            Place::Busy => return Outcome::Busy,
        };
        let destination = Destination { vni: sender.vni, address: elephant.destination };
        let path = match way(reader, revision, sender.host, &destination) {
            Way::Direct(path) => path,
            Way::Gateway => return Outcome::NoPath,
            Way::Unknown => return Outcome::Busy,
        };
        match self.batch.admit(now_us, sender.host, destination) {
            Admission::New => {
                let answer = sluice_rsp::Answer::Path(path);
                self.batch.push(sender.host, Answered { destination, answer });
                Outcome::Told
            }
            Admission::Repeated => Outcome::Repeated,
            Admission::Full => Outcome::Full,
        }
    }

    /// When to send what has gathered; `None` while there is nothing.
    pub fn due_us(&self) -> Option<u64> {
        self.batch.due_us()
    }

    /// The messages, by the host that they are for.
    pub fn take(&mut self, now_us: u64) -> impl Iterator<Item = (IpAddr, Message)> + use<> {
        let notify = |(host, answers)| (host, Message::Notify { answers });
        self.batch.take(now_us).into_iter().map(notify)
    }
}

/// The answers to questions of the host at `from`. What the tables cannot say at present is left out: the
/// host asks again.
pub fn answer(
    reader: &Reader,
    revision: u64,
    from: IpAddr,
    asks: &[Ask],
    stats: &OffloadStats,
) -> impl Iterator<Item = Answered> {
    stats.asked.fetch_add(asks.len() as u64, Ordering::Relaxed);
    asks.iter().filter_map(move |ask| match way(reader, revision, from, &ask.destination) {
        Way::Direct(path) => Some(ask.answer(Some(&path), revision)),
        Way::Gateway => Some(ask.answer(None, revision)),
        Way::Unknown => None,
    })
}

#[cfg(test)]
#[path = "offload_tests.rs"]
mod tests;
