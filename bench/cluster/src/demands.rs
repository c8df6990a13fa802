//! Clouds by Zipf's law: who has how many VPCs, and what these need.

use sluice_bench_report::shell::Failure;
use sluice_placement::{Cluster, Problem, Vpc};
use sluice_types::{ClusterId, TenantId, VpcId};

/// Packets a second that a cluster forwards: ten gateways of 10 Mpps.
const CLUSTER_PPS: u64 = 100_000_000;
/// Of all clusters' packets a second, what the VPCs need.
const NEEDED: f64 = 0.6;
/// Entries of a VPC, from and to: the containers of the paper's public cloud.
const ENTRIES: (u64, u64) = (2, 364);
/// How full tables are on average where they are the scarce thing.
const TIGHT_FILLING: f64 = 0.9;

/// What clusters are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clusters {
    /// All alike, tables ample.
    Alike,
    /// Every second one forwards half as much, and tables are nine tenths full on average, in the same
    /// proportion for all: packets and entries pull apart.
    UnlikeAndTight,
}

/// A cloud to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Cloud {
    /// Number of VPCs.
    pub vpcs: usize,
    /// Tenants, each with a VPC at least.
    pub tenants: usize,
    /// Number of clusters.
    pub clusters: usize,
    /// Clusters a tenant may be on.
    pub k: usize,
    /// Zipf's exponent of the VPCs' demands.
    pub exponent: f64,
    /// The largest VPC's part of the largest cluster; `None`: whatever Zipf's law makes it.
    pub largest: Option<f64>,
    /// What clusters are like.
    pub kind: Clusters,
    /// Of the random numbers.
    pub seed: u64,
}

/// State of the generator SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    /// Every seed is a good one.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// 1 to n, in any order.
    pub fn ranks(&mut self, n: usize) -> Vec<usize> {
        let mut ranks: Vec<usize> = (1..=n).collect();
        for last in (1..n).rev() {
            ranks.swap(last, (self.unit() * (last + 1) as f64) as usize);
        }
        ranks
    }
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
        seed: 1,
    };
    /// The paper's example of a large one.
    pub const LARGE: Self = Self { vpcs: 33_000, tenants: 10_000, clusters: 50, k: 20, ..Self::PUBLIC };

    /// Draws the cloud.
    ///
    /// # Errors
    /// An invalid problem.
    pub fn draw(&self) -> Result<Problem, Failure> {
        self.draw_again(self.seed)
    }

    /// The same VPCs of the same tenants, with demands in an order of `seed`.
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
        let (demand_ranks, entry_ranks) = (Random::new(!seed).ranks(self.vpcs), random.ranks(self.vpcs));
        let tenants = self.owners(&mut random);
        let spread = (ENTRIES.1 - ENTRIES.0) as f64;
        let vpcs: Vec<Vpc> = (0..self.vpcs)
            .map(|vpc| Vpc {
                id: VpcId::new(vpc as u64 + 1),
                tenant: TenantId::new(tenants[vpc]),
                demand_pps: demands[demand_ranks[vpc] - 1] as u64,
                // The hundred largest are cut off, or nearly all would have the fewest.
                entries: ENTRIES.0 + (spread * (100.0 / entry_ranks[vpc] as f64).min(1.0)) as u64,
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

    /// Demands by rank: `min(limit, a / rank^s)`, `a` such that they add up to what is needed.
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

    /// Whose each VPC is: one for each tenant, the others by Zipf's law, s = 1.
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
        // Beyond the limit, twice the rank needs half.
        let ratio = demands[800] as f64 / demands[1600] as f64;
        assert!((1.98..2.02).contains(&ratio), "{ratio}");
        let entries: Vec<u64> = problem.vpcs().iter().map(|vpc| vpc.entries).collect();
        assert_eq!(entries.iter().max(), Some(&364));
        assert!(entries.iter().all(|entries| *entries >= 2));
    }
}
