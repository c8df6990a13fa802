//! Offloading over tables in anonymous memory: networks 1 and 2 are peered, and have instances with addresses
//! of both families on hosts of either family; network 3 is peered with network 1, and has a smaller MTU.

use super::*;
use sluice_rsp::{Answer, Capabilities};
use sluice_tables::{
    Endpoint, Immediate, MemberService, Memory, NodeTables, Role, Route, Sizes, Target, Vrf,
};
use sluice_types::{MacAddr, ServiceMember, Vni};

const REVISION: u64 = 42;
/// What all hosts can receive.
const OPEN: Reception = Reception { mtu: 1450, capabilities: Capabilities::from_bits(5) };
const A: &str = "192.0.2.21";
const B: &str = "192.0.2.22";
const C: &str = "2001:db8::23";
const D: &str = "2001:db8::24";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn mac(address: &str) -> MacAddr {
    MacAddr::local(address.bytes().map(u64::from).sum())
}

fn enter(tables: &mut NodeTables, number: u32, address: &str, host: &str) {
    let entry = Endpoint { vni: vni(number), address: ip(address), mac: mac(address), host: ip(host) };
    tables.upsert_endpoint(&entry).unwrap();
}

fn tables() -> NodeTables {
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    for host in [A, B, C, D] {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
    }
    for (number, mtu) in [(1, 1430), (2, 1430), (3, 1400)] {
        let vrf =
            Vrf { vni: vni(number), mtu, router4: None, router6: None, group: None, elephant_bytes: None };
        tables.upsert_vrf(&vrf).unwrap();
    }
    for (of, to, target) in [
        (1, 1, Target::Local),
        (1, 2, Target::Peer(vni(2))),
        (1, 3, Target::Peer(vni(3))),
        (2, 2, Target::Local),
        (2, 1, Target::Peer(vni(1))),
        (3, 3, Target::Local),
        (3, 1, Target::Peer(vni(1))),
    ] {
        for prefix in [format!("10.{to}.0.0/16"), format!("fd0{to}::/64")] {
            let prefix = prefix.parse().unwrap();
            tables.upsert_route(&Route { vni: vni(of), prefix, target }).unwrap();
        }
    }
    for (number, host, end) in
        [(1, A, 1), (1, B, 2), (1, C, 3), (1, D, 4), (2, B, 2), (2, D, 4), (3, B, 2), (1, A, 9)]
    {
        enter(&mut tables, number, &format!("10.{number}.0.{end}"), host);
        enter(&mut tables, number, &format!("fd0{number}::{end}"), host);
    }
    tables.set_applied_revision(REVISION);
    tables
}

fn elephant(number: u32, source: &str, destination: &str) -> FlowEvent {
    let (source, destination) = (ip(source), ip(destination));
    FlowEvent { vni: vni(number), source, destination, sender: ip(A), time_ns: 0 }
}

fn path(number: u32, address: &str, host: &str) -> Path {
    let (host, mac) = (ip(host), mac(address));
    let (vni, reception) = (vni(number), OPEN);
    Path { host, mac, vni, lifetime_ms: LIFETIME_MS, revision: REVISION, by_network: false, reception }
}

/// A path within a network, whose changes are told by network.
fn own(path: Path) -> Path {
    Path { by_network: true, ..path }
}

fn answered(number: u32, address: &str, path: Path) -> AnswerEntry {
    let destination = Destination { vni: vni(number), address: ip(address) };
    let path = Path { by_network: path.vni == destination.vni, ..path };
    AnswerEntry { destination, answer: Answer::Path(path) }
}

/// A notifier with all hosts' permits for all networks.
fn notifier() -> Notifier {
    let mut notifier = Notifier::new(Journal::new(REVISION));
    confirm_all(&mut notifier, 0);
    notifier.permits.take(0);
    notifier
}

/// All hosts confirm the permits of all of them.
fn confirm_all(notifier: &mut Notifier, now_us: u64) {
    let tables = tables();
    for receiver in [A, B, C, D].map(ip) {
        for host in [A, B, C, D].map(ip) {
            for number in 1..=3 {
                let entry = PermitEntry { vni: vni(number), host };
                notifier.permits.check(now_us, Permit { receiver, entry });
                notifier.confirm(now_us, &tables.reader(), REVISION, (receiver, OPEN), &[entry]);
            }
        }
    }
}

struct Fixture {
    tables: NodeTables,
    notifier: Notifier,
    stats: OffloadStats,
}

impl Fixture {
    fn new() -> Self {
        Self { tables: tables(), notifier: notifier(), stats: OffloadStats::default() }
    }

    fn note(&mut self, now_us: u64, elephant: FlowEvent) -> Outcome {
        let reader = self.tables.reader();
        self.notifier.note(now_us, &reader, reader.applied_revision(), &elephant, &self.stats)
    }

    fn confirm(&mut self, now_us: u64, from: &str, entry: PermitEntry) {
        let reader = self.tables.reader();
        self.notifier.confirm(now_us, &reader, reader.applied_revision(), (ip(from), OPEN), &[entry]);
    }

    fn take(&mut self, now_us: u64) -> Vec<(IpAddr, Message)> {
        self.notifier.take(now_us).collect()
    }
}

#[test]
fn senders_host_is_notified_of_the_destinations_host() {
    let mut fixture = Fixture::new();
    for (source, destination, host, to) in
        [("10.1.0.1", "10.1.0.2", B, A), ("fd01::2", "fd01::1", A, B), ("10.1.0.3", "10.1.0.4", D, C)]
    {
        assert_eq!(fixture.note(0, elephant(1, source, destination)), Outcome::Notified);
        let answers = vec![answered(1, destination, path(1, destination, host))];
        assert_eq!(fixture.take(0), [(ip(to), Message::Notify { answers })]);
    }
}

#[test]
fn path_to_a_peered_network_has_the_senders_and_the_destinations_vni() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.note(0, elephant(1, "10.1.0.1", "10.2.0.2")), Outcome::Notified);
    // The packets of the same flow come from a host that the destination has left.
    enter(&mut fixture.tables, 2, "10.2.0.2", A);
    enter(&mut fixture.tables, 1, "10.1.0.1", B);
    assert_eq!(fixture.note(0, elephant(2, "10.1.0.1", "10.2.0.2")), Outcome::Notified);
    let first = Message::Notify { answers: vec![answered(1, "10.2.0.2", path(2, "10.2.0.2", B))] };
    let second = Message::Notify { answers: vec![answered(1, "10.2.0.2", path(2, "10.2.0.2", A))] };
    assert_eq!(fixture.take(0), [(ip(A), first), (ip(B), second)]);
}

#[test]
fn destinations_without_a_direct_path_are_not_notified() {
    let mut fixture = Fixture::new();
    for (number, source, destination, outcome) in [
        // Host of the other address family; same host; smaller MTU; unknown destination; no route; unknown
        // sources.
        (1, "10.1.0.1", "10.1.0.3", Outcome::NoPath),
        (1, "10.1.0.1", "10.1.0.9", Outcome::NoPath),
        (1, "10.1.0.1", "10.3.0.2", Outcome::NoPath),
        (1, "10.1.0.1", "10.1.0.77", Outcome::NoPath),
        (2, "10.2.0.2", "10.3.0.2", Outcome::NoPath),
        (1, "10.1.0.77", "10.1.0.2", Outcome::NoSource),
        (77, "10.1.0.1", "10.1.0.2", Outcome::NoSource),
    ] {
        assert_eq!(fixture.note(0, elephant(number, source, destination)), outcome, "{source} {destination}");
    }
    // A larger MTU at the destination is no obstacle.
    assert_eq!(fixture.note(0, elephant(3, "10.3.0.2", "10.1.0.1")), Outcome::Notified);
    assert_eq!(fixture.take(0).len(), 1);
    // A network that does not offload flows withdraws its paths.
    let vrf = fixture.tables.vrf(vni(1)).unwrap().vrf;
    fixture.tables.upsert_vrf(&Vrf { elephant_bytes: Some(Vrf::NEVER_ELEPHANTS), ..vrf }).unwrap();
    assert_eq!(fixture.note(0, elephant(1, "10.1.0.1", "10.1.0.2")), Outcome::NoPath);
    let absent = Answer::Absent { revision: REVISION };
    assert_eq!(reply(&fixture.tables, A, &[query(1, "10.1.0.2", REVISION)]), [absent]);
    fixture.tables.upsert_vrf(&vrf).unwrap();
    fixture.tables.set_applied_revision(0);
    assert_eq!(fixture.note(0, elephant(1, "10.1.0.1", "10.1.0.2")), Outcome::Busy);
    assert_eq!(fixture.notifier.due_us(), None);
}

/// Flows to a mount have no direct path, also from a peered network: each has a member of its own. What a member sends has one, if the
/// packets come from its host.
#[test]
fn mounts_have_no_direct_path_and_their_members_have_paths_to_others() {
    let mut fixture = Fixture::new();
    let member = |number, host| ServiceMember {
        number,
        mac: MacAddr::local(u64::from(number)),
        host: ip(host),
        selected: true,
    };
    let service = MemberService { id: 9, seed: [1, 2], members: vec![member(1, B), member(2, A)] };
    fixture.tables.upsert_service(&service).unwrap();
    let absent = Answer::Absent { revision: REVISION };
    for (mount, of_peer, other) in [("10.1.0.50", "10.2.0.2", "10.1.0.2"), ("fd01::50", "fd02::2", "fd01::2")]
    {
        fixture.tables.upsert_service_address(vni(1), ip(mount), 9).unwrap();
        fixture.tables.set_applied_revision(REVISION);
        assert_eq!(fixture.note(0, elephant(1, other, mount)), Outcome::NoPath);
        assert_eq!(fixture.note(0, elephant(2, of_peer, mount)), Outcome::NoPath);
        assert_eq!(reply(&fixture.tables, A, &[query(1, mount, REVISION)]), std::slice::from_ref(&absent));
        // The first member is on another host than this one.
        assert_eq!(fixture.note(0, elephant(1, mount, other)), Outcome::Notified);
        let answers = vec![answered(1, other, path(1, other, B))];
        assert_eq!(fixture.take(0), [(ip(A), Message::Notify { answers })]);
        let stranger = FlowEvent { sender: ip("192.0.2.99"), ..elephant(1, mount, other) };
        assert_eq!(fixture.note(0, stranger), Outcome::NoSource);
    }
}

/// Makes the peering of the networks 1 and 2 one with meters, in one of the directions.
fn meter_peering(tables: &mut NodeTables, of: u32, to: u32) {
    let target = Target::MeteredPeer { vni: vni(to), out_meter: 0, in_meter: 0 };
    for prefix in [format!("10.{to}.0.0/16"), format!("fd0{to}::/64")] {
        tables.upsert_route(&Route { vni: vni(of), prefix: prefix.parse().unwrap(), target }).unwrap();
    }
}

/// Catches a path that avoids the meters of a peering: one that is pushed, one that a host asks for or has, and one that waited
/// for its permit while the peering got a meter.
#[test]
fn no_direct_path_avoids_the_meters_of_a_peering() {
    for (source, destination) in [("10.1.0.1", "10.2.0.2"), ("fd01::1", "fd02::2")] {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.note(0, elephant(1, source, destination)), Outcome::Notified);
        fixture.take(0);
        meter_peering(&mut fixture.tables, 1, 2);
        assert_eq!(fixture.note(QUIET_US, elephant(1, source, destination)), Outcome::NoPath);
        let absent = Answer::Absent { revision: REVISION };
        for known in [0, REVISION - 1, REVISION] {
            assert_eq!(reply(&fixture.tables, A, &[query(1, destination, known)]), [absent]);
        }
        // The other direction has routes of its own.
        assert_eq!(fixture.note(QUIET_US, elephant(2, destination, source)), Outcome::Notified);

        let mut fixture = Fixture { notifier: Notifier::new(Journal::new(REVISION)), ..Fixture::new() };
        let entry = PermitEntry { vni: vni(2), host: ip(A) };
        assert_eq!(fixture.note(0, elephant(1, source, destination)), Outcome::Waiting);
        fixture.take(0);
        meter_peering(&mut fixture.tables, 1, 2);
        fixture.confirm(10, B, entry);
        assert_eq!(fixture.take(2_000), [], "it waited while the peering got a meter");
    }
}

/// A path that waited is pushed as the tables have it when the destination's host accepts the sender.
#[test]
fn path_that_waited_is_of_the_newest_tables() {
    let mut fixture = Fixture { notifier: Notifier::new(Journal::new(REVISION)), ..Fixture::new() };
    let (flow, entry) = (elephant(1, "10.1.0.1", "10.2.0.2"), PermitEntry { vni: vni(2), host: ip(A) });
    assert_eq!(fixture.note(0, flow), Outcome::Waiting);
    fixture.take(0);
    fixture.tables.set_applied_revision(REVISION + 1);
    fixture.confirm(10, B, entry);
    let newer = Path { revision: REVISION + 1, ..path(2, "10.2.0.2", B) };
    let notify = Message::Notify { answers: vec![answered(1, "10.2.0.2", newer)] };
    assert_eq!(fixture.take(10), [(ip(A), notify)]);
    // The destination has moved to a host that was not asked.
    let mut fixture = Fixture { notifier: Notifier::new(Journal::new(REVISION)), ..Fixture::new() };
    assert_eq!(fixture.note(0, flow), Outcome::Waiting);
    fixture.take(0);
    enter(&mut fixture.tables, 2, "10.2.0.2", C);
    fixture.confirm(10, B, entry);
    assert_eq!(fixture.take(10), []);
}

#[test]
fn notifications_are_batched_and_not_repeated() {
    let mut fixture = Fixture::new();
    for end in 10..200 {
        enter(&mut fixture.tables, 1, &format!("10.1.0.{end}"), B);
    }
    let reader = fixture.tables.reader();
    for _ in 0..3 {
        for end in 10..200 {
            let elephant = elephant(1, "10.1.0.1", &format!("10.1.0.{end}"));
            fixture.notifier.note(5000, &reader, REVISION, &elephant, &fixture.stats);
        }
    }
    assert_eq!(fixture.notifier.due_us(), Some(0));
    let taken = fixture.take(5000);
    let [(host, Message::Notify { answers })] = taken.as_slice() else { panic!("{taken:?}") };
    assert_eq!((*host, answers.len()), (ip(A), 190));
    assert_eq!((fixture.stats.count(Outcome::Notified), fixture.stats.count(Outcome::Repeated)), (190, 380));
    // Two flows to one destination need one path; the next batch is due after the gather time.
    let flow = elephant(1, "10.1.0.1", "10.1.0.2");
    assert_eq!(fixture.note(5100, flow), Outcome::Notified);
    assert_eq!(fixture.note(5100, flow), Outcome::Repeated);
    assert_eq!(fixture.notifier.due_us(), Some(6000));
    assert_eq!(fixture.take(6000).len(), 1);
    // After the quiet time the notification is repeated, since the first one may have been lost.
    assert_eq!(fixture.note(5100 + QUIET_US, flow), Outcome::Notified);
}

fn query(number: u32, address: &str, revision: u64) -> Query {
    Query { destination: Destination { vni: vni(number), address: ip(address) }, revision }
}

fn reply(tables: &NodeTables, from: &str, queries: &[Query]) -> Vec<Answer> {
    let (reader, mut notifier) = (tables.reader(), notifier());
    // What hosts receive has been known for so long that only revisions decide.
    let known_us = 64_000_000;
    for now_us in (4_000_000..=known_us).step_by(4_000_000) {
        confirm_all(&mut notifier, now_us);
    }
    let answer = |query| notifier.answer(known_us, &reader, reader.applied_revision(), ip(from), query);
    queries.iter().filter_map(answer).map(|answered| answered.answer).collect()
}

#[test]
fn path_waits_until_the_destinations_host_accepts_the_sender() {
    let mut fixture = Fixture { notifier: Notifier::new(Journal::new(REVISION)), ..Fixture::new() };
    let (flow, entry) = (elephant(1, "10.1.0.1", "10.2.0.2"), PermitEntry { vni: vni(2), host: ip(A) });
    let notify = Message::Notify { answers: vec![answered(1, "10.2.0.2", path(2, "10.2.0.2", B))] };
    assert_eq!(fixture.note(0, flow), Outcome::Waiting);
    assert_eq!(fixture.notifier.due_us(), Some(0));
    assert_eq!(fixture.take(0), [(ip(B), Message::Permit { entries: vec![entry] })]);
    // Other hosts cannot accept for it, nor it for other networks.
    fixture.confirm(10, C, entry);
    fixture.confirm(10, B, PermitEntry { vni: vni(1), ..entry });
    assert_eq!((fixture.note(20, flow), fixture.take(20)), (Outcome::Waiting, vec![]));
    // What waits is given once.
    fixture.confirm(30, B, entry);
    assert_eq!(fixture.take(30), [(ip(A), notify.clone())]);
    fixture.confirm(40, B, entry);
    assert_eq!(fixture.take(40), []);
    assert_eq!(fixture.note(QUIET_US + 30, flow), Outcome::Notified);
    // A request waits in the same way, and the host is notified instead.
    let mut other = Fixture { notifier: Notifier::new(Journal::new(REVISION)), ..Fixture::new() };
    let (reader, query) = (other.tables.reader(), query(1, "10.2.0.2", 5));
    assert_eq!(other.notifier.answer(0, &reader, REVISION, ip(A), &query), None);
    assert_eq!(other.take(0), [(ip(B), Message::Permit { entries: vec![entry] })]);
    other.confirm(10, B, entry);
    assert_eq!(other.take(10), [(ip(A), notify)]);
    assert!(other.notifier.answer(20, &reader, REVISION, ip(A), &query).is_some());
}

/// Catches paths to peers about which hosts would ask one by one, and one of which they would not hear a change.
#[test]
fn paths_to_peers_are_told_with_the_network() {
    let mut fixture = Fixture::new();
    fixture.notifier.journal = fixture.tables.keep_journal();
    let reader = fixture.tables.reader();
    let mut path_to = |number, address: &str| {
        let query = query(number, address, 0);
        match fixture.notifier.answer(0, &reader, REVISION, ip(A), &query).map(|answered| answered.answer) {
            Some(Answer::Path(path)) => path.by_network,
            other => panic!("{other:?}"),
        }
    };
    for address in ["10.2.0.2", "fd02::2", "10.1.0.2"] {
        assert!(path_to(1, address), "{address}");
    }
    let journal = &fixture.notifier.journal;
    let told = |since, current| journal.changes(vni(1), since, current, 48);
    let known = |revision, prefixes: &[&str]| {
        let prefixes = prefixes.iter().map(|it| it.parse().unwrap()).collect();
        Some(sluice_tables::Changes::Known { revision, prefixes })
    };
    assert_eq!(told(REVISION, REVISION), known(REVISION, &[]));
    enter(&mut fixture.tables, 2, "fd02::2", C);
    enter(&mut fixture.tables, 3, "10.3.0.2", A);
    fixture.tables.remove_endpoint(vni(2), ip("10.2.0.4")).unwrap();
    fixture.tables.set_applied_revision(REVISION + 1);
    let changed = ["fd02::2/128", "10.2.0.4/32", "10.3.0.2/32"];
    assert_eq!(told(REVISION, REVISION + 1), known(REVISION + 1, &changed));
    // Without the route, the path to the peer ends, and what happens there is of no interest.
    fixture.tables.remove_route(vni(1), "10.2.0.0/16".parse().unwrap()).unwrap();
    fixture.tables.remove_endpoint(vni(2), ip("10.2.0.2")).unwrap();
    fixture.tables.set_applied_revision(REVISION + 2);
    assert_eq!(told(REVISION + 1, REVISION + 2), known(REVISION + 2, &["10.2.0.0/16"]));
}

/// Catches a host that keeps the MTU of a destination's host after that one has told another.
#[test]
fn answers_have_what_the_destinations_host_receives_now() {
    let mut fixture = Fixture::new();
    let (query, less) = (query(1, "10.1.0.2", REVISION), Reception { mtu: 1300, ..OPEN });
    let mut answer = |now_us: u64, told: Option<Reception>| {
        let reader = fixture.tables.reader();
        let entry = PermitEntry { vni: vni(1), host: ip(A) };
        fixture.notifier.permits.check(now_us, Permit { receiver: ip(B), entry });
        if let Some(reception) = told {
            fixture.notifier.confirm(now_us, &reader, REVISION, (ip(B), reception), &[entry]);
        }
        fixture.notifier.answer(now_us, &reader, REVISION, ip(A), &query).unwrap().answer
    };
    let unchanged = Answer::Unchanged { lifetime_ms: LIFETIME_MS, revision: REVISION };
    let known = own(path(1, "10.1.0.2", B));
    // The host may have the path from another gateway, with something else that B received then.
    assert_eq!(answer(0, None), Answer::Path(known));
    assert_eq!(answer(4_000_000, Some(OPEN)), Answer::Path(known));
    for now_us in [8_000_000, 12_000_000] {
        assert_eq!(answer(now_us, Some(less)), Answer::Path(Path { reception: less, ..known }));
    }
    for now_us in (16_000_000..70_000_000).step_by(4_000_000) {
        answer(now_us, Some(less));
    }
    assert_eq!(answer(70_000_000, Some(less)), unchanged, "every host has asked meanwhile");
    // A foreign host is not asked.
    fixture.tables.upsert_vtep(ip(B), Role::ForeignHost).unwrap();
    assert_eq!(fixture.note(70_000_000, elephant(1, "10.1.0.1", "10.1.0.2")), Outcome::Notified);
    let taken = fixture.take(70_000_000);
    let told = taken.into_iter().find_map(|(_, message)| match message {
        Message::Notify { answers } => Some(answers[0].answer),
        _ => None,
    });
    assert_eq!(told, Some(Answer::Path(Path { reception: Reception::default(), ..known })));
}

#[test]
fn hosts_that_do_not_confirm_have_no_direct_paths_and_foreign_ones_need_not() {
    let mut fixture = Fixture { notifier: Notifier::new(Journal::new(REVISION)), ..Fixture::new() };
    let (flow, query) = (elephant(1, "10.1.0.1", "10.1.0.2"), query(1, "10.1.0.2", 5));
    assert_eq!(fixture.note(0, flow), Outcome::Waiting);
    assert_eq!(fixture.note(2_000_000, flow), Outcome::Unpermitted);
    let reader = fixture.tables.reader();
    let answer = fixture.notifier.answer(2_000_000, &reader, REVISION, ip(A), &query).unwrap();
    assert_eq!(answer.answer, Answer::Absent { revision: REVISION });
    fixture.tables.upsert_vtep(ip(B), Role::ForeignHost).unwrap();
    assert_eq!(fixture.note(2_000_000, flow), Outcome::Notified);
}

#[test]
fn hosts_get_no_paths_of_networks_of_which_they_have_no_instance() {
    let tables = tables();
    let absent = Answer::Absent { revision: REVISION };
    let queries = [query(2, "10.2.0.2", 0), query(3, "10.3.0.2", 0), query(9, "10.2.0.2", 0)];
    assert_eq!(reply(&tables, A, &queries), [absent; 3]);
    assert_ne!(reply(&tables, A, &[query(1, "10.2.0.2", 0)]), [absent], "of a peer of its network");
}

#[test]
fn answers_depend_on_the_requesting_host_and_its_revision() {
    let mut tables = tables();
    let queries = [
        query(1, "10.1.0.2", 0),
        query(1, "10.1.0.2", REVISION),
        query(1, "10.1.0.3", 5),
        query(1, "10.2.0.2", 5),
        query(1, "fd01::77", 5),
    ];
    let lifetime_ms = LIFETIME_MS;
    let absent = Answer::Absent { revision: REVISION };
    assert_eq!(
        reply(&tables, A, &queries),
        [
            Answer::Path(own(path(1, "10.1.0.2", B))),
            Answer::Unchanged { lifetime_ms, revision: REVISION },
            absent,
            Answer::Path(path(2, "10.2.0.2", B)),
            absent,
        ]
    );
    // A host on an IPv6 underlay can reach only one of these destinations directly.
    let [a, b, c, d, e] = reply(&tables, D, &queries).try_into().unwrap();
    assert_eq!((a, b, d, e), (absent, absent, absent, absent));
    assert_eq!(c, Answer::Path(own(path(1, "10.1.0.3", C))));
    // After a change of the tables an unchanged path is sent with the new revision.
    tables.set_applied_revision(REVISION + 1);
    let newer = Path { revision: REVISION + 1, ..own(path(1, "10.1.0.2", B)) };
    assert_eq!(reply(&tables, A, &[query(1, "10.1.0.2", REVISION)]), [Answer::Path(newer)]);
    tables.set_applied_revision(0);
    assert_eq!(reply(&tables, A, &queries), []);
}
