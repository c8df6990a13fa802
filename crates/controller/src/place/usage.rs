//! Demand and capacity of all clusters at one moment: the input of the placement algorithms. This file changes
//! when demand or capacity is computed in another way.

use super::ledger::{Ledger, LedgerCluster};
use super::load::{GatewayLoad, LoadSnapshot};
use sluice_placement::{Cluster, InputError, Placement, Problem, Vpc};
use sluice_types::{ClusterId, GatewayId, PlacementSettings, TenantId, VpcId};
use std::collections::{BTreeMap, BTreeSet};

/// Table size in entries of a gateway that has not reported: somewhat less than the agent's default of 64 MiB holds.
const ENTRIES_DEFAULT: u64 = 1 << 19;
/// A new VPC counts at least as an average one for this time, until its instances exist and send packets.
const SETTLING_MS: u64 = 600_000;
/// Lowest expected demand of a VPC. If no demand is measured, VPCs are just counted.
pub const EXPECTED_MIN_PPS: u64 = 1;
/// Largest amount that the algorithms accept.
pub const AMOUNT_MAX: u64 = 1 << 40;

/// Where the capacity of a gateway comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacitySource {
    /// The operator set it.
    Set,
    /// It is estimated from its packet rate and CPU load.
    Estimated,
    /// There is no estimate: it is the site's default.
    Assumed,
}

/// A gateway with its load and capacity.
#[derive(Clone, Debug)]
pub struct GatewayUsage {
    /// Identifier of the gateway.
    pub id: GatewayId,
    /// Name, for people.
    pub name: String,
    /// It drains or leaves its cluster.
    pub draining: bool,
    /// It failed or is isolated.
    pub down: bool,
    /// Packets a second that it can forward.
    pub capacity_pps: u64,
    /// Where the capacity comes from.
    pub capacity_source: CapacitySource,
    /// Its last report, if it has a stream to this controller.
    pub load: Option<GatewayLoad>,
}

impl GatewayUsage {
    /// Whether it forwards and is not being emptied. Other gateways add no capacity.
    pub fn serves(&self) -> bool {
        !self.draining && !self.down
    }

    fn entries(&self) -> u64 {
        self.load.and_then(|load| load.entries).map_or(ENTRIES_DEFAULT, |entries| entries.max(1))
    }
}

/// Why a gateway cannot have the entries of two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingSpace {
    /// Plural name of what does not fit, for people.
    pub kind: &'static str,
    /// Number that both clusters have.
    pub needed: u64,
    /// Number that the gateway holds.
    pub size: u64,
}

/// A cluster with its demand and capacity.
#[derive(Clone, Debug)]
pub struct ClusterUsage {
    /// Identifier of the cluster.
    pub id: ClusterId,
    /// Name, for people.
    pub name: String,
    /// Its gateways in order of id.
    pub gateways: Vec<GatewayUsage>,
    /// Packets a second that its serving gateways can forward; 0 if no gateway serves.
    pub capacity_pps: u64,
    /// Table size in entries of the smallest serving gateway.
    pub capacity_entries: u64,
    /// Packets a second of its VPCs.
    pub demand_pps: u64,
    /// Table entries of its VPCs.
    pub entries: u64,
    /// Addresses of its VPCs' NAT gateways.
    pub nat_addresses: u64,
    /// Number of its VPCs.
    pub vpcs: usize,
}

impl ClusterUsage {
    /// Demand divided by capacity; `None` if no gateway serves.
    pub fn load(&self) -> Option<f64> {
        (self.capacity_pps > 0).then(|| self.demand_pps as f64 / self.capacity_pps as f64)
    }
}

/// A VPC with its demand.
#[derive(Clone, Debug)]
pub struct VpcUsage {
    /// Identifier of the VPC.
    pub id: VpcId,
    /// Name, for people.
    pub name: String,
    /// The tenant that owns it.
    pub tenant: TenantId,
    /// Its cluster; the new one while it moves.
    pub cluster: ClusterId,
    /// Its old cluster, which still has its entries while it moves.
    pub leaving: Option<ClusterId>,
    /// Demand in packets a second. For the first ten minutes of the VPC, at least the average of the measured
    /// VPCs.
    pub demand_pps: u64,
    /// The demand is measured. Otherwise it is the average of the measured VPCs.
    pub measured: bool,
    /// Entries in its cluster's tables.
    pub entries: u64,
}

/// Demand and capacity of the whole site.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The settings that apply.
    pub settings: PlacementSettings,
    /// Database revision of the placement.
    pub revision: u64,
    /// Clusters in order of id.
    pub clusters: Vec<ClusterUsage>,
    /// VPCs in order of id.
    pub vpcs: Vec<VpcUsage>,
    /// Demand of a VPC without a measurement: the mean of the measured ones.
    pub expected_pps: u64,
    /// Groups of peered VPCs, which move together, by the first VPC of each group.
    pub units: BTreeMap<VpcId, Vec<VpcId>>,
    /// Those of the groups that stay where they are, because one of their VPCs has EIPs or a NAT gateway.
    pub pinned: BTreeSet<VpcId>,
}

fn amount(pps: f64) -> u64 {
    // The cast saturates, and turns NaN into 0.
    (pps.ceil() as u64).min(AMOUNT_MAX)
}

impl Usage {
    /// Computes it from the placement and the measured loads.
    pub fn new(ledger: &Ledger, loads: &LoadSnapshot, settings: PlacementSettings) -> Self {
        let mut usage = Self {
            revision: ledger.revision(),
            clusters: clusters(ledger, loads, &settings),
            vpcs: Vec::new(),
            expected_pps: 0,
            units: ledger.units(),
            pinned: BTreeSet::new(),
            settings,
        };
        let public = ledger.public_entries();
        let pinned = usage.units.iter().filter(|(_, unit)| unit.iter().any(|vpc| public.contains_key(vpc)));
        usage.pinned = pinned.map(|(first, _)| *first).collect();
        usage.add_vpcs(ledger, &public, loads);
        let positions: BTreeMap<ClusterId, usize> =
            usage.clusters.iter().zip(0..).map(|(cluster, position)| (cluster.id, position)).collect();
        for vpc in &usage.vpcs {
            if let Some(position) = positions.get(&vpc.cluster) {
                let cluster = &mut usage.clusters[*position];
                cluster.demand_pps += vpc.demand_pps;
                cluster.entries += vpc.entries;
                cluster.nat_addresses += ledger.nat_addresses_of(vpc.id);
                cluster.vpcs += 1;
            }
        }
        usage
    }

    fn add_vpcs(&mut self, ledger: &Ledger, public: &BTreeMap<VpcId, u64>, loads: &LoadSnapshot) {
        let has_measured_gateway: BTreeMap<ClusterId, bool> = self
            .clusters
            .iter()
            .map(|cluster| {
                let measured = |gateway: &GatewayUsage| loads.measured.contains(&gateway.id);
                (cluster.id, cluster.gateways.iter().any(measured))
            })
            .collect();
        let measured: Vec<Option<f64>> = ledger
            .vpcs
            .values()
            .map(|vpc| {
                let is_measured = || has_measured_gateway.get(&vpc.cluster).copied().unwrap_or_default();
                let idle = || is_measured().then_some(0.0);
                loads.demands.get(&vpc.vni).copied().or_else(idle)
            })
            .collect();
        let known: Vec<f64> = measured.iter().copied().flatten().collect();
        let mean = if known.is_empty() { 0.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
        self.expected_pps = amount(mean).max(EXPECTED_MIN_PPS);
        for ((id, vpc), measured) in ledger.vpcs.iter().zip(measured) {
            let young = vpc.since_ms.is_some_and(|at| loads.now_ms.saturating_sub(at) < SETTLING_MS);
            let demand_pps = match measured.map(amount) {
                Some(pps) if young => pps.max(self.expected_pps),
                Some(pps) => pps,
                None => self.expected_pps,
            };
            self.vpcs.push(VpcUsage {
                id: *id,
                name: vpc.name.clone(),
                tenant: vpc.tenant,
                cluster: vpc.cluster,
                leaving: vpc.leaving,
                demand_pps,
                measured: measured.is_some(),
                entries: (vpc.entries() + public.get(id).copied().unwrap_or(0)).min(AMOUNT_MAX),
            });
        }
    }

    /// The placement problem, and the present placement. Each group of peered VPCs is one VPC in it, with the
    /// id of its first. Clusters without serving gateways are left out, so that their VPCs move.
    ///
    /// # Errors
    /// There is more than can be placed, or no cluster.
    pub fn problem(&self) -> Result<(Problem, Placement), InputError> {
        let (vpcs, present) = self.placed();
        Ok((self.problem_of(self.serving(), vpcs)?, present))
    }

    /// The same without the groups of VPCs that stay where they are: what these need is taken from their clusters.
    ///
    /// # Errors
    /// The errors of [`Usage::problem`].
    pub fn movable_problem(&self) -> Result<(Problem, Placement), InputError> {
        let (all, mut present) = self.placed();
        let (pinned, movable): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|vpc| self.pinned.contains(&vpc.id));
        let mut clusters = self.serving();
        for vpc in pinned {
            let at = present.remove(&vpc.id);
            if let Some(cluster) = clusters.iter_mut().find(|cluster| Some(cluster.id) == at) {
                // A cluster without capacity is no cluster, so one that is full keeps the least.
                cluster.capacity_pps = cluster.capacity_pps.saturating_sub(vpc.demand_pps).max(1);
                cluster.capacity_entries = cluster.capacity_entries.saturating_sub(vpc.entries).max(1);
            }
        }
        Ok((self.problem_of(clusters, movable)?, present))
    }

    fn problem_of(&self, clusters: Vec<Cluster>, vpcs: Vec<Vpc>) -> Result<Problem, InputError> {
        let PlacementSettings { clusters_per_tenant, water_level, .. } = self.settings;
        Problem::new(clusters, vpcs, clusters_per_tenant, water_level)
    }

    /// Clusters with serving gateways.
    fn serving(&self) -> Vec<Cluster> {
        let clusters = self.clusters.iter().filter(|cluster| cluster.capacity_pps > 0);
        let clusters = clusters.map(|cluster| Cluster {
            id: cluster.id,
            capacity_pps: cluster.capacity_pps,
            capacity_entries: cluster.capacity_entries,
        });
        clusters.collect()
    }

    /// Each group of peered VPCs as one VPC, and where they are.
    fn placed(&self) -> (Vec<Vpc>, Placement) {
        let by_id: BTreeMap<VpcId, &VpcUsage> = self.vpcs.iter().map(|vpc| (vpc.id, vpc)).collect();
        let (mut vpcs, mut present) = (Vec::new(), Placement::new());
        for (id, members) in &self.units {
            let Some(first) = by_id.get(id) else { continue };
            let members = || members.iter().filter_map(|id| by_id.get(id));
            vpcs.push(Vpc {
                id: *id,
                tenant: first.tenant,
                demand_pps: members().map(|vpc| vpc.demand_pps).sum::<u64>().min(AMOUNT_MAX),
                entries: members().map(|vpc| vpc.entries).sum::<u64>().min(AMOUNT_MAX),
            });
            present.insert(*id, first.cluster);
        }
        (vpcs, present)
    }

    /// A moving gateway has the entries of both clusters for a while. If its tables are too small for them,
    /// returns what is needed and what they hold: entries, or numbers for addresses of NAT gateways.
    pub fn missing_table_space(&self, gateway: GatewayId, to: ClusterId) -> Option<MissingSpace> {
        let from = self.clusters.iter().find(|it| it.gateways.iter().any(|it| it.id == gateway))?;
        let to = self.clusters.iter().find(|it| it.id == to)?;
        let gateway = from.gateways.iter().find(|it| it.id == gateway)?;
        let of_nat = gateway.load.and_then(|load| load.nat_addresses);
        let kinds = [
            ("entries", from.entries + to.entries, Some(gateway.entries())),
            ("NAT addresses", from.nat_addresses + to.nat_addresses, of_nat),
        ];
        let missing = |(kind, needed, size): (_, u64, Option<u64>)| {
            size.filter(|size| needed > *size).map(|size| MissingSpace { kind, needed, size })
        };
        kinds.into_iter().find_map(missing)
    }

    /// A cluster to which VPCs move needs table space for them beside the VPCs that it has and those that are
    /// leaving it. If its tables are too small, returns the number of entries needed and the table size.
    pub fn missing_vpc_space(&self, vpcs: &[VpcId], to: ClusterId) -> Option<(u64, u64)> {
        let cluster = self.clusters.iter().find(|it| it.id == to)?;
        let leaves = |vpc: &&VpcUsage| vpc.leaving == Some(to);
        let arrives = |vpc: &&VpcUsage| vpc.cluster != to && vpcs.contains(&vpc.id);
        let more = self.vpcs.iter().filter(|vpc| leaves(vpc) || arrives(vpc)).map(|vpc| vpc.entries);
        let needed = cluster.entries + more.sum::<u64>();
        (needed > cluster.capacity_entries).then_some((needed, cluster.capacity_entries))
    }

    /// The VPCs that move together with a VPC: those that it is peered with, directly or through others, and
    /// itself.
    pub fn unit_of(&self, vpc: VpcId) -> Vec<VpcId> {
        self.units.values().find(|unit| unit.contains(&vpc)).cloned().unwrap_or_else(|| vec![vpc])
    }

    /// How even the load of the clusters is. All zero if no cluster serves, or if the placement problem has
    /// another [`InputError`].
    pub fn balance(&self) -> Balance {
        let Ok((problem, present)) = self.problem() else { return Balance::default() };
        let served: BTreeSet<ClusterId> = problem.clusters().iter().map(|cluster| cluster.id).collect();
        let placed = present.into_iter().filter(|(_, at)| served.contains(at)).collect();
        let mean = problem.demand_pps() as f64 / problem.capacity_pps().max(1) as f64;
        Balance {
            max_load: problem.max_load(&placed).unwrap_or_default(),
            max_load_lower_bound: mean.max(problem.whole_vpcs_bound()),
            tenants_over_cluster_limit: problem.tenants_over_cluster_limit(&placed).unwrap_or_default(),
        }
    }
}

/// How even the load of a placement is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balance {
    /// Load of the most loaded cluster. Clusters without serving gateways do not count.
    pub max_load: f64,
    /// Lower bound of `max_load` for any placement: the mean, or the largest VPC or tenant.
    pub max_load_lower_bound: f64,
    /// Number of tenants on more clusters than the limit.
    pub tenants_over_cluster_limit: usize,
}

/// All clusters with the capacity of their gateways, without demand.
pub fn clusters(ledger: &Ledger, loads: &LoadSnapshot, settings: &PlacementSettings) -> Vec<ClusterUsage> {
    let usage = |cluster: &LedgerCluster| {
        let gateways: Vec<GatewayUsage> = cluster
            .gateways
            .iter()
            .map(|gateway| {
                let load = loads.gateways.get(&gateway.id).copied();
                let capacity =
                    load.map(|load| load.capacity).or_else(|| loads.capacities.get(&gateway.id).copied());
                let estimate = capacity.and_then(|capacity| capacity.pps()).map(amount);
                let (capacity_pps, capacity_source) = match (settings.gateways.get(&gateway.id), estimate) {
                    (Some(set), _) => (*set, CapacitySource::Set),
                    (None, Some(estimate)) => (estimate, CapacitySource::Estimated),
                    (None, None) => (settings.gateway_capacity_pps, CapacitySource::Assumed),
                };
                let (id, name, draining) = (gateway.id, gateway.name.clone(), gateway.is_retiring());
                let down = loads.down.contains(&id);
                GatewayUsage { id, name, draining, down, capacity_pps, capacity_source, load }
            })
            .collect();
        let serving = || gateways.iter().filter(|gateway| gateway.serves());
        ClusterUsage {
            id: cluster.cluster.id,
            name: cluster.cluster.name.clone(),
            capacity_pps: serving().map(|gateway| gateway.capacity_pps).sum::<u64>().min(AMOUNT_MAX),
            capacity_entries: serving().map(GatewayUsage::entries).min().unwrap_or(0).min(AMOUNT_MAX),
            gateways,
            demand_pps: 0,
            entries: 0,
            nat_addresses: 0,
            vpcs: 0,
        }
    };
    ledger.clusters.values().map(usage).collect()
}

#[cfg(test)]
pub mod tests {
    use super::super::ledger::tests::{ipv4, vpc};
    use super::super::load::capacity::Capacity;
    use super::*;
    use sluice_store::{Change, Gateway, Move, NatGateway, Peering, Topology};
    use sluice_types::{NatFiltering, NatGatewayId, NatMapping, PeeringId, PublicPoolId, Vni};

    pub fn gateway(id: u64, cluster: u64, draining: bool) -> Gateway {
        Gateway {
            id: GatewayId::new(id),
            name: format!("g{id}"),
            cluster: ClusterId::new(cluster),
            vtep4: None,
            vtep6: None,
            draining,
            moving: None,
            revision: 1,
        }
    }

    /// Clusters 1 to `clusters` with the given gateways and VPCs.
    pub fn topology(clusters: u64, gateways: Vec<Gateway>, vpcs: Vec<sluice_store::Vpc>) -> Topology {
        let cluster = |id| sluice_store::Cluster {
            id: ClusterId::new(id),
            name: format!("c{id}"),
            vips: Vec::new(),
            hello_interval_ms: 4,
            vip_plan_revision: 1,
            revision: 1,
        };
        Topology {
            revision: 9,
            clusters: (1..=clusters).map(cluster).collect(),
            gateways,
            vpcs,
            ..Topology::default()
        }
    }

    /// Loads of gateways whose tables hold the given numbers of entries (0: not reported), and the demands of VNIs.
    pub fn loads(gateways: &[(u64, u64)], demands: &[(u32, f64)]) -> LoadSnapshot {
        let load = |entries: u64| {
            let entries = (entries > 0).then_some(entries);
            GatewayLoad { measured_ms: 1, entries, ..GatewayLoad::default() }
        };
        LoadSnapshot {
            now_ms: 1,
            gateways: gateways.iter().map(|(id, entries)| (GatewayId::new(*id), load(*entries))).collect(),
            demands: demands.iter().map(|(vni, pps)| (Vni::new(*vni).unwrap(), *pps)).collect(),
            measured: gateways.iter().map(|(id, _)| GatewayId::new(*id)).collect(),
            ..LoadSnapshot::default()
        }
    }

    #[test]
    fn only_serving_gateways_add_capacity() {
        let gateways = vec![gateway(1, 1, false), gateway(2, 1, false), gateway(3, 1, true)];
        let ledger = Ledger::new(&topology(2, gateways, vec![]), 9, &[]);
        let mut loads = loads(&[(1, 500), (2, 300)], &[]);
        let mut settings = PlacementSettings { gateway_capacity_pps: 100, ..PlacementSettings::default() };
        let cluster = |loads: &LoadSnapshot, settings: &PlacementSettings| {
            let usage = Usage::new(&ledger, loads, settings.clone());
            assert_eq!((usage.clusters[1].capacity_pps, usage.clusters[1].load()), (0, None));
            let first = &usage.clusters[0];
            let sources = first.gateways.iter().map(|gateway| gateway.capacity_source).collect::<Vec<_>>();
            (first.capacity_pps, first.capacity_entries, sources)
        };
        use CapacitySource::*;
        assert_eq!(cluster(&loads, &settings), (200, 300, vec![Assumed, Assumed, Assumed]));
        let mut capacity = Capacity::default();
        capacity.sample(50_000.0, 0.5, 1_000);
        loads.gateways.get_mut(&GatewayId::new(1)).unwrap().capacity = capacity;
        settings.gateways.insert(GatewayId::new(2), 7);
        assert_eq!(cluster(&loads, &settings), (100_007, 300, vec![Estimated, Set, Assumed]));
        assert_eq!(cluster(&LoadSnapshot::default(), &settings).1, ENTRIES_DEFAULT);
        let offline =
            LoadSnapshot { capacities: [(GatewayId::new(1), capacity)].into(), ..LoadSnapshot::default() };
        assert_eq!(cluster(&offline, &settings).0, 100_007, "the estimate is kept while it has no stream");
        // Gateway 1 is down, so only gateway 2 adds capacity.
        loads.down = [GatewayId::new(1)].into();
        assert_eq!(cluster(&loads, &settings), (7, 300, vec![Estimated, Set, Assumed]));
        loads.down = [GatewayId::new(1), GatewayId::new(2)].into();
        assert_eq!(cluster(&loads, &settings).0, 0, "gateway 3 is draining");
    }

    #[test]
    fn unmeasured_vpcs_count_as_the_mean() {
        let vpcs = (1..=4).map(|id| vpc(id, 1, id.min(2), 1)).collect();
        let gateways = vec![gateway(1, 1, false), gateway(2, 2, false)];
        let mut ledger = Ledger::new(&topology(2, gateways, vpcs), 9, &[(VpcId::new(1), ipv4(5))]);
        let usage = Usage::new(&ledger, &loads(&[], &[]), PlacementSettings::default());
        assert!(usage.vpcs.iter().all(|vpc| vpc.demand_pps == 1 && !vpc.measured), "nothing is measured");
        // The second cluster's gateway has reported: VPCs 2 and 4 are idle, 3 is not.
        let measured = loads(&[(2, 0)], &[(3, 90.0)]);
        let demands = |ledger: &Ledger, measured: &LoadSnapshot| -> Vec<(u64, bool)> {
            let usage = Usage::new(ledger, measured, PlacementSettings::default());
            assert_eq!(usage.expected_pps, 30);
            usage.vpcs.iter().map(|vpc| (vpc.demand_pps, vpc.measured)).collect()
        };
        assert_eq!(demands(&ledger, &measured), [(30, false), (0, true), (90, true), (0, true)]);
        // A new VPC counts at least as the mean until it has settled.
        ledger.vpcs.get_mut(&VpcId::new(4)).unwrap().since_ms = Some(0);
        assert_eq!(demands(&ledger, &measured)[3], (30, true));
        let later = LoadSnapshot { now_ms: SETTLING_MS, ..measured };
        assert_eq!(demands(&ledger, &later)[3], (0, true));
        let usage = Usage::new(&ledger, &later, PlacementSettings::default());
        let first = &usage.clusters[0];
        assert_eq!((first.vpcs, first.demand_pps, first.entries), (1, 30, 6));
        // A moving gateway needs table space for the entries of both clusters.
        let entries: u64 = usage.clusters.iter().map(|cluster| cluster.entries).sum();
        let missing = |loads: &LoadSnapshot, ledger: &Ledger| {
            let usage = Usage::new(ledger, loads, PlacementSettings::default());
            usage.missing_table_space(GatewayId::new(1), ClusterId::new(2))
        };
        assert_eq!(missing(&loads(&[(1, entries)], &[]), &ledger), None);
        let expected = MissingSpace { kind: "entries", needed: entries, size: entries - 1 };
        assert_eq!(missing(&loads(&[(1, entries - 1)], &[]), &ledger), Some(expected));
        // And a number for each address of their NAT gateways, if it translates.
        let nat_gateway = |id| NatGateway {
            id: NatGatewayId::new(id),
            name: String::new(),
            vpc: VpcId::new(id),
            cluster: ClusterId::new(id),
            pool: PublicPoolId::new(id),
            addresses: (1..=3).map(|last| [198, 51, 100, last].into()).collect(),
            sessions: 1,
            blocks: 1,
            filtering: NatFiltering::default(),
            mapping: NatMapping::default(),
            nat64_prefix: None,
            revision: 10,
        };
        ledger.apply(10, &[1, 2].map(|id| Change::NatGatewayUpserted(nat_gateway(id))), 0);
        let mut loads = loads(&[(1, entries + 6)], &[]);
        assert_eq!(missing(&loads, &ledger), None);
        for (size, expected) in
            [(6, None), (5, Some(MissingSpace { kind: "NAT addresses", needed: 6, size: 5 }))]
        {
            loads.gateways.get_mut(&GatewayId::new(1)).unwrap().nat_addresses = Some(size);
            assert_eq!(missing(&loads, &ledger), expected);
        }
    }

    #[test]
    fn table_space_is_counted_with_vpcs_that_leave() {
        let mut vpcs: Vec<_> = (1..=3).map(|id| vpc(id, 1, 1, 1)).collect();
        // VPC 3 is moving from cluster 2 to cluster 1.
        vpcs[2].cluster = ClusterId::new(2);
        vpcs[2].moving = Some(Move { id: 1, to: ClusterId::new(1), switched: false });
        let gateways = vec![gateway(1, 1, false), gateway(2, 2, false)];
        let counts = [(VpcId::new(1), ipv4(9)), (VpcId::new(2), ipv4(4)), (VpcId::new(3), ipv4(7))];
        let mut topology = topology(2, gateways, vpcs);
        let (a, b) = (VpcId::new(1), VpcId::new(2));
        topology.peerings = vec![Peering {
            id: PeeringId::new(1),
            name: String::new(),
            a,
            b,
            meters: [None; 2],
            revision: 1,
        }];
        let ledger = Ledger::new(&topology, 9, &counts);
        let missing = |size: u64, vpcs: &[VpcId], to: u64| {
            let loads = loads(&[(1, 1 << 20), (2, size)], &[]);
            let usage = Usage::new(&ledger, &loads, PlacementSettings::default());
            assert_eq!(usage.unit_of(b), [a, b]);
            usage.missing_vpc_space(vpcs, ClusterId::new(to))
        };
        // 10 entries of VPC 1 and 8 of VPC 3, which cluster 2 still has.
        assert_eq!(missing(18, &[a], 2), None);
        assert_eq!(missing(17, &[a], 2), Some((18, 17)));
        assert_eq!(missing(17, &[a, b], 2), Some((23, 17)));
        assert_eq!(missing(17, &[a, b], 1), None, "they are there");
        assert_eq!(missing(17, &[a], 99), None, "there is no such cluster");
    }

    #[test]
    fn peered_vpcs_are_placed_as_one_vpc() {
        let vpcs = (1..=3).map(|id| vpc(id, 1, 1, 1)).collect();
        let mut topology = topology(2, vec![gateway(1, 1, false)], vpcs);
        let (a, b) = (VpcId::new(1), VpcId::new(3));
        topology.peerings = vec![Peering {
            id: PeeringId::new(1),
            name: String::new(),
            a,
            b,
            meters: [None; 2],
            revision: 1,
        }];
        let ledger = Ledger::new(&topology, 9, &[]);
        let usage =
            Usage::new(&ledger, &loads(&[(1, 0)], &[(1, 10.0), (3, 4.0)]), PlacementSettings::default());
        let (problem, present) = usage.problem().unwrap();
        let vpcs: Vec<_> = problem.vpcs().iter().map(|vpc| (vpc.id, vpc.demand_pps, vpc.entries)).collect();
        assert_eq!(vpcs, [(a, 14, 2), (VpcId::new(2), 0, 1)]);
        assert_eq!(present.len(), 2);
        assert_eq!(problem.clusters().len(), 1, "the second cluster has no gateway");
    }
}
