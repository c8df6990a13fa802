//! The Rust reader of the tables. Its exact match makes the same loads in the same order as
//! `bpf/include/common/exact_match.h`; routes are found by the writer's decoder of lists and buckets, which
//! must get the same answers as the packet programs.
//!
//! A grace period by `membarrier` waits for packet programs, not for threads. If a reader runs in a thread
//! while the writer works, the writer's [`Grace`](crate::Grace) must wait for it as well, as
//! [`WaitForThreads`](crate::WaitForThreads) does.

use crate::encoding::{NatLink, address_from_bytes, elephant_bytes, kind_of, public_cell, role_of};
use crate::entries::{NatGateway, PublicPrefix, Role, Target, Vrf};
use crate::exact::{Hashing, Key, buckets_of, is_filled};
use crate::layout::{self, exact_bucket, exact_conflict, exact_root, internet, next_hop, superblock};
use crate::lpm::{self, Family, Root};
use crate::memory::Memory;
use crate::policy::{self, Policy, PolicyPacket, Verdict};

use sluice_types::{MacAddr, Vni};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};

/// Attempts of a lookup: `EXACT_RETRIES` of `exact_match.h`.
const ATTEMPTS: usize = 4;

/// The entry that an exact match found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// MAC address of the instance; zero for nodes, VRFs and ports found by interface.
    pub mac: MacAddr,
    /// Index of the cell that the entry leads to.
    pub cell: u32,
}

/// Result of an exact match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The table has no entry for the key.
    Miss,
    /// The table changed for longer than a lookup retries.
    Busy,
    /// The table has an entry for the key.
    Hit(Hit),
}

/// What a port's packets are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFilter {
    /// Network of the port.
    pub vni: u32,
    /// Number of the port's sessions; 0: none.
    pub scope: u16,
    /// Cell of the policy, for [`Reader::evaluate`]; 0: none.
    pub policy_cell: u32,
}

/// The tables changed for longer than a lookup retries. The caller may try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// The settings of a network that decide whether its flows are offloaded to direct paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Longest IP packet in bytes.
    pub mtu: u16,
    /// True if hosts may be notified of direct paths: the threshold is not [`Vrf::NEVER_ELEPHANTS`].
    pub is_offloaded: bool,
}

/// The next hop in a cell that an exact match leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// Another node, by its VTEP.
    Vtep(IpAddr),
    /// A vIP of this node's cluster.
    Vip(IpAddr),
    /// A port of this host, by its interface index.
    Port(u32),
    /// A direct path.
    Direct {
        /// VTEP of the host that receives the packets.
        host: IpAddr,
        /// VNI with which packets are encapsulated.
        vni: u32,
    },
    /// A service, by its identifier.
    Service(u32),
}

/// Reads tables as packet programs do.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(crate) memory: Memory,
}

/// Result of the search of one bucket.
enum BucketScan {
    /// Value and next of the entry.
    Found(u64, u32),
    Absent,
    /// The slot changed while it was read.
    Changed,
}

impl Reader {
    /// Reads the tables that are laid out in this memory.
    pub fn new(memory: Memory) -> Self {
        Self { memory }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    fn hashing(&self) -> Hashing {
        Hashing {
            seed: self.root_word(offset_of!(exact_root, seed)),
            digest_mask: self.root_word(offset_of!(exact_root, digest_mask)),
        }
    }

    fn root_word(&self, offset: usize) -> u64 {
        self.memory.load64(layout::CELL_EXACT_ROOT, offset)
    }

    fn scan_bucket(&self, bucket: u32, word: u64) -> BucketScan {
        for slot in 0..layout::EXACT_SLOTS as usize {
            let key = offset_of!(exact_bucket, key) + slot * 8;
            let seen = self.memory.load64(bucket, key);
            if seen & layout::EXACT_KEY_MASK != word {
                continue;
            }
            let value = self.memory.load64(bucket, offset_of!(exact_bucket, value) + slot * 8);
            let next = self.memory.load32(bucket, offset_of!(exact_bucket, next) + slot * 4);
            if self.memory.load64(bucket, key) == seen {
                return BucketScan::Found(value, next);
            }
            return BucketScan::Changed;
        }
        BucketScan::Absent
    }

    /// Finds the value and next of a key word; `Err` means that the table was busy.
    fn search_buckets(&self, word: u64, hash: u64) -> Result<Option<(u64, u32)>, ()> {
        for _ in 0..ATTEMPTS {
            let run = self.root_word(offset_of!(exact_root, buckets));
            let (first, count) = (run as u32, (run >> 32) as u32);
            if count == 0 || !self.memory.contains(first, count) {
                return Ok(None);
            }
            let (one, two) = buckets_of(hash, count);
            let version = |cell| self.memory.load32(cell, offset_of!(exact_bucket, version));
            let before = version(first + one);
            let mut found = self.scan_bucket(first + one, word);
            if matches!(found, BucketScan::Absent) {
                found = self.scan_bucket(first + two, word);
            }
            match found {
                BucketScan::Found(value, next) => return Ok(Some((value, next))),
                BucketScan::Absent if version(first + one) == before => return Ok(None),
                BucketScan::Absent | BucketScan::Changed => {}
            }
        }
        Err(())
    }

    /// Finds the value and next of an address in the conflict table.
    fn search_conflicts(&self, hashing: &Hashing, word: u64, address: (u64, u64)) -> Option<(u64, u32)> {
        let run = self.root_word(offset_of!(exact_root, conflicts));
        let (first, count) = (run as u32, (run >> 32) as u32);
        if count == 0 || !self.memory.contains(first, count) {
            return None;
        }
        let start = hashing.conflict_start(word, address, count);
        for i in 0..layout::EXACT_CONFLICT_PROBES {
            let cell = first + (start + i) % count;
            let load = |offset| self.memory.load64(cell, offset);
            let seen = load(offset_of!(exact_conflict, key));
            if seen & layout::EXACT_KEY_MASK != word
                || !is_filled(seen)
                || load(offset_of!(exact_conflict, address)) != address.0
                || load(offset_of!(exact_conflict, address) + 8) != address.1
            {
                continue;
            }
            let value = load(offset_of!(exact_conflict, value));
            let next = self.memory.load32(cell, offset_of!(exact_conflict, next));
            if load(offset_of!(exact_conflict, key)) == seen {
                return Some((value, next));
            }
        }
        None
    }

    pub(crate) fn lookup(&self, key: Key) -> Lookup {
        let hashing = self.hashing();
        let key = hashing.prepare(key);
        let hit = |value: u64, next: u32| {
            let mac = MacAddr::from_u64(value & layout::EXACT_MAC_MASK);
            Lookup::Hit(Hit { mac, cell: next & layout::CELL_INDEX_MASK })
        };
        let (value, next) = match self.search_buckets(key.word, key.hash) {
            Err(()) => return Lookup::Busy,
            Ok(None) => return Lookup::Miss,
            Ok(Some(found)) => found,
        };
        let Some(address) = key.address else { return hit(value, next) };
        if next & layout::EXACT_CONFLICT != 0
            && let Some((value, next)) = self.search_conflicts(&hashing, key.word, address)
        {
            return hit(value, next);
        }
        if (value ^ key.check) >> layout::EXACT_CHECK_SHIFT != 0 {
            return Lookup::Miss;
        }
        hit(value, next)
    }

    /// Finds an address; VNI 0 is the underlay.
    pub fn find(&self, vni: u32, address: IpAddr) -> Lookup {
        self.lookup(Key::Ip { vni, address })
    }

    /// The cell of a policy, for [`Reader::evaluate`]. It keeps its content until a grace period after the policy was
    /// replaced.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn policy_cell(&self, id: u32) -> Result<Option<u32>, Busy> {
        if !(1..=Policy::ID_MAX).contains(&id) {
            return Ok(None);
        }
        match self.find_index(0, layout::EXACT_POLICY_ID | id) {
            Lookup::Busy => Err(Busy),
            Lookup::Miss => Ok(None),
            Lookup::Hit(hit) => Ok(Some(hit.cell)),
        }
    }

    /// The cell of the policy of a port, for [`Reader::evaluate`]. 0 if it has none. `port_cell` is the cell that the
    /// interface or an address of the port leads to.
    pub fn policy_of_port(&self, port_cell: u32) -> u32 {
        let is_port =
            self.memory.contains(port_cell, 2) && matches!(self.next_hop(port_cell), Some(NextHop::Port(_)));
        if !is_port {
            return layout::POLICY_CELL_MISSING;
        }
        // The second cell follows the first.
        self.memory.load32(port_cell, offset_of!(layout::port, policy))
    }

    /// What the packets of an interface's port are judged by. `None`: the interface is not a port.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn port_filter(&self, ifindex: u32) -> Result<Option<PortFilter>, Busy> {
        let cell = match self.find_index(0, ifindex) {
            Lookup::Busy => return Err(Busy),
            Lookup::Miss => return Ok(None),
            Lookup::Hit(hit) => hit.cell,
        };
        if !self.memory.contains(cell, 2) || self.next_hop(cell) != Some(NextHop::Port(ifindex)) {
            return Ok(None);
        }
        let port: layout::port = self.memory.read(cell);
        Ok(Some(PortFilter { vni: port.vni, scope: port.scope, policy_cell: port.policy }))
    }

    /// The generation of the policy at a cell. `None` if the cell does not contain a policy.
    pub fn policy_generation(&self, policy_cell: u32) -> Option<u32> {
        let is_inside = policy_cell != 0 && self.memory.contains(policy_cell, 1);
        let head: layout::policy = is_inside.then(|| self.memory.read(policy_cell))?;
        (u32::from(head.kind) == layout::NEXT_HOP_POLICY).then_some(head.generation)
    }

    /// Whether an egress rule of the policy at a cell names a group that has members.
    pub fn names_receivers(&self, policy_cell: u32) -> bool {
        let is_inside = policy_cell != 0 && self.memory.contains(policy_cell, 2);
        let egress: Option<layout::policy> = is_inside.then(|| self.memory.read(policy_cell + 1));
        egress.is_some_and(|it| u32::from(it.kind) == layout::NEXT_HOP_POLICY && it.identities != 0)
    }

    /// What the policy at a cell says of a packet; cell 0 is no policy. Damaged tables permit nothing.
    pub fn evaluate(&self, policy_cell: u32, packet: &PolicyPacket) -> Verdict {
        policy::evaluate(&self.memory, policy_cell, packet, &mut 0)
    }

    /// As [`Reader::evaluate`], with the number of cells that it read: the cost of the packet, at most
    /// `POLICY_READS_MAX4` or `POLICY_READS_MAX6` of `cells.h`.
    pub fn evaluate_with_cost(&self, policy_cell: u32, packet: &PolicyPacket) -> (Verdict, u32) {
        let mut cells_read = 0;
        let verdict = policy::evaluate(&self.memory, policy_cell, packet, &mut cells_read);
        (verdict, cells_read)
    }

    /// Finds a VRF by `(VNI, 0)` or a port by `(0, ifindex)`.
    pub fn find_index(&self, vni: u32, id: u32) -> Lookup {
        self.lookup(Key::Index { vni, id })
    }

    /// The target of the longest route of a VNI that matches an address. `None` if no route matches, or the VRF
    /// is not in the tables.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn route(&self, vni: Vni, address: IpAddr) -> Result<Option<Target>, Busy> {
        Ok(Target::from_leaf(&self.memory, self.leaf(vni, address)?))
    }

    /// The leaf word of an address in a VNI's routes; 0 if there is no route.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn leaf(&self, vni: Vni, address: IpAddr) -> Result<u32, Busy> {
        Ok(self.vrf_cell(vni)?.map_or(0, |cell| self.leaf_in(cell, address)))
    }

    /// The leaf word of an address in a VRF's routes; 0 if there is no route.
    pub(crate) fn leaf_in(&self, vrf_cell: u32, address: IpAddr) -> u32 {
        let (family, bits) = lpm::top_bits(address);
        let offset = match family {
            Family::V4 => offset_of!(layout::vrf, lpm4),
            Family::V6 => offset_of!(layout::vrf, lpm6),
        };
        lpm::find(&self.memory, Root { cell: vrf_cell, offset, family }, bits).unwrap_or(0)
    }

    /// The public prefix whose outside addresses include this one.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn public_prefix(&self, outside: IpAddr) -> Result<Option<PublicPrefix>, Busy> {
        let cell = self.public_cell(outside)?;
        Ok(cell.and_then(|cell| PublicPrefix::from_cell(&self.memory, cell)))
    }

    pub(crate) fn public_cell(&self, outside: IpAddr) -> Result<Option<u32>, Busy> {
        let leaf = self.vrf_cell_of(0)?.map_or(0, |cell| self.leaf_in(cell, outside));
        Ok(public_cell(leaf))
    }

    /// The public prefix whose inside addresses, which are those of a VNI, include this one.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn public_source(&self, vni: Vni, inside: IpAddr) -> Result<Option<PublicPrefix>, Busy> {
        let Some(cell) = self.vrf_cell(vni)?.and_then(|cell| self.internet_in(cell)) else { return Ok(None) };
        let (family, bits) = lpm::top_bits(inside);
        let offset = match family {
            Family::V4 => offset_of!(internet, sources4),
            Family::V6 => offset_of!(internet, sources6),
        };
        let leaf = lpm::find(&self.memory, Root { cell, offset, family }, bits);
        let cell = leaf.and_then(public_cell);
        Ok(cell.and_then(|cell| PublicPrefix::from_cell(&self.memory, cell)))
    }

    /// The NAT gateway that has a public address, by its VNI, and the number of the address.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn nat_address(&self, outside: Ipv4Addr) -> Result<Option<(Vni, u16)>, Busy> {
        let cell = self.public_cell(outside.into())?;
        let link = cell.and_then(|cell| NatLink::from_cell(&self.memory, cell));
        Ok(link.map(|link| (link.vni, link.address.number)))
    }

    /// The NAT gateway of a VPC.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn nat_gateway(&self, vni: Vni) -> Result<Option<NatGateway>, Busy> {
        let internet = self.vrf_cell(vni)?.and_then(|cell| self.internet_in(cell));
        let cell = internet.map(|cell| self.memory.load32(cell, offset_of!(internet, nat)));
        Ok(cell.filter(|cell| *cell != 0).and_then(|cell| NatGateway::from_cells(&self.memory, cell)))
    }

    /// The cell of a VRF's Internet side, if it has one.
    fn internet_in(&self, vrf_cell: u32) -> Option<u32> {
        let cell = self.memory.load32(vrf_cell, offset_of!(layout::vrf, group_id));
        (cell != 0 && kind_of(&self.memory, cell) == layout::NEXT_HOP_INTERNET).then_some(cell)
    }

    /// The target of an address in a VRF's routes.
    pub(crate) fn target_in(&self, vrf_cell: u32, address: IpAddr) -> Option<Target> {
        Target::from_leaf(&self.memory, self.leaf_in(vrf_cell, address))
    }

    /// Whether packets of a host are accepted in a VNI; on a gateway, because the host has an instance of it.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn is_sender(&self, vni: Vni, host: IpAddr) -> Result<bool, Busy> {
        let (key, check) = self.hashing().sender(vni.get(), host);
        match self.lookup(key) {
            Lookup::Busy => Err(Busy),
            Lookup::Miss => Ok(false),
            Lookup::Hit(hit) => {
                let found = hit.mac.to_u64() & layout::SENDER_CHECK_MASK;
                Ok(found == check || found == u64::from(layout::SENDER_ANY))
            }
        }
    }

    /// The role of a node. `None` if the tables do not have it.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn role(&self, node: IpAddr) -> Result<Option<Role>, Busy> {
        let Hit { cell, .. } = match self.find(0, node) {
            Lookup::Busy => return Err(Busy),
            Lookup::Miss => return Ok(None),
            Lookup::Hit(hit) => hit,
        };
        if !self.memory.contains(cell, 1) {
            return Ok(None);
        }
        let hop: next_hop = self.memory.read(cell);
        Ok((u32::from(hop.kind) == layout::NEXT_HOP_VTEP).then(|| role_of(&hop)))
    }

    /// The next hop in the cell of a hit; `None` if the cell holds no next hop.
    pub fn next_hop(&self, cell: u32) -> Option<NextHop> {
        if !self.memory.contains(cell, 1) {
            return None;
        }
        let hop: next_hop = self.memory.read(cell);
        let address = address_from_bytes(hop.address, u32::from(hop.flags) & layout::NEXT_HOP_IPV6 != 0);
        match u32::from(hop.kind) {
            layout::NEXT_HOP_VTEP => Some(NextHop::Vtep(address)),
            layout::NEXT_HOP_VIP => Some(NextHop::Vip(address)),
            layout::NEXT_HOP_DIRECT => Some(NextHop::Direct { host: address, vni: hop.vni }),
            layout::NEXT_HOP_PORT => {
                Some(NextHop::Port(self.memory.load32(cell, offset_of!(layout::port, ifindex))))
            }
            layout::NEXT_HOP_SERVICE => {
                Some(NextHop::Service(self.memory.load32(cell, offset_of!(layout::service, id))))
            }
            _ => None,
        }
    }

    /// The settings of a network. `None` if its VRF is not in the tables.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn network(&self, vni: Vni) -> Result<Option<Network>, Busy> {
        Ok(self.vrf_cell(vni)?.map(|cell| self.network_of(cell)))
    }

    pub(crate) fn network_of(&self, vrf_cell: u32) -> Network {
        let vrf: layout::vrf = self.memory.read(vrf_cell);
        Network { mtu: vrf.mtu, is_offloaded: elephant_bytes(&vrf) != Some(Vrf::NEVER_ELEPHANTS) }
    }

    /// The cell of a VNI's VRF. It is within the memory.
    pub(crate) fn vrf_cell(&self, vni: Vni) -> Result<Option<u32>, Busy> {
        self.vrf_cell_of(vni.get())
    }

    /// As [`Reader::vrf_cell`], also for VNI 0.
    fn vrf_cell_of(&self, vni: u32) -> Result<Option<u32>, Busy> {
        match self.find_index(vni, 0) {
            Lookup::Busy => Err(Busy),
            Lookup::Hit(Hit { cell, .. }) if self.memory.contains(cell, 1) => Ok(Some(cell)),
            Lookup::Hit(_) | Lookup::Miss => Ok(None),
        }
    }

    /// The controller's revision that is completely in the tables; 0 before the first. What is looked up
    /// after this call is at least as new.
    pub fn applied_revision(&self) -> u64 {
        self.memory.load64(0, offset_of!(superblock, applied_revision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Immediate, NodeTables, Sizes};

    #[test]
    fn applied_revision_is_the_one_that_the_writer_recorded() {
        let memory = Memory::anonymous(512).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes { endpoints: 1 }).unwrap();
        assert_eq!(tables.reader().applied_revision(), 0);
        tables.set_applied_revision(1 << 40);
        assert_eq!(tables.reader().applied_revision(), 1 << 40);
    }

    #[test]
    fn flows_of_a_vrf_are_offloaded_unless_it_never_has_elephants() {
        let memory = Memory::anonymous(512).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes { endpoints: 1 }).unwrap();
        let vni = Vni::new(5).unwrap();
        assert_eq!(tables.reader().network(vni), Ok(None), "the VRF is not in the tables");
        for (elephant_bytes, expected) in
            [(None, true), (Some(2500), true), (Some(Vrf::NEVER_ELEPHANTS), false)]
        {
            let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes };
            tables.upsert_vrf(&vrf).unwrap();
            let network = Network { mtu: 1430, is_offloaded: expected };
            assert_eq!(tables.reader().network(vni), Ok(Some(network)), "{elephant_bytes:?}");
        }
    }
}
