//! The scheduler of vIPs.

use crate::{Client, Result};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId};
use std::net::IpAddr;

/// Thresholds and limits; loads are parts: 0.8 is 80%.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerSettings {
    /// It moves vIPs.
    pub enabled: bool,
    /// A gateway above this is overloaded.
    pub overload_above: f64,
    /// It is no longer so at this or below.
    pub relieved_below: f64,
    /// A gateway takes a vIP only if it is at most here with it.
    pub receive_below: f64,
    /// vIPs that move in any interval, at most.
    pub moves_per_interval: usize,
    /// The interval.
    pub interval_ms: u64,
    /// How long a vIP that moved stays.
    pub hold_ms: u64,
    /// How long to wait for a gateway that was asked for.
    pub expansion_wait_ms: u64,
    /// Gateways that a cluster keeps when it gives one to another.
    pub gateways_min: usize,
}

/// A change of the settings; what is left out stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SchedulerPatch {
    /// As [`SchedulerSettings::enabled`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// As [`SchedulerSettings::overload_above`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overload_above: Option<f64>,
    /// As [`SchedulerSettings::relieved_below`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relieved_below: Option<f64>,
    /// As [`SchedulerSettings::receive_below`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_below: Option<f64>,
    /// As [`SchedulerSettings::moves_per_interval`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves_per_interval: Option<usize>,
    /// As [`SchedulerSettings::hold_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
    /// As [`SchedulerSettings::gateways_min`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateways_min: Option<usize>,
}

/// A gateway that reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerGateway {
    /// Identifier.
    pub id: GatewayId,
    /// Whose vIPs it has.
    pub cluster: ClusterId,
    /// How busy it is.
    pub load: f64,
    /// Packets a second that it could forward.
    pub capacity_pps: f64,
    /// It is to have none.
    pub draining: bool,
    /// vIPs that could move.
    pub vips: Vec<IpAddr>,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerDecision {
    /// Milliseconds of the UNIX epoch.
    pub time_ms: u64,
    /// What and why.
    pub text: String,
    /// It was carried out.
    pub done: bool,
}

/// What is not done because of a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerWait {
    /// Who waits for what.
    pub text: String,
}

/// What the scheduler does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scheduler {
    /// Thresholds and limits.
    pub settings: SchedulerSettings,
    /// When it last looked, milliseconds of the UNIX epoch.
    pub round_ms: u64,
    /// Why it cannot decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// vIPs that it moved.
    pub moves: u64,
    /// Gateways that it asked for.
    pub gateways_wanted: u64,
    /// Gateways that it gave to other clusters.
    #[serde(default)]
    pub gateways_given: u64,
    /// Clusters that need a new gateway now.
    #[serde(default)]
    pub clusters_in_need: Vec<ClusterId>,
    /// Those that report.
    pub gateways: Vec<SchedulerGateway>,
    /// What is not done because of a limit.
    pub waits: Vec<SchedulerWait>,
    /// The last ones, the newest last.
    pub decisions: Vec<SchedulerDecision>,
}

impl Client {
    /// What the scheduler does.
    ///
    /// # Errors
    /// As all calls.
    pub async fn scheduler(&self) -> Result<Scheduler> {
        self.get_json("show the scheduler", self.at("/v1/scheduler", &[])).await
    }

    /// Changes its settings.
    ///
    /// # Errors
    /// As all calls.
    pub async fn set_scheduler(&self, patch: &SchedulerPatch) -> Result<SchedulerSettings> {
        self.patch("change the scheduler's settings", "/v1/scheduler", patch).await
    }
}
