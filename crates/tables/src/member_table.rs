//! The table of a service: which of its members has a flow. Writer and readers share what it says (`struct service` of
//! `cells.h`).
//!
//! Which member has a slot is decided by rendezvous hashing: of all members that are selected, the one whose number has
//! the highest hash together with the slot. So all nodes that know the same members choose the same, and a member that comes or leaves
//! changes only the slots that it has.

use crate::encoding::{address_from_bytes, kind_of, mac_from_bytes};
use crate::entries::MemberService;
use crate::exact::mix;
use crate::layout::{self, next_hop, service};
use crate::memory::Memory;
use crate::reader::Reader;
use crate::sessions::Flow;
use sluice_types::{ServiceMember, ipv6_halves};
use std::net::IpAddr;

const SLOTS: usize = layout::SERVICE_SLOTS as usize;
const CELL_BYTES: usize = layout::CELL_BYTES as usize;
/// TCP, UDP and SCTP, whose headers begin with two ports.
const WITH_PORTS: [u8; 3] = [6, 17, 132];

/// First cell of the table in the word, its number of cells, and the highest number of a member.
pub(crate) fn table_run(table: u64) -> (u32, u32, u8) {
    let highest = (table >> 32) as u8;
    (table as u32 & layout::CELL_INDEX_MASK, layout::SERVICE_SLOT_CELLS + u32::from(highest), highest)
}

/// The cell of a member in the table that begins at `run`.
pub(crate) fn member_cell(run: u32, number: u8) -> u32 {
    run + layout::SERVICE_SLOT_CELLS - 1 + u32::from(number)
}

fn scatter(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// The number of the member that has each slot: 0 without a member that is selected.
pub(crate) fn slots(service: &MemberService) -> [u8; SLOTS] {
    let numbers = || service.members.iter().filter(|member| member.selected).map(|member| member.number);
    let score = |slot: usize, number: u8| {
        scatter(scatter(service.seed[0] ^ slot as u64) ^ service.seed[1] ^ u64::from(number) << 32)
    };
    std::array::from_fn(|slot| numbers().max_by_key(|&number| score(slot, number)).unwrap_or(0))
}

/// The service in a cell, if its table is whole.
pub(crate) fn service_at(memory: &Memory, cell: u32) -> Option<MemberService> {
    if !memory.contains(cell, 1) || kind_of(memory, cell) != layout::NEXT_HOP_SERVICE {
        return None;
    }
    let head: service = memory.read(cell);
    let mut found = MemberService { id: head.id, seed: head.seed, members: Vec::new() };
    let (run, cells, highest) = table_run(head.table);
    if run == 0 {
        return Some(found);
    }
    if !memory.contains(run, cells) {
        return None;
    }
    for number in 1..=highest {
        match kind_of(memory, member_cell(run, number)) {
            0 => continue,
            layout::NEXT_HOP_VTEP => found.members.push(read_member(memory, run, number)),
            _ => return None,
        }
    }
    let are_right =
        slots(&found).iter().enumerate().all(|(slot, number)| read_slot(memory, run, slot) == *number);
    are_right.then_some(found)
}

fn read_member(memory: &Memory, run: u32, number: u8) -> ServiceMember {
    let hop: next_hop = memory.read(member_cell(run, number));
    ServiceMember {
        number,
        mac: mac_from_bytes(hop.mac),
        host: address_from_bytes(hop.address, u32::from(hop.flags) & layout::NEXT_HOP_IPV6 != 0),
        selected: u32::from(hop.flags) & layout::NEXT_HOP_SELECTED != 0,
    }
}

fn read_slot(memory: &Memory, run: u32, slot: usize) -> u8 {
    let word = memory.load32(run + (slot / CELL_BYTES) as u32, slot % CELL_BYTES / 4 * 4);
    word.to_le_bytes()[slot % 4]
}

/// The slot of a flow, by the hash of `frame_secret_hash()` (`frame.h`). `None`: its addresses are of two families.
fn slot_of(flow: &Flow, seed: [u64; 2]) -> Option<usize> {
    let hash = match (flow.source.ip(), flow.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            mix(u64::from(u32::from(source)) << 32 | u64::from(u32::from(destination)), seed[0])
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ([s0, s1], [d0, d1]) =
                (<[u64; 2]>::from(ipv6_halves(source)), ipv6_halves(destination).into());
            let hash = mix(s1 ^ mix(s0, seed[0]), seed[1]);
            mix(d1 ^ mix(d0 ^ hash, seed[0]), seed[1])
        }
        _ => return None,
    };
    let ports = u64::from(flow.source.port()) << 16 | u64::from(flow.destination.port());
    let ports = if WITH_PORTS.contains(&flow.protocol) { ports << 8 } else { 0 };
    let hash = mix((u64::from(flow.protocol) | ports) ^ hash, seed[1]) as u32;
    Some((hash >> (u32::BITS - layout::SERVICE_SLOT_BITS)) as usize)
}

impl Reader {
    /// The member to which packets of a flow go, of the service in this cell, which an exact match has found: the one with the number
    /// `pinned`, or else that of the flow's slot. The scope of the flow is ignored; fragments have no ports, so those are 0.
    pub fn member(&self, cell: u32, flow: &Flow, pinned: u8) -> Option<ServiceMember> {
        let memory = self.memory();
        if !memory.contains(cell, 1) || kind_of(memory, cell) != layout::NEXT_HOP_SERVICE {
            return None;
        }
        let head: service = memory.read(cell);
        let (run, cells, highest) = table_run(head.table);
        if run == 0 || !memory.contains(run, cells) {
            return None;
        }
        let member = |number: u8| {
            let is_member = (1..=highest).contains(&number)
                && kind_of(memory, member_cell(run, number)) == layout::NEXT_HOP_VTEP;
            is_member.then(|| read_member(memory, run, number))
        };
        let of_slot = || member(read_slot(memory, run, slot_of(flow, head.seed)?));
        member(pinned).or_else(of_slot)
    }
}
