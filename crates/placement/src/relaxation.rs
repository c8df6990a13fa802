//! The relaxed problem, and what it proves (Zeta section VI-A.3, step 1).
//!
//! The paper's problem, GCM (equation 1), over VPCs v of tenants t and
//! clusters c, x and y being 0 or 1:
//!
//! ```text
//! min lambda
//! sum_c x[v,c]          = 1               a VPC is on one cluster
//! sum_v x[v,c] f(v)    <= lambda B(c)     f and B in packets a second
//! x[v,c]               <= y[t,c]          for v of t
//! sum_c y[t,c]         <= k               a tenant is on at most k clusters
//! ```
//!
//! and here also `sum_v x[v,c] e(v) <= E(c)`: a cluster's tables hold E(c)
//! entries. LP-GCM lets x and y be fractions.
//!
//! **Its optimum without the row on entries needs no solver.** With
//! x[v,c] = y[t,c] = B(c) / sum B every row holds, whatever k is, and every
//! cluster's load is total demand by total capacity, below which no solution
//! is. The row on entries is what makes it a problem to solve, and which
//! fractions the solver returns is what rounding works with.
//!
//! **Aggregated.** V x C variables are too many for a large cloud (30,000 VPCs
//! by 50 clusters). Tenants are put in classes by their ratio of entries to
//! demand, large ones in a class of their own, and a class is divided among
//! clusters as one fluid: a solution of it, given to each VPC of the class, is
//! one of LP-GCM, since all of a tenant's VPCs then have the same fractions,
//! which also are its y, and sum to 1 <= k. So the optimum of LP-GCM is at
//! most that of the classes: [`Relaxation::at_most`].
//!
//! **Why the bound is still valid.** Take any prices p[c] >= 0 of load, summing
//! to 1, and r[c] >= 0 of entries. For every solution of LP-GCM (in units
//! where the mean load is 1, a[v,c] being the load and b[v,c] the part of the
//! entries that v would be on c):
//!
//! ```text
//! lambda >= sum_c p[c] (sum_v a[v,c] x[v,c]) + sum_c r[c] (sum_v b[v,c] x[v,c] - 1)
//!        >= sum_v min_c (p[c] a[v,c] + r[c] b[v,c]) - sum_c r[c]
//! ```
//!
//! by the rows on load and entries first, and because v's fractions sum to 1
//! then. The last line is computed over all single VPCs, with the classes'
//! duals as prices: [`Relaxation::at_least`] is a lower bound whatever was
//! aggregated and however inexact the solver was; only how near it comes
//! depends on them. It leaves the rows on tenants out, so it also bounds
//! LP-GCM with any k, and every placement of whole VPCs.

use crate::problem::Problem;
use highs::{Col, HighsModelStatus, HighsStatus, RowProblem, Sense};
use std::num::NonZeroU32;

/// V x C up to which LP-GCM is solved as it stands.
const FULL_MAX: usize = 2_000;
/// Classes x clusters that are aimed at.
const AGGREGATED: usize = 20_000;
/// Classes below which aggregation does not go.
const CLASSES_MIN: usize = 8;
/// Fractions below this are the solver's rounding.
const FRACTION_MIN: f64 = 1e-9;
/// Taken off bounds, for what sums of floating point numbers lose.
const ROUNDING: f64 = 1e-9;

/// How exactly the relaxed problem is solved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Detail {
    /// As it stands where it is small, in classes where it is large.
    #[default]
    Auto,
    /// As it stands: V x C + T x C variables.
    Full,
    /// In classes of tenants.
    Classes,
}

/// HiGHS gave no solution.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SolverError {
    /// There are more entries than all tables together hold, so there is no solution.
    #[error("the VPCs need {needed} entries, all clusters together hold {available}")]
    Entries {
        /// Entries of all VPCs.
        needed: u64,
        /// Entries of all clusters.
        available: u64,
    },
    /// It ended otherwise than with an optimum.
    #[error("the LP of {columns} columns was not solved: HiGHS says {status}")]
    NotSolved {
        /// Size of the LP.
        columns: usize,
        /// Its word for it.
        status: String,
    },
}

/// A solution of LP-GCM, and what its optimum is between.
#[derive(Clone, Debug)]
pub struct Relaxation {
    at_least: f64,
    at_most: f64,
    /// Of each VPC, where its fractions stand.
    pub(crate) group_of: Vec<usize>,
    /// Clusters and the fractions on them, those above 0.
    pub(crate) shares: Vec<Vec<(usize, f64)>>,
}

impl Relaxation {
    /// Lambda of LP-GCM, and with it of every placement, is at least this.
    pub fn at_least(&self) -> f64 {
        self.at_least
    }

    /// Lambda of LP-GCM is at most this: that of the fractions found.
    pub fn at_most(&self) -> f64 {
        self.at_most
    }

    /// In how many groups, single VPCs or classes of tenants, the VPCs were divided among clusters.
    pub fn groups(&self) -> usize {
        self.shares.len()
    }
}

/// What is divided among clusters as one.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    demand: f64,
    entries: f64,
}

/// The LP's numbers: the mean load is 1.
struct Scale<'a> {
    problem: &'a Problem,
    mean_load: f64,
}

impl Scale<'_> {
    fn load(&self, demand: f64, cluster: usize) -> f64 {
        demand / self.problem.clusters()[cluster].capacity_pps as f64 / self.mean_load
    }

    /// The part of a cluster's tables that entries take.
    fn filling(&self, entries: f64, cluster: usize) -> f64 {
        entries / self.problem.clusters()[cluster].capacity_entries as f64
    }
}

/// Solves LP-GCM.
///
/// # Errors
/// [`SolverError`]: entries that cannot fit, or HiGHS's own.
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
    let (groups, group_of) = if full { every_vpc(problem) } else { classes(problem) };
    let demand = problem.demand_pps() as f64;
    let mean_load = if demand > 0.0 { demand / problem.capacity_pps() as f64 } else { 1.0 };
    let scale = Scale { problem, mean_load };
    let mut lp = Lp::new(&scale, &groups);
    if full {
        lp.add_tenants(problem);
    }
    let solved = lp.solve()?;
    let at_least = bound(&scale, &solved).max(demand / problem.capacity_pps() as f64 * (1.0 - ROUNDING));
    Ok(Relaxation {
        at_least,
        // The load of these fractions; the solver's objective may be a rounding error below the bound.
        at_most: (load_of(&scale, &groups, &solved.shares) * mean_load).max(at_least),
        group_of,
        shares: solved.shares,
    })
}

fn every_vpc(problem: &Problem) -> (Vec<Group>, Vec<usize>) {
    let group = |vpc: &crate::Vpc| Group { demand: vpc.demand_pps as f64, entries: vpc.entries as f64 };
    (problem.vpcs().iter().map(group).collect(), (0..problem.vpcs().len()).collect())
}

/// Tenants of similar ratio of entries to demand together, none of the classes large; a tenant that is
/// large itself stands alone.
fn classes(problem: &Problem) -> (Vec<Group>, Vec<usize>) {
    let clusters = problem.clusters().len();
    let wanted = (6 * clusters).min(AGGREGATED / clusters).max(CLASSES_MIN);
    let quantum = 3.0 / wanted as f64;
    let (demand, entries) = (problem.demand_pps().max(1) as f64, problem.entries().max(1) as f64);
    let mut tenants: Vec<(f64, f64, usize)> = (0..problem.tenants())
        .map(|tenant| {
            let share = problem.tenant_demand(tenant) as f64 / demand;
            let filling = problem.tenant_entries(tenant) as f64 / entries;
            (filling / (share + filling).max(f64::MIN_POSITIVE), share.max(filling), tenant)
        })
        .collect();
    tenants.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
    let mut groups: Vec<Group> = Vec::new();
    let mut group_of = vec![0; problem.vpcs().len()];
    let (mut open, mut filled) = (None, 0.0);
    for (_, share, tenant) in tenants {
        let group = if share >= quantum / 2.0 {
            groups.push(Group::default());
            groups.len() - 1
        } else {
            if open.is_none() || filled + share > quantum {
                groups.push(Group::default());
                (open, filled) = (Some(groups.len() - 1), 0.0);
            }
            filled += share;
            open.unwrap_or(groups.len() - 1)
        };
        groups[group].demand += problem.tenant_demand(tenant) as f64;
        groups[group].entries += problem.tenant_entries(tenant) as f64;
        for vpc in problem.vpcs_of(tenant) {
            group_of[*vpc] = group;
        }
    }
    (groups, group_of)
}

/// The LP as it grows, and its columns.
struct Lp {
    rows: RowProblem,
    /// x of group and cluster.
    x: Vec<Vec<Col>>,
    /// Clusters whose tables could be too small for all, in the order of their rows.
    tight: Vec<usize>,
    clusters: usize,
}

struct Solved {
    shares: Vec<Vec<(usize, f64)>>,
    load_prices: Vec<f64>,
    entry_prices: Vec<f64>,
}

impl Lp {
    fn new(scale: &Scale<'_>, groups: &[Group]) -> Self {
        let clusters = scale.problem.clusters().len();
        let entries = scale.problem.entries();
        let mut rows = RowProblem::default();
        let lambda = rows.add_column(1.0, 0.0..);
        let x: Vec<Vec<Col>> =
            groups.iter().map(|_| (0..clusters).map(|_| rows.add_column(0.0, 0.0..)).collect()).collect();
        for cluster in 0..clusters {
            let mut row: Vec<(Col, f64)> = x
                .iter()
                .zip(groups)
                .map(|(columns, group)| (columns[cluster], scale.load(group.demand, cluster)))
                .filter(|(_, load)| *load > 0.0)
                .collect();
            row.push((lambda, -1.0));
            rows.add_row(..=0.0, row);
        }
        let tight: Vec<usize> = (0..clusters)
            .filter(|cluster| scale.problem.clusters()[*cluster].capacity_entries < entries)
            .collect();
        for cluster in &tight {
            let row: Vec<(Col, f64)> = x
                .iter()
                .zip(groups)
                .map(|(columns, group)| (columns[*cluster], scale.filling(group.entries, *cluster)))
                .filter(|(_, filling)| *filling > 0.0)
                .collect();
            rows.add_row(..=1.0, row);
        }
        for columns in &x {
            rows.add_row(1.0..=1.0, columns.iter().map(|column| (*column, 1.0)));
        }
        Self { rows, x, tight, clusters }
    }

    /// The rows on tenants, groups being single VPCs.
    fn add_tenants(&mut self, problem: &Problem) {
        for tenant in 0..problem.tenants() {
            let y: Vec<Col> = (0..self.clusters).map(|_| self.rows.add_column(0.0, 0.0..=1.0)).collect();
            for vpc in problem.vpcs_of(tenant) {
                for (x, y) in self.x[*vpc].iter().zip(&y) {
                    self.rows.add_row(..=0.0, [(*x, 1.0), (*y, -1.0)]);
                }
            }
            self.rows.add_row(..=problem.clusters_per_tenant() as f64, y.iter().map(|y| (*y, 1.0)));
        }
    }

    fn solve(self) -> Result<Solved, SolverError> {
        let columns = self.rows.num_cols();
        let failed = |status: String| SolverError::NotSolved { columns, status };
        let by_status = |status: HighsStatus| failed(format!("{status:?}"));
        let mut model = self.rows.try_optimise(Sense::Minimise).map_err(by_status)?;
        model.make_quiet();
        // One thread and a fixed seed: the same problem, the same solution.
        model.set_threads(NonZeroU32::MIN);
        model.try_set_option("parallel", "off").map_err(|error| failed(format!("{error:?}")))?;
        model.try_set_option("random_seed", 0).map_err(|error| failed(format!("{error:?}")))?;
        let solved = model.try_solve().map_err(by_status)?;
        if solved.status() != HighsModelStatus::Optimal {
            return Err(failed(format!("{:?}", solved.status())));
        }
        let solution = solved.get_solution();
        let values = solution.columns();
        let shares = (0..self.x.len()).map(|group| {
            // Behind lambda, a group's columns follow each other.
            let of_group = &values[1 + group * self.clusters..1 + (group + 1) * self.clusters];
            let sum: f64 = of_group.iter().filter(|share| **share > FRACTION_MIN).sum();
            let shares = of_group.iter().copied().enumerate().filter(|(_, share)| *share > FRACTION_MIN);
            shares.map(|(cluster, share)| (cluster, share / sum)).collect()
        });
        let duals = solution.dual_rows();
        let mut entry_prices = vec![0.0; self.clusters];
        for (row, cluster) in self.tight.iter().enumerate() {
            entry_prices[*cluster] = (-duals[self.clusters + row]).max(0.0);
        }
        let load_prices = duals[..self.clusters].iter().map(|dual| (-dual).max(0.0)).collect();
        Ok(Solved { shares: shares.collect(), load_prices, entry_prices })
    }
}

/// The bound that the duals prove: see the module's text.
fn bound(scale: &Scale<'_>, solved: &Solved) -> f64 {
    let sum: f64 = solved.load_prices.iter().sum();
    if sum <= 0.0 {
        return 0.0;
    }
    // What one packet a second, and what one entry, costs on each cluster.
    let prices: Vec<(f64, f64)> = (0..solved.load_prices.len())
        .map(|cluster| {
            let load = solved.load_prices[cluster] / sum * scale.load(1.0, cluster);
            (load, solved.entry_prices[cluster] / sum * scale.filling(1.0, cluster))
        })
        .collect();
    let cheapest = |vpc: &crate::Vpc| {
        let (demand, entries) = (vpc.demand_pps as f64, vpc.entries as f64);
        prices.iter().map(|(load, entry)| load * demand + entry * entries).fold(f64::INFINITY, f64::min)
    };
    let cost: f64 = scale.problem.vpcs().iter().map(cheapest).sum();
    let paid: f64 = solved.entry_prices.iter().map(|price| price / sum).sum();
    (cost * (1.0 - ROUNDING) - paid * (1.0 + ROUNDING)).max(0.0) * scale.mean_load
}

/// The load of the fullest cluster by fractions.
fn load_of(scale: &Scale<'_>, groups: &[Group], shares: &[Vec<(usize, f64)>]) -> f64 {
    let mut loads = vec![0.0; scale.problem.clusters().len()];
    for (group, shares) in groups.iter().zip(shares) {
        for (cluster, share) in shares {
            loads[*cluster] += scale.load(group.demand * share, *cluster);
        }
    }
    loads.into_iter().fold(0.0, f64::max)
}
