//! Receivers on other hosts, as far as the review of sessions needs their identities: what this host knows, and questions about
//! others. Whether a question is sent, and when, `crates/vswitch/src/remote_identities.rs` decides.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use sluice_agent::error_chain;
use sluice_datapath::RemoteIdentities as Map;
use sluice_rsp::Destination;
use tokio::sync::mpsc;

/// How long sessions wait for the identities of their receivers, which usually takes a few milliseconds. A revoked rule must
/// end its sessions soon, and an instance that no gateway knows is never answered for.
const WAIT: Duration = Duration::from_millis(60);
/// Questions that may wait for the identity client. The next review repeats those for which there is no room.
const QUESTIONS_MAX: usize = 16_384;

/// What a host knows of them, or is about to.
pub struct Receivers {
    identity_of: Box<dyn Fn(Destination) -> Option<u16> + Send>,
    questions: mpsc::Sender<Destination>,
    /// Until when sessions wait for answers; `None`: none waits.
    until: Option<Instant>,
}

impl Receivers {
    /// Receivers whose identities a function knows; and the questions about others.
    pub fn new(
        identity_of: impl Fn(Destination) -> Option<u16> + Send + 'static,
    ) -> (Self, mpsc::Receiver<Destination>) {
        let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
        (Self { identity_of: Box::new(identity_of), questions, until: None }, asked)
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

    /// Whether sessions whose receivers are not known may go on until the next review.
    pub fn may_wait(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    /// Whether a review has found some unknown, so that the next one may know more.
    pub fn is_waiting(&self) -> bool {
        self.until.is_some()
    }

    /// A review has found these unknown. Without any, the next one that does may wait for the whole time again.
    pub fn ask(&mut self, unknown: BTreeSet<Destination>) {
        if unknown.is_empty() {
            self.until = None;
            return;
        }
        self.until.get_or_insert_with(|| Instant::now() + WAIT);
        for receiver in unknown {
            if self.questions.try_send(receiver).is_err() {
                break;
            }
        }
    }
}
