//! Health: the anomalies that nodes have found.

use crate::{Client, Result};
use serde::{Deserialize, Serialize};

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
}

/// The anomalies of all nodes, or of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// By node, class and subject.
    pub items: Vec<HealthFinding>,
    /// Nodes that have reported.
    pub reporting: usize,
    /// Some node has more anomalies than it reports.
    pub others: bool,
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
}
