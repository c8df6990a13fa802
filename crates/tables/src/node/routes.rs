//! Changes to the routes of VRFs, one by one and in bulk.

use super::NodeTables;
use super::vrfs::{count_offset, root_of, roots, set_route_count};
use crate::encoding::{HopCell, is_hop};
use crate::entries::{Route, Target};
use crate::error::Error;
use crate::layout;
use crate::lpm::{self, Prefix};
use crate::usage::BulkResult;
use sluice_types::{IpNet, Vni};
use std::collections::HashSet;
use std::net::IpAddr;

/// The routes of a bulk for one VRF and family are built at once if they are at least this many, and at least
/// half as many as the VRF already has.
const BUILD_MIN: usize = 64;

/// The cell of a route, to which its leaf leads.
pub(super) fn next_hop_cell(leaf: u32) -> Option<u32> {
    let is_next_hop = leaf >> layout::LEAF_SCOPE_SHIFT == layout::SCOPE_NEXT_HOP;
    is_next_hop.then_some(leaf & layout::LEAF_ARGUMENT_MASK)
}

impl NodeTables {
    /// Adds or changes a route.
    ///
    /// # Errors
    /// [`Error::UnknownVni`], [`Error::Full`].
    pub fn upsert_route(&mut self, route: &Route) -> Result<bool, Error> {
        let &cell = self.vrfs.get(&route.vni.get()).ok_or(Error::UnknownVni(route.vni))?;
        let (family, prefix) = Prefix::from_net(route.prefix);
        let count = self.memory().load32(cell, count_offset(family));
        let root = root_of(cell, family);
        let next_hop = match route.target.to_cell(route.vni) {
            Some(content) => {
                let old = lpm::leaf_of(self.memory(), root, prefix);
                if old.and_then(|leaf| Target::from_leaf(self.memory(), leaf)) == Some(route.target) {
                    return Ok(false);
                }
                Some(self.write_next_hop(content)?)
            }
            None => None,
        };
        let leaf = route.target.to_leaf(next_hop.unwrap_or(0));
        let old = lpm::insert(&mut self.pool, root, count, prefix, leaf).inspect_err(|_| {
            if let Some(unused) = next_hop {
                self.peerings.remove(&unused);
                self.pool.give_back(unused, 1);
            }
        })?;
        match old {
            Some(old) if old != leaf => self.retire_next_hop(old),
            Some(_) => {}
            None => {
                set_route_count(self.memory(), cell, family, count + 1);
                self.routes += 1;
            }
        }
        if old != Some(leaf) {
            self.note_route(route.vni, route.prefix, Some(route.target));
        }
        Ok(old != Some(leaf))
    }

    /// Writes the cell of a route, to which nothing leads yet.
    fn write_next_hop(&mut self, content: HopCell) -> Result<u32, Error> {
        let cell = self.pool.allocate(1)?;
        match content {
            HopCell::Instance(hop) => self.memory().write(cell, &hop),
            HopCell::Peering(peering) => {
                self.memory().write(cell, &peering);
                self.peerings.insert(cell);
            }
        }
        Ok(cell)
    }

    /// Retires the cell of a route that was unlinked, if it had one.
    fn retire_next_hop(&mut self, leaf: u32) {
        // In damaged memory it may be another entry's cell.
        let cell = next_hop_cell(leaf).filter(|&cell| is_hop(self.memory(), cell));
        self.retire_next_hop_cells(cell);
    }

    /// Retires cells of routes.
    pub(super) fn retire_next_hop_cells(&mut self, cells: impl IntoIterator<Item = u32>) {
        for cell in cells {
            self.peerings.remove(&cell);
            self.pool.retire(cell, 1);
        }
    }

    /// The cells of a VRF's routes.
    pub(super) fn next_hop_cells(&self, vrf_cell: u32) -> Vec<u32> {
        let leaves = roots(vrf_cell).into_iter().flat_map(|root| lpm::iter(self.memory(), root));
        leaves.filter_map(|(_, leaf)| next_hop_cell(leaf)).collect()
    }

    /// Adds or changes many routes; those that fail are left as they were. Of equal prefixes the last counts.
    /// If a VRF gets many routes compared with those it has, all of them are built again and published by one
    /// store. This is much faster, and takes twice the memory until the old ones are freed.
    pub fn upsert_routes(&mut self, routes: &[Route]) -> BulkResult {
        let part_of = |route: &Route| (route.vni, route.prefix.addr().is_ipv6());
        let mut bulk = BulkResult::default();
        if routes.is_sorted_by_key(part_of) {
            let mut from = 0;
            for part in routes.chunk_by(|a, b| part_of(a) == part_of(b)) {
                self.upsert_part(part.iter(), from.., &mut bulk);
                from += part.len();
            }
            return bulk;
        }
        let mut order: Vec<usize> = (0..routes.len()).collect();
        order.sort_by_key(|&i| part_of(&routes[i]));
        for part in order.chunk_by(|&a, &b| part_of(&routes[a]) == part_of(&routes[b])) {
            self.upsert_part(part.iter().map(|&i| &routes[i]), part.iter().copied(), &mut bulk);
        }
        bulk
    }

    /// Adds or changes routes of one VRF and family; `numbers` are their indices in the bulk.
    fn upsert_part<'a>(
        &mut self,
        part: impl ExactSizeIterator<Item = &'a Route> + Clone,
        numbers: impl Iterator<Item = usize>,
        bulk: &mut BulkResult,
    ) {
        if let Some(changed) = self.build_routes(part.clone()) {
            bulk.changed += changed;
            return;
        }
        for (route, i) in part.zip(numbers) {
            bulk.record(i, self.upsert_route(route));
        }
    }

    /// Builds all routes of one VRF and family again, together with `more`. Returns how many changed, or
    /// `None` if that is not worthwhile or failed: then nothing has changed.
    fn build_routes<'a>(&mut self, more: impl ExactSizeIterator<Item = &'a Route> + Clone) -> Option<usize> {
        let (length, first) = (more.len(), more.clone().next()?);
        let &cell = self.vrfs.get(&first.vni.get())?;
        let (family, _) = Prefix::from_net(first.prefix);
        let count = self.memory().load32(cell, count_offset(family));
        let has_next_hop = |route: &Route| route.target.to_cell(route.vni).is_some();
        if length < BUILD_MIN || length < count as usize / 2 || more.clone().any(has_next_hop) {
            return None;
        }
        let routes = more.clone();
        let entries = more.map(|route| (Prefix::from_net(route.prefix).1, route.target.to_leaf(0)));
        let before = self.next_hop_cells(cell);
        let merged = lpm::merge(&mut self.pool, root_of(cell, family), entries).ok()?;
        set_route_count(self.memory(), cell, family, merged.routes);
        self.routes += u64::from(merged.routes - count);
        if merged.changed > 0 {
            self.note_routes(first.vni, routes);
        }
        if !before.is_empty() {
            let kept: HashSet<u32> = self.next_hop_cells(cell).into_iter().collect();
            self.retire_next_hop_cells(before.into_iter().filter(|hop| !kept.contains(hop)));
        }
        Some(merged.changed)
    }

    /// Withdraws a route. This does not fail for lack of memory.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_route(&mut self, vni: Vni, prefix: IpNet) -> Result<bool, Error> {
        let Some(&cell) = self.vrfs.get(&vni.get()) else { return Ok(false) };
        let (family, key) = Prefix::from_net(prefix);
        let count = self.memory().load32(cell, count_offset(family));
        let old = lpm::remove(&mut self.pool, root_of(cell, family), count, key)?;
        if let Some(leaf) = old {
            self.note_route(vni, prefix, None);
            set_route_count(self.memory(), cell, family, count - 1);
            self.routes -= 1;
            self.retire_next_hop(leaf);
        }
        Ok(old.is_some())
    }

    /// Adds or changes the route of a prefix whose addresses an instance has that migrates: packets for them follow the direct
    /// path of `address`, which is one of the instance's own.
    ///
    /// # Errors
    /// [`Error::AddressTaken`] if the prefix has a route of another kind, [`Error::UnknownVni`], [`Error::Full`].
    pub fn upsert_moved_route(&mut self, vni: Vni, prefix: IpNet, address: IpAddr) -> Result<bool, Error> {
        if self.route_target(vni, prefix).is_some_and(|known| !matches!(known, Target::Moved(_))) {
            let (address, holder) = (prefix.addr(), format!("another route of {prefix}"));
            return Err(Error::AddressTaken { vni: vni.get(), address, holder });
        }
        self.upsert_route(&Route { vni, prefix, target: Target::Moved(address) })
    }

    /// Removes the route of a prefix if it is one of an instance that migrates.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_moved_route(&mut self, vni: Vni, prefix: IpNet) -> Result<bool, Error> {
        match self.route_target(vni, prefix) {
            Some(Target::Moved(_)) => self.remove_route(vni, prefix),
            _ => Ok(false),
        }
    }

    /// The target of the route with exactly this prefix.
    pub(super) fn route_target(&self, vni: Vni, prefix: IpNet) -> Option<Target> {
        let &cell = self.vrfs.get(&vni.get())?;
        let (family, prefix) = Prefix::from_net(prefix);
        let leaf = lpm::leaf_of(self.memory(), root_of(cell, family), prefix)?;
        Target::from_leaf(self.memory(), leaf)
    }

    /// All routes of all VRFs.
    pub fn routes(&self) -> impl Iterator<Item = Route> + '_ {
        self.vrfs.iter().flat_map(|(&vni, &cell)| self.routes_at(vni, cell))
    }

    /// The routes of a VNI.
    pub fn routes_of(&self, vni: Vni) -> Vec<Route> {
        self.vrfs.get(&vni.get()).map(|&cell| self.routes_at(vni.get(), cell).collect()).unwrap_or_default()
    }

    fn routes_at(&self, vni: u32, cell: u32) -> impl Iterator<Item = Route> + '_ {
        roots(cell).into_iter().flat_map(move |root| {
            lpm::iter(self.memory(), root).filter_map(move |(prefix, leaf)| {
                Some(Route {
                    vni: Vni::new(vni).ok()?,
                    prefix: prefix.to_net(root.family),
                    target: Target::from_leaf(self.memory(), leaf)?,
                })
            })
        })
    }
}
