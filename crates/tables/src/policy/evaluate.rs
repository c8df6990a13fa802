//! Evaluates a policy in the tables, with the same lookups in the same order as `bpf/include/common/policy.h`.

use super::rules::{Direction, PolicyPacket, Verdict};
use super::store::POLICY_CELLS;
use crate::layout::{self, policy};
use crate::lpm::{self, Family};
use crate::memory::Memory;

/// The service of a packet, as in `cells.h`, at the top of 128 bits.
fn service(packet: &PolicyPacket) -> u128 {
    let rest = match packet.port {
        Some(port) => u32::from(port) << layout::SERVICE_PORT_SHIFT,
        None => layout::SERVICE_NO_TRANSPORT,
    };
    u128::from(u32::from(packet.protocol) << layout::SERVICE_PROTOCOL_SHIFT | rest) << 96
}

/// The verdict of the policy at a cell, which a port refers to; 0 if it has none. Adds the number of cells that were
/// read to `cells_read`.
pub(crate) fn evaluate(memory: &Memory, cell: u32, packet: &PolicyPacket, cells_read: &mut u32) -> Verdict {
    if cell == 0 {
        return Verdict::Unrestricted;
    }
    if !memory.contains(cell, POLICY_CELLS) {
        return Verdict::Denied;
    }
    let policy: policy = memory.read(cell + u32::from(packet.direction == Direction::Egress));
    *cells_read += 1;
    if u32::from(policy.kind) != layout::NEXT_HOP_POLICY {
        return Verdict::Denied;
    }
    let service = service(packet);
    let (family, address) = lpm::top_bits(packet.remote);
    let is_ipv6 = family == Family::V6;
    let mut rule = lpm::find_from(memory, policy.any[usize::from(is_ipv6)], Family::V4, service, cells_read);
    if rule == 0 {
        let root = policy.addresses[usize::from(is_ipv6)];
        let set = lpm::find_from(memory, root, family, address, cells_read);
        rule = find_in_set(memory, &policy, set, service, cells_read);
    }
    if rule == 0 && packet.identity != 0 {
        let identity = u32::from(packet.identity) << layout::POLICY_IDENTITY_SHIFT
            | if is_ipv6 { layout::POLICY_IDENTITY_IPV6 } else { 0 };
        let key = u128::from(identity) << 96;
        let set = lpm::find_from(memory, policy.identities, Family::V4, key, cells_read);
        rule = find_in_set(memory, &policy, set, service, cells_read);
    }
    if rule == 0 { Verdict::Denied } else { Verdict::Permitted(rule) }
}

/// The rule of a service set that permits a service. 0: none does.
fn find_in_set(memory: &Memory, policy: &policy, number: u32, service: u128, cells_read: &mut u32) -> u32 {
    if number == 0 || number > policy.set_count {
        return 0;
    }
    let words_per_cell = layout::CELL_BYTES / 8;
    let (cell, word) = ((number - 1) / words_per_cell, (number - 1) % words_per_cell);
    let Some(cell) = policy.sets.checked_add(cell).filter(|&cell| memory.contains(cell, 1)) else { return 0 };
    let root = memory.load64(cell, word as usize * 8);
    *cells_read += 1;
    lpm::find_from(memory, root, Family::V4, service, cells_read)
}
