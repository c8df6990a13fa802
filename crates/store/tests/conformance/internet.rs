//! Public pools, EIPs and Internet routes.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, gateway, host, last, new, subnet};
use sluice_store::{
    Attach, Change, Conflict, Created, Eip, EipAttachment, EipFilter, EipTarget, EipUpdate, InstancesOf,
    NewEip, NewPublicPool, NodeId, NodeState, PortSettings, PublicPool, PublicPoolUpdate, ReleaseOf,
    RouteTarget, SnapshotPart, Store, StoreError, Topology,
};
use sluice_types::{AddressFamily, InstanceId, IpNet};

pub fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub fn new_pool(c: &Cloud, name: &str, prefixes: &[&str]) -> NewPublicPool {
    NewPublicPool { name: name.into(), cluster: c.cluster.id, prefixes: nets(prefixes), reserved: vec![] }
}

pub async fn pool(c: &Cloud, prefixes: &[&str]) -> PublicPool {
    new(c.store.create_public_pool(new_pool(c, "public", prefixes)).await)
}

pub fn new_eip(c: &Cloud, pool: &PublicPool, name: &str) -> NewEip {
    NewEip {
        name: name.into(),
        tenant: c.tenant.id,
        pool: pool.id,
        address: None,
        family: None,
        prefix_length: None,
        nptv6: None,
        attach: None,
        meter: None,
    }
}

pub fn with_address(new: NewEip, address: &str) -> NewEip {
    NewEip { address: Some(address.parse().unwrap()), ..new }
}

fn with_length(new: NewEip, length: u8) -> NewEip {
    NewEip { prefix_length: Some(length), ..new }
}

pub async fn eip(c: &Cloud, pool: &PublicPool, name: &str) -> Eip {
    new(c.store.create_eip(new_eip(c, pool, name)).await)
}

pub fn to_instance(id: InstanceId) -> Attach {
    Attach { target: EipTarget::Instance(id), inside: None }
}

pub fn attach(to: Option<Attach>) -> EipUpdate {
    EipUpdate { attach: Some(to), ..EipUpdate::default() }
}

pub async fn topology(s: &Store) -> Topology {
    let (sink, mut parts) = tokio::sync::mpsc::channel(4);
    s.snapshot(InstancesOf::None, sink).await.unwrap();
    match parts.recv().await {
        Some(SnapshotPart::Topology(topology)) => *topology,
        other => panic!("{other:?}"),
    }
}

pub async fn pools(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let made = pool(&c, &["2001:db8:9::/48", "198.51.100.0/28"]).await;
    assert_eq!(made.prefixes, nets(&["198.51.100.0/28", "2001:db8:9::/48"]), "in ascending order");
    assert_eq!(last(s).await, [Change::PublicPoolUpserted(made.clone())]);
    let again = s.create_public_pool(new_pool(&c, "public", &["198.51.100.0/28", "2001:db8:9::/48"])).await;
    assert_eq!(again.unwrap(), Created::Existing(made.clone()));
    let differs = conflict(s.create_public_pool(new_pool(&c, "public", &["203.0.113.0/24"])).await);
    assert!(differs.to_string().contains("prefixes is 198.51.100.0/28,2001:db8:9::/48"), "{differs}");
    for bad in [
        &["224.0.0.0/8"][..],
        &["0.0.0.0/0"],
        &[],
        &["203.0.113.1/24"],
        &["203.0.113.0/24", "203.0.113.8/29"],
    ] {
        let refused = s.create_public_pool(new_pool(&c, "bad", bad)).await;
        assert!(matches!(conflict(refused), Conflict::Invalid { .. }), "{bad:?}");
    }
    let overlap = conflict(s.create_public_pool(new_pool(&c, "other", &["198.51.100.8/29"])).await);
    let (given, existing) = ("198.51.100.8/29".to_owned(), "198.51.100.0/28".to_owned());
    assert_eq!(overlap, Conflict::PoolOverlap { given, existing, pool: "public".into() });

    // Underlay addresses are in no pool, whichever comes first.
    let underlay = conflict(s.create_public_pool(new_pool(&c, "other", &["192.0.2.0/24"])).await);
    assert!(
        matches!(&underlay, Conflict::PrefixContains { address, .. } if address == "192.0.2.1"),
        "{underlay}"
    );
    let taken = conflict(s.create_host(host("h2", "198.51.100.3")).await);
    let (address, owner) = ("198.51.100.3".to_owned(), "public pool `public`".to_owned());
    assert_eq!(taken, Conflict::UnderlayAddressTaken { address, owner });

    let one = eip(&c, &made, "web").await;
    let update =
        |prefixes: &[&str]| PublicPoolUpdate { prefixes: Some(nets(prefixes)), ..Default::default() };
    let used = conflict(s.update_public_pool(made.id, update(&["2001:db8:9::/48"]), None).await);
    let text = format!("prefix `198.51.100.0/28` is still used by EIP `web` ({}, 198.51.100.1)", one.id);
    assert_eq!(used.to_string(), text);
    let wider = update(&["198.51.100.0/27", "203.0.113.0/24"]);
    let changed = s.update_public_pool(made.id, wider, Some(made.revision)).await.unwrap();
    assert_eq!(changed.prefixes, nets(&["198.51.100.0/27", "203.0.113.0/24"]));
    let renamed = PublicPoolUpdate { name: Some("world".into()), ..Default::default() };
    let stale = s.update_public_pool(made.id, renamed.clone(), Some(made.revision)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    let renamed = s.update_public_pool(made.id, renamed, None).await.unwrap();
    assert_eq!(s.public_pool(made.id).await.unwrap(), renamed);
    assert_eq!(
        s.public_pools(Some(c.cluster.id), Some("world"), ALL).await.unwrap(),
        std::slice::from_ref(&renamed)
    );

    let used = conflict(s.delete_public_pool(made.id, None).await);
    let expected = format!("public pool `world` is still used by EIP `web` ({}, 198.51.100.1)", one.id);
    assert_eq!(used.to_string(), expected);
    s.delete_eip(one.id, None).await.unwrap();
    s.delete_subnet(c.subnet.id, None).await.unwrap();
    s.delete_vpc(c.vpc.id, None).await.unwrap();
    let used = conflict(s.delete_cluster(c.cluster.id, None).await);
    assert_eq!(used.to_string(), "cluster `c1` is still used by public pool `world`");
    s.delete_public_pool(made.id, None).await.unwrap();
    assert_eq!(last(s).await, [Change::PublicPoolRemoved(renamed)]);
    s.delete_cluster(c.cluster.id, None).await.unwrap();
}

pub async fn reserved_addresses(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let with = |name: &str, reserved: &[&str]| NewPublicPool {
        reserved: nets(reserved),
        ..new_pool(&c, name, &["203.0.113.0/28", "2001:db8:9::/60"])
    };
    let refused = async |reserved: &[&str]| conflict(s.create_public_pool(with("bad", reserved)).await);
    assert_eq!(
        refused(&["203.0.113.16/32"]).await.to_string(),
        "reserved prefix 203.0.113.16/32 is in no prefix of the pool"
    );
    for bad in [&["203.0.113.1/30"][..], &["203.0.113.0/30", "203.0.113.1/32"]] {
        assert!(matches!(refused(bad).await, Conflict::Invalid { .. }), "{bad:?}");
    }
    let many: Vec<String> = (0..65).map(|n| format!("2001:db8:9::{n:x}/128")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let text = refused(&many).await.to_string();
    assert_eq!(text, "a pool has at most 64 reserved prefixes, not 65");

    let reserved = ["2001:db8:9::/63", "203.0.113.1/32", "203.0.113.2/31"];
    let pool = new(s.create_public_pool(with("public", &reserved)).await);
    assert_eq!(pool.reserved, nets(&["203.0.113.1/32", "203.0.113.2/31", "2001:db8:9::/63"]));
    assert_eq!(s.public_pool(pool.id).await.unwrap(), pool);
    assert_eq!(
        s.create_public_pool(with("public", &reserved)).await.unwrap(),
        Created::Existing(pool.clone())
    );
    let differs = conflict(s.create_public_pool(with("public", &[])).await).to_string();
    assert!(differs.contains("reserved is 203.0.113.1/32,203.0.113.2/31,2001:db8:9::/63, not"), "{differs}");

    // No EIP gets them, and none that asks for them.
    let text = conflict(s.create_eip(with_address(new_eip(&c, &pool, "x"), "203.0.113.3")).await).to_string();
    assert_eq!(
        text,
        "203.0.113.3 has an address in common with 203.0.113.2/31, which public pool `public` reserves"
    );
    let prefix = with_length(with_address(new_eip(&c, &pool, "x"), "2001:db8:9::"), 62);
    let text = conflict(s.create_eip(prefix).await).to_string();
    assert!(text.starts_with("2001:db8:9::/62 has an address in common with 2001:db8:9::/63"), "{text}");
    let web = eip(&c, &pool, "web").await;
    assert_eq!(web.prefix.to_string(), "203.0.113.4/32");
    let whole = new(s.create_eip(with_length(new_eip(&c, &pool, "whole"), 64)).await);
    assert_eq!(whole.prefix.to_string(), "2001:db8:9:2::/64");

    // A change reserves nothing that an EIP has, and leaves nothing reserved outside the pool.
    let update = async |update: PublicPoolUpdate| s.update_public_pool(pool.id, update, None).await;
    let reserve =
        |reserved: &[&str]| PublicPoolUpdate { reserved: Some(nets(reserved)), ..Default::default() };
    let text = conflict(update(reserve(&["203.0.113.0/29"])).await).to_string();
    assert!(text.starts_with("reserved prefix `203.0.113.0/29` is still used by EIP `web` (eip-"), "{text}");
    let text = conflict(update(reserve(&["2001:db8:9:2::7/128"])).await).to_string();
    assert!(text.ends_with(", 2001:db8:9:2::/64)"), "{text}");
    let change = |prefixes: &[&str]| PublicPoolUpdate { prefixes: Some(nets(prefixes)), ..reserve(&[]) };
    let shrunk = PublicPoolUpdate { reserved: None, ..change(&["203.0.113.4/30", "2001:db8:9::/60"]) };
    let text = conflict(update(shrunk).await).to_string();
    assert_eq!(text, "reserved prefix 203.0.113.1/32 is in no prefix of the pool");
    assert_eq!(s.public_pool(pool.id).await.unwrap(), pool, "nothing changed");
    let changed = update(reserve(&["203.0.113.5/32"])).await.unwrap();
    assert_eq!((changed.reserved, changed.prefixes), (nets(&["203.0.113.5/32"]), pool.prefixes.clone()));
    assert_eq!(eip(&c, &pool, "low").await.prefix.to_string(), "203.0.113.1/32");

    // Nor does a change of the prefixes leave an EIP with an address that nothing may have.
    let parts = |second| change(&["203.0.113.0/30", second, "2001:db8:9::/60"]);
    let text = conflict(update(parts("203.0.113.4/30")).await).to_string();
    assert!(text.starts_with("reserved address `203.0.113.4` is still used by EIP `web` (eip-"), "{text}");
    update(parts("203.0.113.4/31")).await.unwrap();
}

/// An EIP of a length that no site has, or that the pool's prefixes cannot contain, is refused.
async fn lengths_are_checked(c: &Cloud, pool: &PublicPool) {
    let refused = async |new: NewEip| conflict(c.store.as_ref().create_eip(new).await).to_string();
    let b = || new_eip(c, pool, "b");
    let text = refused(NewEip { family: Some(AddressFamily::Ipv4), ..with_length(b(), 31) }).await;
    assert_eq!(text, "an IPv4 EIP is a single address, so its length is 32");
    for length in [47, 65, 127] {
        let text = refused(with_length(b(), length)).await;
        let expected = format!(
            "an IPv6 EIP is a single address (128), or a prefix of length 48 to 64 as sites have them (RFC 6177), not {length}"
        );
        assert_eq!(text, expected);
    }
    let text = refused(with_length(with_address(b(), "2001:db8:9::1"), 64)).await;
    assert!(text.contains("host bits"), "{text}");
    assert_eq!(
        refused(with_length(b(), 60)).await,
        "no prefix of public pool `public` contains an IPv6 prefix of length 60"
    );
}

pub async fn addresses_of_eips(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let pool = pool(&c, &["198.51.100.0/30", "2001:db8:9::/62"]).await;
    let first = eip(&c, &pool, "a").await;
    assert_eq!((first.prefix.to_string(), first.attachment), ("198.51.100.1/32".to_owned(), None));
    assert_eq!(last(s).await, [Change::EipUpserted(first.clone())]);
    let again = s.create_eip(new_eip(&c, &pool, "a")).await.unwrap();
    assert_eq!(again, Created::Existing(first.clone()));
    let differs = conflict(s.create_eip(with_address(new_eip(&c, &pool, "a"), "198.51.100.2")).await);
    assert!(differs.to_string().contains("address is 198.51.100.1, not 198.51.100.2"), "{differs}");

    let refused = async |new: NewEip| conflict(s.create_eip(new).await).to_string();
    let b = || new_eip(&c, &pool, "b");
    for (address, text) in [
        ("198.51.100.0", "198.51.100.0 is the network address of 198.51.100.0/30"),
        ("198.51.100.3", "198.51.100.3 is the broadcast address of 198.51.100.0/30"),
        ("2001:db8:9::", "2001:db8:9:: is the subnet-router anycast address of 2001:db8:9::/62"),
        ("198.51.100.1", "198.51.100.1 has an address in common with 198.51.100.1 of EIP `a` (EIP)"),
        ("203.0.113.1", "203.0.113.1 is not in a prefix of public pool `public`"),
    ] {
        let text = text.replace("(EIP)", &format!("({})", first.id));
        assert_eq!(refused(with_address(b(), address)).await, text);
    }
    let text =
        refused(NewEip { family: Some(AddressFamily::Ipv6), ..with_address(b(), "198.51.100.2") }).await;
    assert_eq!(text, "198.51.100.2 is no ipv6 address");
    lengths_are_checked(&c, &pool).await;

    assert_eq!(eip(&c, &pool, "b").await.prefix.to_string(), "198.51.100.2/32");
    assert_eq!(refused(new_eip(&c, &pool, "c")).await, "public pool `public` has no free IPv4 address");
    let v6 =
        new(s.create_eip(NewEip { family: Some(AddressFamily::Ipv6), ..new_eip(&c, &pool, "v6") }).await);
    assert_eq!(v6.prefix.to_string(), "2001:db8:9::1/128");
    let whole = new(s.create_eip(with_length(new_eip(&c, &pool, "whole"), 64)).await);
    assert_eq!(whole.prefix.to_string(), "2001:db8:9:1::/64", "an address of the first one is used");
    let inside = refused(with_address(new_eip(&c, &pool, "x"), "2001:db8:9:1::7")).await;
    assert!(inside.ends_with(&format!("2001:db8:9:1::/64 of EIP `whole` ({})", whole.id)), "{inside}");

    // A deleted one is held until the gateways of the cluster have removed it, also if it is not attached.
    let node = NodeId::Gateway(gateway(s, c.cluster.id, 77).await);
    let state = NodeState { node, acknowledged_revision: 0, last_seen_ms: 0, failures: vec![] };
    s.save_node_states(&[state]).await.unwrap();
    let revision = s.delete_eip(first.id, None).await.unwrap();
    assert_eq!(last(s).await, [Change::EipRemoved(first)]);
    let removal = s.removal(revision).await.unwrap().unwrap();
    assert_eq!(
        (removal.kind.as_str(), removal.name.as_str(), removal.nodes.clone()),
        ("EIP", "a", vec![node])
    );
    let text = refused(with_address(new_eip(&c, &pool, "d"), "198.51.100.1")).await;
    assert!(text.starts_with("198.51.100.1 is held until") && text.contains("EIP `a`"), "{text}");
    let reserved = nets(&["198.51.100.0/31"]);
    let reserves = PublicPoolUpdate { reserved: Some(reserved), ..PublicPoolUpdate::default() };
    let text = conflict(s.update_public_pool(pool.id, reserves, None).await).to_string();
    assert!(text.starts_with("198.51.100.1 is held until"), "{text}");
    let text = refused(new_eip(&c, &pool, "d")).await;
    assert!(
        text.starts_with("public pool `public` has no free IPv4 address; gateways may still have"),
        "{text}"
    );
    s.release_removals(&ReleaseOf { nodes: removal.nodes, up_to: revision, deleted_before_ms: u64::MAX })
        .await
        .unwrap();
    assert_eq!(eip(&c, &pool, "d").await.prefix.to_string(), "198.51.100.1/32");

    let of = |name: &str| EipFilter { name: Some(name.into()), pool: Some(pool.id), ..EipFilter::default() };
    assert_eq!(s.eips(&of("whole"), ALL).await.unwrap(), std::slice::from_ref(&whole));
    assert_eq!(
        s.eips(&EipFilter { tenant: Some(c.tenant.id), ..EipFilter::default() }, ALL).await.unwrap().len(),
        4
    );
    assert!(topology(s).await.eips.contains(&whole));
    let named = EipUpdate { name: Some("b".into()), ..EipUpdate::default() };
    assert!(matches!(conflict(s.update_eip(whole.id, named, None).await), Conflict::NameTaken { .. }));
    s.delete_subnet(c.subnet.id, None).await.unwrap();
    s.delete_vpc(c.vpc.id, None).await.unwrap();
    let used = conflict(s.delete_tenant(c.tenant.id, None).await).to_string();
    assert!(used.starts_with("tenant `acme` is still used by EIP"), "{used}");
}

pub async fn eips_are_attached_moved_and_detached(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let pool = pool(&c, &["198.51.100.0/24", "2001:db8:9::/56"]).await;
    let (a, b) = (c.instance("a").await, c.instance("b").await);
    let web =
        new(s.create_eip(NewEip { attach: Some(to_instance(a.id)), ..new_eip(&c, &pool, "web") }).await);
    let of_a = EipAttachment {
        vpc: c.vpc.id,
        target: EipTarget::Instance(a.id),
        inside: IpNet::from(std::net::IpAddr::from(a.ipv4.unwrap())),
    };
    assert_eq!(web.attachment, Some(of_a));
    assert_eq!(s.eip(web.id).await.unwrap(), web);
    assert_eq!(last(s).await, [Change::EipUpserted(web.clone())]);
    let same =
        s.create_eip(NewEip { attach: Some(to_instance(a.id)), ..new_eip(&c, &pool, "web") }).await.unwrap();
    assert_eq!(same, Created::Existing(web.clone()));
    let unchanged = s.update_eip(web.id, attach(Some(to_instance(a.id))), None).await.unwrap();
    assert_eq!(unchanged.revision, web.revision);

    // One inside address has one EIP; another address of the instance may have another one.
    let mail = eip(&c, &pool, "mail").await;
    let taken = conflict(s.update_eip(mail.id, attach(Some(to_instance(a.id))), None).await);
    assert!(
        matches!(&taken, Conflict::InsideTaken { eip, inside, .. } if eip == "web" && *inside == a.ipv4.unwrap().to_string())
    );
    let second: std::net::IpAddr = "10.0.0.77".parse().unwrap();
    let of = |inside| Attach { target: EipTarget::Instance(a.id), inside: Some(inside) };
    let error = conflict(s.update_eip(mail.id, attach(Some(of(second))), None).await).to_string();
    assert_eq!(error, "instance `a` does not have 10.0.0.77");
    let secondary = |list| PortSettings { secondary_addresses: Some(list), ..PortSettings::default() };
    s.update_instance(a.id, &secondary(vec![second]), None).await.unwrap();
    let mail = s.update_eip(mail.id, attach(Some(of(second))), None).await.unwrap();
    assert_eq!(mail.attachment.unwrap().inside.addr(), second);
    let kept = conflict(s.update_instance(a.id, &secondary(vec![]), None).await).to_string();
    assert_eq!(kept, "address `10.0.0.77` is still used by EIP `mail`");
    let error =
        conflict(s.update_eip(mail.id, attach(Some(of(a.ipv6.unwrap().into()))), None).await).to_string();
    assert!(error.contains("is no IPv4 address"), "{error}");

    // It moves in one step, also back, and detaches.
    let moved = s.update_eip(web.id, attach(Some(to_instance(b.id))), Some(web.revision)).await.unwrap();
    assert_eq!(moved.attachment.unwrap().target, EipTarget::Instance(b.id));
    assert_eq!(last(s).await, [Change::EipUpserted(moved.clone())]);
    assert!(matches!(
        s.update_eip(web.id, attach(None), Some(web.revision)).await,
        Err(StoreError::Stale { .. })
    ));
    let detached = s.update_eip(web.id, attach(None), None).await.unwrap();
    assert_eq!((detached.attachment, detached.prefix), (None, web.prefix));
    s.update_eip(web.id, attach(Some(to_instance(a.id))), None).await.unwrap();

    // The deletion of an instance detaches, in the same revision.
    s.delete_instance(a.id, None).await.unwrap();
    let changes = last(s).await;
    let detached: Vec<_> = [web.id, mail.id].into_iter().collect();
    let eips = changes.iter().filter_map(|change| match change {
        Change::EipUpserted(eip) if eip.attachment.is_none() => Some(eip.id),
        _ => None,
    });
    assert_eq!(eips.collect::<Vec<_>>(), detached, "{changes:?}");
    assert_eq!(s.eip(mail.id).await.unwrap().attachment, None);

    // An attached one can be deleted.
    s.update_eip(mail.id, attach(Some(to_instance(b.id))), None).await.unwrap();
    s.delete_eip(mail.id, None).await.unwrap();
    s.update_eip(web.id, attach(Some(to_instance(b.id))), None).await.unwrap();
}

pub async fn prefixes_are_attached_to_subnets(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let pool = pool(&c, &["198.51.100.0/24", "2001:db8:9::/56"]).await;
    let to = |id| Attach { target: EipTarget::Subnet(id), inside: None };
    let whole = new(s.create_eip(with_length(new_eip(&c, &pool, "whole"), 64)).await);
    let vm = c.instance("vm").await;
    let error = conflict(s.update_eip(whole.id, attach(Some(to_instance(vm.id))), None).await).to_string();
    assert_eq!(error, "EIP `whole` is the prefix 2001:db8:9::/64: attach it to a subnet");
    let single = eip(&c, &pool, "single").await;
    let error = conflict(s.update_eip(single.id, attach(Some(to(c.subnet.id))), None).await).to_string();
    assert_eq!(error, "EIP `single` is the address 198.51.100.1: attach it to an instance");
    let other = c.subnet("v4", &c.vpc, "10.9.0.0/24").await;
    let error = conflict(s.update_eip(whole.id, attach(Some(to(other.id))), None).await).to_string();
    assert_eq!(error, "subnet `v4` has no IPv6 prefix of length 64, as 2001:db8:9::/64 is");

    let attached = s.update_eip(whole.id, attach(Some(to(c.subnet.id))), None).await.unwrap();
    assert_eq!(attached.attachment.unwrap().inside.to_string(), "fd00:1::/64");
    // Addresses inside it have public ones already.
    let v6 =
        new(s.create_eip(NewEip { family: Some(AddressFamily::Ipv6), ..new_eip(&c, &pool, "v6") }).await);
    let taken = conflict(s.update_eip(v6.id, attach(Some(to_instance(vm.id))), None).await).to_string();
    assert!(taken.contains("fd00:1::/64, which has EIP `whole`"), "{taken}");
    s.update_eip(whole.id, attach(None), None).await.unwrap();
    s.update_eip(v6.id, attach(Some(to_instance(vm.id))), None).await.unwrap();
    let taken = conflict(s.update_eip(whole.id, attach(Some(to(c.subnet.id))), None).await).to_string();
    assert!(taken.contains("which has EIP `v6`"), "{taken}");

    // The same prefix is routed; the subnet stays as long as it has it.
    let own = new(s.create_subnet(subnet("own", c.vpc.id, None, Some("2001:db8:9::/64"))).await);
    let routed = s.update_eip(whole.id, attach(Some(to(own.id))), None).await.unwrap();
    assert_eq!(routed.attachment.unwrap().inside, routed.prefix);
    let used = conflict(s.delete_subnet(own.id, None).await).to_string();
    assert_eq!(used, "subnet `own` is still used by EIP `whole`");
    s.update_eip(whole.id, attach(None), None).await.unwrap();
    s.delete_subnet(own.id, None).await.unwrap();
}

pub async fn prefixes_are_mapped_by_nptv6_on_request(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let pool = pool(&c, &["198.51.100.0/24", "2001:db8:9::/56"]).await;
    let mapped = |name: &str| NewEip { nptv6: Some(true), ..new_eip(&c, &pool, name) };
    for single in [mapped("a"), NewEip { family: Some(AddressFamily::Ipv6), ..mapped("a") }] {
        let error = conflict(s.create_eip(single).await);
        let Conflict::Invalid { offender, .. } = &error else { panic!("{error}") };
        assert_eq!(offender, "nptv6", "{error}");
    }
    let whole = new(s.create_eip(with_length(mapped("whole"), 64)).await);
    assert!(whole.nptv6 && s.eip(whole.id).await.unwrap().nptv6);
    // A request without it accepts what there is, and one with another value does not.
    let again = s.create_eip(with_length(new_eip(&c, &pool, "whole"), 64)).await.unwrap();
    assert_eq!(again, Created::Existing(whole.clone()));
    let other = NewEip { nptv6: Some(false), ..with_length(mapped("whole"), 64) };
    let error = conflict(s.create_eip(other).await).to_string();
    assert!(error.contains("nptv6"), "{error}");
    let plain = new(s.create_eip(with_length(new_eip(&c, &pool, "plain"), 64)).await);
    assert!(!plain.nptv6);
    // It stays, whatever else changes.
    let to = Attach { target: EipTarget::Subnet(c.subnet.id), inside: None };
    assert!(s.update_eip(whole.id, attach(Some(to)), None).await.unwrap().nptv6);
    assert!(s.eip(whole.id).await.unwrap().nptv6);
}

pub async fn eips_stay_on_their_cluster(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let other = new(s.create_cluster("c2", &["192.0.2.200".parse().unwrap()], None).await);
    gateway(s, c.cluster.id, 1).await;
    gateway(s, other.id, 2).await;
    let pool = pool(&c, &["203.0.113.0/24"]).await;
    let vm = c.instance("vm").await;
    let web =
        new(s.create_eip(NewEip { attach: Some(to_instance(vm.id)), ..new_eip(&c, &pool, "web") }).await);
    // Peered VPCs move together, so one that has an EIP keeps all.
    let peer = c.vpc("v2").await;
    c.peer("p", &c.vpc, &peer).await;
    for vpc in [c.vpc.id, peer.id] {
        let refused = conflict(s.move_vpc(vpc, other.id, None).await);
        let (vpc, eip, cluster) = ("v1".to_owned(), "web".to_owned(), "c1".to_owned());
        assert_eq!(refused, Conflict::VpcHasEip { vpc, eip, cluster });
        assert!(s.vpc(peer.id).await.unwrap().moving.is_none());
    }
    s.update_eip(web.id, attach(None), None).await.unwrap();
    let moving = s.move_vpc(c.vpc.id, other.id, None).await.unwrap().moving.unwrap();
    let refused = conflict(s.update_eip(web.id, attach(Some(to_instance(vm.id))), None).await);
    assert!(matches!(refused, Conflict::VpcMoves { .. }), "{refused}");
    for switched in [false, true] {
        assert!(s.advance_move(moving.id, switched).await.unwrap());
    }
    let refused = conflict(s.update_eip(web.id, attach(Some(to_instance(vm.id))), None).await).to_string();
    let text = "EIP `web` is from a pool of cluster `c1`, but VPC `v1` is on cluster `c2`";
    assert_eq!(refused, text);
    let stranger = new(s.create_tenant("stranger").await);
    let theirs = NewEip { tenant: stranger.id, ..new_eip(&c, &pool, "theirs") };
    let theirs = new(s.create_eip(theirs).await);
    let refused = conflict(s.update_eip(theirs.id, attach(Some(to_instance(vm.id))), None).await);
    assert_eq!(refused, Conflict::EipAcrossTenants { eip: "theirs".into(), vpc: "v1".into() });
    let missing = s.update_eip(web.id, attach(Some(to_instance(InstanceId::new(9999)))), None).await;
    assert!(matches!(missing, Err(StoreError::NotFound { kind: "instance", .. })));
}

pub async fn internet_routes(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let wanted = c.route(&c.vpc, "0.0.0.0/0", RouteTarget::Internet).await;
    let route = new(s.create_route(wanted.clone()).await);
    assert_eq!(route.target, RouteTarget::Internet);
    let expected = Change::RouteUpserted { vpc: c.vpc.clone(), route: route.clone(), peer: None };
    assert_eq!(last(s).await, [expected]);
    assert_eq!(s.create_route(wanted).await.unwrap(), Created::Existing(route.clone()));
    let differs = conflict(s.create_route(c.route(&c.vpc, "0.0.0.0/0", RouteTarget::Drop).await).await);
    assert!(differs.to_string().contains("target is internet, not drop"), "{differs}");
    let drop = new(s.create_route(c.route(&c.vpc, "::/0", RouteTarget::Drop).await).await);
    assert_eq!(s.routes(route.table, ALL).await.unwrap(), [route.clone(), drop.clone()]);
    assert_eq!(topology(s).await.routes, [(c.vpc.id, route.clone()), (c.vpc.id, drop)]);
    s.delete_route(route.id, None).await.unwrap();
    assert_eq!(last(s).await, [Change::RouteRemoved { vpc: c.vpc.clone(), route }]);
}
