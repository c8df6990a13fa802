//! Sessions that would end if a rule of a security group were deleted.

use crate::{Client, Result};
use serde::{Deserialize, Serialize};
use sluice_types::{HostId, InstanceId, SecurityRuleId};
use std::fmt::Display;

/// The sessions that would end if a rule did not exist.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndingSessions {
    /// The rule.
    pub rule: SecurityRuleId,
    /// Sessions of all hosts that answered.
    pub sessions: u64,
    /// The hosts that answered.
    pub hosts: Vec<HostEndingSessions>,
    /// The hosts with instances of the VPC that did not answer.
    pub unanswered: Vec<UnansweredHost>,
}

/// The sessions of a host that would end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostEndingSessions {
    /// The host.
    pub host: HostId,
    /// Its sessions.
    pub sessions: u64,
    /// Its instances with such sessions; at most 1,024.
    pub instances: Vec<InstanceEndingSessions>,
}

/// The sessions of an instance that would end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceEndingSessions {
    /// The instance.
    pub instance: InstanceId,
    /// Its sessions.
    pub sessions: u64,
}

/// A host that did not answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnansweredHost {
    /// The host.
    pub host: HostId,
    /// Why it did not answer.
    pub reason: String,
}

impl EndingSessions {
    /// A row for each instance.
    pub fn instances(&self) -> impl Iterator<Item = serde_json::Value> + '_ {
        self.hosts.iter().flat_map(|at| {
            at.instances.iter().map(
                |of| serde_json::json!({"host": at.host, "instance": of.instance, "sessions": of.sessions}),
            )
        })
    }
}

impl Display for EndingSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let with_sessions = self.hosts.iter().filter(|host| host.sessions > 0).count();
        let asked = self.hosts.len() + self.unanswered.len();
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        write!(
            f,
            "{} session{} on {with_sessions} of {asked} host{} would end",
            self.sessions,
            plural(self.sessions),
            plural(asked as u64)
        )
    }
}

impl Client {
    /// The sessions that would end if a rule were deleted. Nothing changes.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn ending_sessions(&self, rule: SecurityRuleId) -> Result<EndingSessions> {
        let action = format!("find the sessions of security rule {rule}");
        let path = format!("/v1/security-rules/{rule}/ending-sessions");
        self.get_json(&action, self.at(&path, &[])).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_such_sessions_are_only_counted_as_asked() {
        let of = |host, sessions| HostEndingSessions { host: HostId::new(host), sessions, instances: vec![] };
        let mut ending = EndingSessions {
            rule: SecurityRuleId::new(1),
            sessions: 2,
            hosts: vec![of(1, 0), of(2, 2), of(3, 0)],
            unanswered: vec![],
        };
        assert_eq!(ending.to_string(), "2 sessions on 1 of 3 hosts would end");
        ending.unanswered.push(UnansweredHost { host: HostId::new(4), reason: String::new() });
        assert_eq!(ending.to_string(), "2 sessions on 1 of 4 hosts would end");
        let one = EndingSessions { sessions: 1, hosts: vec![of(2, 1)], unanswered: vec![], ..ending };
        assert_eq!(one.to_string(), "1 session on 1 of 1 host would end");
    }
}
