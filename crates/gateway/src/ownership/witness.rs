//! Witnesses: neighbors on the underlay that are not gateways, probed to find out whether the underlay is
//! reachable. This file changes with the choice of neighbors or the kind of probe.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use sluice_agent::Error;
use sluice_agent::frames::{neighbor_probe, parse_probe_reply};
use sluice_agent::underlay::Vteps;
use sluice_sys::{LinkReply, PacketSocket};
use sluice_types::MacAddr;

/// A neighbor that may be probed: a next hop, and the interface that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WitnessNeighbor {
    /// Index of the interface.
    pub ifindex: u32,
    /// MAC of the interface.
    pub mac: MacAddr,
    /// IP address of the neighbor.
    pub address: IpAddr,
}

/// Neighbors that are probed at a time: some of them may be down.
const PROBED_MAX: usize = 8;
/// Frames that are read from a socket at a time.
const BURST: usize = 64;

/// A probe that was sent to several neighbors.
#[derive(Clone, Copy, Debug)]
struct Probe {
    token: u64,
    /// Time until which a reply counts.
    until_us: u64,
}

/// Probes and their replies, without sockets.
#[derive(Debug, Default)]
struct WitnessProbes {
    neighbors: Vec<WitnessNeighbor>,
    /// Index of the neighbor that is probed next.
    next: usize,
    last: Option<Probe>,
    /// The neighbors probed last. A reply to the probe before may still arrive.
    probed: Vec<IpAddr>,
    /// The neighbor that replied last.
    last_responder: Option<IpAddr>,
}

impl WitnessProbes {
    /// The frames of a probe, with their interfaces: to the neighbor that replied last, and to others in
    /// turn.
    fn frames(&mut self, probe: Probe, own: Vteps) -> Vec<(u32, Vec<u8>)> {
        self.last = Some(probe);
        let responder = self.neighbors.iter().find(|it| Some(it.address) == self.last_responder).copied();
        let mut selected: Vec<WitnessNeighbor> = responder.into_iter().collect();
        for _ in 0..self.neighbors.len() {
            if selected.len() == PROBED_MAX {
                break;
            }
            let next = self.neighbors[self.next % self.neighbors.len()];
            self.next = (self.next + 1) % self.neighbors.len();
            selected.extend((Some(next) != responder).then_some(next));
        }
        let mut frames = Vec::new();
        for WitnessNeighbor { ifindex, mac, address } in selected {
            let source = if address.is_ipv4() { own.v4.map(IpAddr::from) } else { own.v6.map(IpAddr::from) };
            let frame = source.and_then(|source| neighbor_probe(address, source, mac));
            let Some(frame) = frame else { continue };
            frames.push((ifindex, frame));
            self.probed.retain(|probed| *probed != address);
            self.probed.push(address);
            if self.probed.len() > 2 * PROBED_MAX {
                self.probed.remove(0);
            }
        }
        frames
    }

    /// The token of the last probe, if the frame is a reply to it in time.
    fn receive(&mut self, now_us: u64, own: Vteps, frame: &[u8]) -> Option<u64> {
        let (neighbor, prober) = parse_probe_reply(frame)?;
        let Probe { token, until_us } = self.last?;
        let is_reply = own.addresses().any(|address| address == prober) && self.probed.contains(&neighbor);
        if !is_reply || now_us > until_us {
            return None;
        }
        self.last_responder = Some(neighbor);
        Some(token)
    }
}

/// Probes witnesses over packet sockets.
#[derive(Debug)]
pub struct Witness {
    arp: PacketSocket,
    neighbor_discovery: PacketSocket,
    probes: WitnessProbes,
    own: Vteps,
}

impl Witness {
    /// Probes from these addresses of this node.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW.
    pub fn new(own: Vteps) -> Result<Self, Error> {
        Ok(Self {
            arp: PacketSocket::listen(LinkReply::Arp)?,
            neighbor_discovery: PacketSocket::listen(LinkReply::NeighborAdvertisement)?,
            probes: WitnessProbes::default(),
            own,
        })
    }

    /// Sets the neighbors that are probed from now on.
    pub fn set_neighbors(&mut self, mut neighbors: Vec<WitnessNeighbor>) {
        neighbors.sort_unstable();
        neighbors.dedup();
        if neighbors != self.probes.neighbors {
            tracing::debug!(?neighbors, "witnesses");
            self.probes.neighbors = neighbors;
            self.probes.next = 0;
        }
    }

    /// Sends a probe. A reply counts until `until_us`; a probe that cannot be sent stays without a reply.
    pub fn probe(&mut self, token: u64, until_us: u64) {
        for (ifindex, frame) in self.probes.frames(Probe { token, until_us }, self.own) {
            if let Err(error) = self.arp.send(ifindex, &frame) {
                tracing::debug!(%error, ifindex, "cannot probe a witness");
            }
        }
    }

    /// The token of the last probe, if a reply to it has arrived in time.
    pub fn receive(&mut self, now_us: u64) -> Option<u64> {
        let mut buffer = [0; 128];
        let mut token = None;
        for socket in [&self.arp, &self.neighbor_discovery] {
            for _ in 0..BURST {
                match socket.receive(&mut buffer) {
                    Ok(Some((_, frame))) => {
                        token = token.or(self.probes.receive(now_us, self.own, frame));
                    }
                    // The interface went down; the socket can still be used.
                    Err(_) => {}
                    Ok(None) => break,
                }
            }
        }
        token
    }

    /// The sockets, to poll them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.arp.as_fd(), self.neighbor_discovery.as_fd()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    const OWN: Vteps = Vteps { v4: Some(Ipv4Addr::new(192, 0, 2, 1)), v6: None };

    fn neighbor(last: u8) -> WitnessNeighbor {
        let address = Ipv4Addr::new(192, 0, 2, last).into();
        WitnessNeighbor { ifindex: 3, mac: MacAddr::local(1), address }
    }

    fn probe(token: u64) -> Probe {
        Probe { token, until_us: token * 4_000 }
    }

    /// The ARP reply to a probe.
    fn reply(frame: &[u8]) -> Vec<u8> {
        let mut reply = frame.to_vec();
        reply[21] = 2;
        reply[28..32].copy_from_slice(&frame[38..42]);
        reply[38..42].copy_from_slice(&frame[28..32]);
        reply
    }

    #[test]
    fn neighbors_are_probed_in_turn_and_replies_in_time_count() {
        let neighbors = (10..30).map(neighbor).collect();
        let mut probes = WitnessProbes { neighbors, ..WitnessProbes::default() };
        let mut probed = BTreeSet::new();
        for token in 1..=3 {
            let Probe { until_us, .. } = probe(token);
            let frames = probes.frames(probe(token), OWN);
            assert_eq!(frames.len(), PROBED_MAX);
            assert!(token == 1 || frames[0].1[41] == 10, "the neighbor that replied is probed again");
            probed.extend(frames.iter().map(|(_, frame)| frame[41]));
            let good = reply(&frames[0].1);
            assert_eq!(probes.receive(until_us, OWN, &good), Some(token));
            assert_eq!(probes.receive(until_us + 1, OWN, &good), None, "too late");
            assert_eq!(probes.receive(until_us, OWN, &frames[0].1), None, "the probe itself");
            let mut other = good.clone();
            other[41] = 77;
            assert_eq!(probes.receive(until_us, OWN, &other), None, "to another prober");
            other = good;
            other[31] = 77;
            assert_eq!(probes.receive(until_us, OWN, &other), None, "of a neighbor that was not probed");
        }
        assert_eq!(probed.len(), 20);
    }

    #[test]
    fn without_usable_neighbors_nothing_is_probed() {
        let mut probes = WitnessProbes::default();
        assert!(probes.frames(probe(1), OWN).is_empty());
        // This node has no address of the neighbor's family.
        let address = "2001:db8::1".parse().unwrap();
        probes.neighbors = vec![WitnessNeighbor { address, ..neighbor(1) }];
        assert!(probes.frames(probe(2), OWN).is_empty());
    }
}
