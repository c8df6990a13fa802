//! What gateways say of their load, and what follows from it: how much each VPC
//! asks of its cluster (`demand`), and what each gateway could forward (`capacity`).
//! In memory only: loads are measured again within seconds, and capacities with the next load.

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

/// Over how long gateways measure [`Lately::busy`].
pub const BUSY_MS: u64 = 100;
/// Older counts are no measure of the moment: two of the gateways' messages may be lost.
const LATELY_MS: u64 = 160;
/// Counts that follow each other more closely are no rate: a little less than is between two messages.
const RATE_MS: u64 = 40;
/// Those that follow each other more closely are not kept.
const COUNTS_MS: u64 = 10;

/// A gateway as it last reported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GatewayLoad {
    /// When, in milliseconds of [`Loads::now_ms`]; 0: it has not reported.
    pub measured_ms: u64,
    /// How busy its forwarding cores are, and how full its table memory; 1: wholly.
    pub busy: f64,
    /// See `busy`.
    pub memory: f64,
    /// It offloads every flow.
    pub offload_all: bool,
    /// Packets a second that it forwards.
    pub pps: f64,
    /// Cells of its tables, and those in use.
    pub cells_total: u64,
    /// See `cells_total`.
    pub cells_used: u64,
    /// What it could forward, if it was ever busy enough to tell.
    pub capacity: Capacity,
    /// What it has to do at the moment.
    pub lately: Option<Lately>,
}

/// What a gateway had to do at the last moment, by the cluster's protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lately {
    /// As of [`GatewayLoad`].
    pub measured_ms: u64,
    /// As of [`GatewayLoad`].
    pub busy: f64,
    /// None if it does not count so often.
    pub rate: Option<Rate>,
}

/// Packets a second, and since when they were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// The rate.
    pub pps: f64,
    /// As of [`GatewayLoad::measured_ms`].
    pub since_ms: u64,
}

/// From which load on a gateway is to be looked at without delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alarm {
    /// As of [`GatewayLoad`].
    pub busy: f64,
    /// As of [`GatewayLoad`].
    pub pps: f64,
}

#[derive(Debug, Default)]
struct Reported {
    session: u64,
    load: GatewayLoad,
    /// Its packets at its last heartbeat.
    packets: Option<u64>,
    /// Its last counts of packets, the newest last, and when they came.
    counts: VecDeque<(u64, u64)>,
    alarm: Option<Alarm>,
}

#[derive(Debug, Default)]
struct Inner {
    gateways: BTreeMap<GatewayId, Reported>,
    /// What gateways could forward when their streams ended: measuring it takes load.
    capacities: BTreeMap<GatewayId, Capacity>,
    demands: Demands,
}

impl Inner {
    fn picture(&self, now_ms: u64) -> LoadPicture {
        let gateways = self.gateways.iter().filter(|(_, gateway)| gateway.load.measured_ms > 0);
        let gateways: BTreeMap<_, _> = gateways.map(|(id, gateway)| (*id, gateway.load)).collect();
        let mut capacities = self.capacities.clone();
        capacities.extend(gateways.iter().map(|(id, load)| (*id, load.capacity)));
        let measured = gateways.keys().copied().filter(|id| self.demands.is_measured(*id)).collect();
        LoadPicture {
            now_ms,
            gateways,
            demands: self.demands.all(now_ms),
            measured,
            capacities,
            ..LoadPicture::default()
        }
    }
}

/// The loads of all gateways that have a stream to this controller.
#[derive(Debug)]
pub struct Loads {
    began: Instant,
    inner: Mutex<Inner>,
    alarmed: Notify,
}

impl Default for Loads {
    fn default() -> Self {
        Self { began: Instant::now(), inner: Mutex::default(), alarmed: Notify::new() }
    }
}

impl Loads {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds of a clock that never goes back; never 0.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// A gateway's stream begins.
    pub fn open(&self, id: GatewayId, session: u64) {
        let now_ms = self.now_ms();
        let mut inner = self.lock();
        let now = inner.gateways.get(&id).map(|gateway| gateway.load.capacity);
        let capacity = now.or_else(|| inner.capacities.get(&id).copied()).unwrap_or_default();
        let load = GatewayLoad { capacity, ..GatewayLoad::default() };
        inner.gateways.insert(id, Reported { session, load, ..Reported::default() });
        inner.demands.forget(id, now_ms);
    }

    /// A gateway's stream has ended.
    pub fn close(&self, id: GatewayId, session: u64) {
        let now_ms = self.now_ms();
        let mut inner = self.lock();
        if inner.gateways.get(&id).is_some_and(|gateway| gateway.session == session) {
            if let Some(gone) = inner.gateways.remove(&id) {
                inner.capacities.insert(id, gone.load.capacity);
            }
            inner.demands.forget(id, now_ms);
        }
    }

    /// A gateway was deleted.
    pub fn remove(&self, id: GatewayId) {
        self.lock().capacities.remove(&id);
    }

    /// A gateway reports on that stream.
    pub fn report(&self, id: GatewayId, session: u64, heartbeat: &Heartbeat) {
        self.report_at(id, session, heartbeat, self.now_ms());
    }

    fn report_at(&self, id: GatewayId, session: u64, heartbeat: &Heartbeat, now_ms: u64) {
        let mut inner = self.lock();
        let Inner { gateways, demands, .. } = &mut *inner;
        let Some(gateway) = gateways.get_mut(&id).filter(|gateway| gateway.session == session) else {
            return;
        };
        let load = &mut gateway.load;
        let elapsed_ms = now_ms.saturating_sub(load.measured_ms);
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
        if heartbeat.vnis_told {
            let counts = heartbeat.vnis.iter().take(MAX_VNI_LOADS);
            let counts = counts.filter_map(|load| Some((Vni::new(load.vni).ok()?, load.packets)));
            demands.report(id, counts, heartbeat.vnis.len() < MAX_VNI_LOADS, now_ms);
        }
    }

    /// A gateway says what it has to do at the moment.
    pub fn pulse(&self, id: GatewayId, load: &sluice_cluster::Load) {
        if self.pulse_at(id, load, self.now_ms()) {
            self.alarmed.notify_one();
        }
    }

    /// True if its alarm is reached.
    fn pulse_at(&self, id: GatewayId, load: &sluice_cluster::Load, now_ms: u64) -> bool {
        let mut inner = self.lock();
        let Some(gateway) = inner.gateways.get_mut(&id) else { return false };
        let Reported { counts, load: known, alarm, .. } = gateway;
        let rate = load.packets.and_then(|packets| rate(counts, packets, now_ms));
        let busy = f64::from(load.busy_permille.min(1000)) / 1000.0;
        known.lately = Some(Lately { measured_ms: now_ms, busy, rate });
        alarm.is_some_and(|alarm| busy > alarm.busy || rate.is_some_and(|rate| rate.pps > alarm.pps))
    }

    /// From which loads on [`Loads::alarmed`] is to return, of these gateways and no others.
    pub fn set_alarms(&self, alarms: &BTreeMap<GatewayId, Alarm>) {
        for (id, gateway) in &mut self.lock().gateways {
            gateway.alarm = alarms.get(id).copied();
        }
    }

    /// Returns when a gateway's load has reached its alarm.
    pub async fn alarmed(&self) {
        self.alarmed.notified().await;
    }

    /// As all gateways last reported, at `now_ms`.
    pub fn picture(&self) -> LoadPicture {
        let now_ms = self.now_ms();
        let inner = self.lock();
        inner.picture(now_ms)
    }
}

/// Packets a second since the newest of the counts that are kept which is old enough, and keeps this one.
fn rate(counts: &mut VecDeque<(u64, u64)>, packets: u64, now_ms: u64) -> Option<Rate> {
    let age_ms = |at_ms: u64| now_ms.saturating_sub(at_ms);
    // A count that went back begins anew.
    counts.retain(|(at_ms, count)| age_ms(*at_ms) <= LATELY_MS && *count <= packets);
    let since = counts.iter().rev().find(|(at_ms, _)| age_ms(*at_ms) >= RATE_MS).copied();
    if counts.back().is_none_or(|(at_ms, _)| age_ms(*at_ms) >= COUNTS_MS) {
        counts.push_back((now_ms, packets));
    }
    let (since_ms, count) = since?;
    Some(Rate { pps: (packets - count) as f64 * 1000.0 / age_ms(since_ms) as f64, since_ms })
}

/// All loads of one moment.
#[derive(Clone, Debug, Default)]
pub struct LoadPicture {
    /// Which, in milliseconds of [`Loads::now_ms`].
    pub now_ms: u64,
    /// Gateways that have reported.
    pub gateways: BTreeMap<GatewayId, GatewayLoad>,
    /// What is forwarded for VNIs that ever had traffic, in packets a second.
    pub demands: HashMap<Vni, f64>,
    /// Gateways that failed or are cut off: they forward nothing.
    pub down: BTreeSet<GatewayId>,
    /// Who owns each vIP now, as far as that is known.
    pub owners: BTreeMap<IpAddr, GatewayId>,
    /// What gateways could forward, also those without a stream now, if they were ever busy enough to tell.
    pub capacities: BTreeMap<GatewayId, Capacity>,
    /// Gateways that have reported often enough that what they do not mention has no traffic there.
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
            vnis_told: vnis.is_some(),
            vnis: vnis.map(load).into_iter().collect(),
            ..Heartbeat::default()
        }
    }

    #[test]
    fn the_moment_is_short_and_may_alarm() {
        let loads = Loads::default();
        let load = |busy_permille, packets| sluice_cluster::Load { busy_permille, packets };
        let lately = || loads.lock().gateways[&GATEWAY].load.lately.unwrap();
        assert!(!loads.pulse_at(GATEWAY, &load(1000, Some(1)), 1_000), "no stream");
        loads.open(GATEWAY, 1);
        let alarm = Alarm { busy: 0.8, pps: 10_000.0 };
        loads.set_alarms(&BTreeMap::from([(GATEWAY, alarm)]));
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(5_000)), 1_000));
        assert_eq!(lately(), Lately { measured_ms: 1_000, busy: 0.3, rate: None });
        // Thirty milliseconds are no rate.
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(9_000)), 1_030));
        assert_eq!(lately().rate, None);
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(5_500)), 1_050), "counts began anew");
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(5_900)), 1_150));
        assert_eq!(lately().rate, Some(Rate { pps: 4_000.0, since_ms: 1_050 }));
        assert!(!loads.pulse_at(GATEWAY, &load(300, Some(6_000)), 1_175));
        assert_eq!(lately().rate, Some(Rate { pps: 4_000.0, since_ms: 1_050 }), "the nearest is too near");
        assert!(loads.pulse_at(GATEWAY, &load(300, Some(6_700)), 1_200));
        assert_eq!(lately().rate, Some(Rate { pps: 16_000.0, since_ms: 1_150 }));
        assert!(!loads.pulse_at(GATEWAY, &load(800, None), 1_300));
        assert!(loads.pulse_at(GATEWAY, &load(801, None), 1_300));
        // A second later the window is empty.
        assert!(!loads.pulse_at(GATEWAY, &load(100, Some(9_000_000)), 2_300));
        assert_eq!(lately().rate, None);
        loads.set_alarms(&BTreeMap::new());
        assert!(!loads.pulse_at(GATEWAY, &load(1000, None), 2_350));
    }

    #[test]
    fn reports_become_rates_of_the_stream_that_sent_them() {
        let loads = Loads::default();
        loads.report_at(GATEWAY, 1, &heartbeat(5, 0, None), 1_000);
        assert!(loads.picture().gateways.is_empty(), "no stream");
        loads.open(GATEWAY, 1);
        loads.report_at(GATEWAY, 1, &heartbeat(1_000, 300, Some(1_000)), 1_000);
        let first = loads.picture().gateways[&GATEWAY];
        assert_eq!((first.pps, first.busy, first.capacity.pps()), (0.0, 0.3, None));
        loads.report_at(GATEWAY, 1, &heartbeat(601_000, 300, Some(601_000)), 3_000);
        let picture = |now_ms| loads.lock().picture(now_ms);
        let second = picture(3_000);
        assert_eq!(second.gateways[&GATEWAY].pps, 300_000.0);
        assert_eq!(second.gateways[&GATEWAY].capacity.pps().map(f64::round), Some(1_000_000.0));
        let vni = Vni::new(9).unwrap();
        assert_eq!(second.demands.get(&vni).map(|pps| pps.round()), Some(300_000.0));
        // A heartbeat between two lists of VNIs says nothing about them.
        loads.report_at(GATEWAY, 1, &heartbeat(601_000, 0, None), 4_000);
        assert_eq!(picture(4_000).demands.get(&vni).map(|pps| pps.round()), Some(300_000.0));
        // Another stream of the same gateway: the old one's end is not its.
        loads.open(GATEWAY, 2);
        loads.close(GATEWAY, 1);
        loads.report_at(GATEWAY, 2, &heartbeat(7, 0, None), 5_000);
        let third = loads.picture().gateways[&GATEWAY];
        assert_eq!((third.pps, third.measured_ms), (0.0, 5_000));
        assert!(third.capacity.pps().is_some(), "what it can do is remembered");
        loads.close(GATEWAY, 2);
        let away = loads.picture();
        assert!(away.gateways.is_empty());
        assert_eq!(away.capacities.get(&GATEWAY), Some(&third.capacity), "also while it is away");
        loads.open(GATEWAY, 3);
        loads.report_at(GATEWAY, 3, &heartbeat(9, 0, None), 9_000);
        assert_eq!(loads.picture().gateways[&GATEWAY].capacity.pps(), third.capacity.pps());
        loads.close(GATEWAY, 3);
        loads.remove(GATEWAY);
        assert!(loads.picture().capacities.is_empty());
    }
}
