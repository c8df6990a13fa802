//! Random histories, with a forwarding table that does what it is told.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Hear { message: u8, destination: u32, host: u8, revision: u64, lifetime_ms: u32 },
    Want(u32),
    Hits(Vec<(u32, u64)>),
    Adopt(u32, u8, u64),
    Tick,
    Network { present: bool },
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let lifetime_ms = prop_oneof![Just(0u32), 1u32..500, Just(60_000)];
    prop_oneof![
        6 => (0u8..5, 0u32..12, 0u8..4, 0u64..6, lifetime_ms).prop_map(
            |(message, destination, host, revision, lifetime_ms)| Step::Hear {
                message, destination, host, revision, lifetime_ms
            }
        ),
        1 => (0u32..12).prop_map(Step::Want),
        2 => prop::collection::vec((0u32..12, 0u64..4), 0..6).prop_map(Step::Hits),
        1 => (0u32..12, 0u8..4, 0u64..6).prop_map(|(to, host, revision)| Step::Adopt(to, host, revision)),
        6 => Just(Step::Tick),
        1 => prop::bool::weighted(0.8).prop_map(|present| Step::Network { present }),
        4 => (0u64..80).prop_map(Step::Wait),
    ]
}

fn message(kind: u8, destination: Destination, path: Path) -> Message {
    match kind {
        0 => notify(destination, Answer::Path(path)),
        1 => reply(destination, Answer::Path(path)),
        2 => reply(destination, Answer::Unchanged { lifetime_ms: path.lifetime_ms, revision: path.revision }),
        3 => notify(destination, Answer::Absent { revision: path.revision }),
        _ => Message::Redirect { moved: vec![Moved { destination, host: path.host, ask: host(200) }] },
    }
}

/// Applies outputs to the table as an agent would; the number of questions.
fn obey(table: &mut BTreeMap<Destination, Path>, out: &[Output], strays: bool) -> usize {
    let mut asks = 0;
    for output in out {
        match output {
            Output::Install { destination, path } => {
                let before = table.insert(*destination, *path);
                let way = |path: &Path| (path.host, path.mac, path.vni);
                assert_ne!(before.as_ref().map(way), Some(way(path)), "installed what was there");
            }
            Output::Remove { destination, .. } => {
                assert!(table.remove(destination).is_some() || strays, "removed what was not there");
            }
            Output::Send { message: Message::Request { asks: some, .. }, .. } => {
                assert!(!some.is_empty());
                asks += some.len();
            }
            Output::Send { message, .. } => panic!("a host asks and says nothing: {message:?}"),
            Output::Wake { .. } => {}
        }
    }
    asks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn forwarding_table_is_what_the_cache_says(
        entries_max in 1usize..10,
        asks_per_round_max in 0u32..6,
        steps in prop::collection::vec(any_step(), 1..200),
    ) {
        let config = Config {
            entries_max, asks_per_round_max, idle_ms: 400, ask_for_ms: 300, ..Config::default()
        };
        let mut cache = Cache::new(config, 0);
        cache.handle(0, Input::Gateways { vni: vni(7), addresses: &GATEWAYS });
        let (mut table, mut now_ms, mut asks) = (BTreeMap::new(), 0, 0);
        for step in steps {
            let strays = matches!(step, Step::Hits(_));
            let out = match step {
                Step::Hear { message: kind, destination, host, revision, lifetime_ms } => {
                    let path = Path { lifetime_ms, ..path(host, revision) };
                    cache.handle(now_ms, Input::Message(&message(kind, to(destination), path)))
                }
                Step::Want(destination) => cache.handle(now_ms, Input::Want(&[to(destination)])),
                Step::Hits(hits) => {
                    let hits: Vec<_> = hits.into_iter().map(|(number, hits)| (to(number), hits)).collect();
                    cache.handle(now_ms, Input::Hits(&hits))
                }
                Step::Adopt(number, host, revision) => {
                    // Only what the table has and the cache has not is adopted.
                    let known = cache.table.find(&to(number)).is_some();
                    if !known {
                        table.insert(to(number), path(host, revision));
                    }
                    cache.handle(now_ms, Input::Adopt(&[(to(number), path(host, revision))]))
                }
                Step::Tick => cache.handle(now_ms, Input::Tick),
                Step::Network { present } => {
                    let addresses = if present { &GATEWAYS[..] } else { &[] };
                    cache.handle(now_ms, Input::Gateways { vni: vni(7), addresses })
                }
                Step::Wait(ms) => {
                    now_ms += ms;
                    continue;
                }
            };
            asks += obey(&mut table, &out, strays);
            cache.table.check();
            let ways = |paths: &mut dyn Iterator<Item = (Destination, Path)>| {
                paths.map(|(to, path)| (to, path.host)).collect::<Vec<_>>()
            };
            prop_assert_eq!(
                ways(&mut cache.paths()),
                ways(&mut table.iter().map(|(to, path)| (*to, *path)))
            );
            prop_assert!(cache.fill().1 <= entries_max);
            // A round's worth at once, and as many again every round.
            let rate = u64::from(asks_per_round_max);
            prop_assert!(asks as u64 * 50 <= rate * (now_ms + 50));
            prop_assert_eq!(cache.stats().asked, asks as u64);
        }
    }

    /// With gateways that answer, and whatever was heard before, every path is the
    /// gateways' within two rounds and the time that questions need.
    #[test]
    fn what_gateways_know_is_reached(
        steps in prop::collection::vec((0u32..12, 0u8..4, 0u64..6), 1..60),
        truth in prop::collection::vec(prop::option::of(0u8..4), 12),
    ) {
        let mut cache = Cache::new(Config::default(), 0);
        cache.handle(0, Input::Gateways { vni: vni(7), addresses: &GATEWAYS });
        for (number, host, revision) in steps {
            cache.handle(0, Input::Message(&notify(to(number), Answer::Path(path(host, revision)))));
        }
        let known = |ask: &Ask| {
            let number = (0..12).find(|number| to(*number) == ask.destination).unwrap();
            let path = truth[number as usize].map(|host| path(host, 10));
            ask.answer(path.as_ref(), 10)
        };
        for now_ms in [50, 100, 150] {
            let out = cache.handle(now_ms, Input::Tick);
            let answers: Vec<Answered> = asked(&out).iter().map(|(_, ask)| known(ask)).collect();
            cache.handle(now_ms + 1, Input::Message(&Message::Reply { id: 1, answers }));
        }
        for (destination, path) in cache.paths() {
            let number = (0..12).find(|number| to(*number) == destination).unwrap();
            prop_assert_eq!(Some(path.host), truth[number as usize].map(host));
        }
    }
}
