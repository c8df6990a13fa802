//! The shares that the ports of a host have of the session table: how many sessions each has, and may have.
//!
//! A port has a limit. Of it, neither the sessions that the VM begins nor those that others begin with it may take all. A part of
//! the limit is assured: ports that have more share what is left of the table, so that no number of ports that are filled
//! from outside leaves another port without room.
//!
//! Packets count the records that they publish, and the sweep those whose slot it empties (`struct session_share`). A
//! sweep may be killed between emptying a slot and counting it. So it notes in the configuration, before it empties a
//! slot, what it will count, and its successor completes that.

use super::Sessions;
use super::key::Family;
use super::table::{Table, TagWord};
use crate::error::Error;
use crate::layout::{self, session_config, session_share};
use crate::region::Region;
use std::mem::{offset_of, size_of};

/// The shares by scope: the map `session_shares`. Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct SessionShares {
    region: Region,
}

/// Sessions of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Records of sessions, including those that have ended and are not yet swept: those that the other end began, and those
    /// that the VM began.
    pub by_origin: [u32; 2],
    /// From this number on, new sessions are refused. While several processors create sessions at the same moment, there may be
    /// as many more as there are processors.
    pub limit: u32,
    /// The same for each number of `by_origin`.
    pub limit_each: u32,
    /// Up to this number, there is room whatever other scopes have.
    pub assured: u32,
}

impl Share {
    /// Records of sessions of both kinds.
    #[must_use]
    pub fn sessions(&self) -> u32 {
        self.by_origin[0].wrapping_add(self.by_origin[1])
    }

    /// Whether more than three quarters of what it may have are used.
    fn is_scarce(&self) -> bool {
        let is_scarce = |sessions: u32, limit: u32| u64::from(sessions) * 4 > u64::from(limit) * 3;
        let each = self.by_origin.into_iter().max().unwrap_or(0);
        is_scarce(self.sessions(), self.limit) || is_scarce(each, self.limit_each)
    }
}

impl SessionShares {
    /// Size of the map.
    pub const BYTES: usize = layout::SESSION_SCOPES as usize * size_of::<session_share>();

    /// Uses the memory of the map.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has another size.
    pub fn new(region: Region) -> Result<Self, Error> {
        if region.bytes() < Self::BYTES {
            let (found, needed) = (region.bytes(), Self::BYTES);
            return Err(Error::Invalid(format!(
                "the map of session shares has {found} bytes, but needs {needed}"
            )));
        }
        Ok(Self { region })
    }

    /// Maps zeroed memory of this process.
    ///
    /// # Errors
    /// If the kernel refuses the mapping.
    pub fn anonymous() -> std::io::Result<Self> {
        Ok(Self { region: Region::anonymous(Self::BYTES)? })
    }

    fn at(scope: u16, offset: usize) -> usize {
        usize::from(scope) * size_of::<session_share>() + offset
    }

    /// The sessions of a scope.
    #[must_use]
    pub fn get(&self, scope: u16) -> Share {
        let load = |offset| self.region.load32(Self::at(scope, offset));
        let sessions = |index: usize| {
            // In this order, a session that begins and ends in between makes the number too high, never negative.
            let ended = load(offset_of!(session_share, ended) + index * 4);
            load(offset_of!(session_share, begun) + index * 4).wrapping_sub(ended)
        };
        Share {
            by_origin: [sessions(0), sessions(1)],
            limit: load(offset_of!(session_share, limit)),
            limit_each: load(offset_of!(session_share, limit_each)),
            assured: load(offset_of!(session_share, assured)),
        }
    }

    /// Sets how many sessions a scope may have, of which three quarters may be of the same origin. 0: it is not in use.
    pub fn set_limit(&self, scope: u16, limit: u32) {
        self.region.store32(Self::at(scope, offset_of!(session_share, limit_each)), limit - limit / 4);
        self.region.store32(Self::at(scope, offset_of!(session_share, limit)), limit);
    }

    /// Balances the books of a scope that has no session and can begin none.
    pub fn reset(&self, scope: u16) {
        for index in 0..2 {
            let begun = self.region.load32(Self::at(scope, offset_of!(session_share, begun) + index * 4));
            self.region.store32(Self::ended_at(scope, index), begun);
        }
    }

    /// Sets how many sessions of a scope have room whatever others have.
    pub fn set_assured(&self, scope: u16, assured: u32) {
        self.region.store32(Self::at(scope, offset_of!(session_share, assured)), assured);
    }

    /// Counts a record that was published: 1 of those that the VM began, otherwise 0.
    pub(super) fn add_begun(&self, scope: u16, index: usize) {
        self.region.add32(Self::at(scope, offset_of!(session_share, begun) + index * 4), 1);
    }

    /// Takes back what was counted for a record that was not published.
    pub(super) fn take_back_begun(&self, scope: u16, index: usize) {
        self.region.add32(Self::at(scope, offset_of!(session_share, begun) + index * 4), u32::MAX);
    }

    /// Forgets all sessions and limits, with the tables in which the sessions were.
    pub(super) fn clear(&self) {
        self.region.zero(0, Self::BYTES);
    }

    /// Sets what packets count.
    #[cfg(test)]
    pub(super) fn set_begun(&self, scope: u16, index: usize, begun: u32) {
        self.region.store32(Self::at(scope, offset_of!(session_share, begun) + index * 4), begun);
    }

    fn ended_at(scope: u16, index: usize) -> usize {
        Self::at(scope, offset_of!(session_share, ended) + index * 4)
    }

    /// Empties a slot that was seen dying with `word`, and counts its session. A grace period has passed since. Returns
    /// false if the slot is not dying any more.
    pub(super) fn empty_slot(
        &self,
        config: &Region,
        table: &Table,
        (bucket, slot): (u32, u32),
        word: TagWord,
    ) -> bool {
        let Ok(scope) = u16::try_from(table.scope(bucket, slot)) else {
            return table.compare_and_swap(bucket, slot, word, word.emptied()).is_ok();
        };
        let index = usize::from(table.is_egress(bucket, slot));
        let ended_at = Self::ended_at(scope, index);
        let ended = self.region.load32(ended_at).wrapping_add(1);
        let note = Note { ipv6: table.family.index() == 1, bucket, slot, generation: word.generation() };
        config.store64(EMPTYING + 8, (index as u64) << 48 | u64::from(scope) << 32 | u64::from(ended));
        config.store64(EMPTYING, note.encode());
        // Only the sweep changes the tag word of a dying slot.
        let is_emptied = table.compare_and_swap(bucket, slot, word, word.emptied()).is_ok();
        if is_emptied {
            self.region.store32(ended_at, ended);
        }
        config.store64(EMPTYING, 0);
        is_emptied
    }

    /// Completes the counting of a slot that another agent was emptying when it was killed.
    pub(super) fn complete(&self, config: &Region, tables: &[Table; 2]) {
        let Some(note) = Note::decode(config.load64(EMPTYING)) else { return };
        let table = &tables[usize::from(note.ipv6)];
        let share = config.load64(EMPTYING + 8);
        if note.bucket < table.buckets {
            let word = table.word(note.bucket, note.slot);
            // A slot changes its generation when it becomes empty, and only the sweep empties slots.
            if word.generation() != note.generation {
                let ended_at = Self::ended_at((share >> 32) as u16, (share >> 48) as usize & 1);
                self.region.store32(ended_at, share as u32);
            }
        }
        config.store64(EMPTYING, 0);
    }
}

impl Sessions {
    /// Divides the room between ports, each of which may have `limit` sessions, and finds those that have little left: their
    /// sessions that are closed or not answered end soon ([`Sessions::sweep`]). If the table has less room than all of them may
    /// take, half of it is assured to them in equal parts, and what is left is shared by those that need more. `others` are
    /// scopes whose sessions are being removed. To be called a few times a second.
    pub fn share_out(&mut self, ports: &[u16], others: &[u16], limit: u32) {
        let Some(shares) = &self.shares else { return };
        let capacity = [Family::Ipv4, Family::Ipv6].map(|family| self.usage(family).slots * 2 / 3);
        let capacity = capacity.into_iter().min().unwrap_or(0);
        let count = ports.len().max(1) as u64;
        let is_enough = u64::from(limit) * count <= capacity;
        let part = if is_enough { limit } else { limit.min((capacity / 2 / count) as u32) };
        let load = |offset| self.config.load32(offset);
        // Read first: what begins meanwhile is counted twice until the next time, and never forgotten.
        let begun = load(offset_of!(session_config, shared_begun));
        let mut used: u64 = others.iter().map(|scope| u64::from(shares.get(*scope).sessions())).sum();
        for scope in ports {
            shares.set_assured(*scope, part);
            used += u64::from(shares.get(*scope).sessions().saturating_sub(part));
        }
        let left = u32::try_from(capacity - u64::from(part) * ports.len() as u64).unwrap_or(u32::MAX);
        let ended = begun.wrapping_sub(u32::try_from(used).unwrap_or(u32::MAX));
        self.config.store32(offset_of!(session_config, shared_limit), left);
        self.config.store32(offset_of!(session_config, shared_ended), ended);
        let is_all_scarce = used > 0 && used * 4 > u64::from(left) * 3;
        let is_scarce = |scope: &&u16| {
            let share = shares.get(**scope);
            // A port that waits for its guest has no limit yet.
            share.limit > 0 && share.is_scarce() || is_all_scarce && share.sessions() > part
        };
        let scarce = ports.iter().filter(is_scarce).map(|scope| u32::from(*scope)).collect();
        self.progress.set_scarce(scarce, &self.config);
    }
}

const EMPTYING: usize = offset_of!(session_config, emptying);

/// The slot that is being emptied: `emptying[0]` of `struct session_config`.
struct Note {
    ipv6: bool,
    bucket: u32,
    slot: u32,
    generation: u16,
}

impl Note {
    fn encode(&self) -> u64 {
        1 << 63
            | u64::from(self.generation) << 40
            | u64::from(self.ipv6) << 35
            | u64::from(self.slot) << 32
            | u64::from(self.bucket)
    }

    fn decode(word: u64) -> Option<Self> {
        let slot = (word >> 32) as u32 & 7;
        (word >> 63 != 0 && slot < layout::SESSION_SLOTS).then_some(Self {
            ipv6: word >> 35 & 1 != 0,
            bucket: word as u32,
            slot,
            generation: (word >> 40) as u16 & layout::SESSION_GENERATION_MASK as u16,
        })
    }
}
