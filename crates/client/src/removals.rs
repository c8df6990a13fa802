//! Removals: deletions that nodes may not have acknowledged.

use crate::{Client, Result};
use serde::{Deserialize, Serialize};

/// A node that may still have entries of a deleted object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AwaitedNode {
    /// Id of the gateway or host.
    pub node: String,
    /// Its name.
    pub name: String,
    /// True if the node has a stream to the controller.
    pub connected: bool,
    /// Time of its last message, in milliseconds of the UNIX epoch; 0 if there was none.
    pub last_seen_ms: u64,
    /// Last revision that it acknowledged.
    pub acknowledged_revision: u64,
    /// Entries that it could not write.
    pub failures: Vec<String>,
}

impl AwaitedNode {
    /// Why it is awaited, for messages to people. `revision` is that of the deletion.
    pub fn reason(&self, revision: u64) -> String {
        let Self { node, name, acknowledged_revision: acknowledged, .. } = self;
        if !self.connected {
            return match self.last_seen_ms {
                0 => format!("{node} (`{name}`) has never connected"),
                seen => {
                    format!("{node} (`{name}`) is not connected, last seen {} s ago", seconds_since(seen))
                }
            };
        }
        match self.failures.first() {
            Some(failure) => format!("{node} (`{name}`) could not write all entries: {failure}"),
            None => format!("{node} (`{name}`) has acknowledged revision {acknowledged} of {revision}"),
        }
    }
}

fn seconds_since(time_ms: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_secs().saturating_sub(time_ms / 1000)
}

/// What has become of the entries of a deleted object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Removal {
    /// Revision of the deletion.
    pub revision: u64,
    /// No node has entries of the object. Its addresses or its VNI can be used again.
    pub removed: bool,
    /// The nodes that may still have entries.
    pub waiting: Vec<AwaitedNode>,
}

/// A deletion that some node has not acknowledged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingRemoval {
    /// Revision of the deletion.
    pub revision: u64,
    /// Kind of the deleted object in words.
    pub kind: String,
    /// Name that it had; of a route, its prefix.
    pub name: String,
    /// Time of the deletion, in milliseconds of the UNIX epoch.
    pub deleted_ms: u64,
    /// The nodes that may still have entries.
    pub waiting: Vec<AwaitedNode>,
}

#[derive(Deserialize)]
struct Page {
    items: Vec<PendingRemoval>,
    #[serde(default)]
    next: Option<String>,
}

impl Client {
    /// What has become of the entries of the object that was deleted at this revision.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn removal(&self, revision: u64) -> Result<Removal> {
        let action = format!("show the removal of revision {revision}");
        self.get_json(&action, self.at(&format!("/v1/removals/{revision}"), &[])).await
    }

    /// Lists deletions that some node has not acknowledged, in order of revision, at most `limit`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn removals(&self, limit: Option<usize>) -> Result<Vec<PendingRemoval>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = vec![("limit", "1000")];
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Page = self.get_json("list removals", self.at("/v1/removals", &query)).await?;
            all.extend(page.items);
            let is_enough = limit.is_some_and(|limit| all.len() >= limit);
            match page.next {
                Some(next) if !is_enough => cursor = Some(next),
                _ => break,
            }
        }
        all.truncate(limit.unwrap_or(usize::MAX));
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awaited_nodes_are_named_with_the_reason() {
        let node = AwaitedNode {
            node: "gw-2".into(),
            name: "west".into(),
            connected: true,
            last_seen_ms: 1,
            acknowledged_revision: 7,
            failures: vec![],
        };
        assert_eq!(node.reason(9), "gw-2 (`west`) has acknowledged revision 7 of 9");
        let full = AwaitedNode { failures: vec!["route: the tables are full".into()], ..node.clone() };
        assert_eq!(full.reason(9), "gw-2 (`west`) could not write all entries: route: the tables are full");
        let gone = AwaitedNode { connected: false, ..node };
        let reason = gone.reason(9);
        assert!(
            reason.starts_with("gw-2 (`west`) is not connected, last seen ") && reason.ends_with(" s ago")
        );
        let never = AwaitedNode { last_seen_ms: 0, ..gone };
        assert_eq!(never.reason(9), "gw-2 (`west`) has never connected");
    }
}
