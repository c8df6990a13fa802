//! Random histories of the cache. A model of the forwarding table applies all outputs and is compared with
//! the cache after each step.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Receive { message: u8, destination: u32, host: u8, revision: u64, lifetime_ms: u32 },
    Resolve(u32),
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
            |(message, destination, host, revision, lifetime_ms)| Step::Receive {
                message, destination, host, revision, lifetime_ms
            }
        ),
        1 => (0u32..12).prop_map(Step::Resolve),
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
        _ => Message::Redirect {
            entries: vec![RedirectEntry { destination, host: path.host, gateway: NAMED }],
        },
    }
}

/// Applies outputs to the forwarding table as an agent does, and returns the number of queries. Removing a
/// path that is not in the table is an error unless `may_remove_unknown`.
fn apply(table: &mut BTreeMap<Destination, Path>, out: &[Output], may_remove_unknown: bool) -> usize {
    let mut sent = 0;
    for output in out {
        match output {
            Output::Install { destination, path } => {
                let before = table.insert(*destination, *path);
                assert_ne!(before.as_ref().map(next_hop), Some(next_hop(path)), "installed an equal path");
            }
            Output::Remove { destination, .. } => {
                assert!(table.remove(destination).is_some() || may_remove_unknown, "no such path");
            }
            Output::Send { message: Message::Request { queries, .. }, .. } => {
                assert!(!queries.is_empty());
                sent += queries.len();
            }
            Output::Send { message, .. } => panic!("the cache sends only requests: {message:?}"),
            Output::Wake { .. } => {}
        }
    }
    sent
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn forwarding_table_equals_the_cache(
        entries_max in 1usize..10,
        queries_per_round_max in 0u32..6,
        steps in prop::collection::vec(any_step(), 1..200),
    ) {
        let config = Config {
            entries_max, queries_per_round_max, idle_ms: 400, resolve_for_ms: 300, ..Config::default()
        };
        let mut cache = Cache::new(config, 0);
        cache.handle(0, Input::Gateways { vni: vni(7), addresses: &GATEWAYS });
        let (mut table, mut now_ms, mut sent) = (BTreeMap::new(), 0, 0);
        for step in steps {
            let may_remove_unknown = matches!(step, Step::Hits(_));
            let out = match step {
                Step::Receive { message: kind, destination, host, revision, lifetime_ms } => {
                    let path = Path { lifetime_ms, ..path(host, revision) };
                    cache.handle(now_ms, Input::Message(&message(kind, to(destination), path)))
                }
                Step::Resolve(destination) => cache.handle(now_ms, Input::Resolve(&[to(destination)])),
                Step::Hits(hits) => {
                    let hits: Vec<_> = hits.into_iter().map(|(number, hits)| (to(number), hits)).collect();
                    cache.handle(now_ms, Input::Hits(&hits))
                }
                Step::Adopt(number, host, revision) => {
                    // The forwarding table gets the path only if the cache does not have the destination yet.
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
            sent += apply(&mut table, &out, may_remove_unknown);
            cache.table.check();
            let cached: Vec<_> = cache.paths().map(|(to, path)| (to, next_hop(&path))).collect();
            let installed: Vec<_> = table.iter().map(|(to, path)| (*to, next_hop(path))).collect();
            prop_assert_eq!(cached, installed);
            prop_assert!(cache.usage().entries <= entries_max);
            // Token bucket: one round's queries at once, and as many in each further round.
            let rate = u64::from(queries_per_round_max);
            prop_assert!(sent as u64 * 50 <= rate * (now_ms + 50));
            prop_assert_eq!(cache.stats().requested, sent as u64);
        }
    }

    /// If the gateways answer, each path is the gateways' own within two rounds of queries, whatever the
    /// cache learned before.
    #[test]
    fn cache_converges_to_what_gateways_know(
        steps in prop::collection::vec((0u32..12, 0u8..4, 0u64..6), 1..60),
        truth in prop::collection::vec(prop::option::of(0u8..4), 12),
    ) {
        let mut cache = Cache::new(Config::default(), 0);
        cache.handle(0, Input::Gateways { vni: vni(7), addresses: &GATEWAYS });
        for (number, host, revision) in &steps {
            let learned = Answer::Path(path(*host, *revision));
            cache.handle(0, Input::Message(&notify(to(*number), learned)));
        }
        let answer = |query: &Query| {
            let number = (0..12).find(|number| to(*number) == query.destination).unwrap();
            let path = truth[number as usize].map(|host| path(host, 10));
            query.answer(path.as_ref(), 10)
        };
        for now_ms in [50, 100, 150] {
            let out = cache.handle(now_ms, Input::Tick);
            let answers: Vec<AnswerEntry> = queries(&out).iter().map(|(_, query)| answer(query)).collect();
            cache.handle(now_ms + 1, Input::Message(&Message::Reply { id: 1, answers }));
        }
        // Destinations with a path in truth must be present: a cache that drops everything does not pass.
        let learned: BTreeSet<u32> = steps.iter().map(|(number, ..)| *number).collect();
        let expected: Vec<_> = learned
            .iter()
            .filter_map(|number| truth[*number as usize].map(|at| (to(*number), host(at))))
            .collect();
        let known: Vec<_> = cache.paths().map(|(destination, path)| (destination, path.host)).collect();
        prop_assert_eq!(known, expected);
    }
}
