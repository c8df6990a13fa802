//! Changes to the underlay's entries: other nodes' VTEPs and this cluster's vIPs.

use super::NodeTables;
use crate::encoding::{
    address_from_bytes, address_to_bytes, ipv4_to_word, kind_of, mac_from_bytes, mac_to_bytes, role_of,
};
use crate::entries::{Role, Vip};
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, next_hop, vip_slot};
use crate::memory::Memory;

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};

/// A VTEP whose cell endpoints share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vtep {
    pub cell: u32,
    /// Number of endpoints that lead to it.
    pub endpoints: u64,
    /// Packets from it are accepted. Otherwise it was removed, and its cell remains only for its endpoints.
    pub accepted: bool,
}

pub(super) fn underlay_key(address: IpAddr) -> Key {
    Key::Ip { vni: 0, address }
}

pub(super) fn encode_vtep(address: IpAddr) -> next_hop {
    let (address, ipv6) = address_to_bytes(address);
    let flags = if ipv6 { layout::NEXT_HOP_IPV6 } else { 0 };
    next_hop { kind: layout::NEXT_HOP_VTEP as u8, flags: flags as u8, address, ..Default::default() }
}

/// Index of the slot of a vIP, as `vip_slot_index()` in `vip_slots.h`.
fn vip_slot_index(address: Ipv4Addr) -> u32 {
    let address = u32::from(address);
    address.wrapping_add(address >> 6) % layout::VIP_SLOTS
}

/// The first word of a cell, which holds kind, flags and MTU.
pub(super) fn first_word(cell: &next_hop) -> u32 {
    u32::from(cell.kind) | u32::from(cell.flags) << 8 | u32::from(cell.mtu) << 16
}

fn encode_node(address: IpAddr, role: Role) -> next_hop {
    let flags = match role {
        Role::Gateway => 0,
        Role::Host => layout::NEXT_HOP_HOST,
        Role::ForeignHost => layout::NEXT_HOP_HOST | layout::NEXT_HOP_FOREIGN,
    };
    let cell = encode_vtep(address);
    next_hop { flags: cell.flags | flags as u8, ..cell }
}

fn encode_vip(vip: &Vip) -> next_hop {
    let owned = if vip.owned { layout::NEXT_HOP_OWNED } else { 0 };
    let cell = encode_vtep(vip.address);
    next_hop {
        kind: layout::NEXT_HOP_VIP as u8,
        flags: cell.flags | owned as u8,
        mac: mac_to_bytes(vip.mac),
        ..cell
    }
}

/// The address in the cell of a next hop or vIP.
pub(super) fn next_hop_address(memory: &Memory, cell: u32) -> IpAddr {
    let hop: next_hop = memory.read(cell);
    address_from_bytes(hop.address, u32::from(hop.flags) & layout::NEXT_HOP_IPV6 != 0)
}

fn check_underlay(address: IpAddr) -> Result<(), Error> {
    if sluice_types::is_unicast(address) {
        return Ok(());
    }
    Err(Error::Invalid(format!("{address} is not a unicast address, so no node can have it")))
}

impl NodeTables {
    /// Adds another node whose VXLAN packets are accepted, or changes its role.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] if the address is a vIP, [`Error::Full`], [`Error::Invalid`].
    pub fn upsert_vtep(&mut self, address: IpAddr, role: Role) -> Result<bool, Error> {
        check_underlay(address)?;
        if self.vips.contains_key(&address) {
            return Err(Error::AddressTaken { vni: 0, address, holder: "a vIP".to_owned() });
        }
        let known = self.vteps.get(&address).copied();
        let new = encode_node(address, role);
        let cell = match known {
            Some(hop) => {
                let changes = self.memory().load32(hop.cell, 0) != first_word(&new);
                if changes {
                    self.note_all_changes();
                    // Packets of senders are packets of hosts.
                    if role == Role::Gateway {
                        self.leave_senders_of(hop.cell)?;
                    } else {
                        self.leave_out_of_nat_ring(hop.cell);
                    }
                    self.memory().store32(hop.cell, offset_of!(next_hop, kind), first_word(&new));
                    self.store_flags_of_paths();
                }
                if hop.accepted && self.is_linked(address, hop.cell) {
                    if changes && role != Role::Gateway {
                        self.enter_senders_of(hop.cell)?;
                    }
                    return Ok(changes);
                }
                if next_hop_address(self.memory(), hop.cell) != address {
                    self.memory().write(hop.cell, &new);
                }
                hop.cell
            }
            None => {
                let cell = self.pool.allocate(1)?;
                self.memory().write(cell, &new);
                cell
            }
        };
        let entry = Entry { mac: 0, next: cell };
        if let Err(error) = self.exact.put(&mut self.pool, underlay_key(address), entry) {
            if known.is_none() {
                self.pool.give_back(cell, 1);
            }
            return Err(error);
        }
        let endpoints = known.map_or(0, |hop| hop.endpoints);
        self.vteps.insert(address, Vtep { cell, endpoints, accepted: true });
        let is_new = known.is_none_or(|hop| !hop.accepted);
        let has_members = is_new && self.count_members_of(address, cell);
        if endpoints > 0 || has_members {
            self.enter_senders_of(cell)?;
        }
        Ok(true)
    }

    /// Removes a node and the direct paths to it. Its packets are no longer accepted. Endpoints that lead to
    /// it do so until they are changed or removed, so the order of these removals does not matter.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_vtep(&mut self, address: IpAddr) -> Result<bool, Error> {
        let Some(hop) = self.vteps.get_mut(&address).filter(|hop| hop.accepted) else {
            // A removal whose grace period failed may have left paths.
            return self.remove_direct_paths(|path| path.host == address);
        };
        let cell = hop.cell;
        self.leave_out_of_nat_ring(cell);
        self.leave_senders_of(cell)?;
        if self.role(address) == Some(Role::ForeignHost) {
            // A path to any other host needs a permit.
            self.note_all_changes();
        }
        // The node comes first: without it, the successor of a killed writer removes the paths.
        self.exact.take(&mut self.pool, underlay_key(address))?;
        self.release_members_of(address, cell);
        let hop = self.vteps.get_mut(&address).expect("found above");
        hop.accepted = false;
        if hop.endpoints == 0 {
            self.pool.retire(cell, 1);
            self.vteps.remove(&address);
            self.senders.retain(|(_, of), _| *of != cell);
        }
        self.remove_direct_paths(|path| path.host == address)?;
        Ok(true)
    }

    /// Records that one endpoint less leads to a VTEP, and retires its cell after the last one if the VTEP
    /// was removed.
    pub(super) fn release_vtep(&mut self, cell: u32) {
        let address = next_hop_address(self.memory(), cell);
        let Some(hop) = self.vteps.get_mut(&address) else { return };
        // It is lower than the number of endpoints only if the memory was damaged.
        hop.endpoints = hop.endpoints.saturating_sub(1);
        if hop.endpoints == 0 && !hop.accepted {
            self.pool.retire(cell, 1);
            self.vteps.remove(&address);
            self.senders.retain(|(_, of), _| *of != cell);
        }
    }

    /// The accepted nodes.
    pub fn vteps(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.vteps.iter().filter(|(_, hop)| hop.accepted).map(|(&address, _)| address)
    }

    /// The role of an accepted node.
    pub fn role(&self, address: IpAddr) -> Option<Role> {
        let hop = self.vteps.get(&address).filter(|hop| hop.accepted)?;
        let cell: next_hop = self.memory().read(hop.cell);
        Some(role_of(&cell))
    }

    /// Adds or changes a vIP of this node's cluster.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] if the address is a VTEP, [`Error::Full`], [`Error::Invalid`].
    pub fn upsert_vip(&mut self, vip: &Vip) -> Result<bool, Error> {
        check_underlay(vip.address)?;
        if self.vteps.get(&vip.address).is_some_and(|hop| hop.accepted) {
            let holder = "a VTEP".to_owned();
            return Err(Error::AddressTaken { vni: 0, address: vip.address, holder });
        }
        let old = self.vips.get(&vip.address).copied();
        if let Some(cell) = old {
            let known = self.vip_at(cell);
            let is_linked = self.is_linked(vip.address, cell);
            // Damage can have made something else of the cell.
            let is_vip = kind_of(self.memory(), cell) == layout::NEXT_HOP_VIP;
            if known == *vip && is_linked && is_vip {
                self.store_vip_slots();
                return Ok(false);
            }
            if known.mac == vip.mac && is_linked {
                self.memory().store32(cell, offset_of!(next_hop, kind), first_word(&encode_vip(vip)));
                return Ok(true);
            }
        }
        let cell = self.pool.allocate(1)?;
        self.memory().write(cell, &encode_vip(vip));
        let entry = Entry { mac: 0, next: cell };
        if let Err(error) = self.exact.put(&mut self.pool, underlay_key(vip.address), entry) {
            self.pool.give_back(cell, 1);
            return Err(error);
        }
        self.vips.insert(vip.address, cell);
        self.store_vip_slots();
        self.point_to_vip(vip.address, cell);
        if let Some(old) = old {
            self.pool.retire(old, 1);
        }
        Ok(true)
    }

    /// Removes a vIP. Its public prefixes and NAT gateways stay in the tables, without a vIP until it is added again.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_vip(&mut self, address: IpAddr) -> Result<bool, Error> {
        let Some(&cell) = self.vips.get(&address) else { return Ok(false) };
        self.exact.take(&mut self.pool, underlay_key(address))?;
        self.vips.remove(&address);
        self.store_vip_slots();
        self.point_to_vip(address, 0);
        self.pool.retire(cell, 1);
        Ok(true)
    }

    /// Writes the slots of the vIPs (`struct vip_slot`), and repairs them.
    pub(super) fn store_vip_slots(&self) {
        let mut slots = [vip_slot::default(); layout::VIP_SLOTS as usize];
        for vip in self.vips() {
            let IpAddr::V4(address) = vip.address else { continue };
            let slot = &mut slots[vip_slot_index(address) as usize];
            if slot.address == 0 {
                *slot = vip_slot {
                    address: ipv4_to_word(Some(address)),
                    mac: mac_to_bytes(vip.mac),
                    reserved32: 0,
                };
            }
        }
        let per_cell = layout::CELL_BYTES / size_of::<vip_slot>() as u32;
        for (number, slot) in (0..).zip(slots) {
            let cell = layout::CELL_VIPS + number / per_cell;
            let at = (number % per_cell) as usize * size_of::<vip_slot>();
            let (address, mac) = (at + offset_of!(vip_slot, address), at + offset_of!(vip_slot, mac));
            let memory = self.memory();
            let new_mac = u64::from_ne_bytes(slot.mac);
            if memory.load64(cell, mac) != new_mac {
                memory.store32(cell, address, 0);
                memory.store64(cell, mac, new_mac);
            }
            if memory.load32(cell, address) != slot.address {
                memory.store32(cell, address, slot.address);
            }
        }
    }

    fn vip_at(&self, cell: u32) -> Vip {
        let hop: next_hop = self.memory().read(cell);
        Vip {
            address: next_hop_address(self.memory(), cell),
            mac: mac_from_bytes(hop.mac),
            owned: u32::from(hop.flags) & layout::NEXT_HOP_OWNED != 0,
        }
    }

    /// The vIPs, in the order of their addresses.
    pub fn vips(&self) -> impl Iterator<Item = Vip> + '_ {
        self.vips.values().map(|&cell| self.vip_at(cell))
    }
}
