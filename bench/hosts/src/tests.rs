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
