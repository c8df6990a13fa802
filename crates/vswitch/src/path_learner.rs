//! The direct paths of a host: which are learned and removed (Zeta section V-B, Achelous section 4.3), and
//! which senders are notified of instances that have left. Pure: inputs are arguments, and the changes of the
//! tables and the messages to send are returned. This file changes with the rules by which hosts learn paths.
//!
//! The state of a destination; the cache of `crates/rsp` holds it:
//!
//! ```text
//!                this host sends elephants there for long enough
//!                (only where hosts detect elephants)          Reply without a path,
//!            +--------------------------------> REQUESTED     or 1 s unanswered
//!            |                                   |     |
//!            |                   Reply with a path     +-----------------+
//!            |                                   v                       v
//!     VIA GATEWAY --- Notify with a path ---> DIRECT PATH ----------> VIA GATEWAY
//!                                              ^   |     removed: see `RemovalReason`   
//!      older than 100 ms: Request every 50 ms  |   |     (redirected, withdrawn, expired, idle,
//!      until a Reply confirms or changes it    +---+      replaced, network removed, not in the cache)
//! ```
//!
//! A destination without a path is reached through a gateway, so forgetting a path costs a detour but never a
//! packet.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use sluice_agent::rsp::{Admission, Batcher};
use sluice_rsp::cache::{Cache, Config, Input, Output, RemovalReason, Stats};
use sluice_rsp::{Answer, AnswerEntry, Destination, Message, Path, PermitEntry, StrayEntry};
use sluice_types::Vni;

/// A sender is redirected from a destination at most once in this time.
const QUIET_US: u64 = 100_000;
/// Redirections within this time are sent together.
const GATHER_US: u64 = 1_000;
/// After a network has changed its cluster, messages of both clusters are accepted for this time, because its
/// hosts and gateways do not all learn of the change at once.
const CLUSTER_CHANGE_MS: u64 = 60_000;
/// Redirections that are remembered, to suppress repetitions.
const REMEMBERED_MAX: usize = 16_384;

/// A network that this host has a VRF of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The VNI.
    pub vni: Vni,
    /// Group id of the network's cluster.
    pub cluster: u32,
    /// VTEPs of the cluster's gateways, of the address family of this host.
    pub gateways: Vec<IpAddr>,
    /// Whether an instance of the network is on this host. If not, the network's removal is delayed, since
    /// packets for instances that have left may still arrive.
    pub has_instance: bool,
}

/// A change of the paths in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// Packets for the destination take this path.
    Install(Destination, Path),
    /// Packets for the destination go to a gateway.
    Remove(Destination, RemovalReason),
}

/// What has to be done after an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Changes of the tables, in this order.
    pub changes: Vec<PathChange>,
    /// Messages to send: the cluster whose key seals it, the receiver's VTEP, and the message.
    pub messages: Vec<(u32, IpAddr, Message)>,
}

/// Counters that the cache does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnerCounts {
    /// Redirections sent to hosts.
    pub redirects: u64,
    /// Redirections suppressed because they were sent a moment ago, or because too many are remembered.
    pub redirects_repeated: u64,
    /// Redirections not sent because no gateway is known that they could name.
    pub redirects_unknown: u64,
    /// Paths ignored because they lead to this host itself, or over an address family that it does not have.
    pub impossible: u64,
    /// Paths removed because no instance of their network is on this host any more.
    pub network: u64,
    /// Paths removed because they were in the tables, but not in the cache.
    pub orphaned: u64,
    /// Permits ignored because they concern a network that is not here or is on another cluster.
    pub permits_refused: u64,
}

/// Whether gateways of a cluster may say something about a network, which this host may not have.
fn is_authoritative(
    networks: &BTreeMap<Vni, Network>,
    previous: &HashMap<Vni, (u32, u64)>,
    now_ms: u64,
    cluster: u32,
    vni: Vni,
) -> bool {
    let was = previous.get(&vni).is_some_and(|(old, until_ms)| *old == cluster && now_ms < *until_ms);
    was || networks.get(&vni).is_none_or(|network| network.cluster == cluster)
}

/// A host's knowledge of direct paths. Times are of a monotonic clock.
pub struct PathLearner {
    /// VTEP of this host.
    own: IpAddr,
    cache: Cache,
    timer_ms: Option<u64>,
    networks: BTreeMap<Vni, Network>,
    /// The previous cluster of a network, and until when its messages are accepted.
    previous_clusters: HashMap<Vni, (u32, u64)>,
    /// Clusters by the VTEPs of their gateways.
    clusters: HashMap<IpAddr, u32>,
    database: u64,
    /// Reports of stray packets: by sender and cluster, with a gateway that can redirect the sender.
    redirects: Batcher<(IpAddr, u32), Destination, (IpAddr, StrayEntry)>,
    /// Selects the gateway of the next report.
    next_gateway: usize,
    counts: LearnerCounts,
}

impl PathLearner {
    /// A learner without networks and paths. `own` is this host's VTEP.
    pub fn new(config: Config, own: IpAddr, now_ms: u64) -> Self {
        Self {
            own,
            cache: Cache::new(config, now_ms),
            timer_ms: None,
            networks: BTreeMap::new(),
            previous_clusters: HashMap::new(),
            clusters: HashMap::new(),
            database: 0,
            redirects: Batcher::new(QUIET_US, GATHER_US, REMEMBERED_MAX),
            next_gateway: config.seed as usize,
            counts: LearnerCounts::default(),
        }
    }

    /// Sets all networks of this host. Revisions of different databases cannot be compared, so a change of
    /// the database removes all paths. `database` is 0 while it is not known.
    pub fn set_networks(&mut self, now_ms: u64, database: u64, networks: Vec<Network>) -> Actions {
        let mut actions = Actions::default();
        let networks: BTreeMap<Vni, Network> =
            networks.into_iter().map(|network| (network.vni, network)).collect();
        let other_database = database != 0 && std::mem::replace(&mut self.database, database) != database;
        if !other_database && networks == self.networks {
            return actions;
        }
        self.previous_clusters.retain(|vni, (_, until_ms)| networks.contains_key(vni) && now_ms < *until_ms);
        for (vni, network) in std::mem::take(&mut self.networks) {
            if networks.get(&vni).is_some_and(|new| new.cluster != network.cluster) {
                let until_ms = now_ms.saturating_add(CLUSTER_CHANGE_MS);
                self.previous_clusters.insert(vni, (network.cluster, until_ms));
            }
            let stays = networks.get(&vni).is_some_and(|new| new.has_instance && !new.gateways.is_empty());
            if network.has_instance && (other_database || !stays) {
                self.feed(now_ms, Input::Gateways { vni, addresses: &[] }, &mut actions);
            }
        }
        let gateways = networks.values().flat_map(|n| n.gateways.iter().map(|gateway| (*gateway, n.cluster)));
        self.clusters = gateways.collect();
        for Network { vni, gateways, has_instance, .. } in networks.values() {
            if *has_instance && !gateways.is_empty() {
                self.feed(now_ms, Input::Gateways { vni: *vni, addresses: gateways }, &mut actions);
            }
        }
        self.networks = networks;
        actions
    }

    /// Takes over the paths that the tables have from an earlier agent. Their revisions are not known.
    pub fn adopt(&mut self, now_ms: u64, paths: &[(Destination, Path)]) -> Actions {
        let mut actions = Actions::default();
        self.feed(now_ms, Input::Adopt(paths), &mut actions);
        actions
    }

    /// Handles an authentic message that was sealed with the key of `cluster`. What it says about networks of
    /// other clusters is ignored.
    pub fn handle_message(&mut self, now_ms: u64, cluster: u32, message: Message, actions: &mut Actions) {
        let message = self.without_impossible_paths(message);
        let (networks, previous) = (&self.networks, &self.previous_clusters);
        let is_authoritative = |vni: Vni| is_authoritative(networks, previous, now_ms, cluster, vni);
        let outputs = self.cache.handle_message(now_ms, &message, &is_authoritative);
        self.collect(outputs, actions);
    }

    /// Leaves only those permits of a cluster's gateway that concern this host: of networks that it has, and that
    /// are on that cluster.
    pub fn relevant_permits(&mut self, now_ms: u64, cluster: u32, entries: &mut Vec<PermitEntry>) {
        let all = entries.len();
        entries.retain(|PermitEntry { vni, host }| {
            *host != self.own && self.is_of_cluster(now_ms, cluster, *vni)
        });
        self.counts.permits_refused += (all - entries.len()) as u64;
    }

    /// Whether a cluster's gateways may say something about a network of this host.
    pub fn is_of_cluster(&self, now_ms: u64, cluster: u32, vni: Vni) -> bool {
        self.networks.contains_key(&vni)
            && is_authoritative(&self.networks, &self.previous_clusters, now_ms, cluster, vni)
    }

    /// The networks of this host.
    pub fn networks(&self) -> &BTreeMap<Vni, Network> {
        &self.networks
    }

    /// Requests paths to destinations of elephant flows of this host.
    pub fn request_paths(&mut self, now_ms: u64, destinations: &[Destination], actions: &mut Actions) {
        self.feed(now_ms, Input::Resolve(destinations), actions);
    }

    /// Takes when each path of the tables was last used, as a number that changes with each use.
    pub fn note_use(&mut self, now_ms: u64, used: &[(Destination, u64)]) -> Actions {
        let mut actions = Actions::default();
        self.feed(now_ms, Input::Hits(used), &mut actions);
        actions
    }

    /// Time at which [`PathLearner::handle_timer`] is due.
    pub fn timer_ms(&self) -> Option<u64> {
        self.timer_ms
    }

    /// Does what is due at this time.
    pub fn handle_timer(&mut self, now_ms: u64, actions: &mut Actions) {
        self.timer_ms = None;
        self.feed(now_ms, Input::Tick, actions);
    }

    /// Notes a stray packet: one that another host sent for an instance that is not here. A gateway is asked to
    /// redirect the sender: hosts have no key in common.
    pub fn note_stray(&mut self, now_us: u64, destination: Destination, sender: IpAddr) {
        let network = self.networks.get(&destination.vni).filter(|network| !network.gateways.is_empty());
        let Some(Network { cluster, gateways, .. }) = network else {
            self.counts.redirects_unknown += 1;
            return;
        };
        let receiver = (sender, *cluster);
        if self.redirects.admit(now_us, receiver, destination) != Admission::New {
            self.counts.redirects_repeated += 1;
            return;
        }
        let gateway = gateways[self.next_gateway % gateways.len()];
        self.next_gateway = self.next_gateway.wrapping_add(1);
        self.counts.redirects += 1;
        self.redirects.push(receiver, (gateway, StrayEntry { destination, host: sender }));
    }

    /// Time at which [`PathLearner::take_redirects`] is due; `None` if no redirection waits.
    pub fn redirects_due_us(&self) -> Option<u64> {
        self.redirects.due_us()
    }

    /// Takes the waiting redirections.
    pub fn take_redirects(&mut self, now_us: u64, actions: &mut Actions) {
        // Reports to one gateway of a cluster are sent together, whoever the senders are.
        let mut messages: BTreeMap<(u32, IpAddr), Vec<StrayEntry>> = BTreeMap::new();
        for ((_, cluster), entries) in self.redirects.take(now_us) {
            for (gateway, entry) in entries {
                messages.entry((cluster, gateway)).or_default().push(entry);
            }
        }
        let message = |((cluster, gateway), entries)| (cluster, gateway, Message::Stray { entries });
        actions.messages.extend(messages.into_iter().map(message));
    }

    /// All learned paths.
    pub fn paths(&self) -> impl Iterator<Item = (Destination, Path)> {
        self.cache.paths()
    }

    /// Number of paths, and its limit.
    pub fn fill(&self) -> (usize, usize) {
        let usage = self.cache.usage();
        (usage.paths, usage.entries_max)
    }

    /// Counters of the cache, and of this learner.
    pub fn stats(&self) -> (Stats, LearnerCounts) {
        (*self.cache.stats(), self.counts)
    }

    /// Replaces paths that this host cannot use by the answer that there is no path. The destination may have
    /// come to this host, or be reachable over the other address family only.
    fn without_impossible_paths(&mut self, mut message: Message) -> Message {
        let mut replace = |answers: &mut Vec<AnswerEntry>| {
            for answered in answers {
                if let Answer::Path(Path { host, revision, .. }) = answered.answer
                    && (host == self.own || host.is_ipv4() != self.own.is_ipv4())
                {
                    self.counts.impossible += 1;
                    answered.answer = Answer::Absent { revision };
                }
            }
        };
        match &mut message {
            Message::Reply { answers, .. } | Message::Notify { answers } => replace(answers),
            Message::Request { .. }
            | Message::Redirect { .. }
            | Message::Stray { .. }
            | Message::Permit { .. }
            | Message::Permitted { .. }
            | Message::Identify { .. }
            | Message::Identity { .. }
            | Message::Reconcile { .. }
            | Message::Reconciled { .. } => {}
        }
        message
    }

    fn feed(&mut self, now_ms: u64, input: Input<'_>, actions: &mut Actions) {
        let outputs = self.cache.handle(now_ms, input);
        self.collect(outputs, actions);
    }

    fn collect(&mut self, outputs: Vec<Output>, actions: &mut Actions) {
        for output in outputs {
            match output {
                Output::Install { destination, path } => {
                    actions.changes.push(PathChange::Install(destination, path));
                }
                Output::Remove { destination, reason } => {
                    self.counts.network += u64::from(reason == RemovalReason::NetworkRemoved);
                    self.counts.orphaned += u64::from(reason == RemovalReason::Orphaned);
                    actions.changes.push(PathChange::Remove(destination, reason));
                }
                Output::Send { to, message } => {
                    // A redirection may name any address: requests go only to gateways of this host's
                    // networks.
                    let cluster = self.clusters.get(&to);
                    actions.messages.extend(cluster.map(|cluster| (*cluster, to, message)));
                }
                Output::Wake { at_ms } => self.timer_ms = Some(at_ms),
            }
        }
    }
}

#[cfg(test)]
#[path = "path_learner_tests.rs"]
mod tests;
