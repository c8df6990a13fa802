//! The books of shares: what packets begin and the sweep ends is counted once, whenever the agent is killed.

use super::*;
use crate::sessions::table::{SLOTS, Table};

/// Runs packets of a scope, and counts as the packet program does (`begin_session()` of `admission.h`).
fn begin(tables: &HostTables, shares: &SessionShares, flow: &Flow, begun: &mut u32) {
    let ends = [flow.source, flow.destination];
    let mut operation = testing::operation(testing::SESSION_OP_CREATE, flow.scope, flow.protocol, ends);
    operation.now = NOW;
    tables.run(&mut operation);
    *begun += u32::from(operation.published);
    shares.set_begun(flow.scope as u16, 0, *begun);
}

/// Sessions in all states but empty, by scope.
fn records(regions: &SessionRegions, scope: u32) -> u32 {
    let reader = SessionReader::new(regions, regions.capacity().unwrap());
    let slots = |table: &Table| {
        let all = (0..table.buckets).flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot)));
        all.filter(|&(bucket, slot)| {
            let word = table.word(bucket, slot);
            (word.is_live() || word.is_dying()) && table.scope(bucket, slot) == scope
        })
        .count() as u32
    };
    reader.tables.iter().map(slots).sum()
}

fn open(regions: &SessionRegions, shares: &SessionShares) -> Sessions {
    Sessions::open(regions, shares.clone(), NOW, Immediate).unwrap()
}

/// Catches a session that is counted twice or not at all because the sweep died while it emptied the slot.
#[test]
fn a_sweep_that_is_killed_at_any_access_counts_each_session_once() {
    for accesses in 0.. {
        let regions = SessionRegions::anonymous(2, 2).unwrap();
        let shares = SessionShares::anonymous().unwrap();
        let mut sessions = open(&regions, &shares);
        let tables = host(&regions);
        let mut begun = [0; 2];
        for number in 0..5 {
            for (scope, begun) in [3, 4].into_iter().zip(&mut begun) {
                for family in [Family::Ipv4, Family::Ipv6] {
                    let flow = Flow { scope, ..flow(family, number) };
                    begin(&tables, &shares, &flow, begun);
                    if number < 3 {
                        sessions.remove(&flow, NOW);
                    }
                }
            }
        }
        assert_eq!(shares.get(3).sessions(), 10);
        let is_done = interleave::die_after(accesses, || sessions.sweep(4, NOW).unwrap()).is_some();
        drop(sessions);
        let mut successor = open(&regions, &shares);
        for scope in [3, 4] {
            let found = records(&regions, u32::from(scope));
            assert_eq!(shares.get(scope).sessions(), found, "scope {scope}, killed before access {accesses}");
        }
        successor.sweep(4, NOW).unwrap();
        assert_eq!([3, 4].map(|scope| shares.get(scope).sessions()), [4, 4]);
        if is_done {
            assert!(accesses > 100, "the sweep accesses memory {accesses} times");
            return;
        }
    }
}

/// While no agent runs, packets use the slot again that a killed agent has emptied and not yet counted. Catches a successor
/// that takes it for one that was not emptied.
#[test]
fn a_slot_that_is_used_again_before_its_session_was_counted_is_counted_once() {
    let mut reused = 0;
    for accesses in 0.. {
        let regions = SessionRegions::anonymous(2, 2).unwrap();
        let shares = SessionShares::anonymous().unwrap();
        let mut sessions = open(&regions, &shares);
        let tables = host(&regions);
        let (one, mut begun) = (flow(Family::Ipv4, 1), 0);
        begin(&tables, &shares, &one, &mut begun);
        sessions.remove(&one, NOW);
        let is_done = interleave::die_after(accesses, || sessions.sweep(4, NOW).unwrap()).is_some();
        drop(sessions);
        reused += u32::from(records(&regions, 3) == 0 && shares.get(3).sessions() == 1);
        begin(&tables, &shares, &one, &mut begun);
        let mut operation = testing::operation(testing::SESSION_OP_END, 3, 17, [one.source, one.destination]);
        operation.now = NOW;
        tables.run(&mut operation);
        assert_eq!(operation.touched, testing::SESSION_HIT);
        let mut successor = open(&regions, &shares);
        assert_eq!(shares.get(3).sessions(), records(&regions, 3), "killed before access {accesses}");
        successor.sweep(4, NOW).unwrap();
        assert_eq!(shares.get(3).sessions(), 0, "killed before access {accesses}");
        if is_done {
            break;
        }
    }
    assert!(reused > 0);
}

#[test]
fn new_tables_have_no_sessions_and_no_limits() {
    let regions = SessionRegions::anonymous(2, 2).unwrap();
    let shares = SessionShares::anonymous().unwrap();
    shares.set_limit(7, 5);
    shares.set_begun(7, 0, 5);
    shares.set_begun(7, 1, 5);
    drop(open(&regions, &shares));
    assert_eq!(shares.get(7), Share::default());
    shares.set_limit(7, 5);
    drop(open(&regions, &shares));
    assert_eq!(
        shares.get(7),
        Share { limit: 5, limit_each: 4, ..Share::default() },
        "adopted tables keep them"
    );
    assert!(SessionShares::new(Region::anonymous(SessionShares::BYTES / 2).unwrap()).is_err());
}

/// A UDP or TCP session of a scope, begun by the other end.
fn scoped(scope: u32, protocol: u8, number: u32) -> Flow {
    Flow { scope, protocol, ..flow(Family::Ipv4, number) }
}

/// Runs a packet of a session, which it finds.
fn packet(tables: &HostTables, flow: &Flow, tcp_flags: u8, now: u32) {
    let ends = [flow.source, flow.destination];
    let mut operation = testing::operation(testing::SESSION_OP_TOUCH, flow.scope, flow.protocol, ends);
    (operation.now, operation.tcp_flags) = (now, tcp_flags);
    tables.run(&mut operation);
    assert_eq!(operation.answer, testing::SESSION_HIT);
}

/// Catches sessions of a port with little room that stay although they are closed or not answered, and others that end: those
/// of ports with room, those that are in use, and those whose last packet came just now.
#[test]
fn closed_and_unanswered_sessions_make_room() {
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    let regions = SessionRegions::anonymous(60, 60).unwrap();
    let shares = SessionShares::anonymous().unwrap();
    let mut sessions = open(&regions, &shares);
    let tables = host(&regions);
    let mut begun = [0; 2];
    for (scope, begun) in [3, 4].into_iter().zip(&mut begun) {
        for number in 0..4 {
            begin(&tables, &shares, &scoped(scope, 17, number), begun);
            begin(&tables, &shares, &scoped(scope, 6, number), begun);
        }
        let answered = scoped(scope, 17, 0);
        packet(&tables, &answered.reversed(), 0, NOW);
        let [established, reset] = [0, 1].map(|number| scoped(scope, 6, number));
        for tcp in [established, reset] {
            packet(&tables, &tcp.reversed(), SYN | ACK, NOW);
            packet(&tables, &tcp, ACK, NOW);
        }
        packet(&tables, &reset, RST, NOW);
    }
    let seconds = |seconds: u32| NOW + seconds * layout::SESSION_TICKS_PER_SECOND;
    // One that is not answered is repeated.
    packet(&tables, &scoped(3, 17, 1), 0, seconds(3));
    shares.set_limit(3, 10);
    shares.set_limit(4, 100);
    for (at, expected) in [(2, 8), (3, 7), (5, 7), (6, 3), (9, 2), (100, 2)] {
        sessions.share_out(&[3, 4], &[], 100);
        // What is left is not scarce any more: it is said again that it is.
        shares.set_limit(3, shares.get(3).sessions());
        sessions.share_out(&[3, 4], &[], 100);
        sessions.sweep(120, seconds(at)).unwrap();
        assert_eq!([3, 4].map(|scope| shares.get(scope).sessions()), [expected, 8], "after {at} s");
    }
}

/// Catches sessions that stay although the shared room is used up, or the room for connections of one origin; and those of the
/// protocols that no other test ages.
#[test]
fn little_room_of_any_kind_counts() {
    let seconds = |seconds: u32| NOW + seconds * layout::SESSION_TICKS_PER_SECOND;
    for (limit, others, left) in [(100, 0, 4), (100, 300, 0), (6, 0, 0)] {
        let regions = SessionRegions::anonymous(60, 60).unwrap();
        let shares = SessionShares::anonymous().unwrap();
        let mut sessions = open(&regions, &shares);
        let tables = host(&regions);
        let mut begun = 0;
        for protocol in [1, 17, 47, 132] {
            begin(&tables, &shares, &scoped(3, protocol, 1), &mut begun);
        }
        // Of six, five may be of one origin: four are little room for that, and not for all. Of 300 others, all are beyond what is assured to them.
        shares.set_limit(3, limit);
        shares.set_begun(9, 1, others);
        let many: Vec<u16> = (1..=280).filter(|scope| *scope != 9).collect();
        let ports = if others == 0 { vec![3] } else { many };
        sessions.share_out(&ports, &[9], limit);
        sessions.sweep(120, seconds(7)).unwrap();
        assert_eq!(shares.get(3).sessions(), left, "limit {limit}, {others} others");
    }
}

/// Catches room that is promised twice, and sessions beyond what is assured that are not counted.
#[test]
fn room_is_divided() {
    let regions = SessionRegions::anonymous(60, 60).unwrap();
    let shares = SessionShares::anonymous().unwrap();
    let mut sessions = open(&regions, &shares);
    // 60 buckets of 7 slots, of which two thirds are used.
    let capacity = 280;
    let word = |offset| regions.config.load32(offset);
    let shared = || {
        let used = word(offset_of!(session_config, shared_begun))
            .wrapping_sub(word(offset_of!(session_config, shared_ended)));
        (used, word(offset_of!(session_config, shared_limit)))
    };
    let assured = |scope| shares.get(scope).assured;
    sessions.share_out(&[1, 2], &[], 100);
    assert_eq!(([1, 2].map(assured), shared()), ([100, 100], (0, capacity - 200)));
    sessions.share_out(&[1, 2, 3, 4, 5, 6, 7], &[], 100);
    assert_eq!(([1, 7].map(assured), shared()), ([20, 20], (0, capacity - 140)));
    // Three beyond the assured ones, and five of a port that has left.
    shares.set_begun(1, 0, 11);
    shares.set_begun(1, 1, 12);
    shares.set_begun(2, 0, 20);
    shares.set_begun(9, 1, 5);
    sessions.share_out(&[1, 2, 3, 4, 5, 6, 7], &[9], 100);
    assert_eq!(shared(), (8, capacity - 140));
    sessions.share_out(&[], &[9], 100);
    assert_eq!(shared(), (5, capacity));
}
