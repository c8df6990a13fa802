//! MAC addresses.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr([u8; 6]);

/// The text is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address: expected six bytes in hexadecimal, like 02:00:00:00:00:0a")]
pub struct MacError(String);

impl MacAddr {
    /// The address with these bytes, in transmission order.
    pub const fn new(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }

    /// The address in the low 48 bits of an integer; the first byte is the highest.
    pub const fn from_u64(value: u64) -> Self {
        let b = value.to_be_bytes();
        Self([b[2], b[3], b[4], b[5], b[6], b[7]])
    }

    /// The address as an integer of 48 bits; the first byte is the highest.
    pub const fn to_u64(self) -> u64 {
        let b = self.0;
        u64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]])
    }

    /// The bytes in transmission order.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// A locally administered unicast address with the low 40 bits of `seed`.
    pub const fn local(seed: u64) -> Self {
        let b = seed.to_be_bytes();
        Self([0x02, b[3], b[4], b[5], b[6], b[7]])
    }

    /// True for group addresses, including broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for an address that a station may have: it is neither a group address nor zero.
    pub const fn is_unicast(self) -> bool {
        !self.is_multicast() && self.to_u64() != 0
    }
}

impl FromStr for MacAddr {
    type Err = MacError;
    fn from_str(text: &str) -> Result<Self, MacError> {
        let bad = || MacError(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(bad)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for MacAddr {
    type Error = MacError;
    fn try_from(text: String) -> Result<Self, MacError> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> String {
        mac.to_string()
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_without_six_bytes_is_refused() {
        for text in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:0a:0b",
            "2:0:0:0:0:a",
            "0g:00:00:00:00:00",
            "+2:00:00:00:00:00",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
        assert_eq!("02-00-00-00-00-0A".parse::<MacAddr>().unwrap().to_u64(), 0x0200_0000_000a);
    }

    proptest! {
        #[test]
        fn displayed_address_parses_to_the_same_address(value in 0u64..1 << 48) {
            let mac = MacAddr::from_u64(value);
            prop_assert_eq!(mac.to_string().parse::<MacAddr>().unwrap(), mac);
            prop_assert_eq!(mac.to_u64(), value);
        }
    }
}
