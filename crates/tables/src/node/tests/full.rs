//! Tables without a free cell, taken over by another writer.

use super::crash::Content;
use super::nat_gateways::nat;
use super::public::public;
use super::*;
use crate::interleave::die_after;
use sluice_types::IpNet;

const CELLS: u32 = 300;
const HOST: &str = "192.0.2.1";

fn address(number: u32) -> String {
    match number % 2 {
        0 => format!("10.1.{}.{}", number / 250, number % 250),
        _ => format!("fd00::{number:x}"),
    }
}

fn route(number: u32) -> Route {
    let (high, low) = (number / 200 % 200, number % 200);
    let prefix = match number % 3 {
        0 => format!("10.{high}.{low}.0/24"),
        1 => format!("10.{low}.{high}.{}/32", number % 7),
        _ => format!("fd00:{high:x}:{low:x}::/48"),
    };
    Route { vni: vni(5), prefix: prefix.parse().unwrap(), target: Target::Local }
}

fn public_prefix(number: u32) -> PublicPrefix {
    match number % 2 {
        0 => public(&format!("198.51.100.{number}/32"), 6, &format!("10.0.0.{number}/32")),
        _ => public(&format!("2001:db8:{number:x}::/64"), 6, &format!("fd00:{number:x}::/64")),
    }
}

/// Adds entries of all kinds until every kind is refused. With `digest_mask` 0 the digests of all IPv6 addresses
/// conflict.
fn full(digest_mask: u64) -> NodeTables {
    let memory = Memory::anonymous(CELLS).unwrap();
    let sizes = Sizes { endpoints: 8 };
    let mut tables = NodeTables::create_with_digest_mask(memory, Immediate, sizes, digest_mask).unwrap();
    tables.upsert_vtep(ip(HOST), Role::Host).unwrap();
    tables.upsert_vip(&Vip { address: ip("192.0.2.100"), mac: mac(1), owned: true }).unwrap();
    tables.upsert_group(&Group { id: 3, vips: vec![ip(HOST)] }).unwrap();
    tables.upsert_vrf(&Vrf { group: Some(3), ..plain_vrf(5) }).unwrap();
    tables.upsert_port(&port(7)).unwrap();
    tables.upsert_direct_path(&direct(5, "10.0.0.9", HOST)).unwrap();
    for number in [6, 7] {
        tables.upsert_vrf(&plain_vrf(number)).unwrap();
    }
    tables.upsert_vip(&Vip { address: ip("192.0.2.9"), mac: mac(1), owned: true }).unwrap();
    for number in 0..20 {
        tables.upsert_public_prefix(&public_prefix(number)).unwrap();
    }
    tables.upsert_nat_gateway(&nat(6, &[1, 2])).unwrap();
    for number in 0..3_000 {
        let _ = tables.upsert_endpoint(&endpoint(5, &address(number), HOST));
    }
    for number in 0..3_000 {
        let _ = tables.upsert_route(&route(number));
    }
    // What is still free, single cells take.
    for number in 100..400 {
        let _ = tables.upsert_vrf(&plain_vrf(number));
        let _ = tables.upsert_direct_path(&direct(5, &format!("10.2.0.{}", number % 250), HOST));
    }
    tables
}

/// Every kind is refused by name, and nothing changes.
fn check_refusals(tables: &mut NodeTables) {
    let before = Content::of(tables);
    let new = [
        tables.upsert_vtep(ip("192.0.2.77"), Role::Host),
        tables.upsert_vrf(&plain_vrf(999)),
        tables.upsert_group(&Group { id: 9, vips: vec![ip(HOST)] }),
        tables.upsert_port(&port(8)),
        tables.upsert_direct_path(&direct(5, "10.77.0.1", HOST)),
        tables.upsert_public_prefix(&public_prefix(20)),
        // In a VPC without public prefixes.
        tables.upsert_public_prefix(&PublicPrefix { vni: vni(7), ..public_prefix(20) }),
        tables.upsert_nat_gateway(&nat(7, &[3])),
        tables.upsert_nat_gateway(&nat(6, &[1])),
        tables.upsert_nat_gateway(&nat(6, &[1, 2, 3])),
        // Another inside of one that is there.
        tables.upsert_public_prefix(&PublicPrefix { inside: public_prefix(20).inside, ..public_prefix(0) }),
    ];
    for result in new {
        assert!(matches!(result, Err(Error::Full { .. })), "{result:?}");
    }
    assert_eq!(Content::of(tables), before);
}

/// Catches an adoption that needs free memory, and one after which nothing can be removed.
#[test]
fn full_tables_are_adopted_and_go_on() {
    for digest_mask in [u64::MAX, 0] {
        let mut old = full(digest_mask);
        check_refusals(&mut old);
        let before = Content::of(&old);
        assert!(before.endpoints.len() > 10 && before.routes.len() > 10, "{before:?}");
        let free = old.usage().cells_total - old.usage().cells_live();
        assert!(free < 20, "{free} cells are free");

        let mut tables = adopt_again(old);
        assert_eq!(Content::of(&tables), before);
        check_refusals(&mut tables);
        // Without free memory each removal must work, and an agent's first writes change nothing.
        tables.upsert_port(&port(7)).unwrap();
        for route in &before.routes {
            assert!(tables.remove_route(route.vni, route.prefix).unwrap(), "{route:?}");
        }
        for number in 0..20 {
            assert!(tables.remove_public_prefix(public_prefix(number).outside).unwrap(), "{number}");
        }
        assert!(tables.remove_nat_gateway(vni(6)).unwrap());
        for endpoint in &before.endpoints {
            assert!(tables.remove_endpoint(endpoint.vni, endpoint.address).unwrap(), "{endpoint:?}");
        }
        tables.remove_port(7).unwrap();
        for vrf in &before.vrfs {
            tables.remove_vrf(vrf.vrf.vni).unwrap();
        }
        assert_eq!((tables.usage().routes, tables.usage().endpoints, tables.usage().direct_paths), (0, 0, 0));
        tables.upsert_vrf(&plain_vrf(5)).unwrap();
        tables.upsert_port(&port(8)).unwrap();
    }
}

/// The conflict of a removed address takes its place: a successor completes that without free memory too.
#[test]
fn killed_removal_in_full_tables_is_completed() {
    let tables = full(0);
    let before = Content::of(&tables);
    let memory = tables.memory().clone();
    drop(tables);
    let image: Vec<layout::cell> = (0..CELLS).map(|cell| memory.read(cell)).collect();
    let removed: Vec<Endpoint> =
        before.endpoints.iter().filter(|endpoint| endpoint.address.is_ipv6()).take(4).copied().collect();
    assert_eq!(removed.len(), 4, "{before:?}");
    for Endpoint { vni, address, .. } in removed {
        for accesses in 0.. {
            image.iter().enumerate().for_each(|(cell, words)| memory.write(cell as u32, words));
            let mut tables = NodeTables::adopt(memory.clone(), Immediate).unwrap();
            let ended = die_after(accesses, || tables.remove_endpoint(vni, address)).is_some();
            let mut tables = adopt_again(tables);
            tables.remove_endpoint(vni, address).unwrap();
            let mut expected = Content::of(&tables);
            assert_eq!(expected.endpoints.len(), before.endpoints.len() - 1);
            let removed = before.endpoints.iter().find(|endpoint| endpoint.address == address).unwrap();
            expected.endpoints.push(*removed);
            expected.endpoints.sort_by_key(|endpoint| (endpoint.vni, endpoint.address));
            assert_eq!(expected, before, "killed after {accesses} accesses");
            if ended {
                break;
            }
        }
    }
}

/// Routes of which each shares as many bits with the next as possible without a skip, so that each needs directories of
/// its own.
fn chained_route(number: u32) -> Route {
    let steps = u32::BITS - number.leading_zeros();
    let bits = (0..steps).fold(0u128, |bits, step| bits | u128::from(number >> step & 1) << (127 - 7 * step));
    let prefix = IpNet::new(std::net::Ipv6Addr::from(bits).into(), 128).unwrap();
    Route { vni: vni(5), prefix, target: Target::Local }
}

/// Addresses that have nothing in common.
fn scattered_route(number: u32) -> Route {
    let bits = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let prefix = match number % 2 {
        0 => IpNet::new(std::net::Ipv6Addr::from(bits).into(), 128),
        _ => IpNet::new(std::net::Ipv4Addr::from((bits >> 96) as u32).into(), 32),
    };
    Route { vni: vni(5), prefix: prefix.unwrap(), target: Target::Local }
}

/// Adds entries until one is refused. Checks that all of those fit that `total` has promised on the way.
fn check_promises(
    tables: &mut NodeTables,
    total: fn(&TableUsage) -> u64,
    mut add: impl FnMut(&mut NodeTables, u32) -> Result<bool, Error>,
) -> u64 {
    let mut promised = 0;
    for number in 1.. {
        if number % 5 == 1 {
            promised = promised.max(total(&tables.usage()));
        }
        if add(tables, number).is_err() {
            break;
        }
    }
    promised
}

/// Catches a capacity that does not count the cells that a route or VRF can take.
#[test]
fn routes_and_vrfs_fit_up_to_the_capacity_that_is_reported() {
    for cells in (200..1_500).step_by(97) {
        for route in [route, chained_route, scattered_route] {
            let mut tables = tables(cells);
            tables.upsert_vrf(&plain_vrf(5)).unwrap();
            let total = |usage: &TableUsage| usage.routes + usage.route_capacity();
            let promised = check_promises(&mut tables, total, |tables, i| tables.upsert_route(&route(i)));
            let routes = tables.usage().routes;
            assert!(promised <= routes, "{promised} routes were promised, {routes} fit into {cells} cells");
        }
        // Growth of their table takes cells, too: this one need not grow.
        let memory = Memory::anonymous(cells + 700).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes { endpoints: 1_500 }).unwrap();
        let total = |usage: &TableUsage| usage.vrfs + usage.vrf_capacity().min(usage.entry_capacity);
        let promised =
            check_promises(&mut tables, total, |tables, number| tables.upsert_vrf(&plain_vrf(number)));
        let vrfs = tables.usage().vrfs;
        assert!(promised <= vrfs, "{promised} VRFs were promised, {vrfs} fit into {cells} cells");
    }
}

/// Catches VRFs that are counted without their routes.
#[test]
fn vrfs_fit_together_with_a_few_routes() {
    for cells in (300..3_000).step_by(29) {
        let mut tables = tables(cells);
        let usage = tables.usage();
        let vrfs = usage.vrf_capacity().min(usage.entry_capacity) as u32 / 2;
        for number in 1..=vrfs {
            tables.upsert_vrf(&plain_vrf(number)).unwrap();
        }
        // Half of the memory is left for routes, 16 cells for each VRF.
        for number in 1..=vrfs {
            for i in 0..2 {
                let route = Route { vni: vni(number), ..scattered_route(i) };
                tables.upsert_route(&route).unwrap_or_else(|error| panic!("{cells} cells: {error}"));
            }
        }
    }
}
