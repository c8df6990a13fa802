//! The shares that the ports of a host have of the session table: how many sessions each has, and may have.
//!
//! Packets count the records that they publish, and the sweep those whose slot it empties (`struct session_share`). A
//! sweep may be killed between emptying a slot and counting it. So it notes in the configuration, before it empties a
//! slot, what it will count, and its successor completes that.

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
    /// Records of sessions, including those that have ended and are not yet swept.
    pub sessions: u32,
    /// From this number on, new sessions are refused. While several processors create sessions at the same moment, there may be
    /// as many more as there are processors.
    pub limit: u32,
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
        // In this order, a session that begins and ends in between makes the number too high, never negative.
        let ended = load(offset_of!(session_share, ended));
        let begun = load(offset_of!(session_share, begun));
        Share { sessions: begun.wrapping_sub(ended), limit: load(offset_of!(session_share, limit)) }
    }

    /// Sets how many sessions a scope may have. 0: it is not in use.
    pub fn set_limit(&self, scope: u16, limit: u32) {
        self.region.store32(Self::at(scope, offset_of!(session_share, limit)), limit);
    }

    /// Forgets all sessions and limits, with the tables in which the sessions were.
    pub(super) fn clear(&self) {
        self.region.zero(0, Self::BYTES);
    }

    /// Sets what packets count.
    #[cfg(test)]
    pub(super) fn set_begun(&self, scope: u16, begun: u32) {
        self.region.store32(Self::at(scope, offset_of!(session_share, begun)), begun);
    }

    fn store_ended(&self, scope: u16, ended: u32) {
        self.region.store32(Self::at(scope, offset_of!(session_share, ended)), ended);
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
        let ended = self.region.load32(Self::at(scope, offset_of!(session_share, ended))).wrapping_add(1);
        let note = Note { ipv6: table.family.index() == 1, bucket, slot, generation: word.generation() };
        config.store64(EMPTYING + 8, u64::from(scope) << 32 | u64::from(ended));
        config.store64(EMPTYING, note.encode());
        // Only the sweep changes the tag word of a dying slot.
        let is_emptied = table.compare_and_swap(bucket, slot, word, word.emptied()).is_ok();
        if is_emptied {
            self.store_ended(scope, ended);
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
                self.store_ended((share >> 32) as u16, share as u32);
            }
        }
        config.store64(EMPTYING, 0);
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
