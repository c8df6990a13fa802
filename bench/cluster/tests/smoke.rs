//! All parts at a small size: every figure is there and makes sense; how large it is, is not looked at.

use sluice_bench_cluster::{Settings, run};

#[test]
fn all_parts_run_and_give_their_figures() {
    // Those that need no lab: what those do is in the scenarios.
    let parts = ["rgcm", "push", "launch", "burst", "detection"].map(str::to_owned).to_vec();
    let outcome = run(&settings(parts)).expect("placements of all cases");
    let ours = |name: &str| {
        let found = outcome.measures.iter().find(|measure| measure.measure == name);
        found.unwrap_or_else(|| panic!("{name} was not measured")).ours
    };
    for name in [
        "rgcm_1885_s",
        "rgcm_10k_tenants_s",
        "rgcm_lp_471_s",
        "push_10k_45gw_s",
        "push_100k_45gw_s",
        "launch_100k_s",
        "burst_max_over_mean",
    ] {
        assert!(ours(name) > 0.0, "{name}");
    }
    assert!(ours("rgcm_lambda_ratio") >= 1.0);
    assert_eq!(ours("rgcm_tenants_over_k"), 0.0);
    let found = outcome.measures.iter().find(|measure| measure.measure == "launch_100k_entries");
    let entries = found.expect("launches are counted");
    assert!(entries.ours > 0.0 && entries.theirs.is_some_and(|theirs| theirs > entries.ours), "{entries:?}");
    assert!(ours("detection_cost_pct").is_finite());
    assert!(outcome.measures.iter().all(|measure| measure.theirs.is_none_or(f64::is_finite)));
}

#[test]
fn an_unknown_part_is_refused_by_name() {
    let error = run(&settings(vec!["rcgm".to_owned()])).expect_err("there is no such part").to_string();
    assert!(error.contains("rcgm") && error.contains("rgcm"), "{error}");
}

fn settings(parts: Vec<String>) -> Settings {
    Settings { rounds: 1, scale: 20, binary: "/nonexistent".into(), parts }
}
