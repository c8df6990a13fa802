//! The input of placement: clusters, VPCs and limits. It is checked once, so that the algorithms need not
//! check it.

use sluice_types::{ClusterId, TenantId, VpcId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Demands, capacities and entries are at most this, so that their sums are exact.
const AMOUNT_MAX: u64 = 1 << 40;
/// Most VPCs of a problem.
const VPCS_MAX: usize = 1 << 20;
/// Most clusters of a problem.
const CLUSTERS_MAX: usize = 1 << 12;

/// A gateway cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Identifier of the cluster.
    pub id: ClusterId,
    /// Packets per second that its gateways forward together; the paper's B(c).
    pub capacity_pps: u64,
    /// Entries that fit into the tables of each of its gateways.
    pub capacity_entries: u64,
}

/// A VPC, which must be on exactly one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vpc {
    /// Identifier of the VPC.
    pub id: VpcId,
    /// Tenant that the VPC belongs to.
    pub tenant: TenantId,
    /// Packets per second that its cluster forwards for it; the paper's f(v).
    pub demand_pps: u64,
    /// Entries that the VPC needs in its cluster's tables.
    pub entries: u64,
}

/// The cluster of each VPC.
pub type Placement = BTreeMap<VpcId, ClusterId>;

/// Invalid input.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// There is no cluster.
    #[error("there is no cluster to place VPCs on")]
    NoCluster,
    /// A cluster is in the list more than once.
    #[error("{0} is twice in the list of clusters")]
    DuplicateCluster(ClusterId),
    /// A VPC is in the list more than once.
    #[error("{0} is twice in the list of VPCs")]
    DuplicateVpc(VpcId),
    /// A cluster has no packet rate or no tables.
    #[error("{0} has no capacity: omit clusters that must not carry VPCs")]
    NoCapacity(ClusterId),
    /// A number is higher than any hardware allows.
    #[error("{what} of {owner} is {found}, more than {AMOUNT_MAX}")]
    TooLarge {
        /// The quantity.
        what: &'static str,
        /// The cluster or VPC.
        owner: String,
        /// The value.
        found: u64,
    },
    /// There are too many VPCs or clusters.
    #[error("there are {found} {what}, but at most {most} can be placed at once")]
    TooMany {
        /// `VPCs` or `clusters`.
        what: &'static str,
        /// Number of them.
        found: usize,
        /// Highest number allowed.
        most: usize,
    },
    /// The cluster limit of tenants is 0.
    #[error("the number of clusters per tenant must be at least 1")]
    NoClusterForTenants,
    /// The water level is outside (0, 1].
    #[error("the water level is {0}, it must be above 0 and at most 1")]
    WaterLevel(f64),
    /// A placement contains a VPC that is not in the problem.
    #[error("{0} has a cluster in the placement but is not in the list of VPCs")]
    UnknownVpc(VpcId),
    /// A placement contains a cluster that is not in the problem.
    #[error("{vpc} is on {cluster}, which is not in the list of clusters")]
    UnknownCluster {
        /// The unknown cluster.
        cluster: ClusterId,
        /// The VPC that is placed on it.
        vpc: VpcId,
    },
    /// A VPC is missing in the wanted placement.
    #[error("{0} has no cluster in the wanted placement")]
    NotPlaced(VpcId),
    /// A plan was applied to a placement that it was not made for.
    #[error(
        "the plan was made for another placement: it moves {vpc} from {}, but the VPC is on {}",
        cluster_text(expected),
        cluster_text(found)
    )]
    PlanMismatch {
        /// The VPC.
        vpc: VpcId,
        /// The cluster from which the plan moves it.
        expected: Option<ClusterId>,
        /// The cluster on which it is.
        found: Option<ClusterId>,
    },
    /// The tolerance is below 0 or not a number.
    #[error("the tolerance is {0}, it must be at least 0")]
    Tolerance(f64),
}

fn cluster_text(cluster: &Option<ClusterId>) -> String {
    cluster.map_or_else(|| "no cluster".to_owned(), |cluster| cluster.to_string())
}

/// Clusters, VPCs and limits. Inside the crate, all are identified by their indices.
#[derive(Clone, Debug)]
pub struct Problem {
    clusters: Vec<Cluster>,
    vpcs: Vec<Vpc>,
    clusters_per_tenant: usize,
    water_level: f64,
    cluster_index: HashMap<ClusterId, usize>,
    vpc_index: HashMap<VpcId, usize>,
    /// The tenants, in order of id.
    tenants: Vec<TenantId>,
    /// Index of the tenant of each VPC.
    tenant_of: Vec<usize>,
    /// The VPCs of each tenant.
    vpcs_of: Vec<Vec<usize>>,
}

impl Problem {
    /// Checks the input. A tenant's VPCs may be on `clusters_per_tenant` clusters (the paper's k). A cluster
    /// may be used up to `water_level` of its packet rate; its tables may be full.
    ///
    /// # Errors
    /// [`InputError`] for the first list, amount or limit that is invalid.
    pub fn new(
        clusters: Vec<Cluster>,
        vpcs: Vec<Vpc>,
        clusters_per_tenant: usize,
        water_level: f64,
    ) -> Result<Self, InputError> {
        check_limits(clusters.len(), vpcs.len(), clusters_per_tenant, water_level)?;
        let mut cluster_index = HashMap::with_capacity(clusters.len());
        for (index, cluster) in clusters.iter().enumerate() {
            if cluster_index.insert(cluster.id, index).is_some() {
                return Err(InputError::DuplicateCluster(cluster.id));
            }
            if cluster.capacity_pps == 0 || cluster.capacity_entries == 0 {
                return Err(InputError::NoCapacity(cluster.id));
            }
            check_amount("the packet rate", cluster.id, cluster.capacity_pps)?;
            check_amount("the number of entries", cluster.id, cluster.capacity_entries)?;
        }
        let mut vpc_index = HashMap::with_capacity(vpcs.len());
        for (index, vpc) in vpcs.iter().enumerate() {
            if vpc_index.insert(vpc.id, index).is_some() {
                return Err(InputError::DuplicateVpc(vpc.id));
            }
            check_amount("the demand", vpc.id, vpc.demand_pps)?;
            check_amount("the number of entries", vpc.id, vpc.entries)?;
        }
        let tenants: Vec<TenantId> =
            vpcs.iter().map(|vpc| vpc.tenant).collect::<BTreeSet<_>>().into_iter().collect();
        let tenant_index: HashMap<TenantId, usize> =
            tenants.iter().enumerate().map(|(index, id)| (*id, index)).collect();
        let tenant_of: Vec<usize> = vpcs.iter().map(|vpc| tenant_index[&vpc.tenant]).collect();
        let mut vpcs_of = vec![Vec::new(); tenants.len()];
        for (vpc, tenant) in tenant_of.iter().enumerate() {
            vpcs_of[*tenant].push(vpc);
        }
        Ok(Self {
            clusters,
            vpcs,
            clusters_per_tenant,
            water_level,
            cluster_index,
            vpc_index,
            tenants,
            tenant_of,
            vpcs_of,
        })
    }

    /// The clusters.
    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    /// The VPCs.
    pub fn vpcs(&self) -> &[Vpc] {
        &self.vpcs
    }

    /// The cluster limit of a tenant, the paper's k.
    pub fn clusters_per_tenant(&self) -> usize {
        self.clusters_per_tenant
    }

    /// The highest load that a cluster may have.
    pub fn water_level(&self) -> f64 {
        self.water_level
    }

    /// Number of tenants.
    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// Demand of all VPCs, in packets per second.
    pub fn demand_pps(&self) -> u64 {
        self.vpcs.iter().map(|vpc| vpc.demand_pps).sum()
    }

    /// Packet rate of all clusters, in packets per second.
    pub fn capacity_pps(&self) -> u64 {
        self.clusters.iter().map(|cluster| cluster.capacity_pps).sum()
    }

    /// Entries of all VPCs.
    pub fn entries(&self) -> u64 {
        self.vpcs.iter().map(|vpc| vpc.entries).sum()
    }

    /// Entries that fit into the tables of all clusters.
    pub fn capacity_entries(&self) -> u64 {
        self.clusters.iter().map(|cluster| cluster.capacity_entries).sum()
    }

    /// The maximum load of a placement; 0 if it is empty. VPCs without a cluster do not count.
    ///
    /// # Errors
    /// A VPC or cluster that is not in this problem.
    pub fn max_load(&self, placement: &Placement) -> Result<f64, InputError> {
        let mut demand = vec![0_u64; self.clusters.len()];
        for (vpc, cluster) in self.indices(placement)?.into_iter().enumerate() {
            if let Some(cluster) = cluster {
                demand[cluster] += self.vpcs[vpc].demand_pps;
            }
        }
        Ok(demand
            .iter()
            .zip(&self.clusters)
            .map(|(demand, cluster)| *demand as f64 / cluster.capacity_pps as f64)
            .fold(0.0, f64::max))
    }

    /// Number of tenants that are on more clusters than their limit.
    ///
    /// # Errors
    /// The same as [`Problem::max_load`].
    pub fn tenants_over_cluster_limit(&self, placement: &Placement) -> Result<usize, InputError> {
        let at = self.indices(placement)?;
        let over = |vpcs: &&Vec<usize>| {
            vpcs.iter().filter_map(|vpc| at[*vpc]).collect::<BTreeSet<_>>().len() > self.clusters_per_tenant
        };
        Ok(self.vpcs_of.iter().filter(over).count())
    }

    /// A second lower bound of the maximum load, for VPCs that are not divided: the largest VPC is on one
    /// cluster, and the VPCs of the largest tenant are on as many as its limit allows.
    pub fn whole_vpcs_bound(&self) -> f64 {
        let mut capacities: Vec<f64> =
            self.clusters.iter().map(|cluster| cluster.capacity_pps as f64).collect();
        capacities.sort_by(|a, b| b.total_cmp(a));
        let of_k: f64 = capacities.iter().take(self.clusters_per_tenant).sum();
        let vpc = self.vpcs.iter().map(|vpc| vpc.demand_pps).max().unwrap_or(0) as f64;
        let tenant =
            (0..self.tenants.len()).map(|tenant| self.tenant_demand(tenant)).max().unwrap_or(0) as f64;
        (vpc / capacities[0]).max(tenant / of_k)
    }

    /// The index of each VPC's cluster, if it has one.
    pub(crate) fn indices(&self, placement: &Placement) -> Result<Vec<Option<usize>>, InputError> {
        let mut at = vec![None; self.vpcs.len()];
        for (vpc, cluster) in placement {
            let index = *self.vpc_index.get(vpc).ok_or(InputError::UnknownVpc(*vpc))?;
            at[index] = Some(
                self.cluster_of(*cluster)
                    .ok_or(InputError::UnknownCluster { cluster: *cluster, vpc: *vpc })?,
            );
        }
        Ok(at)
    }

    /// The index of each VPC's cluster. VPCs on clusters that are not in this problem have none.
    pub(crate) fn known_indices(&self, placement: &Placement) -> Result<Vec<Option<usize>>, InputError> {
        let mut at = vec![None; self.vpcs.len()];
        for (vpc, cluster) in placement {
            at[self.vpc_of(*vpc).ok_or(InputError::UnknownVpc(*vpc))?] = self.cluster_of(*cluster);
        }
        Ok(at)
    }

    pub(crate) fn cluster_of(&self, id: ClusterId) -> Option<usize> {
        self.cluster_index.get(&id).copied()
    }

    pub(crate) fn vpc_of(&self, id: VpcId) -> Option<usize> {
        self.vpc_index.get(&id).copied()
    }

    pub(crate) fn tenant_of(&self, vpc: usize) -> usize {
        self.tenant_of[vpc]
    }

    pub(crate) fn tenant_id(&self, tenant: usize) -> TenantId {
        self.tenants[tenant]
    }

    pub(crate) fn tenant_index(&self, id: TenantId) -> Option<usize> {
        self.tenants.binary_search(&id).ok()
    }

    pub(crate) fn vpcs_of(&self, tenant: usize) -> &[usize] {
        &self.vpcs_of[tenant]
    }

    pub(crate) fn tenant_demand(&self, tenant: usize) -> u64 {
        self.vpcs_of[tenant].iter().map(|vpc| self.vpcs[*vpc].demand_pps).sum()
    }

    pub(crate) fn tenant_entries(&self, tenant: usize) -> u64 {
        self.vpcs_of[tenant].iter().map(|vpc| self.vpcs[*vpc].entries).sum()
    }
}

fn check_limits(
    clusters: usize,
    vpcs: usize,
    clusters_per_tenant: usize,
    water_level: f64,
) -> Result<(), InputError> {
    for (what, found, most) in [("clusters", clusters, CLUSTERS_MAX), ("VPCs", vpcs, VPCS_MAX)] {
        if found > most {
            return Err(InputError::TooMany { what, found, most });
        }
    }
    if clusters == 0 {
        return Err(InputError::NoCluster);
    }
    if clusters_per_tenant == 0 {
        return Err(InputError::NoClusterForTenants);
    }
    if !(water_level > 0.0 && water_level <= 1.0) {
        return Err(InputError::WaterLevel(water_level));
    }
    Ok(())
}

fn check_amount(what: &'static str, owner: impl ToString, found: u64) -> Result<(), InputError> {
    if found > AMOUNT_MAX {
        return Err(InputError::TooLarge { what, owner: owner.to_string(), found });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(id: u64, capacity_pps: u64) -> Cluster {
        Cluster { id: ClusterId::new(id), capacity_pps, capacity_entries: 100 }
    }

    fn vpc(id: u64, tenant: u64, demand_pps: u64) -> Vpc {
        Vpc { id: VpcId::new(id), tenant: TenantId::new(tenant), demand_pps, entries: 1 }
    }

    #[test]
    fn error_names_the_invalid_input() {
        let one = || vec![cluster(1, 10)];
        let error_of =
            |clusters, vpcs, k, level| Problem::new(clusters, vpcs, k, level).unwrap_err().to_string();
        assert_eq!(error_of(vec![], vec![], 1, 1.0), "there is no cluster to place VPCs on");
        assert_eq!(
            error_of(vec![cluster(1, 10), cluster(1, 9)], vec![], 1, 1.0),
            "cluster-1 is twice in the list of clusters"
        );
        assert_eq!(
            error_of(one(), vec![vpc(3, 1, 1), vpc(3, 2, 1)], 1, 1.0),
            "vpc-3 is twice in the list of VPCs"
        );
        assert!(error_of(vec![cluster(2, 0)], vec![], 1, 1.0).starts_with("cluster-2 has no capacity"));
        assert_eq!(error_of(one(), vec![], 0, 1.0), "the number of clusters per tenant must be at least 1");
        for level in [0.0, -1.0, 1.01, f64::NAN] {
            assert!(error_of(one(), vec![], 1, level).starts_with("the water level is"), "{level}");
        }
        assert_eq!(
            error_of(one(), vec![vpc(4, 1, u64::MAX)], 1, 1.0),
            "the demand of vpc-4 is 18446744073709551615, more than 1099511627776"
        );
    }

    #[test]
    fn maximum_load_is_that_of_the_most_loaded_cluster() {
        let problem = Problem::new(
            vec![cluster(1, 10), cluster(2, 40)],
            vec![vpc(1, 1, 4), vpc(2, 1, 8), vpc(3, 2, 4)],
            1,
            1.0,
        )
        .unwrap();
        let at = |pairs: [(u64, u64); 3]| -> Placement {
            pairs.into_iter().map(|(vpc, cluster)| (VpcId::new(vpc), ClusterId::new(cluster))).collect()
        };
        assert_eq!(problem.max_load(&at([(1, 2), (2, 2), (3, 1)])).unwrap(), 0.4);
        assert_eq!(problem.max_load(&at([(1, 1), (2, 2), (3, 1)])).unwrap(), 0.8);
        assert_eq!(problem.tenants_over_cluster_limit(&at([(1, 1), (2, 2), (3, 1)])).unwrap(), 1);
        // The tenant with a demand of 12 is on one cluster with a capacity of at most 40.
        assert_eq!(problem.whole_vpcs_bound(), 0.3);
        let error = problem.max_load(&at([(1, 1), (2, 3), (3, 1)])).unwrap_err();
        assert_eq!(error.to_string(), "vpc-2 is on cluster-3, which is not in the list of clusters");
        let error = problem.max_load(&at([(1, 1), (2, 2), (9, 1)])).unwrap_err();
        assert_eq!(error.to_string(), "vpc-9 has a cluster in the placement but is not in the list of VPCs");
    }
}
