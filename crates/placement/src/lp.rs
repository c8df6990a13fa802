//! The linear program of the relaxed problem, solved by the simplex method (crate microlp): fractions of groups
//! on clusters, and prices that prove a lower bound. This file changes with the LP library and with the rows of
//! LP-GCM.
//!
//! A simplex solver returns a vertex of the feasible region, which has few fractions between 0 and 1;
//! rounding relies on that. microlp does not report dual values, so the prices come from the dual program,
//! which is solved with only a few of its rows (see [`prices`]).
//!
//! All amounts are fractions of totals: a group's demand is a fraction of the demand of all VPCs, a cluster's
//! capacity a fraction of the packet rate of all clusters. So the coefficients are between 0 and 1, and the
//! maximum load is 1 where all clusters are equally loaded.

use microlp::{ComparisonOp, OptimizationDirection, Problem as Program, SolveOutcome, Variable};

/// Fractions below this are rounding errors of the solver.
const NEGLIGIBLE: f64 = 1e-9;
/// Fractions of totals below this are omitted from the LP, and a cluster's rate is at least this fraction
/// there: microlp needs the coefficients of a row or column within six orders of magnitude. Bounds use the
/// exact amounts.
const PART_MIN: f64 = 1e-6;
/// Prices are improved until their bound differs from the optimum by this fraction of it.
const PRICE_GAP: f64 = 1e-7;
/// Limit of the prices of entries. The fractions may exceed a table by a rounding error; the dual program
/// with the rows of only these fractions would then have no optimum.
const PRICE_MAX: f64 = 1e6;
/// Most times that the dual program is solved, each time with more of its rows. Almost always once is enough.
const PRICE_ROUNDS: usize = 50;

/// A set of VPCs that is divided among the clusters as one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    /// Fraction of the demand of all VPCs.
    pub demand: f64,
    /// Fraction of the entries of all VPCs.
    pub entries: f64,
}

/// Capacity of a cluster in the LP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// Fraction of the packet rate of all clusters.
    pub rate: f64,
    /// Size of its tables as a fraction of the entries of all VPCs. If it is 1 or more, the tables hold
    /// everything.
    pub entries: f64,
}

impl Capacity {
    fn is_tight(&self) -> bool {
        self.entries < 1.0
    }
}

/// The groups of each tenant, and the cluster limit of tenants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenants<'a> {
    /// The groups of each tenant.
    pub groups_of: &'a [Vec<usize>],
    /// The cluster limit, the paper's k.
    pub clusters_per_tenant: usize,
}

/// Fractions of each group: pairs of cluster and fraction, all above 0, with a sum of 1.
pub(crate) type Fractions = Vec<Vec<(usize, f64)>>;

/// Nonnegative prices. The sum of the prices of load, weighted by the clusters' fractions of the packet rate,
/// is 1.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// Price of all VPCs' demand on each cluster.
    pub load: Vec<f64>,
    /// Price of all VPCs' entries on each cluster.
    pub entries: Vec<f64>,
}

impl Prices {
    /// Prices under which demand costs the same on each cluster, and entries cost nothing.
    pub fn equal(clusters: usize) -> Self {
        Self { load: vec![1.0; clusters], entries: vec![0.0; clusters] }
    }

    /// The cluster on which an amount of demand and entries is cheapest, and its cost there.
    pub fn cheapest(&self, amount: Group) -> (usize, f64) {
        let cost =
            |cluster: usize| self.load[cluster] * amount.demand + self.entries[cluster] * amount.entries;
        let costs = (0..self.load.len()).map(|cluster| (cluster, cost(cluster)));
        costs.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    /// Cost of all tables at the prices of entries.
    pub fn of_tables(&self, capacities: &[Capacity]) -> f64 {
        self.entries.iter().zip(capacities).map(|(price, capacity)| price * capacity.entries).sum()
    }
}

/// The maximum load that results from fractions.
pub(crate) fn max_load(groups: &[Group], capacities: &[Capacity], fractions: &Fractions) -> f64 {
    let mut demands = vec![0.0; capacities.len()];
    for (group, fractions) in groups.iter().zip(fractions) {
        for (cluster, fraction) in fractions {
            demands[*cluster] += group.demand * fraction;
        }
    }
    demands.iter().zip(capacities).map(|(demand, capacity)| demand / capacity.rate).fold(0.0, f64::max)
}

/// A vertex of LP-GCM with the lowest maximum load; with the rows for tenants if there are `tenants`. The
/// error is the solver's text.
pub(crate) fn fractions(
    groups: &[Group],
    capacities: &[Capacity],
    tenants: Option<Tenants<'_>>,
) -> Result<Fractions, String> {
    let mut program = Program::new(OptimizationDirection::Minimize);
    let max_load = program.add_var(1.0, (0.0, f64::INFINITY));
    let mut columns_of = || -> Vec<Variable> {
        capacities.iter().map(|_| program.add_var(0.0, (0.0, f64::INFINITY))).collect()
    };
    let x: Vec<Vec<Variable>> = groups.iter().map(|_| columns_of()).collect();
    let column = |cluster: usize, part: fn(&Group) -> f64| -> Vec<(Variable, f64)> {
        let parts = groups.iter().map(part).zip(&x);
        parts.filter(|(part, _)| *part >= PART_MIN).map(|(part, x)| (x[cluster], part)).collect()
    };
    for (cluster, capacity) in capacities.iter().enumerate() {
        let mut load = column(cluster, |group| group.demand);
        load.push((max_load, -capacity.rate.max(PART_MIN)));
        program.add_constraint(load, ComparisonOp::Le, 0.0);
        if capacity.is_tight() {
            let entries = column(cluster, |group| group.entries);
            program.add_constraint(entries, ComparisonOp::Le, capacity.entries);
        }
    }
    for columns in &x {
        program.add_constraint(sum_of(columns), ComparisonOp::Eq, 1.0);
    }
    if let Some(tenants) = tenants {
        add_tenants(&mut program, &x, tenants);
    }
    let values = optimum(&program)?;
    Ok(x.iter().map(|columns| normalized(columns.iter().map(|column| values(*column)))).collect())
}

/// Adds x <= y for each group of a tenant, and a limit of k for the sum of y.
fn add_tenants(program: &mut Program, x: &[Vec<Variable>], tenants: Tenants<'_>) {
    for groups in tenants.groups_of {
        let clusters = groups.first().map_or(0, |group| x[*group].len());
        let y: Vec<Variable> = (0..clusters).map(|_| program.add_var(0.0, (0.0, 1.0))).collect();
        for group in groups {
            for (x, y) in x[*group].iter().zip(&y) {
                program.add_constraint([(*x, 1.0), (*y, -1.0)], ComparisonOp::Le, 0.0);
            }
        }
        program.add_constraint(sum_of(&y), ComparisonOp::Le, tenants.clusters_per_tenant as f64);
    }
}

fn sum_of(columns: &[Variable]) -> Vec<(Variable, f64)> {
    columns.iter().map(|column| (*column, 1.0)).collect()
}

fn normalized(values: impl Iterator<Item = f64>) -> Vec<(usize, f64)> {
    let mut fractions: Vec<(usize, f64)> =
        values.enumerate().filter(|(_, value)| *value > NEGLIGIBLE).collect();
    let sum: f64 = fractions.iter().map(|(_, fraction)| fraction).sum();
    for (_, fraction) in &mut fractions {
        *fraction /= sum;
    }
    fractions
}

/// The value of each variable at the optimum.
fn optimum(program: &Program) -> Result<impl Fn(Variable) -> f64 + use<>, String> {
    match program.solve() {
        Ok(SolveOutcome::Solution(solution)) => Ok(move |variable| solution.var_value(variable)),
        // No limit is set that could interrupt it.
        Ok(SolveOutcome::Interrupted(_)) => Err("interrupted".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Prices whose bound is the optimum of the LP without the rows for tenants, or close to it.
///
/// The dual program maximizes the sum of the groups' costs minus the cost of all tables, where the cost of a
/// group is at most that on any cluster. That is one row for each group and cluster, of which few matter. It
/// is solved with the rows of the given fractions (a group is cheapest where it has a fraction of an optimal
/// solution), and again with a row for each group that is cheaper elsewhere, until no group is cheaper.
pub(crate) fn prices(
    groups: &[Group],
    capacities: &[Capacity],
    fractions: &Fractions,
) -> Result<Prices, String> {
    let optimum = max_load(groups, capacities, fractions);
    let mut best = (1.0, Prices::equal(capacities.len()));
    let pairs = fractions.iter().enumerate();
    let mut rows: Vec<(usize, usize)> = pairs
        .flat_map(|(group, fractions)| fractions.iter().map(move |(cluster, _)| (group, *cluster)))
        .collect();
    for _ in 0..PRICE_ROUNDS {
        if best.0 * (1.0 + PRICE_GAP) >= optimum {
            break;
        }
        let (prices, costs) = dual(groups, capacities, &rows)?;
        let mut bound = -prices.of_tables(capacities);
        let before = rows.len();
        for (group, cost) in costs.into_iter().enumerate() {
            let (cluster, cheapest) = prices.cheapest(groups[group]);
            bound += cheapest;
            if cheapest < cost - NEGLIGIBLE {
                rows.push((group, cluster));
            }
        }
        if bound > best.0 {
            best = (bound, prices);
        }
        if rows.len() == before {
            break;
        }
    }
    Ok(best.1)
}

/// Solves the dual program with some of its rows. Returns prices and the cost of each group.
fn dual(
    groups: &[Group],
    capacities: &[Capacity],
    rows: &[(usize, usize)],
) -> Result<(Prices, Vec<f64>), String> {
    let mut program = Program::new(OptimizationDirection::Maximize);
    let load: Vec<Variable> = capacities.iter().map(|_| program.add_var(0.0, (0.0, f64::INFINITY))).collect();
    let entries: Vec<Option<Variable>> = capacities
        .iter()
        .map(|capacity| capacity.is_tight().then(|| program.add_var(-capacity.entries, (0.0, PRICE_MAX))))
        .collect();
    let costs: Vec<Variable> = groups.iter().map(|_| program.add_var(1.0, (0.0, f64::INFINITY))).collect();
    let weighted = load.iter().zip(capacities).map(|(price, capacity)| (*price, capacity.rate.max(PART_MIN)));
    program.add_constraint(weighted.collect::<Vec<_>>(), ComparisonOp::Le, 1.0);
    for (group, cluster) in rows {
        let mut row = vec![(costs[*group], 1.0)];
        let Group { demand, entries: filling } = groups[*group];
        row.extend((demand >= PART_MIN).then_some((load[*cluster], -demand)));
        row.extend(entries[*cluster].filter(|_| filling >= PART_MIN).map(|price| (price, -filling)));
        program.add_constraint(row, ComparisonOp::Le, 0.0);
    }
    let values = optimum(&program)?;
    let load: Vec<f64> = load.iter().map(|price| values(*price).max(0.0)).collect();
    let weight: f64 = load.iter().zip(capacities).map(|(price, capacity)| price * capacity.rate).sum();
    if weight <= 0.0 {
        return Ok((Prices::equal(capacities.len()), vec![0.0; groups.len()]));
    }
    let entries = entries.iter().map(|price| price.map_or(0.0, |price| values(price).max(0.0)) / weight);
    let prices =
        Prices { entries: entries.collect(), load: load.iter().map(|price| price / weight).collect() };
    Ok((prices, costs.iter().map(|cost| values(*cost) / weight).collect()))
}
