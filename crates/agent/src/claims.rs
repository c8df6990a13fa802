//! Claims: VMs have announced addresses that they may have in turn with others. The controller decides who holds an
//! address: the one that announced it last. A claim waits here until it does, over any number of streams. An announcement of
//! the holder is kept as well, because a claim that is older may reach the controller, or may have reached it, and takes
//! the address. This file changes when something else decides when a claim is sent.
//!
//! ```text
//!                 announced, not held              at most once a second
//!     (nothing) ---------------------> DUE ---------------------------------> SENT
//!      |  ^                             ^  ^                                   |
//!      |  |                             |  +---- announced again, or new stream -+
//!      |  |          no longer the holder
//!      |  |                             |
//!      +--|---- announced, held ----> HELD <-- from DUE and SENT: the VM holds the address
//!         +-- the VM may not have the address; 60 s after the last announcement
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use sluice_southbound::{AddressClaim, MAX_CLAIMS, ReportSender};
use sluice_types::InstanceId;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::Error;
use crate::metric_source::{MetricSource, counter, gauge};

/// Claims that may wait: more than the pairs of all VMs of a host. Without a bound, what VMs announce while no controller
/// answers would take any memory.
const WAITING_MAX: usize = 4 * MAX_CLAIMS;
/// Shortest time between two messages of the same claim.
const SPACING: Duration = Duration::from_secs(1);
/// A claim that was announced longer ago than this is forgotten: a VM that has the address announces it again.
const LIFETIME: Duration = Duration::from_secs(60);

/// An instance and the address that it announced.
type Key = (InstanceId, IpAddr);

#[derive(Debug)]
struct Waiting {
    announced: Instant,
    sent: Option<Instant>,
    is_held: bool,
    is_due: bool,
}

impl Waiting {
    /// When the claim may be sent; `None` if it need not be.
    fn due(&self, now: Instant) -> Option<Instant> {
        self.is_due.then(|| self.sent.map_or(now, |sent| sent + SPACING))
    }

    fn set_held(&mut self, is_held: bool) {
        self.is_due = !is_held && (self.is_due || self.is_held);
        self.is_held = is_held;
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<Key, Waiting>,
    /// Claims that were sent, and those for which there was no room.
    sent: u64,
    refused: u64,
}

impl State {
    fn announce(&mut self, key: Key, is_held: bool, announced: Instant, now: Instant) {
        if let Some(known) = self.waiting.get_mut(&key) {
            (known.announced, known.is_held, known.is_due) =
                (known.announced.max(announced), is_held, !is_held);
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            self.expire(now);
        }
        if self.waiting.len() >= WAITING_MAX {
            self.refused += 1;
            return;
        }
        self.waiting.insert(key, Waiting { announced, sent: None, is_held, is_due: !is_held });
    }

    fn expire(&mut self, now: Instant) {
        self.waiting.retain(|_, known| now.saturating_duration_since(known.announced) < LIFETIME);
    }

    fn begin_stream(&mut self) {
        self.waiting.values_mut().for_each(|known| (known.sent, known.is_due) = (None, !known.is_held));
    }

    /// The claims to be sent at `now`, as many as one message may have, and when others are due.
    fn take(&mut self, now: Instant) -> (Vec<AddressClaim>, Option<Instant>) {
        self.expire(now);
        let mut claims = Vec::new();
        for ((instance, address), known) in &mut self.waiting {
            if claims.len() < MAX_CLAIMS && known.due(now).is_some_and(|due| due <= now) {
                (known.sent, known.is_due) = (Some(now), false);
                let age = now.saturating_duration_since(known.announced);
                claims.push(AddressClaim { instance: *instance, address: *address, age });
            }
        }
        self.sent += claims.len() as u64;
        (claims, self.waiting.values().filter_map(|known| known.due(now)).min())
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Something may be due.
    changed: Notify,
}

/// The claims of a node, shared between those who note them and the stream that sends them.
#[derive(Clone, Debug, Default)]
pub struct Claims(Arc<Shared>);

impl Claims {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A VM has announced an address `age` ago, which it holds or not.
    pub fn announce(&self, instance: InstanceId, address: IpAddr, is_held: bool, age: Duration) {
        let now = Instant::now();
        let mut state = self.state();
        state.announce((instance, address), is_held, now.checked_sub(age).unwrap_or(now), now);
        drop(state);
        self.0.changed.notify_one();
    }

    /// The controller has decided about an instance: `holds` says whether it holds an address, `None` if it may not have
    /// it. Such claims are forgotten; what it no longer holds is claimed.
    pub fn decide(&self, instance: InstanceId, holds: impl Fn(IpAddr) -> Option<bool>) {
        let mut state = self.state();
        let of_instance = (instance, IpAddr::from([0; 4]))..=(instance, IpAddr::from([0xff; 16]));
        let keys: Vec<Key> = state.waiting.range(of_instance).map(|(key, _)| *key).collect();
        for key in keys {
            match (holds(key.1), state.waiting.get_mut(&key)) {
                (Some(is_held), Some(known)) => known.set_held(is_held),
                _ => drop(state.waiting.remove(&key)),
            }
        }
        drop(state);
        self.0.changed.notify_one();
    }

    /// The addresses that wait for the controller, with their instances.
    #[must_use]
    pub fn waiting(&self) -> Vec<(InstanceId, IpAddr)> {
        self.state().waiting.iter().filter(|(_, known)| !known.is_held).map(|(key, _)| *key).collect()
    }

    /// Sends claims, those that wait again, until the stream ends.
    pub(crate) async fn send(&self, reports: &ReportSender) -> Result<(), Error> {
        self.state().begin_stream();
        loop {
            let now = Instant::now();
            let (claims, due) = self.state().take(now);
            if !claims.is_empty() {
                reports.claims(claims).await?;
            }
            let wait = due.map_or(LIFETIME, |due| due.saturating_duration_since(now));
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = sleep(wait) => {}
            }
        }
    }
}

impl MetricSource for Claims {
    fn register(&self, registry: &mut Registry) {
        let state = self.state();
        let help = "Announcements of VMs of addresses of their pairs that were reported to the controller";
        registry.register("address_claims_sent", help, counter(state.sent));
        let help = "Announcements that were not reported because too many waited";
        registry.register("address_claims_refused", help, counter(state.refused));
        let help = "Announced addresses whose VM does not hold them yet";
        let waiting = state.waiting.values().filter(|known| !known.is_held).count();
        gauge(registry, "address_claims_waiting", help, waiting as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    fn key(instance: u64, number: u32) -> Key {
        (InstanceId::new(instance), IpAddr::V4(number.into()))
    }

    fn claim(instance: u64, number: u32, age_ms: u64) -> AddressClaim {
        let (instance, address) = key(instance, number);
        AddressClaim { instance, address, age: Duration::from_millis(age_ms) }
    }

    fn after(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    #[test]
    fn a_claim_is_sent_at_once_and_then_at_most_once_a_second() {
        let (mut state, begin) = (State::default(), Instant::now());
        let mut sent = Vec::new();
        for ms in (0..3000).step_by(100) {
            let now = after(begin, ms);
            // Announced ten times a second, for two seconds.
            if ms < 2000 {
                state.announce(key(1, 7), false, now, now);
            }
            let (claims, due) = state.take(now);
            assert!(claims.is_empty() || claims == [claim(1, 7, ms.saturating_sub(1900))]);
            sent.extend(claims.iter().map(|_| ms));
            assert!(due.is_none_or(|due| due > now && due <= now + SPACING));
        }
        assert_eq!(sent, [0, 1000, 2000]);
        assert_eq!(state.sent, 3);
    }

    #[test]
    fn claims_are_repeated_on_another_stream_unless_they_are_old() {
        let (mut state, begin) = (State::default(), Instant::now());
        state.announce(key(1, 7), false, begin, begin);
        state.announce(key(2, 7), false, after(begin, 30_000), after(begin, 30_000));
        assert_eq!(state.take(after(begin, 30_000)).0, [claim(1, 7, 30_000), claim(2, 7, 0)]);
        assert_eq!(state.take(after(begin, 40_000)), (vec![], None));
        state.begin_stream();
        assert_eq!(state.take(after(begin, 40_001)).0, [claim(1, 7, 40_001), claim(2, 7, 10_001)]);
        state.begin_stream();
        assert_eq!(state.take(after(begin, 60_000)).0, [claim(2, 7, 30_000)]);
        state.begin_stream();
        assert_eq!(state.take(after(begin, 90_000)).0, []);
    }

    /// Catches a holder that does not get an address back that another VM announced for a moment, earlier.
    #[test]
    fn what_a_holder_announced_is_claimed_when_it_loses_the_address() {
        let claims = Claims::default();
        let (instance, address) = key(1, 7);
        let take = |claims: &Claims| claims.state().take(Instant::now()).0.len();
        claims.announce(instance, address, true, Duration::ZERO);
        claims.state().begin_stream();
        assert_eq!((take(&claims), claims.waiting()), (0, vec![]));
        claims.decide(instance, |_| Some(true));
        assert_eq!(take(&claims), 0);
        claims.decide(instance, |_| Some(false));
        assert_eq!((claims.waiting(), take(&claims)), (vec![(instance, address)], 1));
        // Another port, such as one with other options, is no reason to repeat it.
        claims.decide(instance, |_| Some(false));
        assert_eq!(claims.state().take(Instant::now() + SPACING).0, []);
        claims.decide(instance, |_| Some(true));
        assert_eq!(claims.waiting(), []);
    }

    /// Catches an announcement that waited for the agent and is taken for a new one.
    #[test]
    fn an_announcement_that_waited_is_old() {
        let claims = Claims::default();
        let (instance, address) = key(1, 7);
        claims.announce(instance, address, false, Duration::from_secs(10));
        let age = |claims: &Claims| claims.state().take(Instant::now()).0[0].age;
        assert!(age(&claims) >= Duration::from_secs(10));
        // One that is older than the last one changes nothing.
        claims.announce(instance, address, false, Duration::from_secs(50));
        claims.state().begin_stream();
        assert!(age(&claims) < Duration::from_secs(50));
    }

    #[test]
    fn what_is_decided_is_forgotten() {
        let claims = Claims::default();
        let [first, second, third] = [key(1, 7), key(1, 8), key(2, 7)];
        for (instance, address) in [first, second, third] {
            claims.announce(instance, address, false, Duration::ZERO);
        }
        claims.decide(first.0, |address| (address == second.1).then_some(false));
        assert_eq!(claims.waiting(), [second, third]);
        claims.decide(third.0, |_| None);
        assert_eq!(claims.waiting(), [second]);
    }

    #[test]
    fn messages_and_memory_are_bounded() {
        let (mut state, begin) = (State::default(), Instant::now());
        for number in 0..WAITING_MAX as u32 + 5 {
            state.announce(key(1, number), false, begin, begin);
        }
        assert_eq!((state.waiting.len(), state.refused), (WAITING_MAX, 5));
        for _ in 0..WAITING_MAX / MAX_CLAIMS {
            let (claims, due) = state.take(begin);
            assert_eq!(claims.len(), MAX_CLAIMS);
            assert_eq!(due.is_some(), state.waiting.values().any(|known| known.is_due));
        }
        assert_eq!(state.take(begin), (vec![], None));
        // Old claims make room for new ones.
        state.announce(key(2, 1), false, after(begin, 60_000), after(begin, 60_000));
        assert_eq!(state.waiting.len(), 1);
    }

    #[test]
    fn each_figure_has_its_metric() {
        let claims = Claims::default();
        let (instance, address) = key(1, 7);
        for (instance, address) in [key(1, 7), key(1, 8)] {
            claims.announce(instance, address, false, Duration::ZERO);
        }
        assert_eq!(claims.state().take(Instant::now()).0.len(), 2);
        claims.decide(instance, |open| Some(open != address));
        claims.state().refused = 9;
        let (mut registry, mut page) = (Registry::default(), String::new());
        claims.register(&mut registry);
        text::encode(&mut page, &registry).unwrap();
        for line in
            ["address_claims_sent_total 2", "address_claims_refused_total 9", "address_claims_waiting 1"]
        {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}
