//! VRFs.

use super::NodeTables;
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout::{self, vrf};
use crate::lpm::{self, Family, Root};
use crate::memory::Memory;
use crate::spec::{self, Vrf, VrfEntry};
use sluice_types::Vni;
use std::mem::offset_of;

/// Counts by VNI, which packets keep outside of the tables. What packets that
/// were under way add in the instant of a change may stay.
pub trait VniCounts: Send {
    /// Forgets what was counted at an index, which a VRF is about to get. False:
    /// it could not be forgotten; the VRF then counts with others at index 0.
    fn begin(&mut self, index: u32) -> bool;

    /// Forgets what was counted of a VNI that is in the tables no more.
    fn end(&mut self, vni: Vni);
}

/// Which per-VNI counters are taken. Index 0 is the shared overflow. Freed ones
/// are reused as late as possible, so that a reader of counters notices first.
pub(super) struct Counters {
    taken: Vec<bool>,
    used: u64,
    next: usize,
}

impl Counters {
    pub(super) fn new() -> Self {
        Self { taken: vec![false; layout::VNI_COUNTERS_MAX as usize], used: 0, next: 1 }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    fn allot(&mut self) -> u32 {
        let all = self.taken.len();
        let found = (self.next..all).chain(1..self.next).find(|&i| !self.taken[i]);
        let Some(index) = found else { return 0 };
        self.next = if index + 1 == all { 1 } else { index + 1 };
        self.claim(index as u32);
        index as u32
    }

    /// Takes an index; false: it is out of range or taken.
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

/// The two root words of a VRF's cell.
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

fn entry_of(cell: &vrf) -> Option<VrfEntry> {
    let vrf = Vrf {
        vni: Vni::new(cell.vni).ok()?,
        mtu: cell.mtu,
        router4: spec::from_word4(cell.router4),
        router6: spec::from_bytes6(cell.router6),
        group: (cell.group_id != 0).then_some(cell.group_id),
        elephant_bytes: (cell.group_id == 0 && cell.group != 0).then_some(cell.group),
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
    /// Enters or changes what a VNI is; its routes stay.
    ///
    /// # Errors
    /// [`Error::UnknownGroup`], [`Error::Full`], [`Error::Invalid`] for a VRF
    /// that is a host's and a gateway's.
    pub fn upsert_vrf(&mut self, vrf: &Vrf) -> Result<bool, Error> {
        // One word of the cell holds either.
        let group = match (vrf.group, vrf.elephant_bytes) {
            (None, None) => 0,
            (Some(id), None) => *self.groups.get(&id).ok_or(Error::UnknownGroup(id))?,
            (None, Some(bytes @ 1..)) => bytes,
            (_, Some(bytes)) => {
                return Err(Error::Invalid(format!(
                    "VNI {}: {bytes} bytes as the threshold of elephants; 1 at least, and only without a group",
                    vrf.vni
                )));
            }
        };
        let old = self.vrfs.get(&vrf.vni.get()).copied();
        let known: layout::vrf = old.map(|cell| self.memory().read(cell)).unwrap_or_default();
        if entry_of(&known).is_some_and(|entry| entry.vrf == *vrf) {
            return Ok(false);
        }
        let run = self.pool.allocate(1)?;
        let counters = if old.is_some() { known.counters } else { self.allot_counters() };
        let new = layout::vrf {
            vni: vrf.vni.get(),
            counters,
            group,
            group_id: vrf.group.unwrap_or(0),
            mtu: vrf.mtu,
            router4: spec::word4(vrf.router4),
            router6: spec::bytes6(vrf.router6),
            ..known
        };
        self.memory().write(run, &new);
        let entry = Entry { mac: 0, next: run };
        if let Err(error) = self.exact.put(&mut self.pool, vrf_key(vrf.vni.get()), entry) {
            self.pool.give_back(run, 1);
            if old.is_none() {
                self.counters.release(counters);
            }
            return Err(error);
        }
        self.vrfs.insert(vrf.vni.get(), run);
        self.point_ports(vrf.vni, run);
        if let Some(old) = old {
            self.pool.retire(old, 1);
        }
        Ok(true)
    }

    /// Whom to tell which counters begin and which VNIs end; at first nobody.
    pub fn set_vni_counts(&mut self, counts: impl VniCounts + 'static) {
        self.counts = Some(Box::new(counts));
    }

    /// Counters of a new VRF, which tell nothing of who had them before.
    fn allot_counters(&mut self) -> u32 {
        let index = self.counters.allot();
        if index != 0
            && let Some(counts) = &mut self.counts
            && !counts.begin(index)
        {
            self.counters.release(index);
            return 0;
        }
        index
    }

    /// Removes a VNI with its routes and direct paths. Its endpoints stay, and are
    /// not found by packets while it is gone.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_vrf(&mut self, vni: Vni) -> Result<bool, Error> {
        let Some(&cell) = self.vrfs.get(&vni.get()) else { return Ok(false) };
        self.exact.take(&mut self.pool, vrf_key(vni.get()))?;
        self.vrfs.remove(&vni.get());
        self.point_ports(vni, 0);
        if let Some(counts) = &mut self.counts {
            counts.end(vni);
        }
        self.routes -= count_routes(self.memory(), cell);
        self.counters.release(self.memory().load32(cell, offset_of!(layout::vrf, counters)));
        for root in roots(cell) {
            lpm::clear(&mut self.pool, root);
        }
        self.pool.retire(cell, 1);
        self.remove_directs(|path| path.vni == vni)?;
        Ok(true)
    }

    /// What a VNI is.
    pub fn vrf(&self, vni: Vni) -> Option<VrfEntry> {
        let &cell = self.vrfs.get(&vni.get())?;
        entry_of(&self.memory().read(cell))
    }

    /// All VRFs, by VNI.
    pub fn vrfs(&self) -> impl Iterator<Item = VrfEntry> + '_ {
        self.vrfs.values().filter_map(|&cell| entry_of(&self.memory().read(cell)))
    }
}
