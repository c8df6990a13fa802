//! The calls about live migrations of instances.

use super::{RETRIES, Store};
use crate::backend::is_retryable;
use crate::ops::migrations;
use crate::rows::get;
use crate::write::{Write, now_ms};
use crate::*;
use sluice_types::{HostId, InstanceId, SessionMode};
use std::time::Duration;

impl Store {
    /// Starts the migration of an instance to another host. The same migration again is [`Created::Existing`]. The target
    /// host's reports do the rest ([`Store::report_migration`]).
    ///
    /// # Errors
    /// [`MigrationConflict`], and [`Conflict::NoVipForHost`].
    pub async fn start_migration(
        &self,
        id: InstanceId,
        to: HostId,
        sessions: SessionMode,
        expected: Option<u64>,
    ) -> Result<Created<Instance>> {
        write!(self, w => migrations::start(w, id, to, sessions, expected))
    }

    /// Cancels the migration of an instance: it stays where it is recorded.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it does not migrate.
    pub async fn cancel_migration(&self, id: InstanceId, expected: Option<u64>) -> Result<Instance> {
        write!(self, w => migrations::cancel(w, id, expected))
    }

    /// How far the migration of an instance is.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it does not migrate.
    pub async fn migration(&self, id: InstanceId) -> Result<MigrationProgress> {
        let mut tx = self.backend.begin_read().await?;
        let result = async {
            let instance: Instance = get(tx.as_mut(), id).await?;
            migrations::progress(tx.as_mut(), &instance).await?.ok_or_else(|| migrations::no_migration(id))
        };
        let result = result.await;
        tx.rollback().await?;
        result
    }

    /// Takes a report of a host. One that changes nothing does not wait for other writes.
    pub async fn report_migration(&self, host: HostId, report: &MigrationReport) -> Result<MigrationOutcome> {
        let known = migrations::reported(&mut self.reader(), host, report).await?;
        match (report.step, known) {
            (MigrationStep::Status(_), None) => Ok(MigrationOutcome::Ignored),
            (MigrationStep::Status(status), Some(known)) => {
                let is_known = known.status == status
                    && known.sessions == report.sessions
                    && known.problem == report.problem;
                if is_known {
                    return Ok(MigrationOutcome::Recorded);
                }
                let recorded = write_unversioned!(
                    self, queue_in_background, q => migrations::record(q, now_ms(), host, report, status)
                )?;
                Ok(if recorded { MigrationOutcome::Recorded } else { MigrationOutcome::Ignored })
            }
            (MigrationStep::Switched, known) => {
                if known.is_some()
                    && let Some(instance) = write!(self, w => migrations::finish(w, host, report))?
                {
                    return Ok(MigrationOutcome::Finished(Box::new(instance)));
                }
                if !migrations::is_refusable(&mut self.reader(), host, report).await? {
                    return Ok(MigrationOutcome::Ignored);
                }
                let refused = write_unversioned!(self, q => migrations::refuse(q, now_ms(), host, report))?;
                Ok(if refused { MigrationOutcome::Refused } else { MigrationOutcome::Ignored })
            }
        }
    }
}
