//! Changes to VRFs, and the assignment of per-VNI counters to them.

use super::NodeTables;
use super::public::{internet_flags, internet_of};
use crate::encoding::{
    elephant_bytes, group_id, ipv4_from_word, ipv4_to_word, ipv6_from_bytes, ipv6_to_bytes,
    sent_elephant_bytes, sent_elephant_flags,
};
use crate::entries::{Vrf, VrfEntry};
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, vrf};
use crate::lpm::{self, Family, Root};
use crate::memory::Memory;

use sluice_types::Vni;
use std::mem::offset_of;

/// Resets counters by VNI and by meter, which packet programs keep outside of the tables. Packets in flight at the moment of a
/// reset may still be added.
pub trait CounterReset: Send {
    /// Sets the counters at an index to zero, before a VRF gets the index. Returns false if that failed; the
    /// VRF then shares the overflow counters at index 0.
    fn reset_index(&mut self, index: u32) -> bool;

    /// Removes the counters of a VNI that was removed from the tables.
    fn forget_vni(&mut self, vni: Vni);

    /// Sets the counters of the meter with this number to zero, before packets find it.
    fn reset_meter(&mut self, number: u32);
}

/// The assigned indices of per-VNI counters. Index 0 is the shared overflow. A freed index is reused as late
/// as possible, so that a reader of counters notices the change first.
pub(super) struct CounterIndices {
    taken: Vec<bool>,
    used: u64,
    next: usize,
}

impl CounterIndices {
    pub(super) fn new() -> Self {
        Self { taken: vec![false; layout::VNI_COUNTERS_MAX as usize], used: 0, next: 1 }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Assigns a free index, or 0 if all indices are in use.
    fn assign(&mut self) -> u32 {
        let all = self.taken.len();
        let found = (self.next..all).chain(1..self.next).find(|&i| !self.taken[i]);
        let Some(index) = found else { return 0 };
        self.next = if index + 1 == all { 1 } else { index + 1 };
        self.claim(index as u32);
        index as u32
    }

    /// Marks an index as taken. Returns false if it is out of range or already taken.
    pub(super) fn claim(&mut self, index: u32) -> bool {
        match self.taken.get_mut(index as usize) {
            Some(taken) if index != 0 && !*taken => {
                *taken = true;
                self.used += 1;
                true
            }
            _ => false,
        }
    }

    fn release(&mut self, index: u32) {
        if index != 0 && std::mem::replace(&mut self.taken[index as usize], false) {
            self.used -= 1;
        }
    }
}

pub(super) fn vrf_key(vni: u32) -> Key {
    Key::Index { vni, id: 0 }
}

/// The two root words in a VRF's cell.
pub(super) fn roots(cell: u32) -> [Root; 2] {
    [
        Root { cell, offset: offset_of!(vrf, lpm4), family: Family::V4 },
        Root { cell, offset: offset_of!(vrf, lpm6), family: Family::V6 },
    ]
}

pub(super) fn root_of(cell: u32, family: Family) -> Root {
    let [v4, v6] = roots(cell);
    if family == Family::V4 { v4 } else { v6 }
}

pub(super) fn count_offset(family: Family) -> usize {
    match family {
        Family::V4 => offset_of!(vrf, routes4),
        Family::V6 => offset_of!(vrf, routes6),
    }
}

/// The properties in a cell; `None` if it is not a VRF's.
pub(super) fn decode_vrf(cell: &vrf) -> Option<VrfEntry> {
    let vrf = Vrf {
        vni: Vni::new(cell.vni).ok()?,
        mtu: cell.mtu,
        router4: ipv4_from_word(cell.router4),
        router6: ipv6_from_bytes(cell.router6),
        group: (group_id(cell) != 0).then_some(group_id(cell)),
        elephant_bytes: elephant_bytes(cell),
    };
    Some(VrfEntry { vrf, counters: cell.counters, routes4: cell.routes4, routes6: cell.routes6 })
}

pub(super) fn count_routes(memory: &Memory, cell: u32) -> u64 {
    let count = |family| u64::from(memory.load32(cell, count_offset(family)));
    count(Family::V4) + count(Family::V6)
}

pub(super) fn set_route_count(memory: &Memory, cell: u32, family: Family, count: u32) {
    memory.store32(cell, count_offset(family), count);
}

impl NodeTables {
    /// Adds or changes a VRF; its routes stay. One that is new has the routes of the prefixes of its ports.
    ///
    /// # Errors
    /// [`Error::UnknownGroup`], [`Error::Full`], [`Error::Invalid`] for a threshold of 0, or for public prefixes or a NAT gateway
    /// together with a group.
    pub fn upsert_vrf(&mut self, vrf: &Vrf) -> Result<bool, Error> {
        if vrf.elephant_bytes == Some(0) {
            let detail =
                format!("VNI {} has an elephant threshold of 0 bytes: it must be at least 1", vrf.vni);
            return Err(Error::Invalid(detail));
        }
        let sent_flags = vrf.group.map_or(0, |_| sent_elephant_flags(vrf.elephant_bytes));
        let (by_role, vrf) = match vrf.group {
            None => (vrf.elephant_bytes.unwrap_or(0), *vrf),
            Some(id) => {
                let kept = Vrf { elephant_bytes: sent_elephant_bytes(sent_flags), ..*vrf };
                (*self.groups.get(&id).ok_or(Error::UnknownGroup(id))?, kept)
            }
        };
        let old = self.vrfs.get(&vrf.vni.get()).copied();
        let known: layout::vrf = old.map(|cell| self.memory().read(cell)).unwrap_or_default();
        let is_linked = old.is_some_and(|cell| self.is_vrf_linked(vrf.vni, cell));
        let is_same = decode_vrf(&known).is_some_and(|entry| entry.vrf == vrf) && known.by_role == by_role;
        if is_same && is_linked {
            // An earlier call may have ended before it did this.
            self.point_senders(vrf.vni.get())?;
            self.put_all_delegated(vrf.vni)?;
            return Ok(false);
        }
        let internet = old.and_then(|cell| internet_of(self.memory(), cell)).unwrap_or(0);
        if vrf.group.is_some() && internet != 0 {
            return Err(Error::Invalid(format!(
                "VNI {} has public addresses: only the VRF of a gateway can have them, which has no group",
                vrf.vni
            )));
        }
        let run = self.pool.allocate(1)?;
        let counters = if old.is_some() { known.counters } else { self.assign_counter_index() };
        let new = layout::vrf {
            vni: vrf.vni.get(),
            counters,
            by_role,
            group_id: vrf.group.unwrap_or(internet),
            mtu: vrf.mtu,
            flags: internet_flags(self.memory(), internet) as u16
                | sent_flags
                | self.bonded_flag(vrf.vni.get()),
            router4: ipv4_to_word(vrf.router4),
            router6: ipv6_to_bytes(vrf.router6),
            ..known
        };
        self.memory().write(run, &new);
        let entry = Entry { mac: 0, next: run };
        // No sender leads to the old cell when the new one gets routes that the old one does not have.
        let unlinked = if old.is_some() { self.unlink_senders(vrf.vni.get()) } else { Ok(()) };
        let put = unlinked.and_then(|()| self.exact.put(&mut self.pool, vrf_key(vrf.vni.get()), entry));
        if let Err(error) = put {
            self.pool.give_back(run, 1);
            if old.is_none() {
                self.counter_indices.release(counters);
            }
            return Err(error);
        }
        self.vrfs.insert(vrf.vni.get(), run);
        self.note_changes(vrf.vni);
        self.point_ports(vrf.vni, run);
        if let Some(old) = old {
            self.pool.retire(old, 1);
        }
        self.point_senders(vrf.vni.get())?;
        self.put_all_delegated(vrf.vni)?;
        Ok(true)
    }

    /// The flag of a VRF that has bonding vNICs on this host.
    fn bonded_flag(&self, vni: u32) -> u16 {
        if self.bonded.contains_key(&vni) { layout::VRF_BONDED as u16 } else { 0 }
    }

    /// Sets or clears the flag of a VRF whose number of bonding vNICs has changed.
    pub(super) fn flag_bonded(&self, vni: u32) {
        let Some(&cell) = self.vrfs.get(&vni) else { return };
        let mut known: layout::vrf = self.memory().read(cell);
        known.flags = known.flags & !(layout::VRF_BONDED as u16) | self.bonded_flag(vni);
        self.memory().update(cell, &known);
    }

    /// Sets what resets the counters of VRFs that are added or removed. Without it they are not reset.
    pub fn set_counter_reset(&mut self, reset: impl CounterReset + 'static) {
        self.counter_reset = Some(Box::new(reset));
    }

    /// Assigns counters to a new VRF, and resets them.
    fn assign_counter_index(&mut self) -> u32 {
        let index = self.counter_indices.assign();
        if index != 0
            && let Some(reset) = &mut self.counter_reset
            && !reset.reset_index(index)
        {
            self.counter_indices.release(index);
            return 0;
        }
        index
    }

    /// Removes a VRF with its routes, public prefixes, NAT gateway and direct paths. Its endpoints and ports stay in the
    /// tables; packets do not find them until the VRF is added again.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_vrf(&mut self, vni: Vni) -> Result<bool, Error> {
        let Some(&cell) = self.vrfs.get(&vni.get()) else {
            // A removal whose grace period failed may have left prefixes, addresses and paths.
            let had_prefixes = self.remove_public_prefixes_of(vni)? | self.remove_nat_gateway(vni)?;
            return Ok(self.remove_direct_paths(|path| path.vni == vni)? || had_prefixes);
        };
        self.unlink_senders(vni.get())?;
        // The VRF comes before the public prefixes and the paths: without it, the successor of a killed writer removes
        // them.
        self.exact.take(&mut self.pool, vrf_key(vni.get()))?;
        self.vrfs.remove(&vni.get());
        self.note_end(vni);
        self.point_ports(vni, 0);
        if let Some(reset) = &mut self.counter_reset {
            reset.forget_vni(vni);
            self.forgotten_vnis.insert(vni);
        }
        self.routes -= count_routes(self.memory(), cell);
        self.counter_indices.release(self.memory().load32(cell, offset_of!(layout::vrf, counters)));
        let next_hops = self.next_hop_cells(cell);
        for root in roots(cell) {
            lpm::clear(&mut self.pool, root);
        }
        self.retire_next_hop_cells(next_hops);
        if let Some(internet) = internet_of(self.memory(), cell) {
            self.retire_internet(internet);
        }
        self.pool.retire(cell, 1);
        self.remove_public_prefixes_of(vni)?;
        self.remove_nat_gateway(vni)?;
        self.remove_direct_paths(|path| path.vni == vni)?;
        Ok(true)
    }

    /// Removes the counters of removed VNIs again: packets that were in flight at the removal may have been counted
    /// after it. Must be called about once a second. A VNI that was added again meanwhile keeps its counters.
    pub fn forget_removed_vnis(&mut self) {
        let Some(reset) = &mut self.counter_reset else { return };
        for vni in std::mem::take(&mut self.forgotten_vnis) {
            if !self.vrfs.contains_key(&vni.get()) {
                reset.forget_vni(vni);
            }
        }
    }

    /// The VRF of a VNI.
    pub fn vrf(&self, vni: Vni) -> Option<VrfEntry> {
        let &cell = self.vrfs.get(&vni.get())?;
        decode_vrf(&self.memory().read(cell))
    }

    /// All VRFs, in the order of their VNIs.
    pub fn vrfs(&self) -> impl Iterator<Item = VrfEntry> + '_ {
        self.vrfs.values().filter_map(|&cell| decode_vrf(&self.memory().read(cell)))
    }
}
