//! RGCM and its bounds: on random problems, on small ones of which all placements are tried, and on large
//! skewed ones.

mod common;

use common::{cluster_of, problems, sums, vpc_of};
use proptest::prelude::*;
use sluice_placement::{
    Detail, PlaceError, Placement, PlacementError, Problem, Settings, SolverError, place, relax, solve,
};

/// Rounding error of floating point sums.
const EPSILON: f64 = 1e-6;

/// The lowest maximum load of all placements within table sizes and the cluster limit; for small problems
/// only.
fn best_of_all(problem: &Problem) -> Option<f64> {
    let (clusters, vpcs) = (problem.clusters().len(), problem.vpcs().len());
    let all = clusters.pow(u32::try_from(vpcs).expect("few VPCs"));
    let decode = |mut number: usize| -> Placement {
        let mut next = || {
            let digit = number % clusters;
            number /= clusters;
            problem.clusters()[digit].id
        };
        problem.vpcs().iter().map(|vpc| (vpc.id, next())).collect()
    };
    (0..all)
        .map(|number| sums(problem, &decode(number)))
        .filter(|sums| sums.entries_over.is_empty() && sums.tenants_over_cluster_limit.is_empty())
        .map(|sums| sums.max_load)
        .min_by(f64::total_cmp)
}

/// 0 to 2^40, each order of magnitude as likely as the others.
fn amounts() -> impl Strategy<Value = u64> {
    (0_u32..=40, 0_u64..1 << 40).prop_map(|(bits, number)| number >> (40 - bits))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    /// Catches a placement that breaks a row of the problem, sums that are wrong, a bound above the result,
    /// and an error whose numbers contradict the problem.
    #[test]
    fn constraints_hold_or_the_error_is_justified(
        problem in problems(40), seed: u64, classes: bool,
    ) {
        let detail = if classes { Detail::Classes } else { Detail::Full };
        let settings = Settings { seed, detail, ..Settings::default() };
        match solve(&problem, &settings) {
            Ok(found) => {
                let sums = sums(&problem, &found.placement);
                prop_assert_eq!(found.placement.len(), problem.vpcs().len());
                prop_assert_eq!(sums.entries_over, []);
                prop_assert_eq!(sums.tenants_over_cluster_limit, []);
                prop_assert_eq!(sums.max_load, found.max_load);
                prop_assert_eq!(problem.max_load(&found.placement).unwrap(), found.max_load);
                prop_assert!(found.max_load <= problem.water_level());
                prop_assert!(found.max_load >= found.lp_lower_bound, "{found:?}");
                prop_assert!(found.max_load >= found.bound * (1.0 - EPSILON), "{found:?}");
                prop_assert!(found.lp_lower_bound <= found.lp_upper_bound);
            }
            Err(PlacementError::Relaxed(SolverError::Entries { needed, available })) => {
                prop_assert_eq!(needed, problem.entries());
                prop_assert!(needed > available);
            }
            Err(PlacementError::DemandTooHigh { bound, water_level, .. }) => {
                prop_assert!(bound > water_level);
            }
            Err(PlacementError::AboveWaterLevel { max_load, water_level, bound, .. }) => {
                prop_assert!(max_load > water_level && bound <= water_level * (1.0 + EPSILON));
            }
            // Only if tables are nearly full, or if VPCs or tenants are large compared with them.
            Err(PlacementError::DoesNotFit { needed, available, .. }) => {
                let tenants = problem.vpcs().iter().map(|vpc| vpc.tenant);
                let largest = tenants
                    .map(|tenant| problem.vpcs().iter().filter(|v| v.tenant == tenant).map(|v| v.entries).sum::<u64>())
                    .max()
                    .unwrap_or(0);
                let smallest = problem.clusters().iter().map(|c| c.capacity_entries).min().unwrap();
                prop_assert!(needed * 10 > available * 7 || largest * 2 > smallest, "{problem:?}");
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }

    /// Catches an order or a number that depends on anything else than the arguments, such as hashing.
    #[test]
    fn same_seed_gives_same_result(problem in problems(30), seed: u64) {
        let settings = Settings { seed, ..Settings::default() };
        let answers = [solve(&problem, &settings), solve(&problem, &settings)];
        prop_assert_eq!(format!("{:?}", answers[0]), format!("{:?}", answers[1]));
    }

    /// Catches coefficients that the LP library cannot work with: amounts from 0 to 2^40 side by side, each
    /// problem solvable because its entries fit in total.
    #[test]
    fn amounts_of_any_size_are_solved(
        clusters in prop::collection::vec((amounts(), amounts()), 1..6),
        vpcs in prop::collection::vec((1_u64..8, amounts(), amounts()), 0..40),
        k in 1_usize..4, full: bool,
    ) {
        let clusters: Vec<_> = clusters.into_iter().zip(1..)
            .map(|((pps, entries), id)| cluster_of(id, pps.max(1), entries.max(1))).collect();
        let held: u64 = clusters.iter().map(|cluster| cluster.capacity_entries).sum();
        let needed: u64 = vpcs.iter().map(|(_, _, entries)| entries).sum();
        // Entries are reduced in proportion, so that tables are exactly full or not full.
        let part = (held as f64 / needed.max(1) as f64).min(1.0);
        let vpcs = vpcs.into_iter().zip(1..).map(|((tenant, demand, entries), id)| {
            vpc_of(id, tenant, demand, (entries as f64 * part * (1.0 - 1e-12)) as u64)
        });
        let problem = Problem::new(clusters, vpcs.collect(), k, 1.0).unwrap();
        let relaxed = relax(&problem, if full { Detail::Full } else { Detail::Classes });
        prop_assert!(relaxed.is_ok(), "{relaxed:?}");
        let relaxed = relaxed.unwrap();
        let mean = problem.demand_pps() as f64 / problem.capacity_pps() as f64;
        prop_assert!(relaxed.lower_bound() >= mean * (1.0 - EPSILON) && relaxed.upper_bound() >= relaxed.lower_bound());
    }

    /// Catches a lower bound that is too high, or fractions that are not optimal, in either of the two LPs.
    #[test]
    fn both_details_bound_the_same_optimum(problem in problems(30)) {
        let both = (relax(&problem, Detail::Full), relax(&problem, Detail::Classes));
        if let (Ok(full), Ok(classes)) = both {
            // Each interval holds the optimum of LP-GCM, and the full one is its solution.
            prop_assert!(classes.lower_bound() <= full.upper_bound() * (1.0 + EPSILON) + EPSILON);
            prop_assert!(full.lower_bound() <= classes.upper_bound() * (1.0 + EPSILON) + EPSILON);
            let mean = problem.demand_pps() as f64 / problem.capacity_pps() as f64;
            prop_assert!(full.lower_bound() >= mean * (1.0 - EPSILON));
            if problem.clusters_per_tenant() >= problem.clusters().len() {
                // No row for tenants restricts the solution: the bound is the optimum itself.
                prop_assert!(full.upper_bound() - full.lower_bound() <= EPSILON, "{full:?}");
            }
            if problem.clusters().iter().all(|cluster| cluster.capacity_entries >= problem.entries()) {
                prop_assert!((full.upper_bound() - mean).abs() <= EPSILON && (classes.upper_bound() - mean).abs() <= EPSILON);
            }
        }
    }

    /// Small problems (at most 5^6 placements) are solved exactly, but for the 0.1% that is good enough.
    /// Catches a search that misses the optimum, a bound above it, and every error that the problem does not
    /// justify: tables that hold the VPCs, a water level that can be kept, a failure of the LP library.
    #[test]
    fn small_problems_are_solved_to_the_optimum(problem in problems(6), seed: u64) {
        let best = best_of_all(&problem);
        let level = problem.water_level();
        match (solve(&problem, &Settings { seed, ..Settings::default() }), best) {
            (Ok(found), Some(best)) => {
                prop_assert!(found.max_load >= best * (1.0 - EPSILON), "better than the best: {found:?}");
                prop_assert!(found.bound <= best * (1.0 + EPSILON), "the bound excludes the best: {found:?}");
                prop_assert!(found.max_load <= best * (1.001 + EPSILON), "{} is above {best}", found.max_load);
            }
            (Ok(found), None) => return Err(TestCaseError::fail(format!("cannot be: {found:?}"))),
            (Err(PlacementError::DemandTooHigh { bound, .. }), best) => {
                prop_assert!(bound > level && best.is_none_or(|best| best >= bound * (1.0 - EPSILON)));
            }
            (Err(PlacementError::AboveWaterLevel { max_load, .. }), Some(best)) => {
                // It may be in the 0.1% above the optimum that are good enough.
                prop_assert!(max_load > level && max_load <= best * (1.001 + EPSILON), "{max_load}, best is {best}");
            }
            (Err(PlacementError::Relaxed(SolverError::Entries { .. }) | PlacementError::DoesNotFit { .. }), None) => {}
            (Err(error), best) => return Err(TestCaseError::fail(format!("{error}, but the best is {best:?}"))),
        }
    }

    /// Catches a repair that stops where one VPC could still move. If neither tables nor k restrict, then
    /// from the fullest cluster to the least loaded no VPC could go without making that one as full. The
    /// least loaded is at most at the mean, which no placement goes below, so the maximum load exceeds the
    /// optimum by at most the load of one VPC of the fullest cluster.
    #[test]
    fn without_limits_the_load_exceeds_the_optimum_by_one_vpc_at_most(problem in problems(40), seed: u64) {
        let clusters: Vec<_> = problem.clusters().iter()
            .map(|cluster| cluster_of(cluster.id.get(), cluster.capacity_pps * 20, 1 << 30)).collect();
        let k = clusters.len();
        let problem = Problem::new(clusters, problem.vpcs().to_vec(), k, 1.0).unwrap();
        match solve(&problem, &Settings { seed, ..Settings::default() }) {
            Ok(found) => {
                let mean = problem.demand_pps() as f64 / problem.capacity_pps() as f64;
                let smallest_rate = problem.clusters().iter().map(|c| c.capacity_pps).min().unwrap() as f64;
                let load_of = |id| problem.vpcs().iter().filter(|vpc| found.placement[&vpc.id] == id)
                    .map(|vpc| vpc.demand_pps).sum::<u64>() as f64;
                let one_vpc = problem.clusters().iter()
                    .filter(|cluster| load_of(cluster.id) / cluster.capacity_pps as f64 >= found.max_load)
                    .flat_map(|cluster| problem.vpcs().iter()
                        .filter(|vpc| found.placement[&vpc.id] == cluster.id && vpc.demand_pps > 0))
                    .map(|vpc| vpc.demand_pps as f64 / smallest_rate).fold(0.0, f64::max);
                let enough = found.bound * 1.001;
                prop_assert!(found.max_load <= enough.max(mean + one_vpc) + EPSILON, "{found:?}");
            }
            Err(PlacementError::DemandTooHigh { bound, .. }) => prop_assert!(bound > 1.0),
            Err(PlacementError::AboveWaterLevel { bound, .. }) => {
                prop_assert!(bound > 0.5, "a fullest cluster twice the bound: {problem:?}");
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }

    /// Catches a new VPC on a cluster that is full or not the least loaded, and a refusal while a cluster is
    /// open.
    #[test]
    fn new_vpc_is_placed_like_by_exhaustive_search(
        problem in problems(20),
        numbers in prop::collection::vec(0_usize..5, 1..20),
        (tenant, demand, entries) in (1_u64..8, 0_u64..100, 0_u64..60),
    ) {
        let present = common::placement_of(&problem, &numbers);
        let vpc = vpc_of(1000, tenant, demand, entries);
        let mut vpcs = problem.vpcs().to_vec();
        vpcs.push(vpc);
        let with = Problem::new(
            problem.clusters().to_vec(), vpcs, problem.clusters_per_tenant(), problem.water_level(),
        ).unwrap();
        let before = sums(&problem, &present);
        let load_of = |placement: &Placement, id| {
            let on = with.vpcs().iter().filter(|vpc| placement.get(&vpc.id) == Some(&id));
            on.map(|vpc| vpc.demand_pps).sum::<u64>() as f64
                / with.clusters().iter().find(|c| c.id == id).unwrap().capacity_pps as f64
        };
        let open: Vec<(f64, _)> = with
            .clusters()
            .iter()
            .filter_map(|cluster| {
                let mut placement = present.clone();
                placement.insert(vpc.id, cluster.id);
                let after = sums(&with, &placement);
                let entries: u64 = with.vpcs().iter()
                    .filter(|vpc| placement.get(&vpc.id) == Some(&cluster.id)).map(|vpc| vpc.entries).sum();
                let same_clusters = present.iter().any(|(id, at)| {
                    at == &cluster.id && with.vpcs().iter().any(|v| v.id == *id && v.tenant == vpc.tenant)
                });
                let tenant = same_clusters || !after.tenants_over_cluster_limit.contains(&vpc.tenant);
                let load = load_of(&placement, cluster.id);
                (load <= with.water_level() && entries <= cluster.capacity_entries && tenant)
                    .then_some((load, cluster.id))
            })
            .collect();
        match place(&problem, &present, &vpc) {
            Ok(cluster) => {
                let least = open.iter().map(|(load, _)| *load).fold(f64::INFINITY, f64::min);
                prop_assert!(open.iter().any(|(load, id)| *id == cluster && *load == least));
            }
            Err(PlaceError::InsufficientCapacity(refused)) => {
                prop_assert!(open.is_empty(), "{refused}, but {open:?} are open");
                let counted = refused.above_water_level + refused.would_be_above + refused.tables_full
                    + refused.at_cluster_limit;
                prop_assert_eq!(counted, problem.clusters().len());
                prop_assert!(before.max_load > 0.0 || refused.would_be_above + refused.tables_full > 0);
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
}

/// As many VPCs and tenants as in the paper's public cloud (section VIII-D), sizes by Zipf's law.
#[test]
fn public_cloud_of_the_paper_is_within_5_percent_of_the_lp() {
    let vpcs = (1..=1885).map(|id| vpc_of(id, 1 + id % 568, 2_000_000 / id.max(8), 2 + 362 / id)).collect();
    let clusters = (1..=10).map(|id| cluster_of(id, 4_000_000, 10_000)).collect();
    for k in [1, 2, 5] {
        let problem = Problem::new(Vec::clone(&clusters), Vec::clone(&vpcs), k, 1.0).unwrap();
        let found = solve(&problem, &Settings::default()).unwrap();
        assert!(
            found.max_load <= 1.05 * found.lp_lower_bound,
            "k = {k}: {} of {}",
            found.max_load,
            found.lp_lower_bound
        );
        assert!(sums(&problem, &found.placement).tenants_over_cluster_limit.is_empty());
    }
}

/// Two kinds of clusters, with high packet rates or large tables, and such VPCs: the LP must match them.
#[test]
fn different_clusters_get_suitable_vpcs() {
    let vpcs = (1..=400).map(|id| match id % 2 {
        0 => vpc_of(id, id % 90, 1_000 + id, 10),
        _ => vpc_of(id, id % 90, 100, 900 + id),
    });
    let clusters = (1..=8).map(|id| match id % 2 {
        0 => cluster_of(id, 200_000, 12_000),
        _ => cluster_of(id, 30_000, 60_000),
    });
    let problem = Problem::new(clusters.collect(), vpcs.collect(), 4, 1.0).unwrap();
    for detail in [Detail::Full, Detail::Classes] {
        let found = solve(&problem, &Settings { detail, ..Settings::default() }).unwrap();
        assert!(found.max_load <= 1.05 * found.lp_lower_bound, "{detail:?}: {found:?}");
        assert!(sums(&problem, &found.placement).entries_over.is_empty());
    }
}

#[test]
fn error_describes_the_impossible_constraint() {
    let said = |clusters, vpcs, k, level| {
        let problem = Problem::new(clusters, vpcs, k, level).unwrap();
        solve(&problem, &Settings::default()).unwrap_err().to_string()
    };
    assert_eq!(
        said(vec![cluster_of(1, 100, 10), cluster_of(2, 100, 10)], vec![vpc_of(1, 1, 1, 21)], 1, 1.0),
        "the VPCs need 21 entries, but only 20 fit into all clusters together"
    );
    assert_eq!(
        said(vec![cluster_of(1, 100, 10)], vec![vpc_of(1, 1, 90, 1)], 1, 0.8),
        "no placement keeps all clusters below the water level: the most loaded would be at 90.0% of its \
         packet rate or more, and 80.0% is allowed; the demand is 90 packets/s, the capacity 100"
    );
    // Two of three VPCs must share a cluster.
    let three = vec![vpc_of(1, 1, 60, 1), vpc_of(2, 1, 60, 1), vpc_of(3, 1, 60, 1)];
    assert_eq!(
        said(vec![cluster_of(1, 100, 10), cluster_of(2, 100, 10)], three, 2, 1.0),
        "none of 8 attempts found a placement below the water level: the best has a maximum load of \
         120.0%, 100.0% is allowed, and the lower bound is 90.0%"
    );
    assert_eq!(
        said(vec![cluster_of(1, 100, 10), cluster_of(2, 100, 10)], vec![vpc_of(1, 1, 1, 11)], 1, 1.0),
        "none of 8 attempts fits all VPCs into tables: 11 entries, space for 20 in 2 clusters, at most \
         1 clusters per tenant; the largest VPC has 11 entries, the largest table 10"
    );
}
