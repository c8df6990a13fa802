//! Brings a placement within a tolerance of the best with few moves.
//!
//! RGCM would move nearly all VPCs, because its fractions do not depend on the current placement. Here only
//! necessary moves are made: VPCs of removed clusters, of tenants above the cluster limit, on tables that are
//! too full, and of clusters above the target, and as few of these as possible. Finding the fewest is a
//! packing problem, NP-hard like GCM; the result can be compared with [`Rebalanced::moves_lower_bound`].

use crate::plan::PlacementPlan;
use crate::problem::{InputError, Placement, Problem};
use crate::relaxation::SolverError;
use crate::repair;
use crate::rgcm::{PlacementError, does_not_fit};
use crate::state::State;

/// A placement close to the current one, and the moves that lead to it.
#[derive(Clone, Debug)]
pub struct Rebalanced {
    /// The cluster of every VPC after the moves.
    pub placement: Placement,
    /// The moves, in order.
    pub plan: PlacementPlan,
    /// The maximum load before, without VPCs of removed clusters.
    pub max_load_before: f64,
    /// The maximum load after.
    pub max_load: f64,
    /// The highest maximum load that was aimed at: its lower bound times 1 + tolerance. It may be exceeded if
    /// there are few and large VPCs.
    pub target: f64,
    /// Number of moves that any way to the target needs at least.
    pub moves_lower_bound: usize,
}

/// Brings the maximum load within `tolerance` of its lower bound (0.1: 10% above) with few moves, and gives
/// each VPC without a cluster one. No VPC moves if the current placement already is within the tolerance.
///
/// # Errors
/// Unknown VPCs; a tolerance below 0; entries that do not fit.
pub fn rebalance(
    problem: &Problem,
    present: &Placement,
    tolerance: f64,
) -> Result<Rebalanced, PlacementError> {
    if !(tolerance >= 0.0 && tolerance.is_finite()) {
        return Err(InputError::Tolerance(tolerance).into());
    }
    if problem.entries() > problem.capacity_entries() {
        let (needed, available) = (problem.entries(), problem.capacity_entries());
        return Err(SolverError::Entries { needed, available }.into());
    }
    let before = problem.known_indices(present)?;
    let mean = problem.demand_pps() as f64 / problem.capacity_pps() as f64;
    let target = mean.max(problem.whole_vpcs_bound()) * (1.0 + tolerance);
    let mut state = State::new(problem, before.iter().copied());
    let max_load_before = state.max_load();
    let moves_lower_bound = moves_lower_bound(&state, target);
    // VPCs without a cluster come last, after the VPCs that must move anyway have moved.
    repair::tenants(&mut state, repair::Keep::Count);
    if !repair::entries(&mut state) || !place_unplaced(&mut state) || !repair::entries(&mut state) {
        return Err(does_not_fit(problem, 1));
    }
    while relieve_fullest(&mut state, target) {}
    repair::balance(&mut state, target);
    revert_needless_moves(&mut state, &before, target);
    let placement = state.placement();
    Ok(Rebalanced {
        plan: PlacementPlan::between(problem, present, &placement)?,
        max_load: state.max_load(),
        placement,
        max_load_before,
        target,
        moves_lower_bound,
    })
}

/// The number of VPCs without a cluster, plus for each cluster above the target the number of its largest
/// VPCs whose removal brings it to the target.
fn moves_lower_bound(state: &State<'_>, target: f64) -> usize {
    let vpcs = state.problem.vpcs();
    let unplaced = (0..vpcs.len()).filter(|vpc| state.at(*vpc).is_none()).count();
    let shed = |cluster: usize| {
        let mut demands: Vec<u64> = state.members(cluster).iter().map(|vpc| vpcs[*vpc].demand_pps).collect();
        demands.sort_unstable_by(|a, b| b.cmp(a));
        let mut gone = 0;
        let needed = |demand: &u64| {
            let above = state.load_without(cluster, gone) > target;
            gone += if above { demand } else { &0 };
            above
        };
        demands.iter().map(needed).filter(|above| *above).count()
    };
    unplaced + state.clusters().map(shed).sum::<usize>()
}

/// Gives each VPC without a cluster one, the largest VPCs first.
fn place_unplaced(state: &mut State<'_>) -> bool {
    let vpcs = state.problem.vpcs();
    let mut unplaced: Vec<usize> = (0..vpcs.len()).filter(|vpc| state.at(*vpc).is_none()).collect();
    unplaced.sort_by_key(|vpc| (std::cmp::Reverse((vpcs[*vpc].demand_pps, vpcs[*vpc].entries)), *vpc));
    for vpc in unplaced {
        let tenant = state.problem.tenant_of(vpc);
        let best =
            state.clusters().filter(|to| state.is_open_to_tenant(tenant, None, *to, 1)).min_by(|a, b| {
                // Tables that become too full are repaired afterwards if possible.
                let full = |cluster: usize| !state.has_entries(cluster, vpcs[vpc].entries);
                let load = |cluster: usize| state.load_with(cluster, vpcs[vpc].demand_pps);
                full(*a).cmp(&full(*b)).then(load(*a).total_cmp(&load(*b)))
            });
        let Some(best) = best else { return false };
        state.assign(vpc, best);
    }
    true
}

/// Moves one VPC from the most loaded cluster to one that stays within the target: the cheapest VPC whose
/// removal is enough, otherwise the largest.
fn relieve_fullest(state: &mut State<'_>, target: f64) -> bool {
    let from = state.fullest();
    if state.load(from) <= target {
        return false;
    }
    let mut best: Option<(bool, u64, u64, usize, usize)> = None;
    for vpc in state.members(from).iter().copied() {
        let (demand, entries) = (state.problem.vpcs()[vpc].demand_pps, state.problem.vpcs()[vpc].entries);
        if demand == 0 {
            continue;
        }
        let to = state
            .clusters()
            .filter(|to| {
                *to != from
                    && state.load_with(*to, demand) <= target
                    && state.has_entries(*to, entries)
                    && state.is_open_to_tenant(state.problem.tenant_of(vpc), Some(from), *to, 1)
            })
            .min_by(|a, b| state.load(*a).total_cmp(&state.load(*b)));
        let Some(to) = to else { continue };
        let short = state.load_without(from, demand) > target;
        let key = if short { (true, u64::MAX - demand, entries) } else { (false, entries, demand) };
        if best.is_none_or(|best| (key.0, key.1, key.2, vpc) < (best.0, best.1, best.2, best.3)) {
            best = Some((key.0, key.1, key.2, vpc, to));
        }
    }
    let Some((_, _, _, vpc, to)) = best else { return false };
    state.reassign(vpc, to);
    true
}

/// Reverts moves that proved unnecessary.
fn revert_needless_moves(state: &mut State<'_>, before: &[Option<usize>], target: f64) {
    let limit = target.max(state.max_load());
    for (vpc, original) in before.iter().enumerate() {
        let (demand, entries) = (state.problem.vpcs()[vpc].demand_pps, state.problem.vpcs()[vpc].entries);
        let Some(original) = original.filter(|original| Some(*original) != state.at(vpc)) else { continue };
        if state.load_with(original, demand) <= limit
            && state.has_entries(original, entries)
            && state.is_open_to_tenant(state.problem.tenant_of(vpc), state.at(vpc), original, 1)
        {
            state.reassign(vpc, original);
        }
    }
}
