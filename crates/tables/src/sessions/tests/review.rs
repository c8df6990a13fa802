//! The review: which packet a session is judged by, and what ends and changes.

use super::*;
use crate::policy::{Direction as PolicyDirection, PolicyPacket};

/// A session of a host as packets begin it. `rule` has the bits of `action[1]`.
fn begin(tables: &HostTables, flow: &Flow, rule: u32) {
    let ends = [flow.source, flow.destination];
    let mut operation = testing::operation(testing::SESSION_OP_CREATE, flow.scope, flow.protocol, ends);
    (operation.now, operation.action) = (NOW, [5, rule]);
    tables.run(&mut operation);
    assert_eq!(operation.answer, testing::SESSION_CREATED);
}

fn only(sessions: &Sessions) -> Session {
    let all: Vec<_> = sessions.reader().iter().collect();
    let [session] = all[..] else { panic!("one session: {all:?}") };
    session
}

/// Catches a session that is judged in the direction of its answers, or as another service.
#[test]
fn a_session_is_judged_by_the_packet_that_began_it() {
    const EGRESS: u32 = layout::SESSION_EGRESS;
    let end = |ip: &str, port: u16| SocketAddr::new(ip.parse().unwrap(), port);
    // The VM has the lower address in one family and the higher one in the other.
    for (vm, other) in [("10.0.0.1", "192.0.2.9"), ("fd00::9", "2001::1"), ("192.0.2.9", "10.0.0.1")] {
        let (icmp, ask) = if vm.contains(':') { (58, 128) } else { (1, 8) };
        for (protocol, from_vm, from_other, port) in [
            (6, (4000, 443), (4001, 22), [443, 22]),
            (17, (4000, 53), (53, 4000), [53, 4000]),
            (icmp, (7, ask), (9, ask), [ask << 8, ask << 8]),
            (icmp, (ask, 13), (13, ask), [13 << 8, ask << 8]),
            (47, (0, 0), (0, 0), [0, 0]),
        ] {
            for (is_egress, (source, destination), port) in
                [(true, from_vm, port[0]), (false, from_other, port[1])]
            {
                let regions = SessionRegions::anonymous(2, 2).unwrap();
                let sessions = sessions(&regions, Immediate);
                let (from, to) = if is_egress { (vm, other) } else { (other, vm) };
                let flow =
                    Flow { scope: 3, protocol, source: end(from, source), destination: end(to, destination) };
                begin(&host(&regions), &flow, 77 | if is_egress { EGRESS } else { 0 });
                let direction = if is_egress { PolicyDirection::Egress } else { PolicyDirection::Ingress };
                let remote = other.parse().unwrap();
                let expected = PolicyPacket { direction, remote, identity: 0, protocol, port: Some(port) };
                let session = only(&sessions);
                assert_eq!(session.first_packet(), expected, "{flow:?}");
                assert_eq!((session.rule(), session.policy_generation()), (77, 5));
            }
        }
    }
}

#[test]
fn sessions_end_change_or_stay_as_decided() {
    let regions = SessionRegions::anonymous(2, 3).unwrap();
    let mut sessions = sessions(&regions, Immediate);
    let tables = host(&regions);
    for family in [Family::Ipv4, Family::Ipv6] {
        for number in 0..6 {
            begin(&tables, &flow(family, number), number | layout::SESSION_EGRESS);
        }
        let buckets = sessions.buckets(family);
        let reviewed = sessions.review(family, 0..u32::MAX, |session| match session.rule() {
            0 | 1 => Fate::Ends,
            2 => Fate::Changes(session.permitted_by(9, 70)),
            3 => Fate::Identified(session.permitted_by(9, 71), 0xabcd),
            _ => Fate::Stays,
        });
        assert_eq!(reviewed, Reviewed { sessions: 6, changed: 2, ended: 2, refreshed: 0 });
        let live =
            |number: u32| sessions.reader().lookup(&flow(family, number), NOW).map(|(session, _)| session);
        assert_eq!([0, 1].map(live), [None, None]);
        let changed = live(2).unwrap();
        assert_eq!((changed.action, changed.rule()), ([9, 70 | layout::SESSION_EGRESS], 70));
        let [identified, other] = [3, 4].map(|number| live(number).unwrap());
        assert_eq!((identified.action, identified.identity()), ([9, 71 | layout::SESSION_EGRESS], 0xabcd));
        assert_eq!(identified.created_at, other.created_at);
        assert_eq!(
            identified.state & 0xffff & !layout::SESSION_ORIGINATOR,
            other.state & !layout::SESSION_ORIGINATOR
        );
        assert_eq!(other.action, [5, 4 | layout::SESSION_EGRESS]);
        assert_eq!(sessions.review(family, buckets..u32::MAX, |_| Fate::Ends), Reviewed::default());
    }
    sessions.sweep(8, NOW).unwrap();
    assert_eq!(sessions.usage(Family::Ipv4).live, 4);
}

/// Catches a review that moves a flow to another member of its service, and one that overwrites the member that a packet has
/// stored meanwhile.
#[test]
fn a_session_that_is_judged_again_keeps_its_member() {
    const MEMBER: u32 = 99 << layout::SESSION_MEMBER_SHIFT;
    let regions = SessionRegions::anonymous(2, 2).unwrap();
    let mut sessions = sessions(&regions, Immediate);
    let tables = host(&regions);
    for family in [Family::Ipv4, Family::Ipv6] {
        for (number, egress) in [(1, layout::SESSION_EGRESS), (2, 0)] {
            let flow = flow(family, number);
            begin(&tables, &flow, 5 | MEMBER | egress);
            let found = |sessions: &Sessions| sessions.reader().lookup(&flow, NOW).unwrap().0;
            let before = found(&sessions);
            assert_eq!((before.rule(), before.begun_by() == PolicyDirection::Egress), (5, egress != 0));
            // Another policy, by the highest number of a rule.
            let rule = layout::SESSION_RULE_MASK;
            let judge = |session: &Session| {
                if session.flow == flow { Fate::Changes(session.permitted_by(9, rule)) } else { Fate::Stays }
            };
            assert_eq!(sessions.review(family, 0..u32::MAX, judge).changed, 1);
            let after = found(&sessions);
            assert_eq!(after.action, [9, rule | MEMBER | egress]);
            assert_eq!((after.rule(), after.first_packet()), (rule, before.first_packet()));
            // A packet stores another member after the review has read the session: that comes again.
            let other = 7 << layout::SESSION_MEMBER_SHIFT;
            let stored = [9, rule | other | egress];
            let mut packets = 0;
            let reviewed = sessions.review(family, 0..u32::MAX, |session| {
                if session.flow != flow {
                    return Fate::Stays;
                }
                packets += store_action(&regions, after.action, stored);
                Fate::Changes(session.permitted_by(10, 6))
            });
            assert_eq!((packets, reviewed.changed, found(&sessions).action), (1, 0, stored));
            let reviewed = sessions.review(family, 0..u32::MAX, |session| {
                if session.flow == flow { Fate::Changes(session.permitted_by(10, 6)) } else { Fate::Stays }
            });
            assert_eq!((reviewed.changed, found(&sessions).action), (1, [10, 6 | other | egress]));
        }
    }
}

/// Replaces the data of the sessions that have these, as a packet does that stores a member. Returns their number.
fn store_action(regions: &SessionRegions, from: [u32; 2], to: [u32; 2]) -> u32 {
    let word = |action: [u32; 2]| u64::from(action[0]) | u64::from(action[1]) << 32;
    let mut stored = 0;
    for region in [&regions.ipv4, &regions.ipv6] {
        for at in (0..region.bytes()).step_by(8) {
            stored += u32::from(region.compare_and_swap64(at, word(from), word(to)).is_ok());
        }
    }
    stored
}

/// Catches a review that lets a session live because a packet refreshed it in between.
#[test]
fn a_session_that_is_refreshed_meanwhile_ends_as_well() {
    let regions = SessionRegions::anonymous(2, 2).unwrap();
    let mut sessions = sessions(&regions, Immediate);
    let tables = host(&regions);
    let flow = flow(Family::Ipv4, 1);
    begin(&tables, &flow, 1);
    let reviewed = sessions.review(Family::Ipv4, 0..2, |_| {
        let mut packet = testing::operation(
            testing::SESSION_OP_TOUCH,
            flow.scope,
            flow.protocol,
            [flow.destination, flow.source],
        );
        packet.now = NOW + 100;
        tables.run(&mut packet);
        assert_eq!(packet.touched, testing::SESSION_HIT);
        Fate::Ends
    });
    assert_eq!(reviewed.ended, 1);
    assert_eq!(sessions.reader().lookup(&flow, NOW), None);
}

/// Catches a revoked session that lives on because a packet refreshed it that had found it before, or because the agent was killed
/// in between.
#[test]
fn a_revoked_session_ends_two_seconds_later() {
    let regions = SessionRegions::anonymous(2, 2).unwrap();
    let mut first = sessions(&regions, Immediate);
    let tables = host(&regions);
    let refresh = |flow: &Flow, now: u32| {
        let ends = [flow.destination, flow.source];
        let mut packet = testing::operation(testing::SESSION_OP_TOUCH, flow.scope, flow.protocol, ends);
        packet.now = now;
        tables.run(&mut packet);
        assert_eq!(packet.touched, testing::SESSION_HIT);
    };
    for family in [Family::Ipv4, Family::Ipv6] {
        let (revoked, other) = (flow(family, 1), flow(family, 2));
        begin(&tables, &revoked, 1);
        begin(&tables, &other, 2);
        let decide = |session: &Session| match session.rule() {
            1 => Fate::Revoked(session.permitted_by(9, 1)),
            _ => Fate::Stays,
        };
        let reviewed = first.review(family, 0..2, decide);
        assert_eq!(reviewed, Reviewed { sessions: 2, ended: 1, ..Reviewed::default() });
        // It is found, so that packets know about it.
        refresh(&revoked, NOW + 100);
        let session = first.reader().lookup(&revoked, NOW).unwrap().0;
        assert!(session.is_revoked() && session.policy_generation() == 9 && session.expires_at > NOW + 100);
        // Another agent does what the first one was killed before.
        let mut second = Sessions::adopt(&regions, NOW, Immediate).unwrap();
        let reviewed = second.review(family, 0..2, |_| Fate::Stays);
        assert_eq!(reviewed.ended, 0, "it is revoked once");
        second.end_revoked(NOW + 100).unwrap();
        let live = |now: u32| second.reader().lookup(&revoked, now).is_some();
        let last = NOW + 100 + layout::SESSION_REVOKED_TICKS;
        assert_eq!([last - 1, last].map(live), [true, false]);
        // It does not live longer by later reviews.
        second.review(family, 0..2, |_| Fate::Stays);
        second.end_revoked(NOW + 110).unwrap();
        assert!(second.reader().lookup(&revoked, last).is_none());
        assert!(second.reader().lookup(&other, last).is_some_and(|(session, _)| !session.is_revoked()));
    }
}
