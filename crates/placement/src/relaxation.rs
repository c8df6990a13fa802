//! The relaxed problem and the bounds that it proves (Zeta section VI-A.3, step 1).
//!
//! The paper's problem GCM (equation 1), over VPCs v of tenants t and clusters c, where x and y are 0 or 1:
//!
//! ```text
//! min lambda
//! sum_c x[v,c]          = 1               a VPC is on one cluster
//! sum_v x[v,c] f(v)    <= lambda B(c)     f and B in packets per second
//! x[v,c]               <= y[t,c]          for each VPC v of tenant t
//! sum_c y[t,c]         <= k               a tenant is on at most k clusters
//! ```
//!
//! Sluice adds the row `sum_v x[v,c] e(v) <= E(c)`: the tables of a cluster hold E(c) entries. In LP-GCM, x
//! and y may be fractions.
//!
//! **Without the rows on entries, the optimum is known.** With x[v,c] = y[t,c] = B(c) / sum B all rows hold
//! for any k, and the load of each cluster is total demand divided by total capacity. No solution has a
//! lower maximum load. The rows on entries are the reason to solve an LP, and rounding depends on which of
//! the optimal fractions the solver returns.
//!
//! **Classes of tenants.** V x C variables are too many for a large cloud (30,000 VPCs on 50 clusters).
//! Tenants with similar ratios of entries to demand form a class, large tenants a class of their own, and a
//! class is divided among the clusters like one VPC. Each VPC then gets the fractions of its class. This is
//! a solution of LP-GCM: all VPCs of a tenant have the same fractions, which are also its y, and their sum
//! is 1 <= k. So the optimum of LP-GCM is at most that of the classes: [`Relaxation::upper_bound`].
//!
//! **Why the lower bound is valid.** Take any prices p[c] >= 0 of load and r[c] >= 0 of entries.
//! a[v] is the part of all demand that VPC v has, b[v] its part of all entries, B'(c) the part of all
//! capacity that cluster c has, and E'(c) the number of entries of its tables divided by that of all VPCs.
//! The prices of load are such that sum_c p[c] B'(c) = 1. For each solution of LP-GCM, and with lambda 1
//! where all loads are equal:
//!
//! ```text
//! lambda >= sum_c p[c] (sum_v a[v] x[v,c]) + sum_c r[c] (sum_v b[v] x[v,c] - E'(c))
//!        >= sum_v min_c (p[c] a[v] + r[c] b[v]) - sum_c r[c] E'(c)
//! ```
//!
//! The first line holds by the rows on load and entries, the second because a VPC's fractions
//! sum to 1. The second line is computed over all single VPCs, with the prices that are best for the classes.
//! [`Relaxation::lower_bound`] is a lower bound for any aggregation and any error of the solver, which can
//! only make it lower than necessary. It does not use the rows on tenants, so it is also a bound of LP-GCM
//! with any k, and of every placement of whole VPCs.

use crate::lp::{self, Capacity, Fractions, Group, Prices, Tenants};
use crate::problem::Problem;

/// LP-GCM is solved without aggregation if VPCs x clusters is at most this.
const FULL_MAX: usize = 2_000;
/// Classes x clusters that aggregation aims at.
const AGGREGATED: usize = 20_000;
/// Aggregation makes at least this many classes.
const CLASSES_MIN: usize = 8;
/// Fraction that is subtracted from bounds for the rounding errors of sums of floating point numbers.
const ROUNDING: f64 = 1e-9;

/// The aggregation of the relaxed problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Detail {
    /// Without aggregation if the problem is small, otherwise in classes of tenants.
    #[default]
    Auto,
    /// Without aggregation: V x C + T x C variables.
    Full,
    /// In classes of tenants.
    Classes,
}

/// The relaxed problem has no solution, or the solver found none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SolverError {
    /// The VPCs have more entries than fit into all tables together.
    #[error("the VPCs need {needed} entries, but only {available} fit into all clusters together")]
    Entries {
        /// Entries of all VPCs.
        needed: u64,
        /// Entries of all clusters.
        available: u64,
    },
    /// The solver failed. Every problem whose entries fit in total has a solution, so this is a defect.
    #[error("the solver failed on the LP of {groups} groups and {clusters} clusters: {reason}")]
    NotSolved {
        /// Number of groups of VPCs that were to be divided.
        groups: usize,
        /// Number of clusters.
        clusters: usize,
        /// The solver's error.
        reason: String,
    },
}

/// A solution of LP-GCM, and bounds of its optimum.
#[derive(Clone, Debug)]
pub struct Relaxation {
    lower_bound: f64,
    upper_bound: f64,
    /// For each VPC, the index of its group in `shares`.
    pub(crate) group_of: Vec<usize>,
    /// The fractions of each group on clusters, all above 0.
    pub(crate) shares: Fractions,
}

impl Relaxation {
    /// Lower bound of the maximum load in LP-GCM, and so of that of every placement.
    pub fn lower_bound(&self) -> f64 {
        self.lower_bound
    }

    /// Upper bound of the optimum of LP-GCM: the maximum load of these fractions.
    pub fn upper_bound(&self) -> f64 {
        self.upper_bound
    }

    /// Number of groups (single VPCs, or classes of tenants) that were divided among clusters.
    pub fn groups(&self) -> usize {
        self.shares.len()
    }
}

/// Solves LP-GCM.
///
/// # Errors
/// [`SolverError`]: the entries do not fit, or the solver failed.
pub fn relax(problem: &Problem, detail: Detail) -> Result<Relaxation, SolverError> {
    let (needed, available) = (problem.entries(), problem.capacity_entries());
    if needed > available {
        return Err(SolverError::Entries { needed, available });
    }
    let full = match detail {
        Detail::Full => true,
        Detail::Classes => false,
        Detail::Auto => problem.vpcs().len() * problem.clusters().len() <= FULL_MAX,
    };
    let totals = Totals::of(problem);
    let (groups, group_of) = if full { single_vpcs(problem, &totals) } else { classes(problem, &totals) };
    let capacities = capacities(problem);
    let tenants: Vec<Vec<usize>> =
        (0..problem.tenants()).map(|tenant| problem.vpcs_of(tenant).to_vec()).collect();
    let tenants = Tenants { groups_of: &tenants, clusters_per_tenant: problem.clusters_per_tenant() };
    let failed = |reason| SolverError::NotSolved { groups: groups.len(), clusters: capacities.len(), reason };
    let shares = lp::fractions(&groups, &capacities, full.then_some(tenants)).map_err(failed)?;
    let prices = lp::prices(&groups, &capacities, &shares).map_err(failed)?;
    let mean_load = problem.demand_pps() as f64 / problem.capacity_pps() as f64;
    let lower_bound = lower_bound(problem, &totals, &capacities, &prices).max(1.0 - ROUNDING) * mean_load;
    // Rounding errors may bring the load of these fractions below the bound.
    let upper_bound = (lp::max_load(&groups, &capacities, &shares) * mean_load).max(lower_bound);
    Ok(Relaxation { lower_bound, upper_bound, group_of, shares })
}

/// Sums of all VPCs. At least 1, because they are divisors.
struct Totals {
    demand: f64,
    entries: f64,
}

impl Totals {
    fn of(problem: &Problem) -> Self {
        Self { demand: problem.demand_pps().max(1) as f64, entries: problem.entries().max(1) as f64 }
    }

    fn group(&self, demand_pps: u64, entries: u64) -> Group {
        Group { demand: demand_pps as f64 / self.demand, entries: entries as f64 / self.entries }
    }
}

fn capacities(problem: &Problem) -> Vec<Capacity> {
    let (rate, entries) = (problem.capacity_pps() as f64, Totals::of(problem).entries);
    let capacity = |cluster: &crate::Cluster| Capacity {
        rate: cluster.capacity_pps as f64 / rate,
        entries: cluster.capacity_entries as f64 / entries,
    };
    problem.clusters().iter().map(capacity).collect()
}

fn single_vpcs(problem: &Problem, totals: &Totals) -> (Vec<Group>, Vec<usize>) {
    let group = |vpc: &crate::Vpc| totals.group(vpc.demand_pps, vpc.entries);
    (problem.vpcs().iter().map(group).collect(), (0..problem.vpcs().len()).collect())
}

/// Classes of tenants with similar ratios of entries to demand. No class is large, but a large tenant has its
/// own class.
fn classes(problem: &Problem, totals: &Totals) -> (Vec<Group>, Vec<usize>) {
    let clusters = problem.clusters().len();
    let wanted = (6 * clusters).min(AGGREGATED / clusters).max(CLASSES_MIN);
    let quantum = 3.0 / wanted as f64;
    let mut tenants: Vec<(f64, f64, usize)> = (0..problem.tenants())
        .map(|tenant| {
            let parts = totals.group(problem.tenant_demand(tenant), problem.tenant_entries(tenant));
            let ratio = parts.entries / (parts.demand + parts.entries).max(f64::MIN_POSITIVE);
            (ratio, parts.demand.max(parts.entries), tenant)
        })
        .collect();
    tenants.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
    let mut sums: Vec<(u64, u64)> = Vec::new();
    let mut group_of = vec![0; problem.vpcs().len()];
    let (mut open, mut filled) = (None, 0.0);
    for (_, part, tenant) in tenants {
        let group = if part >= quantum / 2.0 {
            sums.push((0, 0));
            sums.len() - 1
        } else {
            if open.is_none() || filled + part > quantum {
                sums.push((0, 0));
                (open, filled) = (Some(sums.len() - 1), 0.0);
            }
            filled += part;
            open.unwrap_or(sums.len() - 1)
        };
        sums[group].0 += problem.tenant_demand(tenant);
        sums[group].1 += problem.tenant_entries(tenant);
        for vpc in problem.vpcs_of(tenant) {
            group_of[*vpc] = group;
        }
    }
    (sums.into_iter().map(|(demand, entries)| totals.group(demand, entries)).collect(), group_of)
}

/// The lower bound that prices prove, where 1 is the load if all clusters are equally loaded: see the
/// module's documentation.
fn lower_bound(problem: &Problem, totals: &Totals, capacities: &[Capacity], prices: &Prices) -> f64 {
    let cheapest = |vpc: &crate::Vpc| prices.cheapest(totals.group(vpc.demand_pps, vpc.entries)).1;
    let cost: f64 = problem.vpcs().iter().map(cheapest).sum();
    cost * (1.0 - ROUNDING) - prices.of_tables(capacities) * (1.0 + ROUNDING)
}
