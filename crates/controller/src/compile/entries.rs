//! Entries of instances and VPCs: endpoints for gateways, ports and VRFs for hosts.

use super::{Compiled, Gate, NodeGroup, Target, group_id, meter_id};
use sluice_southbound::{
    AddressPair, ELEPHANT_DEFAULT, Endpoint, EndpointKey, MemberProbe, MigrationSide, Port, PortMigration,
    PortOptions, Qos, Route, RouteKey, Scope, Vrf,
};
use sluice_store::{
    Host, Instance, InstanceChange, InstanceOptions, Migration, Mount, StoredPair, Subnet, Vnic, Vpc,
};
use sluice_types::{HostId, IpNet, Ipv4Net, Ipv6Mode, Ipv6Net, MacAddr, Vni, first_host};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;

/// Time between two probes of a member of a service, in milliseconds.
const PROBE_INTERVAL_MS: u32 = 10;
/// Probes without an answer after which the VM of a member is silent.
const PROBE_FAILURES: u32 = 3;

fn router4(prefix: &Ipv4Net) -> Option<Ipv4Addr> {
    match first_host(&IpNet::V4(*prefix)) {
        Some(IpAddr::V4(router)) => Some(router),
        _ => None,
    }
}

fn router6(prefix: &Ipv6Net) -> Option<Ipv6Addr> {
    match first_host(&IpNet::V6(*prefix)) {
        Some(IpAddr::V6(router)) => Some(router),
        _ => None,
    }
}

/// The VRF of a VPC, for a host or for a gateway. Its router addresses are those of the first subnet that
/// has the address family.
pub(super) fn vrf<'a>(vpc: &Vpc, subnets: impl Iterator<Item = &'a Subnet> + Clone, on_host: bool) -> Vrf {
    Vrf {
        vni: vpc.vni,
        mtu: vpc.mtu,
        router4: subnets.clone().find_map(|s| s.ipv4.as_ref().and_then(router4)),
        router6: subnets.clone().find_map(|s| s.ipv6.as_ref().and_then(router6)),
        group: on_host.then(|| group_id(vpc.serving())),
        // Hosts use it only under models in which they detect elephants.
        elephant_kbps: vpc.offload_kbps.unwrap_or(ELEPHANT_DEFAULT),
        internet_meter: vpc.internet_meter.filter(|_| !on_host).map(meter_id),
    }
}

/// Endpoint entries of an instance: one for its two addresses, and one for each secondary address and each address of a
/// pair that it holds.
pub(super) fn endpoints_of(vni: Vni, instance: &Instance, host: IpAddr) -> impl Iterator<Item = Endpoint> {
    let own = Endpoint { vni, ipv4: instance.ipv4, ipv6: instance.ipv6, mac: instance.mac, host };
    let single = move |address: IpAddr, mac: MacAddr| {
        let (ipv4, ipv6) = match address {
            IpAddr::V4(v4) => (Some(v4), None),
            IpAddr::V6(v6) => (None, Some(v6)),
        };
        Endpoint { vni, ipv4, ipv6, mac, host }
    };
    let secondary = instance.options.secondary.iter().map(move |address| single(*address, instance.mac));
    let held = instance.held_pairs().map(move |pair| single(pair.address, address_pair(pair).neighbor_mac()));
    std::iter::once(own).chain(secondary).chain(held)
}

/// The prefixes that are delegated to an instance, each with the scope of its route: the next hop is the IPv4 address of
/// the instance, or its IPv6 address if it has no other.
pub(super) fn delegated(instance: &Instance) -> impl Iterator<Item = (IpNet, Scope)> {
    let next_hop = instance.addresses().next();
    instance.options.delegated.iter().filter_map(move |prefix| Some((*prefix, Scope::NextHop(next_hop?))))
}

/// Routes to the prefixes that are delegated to an instance.
pub(super) fn routes_of(vni: Vni, instance: &Instance) -> impl Iterator<Item = Route> {
    delegated(instance).map(move |(prefix, scope)| Route { key: RouteKey { vni, prefix }, scope })
}

fn address_pair(pair: &StoredPair) -> AddressPair {
    AddressPair { address: pair.address, mac: pair.mac, held: pair.is_held() }
}

pub(super) fn port_options(instance: &Instance) -> PortOptions {
    let InstanceOptions { secondary, delegated, pairs, unprotected, qos, network_class, member } =
        &instance.options;
    let additional = secondary.iter().copied().map(IpNet::from).chain(delegated.iter().copied());
    PortOptions {
        additional: additional.collect(),
        pairs: pairs.iter().map(address_pair).collect(),
        unprotected: *unprotected,
        qos: Qos {
            dscp: qos.dscp,
            rate_mbps: qos.rate_mbps.and_then(NonZeroU32::new),
            credit: network_class.as_ref().map(|class| class.policy),
        },
        member: member.map(|epoch| MemberProbe {
            interval_ms: PROBE_INTERVAL_MS,
            failures: PROBE_FAILURES,
            epoch,
        }),
        bonded: false,
    }
}

fn port(vpc: &Vpc, subnet: &Subnet, instance: &Instance) -> Port {
    let prefix4 = subnet.ipv4.as_ref();
    let prefix6 = subnet.ipv6.as_ref();
    let ipv4 = instance.ipv4.zip(prefix4).and_then(|(a, net)| Ipv4Net::new(a, net.prefix_len()).ok());
    let ipv6 = instance.ipv6.zip(prefix6).and_then(|(a, net)| Ipv6Net::new(a, net.prefix_len()).ok());
    Port {
        instance: instance.id,
        name: format!("{}/{}", vpc.name, instance.name),
        vni: vpc.vni,
        mac: instance.mac,
        ipv4,
        router4: ipv4.and(prefix4).and_then(router4),
        ipv6,
        ipv6_dhcp: ipv6.is_some() && subnet.ipv6_mode == Some(Ipv6Mode::Dhcp),
        mtu: vpc.mtu,
        dns4: subnet.dns.clone(),
        identity: instance.identity,
        options: port_options(instance),
        migration: None,
    }
}

/// The port of a bonding vNIC with this name, whose member has this MAC address.
pub(super) fn vnic_port(
    vpc: &Vpc,
    subnet: &Subnet,
    mount: &Mount,
    (vnic, mac): (&Vnic, MacAddr),
    name: String,
) -> Port {
    // To its host it is an instance with the addresses of the mount.
    let like = Instance {
        id: vnic.id,
        name: String::new(),
        vpc: vpc.id,
        subnet: subnet.id,
        host: vnic.host,
        mac,
        ipv4: mount.ipv4,
        ipv6: mount.ipv6,
        identity: mount.identity,
        options: InstanceOptions::default(),
        migration: None,
        revision: mount.revision,
    };
    let port = port(vpc, subnet, &like);
    Port { name, options: PortOptions { bonded: true, ..port.options }, ..port }
}

/// The port of an instance as one of its hosts gets it: with its migration, if it migrates. `None` if the other host is not
/// known, which the store excludes: without it the port would be open on both hosts.
pub(super) fn port_on(
    host: HostId,
    vpc: &Vpc,
    subnet: &Subnet,
    instance: &Instance,
    hosts: &HashMap<HostId, Host>,
) -> Option<Port> {
    let port = port(vpc, subnet, instance);
    let Some(Migration { id, to, key, sessions }) = instance.migration.as_deref().copied() else {
        return Some(port);
    };
    let vtep = |host: HostId| hosts.get(&host).map(|host| host.vtep);
    let side = if host == to {
        MigrationSide::Incoming { from: vtep(instance.host)? }
    } else {
        MigrationSide::Outgoing { to: vtep(to)? }
    };
    Some(Port { migration: Some(PortMigration { id, key, side, sessions }), ..port })
}

/// Endpoint entries of instances, for gateways. `hosts` contains every host of these instances.
pub(super) fn endpoints(vpc: &Vpc, hosts: &[Host], instances: &[Instance]) -> Vec<Endpoint> {
    let vteps: HashMap<_, _> = hosts.iter().map(|host| (host.id, host.vtep)).collect();
    let hosted = instances.iter().filter_map(|instance| Some((instance, *vteps.get(&instance.host)?)));
    hosted.flat_map(|(instance, host)| endpoints_of(vpc.vni, instance, host)).collect()
}

/// Routes to the prefixes that are delegated to instances, for gateways.
pub(super) fn routes(vpc: &Vpc, instances: &[Instance]) -> Vec<Route> {
    instances.iter().flat_map(|instance| routes_of(vpc.vni, instance)).collect()
}

pub(super) fn endpoint_keys(vpc: &Vpc, instances: &[Instance]) -> impl Iterator<Item = EndpointKey> {
    let vni = vpc.vni;
    let all = instances.iter().flat_map(move |one| endpoints_of(vni, one, Ipv4Addr::UNSPECIFIED.into()));
    all.map(|endpoint| endpoint.key())
}

pub(super) fn create_instances(
    vpc: &Vpc,
    subnets: &[Subnet],
    hosts: &[Host],
    instances: &[Instance],
    known: &HashMap<HostId, Host>,
    out: &mut Compiled,
) {
    out.created += instances.len();
    let routes = routes(vpc, instances);
    for cluster in vpc.clusters().filter(|_| !routes.is_empty()) {
        out.of(Target::Cluster(cluster)).routes.extend_from_slice(&routes);
    }
    let mut all = endpoints(vpc, hosts, instances);
    if let Some(moving) = vpc.moving {
        out.of(Target::Cluster(moving.to)).endpoints.extend_from_slice(&all);
    }
    let before = &mut out.of(Target::Cluster(vpc.cluster)).endpoints;
    if before.is_empty() {
        *before = all
    } else {
        before.append(&mut all)
    }
    let agents: HashSet<_> = hosts.iter().filter(|host| host.agent).map(|host| host.id).collect();
    let placed = instances.iter().filter(|instance| agents.contains(&instance.host));
    add_ports(vpc, subnets, placed, known, out);
}

/// Adds ports to the updates of their hosts, and the VRF that the ports need. An instance that migrates has two hosts; `known` are
/// all hosts.
fn add_ports<'a>(
    vpc: &Vpc,
    subnets: impl IntoIterator<Item = &'a Subnet>,
    instances: impl IntoIterator<Item = &'a Instance>,
    known: &HashMap<HostId, Host>,
    out: &mut Compiled,
) {
    let mut subnets: Vec<_> = subnets.into_iter().collect();
    subnets.sort_by_key(|subnet| subnet.id);
    let vrf = vrf(vpc, subnets.iter().copied(), true);
    out.hosts.clusters_by_vni.insert(vpc.vni, vpc.clusters().collect());
    let subnets: HashMap<_, _> = subnets.into_iter().map(|subnet| (subnet.id, subnet)).collect();
    let mut ports: BTreeMap<HostId, Vec<Port>> = BTreeMap::new();
    for instance in instances {
        let Some(subnet) = subnets.get(&instance.subnet) else { continue };
        for host in instance.hosts() {
            ports.entry(host).or_default().extend(port_on(host, vpc, subnet, instance, known));
        }
    }
    for (host, mut ports) in ports {
        let added = &mut out.hosts.ports.entry(host).or_default().added;
        for port in &ports {
            *added.entry((vpc.vni, port.identity)).or_default() += 1;
        }
        let update = out.of(Target::Host(host));
        update.ports.append(&mut ports);
        if !update.vrfs.contains(&vrf) {
            update.vrfs.push(vrf);
        }
    }
}

/// Sends what changed of instances: to gateways the difference, to their hosts the ports. `subnets` are all subnets of the
/// VPC.
pub(super) fn change_instances<'a>(
    vpc: &Vpc,
    subnets: impl IntoIterator<Item = &'a Subnet>,
    hosts: &[Host],
    changes: &'a [InstanceChange],
    known: &HashMap<HostId, Host>,
    out: &mut Compiled,
) {
    let old: Vec<Instance> = changes.iter().map(InstanceChange::old).collect();
    let new: Vec<Instance> = changes.iter().map(|change| change.after.clone()).collect();
    let (had, has) = (endpoints(vpc, hosts, &old), endpoints(vpc, hosts, &new));
    let keys: HashSet<EndpointKey> = has.iter().map(Endpoint::key).collect();
    let (old_routes, new_routes) = (routes(vpc, &old), routes(vpc, &new));
    for cluster in vpc.clusters() {
        let update = out.of(Target::Cluster(cluster));
        update.endpoints.extend(has.iter().filter(|endpoint| !had.contains(endpoint)));
        update.removed_endpoints.extend(had.iter().map(Endpoint::key).filter(|key| !keys.contains(key)));
        update.routes.extend(new_routes.iter().filter(|route| !old_routes.contains(route)));
        let gone = old_routes.iter().filter(|old| new_routes.iter().all(|new| new.key != old.key));
        update.removed_routes.extend(gone.map(|route| route.key));
    }
    let agents: HashSet<_> = hosts.iter().filter(|host| host.agent).map(|host| host.id).collect();
    let on_agents =
        || changes.iter().map(|change| &change.after).filter(|after| agents.contains(&after.host));
    add_ports(vpc, subnets, on_agents(), known, out);
    for instance in on_agents() {
        instance.hosts().for_each(|host| count_removed(vpc, instance.identity, host, out));
    }
    // The host of the one that loses an address would send its packets back to gateways that do not know the new holder.
    let [first, second] = changes else { return };
    if first.after.host != second.after.host && agents.contains(&first.after.host) {
        let held = NodeGroup::Host(first.after.host);
        out.gates.extend(vpc.clusters().map(|cluster| Gate { held, awaited: NodeGroup::Gateways(cluster) }));
    }
}

/// Sends the port of an instance again, whose identity was `from`. The host runs an agent; `subnets` are all subnets of
/// the VPC, and `known` all hosts.
pub(super) fn change_groups<'a>(
    vpc: &Vpc,
    subnets: impl IntoIterator<Item = &'a Subnet>,
    instance: &'a Instance,
    from: u16,
    known: &HashMap<HostId, Host>,
    out: &mut Compiled,
) {
    add_ports(vpc, subnets, [instance], known, out);
    instance.hosts().for_each(|host| count_removed(vpc, from, host, out));
}

/// Sends the port of an instance whose migration started or was canceled to its source host again, and to the target host or
/// removes it there. Both run agents. `before` is the migration that it had.
pub(super) fn change_migration(
    vpc: &Vpc,
    subnets: &[Subnet],
    instance: &Instance,
    before: Option<&Migration>,
    known: &HashMap<HostId, Host>,
    out: &mut Compiled,
) {
    add_ports(vpc, subnets, [instance], known, out);
    count_removed(vpc, instance.identity, instance.host, out);
    if let Some(before) = before {
        remove_port(vpc, instance, before.to, out);
    }
}

/// Sends the ports of instances again, whose network class has another policy. `subnets` are all subnets of the VPC.
pub(super) fn change_credit<'a>(
    vpc: &Vpc,
    subnets: impl IntoIterator<Item = &'a Subnet>,
    instances: &'a [Instance],
    known: &HashMap<HostId, Host>,
    out: &mut Compiled,
) {
    let has_agent = |host: &HostId| known.get(host).is_some_and(|host| host.agent);
    let on_agents = || instances.iter().filter(|instance| has_agent(&instance.host));
    add_ports(vpc, subnets, on_agents(), known, out);
    for instance in on_agents() {
        instance.hosts().for_each(|host| count_removed(vpc, instance.identity, host, out));
    }
}

fn count_removed(vpc: &Vpc, identity: u16, host: HostId, out: &mut Compiled) {
    let removed = &mut out.hosts.ports.entry(host).or_default().removed;
    *removed.entry((vpc.vni, identity)).or_default() += 1;
}

fn remove_port(vpc: &Vpc, instance: &Instance, host: HostId, out: &mut Compiled) {
    out.of(Target::Host(host)).removed_ports.push(instance.id);
    count_removed(vpc, instance.identity, host, out);
}

pub(super) fn remove_instances(
    vpc: &Vpc,
    instances: &[Instance],
    has_agent: impl Fn(&HostId) -> bool,
    out: &mut Compiled,
) {
    for cluster in vpc.clusters() {
        let update = out.of(Target::Cluster(cluster));
        update.removed_endpoints.extend(endpoint_keys(vpc, instances));
        update.removed_routes.extend(routes(vpc, instances).iter().map(|route| route.key));
    }
    for instance in instances.iter().filter(|i| has_agent(&i.host)) {
        instance.hosts().for_each(|host| remove_port(vpc, instance, host, out));
    }
}

/// Sends the new location to gateways first: they get the packets that still arrive at the old host, and
/// would otherwise send them back to it. `from` is the old host, if it runs an agent; `ended` is the migration that this
/// ends, whose target has the port already.
pub(super) fn move_instance(
    vpc: &Vpc,
    subnets: &[Subnet],
    hosts: &[Host],
    instance: &Instance,
    (from, ended): (Option<HostId>, Option<&Migration>),
    known: &HashMap<HostId, Host>,
    out: &mut Compiled,
) {
    let one = std::slice::from_ref(instance);
    let to = hosts.iter().find(|host| host.id == instance.host && host.agent).map(|host| host.id);
    for cluster in vpc.clusters() {
        out.of(Target::Cluster(cluster)).endpoints.append(&mut endpoints(vpc, hosts, one));
        for host in from.into_iter().chain(to) {
            out.gates.push(Gate { held: NodeGroup::Host(host), awaited: NodeGroup::Gateways(cluster) });
        }
    }
    if to.is_some() {
        add_ports(vpc, subnets, one, known, out);
    }
    match ended.map(|ended| ended.to) {
        Some(target) if target == instance.host => count_removed(vpc, instance.identity, target, out),
        Some(target) => remove_port(vpc, instance, target, out),
        None => {}
    }
    if let Some(from) = from {
        remove_port(vpc, instance, from, out);
    }
}
