//! The review: looks at live sessions, a few buckets at a time, and ends or changes those that their originator's
//! policy does not permit any more, or permits by another rule.

use super::table::{SLOTS, TagWord};
use super::{Family, REMOVE_ATTEMPTS, Session, Sessions, slot_number};
use crate::error::Error;
use crate::layout;
use crate::policy::{Direction, PolicyPacket};
use std::ops::Range;

/// Protocols of which packets name a service by ICMP type and code.
const ICMP: [u8; 2] = [1, 58];

/// What becomes of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Stays,
    /// It goes on with this data of its creator.
    Changes([u32; 2]),
    /// As `Changes`, and its remote has this identity, which was not known when the VM began the session.
    Identified([u32; 2], u16),
    /// It ends, so that the next packet of either end may begin another one.
    Ends,
    /// It is revoked, with this data of its creator: its packets are dropped for two seconds, and then it ends
    /// ([`Sessions::end_revoked`]). So an answer that is under way begins no session.
    Revoked([u32; 2]),
}

/// Result of a step of a review.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reviewed {
    /// Live sessions that were looked at.
    pub sessions: u64,
    /// Sessions that go on with other data.
    pub changed: u64,
    /// Sessions that were ended or revoked.
    pub ended: u64,
    /// Sessions that packets changed while they were to end. They must be reviewed again.
    pub refreshed: u64,
}

impl std::ops::AddAssign for Reviewed {
    fn add_assign(&mut self, other: Self) {
        self.sessions += other.sessions;
        self.changed += other.changed;
        self.ended += other.ended;
        self.refreshed += other.refreshed;
    }
}

impl Session {
    /// On a host: generation of the policy that permitted the session.
    #[must_use]
    pub fn policy_generation(&self) -> u32 {
        self.action[0]
    }

    /// On a host: identifier of the rule that permitted the session.
    #[must_use]
    pub fn rule(&self) -> u32 {
        self.action[1] & layout::SESSION_RULE_MASK
    }

    /// On a host: who began the session, seen from the VM.
    #[must_use]
    pub fn begun_by(&self) -> Direction {
        if self.action[1] & layout::SESSION_EGRESS != 0 { Direction::Egress } else { Direction::Ingress }
    }

    /// On a host: identity of the remote by which the session was permitted; 0 if it was not known.
    #[must_use]
    pub fn identity(&self) -> u16 {
        (self.state >> layout::SESSION_IDENTITY_SHIFT) as u16
    }

    /// On a host: whether the policy permits it no longer, so that its packets are dropped until it ends.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.state & layout::SESSION_REVOKED != 0
    }

    /// On a host: whether the connection is to end at both ends, because its VM has migrated here (`SESSION_RESET`).
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.state & layout::SESSION_RESET != 0
    }

    /// On a host: the packet that began the session, as policies judge it.
    #[must_use]
    pub fn first_packet(&self) -> PolicyPacket {
        let direction = self.begun_by();
        let remote = match direction {
            Direction::Egress => self.flow.destination,
            Direction::Ingress => self.flow.source,
        };
        // Of a query, the port is the type. Its code is 0.
        let is_icmp = ICMP.contains(&self.flow.protocol);
        let port = self.flow.destination.port() << if is_icmp { 8 } else { 0 };
        PolicyPacket {
            direction,
            remote: remote.ip(),
            identity: self.identity(),
            protocol: self.flow.protocol,
            port: Some(port),
        }
    }

    /// On a host: the data of the session after a policy of this generation has permitted it by a rule.
    #[must_use]
    pub fn permitted_by(&self, generation: u32, rule: u32) -> [u32; 2] {
        [generation, self.action[1] & !layout::SESSION_RULE_MASK | rule & layout::SESSION_RULE_MASK]
    }
}

impl Sessions {
    /// Waits until no packet is in flight that was judged before this call.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn wait_for_packets(&self) -> Result<(), Error> {
        Ok(self.grace.wait()?)
    }

    /// Number of buckets of a family.
    #[must_use]
    pub fn buckets(&self, family: Family) -> u32 {
        self.reader.tables[family.index()].buckets
    }

    /// Calls `decide` for each live session in these buckets, also if it has expired, and does what it says. No slot
    /// becomes empty meanwhile, so what is changed is the session that was decided about.
    pub fn review(
        &mut self,
        family: Family,
        buckets: Range<u32>,
        mut decide: impl FnMut(&Session) -> Fate,
    ) -> Reviewed {
        self.review_slots(family, buckets, |_, session| decide(session))
    }

    /// As [`Sessions::review`], also with the number of the session's slot: its bucket times the number of slots of a bucket, plus
    /// its slot in the bucket. A session never moves, and no other one has its slot until it has ended.
    pub fn review_slots(
        &mut self,
        family: Family,
        buckets: Range<u32>,
        mut decide: impl FnMut(usize, &Session) -> Fate,
    ) -> Reviewed {
        let mut reviewed = Reviewed::default();
        for bucket in buckets.start..buckets.end.min(self.buckets(family)) {
            self.reader.tables[family.index()].prefetch(bucket.saturating_add(1));
            for slot in 0..SLOTS {
                let table = &self.reader.tables[family.index()];
                let word = table.word(bucket, slot);
                let Some(session) = word.is_live().then(|| table.session(bucket, slot, word)).flatten()
                else {
                    continue;
                };
                reviewed.sessions += 1;
                if session.is_revoked() {
                    // The agent may have been killed before it was to end.
                    self.progress.revoked.push((family, bucket, slot, word));
                }
                match decide(slot_number(bucket, slot), &session) {
                    Fate::Stays => {}
                    Fate::Changes(action) => {
                        reviewed.changed +=
                            u64::from(table.replace_action(bucket, slot, session.action, action));
                    }
                    Fate::Identified(action, identity) => {
                        table.set_identity(bucket, slot, identity);
                        reviewed.changed +=
                            u64::from(table.replace_action(bucket, slot, session.action, action));
                    }
                    // Otherwise a packet with another identity was permitted in between.
                    Fate::Revoked(action) if table.replace_action(bucket, slot, session.action, action) => {
                        if !session.is_revoked() {
                            table.revoke(bucket, slot);
                            reviewed.ended += 1;
                            self.progress.revoked.push((family, bucket, slot, word));
                        }
                    }
                    Fate::Revoked(_) => reviewed.refreshed += 1,
                    Fate::Ends => match self.end(family, bucket, slot, word) {
                        Some(ended) => reviewed.ended += u64::from(ended),
                        None => reviewed.refreshed += 1,
                    },
                }
            }
        }
        reviewed
    }

    /// Lets the sessions that reviews have revoked end in two seconds from `now`. Before, it waits until no packet is in flight
    /// that has found them as they were, and may refresh them.
    ///
    /// # Errors
    /// [`Error::Grace`]. The next call does it then.
    pub fn end_revoked(&mut self, now: u32) -> Result<(), Error> {
        if self.progress.revoked.is_empty() {
            return Ok(());
        }
        self.wait_for_packets()?;
        let last = now.wrapping_add(layout::SESSION_REVOKED_TICKS);
        for (family, bucket, slot, revoked) in std::mem::take(&mut self.progress.revoked) {
            let table = &self.reader.tables[family.index()];
            let mut word = table.word(bucket, slot);
            // No packet refreshes it any more, but the sweep may end it.
            while word.is_same_life(revoked) && !word.has_expired(last) {
                match table.compare_and_swap(bucket, slot, word, word.expiring(last)) {
                    Ok(()) => break,
                    Err(seen) => word = seen,
                }
            }
        }
        Ok(())
    }

    /// Ends the session in a slot. False: it has ended before. `None`: packets refreshed it at each attempt.
    pub(super) fn end(&mut self, family: Family, bucket: u32, slot: u32, mut word: TagWord) -> Option<bool> {
        for _ in 0..REMOVE_ATTEMPTS {
            match self.reader.tables[family.index()].compare_and_swap(bucket, slot, word, word.dying()) {
                Ok(()) => {
                    self.progress.session_removed(family, bucket);
                    return Some(true);
                }
                Err(seen) if seen.is_same_life(word) => word = seen,
                Err(_) => return Some(false),
            }
        }
        None
    }
}
