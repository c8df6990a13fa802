//! Which identities of VMs on other hosts a host knows, and when it asks gateways for them. Pure: times and what the map of
//! the packet programs has are arguments; the changes of the map and the messages to send are returned. This file changes
//! with the rules for how long an identity is believed.
//!
//! The state of a destination:
//!
//! ```text
//!                 a packet needs it: Identify               Identity
//!      UNKNOWN ----------------------------> ASKED ---------------------> KNOWN <--+
//!         ^                                    |                          |  |  |  | 5 s old and in use: Identify,
//!         |        four questions unanswered   |                          |  |  +--+ repeated until Identity
//!         +------------------------------------+                          |  |
//!         |        identity 0 for 5 s, not used for 60 s, replaced        |  |
//!         +---------------------------------------------------------------+  |
//!         |        no answer for 20 s                                        |
//!         +------------------------------------------------------------------+
//! ```
//!
//! A packet to an unknown destination is denied, if only a rule that names a group could permit it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use sluice_datapath::RemoteIdentities as Map;
use sluice_rsp::{Destination, IdentityEntry, Message};
use sluice_types::Vni;

use crate::path_learner::Network;

/// A question that is not answered is repeated after this time.
const REPEAT_MS: u64 = 200;
/// Questions until one counts as unanswered.
const QUESTIONS_MAX: u8 = 4;
/// Age at which an identity that is used is asked for again, and at which identity 0 is forgotten: it permits nothing that
/// an unknown one does not, so only the next packet needs it.
const REFRESH_MS: u64 = 5_000;
/// An identity that no gateway has confirmed for this time is forgotten: its VM may have left the group.
const LIFETIME_MS: u64 = 20_000;
/// An identity that no packet was judged by for this time is forgotten.
const IDLE_MS: u64 = 60_000;
/// Questions in this time are sent together.
const ROUND_MS: u64 = 10;
/// Most questions that are sent together: twice as many as a full table needs to be refreshed.
const QUESTIONS_PER_ROUND: usize = 256;
/// Destinations that are remembered: as many as the map of the packet programs has.
const ENTRIES_MAX: usize = Map::MAX;
/// Destinations of one network that are remembered while more than half of the space is used.
const SHARE_MAX: usize = ENTRIES_MAX / 16;

/// A change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The instance has this identity.
    Write(Destination, u16),
    /// The identity is not known.
    Remove(Destination),
}

/// What has to be done after an input.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Changes of the map, in this order.
    pub changes: Vec<Change>,
    /// Destinations to ask for, by the cluster with whose key the message is sealed and the VTEP of a gateway of it.
    pub questions: BTreeMap<(u32, IpAddr), Vec<Destination>>,
}

impl Actions {
    /// The questions as messages.
    pub fn messages(self) -> impl Iterator<Item = (u32, IpAddr, Message)> {
        let message = |((cluster, to), entries)| (cluster, to, Message::Identify { entries });
        self.questions.into_iter().map(message)
    }
}

/// How often the host asked, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Questions sent, repetitions included.
    pub asked: u64,
    /// Answers that were accepted.
    pub answered: u64,
    /// Destinations about which no gateway answered four questions.
    pub unanswered: u64,
    /// Destinations that were replaced by others.
    pub evicted: u64,
}

#[derive(Debug)]
struct Entry {
    /// `None` until the first answer.
    identity: Option<u16>,
    answered_ms: u64,
    /// When a packet was last judged by it, as far as this is known.
    used_ms: u64,
    /// Questions since the last answer.
    asked: u8,
    due_ms: u64,
    /// Selects the gateway of the next question: another one each time.
    gateway: usize,
}

/// What is due for an entry.
enum Step {
    Ask,
    Remove,
    /// No gateway answers: asks again at this time.
    Wait(u64),
}

/// Identities of VMs on other hosts. Times are of a monotonic clock.
#[derive(Debug)]
pub struct RemoteIdentities {
    entries: HashMap<Destination, Entry>,
    /// Destinations by the time at which something is due for them.
    due: BTreeSet<(u64, Destination)>,
    /// Destinations of each network by their last use.
    networks: BTreeMap<Vni, BTreeSet<(u64, IpAddr)>>,
    /// No question is sent before this time.
    round_ms: u64,
    next_gateway: usize,
    database: u64,
    counts: Counts,
}

impl RemoteIdentities {
    /// No identities. `seed` selects the first gateway to ask, so that hosts choose different ones.
    pub fn new(seed: usize) -> Self {
        Self {
            entries: HashMap::new(),
            due: BTreeSet::new(),
            networks: BTreeMap::new(),
            round_ms: 0,
            next_gateway: seed,
            database: 0,
            counts: Counts::default(),
        }
    }

    /// Number of destinations.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes over what the map has from an earlier agent, by the time of its last use: packets go on to be judged by it while
    /// it is asked for again at once. Identities 0 are removed, and those beyond the space.
    pub fn adopt(&mut self, now_ms: u64, entries: &[(Destination, u16, u64)]) -> Actions {
        let mut actions = Actions::default();
        for &(destination, identity, used_ms) in entries {
            if identity == 0 || self.entries.len() >= ENTRIES_MAX {
                actions.changes.push(Change::Remove(destination));
                continue;
            }
            self.insert(destination, Some(identity), now_ms, used_ms);
        }
        actions
    }

    /// Forgets the identities of networks that have no instance on this host, and all of them if the database is another
    /// one: its networks are others. `database` is 0 while it is not known.
    pub fn set_networks(&mut self, database: u64, networks: &BTreeMap<Vni, Network>) -> Actions {
        let mut actions = Actions::default();
        let before = if database == 0 { 0 } else { std::mem::replace(&mut self.database, database) };
        let is_other = before != 0 && before != database;
        let stays = |vni: &Vni| !is_other && networks.get(vni).is_some_and(|network| network.has_instance);
        let gone: Vec<Vni> = self.networks.keys().filter(|vni| !stays(vni)).copied().collect();
        for vni in gone {
            let addresses: Vec<IpAddr> = self.networks[&vni].iter().map(|(_, address)| *address).collect();
            for address in addresses {
                self.remove(Destination { vni, address }, &mut actions);
            }
        }
        actions
    }

    /// A packet to this destination was denied because its identity is not known.
    pub fn note_unknown(&mut self, now_ms: u64, destination: Destination, actions: &mut Actions) {
        if self.entries.contains_key(&destination) {
            return;
        }
        self.make_space(destination.vni, actions);
        self.insert(destination, None, now_ms, now_ms);
    }

    /// Takes the answers of a gateway. `is_authoritative`: whether its cluster may say something about a network.
    pub fn answer(
        &mut self,
        now_ms: u64,
        entries: &[IdentityEntry],
        is_authoritative: impl Fn(Vni) -> bool,
        actions: &mut Actions,
    ) {
        for &IdentityEntry { destination, identity } in entries {
            let Some(entry) = self.entries.get_mut(&destination) else { continue };
            if entry.asked == 0 || !is_authoritative(destination.vni) {
                continue;
            }
            self.counts.answered += 1;
            if entry.identity != Some(identity) {
                actions.changes.push(Change::Write(destination, identity));
            }
            (entry.identity, entry.answered_ms, entry.asked) = (Some(identity), now_ms, 0);
            self.set_due(destination, now_ms + REFRESH_MS);
        }
    }

    /// Time at which [`RemoteIdentities::handle_timer`] is due.
    pub fn due_ms(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| (*due_ms).max(self.round_ms))
    }

    /// Does what is due at this time. `used_ms` reads from the map when a packet was last judged by an identity.
    pub fn handle_timer(
        &mut self,
        now_ms: u64,
        networks: &BTreeMap<Vni, Network>,
        used_ms: impl Fn(&Destination) -> Option<u64>,
        actions: &mut Actions,
    ) {
        if now_ms < self.round_ms {
            return;
        }
        self.round_ms = now_ms + ROUND_MS;
        for _ in 0..QUESTIONS_PER_ROUND {
            let Some(&(due_ms, destination)) = self.due.first() else { break };
            if due_ms > now_ms {
                break;
            }
            match self.step(now_ms, destination, &used_ms) {
                Step::Ask => self.ask(now_ms, destination, networks, actions),
                Step::Remove => self.remove(destination, actions),
                Step::Wait(until_ms) => self.set_due(destination, until_ms),
            }
        }
    }

    fn step(
        &mut self,
        now_ms: u64,
        destination: Destination,
        used_ms: impl Fn(&Destination) -> Option<u64>,
    ) -> Step {
        let Some(entry) = self.entries.get_mut(&destination) else { return Step::Remove };
        let is_answered = entry.asked < QUESTIONS_MAX;
        self.counts.unanswered += u64::from(!is_answered);
        match entry.identity {
            None if is_answered => Step::Ask,
            None | Some(0) => Step::Remove,
            Some(_) if now_ms >= entry.answered_ms + LIFETIME_MS => Step::Remove,
            Some(_) if !is_answered => {
                entry.asked = 0;
                Step::Wait((now_ms + REFRESH_MS).min(entry.answered_ms + LIFETIME_MS))
            }
            Some(_) if entry.asked > 0 => Step::Ask,
            // An entry without a time was lost by the map.
            Some(_) => match used_ms(&destination) {
                Some(used_ms) if now_ms.saturating_sub(used_ms) < IDLE_MS => {
                    self.set_used(destination, used_ms);
                    Step::Ask
                }
                _ => Step::Remove,
            },
        }
    }

    fn ask(
        &mut self,
        now_ms: u64,
        destination: Destination,
        networks: &BTreeMap<Vni, Network>,
        actions: &mut Actions,
    ) {
        let Some(entry) = self.entries.get_mut(&destination) else { return };
        entry.asked += 1;
        let network = networks.get(&destination.vni).filter(|network| !network.gateways.is_empty());
        if let Some(Network { cluster, gateways, .. }) = network {
            let gateway = gateways[entry.gateway % gateways.len()];
            entry.gateway = entry.gateway.wrapping_add(1);
            self.counts.asked += 1;
            actions.questions.entry((*cluster, gateway)).or_default().push(destination);
        }
        self.set_due(destination, now_ms + REPEAT_MS);
    }

    /// Removes an entry if there is no space for one more of this network: the least used one of the network, or if all
    /// space is used, of the network with the most entries.
    fn make_space(&mut self, vni: Vni, actions: &mut Actions) {
        let of_network = self.networks.get(&vni).map_or(0, BTreeSet::len);
        let from = if self.entries.len() >= ENTRIES_MAX {
            // A host has few networks, and events are limited.
            self.networks.iter().max_by_key(|(_, of)| of.len()).map(|(vni, _)| *vni)
        } else {
            (self.entries.len() >= ENTRIES_MAX / 2 && of_network >= SHARE_MAX).then_some(vni)
        };
        if let Some(vni) = from
            && let Some(&(_, address)) = self.networks.get(&vni).and_then(BTreeSet::first)
        {
            self.counts.evicted += 1;
            self.remove(Destination { vni, address }, actions);
        }
    }

    fn insert(&mut self, destination: Destination, identity: Option<u16>, now_ms: u64, used_ms: u64) {
        self.next_gateway = self.next_gateway.wrapping_add(1);
        let gateway = self.next_gateway;
        let entry = Entry { identity, answered_ms: now_ms, used_ms, asked: 0, due_ms: now_ms, gateway };
        self.entries.insert(destination, entry);
        self.due.insert((now_ms, destination));
        self.networks.entry(destination.vni).or_default().insert((used_ms, destination.address));
    }

    fn remove(&mut self, destination: Destination, actions: &mut Actions) {
        let Some(entry) = self.entries.remove(&destination) else { return };
        self.due.remove(&(entry.due_ms, destination));
        if let Some(of_network) = self.networks.get_mut(&destination.vni) {
            of_network.remove(&(entry.used_ms, destination.address));
            if of_network.is_empty() {
                self.networks.remove(&destination.vni);
            }
        }
        if entry.identity.is_some() {
            actions.changes.push(Change::Remove(destination));
        }
    }

    fn set_due(&mut self, destination: Destination, due_ms: u64) {
        let Some(entry) = self.entries.get_mut(&destination) else { return };
        self.due.remove(&(entry.due_ms, destination));
        entry.due_ms = due_ms;
        self.due.insert((due_ms, destination));
    }

    fn set_used(&mut self, destination: Destination, used_ms: u64) {
        let Some(entry) = self.entries.get_mut(&destination) else { return };
        if let Some(of_network) = self.networks.get_mut(&destination.vni) {
            of_network.remove(&(entry.used_ms, destination.address));
            of_network.insert((used_ms, destination.address));
        }
        entry.used_ms = used_ms;
    }
}

#[cfg(test)]
#[path = "remote_identities_tests.rs"]
mod tests;
