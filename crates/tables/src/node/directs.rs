//! Direct paths of a host: (the sender's VNI, address) to the instance's MAC and
//! its host, past the gateways (Zeta section IV-C).
//!
//! A path is a cell of its own, which packets stamp with the time when they take
//! it. The cell names the host; it leads to no VTEP's cell, so that a packet
//! needs no third one. A path is there only while its VRF and its host's VTEP
//! are: whoever removes one of these removes the path with it.

use super::NodeTables;
use super::underlay::{hop_address, kind_of};
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, next_hop};
use crate::memory::Memory;
use crate::spec::{self, DirectPath};
use sluice_types::{MacAddr, Vni};
use std::mem::offset_of;
use std::net::IpAddr;

fn direct_key(vni: Vni, address: IpAddr) -> Key {
    Key::Ip { vni: vni.get(), address }
}

fn direct_cell(path: &DirectPath, used: u32) -> next_hop {
    let (address, ipv6) = spec::address_bytes(path.host);
    let family = if ipv6 { layout::NEXT_HOP_IPV6 } else { 0 };
    let flags = if path.fixed { family | layout::NEXT_HOP_FIXED } else { family };
    next_hop {
        kind: layout::NEXT_HOP_DIRECT as u8,
        flags: flags as u8,
        vni: path.path_vni.get(),
        address,
        used,
        ..Default::default()
    }
}

/// The path of an entry, and when it was last used; `None` if it leads to something else.
pub(super) fn direct_at(memory: &Memory, key: Key, entry: Entry) -> Option<(DirectPath, u32)> {
    let Key::Ip { vni, address } = key else { return None };
    if vni == 0 || kind_of(memory, entry.next) != layout::NEXT_HOP_DIRECT {
        return None;
    }
    let path = DirectPath {
        vni: Vni::new(vni).ok()?,
        address,
        mac: MacAddr::from_u64(entry.mac),
        host: hop_address(memory, entry.next),
        path_vni: Vni::new(memory.load32(entry.next, offset_of!(next_hop, vni))).ok()?,
        fixed: u32::from(memory.read::<next_hop>(entry.next).flags) & layout::NEXT_HOP_FIXED != 0,
    };
    Some((path, memory.load32(entry.next, offset_of!(next_hop, used))))
}

impl NodeTables {
    /// Enters or changes a direct path. It keeps the time of its last use.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] by a port of this host, by an endpoint or, of a path that
    /// is not fixed, by one that is, [`Error::UnknownVni`], [`Error::UnknownVtep`], [`Error::Full`],
    /// [`Error::Invalid`], also for a path to this host itself. What the path
    /// was before it then still is.
    pub fn upsert_direct(&mut self, path: &DirectPath) -> Result<bool, Error> {
        let DirectPath { vni, address, mac, host, .. } = *path;
        self.check_direct(path)?;
        let key = direct_key(vni, address);
        let known = self.exact.get(self.memory(), key);
        let taken = |holder: &str| Error::AddressTaken { vni: vni.get(), address, holder: holder.to_owned() };
        let old = match known.map(|known| kind_of(self.memory(), known.next)) {
            Some(layout::NEXT_HOP_PORT) => return Err(taken("a port of this host")),
            Some(layout::NEXT_HOP_VTEP) => return Err(taken("an endpoint")),
            _ => known.and_then(|known| direct_at(self.memory(), key, known)),
        };
        let reuse = match old {
            Some((old, _)) if old == *path => return Ok(false),
            Some((old, _)) if old.fixed && !path.fixed => return Err(taken("a path of the controller")),
            // Only the MAC differs, which is not in the cell.
            Some((old, _)) if (old.host, old.path_vni, old.fixed) == (host, path.path_vni, path.fixed) => {
                known
            }
            _ => None,
        };
        if let Some(known) = reuse {
            self.exact.put(&mut self.pool, key, Entry { mac: mac.to_u64(), next: known.next })?;
            return Ok(true);
        }
        let cell = self.pool.allocate(1)?;
        let used = old.map_or(0, |(_, used)| used);
        self.memory().write(cell, &direct_cell(path, used));
        if let Err(error) = self.exact.put(&mut self.pool, key, Entry { mac: mac.to_u64(), next: cell }) {
            self.pool.give_back(cell, 1);
            return Err(error);
        }
        match known {
            Some(known) => self.pool.retire(known.next, 1),
            None => self.directs += 1,
        }
        Ok(true)
    }

    fn check_direct(&self, path: &DirectPath) -> Result<(), Error> {
        let DirectPath { vni, address, mac, host, .. } = *path;
        if address.is_unspecified() || address.is_multicast() || !mac.is_unicast() {
            return Err(Error::Invalid(format!("no instance can have address {address} with MAC {mac}")));
        }
        if !self.vrfs.contains_key(&vni.get()) {
            return Err(Error::UnknownVni(vni));
        }
        if !self.hops.get(&host).is_some_and(|hop| hop.registered) {
            return Err(Error::UnknownVtep { vni, address, host });
        }
        let node = self.node();
        if node.vtep4.map(IpAddr::V4) == Some(host) || node.vtep6.map(IpAddr::V6) == Some(host) {
            return Err(Error::Invalid(format!("a direct path from {host} to itself, for {address}")));
        }
        Ok(())
    }

    /// Removes a direct path.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_direct(&mut self, vni: Vni, address: IpAddr) -> Result<bool, Error> {
        let key = direct_key(vni, address);
        let known = self.exact.get(self.memory(), key);
        let Some(known) = known.filter(|known| direct_at(self.memory(), key, *known).is_some()) else {
            return Ok(false);
        };
        self.exact.take(&mut self.pool, key)?;
        self.release_direct(known.next);
        Ok(true)
    }

    /// The direct path of an address.
    pub fn direct(&self, vni: Vni, address: IpAddr) -> Option<DirectPath> {
        let key = direct_key(vni, address);
        let entry = self.exact.get(self.memory(), key)?;
        direct_at(self.memory(), key, entry).map(|(path, _)| path)
    }

    /// Removes the fixed paths of which `kept` is false.
    ///
    /// # Errors
    /// [`Error::Grace`]; some may be left then.
    pub fn retain_fixed(&mut self, kept: impl Fn(&DirectPath) -> bool) -> Result<(), Error> {
        self.remove_directs(|path| path.fixed && !kept(path))
    }

    /// Nothing leads to a path's cell any more.
    pub(super) fn release_direct(&mut self, cell: u32) {
        self.pool.retire(cell, 1);
        self.directs -= 1;
    }

    /// Removes the paths for which `gone` holds.
    pub(super) fn remove_directs(&mut self, gone: impl Fn(&DirectPath) -> bool) -> Result<(), Error> {
        // Gateways have none, and many other entries.
        if self.directs == 0 {
            return Ok(());
        }
        let paths = self.directs().map(|(path, _)| path).filter(gone);
        let keys: Vec<(Vni, IpAddr)> = paths.map(|path| (path.vni, path.address)).collect();
        for (vni, address) in keys {
            self.remove_direct(vni, address)?;
        }
        Ok(())
    }

    /// All direct paths, in no order, each with the second of `CLOCK_MONOTONIC`
    /// in which a packet last took it; 0: none did. Looks at every entry there is.
    pub fn directs(&self) -> impl Iterator<Item = (DirectPath, u32)> + '_ {
        let entries = self.exact.iter(self.memory());
        entries.filter_map(|(key, entry)| direct_at(self.memory(), key, entry))
    }
}
