//! The health of the nodes that are connected to this replica, as they report it, and the events that follow from changes. An
//! event is recorded once, whatever replica the node reports to: a new stream begins with what the events say is raised.

use super::health_store::{Reported, STALE};
use super::node::southbound_id;
use super::{Push, count};
use crate::clock::now_ms;
use sluice_southbound::{Finding, HealthReport, HealthSubject};
use sluice_store::{Event, NewEvent, NodeId, StoreError};
use sluice_types::HostId;
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

#[derive(Debug)]
struct Known {
    report: HealthReport,
    /// The findings with an event of their begin and none of their end; `None`: not read yet.
    announced: Option<BTreeSet<Key>>,
    /// When events were recorded last.
    at: Option<Instant>,
    /// When the newest report came, by the monotonic and by the wall clock.
    received: Instant,
    received_ms: u64,
    /// Since when the reports of this stream have each finding: clocks of nodes may be wrong.
    since: BTreeMap<Key, Instant>,
    /// The report differs from the stored one in more than its time.
    is_unsaved: bool,
}

impl Known {
    /// The first report of a stream replaces what is stored of the node.
    fn new(now: Instant) -> Self {
        Self {
            report: HealthReport::default(),
            announced: None,
            at: None,
            received: now,
            received_ms: 0,
            since: BTreeMap::new(),
            is_unsaved: true,
        }
    }

    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.received) <= STALE
    }

    fn take(&mut self, report: HealthReport, now: Instant) {
        self.is_unsaved |= Reported::from(&report) != Reported::from(&self.report);
        let since = |finding: &Finding| {
            let key = key(finding);
            let since = self.since.get(&key).copied().unwrap_or(now);
            (key, since)
        };
        self.since = report.findings.iter().map(since).collect();
        (self.report, self.received, self.received_ms) = (report, now, now_ms());
    }
}

/// A report of a node that has a stream to this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveReport {
    /// The node.
    pub node: NodeId,
    /// When it reported last, in milliseconds of the UNIX epoch.
    pub received_ms: u64,
    /// Whether that is not longer ago than nodes need for two reports.
    pub is_fresh: bool,
    /// The report.
    pub report: HealthReport,
}

/// A finding about a host as a whole, or about one of its interfaces to the underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastingFinding {
    /// The host, which has a stream to this replica.
    pub host: HostId,
    /// What it has found.
    pub finding: Finding,
    /// Since when it reports that to this replica.
    pub lasts: Duration,
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
    /// Nodes whose stream has ended, with the time of their last report, until that is stored.
    ended: BTreeMap<NodeId, u64>,
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
        if let Some(known) = states.known.remove(&node) {
            states.ended.insert(node, known.received_ms);
        }
        states.buckets.retain(|_, bucket| bucket.at(now).events < BURST);
    }

    /// Whether a node may have an event now, which it then has had.
    fn takes_event(&self, node: NodeId, now: Instant) -> bool {
        self.lock().buckets.entry(node).or_insert_with(|| Bucket::full(now)).take(now)
    }

    /// Replaces the report of a node. Returns what is announced, unless no event is due; the inner `None`: not known.
    fn put(&self, node: NodeId, report: HealthReport, now: Instant) -> Option<Option<BTreeSet<Key>>> {
        let mut states = self.lock();
        states.ended.remove(&node);
        let known = states.known.entry(node).or_insert_with(|| Known::new(now));
        known.take(report, now);
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

    /// Takes a report that a node has sent at a time.
    #[cfg(test)]
    pub fn report(&self, node: NodeId, report: HealthReport, at: Instant) {
        self.put(node, report, at);
    }

    /// The newest report of each node that has a stream to this replica, in order of nodes.
    pub fn live(&self, now: Instant) -> Vec<LiveReport> {
        let live = |(node, known): (&NodeId, &Known)| LiveReport {
            node: *node,
            received_ms: known.received_ms,
            is_fresh: known.is_fresh(now),
            report: known.report.clone(),
        };
        self.lock().known.iter().map(live).collect()
    }

    /// What hosts with a fresh report have found about themselves, in order of hosts.
    pub fn lasting(&self, now: Instant) -> Vec<LastingFinding> {
        let states = self.lock();
        let mut lasting = Vec::new();
        for (node, known) in states.known.iter().filter(|(_, known)| known.is_fresh(now)) {
            let NodeId::Host(host) = *node else { continue };
            let findings = known.report.findings.iter();
            let of_host =
                findings.filter(|it| matches!(it.subject, HealthSubject::Node | HealthSubject::Interface(_)));
            lasting.extend(of_host.map(|finding| {
                let since = known.since.get(&key(finding)).copied().unwrap_or(now);
                let lasts = now.saturating_duration_since(since);
                LastingFinding { host, finding: finding.clone(), lasts }
            }));
        }
        lasting
    }

    /// The nodes whose report is to be stored, with when it came. They count as stored.
    pub(super) fn take_unsaved(&self) -> Vec<(NodeId, u64, Reported)> {
        let mut states = self.lock();
        let unsaved = states.known.iter_mut().filter(|(_, known)| known.is_unsaved);
        let take = |(node, known): (&NodeId, &mut Known)| {
            known.is_unsaved = false;
            (*node, known.received_ms, Reported::from(&known.report))
        };
        unsaved.map(take).collect()
    }

    /// The reports of these nodes could not be stored.
    pub(super) fn mark_unsaved(&self, nodes: impl IntoIterator<Item = NodeId>) {
        let mut states = self.lock();
        for node in nodes {
            if let Some(known) = states.known.get_mut(&node) {
                known.is_unsaved = true;
            }
        }
    }

    /// The nodes that have reported since a time.
    pub(super) fn reported_since(&self, time: Instant) -> Vec<NodeId> {
        let states = self.lock();
        states.known.iter().filter(|(_, known)| known.received >= time).map(|(node, _)| *node).collect()
    }

    /// The nodes whose streams have ended, with the times of their last reports. They count as stored.
    pub(super) fn take_ended(&self) -> Vec<(NodeId, u64)> {
        std::mem::take(&mut self.lock().ended).into_iter().collect()
    }

    /// The ends of these streams could not be stored. Nodes that have another stream meanwhile are left out.
    pub(super) fn put_back_ended(&self, ended: Vec<(NodeId, u64)>) {
        let mut states = self.lock();
        for (node, reported_ms) in ended {
            if !states.known.contains_key(&node) {
                states.ended.entry(node).or_insert(reported_ms);
            }
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

    /// Catches a finding that lasts longer than this replica has seen it, and one of a node that does not report any more.
    #[test]
    fn a_finding_lasts_since_its_first_report() {
        let (states, begin) = (HealthStates::default(), Instant::now());
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        let lasts = |seconds: u64| {
            let lasting = states.lasting(after(seconds)).into_iter();
            lasting.map(|it| (it.finding.class, it.lasts.as_secs())).collect::<Vec<_>>()
        };
        let nic = AnomalyClass::NicFault;
        states.put(NODE, report(&[nic]), begin);
        states.put(NODE, report(&[nic, AnomalyClass::SwitchOverload]), after(30));
        assert_eq!(lasts(40), [(nic, 40), (AnomalyClass::SwitchOverload, 10)]);
        states.put(NODE, report(&[]), after(41));
        states.put(NODE, report(&[nic]), after(42));
        assert_eq!(lasts(43), [(nic, 1)]);
        assert_eq!(lasts(42 + STALE.as_secs() + 1), []);
        states.forget(NODE);
        states.put(NODE, report(&[nic]), after(50));
        assert_eq!(lasts(60), [(nic, 10)], "another stream begins again");
        let mut of_peer = report(&[nic]);
        of_peer.findings[0].subject = HealthSubject::Peer([192, 0, 2, 1].into());
        states.put(NODE, of_peer, after(61));
        assert_eq!(lasts(62), [], "the host itself may be in order");
    }

    /// Catches a report that is written again and again, and a change that is not.
    #[test]
    fn what_has_changed_is_stored_once() {
        let (states, begin) = (HealthStates::default(), Instant::now());
        let unsaved = || states.take_unsaved().into_iter().map(|(node, ..)| node).collect::<Vec<_>>();
        states.put(NODE, report(&[]), begin);
        assert_eq!((unsaved(), unsaved()), (vec![NODE], vec![]));
        states.put(NODE, report(&[]), begin + STALE);
        assert_eq!((unsaved(), states.reported_since(begin + STALE)), (vec![], vec![NODE]));
        states.put(NODE, report(&[AnomalyClass::NicFault]), begin + STALE);
        assert_eq!(unsaved(), [NODE]);
        states.mark_unsaved([NODE]);
        assert_eq!(unsaved(), [NODE]);
        assert_eq!(states.take_ended(), []);
        states.forget(NODE);
        let ended = states.take_ended();
        assert_eq!((ended.len(), ended[0].0, states.take_ended()), (1, NODE, vec![]));
        states.put_back_ended(ended.clone());
        assert_eq!(states.take_ended(), ended);
        // It has another stream before the end of the first one is stored.
        states.put(NODE, report(&[]), begin + STALE);
        states.put_back_ended(ended);
        assert_eq!((states.take_ended(), unsaved()), (vec![], vec![NODE]));
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
