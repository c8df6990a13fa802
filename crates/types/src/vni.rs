//! VXLAN network identifiers.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// VXLAN network identifier: 24 bits (RFC 7348), but never 0, which Sluice's tables use for the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Vni(u32);

/// The number or text is not a VNI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VniError {
    /// The number is not between 1 and 16777215.
    #[error("VNI {0} is not between 1 and 16777215")]
    OutOfRange(u64),
    /// The text is not a decimal number.
    #[error("`{0}` is not a VNI: expected a number between 1 and 16777215")]
    NotANumber(String),
}

impl Vni {
    /// Largest VNI.
    pub const MAX: u32 = (1 << 24) - 1;

    /// The VNI with this number.
    ///
    /// # Errors
    /// [`VniError::OutOfRange`] for 0 and for numbers of more than 24 bits.
    pub const fn new(value: u32) -> Result<Self, VniError> {
        if value == 0 || value > Self::MAX {
            return Err(VniError::OutOfRange(value as u64));
        }
        Ok(Self(value))
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Vni {
    type Error = VniError;
    fn try_from(value: u32) -> Result<Self, VniError> {
        Self::new(value)
    }
}

impl From<Vni> for u32 {
    fn from(vni: Vni) -> u32 {
        vni.0
    }
}

impl FromStr for Vni {
    type Err = VniError;
    fn from_str(text: &str) -> Result<Self, VniError> {
        let value: u64 = text.parse().map_err(|_| VniError::NotANumber(text.to_owned()))?;
        u32::try_from(value).map_err(|_| VniError::OutOfRange(value)).and_then(Self::new)
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_of_24_bits_and_zero_are_refused() {
        assert_eq!("1".parse::<Vni>().unwrap().get(), 1);
        assert_eq!("16777215".parse::<Vni>().unwrap().get(), Vni::MAX);
        assert_eq!("0".parse::<Vni>(), Err(VniError::OutOfRange(0)));
        assert_eq!("16777216".parse::<Vni>(), Err(VniError::OutOfRange(16_777_216)));
        assert!(matches!("x".parse::<Vni>(), Err(VniError::NotANumber(_))));
        assert!(serde_json::from_str::<Vni>("0").is_err());
    }
}
