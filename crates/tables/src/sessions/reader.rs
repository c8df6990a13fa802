//! Reading sessions while packets and the sweep change them.

use super::key::{Family, Flow, Hashing, Key, Place};
use super::table::{SLOTS, Table};
use super::{Direction, Session, SessionRegions};

/// How often a lookup starts anew because its slot changed under it.
const RETRIES: u32 = 4;

/// Reads the tables; clones may be used by any thread, beside the sweep. A slot
/// that begins another life while it is read is seen by its generation, so that
/// no session is ever made of two.
#[derive(Clone, Debug)]
pub struct SessionReader {
    hashing: Hashing,
    /// By [`Family::index`].
    pub(super) tables: [Table; 2],
}

impl SessionReader {
    pub(super) fn new(regions: &SessionRegions, hashing: Hashing, [buckets4, buckets6]: [u32; 2]) -> Self {
        let tables = [
            Table::new(Family::Ipv4, buckets4, regions.ipv4.clone()),
            Table::new(Family::Ipv6, buckets6, regions.ipv6.clone()),
        ];
        Self { hashing, tables }
    }

    pub(super) fn place(&self, key: &Key) -> (&Table, Place) {
        let table = &self.tables[key.family.index()];
        (table, self.hashing.place(key, table.buckets))
    }

    /// The session of a flow of either direction, unless it is past its time.
    /// A session that ends during the call may be found or not.
    #[must_use]
    pub fn lookup(&self, flow: &Flow, now: u32) -> Option<(Session, Direction)> {
        let key = Key::of(flow)?;
        let (table, place) = self.place(&key);
        // Unlike a packet, a thread may be held up between two words until the slot has a new life.
        (0..RETRIES).find_map(|_| {
            let (bucket, slot, word) = table.find(&key, &place, now)?;
            let session = table.session(bucket, slot, word)?;
            Some((session, session.direction(flow)))
        })
    }

    /// All live sessions, also those that are past their time and not yet
    /// swept. Sessions that begin or end meanwhile may be among them or not.
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

/// See [`SessionReader::iter`].
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
