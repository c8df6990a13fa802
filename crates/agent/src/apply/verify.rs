//! Names the entries that a snapshot repairs, after the controller found that the digests of some shards differ. This file
//! changes with what digests count.
//!
//! Before the snapshot is applied, the entries of these shards are collected as lookups find them. Each entry of the
//! snapshot is compared with these, and what the snapshot does not mention is additional.

use std::collections::HashMap;
use std::fmt::Display;

use sluice_southbound::{MAX_FAILURES, Update};
use sluice_types::{DIGEST_SHARDS, EntryHash, EntryKey};

/// From this number of different shards on, the tables are not relied on until they are repaired: a gateway then gives
/// its vIPs to others. A few damaged cells concern fewer shards.
const MASS_SHARDS: u32 = DIGEST_SHARDS as u32 / 4;

/// What a snapshot repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Number of entries that were wrong, missing or additional.
    pub differences: u64,
    /// The first of them, at most [`MAX_FAILURES`].
    pub named: Vec<String>,
}

/// A comparison in progress.
pub(super) struct Verification {
    shards: u64,
    /// Entries of these shards that the snapshot has not mentioned yet.
    present: HashMap<EntryKey, EntryHash>,
    repaired: Repaired,
}

impl Verification {
    /// Begins a comparison of `shards`, one bit for each.
    pub(super) fn begin(shards: u64) -> Self {
        Self { shards, present: HashMap::new(), repaired: Repaired::default() }
    }

    /// Collects an entry of the tables.
    pub(super) fn note_present(&mut self, key: EntryKey, hash: EntryHash) {
        if self.concerns(hash) && self.present.insert(key, hash).is_some() {
            self.name(key, "is there twice");
        }
    }

    /// Whether so much differs that the tables cannot be relied on.
    pub(super) fn is_mass(shards: u64) -> bool {
        shards.count_ones() >= MASS_SHARDS
    }

    fn concerns(&self, hash: EntryHash) -> bool {
        self.shards >> hash.shard() & 1 != 0
    }

    fn name(&mut self, key: impl Display, what: &str) {
        self.repaired.differences += 1;
        if self.repaired.named.len() < MAX_FAILURES {
            self.repaired.named.push(format!("{key} {what}"));
        }
    }

    /// Compares the entries of a message.
    pub(super) fn note(&mut self, update: &Update) {
        for (key, hash) in update.entry_hashes() {
            if self.concerns(hash) {
                match self.present.remove(&key) {
                    Some(found) if found == hash => {}
                    Some(_) => self.name(key, "was wrong"),
                    None => self.name(key, "was missing"),
                }
            }
        }
    }

    /// The snapshot is complete.
    pub(super) fn end(mut self) -> Repaired {
        let additional: Vec<EntryKey> = self.present.drain().map(|(key, _)| key).collect();
        additional.into_iter().for_each(|key| self.name(key, "was additional"));
        self.repaired
    }
}
