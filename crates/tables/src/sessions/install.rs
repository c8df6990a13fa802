//! Installs sessions that another host's table had, while packets begin and find others. The agent takes the steps of a packet
//! that begins a session (`session_create()` of `bpf/include/common/sessions.h`), in the thread that also sweeps or while that
//! does not run: a claimed slot that stays the same for a grace period is taken from its packet.

use super::key::{Candidates, Key};
use super::table::{SLOTS, Table, TagWord};
use super::{Session, Sessions, Timeouts};
use crate::layout::{self, session_config};
use std::mem::offset_of;

/// Attempts to claim a slot that packets claim at the same time.
const CLAIM_ATTEMPTS: u32 = 4;
/// Sessions with one key that began within this time of each other are the same one: 2 s.
const SAME_TICKS: u32 = 16;

/// What became of a session that was to be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The table has it now.
    New,
    /// The table had it, with the state bits of both and the later of both expiries that this state permits now; or a later
    /// session of the same key, which stays as it is.
    Known,
    /// It expired before.
    Expired,
    /// There is no room for it, or packets claimed the slots.
    Full,
}

impl Sessions {
    /// Installs a session. Its scope may have `limit` sessions.
    pub fn install(&mut self, session: &Session, limit: u32, now: u32) -> Installed {
        let Some(key) = Key::of(&session.flow) else { return Installed::Expired };
        if session.expires_at.wrapping_sub(now).cast_signed() <= 0 {
            return Installed::Expired;
        }
        let session = Session { state: session.state & !layout::SESSION_ORIGINATOR | key.source, ..*session };
        let (table, candidates) = self.reader.candidates(&key);
        let table = table.clone();
        for (bucket, slot, word) in slots_of(&table, &key, &candidates) {
            let known = table.session(bucket, slot, word).filter(|_| !word.has_expired(now));
            if let Some(known) = known {
                let later = known.created_at.wrapping_sub(session.created_at).cast_signed();
                let has_same_end = (known.state ^ session.state) & layout::SESSION_ORIGINATOR == 0;
                if later.unsigned_abs() <= SAME_TICKS && has_same_end {
                    merge(&table, (bucket, slot, word), &session, (&self.reader.timeouts(), now));
                    return Installed::Known;
                }
                // The copy is of an earlier session with the same ports.
                if later > SAME_TICKS.cast_signed() {
                    return Installed::Known;
                }
            }
            // It has expired, or its ports are those of a later session.
            self.end(key.family, bucket, slot, word);
        }
        let scope = u16::try_from(session.flow.scope).unwrap_or(0);
        let is_egress = session.begun_by() == crate::policy::Direction::Egress;
        if !self.has_room(scope, is_egress, limit) {
            return Installed::Full;
        }
        let Some((bucket, slot, claimed)) = claim(&table, &candidates) else { return Installed::Full };
        table.fill((bucket, slot), candidates.tag, &key, &session);
        let published = claimed.published(candidates.tag, session.expires_at);
        // Counted first: an agent that is killed in between has counted too much, never too little.
        let is_shared = self.count(scope, is_egress);
        if table.compare_and_swap(bucket, slot, claimed, published).is_err() {
            self.uncount(scope, is_egress, is_shared);
            return Installed::Full;
        }
        // A packet may have begun the same session meanwhile: of both, the first in the order of search stays.
        for (bucket, slot, word) in slots_of(&table, &key, &candidates).into_iter().skip(1) {
            self.end(key.family, bucket, slot, word);
        }
        Installed::New
    }

    /// Whether a scope that may have `limit` sessions may have another one, as for packets (`has_room()` of
    /// `bpf/include/vswitch/admission.h`). The limit in its share counts for packets only: while its port waits, that is 0.
    fn has_room(&self, scope: u16, is_egress: bool, limit: u32) -> bool {
        let Some(shares) = &self.shares else { return true };
        let share = shares.get(scope);
        if share.sessions() >= limit || share.by_origin[usize::from(is_egress)] >= limit - limit / 4 {
            return false;
        }
        let word = |offset| self.config.load32(offset);
        let used = word(offset_of!(session_config, shared_begun))
            .wrapping_sub(word(offset_of!(session_config, shared_ended)));
        let over = used.wrapping_sub(word(offset_of!(session_config, shared_limit)));
        share.sessions() < share.assured || over.cast_signed() < 0
    }

    /// Counts a record, as packets do. Returns whether it takes room that is assured to no scope.
    fn count(&self, scope: u16, is_egress: bool) -> bool {
        let Some(shares) = &self.shares else { return false };
        let share = shares.get(scope);
        let is_shared = share.sessions() >= share.assured;
        if is_shared {
            self.config.add32(offset_of!(session_config, shared_begun), 1);
        }
        shares.add_begun(scope, usize::from(is_egress));
        is_shared
    }

    /// Takes back what was counted for a record that was not published.
    fn uncount(&self, scope: u16, is_egress: bool, is_shared: bool) {
        let Some(shares) = &self.shares else { return };
        shares.take_back_begun(scope, usize::from(is_egress));
        if is_shared {
            self.config.add32(offset_of!(session_config, shared_begun), u32::MAX);
        }
    }
}

/// The live slots that have the key, in the order of search.
fn slots_of(table: &Table, key: &Key, candidates: &Candidates) -> Vec<(u32, u32, TagWord)> {
    let all = candidates.buckets.into_iter().flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot)));
    all.filter_map(|(bucket, slot)| {
        let word = table.live_word_of(bucket, slot, key, candidates.tag)?;
        Some((bucket, slot, word))
    })
    .collect()
}

/// Adds what the other table knew of a session. It lives no longer than the state of both permits from now on: what one of the
/// tables has seen may have closed it.
fn merge(
    table: &Table,
    (bucket, slot, mut word): (u32, u32, TagWord),
    session: &Session,
    (timeouts, now): (&Timeouts, u32),
) {
    let bits = session.state & !(layout::SESSION_ORIGINATOR | layout::SESSION_REVOKED) & 0xffff;
    table.change_state(bucket, slot, |state| state | bits);
    let (protocol, state) = table.protocol_and_state(bucket, slot);
    let latest = now.wrapping_add(timeouts.of(protocol, state));
    let is_later = |one: u32, other: u32| one.wrapping_sub(other).cast_signed() > 0;
    for _ in 0..CLAIM_ATTEMPTS {
        let known = word.expires_at();
        let wanted = if is_later(session.expires_at, known) { session.expires_at } else { known };
        let at = if is_later(wanted, latest) { latest } else { wanted };
        if at == known {
            return;
        }
        match table.compare_and_swap(bucket, slot, word, word.expiring(at)) {
            Ok(()) => return,
            Err(seen) if seen.is_same_life(word) => word = seen,
            Err(_) => return,
        }
    }
}

/// Claims a slot of the emptier bucket, the next empty one from that which the tag prefers. Returns its tag word.
fn claim(table: &Table, candidates: &Candidates) -> Option<(u32, u32, TagWord)> {
    let preferred = (u32::from(candidates.tag >> 8) * SLOTS) >> 8;
    for _ in 0..CLAIM_ATTEMPTS {
        let empty = candidates.buckets.map(|bucket| {
            let slots = (0..SLOTS).map(|slot| (preferred + slot) % SLOTS);
            slots.filter(|slot| table.word(bucket, *slot).is_empty()).collect::<Vec<_>>()
        });
        let second = usize::from(empty[1].len() > empty[0].len());
        let slot = *empty[second].first()?;
        let bucket = candidates.buckets[second];
        let word = table.word(bucket, slot);
        if word.is_empty() && table.compare_and_swap(bucket, slot, word, word.claimed()).is_ok() {
            return Some((bucket, slot, word.claimed()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grace::Immediate;
    use crate::sessions::{Direction, Flow, SessionRegions, SessionShares};

    const NOW: u32 = 1 << 20;

    fn sessions(buckets: u32) -> Sessions {
        let regions = SessionRegions::anonymous(buckets, buckets).unwrap();
        Sessions::create(&regions, 7, &Timeouts::default(), Immediate).unwrap()
    }

    fn session(source: &str, destination: &str) -> Session {
        Session {
            flow: Flow {
                scope: 9,
                protocol: 6,
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            },
            created_at: NOW - 800,
            expires_at: NOW + 400,
            state: layout::SESSION_REPLIED | layout::SESSION_CONFIRMED | 5 << layout::SESSION_IDENTITY_SHIFT,
            packets: [3, 4],
            bytes: [300, 400],
            action: [77, layout::SESSION_EGRESS | 99 << layout::SESSION_MEMBER_SHIFT | 2],
            generation: 0,
        }
    }

    #[test]
    fn an_installed_session_is_found_from_both_ends() {
        let mut sessions = sessions(16);
        for (source, destination) in
            [("10.0.0.9:80", "10.0.0.2:79"), ("10.0.0.2:5", "10.0.0.9:6"), ("[fd00::9]:1", "[fd00::2]:2")]
        {
            let copy = session(source, destination);
            assert_eq!(sessions.install(&copy, 100, NOW), Installed::New);
            let (found, direction) = sessions.reader().lookup(&copy.flow, NOW).unwrap();
            assert_eq!(direction, Direction::Original);
            let state = found.state & !layout::SESSION_ORIGINATOR;
            assert_eq!(Session { state, generation: 0, ..found }, copy);
            // Members have the same numbers on all hosts, so the flow keeps its member.
            assert_eq!((found.member(), found.rule()), (99, 2));
            let (_, direction) = sessions.reader().lookup(&copy.flow.reversed(), NOW).unwrap();
            assert_eq!(direction, Direction::Reply);
        }
    }

    /// Catches a copy that is installed twice, takes a later expiry back, or forgets that an end has closed.
    #[test]
    fn a_known_session_gets_what_is_new() {
        let mut sessions = sessions(16);
        let copy = session("10.0.0.9:80", "10.0.0.2:79");
        let find = |sessions: &Sessions| sessions.reader().lookup(&copy.flow, NOW).unwrap().0;
        assert_eq!(sessions.install(&copy, 100, NOW), Installed::New);
        let later = Session { expires_at: NOW + 500, state: copy.state | layout::SESSION_FIN, ..copy };
        assert_eq!(sessions.install(&later, 100, NOW), Installed::Known);
        assert_eq!(sessions.install(&copy, 100, NOW), Installed::Known);
        let found = find(&sessions);
        assert_eq!((found.expires_at, found.state & layout::SESSION_FIN), (NOW + 500, layout::SESSION_FIN));
        assert_eq!(sessions.reader().iter().count(), 1);
        // A later connection with the same ports.
        let other = Session { created_at: NOW - 8, state: layout::SESSION_REPLIED, ..copy };
        assert_eq!(sessions.install(&other, 100, NOW), Installed::New);
        assert_eq!((find(&sessions).created_at, sessions.reader().iter().count()), (NOW - 8, 1));
        // A copy that comes late is of the earlier one.
        assert_eq!(sessions.install(&later, 100, NOW), Installed::Known);
        let found = find(&sessions);
        assert_eq!((found.created_at, found.state & layout::SESSION_FIN), (NOW - 8, 0));
        assert_eq!(sessions.reader().iter().count(), 1);
    }

    /// Catches a closed connection that lives for as long as an open one, and an end that is taken for the other.
    #[test]
    fn a_merged_session_expires_by_the_state_of_both() {
        let mut sessions = sessions(16);
        let copy = Session { expires_at: NOW + 7000 * 8, ..session("10.0.0.9:80", "10.0.0.2:79") };
        assert_eq!(sessions.install(&copy, 100, NOW), Installed::New);
        let closed = Session { expires_at: NOW + 10, state: copy.state | layout::SESSION_RST, ..copy };
        assert_eq!(sessions.install(&closed, 100, NOW), Installed::Known);
        let (found, _) = sessions.reader().lookup(&copy.flow, NOW).unwrap();
        assert_eq!(found.expires_at, NOW + 240 * 8, "the timeout of closed connections");
        assert_eq!(sessions.install(&copy, 100, NOW), Installed::Known, "the source has not seen the end");
        let (found, _) = sessions.reader().lookup(&copy.flow, NOW).unwrap();
        assert_eq!(found.expires_at, NOW + 240 * 8);
        // The other end has begun one at the same time.
        let other = Session { flow: copy.flow.reversed(), ..copy };
        assert_eq!(sessions.install(&other, 100, NOW), Installed::New);
        let (found, direction) = sessions.reader().lookup(&other.flow, NOW).unwrap();
        assert_eq!((found.expires_at, direction), (copy.expires_at, Direction::Original));
    }

    /// Catches sessions that take the room which is assured to others.
    #[test]
    fn installed_sessions_take_room_as_those_of_packets() {
        let regions = SessionRegions::anonymous(64, 64).unwrap();
        let shares = SessionShares::anonymous().unwrap();
        let mut sessions = Sessions::open(&regions, shares.clone(), NOW, Immediate).unwrap();
        shares.set_assured(9, 3);
        sessions.config.store32(offset_of!(session_config, shared_limit), 2);
        let mut install = |ports: std::ops::Range<u16>, limit| {
            let copies = ports.map(|port| session(&format!("10.0.0.9:{port}"), "10.0.0.2:79"));
            copies.map(|copy| sessions.install(&copy, limit, NOW)).collect::<Vec<_>>()
        };
        assert_eq!(install(1..8, 100), [[Installed::New; 5].as_slice(), &[Installed::Full; 2]].concat());
        assert_eq!(shares.get(9).by_origin, [0, 5]);
        shares.set_assured(9, 100);
        assert_eq!(
            install(6..9, 8),
            [Installed::New, Installed::Full, Installed::Full],
            "3 of 4 are of one end"
        );
    }

    #[test]
    fn expired_sessions_and_those_without_room_are_not_installed() {
        let mut sessions = sessions(2);
        let expired = Session { expires_at: NOW, ..session("10.0.0.9:80", "10.0.0.2:79") };
        assert_eq!(sessions.install(&expired, 100, NOW), Installed::Expired);
        let mixed =
            Session { flow: Flow { source: "[fd00::1]:1".parse().unwrap(), ..expired.flow }, ..expired };
        assert_eq!(sessions.install(&mixed, 100, NOW), Installed::Expired);
        let all: Vec<_> = (1..=15)
            .map(|port| sessions.install(&session(&format!("10.0.0.9:{port}"), "10.0.0.2:79"), 100, NOW))
            .collect();
        assert_eq!(all[..14], [Installed::New; 14]);
        assert_eq!(all[14], Installed::Full);
    }
}
