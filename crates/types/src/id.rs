//! Identifiers of the objects in the store. A new kind of object gets its identifier here.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The text is not an identifier of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {kind} id: expected {prefix}-NUMBER, like {prefix}-42")]
pub struct IdError {
    text: String,
    kind: &'static str,
    prefix: &'static str,
}

/// Defines identifier types: numbers that the store assigns in order, written with the kind in front
/// (`vpc-42`), so that different kinds cannot be confused.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u64);

        impl $name {
            /// Text before the number.
            pub const PREFIX: &'static str = $prefix;

            /// The identifier with this number of the store. Numbers fit in a signed 64-bit column.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Number in the store.
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
    /// Identifier of a tenant, which owns VPCs.
    TenantId, "tenant", "tenant";
    /// Identifier of a VPC, which has one VNI and one VRF.
    VpcId, "vpc", "VPC";
    /// Identifier of a subnet of a VPC.
    SubnetId, "subnet", "subnet";
    /// Identifier of a compute host.
    HostId, "host", "host";
    /// Identifier of a gateway node.
    GatewayId, "gw", "gateway";
    /// Identifier of a cluster of gateways.
    ClusterId, "cluster", "cluster";
    /// Identifier of an instance: one VM's port in one subnet.
    InstanceId, "inst", "instance";
    /// Identifier of a route table of a VPC.
    RouteTableId, "rtb", "route table";
    /// Identifier of a route in a route table.
    RouteId, "route", "route";
    /// Identifier of a peering of two VPCs.
    PeeringId, "peer", "peering";
    /// Identifier of a security group of a VPC.
    SecurityGroupId, "sg", "security group";
    /// Identifier of a rule of a security group.
    SecurityRuleId, "sgr", "security rule";
    /// Identifier of a pool of public addresses.
    PublicPoolId, "pool", "public pool";
    /// Identifier of an EIP (elastic IP): public addresses of a tenant.
    EipId, "eip", "EIP";
    /// Identifier of a NAT gateway: public addresses that the instances of a VPC share.
    NatGatewayId, "nat", "NAT gateway";
    /// Identifier of a meter: a limit of Internet traffic.
    MeterId, "meter", "meter";
    /// Identifier of a port forward of a NAT gateway.
    PortForwardId, "fwd", "port forward";
    /// Identifier of a network class: what instances that have it may use of their hosts' network.
    NetworkClassId, "class", "network class";
    /// Identifier of a service, whose members are instances of a VPC.
    ServiceId, "svc", "service";
    /// Identifier of a member of a service.
    MemberId, "member", "member";
    /// Identifier of a mount: the addresses by which a VPC reaches a service.
    MountId, "mount", "mount";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_parse_only_with_the_prefix_of_their_kind() {
        assert_eq!("vpc-42".parse::<VpcId>().unwrap(), VpcId::new(42));
        assert_eq!(VpcId::new(42).to_string(), "vpc-42");
        for text in
            ["42", "vpc-", "vpc-0", "vpc-042", "vpc-+1", "vpc--1", "tenant-42", "vpc-9223372036854775808"]
        {
            assert!(text.parse::<VpcId>().is_err(), "{text}");
        }
        let error = "host-1".parse::<VpcId>().unwrap_err();
        assert_eq!(error.to_string(), "`host-1` is not a valid VPC id: expected vpc-NUMBER, like vpc-42");
    }
}
