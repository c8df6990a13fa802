//! Checks that need no database: names, prefixes, addresses.

use crate::{Conflict, NewSubnet, Result, StoreError, Subnet};
use sluice_types::{
    HELLO_INTERVAL_MS_MAX, HELLO_INTERVAL_MS_MIN, IpNet, Ipv6Mode, MacAddr, ROUTER_MAC, check_unicast,
    first_host, overlap,
};
use std::net::IpAddr;

/// Largest number of vIPs of one family in a cluster.
pub const MAX_VIPS: usize = 63;
/// Largest number of DNS resolvers that DHCP offers.
pub const MAX_DNS: usize = 2;
/// Longest description in bytes.
pub const MAX_DESCRIPTION: usize = 255;
/// From the minimum MTU of IPv6 (RFC 8200) to the largest that fits into VXLAN over IPv6 if the underlay
/// carries 9216 bytes.
pub const MTU: std::ops::RangeInclusive<u16> = 1280..=9146;

/// Prefixes that no subnet may overlap.
const SPECIAL: [(&str, &str); 8] = [
    ("0.0.0.0/8", "\"this network\""),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("224.0.0.0/3", "multicast or reserved"),
    ("::/127", "unspecified or loopback"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast"),
];

/// The error for a value that a check refuses. `offender` names the field or value.
pub(crate) fn invalid(offender: impl ToString, message: impl Into<String>) -> StoreError {
    StoreError::Conflict(Conflict::Invalid { offender: offender.to_string(), message: message.into() })
}

/// Checks a name: 1 to 63 letters, digits, dots, underscores and hyphens, the first a letter or digit.
pub(crate) fn name(kind: &str, name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let begins_well = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if !begins_well || name.len() > 63 || !name.bytes().all(allowed) {
        return Err(invalid(
            name,
            format!(
                "`{name}` is not a valid {kind} name: expected 1 to 63 letters, digits, `.`, `_` or `-`, the \
                 first a letter or digit"
            ),
        ));
    }
    Ok(())
}

/// Checks a description: at most [`MAX_DESCRIPTION`] bytes, on one line.
pub(crate) fn description(text: &str) -> Result<()> {
    if text.len() > MAX_DESCRIPTION {
        let length = text.len();
        let message = format!("the description has {length} bytes; at most {MAX_DESCRIPTION} are possible");
        return Err(invalid("description", message));
    }
    if text.chars().any(char::is_control) {
        return Err(invalid(
            "description",
            "the description contains a line break or another control character",
        ));
    }
    Ok(())
}

pub(crate) fn mtu(mtu: u16) -> Result<()> {
    if !MTU.contains(&mtu) {
        return Err(invalid("mtu", format!("MTU {mtu} is not between {} and {}", MTU.start(), MTU.end())));
    }
    Ok(())
}

/// Checks a hello interval.
pub(crate) fn hello_interval(hello_interval_ms: u16) -> Result<()> {
    if (HELLO_INTERVAL_MS_MIN..=HELLO_INTERVAL_MS_MAX).contains(&hello_interval_ms) {
        return Ok(());
    }
    let range = format!("between {HELLO_INTERVAL_MS_MIN} and {HELLO_INTERVAL_MS_MAX} ms");
    Err(invalid("hello_interval_ms", format!("a hello interval of {hello_interval_ms} ms is not {range}")))
}

/// Checks that an interface may have an address.
pub(crate) fn unicast(address: IpAddr) -> Result<()> {
    check_unicast(address).map_err(|error| invalid(address, error.to_string()))
}

/// Checks an underlay address: a VTEP or a vIP.
pub(crate) fn underlay(address: IpAddr) -> Result<()> {
    unicast(address)?;
    if address.to_canonical() != address {
        return Err(invalid(address, format!("{address} is an IPv4 address mapped into IPv6")));
    }
    let host = IpNet::from(address);
    match special(&host, |special| special.contains(&host))? {
        Some((_, what)) => {
            Err(invalid(address, format!("{address} is {what}: packets cannot be routed to it")))
        }
        None => Ok(()),
    }
}

/// The first of the [`SPECIAL`] ranges for which `touches` is true.
fn special(net: &IpNet, touches: impl Fn(&IpNet) -> bool) -> Result<Option<(IpNet, &'static str)>> {
    for (range, what) in SPECIAL {
        let range: IpNet = range.parse().map_err(|_| invalid(net, range))?;
        if touches(&range) {
            return Ok(Some((range, what)));
        }
    }
    Ok(None)
}

/// Checks the destination of a route: a prefix that is not inside a special range.
pub(crate) fn destination(net: IpNet) -> Result<()> {
    prefix(net)?;
    match special(&net, |special| special.contains(&net))? {
        Some((range, what)) => {
            Err(invalid(net, format!("{net} is {what} ({range}): packets cannot be routed to it")))
        }
        None => Ok(()),
    }
}

pub(crate) fn vips(vips: &[IpAddr]) -> Result<()> {
    if vips.is_empty() {
        return Err(invalid("vips", "a cluster needs at least one vIP"));
    }
    for family in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
        let count = vips.iter().filter(|vip| family(vip)).count();
        if count > MAX_VIPS {
            return Err(invalid(
                "vips",
                format!("{count} vIPs of one family; at most {MAX_VIPS} are possible"),
            ));
        }
    }
    for (index, vip) in vips.iter().enumerate() {
        underlay(*vip)?;
        if vips[..index].contains(vip) {
            return Err(invalid(vip, format!("vIP {vip} is listed twice")));
        }
    }
    Ok(())
}

pub(crate) fn prefix(net: IpNet) -> Result<()> {
    if net.trunc() != net {
        return Err(invalid(net, format!("prefix {net} has host bits set; did you mean {}?", net.trunc())));
    }
    Ok(())
}

/// Checks a prefix: without host bits, and without an address of the [`SPECIAL`] ranges.
pub(crate) fn unicast_prefix(net: IpNet) -> Result<()> {
    prefix(net)?;
    match special(&net, |special| overlap(&net, special))? {
        Some((range, what)) => Err(invalid(net, format!("prefix {net} contains {what} addresses ({range})"))),
        None => Ok(()),
    }
}

/// Checks the prefixes, the mode of IPv6 addresses and the resolvers of a new subnet.
pub(crate) fn subnet(new: &NewSubnet) -> Result<()> {
    let (v4, v6, dns) = (new.ipv4, new.ipv6, &new.dns);
    if v4.is_none() && v6.is_none() {
        return Err(invalid("ipv4", "a subnet needs an IPv4 or an IPv6 prefix"));
    }
    for net in v4.map(IpNet::V4).into_iter().chain(v6.map(IpNet::V6)) {
        unicast_prefix(net)?;
        if first_host(&net).is_none() {
            return Err(invalid(net, format!("prefix {net} is too small for a router and an instance")));
        }
    }
    match (new.ipv6_mode, v6) {
        (Some(mode), None) => {
            return Err(invalid(
                "ipv6_mode",
                format!("mode {mode} has no use: the subnet has no IPv6 prefix"),
            ));
        }
        (Some(Ipv6Mode::Slaac), Some(net)) if net.prefix_len() != Ipv6Mode::SLAAC_PREFIX_BITS => {
            let message =
                format!("hosts derive addresses only in a /64, and the prefix is {net}: use mode dhcp");
            return Err(invalid("ipv6_mode", message));
        }
        _ => {}
    }
    if dns.len() > MAX_DNS {
        return Err(invalid("dns", format!("{} resolvers; at most {MAX_DNS} are possible", dns.len())));
    }
    dns.iter().try_for_each(|resolver| unicast((*resolver).into()))
}

/// The prefixes of a subnet, at most one of each family.
pub(crate) fn prefixes(subnet: &Subnet) -> impl Iterator<Item = IpNet> + use<> {
    subnet.ipv4.map(IpNet::V4).into_iter().chain(subnet.ipv6.map(IpNet::V6))
}

/// The first overlap between the prefixes `given` and those of other subnets.
pub(crate) fn first_overlap<'a>(
    given: &[IpNet],
    others: impl IntoIterator<Item = &'a Subnet>,
) -> Option<(IpNet, IpNet, &'a Subnet)> {
    for other in others {
        for existing in prefixes(other) {
            if let Some(net) = given.iter().find(|net| overlap(net, &existing)) {
                return Some((*net, existing, other));
            }
        }
    }
    None
}

pub(crate) fn mac(mac: MacAddr) -> Result<()> {
    if !mac.is_unicast() {
        return Err(invalid(
            mac,
            format!("MAC {mac} is not a unicast address: it is zero or a group address"),
        ));
    }
    if mac == ROUTER_MAC {
        return Err(invalid(mac, format!("MAC {mac} is reserved for the router of every VPC")));
    }
    Ok(())
}

/// The first and the last address of a prefix that instances can have.
pub(crate) fn usable(net: &IpNet) -> (u128, u128) {
    let network = number(net.network());
    match net {
        IpNet::V4(v4) => (network + 2, u128::from(u32::from(v4.broadcast())) - 1),
        IpNet::V6(v6) => (network + 2, u128::from(v6.broadcast())),
    }
}

/// An address as a number.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

/// Checks that an instance of the subnet may have the address.
pub(crate) fn address(subnet: &Subnet, address: IpAddr) -> Result<()> {
    let net = match address {
        IpAddr::V4(_) => subnet.ipv4.map(IpNet::V4),
        IpAddr::V6(_) => subnet.ipv6.map(IpNet::V6),
    };
    let Some(net) = net else {
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        return Err(Conflict::NoSuchFamily {
            subnet: subnet.name.clone(),
            family,
            address: address.to_string(),
        }
        .into());
    };
    if !net.contains(&address) {
        return Err(Conflict::OutsideSubnet { address: address.to_string(), prefix: net.to_string() }.into());
    }
    let (first, last) = usable(&net);
    let role = match number(address) {
        n if n + 1 == first => "router's",
        n if n < first => "network",
        n if n > last => "broadcast",
        _ => return Ok(()),
    };
    Err(Conflict::ReservedAddress { address: address.to_string(), prefix: net.to_string(), role }.into())
}

/// The differences between an existing object and a request with the same name.
#[derive(Default)]
pub(crate) struct Difference(Vec<String>);

impl Difference {
    /// Compares one field, as text.
    pub fn field(mut self, name: &str, existing: impl ToString, given: impl ToString) -> Self {
        let (existing, given) = (existing.to_string(), given.to_string());
        if existing != given {
            self.0.push(format!("{name} is {existing}, not {given}"));
        }
        self
    }

    /// Compares a field that can be absent in the object or the request.
    pub fn optional<T: ToString>(self, name: &str, existing: Option<T>, given: Option<T>) -> Self {
        let text = |value: Option<T>| value.map_or_else(|| "none".to_owned(), |v| v.to_string());
        self.field(name, text(existing), text(given))
    }

    /// Compares a field that is allocated if the request omits it.
    pub fn given<T: ToString>(self, name: &str, existing: Option<T>, given: Option<T>) -> Self {
        match given {
            Some(_) => self.optional(name, existing, given),
            None => self,
        }
    }

    /// Fails if there is a difference.
    pub fn conflict(self, kind: &'static str, name: &str) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Conflict::NameTaken { kind, name: name.to_owned(), difference: self.0.join(", ") }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_1_to_63_allowed_characters() {
        for good in ["a", "VM-1.eu_2", &"x".repeat(63)] {
            assert!(name("tenant", good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "ü", "a/b", "a,b", ".a", "-a", "_a", &"x".repeat(64)] {
            assert!(name("tenant", bad).is_err(), "{bad}");
        }
    }

    fn new_subnet(ipv4: Option<&str>, ipv6: Option<&str>, ipv6_mode: Option<Ipv6Mode>) -> NewSubnet {
        NewSubnet {
            name: "a".to_owned(),
            vpc: sluice_types::VpcId::new(1),
            ipv4: ipv4.map(|net| net.parse().unwrap()),
            ipv6: ipv6.map(|net| net.parse().unwrap()),
            ipv6_mode,
            dns: vec![],
        }
    }

    #[test]
    fn subnet_prefixes_are_large_enough_and_have_no_special_addresses() {
        let check = |v4: &str| subnet(&new_subnet(Some(v4), None, None));
        assert!(check("10.0.0.0/30").is_ok());
        for bad in ["10.0.0.0/31", "10.0.0.1/24", "0.0.0.0/0", "127.1.0.0/16", "224.0.0.0/24", "240.0.0.0/8"]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
        for bad in ["2001:db8::/127", "::/0", "fe80::/64", "::ffff:a00:0/112", "ff02::/16", "2001:db8::1/64"]
        {
            assert!(subnet(&new_subnet(None, Some(bad), None)).is_err(), "{bad}");
        }
        assert!(subnet(&new_subnet(None, None, None)).is_err());
    }

    #[test]
    fn addresses_are_derived_only_in_a_prefix_of_64_bits() {
        let check = |v6, mode| subnet(&new_subnet(Some("10.0.0.0/24"), v6, mode)).map_err(|e| e.to_string());
        for mode in [None, Some(Ipv6Mode::Dhcp)] {
            assert_eq!(check(Some("2001:db8::/112"), mode), Ok(()));
        }
        assert_eq!(check(Some("2001:db8::/64"), Some(Ipv6Mode::Slaac)), Ok(()));
        let error = check(Some("2001:db8::/112"), Some(Ipv6Mode::Slaac)).unwrap_err();
        assert!(error.contains("2001:db8::/112") && error.contains("/64"), "{error}");
        for mode in [Ipv6Mode::Dhcp, Ipv6Mode::Slaac] {
            let error = check(None, Some(mode)).unwrap_err();
            assert!(error.contains("no IPv6 prefix"), "{error}");
        }
    }

    #[test]
    fn usable_addresses_exclude_network_router_and_broadcast() {
        let range = |net: &str| usable(&net.parse().unwrap());
        assert_eq!(range("10.0.0.0/30"), (0x0a00_0002, 0x0a00_0002));
        assert_eq!(range("10.0.0.0/24"), (0x0a00_0002, 0x0a00_00fe));
        assert_eq!(range("fd00::/126"), (0xfd << 120 | 2, 0xfd << 120 | 3));
    }
}
