//! The paper's own RGCM (Zeta section VI-A.3, algorithm 1), with which Sluice's is compared: LP-GCM as in equation 1,
//! without classes of tenants and without a row for entries, and one randomized rounding without repair. It changes
//! only if the paper was read wrongly.

use crate::Failure;
use microlp::{ComparisonOp, OptimizationDirection, Problem as Program, SolveOutcome, Variable};
use sluice_placement::{Placement, Problem};
use sluice_types::Random;
use std::collections::BTreeMap;

/// Solution of LP-GCM.
pub struct Fractions {
    /// x, by VPC and cluster.
    of_vpc: Vec<Vec<f64>>,
    /// y, by tenant and cluster.
    of_tenant: Vec<Vec<f64>>,
    /// The VPCs of each tenant.
    vpcs_of: Vec<Vec<usize>>,
}

/// Step 1: solves LP-GCM with all its variables and rows.
pub fn solve_lp(problem: &Problem) -> Result<Fractions, Failure> {
    let (clusters, vpcs) = (problem.clusters(), problem.vpcs());
    let mut owned = BTreeMap::<_, Vec<usize>>::new();
    for (index, vpc) in vpcs.iter().enumerate() {
        owned.entry(vpc.tenant).or_default().push(index);
    }
    let vpcs_of: Vec<Vec<usize>> = owned.into_values().collect();
    let mut program = Program::new(OptimizationDirection::Minimize);
    let lambda = program.add_var(1.0, (0.0, f64::INFINITY));
    let mut variables = |count: usize| -> Vec<Vec<Variable>> {
        (0..count).map(|_| clusters.iter().map(|_| program.add_var(0.0, (0.0, 1.0))).collect()).collect()
    };
    let (x, y) = (variables(vpcs.len()), variables(vpcs_of.len()));
    let sum = |row: &[Variable]| row.iter().map(|variable| (*variable, 1.0)).collect::<Vec<_>>();
    for row in &x {
        program.add_constraint(sum(row), ComparisonOp::Eq, 1.0);
    }
    for (index, cluster) in clusters.iter().enumerate() {
        // In units of the cluster's rate, so that the coefficients are of similar size.
        let rate = cluster.capacity_pps as f64;
        let loads = vpcs.iter().zip(&x).map(|(vpc, x)| (x[index], vpc.demand_pps as f64 / rate));
        let mut row: Vec<(Variable, f64)> = loads.collect();
        row.push((lambda, -1.0));
        program.add_constraint(row, ComparisonOp::Le, 0.0);
    }
    for (y, owned) in y.iter().zip(&vpcs_of) {
        for vpc in owned {
            for (x, y) in x[*vpc].iter().zip(y) {
                program.add_constraint([(*x, 1.0), (*y, -1.0)], ComparisonOp::Le, 0.0);
            }
        }
        program.add_constraint(sum(y), ComparisonOp::Le, problem.clusters_per_tenant() as f64);
    }
    let SolveOutcome::Solution(solution) = program.solve()? else {
        return Err("the solver was interrupted".into());
    };
    let values = |rows: &[Vec<Variable>]| -> Vec<Vec<f64>> {
        rows.iter().map(|row| row.iter().map(|x| solution.var_value(*x).max(0.0)).collect()).collect()
    };
    Ok(Fractions { of_vpc: values(&x), of_tenant: values(&y), vpcs_of })
}

/// Step 2: rounds the fractions once.
pub fn round(problem: &Problem, fractions: &Fractions, seed: u64) -> Placement {
    let mut random = Random::new(seed);
    let mut placement = Placement::new();
    for (y, owned) in fractions.of_tenant.iter().zip(&fractions.vpcs_of) {
        // Lines 5 to 10: each cluster with the probability y, again until there is one. Each tenant has a VPC,
        // so the sum of its y is at least 1, and the loop ends.
        let mut chosen: Vec<usize> = Vec::new();
        while chosen.is_empty() {
            chosen = (0..y.len()).filter(|cluster| random.unit() < y[*cluster]).collect();
        }
        for vpc in owned {
            // Lines 11 to 16: one of these clusters with a probability in proportion to x / y.
            let x = &fractions.of_vpc[*vpc];
            let mut lengths: Vec<f64> = chosen.iter().map(|cluster| x[*cluster] / y[*cluster]).collect();
            if lengths.iter().sum::<f64>() <= 0.0 {
                // The paper leaves open what happens if the VPC has no fraction on any of them: all are
                // equally likely.
                lengths = vec![1.0; chosen.len()];
            }
            let mut point = random.unit() * lengths.iter().sum::<f64>();
            let found = lengths.iter().position(|length| {
                point -= length;
                point < 0.0
            });
            let cluster = chosen[found.unwrap_or(chosen.len() - 1)];
            placement.insert(problem.vpcs()[*vpc].id, problem.clusters()[cluster].id);
        }
    }
    placement
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demands::Cloud;

    /// Catches fractions that are not a solution, and VPCs that are rounded to a cluster without a fraction.
    #[test]
    fn vpcs_are_rounded_to_clusters_of_their_tenant() {
        let cloud = Cloud { vpcs: 60, tenants: 20, clusters: 5, k: 2, largest: None, ..Cloud::PUBLIC };
        let problem = cloud.draw().unwrap();
        let fractions = solve_lp(&problem).unwrap();
        let sums = |rows: &[Vec<f64>]| rows.iter().map(|row| row.iter().sum::<f64>()).collect::<Vec<_>>();
        assert!(sums(&fractions.of_vpc).iter().all(|sum| (sum - 1.0).abs() < 1e-6));
        assert!(sums(&fractions.of_tenant).iter().all(|sum| *sum <= 2.0 + 1e-6));
        let placement = round(&problem, &fractions, 1);
        assert_eq!(placement.len(), 60);
        for (y, owned) in fractions.of_tenant.iter().zip(&fractions.vpcs_of) {
            for vpc in owned {
                let cluster = placement[&problem.vpcs()[*vpc].id];
                let index = problem.clusters().iter().position(|known| known.id == cluster).unwrap();
                assert!(y[index] > 0.0, "a VPC is on a cluster that its tenant does not have");
            }
        }
        assert!(problem.max_load(&placement).unwrap() >= problem.whole_vpcs_bound() * (1.0 - 1e-9));
    }
}
