//! Runs all parts at a small size. A run checks that both sides give the same answers; the figures are not
//! checked. Needs root and two cores.

use sluice_bench_tables::{Settings, has_dpdk, parts, run};
use std::collections::HashSet;

const VARIANTS: [&str; 3] = ["", "_zipf", "_dependent"];

/// Names of measures, each with its peer.
type Rows = HashSet<(String, &'static str)>;

/// The measures of a run without DPDK, and those that need DPDK.
fn expected() -> (Rows, Rows) {
    let (mut always, mut dpdk) = (Rows::new(), Rows::new());
    for variant in VARIANTS {
        for name in ["lpm4_bgp", "lpm6_bgp", "lpm4_random", "lpm6_random"] {
            always.insert((format!("{name}{variant}_ns"), "lpm_trie"));
        }
        for name in ["exact_1m", "exact_10m", "exact6_1m", "exact6_10m"] {
            always.insert((format!("{name}{variant}_ns"), "bpf_hash"));
        }
        for name in ["lpm4_bgp_user", "lpm6_bgp_user"] {
            always.insert((format!("{name}_huge{variant}_ns"), "-"));
            dpdk.insert((format!("{name}{variant}_ns"), "rte_fib"));
            dpdk.insert((format!("{name}{variant}_ns"), "rte_lpm"));
        }
        always.insert((format!("exact_1m_user_huge{variant}_ns"), "-"));
        dpdk.insert((format!("exact_1m_user{variant}_ns"), "rte_hash"));
        dpdk.insert((format!("exact_1m_user{variant}_ns"), "rte_hash_single"));
    }
    for name in ["bulk_1m_s", "bulk_10m_s", "bulk_exact_1m_s", "bulk_exact_10m_s"] {
        always.insert((name.to_owned(), "syscalls"));
    }
    for (name, peer) in [
        ("routes10m_mb", "lpm_trie"),
        ("routes10m_mb", "rte_fib"),
        ("updates_per_s", "lpm_trie"),
        ("lookup_slowdown_pct", "lpm_trie"),
        ("vrf10k_mb", "lpm_trie"),
        ("vrf10k_mb", "vpp_mtrie_empty"),
    ] {
        always.insert((name.to_owned(), peer));
    }
    for name in ["session_ns", "session_packets_ns", "session_bytes"] {
        always.insert((name.to_owned(), "lru_hash"));
        always.insert((name.to_owned(), "lru_percpu_hash"));
    }
    for name in ["sessions_64m_create_ns", "sessions_64m_packet_ns", "adopt_10m_s"] {
        always.insert((name.to_owned(), "-"));
    }
    for name in ["64mb", "1gb", "4gb"] {
        always.insert((format!("access_{name}_ns"), "-"));
        always.insert((format!("access_{name}_dependent_ns"), "-"));
    }
    dpdk.insert(("vrf10k_mb".to_owned(), "rte_fib"));
    (always, dpdk)
}

#[test]
fn all_parts_run_and_both_sides_give_the_same_answers() {
    let parts = parts().into_iter().map(str::to_owned).collect();
    let outcome = run(&Settings { rounds: 1, scale: 200, parts }).expect("as root, on two cores");
    let found: Rows =
        outcome.measures.iter().map(|measure| (measure.measure.clone(), measure.peer)).collect();
    let (always, dpdk) = expected();
    let missing: Vec<_> = always
        .iter()
        .chain(dpdk.iter().filter(|_| has_dpdk()))
        .filter(|wanted| !found.contains(*wanted))
        .collect();
    assert!(missing.is_empty(), "not measured: {missing:?}");
    assert!(has_dpdk() || dpdk.is_disjoint(&found), "a measure of DPDK was recorded without DPDK");
    for measure in &outcome.measures {
        let theirs = measure.theirs.is_none_or(|theirs| theirs.median.is_finite());
        assert!(measure.ours.median.is_finite() && theirs, "{measure:?}");
    }
}

#[test]
fn unknown_part_is_named_in_the_error() {
    let settings = Settings { rounds: 1, scale: 200, parts: vec!["lpm5".to_owned()] };
    let error = run(&settings).expect_err("there is no such part").to_string();
    assert!(error.contains("lpm5") && error.contains("updates"), "{error}");
}
