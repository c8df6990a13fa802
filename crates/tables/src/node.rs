//! The writer of a node's tables, as agents use it: VTEPs, vIPs, groups, VRFs with routes, endpoints, ports with
//! their policies, direct paths, public prefixes, and NAT gateways.
//!
//! This file creates the tables, holds the node's own configuration and reports usage. The changes to each
//! kind of entry are in a file of their own below `node`; `adopt` takes over the tables of another writer.

mod adopt;
mod digests;
mod direct_paths;
mod endpoints;
mod groups;
mod meters;
mod nat_ring;
mod policies;
mod ports;
mod public;
mod routes;
mod senders;
mod services;
mod sources;
#[cfg(test)]
mod tests;
mod underlay;
mod vrfs;

use crate::encoding::{
    ipv4_from_word, ipv4_to_word, ipv6_from_bytes, ipv6_to_bytes, mac_from_bytes, mac_to_bytes,
};
use crate::entries::{NodeConfig, Route, Sizes, Target, UnderlayPort};
use crate::error::Error;
use crate::exact::{Exact, Hashing, PairMap};
use crate::grace::Grace;
use crate::heartbeat::AgentHeartbeat;
use crate::journal::Journal;
use crate::layout::{self, node_config, superblock};
use crate::memory::Memory;
use crate::pool::Pool;
use crate::reader::Reader;
use crate::seed::random_seed;
use crate::usage::TableUsage;
use meters::MeterTable;
pub use policies::PolicyEntry;
pub use senders::PERMIT_STEP;
use senders::Sender;
use sluice_types::{IpNet, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::mem::offset_of;
use std::net::IpAddr;
use std::time::Instant;
use underlay::Vtep;
use vrfs::CounterIndices;
pub use vrfs::CounterReset;

/// Where [`NodeTables::begin_step`] notes a step.
const OPEN_STEP: usize = offset_of!(node_config, open_step);

/// The network that a route leads to, by which direct paths may lead: not through meters.
fn peer_of(target: Target) -> Option<Vni> {
    match target {
        Target::Peer(peer) => Some(peer),
        _ => None,
    }
}

/// The writer of a node's tables.
///
/// A memory has one writer at a time; packet programs and [`Reader`]s read it meanwhile. An operation that
/// returns `bool` returns `true` if it changed the tables, and `false` if there was nothing to change. If
/// memory is short, nothing has changed. After [`Error::Grace`], a part of the change may be visible; the
/// caller repeats the operation.
///
/// What an entry leads to is complete before the store that publishes it. It is never changed in a way that
/// readers could see half of: if several words must change together, a new copy is published by one store. It
/// is reused only after a grace period. A writer that is killed between two stores leaves tables that readers
/// can use, and that [`NodeTables::adopt`] repairs.
pub struct NodeTables {
    pool: Pool,
    exact: Exact,
    // By address: the VTEPs that are accepted or that endpoints lead to.
    vteps: HashMap<IpAddr, Vtep>,
    // Cells of the vIPs by address, of groups and policies by identifier, of VRFs by VNI, of ports by interface.
    vips: BTreeMap<IpAddr, u32>,
    groups: BTreeMap<u32, u32>,
    policies: BTreeMap<u32, u32>,
    vrfs: BTreeMap<u32, u32>,
    ports: BTreeMap<u32, u32>,
    // By identifier; and number of bonding vNICs by VNI.
    services: BTreeMap<u32, services::Known>,
    bonded: BTreeMap<u32, u32>,
    // Cell of the VRF of VNI 0, with the public prefixes; 0: none. Cells of the NAT gateways by VNI.
    outside: u32,
    nats: BTreeMap<u32, u32>,
    // Of gateways with meters; and the cells of routes to peers through meters.
    meters: Option<MeterTable>,
    peerings: HashSet<u32>,
    // By VNI and cell of the VTEP; those without endpoints also in the order in which they became idle.
    senders: PairMap<Sender>,
    // VNI and cell of those whose packets are accepted, to find all of a VNI.
    entered_senders: BTreeSet<(u32, u32)>,
    idle_senders: VecDeque<(Instant, u32, u32)>,
    // Number of their entries. IPv6 hosts of a VNI may share one.
    sender_entries: u64,
    counter_indices: CounterIndices,
    counter_reset: Option<Box<dyn CounterReset>>,
    // Of gateways: what has changed lately.
    journal: Option<Journal>,
    // VNIs that were removed since the last `forget_removed_vnis`.
    forgotten_vnis: BTreeSet<Vni>,
    // Numbers of entries.
    endpoints: u64,
    direct_paths: u64,
    routes: u64,
}

impl NodeTables {
    /// Lays out empty tables. What the memory held before is lost.
    ///
    /// # Errors
    /// [`Error::TooSmall`] if the memory cannot hold empty tables of these sizes.
    pub fn create(memory: Memory, grace: impl Grace + 'static, sizes: Sizes) -> Result<Self, Error> {
        Self::create_with_digest_mask(memory, grace, sizes, u64::MAX)
    }

    /// As [`NodeTables::create`], but IPv6 digests have only the bits of `digest_mask`: for tests in which
    /// digests must conflict.
    ///
    /// # Errors
    /// As [`NodeTables::create`].
    pub fn create_with_digest_mask(
        memory: Memory,
        grace: impl Grace + 'static,
        sizes: Sizes,
        digest_mask: u64,
    ) -> Result<Self, Error> {
        if memory.cells() <= layout::CELL_FIRST_FREE {
            return Err(Error::TooSmall {
                found_cells: u64::from(memory.cells()),
                needed_cells: u64::from(layout::CELL_FIRST_FREE) + 1,
            });
        }
        memory.store64(0, offset_of!(superblock, magic), 0);
        memory.zero(0, layout::CELL_FIRST_FREE);
        let mut pool = Pool::new(memory, Box::new(grace));
        let hashing = Hashing { seed: random_seed()?, digest_mask };
        let exact = Exact::create(&mut pool, sizes.endpoints, hashing).map_err(|error| match error {
            // Besides the free cells, the roots and the pool's reserve take some.
            Error::Full { needed_cells, free_cells, total_cells } => Error::TooSmall {
                found_cells: total_cells,
                needed_cells: needed_cells + total_cells - free_cells,
            },
            other => other,
        })?;
        let memory = pool.memory();
        memory.write(
            0,
            &superblock {
                magic: 0,
                layout_version: layout::TABLES_LAYOUT_VERSION,
                generation: 1,
                cells: u64::from(memory.cells()),
                ..Default::default()
            },
        );
        memory.store64(0, offset_of!(superblock, magic), layout::TABLES_MAGIC);
        Ok(Self::with(pool, exact))
    }

    fn with(pool: Pool, exact: Exact) -> Self {
        Self {
            pool,
            exact,
            vteps: HashMap::new(),
            vips: BTreeMap::new(),
            groups: BTreeMap::new(),
            policies: BTreeMap::new(),
            vrfs: BTreeMap::new(),
            ports: BTreeMap::new(),
            services: BTreeMap::new(),
            bonded: BTreeMap::new(),
            outside: 0,
            nats: BTreeMap::new(),
            meters: None,
            peerings: HashSet::new(),
            senders: PairMap::default(),
            entered_senders: BTreeSet::new(),
            idle_senders: VecDeque::new(),
            sender_entries: 0,
            counter_indices: CounterIndices::new(),
            counter_reset: None,
            journal: None,
            forgotten_vnis: BTreeSet::new(),
            endpoints: 0,
            direct_paths: 0,
            routes: 0,
        }
    }

    /// The memory that holds the tables.
    pub fn memory(&self) -> &Memory {
        self.pool.memory()
    }

    /// A reader that gets the same answers as packets.
    pub fn reader(&self) -> Reader {
        Reader::new(self.memory().clone())
    }

    /// Number of writers that these tables have had, including this one.
    pub fn generation(&self) -> u32 {
        self.memory().load32(0, offset_of!(superblock, generation))
    }

    /// The controller's revision that is completely in the tables; 0 before the first.
    pub fn applied_revision(&self) -> u64 {
        self.memory().load64(0, offset_of!(superblock, applied_revision))
    }

    /// Records that a revision is completely in the tables.
    pub fn set_applied_revision(&mut self, revision: u64) {
        self.exact.store_counts(self.pool.memory());
        if let Some(journal) = &self.journal {
            journal.complete(revision);
        }
        self.memory().store64(0, offset_of!(superblock, applied_revision), revision);
        if revision != 0 {
            self.memory().store32(layout::CELL_NODE, OPEN_STEP, 0);
        }
    }

    /// What is written from now on belongs to a later revision than the recorded one.
    pub fn begin_step(&mut self) {
        self.memory().store32(layout::CELL_NODE, OPEN_STEP, 1);
    }

    /// The newest revision of the controller's database whose entries were all in the tables; 0 before the first. Other
    /// than [`NodeTables::applied_revision`] it stays while a snapshot is applied, which writes over the entries, and
    /// after an entry could not be written.
    pub fn complete_revision(&self) -> u64 {
        self.memory().load64(0, offset_of!(superblock, complete_revision))
    }

    /// Records the newest revision whose entries were all in the tables; 0 if entries may be missing.
    pub fn set_complete_revision(&mut self, revision: u64) {
        self.memory().store64(0, offset_of!(superblock, complete_revision), revision);
    }

    /// Id of the database's commit with which the tables last agreed completely; 0 before the first, and if it is not
    /// known. It stays while the tables have entries that the database lost.
    pub fn commit_id(&self) -> u64 {
        self.memory().load64(0, offset_of!(superblock, commit_id))
    }

    /// Records the commit with which the tables agree. Must be called before the commit's revision is recorded: if
    /// the agent is killed in between, the tables have an earlier revision of the same history.
    pub fn set_commit_id(&mut self, id: u64) {
        self.memory().store64(0, offset_of!(superblock, commit_id), id);
    }

    /// The controller database to which the revision belongs; 0 before the first.
    pub fn database_id(&self) -> u64 {
        self.memory().load64(0, offset_of!(superblock, database_id))
    }

    /// Records the database to which the revision belongs.
    pub fn set_database_id(&mut self, id: u64) {
        // Revisions of two databases cannot be compared.
        if id != self.database_id() {
            self.note_all_changes();
        }
        self.memory().store64(0, offset_of!(superblock, database_id), id);
    }

    /// The heartbeat by which this node's agent tells packet programs that it runs.
    pub fn agent_heartbeat(&self) -> AgentHeartbeat {
        AgentHeartbeat::new(self.memory().clone())
    }

    /// Notes from now on what changes of the paths that gateways give to hosts.
    pub fn keep_journal(&mut self) -> Journal {
        if let Some(journal) = &self.journal {
            return journal.clone();
        }
        // An earlier agent may have been killed in a step. It comes again, and what was written of it is no change then.
        let is_in_step = self.memory().load32(layout::CELL_NODE, OPEN_STEP) != 0;
        let revision = if is_in_step { 0 } else { self.applied_revision() };
        let journal = Journal::new(revision);
        let to_peer = |route: Route| Some((route.vni, route.prefix, peer_of(route.target)?));
        journal.adopt_routes(self.routes().filter_map(to_peer));
        self.journal = Some(journal.clone());
        journal
    }

    /// Notes that paths of a network to addresses of a prefix may have changed.
    fn note_change(&self, vni: Vni, prefix: impl Into<IpNet>) {
        if let Some(journal) = &self.journal {
            journal.note(vni, prefix.into());
        }
    }

    /// Notes that the route of a network with this prefix has changed, and where it leads now.
    fn note_route(&self, vni: Vni, prefix: IpNet, target: Option<Target>) {
        if let Some(journal) = &self.journal {
            journal.note_route(vni, prefix, target.and_then(peer_of));
        }
    }

    /// Notes that many routes of a network have changed.
    fn note_routes<'a>(&self, vni: Vni, routes: impl Iterator<Item = &'a Route>) {
        if let Some(journal) = &self.journal {
            journal.note_routes(vni, routes.map(|route| (route.prefix, peer_of(route.target))));
        }
    }

    /// Notes that a network has ended.
    fn note_end(&self, vni: Vni) {
        if let Some(journal) = &self.journal {
            journal.note_end(vni);
        }
    }

    /// Notes that any path may have changed.
    fn note_all_changes(&self) {
        if let Some(journal) = &self.journal {
            journal.note_all();
        }
    }

    /// Notes that all paths of a network may have changed.
    fn note_changes(&self, vni: Vni) {
        if let Some(journal) = &self.journal {
            journal.note_network(vni);
        }
    }

    /// How full the tables are.
    pub fn usage(&self) -> TableUsage {
        let total = u64::from(self.memory().cells());
        let (conflicts, conflict_slots) = self.exact.conflict_usage();
        let capacities = self.exact.capacities(&self.pool);
        TableUsage {
            cells_total: total,
            cells_used: total - self.pool.free_cells(),
            cells_pending: self.pool.retired_cells(),
            cells_available: self.pool.available_cells(),
            entries: self.exact.entries(),
            entry_capacity: capacities.ipv4,
            entry_capacity_v6: capacities.ipv6,
            entry_slots: self.exact.slots(),
            conflicts,
            conflict_slots,
            counters_used: self.counter_indices.used(),
            counters_total: u64::from(layout::VNI_COUNTERS_MAX) - 1,
            vteps: self.vteps().count() as u64,
            vips: self.vips.len() as u64,
            groups: self.groups.len() as u64,
            policies: self.policies.len() as u64,
            vrfs: self.vrfs.len() as u64,
            ports: self.ports.len() as u64,
            endpoints: self.endpoints,
            senders: self.sender_entries,
            direct_paths: self.direct_paths,
            routes: self.routes,
            public_prefixes: self.public_prefix_count(),
            nat_gateways: self.nats.len() as u64,
            meters: self.meter_ids().count() as u64,
            meters_total: self.meters_total().into(),
        }
    }

    /// Waits for a grace period and frees the cells that were unlinked before. This also happens by itself
    /// when memory runs short or many cells wait.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.pool.flush()
    }

    /// Sets this node's own configuration. Its cells have a fixed place, so packets see a change word by
    /// word; but none finds an interface with the properties of another one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 8 underlay interfaces, or, on a host, one with ifindex 0.
    pub fn set_node(&mut self, node: &NodeConfig) -> Result<bool, Error> {
        let max = layout::UNDERLAY_PORTS_MAX as usize;
        if node.ports.len() > max {
            return Err(Error::Invalid(format!(
                "{} underlay interfaces are configured: a node can have at most {max}",
                node.ports.len()
            )));
        }
        let old: node_config = self.memory().read(layout::CELL_NODE);
        let flag_if = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let mut config = node_config {
            flags: flag_if(node.vtep4.is_some(), layout::NODE_HAS_IPV4)
                | flag_if(node.vtep6.is_some(), layout::NODE_HAS_IPV6),
            vtep4: ipv4_to_word(node.vtep4),
            vtep6: ipv6_to_bytes(node.vtep6),
            router_mac: mac_to_bytes(node.router_mac),
            vxlan_ifindex: node.vxlan_ifindex,
            flow_secret: old.flow_secret,
            by_role: old.by_role,
            open_step: old.open_step,
            ..Default::default()
        };
        // Flows keep their vIP as long as the secret is the same, so it is drawn once for these tables.
        if config.flow_secret == [0; 2] {
            config.flow_secret = [random_seed()?, random_seed()?];
        }
        for (to, port) in config.port.iter_mut().zip(&node.ports) {
            if port.ifindex == 0 && node.vxlan_ifindex != 0 {
                return Err(Error::Invalid(
                    "an underlay interface has ifindex 0: no kernel interface has it".to_owned(),
                ));
            }
            to.ifindex = port.ifindex;
            to.mtu = port.mtu;
            to.mac = port.mac.octets();
            to.flags = flag_if(port.internet, layout::UNDERLAY_PORT_INTERNET);
        }
        // An interface is found by its index, which is in the first word of its slot, as MTU and a part of the MAC address are.
        let mut between = config;
        for (slot, old) in between.port.iter_mut().zip(&old.port) {
            if (slot.ifindex, slot.flags) != (old.ifindex, old.flags) {
                slot.ifindex = 0;
            }
        }
        let is_cleared = self.memory().update(layout::CELL_NODE, &between);
        Ok(self.memory().update(layout::CELL_NODE, &config) | is_cleared)
    }

    /// This node's own configuration.
    pub fn node(&self) -> NodeConfig {
        let config: node_config = self.memory().read(layout::CELL_NODE);
        let used = config.port.iter().rposition(|port| port.ifindex != 0).map_or(0, |last| last + 1);
        let ports = config.port[..used].iter().map(|port| UnderlayPort {
            ifindex: port.ifindex,
            mtu: port.mtu,
            mac: sluice_types::MacAddr::new(port.mac),
            internet: port.flags & layout::UNDERLAY_PORT_INTERNET != 0,
        });
        NodeConfig {
            vtep4: ipv4_from_word(config.vtep4),
            vtep6: ipv6_from_bytes(config.vtep6),
            router_mac: mac_from_bytes(config.router_mac),
            vxlan_ifindex: config.vxlan_ifindex,
            ports: ports.collect(),
        }
    }
}

impl std::fmt::Debug for NodeTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeTables").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
