//! Authenticated datagrams between the nodes of a cluster: a header in clear text, an encrypted body and an
//! authentication tag, with a window against replayed packets.
//!
//! Each protocol that uses the envelope is a [`Protocol`] with its own magic number and its own derived keys.
//! A packet of one protocol is therefore never accepted by another one, although they share the cluster keys.
//! RSP (`crates/rsp`), the cluster protocol (`crates/cluster`) and the replication of sessions (`crates/nat-sync`) use it.
//! `api/rsp.md` defines the packet format and explains nonces, key rotation and replay protection.
//!
//! The crate opens no sockets and reads no clock: time is an argument of each call. [`Sealer`] makes packets
//! from bodies; [`Opener`] returns the body of a packet, or the [`Refusal`] that says what is wrong with it.
//!
//! Modules form layers. A module uses only modules in the layers below it:
//!
//! ```text
//! 4  seal (Sealer)                  open (Opener)
//! 3  header (packet header, nonce)  keys (cluster keys, subkeys)
//! 2  window (replay window)
//! 1  node (NodeId, BootId)  protocol (Protocol, sizes)  refusal (Refusal)
//! ```
#![forbid(unsafe_code)]

mod header;
mod keys;
mod node;
mod open;
mod protocol;
mod refusal;
mod seal;
#[cfg(test)]
mod tests;
mod window;

pub use keys::{ClusterKey, KEYS_MAX, KeyError, KeyRing, derive_secret};
pub use node::{BootId, NodeId};
pub use open::{Limits, Opened, Opener};
pub use protocol::{HEADER_BYTES, PACKET_BYTES_MAX, Protocol, TAG_BYTES};
pub use refusal::Refusal;
pub use seal::{SealError, Sealer};
pub use window::WINDOW;
