//! A placement being changed: what each cluster carries, and which clusters each tenant is on.

use crate::problem::Problem;

/// VPCs on clusters. Sums are exact.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    pub problem: &'a Problem,
    /// Of each VPC, its cluster.
    at: Vec<Option<usize>>,
    /// Of each cluster, packets a second and entries.
    demand: Vec<u64>,
    entries: Vec<u64>,
    /// Of each tenant, its clusters and how many of its VPCs are there.
    presence: Vec<Vec<(usize, usize)>>,
    /// Of each cluster, its VPCs; of each VPC, where it stands in there.
    members: Vec<Vec<usize>>,
    place_in: Vec<usize>,
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
            place_in: vec![0; problem.vpcs().len()],
        };
        for (vpc, cluster) in at.into_iter().enumerate() {
            if let Some(cluster) = cluster {
                state.put(vpc, cluster);
            }
        }
        state
    }

    /// Of each VPC, its cluster.
    pub fn at(&self, vpc: usize) -> Option<usize> {
        self.at[vpc]
    }

    /// VPCs of a cluster, in no order that means anything.
    pub fn members(&self, cluster: usize) -> &[usize] {
        &self.members[cluster]
    }

    pub fn clusters(&self) -> std::ops::Range<usize> {
        0..self.demand.len()
    }

    pub fn entries(&self, cluster: usize) -> u64 {
        self.entries[cluster]
    }

    /// Demand by capacity.
    pub fn load(&self, cluster: usize) -> f64 {
        self.load_with(cluster, 0)
    }

    /// The same with more demand.
    pub fn load_with(&self, cluster: usize, demand_pps: u64) -> f64 {
        (self.demand[cluster] + demand_pps) as f64 / self.problem.clusters()[cluster].capacity_pps as f64
    }

    /// The same with less demand.
    pub fn load_without(&self, cluster: usize, demand_pps: u64) -> f64 {
        (self.demand[cluster] - demand_pps) as f64 / self.problem.clusters()[cluster].capacity_pps as f64
    }

    pub fn lambda(&self) -> f64 {
        self.clusters().map(|cluster| self.load(cluster)).fold(0.0, f64::max)
    }

    /// The cluster of the highest load, the first of several.
    pub fn fullest(&self) -> usize {
        self.clusters().rev().max_by(|a, b| self.load(*a).total_cmp(&self.load(*b))).unwrap_or(0)
    }

    /// Entries above what a cluster's tables hold.
    pub fn entries_over(&self, cluster: usize) -> u64 {
        self.entries[cluster].saturating_sub(self.problem.clusters()[cluster].capacity_entries)
    }

    /// True where so many entries more fit.
    pub fn has_entries(&self, cluster: usize, entries: u64) -> bool {
        self.entries[cluster] + entries <= self.problem.clusters()[cluster].capacity_entries
    }

    /// Clusters of a tenant, each with the number of its VPCs there.
    pub fn presence(&self, tenant: usize) -> &[(usize, usize)] {
        &self.presence[tenant]
    }

    /// Number of a tenant's VPCs on a cluster.
    pub fn count(&self, tenant: usize, cluster: usize) -> usize {
        self.presence[tenant].iter().find(|(at, _)| *at == cluster).map_or(0, |(_, count)| *count)
    }

    /// True where `count` VPCs of a tenant that leave `from` for `to` leave it within k, or as it was
    /// where it was above.
    pub fn tenant_may(&self, tenant: usize, from: Option<usize>, to: usize, count: usize) -> bool {
        let leaves = from.is_some_and(|from| self.count(tenant, from) == count);
        self.count(tenant, to) > 0
            || leaves
            || self.presence[tenant].len() < self.problem.clusters_per_tenant()
    }

    pub fn over_k(&self, tenant: usize) -> bool {
        self.presence[tenant].len() > self.problem.clusters_per_tenant()
    }

    /// Places a VPC that has no cluster.
    pub fn put(&mut self, vpc: usize, cluster: usize) {
        debug_assert!(self.at[vpc].is_none());
        let (demand, entries) = (self.problem.vpcs()[vpc].demand_pps, self.problem.vpcs()[vpc].entries);
        self.at[vpc] = Some(cluster);
        self.demand[cluster] += demand;
        self.entries[cluster] += entries;
        self.place_in[vpc] = self.members[cluster].len();
        self.members[cluster].push(vpc);
        let presence = &mut self.presence[self.problem.tenant_of(vpc)];
        match presence.iter_mut().find(|(at, _)| *at == cluster) {
            Some((_, count)) => *count += 1,
            None => presence.push((cluster, 1)),
        }
    }

    /// Takes a VPC off its cluster.
    pub fn take(&mut self, vpc: usize) -> Option<usize> {
        let cluster = self.at[vpc].take()?;
        self.demand[cluster] -= self.problem.vpcs()[vpc].demand_pps;
        self.entries[cluster] -= self.problem.vpcs()[vpc].entries;
        let place = self.place_in[vpc];
        self.members[cluster].swap_remove(place);
        if let Some(moved) = self.members[cluster].get(place) {
            self.place_in[*moved] = place;
        }
        let presence = &mut self.presence[self.problem.tenant_of(vpc)];
        for (at, count) in presence.iter_mut() {
            *count -= usize::from(*at == cluster);
        }
        presence.retain(|(_, count)| *count > 0);
        Some(cluster)
    }

    /// Takes a VPC from where it is to another cluster.
    pub fn shift(&mut self, vpc: usize, to: usize) {
        self.take(vpc);
        self.put(vpc, to);
    }

    /// Of each VPC, its cluster; those without one are left out of the placement.
    pub fn placement(&self) -> crate::Placement {
        let (vpcs, clusters) = (self.problem.vpcs(), self.problem.clusters());
        let placed = vpcs.iter().zip(&self.at);
        placed.filter_map(|(vpc, at)| at.map(|cluster| (vpc.id, clusters[cluster].id))).collect()
    }
}
