//! The direct paths that a host knows, as a state machine. It learns paths from gateways, removes paths that
//! moved, are unused or were not confirmed in time, and queries the gateways about the paths that it has
//! (Achelous section 4.3: every 50 ms about paths older than 100 ms; most of them together, by network: `networks`). Packets to a
//! destination without a path go through the gateway, so a removed path costs a detour and never a packet.
//!
//! State of one destination; "Install" and "Remove" are the outputs to the forwarding table:
//!
//! ```text
//!                Notify: path / Install            or Adopt (restart of the agent)
//!      +-----------------------------------------------------------------------+
//!      |                                                                       v
//!   UNKNOWN --- Resolve ---> RESOLVING --- Reply or Notify: path / Install --> INSTALLED ---+
//!    ^   ^                   |    ^                                            |   |   ^    |
//!    |   |                   |    +--- Redirect from the path's host / Remove -+   |   +----+
//!    |   |                   |         (only a newer revision is accepted)         |  confirmed, or
//!    |   +-------------------+                                                     |  changed / Install
//!    |   no answer for `resolve_for_ms`, Absent, replaced, network removed         |
//!    +-----------------------------------------------------------------------------+
//!        Absent, lifetime over, unused for `idle_ms`, replaced, network removed / Remove
//! ```
//!
//! One timer drives the cache: `Wake` requests a `Tick` after `round_ms` while there are entries. At a tick,
//! entries expire, and gateways are queried about the entries that are due: an entry without a path at each
//! tick; a path `confirm_after_ms` after its last confirmation, or `confirm_covered_ms` if its network's answers cover it, then at
//! each tick, with exponential backoff after three unanswered queries. `queries_per_round_max` limits the rate (token bucket).
//!
//! Times are milliseconds of any clock that does not jump.

mod networks;
mod table;
#[cfg(test)]
mod tests;

use crate::message::{
    Answer, AnswerEntry, Capabilities, Destination, Message, NetworkQuery, Path, Query, Reception,
    RedirectEntry,
};
use networks::Network;
use sluice_types::Vni;
use std::collections::BTreeMap;
use std::net::IpAddr;
use table::{Entry, Slot, Table};

/// Most unanswered queries after which the interval to the query after the next is still one round.
const UNANSWERED_AT_FULL_RATE: u8 = 2;
/// Longest interval between two queries about a path: 2^5 rounds.
const BACKOFF_SHIFT_MAX: u8 = 5;
const ROUND_MS_MAX: u64 = 60_000;

/// Bounds and times of a [`Cache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest number of entries: paths and destinations that are being resolved; at least one.
    pub entries_max: usize,
    /// Interval between two rounds of queries: 1 to 60000.
    pub round_ms: u64,
    /// Age of the last confirmation at which a path is queried again.
    pub confirm_after_ms: u64,
    /// Longest age of the last confirmation of a path whose changes gateways tell with its network. The gateway renews
    /// the permit of the path's host meanwhile.
    pub confirm_covered_ms: u64,
    /// Time without an answer about a network after which its paths are confirmed one by one.
    pub network_silence_ms: u64,
    /// Largest number of queries per round, including those that are sent between two rounds.
    pub queries_per_round_max: u32,
    /// Time for which a destination without a path is queried.
    pub resolve_for_ms: u64,
    /// Longest time for which a path is used without confirmation, whatever lifetime a gateway states.
    pub lifetime_max_ms: u32,
    /// A path is removed if its hit counter has not changed for this time. Must be longer than the interval
    /// between two [`Input::Hits`].
    pub idle_ms: u64,
    /// What this host can do with packets of direct paths.
    pub capabilities: Capabilities,
    /// First gateway to query; random, so that hosts choose different gateways.
    pub seed: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            entries_max: 65_536,
            round_ms: 50,
            confirm_after_ms: 100,
            confirm_covered_ms: 5_000,
            network_silence_ms: 500,
            queries_per_round_max: 1024,
            resolve_for_ms: 1000,
            lifetime_max_ms: 60_000,
            idle_ms: 30_000,
            capabilities: Capabilities::OWN,
            seed: 0,
        }
    }
}

/// An event that the cache reacts to.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The gateways to query about a network: those of its cluster. An empty list means that this host no
    /// longer has the network; its paths are removed.
    Gateways {
        /// Network of the sender.
        vni: Vni,
        /// Underlay addresses, of an address family that this host has.
        addresses: &'a [IpAddr],
    },
    /// Paths that the forwarding table contains from before a restart. They stay installed and are queried at
    /// the next tick.
    Adopt(&'a [(Destination, Path)]),
    /// An authentic message to this host, whose key may speak for all networks.
    Message(&'a Message),
    /// Destinations that this host wants a path to, whether or not a gateway notifies it.
    Resolve(&'a [Destination]),
    /// Paths in the forwarding table, each with a number that grows when packets use it: their count, or the
    /// time of the last one. An input may contain all paths or only some of them.
    Hits(&'a [(Destination, u64)]),
    /// The time of [`Output::Wake`] has come. An additional tick does no harm.
    Tick,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send packets for the destination by this path from now on.
    Install {
        /// Destination of the path.
        destination: Destination,
        /// The path.
        path: Path,
    },
    /// Send packets for the destination to the gateway from now on.
    Remove {
        /// Destination of the path.
        destination: Destination,
        /// Reason for the removal, used as a metric label.
        reason: RemovalReason,
    },
    /// Send this message.
    Send {
        /// Underlay address of the receiver.
        to: IpAddr,
        /// A Request, or a Reconcile.
        message: Message,
    },
    /// Pass [`Input::Tick`] at this time.
    Wake {
        /// Time of the tick.
        at_ms: u64,
    },
}

/// Reason for which a path is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RemovalReason {
    /// The path's host sent a Redirect: it no longer has the destination.
    Redirected,
    /// A gateway answered that there is no direct path.
    Withdrawn,
    /// The path was not confirmed within its lifetime.
    Expired,
    /// No packet used the path for `idle_ms`.
    Idle,
    /// The cache is full, and this was the least used path of the network with the most entries.
    Replaced,
    /// The host no longer has a port in the network.
    NetworkRemoved,
    /// The forwarding table contains the path, but the cache does not.
    Orphaned,
}

/// Counters of events since the cache was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Paths to destinations that had no path.
    pub learned: u64,
    /// Paths that changed.
    pub moved: u64,
    /// Paths that a gateway confirmed.
    pub confirmed: u64,
    /// Answers with an older revision than the entry requires.
    pub stale: u64,
    /// Answers about destinations that are no longer queried.
    pub late: u64,
    /// Notifications for networks in which this host has no port.
    pub foreign: u64,
    /// Paths removed because their host sent a Redirect.
    pub redirected: u64,
    /// Redirect entries from hosts that no path leads to.
    pub redirects_stale: u64,
    /// Paths removed because a gateway withdrew them.
    pub withdrawn: u64,
    /// Paths removed because they were not confirmed in time.
    pub expired: u64,
    /// Paths removed because no packet used them.
    pub idle: u64,
    /// Paths removed to make space for others.
    pub replaced: u64,
    /// Queries about paths sent.
    pub requested: u64,
    /// Queries about networks sent.
    pub networks_requested: u64,
    /// Answers about networks that say which paths have changed.
    pub networks_reconciled: u64,
    /// Changes in these answers.
    pub changes: u64,
    /// Answers that a gateway does not know what has changed in a network.
    pub networks_unknown: u64,
    /// Networks whose paths were confirmed one by one because no gateway answered.
    pub networks_silent: u64,
    /// Destinations that were queried for `resolve_for_ms` without an answer.
    pub unanswered: u64,
    /// Rounds in which not all due queries could be sent.
    pub rounds_full: u64,
    /// Entries about networks of another cluster than the key's.
    pub other_cluster: u64,
    /// Messages that only gateways expect.
    pub unexpected: u64,
}

/// How full a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Number of paths.
    pub paths: usize,
    /// Number of paths and of destinations that are being resolved.
    pub entries: usize,
    /// Largest number of entries.
    pub entries_max: usize,
}

/// Queries to be sent, by the gateway that they are sent to.
#[derive(Debug, Default)]
struct Queries {
    paths: BTreeMap<IpAddr, Vec<Query>>,
    networks: BTreeMap<IpAddr, Vec<NetworkQuery>>,
}

/// The direct paths of a host.
#[derive(Debug)]
pub struct Cache {
    config: Config,
    table: Table,
    networks: BTreeMap<Vni, Network>,
    /// Token bucket that limits queries. A query costs `round_ms` tokens.
    tokens: u64,
    tokens_at_ms: u64,
    round: u32,
    wake_at_ms: Option<u64>,
    stats: Stats,
}

impl Cache {
    /// Makes an empty cache at `now_ms`.
    #[must_use]
    pub fn new(config: Config, now_ms: u64) -> Self {
        let round_ms = config.round_ms.clamp(1, ROUND_MS_MAX);
        let config = Config { entries_max: config.entries_max.max(1), round_ms, ..config };
        Self {
            config,
            table: Table::default(),
            networks: BTreeMap::new(),
            tokens: u64::from(config.queries_per_round_max) * config.round_ms,
            tokens_at_ms: now_ms,
            round: config.seed,
            wake_at_ms: None,
            stats: Stats::default(),
        }
    }

    /// Handles an input. The caller performs the outputs in their order.
    pub fn handle(&mut self, now_ms: u64, input: Input<'_>) -> Vec<Output> {
        let (mut out, mut queries) = (Vec::new(), Queries::default());
        match input {
            Input::Gateways { vni, addresses } => self.set_gateways(vni, addresses, &mut out),
            Input::Adopt(paths) => {
                paths.iter().for_each(|(to, path)| self.adopt(now_ms, *to, path, &mut out))
            }
            Input::Message(message) => self.receive(now_ms, message, &|_| true, &mut out, &mut queries),
            Input::Resolve(wanted) => {
                wanted.iter().for_each(|to| self.resolve(now_ms, *to, 0, None, &mut out, &mut queries));
            }
            Input::Hits(hits) => hits.iter().for_each(|(to, hits)| self.count(now_ms, to, *hits, &mut out)),
            Input::Tick => {
                self.wake_at_ms = None;
                self.round = self.round.wrapping_add(1);
                self.remove_expired(now_ms, &mut out);
                self.query_due_networks(now_ms, &mut queries);
                self.query_due_entries(now_ms, &mut queries);
            }
        }
        self.finish(now_ms, queries, &mut out);
        out
    }

    /// Handles an authentic message whose key may not speak for all networks of this host. `key_covers`
    /// returns whether it may speak for a network.
    pub fn handle_message(
        &mut self,
        now_ms: u64,
        message: &Message,
        key_covers: &dyn Fn(Vni) -> bool,
    ) -> Vec<Output> {
        let (mut out, mut queries) = (Vec::new(), Queries::default());
        self.receive(now_ms, message, key_covers, &mut out, &mut queries);
        self.finish(now_ms, queries, &mut out);
        out
    }

    /// Appends the Requests, and a wake if no wake is pending.
    fn finish(&mut self, now_ms: u64, queries: Queries, out: &mut Vec<Output>) {
        let (id, capabilities) = (self.round, self.config.capabilities);
        let Queries { paths, networks } = queries;
        let send = |(to, message)| Output::Send { to, message };
        out.extend(networks.into_iter().map(|(to, queries)| (to, Message::Reconcile { queries })).map(send));
        let request = |(to, queries)| (to, Message::Request { id, capabilities, queries });
        out.extend(paths.into_iter().map(request).map(send));
        if self.wake_at_ms.is_none() && self.table.len() != 0 {
            let at_ms = now_ms.saturating_add(self.config.round_ms);
            self.wake_at_ms = Some(at_ms);
            out.push(Output::Wake { at_ms });
        }
    }

    /// Counters of events so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns how full the cache is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage { paths: self.table.paths(), entries: self.table.len(), entries_max: self.config.entries_max }
    }

    /// Returns the direct path to a destination, if there is one.
    #[must_use]
    pub fn path(&self, destination: &Destination) -> Option<Path> {
        self.table.find(destination).and_then(|slot| self.table.get(slot).path)
    }

    /// Returns all paths.
    pub fn paths(&self) -> impl Iterator<Item = (Destination, Path)> {
        self.table.entries().filter_map(|entry| entry.path.map(|path| (entry.destination, path)))
    }

    fn set_gateways(&mut self, vni: Vni, addresses: &[IpAddr], out: &mut Vec<Output>) {
        if !addresses.is_empty() {
            self.networks.entry(vni).or_default().gateways = addresses.to_vec();
            return;
        }
        self.networks.remove(&vni);
        for slot in self.table.slots_of_network(vni) {
            self.remove(slot, RemovalReason::NetworkRemoved, out);
        }
    }

    fn receive(
        &mut self,
        now_ms: u64,
        message: &Message,
        key_covers: &dyn Fn(Vni) -> bool,
        out: &mut Vec<Output>,
        queries: &mut Queries,
    ) {
        match message {
            Message::Notify { answers } | Message::Reply { answers, .. } => {
                let solicited = matches!(message, Message::Reply { .. });
                for mut entry in answers.iter().copied() {
                    if key_covers(entry.destination.vni) {
                        // A gateway that notifies does not know what this host can do.
                        entry.restrict(self.config.capabilities);
                        self.learn(now_ms, &entry, solicited, out);
                    } else {
                        self.stats.other_cluster += 1;
                    }
                }
            }
            Message::Redirect { entries } => {
                entries.iter().for_each(|entry| self.redirect(now_ms, entry, key_covers, out, queries));
            }
            Message::Reconciled { answers } => self.reconcile(now_ms, answers, key_covers, queries),
            Message::Request { .. }
            | Message::Stray { .. }
            | Message::Permit { .. }
            | Message::Permitted { .. }
            | Message::Identify { .. }
            | Message::Identity { .. }
            | Message::Reconcile { .. } => self.stats.unexpected += 1,
        }
    }

    /// Handles one answer. A `solicited` answer comes in a Reply: it is about a queried destination, and
    /// never creates an entry.
    fn learn(&mut self, now_ms: u64, answer: &AnswerEntry, solicited: bool, out: &mut Vec<Output>) {
        let destination = answer.destination;
        let slot = self.table.find(&destination);
        match (slot, answer.answer) {
            (None, _) if solicited => self.stats.late += 1,
            (_, Answer::Path(Path { lifetime_ms: 0, revision, .. })) | (_, Answer::Absent { revision }) => {
                if let Some(slot) = slot {
                    self.withdraw(slot, revision, out);
                }
            }
            (Some(slot), Answer::Unchanged { lifetime_ms, revision }) => {
                let entry = self.table.get(slot);
                match entry.path {
                    Some(path)
                        if revision == self.revision_of(&entry)
                            && revision >= self.revision_min_of(&entry) =>
                    {
                        self.confirm(now_ms, slot, Path { lifetime_ms, revision, ..path });
                    }
                    _ => self.stats.stale += 1,
                }
            }
            (None, Answer::Unchanged { .. }) => self.stats.late += 1,
            (Some(slot), Answer::Path(path)) => self.update(now_ms, slot, path, out),
            (None, Answer::Path(_)) if !self.networks.contains_key(&destination.vni) => {
                self.stats.foreign += 1
            }
            (None, Answer::Path(path)) => {
                let slot = self.insert(now_ms, destination, Some(path), 0, out);
                self.cover(now_ms, slot);
                self.stats.learned += 1;
                out.push(Output::Install { destination, path });
            }
        }
    }

    /// Sets the path of an existing entry, unless its revision is too old.
    fn update(&mut self, now_ms: u64, slot: Slot, path: Path, out: &mut Vec<Output>) {
        let entry = self.table.get(slot);
        if path.revision < self.revision_min_of(&entry) {
            self.stats.stale += 1;
            return;
        }
        // A gateway of an earlier version does not know what the host can receive.
        let path = match entry.path {
            Some(Path { host, reception, .. }) if host == path.host && path.reception.mtu == 0 => {
                Path { reception, ..path }
            }
            _ => path,
        };
        let changed = entry.path.as_ref().map(next_hop) != Some(next_hop(&path));
        self.confirm(now_ms, slot, path);
        if changed {
            match entry.path {
                Some(_) => self.stats.moved += 1,
                None => self.stats.learned += 1,
            }
            out.push(Output::Install { destination: entry.destination, path });
        }
    }

    fn expires_ms(&self, now_ms: u64, path: &Path) -> u64 {
        now_ms.saturating_add(path.lifetime_ms.min(self.config.lifetime_max_ms).into())
    }

    fn confirm(&mut self, now_ms: u64, slot: Slot, path: Path) {
        let due_ms = now_ms.saturating_add(self.config.confirm_after_ms);
        let expires_ms = self.expires_ms(now_ms, &path);
        let had_path = self.table.get(slot).path.is_some();
        self.stats.confirmed += u64::from(had_path);
        self.table.update(slot, |entry| {
            entry.path = Some(path);
            entry.revision_min = path.revision;
            entry.expires_ms = expires_ms;
            entry.due_ms = due_ms;
            entry.unanswered = 0;
            if !had_path {
                entry.used_ms = now_ms;
            }
        });
        self.cover(now_ms, slot);
    }

    fn withdraw(&mut self, slot: Slot, revision: u64, out: &mut Vec<Output>) {
        if revision < self.revision_min_of(&self.table.get(slot)) {
            self.stats.stale += 1;
            return;
        }
        self.remove(slot, RemovalReason::Withdrawn, out);
    }

    /// Handles the Redirect of a host that no longer has a destination: removes the path to it and queries
    /// the new one. An answer as old as the path that led to the host is not accepted.
    fn redirect(
        &mut self,
        now_ms: u64,
        redirect: &RedirectEntry,
        key_covers: &dyn Fn(Vni) -> bool,
        out: &mut Vec<Output>,
        queries: &mut Queries,
    ) {
        let mut found = false;
        for slot in self.table.slots_of_target(redirect.destination) {
            let entry = self.table.get(slot);
            if entry.path.is_none_or(|path| path.host != redirect.host) {
                continue;
            }
            found = true;
            // The network that counts is the sender's: this host may not have the destination's network.
            if !key_covers(entry.destination.vni) {
                self.stats.other_cluster += 1;
                continue;
            }
            let revision_min = self.revision_of(&entry).saturating_add(1);
            self.remove(slot, RemovalReason::Redirected, out);
            // The named gateway knows the destination's network, and may not know the sender's.
            let named = (entry.destination == redirect.destination).then_some(redirect.gateway);
            self.resolve(now_ms, entry.destination, revision_min, named, out, queries);
        }
        self.stats.redirects_stale += u64::from(!found);
    }

    /// Starts to query a destination, now or as soon as the rate limit permits. `named` is the gateway to
    /// query first.
    fn resolve(
        &mut self,
        now_ms: u64,
        destination: Destination,
        revision_min: u64,
        named: Option<IpAddr>,
        out: &mut Vec<Output>,
        queries: &mut Queries,
    ) {
        if self.table.find(&destination).is_none() && self.networks.contains_key(&destination.vni) {
            let slot = self.insert(now_ms, destination, None, revision_min, out);
            self.query(now_ms, slot, named, queries);
        }
    }

    fn adopt(&mut self, now_ms: u64, destination: Destination, path: &Path, out: &mut Vec<Output>) {
        if self.table.find(&destination).is_none() {
            let slot = self.insert(now_ms, destination, Some(*path), path.revision, out);
            self.table.update(slot, |entry| entry.due_ms = now_ms);
        }
    }

    /// Makes an entry. If the cache is full, the entry replaces a less used one.
    fn insert(
        &mut self,
        now_ms: u64,
        destination: Destination,
        path: Option<Path>,
        revision_min: u64,
        out: &mut Vec<Output>,
    ) -> Slot {
        if self.table.len() >= self.config.entries_max
            && let Some(replaced) = self.table.find_replaceable(destination.vni)
        {
            self.remove(replaced, RemovalReason::Replaced, out);
        }
        let (due_in_ms, expires_ms) = match path {
            Some(path) => (self.config.confirm_after_ms, self.expires_ms(now_ms, &path)),
            None => (0, now_ms.saturating_add(self.config.resolve_for_ms)),
        };
        self.table.insert(Entry {
            destination,
            path,
            revision_min: path.map_or(revision_min, |path| path.revision),
            expires_ms,
            due_ms: now_ms.saturating_add(due_in_ms),
            unanswered: 0,
            is_covered: false,
            used_ms: now_ms,
            recent_hits: 0,
            hits: 0,
        })
    }

    fn remove(&mut self, slot: Slot, reason: RemovalReason, out: &mut Vec<Output>) {
        let entry = self.table.remove(slot);
        if entry.path.is_none() {
            self.stats.unanswered += u64::from(reason == RemovalReason::Expired);
            return;
        }
        match reason {
            RemovalReason::Redirected => self.stats.redirected += 1,
            RemovalReason::Withdrawn => self.stats.withdrawn += 1,
            RemovalReason::Expired => self.stats.expired += 1,
            RemovalReason::Idle => self.stats.idle += 1,
            RemovalReason::Replaced => self.stats.replaced += 1,
            RemovalReason::NetworkRemoved | RemovalReason::Orphaned => {}
        }
        out.push(Output::Remove { destination: entry.destination, reason });
    }

    fn count(&mut self, now_ms: u64, destination: &Destination, hits: u64, out: &mut Vec<Output>) {
        let Some(slot) = self.table.find(destination).filter(|slot| self.table.get(*slot).path.is_some())
        else {
            out.push(Output::Remove { destination: *destination, reason: RemovalReason::Orphaned });
            return;
        };
        self.table.update(slot, |entry| {
            // A counter that decreased was restarted from 0.
            entry.recent_hits = hits.checked_sub(entry.hits).unwrap_or(hits);
            entry.hits = hits;
            if entry.recent_hits != 0 {
                entry.used_ms = now_ms;
            }
        });
    }

    fn remove_expired(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        while let Some(slot) = self.table.find_expired(now_ms) {
            self.remove(slot, RemovalReason::Expired, out);
        }
        let Some(until_ms) = now_ms.checked_sub(self.config.idle_ms) else { return };
        while let Some(slot) = self.table.find_unused_since(until_ms) {
            self.remove(slot, RemovalReason::Idle, out);
        }
    }

    /// Queries the entries that are due, in the order in which they became due, as far as the rate limit
    /// permits.
    fn query_due_entries(&mut self, now_ms: u64, queries: &mut Queries) {
        while let Some(slot) = self.table.find_due(now_ms) {
            if !self.query(now_ms, slot, None, queries) {
                self.stats.rounds_full += 1;
                break;
            }
        }
    }

    /// Adds a query about one entry, to the `named` gateway or to one of the network's gateways. All queries
    /// of a round go to the same gateway of a network, so that they share packets. Returns false if the rate
    /// limit does not permit a query now.
    fn query(&mut self, now_ms: u64, slot: Slot, named: Option<IpAddr>, queries: &mut Queries) -> bool {
        self.refill_tokens(now_ms);
        let round_ms = self.config.round_ms;
        let entry = self.table.get(slot);
        let gateway = named.or_else(|| self.gateway_for(&entry));
        let Some(gateway) = gateway else {
            self.table.update(slot, |entry| entry.due_ms = now_ms.saturating_add(round_ms));
            return true;
        };
        if self.tokens < round_ms {
            return false;
        }
        self.tokens -= round_ms;
        self.stats.requested += 1;
        let backoff_shift = match entry.path {
            Some(_) => entry.unanswered.saturating_sub(UNANSWERED_AT_FULL_RATE).min(BACKOFF_SHIFT_MAX),
            None => 0,
        };
        self.table.update(slot, |entry| {
            entry.due_ms = now_ms.saturating_add(round_ms << backoff_shift);
            entry.unanswered = entry.unanswered.saturating_add(1);
        });
        // With its revision, a gateway would confirm the path of a covered entry without comparing it.
        let revision = if entry.is_covered { 0 } else { self.revision_of(&entry) };
        queries.paths.entry(gateway).or_default().push(Query { destination: entry.destination, revision });
        true
    }

    fn refill_tokens(&mut self, now_ms: u64) {
        let per_ms = u64::from(self.config.queries_per_round_max);
        let passed_ms = now_ms.saturating_sub(self.tokens_at_ms);
        self.tokens =
            self.tokens.saturating_add(passed_ms.saturating_mul(per_ms)).min(per_ms * self.config.round_ms);
        self.tokens_at_ms = self.tokens_at_ms.max(now_ms);
    }
}

/// The part of a path that the forwarding table uses.
fn next_hop(path: &Path) -> (IpAddr, sluice_types::MacAddr, Vni, Reception) {
    (path.host, path.mac, path.vni, path.reception)
}
