//! Tests of the probes of other nodes, on virtual time.

use std::collections::BTreeSet;

use super::*;

const PERIOD_US: u64 = 5_000_000;
const LONG: (usize, usize) = (1472, 1452);

fn address(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

/// Links of 192.0.2.1 to gateways 11, 12 and hosts 21, 22.
fn links() -> Links {
    let mut links = Links::new(vec![address(1)], PERIOD_US, 7);
    let known = [(11, true), (12, true), (21, false), (22, false), (1, false)];
    links.set_known(0, &known.map(|(last, is_gateway)| (address(last), is_gateway)));
    links
}

/// Runs for a time; `rtt_us` says how long a probe takes, `None` if it is lost. Returns the probes with their times.
fn run(
    links: &mut Links,
    from_us: u64,
    seconds: u64,
    mut rtt_us: impl FnMut(&LinkProbe) -> Option<u64>,
) -> Vec<(u64, LinkProbe)> {
    let (mut probes, mut transit) = (Vec::new(), Vec::<(u64, LinkProbe)>::new());
    let mut count = 0_u64;
    for step in 0..seconds * 1000 {
        let now_us = from_us + step * 1000;
        for (_, probe) in transit.extract_if(.., |(at_us, _)| *at_us <= now_us) {
            links.answer(now_us, probe.to, &probe.nonce);
        }
        let nonce = || {
            count += 1;
            Some(std::array::from_fn(|at| (count >> (8 * (at % 8))) as u8))
        };
        for probe in links.take_due(now_us, LONG, nonce) {
            transit.extend(rtt_us(&probe).map(|rtt_us| (now_us + rtt_us, probe)));
            probes.push((now_us, probe));
        }
    }
    probes
}

#[test]
fn each_node_is_probed_once_in_a_period_and_every_fourth_time_with_the_mtu() {
    let mut links = links();
    let probes = run(&mut links, 0, 400, |_| Some(1000));
    for last in [11, 12, 21, 22] {
        let to: Vec<_> = probes.iter().filter(|(_, probe)| probe.to == address(last)).collect();
        assert!((70..90).contains(&to.len()), "{} probes of {last}", to.len());
        let long = to.iter().filter(|(_, probe)| probe.bytes == LONG.0).count();
        assert_eq!(long, to.len() / 4);
        assert!(to.iter().all(|(_, probe)| [ECHO_BYTES_MIN, LONG.0].contains(&probe.bytes)));
        let gaps: BTreeSet<u64> = to.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps.len() > 20, "they are jittered: {gaps:?}");
    }
    assert_eq!((links.lost(), links.symptoms()), (0, vec![]));
    let list = links.list();
    assert_eq!(list.iter().filter(|link| link.gateway).count(), 2);
    assert!(list.iter().all(|link| link.loss_permille == 0 && link.rtt_us == 1000), "{list:?}");
}

/// A simulated hour with noise: lost probes, some slow ones, a node that is down. Catches thresholds without margin.
#[test]
fn a_quiet_hour_raises_nothing() {
    for seed in 0..20 {
        let (mut links, mut random) = (links(), Random::new(seed));
        let noise = |probe: &LinkProbe| match random.number() % 1000 {
            _ if probe.to == address(22) => None,
            0..3 => None,
            3..8 => Some(150_000),
            other => Some(200 + other * 20),
        };
        let mut rtt_us = noise;
        for minute in 0..60 {
            run(&mut links, minute * 60_000_000, 60, &mut rtt_us);
            assert_eq!(links.symptoms(), [], "seed {seed}, minute {minute}");
        }
        assert!(links.lost() > 0);
    }
}

#[test]
fn losses_and_delays_of_most_nodes_are_found() {
    for lossy in [false, true] {
        let mut links = links();
        run(&mut links, 0, 60, |_| Some(500));
        // One node is not most of them.
        run(&mut links, 60_000_000, 60, |probe| (probe.to != address(11)).then_some(500));
        assert_eq!(links.symptoms(), []);
        run(&mut links, 120_000_000, 60, |_| (!lossy).then_some(300_000));
        let found = links.symptoms();
        assert_eq!(
            (found.len(), found[0].rule, &found[0].subject),
            (1, Rule::PeersLost, &HealthSubject::Node)
        );
        assert!(found[0].evidence.starts_with("4 of 4 peers"), "{}", found[0].evidence);
        // This node itself was the reason, and is in order again.
        links.discard();
        assert_eq!(links.symptoms(), []);
        run(&mut links, 180_000_000, 60, |_| Some(500));
        assert_eq!(links.symptoms(), []);
    }
}

#[test]
fn nodes_that_never_answered_are_not_judged() {
    let mut links = links();
    run(&mut links, 0, 600, |_| None);
    assert_eq!(links.symptoms(), []);
    assert_eq!(links.list(), [], "the controller would take them for nodes that are down");
}

#[test]
fn a_path_with_a_smaller_mtu_is_found() {
    let mut links = links();
    run(&mut links, 0, 120, |probe| (probe.to != address(21) || probe.bytes < 100).then_some(500));
    let found = links.symptoms();
    assert_eq!((found.len(), found[0].rule), (1, Rule::PathMtu));
    assert_eq!(found[0].subject, HealthSubject::Peer(address(21)));
}

/// Catches results of a burst that are judged when it is over: this node was the reason of them.
#[test]
fn what_was_measured_while_this_node_was_at_fault_is_never_judged() {
    let mut links = links();
    run(&mut links, 0, 60, |_| Some(500));
    run(&mut links, 60_000_000, 60, |probe| (probe.bytes < 100).then_some(300_000));
    links.discard();
    for second in 120..180 {
        run(&mut links, second * 1_000_000, 1, |_| Some(500));
        assert_eq!(links.symptoms(), [], "second {second}");
    }
    // What is lost afterwards is judged.
    run(&mut links, 180_000_000, 60, |_| None);
    assert_eq!(links.symptoms().len(), 1);
}

/// Catches a node that is reported as down after its first lost probe.
#[test]
fn one_lost_probe_is_no_loss_of_all() {
    let mut links = links();
    let mut lose = |count: usize| {
        let peer = links.peers.get_mut(&address(11)).unwrap();
        peer.has_answered = true;
        (0..count).for_each(|_| peer.note(false, None));
        links.list()[0].loss_permille
    };
    assert_eq!([lose(1), lose(2), lose(1), lose(20)], [250, 750, 1000, 1000]);
}

/// Catches an answer that is taken without its nonce, twice, or late.
#[test]
fn only_the_awaited_answer_counts() {
    let mut links = links();
    let mut nonces = 0_u8;
    let mut probes = Vec::new();
    let mut now_us = 0;
    while probes.is_empty() {
        now_us = links.due_us().unwrap();
        probes = links.take_due(now_us, LONG, || {
            nonces += 1;
            Some([nonces; 16])
        });
    }
    let LinkProbe { to, nonce, .. } = probes[0];
    let rtt = |links: &Links| links.list().iter().find(|link| link.peer == to).map_or(0, |link| link.rtt_us);
    links.answer(now_us + 10, to, &[0; 16]);
    links.answer(now_us + 10, address(99), &nonce);
    links.answer(now_us + TIMEOUT_US, to, &nonce);
    assert_eq!(rtt(&links), 0);
    links.answer(now_us + 20, to, &nonce);
    links.answer(now_us + 90, to, &nonce);
    assert_eq!(rtt(&links), 20);
}

/// Catches a choice that leaves hosts unwatched, or that some host must bear.
#[test]
fn hosts_are_watched_by_about_as_many_as_they_watch() {
    let hosts: Vec<IpAddr> = (0..200_u8).map(|number| [10, 0, 1, number].into()).collect();
    let known: Vec<_> = hosts.iter().map(|host| (*host, false)).collect();
    let mut watched = BTreeMap::<IpAddr, usize>::new();
    for own in &hosts {
        let mut links = Links::new(vec![*own], PERIOD_US, 1);
        links.set_known(0, &known);
        let chosen: BTreeSet<IpAddr> = links.peers.keys().copied().collect();
        assert_eq!(chosen.len(), HOSTS_MAX);
        chosen.iter().for_each(|peer| *watched.entry(*peer).or_default() += 1);
        // The choice stays while the nodes stay, and changes little with them.
        links.set_known(0, &known[..199]);
        let same = links.peers.keys().filter(|peer| chosen.contains(*peer)).count();
        assert!(same >= HOSTS_MAX - 1);
    }
    assert!(watched.len() >= hosts.len() - 2, "only {} hosts are watched", watched.len());
    assert!(watched.values().all(|count| *count <= 25), "{watched:?}");
}

#[test]
fn nodes_of_another_family_are_not_watched_and_the_number_is_limited() {
    let mut links = Links::new(vec![address(1)], PERIOD_US, 1);
    let gateways = (0..100_u8).map(|last| ([10, 0, 0, last].into(), true));
    let known: Vec<(IpAddr, bool)> = gateways.chain([("2001:db8::1".parse().unwrap(), true)]).collect();
    links.set_known(0, &known);
    assert_eq!(links.peers.len(), GATEWAYS_MAX);
    assert!(links.peers.keys().all(IpAddr::is_ipv4));
    links.set_known(0, &[]);
    assert_eq!((links.peers.len(), links.due_us()), (0, None));
}
