//! Random histories of the cache. A model of the forwarding table applies all outputs and is compared with
//! the cache after each step.

use super::*;
use crate::message::NetworkAnswer;
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
            Output::Send { message: Message::Reconcile { queries }, .. } => assert!(!queries.is_empty()),
            Output::Send { message, .. } => panic!("the cache sends only requests: {message:?}"),
            Output::Wake { .. } => {}
        }
    }
    sent
}

#[derive(Clone, Debug)]
enum Event {
    /// An instance comes to a host, moves, or ends.
    Change { number: u32, host: Option<u8> },
    /// A gateway learns of all changes.
    Learn(usize),
    /// A gateway knows no earlier changes any more.
    Forget,
    /// A gateway notifies the host of a path.
    Notify { gateway: usize, number: u32 },
    /// 50 ms pass; queries are answered, or their answers are lost.
    Tick { answers: bool },
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0u32..6, prop::option::weighted(0.8, 0u8..4)).prop_map(|(number, host)| Event::Change { number, host }),
        3 => (0usize..2).prop_map(Event::Learn),
        1 => Just(Event::Forget),
        3 => (0usize..2, 0u32..6).prop_map(|(gateway, number)| Event::Notify { gateway, number }),
        8 => prop::bool::weighted(0.8).prop_map(|answers| Event::Tick { answers }),
    ]
}

/// A host, two gateways, and what happened to instances.
struct World {
    cache: Cache,
    table: BTreeMap<Destination, Path>,
    /// Each change has its own revision, from 11 on.
    history: Vec<(u32, Option<u8>)>,
    /// Revisions of the gateways.
    gateways: [u64; 2],
    /// Changes up to this revision are not known.
    known_since: u64,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        let mut cache = Cache::new(Config { idle_ms: u64::MAX, ..Config::default() }, 0);
        cache.handle(0, Input::Gateways { vni: vni(7), addresses: &GATEWAYS });
        let table = BTreeMap::new();
        Self { cache, table, history: Vec::new(), gateways: [10; 2], known_since: 10, now_ms: 0 }
    }

    fn revision(&self) -> u64 {
        10 + self.history.len() as u64
    }

    /// The changes after a revision, up to another one.
    fn changes(&self, since: u64, revision: u64) -> &[(u32, Option<u8>)] {
        &self.history[(since - 10) as usize..(revision - 10) as usize]
    }

    /// The path to an instance at a revision.
    fn at(&self, number: u32, revision: u64) -> Option<Path> {
        let host = self.changes(10, revision).iter().rev().find(|(of, _)| *of == number)?.1?;
        Some(Path { by_network: true, ..path(host, revision) })
    }

    fn handle(&mut self, input: Input<'_>) -> Vec<Output> {
        let out = self.cache.handle(self.now_ms, input);
        apply(&mut self.table, &out, false);
        self.cache.table.check();
        out
    }

    fn step(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Change { number, host } => self.history.push((number, host)),
            Event::Learn(gateway) => self.gateways[gateway] = self.revision(),
            Event::Forget => self.known_since = self.revision(),
            Event::Notify { gateway, number } => {
                if let Some(path) = self.at(number, self.gateways[gateway]) {
                    self.handle(Input::Message(&notify(to(number), Answer::Path(path))));
                }
            }
            Event::Tick { answers } => {
                self.now_ms += 50;
                let mut waiting = self.handle(Input::Tick);
                // Answers lead to further questions, but not for ever.
                for _ in 0..8 {
                    let sent = std::mem::take(&mut waiting);
                    let sent = sent.iter().filter(|_| answers);
                    let received: Vec<_> = sent.filter_map(|output| self.answer(output)).collect();
                    for message in received {
                        waiting.extend(self.handle(Input::Message(&message)));
                    }
                }
                prop_assert!(
                    !waiting.iter().any(|it| matches!(it, Output::Send { .. })),
                    "questions without end"
                );
            }
        }
        Ok(())
    }

    fn answer(&self, output: &Output) -> Option<Message> {
        let Output::Send { to: gateway, message } = output else { return None };
        let revision = self.gateways[GATEWAYS.iter().position(|it| it == gateway)?];
        match message {
            Message::Request { id, queries, .. } => {
                let answer = |query: &Query| {
                    let number = (0..6).find(|number| to(*number) == query.destination)?;
                    Some(query.answer(self.at(number, revision).as_ref(), revision))
                };
                Some(Message::Reply { id: *id, answers: queries.iter().filter_map(answer).collect() })
            }
            Message::Reconcile { queries } => {
                let answers = queries.iter().flat_map(|query| self.answer_network(query, revision));
                Some(Message::Reconciled { answers: answers.collect() })
            }
            _ => None,
        }
    }

    fn answer_network(
        &self,
        &NetworkQuery { vni, since }: &NetworkQuery,
        revision: u64,
    ) -> Vec<NetworkAnswer> {
        if since > revision {
            return Vec::new();
        }
        if since < self.known_since {
            return vec![NetworkAnswer::Unknown { vni, since, revision }];
        }
        let changes = self.changes(since, revision);
        let changed = changes
            .iter()
            .map(|(number, _)| NetworkAnswer::Changed { vni, prefix: to(*number).address.into() });
        let current = NetworkAnswer::Current { vni, since, revision, changes: changes.len() as u16 };
        changed.chain([current]).collect()
    }

    /// Each path leads to where its instance is.
    fn check(&self) -> Result<(), TestCaseError> {
        for (destination, known) in &self.table {
            let number = (0..6).find(|number| to(*number) == *destination).unwrap();
            let right = self.at(number, self.revision());
            prop_assert_eq!(right.map(|path| next_hop(&path)), Some(next_hop(known)), "{}", number);
        }
        Ok(())
    }
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

    /// Two gateways learn of changes one after the other, and their answers may be lost. When both know all and answer, each path is
    /// soon the gateways' own, although most are not queried one by one.
    #[test]
    fn cache_follows_what_gateways_tell_by_network(steps in prop::collection::vec(any_event(), 1..200)) {
        let mut world = World::new();
        for event in steps {
            world.step(event)?;
        }
        world.gateways = [world.revision(); 2];
        let begun_ms = world.now_ms;
        // Longer than the longest interval between two queries, and shorter than that between two confirmations of a covered path.
        while world.now_ms < begun_ms + 2_500 {
            world.step(Event::Tick { answers: true })?;
        }
        world.check()?;
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
