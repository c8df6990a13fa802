//! Changes to services: VMs that share the addresses of each mount of the service (Achelous section 5.2).
//!
//! A service has next hops of its own, one for each member, as a group has: packets are sent to a member's host by them, but
//! none are accepted because of them. A host of a member may send in the VNIs of all mounts, like a host that has an endpoint there.
//! Which of the members has a flow is decided in `member_table.rs`.

use super::NodeTables;
use super::endpoints::{check_instance, tenant_key};
use super::ports::ReplacedEntry;
use super::underlay::encode_vtep;
use crate::encoding::{kind_of, mac_to_bytes};
use crate::entries::MemberService;
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, next_hop, service};
use crate::member_table::{member_cell, service_at, slots, table_run};
use crate::memory::Memory;
use crate::pool::ReachableCells;
use sluice_types::{ROUTER_MAC, ServiceMember, Vni};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::net::IpAddr;

/// Highest identifier of a service.
const ID_MAX: u32 = layout::EXACT_POLICY_ID / 2 - 1;
const CELL_BYTES: usize = layout::CELL_BYTES as usize;

/// What is known of a service besides its cells, which damage can change: no run that they name is freed.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The cell of the `struct service`.
    pub cell: u32,
    /// The word of its table.
    table: u64,
    /// The VTEPs of the members' hosts, which are counted as senders in the VNIs of the mounts.
    hosts: BTreeSet<IpAddr>,
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

/// The VNIs of the mounts of a service.
fn vnis_of(known: &Known) -> Vec<u32> {
    known.addresses.keys().copied().collect()
}

fn hosts_of(service: &MemberService) -> BTreeSet<IpAddr> {
    service.members.iter().map(|member| member.host).collect()
}

/// Marks the cells of a service. `None` if it is damaged.
///
/// # Errors
/// [`Error::Corrupt`] if another entry has one of them.
pub(super) fn adopt(
    memory: &Memory,
    cell: u32,
    id: u32,
    reachable: &mut ReachableCells,
) -> Result<Option<Known>, Error> {
    let Some(found) = service_at(memory, cell).filter(|found| found.id == id) else { return Ok(None) };
    reachable.claim(cell, 1)?;
    let table = memory.load64(cell, offset_of!(service, table));
    let (run, cells, _) = table_run(table);
    if run != 0 {
        reachable.claim(run, cells)?;
    }
    Ok(Some(Known { cell, table, hosts: hosts_of(&found), addresses: BTreeMap::new() }))
}

impl NodeTables {
    /// Adds or changes a service. Flows whose member stays keep it.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Full`], [`Error::Grace`]. The service is then as it was.
    pub fn upsert_service(&mut self, service: &MemberService) -> Result<bool, Error> {
        check(service)?;
        let mut service = service.clone();
        service.members.sort_unstable_by_key(|member| member.number);
        if self.is_service_linked(service.id) && self.visible_service(service.id).as_ref() == Some(&service) {
            return Ok(false);
        }
        let (table, (run, cells)) = self.write_table(&service)?;
        let placed = self.enter_hosts(&service).and_then(|()| self.place_service(&service, table));
        let cell = placed.inspect_err(|_| self.pool.give_back(run, cells))?;
        let known = self.services.entry(service.id).or_default();
        known.cell = cell;
        let old = std::mem::replace(&mut known.table, table);
        self.retire_table(old);
        self.count_hosts(service.id, hosts_of(&service));
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
            memory.write(member_cell(run, member.number), &encode_member(member));
        }
        Ok((u64::from(run) | u64::from(highest) << 32, (run, cells)))
    }

    /// Publishes the table. Returns the cell of the service. After an error nothing leads to the table.
    fn place_service(&mut self, service: &MemberService, table: u64) -> Result<u32, Error> {
        let (id, kind) = (service.id, layout::NEXT_HOP_SERVICE as u8);
        let head = layout::service { kind, id, seed: service.seed, table, ..Default::default() };
        let old = self.services.get(&id).map(|known| known.cell);
        let cell = match old {
            Some(cell) => cell,
            None => {
                let cell = self.pool.allocate(1)?;
                self.memory().write(cell, &head);
                cell
            }
        };
        if let Err(error) = self.exact.put(&mut self.pool, service_key(id), Entry { mac: 0, next: cell }) {
            if old.is_none() {
                self.pool.give_back(cell, 1);
            }
            return Err(error);
        }
        let known: layout::service = self.memory().read(cell);
        if known != (layout::service { table: known.table, ..head }) {
            // Only another history of the database has another seed, and only damage another kind. A table belongs to
            // one seed: a writer that is killed in between leaves the service without one.
            self.memory().store64(cell, offset_of!(service, table), 0);
            self.memory().write(cell, &layout::service { table: 0, ..head });
        }
        self.memory().store64(cell, offset_of!(service, table), table);
        Ok(cell)
    }

    fn retire_table(&mut self, table: u64) {
        let (run, cells, _) = table_run(table);
        if run != 0 {
            self.pool.retire(run, cells);
        }
    }

    /// Lets the hosts of a service's members send in the VNIs of its mounts.
    fn enter_hosts(&mut self, service: &MemberService) -> Result<(), Error> {
        let vnis: Vec<u32> = self.services.get(&service.id).map(vnis_of).unwrap_or_default();
        let cells = self.vtep_cells(hosts_of(service).iter());
        vnis.iter().try_for_each(|vni| cells.iter().try_for_each(|cell| self.enter_sender(*vni, *cell)))
    }

    /// The cells of those of these nodes that are accepted.
    fn vtep_cells<'a>(&self, hosts: impl Iterator<Item = &'a IpAddr>) -> Vec<u32> {
        let known = hosts.filter_map(|host| self.vteps.get(host));
        known.filter(|hop| hop.accepted).map(|hop| hop.cell).collect()
    }

    /// Counts the hosts of the members, in place of those before, as senders in the VNIs of the mounts.
    fn count_hosts(&mut self, id: u32, after: BTreeSet<IpAddr>) {
        let Some(known) = self.services.get_mut(&id) else { return };
        let before = std::mem::replace(&mut known.hosts, after.clone());
        let vnis = vnis_of(known);
        let (added, removed) =
            (self.vtep_cells(after.difference(&before)), self.vtep_cells(before.difference(&after)));
        for vni in vnis {
            added.iter().for_each(|cell| self.add_sender_endpoint(vni, *cell));
            removed.iter().for_each(|cell| self.release_sender(vni, *cell));
        }
    }

    /// Counts an accepted node, which was not accepted before, as the host of the members that it has. Returns whether it has any.
    pub(super) fn count_members_of(&mut self, host: IpAddr, cell: u32) -> bool {
        let vnis = self.vnis_of_members(host);
        vnis.iter().for_each(|vni| self.add_sender_endpoint(*vni, cell));
        !vnis.is_empty()
    }

    /// Undoes what [`NodeTables::count_members_of`] has done, for a node that is not accepted any longer.
    pub(super) fn release_members_of(&mut self, host: IpAddr, cell: u32) {
        self.vnis_of_members(host).into_iter().for_each(|vni| self.release_sender(vni, cell));
    }

    /// The VNIs of the mounts of each service that has a member on this host.
    fn vnis_of_members(&self, host: IpAddr) -> Vec<u32> {
        self.services.values().filter(|known| known.hosts.contains(&host)).flat_map(vnis_of).collect()
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
        self.retire_table(known.table);
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
        let hosts = self.cells_of_hosts(id);
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

    /// The cells of the hosts of a service's members.
    fn cells_of_hosts(&self, id: u32) -> Vec<u32> {
        self.services.get(&id).map(|known| self.vtep_cells(known.hosts.iter())).unwrap_or_default()
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
            self.cells_of_hosts(id).into_iter().for_each(|host| self.release_sender(vni, host));
        }
    }

    /// Counts the addresses of all services again, after damage: as many as lookups find.
    pub(super) fn count_service_addresses(&mut self) {
        if self.services.is_empty() {
            return;
        }
        let mut counts = BTreeMap::<u32, BTreeMap<u32, u32>>::new();
        self.exact.visit_visible(self.memory(), |key, entry| {
            let is_service = kind_of(self.memory(), entry.next) == layout::NEXT_HOP_SERVICE;
            if let (Key::Ip { vni: vni @ 1.., .. }, true) = (key, is_service)
                && let Some(id) = self.service_of_address(entry)
            {
                *counts.entry(id).or_default().entry(vni).or_default() += 1;
            }
        });
        for id in self.services.keys().copied().collect::<Vec<_>>() {
            let found = counts.remove(&id).unwrap_or_default();
            let Some(known) = self.services.get_mut(&id) else { continue };
            let before = std::mem::replace(&mut known.addresses, found.clone());
            for cell in self.cells_of_hosts(id) {
                let lost = before.keys().filter(|vni| !found.contains_key(vni));
                lost.for_each(|vni| self.release_sender(*vni, cell));
                let new = found.keys().filter(|vni| !before.contains_key(vni));
                new.for_each(|vni| self.add_sender_endpoint(*vni, cell));
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

    /// The VNIs of mounts with the accepted hosts of members, which may send in them: for the adoption of senders.
    pub(super) fn service_senders(&self) -> Vec<(u32, IpAddr)> {
        let is_accepted = |host: &&IpAddr| self.vteps.get(host).is_some_and(|hop| hop.accepted);
        let of_service = |known: &Known| {
            let hosts: Vec<IpAddr> = known.hosts.iter().filter(is_accepted).copied().collect();
            vnis_of(known)
                .into_iter()
                .flat_map(move |vni| hosts.clone().into_iter().map(move |host| (vni, host)))
        };
        self.services.values().flat_map(of_service).collect()
    }
}
