//! Tests of the cache: one test per transition, then random histories in `random`.

use super::*;
use sluice_types::MacAddr;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

mod by_network;
mod random;

const GATEWAYS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 101)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 102))];
/// Gateway that Redirects name; not one of [`GATEWAYS`].
const NAMED: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 200));
const LIFETIME_MS: u32 = 60_000;

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn to(number: u32) -> Destination {
    Destination { vni: vni(7), address: Ipv4Addr::from(0x0a00_0000 + number).into() }
}

fn host(number: u8) -> IpAddr {
    Ipv4Addr::new(198, 51, 100, number).into()
}

fn path(at: u8, revision: u64) -> Path {
    Path {
        host: host(at),
        mac: MacAddr::local(1),
        vni: vni(7),
        lifetime_ms: LIFETIME_MS,
        revision,
        by_network: false,
        reception: Reception::default(),
    }
}

fn notify(destination: Destination, answer: Answer) -> Message {
    Message::Notify { answers: vec![AnswerEntry { destination, answer }] }
}

fn reply(destination: Destination, answer: Answer) -> Message {
    Message::Reply { id: 0, answers: vec![AnswerEntry { destination, answer }] }
}

fn redirect(destination: Destination, from: u8) -> Message {
    let entry = RedirectEntry { destination, host: host(from), gateway: NAMED };
    Message::Redirect { entries: vec![entry] }
}

/// A cache of a host with one network. Its outputs are returned without the wakes.
struct Host {
    cache: Cache,
}

impl Host {
    fn new(config: Config) -> Self {
        let mut cache = Cache::new(config, 0);
        assert_eq!(cache.handle(0, Input::Gateways { vni: vni(7), addresses: &GATEWAYS }), []);
        Self { cache }
    }

    fn handle(&mut self, now_ms: u64, input: Input<'_>) -> Vec<Output> {
        let out = self.cache.handle(now_ms, input);
        self.cache.table.check();
        out.into_iter().filter(|output| !matches!(output, Output::Wake { .. })).collect()
    }

    fn receive(&mut self, now_ms: u64, message: &Message) -> Vec<Output> {
        self.handle(now_ms, Input::Message(message))
    }

    fn learn(&mut self, now_ms: u64, destination: Destination, path: Path) {
        let out = self.receive(now_ms, &notify(destination, Answer::Path(path)));
        assert_eq!(out.last(), Some(&Output::Install { destination, path }));
    }

    fn tick(&mut self, now_ms: u64) -> Vec<Output> {
        self.handle(now_ms, Input::Tick)
    }
}

fn removed(destination: Destination, reason: RemovalReason) -> Output {
    Output::Remove { destination, reason }
}

/// Queries in outputs, each with the gateway that it is sent to.
fn queries(out: &[Output]) -> Vec<(IpAddr, Query)> {
    out.iter()
        .filter_map(|output| match output {
            Output::Send { to, message: Message::Request { queries, .. } } => {
                Some(queries.iter().map(|query| (*to, *query)))
            }
            _ => None,
        })
        .flatten()
        .collect()
}

#[test]
fn notified_path_is_installed_once_and_follows_the_destination() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(1, 5));
    assert_eq!(host.receive(1, &notify(to(1), Answer::Path(path(1, 5)))), []);
    // A newer revision of the same path changes nothing in the forwarding table.
    assert_eq!(host.receive(2, &notify(to(1), Answer::Path(path(1, 6)))), []);
    host.learn(3, to(1), path(2, 7));
    assert_eq!(host.cache.path(&to(1)), Some(path(2, 7)));
    let stats = host.cache.stats();
    assert_eq!((stats.learned, stats.moved, stats.confirmed), (1, 1, 3));
}

#[test]
fn path_with_another_mac_or_vni_is_installed_again() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(1, 5));
    host.learn(0, to(1), Path { mac: MacAddr::local(2), ..path(1, 6) });
    host.learn(0, to(1), Path { vni: vni(8), ..path(1, 7) });
    assert_eq!(host.cache.stats().moved, 2);
}

#[test]
fn older_revisions_change_nothing() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(2, 7));
    for answer in [
        Answer::Path(path(1, 6)),
        Answer::Path(Path { lifetime_ms: 0, ..path(1, 6) }),
        Answer::Absent { revision: 6 },
    ] {
        assert_eq!(host.receive(1, &notify(to(1), answer)), []);
        assert_eq!(host.receive(1, &reply(to(1), answer)), []);
    }
    let unchanged = Answer::Unchanged { lifetime_ms: 1, revision: 6 };
    assert_eq!(host.receive(1, &reply(to(1), unchanged)), []);
    assert_eq!(host.cache.path(&to(1)), Some(path(2, 7)));
    assert_eq!(host.cache.stats().stale, 7);
}

#[test]
fn gateway_withdraws_paths() {
    let mut host = Host::new(Config::default());
    for answer in [Answer::Absent { revision: 5 }, Answer::Path(Path { lifetime_ms: 0, ..path(1, 5) })] {
        host.learn(0, to(1), path(1, 5));
        assert_eq!(host.receive(1, &notify(to(1), answer)), [removed(to(1), RemovalReason::Withdrawn)]);
    }
    assert_eq!(host.cache.usage().entries, 0);
    // Withdrawing an unknown path does nothing.
    assert_eq!(host.receive(2, &notify(to(1), Answer::Absent { revision: 5 })), []);
}

#[test]
fn paths_in_networks_without_a_port_are_not_learned() {
    let mut host = Host::new(Config::default());
    let foreign = Destination { vni: vni(9), ..to(1) };
    assert_eq!(host.receive(0, &notify(foreign, Answer::Path(path(1, 5)))), []);
    assert_eq!(host.handle(0, Input::Resolve(&[foreign])), []);
    assert_eq!((host.cache.stats().foreign, host.cache.usage().entries), (1, 0));
}

#[test]
fn removed_network_removes_its_paths() {
    let mut host = Host::new(Config::default());
    let v6 = Destination { vni: vni(7), address: "fd00::1".parse().unwrap() };
    let other = Destination { vni: vni(8), ..to(1) };
    host.handle(0, Input::Gateways { vni: vni(8), addresses: &GATEWAYS });
    for destination in [to(1), v6, other] {
        host.learn(0, destination, path(1, 5));
    }
    let out = host.handle(1, Input::Gateways { vni: vni(7), addresses: &[] });
    assert_eq!(
        out,
        [removed(to(1), RemovalReason::NetworkRemoved), removed(v6, RemovalReason::NetworkRemoved)]
    );
    assert_eq!(host.cache.paths().collect::<Vec<_>>(), [(other, path(1, 5))]);
}

#[test]
fn paths_older_than_100_ms_are_queried_every_50_ms() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(1, 5));
    assert_eq!(host.tick(50), []);
    assert_eq!(host.tick(99), []);
    let query = Query { destination: to(1), revision: 5 };
    for now_ms in [100, 150, 200] {
        let out = host.tick(now_ms);
        assert_eq!(queries(&out).iter().map(|(_, query)| *query).collect::<Vec<_>>(), [query], "at {now_ms}");
        assert_eq!(host.tick(now_ms + 1), [], "at most one query per round");
    }
    // After a confirmation the next query is due 100 ms later.
    assert_eq!(host.receive(210, &reply(to(1), Answer::Unchanged { lifetime_ms: 9000, revision: 5 })), []);
    assert_eq!(host.tick(309), []);
    assert_eq!(queries(&host.tick(310)).len(), 1);
    assert_eq!(host.cache.path(&to(1)).unwrap().lifetime_ms, 9000);
}

#[test]
fn rounds_alternate_between_gateways_and_share_one_message() {
    let mut host = Host::new(Config { seed: 1, ..Config::default() });
    for number in 0..500 {
        host.learn(0, to(number), path(1, 5));
    }
    let mut seen = BTreeSet::new();
    for round in 2..6 {
        let out = host.tick(round * 50);
        assert_eq!((out.len(), queries(&out).len()), (1, 500));
        seen.insert(queries(&out)[0].0);
    }
    assert_eq!(seen, GATEWAYS.into_iter().collect());
}

#[test]
fn queries_are_limited_and_the_longest_due_come_first() {
    let mut host = Host::new(Config { queries_per_round_max: 10, ..Config::default() });
    for number in 0..35 {
        host.learn(u64::from(number), to(number), path(1, 5));
    }
    let mut order = Vec::new();
    for round in 0..4 {
        let sent = queries(&host.tick(200 + round * 50));
        assert_eq!(sent.len(), 10, "the limit is used in full");
        order.extend(sent.iter().map(|(_, query)| query.destination));
        // The queried paths are confirmed, so the next round queries others.
        for (_, query) in sent {
            host.receive(
                200 + round * 50,
                &reply(query.destination, Answer::Unchanged { lifetime_ms: 60_000, revision: 5 }),
            );
        }
    }
    assert_eq!(order[..35], (0..35).map(to).collect::<Vec<_>>());
    assert_eq!(host.cache.stats().rounds_full, 4);
    // Additional ticks do not exceed the limit.
    let burst: usize = (0..20).map(|_| queries(&host.tick(1000)).len()).sum();
    assert_eq!(burst, 10);
}

#[test]
fn queries_to_silent_gateways_back_off_until_the_path_expires() {
    let mut host = Host::new(Config { idle_ms: u64::MAX, ..Config::default() });
    host.learn(0, to(1), path(1, 5));
    let (mut count, mut ends) = (0, Vec::new());
    for now_ms in (50..=u64::from(LIFETIME_MS) + 1000).step_by(50) {
        let out = host.tick(now_ms);
        count += queries(&out).len();
        ends.extend(out.contains(&removed(to(1), RemovalReason::Expired)).then_some(now_ms));
    }
    assert_eq!(ends, [u64::from(LIFETIME_MS)]);
    assert!((35..60).contains(&count), "{count} queries in a minute");
    assert_eq!(host.cache.stats().expired, 1);
}

#[test]
fn claimed_lifetime_is_limited() {
    let mut host = Host::new(Config { idle_ms: u64::MAX, ..Config::default() });
    let forged = Path { lifetime_ms: u32::MAX, revision: u64::MAX, ..path(1, 5) };
    host.learn(0, to(1), forged);
    let ended = |host: &mut Host, now_ms| host.tick(now_ms).contains(&removed(to(1), RemovalReason::Expired));
    // The forged revision is newer than any real answer, so only the lifetime ends the path.
    assert_eq!(host.receive(100, &reply(to(1), Answer::Absent { revision: 9 })), []);
    assert!(!ended(&mut host, 59_999) && ended(&mut host, 60_000));
}

#[test]
fn idle_paths_are_removed_and_used_ones_stay() {
    let mut host = Host::new(Config { idle_ms: 1000, ..Config::default() });
    host.learn(0, to(1), path(1, 5));
    host.learn(0, to(2), path(1, 5));
    for now_ms in (100..=3000).step_by(100) {
        // The first path is used until 1000; its hit counter restarts several times.
        let hits = if now_ms > 1000 { 4 } else { now_ms % 500 };
        assert_eq!(
            host.handle(
                now_ms,
                Input::Hits(&[(to(1), hits), (to(2), 0)][..if now_ms < 1000 { 2 } else { 1 }])
            ),
            [],
            "{now_ms}"
        );
        let out: Vec<Output> =
            host.tick(now_ms).into_iter().filter(|output| matches!(output, Output::Remove { .. })).collect();
        match now_ms {
            1000 => assert_eq!(out, [removed(to(2), RemovalReason::Idle)]),
            2100 => {
                assert_eq!(out, [removed(to(1), RemovalReason::Idle)]);
                break;
            }
            _ => assert_eq!(out, [], "{now_ms}"),
        }
    }
    assert_eq!((host.cache.stats().idle, host.cache.usage().entries), (2, 0));
}

#[test]
fn path_unknown_to_the_cache_is_removed_from_the_forwarding_table() {
    let mut host = Host::new(Config::default());
    assert_eq!(host.handle(0, Input::Hits(&[(to(1), 9)])), [removed(to(1), RemovalReason::Orphaned)]);
}

#[test]
fn full_cache_replaces_the_least_used_path() {
    let mut host = Host::new(Config { entries_max: 3, ..Config::default() });
    for number in 1..=3 {
        host.learn(u64::from(number), to(number), path(1, 5));
    }
    // All were used at the same time: the one with the fewest packets is replaced.
    host.handle(100, Input::Hits(&[(to(1), 50), (to(2), 20), (to(3), 90)]));
    let out = host.receive(101, &notify(to(4), Answer::Path(path(1, 5))));
    assert_eq!(
        out,
        [removed(to(2), RemovalReason::Replaced), Output::Install { destination: to(4), path: path(1, 5) }]
    );
    // The new path counts as used although no packet was counted yet.
    let out = host.receive(102, &notify(to(5), Answer::Path(path(1, 5))));
    assert_eq!(out[0], removed(to(1), RemovalReason::Replaced));
    // Hits since the previous reading count, not their total.
    host.handle(200, Input::Hits(&[(to(3), 91), (to(4), 60), (to(5), 60)]));
    let out = host.receive(201, &notify(to(6), Answer::Path(path(1, 5))));
    assert_eq!(out[0], removed(to(3), RemovalReason::Replaced));
    assert_eq!(host.cache.usage(), Usage { paths: 3, entries: 3, entries_max: 3 });
    assert_eq!(host.cache.stats().replaced, 3);
}

#[test]
fn one_network_does_not_displace_another() {
    let mut host = Host::new(Config { entries_max: 4, ..Config::default() });
    host.handle(0, Input::Gateways { vni: vni(8), addresses: &GATEWAYS });
    let other = |number| Destination { vni: vni(8), ..to(number) };
    host.learn(1, other(1), path(1, 5));
    // Any number of new paths of the first network replace only each other.
    for number in 1..=9 {
        host.learn(1 + u64::from(number), to(number), path(1, 5));
    }
    assert!(host.cache.path(&other(1)).is_some());
    // The other network can take half of the cache, and no more.
    for number in 2..=9 {
        host.learn(20 + u64::from(number), other(number), path(1, 5));
    }
    let of = |network| {
        let known =
            |number: &u32| host.cache.path(&Destination { vni: vni(network), ..to(*number) }).is_some();
        (1..=9).filter(known).collect::<Vec<_>>()
    };
    assert_eq!((of(7), of(8)), (vec![8, 9], vec![8, 9]));
}

#[test]
fn redirected_path_is_removed_and_queried_until_a_newer_one_is_known() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(1, 5));
    let out = host.receive(10, &redirect(to(1), 1));
    assert_eq!(out[0], removed(to(1), RemovalReason::Redirected));
    let query = Query { destination: to(1), revision: 0 };
    assert_eq!(queries(&out), [(NAMED, query)], "the named gateway is queried");
    assert_eq!(host.cache.path(&to(1)), None);
    // Answers of a gateway that does not know of the move yet, and a late notification, have no effect.
    assert_eq!(host.receive(20, &reply(to(1), Answer::Path(path(1, 5)))), []);
    assert_eq!(host.receive(20, &notify(to(1), Answer::Path(path(1, 5)))), []);
    assert_eq!(host.receive(20, &reply(to(1), Answer::Absent { revision: 5 })), []);
    let again = queries(&host.tick(60));
    assert_eq!(again.len(), 1);
    assert!(GATEWAYS.contains(&again[0].0), "later queries go to the network's gateways");
    let moved = path(2, 6);
    assert_eq!(
        host.receive(70, &reply(to(1), Answer::Path(moved))),
        [Output::Install { destination: to(1), path: moved }]
    );
    assert_eq!(host.cache.stats().redirected, 1);
}

#[test]
fn redirect_from_a_host_that_no_path_leads_to_is_ignored() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(2, 6));
    assert_eq!(host.receive(10, &redirect(to(1), 1)), []);
    assert_eq!(host.receive(10, &redirect(to(2), 1)), []);
    assert_eq!(host.cache.path(&to(1)), Some(path(2, 6)));
    assert_eq!(host.cache.stats().redirects_stale, 2);
}

#[test]
fn redirect_is_matched_by_the_network_on_the_wire() {
    let mut host = Host::new(Config::default());
    // VNI 7 has the destination in its peer, VNI 8.
    host.learn(0, to(1), Path { vni: vni(8), ..path(1, 5) });
    assert_eq!(host.receive(10, &redirect(to(1), 1)), [], "no packets are encapsulated with VNI 7");
    let out = host.receive(10, &redirect(Destination { vni: vni(8), ..to(1) }, 1));
    assert_eq!(out[0], removed(to(1), RemovalReason::Redirected));
    // The named gateway knows VNI 8; only the gateways of VNI 7 know what VNI 7 reaches.
    assert!(GATEWAYS.contains(&queries(&out)[0].0));
}

#[test]
fn unanswered_destination_is_given_up() {
    let mut host = Host::new(Config::default());
    assert_eq!(queries(&host.handle(0, Input::Resolve(&[to(1), to(2)]))).len(), 2);
    assert_eq!(host.handle(0, Input::Resolve(&[to(1)])), [], "it is being resolved already");
    let sent: usize = (1..40).map(|round| queries(&host.tick(round * 50)).len()).sum();
    assert_eq!(sent, 2 * 19);
    assert_eq!((host.cache.usage().entries, host.cache.stats().unanswered), (0, 2));
    assert_eq!(host.receive(2000, &reply(to(1), Answer::Path(path(1, 5)))), [], "too late");
    assert_eq!(host.cache.stats().late, 1);
}

#[test]
fn resolved_destination_is_installed() {
    let mut host = Host::new(Config::default());
    host.handle(0, Input::Resolve(&[to(1), to(2)]));
    let found = Output::Install { destination: to(1), path: path(1, 5) };
    assert_eq!(host.receive(3, &reply(to(1), Answer::Path(path(1, 5)))), [found]);
    assert_eq!(host.receive(3, &reply(to(2), Answer::Absent { revision: 5 })), []);
    assert_eq!(host.cache.usage(), Usage { paths: 1, entries: 1, entries_max: 65_536 });
}

#[test]
fn adopted_paths_stay_installed_and_are_queried_at_once() {
    let mut host = Host::new(Config::default());
    assert_eq!(host.handle(0, Input::Adopt(&[(to(1), path(1, 5)), (to(2), path(1, 5))])), []);
    let sent = queries(&host.tick(1));
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].1.revision, 5);
    // If the destination moved in the meantime, the answer corrects the path.
    let moved = Output::Install { destination: to(1), path: path(2, 6) };
    assert_eq!(host.receive(2, &reply(to(1), Answer::Path(path(2, 6)))), [moved]);
}

#[test]
fn wakes_are_requested_while_there_are_entries() {
    let mut cache = Cache::new(Config::default(), 0);
    cache.handle(0, Input::Gateways { vni: vni(7), addresses: &GATEWAYS });
    assert_eq!(cache.handle(5, Input::Tick), []);
    let learn = notify(to(1), Answer::Path(path(1, 5)));
    assert_eq!(cache.handle(7, Input::Message(&learn)).last(), Some(&Output::Wake { at_ms: 57 }));
    assert_eq!(cache.handle(8, Input::Message(&learn)), [], "a wake is pending already");
    assert_eq!(cache.handle(57, Input::Tick), [Output::Wake { at_ms: 107 }]);
    let gone = notify(to(1), Answer::Absent { revision: 5 });
    cache.handle(60, Input::Message(&gone));
    assert_eq!(cache.handle(107, Input::Tick), [], "no entries are left");
}

/// Catches a host that goes on with an MTU, or capabilities, that the destination's host no longer has.
#[test]
fn what_the_destination_receives_is_part_of_the_path() {
    let (mine, theirs) = (Capabilities::from_bits(0b011), Capabilities::from_bits(0b110));
    let mut host = Host::new(Config { capabilities: mine, ..Config::default() });
    let told = |mtu, revision| {
        let reception = Reception { mtu, capabilities: theirs };
        Path { reception, ..path(1, revision) }
    };
    let known = |mtu, revision| {
        let reception = Reception { mtu, capabilities: Capabilities::from_bits(0b010) };
        Path { reception, ..path(1, revision) }
    };
    let install = |path| vec![Output::Install { destination: to(1), path }];
    assert_eq!(host.receive(0, &notify(to(1), Answer::Path(told(1450, 5)))), install(known(1450, 5)));
    assert_eq!(host.receive(1, &notify(to(1), Answer::Path(told(1450, 5)))), []);
    // The same revision: the tables of gateways say nothing about it.
    assert_eq!(host.receive(2, &reply(to(1), Answer::Path(told(1300, 5)))), install(known(1300, 5)));
    // A gateway of an earlier version does not say it.
    assert_eq!(host.receive(3, &reply(to(1), Answer::Path(path(1, 6)))), []);
    assert_eq!(host.cache.path(&to(1)), Some(known(1300, 6)));
    // Of another host it is not known.
    assert_eq!(host.receive(4, &reply(to(1), Answer::Path(path(2, 7)))), install(path(2, 7)));
    let asked = host.tick(200);
    let request = asked.iter().find_map(|output| match output {
        Output::Send { message: Message::Request { capabilities, .. }, .. } => Some(*capabilities),
        _ => None,
    });
    assert_eq!(request, Some(mine), "{asked:?}");
}

#[test]
fn request_to_a_host_is_ignored() {
    let mut host = Host::new(Config::default());
    let request = Message::Request {
        id: 1,
        capabilities: Capabilities::OWN,
        queries: vec![Query { destination: to(1), revision: 0 }],
    };
    assert_eq!(host.receive(0, &request), []);
    assert_eq!(host.cache.stats().unexpected, 1);
}
