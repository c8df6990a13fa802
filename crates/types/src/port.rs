//! What an instance may have besides its addresses and security groups. The texts are those of the API, the command line
//! and the cloud file.

use crate::{MacAddr, MacError, NetworkClassId};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::net::{AddrParseError, IpAddr};
use std::str::FromStr;

/// Most secondary addresses of an instance.
pub const MAX_SECONDARY_ADDRESSES: usize = 16;
/// Most prefixes that are delegated to an instance.
pub const MAX_DELEGATED_PREFIXES: usize = 32;
/// Most address pairs of an instance.
pub const MAX_ADDRESS_PAIRS: usize = 16;
/// Largest DSCP (RFC 2474): it has 6 bits.
pub const MAX_DSCP: u8 = 63;
/// Highest rate limit of an instance, in Mbit/s.
pub const MAX_RATE_MBPS: u32 = 400_000;

/// An address that several instances of a subnet may have in turn, as with VRRP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressPair {
    /// The address.
    pub address: IpAddr,
    /// The MAC address that belongs to it (RFC 9568 section 7.3); `None`: neighbors are given that of the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
}

/// The text is not ADDRESS or ADDRESS=MAC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressPairError {
    /// The part before `=` is not an address.
    #[error("`{0}` is not an IP address")]
    Address(String, #[source] AddrParseError),
    /// The part behind `=` is not a MAC address.
    #[error(transparent)]
    Mac(#[from] MacError),
}

impl FromStr for AddressPair {
    type Err = AddressPairError;

    fn from_str(text: &str) -> Result<Self, AddressPairError> {
        let (address, mac) = text.split_once('=').map_or((text, None), |(address, mac)| (address, Some(mac)));
        let bad = |source| AddressPairError::Address(address.to_owned(), source);
        Ok(Self { address: address.parse().map_err(bad)?, mac: mac.map(str::parse).transpose()? })
    }
}

impl fmt::Display for AddressPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.mac.map_or(Ok(()), |mac| write!(f, "={mac}"))
    }
}

/// How the packets of an instance are marked, and how many it may send and receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qos {
    /// DSCP of the packets that it sends, at most [`MAX_DSCP`]; `None`: they keep theirs.
    #[serde(default)]
    pub dscp: Option<u8>,
    /// Limit of each direction in Mbit/s, 1 to [`MAX_RATE_MBPS`]; `None`: not limited, or by its network class.
    #[serde(default)]
    pub rate_mbps: Option<u32>,
}

impl fmt::Display for Qos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dscp {
            Some(dscp) => write!(f, "DSCP {dscp}")?,
            None => f.write_str("DSCP kept")?,
        }
        match self.rate_mbps {
            Some(rate) => write!(f, ", {rate} Mbit/s"),
            None => f.write_str(", not limited"),
        }
    }
}

/// The same fields of a request. A field that is `None` has the default of a new instance, and keeps its value in an
/// existing one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSettings {
    /// Addresses besides the two of the instance, in any order, at most [`MAX_SECONDARY_ADDRESSES`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub secondary_addresses: Option<Vec<IpAddr>>,
    /// Prefixes of which the instance has every address, in any order, at most [`MAX_DELEGATED_PREFIXES`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub delegated_prefixes: Option<Vec<IpNet>>,
    /// Addresses that it may have in turn with others, in any order, at most [`MAX_ADDRESS_PAIRS`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub address_pairs: Option<Vec<AddressPair>>,
    /// Whether the source addresses of what it sends are checked; they are by default.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub spoofing_protection: Option<bool>,
    /// Marking and rate limit.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub qos: Option<Qos>,
    /// The network class that the instance has; `Some(None)`, which is null: none, as by default. An instance has either
    /// one, or [`Qos::rate_mbps`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub network_class: Option<Option<NetworkClassId>>,
}

impl PortSettings {
    /// Whether it has no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Decodes a field that may be absent but not null, which could be meant as the default or as no change.
///
/// # Errors
/// Those of the value.
pub fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_an_address_with_or_without_a_mac_address() {
        for text in ["10.0.0.9", "2001:db8::9", "10.0.0.9=00:00:5e:00:01:05"] {
            assert_eq!(text.parse::<AddressPair>().unwrap().to_string(), text);
        }
        for text in ["", "10.0.0.9=", "=00:00:5e:00:01:05", "10.0.0.0/24", "10.0.0.9=1"] {
            assert!(text.parse::<AddressPair>().is_err(), "{text}");
        }
    }

    /// Catches a null that is taken for an absent field.
    #[test]
    fn fields_are_absent_or_have_a_value() {
        let read = |text: &str| serde_json::from_str::<PortSettings>(text);
        assert!(read("{}").unwrap().is_empty());
        let qos = Qos { dscp: None, rate_mbps: Some(5) };
        assert_eq!(read(r#"{"qos":{"dscp":null,"rate_mbps":5}}"#).unwrap().qos, Some(qos));
        let class = |text: &str| read(text).unwrap().network_class;
        assert_eq!(class(r#"{"network_class":null}"#), Some(None));
        assert_eq!(class(r#"{"network_class":"class-7"}"#), Some(Some(NetworkClassId::new(7))));
        let removes = PortSettings { network_class: Some(None), ..PortSettings::default() };
        assert!(!removes.is_empty());
        assert_eq!(serde_json::to_string(&removes).unwrap(), r#"{"network_class":null}"#);
        for text in [r#"{"qos":null}"#, r#"{"address_pairs":null}"#, r#"{"qos":{"rate":1}}"#] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
