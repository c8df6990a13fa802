//! Security groups, their rules, and the sets of groups that instances have.

use serde::{Deserialize, Serialize};
use sluice_types::{RuleMatch, SecurityGroupId, SecurityRuleId, VpcId};

/// Name of the group that each VPC is created with. It cannot be deleted or renamed.
pub const DEFAULT_GROUP: &str = "default";
/// Most security groups of a VPC, with the default one.
pub const MAX_GROUPS: u64 = 250;
/// Most rules of a security group.
pub const MAX_RULES: u64 = 1000;
/// Most sets of security groups of a VPC that instances may have. A policy contains the sets that have a group of its rules, so
/// this bounds policies, and the tables of a host with many of them.
pub const MAX_SETS: u16 = 4096;
/// Most security groups of an instance.
pub const MAX_GROUPS_OF_INSTANCE: usize = 5;
/// Most rules of all groups of an instance together.
pub const MAX_RULES_OF_INSTANCE: u64 = 10_000;

// The limits of groups and rules imply the limit of an instance's rules, so no request has to be checked against it.
const _: () = assert!(MAX_RULES * MAX_GROUPS_OF_INSTANCE as u64 <= MAX_RULES_OF_INSTANCE);

/// A security group: rules for the ports of the instances that have it. Names are unique in the VPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityGroup {
    pub id: SecurityGroupId,
    pub name: String,
    pub vpc: VpcId,
    pub description: String,
    pub revision: u64,
}

/// A rule of a security group. It permits what it matches; what no rule permits is dropped. Rules do not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityRule {
    pub id: SecurityRuleId,
    pub group: SecurityGroupId,
    /// That of the group.
    pub vpc: VpcId,
    pub matches: RuleMatch,
    pub description: String,
    pub revision: u64,
}

/// A set of security groups that instances of a VPC have, and its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSet {
    pub vpc: VpcId,
    /// Stands for the set in this VPC, as long as all its groups exist. 0 stands for no groups and is never assigned.
    pub identity: u16,
    /// In ascending order.
    pub groups: Vec<SecurityGroupId>,
}

/// A request for a security group.
#[derive(Clone, Debug)]
pub struct NewSecurityGroup {
    pub name: String,
    pub vpc: VpcId,
    /// `None` is an empty text for a new group, and any text of an existing one.
    pub description: Option<String>,
}

/// New values of a security group; fields that are `None` keep their values.
#[derive(Clone, Debug, Default)]
pub struct SecurityGroupUpdate {
    pub name: Option<String>,
    pub description: Option<String>,
}

/// A request for a security rule.
#[derive(Clone, Debug)]
pub struct NewSecurityRule {
    pub group: SecurityGroupId,
    pub matches: RuleMatch,
    pub description: String,
}
