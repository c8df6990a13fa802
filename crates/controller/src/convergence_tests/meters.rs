//! Meters on gateways: those of the EIPs, VPCs and peerings of their clusters.

use super::operations::METERS;
use super::*;
use crate::compile::Comparison;
use sluice_southbound::Meter as Entry;

impl NodeTables {
    /// Writes meters, before the VRFs, routes and public prefixes that have them.
    pub(super) fn add_meters(&mut self, update: &Update) {
        self.meters.extend(update.meters.iter().map(|meter| (meter.id, *meter)));
        let of_vrfs = update.vrfs.iter().filter_map(|vrf| vrf.internet_meter);
        let of_routes = update.routes.iter().flat_map(|route| meters_of(&route.scope));
        let of_prefixes = update.public_prefixes.iter().filter_map(|prefix| prefix.meter);
        for meter in of_vrfs.chain(of_routes).chain(of_prefixes) {
            assert!(self.meters.contains_key(&meter), "meter {meter} comes behind what has it");
        }
    }

    /// Removes meters, which nothing has any more.
    pub(super) fn remove_meters(&mut self, removed: &[u32]) {
        self.meters.retain(|id, _| !removed.contains(id));
        let of_vrfs = self.vrfs.values().filter_map(|vrf| vrf.internet_meter);
        let of_routes = self.routes.values().flat_map(meters_of);
        let of_prefixes = self.public.values().filter_map(|prefix| prefix.meter);
        for meter in of_vrfs.chain(of_routes).chain(of_prefixes) {
            assert!(!removed.contains(&meter), "meter {meter} is removed, and something has it");
        }
    }
}

/// The meters of a route.
fn meters_of(scope: &Scope) -> impl Iterator<Item = u32> + use<> {
    let meters = match *scope {
        Scope::MeteredPeer { out_meter, in_meter, .. } => [out_meter, in_meter],
        _ => [None; 2],
    };
    meters.into_iter().flatten()
}

/// The meters of all peerings of these clusters, by the VNIs of sender and receiver: that of the sender's side, and that of the
/// receiver's.
async fn peering_meters(
    store: &Store,
    clusters: &BTreeSet<ClusterId>,
) -> BTreeMap<(Vni, Vni), [Option<u32>; 2]> {
    let mut meters = BTreeMap::new();
    for peering in store.peerings(None, None, ALL).await.unwrap() {
        let [a, b] = [store.vpc(peering.a).await.unwrap(), store.vpc(peering.b).await.unwrap()];
        if a.clusters().any(|cluster| clusters.contains(&cluster)) {
            let [of_a, of_b] = peering.meters.map(|meter| meter.map(|id| id.get() as u32));
            meters.insert((a.vni, b.vni), [of_a, of_b]);
            meters.insert((b.vni, a.vni), [of_b, of_a]);
        }
    }
    meters
}

/// A gateway has the meters of what it has, and no others.
pub(super) async fn check_meters(store: &Store, gateway: GatewayId, tables: &NodeTables) {
    let clusters: BTreeSet<_> = store.gateway(gateway).await.unwrap().clusters().collect();
    let mut of_vrfs = BTreeMap::new();
    for vpc in store.vpcs(None, None, ALL).await.unwrap() {
        if vpc.clusters().any(|cluster| clusters.contains(&cluster)) {
            of_vrfs.extend(vpc.internet_meter.map(|meter| (vpc.vni, meter.get() as u32)));
        }
    }
    let mut of_prefixes = BTreeMap::new();
    for eip in store.eips(&EipFilter::default(), ALL).await.unwrap() {
        if eip.attachment.is_some() && clusters.contains(&eip.cluster) {
            of_prefixes.extend(eip.meter.map(|meter| (eip.prefix, meter.get() as u32)));
        }
    }
    let of_peerings = peering_meters(store, &clusters).await;
    let used = of_vrfs.values().chain(of_prefixes.values()).chain(of_peerings.values().flatten().flatten());
    let used: BTreeSet<u32> = used.copied().collect();
    let mut expected = BTreeMap::new();
    for meter in store.meters(None, None, ALL).await.unwrap() {
        let (id, limit) = (meter.id.get() as u32, |rate: Option<MeterRate>| rate.map(MeterRate::limit));
        let entry = Entry { id, inward: limit(meter.inward), outward: limit(meter.outward) };
        expected.extend(used.contains(&id).then_some((id, entry)));
    }
    assert_eq!(tables.meters, expected, "{gateway}");
    let found = tables.vrfs.values().filter_map(|vrf| Some((vrf.vni, vrf.internet_meter?)));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), of_vrfs, "{gateway}");
    let found = tables.public.values().filter_map(|prefix| Some((prefix.outside, prefix.meter?)));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), of_prefixes, "{gateway}");
    for (key, scope) in &tables.routes {
        let (peer, meters) = match *scope {
            Scope::Peer(peer) => (peer, [None; 2]),
            Scope::MeteredPeer { vni, out_meter, in_meter } => (vni, [out_meter, in_meter]),
            _ => continue,
        };
        assert_eq!(of_peerings[&(key.vni, peer)], meters, "{gateway}: {key:?} {scope:?}");
    }
}

fn rate(number: u8) -> Option<MeterRate> {
    (number != 0).then_some(MeterRate { kbps: 1000 + u64::from(number), burst: None })
}

/// A random operation on meters.
pub(super) async fn execute(store: &Store, (_, x, y, z): Operation, vpcs: &[Vpc]) -> Option<()> {
    let meters = store.meters(None, None, ALL).await.unwrap();
    let eips = store.eips(&EipFilter::default(), ALL).await.unwrap();
    let meter = choose(&meters, y).filter(|_| y % 3 != 0).map(|meter| meter.id);
    match z % 10 {
        0 | 1 => {
            let tenant = store.create_tenant("t").await.ok()?.into_inner().id;
            let (name, inward) = (format!("m{}", x % 4), rate(y));
            store.create_meter(NewMeter { name, tenant, inward, outward: rate(z / 8) }).await.ok()?;
        }
        2 => {
            let found = choose(&meters, x)?;
            let update = MeterUpdate { name: found.name, inward: rate(y % 4), outward: rate(z / 8) };
            store.update_meter(found.id, update, None).await.ok()?;
        }
        3 => {
            store.delete_meter(choose(&meters, x)?.id, None).await.ok()?;
        }
        4 | 5 => {
            let update = EipUpdate { meter: Some(meter), ..EipUpdate::default() };
            store.update_eip(choose(&eips, x)?.id, update, None).await.ok()?;
        }
        8 | 9 => {
            let peering = choose(&store.peerings(None, None, ALL).await.unwrap(), x)?;
            let end = if y < 128 { peering.a } else { peering.b };
            store.update_peering(peering.id, &BTreeMap::from([(end, meter)]), None).await.ok()?;
        }
        _ => {
            let Vpc { id, name, mtu, offload_kbps, .. } = choose(vpcs, x)?;
            let update = VpcUpdate { name, mtu, offload_kbps, internet_meter: meter };
            store.update_vpc(id, update, None).await.ok()?;
        }
    }
    Some(())
}

/// A meter, and the EIP and the VPC that have it. Without them, few histories would have meters.
pub(super) const FIRST: [Operation; 3] = [(METERS, 0, 5, 0), (METERS, 0, 1, 4), (METERS, 0, 1, 6)];

/// Catches: a meter on a cluster that has nothing of it, one that is missing after a move, and a gateway between two clusters
/// that loses what its other cluster needs.
#[tokio::test]
async fn meters_follow_their_vpcs() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let mut gateways = Vec::new();
    let mut clusters = Vec::new();
    for number in 1..=2 {
        let vip = ip(&format!("192.0.2.{number}0"));
        let cluster =
            store.create_cluster(&format!("c{number}"), &[vip], None).await.unwrap().into_inner().id;
        for member in 1..=2 {
            let new =
                new_gateway(&format!("g{number}{member}"), cluster, &format!("192.0.2.{number}{member}"));
            gateways.push(store.create_gateway(new).await.unwrap().into_inner().id);
        }
        clusters.push(cluster);
    }
    let new = NewMeter { name: "gold".into(), tenant, inward: rate(1), outward: None };
    let gold = store.create_meter(new).await.unwrap().into_inner();
    let [a, b] =
        [("a", clusters[0]), ("b", clusters[1])].map(|(name, cluster)| new_vpc(name, tenant, cluster));
    let a = store.create_vpc(NewVpc { internet_meter: Some(gold.id), ..a }).await.unwrap().into_inner();
    let b = store.create_vpc(b).await.unwrap().into_inner();
    world.follow().await;
    let have = |world: &World| -> Vec<bool> {
        gateways.iter().map(|id| !world.gateway(*id).meters.is_empty()).collect()
    };
    assert_eq!(have(&world), [true, true, false, false]);

    // A change of the rate comes as one entry, without the VPC.
    let update = MeterUpdate { name: "gold".into(), inward: rate(1), outward: rate(9) };
    store.update_meter(gold.id, update, None).await.unwrap();
    let row = store.outbox(world.state.revision(), 10).await.unwrap().remove(0);
    let compiled = world.state.clone().apply(row.revision, &[row.change]);
    let [(Target::Cluster(at), update)] = compiled.updates.iter().collect::<Vec<_>>()[..] else {
        panic!("{compiled:?}");
    };
    assert_eq!((*at, update.entry_count(), update.meters.len()), (clusters[0], 1, 1));
    world.follow().await;
    world.check().await;
    let outward = MeterLimit { rate_kbps: 1009, burst_bytes: 196_608 };
    assert_eq!(world.gateway(gateways[0]).meters[&(gold.id.get() as u32)].outward, Some(outward));

    // A gateway between both clusters has it as long as one of them uses it.
    store.move_gateway(gateways[0], clusters[1], "test", None).await.unwrap();
    let update = VpcUpdate { internet_meter: Some(gold.id), ..vpc_update("b", 1430) };
    store.update_vpc(b.id, update, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(have(&world), [true; 4]);
    store.update_vpc(b.id, vpc_update("b", 1430), None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(have(&world), [true, true, false, false]);

    // Both clusters have it during a move.
    let moving = store.move_vpc(a.id, clusters[1], None).await.unwrap().moving.unwrap().id;
    world.follow().await;
    assert_eq!(have(&world), [true; 4]);
    for switched in [false, true] {
        store.advance_move(moving, switched).await.unwrap();
    }
    world.follow().await;
    world.check().await;
    assert_eq!(have(&world), [true, false, true, true]);
    store.delete_vpc(a.id, None).await.unwrap();
    store.delete_meter(gold.id, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(have(&world), [false; 4]);
}

/// Catches a change of a peering's meters that does not come to all routes of both VPCs, static ones too, and one that comes with
/// anything else.
#[tokio::test]
async fn routes_to_peers_follow_the_meters_of_their_peering() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let mut meters = Vec::new();
    for name in ["gold", "silver"] {
        let new = NewMeter { name: name.into(), tenant, inward: rate(1), outward: None };
        meters.push(store.create_meter(new).await.unwrap().into_inner().id);
    }
    let [gold, silver] = [meters[0], meters[1]];
    let a = store.create_vpc(new_vpc("a", tenant, cluster)).await.unwrap().into_inner();
    let b = store.create_vpc(new_vpc("b", tenant, cluster)).await.unwrap().into_inner();
    store.create_subnet(new_subnet(a.id, "s", "10.1.0.0/24", Some("2001:db8:1::/64"))).await.unwrap();
    store.create_subnet(new_subnet(b.id, "s", "10.2.0.0/24", None)).await.unwrap();
    let new = NewPeering { meters: [(b.id, gold)].into(), ..new_peering(&a, &b) };
    let peering = store.create_peering(new).await.unwrap().into_inner().id;
    let table = store.route_tables(Some(a.id), ALL).await.unwrap()[0].id;
    let (prefix, target) = ("10.0.0.0/8".parse().unwrap(), RouteTarget::Peering(peering));
    store.create_route(NewRoute { table, prefix, target }).await.unwrap();
    let scope = |vni, [out_meter, in_meter]: [Option<MeterId>; 2]| match [out_meter, in_meter] {
        [None, None] => Scope::Peer(vni),
        meters => {
            let [out_meter, in_meter] = meters.map(|meter| meter.map(|id| id.get() as u32));
            Scope::MeteredPeer { vni, out_meter, in_meter }
        }
    };
    let to_peers = |world: &World| -> BTreeMap<(Vni, String), Scope> {
        let routes = world.gateway(gateway).routes.clone().into_iter();
        let routes = routes.filter(|(_, scope)| *scope != Scope::Local);
        routes.map(|(key, scope)| ((key.vni, key.prefix.to_string()), scope)).collect()
    };
    let expected = |[of_a, of_b]: [Option<MeterId>; 2]| {
        let from_a =
            ["10.2.0.0/24", "10.0.0.0/8"].map(|to| ((a.vni, to.to_owned()), scope(b.vni, [of_a, of_b])));
        let from_b = ["10.1.0.0/24", "2001:db8:1::/64"];
        let from_b = from_b.map(|to| ((b.vni, to.to_owned()), scope(a.vni, [of_b, of_a])));
        from_a.into_iter().chain(from_b).collect::<BTreeMap<_, _>>()
    };
    world.follow().await;
    world.check().await;
    assert_eq!(to_peers(&world), expected([None, Some(gold)]));
    for (end, meter, after) in [
        (a.id, Some(silver), [Some(silver), Some(gold)]),
        (b.id, Some(silver), [Some(silver); 2]),
        (b.id, None, [Some(silver), None]),
        (a.id, None, [None; 2]),
        (a.id, Some(gold), [Some(gold), None]),
    ] {
        store.update_peering(peering, &BTreeMap::from([(end, meter)]), None).await.unwrap();
        let row = store.outbox(world.state.revision(), 10).await.unwrap().remove(0);
        let compiled = world.state.clone().apply(row.revision, &[row.change]);
        let [(Target::Cluster(_), update)] = compiled.updates.iter().collect::<Vec<_>>()[..] else {
            panic!("{compiled:?}");
        };
        let of_meters = update.meters.len() + update.removed_meters.len();
        assert_eq!(update.entry_count(), update.routes.len() + of_meters, "{update:?}");
        world.follow().await;
        world.check().await;
        world.check_digests().await;
        assert_eq!(to_peers(&world), expected(after));
        let used: BTreeSet<u32> = after.into_iter().flatten().map(|id| id.get() as u32).collect();
        assert_eq!(world.gateway(gateway).meters.keys().copied().collect::<BTreeSet<_>>(), used);
    }
    store.delete_route(store.routes(table, ALL).await.unwrap()[0].id, None).await.unwrap();
    store.delete_peering(peering, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!((to_peers(&world), world.gateway(gateway).meters.len()), (BTreeMap::new(), 0));
}

/// Catches digests that ignore a meter, its limits, or which VPC has it.
#[tokio::test]
async fn digests_have_meters() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let new = NewMeter { name: "gold".into(), tenant, inward: rate(1), outward: rate(2) };
    let gold = store.create_meter(new).await.unwrap().into_inner().id;
    let new = NewVpc { internet_meter: Some(gold), ..new_vpc("a", tenant, cluster) };
    let vpc = store.create_vpc(new).await.unwrap().into_inner();
    world.follow().await;
    world.check_digests().await;
    let (node, revision) = (NodeId::Gateway(gateway), world.state.revision());
    let damage: [fn(&mut NodeTables); 3] = [
        |tables| tables.meters.clear(),
        |tables| tables.meters.values_mut().for_each(|meter| meter.outward = meter.inward),
        |tables| tables.vrfs.values_mut().for_each(|vrf| vrf.internet_meter = None),
    ];
    for (number, damage) in damage.into_iter().enumerate() {
        let mut tables = world.nodes[&node].tables.clone();
        damage(&mut tables);
        let found = world.intent.compare(&world.state, node, revision, &tables.digests());
        assert!(matches!(found, Comparison::Different(_)), "damage {number}: {found:?}");
    }
    // Digests of the revision before a change of a rate cannot be compared.
    let before = world.nodes[&node].tables.digests();
    let update = MeterUpdate { name: "gold".into(), inward: rate(3), outward: None };
    store.update_meter(gold, update, None).await.unwrap();
    world.follow().await;
    assert_eq!(world.intent.compare(&world.state, node, revision, &before), Comparison::Undecided);
    world.check_digests().await;
    store.update_vpc(vpc.id, vpc_update("a", 1430), None).await.unwrap();
    world.follow().await;
    world.check_digests().await;
}
