//! Entries of instances and VPCs: endpoints for gateways, ports and VRFs for hosts.

use super::{Compiled, Gate, NodeGroup, Target, group_id};
use sluice_southbound::{ELEPHANT_DEFAULT, Endpoint, EndpointKey, Port, Vrf};
use sluice_store::{Host, Instance, Subnet, Vpc};
use sluice_types::{HostId, IpNet, Ipv4Net, Ipv6Mode, Ipv6Net, Vni, first_host};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
        elephant_kbps: if on_host { ELEPHANT_DEFAULT } else { vpc.offload_kbps.unwrap_or(ELEPHANT_DEFAULT) },
    }
}

pub(super) fn endpoint(vni: Vni, instance: &Instance, host: IpAddr) -> Endpoint {
    Endpoint { vni, ipv4: instance.ipv4, ipv6: instance.ipv6, mac: instance.mac, host }
}

pub(super) fn port(vpc: &Vpc, subnet: &Subnet, instance: &Instance) -> Port {
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
        options: sluice_southbound::PortOptions::default(),
    }
}

/// Endpoint entries of instances, for gateways. `hosts` contains every host of these instances.
pub(super) fn endpoints(vpc: &Vpc, hosts: &[Host], instances: &[Instance]) -> Vec<Endpoint> {
    let vteps: HashMap<_, _> = hosts.iter().map(|host| (host.id, host.vtep)).collect();
    let one = |instance: &Instance| Some(endpoint(vpc.vni, instance, *vteps.get(&instance.host)?));
    instances.iter().filter_map(one).collect()
}

pub(super) fn endpoint_keys(vpc: &Vpc, instances: &[Instance]) -> impl Iterator<Item = EndpointKey> {
    instances.iter().map(|i| endpoint(vpc.vni, i, Ipv4Addr::UNSPECIFIED.into()).key())
}

pub(super) fn create_instances(
    vpc: &Vpc,
    subnets: &[Subnet],
    hosts: &[Host],
    instances: &[Instance],
    out: &mut Compiled,
) {
    out.created += instances.len();
    let mut all = endpoints(vpc, hosts, instances);
    if let Some(moving) = vpc.moving {
        out.of(Target::Cluster(moving.to)).endpoints.extend_from_slice(&all);
    }
    let known = &mut out.of(Target::Cluster(vpc.cluster)).endpoints;
    if known.is_empty() {
        *known = all
    } else {
        known.append(&mut all)
    }
    let agents: HashSet<_> = hosts.iter().filter(|host| host.agent).map(|host| host.id).collect();
    add_ports(vpc, subnets, instances.iter().filter(|instance| agents.contains(&instance.host)), out);
}

/// Adds ports to the updates of their hosts, and the VRF that the ports need.
fn add_ports<'a>(
    vpc: &Vpc,
    subnets: impl IntoIterator<Item = &'a Subnet>,
    instances: impl IntoIterator<Item = &'a Instance>,
    out: &mut Compiled,
) {
    let mut subnets: Vec<_> = subnets.into_iter().collect();
    subnets.sort_by_key(|subnet| subnet.id);
    let vrf = vrf(vpc, subnets.iter().copied(), true);
    out.hosts.clusters_by_vni.insert(vpc.vni, vpc.clusters().collect());
    let subnets: HashMap<_, _> = subnets.into_iter().map(|subnet| (subnet.id, subnet)).collect();
    let mut ports: BTreeMap<HostId, Vec<Port>> = BTreeMap::new();
    for instance in instances {
        if let Some(subnet) = subnets.get(&instance.subnet) {
            ports.entry(instance.host).or_default().push(port(vpc, subnet, instance));
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

/// Sends the port of an instance again, whose identity was `from`. The host runs an agent; `subnets` are all subnets of
/// the VPC.
pub(super) fn change_groups<'a>(
    vpc: &Vpc,
    subnets: impl IntoIterator<Item = &'a Subnet>,
    instance: &'a Instance,
    from: u16,
    out: &mut Compiled,
) {
    add_ports(vpc, subnets, [instance], out);
    count_removed(vpc, from, instance.host, out);
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
        out.of(Target::Cluster(cluster)).removed_endpoints.extend(endpoint_keys(vpc, instances));
    }
    for instance in instances.iter().filter(|i| has_agent(&i.host)) {
        remove_port(vpc, instance, instance.host, out);
    }
}

/// Sends the new location to gateways first: they get the packets that still arrive at the old host, and
/// would otherwise send them back to it. `from` is the old host, if it runs an agent.
pub(super) fn move_instance(
    vpc: &Vpc,
    subnets: &[Subnet],
    hosts: &[Host],
    instance: &Instance,
    from: Option<HostId>,
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
        add_ports(vpc, subnets, one, out);
    }
    if let Some(from) = from {
        remove_port(vpc, instance, from, out);
    }
}
