use super::*;
use crate::cluster::{ClusterKeys, ClusterPlan, Key, Member, PlannedVip, PreferredOwner};
use crate::entries::{
    AddressPair, ELEPHANT_NEVER, MemberProbe, Meter, MigrationPhase, MigrationSide, MigrationState,
    NatGateway, Path, PathKey, Policy, PolicyKey, PortMigration, PublicPrefix, SecurityRule, Service,
    ServiceAddress, Vtep, VtepRole,
};
use sluice_types::{
    AddressFamily, Allowance, ClusterId, CreditPolicy, Direction, ForwardProtocol, GatewayId, MeterLimit,
    MigrationKey, NatSeed, PortForward, PortRange, Protocol, Remote, RuleMatch, Secret, SecurityGroupId,
    SecurityRuleId, ServiceMember, SessionMode,
};

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn plan() -> ClusterPlan {
    let vip = |slot, address: &str| PlannedVip {
        slot,
        address: address.parse().unwrap(),
        mac: MacAddr::local(slot.into()),
    };
    let (one, two) = (GatewayId::new(1), GatewayId::new(2));
    let member = Member {
        gateway: one,
        vtep4: Some("192.0.2.1".parse().unwrap()),
        vtep6: Some("fd00::1".parse().unwrap()),
        draining: false,
    };
    ClusterPlan {
        cluster: ClusterId::new(3),
        revision: 17,
        vips: vec![vip(0, "192.0.2.9"), vip(127, "fd00::9")],
        members: vec![member, Member { gateway: two, vtep4: None, draining: true, ..member }],
        preferred_owners: vec![
            PreferredOwner { slot: 0, gateway: one },
            PreferredOwner { slot: 127, gateway: two },
        ],
        hello_interval_ms: 250,
        nat_seed: NatSeed::new(u64::MAX - 5),
    }
}

fn keys() -> ClusterKeys {
    let key = |id: u32| Key {
        id,
        secret: Secret::new(std::array::from_fn(|i| i as u8 ^ id as u8)),
        not_before_ms: 5,
        not_after_ms: 6 + u64::from(id),
    };
    ClusterKeys { cluster: 3, keys: vec![key(1), key(9)] }
}

fn vrfs() -> Vec<Vrf> {
    let full = Vrf {
        vni: vni(5),
        mtu: 1430,
        router4: Some("10.0.0.1".parse().unwrap()),
        router6: Some("2001:db8::1".parse().unwrap()),
        group: Some(1),
        elephant_kbps: 20,
        internet_meter: Some(u32::MAX),
    };
    let bare = Vrf {
        vni: Vni::new(Vni::MAX).unwrap(),
        mtu: 1280,
        router4: None,
        router6: None,
        group: None,
        elephant_kbps: ELEPHANT_NEVER,
        internet_meter: None,
    };
    vec![full, bare]
}

fn policies() -> Vec<Policy> {
    let (to, from) = (Direction::Ingress, Direction::Egress);
    let (v4, v6) = (AddressFamily::Ipv4, AddressFamily::Ipv6);
    let group = SecurityGroupId::new(3);
    let any = |direction, family, remote| RuleMatch::everything(direction, family, remote);
    let prefix = |text: &str| Remote::Prefix(text.parse().unwrap());
    let ports = PortRange::new(0, 65_535).ok();
    let matches = [
        any(from, v6, Remote::Any),
        RuleMatch { protocol: Protocol::TCP, ports, ..any(to, v4, prefix("10.0.0.0/8")) },
        RuleMatch { protocol: Protocol::ICMP, icmp_type: Some(0), ..any(to, v4, Remote::Group(group)) },
        RuleMatch {
            protocol: Protocol::ICMPV6,
            icmp_type: Some(255),
            icmp_code: Some(0),
            ..any(to, v6, prefix("2001:db8::/32"))
        },
    ];
    let rule = |(at, matches)| SecurityRule { id: SecurityRuleId::new(at as u64 + 5), matches };
    let key = PolicyKey { vni: vni(5), identity: 7 };
    let full = Policy {
        key,
        rules: matches.into_iter().enumerate().map(rule).collect(),
        groups: [(group, vec![1, 7, u16::MAX]), (SecurityGroupId::new(4), Vec::new())].into(),
    };
    let empty = PolicyKey { identity: u16::MAX, ..key };
    vec![full, Policy { key: empty, rules: Vec::new(), groups: Default::default() }]
}

/// Everything that a port can have besides its addresses.
fn options() -> PortOptions {
    PortOptions {
        additional: vec![
            "10.0.0.3/32".parse().unwrap(),
            "2001:db8:9::/64".parse().unwrap(),
            "0.0.0.0/0".parse().unwrap(),
        ],
        pairs: vec![
            AddressPair { address: "10.0.0.4".parse().unwrap(), mac: Some(MacAddr::local(4)), held: true },
            AddressPair { address: "2001:db8::4".parse().unwrap(), mac: None, held: false },
        ],
        unprotected: true,
        qos: Qos { dscp: Some(46), rate_mbps: std::num::NonZeroU32::new(100), credit: None },
        member: Some(MemberProbe { interval_ms: 10, failures: 3, epoch: 9 }),
        bonded: true,
    }
}

fn policy() -> CreditPolicy {
    let mbps = Some(Allowance { base: 100, max: 400, clamp: 200, credit: 3000 });
    let cpu_permille = Some(Allowance { base: 1, max: 64_000, clamp: 64_000, credit: 63_999 * 86_400 });
    CreditPolicy { mbps, kpps: None, cpu_permille }
}

/// Catches a dimension that arrives as another one, and policies that no instance can have.
#[test]
fn ports_have_credit_policies() {
    let qos = Qos { credit: Some(policy()), ..Qos::default() };
    let message = proto::Qos::from(qos);
    assert_eq!(Qos::try_from(message), Ok(qos));
    let all = CreditPolicy { kpps: policy().mbps, ..policy() };
    assert_eq!(CreditPolicy::try_from(proto::CreditPolicy::from(all)), Ok(all));
    let damage: [fn(&mut proto::Qos); 4] = [
        |m| m.rate_mbps = 100,
        |m| m.credit = Some(proto::CreditPolicy::default()),
        |m| m.credit.as_mut().unwrap().mbps.as_mut().unwrap().clamp = 401,
        |m| m.credit.as_mut().unwrap().cpu_permille.as_mut().unwrap().credit += 1,
    ];
    for (index, damage) in damage.into_iter().enumerate() {
        let mut message = proto::Qos::from(qos);
        damage(&mut message);
        assert!(Qos::try_from(message).is_err(), "damage {index}");
    }
}

fn public_prefixes() -> Vec<PublicPrefix> {
    let public = |outside: &str, inside: &str, vip: &str, meter| PublicPrefix {
        outside: outside.parse().unwrap(),
        vni: vni(5),
        inside: inside.parse().unwrap(),
        vip: vip.parse().unwrap(),
        meter,
        nptv6: false,
    };
    vec![
        public("198.51.100.1/32", "10.0.0.2/32", "fd00::9", Some(9)),
        public("2001:db8:9::/64", "2001:db8:9::/64", "192.0.2.9", None),
        PublicPrefix { nptv6: true, ..public("2001:db8:a::/48", "fd00::/48", "192.0.2.9", None) },
    ]
}

/// Catches: a prefix that would be translated to one of another size or family.
#[test]
fn public_addresses_have_one_address_each() {
    let message = |change: fn(&mut proto::PublicPrefix)| {
        let mut message = proto::PublicPrefix::from(public_prefixes()[0]);
        change(&mut message);
        PublicPrefix::try_from(message)
    };
    assert!(message(|_| ()).is_ok());
    assert!(matches!(
        message(|public| public.inside.as_mut().unwrap().length = 31),
        Err(Malformed::Translation { .. })
    ));
    assert!(matches!(
        message(|public| public.inside = Some("2001:db8::/32".parse::<IpNet>().unwrap().into())),
        Err(Malformed::Translation { .. })
    ));
    assert_eq!(message(|public| public.vip = None), Err(Malformed::NoAddress("public prefix's vIP")));
    assert!(message(|public| public.vni = 0).is_err());
    assert!(message(|public| public.outside.as_mut().unwrap().length = 8).is_err());
    assert!(matches!(message(|public| public.nptv6 = true), Err(Malformed::Translation { .. })));
}

fn nat_gateway() -> NatGateway {
    NatGateway {
        vni: vni(5),
        addresses: vec!["198.51.100.8".parse().unwrap(), "198.51.100.9".parse().unwrap()],
        vip: "fd00::9".parse().unwrap(),
        sessions: 10_000,
        blocks: 16,
        any_remote: true,
        shares_ports: false,
        forwards: [ForwardProtocol::Tcp, ForwardProtocol::Udp]
            .map(|protocol| PortForward {
                protocol,
                outside: "198.51.100.8:53".parse().unwrap(),
                inside: "10.0.0.7:5353".parse().unwrap(),
            })
            .to_vec(),
        nat64: "64:ff9b::".parse().ok(),
    }
}

/// Catches: limits that would let no packet pass, or that the tables cannot hold.
#[test]
fn nat_gateways_have_addresses_and_limits() {
    let damage: Vec<fn(&mut proto::NodeUpdate)> = vec![
        |update| update.nat_gateways[0].addresses.clear(),
        |update| update.nat_gateways[0].addresses = (1..=17).map(|low| 0xc633_6400 + low).collect(),
        |update| update.nat_gateways[0].addresses.reverse(),
        |update| update.nat_gateways[0].addresses[1] = 0xc633_6408,
        |update| update.nat_gateways[0].addresses[0] = 0,
        |update| update.nat_gateways[0].sessions = 0,
        |update| update.nat_gateways[0].blocks = 0,
        |update| update.nat_gateways[0].blocks = 17,
        |update| update.nat_gateways[0].forwards[0].protocol = 0,
        |update| update.nat_gateways[0].forwards[0].port = 0x10035,
        |update| update.nat_gateways[0].forwards[0].inside_port = 0,
        |update| update.nat_gateways[0].forwards[1].protocol = 6,
        |update| update.nat_gateways[0].forwards[1].address = 0xc633_640a,
        |update| update.nat_gateways[0].vip = None,
        |update| update.nat_gateways[0].vni = 0,
        |update| update.nat_gateways[0].nat64_prefix.as_mut().unwrap().low = 1,
    ];
    reports_each(damage);
}

fn meters() -> Vec<Meter> {
    let limit = |rate_kbps, burst_bytes| Some(MeterLimit { rate_kbps, burst_bytes });
    vec![
        Meter { id: 9, inward: limit(64, 16_384), outward: limit(400_000_000, 50_000_000_000) },
        Meter { id: u32::MAX, inward: None, outward: limit(8_000, 400_000) },
        Meter { id: 10, inward: limit(8_000, 400_000), outward: None },
    ]
}

/// Catches: limits that the tables cannot hold. A rate of 0 is no limit.
#[test]
fn meters_have_limits_in_range() {
    let damage: Vec<fn(&mut proto::NodeUpdate)> = vec![
        |update| update.meters[0].id = 0,
        |update| update.meters[0].r#in.as_mut().unwrap().rate_kbps = 63,
        |update| update.meters[0].r#in.as_mut().unwrap().burst_bytes = 16_383,
        |update| update.meters[0].out.as_mut().unwrap().rate_kbps = 400_000_001,
        |update| update.meters[0].out.as_mut().unwrap().burst_bytes = u64::MAX,
        |update| update.removed_meters[0] = 0,
    ];
    reports_each(damage);
    let without = proto::Meter { r#in: Some(proto::MeterLimit::default()), ..meters()[0].into() };
    assert_eq!(Meter::try_from(without), Ok(Meter { inward: None, ..meters()[0] }));
}

fn route_key(prefix: &str) -> RouteKey {
    RouteKey { vni: vni(5), prefix: prefix.parse().unwrap() }
}

fn routes() -> Vec<Route> {
    let scopes = [
        ("10.0.0.0/24", Scope::Local),
        ("2001:db8:1::/48", Scope::Peer(vni(6))),
        ("2001:db8:2::/48", Scope::MeteredPeer { vni: vni(6), out_meter: Some(1), in_meter: None }),
        ("2001:db8:3::/48", Scope::MeteredPeer { vni: vni(6), out_meter: None, in_meter: Some(2) }),
        ("0.0.0.0/0", Scope::Drop),
        ("10.9.0.0/16", Scope::NextHop("2001:db8::2".parse().unwrap())),
        ("0.0.0.0/1", Scope::Internet),
    ];
    scopes.map(|(prefix, scope)| Route { key: route_key(prefix), scope }).into()
}

fn service() -> Service {
    let host = "fd00::7".parse().unwrap();
    let member = ServiceMember { number: 1, mac: MacAddr::local(7), host, selected: true };
    let members = vec![member, ServiceMember { number: 127, selected: false, ..member }];
    Service { id: u32::MAX, seed: [5, 6], members }
}

fn service_address() -> ServiceAddress {
    let ipv6 = Some("2001:db8::9".parse().unwrap());
    ServiceAddress { vni: vni(5), service: u32::MAX, ipv4: Some("10.0.0.9".parse().unwrap()), ipv6 }
}

/// An update with every kind of entry.
fn full_update() -> Update {
    Update {
        services: vec![service()],
        service_addresses: vec![service_address()],
        removed_service_addresses: vec![ServiceAddress { ipv4: None, ..service_address() }.key()],
        removed_services: vec![8],
        watched_hosts: Some(vec!["192.0.2.7".parse().unwrap(), "fd00::7".parse().unwrap()]),
        ..without_services()
    }
}

fn without_services() -> Update {
    let endpoint = Endpoint {
        vni: vni(5),
        ipv4: Some("10.0.0.2".parse().unwrap()),
        ipv6: Some("2001:db8::2".parse().unwrap()),
        mac: MacAddr::local(2),
        host: "fd00::7".parse().unwrap(),
    };
    let path = Path {
        key: PathKey { vni: vni(5), address: "10.0.0.9".parse().unwrap() },
        mac: MacAddr::local(9),
        host: "fd00::7".parse().unwrap(),
        path_vni: vni(6),
    };
    let only4 = Endpoint { ipv6: None, host: "192.0.2.7".parse().unwrap(), ..endpoint };
    Update {
        revision: 9,
        commit_id: 4,
        database_id: 3,
        verify_shards: 1 << 63,
        removes_unconfirmed: true,
        snapshot: true,
        keep_unmentioned: true,
        vteps: vec![
            Vtep { address: "192.0.2.1".parse().unwrap(), role: VtepRole::Host },
            Vtep { address: "fd00::1".parse().unwrap(), role: VtepRole::Gateway { cluster: 3 } },
        ],
        vips: vec![Vip { address: "192.0.2.9".parse().unwrap(), mac: MacAddr::local(9) }],
        groups: vec![Group {
            id: 1,
            vips: vec!["fd00::9".parse().unwrap(), "fd00::a".parse().unwrap()],
            detect_after_ms: Some(200),
        }],
        meters: meters(),
        vrfs: vrfs(),
        endpoints: vec![endpoint, only4],
        routes: routes(),
        public_prefixes: public_prefixes(),
        removed_public_prefixes: vec!["198.51.100.7/32".parse().unwrap()],
        nat_gateways: vec![nat_gateway()],
        removed_nat_gateways: vec![vni(6)],
        removed_meters: vec![11],
        policies: policies(),
        ports: vec![Port {
            instance: InstanceId::new(4),
            name: "v/i".into(),
            vni: vni(5),
            mac: MacAddr::local(2),
            ipv4: Some("10.0.0.2/24".parse().unwrap()),
            router4: Some("10.0.0.1".parse().unwrap()),
            ipv6: Some("2001:db8::2/64".parse().unwrap()),
            ipv6_dhcp: true,
            mtu: 1430,
            dns4: vec!["192.0.2.53".parse().unwrap()],
            identity: u16::MAX,
            options: options(),
            migration: Some(migration()),
        }],
        keys: vec![keys(), ClusterKeys { cluster: 4, keys: Vec::new() }],
        cluster: Some(plan()),
        default_credit: Some(options().qos.credit),
        removed_vteps: vec!["fd00::2".parse().unwrap()],
        removed_vips: vec!["192.0.2.10".parse().unwrap()],
        removed_groups: vec![2],
        removed_vnis: vec![vni(7)],
        removed_endpoints: vec![only4.key()],
        removed_routes: vec![route_key("::/0")],
        removed_ports: vec![InstanceId::new(8)],
        paths: vec![
            path,
            Path {
                key: PathKey { address: "2001:db8::9".parse().unwrap(), ..path.key },
                host: only4.host,
                ..path
            },
        ],
        removed_paths: vec![path.key],
        ..Update::default()
    }
}

#[test]
fn entries_are_unchanged_by_encoding_and_decoding() {
    let update = full_update();
    assert!(!update.is_empty());
    let (read, bad) = Update::read(update.clone().into());
    assert_eq!(bad, []);
    assert_eq!(read, update);
}

#[test]
fn malformed_entry_does_not_affect_others() {
    let mut message: proto::NodeUpdate = full_update().into();
    let endpoints = &mut message.endpoints.as_mut().unwrap().endpoints;
    endpoints[0].mac = 1 << 48;
    message.vteps[0].address = None;
    message.routes[2].scope = 77;
    let (read, bad) = Update::read(message);
    assert_eq!(
        bad,
        [Malformed::NoAddress("VTEP"), Malformed::Mac("endpoint", 1 << 48), Malformed::Scope(77)]
    );
    assert_eq!((read.vteps.len(), read.endpoints.len(), read.routes.len()), (1, 1, 6));
    assert_eq!(read.revision, 9);
}

/// Each change makes one entry of a message malformed.
fn reports_each(damage: Vec<fn(&mut proto::NodeUpdate)>) {
    let good: proto::NodeUpdate = full_update().into();
    for (index, damage) in damage.into_iter().enumerate() {
        let mut message = good.clone();
        damage(&mut message);
        let (_, bad) = Update::read(message);
        assert_eq!(bad.len(), 1, "damage {index}: {bad:?}");
        assert!(!bad[0].to_string().is_empty());
    }
}

#[test]
fn every_kind_of_malformed_entry_is_reported() {
    let damage: Vec<fn(&mut proto::NodeUpdate)> = vec![
        |m| m.vteps[0].address = Some(proto::Address { family: None }),
        |m| m.routes[5].next_hop = None,
        |m| m.ports[0].additional[0].length = 31,
        |m| m.ports[0].additional[0].length = 33,
        |m| m.ports[0].additional[0].address = Some(IpAddr::from([224, 0, 0, 1]).into()),
        |m| m.ports[0].pairs[0].address = None,
        |m| m.ports[0].pairs[0].mac = 0x0100_0000_0000,
        |m| m.ports[0].qos.as_mut().unwrap().dscp = Some(64),
        |m| m.vteps[0].address = Some(IpAddr::from([224, 0, 0, 1]).into()),
        |m| m.vteps[1].cluster = 0,
        |m| m.vips[0].mac = 0x0100_0000_0000,
        |m| m.vips[0].mac = 0,
        |m| m.groups[0].id = 0,
        |m| m.groups[0].vips[0] = IpAddr::from([192, 0, 2, 1]).into(),
        |m| m.vrfs[0].vni = 0,
        |m| m.vrfs[0].vni = 1 << 24,
        |m| m.vrfs[0].mtu = 1279,
        |m| m.vrfs[0].mtu = 65_536,
        |m| m.vrfs[0].router4 = u32::MAX,
        |m| {
            let endpoint = &mut m.endpoints.as_mut().unwrap().endpoints[1];
            endpoint.ipv4 = 0;
        },
        |m| {
            let endpoint = &mut m.endpoints.as_mut().unwrap().endpoints[1];
            endpoint.host_ipv4 = 0;
        },
        |m| m.routes[0].key = None,
        |m| m.routes[0].key.as_mut().unwrap().length = 33,
        |m| m.routes[0].key.as_mut().unwrap().length = 280,
        |m| m.routes[0].key.as_mut().unwrap().length = 6,
        |m| m.routes[1].peer_vni = 0,
        |m| m.routes[1].scope = 0,
        |m| m.ports[0].instance = 0,
        |m| m.ports[0].ipv4_length = 33,
        |m| m.ports[0].ipv6_length = 129,
        |m| m.ports[0].identity = 65_536,
        |m| m.keys[0].cluster = 0,
        |m| m.keys[0].keys[0].secret.push(1),
        |m| m.keys[0].keys[0].not_before_ms = 99,
        |m| m.keys[0].keys[1].id = 1,
        |m| m.cluster.as_mut().unwrap().cluster = 0,
        |m| m.cluster.as_mut().unwrap().revision = 0,
        |m| m.cluster.as_mut().unwrap().vips[1].slot = 128,
        |m| m.cluster.as_mut().unwrap().vips[1].slot = 0,
        |m| m.cluster.as_mut().unwrap().vips[0].address = None,
        |m| m.cluster.as_mut().unwrap().vips[0].mac = 0,
        |m| m.cluster.as_mut().unwrap().members[0].gateway = 0,
        |m| m.cluster.as_mut().unwrap().members.swap(0, 1),
        |m| m.cluster.as_mut().unwrap().members[1].vtep6 = None,
        |m| m.cluster.as_mut().unwrap().preferred_owners[1].slot = 0,
        |m| m.cluster.as_mut().unwrap().preferred_owners[1].gateway = u64::MAX,
        |m| m.services[0].id = 0,
        |m| m.services[0].members.swap(0, 1),
        |m| m.services[0].members[1].number = 128,
        |m| m.service_addresses[0].service = 0,
        |m| m.removed_service_addresses[0].ipv6 = None,
        |m| m.removed_services[0] = 0,
        |m| m.watched_hosts[1].family = None,
        |m| m.removed_groups[0] = 0,
        |m| m.removed_vnis[0] = 0,
        |m| m.removed_ports[0] = u64::MAX,
        |m| m.removed_endpoints[0].ipv4 = 0,
        |m| m.removed_routes[0].prefix = None,
        |m| m.removed_vips[0].family = None,
    ];
    reports_each(damage);
}

#[test]
fn every_kind_of_malformed_policy_is_reported() {
    use proto::Prefix;
    use proto::security_rule::{PortRange, Remote, Service};
    fn ports(first: u32, last: u32) -> Service {
        Service::Ports(PortRange { first, last })
    }
    fn prefix(address: [u8; 4], length: u32) -> Remote {
        Remote::Prefix(Prefix { address: Some(IpAddr::from(address).into()), length })
    }
    let damage: Vec<fn(&mut proto::NodeUpdate)> = vec![
        |m| m.policies[0].key = None,
        |m| m.policies[0].key.as_mut().unwrap().identity = 0,
        |m| m.policies[0].key.as_mut().unwrap().identity = 65_536,
        |m| m.policies[0].rules[0].id = 0,
        |m| m.policies[0].rules.swap(0, 1),
        |m| m.policies[0].rules[0].protocol = 256,
        |m| m.policies[0].rules[1].protocol = 1,
        |m| m.policies[0].rules[1].service = Some(ports(2, 1)),
        |m| m.policies[0].rules[1].service = Some(ports(0, 65_536)),
        |m| m.policies[0].rules[1].remote = Some(prefix([10, 0, 0, 1], 8)),
        |m| m.policies[0].rules[1].remote = Some(prefix([10, 0, 0, 0], 33)),
        |m| m.policies[0].rules[1].ipv6 = true,
        |m| m.policies[0].rules[2].remote = Some(Remote::Group(9)),
        |m| m.policies[0].groups.swap(0, 1),
        |m| m.policies[0].groups[0].identities.swap(0, 1),
        |m| m.policies[0].groups[0].identities[0] = 0,
        |m| m.policies[0].groups[0].identities[2] = 65_536,
    ];
    reports_each(damage);
}

#[test]
fn secrets_are_not_shown() {
    let shown = format!("{:?}", full_update());
    assert!(shown.contains("secret: Secret") && !shown.contains("[1, 0, 3"), "{shown}");
    assert_eq!(keys().keys[0].secret.bytes()[..3], [1, 0, 3]);
}

#[test]
fn plan_has_preferred_owners() {
    let plan = plan();
    assert_eq!(plan.preferred_owner("fd00::9".parse().unwrap()), Some(GatewayId::new(2)));
    assert_eq!(plan.preferred_owner("fd00::8".parse().unwrap()), None);
}

fn migration() -> PortMigration {
    PortMigration {
        id: 1 << 40,
        key: MigrationKey::new([7; 32]),
        side: MigrationSide::Outgoing { to: "fd00::7".parse().unwrap() },
        sessions: SessionMode::Reset,
    }
}

/// Catches a side or a mode that is read as another one, and a migration without a key that a host would use.
#[test]
fn migrations_of_ports_survive_the_wire_and_malformed_ones_are_refused() {
    let from = "192.0.2.7".parse().unwrap();
    for side in [migration().side, MigrationSide::Incoming { from }] {
        for sessions in [SessionMode::Copy, SessionMode::Reset, SessionMode::None] {
            let sent = PortMigration { side, sessions, ..migration() };
            assert_eq!(PortMigration::try_from(proto::PortMigration::from(sent)), Ok(sent));
        }
    }
    let changed = |change: fn(&mut proto::PortMigration)| {
        let mut message = proto::PortMigration::from(migration());
        change(&mut message);
        PortMigration::try_from(message)
    };
    assert_eq!(changed(|it| it.id = 0), Err(Malformed::Id(0, "migration")));
    assert!(matches!(changed(|it| it.key.truncate(31)), Err(Malformed::Migration(_, _))));
    assert!(matches!(changed(|it| it.outgoing_to = None), Err(Malformed::Migration(_, _))));
    assert!(matches!(
        changed(|it| it.incoming_from = Some(IpAddr::from([192, 0, 2, 7]).into())),
        Err(Malformed::Migration(_, _))
    ));
    assert!(matches!(changed(|it| it.sessions = 9), Err(Malformed::Migration(_, _))));
}

/// Catches a phase that is read as another one, and a text that is cut inside a character.
#[test]
fn states_of_migrations_survive_the_wire() {
    use MigrationPhase::{Failed, Ready, Switched, Waiting};
    for phase in [Waiting, Ready, Switched, Failed] {
        let problem = if phase == Failed { "no room".to_owned() } else { String::new() };
        let state =
            MigrationState { instance: InstanceId::new(4), migration: 9, phase, sessions: 70_000, problem };
        assert_eq!(MigrationState::try_from(proto::MigrationState::from(state.clone())), Ok(state));
    }
    let long = proto::MigrationState {
        instance: 4,
        migration: 9,
        phase: proto::MigrationPhase::Failed.into(),
        sessions: 0,
        problem: "\nü".repeat(500),
    };
    let read = MigrationState::try_from(long.clone()).unwrap();
    assert!(!read.problem.is_empty() && read.problem.chars().all(|letter| letter == 'ü'));
    for bad in [
        proto::MigrationState { phase: 0, ..long.clone() },
        proto::MigrationState { migration: 0, ..long.clone() },
        proto::MigrationState { instance: 0, ..long.clone() },
        proto::MigrationState { sessions: u64::MAX, ..long },
    ] {
        assert!(MigrationState::try_from(bad).is_err());
    }
}

/// Catches a kind of unconfirmed entry that is read as another one.
#[test]
fn unconfirmed_entries_survive_the_wire() {
    let Update { endpoints, routes, ports, vteps, .. } = full_update();
    let entries = [
        Unconfirmed::Network(vni(5)),
        Unconfirmed::Endpoint(endpoints[1]),
        Unconfirmed::Route(routes[0].key),
        Unconfirmed::Port(Box::new(ports[0].clone())),
        Unconfirmed::Vtep(vteps[1].address),
        Unconfirmed::PublicPrefix(public_prefixes()[1]),
    ];
    for entry in entries {
        assert_eq!(Unconfirmed::try_from(proto::UnconfirmedEntry::from(entry.clone())), Ok(entry));
    }
    assert_eq!(Unconfirmed::try_from(proto::UnconfirmedEntry::default()), Err(Malformed::UnknownKind));
}
