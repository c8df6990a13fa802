//! The direct paths of hosts under the model `preprogrammed`.

use super::*;

/// Hosts 1 to 3, and the VPCs `a` and `b` with one subnet each.
struct Cloud {
    world: World,
    store: Arc<Store>,
    gateway: GatewayId,
    hosts: Vec<HostId>,
    a: (Vpc, SubnetId),
    b: (Vpc, SubnetId),
}

impl Cloud {
    async fn new() -> Self {
        let world = World::of(Model::Preprogrammed).await;
        let store = world.store.clone();
        let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
        let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
        let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await;
        let gateway = gateway.unwrap().into_inner().id;
        let mut hosts = Vec::new();
        for number in 1..=3 {
            let vtep = host_vtep(number);
            let new = NewHost { name: format!("h{number}"), vtep, agent: true };
            hosts.push(store.create_host(new).await.unwrap().into_inner().id);
        }
        let a = vpc(&store, tenant, cluster, "a", "10.1.0.0/24", "2001:db8:1::/64").await;
        let b = vpc(&store, tenant, cluster, "b", "10.2.0.0/24", "2001:db8:2::/64").await;
        let mut cloud = Self { world, store, gateway, hosts, a, b };
        cloud.follow().await;
        cloud
    }

    async fn follow(&mut self) {
        self.world.follow().await;
        self.world.check().await;
    }

    /// Creates an instance on the host with this number.
    async fn start(&self, vpc: &(Vpc, SubnetId), name: &str, host: usize) -> Instance {
        let new = new_instance(name, vpc.1, self.hosts[host - 1]);
        self.store.create_instance(vpc.0.id, new).await.unwrap().into_inner()
    }

    /// The host to which the paths of a VPC lead for both addresses of an instance, on the host with this
    /// number; `None` if it has no such path. It is a failure if only one address has a path.
    fn path(&self, host: usize, from: &Vpc, to: &Instance) -> Option<IpAddr> {
        let paths = &self.world.host(self.hosts[host - 1]).paths;
        let path = |address| paths.get(&PathKey { vni: from.vni, address });
        let both: Vec<_> = keys(to.ipv4, to.ipv6).map(path).collect();
        assert_eq!(both.len(), 2);
        assert_eq!(both[0].map(|path| path.host), both[1].map(|path| path.host));
        let path = both[0]?;
        let vpc = if to.vpc == self.a.0.id { &self.a.0 } else { &self.b.0 };
        assert_eq!((path.mac, path.path_vni), (to.mac, vpc.vni));
        Some(path.host)
    }

    fn count(&self, host: usize) -> usize {
        self.world.host(self.hosts[host - 1]).paths.len()
    }
}

fn host_vtep(number: usize) -> IpAddr {
    ip(&format!("192.0.2.{}", 20 + number))
}

async fn vpc(
    store: &Arc<Store>,
    tenant: TenantId,
    cluster: ClusterId,
    name: &str,
    v4: &str,
    v6: &str,
) -> (Vpc, SubnetId) {
    let vpc = store.create_vpc(new_vpc(name, tenant, cluster)).await.unwrap().into_inner();
    let subnet = store.create_subnet(new_subnet(vpc.id, "s", v4, Some(v6))).await.unwrap().into_inner();
    (vpc, subnet.id)
}

#[tokio::test]
async fn host_has_paths_of_a_vpc_while_it_has_instances_of_it() {
    let mut cloud = Cloud::new().await;
    let a = cloud.a.0.clone();
    let one = cloud.start(&cloud.a, "one", 1).await;
    let two = cloud.start(&cloud.a, "two", 2).await;
    let other = cloud.start(&cloud.b, "other", 3).await;
    cloud.follow().await;
    assert_eq!(cloud.path(1, &a, &two), Some(host_vtep(2)));
    assert_eq!(cloud.path(2, &a, &one), Some(host_vtep(1)));
    assert_eq!(
        (cloud.count(1), cloud.count(2)),
        (4, 4),
        "including those to its own instances, which the host ignores"
    );
    assert_eq!(cloud.count(3), 2);
    let gateway = cloud.world.gateway(cloud.gateway);
    assert!(gateway.vrfs.values().all(|vrf| vrf.elephant_kbps == sluice_southbound::ELEPHANT_NEVER));

    // The first instance on this host: the host gets all paths of the VPC.
    let three = cloud.start(&cloud.a, "three", 3).await;
    cloud.follow().await;
    for (host, to) in [(3, &one), (3, &two), (1, &three), (2, &three)] {
        assert!(cloud.path(host, &a, to).is_some(), "host {host} to {}", to.name);
    }
    // After a move, other hosts have the new path, and the old host has none.
    let two = cloud.store.move_instance(two.id, cloud.hosts[0], None).await.unwrap();
    cloud.follow().await;
    assert_eq!(cloud.path(3, &a, &two), Some(host_vtep(1)));
    assert_eq!(cloud.count(2), 0);

    cloud.store.delete_instance(one.id, None).await.unwrap();
    cloud.follow().await;
    assert_eq!(cloud.path(3, &a, &one), None);
    cloud.store.delete_instance(three.id, None).await.unwrap();
    cloud.follow().await;
    assert_eq!((cloud.count(3), cloud.path(3, &cloud.b.0, &other)), (2, Some(host_vtep(3))));
}

#[tokio::test]
async fn paths_to_peered_vpcs_follow_routes() {
    let mut cloud = Cloud::new().await;
    let (a, b) = (cloud.a.0.clone(), cloud.b.0.clone());
    let here = cloud.start(&cloud.a, "here", 1).await;
    let there = cloud.start(&cloud.b, "there", 2).await;
    cloud.follow().await;
    assert_eq!((cloud.count(1), cloud.count(2)), (2, 2), "the VPCs are not peered yet");

    let peering = cloud.store.create_peering(new_peering(&a, &b)).await.unwrap().into_inner().id;
    cloud.follow().await;
    assert_eq!(cloud.path(1, &a, &there), Some(host_vtep(2)));
    assert_eq!(cloud.path(2, &b, &here), Some(host_vtep(1)));
    let later = cloud.start(&cloud.b, "later", 3).await;
    cloud.follow().await;
    assert_eq!(cloud.path(1, &a, &later), Some(host_vtep(3)));
    assert_eq!(
        cloud.path(3, &b, &here),
        Some(host_vtep(1)),
        "paths of the peered VPC, from the host's first instance on"
    );

    // A longer route drops: the one address that it covers has no path.
    let table = cloud.store.route_tables(Some(a.id), ALL).await.unwrap()[0].id;
    let prefix = IpNet::new(there.ipv4.unwrap().into(), 32).unwrap();
    let drop = NewRoute { table, prefix, target: RouteTarget::Drop };
    cloud.store.create_route(drop).await.unwrap();
    cloud.follow().await;
    let paths = &cloud.world.host(cloud.hosts[0]).paths;
    let has = |address| paths.contains_key(&PathKey { vni: a.vni, address });
    assert!(!has(there.ipv4.unwrap().into()) && has(there.ipv6.unwrap().into()));

    // A meter on one side is one of both directions, and paths would avoid it.
    let (name, tenant) = ("gold".to_owned(), a.tenant);
    let new = NewMeter { name, tenant, inward: None, outward: Some(MeterRate { kbps: 64, burst: None }) };
    let gold = cloud.store.create_meter(new).await.unwrap().into_inner().id;
    for (meter, has_paths) in [(Some(gold), false), (None, true)] {
        cloud.store.update_peering(peering, &BTreeMap::from([(a.id, meter)]), None).await.unwrap();
        cloud.follow().await;
        let paths = [cloud.path(1, &a, &later), cloud.path(3, &b, &here)];
        assert_eq!(paths.map(|path| path.is_some()), [has_paths; 2]);
    }

    // Into a smaller MTU there is no direct path: only the gateway can send the ICMP error.
    cloud.store.update_vpc(b.id, vpc_update("b", 1400), None).await.unwrap();
    cloud.follow().await;
    assert_eq!(cloud.path(1, &a, &later), None);
    assert_eq!(cloud.path(3, &b, &here), Some(host_vtep(1)));

    cloud.store.delete_peering(peering, None).await.unwrap();
    cloud.follow().await;
    assert_eq!((cloud.path(3, &b, &here), cloud.path(3, &b, &there)), (None, Some(host_vtep(2))));
}

#[test]
fn deltas_and_snapshots_give_the_same_preprogrammed_paths() {
    let totals = random_histories(Model::Preprogrammed, (0..operations::SERVICES).collect());
    assert!(totals.paths > 200, "{totals:?}");
}
