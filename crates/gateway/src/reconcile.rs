//! What a gateway tells hosts of their networks as a whole, peers included: which paths have changed since a revision (Achelous
//! section 4.3). Pure: reads the tables and their journal. This file changes with what is told by network.

use std::collections::BTreeSet;
use std::net::IpAddr;

use sluice_rsp::{NetworkAnswer, NetworkQuery};
use sluice_tables::{Changes, Journal, Reader};

use crate::offload_metrics::{OffloadStats, Reconciliation};

/// Changes of a network in one answer. With IPv6 prefixes they take 1056 bytes of a packet, so an MTU of 1280 has room for them.
const CHANGES_MAX: usize = 48;
/// Networks with changes that are answered at once: each has a packet of its own. The host asks for others again.
const CHANGED_MAX: usize = 16;

/// Answers to the host at `from`, by packet: the changes of a network must be in one. There is no answer about a network of which the host
/// has no instance, about one that it asks for twice, and if the tables are older than what the host knows, or of no revision.
pub fn answers(
    reader: &Reader,
    journal: &Journal,
    from: IpAddr,
    queries: &[NetworkQuery],
    stats: &OffloadStats,
) -> Vec<Vec<NetworkAnswer>> {
    // Read before the journal, which has all changes up to it.
    let revision = reader.applied_revision();
    let (mut packets, mut short, mut answered) = (Vec::new(), Vec::new(), BTreeSet::new());
    for NetworkQuery { vni, since } in queries.iter().copied() {
        let is_sender = reader.is_sender(vni, from).unwrap_or(false);
        let is_answered = is_sender && answered.insert(vni);
        let changes = if is_answered { journal.changes(vni, since, revision, CHANGES_MAX) } else { None };
        let outcome = match changes {
            None => Reconciliation::Ignored,
            Some(Changes::Known { prefixes, .. }) if !prefixes.is_empty() && packets.len() == CHANGED_MAX => {
                Reconciliation::Ignored
            }
            Some(Changes::Unknown) => {
                short.push(NetworkAnswer::Unknown { vni, since, revision });
                Reconciliation::Unknown
            }
            Some(Changes::Known { revision, prefixes }) => {
                let current = NetworkAnswer::Current { vni, since, revision, changes: prefixes.len() as u16 };
                if prefixes.is_empty() {
                    short.push(current);
                    Reconciliation::Unchanged
                } else {
                    let changed = prefixes.into_iter().map(|prefix| NetworkAnswer::Changed { vni, prefix });
                    packets.push(changed.chain([current]).collect());
                    Reconciliation::Changed
                }
            }
        };
        stats.note_reconciliation(outcome);
    }
    if !short.is_empty() {
        packets.push(short);
    }
    packets
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
