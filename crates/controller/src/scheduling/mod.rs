//! The Multi-IPs scheduler at work: once a second, and at once when a gateway is
//! overloaded, it is told what gateways report (`reports`). Its decisions become new
//! homes of vIPs and gateways that go to other clusters, each with its reason in the
//! event log (`task`). The algorithm is `sluice_placement::Scheduler`.
//!
//! A controller decides about gateways that have a stream to it, so of several
//! controllers of one site each looks after its own. What it remembers of its moves
//! is gone when it ends: a vIP may then move again before its hold is over.

pub mod reports;
pub mod task;

use serde::{Deserialize, Serialize};
use sluice_placement::{ClusterReport, Decision, ReportError, Scheduler, SchedulerSettings, Wait};
use sluice_types::ClusterId;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Under which the scheduler's settings are stored.
pub const SETTINGS_KEY: &str = "scheduler";
/// Decisions that are shown; the event log has those before.
const SHOWN: usize = 100;

/// What the site wants of the scheduler. See [`SchedulerSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // the fields are those of `SchedulerSettings`
pub struct Settings {
    /// It decides; off, it only shows loads.
    pub enabled: bool,
    pub overload_above: f64,
    pub relieved_below: f64,
    pub receive_below: f64,
    pub moves_per_interval: usize,
    pub interval_ms: u64,
    pub hold_ms: u64,
    pub expansion_wait_ms: u64,
    pub gateways_min: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let SchedulerSettings {
            overload_above,
            relieved_below,
            receive_below,
            moves_per_interval,
            interval_ms,
            hold_ms,
            expansion_wait_ms,
            gateways_min,
        } = SchedulerSettings::default();
        Self {
            enabled: true,
            overload_above,
            relieved_below,
            receive_below,
            moves_per_interval,
            interval_ms,
            hold_ms,
            expansion_wait_ms,
            gateways_min,
        }
    }
}

impl Settings {
    /// For the algorithm.
    pub fn limits(&self) -> SchedulerSettings {
        SchedulerSettings {
            overload_above: self.overload_above,
            relieved_below: self.relieved_below,
            receive_below: self.receive_below,
            moves_per_interval: self.moves_per_interval,
            interval_ms: self.interval_ms,
            hold_ms: self.hold_ms,
            expansion_wait_ms: self.expansion_wait_ms,
            gateways_min: self.gateways_min,
        }
    }

    /// That the algorithm takes them.
    ///
    /// # Errors
    /// As [`Scheduler::new`].
    pub fn check(&self) -> Result<(), ReportError> {
        Scheduler::new(self.limits()).map(drop)
    }
}

/// A decision, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// Milliseconds of the UNIX epoch.
    pub time_ms: u64,
    /// What and why.
    pub decision: Decision,
    /// It was carried out; else the cloud had changed meanwhile.
    pub done: bool,
}

/// What the last rounds came to, for the API and the metrics.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// When the last round was, milliseconds of the UNIX epoch; 0: there was none.
    pub round_ms: u64,
    /// What it looked at.
    pub reports: Vec<ClusterReport>,
    /// What it did not do because of a limit.
    pub waits: Vec<Wait>,
    /// Why it could not decide.
    pub error: Option<String>,
    /// The newest last.
    pub decisions: VecDeque<Decided>,
    /// vIPs that got another home, since the controller began.
    pub moves: u64,
    /// New gateways that were asked for, since the controller began.
    pub requests: u64,
    /// Gateways that were told to go to another cluster, since the controller began.
    pub transfers: u64,
    /// Clusters that need a new gateway now.
    pub wanted: Vec<ClusterId>,
}

/// The status, shared between the task and those who ask.
#[derive(Debug, Default)]
pub struct SharedStatus(Mutex<Status>);

impl SharedStatus {
    fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As it is now.
    pub fn get(&self) -> Status {
        self.lock().clone()
    }

    /// Changes it; only the task does.
    pub fn change(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.lock();
        change(&mut status);
        while status.decisions.len() > SHOWN {
            status.decisions.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_the_algorithms_and_checked_by_it() {
        let settings = Settings::default();
        assert_eq!(settings.limits(), SchedulerSettings::default());
        assert_eq!(settings.check(), Ok(()));
        let backwards = Settings { receive_below: 0.9, ..Settings::default() };
        assert!(matches!(backwards.check(), Err(ReportError::Thresholds { .. })));
        assert!(Settings { gateways_min: 0, ..Settings::default() }.check().is_err());
        let older: Settings = serde_json::from_str(r#"{"enabled":false}"#).unwrap();
        assert_eq!(older, Settings { enabled: false, ..Settings::default() });
    }
}
