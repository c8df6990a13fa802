//! Where every VPC is, with its number of table entries, and the gateways of every cluster. The follower
//! updates it with each change, so that placing a VPC does not read the database. This file changes when
//! placement needs to know more about objects.

use sluice_store::{
    AddressCounts, Change, Cluster, Eip, Gateway, Instance, InstanceChange, Mount, NatGateway, Subnet,
    Topology, Vpc,
};
use sluice_types::{ClusterId, EipId, GatewayId, PortForwardId, RouteId, SubnetId, TenantId, Vni, VpcId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A VPC in the ledger.
#[derive(Clone, Debug)]
pub struct LedgerVpc {
    /// Name, for people.
    pub name: String,
    /// The tenant that owns it.
    pub tenant: TenantId,
    /// The network identifier under which gateways count its traffic.
    pub vni: Vni,
    /// Its cluster; the new one while it moves.
    pub cluster: ClusterId,
    /// Its old cluster, which still has its entries while it moves.
    pub leaving: Option<ClusterId>,
    /// Addresses of its instances.
    pub addresses: AddressCounts,
    /// Its subnets.
    pub subnets: BTreeMap<SubnetId, Prefixes>,
    routes: BTreeSet<RouteId>,
    /// When the ledger got it, in milliseconds of the caller's clock; `None` if it was there at the start.
    pub since_ms: Option<u64>,
}

impl LedgerVpc {
    fn new(vpc: &Vpc, since_ms: Option<u64>) -> Self {
        let mut new = Self {
            name: String::new(),
            tenant: vpc.tenant,
            vni: vpc.vni,
            cluster: vpc.cluster,
            leaving: None,
            addresses: AddressCounts::default(),
            subnets: BTreeMap::new(),
            routes: BTreeSet::new(),
            since_ms,
        };
        new.update(vpc);
        new
    }

    fn update(&mut self, vpc: &Vpc) {
        self.name.clone_from(&vpc.name);
        self.leaving = vpc.moving.map(|_| vpc.cluster);
        self.cluster = vpc.moving.map_or(vpc.cluster, |moving| moving.to);
    }

    /// Entries in its cluster's tables: one for the VRF, and one for each address, delegated prefix, subnet and route.
    pub fn entries(&self) -> u64 {
        let AddressCounts { ipv4, ipv6, prefixes } = self.addresses;
        1 + ipv4 + ipv6 + prefixes + (self.subnets.len() + self.routes.len()) as u64
    }

    /// Number of prefixes of its subnets, to which it and its peers have routes.
    pub fn prefixes(&self) -> u64 {
        self.subnets.values().map(|prefixes| prefixes.count()).sum()
    }

    /// Number of its static routes.
    pub fn static_routes(&self) -> u64 {
        self.routes.len() as u64
    }
}

/// The families of which a subnet has a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// It has an IPv4 prefix.
    pub ipv4: bool,
    /// It has an IPv6 prefix.
    pub ipv6: bool,
}

impl Prefixes {
    fn of(subnet: &Subnet) -> Self {
        Self { ipv4: subnet.ipv4.is_some(), ipv6: subnet.ipv6.is_some() }
    }

    /// Number of prefixes.
    pub fn count(self) -> u64 {
        u64::from(self.ipv4) + u64::from(self.ipv6)
    }
}

fn count_addresses<'a>(instances: impl IntoIterator<Item = &'a Instance>) -> AddressCounts {
    let mut counts = AddressCounts::default();
    for instance in instances {
        let pairs = instance.options.pairs.iter().map(|pair| pair.address);
        for address in instance.all_addresses().chain(pairs) {
            *(if address.is_ipv4() { &mut counts.ipv4 } else { &mut counts.ipv6 }) += 1;
        }
        counts.prefixes += instance.options.delegated.len() as u64;
    }
    counts
}

fn of_mount(mount: &Mount) -> AddressCounts {
    let (ipv4, ipv6) = (mount.ipv4.is_some().into(), mount.ipv6.is_some().into());
    AddressCounts { ipv4, ipv6, prefixes: 0 }
}

/// A cluster in the ledger.
#[derive(Clone, Debug)]
pub struct LedgerCluster {
    /// The cluster, with its vIPs and their preferred owners.
    pub cluster: Cluster,
    /// Its gateways in order of id.
    pub gateways: Vec<Gateway>,
}

/// All VPCs and clusters as of a revision.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    revision: u64,
    /// The revision of the address counts with which the ledger started. Older changes are in the counts.
    counted: u64,
    /// Address counts of VPCs that were created after the topology was read.
    early_counts: BTreeMap<VpcId, AddressCounts>,
    /// VPCs by id.
    pub vpcs: BTreeMap<VpcId, LedgerVpc>,
    /// Clusters by id.
    pub clusters: BTreeMap<ClusterId, LedgerCluster>,
    peers: BTreeSet<(VpcId, VpcId)>,
    /// The VPC to which each EIP is attached.
    eips: BTreeMap<EipId, VpcId>,
    /// The number of addresses of each VPC's NAT gateway.
    nat_addresses: BTreeMap<VpcId, u64>,
    /// Port forwards of NAT gateways, with the VPCs of these.
    port_forwards: BTreeMap<PortForwardId, VpcId>,
}

/// Entries of an attached EIP: its public address leads to the VPC, and the VPC's address to the public one.
const EIP_ENTRIES: u64 = 2;

impl Ledger {
    /// From a snapshot of the topology, and the numbers of addresses of each VPC as of revision `counted`, which
    /// is not older.
    pub fn new(topology: &Topology, counted: u64, addresses: &[(VpcId, AddressCounts)]) -> Self {
        let mut ledger = Self {
            revision: topology.revision,
            counted,
            early_counts: BTreeMap::new(),
            vpcs: topology.vpcs.iter().map(|vpc| (vpc.id, LedgerVpc::new(vpc, None))).collect(),
            peers: topology.peerings.iter().map(|peering| (peering.a, peering.b)).collect(),
            clusters: BTreeMap::new(),
            eips: BTreeMap::new(),
            nat_addresses: BTreeMap::new(),
            port_forwards: topology.port_forwards.iter().map(|forward| (forward.id, forward.vpc)).collect(),
        };
        topology.eips.iter().for_each(|eip| ledger.set_eip(eip));
        topology.nat_gateways.iter().for_each(|nat_gateway| ledger.set_nat_gateway(nat_gateway));
        for cluster in &topology.clusters {
            let mut gateways: Vec<_> =
                topology.gateways.iter().filter(|gateway| gateway.cluster == cluster.id).cloned().collect();
            gateways.sort_by_key(|gateway| gateway.id);
            ledger.clusters.insert(cluster.id, LedgerCluster { cluster: cluster.clone(), gateways });
        }
        for (id, count) in addresses {
            match ledger.vpcs.get_mut(id) {
                Some(vpc) => vpc.addresses = *count,
                None => drop(ledger.early_counts.insert(*id, *count)),
            }
        }
        for subnet in &topology.subnets {
            ledger.change_vpc(subnet.vpc, |vpc| vpc.subnets.insert(subnet.id, Prefixes::of(subnet)));
        }
        for (vpc, route) in &topology.routes {
            ledger.change_vpc(*vpc, |vpc| vpc.routes.insert(route.id));
        }
        ledger
    }

    /// Takes the ages of VPCs from the ledger that this one replaces.
    pub fn keep_ages(&mut self, before: &Self) {
        for (id, vpc) in &mut self.vpcs {
            vpc.since_ms = before.vpcs.get(id).and_then(|before| before.since_ms);
        }
    }

    /// Revision of the last change in it.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn change_vpc<R>(&mut self, id: VpcId, change: impl FnOnce(&mut LedgerVpc) -> R) {
        if let Some(vpc) = self.vpcs.get_mut(&id) {
            change(vpc);
        }
    }

    fn set_eip(&mut self, eip: &Eip) {
        match eip.attachment {
            Some(at) => drop(self.eips.insert(eip.id, at.vpc)),
            None => drop(self.eips.remove(&eip.id)),
        }
    }

    fn set_nat_gateway(&mut self, nat_gateway: &NatGateway) {
        self.nat_addresses.insert(nat_gateway.vpc, nat_gateway.addresses.len() as u64);
    }

    /// The number of addresses of a VPC's NAT gateway; 0 if it has none.
    pub fn nat_addresses_of(&self, vpc: VpcId) -> u64 {
        self.nat_addresses.get(&vpc).copied().unwrap_or(0)
    }

    /// Entries of the public addresses of each VPC that has EIPs or a NAT gateway: two for each EIP, and one for each address
    /// and each port forward of a NAT gateway. Such a VPC stays on its cluster.
    pub fn public_entries(&self) -> BTreeMap<VpcId, u64> {
        let mut counts = self.nat_addresses.clone();
        self.eips.values().for_each(|vpc| *counts.entry(*vpc).or_default() += EIP_ENTRIES);
        self.port_forwards.values().for_each(|vpc| *counts.entry(*vpc).or_default() += 1);
        counts
    }

    fn change_addresses(&mut self, id: VpcId, removed: AddressCounts, added: AddressCounts) {
        let change =
            |count: &mut u64, removed: u64, added: u64| *count = (*count + added).saturating_sub(removed);
        self.change_vpc(id, |vpc| {
            let AddressCounts { ipv4, ipv6, prefixes } = &mut vpc.addresses;
            change(ipv4, removed.ipv4, added.ipv4);
            change(ipv6, removed.ipv6, added.ipv6);
            change(prefixes, removed.prefixes, added.prefixes);
        });
    }

    fn upsert(&mut self, vpc: &Vpc, now_ms: u64) {
        let new = || {
            // Changes of instances up to the revision of the counts are not applied to it.
            let addresses = self.early_counts.remove(&vpc.id).unwrap_or_default();
            LedgerVpc { addresses, ..LedgerVpc::new(vpc, Some(now_ms)) }
        };
        self.vpcs.entry(vpc.id).or_insert_with(new).update(vpc);
    }

    /// Adds a VPC that was just committed, before the follower reads the change.
    pub fn add_committed(&mut self, vpc: &Vpc, now_ms: u64) {
        if vpc.revision > self.revision {
            self.upsert(vpc, now_ms);
        }
    }

    /// Applies all changes of a revision.
    pub fn apply(&mut self, revision: u64, changes: &[Change], now_ms: u64) {
        for change in changes {
            match change {
                Change::VpcUpserted { vpc, .. } => self.upsert(vpc, now_ms),
                Change::VpcRemoved(vpc) => {
                    self.vpcs.remove(&vpc.id);
                    self.peers.retain(|(a, b)| *a != vpc.id && *b != vpc.id);
                }
                Change::ClusterUpserted { cluster, gateways } => {
                    let ledger_cluster =
                        LedgerCluster { cluster: cluster.clone(), gateways: gateways.clone() };
                    self.clusters.insert(cluster.id, ledger_cluster);
                }
                Change::ClusterRemoved(cluster) => {
                    self.clusters.remove(&cluster.id);
                }
                Change::InstancesCreated { vpc, instances, .. } if revision > self.counted => {
                    self.change_addresses(vpc.id, AddressCounts::default(), count_addresses(instances));
                }
                Change::InstancesRemoved { vpc, instances } if revision > self.counted => {
                    self.change_addresses(vpc.id, count_addresses(instances), AddressCounts::default());
                }
                Change::InstancesChanged { vpc, changes, .. } if revision > self.counted => {
                    let old: Vec<Instance> = changes.iter().map(InstanceChange::old).collect();
                    let new = count_addresses(changes.iter().map(|change| &change.after));
                    self.change_addresses(vpc.id, count_addresses(&old), new);
                }
                Change::MountCreated { vpc, mount, .. } if revision > self.counted => {
                    self.change_addresses(vpc.id, AddressCounts::default(), of_mount(mount));
                }
                Change::MountRemoved { vpc, mount, .. } if revision > self.counted => {
                    self.change_addresses(vpc.id, of_mount(mount), AddressCounts::default());
                }
                Change::SubnetUpserted { vpc, subnet, .. } => {
                    self.change_vpc(vpc.id, |vpc| vpc.subnets.insert(subnet.id, Prefixes::of(subnet)));
                }
                Change::SubnetRemoved { vpc, subnet, .. } => {
                    self.change_vpc(vpc.id, |vpc| vpc.subnets.remove(&subnet.id));
                }
                Change::RouteUpserted { vpc, route, .. } => {
                    self.change_vpc(vpc.id, |vpc| vpc.routes.insert(route.id));
                }
                Change::RouteRemoved { vpc, route } => {
                    self.change_vpc(vpc.id, |vpc| vpc.routes.remove(&route.id));
                }
                Change::EipUpserted(eip) => self.set_eip(eip),
                Change::EipRemoved(eip) => drop(self.eips.remove(&eip.id)),
                Change::NatGatewayUpserted(nat_gateway) => self.set_nat_gateway(nat_gateway),
                Change::NatGatewayRemoved(nat_gateway) => drop(self.nat_addresses.remove(&nat_gateway.vpc)),
                Change::PortForwardCreated(new) => drop(self.port_forwards.insert(new.id, new.vpc)),
                Change::PortForwardRemoved(old) => drop(self.port_forwards.remove(&old.id)),
                Change::PeeringUpserted { a, b, .. } => {
                    self.peers.insert((a.id, b.id));
                }
                Change::PeeringRemoved { a, b, .. } => {
                    self.peers.remove(&(a.id, b.id));
                }
                _ => {}
            }
        }
        self.revision = revision;
    }

    /// Gateways that move between clusters, with the cluster that each is a member of.
    pub fn moving_gateways(&self) -> Vec<(GatewayId, ClusterId)> {
        let gateways = self.clusters.values().flat_map(|cluster| &cluster.gateways);
        let moving = gateways.filter(|gateway| gateway.moving.is_some());
        moving.map(|gateway| (gateway.id, gateway.cluster)).collect()
    }

    /// The VPCs with which a VPC is peered.
    pub fn peers_of(&self, vpc: VpcId) -> impl Iterator<Item = &LedgerVpc> {
        let other = move |(a, b): &(VpcId, VpcId)| match () {
            () if *a == vpc => Some(*b),
            () if *b == vpc => Some(*a),
            () => None,
        };
        self.peers.iter().filter_map(other).filter_map(|peer| self.vpcs.get(&peer))
    }

    /// Groups of VPCs that are peered, directly or through others, by the first VPC of each group. A group is
    /// always on one cluster.
    pub fn units(&self) -> BTreeMap<VpcId, Vec<VpcId>> {
        let mut first: HashMap<VpcId, VpcId> = self.vpcs.keys().map(|id| (*id, *id)).collect();
        let root = |first: &HashMap<VpcId, VpcId>, mut id: VpcId| {
            while let Some(next) = first.get(&id).filter(|next| **next != id) {
                id = *next;
            }
            id
        };
        for (a, b) in &self.peers {
            let (a, b) = (root(&first, *a), root(&first, *b));
            // Links always lead to a lower id, so chains end.
            first.insert(a.max(b), a.min(b));
        }
        let mut units: BTreeMap<VpcId, Vec<VpcId>> = BTreeMap::new();
        for id in self.vpcs.keys() {
            units.entry(root(&first, *id)).or_default().push(*id);
        }
        units
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use sluice_store::{Host, Instance, Move, Peering, Subnet};
    use sluice_types::{HostId, InstanceId, MacAddr, PeeringId};

    pub fn vpc(id: u64, tenant: u64, cluster: u64, revision: u64) -> Vpc {
        Vpc {
            id: VpcId::new(id),
            name: format!("v{id}"),
            tenant: TenantId::new(tenant),
            vni: Vni::new(id as u32).unwrap(),
            cluster: ClusterId::new(cluster),
            mtu: 1430,
            offload_kbps: None,
            internet_meter: None,
            moving: None,
            revision,
        }
    }

    /// A subnet with an IPv4 prefix.
    pub fn subnet(id: u64, vpc: u64, has_ipv6: bool) -> Subnet {
        Subnet {
            id: SubnetId::new(id),
            name: format!("s{id}"),
            vpc: VpcId::new(vpc),
            ipv4: Some("10.0.0.0/8".parse().unwrap()),
            ipv6: has_ipv6.then(|| "fd00::/64".parse().unwrap()),
            ipv6_mode: None,
            dns: Vec::new(),
            revision: 10,
        }
    }

    /// Counts of IPv4 addresses.
    pub fn ipv4(count: u64) -> AddressCounts {
        AddressCounts { ipv4: count, ..AddressCounts::default() }
    }

    /// Instances with an IPv4 address, of which the first has an IPv6 address, too.
    fn instances(of: u64, count: u64) -> Vec<Instance> {
        let instance = |id| Instance {
            id: InstanceId::new(id),
            name: format!("i{id}"),
            vpc: VpcId::new(of),
            subnet: SubnetId::new(1),
            host: HostId::new(1),
            mac: MacAddr::local(id),
            ipv4: Some(std::net::Ipv4Addr::from(id as u32)),
            ipv6: (id == 1).then_some(std::net::Ipv6Addr::LOCALHOST),
            identity: 0,
            options: Default::default(),
            migration: None,
            revision: 1,
        };
        (1..=count).map(instance).collect()
    }

    pub fn peering(a: u64, b: u64) -> Peering {
        let (a, b) = (VpcId::new(a), VpcId::new(b));
        Peering { id: PeeringId::new(1), name: "p".into(), a, b, meters: [None; 2], revision: 1 }
    }

    #[test]
    fn addresses_are_counted_once() {
        let topology = Topology { revision: 5, vpcs: vec![vpc(1, 1, 1, 2)], ..Topology::default() };
        let mut ledger = Ledger::new(&topology, 7, &[(VpcId::new(1), ipv4(30))]);
        let created = |count| Change::InstancesCreated {
            vpc: vpc(1, 1, 1, 2),
            subnets: Vec::new(),
            hosts: Vec::<Host>::new(),
            instances: instances(1, count),
        };
        let entries = |ledger: &Ledger| ledger.vpcs[&VpcId::new(1)].entries();
        ledger.apply(6, &[created(10)], 0);
        ledger.apply(7, &[created(20)], 0);
        assert_eq!(entries(&ledger), 31, "the initial count includes both revisions");
        ledger.apply(8, &[created(4)], 0);
        let gone = Change::InstancesRemoved { vpc: vpc(1, 1, 1, 2), instances: instances(1, 1) };
        ledger.apply(9, &[gone], 0);
        assert_eq!(entries(&ledger), 31 + 4 + 1 - 2);
        let subnet = subnet(3, 1, true);
        let (of, peers) = (vpc(1, 1, 1, 2), Vec::new());
        ledger.apply(10, &[Change::SubnetUpserted { vpc: of, subnets: Vec::new(), subnet, peers }], 0);
        assert_eq!(entries(&ledger), 35);
    }

    #[test]
    fn addresses_of_a_vpc_that_is_newer_than_the_topology_are_counted() {
        let topology = Topology { revision: 5, ..Topology::default() };
        let new = vpc(1, 1, 1, 6);
        let created = |count| Change::InstancesCreated {
            vpc: new.clone(),
            subnets: Vec::new(),
            hosts: Vec::<Host>::new(),
            instances: instances(1, count),
        };
        let mut ledger = Ledger::new(&topology, 7, &[(VpcId::new(1), ipv4(30))]);
        ledger.apply(6, &[Change::VpcUpserted { vpc: new.clone(), subnets: Vec::new() }], 0);
        ledger.apply(7, &[created(30)], 0);
        ledger.apply(8, &[created(4)], 0);
        assert_eq!(ledger.vpcs[&VpcId::new(1)].entries(), 1 + 30 + 4 + 1);
    }

    #[test]
    fn committed_vpc_is_known_before_the_follower_reads_it() {
        let topology = Topology { revision: 5, vpcs: vec![vpc(1, 1, 1, 2)], ..Topology::default() };
        let mut ledger = Ledger::new(&topology, 5, &[]);
        ledger.add_committed(&vpc(2, 1, 3, 6), 100);
        assert_eq!(ledger.vpcs[&VpcId::new(2)].since_ms, Some(100));
        ledger.apply(6, &[Change::VpcUpserted { vpc: vpc(2, 1, 3, 6), subnets: Vec::new() }], 200);
        assert_eq!(ledger.vpcs[&VpcId::new(2)].since_ms, Some(100));
        ledger.apply(7, &[Change::VpcRemoved(vpc(2, 1, 3, 6))], 300);
        ledger.add_committed(&vpc(2, 1, 3, 6), 400);
        assert!(!ledger.vpcs.contains_key(&VpcId::new(2)), "it was deleted at a later revision");
        let mut replacement = Ledger::new(&topology, 7, &[]);
        replacement.keep_ages(&ledger);
        assert_eq!(replacement.vpcs[&VpcId::new(1)].since_ms, None);
    }

    #[test]
    fn moving_vpc_counts_at_its_new_cluster() {
        let mut ledger = Ledger::default();
        let mut moving = vpc(1, 1, 1, 2);
        moving.moving = Some(Move { id: 2, to: ClusterId::new(9), switched: false });
        ledger.apply(2, &[Change::VpcUpserted { vpc: moving, subnets: Vec::new() }], 0);
        let vpc = &ledger.vpcs[&VpcId::new(1)];
        assert_eq!((vpc.cluster, vpc.leaving), (ClusterId::new(9), Some(ClusterId::new(1))));
    }

    #[test]
    fn peered_vpcs_form_one_unit() {
        let vpcs = (1..=7).map(|id| vpc(id, 1, 1, 1)).collect();
        // A chain of peerings in mixed order, and a pair.
        let peerings = vec![peering(2, 7), peering(3, 4), peering(4, 7), peering(5, 6)];
        let topology = Topology { revision: 1, vpcs, peerings, ..Topology::default() };
        let mut ledger = Ledger::new(&topology, 1, &[]);
        let units = |ledger: &Ledger| -> Vec<Vec<u64>> {
            ledger.units().into_values().map(|unit| unit.into_iter().map(VpcId::get).collect()).collect()
        };
        assert_eq!(units(&ledger), [vec![1], vec![2, 3, 4, 7], vec![5, 6]]);
        let (a, b) = (vpc(5, 1, 1, 1), vpc(6, 1, 1, 1));
        let parted = Change::PeeringRemoved { a, a_subnets: Vec::new(), b, b_subnets: Vec::new() };
        ledger.apply(2, &[parted], 0);
        assert_eq!(units(&ledger), [vec![1], vec![2, 3, 4, 7], vec![5], vec![6]]);
    }
}
