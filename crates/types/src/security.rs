//! What a rule of a security group matches: direction, address family, protocol and ports. The texts are those of
//! the API, the command line and the cloud file.

use crate::SecurityGroupId;
use ipnet::IpNet;
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The text is no direction, address family, protocol, range of ports or mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct MatchError {
    text: String,
    expected: &'static str,
}

pub(crate) fn not(text: &str, expected: &'static str) -> MatchError {
    MatchError { text: text.to_owned(), expected }
}

/// Defines an enum whose values have one text each.
macro_rules! texts {
    ($(#[$doc:meta])* $name:ident: $expected:literal, $($(#[$variant_doc:meta])* $variant:ident $text:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant),+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text),+
                })
            }
        }

        impl FromStr for $name {
            type Err = MatchError;
            fn from_str(text: &str) -> Result<Self, MatchError> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(not(text, $expected)),
                }
            }
        }
    };
}
pub(crate) use texts;

texts! {
    /// Direction of a connection, seen from the instance.
    Direction: "a direction: expected `ingress` or `egress`",
    /// To the instance.
    Ingress "ingress",
    /// From the instance.
    Egress "egress"
}

texts! {
    /// Version of IP.
    AddressFamily: "an address family: expected `ipv4` or `ipv6`",
    /// Version 4.
    Ipv4 "ipv4",
    /// Version 6.
    Ipv6 "ipv6"
}

/// Protocol above IP: one, or any. The text is a name (`any`, `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`), or the number of
/// a protocol that has none of these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(Option<u8>);

const NAMES: [(&str, Protocol); 6] = [
    ("any", Protocol::ANY),
    ("tcp", Protocol::TCP),
    ("udp", Protocol::UDP),
    ("sctp", Protocol::SCTP),
    ("icmp", Protocol::ICMP),
    ("icmpv6", Protocol::ICMPV6),
];

impl Protocol {
    /// Every protocol.
    pub const ANY: Self = Self(None);
    /// RFC 9293.
    pub const TCP: Self = Self(Some(6));
    /// RFC 768.
    pub const UDP: Self = Self(Some(17));
    /// RFC 9260.
    pub const SCTP: Self = Self(Some(132));
    /// RFC 792, of IPv4.
    pub const ICMP: Self = Self(Some(1));
    /// RFC 4443, of IPv6.
    pub const ICMPV6: Self = Self(Some(58));

    /// The protocol with this number of IANA's registry. 0 is no protocol: it is the header of hop-by-hop options.
    ///
    /// # Errors
    /// The number is 0.
    pub fn new(number: u8) -> Result<Self, MatchError> {
        if number == 0 { Err(not("0", EXPECTED_PROTOCOL)) } else { Ok(Self(Some(number))) }
    }

    /// Number in IANA's registry; `None` for any protocol.
    pub const fn number(self) -> Option<u8> {
        self.0
    }

    /// True if packets of this protocol have ports.
    pub fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::SCTP)
    }

    /// True if packets of this protocol have an ICMP type and code.
    pub fn is_icmp(self) -> bool {
        matches!(self, Self::ICMP | Self::ICMPV6)
    }
}

const EXPECTED_PROTOCOL: &str =
    "a protocol: expected `any`, `tcp`, `udp`, `sctp`, `icmp`, `icmpv6` or a number from 1 to 255";

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (NAMES.iter().find(|(_, named)| named == self), self.0) {
            (Some((name, _)), _) => f.write_str(name),
            (None, number) => number.unwrap_or_default().fmt(f),
        }
    }
}

impl FromStr for Protocol {
    type Err = MatchError;
    fn from_str(text: &str) -> Result<Self, MatchError> {
        if let Some((_, named)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(*named);
        }
        let number: u8 = number(text).ok_or_else(|| not(text, EXPECTED_PROTOCOL))?;
        Self::new(number)
    }
}

/// A decimal number without a sign and without zeros in front.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

/// A range of ports, both ends included: `80` or `8000-8099`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    min: u16,
    max: u16,
}

const EXPECTED_PORTS: &str =
    "a range of ports: expected a port like `80`, or two like `8000-8099`, the lower one first";

impl PortRange {
    /// # Errors
    /// `max` is lower than `min`.
    pub fn new(min: u16, max: u16) -> Result<Self, MatchError> {
        if min <= max { Ok(Self { min, max }) } else { Err(not(&format!("{min}-{max}"), EXPECTED_PORTS)) }
    }

    /// First port.
    pub const fn min(self) -> u16 {
        self.min
    }

    /// Last port.
    pub const fn max(self) -> u16 {
        self.max
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max { self.min.fmt(f) } else { write!(f, "{}-{}", self.min, self.max) }
    }
}

impl FromStr for PortRange {
    type Err = MatchError;
    fn from_str(text: &str) -> Result<Self, MatchError> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        match (number(min), number(max)) {
            (Some(min), Some(max)) if min <= max => Ok(Self { min, max }),
            _ => Err(not(text, EXPECTED_PORTS)),
        }
    }
}

/// A field of a rule that contradicts another one, or is invalid by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct RuleError {
    /// Name of the field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// The fields of a rule that depend on each other, to check them.
#[derive(Clone, Copy, Debug)]
pub struct RuleFields {
    /// Version of IP.
    pub family: AddressFamily,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Destination ports, if the rule has any.
    pub ports: Option<PortRange>,
    /// Type of ICMP or ICMPv6, if the rule has one.
    pub icmp_type: Option<u8>,
    /// Code of that type, if the rule has one.
    pub icmp_code: Option<u8>,
    /// Prefix at the other end, if the rule has one.
    pub remote: Option<IpNet>,
}

impl RuleFields {
    /// Checks that the fields fit together, and that the prefix has no host bits.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn check(&self) -> Result<(), RuleError> {
        let Self { family, protocol, ports, icmp_type, icmp_code, remote } = *self;
        let wrong = |field, problem: String| Err(RuleError { field, problem });
        if ports.is_some() && !protocol.has_ports() {
            return wrong("ports", format!("only tcp, udp and sctp have ports, not {protocol}"));
        }
        if icmp_type.is_some() && !protocol.is_icmp() {
            return wrong("icmp_type", format!("only icmp and icmpv6 have a type, not {protocol}"));
        }
        if icmp_code.is_some() && icmp_type.is_none() {
            return wrong("icmp_code", "a code needs the icmp_type that it belongs to".to_owned());
        }
        let other = match (protocol, family) {
            (Protocol::ICMP, AddressFamily::Ipv6) => Some(Protocol::ICMPV6),
            (Protocol::ICMPV6, AddressFamily::Ipv4) => Some(Protocol::ICMP),
            _ => None,
        };
        if let Some(other) = other {
            return wrong("protocol", format!("{family} has no {protocol}; did you mean {other}?"));
        }
        let Some(prefix) = remote else { return Ok(()) };
        let of_prefix = AddressFamily::of(&prefix);
        if of_prefix != family {
            let problem = format!("{prefix} is a prefix of {of_prefix}, but the rule is for {family}");
            return wrong("remote", problem);
        }
        let fixed = prefix.trunc();
        if fixed != prefix {
            return wrong("remote", format!("prefix {prefix} has host bits set; did you mean {fixed}?"));
        }
        Ok(())
    }
}

/// The connections that a security rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RuleMatch {
    /// Direction of the connections.
    pub direction: Direction,
    /// Version of IP.
    pub family: AddressFamily,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Destination ports, only of TCP, UDP and SCTP. `None` matches all.
    pub ports: Option<PortRange>,
    /// Only of ICMP and ICMPv6. `None` matches all.
    pub icmp_type: Option<u8>,
    /// Only with a type. `None` matches all.
    pub icmp_code: Option<u8>,
    /// The other end of the connections.
    pub remote: Remote,
}

/// The other end of the connections that a rule matches: the source of ingress, the destination of egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remote {
    /// Any address of the rule's family.
    Any,
    /// The addresses of a prefix.
    Prefix(IpNet),
    /// The addresses of the instances that have this group.
    Group(SecurityGroupId),
}

impl RuleMatch {
    /// Matches everything in a direction, with the addresses of one family.
    pub fn everything(direction: Direction, family: AddressFamily, remote: Remote) -> Self {
        Self {
            direction,
            family,
            protocol: Protocol::ANY,
            ports: None,
            icmp_type: None,
            icmp_code: None,
            remote,
        }
    }

    /// Checks that the fields fit together, and that the prefix has no host bits.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn check(&self) -> Result<(), RuleError> {
        let Self { direction: _, family, protocol, ports, icmp_type, icmp_code, remote } = *self;
        let remote = match remote {
            Remote::Prefix(prefix) => Some(prefix),
            Remote::Any | Remote::Group(_) => None,
        };
        RuleFields { family, protocol, ports, icmp_type, icmp_code, remote }.check()
    }
}

/// The text is the same for two rules that match the same: a prefix of length 0 is any address.
impl fmt::Display for RuleMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.direction, self.family, self.protocol)?;
        self.ports.map_or(Ok(()), |ports| write!(f, " ports {ports}"))?;
        self.icmp_type.map_or(Ok(()), |number| write!(f, " type {number}"))?;
        self.icmp_code.map_or(Ok(()), |number| write!(f, " code {number}"))?;
        f.write_str(if self.direction == Direction::Ingress { " from " } else { " to " })?;
        match self.remote {
            Remote::Prefix(prefix) if prefix.prefix_len() > 0 => prefix.fmt(f),
            Remote::Group(group) => group.fmt(f),
            Remote::Any | Remote::Prefix(_) => f.write_str("any"),
        }
    }
}

impl AddressFamily {
    /// The family of a prefix.
    pub fn of(prefix: &IpNet) -> Self {
        match prefix {
            IpNet::V4(_) => Self::Ipv4,
            IpNet::V6(_) => Self::Ipv6,
        }
    }
}

/// Decodes a text, or a number as it stands in YAML and JSON.
struct TextOrNumber<T>(&'static str, std::marker::PhantomData<T>);

impl<T: FromStr<Err = MatchError>> Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        let unsigned =
            u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))?;
        self.visit_u64(unsigned)
    }
}

impl Serialize for Protocol {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { to.collect_str(self) } else { self.0.serialize(to) }
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            return from.deserialize_any(TextOrNumber("a protocol", std::marker::PhantomData));
        }
        Option::<u8>::deserialize(from)?.map_or(Ok(Self::ANY), Self::new).map_err(D::Error::custom)
    }
}

impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { to.collect_str(self) } else { (self.min, self.max).serialize(to) }
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            return from.deserialize_any(TextOrNumber("a range of ports", std::marker::PhantomData));
        }
        let (min, max) = <(u16, u16)>::deserialize(from)?;
        Self::new(min, max).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_with_a_name_have_one_text() {
        for (name, protocol) in NAMES {
            assert_eq!(name.parse(), Ok(protocol));
            assert_eq!(protocol.to_string(), name);
        }
        assert_eq!("6".parse(), Ok(Protocol::TCP));
        assert_eq!("47".parse::<Protocol>().unwrap().to_string(), "47");
        for text in ["", "0", "256", "TCP", "06", "+6", "-1", "gre"] {
            let error = text.parse::<Protocol>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not a protocol: expected `any`")), "{error}");
        }
    }

    #[test]
    fn port_ranges_are_one_port_or_two_in_order() {
        for text in ["0", "80", "8000-8099", "0-65535"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
        }
        assert_eq!("80-80".parse::<PortRange>().unwrap().to_string(), "80");
        for text in ["", "-", "80-", "-80", "99-80", "65536", "1-65536", "080", "80,81", " 80", "1-2-3"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
        assert!(PortRange::new(2, 1).is_err());
    }

    #[test]
    fn json_has_texts_and_may_have_numbers() {
        assert_eq!(serde_json::to_string(&Protocol::TCP).unwrap(), "\"tcp\"");
        assert_eq!(serde_json::to_string(&PortRange::new(80, 80).unwrap()).unwrap(), "\"80\"");
        assert_eq!(serde_json::from_str::<Protocol>("17").unwrap(), Protocol::UDP);
        assert_eq!(serde_json::from_str::<PortRange>("443").unwrap().max(), 443);
        assert_eq!(serde_json::from_str::<Direction>("\"egress\"").unwrap(), Direction::Egress);
        assert_eq!(serde_json::from_str::<AddressFamily>("\"ipv6\"").unwrap(), AddressFamily::Ipv6);
        for bad in ["-1", "true", "null", "[80]", "1.5", "70000"] {
            assert!(serde_json::from_str::<PortRange>(bad).is_err(), "{bad}");
            assert!(serde_json::from_str::<Protocol>(bad).is_err(), "{bad}");
        }
    }
}
