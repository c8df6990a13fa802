//! Converts what the ports of a host may send and receive.

use super::{Malformed, Result, address};
use crate::entries::{Policy, PolicyKey, SecurityRule};
use crate::proto::{self, security_rule};
use prost::Message;
use sluice_types::{
    AddressFamily, Direction, IpNet, PortRange, Protocol, Remote, RuleMatch, SecurityGroupId, SecurityRuleId,
    Vni,
};
use std::collections::BTreeMap;

fn identity(value: u32) -> Result<u16> {
    u16::try_from(value).ok().filter(|identity| *identity != 0).ok_or(Malformed::Identity(value))
}

impl From<PolicyKey> for proto::PolicyKey {
    fn from(key: PolicyKey) -> Self {
        Self { vni: key.vni.get(), identity: key.identity.into() }
    }
}

impl TryFrom<proto::PolicyKey> for PolicyKey {
    type Error = Malformed;
    fn try_from(key: proto::PolicyKey) -> Result<Self> {
        Ok(Self { vni: Vni::new(key.vni)?, identity: identity(key.identity)? })
    }
}

impl Policy {
    /// Size of its message in bytes: below 2 MiB for every policy that the controller compiles. The rules of a set of 5
    /// groups are at most 5000 with 60 bytes each, and each of at most 65,535 identities is in at most 5 groups.
    pub fn message_bytes(&self) -> usize {
        proto::Policy::from(self.clone()).encoded_len()
    }
}

impl From<Policy> for proto::Policy {
    fn from(policy: Policy) -> Self {
        let group = |(id, identities): (SecurityGroupId, Vec<u16>)| proto::RemoteGroup {
            id: id.get(),
            identities: identities.into_iter().map(Into::into).collect(),
        };
        Self {
            key: Some(policy.key.into()),
            rules: policy.rules.into_iter().map(Into::into).collect(),
            groups: policy.groups.into_iter().map(group).collect(),
        }
    }
}

impl TryFrom<proto::Policy> for Policy {
    type Error = Malformed;
    fn try_from(message: proto::Policy) -> Result<Self> {
        let key = message.key.ok_or(Malformed::Identity(0))?.try_into()?;
        let rules =
            message.rules.into_iter().map(TryInto::try_into).collect::<Result<Vec<SecurityRule>>>()?;
        if !rules.is_sorted_by(|one, next| one.id < next.id) {
            return Err(Malformed::Disorder("policy"));
        }
        let groups = read_groups(message.groups)?;
        for SecurityRule { id, matches } in &rules {
            if let Remote::Group(group) = matches.remote
                && !groups.contains_key(&group)
            {
                return Err(Malformed::RemoteGroup(id.get()));
            }
        }
        Ok(Self { key, rules, groups })
    }
}

fn read_groups(messages: Vec<proto::RemoteGroup>) -> Result<BTreeMap<SecurityGroupId, Vec<u16>>> {
    if !messages.is_sorted_by(|one, next| one.id < next.id) {
        return Err(Malformed::Disorder("policy"));
    }
    let mut groups = BTreeMap::new();
    for proto::RemoteGroup { id, identities } in messages {
        let identities = identities.into_iter().map(identity).collect::<Result<Vec<_>>>()?;
        if !identities.is_sorted_by(|one, next| one < next) {
            return Err(Malformed::Disorder("security group"));
        }
        groups.insert(group_id(id)?, identities);
    }
    Ok(groups)
}

fn group_id(id: u64) -> Result<SecurityGroupId> {
    let is_id = id != 0 && i64::try_from(id).is_ok();
    if is_id { Ok(SecurityGroupId::new(id)) } else { Err(Malformed::Id(id, "security group")) }
}

impl From<SecurityRule> for proto::SecurityRule {
    fn from(rule: SecurityRule) -> Self {
        use security_rule::{IcmpType, PortRange, Remote as To, Service};
        let RuleMatch { direction, family, protocol, ports, icmp_type, icmp_code, remote } = rule.matches;
        let icmp = |kind: u8| IcmpType { r#type: kind.into(), code: icmp_code.map(Into::into) };
        let ports = ports.map(|ports| PortRange { first: ports.min().into(), last: ports.max().into() });
        Self {
            id: rule.id.get(),
            egress: direction == Direction::Egress,
            ipv6: family == AddressFamily::Ipv6,
            protocol: protocol.number().unwrap_or(0).into(),
            service: ports.map(Service::Ports).or(icmp_type.map(icmp).map(Service::Icmp)),
            remote: match remote {
                Remote::Any => None,
                Remote::Prefix(prefix) => Some(To::Prefix(proto::Prefix {
                    address: Some(prefix.network().into()),
                    length: prefix.prefix_len().into(),
                })),
                Remote::Group(group) => Some(To::Group(group.get())),
            },
        }
    }
}

impl TryFrom<proto::SecurityRule> for SecurityRule {
    type Error = Malformed;
    fn try_from(rule: proto::SecurityRule) -> Result<Self> {
        let id = rule.id;
        if id == 0 || i64::try_from(id).is_err() {
            return Err(Malformed::Id(id, "security rule"));
        }
        let matches = read_match(rule)?;
        matches.check().map_err(|error| Malformed::Rule(id, error.problem))?;
        Ok(Self { id: SecurityRuleId::new(id), matches })
    }
}

/// The fields of a rule, each in its range; they may still contradict each other.
fn read_match(rule: proto::SecurityRule) -> Result<RuleMatch> {
    use security_rule::Service;
    let wrong = |field: &str, value: u32| Malformed::Rule(rule.id, format!("{value} is not a {field}"));
    let byte = |field: &str, value: u32| u8::try_from(value).map_err(|_| wrong(field, value));
    let port = |value: u32| u16::try_from(value).map_err(|_| wrong("port", value));
    let protocol = match byte("protocol", rule.protocol)? {
        0 => Protocol::ANY,
        number => Protocol::new(number).map_err(|error| Malformed::Rule(rule.id, error.to_string()))?,
    };
    let (ports, icmp) = match rule.service {
        None => (None, None),
        Some(Service::Ports(range)) => {
            let ports = PortRange::new(port(range.first)?, port(range.last)?);
            (Some(ports.map_err(|error| Malformed::Rule(rule.id, error.to_string()))?), None)
        }
        Some(Service::Icmp(icmp)) => (None, Some(icmp)),
    };
    let icmp_code = icmp.and_then(|icmp| icmp.code).map(|code| byte("code", code)).transpose()?;
    Ok(RuleMatch {
        direction: if rule.egress { Direction::Egress } else { Direction::Ingress },
        family: if rule.ipv6 { AddressFamily::Ipv6 } else { AddressFamily::Ipv4 },
        protocol,
        ports,
        icmp_type: icmp.map(|icmp| byte("type", icmp.r#type)).transpose()?,
        icmp_code,
        remote: read_remote(rule.remote)?,
    })
}

fn read_remote(remote: Option<security_rule::Remote>) -> Result<Remote> {
    Ok(match remote {
        None => Remote::Any,
        Some(security_rule::Remote::Group(id)) => Remote::Group(group_id(id)?),
        Some(security_rule::Remote::Prefix(prefix)) => {
            let address = address(prefix.address, "security rule")?;
            let bad = || Malformed::Prefix(address, prefix.length);
            let length = u8::try_from(prefix.length).map_err(|_| bad())?;
            Remote::Prefix(IpNet::new(address, length).map_err(|_| bad())?)
        }
    })
}
