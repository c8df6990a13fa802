//! Changes to a host's direct paths, which lead past the gateways (Zeta section IV-C): the instance's MAC and
//! host, found by (the sender's VNI, address).
//!
//! Each path has a cell of its own, in which packets record the time when they take it. The cell contains the
//! host's address instead of a link to the VTEP's cell, so that a packet needs no third cell, and whether the host is
//! foreign. A path exists only while its VRF and its host's VTEP do: the removal of either removes the path.

use super::NodeTables;
use super::endpoints::{check_instance, tenant_key};
use super::underlay::{first_word, next_hop_address};
use super::vrfs::root_of;
use crate::encoding::{address_to_bytes, kind_of};
use crate::entries::{DirectPath, Role, Target};
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, next_hop, port};
use crate::lpm;
use crate::memory::Memory;

use sluice_types::{MacAddr, Vni};
use std::mem::offset_of;
use std::net::IpAddr;

fn encode_direct_path(path: &DirectPath, used: u32, host: Option<Role>) -> next_hop {
    let (address, ipv6) = address_to_bytes(path.host);
    let family = if ipv6 { layout::NEXT_HOP_IPV6 } else { 0 };
    let fixed = if path.fixed { layout::NEXT_HOP_FIXED } else { 0 };
    let foreign = if host == Some(Role::ForeignHost) { layout::NEXT_HOP_FOREIGN } else { 0 };
    let moved = if path.moved { layout::NEXT_HOP_MOVED } else { 0 };
    let flags = family | fixed | foreign | moved;
    next_hop {
        kind: layout::NEXT_HOP_DIRECT as u8,
        flags: flags as u8,
        mtu: path.mtu,
        vni: path.path_vni.get(),
        address,
        used,
        ..Default::default()
    }
}

/// The path of an entry, and when a packet last used it; `None` if the entry leads to something else.
pub(super) fn direct_path_at(memory: &Memory, key: Key, entry: Entry) -> Option<(DirectPath, u32)> {
    let Key::Ip { vni, address } = key else { return None };
    if vni == 0 || kind_of(memory, entry.next) != layout::NEXT_HOP_DIRECT {
        return None;
    }
    let hop = memory.read::<next_hop>(entry.next);
    let flags = u32::from(hop.flags);
    let path = DirectPath {
        vni: Vni::new(vni).ok()?,
        address,
        mac: MacAddr::from_u64(entry.mac),
        host: next_hop_address(memory, entry.next),
        path_vni: Vni::new(memory.load32(entry.next, offset_of!(next_hop, vni))).ok()?,
        mtu: hop.mtu,
        fixed: flags & layout::NEXT_HOP_FIXED != 0,
        moved: flags & layout::NEXT_HOP_MOVED != 0,
    };
    Some((path, memory.load32(entry.next, offset_of!(next_hop, used))))
}

impl NodeTables {
    /// Adds or changes a direct path. A path that changes keeps the time of its last use. After an error the
    /// path is what it was before.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] if a port of this host, by a delegated prefix as well, an endpoint or a service has the address, or if the address has a
    /// fixed path and the new one is not fixed; [`Error::UnknownVni`]; [`Error::UnknownVtep`];
    /// [`Error::Full`]; [`Error::Invalid`], also for a path to this host itself, and for one of an instance that migrates
    /// and is not fixed.
    pub fn upsert_direct_path(&mut self, path: &DirectPath) -> Result<bool, Error> {
        let DirectPath { vni, address, mac, host, .. } = *path;
        self.check_direct_path(path)?;
        let key = tenant_key(vni, address);
        let known = self.exact.get(self.memory(), key);
        let taken = |holder: &str| Error::AddressTaken { vni: vni.get(), address, holder: holder.to_owned() };
        if !path.moved && self.is_delegated_here(path) {
            return Err(taken("a prefix of a port of this host"));
        }
        let old = match known.map(|known| kind_of(self.memory(), known.next)) {
            Some(layout::NEXT_HOP_PORT) => return Err(taken("a port of this host")),
            Some(layout::NEXT_HOP_VTEP) => return Err(taken("an endpoint")),
            Some(layout::NEXT_HOP_SERVICE) => return Err(taken("a service")),
            _ => known.and_then(|known| direct_path_at(self.memory(), key, known)),
        };
        let reuse = match old {
            Some((old, _)) if old == *path => return Ok(false),
            Some((old, _)) if old.fixed && !path.fixed => {
                return Err(taken("a path that the controller programmed"));
            }
            // Only the MAC differs, which is not in the cell.
            Some((old, _)) if old == DirectPath { mac: old.mac, ..*path } => known,
            _ => None,
        };
        if let Some(known) = reuse {
            self.exact.put(&mut self.pool, key, Entry { mac: mac.to_u64(), next: known.next })?;
            return Ok(true);
        }
        // The destination's packets return from its host, perhaps at once.
        if let Some(host) = self.fixed_sender(path) {
            self.enter_sender(vni.get(), host)?;
        }
        let cell = self.pool.allocate(1)?;
        let used = old.map_or(0, |(_, used)| used);
        self.memory().write(cell, &encode_direct_path(path, used, self.role(host)));
        if let Err(error) = self.exact.put(&mut self.pool, key, Entry { mac: mac.to_u64(), next: cell }) {
            self.pool.give_back(cell, 1);
            return Err(error);
        }
        if let Some(host) = self.fixed_sender(path) {
            self.add_sender_endpoint(vni.get(), host);
        }
        if let Some(host) = old.and_then(|(old, _)| self.fixed_sender(&old)) {
            self.release_sender(vni.get(), host);
        }
        match known {
            Some(known) => self.pool.retire(known.next, 1),
            None => self.direct_paths += 1,
        }
        Ok(true)
    }

    /// Whether a path leads to a VM that is at a port of this host and has the address by a delegated prefix, as find_delegated()
    /// in deliver.h decides. Its packets would leave this host, and return only if another host knew that the VM is here.
    fn is_delegated_here(&self, path: &DirectPath) -> bool {
        let Some(&cell) = self.vrfs.get(&path.vni.get()).filter(|_| path.vni == path.path_vni) else {
            return false;
        };
        let (family, bits) = lpm::top_bits(path.address);
        let leaf = lpm::find(self.memory(), root_of(cell, family), bits).unwrap_or(0);
        let Some(Target::Port(ifindex)) = Target::from_leaf(self.memory(), leaf) else { return false };
        let port = self.ports.get(&ifindex).map(|&run| self.memory().read::<port>(run));
        port.is_some_and(|port| MacAddr::new(port.mac) == path.mac)
    }

    /// Removes the learned paths to a VM that has come to this host with delegated prefixes.
    pub(super) fn remove_delegated_paths(&mut self) -> Result<(), Error> {
        if self.direct_paths == 0 {
            return Ok(());
        }
        let paths = self.direct_paths().map(|(path, _)| path);
        let here = paths.filter(|path| !path.moved && self.is_delegated_here(path));
        let keys: Vec<(Vni, IpAddr)> = here.map(|path| (path.vni, path.address)).collect();
        for (vni, address) in keys {
            self.remove_direct_path(vni, address)?;
        }
        Ok(())
    }

    /// The cell of the host that a fixed path lets send in its VNI.
    fn fixed_sender(&self, path: &DirectPath) -> Option<u32> {
        self.vteps.get(&path.host).filter(|_| path.fixed).map(|hop| hop.cell)
    }

    fn check_direct_path(&self, path: &DirectPath) -> Result<(), Error> {
        let DirectPath { vni, address, mac, host, .. } = *path;
        check_instance(address, mac)?;
        if path.moved && !path.fixed {
            return Err(Error::Invalid(format!("the path of {address}, which migrates, is not fixed")));
        }
        if path.mtu != 0 && u32::from(path.mtu) < layout::DIRECT_MTU_MIN {
            return Err(Error::Invalid(format!("the direct path to {address} has an MTU of {}", path.mtu)));
        }
        if !self.vrfs.contains_key(&vni.get()) {
            return Err(Error::UnknownVni(vni));
        }
        if !self.vteps.get(&host).is_some_and(|hop| hop.accepted) {
            return Err(Error::UnknownVtep { vni, address, host });
        }
        let node = self.node();
        if node.vtep4.map(IpAddr::V4) == Some(host) || node.vtep6.map(IpAddr::V6) == Some(host) {
            return Err(Error::Invalid(format!("the direct path to {address} leads from {host} to itself")));
        }
        Ok(())
    }

    /// Removes a direct path.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_direct_path(&mut self, vni: Vni, address: IpAddr) -> Result<bool, Error> {
        let key = tenant_key(vni, address);
        let known = self.exact.get(self.memory(), key);
        let path = |known: Entry| Some((known, direct_path_at(self.memory(), key, known)?.0));
        let Some((known, path)) = known.and_then(path) else { return Ok(false) };
        self.exact.take(&mut self.pool, key)?;
        self.release_direct_path(known.next);
        if let Some(host) = self.fixed_sender(&path) {
            self.release_sender(vni.get(), host);
        }
        Ok(true)
    }

    /// The direct path of an address.
    pub fn direct_path(&self, vni: Vni, address: IpAddr) -> Option<DirectPath> {
        let key = tenant_key(vni, address);
        let entry = self.exact.get(self.memory(), key)?;
        direct_path_at(self.memory(), key, entry).map(|(path, _)| path)
    }

    /// Removes the fixed paths for which `keep` returns false, but not those of instances that migrate.
    ///
    /// # Errors
    /// [`Error::Grace`]; some of these paths may remain then.
    pub fn retain_fixed(&mut self, keep: impl Fn(&DirectPath) -> bool) -> Result<(), Error> {
        self.remove_direct_paths(|path| path.fixed && !path.moved && !keep(path))?;
        Ok(())
    }

    /// Stores in the cells of paths which hosts are foreign, after the role of a host has changed.
    pub(super) fn store_flags_of_paths(&self) {
        if self.direct_paths == 0 {
            return;
        }
        let memory = self.memory();
        for (key, entry) in self.exact.iter(memory) {
            let Some((path, used)) = direct_path_at(memory, key, entry) else { continue };
            let word = first_word(&encode_direct_path(&path, used, self.role(path.host)));
            if memory.load32(entry.next, offset_of!(next_hop, kind)) != word {
                memory.store32(entry.next, offset_of!(next_hop, kind), word);
            }
        }
    }

    /// Retires the cell of a path that a port has replaced. A fixed one no longer lets its host send.
    pub(super) fn release_replaced_path(&mut self, key: Key, entry: Entry) {
        let path = direct_path_at(self.memory(), key, entry).map(|(path, _)| path);
        self.release_direct_path(entry.next);
        if let Some((path, host)) = path.and_then(|path| Some((path, self.fixed_sender(&path)?))) {
            self.release_sender(path.vni.get(), host);
        }
    }

    /// Retires the cell of a path that was unlinked.
    pub(super) fn release_direct_path(&mut self, cell: u32) {
        self.pool.retire(cell, 1);
        self.direct_paths -= 1;
    }

    /// Removes the paths for which `is_unwanted` returns true. Returns false if no path was removed.
    pub(super) fn remove_direct_paths(
        &mut self,
        is_unwanted: impl Fn(&DirectPath) -> bool,
    ) -> Result<bool, Error> {
        // Gateways have no direct paths, and many other entries, all of which are searched below.
        if self.direct_paths == 0 {
            return Ok(false);
        }
        let paths = self.direct_paths().map(|(path, _)| path).filter(is_unwanted);
        let keys: Vec<(Vni, IpAddr)> = paths.map(|path| (path.vni, path.address)).collect();
        for &(vni, address) in &keys {
            self.remove_direct_path(vni, address)?;
        }
        Ok(!keys.is_empty())
    }

    /// All direct paths, in no particular order, each with the time when a packet last took it (seconds of
    /// `CLOCK_MONOTONIC`; 0 if no packet did). Reads every entry of the exact match.
    pub fn direct_paths(&self) -> impl Iterator<Item = (DirectPath, u32)> + '_ {
        let entries = self.exact.iter(self.memory());
        entries.filter_map(|(key, entry)| direct_path_at(self.memory(), key, entry))
    }
}
