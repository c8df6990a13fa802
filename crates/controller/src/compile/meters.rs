//! Meters: which clusters use which, and what their gateways get of them. A cluster uses the meters of the EIPs that are
//! attached on it, of its VPCs, and of both sides of the peerings of these.

use super::{Compiled, State, Target};
use sluice_southbound::Meter;
use sluice_store::{Change, Eip, Meter as StoredMeter, Peering, PeeringMeters, Topology, Vpc};
use sluice_types::{ClusterId, EipId, MeterId, MeterRate, VpcId};
use std::collections::{BTreeMap, BTreeSet};

/// The id of a meter on gateways: the lower 32 bits of its own, as of clusters' groups.
pub fn meter_id(meter: MeterId) -> u32 {
    meter.get() as u32
}

/// Which clusters use which meters.
#[derive(Clone, Debug, Default)]
pub struct MeterUses {
    /// The attached EIPs that have a meter, with their cluster.
    eips: BTreeMap<EipId, (MeterId, ClusterId)>,
    /// The VPCs, and their own uses.
    vpcs: BTreeMap<VpcId, VpcUses>,
    /// Number of uses of each meter on each cluster, at least 1.
    counts: BTreeMap<MeterId, BTreeMap<ClusterId, u64>>,
}

/// The meters that a VPC uses.
#[derive(Clone, Debug, Default)]
struct VpcUses {
    internet: Option<MeterId>,
    /// Of both sides of its peerings, by the other VPC: routes to the peer have both.
    peerings: BTreeMap<VpcId, PeeringMeters>,
    /// Its clusters: two while it moves.
    clusters: Vec<ClusterId>,
}

impl VpcUses {
    /// All uses: a meter that it uses twice is there twice.
    fn all(&self) -> Vec<(ClusterId, MeterId)> {
        let of_peerings = self.peerings.values().flatten().flatten();
        let meters = self.internet.iter().chain(of_peerings);
        meters.flat_map(|meter| self.clusters.iter().map(|cluster| (*cluster, *meter))).collect()
    }
}

/// Uses that changes may have begun or ended, and whether there were any before the changes.
pub type ChangedUses = BTreeMap<(ClusterId, MeterId), bool>;

impl MeterUses {
    /// The uses of a snapshot's topology.
    pub fn new(topology: &Topology) -> Self {
        let mut uses = Self::default();
        let changed = &mut ChangedUses::default();
        topology.eips.iter().for_each(|eip| uses.set_eip(eip, changed));
        topology.vpcs.iter().for_each(|vpc| uses.set_vpc(vpc, changed));
        for Peering { a, b, meters, .. } in &topology.peerings {
            uses.set_peering([*a, *b], *meters, changed);
        }
        uses
    }

    /// Advances by a change, which adds to `changed`.
    pub fn apply(&mut self, change: &Change, changed: &mut ChangedUses) {
        match change {
            Change::EipUpserted(eip) => self.set_eip(eip, changed),
            Change::EipRemoved(eip) => self.set_eip(&Eip { attachment: None, ..eip.clone() }, changed),
            Change::VpcUpserted { vpc, .. } => self.set_vpc(vpc, changed),
            // It has no peerings any more.
            Change::VpcRemoved(vpc) => {
                self.set_vpc(&Vpc { internet_meter: None, ..vpc.clone() }, changed);
                self.vpcs.remove(&vpc.id);
            }
            Change::PeeringUpserted { a, b, meters, .. } => self.set_peering([a.id, b.id], *meters, changed),
            Change::PeeringRemoved { a, b, .. } => self.set_peering([a.id, b.id], [None; 2], changed),
            _ => {}
        }
    }

    /// The clusters that use a meter.
    pub fn clusters(&self, meter: MeterId) -> impl Iterator<Item = ClusterId> {
        self.counts.get(&meter).into_iter().flat_map(BTreeMap::keys).copied()
    }

    fn is_used(&self, cluster: ClusterId, meter: MeterId) -> bool {
        self.counts.get(&meter).is_some_and(|clusters| clusters.contains_key(&cluster))
    }

    fn set_eip(&mut self, eip: &Eip, changed: &mut ChangedUses) {
        let new = eip.meter.filter(|_| eip.attachment.is_some()).map(|meter| (meter, eip.cluster));
        let old = match new {
            Some(new) => self.eips.insert(eip.id, new),
            None => self.eips.remove(&eip.id),
        };
        new.into_iter().for_each(|(meter, cluster)| self.add(cluster, meter, changed));
        old.into_iter().for_each(|(meter, cluster)| self.remove(cluster, meter, changed));
    }

    fn set_vpc(&mut self, vpc: &Vpc, changed: &mut ChangedUses) {
        let (internet, clusters) = (vpc.internet_meter, vpc.clusters().collect());
        self.change_vpc(vpc.id, changed, |uses| (uses.internet, uses.clusters) = (internet, clusters));
    }

    fn set_peering(&mut self, [a, b]: [VpcId; 2], meters: PeeringMeters, changed: &mut ChangedUses) {
        for (vpc, peer) in [(a, b), (b, a)] {
            self.change_vpc(vpc, changed, |uses| match meters {
                [None, None] => drop(uses.peerings.remove(&peer)),
                meters => drop(uses.peerings.insert(peer, meters)),
            });
        }
    }

    fn change_vpc(&mut self, vpc: VpcId, changed: &mut ChangedUses, change: impl FnOnce(&mut VpcUses)) {
        let uses = self.vpcs.entry(vpc).or_default();
        let old = uses.all();
        change(uses);
        let new = uses.all();
        new.into_iter().for_each(|(cluster, meter)| self.add(cluster, meter, changed));
        old.into_iter().for_each(|(cluster, meter)| self.remove(cluster, meter, changed));
    }

    fn add(&mut self, cluster: ClusterId, meter: MeterId, changed: &mut ChangedUses) {
        changed.entry((cluster, meter)).or_insert(self.is_used(cluster, meter));
        *self.counts.entry(meter).or_default().entry(cluster).or_default() += 1;
    }

    fn remove(&mut self, cluster: ClusterId, meter: MeterId, changed: &mut ChangedUses) {
        changed.entry((cluster, meter)).or_insert(self.is_used(cluster, meter));
        let Some(clusters) = self.counts.get_mut(&meter) else { return };
        match clusters.get_mut(&cluster) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(clusters.remove(&cluster)),
        }
        if clusters.is_empty() {
            self.counts.remove(&meter);
        }
    }
}

/// The meters, and their uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Meters {
    stored: BTreeMap<MeterId, StoredMeter>,
    uses: MeterUses,
}

/// What the changes of a revision do to meters. It is sent after all of them are in the state.
#[derive(Debug, Default)]
pub(super) struct MeterChanges {
    uses: ChangedUses,
    changed: BTreeSet<MeterId>,
}

impl Meters {
    /// The meters of a snapshot's topology.
    pub fn new(topology: &Topology) -> Self {
        let stored = topology.meters.iter().map(|meter| (meter.id, meter.clone())).collect();
        Self { stored, uses: MeterUses::new(topology) }
    }

    /// Advances by a change.
    pub fn apply(&mut self, change: &Change, changes: &mut MeterChanges) {
        match change {
            Change::MeterUpserted(meter) => {
                changes.changed.insert(meter.id);
                self.stored.insert(meter.id, meter.clone());
            }
            // No cluster uses it any more.
            Change::MeterRemoved(meter) => drop(self.stored.remove(&meter.id)),
            change => self.uses.apply(change, &mut changes.uses),
        }
    }

    fn entry(&self, meter: MeterId) -> Option<Meter> {
        let StoredMeter { id, inward, outward, .. } = self.stored.get(&meter)?;
        let id = meter_id(*id);
        Some(Meter { id, inward: inward.map(MeterRate::limit), outward: outward.map(MeterRate::limit) })
    }

    /// The meters that any of these clusters uses.
    pub fn of_clusters(&self, clusters: &BTreeSet<ClusterId>) -> Vec<Meter> {
        let used =
            |uses: &BTreeMap<ClusterId, u64>| clusters.iter().any(|cluster| uses.contains_key(cluster));
        let meters = self.uses.counts.iter().filter(|(_, uses)| used(uses)).map(|(meter, _)| *meter);
        meters.filter_map(|meter| self.entry(meter)).collect()
    }
}

impl State {
    /// Sends meters to the clusters that begin to use them or use them with other limits, and removes them from those that
    /// use them no longer.
    pub(super) fn send_meters(&self, changes: MeterChanges, out: &mut Compiled) {
        let MeterChanges { uses, changed } = changes;
        let is_used = |cluster, meter| self.meters.uses.is_used(cluster, meter);
        let of_changed = changed
            .iter()
            .flat_map(|meter| self.meters.uses.clusters(*meter).map(move |cluster| (cluster, *meter)));
        let begun = uses.iter().filter(|((cluster, meter), was)| !**was && is_used(*cluster, *meter));
        let sent: BTreeSet<_> = of_changed.chain(begun.map(|(at, _)| *at)).collect();
        for (cluster, meter) in sent {
            out.of(Target::Cluster(cluster)).meters.extend(self.meters.entry(meter));
        }
        for ((cluster, meter), was) in uses {
            if was && !is_used(cluster, meter) {
                out.of(Target::Cluster(cluster)).removed_meters.push(meter_id(meter));
                // A gateway between two clusters needs it as long as one of them uses it.
                self.resync_moving_gateways(cluster, &self.meters.uses.clusters(meter).collect(), out);
            }
        }
    }
}
