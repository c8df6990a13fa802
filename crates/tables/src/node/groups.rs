//! Changes to groups: the vIPs over which hosts spread their packets.
//!
//! A group has next hops of its own, separate from the VTEPs: packets are sent to a vIP, but no packets are
//! accepted from it.

use super::NodeTables;
use super::underlay::{encode_vtep, next_hop_address};
use crate::encoding::{group_id, kind_of};
use crate::entries::Group;
use crate::error::Error;
use crate::exact::{self, Key};
use crate::layout::{self, group, vrf};
use crate::memory::Memory;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::net::IpAddr;

pub(super) fn group_key(id: u32) -> Key {
    Key::Index { vni: layout::EXACT_GROUP_VNI, id }
}

/// Number of cells of a group with this many buckets.
pub(super) fn group_cells(count: u32) -> u32 {
    ((1 + count) * 4).div_ceil(layout::CELL_BYTES)
}

/// The cells that a group's buckets lead to, in order.
pub(super) fn members(memory: &Memory, cell: u32) -> Vec<u32> {
    let count = memory.load32(cell, offset_of!(group, count)).min(layout::GROUP_BUCKETS_MAX);
    (0..count as usize).map(|i| memory.load32(cell, offset_of!(group, bucket) + i * 4)).collect()
}

impl NodeTables {
    /// Adds or changes a group.
    ///
    /// # Errors
    /// [`Error::Invalid`] for identifier 0 or a wrong number of vIPs, [`Error::Full`].
    pub fn upsert_group(&mut self, group: &Group) -> Result<bool, Error> {
        let max = layout::GROUP_BUCKETS_MAX as usize;
        if group.id == 0 || group.vips.is_empty() || group.vips.len() > max {
            return Err(Error::Invalid(format!(
                "group {} has {} vIPs: a group needs an id other than 0 and 1 to {max} vIPs",
                group.id,
                group.vips.len()
            )));
        }
        let old = self.groups.get(&group.id).copied();
        if old.is_some_and(|cell| self.visible_group(group.id) == Some((cell, group.vips.clone()))) {
            return Ok(false);
        }
        let mut hops = old.map(|cell| self.member_cells(cell)).unwrap_or_default();
        let old_hops = hops.clone();
        let written = self.write_group(group, &mut hops).and_then(|run| {
            let entry = exact::Entry { mac: 0, next: run };
            let put = self.exact.put(&mut self.pool, group_key(group.id), entry);
            put.map(|_| run).inspect_err(|_| self.pool.give_back(run, group_cells(group.vips.len() as u32)))
        });
        let run = match written {
            Ok(run) => run,
            Err(error) => {
                for (_, cell) in hops.into_iter().filter(|(address, _)| !old_hops.contains_key(address)) {
                    self.pool.give_back(cell, 1);
                }
                return Err(error);
            }
        };
        self.groups.insert(group.id, run);
        self.point_vrfs(group.id, run);
        if let Some(old) = old {
            self.pool.retire(old, group_cells(members(self.pool.memory(), old).len() as u32));
        }
        for (address, cell) in old_hops {
            if !group.vips.contains(&address) {
                self.pool.retire(cell, 1);
            }
        }
        Ok(true)
    }

    /// Writes a group to a new run, and a next hop for each vIP that `hops` does not contain yet.
    fn write_group(&mut self, group: &Group, hops: &mut HashMap<IpAddr, u32>) -> Result<u32, Error> {
        for &address in &group.vips {
            if let Entry::Vacant(vacant) = hops.entry(address) {
                let cell = self.pool.allocate(1)?;
                self.pool.memory().write(cell, &encode_vtep(address));
                vacant.insert(cell);
            }
        }
        let count = group.vips.len() as u32;
        let run = self.pool.allocate(group_cells(count))?;
        for (i, address) in group.vips.iter().enumerate() {
            self.memory().store32(run, offset_of!(layout::group, bucket) + i * 4, hops[address]);
        }
        self.memory().store32(run, offset_of!(layout::group, count), count);
        Ok(run)
    }

    /// Removes a group; the VRFs that used it have no group then.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_group(&mut self, id: u32) -> Result<bool, Error> {
        let Some(&run) = self.groups.get(&id) else { return Ok(false) };
        self.exact.take(&mut self.pool, group_key(id))?;
        self.groups.remove(&id);
        self.point_vrfs(id, 0);
        let hops = self.member_cells(run);
        let count = members(self.memory(), run).len() as u32;
        self.pool.retire(run, group_cells(count));
        for cell in hops.into_values() {
            self.pool.retire(cell, 1);
        }
        Ok(true)
    }

    /// Points every VRF of a group to the group's run; 0 if the group was removed.
    fn point_vrfs(&mut self, id: u32, run: u32) {
        let memory = self.pool.memory();
        for &cell in self.vrfs.values() {
            if group_id(&memory.read(cell)) == id {
                memory.store32(cell, offset_of!(vrf, by_role), run);
                if run == 0 {
                    memory.store32(cell, offset_of!(vrf, group_id), 0);
                }
            }
        }
    }

    /// The cells of a group's next hops, by address.
    fn member_cells(&self, run: u32) -> HashMap<IpAddr, u32> {
        members(self.memory(), run)
            .into_iter()
            .filter(|cell| kind_of(self.memory(), *cell) == layout::NEXT_HOP_VTEP)
            .map(|cell| (next_hop_address(self.memory(), cell), cell))
            .collect()
    }

    /// Forgets groups that packets cannot be sent by, or that lead to another group's or a node's cells. When they are
    /// written again they get new cells; the old ones are not used again until the tables are adopted.
    pub(super) fn forget_damaged_groups(&mut self) {
        let mut used: HashMap<u32, u32> = HashMap::new();
        for &run in self.groups.values() {
            let cells: HashSet<u32> = members(self.memory(), run).into_iter().collect();
            cells.into_iter().for_each(|cell| *used.entry(cell).or_default() += 1);
        }
        self.vteps.values().for_each(|vtep| *used.entry(vtep.cell).or_default() += 1);
        let is_whole = |(id, run): (&u32, &u32)| {
            let found = self.visible_group(*id).is_some_and(|(cell, _)| cell == *run);
            found && members(self.memory(), *run).iter().all(|cell| used[cell] == 1)
        };
        let whole =
            self.groups.iter().filter(|group| is_whole(*group)).map(|(id, run)| (*id, *run)).collect();
        self.groups = whole;
    }

    /// The cell and vIPs of the group that lookups find; `None` if packets cannot be sent by it.
    pub(super) fn visible_group(&self, id: u32) -> Option<(u32, Vec<IpAddr>)> {
        let run = self.exact.get(self.memory(), group_key(id))?.next;
        let cells =
            self.memory().contains(run, 1).then(|| self.memory().load32(run, offset_of!(group, count)))?;
        if !(1..=layout::GROUP_BUCKETS_MAX).contains(&cells)
            || !self.memory().contains(run, group_cells(cells))
        {
            return None;
        }
        let cells = members(self.memory(), run);
        let is_hop = |cell: &u32| kind_of(self.memory(), *cell) == layout::NEXT_HOP_VTEP;
        let vips = || cells.iter().map(|cell| next_hop_address(self.memory(), *cell)).collect();
        cells.iter().all(is_hop).then(|| (run, vips()))
    }

    fn group_at(&self, id: u32, run: u32) -> Group {
        let vips = members(self.memory(), run).into_iter().map(|cell| next_hop_address(self.memory(), cell));
        Group { id, vips: vips.collect() }
    }

    /// The groups, in the order of their identifiers.
    pub fn groups(&self) -> impl Iterator<Item = Group> + '_ {
        self.groups.iter().map(|(&id, &run)| self.group_at(id, run))
    }
}
