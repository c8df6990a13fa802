//! The numbers of public addresses, which the pools of VPCs have. An address gets a free number, and gives it back in three steps:
//! packets can claim no block of it any more; what they have is ended; the next complete round frees the number.
//!
//! The numbers are in the tables (`outside` and `flags` of struct nat_group), so that an agent knows those of the one before. The
//! first group of an address is the authority: its address is stored last, and cleared last.

use super::Nat;
use super::memory::Tables;
use crate::error::Error;
use std::net::Ipv4Addr;

/// A public address that has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// Its number, by which packets know it.
    pub number: u16,
    /// It was released, and its number is not free yet.
    pub is_released: bool,
}

impl Nat {
    /// The public addresses that have a number.
    pub fn addresses(&self) -> impl Iterator<Item = NumberedAddress> + '_ {
        self.numbers().filter(|numbered| !numbered.address.is_unspecified())
    }

    fn numbers(&self) -> impl Iterator<Item = NumberedAddress> + '_ {
        (0..self.tables.addresses()).map(|number| NumberedAddress {
            address: self.tables.outside(self.tables.groups_of(number).start),
            number: number as u16,
            is_released: self.tables.is_draining(number),
        })
    }

    /// Gives a public address a number, or tells the one that it has. Then packets may claim its blocks. An address that was
    /// released gets back its number; what it had has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the address cannot be that of a host. [`Error::NoNatNumber`] if all numbers are in use: those of
    /// addresses that were released are free after a complete round. Nothing has changed then.
    pub fn assign(&mut self, address: Ipv4Addr) -> Result<u16, Error> {
        if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
            return Err(Error::Invalid(format!("{address} cannot be a public address")));
        }
        let has = self.numbers().find(|numbered| numbered.address == address);
        let free = || self.numbers().find(|numbered| numbered.address.is_unspecified());
        let is_new = has.is_none();
        let number = has.or_else(free).ok_or_else(|| self.no_number(address))?.number;
        self.give(number.into(), address, is_new);
        Ok(number)
    }

    /// Gives a public address this number, which is free (`is_new`) or its own. Then packets may claim its blocks.
    pub(super) fn give(&self, number: u32, address: Ipv4Addr, is_new: bool) {
        let tables = &self.tables;
        self.share_blocks(number, address, is_new);
        tables.set_draining(number, false);
        for group in tables.groups_of(number).rev() {
            tables.set_outside(group, address);
        }
        for id in tables.groups_of(number).flat_map(Tables::blocks_of).filter(|&id| tables.is_usable(id)) {
            let word = tables.word(id);
            if word.is_withheld() {
                tables.swap_word(id, word, word.free());
            }
        }
    }

    /// Sets whose ports packets give out, of all public addresses, also of those that get a number later: those of the blocks for
    /// which `shares` is true, by the public address and the number of the block in it. Other blocks serve the mappings that they
    /// have, and those that other gateways give out. Tables that are new have no shares: packets give out all.
    ///
    /// A packet that comes meanwhile may claim a block or port of the share before. As long as gateways do not agree on the members
    /// of the cluster, so may two of them.
    pub fn set_shares(&mut self, shares: impl Fn(Ipv4Addr, u16) -> bool + Send + 'static) {
        self.shares = Some(Box::new(shares));
        self.share_all_blocks();
    }

    /// Keeps packets from claiming ports that are forwarded: those of the blocks with one of these ports of public addresses, also of
    /// addresses that get a number later. Mappings that these blocks have serve on until their sessions have ended. Before
    /// [`Nat::set_shares`], ports that are forwarded no longer stay as they are.
    ///
    /// A packet that comes meanwhile may claim such a port.
    pub fn set_forwarded(&mut self, ports: impl IntoIterator<Item = (Ipv4Addr, u16)>) {
        let shift = self.tables.block_shift();
        self.forwarded = ports.into_iter().map(|(address, port)| (address, port >> shift)).collect();
        self.share_all_blocks();
    }

    fn share_all_blocks(&self) {
        for known in self.addresses() {
            self.share_blocks(known.number.into(), known.address, false);
        }
    }

    /// Holds ports of blocks of which packets give out ports ([`Nat::set_shares`]) for so many rounds after the round that saw
    /// their last session, at most 1000: other gateways, which have copies of it, forget it meanwhile, and can install the next session of the port. An
    /// inside port that had one gets the same outside port again. Ports of other blocks are free as soon as possible, because
    /// this gateway has only copies of their sessions. What [`Nat::end`] ends is not held, and neither are tuples of shared ports.
    pub fn hold_ports(&mut self, rounds: u32) {
        self.held_rounds = rounds.min(1_000);
    }

    /// Sets of which blocks of a public address packets give out the ports.
    fn share_blocks(&self, number: u32, address: Ipv4Addr, is_new: bool) {
        let is_own = |block| match &self.shares {
            Some(shares) => shares(address, block),
            // What an earlier agent has set.
            None => is_new || self.tables.is_own(number, block),
        };
        let is_forwarded = |block| self.forwarded.contains(&(address, block));
        self.tables.set_shares(number, |block| is_own(block) && !is_forwarded(block));
    }

    fn no_number(&self, address: Ipv4Addr) -> Error {
        let released = self.addresses().filter(|numbered| numbered.is_released).count() as u32;
        Error::NoNatNumber { address, total: self.tables.addresses(), released }
    }

    /// Takes public addresses out of use, which are in the pool of no VPC any more: ends their sessions and blocks. Their numbers are
    /// free after the next complete round of the sweep. Returns how many were released: those that have no number, or were released
    /// before, are not. The sessions are looked at only if one of the addresses has blocks, and once for all.
    ///
    /// # Errors
    /// [`Error::Grace`]: the addresses are released, and their sessions end in the next complete round.
    pub fn release(&mut self, addresses: &[Ipv4Addr]) -> Result<usize, Error> {
        let is_meant = |known: &NumberedAddress| !known.is_released && addresses.contains(&known.address);
        let numbers: Vec<u16> = self.addresses().filter(is_meant).map(|known| known.number).collect();
        if numbers.is_empty() {
            return Ok(0);
        }
        for &number in &numbers {
            self.tables.set_draining(number.into(), true);
        }
        let closed = self.drain();
        if closed != Ok(0) {
            let waited = closed.and_then(|_| self.sessions.wait_for_packets());
            self.end_sessions(waited)?;
        }
        Ok(numbers.len())
    }

    /// Takes the blocks of addresses that were released from packets and from their owners. Returns how many had one.
    pub(super) fn drain(&self) -> Result<u64, Error> {
        let tables = &self.tables;
        let released = (0..tables.addresses()).filter(|&number| tables.is_draining(number));
        let blocks: Vec<_> =
            released.flat_map(|number| tables.groups_of(number)).flat_map(Tables::blocks_of).collect();
        if blocks.is_empty() {
            return Ok(0);
        }
        let mut closed = 0;
        for &id in &blocks {
            let word = tables.word(id);
            if word.is_free() {
                // If the swap fails, a packet has claimed it.
                tables.swap_word(id, word, word.withheld());
            }
        }
        self.sessions.wait_for_packets()?;
        for &id in &blocks {
            let word = tables.word(id);
            if word.is_claimed() {
                // The packet was killed.
                tables.swap_word(id, word, word.returned().withheld());
            }
            closed += u64::from(tables.close(id));
        }
        Ok(closed)
    }

    /// At the end of a round: frees the numbers of addresses that were released and have no block any more.
    pub(super) fn free_numbers(&self) {
        let tables = &self.tables;
        for number in (0..tables.addresses()).filter(|&number| tables.is_draining(number)) {
            let groups = tables.groups_of(number);
            if groups.clone().flat_map(Tables::blocks_of).all(|id| tables.word(id).is_withheld()) {
                groups.rev().for_each(|group| tables.set_outside(group, Ipv4Addr::UNSPECIFIED));
                tables.set_draining(number, false);
            }
        }
    }
}
