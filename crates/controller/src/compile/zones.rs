//! GWZone: hosts are cut into zones, each with a primary gateway that a few backups
//! stand behind (Zeta section VIII-A). Which gateway a host sends to is a pure
//! function of who is there and who has failed.

use sluice_southbound::Group;
use sluice_store::Gateway;
use sluice_types::{GatewayId, HostId};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A cluster: its group, and its gateways in order of id.
pub type Zoned = (u32, Vec<Gateway>);

/// The zones of all clusters, as they are now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    clusters: Vec<Zoned>,
    /// VTEPs of the hosts that run an agent, in order of their ids.
    hosts: Vec<(HostId, IpAddr)>,
    failed: BTreeSet<GatewayId>,
    backups: usize,
}

fn vtep(gateway: &Gateway, ipv4: bool) -> Option<IpAddr> {
    if ipv4 { gateway.vtep4.map(IpAddr::V4) } else { gateway.vtep6.map(IpAddr::V6) }
}

impl Zones {
    /// Without nodes. The last `backups` gateways of each cluster are backups, if any are left.
    pub fn new(backups: usize) -> Self {
        Self { backups, ..Self::default() }
    }

    /// Clusters and hosts, in order of their ids.
    pub fn set(&mut self, (clusters, hosts): (Vec<Zoned>, Vec<(HostId, IpAddr)>)) {
        (self.clusters, self.hosts) = (clusters, hosts);
        let gateways = self.clusters.iter().flat_map(|(_, gateways)| gateways);
        let there: BTreeSet<_> = gateways.map(|gateway| gateway.id).collect();
        self.failed.retain(|id| there.contains(id));
    }

    /// A gateway has failed, or has returned.
    pub fn note(&mut self, gateway: GatewayId, failed: bool) {
        if failed {
            self.failed.insert(gateway);
        } else {
            self.failed.remove(&gateway);
        }
    }

    /// What a host's default entries lead to: one gateway in each group, or none where a cluster has
    /// none of the host's family.
    pub fn groups(&self, host: HostId) -> Vec<Group> {
        let Some((_, own)) = self.hosts.iter().find(|(id, _)| *id == host) else { return Vec::new() };
        let ipv4 = own.is_ipv4();
        let alike: Vec<_> = self.hosts.iter().filter(|(_, vtep)| vtep.is_ipv4() == ipv4).collect();
        let place = alike.iter().position(|(id, _)| *id == host).unwrap_or_default();
        let group = |(id, gateways): &Zoned| {
            let gateways: Vec<_> = gateways.iter().filter(|gateway| vtep(gateway, ipv4).is_some()).collect();
            let vip = self.gateway(&gateways, place, alike.len()).and_then(|gateway| vtep(gateway, ipv4));
            Group { id: *id, vips: vip.into_iter().collect(), detect: true }
        };
        self.clusters.iter().map(group).collect()
    }

    /// The gateway of the host at `place` of `hosts`.
    fn gateway<'a>(&self, gateways: &[&'a Gateway], place: usize, hosts: usize) -> Option<&'a Gateway> {
        let primaries = gateways.len().saturating_sub(self.backups).max(1).min(gateways.len());
        let (primaries, backups) = gateways.split_at(primaries);
        let zone = place * primaries.len() / hosts.max(1);
        let primary = *primaries.get(zone)?;
        let is_well = |gateway: &&Gateway| !gateway.retires() && !self.failed.contains(&gateway.id);
        if is_well(&primary) {
            return Some(primary);
        }
        let from = zone % backups.len().max(1);
        let mut in_turn = backups.iter().cycle().skip(from).take(backups.len()).copied();
        Some(in_turn.find(is_well).unwrap_or(primary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::ClusterId;

    fn gateway(id: u64) -> Gateway {
        Gateway {
            id: GatewayId::new(id),
            name: format!("g{id}"),
            cluster: ClusterId::new(1),
            vtep4: Some([192, 0, 2, id as u8].into()),
            vtep6: (id != 2).then(|| format!("fd00::{id}").parse().unwrap()),
            moving: None,
            draining: false,
            revision: 1,
        }
    }

    fn host(id: u64, ipv4: bool) -> (HostId, IpAddr) {
        let vtep = if ipv4 { format!("198.51.100.{id}") } else { format!("fd01::{id}") };
        (HostId::new(id), vtep.parse().unwrap())
    }

    /// Last numbers of the gateways that hosts send to, in order of the hosts; 0: none.
    fn sent_to(zones: &Zones) -> Vec<u8> {
        let last = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[15],
        };
        let groups = zones.hosts.iter().map(|(host, _)| zones.groups(*host));
        groups.map(|groups| groups[0].vips.first().copied().map_or(0, last)).collect()
    }

    fn zones(gateways: u64, hosts: u64, backups: usize) -> Zones {
        let mut zones = Zones::new(backups);
        let clusters = vec![(1, (1..=gateways).map(gateway).collect())];
        zones.set((clusters, (11..11 + hosts).map(|id| host(id, true)).collect()));
        zones
    }

    #[test]
    fn hosts_are_cut_in_sequence_into_zones_of_a_primary_each() {
        assert_eq!(sent_to(&zones(4, 6, 1)), [1, 1, 2, 2, 3, 3]);
        assert_eq!(sent_to(&zones(4, 7, 2)), [1, 1, 1, 1, 2, 2, 2]);
        assert_eq!(sent_to(&zones(3, 2, 0)), [1, 2]);
        assert_eq!(sent_to(&zones(1, 2, 3)), [1, 1], "the only one is a primary");
        assert_eq!(sent_to(&zones(0, 2, 1)), [0, 0]);
    }

    #[test]
    fn a_failed_primarys_zone_alone_goes_to_a_backup_and_comes_back() {
        let mut zones = zones(5, 6, 2);
        assert_eq!(sent_to(&zones), [1, 1, 2, 2, 3, 3]);
        zones.note(GatewayId::new(2), true);
        assert_eq!(sent_to(&zones), [1, 1, 5, 5, 3, 3]);
        zones.note(GatewayId::new(1), true);
        assert_eq!(sent_to(&zones), [4, 4, 5, 5, 3, 3]);
        zones.note(GatewayId::new(5), true);
        assert_eq!(sent_to(&zones), [4, 4, 4, 4, 3, 3], "the other backup");
        zones.note(GatewayId::new(4), true);
        assert_eq!(sent_to(&zones), [1, 1, 2, 2, 3, 3], "no gateway is better");
        for id in [1, 2, 4, 5] {
            zones.note(GatewayId::new(id), false);
        }
        assert_eq!(sent_to(&zones), [1, 1, 2, 2, 3, 3]);
        zones.clusters[0].1[0].draining = true;
        assert_eq!(sent_to(&zones), [4, 4, 2, 2, 3, 3]);
    }

    #[test]
    fn each_family_has_zones_of_its_own() {
        let mut zones = zones(3, 0, 1);
        let clusters = zones.clusters.clone();
        zones.set((clusters, vec![host(1, true), host(2, false), host(3, true)]));
        // The second gateway has no IPv6: the first is the only primary there.
        assert_eq!(sent_to(&zones), [1, 1, 2]);
        zones.note(GatewayId::new(1), true);
        assert_eq!(sent_to(&zones), [3, 3, 2]);
        // Who is gone has not failed any more when it is there again.
        zones.set((Vec::new(), Vec::new()));
        assert_eq!(zones, Zones::new(1));
    }
}
