//! What the VM at a port has besides the port's addresses: `sources` of `struct port` in `cells.h`. It is written once,
//! before anything refers to the port's cells, and never changes; another port gets other cells.

use crate::entries::{AddressPair, Port, PortSources};
use crate::error::Error;
use crate::layout::{self, port};
use crate::lpm::{self, Entry, Family, Prefix, Root};
use crate::memory::Memory;
use crate::pool::{Pool, ReachableCells};
use sluice_types::{IpNet, MacAddr, ROUTER_MAC};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};

/// The entries of both root words, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Compiled([Vec<Entry>; 2]);

/// The root words of a port in these cells.
fn roots(run: u32) -> [Root; 2] {
    let root = |i: usize, family| Root { cell: run, offset: offset_of!(port, sources) + 8 * i, family };
    [root(0, Family::V4), root(1, Family::V6)]
}

/// The leaf of an address or prefix. `number`: of the pair's own MAC address; 0: it has none.
fn leaf(kind: u32, number: u32) -> u32 {
    kind << layout::LEAF_SCOPE_SHIFT | number
}

fn kind_and_number(leaf: u32) -> (u32, u32) {
    (leaf >> layout::LEAF_SCOPE_SHIFT, leaf & layout::LEAF_ARGUMENT_MASK)
}

fn is_leaf(_: &Memory, leaf: u32) -> bool {
    let (kind, number) = kind_and_number(leaf);
    let is_pair = kind == layout::SOURCE_PAIR || kind == layout::SOURCE_HELD;
    (layout::SOURCE_OWN..=layout::SOURCE_NEIGHBORS).contains(&kind) && (is_pair || number == 0)
}

/// The link-local address that follows from a MAC address (RFC 4291 appendix A).
fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn mac_of(link_local: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, _, _, d, e, f] = link_local.octets();
    MacAddr::new([a ^ 2, b, c, d, e, f])
}

/// The subnets of a port that a delegated prefix contains: their addresses are other VMs', so the VM must not send from them, and
/// asks for them.
fn covered_subnets(port: &Port) -> impl Iterator<Item = (Family, Prefix)> + '_ {
    let v4 = port.ipv4.and_then(|v4| IpNet::new(v4.address.into(), v4.length).ok());
    let v6 = port.ipv6.and_then(|v6| IpNet::new(v6.address.into(), v6.length).ok());
    let covers =
        |prefix: &IpNet, subnet: IpNet| prefix.prefix_len() < subnet.prefix_len() && prefix.contains(&subnet);
    let subnets = v4.into_iter().chain(v6).map(|subnet| subnet.trunc());
    let covered = subnets.filter(move |subnet| port.sources.additional.iter().any(|it| covers(it, *subnet)));
    covered.map(Prefix::from_net)
}

impl Compiled {
    /// The entries of a port.
    pub(super) fn of(port: &Port) -> Result<Self, Error> {
        let PortSources { additional, pairs, .. } = &port.sources;
        let own = port.ipv4.map(|v4| v4.address.into()).into_iter();
        let own: Vec<IpAddr> = own.chain(port.ipv6.map(|v6| v6.address.into())).collect();
        let macs: BTreeSet<MacAddr> = pairs.iter().filter_map(|pair| pair.mac).collect();
        let mut all = Self::default();
        let mut prefixes = BTreeSet::new();
        let mut add = |net: IpNet, leaf: u32| {
            let is_unicast =
                net.prefix_len() == 0 || !net.addr().is_multicast() && !net.addr().is_unspecified();
            let is_own = net.prefix_len() == net.max_prefix_len() && own.contains(&net.addr());
            if !is_unicast || is_own || !prefixes.insert(net.trunc()) {
                let why = "it is not unicast, or the port has it already";
                return Err(Error::Invalid(format!("port with ifindex {}: {net}: {why}", port.ifindex)));
            }
            let (family, prefix) = Prefix::from_net(net);
            all.0[usize::from(family == Family::V6)].push((prefix, leaf));
            Ok(())
        };
        for net in additional {
            add(*net, leaf(layout::SOURCE_OWN, 0))?;
        }
        for mac in &macs {
            if !mac.is_unicast() {
                let why = format!("the MAC address {mac} of a pair is not unicast");
                return Err(Error::Invalid(format!("port with ifindex {}: {why}", port.ifindex)));
            }
            add(IpAddr::V6(link_local(*mac)).into(), leaf(layout::SOURCE_MAC, 0))?;
        }
        for AddressPair { address, mac, held } in pairs {
            let kind = if *held { layout::SOURCE_HELD } else { layout::SOURCE_PAIR };
            let number = mac.map_or(0, |mac| macs.range(..=mac).count() as u32);
            add((*address).into(), leaf(kind, number))?;
        }
        for (family, prefix) in covered_subnets(port) {
            all.0[usize::from(family == Family::V6)].push((prefix, leaf(layout::SOURCE_NEIGHBORS, 0)));
        }
        all.0.iter_mut().for_each(|entries| entries.sort_unstable());
        Ok(all)
    }

    /// The entries of the port in these cells; `None` if they are damaged.
    pub(super) fn read(memory: &Memory, run: u32) -> Option<Self> {
        let sorted = |root| {
            let mut entries: Vec<Entry> = Vec::new();
            lpm::inspect_leaves(memory, root, is_leaf, |prefix, leaf| entries.push((prefix, leaf))).ok()?;
            entries.sort_unstable();
            Some(entries)
        };
        let [v4, v6] = roots(run);
        Some(Self([sorted(v4)?, sorted(v6)?]))
    }

    /// Builds the entries behind the root words of new cells, to which nothing leads yet.
    pub(super) fn write(&self, pool: &mut Pool, run: u32) -> Result<(), Error> {
        for (root, entries) in roots(run).into_iter().zip(&self.0) {
            lpm::merge(pool, root, entries.iter().copied())?;
        }
        Ok(())
    }

    /// Whether the port has no sources besides its addresses.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    fn entries(&self) -> impl Iterator<Item = (IpNet, u32, u32)> + '_ {
        let of_family = |(family, entries): (Family, &'_ Vec<Entry>)| {
            let entries: Vec<_> =
                entries.iter().map(|(prefix, leaf)| (prefix.to_net(family), *leaf)).collect();
            entries
        };
        let all = [Family::V4, Family::V6].into_iter().zip(&self.0).flat_map(of_family);
        all.map(|(net, leaf)| {
            let (kind, number) = kind_and_number(leaf);
            (net, kind, number)
        })
    }

    /// The MAC addresses of pairs, in the order of their numbers, from 1.
    fn macs(&self) -> Vec<MacAddr> {
        let links = self.entries().filter(|(_, kind, _)| *kind == layout::SOURCE_MAC);
        let mut macs: Vec<MacAddr> = links
            .filter_map(|(net, ..)| match net.addr() {
                IpAddr::V6(address) => Some(mac_of(address)),
                IpAddr::V4(_) => None,
            })
            .collect();
        macs.sort_unstable();
        macs
    }

    /// What the entries were made of.
    pub(super) fn decode(&self, unprotected: bool) -> PortSources {
        let macs = self.macs();
        let mut sources = PortSources { unprotected, ..PortSources::default() };
        for (net, kind, number) in self.entries() {
            match kind {
                layout::SOURCE_OWN => sources.additional.push(net),
                layout::SOURCE_PAIR | layout::SOURCE_HELD => sources.pairs.push(AddressPair {
                    address: net.addr(),
                    mac: (number as usize).checked_sub(1).and_then(|i| macs.get(i)).copied(),
                    held: kind == layout::SOURCE_HELD,
                }),
                _ => {}
            }
        }
        sources
    }

    /// The single addresses whose packets the port gets, with the MAC addresses by which neighbors reach them. `mac`: the
    /// port's own.
    pub(super) fn addresses(&self, mac: MacAddr) -> Vec<(IpAddr, MacAddr)> {
        let PortSources { additional, pairs, .. } = self.decode(false);
        let single = additional.iter().filter(|net| net.prefix_len() == net.max_prefix_len());
        let single = single.map(|net| (net.addr(), mac));
        let held = pairs.iter().filter(|pair| pair.held);
        single.chain(held.map(|pair| (pair.address, pair.mac.unwrap_or(ROUTER_MAC)))).collect()
    }

    /// The prefixes that are delegated to the VM.
    pub(super) fn delegated(&self) -> Vec<IpNet> {
        let nets = self
            .entries()
            .filter(|(net, kind, _)| *kind == layout::SOURCE_OWN && net.prefix_len() < net.max_prefix_len());
        nets.map(|(net, ..)| net).collect()
    }
}

/// Whether an address is one that the VM at the port in these cells holds in turn with others.
pub(super) fn is_held(memory: &Memory, run: u32, address: IpAddr) -> bool {
    let is_held = |(net, kind, _)| kind == layout::SOURCE_HELD && net == IpNet::from(address);
    Compiled::read(memory, run).is_some_and(|sources| sources.entries().any(is_held))
}

/// Retires the entries of a port whose cells have been unlinked. Damaged ones may lead to cells of others: they are left as
/// they are, and those of their cells that are free are found when the tables are adopted.
pub(super) fn retire(pool: &mut Pool, run: u32) {
    if Compiled::read(pool.memory(), run).is_some() {
        roots(run).into_iter().for_each(|root| lpm::retire(pool, root));
    }
}

/// Claims the cells of another writer's port.
///
/// # Errors
/// [`Error::Corrupt`].
pub(super) fn adopt(memory: &Memory, run: u32, reachable: &mut ReachableCells) -> Result<(), Error> {
    // Nothing of it can be unfinished.
    if Compiled::read(memory, run).is_none() {
        return Err(Error::Corrupt(format!("the port at cell {run} has sources that cannot be read")));
    }
    roots(run).into_iter().try_for_each(|root| lpm::adopt(memory, root, reachable).map(drop))
}
