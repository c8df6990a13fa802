//! The vIP scheduler. This file changes with `/v1/scheduler` of the API.

use crate::{Client, Result};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId, SchedulerPatch, SchedulerSettings};
use std::net::IpAddr;

/// A gateway that reports its load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerGateway {
    /// Identifier of the gateway.
    pub id: GatewayId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Load; 1 is full load.
    pub load: f64,
    /// Packets a second that it can forward.
    pub capacity_pps: f64,
    /// The gateway is to own no vIP.
    pub draining: bool,
    /// Movable vIPs whose preferred owner it is.
    pub vips: Vec<IpAddr>,
}

/// A decision of the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerDecision {
    /// Time of the decision, in milliseconds of the UNIX epoch.
    pub time_ms: u64,
    /// The action and its reason, in words.
    pub text: String,
    /// The action was carried out.
    pub done: bool,
}

/// Something that the scheduler does not do because of a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerWait {
    /// What waits, and for which limit.
    pub text: String,
}

/// State of the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scheduler {
    /// Thresholds and limits.
    pub settings: SchedulerSettings,
    /// Time of its last round, in milliseconds of the UNIX epoch; 0 before the first round.
    pub round_ms: u64,
    /// Reason why it cannot decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Number of vIPs that it moved since the controller started.
    pub moves: u64,
    /// Number of new gateways that it requested since the controller started.
    pub gateways_requested: u64,
    /// Number of gateways that it moved to other clusters since the controller started.
    #[serde(default)]
    pub gateways_reassigned: u64,
    /// Clusters that need a new gateway now.
    #[serde(default)]
    pub overloaded_clusters: Vec<ClusterId>,
    /// Gateways that report now.
    pub gateways: Vec<SchedulerGateway>,
    /// What the scheduler does not do because of a limit.
    pub waits: Vec<SchedulerWait>,
    /// The last decisions, the newest last.
    pub decisions: Vec<SchedulerDecision>,
}

impl Client {
    /// Reads the state of the scheduler.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn scheduler(&self) -> Result<Scheduler> {
        self.get_json("show the scheduler", self.at("/v1/scheduler", &[])).await
    }

    /// Changes the settings of the scheduler.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn set_scheduler(&self, patch: &SchedulerPatch) -> Result<SchedulerSettings> {
        self.patch("change the scheduler's settings", "/v1/scheduler", patch).await
    }
}
