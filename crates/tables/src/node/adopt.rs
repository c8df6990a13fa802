//! Taking over tables that another writer left, maybe killed in the middle of a
//! change. Readers go on all the while.

use super::NodeTables;
use super::directs::direct_at;
use super::groups::{group_cells, members};
use super::ports::{PORT_CELLS, address_keys, port_mac};
use super::underlay::{Hop, hop_address, kind_of};
use super::vrfs::{count_routes, roots, set_route_count};
use crate::error::Error;
use crate::exact::{Entry, Exact, Key, Survey};
use crate::grace::Grace;
use crate::layout::{self, port, superblock, vrf};
use crate::lpm;
use crate::memory::Memory;
use crate::pool::{Pool, Used};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::offset_of;
use std::net::IpAddr;

/// What the walk from the roots found.
#[derive(Default)]
struct Found {
    hops: HashMap<IpAddr, Hop>,
    vips: BTreeMap<IpAddr, u32>,
    groups: BTreeMap<u32, u32>,
    vrfs: BTreeMap<u32, u32>,
    ports: BTreeMap<u32, u32>,
    endpoints: u64,
    directs: u64,
    /// Entries that lead to nothing sound.
    refused: HashSet<Key>,
}

fn check_superblock(memory: &Memory) -> Result<superblock, Error> {
    if memory.cells() <= layout::CELL_FIRST_FREE || !memory.is_laid_out() {
        return Err(Error::NotTables);
    }
    let block: superblock = memory.read(0);
    if block.layout_version != layout::TABLES_LAYOUT_VERSION {
        let known = layout::TABLES_LAYOUT_VERSION;
        return Err(Error::LayoutVersion { found: block.layout_version, known });
    }
    if block.cells != u64::from(memory.cells()) {
        return Err(Error::Capacity { laid_out: block.cells, found: u64::from(memory.cells()) });
    }
    Ok(block)
}

impl Found {
    fn walk(memory: &Memory, exact: &Exact, survey: &Survey, used: &mut Used) -> Result<Self, Error> {
        let mut found = Self::default();
        for &(key, entry) in &survey.others {
            match key {
                Key::Index { vni: layout::EXACT_GROUP_VNI, id } if id != 0 => {
                    found.group(memory, used, key, id, entry.next)?
                }
                Key::Index { vni: 0, id } => found.port(memory, used, key, id, entry.next)?,
                Key::Index { vni, id: 0 } => found.vrf(memory, used, key, vni, entry.next)?,
                Key::Index { .. } => {
                    found.refused.insert(key);
                }
                Key::Ip { address, .. } => found.underlay(memory, used, key, address, entry.next)?,
            }
        }
        // Endpoints and direct paths last: by now the ports, VRFs and accepted VTEPs are known. They
        // are many and lead to few cells, so each cell is looked at once.
        let mut others = HashSet::new();
        for (cell, references) in survey.references.iter() {
            if kind_of(memory, cell) == layout::NEXT_HOP_VTEP {
                found.endpoints_of(memory, used, cell, references)?;
            } else {
                others.insert(cell);
            }
        }
        if !others.is_empty() || survey.references.outside {
            let mut paths = HashSet::new();
            for (key, entry) in exact.iter(memory) {
                let tenants = matches!(key, Key::Ip { vni: 1.., .. });
                let hop = memory.contains(entry.next, 1) && !others.contains(&entry.next);
                if !tenants || hop || found.is_ports(memory, key, entry.next) {
                    continue;
                }
                if found.is_direct(memory, key, entry) && paths.insert(entry.next) {
                    used.claim(entry.next, 1)?;
                    found.directs += 1;
                } else {
                    found.refused.insert(key);
                }
            }
        }
        Ok(found)
    }

    fn group(&mut self, memory: &Memory, used: &mut Used, key: Key, id: u32, cell: u32) -> Result<(), Error> {
        if !memory.contains(cell, 1) {
            self.refused.insert(key);
            return Ok(());
        }
        let count = memory.load32(cell, offset_of!(layout::group, count));
        let sound = (1..=layout::GROUP_BUCKETS_MAX).contains(&count)
            && memory.contains(cell, group_cells(count))
            && members(memory, cell).iter().all(|&hop| kind_of(memory, hop) == layout::NEXT_HOP_VTEP);
        if !sound {
            self.refused.insert(key);
            return Ok(());
        }
        used.claim(cell, group_cells(count))?;
        let mut hops = members(memory, cell);
        hops.sort_unstable();
        hops.dedup();
        for hop in hops {
            used.claim(hop, 1)?;
        }
        self.groups.insert(id, cell);
        Ok(())
    }

    fn port(&mut self, memory: &Memory, used: &mut Used, key: Key, id: u32, cell: u32) -> Result<(), Error> {
        let sound = memory.contains(cell, PORT_CELLS)
            && kind_of(memory, cell) == layout::NEXT_HOP_PORT
            && memory.load32(cell, offset_of!(port, ifindex)) == id;
        if !sound {
            self.refused.insert(key);
            return Ok(());
        }
        used.claim(cell, PORT_CELLS)?;
        self.ports.insert(id, cell);
        Ok(())
    }

    fn vrf(&mut self, memory: &Memory, used: &mut Used, key: Key, vni: u32, cell: u32) -> Result<(), Error> {
        if !memory.contains(cell, 1) || memory.load32(cell, offset_of!(vrf, vni)) != vni {
            self.refused.insert(key);
            return Ok(());
        }
        used.claim(cell, 1)?;
        for root in roots(cell) {
            let routes = lpm::adopt(memory, root, used)?;
            set_route_count(memory, cell, root.family, routes);
        }
        self.vrfs.insert(vni, cell);
        Ok(())
    }

    fn underlay(
        &mut self,
        memory: &Memory,
        used: &mut Used,
        key: Key,
        address: IpAddr,
        cell: u32,
    ) -> Result<(), Error> {
        let kind = kind_of(memory, cell);
        let known = kind == layout::NEXT_HOP_VTEP || kind == layout::NEXT_HOP_VIP;
        if !known || hop_address(memory, cell) != address {
            self.refused.insert(key);
            return Ok(());
        }
        used.claim(cell, 1)?;
        if kind == layout::NEXT_HOP_VIP {
            self.vips.insert(address, cell);
        } else {
            self.hops.insert(address, Hop { cell, references: 0, registered: true });
        }
        Ok(())
    }

    /// So many endpoints lead to this VTEP.
    fn endpoints_of(
        &mut self,
        memory: &Memory,
        used: &mut Used,
        cell: u32,
        references: u64,
    ) -> Result<(), Error> {
        let address = hop_address(memory, cell);
        match self.hops.get_mut(&address) {
            Some(hop) if hop.cell == cell => hop.references = references,
            Some(_) => return Err(Error::Corrupt(format!("two cells for the node {address}"))),
            None => {
                // Removed as a sender, alive for its endpoints.
                used.claim(cell, 1)?;
                self.hops.insert(address, Hop { cell, references, registered: false });
            }
        }
        self.endpoints += references;
        Ok(())
    }

    /// A direct path of a VRF that is there, to a host that is accepted.
    fn is_direct(&self, memory: &Memory, key: Key, entry: Entry) -> bool {
        direct_at(memory, key, entry).is_some_and(|(path, _)| {
            self.vrfs.contains_key(&path.vni.get())
                && self.hops.get(&path.host).is_some_and(|hop| hop.registered)
        })
    }

    /// The cell is a port's that is found by its interface, and has this address.
    fn is_ports(&self, memory: &Memory, key: Key, cell: u32) -> bool {
        if kind_of(memory, cell) != layout::NEXT_HOP_PORT {
            return false;
        }
        let ifindex = memory.load32(cell, offset_of!(port, ifindex));
        self.ports.get(&ifindex) == Some(&cell) && address_keys(&memory.read(cell)).contains(&key)
    }
}

impl NodeTables {
    /// Takes over tables that a predecessor left: checks them, rebuilds what was
    /// its private memory, and finishes or takes back what it had half done.
    ///
    /// # Errors
    /// [`Error::NotTables`], [`Error::LayoutVersion`], [`Error::Capacity`],
    /// [`Error::Corrupt`]; the tables are then better made anew. [`Error::Grace`].
    pub fn adopt(memory: Memory, grace: impl Grace + 'static) -> Result<Self, Error> {
        let block = check_superblock(&memory)?;
        let mut used = Used::new(&memory);
        let (exact, survey) = Exact::adopt(&memory, &mut used, &grace)?;
        let found = Found::walk(&memory, &exact, &survey, &mut used)?;
        let pool = Pool::with_used(memory, Box::new(grace), &used);
        let mut tables = Self::with(pool, exact);
        tables.hops = found.hops;
        tables.vips = found.vips;
        tables.groups = found.groups;
        tables.vrfs = found.vrfs;
        tables.ports = found.ports;
        tables.endpoints = found.endpoints;
        tables.directs = found.directs;
        // First nothing leads to free cells any more, which takes no memory;
        // then readers that came by such a link, or by what the predecessor
        // unlinked, are waited for; only then cells are taken.
        tables.repair_vrfs();
        tables.point_all_ports();
        tables.unlink_refused(found.refused)?;
        tables.pool.flush()?;
        tables.exact.repair(&mut tables.pool, &survey)?;
        tables.link_all_ports()?;
        let generation = block.generation.wrapping_add(1).max(1);
        tables.memory().store32(0, offset_of!(superblock, generation), generation);
        Ok(tables)
    }

    /// Groups, counters and counts of VRFs.
    fn repair_vrfs(&mut self) {
        let memory = self.pool.memory();
        for &cell in self.vrfs.values() {
            let known: vrf = memory.read(cell);
            // Without an id the word is no group, but a gateway's.
            if known.group_id != 0 {
                let group = self.groups.get(&known.group_id).copied().unwrap_or(0);
                if known.group != group {
                    memory.store32(cell, offset_of!(vrf, group), group);
                }
                if group == 0 {
                    memory.store32(cell, offset_of!(vrf, group_id), 0);
                }
            }
            if known.counters != 0 && !self.counters.claim(known.counters) {
                memory.store32(cell, offset_of!(vrf, counters), 0);
            }
            self.routes += count_routes(memory, cell);
        }
    }

    /// Ports lead to their VRFs.
    fn point_all_ports(&mut self) {
        let memory = self.pool.memory();
        for &cell in self.ports.values() {
            let vni = memory.load32(cell, offset_of!(port, vni));
            let vrf = self.vrfs.get(&vni).copied().unwrap_or(0);
            if memory.load32(cell, offset_of!(port, vrf)) != vrf {
                memory.store32(cell, offset_of!(port, vrf), vrf);
            }
        }
    }

    /// Entries that led to nothing sound go. An address of a port, which led to
    /// the port's cells of before, leads to the present ones, so that no packet
    /// for it is lost in the meantime.
    fn unlink_refused(&mut self, refused: HashSet<Key>) -> Result<(), Error> {
        let memory = self.pool.memory();
        let ports = self.ports.values().map(|&cell| (cell, memory.read::<port>(cell)));
        let owners: HashMap<Key, Entry> = ports
            .flat_map(|(cell, port)| {
                let entry = Entry { mac: port_mac(&port), next: cell };
                address_keys(&port).into_iter().map(move |key| (key, entry))
            })
            .collect();
        for key in refused {
            match owners.get(&key) {
                Some(&entry) => self.exact.put_back(&mut self.pool, key, entry)?,
                None => drop(self.exact.take(&mut self.pool, key)?),
            }
        }
        Ok(())
    }

    /// All addresses of ports lead to them.
    fn link_all_ports(&mut self) -> Result<(), Error> {
        let cells: Vec<u32> = self.ports.values().copied().collect();
        for cell in cells {
            let known: port = self.memory().read(cell);
            self.link_port(&known, cell)?;
        }
        Ok(())
    }
}
