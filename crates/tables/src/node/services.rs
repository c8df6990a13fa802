//! Changes to services: VMs that share the addresses of each mount of the service (Achelous section 5.2).
//!
//! A service has next hops of its own, one for each member, as a group has: packets are sent to a member's host by them, but
//! none are accepted because of them. A host of a member may send in the VNIs of all mounts, like a host that has an endpoint there.
//!
//! Which member has a slot is decided by rendezvous hashing: of all members that are selected, the one whose number has
//! the highest hash together with the slot. So all nodes that know the same members choose the same, and a member that comes or leaves
//! changes only the slots that it has.

use super::NodeTables;
use super::endpoints::{check_instance, tenant_key};
use super::ports::ReplacedEntry;
use super::underlay::{encode_vtep, next_hop_address};
use crate::encoding::{kind_of, mac_from_bytes, mac_to_bytes};
use crate::entries::MemberService;
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, next_hop, service};
use crate::memory::Memory;
use crate::pool::ReachableCells;
use sluice_types::{ROUTER_MAC, ServiceMember, Vni};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::net::IpAddr;

/// Highest identifier of a service.
const ID_MAX: u32 = layout::EXACT_POLICY_ID / 2 - 1;
const SLOTS: usize = layout::SERVICE_SLOTS as usize;
const CELL_BYTES: usize = layout::CELL_BYTES as usize;

/// What is known of a service besides its cells.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The cell of the `struct service`.
    pub cell: u32,
    /// Number of addresses of mounts by VNI.
    pub addresses: BTreeMap<u32, u32>,
}

pub(super) fn service_key(id: u32) -> Key {
    Key::Index { vni: 0, id: layout::EXACT_SERVICE_ID | id }
}

/// The identifier of a service whose key has this number; `None` if it is that of an interface or a policy.
pub(super) fn service_of_index(id: u32) -> Option<u32> {
    (id & layout::EXACT_SERVICE_ID == layout::EXACT_SERVICE_ID).then_some(id & !layout::EXACT_SERVICE_ID)
}

/// First cell of the table in the word, its number of cells, and the highest number of a member.
fn table_run(table: u64) -> (u32, u32, u8) {
    let highest = (table >> 32) as u8;
    (table as u32 & layout::CELL_INDEX_MASK, layout::SERVICE_SLOT_CELLS + u32::from(highest), highest)
}

fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// The number of the member that has each slot: 0 without a member that is selected.
fn slots(service: &MemberService) -> [u8; SLOTS] {
    let numbers = || service.members.iter().filter(|member| member.selected).map(|member| member.number);
    let score = |slot: usize, number: u8| {
        mix(mix(service.seed[0] ^ slot as u64) ^ service.seed[1] ^ u64::from(number) << 32)
    };
    std::array::from_fn(|slot| numbers().max_by_key(|&number| score(slot, number)).unwrap_or(0))
}

fn encode_member(member: &ServiceMember) -> next_hop {
    let hop = encode_vtep(member.host);
    let selected = if member.selected { layout::NEXT_HOP_SELECTED } else { 0 };
    let flags = hop.flags | (layout::NEXT_HOP_HOST | selected) as u8;
    next_hop { flags, mac: mac_to_bytes(member.mac), ..hop }
}

fn check(service: &MemberService) -> Result<(), Error> {
    let invalid = |why: String| Err(Error::Invalid(format!("service {}: {why}", service.id)));
    if !(1..=ID_MAX).contains(&service.id) || service.seed.contains(&0) {
        return invalid(format!("its id must be from 1 to {ID_MAX}, and its seed not 0"));
    }
    let mut numbers = BTreeSet::new();
    for ServiceMember { number, mac, host, .. } in &service.members {
        if !(1..=layout::SERVICE_MEMBERS_MAX).contains(&u32::from(*number)) || !numbers.insert(*number) {
            return invalid(format!("the number {number} of a member is invalid, or occurs twice"));
        }
        if !mac.is_unicast() || !sluice_types::is_unicast(*host) {
            return invalid(format!("member {number} cannot have the MAC {mac} at the host {host}"));
        }
    }
    Ok(())
}

/// The service in a cell, if its table is whole.
pub(super) fn service_at(memory: &Memory, cell: u32) -> Option<MemberService> {
    if !memory.contains(cell, 1) || kind_of(memory, cell) != layout::NEXT_HOP_SERVICE {
        return None;
    }
    let head: service = memory.read(cell);
    let mut found = MemberService { id: head.id, seed: head.seed, members: Vec::new() };
    let (run, cells, highest) = table_run(head.table);
    if run == 0 {
        return Some(found);
    }
    if !memory.contains(run, cells) {
        return None;
    }
    for number in 1..=highest {
        let cell = run + layout::SERVICE_SLOT_CELLS - 1 + u32::from(number);
        match kind_of(memory, cell) {
            0 => continue,
            layout::NEXT_HOP_VTEP => {}
            _ => return None,
        }
        let hop: next_hop = memory.read(cell);
        found.members.push(ServiceMember {
            number,
            mac: mac_from_bytes(hop.mac),
            host: next_hop_address(memory, cell),
            selected: u32::from(hop.flags) & layout::NEXT_HOP_SELECTED != 0,
        });
    }
    (read_slots(memory, run) == slots(&found)).then_some(found)
}

fn read_slots(memory: &Memory, run: u32) -> [u8; SLOTS] {
    let word = |slot: usize| {
        memory.load32(run + (slot / CELL_BYTES) as u32, slot % CELL_BYTES / 4 * 4).to_le_bytes()[slot % 4]
    };
    std::array::from_fn(word)
}

/// Marks the cells of a service. False if it is damaged.
///
/// # Errors
/// [`Error::Corrupt`] if another entry has one of them.
pub(super) fn adopt(
    memory: &Memory,
    cell: u32,
    id: u32,
    reachable: &mut ReachableCells,
) -> Result<bool, Error> {
    if service_at(memory, cell).is_none_or(|found| found.id != id) {
        return Ok(false);
    }
    reachable.claim(cell, 1)?;
    let (run, cells, _) = table_run(memory.load64(cell, offset_of!(service, table)));
    if run != 0 {
        reachable.claim(run, cells)?;
    }
    Ok(true)
}

impl NodeTables {
    /// Adds or changes a service. Flows whose member stays keep it.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Full`], [`Error::Grace`].
    pub fn upsert_service(&mut self, service: &MemberService) -> Result<bool, Error> {
        check(service)?;
        let old = self.services.get(&service.id).map(|known| known.cell);
        if self.is_service_linked(service.id) && self.visible_service(service.id).as_ref() == Some(service) {
            return Ok(false);
        }
        let (table, added) = self.write_table(service)?;
        let hosts = old.map(|cell| self.hosts_of(cell)).unwrap_or_default();
        let entered = self.enter_hosts(service.id, service.members.iter().map(|member| member.host));
        let placed = entered.and_then(|()| self.place_service(service, old, table));
        let cell = placed.inspect_err(|_| self.pool.give_back(added.0, added.1))?;
        self.services.entry(service.id).or_default().cell = cell;
        self.count_hosts(service.id, &hosts);
        Ok(true)
    }

    /// Writes the table of a service to new cells. Returns its word, and these cells: none without a member.
    fn write_table(&mut self, service: &MemberService) -> Result<(u64, (u32, u32)), Error> {
        let Some(highest) = service.members.iter().map(|member| member.number).max() else {
            return Ok((0, (0, 0)));
        };
        let cells = layout::SERVICE_SLOT_CELLS + u32::from(highest);
        let run = self.pool.allocate(cells)?;
        let memory = self.pool.memory();
        for (i, bytes) in slots(service).chunks_exact(4).enumerate() {
            let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            memory.store32(run + (i * 4 / CELL_BYTES) as u32, i * 4 % CELL_BYTES, word);
        }
        for member in &service.members {
            let cell = run + layout::SERVICE_SLOT_CELLS - 1 + u32::from(member.number);
            memory.write(cell, &encode_member(member));
        }
        Ok((u64::from(run) | u64::from(highest) << 32, (run, cells)))
    }

    /// Publishes the table, and retires the one before. Returns the cell of the service.
    fn place_service(&mut self, service: &MemberService, old: Option<u32>, table: u64) -> Result<u32, Error> {
        let head = layout::service {
            kind: layout::NEXT_HOP_SERVICE as u8,
            id: service.id,
            seed: service.seed,
            table,
            ..Default::default()
        };
        if let Some(cell) = old {
            let before: layout::service = self.memory().read(cell);
            if before.seed == service.seed && kind_of(self.memory(), cell) == layout::NEXT_HOP_SERVICE {
                self.memory().store64(cell, offset_of!(layout::service, table), table);
            } else {
                // Only another history of the database has another seed. Flows may get other members for a moment.
                self.memory().write(cell, &head);
            }
            let entry = Entry { mac: 0, next: cell };
            self.exact.put(&mut self.pool, service_key(service.id), entry)?;
            self.retire_table(before.table);
            return Ok(cell);
        }
        let cell = self.pool.allocate(1)?;
        self.memory().write(cell, &head);
        let put = self.exact.put(&mut self.pool, service_key(service.id), Entry { mac: 0, next: cell });
        put.map(|_| cell).inspect_err(|_| self.pool.give_back(cell, 1))
    }

    fn retire_table(&mut self, table: u64) {
        let (run, cells, _) = table_run(table);
        if run != 0 && self.memory().contains(run, cells) {
            self.pool.retire(run, cells);
        }
    }

    /// The VTEPs of the members' hosts.
    fn hosts_of(&self, cell: u32) -> BTreeSet<IpAddr> {
        let found = service_at(self.memory(), cell);
        found.map(|it| it.members.iter().map(|member| member.host).collect()).unwrap_or_default()
    }

    /// Lets these hosts send in the VNIs of the service's mounts.
    fn enter_hosts(&mut self, id: u32, hosts: impl Iterator<Item = IpAddr>) -> Result<(), Error> {
        let vnis: Vec<u32> =
            self.services.get(&id).map(|it| it.addresses.keys().copied().collect()).unwrap_or_default();
        let cells: Vec<u32> = hosts.filter_map(|host| self.vtep_cell(host)).collect();
        vnis.iter().try_for_each(|vni| cells.iter().try_for_each(|cell| self.enter_sender(*vni, *cell)))
    }

    fn vtep_cell(&self, host: IpAddr) -> Option<u32> {
        self.vteps.get(&host).filter(|hop| hop.accepted).map(|hop| hop.cell)
    }

    /// Counts the hosts of the members, in place of those before, as senders in the VNIs of the mounts.
    fn count_hosts(&mut self, id: u32, before: &BTreeSet<IpAddr>) {
        let Some(known) = self.services.get(&id).cloned() else { return };
        let after = self.hosts_of(known.cell);
        for vni in known.addresses.into_keys() {
            for cell in after.difference(before).filter_map(|host| self.vtep_cell(*host)).collect::<Vec<_>>()
            {
                self.add_sender_endpoint(vni, cell);
            }
            for cell in before.difference(&after).filter_map(|host| self.vtep_cell(*host)).collect::<Vec<_>>()
            {
                self.release_sender(vni, cell);
            }
        }
    }

    /// Removes a service, and the addresses of mounts that still lead to it.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_service(&mut self, id: u32) -> Result<bool, Error> {
        let Some(known) = self.services.get(&id).cloned() else { return Ok(false) };
        let mut addresses = Vec::new();
        if !known.addresses.is_empty() {
            self.exact.visit_visible(self.memory(), |key, entry| {
                if let (Key::Ip { vni, address }, true) = (key, entry.next == known.cell) {
                    addresses.push((vni, address));
                }
            });
        }
        for (vni, address) in addresses {
            if let Ok(vni) = Vni::new(vni) {
                self.remove_service_address(vni, address)?;
            }
        }
        self.exact.take(&mut self.pool, service_key(id))?;
        self.services.remove(&id);
        self.retire_table(self.memory().load64(known.cell, offset_of!(service, table)));
        self.pool.retire(known.cell, 1);
        Ok(true)
    }

    /// Adds an address of a mount of a service, or changes its service. It replaces an endpoint with the address, or a direct path to it.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] by a port of this host; [`Error::Invalid`], also for a service that is not in the tables;
    /// [`Error::Full`], [`Error::Grace`].
    pub fn upsert_service_address(&mut self, vni: Vni, address: IpAddr, id: u32) -> Result<bool, Error> {
        check_instance(address, ROUTER_MAC)?;
        let Some(cell) = self.services.get(&id).map(|known| known.cell) else {
            return Err(Error::Invalid(format!(
                "{address} in VNI {vni} is of service {id}, which is unknown"
            )));
        };
        let key = tenant_key(vni, address);
        let entry = Entry { mac: ROUTER_MAC.to_u64(), next: cell };
        let known = self.exact.get(self.memory(), key);
        if known == Some(entry) {
            return Ok(false);
        }
        if known.is_some_and(|known| kind_of(self.memory(), known.next) == layout::NEXT_HOP_PORT) {
            let holder = "a port of this host".to_owned();
            return Err(Error::AddressTaken { vni: vni.get(), address, holder });
        }
        let hosts: Vec<u32> =
            self.hosts_of(cell).into_iter().filter_map(|host| self.vtep_cell(host)).collect();
        hosts.iter().try_for_each(|host| self.enter_sender(vni.get(), *host))?;
        let old = self.exact.put(&mut self.pool, key, entry)?;
        if old.is_some() {
            self.note_change(vni, address);
        }
        self.release_replaced(vni.get(), (key, old));
        let addresses = self.services.entry(id).or_default().addresses.entry(vni.get()).or_default();
        *addresses += 1;
        if *addresses == 1 {
            hosts.into_iter().for_each(|host| self.add_sender_endpoint(vni.get(), host));
        }
        Ok(true)
    }

    /// Releases what the endpoint, the direct path or the service led to that another entry has replaced.
    fn release_replaced(&mut self, vni: u32, replaced: ReplacedEntry) {
        match replaced.1.map(|old| (old.next, kind_of(self.memory(), old.next))) {
            Some((cell, layout::NEXT_HOP_SERVICE)) => self.release_service(vni, cell),
            Some((cell, layout::NEXT_HOP_VTEP)) => {
                self.release_sender(vni, cell);
                self.release_displaced(&[replaced]);
            }
            _ => self.release_displaced(&[replaced]),
        }
    }

    /// Removes an address of a mount.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_service_address(&mut self, vni: Vni, address: IpAddr) -> Result<bool, Error> {
        let key = tenant_key(vni, address);
        let Some(known) = self.exact.get(self.memory(), key) else { return Ok(false) };
        if kind_of(self.memory(), known.next) != layout::NEXT_HOP_SERVICE {
            return Ok(false);
        }
        self.note_change(vni, address);
        self.exact.take(&mut self.pool, key)?;
        self.release_service(vni.get(), known.next);
        Ok(true)
    }

    /// Counts an address of a service less.
    pub(super) fn release_service(&mut self, vni: u32, cell: u32) {
        let id = self.memory().load32(cell, offset_of!(service, id));
        let Some(known) = self.services.get_mut(&id).filter(|known| known.cell == cell) else { return };
        let Some(addresses) = known.addresses.get_mut(&vni) else { return };
        *addresses -= 1;
        if *addresses == 0 {
            known.addresses.remove(&vni);
            for host in
                self.hosts_of(cell).into_iter().filter_map(|host| self.vtep_cell(host)).collect::<Vec<_>>()
            {
                self.release_sender(vni, host);
            }
        }
    }

    /// The service that lookups find; `None` if packets cannot be sent by it.
    pub(super) fn visible_service(&self, id: u32) -> Option<MemberService> {
        let cell = self.exact.get(self.memory(), service_key(id))?.next;
        service_at(self.memory(), cell).filter(|found| found.id == id)
    }

    /// Whether lookups of a service find its cell.
    pub(super) fn is_service_linked(&self, id: u32) -> bool {
        let found = self.exact.get(self.memory(), service_key(id)).map(|entry| entry.next);
        found.is_some() && found == self.services.get(&id).map(|known| known.cell)
    }

    /// The service of an entry of an address.
    pub(super) fn service_of_address(&self, entry: Entry) -> Option<u32> {
        let id = self.memory().load32(entry.next, offset_of!(service, id));
        let is_right = self.services.get(&id).is_some_and(|known| known.cell == entry.next);
        (is_right && entry.mac == ROUTER_MAC.to_u64()).then_some(id)
    }

    /// The services, in the order of their identifiers. One that is damaged is left out.
    pub fn services(&self) -> impl Iterator<Item = MemberService> + '_ {
        self.services.values().filter_map(|known| service_at(self.memory(), known.cell))
    }

    /// The addresses of mounts with their services, in no particular order.
    pub fn service_addresses(&self) -> impl Iterator<Item = (Vni, IpAddr, u32)> + '_ {
        self.exact.iter(self.memory()).filter_map(|(key, entry)| {
            let Key::Ip { vni: vni @ 1.., address } = key else { return None };
            let is_service = kind_of(self.memory(), entry.next) == layout::NEXT_HOP_SERVICE;
            let id = is_service.then(|| self.service_of_address(entry)).flatten()?;
            Some((Vni::new(vni).ok()?, address, id))
        })
    }

    /// The VNIs of mounts with the hosts of members that may send in them, for the adoption of senders.
    pub(super) fn service_senders(&self) -> Vec<(u32, IpAddr)> {
        let mut senders = Vec::new();
        for known in self.services.values() {
            for host in self.hosts_of(known.cell) {
                senders.extend(known.addresses.keys().map(|vni| (*vni, host)));
            }
        }
        senders
    }
}
