//! What every node agent has in common: it opens or adopts the forwarding tables, follows the controller's
//! update stream, writes the tables, and serves metrics and the local API.
//!
//! A role (`sluice-gateway`, `sluice-vswitch`) implements [`Role`], opens its node with [`open`], starts its
//! own tasks, and runs with [`Started::serve`].
#![forbid(unsafe_code)]

mod apply;
mod args;
mod backoff;
pub mod changes;
mod claims;
mod elephants;
mod enrollment;
mod error;
pub mod event_source;
mod failures;
pub mod frames;
pub mod health;
mod health_task;
mod heartbeat;
mod hello;
pub mod liveness;
pub mod local_api;
mod lock;
pub mod mailbox;
pub mod metric_source;
mod metrics;
mod migrations;
pub mod netlink;
mod node;
mod role;
pub mod rsp;
mod scans;
mod serve;
mod state_reports;
mod stream_client;
pub mod sysctl;
mod table_writer;
pub mod underlay;
mod vni_traffic;

pub use apply::{Applied, Applier, RETRIES_MAX, Repaired, UnconfirmedEntries};
pub use args::CommonArgs;
pub use claims::Claims;
pub use elephants::{elephant_bytes, flow_bytes};
pub use error::{Error, OtherDatabase, error_chain};
pub use health_task::{HealthConfig, random_nonce, watch_health};
pub use heartbeat::{NatAddresses, NodeLoad};
pub use migrations::MigrationReports;
pub use node::{Node, Opened, Started, adoption_error, flush, flush_closed, open};
pub use role::{EndingSessionsJob, Role, UpdateContext, monotonic_ns};
pub use state_reports::StateReports;
pub use stream_client::{DIGEST_REPEAT, SharedStreamStatus, StreamStatus};
pub use table_writer::TableWriter;
