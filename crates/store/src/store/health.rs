//! The calls about the health of nodes.

use super::{RETRIES, Store};
use crate::backend::is_retryable;
use crate::ops::health;
use crate::write::Write;
use crate::*;
use sluice_types::{HostId, InstanceId};
use std::collections::BTreeMap;
use std::time::Duration;

impl Store {
    /// Stores what nodes have reported. A report that is older than the stored one of its node is ignored, and so is one of a node
    /// that does not exist.
    pub async fn save_health(&self, reports: &[StoredHealth]) -> Result<()> {
        write_unversioned!(self, queue_in_background, q => health::save(q, reports))
    }

    /// Notes that nodes have reported again what is stored, to the replica `writer`.
    pub async fn touch_health(&self, writer: u64, reported_ms: u64, nodes: &[NodeId]) -> Result<()> {
        write_unversioned!(self, queue_in_background, q => health::touch(q, writer, reported_ms, nodes))
    }

    /// Notes that the streams of nodes to the replica `writer` have ended, each with the time of the last report. A node that another
    /// replica has stored since then is ignored.
    pub async fn end_health(&self, writer: u64, nodes: &[(NodeId, u64)]) -> Result<()> {
        write_unversioned!(self, queue_in_background, q => health::end(q, writer, nodes))
    }

    /// What all nodes have reported, in order of nodes.
    pub async fn health(&self) -> Result<Vec<StoredHealth>> {
        health::all(&mut self.reader()).await
    }

    /// The migrations that health checks have started since a time in milliseconds of the UNIX epoch, and all that are in progress.
    pub async fn health_migrations(&self, since_ms: u64) -> Result<Vec<HealthMigration>> {
        health::migrations(&mut self.reader(), since_ms).await
    }

    /// Number of instances on each host that has any, with those that migrate to it.
    pub async fn instances_by_host(&self) -> Result<BTreeMap<HostId, u64>> {
        health::instances_by_host(&mut self.reader()).await
    }

    /// At most `limit` instances of a host, in order of id, that do not migrate and that health checks have not moved since a time.
    pub async fn movable_instances(
        &self,
        host: HostId,
        since_ms: u64,
        limit: u64,
    ) -> Result<Vec<InstanceId>> {
        health::movable(&mut self.reader(), host, since_ms, limit).await
    }

    /// Starts a migration that health checks want, within its limits, which are checked in the same transaction.
    ///
    /// # Errors
    /// Those of [`Store::start_migration`].
    pub async fn start_health_migration(&self, new: &NewHealthMigration) -> Result<HealthMigrationOutcome> {
        write!(self, w => health::start(w, new))
    }
}
