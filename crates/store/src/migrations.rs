//! How far live migrations of instances are, and what hosts report of them.

use crate::Instance;
use sluice_types::{HostId, InstanceId, MigrationStatus, SessionMode};

/// Most migrations that a host takes part in as the source, and as the target: a host reports at most 1024.
pub const MAX_MIGRATIONS_OF_HOST: u64 = 512;

/// How far the migration of an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationProgress {
    /// Revision that started it.
    pub id: u64,
    pub instance: InstanceId,
    pub source: HostId,
    pub target: HostId,
    pub mode: SessionMode,
    pub status: MigrationStatus,
    /// Sessions that the target host has.
    pub sessions: u64,
    /// Why it failed; otherwise empty.
    pub problem: String,
    /// In milliseconds of the UNIX epoch.
    pub started_ms: u64,
    /// When the target host was ready for the first time.
    pub ready_ms: Option<u64>,
}

/// What a host reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationReport {
    pub instance: InstanceId,
    /// Id of the migration that the host takes part in ([`Migration::id`](crate::Migration::id)).
    pub migration: u64,
    pub step: MigrationStep,
    /// Sessions that the target host has.
    pub sessions: u64,
    /// Why it failed; otherwise empty.
    pub problem: String,
}

/// How far a migration is on its target host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationStep {
    /// The VM runs on the source host.
    Status(MigrationStatus),
    /// It runs on the target host, and the source host redirects its packets.
    Switched,
}

/// What became of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationOutcome {
    /// The progress was recorded, or is known already.
    Recorded,
    /// The instance is on the target host now.
    Finished(Box<Instance>),
    /// The target host has switched although the migration was canceled: an event says so.
    Refused,
    /// It is not of the target host, or not of the migration that the instance has.
    Ignored,
}
