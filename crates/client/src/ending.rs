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
        write!(f, "{} sessions on {} hosts would end", self.sessions, self.hosts.len())?;
        for UnansweredHost { host, reason } in &self.unanswered {
            write!(f, "\n{host} did not answer: {reason}")?;
        }
        Ok(())
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
