//! RSP, the protocol with which hosts learn direct paths (Zeta sections IV-B and V-B, Achelous section 4.3) and the
//! identities of instances on other hosts:
//! its packets, and the cache in which a host keeps the paths. `api/rsp.md` defines the protocol.
//!
//! The crate opens no sockets and reads no clock: time is an argument of each call. [`Sealer`] makes packets
//! from a [`Message`]; [`Opener`] returns the message of a packet, or the [`Refusal`] that says what is wrong
//! with it. [`Cache`](cache::Cache) is a state machine: `Input` in, `Vec<Output>` out. Header, encryption and
//! replay protection are those of `sluice_envelope`.
//!
//! Modules form layers. A module uses only modules in the layers below it:
//!
//! ```text
//! 4  seal (Sealer)              open (Opener)
//! 3  wire (layout of bodies)    cache (paths of a host)
//! 2  message (Message and its entries)
//! 1  protocol (port, version, keys)    refusal (Refusal, BodyError)
//! ```
#![forbid(unsafe_code)]

pub mod cache;
mod message;
mod open;
mod protocol;
mod refusal;
mod seal;
mod wire;

pub use message::{
    Answer, AnswerEntry, Capabilities, Destination, IdentityEntry, Message, NetworkAnswer, NetworkQuery,
    Path, PermitEntry, Query, Reception, RedirectEntry, StrayEntry,
};
pub use open::{Opened, Opener};
pub use protocol::{BODY_HEADER_BYTES, MTU_MIN, RECEPTION_MTU_MIN, RSP_PORT, VERSION, host_secret};
pub use refusal::{BodyError, Refusal};
pub use seal::{SealError, Sealer};
pub use wire::{Body, decode};
