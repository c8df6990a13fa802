//! Enforces the credits of ports: reads what packets have counted, writes limits, and shapes what VMs get. This file changes with
//! where the limits are enforced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_tables::{CreditDimension, PortCredits};

use super::calibration::{Calibrator, Load, WINDOW};
use super::costs::{Costs, Times, program_ns};
use super::{Capacity, Credits, Limited, Standing, Terms};

/// Time between two steps.
pub const STEP: Duration = Duration::from_millis(100);
/// Time between two measurements of what packets cost.
const MEASURE: Duration = Duration::from_secs(1);

/// What is read besides the counters of ports.
pub struct Sensors {
    /// What packets cost in the programs.
    pub times: Box<dyn Fn() -> Option<Times> + Send + Sync>,
    /// Time of the machine's software interrupts, in ns.
    pub softirq_ns: Box<dyn Fn() -> Option<u64> + Send + Sync>,
}

/// A port that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditPort {
    /// The interface.
    pub ifname: String,
    /// Its number.
    pub scope: u16,
    /// What it may use.
    pub terms: Terms,
}

/// One dimension of a port's credit, as the local API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CreditView {
    /// Name of the dimension.
    pub dimension: &'static str,
    /// What the instance uses now, in the unit of the dimension.
    pub used: u64,
    /// What it may use now; `None`: credit sets no limit.
    pub limit: Option<u32>,
    /// What it has saved, in units times seconds; negative: it owes. `None`: no class grants any.
    pub credit: Option<i64>,
    /// Why it may not use its maximum; `None`: it may.
    pub limited: Option<Limited>,
}

/// What a packet is taken to cost, as the local API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CostsView {
    /// What the kernel spends on each packet besides the program, in ns.
    pub packet_ns: u32,
    /// What it spends on each 1024 bytes, in ns.
    pub kib_ns: u32,
    /// The same with the program, in ns: of a packet that a VM sends.
    pub sent_ns: u32,
    /// Of a packet that a VM gets.
    pub received_ns: u32,
    /// Whether the costs were measured for long enough. If not, they are those of the command line or on the way from there.
    pub calibrated: bool,
    /// Number of windows that were measured.
    pub windows: u64,
}

/// The name of a dimension in the local API and in metrics.
pub(super) fn name(dimension: CreditDimension) -> &'static str {
    match dimension {
        CreditDimension::SentMbps => "sent_mbps",
        CreditDimension::ReceivedMbps => "received_mbps",
        CreditDimension::SentKpps => "sent_kpps",
        CreditDimension::ReceivedKpps => "received_kpps",
        CreditDimension::Cpu => "cpu_permille",
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) credits: Credits,
    costs: Costs,
    pub(super) ports: BTreeMap<u16, String>,
    stepped: Instant,
    measured: Instant,
    calibrator: Calibrator,
    window: Window,
}

/// Counters at the start of a window of the calibration.
#[derive(Debug)]
struct Window {
    started: Instant,
    /// Time of software interrupts, and of it in the programs; `None`: they could not be read.
    times: Option<(u64, u64)>,
    /// Frames and bytes, by port.
    ports: BTreeMap<u16, (u64, u64)>,
}

/// The credits of this host's ports.
#[derive(Debug)]
pub struct CreditKeeper {
    pub(super) memory: PortCredits,
    state: Mutex<State>,
}

impl CreditKeeper {
    /// Of no port yet. `timed` is what programs have timed before.
    pub fn new(memory: PortCredits, capacity: Capacity, calibrator: Calibrator, timed: Times) -> Self {
        let costs = Costs::new(calibrator.overhead(), timed);
        memory.set_costs(costs.costs());
        let now = Instant::now();
        let window = Window { started: now, times: None, ports: BTreeMap::new() };
        let (credits, ports) = (Credits::new(capacity), BTreeMap::new());
        let state = State { credits, costs, ports, stepped: now, measured: now, calibrator, window };
        Self { memory, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the ports that are counted. Limits of a new one are enforced at once.
    pub fn set_ports(&self, ports: &[CreditPort]) {
        let mut state = self.lock();
        let scopes: BTreeSet<u16> = ports.iter().map(|port| port.scope).collect();
        for gone in state.credits.retain(&scopes) {
            self.memory.set_active(gone, false);
        }
        state.ports = ports.iter().map(|port| (port.scope, port.ifname.clone())).collect();
        for CreditPort { scope, terms, .. } in ports {
            let saved = || (self.memory.usage(*scope), self.memory.credit(*scope));
            state.credits.set_port(*scope, *terms, saved);
            self.write(&state.credits, *scope);
            if terms.is_shaped() {
                self.memory.set_active(*scope, true);
            } else {
                self.memory.set_policed(*scope);
            }
        }
    }

    /// Writes the limits and the credit of a port.
    fn write(&self, credits: &Credits, scope: u16) {
        let before = self.memory.limits(scope);
        for (dimension, standing) in CreditDimension::ALL.into_iter().zip(credits.standing(scope)) {
            let limit = standing.and_then(|standing| standing.limit).map_or(0, u64::from);
            if before[dimension as usize] != limit {
                self.memory.set_limit(scope, dimension, limit);
            }
        }
        self.memory.set_credit(scope, credits.saved(scope));
    }

    /// One step. Returns the ports whose rate of what they get has changed, as far as their interfaces shape it.
    pub fn step(&self, sensors: &Sensors) -> Vec<u16> {
        let mut state = self.lock();
        let now = Instant::now();
        let elapsed = now.duration_since(state.stepped);
        state.stepped = now;
        if now.duration_since(state.measured) >= MEASURE {
            state.measured = now;
            if let Some(times) = (sensors.times)() {
                state.costs.note(times);
                self.calibrate(&mut state, now, &times, sensors);
                self.memory.set_costs(state.costs.costs());
            }
        }
        state.credits.step(elapsed, |scope| self.memory.usage(scope));
        let received = CreditDimension::ReceivedMbps as usize;
        let mut changed = Vec::new();
        for scope in state.credits.scopes() {
            let before = self.memory.limits(scope)[received];
            self.write(&state.credits, scope);
            let is_shaped = state.credits.terms(scope).is_some_and(|terms| terms.is_shaped());
            if is_shaped && self.memory.limits(scope)[received] != before {
                changed.push(scope);
            }
        }
        changed
    }

    /// Ends the window of the calibration if its time is over, and begins the next one.
    fn calibrate(&self, state: &mut State, now: Instant, times: &Times, sensors: &Sensors) {
        let elapsed = now.duration_since(state.window.started);
        if !state.calibrator.is_active() || elapsed < WINDOW {
            return;
        }
        let softirq_ns = (sensors.softirq_ns)();
        let counted = |scope: &u16| {
            let used = self.memory.usage(*scope);
            (*scope, (used.frames, used.bytes[0].wrapping_add(used.bytes[1])))
        };
        let ports: BTreeMap<u16, (u64, u64)> = state.ports.keys().map(counted).collect();
        let next = Window { started: now, times: softirq_ns.map(|ns| (ns, program_ns(times))), ports };
        let last = std::mem::replace(&mut state.window, next);
        let Some((before, after)) = last.times.zip(state.window.times) else { return };
        let mut load = Load {
            elapsed,
            softirq_ns: after.0.saturating_sub(before.0),
            program_ns: after.1.saturating_sub(before.1),
            ..Load::default()
        };
        for (scope, (frames, bytes)) in &state.window.ports {
            // What a new port has had in this window is not known.
            let (old_frames, old_bytes) = last.ports.get(scope).copied().unwrap_or((*frames, *bytes));
            load.frames = load.frames.saturating_add(frames.saturating_sub(old_frames));
            load.bytes = load.bytes.saturating_add(bytes.saturating_sub(old_bytes));
        }
        state.calibrator.note(load);
        state.costs.set_overhead(state.calibrator.overhead());
    }

    /// What packets are taken to cost.
    pub fn costs(&self) -> CostsView {
        let state = self.lock();
        let (overhead, costs) = (state.calibrator.overhead(), state.costs.costs());
        CostsView {
            packet_ns: overhead.packet_ns,
            kib_ns: overhead.kib_ns,
            sent_ns: costs.packet_ns[0],
            received_ns: costs.packet_ns[2],
            calibrated: state.calibrator.is_calibrated(),
            windows: state.calibrator.windows(),
        }
    }

    /// At most so much may the VM of a port get now by credit, in Mbit/s; `None`: any rate.
    pub fn received_mbps(&self, scope: u16) -> Option<u32> {
        self.lock().credits.standing(scope)[CreditDimension::ReceivedMbps as usize]?.limit
    }

    /// The state of a port for the local API.
    pub fn views(&self, ifname: &str) -> Option<Vec<CreditView>> {
        let state = self.lock();
        let (scope, _) = state.ports.iter().find(|(_, name)| *name == ifname)?;
        Some(standings(&state.credits, *scope).map(|(dimension, it)| view(dimension, it)).collect())
    }
}

pub(super) fn standings(credits: &Credits, scope: u16) -> impl Iterator<Item = (CreditDimension, Standing)> {
    let standing = credits.standing(scope);
    CreditDimension::ALL.into_iter().zip(standing).filter_map(|(dimension, it)| Some((dimension, it?)))
}

fn view(dimension: CreditDimension, standing: Standing) -> CreditView {
    let Standing { limit, rate, credit, limited } = standing;
    CreditView { dimension: name(dimension), used: rate, limit, credit, limited }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credit::{CostSetting, CostSettings};
    use sluice_tables::{CREDIT_DIMENSIONS, PortUse};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Catches: what ports used before a window, the time in programs that counts as the kernel's, and windows without a begin.
    #[test]
    fn a_window_compares_what_the_machine_did_with_what_ports_used() {
        let memory = PortCredits::anonymous().unwrap();
        let capacity = Capacity { total: [None; CREDIT_DIMENSIONS], contended_percent: 90, clamped: 1 };
        let settings = CostSettings { packet_ns: CostSetting::Auto, kib_ns: CostSetting::Fixed(60) };
        let keeper = CreditKeeper::new(memory.clone(), capacity, Calibrator::new(settings), Times::default());
        let port = |scope| CreditPort { ifname: format!("sl-{scope}"), scope, terms: Terms::Unclassed };
        keeper.set_ports(&[port(7)]);
        let softirq = Arc::new(AtomicU64::new(0));
        let read = softirq.clone();
        let softirq_ns = Box::new(move || Some(read.load(Ordering::Relaxed)));
        let sensors = Sensors { times: Box::new(|| None), softirq_ns };
        let begin = Instant::now();
        // Each window has two million frames, of 500 ns in the program and 1200 ns besides.
        let window = |number: u32| {
            let frames = u64::from(number) * 2_000_000;
            softirq.store(frames * 1700, Ordering::Relaxed);
            memory.set_usage(7, PortUse { frames, ..PortUse::default() });
            let times = [(frames / 64, frames / 64 * 500), (0, 0), (0, 0), (0, 0)];
            let now = begin + (WINDOW + Duration::from_secs(1)) * number;
            keeper.calibrate(&mut keeper.lock(), now, &times, &sensors);
        };
        window(1);
        assert_eq!(keeper.costs().windows, 0, "nothing is known of what came before");
        // A port that is new here brings frames of another time.
        memory.set_usage(8, PortUse { frames: 1 << 40, ..PortUse::default() });
        keeper.set_ports(&[port(7), port(8)]);
        (2..=200).for_each(window);
        let costs = keeper.costs();
        assert!(costs.calibrated && costs.windows == 199, "{costs:?}");
        assert!((1190..=1210).contains(&costs.packet_ns) && costs.kib_ns == 60, "{costs:?}");
    }
}
