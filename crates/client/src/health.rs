//! Health: the anomalies that nodes have found, and what is done about them.

use crate::{Client, Result};
use serde::{Deserialize, Serialize};
use sluice_types::{AnomalyClass, HealthPolicy, HealthPolicyPatch};

/// An anomaly that lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthFinding {
    /// Id of the gateway or host that it was found on.
    pub node: String,
    /// Name of that node.
    pub name: String,
    /// Kind of anomaly, such as `nic_fault`.
    pub class: String,
    /// What it is about: `node`, `interface NAME`, the id of an instance, or `peer VTEP`.
    pub subject: String,
    /// What was measured.
    pub evidence: String,
    /// What is likely.
    pub cause: String,
    /// When it was found, in milliseconds of the UNIX epoch; 0 if that is not known.
    pub since_ms: u64,
    /// The node does not report any more: this is what it had found before.
    #[serde(default)]
    pub stale: bool,
    /// When the node reported last, in milliseconds of the UNIX epoch; 0 if it never has.
    #[serde(default)]
    pub reported_ms: u64,
}

/// The anomalies of all nodes, or of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// By node, class and subject.
    pub items: Vec<HealthFinding>,
    /// Nodes that report.
    pub reporting: usize,
    /// Some node has more anomalies than it reports.
    pub others: bool,
}

/// What is done about one class of anomalies of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassPolicy {
    /// The class.
    pub class: AnomalyClass,
    /// The action and its limits.
    #[serde(flatten)]
    pub policy: HealthPolicy,
}

#[derive(Deserialize)]
struct ClassPolicies {
    items: Vec<ClassPolicy>,
}

impl Client {
    /// The anomalies of all nodes, or of the one with this id or name.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn health(&self, node: Option<&str>) -> Result<Health> {
        let query: Vec<_> = node.map(|node| ("node", node)).into_iter().collect();
        self.get_json("show the health of nodes", self.at("/v1/health", &query)).await
    }

    /// What is done about anomalies of hosts, by class.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn health_policies(&self) -> Result<Vec<ClassPolicy>> {
        let action = "list what is done about anomalies";
        let list: ClassPolicies = self.get_json(action, self.at("/v1/health/policies", &[])).await?;
        Ok(list.items)
    }

    /// Changes what is done about a class of anomalies of hosts.
    ///
    /// # Errors
    /// See [`Error`](crate::Error); [`Error::Refused`](crate::Error::Refused) with status 422 if the class has no policy.
    pub async fn set_health_policy(
        &self,
        class: AnomalyClass,
        patch: &HealthPolicyPatch,
    ) -> Result<ClassPolicy> {
        let action = format!("change what is done about {class}");
        self.patch(&action, &format!("/v1/health/policies/{class}"), patch).await
    }
}
