//! Probes of other nodes: which nodes are watched, when each is probed, and what its answers say. Pure: sockets and clocks
//! are the caller's. This file changes with the choice of the nodes that are watched.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use sluice_southbound::{HealthSubject, LinkHealth};
use sluice_types::Random;

use super::echo::{ECHO_BYTES_MIN, Nonce};
use super::rules::{Rule, Symptom};

/// Gateways that are watched.
const GATEWAYS_MAX: usize = 32;
/// Hosts that are watched, each by about as many others.
const HOSTS_MAX: usize = 8;
/// Longest wait for an answer, in microseconds.
const TIMEOUT_US: u64 = 1_000_000;
/// Each probe of this number has the length of the MTU.
const LONG_EVERY: u64 = 4;
/// Results that are kept of each node, and those that decide.
const KEPT: usize = 8;
const DECIDING: usize = 4;
/// Lost or slow probes among the deciding ones from which on the link is bad.
const BAD_MIN: usize = 2;
/// A round trip in microseconds that a queue explains: within a site it takes below 1000, and agents that share processors
/// with VMs take some 10,000.
const SLOW_US: u32 = 100_000;

/// A probe to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProbe {
    /// VTEP of the node.
    pub to: IpAddr,
    /// Its number.
    pub nonce: Nonce,
    /// Length of the datagram.
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    nonce: Nonce,
    sent_us: u64,
    is_long: bool,
}

#[derive(Debug)]
struct Peer {
    is_gateway: bool,
    next_us: u64,
    sent: u64,
    outstanding: Option<Outstanding>,
    /// Round-trip times of short probes, `None` for those that were lost; the newest is the last.
    short: VecDeque<Option<u32>>,
    /// Of these, the newest that were measured while this node was in order: the others say nothing about the way.
    judged: usize,
    /// Whether long probes were answered.
    long: VecDeque<bool>,
    /// A node that never answered is of an earlier version, or not there yet.
    has_answered: bool,
}

impl Peer {
    fn note(&mut self, is_long: bool, rtt_us: Option<u32>) {
        self.has_answered |= rtt_us.is_some();
        if is_long {
            self.long.push_back(rtt_us.is_some());
            if self.long.len() > BAD_MIN {
                self.long.pop_front();
            }
        } else {
            // When short probes are lost, the length explains nothing.
            if rtt_us.is_none() {
                self.long.clear();
            }
            self.short.push_back(rtt_us);
            if self.short.len() > KEPT {
                self.short.pop_front();
            }
            self.judged = (self.judged + 1).min(KEPT);
        }
    }

    fn lost(&self) -> usize {
        self.short.iter().filter(|rtt| rtt.is_none()).count()
    }

    fn rtt_us(&self) -> u32 {
        self.short.iter().rev().find_map(|rtt| *rtt).unwrap_or(0)
    }

    /// The number of results that decide.
    fn deciding(&self) -> usize {
        self.judged.min(DECIDING)
    }

    /// Lost and slow probes among those that decide.
    fn recent(&self) -> (usize, usize) {
        let deciding = || self.short.iter().rev().take(self.deciding());
        let lost = deciding().filter(|rtt| rtt.is_none()).count();
        (lost, deciding().filter(|rtt| rtt.is_some_and(|rtt| rtt >= SLOW_US)).count())
    }

    fn is_bad(&self) -> bool {
        let (lost, slow) = self.recent();
        self.has_answered && lost + slow >= BAD_MIN
    }

    /// Whether the length decides which probes are lost. In a full queue, long ones are lost more often.
    fn loses_long_probes(&self) -> bool {
        let is_clean = self.judged >= DECIDING && self.recent() == (0, 0);
        is_clean && self.long.len() == BAD_MIN && !self.long.contains(&true)
    }
}

/// The nodes that this node watches.
#[derive(Debug)]
pub struct Links {
    own: Vec<IpAddr>,
    period_us: u64,
    peers: BTreeMap<IpAddr, Peer>,
    random: Random,
    /// Probes that were not answered in time.
    lost: u64,
}

impl Links {
    /// Of a node with these addresses, which probes each node once in a period on average.
    #[must_use]
    pub fn new(own: Vec<IpAddr>, period_us: u64, seed: u64) -> Self {
        Self { own, period_us, peers: BTreeMap::new(), random: Random::new(seed), lost: 0 }
    }

    /// Chooses the nodes to watch among `known`, of which the flag says whether it is a gateway.
    pub fn set_known(&mut self, now_us: u64, known: &[(IpAddr, bool)]) {
        let reachable = |address: &IpAddr| {
            !self.own.contains(address) && self.own.iter().any(|own| own.is_ipv4() == address.is_ipv4())
        };
        let choose = |gateways: bool, max: usize| {
            let candidates = known.iter().filter(|(address, is)| *is == gateways && reachable(address));
            let mut weighed: Vec<(u64, IpAddr)> =
                candidates.map(|(address, _)| (self.weight(*address), *address)).collect();
            weighed.sort_unstable();
            weighed.truncate(max);
            weighed
        };
        let chosen: BTreeMap<IpAddr, bool> = [(true, GATEWAYS_MAX), (false, HOSTS_MAX)]
            .into_iter()
            .flat_map(|(gateways, max)| choose(gateways, max).into_iter().map(move |(_, it)| (it, gateways)))
            .collect();
        self.peers.retain(|address, peer| chosen.get(address) == Some(&peer.is_gateway));
        for (address, is_gateway) in chosen {
            let first_us = now_us + self.random.number() % self.period_us.max(1);
            self.peers.entry(address).or_insert_with(|| Peer {
                is_gateway,
                next_us: first_us,
                sent: 0,
                outstanding: None,
                short: VecDeque::new(),
                judged: 0,
                long: VecDeque::new(),
                has_answered: false,
            });
        }
    }

    /// The rendezvous hash of this node and another one: each node is watched by about as many as it watches.
    fn weight(&self, other: IpAddr) -> u64 {
        let value = |address: IpAddr| match address {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            IpAddr::V6(v6) => {
                let (high, low) = sluice_types::ipv6_halves(v6);
                Random::new(high).number() ^ low
            }
        };
        let own = self.own.first().map_or(0, |own| value(*own));
        Random::new(Random::new(own).number() ^ value(other)).number()
    }

    /// When a probe is due, or the wait for an answer ends.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        let timeout = |peer: &Peer| peer.outstanding.map(|it| it.sent_us + self.timeout_us());
        self.peers.values().flat_map(|peer| [Some(peer.next_us), timeout(peer)]).flatten().min()
    }

    fn timeout_us(&self) -> u64 {
        TIMEOUT_US.min(self.period_us / 2)
    }

    /// The probes that are due, and counts those that were lost. `long_bytes` is the length of a datagram that fills the
    /// MTU over IPv4 and over IPv6, and `nonce` returns unpredictable numbers.
    pub fn take_due(
        &mut self,
        now_us: u64,
        long_bytes: (usize, usize),
        mut nonce: impl FnMut() -> Option<Nonce>,
    ) -> Vec<LinkProbe> {
        let timeout_us = self.timeout_us();
        let mut probes = Vec::new();
        for (address, peer) in &mut self.peers {
            if let Some(late) = peer.outstanding.filter(|it| now_us >= it.sent_us + timeout_us) {
                peer.outstanding = None;
                peer.note(late.is_long, None);
                self.lost += 1;
            }
            if now_us < peer.next_us {
                continue;
            }
            peer.next_us = now_us + self.random.jittered(self.period_us);
            // An earlier probe that is still in transit decides first.
            if peer.outstanding.is_some() {
                continue;
            }
            let Some(nonce) = nonce() else { continue };
            peer.sent += 1;
            let is_long = peer.sent.is_multiple_of(LONG_EVERY);
            let long = if address.is_ipv4() { long_bytes.0 } else { long_bytes.1 };
            peer.outstanding = Some(Outstanding { nonce, sent_us: now_us, is_long });
            let bytes = if is_long { long.max(ECHO_BYTES_MIN) } else { ECHO_BYTES_MIN };
            probes.push(LinkProbe { to: *address, nonce, bytes });
        }
        probes
    }

    /// Takes an answer. One that is not awaited is ignored, and one that is too late counts as lost.
    pub fn answer(&mut self, now_us: u64, from: IpAddr, nonce: &Nonce) {
        let timeout_us = self.timeout_us();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let is_awaited = |it: &Outstanding| it.nonce == *nonce && now_us < it.sent_us + timeout_us;
        let Some(sent) = peer.outstanding.filter(is_awaited) else { return };
        peer.outstanding = None;
        let rtt_us = u32::try_from(now_us.saturating_sub(sent.sent_us)).unwrap_or(u32::MAX).max(1);
        peer.note(sent.is_long, Some(rtt_us));
    }

    /// This node itself lost or delayed packets: what was measured until now is not judged, now and later.
    pub fn discard(&mut self) {
        for peer in self.peers.values_mut() {
            peer.judged = 0;
            peer.long.clear();
        }
    }

    /// The rules that hold.
    #[must_use]
    pub fn symptoms(&self) -> Vec<Symptom> {
        let mut found = Vec::new();
        let judged = self.peers.values().filter(|peer| peer.has_answered && peer.judged >= BAD_MIN).count();
        let bad: Vec<_> = self.peers.iter().filter(|(_, peer)| peer.is_bad()).collect();
        if bad.len() >= 2 && bad.len() >= judged - judged / 4 {
            let one = |(address, peer): &(&IpAddr, &Peer)| {
                let (lost, slow) = peer.recent();
                let (of, ms) = (peer.deciding(), peer.rtt_us() / 1000);
                format!("{address} {lost} lost and {slow} slow of {of}, {ms} ms")
            };
            let named: Vec<_> = bad.iter().take(4).map(one).collect();
            let evidence =
                format!("{} of {judged} peers lose or delay probes: {}", bad.len(), named.join("; "));
            found.push(Symptom::new(Rule::PeersLost, HealthSubject::Node, evidence));
        }
        for (address, _) in self.peers.iter().filter(|(_, peer)| peer.loses_long_probes()) {
            let evidence = "probes of the length of the MTU are lost, short ones are answered".to_owned();
            found.push(Symptom::new(Rule::PathMtu, HealthSubject::Peer(*address), evidence));
        }
        found
    }

    /// The links as the controller gets them: those to nodes that have answered. Few results are no loss of all.
    #[must_use]
    pub fn list(&self) -> Vec<LinkHealth> {
        let link = |(peer, it): (&IpAddr, &Peer)| {
            let loss = it.lost() * 1000 / it.short.len().max(DECIDING);
            let loss_permille = u32::try_from(loss).unwrap_or(1000);
            LinkHealth { peer: *peer, gateway: it.is_gateway, loss_permille, rtt_us: it.rtt_us() }
        };
        self.peers.iter().filter(|(_, it)| it.has_answered).map(link).collect()
    }

    /// Probes that were not answered in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
