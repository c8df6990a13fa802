//! Changes to the ports of this host's VMs, which are found by interface and by their addresses.

use super::NodeTables;
use super::sources::{self, Compiled};
use crate::encoding::{ipv4_from_word, ipv4_to_word, ipv6_from_bytes, ipv6_to_bytes, kind_of};
use crate::entries::{Port, PortIpv4, PortIpv6, PortQos, Route, Target};
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, port};
use crate::memory::Memory;

use sluice_types::{IpNet, Ipv6Net, MacAddr, Vni, link_local_address};
use std::collections::HashSet;
use std::mem::offset_of;
use std::num::NonZeroU32;

pub(super) const PORT_CELLS: u32 = 2;

/// A key that was put, and the entry that it had before.
pub(super) type ReplacedEntry = (Key, Option<Entry>);

pub(super) fn port_key(ifindex: u32) -> Key {
    Key::Index { vni: 0, id: ifindex }
}

/// The keys of the addresses whose packets a port gets, and the entries to which they must lead; `None` if the port's
/// sources are damaged. The port is in the cells from `run` on.
pub(super) fn address_entries(memory: &Memory, run: u32) -> Option<Vec<(Key, Entry)>> {
    let port: port = memory.read(run);
    let mac = MacAddr::new(port.mac);
    if u32::from(port.flags) & layout::PORT_BONDED != 0 {
        // Others have its addresses, too.
        let key = Key::Ip { vni: port.vni, address: link_local_address(mac).into() };
        return Compiled::read(memory, run).map(|_| vec![(key, Entry { mac: mac.to_u64(), next: run })]);
    }
    let v4 = ipv4_from_word(port.address4).map(|address| (address.into(), mac));
    let v6 = ipv6_from_bytes(port.address6).map(|address| (address.into(), mac));
    let further = Compiled::read(memory, run)?.addresses(mac);
    let entry = |(address, mac): (_, MacAddr)| {
        (Key::Ip { vni: port.vni, address }, Entry { mac: mac.to_u64(), next: run })
    };
    Some(v4.into_iter().chain(v6).chain(further).map(entry).collect())
}

/// Whether an address is the port's in these cells, and reached by this MAC address.
pub(super) fn has_address(memory: &Memory, key: Key, entry: Entry) -> bool {
    address_entries(memory, entry.next).is_some_and(|entries| entries.contains(&(key, entry)))
}

/// The routes of the prefixes that are delegated to the VM at the port in these cells; `None` if the port or its sources
/// are damaged.
pub(super) fn delegated_routes(memory: &Memory, run: u32) -> Option<Vec<Route>> {
    let port: port = memory.read(run);
    let vni = Vni::new(port.vni).ok()?;
    let route = |prefix: IpNet| Route { vni, prefix, target: Target::Port(port.ifindex) };
    Some(Compiled::read(memory, run)?.delegated().into_iter().map(route).collect())
}

/// The flags of a port with these sources.
fn port_flags(port: &Port, sources: &Compiled) -> u8 {
    let flags = [
        (layout::PORT_PEER_REDIRECT, port.peer_redirect),
        (layout::PORT_BONDED, port.bonded),
        (layout::PORT_FILTERED, port.policy.is_some()),
        (layout::PORT_DHCP6, port.ipv6.is_some_and(|v6| v6.dhcp)),
        (layout::PORT_QOS, port.qos != PortQos::default()),
        (layout::PORT_IDENTIFIED, port.identity != 0),
        (layout::PORT_SOURCES, !sources.is_empty()),
        (layout::PORT_UNPROTECTED, port.sources.unprotected),
    ];
    flags.iter().filter(|(_, is_set)| *is_set).fold(0, |all, (flag, _)| all | *flag as u8)
}

/// The cells of a port, whose policy is at cell `policy`; 0 if it has none.
fn encode_port(port: &Port, vrf: u32, policy: u32) -> Result<(port, Compiled), Error> {
    let invalid = |why: String| Err(Error::Invalid(format!("port with ifindex {}: {why}", port.ifindex)));
    if port.ifindex == 0 || !port.mac.is_unicast() {
        return invalid(format!("it needs an ifindex other than 0 and a unicast MAC, not {}", port.mac));
    }
    if port.ifindex >= layout::EXACT_POLICY_ID {
        return invalid("the kernel gives no interface such an index".to_owned());
    }
    if port.policy == Some(0) {
        return invalid("no policy has id 0".to_owned());
    }
    if port.policy.is_some() && port.scope == 0 {
        return invalid("a port with a policy needs a number for its sessions".to_owned());
    }
    if port.qos.rate_mbps.is_some() && port.scope == 0 {
        return invalid("a port with a rate needs a number for its meter".to_owned());
    }
    if port.qos.credit && port.scope == 0 {
        return invalid("a port whose use is counted needs a number for its credit".to_owned());
    }
    if let Some(dscp) = port.qos.dscp.filter(|dscp| u32::from(*dscp) > layout::PORT_QOS_DSCP) {
        return invalid(format!("the DSCP {dscp} is not between 0 and 63"));
    }
    if port.dns4.len() > 2 {
        return invalid(format!("it has {} resolvers, but DHCP announces at most 2", port.dns4.len()));
    }
    if port.ipv4.is_some_and(|v4| v4.length > 32 || v4.address.is_unspecified()) {
        return invalid("its IPv4 address or prefix length is invalid".to_owned());
    }
    let prefix6 = match port.ipv6 {
        None => None,
        Some(v6) => match Ipv6Net::new(v6.address, v6.length) {
            Ok(net) if !v6.address.is_unspecified() => Some(net.network()),
            _ => return invalid("its IPv6 address or prefix length is invalid".to_owned()),
        },
    };
    let sources = Compiled::of(port)?;
    if port.bonded && !(sources.delegated().is_empty() && sources.addresses(port.mac).is_empty()) {
        return invalid("packets to further addresses do not find a bonding vNIC".to_owned());
    }
    if !sources.delegated().is_empty() && port.ifindex > layout::LEAF_ARGUMENT_MASK {
        return invalid("no prefix can be delegated to an interface with such an index".to_owned());
    }
    let cell = layout::port {
        kind: layout::NEXT_HOP_PORT as u8,
        flags: port_flags(port, &sources),
        mtu: port.mtu,
        ifindex: port.ifindex,
        vni: port.vni.get(),
        vrf,
        mac: port.mac.octets(),
        scope: port.scope,
        address4: ipv4_to_word(port.ipv4.map(|v4| v4.address)),
        router4: ipv4_to_word(port.ipv4.and_then(|v4| v4.router)),
        address6: ipv6_to_bytes(port.ipv6.map(|v6| v6.address)),
        prefix6: ipv6_to_bytes(prefix6),
        length4: port.ipv4.map_or(0, |v4| v4.length),
        length6: port.ipv6.map_or(0, |v6| v6.length),
        dns4: [ipv4_to_word(port.dns4.first().copied()), ipv4_to_word(port.dns4.get(1).copied())],
        instance: port.instance,
        lease_s: port.lease_s,
        policy,
        policy_id: port.policy.unwrap_or(0),
        adopt_until_s: port.adopt_until_s,
        identity: port.identity,
        qos: port.qos.dscp.map_or(0, |dscp| layout::PORT_QOS_MARKS as u16 | u16::from(dscp))
            | if port.qos.credit { layout::PORT_QOS_CREDIT as u16 } else { 0 },
        rate_mbps: port.qos.rate_mbps.map_or(0, NonZeroU32::get),
        ..Default::default()
    };
    Ok((cell, sources))
}

/// The port in the cells from `run` on, and its sources, unless these are damaged. Their root words are zero in the port: it
/// is comparable with what [`encode_port`] returns.
fn read_port(memory: &Memory, run: u32) -> Option<(port, Compiled)> {
    Some((port { sources: [0; 2], ..memory.read(run) }, Compiled::read(memory, run)?))
}

/// A port whose sources are damaged is without them.
fn decode_port(memory: &Memory, run: u32) -> Option<Port> {
    let cell: port = memory.read(run);
    let sources = Compiled::read(memory, run).unwrap_or_default();
    let ipv4 = ipv4_from_word(cell.address4).map(|address| PortIpv4 {
        address,
        length: cell.length4,
        router: ipv4_from_word(cell.router4),
    });
    let dhcp = u32::from(cell.flags) & layout::PORT_DHCP6 != 0;
    let ipv6 = ipv6_from_bytes(cell.address6).map(|address| PortIpv6 { address, length: cell.length6, dhcp });
    Some(Port {
        ifindex: cell.ifindex,
        peer_redirect: u32::from(cell.flags) & layout::PORT_PEER_REDIRECT != 0,
        mtu: cell.mtu,
        vni: Vni::new(cell.vni).ok()?,
        mac: MacAddr::new(cell.mac),
        ipv4,
        ipv6,
        dns4: cell.dns4.iter().filter_map(|&word| ipv4_from_word(word)).collect(),
        instance: cell.instance,
        lease_s: cell.lease_s,
        policy: (cell.policy_id != 0).then_some(cell.policy_id),
        scope: cell.scope,
        identity: cell.identity,
        adopt_until_s: cell.adopt_until_s,
        qos: PortQos {
            dscp: (u32::from(cell.qos) & layout::PORT_QOS_MARKS != 0)
                .then_some(cell.qos as u8 & layout::PORT_QOS_DSCP as u8),
            rate_mbps: NonZeroU32::new(cell.rate_mbps),
            credit: u32::from(cell.qos) & layout::PORT_QOS_CREDIT != 0,
        },
        sources: sources.decode(u32::from(cell.flags) & layout::PORT_UNPROTECTED != 0),
        bonded: u32::from(cell.flags) & layout::PORT_BONDED != 0,
    })
}

impl NodeTables {
    /// Adds or changes a port, its addresses in its VNI, and the routes of the prefixes that are delegated to its VM. It
    /// replaces an endpoint with one of these addresses, or a direct path to one, and removes direct paths to it by its prefixes.
    ///
    /// # Errors
    /// [`Error::UnknownVni`]; [`Error::UnknownPolicy`]; [`Error::AddressTaken`] if another port has one of the addresses
    /// or prefixes, unless it is a pair's that both hold: the later one gets it; [`Error::Full`]; [`Error::Invalid`].
    pub fn upsert_port(&mut self, port: &Port) -> Result<bool, Error> {
        let &vrf = self.vrfs.get(&port.vni.get()).ok_or(Error::UnknownVni(port.vni))?;
        let policy = self.known_policy(port)?;
        let (new, sources) = encode_port(port, vrf, policy)?;
        let old = self.ports.get(&port.ifindex).copied();
        if let Some(cell) = old
            && read_port(self.memory(), cell) == Some((new, sources.clone()))
            && self.is_port_linked(cell)
        {
            return Ok(false);
        }
        let run = self.write_port(&new, &sources)?;
        if let Err(error) = self.check_addresses(run) {
            self.retire_port(run);
            return Err(error);
        }
        let (mut replaced, mut routed) = (Vec::new(), Vec::new());
        let put = self.put_port_keys(run, &mut replaced);
        if let Err(error) = put.and_then(|()| self.put_delegated(run, &mut routed)) {
            self.undo_port(run, replaced, routed);
            return Err(error);
        }
        self.release_displaced(&replaced);
        let before = old.and_then(|old| self.bonded_vni(old));
        if let Some(old) = old {
            // After an error the port is still recorded with its old cells, so that a repetition removes the
            // rest of its old addresses.
            self.remove_addresses(old, Some(run))?;
            self.retire_port(old);
        }
        self.ports.insert(port.ifindex, run);
        self.count_bonded(self.bonded_vni(run), before);
        if !sources.delegated().is_empty() {
            self.remove_delegated_paths()?;
        }
        Ok(true)
    }

    /// Writes a port to new cells, to which nothing leads yet.
    fn write_port(&mut self, port: &port, sources: &Compiled) -> Result<u32, Error> {
        let run = self.pool.allocate(PORT_CELLS)?;
        self.memory().write(run, port);
        sources.write(&mut self.pool, run).inspect_err(|_| self.retire_port(run))?;
        Ok(run)
    }

    /// Retires the cells of a port that has been unlinked.
    fn retire_port(&mut self, run: u32) {
        sources::retire(&mut self.pool, run);
        self.pool.retire(run, PORT_CELLS);
    }

    /// Removes what leads to the addresses and prefixes of the port in these cells, as far as the port in the cells `kept`
    /// does not have them.
    fn remove_addresses(&mut self, run: u32, kept: Option<u32>) -> Result<(), Error> {
        for key in self.keys_of_port(run) {
            self.remove_if_leads_to(key, run)?;
        }
        let kept = kept.and_then(|kept| delegated_routes(self.memory(), kept)).unwrap_or_default();
        for route in self.routes_of_port(run) {
            if !kept.contains(&route) && self.route_target(route.vni, route.prefix) == Some(route.target) {
                self.remove_route(route.vni, route.prefix)?;
            }
        }
        Ok(())
    }

    /// The keys of the port's addresses. If its sources are damaged, all keys that lead to it.
    fn keys_of_port(&self, run: u32) -> Vec<Key> {
        if let Some(entries) = address_entries(self.memory(), run) {
            return entries.into_iter().map(|(key, _)| key).collect();
        }
        let mut keys = Vec::new();
        self.exact.visit_visible(self.memory(), |key, entry| keys.extend((entry.next == run).then_some(key)));
        keys
    }

    /// The routes of the port's prefixes. If its sources are damaged, all routes that lead to its interface.
    fn routes_of_port(&self, run: u32) -> Vec<Route> {
        delegated_routes(self.memory(), run).unwrap_or_else(|| {
            let target = Target::Port(self.memory().load32(run, offset_of!(port, ifindex)));
            self.routes().filter(|route| route.target == target).collect()
        })
    }

    /// Whether lookups of a port's interface, addresses and prefixes find it.
    fn is_port_linked(&self, cell: u32) -> bool {
        let port: port = self.memory().read(cell);
        let interface = (port_key(port.ifindex), Entry { mac: 0, next: cell });
        let leads = |(key, entry)| self.exact.get(self.memory(), key) == Some(entry);
        let is_routed = |route: &Route| self.route_target(route.vni, route.prefix) == Some(route.target);
        leads(interface)
            && address_entries(self.memory(), cell).is_some_and(|entries| entries.into_iter().all(leads))
            && delegated_routes(self.memory(), cell).is_some_and(|routes| routes.iter().all(is_routed))
    }

    /// Whether what lookups find of a port is exactly what [`NodeTables::upsert_port`] would write.
    pub fn is_port_right(&self, port: &Port) -> bool {
        let Some(&vrf) = self.vrfs.get(&port.vni.get()) else { return false };
        let Ok(policy) = self.known_policy(port) else { return false };
        let found = self.exact.get(self.memory(), port_key(port.ifindex));
        let found = found.filter(|found| self.memory().contains(found.next, PORT_CELLS));
        found.zip(encode_port(port, vrf, policy).ok()).is_some_and(|(found, right)| {
            read_port(self.memory(), found.next) == Some(right) && self.is_port_linked(found.next)
        })
    }

    /// The cell of the policy of a port; 0 if it has none.
    fn known_policy(&self, port: &Port) -> Result<u32, Error> {
        let Some(id) = port.policy.filter(|&id| id != 0) else { return Ok(0) };
        self.policies.get(&id).copied().ok_or(Error::UnknownPolicy(id))
    }

    /// Checks that no other port has one of the addresses and prefixes of the one in these cells.
    fn check_addresses(&self, run: u32) -> Result<(), Error> {
        let new: port = self.memory().read(run);
        let holder = |other: u32| format!("the port with ifindex {other}");
        for route in delegated_routes(self.memory(), run).unwrap_or_default() {
            match self.route_target(route.vni, route.prefix) {
                Some(Target::Port(other)) if other != new.ifindex && self.ports.contains_key(&other) => {
                    let (vni, address) = (new.vni, route.prefix.addr());
                    return Err(Error::AddressTaken { vni, address, holder: holder(other) });
                }
                _ => {}
            }
        }
        for (key, _) in address_entries(self.memory(), run).unwrap_or_default() {
            let Some(known) = self.exact.get(self.memory(), key) else { continue };
            let Key::Ip { vni, address } = key else { continue };
            let is_ours = self.ports.get(&new.ifindex) == Some(&known.next);
            // The new holder of an address may come before the old one has given it up.
            let is_pair = |run| sources::is_held(self.memory(), run, address);
            if is_ours || kind_of(self.memory(), known.next) != layout::NEXT_HOP_PORT {
                continue;
            }
            if is_pair(run) && is_pair(known.next) {
                continue;
            }
            // The address may lead to other cells of this port, if an earlier change of it failed.
            let other = self.memory().load32(known.next, offset_of!(layout::port, ifindex));
            if other != new.ifindex {
                return Err(Error::AddressTaken { vni, address, holder: holder(other) });
            }
        }
        Ok(())
    }

    /// Points the interface, the addresses and the prefixes to a port's cells. Endpoints and direct paths with these
    /// addresses are replaced.
    pub(super) fn link_port(&mut self, cell: u32) -> Result<(), Error> {
        let mut replaced = Vec::new();
        let result = self.put_port_keys(cell, &mut replaced);
        self.release_displaced(&replaced);
        result.and_then(|()| self.put_delegated(cell, &mut Vec::new()))
    }

    /// Removes those of these routes, which are all that lead to ports, that are not of a prefix of a port.
    pub(super) fn remove_undelegated(&mut self, to_ports: Vec<Route>) -> Result<(), Error> {
        let wanted = self.ports.values().filter_map(|&cell| delegated_routes(self.memory(), cell)).flatten();
        let wanted: HashSet<Route> = wanted.collect();
        let mut left = to_ports.into_iter().filter(|route| !wanted.contains(route));
        left.try_for_each(|route| self.remove_route(route.vni, route.prefix).map(drop))
    }

    /// Puts a port's keys, the interface first, so that a successor can complete the rest. Appends each key
    /// that was put to `replaced`.
    fn put_port_keys(&mut self, cell: u32, replaced: &mut Vec<ReplacedEntry>) -> Result<(), Error> {
        let port: port = self.memory().read(cell);
        let interface = (port_key(port.ifindex), Entry { mac: 0, next: cell });
        let addresses = address_entries(self.memory(), cell).unwrap_or_default();
        for (key, entry) in std::iter::once(interface).chain(addresses) {
            let old = self.exact.put(&mut self.pool, key, entry)?;
            replaced.push((key, old));
        }
        Ok(())
    }

    /// Adds the routes of the prefixes of all ports of a network, which it lost with its VRF.
    pub(super) fn put_all_delegated(&mut self, vni: Vni) -> Result<(), Error> {
        let is_here = |cell: &u32| self.memory().load32(*cell, offset_of!(port, vni)) == vni.get();
        let cells: Vec<u32> = self.ports.values().copied().filter(is_here).collect();
        cells.into_iter().try_for_each(|cell| self.put_delegated(cell, &mut Vec::new()))
    }

    /// Adds the routes of a port's prefixes. Appends those that are new to `added`. Without the VRF of its network it has none:
    /// they come with that.
    fn put_delegated(&mut self, cell: u32, added: &mut Vec<Route>) -> Result<(), Error> {
        if !self.vrfs.contains_key(&self.memory().load32(cell, offset_of!(port, vni))) {
            return Ok(());
        }
        for route in delegated_routes(self.memory(), cell).unwrap_or_default() {
            let is_new = self.route_target(route.vni, route.prefix).is_none();
            self.upsert_route(&route)?;
            if is_new {
                added.push(route);
            }
        }
        Ok(())
    }

    /// Releases what the endpoints and direct paths led to that a port replaced.
    pub(super) fn release_displaced(&mut self, replaced: &[ReplacedEntry]) {
        for (key, old) in replaced.iter().filter_map(|(key, old)| Some((*key, (*old)?))) {
            match kind_of(self.memory(), old.next) {
                layout::NEXT_HOP_VTEP => {
                    self.endpoints -= 1;
                    self.release_vtep(old.next);
                }
                layout::NEXT_HOP_DIRECT => self.release_replaced_path(key, old),
                layout::NEXT_HOP_SERVICE => {
                    if let Key::Ip { vni, .. } = key {
                        self.release_service(vni, old.next);
                    }
                }
                _ => {}
            }
        }
    }

    /// Undoes the addition of a port for which there was too little memory: each key gets back what it had.
    fn undo_port(&mut self, run: u32, replaced: Vec<ReplacedEntry>, routed: Vec<Route>) {
        for route in routed {
            // If the grace period failed, the route stays, and leads to the port with this interface.
            let _failed = self.remove_route(route.vni, route.prefix);
        }
        for (key, old) in replaced.into_iter().rev() {
            let undone = match old {
                Some(old) => self.exact.overwrite(&mut self.pool, key, old),
                None => self.exact.take(&mut self.pool, key).map(drop),
            };
            // The only possible error is a failed grace period. The key then leads to the new run, which
            // stays allocated until the next adoption.
            if undone.is_err() {
                return;
            }
        }
        self.retire_port(run);
    }

    /// Removes a key if it leads to this cell.
    pub(super) fn remove_if_leads_to(&mut self, key: Key, cell: u32) -> Result<(), Error> {
        if self.exact.get(self.memory(), key).is_some_and(|known| known.next == cell) {
            self.exact.take(&mut self.pool, key)?;
        }
        Ok(())
    }

    /// Removes a port and its addresses.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_port(&mut self, ifindex: u32) -> Result<bool, Error> {
        let Some(&cell) = self.ports.get(&ifindex) else { return Ok(false) };
        self.remove_addresses(cell, None)?;
        self.remove_if_leads_to(port_key(ifindex), cell)?;
        self.ports.remove(&ifindex);
        self.count_bonded(None, self.bonded_vni(cell));
        self.retire_port(cell);
        Ok(true)
    }

    /// The VNI of the port in these cells, if it is a bonding vNIC.
    pub(super) fn bonded_vni(&self, run: u32) -> Option<u32> {
        let port: port = self.memory().read(run);
        (u32::from(port.flags) & layout::PORT_BONDED != 0).then_some(port.vni)
    }

    /// Counts a bonding vNIC more in the VNI `added`, and one less in `removed`.
    pub(super) fn count_bonded(&mut self, added: Option<u32>, removed: Option<u32>) {
        if let Some(vni) = added {
            *self.bonded.entry(vni).or_default() += 1;
        }
        if let Some(number) = removed.and_then(|vni| self.bonded.get_mut(&vni)) {
            *number = number.saturating_sub(1);
        }
        self.bonded.retain(|_, number| *number > 0);
        for vni in added.into_iter().chain(removed) {
            self.flag_bonded(vni);
        }
    }

    /// Points a VNI's ports to the cell of its VRF; 0 if the VRF was removed.
    pub(super) fn point_ports(&mut self, vni: Vni, vrf: u32) {
        let memory = self.pool.memory();
        for &cell in self.ports.values() {
            if memory.load32(cell, offset_of!(port, vni)) == vni.get() {
                memory.store32(cell, offset_of!(port, vrf), vrf);
            }
        }
    }

    /// The port of an interface. Its sources are missing if they are damaged.
    pub fn port(&self, ifindex: u32) -> Option<Port> {
        decode_port(self.memory(), *self.ports.get(&ifindex)?)
    }

    /// All ports, in the order of their interfaces, as [`NodeTables::port`] returns them.
    pub fn ports(&self) -> impl Iterator<Item = Port> + '_ {
        self.ports.values().filter_map(|&cell| decode_port(self.memory(), cell))
    }
}
