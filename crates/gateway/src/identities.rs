//! Identities of instances, which a host needs to judge packets by egress rules that name a group: the gateway passes the
//! question to the destination's host, and the answer to the hosts that have asked. Gateways have no identities
//! themselves. Pure: times are arguments. This file changes with the rules for who is asked and who is told.
//!
//! The state of a destination:
//!
//! ```text
//!                a host asks: Identify is sent          Identity from the destination's host
//!      no record ------------------------> ASKED ----------------------> ANSWERED
//!          ^                                |  ^                            |
//!          |       1 s after the question   |  |   asked 100 ms later: Identify is sent again
//!          +--------------------------------+  +----------------------------+
//! ```
//!
//! Who asks within 100 ms after the question gets the same answer, so a host gets at most ten questions a second about
//! one of its instances, whatever other hosts ask.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use sluice_agent::rsp::Batcher;
use sluice_rsp::{Destination, IdentityEntry, Message};
use sluice_tables::{Location, Reader, Role};
use sluice_types::Vni;

/// The destination's host is asked at most once in this time.
const QUIET_US: u64 = 100_000;
/// Time after a question in which an answer is accepted. Then the record is forgotten.
const ANSWER_US: u64 = 1_000_000;
/// Questions within this time are sent together.
const GATHER_US: u64 = 500;
/// Destinations that are remembered.
const RECORDS_MAX: usize = 65_536;
/// Destinations of one network that are remembered while more than half of the space is used, so that the questions of
/// one tenant leave space for others.
const SHARE_MAX: usize = RECORDS_MAX / 32;
/// Hosts that wait for one answer. Further ones ask again.
const ASKERS_MAX: usize = 16;
/// Interval at which forgotten records are removed.
const SWEEP_US: u64 = 1_000_000;

/// Who can tell the identity of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The host with this VTEP.
    Host(IpAddr),
    /// No host: the destination is no instance of the network, or on a host without a vSwitch. Its identity is 0.
    NoHost,
    /// The tables cannot tell at present, or the host that asks has no instance of the network.
    Unknown,
}

/// Who can tell the identity of `destination` to the host at `asker`. `revision` was read from the tables before; it is
/// 0 while a snapshot is incomplete.
pub fn holder(reader: &Reader, revision: u64, asker: IpAddr, destination: &Destination) -> Holder {
    // The tables may learn of an asker's first instance a moment after the asker: it asks again.
    if revision == 0 || !reader.is_sender(destination.vni, asker).unwrap_or(false) {
        return Holder::Unknown;
    }
    let (vni, host) = match reader.locate(destination.vni, destination.address) {
        Location::Found(location) => (location.vni, location.host),
        // All vNICs of a mount have the same identity, so the host of any member can tell it.
        Location::Mount(mount) => match mount.host {
            Some(host) => (mount.vni, host),
            None => return Holder::NoHost,
        },
        Location::NotFound => return Holder::NoHost,
        Location::Busy => return Holder::Unknown,
    };
    // An identity means something in its own network only.
    if vni != destination.vni {
        return Holder::NoHost;
    }
    match reader.role(host) {
        Ok(Some(Role::Host)) => Holder::Host(host),
        Ok(_) => Holder::NoHost,
        Err(_) => Holder::Unknown,
    }
}

/// What becomes of a host's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The identity is known: the destination's host has told it a moment ago, or it is 0.
    Known(u16),
    /// The asker gets the answer when it arrives.
    Waiting,
    /// Too many questions wait, or the tables cannot tell which host to ask: it asks again.
    Ignored,
}

#[derive(Debug)]
struct Record {
    /// The destination's host.
    host: IpAddr,
    /// When the host was last asked; `None` only until it is asked first.
    asked_us: Option<u64>,
    /// Its answer to that question.
    answer: Option<u16>,
    /// Hosts that wait for the answer.
    askers: Vec<IpAddr>,
}

impl Record {
    fn was_asked_within(&self, now_us: u64, within_us: u64) -> bool {
        self.asked_us.is_some_and(|asked_us| now_us.saturating_sub(asked_us) < within_us)
    }
}

/// A gateway's questions for identities. Times are microseconds of a monotonic clock.
#[derive(Debug)]
pub struct Identities {
    records: HashMap<Destination, Record>,
    /// Number of records by network.
    by_network: HashMap<Vni, usize>,
    /// Repetitions are suppressed by the records, not by the batcher.
    batcher: Batcher<IpAddr, (), Destination>,
    swept_us: u64,
}

impl Identities {
    pub fn new() -> Self {
        Self {
            records: HashMap::new(),
            by_network: HashMap::new(),
            batcher: Batcher::new(0, GATHER_US, 0),
            swept_us: 0,
        }
    }

    /// Number of destinations that are remembered.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Asks the destination's host, for the host at `asker`.
    pub fn ask(&mut self, now_us: u64, asker: IpAddr, destination: Destination, host: IpAddr) -> Asked {
        self.sweep(now_us);
        if !self.records.contains_key(&destination) {
            if !self.has_space(destination.vni) {
                return Asked::Ignored;
            }
            *self.by_network.entry(destination.vni).or_default() += 1;
        }
        let new = || Record { host, asked_us: None, answer: None, askers: Vec::new() };
        let record = self.records.entry(destination).or_insert_with(new);
        let was_asked = record.host == host && record.was_asked_within(now_us, QUIET_US);
        if let Some(identity) = record.answer.filter(|_| was_asked) {
            return Asked::Known(identity);
        }
        if !was_asked {
            (record.host, record.asked_us, record.answer) = (host, Some(now_us), None);
            self.batcher.push(host, destination);
        }
        if record.askers.contains(&asker) {
            return Asked::Waiting;
        }
        if record.askers.len() >= ASKERS_MAX {
            return Asked::Ignored;
        }
        record.askers.push(asker);
        Asked::Waiting
    }

    /// Takes the answers of the host at `from`. Returns them by the hosts that wait for them. Ignores what the host was
    /// not asked, so it can speak of its own instances only.
    pub fn answer(
        &mut self,
        now_us: u64,
        from: IpAddr,
        entries: &[IdentityEntry],
    ) -> BTreeMap<IpAddr, Vec<IdentityEntry>> {
        let mut answers: BTreeMap<IpAddr, Vec<IdentityEntry>> = BTreeMap::new();
        for entry in entries {
            let Some(record) = self.records.get_mut(&entry.destination) else { continue };
            if record.host != from || !record.was_asked_within(now_us, ANSWER_US) {
                continue;
            }
            record.answer = Some(entry.identity);
            for asker in std::mem::take(&mut record.askers) {
                answers.entry(asker).or_default().push(*entry);
            }
        }
        answers
    }

    fn has_space(&self, vni: Vni) -> bool {
        let of_network = self.by_network.get(&vni).copied().unwrap_or_default();
        let limit = if self.records.len() < RECORDS_MAX / 2 { RECORDS_MAX } else { SHARE_MAX };
        self.records.len() < RECORDS_MAX && of_network < limit
    }

    fn sweep(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.swept_us) < SWEEP_US {
            return;
        }
        self.swept_us = now_us;
        let is_old = |_: &Destination, record: &mut Record| !record.was_asked_within(now_us, ANSWER_US);
        for (destination, _) in self.records.extract_if(is_old) {
            if let Some(of_network) = self.by_network.get_mut(&destination.vni) {
                *of_network -= 1;
            }
        }
        self.by_network.retain(|_, of_network| *of_network > 0);
    }

    /// Time at which [`Identities::take`] is due; `None` if no question waits.
    pub fn due_us(&self) -> Option<u64> {
        self.batcher.due_us()
    }

    /// Takes the questions that wait to be sent, with the hosts to ask.
    pub fn take(&mut self, now_us: u64) -> impl Iterator<Item = (IpAddr, Message)> + use<> {
        let identify = |(host, entries)| (host, Message::Identify { entries });
        self.batcher.take(now_us).into_iter().map(identify)
    }
}

#[cfg(test)]
#[path = "identities_tests.rs"]
mod tests;
