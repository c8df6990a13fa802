//! Which networks the routes of a network lead to, of a gateway: changes of these networks change paths of the network, too. This file
//! changes with which routes count.

use sluice_types::{IpNet, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Peers of a network whose changes are told with the network's own. A question about the network costs a lookup for each.
pub const PEERS_MAX: usize = 64;
/// Routes to peers of such a network.
pub const PEER_ROUTES_MAX: usize = 256;

/// The routes of all networks that lead to peers, without those through meters, by which no direct path leads.
#[derive(Debug, Default)]
pub(super) struct Peers(HashMap<Vni, Routes>);

/// The routes of a network that lead to peers.
#[derive(Debug, Default)]
struct Routes {
    by_prefix: BTreeMap<IpNet, Vni>,
    by_peer: BTreeMap<Vni, BTreeSet<IpNet>>,
}

impl Routes {
    /// Whether the changes of all peers are told with those of the network.
    fn are_told(&self) -> bool {
        self.by_peer.len() <= PEERS_MAX && self.by_prefix.len() <= PEER_ROUTES_MAX
    }

    fn set(&mut self, prefix: IpNet, peer: Option<Vni>) {
        let old = match peer {
            Some(peer) => self.by_prefix.insert(prefix, peer),
            None => self.by_prefix.remove(&prefix),
        };
        if let Some(old) = old
            && let Some(prefixes) = self.by_peer.get_mut(&old)
        {
            prefixes.remove(&prefix);
            if prefixes.is_empty() {
                self.by_peer.remove(&old);
            }
        }
        if let Some(peer) = peer {
            self.by_peer.entry(peer).or_default().insert(prefix);
        }
    }
}

impl Peers {
    /// Notes where the route of a network with this prefix leads; `None`: there is no such route, or it leads to no peer. Returns
    /// false if the changes of its peers were told with those of the network, and no longer are: there are too many.
    pub fn set(&mut self, vni: Vni, prefix: IpNet, peer: Option<Vni>) -> bool {
        if peer.is_none() && !self.0.contains_key(&vni) {
            return true;
        }
        let routes = self.0.entry(vni).or_default();
        let were_told = routes.are_told();
        routes.set(prefix, peer);
        let are_told = routes.are_told();
        if routes.by_prefix.is_empty() {
            self.0.remove(&vni);
        }
        are_told || !were_told
    }

    /// Notes that a network has no routes any more.
    pub fn forget(&mut self, vni: Vni) {
        self.0.remove(&vni);
    }

    /// Whether a change of an address of `peer` is told with the changes of the network, because a route of it leads there.
    pub fn tell(&self, vni: Vni, peer: Vni, address: IpAddr) -> bool {
        let routes = self.0.get(&vni).filter(|routes| routes.are_told());
        let prefixes = routes.and_then(|routes| routes.by_peer.get(&peer));
        prefixes.is_some_and(|prefixes| prefixes.iter().any(|prefix| prefix.contains(&address)))
    }

    /// The peers of a network whose changes are told with its own, each with the prefixes that are routed to it.
    pub fn of(&self, vni: Vni) -> impl Iterator<Item = (Vni, &BTreeSet<IpNet>)> {
        let routes = self.0.get(&vni).filter(|routes| routes.are_told());
        routes.into_iter().flat_map(|routes| routes.by_peer.iter().map(|(peer, prefixes)| (*peer, prefixes)))
    }
}

/// The part of a prefix that is in another one.
pub(super) fn common_part(prefix: IpNet, other: IpNet) -> Option<IpNet> {
    if other.contains(&prefix) {
        return Some(prefix);
    }
    prefix.contains(&other).then_some(other)
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

    fn host(number: usize) -> IpNet {
        net(&format!("10.{}.{}.0/24", number / 256, number % 256))
    }

    #[test]
    fn a_change_is_told_where_a_route_leads() {
        let mut peers = Peers::default();
        let of =
            |peers: &Peers| peers.of(vni(1)).map(|(peer, all)| (peer.get(), all.len())).collect::<Vec<_>>();
        assert!(peers.set(vni(1), net("10.2.0.0/16"), Some(vni(2))));
        assert!(peers.set(vni(1), net("fd02::/64"), Some(vni(2))));
        assert!(peers.set(vni(1), net("10.3.0.0/16"), Some(vni(3))));
        assert_eq!(of(&peers), [(2, 2), (3, 1)]);
        let tell =
            |peers: &Peers, peer, address: &str| peers.tell(vni(1), vni(peer), address.parse().unwrap());
        assert!(tell(&peers, 2, "10.2.0.1") && tell(&peers, 2, "fd02::1") && tell(&peers, 3, "10.3.0.1"));
        assert!(!tell(&peers, 2, "10.3.0.1") && !tell(&peers, 3, "fd02::1") && !tell(&peers, 4, "10.2.0.1"));
        assert!(!peers.tell(vni(2), vni(1), "10.2.0.1".parse().unwrap()), "the other way has its own routes");
        // A route that leads elsewhere, and one that ends.
        assert!(
            peers.set(vni(1), net("10.2.0.0/16"), Some(vni(3)))
                && peers.set(vni(1), net("10.3.0.0/16"), None)
        );
        assert_eq!(of(&peers), [(2, 1), (3, 1)]);
        assert!(!tell(&peers, 2, "10.2.0.1") && tell(&peers, 3, "10.2.0.1") && !tell(&peers, 3, "10.3.0.1"));
        peers.forget(vni(1));
        assert_eq!((of(&peers), peers.0.len()), (vec![], 0));
    }

    #[test]
    fn a_network_with_too_many_peers_tells_of_none() {
        for (same_peer, max) in [(true, PEER_ROUTES_MAX), (false, PEERS_MAX)] {
            let mut peers = Peers::default();
            let peer = |number: usize| Some(vni(if same_peer { 2 } else { 2 + number as u32 }));
            assert!((0..max).all(|number| peers.set(vni(1), host(number), peer(number))));
            assert!(peers.tell(vni(1), vni(2), host(0).network()));
            assert!(!peers.set(vni(1), host(max), peer(max)), "from here on it tells of none");
            assert!(!peers.tell(vni(1), vni(2), host(0).network()) && peers.of(vni(1)).next().is_none());
            assert!(peers.set(vni(1), host(max + 1), peer(max + 1)), "it did not before");
            assert!((0..2).all(|more| peers.set(vni(1), host(max + more), None)));
            assert!(peers.tell(vni(1), vni(2), host(0).network()));
        }
    }

    #[test]
    fn common_part_is_the_longer_prefix() {
        let part = |one: &str, other: &str| common_part(net(one), net(other)).map(|it| it.to_string());
        assert_eq!(part("0.0.0.0/0", "10.0.0.0/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(part("10.1.0.1/32", "10.0.0.0/8").as_deref(), Some("10.1.0.1/32"));
        assert_eq!(part("fd00::/8", "fd00::/8").as_deref(), Some("fd00::/8"));
        assert_eq!((part("11.0.0.0/8", "10.0.0.0/8"), part("::/0", "10.0.0.0/8")), (None, None));
    }
}
