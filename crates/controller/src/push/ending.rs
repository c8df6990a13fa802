//! Asks hosts which of their sessions would end if some rules of security groups did not exist. A host whose stream is on
//! another replica of the controller is not asked, and counts as one that did not answer.

use super::{Push, count};
use sluice_southbound::proto::{EndingSessions, EndingSessionsRequest, NodeUpdate};
use sluice_southbound::{EncodedUpdate, MAX_ENDING_PORTS, UpdateHead};
use sluice_store::NodeId;
use sluice_types::{HostId, InstanceId, SecurityRuleId, VpcId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Longest wait for the answers. A host needs some hundredths of a second for 100,000 sessions.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Questions that may be open at a time.
const OPEN_MAX: usize = 16;

/// A host's answer: numbers of sessions by instance, and of all instances.
#[derive(Debug, Default)]
pub struct HostEnding {
    /// Sessions that would end.
    pub sessions: u64,
    /// The first instances with such sessions.
    pub instances: BTreeMap<InstanceId, u64>,
}

/// The sessions that would end.
#[derive(Debug, Default)]
pub struct Ending {
    /// The hosts that answered.
    pub hosts: BTreeMap<HostId, HostEnding>,
    /// The hosts that did not, and why.
    pub unanswered: BTreeMap<HostId, String>,
}

/// As many questions as may be open are being asked.
#[derive(Debug, thiserror::Error)]
#[error("{OPEN_MAX} questions about sessions are being asked already")]
pub struct TooManyQuestions;

/// A question that is open.
#[derive(Debug, Default)]
struct Question {
    /// The hosts that were asked and have not answered.
    awaited: BTreeSet<HostId>,
    /// What the others have answered.
    ending: Ending,
    /// Notified when no host is awaited.
    complete: Arc<Notify>,
}

/// The questions that are open. Each keeps at most one answer of each host that it was sent to.
#[derive(Debug, Default)]
pub struct EndingQuestions {
    last: AtomicU64,
    open: Mutex<HashMap<u64, Question>>,
}

impl EndingQuestions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Question>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, awaited: BTreeSet<HostId>) -> Result<Open<'_>, TooManyQuestions> {
        let mut open = self.lock();
        if open.len() >= OPEN_MAX {
            return Err(TooManyQuestions);
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        open.insert(id, Question { awaited, ..Question::default() });
        Ok(Open { questions: self, id })
    }

    /// Takes the answer of a host that an open question awaits. False for all other answers: to a question that is not
    /// open, of a host that was not asked, or a second one.
    fn answered(&self, host: HostId, answer: EndingSessions) -> bool {
        let mut open = self.lock();
        let Some(question) = open.get_mut(&answer.id) else { return false };
        let is_awaited = question.awaited.remove(&host);
        if is_awaited {
            question.ending.note(host, answer);
        }
        if question.awaited.is_empty() {
            question.complete.notify_one();
        }
        is_awaited
    }
}

/// Closes its question, also if the user does not wait for the answers.
struct Open<'a> {
    questions: &'a EndingQuestions,
    id: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.questions.lock().remove(&self.id);
    }
}

impl Push {
    /// The sessions of the VPC's instances that would end if these rules did not exist.
    ///
    /// # Errors
    /// [`TooManyQuestions`].
    pub async fn ending_sessions(
        &self,
        vpc: VpcId,
        rules: &[SecurityRuleId],
    ) -> Result<Ending, TooManyQuestions> {
        let hosts: BTreeSet<HostId> = self.members(|members| members.hosts_of(vpc)).into_iter().collect();
        let open = self.ending.open(hosts.clone())?;
        let request =
            EndingSessionsRequest { id: open.id, rules: rules.iter().map(|rule| rule.get()).collect() };
        let question = NodeUpdate { ending_sessions: Some(request), ..NodeUpdate::default() };
        // An agent that does not know the question takes it for a part of a step without entries, of its database.
        let head = UpdateHead { database_id: self.database_id(), ..UpdateHead::default() };
        let question = EncodedUpdate::new(head, EncodedUpdate::encode_entries(&question));
        let (asked, absent): (BTreeSet<_>, BTreeSet<_>) =
            hosts.into_iter().partition(|host| self.hub.ask(NodeId::Host(*host), question.clone()));
        let complete = self.ending.lock().get_mut(&open.id).and_then(|question| {
            question.awaited.retain(|host| asked.contains(host));
            (!question.awaited.is_empty()).then(|| Arc::clone(&question.complete))
        });
        if let Some(complete) = complete {
            // What has not come by then counts as unanswered.
            let _ = timeout(TIMEOUT, complete.notified()).await;
        }
        let Question { awaited, mut ending, .. } = self.ending.lock().remove(&open.id).unwrap_or_default();
        let reason = |text: &'static str| move |host| (host, text.to_owned());
        ending.unanswered.extend(absent.into_iter().map(reason("it has no stream to this controller")));
        ending.unanswered.extend(awaited.into_iter().map(reason("it did not answer in time")));
        Ok(ending)
    }

    /// A host has answered. Answers that no question awaits are counted.
    pub fn note_ending(&self, host: HostId, answer: EndingSessions) {
        if !self.ending.answered(host, answer) {
            count(&self.counters.answers_ignored);
        }
    }
}

impl Ending {
    fn note(&mut self, host: HostId, answer: EndingSessions) {
        let EndingSessions { sessions, ports, problem, .. } = answer;
        if problem.is_empty() {
            let ports = ports.iter().take(MAX_ENDING_PORTS);
            let instances = ports.map(|port| (InstanceId::new(port.instance), port.sessions)).collect();
            self.hosts.insert(host, HostEnding { sessions, instances });
        } else {
            self.unanswered.insert(host, problem);
        }
    }
}
