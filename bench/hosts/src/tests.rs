use super::*;

fn small() -> Settings {
    let load = Load { vms: 3_000, changes_per_s: 40, ..Load::default() };
    Settings { seconds: 30, load }
}

/// Catches a simulation whose host does not follow changes, and one whose changes concern no path.
#[test]
fn paths_follow_instances_and_questions_do_not_depend_on_paths() {
    let ours = simulation::run(&small(), Reconciled::ByNetwork).unwrap();
    let theirs = simulation::run(&small(), Reconciled::OneByOne).unwrap();
    for outcome in [ours, theirs] {
        assert!((500.0..3_000.0).contains(&outcome.entries_mean), "{outcome:?}");
        // 40 of 3000 instances change in a second, and are followed within 100 to 150 ms.
        assert!((0.0002..0.003).contains(&outcome.wrong_share), "{outcome:?}");
    }
    // Each path every 4 to 5 s, beside every 100 ms, as answers take no time here.
    let each = [ours, theirs].map(|outcome| outcome.questions_per_s / outcome.entries_mean);
    assert!((0.2..0.5).contains(&each[0]), "{ours:?}");
    assert!((9.0..10.5).contains(&each[1]), "{theirs:?}");
}

/// The numbers of docs/decisions/rsp.md: catches a protocol that asks more than it says.
#[test]
fn gateways_of_10_000_hosts_are_asked_what_the_decision_says() {
    let quiet = scale::run(5, 0, Reconciled::ByNetwork).unwrap();
    let busy = scale::run(5, 600, Reconciled::ByNetwork).unwrap();
    let one_by_one = scale::run(1, 600, Reconciled::OneByOne).unwrap();
    let of_host = |all: f64| all / f64::from(scale::HOSTS);
    let is = |all: f64, least: f64, most: f64| {
        assert!((least..most).contains(&of_host(all)), "{}: {quiet:?} {busy:?}", of_host(all))
    };
    // One question in 150 ms while nothing changes, and three if 90 changes have come: 48 fit into an answer.
    is(quiet.networks, 6.4, 7.0);
    is(busy.networks, 18.0, 22.0);
    // 3,700 paths, each every 3.75 to 5 s; what changed is asked for again.
    is(quiet.paths, 830.0, 860.0);
    is(busy.paths, 835.0, 890.0);
    is(one_by_one.paths, 18_000.0, 20_700.0);
    // A packet with questions to each of two gateways in each round of 50 ms, those about the network, and those with permits.
    is(quiet.packets[0], 57.0, 65.0);
    is(busy.packets[0], 72.0, 83.0);
    is(quiet.permits, 600.0, 860.0);
    assert!((5.2e9..6.4e9).contains(&(quiet.bytes * 8.0)), "{quiet:?}");
    assert!((5.9e9..7.2e9).contains(&(busy.bytes * 8.0)), "{busy:?}");
    assert!(
        busy.processors > 0.0 && one_by_one.processors > 3.0 * busy.processors,
        "{busy:?} {one_by_one:?}"
    );
}

#[test]
fn popular_destinations_are_chosen_by_the_law_of_zipf() {
    let (zipf, mut random) = (load::Zipf::new(1_000), load::Random::new(1));
    let mut counts = [0u32; 1_000];
    (0..100_000).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
    // 1/7.485 and half of it; 100 times fewer for the hundredth.
    assert!(
        (13_000..13_800).contains(&counts[0]) && (6_400..7_000).contains(&counts[1]),
        "{:?}",
        &counts[..3]
    );
    assert!((90..180).contains(&counts[99]) && counts.iter().all(|count| *count < 13_800));
}
