//! What a host knows of direct paths, as a state machine: it learns from what
//! gateways notify, forgets what moved, is idle or was not confirmed in time, and
//! asks the gateways again about what it has (Achelous section 4.3: every 50 ms
//! about what is older than 100 ms). A destination that it has no path to is
//! reached through the gateway, so whatever it forgets costs a detour and never a
//! packet.
//!
//! Times are milliseconds of any clock that does not jump.

mod table;
#[cfg(test)]
mod tests;

use crate::{Answer, Answered, Ask, Destination, Message, Moved, Path};
use sluice_types::Vni;
use std::collections::BTreeMap;
use std::net::IpAddr;
use table::{Entry, Slot, Table};

/// How often a question is repeated at the full rate before it waits longer each
/// time, and how much longer at most: 2^5 rounds.
const UNANSWERED_AT_FULL_RATE: u8 = 2;
const BACKOFF_SHIFT_MAX: u8 = 5;
const ROUND_MS_MAX: u64 = 60_000;

/// Bounds and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Destinations known or asked for, at most; at least one.
    pub entries_max: usize,
    /// From one round of questions to the next: 1 to 60000.
    pub round_ms: u64,
    /// How old a confirmation may get before it is asked for anew.
    pub confirm_after_ms: u64,
    /// Questions a round, at most, with those that do not wait for one.
    pub asks_per_round_max: u32,
    /// How long a destination without a path is asked for.
    pub ask_for_ms: u64,
    /// A path is used for so long without being confirmed, however long it is said to live.
    pub lifetime_max_ms: u32,
    /// A path goes when its hits have not changed for so long. Longer than from
    /// one [`Input::Hits`] to the next.
    pub idle_ms: u64,
    /// Where the choice of gateways begins; random, so that hosts differ.
    pub seed: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            entries_max: 65_536,
            round_ms: 50,
            confirm_after_ms: 100,
            asks_per_round_max: 1024,
            ask_for_ms: 1000,
            lifetime_max_ms: 60_000,
            idle_ms: 30_000,
            seed: 0,
        }
    }
}

/// What happens to the cache.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Whom to ask about a network: the gateways of its cluster. With none, the network
    /// is not this host's (any more), and its paths go.
    Gateways {
        /// The sender's network.
        vni: Vni,
        /// Underlay addresses, of a family that this host has.
        addresses: &'a [IpAddr],
    },
    /// Paths that the forwarding table holds already, from before a restart. They
    /// stay as they are, and are asked about at once.
    Adopt(&'a [(Destination, Path)]),
    /// An authentic message to this host.
    Message(&'a Message),
    /// Destinations that this host wants a path to, whatever the gateway thinks.
    Want(&'a [Destination]),
    /// The forwarding table's paths with the packets that took them so far; all at
    /// once or some at a time.
    Hits(&'a [(Destination, u64)]),
    /// The time of [`Output::Wake`] has come. At other times it does no harm.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send packets for the destination this way from now on.
    Install {
        /// The destination.
        destination: Destination,
        /// The way.
        path: Path,
    },
    /// Send packets for the destination to the gateway from now on.
    Remove {
        /// The destination.
        destination: Destination,
        /// The reason.
        why: Why,
    },
    /// Send this.
    Send {
        /// Underlay address of the receiver.
        to: IpAddr,
        /// A request.
        message: Message,
    },
    /// Give [`Input::Tick`] at this time.
    Wake {
        /// The time.
        at_ms: u64,
    },
}

/// Why a path goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// Its host says that the destination is elsewhere.
    Redirected,
    /// A gateway says that there is no direct path.
    Withdrawn,
    /// Not confirmed within its lifetime.
    Expired,
    /// Not used.
    Idle,
    /// The cache is full, and it was the coldest of the network that has most.
    Replaced,
    /// The host has no port in the network any more.
    Network,
    /// In the forwarding table, but not in the cache.
    Stray,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Paths to destinations that had none.
    pub learned: u64,
    /// Paths that changed.
    pub moved: u64,
    /// Paths that a gateway said again.
    pub confirmed: u64,
    /// Answers about an older revision than the cache has seen.
    pub stale: u64,
    /// Answers that nobody waits for any more.
    pub late: u64,
    /// Notifications for networks that this host has no port in.
    pub foreign: u64,
    /// Paths that their host disowned.
    pub redirected: u64,
    /// Redirections by hosts that no path leads to.
    pub redirects_stale: u64,
    /// Paths that a gateway took back.
    pub withdrawn: u64,
    /// Paths that were not confirmed in time.
    pub expired: u64,
    /// Paths that were not used.
    pub idle: u64,
    /// Paths that gave way to others.
    pub replaced: u64,
    /// Questions asked.
    pub asked: u64,
    /// Destinations asked for in vain.
    pub unanswered: u64,
    /// Rounds in which not all could be asked that was due.
    pub rounds_full: u64,
    /// What was said of networks of another cluster than the key's.
    pub other_cluster: u64,
    /// Messages that only gateways get.
    pub unexpected: u64,
}

/// Questions by whom they go to.
type Asks = BTreeMap<IpAddr, Vec<Ask>>;

/// A host's direct paths.
#[derive(Debug)]
pub struct Cache {
    config: Config,
    table: Table,
    gateways: BTreeMap<Vni, Vec<IpAddr>>,
    /// Questions that may be asked now, in parts of which a round has `round_ms`.
    allowance: u64,
    allowance_at_ms: u64,
    round: u32,
    wake_at_ms: Option<u64>,
    stats: Stats,
}

impl Cache {
    /// An empty cache at `now_ms`.
    #[must_use]
    pub fn new(config: Config, now_ms: u64) -> Self {
        let round_ms = config.round_ms.clamp(1, ROUND_MS_MAX);
        let config = Config { entries_max: config.entries_max.max(1), round_ms, ..config };
        Self {
            config,
            table: Table::default(),
            gateways: BTreeMap::new(),
            allowance: u64::from(config.asks_per_round_max) * config.round_ms,
            allowance_at_ms: now_ms,
            round: config.seed,
            wake_at_ms: None,
            stats: Stats::default(),
        }
    }

    /// Takes an input; what comes out is to be done in that order.
    pub fn handle(&mut self, now_ms: u64, input: Input<'_>) -> Vec<Output> {
        let (mut out, mut asks) = (Vec::new(), Asks::new());
        match input {
            Input::Gateways { vni, addresses } => self.set_gateways(vni, addresses, &mut out),
            Input::Adopt(paths) => {
                paths.iter().for_each(|(to, path)| self.adopt(now_ms, *to, path, &mut out))
            }
            Input::Message(message) => self.receive(now_ms, message, &|_| true, &mut out, &mut asks),
            Input::Want(wanted) => {
                wanted.iter().for_each(|to| self.want(now_ms, *to, 0, None, &mut out, &mut asks));
            }
            Input::Hits(hits) => hits.iter().for_each(|(to, hits)| self.count(now_ms, to, *hits, &mut out)),
            Input::Tick => {
                self.wake_at_ms = None;
                self.round = self.round.wrapping_add(1);
                self.age(now_ms, &mut out);
                self.ask_what_is_due(now_ms, &mut asks);
            }
        }
        self.say(now_ms, asks, &mut out);
        out
    }

    /// Takes an authentic message that was sealed with a key that does not speak for all networks of this
    /// host. `speaks`: whether it does for one of them.
    pub fn hear(&mut self, now_ms: u64, message: &Message, speaks: &dyn Fn(Vni) -> bool) -> Vec<Output> {
        let (mut out, mut asks) = (Vec::new(), Asks::new());
        self.receive(now_ms, message, speaks, &mut out, &mut asks);
        self.say(now_ms, asks, &mut out);
        out
    }

    fn say(&mut self, now_ms: u64, asks: Asks, out: &mut Vec<Output>) {
        let id = self.round;
        out.extend(
            asks.into_iter().map(|(to, asks)| Output::Send { to, message: Message::Request { id, asks } }),
        );
        if self.wake_at_ms.is_none() && self.table.len() != 0 {
            let at_ms = now_ms.saturating_add(self.config.round_ms);
            self.wake_at_ms = Some(at_ms);
            out.push(Output::Wake { at_ms });
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Number of paths, of entries with those only asked for, and the most there
    /// may be.
    #[must_use]
    pub fn fill(&self) -> (usize, usize, usize) {
        (self.table.paths(), self.table.len(), self.config.entries_max)
    }

    /// The path to a destination, if there is a direct one.
    #[must_use]
    pub fn path(&self, destination: &Destination) -> Option<Path> {
        self.table.find(destination).and_then(|slot| self.table.get(slot).path)
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = (Destination, Path)> {
        self.table.entries().filter_map(|entry| entry.path.map(|path| (entry.destination, path)))
    }

    fn set_gateways(&mut self, vni: Vni, addresses: &[IpAddr], out: &mut Vec<Output>) {
        if !addresses.is_empty() {
            self.gateways.insert(vni, addresses.to_vec());
            return;
        }
        self.gateways.remove(&vni);
        for slot in self.table.of_vni(vni) {
            self.remove(slot, Why::Network, out);
        }
    }

    fn receive(
        &mut self,
        now_ms: u64,
        message: &Message,
        speaks: &dyn Fn(Vni) -> bool,
        out: &mut Vec<Output>,
        asks: &mut Asks,
    ) {
        match message {
            Message::Notify { answers } | Message::Reply { answers, .. } => {
                let solicited = matches!(message, Message::Reply { .. });
                for answered in answers {
                    if speaks(answered.destination.vni) {
                        self.learn(now_ms, answered, solicited, out);
                    } else {
                        self.stats.other_cluster += 1;
                    }
                }
            }
            Message::Redirect { moved } => {
                moved.iter().for_each(|moved| self.redirect(now_ms, moved, speaks, out, asks));
            }
            Message::Request { .. } => self.stats.unexpected += 1,
        }
    }

    /// `solicited`: a reply, which is about what was asked and makes nothing new.
    fn learn(&mut self, now_ms: u64, answered: &Answered, solicited: bool, out: &mut Vec<Output>) {
        let destination = answered.destination;
        let slot = self.table.find(&destination);
        match (slot, answered.answer) {
            (None, _) if solicited => self.stats.late += 1,
            (_, Answer::Path(Path { lifetime_ms: 0, revision, .. })) | (_, Answer::Absent { revision }) => {
                if let Some(slot) = slot {
                    self.withdraw(slot, revision, out);
                }
            }
            (Some(slot), Answer::Unchanged { lifetime_ms, revision }) => match self.table.get(slot).path {
                Some(path) if path.revision == revision => {
                    self.confirm(now_ms, slot, Path { lifetime_ms, ..path });
                }
                _ => self.stats.stale += 1,
            },
            (None, Answer::Unchanged { .. }) => self.stats.late += 1,
            (Some(slot), Answer::Path(path)) => self.relearn(now_ms, slot, path, out),
            (None, Answer::Path(_)) if !self.gateways.contains_key(&destination.vni) => {
                self.stats.foreign += 1
            }
            (None, Answer::Path(path)) => {
                self.insert(now_ms, destination, Some(path), 0, out);
                self.stats.learned += 1;
                out.push(Output::Install { destination, path });
            }
        }
    }

    fn relearn(&mut self, now_ms: u64, slot: Slot, path: Path, out: &mut Vec<Output>) {
        let entry = self.table.get(slot);
        if path.revision < entry.revision_min {
            self.stats.stale += 1;
            return;
        }
        let way = |path: &Path| (path.host, path.mac, path.vni);
        let changed = entry.path.as_ref().map(way) != Some(way(&path));
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
        let was_known = self.table.get(slot).path.is_some();
        self.stats.confirmed += u64::from(was_known);
        self.table.update(slot, |entry| {
            entry.path = Some(path);
            entry.revision_min = path.revision;
            entry.expires_ms = expires_ms;
            entry.due_ms = due_ms;
            entry.unanswered = 0;
            if !was_known {
                entry.used_ms = now_ms;
            }
        });
    }

    fn withdraw(&mut self, slot: Slot, revision: u64, out: &mut Vec<Output>) {
        if revision < self.table.get(slot).revision_min {
            self.stats.stale += 1;
            return;
        }
        self.remove(slot, Why::Withdrawn, out);
    }

    /// Its host no longer has it: back to the gateway, and ask where it is now. What
    /// is as old as the path that led there is no answer.
    fn redirect(
        &mut self,
        now_ms: u64,
        moved: &Moved,
        speaks: &dyn Fn(Vni) -> bool,
        out: &mut Vec<Output>,
        asks: &mut Asks,
    ) {
        let mut any = false;
        for slot in self.table.of_target(moved.destination) {
            let entry = self.table.get(slot);
            let Some(path) = entry.path.filter(|path| path.host == moved.host) else { continue };
            any = true;
            // The network is that of the path's sender: the destination's may be none of this host's.
            if !speaks(entry.destination.vni) {
                self.stats.other_cluster += 1;
                continue;
            }
            self.remove(slot, Why::Redirected, out);
            // Who was named knows the destination's network, and no other.
            let named = (entry.destination == moved.destination).then_some(moved.ask);
            self.want(now_ms, entry.destination, path.revision.saturating_add(1), named, out, asks);
        }
        self.stats.redirects_stale += u64::from(!any);
    }

    /// Begins to ask for a destination, now or as soon as the rate allows.
    fn want(
        &mut self,
        now_ms: u64,
        destination: Destination,
        revision_min: u64,
        named: Option<IpAddr>,
        out: &mut Vec<Output>,
        asks: &mut Asks,
    ) {
        if self.table.find(&destination).is_none() && self.gateways.contains_key(&destination.vni) {
            let slot = self.insert(now_ms, destination, None, revision_min, out);
            self.ask(now_ms, slot, named, asks);
        }
    }

    fn adopt(&mut self, now_ms: u64, destination: Destination, path: &Path, out: &mut Vec<Output>) {
        if self.table.find(&destination).is_none() {
            let slot = self.insert(now_ms, destination, Some(*path), path.revision, out);
            self.table.update(slot, |entry| entry.due_ms = now_ms);
        }
    }

    /// Makes an entry, by taking a colder one's place if there is no other.
    fn insert(
        &mut self,
        now_ms: u64,
        destination: Destination,
        path: Option<Path>,
        revision_min: u64,
        out: &mut Vec<Output>,
    ) -> Slot {
        if self.table.len() >= self.config.entries_max
            && let Some(colder) = self.table.replaceable(destination.vni)
        {
            self.remove(colder, Why::Replaced, out);
        }
        let (due_in_ms, expires_ms) = match path {
            Some(path) => (self.config.confirm_after_ms, self.expires_ms(now_ms, &path)),
            None => (0, now_ms.saturating_add(self.config.ask_for_ms)),
        };
        self.table.insert(Entry {
            destination,
            path,
            revision_min: path.map_or(revision_min, |path| path.revision),
            expires_ms,
            due_ms: now_ms.saturating_add(due_in_ms),
            unanswered: 0,
            used_ms: now_ms,
            recent_hits: 0,
            hits: 0,
        })
    }

    fn remove(&mut self, slot: Slot, why: Why, out: &mut Vec<Output>) {
        let entry = self.table.remove(slot);
        if entry.path.is_none() {
            self.stats.unanswered += u64::from(why == Why::Expired);
            return;
        }
        match why {
            Why::Redirected => self.stats.redirected += 1,
            Why::Withdrawn => self.stats.withdrawn += 1,
            Why::Expired => self.stats.expired += 1,
            Why::Idle => self.stats.idle += 1,
            Why::Replaced => self.stats.replaced += 1,
            Why::Network | Why::Stray => {}
        }
        out.push(Output::Remove { destination: entry.destination, why });
    }

    fn count(&mut self, now_ms: u64, destination: &Destination, hits: u64, out: &mut Vec<Output>) {
        let Some(slot) = self.table.find(destination).filter(|slot| self.table.get(*slot).path.is_some())
        else {
            out.push(Output::Remove { destination: *destination, why: Why::Stray });
            return;
        };
        self.table.update(slot, |entry| {
            // A counter that went down began anew.
            entry.recent_hits = hits.checked_sub(entry.hits).unwrap_or(hits);
            entry.hits = hits;
            if entry.recent_hits != 0 {
                entry.used_ms = now_ms;
            }
        });
    }

    fn age(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        while let Some(slot) = self.table.expired(now_ms) {
            self.remove(slot, Why::Expired, out);
        }
        let Some(until_ms) = now_ms.checked_sub(self.config.idle_ms) else { return };
        while let Some(slot) = self.table.unused_since(until_ms) {
            self.remove(slot, Why::Idle, out);
        }
    }

    /// Asks about what is due, the longest due first, as far as the rate allows.
    fn ask_what_is_due(&mut self, now_ms: u64, asks: &mut Asks) {
        while let Some(slot) = self.table.due(now_ms) {
            if !self.ask(now_ms, slot, None, asks) {
                self.stats.rounds_full += 1;
                break;
            }
        }
    }

    /// Asks about one: whom was named, else one of the network's gateways, in turn
    /// by rounds, so that a round's questions make few packets. False if the rate
    /// does not allow it now.
    fn ask(&mut self, now_ms: u64, slot: Slot, named: Option<IpAddr>, asks: &mut Asks) -> bool {
        self.refill(now_ms);
        let round_ms = self.config.round_ms;
        let entry = self.table.get(slot);
        let gateway = named.or_else(|| {
            let gateways = self.gateways.get(&entry.destination.vni)?;
            gateways.get(self.round as usize % gateways.len()).copied()
        });
        let Some(gateway) = gateway else {
            self.table.update(slot, |entry| entry.due_ms = now_ms.saturating_add(round_ms));
            return true;
        };
        if self.allowance < round_ms {
            return false;
        }
        self.allowance -= round_ms;
        self.stats.asked += 1;
        let waits = match entry.path {
            Some(_) => entry.unanswered.saturating_sub(UNANSWERED_AT_FULL_RATE).min(BACKOFF_SHIFT_MAX),
            None => 0,
        };
        self.table.update(slot, |entry| {
            entry.due_ms = now_ms.saturating_add(round_ms << waits);
            entry.unanswered = entry.unanswered.saturating_add(1);
        });
        let revision = entry.path.map_or(0, |path| path.revision);
        asks.entry(gateway).or_default().push(Ask { destination: entry.destination, revision });
        true
    }

    fn refill(&mut self, now_ms: u64) {
        let a_round = u64::from(self.config.asks_per_round_max);
        let passed_ms = now_ms.saturating_sub(self.allowance_at_ms);
        self.allowance = self
            .allowance
            .saturating_add(passed_ms.saturating_mul(a_round))
            .min(a_round * self.config.round_ms);
        self.allowance_at_ms = self.allowance_at_ms.max(now_ms);
    }
}
