//! Entries of clusters: vIPs, the vIP plan, keys, and the VTEPs of gateways, from which hosts and the other gateways of a
//! cluster accept packets. This file changes when a cluster gets another kind of entry, or when another order between
//! gateways and hosts is needed.

use super::shared::ClusterUpdates;
use super::zones::ZoneInput;
use super::{Compiled, Family, Gate, Membership, Model, NodeGroup, State, Target};
use sluice_rsp::host_secret;
use sluice_southbound::{
    ClusterKeys, ClusterPlan, Group, Key, Member, PlannedVip, PreferredOwner, Update, Vip, Vtep, VtepRole,
};
use sluice_store::{Cluster, ClusterKey, ClusterVip, Gateway, Host, NodeId};
use sluice_types::{ClusterId, GatewayId, HostId, MacAddr, NatSeed, Secret};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

#[derive(Clone, Debug)]
pub(super) struct ClusterState {
    pub cluster: Cluster,
    pub gateways: Vec<Gateway>,
    pub keys: Vec<Key>,
}

impl ClusterState {
    pub fn gateway(&self, id: GatewayId) -> Option<&Gateway> {
        self.gateways.iter().find(|gateway| gateway.id == id)
    }
}

/// The MAC address of a cluster's vIP, from the vIP's slot. Those of a cluster differ in the last two bytes only: gateways
/// recognize them by this (`is_for_public()` in `bpf/include/gateway/internet_in.h`).
pub fn vip_mac(cluster: ClusterId, slot: u8) -> MacAddr {
    MacAddr::local(cluster.get() << 16 | u64::from(slot))
}

/// The id of a cluster's group of vIPs on hosts: the lower 32 bits of the cluster's id.
pub fn group_id(cluster: ClusterId) -> u32 {
    // Ids count up from 1. Two clusters share a group only after 2^32 clusters were created.
    cluster.get() as u32
}

pub(super) fn vips_of(cluster: &Cluster) -> Vec<Vip> {
    let vip = |vip: &ClusterVip| Vip { address: vip.address, mac: vip_mac(cluster.id, vip.slot) };
    cluster.vips.iter().map(vip).collect()
}

pub(super) fn vip_plan(state: &ClusterState, nat_seed: Option<NatSeed>) -> ClusterPlan {
    let cluster = &state.cluster;
    let vip = |vip: &ClusterVip| {
        let (slot, address) = (vip.slot, vip.address);
        PlannedVip { slot, address, mac: vip_mac(cluster.id, slot) }
    };
    let member = |gateway: &Gateway| {
        let Gateway { id, vtep4, vtep6, .. } = *gateway;
        Member { gateway: id, vtep4, vtep6, draining: gateway.is_retiring() }
    };
    let preferred_owner =
        |vip: &ClusterVip| vip.preferred_owner.map(|gateway| PreferredOwner { slot: vip.slot, gateway });
    ClusterPlan {
        cluster: cluster.id,
        revision: cluster.vip_plan_revision,
        vips: cluster.vips.iter().map(vip).collect(),
        members: state.gateways.iter().map(member).collect(),
        preferred_owners: cluster.vips.iter().filter_map(preferred_owner).collect(),
        hello_interval_ms: cluster.hello_interval_ms,
        nat_seed,
    }
}

pub(super) fn key(key: &ClusterKey) -> Key {
    let ClusterKey { id, cluster: _, secret, not_before_ms, not_after_ms } = *key;
    Key { id, secret, not_before_ms, not_after_ms }
}

pub(super) fn keys_of(state: &ClusterState) -> ClusterKeys {
    ClusterKeys { cluster: group_id(state.cluster.id), keys: state.keys.clone() }
}

/// An empty key list of a cluster: the node removes the keys that it has.
pub fn no_keys(cluster: ClusterId) -> ClusterKeys {
    ClusterKeys { cluster: group_id(cluster), keys: Vec::new() }
}

/// The same keys, derived for the host with this VTEP: they authenticate RSP between this host and gateways
/// only.
pub fn for_host(keys: &ClusterKeys, vtep: IpAddr) -> ClusterKeys {
    let derived = |key: &Key| Key { secret: Secret::new(host_secret(key.secret.bytes(), vtep)), ..*key };
    ClusterKeys { cluster: keys.cluster, keys: keys.keys.iter().map(derived).collect() }
}

pub(super) fn group_of(cluster: &Cluster, family: Family, model: Model) -> Group {
    let addresses = cluster.vips.iter().map(|vip| vip.address);
    let vips = addresses.filter(|vip| Family::of(*vip) == family).collect();
    Group { id: group_id(cluster.id), vips, detect_after_ms: model.hosts_detect_after_ms() }
}

pub(super) fn vteps_of(gateways: &[Gateway]) -> impl Iterator<Item = Vtep> + '_ {
    gateways.iter().flat_map(|gateway| {
        let addresses = gateway.vtep4.map(IpAddr::from).into_iter().chain(gateway.vtep6.map(IpAddr::from));
        let role = VtepRole::Gateway { cluster: group_id(gateway.cluster) };
        addresses.map(move |address| Vtep { address, role })
    })
}

pub(super) fn vtep_of(host: &Host) -> Vtep {
    let role = if host.agent { VtepRole::Host } else { VtepRole::ForeignHost };
    Vtep { address: host.vtep, role }
}

impl State {
    /// Inserts or replaces a cluster. What it no longer has is removed from nodes.
    pub(super) fn upsert_cluster(&mut self, cluster: &Cluster, gateways: &[Gateway], out: &mut Compiled) {
        self.set_memberships(gateways, out);
        let old_peers = self.gateway_vteps();
        let old = self.clusters.remove(&cluster.id);
        let is_new = old.is_none();
        let (old_vips, old_gateways, keys) =
            old.map_or_else(Default::default, |old| (old.cluster.addresses(), old.gateways, old.keys));
        let new = ClusterState { cluster: cluster.clone(), gateways: gateways.to_vec(), keys };
        let vips = cluster.addresses();
        let update = out.of(Target::Cluster(cluster.id));
        update.vips = vips_of(cluster);
        update.removed_vips = old_vips.iter().filter(|vip| !vips.contains(vip)).copied().collect();
        out.of(Target::Members(cluster.id)).cluster = Some(vip_plan(&new, self.nat_seed));
        self.clusters.insert(cluster.id, new);
        self.change_vips(cluster.id, &old_vips, out);
        self.change_gateway_vteps(&old_peers, out);
        let now: BTreeSet<_> = vteps_of(gateways).collect();
        // A gateway that is in another cluster now was not deleted.
        let moved =
            |old: &Gateway| self.gateway(old.id).is_some_and(|(state, _)| state.cluster.id != cluster.id);
        let old_gateways: Vec<_> = old_gateways.into_iter().filter(|old| !moved(old)).collect();
        let gone = vteps_of(&old_gateways).map(|vtep| vtep.address);
        let gone: Vec<_> = gone.filter(|vtep| now.iter().all(|now| now.address != *vtep)).collect();
        let has_new = vteps_of(gateways).any(|vtep| !vteps_of(&old_gateways).any(|old| old == vtep));
        let (hosts, members) = (NodeGroup::AllHosts, NodeGroup::Gateways(cluster.id));
        if !is_new && (!gone.is_empty() || vips.iter().any(|vip| !old_vips.contains(vip))) {
            // Gateways must have a new vIP before hosts send to it, and hosts accept packets from a removed
            // gateway until its cluster has acknowledged.
            out.gates.push(Gate { held: hosts, awaited: members });
        } else if !is_new && (has_new || old_vips.iter().any(|vip| !vips.contains(vip))) {
            // Hosts must accept packets from a new gateway before it owns vIPs, and a vIP is removed when no
            // host sends to it.
            out.gates.push(Gate { held: members, awaited: hosts });
        }
        for family in [Family::V4, Family::V6] {
            let update = out.of(Target::AllHosts(family));
            update.vteps.extend(now.iter().copied());
            if !self.model.has_zones() {
                update.groups.push(group_of(cluster, family, self.model));
            }
            update.removed_vteps.extend(gone.iter().copied());
        }
        let removed = old_gateways.iter().filter(|old| gateways.iter().all(|g| g.id != old.id));
        out.removed_nodes.extend(removed.map(|g| NodeId::Gateway(g.id)));
    }

    /// The VTEPs of the gateways that have each cluster's entries: its members, and those that move between it and another
    /// cluster. Each of them has all of these VTEPs, also its own: what is sent to one of them is the same for all.
    fn gateway_vteps(&self) -> BTreeMap<ClusterId, BTreeSet<Vtep>> {
        let mut vteps: BTreeMap<ClusterId, BTreeSet<Vtep>> = BTreeMap::new();
        for gateway in self.clusters.values().flat_map(|state| &state.gateways) {
            for cluster in gateway.clusters() {
                vteps.entry(cluster).or_default().extend(vteps_of(std::slice::from_ref(gateway)));
            }
        }
        vteps
    }

    /// The VTEPs of gateways for the gateways that have the entries of these clusters.
    pub(super) fn gateway_vteps_of(&self, clusters: impl Iterator<Item = ClusterId>) -> BTreeSet<Vtep> {
        let all = self.gateway_vteps();
        clusters.filter_map(|cluster| all.get(&cluster)).flatten().copied().collect()
    }

    /// Sends gateways the VTEPs of gateways that differ from the old ones.
    fn change_gateway_vteps(&self, old: &BTreeMap<ClusterId, BTreeSet<Vtep>>, out: &mut Compiled) {
        let (new, none) = (self.gateway_vteps(), BTreeSet::new());
        for cluster in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let (old, new) = (old.get(cluster).unwrap_or(&none), new.get(cluster).unwrap_or(&none));
            let added = new.difference(old).copied();
            let has = |vtep: &&Vtep| new.iter().any(|new| new.address == vtep.address);
            let gone: Vec<IpAddr> = old.iter().filter(|old| !has(old)).map(|old| old.address).collect();
            if new.is_subset(old) && gone.is_empty() {
                continue;
            }
            let update = out.of(Target::Cluster(*cluster));
            update.vteps.extend(added);
            update.removed_vteps.extend(gone.iter().copied());
            // Those that still have the entries of the cluster where the gateway is now keep its VTEP.
            for gateway in self.clusters.values().flat_map(|state| &state.gateways) {
                let mut addresses =
                    gateway.vtep4.map(IpAddr::from).into_iter().chain(gateway.vtep6.map(IpAddr::from));
                if addresses.any(|address| gone.contains(&address)) {
                    self.resync_moving_gateways(*cluster, &gateway.clusters().collect(), out);
                }
            }
        }
    }

    /// Records which of these gateways start, continue or end a move between clusters.
    fn set_memberships(&self, gateways: &[Gateway], out: &mut Compiled) {
        for gateway in gateways {
            let Some((_, old)) = self.gateway(gateway.id) else { continue };
            if (old.cluster, old.moving) != (gateway.cluster, gateway.moving) {
                let set = |gateway: &Gateway| gateway.clusters().collect::<BTreeSet<_>>();
                let membership = Membership { resync: set(old) != set(gateway), ..Membership::of(gateway) };
                out.memberships.insert(gateway.id, membership);
            }
        }
    }

    /// A VPC or a gateway left the cluster `gone`. The members of that cluster are told to remove its entries, but a gateway
    /// that moves between `gone` and a cluster that has it must keep them: such gateways get a snapshot.
    pub(super) fn resync_moving_gateways(
        &self,
        gone: ClusterId,
        has: &BTreeSet<ClusterId>,
        out: &mut Compiled,
    ) {
        for gateway in self.clusters.values().flat_map(|state| &state.gateways) {
            let of = |id: ClusterId| gateway.clusters().any(|cluster| cluster == id);
            if gateway.moving.is_some() && of(gone) && has.iter().any(|id| of(*id)) {
                out.memberships.entry(gateway.id).or_insert(Membership::of(gateway)).resync = true;
            }
        }
    }

    pub(super) fn remove_cluster(&mut self, cluster: &Cluster, out: &mut Compiled) {
        let old = self.clusters.remove(&cluster.id);
        let gateways = old.map_or_else(Vec::new, |old| old.gateways);
        for family in [Family::V4, Family::V6] {
            let update = out.of(Target::AllHosts(family));
            update.removed_groups.push(group_id(cluster.id));
            update.removed_vteps.extend(vteps_of(&gateways).map(|vtep| vtep.address));
        }
        out.removed_nodes.extend(gateways.iter().map(|g| NodeId::Gateway(g.id)));
    }

    pub(super) fn change_keys(&mut self, cluster: ClusterId, keys: &[ClusterKey], out: &mut Compiled) {
        let keys = ClusterKeys { cluster: group_id(cluster), keys: keys.iter().map(key).collect() };
        if let Some(state) = self.clusters.get_mut(&cluster) {
            state.keys.clone_from(&keys.keys);
        }
        let known = &mut out.of(Target::Members(cluster)).keys;
        known.retain(|known| known.cluster != keys.cluster);
        known.push(keys);
        // Each host has keys of its own, which its stream derives.
        out.hosts.changed_keys.insert(cluster);
    }

    /// Clusters and hosts, from which zones are computed.
    pub fn zone_inputs(&self) -> (Vec<ZoneInput>, Vec<(HostId, IpAddr)>) {
        let clusters = self.clusters.values();
        let clusters = clusters.map(|state| (group_id(state.cluster.id), state.gateways.clone())).collect();
        let agents = self.hosts.values().filter(|host| host.agent);
        let mut hosts: Vec<_> = agents.map(|host| (host.id, host.vtep)).collect();
        hosts.sort_unstable();
        (clusters, hosts)
    }

    /// Keys and vIP plan of each cluster. Nodes keep both outside of their tables.
    pub fn cluster_updates(&self) -> ClusterUpdates {
        let update = |state: &ClusterState| Update {
            keys: vec![keys_of(state)],
            cluster: Some(vip_plan(state, self.nat_seed)),
            ..Update::default()
        };
        self.clusters.iter().map(|(id, state)| (*id, update(state))).collect()
    }
}
