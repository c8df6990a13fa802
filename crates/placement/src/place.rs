//! Finds the cluster of one new VPC without moving any other VPC.

use crate::problem::{InputError, Placement, Problem, Vpc};
use crate::state::State;
use sluice_types::{ClusterId, TenantId};
use std::fmt;

/// Why no cluster takes a VPC; the counts add up to all clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Number of clusters.
    pub clusters: usize,
    /// Clusters that are above the water level already.
    pub above_water_level: usize,
    /// Clusters that would be above the water level with this VPC.
    pub would_be_above: usize,
    /// Clusters below the water level whose tables have too few free entries.
    pub tables_full: usize,
    /// Clusters with capacity that would put the tenant on too many clusters.
    pub beyond_k: usize,
    /// Demand of the VPC, in packets a second.
    pub demand_pps: u64,
    /// Entries of the VPC.
    pub entries: u64,
    /// Tenant of the VPC.
    pub tenant: TenantId,
    /// Number of clusters that a tenant may be on.
    pub k: usize,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no cluster has room: ")?;
        let all = self.clusters;
        let mut parts = Vec::new();
        if self.above_water_level > 0 {
            parts.push(format!("{} of {all} above the water level", self.above_water_level));
        }
        if self.would_be_above > 0 {
            let (count, demand) = (self.would_be_above, self.demand_pps);
            parts.push(format!("{count} of {all} would be above it with {demand} packets/s more"));
        }
        if self.tables_full > 0 {
            let (count, entries) = (self.tables_full, self.entries);
            parts.push(format!("{count} of {all} cannot hold {entries} entries more"));
        }
        if self.beyond_k > 0 {
            let (count, tenant, k) = (self.beyond_k, self.tenant, self.k);
            parts.push(format!(
                "{count} of {all} not open to {tenant}, which is on {k}, as many as it may be"
            ));
        }
        f.write_str(&parts.join("; "))
    }
}

impl std::error::Error for NoRoom {}

/// Why a VPC is not placed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlaceError {
    /// The present placement does not belong to this problem.
    #[error(transparent)]
    Input(#[from] InputError),
    /// No cluster takes it.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// Finds the cluster that is least loaded with the VPC on it, of those that stay below the water level,
/// have free entries and are open to its tenant; of equals, the one with the emptier tables, then the
/// first in the problem. The problem has the VPCs that are placed already, with what they forward now.
///
/// Reported demand lags behind: who places many VPCs before the next report must count an expected demand
/// for each, or all go to the same cluster.
///
/// # Errors
/// [`PlaceError`].
pub fn place(problem: &Problem, present: &Placement, vpc: &Vpc) -> Result<ClusterId, PlaceError> {
    let state = State::new(problem, problem.indices(present)?);
    let level = problem.water_level();
    let tenant = problem.tenant_index(vpc.tenant);
    let mut refused = NoRoom {
        clusters: problem.clusters().len(),
        above_water_level: 0,
        would_be_above: 0,
        tables_full: 0,
        beyond_k: 0,
        demand_pps: vpc.demand_pps,
        entries: vpc.entries,
        tenant: vpc.tenant,
        k: problem.clusters_per_tenant(),
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
        } else if tenant.is_some_and(|tenant| !state.tenant_may(tenant, None, cluster, 1)) {
            refused.beyond_k += 1;
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

    fn problem(demands: &[u64], k: usize) -> (Problem, Placement) {
        let clusters = (1..=3)
            .map(|id| Cluster { id: ClusterId::new(id), capacity_pps: 100, capacity_entries: 10 })
            .collect();
        let vpcs: Vec<Vpc> = demands.iter().zip(1..).map(|(demand, id)| vpc(id, 1, *demand)).collect();
        let placement =
            vpcs.iter().zip(1..).map(|(vpc, cluster)| (vpc.id, ClusterId::new(cluster))).collect();
        (Problem::new(clusters, vpcs, k, 0.8).unwrap(), placement)
    }

    fn vpc(id: u64, tenant: u64, demand_pps: u64) -> Vpc {
        Vpc { id: VpcId::new(id), tenant: TenantId::new(tenant), demand_pps, entries: 5 }
    }

    #[test]
    fn the_least_loaded_cluster_that_is_open_takes_it() {
        let (problem_3, present) = problem(&[60, 30, 50], 3);
        let found = place(&problem_3, &present, &vpc(9, 1, 10));
        assert_eq!(found, Ok(ClusterId::new(2)));
        // A tenant with its limit of clusters stays on them; another does not.
        let (problem_2, present) = problem(&[60, 70], 2);
        assert_eq!(place(&problem_2, &present, &vpc(9, 1, 10)), Ok(ClusterId::new(1)));
        assert_eq!(place(&problem_2, &present, &vpc(9, 2, 10)), Ok(ClusterId::new(3)));
    }

    #[test]
    fn where_nothing_has_room_it_is_said_why() {
        let refused = |demands: &[u64], k, vpc: &Vpc| {
            let (problem, present) = problem(demands, k);
            place(&problem, &present, vpc).unwrap_err().to_string()
        };
        assert_eq!(
            refused(&[90, 81, 99], 3, &vpc(9, 1, 0)),
            "no cluster has room: 3 of 3 above the water level"
        );
        assert_eq!(
            refused(&[90, 50, 10], 2, &Vpc { entries: 11, ..vpc(9, 2, 40) }),
            "no cluster has room: 1 of 3 above the water level; 1 of 3 would be above it with 40 packets/s \
             more; 1 of 3 cannot hold 11 entries more"
        );
        assert_eq!(
            refused(&[90, 70], 2, &vpc(9, 1, 20)),
            "no cluster has room: 1 of 3 above the water level; 1 of 3 would be above it with 20 packets/s \
             more; 1 of 3 not open to tenant-1, which is on 2, as many as it may be"
        );
    }
}
