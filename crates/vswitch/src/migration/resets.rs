//! Provokes guests that have migrated here with sessions `reset`, so that their connections end also if they are idle: the guest
//! gets a SYN as if its peer had sent it. A TCP answers that with an ACK that has its numbers (RFC 5961 section 4), and the packet
//! program answers this ACK at both ends (`bpf/include/vswitch/reset.h`). Pure: connections and the time go in, those that are to be
//! provoked now come out. This file changes with how often, and how fast.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use sluice_agent::frames::tcp_syn;
use sluice_tables::layout;
use sluice_tables::sessions::{Flow, SessionReader};
use sluice_types::{MacAddr, ROUTER_MAC};

/// How often a guest is provoked that does not answer, and the time in between. A Linux guest answers such a segment of a connection
/// once in half a second (`tcp_invalid_ratelimit`).
const TRIES: usize = 3;
const RETRY_MS: u64 = 1000;
/// Segments that are sent at a time, and the time until the next ones: 3200 each second.
const BURST: usize = 32;
const BURST_MS: u64 = 10;

/// A connection of a guest that is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Index of the guest's interface.
    pub ifindex: u32,
    /// MAC address of the guest.
    pub mac: MacAddr,
    /// Flow of the peer's packets, as the session table has it.
    pub from_peer: Flow,
}

impl Ending {
    /// Whether the guest has not sent a segment since the session was to end.
    pub fn is_unanswered(&self, reader: &SessionReader, now: u32) -> bool {
        let found = reader.lookup(&self.from_peer, now);
        found.is_some_and(|(session, _)| session.is_reset() && session.state & layout::SESSION_RST == 0)
    }

    /// The frame that provokes the guest.
    pub fn frame(&self) -> Option<Vec<u8>> {
        let (peer, guest): (SocketAddr, SocketAddr) = (self.from_peer.source, self.from_peer.destination);
        // Random: a number within its window may make the guest end the connection without an answer that has its numbers.
        let sequence = RandomState::new().hash_one((peer, guest)) as u32;
        tcp_syn((peer, ROUTER_MAC), (guest, self.mac), sequence)
    }
}

/// The connections that are to end: by how often their guests were provoked, each with the time of the next one.
#[derive(Debug, Default)]
pub struct Resets {
    waiting: [VecDeque<(u64, Ending)>; TRIES],
    next_ms: u64,
}

impl Resets {
    /// Adds connections, whose guests are provoked at once, as far as the limits permit.
    pub fn add(&mut self, endings: impl IntoIterator<Item = Ending>, now_ms: u64) {
        self.waiting[0].extend(endings.into_iter().map(|ending| (now_ms, ending)));
    }

    /// When [`Resets::take`] is due.
    pub fn due_ms(&self) -> Option<u64> {
        let first = self.waiting.iter().filter_map(VecDeque::front).map(|(at_ms, _)| *at_ms).min()?;
        Some(first.max(self.next_ms))
    }

    /// The connections whose guests are to be provoked now. They come again after a while, until that was done often enough: the
    /// caller omits those that were answered.
    pub fn take(&mut self, now_ms: u64) -> Vec<Ending> {
        let mut taken = Vec::new();
        if self.due_ms().is_none_or(|due_ms| now_ms < due_ms) {
            return taken;
        }
        self.next_ms = now_ms + BURST_MS;
        for tries in 0..TRIES {
            let is_due = |waiting: &VecDeque<(u64, Ending)>| {
                waiting.front().is_some_and(|(at_ms, _)| *at_ms <= now_ms)
            };
            while taken.len() < BURST && is_due(&self.waiting[tries]) {
                let Some((_, ending)) = self.waiting[tries].pop_front() else { break };
                taken.push(ending);
                if let Some(again) = self.waiting.get_mut(tries + 1) {
                    again.push_back((now_ms + RETRY_MS, ending));
                }
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_tables::Immediate;
    use sluice_tables::sessions::{Session, SessionRegions, Sessions, Timeouts};

    const GUEST: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 7]);
    const NOW: u32 = 1 << 20;

    fn ending(port: u16) -> Ending {
        let (source, destination) =
            ("10.0.0.9:443".parse().unwrap(), SocketAddr::from(([10, 0, 0, 2], port)));
        let from_peer = Flow { scope: 7, protocol: 6, source, destination };
        Ending { ifindex: 5, mac: GUEST, from_peer }
    }

    /// Catches many connections that fill the queue of a port at once, and one that is provoked forever.
    #[test]
    fn guests_are_provoked_three_times_and_not_too_many_at_once() {
        let mut resets = Resets::default();
        assert_eq!((resets.due_ms(), resets.take(5)), (None, vec![]));
        resets.add((0..40).map(ending), 100);
        assert_eq!((resets.due_ms(), resets.take(99)), (Some(100), vec![]));
        let first = resets.take(100);
        assert_eq!(first, (0..32).map(ending).collect::<Vec<_>>());
        assert_eq!((resets.due_ms(), resets.take(109)), (Some(110), vec![]));
        assert_eq!(resets.take(110), (32..40).map(ending).collect::<Vec<_>>());
        // One that is added meanwhile waits for none of those that are provoked again.
        resets.add([ending(99)], 200);
        assert_eq!(resets.take(200), [ending(99)]);
        assert_eq!(resets.due_ms(), Some(1100));
        let mut counts = [0; 100];
        counts[..40].fill(1);
        counts[99] = 1;
        for now_ms in 201..5000 {
            for ending in resets.take(now_ms) {
                counts[usize::from(ending.from_peer.destination.port())] += 1;
            }
        }
        assert!(counts[..40].iter().all(|count| *count == 3), "{counts:?}");
        assert_eq!((counts[99], resets.due_ms()), (3, None));
    }

    #[test]
    fn a_guest_is_provoked_by_a_syn_of_its_peer() {
        let frame = ending(22).frame().unwrap();
        assert_eq!(frame[..12], [GUEST.octets(), ROUTER_MAC.octets()].concat());
        assert_eq!(frame[26..34], [10, 0, 0, 9, 10, 0, 0, 2]);
        assert_eq!((&frame[34..38], frame[47]), (&[1, 187, 0, 22][..], 2));
    }

    #[test]
    fn connections_that_were_answered_or_begin_again_are_left_alone() {
        let regions = SessionRegions::anonymous(16, 16).unwrap();
        let mut sessions = Sessions::create(&regions, 3, &Timeouts::default(), Immediate).unwrap();
        let states = [
            (1, layout::SESSION_RESET),
            (2, layout::SESSION_RESET | layout::SESSION_RST),
            (3, layout::SESSION_REPLIED),
        ];
        for (port, state) in states {
            let (created_at, expires_at) = (NOW, NOW + 480);
            let flow = ending(port).from_peer;
            let counts = [0; 2];
            let session = Session {
                flow,
                created_at,
                expires_at,
                state,
                packets: counts,
                bytes: counts,
                action: [0; 2],
                generation: 0,
            };
            sessions.install(&session, 100, NOW);
        }
        let is_unanswered = |port, now| ending(port).is_unanswered(sessions.reader(), now);
        assert_eq!([1, 2, 3, 4].map(|port| is_unanswered(port, NOW)), [true, false, false, false]);
        assert!(!is_unanswered(1, NOW + 480), "its time is over");
    }
}
