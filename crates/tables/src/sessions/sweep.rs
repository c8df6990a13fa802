//! The sweep: ends expired sessions and frees slots, a few buckets at a time.

use super::key::Family;
use super::table::{SLOTS, Table, TagWord};
use super::timeouts::WhenScarce;
use super::{Fate, Reviewed, Session, SessionReader, SessionShares, Sessions};
use crate::error::Error;
use crate::region::Region;
use std::collections::BTreeSet;

/// Maximum number of slots that one step of the sweep frees after its grace period.
pub const DYING_MAX: usize = 1 << 16;

/// Buckets that are counted together.
const BLOCK_BUCKETS: u32 = 1 << 12;
/// Tag words are prefetched this many buckets ahead.
const PREFETCH_AHEAD: u32 = 16;

/// Result of a step of the sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Buckets that were looked at.
    pub buckets: u64,
    /// Sessions that were ended because they had expired, or to make room.
    pub expired: u64,
    /// Slots that were freed: those of expired sessions, and of sessions that ended otherwise.
    pub freed: u64,
    /// True if the step reached the end of the tables. The next step begins at their start.
    pub round_completed: bool,
}

/// The position of the sweep, and what it has seen.
#[derive(Debug)]
pub(super) struct Progress {
    family: usize,
    bucket: u32,
    /// Live sessions in the present block, as far as it was swept.
    block_live: u32,
    /// By family: live sessions in each block when it was last swept.
    live: [Vec<u32>; 2],
    /// Slots that were seen dying, or claimed: family, bucket, slot and tag word.
    dying: Vec<(usize, u32, u32, TagWord)>,
    /// Sessions that were revoked: family, bucket, slot and tag word.
    pub(super) revoked: Vec<(Family, u32, u32, TagWord)>,
    /// Scopes that have little room left, and how soon their sessions end; `None`: all have enough.
    scarce: Option<(BTreeSet<u32>, WhenScarce)>,
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
            revoked: Vec::new(),
            scarce: None,
        }
    }

    /// These scopes have little room left.
    pub(super) fn set_scarce(&mut self, scopes: BTreeSet<u32>, config: &Region) {
        self.scarce = (!scopes.is_empty()).then(|| (scopes, WhenScarce::read(config)));
    }

    /// Whether a live session ends before its time, because its scope has little room left.
    fn makes_room(&self, table: &Table, slot: u32, word: TagWord, now: u32) -> bool {
        let Some((scopes, when_scarce)) = &self.scarce else { return false };
        let left = word.expires_at().wrapping_sub(now);
        when_scarce.may_end(left)
            && scopes.contains(&table.scope(self.bucket, slot))
            && when_scarce.ends(table.protocol_and_state(self.bucket, slot), left)
    }

    /// Counts the sessions in all blocks, as the sweep does.
    pub(super) fn count(&mut self, tables: &[Table; 2], now: u32) {
        for (table, blocks) in tables.iter().zip(&mut self.live) {
            for bucket in 0..table.buckets {
                table.prefetch(bucket + PREFETCH_AHEAD);
                let live = (0..SLOTS).filter(|&slot| {
                    let word = table.word(bucket, slot);
                    word.is_live() && !word.has_expired(now)
                });
                blocks[(bucket / BLOCK_BUCKETS) as usize] += live.count() as u32;
            }
        }
    }

    pub(super) fn live(&self, family: Family) -> u64 {
        self.live[family.index()].iter().map(|&live| u64::from(live)).sum()
    }

    /// Records that a session was removed.
    pub(super) fn session_removed(&mut self, family: Family, bucket: u32) {
        let live = &mut self.live[family.index()][(bucket / BLOCK_BUCKETS) as usize];
        *live = live.saturating_sub(1);
    }

    /// Ends the expired sessions of the present bucket, and those that make room, and collects its dying slots. Returns the
    /// number of sessions that it ended.
    fn visit(&mut self, table: &Table, now: u32) -> u64 {
        let mut expired = 0;
        for slot in 0..SLOTS {
            let mut word = table.word(self.bucket, slot);
            if word.is_live() && (word.has_expired(now) || self.makes_room(table, slot, word, now)) {
                match table.compare_and_swap(self.bucket, slot, word, word.dying()) {
                    Ok(()) => {
                        word = word.dying();
                        expired += 1;
                    }
                    // A packet has refreshed or ended the session in between.
                    Err(seen) => word = seen,
                }
            }
            if word.is_live() {
                self.block_live += 1;
            } else if word.is_dying() || word.is_claimed() {
                self.dying.push((self.family, self.bucket, slot, word));
            }
        }
        expired
    }

    /// Advances to the next bucket. Returns true at the end of the tables.
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

    /// Empties the slots that were seen dying. A grace period has passed since. So if a claimed slot still is claimed, the
    /// packet that did it was killed; it counted no record.
    fn free(&mut self, reader: &SessionReader, config: &Region, shares: Option<&SessionShares>) -> u64 {
        let freed = self.dying.drain(..).filter(|&(family, bucket, slot, word)| {
            let table = &reader.tables[family];
            match shares {
                Some(shares) if word.is_dying() => shares.empty_slot(config, table, (bucket, slot), word),
                // Only the sweep changes the tag word of a dying slot.
                _ => table.compare_and_swap(bucket, slot, word, word.emptied()).is_ok(),
            }
        });
        freed.count() as u64
    }
}

impl Sessions {
    /// Makes one step of the sweep: looks at `buckets` buckets from where the last step ended, or fewer if
    /// [`DYING_MAX`] slots are dying by then; ends sessions that have expired at `now`, and of ports that have little room
    /// left ([`Sessions::share_out`]) those that are closed for 2 s or not answered for 5 s; and, if there are
    /// slots to free, waits for a grace period and frees them. Packets never wait. A dying slot is freed when
    /// the sweep reaches it, so the sweep should complete a round within the shortest timeout.
    ///
    /// # Errors
    /// [`Error::Grace`]; no slot was freed then, and the next round tries again.
    pub fn sweep(&mut self, buckets: u32, now: u32) -> Result<Swept, Error> {
        let (mut swept, _) = self.visit(buckets, now, None);
        swept.freed = self.free_dying()?;
        Ok(swept)
    }

    /// The first part of [`Sessions::sweep`]. Also calls `decide` as [`Sessions::review`] does for the sessions of each bucket,
    /// after those that have expired were ended.
    pub(crate) fn visit(
        &mut self,
        buckets: u32,
        now: u32,
        mut decide: Option<&mut dyn FnMut(&Session) -> Fate>,
    ) -> (Swept, Reviewed) {
        let (mut swept, mut reviewed) = (Swept::default(), Reviewed::default());
        while swept.buckets < u64::from(buckets)
            && !swept.round_completed
            && self.progress.dying.len() + SLOTS as usize <= DYING_MAX
        {
            let (family, bucket) = (self.progress.family, self.progress.bucket);
            let table = &self.reader.tables[family];
            table.prefetch(bucket.saturating_add(PREFETCH_AHEAD));
            swept.expired += self.progress.visit(table, now);
            if let Some(decide) = &mut decide {
                let family = if family == 0 { Family::Ipv4 } else { Family::Ipv6 };
                reviewed += self.review(family, bucket..bucket + 1, &mut **decide);
            }
            swept.buckets += 1;
            swept.round_completed = self.progress.advance(&self.reader.tables);
        }
        (swept, reviewed)
    }

    /// The last part of [`Sessions::sweep`]: frees the slots that were seen dying. Returns their number.
    pub(crate) fn free_dying(&mut self) -> Result<u64, Error> {
        if self.progress.dying.is_empty() {
            return Ok(0);
        }
        if let Err(error) = self.grace.wait() {
            self.progress.dying.clear();
            return Err(error.into());
        }
        Ok(self.progress.free(&self.reader, &self.config, self.shares.as_ref()))
    }

    /// Lets the sweep go on at the first bucket.
    pub(crate) fn restart_sweep(&mut self) {
        (self.progress.family, self.progress.bucket, self.progress.block_live) = (0, 0, 0);
    }
}
