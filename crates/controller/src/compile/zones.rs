//! The model `gwzone`: hosts are divided into zones, each with a primary gateway and shared backups (Zeta
//! section VIII-A). The gateway of a host is a pure function of the hosts, the gateways, and which gateways
//! are away.

use super::Model;
use sluice_southbound::Group;
use sluice_store::Gateway;
use sluice_types::{GatewayId, HostId};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A cluster: the id of its group, and its gateways in order of id.
pub type ZoneInput = (u32, Vec<Gateway>);

/// The zones of all clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    clusters: Vec<ZoneInput>,
    /// VTEPs of the hosts that run an agent, in order of their ids.
    hosts: Vec<(HostId, IpAddr)>,
    /// Gateways that cannot be relied on.
    away: BTreeSet<GatewayId>,
    backups: usize,
}

fn vtep(gateway: &Gateway, ipv4: bool) -> Option<IpAddr> {
    if ipv4 { gateway.vtep4.map(IpAddr::V4) } else { gateway.vtep6.map(IpAddr::V6) }
}

impl Zones {
    /// Starts without nodes. The last `backups` gateways of each cluster are backups, but at least one is a
    /// primary.
    pub fn new(backups: usize) -> Self {
        Self { backups, ..Self::default() }
    }

    /// Replaces clusters and hosts. Both are in order of their ids.
    pub fn set(&mut self, (clusters, hosts): (Vec<ZoneInput>, Vec<(HostId, IpAddr)>)) {
        (self.clusters, self.hosts) = (clusters, hosts);
        let gateways = self.clusters.iter().flat_map(|(_, gateways)| gateways);
        let there: BTreeSet<_> = gateways.map(|gateway| gateway.id).collect();
        self.away.retain(|id| there.contains(id));
    }

    /// Records that a gateway cannot be relied on (it failed, or has not the tables that others have), or can again.
    pub fn set_away(&mut self, gateway: GatewayId, away: bool) {
        if away {
            self.away.insert(gateway);
        } else {
            self.away.remove(&gateway);
        }
    }

    /// The groups of a host, one for each cluster: each contains the VTEP of one gateway, or is empty if the
    /// cluster has no gateway of the host's address family.
    pub fn groups(&self, host: HostId) -> Vec<Group> {
        let Some((_, own)) = self.hosts.iter().find(|(id, _)| *id == host) else { return Vec::new() };
        let ipv4 = own.is_ipv4();
        let same_family: Vec<_> = self.hosts.iter().filter(|(_, vtep)| vtep.is_ipv4() == ipv4).collect();
        let position = same_family.iter().position(|(id, _)| *id == host).unwrap_or_default();
        let group = |(id, gateways): &ZoneInput| {
            let gateways: Vec<_> = gateways.iter().filter(|gateway| vtep(gateway, ipv4).is_some()).collect();
            let vip =
                self.gateway(&gateways, position, same_family.len()).and_then(|gateway| vtep(gateway, ipv4));
            let detect_after_ms = Model::GwZone.hosts_detect_after_ms();
            Group { id: *id, vips: vip.into_iter().collect(), detect_after_ms }
        };
        self.clusters.iter().map(group).collect()
    }

    /// The gateway of the host at index `position` of `hosts` hosts.
    fn gateway<'a>(&self, gateways: &[&'a Gateway], position: usize, hosts: usize) -> Option<&'a Gateway> {
        let primaries = gateways.len().saturating_sub(self.backups).max(1).min(gateways.len());
        let (primaries, backups) = gateways.split_at(primaries);
        let zone = position * primaries.len() / hosts.max(1);
        let primary = *primaries.get(zone)?;
        let is_usable = |gateway: &&Gateway| !gateway.is_retiring() && !self.away.contains(&gateway.id);
        if is_usable(&primary) {
            return Some(primary);
        }
        let from = zone % backups.len().max(1);
        let mut rotation = backups.iter().cycle().skip(from).take(backups.len()).copied();
        Some(rotation.find(is_usable).unwrap_or(primary))
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

    /// Last octet of the gateway of each host, in order of the hosts; 0 for a host without a gateway.
    fn gateway_of_hosts(zones: &Zones) -> Vec<u8> {
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
    fn hosts_are_divided_by_id_into_one_zone_per_primary() {
        assert_eq!(gateway_of_hosts(&zones(4, 6, 1)), [1, 1, 2, 2, 3, 3]);
        assert_eq!(gateway_of_hosts(&zones(4, 7, 2)), [1, 1, 1, 1, 2, 2, 2]);
        assert_eq!(gateway_of_hosts(&zones(3, 2, 0)), [1, 2]);
        assert_eq!(gateway_of_hosts(&zones(1, 2, 3)), [1, 1], "the only one is a primary");
        assert_eq!(gateway_of_hosts(&zones(0, 2, 1)), [0, 0]);
    }

    #[test]
    fn only_zone_of_absent_primary_uses_backup_until_it_returns() {
        let mut zones = zones(5, 6, 2);
        assert_eq!(gateway_of_hosts(&zones), [1, 1, 2, 2, 3, 3]);
        zones.set_away(GatewayId::new(2), true);
        assert_eq!(gateway_of_hosts(&zones), [1, 1, 5, 5, 3, 3]);
        zones.set_away(GatewayId::new(1), true);
        assert_eq!(gateway_of_hosts(&zones), [4, 4, 5, 5, 3, 3]);
        zones.set_away(GatewayId::new(5), true);
        assert_eq!(gateway_of_hosts(&zones), [4, 4, 4, 4, 3, 3], "the other backup");
        zones.set_away(GatewayId::new(4), true);
        assert_eq!(gateway_of_hosts(&zones), [1, 1, 2, 2, 3, 3], "no gateway is better");
        for id in [1, 2, 4, 5] {
            zones.set_away(GatewayId::new(id), false);
        }
        assert_eq!(gateway_of_hosts(&zones), [1, 1, 2, 2, 3, 3]);
        zones.clusters[0].1[0].draining = true;
        assert_eq!(gateway_of_hosts(&zones), [4, 4, 2, 2, 3, 3]);
    }

    #[test]
    fn each_address_family_has_separate_zones() {
        let mut zones = zones(3, 0, 1);
        let clusters = zones.clusters.clone();
        zones.set((clusters, vec![host(1, true), host(2, false), host(3, true)]));
        // The second gateway has no IPv6: the first is the only primary there.
        assert_eq!(gateway_of_hosts(&zones), [1, 1, 2]);
        zones.set_away(GatewayId::new(1), true);
        assert_eq!(gateway_of_hosts(&zones), [3, 3, 2]);
        // It is forgotten that a deleted gateway is away.
        zones.set((Vec::new(), Vec::new()));
        assert_eq!(zones, Zones::new(1));
    }
}
