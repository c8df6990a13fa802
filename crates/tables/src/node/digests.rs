//! What lookups find in a node's tables, as digests count it, to be compared with what the controller compiled; and
//! the repair of what cannot be repaired entry by entry.

use super::NodeTables;
use super::direct_paths::direct_path_at;
use super::policies::policy_of_index;
use super::ports::{PORT_CELLS, delegated_routes, has_address, port_key};
use super::services::service_of_index;
use super::underlay::{next_hop_address, underlay_key};
use super::vrfs::{count_offset, decode_vrf, roots, set_route_count, vrf_key};
use crate::encoding::{group_id, kind_of, mac_from_bytes, role_of};
use crate::entries::{Role, Route, Target};
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, next_hop, port, vrf};
use crate::lpm::{self, Damaged};
use crate::memory::Memory;
use sluice_types::{DigestTarget, Digests, EntryHash, EntryKey, IpNet, MacAddr, Vni, address_hash};
use std::net::IpAddr;

/// VTEPs whose hashes are kept during a pass.
const HOSTS_KEPT: usize = 4_096;

/// Hashes of VTEPs' addresses by cell, because many endpoints lead to each.
struct HostHashes(Vec<(u32, u64)>);

impl HostHashes {
    fn get(&mut self, memory: &Memory, cell: u32) -> Option<u64> {
        let kept = &mut self.0[cell as usize % HOSTS_KEPT];
        if kept.0 != cell {
            if kind_of(memory, cell) != layout::NEXT_HOP_VTEP {
                return None;
            }
            *kept = (cell, address_hash(next_hop_address(memory, cell)));
        }
        Some(kept.1)
    }
}

fn underlay(memory: &Memory, address: IpAddr, cell: u32) -> (EntryKey, EntryHash) {
    let kind = kind_of(memory, cell);
    let is_known = kind == layout::NEXT_HOP_VTEP || kind == layout::NEXT_HOP_VIP;
    let key = if kind == layout::NEXT_HOP_VIP { EntryKey::Vip(address) } else { EntryKey::Vtep(address) };
    // Packets are sent to the address in the cell.
    if !is_known || next_hop_address(memory, cell) != address {
        return (key, EntryHash::unreadable(key));
    }
    let hop: next_hop = memory.read(cell);
    let role = role_of(&hop);
    let hash = match key {
        EntryKey::Vip(_) => EntryHash::vip(address, mac_from_bytes(hop.mac)),
        _ => EntryHash::vtep(address, role == Role::Gateway, role == Role::ForeignHost),
    };
    (key, hash)
}

impl NodeTables {
    /// Digests of what lookups find: endpoints, routes, VRFs, VTEPs, vIPs, groups, ports, public prefixes and meters. Takes about 20 ns for each of
    /// them. Direct paths, routes of instances that migrate, thresholds of elephants and policies are not included.
    pub fn digests(&self) -> Digests {
        let mut sums = Digests::default();
        self.visit_entries(|_, hash| sums.add(hash));
        sums
    }

    /// Calls `call` for every entry that digests count, without direct paths and policies. Routes that cannot be read, or that lookups do not find, are left
    /// out.
    pub fn visit_entries(&self, mut call: impl FnMut(EntryKey, EntryHash)) {
        let memory = self.memory();
        let mut hosts = HostHashes(vec![(u32::MAX, 0); HOSTS_KEPT]);
        self.exact.visit_visible(memory, |key, Entry { mac, next }| match key {
            Key::Ip { vni: 0, address } => {
                let (key, hash) = underlay(memory, address, next);
                call(key, hash);
            }
            Key::Ip { vni, address } => {
                let Ok(vni) = Vni::new(vni) else { return };
                match kind_of(memory, next) {
                    layout::NEXT_HOP_PORT => {
                        let (key, hash) = self.port_entry(vni, address, Entry { mac, next });
                        return call(key, hash);
                    }
                    layout::NEXT_HOP_DIRECT => return,
                    layout::NEXT_HOP_SERVICE => {
                        let (key, hash) = self.service_address_entry(vni, address, Entry { mac, next });
                        return call(key, hash);
                    }
                    _ => {}
                }
                let key = EntryKey::Endpoint(vni, address);
                let hash = hosts.get(memory, next).map_or(EntryHash::unreadable(key), |host| {
                    EntryHash::endpoint(vni, address, MacAddr::from_u64(mac), host)
                });
                call(key, hash);
            }
            Key::Index { vni: 0, id: 0 } => self.visit_public_prefixes(next, &mut call),
            Key::Index { vni, id: 0 } => {
                let Ok(vni) = Vni::new(vni) else { return };
                if self.has_group_cell(next) {
                    self.visit_vrf(vni, next, &mut call);
                } else {
                    call(EntryKey::Vrf(vni), EntryHash::unreadable(EntryKey::Vrf(vni)));
                }
            }
            // A gateway has no groups: these are senders of its last VNI.
            Key::Index { vni: layout::EXACT_GROUP_VNI, .. } if self.groups.is_empty() => {}
            Key::Index { vni: layout::EXACT_GROUP_VNI, id } => {
                let key = EntryKey::Group(id);
                let group = self.visible_group(id);
                call(key, group.map_or(EntryHash::unreadable(key), |(_, vips)| EntryHash::group(id, &vips)));
            }
            // The identifiers of policies are the host's own. Its role counts them.
            Key::Index { vni: 0, id } if policy_of_index(id).is_some() => {}
            Key::Index { vni: 0, id } if service_of_index(id).is_some() => {
                let (key, hash) = self.service_entry(id & !layout::EXACT_SERVICE_ID);
                call(key, hash);
            }
            Key::Index { vni: 0, id } if self.ports.get(&id) != Some(&next) => {
                call(EntryKey::Interface(id), EntryHash::unreadable(EntryKey::Interface(id)));
            }
            Key::Index { .. } => {}
        });
        self.visit_meters(&mut call);
    }

    fn service_entry(&self, id: u32) -> (EntryKey, EntryHash) {
        let key = EntryKey::Service(id);
        let found = self.visible_service(id).filter(|_| self.is_service_linked(id));
        let hash = found.map(|found| EntryHash::service(id, found.seed, &found.members));
        (key, hash.unwrap_or(EntryHash::unreadable(key)))
    }

    fn service_address_entry(&self, vni: Vni, address: IpAddr, entry: Entry) -> (EntryKey, EntryHash) {
        let key = EntryKey::ServiceAddress(vni, address);
        let hash = self.service_of_address(entry).map(|id| EntryHash::service_address(vni, address, id));
        (key, hash.unwrap_or(EntryHash::unreadable(key)))
    }

    /// A VRF and its routes, without those of a family that cannot all be read.
    fn visit_vrf(&self, vni: Vni, cell: u32, call: &mut impl FnMut(EntryKey, EntryHash)) {
        let memory = self.memory();
        let known = memory.contains(cell, 1).then(|| decode_vrf(&memory.read::<vrf>(cell))).flatten();
        let Some(known) = known.map(|entry| entry.vrf).filter(|vrf| vrf.vni == vni) else {
            return call(EntryKey::Vrf(vni), EntryHash::unreadable(EntryKey::Vrf(vni)));
        };
        let hash = EntryHash::vrf(vni, known.mtu, known.router4, known.router6).with_group(known.group);
        let meter = self.counted_meter(self.internet_meter_at(cell));
        let unreadable = EntryHash::unreadable(EntryKey::Vrf(vni));
        call(EntryKey::Vrf(vni), meter.map_or(unreadable, |meter| hash.with_internet_meter(meter)));
        for root in roots(cell) {
            let mut routes = Vec::new();
            if lpm::inspect(memory, root, |prefix, leaf| routes.push((prefix, leaf))) == Err(Damaged) {
                continue;
            }
            for (prefix, leaf) in routes {
                let prefix = prefix.to_net(root.family).trunc();
                let key = EntryKey::Route(vni, prefix);
                let (key, hash) = match Target::from_leaf(memory, leaf) {
                    Some(Target::Port(ifindex)) => self.delegated_entry(vni, prefix, ifindex),
                    // As a direct path.
                    Some(Target::Moved(_)) => continue,
                    target => {
                        let hash = target
                            .and_then(|it| self.digested(it))
                            .map(|it| EntryHash::route(vni, prefix, it));
                        (key, hash.unwrap_or(EntryHash::unreadable(key)))
                    }
                };
                call(key, hash);
            }
        }
    }

    /// The target of a route of the controller as digests count it. `None`: it has a number that is no meter's.
    fn digested(&self, target: Target) -> Option<DigestTarget> {
        match target {
            Target::Local => Some(DigestTarget::Local),
            Target::Peer(peer) => Some(DigestTarget::Peer(peer)),
            Target::Drop => Some(DigestTarget::Drop),
            Target::NextHop(address) => Some(DigestTarget::NextHop(address)),
            Target::MeteredPeer { vni, out_meter, in_meter } => {
                let (out_meter, in_meter) = (self.counted_meter(out_meter)?, self.counted_meter(in_meter)?);
                Some(DigestTarget::MeteredPeer { vni, out_meter, in_meter })
            }
            Target::Internet => Some(DigestTarget::Internet),
            Target::Port(_) | Target::Moved(_) => None,
        }
    }

    /// A prefix that is delegated to the VM at a port, which its interface must lead to.
    fn delegated_entry(&self, vni: Vni, prefix: IpNet, ifindex: u32) -> (EntryKey, EntryHash) {
        let key = EntryKey::Delegated(vni, prefix);
        let found = self.exact.get(self.memory(), port_key(ifindex)).map(|entry| entry.next);
        let found = found.filter(|&run| self.memory().contains(run, PORT_CELLS));
        let route = Route { vni, prefix, target: Target::Port(ifindex) };
        let leads = |run: &u32| delegated_routes(self.memory(), *run).is_some_and(|all| all.contains(&route));
        let hash = found.filter(leads).map(|run| {
            let port: port = self.memory().read(run);
            EntryHash::delegated(vni, prefix, MacAddr::new(port.mac), port.instance)
        });
        (key, hash.unwrap_or(EntryHash::unreadable(key)))
    }

    /// Whether a VRF leads to the group that it names, or names none.
    fn has_group_cell(&self, cell: u32) -> bool {
        let memory = self.memory();
        let known = if memory.contains(cell, 1) { memory.read(cell) } else { vrf::default() };
        group_id(&known) == 0
            || self.visible_group(known.group_id).is_some_and(|(group, _)| group == known.by_role)
    }

    /// An address of a port, whose interface must lead to the same cells.
    fn port_entry(&self, vni: Vni, address: IpAddr, entry: Entry) -> (EntryKey, EntryHash) {
        let key = EntryKey::Port(vni, address);
        if !self.memory().contains(entry.next, PORT_CELLS) {
            return (key, EntryHash::unreadable(key));
        }
        let port: port = self.memory().read(entry.next);
        let interface = self.exact.get(self.memory(), port_key(port.ifindex)).map(|entry| entry.next);
        let is_right = interface == Some(entry.next)
            && has_address(self.memory(), Key::Ip { vni: vni.get(), address }, entry);
        let mac = MacAddr::from_u64(entry.mac);
        let hash = EntryHash::port(vni, address, mac, port.instance, port.identity);
        (key, if is_right { hash } else { EntryHash::unreadable(key) })
    }

    /// Prepares damaged tables for being written again: removes entries that lead nowhere or that the writer
    /// does not know, and makes the routes of all VRFs readable. What is missing then must be added again.
    ///
    /// # Errors
    /// [`Error::Grace`]; [`Error::Full`] if a VRF lost its routes.
    pub fn remove_damage(&mut self) -> Result<(), Error> {
        self.note_all_changes();
        let mut unknown = Vec::new();
        self.exact.visit_visible(self.pool.memory(), |key, entry| {
            let is_known = match key {
                Key::Ip { vni: 0, address } => {
                    let vtep = self.vteps.get(&address).filter(|hop| hop.accepted).map(|hop| hop.cell);
                    vtep.or(self.vips.get(&address).copied()) == Some(entry.next)
                }
                Key::Ip { .. } => match kind_of(self.pool.memory(), entry.next) {
                    layout::NEXT_HOP_VTEP => true,
                    layout::NEXT_HOP_PORT => self.is_address_of_port(key, entry),
                    layout::NEXT_HOP_DIRECT => direct_path_at(self.pool.memory(), key, entry).is_some(),
                    layout::NEXT_HOP_SERVICE => self.service_of_address(entry).is_some(),
                    _ => false,
                },
                Key::Index { vni: 0, id: 0 } => self.outside == entry.next,
                Key::Index { vni, id: 0 } => self.vrfs.get(&vni) == Some(&entry.next),
                Key::Index { vni: 0, id } => match (policy_of_index(id), service_of_index(id)) {
                    (Some(id), _) => self.policies.get(&id) == Some(&entry.next),
                    (_, Some(id)) => self.is_service_linked(id),
                    _ => self.ports.get(&id) == Some(&entry.next),
                },
                Key::Index { vni: layout::EXACT_GROUP_VNI, id } => {
                    self.groups.is_empty() || self.groups.get(&id) == Some(&entry.next)
                }
                Key::Index { .. } => true,
            };
            if !is_known {
                unknown.push(key);
            }
        });
        for key in unknown {
            self.exact.take(&mut self.pool, key)?;
        }
        self.count_service_addresses();
        self.forget_damaged_groups();
        let cells: Vec<u32> = self.vrfs.values().copied().collect();
        let rebuilt = cells.into_iter().map(|cell| self.rebuild_routes(cell)).fold(Ok(()), Result::and);
        // The routes of a port whose sources are damaged are written again with the port.
        let to_ports: Vec<_> =
            self.routes().filter(|route| matches!(route.target, Target::Port(_))).collect();
        rebuilt.and(self.remove_undelegated(to_ports)).and(self.repair_public_prefixes())
    }

    fn is_address_of_port(&self, key: Key, entry: Entry) -> bool {
        self.ports.values().any(|known| *known == entry.next) && has_address(self.memory(), key, entry)
    }

    fn rebuild_routes(&mut self, cell: u32) -> Result<(), Error> {
        let mut result = Ok(());
        for root in roots(cell) {
            if lpm::inspect(self.memory(), root, |_, _| ()) == Ok(()) {
                continue;
            }
            let before = u64::from(self.memory().load32(cell, count_offset(root.family)));
            let routes = lpm::rebuild(&mut self.pool, root, lpm::is_action);
            let count = *routes.as_ref().unwrap_or(&0);
            set_route_count(self.memory(), cell, root.family, count);
            self.routes = (self.routes + u64::from(count)).saturating_sub(before);
            result = result.and(routes.map(drop));
        }
        result
    }

    /// Whether lookups of a node or vIP find its cell.
    pub(super) fn is_linked(&self, address: IpAddr, cell: u32) -> bool {
        let entry = self.exact.get(self.memory(), underlay_key(address));
        entry.is_some_and(|entry| entry.next == cell) && next_hop_address(self.memory(), cell) == address
    }

    /// Whether lookups of a VRF find its cell.
    pub(super) fn is_vrf_linked(&self, vni: Vni, cell: u32) -> bool {
        self.exact.get(self.memory(), vrf_key(vni.get())).is_some_and(|entry| entry.next == cell)
    }
}
