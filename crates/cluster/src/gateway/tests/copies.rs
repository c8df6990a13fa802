//! Tests of gateways with and without copies of sessions.

use super::*;

/// Catches a gateway without copies of sessions that takes a vIP before one with copies, or one that gives its vIP up.
#[test]
fn gateway_with_copies_comes_first() {
    let params = Params::default();
    for complete in [false, true] {
        let mut fixture = Fixture::ready();
        fixture.input(Input::Copies { complete });
        fixture.peer_tables.copies = !complete;
        fixture.pass(20, &[2, 3]);
        assert_eq!((fixture.gateway.holds(), fixture.taken_over()), (set(&[0]), vec![]));
        let has_heir = fixture.gateway.contacts(fixture.now_us).has_heir;
        assert_eq!(has_heir, !complete);
        // Gateway 2 dies. Gateway 3 does not take its vIP in this test.
        let mut due_us = None;
        while due_us.is_none() && fixture.taken_over().is_empty() {
            fixture.now_us += MS / 2;
            fixture.hello(3, &[1]);
            due_us = fixture.gateway.vips[1]
                .takeover_us
                .filter(|at| *at <= fixture.now_us + params.candidate_step_us);
        }
        assert_eq!(fixture.taken_over().is_empty(), !complete, "whatever the hash says");
        fixture.now_us += params.candidate_step_us;
        fixture.hello(3, &[1]);
        assert_eq!(fixture.gateway.holds(), set(&[0, 1]), "nobody else has taken it");
    }
}

/// Catches a gateway without copies that gives out ports which are in use, because its processor stood still and it believes the others dead.
#[test]
fn gateway_without_copies_waits_before_it_replaces_all() {
    let begins: [(&[bool], u64, &[u8]); 4] =
        [(&[true], 50, &[1, 2]), (&[true, false], 50, &[1, 2]), (&[], 100, &[]), (&[], 125, &[1, 2])];
    for (copies, silent_ms, expected) in begins {
        let mut fixture = Fixture::ready();
        fixture.gateway.tables = OwnTables::default();
        fixture.gateway.tables.set_translates(true);
        fixture.input(Input::Tables { revision: REVISION });
        for &complete in copies {
            fixture.input(Input::Copies { complete });
        }
        fixture.pass_alone(silent_ms);
        assert_eq!(fixture.taken_over(), expected, "{copies:?} {silent_ms}");
        fixture.pass(20, &[2, 3]);
        assert_eq!(fixture.taken_over(), expected, "the others are alive");
    }
}

/// Catches a gateway that takes vIPs from one whose tables are behind, and ends its sessions.
#[test]
fn gateway_without_copies_leaves_a_vip_where_the_sessions_are() {
    for (complete, revision, expected) in
        [(true, REVISION, &[1, 2][..]), (false, REVISION, &[]), (false, 0, &[1, 2])]
    {
        let mut fixture = Fixture::ready();
        fixture.input(Input::Copies { complete });
        fixture.peer_tables = TableReport { revision, behind: true, ..fixture.peer_tables };
        fixture.pass(200, &[2, 3]);
        assert_eq!(fixture.taken_over(), expected, "{complete} {revision}");
    }
}

/// Catches copies of all gateways that count as incomplete whenever one comes back.
#[test]
fn gateway_that_returns_was_not_cut_off() {
    let mut fixture = Fixture::ready();
    let cut_off = |fixture: &Fixture| fixture.gateway.contacts(fixture.now_us).cut_off;
    fixture.pass(100, &[3]);
    assert_eq!(cut_off(&fixture), []);
    // Another gateway hears of it first. Its own first message says that it has heard of none.
    fixture.hello(3, &[1, 2]);
    assert_eq!(cut_off(&fixture), []);
    for (health, expected) in [(Health::Starting, vec![]), (Health::Ready, vec![id(2)])] {
        let report = Report { health, ..fixture.report(set(&[]), &[]) };
        let message = fixture.message(Node::Gateway(id(2)), Body::Hello(report));
        fixture.input(Input::Received(Message { incarnation: 2, ..message }));
        assert_eq!(cut_off(&fixture), expected, "one that is ready should receive from here");
    }
}
