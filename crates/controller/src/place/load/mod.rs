//! Loads that gateways report, the traffic of each VPC (`demand`) and the capacity of each gateway
//! (`capacity`). Kept in memory only: loads are reported again within seconds, and capacities are estimated
//! again with the next load. This file changes when gateways report other figures.

pub mod capacity;
pub mod demand;

use capacity::Capacity;
use demand::Demands;
use sluice_southbound::MAX_VNI_LOADS;
use sluice_southbound::proto::Heartbeat;
use sluice_types::{GatewayId, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// Period in milliseconds over which gateways measure [`RecentLoad::busy`].
pub const BUSY_MS: u64 = 100;
/// Oldest count that is used for the recent rate, in milliseconds: two of the gateway's messages may be lost.
const RECENT_MS: u64 = 160;
/// Shortest time between two counts that give a rate, in milliseconds: a little less than the time between
/// two messages.
const RATE_MS: u64 = 40;
/// Shortest time between two counts that are kept, in milliseconds.
const COUNTS_MS: u64 = 10;

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
    /// Cells of its tables.
    pub cells_total: u64,
    /// Cells in use.
    pub cells_used: u64,
    /// Estimate of its capacity.
    pub capacity: Capacity,
    /// Its load of the last moment, from the cluster protocol.
    pub recent: Option<RecentLoad>,
}

/// The load of a gateway in the last 100 ms, from the cluster protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentLoad {
    /// Time of the report, in milliseconds of [`Loads::now_ms`].
    pub measured_ms: u64,
    /// CPU load of its forwarding cores; 1 is full load.
    pub busy: f64,
    /// Packet rate; `None` if the gateway sends no packet counts this often.
    pub rate: Option<Rate>,
}

/// A packet rate and the start of its measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Packets a second.
    pub pps: f64,
    /// Start of the measurement, in milliseconds of [`Loads::now_ms`].
    pub since_ms: u64,
}

/// Loads above which the scheduler looks at a gateway without delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alarm {
    /// CPU load of its forwarding cores; 1 is full load.
    pub busy: f64,
    /// Packets a second.
    pub pps: f64,
}

#[derive(Debug, Default)]
struct Reported {
    session: u64,
    /// `None` before its first heartbeat.
    load: Option<GatewayLoad>,
    /// Capacity that it had on an earlier stream.
    capacity: Capacity,
    /// Load of the last moment, which may arrive before the first heartbeat.
    recent: Option<RecentLoad>,
    /// Packet count of its last heartbeat.
    packets: Option<u64>,
    /// Times and values of its last packet counts in the cluster protocol, the newest last.
    counts: VecDeque<(u64, u64)>,
    alarm: Option<Alarm>,
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
            self.gateways.iter().filter_map(|(id, gateway)| Some((*id, gateway.load?, gateway.recent)));
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

    /// A gateway was deleted.
    pub fn remove(&self, id: GatewayId) {
        self.lock().capacities.remove(&id);
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
        (load.cells_total, load.cells_used) = (heartbeat.cells_total, heartbeat.cells_used);
        load.measured_ms = now_ms;
        if heartbeat.vnis_reported {
            let counts = heartbeat.vnis.iter().take(MAX_VNI_LOADS);
            let counts = counts.filter_map(|load| Some((Vni::new(load.vni).ok()?, load.packets)));
            demands.report(id, counts, heartbeat.vnis.len() < MAX_VNI_LOADS, now_ms);
        }
    }

    /// Adds a gateway's load of the last moment. Wakes the scheduler if it is above the gateway's alarm.
    pub fn pulse(&self, id: GatewayId, load: &sluice_cluster::Load) {
        if self.pulse_at(id, load, self.now_ms()) {
            self.alarmed.notify_one();
        }
    }

    /// True if the load is above the alarm.
    fn pulse_at(&self, id: GatewayId, load: &sluice_cluster::Load, now_ms: u64) -> bool {
        let mut inner = self.lock();
        let Some(gateway) = inner.gateways.get_mut(&id) else { return false };
        let Reported { counts, recent, alarm, .. } = gateway;
        let rate = load.packets.and_then(|packets| rate(counts, packets, now_ms));
        let busy = f64::from(load.busy_permille.min(1000)) / 1000.0;
        *recent = Some(RecentLoad { measured_ms: now_ms, busy, rate });
        alarm.is_some_and(|alarm| busy > alarm.busy || rate.is_some_and(|rate| rate.pps > alarm.pps))
    }

    /// Sets the alarms. Gateways that are not in the map have none.
    pub fn set_alarms(&self, alarms: &BTreeMap<GatewayId, Alarm>) {
        for (id, gateway) in &mut self.lock().gateways {
            gateway.alarm = alarms.get(id).copied();
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

/// Adds a packet count and returns the rate since the newest count that is at least [`RATE_MS`] old.
fn rate(counts: &mut VecDeque<(u64, u64)>, packets: u64, now_ms: u64) -> Option<Rate> {
    let age_ms = |at_ms: u64| now_ms.saturating_sub(at_ms);
    // A counter that restarted is lower than before.
    counts.retain(|(at_ms, count)| age_ms(*at_ms) <= RECENT_MS && *count <= packets);
    let since = counts.iter().rev().find(|(at_ms, _)| age_ms(*at_ms) >= RATE_MS).copied();
    if counts.back().is_none_or(|(at_ms, _)| age_ms(*at_ms) >= COUNTS_MS) {
        counts.push_back((now_ms, packets));
    }
    let (since_ms, count) = since?;
    Some(Rate { pps: (packets - count) as f64 * 1000.0 / age_ms(since_ms) as f64, since_ms })
}

/// The loads of all gateways at one moment.
#[derive(Clone, Debug, Default)]
pub struct LoadSnapshot {
    /// The moment, in milliseconds of [`Loads::now_ms`].
    pub now_ms: u64,
    /// Loads of the gateways that have sent a heartbeat.
    pub gateways: BTreeMap<GatewayId, GatewayLoad>,
    /// Packets a second of each VNI that ever had traffic.
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
            cells_total: 1000,
            vnis_reported: vnis.is_some(),
            vnis: vnis.map(load).into_iter().collect(),
            ..Heartbeat::default()
        }
    }

    #[test]
    fn recent_load_above_the_alarm_wakes_the_scheduler() {
        let loads = Loads::default();
        let load = |busy_permille, packets| sluice_cluster::Load { busy_permille, packets };
        let recent = || loads.lock().gateways[&GATEWAY].recent.unwrap();
        assert!(!loads.pulse_at(GATEWAY, &load(1000, Some(1)), 1_000), "no stream");
        loads.open(GATEWAY, 1);
        let alarm = Alarm { busy: 0.8, pps: 10_000.0 };
        loads.set_alarms(&BTreeMap::from([(GATEWAY, alarm)]));
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(5_000)), 1_000));
        assert_eq!(recent(), RecentLoad { measured_ms: 1_000, busy: 0.3, rate: None });
        // Counts 30 ms apart give no rate.
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(9_000)), 1_030));
        assert_eq!(recent().rate, None);
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(5_500)), 1_050), "the counter restarted");
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(5_900)), 1_150));
        assert_eq!(recent().rate, Some(Rate { pps: 4_000.0, since_ms: 1_050 }));
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(6_000)), 1_175));
        assert_eq!(
            recent().rate,
            Some(Rate { pps: 4_000.0, since_ms: 1_050 }),
            "the newest count is too new"
        );
        assert!(loads.pulse_at(GATEWAY, &load(300, Some(6_700)), 1_200));
        assert_eq!(recent().rate, Some(Rate { pps: 16_000.0, since_ms: 1_150 }));
        assert!(!loads.pulse_at(GATEWAY, &load(800, None), 1_300));
        assert!(loads.pulse_at(GATEWAY, &load(801, None), 1_300));
        // A second later, all counts are too old.
        assert!(!loads.pulse_at(GATEWAY, &load(100, Some(9_000_000)), 2_300));
        assert_eq!(recent().rate, None);
        loads.set_alarms(&BTreeMap::new());
        assert!(!loads.pulse_at(GATEWAY, &load(1000, None), 2_350));
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
        loads.close(GATEWAY, 3);
        loads.remove(GATEWAY);
        assert!(loads.snapshot().capacities.is_empty());
    }
}
