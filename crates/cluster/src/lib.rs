//! Ownership of the vIPs of a gateway cluster (Zeta, sections IV-E and VIII-C.2), as two state machines:
//! [`Gateway`] runs on each gateway, [`Controller`] in the controller. They take inputs and return outputs;
//! time is an argument, and the only timer is an output. The caller has the sockets, the clocks and the
//! announcements (ARP, neighbor discovery, RARP; later host routes by BGP). [`MessageCodec`] seals messages
//! for the network.
//!
//! Gateways monitor each other with hellos. When a gateway falls silent and no other gateway receives its
//! hellos either, the others take over its vIPs in an order that all of them compute alike, without waiting
//! for the controller. Owners are recorded in a [`Table`] that each node keeps and merges. Its claims are
//! totally ordered, so nodes that communicate, directly or through others, end with the same owners.
//!
//! **A vIP may have two owners for a moment, which is harmless.** All gateways of a cluster should have the same
//! tables ([`Readiness`]: those that have them take vIPs before and from those that do not) and forward whatever reaches them for any of its vIPs; the owner of a vIP only announces it and
//! answers ARP and neighbor discovery for it. Two owners both forward the packets that switches send them,
//! and no packet is lost or changed. But switches must not keep sending a vIP's packets to a dead gateway.
//! Therefore the remaining owner announces the vIP again when the other one stops, and announcements are
//! repeated.
//!
//! Apart from ownership, gateways share the rates of meters ([`meters`]), by messages of their own.
//!
//! `docs/decisions/takeover.md` contains the argument and the time bounds.
//!
//! Modules form layers. A module uses only modules in the layers below it:
//!
//! ```text
//! 5  gateway (Gateway)    controller (Controller)    codec (sealed datagrams)    meters (shares of meters)
//! 4  message (messages and their encoding)
//! 3  table (claims)
//! 2  order (takeover order)
//! 1  vip (VipId, VipSet)    ids (encoding of ids)    params (times)    sender (order and age of messages)
//!    readiness (state of the forwarding tables)
//! ```
#![forbid(unsafe_code)]

mod codec;
mod controller;
mod gateway;
mod ids;
mod message;
pub mod meters;
mod order;
mod params;
mod readiness;
mod sender;
mod table;
mod vip;

pub use codec::{CLUSTER_PORT, MessageCodec, Refused};
pub use controller::{Controller, ControllerInput, ControllerOutput, OwnershipPlan};
pub use gateway::{AnnounceReason, Contacts, Gateway, Incident, Input, Output};
pub use message::{
    Body, Config, DecodeError, Health, Load, MEMBERS_MAX, MESSAGE_BYTES_MAX, Member, Message, Node, Pulse,
    Report, VERSION,
};
pub use order::assign_preferred_owners;
pub use params::{Params, ParamsError};
pub use readiness::{Readiness, TableReport};
pub use table::{Claim, Table};
pub use vip::{VIPS_MAX, VipError, VipId, VipSet};
