//! A placement that is being changed: the sums of each cluster, and the clusters of each tenant.

use crate::problem::Problem;

/// The clusters of VPCs, and sums that are updated with each change. The sums are exact.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    pub problem: &'a Problem,
    /// The cluster of each VPC.
    at: Vec<Option<usize>>,
    /// Packets per second and entries of each cluster.
    demand: Vec<u64>,
    entries: Vec<u64>,
    /// The clusters of each tenant, with the number of its VPCs on each.
    presence: Vec<Vec<(usize, usize)>>,
    /// The VPCs of each cluster, and for each VPC its index in that list.
    members: Vec<Vec<usize>>,
    index_in_members: Vec<usize>,
}

impl<'a> State<'a> {
    pub fn new(problem: &'a Problem, at: impl IntoIterator<Item = Option<usize>>) -> Self {
        let clusters = problem.clusters().len();
        let mut state = Self {
            problem,
            at: vec![None; problem.vpcs().len()],
            demand: vec![0; clusters],
            entries: vec![0; clusters],
            presence: vec![Vec::new(); problem.tenants()],
            members: vec![Vec::new(); clusters],
            index_in_members: vec![0; problem.vpcs().len()],
        };
        for (vpc, cluster) in at.into_iter().enumerate() {
            if let Some(cluster) = cluster {
                state.assign(vpc, cluster);
            }
        }
        state
    }

    /// The cluster of a VPC.
    pub fn at(&self, vpc: usize) -> Option<usize> {
        self.at[vpc]
    }

    /// The VPCs of a cluster, in arbitrary order.
    pub fn members(&self, cluster: usize) -> &[usize] {
        &self.members[cluster]
    }

    pub fn clusters(&self) -> std::ops::Range<usize> {
        0..self.demand.len()
    }

    pub fn entries(&self, cluster: usize) -> u64 {
        self.entries[cluster]
    }

    /// The load of a cluster: demand divided by capacity.
    pub fn load(&self, cluster: usize) -> f64 {
        self.load_with(cluster, 0)
    }

    /// The load with additional demand.
    pub fn load_with(&self, cluster: usize, demand_pps: u64) -> f64 {
        (self.demand[cluster] + demand_pps) as f64 / self.problem.clusters()[cluster].capacity_pps as f64
    }

    /// The load with less demand.
    pub fn load_without(&self, cluster: usize, demand_pps: u64) -> f64 {
        (self.demand[cluster] - demand_pps) as f64 / self.problem.clusters()[cluster].capacity_pps as f64
    }

    pub fn max_load(&self) -> f64 {
        self.clusters().map(|cluster| self.load(cluster)).fold(0.0, f64::max)
    }

    /// The cluster with the highest load; the first if there are several.
    pub fn fullest(&self) -> usize {
        self.clusters().rev().max_by(|a, b| self.load(*a).total_cmp(&self.load(*b))).unwrap_or(0)
    }

    /// Number of entries above the size of a cluster's tables.
    pub fn entries_over(&self, cluster: usize) -> u64 {
        self.entries[cluster].saturating_sub(self.problem.clusters()[cluster].capacity_entries)
    }

    /// Whether this many more entries fit into a cluster's tables.
    pub fn has_entries(&self, cluster: usize, entries: u64) -> bool {
        self.entries[cluster] + entries <= self.problem.clusters()[cluster].capacity_entries
    }

    /// The clusters of a tenant, each with the number of its VPCs there.
    pub fn presence(&self, tenant: usize) -> &[(usize, usize)] {
        &self.presence[tenant]
    }

    /// Number of a tenant's VPCs on a cluster.
    pub fn count(&self, tenant: usize, cluster: usize) -> usize {
        self.presence[tenant].iter().find(|(at, _)| *at == cluster).map_or(0, |(_, count)| *count)
    }

    /// Whether `count` VPCs of a tenant may move from `from` to `to`: the tenant stays within its cluster
    /// limit, or on no more clusters than before.
    pub fn is_open_to_tenant(&self, tenant: usize, from: Option<usize>, to: usize, count: usize) -> bool {
        let leaves = from.is_some_and(|from| self.count(tenant, from) == count);
        self.count(tenant, to) > 0
            || leaves
            || self.presence[tenant].len() < self.problem.clusters_per_tenant()
    }

    pub fn exceeds_cluster_limit(&self, tenant: usize) -> bool {
        self.presence[tenant].len() > self.problem.clusters_per_tenant()
    }

    /// Assigns a cluster to a VPC that has none.
    pub fn assign(&mut self, vpc: usize, cluster: usize) {
        debug_assert!(self.at[vpc].is_none());
        let (demand, entries) = (self.problem.vpcs()[vpc].demand_pps, self.problem.vpcs()[vpc].entries);
        self.at[vpc] = Some(cluster);
        self.demand[cluster] += demand;
        self.entries[cluster] += entries;
        self.index_in_members[vpc] = self.members[cluster].len();
        self.members[cluster].push(vpc);
        let presence = &mut self.presence[self.problem.tenant_of(vpc)];
        match presence.iter_mut().find(|(at, _)| *at == cluster) {
            Some((_, count)) => *count += 1,
            None => presence.push((cluster, 1)),
        }
    }

    /// Removes a VPC from its cluster.
    pub fn take(&mut self, vpc: usize) -> Option<usize> {
        let cluster = self.at[vpc].take()?;
        self.demand[cluster] -= self.problem.vpcs()[vpc].demand_pps;
        self.entries[cluster] -= self.problem.vpcs()[vpc].entries;
        let index = self.index_in_members[vpc];
        self.members[cluster].swap_remove(index);
        if let Some(moved) = self.members[cluster].get(index) {
            self.index_in_members[*moved] = index;
        }
        let presence = &mut self.presence[self.problem.tenant_of(vpc)];
        for (at, count) in presence.iter_mut() {
            *count -= usize::from(*at == cluster);
        }
        presence.retain(|(_, count)| *count > 0);
        Some(cluster)
    }

    /// Moves a VPC to another cluster.
    pub fn reassign(&mut self, vpc: usize, to: usize) {
        self.take(vpc);
        self.assign(vpc, to);
    }

    /// The cluster of each VPC that has one.
    pub fn placement(&self) -> crate::Placement {
        let (vpcs, clusters) = (self.problem.vpcs(), self.problem.clusters());
        let placed = vpcs.iter().zip(&self.at);
        placed.filter_map(|(vpc, at)| at.map(|cluster| (vpc.id, clusters[cluster].id))).collect()
    }
}
