use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Text that is no identifier of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind} id: expected {prefix}-NUMBER, like {prefix}-42")]
pub struct IdError {
    text: String,
    kind: &'static str,
    prefix: &'static str,
}

/// Identifiers are numbers that the store hands out in order, written with the
/// kind in front (`vpc-42`), so that one cannot stand for another.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u64);

        impl $name {
            /// What stands before the number.
            pub const PREFIX: &'static str = $prefix;

            /// From the store's number; numbers fit a signed 64-bit column.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The store's number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let bad = || IdError { text: text.to_owned(), kind: $kind, prefix: $prefix };
                let digits = text.strip_prefix(concat!($prefix, "-")).ok_or_else(bad)?;
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) || digits.starts_with('0') {
                    return Err(bad());
                }
                let number: i64 = digits.parse().map_err(|_| bad())?;
                Ok(Self(number.unsigned_abs()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "-{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

ids! {
    /// A tenant: owner of VPCs.
    TenantId, "tenant", "tenant";
    /// A VPC: one VNI, one VRF.
    VpcId, "vpc", "VPC";
    /// A subnet of a VPC.
    SubnetId, "subnet", "subnet";
    /// A compute host.
    HostId, "host", "host";
    /// A gateway node.
    GatewayId, "gw", "gateway";
    /// A cluster of gateways.
    ClusterId, "cluster", "cluster";
    /// An instance: one VM's port in one subnet.
    InstanceId, "inst", "instance";
    /// A route table of a VPC.
    RouteTableId, "rtb", "route table";
    /// A route of a route table.
    RouteId, "route", "route";
    /// A peering of two VPCs.
    PeeringId, "peer", "peering";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_kind() {
        assert_eq!("vpc-42".parse::<VpcId>().unwrap(), VpcId::new(42));
        assert_eq!(VpcId::new(42).to_string(), "vpc-42");
        for text in
            ["42", "vpc-", "vpc-0", "vpc-042", "vpc-+1", "vpc--1", "tenant-42", "vpc-9223372036854775808"]
        {
            assert!(text.parse::<VpcId>().is_err(), "{text}");
        }
        let error = "host-1".parse::<VpcId>().unwrap_err();
        assert_eq!(error.to_string(), "`host-1` is not a VPC id: expected vpc-NUMBER, like vpc-42");
    }
}
