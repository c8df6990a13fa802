//! Finds the cluster of one new VPC without moving any other VPC.

use crate::problem::{InputError, Placement, Problem, Vpc};
use crate::state::State;
use sluice_types::{ClusterId, TenantId};
use std::fmt;

/// Why no cluster can take a VPC. The counts add up to the number of clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsufficientCapacity {
    /// Number of clusters.
    pub clusters: usize,
    /// Clusters whose load already exceeds the water level.
    pub above_water_level: usize,
    /// Clusters whose load would exceed the water level with this VPC.
    pub would_be_above: usize,
    /// Clusters below the water level that have too few free entries.
    pub tables_full: usize,
    /// Clusters with enough capacity that would exceed the tenant's cluster limit.
    pub at_cluster_limit: usize,
    /// Demand of the VPC, in packets per second.
    pub demand_pps: u64,
    /// Entries of the VPC.
    pub entries: u64,
    /// Tenant of the VPC.
    pub tenant: TenantId,
    /// Number of clusters on which a tenant may be.
    pub cluster_limit: usize,
}

impl fmt::Display for InsufficientCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no cluster has enough capacity: ")?;
        let all = self.clusters;
        let mut parts = Vec::new();
        if self.above_water_level > 0 {
            parts.push(format!("{} of {all} are above the water level", self.above_water_level));
        }
        if self.would_be_above > 0 {
            let (count, demand) = (self.would_be_above, self.demand_pps);
            parts.push(format!(
                "{count} of {all} would be above the water level with {demand} more packets/s"
            ));
        }
        if self.tables_full > 0 {
            let (count, entries) = (self.tables_full, self.entries);
            parts.push(format!("{count} of {all} have no free memory for {entries} more entries"));
        }
        if self.at_cluster_limit > 0 {
            let (count, tenant, cluster_limit) = (self.at_cluster_limit, self.tenant, self.cluster_limit);
            parts.push(format!(
                "{count} of {all} are not open to {tenant}, which is on {cluster_limit} clusters, its limit"
            ));
        }
        f.write_str(&parts.join("; "))
    }
}

impl std::error::Error for InsufficientCapacity {}

/// Why no cluster was found for a VPC.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlaceError {
    /// The current placement does not belong to this problem.
    #[error(transparent)]
    Input(#[from] InputError),
    /// No cluster has enough capacity.
    #[error(transparent)]
    InsufficientCapacity(#[from] InsufficientCapacity),
}

/// Finds the cluster that has the lowest load with the VPC on it, among those that stay below the water
/// level, have enough free entries and are open to its tenant. Among equals it takes the cluster with the
/// emptier tables, then the first of the problem. The problem contains the VPCs that already have a cluster,
/// with their current demand.
///
/// Reported demand is delayed. A caller that places many VPCs before the next report must add an expected
/// demand for each, otherwise all get the same cluster.
///
/// # Errors
/// [`PlaceError`].
pub fn place(problem: &Problem, present: &Placement, vpc: &Vpc) -> Result<ClusterId, PlaceError> {
    let state = State::new(problem, problem.indices(present)?);
    let level = problem.water_level();
    let tenant = problem.tenant_index(vpc.tenant);
    let mut refused = InsufficientCapacity {
        clusters: problem.clusters().len(),
        above_water_level: 0,
        would_be_above: 0,
        tables_full: 0,
        at_cluster_limit: 0,
        demand_pps: vpc.demand_pps,
        entries: vpc.entries,
        tenant: vpc.tenant,
        cluster_limit: problem.clusters_per_tenant(),
    };
    let mut best: Option<(f64, f64, usize)> = None;
    for cluster in state.clusters() {
        let load = state.load_with(cluster, vpc.demand_pps);
        if state.load(cluster) > level {
            refused.above_water_level += 1;
        } else if load > level {
            refused.would_be_above += 1;
        } else if !state.has_entries(cluster, vpc.entries) {
            refused.tables_full += 1;
        } else if tenant.is_some_and(|tenant| !state.is_open_to_tenant(tenant, None, cluster, 1)) {
            refused.at_cluster_limit += 1;
        } else {
            let filling = state.entries(cluster) as f64 / problem.clusters()[cluster].capacity_entries as f64;
            if best.is_none_or(|best| (load, filling) < (best.0, best.1)) {
                best = Some((load, filling, cluster));
            }
        }
    }
    Ok(best.map(|(_, _, cluster)| problem.clusters()[cluster].id).ok_or(refused)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Cluster;
    use sluice_types::VpcId;

    fn problem(demands: &[u64], cluster_limit: usize) -> (Problem, Placement) {
        let clusters = (1..=3)
            .map(|id| Cluster { id: ClusterId::new(id), capacity_pps: 100, capacity_entries: 10 })
            .collect();
        let vpcs: Vec<Vpc> = demands.iter().zip(1..).map(|(demand, id)| vpc(id, 1, *demand)).collect();
        let placement =
            vpcs.iter().zip(1..).map(|(vpc, cluster)| (vpc.id, ClusterId::new(cluster))).collect();
        (Problem::new(clusters, vpcs, cluster_limit, 0.8).unwrap(), placement)
    }

    fn vpc(id: u64, tenant: u64, demand_pps: u64) -> Vpc {
        Vpc { id: VpcId::new(id), tenant: TenantId::new(tenant), demand_pps, entries: 5 }
    }

    #[test]
    fn vpc_is_placed_on_the_least_loaded_open_cluster() {
        let (problem_3, present) = problem(&[60, 30, 50], 3);
        let found = place(&problem_3, &present, &vpc(9, 1, 10));
        assert_eq!(found, Ok(ClusterId::new(2)));
        // A tenant at its cluster limit stays on its clusters; another tenant does not have to.
        let (problem_2, present) = problem(&[60, 70], 2);
        assert_eq!(place(&problem_2, &present, &vpc(9, 1, 10)), Ok(ClusterId::new(1)));
        assert_eq!(place(&problem_2, &present, &vpc(9, 2, 10)), Ok(ClusterId::new(3)));
    }

    #[test]
    fn error_says_why_no_cluster_has_capacity() {
        let refused = |demands: &[u64], cluster_limit, vpc: &Vpc| {
            let (problem, present) = problem(demands, cluster_limit);
            place(&problem, &present, vpc).unwrap_err().to_string()
        };
        assert_eq!(
            refused(&[90, 81, 99], 3, &vpc(9, 1, 0)),
            "no cluster has enough capacity: 3 of 3 are above the water level"
        );
        assert_eq!(
            refused(&[90, 50, 10], 2, &Vpc { entries: 11, ..vpc(9, 2, 40) }),
            "no cluster has enough capacity: 1 of 3 are above the water level; 1 of 3 would be above the \
             water level with 40 more packets/s; 1 of 3 have no free memory for 11 more entries"
        );
        assert_eq!(
            refused(&[90, 70], 2, &vpc(9, 1, 20)),
            "no cluster has enough capacity: 1 of 3 are above the water level; 1 of 3 would be above the \
             water level with 20 more packets/s; 1 of 3 are not open to tenant-1, which is on 2 clusters, \
             its limit"
        );
    }
}
