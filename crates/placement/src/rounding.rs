//! Fractions to whole VPCs, at random (Zeta section VI-A.3, algorithm 1, step 2).
//!
//! A tenant gets each cluster with the likelihood y[t,c], again until it has
//! one; a VPC gets one of its tenant's clusters with a likelihood in proportion
//! to x[v,c] / y[t,c]. So the expected load of a cluster is that of the
//! fractions (equation 12).
//!
//! y is what the tenant's VPCs need, not what the solver left in it, which costs
//! nothing in LP-GCM: the largest of the VPCs' fractions, and at least as much as
//! the tenant's traffic would fill of the cluster, so that a tenant too large for
//! one cluster is expected on as many as it takes.

use crate::problem::Problem;
use crate::random::Random;
use crate::relaxation::Relaxation;

/// Rounds in which a tenant may get no cluster; each leaves it with none with a likelihood of at most 1/e.
const ROUNDS_MAX: u32 = 64;

/// Of each VPC, its cluster. Rows on entries and on k hold in expectation only.
pub(crate) fn round(problem: &Problem, relaxation: &Relaxation, random: &mut Random) -> Vec<usize> {
    let mut at = vec![0; problem.vpcs().len()];
    let mut wish = vec![0.0; problem.clusters().len()];
    let mut chosen = vec![false; problem.clusters().len()];
    for tenant in 0..problem.tenants() {
        let wanted = wishes(problem, relaxation, tenant, &mut wish);
        choose(&wanted, &wish, random, &mut chosen);
        for vpc in problem.vpcs_of(tenant) {
            at[*vpc] = draw(&relaxation.shares[relaxation.group_of[*vpc]], &wanted, &wish, &chosen, random);
        }
        for cluster in wanted {
            (wish[cluster], chosen[cluster]) = (0.0, false);
        }
    }
    at
}

/// Fills in y of a tenant; returns the clusters where it is above 0, in order.
fn wishes(problem: &Problem, relaxation: &Relaxation, tenant: usize, wish: &mut [f64]) -> Vec<usize> {
    let mut loads: Vec<(usize, f64)> = Vec::new();
    for vpc in problem.vpcs_of(tenant) {
        let demand = problem.vpcs()[*vpc].demand_pps as f64;
        for (cluster, share) in &relaxation.shares[relaxation.group_of[*vpc]] {
            wish[*cluster] = share.max(wish[*cluster]);
            loads.push((*cluster, share * demand));
        }
    }
    loads.sort_by_key(|(cluster, _)| *cluster);
    let mut wanted = Vec::new();
    for of_cluster in loads.chunk_by(|a, b| a.0 == b.0) {
        let cluster = of_cluster[0].0;
        let load = of_cluster.iter().map(|(_, load)| load).sum::<f64>()
            / problem.clusters()[cluster].capacity_pps as f64;
        if relaxation.at_most() > 0.0 {
            wish[cluster] = wish[cluster].max(load / relaxation.at_most()).min(1.0);
        }
        wanted.push(cluster);
    }
    wanted
}

/// Gives a tenant its clusters.
fn choose(wanted: &[usize], wish: &[f64], random: &mut Random, chosen: &mut [bool]) {
    for _ in 0..ROUNDS_MAX {
        let mut any = false;
        for cluster in wanted {
            chosen[*cluster] = random.unit() < wish[*cluster];
            any |= chosen[*cluster];
        }
        if any {
            return;
        }
    }
    if let Some(cluster) = wanted.iter().max_by(|a, b| wish[**a].total_cmp(&wish[**b])) {
        chosen[*cluster] = true;
    }
}

/// Gives a VPC one of its tenant's clusters. Where none of them has a fraction of this VPC, which the
/// paper leaves open, each is as likely as its y.
fn draw(
    shares: &[(usize, f64)],
    wanted: &[usize],
    wish: &[f64],
    chosen: &[bool],
    random: &mut Random,
) -> usize {
    let own: Vec<(usize, f64)> = shares
        .iter()
        .filter(|(cluster, _)| chosen[*cluster])
        .map(|(cluster, share)| (*cluster, share / wish[*cluster]))
        .collect();
    let any = || wanted.iter().filter(|c| chosen[**c]).map(|c| (*c, wish[*c])).collect();
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
                // Tenants without a cluster are drawn again, which slightly favors clusters with a large y.
                assert!((sum - wanted).abs() < 0.05 * total, "{detail:?}: {sums:?}, not {wanted:?}");
            }
        }
    }
}
