//! Numbers under which the sessions and the meters of ports are kept: each attachment has one that no other has. This file changes
//! with the life of such a number.
//!
//! Whatever the sessions of a port are about may change only together with its number: when an instance leaves or gets
//! another address, or a port is not filtered any more, it gets another number. So a port never has a session of something
//! else, at once and without a sweep.
//!
//! ```text
//!              port is to be written                  port was removed, or has another number
//!     FREE --------------------------> GIVEN -----------------------------------------------> RETIRED
//!      ^                      may have sessions                          begins no sessions      |
//!      +----------------------- all sessions were ended and swept, and a time is over -----------+
//! ```
//!
//! Numbers are given in rotation.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_tables::sessions::SessionShares;
use sluice_tables::{PortCredits, PortMeters};

/// Sessions that are assured to a new port until the room is divided again.
const ASSURED_AT_FIRST: u32 = 256;
/// A retired number stays out of use for at least this time: the programs remember the fragments of a port for 30 s.
pub const RETIRED_MIN: Duration = Duration::from_secs(31);

/// All numbers are in use or retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no number is free under which the sessions of the port could be kept: {given} ports have one, and the sessions of \
     {retired} others are still being removed"
)]
pub struct NoScope {
    given: usize,
    retired: usize,
}

/// The port that has a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its interface; 0 until the port is written.
    pub ifindex: u32,
    /// Name of the interface.
    pub ifname: Arc<str>,
    /// Whether the port has a policy: others have no sessions.
    pub is_filtered: bool,
}

/// A number that no port has any more.
#[derive(Clone, Copy, Debug)]
struct Retired {
    since: Instant,
    /// The change by which it was retired.
    change: u64,
}

#[derive(Debug, Default)]
struct Numbers {
    given: BTreeMap<u16, Owner>,
    retired: BTreeMap<u16, Retired>,
    /// The number that was given last.
    last: u16,
    /// Counts changes after which sessions must be reviewed.
    changes: u64,
    is_stopped: bool,
}

/// The numbers, shared by the registry of ports, which gives and retires them, and the thread that looks after sessions.
#[derive(Clone, Debug)]
pub struct Scopes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shares: SessionShares,
    meters: PortMeters,
    credits: PortCredits,
    /// How many sessions a port may have.
    limit: u32,
    numbers: Mutex<Numbers>,
    changed: Condvar,
}

/// Maps of ports in memory of this process.
#[cfg(test)]
pub fn port_maps() -> (PortMeters, PortCredits) {
    (PortMeters::anonymous().unwrap(), PortCredits::anonymous().unwrap())
}

/// What a review of all sessions needs to know of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeMap {
    /// The last change that the maps contain.
    pub changes: u64,
    /// Ports by number.
    pub given: BTreeMap<u16, Owner>,
    /// Numbers whose sessions are to be ended.
    pub retired: Vec<u16>,
}

impl Scopes {
    /// Numbers of an agent that has given none. Numbers of an earlier agent that have sessions are retired until
    /// [`Scopes::claim`] gives them back to their ports. A port may have `limit` sessions.
    pub fn new(shares: SessionShares, (meters, credits): (PortMeters, PortCredits), limit: u32) -> Self {
        let mut numbers = Numbers::default();
        let retired = Retired { since: Instant::now(), change: 0 };
        for number in 1..=u16::MAX {
            let share = shares.get(number);
            if share.sessions() != 0 {
                numbers.retired.insert(number, retired);
            }
        }
        Self(Arc::new(Inner {
            shares,
            meters,
            credits,
            limit,
            numbers: Mutex::new(numbers),
            changed: Condvar::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.0.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many sessions a port may have.
    pub fn limit(&self) -> u32 {
        self.0.limit
    }

    /// Number of records of sessions that a port has, with those that have ended and are not yet swept.
    pub fn sessions(&self, number: u16) -> u32 {
        self.0.shares.get(number).sessions()
    }

    /// Gives an attachment the number that it had before. Returns false if that is 0, or another one's.
    pub fn claim(&self, number: u16) -> bool {
        let mut numbers = self.lock();
        if number == 0 || numbers.given.contains_key(&number) {
            return false;
        }
        numbers.retired.remove(&number);
        numbers.given.insert(number, Owner::default());
        numbers.last = numbers.last.max(number);
        true
    }

    /// Whether a port has the number.
    pub fn is_given(&self, number: u16) -> bool {
        self.lock().given.contains_key(&number)
    }

    /// After all claims: numbers of an earlier agent that are not given begin no sessions.
    pub fn close_unclaimed(&self) {
        let numbers = self.lock();
        let unclaimed = (1..=u16::MAX).filter(|number| !numbers.given.contains_key(number));
        unclaimed.for_each(|number| self.0.shares.set_limit(number, 0));
    }

    /// Gives a number that has no sessions, and whose meter is full.
    ///
    /// # Errors
    /// [`NoScope`] if every number is in use or retired.
    pub fn take(&self) -> Result<u16, NoScope> {
        let mut numbers = self.lock();
        let after = (numbers.last..=u16::MAX).skip(1).chain(1..=numbers.last);
        let is_free = |number: &u16| {
            !numbers.given.contains_key(number) && !numbers.retired.contains_key(number) && *number != 0
        };
        let found = after.into_iter().find(is_free);
        let Some(number) = found else {
            return Err(NoScope { given: numbers.given.len(), retired: numbers.retired.len() });
        };
        self.0.meters.reset(number);
        self.0.credits.reset(number);
        self.0.shares.reset(number);
        numbers.last = number;
        numbers.given.insert(number, Owner::default());
        Ok(number)
    }

    /// A port is about to be written with its number: it may begin sessions.
    pub fn open(&self, number: u16, ifindex: u32, ifname: &str, is_filtered: bool) {
        let mut numbers = self.lock();
        if let Some(owner) = numbers.given.get_mut(&number) {
            *owner = Owner { ifindex, ifname: ifname.into(), is_filtered };
            let shares = &self.0.shares;
            if is_filtered && shares.get(number).assured == 0 {
                shares.set_assured(number, self.0.limit.min(ASSURED_AT_FIRST));
            }
            shares.set_limit(number, self.0.limit);
        }
    }

    /// A port waits with its number: sessions may be installed before packets can begin any.
    pub fn reserve(&self, number: u16) {
        let numbers = self.lock();
        let shares = &self.0.shares;
        if numbers.given.contains_key(&number) && shares.get(number).assured == 0 {
            shares.set_assured(number, self.0.limit.min(ASSURED_AT_FIRST));
        }
    }

    /// No port has the number any more: its sessions will be removed, and it begins none. 0 is no number.
    pub fn retire(&self, number: u16) {
        if number == 0 {
            return;
        }
        let mut numbers = self.lock();
        self.0.shares.set_limit(number, 0);
        self.0.shares.set_assured(number, 0);
        numbers.given.remove(&number);
        numbers.changes += 1;
        let change = numbers.changes;
        numbers.retired.insert(number, Retired { since: Instant::now(), change });
        self.0.changed.notify_all();
    }

    /// What ports may send and receive has changed: their sessions are to be reviewed.
    pub fn note_change(&self) {
        self.lock().changes += 1;
        self.0.changed.notify_all();
    }

    /// What the next review must look at.
    pub fn map(&self) -> ScopeMap {
        let numbers = self.lock();
        ScopeMap {
            changes: numbers.changes,
            given: numbers.given.clone(),
            retired: numbers.retired.keys().copied().collect(),
        }
    }

    /// All sessions were reviewed up to this change, after a grace period: retired numbers without sessions become free.
    pub fn reviewed(&self, changes: u64, now: Instant) {
        let mut numbers = self.lock();
        let shares = &self.0.shares;
        numbers.retired.retain(|number, retired| {
            let is_over = now.saturating_duration_since(retired.since) >= RETIRED_MIN;
            // Without sessions and grace periods behind it, none can begin.
            retired.change > changes || !is_over || shares.get(*number).sessions() != 0
        });
    }

    /// Waits until the last change is not `seen`, but at most for `time`. Returns the last change; `None` if the thread must
    /// end.
    pub fn wait(&self, seen: Option<u64>, time: Duration) -> Option<u64> {
        let numbers = self.lock();
        let is_quiet = |numbers: &mut Numbers| Some(numbers.changes) == seen && !numbers.is_stopped;
        let (numbers, _) = self
            .0
            .changed
            .wait_timeout_while(numbers, time, is_quiet)
            .unwrap_or_else(PoisonError::into_inner);
        (!numbers.is_stopped).then_some(numbers.changes)
    }

    /// Ends the thread that looks after sessions.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.0.changed.notify_all();
    }

    /// Number of numbers that are retired.
    pub fn retired(&self) -> usize {
        self.lock().retired.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes() -> Scopes {
        Scopes::new(SessionShares::anonymous().unwrap(), port_maps(), 100)
    }

    /// Catches a number that is given to two ports, or again before it is swept.
    #[test]
    fn numbers_rotate_and_return_when_their_time_is_over() {
        let scopes = scopes();
        assert_eq!([scopes.take(), scopes.take()], [Ok(1), Ok(2)]);
        scopes.retire(1);
        assert_eq!(scopes.take(), Ok(3), "not the one that was retired just now");
        let now = Instant::now();
        scopes.reviewed(0, now + 2 * RETIRED_MIN);
        assert_eq!(scopes.retired(), 1, "the review was before the retirement");
        scopes.reviewed(1, now);
        assert_eq!(scopes.retired(), 1, "fragments are remembered");
        scopes.reviewed(1, now + RETIRED_MIN);
        assert_eq!(scopes.retired(), 0);
        // All others come first.
        let taken: Vec<u16> = std::iter::from_fn(|| scopes.take().ok()).collect();
        assert_eq!((taken.first(), taken.last(), taken.len()), (Some(&4), Some(&1), 65_533));
        let error = scopes.take().unwrap_err().to_string();
        assert!(error.contains("65535 ports have one"), "{error}");
    }

    #[test]
    fn a_new_number_has_a_new_meter_and_a_claimed_one_its_own() {
        let meters = PortMeters::anonymous().unwrap();
        for number in [1, 7] {
            meters.set_dropped(number, [3, 4]);
        }
        let scopes = Scopes::new(
            SessionShares::anonymous().unwrap(),
            (meters.clone(), PortCredits::anonymous().unwrap()),
            100,
        );
        assert_eq!((scopes.take(), scopes.claim(7)), (Ok(1), true));
        assert_eq!([1, 7].map(|number| meters.dropped(number)), [[0, 0], [3, 4]]);
    }

    #[test]
    fn a_number_of_an_earlier_agent_is_claimed_once() {
        let scopes = scopes();
        assert!(scopes.claim(7) && !scopes.claim(7) && !scopes.claim(0));
        assert_eq!(scopes.take(), Ok(8));
    }

    #[test]
    fn only_given_numbers_may_have_sessions() {
        let shares = SessionShares::anonymous().unwrap();
        shares.set_limit(9, 55);
        let scopes = Scopes::new(shares.clone(), port_maps(), 100);
        scopes.claim(7);
        scopes.close_unclaimed();
        scopes.open(7, 50, "tap0", true);
        let limits = |numbers: [u16; 3]| numbers.map(|number| shares.get(number).limit);
        assert_eq!(limits([7, 8, 9]), [100, 0, 0]);
        assert_eq!(
            scopes.map().given,
            [(7, Owner { ifindex: 50, ifname: "tap0".into(), is_filtered: true })].into()
        );
        scopes.retire(7);
        scopes.open(7, 50, "tap0", true);
        assert_eq!(limits([7, 8, 9]), [0, 0, 0], "a retired number is not opened again");
        assert_eq!(scopes.map().retired, [7]);
    }

    #[test]
    fn changes_wake_the_thread_and_end_it() {
        let scopes = scopes();
        assert_eq!(scopes.wait(Some(0), Duration::ZERO), Some(0));
        scopes.note_change();
        assert_eq!(scopes.wait(Some(0), Duration::from_secs(60)), Some(1));
        scopes.stop();
        assert_eq!(scopes.wait(Some(1), Duration::from_secs(60)), None);
    }
}
