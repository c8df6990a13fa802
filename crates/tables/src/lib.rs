//! A node's forwarding tables: memory that the control side writes and the
//! packet side reads, in the layout of `bpf/include/cells.h`.
//!
//! [`Memory`] is an anonymous mapping in tests and the mapped BPF array in the
//! agents; the code is the same. [`NodeTables`] writes: it keeps free cells
//! (`pool`), the exact match (`exact`) and the longest-prefix match (`lpm`) in
//! order, and reuses what it unlinked after a [`Grace`] period. [`Reader`] reads
//! as packets do. [`sessions`], [`flows`] and [`meters`] are tables that packets
//! write: memory of their own, laid out, swept and read here.

pub mod drops;
mod error;
mod exact;
pub mod flows;
mod grace;
#[cfg(test)]
mod interleave;
pub mod layout;
mod locate;
mod lpm;
mod memory;
pub mod meters;
mod node;
mod pool;
mod reader;
mod region;
pub mod sessions;
mod spec;
mod threads;

pub use error::Error;
pub use grace::{Grace, GraceError, Immediate, Membarrier};
pub use locate::{Located, Place};
pub use memory::Memory;
use node::random_seed;
pub use node::{Attendance, NodeTables, VniCounts};
pub use reader::{Hit, Lookup, NextHop, Reader};
pub use spec::{
    Bulk, DirectPath, Endpoint, Fill, Group, NodeConfig, Port, PortIpv4, PortIpv6, Role, Route, Sizes,
    Target, UnderlayPort, Vip, Vrf, VrfEntry,
};
pub use threads::{ReaderGate, SharedReader, WaitForThreads};
