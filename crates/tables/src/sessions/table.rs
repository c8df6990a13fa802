//! The buckets of one family: tag words, records, and reading them while packets write.

use super::key::{Candidates, Family, Flow, Key};
use super::{Direction, Session};
use crate::layout;
use crate::region::Region;
use std::mem::{offset_of, size_of};

pub(super) const SLOTS: u32 = layout::SESSION_SLOTS;

/// The tag word of a slot: state, generation, tag and expiry (`session_layout.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TagWord(pub u64);

const TAG_AND_STATE: u64 =
    (layout::SESSION_TAG_MASK as u64) << layout::SESSION_TAG_SHIFT | layout::SESSION_STATE_MASK as u64;

impl TagWord {
    pub(super) fn state(self) -> u32 {
        self.0 as u32 & layout::SESSION_STATE_MASK
    }

    pub(super) fn is_live(self) -> bool {
        self.state() == layout::SESSION_LIVE
    }

    pub(super) fn is_empty(self) -> bool {
        self.state() == layout::SESSION_EMPTY
    }

    /// The tag word of an empty slot after it was claimed.
    pub(super) fn claimed(self) -> Self {
        Self(self.0 | u64::from(layout::SESSION_CLAIMED))
    }

    /// The tag word of a claimed slot after its session was published.
    pub(super) fn published(self, tag: u16, expires_at: u32) -> Self {
        let generation = u64::from(self.generation()) << layout::SESSION_GENERATION_SHIFT;
        let tag = u64::from(tag) << layout::SESSION_TAG_SHIFT;
        let expires_at = u64::from(expires_at) << layout::SESSION_EXPIRES_SHIFT;
        Self(expires_at | tag | generation | u64::from(layout::SESSION_LIVE))
    }

    pub(super) fn is_claimed(self) -> bool {
        self.state() == layout::SESSION_CLAIMED
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

    /// Compares the times as packets do, by the sign of the difference.
    pub(super) fn has_expired(self, now: u32) -> bool {
        self.expires_at().wrapping_sub(now).cast_signed() <= 0
    }

    /// The tag word of a live slot after the session has ended.
    pub(super) fn dying(self) -> Self {
        Self(self.0 | u64::from(layout::SESSION_DYING))
    }

    /// The tag word of the slot with this expiry.
    pub(super) fn expiring(self, at: u32) -> Self {
        Self(u64::from(self.incarnation()) | u64::from(at) << layout::SESSION_EXPIRES_SHIFT)
    }

    /// The tag word of the slot after it was emptied.
    pub(super) fn emptied(self) -> Self {
        let generation = self.generation().wrapping_add(1) & layout::SESSION_GENERATION_MASK as u16;
        Self(u64::from(generation) << layout::SESSION_GENERATION_SHIFT)
    }

    /// Whether the word is of the same session, which was at most refreshed in between.
    pub(super) fn is_same_life(self, other: Self) -> bool {
        self.incarnation() == other.incarnation()
    }

    /// The part of the tag word that is the same for the whole life of a session: everything except the
    /// expiry.
    fn incarnation(self) -> u32 {
        self.0 as u32
    }
}

/// The buckets of a family.
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
    /// A table of the first `buckets` buckets of a region.
    ///
    /// # Panics
    /// If the region is too small.
    pub(super) fn new(family: Family, buckets: u32, region: Region) -> Self {
        assert!(
            buckets as usize * family.bucket_bytes() <= region.bytes(),
            "the region is too small for the buckets"
        );
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
    pub(super) fn word(&self, bucket: u32, slot: u32) -> TagWord {
        TagWord(self.region.load64(self.word_at(bucket, slot)))
    }

    /// Replaces the tag word `from` by `to`. Returns the word that was found if it was not `from`.
    pub(super) fn compare_and_swap(
        &self,
        bucket: u32,
        slot: u32,
        from: TagWord,
        to: TagWord,
    ) -> Result<(), TagWord> {
        self.region.compare_and_swap64(self.word_at(bucket, slot), from.0, to.0).map_err(TagWord)
    }

    /// Hints to the processor that a bucket's tag words will be read.
    #[inline]
    pub(super) fn prefetch(&self, bucket: u32) {
        self.region.prefetch(bucket as usize * self.family.bucket_bytes());
    }

    /// Empties all slots and sets their generations to 0. Nothing else may use the table meanwhile.
    pub(super) fn clear(&self) {
        for bucket in 0..self.buckets {
            for slot in 0..SLOTS {
                let word = self.word(bucket, slot);
                if word != TagWord(0) {
                    self.region.store64(self.word_at(bucket, slot), word.emptied().0);
                }
            }
        }
    }

    fn key(&self, bucket: u32, slot: u32) -> [u64; layout::SESSION_KEY6_WORDS as usize] {
        let at = self.record_at(bucket, slot);
        let count = self.family.key_words();
        std::array::from_fn(|i| if i < count { self.region.load64(at + i * 8) } else { 0 })
    }

    /// The scope of the session in a slot.
    pub(super) fn scope(&self, bucket: u32, slot: u32) -> u32 {
        self.region.load64(self.record_at(bucket, slot)) as u32 & 0xff_ffff
    }

    /// Protocol and state of the session in a slot.
    pub(super) fn protocol_and_state(&self, bucket: u32, slot: u32) -> (u8, u32) {
        let at = self.record_at(bucket, slot);
        let data = at + self.family.key_words() * 8;
        let who = self.region.load64(at);
        let state = self.region.load32(data + offset_of!(layout::session_data, state));
        ((who >> layout::SESSION_PROTOCOL_SHIFT) as u8, state)
    }

    /// Whether the VM began the session in a slot, on a host.
    pub(super) fn is_egress(&self, bucket: u32, slot: u32) -> bool {
        let data = self.record_at(bucket, slot) + self.family.key_words() * 8;
        self.region.load32(data + offset_of!(layout::session_data, action) + 4) & layout::SESSION_EGRESS != 0
    }

    /// Replaces the data of a session's creator. Returns false if it is not `from`.
    pub(super) fn replace_action(&self, bucket: u32, slot: u32, from: [u32; 2], to: [u32; 2]) -> bool {
        let data = self.record_at(bucket, slot) + self.family.key_words() * 8;
        // Both words are one aligned word of 8 bytes, the first of them in its lower half.
        let word = |action: [u32; 2]| u64::from(action[0]) | u64::from(action[1]) << 32;
        let at = data + offset_of!(layout::session_data, action);
        self.region.compare_and_swap64(at, word(from), word(to)).is_ok()
    }

    /// Sets the identity of the remote of a session that the VM began.
    pub(super) fn set_identity(&self, bucket: u32, slot: u32, identity: u16) {
        let shift = layout::SESSION_IDENTITY_SHIFT;
        self.change_state(bucket, slot, |state| state & 0xffff | u32::from(identity) << shift);
    }

    /// Marks the session in a slot as revoked.
    pub(super) fn revoke(&self, bucket: u32, slot: u32) {
        self.change_state(bucket, slot, |state| state | layout::SESSION_REVOKED);
    }

    /// Changes bits of a session's state of which packets set others meanwhile.
    pub(super) fn change_state(&self, bucket: u32, slot: u32, change: impl Fn(u32) -> u32) {
        const {
            let (created_at, state) =
                (offset_of!(layout::session_data, created_at), offset_of!(layout::session_data, state));
            assert!(created_at % 8 == 0 && state == created_at + 4, "one aligned word of 8 bytes");
        }
        let data = self.record_at(bucket, slot) + self.family.key_words() * 8;
        let at = data + offset_of!(layout::session_data, created_at);
        let changed = |word: u64| word & 0xffff_ffff | u64::from(change((word >> 32) as u32)) << 32;
        let mut seen = self.region.load64(at);
        // A session has a few bits, each of which a packet sets once.
        while let Err(other) = self.region.compare_and_swap64(at, seen, changed(seen)) {
            seen = other;
        }
    }

    /// Fills a claimed slot.
    pub(super) fn fill(&self, (bucket, slot): (u32, u32), tag: u16, key: &Key, session: &Session) {
        let at = self.record_at(bucket, slot);
        let words = self.family.key_words();
        let [hint, _] = tag.to_le_bytes();
        self.region.store8(bucket as usize * self.family.bucket_bytes() + slot as usize, hint);
        for (i, word) in key.words.iter().take(words).enumerate() {
            self.region.store64(at + i * 8, *word);
        }
        let data = at + words * 8;
        self.region.store32(data + offset_of!(layout::session_data, created_at), session.created_at);
        self.region.store32(data + offset_of!(layout::session_data, state), session.state);
        let (packets, bytes) =
            (offset_of!(layout::session_data, packets), offset_of!(layout::session_data, bytes));
        let action = offset_of!(layout::session_data, action);
        for i in 0..2 {
            self.region.store64(data + packets + i * 8, session.packets[i]);
            self.region.store64(data + bytes + i * 8, session.bytes[i]);
            self.region.store32(data + action + i * 4, session.action[i]);
        }
    }

    /// The tag word of a slot, if it is live and has this key.
    pub(super) fn live_word_of(&self, bucket: u32, slot: u32, key: &Key, tag: u16) -> Option<TagWord> {
        let want = u64::from(tag) << layout::SESSION_TAG_SHIFT | u64::from(layout::SESSION_LIVE);
        let word = self.word(bucket, slot);
        let is_it = word.0 & TAG_AND_STATE == want
            && self.key(bucket, slot) == key.words
            // The key was not written by a later session in the slot.
            && self.word(bucket, slot).incarnation() == word.incarnation();
        is_it.then_some(word)
    }

    /// The session in a slot; `None` if the session has ended or the slot was reused since
    /// `word` was loaded.
    pub(super) fn session(&self, bucket: u32, slot: u32, word: TagWord) -> Option<Session> {
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
        // This load comes after all loads above, and the record is written only when the slot is reused.
        (self.word(bucket, slot).incarnation() == word.incarnation()).then_some(session)
    }

    /// Finds the live session of a key as packets do. Returns its bucket, slot and tag word.
    pub(super) fn find(&self, key: &Key, candidates: &Candidates, now: u32) -> Option<(u32, u32, TagWord)> {
        candidates.buckets.into_iter().flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot))).find_map(
            |(bucket, slot)| {
                let word = self.live_word_of(bucket, slot, key, candidates.tag)?;
                (!word.has_expired(now)).then_some((bucket, slot, word))
            },
        )
    }
}

impl Session {
    /// Direction of the packets of `flow`, which is one of the session's two flows.
    pub(super) fn direction(&self, flow: &Flow) -> Direction {
        if self.flow == *flow { Direction::Original } else { Direction::Reply }
    }
}
