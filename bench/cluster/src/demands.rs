//! Clouds whose tenants and VPCs have sizes by Zipf's law. It changes with the clouds for which Sluice is meant.

use sluice_bench_report::shell::Failure;
use sluice_placement::{Cluster, Problem, Vpc};
use sluice_types::{ClusterId, Random, TenantId, VpcId};

/// Packets a second that a cluster forwards: ten gateways of 10 Mpps.
const CLUSTER_PPS: u64 = 100_000_000;
/// Part of the packet rate of all clusters that the VPCs need.
const NEEDED: f64 = 0.6;
/// Mean filling of the tables where they are scarce.
const TIGHT_FILLING: f64 = 0.9;

/// Differences between clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clusters {
    /// All clusters are equal and have large tables.
    Alike,
    /// Every second cluster forwards half as much, and all have equal tables that are nine tenths full on
    /// average. So packets and entries need different placements.
    UnlikeAndTight,
}

/// A cloud whose VPCs are placed.
#[derive(Clone, Copy, Debug)]
pub struct Cloud {
    /// Number of VPCs.
    pub vpcs: usize,
    /// Number of tenants, each with at least one VPC.
    pub tenants: usize,
    /// Number of clusters.
    pub clusters: usize,
    /// Largest number of clusters of a tenant.
    pub k: usize,
    /// Zipf's exponent of the VPCs' demands.
    pub exponent: f64,
    /// Largest part of a cluster that a VPC may need; `None` does not limit Zipf's law.
    pub largest: Option<f64>,
    /// Differences between the clusters.
    pub kind: Clusters,
    /// Smallest and largest number of entries of a VPC.
    pub entries: (u64, u64),
    /// Rank up to which VPCs have the largest number of entries; from there on they have less by Zipf's law.
    pub full_ranks: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The numbers from 1 to n in random order.
pub(crate) fn ranks(random: &mut Random, n: usize) -> Vec<usize> {
    let mut ranks: Vec<usize> = (1..=n).collect();
    for last in (1..n).rev() {
        ranks.swap(last, (random.unit() * (last + 1) as f64) as usize);
    }
    ranks
}

impl Cloud {
    /// The paper's public cloud in numbers, with its example's largest VPC: 10 of 400 Gbit/s.
    pub const PUBLIC: Self = Self {
        vpcs: 1885,
        tenants: 568,
        clusters: 10,
        k: 4,
        exponent: 1.0,
        largest: Some(1.0 / 40.0),
        kind: Clusters::Alike,
        // The containers of its VPCs. With fewer full ranks nearly all VPCs would have the smallest number.
        entries: (2, 364),
        full_ranks: 100.0,
        seed: 1,
    };
    /// The paper's private cloud in numbers (section VIII-D): few VPCs, some of them large.
    pub const PRIVATE: Self =
        Self { vpcs: 90, tenants: 52, entries: (2, 2765), full_ranks: 1.0, ..Self::PUBLIC };
    /// The paper's example of a large one.
    pub const LARGE: Self = Self { vpcs: 33_000, tenants: 10_000, clusters: 50, k: 20, ..Self::PUBLIC };

    /// Draws the cloud.
    ///
    /// # Errors
    /// An invalid problem.
    pub fn draw(&self) -> Result<Problem, Failure> {
        self.draw_again(self.seed)
    }

    /// Draws the same VPCs of the same tenants, with demands in another order, which depends on `seed`.
    ///
    /// # Errors
    /// As [`Cloud::draw`].
    pub fn draw_again(&self, seed: u64) -> Result<Problem, Failure> {
        let mut random = Random::new(self.seed);
        let capacities: Vec<u64> = (0..self.clusters)
            .map(|cluster| match self.kind {
                Clusters::UnlikeAndTight if cluster % 2 == 1 => CLUSTER_PPS / 2,
                _ => CLUSTER_PPS,
            })
            .collect();
        let needed = NEEDED * capacities.iter().sum::<u64>() as f64;
        let limit = self.largest.map_or(f64::INFINITY, |part| part * CLUSTER_PPS as f64);
        let demands = self.demands(needed, limit);
        let (demand_ranks, entry_ranks) =
            (ranks(&mut Random::new(!seed), self.vpcs), ranks(&mut random, self.vpcs));
        let tenants = self.owners(&mut random);
        let (least, most) = self.entries;
        let spread = (most - least) as f64;
        let vpcs: Vec<Vpc> = (0..self.vpcs)
            .map(|vpc| Vpc {
                id: VpcId::new(vpc as u64 + 1),
                tenant: TenantId::new(tenants[vpc]),
                demand_pps: demands[demand_ranks[vpc] - 1] as u64,
                entries: least + (spread * (self.full_ranks / entry_ranks[vpc] as f64).min(1.0)) as u64,
            })
            .collect();
        let entries: u64 = vpcs.iter().map(|vpc| vpc.entries).sum();
        let table = match self.kind {
            Clusters::Alike => entries,
            Clusters::UnlikeAndTight => (entries as f64 / self.clusters as f64 / TIGHT_FILLING) as u64 + 1,
        };
        let clusters = capacities
            .into_iter()
            .zip(1..)
            .map(|(capacity_pps, id)| Cluster {
                id: ClusterId::new(id),
                capacity_pps,
                capacity_entries: table,
            })
            .collect();
        Ok(Problem::new(clusters, vpcs, self.k, 1.0)?)
    }

    /// Demands by rank: `min(limit, a / rank^s)`, with `a` such that their sum is `needed`.
    fn demands(&self, needed: f64, limit: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=self.vpcs).map(|rank| (rank as f64).powf(-self.exponent)).collect();
        let sum = |a: f64| weights.iter().map(|weight| (a * weight).min(limit)).sum::<f64>();
        let (mut low, mut high) = (0.0, needed * self.vpcs as f64);
        for _ in 0..200 {
            let middle = (low + high) / 2.0;
            if sum(middle) < needed { low = middle } else { high = middle }
        }
        weights.into_iter().map(|weight| (low * weight).min(limit)).collect()
    }

    /// Tenant of each VPC: one VPC for each tenant, the others by Zipf's law with s = 1.
    fn owners(&self, random: &mut Random) -> Vec<u64> {
        let mut sums = Vec::with_capacity(self.tenants);
        let mut sum = 0.0;
        for rank in 1..=self.tenants {
            sum += 1.0 / rank as f64;
            sums.push(sum);
        }
        let drawn = |random: &mut Random| {
            let point = random.unit() * sum;
            (sums.partition_point(|sum| *sum <= point).min(self.tenants - 1) + 1) as u64
        };
        (0..self.vpcs).map(|vpc| if vpc < self.tenants { vpc as u64 + 1 } else { drawn(random) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cloud_is_as_large_and_as_skewed_as_it_says() {
        let problem = Cloud::PUBLIC.draw().unwrap();
        assert_eq!((problem.vpcs().len(), problem.tenants(), problem.clusters().len()), (1885, 568, 10));
        let part = problem.demand_pps() as f64 / problem.capacity_pps() as f64;
        assert!((part - 0.6).abs() < 1e-4, "{part}");
        let mut demands: Vec<u64> = problem.vpcs().iter().map(|vpc| vpc.demand_pps).collect();
        demands.sort_unstable_by(|a, b| b.cmp(a));
        assert!(demands[0] <= 2_500_000 && demands[0] > 2_499_000);
        // Beyond the limit, a VPC of twice the rank needs half as much.
        let ratio = demands[800] as f64 / demands[1600] as f64;
        assert!((1.98..2.02).contains(&ratio), "{ratio}");
        let entries: Vec<u64> = problem.vpcs().iter().map(|vpc| vpc.entries).collect();
        assert_eq!(entries.iter().max(), Some(&364));
        assert!(entries.iter().all(|entries| *entries >= 2));
    }
}
