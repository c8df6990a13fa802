//! Who owns which vIP of a gateway cluster (Zeta, sections IV-E and VIII-C.2), as
//! two pure state machines: [`Gateway`] on every gateway, [`Controller`] in the
//! controller. Input in, outputs out; time is an argument and the one timer an
//! output. Sockets, clocks and the announcements themselves (ARP, neighbour
//! discovery, RARP; later host routes by BGP) are the caller's; [`Courier`] seals
//! messages for the wire.
//!
//! Gateways watch each other by hellos. When one falls silent and nobody else
//! hears it either, the others take its vIPs in an order that everybody computes
//! alike, without waiting for the controller. Ownership is a [`Table`] that each
//! node keeps and merges; its claims are totally ordered, so nodes that talk to
//! each other, directly or not, end with the same owners.
//!
//! **A vIP may have two owners for a moment, and that is harmless.** All gateways
//! of a cluster hold the same tables and forward whatever reaches them for any of
//! its vIPs; owning one only means to announce it and to answer for it. So each of
//! two owners forwards what switches send it, and no packet is lost or changed.
//! What must never stay is a vIP that switches believe to be at a dead gateway: a
//! winner announces again when its rival gives way, and announcements are repeated.
//!
//! `docs/decisions/takeover.md` has the argument and the bounds.
#![forbid(unsafe_code)]

mod controller;
mod courier;
mod gateway;
mod message;
mod order;
mod params;
mod source;
mod table;
mod vip;

pub use controller::{Controller, ControllerInput, ControllerOutput, Plan};
pub use courier::{CLUSTER_PORT, Courier, Refused};
pub use gateway::{Gateway, Incident, Input, Output, Reason};
pub use message::{
    Body, Config, DecodeError, Load, MEMBERS_MAX, MESSAGE_BYTES_MAX, Member, Message, Node, Pulse, Report,
    Standing, VERSION,
};
pub use order::mend;
pub use params::{Params, ParamsError};
pub use table::{Claim, Table};
pub use vip::{VIPS_MAX, VipError, VipId, VipSet};
