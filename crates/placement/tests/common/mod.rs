//! Random problems for proptest, and simple checks of placements.

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_placement::{Cluster, Placement, Problem, Vpc};
use sluice_types::{ClusterId, TenantId, VpcId};
use std::collections::{BTreeMap, BTreeSet};

/// Random clusters, VPCs and limits: from much free capacity to impossible.
pub fn problems(vpcs_max: usize) -> impl Strategy<Value = Problem> {
    let cluster = (50_u64..400, 20_u64..400);
    let vpc = (1_u64..=6, prop_oneof![0_u64..20, 10_u64..90], 0_u64..40);
    (vec(cluster, 1..=5), vec(vpc, 0..=vpcs_max), 1_usize..=4, 0.5_f64..=1.0).prop_map(
        |(clusters, vpcs, k, level)| {
            let clusters =
                clusters.into_iter().zip(1..).map(|((pps, entries), id)| cluster_of(id, pps, entries));
            let vpcs = vpcs
                .into_iter()
                .zip(1..)
                .map(|((tenant, demand, entries), id)| vpc_of(id, tenant, demand, entries));
            Problem::new(clusters.collect(), vpcs.collect(), k, level).expect("a valid problem")
        },
    )
}

pub fn cluster_of(id: u64, capacity_pps: u64, capacity_entries: u64) -> Cluster {
    Cluster { id: ClusterId::new(id), capacity_pps, capacity_entries }
}

pub fn vpc_of(id: u64, tenant: u64, demand_pps: u64, entries: u64) -> Vpc {
    Vpc { id: VpcId::new(id), tenant: TenantId::new(tenant), demand_pps, entries }
}

/// A placement of all VPCs, derived from numbers.
pub fn placement_of(problem: &Problem, numbers: &[usize]) -> Placement {
    let clusters = problem.clusters();
    problem
        .vpcs()
        .iter()
        .enumerate()
        .map(|(index, vpc)| (vpc.id, clusters[numbers[index % numbers.len()] % clusters.len()].id))
        .collect()
}

/// The sums of a placement.
pub struct Sums {
    pub max_load: f64,
    pub entries_over: Vec<ClusterId>,
    pub tenants_over_cluster_limit: Vec<TenantId>,
}

pub fn sums(problem: &Problem, placement: &Placement) -> Sums {
    let (mut demand, mut entries): (BTreeMap<ClusterId, u64>, BTreeMap<ClusterId, u64>) = Default::default();
    let mut tenants: BTreeMap<TenantId, BTreeSet<ClusterId>> = BTreeMap::new();
    for vpc in problem.vpcs() {
        if let Some(cluster) = placement.get(&vpc.id) {
            *demand.entry(*cluster).or_default() += vpc.demand_pps;
            *entries.entry(*cluster).or_default() += vpc.entries;
            tenants.entry(vpc.tenant).or_default().insert(*cluster);
        }
    }
    let of = |sums: &BTreeMap<ClusterId, u64>, id| sums.get(&id).copied().unwrap_or(0);
    Sums {
        max_load: problem
            .clusters()
            .iter()
            .map(|cluster| of(&demand, cluster.id) as f64 / cluster.capacity_pps as f64)
            .fold(0.0, f64::max),
        entries_over: problem
            .clusters()
            .iter()
            .filter(|cluster| of(&entries, cluster.id) > cluster.capacity_entries)
            .map(|cluster| cluster.id)
            .collect(),
        tenants_over_cluster_limit: tenants
            .iter()
            .filter(|(_, clusters)| clusters.len() > problem.clusters_per_tenant())
            .map(|(tenant, _)| *tenant)
            .collect(),
    }
}
