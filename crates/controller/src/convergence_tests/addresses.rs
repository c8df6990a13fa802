//! Secondary addresses, delegated prefixes, and addresses that instances have in turn.

use super::*;
use crate::compile::{Gate, NodeGroup};
use std::time::Instant;

fn pick<T: std::str::FromStr>(texts: &[String], number: u8) -> Vec<T> {
    let chosen = texts.iter().enumerate().filter(|(index, _)| number >> (index % 8) & 1 != 0);
    chosen.filter_map(|(_, text)| text.parse().ok()).collect()
}

/// Settings with some of a few values, which are those of other instances, too.
fn settings(subnet: &Subnet, y: u8, z: u8) -> PortSettings {
    let v4 = subnet.ipv4.map_or("10.0.0".to_owned(), |net| {
        let [a, b, c, _] = net.addr().octets();
        format!("{a}.{b}.{c}")
    });
    let v6 = subnet.ipv6.map_or("2001:db8:99".to_owned(), |net| {
        let segments = net.addr().segments();
        format!("{:x}:{:x}:{:x}", segments[0], segments[1], segments[2])
    });
    let address = |last: u8| if last % 3 == 2 { format!("{v6}::{last}") } else { format!("{v4}.{last}") };
    let secondary: Vec<String> = [200, 201, 202, 203, 210, 3, 130].map(address).into();
    let mac = if y.is_multiple_of(4) { "" } else { "=00:00:5e:00:01:05" };
    let pairs: Vec<String> = [210, 211, 212, 213, 200].map(|last| address(last) + mac).into();
    let delegated = [
        format!("{v4}.128/28"),
        format!("{v4}.144/28"),
        format!("{v4}.136/29"),
        format!("{v6}:0:1::/80"),
        "0.0.0.0/0".to_owned(),
        "172.16.0.0/12".to_owned(),
        format!("172.16.{}.0/24", y % 4),
        format!("10.{}.0.0/16", z % 8),
    ];
    let mut settings = PortSettings::default();
    match y % 5 {
        0 => settings.secondary_addresses = Some(pick(&secondary, z)),
        1 | 2 => settings.address_pairs = Some(pick(&pairs, z)),
        3 => settings.delegated_prefixes = Some(pick(&delegated, z)),
        _ => {
            settings.spoofing_protection = Some(z.is_multiple_of(2));
            settings.qos = Some(Qos { dscp: Some(z % 64), rate_mbps: Some(1 + u32::from(y)) });
        }
    }
    settings
}

/// Changes settings of an instance, creates one with settings, or has one claim an address.
pub(super) async fn execute(store: &Store, operation: Operation, hosts: &[Host]) -> Option<()> {
    let (what, x, y, z) = operation;
    let instances = store.instances(None, None, None, ALL).await.unwrap();
    match what % KINDS {
        24 | 25 => {
            let instance = choose(&instances, x)?;
            let subnet = store.subnet(instance.subnet).await.unwrap();
            store.update_instance(instance.id, &settings(&subnet, y, z), None).await.ok()?;
        }
        26 => {
            let subnet = choose(&store.subnets(None, None, ALL).await.unwrap(), x)?;
            let settings = settings(&subnet, y, z);
            let new = new_instance(&format!("i{}", y % 13), subnet.id, choose(hosts, z)?.id);
            store.create_instance(subnet.vpc, NewInstance { settings, ..new }).await.ok()?;
        }
        _ => {
            let listing: Vec<_> = instances.iter().filter(|one| !one.options.pairs.is_empty()).collect();
            let instance = choose(&listing, x)?;
            let pair = choose(&instance.options.pairs, y)?;
            store.claim_address(instance.host, instance.id, pair.address, Instant::now()).await.unwrap();
        }
    }
    Some(())
}

/// Checks that nothing in a VPC has an address that something else has.
pub(super) async fn check_owners(store: &Store) {
    let instances = store.instances(None, None, None, ALL).await.unwrap();
    for vpc in store.vpcs(None, None, ALL).await.unwrap() {
        let of_vpc = || instances.iter().filter(|instance| instance.vpc == vpc.id);
        let mut owners = BTreeMap::new();
        for (instance, address) in of_vpc().flat_map(|one| one.all_addresses().map(move |a| (one, a))) {
            let other = owners.insert(address, instance.id);
            assert_eq!(other, None, "{address} of {}", instance.id);
        }
        let mut holders = BTreeMap::new();
        let mut macs = BTreeMap::new();
        for (instance, pair) in of_vpc().flat_map(|one| one.options.pairs.iter().map(move |pair| (one, pair)))
        {
            assert!(!owners.contains_key(&pair.address), "{} is a pair and an own address", pair.address);
            assert_eq!(*macs.entry(pair.address).or_insert(pair.mac), pair.mac, "{}", pair.address);
            if pair.is_held() {
                assert_eq!(
                    holders.insert(pair.address, instance.id),
                    None,
                    "{} has two holders",
                    pair.address
                );
            }
        }
        let subnets = store.subnets(Some(vpc.id), None, ALL).await.unwrap();
        let nets =
            || subnets.iter().flat_map(|s| s.ipv4.map(IpNet::V4).into_iter().chain(s.ipv6.map(IpNet::V6)));
        let mut prefixes: BTreeMap<IpNet, InstanceId> = BTreeMap::new();
        for (instance, prefix) in
            of_vpc().flat_map(|one| one.options.delegated.iter().map(move |p| (one, *p)))
        {
            assert!(nets().all(|net| net != prefix), "{prefix} is a subnet");
            if nets().any(|net| net.contains(&prefix)) {
                let foreign = owners.iter().find(|(a, owner)| prefix.contains(*a) && **owner != instance.id);
                assert_eq!(foreign, None, "{prefix} of {}", instance.id);
                assert!(macs.keys().all(|address| !prefix.contains(address)), "a pair is in {prefix}");
                assert!(nets().filter_map(|net| first_host(&net)).all(|router| !prefix.contains(&router)));
                assert!(
                    prefixes
                        .keys()
                        .all(|other| !prefix.contains(other) && !nets().any(|n| n.contains(other))
                            || !overlap(other, &prefix)),
                    "{prefix}"
                );
            }
            assert_eq!(prefixes.insert(prefix, instance.id), None, "{prefix} is delegated twice");
        }
        let table = store.route_tables(Some(vpc.id), ALL).await.unwrap()[0].id;
        for route in store.routes(table, ALL).await.unwrap() {
            assert!(!prefixes.contains_key(&route.prefix), "{} is a route, too", route.prefix);
        }
    }
}

/// A gateway and two hosts: one has an instance with everything, the other an instance with the same pairs.
struct TwoHosts {
    world: World,
    cluster: ClusterId,
    gateway: GatewayId,
    hosts: Vec<HostId>,
    vpc: Vpc,
    one: Instance,
    two: Instance,
}

async fn two_hosts() -> TwoHosts {
    let world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let mut hosts = Vec::new();
    for last in [21, 22] {
        let new = NewHost { name: format!("h{last}"), vtep: ip(&format!("192.0.2.{last}")), agent: true };
        hosts.push(store.create_host(new).await.unwrap().into_inner().id);
    }
    let vpc = store.create_vpc(new_vpc("a", tenant, cluster)).await.unwrap().into_inner();
    let subnet = store.create_subnet(new_subnet(vpc.id, "s", "10.1.0.0/24", Some("2001:db8:1::/64"))).await;
    let subnet = subnet.unwrap().into_inner().id;
    let settings: PortSettings = serde_json::from_str(
        r#"{"secondary_addresses":["10.1.0.50","2001:db8:1::50"],"delegated_prefixes":["10.1.0.128/28","::/0"],
            "address_pairs":[{"address":"10.1.0.60"},{"address":"10.1.0.61","mac":"00:00:5e:00:01:05"}],
            "spoofing_protection":false,"qos":{"dscp":46,"rate_mbps":10}}"#,
    )
    .unwrap();
    let pairs = PortSettings { address_pairs: settings.address_pairs.clone(), ..PortSettings::default() };
    let one = NewInstance { settings: settings.clone(), ..new_instance("one", subnet, hosts[0]) };
    let one = store.create_instance(vpc.id, one).await.unwrap().into_inner();
    let two = NewInstance { settings: pairs, ..new_instance("two", subnet, hosts[1]) };
    let two = store.create_instance(vpc.id, two).await.unwrap().into_inner();
    TwoHosts { world, cluster, gateway, hosts, vpc, one, two }
}

/// What a gateway and two hosts have of instances with everything, and when the holder of an address changes.
#[tokio::test]
async fn nodes_follow_the_holder_of_an_address() {
    let TwoHosts { mut world, cluster, gateway, hosts, vpc, one, two } = two_hosts().await;
    let store = world.store.clone();
    world.follow().await;
    world.check().await;
    world.check_digests().await;
    let tables = world.gateway(gateway);
    let at = |address: &str| tables.endpoints.get(&(vpc.vni, ip(address))).copied();
    for address in ["10.1.0.50", "2001:db8:1::50"] {
        assert_eq!(at(address), Some((one.mac, ip("192.0.2.21"))));
    }
    assert_eq!((at("10.1.0.60"), at("10.1.0.61"), tables.endpoints.len()), (None, None, 6));
    for prefix in ["10.1.0.128/28", "::/0"] {
        let key = RouteKey { vni: vpc.vni, prefix: prefix.parse().unwrap() };
        assert_eq!(tables.routes[&key], Scope::NextHop(one.ipv4.unwrap().into()));
    }
    let options = &world.host(hosts[0]).ports[&one.id].options;
    let additional: Vec<String> = options.additional.iter().map(ToString::to_string).collect();
    assert_eq!(additional, ["10.1.0.50/32", "2001:db8:1::50/128", "10.1.0.128/28", "::/0"]);
    assert!(
        options.unprotected && options.qos.dscp == Some(46) && options.pairs.iter().all(|pair| !pair.held)
    );

    let held = |world: &World, host: usize, id| -> Vec<bool> {
        world.host(hosts[host]).ports[&id].options.pairs.iter().map(|pair| pair.held).collect()
    };
    for (holder, other, host) in [(&one, &two, 0), (&two, &one, 1)] {
        for pair in &holder.options.pairs {
            store.claim_address(hosts[host], holder.id, pair.address, Instant::now()).await.unwrap();
        }
        world.follow().await;
        world.check().await;
        world.check_digests().await;
        let tables = world.gateway(gateway);
        let vtep = ip(&format!("192.0.2.2{}", host + 1));
        assert_eq!(tables.endpoints[&(vpc.vni, ip("10.1.0.60"))], (ROUTER_MAC, vtep));
        let virtual_mac = "00:00:5e:00:01:05".parse().unwrap();
        assert_eq!(tables.endpoints[&(vpc.vni, ip("10.1.0.61"))], (virtual_mac, vtep));
        assert_eq!(held(&world, host, holder.id), [true, true]);
        assert_eq!(held(&world, 1 - host, other.id), [false, false]);
    }
    // The host of the last holder waits until gateways know the new one.
    store.claim_address(hosts[0], one.id, ip("10.1.0.60"), Instant::now()).await.unwrap();
    let revision = store.revision().await.unwrap();
    let rows = store.outbox(revision - 1, 10).await.unwrap();
    let changes: Vec<Change> = rows.into_iter().map(|row| row.change).collect();
    let gates = world.state.clone().apply(revision, &changes).gates;
    let (held, awaited) = (NodeGroup::Host(hosts[1]), NodeGroup::Gateways(cluster));
    assert_eq!(gates, [Gate { held, awaited }]);

    store.move_instance(one.id, hosts[1], None).await.unwrap();
    world.follow().await;
    world.check().await;
    world.check_digests().await;
    let moved = (ROUTER_MAC, ip("192.0.2.22"));
    assert_eq!(world.gateway(gateway).endpoints[&(vpc.vni, ip("10.1.0.60"))], moved);
    store.delete_instance(one.id, None).await.unwrap();
    store.delete_instance(two.id, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert!(world.gateway(gateway).endpoints.is_empty());
    assert!(world.gateway(gateway).routes.values().all(|scope| *scope == Scope::Local));
}

/// A VPC's cluster changes, and changes back. The new one gets all entries, also if it had them before; the old one loses
/// all of them.
#[tokio::test]
async fn further_addresses_move_with_their_network() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let (mut clusters, mut gateways) = (Vec::new(), Vec::new());
    for last in [1, 2] {
        let vip = ip(&format!("192.0.2.1{last}"));
        let cluster = store.create_cluster(&format!("c{last}"), &[vip], None).await.unwrap().into_inner().id;
        let new = new_gateway(&format!("g{last}"), cluster, &format!("192.0.2.{last}"));
        gateways.push(store.create_gateway(new).await.unwrap().into_inner().id);
        clusters.push(cluster);
    }
    let new = NewHost { name: "h".into(), vtep: ip("192.0.2.21"), agent: true };
    let host = store.create_host(new).await.unwrap().into_inner().id;
    let vpc = store.create_vpc(new_vpc("a", tenant, clusters[0])).await.unwrap().into_inner();
    let subnet =
        store.create_subnet(new_subnet(vpc.id, "s", "10.1.0.0/24", None)).await.unwrap().into_inner().id;
    let settings: PortSettings = serde_json::from_str(
        r#"{"secondary_addresses":["10.1.0.50"],"delegated_prefixes":["10.1.0.128/28"],
            "address_pairs":[{"address":"10.1.0.60"}]}"#,
    )
    .unwrap();
    let one = NewInstance { settings, ..new_instance("one", subnet, host) };
    let one = store.create_instance(vpc.id, one).await.unwrap().into_inner();
    store.claim_address(host, one.id, ip("10.1.0.60"), Instant::now()).await.unwrap();
    let counts = |world: &World| {
        let of = |id| (world.gateway(id).endpoints.len(), world.gateway(id).routes.len());
        (of(gateways[0]), of(gateways[1]))
    };
    for (to, end) in [(clusters[1], ((0, 0), (3, 2))), (clusters[0], ((3, 2), (0, 0)))] {
        let id = store.move_vpc(vpc.id, to, None).await.unwrap().moving.unwrap().id;
        for expected in [((3, 2), (3, 2)), ((3, 2), (3, 2)), end] {
            world.follow().await;
            world.check().await;
            world.check_digests().await;
            assert_eq!(counts(&world), expected);
            let moving = store.vpc(vpc.id).await.unwrap().moving;
            if let Some(moving) = moving {
                store.advance_move(id, moving.switched).await.unwrap();
            }
        }
    }
}
