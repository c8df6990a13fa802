//! This host's direct paths: what is learned and given up (Zeta section V-B,
//! Achelous section 4.3), and what other hosts are told of instances that have
//! left. Pure: what is to be written and said comes out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use sluice_agent::rsp::{Admission, Batch};
use sluice_rsp::cache::{Cache, Config, Input, Output, Stats, Why};
use sluice_rsp::{Answer, Answered, Destination, Message, Moved, Path};
use sluice_types::Vni;

/// A host is told of a destination that left once in this time.
const QUIET_US: u64 = 100_000;
/// What is told within this time goes together.
const GATHER_US: u64 = 1_000;
/// A network that changed its cluster is spoken for by both for so long: not all of its hosts and gateways
/// know at the same time.
const CHANGING_MS: u64 = 60_000;
/// What was told is remembered of so many destinations.
const MEMORY_MAX: usize = 16_384;

/// A network of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its VNI.
    pub vni: Vni,
    /// The group id of its cluster.
    pub cluster: u32,
    /// VTEPs of the cluster's gateways, of the family of this host.
    pub gateways: Vec<IpAddr>,
    /// Whether an instance of it is here. If not it lingers: its packets may still come.
    pub used: bool,
}

/// What the tables are to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Packets for the destination go this way.
    Install(Destination, Path),
    /// Packets for the destination go to the gateway.
    Remove(Destination, Why),
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// To be written, in this order.
    pub changes: Vec<Change>,
    /// To be said: with which cluster's key, to whom.
    pub messages: Vec<(u32, IpAddr, Message)>,
}

/// What came of packets for instances that are not here, and of answers that are of no use here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Redirections that hosts were told.
    pub redirects: u64,
    /// Those that they were told a moment ago, or that were too many to remember.
    pub redirects_repeated: u64,
    /// Those that nobody could be told, for no gateway is known to ask instead.
    pub redirects_unknown: u64,
    /// Paths that lead to this host itself, or to an address of a family that it does not have.
    pub impossible: u64,
    /// Paths that went because no instance of the network is here any more.
    pub network: u64,
    /// Paths that were in the tables, and not in the cache.
    pub stray: u64,
}

/// This host's knowledge of paths. Times are of a clock that does not jump.
pub struct Keeper {
    own: IpAddr,
    cache: Cache,
    wake_ms: Option<u64>,
    networks: BTreeMap<Vni, Network>,
    /// The cluster that a network was on before, and until when that one speaks for it.
    before: HashMap<Vni, (u32, u64)>,
    /// Clusters by their gateways' VTEPs.
    clusters: HashMap<IpAddr, u32>,
    database: u64,
    redirects: Batch<(IpAddr, u32), Destination, Moved>,
    asked_next: usize,
    counts: Counts,
}

impl Keeper {
    /// Knows nothing. `own` is this host's VTEP.
    pub fn new(config: Config, own: IpAddr, now_ms: u64) -> Self {
        Self {
            own,
            cache: Cache::new(config, now_ms),
            wake_ms: None,
            networks: BTreeMap::new(),
            before: HashMap::new(),
            clusters: HashMap::new(),
            database: 0,
            redirects: Batch::new(QUIET_US, GATHER_US, MEMORY_MAX),
            asked_next: config.seed as usize,
            counts: Counts::default(),
        }
    }

    /// Takes the whole truth of this host's networks. Revisions of another database are not comparable, so
    /// with another one all paths go.
    pub fn set_networks(&mut self, now_ms: u64, database: u64, networks: Vec<Network>) -> Reaction {
        let mut reaction = Reaction::default();
        let networks: BTreeMap<Vni, Network> =
            networks.into_iter().map(|network| (network.vni, network)).collect();
        let another = database != 0 && std::mem::replace(&mut self.database, database) != database;
        if !another && networks == self.networks {
            return reaction;
        }
        self.before.retain(|vni, (_, until_ms)| networks.contains_key(vni) && now_ms < *until_ms);
        for (vni, network) in std::mem::take(&mut self.networks) {
            if networks.get(&vni).is_some_and(|new| new.cluster != network.cluster) {
                self.before.insert(vni, (network.cluster, now_ms.saturating_add(CHANGING_MS)));
            }
            let stays = networks.get(&vni).is_some_and(|new| new.used && !new.gateways.is_empty());
            if network.used && (another || !stays) {
                self.feed(now_ms, Input::Gateways { vni, addresses: &[] }, &mut reaction);
            }
        }
        let gateways = networks.values().flat_map(|n| n.gateways.iter().map(|gateway| (*gateway, n.cluster)));
        self.clusters = gateways.collect();
        for Network { vni, gateways, used, .. } in networks.values() {
            if *used && !gateways.is_empty() {
                self.feed(now_ms, Input::Gateways { vni: *vni, addresses: gateways }, &mut reaction);
            }
        }
        self.networks = networks;
        reaction
    }

    /// Takes over the paths that the tables hold from before. Nobody knows of which revision they are.
    pub fn adopt(&mut self, now_ms: u64, paths: &[(Destination, Path)]) -> Reaction {
        let mut reaction = Reaction::default();
        self.feed(now_ms, Input::Adopt(paths), &mut reaction);
        reaction
    }

    /// Takes an authentic message, sealed with a cluster's key: what it says of networks of another
    /// cluster is not believed.
    pub fn hear(&mut self, now_ms: u64, cluster: u32, message: Message, reaction: &mut Reaction) {
        let message = self.possible(message);
        let (networks, before) = (&self.networks, &self.before);
        let speaks = |vni: Vni| {
            let then = before.get(&vni).is_some_and(|(old, until_ms)| *old == cluster && now_ms < *until_ms);
            then || networks.get(&vni).is_none_or(|network| network.cluster == cluster)
        };
        let outputs = self.cache.hear(now_ms, &message, &speaks);
        self.react(outputs, reaction);
    }

    /// Takes destinations that this host sends enough to.
    pub fn want(&mut self, now_ms: u64, wanted: &[Destination], reaction: &mut Reaction) {
        self.feed(now_ms, Input::Want(wanted), reaction);
    }

    /// Takes when each path of the tables was last used, as a number that changes with use.
    pub fn note_use(&mut self, now_ms: u64, used: &[(Destination, u64)]) -> Reaction {
        let mut reaction = Reaction::default();
        self.feed(now_ms, Input::Hits(used), &mut reaction);
        reaction
    }

    /// When to call [`Keeper::tick`].
    pub fn wake_ms(&self) -> Option<u64> {
        self.wake_ms
    }

    /// The time has come.
    pub fn tick(&mut self, now_ms: u64, reaction: &mut Reaction) {
        self.wake_ms = None;
        self.feed(now_ms, Input::Tick, reaction);
    }

    /// A packet came from another host, for a destination that is not here.
    pub fn note_stray(&mut self, now_us: u64, destination: Destination, sender: IpAddr) {
        let network = self.networks.get(&destination.vni).filter(|network| !network.gateways.is_empty());
        let Some(Network { cluster, gateways, .. }) = network else {
            self.counts.redirects_unknown += 1;
            return;
        };
        let to = (sender, *cluster);
        if self.redirects.admit(now_us, to, destination) != Admission::New {
            self.counts.redirects_repeated += 1;
            return;
        }
        let ask = gateways[self.asked_next % gateways.len()];
        self.asked_next = self.asked_next.wrapping_add(1);
        self.counts.redirects += 1;
        self.redirects.push(to, Moved { destination, host: self.own, ask });
    }

    /// When to call [`Keeper::take_redirects`]; `None` while there are none.
    pub fn redirects_due_us(&self) -> Option<u64> {
        self.redirects.due_us()
    }

    /// The redirections that have gathered.
    pub fn take_redirects(&mut self, now_us: u64, reaction: &mut Reaction) {
        let all = self.redirects.take(now_us).into_iter();
        reaction
            .messages
            .extend(all.map(|((to, cluster), moved)| (cluster, to, Message::Redirect { moved })));
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = (Destination, Path)> {
        self.cache.paths()
    }

    /// Number of paths, and of the most that there may be.
    pub fn fill(&self) -> (usize, usize) {
        let (paths, _, most) = self.cache.fill();
        (paths, most)
    }

    /// What has happened so far.
    pub fn stats(&self) -> (Stats, Counts) {
        (*self.cache.stats(), self.counts)
    }

    /// Paths that this host cannot go are none.
    fn possible(&mut self, message: Message) -> Message {
        let mut check = |answers: &mut Vec<Answered>| {
            for answered in answers {
                if let Answer::Path(Path { host, revision, .. }) = answered.answer
                    && (host == self.own || host.is_ipv4() != self.own.is_ipv4())
                {
                    self.counts.impossible += 1;
                    answered.answer = Answer::Absent { revision };
                }
            }
        };
        let mut message = message;
        match &mut message {
            Message::Reply { answers, .. } | Message::Notify { answers } => check(answers),
            Message::Request { .. } | Message::Redirect { .. } => {}
        }
        message
    }

    fn feed(&mut self, now_ms: u64, input: Input<'_>, reaction: &mut Reaction) {
        let outputs = self.cache.handle(now_ms, input);
        self.react(outputs, reaction);
    }

    fn react(&mut self, outputs: Vec<Output>, reaction: &mut Reaction) {
        for output in outputs {
            match output {
                Output::Install { destination, path } => {
                    reaction.changes.push(Change::Install(destination, path));
                }
                Output::Remove { destination, why } => {
                    self.counts.network += u64::from(why == Why::Network);
                    self.counts.stray += u64::from(why == Why::Stray);
                    reaction.changes.push(Change::Remove(destination, why));
                }
                Output::Send { to, message } => {
                    // Who is no gateway of a network of this host is not asked: a redirection may name anyone.
                    let cluster = self.clusters.get(&to);
                    reaction.messages.extend(cluster.map(|cluster| (*cluster, to, message)));
                }
                Output::Wake { at_ms } => self.wake_ms = Some(at_ms),
            }
        }
    }
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
