//! Allocation of addresses to instances.

use crate::Fixture;
use crate::cloud::{Cloud, conflict, instance, new, subnet};
use sluice_store::Conflict;
use sluice_types::{MacAddr, eui64_address};
use std::net::{Ipv4Addr, Ipv6Addr};

fn v4(text: &str) -> Option<Ipv4Addr> {
    Some(text.parse().unwrap())
}

fn v6(text: &str) -> Option<Ipv6Addr> {
    Some(text.parse().unwrap())
}

pub async fn allocation_order(f: Fixture) {
    let c = Cloud::with(&f, Some("10.0.0.0/29"), None).await;
    let mut given = c.one("given");
    given.ipv4 = v4("10.0.0.3");
    new(c.store.create_instance(c.vpc.id, given).await);
    assert_eq!(c.instance("a").await.ipv4, v4("10.0.0.2"));
    assert_eq!(c.instance("b").await.ipv4, v4("10.0.0.4"), "the given one is stepped over");
    assert_eq!(c.instance("c").await.ipv4, v4("10.0.0.5"));
    assert_eq!(c.instance("d").await.ipv4, v4("10.0.0.6"));
    let error = conflict(c.store.create_instance(c.vpc.id, c.one("e")).await);
    assert_eq!(error, Conflict::SubnetFull { subnet: "s1".into(), prefix: "10.0.0.0/29".into() });
}

pub async fn freed_addresses_come_last(f: Fixture) {
    let c = Cloud::with(&f, Some("10.0.0.0/29"), None).await;
    let a = c.instance("a").await;
    let b = c.instance("b").await;
    c.store.delete_instance(b.id, None).await.unwrap();
    assert_eq!(c.instance("c").await.ipv4, v4("10.0.0.4"), "not .3 again so soon");
    let mut low = Vec::new();
    for name in ["d", "e", "f"] {
        low.push(c.instance(name).await);
    }
    assert_eq!(
        low.iter().map(|i| i.ipv4).collect::<Vec<_>>(),
        [v4("10.0.0.5"), v4("10.0.0.6"), v4("10.0.0.3")]
    );
    conflict(c.store.create_instance(c.vpc.id, c.one("g")).await);
    // When the subnet is full, the lowest freed address is used first, in whatever order they were freed.
    c.store.delete_instance(low[1].id, None).await.unwrap();
    c.store.delete_instance(a.id, None).await.unwrap();
    assert_eq!(c.instance("g").await.ipv4, v4("10.0.0.2"));
    assert_eq!(c.instance("h").await.ipv4, v4("10.0.0.6"));
    conflict(c.store.create_instance(c.vpc.id, c.one("i")).await);
}

pub async fn ipv6_by_eui64(f: Fixture) {
    let c = Cloud::make(&f).await;
    let net = c.subnet.ipv6.unwrap();
    let vm = c.instance("vm").await;
    assert_eq!(vm.mac, MacAddr::local(vm.id.get()));
    assert_eq!(vm.ipv6, eui64_address(&net, vm.mac));
    let mut given = c.one("given");
    given.mac = Some("52:54:00:12:34:56".parse().unwrap());
    let given = new(c.store.create_instance(c.vpc.id, given).await);
    assert_eq!(given.ipv6, v6("fd00:1::5054:ff:fe12:3456"));
    let mut exact = c.one("exact");
    exact.ipv6 = v6("fd00:1::beef");
    assert_eq!(new(c.store.create_instance(c.vpc.id, exact).await).ipv6, v6("fd00:1::beef"));
    // Without IPv4 prefix there is no IPv4 address.
    let s6 = new(c.store.create_subnet(subnet("s6", c.vpc.id, None, Some("fd00:6::/64"))).await);
    let only = new(c.store.create_instance(c.vpc.id, instance("only", &s6, &c.host)).await);
    assert_eq!((only.ipv4, only.ipv6.is_some()), (None, true));
}

pub async fn ipv6_in_other_lengths(f: Fixture) {
    let c = Cloud::with(&f, None, Some("fd00:1::/125")).await;
    let mut given = c.one("given");
    given.ipv6 = v6("fd00:1::3");
    new(c.store.create_instance(c.vpc.id, given).await);
    let a = c.instance("a").await;
    assert_eq!(a.ipv6, v6("fd00:1::2"));
    for (name, address) in [("b", "fd00:1::4"), ("c", "fd00:1::5"), ("d", "fd00:1::6"), ("e", "fd00:1::7")] {
        assert_eq!(c.instance(name).await.ipv6, v6(address));
    }
    let error = conflict(c.store.create_instance(c.vpc.id, c.one("f")).await);
    assert_eq!(error, Conflict::SubnetFull { subnet: "s1".into(), prefix: "fd00:1::/125".into() });
    c.store.delete_instance(a.id, None).await.unwrap();
    assert_eq!(c.instance("f").await.ipv6, v6("fd00:1::2"));
}

pub async fn taken_macs_and_addresses(f: Fixture) {
    let c = Cloud::make(&f).await;
    let vm = c.instance("vm").await;
    let mut given = c.one("given");
    given.mac = Some("52:54:00:00:00:01".parse().unwrap());
    given.ipv4 = v4("10.0.0.50");
    given.ipv6 = v6("fd00:1::50");
    let given = new(c.store.create_instance(c.vpc.id, given).await);
    let mut derives = c.one("derives");
    derives.mac = Some("52:54:00:00:00:02".parse().unwrap());
    let derives = new(c.store.create_instance(c.vpc.id, derives).await);
    for owner in [&vm, &given, &derives] {
        let mut new = c.one("new");
        new.mac = Some(owner.mac);
        let error = conflict(c.store.create_instance(c.vpc.id, new).await);
        let expected = Conflict::MacTaken { mac: owner.mac.to_string(), instance: owner.name.clone() };
        assert_eq!(error, expected);
        let taken = |address: String| Conflict::AddressTaken { address, instance: owner.name.clone() };
        let mut new = c.one("new");
        new.ipv4 = owner.ipv4;
        let error = conflict(c.store.create_instance(c.vpc.id, new).await);
        assert_eq!(error, taken(owner.ipv4.unwrap().to_string()));
        let mut new = c.one("new");
        new.ipv6 = owner.ipv6;
        let error = conflict(c.store.create_instance(c.vpc.id, new).await);
        assert_eq!(error, taken(owner.ipv6.unwrap().to_string()));
    }
    // The same address in another VPC is no conflict.
    let other = c.vpc("v2").await;
    let subnet = c.subnet("s1", &other, "10.0.0.0/24").await;
    let mut same = instance("vm", &subnet, &c.host);
    (same.mac, same.ipv4) = (Some(given.mac), given.ipv4);
    new(c.store.create_instance(other.id, same).await);
}

/// The derived address belongs to an instance that requested it explicitly.
pub async fn derived_ones_are_avoided(f: Fixture) {
    let c = Cloud::make(&f).await;
    let net = c.subnet.ipv6.unwrap();
    let first = c.instance("first").await.id.get();
    // The next instance would derive this MAC, and the one after it this address.
    let mut mac = c.one("mac");
    mac.mac = Some(MacAddr::local(first + 2));
    new(c.store.create_instance(c.vpc.id, mac).await);
    let mut address = c.one("address");
    address.mac = Some("52:54:00:00:00:09".parse().unwrap());
    address.ipv6 = eui64_address(&net, MacAddr::local(first + 4));
    new(c.store.create_instance(c.vpc.id, address).await);
    let (made, _) = c.store.create_instances(c.vpc.id, c.some(0, 10)).await.unwrap();
    for vm in &made {
        assert_eq!(vm.mac, MacAddr::local(vm.id.get()));
        assert_ne!(vm.mac, MacAddr::local(first + 2));
        assert_ne!(vm.mac, MacAddr::local(first + 4));
        assert_eq!(vm.ipv6, eui64_address(&net, vm.mac));
    }
    // A given MAC whose derived address another instance has.
    let mut holder = c.one("holder");
    holder.ipv6 = v6("fd00:1::5054:ff:fe00:aa");
    new(c.store.create_instance(c.vpc.id, holder).await);
    let mut new_mac = c.one("new");
    new_mac.mac = Some("52:54:00:00:00:aa".parse().unwrap());
    let error = conflict(c.store.create_instance(c.vpc.id, new_mac).await);
    let expected =
        Conflict::AddressTaken { address: "fd00:1::5054:ff:fe00:aa".into(), instance: "holder".into() };
    assert_eq!(error, expected);
}

pub async fn deletion(f: Fixture) {
    let c = Cloud::make(&f).await;
    c.store.create_instances(c.vpc.id, c.some(0, 2000)).await.unwrap_err(); // more than a /24
    let big = c.subnet("big", &c.vpc, "10.1.0.0/16").await;
    let new = (0..2000).map(|i| instance(&format!("vm-{i}"), &big, &c.host)).collect();
    let (made, _) = c.store.create_instances(c.vpc.id, new).await.unwrap();
    let started = std::time::Instant::now();
    for vm in made.iter().take(20) {
        c.store.delete_instance(vm.id, None).await.unwrap();
    }
    assert!(started.elapsed().as_millis() < 20 * 100, "{:?} for 20", started.elapsed());
    let mut again = instance("again", &big, &c.host);
    (again.mac, again.ipv4) = (Some(made[0].mac), made[0].ipv4);
    crate::cloud::new(c.store.create_instance(c.vpc.id, again).await);
}
