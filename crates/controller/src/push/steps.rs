//! The log of compiled steps, which are encoded once for all nodes.
//!
//! There are no queues for single nodes: a stream is a position in this log. The log is bounded: a stream
//! that falls behind its start is sent a snapshot instead. The newest step is always kept, whatever its size,
//! because a bulk creation must reach the nodes that keep up.

use crate::compile::{Compiled, Gate, HostChanges, Membership, Target};
use bytes::Bytes;
use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{EncodedUpdate, MAX_ENTRIES, NatGateway, Policy, Port, PortOptions, Service, Update};
use sluice_store::NodeId;
use sluice_types::GatewayId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// A policy, a port with options, a NAT gateway, which has port forwards, and a service count as one entry for each of these bytes. No
/// other entry has more than 350 bytes, so a message is below
/// [`MAX_UPDATE_BYTES`](sluice_southbound::MAX_UPDATE_BYTES) in any case.
const ENTRY_BYTES: usize = 256;
/// Most steps in the log.
pub const MAX_STEPS: usize = 65_536;
/// Most bytes of encoded entries in the log.
pub const MAX_BYTES: usize = 256 << 20;
/// What a message takes in the log besides its bytes: a step may have many small ones, because each policy is one.
const PART_BYTES: usize = 128;
/// As many messages are encoded on two threads: those of 131,072 entries.
const PARTS_OF_TWO_THREADS: usize = 8;
/// Most steps that a stream takes at a time.
const TAKE: usize = 256;

/// One revision, ready to send.
#[derive(Debug, Default)]
pub struct Step {
    /// The revision.
    pub revision: u64,
    /// Id of its commit; 0 if it is not known.
    pub commit: u64,
    /// Encoded entries by target, in messages as [`encode`] makes them.
    pub parts: BTreeMap<Target, Vec<Bytes>>,
    /// See [`Compiled::hosts`].
    pub hosts: HostChanges,
    /// See [`Compiled::removed_nodes`].
    pub removed_nodes: Vec<NodeId>,
    /// See [`Compiled::memberships`].
    pub memberships: BTreeMap<GatewayId, Membership>,
    /// See [`Compiled::created`].
    pub created: usize,
    /// See [`Compiled::gates`].
    pub gates: Vec<Gate>,
    bytes: usize,
}

impl Step {
    /// Encodes the compiled entries. The commit is not known.
    pub fn new(compiled: Compiled) -> Self {
        let encode = |(target, update)| (target, encode(update));
        let parts: BTreeMap<_, _> = compiled.updates.into_iter().map(encode).collect();
        let bytes = parts.values().flatten().map(|part| part.len() + PART_BYTES).sum();
        Self {
            revision: compiled.revision,
            commit: 0,
            parts,
            hosts: compiled.hosts,
            removed_nodes: compiled.removed_nodes,
            memberships: compiled.memberships,
            created: compiled.created,
            gates: compiled.gates,
            bytes,
        }
    }

    /// The step with the id of its commit.
    pub fn of_commit(self, commit: u64) -> Self {
        Self { commit, ..self }
    }
}

/// Encodes entries as messages of at most [`MAX_ENTRIES`] entries each, many messages on two threads. A policy, a port or a NAT
/// gateway may count as more than one.
pub fn encode(update: Update) -> Vec<Bytes> {
    let encode = |parts: Vec<Update>| -> Vec<Bytes> {
        parts.into_iter().map(|part| EncodedUpdate::encode_entries(&NodeUpdate::from(part))).collect()
    };
    let mut parts = split(update);
    if parts.len() < PARTS_OF_TWO_THREADS {
        return encode(parts);
    }
    let later = parts.split_off(parts.len() / 2);
    std::thread::scope(|scope| {
        let later = scope.spawn(move || encode(later));
        let mut all = encode(parts);
        all.extend(later.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        all
    })
}

/// The number of entries as which a policy counts. One policy has fewer than a message.
fn policy_entries(policy: &Policy) -> usize {
    policy.message_bytes() / ENTRY_BYTES + 1
}

/// The same for a port.
fn port_entries(port: &Port) -> usize {
    let is_plain = port.options == PortOptions::default() && port.migration.is_none();
    if is_plain { 1 } else { port.message_bytes() / ENTRY_BYTES + 1 }
}

/// The same for a NAT gateway.
fn nat_gateway_entries(nat: &NatGateway) -> usize {
    if nat.forwards.is_empty() { 1 } else { nat.message_bytes() / ENTRY_BYTES + 1 }
}

/// The same for a service.
fn service_entries(service: &Service) -> usize {
    service.message_bytes() / ENTRY_BYTES + 1
}

/// Splits an update into updates of at most [`MAX_ENTRIES`] entries which, applied in order, have the same
/// effect.
fn split(mut update: Update) -> Vec<Update> {
    let policies: Vec<usize> = update.policies.iter().map(policy_entries).collect();
    let ports: Vec<usize> = update.ports.iter().map(port_entries).collect();
    let nat_gateways: Vec<usize> = update.nat_gateways.iter().map(nat_gateway_entries).collect();
    let services: Vec<usize> = update.services.iter().map(service_entries).collect();
    let weighed = [&policies, &ports, &nat_gateways, &services];
    let further: usize = weighed.into_iter().flatten().map(|size| size - 1).sum();
    let entries = update.entry_count() + further;
    if entries <= MAX_ENTRIES {
        return if update.is_empty() { Vec::new() } else { vec![update] };
    }
    let removes_unconfirmed = update.removes_unconfirmed;
    let empty = || Update { removes_unconfirmed, ..Update::default() };
    let mut parts = vec![empty()];
    let mut room = MAX_ENTRIES;
    macro_rules! cut {
        ($($field:ident)*) => {$(
            let mut entries = std::mem::take(&mut update.$field).into_iter();
            while entries.len() > 0 {
                if room == 0 {
                    parts.push(empty());
                    room = MAX_ENTRIES;
                }
                if let Some(part) = parts.last_mut() {
                    part.$field = entries.by_ref().take(room).collect();
                    room -= part.$field.len();
                }
            }
        )*};
    }
    macro_rules! cut_by_size {
        ($field:ident, $sizes:ident) => {
            for (entry, size) in std::mem::take(&mut update.$field).into_iter().zip($sizes) {
                if room < size && room < MAX_ENTRIES {
                    parts.push(empty());
                    room = MAX_ENTRIES;
                }
                if let Some(part) = parts.last_mut() {
                    part.$field.push(entry);
                    room = room.saturating_sub(size);
                }
            }
        };
    }
    cut!(vteps vips groups meters vrfs endpoints routes public_prefixes);
    cut_by_size!(nat_gateways, nat_gateways);
    cut_by_size!(services, services);
    cut!(service_addresses);
    cut_by_size!(policies, policies);
    cut_by_size!(ports, ports);
    cut!(keys paths);
    if let Some(part) = parts.last_mut() {
        (part.cluster, part.default_credit) = (update.cluster, update.default_credit);
        part.watched_hosts = update.watched_hosts;
    }
    cut!(removed_vteps removed_vips removed_groups removed_vnis removed_endpoints removed_routes
        removed_public_prefixes removed_nat_gateways removed_meters
        removed_service_addresses removed_services removed_ports removed_paths);
    parts
}

#[derive(Debug, Default)]
struct Inner {
    /// The log contains all steps after this revision.
    floor: u64,
    steps: VecDeque<Arc<Step>>,
    bytes: usize,
}

/// The log of steps, shared by all streams.
#[derive(Debug)]
pub struct StepLog {
    inner: RwLock<Inner>,
    last: watch::Sender<u64>,
}

/// Sizes of the log, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fill {
    /// Number of steps, at most [`MAX_STEPS`].
    pub steps: usize,
    /// Bytes of encoded messages in memory, at most [`MAX_BYTES`] except for a single larger step.
    pub bytes: usize,
}

impl Default for StepLog {
    fn default() -> Self {
        Self { inner: RwLock::default(), last: watch::Sender::new(0) }
    }
}

impl StepLog {
    /// Empties the log. It then contains the steps after `floor`.
    pub fn reset(&self, floor: u64) {
        *self.inner.write().unwrap_or_else(PoisonError::into_inner) = Inner { floor, ..Inner::default() };
        self.last.send_replace(floor);
    }

    /// Appends the next revision.
    pub fn push(&self, step: Step) {
        let revision = step.revision;
        {
            let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
            inner.bytes += step.bytes;
            inner.steps.push_back(Arc::new(step));
            while inner.steps.len() > 1 && (inner.bytes > MAX_BYTES || inner.steps.len() > MAX_STEPS) {
                if let Some(gone) = inner.steps.pop_front() {
                    inner.bytes -= gone.bytes;
                    inner.floor = gone.revision;
                }
            }
        }
        self.last.send_replace(revision);
    }

    /// The first steps after a revision, oldest first, at most 256. `None` if the log does not contain
    /// all steps after that revision.
    pub fn after(&self, revision: u64) -> Option<Vec<Arc<Step>>> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        if revision < inner.floor {
            return None;
        }
        let start = inner.steps.partition_point(|step| step.revision <= revision);
        Some(inner.steps.range(start..).take(TAKE).cloned().collect())
    }

    /// Whether the log contains all steps after a revision.
    pub fn reaches(&self, revision: u64) -> bool {
        revision >= self.inner.read().unwrap_or_else(PoisonError::into_inner).floor
    }

    /// The revision of the last step, with notification of the next.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// The sizes of the log.
    pub fn fill(&self) -> Fill {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        Fill { steps: inner.steps.len(), bytes: inner.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_southbound::{
        AddressPair, EndpointKey, MAX_UPDATE_BYTES, PolicyKey, PublicPrefix, Qos, SecurityRule, Vrf,
    };
    use sluice_types::{
        AddressFamily, Allowance, CREDIT_SECONDS_MAX, CreditPolicy, Direction, ForwardProtocol, InstanceId,
        MAX_CPU_PERMILLE, MAX_RATE_KPPS, MAX_RATE_MBPS, MacAddr, NAT_ADDRESSES_MAX, PORT_FORWARDS_MAX,
        PortForward, PortRange, Protocol, Remote, RuleMatch, SecurityGroupId, SecurityRuleId, Vni,
    };
    use std::net::{Ipv4Addr, SocketAddrV4};

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    #[test]
    fn split_keeps_every_entry_in_order() {
        let count = 2 * MAX_ENTRIES as u32 + 5;
        let key = |i: u32| EndpointKey { vni: vni(1), ipv4: Some(i.into()), ipv6: None };
        let vrf = Vrf {
            vni: vni(1),
            mtu: 1430,
            router4: None,
            router6: None,
            group: None,
            elephant_kbps: 0,
            internet_meter: None,
        };
        let update = Update {
            vrfs: vec![vrf],
            removed_endpoints: (1..=count).map(key).collect(),
            removed_vnis: vec![vni(2)],
            ..Update::default()
        };
        let parts = split(update.clone());
        assert_eq!(parts.iter().map(Update::entry_count).collect::<Vec<_>>(), [16_384, 16_384, 7]);
        assert_eq!(parts[0].vrfs, [vrf]);
        let keys: Vec<_> = parts.iter().flat_map(|part| part.removed_endpoints.clone()).collect();
        assert_eq!(keys, update.removed_endpoints);
        assert!(split(Update::default()).is_empty());
    }

    /// Catches messages of two threads that are lost or out of order.
    #[test]
    fn messages_of_two_threads_are_in_order() {
        let count = (PARTS_OF_TWO_THREADS * MAX_ENTRIES + 5) as u32;
        let key = |i: u32| EndpointKey { vni: vni(1), ipv4: Some((0x0a00_0000 + i).into()), ipv6: None };
        let update = Update { removed_endpoints: (1..=count).map(key).collect(), ..Update::default() };
        let encoded = encode(update.clone());
        assert_eq!(encoded.len(), PARTS_OF_TWO_THREADS + 1);
        let read = |part| Update::read(sluice_southbound::decode_update(part).unwrap()).0.removed_endpoints;
        assert_eq!(encoded.into_iter().flat_map(read).collect::<Vec<_>>(), update.removed_endpoints);
    }

    /// Catches public addresses that a large message drops, and those that come before their VRFs.
    #[test]
    fn split_keeps_public_addresses_behind_vrfs() {
        let net = |address: u32| sluice_types::IpNet::from(std::net::IpAddr::V4(address.into()));
        let vip = std::net::IpAddr::from([192, 0, 2, 1]);
        let public = |n: u32| PublicPrefix {
            outside: net(n << 8),
            vni: vni(1),
            inside: net(n),
            vip,
            meter: None,
            nptv6: false,
        };
        let vrf = Vrf {
            vni: vni(1),
            mtu: 1430,
            router4: None,
            router6: None,
            group: None,
            elephant_kbps: 0,
            internet_meter: None,
        };
        let nat_gateway = |n: u32| {
            let addresses = vec![(n << 8).into()];
            NatGateway {
                vni: vni(n),
                addresses,
                vip,
                sessions: 1,
                blocks: 1,
                any_remote: false,
                shares_ports: false,
                forwards: Vec::new(),
                nat64: None,
            }
        };
        let count = MAX_ENTRIES as u32 + 5;
        let update = Update {
            vrfs: vec![vrf],
            public_prefixes: (1..=count).map(public).collect(),
            removed_public_prefixes: (1..=count).map(net).collect(),
            nat_gateways: (1..=count).map(nat_gateway).collect(),
            removed_nat_gateways: (1..=count).map(vni).collect(),
            ..Update::default()
        };
        let parts = split(update.clone());
        assert_eq!(parts[0].vrfs, [vrf]);
        let joined = |field: fn(&Update) -> usize| parts.iter().map(field).sum::<usize>();
        assert_eq!(joined(Update::entry_count), update.entry_count());
        let all: Vec<_> = parts.iter().flat_map(|part| part.public_prefixes.clone()).collect();
        assert_eq!(all, update.public_prefixes);
        let all: Vec<_> = parts.iter().flat_map(|part| part.nat_gateways.clone()).collect();
        assert_eq!(all, update.nat_gateways);
    }

    /// A policy with as many rules as 5 groups can have, each as large as possible, and every identity in 5 groups.
    fn largest_policy(identity: u16) -> Policy {
        let id = i64::MAX as u64;
        let matches = RuleMatch {
            protocol: Protocol::SCTP,
            ports: PortRange::new(65_534, 65_535).ok(),
            ..RuleMatch::everything(
                Direction::Egress,
                AddressFamily::Ipv6,
                Remote::Prefix("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128".parse().unwrap()),
            )
        };
        let rule = |number| SecurityRule { id: SecurityRuleId::new(id - number), matches: matches.clone() };
        let group = |number| (SecurityGroupId::new(id - number), (1..=u16::MAX).collect());
        Policy {
            key: PolicyKey { vni: vni(0xff_ffff), identity },
            rules: (0..5_000).rev().map(rule).collect(),
            groups: (0..5).map(group).collect(),
        }
    }

    /// Catches messages that the transport refuses because of their size, and ports that come before their policies.
    #[test]
    fn large_policies_are_divided_by_their_bytes() {
        let count: u16 = 12;
        let update = Update {
            policies: (1..=count).map(largest_policy).collect(),
            ports: (1..=u64::from(count)).map(port).collect(),
            removed_vnis: vec![vni(2)],
            ..Update::default()
        };
        assert!(update.policies[0].message_bytes() < 2 << 20);
        let encoded = encode(update.clone());
        assert!(encoded.iter().map(Bytes::len).sum::<usize>() > MAX_UPDATE_BYTES, "no reason to divide");
        let mut read = Update::default();
        for part in encoded {
            assert!(part.len() < MAX_UPDATE_BYTES - 1024, "{} bytes, and the head", part.len());
            let (part, bad) = Update::read(sluice_southbound::decode_update(part).unwrap());
            assert_eq!(bad, []);
            assert!(part.policies.is_empty() || read.ports.is_empty(), "a policy after ports");
            read.policies.extend(part.policies);
            read.ports.extend(part.ports);
            read.removed_vnis.extend(part.removed_vnis);
        }
        assert!(read == update);
    }

    /// Catches messages with too many ports that have everything that a port can have.
    #[test]
    fn large_ports_are_divided_by_their_bytes() {
        let prefix =
            |number: u128| sluice_types::IpNet::from(std::net::IpAddr::V6((0xfd << 120 | number).into()));
        let mac = Some(MacAddr::local(u64::MAX));
        let pair = |number| AddressPair { address: prefix(number).addr(), mac, held: true };
        let allowance = |max| {
            Some(Allowance { base: 1, max, clamp: max, credit: u64::from(max - 1) * CREDIT_SECONDS_MAX })
        };
        let (mbps, kpps) = (allowance(MAX_RATE_MBPS), allowance(MAX_RATE_KPPS));
        let credit = CreditPolicy { mbps, kpps, cpu_permille: allowance(MAX_CPU_PERMILLE) };
        let options = PortOptions {
            additional: (1..=48).map(prefix).collect(),
            pairs: (1..=16).map(pair).collect(),
            unprotected: true,
            qos: Qos { dscp: Some(63), rate_mbps: None, credit: Some(credit) },
            member: None,
            bonded: false,
        };
        let large = |id: u64| Port { name: "n".repeat(127), options: options.clone(), ..port(id) };
        let update = Update { ports: (1..=20_000).map(large).collect(), ..Update::default() };
        let parts = encode(update.clone());
        assert!(parts.iter().map(Bytes::len).sum::<usize>() > 2 * MAX_UPDATE_BYTES, "no reason to divide");
        let mut read = Vec::new();
        for part in parts {
            assert!(part.len() < MAX_UPDATE_BYTES - 1024, "{} bytes, and the head", part.len());
            let (part, bad) = Update::read(sluice_southbound::decode_update(part).unwrap());
            assert_eq!(bad, []);
            read.extend(part.ports);
        }
        assert!(read == update.ports);
    }

    /// Catches messages with too many NAT gateways that have as many addresses and port forwards as they can.
    #[test]
    fn large_nat_gateways_are_divided_by_their_bytes() {
        let inside = SocketAddrV4::new(Ipv4Addr::new(10, 255, 255, 254), 65_535);
        let large = |n: u32| {
            let addresses: Vec<Ipv4Addr> =
                (0..NAT_ADDRESSES_MAX as u32).map(|low| (n << 8 | low).into()).collect();
            let first_port = u16::MAX - PORT_FORWARDS_MAX as u16;
            let forward = |number: u16| PortForward {
                protocol: ForwardProtocol::Udp,
                outside: SocketAddrV4::new(addresses[0], first_port + number),
                inside: SocketAddrV4::new(*inside.ip(), first_port + number),
            };
            let forwards = (1..=PORT_FORWARDS_MAX as u16).map(forward).collect();
            let vip = std::net::IpAddr::from([0xfd; 16]);
            let (sessions, blocks, any_remote, shares_ports) = (u32::MAX, 16, true, true);
            let nat64 = Some(std::net::Ipv6Addr::from([0xfdfd, 0xfdfd, 0xfdfd, 0xfdfd, 0xfd, 0xfdfd, 0, 0]));
            NatGateway {
                vni: vni(n),
                addresses,
                vip,
                sessions,
                blocks,
                any_remote,
                shares_ports,
                forwards,
                nat64,
            }
        };
        let first = 0x01_0000;
        let count = 3_000;
        let update =
            Update { nat_gateways: (first..first + count).map(large).collect(), ..Update::default() };
        let parts = encode(update.clone());
        assert!(parts.iter().map(Bytes::len).sum::<usize>() > 2 * MAX_UPDATE_BYTES, "no reason to divide");
        let mut read = Vec::new();
        for part in parts {
            assert!(part.len() < MAX_UPDATE_BYTES - 1024, "{} bytes, and the head", part.len());
            let (part, bad) = Update::read(sluice_southbound::decode_update(part).unwrap());
            assert_eq!(bad, []);
            read.extend(part.nat_gateways);
        }
        assert!(read == update.nat_gateways);
    }

    fn port(identity: u64) -> Port {
        Port {
            instance: InstanceId::new(identity),
            name: "v/i".into(),
            vni: vni(1),
            mac: MacAddr::local(identity),
            ipv4: Some("10.0.0.2/24".parse().unwrap()),
            router4: None,
            ipv6: None,
            mtu: 1430,
            dns4: Vec::new(),
            ipv6_dhcp: false,
            identity: identity as u16,
            options: sluice_southbound::PortOptions::default(),
            migration: None,
        }
    }

    #[test]
    fn stream_behind_the_log_needs_a_snapshot() {
        let log = StepLog::default();
        log.reset(10);
        for revision in [12, 15] {
            log.push(Step { revision, ..Step::default() });
        }
        let revisions = |after| log.after(after).map(|s| s.iter().map(|s| s.revision).collect::<Vec<_>>());
        assert_eq!(revisions(9), None);
        assert!(log.reaches(10) && !log.reaches(9));
        assert_eq!(revisions(10), Some(vec![12, 15]));
        assert_eq!(revisions(13), Some(vec![15]));
        assert_eq!(revisions(20), Some(vec![]));
        assert_eq!(*log.watch().borrow(), 15);
    }

    #[test]
    fn log_is_bounded_but_keeps_the_newest_step() {
        let log = StepLog::default();
        for revision in 1..=3 {
            log.push(Step { revision, bytes: MAX_BYTES, ..Step::default() });
        }
        assert_eq!(log.fill().steps, 1);
        assert!(log.after(1).is_none());
        assert_eq!(log.after(2).map(|steps| steps.len()), Some(1));
    }
}
