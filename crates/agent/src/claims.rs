//! Claims: VMs have announced addresses that they may have in turn with others and do not hold. The controller decides who
//! holds an address; a claim waits here until it does, over any number of streams. This file changes when something
//! else decides when a claim is sent.
//!
//! ```text
//!                 announced                 at most once a second
//!     (nothing) ------------> DUE ---------------------------------> SENT
//!         ^                    ^                                      |
//!         |                    +---- announced again, or new stream --+
//!         +-- the Port says that the VM holds the address, or may not have it; 60 s after the last announcement
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

#[derive(Debug)]
struct Waiting {
    announced: Instant,
    sent: Option<Instant>,
    is_due: bool,
}

impl Waiting {
    /// When the claim may be sent; `None` if it need not be.
    fn due(&self, now: Instant) -> Option<Instant> {
        self.is_due.then(|| self.sent.map_or(now, |sent| sent + SPACING))
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<AddressClaim, Waiting>,
    /// Claims that were sent, and those for which there was no room.
    sent: u64,
    refused: u64,
}

impl State {
    fn announce(&mut self, claim: AddressClaim, now: Instant) {
        if let Some(known) = self.waiting.get_mut(&claim) {
            (known.announced, known.is_due) = (now, true);
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            self.expire(now);
        }
        if self.waiting.len() >= WAITING_MAX {
            self.refused += 1;
            return;
        }
        self.waiting.insert(claim, Waiting { announced: now, sent: None, is_due: true });
    }

    fn expire(&mut self, now: Instant) {
        self.waiting.retain(|_, known| now.saturating_duration_since(known.announced) < LIFETIME);
    }

    fn begin_stream(&mut self) {
        self.waiting.values_mut().for_each(|known| (known.sent, known.is_due) = (None, true));
    }

    /// The claims to be sent at `now`, as many as one message may have, and when others are due.
    fn take(&mut self, now: Instant) -> (Vec<AddressClaim>, Option<Instant>) {
        self.expire(now);
        let mut claims = Vec::new();
        for (claim, known) in &mut self.waiting {
            if claims.len() < MAX_CLAIMS && known.due(now).is_some_and(|due| due <= now) {
                (known.sent, known.is_due) = (Some(now), false);
                claims.push(*claim);
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

    /// VMs have announced these addresses now.
    pub fn announce(&self, claims: impl IntoIterator<Item = AddressClaim>) {
        let now = Instant::now();
        let mut state = self.state();
        claims.into_iter().for_each(|claim| state.announce(claim, now));
        drop(state);
        self.0.changed.notify_one();
    }

    /// Forgets the claims of an instance to addresses for which `is_open` is false.
    pub fn retain(&self, instance: InstanceId, is_open: impl Fn(IpAddr) -> bool) {
        self.state().waiting.retain(|claim, _| claim.instance != instance || is_open(claim.address));
    }

    /// The claims that wait for the controller.
    #[must_use]
    pub fn waiting(&self) -> Vec<AddressClaim> {
        self.state().waiting.keys().copied().collect()
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
        gauge(registry, "address_claims_waiting", help, state.waiting.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    fn claim(instance: u64, number: u32) -> AddressClaim {
        let instance = InstanceId::new(instance);
        AddressClaim { instance, address: IpAddr::V4(number.into()) }
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
                state.announce(claim(1, 7), now);
            }
            let (claims, due) = state.take(now);
            assert!(claims.is_empty() || claims == [claim(1, 7)]);
            sent.extend(claims.iter().map(|_| ms));
            assert!(due.is_none_or(|due| due > now && due <= now + SPACING));
        }
        assert_eq!(sent, [0, 1000, 2000]);
        assert_eq!(state.sent, 3);
    }

    #[test]
    fn claims_are_repeated_on_another_stream_unless_they_are_old() {
        let (mut state, begin) = (State::default(), Instant::now());
        state.announce(claim(1, 7), begin);
        state.announce(claim(2, 7), after(begin, 30_000));
        assert_eq!(state.take(after(begin, 30_000)).0, [claim(1, 7), claim(2, 7)]);
        assert_eq!(state.take(after(begin, 40_000)), (vec![], None));
        state.begin_stream();
        assert_eq!(state.take(after(begin, 40_001)).0, [claim(1, 7), claim(2, 7)]);
        state.begin_stream();
        assert_eq!(state.take(after(begin, 60_000)).0, [claim(2, 7)]);
        state.begin_stream();
        assert_eq!(state.take(after(begin, 90_000)).0, []);
    }

    #[test]
    fn what_is_decided_is_forgotten() {
        let claims = Claims::default();
        claims.announce([claim(1, 7), claim(1, 8), claim(2, 7)]);
        claims.retain(InstanceId::new(1), |address| address == claim(1, 8).address);
        assert_eq!(claims.waiting(), [claim(1, 8), claim(2, 7)]);
        claims.retain(InstanceId::new(2), |_| false);
        assert_eq!(claims.waiting(), [claim(1, 8)]);
    }

    #[test]
    fn messages_and_memory_are_bounded() {
        let (mut state, begin) = (State::default(), Instant::now());
        for number in 0..WAITING_MAX as u32 + 5 {
            state.announce(claim(1, number), begin);
        }
        assert_eq!((state.waiting.len(), state.refused), (WAITING_MAX, 5));
        for _ in 0..WAITING_MAX / MAX_CLAIMS {
            let (claims, due) = state.take(begin);
            assert_eq!(claims.len(), MAX_CLAIMS);
            assert_eq!(due.is_some(), state.waiting.values().any(|known| known.is_due));
        }
        assert_eq!(state.take(begin), (vec![], None));
        // Old claims make room for new ones.
        state.announce(claim(2, 1), after(begin, 60_000));
        assert_eq!(state.waiting.len(), 1);
    }

    #[test]
    fn each_figure_has_its_metric() {
        let claims = Claims::default();
        claims.announce([claim(1, 7), claim(1, 8)]);
        assert_eq!(claims.state().take(Instant::now()).0.len(), 2);
        claims.retain(InstanceId::new(1), |address| address == claim(1, 7).address);
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
