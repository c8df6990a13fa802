//! A whole cloud in network namespaces on one machine: switches, gateways,
//! hosts, VMs, all with real packets. `sluice lab` and the end-to-end scenarios
//! use it.
//!
//! `topology` is the file that describes a lab. `up` builds it, with `net` (namespaces, links) and `vm`
//! (VPCs, instances, VMs). `lab` is a lab that is up, `down` removes it. `process` starts, finds and ends
//! processes, `exec` runs commands, `paths` has all names. `foreign` adds a host without Sluice, `metrics`
//! reads a node's metrics, `guest` boots guests of QEMU, runs commands in them and migrates them, `internet` and `places` have what is behind
//! the gateways, `failover` lets gateways die, `services` has members of services and their failures, `show` describes and demonstrates a lab, `output` prints, `cli` is the command line.
#![forbid(unsafe_code)]

mod cli;
mod configure;
mod down;
mod error;
mod exec;
mod failover;
mod foreign;
mod guest;
mod guest_migration;
pub mod internet;
mod lab;
mod metrics;
mod migration;
mod net;
mod output;
mod paths;
mod places;
mod process;
mod services;
mod show;
mod topology;
mod up;
mod vm;

pub use cli::{Args, run};
pub use down::down;
pub use error::{Error, Result};
pub use foreign::Foreign;
pub use guest::qmp::Event as GuestEvent;
pub use guest_migration::{GuestMigration, GuestMove};
pub use lab::{CONTROLLER, Lab, Node, State, VmState, VpcState};
pub use metrics::Metrics;
pub use paths::Paths;
pub use process::Process;
pub use services::{Program, Watched, monotonic_s};
pub use topology::{Eip, Guest, Host, Nic, Subnet, Topology, Vm, Vpc};
pub use up::Options;
