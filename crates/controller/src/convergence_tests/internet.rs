//! Public addresses on gateways: those of the EIPs and NAT gateways of the VPCs of their clusters.

use super::operations::{ATTACHMENTS, EIP_REMOVALS, EIPS, NAT_GATEWAYS, POOLS, PORT_FORWARDS};
use super::*;
use crate::compile::Comparison;
use sluice_types::{NatMapping, PortForward};
use std::net::SocketAddrV4;

/// Prefixes of pools, which overlap sometimes.
const PREFIXES: [&str; 4] = ["203.0.113.0/28", "203.0.113.16/29", "203.0.113.0/27", "2001:db8:ff00::/60"];

/// A pool on each cluster, an EIP of an instance and one of a subnet, by NPTv6, and a NAT gateway with two port forwards.
/// Without them, few histories would have public addresses.
pub(super) const FIRST: [Operation; 7] = [
    (POOLS, 0, 12, 0),
    (POOLS, 1, 1, 0),
    (EIPS, 0, 0, 2),
    (EIPS, 0, 2, 0),
    (NAT_GATEWAYS, 0, 1, 0),
    (PORT_FORWARDS, 0, 0, 1),
    (PORT_FORWARDS, 0, 1, 2),
];

impl NodeTables {
    /// Writes public addresses, as far as a node can: VRF and vIP must be there, and no other addresses inside may overlap.
    /// Those that stand for other addresses than before give up these first.
    pub(super) fn add_public(&mut self, prefixes: &[PublicPrefix]) {
        for new in prefixes {
            self.public.retain(|outside, old| {
                *outside != new.outside || (old.vni, old.inside) == (new.vni, new.inside)
            });
        }
        for prefix in prefixes {
            let PublicPrefix { outside, vni, inside, vip, .. } = *prefix;
            assert!(self.vrfs.contains_key(&vni), "{outside} comes before its VRF {vni}");
            assert!(self.vips.contains_key(&vip), "{outside} comes before its vIP {vip}");
            let others = self.public.values().filter(|other| other.outside != outside && other.vni == vni);
            let mut overlapping = others.filter(|other| overlap(&other.inside, &inside));
            assert_eq!(overlapping.next(), None, "{outside} in VNI {vni}");
            self.public.insert(outside, *prefix);
        }
    }

    /// Writes NAT gateways, as far as a node can: VRF and vIP must be there, and nothing else may have their addresses.
    pub(super) fn add_nat(&mut self, nat_gateways: Vec<NatGateway>) {
        for nat in nat_gateways {
            assert!(self.vrfs.contains_key(&nat.vni), "{nat:?} comes before its VRF");
            assert!(self.vips.contains_key(&nat.vip), "{nat:?} comes before its vIP");
            self.nat.insert(nat.vni, nat);
        }
        let mut all: Vec<_> = self.nat.values().flat_map(|nat| &nat.addresses).collect();
        all.sort();
        assert!(all.is_sorted_by(|a, b| a < b), "two NAT gateways have an address: {all:?}");
        let has_eip = |address: &&&Ipv4Addr| self.public.contains_key(&IpNet::from(IpAddr::V4(***address)));
        assert_eq!(all.iter().find(has_eip), None, "an EIP has it, too");
    }
}

/// A gateway has the public addresses that are attached on its clusters, and a vIP of the cluster for each.
pub(super) async fn check_public(store: &Store, gateway: GatewayId, tables: &NodeTables) {
    let gateway = store.gateway(gateway).await.unwrap();
    let mut expected = BTreeMap::new();
    for cluster in gateway.clusters() {
        let vips = store.cluster(cluster).await.unwrap().addresses();
        for eip in store.eips(&EipFilter::default(), ALL).await.unwrap() {
            let Some(at) = eip.attachment.filter(|_| eip.cluster == cluster) else { continue };
            let vpc = store.vpc(at.vpc).await.unwrap();
            assert_eq!((vpc.cluster, vpc.moving), (cluster, None), "{} has {}", vpc.name, eip.name);
            let vip =
                tables.public.get(&eip.prefix).map(|prefix| prefix.vip).filter(|vip| vips.contains(vip));
            expected.insert(eip.prefix, (vpc.vni, at.inside, eip.nptv6, vip.is_some()));
        }
    }
    check_nat(store, &gateway, tables).await;
    let found = tables.public.values().map(|prefix| {
        let PublicPrefix { outside, vni, inside, nptv6, .. } = *prefix;
        (outside, (vni, inside, nptv6, true))
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{}", gateway.id);
}

/// A gateway has the NAT gateways of its clusters, and a vIP of the cluster for each.
async fn check_nat(store: &Store, gateway: &Gateway, tables: &NodeTables) {
    let mut expected = BTreeMap::new();
    for nat in store.nat_gateways(&NatGatewayFilter::default(), ALL).await.unwrap() {
        let vpc = store.vpc(nat.vpc).await.unwrap();
        assert_eq!((vpc.cluster, vpc.moving), (nat.cluster, None), "{} has {}", vpc.name, nat.name);
        if gateway.clusters().all(|cluster| cluster != nat.cluster) {
            continue;
        }
        let vips = store.cluster(nat.cluster).await.unwrap().addresses();
        let vip = tables.nat.get(&vpc.vni).map(|nat| nat.vip);
        assert!(vip.is_some_and(|vip| vips.contains(&vip)), "{vip:?} of {}", nat.name);
        let any_remote = nat.filtering == NatFiltering::EndpointIndependent;
        let shares_ports = nat.mapping == NatMapping::EndpointDependent;
        let of_nat = PortForwardFilter { nat_gateway: Some(nat.id), ..PortForwardFilter::default() };
        let forwards = store.port_forwards(&of_nat, ALL).await.unwrap();
        let mut forwards: Vec<_> = forwards.iter().map(port_forward).collect();
        forwards.sort_unstable();
        assert_eq!(PortForward::check_all(&forwards, &nat.addresses), Ok(()));
        let nat64 = nat.nat64_prefix.map(|prefix| prefix.addr());
        let flags = [any_remote, shares_ports];
        expected.insert(vpc.vni, (nat.addresses, nat.sessions, nat.blocks, flags, forwards, nat64));
    }
    let found = tables.nat.iter().map(|(vni, nat)| {
        let NatGateway { addresses, sessions, blocks, any_remote, shares_ports, forwards, nat64, .. } =
            nat.clone();
        (*vni, (addresses, sessions, blocks, [any_remote, shares_ports], forwards, nat64))
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{}", gateway.id);
}

fn port_forward(stored: &sluice_store::PortForward) -> PortForward {
    let outside = SocketAddrV4::new(stored.address, stored.port);
    PortForward {
        protocol: stored.protocol,
        outside,
        inside: SocketAddrV4::new(stored.inside, stored.inside_port),
    }
}

/// A random operation on port forwards: of a few ports, so that they exclude each other.
async fn execute_forward(store: &Store, (_, x, y, z): Operation) -> Option<()> {
    if z.is_multiple_of(4) {
        let all = store.port_forwards(&PortForwardFilter::default(), ALL).await.unwrap();
        return store.delete_port_forward(choose(&all, x)?.id, None).await.ok().map(drop);
    }
    let all = store.nat_gateways(&NatGatewayFilter::default(), ALL).await.unwrap();
    let nat = choose(&all, x)?;
    let instances = store.instances(Some(nat.vpc), None, None, ALL).await.unwrap();
    let new = NewPortForward {
        name: format!("f{}", z % 16),
        nat_gateway: nat.id,
        protocol: if y.is_multiple_of(2) { ForwardProtocol::Tcp } else { ForwardProtocol::Udp },
        address: nat.addresses.last().copied().filter(|_| z.is_multiple_of(2)).map(IpAddr::V4),
        port: 1 + u16::from(y % 4),
        instance: choose(&instances, y)?.id,
        inside_port: Some(1 + u16::from(z % 3)),
    };
    store.create_port_forward(new).await.ok().map(drop)
}

/// A random operation on NAT gateways.
async fn execute_nat(
    store: &Store,
    (_, x, y, z): Operation,
    vpcs: &[Vpc],
    pools: &[PublicPool],
) -> Option<()> {
    let all = store.nat_gateways(&NatGatewayFilter::default(), ALL).await.unwrap();
    let addresses = Some(NatAddresses::Number(usize::from(y % 4)));
    let filtering =
        Some(if y % 2 == 0 { NatFiltering::EndpointIndependent } else { NatFiltering::default() });
    let (sessions, blocks) = (Some(u32::from(z)), None);
    let mapping = Some(if y % 4 == 1 { NatMapping::EndpointDependent } else { NatMapping::default() });
    let nat64 = (x % 3 != 0).then(|| format!("64:ff9b:1:{x:x}::/96").parse().unwrap());
    match z % 4 {
        0 | 1 => {
            let vpc = choose(vpcs, x)?;
            let pool = pools.iter().find(|pool| pool.cluster == vpc.cluster)?.id;
            let (name, vpc) = ("n".to_owned(), vpc.id);
            let nat64_prefix = nat64;
            let new = NewNatGateway {
                name,
                vpc,
                pool,
                addresses,
                sessions: None,
                blocks,
                filtering,
                mapping,
                nat64_prefix,
            };
            store.create_nat_gateway(new).await.ok()?;
        }
        2 => {
            let nat64_prefix = Some(nat64);
            let new = NatGatewayUpdate {
                name: None,
                addresses,
                sessions,
                blocks,
                filtering,
                mapping,
                nat64_prefix,
            };
            store.update_nat_gateway(choose(&all, x)?.id, new, None).await.ok()?;
        }
        _ if y % 2 == 0 => {
            store.delete_nat_gateway(choose(&all, x)?.id, None).await.ok()?;
        }
        // VPCs with NAT gateways are told to move more often than by chance.
        _ => {
            let cluster = store.clusters(None, ALL).await.unwrap().last()?.id;
            store.move_vpc(choose(&all, x)?.vpc, cluster, None).await.ok()?;
        }
    }
    Some(())
}

/// A random operation on pools, EIPs and NAT gateways.
pub(super) async fn execute(
    store: &Store,
    (what, x, y, z): Operation,
    vpcs: &[Vpc],
    clusters: &[Cluster],
) -> Option<()> {
    let pools = store.public_pools(None, None, ALL).await.unwrap();
    let eips = store.eips(&EipFilter::default(), ALL).await.unwrap();
    match (what % KINDS, z % 4) {
        (POOLS, 0 | 1) => {
            let (first, second) = (PREFIXES[usize::from(y % 4)], PREFIXES[usize::from(y / 4 % 4)]);
            let mut prefixes: Vec<IpNet> = vec![first.parse().unwrap()];
            prefixes.extend((second != first).then(|| second.parse::<IpNet>().unwrap()));
            let cluster = choose(clusters, x)?.id;
            let new = NewPublicPool { name: format!("p{}", y % 3), cluster, prefixes, reserved: vec![] };
            store.create_public_pool(new).await.ok()?;
        }
        (POOLS, 2) => {
            let prefixes = Some(vec![PREFIXES[usize::from(y % 4)].parse().unwrap()]);
            let new = PublicPoolUpdate { prefixes, ..Default::default() };
            store.update_public_pool(choose(&pools, x)?.id, new, None).await.ok()?;
        }
        (POOLS, _) => {
            store.delete_public_pool(choose(&pools, x)?.id, None).await.ok()?;
        }
        (EIPS, _) => {
            let tenant = store.create_tenant("t").await.ok()?.into_inner().id;
            let new = NewEip {
                name: format!("e{}", y % 20),
                tenant,
                pool: choose(&pools, x)?.id,
                address: None,
                family: (z % 4 == 1).then_some(AddressFamily::Ipv6),
                prefix_length: (z % 4 == 0).then_some(64),
                nptv6: (y % 2 == 0).then_some(z % 4 == 0),
                attach: target(store, vpcs, x, z).await,
                meter: None,
            };
            store.create_eip(new).await.ok()?;
        }
        (ATTACHMENTS, _) => {
            let attach = if z % 5 == 0 { None } else { Some(target(store, vpcs, y, z).await?) };
            let new = EipUpdate { attach: Some(attach), ..EipUpdate::default() };
            store.update_eip(choose(&eips, x)?.id, new, None).await.ok()?;
        }
        (NAT_GATEWAYS, _) => execute_nat(store, (what, x, y, z), vpcs, &pools).await?,
        (PORT_FORWARDS, _) => execute_forward(store, (what, x, y, z)).await?,
        (EIP_REMOVALS, 0) => {
            store.delete_eip(choose(&eips, x)?.id, None).await.ok()?;
        }
        // Instances with EIPs are deleted more often than by chance, and VPCs with EIPs are told to move.
        (EIP_REMOVALS, 1) => {
            let attached: Vec<_> = eips.iter().filter_map(|eip| eip.attachment).collect();
            let EipTarget::Instance(instance) = choose(&attached, x)?.target else { return None };
            store.delete_instance(instance, None).await.ok()?;
        }
        _ => {
            let attached: Vec<_> = eips.iter().filter_map(|eip| eip.attachment).collect();
            store.move_vpc(choose(&attached, x)?.vpc, choose(clusters, y)?.id, None).await.ok()?;
        }
    }
    Some(())
}

/// An instance, or a subnet with an IPv6 prefix.
async fn target(store: &Store, vpcs: &[Vpc], x: u8, z: u8) -> Option<Attach> {
    let vpc = choose(vpcs, x)?.id;
    let target = if z.is_multiple_of(4) {
        let mut subnets = store.subnets(Some(vpc), None, ALL).await.unwrap();
        subnets.retain(|subnet| subnet.ipv6.is_some());
        EipTarget::Subnet(choose(&subnets, z)?.id)
    } else {
        EipTarget::Instance(choose(&store.instances(Some(vpc), None, None, ALL).await.unwrap(), z)?.id)
    };
    Some(Attach { target, inside: None })
}

#[tokio::test]
async fn gateways_have_the_public_addresses_of_their_cluster() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let (first, second) = (ip("192.0.2.10"), ip("192.0.2.11"));
    let cluster = store.create_cluster("c", &[first], None).await.unwrap().into_inner().id;
    let other = store.create_cluster("d", &[ip("192.0.2.20")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let far = store.create_gateway(new_gateway("f", other, "192.0.2.2")).await.unwrap().into_inner().id;
    let new = NewHost { name: "h".into(), vtep: ip("192.0.2.21"), agent: true };
    let host = store.create_host(new).await.unwrap().into_inner().id;
    let vpc = store.create_vpc(new_vpc("a", tenant, cluster)).await.unwrap().into_inner();
    let subnet =
        store.create_subnet(new_subnet(vpc.id, "s", "10.1.0.0/24", None)).await.unwrap().into_inner().id;
    let vm = store.create_instance(vpc.id, new_instance("vm", subnet, host)).await.unwrap().into_inner();
    let table = store.route_tables(Some(vpc.id), ALL).await.unwrap()[0].id;
    let prefix: IpNet = "0.0.0.0/0".parse().unwrap();
    let route = store.create_route(NewRoute { table, prefix, target: RouteTarget::Internet }).await.unwrap();
    let prefixes = vec!["203.0.113.0/24".parse().unwrap()];
    let pool = NewPublicPool { name: "p".into(), cluster, prefixes, reserved: vec![] };
    let pool = store.create_public_pool(pool).await.unwrap().into_inner().id;
    world.follow().await;
    let to = Attach { target: EipTarget::Instance(vm.id), inside: None };
    let mut eips = Vec::new();
    for number in 0..16 {
        let (name, attach) = (format!("e{number}"), (number == 0).then_some(to));
        let new = NewEip {
            name,
            tenant,
            pool,
            address: None,
            family: None,
            prefix_length: None,
            nptv6: None,
            attach,
            meter: None,
        };
        eips.push(store.create_eip(new).await.unwrap().into_inner());
    }
    let steps = world.deltas;
    world.follow().await;
    world.check().await;
    world.check_digests().await;
    assert!(world.deltas > steps);
    assert_eq!(world.gateway(gateway).routes[&RouteKey { vni: vpc.vni, prefix }], Scope::Internet);
    let inside = IpNet::from(IpAddr::from(vm.ipv4.unwrap()));
    let expected =
        |vip| PublicPrefix { outside: eips[0].prefix, vni: vpc.vni, inside, vip, meter: None, nptv6: false };
    assert_eq!(world.gateway(gateway).public, [(eips[0].prefix, expected(first))].into());
    assert!(world.gateway(far).public.is_empty() && world.host(host).public.is_empty());

    // With other vIPs, the owner of another one answers; the addresses of the old one follow before it is removed.
    store.update_cluster(cluster, &[second], None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(world.gateway(gateway).public[&eips[0].prefix], expected(second));

    store.delete_instance(vm.id, None).await.unwrap();
    store.delete_route(route.into_inner().id, None).await.unwrap();
    world.follow().await;
    world.check().await;
    world.check_digests().await;
    assert!(world.gateway(gateway).public.is_empty());
    assert!(!world.gateway(gateway).routes.contains_key(&RouteKey { vni: vpc.vni, prefix }));
}

#[tokio::test]
async fn gateways_have_the_nat_gateways_of_their_cluster() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let vips: Vec<IpAddr> = (10..14).map(|low| IpAddr::from([192, 0, 2, low])).collect();
    let cluster = store.create_cluster("c", &vips, None).await.unwrap().into_inner().id;
    let other = store.create_cluster("d", &[ip("192.0.2.20")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let far = store.create_gateway(new_gateway("f", other, "192.0.2.2")).await.unwrap().into_inner().id;
    let new = NewHost { name: "h".into(), vtep: ip("192.0.2.21"), agent: true };
    let host = store.create_host(new).await.unwrap().into_inner().id;
    let vpc = store.create_vpc(new_vpc("a", tenant, cluster)).await.unwrap().into_inner();
    let subnet = store.create_subnet(new_subnet(vpc.id, "s", "10.1.0.0/24", None)).await.unwrap();
    let vm = store.create_instance(vpc.id, new_instance("vm", subnet.into_inner().id, host)).await;
    let vm = vm.unwrap().into_inner();
    let prefixes = vec!["203.0.113.0/24".parse().unwrap()];
    let pool = NewPublicPool { name: "p".into(), cluster, prefixes, reserved: vec![] };
    let pool = store.create_public_pool(pool).await.unwrap().into_inner().id;
    world.follow().await;
    let new = NewNatGateway {
        name: "n".into(),
        vpc: vpc.id,
        pool,
        addresses: Some(NatAddresses::Number(3)),
        sessions: None,
        blocks: None,
        filtering: None,
        mapping: None,
        nat64_prefix: None,
    };
    let (before, steps) = (world.state.revision(), world.deltas);
    let nat = store.create_nat_gateway(new).await.unwrap().into_inner();
    world.follow().await;
    assert!(world.deltas > steps);
    // Hosts do not have it, so their digests do not wait for it.
    for (node, expected) in
        [(NodeId::Gateway(gateway), Comparison::Undecided), (NodeId::Host(host), Comparison::Equal)]
    {
        let digests = world.nodes[&node].tables.digests();
        assert_eq!(world.intent.compare(&world.state, node, before, &digests), expected, "{node:?}");
    }
    world.check().await;
    world.check_digests().await;
    let vip = world.gateway(gateway).nat[&vpc.vni].vip;
    assert!(world.gateway(far).nat.is_empty() && world.host(host).nat.is_empty());

    // Without its vIP, another one's owner has the sessions; a change of another vIP changes nothing.
    let rest: Vec<IpAddr> = vips.iter().copied().filter(|other| *other != vip).collect();
    store.update_cluster(cluster, &rest, None).await.unwrap();
    world.follow().await;
    world.check().await;
    let next = world.gateway(gateway).nat[&vpc.vni].vip;
    assert!(rest.contains(&next));
    store.update_cluster(cluster, &[next], None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(world.gateway(gateway).nat[&vpc.vni].vip, next);

    port_forwards_go_with_their_instance(&mut world, gateway, &nat, &vm).await;
    let fewer = NatGatewayUpdate { addresses: Some(NatAddresses::Number(1)), ..Default::default() };
    store.update_nat_gateway(nat.id, fewer, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(world.gateway(gateway).nat[&vpc.vni].addresses, nat.addresses[..1]);
    store.delete_nat_gateway(nat.id, None).await.unwrap();
    world.follow().await;
    world.check().await;
    world.check_digests().await;
    assert!(world.gateway(gateway).nat.is_empty());
}

/// Two port forwards to an instance, which takes them with it.
async fn port_forwards_go_with_their_instance(
    world: &mut World,
    gateway: GatewayId,
    nat: &sluice_store::NatGateway,
    vm: &Instance,
) {
    let store = world.store.clone();
    let vni = store.vpc(nat.vpc).await.unwrap().vni;
    for (port, expected) in [(443, &[443][..]), (80, &[80, 443]), (0, &[])] {
        let new = NewPortForward {
            name: format!("f{port}"),
            nat_gateway: nat.id,
            protocol: ForwardProtocol::Tcp,
            address: None,
            port,
            instance: vm.id,
            inside_port: None,
        };
        let steps = world.deltas;
        if port == 0 {
            store.delete_instance(vm.id, None).await.unwrap();
        } else {
            store.create_port_forward(new).await.unwrap();
        }
        world.follow().await;
        assert!(world.deltas > steps);
        world.check().await;
        world.check_digests().await;
        let found = world.gateway(gateway).nat[&vni].forwards.clone();
        assert_eq!(found.iter().map(|it| it.outside.port()).collect::<Vec<_>>(), expected);
        assert!(found.iter().all(|it| Some(*it.inside.ip()) == vm.ipv4), "{found:?}");
    }
}
