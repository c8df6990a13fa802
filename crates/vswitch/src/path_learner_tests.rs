//! A host at 192.0.2.21 with an instance in network 1; the removal of network 2 is delayed.

use super::*;
use sluice_rsp::{Query, Reception, RedirectEntry};
use sluice_types::MacAddr;

const OWN: &str = "192.0.2.21";
const OTHER: &str = "192.0.2.22";
const THIRD: &str = "192.0.2.23";
const GATEWAY: &str = "192.0.2.11";
const CLUSTER: u32 = 7;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn to(number: u32, address: &str) -> Destination {
    Destination { vni: vni(number), address: ip(address) }
}

fn network(number: u32, has_instance: bool) -> Network {
    Network { vni: vni(number), cluster: CLUSTER, gateways: vec![ip(GATEWAY)], has_instance }
}

fn path(host: &str, revision: u64) -> Path {
    Path {
        host: ip(host),
        mac: MacAddr::local(5),
        vni: vni(1),
        lifetime_ms: 60_000,
        revision,
        by_network: false,
        reception: Reception::default(),
    }
}

fn notify(destination: Destination, path: Path) -> Message {
    Message::Notify { answers: vec![AnswerEntry { destination, answer: Answer::Path(path) }] }
}

fn learner() -> PathLearner {
    let mut learner = PathLearner::new(Config::default(), ip(OWN), 0);
    let actions = learner.set_networks(0, 3, vec![network(1, true), network(2, false)]);
    assert_eq!(actions, Actions::default());
    learner
}

fn receive(learner: &mut PathLearner, now_ms: u64, message: Message) -> Actions {
    receive_from(learner, now_ms, CLUSTER, message)
}

/// Receives a message that was sealed with the key of a cluster.
fn receive_from(learner: &mut PathLearner, now_ms: u64, cluster: u32, message: Message) -> Actions {
    let mut actions = Actions::default();
    learner.handle_message(now_ms, cluster, message, &mut actions);
    actions
}

#[test]
fn messages_are_accepted_only_about_networks_of_their_cluster() {
    let mut learner = learner();
    let on = |number, cluster| Network { cluster, ..network(number, true) };
    learner.set_networks(0, 3, vec![on(1, CLUSTER), on(3, 8)]);
    let (destination, other) = (to(1, "10.0.0.5"), to(3, "10.0.0.5"));
    let foreign = receive_from(&mut learner, 0, 8, notify(destination, path(THIRD, 9)));
    assert_eq!((foreign, learner.fill().0, learner.stats().0.other_cluster), (Actions::default(), 0, 1));
    receive(&mut learner, 0, notify(destination, path(OTHER, 4)));
    receive_from(&mut learner, 0, 8, notify(other, path(OTHER, 4)));
    assert_eq!(learner.fill().0, 2);
    // Nor can the other cluster withdraw or redirect the path of this network.
    let absent = AnswerEntry { destination, answer: Answer::Absent { revision: 99 } };
    let withdrawal = Message::Reply { id: 1, answers: vec![absent] };
    assert_eq!(receive_from(&mut learner, 0, 8, withdrawal).changes, []);
    let moved = Message::Redirect {
        entries: vec![RedirectEntry { destination, host: ip(OTHER), gateway: ip(GATEWAY) }],
    };
    let removed = receive_from(&mut learner, 0, 8, moved.clone()).changes;
    assert_eq!(
        removed,
        [PathChange::Remove(other, RemovalReason::Redirected)],
        "only the path of its own network"
    );
    assert_eq!(
        receive(&mut learner, 0, moved).changes,
        [PathChange::Remove(destination, RemovalReason::Redirected)]
    );
    // After the network has changed to another cluster both are accepted for a minute, and then only the new
    // one.
    learner.set_networks(1000, 3, vec![on(1, 8)]);
    let learned = |learner: &mut PathLearner, now_ms, cluster, revision| {
        let notify = notify(to(1, "10.0.0.6"), path(OTHER, revision));
        receive_from(learner, now_ms, cluster, notify);
        learner.paths().map(|(_, path)| path.revision).max()
    };
    assert_eq!(learned(&mut learner, 1001, CLUSTER, 5), Some(5));
    assert_eq!(learned(&mut learner, 1002, 8, 6), Some(6));
    assert_eq!(learned(&mut learner, 1002, 9, 7), Some(6));
    assert_eq!(learned(&mut learner, 1000 + CLUSTER_CHANGE_MS, CLUSTER, 7), Some(6));
    assert_eq!(learned(&mut learner, 1000 + CLUSTER_CHANGE_MS, 8, 7), Some(7));
}

fn install(destination: Destination, path: Path) -> Actions {
    Actions { changes: vec![PathChange::Install(destination, path)], messages: vec![] }
}

#[test]
fn paths_are_installed_confirmed_and_removed_with_their_network() {
    let mut learner = learner();
    for destination in [to(1, "10.0.0.5"), to(1, "fd00::5")] {
        assert_eq!(
            receive(&mut learner, 0, notify(destination, path(OTHER, 4))),
            install(destination, path(OTHER, 4))
        );
    }
    assert_eq!(learner.fill().0, 2);
    // Confirmation is requested from the gateway of the network, with the key of its cluster.
    let mut actions = Actions::default();
    let mut now_ms = 0;
    while actions.messages.is_empty() {
        now_ms = learner.timer_ms().unwrap();
        assert!(now_ms <= 150);
        learner.handle_timer(now_ms, &mut actions);
    }
    let queries = [to(1, "10.0.0.5"), to(1, "fd00::5")].map(|destination| Query { destination, revision: 4 });
    let [(CLUSTER, gateway, Message::Request { queries: sent, .. })] = actions.messages.as_slice() else {
        panic!("{actions:?}");
    };
    assert_eq!((*gateway, sent.as_slice()), (ip(GATEWAY), queries.as_slice()));
    // The destination moves.
    let destination = to(1, "10.0.0.5");
    assert_eq!(
        receive(&mut learner, now_ms, notify(destination, path(THIRD, 5))),
        install(destination, path(THIRD, 5))
    );
    // The last instance of the network leaves this host.
    let actions = learner.set_networks(now_ms, 3, vec![network(1, false), network(2, false)]);
    let reason = RemovalReason::NetworkRemoved;
    let removals =
        [to(1, "10.0.0.5"), to(1, "fd00::5")].map(|destination| PathChange::Remove(destination, reason));
    assert_eq!(actions, Actions { changes: removals.to_vec(), messages: vec![] });
    assert_eq!((learner.fill().0, learner.stats().1.network), (0, 2));
}

#[test]
fn paths_that_this_host_cannot_use_are_ignored() {
    let mut learner = learner();
    let destination = to(1, "10.0.0.5");
    for host in [OWN, "2001:db8::23"] {
        assert_eq!(
            receive(&mut learner, 0, notify(destination, path(host, 4))),
            Actions::default(),
            "{host}"
        );
    }
    receive(&mut learner, 0, notify(destination, path(OTHER, 4)));
    // The destination comes to this host: its port is used, and the path is removed.
    let actions = receive(&mut learner, 0, notify(destination, path(OWN, 5)));
    assert_eq!(actions.changes, [PathChange::Remove(destination, RemovalReason::Withdrawn)]);
    assert_eq!(learner.stats().1.impossible, 3);
    // A network without an instance on this host, and an unknown one.
    for number in [2, 9] {
        assert_eq!(
            receive(&mut learner, 0, notify(to(number, "10.0.0.5"), path(OTHER, 4))),
            Actions::default()
        );
    }
}

#[test]
fn change_of_the_database_removes_all_paths() {
    let mut learner = learner();
    let destination = to(1, "10.0.0.5");
    receive(&mut learner, 0, notify(destination, path(OTHER, 4000)));
    let networks = vec![network(1, true), network(2, false)];
    assert_eq!(learner.set_networks(0, 3, networks.clone()), Actions::default());
    // The database is unknown during the first snapshot.
    assert_eq!(learner.set_networks(0, 0, networks.clone()), Actions::default());
    let actions = learner.set_networks(0, 4, networks);
    assert_eq!(actions.changes, [PathChange::Remove(destination, RemovalReason::NetworkRemoved)]);
    assert_eq!(
        receive(&mut learner, 0, notify(destination, path(THIRD, 5))),
        install(destination, path(THIRD, 5))
    );
}

#[test]
fn adopted_paths_are_confirmed_and_removed_when_idle() {
    let mut learner = learner();
    let destination = to(1, "10.0.0.5");
    assert_eq!(learner.adopt(0, &[(destination, path(OTHER, 0))]), Actions::default());
    let mut actions = Actions::default();
    learner.handle_timer(learner.timer_ms().unwrap(), &mut actions);
    let queries = vec![Query { destination, revision: 0 }];
    assert!(
        matches!(&actions.messages[..], [(CLUSTER, _, Message::Request { queries: a, .. })] if *a == queries)
    );
    // A path that is in the tables, but not in the cache.
    let stray = learner.note_use(100, &[(destination, 50), (to(1, "10.0.0.6"), 50)]);
    assert_eq!(stray.changes, [PathChange::Remove(to(1, "10.0.0.6"), RemovalReason::Orphaned)]);
    let confirm = |learner: &mut PathLearner, now_ms| {
        receive(learner, now_ms, notify(destination, path(OTHER, now_ms)));
        learner.note_use(now_ms, &[(destination, 50)])
    };
    for now_ms in (1000..30_000).step_by(5000) {
        assert_eq!(confirm(&mut learner, now_ms), Actions::default());
    }
    let mut actions = Actions::default();
    learner.handle_timer(31_000, &mut actions);
    assert_eq!(actions.changes, [PathChange::Remove(destination, RemovalReason::Idle)]);
}

#[test]
fn senders_of_stray_packets_are_redirected_once_per_quiet_time() {
    let mut learner = learner();
    let (a, b) = (to(2, "10.0.0.5"), to(2, "fd00::5"));
    for now_us in [0, 50, 99_999] {
        learner.note_stray(now_us, a, ip(OTHER));
        learner.note_stray(now_us, b, ip(OTHER));
    }
    learner.note_stray(50, a, ip(THIRD));
    assert_eq!(learner.redirects_due_us(), Some(0));
    let mut actions = Actions::default();
    learner.take_redirects(60, &mut actions);
    // Redirecting is the task of a gateway, in one message for all senders.
    let stray = |destination, sender| StrayEntry { destination, host: ip(sender) };
    let entries = vec![stray(a, OTHER), stray(b, OTHER), stray(a, THIRD)];
    assert_eq!(actions.messages, [(CLUSTER, ip(GATEWAY), Message::Stray { entries })]);
    learner.note_stray(100_000, a, ip(OTHER));
    assert_eq!(learner.redirects_due_us(), Some(1060));
    // In an unknown network there is no gateway that a redirection could name.
    learner.note_stray(200_000, to(9, "10.0.0.5"), ip(OTHER));
    let LearnerCounts { redirects, redirects_repeated, redirects_unknown, .. } = learner.stats().1;
    assert_eq!((redirects, redirects_repeated, redirects_unknown), (4, 4, 1));
}

#[test]
fn redirected_path_is_removed_and_requested_from_its_gateway() {
    let mut learner = learner();
    let destination = to(1, "10.0.0.5");
    receive(&mut learner, 0, notify(destination, path(OTHER, 4)));
    let redirect = |gateway: &str| {
        let entries = vec![RedirectEntry { destination, host: ip(OTHER), gateway: ip(gateway) }];
        Message::Redirect { entries }
    };
    let actions = receive(&mut learner, 10, redirect(GATEWAY));
    assert_eq!(actions.changes, [PathChange::Remove(destination, RemovalReason::Redirected)]);
    assert!(matches!(&actions.messages[..], [(CLUSTER, to, Message::Request { .. })] if *to == ip(GATEWAY)));
    // An address that is not a gateway's gets no request, even if a redirection names it.
    receive(&mut learner, 20, notify(destination, path(OTHER, 5)));
    let actions = receive(&mut learner, 30, redirect("192.0.2.99"));
    assert_eq!(actions.messages, []);
}

#[test]
fn path_to_an_elephants_destination_is_requested_once() {
    let mut learner = learner();
    let mut actions = Actions::default();
    let destination = to(1, "10.0.0.5");
    learner.request_paths(1, &[destination, destination, to(9, "10.0.0.5")], &mut actions);
    let [(CLUSTER, receiver, Message::Request { id, queries, .. })] = actions.messages.as_slice() else {
        panic!("{actions:?}")
    };
    assert_eq!(
        (*receiver, queries.as_slice(), actions.changes.len()),
        (ip(GATEWAY), [Query { destination, revision: 0 }].as_slice(), 0)
    );
    let answers = vec![AnswerEntry { destination, answer: Answer::Path(path(OTHER, 5)) }];
    let reply = Message::Reply { id: *id, answers };
    assert_eq!(receive(&mut learner, 2, reply).changes, [PathChange::Install(destination, path(OTHER, 5))]);
    // The event of the next period, when there is a path.
    let mut again = Actions::default();
    learner.request_paths(1_000, &[destination], &mut again);
    assert_eq!(again, Actions::default());
}
