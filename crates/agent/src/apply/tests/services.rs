//! Services and addresses of mounts: what updates leave in the tables, and what they report.

use sluice_southbound::{Service, ServiceAddress, ServiceMember};

use super::*;

fn service(id: u32, members: &[u8]) -> Service {
    let member = |number: &u8| ServiceMember {
        number: *number,
        mac: MacAddr::local(u64::from(*number) + 100),
        host: ip("192.0.2.1"),
        selected: true,
    };
    Service { id, seed: [5, 6], members: members.iter().map(member).collect() }
}

fn mount(number: u32, id: u32, v4: &str, v6: &str) -> ServiceAddress {
    ServiceAddress { vni: vni(number), service: id, ipv4: v4.parse().ok(), ipv6: v6.parse().ok() }
}

fn with_services() -> Update {
    Update {
        services: vec![service(3, &[1, 2]), service(4, &[])],
        service_addresses: vec![mount(1, 3, "10.0.0.40", "fd00::40"), mount(2, 4, "", "fd00::41")],
        ..cloud()
    }
}

/// The addresses of mounts with their services, in order.
fn mounts(applier: &Applier<TestRole>) -> Vec<(u32, String, u32)> {
    let found = applier.tables.service_addresses();
    let mut found: Vec<_> = found.map(|(vni, address, id)| (vni.get(), address.to_string(), id)).collect();
    found.sort();
    found
}

fn numbers(applier: &Applier<TestRole>, id: u32) -> Vec<u8> {
    let found = applier.tables.services().find(|service| service.id == id).unwrap();
    found.members.iter().map(|member| member.number).collect()
}

#[test]
fn updates_add_change_and_remove_services() {
    let mut applier = applier(1 << 14);
    assert_eq!(apply(&mut applier, with_services()), without_failures(10));
    let (v4, v6) = ((1, "10.0.0.40".to_owned(), 3), (1, "fd00::40".to_owned(), 3));
    assert_eq!(mounts(&applier), [v4.clone(), v6.clone(), (2, "fd00::41".to_owned(), 4)]);
    assert_eq!((numbers(&applier, 3), numbers(&applier, 4)), (vec![1, 2], vec![]));
    let changed = Update { services: vec![service(3, &[2, 7])], ..delta(11) };
    assert_eq!(apply(&mut applier, changed), without_failures(11));
    assert_eq!(numbers(&applier, 3), [2, 7]);
    let removed = Update {
        removed_service_addresses: vec![mount(2, 4, "", "fd00::41").key()],
        removed_services: vec![4],
        ..delta(12)
    };
    assert_eq!(apply(&mut applier, removed), without_failures(12));
    assert_eq!((mounts(&applier), applier.tables.services().count()), (vec![v4, v6], 1));
}

/// Catches services that a snapshot leaves behind, and one that removes an address which it has given to an endpoint.
#[test]
fn a_snapshot_removes_the_services_that_it_does_not_mention() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, with_services());
    let mut next = Update { revision: 20, ..cloud() };
    next.services = vec![service(3, &[1])];
    next.service_addresses = vec![mount(1, 3, "10.0.0.40", "")];
    next.endpoints.push(endpoint(2, "", "fd00::41", "192.0.2.1"));
    assert_eq!(apply(&mut applier, next), without_failures(20));
    assert_eq!(mounts(&applier), [(1, "10.0.0.40".to_owned(), 3)]);
    assert_eq!((numbers(&applier, 3), applier.tables.services().count()), (vec![1], 1));
    assert!(applier.tables.endpoint(vni(2), ip("fd00::41")).is_some());
    assert_eq!(apply(&mut applier, Update { revision: 21, ..cloud() }), without_failures(21));
    assert_eq!((mounts(&applier).len(), applier.tables.services().count()), (0, 0));
}

/// An address whose service has not come is named as missing, and written when the service comes.
#[test]
fn an_address_without_its_service_is_tried_again() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let early = Update { service_addresses: vec![mount(1, 3, "10.0.0.40", "")], ..delta(11) };
    assert_eq!(apply(&mut applier, early).unwrap().failed_entries, 1);
    let missing = applier.take_missing().unwrap();
    let key = EntryKey::ServiceAddress(vni(1), ip("10.0.0.40"));
    assert_eq!(missing.entries.keys().collect::<Vec<_>>(), [&key]);
    assert!(!missing.others && !applier.is_complete());
    apply(&mut applier, Update { services: vec![service(3, &[1])], ..delta(12) });
    let now = Instant::now();
    assert!(applier.retry(now).is_none(), "the first call begins the delay");
    assert!(applier.retry(now + std::time::Duration::from_secs(2)).is_some());
    assert_eq!(mounts(&applier), [(1, "10.0.0.40".to_owned(), 3)]);
    assert!(applier.is_complete() && applier.take_missing().unwrap().is_empty());
}

/// Catches watched hosts that begin a step which never ends: this role has none, so it reports them.
#[test]
fn watched_hosts_belong_to_no_step() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let hosts = Update { watched_hosts: Some(vec![ip("192.0.2.1")]), ..delta(0) };
    assert_eq!(apply(&mut applier, hosts), None);
    assert!(!applier.is_in_step());
}
