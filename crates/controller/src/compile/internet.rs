//! The public addresses of VPCs, for the gateways of their clusters. This file changes with what gateways get of EIPs and
//! NAT gateways, or with which vIP's owner answers for an address.

use super::{Compiled, State, Target, meter_id};
use sluice_southbound::{NatGateway, PublicPrefix};
use sluice_store::{Change, Eip, NatGateway as StoredNatGateway, PortForward as StoredPortForward};
use sluice_types::{
    ClusterId, EipId, IpNet, MeterId, NatFiltering, NatGatewayId, NatMapping, PortForward, Vni, VpcId,
    bytes_hash,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddrV4};

/// An EIP that is attached.
#[derive(Clone, Copy, Debug)]
struct Attached {
    outside: IpNet,
    vpc: VpcId,
    inside: IpNet,
    meter: Option<MeterId>,
    nptv6: bool,
}

/// The public addresses of VPCs, by their cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct PublicAddresses {
    /// The EIPs that are attached.
    eips: BTreeMap<ClusterId, BTreeMap<EipId, Attached>>,
    /// The NAT gateways, by their VPC.
    nat_gateways: BTreeMap<ClusterId, BTreeMap<VpcId, StoredNatGateway>>,
    /// The port forwards of NAT gateways that have some.
    port_forwards: BTreeMap<NatGatewayId, BTreeSet<PortForward>>,
}

fn port_forward(stored: &StoredPortForward) -> PortForward {
    let StoredPortForward { protocol, address, port, inside, inside_port, .. } = *stored;
    let (outside, inside) = (SocketAddrV4::new(address, port), SocketAddrV4::new(inside, inside_port));
    PortForward { protocol, outside, inside }
}

impl PublicAddresses {
    /// Inserts, replaces or removes an EIP. Returns whether it was there.
    pub fn set(&mut self, eip: &Eip) -> bool {
        let of_cluster = self.eips.entry(eip.cluster).or_default();
        let old = match eip.attachment {
            Some(at) => {
                let attached = Attached {
                    outside: eip.prefix,
                    vpc: at.vpc,
                    inside: at.inside,
                    meter: eip.meter,
                    nptv6: eip.nptv6,
                };
                of_cluster.insert(eip.id, attached)
            }
            None => of_cluster.remove(&eip.id),
        };
        old.is_some()
    }

    /// Inserts or replaces a NAT gateway.
    pub fn set_nat_gateway(&mut self, new: &StoredNatGateway) {
        self.nat_gateways.entry(new.cluster).or_default().insert(new.vpc, new.clone());
    }

    /// Inserts a port forward.
    pub fn add_port_forward(&mut self, new: &StoredPortForward) {
        self.port_forwards.entry(new.nat_gateway).or_default().insert(port_forward(new));
    }

    fn remove_port_forward(&mut self, old: &StoredPortForward) {
        if let Some(forwards) = self.port_forwards.get_mut(&old.nat_gateway) {
            forwards.remove(&port_forward(old));
            if forwards.is_empty() {
                self.port_forwards.remove(&old.nat_gateway);
            }
        }
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The vIP whose owner answers for something with this name, by rendezvous hashing: each vIP gets an equal share, and a
/// change of the vIPs changes only the shares of those that are added or removed.
fn vip_of(name: &[u8], vips: &[IpAddr]) -> Option<IpAddr> {
    let weight = |vip: &IpAddr| bytes_hash(&[name, &octets(*vip)].concat());
    vips.iter().copied().max_by_key(|vip| (weight(vip), *vip))
}

/// The vIP whose owner answers for public addresses.
fn vip_of_prefix(outside: IpNet, vips: &[IpAddr]) -> Option<IpAddr> {
    vip_of(&octets(outside.addr()), vips)
}

/// The vIP whose owner has all sessions of a VPC's NAT gateway.
fn vip_of_nat(vni: Vni, vips: &[IpAddr]) -> Option<IpAddr> {
    vip_of(&vni.get().to_be_bytes(), vips)
}

impl State {
    fn public_prefix(&self, cluster: ClusterId, attached: &Attached) -> Option<PublicPrefix> {
        let vips = self.clusters.get(&cluster)?.cluster.addresses();
        let Attached { outside, vpc, inside, meter, nptv6 } = *attached;
        let vni = self.vpcs.get(&vpc)?.vpc.vni;
        let vip = vip_of_prefix(outside, &vips)?;
        Some(PublicPrefix { outside, vni, inside, vip, meter: meter.map(meter_id), nptv6 })
    }

    fn nat_gateway(&self, stored: &StoredNatGateway) -> Option<NatGateway> {
        let vips = self.clusters.get(&stored.cluster)?.cluster.addresses();
        let vni = self.vpcs.get(&stored.vpc)?.vpc.vni;
        Some(NatGateway {
            vni,
            addresses: stored.addresses.clone(),
            vip: vip_of_nat(vni, &vips)?,
            sessions: stored.sessions,
            blocks: stored.blocks,
            any_remote: stored.filtering == NatFiltering::EndpointIndependent,
            shares_ports: stored.mapping == NatMapping::EndpointDependent,
            forwards: self.public.port_forwards.get(&stored.id).into_iter().flatten().copied().collect(),
            nat64: stored.nat64_prefix.map(|prefix| prefix.addr()),
        })
    }

    /// The public addresses of the VPCs on a cluster.
    pub(super) fn public_prefixes(&self, cluster: ClusterId) -> impl Iterator<Item = PublicPrefix> {
        let attached = self.public.eips.get(&cluster).into_iter().flat_map(BTreeMap::values);
        attached.filter_map(move |attached| self.public_prefix(cluster, attached))
    }

    /// The NAT gateways of the VPCs on a cluster.
    pub(super) fn nat_gateways(&self, cluster: ClusterId) -> impl Iterator<Item = NatGateway> {
        let stored = self.public.nat_gateways.get(&cluster).into_iter().flat_map(BTreeMap::values);
        stored.filter_map(|stored| self.nat_gateway(stored))
    }

    /// Advances by a new NAT gateway, or a change of one.
    pub(super) fn upsert_nat_gateway(&mut self, new: &StoredNatGateway, out: &mut Compiled) {
        self.public.set_nat_gateway(new);
        out.of(Target::Cluster(new.cluster)).nat_gateways.extend(self.nat_gateway(new));
    }

    /// Advances by a new port forward, or by the deletion of one. The NAT gateway is sent once if several changes of a revision
    /// belong to it.
    pub(super) fn set_forward(&mut self, change: &Change, out: &mut Compiled) {
        let changed = match change {
            Change::PortForwardCreated(new) => {
                self.public.add_port_forward(new);
                new
            }
            Change::PortForwardRemoved(old) => {
                self.public.remove_port_forward(old);
                old
            }
            _ => return,
        };
        let of_cluster = self.public.nat_gateways.get(&changed.cluster);
        let stored = of_cluster.and_then(|of_cluster| of_cluster.get(&changed.vpc));
        if let Some(nat) = stored.and_then(|stored| self.nat_gateway(stored)) {
            let sent = &mut out.of(Target::Cluster(changed.cluster)).nat_gateways;
            sent.retain(|known| known.vni != nat.vni);
            sent.push(nat);
        }
    }

    /// Advances by the deletion of a NAT gateway.
    pub(super) fn remove_nat_gateway(&mut self, old: &StoredNatGateway, out: &mut Compiled) {
        if let Some(of_cluster) = self.public.nat_gateways.get_mut(&old.cluster) {
            of_cluster.remove(&old.vpc);
        }
        let vni = self.vpcs.get(&old.vpc).map(|state| state.vpc.vni);
        out.of(Target::Cluster(old.cluster)).removed_nat_gateways.extend(vni);
    }

    /// Advances by a change of an EIP; one that was deleted has no attachment.
    pub(super) fn change_eip(&mut self, eip: &Eip, out: &mut Compiled) {
        let was_attached = self.public.set(eip);
        let attached = self.public.eips.get(&eip.cluster).and_then(|of_cluster| of_cluster.get(&eip.id));
        if let Some(prefix) = attached.and_then(|attached| self.public_prefix(eip.cluster, attached)) {
            out.of(Target::Cluster(eip.cluster)).public_prefixes.push(prefix);
        } else if was_attached {
            out.of(Target::Cluster(eip.cluster)).removed_public_prefixes.push(eip.prefix);
        }
    }

    /// Sends those public addresses and NAT gateways again for which the owner of another vIP answers. `old` are the vIPs
    /// before.
    pub(super) fn change_vips(&self, cluster: ClusterId, old: &[IpAddr], out: &mut Compiled) {
        let changed = |prefix: &PublicPrefix| vip_of_prefix(prefix.outside, old) != Some(prefix.vip);
        let prefixes: Vec<_> = self.public_prefixes(cluster).filter(changed).collect();
        if !prefixes.is_empty() {
            out.of(Target::Cluster(cluster)).public_prefixes.extend(prefixes);
        }
        let changed = |nat: &NatGateway| vip_of_nat(nat.vni, old) != Some(nat.vip);
        let nat_gateways: Vec<_> = self.nat_gateways(cluster).filter(changed).collect();
        if !nat_gateways.is_empty() {
            out.of(Target::Cluster(cluster)).nat_gateways.extend(nat_gateways);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: all addresses on few vIPs, and a vIP that comes or goes and changes those of others.
    #[test]
    fn addresses_are_spread_over_vips_and_stay() {
        let vips: Vec<IpAddr> = (1..=8).map(|n| IpAddr::from([192, 0, 2, n])).collect();
        let outside = |n: u8| IpNet::from(IpAddr::from([198, 51, 100, n]));
        let count =
            |vip: &IpAddr| (0..=255).filter(|n| vip_of_prefix(outside(*n), &vips) == Some(*vip)).count();
        for vip in &vips {
            assert!((12..=60).contains(&count(vip)), "{vip} has {} of 256", count(vip));
        }
        for n in 0..=255 {
            let (all, fewer) = (vip_of_prefix(outside(n), &vips), vip_of_prefix(outside(n), &vips[1..]));
            assert!(all == fewer || all == Some(vips[0]), "{n}");
        }
        let v6 = ["2001:db8::1".parse().unwrap()];
        assert_eq!(vip_of_prefix(outside(1), &v6), Some(v6[0]), "the vIP may be of the other family");
        assert_eq!(vip_of_prefix(outside(1), &[]), None);
    }
}
