//! What nodes have reported of their health, and the migrations that follow from it.

use crate::{Instance, NodeId};
use sluice_types::{AnomalyClass, HostId, InstanceId, SessionMode};

/// What a node has reported last, as all replicas of the controller see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredHealth {
    pub node: NodeId,
    /// The process of the replica that has written it, at most 2^63 - 1.
    pub writer: u64,
    /// That replica has not seen the node's stream end.
    pub connected: bool,
    /// When the node reported, in milliseconds of the UNIX epoch by the clock of that replica. It is stored less often than nodes report.
    pub reported_ms: u64,
    /// The report, as the controller encodes it.
    pub report: String,
}

/// A migration that health checks want.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHealthMigration {
    pub instance: InstanceId,
    /// The host on which the anomaly was found.
    pub from: HostId,
    pub to: HostId,
    pub sessions: SessionMode,
    /// The anomaly, with its evidence and its likely cause.
    pub class: AnomalyClass,
    pub evidence: String,
    pub cause: String,
    /// Most migrations for this class that may be in progress.
    pub at_once: u64,
    /// Time for which an instance that health checks have moved stays where it is.
    pub cooldown_ms: u64,
}

/// What became of a migration that health checks want.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthMigrationOutcome {
    Started(Box<Instance>),
    /// As many as may be are in progress.
    Full,
    /// The instance is on another host, or migrates, or was moved a short time ago.
    Unavailable,
}

/// A migration that health checks have started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthMigration {
    /// Id of the migration ([`Migration::id`](crate::Migration::id)).
    pub migration: u64,
    pub instance: InstanceId,
    pub source: HostId,
    pub target: HostId,
    pub class: AnomalyClass,
    pub started_ms: u64,
    pub in_progress: bool,
}
