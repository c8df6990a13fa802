//! What gateways tell of a network as a whole: which of its paths have changed since a revision. As long as they tell it, the paths of
//! the network need no confirmation of their own every 100 ms, so what a host asks depends on its networks, and on what changes,
//! not on its paths (`api/rsp.md`, Reconcile).
//!
//! ```text
//!                    Unknown: after this revision the gateway knows all changes
//!     SILENT ----------------------------------------------------------------> TOLD(revision) ---+
//!        ^                                                                      |    ^           | Current: what has changed
//!        |       no Current for `network_silence_ms`: from no gateway           |    +-----------+ up to a later revision
//!        +----------------------------------------------------------------------+
//! ```
//!
//! A path is covered if its gateway says that changes of it are told by network, and its revision is at least that of TOLD when it is
//! learned or confirmed. From then on it is as new as TOLD. It stops being covered when an answer names its address; then it is queried at once. It
//! also does when the answers stop; then the paths are queried one by one, within a second.

use super::table::{Entry, Slot};
use super::{Cache, Queries};
use crate::message::{NetworkAnswer, NetworkQuery};
use sluice_types::{IpNet, Vni};
use std::net::IpAddr;

/// Changes in an answer after which the gateway probably has more to tell.
const MANY_CHANGES: usize = 32;
/// Time over which the queries of all paths of a network are spread that is told no more.
const SPREAD_MS: u64 = 1_000;
/// Unanswered queries about a network after which it is queried seldom: its gateways may not know this message.
const UNANSWERED_MAX: u8 = 20;
const SELDOM_MS: u64 = 1_000;

/// A network of this host.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// Underlay addresses of the gateways to query.
    pub gateways: Vec<IpAddr>,
    told: Option<Told>,
    /// There are paths whose changes gateways tell by network.
    is_wanted: bool,
    /// Time of the next query.
    due_ms: u64,
    /// Number of queries since the last answer, and of all.
    unanswered: u8,
    asked: u32,
}

/// All changes are told up to a revision.
#[derive(Clone, Copy, Debug)]
struct Told {
    revision: u64,
    at_ms: u64,
}

impl Cache {
    fn told(&self, vni: Vni) -> Option<u64> {
        self.networks.get(&vni)?.told.map(|told| told.revision)
    }

    /// The revision of an entry's path; 0 if it has none.
    pub(super) fn revision_of(&self, entry: &Entry) -> u64 {
        let told = self.told(entry.destination.vni).filter(|_| entry.is_covered);
        entry.path.map_or(0, |path| path.revision.max(told.unwrap_or(0)))
    }

    /// The revision below which answers about an entry are too old.
    pub(super) fn revision_min_of(&self, entry: &Entry) -> u64 {
        if entry.is_covered { self.revision_of(entry).max(entry.revision_min) } else { entry.revision_min }
    }

    /// The gateway of a network whose turn it is.
    fn gateway_of(&self, vni: Vni, turn: u32) -> Option<IpAddr> {
        let gateways = &self.networks.get(&vni)?.gateways;
        gateways.get(turn as usize % gateways.len().max(1)).copied()
    }

    /// The gateway that is queried about an entry: in each round the same one for all of a network, so that queries share packets. About a
    /// covered path it is always the same one while that answers, because each gateway renews its own permit of the path's host.
    pub(super) fn gateway_for(&self, entry: &Entry) -> Option<IpAddr> {
        let host = entry.path.filter(|_| entry.is_covered).map(|path| match path.host {
            IpAddr::V4(host) => u32::from(host),
            IpAddr::V6(host) => {
                host.octets().iter().fold(0, |sum: u32, byte| sum.wrapping_mul(31) + u32::from(*byte))
            }
        });
        let turn = host.map_or(self.round, |host| host.wrapping_add(entry.unanswered.into()));
        self.gateway_of(entry.destination.vni, turn)
    }

    /// Decides whether the answers about its network cover a path that was learned or confirmed now.
    pub(super) fn cover(&mut self, now_ms: u64, slot: Slot) {
        let entry = self.table.get(slot);
        let Some(path) = entry.path.filter(|path| path.by_network) else {
            self.table.update(slot, |entry| entry.is_covered = false);
            return;
        };
        let Some(network) = self.networks.get_mut(&entry.destination.vni) else { return };
        network.is_wanted = true;
        let is_covered = network.told.is_some_and(|told| path.revision >= told.revision);
        // Paths are often learned at the same time.
        let whole_ms = self.config.confirm_covered_ms;
        let earlier_ms = spread(slot, whole_ms / 4);
        self.table.update(slot, |entry| {
            entry.is_covered = is_covered;
            if is_covered {
                entry.due_ms = now_ms.saturating_add(whole_ms - earlier_ms);
            }
        });
    }

    /// Lets paths be queried within `within_ms`, and not be covered. They are as new as the network was told.
    fn uncover(&mut self, now_ms: u64, slots: &[Slot], told: u64, within_ms: u64) {
        for slot in slots {
            self.table.update(*slot, |entry| {
                if std::mem::take(&mut entry.is_covered) {
                    entry.due_ms = now_ms.saturating_add(spread(*slot, within_ms));
                    entry.unanswered = 0;
                    if let Some(path) = &mut entry.path {
                        path.revision = path.revision.max(told);
                        entry.revision_min = entry.revision_min.max(path.revision);
                    }
                }
            });
        }
    }

    /// Queries gateways about the networks that are due.
    pub(super) fn query_due_networks(&mut self, now_ms: u64, queries: &mut Queries) {
        let due: Vec<Vni> =
            self.networks.iter().filter(|(_, it)| it.is_wanted).map(|(vni, _)| *vni).collect();
        for vni in due {
            let Some(network) = self.networks.get_mut(&vni) else { continue };
            if !self.table.has_network(vni) {
                (network.is_wanted, network.told) = (false, None);
                continue;
            }
            let silence_ms = self.config.network_silence_ms;
            if let Some(told) = network.told.take_if(|told| now_ms.saturating_sub(told.at_ms) > silence_ms) {
                self.stats.networks_silent += 1;
                let slots = self.table.slots_of_network(vni);
                self.uncover(now_ms, &slots, told.revision, SPREAD_MS);
            }
            if self.networks.get(&vni).is_some_and(|network| network.due_ms <= now_ms) {
                self.query_network(now_ms, vni, queries);
            }
        }
    }

    fn query_network(&mut self, now_ms: u64, vni: Vni, queries: &mut Queries) {
        let turn = self.networks.get(&vni).map_or(0, |network| network.asked.wrapping_add(self.config.seed));
        let Some(gateway) = self.gateway_of(vni, turn) else { return };
        let Some(network) = self.networks.get_mut(&vni) else { return };
        let interval_ms = if network.unanswered < UNANSWERED_MAX { self.config.round_ms } else { SELDOM_MS };
        network.due_ms = now_ms.saturating_add(interval_ms);
        network.unanswered = network.unanswered.saturating_add(1);
        network.asked = network.asked.wrapping_add(1);
        let since = network.told.map_or(0, |told| told.revision);
        self.stats.networks_requested += 1;
        queries.networks.entry(gateway).or_default().push(NetworkQuery { vni, since });
    }

    /// Handles what a gateway tells of networks. Changes count only with the entry that ends them.
    pub(super) fn reconcile(
        &mut self,
        now_ms: u64,
        answers: &[NetworkAnswer],
        key_covers: &dyn Fn(Vni) -> bool,
        queries: &mut Queries,
    ) {
        let mut changes: Vec<(Vni, IpNet)> = Vec::new();
        for answer in answers {
            match *answer {
                NetworkAnswer::Changed { vni, prefix } => changes.push((vni, prefix)),
                NetworkAnswer::Current { vni, .. } | NetworkAnswer::Unknown { vni, .. }
                    if !key_covers(vni) =>
                {
                    self.stats.other_cluster += 1;
                    changes.clear();
                }
                NetworkAnswer::Current { vni, since, revision, changes: count } => {
                    let is_whole =
                        changes.len() == usize::from(count) && changes.iter().all(|(of, _)| *of == vni);
                    let is_next = self.told(vni) == Some(since) && revision >= since;
                    if is_whole && is_next {
                        self.note_changes(now_ms, vni, revision, &changes, queries);
                    } else {
                        self.stats.stale += 1;
                    }
                    changes.clear();
                }
                NetworkAnswer::Unknown { vni, since, revision } => {
                    self.note_unknown(now_ms, vni, since, revision);
                    changes.clear();
                }
            }
        }
        self.query_due_entries(now_ms, queries);
    }

    fn note_told(&mut self, now_ms: u64, vni: Vni, revision: u64) {
        if let Some(network) = self.networks.get_mut(&vni) {
            network.told = Some(Told { revision, at_ms: now_ms });
            network.due_ms = now_ms.saturating_add(self.config.confirm_after_ms);
            network.unanswered = 0;
        }
    }

    fn note_changes(
        &mut self,
        now_ms: u64,
        vni: Vni,
        revision: u64,
        changes: &[(Vni, IpNet)],
        queries: &mut Queries,
    ) {
        self.stats.networks_reconciled += 1;
        self.stats.changes += changes.len() as u64;
        let told = self.told(vni).unwrap_or(0);
        for (_, prefix) in changes {
            let slots = self.table.slots_within(vni, *prefix);
            self.uncover(now_ms, &slots, told, 0);
            for slot in slots {
                self.table.update(slot, |entry| {
                    if entry.path.is_none_or(|path| path.revision < revision) {
                        entry.revision_min = entry.revision_min.max(revision);
                        (entry.due_ms, entry.unanswered) = (now_ms, 0);
                    }
                });
            }
        }
        self.note_told(now_ms, vni, revision);
        if changes.len() >= MANY_CHANGES {
            self.query_network(now_ms, vni, queries);
        }
    }

    /// A gateway knows all changes only after `revision`. If another one has told more, it is asked next: that one may still know them.
    fn note_unknown(&mut self, now_ms: u64, vni: Vni, since: u64, revision: u64) {
        let told = self.told(vni);
        let Some(network) =
            self.networks.get_mut(&vni).filter(|_| told.unwrap_or(0) == since && revision >= since)
        else {
            self.stats.stale += 1;
            return;
        };
        self.stats.networks_unknown += 1;
        if told.is_some() {
            network.due_ms = now_ms;
        } else {
            self.note_told(now_ms, vni, revision);
        }
    }
}

/// A time below `within_ms` that differs between entries.
fn spread(slot: Slot, within_ms: u64) -> u64 {
    u64::from(slot.wrapping_mul(0x9e37_79b1) >> 16) % within_ms.max(1)
}
