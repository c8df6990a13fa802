//! The sweep: ends what has expired and makes room, a few buckets at a time.

use super::key::Family;
use super::table::{SLOTS, Table, Word};
use super::{SessionReader, Sessions};
use crate::error::Error;

/// Slots that one step of the sweep holds for its grace period.
pub const DYING_MAX: usize = 1 << 16;

/// Buckets that are counted together.
const BLOCK_BUCKETS: u32 = 1 << 12;
/// How far ahead of the sweep words are fetched.
const AHEAD: u32 = 16;

/// What a step of the sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Buckets looked at.
    pub buckets: u64,
    /// Sessions that it ended because they were past their time.
    pub expired: u64,
    /// Slots that are empty again, theirs and those of sessions ended otherwise.
    pub freed: u64,
    /// True if it came to the end of the tables: the next step begins anew.
    pub is_whole: bool,
}

/// Where the sweep is, and what it saw.
#[derive(Debug)]
pub(super) struct Progress {
    family: usize,
    bucket: u32,
    /// Live sessions of the present block, as far as it was swept.
    block_live: u32,
    /// Of each block when it was last swept, by family.
    live: [Vec<u32>; 2],
    /// Slots seen dying, with their words.
    dying: Vec<(usize, u32, u32, Word)>,
}

impl Progress {
    pub(super) fn new(tables: &[Table; 2]) -> Self {
        let blocks = |table: &Table| vec![0; table.buckets.div_ceil(BLOCK_BUCKETS) as usize];
        Self {
            family: 0,
            bucket: 0,
            block_live: 0,
            live: [blocks(&tables[0]), blocks(&tables[1])],
            dying: Vec::new(),
        }
    }

    /// Counts what is there, as if the sweep had come by.
    pub(super) fn count(&mut self, tables: &[Table; 2], now: u32) {
        for (table, blocks) in tables.iter().zip(&mut self.live) {
            for bucket in 0..table.buckets {
                table.prefetch(bucket + AHEAD);
                let live = (0..SLOTS).filter(|&slot| {
                    let word = table.word(bucket, slot);
                    word.is_live() && !word.is_past(now)
                });
                blocks[(bucket / BLOCK_BUCKETS) as usize] += live.count() as u32;
            }
        }
    }

    pub(super) fn live(&self, family: Family) -> u64 {
        self.live[family.index()].iter().map(|&live| u64::from(live)).sum()
    }

    /// A session was removed.
    pub(super) fn lost_one(&mut self, family: Family, bucket: u32) {
        let live = &mut self.live[family.index()][(bucket / BLOCK_BUCKETS) as usize];
        *live = live.saturating_sub(1);
    }

    /// One bucket: ends what is past its time, notes what is dying. Expired sessions.
    fn visit(&mut self, table: &Table, now: u32) -> u64 {
        let mut expired = 0;
        for slot in 0..SLOTS {
            let mut word = table.word(self.bucket, slot);
            if word.is_live() && word.is_past(now) {
                match table.swap(self.bucket, slot, word, word.dying()) {
                    Ok(()) => {
                        word = word.dying();
                        expired += 1;
                    }
                    // Refreshed in between, or ended by another.
                    Err(seen) => word = seen,
                }
            }
            if word.is_live() {
                self.block_live += 1;
            } else if word.is_dying() {
                self.dying.push((self.family, self.bucket, slot, word));
            }
        }
        expired
    }

    /// To the next bucket. True at the end of the tables.
    fn advance(&mut self, tables: &[Table; 2]) -> bool {
        let is_last = self.bucket + 1 == tables[self.family].buckets;
        if is_last || (self.bucket + 1).is_multiple_of(BLOCK_BUCKETS) {
            self.live[self.family][(self.bucket / BLOCK_BUCKETS) as usize] = self.block_live;
            self.block_live = 0;
        }
        self.bucket += 1;
        if is_last {
            (self.family, self.bucket) = (1 - self.family, 0);
        }
        is_last && self.family == 0
    }

    /// Makes what was seen dying empty. A grace period has passed since.
    fn free(&mut self, reader: &SessionReader) -> u64 {
        let freed = self.dying.drain(..).filter(|&(family, bucket, slot, word)| {
            // Nobody else changes a dying word.
            reader.tables[family].swap(bucket, slot, word, word.emptied()).is_ok()
        });
        freed.count() as u64
    }
}

impl Sessions {
    /// One step of the sweep: looks at `buckets` buckets from where the last one
    /// ended, or less if [`DYING_MAX`] slots are dying by then, ends sessions
    /// that are past their time at `now`, waits for a grace period if there is
    /// anything to free, and frees it. Packets never wait. A slot that dies is
    /// free again when the sweep has come by once more, so call it often enough
    /// that it comes around within the shortest timeout.
    ///
    /// # Errors
    /// [`Error::Grace`]; then nothing was freed, and the next rounds try again.
    pub fn sweep(&mut self, buckets: u32, now: u32) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let tables = &self.reader.tables;
        while swept.buckets < u64::from(buckets)
            && !swept.is_whole
            && self.progress.dying.len() + SLOTS as usize <= DYING_MAX
        {
            let table = &tables[self.progress.family];
            table.prefetch(self.progress.bucket.saturating_add(AHEAD));
            swept.expired += self.progress.visit(table, now);
            swept.buckets += 1;
            swept.is_whole = self.progress.advance(tables);
        }
        if self.progress.dying.is_empty() {
            return Ok(swept);
        }
        if let Err(error) = self.grace.wait() {
            self.progress.dying.clear();
            return Err(error.into());
        }
        swept.freed = self.progress.free(&self.reader);
        Ok(swept)
    }
}
