//! What every node agent does: open and adopt the tables, follow the
//! controller, write its updates, and answer questions about it all.
//!
//! A role (`sluice-gateway`, `sluice-vswitch`) opens a node by [`open`], does
//! its own set-up, and runs by [`Started::serve`].
#![forbid(unsafe_code)]

pub mod api;
mod apply;
mod args;
mod error;
pub mod frames;
mod linger;
mod loads;
pub mod metrics;
pub mod netlink;
mod node;
pub mod rsp;
pub mod sysctl;
pub mod underlay;
mod watch;
mod writer;

pub use apply::{Applied, Applier, NoPorts, OtherDatabase, Ports, chain};
pub use args::CommonArgs;
pub use error::Error;
pub use node::{Node, Opened, Started, flush, open};
pub use watch::{Load, SharedLoad, SharedStatus, StreamStatus};
pub use writer::Writer;
