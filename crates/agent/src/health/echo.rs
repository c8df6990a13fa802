//! Echo requests between nodes (`api/health.md`): their form, and which of them a node answers. Pure. This file changes
//! with the form.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// UDP port of the echo, unless a site configures another one. The port is not registered.
pub const HEALTH_PORT: u16 = 4802;
/// Length of the shortest datagram.
pub const ECHO_BYTES_MIN: usize = 24;
/// Length of the longest datagram: that of a jumbo frame.
pub const ECHO_BYTES_MAX: usize = 9188;
/// Most answers in a second, and at once.
const ANSWERS_PER_S: u64 = 1000;
/// The same for one node.
const ANSWERS_PER_S_OF_NODE: u64 = 20;
const MAGIC: [u8; 2] = *b"SH";
const VERSION: u8 = 1;
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
const NONCE_AT: usize = 8;

/// A number that only the receiver of a request can know.
pub type Nonce = [u8; 16];

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// To be answered.
    Request,
    /// The answer to the request with this nonce.
    Answer(Nonce),
}

/// A request of this length, which is limited to what a datagram may have.
#[must_use]
pub fn request(nonce: &Nonce, bytes: usize) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(bytes);
    datagram.extend(MAGIC);
    datagram.extend([VERSION, REQUEST, 0, 0, 0, 0]);
    datagram.extend(nonce);
    datagram.resize(bytes.clamp(ECHO_BYTES_MIN, ECHO_BYTES_MAX), 0);
    datagram
}

/// Makes the answer of a request: the same datagram, of the same length.
pub fn make_answer(request: &mut [u8]) {
    if let Some(kind) = request.get_mut(3) {
        *kind = ANSWER;
    }
}

/// Reads a datagram; `None` if it is neither a request nor an answer.
#[must_use]
pub fn parse(datagram: &[u8]) -> Option<Echo> {
    if datagram.len() > ECHO_BYTES_MAX || datagram.get(..3)? != [MAGIC[0], MAGIC[1], VERSION] {
        return None;
    }
    let nonce: Nonce = datagram.get(NONCE_AT..ECHO_BYTES_MIN)?.try_into().ok()?;
    match datagram[3] {
        REQUEST => Some(Echo::Request),
        ANSWER => Some(Echo::Answer(nonce)),
        _ => None,
    }
}

/// Answers that may be sent now.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    tokens: u64,
    filled_ms: u64,
}

impl Bucket {
    /// Adds what was gained until now at this rate, which is also the most at once.
    fn fill(&mut self, now_ms: u64, per_s: u64) {
        let passed_ms = now_ms.saturating_sub(self.filled_ms);
        let gained = passed_ms.saturating_mul(per_s) / 1000;
        if gained > 0 {
            self.tokens = self.tokens.saturating_add(gained).min(per_s);
            self.filled_ms = now_ms;
        }
    }
}

/// Decides which requests are answered: those of known nodes from the port of the echo, at most 20 a second of each and 1000
/// of all.
#[derive(Debug)]
pub struct Responder {
    port: u16,
    known: BTreeMap<IpAddr, Bucket>,
    all: Bucket,
    refused: u64,
}

impl Responder {
    /// For the echo on this port, which is the same on all nodes.
    #[must_use]
    pub fn new(port: u16) -> Self {
        Self { port, known: BTreeMap::new(), all: Bucket::default(), refused: 0 }
    }

    /// Sets the VTEPs of all nodes.
    pub fn set_known(&mut self, known: &BTreeSet<IpAddr>) {
        self.known.retain(|address, _| known.contains(address));
        for address in known {
            self.known.entry(*address).or_default();
        }
    }

    /// Whether a request of a node is answered. What is refused is counted.
    pub fn admits(&mut self, now_ms: u64, from: SocketAddr) -> bool {
        self.all.fill(now_ms, ANSWERS_PER_S);
        let own = self.known.get_mut(&from.ip()).filter(|_| from.port() == self.port);
        let Some(own) = own.filter(|_| self.all.tokens > 0) else {
            self.refused += 1;
            return false;
        };
        own.fill(now_ms, ANSWERS_PER_S_OF_NODE);
        if own.tokens == 0 {
            self.refused += 1;
            return false;
        }
        own.tokens -= 1;
        self.all.tokens -= 1;
        true
    }

    /// Requests that were not answered.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_answer_has_the_nonce_and_the_length_of_its_request() {
        let nonce: Nonce = std::array::from_fn(|at| at as u8);
        for (wanted, bytes) in [(0, 24), (24, 24), (1472, 1472), (60_000, ECHO_BYTES_MAX)] {
            let mut datagram = request(&nonce, wanted);
            assert_eq!((datagram.len(), parse(&datagram)), (bytes, Some(Echo::Request)));
            make_answer(&mut datagram);
            assert_eq!((datagram.len(), parse(&datagram)), (bytes, Some(Echo::Answer(nonce))));
        }
    }

    #[test]
    fn other_datagrams_are_neither() {
        let good = request(&[7; 16], 24);
        for at in 0..4 {
            let mut bad = good.clone();
            bad[at] = 9;
            assert_eq!(parse(&bad), None, "byte {at}");
        }
        assert!((0..24).all(|cut| parse(&good[..cut]).is_none()));
        assert_eq!(parse(&[&good[..], &[0; ECHO_BYTES_MAX]].concat()), None);
    }

    /// Catches answers to unknown nodes and to other programs, answers without a limit, and a node whose requests are not
    /// answered because another one sends many.
    #[test]
    fn known_nodes_are_answered_at_a_limited_rate() {
        let node = |last: u8| IpAddr::from([192, 0, 2, last]);
        let from = |last: u8| SocketAddr::new(node(last), HEALTH_PORT);
        let mut responder = Responder::new(HEALTH_PORT);
        let known: BTreeSet<IpAddr> = (1..=100).map(node).collect();
        responder.set_known(&known);
        assert!(!responder.admits(10_000, from(200)));
        assert!(!responder.admits(10_000, SocketAddr::new(node(1), 5000)));
        let mut answered =
            |now_ms, last| (0..50).filter(|_| responder.admits(now_ms, from(last))).count() as u64;
        assert_eq!(answered(10_000, 1), ANSWERS_PER_S_OF_NODE);
        assert_eq!([answered(10_000, 1), answered(10_000, 2), answered(10_100, 1)], [0, 20, 2]);
        // Those of all nodes at once.
        assert_eq!((1..=100).map(|last| answered(20_000, last)).sum::<u64>(), ANSWERS_PER_S);
        assert_eq!(responder.refused(), 2 + 50 * 104 - 20 - 20 - 2 - ANSWERS_PER_S);
        // The view of the nodes is renewed often, which fills no bucket.
        assert!(responder.admits(20_500, from(1)));
        responder.set_known(&known);
        assert_eq!((0..50).filter(|_| responder.admits(20_500, from(1))).count(), 9);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(datagram in prop::collection::vec(any::<u8>(), 0..1500)) {
            let _ = parse(&datagram);
        }

        /// Most bytes are no echo; these begin as one.
        #[test]
        fn a_datagram_is_read_if_it_has_a_known_kind_and_a_nonce(
            kind in 0..=ANSWER + 1,
            rest in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let datagram = [&MAGIC[..], &[VERSION, kind], &rest[..]].concat();
            let nonce: Option<Nonce> =
                datagram.get(NONCE_AT..ECHO_BYTES_MIN).and_then(|nonce| nonce.try_into().ok());
            let expected = match (kind, nonce) {
                (REQUEST, Some(_)) => Some(Echo::Request),
                (ANSWER, Some(nonce)) => Some(Echo::Answer(nonce)),
                _ => None,
            };
            prop_assert_eq!(parse(&datagram), expected);
        }

        #[test]
        fn an_echo_is_read_as_it_was_made(nonce in any::<Nonce>(), wanted in 0..2 * ECHO_BYTES_MAX) {
            let mut datagram = request(&nonce, wanted);
            prop_assert_eq!(datagram.len(), wanted.clamp(ECHO_BYTES_MIN, ECHO_BYTES_MAX));
            prop_assert_eq!(parse(&datagram), Some(Echo::Request));
            make_answer(&mut datagram);
            prop_assert_eq!(parse(&datagram), Some(Echo::Answer(nonce)));
        }
    }
}
