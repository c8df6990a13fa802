//! Chooses the cluster of a new VPC.

use super::usage::{AMOUNT_MAX, EXPECTED_MIN_PPS, Usage};
use sluice_placement::{Cluster, InsufficientCapacity, PlaceError, Placement, Problem, Vpc, place};
use sluice_types::{ClusterId, TenantId, VpcId};

/// Reason why no cluster can take a new VPC.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unplaced {
    /// There is no cluster.
    #[error("there is no cluster yet on which the VPC can be placed")]
    NoCluster,
    /// All clusters are full, or those that the tenant may use.
    #[error("{reason}{}", without(*no_gateways))]
    InsufficientCapacity {
        /// What the algorithm found.
        reason: InsufficientCapacity,
        /// Number of clusters that are full only because they have no serving gateway.
        no_gateways: usize,
    },
    /// The algorithm refused its input.
    #[error("the clusters cannot be compared: {0}")]
    Input(String),
}

fn without(no_gateways: usize) -> String {
    match no_gateways {
        0 => String::new(),
        count => format!("; {count} of those have no serving gateway"),
    }
}

/// Returns the cluster for a new VPC of a tenant: the least loaded one that is below the water level and that
/// the tenant may use. The VPC counts as an average one, without entries. If an average VPC does not fit, one
/// with almost no demand is tried: the demand is only a guess, which is no reason to refuse the VPC.
///
/// Only sums matter of other tenants, so the problem has one VPC for all of them on each cluster.
/// If no cluster has a gateway, all count as if they had one: a site may be described before it runs.
///
/// # Errors
/// [`Unplaced`].
pub fn cluster_for(usage: &Usage, tenant: TenantId) -> Result<ClusterId, Unplaced> {
    let no_gateway_at_all = usage.clusters.iter().all(|cluster| cluster.capacity_pps == 0);
    let no_gateways =
        usage.clusters.iter().filter(|cluster| cluster.capacity_pps == 0 && !no_gateway_at_all).count();
    let mut clusters = Vec::new();
    let (mut vpcs, mut present) = (Vec::new(), Placement::new());
    for (cluster, number) in usage.clusters.iter().zip(0..) {
        let (capacity_pps, capacity_entries) = match cluster.capacity_pps {
            0 if no_gateway_at_all => (usage.settings.gateway_capacity_pps, u64::from(u32::MAX)),
            0 => (1, 1),
            capacity_pps => (capacity_pps, cluster.capacity_entries),
        };
        clusters.push(Cluster { id: cluster.id, capacity_pps, capacity_entries });
        let others = || usage.vpcs.iter().filter(|vpc| vpc.cluster == cluster.id && vpc.tenant != tenant);
        // A cluster without gateways is full, but still counts for the tenants that are on it.
        let closed = u64::from(cluster.capacity_pps == 0 && !no_gateway_at_all) * 2;
        let filler = Vpc {
            id: VpcId::new(u64::MAX - number),
            tenant: TenantId::new(u64::MAX - number),
            demand_pps: (others().map(|vpc| vpc.demand_pps).sum::<u64>() + closed).min(AMOUNT_MAX),
            entries: others().map(|vpc| vpc.entries).sum::<u64>().min(AMOUNT_MAX),
        };
        vpcs.push(filler);
        present.insert(filler.id, cluster.id);
    }
    for vpc in usage.vpcs.iter().filter(|vpc| vpc.tenant == tenant) {
        let (id, demand_pps, entries) = (vpc.id, vpc.demand_pps, vpc.entries);
        vpcs.push(Vpc { id, tenant, demand_pps, entries });
        if usage.clusters.iter().any(|cluster| cluster.id == vpc.cluster) {
            present.insert(id, vpc.cluster);
        }
    }
    if clusters.is_empty() {
        return Err(Unplaced::NoCluster);
    }
    let settings = &usage.settings;
    let problem = Problem::new(clusters, vpcs, settings.clusters_per_tenant, settings.water_level)
        .map_err(|error| Unplaced::Input(error.to_string()))?;
    let with =
        |demand_pps| place(&problem, &present, &Vpc { id: VpcId::new(0), tenant, demand_pps, entries: 0 });
    with(usage.expected_pps).or_else(|error| with(EXPECTED_MIN_PPS).map_err(|_| error)).map_err(|error| {
        match error {
            PlaceError::InsufficientCapacity(reason) => {
                Unplaced::InsufficientCapacity { reason, no_gateways }
            }
            PlaceError::Input(error) => Unplaced::Input(error.to_string()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::super::ledger::tests::vpc;
    use super::super::load::LoadSnapshot;
    use super::super::usage::tests::{gateway, loads, topology};
    use super::*;
    use sluice_store::{Gateway, Topology};
    use sluice_types::PlacementSettings;

    fn usage(topology: &Topology, demands: &[(u32, f64)], limit: usize) -> Usage {
        let reporting: Vec<(u64, u64)> = topology.gateways.iter().map(|g| (g.id.get(), 1 << 20)).collect();
        let settings = PlacementSettings {
            clusters_per_tenant: limit,
            gateway_capacity_pps: 100,
            ..PlacementSettings::default()
        };
        Usage::new(&Ledger::new(topology, 9, &[]), &loads(&reporting, demands), settings)
    }

    fn three() -> Vec<Gateway> {
        (1..=3).map(|id| gateway(id, id, false)).collect()
    }

    fn tenant(id: u64) -> TenantId {
        TenantId::new(id)
    }

    #[test]
    fn least_loaded_cluster_within_the_limit_is_chosen() {
        let vpcs = vec![vpc(1, 1, 1, 1), vpc(2, 1, 2, 1), vpc(3, 2, 3, 1)];
        let topology = topology(3, three(), vpcs);
        let demands = [(1, 40.0), (2, 50.0), (3, 9.0)];
        assert_eq!(cluster_for(&usage(&topology, &demands, 4), tenant(1)), Ok(ClusterId::new(3)));
        assert_eq!(cluster_for(&usage(&topology, &demands, 2), tenant(1)), Ok(ClusterId::new(1)));
        assert_eq!(cluster_for(&usage(&topology, &demands, 2), tenant(2)), Ok(ClusterId::new(3)));
    }

    #[test]
    fn without_measurements_vpcs_are_spread_evenly() {
        let mut topology = topology(3, Vec::new(), Vec::new());
        for id in 1..=9 {
            let found = cluster_for(&usage(&topology, &[], 4), tenant(id)).unwrap();
            topology.vpcs.push(vpc(id, id, found.get(), 1));
        }
        let on = |cluster| topology.vpcs.iter().filter(|vpc| vpc.cluster.get() == cluster).count();
        assert_eq!([on(1), on(2), on(3)], [3, 3, 3]);
    }

    #[test]
    fn clusters_whose_gateways_are_down_get_no_new_vpc() {
        let topology = topology(3, three(), vec![vpc(1, 1, 1, 1), vpc(2, 1, 2, 1)]);
        let with = |down: &[u64]| {
            let down = down.iter().map(|id| sluice_types::GatewayId::new(*id)).collect();
            let loads = LoadSnapshot { down, ..loads(&[], &[]) };
            let settings = PlacementSettings { gateway_capacity_pps: 100, ..PlacementSettings::default() };
            cluster_for(&Usage::new(&Ledger::new(&topology, 9, &[]), &loads, settings), tenant(7))
        };
        assert_eq!(with(&[]), Ok(ClusterId::new(3)));
        assert_eq!(with(&[3]), Ok(ClusterId::new(1)));
        assert_eq!(with(&[3, 1]), Ok(ClusterId::new(2)));
    }

    #[test]
    fn refusal_names_the_reason() {
        let none = usage(&topology(0, Vec::new(), Vec::new()), &[], 4);
        assert_eq!(cluster_for(&none, tenant(1)), Err(Unplaced::NoCluster));
        // The gateway of the third cluster drains.
        let mut gateways = three();
        gateways[2].draining = true;
        let vpcs = vec![vpc(1, 1, 1, 1), vpc(2, 1, 2, 1), vpc(3, 2, 2, 1)];
        let topology = topology(3, gateways, vpcs);
        let nearly = [(1, 81.0), (2, 1.0), (3, 60.0)];
        assert_eq!(cluster_for(&usage(&topology, &nearly, 4), tenant(1)), Ok(ClusterId::new(2)));
        let full = [(1, 81.0), (2, 20.0), (3, 60.0)];
        let refused = cluster_for(&usage(&topology, &full, 4), tenant(1)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "no cluster has enough capacity: 2 of 3 are above the water level; 1 of 3 would be above the water \
             level with 54 more packets/s; 1 of those have no serving gateway"
        );
    }
}
