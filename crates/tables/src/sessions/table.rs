//! One family's buckets: words, records, and reading them while packets write.

use super::key::{Family, Flow, Key, Place};
use super::{Direction, Session};
use crate::layout;
use crate::region::Region;
use std::mem::{offset_of, size_of};

pub(super) const SLOTS: u32 = layout::SESSION_SLOTS;

/// A tag word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub u64);

const TAG_AND_STATE: u64 =
    (layout::SESSION_TAG_MASK as u64) << layout::SESSION_TAG_SHIFT | layout::SESSION_STATE_MASK as u64;

impl Word {
    pub(super) fn state(self) -> u32 {
        self.0 as u32 & layout::SESSION_STATE_MASK
    }

    pub(super) fn is_live(self) -> bool {
        self.state() == layout::SESSION_LIVE
    }

    pub(super) fn is_dying(self) -> bool {
        self.state() == layout::SESSION_DYING
    }

    pub(super) fn generation(self) -> u16 {
        (self.0 >> layout::SESSION_GENERATION_SHIFT) as u16 & layout::SESSION_GENERATION_MASK as u16
    }

    pub(super) fn expires_at(self) -> u32 {
        (self.0 >> layout::SESSION_EXPIRES_SHIFT) as u32
    }

    /// As packets see it, by the sign of the difference.
    pub(super) fn is_past(self, now: u32) -> bool {
        self.expires_at().wrapping_sub(now).cast_signed() <= 0
    }

    /// The word of a live record after its end.
    pub(super) fn dying(self) -> Self {
        Self(self.0 | u64::from(layout::SESSION_DYING))
    }

    /// The word of the slot when it is empty again.
    pub(super) fn emptied(self) -> Self {
        let generation = self.generation().wrapping_add(1) & layout::SESSION_GENERATION_MASK as u16;
        Self(u64::from(generation) << layout::SESSION_GENERATION_SHIFT)
    }

    /// A record's life: all but the expiry.
    fn life(self) -> u32 {
        self.0 as u32
    }
}

/// A family's buckets.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub family: Family,
    pub buckets: u32,
    region: Region,
}

impl Family {
    pub(super) const fn bucket_bytes(self) -> usize {
        match self {
            Self::Ipv4 => size_of::<layout::session_bucket4>(),
            Self::Ipv6 => size_of::<layout::session_bucket6>(),
        }
    }

    const fn record_bytes(self) -> usize {
        match self {
            Self::Ipv4 => size_of::<layout::session4>(),
            Self::Ipv6 => size_of::<layout::session6>(),
        }
    }
}

impl Table {
    /// `buckets` of the region, which has them.
    pub(super) fn new(family: Family, buckets: u32, region: Region) -> Self {
        assert!(buckets as usize * family.bucket_bytes() <= region.bytes(), "the region has the buckets");
        Self { family, buckets, region }
    }

    fn word_at(&self, bucket: u32, slot: u32) -> usize {
        debug_assert!(bucket < self.buckets && slot < SLOTS);
        bucket as usize * self.family.bucket_bytes()
            + offset_of!(layout::session_bucket4, tag)
            + slot as usize * 8
    }

    fn record_at(&self, bucket: u32, slot: u32) -> usize {
        bucket as usize * self.family.bucket_bytes()
            + offset_of!(layout::session_bucket4, record)
            + slot as usize * self.family.record_bytes()
    }

    #[inline]
    pub(super) fn word(&self, bucket: u32, slot: u32) -> Word {
        Word(self.region.load64(self.word_at(bucket, slot)))
    }

    /// The word as it was, where it was another than `from`.
    pub(super) fn swap(&self, bucket: u32, slot: u32, from: Word, to: Word) -> Result<(), Word> {
        self.region.swap64(self.word_at(bucket, slot), from.0, to.0).map_err(Word)
    }

    /// A hint that a bucket's words will be read.
    #[inline]
    pub(super) fn prefetch(&self, bucket: u32) {
        self.region.prefetch(bucket as usize * self.family.bucket_bytes());
    }

    /// Makes all slots empty, of the first generation. Nobody else may use the table.
    pub(super) fn clear(&self) {
        for bucket in 0..self.buckets {
            for slot in 0..SLOTS {
                if self.word(bucket, slot) != Word(0) {
                    self.region.store64(self.word_at(bucket, slot), 0);
                }
            }
        }
    }

    fn key(&self, bucket: u32, slot: u32) -> [u64; layout::SESSION_KEY6_WORDS as usize] {
        let at = self.record_at(bucket, slot);
        let count = self.family.key_words();
        std::array::from_fn(|i| if i < count { self.region.load64(at + i * 8) } else { 0 })
    }

    /// The record of a slot, if the slot still has the life of `word` when it was read.
    pub(super) fn session(&self, bucket: u32, slot: u32, word: Word) -> Option<Session> {
        let words = self.key(bucket, slot);
        let data = self.record_at(bucket, slot) + self.family.key_words() * 8;
        let load32 = |offset: usize| self.region.load32(data + offset);
        let load64 = |offset: usize| self.region.load64(data + offset);
        let packets = offset_of!(layout::session_data, packets);
        let bytes = offset_of!(layout::session_data, bytes);
        let action = offset_of!(layout::session_data, action);
        let state = load32(offset_of!(layout::session_data, state));
        let key = Key { family: self.family, words, source: state & layout::SESSION_ORIGINATOR };
        let session = Session {
            flow: key.flow(),
            created_at: load32(offset_of!(layout::session_data, created_at)),
            expires_at: word.expires_at(),
            state,
            packets: [load64(packets), load64(packets + 8)],
            bytes: [load64(bytes), load64(bytes + 8)],
            action: [load32(action), load32(action + 4)],
            generation: word.generation(),
        };
        // All loads above are before this one, and a slot is filled anew only in another life.
        (self.word(bucket, slot).life() == word.life()).then_some(session)
    }

    /// The key's live record: bucket, slot, word, as packets search.
    pub(super) fn find(&self, key: &Key, place: &Place, now: u32) -> Option<(u32, u32, Word)> {
        let want = u64::from(place.tag) << layout::SESSION_TAG_SHIFT | u64::from(layout::SESSION_LIVE);
        place.buckets.into_iter().flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot))).find_map(
            |(bucket, slot)| {
                let word = self.word(bucket, slot);
                let found = word.0 & TAG_AND_STATE == want
                    && !word.is_past(now)
                    && self.key(bucket, slot) == key.words
                    // Not a key that another life wrote meanwhile.
                    && self.word(bucket, slot).life() == word.life();
                found.then_some((bucket, slot, word))
            },
        )
    }
}

impl Session {
    /// Which way the packets of `flow`, one of the session's two, go.
    pub(super) fn direction(&self, flow: &Flow) -> Direction {
        if self.flow == *flow { Direction::Original } else { Direction::Reply }
    }
}
