//! Judging sessions again, compared with a naive judgement of the packets that began them; and the thread.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use sluice_tables::sessions::{Fate, Flow, Region, Session, SessionRegions};
use sluice_tables::{
    AddressFamily, Direction, Immediate, Memory, NodeTables, Policy, PolicyPacket, Port, PortIpv4, PortQos,
    ReaderGate, Remote, Rule, Service, Sizes, Vrf, layout,
};
use sluice_types::{MacAddr, Vni};

use super::*;
use crate::ending_sessions::Left;
use crate::policies::Without;
use crate::scopes::{Owner, ScopeMap, port_maps};

const SCOPE: u16 = 7;
const IFINDEX: u32 = 50;
const VM: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5))];

fn tables(policy: Option<&Policy>) -> NodeTables {
    let memory = Memory::anonymous(1 << 14).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    let vni = Vni::new(1).unwrap();
    let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
    tables.upsert_vrf(&vrf).unwrap();
    policy.map(|policy| tables.upsert_policy(policy).unwrap());
    tables.upsert_port(&port(policy.map(|policy| policy.id))).unwrap();
    tables
}

fn port(policy: Option<u32>) -> Port {
    Port {
        ifindex: IFINDEX,
        peer_redirect: false,
        mtu: 1430,
        vni: Vni::new(1).unwrap(),
        mac: MacAddr::local(5),
        ipv4: Some(PortIpv4 { address: Ipv4Addr::new(10, 0, 0, 5), length: 24, router: None }),
        ipv6: None,
        dns4: Vec::new(),
        instance: 1,
        lease_s: 1,
        policy,
        scope: SCOPE,
        identity: 0,
        adopt_until_s: 0,
        qos: PortQos::default(),
        sources: sluice_tables::PortSources::default(),
        bonded: false,
    }
}

fn map() -> ScopeMap {
    let owner = Owner { ifindex: IFINDEX, ifname: "tap0".into(), is_filtered: true };
    ScopeMap { changes: 1, given: [(SCOPE, owner)].into(), retired: vec![9] }
}

/// The session that a packet begins, as `admission.h` writes it.
fn session(packet: &PolicyPacket, generation: u32) -> Session {
    let vm = VM[usize::from(packet.remote.is_ipv6())];
    let port = packet.port.unwrap_or(0);
    let is_icmp = [1, 58].contains(&packet.protocol);
    // Of a query, the port of the end that answers is the type.
    let (near, far) = if is_icmp { (77, port >> 8) } else { (4000, port) };
    let is_egress = packet.direction == Direction::Egress;
    let (source, destination) = if is_egress {
        (SocketAddr::new(vm, near), SocketAddr::new(packet.remote, far))
    } else {
        (SocketAddr::new(packet.remote, near), SocketAddr::new(vm, far))
    };
    let rule = 99 | if is_egress { layout::SESSION_EGRESS } else { 0 };
    Session {
        flow: Flow { scope: SCOPE.into(), protocol: packet.protocol, source, destination },
        created_at: 0,
        expires_at: 100,
        state: u32::from(packet.identity) << layout::SESSION_IDENTITY_SHIFT | layout::SESSION_REPLIED,
        packets: [1, 1],
        bytes: [1, 1],
        action: [generation, rule],
        generation: 0,
    }
}

fn any_direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Ingress), Just(Direction::Egress)]
}

/// Remotes in a few nested prefixes of both families.
fn any_address() -> impl Strategy<Value = IpAddr> {
    (any::<bool>(), 0..4_u8, 0..3_u8).prop_map(|(is_ipv6, a, b)| match is_ipv6 {
        true => Ipv6Addr::new(0xfd00, a.into(), 0, 0, 0, 0, 0, b.into()).into(),
        false => Ipv4Addr::new(10, a, 0, b).into(),
    })
}

fn any_remote() -> impl Strategy<Value = Remote> {
    let prefix =
        (any_address(), prop::sample::select(vec![0, 16, 24, 32, 128])).prop_map(|(address, length)| {
            let length = if address.is_ipv4() { u8::min(length, 32) } else { length };
            Remote::Prefix(sluice_types::IpNet::new(address, length).unwrap().trunc())
        });
    let family = prop::sample::select(vec![None, Some(AddressFamily::V4), Some(AddressFamily::V6)]);
    let group = (1..4_u32, family).prop_map(|(group, family)| Remote::Group { group, family });
    prop_oneof![2 => prefix, 1 => group]
}

fn any_service() -> impl Strategy<Value = Service> {
    let protocol = prop::sample::select(vec![1, 6, 17, 47, 58]);
    prop_oneof![
        1 => Just(Service::Any),
        2 => protocol.prop_map(Service::Protocol),
        3 => (prop::sample::select(vec![6, 17]), 0..5_u16, 0..3_u16)
            .prop_map(|(protocol, first, more)| Service::Ports { protocol, first, last: first + more }),
        2 => prop::sample::select(vec![(1, 8), (1, 13), (58, 128)])
            .prop_flat_map(|(protocol, kind)| prop_oneof![Just(None), Just(Some(0)), Just(Some(3))]
                .prop_map(move |code| Service::Icmp { protocol, kind, code })),
    ]
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let rule = (any_direction(), any_service(), any_remote());
    prop::collection::vec(rule, 0..8).prop_map(|rules| {
        let rule = |(id, (direction, service, remote))| Rule { id, direction, service, remote };
        let identities = [(1, vec![1]), (2, vec![2, 3]), (3, vec![])].into();
        Policy { id: 5, rules: (1..).zip(rules).map(rule).collect(), identities }
    })
}

/// Packets that begin sessions.
fn any_packet() -> impl Strategy<Value = PolicyPacket> {
    (any_direction(), any_address(), 0..4_u16, 0..5_usize, 0..8_u16, any::<bool>()).prop_map(
        |(direction, remote, identity, protocol, port, is_timestamp)| {
            let echo = if remote.is_ipv6() { 128 } else { 8 };
            let (protocol, port) = match protocol {
                0 | 1 => ([6, 17][protocol], port),
                2 => (47, 0),
                _ if remote.is_ipv6() => (58, echo << 8),
                _ => (1, if is_timestamp { 13 << 8 } else { echo << 8 }),
            };
            PolicyPacket { direction, remote, identity, protocol, port: Some(port) }
        },
    )
}

proptest! {
    /// Catches a session that lives on though no rule permits the packet that began it, and one that ends though one does.
    #[test]
    fn sessions_are_judged_like_the_packets_that_began_them(
        policy in any_policy(),
        packets in prop::collection::vec(any_packet(), 1..30),
    ) {
        let tables = tables(Some(&policy));
        let (reader, map) = (tables.reader(), map());
        let generation = tables.policy_generation(5).unwrap();
        let mut judge = Judge::new(&reader, &map, &|_| None, &|_| false);
        for packet in packets {
            let permitting: Vec<u32> = policy.permitting(&packet).collect();
            let of_another_policy = session(&packet, generation + 1);
            match judge.decide(&of_another_policy) {
                Fate::Changes([of, rule]) => {
                    prop_assert_eq!(of, generation);
                    prop_assert!(permitting.contains(&(rule & layout::SESSION_RULE_MASK)), "{:?}", packet);
                    let bits = !layout::SESSION_RULE_MASK;
                    prop_assert_eq!(rule & bits, of_another_policy.action[1] & bits, "how it began");
                }
                fate => {
                    let revoked = Fate::Revoked([generation, of_another_policy.action[1]]);
                    prop_assert!(fate == revoked && permitting.is_empty(), "{:?} {:?}", packet, fate);
                }
            }
            let mut revoked = of_another_policy;
            revoked.state |= layout::SESSION_REVOKED;
            let is_permitted = judge.decide(&revoked) == Fate::Ends;
            prop_assert_eq!(is_permitted, !permitting.is_empty(), "a revoked session ends when it is permitted again");
            prop_assert_eq!(judge.decide(&session(&packet, generation)), Fate::Stays, "judged before");
        }
    }
}

proptest! {
    /// Catches a session that would end though another rule permits it, one that is overlooked, and one that the removed rule
    /// has not permitted.
    #[test]
    fn sessions_would_end_that_no_other_rule_permits(
        policy in any_policy(),
        packets in prop::collection::vec(any_packet(), 1..30),
        index in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!policy.rules.is_empty());
        let mut left = policy.clone();
        let removed = left.rules.remove(index.index(policy.rules.len())).id;
        let without = Without { removed: [removed].into(), left };
        let compiled = Left::compile(&without).unwrap();
        for packet in packets {
            for rule in policy.permitting(&packet) {
                let mut session = session(&packet, 5);
                session.action[1] = session.action[1] & !layout::SESSION_RULE_MASK | rule;
                let is_other = without.left.permitting(&packet).next().is_some();
                prop_assert_eq!(compiled.ends(&session), rule == removed && !is_other, "{:?}", packet);
            }
        }
    }
}

/// A question to a DNS server.
fn question() -> PolicyPacket {
    PolicyPacket {
        direction: Direction::Egress,
        remote: "10.0.0.9".parse().unwrap(),
        identity: 0,
        protocol: 17,
        port: Some(53),
    }
}

/// Catches sessions of ports that have left, or are not filtered, that live on; and those of other ports that end.
#[test]
fn sessions_of_retired_numbers_and_of_ports_without_a_filter_end() {
    let packet = question();
    let fate = |tables: &NodeTables, scope: u32| {
        let mut session = session(&packet, 1000);
        session.flow.scope = scope;
        Judge::new(&tables.reader(), &map(), &|_| None, &|_| false).decide(&session)
    };
    let closed = tables(Some(&Policy { id: 1, ..Policy::default() }));
    assert_eq!(
        [7, 8, 9, 70_000].map(|scope| fate(&closed, scope)),
        [
            Fate::Revoked([closed.policy_generation(1).unwrap(), session(&packet, 1000).action[1]]),
            Fate::Stays, // a number that the map does not have yet
            Fate::Ends,
            Fate::Stays,
        ]
    );
    assert_eq!(fate(&tables(None), 7), Fate::Ends, "the port is not filtered");
    let mut other = tables(None);
    other.upsert_port(&Port { scope: 8, ..port(None) }).unwrap();
    assert_eq!(fate(&other, 7), Fate::Stays, "the port has another number");
    other.remove_port(IFINDEX).unwrap();
    assert_eq!(fate(&other, 7), Fate::Stays, "the port is not written yet");
}

/// Catches a thread that does not review, does not free numbers, or does not end.
#[test]
fn the_thread_reviews_after_changes_and_ends_with_its_owner() {
    let regions = SessionRegions::anonymous(2, 2).unwrap();
    let shares = SessionShares::anonymous().unwrap();
    let sessions = Sessions::open(&regions, shares.clone(), ticks_now(), Immediate).unwrap();
    let scopes = Scopes::new(shares.clone(), port_maps(), 10);
    let tables = tables(None);
    let reader = SharedReader::new(tables.reader(), ReaderGate::default());
    let open = OpenSessions { sessions, shares };
    let keeper = SessionKeeper::start(open, reader, scopes.clone(), Receivers::new(|_| None).0).unwrap();
    let reviews = |least: u64| {
        let until = Instant::now() + Duration::from_secs(20);
        while lock(&keeper.status).reviews < least && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        lock(&keeper.status).reviews
    };
    assert!(reviews(1) >= 1, "sessions of an earlier agent are reviewed");
    let before = reviews(1);
    scopes.note_change();
    assert!(reviews(before + 1) > before);
    drop(keeper);
    assert_eq!(scopes.wait(None, Duration::ZERO), None);
    drop::<Region>(regions.config);
}

/// What has become of sessions to receivers whose identity was not needed before, when only a rule that names a group is left.
/// Catches one that ends though that rule permits it, and one that goes on though it does not, or for ever.
#[test]
fn sessions_to_unknown_receivers_are_judged_when_these_are_known() {
    let rule = |id, port, group| Rule {
        id,
        direction: Direction::Egress,
        service: Service::Ports { protocol: 17, first: port, last: port },
        remote: Remote::Group { group, family: None },
    };
    let identities = [(1, vec![1]), (2, vec![2])].into();
    let tables = tables(Some(&Policy { id: 5, rules: vec![rule(1, 53, 2), rule(2, 54, 1)], identities }));
    let (reader, map, generation) = (tables.reader(), map(), tables.policy_generation(5).unwrap());
    let judge = |packet: PolicyPacket, known: Option<u16>, waits: bool| {
        let identity_of = |_| known;
        let may_wait = |_| waits;
        let mut judge = Judge::new(&reader, &map, &identity_of, &may_wait);
        let fate = judge.decide(&session(&packet, 1000));
        (fate, Vec::from_iter(judge.into_unknown()))
    };
    let revoked = |packet: &PolicyPacket| Fate::Revoked([generation, session(packet, 1000).action[1]]);
    let receiver =
        sluice_rsp::Destination { vni: Vni::new(1).unwrap(), address: "10.0.0.9".parse().unwrap() };
    assert_eq!(judge(question(), None, true), (Fate::Stays, vec![receiver]));
    assert_eq!(judge(question(), None, false), (revoked(&question()), vec![]));
    let permitted = Fate::Identified([generation, 1 | layout::SESSION_EGRESS], 2);
    assert_eq!(judge(question(), Some(2), true), (permitted, vec![]));
    for identity in [0, 1, 3] {
        assert_eq!(judge(question(), Some(identity), true), (revoked(&question()), vec![]), "{identity}");
    }
    // The receiver has joined another group since the session began.
    let other = PolicyPacket { identity: 1, ..question() };
    assert_eq!(judge(other, Some(2), true), (permitted, vec![]));
    assert_eq!(judge(other, Some(3), true), (revoked(&other), vec![]));
    let incoming = PolicyPacket { direction: Direction::Ingress, ..question() };
    assert_eq!(judge(incoming, Some(2), true), (revoked(&incoming), vec![]), "the identity is the sender's");
    let none = self::tables(Some(&Policy { id: 5, rules: vec![rule(1, 53, 7)], ..Policy::default() }));
    let reader = none.reader();
    let mut judge = Judge::new(&reader, &map, &|_| Some(2), &|_| true);
    let fate = judge.decide(&session(&question(), 1000));
    assert!(matches!(fate, Fate::Revoked(_)), "the group has no members: {fate:?}");
}

/// Catches sessions that wait without end, and questions that are lost.
#[test]
fn receivers_are_waited_for_once() {
    let (mut receivers, mut asked) = Receivers::new(|_| None);
    let receiver = |last: u8| sluice_rsp::Destination {
        vni: Vni::new(u32::from(last) + 1).unwrap(),
        address: [10, 0, 0, last].into(),
    };
    let unknown = |lasts: &[u8]| lasts.iter().map(|last| receiver(*last)).collect();
    receivers.ask(&unknown(&[9]));
    assert_eq!((asked.try_recv().ok(), receivers.is_waiting()), (Some(receiver(9)), true));
    let begun = Instant::now();
    while receivers.may_wait(receiver(9)) {
        thread::sleep(Duration::from_millis(10));
        receivers.ask(&unknown(&[9]));
        assert!(begun.elapsed() < Duration::from_secs(20), "they wait without end");
    }
    assert!(asked.try_recv().is_err(), "it is asked for once");
    // That of another tenant has not been waited for.
    assert!(receivers.may_wait(receiver(8)));
    receivers.ask(&unknown(&[8]));
    assert!(receivers.may_wait(receiver(8)) && receivers.may_wait(receiver(9)));
    receivers.ask(&unknown(&[]));
    assert!(!receivers.is_waiting());
}

/// Catches a network that takes all questions.
#[test]
fn a_network_with_many_receivers_leaves_questions_to_others() {
    let (mut receivers, mut asked) = Receivers::new(|_| None);
    let of = |vni: u32, last: u32| sluice_rsp::Destination {
        vni: Vni::new(vni).unwrap(),
        address: IpAddr::V4(last.into()),
    };
    let unknown = (0..20_000).map(|last| of(1, last)).chain([of(2, 1)]).collect();
    receivers.ask(&unknown);
    let first: Vec<_> = std::iter::from_fn(|| asked.try_recv().ok()).collect();
    assert_eq!((first.len(), first.last()), (257, Some(&of(2, 1))));
    receivers.ask(&unknown);
    let next: Vec<_> = std::iter::from_fn(|| asked.try_recv().ok()).collect();
    assert_eq!((next.len(), next[0]), (256, of(1, 256)));
}

/// A policy is replaced while sessions are reviewed. Catches a review that ends a session because of the policy before.
#[test]
fn a_session_of_a_newer_policy_is_judged_by_that() {
    let packet = question();
    let mut tables = tables(Some(&Policy { id: 5, ..Policy::default() }));
    let (reader, map) = (tables.reader(), map());
    let mut judge = Judge::new(&reader, &map, &|_| None, &|_| false);
    assert!(matches!(judge.decide(&session(&packet, 1000)), Fate::Revoked(_)));
    let remote = Remote::Prefix("0.0.0.0/0".parse().unwrap());
    let rule = Rule { id: 1, direction: Direction::Egress, service: Service::Any, remote };
    tables.upsert_policy(&Policy { id: 5, rules: vec![rule], ..Policy::default() }).unwrap();
    let begun = session(&packet, tables.policy_generation(5).unwrap());
    assert_eq!(judge.decide(&begun), Fate::Stays);
}

/// Catches a connection that is to end, and is revoked instead, so that its peers wait for their timeouts.
#[test]
fn what_a_policy_denies_ends_by_reset_all_the_same() {
    let (policy, packet) = (
        Policy { id: 5, rules: Vec::new(), identities: [].into() },
        PolicyPacket {
            direction: Direction::Ingress,
            remote: Ipv4Addr::new(10, 0, 0, 9).into(),
            identity: 0,
            protocol: 6,
            port: Some(22),
        },
    );
    let map = map();
    let judged = |tables: &NodeTables, state| {
        let reader = tables.reader();
        let mut judge = Judge::new(&reader, &map, &|_| None, &|_| false);
        judge.decide(&Session { state, ..session(&packet, u32::MAX) })
    };
    let filtered = tables(Some(&policy));
    assert!(matches!(judged(&filtered, 0), Fate::Revoked(_)));
    assert_eq!(judged(&filtered, layout::SESSION_RESET), Fate::Stays);
    assert_eq!(judged(&tables(None), layout::SESSION_RESET), Fate::Ends, "the port has no sessions any more");
}
