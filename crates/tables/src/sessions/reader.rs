//! Reads sessions while packets and the sweep change them.

use super::key::{Candidates, Family, Flow, Hashing, Key};
use super::table::{SLOTS, Table};
use super::{Direction, Session, SessionRegions, Timeouts, slot_number};
use crate::region::Region;
use std::ops::Range;

/// Searches before a lookup finds nothing: the slot may change while it is read, and the session may move to a
/// slot that the search has passed.
const ATTEMPTS: u32 = 4;

/// Reads the tables. Clones may be used by any thread, also during the sweep. The generation reveals a slot
/// that is reused while it is read, so that parts of two sessions are never combined.
#[derive(Clone, Debug)]
pub struct SessionReader {
    /// The configuration, which has the secrets of the hash function.
    config: Region,
    /// Indexed by [`Family::index`].
    pub(super) tables: [Table; 2],
}

impl SessionReader {
    pub(super) fn new(regions: &SessionRegions, [buckets4, buckets6]: [u32; 2]) -> Self {
        let tables = [
            Table::new(Family::Ipv4, buckets4, regions.ipv4.clone()),
            Table::new(Family::Ipv6, buckets6, regions.ipv6.clone()),
        ];
        Self { config: regions.config.clone(), tables }
    }

    /// The table of a key, and the buckets in which it can be.
    pub(super) fn candidates(&self, key: &Key) -> (&Table, Candidates) {
        let table = &self.tables[key.family.index()];
        (table, Hashing::load(&self.config).candidates(key, table.buckets))
    }

    /// Where something else is whose key is hashed as those of IPv4 sessions, in a table of as many buckets: its two candidates, and
    /// further hash bits.
    pub(crate) fn place(&self, key: [u64; 2]) -> ([u32; 2], u32) {
        let buckets = self.tables[Family::Ipv4.index()].buckets;
        Hashing::load(&self.config).place(&key, buckets)
    }

    /// The session of a flow of either direction, unless it has expired. A session that ends during the call
    /// may be found or not.
    #[must_use]
    pub fn lookup(&self, flow: &Flow, now: u32) -> Option<(Session, Direction)> {
        let key = Key::of(flow)?;
        let (table, candidates) = self.candidates(&key);
        // Unlike a packet program, a thread can be interrupted between two loads until the slot has been
        // reused.
        (0..ATTEMPTS).find_map(|_| {
            let (bucket, slot, word) = table.find(&key, &candidates, now)?;
            let session = table.session(bucket, slot, word)?;
            Some((session, session.direction(flow)))
        })
    }

    /// Calls `visit` for each live session in these buckets, with the number of its slot ([`super::Sessions::review_slots`]). Sessions
    /// that begin or end meanwhile may be included or not.
    pub fn visit(&self, family: Family, buckets: Range<u32>, mut visit: impl FnMut(usize, &Session)) {
        let table = &self.tables[family.index()];
        for bucket in buckets.start..buckets.end.min(table.buckets) {
            for slot in 0..SLOTS {
                let word = table.word(bucket, slot);
                if word.is_live()
                    && let Some(session) = table.session(bucket, slot, word)
                {
                    visit(slot_number(bucket, slot), &session);
                }
            }
        }
    }

    /// The timeouts that packets use.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        Timeouts::load(&self.config)
    }

    /// Number of buckets of a family.
    #[must_use]
    pub fn buckets(&self, family: Family) -> u32 {
        self.tables[family.index()].buckets
    }

    /// All live sessions, including those that have expired and are not yet swept. Sessions that begin or end
    /// meanwhile may be included or not.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { reader: self, family: 0, bucket: 0, slot: 0 }
    }
}

impl<'a> IntoIterator for &'a SessionReader {
    type Item = Session;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterator over all live sessions, made by [`SessionReader::iter`].
#[derive(Debug)]
pub struct Iter<'a> {
    reader: &'a SessionReader,
    family: usize,
    bucket: u32,
    slot: u32,
}

impl Iterator for Iter<'_> {
    type Item = Session;

    fn next(&mut self) -> Option<Session> {
        loop {
            let table = self.reader.tables.get(self.family)?;
            if self.bucket >= table.buckets {
                (self.family, self.bucket) = (self.family + 1, 0);
                continue;
            }
            let (bucket, slot) = (self.bucket, self.slot);
            self.slot += 1;
            if self.slot == SLOTS {
                (self.bucket, self.slot) = (bucket + 1, 0);
            }
            let word = table.word(bucket, slot);
            if word.is_live()
                && let Some(session) = table.session(bucket, slot, word)
            {
                return Some(session);
            }
        }
    }
}
