//! Live migrations: hosts report how far they are, and the store records it, or that the instance is on another host. A
//! queue is between both, so that no stream waits for the database. Of each instance it has the last report of each host.

use super::{Push, count};
use sluice_southbound::{MigrationPhase, MigrationState};
use sluice_store::{MigrationOutcome, MigrationReport, MigrationStep, StoreError};
use sluice_types::{HostId, InstanceId, MigrationStatus};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Most reports of one host that wait: as many as a message has.
const HOST_PENDING_MAX: usize = 1024;
/// Most reports that wait, of all hosts.
const PENDING_MAX: usize = 65_536;
/// Pause after a store error that may pass.
const RETRY: Duration = Duration::from_millis(250);

/// The reports that wait.
#[derive(Debug, Default)]
pub struct MigrationReports {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the reporting host as well, so that no host can replace what another one reports.
    pending: BTreeMap<(HostId, InstanceId), MigrationReport>,
    /// The keys of `pending` in order of arrival.
    order: VecDeque<(HostId, InstanceId)>,
}

impl Inner {
    /// Adds a report; it takes the place of an earlier one of the same host and instance. Returns false if too many wait.
    fn add(&mut self, host: HostId, report: MigrationReport) -> bool {
        let key = (host, report.instance);
        if let Some(waiting) = self.pending.get_mut(&key) {
            *waiting = report;
            return true;
        }
        if self.pending.len() >= PENDING_MAX || self.of_host(host) >= HOST_PENDING_MAX {
            return false;
        }
        self.pending.insert(key, report);
        self.order.push_back(key);
        true
    }

    fn of_host(&self, host: HostId) -> usize {
        self.pending.range((host, InstanceId::new(0))..=(host, InstanceId::new(u64::MAX))).count()
    }

    /// Forgets the reports of a host that wait. It repeats them on its next stream, which may be of another replica.
    fn forget(&mut self, host: HostId) {
        self.pending.retain(|(of, _), _| *of != host);
        self.order.retain(|(of, _)| *of != host);
    }

    fn take(&mut self) -> Option<(HostId, MigrationReport)> {
        let key = self.order.pop_front()?;
        self.pending.remove(&key).map(|report| (key.0, report))
    }
}

fn report_of(state: MigrationState) -> MigrationReport {
    let MigrationState { instance, migration, phase, sessions, problem } = state;
    let step = match phase {
        MigrationPhase::Waiting => MigrationStep::Status(MigrationStatus::Waiting),
        MigrationPhase::Ready => MigrationStep::Status(MigrationStatus::Ready),
        MigrationPhase::Failed => MigrationStep::Status(MigrationStatus::Failed),
        MigrationPhase::Switched => MigrationStep::Switched,
    };
    MigrationReport { instance, migration, step, sessions, problem }
}

impl MigrationReports {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a host reports. Returns the number of reports that were refused because too many wait.
    pub fn add(&self, host: HostId, states: impl IntoIterator<Item = MigrationState>) -> usize {
        let refused = {
            let mut inner = self.lock();
            states.into_iter().filter(|state| !inner.add(host, report_of(state.clone()))).count()
        };
        self.changed.notify_one();
        refused
    }

    /// A host's stream has ended.
    pub fn forget(&self, host: HostId) {
        self.lock().forget(host);
    }

    /// Number of reports that wait, and their limit.
    pub fn waiting(&self) -> (usize, usize) {
        (self.lock().pending.len(), PENDING_MAX)
    }

    async fn next(&self) -> (HostId, MigrationReport) {
        loop {
            let next = self.lock().take();
            match next {
                Some(next) => return next,
                // A notification in between is kept.
                None => self.changed.notified().await,
            }
        }
    }
}

/// Processes reports until the future is dropped, one after the other.
pub async fn process_migrations(push: Arc<Push>) {
    loop {
        let (host, report) = push.migrations.next().await;
        while let Err(error) = process(&push, host, &report).await {
            push.db.count_error();
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot store the state of a migration");
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Processes a report.
///
/// # Errors
/// Errors of the store that may pass.
async fn process(push: &Push, host: HostId, report: &MigrationReport) -> Result<(), StoreError> {
    let (instance, migration) = (report.instance, report.migration);
    match push.db.store.report_migration(host, report).await {
        Ok(MigrationOutcome::Recorded) => {}
        Ok(MigrationOutcome::Finished(moved)) => {
            push.db.notify_commit();
            count(&push.counters.migrations);
            tracing::info!(%instance, name = moved.name, %host, migration, "an instance has migrated");
        }
        Ok(MigrationOutcome::Refused) => {
            count(&push.counters.migrations_refused);
            tracing::warn!(%instance, %host, migration, "a host has switched although its migration was canceled");
        }
        Ok(MigrationOutcome::Ignored) => count(&push.counters.migrations_ignored),
        Err(error @ (StoreError::Unavailable { .. } | StoreError::Rewound)) => return Err(error),
        Err(error) => {
            count(&push.counters.migrations_ignored);
            tracing::warn!(%instance, %host, migration, reason = %error, "state of a migration ignored");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(instance: u64, migration: u64, phase: MigrationPhase) -> MigrationState {
        let problem = String::new();
        MigrationState { instance: InstanceId::new(instance), migration, phase, sessions: 7, problem }
    }

    fn taken(inner: &mut Inner) -> Option<(u64, u64, MigrationStep)> {
        inner.take().map(|(host, report)| (host.get(), report.instance.get(), report.step))
    }

    /// Catches a report that takes the place of another host's, and an earlier one that is processed after a later one.
    #[test]
    fn the_last_report_of_each_host_and_instance_waits() {
        let mut inner = Inner::default();
        let (one, two) = (HostId::new(1), HostId::new(2));
        for (host, instance, phase) in [
            (one, 5, MigrationPhase::Waiting),
            (two, 5, MigrationPhase::Waiting),
            (one, 5, MigrationPhase::Switched),
            (one, 6, MigrationPhase::Failed),
        ] {
            assert!(inner.add(host, report_of(state(instance, 9, phase))));
        }
        assert_eq!(taken(&mut inner), Some((1, 5, MigrationStep::Switched)));
        assert_eq!(taken(&mut inner), Some((2, 5, MigrationStep::Status(MigrationStatus::Waiting))));
        inner.forget(one);
        assert_eq!(taken(&mut inner), None, "it has no stream any more");
        assert!(inner.pending.is_empty() && inner.order.is_empty());
    }

    #[test]
    fn a_host_cannot_fill_the_queue() {
        let mut inner = Inner::default();
        let ready = |instance| report_of(state(instance, 9, MigrationPhase::Ready));
        for instance in 1..=HOST_PENDING_MAX as u64 {
            assert!(inner.add(HostId::new(1), ready(instance)));
        }
        assert!(!inner.add(HostId::new(1), ready(99_999)));
        assert!(inner.add(HostId::new(1), ready(1)), "it waits already");
        assert!(inner.add(HostId::new(2), ready(99_999)));
        assert!(taken(&mut inner).is_some() && inner.add(HostId::new(1), ready(99_999)));
    }
}
