use super::*;
use sluice_types::MacAddr;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

mod random;

const GATEWAYS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 101)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 102))];
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
    Path { host: host(at), mac: MacAddr::local(1), vni: vni(7), lifetime_ms: LIFETIME_MS, revision }
}

fn notify(destination: Destination, answer: Answer) -> Message {
    Message::Notify { answers: vec![Answered { destination, answer }] }
}

fn reply(destination: Destination, answer: Answer) -> Message {
    Message::Reply { id: 0, answers: vec![Answered { destination, answer }] }
}

fn redirect(destination: Destination, from: u8) -> Message {
    Message::Redirect { moved: vec![Moved { destination, host: host(from), ask: host(200) }] }
}

/// A cache of one network, and what it says without its wakes.
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

    fn hear(&mut self, now_ms: u64, message: &Message) -> Vec<Output> {
        self.handle(now_ms, Input::Message(message))
    }

    fn learn(&mut self, now_ms: u64, destination: Destination, path: Path) {
        let out = self.hear(now_ms, &notify(destination, Answer::Path(path)));
        assert_eq!(out.last(), Some(&Output::Install { destination, path }));
    }

    fn tick(&mut self, now_ms: u64) -> Vec<Output> {
        self.handle(now_ms, Input::Tick)
    }
}

fn removed(destination: Destination, why: Why) -> Output {
    Output::Remove { destination, why }
}

/// The questions among outputs, with whom they go to.
fn asked(out: &[Output]) -> Vec<(IpAddr, Ask)> {
    out.iter()
        .filter_map(|output| match output {
            Output::Send { to, message: Message::Request { asks, .. } } => {
                Some(asks.iter().map(|ask| (*to, *ask)))
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
    assert_eq!(host.hear(1, &notify(to(1), Answer::Path(path(1, 5)))), []);
    // A newer revision of the same way changes nothing in the table.
    assert_eq!(host.hear(2, &notify(to(1), Answer::Path(path(1, 6)))), []);
    host.learn(3, to(1), path(2, 7));
    assert_eq!(host.cache.path(&to(1)), Some(path(2, 7)));
    let stats = host.cache.stats();
    assert_eq!((stats.learned, stats.moved, stats.confirmed), (1, 1, 3));
}

#[test]
fn other_mac_or_vni_is_another_way() {
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
        assert_eq!(host.hear(1, &notify(to(1), answer)), []);
        assert_eq!(host.hear(1, &reply(to(1), answer)), []);
    }
    let unchanged = Answer::Unchanged { lifetime_ms: 1, revision: 6 };
    assert_eq!(host.hear(1, &reply(to(1), unchanged)), []);
    assert_eq!(host.cache.path(&to(1)), Some(path(2, 7)));
    assert_eq!(host.cache.stats().stale, 7);
}

#[test]
fn gateway_takes_paths_back() {
    let mut host = Host::new(Config::default());
    for answer in [Answer::Absent { revision: 5 }, Answer::Path(Path { lifetime_ms: 0, ..path(1, 5) })] {
        host.learn(0, to(1), path(1, 5));
        assert_eq!(host.hear(1, &notify(to(1), answer)), [removed(to(1), Why::Withdrawn)]);
    }
    assert_eq!(host.cache.fill().1, 0);
    // Of what is not there nothing can be taken back.
    assert_eq!(host.hear(2, &notify(to(1), Answer::Absent { revision: 5 })), []);
}

#[test]
fn networks_of_others_are_not_learned() {
    let mut host = Host::new(Config::default());
    let foreign = Destination { vni: vni(9), ..to(1) };
    assert_eq!(host.hear(0, &notify(foreign, Answer::Path(path(1, 5)))), []);
    assert_eq!(host.handle(0, Input::Want(&[foreign])), []);
    assert_eq!((host.cache.stats().foreign, host.cache.fill().1), (1, 0));
}

#[test]
fn network_that_goes_takes_its_paths_along() {
    let mut host = Host::new(Config::default());
    let v6 = Destination { vni: vni(7), address: "fd00::1".parse().unwrap() };
    let other = Destination { vni: vni(8), ..to(1) };
    host.handle(0, Input::Gateways { vni: vni(8), addresses: &GATEWAYS });
    for destination in [to(1), v6, other] {
        host.learn(0, destination, path(1, 5));
    }
    let out = host.handle(1, Input::Gateways { vni: vni(7), addresses: &[] });
    assert_eq!(out, [removed(to(1), Why::Network), removed(v6, Why::Network)]);
    assert_eq!(host.cache.paths().collect::<Vec<_>>(), [(other, path(1, 5))]);
}

#[test]
fn paths_older_than_100_ms_are_asked_about_every_50_ms() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(1, 5));
    assert_eq!(host.tick(50), []);
    assert_eq!(host.tick(99), []);
    let ask = Ask { destination: to(1), revision: 5 };
    for now_ms in [100, 150, 200] {
        let out = host.tick(now_ms);
        assert_eq!(asked(&out).iter().map(|(_, ask)| *ask).collect::<Vec<_>>(), [ask], "at {now_ms}");
        assert_eq!(host.tick(now_ms + 1), [], "not twice a round");
    }
    // Confirmed: again 100 ms from then.
    assert_eq!(host.hear(210, &reply(to(1), Answer::Unchanged { lifetime_ms: 9000, revision: 5 })), []);
    assert_eq!(host.tick(309), []);
    assert_eq!(asked(&host.tick(310)).len(), 1);
    assert_eq!(host.cache.path(&to(1)).unwrap().lifetime_ms, 9000);
}

#[test]
fn gateways_take_turns_and_many_questions_make_one_message() {
    let mut host = Host::new(Config { seed: 1, ..Config::default() });
    for number in 0..500 {
        host.learn(0, to(number), path(1, 5));
    }
    let mut seen = BTreeSet::new();
    for round in 2..6 {
        let out = host.tick(round * 50);
        assert_eq!((out.len(), asked(&out).len()), (1, 500));
        seen.insert(asked(&out)[0].0);
    }
    assert_eq!(seen, GATEWAYS.into_iter().collect());
}

#[test]
fn questions_are_bounded_and_the_oldest_come_first() {
    let mut host = Host::new(Config { asks_per_round_max: 10, ..Config::default() });
    for number in 0..35 {
        host.learn(u64::from(number), to(number), path(1, 5));
    }
    let mut order = Vec::new();
    for round in 0..4 {
        let asks = asked(&host.tick(200 + round * 50));
        assert!(asks.len() <= 10);
        order.extend(asks.iter().map(|(_, ask)| ask.destination));
        // What was asked is confirmed, so that the next round asks about others.
        for (_, ask) in asks {
            host.hear(
                200 + round * 50,
                &reply(ask.destination, Answer::Unchanged { lifetime_ms: 60_000, revision: 5 }),
            );
        }
    }
    assert_eq!(order[..35], (0..35).map(to).collect::<Vec<_>>());
    assert_eq!(host.cache.stats().rounds_full, 4);
    // Ticks in a row are no way around the bound.
    let burst: usize = (0..20).map(|_| asked(&host.tick(1000)).len()).sum();
    assert_eq!(burst, 10);
}

#[test]
fn silent_gateways_are_asked_less_and_less_and_the_path_expires() {
    let mut host = Host::new(Config { idle_ms: u64::MAX, ..Config::default() });
    host.learn(0, to(1), path(1, 5));
    let (mut asks, mut ends) = (0, Vec::new());
    for now_ms in (50..=u64::from(LIFETIME_MS) + 1000).step_by(50) {
        let out = host.tick(now_ms);
        asks += asked(&out).len();
        ends.extend(out.contains(&removed(to(1), Why::Expired)).then_some(now_ms));
    }
    assert_eq!(ends, [u64::from(LIFETIME_MS)]);
    assert!((35..60).contains(&asks), "{asks} questions in a minute");
    assert_eq!(host.cache.stats().expired, 1);
}

#[test]
fn nobody_can_say_that_a_path_lives_for_ever() {
    let mut host = Host::new(Config { idle_ms: u64::MAX, ..Config::default() });
    let forged = Path { lifetime_ms: u32::MAX, revision: u64::MAX, ..path(1, 5) };
    host.learn(0, to(1), forged);
    let ended = |host: &mut Host, now_ms| host.tick(now_ms).contains(&removed(to(1), Why::Expired));
    // What gateways answer is older than what it claims.
    assert_eq!(host.hear(100, &reply(to(1), Answer::Absent { revision: 9 })), []);
    assert!(!ended(&mut host, 59_999) && ended(&mut host, 60_000));
}

#[test]
fn idle_paths_go_and_used_ones_stay() {
    let mut host = Host::new(Config { idle_ms: 1000, ..Config::default() });
    host.learn(0, to(1), path(1, 5));
    host.learn(0, to(2), path(1, 5));
    for now_ms in (100..=3000).step_by(100) {
        // The first is used until 1000, by a counter that begins anew meanwhile.
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
            1000 => assert_eq!(out, [removed(to(2), Why::Idle)]),
            2100 => {
                assert_eq!(out, [removed(to(1), Why::Idle)]);
                break;
            }
            _ => assert_eq!(out, [], "{now_ms}"),
        }
    }
    assert_eq!((host.cache.stats().idle, host.cache.fill().1), (2, 0));
}

#[test]
fn path_that_only_the_forwarding_table_has_is_removed_there() {
    let mut host = Host::new(Config::default());
    assert_eq!(host.handle(0, Input::Hits(&[(to(1), 9)])), [removed(to(1), Why::Stray)]);
}

#[test]
fn coldest_gives_way_when_the_cache_is_full() {
    let mut host = Host::new(Config { entries_max: 3, ..Config::default() });
    for number in 1..=3 {
        host.learn(u64::from(number), to(number), path(1, 5));
    }
    // All used at the same time: the one with the fewest packets is the coldest.
    host.handle(100, Input::Hits(&[(to(1), 50), (to(2), 20), (to(3), 90)]));
    let out = host.hear(101, &notify(to(4), Answer::Path(path(1, 5))));
    assert_eq!(
        out,
        [removed(to(2), Why::Replaced), Output::Install { destination: to(4), path: path(1, 5) }]
    );
    // The new one is warm though nothing was counted of it yet.
    let out = host.hear(102, &notify(to(5), Answer::Path(path(1, 5))));
    assert_eq!(out[0], removed(to(1), Why::Replaced));
    // Hits count since they were last told, not in all.
    host.handle(200, Input::Hits(&[(to(3), 91), (to(4), 60), (to(5), 60)]));
    let out = host.hear(201, &notify(to(6), Answer::Path(path(1, 5))));
    assert_eq!(out[0], removed(to(3), Why::Replaced));
    assert_eq!((host.cache.fill(), host.cache.stats().replaced), ((3, 3, 3), 3));
}

#[test]
fn one_network_does_not_drive_out_another() {
    let mut host = Host::new(Config { entries_max: 4, ..Config::default() });
    host.handle(0, Input::Gateways { vni: vni(8), addresses: &GATEWAYS });
    let other = |number| Destination { vni: vni(8), ..to(number) };
    host.learn(1, other(1), path(1, 5));
    // However many there are of the first, and however new: they take each other's places.
    for number in 1..=9 {
        host.learn(1 + u64::from(number), to(number), path(1, 5));
    }
    assert!(host.cache.path(&other(1)).is_some());
    // The other gets its half when it wants it, and no more.
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
fn redirected_path_goes_at_once_and_is_asked_for_until_a_newer_one_is_known() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(1, 5));
    let out = host.hear(10, &redirect(to(1), 1));
    assert_eq!(out[0], removed(to(1), Why::Redirected));
    let ask = Ask { destination: to(1), revision: 0 };
    assert_eq!(asked(&out), [(super::tests::host(200), ask)], "who was named is asked");
    assert_eq!(host.cache.path(&to(1)), None);
    // A gateway that has not heard of the move, and a notification that was under way.
    assert_eq!(host.hear(20, &reply(to(1), Answer::Path(path(1, 5)))), []);
    assert_eq!(host.hear(20, &notify(to(1), Answer::Path(path(1, 5)))), []);
    assert_eq!(host.hear(20, &reply(to(1), Answer::Absent { revision: 5 })), []);
    let again = asked(&host.tick(60));
    assert_eq!(again.len(), 1);
    assert!(GATEWAYS.contains(&again[0].0), "then the network's gateways");
    let moved = path(2, 6);
    assert_eq!(
        host.hear(70, &reply(to(1), Answer::Path(moved))),
        [Output::Install { destination: to(1), path: moved }]
    );
    assert_eq!(host.cache.stats().redirected, 1);
}

#[test]
fn redirection_by_a_host_that_no_path_leads_to_is_ignored() {
    let mut host = Host::new(Config::default());
    host.learn(0, to(1), path(2, 6));
    assert_eq!(host.hear(10, &redirect(to(1), 1)), []);
    assert_eq!(host.hear(10, &redirect(to(2), 1)), []);
    assert_eq!(host.cache.path(&to(1)), Some(path(2, 6)));
    assert_eq!(host.cache.stats().redirects_stale, 2);
}

#[test]
fn redirection_names_the_network_that_packets_came_in() {
    let mut host = Host::new(Config::default());
    // VNI 7 has the destination in its peer, VNI 8.
    host.learn(0, to(1), Path { vni: vni(8), ..path(1, 5) });
    assert_eq!(host.hear(10, &redirect(to(1), 1)), [], "nothing goes to VNI 7 there");
    let out = host.hear(10, &redirect(Destination { vni: vni(8), ..to(1) }, 1));
    assert_eq!(out[0], removed(to(1), Why::Redirected));
    // Whom the host named knows VNI 8; what VNI 7 sees its own gateways know.
    assert!(GATEWAYS.contains(&asked(&out)[0].0));
}

#[test]
fn destination_without_an_answer_is_given_up() {
    let mut host = Host::new(Config::default());
    assert_eq!(asked(&host.handle(0, Input::Want(&[to(1), to(2)]))).len(), 2);
    assert_eq!(host.handle(0, Input::Want(&[to(1)])), [], "it is being asked for");
    let asks: usize = (1..40).map(|round| asked(&host.tick(round * 50)).len()).sum();
    assert_eq!(asks, 2 * 19);
    assert_eq!((host.cache.fill().1, host.cache.stats().unanswered), (0, 2));
    assert_eq!(host.hear(2000, &reply(to(1), Answer::Path(path(1, 5)))), [], "too late");
    assert_eq!(host.cache.stats().late, 1);
}

#[test]
fn wanted_destination_is_installed_when_answered() {
    let mut host = Host::new(Config::default());
    host.handle(0, Input::Want(&[to(1), to(2)]));
    let found = Output::Install { destination: to(1), path: path(1, 5) };
    assert_eq!(host.hear(3, &reply(to(1), Answer::Path(path(1, 5)))), [found]);
    assert_eq!(host.hear(3, &reply(to(2), Answer::Absent { revision: 5 })), []);
    assert_eq!(host.cache.fill(), (1, 1, 65_536));
}

#[test]
fn adopted_paths_stay_installed_and_are_asked_about_at_once() {
    let mut host = Host::new(Config::default());
    assert_eq!(host.handle(0, Input::Adopt(&[(to(1), path(1, 5)), (to(2), path(1, 5))])), []);
    let asks = asked(&host.tick(1));
    assert_eq!(asks.len(), 2);
    assert_eq!(asks[0].1.revision, 5);
    // What has moved meanwhile is repaired by the answer.
    let moved = Output::Install { destination: to(1), path: path(2, 6) };
    assert_eq!(host.hear(2, &reply(to(1), Answer::Path(path(2, 6)))), [moved]);
}

#[test]
fn wakes_are_armed_while_there_is_something_to_do() {
    let mut cache = Cache::new(Config::default(), 0);
    cache.handle(0, Input::Gateways { vni: vni(7), addresses: &GATEWAYS });
    assert_eq!(cache.handle(5, Input::Tick), []);
    let learn = notify(to(1), Answer::Path(path(1, 5)));
    assert_eq!(cache.handle(7, Input::Message(&learn)).last(), Some(&Output::Wake { at_ms: 57 }));
    assert_eq!(cache.handle(8, Input::Message(&learn)), [], "once");
    assert_eq!(cache.handle(57, Input::Tick), [Output::Wake { at_ms: 107 }]);
    let gone = notify(to(1), Answer::Absent { revision: 5 });
    cache.handle(60, Input::Message(&gone));
    assert_eq!(cache.handle(107, Input::Tick), [], "nothing left");
}

#[test]
fn requests_are_for_gateways() {
    let mut host = Host::new(Config::default());
    let request = Message::Request { id: 1, asks: vec![Ask { destination: to(1), revision: 0 }] };
    assert_eq!(host.hear(0, &request), []);
    assert_eq!(host.cache.stats().unexpected, 1);
}
