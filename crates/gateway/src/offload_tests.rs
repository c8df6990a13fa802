//! Over tables in anonymous memory: networks 1 and 2, peered, with an instance of each family on hosts of
//! either family; network 3 is peered with 1, and its packets are shorter.

use super::*;
use sluice_rsp::Answer;
use sluice_tables::{Endpoint, Immediate, Memory, NodeTables, Role, Route, Sizes, Target, Vrf};
use sluice_types::{MacAddr, Vni};

const REVISION: u64 = 42;
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
    Path { host, mac, vni: vni(number), lifetime_ms: LIFETIME_MS, revision: REVISION }
}

fn told(number: u32, address: &str, path: Path) -> Answered {
    let destination = Destination { vni: vni(number), address: ip(address) };
    Answered { destination, answer: Answer::Path(path) }
}

struct Bench {
    tables: NodeTables,
    notifier: Notifier,
    stats: OffloadStats,
}

impl Bench {
    fn new() -> Self {
        Self { tables: tables(), notifier: Notifier::new(), stats: OffloadStats::default() }
    }

    fn note(&mut self, now_us: u64, elephant: FlowEvent) -> Outcome {
        let reader = self.tables.reader();
        self.notifier.note(now_us, &reader, reader.applied_revision(), &elephant, &self.stats)
    }

    fn take(&mut self, now_us: u64) -> Vec<(IpAddr, Message)> {
        self.notifier.take(now_us).collect()
    }
}

#[test]
fn the_senders_host_is_told_where_the_destination_is() {
    let mut bench = Bench::new();
    for (source, destination, host, to) in
        [("10.1.0.1", "10.1.0.2", B, A), ("fd01::2", "fd01::1", A, B), ("10.1.0.3", "10.1.0.4", D, C)]
    {
        assert_eq!(bench.note(0, elephant(1, source, destination)), Outcome::Told);
        let answers = vec![told(1, destination, path(1, destination, host))];
        assert_eq!(bench.take(0), [(ip(to), Message::Notify { answers })]);
    }
}

#[test]
fn peers_are_told_of_in_the_senders_network_with_the_destinations() {
    let mut bench = Bench::new();
    assert_eq!(bench.note(0, elephant(1, "10.1.0.1", "10.2.0.2")), Outcome::Told);
    // The same flow, when it comes from a host that the destination has left.
    enter(&mut bench.tables, 2, "10.2.0.2", A);
    enter(&mut bench.tables, 1, "10.1.0.1", B);
    assert_eq!(bench.note(0, elephant(2, "10.1.0.1", "10.2.0.2")), Outcome::Told);
    let first = Message::Notify { answers: vec![told(1, "10.2.0.2", path(2, "10.2.0.2", B))] };
    let second = Message::Notify { answers: vec![told(1, "10.2.0.2", path(2, "10.2.0.2", A))] };
    assert_eq!(bench.take(0), [(ip(A), first), (ip(B), second)]);
}

#[test]
fn no_path_is_told_where_the_gateway_is_the_way() {
    let mut bench = Bench::new();
    for (number, source, destination, outcome) in [
        // Another family of underlay; the same host; shorter packets; nobody; no route.
        (1, "10.1.0.1", "10.1.0.3", Outcome::NoPath),
        (1, "10.1.0.1", "10.1.0.9", Outcome::NoPath),
        (1, "10.1.0.1", "10.3.0.2", Outcome::NoPath),
        (1, "10.1.0.1", "10.1.0.77", Outcome::NoPath),
        (2, "10.2.0.2", "10.3.0.2", Outcome::NoPath),
        (1, "10.1.0.77", "10.1.0.2", Outcome::NoSource),
        (77, "10.1.0.1", "10.1.0.2", Outcome::NoSource),
    ] {
        assert_eq!(bench.note(0, elephant(number, source, destination)), outcome, "{source} {destination}");
    }
    // Longer packets are no obstacle.
    assert_eq!(bench.note(0, elephant(3, "10.3.0.2", "10.1.0.1")), Outcome::Told);
    assert_eq!(bench.take(0).len(), 1);
    // A network that wants its packets to pass gateways takes back what it was told.
    let vrf = bench.tables.vrf(vni(1)).unwrap().vrf;
    bench.tables.upsert_vrf(&Vrf { elephant_bytes: Some(Vrf::NEVER_ELEPHANTS), ..vrf }).unwrap();
    assert_eq!(bench.note(0, elephant(1, "10.1.0.1", "10.1.0.2")), Outcome::NoPath);
    let absent = Answer::Absent { revision: REVISION };
    assert_eq!(reply(&bench.tables, A, &[ask(1, "10.1.0.2", REVISION)]), [absent]);
    bench.tables.upsert_vrf(&vrf).unwrap();
    bench.tables.set_applied_revision(0);
    assert_eq!(bench.note(0, elephant(1, "10.1.0.1", "10.1.0.2")), Outcome::Busy);
    assert_eq!(bench.notifier.due_us(), None);
}

#[test]
fn many_are_told_together_and_none_twice() {
    let mut bench = Bench::new();
    for end in 10..200 {
        enter(&mut bench.tables, 1, &format!("10.1.0.{end}"), B);
    }
    let reader = bench.tables.reader();
    for _ in 0..3 {
        for end in 10..200 {
            let elephant = elephant(1, "10.1.0.1", &format!("10.1.0.{end}"));
            bench.notifier.note(5000, &reader, REVISION, &elephant, &bench.stats);
        }
    }
    assert_eq!(bench.notifier.due_us(), Some(0));
    let taken = bench.take(5000);
    let [(host, Message::Notify { answers })] = taken.as_slice() else { panic!("{taken:?}") };
    assert_eq!((*host, answers.len()), (ip(A), 190));
    assert_eq!((bench.stats.of(Outcome::Told), bench.stats.of(Outcome::Repeated)), (190, 380));
    // Two flows to one destination need one path; the next batch waits its time.
    let flow = elephant(1, "10.1.0.1", "10.1.0.2");
    assert_eq!(bench.note(5100, flow), Outcome::Told);
    assert_eq!(bench.note(5100, flow), Outcome::Repeated);
    assert_eq!(bench.notifier.due_us(), Some(6000));
    assert_eq!(bench.take(6000).len(), 1);
    // A lost notification is made good.
    assert_eq!(bench.note(5100 + QUIET_US, flow), Outcome::Told);
}

fn ask(number: u32, address: &str, revision: u64) -> Ask {
    Ask { destination: Destination { vni: vni(number), address: ip(address) }, revision }
}

fn reply(tables: &NodeTables, from: &str, asks: &[Ask]) -> Vec<Answer> {
    let reader = tables.reader();
    let stats = OffloadStats::default();
    let answers = answer(&reader, reader.applied_revision(), ip(from), asks, &stats);
    let answers = answers.map(|answered| answered.answer).collect();
    assert_eq!(stats.asked.load(Ordering::Relaxed), asks.len() as u64);
    answers
}

#[test]
fn questions_are_answered_by_who_asks_and_what_is_known() {
    let mut tables = tables();
    let asks = [
        ask(1, "10.1.0.2", 0),
        ask(1, "10.1.0.2", REVISION),
        ask(1, "10.1.0.3", 5),
        ask(1, "10.2.0.2", 5),
        ask(1, "fd01::77", 5),
    ];
    let lifetime_ms = LIFETIME_MS;
    let absent = Answer::Absent { revision: REVISION };
    assert_eq!(
        reply(&tables, A, &asks),
        [
            Answer::Path(path(1, "10.1.0.2", B)),
            Answer::Unchanged { lifetime_ms, revision: REVISION },
            absent,
            Answer::Path(path(2, "10.2.0.2", B)),
            absent,
        ]
    );
    // Of a host whose underlay is IPv6 all but one are out of reach.
    let [a, b, c, d, e] = reply(&tables, D, &asks).try_into().unwrap();
    assert_eq!((a, b, d, e), (absent, absent, absent, absent));
    assert_eq!(c, Answer::Path(path(1, "10.1.0.3", C)));
    // A path of before a change is not the path after it, though it is the same one.
    tables.set_applied_revision(REVISION + 1);
    let newer = Path { revision: REVISION + 1, ..path(1, "10.1.0.2", B) };
    assert_eq!(reply(&tables, A, &[ask(1, "10.1.0.2", REVISION)]), [Answer::Path(newer)]);
    tables.set_applied_revision(0);
    assert_eq!(reply(&tables, A, &asks), []);
}
