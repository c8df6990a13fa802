//! Permits: before a host gets a direct path, the destination's host is told that packets of the first one are to be
//! accepted in the destination's network, and confirms it. Pure: times are arguments. This file changes with the
//! rules for when a host may send to another one.
//!
//! The state of a permit, which is one for each sender, network and receiver:
//!
//! ```text
//!                  a path is wanted: Permit is sent           Permitted
//!      no record ----------------------------------> WAITING ------------> CONFIRMED
//!          ^                                           |  ^                    |
//!          |                                           |  |                    |
//!          +---- unconfirmed for 20 s, or more records +  +--------------------+
//!                                                           a path is wanted after 3 s: Permit is sent again
//! ```
//!
//! The receiver forgets a permit later than the sender its path: a path is given or confirmed only within 20 s after a
//! Permit that was confirmed was sent, and is used for 60 s at most, and its message may take 10 s, as may a late answer to
//! an earlier Permit; the receiver keeps the permit for 105 s (`PERMIT_LINGER` of `crates/vswitch`).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use sluice_agent::error_chain;
use sluice_agent::rsp::{Admission, Batcher};
use sluice_rsp::{Destination, Message, PermitEntry, Reception};
use sluice_tables::NodeTables;
use sluice_types::Vni;

/// A confirmed permit is renewed when a path is wanted this time after it was sent.
const RENEW_US: u64 = 3_000_000;
/// No path is given this time after the last Permit that was confirmed was sent.
const VALID_US: u64 = 20_000_000;
/// A Permit that is not confirmed is sent again after this time.
const REPEAT_US: u64 = 500_000;
/// A receiver that has not confirmed a Permit within this time has no direct path to it.
const ANSWER_US: u64 = 1_000_000;
/// Senders get whole paths for this time after a receiver has said that it can receive something else than was known here: the
/// longest time for which they use a path.
const CHANGED_US: u64 = 60_000_000;
/// Permits within this time are sent together.
const GATHER_US: u64 = 500;
/// Permits that are renewed within this time are sent together: each path of each host renews one every few seconds, and nothing
/// waits for the answer.
const GATHER_RENEWED_US: u64 = 250_000;
/// Permits that are remembered.
const PERMITS_MAX: usize = 262_144;
/// Permits of one network that are remembered while more than half of the space is used, so that the flows of one tenant
/// leave space for others.
const SHARE_MAX: usize = PERMITS_MAX / 32;
/// Destinations that wait for one permit.
const WAITING_MAX: usize = 16;
/// Interval at which forgotten permits are removed.
const SWEEP_US: u64 = 1_000_000;

/// Hosts that one host has named as targets of migrations, each in one network: as many as it may have migrations.
const NAMED_BY_HOST_MAX: usize = 512;
/// Such targets of all hosts together.
const NAMED_MAX: usize = 4096;
/// A named host is forgotten this long after it was named last: the time for which idle senders are kept.
const NAMED_US: u64 = 70_000_000;

/// The hosts that others have named as targets of migrations. Bounds the senders that a host can add to the tables.
#[derive(Debug, Default)]
pub struct NamedTargets {
    /// By the host that named them, with the time at which it did so last.
    by_host: BTreeMap<IpAddr, BTreeMap<PermitEntry, u64>>,
    swept_us: u64,
}

impl NamedTargets {
    /// Notes that `from` has named a host. Returns false if there are too many.
    fn note(&mut self, now_us: u64, from: IpAddr, entry: PermitEntry) -> bool {
        self.sweep(now_us);
        let all: usize = self.by_host.values().map(BTreeMap::len).sum();
        let named = self.by_host.entry(from).or_default();
        let is_known = named.contains_key(&entry);
        let has_space = is_known || (all < NAMED_MAX && named.len() < NAMED_BY_HOST_MAX);
        if has_space {
            named.insert(entry, now_us);
        }
        has_space
    }

    fn sweep(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.swept_us) < SWEEP_US {
            return;
        }
        self.swept_us = now_us;
        self.by_host.retain(|_, named| {
            named.retain(|_, named_us| now_us.saturating_sub(*named_us) < NAMED_US);
            !named.is_empty()
        });
    }
}

/// Accepts packets of the hosts to which instances of the host at `from` migrate, each in the network of its entry, as long as the
/// tables keep idle senders. That host must have an instance in the network: one that was only named by another host names no
/// further ones. Returns how many were refused.
pub fn accept(
    tables: &mut NodeTables,
    targets: &mut NamedTargets,
    now_us: u64,
    from: IpAddr,
    entries: &[PermitEntry],
) -> usize {
    let mut refused = 0;
    for entry in entries {
        let vni = entry.vni.get();
        if entry.host == from || !tables.has_endpoint_in(vni, from) {
            refused += 1;
            continue;
        }
        // It is accepted for its own instance, without a record.
        if tables.has_endpoint_in(vni, entry.host) {
            continue;
        }
        let written = if targets.note(now_us, from, *entry) {
            tables.permit_sender(entry.vni, entry.host).map_err(|error| error_chain(&error))
        } else {
            Err("too many hosts are named".to_owned())
        };
        if let Err(error) = &written {
            tracing::debug!(%from, ?entry, error, "target of a migration refused");
        }
        refused += usize::from(written.is_err());
    }
    refused
}

/// A permit's receiver and sender, by their VTEPs, and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permit {
    /// The host that receives packets.
    pub receiver: IpAddr,
    /// The host that sends them, and the network with whose VNI it encapsulates them.
    pub entry: PermitEntry,
}

/// Whether a path may be given to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitState {
    /// The receiver accepts the sender's packets.
    Confirmed,
    /// The receiver was asked.
    Waiting,
    /// The receiver was asked and does not answer, or there are too many permits: there is no direct path.
    Unconfirmed,
}

#[derive(Debug, Default)]
struct Record {
    /// When the last Permit that was confirmed was sent.
    confirmed_us: Option<u64>,
    /// When the first of the Permits that are not confirmed was sent.
    asked_us: Option<u64>,
    /// What the receiver can receive, as it said when it confirmed the last Permit.
    reception: Reception,
    /// When it said something else than was known.
    changed_us: Option<u64>,
    /// Destinations to which the sender gets a path after the confirmation.
    waiting: Vec<Destination>,
}

impl Record {
    /// The time from which the record is of no use.
    fn useless_us(&self) -> u64 {
        self.confirmed_us.max(self.asked_us).map_or(0, |us| us.saturating_add(VALID_US))
    }

    fn is_confirmed_since(&self, since_us: u64) -> bool {
        self.confirmed_us.is_some_and(|confirmed_us| confirmed_us >= since_us)
    }
}

/// A gateway's permits. Times are microseconds of a monotonic clock.
#[derive(Debug)]
pub struct Permits {
    records: HashMap<Permit, Record>,
    /// Number of records by network.
    by_network: HashMap<Vni, usize>,
    batcher: Batcher<IpAddr, PermitEntry, PermitEntry>,
    /// Permits that are confirmed, and are sent again.
    renewed: Batcher<IpAddr, PermitEntry, PermitEntry>,
    swept_us: u64,
}

impl Permits {
    pub fn new() -> Self {
        Self {
            records: HashMap::new(),
            by_network: HashMap::new(),
            batcher: Batcher::new(REPEAT_US, GATHER_US, PERMITS_MAX),
            renewed: Batcher::new(REPEAT_US, GATHER_RENEWED_US, PERMITS_MAX),
            swept_us: 0,
        }
    }

    /// Number of permits that are remembered.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether a path may be given that needs this permit. Asks the receiver where needed.
    pub fn check(&mut self, now_us: u64, permit: Permit) -> PermitState {
        self.sweep(now_us);
        if !self.records.contains_key(&permit) {
            if !self.has_space(permit.entry.vni) {
                return PermitState::Unconfirmed;
            }
            *self.by_network.entry(permit.entry.vni).or_default() += 1;
        }
        let record = self.records.entry(permit).or_default();
        if record.is_confirmed_since(now_us.saturating_sub(RENEW_US)) {
            return PermitState::Confirmed;
        }
        let is_confirmed = record.is_confirmed_since(now_us.saturating_sub(VALID_US));
        let batcher = if is_confirmed { &mut self.renewed } else { &mut self.batcher };
        if batcher.admit(now_us, permit.receiver, permit.entry) == Admission::New {
            record.asked_us.get_or_insert(now_us);
            batcher.push(permit.receiver, permit.entry);
        }
        if is_confirmed {
            PermitState::Confirmed
        } else if record.asked_us.is_some_and(|asked_us| now_us.saturating_sub(asked_us) < ANSWER_US) {
            PermitState::Waiting
        } else {
            record.waiting = Vec::new();
            PermitState::Unconfirmed
        }
    }

    /// Keeps a destination to which the permit's sender gets a path when the permit is confirmed. One that does not fit gets its
    /// path when its flow is reported again.
    pub fn keep(&mut self, permit: &Permit, destination: Destination) {
        let Some(record) = self.records.get_mut(permit) else { return };
        if record.waiting.len() < WAITING_MAX && !record.waiting.contains(&destination) {
            record.waiting.push(destination);
        }
    }

    /// What a permit's receiver can receive; nothing is known if it has not confirmed the permit.
    pub fn reception(&self, permit: &Permit) -> Reception {
        self.records.get(permit).map(|record| record.reception).unwrap_or_default()
    }

    /// Whether the permit's sender may have a path with something else that its receiver could receive before.
    pub fn has_changed(&self, now_us: u64, permit: &Permit) -> bool {
        let changed_us = self.records.get(permit).and_then(|record| record.changed_us);
        changed_us.is_some_and(|changed_us| now_us.saturating_sub(changed_us) < CHANGED_US)
    }

    /// Notes that a receiver accepts a sender's packets, and which. Returns the destinations that waited for it, unless they have waited too
    /// long. Does nothing if the receiver was not asked.
    pub fn confirm(&mut self, now_us: u64, permit: &Permit, reception: Reception) -> Vec<Destination> {
        let Some(record) = self.records.get_mut(permit) else { return Vec::new() };
        // The answer may be to any of the Permits that were not confirmed, so the first one counts.
        let Some(asked_us) = record.asked_us.take() else { return Vec::new() };
        // At the first confirmation, too: senders may have paths that this gateway gave them before it forgot the permit, or another one.
        if record.reception != reception {
            record.changed_us = Some(now_us);
        }
        record.reception = reception;
        record.confirmed_us = Some(asked_us);
        let waiting = std::mem::take(&mut record.waiting);
        if now_us.saturating_sub(asked_us) < ANSWER_US { waiting } else { Vec::new() }
    }

    fn has_space(&self, vni: Vni) -> bool {
        let of_network = self.by_network.get(&vni).copied().unwrap_or_default();
        let limit = if self.records.len() < PERMITS_MAX / 2 { PERMITS_MAX } else { SHARE_MAX };
        self.records.len() < PERMITS_MAX && of_network < limit
    }

    fn sweep(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.swept_us) < SWEEP_US {
            return;
        }
        self.swept_us = now_us;
        for (permit, _) in self.records.extract_if(|_, record| record.useless_us() <= now_us) {
            if let Some(of_network) = self.by_network.get_mut(&permit.entry.vni) {
                *of_network -= 1;
            }
        }
        self.by_network.retain(|_, of_network| *of_network > 0);
    }

    /// Time at which [`Permits::take`] is due; `None` if no Permit waits.
    pub fn due_us(&self) -> Option<u64> {
        self.batcher.due_us().into_iter().chain(self.renewed.due_us()).min()
    }

    /// Takes the Permits that wait to be sent, with their receivers.
    pub fn take(&mut self, now_us: u64) -> BTreeMap<IpAddr, Message> {
        let mut permits = self.batcher.take(now_us);
        if self.renewed.due_us().is_some_and(|due_us| due_us <= now_us) {
            for (receiver, mut entries) in self.renewed.take(now_us) {
                permits.entry(receiver).or_default().append(&mut entries);
            }
        }
        permits.into_iter().map(|(receiver, entries)| (receiver, Message::Permit { entries })).collect()
    }
}

#[cfg(test)]
#[path = "permits_tests.rs"]
mod tests;
