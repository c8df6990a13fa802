//! Sessions that another gateway describes.

use super::*;

/// A session of the VM's port 7 with port 53 of the server, at the first port of a block.
const PORT: u16 = 5120;

fn copy(inside: SocketAddrV4, outside_port: u16) -> nat_test {
    nat_test { now: NOW, ..testing::installed(VNI, UDP, (inside, server(53)), (0, outside_port)) }
}

/// The only session: its state without the originator, and for how long it was idle.
fn session(nat: &Nat, now: u32) -> (u32, u32) {
    let shown: Vec<_> = nat.translations().collect();
    assert_eq!(shown.len(), 1);
    let session = &shown[0].session;
    let timeout = match (session.flow.protocol, session.state & layout::SESSION_CONFIRMED != 0) {
        (TCP, true) => 7440,
        (TCP, false) => 240,
        _ => 300,
    };
    (
        session.state & !layout::SESSION_ORIGINATOR,
        now.wrapping_add(8 * timeout).wrapping_sub(session.expires_at),
    )
}

#[test]
fn a_session_that_is_installed_is_that_of_its_endpoints() {
    for of_remote in [false, true] {
        for protocol in [TCP, UDP, ICMP] {
            let (tables, mut nat) = TestNat::new(size(2, 64), limits());
            let state = if of_remote { testing::COPY_OF_REMOTE } else { 0 };
            let asked = nat_test {
                state: state | layout::SESSION_REPLIED | layout::SESSION_CONFIRMED,
                idle: 100,
                now: NOW,
                ..testing::installed(VNI, protocol, (vm(7), server(8)), (1, PORT + 3))
            };
            let copied = tables.run(asked);
            assert_eq!((copied.answer, *testing::outside_of(&copied).ip()), (testing::NAT_BEGUN, public(1)));
            let shown = nat.translations().next().unwrap();
            assert_eq!((shown.inside, shown.remote), (vm(7).into(), server(8)));
            assert_eq!((shown.outside, shown.is_of_remote), (testing::outside_of(&copied), of_remote));
            assert_eq!((shown.session.packets, shown.session.bytes), ([0, 0], [0, 0]));
            let confirmed = layout::SESSION_REPLIED | layout::SESSION_CONFIRMED;
            let timeout =
                if protocol == ICMP { 8 * 60 } else { 8 * if protocol == TCP { 7440 } else { 300 } };
            assert_eq!(shown.session.state & !layout::SESSION_ORIGINATOR, confirmed);
            assert_eq!(shown.session.expires_at, NOW - 100 + timeout);
            // Packets of both directions find it, and a round keeps its port and counts it.
            assert_eq!(round(&mut nat, NOW).0.astray, 0);
            let back = tables.back(&copied, tcp::ACK, NOW);
            assert_eq!((back.answer, testing::inside_of(&back)), (testing::NAT_TRANSLATED, vm(7)));
            let out = tables.run(nat_test { now: NOW, ..testing::outgoing(VNI, protocol, vm(7), server(8)) });
            let translated = (out.answer, testing::outside_of(&out));
            assert_eq!(translated, (testing::NAT_TRANSLATED, testing::outside_of(&copied)));
            let block = nat.blocks().next().unwrap();
            assert_eq!(
                (block.inside, block.ports, block.sessions),
                ((*vm(7).ip()).into(), PORT..=PORT + 63, 1)
            );
            (0..2).for_each(|_| drop(round(&mut nat, NOW + 8 * 7441)));
            assert!(tables.is_empty());
        }
    }
}

#[test]
fn an_outside_port_keeps_its_inside_endpoint() {
    let (tables, mut nat) = TestNat::new(size(1, 64), nat_pool { blocks_limit: 1, ..limits() });
    assert_eq!(tables.run(copy(vm(7), PORT)).answer, testing::NAT_BEGUN);
    let other = end([10, 0, 0, 6], 7);
    for (inside, port) in [(vm(8), PORT), (other, PORT), (other, PORT + 1)] {
        for flags in [0, testing::OF_OWNER] {
            let refused = nat_test { flags, ..copy(inside, port) };
            assert_eq!(tables.run(refused).answer, testing::NAT_TAKEN);
        }
    }
    let other_vpc = nat_test { vni: VNI + 1, ..copy(vm(7), PORT) };
    assert_eq!(tables.run(other_vpc).answer, testing::NAT_TAKEN);
    // Ports of no use: below 1024, of a number without an address, of no number.
    assert_eq!(tables.run(copy(vm(8), 1023)).answer, testing::NAT_TAKEN);
    nat.release(&[public(0)]).unwrap();
    round(&mut nat, NOW);
    assert_eq!(tables.run(copy(vm(7), PORT)).answer, testing::NAT_TAKEN);
    assert_eq!(tables.run(nat_test { address: 1, ..copy(vm(7), PORT) }).answer, testing::NAT_TAKEN);
    assert!(tables.is_empty() && nat.translations().next().is_none());
}

#[test]
fn limits_are_those_of_the_owner() {
    let (tables, nat) =
        TestNat::new(size(1, 64), nat_pool { blocks_limit: 1, sessions_limit: 1, ..limits() });
    for number in 0..40 {
        assert_eq!(tables.run(copy(vm(number), PORT + 64 * number)).answer, testing::NAT_BEGUN);
    }
    assert_eq!((nat.blocks().count(), nat.translations().count()), (40, 40));
}

#[test]
fn a_mapping_is_used_by_packets_and_copies() {
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    let out = tables.out(UDP, vm(7), server(53), NOW);
    let copied = tables.run(nat_test { remote_port: 54, ..copy(vm(7), out.outside_port) });
    assert_eq!((copied.answer, nat.blocks().count()), (testing::NAT_BEGUN, 1));
    assert_eq!(tables.out(UDP, vm(7), server(55), NOW).outside_port, out.outside_port);
}

#[test]
fn closing_blocks_open_again_and_closed_ones_are_busy() {
    let (tables, mut nat) = TestNat::new(size(1, 64), limits());
    let id = nat.tables.block_of(0, PORT).unwrap();
    tables.run(copy(vm(7), PORT));
    assert!(nat.remove(&flow(7, 53), NOW));
    while nat.progress.phase != Phase::Close(0) {
        nat.sweep(64, NOW, &mut drop).unwrap();
    }
    assert!(nat.tables.word(id).is_closing());
    assert_eq!(tables.run(copy(end([10, 0, 0, 6], 7), PORT)).answer, testing::NAT_TAKEN);
    assert_eq!(tables.run(copy(vm(8), PORT)).answer, testing::NAT_BEGUN);
    assert_eq!((round(&mut nat, NOW).0.blocks, nat.translations().count()), (0, 1));
    assert!(nat.tables.close(id));
    assert_eq!(tables.run(copy(vm(9), PORT + 1)).answer, testing::NAT_BUSY);
}

/// Installs a session that was idle for `idle` ticks at `now`, and says what became of it.
fn merge(tables: &TestNat, flags: u32, state: u32, idle: u32, now: u32, since: u32) -> u32 {
    tables.run(nat_test { flags, state, idle, now, since, ..copy(vm(7), PORT) }).answer
}

#[test]
fn newer_activity_wins() {
    const REPLIED: u32 = layout::SESSION_REPLIED;
    const CONFIRMED: u32 = layout::SESSION_CONFIRMED;
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    assert_eq!(merge(&tables, 0, REPLIED, 100, NOW, 0), testing::NAT_BEGUN);
    // Newer by more than a second, by a second, older by a second, by more.
    let expected = [
        (CONFIRMED, 91, (CONFIRMED, 91)),
        (REPLIED, 83, (CONFIRMED | REPLIED, 83)),
        (layout::SESSION_FIN, 91, (CONFIRMED | REPLIED | layout::SESSION_FIN, 83)),
        (layout::SESSION_RST, 92, (CONFIRMED | REPLIED | layout::SESSION_FIN, 83)),
    ];
    for (state, idle, after) in expected {
        assert_eq!(merge(&tables, 0, state, idle, NOW, 0), testing::NAT_TRANSLATED);
        assert_eq!(session(&nat, NOW), after, "{state:x} {idle}");
    }
    // A later packet of the ring may know less.
    let all = CONFIRMED | REPLIED | layout::SESSION_FIN;
    assert_eq!(merge(&tables, testing::ADDS_STATE, 0, 50, NOW, 0), testing::NAT_TRANSLATED);
    assert_eq!(session(&nat, NOW), (all, 50));
    assert_eq!(merge(&tables, 0, all, 0, NOW + 10, 0), testing::NAT_TRANSLATED);
    let (now, before) = (NOW + 93, NOW + 10);
    assert_eq!(session(&nat, now).1, now - before);
    // The owner replaces what is here, unless there was activity in its pass that is newer.
    assert_eq!(merge(&tables, testing::OF_OWNER, CONFIRMED, 200, now, before), testing::NAT_TRANSLATED);
    assert_eq!(session(&nat, now).1, 83);
    assert_eq!(merge(&tables, testing::OF_OWNER, CONFIRMED, 200, now, before + 1), testing::NAT_TRANSLATED);
    assert_eq!(session(&nat, now), (CONFIRMED, 200));
    assert_eq!(merge(&tables, testing::OF_OWNER, 0, 0, now + 50, now - 900), testing::NAT_TRANSLATED);
    assert_eq!(session(&nat, now + 50), (0, 0));
}

#[test]
fn each_endpoint_may_have_been_the_first() {
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    assert_eq!(merge(&tables, 0, 0, 50, NOW, 0), testing::NAT_BEGUN);
    let state = testing::COPY_OF_REMOTE | layout::SESSION_FIN;
    assert_eq!(merge(&tables, 0, state, 0, NOW, 0), testing::NAT_TRANSLATED);
    // The FIN of the remote endpoint is that of the reply here.
    assert_eq!(session(&nat, NOW), (layout::SESSION_REPLIED | layout::SESSION_FIN << 1, 0));
    assert!(!nat.translations().next().unwrap().is_of_remote);
}

#[test]
fn a_session_with_another_outside_endpoint_ends_if_it_is_older() {
    let (tables, mut nat) = TestNat::new(size(1, 64), limits());
    let outside = |nat: &Nat| nat.translations().map(|shown| shown.outside.port()).collect::<Vec<_>>();
    assert_eq!(merge(&tables, 0, 0, 100, NOW, 0), testing::NAT_BEGUN);
    let elsewhere =
        |flags, idle, since| tables.run(nat_test { flags, idle, since, ..copy(vm(7), PORT + 1) }).answer;
    assert_eq!(
        (elsewhere(0, 109, 0), elsewhere(0, 100, 0)),
        (testing::NAT_ELSEWHERE, testing::NAT_ELSEWHERE)
    );
    assert_eq!(elsewhere(testing::OF_OWNER, 109, NOW - 100), testing::NAT_ELSEWHERE);
    assert_eq!(outside(&nat), [PORT]);
    // It stays if the port of the newer one belongs to another inside endpoint.
    let other = nat_test { remote_port: 60, ..copy(vm(8), PORT + 1) };
    assert_eq!(tables.run(other).answer, testing::NAT_BEGUN);
    assert_eq!((elsewhere(0, 0, 0), nat.translations().count()), (testing::NAT_TAKEN, 2));
    assert!(nat.remove(&Flow { destination: server(60).into(), ..flow(8, 53) }, NOW));
    (0..2).for_each(|_| drop(round(&mut nat, NOW)));
    assert_eq!((elsewhere(testing::OF_OWNER, 109, NOW), outside(&nat)), (testing::NAT_BEGUN, vec![PORT + 1]));
}

#[test]
fn a_session_that_would_have_expired_is_not_installed() {
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    assert_eq!(merge(&tables, 0, 0, 2400, NOW, 0), testing::NAT_MISS);
    assert!(tables.is_empty() && nat.translations().next().is_none());
    assert_eq!(merge(&tables, 0, 0, 2399, NOW, 0), testing::NAT_BEGUN);
    assert_eq!(nat.translations().next().unwrap().session.expires_at, NOW + 1);
}
