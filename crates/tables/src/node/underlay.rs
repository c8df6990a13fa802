//! The underlay: other nodes' VTEPs and this cluster's vIPs.

use super::NodeTables;
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, next_hop};
use crate::memory::Memory;
use crate::spec::{self, Role, Vip};
use std::mem::offset_of;
use std::net::IpAddr;

/// The shared cell of a VTEP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub cell: u32,
    /// Endpoints that lead to it.
    pub references: u64,
    /// It is an accepted sender; else it lives on for its endpoints only.
    pub registered: bool,
}

pub(super) fn underlay_key(address: IpAddr) -> Key {
    Key::Ip { vni: 0, address }
}

/// The kind in a cell's first byte.
pub(super) fn kind_of(memory: &Memory, cell: u32) -> u32 {
    if memory.contains(cell, 1) { memory.load32(cell, 0) & 0xff } else { 0 }
}

pub(super) fn vtep_cell(address: IpAddr) -> next_hop {
    let (address, ipv6) = spec::address_bytes(address);
    let flags = if ipv6 { layout::NEXT_HOP_IPV6 } else { 0 };
    next_hop { kind: layout::NEXT_HOP_VTEP as u8, flags: flags as u8, address, ..Default::default() }
}

/// Kind and flags, which are one word.
fn first_word(cell: &next_hop) -> u32 {
    u32::from(cell.kind) | u32::from(cell.flags) << 8
}

fn node_cell(address: IpAddr, role: Role) -> next_hop {
    let host = if role == Role::Host { layout::NEXT_HOP_HOST } else { 0 };
    let cell = vtep_cell(address);
    next_hop { flags: cell.flags | host as u8, ..cell }
}

fn vip_cell(vip: &Vip) -> next_hop {
    let owned = if vip.owned { layout::NEXT_HOP_OWNED } else { 0 };
    let cell = vtep_cell(vip.address);
    next_hop {
        kind: layout::NEXT_HOP_VIP as u8,
        flags: cell.flags | owned as u8,
        mac: spec::mac_bytes(vip.mac),
        ..cell
    }
}

/// The address of a next hop's or vIP's cell.
pub(super) fn hop_address(memory: &Memory, cell: u32) -> IpAddr {
    let hop: next_hop = memory.read(cell);
    spec::address_from(hop.address, u32::from(hop.flags) & layout::NEXT_HOP_IPV6 != 0)
}

fn check_underlay(address: IpAddr) -> Result<(), Error> {
    if sluice_types::is_unicast(address) {
        return Ok(());
    }
    Err(Error::Invalid(format!("{address} is no address that a node can have")))
}

impl NodeTables {
    /// Enters another node whose VXLAN packets are accepted, or changes its role.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] when it is a vIP, [`Error::Full`], [`Error::Invalid`].
    pub fn upsert_vtep(&mut self, address: IpAddr, role: Role) -> Result<bool, Error> {
        check_underlay(address)?;
        if self.vips.contains_key(&address) {
            return Err(Error::AddressTaken { vni: 0, address, holder: "a vIP".to_owned() });
        }
        let known = self.hops.get(&address).copied();
        let new = node_cell(address, role);
        let cell = match known {
            Some(hop) => {
                let changes = self.memory().load32(hop.cell, 0) != first_word(&new);
                if changes {
                    self.memory().store32(hop.cell, offset_of!(next_hop, kind), first_word(&new));
                }
                if hop.registered {
                    return Ok(changes);
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
        let references = known.map_or(0, |hop| hop.references);
        self.hops.insert(address, Hop { cell, references, registered: true });
        Ok(true)
    }

    /// Removes a node: its packets are no longer accepted, and direct paths to it
    /// go. Endpoints that still lead to it do so until they are changed or
    /// removed, so the order of these removals does not matter.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_vtep(&mut self, address: IpAddr) -> Result<bool, Error> {
        let Some(hop) = self.hops.get_mut(&address).filter(|hop| hop.registered) else { return Ok(false) };
        self.exact.take(&mut self.pool, underlay_key(address))?;
        hop.registered = false;
        if hop.references == 0 {
            self.pool.retire(hop.cell, 1);
            self.hops.remove(&address);
        }
        self.remove_directs(|path| path.host == address)?;
        Ok(true)
    }

    /// One endpoint less leads to this VTEP.
    pub(super) fn release_hop(&mut self, cell: u32) {
        let address = hop_address(self.memory(), cell);
        let Some(hop) = self.hops.get_mut(&address) else { return };
        hop.references -= 1;
        if hop.references == 0 && !hop.registered {
            self.pool.retire(cell, 1);
            self.hops.remove(&address);
        }
    }

    /// The accepted nodes.
    pub fn vteps(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.hops.iter().filter(|(_, hop)| hop.registered).map(|(&address, _)| address)
    }

    /// What an accepted node is for.
    pub fn role(&self, address: IpAddr) -> Option<Role> {
        let hop = self.hops.get(&address).filter(|hop| hop.registered)?;
        let cell: next_hop = self.memory().read(hop.cell);
        let host = u32::from(cell.flags) & layout::NEXT_HOP_HOST != 0;
        Some(if host { Role::Host } else { Role::Gateway })
    }

    /// Enters or changes a vIP of this node's cluster.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] when it is a VTEP, [`Error::Full`], [`Error::Invalid`].
    pub fn upsert_vip(&mut self, vip: &Vip) -> Result<bool, Error> {
        check_underlay(vip.address)?;
        if self.hops.get(&vip.address).is_some_and(|hop| hop.registered) {
            let holder = "a VTEP".to_owned();
            return Err(Error::AddressTaken { vni: 0, address: vip.address, holder });
        }
        let old = self.vips.get(&vip.address).copied();
        if let Some(cell) = old {
            let known = self.vip_at(cell);
            if known == *vip {
                return Ok(false);
            }
            if known.mac == vip.mac {
                self.memory().store32(cell, offset_of!(next_hop, kind), first_word(&vip_cell(vip)));
                return Ok(true);
            }
        }
        let cell = self.pool.allocate(1)?;
        self.memory().write(cell, &vip_cell(vip));
        let entry = Entry { mac: 0, next: cell };
        if let Err(error) = self.exact.put(&mut self.pool, underlay_key(vip.address), entry) {
            self.pool.give_back(cell, 1);
            return Err(error);
        }
        self.vips.insert(vip.address, cell);
        if let Some(old) = old {
            self.pool.retire(old, 1);
        }
        Ok(true)
    }

    /// Removes a vIP.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_vip(&mut self, address: IpAddr) -> Result<bool, Error> {
        let Some(&cell) = self.vips.get(&address) else { return Ok(false) };
        self.exact.take(&mut self.pool, underlay_key(address))?;
        self.vips.remove(&address);
        self.pool.retire(cell, 1);
        Ok(true)
    }

    fn vip_at(&self, cell: u32) -> Vip {
        let hop: next_hop = self.memory().read(cell);
        Vip {
            address: hop_address(self.memory(), cell),
            mac: spec::mac_from(hop.mac),
            owned: u32::from(hop.flags) & layout::NEXT_HOP_OWNED != 0,
        }
    }

    /// The vIPs, by address.
    pub fn vips(&self) -> impl Iterator<Item = Vip> + '_ {
        self.vips.values().map(|&cell| self.vip_at(cell))
    }
}
