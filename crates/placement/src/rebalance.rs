//! Few moves that bring a placement within a tolerance of the best.
//!
//! RGCM would move nearly everything, as its fractions know nothing of the
//! present. Here only what must move does: VPCs whose cluster leaves, of tenants
//! above k, on tables too full, and of clusters above the target, as few as
//! possible of those. The fewest is a packing problem, NP-hard like GCM; what is
//! found can be compared with [`Rebalanced::moves_at_least`], which every way to the target needs.

use crate::plan::Plan;
use crate::problem::{InputError, Placement, Problem};
use crate::relaxation::SolverError;
use crate::repair;
use crate::rgcm::{PlacementError, does_not_fit};
use crate::state::State;

/// A placement near the present one, and the way there.
#[derive(Clone, Debug)]
pub struct Rebalanced {
    /// Where every VPC is then.
    pub placement: Placement,
    /// The moves.
    pub plan: Plan,
    /// The load of the fullest cluster before, VPCs on leaving clusters not counted.
    pub lambda_before: f64,
    /// The same after.
    pub lambda: f64,
    /// What lambda was to be at most: the bound times 1 + tolerance. It may be above where VPCs are few
    /// and large.
    pub target: f64,
    /// Moves that every way to the target has at least.
    pub moves_at_least: usize,
}

/// Brings lambda within `tolerance` of its lower bound (0.1: 10% above) with few moves, and places what
/// has no cluster. Nothing moves where the present placement is within the tolerance already.
///
/// # Errors
/// Unknown VPCs, a tolerance below 0; entries that do not fit.
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
    if let Some(vpc) = present.keys().find(|vpc| problem.vpc_of(**vpc).is_none()) {
        return Err(InputError::UnknownVpc(*vpc).into());
    }
    let known =
        present.iter().filter(|(_, at)| problem.cluster_of(**at).is_some()).map(|(v, c)| (*v, *c)).collect();
    let before = problem.indices(&known)?;
    let mean = problem.demand_pps() as f64 / problem.capacity_pps() as f64;
    let target = mean.max(problem.whole_vpcs_bound()) * (1.0 + tolerance);
    let mut state = State::new(problem, before.iter().copied());
    let lambda_before = state.lambda();
    let moves_at_least = moves_at_least(&state, target);
    // VPCs without a cluster come last, after the VPCs that must move anyway have moved.
    repair::tenants(&mut state, repair::Keep::Count);
    if !repair::entries(&mut state) || !house(&mut state) || !repair::entries(&mut state) {
        return Err(does_not_fit(problem, 1));
    }
    while lighten(&mut state, target) {}
    repair::balance(&mut state, target);
    send_home(&mut state, &before, target);
    let placement = state.placement();
    Ok(Rebalanced {
        plan: Plan::between(problem, present, &placement)?,
        lambda: state.lambda(),
        placement,
        lambda_before,
        target,
        moves_at_least,
    })
}

/// VPCs without a cluster, and of each cluster above the target as many of its largest as bring it there.
fn moves_at_least(state: &State<'_>, target: f64) -> usize {
    let vpcs = state.problem.vpcs();
    let homeless = (0..vpcs.len()).filter(|vpc| state.at(*vpc).is_none()).count();
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
    homeless + state.clusters().map(shed).sum::<usize>()
}

/// Gives every VPC without a cluster one, the largest first.
fn house(state: &mut State<'_>) -> bool {
    let vpcs = state.problem.vpcs();
    let mut homeless: Vec<usize> = (0..vpcs.len()).filter(|vpc| state.at(*vpc).is_none()).collect();
    homeless.sort_by_key(|vpc| (std::cmp::Reverse((vpcs[*vpc].demand_pps, vpcs[*vpc].entries)), *vpc));
    for vpc in homeless {
        let tenant = state.problem.tenant_of(vpc);
        let best = state.clusters().filter(|to| state.tenant_may(tenant, None, *to, 1)).min_by(|a, b| {
            // A table too full is put right afterwards, if it can be.
            let full = |cluster: usize| !state.has_entries(cluster, vpcs[vpc].entries);
            let load = |cluster: usize| state.load_with(cluster, vpcs[vpc].demand_pps);
            full(*a).cmp(&full(*b)).then(load(*a).total_cmp(&load(*b)))
        });
        let Some(best) = best else { return false };
        state.put(vpc, best);
    }
    true
}

/// Takes one VPC off the fullest cluster to one that stays within the target: the cheapest of those that
/// suffice alone, or else the largest.
fn lighten(state: &mut State<'_>, target: f64) -> bool {
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
                    && state.tenant_may(state.problem.tenant_of(vpc), Some(from), *to, 1)
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
    state.shift(vpc, to);
    true
}

/// Takes back moves that turned out needless.
fn send_home(state: &mut State<'_>, before: &[Option<usize>], target: f64) {
    let limit = target.max(state.lambda());
    for (vpc, home) in before.iter().enumerate() {
        let (demand, entries) = (state.problem.vpcs()[vpc].demand_pps, state.problem.vpcs()[vpc].entries);
        let Some(home) = home.filter(|home| Some(*home) != state.at(vpc)) else { continue };
        if state.load_with(home, demand) <= limit
            && state.has_entries(home, entries)
            && state.tenant_may(state.problem.tenant_of(vpc), state.at(vpc), home, 1)
        {
            state.shift(vpc, home);
        }
    }
}
