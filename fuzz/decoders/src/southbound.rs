//! Messages between controller and nodes: reading, checking and applying them.
//!
//! An input is a byte that selects the kind of message, and the message. Updates are a sequence: the length of each in
//! two bytes, little endian, then its bytes.

use bytes::Bytes;
use prost::Message;
use sluice_agent::rsp::{KeyKind, KeyStore};
use sluice_agent::{Applier, Role, UpdateContext};
use sluice_southbound::proto::{
    EnrollRequest, EnrollResponse, HostStates, MemberStates, MigrationStates, NodeReport, NodeUpdate,
    node_report,
};
use sluice_southbound::{
    AddressPair, ClusterKeys, ClusterPlan, Endpoint, EndpointKey, Finding, Group, HealthReport,
    HealthSubject, HostState, Key, LinkHealth, MAX_FINDINGS, MAX_HEALTH_LINKS, Member, MemberProbe,
    MemberState, MigrationKey, MigrationPhase, MigrationSide, MigrationState, Node, Path, PathKey,
    PlannedVip, Policy, PolicyKey, Port, PortMigration, PortOptions, PreferredOwner, Qos, Route, RouteKey,
    Scope, SecurityRule, Service, ServiceAddress, ServiceMember, SessionMode, Update, Vip, Vrf, Vtep,
    VtepRole, decode_update, proto,
};
use sluice_tables::{Immediate, Memory, NodeTables, Sizes};
use sluice_types::{
    AddressFamily, Allowance, AnomalyClass, ClusterId, CreditPolicy, Direction, GatewayId, InstanceId,
    MacAddr, NatSeed, PortRange, Protocol, Remote, RuleMatch, Secret, SecurityGroupId, SecurityRuleId, Vni,
};
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Kinds of messages. Other numbers are updates.
const REPORT: u8 = 1;
const ENROLL: u8 = 2;
const NODE: u8 = 3;

/// Cells of the tables: enough for every seed, and so few that tables become full.
const CELLS: u32 = 1024;

/// A role that writes the tables and has nothing else.
struct TablesOnly;

impl Role for TablesOnly {
    const KEY_KIND: KeyKind = KeyKind::Host;

    fn upsert_vip(&mut self, context: &mut UpdateContext<'_>, vip: &Vip) {
        let Vip { address, mac } = *vip;
        let result = context.tables.upsert_vip(&sluice_tables::Vip { address, mac, owned: false });
        context.check_topology(result, format_args!("vIP {address}"));
    }

    fn remove_vip(&mut self, context: &mut UpdateContext<'_>, address: IpAddr) {
        let result = context.tables.remove_vip(address);
        context.check_topology(result, format_args!("removal of vIP {address}"));
    }

    fn upsert_vrf(&mut self, context: &mut UpdateContext<'_>, vrf: &Vrf) {
        let Vrf { vni, mtu, router4, router6, group, .. } = *vrf;
        context.upsert_vrf(&sluice_tables::Vrf { vni, mtu, router4, router6, group, elephant_bytes: None });
    }
}

/// Decodes a message. What was decoded must be the same after it was encoded and decoded again.
fn decode<M: Message + Default + Debug + PartialEq>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    assert_eq!(M::decode(&message.encode_to_vec()[..]).as_ref(), Ok(&message), "decoded again");
    Some(message)
}

pub fn run(data: &[u8]) {
    let [kind, bytes @ ..] = data else { return };
    match *kind {
        REPORT => {
            if let Some(message) = decode::<NodeReport>(bytes) {
                check_report(message);
            }
        }
        ENROLL => {
            decode::<EnrollRequest>(bytes);
            decode::<EnrollResponse>(bytes);
        }
        NODE => {
            let _ = Node::of_certificate(bytes);
            let Some(node) = str::from_utf8(bytes).ok().and_then(|text| text.parse::<Node>().ok()) else {
                return;
            };
            assert_eq!(node.to_string().parse(), Ok(node));
        }
        _ => apply(bytes),
    }
}

/// What the controller reads of a report is the same after it was encoded and read again.
fn check_report(message: NodeReport) {
    match message.report {
        Some(node_report::Report::Health(message)) => {
            let health = HealthReport::from(message);
            assert!(health.findings.len() <= MAX_FINDINGS && health.links.len() <= MAX_HEALTH_LINKS);
            let again = HealthReport::from(proto::HealthReport::from(health.clone()));
            assert_eq!(again, health, "read again");
        }
        Some(node_report::Report::Migrations(MigrationStates { states })) => {
            for state in states.into_iter().filter_map(|state| MigrationState::try_from(state).ok()) {
                let again = MigrationState::try_from(proto::MigrationState::from(state.clone()));
                assert_eq!(again, Ok(state), "read again");
            }
        }
        Some(node_report::Report::Members(MemberStates { states })) => {
            for state in states.into_iter().filter_map(|state| MemberState::try_from(state).ok()) {
                let again = MemberState::try_from(proto::MemberState::from(state.clone()));
                assert_eq!(again, Ok(state), "read again");
            }
        }
        Some(node_report::Report::Hosts(HostStates { states })) => {
            for state in states.into_iter().filter_map(|state| HostState::try_from(state).ok()) {
                let again = HostState::try_from(proto::HostState::from(state.clone()));
                assert_eq!(again, Ok(state), "read again");
            }
        }
        _ => {}
    }
}

/// Applies a sequence of updates. The tables that are left must be ones that the next agent can adopt.
fn apply(mut bytes: &[u8]) {
    let memory = Memory::anonymous(CELLS).expect("memory for the tables");
    let tables = NodeTables::create(memory.clone(), Immediate, Sizes::default()).expect("the cells suffice");
    // Keys are not written to a file, because there is no such directory.
    let (keys, _) = KeyStore::load("/dev/null/keys".as_ref(), TablesOnly::KEY_KIND);
    let mut applier = Applier::new(tables, TablesOnly, keys);
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (update, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        bytes = rest;
        let Some(update) = decode::<NodeUpdate>(update) else { continue };
        check_entries(&update);
        if applier.apply(update).is_err() {
            applier.begin_stream();
        }
    }
    let routes = applier.tables.routes().count();
    let adopted = NodeTables::adopt(memory, Immediate).expect("the tables can be adopted");
    assert_eq!(adopted.routes().count(), routes, "routes after adoption");
    assert_eq!(adopted.applied_revision(), applier.tables.applied_revision());
}

/// The valid entries of an update are the same after they were encoded and read again.
fn check_entries(message: &NodeUpdate) {
    let bytes = Bytes::from(message.encode_to_vec());
    let (update, _) = Update::read(decode_update(bytes).expect("it was encoded above"));
    let encoded = NodeUpdate::from(update.clone()).encode_to_vec();
    let (again, malformed) = Update::read(decode_update(encoded.into()).expect("an update is encoded"));
    assert_eq!(malformed, [], "a valid entry is refused after encoding");
    assert_eq!(again, update, "read again");
}

/// A policy whose rules have every kind of service and remote.
fn policy(vni: Vni) -> Policy {
    let group = SecurityGroupId::new(8);
    let rule = |direction, family, remote| RuleMatch::everything(direction, family, remote);
    let (ingress, egress) = (Direction::Ingress, Direction::Egress);
    let prefix = Remote::Prefix("10.0.0.0/8".parse().expect("a prefix"));
    let (tcp, ports) = (Protocol::TCP, PortRange::new(80, 443).ok());
    let matches = [
        RuleMatch { protocol: tcp, ports, ..rule(ingress, AddressFamily::Ipv4, prefix) },
        RuleMatch {
            protocol: Protocol::ICMPV6,
            icmp_type: Some(1),
            icmp_code: Some(4),
            ..rule(ingress, AddressFamily::Ipv6, Remote::Group(group))
        },
        rule(egress, AddressFamily::Ipv4, Remote::Any),
    ];
    let ids = (1..).map(SecurityRuleId::new);
    Policy {
        key: PolicyKey { vni, identity: 4 },
        rules: ids.zip(matches).map(|(id, matches)| SecurityRule { id, matches }).collect(),
        groups: [(group, vec![4, 5])].into(),
    }
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
        bonded: false,
    }
}

/// A policy with every dimension.
fn credit() -> CreditPolicy {
    let allowance = |base| Some(Allowance { base, max: 4 * base, clamp: 2 * base, credit: 30 });
    CreditPolicy { mbps: allowance(100), kpps: allowance(10), cpu_permille: allowance(500) }
}

/// Ports of two instances: one comes to this host and has a rate, the other one leaves it and has credit.
fn ports(vni: Vni, (v4, v6): (Ipv4Addr, Ipv6Addr)) -> Vec<Port> {
    let migration = PortMigration {
        id: 7,
        key: MigrationKey::new([8; 32]),
        side: MigrationSide::Incoming { from: v4.into() },
        sessions: SessionMode::Copy,
    };
    let comes = Port {
        instance: InstanceId::new(3),
        name: "vpc/vm".to_owned(),
        vni,
        mac: MacAddr::local(5),
        ipv4: Some("10.0.0.2/24".parse().expect("a network")),
        router4: Some("10.0.0.2".parse().expect("an address")),
        ipv6: Some("fd00::2/64".parse().expect("a network")),
        ipv6_dhcp: true,
        mtu: 1430,
        dns4: vec![v4],
        identity: 4,
        options: options(),
        migration: Some(migration),
    };
    let side = MigrationSide::Outgoing { to: v6.into() };
    let qos = Qos { credit: Some(credit()), ..Qos::default() };
    let leaves = Port {
        instance: InstanceId::new(4),
        name: "vpc/other".to_owned(),
        mac: MacAddr::local(6),
        ipv4: Some("10.0.0.6/24".parse().expect("a network")),
        ipv6: Some("fd00::6/64".parse().expect("a network")),
        options: PortOptions { qos, ..PortOptions::default() },
        migration: Some(PortMigration { id: 8, side, sessions: SessionMode::Reset, ..migration }),
        ..comes.clone()
    };
    vec![comes, leaves]
}

/// A service with two members on a host.
fn service(host: IpAddr) -> Service {
    let member = ServiceMember { number: 1, mac: MacAddr::local(7), host, selected: true };
    let members = vec![member, ServiceMember { number: 9, mac: MacAddr::local(8), ..member }];
    Service { id: 5, seed: [1, 2], members }
}

/// The addresses of a mount of [`service`].
fn service_address(vni: Vni) -> ServiceAddress {
    let ipv6 = Some("fd00::9".parse().expect("an address"));
    ServiceAddress { vni, service: 5, ipv4: Some("10.0.0.9".parse().expect("an address")), ipv6 }
}

/// An update with every kind of entry.
fn full_update() -> Update {
    let vni = Vni::new(100).expect("a VNI");
    let v4 = "192.0.2.8".parse().expect("an address");
    let v6 = "2001:db8::8".parse().expect("an address");
    let (own4, own6) = ("10.0.0.2".parse().expect("an address"), "fd00::2".parse().expect("an address"));
    let (mac, gateway) = (MacAddr::local(5), GatewayId::new(1));
    let endpoint = Endpoint { vni, ipv4: Some(own4), ipv6: Some(own6), mac, host: IpAddr::V4(v4) };
    let key = |prefix: &str| RouteKey { vni, prefix: prefix.parse().expect("a prefix") };
    let path = PathKey { vni, address: IpAddr::V4(own4) };
    let secret = Secret::new(std::array::from_fn(|i| i as u8));
    Update {
        revision: 7,
        database_id: 9,
        snapshot: true,
        vteps: vec![
            Vtep { address: IpAddr::V4(v4), role: VtepRole::Host },
            Vtep { address: IpAddr::V6(v6), role: VtepRole::Gateway { cluster: 1 } },
        ],
        vips: vec![Vip { address: IpAddr::V4(v4), mac }],
        groups: vec![Group { id: 1, vips: vec![IpAddr::V4(v4)], detect_after_ms: Some(0) }],
        vrfs: vec![Vrf {
            vni,
            mtu: 1430,
            router4: Some(own4),
            router6: Some(own6),
            group: Some(1),
            elephant_kbps: 0,
            internet_meter: None,
        }],
        endpoints: vec![endpoint],
        routes: vec![
            Route { key: key("10.0.0.0/24"), scope: Scope::Local },
            Route { key: key("fd00::/16"), scope: Scope::Peer(vni) },
            Route { key: key("0.0.0.0/0"), scope: Scope::Drop },
        ],
        policies: vec![policy(vni)],
        ports: ports(vni, (v4, v6)),
        keys: vec![ClusterKeys {
            cluster: 1,
            keys: vec![Key { id: 3, secret, not_before_ms: 1, not_after_ms: 2 }],
        }],
        cluster: Some(ClusterPlan {
            cluster: ClusterId::new(1),
            revision: 5,
            vips: vec![PlannedVip { slot: 0, address: IpAddr::V4(v4), mac }],
            members: vec![Member { gateway, vtep4: Some(v4), vtep6: Some(v6), draining: false }],
            preferred_owners: vec![PreferredOwner { slot: 0, gateway }],
            hello_interval_ms: 40,
            nat_seed: NatSeed::new(6),
        }),
        paths: vec![Path { key: path, mac, host: IpAddr::V6(v6), path_vni: vni }],
        services: vec![service(v4.into())],
        service_addresses: vec![service_address(vni)],
        watched_hosts: Some(vec![IpAddr::V4(v4), IpAddr::V6(v6)]),
        ..Update::default()
    }
}

/// An update that removes what [`full_update`] adds.
fn removal(of: &Update) -> Update {
    Update {
        revision: of.revision + 1,
        database_id: of.database_id,
        removed_vteps: of.vteps.iter().map(|vtep| vtep.address).collect(),
        removed_vips: of.vips.iter().map(|vip| vip.address).collect(),
        removed_groups: of.groups.iter().map(|group| group.id).collect(),
        removed_vnis: of.vrfs.iter().map(|vrf| vrf.vni).collect(),
        removed_endpoints: of.endpoints.iter().map(Endpoint::key).collect::<Vec<EndpointKey>>(),
        removed_routes: of.routes.iter().map(|route| route.key).collect(),
        removed_ports: of.ports.iter().map(|port| port.instance).collect(),
        removed_paths: of.paths.iter().map(|path| path.key).collect(),
        removed_service_addresses: of.service_addresses.iter().map(ServiceAddress::key).collect(),
        removed_services: of.services.iter().map(|service| service.id).collect(),
        watched_hosts: Some(Vec::new()),
        ..Update::default()
    }
}

fn sequence(updates: &[&Update]) -> Vec<u8> {
    let mut input = vec![0];
    for update in updates {
        let bytes = NodeUpdate::from((*update).clone()).encode_to_vec();
        input.extend((bytes.len() as u16).to_le_bytes());
        input.extend(bytes);
    }
    input
}

/// Findings of every class and about every kind of subject, and links of both families.
fn health() -> HealthReport {
    let peers = ["192.0.2.8", "2001:db8::8"].map(|text| text.parse::<IpAddr>().expect("an address"));
    let subjects = [
        HealthSubject::Node,
        HealthSubject::Interface("sl-1".to_owned()),
        HealthSubject::Instance(InstanceId::new(3)),
        HealthSubject::Peer(peers[0]),
        HealthSubject::Peer(peers[1]),
    ];
    let finding = |(class, subject)| Finding {
        class,
        subject,
        since_ms: 1_700_000_000_000,
        evidence: "3 of 3".to_owned(),
        cause: "it hangs".to_owned(),
    };
    let findings = AnomalyClass::ALL.into_iter().zip(subjects.into_iter().cycle()).map(finding).collect();
    let link = |peer| LinkHealth { peer, gateway: true, loss_permille: 125, rtt_us: 300 };
    HealthReport { findings, others: true, links: peers.map(link).to_vec() }
}

/// Reports of members and watched hosts.
fn states() -> [node_report::Report; 2] {
    let member = MemberState { instance: InstanceId::new(3), up: true, evidence: "3 of 3".to_owned() };
    let host = "2001:db8::8".parse().expect("an address");
    let host = HostState { host, reachable: false, evidence: "0 of 5".to_owned() };
    [
        node_report::Report::Members(MemberStates { states: vec![member.into()] }),
        node_report::Report::Hosts(HostStates { states: vec![host.into()] }),
    ]
}

/// Reports of a node. That of migrations has one in each phase.
fn reports() -> [node_report::Report; 7] {
    let phases =
        [MigrationPhase::Waiting, MigrationPhase::Ready, MigrationPhase::Switched, MigrationPhase::Failed];
    let state = |phase| MigrationState {
        instance: InstanceId::new(3),
        migration: 7,
        phase,
        sessions: 9,
        problem: "no room".to_owned(),
    };
    let migrations = phases.map(|phase| proto::MigrationState::from(state(phase))).to_vec();
    let [members, hosts] = states();
    [
        members,
        hosts,
        node_report::Report::Migrations(MigrationStates { states: migrations }),
        node_report::Report::Health(health().into()),
        node_report::Report::Hello(Default::default()),
        node_report::Report::Ack(Default::default()),
        node_report::Report::Heartbeat(Default::default()),
    ]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let full = full_update();
    let removed = removal(&full);
    let part = Update { revision: 0, ..full.clone() };
    let delta = Update { revision: 9, database_id: 9, routes: full.routes.clone(), ..Update::default() };
    let enroll = EnrollRequest { token: "token".to_owned(), csr_pem: "csr".to_owned() }.encode_to_vec();
    let mut seeds = vec![
        sequence(&[&full]),
        sequence(&[&full, &removed]),
        sequence(&[&part, &full, &delta, &removed]),
        sequence(&[&full, &full]),
        [&[ENROLL], &enroll[..]].concat(),
        [&[NODE], &b"gateway:gw-7"[..]].concat(),
        [&[NODE], &b"host:host-3"[..]].concat(),
    ];
    let reports = reports().map(|report| NodeReport { report: Some(report) }.encode_to_vec());
    seeds.extend(reports.iter().map(|report| [&[REPORT], &report[..]].concat()));
    seeds
}
