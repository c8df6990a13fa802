//! A node's tables as the agents see them: nodes, vIPs, groups, VRFs with
//! routes, endpoints, ports and direct paths.

mod adopt;
mod directs;
mod endpoints;
mod groups;
mod ports;
mod routes;
#[cfg(test)]
mod tests;
mod underlay;
mod vrfs;

use crate::error::Error;
use crate::exact::{Exact, Hashing};
use crate::grace::Grace;
use crate::layout::{self, node_config, superblock};
use crate::memory::Memory;
use crate::pool::Pool;
use crate::reader::Reader;
use crate::spec::{self, Fill, NodeConfig, Sizes, UnderlayPort};
use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use std::net::IpAddr;
use underlay::Hop;
use vrfs::Counters;
pub use vrfs::VniCounts;

/// The writer of a node's tables.
///
/// There must be one for a memory at a time; readers are packets, and
/// [`Reader`]s. Where an operation returns `bool`, `true` means that the tables
/// changed, `false` that they were so already (or that what is to be removed
/// was not there). After an error readers see what they saw before it.
///
/// What an entry leads to is complete before the store that publishes it, is
/// never changed in a way that readers could mix up (where more than one word
/// must change together, a new copy is published by one store), and is reused
/// only after a grace period. A writer that is killed between two stores leaves
/// tables that readers go on with, and that [`NodeTables::adopt`] puts in order.
pub struct NodeTables {
    pool: Pool,
    exact: Exact,
    hops: HashMap<IpAddr, Hop>,
    vips: BTreeMap<IpAddr, u32>,
    groups: BTreeMap<u32, u32>,
    vrfs: BTreeMap<u32, u32>,
    ports: BTreeMap<u32, u32>,
    counters: Counters,
    counts: Option<Box<dyn VniCounts>>,
    endpoints: u64,
    directs: u64,
    routes: u64,
    route_limit: u32,
}

/// Tells a gateway's programs whether its agent runs and is well. While it is
/// not, they answer questions to everybody about its vIPs so that no switch
/// learns from it (`bpf/include/local.h`, `send_answer`).
///
/// The word is nobody else's: there must be one thread that tells it at a time.
#[derive(Debug)]
pub struct Attendance {
    memory: Memory,
}

impl Attendance {
    /// Without a note for so long an agent counts as away.
    pub const LIMIT_NS: u64 = layout::ATTENDED_NS as u64;

    /// It is well at `now_ns`, `CLOCK_MONOTONIC`.
    pub fn note(&self, now_ns: u64) {
        self.store(now_ns.max(1));
    }

    /// No other gateway could have its vIPs, whether it runs or not.
    pub fn waive(&self) {
        self.store(0);
    }

    /// The last note; 0: none, or waived since.
    pub fn noted_ns(&self) -> u64 {
        self.memory.load64(0, offset_of!(superblock, attended_ns))
    }

    fn store(&self, word: u64) {
        self.memory.store64(0, offset_of!(superblock, attended_ns), word);
    }
}

/// A random word of the kernel's.
pub(crate) fn random_seed() -> Result<u64, Error> {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes at most the 8 bytes that are there.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        let error = std::io::Error::last_os_error();
        return Err(Error::Invalid(format!("no random seed for the tables: {error}")));
    }
    Ok(u64::from_ne_bytes(bytes))
}

impl NodeTables {
    /// Lays out empty tables. What the memory held before is lost.
    ///
    /// # Errors
    /// [`Error::TooSmall`] when the memory cannot hold them.
    pub fn create(memory: Memory, grace: impl Grace + 'static, sizes: Sizes) -> Result<Self, Error> {
        Self::create_with_digest_mask(memory, grace, sizes, u64::MAX)
    }

    /// As [`NodeTables::create`], with only these bits of the IPv6 digests: for
    /// tests that want digests to conflict.
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
            // What is not free is the roots and the pool's reserve.
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
            hops: HashMap::new(),
            vips: BTreeMap::new(),
            groups: BTreeMap::new(),
            vrfs: BTreeMap::new(),
            ports: BTreeMap::new(),
            counters: Counters::new(),
            counts: None,
            endpoints: 0,
            directs: 0,
            routes: 0,
            route_limit: u32::MAX,
        }
    }

    /// The memory that the tables are in.
    pub fn memory(&self) -> &Memory {
        self.pool.memory()
    }

    /// The Rust reader: the same answers as packets get.
    pub fn reader(&self) -> Reader {
        Reader::new(self.memory().clone())
    }

    /// Writers that have had these tables, this one included.
    pub fn generation(&self) -> u32 {
        self.memory().load32(0, offset_of!(superblock, generation))
    }

    /// The controller's revision that is wholly in the tables; 0: none.
    pub fn applied_revision(&self) -> u64 {
        self.memory().load64(0, offset_of!(superblock, applied_revision))
    }

    /// Says that a revision is wholly in the tables.
    pub fn set_applied_revision(&mut self, revision: u64) {
        self.exact.store_counts(self.pool.memory());
        self.memory().store64(0, offset_of!(superblock, applied_revision), revision);
    }

    /// The controller database that the revision is of; 0: none.
    pub fn database_id(&self) -> u64 {
        self.memory().load64(0, offset_of!(superblock, database_id))
    }

    /// Says which database the revision is of.
    pub fn set_database_id(&mut self, id: u64) {
        self.memory().store64(0, offset_of!(superblock, database_id), id);
    }

    /// For who tells the packet programs that this node's agent runs.
    pub fn attendance(&self) -> Attendance {
        Attendance { memory: self.memory().clone() }
    }

    /// How full the tables are.
    pub fn fill(&self) -> Fill {
        let total = u64::from(self.memory().cells());
        let (conflicts, conflict_slots) = self.exact.conflict_fill();
        Fill {
            cells_total: total,
            cells_used: total - self.pool.free_cells(),
            cells_pending: self.pool.retired_cells(),
            entries: self.exact.entries(),
            entry_slots: self.exact.slots(),
            conflicts,
            conflict_slots,
            counters_used: self.counters.used(),
            counters_total: u64::from(layout::VNI_COUNTERS_MAX) - 1,
            vteps: self.vteps().count() as u64,
            vips: self.vips.len() as u64,
            groups: self.groups.len() as u64,
            vrfs: self.vrfs.len() as u64,
            ports: self.ports.len() as u64,
            endpoints: self.endpoints,
            directs: self.directs,
            routes: self.routes,
        }
    }

    /// Waits one grace period and makes free what was unlinked. Done unasked
    /// where memory runs short or much has gathered.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.pool.flush()
    }

    /// Enters this node's own configuration. Its cells have a fixed place, so
    /// packets see a change word by word.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 8 ports.
    pub fn set_node(&mut self, node: &NodeConfig) -> Result<bool, Error> {
        let max = layout::UNDERLAY_PORTS_MAX as usize;
        if node.ports.len() > max {
            return Err(Error::Invalid(format!(
                "{} underlay interfaces: a node can have {max}",
                node.ports.len()
            )));
        }
        let has = |there: bool, flag: u32| if there { flag } else { 0 };
        let mut config = node_config {
            flags: has(node.vtep4.is_some(), layout::NODE_HAS_IPV4)
                | has(node.vtep6.is_some(), layout::NODE_HAS_IPV6),
            vtep4: spec::word4(node.vtep4),
            vtep6: spec::bytes6(node.vtep6),
            router_mac: spec::mac_bytes(node.router_mac),
            vxlan_ifindex: node.vxlan_ifindex,
            ..Default::default()
        };
        for (to, port) in config.port.iter_mut().zip(&node.ports) {
            if port.ifindex == 0 {
                return Err(Error::Invalid("an underlay interface with ifindex 0".to_owned()));
            }
            to.ifindex = port.ifindex;
            to.mtu = port.mtu;
            to.mac = port.mac.octets();
        }
        Ok(self.memory().update(layout::CELL_NODE, &config))
    }

    /// This node's own configuration.
    pub fn node(&self) -> NodeConfig {
        let config: node_config = self.memory().read(layout::CELL_NODE);
        let ports = config.port.iter().filter(|port| port.ifindex != 0).map(|port| UnderlayPort {
            ifindex: port.ifindex,
            mtu: port.mtu,
            mac: sluice_types::MacAddr::new(port.mac),
        });
        NodeConfig {
            vtep4: spec::from_word4(config.vtep4),
            vtep6: spec::from_bytes6(config.vtep6),
            router_mac: spec::mac_from(config.router_mac),
            vxlan_ifindex: config.vxlan_ifindex,
            ports: ports.collect(),
        }
    }
}

impl std::fmt::Debug for NodeTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeTables").field("fill", &self.fill()).finish_non_exhaustive()
    }
}
