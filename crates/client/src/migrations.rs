//! Live migrations of instances, as the API shows them.

use serde::{Deserialize, Serialize};
use sluice_types::{HostId, InstanceId, MigrationStatus, SessionMode};

/// How far the migration of an instance is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Migration {
    /// Identifies the migration.
    pub id: u64,
    /// The instance.
    pub instance: InstanceId,
    /// The host that it leaves.
    pub from: HostId,
    /// The host that it migrates to.
    pub host: HostId,
    /// What happens to its sessions.
    pub sessions: SessionMode,
    /// How far it is, as the target host reported last.
    pub phase: MigrationStatus,
    /// Sessions that the target host has; with `reset`: connections that it has made to end.
    pub copied_sessions: u64,
    /// Why it failed; otherwise empty.
    pub problem: String,
    /// Time of its start in milliseconds of the UNIX epoch.
    pub started_ms: u64,
    /// When the target host was ready for the first time.
    #[serde(default)]
    pub ready_ms: Option<u64>,
}

/// The migration of an instance, as the instance shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceMigration {
    /// The host that the instance migrates to.
    pub host: HostId,
    /// How far it is.
    pub phase: MigrationStatus,
}
