//! What gateways reported, as the scheduler wants it.

use crate::ledger::Ledger;
use crate::load::{Alarm, BUSY_MS, GatewayLoad, LoadPicture};
use crate::placing::picture::{ClusterView, GatewayView, Known};
use sluice_placement::{ClusterReport, GatewayReport, Measured, Pair};
use sluice_store::{ClusterVip, Gateway};
use sluice_types::GatewayId;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A gateway that has not reported for so long is not there; its vIPs are the failover's concern.
const SILENT_MS: u64 = 3_000;
/// What gateways report once a second is of that second.
const SECOND_MS: u64 = 1_000;
/// What was measured longer ago says nothing about this moment.
const MOMENT_MS: u64 = 200;

/// Clusters with the gateways that report now. Gateways do not count by vIP: a gateway's whole load is
/// that of the vIPs that it owns, in equal parts, whatever keeps it busy; so the more it is busy with
/// something else, the fewer it keeps. A vIP that not every gateway of its cluster can have stays where it
/// is. One that is on its way home counts there already, as far as the scheduler does not correct that by
/// itself, having moved it: `corrects` is [`Scheduler::corrects`](sluice_placement::Scheduler::corrects).
pub fn reports(
    ledger: &Ledger,
    clusters: &[ClusterView],
    loads: &LoadPicture,
    corrects: &dyn Fn(IpAddr, &Measured) -> f64,
) -> Vec<ClusterReport> {
    let cluster = |view: &ClusterView| {
        let placed = ledger.clusters.get(&view.id)?;
        // One that failed is not there, whatever it says; one that drains gets nothing, and gives all.
        let there = view.gateways.iter().filter(|gateway| !gateway.down);
        let gateways = there.filter_map(|gateway| {
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
        share_out(&placed.cluster.vips, &placed.gateways, loads, corrects, &mut gateways);
        Some(ClusterReport { id: view.id, gateways })
    };
    clusters.iter().filter_map(cluster).collect()
}

/// The load that counts, with its packets a second, and when it was measured: that of the moment where it
/// is worse than that of the last second, for what begins is to be seen at once, and what ends may begin again.
fn worst(gateway: &GatewayView, load: &GatewayLoad, now_ms: u64) -> (f64, f64, Measured) {
    let since = |from_ms: u64, to_ms: u64| Measured { from_ms, to_ms };
    let begun_ms = load.measured_ms.saturating_sub(SECOND_MS);
    let second = (busy(gateway, load.busy, load.pps), load.pps, since(begun_ms, load.measured_ms));
    let lately = load.lately.filter(|lately| now_ms.saturating_sub(lately.measured_ms) < MOMENT_MS);
    let lately = lately.map(|it| {
        let (pps, counted_ms) = it.rate.map_or((0.0, 0), |rate| (rate.pps, rate.since_ms));
        let worse = busy(gateway, it.busy, pps);
        let begun_ms = if worse > it.busy { counted_ms } else { it.measured_ms.saturating_sub(BUSY_MS) };
        (worse, it.rate.map_or(load.pps, |rate| rate.pps), since(begun_ms, it.measured_ms))
    });
    lately.filter(|lately| lately.0 > second.0).unwrap_or(second)
}

/// From which loads on the scheduler should not wait for its next round.
pub fn alarms(clusters: &[ClusterView], overload_above: f64) -> BTreeMap<GatewayId, Alarm> {
    let alarm = |gateway: &GatewayView| Alarm {
        busy: overload_above,
        pps: match gateway.known {
            Known::Set => gateway.capacity_pps as f64 * overload_above,
            Known::Estimated | Known::Assumed => f64::INFINITY,
        },
    };
    let gateways = clusters.iter().flat_map(|cluster| &cluster.gateways);
    gateways.map(|gateway| (gateway.id, alarm(gateway))).collect()
}

/// Gives each gateway its vIPs with their parts of its load.
fn share_out(
    vips: &[ClusterVip],
    all: &[Gateway],
    loads: &LoadPicture,
    corrects: &dyn Fn(IpAddr, &Measured) -> f64,
    gateways: &mut [GatewayReport],
) {
    let owner = |vip: &ClusterVip| loads.owners.get(&vip.address).copied().or(vip.home);
    let part = |gateway: &GatewayReport| {
        let owned = vips.iter().filter(|vip| owner(vip) == Some(gateway.id)).count();
        (gateway.id, gateway.load * gateway.capacity_pps / owned.max(1) as f64)
    };
    let parts: BTreeMap<GatewayId, f64> = gateways.iter().map(part).collect();
    for vip in vips {
        // What a gateway forwards that does not report is not known.
        let Some((owner, demand_pps)) = owner(vip).and_then(|id| Some((id, *parts.get(&id)?))) else {
            continue;
        };
        let home = vip.home.filter(|home| parts.contains_key(home)).unwrap_or(owner);
        for gateway in gateways.iter_mut().filter(|_| home != owner) {
            let part = demand_pps / gateway.capacity_pps;
            let part = part * (1.0 - corrects(vip.address, &gateway.measured));
            if gateway.id == home {
                gateway.load += part;
            } else if gateway.id == owner {
                gateway.load = (gateway.load - part).max(0.0);
            }
        }
        let place = gateways.iter_mut().find(|gateway| gateway.id == home);
        if let Some(gateway) = place.filter(|_| movable(vip.address, all)) {
            gateway.pairs.push(Pair { vip: vip.address, demand_pps });
        }
    }
}

/// Where each vIP is at home. Another gateway owns it while that one is not there.
pub fn homes(ledger: &Ledger) -> BTreeMap<IpAddr, GatewayId> {
    let vips = ledger.clusters.values().flat_map(|placed| &placed.cluster.vips);
    vips.filter_map(|vip| Some((vip.address, vip.home?))).collect()
}

/// Where the operator has set what a gateway can, that counts beside what its processor says.
fn busy(gateway: &GatewayView, cpu: f64, pps: f64) -> f64 {
    match gateway.known {
        Known::Set => cpu.max(pps / gateway.capacity_pps.max(1) as f64),
        Known::Estimated | Known::Assumed => cpu,
    }
}

fn movable(vip: IpAddr, gateways: &[Gateway]) -> bool {
    gateways.iter().all(|gateway| gateway.has_family(vip.is_ipv4()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Lately, Rate};
    use crate::placing::Settings;
    use crate::placing::picture::clusters;
    use crate::placing::picture::tests::{gateway, topology};

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
            reports(&ledger, &clusters(&ledger, loads, settings), loads, &|_, _| 0.0).remove(0).gateways
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
        let alarms = alarms(&clusters(&ledger, &loads, &settings), 0.8);
        assert_eq!(alarms[&GatewayId::new(1)], Alarm { busy: 0.8, pps: 480.0 });
        assert_eq!(alarms[&GatewayId::new(2)], Alarm { busy: 0.8, pps: f64::INFINITY });
        loads.down = [GatewayId::new(2)].into();
        let left = report(&loads, &settings);
        assert_eq!(left.iter().map(|gateway| gateway.id.get()).collect::<Vec<_>>(), [1], "one failed");
    }

    #[test]
    fn what_is_worse_counts_of_the_moment_and_the_second() {
        let view = |known| GatewayView {
            id: GatewayId::new(1),
            name: String::new(),
            draining: false,
            down: false,
            capacity_pps: 1_000,
            known,
            load: None,
        };
        let lately = |busy, pps: Option<f64>| {
            let rate = pps.map(|pps| Rate { pps, since_ms: 1_900 });
            Some(Lately { measured_ms: 1_950, busy, rate })
        };
        let second = Measured { from_ms: 0, to_ms: 1_000 };
        let (moment, counted) =
            (Measured { from_ms: 1_850, to_ms: 1_950 }, Measured { from_ms: 1_900, to_ms: 1_950 });
        let worst_of = |known, lately, now_ms| {
            worst(&view(known), &GatewayLoad { lately, ..load(1_000, 0.5, 600.0) }, now_ms)
        };
        assert_eq!(worst_of(Known::Assumed, None, 2_000), (0.5, 600.0, second));
        assert_eq!(worst_of(Known::Assumed, lately(0.9, None), 2_000), (0.9, 600.0, moment));
        assert_eq!(worst_of(Known::Assumed, lately(0.3, Some(2_000.0)), 2_000), (0.5, 600.0, second));
        assert_eq!(worst_of(Known::Set, lately(0.3, Some(2_000.0)), 2_000), (2.0, 2_000.0, counted));
        assert_eq!(worst_of(Known::Set, lately(0.3, None), 2_000), (0.6, 600.0, second));
        // Too old for a moment.
        assert_eq!(worst_of(Known::Assumed, lately(0.9, None), 2_200), (0.5, 600.0, second));
    }

    #[test]
    fn a_vip_is_its_present_owners_load() {
        let mut gateways = vec![gateway(1, 1, false), gateway(2, 1, false)];
        gateways.iter_mut().for_each(|gateway| gateway.vtep4 = Some([192, 0, 2, 1].into()));
        let mut topology = topology(1, gateways, Vec::new());
        let address = |place: u8| IpAddr::from([198, 51, 100, place]);
        let vip =
            |place, home| ClusterVip { place, address: address(place), home: Some(GatewayId::new(home)) };
        topology.clusters[0].vips = vec![vip(0, 1), vip(1, 1), vip(2, 2), vip(3, 2)];
        let ledger = Ledger::new(&topology, 9, &[]);
        let owned =
            |by: [u64; 4]| (0..).zip(by).map(|(place, id)| (address(place), GatewayId::new(id))).collect();
        let settings = Settings { gateway_capacity_pps: 1_000, ..Settings::default() };
        let found = |by: [u64; 4], busy: [f64; 2], down: &[u64], corrected: f64| {
            let load = |(id, busy)| (GatewayId::new(id), load(10_000, busy, 0.0));
            let loads = LoadPicture {
                now_ms: 10_000,
                gateways: [(1, busy[0]), (2, busy[1])].into_iter().map(load).collect(),
                owners: owned(by),
                down: down.iter().map(|id| GatewayId::new(*id)).collect(),
                ..LoadPicture::default()
            };
            let views = clusters(&ledger, &loads, &settings);
            let report = reports(&ledger, &views, &loads, &|_, _| corrected).remove(0).gateways;
            let pairs = |gateway: &GatewayReport| -> Vec<(u8, u64)> {
                let pair = |pair: &Pair| match pair.vip {
                    IpAddr::V4(v4) => (v4.octets()[3], pair.demand_pps.round() as u64),
                    IpAddr::V6(_) => unreachable!("all are of IPv4"),
                };
                gateway.pairs.iter().map(pair).collect()
            };
            let all = report.iter().map(|gateway| (gateway.load, pairs(gateway)));
            all.collect::<Vec<_>>()
        };
        // The second failed, and the first has all: a quarter of its load is each one's, and may leave it.
        let all = vec![(0, 200), (1, 200), (2, 200), (3, 200)];
        assert_eq!(found([1, 1, 1, 1], [0.8, 0.0], &[2], 0.0), [(0.8, all)]);
        // It is back, and its vIPs are on their way.
        let [first, second] = found([1, 1, 1, 1], [0.8, 0.0], &[], 0.0).try_into().unwrap();
        assert_eq!((first.1, second.1), (vec![(0, 200), (1, 200)], vec![(2, 200), (3, 200)]));
        assert!((first.0 - 0.4).abs() < 1e-9 && (second.0 - 0.4).abs() < 1e-9);
        // What was measured before they were told to go, the scheduler corrects.
        for (corrected, loads) in [(0.0, [0.4, 0.4]), (0.5, [0.6, 0.2]), (1.0, [0.8, 0.0])] {
            let found = found([1, 1, 1, 1], [0.8, 0.0], &[], corrected);
            assert!(
                found.iter().zip(loads).all(|(gateway, load)| (gateway.0 - load).abs() < 1e-9),
                "{found:?}"
            );
        }
        let [first, second] = found([1, 1, 2, 2], [0.4, 0.6], &[], 0.0).try_into().unwrap();
        assert_eq!((first, second.0), ((0.4, vec![(0, 200), (1, 200)]), 0.6));
        assert_eq!(homes(&ledger)[&address(2)], GatewayId::new(2));
    }
}
