//! Reports of health in the database, so that each replica shows all nodes: those that are connected to it as they report, and
//! the others as their replicas have stored them.
//!
//! A report is stored when its findings, or the nodes that are not reached, change. That the node still reports is noted in one
//! statement for all nodes, every [`TOUCH`]. This file changes with what is stored.

use super::Push;
use crate::clock::now_ms;
use serde::{Deserialize, Serialize};
use sluice_southbound::{Finding, HealthReport, LinkHealth};
use sluice_store::{NodeId, StoreError, StoredHealth};
use sluice_types::AnomalyClass;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nodes report every 30 s at the latest. From this time without a report on, what a node has found says nothing about the
/// present.
pub const STALE: Duration = Duration::from_secs(90);
/// Interval at which changes are stored.
const SAVE: Duration = Duration::from_secs(1);
/// Interval at which it is noted which nodes still report.
const TOUCH: Duration = Duration::from_secs(15);
/// Most reports in a transaction.
const BATCH: usize = 256;

/// A finding as it is stored and shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedFinding {
    /// Kind of anomaly.
    pub class: AnomalyClass,
    /// What it is about.
    pub subject: String,
    /// When it was found, by the clock of the node.
    pub since_ms: u64,
    /// What was measured.
    pub evidence: String,
    /// What is likely.
    pub cause: String,
}

/// A node that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedNode {
    /// Its VTEP.
    pub peer: IpAddr,
    /// No probe was answered lately.
    pub is_lost: bool,
}

/// A report as it is stored and shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// The findings.
    pub findings: Vec<ReportedFinding>,
    /// There are more findings.
    pub others: bool,
    /// The nodes that this one watches.
    pub watched: Vec<WatchedNode>,
}

impl From<&Finding> for ReportedFinding {
    fn from(finding: &Finding) -> Self {
        let Finding { class, subject, since_ms, evidence, cause } = finding.clone();
        Self { class, subject: subject.to_string(), since_ms, evidence, cause }
    }
}

impl From<&HealthReport> for Reported {
    fn from(report: &HealthReport) -> Self {
        let watched =
            |link: &LinkHealth| WatchedNode { peer: link.peer, is_lost: link.loss_permille == 1000 };
        Self {
            findings: report.findings.iter().map(Into::into).collect(),
            others: report.others,
            watched: report.links.iter().map(watched).collect(),
        }
    }
}

/// The newest report of a node, to any replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// The node.
    pub node: NodeId,
    /// When it reported last, in milliseconds of the UNIX epoch; of a node that is connected to another replica, some seconds less.
    pub reported_ms: u64,
    /// The node is connected to a replica and reports. Otherwise the report may not be true any more.
    pub is_fresh: bool,
    /// The report.
    pub report: Reported,
}

/// A stored report. `None` if another version has written what this one cannot read.
fn of_stored(stored: StoredHealth, now_ms: u64) -> Option<NodeHealth> {
    let StoredHealth { node, connected, reported_ms, report, .. } = stored;
    let age_ms = u128::from(now_ms.saturating_sub(reported_ms));
    match serde_json::from_str(&report) {
        Ok(report) => {
            let is_fresh = connected && age_ms <= STALE.as_millis();
            Some(NodeHealth { node, reported_ms, is_fresh, report })
        }
        Err(error) => {
            tracing::warn!(?node, %error, "the stored health of a node cannot be read");
            None
        }
    }
}

impl Push {
    /// The newest report of each node that has ever reported, in order of nodes.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn node_health(&self) -> Result<Vec<NodeHealth>, StoreError> {
        let now_ms = now_ms();
        let stored = self.db.store.health().await?;
        let stored = stored.into_iter().filter_map(|stored| of_stored(stored, now_ms));
        let mut all: BTreeMap<NodeId, NodeHealth> = stored.map(|health| (health.node, health)).collect();
        for live in self.health.live(Instant::now()) {
            let health = NodeHealth {
                node: live.node,
                reported_ms: live.received_ms,
                is_fresh: live.is_fresh,
                report: Reported::from(&live.report),
            };
            all.insert(live.node, health);
        }
        Ok(all.into_values().collect())
    }
}

/// Stores what nodes report to this replica, until the future is dropped. `writer` identifies this process, with 63 bits.
pub async fn save_health(push: Arc<Push>, writer: u64) {
    let mut touched = (Instant::now(), now_ms());
    let mut failing = false;
    loop {
        tokio::time::sleep(SAVE).await;
        let result = save_round(&push, writer, &mut touched).await;
        if let Err(error) = &result {
            push.db.count_error();
            if !failing {
                tracing::warn!(error = error as &dyn std::error::Error, "cannot store the health of nodes");
            }
        }
        failing = result.is_err();
    }
}

/// `touched` is when it was last noted which nodes still report, by both clocks.
async fn save_round(push: &Push, writer: u64, touched: &mut (Instant, u64)) -> Result<(), StoreError> {
    let (store, states) = (&push.db.store, &push.health);
    let ended = states.take_ended();
    if !ended.is_empty()
        && let Err(error) = store.end_health(writer, &ended).await
    {
        states.put_back_ended(ended);
        return Err(error);
    }
    let row = |(node, reported_ms, report): (NodeId, u64, Reported)| -> Result<_, StoreError> {
        let report = serde_json::to_string(&report);
        let report = report.map_err(|error| StoreError::Corrupt(format!("a report of health: {error}")))?;
        Ok(StoredHealth { node, writer, connected: true, reported_ms, report })
    };
    let rows: Vec<StoredHealth> =
        states.take_unsaved().into_iter().map(row).collect::<Result<_, StoreError>>()?;
    for (index, batch) in rows.chunks(BATCH).enumerate() {
        if let Err(error) = store.save_health(batch).await {
            states.mark_unsaved(rows[index * BATCH..].iter().map(|row| row.node));
            return Err(error);
        }
    }
    if touched.0.elapsed() >= TOUCH {
        let (now, now_ms) = (Instant::now(), now_ms());
        let nodes = states.reported_since(touched.0);
        if !nodes.is_empty() {
            // They have reported since then: a report that is not stored yet came later.
            store.touch_health(writer, touched.1, &nodes).await?;
        }
        *touched = (now, now_ms);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{CompiledClusters, Model};
    use crate::database::Database;
    use crate::push::health::note_health;
    use sluice_southbound::HealthSubject;
    use sluice_store::{NewHost, Store};
    use sluice_types::HostId;

    fn replica(store: &Arc<Store>) -> Push {
        let db = Arc::new(Database::new(store.clone()));
        Push::new(db, Arc::new(CompiledClusters::new(Model::Zeta, 1)))
    }

    fn report(evidence: &str) -> HealthReport {
        let finding = Finding {
            class: AnomalyClass::NicFault,
            subject: HealthSubject::Interface("eth0".to_owned()),
            since_ms: 5,
            evidence: evidence.to_owned(),
            cause: "the cable is faulty".to_owned(),
        };
        let peer = [192, 0, 2, 1].into();
        let link = LinkHealth { peer, gateway: true, loss_permille: 1000, rtt_us: 9 };
        HealthReport { findings: vec![finding], links: vec![link], ..HealthReport::default() }
    }

    async fn host(store: &Store) -> HostId {
        let new = NewHost { name: "host-a".into(), vtep: [192, 0, 2, 7].into(), agent: true };
        store.create_host(new).await.unwrap().into_inner().id
    }

    async fn save(push: &Push, writer: u64) {
        save_round(push, writer, &mut (Instant::now(), 0)).await.unwrap();
    }

    /// Catches a replica that shows its own nodes only, and a node that counts as connected after the end of its stream.
    #[tokio::test]
    async fn each_replica_shows_the_nodes_of_the_others() {
        let store = sluice_store::open("sqlite::memory:").await.unwrap();
        let node = NodeId::Host(host(&store).await);
        let (a, b) = (replica(&store), replica(&store));
        note_health(&a, node, report("12 errors")).await.unwrap();
        assert_eq!(b.node_health().await.unwrap(), []);
        save(&a, 1).await;
        let seen = b.node_health().await.unwrap();
        assert_eq!((seen.len(), seen[0].is_fresh), (1, true));
        assert_eq!(seen[0].report, Reported::from(&report("12 errors")));
        assert!(seen[0].report.watched[0].is_lost);
        assert_eq!(a.node_health().await.unwrap(), seen);
        a.health.forget(node);
        save(&a, 1).await;
        for push in [&a, &b] {
            let stale = push.node_health().await.unwrap();
            assert_eq!((stale[0].is_fresh, stale[0].reported_ms), (false, seen[0].reported_ms));
            assert_eq!(stale[0].report, seen[0].report);
        }
        // It comes to the other replica, and the first one is late with the end.
        note_health(&b, node, report("13 errors")).await.unwrap();
        save(&b, 2).await;
        a.health.put_back_ended(vec![(node, u64::MAX >> 1)]);
        save(&a, 1).await;
        let seen = a.node_health().await.unwrap();
        assert!(seen[0].is_fresh && seen[0].report == Reported::from(&report("13 errors")), "{seen:?}");
    }

    /// Catches a replica that died, whose nodes count as connected for ever.
    #[test]
    fn a_report_that_is_not_renewed_is_stale() {
        let stored = |connected, reported_ms, report: &str| StoredHealth {
            node: NodeId::Host(HostId::new(1)),
            writer: 1,
            connected,
            reported_ms,
            report: report.to_owned(),
        };
        let text = serde_json::to_string(&Reported::default()).unwrap();
        let stale_ms = u64::try_from(STALE.as_millis()).unwrap();
        let is_fresh =
            |connected, now_ms| of_stored(stored(connected, 1000, &text), now_ms).unwrap().is_fresh;
        assert!(is_fresh(true, 1000 + stale_ms) && is_fresh(true, 0));
        assert!(!is_fresh(true, 1001 + stale_ms) && !is_fresh(false, 1000));
        assert_eq!(of_stored(stored(true, 1000, "{"), 1000), None);
    }
}
