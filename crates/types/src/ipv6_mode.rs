//! How instances get their IPv6 addresses. The texts are those of the API, the command line and the cloud file.

use crate::security::{MatchError, not, texts};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

texts! {
    /// What router advertisements of a subnet tell instances to do for an IPv6 address
    /// (`docs/decisions/ipv6-addresses.md`). DHCPv6 is answered in both modes.
    #[derive(Default)]
    Ipv6Mode: "a mode of IPv6 addresses: expected `dhcp` or `slaac`",
    /// Ask by DHCPv6 (RFC 8415). The mode of a new subnet that names none.
    #[default]
    Dhcp "dhcp",
    /// Derive it from the prefix, a /64, and the MAC address (RFC 4862, EUI-64).
    Slaac "slaac"
}

impl Ipv6Mode {
    /// Length in bits of the only prefixes in which hosts derive addresses (RFC 4291 section 2.5.1).
    pub const SLAAC_PREFIX_BITS: u8 = 64;
}
