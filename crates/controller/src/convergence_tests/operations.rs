//! Random operations on the store, which may refuse them.

use super::*;

/// A random operation: its kind, and three numbers that select objects and values.
pub(super) type Operation = (u8, u8, u8, u8);

pub(super) fn choose<T: Clone>(from: &[T], number: u8) -> Option<T> {
    (!from.is_empty()).then(|| from[usize::from(number) % from.len()].clone())
}

/// Operations on pools of public addresses.
pub(super) const POOLS: u8 = 28;
/// Operations that create EIPs.
pub(super) const EIPS: u8 = 29;
/// Operations that attach and detach EIPs.
pub(super) const ATTACHMENTS: u8 = 30;
/// Operations that delete EIPs and what has them.
pub(super) const EIP_REMOVALS: u8 = 31;
/// Operations on NAT gateways.
pub(super) const NAT_GATEWAYS: u8 = 32;
/// Operations on port forwards.
pub(super) const PORT_FORWARDS: u8 = 33;
/// Operations on meters.
pub(super) const METERS: u8 = 34;
/// Operations on network classes.
pub(super) const NETWORK_CLASSES: u8 = 35;
/// Operations on services.
pub(super) const SERVICES: u8 = 36;
/// Number of kinds of operations.
pub(super) const KINDS: u8 = 37;

/// Executes an operation. The store may refuse it.
pub(super) async fn execute(store: &Store, operation: Operation) -> Option<()> {
    let (what, x, y, z) = operation;
    let clusters = store.clusters(None, ALL).await.unwrap();
    let vpcs = store.vpcs(None, None, ALL).await.unwrap();
    let hosts = store.hosts(None, ALL).await.unwrap();
    match what % KINDS {
        16..=19 => execute_move(store, operation, &vpcs, &hosts, &clusters).await?,
        20..=23 => security::execute(store, operation, &vpcs).await?,
        POOLS..=PORT_FORWARDS => internet::execute(store, operation, &vpcs, &clusters).await?,
        METERS => meters::execute(store, operation, &vpcs).await?,
        NETWORK_CLASSES => network_classes::execute(store, operation).await?,
        SERVICES => services::execute(store, operation, &vpcs).await?,
        24..=27 => addresses::execute(store, operation, &hosts).await?,
        0 => {
            let vips: Vec<IpAddr> = (0..=z % 4).map(|i| vip(x, i.wrapping_add(y))).collect();
            store.create_cluster(&format!("c{}", x % 2), &vips, None).await.ok()?;
        }
        1 => {
            let vips: Vec<IpAddr> = (0..=z % 5).map(|i| vip(x, i.wrapping_add(y))).collect();
            store.update_cluster(choose(&clusters, x)?.id, &vips, None).await.ok()?;
        }
        2 => {
            let new = NewGateway {
                name: format!("g{}", y % 6),
                cluster: choose(&clusters, x)?.id,
                vtep4: (z % 8 != 0).then(|| Ipv4Addr::new(192, 0, 2, 100 + y % 6)),
                vtep6: (z % 8 != 1).then(|| ipv6_from_halves(0xfd00 << 48, 100 + u64::from(y % 6))),
            };
            store.create_gateway(new).await.ok()?;
        }
        3 => {
            let gateways = store.gateways(None, None, ALL).await.unwrap();
            store.delete_gateway(choose(&gateways, x)?.id, None).await.ok()?;
        }
        4 => {
            let vtep = if y % 2 == 0 {
                ip(&format!("192.0.2.{}", 200 + x % 5))
            } else {
                ip(&format!("fd00::{}", 200 + x % 5))
            };
            store.create_host(NewHost { name: format!("h{}", x % 5), vtep, agent: z % 4 != 0 }).await.ok()?;
        }
        5 => {
            store.delete_host(choose(&hosts, x)?.id, None).await.ok()?;
        }
        6 => {
            let tenant = store.create_tenant("t").await.ok()?.into_inner().id;
            store.create_vpc(new_vpc(&format!("v{}", y % 5), tenant, choose(&clusters, x)?.id)).await.ok()?;
        }
        7 => {
            let vpc = choose(&vpcs, x)?;
            let name = if y % 2 == 0 { vpc.name.clone() } else { format!("v{}", y % 7) };
            store.update_vpc(vpc.id, vpc_update(&name, 1280 + u16::from(z % 3)), None).await.ok()?;
        }
        8 => {
            store.delete_vpc(choose(&vpcs, x)?.id, None).await.ok()?;
        }
        9 | 10 => {
            let v6 = format!("2001:db8:{}::/64", y % 8);
            let new = new_subnet(
                choose(&vpcs, x)?.id,
                &format!("s{}", y % 8),
                &format!("10.{}.0.0/24", y % 8),
                (z % 2 == 0).then_some(v6.as_str()),
            );
            store.create_subnet(new).await.ok()?;
        }
        11 => {
            let subnets = store.subnets(None, None, ALL).await.unwrap();
            store.delete_subnet(choose(&subnets, x)?.id, None).await.ok()?;
        }
        _ => execute_in_vpc(store, operation, &vpcs, &hosts).await?,
    }
    Some(())
}

/// Moves VPCs and gateways to other clusters and instances to other hosts, migrates instances, drains gateways and undrains them.
async fn execute_move(
    store: &Store,
    operation: Operation,
    vpcs: &[Vpc],
    hosts: &[Host],
    clusters: &[Cluster],
) -> Option<()> {
    let (what, x, y, z) = operation;
    match what % KINDS {
        16 => {
            store.move_vpc(choose(vpcs, x)?.id, choose(clusters, y)?.id, None).await.ok()?;
        }
        17 => {
            let moving: Vec<_> = vpcs.iter().filter_map(|vpc| vpc.moving).collect();
            let moving = choose(&moving, x)?;
            assert!(store.advance_move(moving.id, moving.switched).await.ok()?);
        }
        18 if z % 2 == 1 => migrations::execute(store, (x, y, z / 2), hosts).await?,
        18 => {
            let instances = store.instances(None, None, None, ALL).await.unwrap();
            store.move_instance(choose(&instances, x)?.id, choose(hosts, y)?.id, None).await.ok()?;
        }
        _ => {
            let gateways = store.gateways(None, None, ALL).await.unwrap();
            let gateway = choose(&gateways, x)?;
            match y % 4 {
                0 => drop(store.drain_gateway(gateway.id, z % 2 == 0, None).await.ok()?),
                1 | 2 => {
                    let to = choose(clusters, z)?.id;
                    store.move_gateway(gateway.id, to, "a operation", None).await.ok()?;
                }
                _ => {
                    let moving: Vec<_> = gateways.iter().filter(|g| g.moving.is_some()).collect();
                    let gateway = choose(&moving, x)?;
                    assert!(store.advance_gateway_move(gateway.id, gateway.moving?).await.ok()?);
                }
            }
        }
    }
    Some(())
}

fn vip(x: u8, i: u8) -> IpAddr {
    if i.is_multiple_of(2) {
        ip(&format!("198.51.100.{}", (x % 2) * 100 + i % 20 + 1))
    } else {
        ip(&format!("fd01:{}::{}", x % 2, i % 20 + 1))
    }
}

async fn execute_in_vpc(store: &Store, operation: Operation, vpcs: &[Vpc], hosts: &[Host]) -> Option<()> {
    let (what, x, y, z) = operation;
    match (what % KINDS, z % 3) {
        (12, 0 | 1) => {
            let (a, b) = (choose(vpcs, x)?.id, choose(vpcs, y)?.id);
            let meter = choose(&store.meters(None, None, ALL).await.unwrap(), z).filter(|_| z >= 128);
            let meters = meter.map(|meter| (b, meter.id)).into_iter().collect();
            store.create_peering(NewPeering { name: format!("p{}", y % 3), a, b, meters }).await.ok()?;
        }
        (12, _) => {
            let peerings = store.peerings(None, None, ALL).await.unwrap();
            store.delete_peering(choose(&peerings, x)?.id, None).await.ok()?;
        }
        (13, 0 | 1) => {
            let vpc = choose(vpcs, x)?.id;
            let table = store.route_tables(Some(vpc), ALL).await.unwrap()[0].id;
            let peerings = store.peerings(Some(vpc), None, ALL).await.unwrap();
            let target = match choose(&peerings, y) {
                Some(peering) if z % 2 == 0 => RouteTarget::Peering(peering.id),
                _ if z % 4 == 1 => RouteTarget::Internet,
                _ => RouteTarget::Drop,
            };
            let prefix = format!("10.{}.0.0/{}", y % 8, if y % 4 == 0 { 24 } else { 16 }).parse().unwrap();
            store.create_route(NewRoute { table, prefix, target }).await.ok()?;
        }
        (13, _) => {
            let table = choose(&store.route_tables(None, ALL).await.unwrap(), x)?.id;
            let routes = store.routes(table, ALL).await.unwrap();
            store.delete_route(choose(&routes, y)?.id, None).await.ok()?;
        }
        (14, _) => {
            let subnet = choose(&store.subnets(None, None, ALL).await.unwrap(), x)?;
            let mut many = Vec::new();
            for number in (0..=z % 6).map(|i| y.wrapping_add(i)) {
                let name = format!("i{}", number % 13);
                let new = new_instance(&name, subnet.id, choose(hosts, number)?.id);
                let security_groups = Some(security::some_groups(store, subnet.vpc, number ^ x).await);
                many.push(if z < 128 { new } else { NewInstance { security_groups, ..new } });
            }
            store.create_instances(subnet.vpc, many).await.ok()?;
        }
        _ => {
            let instances = store.instances(None, None, None, ALL).await.unwrap();
            store.delete_instance(choose(&instances, x)?.id, None).await.ok()?;
        }
    }
    Some(())
}

/// The objects of a small cloud, so that operations find something to change.
pub(super) const FIRST: [Operation; 14] = [
    (0, 0, 0, 3),
    (0, 1, 0, 2),
    (2, 0, 0, 2),
    (2, 0, 1, 1),
    (2, 1, 2, 0),
    (4, 0, 0, 1),
    (4, 1, 1, 1),
    (6, 0, 0, 0),
    (6, 0, 1, 0),
    (6, 1, 2, 0),
    (9, 0, 0, 0),
    (9, 1, 1, 0),
    (12, 0, 1, 0),
    (14, 0, 0, 5),
];
