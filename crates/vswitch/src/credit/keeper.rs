//! Enforces the credits of ports: reads what packets have counted, writes limits, and shapes what VMs get. This file changes with
//! where the limits are enforced and shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use sluice_tables::{CreditDimension, PortCredits};
use sluice_types::CreditPolicy;

use super::costs::{Costs, Overhead, Times};
use super::{Capacity, Credits, Limited, Standing};

/// Time between two steps.
pub const STEP: Duration = Duration::from_millis(100);
/// Time between two measurements of what packets cost.
const MEASURE: Duration = Duration::from_secs(1);

/// A port whose instance has a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditPort {
    /// The interface.
    pub ifname: String,
    /// Its number.
    pub scope: u16,
    /// What its class grants.
    pub policy: CreditPolicy,
}

/// One dimension of a port's credit, as the local API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CreditView {
    /// Name of the dimension.
    pub dimension: &'static str,
    /// What the instance uses now, in the unit of the dimension.
    pub used: u64,
    /// What it may use now.
    pub limit: u32,
    /// What it has saved, in units times seconds; negative: it owes.
    pub credit: i64,
    /// Why it may not use its maximum; `None`: it may.
    pub limited: Option<Limited>,
}

/// The name of a dimension in the local API and in metrics.
fn name(dimension: CreditDimension) -> &'static str {
    match dimension {
        CreditDimension::SentMbps => "sent_mbps",
        CreditDimension::ReceivedMbps => "received_mbps",
        CreditDimension::SentKpps => "sent_kpps",
        CreditDimension::ReceivedKpps => "received_kpps",
        CreditDimension::Cpu => "cpu_permille",
    }
}

#[derive(Debug)]
struct State {
    credits: Credits,
    costs: Costs,
    ports: BTreeMap<u16, String>,
    stepped: Instant,
    measured: Instant,
}

/// The credits of this host's ports.
#[derive(Debug)]
pub struct CreditKeeper {
    memory: PortCredits,
    state: Mutex<State>,
}

impl CreditKeeper {
    /// Of no port yet. `timed` is what programs have timed before.
    pub fn new(memory: PortCredits, capacity: Capacity, overhead: Overhead, timed: Times) -> Self {
        let costs = Costs::new(overhead, timed);
        memory.set_costs(costs.costs());
        let now = Instant::now();
        let (credits, ports) = (Credits::new(capacity), BTreeMap::new());
        Self { memory, state: Mutex::new(State { credits, costs, ports, stepped: now, measured: now }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the ports that have a class. Limits of a new one are enforced at once.
    pub fn set_ports(&self, ports: &[CreditPort]) {
        let mut state = self.lock();
        let scopes: BTreeSet<u16> = ports.iter().map(|port| port.scope).collect();
        for gone in state.credits.retain(&scopes) {
            self.memory.set_active(gone, false);
        }
        state.ports = ports.iter().map(|port| (port.scope, port.ifname.clone())).collect();
        for CreditPort { scope, policy, .. } in ports {
            let saved = || (self.memory.usage(*scope), self.memory.credit(*scope));
            state.credits.set_port(*scope, *policy, saved);
            self.write(&state.credits, *scope);
            self.memory.set_active(*scope, true);
        }
    }

    /// Writes the limits and the credit of a port.
    fn write(&self, credits: &Credits, scope: u16) {
        let before = self.memory.limits(scope);
        for (dimension, standing) in CreditDimension::ALL.into_iter().zip(credits.standing(scope)) {
            let limit = standing.map_or(0, |standing| u64::from(standing.limit));
            if before[dimension as usize] != limit {
                self.memory.set_limit(scope, dimension, limit);
            }
        }
        self.memory.set_credit(scope, credits.saved(scope));
    }

    /// One step. `timed` is asked for what programs have timed when packets are measured again. Returns the ports whose rate of what they get has changed.
    pub fn step(&self, timed: impl FnOnce() -> Option<Times>) -> Vec<u16> {
        let mut state = self.lock();
        let now = Instant::now();
        let elapsed = now.duration_since(state.stepped);
        state.stepped = now;
        if now.duration_since(state.measured) >= MEASURE {
            state.measured = now;
            if let Some(times) = timed() {
                state.costs.note(times);
                self.memory.set_costs(state.costs.costs());
            }
        }
        state.credits.step(elapsed, |scope| self.memory.usage(scope));
        let received = CreditDimension::ReceivedMbps as usize;
        let mut changed = Vec::new();
        for scope in state.credits.scopes() {
            let before = self.memory.limits(scope)[received];
            self.write(&state.credits, scope);
            if self.memory.limits(scope)[received] != before {
                changed.push(scope);
            }
        }
        changed
    }

    /// At most so much may the VM of a port get now, in Mbit/s; `None`: any rate.
    pub fn received_mbps(&self, scope: u16) -> Option<u32> {
        self.lock().credits.standing(scope)[CreditDimension::ReceivedMbps as usize]
            .map(|standing| standing.limit)
    }

    /// The state of a port for the local API.
    pub fn views(&self, ifname: &str) -> Option<Vec<CreditView>> {
        let state = self.lock();
        let (scope, _) = state.ports.iter().find(|(_, name)| *name == ifname)?;
        Some(standings(&state.credits, *scope).map(|(dimension, it)| view(dimension, it)).collect())
    }
}

fn standings(credits: &Credits, scope: u16) -> impl Iterator<Item = (CreditDimension, Standing)> {
    let standing = credits.standing(scope);
    CreditDimension::ALL.into_iter().zip(standing).filter_map(|(dimension, it)| Some((dimension, it?)))
}

fn view(dimension: CreditDimension, standing: Standing) -> CreditView {
    let Standing { limit, rate, credit, limited } = standing;
    CreditView { dimension: name(dimension), used: rate, limit, credit, limited }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DimensionLabel {
    interface: String,
    dimension: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitedLabel {
    interface: String,
    dimension: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DropLabel {
    interface: String,
    direction: &'static str,
    limit: &'static str,
}

impl CreditKeeper {
    /// Adds the metrics of all ports.
    pub fn register(&self, registry: &mut Registry) {
        let state = self.lock();
        let (used, limits, credits) = (
            Family::<DimensionLabel, Gauge>::default(),
            Family::<DimensionLabel, Gauge>::default(),
            Family::<DimensionLabel, Gauge>::default(),
        );
        let (limited, drops) =
            (Family::<LimitedLabel, Gauge>::default(), Family::<DropLabel, Counter>::default());
        for (scope, interface) in &state.ports {
            for (dimension, standing) in standings(&state.credits, *scope) {
                let label = DimensionLabel { interface: interface.clone(), dimension: name(dimension) };
                used.get_or_create(&label).set(i64::try_from(standing.rate).unwrap_or(i64::MAX));
                limits.get_or_create(&label).set(i64::from(standing.limit));
                credits.get_or_create(&label).set(standing.credit);
                for (reason, of) in [("no_credit", Limited::NoCredit), ("contended", Limited::Contended)] {
                    let label =
                        LimitedLabel { interface: interface.clone(), dimension: name(dimension), reason };
                    limited.get_or_create(&label).set(i64::from(standing.limited == Some(of)));
                }
            }
            let dropped = self.memory.drops(*scope);
            for (limit, counts) in [("packet_rate", dropped.packets), ("cpu", dropped.cpu)] {
                for (direction, count) in ["sent", "received"].into_iter().zip(counts) {
                    let label = DropLabel { interface: interface.clone(), direction, limit };
                    drops.get_or_create(&label).inc_by(count);
                }
            }
        }
        registry.register("port_used", "What an instance with a network class uses", used);
        registry.register("port_limit", "What an instance with a network class may use now", limits);
        let help = "Credit of an instance, in the unit of the dimension times seconds; negative: it owes";
        registry.register("port_credit", help, credits);
        let help = "1: the instance may not use the maximum of its class, for this reason";
        registry.register("port_limited", help, limited);
        let help =
            "Packets over the limits of network classes; those over the bit rate are in port_rate_drops";
        registry.register("port_credit_drops", help, drops);
    }
}
