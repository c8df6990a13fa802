//! Security groups in a cloud file.

use super::{FieldError, VpcSpec};
use crate::security::{NewSecurityRule, Remote};
use serde::{Deserialize, Serialize};
use sluice_types::{AddressFamily, Direction, PortRange, Protocol, RuleFields, SecurityGroupId};
use std::collections::HashSet;

/// Most security groups of an instance.
const MAX_GROUPS: usize = 5;

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

#[cfg(test)]
mod tests {
    use crate::CloudFile;

    fn parse(vpc: &str) -> Result<CloudFile, String> {
        let yaml = format!("vpcs: [{{name: v, tenant: t, {vpc}}}]");
        CloudFile::parse(&yaml).map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            format!("{error}{}", source.unwrap_or_default())
        })
    }

    fn rules(rules: &str) -> Result<CloudFile, String> {
        parse(&format!("security_groups: [{{name: web, rules: [{rules}]}}]"))
    }

    #[test]
    fn groups_and_rules_are_parsed() {
        let cloud = rules(
            "{direction: ingress, family: ipv4, protocol: tcp, ports: 443}, \
             {direction: ingress, family: ipv4, protocol: 17, ports: 5000-5010, remote: {prefix: 192.0.2.0/24}}, \
             {direction: ingress, family: ipv6, remote: {group: web}, description: members}, \
             {direction: egress, family: ipv6, protocol: icmpv6, icmp_type: 128, icmp_code: 0, remote: any}",
        )
        .unwrap();
        assert_eq!(cloud.len(), 6);
        let group = &cloud.vpcs[0].security_groups[0];
        let names: Vec<String> = group
            .rules
            .iter()
            .map(|rule| {
                crate::NewObject::name(&rule.request(Some(sluice_types::SecurityGroupId::new(7))).unwrap())
            })
            .collect();
        let expected = [
            "ingress ipv4 tcp ports 443 from any",
            "ingress ipv4 udp ports 5000-5010 from 192.0.2.0/24",
            "ingress ipv6 any from sg-7",
            "egress ipv6 icmpv6 type 128 code 0 to any",
        ];
        assert_eq!(names, expected);
        assert!(group.rules[2].request(None).is_none(), "its remote group does not exist yet");
        // Serializing and parsing again gives the same cloud.
        let text = serde_saphyr::to_string(&cloud).unwrap();
        assert_eq!(CloudFile::parse(&text).unwrap(), cloud);
    }

    #[test]
    fn wrong_rules_name_the_rule_and_the_field() {
        let first = "{direction: ingress, family: ipv4}";
        for (rule, expected) in [
            (
                "{direction: ingress, family: ipv4, ports: 80}",
                "`ports`: only tcp, udp and sctp have ports, not any",
            ),
            (
                "{direction: ingress, family: ipv4, protocol: icmpv6}",
                "`protocol`: ipv4 has no icmpv6; did you mean icmp?",
            ),
            (
                "{direction: ingress, family: ipv4, remote: {prefix: 10.0.0.1/8}}",
                "`remote`: prefix 10.0.0.1/8 has host bits set; did you mean 10.0.0.0/8?",
            ),
            ("{direction: ingress, family: ipv4, description: x}", "`rules`: the same as rule 1"),
        ] {
            let error = rules(&format!("{first}, {rule}")).unwrap_err();
            assert_eq!(error, format!("rule 2 of security group `web` in VPC `v`: {expected}"));
        }
        // Values that cannot be read are errors with line and column.
        for (rule, expected) in [
            ("{direction: in, family: ipv4}", "unknown variant `in`"),
            (
                "{direction: ingress, family: ipv4, protocol: tcp, ports: 90-80}",
                "`90-80` is not a range of ports",
            ),
            ("{direction: ingress, family: ipv4, port: 80}", "unknown field"),
        ] {
            let error = rules(rule).unwrap_err();
            assert!(error.starts_with("not a valid cloud file: ") && error.contains(expected), "{error}");
        }
        let twice = parse("security_groups: [{name: web}, {name: web}]").unwrap_err();
        assert_eq!(twice, "security group `web` is defined twice in VPC `v`");
    }

    #[test]
    fn groups_of_instances_are_listed_once_and_at_most_five() {
        let instance = |groups: &str| {
            parse(&format!("instances: [{{name: i, subnet: s, host: h, security_groups: {groups}}}]"))
        };
        let groups = |groups: &str| instance(groups).unwrap().vpcs[0].instances[0].security_groups.clone();
        assert_eq!(groups("[web]"), Some(vec!["web".to_owned()]));
        assert_eq!((groups("[]"), groups("null")), (Some(vec![]), None));
        let of = "instance `i` in VPC `v`: `security_groups`:";
        assert_eq!(instance("[a, b, a]").unwrap_err(), format!("{of} security group `a` is listed twice"));
        let six = instance("[a, b, c, d, e, f]").unwrap_err();
        assert_eq!(six, format!("{of} 6 security groups; an instance can have at most 5"));
    }
}
