//! One new VPC: which cluster gets it.

use super::picture::{EXPECTED_MIN_PPS, Picture};
use sluice_placement::{Cluster, NoRoom, PlaceError, Placement, Problem, Vpc, place};
use sluice_types::{ClusterId, TenantId, VpcId};

/// Why a new VPC has no place.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unplaced {
    /// There is no cluster at all.
    #[error("there is no cluster yet to place the VPC on")]
    NoCluster,
    /// None has room, or none that is open to the tenant.
    #[error("{room}{}", without(*no_gateways))]
    NoRoom {
        /// Why.
        room: NoRoom,
        /// How many of the clusters are full only because no gateway serves there.
        no_gateways: usize,
    },
    /// The algorithm refuses its input.
    #[error("the clusters cannot be compared: {0}")]
    Input(String),
}

fn without(no_gateways: usize) -> String {
    match no_gateways {
        0 => String::new(),
        count => format!("; {count} of those have no gateway that serves"),
    }
}

/// The cluster for a new VPC of a tenant: the least loaded that is below the water level and open to the
/// tenant. The VPC counts as an average one, without entries. Where an average one has no room, one that
/// is hardly there may: what it will forward is a guess, and a guess refuses nobody.
///
/// Of the other tenants only sums matter, so the problem that is solved has one VPC of theirs a cluster.
/// Where no cluster has a gateway, all count as if they had one: a site may be described before it runs.
///
/// # Errors
/// [`Unplaced`].
pub fn cluster_for(picture: &Picture, tenant: TenantId) -> Result<ClusterId, Unplaced> {
    let nowhere = picture.clusters.iter().all(|cluster| cluster.capacity_pps == 0);
    let no_gateways = picture.clusters.iter().filter(|cluster| cluster.capacity_pps == 0 && !nowhere).count();
    let mut clusters = Vec::new();
    let (mut vpcs, mut present) = (Vec::new(), Placement::new());
    for (cluster, number) in picture.clusters.iter().zip(0..) {
        let (capacity_pps, capacity_entries) = match cluster.capacity_pps {
            0 if nowhere => (picture.settings.gateway_capacity_pps, u64::from(u32::MAX)),
            0 => (1, 1),
            some => (some, cluster.capacity_entries),
        };
        clusters.push(Cluster { id: cluster.id, capacity_pps, capacity_entries });
        let others = || picture.vpcs.iter().filter(|vpc| vpc.cluster == cluster.id && vpc.tenant != tenant);
        // What nobody serves is full, but a tenant that is there is there.
        let closed = u64::from(cluster.capacity_pps == 0 && !nowhere) * 2;
        let filler = Vpc {
            id: VpcId::new(u64::MAX - number),
            tenant: TenantId::new(u64::MAX - number),
            demand_pps: (others().map(|vpc| vpc.demand_pps).sum::<u64>() + closed).min(1 << 40),
            entries: others().map(|vpc| vpc.entries).sum::<u64>().min(1 << 40),
        };
        vpcs.push(filler);
        present.insert(filler.id, cluster.id);
    }
    for vpc in picture.vpcs.iter().filter(|vpc| vpc.tenant == tenant) {
        let (id, demand_pps, entries) = (vpc.id, vpc.demand_pps, vpc.entries);
        vpcs.push(Vpc { id, tenant, demand_pps, entries });
        if picture.clusters.iter().any(|cluster| cluster.id == vpc.cluster) {
            present.insert(id, vpc.cluster);
        }
    }
    if clusters.is_empty() {
        return Err(Unplaced::NoCluster);
    }
    let settings = &picture.settings;
    let problem = Problem::new(clusters, vpcs, settings.clusters_per_tenant, settings.water_level)
        .map_err(|error| Unplaced::Input(error.to_string()))?;
    let with =
        |demand_pps| place(&problem, &present, &Vpc { id: VpcId::new(0), tenant, demand_pps, entries: 0 });
    with(picture.expected_pps).or_else(|error| with(EXPECTED_MIN_PPS).map_err(|_| error)).map_err(|error| {
        match error {
            PlaceError::NoRoom(room) => Unplaced::NoRoom { room, no_gateways },
            PlaceError::Input(error) => Unplaced::Input(error.to_string()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::super::picture::tests::{gateway, loads, topology};
    use super::*;
    use crate::ledger::Ledger;
    use crate::ledger::tests::vpc;
    use crate::load::LoadPicture;
    use sluice_store::{Gateway, Topology};

    fn picture(topology: &Topology, demands: &[(u32, f64)], k: usize) -> Picture {
        let reporting: Vec<(u64, u64)> = topology.gateways.iter().map(|g| (g.id.get(), 1 << 20)).collect();
        let settings = Settings { clusters_per_tenant: k, gateway_capacity_pps: 100, ..Settings::default() };
        Picture::new(&Ledger::new(topology, 9, &[]), &loads(&reporting, demands), settings)
    }

    fn three() -> Vec<Gateway> {
        (1..=3).map(|id| gateway(id, id, false)).collect()
    }

    fn tenant(id: u64) -> TenantId {
        TenantId::new(id)
    }

    #[test]
    fn the_least_loaded_cluster_that_is_open_gets_it() {
        let vpcs = vec![vpc(1, 1, 1, 1), vpc(2, 1, 2, 1), vpc(3, 2, 3, 1)];
        let topology = topology(3, three(), vpcs);
        let demands = [(1, 40.0), (2, 50.0), (3, 9.0)];
        assert_eq!(cluster_for(&picture(&topology, &demands, 4), tenant(1)), Ok(ClusterId::new(3)));
        assert_eq!(cluster_for(&picture(&topology, &demands, 2), tenant(1)), Ok(ClusterId::new(1)));
        assert_eq!(cluster_for(&picture(&topology, &demands, 2), tenant(2)), Ok(ClusterId::new(3)));
    }

    #[test]
    fn where_nothing_is_known_vpcs_are_spread_by_number() {
        let mut topology = topology(3, Vec::new(), Vec::new());
        for id in 1..=9 {
            let found = cluster_for(&picture(&topology, &[], 4), tenant(id)).unwrap();
            topology.vpcs.push(vpc(id, id, found.get(), 1));
        }
        let on = |cluster| topology.vpcs.iter().filter(|vpc| vpc.cluster.get() == cluster).count();
        assert_eq!([on(1), on(2), on(3)], [3, 3, 3]);
    }

    #[test]
    fn nothing_new_goes_where_no_gateway_is_left() {
        let topology = topology(3, three(), vec![vpc(1, 1, 1, 1), vpc(2, 1, 2, 1)]);
        let with = |down: &[u64]| {
            let down = down.iter().map(|id| sluice_types::GatewayId::new(*id)).collect();
            let loads = LoadPicture { down, ..loads(&[], &[]) };
            let settings = Settings { gateway_capacity_pps: 100, ..Settings::default() };
            cluster_for(&Picture::new(&Ledger::new(&topology, 9, &[]), &loads, settings), tenant(7))
        };
        assert_eq!(with(&[]), Ok(ClusterId::new(3)));
        assert_eq!(with(&[3]), Ok(ClusterId::new(1)));
        assert_eq!(with(&[3, 1]), Ok(ClusterId::new(2)));
    }

    #[test]
    fn without_room_it_is_said_why() {
        let none = picture(&topology(0, Vec::new(), Vec::new()), &[], 4);
        assert_eq!(cluster_for(&none, tenant(1)), Err(Unplaced::NoCluster));
        // The third cluster's gateway drains.
        let mut gateways = three();
        gateways[2].draining = true;
        let vpcs = vec![vpc(1, 1, 1, 1), vpc(2, 1, 2, 1), vpc(3, 2, 2, 1)];
        let topology = topology(3, gateways, vpcs);
        let nearly = [(1, 81.0), (2, 1.0), (3, 60.0)];
        assert_eq!(cluster_for(&picture(&topology, &nearly, 4), tenant(1)), Ok(ClusterId::new(2)));
        let full = [(1, 81.0), (2, 20.0), (3, 60.0)];
        let said = cluster_for(&picture(&topology, &full, 4), tenant(1)).unwrap_err().to_string();
        assert_eq!(
            said,
            "no cluster has room: 2 of 3 above the water level; 1 of 3 would be above it with 54 packets/s \
             more; 1 of those have no gateway that serves"
        );
    }
}
