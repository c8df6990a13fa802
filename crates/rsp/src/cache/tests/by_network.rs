//! Tests of paths that are confirmed by network.

use super::*;
use crate::message::NetworkAnswer;

fn covered(at: u8, revision: u64) -> Path {
    Path { by_network: true, ..path(at, revision) }
}

/// Queries about networks in outputs, each with the gateway that it is sent to.
fn asked(out: &[Output]) -> Vec<(IpAddr, NetworkQuery)> {
    out.iter()
        .filter_map(|output| match output {
            Output::Send { to, message: Message::Reconcile { queries } } => {
                Some(queries.iter().map(|query| (*to, *query)))
            }
            _ => None,
        })
        .flatten()
        .collect()
}

/// The revisions since which changes are asked for.
fn since(out: &[Output]) -> Vec<u64> {
    asked(out).iter().map(|(_, query)| query.since).collect()
}

fn told(answers: &[NetworkAnswer]) -> Message {
    Message::Reconciled { answers: answers.to_vec() }
}

fn unknown(since: u64, revision: u64) -> Message {
    told(&[NetworkAnswer::Unknown { vni: vni(7), since, revision }])
}

fn changed(prefixes: &[&str], since: u64, revision: u64) -> Message {
    let changes = prefixes.len() as u16;
    let changed =
        prefixes.iter().map(|prefix| NetworkAnswer::Changed { vni: vni(7), prefix: prefix.parse().unwrap() });
    let current = NetworkAnswer::Current { vni: vni(7), since, revision, changes };
    told(&changed.chain([current]).collect::<Vec<_>>())
}

fn paths(out: &[Output]) -> Vec<Query> {
    queries(out).into_iter().map(|(_, query)| query).collect()
}

/// A host with paths to the destinations 1 to 3, which its gateways tell changes of after revision 5.
fn host_with_paths() -> Host {
    let mut host = Host::new(Config { idle_ms: u64::MAX, ..Config::default() });
    (1..=3).for_each(|number| host.learn(0, to(number), covered(1, 5)));
    assert_eq!(since(&host.tick(50)), [0]);
    assert_eq!(paths(&host.receive(60, &unknown(0, 5))), []);
    // They are as new as what is told, once they are confirmed.
    let out = host.tick(100);
    assert_eq!((paths(&out).len(), asked(&out).len()), (3, 0));
    let unchanged = Answer::Unchanged { lifetime_ms: LIFETIME_MS, revision: 5 };
    (1..=3).for_each(|number| assert_eq!(host.receive(110, &reply(to(number), unchanged)), []));
    host
}

#[test]
fn one_question_confirms_all_paths_of_a_network() {
    let mut host = host_with_paths();
    let (mut of_paths, mut of_networks, mut revision) = (Vec::new(), Vec::new(), 5);
    for now_ms in (150..=20_000).step_by(50) {
        let out = host.tick(now_ms);
        for (gateway, query) in asked(&out) {
            assert!(GATEWAYS.contains(&gateway));
            assert_eq!(query, NetworkQuery { vni: vni(7), since: revision });
            of_networks.push(gateway);
            let next = revision + now_ms / 50 % 2;
            assert_eq!(host.receive(now_ms + 1, &changed(&[], revision, next)), []);
            revision = next;
        }
        for query in paths(&out) {
            // So that the gateway compares the path.
            assert_eq!(query.revision, 0);
            of_paths.push((now_ms, query.destination));
            let answer = reply(query.destination, Answer::Path(covered(1, revision)));
            assert_eq!(host.receive(now_ms + 2, &answer), []);
        }
    }
    assert!((130..=200).contains(&of_networks.len()), "{} questions in 20 s", of_networks.len());
    // Each gateway gets half of them: one may lag behind.
    assert!(of_networks.windows(2).all(|two| two[0] != two[1]));
    // Each path is confirmed every 4 to 5 s.
    assert!((3 * 3..=3 * 6).contains(&of_paths.len()), "{of_paths:?}");
    assert_eq!(host.cache.usage().paths, 3);
}

#[test]
fn changed_paths_are_queried_at_once_and_must_be_as_new_as_the_change() {
    let mut host = host_with_paths();
    assert_eq!(since(&host.tick(210)), [5]);
    let out = host.receive(211, &changed(&["10.0.0.2/31", "fd00::/8"], 5, 8));
    let query = |number| Query { destination: to(number), revision: 5 };
    assert_eq!(paths(&out), [query(2), query(3)]);
    assert_eq!(since(&out), []);
    // A gateway that does not have the change yet.
    for answer in [
        Answer::Path(covered(1, 7)),
        Answer::Absent { revision: 7 },
        Answer::Unchanged { lifetime_ms: 1, revision: 5 },
    ] {
        assert_eq!(host.receive(212, &reply(to(2), answer)), [], "{answer:?}");
    }
    assert_eq!(
        host.cache.path(&to(2)).map(|path| (path.host, path.lifetime_ms)),
        Some((super::host(1), LIFETIME_MS))
    );
    let moved = Output::Install { destination: to(2), path: covered(2, 8) };
    assert_eq!(host.receive(213, &reply(to(2), Answer::Path(covered(2, 8)))), [moved]);
    assert_eq!(
        host.receive(214, &reply(to(3), Answer::Absent { revision: 9 })),
        [removed(to(3), RemovalReason::Withdrawn)]
    );
    // Both that are left are told about again.
    for now_ms in [261, 311, 361] {
        assert_eq!(paths(&host.tick(now_ms)), [], "at {now_ms}");
    }
}

/// An answer with many changes is probably one of several.
#[test]
fn more_changes_are_asked_for_at_once() {
    let mut host = host_with_paths();
    host.tick(210);
    let changes: Vec<String> = (0..32).map(|last| format!("10.9.0.{last}/32")).collect();
    let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
    assert_eq!(since(&host.receive(211, &changed(&changes, 5, 8))), [8]);
    assert_eq!(since(&host.receive(212, &changed(&changes[1..], 8, 9))), []);
}

/// Another gateway may know what this one does not.
#[test]
fn an_unknown_change_is_asked_of_the_next_gateway() {
    let mut host = host_with_paths();
    let first = asked(&host.tick(210));
    assert_eq!(host.receive(211, &unknown(5, 9)), []);
    let second = asked(&host.tick(260));
    assert_eq!((first.len(), second.len(), second[0].1), (1, 1, first[0].1));
    assert_ne!(second[0].0, first[0].0);
    assert_eq!(paths(&host.receive(261, &changed(&["10.0.0.1/32"], 5, 9))).len(), 1);
}

#[test]
fn older_answers_do_not_replace_what_was_told() {
    let mut host = host_with_paths();
    host.tick(210);
    host.receive(211, &changed(&[], 5, 20));
    // The path is of revision 5, and has not changed until 20.
    for answer in [Answer::Path(covered(2, 19)), Answer::Absent { revision: 19 }] {
        assert_eq!(host.receive(212, &notify(to(1), answer)), []);
    }
    let out = host.receive(213, &redirect(to(1), 1));
    assert_eq!(out[0], removed(to(1), RemovalReason::Redirected));
    assert_eq!(host.receive(214, &reply(to(1), Answer::Path(covered(1, 20)))), []);
    let moved = Output::Install { destination: to(1), path: covered(2, 21) };
    assert_eq!(host.receive(215, &reply(to(1), Answer::Path(covered(2, 21)))), [moved]);
}

/// A change that was told before a path was learned is not told again.
#[test]
fn a_path_that_is_older_than_what_was_told_is_not_covered() {
    let mut host = host_with_paths();
    host.tick(210);
    host.receive(211, &changed(&[], 5, 20));
    host.learn(212, to(4), covered(1, 19));
    assert_eq!(paths(&host.tick(312)), [Query { destination: to(4), revision: 19 }]);
    host.receive(313, &reply(to(4), Answer::Path(covered(1, 20))));
    assert_eq!(paths(&host.tick(413)), []);
}

#[test]
fn paths_are_queried_one_by_one_when_gateways_do_not_tell_changes() {
    let mut host = host_with_paths();
    let (mut of_networks, mut of_paths) = (Vec::new(), Vec::new());
    for now_ms in (150..=6_000).step_by(50) {
        let out = host.tick(now_ms);
        of_networks.extend(asked(&out).iter().map(|_| now_ms));
        of_paths.extend(paths(&out).iter().map(|_| now_ms));
    }
    // From half a second after the last answer on, within a second.
    let first: Vec<_> = of_paths.iter().take(3).collect();
    assert!(first.iter().all(|at| (600..=1_650).contains(*at)), "{first:?}");
    assert_eq!(host.cache.stats().networks_silent, 1);
    // At first at each tick, and then once a second.
    let of_networks = |from, to| of_networks.iter().filter(|at| (from..to).contains(*at)).count();
    assert_eq!((of_networks(200, 1_150), of_networks(3_000, 6_000)), (19, 3));
    // A gateway answers again.
    host.receive(6_001, &unknown(0, 9));
    assert_eq!(since(&host.tick(6_102)), [9]);
}

#[test]
fn other_paths_are_queried_as_before() {
    let mut host = host_with_paths();
    host.learn(110, to(9), path(1, 5));
    for now_ms in [210, 260] {
        assert_eq!(paths(&host.tick(now_ms)), [Query { destination: to(9), revision: 5 }]);
    }
    // Nor is a network asked about that has no other paths.
    let mut host = Host::new(Config::default());
    host.learn(0, to(9), path(1, 5));
    assert_eq!(asked(&host.tick(100)), []);
}

#[test]
fn answers_that_are_incomplete_or_of_other_networks_change_nothing() {
    let mut host = host_with_paths();
    host.tick(210);
    let change = |number| NetworkAnswer::Changed { vni: vni(number), prefix: "10.0.0.0/8".parse().unwrap() };
    let current =
        |number, since, changes| NetworkAnswer::Current { vni: vni(number), since, revision: 9, changes };
    for answers in [
        // The other change is in another packet.
        vec![change(7), current(7, 5, 2)],
        vec![current(7, 5, 1)],
        vec![change(8), current(7, 5, 1)],
        // The answer to an earlier question.
        vec![change(7), current(7, 4, 1)],
        vec![change(8), current(8, 5, 1)],
        vec![change(7)],
        vec![NetworkAnswer::Unknown { vni: vni(7), since: 4, revision: 9 }],
        vec![NetworkAnswer::Unknown { vni: vni(8), since: 0, revision: 9 }],
    ] {
        assert_eq!(host.receive(211, &told(&answers)), [], "{answers:?}");
    }
    let out = host.tick(260);
    assert_eq!((since(&out), paths(&out), host.cache.stats().networks_unknown), (vec![5], Vec::new(), 1));
    let out = host.cache.handle_message(311, &changed(&["0.0.0.0/0"], 5, 9), &|_| false);
    assert_eq!((paths(&out), host.cache.stats().other_cluster), (Vec::new(), 1));
    assert_eq!(paths(&host.receive(312, &changed(&["0.0.0.0/0"], 5, 9))).len(), 3);
}

#[test]
fn a_network_without_paths_is_forgotten() {
    let mut host = host_with_paths();
    (1..=3).for_each(|number| drop(host.receive(120, &notify(to(number), Answer::Absent { revision: 5 }))));
    assert_eq!(host.tick(210), []);
    host.learn(300, to(1), covered(1, 9));
    assert_eq!(since(&host.tick(350)), [0]);
}
