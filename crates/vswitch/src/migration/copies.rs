//! Sessions of the session table as copies, and back. This file changes with what a session consists of.

use sluice_tables::layout;
use sluice_tables::sessions::{Family, Flow, Phase, Session, SessionReader, Timeouts};

use super::wire::{COPIES_MAX, SessionCopy};

/// Buckets that one request reads: about a millisecond.
const BUCKETS_MAX: u32 = 8192;
/// Sessions of a bucket.
const BUCKET_SESSIONS: usize = layout::SESSION_SLOTS as usize;
const TCP: u8 = 6;
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
/// The upper half of a cursor is the number of the family, the lower half that of the bucket.
const FAMILY_SHIFT: u32 = 32;

/// Reads sessions of a port from this cursor on that have been idle for at most `idle_max` ticks: as many as a reply has room for. Also returns
/// the next cursor; `None`: these were the last ones.
pub fn read(
    reader: &SessionReader,
    scope: u16,
    (cursor, idle_max): (u64, u32),
    now: u32,
) -> (Vec<SessionCopy>, Option<u64>) {
    let timeouts = reader.timeouts();
    let (mut copies, mut budget) = (Vec::new(), BUCKETS_MAX);
    let (family, mut bucket) = ((cursor >> FAMILY_SHIFT) as usize, cursor as u32);
    for (number, family) in FAMILIES.into_iter().enumerate().skip(family) {
        while bucket < reader.buckets(family) {
            if budget == 0 || copies.len() + BUCKET_SESSIONS > COPIES_MAX {
                return (copies, Some((number as u64) << FAMILY_SHIFT | u64::from(bucket)));
            }
            reader.visit(family, bucket..bucket + 1, |_, session| {
                if session.flow.scope == u32::from(scope) {
                    copies.extend(copy_of(session, &timeouts, now).filter(|copy| copy.idle <= idle_max));
                }
            });
            (bucket, budget) = (bucket + 1, budget - 1);
        }
        bucket = 0;
    }
    (copies, None)
}

/// The copy of a session; `None` if it has ended or its policy does not permit it any more.
fn copy_of(session: &Session, timeouts: &Timeouts, now: u32) -> Option<SessionCopy> {
    let left = session.expires_at.wrapping_sub(now).cast_signed();
    if left <= 0 || session.is_revoked() {
        return None;
    }
    let timeout = timeouts.of(session.flow.protocol, session.state);
    Some(SessionCopy {
        flow: Flow { scope: 0, ..session.flow },
        is_egress: session.begun_by() == sluice_tables::Direction::Egress,
        state: session.state,
        age: now.wrapping_sub(session.created_at),
        idle: timeout.saturating_sub(left.cast_unsigned()),
        packets: session.packets,
        bytes: session.bytes,
    })
}

/// The session of a copy at a port with this number. It expires by the timeouts of this host. It is not judged yet.
pub fn session_of(copy: &SessionCopy, scope: u16, timeouts: &Timeouts, now: u32) -> Session {
    let state = copy.state & !layout::SESSION_REVOKED;
    let mut left = timeouts.of(copy.flow.protocol, state).saturating_sub(copy.idle);
    if state & layout::SESSION_RESET != 0 {
        left = left.min(layout::SESSION_RESET_TICKS);
    }
    Session {
        flow: Flow { scope: u32::from(scope), ..copy.flow },
        created_at: now.wrapping_sub(copy.age),
        expires_at: now.wrapping_add(left),
        state,
        packets: copy.packets,
        bytes: copy.bytes,
        action: [0, if copy.is_egress { layout::SESSION_EGRESS } else { 0 }],
        generation: 0,
    }
}

/// The session by which the connection of a copy ends at a port with this number; `None` if there is no connection: both ends
/// have closed it, or it is not TCP.
pub fn reset_of(copy: &SessionCopy, scope: u16, now: u32) -> Option<Session> {
    // A RST may have been forged.
    let state = copy.state & !(layout::SESSION_REVOKED | layout::SESSION_RST);
    if copy.flow.protocol != TCP || Phase::of(TCP, state) == Phase::Closing {
        return None;
    }
    Some(Session {
        flow: Flow { scope: u32::from(scope), ..copy.flow },
        created_at: now.wrapping_sub(copy.age),
        expires_at: now.wrapping_add(layout::SESSION_RESET_TICKS),
        state: state | layout::SESSION_RESET,
        packets: copy.packets,
        bytes: copy.bytes,
        action: [0, if copy.is_egress { layout::SESSION_EGRESS } else { 0 }],
        generation: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_tables::Immediate;
    use sluice_tables::sessions::{SessionRegions, Sessions};

    const NOW: u32 = 1 << 20;
    const SCOPE: u16 = 7;

    fn session(scope: u16, port: u16, ipv6: bool, left: u32) -> Session {
        let [source, destination] =
            if ipv6 { ["[fd00::1]:1", "[fd00::2]:2"] } else { ["10.0.0.1:1", "10.0.0.2:2"] };
        let mut source: std::net::SocketAddr = source.parse().unwrap();
        source.set_port(port);
        Session {
            flow: Flow {
                scope: u32::from(scope),
                protocol: 17,
                source,
                destination: destination.parse().unwrap(),
            },
            created_at: NOW - 100,
            expires_at: NOW + left,
            state: layout::SESSION_REPLIED,
            packets: [1, 2],
            bytes: [3, 4],
            action: [5, layout::SESSION_EGRESS | 6],
            generation: 0,
        }
    }

    fn table(sessions: &[Session]) -> Sessions {
        let regions = SessionRegions::anonymous(64, 64).unwrap();
        let mut table = Sessions::create(&regions, 3, &Timeouts::default(), Immediate).unwrap();
        for session in sessions {
            assert_eq!(table.install(session, u32::MAX, NOW), sluice_tables::sessions::Installed::New);
        }
        table
    }

    /// Reads all that there is, as a target does.
    fn read_all(table: &Sessions, idle_max: u32) -> Vec<SessionCopy> {
        let (mut all, mut cursor) = (Vec::new(), 0);
        loop {
            let (copies, next) = read(table.reader(), SCOPE, (cursor, idle_max), NOW);
            assert!(copies.len() <= COPIES_MAX);
            all.extend(copies);
            match next {
                Some(next) => cursor = next,
                None => return all,
            }
        }
    }

    #[test]
    fn all_sessions_of_a_port_are_read_in_parts() {
        let mine = |port| session(SCOPE, port, port % 2 == 0, 2000);
        let all: Vec<Session> = (1..=200).map(mine).chain([session(8, 9, false, 2000)]).collect();
        let mut ports: Vec<u16> =
            read_all(&table(&all), u32::MAX).iter().map(|copy| copy.flow.source.port()).collect();
        ports.sort_unstable();
        assert_eq!(ports, (1..=200).collect::<Vec<u16>>());
        assert_eq!(read(table(&all).reader(), SCOPE, (u64::MAX, 0), NOW), (vec![], None));
    }

    /// Catches a copy with the expiry of the source's timeouts.
    #[test]
    fn a_copy_keeps_its_idle_time_and_not_its_expiry() {
        // Of 300 s, 100 s have passed.
        let copies = read_all(&table(&[session(SCOPE, 1, false, 200 * 8)]), u32::MAX);
        assert_eq!(copies.iter().map(|copy| (copy.idle, copy.age)).collect::<Vec<_>>(), [(800, 100)]);
        assert_eq!(read_all(&table(&[session(SCOPE, 1, false, 200 * 8)]), 799), []);
        let timeouts = Timeouts { udp_two_way_s: 150, ..Timeouts::default() };
        let later = NOW + 5000;
        let copied = session_of(&copies[0], 9, &timeouts, later);
        assert_eq!((copied.expires_at, copied.created_at), (later + 50 * 8, later - 100));
        assert_eq!((copied.flow.scope, copied.action), (9, [0, layout::SESSION_EGRESS]));
        let short = Timeouts { udp_two_way_s: 50, ..timeouts };
        assert_eq!(session_of(&copies[0], 9, &short, later).expires_at, later, "it has expired here");
    }

    /// Catches sessions of other protocols that are reset, connections that a forged RST keeps, and a state that lasts for as
    /// long as a session.
    #[test]
    fn connections_that_are_open_are_reset_for_a_minute() {
        let copies = read_all(&table(&[session(SCOPE, 1, true, 2000)]), u32::MAX);
        assert_eq!(reset_of(&copies[0], 9, NOW), None, "UDP");
        let flow = Flow { protocol: TCP, ..copies[0].flow };
        let of = |state| reset_of(&SessionCopy { flow, state, ..copies[0] }, 9, NOW);
        let open = layout::SESSION_REPLIED | layout::SESSION_CONFIRMED;
        for state in [open, open | layout::SESSION_RST, open | layout::SESSION_REVOKED] {
            let reset = of(state).unwrap();
            assert_eq!(reset.state, open | layout::SESSION_RESET);
            assert_eq!((reset.flow.scope, reset.expires_at), (9, NOW + 60 * 8));
            assert_eq!(reset.begun_by(), sluice_tables::Direction::Egress);
            assert!(reset.is_reset());
        }
        let fin = layout::SESSION_FIN;
        assert!(of(open | fin).is_some(), "one end may still send");
        assert_eq!(of(open | fin | fin << 1), None);
        // It goes on to end at a third host.
        let again = SessionCopy { flow, state: open | layout::SESSION_RESET, idle: 0, ..copies[0] };
        let again = session_of(&again, 9, &Timeouts::default(), NOW);
        assert_eq!((again.is_reset(), again.expires_at), (true, NOW + 60 * 8));
    }
}
