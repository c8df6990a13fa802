//! RGCM: all VPCs placed at once (Zeta section VI-A.3).
//!
//! The paper rounds once, and proves that lambda is then at most
//! 3 ln d / beta + 3 times the optimum and a tenant on at most
//! k (3 ln d / k + 3) clusters, with d tenants, likely (theorems 4 and 5: 4.2
//! and 4.4 for 10,000 tenants on 50 clusters). Here several roundings are each
//! repaired, by moves and swaps, until no tenant is above k, no table too full
//! and lambda as low as those go, and the best is kept. Where that is not good
//! enough and the problem is small, all placements are tried ([`exact`]).

use crate::problem::{InputError, Placement, Problem};
use crate::random::Random;
use crate::relaxation::{Detail, Relaxation, SolverError, relax};
use crate::state::State;
use crate::{exact, repair, rounding};

/// Settings of the search.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of roundings, at least 1. The search ends earlier when a result is good enough.
    pub attempts: u32,
    /// A maximum load this far above the bound is good enough, as a part: 0.001 is 0.1%.
    pub good_enough: f64,
    /// How the relaxed problem is solved.
    pub detail: Detail,
}

impl Default for Settings {
    fn default() -> Self {
        Self { seed: 1, attempts: 8, good_enough: 0.001, detail: Detail::Auto }
    }
}

/// A placement of all VPCs: each on one cluster, tenants within k, tables not too full, no cluster above
/// the water level.
#[derive(Clone, Debug)]
pub struct Solution {
    /// Cluster of each VPC.
    pub placement: Placement,
    /// The load of the fullest cluster.
    pub lambda: f64,
    /// Lower bound of the optimum of LP-GCM, and so of lambda.
    pub lp_at_least: f64,
    /// Upper bound of the optimum of LP-GCM.
    pub lp_at_most: f64,
    /// What lambda is at least for whole VPCs: the LP's bound, or the largest VPC or tenant.
    pub bound: f64,
    /// Groups that VPCs were divided in for the LP.
    pub groups: usize,
    /// Roundings that were made.
    pub attempts: u32,
    /// Lambda of the first rounding before repair: the paper's algorithm as it stands.
    pub rounded_lambda: f64,
    /// Tenants above k in the first rounding, before repair.
    pub rounded_over_k: usize,
}

/// Why VPCs cannot be placed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The input is invalid.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The relaxed problem has no solution, or the solver gave none.
    #[error(transparent)]
    Relaxed(#[from] SolverError),
    /// The VPCs' traffic is more than the clusters may carry, for every placement.
    #[error(
        "no placement keeps clusters below the water level: the fullest would be at {:.1}% of its packet rate \
         or more, {:.1}% is allowed; {needed_pps} packets/s are needed, all clusters together forward {available_pps}",
        bound * 100.0, water_level * 100.0
    )]
    TooLoaded {
        /// Lower bound of lambda.
        bound: f64,
        /// Highest load allowed.
        water_level: f64,
        /// Demand of all VPCs.
        needed_pps: u64,
        /// Capacity of all clusters.
        available_pps: u64,
    },
    /// The VPCs do not divide up well enough, or none of the attempts found how.
    #[error(
        "none of {attempts} attempts found a placement below the water level: the best is at {:.1}% of a \
         cluster's packet rate, {:.1}% is allowed, and {:.1}% is the least that is possible",
        lambda * 100.0, water_level * 100.0, bound * 100.0
    )]
    AboveWaterLevel {
        /// Roundings that were repaired.
        attempts: u32,
        /// The best lambda.
        lambda: f64,
        /// Highest load allowed.
        water_level: f64,
        /// Lower bound of lambda.
        bound: f64,
    },
    /// Entries fit in total, but no attempt found a division into tables, each whole VPC in one, with
    /// tenants within k.
    #[error(
        "none of {attempts} attempts fits all VPCs into tables: {needed} entries, {available} places in \
         {clusters} clusters, at most {k} clusters a tenant; the largest VPC has {largest} entries, the \
         largest table {table}"
    )]
    DoesNotFit {
        /// Roundings that were repaired.
        attempts: u32,
        /// Entries of all VPCs.
        needed: u64,
        /// Entries of all clusters.
        available: u64,
        /// Number of clusters.
        clusters: usize,
        /// Clusters a tenant may be on.
        k: usize,
        /// Entries of the largest VPC.
        largest: u64,
        /// Entries of the largest cluster.
        table: u64,
    },
}

/// Places all VPCs so that the fullest cluster is as little loaded as can be found.
///
/// # Errors
/// [`PlacementError`]: what is impossible, or what no attempt found.
pub fn solve(problem: &Problem, settings: &Settings) -> Result<Solution, PlacementError> {
    let relaxation = relax(problem, settings.detail)?;
    let bound = relaxation.at_least().max(problem.whole_vpcs_bound());
    if bound > problem.water_level() * (1.0 + settings.good_enough.min(1e-9)) {
        return Err(PlacementError::TooLoaded {
            bound,
            water_level: problem.water_level(),
            needed_pps: problem.demand_pps(),
            available_pps: problem.capacity_pps(),
        });
    }
    let found = attempts(problem, settings, &relaxation, bound);
    let Some((state, lambda)) = found.best else {
        return Err(does_not_fit(problem, found.attempts));
    };
    if lambda > problem.water_level() {
        return Err(PlacementError::AboveWaterLevel {
            attempts: found.attempts,
            lambda,
            water_level: problem.water_level(),
            bound,
        });
    }
    Ok(Solution {
        placement: state.placement(),
        lambda,
        lp_at_least: relaxation.at_least(),
        lp_at_most: relaxation.at_most(),
        bound,
        groups: relaxation.groups(),
        attempts: found.attempts,
        rounded_lambda: found.rounded_lambda,
        rounded_over_k: found.rounded_over_k,
    })
}

struct Found<'a> {
    best: Option<(State<'a>, f64)>,
    attempts: u32,
    rounded_lambda: f64,
    rounded_over_k: usize,
}

fn attempts<'a>(problem: &'a Problem, settings: &Settings, relaxation: &Relaxation, bound: f64) -> Found<'a> {
    let good = bound * (1.0 + settings.good_enough.max(0.0));
    let mut random = Random::new(settings.seed);
    let mut found = Found { best: None, attempts: 0, rounded_lambda: 0.0, rounded_over_k: 0 };
    for attempt in 0..settings.attempts.max(1) {
        let rounded = rounding::round(problem, relaxation, &mut random);
        let mut state = State::new(problem, rounded.into_iter().map(Some));
        if attempt == 0 {
            found.rounded_lambda = state.lambda();
            found.rounded_over_k = (0..problem.tenants()).filter(|tenant| state.over_k(*tenant)).count();
        }
        found.attempts += 1;
        repair::tenants(&mut state, repair::Keep::Demand);
        if !repair::entries(&mut state) {
            continue;
        }
        repair::balance(&mut state, good);
        let lambda = state.lambda();
        if found.best.as_ref().is_none_or(|(_, best)| lambda < *best) {
            found.best = Some((state, lambda));
        }
        if lambda <= good {
            return found;
        }
    }
    let limit = found.best.as_ref().map_or(f64::INFINITY, |(_, best)| *best);
    if let Some(exact) = exact::best_below(problem, limit) {
        found.best = Some(exact);
    }
    found
}

pub(crate) fn does_not_fit(problem: &Problem, attempts: u32) -> PlacementError {
    PlacementError::DoesNotFit {
        attempts,
        needed: problem.entries(),
        available: problem.capacity_entries(),
        clusters: problem.clusters().len(),
        k: problem.clusters_per_tenant(),
        largest: problem.vpcs().iter().map(|vpc| vpc.entries).max().unwrap_or(0),
        table: problem.clusters().iter().map(|cluster| cluster.capacity_entries).max().unwrap_or(0),
    }
}
