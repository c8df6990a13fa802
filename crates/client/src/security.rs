//! Security groups: the objects of the API, and the requests that create them.

use crate::new::{difference, difference_if_given};
use crate::{EntryFailure, NewObject, Resource};
use serde::{Deserialize, Serialize};
use sluice_types::{
    AddressFamily, Direction, IpNet, PortRange, Protocol, SecurityGroupId, SecurityRuleId, VpcId,
};
use std::fmt::Display;

/// Name of the group that each VPC has from the start.
pub const DEFAULT_GROUP: &str = "default";

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
    pub(crate) fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }

    pub(crate) fn prefix(&self) -> Option<IpNet> {
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

impl<G: Display> Display for Remote<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::Group(group) => group.fmt(f),
        }
    }
}
