//! Creation, reading, listing, changing, removing.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, host, new, peering, subnet, vpc, vpc_update};
use crate::internet::topology;
use sluice_store::{Conflict, Created, NewGateway, Page, RouteTarget, StoreError, open};

pub async fn lifecycle_of_each_kind(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let gateway = NewGateway {
        name: "g1".into(),
        cluster: c.cluster.id,
        vtep4: Some("192.0.2.10".parse().unwrap()),
        vtep6: Some("2001:db8::10".parse().unwrap()),
    };
    let gateway = new(s.create_gateway(gateway).await);
    let instance = c.instance("vm").await;
    let other = c.vpc("v2").await;
    let peer = c.peer("p", &c.vpc, &other).await;
    let route = new(s.create_route(c.route(&c.vpc, "0.0.0.0/0", RouteTarget::Peering(peer)).await).await);

    assert_eq!(s.tenant(c.tenant.id).await.unwrap(), c.tenant);
    let cluster = s.cluster(c.cluster.id).await.unwrap();
    assert_eq!((cluster.addresses(), cluster.revision), (c.cluster.addresses(), c.cluster.revision));
    assert_eq!(
        (cluster.vip_plan_revision, cluster.vips[0].preferred_owner),
        (gateway.revision, Some(gateway.id))
    );
    assert_eq!(s.gateway(gateway.id).await.unwrap(), gateway);
    assert_eq!(s.host(c.host.id).await.unwrap(), c.host);
    assert_eq!(s.vpc(c.vpc.id).await.unwrap(), c.vpc);
    assert_eq!(s.subnet(c.subnet.id).await.unwrap(), c.subnet);
    assert_eq!(s.instance(instance.id).await.unwrap(), instance);
    assert_eq!(s.route(route.id).await.unwrap(), route);
    let table = s.route_table(route.table).await.unwrap();
    assert_eq!((table.name.as_str(), table.vpc), ("main", c.vpc.id));
    let peering = s.peering(peer).await.unwrap();
    assert_eq!((peering.a, peering.b), (c.vpc.id, other.id));

    s.delete_route(route.id, None).await.unwrap();
    s.delete_peering(peer, None).await.unwrap();
    s.delete_instance(instance.id, None).await.unwrap();
    s.delete_subnet(c.subnet.id, None).await.unwrap();
    s.delete_vpc(c.vpc.id, None).await.unwrap();
    s.delete_vpc(other.id, None).await.unwrap();
    s.delete_host(c.host.id, None).await.unwrap();
    s.delete_gateway(gateway.id, None).await.unwrap();
    s.delete_cluster(c.cluster.id, None).await.unwrap();
    s.delete_tenant(c.tenant.id, None).await.unwrap();
    assert!(matches!(s.tenant(c.tenant.id).await, Err(StoreError::NotFound { kind: "tenant", .. })));
    assert!(matches!(s.route_table(table.id).await, Err(StoreError::NotFound { kind: "route table", .. })));
}

pub async fn creation_is_idempotent(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let other = c.vpc("v2").await;
    let peer = c.peer("p", &c.vpc, &other).await;
    let route = c.route(&c.vpc, "198.51.100.0/24", RouteTarget::Drop).await;
    let made = new(s.create_route(route.clone()).await);
    let instance = c.instance("vm").await;
    let before = s.revision().await.unwrap();

    assert_eq!(s.create_tenant("acme").await.unwrap(), Created::Existing(c.tenant.clone()));
    let again = s.create_cluster("c1", &c.cluster.addresses(), None).await.unwrap();
    assert_eq!(again, Created::Existing(c.cluster.clone()));
    assert_eq!(s.create_host(host("h1", "192.0.2.1")).await.unwrap(), Created::Existing(c.host.clone()));
    let again = s.create_vpc(vpc("v1", &c.tenant, &c.cluster)).await.unwrap();
    assert_eq!(again, Created::Existing(c.vpc.clone()));
    let again = subnet("s1", c.vpc.id, Some("10.0.0.0/24"), Some("fd00:1::/64"));
    assert_eq!(s.create_subnet(again).await.unwrap(), Created::Existing(c.subnet.clone()));
    let again = s.create_instance(c.vpc.id, c.one("vm")).await.unwrap();
    assert_eq!(again, Created::Existing(instance.clone()));
    let mut exact = c.one("vm");
    (exact.mac, exact.ipv4, exact.ipv6) = (Some(instance.mac), instance.ipv4, instance.ipv6);
    let again = s.create_instance(c.vpc.id, exact).await.unwrap();
    assert_eq!(again, Created::Existing(instance));
    assert_eq!(s.create_route(route).await.unwrap(), Created::Existing(made));
    // In either order of the ends.
    let again = s.create_peering(peering("p", &other, &c.vpc)).await.unwrap();
    assert_eq!(again.into_inner().id, peer);
    assert_eq!(s.revision().await.unwrap(), before, "nothing was changed");
}

pub async fn another_content_names_the_difference(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let taken = |conflict: Conflict, kind: &str, name: &str, difference: &str| match conflict {
        Conflict::NameTaken { kind: k, name: n, difference: d } => {
            assert_eq!((k, n.as_str(), d.as_str()), (kind, name, difference));
        }
        other => panic!("{other}"),
    };
    let vips = ["192.0.2.101".parse().unwrap()];
    let error = conflict(s.create_cluster("c1", &vips, None).await);
    taken(error, "cluster", "c1", "vips is 192.0.2.100, not 192.0.2.101");
    let mut other = host("h1", "192.0.2.2");
    other.agent = false;
    let error = conflict(s.create_host(other).await);
    taken(error, "host", "h1", "vtep is 192.0.2.1, not 192.0.2.2, agent is true, not false");
    let mut other = vpc("v1", &c.tenant, &c.cluster);
    other.mtu = 1500;
    taken(conflict(s.create_vpc(other).await), "VPC", "v1", "mtu is 1430, not 1500");
    let other = subnet("s1", c.vpc.id, Some("10.0.0.0/24"), None);
    taken(conflict(s.create_subnet(other).await), "subnet", "s1", "ipv6 is fd00:1::/64, not none");
    let instance = c.instance("vm").await;
    let mut other = c.one("vm");
    other.ipv4 = Some("10.0.0.77".parse().unwrap());
    let difference = format!("ipv4 is {}, not 10.0.0.77", instance.ipv4.unwrap());
    taken(conflict(s.create_instance(c.vpc.id, other).await), "instance", "vm", &difference);
    new(s.create_tenant("other").await);
    let error = conflict(s.rename_tenant(c.tenant.id, "other", None).await);
    assert!(matches!(error, Conflict::NameTaken { .. }), "{error}");
}

pub async fn if_match(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let renamed = s.rename_tenant(c.tenant.id, "acme2", Some(c.tenant.revision)).await.unwrap();
    assert_eq!(renamed.revision, s.revision().await.unwrap());
    assert!(renamed.revision > c.tenant.revision);
    match s.rename_tenant(c.tenant.id, "acme3", Some(c.tenant.revision)).await {
        Err(StoreError::Stale { kind: "tenant", id, current, expected }) => {
            assert_eq!(id, c.tenant.id.to_string());
            assert_eq!((current, expected), (renamed.revision, c.tenant.revision));
        }
        other => panic!("{other:?}"),
    }
    let stale = |result: sluice_store::Result<u64>| {
        assert!(matches!(result, Err(StoreError::Stale { .. })), "{result:?}")
    };
    let instance = c.instance("vm").await;
    stale(s.delete_instance(instance.id, Some(instance.revision + 1)).await);
    stale(s.delete_tenant(c.tenant.id, Some(1)).await);
    stale(s.delete_host(c.host.id, Some(99)).await);
    stale(s.delete_vpc(c.vpc.id, Some(99)).await);
    stale(s.delete_subnet(c.subnet.id, Some(99)).await);
    stale(s.delete_cluster(c.cluster.id, Some(99)).await);
    stale(s.update_vpc(c.vpc.id, vpc_update("v", 1400), Some(99)).await.map(|vpc| vpc.revision));
    let vpc = s.update_vpc(c.vpc.id, vpc_update("v", 1400), Some(c.vpc.revision)).await.unwrap();
    assert_eq!((vpc.name.as_str(), vpc.mtu, vpc.vni), ("v", 1400, c.vpc.vni));
    assert_eq!(s.vpc(c.vpc.id).await.unwrap(), vpc);
    s.delete_instance(instance.id, Some(instance.revision)).await.unwrap();
}

pub async fn pages(f: Fixture) {
    let c = Cloud::make(&f).await;
    c.store.create_instances(c.vpc.id, c.some(0, 25)).await.unwrap();
    let (mut after, mut seen, mut sizes) = (0, Vec::new(), Vec::new());
    loop {
        let page = c.store.instances(Some(c.vpc.id), None, None, Page { after, limit: 10 }).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.id.get();
        sizes.push(page.len());
        seen.extend(page.into_iter().map(|i| i.id));
    }
    assert_eq!(sizes, [10, 10, 5]);
    assert!(seen.is_sorted() && seen.len() == 25);
    let end = Page { after: u64::MAX, limit: 10 };
    assert!(c.store.instances(None, None, None, end).await.unwrap().is_empty());
    for i in 0..5 {
        c.store.create_tenant(&format!("t{i}")).await.unwrap();
    }
    let first = c.store.tenants(None, Page { after: 0, limit: 2 }).await.unwrap();
    let second = c.store.tenants(None, Page { after: first[1].id.get(), limit: 100 }).await.unwrap();
    assert_eq!((first.len(), second.len()), (2, 4));
}

pub async fn filters(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let other_tenant = new(s.create_tenant("other").await);
    let other = new(s.create_vpc(vpc("v1", &other_tenant, &c.cluster)).await);
    let peered = c.vpc("v2").await;
    let peer = c.peer("p", &c.vpc, &peered).await;
    let h2 = new(s.create_host(host("h2", "192.0.2.2")).await);
    c.instance("a").await;
    let mut b = c.one("b");
    b.host = h2.id;
    let b = new(s.create_instance(c.vpc.id, b).await);

    assert_eq!(s.vpcs(None, Some("v1"), ALL).await.unwrap(), [c.vpc.clone(), other.clone()]);
    assert_eq!(s.vpcs(Some(other_tenant.id), None, ALL).await.unwrap(), std::slice::from_ref(&other));
    assert_eq!(s.vpcs(Some(c.tenant.id), Some("v2"), ALL).await.unwrap(), std::slice::from_ref(&peered));
    assert_eq!(s.instances(None, Some(h2.id), None, ALL).await.unwrap(), std::slice::from_ref(&b));
    assert_eq!(s.instances(Some(c.vpc.id), None, Some("b"), ALL).await.unwrap(), [b]);
    assert!(s.instances(Some(other.id), None, None, ALL).await.unwrap().is_empty());
    assert_eq!(s.subnets(Some(c.vpc.id), None, ALL).await.unwrap(), std::slice::from_ref(&c.subnet));
    assert_eq!(s.tenants(Some("acme"), ALL).await.unwrap(), std::slice::from_ref(&c.tenant));
    assert_eq!(s.clusters(Some("nope"), ALL).await.unwrap(), []);
    assert_eq!(s.hosts(Some("h2"), ALL).await.unwrap(), [h2]);
    for end in [&c.vpc, &peered] {
        assert_eq!(s.peerings(Some(end.id), None, ALL).await.unwrap()[0].id, peer);
        assert_eq!(s.peerings(Some(end.id), Some("p"), ALL).await.unwrap()[0].id, peer);
    }
    assert!(s.peerings(Some(other.id), None, ALL).await.unwrap().is_empty());
    assert_eq!(s.peerings(None, Some("p"), ALL).await.unwrap().len(), 1);
    let drop_all = new(s.create_route(c.route(&c.vpc, "0.0.0.0/0", RouteTarget::Drop).await).await);
    assert_eq!(s.routes(drop_all.table, ALL).await.unwrap(), [drop_all]);
    assert!(s.routes(c.table(&other).await.id, ALL).await.unwrap().is_empty());
}

pub async fn names(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    for bad in ["", "a b", ".a", "tab\t", "ü", "a/b", "'; DROP TABLE tenants; --", &"x".repeat(64)] {
        for error in [
            conflict(s.create_tenant(bad).await),
            conflict(s.create_host(host(bad, "192.0.2.9")).await),
            conflict(s.create_vpc(vpc(bad, &c.tenant, &c.cluster)).await),
            conflict(s.create_instance(c.vpc.id, c.one(bad)).await),
            conflict(s.rename_tenant(c.tenant.id, bad, None).await),
        ] {
            assert!(
                matches!(&error, Conflict::Invalid { message, .. } if message.contains("name")),
                "{error}"
            );
        }
    }
    let long = "x".repeat(63);
    assert_eq!(new(s.create_tenant(&long).await).name, long);
    // Names are told apart by case.
    new(s.create_tenant("ACME").await);
}

pub async fn reopening_keeps_everything(f: Fixture) {
    let c = Cloud::make(&f).await;
    let instance = c.instance("vm").await;
    assert_ne!(c.store.database_id(), 0);
    let revision = c.store.revision().await.unwrap();
    let seed = topology(&c.store).await.nat_seed;
    assert!(seed.is_some());
    if f.url == "sqlite::memory:" {
        let another = open(&f.url).await.unwrap();
        assert_ne!(another.database_id(), c.store.database_id(), "each memory is its own");
        assert_ne!(topology(&another).await.nat_seed, seed);
        return;
    }
    let again = open(&f.url).await.unwrap();
    assert_eq!(again.database_id(), c.store.database_id());
    assert_eq!(again.revision().await.unwrap(), revision);
    assert_eq!(topology(&again).await.nat_seed, seed);
    assert_eq!(again.instance(instance.id).await.unwrap(), instance);
    assert!(new(again.create_tenant("later").await).id.get() > instance.id.get());
}

pub async fn unchanged_updates_take_no_revision(f: Fixture) {
    let c = Cloud::make(&f).await;
    let before = c.store.revision().await.unwrap();
    assert_eq!(c.store.rename_tenant(c.tenant.id, "acme", None).await.unwrap(), c.tenant);
    assert_eq!(c.store.update_vpc(c.vpc.id, vpc_update("v1", 1430), None).await.unwrap(), c.vpc);
    assert_eq!(c.store.update_cluster(c.cluster.id, &c.cluster.addresses(), None).await.unwrap(), c.cluster);
    assert_eq!(c.store.revision().await.unwrap(), before);
    conflict(c.store.create_host(host("h2", "192.0.2.1")).await);
    assert_eq!(c.store.revision().await.unwrap(), before, "a refused change is no revision");
}

pub async fn a_newer_schema_is_refused(f: Fixture) {
    if f.url == "sqlite::memory:" {
        return; // cannot be opened twice
    }
    if let Some(path) = f.url.strip_prefix("sqlite:") {
        use sqlx::{Connection as _, Executor as _, sqlite::SqliteConnection};
        let mut raw = SqliteConnection::connect(path).await.unwrap();
        raw.execute("UPDATE schema_version SET version = 1000").await.unwrap();
    } else {
        use sqlx::{Connection as _, Executor as _, postgres::PgConnection};
        let mut raw = PgConnection::connect(&f.url).await.unwrap();
        raw.execute("UPDATE schema_version SET version = 1000").await.unwrap();
    }
    match open(&f.url).await {
        Err(StoreError::Corrupt(text)) => assert!(text.contains("newer"), "{text}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}

pub async fn ids_ascend_across_kinds(f: Fixture) {
    let c = Cloud::make(&f).await;
    let instance = c.instance("vm").await;
    let ids = [
        c.tenant.id.get(),
        c.cluster.id.get(),
        c.host.id.get(),
        c.vpc.id.get(),
        c.table(&c.vpc).await.id.get(),
        c.subnet.id.get(),
        instance.id.get(),
    ];
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    c.store.delete_instance(instance.id, None).await.unwrap();
    assert!(c.instance("vm").await.id > instance.id, "ids are never used again");
}
