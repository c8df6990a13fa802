//! The public addresses of VPCs, for the gateways of their clusters. This file changes with what gateways get of EIPs, or
//! with which vIP's owner answers for an address.

use super::{Compiled, State, Target};
use sluice_southbound::PublicPrefix;
use sluice_store::Eip;
use sluice_types::{ClusterId, EipId, IpNet, VpcId, bytes_hash};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// An EIP that is attached.
#[derive(Clone, Copy, Debug)]
struct Attached {
    outside: IpNet,
    vpc: VpcId,
    inside: IpNet,
}

/// The EIPs that are attached, by their cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct PublicAddresses(BTreeMap<ClusterId, BTreeMap<EipId, Attached>>);

impl PublicAddresses {
    /// Inserts, replaces or removes an EIP. Returns whether it was there.
    pub fn set(&mut self, eip: &Eip) -> bool {
        let of_cluster = self.0.entry(eip.cluster).or_default();
        let old = match eip.attachment {
            Some(at) => {
                let attached = Attached { outside: eip.prefix, vpc: at.vpc, inside: at.inside };
                of_cluster.insert(eip.id, attached)
            }
            None => of_cluster.remove(&eip.id),
        };
        old.is_some()
    }
}

/// The vIP whose owner answers for public addresses, by rendezvous hashing: each vIP gets an equal share, and a change of
/// the vIPs changes only the shares of those that are added or removed.
fn vip_of(outside: IpNet, vips: &[IpAddr]) -> Option<IpAddr> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let weight = |vip: &IpAddr| bytes_hash(&[octets(outside.addr()), octets(*vip)].concat());
    vips.iter().copied().max_by_key(|vip| (weight(vip), *vip))
}

impl State {
    fn public_prefix(&self, cluster: ClusterId, attached: &Attached) -> Option<PublicPrefix> {
        let vips = self.clusters.get(&cluster)?.cluster.addresses();
        let Attached { outside, vpc, inside } = *attached;
        let vni = self.vpcs.get(&vpc)?.vpc.vni;
        Some(PublicPrefix { outside, vni, inside, vip: vip_of(outside, &vips)? })
    }

    /// The public addresses of the VPCs on a cluster.
    pub(super) fn public_prefixes(&self, cluster: ClusterId) -> impl Iterator<Item = PublicPrefix> {
        let attached = self.public.0.get(&cluster).into_iter().flat_map(BTreeMap::values);
        attached.filter_map(move |attached| self.public_prefix(cluster, attached))
    }

    /// Advances by a change of an EIP; one that was deleted has no attachment.
    pub(super) fn change_eip(&mut self, eip: &Eip, out: &mut Compiled) {
        let was_attached = self.public.set(eip);
        let attached = self.public.0.get(&eip.cluster).and_then(|of_cluster| of_cluster.get(&eip.id));
        if let Some(prefix) = attached.and_then(|attached| self.public_prefix(eip.cluster, attached)) {
            out.of(Target::Cluster(eip.cluster)).public_prefixes.push(prefix);
        } else if was_attached {
            out.of(Target::Cluster(eip.cluster)).removed_public_prefixes.push(eip.prefix);
        }
    }

    /// Sends those public addresses again for which the owner of another vIP answers. `old` are the vIPs before.
    pub(super) fn change_vips(&self, cluster: ClusterId, old: &[IpAddr], out: &mut Compiled) {
        let changed = |prefix: &PublicPrefix| vip_of(prefix.outside, old) != Some(prefix.vip);
        let prefixes: Vec<_> = self.public_prefixes(cluster).filter(changed).collect();
        if !prefixes.is_empty() {
            out.of(Target::Cluster(cluster)).public_prefixes.extend(prefixes);
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
        let count = |vip: &IpAddr| (0..=255).filter(|n| vip_of(outside(*n), &vips) == Some(*vip)).count();
        for vip in &vips {
            assert!((12..=60).contains(&count(vip)), "{vip} has {} of 256", count(vip));
        }
        for n in 0..=255 {
            let (all, fewer) = (vip_of(outside(n), &vips), vip_of(outside(n), &vips[1..]));
            assert!(all == fewer || all == Some(vips[0]), "{n}");
        }
        let v6 = ["2001:db8::1".parse().unwrap()];
        assert_eq!(vip_of(outside(1), &v6), Some(v6[0]), "the vIP may be of the other family");
        assert_eq!(vip_of(outside(1), &[]), None);
    }
}
