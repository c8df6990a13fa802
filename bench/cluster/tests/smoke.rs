//! Runs all parts that need no lab at a small size. The figures must exist and have possible values; what labs do is
//! tested by the scenarios.

use sluice_bench_cluster::{Settings, run};

#[test]
fn all_parts_run_and_give_their_figures() {
    let parts =
        ["rgcm", "push", "launch", "slow_nodes", "burst", "steady", "detection"].map(str::to_owned).to_vec();
    let outcome = run(&settings(parts)).expect("as root, on two cores");
    let row = |name: &str| {
        let found = outcome.measures.iter().find(|measure| measure.measure == name);
        found.unwrap_or_else(|| panic!("{name} was not measured"))
    };
    for name in [
        "rgcm_1885_s",
        "rgcm_10k_tenants_s",
        "rgcm_lp_471_s",
        "rgcm_471_s",
        "push_10k_45gw_s",
        "push_100k_45gw_s",
        "push_100k_45gw_cpu_s",
        "launch_100k_s",
        "launch_private_10k_s",
        "api_p99_ratio_1000_nodes",
        "api_p99_ratio_no_nodes",
        "api_p99_1000_nodes_ms",
        "burst_video_max_over_mean",
        "steady_public_100k_max_over_mean",
    ] {
        assert!(row(name).ours.median > 0.0, "{name}");
    }
    assert!(row("rgcm_max_load_ratio").ours.median >= 1.0);
    assert_eq!(row("rgcm_tenants_over_limit").ours.median, 0.0);
    // The paper's algorithm may be better balanced in a small cloud, because it does not know how full tables are.
    assert_eq!(row("rgcm_471_overfull_tables").ours.median, 0.0);
    assert!(row("rgcm_471_max_load_ratio").ratio.is_some());
    for name in ["launch_100k_entries", "launch_private_10k_entries", "burst_video_rules"] {
        assert!(row(name).ratio.is_some_and(|ratio| ratio.median > 1.0), "{name}");
    }
    assert!(row("detection_cost_pct").ours.median.is_finite());
    assert!(
        outcome.measures.iter().all(|measure| measure.theirs.is_none_or(|theirs| theirs.median.is_finite()))
    );
}

#[test]
fn an_unknown_part_is_refused_by_name() {
    let error = run(&settings(vec!["rcgm".to_owned()])).expect_err("there is no such part").to_string();
    assert!(error.contains("rcgm") && error.contains("rgcm"), "{error}");
}

fn settings(parts: Vec<String>) -> Settings {
    Settings { rounds: 1, scale: 20, binary: "/nonexistent".into(), parts }
}
