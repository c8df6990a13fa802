//! RGCM: places all VPCs at once (Zeta section VI-A.3).
//!
//! The paper rounds once. It proves that with high probability the maximum load is then at most
//! (3 ln d / beta + 3) times the optimum and a tenant on at most k (3 ln d / k + 3) clusters, with d tenants
//! (theorems 4 and 5: 4.2 and 4.4 for 10,000 tenants on 50 clusters). Here several roundings are made. Each
//! is repaired by moves and swaps until no tenant is on more than k clusters, no table is too full and the
//! maximum load is as low as possible, and the best is used. If that is not good enough and the problem is
//! small, all placements are tried ([`exact`]).

use crate::problem::{InputError, Placement, Problem};
use crate::relaxation::{Detail, Relaxation, SolverError, relax};
use crate::state::State;
use crate::{exact, repair, rounding};
use sluice_types::Random;

/// Settings of the search.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Most roundings, at least 1. The search ends earlier if a result is good enough.
    pub attempts: u32,
    /// A maximum load is good enough if it exceeds the bound by at most this fraction: 0.001 is 0.1%.
    pub good_enough: f64,
    /// Aggregation of the relaxed problem.
    pub detail: Detail,
}

impl Default for Settings {
    fn default() -> Self {
        Self { seed: 1, attempts: 8, good_enough: 0.001, detail: Detail::Auto }
    }
}

/// A placement in which each VPC is on one cluster, tenants are within their cluster limit, tables are not
/// too full, and no cluster is above the water level.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The cluster of each VPC.
    pub placement: Placement,
    /// The maximum load.
    pub max_load: f64,
    /// Lower bound of the optimum of LP-GCM, and so of the maximum load.
    pub lp_lower_bound: f64,
    /// Upper bound of the optimum of LP-GCM.
    pub lp_upper_bound: f64,
    /// Lower bound of the maximum load for VPCs that are not divided: the LP's bound, or that of the largest
    /// VPC or tenant.
    pub bound: f64,
    /// Number of groups of VPCs in the LP.
    pub groups: usize,
    /// Number of roundings that were made.
    pub attempts: u32,
    /// Maximum load of the first rounding before repair: the result of the paper's algorithm.
    pub rounded_max_load: f64,
    /// Tenants above the cluster limit in the first rounding, before repair.
    pub rounded_tenants_over_cluster_limit: usize,
}

/// Why VPCs cannot be placed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The input is invalid.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The relaxed problem has no solution, or the solver failed.
    #[error(transparent)]
    Relaxed(#[from] SolverError),
    /// The demand of the VPCs is too high for any placement.
    #[error(
        "no placement keeps all clusters below the water level: the most loaded would be at {:.1}% of its \
         packet rate or more, and {:.1}% is allowed; the demand is {needed_pps} packets/s, the capacity \
         {available_pps}",
        bound * 100.0, water_level * 100.0
    )]
    DemandTooHigh {
        /// Lower bound of the maximum load.
        bound: f64,
        /// Highest load allowed.
        water_level: f64,
        /// Demand of all VPCs, in packets per second.
        needed_pps: u64,
        /// Capacity of all clusters, in packets per second.
        available_pps: u64,
    },
    /// No attempt found a placement below the water level, and there may be none.
    #[error(
        "none of {attempts} attempts found a placement below the water level: the best has a \
         maximum load of {:.1}%, {:.1}% is allowed, and the lower bound is {:.1}%",
        max_load * 100.0, water_level * 100.0, bound * 100.0
    )]
    AboveWaterLevel {
        /// Number of roundings that were repaired.
        attempts: u32,
        /// The lowest maximum load found.
        max_load: f64,
        /// Highest load allowed.
        water_level: f64,
        /// Lower bound of the maximum load.
        bound: f64,
    },
    /// The entries fit in total, but no attempt found a placement in which each VPC fits into the tables of
    /// its cluster and tenants are within their limit.
    #[error(
        "none of {attempts} attempts fits all VPCs into tables: {needed} entries, space for {available} in \
         {clusters} clusters, at most {cluster_limit} clusters per tenant; the largest VPC has {largest} \
         entries, the largest table {table}"
    )]
    DoesNotFit {
        /// Number of roundings that were repaired.
        attempts: u32,
        /// Entries of all VPCs.
        needed: u64,
        /// Entries that fit into all clusters.
        available: u64,
        /// Number of clusters.
        clusters: usize,
        /// Number of clusters on which a tenant may be.
        cluster_limit: usize,
        /// Entries of the largest VPC.
        largest: u64,
        /// Entries of the largest cluster.
        table: u64,
    },
}

/// Places all VPCs so that the maximum load is as low as can be found.
///
/// # Errors
/// [`PlacementError`]: the constraints are impossible, or no attempt satisfied them.
pub fn solve(problem: &Problem, settings: &Settings) -> Result<Solution, PlacementError> {
    let relaxation = relax(problem, settings.detail)?;
    let bound = relaxation.lower_bound().max(problem.whole_vpcs_bound());
    if bound > problem.water_level() * (1.0 + settings.good_enough.min(1e-9)) {
        return Err(PlacementError::DemandTooHigh {
            bound,
            water_level: problem.water_level(),
            needed_pps: problem.demand_pps(),
            available_pps: problem.capacity_pps(),
        });
    }
    let found = attempts(problem, settings, &relaxation, bound);
    let Some((state, max_load)) = found.best else {
        return Err(does_not_fit(problem, found.attempts));
    };
    if max_load > problem.water_level() {
        return Err(PlacementError::AboveWaterLevel {
            attempts: found.attempts,
            max_load,
            water_level: problem.water_level(),
            bound,
        });
    }
    Ok(Solution {
        placement: state.placement(),
        max_load,
        lp_lower_bound: relaxation.lower_bound(),
        lp_upper_bound: relaxation.upper_bound(),
        bound,
        groups: relaxation.groups(),
        attempts: found.attempts,
        rounded_max_load: found.rounded_max_load,
        rounded_tenants_over_cluster_limit: found.rounded_tenants_over_cluster_limit,
    })
}

struct Found<'a> {
    best: Option<(State<'a>, f64)>,
    attempts: u32,
    rounded_max_load: f64,
    rounded_tenants_over_cluster_limit: usize,
}

fn attempts<'a>(problem: &'a Problem, settings: &Settings, relaxation: &Relaxation, bound: f64) -> Found<'a> {
    let good = bound * (1.0 + settings.good_enough.max(0.0));
    let mut random = Random::new(settings.seed);
    let mut found =
        Found { best: None, attempts: 0, rounded_max_load: 0.0, rounded_tenants_over_cluster_limit: 0 };
    for attempt in 0..settings.attempts.max(1) {
        let rounded = rounding::round(problem, relaxation, &mut random);
        let mut state = State::new(problem, rounded.into_iter().map(Some));
        if attempt == 0 {
            found.rounded_max_load = state.max_load();
            found.rounded_tenants_over_cluster_limit =
                (0..problem.tenants()).filter(|tenant| state.exceeds_cluster_limit(*tenant)).count();
        }
        found.attempts += 1;
        repair::tenants(&mut state, repair::Keep::Demand);
        if !repair::entries(&mut state) {
            continue;
        }
        repair::balance(&mut state, good);
        let max_load = state.max_load();
        if found.best.as_ref().is_none_or(|(_, best)| max_load < *best) {
            found.best = Some((state, max_load));
        }
        if max_load <= good {
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
        cluster_limit: problem.clusters_per_tenant(),
        largest: problem.vpcs().iter().map(|vpc| vpc.entries).max().unwrap_or(0),
        table: problem.clusters().iter().map(|cluster| cluster.capacity_entries).max().unwrap_or(0),
    }
}
