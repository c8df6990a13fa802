//! Health checks of a node (Achelous, section 6.1): what is measured, which anomalies follow from it, and what is reported.
//! Everything here is pure, but for the files that [`sample`] reads; `crates/agent/src/health_task.rs`
//! measures.

pub mod echo;
pub mod findings;
mod heavy;
pub mod links;
pub mod monitor;
mod reports;
pub mod rules;
pub mod sample;
pub mod vms;

pub use heavy::{FlowMeter, HeavyFlow};
pub use monitor::{InterfaceState, Monitor, MonitorConfig, NodeView};
pub use reports::{HealthReports, MonitorFigures};
pub use rules::{Limits, Placement};
pub use vms::WatchedPort;
