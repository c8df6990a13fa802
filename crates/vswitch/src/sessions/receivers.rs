//! Receivers on other hosts, as far as the review of sessions needs their identities: what this host knows, and questions about
//! others. Whether a question is sent, and when, `crates/vswitch/src/remote_identities.rs` decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sluice_agent::error_chain;
use sluice_datapath::RemoteIdentities as Map;
use sluice_rsp::Destination;
use sluice_types::Vni;
use tokio::sync::mpsc;

/// How long sessions wait for the identity of a receiver after the question, which usually takes a few milliseconds. A revoked
/// rule must end its sessions soon, and an instance that no gateway knows is never answered for.
const WAIT: Duration = Duration::from_millis(60);
/// Questions that may wait for the identity client. The next review repeats those for which there is no room.
const QUESTIONS_MAX: usize = 16_384;
/// Receivers of one network that are asked for after a review: half of what the client asks for until the next one, so that a
/// network with many does not delay the packets and sessions of others.
const NETWORK_MAX: usize = 256;

/// What a host knows of them, or is about to.
pub struct Receivers {
    identity_of: Box<dyn Fn(Destination) -> Option<u16> + Send>,
    questions: mpsc::Sender<Destination>,
    /// Receivers that sessions wait for, and when each was asked for.
    asked: BTreeMap<Destination, Instant>,
    /// Whether the last review has found receivers to wait for.
    is_waiting: bool,
}

impl Receivers {
    /// Receivers whose identities a function knows; and the questions about others.
    pub fn new(
        identity_of: impl Fn(Destination) -> Option<u16> + Send + 'static,
    ) -> (Self, mpsc::Receiver<Destination>) {
        let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
        (
            Self { identity_of: Box::new(identity_of), questions, asked: BTreeMap::new(), is_waiting: false },
            asked,
        )
    }

    /// Receivers whose identities the map of the packet programs has.
    pub fn of_map(map: Map) -> (Self, mpsc::Receiver<Destination>) {
        Self::new(move |Destination { vni, address }| match map.get(vni, address) {
            Ok(entry) => entry.map(|entry| entry.identity),
            Err(error) => {
                tracing::error!(error = error_chain(&error), "cannot read the identity of an instance");
                None
            }
        })
    }

    /// The identity of an instance; `None` if this host does not know it.
    pub fn identity_of(&self, receiver: Destination) -> Option<u16> {
        (self.identity_of)(receiver)
    }

    /// Whether sessions to a receiver that is not known go on until the next review.
    pub fn may_wait(&self, receiver: Destination) -> bool {
        self.asked.get(&receiver).is_none_or(|asked| asked.elapsed() < WAIT)
    }

    /// Whether the last review has found some unknown, so that the next one may know more.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// A review has found these unknown, and others not any more.
    pub fn ask(&mut self, unknown: &BTreeSet<Destination>) {
        self.is_waiting = !unknown.is_empty();
        self.asked.retain(|receiver, _| unknown.contains(receiver));
        let mut of_network = BTreeMap::<Vni, usize>::new();
        for receiver in
            unknown.iter().filter(|receiver| !self.asked.contains_key(receiver)).copied().collect::<Vec<_>>()
        {
            let count = of_network.entry(receiver.vni).or_default();
            *count += 1;
            if *count <= NETWORK_MAX && self.questions.try_send(receiver).is_ok() {
                self.asked.insert(receiver, Instant::now());
            }
        }
    }
}
