//! A whole cloud in network namespaces on one machine: switches, gateways,
//! hosts, VMs, all with real packets. Behind `sluice lab` and the end-to-end
//! scenarios.
#![forbid(unsafe_code)]

mod cli;
mod down;
mod error;
mod exec;
mod foreign;
mod lab;
mod metrics;
mod net;
mod paths;
mod process;
mod show;
mod topology;
mod up;
mod vm;

pub use cli::{Args, run};
pub use down::down;
pub use error::{Error, Result};
pub use foreign::Foreign;
pub use lab::{CONTROLLER, Lab, Node, State, VmState, VpcState};
pub use metrics::Metrics;
pub use paths::Paths;
pub use process::Process;
pub use topology::{Host, Topology};
pub use up::Options;
