//! The unconfirmed entries of the connected nodes: what they have and the database lost. An operator adopts them or
//! has them removed.

use sluice_southbound::proto::UnconfirmedEntries;
use sluice_southbound::{EndpointKey, Port, RouteKey, Unconfirmed, Update};
use sluice_store::NodeId;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The entries of all nodes that are connected to this replica.
#[derive(Debug, Default)]
pub struct UnconfirmedLists {
    inner: Mutex<BTreeMap<NodeId, List>>,
}

/// The list of a node: at most [`sluice_southbound::MAX_UNCONFIRMED`] entries.
#[derive(Clone, Debug, Default)]
struct List {
    total: u64,
    entries: Vec<Unconfirmed>,
    /// To be sent to the node.
    removals: Update,
}

/// Whether an entry of a node has an address.
pub fn has_address(entry: &Unconfirmed, address: IpAddr) -> bool {
    match entry {
        Unconfirmed::Endpoint(endpoint) => {
            endpoint.ipv4.map(IpAddr::V4) == Some(address) || endpoint.ipv6.map(IpAddr::V6) == Some(address)
        }
        Unconfirmed::Port(port) => addresses(port).any(|of_port| of_port == address),
        Unconfirmed::Vtep(vtep) => *vtep == address,
        Unconfirmed::PublicPrefix(public) => {
            public.inside.addr() == address || public.outside.addr() == address
        }
        Unconfirmed::Network(_) | Unconfirmed::Route(_) => false,
    }
}

impl UnconfirmedLists {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, List>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the report of a node. Malformed entries are only counted.
    pub fn report(&self, node: NodeId, report: UnconfirmedEntries) {
        let read = |entry| Unconfirmed::try_from(entry).ok();
        let entries: Vec<_> =
            report.entries.into_iter().take(sluice_southbound::MAX_UNCONFIRMED).filter_map(read).collect();
        let mut lists = self.lock();
        let list = lists.entry(node).or_default();
        (list.total, list.entries) = (report.total, entries);
    }

    /// A node's stream has ended: it reports again when it returns.
    pub fn forget(&self, node: NodeId) {
        self.lock().remove(&node);
    }

    /// The nodes that have unconfirmed entries: their number, and the first of them.
    pub fn all(&self) -> Vec<(NodeId, u64, Vec<Unconfirmed>)> {
        let lists = self.lock();
        let some = lists.iter().filter(|(_, list)| list.total > 0);
        some.map(|(node, list)| (*node, list.total, list.entries.clone())).collect()
    }

    /// Has the nodes remove the entries that `select` accepts. Returns the nodes and the number of entries.
    pub fn remove(&self, select: impl Fn(&Unconfirmed) -> bool) -> (Vec<NodeId>, usize) {
        let (mut nodes, mut count) = (Vec::new(), 0);
        for (node, list) in self.lock().iter_mut() {
            let selected: Vec<_> = list.entries.iter().filter(|entry| select(entry)).cloned().collect();
            if selected.is_empty() {
                continue;
            }
            nodes.push(*node);
            count += selected.len();
            for entry in selected {
                let to = &mut list.removals;
                match entry {
                    Unconfirmed::Network(vni) => to.removed_vnis.push(vni),
                    Unconfirmed::Endpoint(endpoint) => to.removed_endpoints.push(endpoint.key()),
                    Unconfirmed::Route(route) => to.removed_routes.push(route),
                    Unconfirmed::Port(port) => to.removed_ports.push(port.instance),
                    Unconfirmed::Vtep(address) => to.removed_vteps.push(address),
                    Unconfirmed::PublicPrefix(public) => to.removed_public_prefixes.push(public.outside),
                }
            }
        }
        (nodes, count)
    }

    /// Takes what is to be removed from a node.
    pub fn take_removals(&self, node: NodeId) -> Update {
        self.lock().get_mut(&node).map(|list| std::mem::take(&mut list.removals)).unwrap_or_default()
    }
}

/// The addresses of an instance, with secondary addresses and those of its pairs.
pub fn addresses(port: &Port) -> impl Iterator<Item = IpAddr> {
    let own = [port.ipv4.map(|net| net.addr().into()), port.ipv6.map(|net| net.addr().into())];
    let additional = port.options.additional.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
    let pairs = port.options.pairs.iter().map(|pair| pair.address);
    own.into_iter().flatten().chain(additional.map(|net| net.addr())).chain(pairs)
}

/// Whether an endpoint key is part of an instance's addresses. The endpoint of a pair is that of the instance that holds it.
pub fn is_of(key: &EndpointKey, port: &Port) -> bool {
    let v4 = key.ipv4.map(IpAddr::V4);
    let mut keys = v4.into_iter().chain(key.ipv6.map(IpAddr::V6));
    let is_others = |key: IpAddr| port.options.pairs.iter().any(|pair| pair.address == key && !pair.held);
    key.vni == port.vni && keys.any(|key| addresses(port).any(|address| address == key) && !is_others(key))
}

/// Whether a route leads to a prefix that is delegated to an instance.
pub fn is_route_to(route: &RouteKey, port: &Port) -> bool {
    route.vni == port.vni && port.options.additional.contains(&route.prefix)
}
