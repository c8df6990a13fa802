//! Adoption: taking over tables that another writer left, possibly because it was killed in the middle of a
//! change. Readers continue meanwhile.
//!
//! ```text
//!   check the superblock -> survey the exact match -> walk from its entries, mark all reachable cells
//!     -> unlink what is damaged (allocates nothing) -> grace period -> complete half-done changes
//! ```

use super::NodeTables;
use super::direct_paths::direct_path_at;
use super::groups::{group_cells, members};
use super::policies::policy_of_index;
use super::ports::{PORT_CELLS, address_entries, has_address};
use super::public;
use super::routes::next_hop_cell;
use super::services::{self, service_of_index};
use super::sources;
use super::underlay::{Vtep, next_hop_address};
use super::vrfs::{count_routes, roots, set_route_count};
use crate::encoding::{group_id, is_hop, kind_of};
use crate::entries::{DirectPath, Route, Target};
use crate::error::Error;
use crate::exact::{Entry, Exact, Key, Survey};
use crate::grace::Grace;
use crate::layout::{self, port, superblock, vrf};
use crate::lpm;
use crate::memory::Memory;
use crate::policy;
use crate::pool::{Pool, ReachableCells};
use sluice_types::{ROUTER_MAC, Vni};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::offset_of;
use std::net::IpAddr;

/// What the walk from the entries of the exact match found.
#[derive(Default)]
struct Found {
    vteps: HashMap<IpAddr, Vtep>,
    vips: BTreeMap<IpAddr, u32>,
    groups: BTreeMap<u32, u32>,
    policies: BTreeMap<u32, u32>,
    vrfs: BTreeMap<u32, u32>,
    ports: BTreeMap<u32, u32>,
    services: BTreeMap<u32, services::Known>,
    /// The VRF of VNI 0, if there is one.
    outside: u32,
    /// Cells of public prefixes that are found from outside or from inside, and of NAT gateways.
    public_cells: HashSet<u32>,
    /// By VNI.
    nats: BTreeMap<u32, u32>,
    /// Cells of routes to peers through meters.
    peerings: HashSet<u32>,
    endpoints: u64,
    direct_paths: u64,
    /// Number of fixed paths by VNI and host.
    fixed_paths: HashMap<(u32, IpAddr), u64>,
    /// VNI and cell of each sender.
    senders: HashSet<(u32, u32)>,
    /// Routes that lead to ports.
    port_routes: Vec<Route>,
    /// Entries that lead to nothing valid.
    invalid: HashSet<Key>,
}

fn check_superblock(memory: &Memory) -> Result<superblock, Error> {
    if memory.cells() <= layout::CELL_FIRST_FREE || !memory.is_laid_out() {
        return Err(Error::NotTables);
    }
    let block: superblock = memory.read(0);
    if !(layout::TABLES_LAYOUT_OLDEST..=layout::TABLES_LAYOUT_VERSION).contains(&block.layout_version) {
        let known = layout::TABLES_LAYOUT_VERSION;
        return Err(Error::LayoutVersion { found: block.layout_version, known });
    }
    if block.cells != u64::from(memory.cells()) {
        return Err(Error::Capacity { laid_out: block.cells, found: u64::from(memory.cells()) });
    }
    Ok(block)
}

impl Found {
    fn walk(
        memory: &Memory,
        exact: &Exact,
        survey: &Survey,
        reachable: &mut ReachableCells,
    ) -> Result<Self, Error> {
        let mut found = Self::default();
        for &(key, entry) in &survey.others {
            match key {
                Key::Index { vni, .. } if NodeTables::is_sender_entry(memory, exact, key, entry.next) => {
                    found.senders.insert((vni, entry.next));
                }
                Key::Index { vni: layout::EXACT_GROUP_VNI, id } if id != 0 => {
                    found.add_group(memory, reachable, key, id, entry.next)?
                }
                Key::Index { vni: 0, id: 0 } => {
                    if public::adopt_outside(memory, entry.next, reachable, &mut found.public_cells)? {
                        found.outside = entry.next;
                    } else {
                        found.invalid.insert(key);
                    }
                }
                Key::Index { vni: 0, id } => match (policy_of_index(id), service_of_index(id)) {
                    (Some(id), _) => found.add_policy(memory, reachable, key, id, entry.next)?,
                    (_, Some(id)) => match services::adopt(memory, entry.next, id, reachable)? {
                        Some(known) => drop(found.services.insert(id, known)),
                        None => drop(found.invalid.insert(key)),
                    },
                    _ => found.add_port(memory, reachable, key, id, entry.next)?,
                },
                Key::Index { vni, id: 0 } => found.add_vrf(memory, reachable, key, vni, entry.next)?,
                Key::Index { .. } => {
                    found.invalid.insert(key);
                }
                Key::Ip { address, .. } => found.add_underlay(memory, reachable, key, address, entry.next)?,
            }
        }
        // Endpoints and direct paths come last: the ports, VRFs and accepted VTEPs are known by now. There
        // are many of them, and they lead to few cells, so each cell is looked at once.
        let mut other_cells = HashSet::new();
        for (cell, endpoints) in survey.references.iter() {
            if kind_of(memory, cell) == layout::NEXT_HOP_VTEP {
                found.add_endpoints(memory, reachable, cell, endpoints)?;
            } else {
                other_cells.insert(cell);
            }
        }
        if !other_cells.is_empty() || survey.references.leads_outside {
            let mut paths = HashSet::new();
            for (key, entry) in exact.iter(memory) {
                let is_tenant = matches!(key, Key::Ip { vni: 1.., .. });
                let is_endpoint = memory.contains(entry.next, 1) && !other_cells.contains(&entry.next);
                if !is_tenant
                    || is_endpoint
                    || found.is_address_of_port(memory, key, entry)
                    || found.count_service_address(key, entry)
                {
                    continue;
                }
                match found.direct_path(memory, key, entry).filter(|_| paths.insert(entry.next)) {
                    Some(path) => {
                        reachable.claim(entry.next, 1)?;
                        found.direct_paths += 1;
                        let fixed = found.fixed_paths.entry((path.vni.get(), path.host)).or_default();
                        *fixed += u64::from(path.fixed);
                    }
                    None => {
                        found.invalid.insert(key);
                    }
                }
            }
        }
        Ok(found)
    }

    fn add_group(
        &mut self,
        memory: &Memory,
        reachable: &mut ReachableCells,
        key: Key,
        id: u32,
        cell: u32,
    ) -> Result<(), Error> {
        if !memory.contains(cell, 1) {
            self.invalid.insert(key);
            return Ok(());
        }
        let count = memory.load32(cell, offset_of!(layout::group, count));
        let is_valid = (1..=layout::GROUP_BUCKETS_MAX).contains(&count)
            && memory.contains(cell, group_cells(count))
            && members(memory, cell).iter().all(|&hop| kind_of(memory, hop) == layout::NEXT_HOP_VTEP);
        if !is_valid {
            self.invalid.insert(key);
            return Ok(());
        }
        reachable.claim(cell, group_cells(count))?;
        let mut vteps = members(memory, cell);
        vteps.sort_unstable();
        vteps.dedup();
        for hop in vteps {
            reachable.claim(hop, 1)?;
        }
        self.groups.insert(id, cell);
        Ok(())
    }

    fn add_policy(
        &mut self,
        memory: &Memory,
        reachable: &mut ReachableCells,
        key: Key,
        id: u32,
        cell: u32,
    ) -> Result<(), Error> {
        if !policy::is_policy(memory, cell, id) {
            self.invalid.insert(key);
            return Ok(());
        }
        policy::adopt(memory, cell, reachable)?;
        self.policies.insert(id, cell);
        Ok(())
    }

    fn add_port(
        &mut self,
        memory: &Memory,
        reachable: &mut ReachableCells,
        key: Key,
        id: u32,
        cell: u32,
    ) -> Result<(), Error> {
        let is_valid = memory.contains(cell, PORT_CELLS)
            && kind_of(memory, cell) == layout::NEXT_HOP_PORT
            && memory.load32(cell, offset_of!(port, ifindex)) == id;
        if !is_valid {
            self.invalid.insert(key);
            return Ok(());
        }
        reachable.claim(cell, PORT_CELLS)?;
        sources::adopt(memory, cell, reachable)?;
        self.ports.insert(id, cell);
        Ok(())
    }

    fn add_vrf(
        &mut self,
        memory: &Memory,
        reachable: &mut ReachableCells,
        key: Key,
        vni: u32,
        cell: u32,
    ) -> Result<(), Error> {
        if !memory.contains(cell, 1) || memory.load32(cell, offset_of!(vrf, vni)) != vni {
            self.invalid.insert(key);
            return Ok(());
        }
        reachable.claim(cell, 1)?;
        for root in roots(cell) {
            let routes = lpm::adopt(memory, root, reachable)?;
            set_route_count(memory, cell, root.family, routes);
            for (prefix, leaf) in lpm::iter(memory, root) {
                if let (Ok(vni), Some(target @ Target::Port(_))) =
                    (Vni::new(vni), Target::from_leaf(memory, leaf))
                {
                    let prefix = prefix.to_net(root.family);
                    self.port_routes.push(Route { vni, prefix, target });
                }
                let Some(hop) = next_hop_cell(leaf) else { continue };
                if !is_hop(memory, hop) {
                    return Err(Error::Corrupt(format!(
                        "a route of VNI {vni} has no next hop at cell {hop}"
                    )));
                }
                reachable.claim(hop, 1)?;
                if kind_of(memory, hop) == layout::NEXT_HOP_PEERING {
                    self.peerings.insert(hop);
                }
            }
        }
        if let Some(nat) = public::adopt_internet(memory, cell, reachable, &mut self.public_cells)? {
            self.nats.insert(vni, nat);
        }
        self.vrfs.insert(vni, cell);
        Ok(())
    }

    fn add_underlay(
        &mut self,
        memory: &Memory,
        reachable: &mut ReachableCells,
        key: Key,
        address: IpAddr,
        cell: u32,
    ) -> Result<(), Error> {
        let kind = kind_of(memory, cell);
        let known = kind == layout::NEXT_HOP_VTEP || kind == layout::NEXT_HOP_VIP;
        if !known || next_hop_address(memory, cell) != address {
            self.invalid.insert(key);
            return Ok(());
        }
        reachable.claim(cell, 1)?;
        if kind == layout::NEXT_HOP_VIP {
            self.vips.insert(address, cell);
        } else {
            self.vteps.insert(address, Vtep { cell, endpoints: 0, accepted: true });
        }
        Ok(())
    }

    /// Adds the endpoints that lead to a VTEP.
    fn add_endpoints(
        &mut self,
        memory: &Memory,
        reachable: &mut ReachableCells,
        cell: u32,
        endpoints: u64,
    ) -> Result<(), Error> {
        let address = next_hop_address(memory, cell);
        match self.vteps.get_mut(&address) {
            Some(hop) if hop.cell == cell => hop.endpoints = endpoints,
            Some(_) => return Err(Error::Corrupt(format!("the node {address} has two cells"))),
            None => {
                // The VTEP was removed; its cell remains for its endpoints.
                reachable.claim(cell, 1)?;
                self.vteps.insert(address, Vtep { cell, endpoints, accepted: false });
            }
        }
        self.endpoints += endpoints;
        Ok(())
    }

    /// The direct path of an entry, if it is one of a known VRF to an accepted host.
    fn direct_path(&self, memory: &Memory, key: Key, entry: Entry) -> Option<DirectPath> {
        let (path, _) = direct_path_at(memory, key, entry)?;
        let is_valid = self.vrfs.contains_key(&path.vni.get())
            && self.vteps.get(&path.host).is_some_and(|hop| hop.accepted);
        is_valid.then_some(path)
    }

    /// Counts an address of a mount. False if the entry leads to no known service.
    fn count_service_address(&mut self, key: Key, entry: Entry) -> bool {
        let Key::Ip { vni, .. } = key else { return false };
        let known = self.services.values_mut().find(|known| known.cell == entry.next);
        let known = known.filter(|_| entry.mac == ROUTER_MAC.to_u64());
        known.is_some_and(|known| {
            *known.addresses.entry(vni).or_default() += 1;
            true
        })
    }

    /// True if the entry leads to a port that is found by its interface and has this address.
    fn is_address_of_port(&self, memory: &Memory, key: Key, entry: Entry) -> bool {
        if kind_of(memory, entry.next) != layout::NEXT_HOP_PORT {
            return false;
        }
        let ifindex = memory.load32(entry.next, offset_of!(port, ifindex));
        self.ports.get(&ifindex) == Some(&entry.next) && has_address(memory, key, entry)
    }
}

impl NodeTables {
    /// Takes over tables that another writer left: checks them, rebuilds the private memory of that writer,
    /// and completes or undoes a change that it left half done.
    ///
    /// # Errors
    /// [`Error::NotTables`], [`Error::LayoutVersion`], [`Error::Capacity`] or [`Error::Corrupt`] if the
    /// memory holds no usable tables: they must then be created again. [`Error::Grace`].
    pub fn adopt(memory: Memory, grace: impl Grace + 'static) -> Result<Self, Error> {
        let block = check_superblock(&memory)?;
        let mut reachable = ReachableCells::new(&memory);
        let (exact, survey) = Exact::adopt(&memory, &mut reachable, &grace)?;
        let found = Found::walk(&memory, &exact, &survey, &mut reachable)?;
        let pool = Pool::with_reachable(memory, Box::new(grace), &reachable);
        let mut tables = Self::with(pool, exact);
        tables.vteps = found.vteps;
        tables.vips = found.vips;
        tables.groups = found.groups;
        tables.policies = found.policies;
        tables.vrfs = found.vrfs;
        tables.ports = found.ports;
        tables.services = found.services;
        tables.outside = found.outside;
        tables.nats = found.nats;
        tables.peerings = found.peerings;
        tables.endpoints = found.endpoints;
        tables.direct_paths = found.direct_paths;
        // First unlink everything that leads to free cells, without allocating any. Then wait for readers
        // that followed such a link, or one that the predecessor removed. Only then are cells allocated.
        tables.count_all_bonded();
        tables.repair_vrfs();
        tables.point_all_ports();
        tables.point_all_senders(&found.senders)?;
        tables.store_vip_slots();
        tables.point_all_to_vips(found.public_cells);
        tables.repair_nat_ring();
        tables.unlink_invalid(found.invalid)?;
        tables.pool.flush()?;
        tables.exact.repair(&mut tables.pool, &survey)?;
        let mut further_senders = found.fixed_paths;
        for sender in tables.service_senders() {
            *further_senders.entry(sender).or_default() += 1;
        }
        tables.adopt_senders(found.senders, &survey.senders, &further_senders)?;
        tables.link_all_ports(found.port_routes)?;
        tables.link_all_sources()?;
        tables.link_all_nat_gateways()?;
        // The predecessor may have ended while it changed the role of a host.
        tables.store_flags_of_paths();
        // From here on there may be entries that an agent of an older version does not know.
        tables.memory().store32(0, offset_of!(superblock, layout_version), layout::TABLES_LAYOUT_VERSION);
        let generation = block.generation.wrapping_add(1).max(1);
        tables.memory().store32(0, offset_of!(superblock, generation), generation);
        Ok(tables)
    }

    /// Counts the bonding vNICs of each VNI, and flags its VRF.
    fn count_all_bonded(&mut self) {
        let vnis: Vec<u32> = self.ports.values().filter_map(|&cell| self.bonded_vni(cell)).collect();
        for vni in vnis {
            *self.bonded.entry(vni).or_default() += 1;
        }
        self.vrfs.keys().for_each(|vni| self.flag_bonded(*vni));
    }

    /// Repairs each VRF's group and counter index, and counts its routes.
    fn repair_vrfs(&mut self) {
        let memory = self.pool.memory();
        for &cell in self.vrfs.values() {
            let known: vrf = memory.read(cell);
            // Without an identifier, `by_role` is a gateway's threshold.
            if group_id(&known) != 0 {
                let group = self.groups.get(&known.group_id).copied().unwrap_or(0);
                if known.by_role != group {
                    memory.store32(cell, offset_of!(vrf, by_role), group);
                }
                if group == 0 {
                    memory.store32(cell, offset_of!(vrf, group_id), 0);
                }
            }
            if known.counters != 0 && !self.counter_indices.claim(known.counters) {
                memory.store32(cell, offset_of!(vrf, counters), 0);
            }
            self.routes += count_routes(memory, cell);
        }
    }

    /// Points the ports to their VRFs and policies. Sets the flag of those with an identity, which an older agent did not
    /// know: their packets must not lose it until the ports are written again.
    fn point_all_ports(&mut self) {
        let memory = self.pool.memory();
        for &cell in self.ports.values() {
            let vni = memory.load32(cell, offset_of!(port, vni));
            let vrf = self.vrfs.get(&vni).copied().unwrap_or(0);
            if memory.load32(cell, offset_of!(port, vrf)) != vrf {
                memory.store32(cell, offset_of!(port, vrf), vrf);
            }
            self.point_port_to_policy(cell);
            let mut known: port = memory.read(cell);
            if known.identity != 0 {
                known.flags |= layout::PORT_IDENTIFIED as u8;
                memory.update(cell, &known);
            }
        }
    }

    /// Removes entries that lead to nothing valid. An address of a port that led to previous cells of the
    /// port is pointed to the present ones instead, so that no packet for it is lost meanwhile.
    fn unlink_invalid(&mut self, invalid: HashSet<Key>) -> Result<(), Error> {
        let memory = self.pool.memory();
        let entries = self.ports.values().filter_map(|&cell| address_entries(memory, cell)).flatten();
        let owners: HashMap<Key, Entry> = entries.collect();
        for key in invalid {
            match owners.get(&key) {
                Some(&entry) => self.exact.overwrite(&mut self.pool, key, entry)?,
                None => drop(self.exact.take(&mut self.pool, key)?),
            }
        }
        Ok(())
    }

    /// Points all addresses and prefixes of ports to them, and no other prefix: `port_routes` are all routes to ports. Removes a port if there is no memory for these.
    fn link_all_ports(&mut self, port_routes: Vec<Route>) -> Result<(), Error> {
        self.remove_undelegated(port_routes)?;
        let cells: Vec<u32> = self.ports.values().copied().collect();
        for cell in cells {
            let ifindex = self.memory().load32(cell, offset_of!(port, ifindex));
            match self.link_port(cell) {
                // The predecessor ended while it added the port, for which there was too little memory. The
                // agent adds its ports again after a start, and reports this error then.
                Err(Error::Full { .. }) => drop(self.remove_port(ifindex)?),
                linked => linked?,
            }
        }
        Ok(())
    }
}
