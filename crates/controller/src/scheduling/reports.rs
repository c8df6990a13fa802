//! What gateways reported, as the scheduler wants it.

use crate::ledger::Ledger;
use crate::placing::picture::{ClusterView, GatewayView, Known};
use sluice_placement::{ClusterReport, GatewayReport, Pair};
use sluice_store::{ClusterVip, Gateway};
use std::net::IpAddr;

/// A gateway that has not reported for so long is not there; its vIPs are the failover's concern.
const SILENT_MS: u64 = 3_000;

/// Clusters with the gateways that report now. Gateways do not count by vIP: a gateway's whole load is
/// that of its vIPs, in equal parts, whatever keeps it busy; so the more it is busy with something else,
/// the fewer it keeps. A vIP that not every gateway of its cluster can have stays where it is.
pub fn reports(ledger: &Ledger, clusters: &[ClusterView], now_ms: u64) -> Vec<ClusterReport> {
    let cluster = |view: &ClusterView| {
        let placed = ledger.clusters.get(&view.id)?;
        // One that failed is not there, whatever it says; one that drains gets nothing, and gives all.
        let there = view.gateways.iter().filter(|gateway| !gateway.down);
        let gateways = there.filter_map(|gateway| {
            let load = gateway.load.filter(|load| now_ms.saturating_sub(load.measured_ms) < SILENT_MS)?;
            let busy = busy(gateway, load.busy, load.pps);
            let movable = |vip: &&ClusterVip| movable(vip.address, &placed.gateways);
            let homes = placed.cluster.vips.iter().filter(|vip| vip.home == Some(gateway.id));
            let vips: Vec<IpAddr> = homes.clone().filter(movable).map(|vip| vip.address).collect();
            let demand_pps = busy * gateway.capacity_pps as f64 / homes.count().max(1) as f64;
            Some(GatewayReport {
                id: gateway.id,
                capacity_pps: gateway.capacity_pps as f64,
                load: busy,
                measured_ms: load.measured_ms,
                pairs: vips.into_iter().map(|vip| Pair { vip, demand_pps }).collect(),
                draining: gateway.draining,
            })
        });
        Some(ClusterReport { id: view.id, gateways: gateways.collect() })
    };
    clusters.iter().filter_map(cluster).collect()
}

/// Where the operator has set what a gateway can, that counts beside what its processor says.
fn busy(gateway: &GatewayView, cpu: f64, pps: f64) -> f64 {
    match gateway.known {
        Known::Set => cpu.max(pps / gateway.capacity_pps.max(1) as f64),
        Known::Estimated | Known::Assumed => cpu,
    }
}

fn movable(vip: IpAddr, gateways: &[Gateway]) -> bool {
    gateways
        .iter()
        .all(|gateway| if vip.is_ipv4() { gateway.vtep4.is_some() } else { gateway.vtep6.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{GatewayLoad, LoadPicture};
    use crate::placing::Settings;
    use crate::placing::picture::clusters;
    use crate::placing::picture::tests::{gateway, topology};
    use sluice_types::GatewayId;

    fn load(measured_ms: u64, busy: f64, pps: f64) -> GatewayLoad {
        GatewayLoad { measured_ms, busy, pps, ..GatewayLoad::default() }
    }

    #[test]
    fn a_gateways_load_is_its_vips() {
        let mut gateways = vec![gateway(1, 1, false), gateway(2, 1, false), gateway(3, 1, true)];
        for gateway in &mut gateways {
            gateway.vtep4 = Some([192, 0, 2, 1].into());
            gateway.vtep6 = (gateway.id.get() != 2).then(|| [0xfd00, 0, 0, 0, 0, 0, 0, 1].into());
        }
        let mut topology = topology(1, gateways, Vec::new());
        let vip = |place: u8, address: &str, home: u64| ClusterVip {
            place,
            address: address.parse().unwrap(),
            home: Some(GatewayId::new(home)),
        };
        topology.clusters[0].vips = vec![
            vip(0, "198.51.100.1", 1),
            vip(1, "198.51.100.2", 1),
            vip(2, "fd01::1", 1),
            vip(3, "198.51.100.3", 2),
        ];
        let ledger = Ledger::new(&topology, 9, &[]);
        let loads = [(1, load(10_000, 0.9, 900.0)), (2, load(10_000, 0.2, 0.0)), (3, load(5_000, 0.1, 0.0))];
        let mut loads = LoadPicture {
            now_ms: 10_000,
            gateways: loads.into_iter().map(|(id, load)| (GatewayId::new(id), load)).collect(),
            ..LoadPicture::default()
        };
        let mut settings = Settings { gateway_capacity_pps: 1_000, ..Settings::default() };
        let report = |loads: &LoadPicture, settings: &Settings| {
            reports(&ledger, &clusters(&ledger, loads, settings), 10_000).remove(0).gateways
        };
        let found = report(&loads, &settings);
        assert_eq!(found.iter().map(|gateway| gateway.id.get()).collect::<Vec<_>>(), [1, 2], "one is silent");
        // Three vIPs share 900 packets a second; the IPv6 one could not go to the second gateway.
        let pairs: Vec<(String, f64)> =
            found[0].pairs.iter().map(|pair| (pair.vip.to_string(), pair.demand_pps)).collect();
        assert_eq!(pairs, [("198.51.100.1".into(), 300.0), ("198.51.100.2".into(), 300.0)]);
        assert_eq!((found[0].load, found[1].pairs[0].demand_pps), (0.9, 200.0));
        // Where the operator says that 600 is all that it can, it is above that.
        settings.gateways.insert(GatewayId::new(1), 600);
        assert_eq!(report(&loads, &settings)[0].load, 1.5);
        loads.down = [GatewayId::new(2)].into();
        let left = report(&loads, &settings);
        assert_eq!(left.iter().map(|gateway| gateway.id.get()).collect::<Vec<_>>(), [1], "one failed");
    }
}
