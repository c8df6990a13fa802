//! Limits and filtering of NAT gateways, which share public IPv4 addresses among the instances of a VPC. The texts are
//! those of the API, the command line and the cloud file.

use crate::security::{MatchError, not, texts};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most public addresses of a NAT gateway: gateways keep all of them in one cell of their tables.
pub const NAT_ADDRESSES_MAX: usize = 16;

/// Sessions that each instance may have at the same time, unless the NAT gateway says otherwise.
pub const NAT_SESSIONS_DEFAULT: u32 = 10_000;

/// Most sessions that a NAT gateway may permit each instance, so that a number with too many digits is found.
pub const NAT_SESSIONS_MAX: u32 = 1_000_000;

/// Port blocks that each instance may have, unless the NAT gateway says otherwise.
pub const NAT_BLOCKS_DEFAULT: u8 = 4;

/// Most port blocks that a NAT gateway may permit each instance.
pub const NAT_BLOCKS_MAX: u8 = 16;

texts! {
    /// Which packets of the Internet may begin a session at a port that an instance uses (RFC 4787 section 5).
    #[derive(Default)]
    NatFiltering: "a filtering: expected `address-and-port-dependent` or `endpoint-independent`",
    /// None: packets come in only from an address and port to which the instance has sent.
    #[default]
    AddressAndPortDependent "address-and-port-dependent",
    /// Those from any address and port.
    EndpointIndependent "endpoint-independent"
}
