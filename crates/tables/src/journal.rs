//! What has changed in a gateway's tables lately, by network: a host asks for this once instead of asking for each path that it has
//! (Achelous section 4.3; `api/rsp.md`, Reconcile). It is no part of the tables: an agent that starts knows no earlier changes.
//!
//! A change is a prefix of a network, and the paths to its addresses may have changed. The writer of the tables notes it before it
//! records the revision to which the change belongs, so whoever has read a revision finds all changes up to it:
//!
//! ```text
//!     writer:   changes an entry, notes the change    ...    gives the notes their revision, records the revision in the tables
//!     reader:                                  reads the revision r from the tables, asks for the changes up to r
//! ```
//!
//! Endpoints that are added are no changes: a path leads only to an endpoint that there was.
//!
//! With the changes of a network those of its peers are told, as far as its routes lead there: so one question covers the paths into
//! peered networks, too.

mod peers;

pub use peers::{PEER_ROUTES_MAX, PEERS_MAX};

use peers::{Peers, common_part};
use sluice_types::{IpNet, Vni};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Changes that are remembered, of all networks. At 1200 changes a second, those of more than three minutes.
pub const CHANGES_MAX: usize = 1 << 18;

/// Changes of one network that a question looks at. If there are more, the answer is of an earlier revision.
const SCAN_MAX: usize = 256;

/// The revision of changes whose revision is not recorded yet.
const PENDING: u64 = u64::MAX;

/// What has changed in a network after a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Only the paths to these prefixes, up to this revision.
    Known {
        /// Newer than the one that was asked for, or the same if nothing has changed.
        revision: u64,
        /// In the order in which they changed. One may be there several times.
        prefixes: Vec<IpNet>,
    },
    /// That is not known: it was too long ago.
    Unknown,
}

/// The journal of a gateway's tables. Cheap to clone; clones are of the same journal.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<Log>>);

#[derive(Debug)]
struct Log {
    /// All changes after this revision are known; none are while it is [`PENDING`].
    known_since: u64,
    /// The last one that was recorded.
    recorded: u64,
    /// Revision and network of each change, the oldest first.
    order: VecDeque<(u64, Vni)>,
    /// The changes of each network, in the same order. A network without changes has no entry.
    networks: HashMap<Vni, VecDeque<(u64, IpNet)>>,
    peers: Peers,
    /// Number of the last changes of `order` whose revision is not recorded yet.
    pending: usize,
    changes_max: usize,
}

impl Journal {
    /// A journal of tables of this revision, of which nothing is written yet that belongs to a later one; 0: they are of no
    /// revision, or it is not known what was written.
    #[must_use]
    pub fn new(revision: u64) -> Self {
        Self::with_room(revision, CHANGES_MAX)
    }

    fn with_room(revision: u64, changes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Log {
            known_since: if revision == 0 { PENDING } else { revision },
            recorded: revision,
            order: VecDeque::new(),
            networks: HashMap::new(),
            peers: Peers::default(),
            pending: 0,
            changes_max,
        })))
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that paths of a network to addresses of this prefix may have changed.
    pub(crate) fn note(&self, vni: Vni, prefix: IpNet) {
        self.log().note(vni, prefix);
    }

    /// Notes that all paths of a network may have changed.
    pub(crate) fn note_network(&self, vni: Vni) {
        let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        for prefix in all.into_iter().filter_map(|address| IpNet::new(address, 0).ok()) {
            self.note(vni, prefix);
        }
    }

    /// Takes over where routes to peers lead, which were there before the journal.
    pub(crate) fn adopt_routes(&self, routes: impl Iterator<Item = (Vni, IpNet, Vni)>) {
        let mut log = self.log();
        for (vni, prefix, peer) in routes {
            log.peers.set(vni, prefix, Some(peer));
        }
    }

    /// Notes that the route of a network with this prefix has changed: to which peer it leads now, if it leads to one without meters.
    pub(crate) fn note_route(&self, vni: Vni, prefix: IpNet, peer: Option<Vni>) {
        let is_told = self.log().peers.set(vni, prefix, peer);
        self.note(vni, prefix);
        if !is_told {
            self.note_network(vni);
        }
    }

    /// Notes that many routes of a network have changed: where those with these prefixes lead now.
    pub(crate) fn note_routes(&self, vni: Vni, routes: impl Iterator<Item = (IpNet, Option<Vni>)>) {
        let mut log = self.log();
        for (prefix, peer) in routes {
            log.peers.set(vni, prefix, peer);
        }
        drop(log);
        self.note_network(vni);
    }

    /// Notes that a network has ended, with its routes.
    pub(crate) fn note_end(&self, vni: Vni) {
        self.log().peers.forget(vni);
        self.note_network(vni);
    }

    /// Notes that any path may have changed.
    pub(crate) fn note_all(&self) {
        let mut log = self.log();
        log.known_since = PENDING;
        log.clear();
    }

    /// The changes that were noted belong to this revision or an earlier one. Must be called before readers find the revision in
    /// the tables. What was written late, after its revision was recorded, belongs to the next one.
    pub(crate) fn complete(&self, revision: u64) {
        if revision != 0 {
            self.log().complete(revision);
        }
    }

    /// Whether changes of an address of a peer are told with those of the network: a route of the network leads there, and it
    /// has at most [`PEERS_MAX`] peers and [`PEER_ROUTES_MAX`] routes to them.
    #[must_use]
    pub fn tells_of_peer(&self, vni: Vni, peer: Vni, address: IpAddr) -> bool {
        self.log().peers.tell(vni, peer, address)
    }

    /// What has changed in a network, and in its peers as far as its routes lead there, after the revision `since`, up to the revision `current`, which was read from the tables
    /// before. If more than `max` prefixes have, the answer is of an earlier revision than `current`; if more have in one revision, it has
    /// shorter prefixes, which contain them. `None`: the tables are older than `since`, or of no revision.
    #[must_use]
    pub fn changes(&self, vni: Vni, since: u64, current: u64, max: usize) -> Option<Changes> {
        (current != 0 && since <= current).then(|| self.log().changes(vni, since, current, max))
    }

    /// Number of changes that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.log().order.len()
    }

    /// Whether no change is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Log {
    fn clear(&mut self) {
        self.order.clear();
        self.networks.clear();
        self.pending = 0;
    }

    fn note(&mut self, vni: Vni, prefix: IpNet) {
        let of_network = self.networks.entry(vni).or_default();
        if of_network.back() == Some(&(PENDING, prefix)) {
            return;
        }
        of_network.push_back((PENDING, prefix));
        self.order.push_back((PENDING, vni));
        self.pending += 1;
        if self.order.len() > self.changes_max {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((revision, vni)) = self.order.pop_front() else { return };
        // Changes of the same revision that are still there are not asked for any more.
        self.known_since = revision;
        self.pending = self.pending.min(self.order.len());
        if let Some(of_network) = self.networks.get_mut(&vni) {
            of_network.pop_front();
            if of_network.is_empty() {
                self.networks.remove(&vni);
            }
        }
    }

    fn complete(&mut self, revision: u64) {
        if std::mem::replace(&mut self.recorded, revision) == revision && self.pending > 0 {
            return;
        }
        if self.known_since == PENDING {
            self.known_since = revision;
        }
        let first = self.order.len() - self.pending;
        for (noted, vni) in self.order.range_mut(first..) {
            *noted = revision;
            let Some(of_network) = self.networks.get_mut(vni) else { continue };
            let pending = of_network.iter_mut().rev().take_while(|(noted, _)| *noted == PENDING);
            pending.for_each(|(noted, _)| *noted = revision);
        }
        self.pending = 0;
    }

    fn changes(&self, vni: Vni, since: u64, current: u64, max: usize) -> Changes {
        if since < self.known_since {
            return Changes::Unknown;
        }
        let (mut found, mut revision) = self.part(vni, since, current);
        for (peer, routed) in self.peers.of(vni) {
            let (of_peer, up_to) = self.part(peer, since, current);
            revision = revision.min(up_to);
            let part = move |(at, prefix): (u64, IpNet)| {
                routed.iter().filter_map(move |routed| Some((at, common_part(prefix, *routed)?)))
            };
            found.extend(of_peer.into_iter().flat_map(part));
        }
        found.retain(|(at, _)| *at <= revision);
        found.sort_by_key(|(at, _)| *at);
        if found.len() > max {
            // Changes of one revision stay together, because a host asks for those after a revision.
            let (first_left_out, _) = found[max];
            let end = found.partition_point(|(at, _)| *at < first_left_out);
            if end == 0 {
                let all = found.iter().take_while(|(at, _)| *at == first_left_out).map(|(_, prefix)| *prefix);
                return Changes::Known { revision: first_left_out, prefixes: common_prefixes(all) };
            }
            revision = found[end - 1].0;
            found.truncate(end);
        }
        Changes::Known { revision, prefixes: found.into_iter().map(|(_, prefix)| prefix).collect() }
    }

    /// The changes of one network after a revision, up to the revision that is returned, which is `current` unless there are many.
    fn part(&self, vni: Vni, since: u64, current: u64) -> (Vec<(u64, IpNet)>, u64) {
        let Some(of_network) = self.networks.get(&vni) else { return (Vec::new(), current) };
        let from = of_network.partition_point(|(revision, _)| *revision <= since);
        let to = of_network.partition_point(|(revision, _)| *revision <= current);
        if to - from <= SCAN_MAX {
            return (of_network.range(from..to).copied().collect(), current);
        }
        let (first_left_out, _) = of_network[from + SCAN_MAX];
        let end = of_network.partition_point(|(revision, _)| *revision < first_left_out);
        if end > from {
            return (of_network.range(from..end).copied().collect(), of_network[end - 1].0);
        }
        // One revision has more.
        let end = of_network.partition_point(|(revision, _)| *revision <= first_left_out);
        let all = common_prefixes(of_network.range(from..end).map(|(_, prefix)| *prefix));
        (all.into_iter().map(|prefix| (first_left_out, prefix)).collect(), first_left_out)
    }
}

/// For each family, the longest prefix that contains all of these.
fn common_prefixes(prefixes: impl Iterator<Item = IpNet>) -> Vec<IpNet> {
    let mut common: [Option<IpNet>; 2] = [None; 2];
    for prefix in prefixes {
        let known = &mut common[usize::from(prefix.addr().is_ipv6())];
        let mut wider = known.unwrap_or(prefix);
        while !wider.contains(&prefix) {
            // A prefix of length 0 contains all of its family.
            let Some(shorter) = wider.supernet() else { break };
            wider = shorter;
        }
        *known = Some(wider);
    }
    common.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn known(revision: u64, prefixes: &[&str]) -> Option<Changes> {
        Some(Changes::Known { revision, prefixes: prefixes.iter().map(|it| net(it)).collect() })
    }

    const UNKNOWN: Option<Changes> = Some(Changes::Unknown);

    #[test]
    fn changes_after_a_revision_are_told_by_network() {
        let journal = Journal::new(10);
        let ask = |number, since, current| journal.changes(vni(number), since, current, 8);
        assert_eq!(ask(1, 10, 10), known(10, &[]));
        assert_eq!((ask(1, 9, 10), ask(1, 11, 10), ask(1, 0, 0)), (UNKNOWN, None, None));
        journal.note(vni(1), net("10.0.0.1/32"));
        journal.note(vni(1), net("10.0.0.1/32"));
        journal.note(vni(2), net("fd00::1/128"));
        // The revision is not recorded yet.
        assert_eq!(ask(1, 10, 10), known(10, &[]));
        journal.complete(12);
        assert_eq!(ask(1, 10, 10), known(10, &[]), "a reader that still sees the earlier revision");
        assert_eq!(ask(1, 10, 12), known(12, &["10.0.0.1/32"]));
        assert_eq!(ask(2, 11, 12), known(12, &["fd00::1/128"]));
        assert_eq!((ask(1, 12, 12), ask(3, 10, 12)), (known(12, &[]), known(12, &[])));
        journal.note_network(vni(1));
        journal.complete(13);
        assert_eq!(ask(1, 10, 13), known(13, &["10.0.0.1/32", "0.0.0.0/0", "::/0"]));
        assert_eq!(ask(1, 12, 13), known(13, &["0.0.0.0/0", "::/0"]));
        assert_eq!(ask(2, 12, 13), known(13, &[]));
    }

    #[test]
    fn what_is_too_much_is_told_in_parts_of_whole_revisions() {
        let journal = Journal::new(1);
        for (revision, addresses) in [(2, 1..3), (3, 3..4), (4, 4..9)] {
            addresses.for_each(|last| journal.note(vni(1), net(&format!("10.0.0.{last}/32"))));
            journal.complete(revision);
        }
        let ask = |since, max| journal.changes(vni(1), since, 4, max);
        let (two, three) = (["10.0.0.1/32", "10.0.0.2/32"], ["10.0.0.3/32"]);
        assert_eq!(ask(1, 2), known(2, &two));
        assert_eq!((ask(2, 2), ask(2, 5)), (known(3, &three), known(3, &three)));
        assert_eq!(ask(1, 7), known(3, &[&two[..], &three].concat()));
        assert!(matches!(ask(1, 8), Some(Changes::Known { revision: 4, prefixes }) if prefixes.len() == 8));
        // One revision has more than fit.
        assert_eq!((ask(3, 4), ask(1, 1)), (known(4, &["10.0.0.0/28"]), known(2, &["10.0.0.0/30"])));
        for prefix in ["fd00::1:0/112", "fd00::3/128", "10.1.0.0/16", "10.0.0.0/16"] {
            journal.note(vni(2), net(prefix));
        }
        journal.complete(5);
        assert_eq!(journal.changes(vni(2), 4, 5, 2), known(5, &["10.0.0.0/15", "fd00::/111"]));
        journal.note(vni(3), net("10.0.0.0/8"));
        journal.note(vni(3), net("192.0.2.0/24"));
        journal.complete(6);
        assert_eq!(journal.changes(vni(3), 5, 6, 1), known(6, &["0.0.0.0/0"]));
    }

    #[test]
    fn changes_of_peers_are_told_as_far_as_routes_lead_there() {
        let journal = Journal::new(10);
        let ask = |since, current| journal.changes(vni(1), since, current, 8);
        journal.note(vni(2), net("10.2.0.9/32"));
        journal.complete(11);
        assert_eq!(ask(10, 11), known(11, &[]), "they are no peers");
        journal.note_route(vni(1), net("10.2.0.0/16"), Some(vni(2)));
        journal.note_route(vni(2), net("10.0.0.0/8"), Some(vni(3)));
        journal.complete(12);
        assert_eq!(
            ask(11, 12),
            known(12, &["10.2.0.0/16", "10.2.0.0/16"]),
            "both networks have other routes"
        );
        assert!(journal.tells_of_peer(vni(1), vni(2), net("10.2.0.9/32").addr()));
        journal.note(vni(2), net("10.2.0.9/32"));
        journal.note(vni(1), net("10.1.0.1/32"));
        journal.note(vni(2), net("10.9.0.9/32"));
        journal.note(vni(3), net("10.2.0.7/32"));
        journal.complete(13);
        let both = ["10.1.0.1/32", "10.2.0.9/32"];
        assert_eq!(ask(12, 13), known(13, &both), "not what no route leads to, nor what is behind two");
        // The peer as a whole, the newest change at last; then the peer's routes lead nowhere.
        journal.note_network(vni(2));
        journal.complete(14);
        assert_eq!(ask(12, 14), known(14, &["10.1.0.1/32", "10.2.0.9/32", "10.2.0.0/16"]));
        assert_eq!(journal.changes(vni(1), 12, 14, 2), known(13, &both));
        journal.note_end(vni(1));
        journal.note(vni(2), net("10.2.0.9/32"));
        journal.complete(15);
        assert_eq!(ask(14, 15), known(15, &["0.0.0.0/0", "::/0"]));
        assert!(!journal.tells_of_peer(vni(1), vni(2), net("10.2.0.9/32").addr()));
    }

    #[test]
    fn busy_peers_are_told_in_parts_of_whole_revisions() {
        let journal = Journal::new(1);
        journal.adopt_routes([(vni(1), net("10.2.0.0/24"), vni(2))].into_iter());
        for revision in 2..=4 {
            // Most of it is where no route leads.
            for last in 0..SCAN_MAX {
                journal.note(vni(2), net(&format!("10.2.{}.{}/32", revision, last % 256)));
            }
            journal.note(vni(2), net(&format!("10.2.0.{revision}/32")));
            journal.complete(revision);
        }
        let ask = |since| journal.changes(vni(1), since, 4, 8);
        // Each revision alone is more than a question looks at: the prefix that contains all of it, as far as it is routed.
        assert_eq!(ask(1), known(2, &["10.2.0.0/24"]));
        assert_eq!((ask(2), ask(3)), (known(3, &["10.2.0.0/24"]), known(4, &["10.2.0.0/24"])));
        assert_eq!(ask(4), known(4, &[]));
        let quiet = Journal::new(1);
        quiet.adopt_routes([(vni(1), net("10.2.0.0/24"), vni(2))].into_iter());
        for revision in 2..=4 {
            (0..SCAN_MAX / 2).for_each(|last| quiet.note(vni(2), net(&format!("10.9.0.{last}/32"))));
            quiet.note(vni(2), net(&format!("10.2.0.{revision}/32")));
            quiet.complete(revision);
        }
        assert_eq!(quiet.changes(vni(1), 1, 4, 8), known(2, &["10.2.0.2/32"]));
        assert_eq!(quiet.changes(vni(1), 2, 4, 8), known(3, &["10.2.0.3/32"]));
        assert_eq!(quiet.changes(vni(1), 3, 4, 8), known(4, &["10.2.0.4/32"]));
    }

    #[test]
    fn paths_to_peers_change_when_there_are_too_many() {
        let journal = Journal::new(1);
        let all = ["0.0.0.0/0", "::/0"];
        for number in 0..=PEERS_MAX as u32 {
            let route = net(&format!("10.{number}.0.0/16"));
            journal.note_route(vni(1), route, Some(vni(2 + number)));
        }
        journal.complete(2);
        let Some(Changes::Known { prefixes, .. }) = journal.changes(vni(1), 1, 2, usize::MAX) else {
            panic!("the journal knows all")
        };
        let last: Vec<String> = prefixes.iter().rev().take(2).rev().map(IpNet::to_string).collect();
        assert_eq!(last, all, "hosts ask about all paths again, and learn that they are not told by network");
        assert!(!journal.tells_of_peer(vni(1), vni(2), net("10.0.0.1/32").addr()));
    }

    /// What was written after its revision was recorded has no revision of its own.
    #[test]
    fn what_is_written_late_is_told_with_the_next_revision() {
        let journal = Journal::new(5);
        journal.complete(6);
        journal.note(vni(1), net("10.0.0.1/32"));
        journal.complete(6);
        assert_eq!(journal.changes(vni(1), 5, 6, 8), known(6, &[]));
        journal.complete(7);
        assert_eq!(journal.changes(vni(1), 6, 7, 8), known(7, &["10.0.0.1/32"]));
    }

    #[test]
    fn the_oldest_changes_are_forgotten() {
        let journal = Journal::with_room(1, 4);
        for revision in 2..8 {
            journal.note(vni(revision % 2 + 1), net(&format!("10.0.0.{revision}/32")));
            journal.complete(revision.into());
        }
        let ask = |number, since| journal.changes(vni(number), since, 7, 8);
        assert_eq!((journal.len(), ask(1, 2), ask(2, 2)), (4, UNKNOWN, UNKNOWN));
        assert_eq!(ask(1, 3), known(7, &["10.0.0.4/32", "10.0.0.6/32"]));
        assert_eq!(ask(2, 3), known(7, &["10.0.0.5/32", "10.0.0.7/32"]));
        // More than there is room for before the revision is recorded.
        (0..6).for_each(|last| journal.note(vni(1), net(&format!("10.0.1.{last}/32"))));
        assert_eq!((ask(1, 7), journal.len()), (UNKNOWN, 4));
        journal.complete(9);
        assert_eq!(journal.changes(vni(1), 8, 9, 8), UNKNOWN);
        assert_eq!(journal.changes(vni(1), 9, 9, 8), known(9, &[]));
        journal.note(vni(1), net("10.0.2.0/24"));
        journal.complete(10);
        assert_eq!(journal.changes(vni(1), 9, 10, 8), known(10, &["10.0.2.0/24"]));
    }

    #[test]
    fn nothing_is_known_before_the_first_revision_and_after_a_change_of_all() {
        let journal = Journal::new(0);
        journal.note(vni(1), net("10.0.0.1/32"));
        journal.complete(0);
        assert_eq!(journal.changes(vni(1), 5, 0, 8), None);
        journal.complete(5);
        assert_eq!(journal.changes(vni(1), 4, 5, 8), UNKNOWN);
        assert_eq!(journal.changes(vni(1), 5, 5, 8), known(5, &[]));
        journal.note_all();
        assert_eq!(journal.changes(vni(1), 5, 5, 8), UNKNOWN);
        journal.complete(6);
        assert_eq!(journal.changes(vni(1), 5, 6, 8), UNKNOWN);
        assert_eq!((journal.changes(vni(1), 6, 6, 8), journal.is_empty()), (known(6, &[]), true));
    }
}
