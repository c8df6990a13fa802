//! Runs the vIP scheduler: once a second, and at once when a gateway is overloaded, it gets the loads that
//! gateways report (`reports`). Its decisions become new preferred owners of vIPs and moves of gateways to
//! other clusters, each with its reason in the event log (`task`). The algorithm is
//! `sluice_placement::Scheduler`.
//!
//! A controller decides about gateways that have a stream to it, so if a site has several controllers, each
//! one handles its own gateways. The scheduler's memory of its moves is lost when the controller ends: a vIP
//! may then move again before its hold-down time is over.

mod reports;
mod task;

pub use task::schedule;

use sluice_placement::{ClusterReport, Decision, Wait};
use sluice_types::ClusterId;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Name under which the scheduler's settings are stored.
pub const SETTINGS_KEY: &str = "scheduler";
/// Number of decisions that the API shows. The event log has older ones.
const DECISIONS_SHOWN: usize = 100;

/// A decision and its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRecord {
    /// Time of the decision, in milliseconds of the UNIX epoch.
    pub time_ms: u64,
    /// The action and its reason.
    pub decision: Decision,
    /// The action was carried out. Otherwise the cloud had changed in the meantime.
    pub done: bool,
}

/// Results of the last rounds, for the API and the metrics.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Time of the last round, in milliseconds of the UNIX epoch; `None` before the first round.
    pub round_ms: Option<u64>,
    /// The reports of the last round.
    pub reports: Vec<ClusterReport>,
    /// What it did not do because of a limit.
    pub waits: Vec<Wait>,
    /// Reason why it could not decide.
    pub error: Option<String>,
    /// Last decisions, the newest last.
    pub decisions: VecDeque<DecisionRecord>,
    /// vIPs that got another preferred owner, since the controller started.
    pub moves: u64,
    /// New gateways that were requested, since the controller started.
    pub gateways_requested: u64,
    /// Gateways that were moved to another cluster, since the controller started.
    pub gateways_reassigned: u64,
    /// Clusters that need a new gateway now.
    pub overloaded_clusters: Vec<ClusterId>,
}

/// The status, which the task writes, and the API and the metrics read.
#[derive(Debug, Default)]
pub struct SharedStatus(Mutex<Status>);

impl SharedStatus {
    fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the present status.
    pub fn get(&self) -> Status {
        self.lock().clone()
    }

    /// Changes the status. Only the task calls it.
    pub fn change(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.lock();
        change(&mut status);
        while status.decisions.len() > DECISIONS_SHOWN {
            status.decisions.pop_front();
        }
    }
}
