//! Probes of neighbors on the underlay. Witnesses are neighbors that are not gateways: if one answers, this node reaches the underlay. If another gateway
//! answers, packets pass between its machine and this one, although its messages may not. This file changes with the choice of neighbors or the
//! kind of probe.

use std::collections::{BTreeSet, HashMap};
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
    /// Other gateways of the cluster.
    gateways: Vec<WitnessNeighbor>,
    /// Those that were probed, and until when a reply counts.
    probed_gateways: HashMap<IpAddr, u64>,
}

/// Replies to probes that have arrived in time.
#[derive(Debug, Default)]
pub struct Replies {
    /// Number of the last probe of witnesses, if there is one to it.
    pub token: Option<u64>,
    /// Gateways that have replied.
    pub gateways: BTreeSet<IpAddr>,
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
            let Some(frame) = probe_frame(WitnessNeighbor { ifindex, mac, address }, own) else { continue };
            frames.push((ifindex, frame));
            self.probed.retain(|probed| *probed != address);
            self.probed.push(address);
            if self.probed.len() > 2 * PROBED_MAX {
                self.probed.remove(0);
            }
        }
        frames
    }

    /// The frames of a probe of a gateway, with their interfaces.
    fn gateway_frames(&mut self, gateway: IpAddr, until_us: u64, own: Vteps) -> Vec<(u32, Vec<u8>)> {
        self.probed_gateways.insert(gateway, until_us);
        self.probed_gateways.retain(|known, _| self.gateways.iter().any(|it| it.address == *known));
        let paths = self.gateways.iter().filter(|it| it.address == gateway);
        paths.filter_map(|path| Some((path.ifindex, probe_frame(*path, own)?))).collect()
    }

    /// Adds what the frame is a reply to, in time.
    fn receive(&mut self, now_us: u64, own: Vteps, frame: &[u8], replies: &mut Replies) {
        let Some((neighbor, prober)) = parse_probe_reply(frame) else { return };
        if !own.addresses().any(|address| address == prober) {
            return;
        }
        if self.probed_gateways.get(&neighbor).is_some_and(|until_us| now_us <= *until_us) {
            replies.gateways.insert(neighbor);
        }
        let Some(Probe { token, until_us }) = self.last else { return };
        if self.probed.contains(&neighbor) && now_us <= until_us {
            self.last_responder = Some(neighbor);
            replies.token = Some(token);
        }
    }
}

/// The frame that probes a neighbor. `None`: this node has no address of its family.
fn probe_frame(neighbor: WitnessNeighbor, own: Vteps) -> Option<Vec<u8>> {
    let WitnessNeighbor { mac, address, .. } = neighbor;
    let source = if address.is_ipv4() { own.v4.map(IpAddr::from) } else { own.v6.map(IpAddr::from) };
    neighbor_probe(address, source?, mac)
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

    /// Sets the neighbors that are probed from now on: witnesses, and other gateways of the cluster.
    pub fn set_neighbors(&mut self, mut neighbors: Vec<WitnessNeighbor>, gateways: Vec<WitnessNeighbor>) {
        self.probes.gateways = gateways;
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
        let frames = self.probes.frames(Probe { token, until_us }, self.own);
        self.send(&frames);
    }

    /// Sends a probe to another gateway, as [`probe`](Self::probe) does to witnesses. One that is behind a router gets none.
    pub fn probe_gateway(&mut self, gateway: IpAddr, until_us: u64) {
        let frames = self.probes.gateway_frames(gateway, until_us, self.own);
        self.send(&frames);
    }

    fn send(&self, frames: &[(u32, Vec<u8>)]) {
        for (ifindex, frame) in frames {
            if let Err(error) = self.arp.send(*ifindex, frame) {
                tracing::debug!(%error, ifindex, "cannot probe a neighbor");
            }
        }
    }

    /// The replies that have arrived.
    pub fn receive(&mut self, now_us: u64) -> Replies {
        let mut buffer = [0; 128];
        let mut replies = Replies::default();
        for socket in [&self.arp, &self.neighbor_discovery] {
            for _ in 0..BURST {
                match socket.receive(&mut buffer) {
                    Ok(Some((_, frame))) => {
                        self.probes.receive(now_us, self.own, frame, &mut replies);
                    }
                    // The interface went down; the socket can still be used.
                    Err(_) => {}
                    Ok(None) => break,
                }
            }
        }
        replies
    }

    /// The sockets, to poll them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.arp.as_fd(), self.neighbor_discovery.as_fd()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const OWN: Vteps = Vteps { v4: Some(Ipv4Addr::new(192, 0, 2, 1)), v6: None };

    fn neighbor(last: u8) -> WitnessNeighbor {
        let address = Ipv4Addr::new(192, 0, 2, last).into();
        WitnessNeighbor { ifindex: 3, mac: MacAddr::local(1), address }
    }

    fn probe(token: u64) -> Probe {
        Probe { token, until_us: token * 4_000 }
    }

    /// The number of the last probe, if the frame is a reply to it.
    fn replied(probes: &mut WitnessProbes, now_us: u64, frame: &[u8]) -> Option<u64> {
        let mut replies = Replies::default();
        probes.receive(now_us, OWN, frame, &mut replies);
        replies.token
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
            assert_eq!(replied(&mut probes, until_us, &good), Some(token));
            assert_eq!(replied(&mut probes, until_us + 1, &good), None, "too late");
            assert_eq!(replied(&mut probes, until_us, &frames[0].1), None, "the probe itself");
            let mut other = good.clone();
            other[41] = 77;
            assert_eq!(replied(&mut probes, until_us, &other), None, "to another prober");
            other = good;
            other[31] = 77;
            assert_eq!(replied(&mut probes, until_us, &other), None, "of a neighbor that was not probed");
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

    /// Catches a reply of one gateway that counts for another, or for a witness.
    #[test]
    fn gateways_are_probed_by_address() {
        let gateways = vec![neighbor(2), neighbor(3)];
        let mut probes =
            WitnessProbes { gateways, neighbors: vec![neighbor(10)], ..WitnessProbes::default() };
        let receive = |probes: &mut WitnessProbes, now_us, frame: &[u8]| {
            let mut replies = Replies::default();
            probes.receive(now_us, OWN, frame, &mut replies);
            (replies.token, replies.gateways.into_iter().collect::<Vec<_>>())
        };
        assert!(probes.gateway_frames(neighbor(4).address, 9_000, OWN).is_empty(), "its path is not known");
        let frames = probes.gateway_frames(neighbor(3).address, 9_000, OWN);
        assert_eq!(frames.len(), 1);
        let good = reply(&frames[0].1);
        assert_eq!(receive(&mut probes, 9_000, &good), (None, vec![neighbor(3).address]));
        assert_eq!(receive(&mut probes, 9_001, &good), (None, vec![]), "too late");
        let mut other = good.clone();
        other[31] = 2;
        assert_eq!(receive(&mut probes, 9_000, &other), (None, vec![]), "of a gateway that was not probed");
        let witness = reply(&probes.frames(probe(7), OWN)[0].1);
        assert_eq!(receive(&mut probes, 9_000, &witness), (Some(7), vec![]));
    }
}
