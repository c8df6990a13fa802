//! The place of a gateway in the ring in which the first packets of sessions of source NAT travel (`nat_ring.h`).

use super::NodeTables;
use crate::entries::Role;
use crate::error::Error;
use crate::layout::{self, node_config};
use crate::memory::Memory;
use std::mem::offset_of;
use std::net::IpAddr;

const WORD: usize = offset_of!(node_config, by_role);

/// Refuses a position that a record of the ring has no room for.
fn check_position(what: &str, position: u8) -> Result<(), Error> {
    let positions = layout::NAT_RING_POSITIONS;
    if u32::from(position) < positions {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{what} has position {position} in the ring: a ring has {positions} positions from 0"
    )))
}

/// The cell in a word. `None`: the gateway is alone, or in no ring.
fn next_cell(word: u64) -> Option<u32> {
    let cell = word as u32 & layout::CELL_INDEX_MASK;
    (word & layout::NAT_RING_MEMBER != 0 && cell != 0).then_some(cell)
}

fn word(memory: &Memory) -> u64 {
    memory.load64(layout::CELL_NODE, WORD)
}

impl NodeTables {
    /// Gateway: sets its place in the ring of its cluster's gateways, by one store. `own` is its position, and `next` the
    /// position and the VTEP of the first gateway after it that is alive, cyclically; `None` if it is alone. Positions are
    /// those in the cluster's list of gateways, which all of them have in the same order. Packets keep the place until it is
    /// changed, also without an agent. If the next gateway's VTEP is removed, the gateway is alone until this is called again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a position is 64 (`NAT_RING_POSITIONS`) or more, if both are the same, or if the address is not
    /// that of a gateway in the tables.
    pub fn set_nat_ring(&mut self, own: u8, next: Option<(u8, IpAddr)>) -> Result<bool, Error> {
        check_position("this gateway", own)?;
        let mut new = layout::NAT_RING_MEMBER | u64::from(own) << layout::NAT_RING_OWN_SHIFT;
        if let Some((position, vtep)) = next {
            check_position(&format!("gateway {vtep}"), position)?;
            if position == own {
                return Err(Error::Invalid(format!(
                    "gateway {vtep} has position {position} in the ring, which is that of this gateway"
                )));
            }
            if self.role(vtep) != Some(Role::Gateway) {
                return Err(Error::Invalid(format!("{vtep} is not the VTEP of a gateway in the tables")));
            }
            new |= u64::from(position) << layout::NAT_RING_NEXT_SHIFT | u64::from(self.vteps[&vtep].cell);
        }
        Ok(self.store_nat_ring(new))
    }

    /// Gateway: takes it out of the ring. It sends what comes by the ring to the Internet then, and begins sessions of
    /// source NAT alone.
    pub fn leave_nat_ring(&mut self) -> bool {
        self.store_nat_ring(0)
    }

    /// The place in the ring, as it was set; `None`: the gateway is in no ring.
    pub fn nat_ring(&self) -> Option<(u8, Option<(u8, IpAddr)>)> {
        let word = word(self.memory());
        let position = |shift: u32| (word >> shift) as u8 & (layout::NAT_RING_POSITIONS - 1) as u8;
        let next = next_cell(word).and_then(|cell| {
            let vtep = self.vteps.iter().find(|(_, hop)| hop.cell == cell)?.0;
            Some((position(layout::NAT_RING_NEXT_SHIFT), *vtep))
        });
        (word & layout::NAT_RING_MEMBER != 0).then(|| (position(layout::NAT_RING_OWN_SHIFT), next))
    }

    fn store_nat_ring(&self, new: u64) -> bool {
        let changes = word(self.memory()) != new;
        if changes {
            self.memory().store64(layout::CELL_NODE, WORD, new);
        }
        changes
    }

    /// Makes the gateway alone in the ring if the next one is that of a cell, which is about to be no VTEP of a gateway.
    pub(super) fn leave_out_of_nat_ring(&self, cell: u32) {
        let word = word(self.memory());
        if next_cell(word) == Some(cell) {
            let own = (u64::from(layout::NAT_RING_POSITIONS) - 1) << layout::NAT_RING_OWN_SHIFT;
            self.store_nat_ring(word & (layout::NAT_RING_MEMBER | own));
        }
    }

    /// Leaves the next gateway out if the predecessor has ended before it did, or if the memory was damaged.
    pub(super) fn repair_nat_ring(&self) {
        let Some(cell) = next_cell(word(self.memory())) else { return };
        let known = self.vteps.iter().find(|(_, hop)| hop.cell == cell);
        if known.is_none_or(|(address, _)| self.role(*address) != Some(Role::Gateway)) {
            self.leave_out_of_nat_ring(cell);
        }
    }
}
