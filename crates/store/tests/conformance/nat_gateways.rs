//! NAT gateways: their addresses, which EIPs could have, too, their limits, and where they stay.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, gateway, last, new, peering, subnet};
use crate::internet::{eip, nets, new_eip, pool, topology, with_address};
use sluice_store::{
    Change, Conflict, Created, NatAddresses, NatGateway, NatGatewayFilter, NatGatewayUpdate, NewNatGateway,
    NewPublicPool, NodeId, NodeState, PortSettings, PublicPool, PublicPoolUpdate, ReleaseOf, Removal,
    RouteTarget, Store, StoreError, Vpc,
};
use sluice_types::{NatFiltering, NatMapping};
use std::net::Ipv4Addr;

pub fn new_nat(vpc: &Vpc, pool: &PublicPool, name: &str) -> NewNatGateway {
    NewNatGateway {
        name: name.into(),
        vpc: vpc.id,
        pool: pool.id,
        addresses: None,
        sessions: None,
        blocks: None,
        filtering: None,
        mapping: None,
        nat64_prefix: None,
    }
}

pub fn these(addresses: &[&str]) -> NatAddresses {
    NatAddresses::These(addresses.iter().map(|address| address.parse().unwrap()).collect())
}

fn v4(low: &[u8]) -> Vec<Ipv4Addr> {
    low.iter().map(|low| Ipv4Addr::new(198, 51, 100, *low)).collect()
}

pub fn addresses(wanted: NatAddresses) -> NatGatewayUpdate {
    NatGatewayUpdate { addresses: Some(wanted), ..NatGatewayUpdate::default() }
}

/// Ends a removal as if its nodes had acknowledged it.
async fn release(s: &Store, removal: Removal) {
    let of = ReleaseOf { nodes: removal.nodes, up_to: removal.revision, deleted_before_ms: u64::MAX };
    assert_eq!(s.release_removals(&of).await.unwrap(), 1);
}

pub async fn nat_gateways(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let pool = pool(&c, &["198.51.100.0/28", "2001:db8:9::/56"]).await;
    let made = new(s.create_nat_gateway(new_nat(&c.vpc, &pool, "out")).await);
    let expected = NatGateway {
        id: made.id,
        name: "out".into(),
        vpc: c.vpc.id,
        pool: pool.id,
        cluster: c.cluster.id,
        addresses: v4(&[1]),
        sessions: 10_000,
        blocks: 4,
        filtering: NatFiltering::AddressAndPortDependent,
        mapping: NatMapping::EndpointIndependent,
        nat64_prefix: None,
        revision: made.revision,
    };
    assert_eq!(made, expected);
    assert_eq!(last(s).await, [Change::NatGatewayUpserted(made.clone())]);
    assert_eq!(s.nat_gateway(made.id).await.unwrap(), made);
    assert_eq!(topology(s).await.nat_gateways, std::slice::from_ref(&made));
    let again = s.create_nat_gateway(new_nat(&c.vpc, &pool, "out")).await.unwrap();
    assert_eq!(again, Created::Existing(made.clone()));
    let other = conflict(s.create_nat_gateway(new_nat(&c.vpc, &pool, "second")).await);
    assert_eq!(other.to_string(), "VPC `v1` has NAT gateway `out`, and a VPC has at most one");
    let more = NewNatGateway { sessions: Some(9), ..new_nat(&c.vpc, &pool, "out") };
    let more = NewNatGateway { addresses: Some(NatAddresses::Number(2)), ..more };
    let differs = conflict(s.create_nat_gateway(more).await).to_string();
    assert!(differs.contains("the number of addresses is 1, not 2, sessions is 10000, not 9"), "{differs}");

    let all = NatGatewayUpdate {
        name: Some("nat".into()),
        addresses: Some(NatAddresses::Number(3)),
        sessions: Some(1),
        blocks: Some(16),
        filtering: None,
        mapping: Some(NatMapping::EndpointDependent),
        nat64_prefix: Some(Some("64:ff9b::/96".parse().unwrap())),
    };
    let changed = s.update_nat_gateway(made.id, all.clone(), Some(made.revision)).await.unwrap();
    let expected = NatGateway {
        name: "nat".into(),
        addresses: v4(&[1, 2, 3]),
        sessions: 1,
        blocks: 16,
        mapping: NatMapping::EndpointDependent,
        nat64_prefix: Some("64:ff9b::/96".parse().unwrap()),
        revision: changed.revision,
        ..made.clone()
    };
    assert_eq!(changed, expected);
    assert!(changed.revision > made.revision);
    assert_eq!(last(s).await, [Change::NatGatewayUpserted(changed.clone())]);
    let unchanged = s.update_nat_gateway(made.id, all, None).await.unwrap();
    assert_eq!(unchanged, changed);
    let filters_less = NatGatewayUpdate {
        filtering: Some(NatFiltering::EndpointIndependent),
        ..NatGatewayUpdate::default()
    };
    let refused = conflict(s.update_nat_gateway(made.id, filters_less.clone(), None).await);
    assert!(matches!(&refused, Conflict::Invalid { offender, .. } if offender == "mapping"), "{refused}");
    let back = NatGatewayUpdate { mapping: Some(NatMapping::EndpointIndependent), ..filters_less };
    let changed = s.update_nat_gateway(made.id, back, None).await.unwrap();
    let now = (changed.filtering, changed.mapping);
    assert_eq!(now, (NatFiltering::EndpointIndependent, NatMapping::EndpointIndependent));
    let stale = s.update_nat_gateway(made.id, NatGatewayUpdate::default(), Some(made.revision)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));

    are_listed(&c, &pool, &changed).await;
    s.delete_subnet(c.subnet.id, None).await.unwrap();
    what_it_uses_stays(&c, &pool).await;
    s.delete_nat_gateway(made.id, None).await.unwrap();
    assert_eq!(last(s).await, [Change::NatGatewayRemoved(changed)]);
    s.delete_vpc(c.vpc.id, None).await.unwrap();
    s.delete_public_pool(pool.id, None).await.unwrap();
}

async fn are_listed(c: &Cloud, pool: &PublicPool, nat_gateway: &NatGateway) {
    let listed = async |filter| c.store.nat_gateways(&filter, ALL).await.unwrap();
    let of_pool = NatGatewayFilter { pool: Some(pool.id), name: Some("nat".into()), vpc: None };
    assert_eq!(listed(of_pool).await, std::slice::from_ref(nat_gateway));
    let of_vpc = NatGatewayFilter { vpc: Some(c.vpc("v2").await.id), ..NatGatewayFilter::default() };
    assert_eq!(listed(of_vpc).await, []);
}

/// Its VPC, its pool and the prefixes of its addresses cannot be removed.
async fn what_it_uses_stays(c: &Cloud, pool: &PublicPool) {
    let s = c.store.as_ref();
    let used = conflict(s.delete_vpc(c.vpc.id, None).await).to_string();
    assert_eq!(used, "VPC `v1` is still used by NAT gateway `nat`");
    let used = conflict(s.delete_public_pool(pool.id, None).await).to_string();
    assert!(used.starts_with("public pool `public` is still used by NAT gateway `nat` (nat-"), "{used}");
    let update = async |update: PublicPoolUpdate| conflict(s.update_public_pool(pool.id, update, None).await);
    let shrunk = PublicPoolUpdate { prefixes: Some(nets(&["2001:db8:9::/56"])), ..Default::default() };
    let text = update(shrunk).await.to_string();
    assert!(text.starts_with("prefix `198.51.100.0/28` is still used by NAT gateway `nat` (nat-"), "{text}");
    let reserved = PublicPoolUpdate { reserved: Some(nets(&["198.51.100.2/31"])), ..Default::default() };
    let text = update(reserved).await.to_string();
    assert!(text.ends_with(", 198.51.100.2)") || text.ends_with(", 198.51.100.3)"), "{text}");
}

pub async fn addresses_of_nat_gateways(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let pool = pool(&c, &["198.51.100.0/29", "2001:db8:9::/56"]).await;
    let web = eip(&c, &pool, "web").await;
    let with =
        |wanted: NatAddresses| NewNatGateway { addresses: Some(wanted), ..new_nat(&c.vpc, &pool, "out") };
    let refused = async |new| conflict(s.create_nat_gateway(new).await).to_string();
    let many: Vec<String> = (1..=17).map(|low| format!("198.51.100.{low}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (wanted, text) in [
        (these(&[]), "a NAT gateway has 1 to 16 addresses, not 0"),
        (these(&many), "a NAT gateway has 1 to 16 addresses, not 17"),
        (NatAddresses::Number(0), "a NAT gateway has 1 to 16 addresses, not 0"),
        (NatAddresses::Number(17), "a NAT gateway has 1 to 16 addresses, not 17"),
        (NatAddresses::Number(6), "public pool `public` has only 5 free of the 6 addresses"),
        (these(&["198.51.100.3", "198.51.100.3"]), "198.51.100.3 is given twice"),
        (
            these(&["198.51.100.2", "2001:db8:9::1"]),
            "2001:db8:9::1 is an ipv6 address, and NAT gateways have ipv4 only",
        ),
        (
            these(&["198.51.100.2", "198.51.100.1"]),
            "198.51.100.1 has an address in common with 198.51.100.1 of EIP `web` (EIP)",
        ),
        (these(&["198.51.100.7"]), "198.51.100.7 is the broadcast address of 198.51.100.0/29"),
        (these(&["203.0.113.1"]), "203.0.113.1 is not in a prefix of public pool `public`"),
    ] {
        assert_eq!(refused(with(wanted)).await, text.replace("(EIP)", &format!("({})", web.id)));
    }
    let limits = |sessions, blocks| NewNatGateway { sessions, blocks, ..new_nat(&c.vpc, &pool, "out") };
    for (sessions, blocks, text) in [
        (Some(0), None, "expected 1 to 1000000 sessions, not 0"),
        (Some(1_000_001), None, "expected 1 to 1000000 sessions, not 1000001"),
        (None, Some(0), "expected 1 to 16 blocks, not 0"),
        (None, Some(17), "expected 1 to 16 blocks, not 17"),
    ] {
        assert_eq!(refused(limits(sessions, blocks)).await, text);
    }
    let v6 = new(s.create_public_pool(crate::internet::new_pool(&c, "v6", &["2001:db8:a::/56"])).await);
    let text = refused(new_nat(&c.vpc, &v6, "out")).await;
    assert_eq!(text, "public pool `v6` has no IPv4 address, and NAT gateways have no other ones");

    let made = new(s.create_nat_gateway(with(these(&["198.51.100.5", "198.51.100.3"]))).await);
    assert_eq!(made.addresses, v4(&[3, 5]));
    // No other NAT gateway and no EIP gets them.
    let taken =
        format!("198.51.100.3 has an address in common with 198.51.100.3 of NAT gateway `out` ({})", made.id);
    let second = c.vpc("v2").await;
    let text = refused(NewNatGateway { vpc: second.id, ..with(these(&["198.51.100.3"])) }).await;
    assert_eq!(text, taken);
    let refused = s.create_eip(with_address(new_eip(&c, &pool, "x"), "198.51.100.3")).await;
    assert_eq!(conflict(refused).to_string(), taken);
    assert_eq!(eip(&c, &pool, "low").await.prefix.to_string(), "198.51.100.2/32");
    assert_eq!(eip(&c, &pool, "high").await.prefix.to_string(), "198.51.100.4/32");
    let more = s.update_nat_gateway(made.id, addresses(NatAddresses::Number(3)), None).await.unwrap();
    assert_eq!(more.addresses, v4(&[3, 5, 6]));
    let full = conflict(s.create_eip(new_eip(&c, &pool, "x")).await).to_string();
    assert_eq!(full, "public pool `public` has no free IPv4 address");

    lost_addresses_are_held(&c, &pool, more).await;
}

/// What a NAT gateway loses is free when the gateways of the cluster have removed it.
async fn lost_addresses_are_held(c: &Cloud, pool: &PublicPool, nat_gateway: NatGateway) {
    let s = c.store.as_ref();
    let node = NodeId::Gateway(gateway(s, c.cluster.id, 77).await);
    let state = NodeState { node, acknowledged_revision: 0, last_seen_ms: 0, failures: vec![] };
    s.save_node_states(&[state]).await.unwrap();
    let id = nat_gateway.id;
    // It keeps one, and gets the others of the request.
    let fewer = s.update_nat_gateway(id, addresses(these(&["198.51.100.5"])), None).await.unwrap();
    assert_eq!(fewer.addresses, v4(&[5]));
    let removal = s.removal(fewer.revision).await.unwrap().unwrap();
    let found = (removal.kind.as_str(), removal.name.as_str(), removal.object, removal.nodes.clone());
    assert_eq!(found, ("address of NAT gateway", "out", id.get(), vec![node]));
    for low in [3, 6] {
        let wanted = with_address(new_eip(c, pool, "x"), &format!("198.51.100.{low}"));
        let text = conflict(s.create_eip(wanted).await).to_string();
        assert!(text.starts_with(&format!("198.51.100.{low} is held until")), "{text}");
        assert!(text.contains("address of NAT gateway `out`"), "{text}");
    }
    let back = conflict(s.update_nat_gateway(id, addresses(NatAddresses::Number(2)), None).await);
    assert!(matches!(back, Conflict::PoolFull { .. }), "{back}");
    release(s, removal).await;
    assert_eq!(eip(c, pool, "x").await.prefix.to_string(), "198.51.100.3/32");
    let two = s.update_nat_gateway(id, addresses(NatAddresses::Number(2)), None).await.unwrap();
    assert_eq!(two.addresses, v4(&[5, 6]));
    let one = s.update_nat_gateway(id, addresses(NatAddresses::Number(1)), None).await.unwrap();
    assert_eq!(one.addresses, v4(&[5]), "the highest goes first");
    release(s, s.removal(one.revision).await.unwrap().unwrap()).await;

    let revision = s.delete_nat_gateway(id, Some(one.revision)).await.unwrap();
    let removal = s.removal(revision).await.unwrap().unwrap();
    assert_eq!((removal.kind.as_str(), removal.name.as_str()), ("NAT gateway", "out"));
    let again = NewNatGateway { addresses: Some(these(&["198.51.100.5"])), ..new_nat(&c.vpc, pool, "out") };
    let text = conflict(s.create_nat_gateway(again.clone()).await).to_string();
    assert!(text.starts_with("198.51.100.5 is held until") && text.contains("NAT gateway `out`"), "{text}");
    release(s, removal).await;
    new(s.create_nat_gateway(again).await);
}

pub async fn prefixes_of_nat64(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let pool = pool(&c, &["203.0.113.0/24"]).await;
    let with = |prefix: &str| NewNatGateway {
        nat64_prefix: Some(prefix.parse().unwrap()),
        ..new_nat(&c.vpc, &pool, "out")
    };
    for no in [
        "64:ff9b::/64",
        "64:ff9b::/95",
        "64:ff9b::/128",
        "2001:db8:0:0:100::/96",
        "198.51.100.0/24",
        "fe80::/96",
        "ff02::/96",
    ] {
        let text = conflict(s.create_nat_gateway(with(no)).await).to_string();
        let expected =
            "expected a unicast IPv6 prefix of length 96 whose bits 64 to 71 are 0, as 64:ff9b::/96, not ";
        assert_eq!(text, format!("{expected}{no}"));
    }
    new(s.create_subnet(subnet("six", c.vpc.id, None, Some("2001:db8:64::/64"))).await);
    no_prefix_of_nat64_is_public(&c, with("2001:db8:68::/96")).await;
    let text = conflict(s.create_nat_gateway(with("2001:db8:64::/96")).await).to_string();
    assert_eq!(
        text,
        "NAT64 prefix 2001:db8:64::/96 of NAT gateway `out` overlaps 2001:db8:64::/64 of subnet `six`"
    );
    let route = |prefix: &'static str, target| c.route(&c.vpc, prefix, target);
    new(s.create_route(route("2001:db8:65::1/128", RouteTarget::Drop).await).await);
    let text = conflict(s.create_nat_gateway(with("2001:db8:65::/96")).await).to_string();
    assert_eq!(text, "NAT64 prefix 2001:db8:65::/96 of NAT gateway `out` overlaps route 2001:db8:65::1/128");
    // Routes to the Internet, and shorter ones, are not in its way.
    new(s.create_route(route("64:ff9b::c000:0/112", RouteTarget::Internet).await).await);
    new(s.create_route(route("::/0", RouteTarget::Drop).await).await);
    let made = new(s.create_nat_gateway(with("64:ff9b::/96")).await);
    assert_eq!(made.nat64_prefix, Some("64:ff9b::/96".parse().unwrap()));
    let differs = conflict(s.create_nat_gateway(with("2001:db8:66::/96")).await).to_string();
    assert!(differs.contains("nat64_prefix is 64:ff9b::/96, not 2001:db8:66::/96"), "{differs}");
    // What is new must not overlap it.
    let text =
        conflict(s.create_subnet(subnet("seven", c.vpc.id, None, Some("64:ff9b::/64"))).await).to_string();
    assert_eq!(text, "NAT64 prefix 64:ff9b::/96 of NAT gateway `out` overlaps 64:ff9b::/64");
    let text = conflict(s.create_route(route("64:ff9b::1/128", RouteTarget::Drop).await).await).to_string();
    assert_eq!(text, "NAT64 prefix 64:ff9b::/96 of NAT gateway `out` overlaps 64:ff9b::1/128");
    new(s.create_route(route("64:ff9b::2/128", RouteTarget::Internet).await).await);
    no_prefix_of_nat64_is_delegated(&c).await;
    // Nor what a peered VPC has, whichever of them is first.
    let peer = c.vpc("peer").await;
    let taken = new(s.create_subnet(subnet("taken", peer.id, None, Some("64:ff9b::/64"))).await);
    let text = conflict(s.create_peering(peering("p", &c.vpc, &peer)).await).to_string();
    assert_eq!(text, "NAT64 prefix 64:ff9b::/96 of NAT gateway `out` overlaps 64:ff9b::/64");
    s.delete_subnet(taken.id, None).await.unwrap();
    new(s.create_peering(peering("p", &c.vpc, &peer)).await);
    let late = s.create_subnet(subnet("late", peer.id, None, Some("64:ff9b::/64"))).await;
    assert_eq!(conflict(late).to_string(), text);
    new(s.create_subnet(subnet("far", peer.id, None, Some("2001:db8:67::/64"))).await);
    let change = |prefix: Option<&str>| NatGatewayUpdate {
        nat64_prefix: Some(prefix.map(|prefix| prefix.parse().unwrap())),
        ..NatGatewayUpdate::default()
    };
    let of_peer = conflict(s.update_nat_gateway(made.id, change(Some("2001:db8:67::/96")), None).await);
    let expected = "NAT64 prefix 2001:db8:67::/96 of NAT gateway `out` overlaps 2001:db8:67::/64 of subnet `far` of the \
                    peered VPC `peer`";
    assert_eq!(of_peer.to_string(), expected);
    let text =
        conflict(s.update_nat_gateway(made.id, change(Some("2001:db8:64::/96")), None).await).to_string();
    assert!(text.contains("overlaps 2001:db8:64::/64 of subnet `six`"), "{text}");
    let changed = s.update_nat_gateway(made.id, change(Some("2001:db8:66::/96")), None).await.unwrap();
    assert_eq!(changed.nat64_prefix, Some("2001:db8:66::/96".parse().unwrap()));
    let text = conflict(s.create_public_pool(public_prefix(&c, "2001:db8:66::/48")).await).to_string();
    assert_eq!(text, "NAT64 prefix 2001:db8:66::/96 of NAT gateway `out` overlaps 2001:db8:66::/48");
    let none = s.update_nat_gateway(made.id, change(None), None).await.unwrap();
    assert_eq!(none.nat64_prefix, None);
    assert_eq!(s.nat_gateway(made.id).await.unwrap(), none);
}

/// A pool with this prefix of IPv6.
fn public_prefix(c: &Cloud, prefix: &str) -> NewPublicPool {
    let prefixes = vec![prefix.parse().unwrap()];
    NewPublicPool { name: "six".into(), cluster: c.cluster.id, prefixes, reserved: Vec::new() }
}

async fn no_prefix_of_nat64_is_public(c: &Cloud, wanted: NewNatGateway) {
    let s = c.store.as_ref();
    let public = new(s.create_public_pool(public_prefix(c, "2001:db8:68::/48")).await);
    let text = conflict(s.create_nat_gateway(wanted).await).to_string();
    let expected =
        "NAT64 prefix 2001:db8:68::/96 of NAT gateway `out` overlaps 2001:db8:68::/48 of public pool `six`";
    assert_eq!(text, expected);
    s.delete_public_pool(public.id, None).await.unwrap();
}

async fn no_prefix_of_nat64_is_delegated(c: &Cloud) {
    let vm = c.instance("vm").await;
    let inside = "64:ff9b::c633:6400/120".parse().unwrap();
    let settings = PortSettings { delegated_prefixes: Some(vec![inside]), ..PortSettings::default() };
    let text = conflict(c.store.update_instance(vm.id, &settings, None).await).to_string();
    assert_eq!(text, format!("NAT64 prefix 64:ff9b::/96 of NAT gateway `out` overlaps {inside}"));
}

pub async fn nat_gateways_stay_on_their_cluster(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let other = new(s.create_cluster("c2", &["192.0.2.200".parse().unwrap()], None).await);
    gateway(s, c.cluster.id, 1).await;
    gateway(s, other.id, 2).await;
    let pool = pool(&c, &["203.0.113.0/24"]).await;
    let made = new(s.create_nat_gateway(new_nat(&c.vpc, &pool, "out")).await);
    // Peered VPCs move together, so one that has a NAT gateway keeps all.
    let peer = c.vpc("v2").await;
    c.peer("p", &c.vpc, &peer).await;
    for vpc in [c.vpc.id, peer.id] {
        let refused = conflict(s.move_vpc(vpc, other.id, None).await);
        let (vpc, nat_gateway, cluster) = ("v1".to_owned(), "out".to_owned(), "c1".to_owned());
        assert_eq!(refused, Conflict::NatGatewayStays { vpc, nat_gateway, cluster });
        assert!(s.vpc(peer.id).await.unwrap().moving.is_none());
    }
    s.delete_nat_gateway(made.id, None).await.unwrap();
    let moving = s.move_vpc(c.vpc.id, other.id, None).await.unwrap().moving.unwrap();
    let refused = conflict(s.create_nat_gateway(new_nat(&c.vpc, &pool, "out")).await);
    assert!(matches!(refused, Conflict::VpcMoves { .. }), "{refused}");
    for switched in [false, true] {
        assert!(s.advance_move(moving.id, switched).await.unwrap());
    }
    let refused = conflict(s.create_nat_gateway(new_nat(&c.vpc, &pool, "out")).await).to_string();
    assert_eq!(refused, "public pool `public` is on cluster `c1`, but VPC `v1` is on cluster `c2`");
}
