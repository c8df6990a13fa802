//! RSP, by which hosts learn direct paths (Zeta sections IV-B and V-B, Achelous
//! section 4.3): the packets, their authentication, and what a host makes of
//! them. `api/rsp.md` is the protocol's definition.
//!
//! Everything is a value: no sockets, and time is an argument. [`Sealer`] makes
//! packets of a [`Message`], [`Opener`] gives back the message of a packet or the
//! [`Refusal`] that says what is wrong with it, and [`Cache`](cache::Cache) is a
//! host's knowledge of paths: `Input` in, `Vec<Output>` out. Header and cipher are
//! an [`envelope`] that other protocols of a cluster use too.
#![forbid(unsafe_code)]

pub mod cache;
pub mod envelope;
mod header;
mod keys;
mod message;
mod open;
mod refusal;
mod seal;
mod window;
mod wire;

pub use header::{BootId, NodeId};
pub use keys::{ClusterKey, KEYS_MAX, KeyError, KeyRing, rsp_secret};
pub use message::{Answer, Answered, Ask, Destination, Message, Moved, Path};
pub use open::{Limits, Opened, Opener};
pub use refusal::Refusal;
pub use seal::{SealError, Sealer};
pub use window::WINDOW;
pub use wire::{Body, decode};

/// UDP port of RSP, unless a site says otherwise. Not registered.
pub const RSP_PORT: u16 = 4797;

/// Version that packets are sent in. Another major version is refused, a newer
/// minor one is understood in part.
pub const VERSION: (u8, u8) = (1, 0);

/// Bytes before the sealed body.
pub const HEADER_BYTES: usize = 64;

/// Bytes of the body before its entries.
pub const BODY_HEADER_BYTES: usize = 8;

/// Bytes behind the sealed body.
pub const TAG_BYTES: usize = 16;

/// Largest packet, from the header's first byte to the tag's last: what fits an
/// Ethernet frame of 9216 bytes over IPv4.
pub const PACKET_BYTES_MAX: usize = 9216 - 28;

/// Least MTU of the underlay: what every IPv4 host takes (RFC 1122 section 3.3.2).
pub const MTU_MIN: u16 = 576;
