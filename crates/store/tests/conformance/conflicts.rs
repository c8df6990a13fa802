//! Every refusal, and the object that its error names.

use crate::Fixture;
use crate::cloud::{Cloud, conflict, host, instance, new, peering, subnet, vpc, vpc_update};
use sluice_store::{Conflict, NewGateway, NewRoute, Options, RouteTarget, StoreError, open_with};
use sluice_types::{
    ClusterId, GatewayId, HostId, InstanceId, PeeringId, RouteId, RouteTableId, SubnetId, TenantId, Vni,
    VpcId,
};
use std::net::IpAddr;

pub async fn prefixes(f: Fixture) {
    let c = Cloud::make(&f).await;
    for (v4, v6, given, existing) in [
        (Some("10.0.0.128/25"), None, "10.0.0.128/25", "10.0.0.0/24"),
        (Some("10.0.0.0/8"), None, "10.0.0.0/8", "10.0.0.0/24"),
        (None, Some("fd00:1::/48"), "fd00:1::/48", "fd00:1::/64"),
        (Some("10.9.0.0/24"), Some("fd00:1::/64"), "fd00:1::/64", "fd00:1::/64"),
    ] {
        let error = conflict(c.store.create_subnet(subnet("s2", c.vpc.id, v4, v6)).await);
        let expected =
            Conflict::PrefixOverlap { given: given.into(), existing: existing.into(), subnet: "s1".into() };
        assert_eq!(error, expected);
    }
    for (v4, v6) in [
        (None, None),
        (Some("10.1.0.1/24"), None),
        (Some("10.1.0.0/31"), None),
        (Some("127.0.0.0/24"), None),
        (Some("0.0.0.0/0"), None),
        (None, Some("2001:db8::/127")),
        (None, Some("fe80::/64")),
    ] {
        let error = conflict(c.store.create_subnet(subnet("s2", c.vpc.id, v4, v6)).await);
        assert!(matches!(error, Conflict::Invalid { .. }), "{error}");
    }
    let mut three = subnet("s2", c.vpc.id, Some("10.2.0.0/24"), None);
    three.dns = vec!["192.0.2.1".parse().unwrap(); 3];
    assert!(matches!(conflict(c.store.create_subnet(three).await), Conflict::Invalid { .. }));
    // The same prefix in another VPC is no conflict.
    let other = c.vpc("v2").await;
    c.subnet("s1", &other, "10.0.0.0/24").await;
}

pub async fn addresses(f: Fixture) {
    let c = Cloud::make(&f).await;
    let reserved = |address: &str, prefix: &str, role| Conflict::ReservedAddress {
        address: address.into(),
        prefix: prefix.into(),
        role,
    };
    let outside = |address: &str, prefix: &str| Conflict::OutsideSubnet {
        address: address.into(),
        prefix: prefix.into(),
    };
    for (address, expected) in [
        ("10.0.0.0", reserved("10.0.0.0", "10.0.0.0/24", "network")),
        ("10.0.0.1", reserved("10.0.0.1", "10.0.0.0/24", "router's")),
        ("10.0.0.255", reserved("10.0.0.255", "10.0.0.0/24", "broadcast")),
        ("10.0.1.5", outside("10.0.1.5", "10.0.0.0/24")),
    ] {
        let mut new = c.one("vm");
        new.ipv4 = Some(address.parse().unwrap());
        assert_eq!(conflict(c.store.create_instance(c.vpc.id, new).await), expected);
    }
    for (address, expected) in [
        ("fd00:1::", reserved("fd00:1::", "fd00:1::/64", "network")),
        ("fd00:1::1", reserved("fd00:1::1", "fd00:1::/64", "router's")),
        ("fd00:2::5", outside("fd00:2::5", "fd00:1::/64")),
    ] {
        let mut new = c.one("vm");
        new.ipv6 = Some(address.parse().unwrap());
        assert_eq!(conflict(c.store.create_instance(c.vpc.id, new).await), expected);
    }
    // IPv6 has no broadcast address.
    let mut last = c.one("last");
    last.ipv6 = Some("fd00:1::ffff:ffff:ffff:ffff".parse().unwrap());
    new(c.store.create_instance(c.vpc.id, last).await);
    let v6_only = new(c.store.create_subnet(subnet("s6", c.vpc.id, None, Some("fd00:6::/64"))).await);
    let mut new_v4 = instance("vm", &v6_only, &c.host);
    new_v4.ipv4 = Some("10.0.0.9".parse().unwrap());
    let error = conflict(c.store.create_instance(c.vpc.id, new_v4).await);
    let expected = Conflict::NoSuchFamily { subnet: "s6".into(), family: "IPv4", address: "10.0.0.9".into() };
    assert_eq!(error, expected);
    for mac in ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "02:53:4c:00:00:01"] {
        let mut new = c.one("vm");
        new.mac = Some(mac.parse().unwrap());
        let error = conflict(c.store.create_instance(c.vpc.id, new).await);
        assert!(matches!(&error, Conflict::Invalid { message, .. } if message.contains(mac)), "{error}");
    }
}

pub async fn underlay_addresses(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let taken = |address: &str, owner: &str| Conflict::UnderlayAddressTaken {
        address: address.into(),
        owner: owner.into(),
    };
    let gateway = |name: &str, vtep4: Option<&str>, vtep6: Option<&str>| NewGateway {
        name: name.into(),
        cluster: c.cluster.id,
        vtep4: vtep4.map(|a| a.parse().unwrap()),
        vtep6: vtep6.map(|a| a.parse().unwrap()),
    };
    new(s.create_gateway(gateway("g1", Some("192.0.2.10"), Some("2001:db8::10"))).await);
    assert_eq!(conflict(s.create_host(host("h2", "192.0.2.1")).await), taken("192.0.2.1", "host `h1`"));
    assert_eq!(
        conflict(s.create_host(host("h2", "192.0.2.100")).await),
        taken("192.0.2.100", "cluster `c1`")
    );
    assert_eq!(
        conflict(s.create_host(host("h2", "2001:db8::10")).await),
        taken("2001:db8::10", "gateway `g1`")
    );
    let error = conflict(s.create_gateway(gateway("g2", Some("192.0.2.1"), None)).await);
    assert_eq!(error, taken("192.0.2.1", "host `h1`"));
    let vips = ["192.0.2.101".parse().unwrap(), "192.0.2.10".parse().unwrap()];
    assert_eq!(conflict(s.create_cluster("c2", &vips, None).await), taken("192.0.2.10", "gateway `g1`"));
    assert_eq!(
        conflict(s.update_cluster(c.cluster.id, &vips, None).await),
        taken("192.0.2.10", "gateway `g1`")
    );
    // Refused calls leave nothing behind, and released addresses are free again.
    new(s.create_host(host("h3", "192.0.2.101")).await);
    s.update_cluster(c.cluster.id, &["2001:db8::100".parse().unwrap()], None).await.unwrap();
    new(s.create_host(host("h4", "192.0.2.100")).await);
    s.delete_host(c.host.id, None).await.unwrap();
    new(s.create_host(host("h5", "192.0.2.1")).await);
    for bad in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1", "fe80::1"] {
        let error = conflict(s.create_host(host("bad", bad)).await);
        assert!(matches!(&error, Conflict::Invalid { message, .. } if message.contains(bad)), "{error}");
    }
    let error = conflict(s.create_gateway(gateway("g3", None, None)).await);
    assert!(matches!(error, Conflict::Invalid { .. }), "{error}");
}

pub async fn vnis(f: Fixture) {
    let c = Cloud::make(&f).await;
    let used = c.vpc.vni;
    let mut same = vpc("v2", &c.tenant, &c.cluster);
    same.vni = Some(used);
    let error = conflict(c.store.create_vpc(same.clone()).await);
    assert_eq!(error, Conflict::VniTaken { vni: used.get(), vpc: "v1".into() });
    let small = match f.url.as_str() {
        "sqlite::memory:" => {
            Cloud::make(&Fixture {
                url: f.url.clone(),
                store: open_with(&f.url, Options { vnis: used.get()..=used.get() + 3, ..Options::default() })
                    .await
                    .unwrap(),
            })
            .await
        }
        url => Cloud {
            store: open_with(url, Options { vnis: used.get()..=used.get() + 3, ..Options::default() })
                .await
                .unwrap(),
            ..c
        },
    };
    // A VNI that was given explicitly is skipped. One that was freed is used last.
    let mut given = vpc("given", &small.tenant, &small.cluster);
    given.vni = Some(Vni::new(used.get() + 2).unwrap());
    new(small.store.create_vpc(given).await);
    let second = small.vpc("second").await;
    assert_eq!(second.vni.get(), used.get() + 1);
    small.store.delete_vpc(second.id, None).await.unwrap();
    let fourth = small.vpc("fourth").await;
    assert_eq!(fourth.vni.get(), used.get() + 3, "the lowest never used comes first");
    let again = small.vpc("again").await;
    assert_eq!(again.vni, second.vni, "then the lowest free one");
    let error = conflict(small.store.create_vpc(vpc("more", &small.tenant, &small.cluster)).await);
    assert_eq!(error, Conflict::VniExhausted { used: 4 });
    // A VNI outside of the allocated range may still be requested.
    let mut outside = vpc("outside", &small.tenant, &small.cluster);
    outside.vni = Some(Vni::new(Vni::MAX).unwrap());
    new(small.store.create_vpc(outside).await);
    for mtu in [0, 1279, 9147] {
        let mut bad = vpc("mtu", &small.tenant, &small.cluster);
        bad.mtu = mtu;
        assert!(matches!(conflict(small.store.create_vpc(bad).await), Conflict::Invalid { .. }));
    }
}

pub async fn peerings(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    assert_eq!(conflict(s.create_peering(peering("p", &c.vpc, &c.vpc)).await), Conflict::PeeredWithItself);
    let v2 = c.vpc("v2").await;
    c.subnet("big", &v2, "10.0.0.0/16").await;
    let overlap = |a: &str, b: &str, a_prefix: &str, b_prefix: &str| Conflict::PeeringOverlap {
        a: a.into(),
        b: b.into(),
        a_prefix: a_prefix.into(),
        b_prefix: b_prefix.into(),
    };
    let error = conflict(s.create_peering(peering("p", &v2, &c.vpc)).await);
    assert_eq!(error, overlap("v1", "v2", "10.0.0.0/24", "10.0.0.0/16"));
    let v3 = c.vpc("v3").await;
    c.subnet("other", &v3, "10.3.0.0/16").await;
    c.peer("p", &c.vpc, &v3).await;
    let error = conflict(s.create_peering(peering("q", &v3, &c.vpc)).await);
    assert_eq!(error, Conflict::AlreadyPeered { a: "v1".into(), b: "v3".into(), peering: "p".into() });
    let error = conflict(s.create_peering(peering("p", &c.vpc, &v2)).await);
    assert!(matches!(&error, Conflict::NameTaken { kind: "peering", .. }), "{error}");
    // A later subnet must not overlap either.
    let error = conflict(s.create_subnet(subnet("late", v3.id, Some("10.0.0.128/25"), None)).await);
    assert_eq!(error, overlap("v3", "v1", "10.0.0.128/25", "10.0.0.0/24"));
    let error = conflict(s.create_subnet(subnet("late", c.vpc.id, Some("10.3.4.0/24"), None)).await);
    assert_eq!(error, overlap("v1", "v3", "10.3.4.0/24", "10.3.0.0/16"));
    let stranger = new(s.create_tenant("stranger").await);
    let theirs = new(s.create_vpc(vpc("v9", &stranger, &c.cluster)).await);
    let error = conflict(s.create_peering(peering("x", &theirs, &c.vpc)).await);
    assert_eq!(error, Conflict::PeeringAcrossTenants { a: "v1".into(), b: "v9".into() });
    let c2 = new(s.create_cluster("c2", &["192.0.2.200".parse().unwrap()], None).await);
    let elsewhere = new(s.create_vpc(vpc("v4", &c.tenant, &c2)).await);
    let error = conflict(s.create_peering(peering("x", &elsewhere, &c.vpc)).await);
    assert_eq!(error, Conflict::PeeringAcrossClusters { a: "v1".into(), b: "v4".into() });
}

/// All peers of a VPC have routes in it, so they must not overlap.
pub async fn peers_of_a_peer(f: Fixture) {
    let c = Cloud::make(&f).await;
    let (left, right) = (c.vpc("left").await, c.vpc("right").await);
    c.subnet("l", &left, "10.1.0.0/24").await;
    let clash = c.subnet("r", &right, "10.1.0.0/25").await;
    c.peer("l", &c.vpc, &left).await;
    let error = conflict(c.store.create_peering(peering("r", &c.vpc, &right)).await);
    assert!(matches!(&error, Conflict::PeeringOverlap { .. }), "{error}");
    assert!(error.to_string().contains("left") && error.to_string().contains("right"), "{error}");
    c.store.delete_subnet(clash.id, None).await.unwrap();
    c.peer("r", &c.vpc, &right).await;
    let error = conflict(c.store.create_subnet(subnet("r", right.id, Some("10.1.0.0/25"), None)).await);
    let expected = Conflict::PeeringOverlap {
        a: "right".into(),
        b: "left".into(),
        a_prefix: "10.1.0.0/25".into(),
        b_prefix: "10.1.0.0/24".into(),
    };
    assert_eq!(error, expected);
    // `left` and `right` do not reach each other. A prefix that neither reaches may overlap.
    let far = c.vpc("far").await;
    c.subnet("f", &far, "10.0.0.0/24").await;
    c.peer("far", &far, &c.vpc("alone").await).await;
}

pub async fn routes(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    for prefix in ["10.0.0.0/24", "10.0.0.7/32", "fd00:1::/65"] {
        let error = conflict(s.create_route(c.route(&c.vpc, prefix, RouteTarget::Drop).await).await);
        assert!(
            matches!(&error, Conflict::RouteInsideSubnet { prefix: p, subnet, .. } if p == prefix && subnet == "s1"),
            "{error}"
        );
    }
    let wider = new(s.create_route(c.route(&c.vpc, "10.0.0.0/8", RouteTarget::Drop).await).await);
    // A later subnet must not contain the prefix of a route.
    new(s.create_route(c.route(&c.vpc, "10.7.7.0/24", RouteTarget::Drop).await).await);
    let error = conflict(s.create_subnet(subnet("s7", c.vpc.id, Some("10.7.0.0/16"), None)).await);
    let expected = Conflict::RouteInsideSubnet {
        prefix: "10.7.7.0/24".into(),
        subnet: "s7".into(),
        existing: "10.7.0.0/16".into(),
    };
    assert_eq!(error, expected);
    let (v2, v3) = (c.vpc("v2").await, c.vpc("v3").await);
    let peer = c.peer("p", &v2, &v3).await;
    let error =
        conflict(s.create_route(c.route(&c.vpc, "0.0.0.0/0", RouteTarget::Peering(peer)).await).await);
    assert_eq!(error, Conflict::ForeignPeering { peering: "p".into() });
    let mine = c.peer("mine", &c.vpc, &v2).await;
    let error =
        conflict(s.create_route(c.route(&c.vpc, "10.0.0.0/8", RouteTarget::Peering(mine)).await).await);
    let expected = Conflict::NameTaken {
        kind: "route",
        name: "10.0.0.0/8".into(),
        difference: format!("target is drop, not {mine}"),
    };
    assert_eq!(error, expected);
    let bits =
        NewRoute { table: wider.table, prefix: "10.0.0.1/8".parse().unwrap(), target: RouteTarget::Drop };
    assert!(matches!(conflict(s.create_route(bits).await), Conflict::Invalid { .. }));
}

pub async fn in_use(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let used = |kind, name: &str, user: &str| Conflict::InUse { kind, name: name.into(), user: user.into() };
    let vm = c.instance("vm").await;
    assert_eq!(conflict(s.delete_tenant(c.tenant.id, None).await), used("tenant", "acme", "VPC `v1`"));
    assert_eq!(conflict(s.delete_host(c.host.id, None).await), used("host", "h1", "instance `vm`"));
    assert_eq!(conflict(s.delete_subnet(c.subnet.id, None).await), used("subnet", "s1", "instance `vm`"));
    assert_eq!(conflict(s.delete_vpc(c.vpc.id, None).await), used("VPC", "v1", "subnet `s1`"));
    assert_eq!(conflict(s.delete_cluster(c.cluster.id, None).await), used("cluster", "c1", "VPC `v1`"));
    // The last gateway of VPCs stays; another one may be deleted.
    let gateway = |name: &str, vtep: [u8; 4]| NewGateway {
        name: name.into(),
        cluster: c.cluster.id,
        vtep4: Some(vtep.into()),
        vtep6: None,
    };
    let last = new(s.create_gateway(gateway("last", [192, 0, 2, 71])).await);
    assert_eq!(conflict(s.delete_gateway(last.id, None).await), used("gateway", "last", "VPC `v1`"));
    new(s.create_gateway(gateway("next", [192, 0, 2, 72])).await);
    s.delete_gateway(last.id, None).await.unwrap();
    s.delete_instance(vm.id, None).await.unwrap();
    s.delete_subnet(c.subnet.id, None).await.unwrap();
    let v2 = c.vpc("v2").await;
    let peer = c.peer("p", &c.vpc, &v2).await;
    let route = new(s.create_route(c.route(&c.vpc, "0.0.0.0/0", RouteTarget::Peering(peer)).await).await);
    assert_eq!(conflict(s.delete_peering(peer, None).await), used("peering", "p", "route `0.0.0.0/0`"));
    assert_eq!(conflict(s.delete_vpc(c.vpc.id, None).await), used("VPC", "v1", "route `0.0.0.0/0`"));
    s.delete_route(route.id, None).await.unwrap();
    assert_eq!(conflict(s.delete_vpc(v2.id, None).await), used("VPC", "v2", "peering `p`"));
    s.delete_peering(peer, None).await.unwrap();
    // An IPv6-only subnet, whose instances' addresses are derived.
    let s6 = new(s.create_subnet(subnet("s6", c.vpc.id, None, Some("fd00:6::/64"))).await);
    let vm6 = new(s.create_instance(c.vpc.id, instance("vm6", &s6, &c.host)).await);
    assert_eq!(conflict(s.delete_subnet(s6.id, None).await), used("subnet", "s6", "instance `vm6`"));
    s.delete_instance(vm6.id, None).await.unwrap();
    s.delete_subnet(s6.id, None).await.unwrap();
    s.delete_vpc(c.vpc.id, None).await.unwrap();
}

pub async fn clusters_and_gateways(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let many: Vec<_> = (1..=64).map(|i| std::net::Ipv4Addr::new(198, 51, 100, i).into()).collect();
    assert!(matches!(conflict(s.create_cluster("c2", &many, None).await), Conflict::Invalid { .. }));
    assert!(matches!(conflict(s.create_cluster("c2", &[], None).await), Conflict::Invalid { .. }));
    assert!(matches!(
        conflict(s.create_cluster("c2", &[many[0], many[0]], None).await),
        Conflict::Invalid { .. }
    ));
    let full = new(s.create_cluster("c2", &many[..63], None).await);
    assert_eq!(full.addresses(), many[..63], "in the order given");
    let gateway = NewGateway {
        name: "g".into(),
        cluster: full.id,
        vtep4: Some("192.0.2.10".parse().unwrap()),
        vtep6: None,
    };
    let made = new(s.create_gateway(gateway.clone()).await);
    let error = conflict(s.delete_cluster(full.id, None).await);
    assert_eq!(error, Conflict::InUse { kind: "cluster", name: "c2".into(), user: "gateway `g`".into() });
    let moved = NewGateway { cluster: c.cluster.id, ..gateway };
    let error = conflict(s.create_gateway(moved).await);
    assert!(matches!(&error, Conflict::NameTaken { kind: "gateway", .. }), "{error}");
    s.delete_gateway(made.id, None).await.unwrap();
    s.delete_cluster(full.id, None).await.unwrap();
}

/// Any gateway of a cluster may take over any of its vIPs.
pub async fn gateways_have_the_families_of_their_vips(f: Fixture) {
    let s = &f.store;
    let [v4, v6]: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let cluster = new(s.create_cluster("c", &[v4], None).await).id;
    let gateway = |name: &str, vtep4: Option<&str>, vtep6: Option<&str>| NewGateway {
        name: name.into(),
        cluster,
        vtep4: vtep4.map(|vtep| vtep.parse().unwrap()),
        vtep6: vtep6.map(|vtep| vtep.parse().unwrap()),
    };
    let missing = |gateway: &str, family: &'static str| Conflict::FamilyMissing {
        gateway: gateway.into(),
        cluster: "c".into(),
        family,
    };
    let only6 = conflict(s.create_gateway(gateway("g6", None, Some("fd00::66"))).await);
    assert_eq!(only6, missing("g6", "IPv4"));
    let only4 = new(s.create_gateway(gateway("g4", Some("192.0.2.4"), None)).await);
    assert_eq!(conflict(s.update_cluster(cluster, &[v4, v6], None).await), missing("g4", "IPv6"));
    assert_eq!(s.cluster(cluster).await.unwrap().addresses(), [v4], "nothing has changed");
    s.delete_gateway(only4.id, None).await.unwrap();
    s.update_cluster(cluster, &[v4, v6], None).await.unwrap();
    assert_eq!(
        conflict(s.create_gateway(gateway("g4", Some("192.0.2.4"), None)).await),
        missing("g4", "IPv6")
    );
    new(s.create_gateway(gateway("g46", Some("192.0.2.4"), Some("fd00::66"))).await);
}

pub async fn not_found(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    fn check<T: std::fmt::Debug>(result: sluice_store::Result<T>, kind: &str, id: &str) {
        match result {
            Err(StoreError::NotFound { kind: k, id: i }) => assert_eq!((k, i.as_str()), (kind, id)),
            other => panic!("{other:?}"),
        }
    }
    let mut wrong = vpc("v", &c.tenant, &c.cluster);
    wrong.tenant = TenantId::new(999);
    check(s.create_vpc(wrong).await, "tenant", "tenant-999");
    let mut wrong = vpc("v", &c.tenant, &c.cluster);
    wrong.cluster = ClusterId::new(999);
    check(s.create_vpc(wrong).await, "cluster", "cluster-999");
    check(s.create_subnet(subnet("s", VpcId::new(999), Some("10.1.0.0/24"), None)).await, "VPC", "vpc-999");
    let mut wrong = c.one("vm");
    wrong.host = HostId::new(999);
    check(s.create_instance(c.vpc.id, wrong).await, "host", "host-999");
    let mut wrong = c.one("vm");
    wrong.subnet = SubnetId::new(999);
    check(s.create_instance(c.vpc.id, wrong).await, "subnet", "subnet-999");
    check(s.create_instance(VpcId::new(999), c.one("vm")).await, "VPC", "vpc-999");
    let v2 = c.vpc("v2").await;
    let error = conflict(s.create_instance(v2.id, c.one("vm")).await);
    assert_eq!(error, Conflict::ForeignSubnet { subnet: "s1".into(), vpc: "v2".into() });
    // The id of an object of another kind is not found either.
    check(s.host(HostId::new(c.tenant.id.get())).await, "host", &HostId::new(c.tenant.id.get()).to_string());
    check(s.delete_instance(InstanceId::new(999), None).await, "instance", "inst-999");
    check(s.delete_gateway(GatewayId::new(999), None).await, "gateway", "gw-999");
    check(s.delete_route(RouteId::new(999), None).await, "route", "route-999");
    check(s.delete_peering(PeeringId::new(999), None).await, "peering", "peer-999");
    check(s.update_vpc(VpcId::new(999), vpc_update("v", 1430), None).await, "VPC", "vpc-999");
    check(
        s.update_cluster(ClusterId::new(999), &c.cluster.addresses(), None).await,
        "cluster",
        "cluster-999",
    );
    check(s.rename_tenant(TenantId::new(999), "t", None).await, "tenant", "tenant-999");
    let route = NewRoute {
        table: RouteTableId::new(999),
        prefix: "0.0.0.0/0".parse().unwrap(),
        target: RouteTarget::Drop,
    };
    check(s.create_route(route).await, "route table", "rtb-999");
    let route = c.route(&c.vpc, "0.0.0.0/0", RouteTarget::Peering(PeeringId::new(999))).await;
    check(s.create_route(route).await, "peering", "peer-999");
}
