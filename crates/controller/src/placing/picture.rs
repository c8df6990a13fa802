//! Everything that placement looks at, at one moment.

use super::Settings;
use crate::ledger::Ledger;
use crate::load::{GatewayLoad, LoadPicture};
use sluice_placement::{Cluster, InputError, Placement, Problem, Vpc};
use sluice_types::{ClusterId, GatewayId, TenantId, VpcId};
use std::collections::{BTreeMap, BTreeSet};

/// Cells of table memory an entry needs: less than one for either family's address of an instance, and as
/// much again while the table that holds them grows to a copy (`docs/decisions/exact.md`).
const CELLS_PER_ENTRY: u64 = 2;
/// Entries of a gateway that has not reported: those of the agent's default of 64 MiB.
const ENTRIES_DEFAULT: u64 = (64 << 20) / 64 / CELLS_PER_ENTRY;
/// A new VPC counts at least as an average one for so long: until its instances are there and talk.
const SETTLING_MS: u64 = 600_000;
/// What any VPC is expected to forward at least: where nothing is known, VPCs are counted.
pub const EXPECTED_MIN_PPS: u64 = 1;
/// The algorithms' limit of any amount.
const AMOUNT_MAX: u64 = 1 << 40;

/// How a gateway's capacity is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The operator has set it.
    Set,
    /// From its packet rate and how busy that keeps it.
    Estimated,
    /// It was never busy enough to tell, or has not reported: the site's default.
    Assumed,
}

/// A gateway.
#[derive(Clone, Debug)]
pub struct GatewayView {
    /// Which.
    pub id: GatewayId,
    /// Name, for people.
    pub name: String,
    /// It is to own nothing.
    pub draining: bool,
    /// It failed, or is cut off.
    pub down: bool,
    /// Packets a second that it could forward.
    pub capacity_pps: u64,
    /// Why so many.
    pub known: Known,
    /// As it last reported, if it has a stream to this controller.
    pub load: Option<GatewayLoad>,
}

impl GatewayView {
    /// It forwards, and shall. What does not, has no capacity.
    pub fn serves(&self) -> bool {
        !self.draining && !self.down
    }

    fn entries(&self) -> u64 {
        let cells = self.load.map(|load| load.cells_total).filter(|cells| *cells > 0);
        cells.map_or(ENTRIES_DEFAULT, |cells| (cells / CELLS_PER_ENTRY).max(1))
    }
}

/// A cluster.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// Which.
    pub id: ClusterId,
    /// Name, for people.
    pub name: String,
    /// In order of id.
    pub gateways: Vec<GatewayView>,
    /// Packets a second of its gateways that serve; 0: there are none.
    pub capacity_pps: u64,
    /// Entries of the smallest of them.
    pub capacity_entries: u64,
    /// What its VPCs ask for.
    pub demand_pps: u64,
    /// Entries of its VPCs.
    pub entries: u64,
    /// How many VPCs it has.
    pub vpcs: usize,
}

impl ClusterView {
    /// Demand by capacity; `None` without gateways.
    pub fn load(&self) -> Option<f64> {
        (self.capacity_pps > 0).then(|| self.demand_pps as f64 / self.capacity_pps as f64)
    }
}

/// A VPC.
#[derive(Clone, Debug)]
pub struct VpcView {
    /// Which.
    pub id: VpcId,
    /// Name, for people.
    pub name: String,
    /// Whose.
    pub tenant: TenantId,
    /// Where it is, or goes to.
    pub cluster: ClusterId,
    /// Packets a second that it counts for.
    pub demand_pps: u64,
    /// Its demand is measured, not expected.
    pub measured: bool,
    /// In its cluster's tables.
    pub entries: u64,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Picture {
    /// What the site wants.
    pub settings: Settings,
    /// Of the database, up to which the picture goes.
    pub revision: u64,
    /// In order of id.
    pub clusters: Vec<ClusterView>,
    /// In order of id.
    pub vpcs: Vec<VpcView>,
    /// What a VPC of which nothing is known counts for: the mean of those that are measured.
    pub expected_pps: u64,
    /// VPCs that are peered and move together, by the first of them.
    pub units: BTreeMap<VpcId, Vec<VpcId>>,
}

fn amount(pps: f64) -> u64 {
    // Saturates, and makes 0 of what is no number.
    (pps.ceil() as u64).min(AMOUNT_MAX)
}

impl Picture {
    /// From what is placed and what is measured.
    pub fn new(ledger: &Ledger, loads: &LoadPicture, settings: Settings) -> Self {
        let mut picture = Self {
            revision: ledger.revision(),
            clusters: clusters(ledger, loads, &settings),
            vpcs: Vec::new(),
            expected_pps: 0,
            units: ledger.units(),
            settings,
        };
        picture.add_vpcs(ledger, loads);
        let places: BTreeMap<ClusterId, usize> =
            picture.clusters.iter().zip(0..).map(|(cluster, place)| (cluster.id, place)).collect();
        for vpc in &picture.vpcs {
            if let Some(place) = places.get(&vpc.cluster) {
                let cluster = &mut picture.clusters[*place];
                cluster.demand_pps += vpc.demand_pps;
                cluster.entries += vpc.entries;
                cluster.vpcs += 1;
            }
        }
        picture
    }

    fn add_vpcs(&mut self, ledger: &Ledger, loads: &LoadPicture) {
        let reported: BTreeMap<ClusterId, bool> = self
            .clusters
            .iter()
            .map(|cluster| {
                let measured = |gateway: &GatewayView| loads.measured.contains(&gateway.id);
                (cluster.id, cluster.gateways.iter().any(measured))
            })
            .collect();
        let measured: Vec<Option<f64>> = ledger
            .vpcs
            .values()
            .map(|vpc| {
                let idle = || reported.get(&vpc.cluster).is_some_and(|reported| *reported).then_some(0.0);
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
            self.vpcs.push(VpcView {
                id: *id,
                name: vpc.name.clone(),
                tenant: vpc.tenant,
                cluster: vpc.cluster,
                demand_pps,
                measured: measured.is_some(),
                entries: vpc.entries().min(AMOUNT_MAX),
            });
        }
    }

    /// All of it as a problem, and where everything is. Peered VPCs are one in it, named by their first;
    /// clusters without gateways are left out, so that what is on them moves.
    ///
    /// # Errors
    /// More than can be placed, or no cluster to place it on.
    pub fn problem(&self) -> Result<(Problem, Placement), InputError> {
        let clusters = self.clusters.iter().filter(|cluster| cluster.capacity_pps > 0);
        let clusters = clusters.map(|cluster| Cluster {
            id: cluster.id,
            capacity_pps: cluster.capacity_pps,
            capacity_entries: cluster.capacity_entries,
        });
        let by_id: BTreeMap<VpcId, &VpcView> = self.vpcs.iter().map(|vpc| (vpc.id, vpc)).collect();
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
        let Settings { clusters_per_tenant, water_level, .. } = self.settings;
        Ok((Problem::new(clusters.collect(), vpcs, clusters_per_tenant, water_level)?, present))
    }

    /// A gateway that moves has the entries of both clusters for a while: how many those are, and how many
    /// its tables hold, if that is fewer.
    pub fn too_many(&self, gateway: GatewayId, to: ClusterId) -> Option<(u64, u64)> {
        let from = self.clusters.iter().find(|it| it.gateways.iter().any(|it| it.id == gateway))?;
        let to = self.clusters.iter().find(|it| it.id == to)?;
        let room = from.gateways.iter().find(|it| it.id == gateway)?.entries();
        let needed = from.entries + to.entries;
        (needed > room).then_some((needed, room))
    }

    /// How even it is; nothing without a cluster that serves.
    pub fn balance(&self) -> Balance {
        let Ok((problem, present)) = self.problem() else { return Balance::default() };
        let served: BTreeSet<ClusterId> = problem.clusters().iter().map(|cluster| cluster.id).collect();
        let known = present.into_iter().filter(|(_, at)| served.contains(at)).collect();
        let mean = problem.demand_pps() as f64 / problem.capacity_pps().max(1) as f64;
        Balance {
            lambda: problem.lambda(&known).unwrap_or_default(),
            lambda_at_least: mean.max(problem.whole_vpcs_bound()),
            tenants_over_k: problem.tenants_over_k(&known).unwrap_or_default(),
        }
    }
}

/// How even a placement is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balance {
    /// Load of the fullest cluster; clusters without gateways are not counted.
    pub lambda: f64,
    /// What it is at least, whatever is where: the mean, or the largest VPC or tenant.
    pub lambda_at_least: f64,
    /// Tenants on more clusters than they may be.
    pub tenants_over_k: usize,
}

/// All clusters with their gateways, and nothing on them yet.
pub fn clusters(ledger: &Ledger, loads: &LoadPicture, settings: &Settings) -> Vec<ClusterView> {
    let view = |placeable: &crate::ledger::Placeable| {
        let gateways: Vec<GatewayView> = placeable
            .gateways
            .iter()
            .map(|gateway| {
                let load = loads.gateways.get(&gateway.id).copied();
                let capacity =
                    load.map(|load| load.capacity).or_else(|| loads.capacities.get(&gateway.id).copied());
                let estimate = capacity.and_then(|capacity| capacity.pps()).map(amount);
                let (capacity_pps, known) = match (settings.gateways.get(&gateway.id), estimate) {
                    (Some(set), _) => (*set, Known::Set),
                    (None, Some(estimate)) => (estimate, Known::Estimated),
                    (None, None) => (settings.gateway_capacity_pps, Known::Assumed),
                };
                let (id, name, draining) = (gateway.id, gateway.name.clone(), gateway.retires());
                let down = loads.down.contains(&id);
                GatewayView { id, name, draining, down, capacity_pps, known, load }
            })
            .collect();
        let serving = || gateways.iter().filter(|gateway| gateway.serves());
        ClusterView {
            id: placeable.cluster.id,
            name: placeable.cluster.name.clone(),
            capacity_pps: serving().map(|gateway| gateway.capacity_pps).sum::<u64>().min(AMOUNT_MAX),
            capacity_entries: serving().map(GatewayView::entries).min().unwrap_or(0).min(AMOUNT_MAX),
            gateways,
            demand_pps: 0,
            entries: 0,
            vpcs: 0,
        }
    };
    ledger.clusters.values().map(view).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::ledger::tests::vpc;
    use crate::load::capacity::Capacity;
    use sluice_store::{Gateway, Peering, Topology};
    use sluice_types::{PeeringId, Vni};

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

    /// Clusters 1 to `clusters` without gateways, and what is put beside them.
    pub fn topology(clusters: u64, gateways: Vec<Gateway>, vpcs: Vec<sluice_store::Vpc>) -> Topology {
        let cluster = |id| sluice_store::Cluster {
            id: ClusterId::new(id),
            name: format!("c{id}"),
            vips: Vec::new(),
            hello_ms: 4,
            plan_revision: 1,
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

    /// Of gateways that report so many cells each.
    pub fn loads(gateways: &[(u64, u64)], demands: &[(u32, f64)]) -> LoadPicture {
        let load = |cells_total| GatewayLoad { measured_ms: 1, cells_total, ..GatewayLoad::default() };
        LoadPicture {
            now_ms: 1,
            gateways: gateways.iter().map(|(id, cells)| (GatewayId::new(*id), load(*cells))).collect(),
            demands: demands.iter().map(|(vni, pps)| (Vni::new(*vni).unwrap(), *pps)).collect(),
            measured: gateways.iter().map(|(id, _)| GatewayId::new(*id)).collect(),
            ..LoadPicture::default()
        }
    }

    #[test]
    fn capacity_is_that_of_gateways_that_serve() {
        let gateways = vec![gateway(1, 1, false), gateway(2, 1, false), gateway(3, 1, true)];
        let ledger = Ledger::new(&topology(2, gateways, vec![]), 9, &[]);
        let mut loads = loads(&[(1, 1_000), (2, 600)], &[]);
        let mut settings = Settings { gateway_capacity_pps: 100, ..Settings::default() };
        let cluster = |loads: &LoadPicture, settings: &Settings| {
            let picture = Picture::new(&ledger, loads, settings.clone());
            assert_eq!((picture.clusters[1].capacity_pps, picture.clusters[1].load()), (0, None));
            let known: Vec<Known> =
                picture.clusters[0].gateways.iter().map(|gateway| gateway.known).collect();
            (picture.clusters[0].capacity_pps, picture.clusters[0].capacity_entries, known)
        };
        use Known::*;
        assert_eq!(cluster(&loads, &settings), (200, 300, vec![Assumed, Assumed, Assumed]));
        let mut capacity = Capacity::default();
        capacity.sample(50_000.0, 0.5, 1_000);
        loads.gateways.get_mut(&GatewayId::new(1)).unwrap().capacity = capacity;
        settings.gateways.insert(GatewayId::new(2), 7);
        assert_eq!(cluster(&loads, &settings), (100_007, 300, vec![Estimated, Set, Assumed]));
        assert_eq!(cluster(&LoadPicture::default(), &settings).1, ENTRIES_DEFAULT);
        let away =
            LoadPicture { capacities: [(GatewayId::new(1), capacity)].into(), ..LoadPicture::default() };
        assert_eq!(cluster(&away, &settings).0, 100_007, "it is remembered while it has no stream");
        // One failed, or is cut off: the other one is all that there is.
        loads.down = [GatewayId::new(1)].into();
        assert_eq!(cluster(&loads, &settings), (7, 300, vec![Estimated, Set, Assumed]));
        loads.down = [GatewayId::new(1), GatewayId::new(2)].into();
        assert_eq!(cluster(&loads, &settings).0, 0, "the third is draining");
    }

    #[test]
    fn what_is_not_measured_counts_as_the_mean_of_what_is() {
        let vpcs = (1..=4).map(|id| vpc(id, 1, id.min(2), 1)).collect();
        let gateways = vec![gateway(1, 1, false), gateway(2, 2, false)];
        let mut ledger = Ledger::new(&topology(2, gateways, vpcs), 9, &[(VpcId::new(1), 5)]);
        let picture = Picture::new(&ledger, &loads(&[], &[]), Settings::default());
        assert!(picture.vpcs.iter().all(|vpc| vpc.demand_pps == 1 && !vpc.measured), "only counted");
        // The second cluster's gateway has reported: VPCs 2 and 4 are idle, 3 is not.
        let measured = loads(&[(2, 0)], &[(3, 90.0)]);
        let demands = |ledger: &Ledger, measured: &LoadPicture| -> Vec<(u64, bool)> {
            let picture = Picture::new(ledger, measured, Settings::default());
            assert_eq!(picture.expected_pps, 30);
            picture.vpcs.iter().map(|vpc| (vpc.demand_pps, vpc.measured)).collect()
        };
        assert_eq!(demands(&ledger, &measured), [(30, false), (0, true), (90, true), (0, true)]);
        // A new one counts as the mean until it has settled.
        ledger.vpcs.get_mut(&VpcId::new(4)).unwrap().since_ms = Some(0);
        assert_eq!(demands(&ledger, &measured)[3], (30, true));
        let later = LoadPicture { now_ms: SETTLING_MS, ..measured };
        assert_eq!(demands(&ledger, &later)[3], (0, true));
        let picture = Picture::new(&ledger, &later, Settings::default());
        let first = &picture.clusters[0];
        assert_eq!((first.vpcs, first.demand_pps, first.entries), (1, 30, 6));
        // Whoever moves must have room for both clusters' entries.
        let entries: u64 = picture.clusters.iter().map(|cluster| cluster.entries).sum();
        for (cells, too_many) in [(2 * entries, None), (2 * entries - 1, Some((entries, entries - 1)))] {
            let picture = Picture::new(&ledger, &loads(&[(1, cells)], &[]), Settings::default());
            assert_eq!(picture.too_many(GatewayId::new(1), ClusterId::new(2)), too_many);
        }
    }

    #[test]
    fn peered_vpcs_are_placed_as_one() {
        let vpcs = (1..=3).map(|id| vpc(id, 1, 1, 1)).collect();
        let mut topology = topology(2, vec![gateway(1, 1, false)], vpcs);
        let (a, b) = (VpcId::new(1), VpcId::new(3));
        topology.peerings = vec![Peering { id: PeeringId::new(1), name: String::new(), a, b, revision: 1 }];
        let ledger = Ledger::new(&topology, 9, &[]);
        let picture = Picture::new(&ledger, &loads(&[(1, 0)], &[(1, 10.0), (3, 4.0)]), Settings::default());
        let (problem, present) = picture.problem().unwrap();
        let vpcs: Vec<_> = problem.vpcs().iter().map(|vpc| (vpc.id, vpc.demand_pps, vpc.entries)).collect();
        assert_eq!(vpcs, [(a, 14, 2), (VpcId::new(2), 0, 1)]);
        assert_eq!(present.len(), 2);
        assert_eq!(problem.clusters().len(), 1, "one has no gateway");
    }
}
