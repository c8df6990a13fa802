//! Security groups: the objects of the API, the requests that create them, and their form in a cloud file.

use crate::new::{difference, difference_if_given};
use crate::{EntryFailure, FieldError, NewObject, Resource, VpcSpec};
use serde::{Deserialize, Serialize};
use sluice_types::{
    AddressFamily, Direction, IpNet, PortRange, Protocol, RuleFields, SecurityGroupId, SecurityRuleId, VpcId,
};
use std::collections::HashSet;
use std::fmt::Display;

/// Name of the group that each VPC has from the start.
pub const DEFAULT_GROUP: &str = "default";
/// Most security groups of an instance.
const MAX_GROUPS: usize = 5;

/// A security group: rules for the ports of the instances that have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecurityGroup {
    /// Identifier, such as `sg-7`.
    pub id: SecurityGroupId,
    /// Name, unique in the VPC.
    pub name: String,
    /// VPC that contains the object.
    pub vpc: VpcId,
    /// Text for people.
    pub description: String,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A rule of a security group. It permits what it matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecurityRule {
    /// Identifier, such as `sgr-7`.
    pub id: SecurityRuleId,
    /// Group that contains the rule.
    pub group: SecurityGroupId,
    /// VPC of the group.
    pub vpc: VpcId,
    /// Direction of the connections, seen from the instance.
    pub direction: Direction,
    /// Address family.
    pub family: AddressFamily,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Destination ports; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// Type of ICMP or ICMPv6; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// Code of the type; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_code: Option<u8>,
    /// The other end of the connections.
    pub remote: Remote<SecurityGroupId>,
    /// Text for people.
    pub description: String,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// The other end of the connections that a rule matches: the source of ingress, the destination of egress. `G` is how a
/// group is given: by its id, or in a cloud file by name or id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remote<G> {
    /// Any address of the rule's family.
    #[default]
    Any,
    /// The addresses of a prefix.
    Prefix(IpNet),
    /// The instances that have this group.
    Group(G),
}

impl<G> Remote<G> {
    fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }

    fn prefix(&self) -> Option<IpNet> {
        match self {
            Self::Prefix(prefix) => Some(*prefix),
            Self::Any | Self::Group(_) => None,
        }
    }
}

crate::model::resource!(
    SecurityGroup,
    SecurityGroupId,
    "security-groups",
    "security group",
    ", or say --vpc",
    true,
    |it| it.name.clone()
);
crate::model::resource!(SecurityRule, SecurityRuleId, "security-rules", "security rule", "", false, |it| it
    .request()
    .name());

impl SecurityRule {
    /// The request that creates this rule.
    fn request(&self) -> NewSecurityRule {
        let Self { direction, family, protocol, ports, icmp_type, icmp_code, .. } = *self;
        let (remote, description) = (self.remote.clone(), self.description.clone());
        NewSecurityRule { direction, family, protocol, ports, icmp_type, icmp_code, remote, description }
    }
}

/// Request to create a security group. The new group has two rules: egress to any address, of IPv4 and of IPv6.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewSecurityGroup {
    /// Name, unique in the VPC.
    pub name: String,
    /// At most 255 bytes, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl NewObject for NewSecurityGroup {
    type Object = SecurityGroup;
    type Parent = VpcId;
    fn path(vpc: VpcId) -> String {
        format!("/v1/vpcs/{vpc}/security-groups")
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &SecurityGroup) -> Option<String> {
        difference_if_given("description", self.description.as_ref(), Some(&found.description))
    }
}

/// Request to create a security rule. The API refuses a rule that the group has already.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewSecurityRule {
    /// Direction of the connections, seen from the instance.
    pub direction: Direction,
    /// Address family.
    pub family: AddressFamily,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Destination ports of TCP, UDP or SCTP; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// Type of ICMP or ICMPv6; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// Code of the type; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_code: Option<u8>,
    /// The other end of the connections.
    pub remote: Remote<SecurityGroupId>,
    /// At most 255 bytes, on one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

impl NewObject for NewSecurityRule {
    type Object = SecurityRule;
    type Parent = SecurityGroupId;
    fn path(group: SecurityGroupId) -> String {
        format!("/v1/security-groups/{group}/rules")
    }
    /// What the rule matches: the same for two rules that match the same.
    fn name(&self) -> String {
        let mut name = format!("{} {} {}", self.direction, self.family, self.protocol);
        name.extend(self.ports.map(|ports| format!(" ports {ports}")));
        name.extend(self.icmp_type.map(|number| format!(" type {number}")));
        name.extend(self.icmp_code.map(|number| format!(" code {number}")));
        name.push_str(if self.direction == Direction::Ingress { " from " } else { " to " });
        match &self.remote {
            Remote::Prefix(prefix) if prefix.prefix_len() > 0 => name.push_str(&prefix.to_string()),
            Remote::Group(group) => name.push_str(&group.to_string()),
            Remote::Any | Remote::Prefix(_) => name.push_str("any"),
        }
        name
    }
    fn difference(&self, found: &SecurityRule) -> Option<String> {
        difference("rule", &self.name(), &found.name())
    }
}

/// A security group in a cloud file. The group `default` of the VPC can be listed to give it further rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecurityGroupSpec {
    /// Name, unique in the VPC.
    pub name: String,
    /// Text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Rules of the group, in addition to those that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<SecurityRuleSpec>,
}

fn any_protocol() -> Protocol {
    Protocol::ANY
}

/// A rule of a security group in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecurityRuleSpec {
    /// `ingress` or `egress`.
    pub direction: Direction,
    /// `ipv4` or `ipv6`.
    pub family: AddressFamily,
    /// `any` if omitted.
    #[serde(default = "any_protocol")]
    pub protocol: Protocol,
    /// Destination ports of `tcp`, `udp` or `sctp`; all if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// Type of `icmp` or `icmpv6`; all if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// Code of the type; all if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_code: Option<u8>,
    /// `any` if omitted; `{prefix: PREFIX}`; or `{group: NAME}`, with the name or id of a group of the same VPC.
    #[serde(default, skip_serializing_if = "Remote::is_any")]
    pub remote: Remote<String>,
    /// Text for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

impl SecurityRuleSpec {
    /// The request that creates the rule, with the remote group as the caller found it.
    pub(crate) fn request(&self, group: Option<SecurityGroupId>) -> Option<NewSecurityRule> {
        let remote = match &self.remote {
            Remote::Any => Remote::Any,
            Remote::Prefix(prefix) => Remote::Prefix(*prefix),
            Remote::Group(_) => Remote::Group(group?),
        };
        let Self { direction, family, protocol, ports, icmp_type, icmp_code, .. } = *self;
        let description = self.description.clone();
        Some(NewSecurityRule {
            direction,
            family,
            protocol,
            ports,
            icmp_type,
            icmp_code,
            remote,
            description,
        })
    }
}

/// The object of an error about a rule; `index` counts from 0.
pub(crate) fn rule_object(vpc: &str, group: &str, index: usize) -> String {
    format!("rule {} of security group `{group}` in VPC `{vpc}`", index + 1)
}

/// Checks what needs no other information than the file: the fields of rules, and the lists of groups of instances.
pub(crate) fn check(vpc: &VpcSpec) -> Result<(), FieldError> {
    for group in &vpc.security_groups {
        let mut seen: Vec<&SecurityRuleSpec> = Vec::new();
        for (index, rule) in group.rules.iter().enumerate() {
            let object = || rule_object(&vpc.name, &group.name, index);
            let SecurityRuleSpec { family, protocol, ports, icmp_type, icmp_code, .. } = *rule;
            let remote = rule.remote.prefix();
            let fields = RuleFields { family, protocol, ports, icmp_type, icmp_code, remote };
            fields.check().map_err(|error| FieldError {
                object: object(),
                field: error.field,
                problem: error.problem,
            })?;
            let is_same = |other: &&SecurityRuleSpec| {
                let described =
                    SecurityRuleSpec { description: rule.description.clone(), ..(*other).clone() };
                described == *rule
            };
            if let Some(other) = seen.iter().position(is_same) {
                let problem = format!("the same as rule {}", other + 1);
                return Err(FieldError { object: object(), field: "rules", problem });
            }
            seen.push(rule);
        }
    }
    for instance in &vpc.instances {
        let groups = instance.security_groups.as_deref().unwrap_or_default();
        let mut seen: HashSet<&str> = HashSet::new();
        let twice = groups.iter().find(|group| !seen.insert(group));
        let problem = match twice {
            Some(group) => format!("security group `{group}` is listed twice"),
            None if groups.len() > MAX_GROUPS => {
                format!("{} security groups; an instance can have at most {MAX_GROUPS}", groups.len())
            }
            None => continue,
        };
        let object = format!("instance `{}` in VPC `{}`", instance.name, vpc.name);
        return Err(FieldError { object, field: "security_groups", problem });
    }
    Ok(())
}

impl<G: Display> Display for Remote<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::Group(group) => group.fmt(f),
        }
    }
}
