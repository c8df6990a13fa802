//! A host at 192.0.2.21 with an instance in network 1; network 2 lingers.

use super::*;
use sluice_rsp::Ask;
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

fn network(number: u32, used: bool) -> Network {
    Network { vni: vni(number), cluster: CLUSTER, gateways: vec![ip(GATEWAY)], used }
}

fn path(host: &str, revision: u64) -> Path {
    Path { host: ip(host), mac: MacAddr::local(5), vni: vni(1), lifetime_ms: 60_000, revision }
}

fn notify(destination: Destination, path: Path) -> Message {
    Message::Notify { answers: vec![Answered { destination, answer: Answer::Path(path) }] }
}

fn keeper() -> Keeper {
    let mut keeper = Keeper::new(Config::default(), ip(OWN), 0);
    let none = keeper.set_networks(0, 3, vec![network(1, true), network(2, false)]);
    assert_eq!(none, Reaction::default());
    keeper
}

fn hear(keeper: &mut Keeper, now_ms: u64, message: Message) -> Reaction {
    let mut reaction = Reaction::default();
    keeper.hear(now_ms, CLUSTER, message, &mut reaction);
    reaction
}

/// The same, under another cluster's key.
fn hear_of(keeper: &mut Keeper, now_ms: u64, cluster: u32, message: Message) -> Reaction {
    let mut reaction = Reaction::default();
    keeper.hear(now_ms, cluster, message, &mut reaction);
    reaction
}

#[test]
fn a_key_speaks_for_the_networks_of_its_cluster() {
    let mut keeper = keeper();
    let on = |number, cluster| Network { cluster, ..network(number, true) };
    keeper.set_networks(0, 3, vec![on(1, CLUSTER), on(3, 8)]);
    let (destination, other) = (to(1, "10.0.0.5"), to(3, "10.0.0.5"));
    let lie = hear_of(&mut keeper, 0, 8, notify(destination, path(THIRD, 9)));
    assert_eq!((lie, keeper.fill().0, keeper.stats().0.other_cluster), (Reaction::default(), 0, 1));
    hear(&mut keeper, 0, notify(destination, path(OTHER, 4)));
    hear_of(&mut keeper, 0, 8, notify(other, path(OTHER, 4)));
    assert_eq!(keeper.fill().0, 2);
    // Nor does it take paths back, or disown them: both lead into network 1.
    let absent = Answered { destination, answer: Answer::Absent { revision: 99 } };
    let gone = Message::Reply { id: 1, answers: vec![absent] };
    assert_eq!(hear_of(&mut keeper, 0, 8, gone).changes, []);
    let moved = Message::Redirect { moved: vec![Moved { destination, host: ip(OTHER), ask: ip(GATEWAY) }] };
    let removed = hear_of(&mut keeper, 0, 8, moved.clone()).changes;
    assert_eq!(removed, [Change::Remove(other, Why::Redirected)], "only its own network's");
    assert_eq!(hear(&mut keeper, 0, moved).changes, [Change::Remove(destination, Why::Redirected)]);
    // While the network changes to another cluster both speak for it, and then only that.
    keeper.set_networks(1000, 3, vec![on(1, 8)]);
    let learned = |keeper: &mut Keeper, now_ms, cluster, revision| {
        let notify = notify(to(1, "10.0.0.6"), path(OTHER, revision));
        hear_of(keeper, now_ms, cluster, notify);
        keeper.paths().map(|(_, path)| path.revision).max()
    };
    assert_eq!(learned(&mut keeper, 1001, CLUSTER, 5), Some(5));
    assert_eq!(learned(&mut keeper, 1002, 8, 6), Some(6));
    assert_eq!(learned(&mut keeper, 1002, 9, 7), Some(6));
    assert_eq!(learned(&mut keeper, 1000 + CHANGING_MS, CLUSTER, 7), Some(6));
    assert_eq!(learned(&mut keeper, 1000 + CHANGING_MS, 8, 7), Some(7));
}

fn install(destination: Destination, path: Path) -> Reaction {
    Reaction { changes: vec![Change::Install(destination, path)], messages: vec![] }
}

#[test]
fn paths_are_installed_confirmed_and_given_up() {
    let mut keeper = keeper();
    for destination in [to(1, "10.0.0.5"), to(1, "fd00::5")] {
        assert_eq!(
            hear(&mut keeper, 0, notify(destination, path(OTHER, 4))),
            install(destination, path(OTHER, 4))
        );
    }
    assert_eq!(keeper.fill().0, 2);
    // Asked about when it is due, of its network's gateway with its cluster's key.
    let mut reaction = Reaction::default();
    let mut now_ms = 0;
    while reaction.messages.is_empty() {
        now_ms = keeper.wake_ms().unwrap();
        assert!(now_ms <= 150);
        keeper.tick(now_ms, &mut reaction);
    }
    let asks = [to(1, "10.0.0.5"), to(1, "fd00::5")].map(|destination| Ask { destination, revision: 4 });
    let [(CLUSTER, gateway, Message::Request { asks: asked, .. })] = reaction.messages.as_slice() else {
        panic!("{reaction:?}");
    };
    assert_eq!((*gateway, asked.as_slice()), (ip(GATEWAY), asks.as_slice()));
    // It moved.
    let destination = to(1, "10.0.0.5");
    assert_eq!(
        hear(&mut keeper, now_ms, notify(destination, path(THIRD, 5))),
        install(destination, path(THIRD, 5))
    );
    // Its network is this host's no more.
    let gone = keeper.set_networks(now_ms, 3, vec![network(1, false), network(2, false)]);
    let why = Why::Network;
    let removals = [to(1, "10.0.0.5"), to(1, "fd00::5")].map(|destination| Change::Remove(destination, why));
    assert_eq!(gone, Reaction { changes: removals.to_vec(), messages: vec![] });
    assert_eq!((keeper.fill().0, keeper.stats().1.network), (0, 2));
}

#[test]
fn what_this_host_cannot_use_is_no_path() {
    let mut keeper = keeper();
    let destination = to(1, "10.0.0.5");
    for host in [OWN, "2001:db8::23"] {
        assert_eq!(hear(&mut keeper, 0, notify(destination, path(host, 4))), Reaction::default(), "{host}");
    }
    hear(&mut keeper, 0, notify(destination, path(OTHER, 4)));
    // It came here: then its own port is the way, and the path goes.
    let gone = hear(&mut keeper, 0, notify(destination, path(OWN, 5)));
    assert_eq!(gone.changes, [Change::Remove(destination, Why::Withdrawn)]);
    assert_eq!(keeper.stats().1.impossible, 3);
    // A network without an instance here, and one that nobody knows.
    for number in [2, 9] {
        assert_eq!(hear(&mut keeper, 0, notify(to(number, "10.0.0.5"), path(OTHER, 4))), Reaction::default());
    }
}

#[test]
fn another_database_makes_all_revisions_void() {
    let mut keeper = keeper();
    let destination = to(1, "10.0.0.5");
    hear(&mut keeper, 0, notify(destination, path(OTHER, 4000)));
    let networks = vec![network(1, true), network(2, false)];
    assert_eq!(keeper.set_networks(0, 3, networks.clone()), Reaction::default());
    // Unknown while the first snapshot is under way.
    assert_eq!(keeper.set_networks(0, 0, networks.clone()), Reaction::default());
    let gone = keeper.set_networks(0, 4, networks);
    assert_eq!(gone.changes, [Change::Remove(destination, Why::Network)]);
    assert_eq!(
        hear(&mut keeper, 0, notify(destination, path(THIRD, 5))),
        install(destination, path(THIRD, 5))
    );
}

#[test]
fn what_was_left_by_a_predecessor_is_asked_about_and_goes_when_it_is_not_used() {
    let mut keeper = keeper();
    let destination = to(1, "10.0.0.5");
    assert_eq!(keeper.adopt(0, &[(destination, path(OTHER, 0))]), Reaction::default());
    let mut reaction = Reaction::default();
    keeper.tick(keeper.wake_ms().unwrap(), &mut reaction);
    let asks = vec![Ask { destination, revision: 0 }];
    assert!(matches!(&reaction.messages[..], [(CLUSTER, _, Message::Request { asks: a, .. })] if *a == asks));
    // What the tables have, and nobody knows.
    let stray = keeper.note_use(100, &[(destination, 50), (to(1, "10.0.0.6"), 50)]);
    assert_eq!(stray.changes, [Change::Remove(to(1, "10.0.0.6"), Why::Stray)]);
    let confirm = |keeper: &mut Keeper, now_ms| {
        hear(keeper, now_ms, notify(destination, path(OTHER, now_ms)));
        keeper.note_use(now_ms, &[(destination, 50)])
    };
    for now_ms in (1000..30_000).step_by(5000) {
        assert_eq!(confirm(&mut keeper, now_ms), Reaction::default());
    }
    let mut reaction = Reaction::default();
    keeper.tick(31_000, &mut reaction);
    assert_eq!(reaction.changes, [Change::Remove(destination, Why::Idle)]);
}

#[test]
fn senders_are_told_who_has_left_once_in_a_while() {
    let mut keeper = keeper();
    let (a, b) = (to(2, "10.0.0.5"), to(2, "fd00::5"));
    for now_us in [0, 50, 99_999] {
        keeper.note_stray(now_us, a, ip(OTHER));
        keeper.note_stray(now_us, b, ip(OTHER));
    }
    keeper.note_stray(50, a, ip(THIRD));
    assert_eq!(keeper.redirects_due_us(), Some(0));
    let mut reaction = Reaction::default();
    keeper.take_redirects(60, &mut reaction);
    let moved = |destination| Moved { destination, host: ip(OWN), ask: ip(GATEWAY) };
    assert_eq!(
        reaction.messages,
        [
            (CLUSTER, ip(OTHER), Message::Redirect { moved: vec![moved(a), moved(b)] }),
            (CLUSTER, ip(THIRD), Message::Redirect { moved: vec![moved(a)] }),
        ]
    );
    keeper.note_stray(100_000, a, ip(OTHER));
    assert_eq!(keeper.redirects_due_us(), Some(1060));
    // Of a network that is not here nobody can be told whom to ask.
    keeper.note_stray(200_000, to(9, "10.0.0.5"), ip(OTHER));
    let Counts { redirects, redirects_repeated, redirects_unknown, .. } = keeper.stats().1;
    assert_eq!((redirects, redirects_repeated, redirects_unknown), (4, 4, 1));
}

#[test]
fn a_redirected_path_goes_and_its_gateway_is_asked() {
    let mut keeper = keeper();
    let destination = to(1, "10.0.0.5");
    hear(&mut keeper, 0, notify(destination, path(OTHER, 4)));
    let redirect = |ask: &str| {
        let moved = vec![Moved { destination, host: ip(OTHER), ask: ip(ask) }];
        Message::Redirect { moved }
    };
    let reaction = hear(&mut keeper, 10, redirect(GATEWAY));
    assert_eq!(reaction.changes, [Change::Remove(destination, Why::Redirected)]);
    assert!(matches!(&reaction.messages[..], [(CLUSTER, to, Message::Request { .. })] if *to == ip(GATEWAY)));
    // Somebody who is no gateway is not asked, whoever names him.
    hear(&mut keeper, 20, notify(destination, path(OTHER, 5)));
    let reaction = hear(&mut keeper, 30, redirect("192.0.2.99"));
    assert_eq!(reaction.messages, []);
}

#[test]
fn what_this_host_wants_is_asked_for_once() {
    let mut keeper = keeper();
    let mut reaction = Reaction::default();
    let wanted = to(1, "10.0.0.5");
    keeper.want(1, &[wanted, wanted, to(9, "10.0.0.5")], &mut reaction);
    let [(CLUSTER, asked, Message::Request { id, asks })] = reaction.messages.as_slice() else {
        panic!("{reaction:?}")
    };
    assert_eq!(
        (*asked, asks.as_slice(), reaction.changes.len()),
        (ip(GATEWAY), [Ask { destination: wanted, revision: 0 }].as_slice(), 0)
    );
    let answers = vec![Answered { destination: wanted, answer: Answer::Path(path(OTHER, 5)) }];
    let reply = Message::Reply { id: *id, answers };
    assert_eq!(hear(&mut keeper, 2, reply).changes, [Change::Install(wanted, path(OTHER, 5))]);
    // The next period's event, of a path that is there.
    let mut again = Reaction::default();
    keeper.want(1_000, &[wanted], &mut again);
    assert_eq!(again, Reaction::default());
}
