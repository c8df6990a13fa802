//! The health of the nodes that are connected to this replica, as they report it, and the events that follow from changes. An
//! event is recorded once, whatever replica the node reports to: a new stream begins with what the events say is raised.

use super::node::southbound_id;
use super::{Push, count};
use sluice_southbound::{Finding, HealthReport};
use sluice_store::{Event, NewEvent, NodeId, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Kinds of events.
const RAISED: &str = "health_raised";
const CLEARED: &str = "health_cleared";
/// Shortest time between two reports of a node that lead to events. A node repeats its report.
const INTERVAL: Duration = Duration::from_millis(500);
/// Most events of a report; the others follow with the next one.
const EVENTS_MAX: usize = 64;
/// Newest events of a node in which its raised findings are looked for.
const LOOKED_AT: u32 = 1000;
/// Events of a node at once, and the time after which it may have one more: findings that come and go do not displace
/// the events of others from the log.
const BURST: u64 = 256;
const REGAIN: Duration = Duration::from_secs(10);

/// Class and subject of a finding.
type Key = (String, String);

#[derive(Debug, Default)]
struct Known {
    report: HealthReport,
    /// The findings with an event of their begin and none of their end; `None`: not read yet.
    announced: Option<BTreeSet<Key>>,
    /// When events were recorded last.
    at: Option<Instant>,
}

/// The events that a node may have now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    events: u64,
    /// Since when the next event is regained.
    since: Instant,
}

impl Bucket {
    fn full(now: Instant) -> Self {
        Self { events: BURST, since: now }
    }

    /// The bucket at a later time.
    fn at(self, now: Instant) -> Self {
        let passed = now.saturating_duration_since(self.since);
        let gained = passed.as_secs() / REGAIN.as_secs();
        if self.events.saturating_add(gained) >= BURST {
            return Self::full(now);
        }
        // What has passed of the next one is kept.
        let rest = passed.saturating_sub(Duration::from_secs(gained * REGAIN.as_secs()));
        Self { events: self.events + gained, since: now.checked_sub(rest).unwrap_or(now) }
    }

    /// Takes an event, if there is one.
    fn take(&mut self, now: Instant) -> bool {
        *self = self.at(now);
        let has_one = self.events > 0;
        self.events -= u64::from(has_one);
        has_one
    }
}

#[derive(Debug, Default)]
struct States {
    known: BTreeMap<NodeId, Known>,
    /// Also of nodes whose stream has ended: another stream brings no events.
    buckets: BTreeMap<NodeId, Bucket>,
}

/// The newest reports of all nodes that are connected to this replica.
#[derive(Debug, Default)]
pub struct HealthStates(Mutex<States>);

impl HealthStates {
    fn lock(&self) -> MutexGuard<'_, States> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest report of each node, in order of nodes.
    pub fn all(&self) -> Vec<(NodeId, HealthReport)> {
        self.lock().known.iter().map(|(node, known)| (*node, known.report.clone())).collect()
    }

    /// A node's stream has ended. It may continue with another replica.
    pub fn forget(&self, node: NodeId) {
        let now = Instant::now();
        let mut states = self.lock();
        states.known.remove(&node);
        states.buckets.retain(|_, bucket| bucket.at(now).events < BURST);
    }

    /// Whether a node may have an event now, which it then has had.
    fn takes_event(&self, node: NodeId, now: Instant) -> bool {
        self.lock().buckets.entry(node).or_insert_with(|| Bucket::full(now)).take(now)
    }

    /// Replaces the report of a node. Returns what is announced, unless no event is due; the inner `None`: not known.
    fn put(&self, node: NodeId, report: HealthReport, now: Instant) -> Option<Option<BTreeSet<Key>>> {
        let mut states = self.lock();
        let known = states.known.entry(node).or_default();
        known.report = report;
        let is_due = known.at.is_none_or(|at| now.saturating_duration_since(at) >= INTERVAL);
        is_due.then(|| {
            known.at = Some(now);
            known.announced.clone()
        })
    }

    /// Notes what is announced, `None` if the events must be read again, unless the stream has ended.
    fn set_announced(&self, node: NodeId, announced: Option<BTreeSet<Key>>) {
        if let Some(known) = self.lock().known.get_mut(&node) {
            known.announced = announced;
        }
    }
}

fn key(finding: &Finding) -> Key {
    (finding.class.to_string(), finding.subject.to_string())
}

/// What events in order of id say is raised.
fn raised(events: &[Event]) -> BTreeSet<Key> {
    let mut open = BTreeSet::new();
    for event in events {
        let text = |field: &str| event.details[field].as_str().unwrap_or_default().to_owned();
        let key = (text("class"), text("subject"));
        match event.kind.as_str() {
            RAISED => {
                open.insert(key);
            }
            CLEARED => {
                open.remove(&key);
            }
            _ => {}
        }
    }
    open
}

/// The events that lead from what is announced to a report, with the finding that each begins or ends. Of findings with
/// the same class and subject, the first one counts.
fn changes(
    node: NodeId,
    name: &str,
    announced: &BTreeSet<Key>,
    report: &HealthReport,
) -> Vec<(Key, NewEvent)> {
    let event = |kind: &str, text: String, details| NewEvent {
        kind: kind.to_owned(),
        subject: southbound_id(node).id(),
        text,
        details,
    };
    let mut present = BTreeMap::new();
    for finding in &report.findings {
        present.entry(key(finding)).or_insert(finding);
    }
    let begun = present.iter().filter(|(key, _)| !announced.contains(*key)).map(|(key, finding)| {
        let Finding { class, subject, since_ms, evidence, cause } = finding;
        let text = format!("{name}: {class} of {subject}: {evidence}. Likely cause: {cause}.");
        let details = serde_json::json!({
            "class": class.to_string(),
            "subject": subject.to_string(),
            "since_ms": since_ms,
            "evidence": evidence,
            "cause": cause,
        });
        (key.clone(), event(RAISED, text, details))
    });
    // A finding that a long report does not have may last.
    let gone = announced.iter().filter(|key| !report.others && !present.contains_key(*key));
    let ended = gone.map(|(class, subject)| {
        let text = format!("{name}: {class} of {subject} has ended.");
        let details = serde_json::json!({ "class": class, "subject": subject });
        ((class.clone(), subject.clone()), event(CLEARED, text, details))
    });
    begun.chain(ended).take(EVENTS_MAX).collect()
}

/// Takes the report of a node, and records what has changed as events. Those that are too many now follow with a later
/// report.
///
/// # Errors
/// Errors of the store; the next report is compared again.
pub(super) async fn note_health(push: &Push, node: NodeId, report: HealthReport) -> Result<(), StoreError> {
    let now = Instant::now();
    let Some(announced) = push.health.put(node, report.clone(), now) else { return Ok(()) };
    let mut announced = match announced {
        Some(announced) => announced,
        None => {
            let subject = southbound_id(node).id();
            raised(&push.db.store.events(Some(&subject), None, LOOKED_AT).await?)
        }
    };
    let name = push.members(|members| members.name(node));
    for (key, event) in changes(node, &name, &announced, &report) {
        if !push.health.takes_event(node, now) {
            break;
        }
        tracing::info!(kind = event.kind, text = event.text, "health");
        if let Err(error) = push.db.store.add_event(event).await {
            // Whether it was recorded is not known: the events say so.
            push.health.set_announced(node, None);
            return Err(error);
        }
        count(&push.counters.health_events);
        if !announced.remove(&key) {
            announced.insert(key);
        }
    }
    push.health.set_announced(node, Some(announced));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{CompiledClusters, Model};
    use crate::database::Database;
    use sluice_southbound::HealthSubject;
    use sluice_types::{AnomalyClass, HostId};
    use std::sync::Arc;

    const NODE: NodeId = NodeId::Host(HostId::new(3));

    fn report(classes: &[AnomalyClass]) -> HealthReport {
        let finding = |class: &AnomalyClass| Finding {
            class: *class,
            subject: HealthSubject::Interface("eth0".to_owned()),
            since_ms: 5,
            evidence: "12 errors".to_owned(),
            cause: "the cable is faulty".to_owned(),
        };
        HealthReport { findings: classes.iter().map(finding).collect(), ..HealthReport::default() }
    }

    async fn push() -> Push {
        let db = Arc::new(Database::new(sluice_store::open("sqlite::memory:").await.unwrap()));
        Push::new(db, Arc::new(CompiledClusters::new(Model::Zeta, 1)))
    }

    async fn kinds(push: &Push) -> Vec<String> {
        let events = push.db.store.events(Some("host-3"), None, 100).await.unwrap();
        events.into_iter().map(|event| event.kind).collect()
    }

    /// Catches an event for each report, or for each stream.
    #[tokio::test]
    async fn each_change_is_one_event_over_any_number_of_streams() {
        let push = push().await;
        let fault = report(&[AnomalyClass::NicFault]);
        note_health(&push, NODE, report(&[])).await.unwrap();
        assert!(kinds(&push).await.is_empty());
        for _ in 0..3 {
            // Another stream, which may be of another replica.
            push.health.forget(NODE);
            note_health(&push, NODE, fault.clone()).await.unwrap();
            assert_eq!(kinds(&push).await, ["health_raised"]);
            assert_eq!(push.health.all(), [(NODE, fault.clone())]);
        }
        let event = push.db.store.events(None, None, 1).await.unwrap().remove(0);
        assert!(
            event.text.contains("nic_fault of interface eth0: 12 errors. Likely cause: the cable is faulty.")
        );
        // It ended while the node had no stream.
        push.health.forget(NODE);
        assert!(push.health.all().is_empty());
        note_health(&push, NODE, report(&[])).await.unwrap();
        push.health.forget(NODE);
        note_health(&push, NODE, report(&[])).await.unwrap();
        assert_eq!(kinds(&push).await, ["health_raised", "health_cleared"]);
    }

    /// Catches a node that fills the event log.
    #[tokio::test]
    async fn reports_in_quick_succession_lead_to_events_later() {
        let push = push().await;
        for _ in 0..50 {
            note_health(&push, NODE, report(&[AnomalyClass::NicFault])).await.unwrap();
            note_health(&push, NODE, report(&[])).await.unwrap();
        }
        assert!(kinds(&push).await.len() < 20, "{:?}", kinds(&push).await);
    }

    #[test]
    fn a_node_has_a_limited_number_of_events() {
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut bucket = Bucket::full(begin);
        let mut taken = |seconds: u64| (0..1000).filter(|_| bucket.take(after(seconds))).count();
        assert_eq!([taken(0), taken(9), taken(10), taken(19), taken(25), taken(30)], [256, 0, 1, 0, 1, 1]);
        assert_eq!(taken(1_000_000), 256);
        // Another stream brings none.
        let states = HealthStates::default();
        assert_eq!((0..1000).filter(|_| states.takes_event(NODE, begin)).count(), 256);
        states.forget(NODE);
        assert!(!states.takes_event(NODE, begin));
    }

    /// Catches a finding that begins twice in a report, and then counts as ended.
    #[test]
    fn findings_of_the_same_class_and_subject_are_one() {
        let double = report(&[AnomalyClass::NicFault, AnomalyClass::NicFault]);
        assert_eq!(changes(NODE, "host-a", &BTreeSet::new(), &double).len(), 1);
    }

    #[test]
    fn a_finding_that_a_long_report_does_not_have_lasts() {
        let announced = BTreeSet::from([("nic_fault".to_owned(), "interface eth0".to_owned())]);
        let long = HealthReport { others: true, ..report(&[AnomalyClass::VmUnresponsive]) };
        let changed = changes(NODE, "host-a", &announced, &long);
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].1.kind, RAISED);
        let short = changes(NODE, "host-a", &announced, &report(&[]));
        assert_eq!(short[0].1.text, "host-a: nic_fault of interface eth0 has ended.");
    }
}
