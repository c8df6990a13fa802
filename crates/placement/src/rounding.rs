//! Rounds fractions to whole VPCs at random (Zeta section VI-A.3, algorithm 1, step 2).
//!
//! A tenant gets each cluster with the probability y[t,c]; this is repeated until it has one. A VPC gets one
//! of its tenant's clusters with a probability in proportion to x[v,c] / y[t,c]. So the expected load of a
//! cluster is that of the fractions (equation 12).
//!
//! y is computed from the tenant's VPCs instead of taken from the solver, which may return a higher one,
//! because y has no cost in LP-GCM. It is the largest fraction of the VPCs, and at least the fraction of the
//! cluster that the tenant's traffic would use. So a tenant that is too large for one cluster is expected to
//! get as many as it needs.

use crate::problem::Problem;
use crate::relaxation::Relaxation;
use sluice_types::Random;

/// Rounds in which a tenant may get no cluster. In each, that happens with a probability of at most 1/e.
const ROUNDS_MAX: u32 = 64;

/// Draws the cluster of each VPC. The rows for entries and for the cluster limit hold in expectation only.
pub(crate) fn round(problem: &Problem, relaxation: &Relaxation, random: &mut Random) -> Vec<usize> {
    let mut at = vec![0; problem.vpcs().len()];
    let mut probability = vec![0.0; problem.clusters().len()];
    let mut chosen = vec![false; problem.clusters().len()];
    for tenant in 0..problem.tenants() {
        let wanted = probabilities(problem, relaxation, tenant, &mut probability);
        choose(&wanted, &probability, random, &mut chosen);
        for vpc in problem.vpcs_of(tenant) {
            at[*vpc] =
                draw(&relaxation.shares[relaxation.group_of[*vpc]], &wanted, &probability, &chosen, random);
        }
        for cluster in wanted {
            (probability[cluster], chosen[cluster]) = (0.0, false);
        }
    }
    at
}

/// Computes y of a tenant. Returns the clusters where it is above 0, in order.
fn probabilities(
    problem: &Problem,
    relaxation: &Relaxation,
    tenant: usize,
    probability: &mut [f64],
) -> Vec<usize> {
    let mut loads: Vec<(usize, f64)> = Vec::new();
    for vpc in problem.vpcs_of(tenant) {
        let demand = problem.vpcs()[*vpc].demand_pps as f64;
        for (cluster, share) in &relaxation.shares[relaxation.group_of[*vpc]] {
            probability[*cluster] = share.max(probability[*cluster]);
            loads.push((*cluster, share * demand));
        }
    }
    loads.sort_by_key(|(cluster, _)| *cluster);
    let mut wanted = Vec::new();
    for of_cluster in loads.chunk_by(|a, b| a.0 == b.0) {
        let cluster = of_cluster[0].0;
        let load = of_cluster.iter().map(|(_, load)| load).sum::<f64>()
            / problem.clusters()[cluster].capacity_pps as f64;
        if relaxation.upper_bound() > 0.0 {
            probability[cluster] = probability[cluster].max(load / relaxation.upper_bound()).min(1.0);
        }
        wanted.push(cluster);
    }
    wanted
}

/// Draws the clusters of a tenant.
fn choose(wanted: &[usize], probability: &[f64], random: &mut Random, chosen: &mut [bool]) {
    for _ in 0..ROUNDS_MAX {
        let mut any = false;
        for cluster in wanted {
            chosen[*cluster] = random.unit() < probability[*cluster];
            any |= chosen[*cluster];
        }
        if any {
            return;
        }
    }
    if let Some(cluster) = wanted.iter().max_by(|a, b| probability[**a].total_cmp(&probability[**b])) {
        chosen[*cluster] = true;
    }
}

/// Draws the cluster of a VPC among its tenant's clusters. If the VPC has no fraction on any of them, which
/// the paper leaves open, the probability of each is in proportion to its y.
fn draw(
    shares: &[(usize, f64)],
    wanted: &[usize],
    probability: &[f64],
    chosen: &[bool],
    random: &mut Random,
) -> usize {
    let own: Vec<(usize, f64)> = shares
        .iter()
        .filter(|(cluster, _)| chosen[*cluster])
        .map(|(cluster, share)| (*cluster, share / probability[*cluster]))
        .collect();
    let any = || wanted.iter().filter(|c| chosen[**c]).map(|c| (*c, probability[*c])).collect();
    let intervals: Vec<(usize, f64)> = if own.is_empty() { any() } else { own };
    let mut point = random.unit() * intervals.iter().map(|(_, length)| length).sum::<f64>();
    for (cluster, length) in &intervals {
        point -= length;
        if point < 0.0 {
            return *cluster;
        }
    }
    intervals.last().map_or(0, |(cluster, _)| *cluster)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Cluster, Vpc};
    use crate::relaxation::{Detail, relax};
    use sluice_types::{ClusterId, TenantId, VpcId};

    #[test]
    fn expected_loads_are_those_of_the_fractions() {
        let clusters = (1..=4)
            .map(|id| Cluster {
                id: ClusterId::new(id),
                capacity_pps: 1000 * id,
                capacity_entries: 10_000 / id,
            })
            .collect();
        let vpcs = (1..=60)
            .map(|id| Vpc {
                id: VpcId::new(id),
                tenant: TenantId::new(1 + id % 20),
                demand_pps: 10 + id,
                entries: 300 - 2 * id,
            })
            .collect();
        let problem = Problem::new(clusters, vpcs, 3, 1.0).unwrap();
        for detail in [Detail::Full, Detail::Classes] {
            let relaxation = relax(&problem, detail).unwrap();
            let mut wanted = vec![0.0; 4];
            for (vpc, group) in relaxation.group_of.iter().enumerate() {
                for (cluster, share) in &relaxation.shares[*group] {
                    wanted[*cluster] += share * problem.vpcs()[vpc].demand_pps as f64;
                }
            }
            let (mut sums, mut random) = (vec![0.0; 4], Random::new(1));
            const ROUNDS: usize = 4_000;
            for _ in 0..ROUNDS {
                for (vpc, cluster) in round(&problem, &relaxation, &mut random).into_iter().enumerate() {
                    sums[cluster] += problem.vpcs()[vpc].demand_pps as f64 / ROUNDS as f64;
                }
            }
            let total: f64 = wanted.iter().sum();
            for (sum, wanted) in sums.iter().zip(&wanted) {
                // If a tenant gets no cluster it is drawn again, which slightly favors clusters with a large
                // y.
                assert!((sum - wanted).abs() < 0.05 * total, "{detail:?}: {sums:?}, not {wanted:?}");
            }
        }
    }
}
