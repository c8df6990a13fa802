//! What new objects need in the tables of which clusters.

use super::super::ledger::{Ledger, LedgerVpc, Prefixes};
use sluice_store::{InstanceOptions, NewInstance, PortSettings};
use sluice_types::{ClusterId, HostId, VpcId};
use std::collections::HashSet;
use std::ops::AddAssign;

/// Objects that are to be created, or that come to another cluster.
#[derive(Clone, Copy, Debug)]
pub enum NewObjects<'a> {
    /// A VPC on this cluster.
    Vpc(ClusterId),
    /// A subnet of a VPC.
    Subnet(VpcId, Prefixes),
    /// Instances of a VPC.
    Instances(VpcId, &'a [&'a NewInstance]),
    /// What an instance of a VPC gets besides what it has.
    Further(VpcId, Demand),
    /// A route of a VPC.
    Route(VpcId),
    /// A peering of two VPCs.
    Peering(VpcId, VpcId),
    /// These VPCs, which move to a cluster, with the number of pairs of a VPC and a host that has instances of it.
    Move(&'a [VpcId], ClusterId, u64),
}

/// A number of entries of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// IPv6 addresses.
    pub ipv6: u64,
    /// Other entries of the exact match: IPv4 addresses, VNIs and senders.
    pub others: u64,
    /// Routes of all VRFs.
    pub routes: u64,
    /// VRFs, without their routes.
    pub vrfs: u64,
    /// Addresses of NAT gateways, each of which has a number on each gateway that translates.
    pub nat_addresses: u64,
}

impl Demand {
    /// Entries of the exact match.
    pub fn entries(&self) -> u64 {
        self.ipv6 + self.others
    }
}

impl AddAssign for Demand {
    fn add_assign(&mut self, more: Self) {
        self.ipv6 += more.ipv6;
        self.others += more.others;
        self.routes += more.routes;
        self.vrfs += more.vrfs;
        self.nat_addresses += more.nat_addresses;
    }
}

/// The clusters that have the entries of a VPC.
fn clusters_of(vpc: &LedgerVpc) -> impl Iterator<Item = ClusterId> + use<> {
    [Some(vpc.cluster), vpc.leaving].into_iter().flatten()
}

/// What the settings of a request need besides what an instance has: an entry for each address and pair, and a route for
/// each prefix.
pub fn of_settings(settings: &PortSettings, has: &InstanceOptions) -> Demand {
    let PortSettings { secondary_addresses, delegated_prefixes, address_pairs, .. } = settings;
    let secondary = secondary_addresses.iter().flatten().filter(|address| !has.secondary.contains(address));
    let pairs = address_pairs.iter().flatten().map(|pair| &pair.address);
    let pairs = pairs.filter(|address| has.pairs.iter().all(|pair| pair.address != **address));
    let mut demand = Demand::default();
    for address in secondary.chain(pairs) {
        *(if address.is_ipv4() { &mut demand.others } else { &mut demand.ipv6 }) += 1;
    }
    let prefixes = delegated_prefixes.iter().flatten().filter(|prefix| !has.delegated.contains(prefix));
    demand.routes = prefixes.count() as u64;
    demand
}

/// The entries of new instances. A host may be new to the VPC, so that it becomes a sender.
fn of_instances(vpc: &LedgerVpc, new: &[&NewInstance]) -> Demand {
    let mut hosts: HashSet<HostId> = HashSet::new();
    let mut demand = Demand::default();
    for one in new {
        // A subnet that the ledger does not have yet may have both families.
        let families = vpc.subnets.get(&one.subnet).copied().unwrap_or(Prefixes { ipv4: true, ipv6: true });
        demand.others += u64::from(families.ipv4);
        demand.ipv6 += u64::from(families.ipv6);
        demand += of_settings(&one.settings, &InstanceOptions::default());
        hosts.insert(one.host);
    }
    demand.others += hosts.len() as u64;
    demand
}

fn of_moved_vpc(ledger: &Ledger, id: VpcId, vpc: &LedgerVpc) -> Demand {
    let peers: u64 = ledger.peers_of(id).map(LedgerVpc::prefixes).sum();
    Demand {
        ipv6: vpc.addresses.ipv6,
        others: 1 + vpc.addresses.ipv4,
        routes: vpc.prefixes() + vpc.static_routes() + vpc.addresses.prefixes + peers,
        vrfs: 1,
        // A VPC with a NAT gateway stays on its cluster.
        nat_addresses: 0,
    }
}

/// What the objects need on each cluster. `None` if the ledger does not have a VPC of theirs.
pub fn demands(ledger: &Ledger, new: NewObjects<'_>) -> Option<Vec<(ClusterId, Demand)>> {
    let vpc = |id| ledger.vpcs.get(&id);
    let on = |vpc: &LedgerVpc, demand: Demand| clusters_of(vpc).map(|cluster| (cluster, demand)).collect();
    let routes = |routes| Demand { routes, ..Demand::default() };
    Some(match new {
        NewObjects::Vpc(cluster) => vec![(cluster, Demand { others: 1, vrfs: 1, ..Demand::default() })],
        NewObjects::Subnet(id, prefixes) => {
            let vrfs = 1 + ledger.peers_of(id).count() as u64;
            on(vpc(id)?, routes(prefixes.count() * vrfs))
        }
        NewObjects::Instances(id, new) => on(vpc(id)?, of_instances(vpc(id)?, new)),
        NewObjects::Further(id, demand) => on(vpc(id)?, demand),
        NewObjects::Route(id) => on(vpc(id)?, routes(1)),
        NewObjects::Peering(a, b) => on(vpc(a)?, routes(vpc(a)?.prefixes() + vpc(b)?.prefixes())),
        NewObjects::Move(vpcs, to, senders) => {
            let mut demand = Demand { others: senders, ..Demand::default() };
            for id in vpcs {
                demand += of_moved_vpc(ledger, *id, vpc(*id)?);
            }
            vec![(to, demand)]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::ledger::tests::{ipv4, peering, subnet, vpc};
    use super::*;
    use sluice_store::{AddressCounts, Move, Topology};
    use sluice_types::SubnetId;

    fn instance(subnet: u64, host: u64) -> NewInstance {
        let (subnet, host) = (SubnetId::new(subnet), HostId::new(host));
        let name = String::new();
        let settings = PortSettings::default();
        NewInstance { name, subnet, host, mac: None, ipv4: None, ipv6: None, security_groups: None, settings }
    }

    /// VPCs 1, 2 and 3, the first peered with the others, with dual-stack subnets 1 and 2 and the IPv4 subnet 3.
    fn ledger() -> Ledger {
        let mut vpcs: Vec<_> = (1..=4).map(|id| vpc(id, 1, 1, 1)).collect();
        vpcs[3].moving = Some(Move { id: 1, to: ClusterId::new(2), switched: false });
        let subnets = vec![subnet(1, 1, true), subnet(2, 2, true), subnet(3, 3, false), subnet(4, 4, false)];
        let peerings = vec![peering(1, 2), peering(1, 3)];
        let topology = Topology { revision: 5, vpcs, subnets, peerings, ..Topology::default() };
        let addresses = AddressCounts { ipv4: 30, ipv6: 20, prefixes: 3 };
        Ledger::new(&topology, 5, &[(VpcId::new(1), addresses), (VpcId::new(2), ipv4(7))])
    }

    #[test]
    fn demand_is_that_of_the_objects_on_all_their_clusters() {
        let ledger = ledger();
        let (id, cluster) = (VpcId::new, ClusterId::new);
        let find = |new| demands(&ledger, new).unwrap();
        let demand = |ipv6, others, routes, vrfs| Demand { ipv6, others, routes, vrfs, nat_addresses: 0 };
        assert_eq!(find(NewObjects::Vpc(cluster(9))), [(cluster(9), demand(0, 1, 0, 1))]);
        // Two prefixes in the VPC and in its two peers.
        let both = Prefixes { ipv4: true, ipv6: true };
        assert_eq!(find(NewObjects::Subnet(id(1), both)), [(cluster(1), demand(0, 0, 6, 0))]);
        assert_eq!(find(NewObjects::Route(id(2))), [(cluster(1), demand(0, 0, 1, 0))]);
        assert_eq!(find(NewObjects::Peering(id(2), id(3))), [(cluster(1), demand(0, 0, 3, 0))]);
        // Two hosts become senders; the ledger does not have the last subnet.
        let new = [instance(1, 1), instance(1, 2), instance(99, 1)];
        let new: Vec<_> = new.iter().collect();
        assert_eq!(find(NewObjects::Instances(id(1), &new)), [(cluster(1), demand(3, 5, 0, 0))]);
        // The VPC moves: both clusters have its entries.
        let one = demand(0, 2, 0, 0);
        let new = [&instance(4, 1)];
        assert_eq!(find(NewObjects::Instances(id(4), &new)), [(cluster(2), one), (cluster(1), one)]);
        // Addresses and a VNI each; 2 + 2 + 1 routes of the first VPC, 2 + 2 of the second, and 3 delegated prefixes.
        let unit = [id(1), id(2)];
        let moved = demand(20, 30 + 7 + 2 + 5, 9 + 3, 2);
        assert_eq!(find(NewObjects::Move(&unit, cluster(7), 5)), [(cluster(7), moved)]);
        assert_eq!(demands(&ledger, NewObjects::Route(id(99))), None);
        // Two addresses and a pair of which it has one, and a prefix.
        let settings: PortSettings = serde_json::from_str(
            r#"{"secondary_addresses":["10.0.0.8","fd00::8"],"address_pairs":[{"address":"10.0.0.9"}],
                "delegated_prefixes":["10.9.0.0/16"]}"#,
        )
        .unwrap();
        let has = InstanceOptions { secondary: vec![[10, 0, 0, 8].into()], ..InstanceOptions::default() };
        let further = NewObjects::Further(id(4), of_settings(&settings, &has));
        let one = demand(1, 1, 1, 0);
        assert_eq!(find(further), [(cluster(2), one), (cluster(1), one)]);
        let new = [&NewInstance { settings, ..instance(4, 1) }];
        assert_eq!(find(NewObjects::Instances(id(4), &new))[0].1, demand(1, 2 + 2, 1, 0));
    }
}
