//! A node's forwarding tables: memory that the control side writes and the packet side reads, in the layout
//! of `bpf/include/layout/cells.h`.
//!
//! [`Memory`] is an anonymous mapping in tests and the mapped BPF array in agents; the code is the same.
//! [`NodeTables`] is the writer. It is built of the cell allocator (`pool`), the exact match (`exact`) and
//! the longest-prefix match (`lpm`), of which policies (`policy`) consist, and reuses unlinked cells after a [`Grace`] period. [`Reader`] reads as
//! packet programs do.
//!
//! [`sessions`], [`nat`], [`flows`], [`meters`], [`NamedMeters`] and [`PortMeters`] are tables that packet programs write. Each has memory of its
//! own, which this crate lays out, reads, and (sessions, address translation) sweeps.

mod encoding;
mod entries;
mod error;
mod exact;
mod grace;
mod heartbeat;
#[cfg(test)]
mod interleave;
mod journal;
mod locate;
mod lpm;
mod member_table;
mod memory;
mod named_meters;
mod node;
mod policy;
mod pool;
mod port_credits;
mod port_meters;
mod reader;
mod region;
mod seed;
mod shared_reader;
mod usage;

pub mod damage;
pub mod drops;
pub mod flows;
pub mod layout;
pub mod meters;
pub mod nat;
pub mod sessions;

pub use entries::{
    AddressPair, DirectPath, Endpoint, Group, MemberService, Meter, MeteredPeer, NatAddress, NatGateway,
    NodeConfig, Port, PortIpv4, PortIpv6, PortQos, PortSources, PublicPrefix, Role, Route, Sizes, Target,
    UnderlayPort, Vip, Vrf, VrfEntry,
};
pub use error::{Error, PolicyExcess};
pub use grace::{Grace, GraceError, Immediate, Membarrier};
pub use heartbeat::AgentHeartbeat;
pub use journal::{CHANGES_MAX, Changes, Journal, PEER_ROUTES_MAX, PEERS_MAX};
pub use locate::{InstanceLocation, Location, MountLocation};
pub use memory::Memory;
pub use named_meters::{FoundMeter, MeterReader, NamedMeters};
pub use node::{CounterReset, NodeTables, PERMIT_STEP, PolicyEntry};
pub use policy::{AddressFamily, Direction, Policy, PolicyPacket, Remote, Rule, Service, Verdict};
pub use port_credits::{
    COST_CLASSES, COST_SAMPLE, CREDIT_DIMENSIONS, CreditDimension, CreditDrops, PacketCosts, PortCredits,
    PortUse,
};
pub use port_meters::PortMeters;
pub use reader::{Busy, Hit, Lookup, Network, NextHop, PortFilter, Reader};
pub use shared_reader::{ReaderGate, SharedReader, WaitForThreads};
pub use usage::{BulkResult, TableUsage};
