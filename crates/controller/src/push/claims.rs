//! Claims of addresses that instances have in turn: hosts report that an instance has announced one, and the store makes
//! that instance the holder. A queue is between both, so that no stream waits for the database, and an instance that
//! announces addresses without pause cannot occupy it.

use super::{Push, count};
use sluice_southbound::AddressClaim;
use sluice_store::{Claim, StoreError};
use sluice_types::{HostId, InstanceId};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Average interval between two claims of an instance that are processed.
const INTERVAL: Duration = Duration::from_secs(1);
/// Claims of an instance that are processed without a wait, if it made none for a while.
const BURST: u32 = 10;
/// Most claims that wait, of all hosts. One look at the queue reads all of them.
const PENDING_MAX: usize = 8192;
/// Most claims of one host that wait: as many as a report has.
const HOST_PENDING_MAX: usize = 1024;
/// Pause after a store error that may pass.
const RETRY: Duration = Duration::from_millis(250);

/// The claims that wait.
#[derive(Debug, Default)]
pub struct Claims {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Number of the next claim.
    next: u64,
    /// By the reporting host as well, so that no host can replace or delay what another one reports.
    claimants: BTreeMap<(HostId, InstanceId), Claimant>,
    /// Claims that wait, by the host that reported them.
    waiting: BTreeMap<HostId, usize>,
}

/// An instance that makes claims, as a host reports.
#[derive(Debug)]
struct Claimant {
    /// The token bucket (GCRA): when all tokens are there again.
    full_at: Instant,
    /// The last claim of each address.
    pending: BTreeMap<IpAddr, Pending>,
}

/// A claim that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    number: u64,
    /// When the VM announced the address.
    announced: Instant,
}

/// A claim to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    host: HostId,
    instance: InstanceId,
    address: IpAddr,
    pending: Pending,
}

impl Inner {
    /// Adds a claim; a later one of the same instance and address takes the place of an earlier one. Returns false if too
    /// many wait.
    fn add(&mut self, host: HostId, claim: AddressClaim, now: Instant) -> bool {
        let (all, of_host) =
            (self.waiting.values().sum::<usize>(), self.waiting.get(&host).copied().unwrap_or(0));
        let new = Claimant { full_at: now, pending: BTreeMap::new() };
        let key = (host, claim.instance);
        let is_known = self.claimants.get(&key).is_some_and(|it| it.pending.contains_key(&claim.address));
        if !is_known && (all >= PENDING_MAX || of_host >= HOST_PENDING_MAX) {
            return false;
        }
        if !is_known {
            *self.waiting.entry(host).or_default() += 1;
        }
        // A process may be younger than an announcement of another one's time.
        let announced = now.checked_sub(claim.age).unwrap_or(now);
        let pending = Pending { number: self.next, announced };
        self.claimants.entry(key).or_insert(new).pending.insert(claim.address, pending);
        self.next += 1;
        true
    }

    fn uncount(&mut self, host: HostId) {
        if let Some(count) = self.waiting.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&host);
            }
        }
    }

    /// Forgets the claims of a host that wait. It repeats them on its next stream, which may be of another replica.
    fn forget(&mut self, host: HostId) {
        let of_host = (host, InstanceId::new(0))..=(host, InstanceId::new(u64::MAX));
        self.claimants.range_mut(of_host).for_each(|(_, claimant)| claimant.pending.clear());
        self.waiting.remove(&host);
    }

    /// Takes the oldest claim whose instance has a token; otherwise says when there will be one, if any waits.
    fn take(&mut self, now: Instant) -> Result<Due, Option<Instant>> {
        let ahead = INTERVAL * (BURST - 1);
        self.claimants.retain(|_, claimant| !claimant.pending.is_empty() || claimant.full_at > now);
        let ready = |claimant: &Claimant| claimant.full_at.checked_sub(ahead).unwrap_or(now);
        let waiting = || self.claimants.iter().filter(|(_, claimant)| !claimant.pending.is_empty());
        let oldest = |((host, instance), claimant): (&(HostId, InstanceId), &Claimant)| {
            let (address, pending) = claimant.pending.iter().min_by_key(|(_, pending)| pending.number)?;
            Some(Due { host: *host, instance: *instance, address: *address, pending: *pending })
        };
        let due = waiting().filter(|(_, claimant)| ready(claimant) <= now).filter_map(oldest);
        let Some(due) = due.min_by_key(|due| due.pending.number) else {
            return Err(waiting().map(|(_, claimant)| ready(claimant)).min());
        };
        if let Some(claimant) = self.claimants.get_mut(&(due.host, due.instance)) {
            claimant.pending.remove(&due.address);
            claimant.full_at = claimant.full_at.max(now) + INTERVAL;
        }
        self.uncount(due.host);
        Ok(due)
    }
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the claims of a host's report. Returns the number of those that were refused because too many wait.
    pub fn add(&self, host: HostId, claims: impl IntoIterator<Item = AddressClaim>) -> usize {
        let now = Instant::now();
        let refused = {
            let mut inner = self.lock();
            claims.into_iter().filter(|claim| !inner.add(host, *claim, now)).count()
        };
        self.changed.notify_one();
        refused
    }

    /// A host's stream has ended.
    pub fn forget(&self, host: HostId) {
        self.lock().forget(host);
    }

    /// Number of claims that wait, and their limit.
    pub fn waiting(&self) -> (usize, usize) {
        (self.lock().waiting.values().sum(), PENDING_MAX)
    }

    async fn next(&self) -> Due {
        loop {
            let wait = match self.lock().take(Instant::now()) {
                Ok(due) => return due,
                Err(wait) => wait,
            };
            let changed = self.changed.notified();
            match wait {
                Some(at) => drop(tokio::time::timeout_at(at.into(), changed).await),
                None => changed.await,
            }
        }
    }
}

/// Processes claims until the future is dropped, one after the other.
pub async fn process_claims(push: Arc<Push>) {
    loop {
        let due = push.claims.next().await;
        while let Err(error) = process(&push, &due).await {
            push.db.count_error();
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot store the claim of an address");
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Processes a claim.
///
/// # Errors
/// Errors of the store that may pass.
async fn process(push: &Push, due: &Due) -> Result<(), StoreError> {
    let Due { host, instance: id, address, pending } = *due;
    match push.db.store.claim_address(host, id, address, pending.announced).await {
        Ok(Claim::Taken(instance)) => {
            push.db.notify_commit();
            count(&push.counters.claims);
            tracing::info!(instance = %id, name = instance.name, %address, "an address has another holder");
        }
        Ok(Claim::Held) => {}
        Ok(Claim::Late) => count(&push.counters.claims_late),
        Err(error @ (StoreError::Unavailable { .. } | StoreError::Rewound)) => return Err(error),
        Err(error) => {
            count(&push.counters.claims_refused);
            tracing::warn!(instance = %id, %host, %address, reason = %error, "claim of an address refused");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(instance: u64, last: u8) -> AddressClaim {
        let (instance, address) = (InstanceId::new(instance), [10, 0, 0, last].into());
        AddressClaim { instance, address, age: Duration::from_millis(250) }
    }

    fn host(id: u64) -> HostId {
        HostId::new(id)
    }

    /// The host of the next claim, and the claim as it was reported.
    fn taken(inner: &mut Inner, now: Instant) -> Option<(HostId, AddressClaim)> {
        let Due { host, instance, address, pending } = inner.take(now).ok()?;
        assert!(pending.announced < now, "it is as old as was reported");
        Some((host, AddressClaim { instance, address, ..claim(0, 0) }))
    }

    /// Catches a bucket that never empties or fills, and a claim that is lost because it came too fast.
    #[test]
    fn claims_of_an_instance_are_limited_and_its_last_one_waits() {
        let (mut inner, start) = (Inner::default(), Instant::now());
        for _ in 0..BURST {
            assert!(inner.add(host(1), claim(1, 1), start));
            assert!(taken(&mut inner, start).is_some());
        }
        assert!(inner.add(host(1), claim(1, 1), start) && inner.add(host(1), claim(1, 1), start));
        assert_eq!(inner.take(start), Err(Some(start + INTERVAL)));
        // Another instance does not wait.
        assert!(inner.add(host(1), claim(2, 1), start));
        assert_eq!(taken(&mut inner, start).map(|(_, claim)| claim), Some(claim(2, 1)));
        assert_eq!(taken(&mut inner, start + INTERVAL).map(|(_, claim)| claim), Some(claim(1, 1)));
        assert_eq!(inner.take(start + INTERVAL), Err(None), "of two claims, the last one");
        let later = start + INTERVAL * 60;
        assert_eq!(inner.take(later), Err(None));
        assert!(inner.claimants.is_empty() && inner.waiting.is_empty(), "nothing is remembered: {inner:?}");
    }

    #[test]
    fn a_host_cannot_fill_the_queue() {
        let (mut inner, now) = (Inner::default(), Instant::now());
        for number in 0..HOST_PENDING_MAX as u64 {
            assert!(inner.add(host(1), claim(number, 1), now));
        }
        assert!(!inner.add(host(1), claim(9999, 1), now));
        assert!(inner.add(host(1), claim(0, 1), now), "it waits already");
        assert!(inner.add(host(2), claim(9999, 1), now));
        assert!(taken(&mut inner, now).is_some());
        assert!(inner.add(host(1), claim(9998, 1), now));
    }

    /// Catches a host whose reports take the place of those of the host that has the instance, or its tokens.
    #[test]
    fn claims_of_two_hosts_are_apart() {
        let (mut inner, now) = (Inner::default(), Instant::now());
        for _ in 0..BURST {
            assert!(inner.add(host(9), claim(1, 1), now) && inner.take(now).is_ok());
        }
        assert!(inner.add(host(9), claim(1, 1), now) && inner.add(host(1), claim(1, 1), now));
        assert!(inner.add(host(9), claim(1, 1), now));
        assert_eq!(taken(&mut inner, now), Some((host(1), claim(1, 1))));
        assert_eq!(inner.take(now), Err(Some(now + INTERVAL)));
        inner.forget(host(9));
        assert_eq!(inner.take(now), Err(None), "it has no stream any more");
        assert!(inner.waiting.is_empty());
    }
}
