//! Converts what gateways report into the scheduler's input. This file changes when gateways or the scheduler
//! use other figures.

use super::super::ledger::Ledger;
use super::super::load::recent::{Alarm, BUSY_MS};
use super::super::load::{GatewayLoad, LoadSnapshot};
use super::super::usage::{CapacitySource, ClusterUsage, GatewayUsage};
use sluice_placement::{ClusterReport, GatewayReport, MeasurementTime, VipDemand};
use sluice_store::{ClusterVip, Gateway};
use sluice_types::GatewayId;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A gateway without a report for this time, in milliseconds, is left out. Failover handles its vIPs.
const SILENT_MS: u64 = 3_000;
/// Period in milliseconds of the figures that gateways report once a second.
const SECOND_MS: u64 = 1_000;
/// Age in milliseconds up to which a recent load is used.
const RECENT_AGE_MS: u64 = 200;

/// Returns the clusters with the gateways that report now. Gateways do not count packets by vIP: the whole
/// load of a gateway is divided equally among the vIPs that it owns, whatever causes the load. So a gateway
/// that is busy with something else keeps fewer vIPs. A vIP that not every gateway of its cluster can own
/// does not move. A vIP on its way to its preferred owner already counts there, except for the part that the
/// scheduler corrects itself because it moved the vIP: `correction` is
/// [`Scheduler::correction`](sluice_placement::Scheduler::correction).
pub fn reports(
    ledger: &Ledger,
    clusters: &[ClusterUsage],
    loads: &LoadSnapshot,
    correction: &dyn Fn(IpAddr, &MeasurementTime) -> f64,
) -> Vec<ClusterReport> {
    let cluster = |view: &ClusterUsage| {
        let placed = ledger.clusters.get(&view.id)?;
        // A gateway that is down is left out. A draining one gets no vIP and gives all away.
        let up = view.gateways.iter().filter(|gateway| !gateway.down);
        let gateways = up.filter_map(|gateway| {
            let fresh = |load: &GatewayLoad| loads.now_ms.saturating_sub(load.measured_ms) < SILENT_MS;
            let load = gateway.load.filter(fresh)?;
            let (busy, pps, measured) = worst(gateway, &load, loads.now_ms);
            Some(GatewayReport {
                id: gateway.id,
                capacity_pps: gateway.capacity_pps as f64,
                load: busy,
                pps,
                measured,
                pairs: Vec::new(),
                draining: gateway.draining,
            })
        });
        let mut gateways: Vec<GatewayReport> = gateways.collect();
        let parts = vip_parts(&placed.cluster.vips, loads, &gateways);
        correct_loads(&parts, correction, &mut gateways);
        assign_vips(&parts, &placed.gateways, &mut gateways);
        Some(ClusterReport { id: view.id, gateways })
    };
    clusters.iter().filter_map(cluster).collect()
}

/// The load that counts, its packets a second, and when it was measured: the recent load if it is higher than
/// that of the last second, because new load must be seen at once, and load that ended may start again.
fn worst(gateway: &GatewayUsage, load: &GatewayLoad, now_ms: u64) -> (f64, f64, MeasurementTime) {
    let since = |from_ms: u64, to_ms: u64| MeasurementTime { from_ms, to_ms };
    let start_ms = load.measured_ms.saturating_sub(SECOND_MS);
    let second = (busy(gateway, load.busy, load.pps), load.pps, since(start_ms, load.measured_ms));
    let recent = load.recent.filter(|recent| now_ms.saturating_sub(recent.measured_ms) < RECENT_AGE_MS);
    let recent = recent.map(|it| {
        let (pps, counted_ms) = it.rate.map_or((0.0, 0), |rate| (rate.pps, rate.since_ms));
        let worse = busy(gateway, it.busy, pps);
        let start_ms = if worse > it.busy { counted_ms } else { it.measured_ms.saturating_sub(BUSY_MS) };
        (worse, it.rate.map_or(load.pps, |rate| rate.pps), since(start_ms, it.measured_ms))
    });
    recent.filter(|recent| recent.0 > second.0).unwrap_or(second)
}

/// Loads above which the scheduler does not wait for its next round.
pub fn alarms(clusters: &[ClusterUsage], overload_threshold: f64) -> BTreeMap<GatewayId, Alarm> {
    let alarm = |gateway: &GatewayUsage| Alarm {
        busy: overload_threshold,
        pps: match gateway.capacity_source {
            CapacitySource::Set => gateway.capacity_pps as f64 * overload_threshold,
            CapacitySource::Estimated | CapacitySource::Assumed => f64::INFINITY,
        },
    };
    let gateways = clusters.iter().flat_map(|cluster| &cluster.gateways);
    gateways.map(|gateway| (gateway.id, alarm(gateway))).collect()
}

/// A vIP whose owner reports.
struct VipPart {
    address: IpAddr,
    owner: GatewayId,
    /// Its preferred owner, or its owner while that one does not report.
    preferred: GatewayId,
    /// Its part of the load of its owner, in packets a second.
    demand_pps: f64,
}

/// Divides the load of each gateway equally among the vIPs that it owns. The load of a gateway that does not
/// report is unknown, so its vIPs are left out.
fn vip_parts(vips: &[ClusterVip], loads: &LoadSnapshot, gateways: &[GatewayReport]) -> Vec<VipPart> {
    let owner = |vip: &ClusterVip| loads.owners.get(&vip.address).copied().or(vip.preferred_owner);
    let part = |gateway: &GatewayReport| {
        let owned = vips.iter().filter(|vip| owner(vip) == Some(gateway.id)).count();
        (gateway.id, gateway.load * gateway.capacity_pps / owned.max(1) as f64)
    };
    let parts: BTreeMap<GatewayId, f64> = gateways.iter().map(part).collect();
    let of_vip = |vip: &ClusterVip| {
        let owner = owner(vip)?;
        let demand_pps = *parts.get(&owner)?;
        let preferred =
            vip.preferred_owner.filter(|preferred| parts.contains_key(preferred)).unwrap_or(owner);
        Some(VipPart { address: vip.address, owner, preferred, demand_pps })
    };
    vips.iter().filter_map(of_vip).collect()
}

/// Counts the loads of vIPs that are on their way to their preferred owners there.
fn correct_loads(
    parts: &[VipPart],
    correction: &dyn Fn(IpAddr, &MeasurementTime) -> f64,
    gateways: &mut [GatewayReport],
) {
    for vip in parts.iter().filter(|vip| vip.preferred != vip.owner) {
        for gateway in gateways.iter_mut() {
            let part = vip.demand_pps / gateway.capacity_pps;
            let part = part * (1.0 - correction(vip.address, &gateway.measured));
            if gateway.id == vip.preferred {
                gateway.load += part;
            } else if gateway.id == vip.owner {
                gateway.load = (gateway.load - part).max(0.0);
            }
        }
    }
}

/// Assigns each gateway the movable vIPs whose preferred owner it is, with their parts of the load. `all` are
/// the gateways of the cluster.
fn assign_vips(parts: &[VipPart], all: &[Gateway], gateways: &mut [GatewayReport]) {
    for vip in parts.iter().filter(|vip| is_movable(vip.address, all)) {
        if let Some(gateway) = gateways.iter_mut().find(|gateway| gateway.id == vip.preferred) {
            gateway.pairs.push(VipDemand { vip: vip.address, demand_pps: vip.demand_pps });
        }
    }
}

/// The preferred owner of each vIP. Another gateway owns the vIP while that one is down.
pub fn preferred_owners(ledger: &Ledger) -> BTreeMap<IpAddr, GatewayId> {
    let vips = ledger.clusters.values().flat_map(|placed| &placed.cluster.vips);
    vips.filter_map(|vip| Some((vip.address, vip.preferred_owner?))).collect()
}

/// CPU load; if the operator set the capacity, the fraction of it that is used counts if it is higher.
fn busy(gateway: &GatewayUsage, cpu: f64, pps: f64) -> f64 {
    match gateway.capacity_source {
        CapacitySource::Set => cpu.max(pps / gateway.capacity_pps.max(1) as f64),
        CapacitySource::Estimated | CapacitySource::Assumed => cpu,
    }
}

fn is_movable(vip: IpAddr, gateways: &[Gateway]) -> bool {
    gateways.iter().all(|gateway| gateway.has_family(vip.is_ipv4()))
}

#[cfg(test)]
mod tests {
    use super::super::super::load::recent::{Rate, RecentLoad};
    use super::super::super::usage::clusters;
    use super::super::super::usage::tests::{gateway, topology};
    use super::*;
    use sluice_types::PlacementSettings;

    fn load(measured_ms: u64, busy: f64, pps: f64) -> GatewayLoad {
        GatewayLoad { measured_ms, busy, pps, ..GatewayLoad::default() }
    }

    #[test]
    fn load_of_a_gateway_is_divided_among_its_vips() {
        let mut gateways = vec![gateway(1, 1, false), gateway(2, 1, false), gateway(3, 1, true)];
        for gateway in &mut gateways {
            gateway.vtep4 = Some([192, 0, 2, 1].into());
            gateway.vtep6 = (gateway.id.get() != 2).then(|| [0xfd00, 0, 0, 0, 0, 0, 0, 1].into());
        }
        let mut topology = topology(1, gateways, Vec::new());
        let vip = |slot: u8, address: &str, owner: u64| ClusterVip {
            slot,
            address: address.parse().unwrap(),
            preferred_owner: Some(GatewayId::new(owner)),
        };
        topology.clusters[0].vips = vec![
            vip(0, "198.51.100.1", 1),
            vip(1, "198.51.100.2", 1),
            vip(2, "fd01::1", 1),
            vip(3, "198.51.100.3", 2),
        ];
        let ledger = Ledger::new(&topology, 9, &[]);
        let loads = [(1, load(10_000, 0.9, 900.0)), (2, load(10_000, 0.2, 0.0)), (3, load(5_000, 0.1, 0.0))];
        let mut loads = LoadSnapshot {
            now_ms: 10_000,
            gateways: loads.into_iter().map(|(id, load)| (GatewayId::new(id), load)).collect(),
            ..LoadSnapshot::default()
        };
        let mut settings = PlacementSettings { gateway_capacity_pps: 1_000, ..PlacementSettings::default() };
        let report = |loads: &LoadSnapshot, settings: &PlacementSettings| {
            reports(&ledger, &clusters(&ledger, loads, settings), loads, &|_, _| 0.0).remove(0).gateways
        };
        let found = report(&loads, &settings);
        assert_eq!(
            found.iter().map(|gateway| gateway.id.get()).collect::<Vec<_>>(),
            [1, 2],
            "gateway 3 does not report"
        );
        // Three vIPs share 900 packets a second. The IPv6 one cannot move to gateway 2.
        let pairs: Vec<(String, f64)> =
            found[0].pairs.iter().map(|pair| (pair.vip.to_string(), pair.demand_pps)).collect();
        assert_eq!(pairs, [("198.51.100.1".into(), 300.0), ("198.51.100.2".into(), 300.0)]);
        assert_eq!((found[0].load, found[1].pairs[0].demand_pps), (0.9, 200.0));
        // The operator set a capacity of 600, which 900 packets a second exceed.
        settings.gateways.insert(GatewayId::new(1), 600);
        assert_eq!(report(&loads, &settings)[0].load, 1.5);
        let alarms = alarms(&clusters(&ledger, &loads, &settings), 0.8);
        assert_eq!(alarms[&GatewayId::new(1)], Alarm { busy: 0.8, pps: 480.0 });
        assert_eq!(alarms[&GatewayId::new(2)], Alarm { busy: 0.8, pps: f64::INFINITY });
        loads.down = [GatewayId::new(2)].into();
        let left = report(&loads, &settings);
        assert_eq!(left.iter().map(|gateway| gateway.id.get()).collect::<Vec<_>>(), [1], "gateway 2 is down");
    }

    #[test]
    fn higher_of_recent_and_second_load_counts() {
        let usage = |capacity_source| GatewayUsage {
            id: GatewayId::new(1),
            name: String::new(),
            draining: false,
            down: false,
            capacity_pps: 1_000,
            capacity_source,
            load: None,
        };
        let recent = |busy, pps: Option<f64>| {
            let rate = pps.map(|pps| Rate { pps, since_ms: 1_900 });
            Some(RecentLoad { measured_ms: 1_950, busy, rate })
        };
        let second = MeasurementTime { from_ms: 0, to_ms: 1_000 };
        let (recent_period, counted) = (
            MeasurementTime { from_ms: 1_850, to_ms: 1_950 },
            MeasurementTime { from_ms: 1_900, to_ms: 1_950 },
        );
        let worst_of = |source, recent, now_ms| {
            worst(&usage(source), &GatewayLoad { recent, ..load(1_000, 0.5, 600.0) }, now_ms)
        };
        assert_eq!(worst_of(CapacitySource::Assumed, None, 2_000), (0.5, 600.0, second));
        assert_eq!(worst_of(CapacitySource::Assumed, recent(0.9, None), 2_000), (0.9, 600.0, recent_period));
        assert_eq!(
            worst_of(CapacitySource::Assumed, recent(0.3, Some(2_000.0)), 2_000),
            (0.5, 600.0, second)
        );
        assert_eq!(worst_of(CapacitySource::Set, recent(0.3, Some(2_000.0)), 2_000), (2.0, 2_000.0, counted));
        assert_eq!(worst_of(CapacitySource::Set, recent(0.3, None), 2_000), (0.6, 600.0, second));
        // The recent load is too old.
        assert_eq!(worst_of(CapacitySource::Assumed, recent(0.9, None), 2_200), (0.5, 600.0, second));
    }

    #[test]
    fn vip_counts_at_its_preferred_owner_as_soon_as_that_reports() {
        let mut gateways = vec![gateway(1, 1, false), gateway(2, 1, false)];
        gateways.iter_mut().for_each(|gateway| gateway.vtep4 = Some([192, 0, 2, 1].into()));
        let mut topology = topology(1, gateways, Vec::new());
        let address = |slot: u8| IpAddr::from([198, 51, 100, slot]);
        let vip = |slot, owner| ClusterVip {
            slot,
            address: address(slot),
            preferred_owner: Some(GatewayId::new(owner)),
        };
        topology.clusters[0].vips = vec![vip(0, 1), vip(1, 1), vip(2, 2), vip(3, 2)];
        let ledger = Ledger::new(&topology, 9, &[]);
        let owned =
            |by: [u64; 4]| (0..).zip(by).map(|(slot, id)| (address(slot), GatewayId::new(id))).collect();
        let settings = PlacementSettings { gateway_capacity_pps: 1_000, ..PlacementSettings::default() };
        let found = |by: [u64; 4], busy: [f64; 2], down: &[u64], corrected: f64| {
            let load = |(id, busy)| (GatewayId::new(id), load(10_000, busy, 0.0));
            let loads = LoadSnapshot {
                now_ms: 10_000,
                gateways: [(1, busy[0]), (2, busy[1])].into_iter().map(load).collect(),
                owners: owned(by),
                down: down.iter().map(|id| GatewayId::new(*id)).collect(),
                ..LoadSnapshot::default()
            };
            let views = clusters(&ledger, &loads, &settings);
            let report = reports(&ledger, &views, &loads, &|_, _| corrected).remove(0).gateways;
            let pairs = |gateway: &GatewayReport| -> Vec<(u8, u64)> {
                let pair = |pair: &VipDemand| match pair.vip {
                    IpAddr::V4(v4) => (v4.octets()[3], pair.demand_pps.round() as u64),
                    IpAddr::V6(_) => unreachable!("all are of IPv4"),
                };
                gateway.pairs.iter().map(pair).collect()
            };
            let all = report.iter().map(|gateway| (gateway.load, pairs(gateway)));
            all.collect::<Vec<_>>()
        };
        // Gateway 2 failed, and gateway 1 owns all vIPs: each carries a quarter of the load and may move.
        let all = vec![(0, 200), (1, 200), (2, 200), (3, 200)];
        assert_eq!(found([1, 1, 1, 1], [0.8, 0.0], &[2], 0.0), [(0.8, all)]);
        // Gateway 2 is back, and its vIPs are on their way.
        let [first, second] = found([1, 1, 1, 1], [0.8, 0.0], &[], 0.0).try_into().unwrap();
        assert_eq!((first.1, second.1), (vec![(0, 200), (1, 200)], vec![(2, 200), (3, 200)]));
        assert!((first.0 - 0.4).abs() < 1e-9 && (second.0 - 0.4).abs() < 1e-9);
        // The scheduler corrects what was measured before it moved them.
        for (corrected, loads) in [(0.0, [0.4, 0.4]), (0.5, [0.6, 0.2]), (1.0, [0.8, 0.0])] {
            let found = found([1, 1, 1, 1], [0.8, 0.0], &[], corrected);
            assert!(
                found.iter().zip(loads).all(|(gateway, load)| (gateway.0 - load).abs() < 1e-9),
                "{found:?}"
            );
        }
        let [first, second] = found([1, 1, 2, 2], [0.4, 0.6], &[], 0.0).try_into().unwrap();
        assert_eq!((first, second.0), ((0.4, vec![(0, 200), (1, 200)]), 0.6));
        assert_eq!(preferred_owners(&ledger)[&address(2)], GatewayId::new(2));
    }
}
