//! Calls about unconfirmed entries: what nodes have and the database lost.

use crate::{Client, Instance, Result};
use serde::{Deserialize, Serialize};
use sluice_types::{InstanceId, IpNet, MacAddr, MeterId, SecurityGroupId, Vni};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// An entry that nodes keep, and that the database does not have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnconfirmedEntry {
    /// `instance`, `endpoint`, `network`, `route`, `public-prefix` or `host`.
    pub kind: String,
    /// VNI of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// Id of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Name of the instance, after that of its VPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Addresses of the instance or host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Prefix of the route, or public addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<IpNet>,
    /// Whether public addresses are mapped by NPTv6 (RFC 6296).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nptv6: Option<bool>,
    /// Meter of public addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<MeterId>,
    /// MAC address of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Names of the nodes that have the entry.
    pub nodes: Vec<String>,
}

/// The unconfirmed entries of all nodes that are connected to a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnconfirmedList {
    /// Each entry once.
    pub items: Vec<UnconfirmedEntry>,
    /// Number of entries of each node, by name.
    pub totals: BTreeMap<String, u64>,
}

/// Which unconfirmed entries to remove: those of an instance; of an address in a network; of a network; of a host.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UnconfirmedSelection {
    /// An instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// A network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// An address in the network, or without `vni` the VTEP of a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
}

/// What is removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnconfirmedRemoval {
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// Number of entries, on all nodes together.
    pub entries: usize,
}

impl Client {
    /// Lists the entries that nodes have and the database does not.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn unconfirmed(&self) -> Result<UnconfirmedList> {
        self.get_json("list unconfirmed entries", self.at("/v1/unconfirmed", &[])).await
    }

    /// Has the nodes remove unconfirmed entries.
    ///
    /// # Errors
    /// See [`crate::Error`]; [`crate::Error::Refused`] with status 404 if no connected node has one.
    pub async fn remove_unconfirmed(&self, selection: &UnconfirmedSelection) -> Result<UnconfirmedRemoval> {
        Ok(self.post("remove unconfirmed entries", "/v1/unconfirmed/remove", selection).await?.1)
    }

    /// Makes an unconfirmed instance an object again, under `name` or its own name. Nodes do not know its security
    /// groups: `None` is the group `default`.
    ///
    /// # Errors
    /// See [`crate::Error`].
    pub async fn adopt_unconfirmed(
        &self,
        instance: InstanceId,
        name: Option<&str>,
        security_groups: Option<&[SecurityGroupId]>,
    ) -> Result<Instance> {
        let mut body = serde_json::json!({"instance": instance, "name": name});
        if let Some(groups) = security_groups {
            body["security_groups"] = serde_json::json!(groups);
        }
        Ok(self.post(&format!("adopt {instance}"), "/v1/unconfirmed/adopt", &body).await?.1)
    }
}
