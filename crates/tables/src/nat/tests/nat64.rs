//! Inside addresses of IPv6.

use super::*;
use std::net::Ipv6Addr;

const BEGUN: u32 = testing::NAT_BEGUN;

fn vm6(port: u16) -> SocketAddr {
    (Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 0, 0, 3, 5), port).into()
}

fn out(tables: &TestNat, protocol: u8, port: u16, remote: u16) -> nat_test {
    let asked = testing::outgoing(VNI, protocol, vm6(port), server(remote));
    let tcp_flags = if protocol == TCP { tcp::SYN } else { 0 };
    let flags = if protocol == ICMP { testing::QUERY } else { 0 };
    tables.run(nat_test { tcp_flags, flags, now: NOW, ..asked })
}

#[test]
fn sessions_of_ipv6_and_their_answers() {
    for protocol in [TCP, UDP, ICMP] {
        let (tables, mut nat) = TestNat::new(size(2, 64), limits());
        let sent = out(&tables, protocol, 7, 8);
        assert_eq!(sent.answer, testing::NAT_BEGUN);
        assert_eq!(out(&tables, protocol, 7, 8).answer, testing::NAT_TRANSLATED);
        let back = tables.back(&sent, tcp::ACK, NOW);
        assert_eq!((back.answer, testing::inside64_of(&back)), (testing::NAT_TRANSLATED, vm6(7)));
        // Another remote endpoint has no session, and the outside port is that of both.
        let other = testing::incoming(VNI, sent.address, protocol, testing::outside_of(&sent), server(9));
        assert_eq!(tables.run(nat_test { now: NOW, ..other }).answer, testing::NAT_MISS);
        assert_eq!(testing::outside_of(&out(&tables, protocol, 7, 9)), testing::outside_of(&sent));
        let shown: Vec<_> = nat.translations().collect();
        assert_eq!(shown.len(), 2);
        for it in shown {
            assert_eq!((it.inside, *it.remote.ip()), (vm6(7), *server(0).ip()));
            assert_eq!((it.outside, it.is_of_remote), (testing::outside_of(&sent), false));
            assert_eq!(it.session.flow.scope, VNI);
        }
        let block = nat.blocks().next().unwrap();
        assert_eq!((block.vni.get(), block.inside), (VNI, vm6(0).ip()));
        // Rounds keep what is used, count it, and free the rest.
        assert_eq!(round(&mut nat, NOW).0.astray, 0);
        assert_eq!(nat.blocks().next().unwrap().sessions, 2);
        assert_eq!(nat.usage().sessions64.live, 2);
        (0..2).for_each(|_| drop(round(&mut nat, NOW + 8 * 7441)));
        assert!(tables.is_empty());
    }
}

#[test]
fn both_families_share_ports_and_nothing_else() {
    let (tables, mut nat) = TestNat::new(size(1, 64), limits());
    let (four, six) = (tables.out(UDP, vm(7), server(8), NOW), out(&tables, UDP, 7, 8));
    assert_ne!(testing::outside_of(&four), testing::outside_of(&six));
    assert_eq!(testing::inside_of(&tables.back(&four, 0, NOW)), vm(7));
    assert_eq!(testing::inside64_of(&tables.back(&six, 0, NOW)), vm6(7));
    // An address of IPv6 whose bits are those of one of IPv4 has a block of its own.
    let bits = u128::from(u32::from(*vm(7).ip()));
    let asked = testing::outgoing(VNI, UDP, (Ipv6Addr::from(bits), 7), server(8));
    let like = tables.run(nat_test { now: NOW, ..asked });
    assert_eq!(like.answer, testing::NAT_BEGUN);
    assert!(![four.outside_port / 64, six.outside_port / 64].contains(&(like.outside_port / 64)));
    // The end of one ends only its sessions.
    assert_eq!(nat.end(|block| block.inside == vm6(0).ip()), Ok(1));
    let left: Vec<_> = nat.translations().map(|it| it.inside).collect();
    assert_eq!(left.len(), 2);
    assert!(!left.contains(&vm6(7)));
    assert_eq!(tables.back(&six, 0, NOW).answer, testing::NAT_MISS);
    assert_eq!(tables.back(&four, 0, NOW).answer, testing::NAT_TRANSLATED);
}

/// Each family has a table, so each has a limit, and neither takes the other's.
#[test]
fn sessions_of_a_vpc_count_by_family() {
    let (tables, mut nat) = TestNat::new(size(2, 1024), limits());
    nat.limit_vpcs(NonZeroU32::new(5).unwrap(), NonZeroU32::new(3).unwrap());
    let four = |remote| tables.out(UDP, vm(7), server(remote), NOW).answer;
    let six = |remote| out(&tables, UDP, 7, remote).answer;
    assert_eq!([1, 2, 3, 4].map(six), [BEGUN, BEGUN, BEGUN, testing::NAT_VPC_SESSIONS]);
    assert_eq!([1, 2, 3, 4, 5].map(four), [BEGUN; 5]);
    assert_eq!((four(6), four(1)), (testing::NAT_VPC_SESSIONS, testing::NAT_TRANSLATED));
    // After two rounds, only those that live count.
    (0..2).for_each(|_| drop(round(&mut nat, NOW)));
    let ended = nat.translations().find(|it| it.inside == vm6(7)).unwrap();
    assert!(nat.remove(&ended.session.flow, NOW));
    (0..2).for_each(|_| drop(round(&mut nat, NOW)));
    let next = [4, 5].map(six);
    assert_eq!((next, four(6)), ([BEGUN, testing::NAT_VPC_SESSIONS], testing::NAT_VPC_SESSIONS));
}

#[test]
fn sessions_of_other_gateways_with_ipv6() {
    const PORT: u16 = 5120;
    let (tables, mut nat) = TestNat::new(size(1, 64), limits());
    let install = |port: u16, outside_port: u16| {
        let asked = testing::installed(VNI, UDP, (vm6(port), server(53)), (0, outside_port));
        tables.run(nat_test { now: NOW, ..asked })
    };
    let copied = install(7, PORT);
    assert_eq!(copied.answer, testing::NAT_BEGUN);
    assert_eq!(install(7, PORT).answer, testing::NAT_TRANSLATED);
    assert_eq!(install(8, PORT).answer, testing::NAT_TAKEN);
    assert_eq!(install(7, PORT + 1).answer, testing::NAT_ELSEWHERE);
    let sent = out(&tables, UDP, 7, 53);
    assert_eq!(
        (sent.answer, testing::outside_of(&sent)),
        (testing::NAT_TRANSLATED, testing::outside_of(&copied))
    );
    let back = tables.back(&copied, 0, NOW);
    assert_eq!((back.answer, testing::inside64_of(&back)), (testing::NAT_TRANSLATED, vm6(7)));
    assert_eq!(round(&mut nat, NOW).0.astray, 0);
    assert_eq!(nat.translations().count(), 1);
}
