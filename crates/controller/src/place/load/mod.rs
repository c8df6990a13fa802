//! Loads that gateways report: once a second in heartbeats, and of the last moment in the cluster protocol
//! (`recent`); with the traffic of each VPC (`demand`) and the capacity of each gateway (`capacity`). Kept in
//! memory only: loads are reported again within seconds, and capacities are estimated again with the next
//! load. This file changes when gateways report other figures in heartbeats.

pub mod capacity;
pub mod demand;
pub mod recent;

use capacity::Capacity;
use demand::Demands;
use recent::{Alarm, Recent, RecentLoad};
use sluice_southbound::MAX_VNI_LOADS;
use sluice_southbound::proto::{Heartbeat, Table};
use sluice_types::{GatewayId, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// The load of a gateway as it last reported it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GatewayLoad {
    /// Time of the report, in milliseconds of [`Loads::now_ms`].
    pub measured_ms: u64,
    /// CPU load of its forwarding cores; 1 is full load.
    pub busy: f64,
    /// Used fraction of its table memory.
    pub memory: f64,
    /// The gateway offloads every flow.
    pub offload_all: bool,
    /// Packets a second that it forwards.
    pub pps: f64,
    /// Entries that its exact match certainly holds, with those in use; `None` if it does not report it.
    pub entries: Option<u64>,
    /// Numbers for addresses of NAT gateways; `None` if it does not report them, as it translates none.
    pub nat_addresses: Option<u64>,
    /// Estimate of its capacity.
    pub capacity: Capacity,
    /// Its load of the last moment, from the cluster protocol.
    pub recent: Option<RecentLoad>,
}

#[derive(Debug, Default)]
struct Reported {
    session: u64,
    /// `None` before its first heartbeat.
    load: Option<GatewayLoad>,
    /// Capacity that it had on an earlier stream.
    capacity: Capacity,
    /// Packet count of its last heartbeat.
    packets: Option<u64>,
    recent: Recent,
}

#[derive(Debug, Default)]
struct Inner {
    gateways: BTreeMap<GatewayId, Reported>,
    /// Capacities of gateways whose streams ended. They are kept because an estimate needs load.
    capacities: BTreeMap<GatewayId, Capacity>,
    demands: Demands,
}

impl Inner {
    fn snapshot(&self, now_ms: u64) -> LoadSnapshot {
        let loads =
            self.gateways.iter().filter_map(|(id, gateway)| Some((*id, gateway.load?, gateway.recent.load)));
        let gateways: BTreeMap<_, _> =
            loads.map(|(id, load, recent)| (id, GatewayLoad { recent, ..load })).collect();
        let mut capacities = self.capacities.clone();
        capacities.extend(gateways.iter().map(|(id, load)| (*id, load.capacity)));
        let measured = gateways.keys().copied().filter(|id| self.demands.is_measured(*id)).collect();
        LoadSnapshot {
            now_ms,
            gateways,
            demands: self.demands.all(now_ms),
            measured,
            capacities,
            ..LoadSnapshot::default()
        }
    }
}

/// The loads of all gateways that have a stream to this controller.
#[derive(Debug)]
pub struct Loads {
    started: Instant,
    inner: Mutex<Inner>,
    alarmed: Notify,
}

impl Default for Loads {
    fn default() -> Self {
        Self { started: Instant::now(), inner: Mutex::default(), alarmed: Notify::new() }
    }
}

impl Loads {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds of a monotonic clock. Never 0.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// A gateway's stream starts.
    pub fn open(&self, id: GatewayId, session: u64) {
        let now_ms = self.now_ms();
        let mut inner = self.lock();
        let known = inner.gateways.get(&id).map(Reported::capacity);
        let capacity = known.or_else(|| inner.capacities.get(&id).copied()).unwrap_or_default();
        inner.gateways.insert(id, Reported { session, capacity, ..Reported::default() });
        inner.demands.forget(id, now_ms);
    }

    /// A gateway's stream ended.
    pub fn close(&self, id: GatewayId, session: u64) {
        let now_ms = self.now_ms();
        let mut inner = self.lock();
        if inner.gateways.get(&id).is_some_and(|gateway| gateway.session == session) {
            if let Some(closed) = inner.gateways.remove(&id) {
                inner.capacities.insert(id, closed.capacity());
            }
            inner.demands.forget(id, now_ms);
        }
    }

    /// A gateway was deleted. Its stream may end later.
    pub fn remove(&self, id: GatewayId) {
        let now_ms = self.now_ms();
        let mut inner = self.lock();
        inner.gateways.remove(&id);
        inner.capacities.remove(&id);
        inner.demands.forget(id, now_ms);
    }

    /// Adds a heartbeat that came on a stream. Heartbeats of an older stream are ignored.
    pub fn report(&self, id: GatewayId, session: u64, heartbeat: &Heartbeat) {
        self.report_at(id, session, heartbeat, self.now_ms());
    }

    fn report_at(&self, id: GatewayId, session: u64, heartbeat: &Heartbeat, now_ms: u64) {
        let mut inner = self.lock();
        let Inner { gateways, demands, .. } = &mut *inner;
        let Some(gateway) = gateways.get_mut(&id).filter(|gateway| gateway.session == session) else {
            return;
        };
        let last = gateway.load.map(|load| load.measured_ms);
        let elapsed_ms = now_ms.saturating_sub(last.unwrap_or_default());
        let capacity = gateway.capacity();
        let load = gateway.load.get_or_insert(GatewayLoad { capacity, ..GatewayLoad::default() });
        let busy = f64::from(heartbeat.cpu_permille.min(1000)) / 1000.0;
        let before = gateway.packets.replace(heartbeat.packets);
        let more = before.and_then(|before| heartbeat.packets.checked_sub(before));
        if let Some(more) = more.filter(|_| elapsed_ms > 0) {
            load.pps = more as f64 * 1000.0 / elapsed_ms as f64;
            load.capacity.sample(load.pps, busy, now_ms);
        }
        load.busy = busy;
        load.memory = f64::from(heartbeat.memory_permille.min(1000)) / 1000.0;
        load.offload_all = heartbeat.offload_all;
        let capacity = |table: Table| {
            let fill = heartbeat.tables.iter().find(|fill| fill.table == table as i32);
            fill.map(|fill| fill.capacity)
        };
        (load.entries, load.nat_addresses) = (capacity(Table::Entries), capacity(Table::NatAddresses));
        load.measured_ms = now_ms;
        if heartbeat.vnis_reported {
            let counts = heartbeat.vnis.iter().take(MAX_VNI_LOADS);
            let counts = counts.filter_map(|load| Some((Vni::new(load.vni).ok()?, load.packets)));
            demands.report(id, counts, heartbeat.vnis.len() < MAX_VNI_LOADS, now_ms);
        }
    }

    /// Adds a gateway's load of the last moment. Wakes the scheduler if it is above the gateway's alarm.
    pub fn report_recent(&self, id: GatewayId, load: &sluice_cluster::Load) {
        if self.report_recent_at(id, load, self.now_ms()) {
            self.alarmed.notify_one();
        }
    }

    /// True if the load is above the alarm.
    fn report_recent_at(&self, id: GatewayId, load: &sluice_cluster::Load, now_ms: u64) -> bool {
        let mut inner = self.lock();
        inner.gateways.get_mut(&id).is_some_and(|gateway| gateway.recent.report(load, now_ms))
    }

    /// Sets the alarms. Gateways that are not in the map have none.
    pub fn set_alarms(&self, alarms: &BTreeMap<GatewayId, Alarm>) {
        for (id, gateway) in &mut self.lock().gateways {
            gateway.recent.alarm = alarms.get(id).copied();
        }
    }

    /// Returns after a gateway's load was above its alarm.
    pub async fn alarmed(&self) {
        self.alarmed.notified().await;
    }

    /// The last reports of all gateways.
    pub fn snapshot(&self) -> LoadSnapshot {
        let now_ms = self.now_ms();
        self.lock().snapshot(now_ms)
    }
}

impl Reported {
    fn capacity(&self) -> Capacity {
        self.load.map_or(self.capacity, |load| load.capacity)
    }
}

/// The loads of all gateways at one moment.
#[derive(Clone, Debug, Default)]
pub struct LoadSnapshot {
    /// The moment, in milliseconds of [`Loads::now_ms`].
    pub now_ms: u64,
    /// Loads of the gateways that have sent a heartbeat.
    pub gateways: BTreeMap<GatewayId, GatewayLoad>,
    /// Packets a second of each VNI that had traffic in the last hour.
    pub demands: HashMap<Vni, f64>,
    /// Gateways that failed or are isolated: they forward nothing.
    pub down: BTreeSet<GatewayId>,
    /// The owner of each vIP, if this controller knows it.
    pub owners: BTreeMap<IpAddr, GatewayId>,
    /// Estimated capacities, also of gateways that have no stream now.
    pub capacities: BTreeMap<GatewayId, Capacity>,
    /// Gateways with at least two reports: a VNI that they do not report has no traffic there.
    pub measured: BTreeSet<GatewayId>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_southbound::proto::VniLoad;

    const GATEWAY: GatewayId = GatewayId::new(4);

    fn heartbeat(packets: u64, cpu_permille: u32, vnis: Option<u64>) -> Heartbeat {
        let load = |packets| VniLoad { vni: 9, packets, bytes: packets * 100 };
        Heartbeat {
            packets,
            cpu_permille,
            vnis_reported: vnis.is_some(),
            vnis: vnis.map(load).into_iter().collect(),
            ..Heartbeat::default()
        }
    }

    #[test]
    fn recent_loads_of_gateways_with_a_stream_are_compared_with_their_alarms() {
        let loads = Loads::default();
        let busy = |permille| sluice_cluster::Load { busy_permille: permille, packets: None };
        assert!(!loads.report_recent_at(GATEWAY, &busy(1000), 1_000), "no stream");
        loads.open(GATEWAY, 1);
        assert!(!loads.report_recent_at(GATEWAY, &busy(1000), 1_000), "no alarm");
        loads.set_alarms(&BTreeMap::from([(GATEWAY, Alarm { busy: 0.8, pps: 10_000.0 })]));
        assert!(!loads.report_recent_at(GATEWAY, &busy(800), 1_050));
        assert!(loads.report_recent_at(GATEWAY, &busy(801), 1_100));
        loads.report_at(GATEWAY, 1, &heartbeat(1, 0, None), 1_150);
        let recent = loads.snapshot().gateways[&GATEWAY].recent.unwrap();
        assert_eq!((recent.busy, recent.measured_ms), (0.801, 1_100));
        loads.set_alarms(&BTreeMap::new());
        assert!(!loads.report_recent_at(GATEWAY, &busy(1000), 1_200));
    }

    #[test]
    fn heartbeats_give_rates_of_the_stream_that_sent_them() {
        let loads = Loads::default();
        loads.report_at(GATEWAY, 1, &heartbeat(5, 0, None), 1_000);
        assert!(loads.snapshot().gateways.is_empty(), "no stream");
        loads.open(GATEWAY, 1);
        loads.report_at(GATEWAY, 1, &heartbeat(1_000, 300, Some(1_000)), 1_000);
        let first = loads.snapshot().gateways[&GATEWAY];
        assert_eq!((first.pps, first.busy, first.capacity.pps()), (0.0, 0.3, None));
        loads.report_at(GATEWAY, 1, &heartbeat(601_000, 300, Some(601_000)), 3_000);
        let snapshot = |now_ms| loads.lock().snapshot(now_ms);
        let second = snapshot(3_000);
        assert_eq!(second.gateways[&GATEWAY].pps, 300_000.0);
        assert_eq!(second.gateways[&GATEWAY].capacity.pps().map(f64::round), Some(1_000_000.0));
        let vni = Vni::new(9).unwrap();
        assert_eq!(second.demands.get(&vni).map(|pps| pps.round()), Some(300_000.0));
        // A heartbeat without VNI counts changes no rate.
        loads.report_at(GATEWAY, 1, &heartbeat(601_000, 0, None), 4_000);
        assert_eq!(snapshot(4_000).demands.get(&vni).map(|pps| pps.round()), Some(300_000.0));
        // The end of an old stream does not end the new one.
        loads.open(GATEWAY, 2);
        loads.close(GATEWAY, 1);
        loads.report_at(GATEWAY, 2, &heartbeat(7, 0, None), 5_000);
        let third = loads.snapshot().gateways[&GATEWAY];
        assert_eq!((third.pps, third.measured_ms), (0.0, 5_000));
        assert!(third.capacity.pps().is_some(), "its capacity is kept");
        loads.close(GATEWAY, 2);
        let away = loads.snapshot();
        assert!(away.gateways.is_empty());
        assert_eq!(away.capacities.get(&GATEWAY), Some(&third.capacity), "also without a stream");
        loads.open(GATEWAY, 3);
        loads.report_at(GATEWAY, 3, &heartbeat(9, 0, None), 9_000);
        assert_eq!(loads.snapshot().gateways[&GATEWAY].capacity.pps(), third.capacity.pps());
        // The stream of a deleted gateway ends after the deletion.
        loads.remove(GATEWAY);
        loads.report_at(GATEWAY, 3, &heartbeat(10, 0, None), 9_100);
        loads.close(GATEWAY, 3);
        let deleted = loads.snapshot();
        assert!(deleted.capacities.is_empty() && deleted.gateways.is_empty());
    }
}
