//! Endpoint-dependent mapping: ports that several inside ports share.

use super::*;
use std::collections::{HashMap, HashSet};

/// What the public addresses of the tests' VPC share, with one block for each inside address.
fn sharing() -> nat_pool {
    nat_pool { sessions_limit: 1_000_000, blocks_limit: 1, flags: testing::SHARES_PORTS, ..limits() }
}

fn remote(number: u32, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(0xcb00_7100 + number), port)
}

/// A session of an inside endpoint by a shared port, as another gateway describes it.
fn copy(inside: SocketAddrV4, remote: SocketAddrV4, port: u16) -> nat_test {
    let state = testing::COPY_OF_SHARED;
    nat_test { now: NOW, state, ..testing::installed(VNI, UDP, (inside, remote), (0, port)) }
}

#[test]
fn one_block_of_64_ports_serves_20_000_sessions() {
    let buckets = 20_000 * 100 / 68 / 7;
    let (tables, mut nat) = TestNat::with_grace(size(1, 64), sharing(), buckets, Immediate);
    let mut begun = Vec::new();
    for number in 0..400 {
        for port in 1..=50 {
            let out = tables.out(UDP, vm(port), remote(number, 53), NOW);
            assert_eq!(out.answer, testing::NAT_BEGUN, "{port} to {number}");
            begun.push(out);
        }
    }
    assert_eq!((nat.blocks().count(), nat.translations().count()), (1, 20_000));
    let tuples: HashSet<_> = begun.iter().map(|out| (testing::outside_of(out), out.remote)).collect();
    assert_eq!(tuples.len(), 20_000);
    // All ports serve about as many sessions, and most inside ports have one outside port.
    let (mut of_port, mut of_inside) = (HashMap::<u16, u32>::new(), HashMap::<u16, HashSet<u16>>::new());
    for out in &begun {
        *of_port.entry(out.outside_port).or_default() += 1;
        of_inside.entry(out.inside_port).or_default().insert(out.outside_port);
    }
    assert!(of_port.len() >= 50 && of_port.values().all(|&sessions| sessions <= 400), "{of_port:?}");
    assert!(of_inside.values().all(|ports| ports.len() == 1), "{of_inside:?}");
    let (swept, _) = round(&mut nat, NOW);
    assert_eq!((swept.astray, swept.tuples, nat.usage().tuples), (0, 0, 20_000));
    for out in &begun {
        let back = tables.back(out, 0, NOW);
        assert_eq!((back.answer, back.inside_port), (testing::NAT_TRANSLATED, out.inside_port));
    }
    // Each remote endpoint has 64 ports, and no more.
    for port in 51..=64 {
        assert_eq!(tables.out(UDP, vm(port), remote(0, 53), NOW).answer, testing::NAT_BEGUN);
    }
    assert_eq!(tables.out(UDP, vm(65), remote(0, 53), NOW).answer, testing::NAT_BLOCKS);
    assert_eq!(tables.out(UDP, vm(65), remote(0, 54), NOW).answer, testing::NAT_BEGUN);
    (0..2).for_each(|_| drop(round(&mut nat, NOW + 8 * 301)));
    assert!(tables.is_empty());
}

/// As `a_session_needs_at_most_160_bytes`: 100 VMs, each with 40 inside ports and 30 remote endpoints.
#[test]
fn a_session_by_a_shared_port_needs_at_most_130_bytes() {
    const SESSIONS: u32 = 120_000;
    let buckets = SESSIONS * 100 / 68 / 7;
    let (tables, nat) = TestNat::with_grace(size(4, 64), sharing(), buckets, Immediate);
    let mut begun = 0;
    for number in 0..SESSIONS {
        let (inside, number) = (number / 1200, number % 1200);
        let inside = SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + inside), (number % 40) as u16 + 1);
        let out = tables.out(UDP, inside, remote(number / 40, 53), NOW);
        begun += u32::from(out.answer == testing::NAT_BEGUN);
    }
    assert!(begun > SESSIONS * 999 / 1000, "{begun} of {SESSIONS}");
    let blocks = nat.blocks().count();
    let bytes = buckets as usize * (SessionRegions::BUCKET4_BYTES + NatRegions::TUPLES_BYTES)
        + blocks * (3 * 64 * 4 + NatRegions::GROUP_BYTES / 16);
    let each = bytes as f64 / f64::from(begun);
    println!("{each:.1} bytes a session: {begun} sessions, {blocks} blocks of 64 ports");
    assert!(blocks == 100 && each <= 130.0, "{each} bytes a session, {blocks} blocks");
}

#[test]
fn all_protocols_share_ports_and_keep_their_endpoints() {
    let (tables, mut nat) = TestNat::new(size(2, 64), sharing());
    for (protocol, port) in [(TCP, 443), (UDP, 53), (ICMP, 8)] {
        let begin = |inside, number| tables.out(protocol, vm(inside), remote(number, port), NOW);
        let begun: Vec<_> = (0..90).map(|number| begin(number % 30, u32::from(number / 30))).collect();
        for out in &begun {
            assert_eq!(out.answer, testing::NAT_BEGUN);
            let back = tables.back(out, tcp::SYN | tcp::ACK, NOW);
            assert_eq!(testing::inside_of(&back), vm(out.inside_port));
            // Another remote endpoint has no session there, whatever the filtering.
            let stranger = nat_test { remote: Ipv4Addr::new(203, 0, 113, 200).into(), ..*out };
            let pool = nat_pool { flags: testing::SHARES_PORTS | testing::ANY_REMOTE, ..out.pool };
            assert_eq!(tables.back(&nat_test { pool, ..stranger }, tcp::SYN, NOW).answer, testing::NAT_MISS);
        }
        let ports: HashSet<_> = begun.iter().map(|out| out.outside_port).collect();
        assert!(ports.len() <= 64, "{} ports", ports.len());
    }
    assert_eq!((round(&mut nat, NOW).0.astray, nat.usage().tuples), (0, 270));
    assert!(nat.translations().all(|shown| shown.is_shared));
    (0..2).for_each(|_| drop(round(&mut nat, NOW + 8 * 301)));
    assert!(tables.is_empty());
}

#[test]
fn sessions_keep_their_mapping_when_it_changes() {
    let (mut tables, mut nat) = TestNat::new(size(1, 64), nat_pool { flags: 0, ..sharing() });
    let before = tables.out(UDP, vm(7), remote(1, 53), NOW);
    tables.pool.flags = testing::SHARES_PORTS;
    let shared: Vec<_> = (0..70).map(|port| tables.out(UDP, vm(port), remote(2, 53), NOW)).collect();
    let (begun, refused) = shared.split_at(63);
    assert!(begun.iter().all(|out| out.answer == testing::NAT_BEGUN));
    // The port of the first session is not shared.
    assert!(begun.iter().all(|out| out.outside_port != before.outside_port));
    assert!(refused.iter().all(|out| out.answer == testing::NAT_BLOCKS));
    tables.pool.flags = 0;
    let again = tables.out(UDP, vm(7), remote(3, 53), NOW);
    assert_eq!((again.answer, again.outside_port), (testing::NAT_BEGUN, before.outside_port));
    assert_eq!(tables.out(UDP, vm(8), remote(3, 53), NOW).answer, testing::NAT_BLOCKS);
    round(&mut nat, NOW);
    for out in begun.iter().chain([&before, &again]) {
        let packet = nat_test { now: NOW, ..testing::outgoing(VNI, UDP, vm(out.inside_port), server(1)) };
        let same = tables.run(nat_test { remote: out.remote, remote_port: out.remote_port, ..packet });
        assert_eq!((same.answer, same.outside_port), (testing::NAT_TRANSLATED, out.outside_port));
        assert_eq!(tables.back(out, 0, NOW).answer, testing::NAT_TRANSLATED);
    }
}

#[test]
fn limits_of_sessions_hold_for_shared_ports() {
    let (tables, _nat) = TestNat::new(size(1, 64), nat_pool { sessions_limit: 70, ..sharing() });
    let answers: Vec<_> =
        (0..72).map(|number| tables.out(UDP, vm(7), remote(number, 53), NOW).answer).collect();
    assert_eq!((answers[69], answers[70]), (testing::NAT_BEGUN, testing::NAT_SESSIONS));
}

/// Words whose sessions have ended are in the way until they are swept.
#[test]
fn full_buckets_of_tuples_refuse_sessions() {
    let (tables, mut nat) = TestNat::with_grace(size(1, 64), sharing(), 2, Immediate);
    let begin = |port, now| tables.out(UDP, vm(port), remote(1, 53), now).answer;
    assert!((0..14).all(|port| begin(port, NOW) == testing::NAT_BEGUN));
    assert_eq!(begin(14, NOW), testing::NAT_FULL);
    let later = NOW + 8 * 301;
    while nat.progress.phase != Phase::Wait {
        nat.sweep(64, later, &mut drop).unwrap();
    }
    // 16 words, of which 14 were in use, and that of the session that found no place was given back.
    assert_eq!(
        [20, 21, 22].map(|port| begin(port, later)),
        [testing::NAT_BEGUN, testing::NAT_BEGUN, testing::NAT_FULL]
    );
    round(&mut nat, later);
    assert_eq!(begin(22, later), testing::NAT_BEGUN);
}

#[test]
fn a_session_that_begins_again_has_the_same_port() {
    let (tables, mut nat) = TestNat::new(size(1, 64), sharing());
    let out = tables.out(TCP, vm(7), server(443), NOW);
    for flags in [tcp::SYN | tcp::ACK, tcp::FIN | tcp::ACK] {
        tables.back(&out, flags, NOW);
    }
    let packet = testing::outgoing(VNI, TCP, vm(7), server(443));
    tables.run(nat_test { tcp_flags: tcp::FIN | tcp::ACK, now: NOW, ..packet });
    let again = tables.out(TCP, vm(7), server(443), NOW);
    assert_eq!((again.answer, again.outside_port), (testing::NAT_BEGUN, out.outside_port));
    assert_eq!(round(&mut nat, NOW).0.tuples, 0);
}

#[test]
fn a_tuple_has_one_inside_endpoint_on_each_gateway() {
    const PORT: u16 = 5120;
    let (tables, mut nat) = TestNat::new(size(1, 64), sharing());
    for number in 0..40 {
        assert_eq!(tables.run(copy(vm(number), remote(number.into(), 53), PORT)).answer, testing::NAT_BEGUN);
    }
    for flags in [0, testing::OF_OWNER] {
        let refused =
            |asked: nat_test| assert_eq!(tables.run(nat_test { flags, ..asked }).answer, testing::NAT_TAKEN);
        refused(copy(vm(50), remote(7, 53), PORT));
        // A port is shared for all sessions, or for none.
        refused(nat_test { state: 0, ..copy(vm(50), remote(70, 53), PORT) });
        refused(nat_test { state: 0, ..copy(vm(3), remote(70, 53), PORT) });
        refused(copy(end([10, 0, 0, 6], 3), remote(70, 53), PORT));
    }
    assert_eq!(
        tables.run(nat_test { state: 0, ..copy(vm(50), remote(7, 53), PORT + 1) }).answer,
        testing::NAT_BEGUN
    );
    assert_eq!(tables.run(copy(vm(51), remote(8, 53), PORT + 1)).answer, testing::NAT_TAKEN);
    // The same session again, also if the other gateway shares ports and this one does not, or the reverse.
    for state in [0, testing::COPY_OF_SHARED] {
        for (inside, number, port) in [(3, 3, PORT), (50, 7, PORT + 1)] {
            let again = nat_test { state, ..copy(vm(inside), remote(number, 53), port) };
            assert_eq!(tables.run(again).answer, testing::NAT_TRANSLATED);
        }
    }
    let (swept, _) = round(&mut nat, NOW);
    assert_eq!((swept.astray, nat.usage().tuples, nat.translations().count()), (0, 40, 41));
    // A tuple is free after its session.
    assert!(nat.remove(&Flow { destination: remote(7, 53).into(), ..flow(7, 53) }, NOW));
    assert_eq!(tables.run(copy(vm(60), remote(7, 53), PORT)).answer, testing::NAT_TAKEN);
    assert_eq!(round(&mut nat, NOW).0.tuples, 1);
    assert_eq!(tables.run(copy(vm(60), remote(7, 53), PORT)).answer, testing::NAT_BEGUN);
    let packet = tables.out(UDP, vm(60), remote(7, 53), NOW);
    assert_eq!((packet.answer, packet.outside_port), (testing::NAT_TRANSLATED, PORT));
}

#[test]
fn sessions_whose_tuple_is_not_theirs_end() {
    let (tables, mut nat) = TestNat::new(size(1, 64), sharing());
    let out = tables.out(UDP, vm(7), server(53), NOW);
    let words = &tables.regions.tuples;
    let at = (0..words.bytes() / 8).find(|word| words.load64(word * 8) != 0).unwrap() * 8;
    words.store64(at, words.load64(at) + 1);
    assert_eq!(tables.back(&out, 0, NOW).answer, testing::NAT_MISS);
    assert_eq!(round(&mut nat, NOW).0.astray, 1);
    assert_eq!(nat.translations().count(), 0);
}

/// The words of a packet that was killed, of this round and of the one before.
#[test]
fn a_tuple_that_a_packet_is_claiming_is_not_freed_before_the_next_round() {
    let (tables, mut nat) = TestNat::new(size(1, 64), sharing());
    for _ in 0..2 {
        nat.sweep(64, NOW, &mut drop).unwrap();
        let stamp = layout::NAT_TENTATIVE | nat.config.load32(offset_of!(nat_config, round)) & 1;
        tables.regions.tuples.store64(64, u64::from(stamp << 16 | 9) | 5 << 32);
        assert_eq!(round(&mut nat, NOW).0.tuples, 0);
        assert_eq!(round(&mut nat, NOW).0.tuples, 1);
        round(&mut nat, NOW);
    }
}
