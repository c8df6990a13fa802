//! Secondary addresses, delegated prefixes, address pairs and their claims, spoofing protection and QoS.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, host, instance, last, new, peering, snapshot_instances, subnet};
use sluice_store::{
    AddressCounts, Change, Claim, Conflict, Created, Instance, InstanceChange, InstanceOptions, InstancesOf,
    LostInstance, NewInstance, NodeId, NodeState, PortSettings, ReleaseOf, RouteTarget, Store, StoreError,
    StoredPair,
};
use sluice_types::{AddressPair, HostId, InstanceId, IpNet, MacAddr, Qos};
use std::net::IpAddr;
use std::time::{Duration, Instant};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn secondary(addresses: &[&str]) -> PortSettings {
    let addresses = addresses.iter().map(|text| ip(text)).collect();
    PortSettings { secondary_addresses: Some(addresses), ..PortSettings::default() }
}

fn delegated(prefixes: &[&str]) -> PortSettings {
    let prefixes = prefixes.iter().map(|text| text.parse().unwrap()).collect();
    PortSettings { delegated_prefixes: Some(prefixes), ..PortSettings::default() }
}

fn pairs(texts: &[&str]) -> PortSettings {
    let all: Vec<AddressPair> = texts.iter().map(|text| text.parse().unwrap()).collect();
    PortSettings { address_pairs: Some(all), ..PortSettings::default() }
}

async fn set(s: &Store, id: InstanceId, settings: PortSettings) -> Instance {
    s.update_instance(id, &settings, None).await.unwrap()
}

/// The text with which a change is refused.
async fn refused(s: &Store, id: InstanceId, settings: PortSettings) -> String {
    let before = s.revision().await.unwrap();
    let text = conflict(s.update_instance(id, &settings, None).await).to_string();
    assert_eq!(s.revision().await.unwrap(), before, "{text}");
    text
}

async fn enroll(s: &Store, node: NodeId) {
    let state = NodeState { node, acknowledged_revision: 0, last_seen_ms: 0, failures: vec![] };
    s.save_node_states(&[state]).await.unwrap();
}

async fn release_all(s: &Store) {
    for removal in s.removals(ALL).await.unwrap() {
        let of = ReleaseOf { nodes: removal.nodes, up_to: u64::MAX >> 1, deleted_before_ms: u64::MAX >> 1 };
        s.release_removals(&of).await.unwrap();
    }
}

pub async fn options_are_stored_whole(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let mac = "00:00:5e:00:01:05".parse::<MacAddr>().unwrap();
    let settings = PortSettings {
        secondary_addresses: Some(vec![ip("fd00:1::77"), ip("10.0.0.77")]),
        delegated_prefixes: Some(vec!["10.0.0.128/28".parse().unwrap(), "0.0.0.0/0".parse().unwrap()]),
        address_pairs: Some(vec![
            AddressPair { address: ip("10.0.0.99"), mac: Some(mac) },
            AddressPair { address: ip("fd00:1::99"), mac: None },
        ]),
        spoofing_protection: Some(false),
        qos: Some(Qos { dscp: Some(46), rate_mbps: Some(1000) }),
        network_class: None,
    };
    let request = NewInstance { settings: settings.clone(), ..c.one("vm") };
    let vm = new(s.create_instance(c.vpc.id, request.clone()).await);
    let expected = InstanceOptions {
        secondary: vec![ip("10.0.0.77"), ip("fd00:1::77")],
        delegated: vec!["0.0.0.0/0".parse().unwrap(), "10.0.0.128/28".parse().unwrap()],
        pairs: vec![
            StoredPair { address: ip("10.0.0.99"), mac: Some(mac), held_since: None },
            StoredPair { address: ip("fd00:1::99"), mac: None, held_since: None },
        ],
        unprotected: true,
        qos: Qos { dscp: Some(46), rate_mbps: Some(1000) },
        network_class: None,
        member: None,
    };
    assert_eq!(vm.options, expected);
    assert_eq!(s.instance(vm.id).await.unwrap(), vm);
    assert_eq!(snapshot_instances(s, InstancesOf::All).await, std::slice::from_ref(&vm));
    let [Change::InstancesCreated { instances, .. }] = &last(s).await[..] else { panic!("not created") };
    assert_eq!(instances[..], *std::slice::from_ref(&vm));
    let counts = AddressCounts { ipv4: 3, ipv6: 3, prefixes: 2 };
    assert_eq!(s.address_counts().await.unwrap().1, [(c.vpc.id, counts)]);

    // The same request, in another order, finds it; one without these fields, too.
    assert_eq!(s.create_instance(c.vpc.id, request).await.unwrap(), Created::Existing(vm.clone()));
    assert_eq!(s.create_instance(c.vpc.id, c.one("vm")).await.unwrap(), Created::Existing(vm.clone()));
    let other = NewInstance { settings: secondary(&["10.0.0.78"]), ..c.one("vm") };
    let text = conflict(s.create_instance(c.vpc.id, other.clone()).await).to_string();
    assert!(text.contains("secondary_addresses is 10.0.0.77,fd00:1::77, not 10.0.0.78"), "{text}");
    let twice = vec![NewInstance { name: "two".into(), ..other }, c.one("two")];
    assert_eq!(
        s.create_instances(c.vpc.id, twice.clone()).await.unwrap().0.len(),
        1,
        "the second says nothing"
    );
    let differing = vec![
        NewInstance { name: "three".into(), settings: secondary(&["10.0.0.79"]), ..c.one("three") },
        NewInstance { settings: secondary(&["10.0.0.80"]), ..c.one("three") },
    ];
    assert!(s.create_instances(c.vpc.id, differing).await.is_err());

    // A change of one field keeps the others, and no change takes no revision.
    let open = PortSettings { spoofing_protection: Some(true), ..PortSettings::default() };
    let changed = s.update_instance(vm.id, &open, Some(vm.revision)).await.unwrap();
    assert_eq!(changed.options, InstanceOptions { unprotected: false, ..expected.clone() });
    let change = InstanceChange { before: expected, after: changed.clone() };
    let told =
        Change::InstancesChanged { vpc: c.vpc.clone(), hosts: vec![c.host.clone()], changes: vec![change] };
    assert_eq!(last(s).await, [told]);
    assert_eq!(set(s, vm.id, open.clone()).await, changed);
    assert!(matches!(
        s.update_instance(vm.id, &open, Some(vm.revision)).await,
        Err(StoreError::Stale { .. })
    ));
}

pub async fn values_that_no_instance_can_have(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let vm = c.instance("vm").await.id;
    let own = s.instance(vm).await.unwrap().ipv4.unwrap().to_string();
    let many: Vec<String> = (100..117).map(|last| format!("10.0.0.{last}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let wide: Vec<String> = (0..33).map(|number| format!("10.{}.0.0/16", number + 1)).collect();
    let wide: Vec<&str> = wide.iter().map(String::as_str).collect();
    let qos =
        |dscp, rate_mbps| PortSettings { qos: Some(Qos { dscp, rate_mbps }), ..PortSettings::default() };
    for (settings, part) in [
        (secondary(&many), "at most 16"),
        (pairs(&many), "at most 16"),
        (delegated(&wide), "at most 32"),
        (secondary(&["10.0.0.9", "10.0.0.9"]), "10.0.0.9 is listed twice"),
        (pairs(&["10.0.0.9", "10.0.0.9=02:00:00:00:00:01"]), "10.0.0.9 is listed twice"),
        (secondary(&["10.0.1.9"]), "outside the prefix 10.0.0.0/24"),
        (secondary(&["10.0.0.1"]), "router's address"),
        (pairs(&["fd00:1::1"]), "router's address"),
        (secondary(&["10.0.0.255"]), "broadcast address"),
        (pairs(&["10.0.0.9=01:00:00:00:00:01"]), "not a unicast address"),
        (pairs(&["10.0.0.9=02:53:4c:00:00:01"]), "reserved for the router"),
        (secondary(&[&own]), "already used by instance `vm`"),
        (pairs(&[&own]), "already used by instance `vm`"),
        (delegated(&["10.0.0.9/32"]), "secondary address"),
        (delegated(&["fd00:1::9/128"]), "secondary address"),
        (delegated(&["10.0.0.9/28"]), "did you mean 10.0.0.0/28"),
        (delegated(&["224.0.0.0/4"]), "multicast"),
        (delegated(&["127.0.0.0/16"]), "loopback"),
        (delegated(&["fe80::/64"]), "link-local"),
        (delegated(&["ff00::/8"]), "multicast"),
        (delegated(&["10.0.0.0/28"]), "10.0.0.1 of the router of subnet `s1`"),
        (delegated(&["10.0.0.0/24"]), "10.0.0.1 of the router of subnet `s1`"),
        (delegated(&["fd00:1::/64"]), "fd00:1::1 of the router of subnet `s1`"),
        (delegated(&["fd00:1::ff:fe00:0/104"]), "EUI-64"),
        (delegated(&["10.0.0.128/28", "10.0.0.128/29"]), "10.0.0.128/29 overlaps 10.0.0.128/28"),
        (qos(Some(64), None), "DSCP 64"),
        (qos(None, Some(0)), "0 Mbit/s"),
        (qos(None, Some(400_001)), "400001 Mbit/s"),
    ] {
        let text = refused(s, vm, settings).await;
        assert!(text.contains(part), "{text}, not {part}");
    }
    let own_prefix =
        PortSettings { address_pairs: pairs(&["10.0.0.130"]).address_pairs, ..delegated(&["10.0.0.128/28"]) };
    assert!(refused(s, vm, own_prefix).await.contains("delegated to instance `vm`"));
    let both = PortSettings { address_pairs: pairs(&["10.0.0.9"]).address_pairs, ..secondary(&["10.0.0.9"]) };
    assert!(refused(s, vm, both).await.contains("already used by instance `vm`"));
    // Nested outside of subnets, around subnets, and around the address of the instance itself.
    let good = [
        "0.0.0.0/0",
        "0.0.0.0/1",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "172.16.1.0/24",
        "::/0",
        "fd00:1:0:0:1::/80",
    ];
    assert_eq!(set(s, vm, delegated(&good)).await.options.delegated.len(), good.len());
    assert_eq!(own, "10.0.0.2");
    set(s, vm, delegated(&["10.0.0.2/31"])).await;
}

pub async fn macs_of_pairs_are_no_instances_own(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let (a, b) = (c.instance("a").await, c.instance("b").await);
    let mac = "02:00:00:00:00:77".parse::<MacAddr>().unwrap();
    let with_mac = |name: &str, mac| NewInstance { mac: Some(mac), ..c.one(name) };
    let given = new(s.create_instance(c.vpc.id, with_mac("given", mac)).await);
    for (other, mac) in [("b", b.mac), ("given", given.mac)] {
        let text = refused(s, a.id, pairs(&[&format!("10.0.0.99={mac}")])).await;
        assert_eq!(text, format!("MAC {mac} is already used by instance `{other}` in this VPC"));
    }
    // The same MAC address in several instances is right, and so is an instance's own.
    let vrrp = "00:00:5e:00:01:05".parse::<MacAddr>().unwrap();
    for (vm, own) in [(&a, "10.0.0.91"), (&b, "10.0.0.92")] {
        set(s, vm.id, pairs(&[&format!("10.0.0.99={vrrp}"), &format!("{own}={}", vm.mac)])).await;
    }
    let text = conflict(s.create_instance(c.vpc.id, with_mac("c", vrrp)).await).to_string();
    let expected =
        |name: &str| format!("MAC {vrrp} is in the address pairs of instance `{name}` in this VPC");
    assert!(text == expected("a") || text == expected("b"), "{text}");
    // Two instances of one request.
    let pair = NewInstance { settings: pairs(&["10.0.0.98=02:00:00:00:00:78"]), ..c.one("d") };
    let both = vec![pair, with_mac("e", "02:00:00:00:00:78".parse().unwrap())];
    let text = s.create_instances(c.vpc.id, both).await.unwrap_err().to_string();
    assert!(text.contains("MAC 02:00:00:00:00:78 is already used by instance `e`"), "{text}");
    // A MAC address that the next instance would derive from its id.
    let next = MacAddr::local(given.id.get() + 1);
    set(s, given.id, pairs(&[&format!("10.0.0.97={next}")])).await;
    let made = c.instance("f").await;
    assert_eq!((made.id.get(), made.mac == next), (given.id.get() + 2, false));
    // Another VPC is another network.
    let vpc = c.vpc("other").await;
    let subnet = c.subnet("other", &vpc, "10.9.0.0/24").await;
    let elsewhere = NewInstance { mac: Some(vrrp), ..instance("g", &subnet, &c.host) };
    assert_eq!(new(s.create_instance(vpc.id, elsewhere).await).mac, vrrp);
}

pub async fn what_another_has(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let (a, b) = (c.instance("a").await, c.instance("b").await);
    let mac = MacAddr::from_u64(0x0642_0000_0001);
    let given = new(s.create_instance(c.vpc.id, NewInstance { mac: Some(mac), ..c.one("m") }).await);
    let other = c.subnet("other", &c.vpc, "10.9.0.0/24").await;
    let theirs = new(s.create_instance(c.vpc.id, instance("t", &other, &c.host)).await);
    let all = PortSettings {
        address_pairs: pairs(&["10.0.0.60", "10.0.0.61=00:00:5e:00:01:05"]).address_pairs,
        delegated_prefixes: delegated(&["10.0.0.128/28", "172.16.0.0/12", "fd00:1::4000:0:0:0/72"])
            .delegated_prefixes,
        ..secondary(&["10.0.0.50", "fd00:1::50"])
    };
    set(s, a.id, all).await;
    let (a4, a6, m6) =
        (a.ipv4.unwrap().to_string(), a.ipv6.unwrap().to_string(), given.ipv6.unwrap().to_string());
    let around = format!("{}/80", m6.parse::<std::net::Ipv6Addr>().unwrap());
    let around = around.parse::<IpNet>().unwrap().trunc().to_string();
    for (settings, part) in [
        (secondary(&[&a4]), "already used by instance `a`"),
        (secondary(&[&a6]), "already used by instance `a`"),
        (pairs(&[&a4]), "already used by instance `a`"),
        (secondary(&[&m6]), "already used by instance `m`"),
        (secondary(&["10.0.0.50"]), "already used by instance `a`"),
        (pairs(&["fd00:1::50"]), "already used by instance `a`"),
        (secondary(&["10.0.0.60"]), "in the address pairs of instance `a`"),
        (
            secondary(&["10.0.0.143"]),
            "10.0.0.143 is inside 10.0.0.128/28, which is delegated to instance `a`",
        ),
        (pairs(&["fd00:1::4000:0:0:9"]), "which is delegated to instance `a`"),
        (pairs(&["10.0.0.61"]), "10.0.0.61=00:00:5e:00:01:05 of instance `a`"),
        (pairs(&["10.0.0.60=00:00:5e:00:01:05"]), "differs from 10.0.0.60 of instance `a`"),
        (delegated(&["10.0.0.128/28"]), "overlaps 10.0.0.128/28, which is delegated to instance `a`"),
        (delegated(&["10.0.0.136/29"]), "overlaps 10.0.0.128/28"),
        (delegated(&["10.0.0.128/25"]), "overlaps 10.0.0.128/28"),
        (delegated(&["172.16.0.0/12"]), "overlaps 172.16.0.0/12"),
        (delegated(&["10.0.0.48/29"]), "contains 10.0.0.50 of instance `a`"),
        (delegated(&["10.0.0.56/29"]), "contains 10.0.0.60 of instance `a`"),
        (delegated(&["10.9.0.2/31"]), "contains 10.9.0.2 of instance `t`"),
        (delegated(&[&around]), "of instance `m`"),
    ] {
        let text = refused(s, b.id, settings).await;
        assert!(text.contains(part), "{text}, not {part}");
    }
    // Inside the other's prefix outside of subnets, in a subnet of another instance, and pairs that agree.
    let good = PortSettings {
        delegated_prefixes: delegated(&["172.16.1.0/24", "10.9.0.16/28"]).delegated_prefixes,
        ..pairs(&["10.0.0.60", "10.0.0.61=00:00:5e:00:01:05"])
    };
    set(s, b.id, good).await;
    assert!(refused(s, theirs.id, secondary(&["10.9.0.17"])).await.contains("delegated to instance `b`"));

    // New instances.
    for (ipv4, ipv6, part) in [
        (Some("10.0.0.50"), None, "already used by instance `a`"),
        (Some("10.0.0.60"), None, "in the address pairs of instance `"),
        (Some("10.0.0.130"), None, "inside 10.0.0.128/28"),
        (None, Some("fd00:1::4000:0:0:7"), "inside fd00:1:0:0:4000::/72"),
    ] {
        let (ipv4, ipv6) = (ipv4.map(|a| a.parse().unwrap()), ipv6.map(|a| a.parse().unwrap()));
        let text =
            conflict(s.create_instance(c.vpc.id, NewInstance { ipv4, ipv6, ..c.one("n") }).await).to_string();
        assert!(text.contains(part), "{text}, not {part}");
    }
    let derived = NewInstance { mac: Some(MacAddr::from_u64(0x4200_0000_0001)), ..c.one("n") };
    let text = conflict(s.create_instance(c.vpc.id, derived).await).to_string();
    assert!(text.contains("inside fd00:1:0:0:4000::/72"), "{text}");
}

pub async fn routes_and_subnets_exclude_the_same_prefix(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let vm = c.instance("vm").await.id;
    let v2 = c.vpc("v2").await;
    c.subnet("there", &v2, "10.2.0.0/24").await;
    new(s.create_route(c.route(&c.vpc, "172.20.0.0/16", RouteTarget::Drop).await).await);
    assert!(refused(s, vm, delegated(&["172.20.0.0/16"])).await.contains("route"));
    set(s, vm, delegated(&["172.20.1.0/24", "10.2.0.0/24", "192.168.1.0/24"])).await;
    let text =
        conflict(s.create_route(c.route(&c.vpc, "172.20.1.0/24", RouteTarget::Drop).await).await).to_string();
    assert!(text.contains("delegated to instance `vm`"), "{text}");
    for (a, b) in [(&c.vpc, &v2), (&v2, &c.vpc)] {
        let text = conflict(s.create_peering(peering("p", a, b)).await).to_string();
        assert!(text.contains("subnet `there`") && text.contains("instance `vm`"), "{text}");
    }
    set(s, vm, delegated(&["192.168.1.0/24", "10.2.0.0/25"])).await;
    c.peer("p", &c.vpc, &v2).await;
    assert!(
        refused(s, vm, delegated(&["10.2.0.0/24"])).await.contains("subnet `there` of the peered VPC `v2`")
    );
    let text = conflict(s.create_subnet(subnet("n", v2.id, Some("192.168.1.0/24"), None)).await).to_string();
    assert!(text.contains("delegated to instance `vm`"), "{text}");
    for net in ["192.168.1.0/24", "192.168.0.0/16"] {
        let text = conflict(s.create_subnet(subnet("n", c.vpc.id, Some(net), None)).await).to_string();
        assert!(text.contains("contains 192.168.1.0/24, which is delegated to instance `vm`"), "{text}");
    }
    // A prefix may contain whole subnets, also new ones.
    set(s, vm, delegated(&["192.168.0.0/16"])).await;
    let inner = new(s.create_subnet(subnet("n", c.vpc.id, Some("192.168.7.0/24"), None)).await);
    set(s, vm, delegated(&["192.168.7.128/25"])).await;
    let in_use = conflict(s.delete_subnet(inner.id, None).await).to_string();
    assert!(in_use.contains("192.168.7.128/25"), "{in_use}");
}

pub async fn allocation_avoids_them(f: Fixture) {
    let c = Cloud::with(&f, Some("10.0.0.0/28"), Some("fd00:1::/120")).await;
    let s = &c.store;
    let all = PortSettings {
        delegated_prefixes: delegated(&["10.0.0.4/30", "fd00:1::4/126", "10.0.0.0/8"]).delegated_prefixes,
        address_pairs: pairs(&["10.0.0.9", "fd00:1::9"]).address_pairs,
        ..secondary(&["10.0.0.3", "fd00:1::3"])
    };
    let vm = new(s.create_instance(c.vpc.id, NewInstance { settings: all, ..c.one("vm") }).await);
    assert_eq!(vm.ipv4, Some([10, 0, 0, 2].into()));
    let (made, _) = s.create_instances(c.vpc.id, c.some(0, 3)).await.unwrap();
    let v4: Vec<u8> = made.iter().map(|one| one.ipv4.unwrap().octets()[3]).collect();
    let v6: Vec<u8> = made.iter().map(|one| one.ipv6.unwrap().octets()[15]).collect();
    assert_eq!((v4, v6), (vec![8, 10, 11], vec![8, 10, 11]));
    // In one bulk, what is assigned comes before what is allocated.
    let mut bulk = c.some(3, 2);
    bulk[1].settings = secondary(&["10.0.0.12", "fd00:1::12"]);
    let (made, _) = s.create_instances(c.vpc.id, bulk).await.unwrap();
    assert_eq!(made.iter().map(|one| one.ipv4.unwrap().octets()[3]).collect::<Vec<_>>(), [13, 14]);
    // What is given up is allocated again, when nothing else is free.
    let full = s.create_instance(c.vpc.id, c.one("full")).await;
    assert!(matches!(conflict(full), Conflict::SubnetFull { .. }));
    set(s, vm.id, delegated(&[])).await;
    let (made, _) = s.create_instances(c.vpc.id, c.some(5, 4)).await.unwrap();
    assert_eq!(made.iter().map(|one| one.ipv4.unwrap().octets()[3]).collect::<Vec<_>>(), [4, 5, 6, 7]);
    s.delete_instance(vm.id, None).await.unwrap();
    let (made, _) = s.create_instances(c.vpc.id, c.some(9, 3)).await.unwrap();
    assert_eq!(made.iter().map(|one| one.ipv4.unwrap().octets()[3]).collect::<Vec<_>>(), [2, 3, 9]);
}

pub async fn derived_addresses_avoid_them(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let vm = c.instance("vm").await;
    let next = vm.id.get() + 1;
    let derived = |id| sluice_types::eui64_address(&c.subnet.ipv6.unwrap(), MacAddr::local(id)).unwrap();
    set(s, vm.id, secondary(&[&derived(next).to_string()])).await;
    let second = c.instance("second").await;
    assert_eq!((second.id.get(), second.ipv6), (next + 1, Some(derived(next + 1))));
}

pub async fn addresses_are_held(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    enroll(s, NodeId::Host(c.host.id)).await;
    let (a, b) = (c.instance("a").await.id, c.instance("b").await.id);
    let all = PortSettings {
        delegated_prefixes: delegated(&["10.0.0.128/28", "0.0.0.0/0"]).delegated_prefixes,
        address_pairs: pairs(&["10.0.0.60", "10.0.0.61"]).address_pairs,
        ..secondary(&["10.0.0.50"])
    };
    set(s, a, all.clone()).await;
    set(s, b, pairs(&["10.0.0.61"])).await;
    let none = PortSettings {
        delegated_prefixes: Some(vec![]),
        address_pairs: Some(vec![]),
        secondary_addresses: Some(vec![]),
        ..PortSettings::default()
    };
    let revision = set(s, a, none.clone()).await.revision;
    let removal = s.removal(revision).await.unwrap().unwrap();
    assert_eq!((removal.kind.as_str(), removal.name.as_str()), ("former addresses of instance", "a"));
    for (settings, what) in [
        (secondary(&["10.0.0.50"]), "10.0.0.50"),
        (pairs(&["10.0.0.60"]), "10.0.0.60"),
        (secondary(&["10.0.0.130"]), "10.0.0.128/28"),
        (delegated(&["10.0.0.136/29"]), "10.0.0.128/28"),
        (delegated(&["10.0.0.48/29"]), "10.0.0.50"),
        (delegated(&["0.0.0.0/0"]), "0.0.0.0/0"),
    ] {
        let text = refused(s, b, settings).await;
        assert!(text.starts_with(&format!("{what} is held until")) && text.contains("`a`"), "{text}");
    }
    for address in ["10.0.0.50", "10.0.0.128"] {
        let taken = NewInstance { ipv4: address.parse().ok(), ..c.one("n") };
        assert!(
            matches!(conflict(s.create_instance(c.vpc.id, taken).await), Conflict::Held { .. }),
            "{address}"
        );
    }
    // The other still lists this one. A held prefix that contains the subnet holds none of its addresses.
    set(s, a, pairs(&["10.0.0.61"])).await;
    c.instance("third").await;
    set(s, b, delegated(&["0.0.0.0/1", "10.0.0.192/28"])).await;
    release_all(s).await;
    set(s, b, all).await;
    // The deletion of an instance holds the same.
    let revision = s.delete_instance(b, None).await.unwrap();
    assert!(s.removal(revision).await.unwrap().is_some());
    assert!(refused(s, a, secondary(&["10.0.0.50"])).await.contains("instance `b`"));
    assert!(refused(s, a, delegated(&["10.0.0.136/29"])).await.contains("instance `b`"));
    release_all(s).await;
    set(s, a, secondary(&["10.0.0.50"])).await;
}

/// Catches an address of a pair that is free for others while a host of an instance which gave it up earlier may still
/// have it.
pub async fn an_address_of_a_pair_is_held_until_all_hosts_have_removed_it(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let second = new(s.create_host(host("h2", "192.0.2.2")).await);
    let hosts = [NodeId::Host(c.host.id), NodeId::Host(second.id)];
    for node in hosts {
        enroll(s, node).await;
    }
    let (a, other) = (c.instance("a").await.id, c.instance("other").await.id);
    let b = new(s.create_instance(c.vpc.id, instance("b", &c.subnet, &second)).await).id;
    for shared in ["10.0.0.60", "fd00:1::60"] {
        set(s, a, pairs(&[shared])).await;
        set(s, b, pairs(&[shared])).await;
        let first = set(s, a, pairs(&[])).await.revision;
        assert_eq!(s.removal(first).await.unwrap().unwrap().nodes, hosts[..1]);
        // Others may share it, and nothing else may have it.
        set(s, other, pairs(&[shared])).await;
        set(s, other, pairs(&[])).await;
        assert!(
            refused(s, other, secondary(&[shared])).await.contains("in the address pairs of instance `b`")
        );
        let second = set(s, b, pairs(&[])).await.revision;
        assert_eq!(s.removal(second).await.unwrap().unwrap().nodes, hosts);
        // The removals that await the first host alone have ended.
        let of = ReleaseOf { nodes: hosts[..1].to_vec(), up_to: second, deleted_before_ms: u64::MAX };
        assert_eq!(s.release_removals(&of).await.unwrap(), 2);
        for settings in [secondary(&[shared]), pairs(&[shared])] {
            let text = refused(s, other, settings).await;
            assert!(text.starts_with(&format!("{shared} is held until")), "{text}");
        }
        release_all(s).await;
        set(s, other, secondary(&[shared])).await;
    }
}

pub async fn claims_have_one_holder(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let there = new(s.create_host(host("h2", "192.0.2.2")).await);
    let a = c.instance("a").await;
    let b = new(s.create_instance(c.vpc.id, instance("b", &c.subnet, &there)).await);
    let (here, address) = (c.host.id, ip("10.0.0.60"));
    let reason = async |host: HostId, id, address| {
        conflict(s.claim_address(host, id, address, Instant::now()).await).to_string()
    };
    assert!(reason(here, a.id, address).await.contains("does not list it"));
    set(s, a.id, pairs(&["10.0.0.60=00:00:5e:00:01:05", "fd00:1::60"])).await;
    let b1 = set(s, b.id, pairs(&["10.0.0.60=00:00:5e:00:01:05"])).await;
    assert!(reason(there.id, a.id, address).await.contains("is on another host"));
    let absent = s.claim_address(here, InstanceId::new(999), address, Instant::now()).await;
    assert!(matches!(absent, Err(StoreError::NotFound { .. })));

    let held = |instance: &Instance| -> Vec<bool> {
        instance.options.pairs.iter().map(StoredPair::is_held).collect()
    };
    let Claim::Taken(first) = s.claim_address(here, a.id, address, Instant::now()).await.unwrap() else {
        panic!("not taken")
    };
    assert_eq!(held(&first), [true, false]);
    let before = s.revision().await.unwrap();
    assert_eq!(
        (before, s.claim_address(here, a.id, address, Instant::now()).await.unwrap()),
        (first.revision, Claim::Held)
    );
    assert_eq!(s.revision().await.unwrap(), before);

    let Claim::Taken(second) = s.claim_address(there.id, b.id, address, Instant::now()).await.unwrap() else {
        panic!("not taken")
    };
    let old = s.instance(a.id).await.unwrap();
    assert_eq!((held(&old), held(&second), old.revision), (vec![false, false], vec![true], before + 1));
    let change = |before: &Instance, after: &Instance| InstanceChange {
        before: before.options.clone(),
        after: after.clone(),
    };
    let told = Change::InstancesChanged {
        vpc: c.vpc.clone(),
        hosts: vec![c.host.clone(), there.clone()],
        changes: vec![change(&first, &old), change(&b1, &second)],
    };
    assert_eq!(last(s).await, [told]);
    // A claim that comes late, because it waited for a stream, is older than the holder's.
    let late = s.claim_address(here, a.id, address, Instant::now() - Duration::from_secs(60)).await;
    assert_eq!((late.unwrap(), s.revision().await.unwrap()), (Claim::Late, before + 1));
    // Another change keeps the holder; without the pair, or the instance, the address has no holder.
    let wide = set(s, b.id, pairs(&["10.0.0.60=00:00:5e:00:01:05", "10.0.0.61"])).await;
    assert_eq!(held(&wide), [true, false]);
    set(s, b.id, pairs(&[])).await;
    assert!(matches!(s.claim_address(here, a.id, address, Instant::now()).await, Ok(Claim::Taken(_))));
    s.delete_instance(a.id, None).await.unwrap();
    let again = set(s, b.id, pairs(&["10.0.0.60"])).await;
    assert_eq!(held(&again), [false]);
    assert!(matches!(s.claim_address(there.id, b.id, address, Instant::now()).await, Ok(Claim::Taken(_))));
    // It moves with its host.
    s.move_instance(b.id, here, None).await.unwrap();
    assert!(reason(there.id, b.id, address).await.contains("is on another host"));
    assert_eq!(s.claim_address(here, b.id, address, Instant::now()).await.unwrap(), Claim::Held);
}

pub async fn adopted_instances_have_them_again(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    enroll(s, NodeId::Host(c.host.id)).await;
    let settings = PortSettings {
        delegated_prefixes: delegated(&["10.0.0.128/28"]).delegated_prefixes,
        address_pairs: pairs(&["10.0.0.60"]).address_pairs,
        ..secondary(&["10.0.0.50"])
    };
    let vm = new(s.create_instance(c.vpc.id, NewInstance { settings: settings.clone(), ..c.one("a") }).await);
    // With the MAC address that it has itself.
    let own = pairs(&["10.0.0.60", &format!("10.0.0.91={}", vm.mac)]).address_pairs;
    let settings = PortSettings { address_pairs: own, ..settings };
    let vm = set(s, vm.id, settings.clone()).await;
    s.delete_instance(vm.id, None).await.unwrap();
    let (id, vni, host, mac, ipv4, ipv6) = (vm.id, c.vpc.vni, c.host.id, vm.mac, vm.ipv4, vm.ipv6);
    let lost =
        LostInstance { id, name: "a".into(), vni, host, mac, ipv4, ipv6, security_groups: None, settings };
    assert_eq!(s.adopt_instance(lost).await.unwrap().options, vm.options);
}

/// A database of version 10 or 11 with an instance, whose columns behind `derived` are `more`.
async fn with_instance(version: usize, more: &str) -> (tempfile::TempDir, std::sync::Arc<Store>, Instance) {
    let columns = if version > 10 { ", options" } else { "" };
    let rows = format!(
        "INSERT INTO meta (id, database_id, revision, next_id, next_vni, compacted) VALUES (1, 77, 9, 40, 4, 0);
         INSERT INTO tenants VALUES (1, 't', 1);
         INSERT INTO clusters (id, name, vips, revision) VALUES (2, 'c', '0=192.0.2.100', 2);
         INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, revision) VALUES (4, 'v', 1, 1, 2, 1430, 4);
         INSERT INTO hosts VALUES (5, 'h', '192.0.2.1', 1, 5);
         INSERT INTO subnets (id, name, vpc, ipv4, ipv6, dns, revision) VALUES (6, 's', 4, '10.0.0.0/24', NULL, '', 6);
         INSERT INTO instances (id, name, vpc, subnet, host, mac, ipv4, ipv6, revision, derived{columns})
            VALUES (7, 'i', 4, 6, 5, 2199023255559, 167772162, NULL, 7, 1{more});
         INSERT INTO outbox VALUES (9, 0, 1, x'0200');"
    );
    let (dir, s) = crate::old_database::migrated(version, &rows).await;
    let instance = s.instance(InstanceId::new(7)).await.unwrap();
    (dir, s, instance)
}

/// In a database of version 10, instances have no options.
pub async fn older_instances_have_no_options() {
    let (_dir, s, old) = with_instance(10, "").await;
    assert!(s.outbox(8, 10).await.is_err(), "rows of the old encoding are removed");
    assert_eq!(old.options, InstanceOptions::default());
    let changed = set(&s, old.id, secondary(&["10.0.0.9"])).await;
    assert_eq!(changed.options.secondary, [ip("10.0.0.9")]);
}

/// Catches a field of the options without a default: rows that are older than it could not be read.
pub async fn options_without_a_newer_field_are_read() {
    let (_dir, _, smallest) = with_instance(11, ", '{}'").await;
    assert_eq!(smallest.options, InstanceOptions::default());
    let (_dir, _, pair) = with_instance(11, r#", '{"pairs": [{"address": "10.0.0.9"}], "qos": {}}'"#).await;
    let pairs = vec![StoredPair { address: ip("10.0.0.9"), mac: None, held_since: None }];
    assert_eq!(pair.options, InstanceOptions { pairs, ..InstanceOptions::default() });
}
