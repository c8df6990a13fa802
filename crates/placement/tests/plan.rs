//! Plans and rebalancing: the resulting placement, its cost, and that each move respects the limits.

mod common;

use common::{cluster_of, placement_of, problems, sums, vpc_of};
use proptest::prelude::*;
use sluice_placement::{
    Excess, MoveReason, Placement, PlacementError, PlacementPlan, Problem, Settings, rebalance, solve,
};
use sluice_types::{ClusterId, VpcId};
use std::collections::BTreeMap;

/// Replays a plan: each move without excess must fit while both old and new entries are in tables.
fn replay(problem: &Problem, present: &Placement, plan: &PlacementPlan) -> Result<(), TestCaseError> {
    let mut placement = present.clone();
    for step in &plan.moves {
        let vpc = problem.vpcs().iter().find(|vpc| vpc.id == step.vpc).expect("a VPC of the problem");
        prop_assert_eq!(step.entries, vpc.entries);
        prop_assert_ne!(step.from, Some(step.to));
        prop_assert_eq!(placement.insert(step.vpc, step.to), step.from);
        let cluster = problem.clusters().iter().find(|cluster| cluster.id == step.to).expect("a cluster");
        let there = || problem.vpcs().iter().filter(|vpc| placement.get(&vpc.id) == Some(&cluster.id));
        let entries: u64 = there().map(|vpc| vpc.entries).sum();
        let demand: u64 = there().map(|vpc| vpc.demand_pps).sum();
        let over = sums(problem, &placement).tenants_over_cluster_limit.contains(&vpc.tenant);
        let says = |wanted: fn(&Excess) -> bool| step.excess.iter().any(wanted);
        prop_assert_eq!(says(|e| matches!(e, Excess::Entries { .. })), entries > cluster.capacity_entries);
        prop_assert_eq!(
            says(|e| matches!(e, Excess::PacketRate { .. })),
            demand as f64 / cluster.capacity_pps as f64 > problem.water_level()
        );
        prop_assert_eq!(says(|e| matches!(e, Excess::Tenant { .. })), over);
    }
    Ok(())
}

fn different(present: &Placement, wanted: &Placement) -> usize {
    wanted.iter().filter(|(vpc, cluster)| present.get(vpc) != Some(cluster)).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn applied_plan_gives_the_wanted_placement(
        problem in problems(30),
        numbers in prop::collection::vec(0_usize..5, 1..40),
        others in prop::collection::vec(0_usize..5, 1..40),
        unplaced in 0_usize..4,
    ) {
        let (mut present, wanted) = (placement_of(&problem, &numbers), placement_of(&problem, &others));
        for vpc in problem.vpcs().iter().take(unplaced) {
            present.remove(&vpc.id);
        }
        let plan = PlacementPlan::between(&problem, &present, &wanted).unwrap();
        prop_assert_eq!(plan.apply(&present).unwrap(), wanted.clone());
        replay(&problem, &present, &plan)?;
        let mut moves: BTreeMap<VpcId, usize> = BTreeMap::new();
        let detours = plan.moves.iter().filter(|step| matches!(step.reason, MoveReason::Detour { .. })).count();
        for step in &plan.moves {
            *moves.entry(step.vpc).or_default() += 1;
        }
        prop_assert!(moves.values().all(|count| *count <= 2));
        prop_assert_eq!(plan.moves.len(), different(&present, &wanted) + detours);
        prop_assert_eq!(PlacementPlan::between(&problem, &wanted, &wanted).unwrap(), PlacementPlan::default());
    }

    #[test]
    fn with_free_capacity_no_limit_is_exceeded_and_no_vpc_moves_twice(
        problem in problems(30),
        numbers in prop::collection::vec(0_usize..5, 1..40),
        others in prop::collection::vec(0_usize..5, 1..40),
    ) {
        let wide = problem.clusters().iter()
            .map(|cluster| cluster_of(cluster.id.get(), problem.demand_pps() * 2 + 1, problem.entries() + 1))
            .collect();
        let problem = Problem::new(wide, problem.vpcs().to_vec(), 5, 1.0).unwrap();
        let (present, wanted) = (placement_of(&problem, &numbers), placement_of(&problem, &others));
        let plan = PlacementPlan::between(&problem, &present, &wanted).unwrap();
        prop_assert_eq!(plan.moves.len(), different(&present, &wanted));
        prop_assert!(plan.moves.iter().all(|step| step.excess.is_empty()));
    }

    #[test]
    fn rebalancing_respects_limits_and_its_plan_gives_its_placement(
        problem in problems(30),
        numbers in prop::collection::vec(0_usize..5, 1..40),
        unplaced in 0_usize..4,
        tolerance in 0.0_f64..0.5,
    ) {
        let mut present = placement_of(&problem, &numbers);
        for vpc in problem.vpcs().iter().take(unplaced) {
            present.remove(&vpc.id);
        }
        match rebalance(&problem, &present, tolerance) {
            Ok(found) => {
                let sums = sums(&problem, &found.placement);
                prop_assert_eq!(found.placement.len(), problem.vpcs().len());
                prop_assert_eq!(sums.entries_over, []);
                prop_assert_eq!(sums.tenants_over_cluster_limit, []);
                prop_assert_eq!(sums.max_load, found.max_load);
                prop_assert_eq!(found.plan.apply(&present).unwrap(), found.placement.clone());
                replay(&problem, &present, &found.plan)?;
                if found.max_load <= found.target {
                    prop_assert!(found.plan.moves.len() >= found.moves_lower_bound);
                    // Another rebalancing moves nothing.
                    let again = rebalance(&problem, &found.placement, tolerance).unwrap();
                    prop_assert_eq!(again.plan, PlacementPlan::default());
                }
            }
            Err(PlacementError::DoesNotFit { .. } | PlacementError::Relaxed(_)) => {}
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
}

fn at(pairs: &[(u64, u64)]) -> Placement {
    pairs.iter().map(|(vpc, cluster)| (VpcId::new(*vpc), ClusterId::new(*cluster))).collect()
}

#[test]
fn only_necessary_vpcs_move() {
    // 100 equal VPCs, 60 of them on the first of four clusters.
    let vpcs: Vec<_> = (1..=100).map(|id| vpc_of(id, id, 10, 5)).collect();
    let clusters = (1..=4).map(|id| cluster_of(id, 1000, 1000)).collect();
    let problem = Problem::new(clusters, vpcs, 1, 1.0).unwrap();
    let present: Placement =
        (1..=100).map(|id| (VpcId::new(id), ClusterId::new(if id <= 60 { 1 } else { 2 + id % 3 }))).collect();
    // The bound is 0.25 and 0.3 is allowed: 30 of the 60 must move.
    let found = rebalance(&problem, &present, 0.2).unwrap();
    assert_eq!((found.plan.moves.len(), found.moves_lower_bound), (30, 30));
    assert!(found.max_load <= 0.3 + 1e-9, "{}", found.max_load);
    assert!(matches!(found.plan.moves[0].reason, MoveReason::Load { from, .. } if from == 0.6));
    assert_eq!(found.plan.entries(), 150);
}

#[test]
fn only_vpcs_of_a_removed_cluster_move() {
    let vpcs: Vec<_> = (1..=9).map(|id| vpc_of(id, id, 10, 5)).collect();
    let clusters = (1..=2).map(|id| cluster_of(id, 100, 100)).collect();
    let problem = Problem::new(clusters, vpcs, 1, 1.0).unwrap();
    let present: Placement = (1..=9).map(|id| (VpcId::new(id), ClusterId::new(1 + id % 3))).collect();
    let found = rebalance(&problem, &present, 0.2).unwrap();
    assert_eq!((found.plan.moves.len(), found.moves_lower_bound), (3, 3));
    for step in &found.plan.moves {
        assert_eq!((step.from, step.reason), (Some(ClusterId::new(3)), MoveReason::ClusterRemoved));
    }
    assert_eq!(
        found.plan.moves[0].to_string(),
        format!(
            "{} to {} from cluster-3, 5 entries: its cluster accepts no VPCs any more",
            found.plan.moves[0].vpc, found.plan.moves[0].to
        )
    );
}

#[test]
fn cycle_of_moves_is_broken_by_a_detour_or_reported() {
    let vpcs = || vec![vpc_of(1, 1, 1, 10), vpc_of(2, 2, 1, 9)];
    let (present, wanted) = (at(&[(1, 1), (2, 2)]), at(&[(1, 2), (2, 1)]));
    let spare = vec![cluster_of(1, 100, 10), cluster_of(2, 100, 10), cluster_of(3, 100, 10)];
    let problem = Problem::new(spare, vpcs(), 1, 1.0).unwrap();
    let plan = PlacementPlan::between(&problem, &present, &wanted).unwrap();
    let steps: Vec<_> =
        plan.moves.iter().map(|step| (step.vpc.get(), step.to.get(), step.excess.len())).collect();
    assert_eq!(steps, [(2, 3, 0), (1, 2, 0), (2, 1, 0)]);
    assert_eq!(plan.moves[0].reason, MoveReason::Detour { wanted: ClusterId::new(1) });

    let full = vec![cluster_of(1, 100, 10), cluster_of(2, 100, 10)];
    let problem = Problem::new(full, vpcs(), 1, 1.0).unwrap();
    let plan = PlacementPlan::between(&problem, &present, &wanted).unwrap();
    assert_eq!(plan.moves.len(), 2);
    assert_eq!(plan.moves[0].excess, [Excess::Entries { cluster: ClusterId::new(1), over: 9 }]);
    assert_eq!(plan.moves[1].excess, []);
    assert_eq!(plan.apply(&present).unwrap(), wanted);
}

#[test]
fn plan_for_another_placement_is_refused() {
    let vpcs = vec![vpc_of(1, 1, 1, 1)];
    let problem = Problem::new(vec![cluster_of(1, 9, 9), cluster_of(2, 9, 9)], vpcs, 1, 1.0).unwrap();
    let plan = PlacementPlan::between(&problem, &at(&[(1, 1)]), &at(&[(1, 2)])).unwrap();
    assert_eq!(
        plan.apply(&at(&[(1, 2)])).unwrap_err().to_string(),
        "the plan was made for another placement: it moves vpc-1 from cluster-1, but the VPC is on cluster-2"
    );
    assert_eq!(
        PlacementPlan::between(&problem, &at(&[]), &at(&[])).unwrap_err().to_string(),
        "vpc-1 has no cluster in the wanted placement"
    );
    assert!(PlacementPlan::between(&problem, &at(&[(7, 1)]), &at(&[(1, 2)])).is_err());
    assert_eq!(
        rebalance(&problem, &at(&[(1, 2)]), -0.1).unwrap_err().to_string(),
        "the tolerance is -0.1, it must be at least 0"
    );
}

#[test]
fn rebalance_moves_nothing_after_rgcm() {
    let vpcs = (1..=300).map(|id| vpc_of(id, id % 50, 10_000 / id, id % 7)).collect();
    let clusters = (1..=6).map(|id| cluster_of(id, 40_000 + 1000 * id, 5_000)).collect();
    let problem = Problem::new(clusters, vpcs, 3, 1.0).unwrap();
    let solved = solve(&problem, &Settings::default()).unwrap();
    let tolerance = solved.max_load / solved.bound - 1.0 + 1e-9;
    assert!(tolerance < 0.05, "{tolerance}");
    assert_eq!(rebalance(&problem, &solved.placement, tolerance).unwrap().plan, PlacementPlan::default());
}
