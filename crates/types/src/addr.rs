//! Functions on addresses and prefixes that neither the standard library nor `ipnet` has.

use crate::MacAddr;
use ipnet::{IpNet, Ipv6Net};
use std::net::{IpAddr, Ipv6Addr};

/// The text is not a prefix, or a prefix with host bits set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is not of the form ADDRESS/LENGTH.
    #[error("`{0}` is not a prefix: expected ADDRESS/LENGTH, like 10.0.0.0/24 or 2001:db8::/64")]
    NotAPrefix(String),
    /// No interface can have the address.
    #[error("{address} is {kind}, which no interface can have")]
    NotUnicast {
        /// The address.
        address: IpAddr,
        /// What it is, in words.
        kind: &'static str,
    },
    /// Bits beyond the prefix length are not zero.
    #[error("prefix {given} has host bits set; did you mean {meant}?")]
    HostBits {
        /// The text.
        given: String,
        /// The prefix without host bits.
        meant: IpNet,
    },
}

/// Parses ADDRESS/LENGTH of either family, without host bits.
///
/// # Errors
/// [`AddressError`], naming the text.
pub fn parse_prefix(text: &str) -> Result<IpNet, AddressError> {
    let invalid = || AddressError::NotAPrefix(text.to_owned());
    // The parser of `IpNet` accepts leading zeros, which some programs read as octal numbers. Those of the standard
    // library do not.
    let (address, length) = text.split_once('/').ok_or_else(invalid)?;
    let is_plain = address.parse::<IpAddr>().is_ok() && (length == "0" || !length.starts_with('0'));
    let net: IpNet = if is_plain { text.parse().map_err(|_| invalid())? } else { return Err(invalid()) };
    if net.trunc() != net {
        return Err(AddressError::HostBits { given: text.to_owned(), meant: net.trunc() });
    }
    Ok(net)
}

/// True if the two prefixes have an address in common.
pub fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// True for a prefix whose addresses can be mapped by NPTv6 (RFC 6296): of IPv6, and with a length of 48 to 64. The RFC maps shorter
/// prefixes as those of 48 bits, but no object has one.
pub fn is_nptv6_prefix(prefix: IpNet) -> bool {
    prefix.addr().is_ipv6() && (48..=64).contains(&prefix.prefix_len())
}

/// True for an address whose first 96 bits can be a prefix of NAT64, to which an IPv4 address is added: its last 32 bits are 0, and so
/// are bits 64 to 71 (RFC 6052 section 2.2).
pub fn is_nat64_prefix(prefix: Ipv6Addr) -> bool {
    let bits = u128::from(prefix);
    bits as u32 == 0
        && bits >> 56 & 0xff == 0
        && is_unicast(prefix.into())
        && !prefix.is_unicast_link_local()
        && prefix.to_ipv4_mapped().is_none()
}

/// True for an address that an interface may have: it is not unspecified, multicast, loopback, IPv4 broadcast
/// or in 0.0.0.0/8.
pub fn is_unicast(address: IpAddr) -> bool {
    check_unicast(address).is_ok()
}

/// Checks that an interface may have an address: see [`is_unicast`].
///
/// # Errors
/// [`AddressError::NotUnicast`], which says what the address is.
pub fn check_unicast(address: IpAddr) -> Result<(), AddressError> {
    let kind = match address {
        address if address.is_unspecified() => "the unspecified address",
        address if address.is_multicast() => "a multicast address",
        address if address.is_loopback() => "a loopback address",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        IpAddr::V4(v4) if v4.octets()[0] == 0 => "an address of 0.0.0.0/8",
        _ => return Ok(()),
    };
    Err(AddressError::NotUnicast { address, kind })
}

/// The first address of a subnet behind the network address, which is the router's. `None` for prefixes that
/// are too long to contain a router and a host (IPv4 /31 and /32, IPv6 /127 and /128).
pub fn first_host(net: &IpNet) -> Option<IpAddr> {
    if net.prefix_len() + 1 >= net.max_prefix_len() {
        return None;
    }
    Some(match net.network() {
        IpAddr::V4(v4) => (u32::from(v4) + 1).to_be_bytes().into(),
        IpAddr::V6(v6) => (u128::from(v6) + 1).to_be_bytes().into(),
    })
}

/// An IPv6 address as two host-order halves, high half first, as in tables and southbound messages.
pub fn ipv6_halves(address: Ipv6Addr) -> (u64, u64) {
    let value = u128::from(address);
    ((value >> 64) as u64, value as u64)
}

/// The inverse of [`ipv6_halves`].
pub fn ipv6_from_halves(high: u64, low: u64) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(high) << 64 | u128::from(low))
}

/// Solicited-node multicast address (RFC 4291 section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    ipv6_from_halves(0xff02_0000_0000_0000, 0x0000_0001_ff00_0000 | ipv6_halves(address).1 & 0xff_ffff)
}

/// The address that an interface with this MAC configures for itself in a /64 (RFC 4862 with the modified
/// EUI-64 of RFC 4291). `None` for other prefix lengths.
pub fn eui64_address(prefix: &Ipv6Net, mac: MacAddr) -> Option<Ipv6Addr> {
    if prefix.prefix_len() != 64 {
        return None;
    }
    let [a, b, c, d, e, f] = mac.octets();
    let low = u64::from_be_bytes([a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]);
    Some(ipv6_from_halves(ipv6_halves(prefix.network()).0, low))
}

/// The link-local address that an interface with this MAC configures for itself (RFC 4291, appendix A).
#[must_use]
pub fn link_local_address(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    ipv6_from_halves(0xfe80_0000_0000_0000, u64::from_be_bytes([a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_with_host_bits_and_other_text_are_refused() {
        assert!(parse_prefix("10.0.0.0/24").is_ok());
        let error = parse_prefix("10.0.0.7/24").unwrap_err();
        assert_eq!(error.to_string(), "prefix 10.0.0.7/24 has host bits set; did you mean 10.0.0.0/24?");
        for text in ["", "10.0.0.0", "10.0.0.0/33", "2001:db8::/129", "x/8", "010.0.0.0/8", "10.0.0.0/08"] {
            assert!(matches!(parse_prefix(text), Err(AddressError::NotAPrefix(_))), "{text}");
        }
    }

    #[test]
    fn prefixes_overlap_if_one_contains_the_other() {
        let net = |text: &str| parse_prefix(text).unwrap();
        assert!(overlap(&net("10.0.0.0/8"), &net("10.1.0.0/16")));
        assert!(overlap(&net("10.1.0.0/16"), &net("10.0.0.0/8")));
        assert!(!overlap(&net("10.0.0.0/9"), &net("10.128.0.0/9")));
        assert!(!overlap(&net("0.0.0.0/0"), &net("::/0")));
    }

    #[test]
    fn addresses_that_no_interface_can_have_are_named() {
        for (address, kind) in [
            ("127.0.0.1", "a loopback address"),
            ("::1", "a loopback address"),
            ("0.0.0.0", "the unspecified address"),
            ("::", "the unspecified address"),
            ("224.0.0.1", "a multicast address"),
            ("ff02::1", "a multicast address"),
            ("255.255.255.255", "the broadcast address"),
            ("0.0.0.1", "an address of 0.0.0.0/8"),
        ] {
            let error = check_unicast(address.parse().unwrap()).unwrap_err();
            assert_eq!(error.to_string(), format!("{address} is {kind}, which no interface can have"));
        }
        for address in ["10.0.0.1", "2001:db8::1", "fe80::1"] {
            assert!(is_unicast(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn first_host_follows_the_network_address() {
        assert_eq!(first_host(&parse_prefix("10.0.0.0/30").unwrap()), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(first_host(&parse_prefix("2001:db8::/64").unwrap()), Some("2001:db8::1".parse().unwrap()));
        for too_long in ["10.0.0.0/31", "10.0.0.0/32", "2001:db8::/127", "2001:db8::/128"] {
            assert_eq!(first_host(&parse_prefix(too_long).unwrap()), None, "{too_long}");
        }
    }

    #[test]
    fn link_local_addresses_are_those_of_eui64_in_the_link_local_prefix() {
        let mac: MacAddr = "02:53:01:02:03:0a".parse().unwrap();
        let prefix: Ipv6Net = "fe80::/64".parse().unwrap();
        assert_eq!(Some(link_local_address(mac)), eui64_address(&prefix, mac));
    }

    #[test]
    fn eui64_and_solicited_node_addresses_are_derived() {
        let prefix: Ipv6Net = "2001:db8::/64".parse().unwrap();
        let mac: MacAddr = "02:00:00:00:00:0a".parse().unwrap();
        assert_eq!(eui64_address(&prefix, mac), Some("2001:db8::ff:fe00:a".parse().unwrap()));
        assert_eq!(
            solicited_node("2001:db8::ff:fe12:345a".parse().unwrap()),
            "ff02::1:ff12:345a".parse::<Ipv6Addr>().unwrap()
        );
    }

    #[test]
    fn addresses_that_no_interface_has_are_not_unicast() {
        for text in
            ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"]
        {
            assert!(!is_unicast(text.parse().unwrap()), "{text}");
        }
        assert!(is_unicast("10.0.0.1".parse().unwrap()) && is_unicast("fe80::1".parse().unwrap()));
    }
}
